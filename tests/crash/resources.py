"""Topics and subscriptions, of all features, that come, change and go while the server is killed.

Theory of operation. Each resource carries a label that no other change gave it, so one look tells which
change it is at. Of each name we hold the set of states that it can be in: an answered change leaves one, a
change without an answer leaves the state before it and the state after it. Looking removes the contradicted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable
from typing import Any

import grpc

from pubsubd.wire import pb
from tests.crash.filters import FILTERS, draw_attributes
from tests.crash.hashes import payload_hash
from tests.crash.log import Log, now_us
from tests.crash.plan import DEAD_TOPIC, dead_letter_policy, duration, retry_policy
from tests.crash.snapshots import UNSURE, Snapshots
from tests.wire.calls import PERMANENT, Client, Refusal

_LABEL = "change"
_DETACHED = " detached"

# None: it does not exist.
State = str | None


class Resources:
    """A few names whose resources one task changes all the time."""

    def __init__(self, client: Client, log: Log, chance: random.Random, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._client = client
        self._log = log
        self._chance = chance
        self._changes = itertools.count(1)
        self._topics = [f"projects/crash/topics/coming-and-going-{n}" for n in range(3)]
        self._subscriptions = [f"projects/crash/subscriptions/coming-and-going-{n}" for n in range(3)]
        self._states: dict[str, set[State]] = {name: {None} for name in (*self._topics, *self._subscriptions)}
        # An ack id of a subscription that was deleted since must not fit one of the same name.
        self._ack_ids: dict[str, str] = {}
        self._stale_ack_ids: dict[str, str] = {}

    async def change_one(self) -> None:
        """One random change. Errors that say that the server is gone leave the outcome open."""
        name = self._chance.choice([*self._topics, *self._subscriptions, *self._subscriptions])
        if len(self._states[name]) > 1:
            await self.look(name)
        elif self._states[name] == {None}:
            await self._create(name)
        elif self._chance.random() < 0.4:
            await self._delete(name)
        elif name in self._subscriptions and self._chance.random() < 0.5:
            await self._lease_some(name)
        elif name in self._subscriptions and self._chance.random() < 0.4:
            await self._move(name)
        elif name in self._subscriptions and self._chance.random() < 0.2:
            await self._detach(name)
        else:
            await self._update(name)

    async def look_at_all(self) -> None:
        for name in self._states:
            await self.look(name)

    async def look(self, name: str) -> None:
        """Compare one resource with what it can be."""
        seen: State = None
        try:
            if name in self._topics:
                resource = await self._client.GetTopic(topic=name)
            else:
                resource = await self._client.GetSubscription(subscription=name)
            seen = resource.labels[_LABEL] + _DETACHED * getattr(resource, "detached", False)
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                return
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._wrong(f"Get {name} was answered {error.code()}: {error.details()}")
                return
        self._log.resource_checks += 1
        if seen not in self._states[name]:
            self._wrong(f"{name} is at change {seen}, and can be at {sorted(map(str, self._states[name]))}")
        self._states[name] = {seen}
        if seen is None:
            self._forget(name)

    async def _create(self, name: str) -> None:
        label = str(next(self._changes))
        chance = self._chance
        if name in self._topics:
            retention = {"message_retention_duration": duration(3)} if chance.random() < 0.3 else {}
            call = self._client.CreateTopic(name=name, labels={_LABEL: label}, **retention)
            await self._change(name, label, call)
            return
        topic = self._chance.choice(self._topics)
        if self._states[topic] == {None} or len(self._states[topic]) > 1:
            return
        call = self._client.CreateSubscription(
            name=name,
            topic=topic,
            labels={_LABEL: label},
            enable_exactly_once_delivery=chance.random() < 0.7,
            enable_message_ordering=chance.random() < 0.5,
            filter=chance.choice(["", *FILTERS]),
            retain_acked_messages=chance.random() < 0.3,
            retry_policy=retry_policy(0.1, 0.5) if chance.random() < 0.3 else None,
            dead_letter_policy=dead_letter_policy(DEAD_TOPIC) if chance.random() < 0.3 else None,
        )
        if await self._change(name, label, call) and name in self._stale_ack_ids:
            await self._check_stale(name, self._stale_ack_ids.pop(name))

    async def _detach(self, name: str) -> None:
        (state,) = self._states[name]
        assert state is not None
        subscription = await self._get_subscription(name)
        # A topic that was deleted has nothing to detach from, and nobody detaches twice.
        if subscription is not None and subscription.topic in self._topics and _DETACHED not in state:
            await self._change(name, state + _DETACHED, self._client.DetachSubscription(subscription=name))

    async def _get_subscription(self, name: str) -> Any:
        try:
            return await self._client.GetSubscription(subscription=name)
        except grpc.RpcError as error:
            if error.code() not in UNSURE:
                self._wrong(f"Get {name} was answered {error.code()}: {error.details()}")
            return None

    async def _update(self, name: str) -> None:
        label = str(next(self._changes))
        (state,) = self._states[name]
        after = label + _DETACHED * (state is not None and _DETACHED in state)
        mask = pb.FieldMask(paths=["labels"])
        if name in self._topics:
            topic = pb.Topic(name=name, labels={_LABEL: label})
            await self._change(name, after, self._client.UpdateTopic(topic=topic, update_mask=mask))
        else:
            subscription = pb.Subscription(name=name, labels={_LABEL: label})
            await self._change(
                name, after, self._client.UpdateSubscription(subscription=subscription, update_mask=mask)
            )

    async def _delete(self, name: str) -> None:
        if name in self._topics:
            call = self._client.DeleteTopic(topic=name)
        else:
            call = self._client.DeleteSubscription(subscription=name)
        if await self._change(name, None, call):
            self._forget(name)

    def _forget(self, name: str) -> None:
        if name in self._ack_ids:
            self._stale_ack_ids[name] = self._ack_ids.pop(name)

    async def _lease_some(self, name: str) -> None:
        """Publish to the topic of a subscription and pull, so that it is deleted with leases open."""
        chance = self._chance
        try:
            subscription = await self._client.GetSubscription(subscription=name)
            if subscription.detached:
                return
            if subscription.topic in self._topics:
                key = chance.choice(["", "key"])
                messages = [
                    pb.PubsubMessage(data=b"x", attributes=draw_attributes(chance), ordering_key=key)
                    for _ in range(chance.randint(1, 3))
                ]
                for message in messages:
                    self._log.attributes[payload_hash(message.data, message.attributes)] = message.attributes
                await self._client.Publish(topic=subscription.topic, messages=messages)
            pulled = await self._client.Pull(subscription=name, max_messages=3, return_immediately=True)
            ack_ids = [received.ack_id for received in pulled.received_messages]
            if ack_ids:
                self._ack_ids[name] = ack_ids[-1]
                if chance.random() < 0.3:
                    await self._client.ModifyAckDeadline(
                        subscription=name, ack_ids=ack_ids, ack_deadline_seconds=chance.choice([0, 20])
                    )
                elif chance.random() < 0.6:
                    await self._client.Acknowledge(subscription=name, ack_ids=ack_ids)
        except grpc.RpcError as error:
            if error.code() not in UNSURE | {grpc.StatusCode.NOT_FOUND}:
                self._wrong(f"a message of {name} was answered {error.code()}: {error.details()}")

    async def _move(self, name: str) -> None:
        """Take a snapshot of a subscription, or set it to one or to a time."""
        subscription = await self._get_subscription(name)
        if subscription is None or subscription.detached:
            return
        topic, ordered = subscription.topic, subscription.enable_message_ordering
        if topic not in self._topics:
            topic = ""  # a deleted one, which no snapshot of another subscription is of
        if self._chance.random() < 0.4:
            await self._snapshots.create(name, topic, ordered)
            return
        try:
            # The topic may have been deleted and created since a snapshot of it was taken.
            time_us = now_us() - self._chance.randint(-1_000_000, 2_000_000)
            time = pb.Timestamp(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000)
            await self._client.Seek(subscription=name, time=time)
        except grpc.RpcError as error:
            if error.code() not in UNSURE:
                self._wrong(f"Seek of {name} was answered {error.code()}: {error.details()}")

    async def _check_stale(self, name: str, ack_id: str) -> None:
        self._log.resource_checks += 1
        try:
            await self._client.Acknowledge(subscription=name, ack_ids=[ack_id])
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                return
            # With exactly-once delivery the id fails, without it the request.
            results = Refusal.of(error).results
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT or results not in (
                {},
                {ack_id: PERMANENT},
            ):
                self._wrong(f"an ack id of the {name} before was answered {error.code()}: {error.details()}")
        else:
            self._wrong(f"{name} was deleted and created, and took an ack id of the one before")

    async def _change(self, name: str, after: State, call: Awaitable[Any]) -> bool:
        """Await the call; whether it was answered OK."""
        self._log.resource_changes += 1
        try:
            await call
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                self._states[name].add(after)
            else:
                self._wrong(f"{name} at {self._states[name]}: {error.code()}: {error.details()}")
            return False
        self._states[name] = {after}
        return True

    def _wrong(self, text: str) -> None:
        self._log.resources_wrong.append(text)
