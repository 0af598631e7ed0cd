"""What is done to a server so that its journal has something of everything, in less than a minute.

Everything goes through google-cloud-pubsub: streams that ack and nack, pulls whose acks are lost or come too
late, dead letters, seeks with leases outstanding, a detachment, a kill and an orderly restart.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.api_core.exceptions import GoogleAPICallError
from google.cloud.pubsub_v1.subscriber.message import Message

from tests.clients.world import World, results
from tests.support.server import ServerProcess

LEASE_SECONDS = 10  # the shortest that the service has
QUIET_SECONDS = 2.0
QUIET_SECONDS_MAX = 60.0
KEYS = 10


class FaultyServer(ServerProcess):
    """pubsubd with one of the faults of `tests.faults`."""

    def __init__(self, fault: str, data_dir: Path, *options: str) -> None:
        super().__init__(data_dir, *options)
        self.fault = fault

    def command(self) -> Sequence[str]:
        python, dash_m, _, *options = super().command()
        return [python, dash_m, "tests.faults.serve", self.fault, "--", *options]


class Load:
    def __init__(self, world: World, server: ServerProcess, seed: int = 0) -> None:
        self._world = world
        self._server = server
        self._chance = random.Random(seed)
        self._heard_at = 0.0
        self._published: set[str] = set()
        self._heard: dict[str, set[str]] = {}  # message ids by subscription
        self._nacked: dict[str, set[str]] = {}
        self._owed: dict[str, set[str]] = {}  # nacked, and not heard again yet
        self.orders = world.topic("orders")
        self.graveyard = world.topic("graveyard")
        eo: dict[str, Any] = {"enable_exactly_once_delivery": True, "ack_deadline_seconds": LEASE_SECONDS}
        add = world.subscription
        self.plain = add(self.orders, "plain", **eo)
        self.ordered = add(self.orders, "ordered", enable_message_ordering=True, **eo)
        self.loose = add(self.orders, "loose", ack_deadline_seconds=LEASE_SECONDS)
        self.filtered = add(self.orders, "filtered", filter='attributes.third = "yes"', **eo)
        self.slow = add(self.orders, "slow", **eo)
        self.sought = add(self.orders, "sought", retain_acked_messages=True, **eo)
        self.detached = add(self.orders, "detached", **eo)
        policy = {"dead_letter_topic": self.graveyard, "max_delivery_attempts": 5}
        self.hopeless = add(self.orders, "hopeless", dead_letter_policy=policy, **eo)
        self.grave = add(self.graveyard, "grave", **eo)
        self._begun = datetime.datetime.now(datetime.UTC)

    def run(self) -> None:
        self.publish(400)
        late = self.pull(self.slow, 30)
        too_late_at = time.monotonic() + LEASE_SECONDS + 1
        self.pull(self.detached, 20)
        self._world.publisher.detach_subscription(request={"subscription": self.detached})
        self.bury(10)
        with self.streams(self.plain, self.ordered, self.loose, self.filtered, self.sought):
            self.until_all_came(self.plain, self.sought)
            self.pull(self.hopeless, 10)
            self._server.kill()
            self._server.start()
            self.publish(100)
            self.until_all_came(self.plain, self.sought)
        self.seek(self.sought, self._begun)
        self.pull(self.sought, 20)
        self.seek(self.sought, self._begun)  # the leases go on, what was acked is open once more
        with self.streams(self.sought):
            self.until_quiet()
        time.sleep(max(0.0, too_late_at - time.monotonic()))
        self.ack_each(self.slow, late)
        with self.streams(self.slow, self.hopeless, self.grave):
            self.until_quiet()
        self.publish(50)
        self.seek(self.sought, datetime.datetime.now(datetime.UTC))
        self.ack_each(self.plain, self.pull(self.plain, 20))
        self._server.terminate()
        self._server.start()
        with self.streams(self.plain, self.ordered):
            self.until_all_came(self.plain)

    def run_briefly(self) -> None:
        """Deliveries, acks, and acks that come too late."""
        self.publish(100)
        late = self.pull(self.slow, 10)
        too_late_at = time.monotonic() + LEASE_SECONDS + 1
        with self.streams(self.plain):
            time.sleep(3)  # a server that delivers what was acked never comes to an end
        time.sleep(max(0.0, too_late_at - time.monotonic()))
        self.pull(self.slow, 100)  # the same messages once more, under other ids
        self.ack_each(self.slow, late)

    # -- what it consists of --------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        publisher = self._world.ordered_publisher()
        publishing = [
            publisher.publish(
                self.orders,
                b"x" * self._chance.randint(1, 2000),
                ordering_key=f"key-{number % KEYS}",
                third="yes" if number % 3 == 0 else "no",
            )
            for number in range(count)
        ]
        self._published.update(results(publishing, QUIET_SECONDS_MAX))

    def pull(self, subscription: str, count: int) -> list[str]:
        """Ack ids of about so many messages that are deliverable now."""
        pulled = self._world.pull(subscription, count)
        self._heard.setdefault(subscription, set()).update(one.message.message_id for one in pulled)
        return [one.ack_id for one in pulled]

    def ack_each(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """One by one, some twice; a refusal is as good as an answer."""
        for ack_id in ack_ids:
            for _ in range(self._chance.choice((1, 1, 2))):
                with contextlib.suppress(GoogleAPICallError):
                    self._world.subscriber.acknowledge(
                        request={"subscription": subscription, "ack_ids": [ack_id]}, retry=None
                    )

    def bury(self, count: int) -> None:
        """Nack a few messages until they are dead letters."""
        for _ in range(5):
            ack_ids = self.pull(self.hopeless, count)
            if ack_ids:
                request = {"subscription": self.hopeless, "ack_ids": ack_ids, "ack_deadline_seconds": 0}
                self._world.subscriber.modify_ack_deadline(request=request)

    def seek(self, subscription: str, time: datetime.datetime) -> None:
        self._world.subscriber.seek(request={"subscription": subscription, "time": time})

    @contextlib.contextmanager
    def streams(self, *subscriptions: str) -> Iterator[None]:
        """Each is consumed; one message in twenty is nacked the first time that it comes."""
        client = self._world.subscriber_client()

        def consumer(subscription: str) -> Callable[[Message], None]:
            heard = self._heard.setdefault(subscription, set())
            nacked = self._nacked.setdefault(subscription, set())
            owed = self._owed.setdefault(subscription, set())

            def consume(message: Message) -> None:
                self._heard_at = time.monotonic()
                heard.add(message.message_id)
                if int(message.message_id) % 20 == 0 and message.message_id not in nacked:
                    nacked.add(message.message_id)
                    owed.add(message.message_id)
                    message.nack()
                else:
                    owed.discard(message.message_id)
                    message.ack()

            return consume

        running = [client.subscribe(name, consumer(name)) for name in subscriptions]
        try:
            yield
        finally:
            for stream in running:
                stream.cancel()
            for stream in running:
                stream.result(QUIET_SECONDS_MAX)

    def until_all_came(self, *subscriptions: str) -> None:
        """Until each has had every message, and again what it nacked; a client may be slow to come back.

        Not for an ordered one: a nack holds its key until the leases of what was sent after it are over.
        """
        end = time.monotonic() + QUIET_SECONDS_MAX
        for subscription in subscriptions:
            while missing := (self._published - self._heard[subscription]) | self._owed[subscription]:
                assert time.monotonic() < end, f"{len(missing)} messages did not come to {subscription}"
                time.sleep(0.05)

    def until_quiet(self) -> None:
        """Until no message has come for a while."""
        end = time.monotonic() + QUIET_SECONDS_MAX
        self._heard_at = time.monotonic()
        while time.monotonic() - self._heard_at < QUIET_SECONDS:
            assert time.monotonic() < end, "messages come and come"
            time.sleep(0.05)
