"""Messages with ordering keys: how the client tests publish them and how they work them off.

The number of a message in its key is its data. What the library does with a key matters here: it runs one
callback of it at a time, in the order in which the messages came, and begins the next one when the message
before it was acked, nacked or dropped, whatever came of that. So after a nack the callbacks of the later
messages of the key run before the nacked one has come again. Under exactly-once delivery their acks fail
then, because the nack took those deliveries back; without it they succeed.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.futures import Future
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl

from tests.clients.world import results

# The library drops a delivery that a nack took back while it was on its way, and tells nobody, so that the
# message comes again only at its deadline, a minute later. Callbacks wait this long before they nack: then
# nothing of their key is on its way.
SETTLE_SECONDS = 0.2
PATIENCE_SECONDS = 30.0

# The library extends leases at a random moment of their duration. If a delivery was taken back by then, it
# learns of that and begins the next message of the key beside the one that runs. Long leases make that rare.
LONG_LEASES = FlowControl(min_duration_per_lease_extension=600, max_duration_per_lease_extension=600)


class Item(NamedTuple):
    key: str
    number: int


class Sight(NamedTuple):
    """One run of a callback."""

    item: Item
    client: str
    message_id: str
    delivery_attempt: int | None


class KeyedWork:
    """A callback, for one subscriber or several, that nacks some items so and so often and acks all else.

    `seen` and `acked` are in the order in which things happened, over all keys and clients.

    An ack that shares its request with one that fails takes effect, and yet the library says that it failed,
    for another reason: it takes an id that the answer does not name for a failure. Such acks are in `acked`
    too, unless the server is `confirming` (its `--ack-batch-policy`), where there are none.
    """

    def __init__(self, nacks: Mapping[Item, int] | None = None, confirming: bool = False) -> None:
        self.seen: list[Sight] = []
        self.acked: list[Sight] = []
        self.failures: list[tuple[Sight, AcknowledgeStatus | BaseException]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._nacks = Counter(nacks or {})
        self._effective = {AcknowledgeStatus.SUCCESS}
        if not confirming:
            self._effective.add(AcknowledgeStatus.OTHER)
        self._changed = threading.Condition()

    def of(self, client: str):
        """The callback for the subscriber of that name."""
        return lambda message: self._work(message, client)

    def __call__(self, message: Message) -> None:
        self._work(message, "only")

    def _work(self, message: Message, client: str) -> None:
        item = Item(message.ordering_key, int(message.data))
        sight = Sight(item, client, message.message_id, message.delivery_attempt)
        with self._changed:
            self.seen.append(sight)
            nack = self._nacks[item] > 0
            self._nacks[item] -= nack
            self._changed.notify_all()
        self.gate.wait(PATIENCE_SECONDS)
        if nack:
            time.sleep(SETTLE_SECONDS)
            message.nack()
        else:
            self._ack(message, sight)

    def _ack(self, message: Message, sight: Sight) -> None:
        answer = message.ack_with_response()
        # That is called before the next message of the key begins. Waiting for it here would keep the threads
        # of a test that failed for as long as the library tries its acks again.
        answer.add_done_callback(lambda answer: self._acked(answer, message, sight))

    def _acked(self, answer: Future, message: Message, sight: Sight) -> None:
        status = status_of(answer)
        with self._changed:
            if status in self._effective:
                self.acked.append(sight)
            elif status is not AcknowledgeStatus.INVALID_ACK_ID:
                self.failures.append((sight, status))
            self._changed.notify_all()
        if status is AcknowledgeStatus.INVALID_ACK_ID:
            # Taken back by the nack of an earlier message of the key. Given up, it comes again when it is its
            # turn. Not by nack(), which would begin another message of the key beside the one that runs then.
            message.modify_ack_deadline(0)

    def wait_seen(self, count: int, seconds: float) -> None:
        self._wait(lambda: len({sight.message_id for sight in self.seen}) >= count, seconds)

    def wait_acked(self, count: int, seconds: float) -> None:
        self._wait(lambda: len({sight.message_id for sight in self.acked}) >= count, seconds)

    def _wait(self, condition, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                seen, acked = numbers_of(self.seen), numbers_of(self.acked)
                raise AssertionError(f"not within {seconds} s: {seen=} {acked=} {self.failures=}")

    def is_quiet(self, seconds: float) -> bool:
        """True if no callback begins within the next `seconds`."""
        with self._changed:
            count = len(self.seen)
            return not self._changed.wait_for(lambda: len(self.seen) > count, seconds)


def status_of(answer: Future) -> AcknowledgeStatus | BaseException:
    """What became of an ack that was answered."""
    error = answer.exception()
    if isinstance(error, AcknowledgeError):
        return error.error_code
    return error or answer.result()


def publish_keyed(
    publisher: pubsub_v1.PublisherClient, topic: str, keys: Iterable[str], numbers: Iterable[int]
) -> dict[Item, str]:
    """Publishes those numbers of every key, the keys taking turns; returns the message ids."""
    items = [Item(key, number) for number, key in itertools.product(numbers, keys)]
    sent = [publisher.publish(topic, b"%d" % item.number, ordering_key=item.key) for item in items]
    return dict(zip(items, results(sent, PATIENCE_SECONDS), strict=True))


def random_nacks(seed: int, keys: Iterable[str], numbers: Sequence[int]) -> dict[Item, int]:
    """For every key some of those numbers, to be nacked once or twice."""
    chance = random.Random(seed)
    return {
        Item(key, number): chance.choice((1, 1, 2)) for key in keys for number in chance.sample(numbers, k=3)
    }


def numbers_of(sights: Iterable[Sight]) -> dict[str, list[int]]:
    """The numbers in each key, in the order of `sights`."""
    numbers = defaultdict(list)
    for sight in sights:
        numbers[sight.item.key].append(sight.item.number)
    return dict(numbers)


def first_numbers_of(sights: Iterable[Sight]) -> dict[str, list[int]]:
    """The same, each number once: where it was the first time."""
    return {key: list(dict.fromkeys(numbers)) for key, numbers in numbers_of(sights).items()}
