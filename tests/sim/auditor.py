"""Judges a simulated history while it happens: the invariants I1 to I10, and that everything owed is delivered.

Theory of operation. The journal is replayed by rules that know nothing of the server's code
(`tests.crash.replay`), each commit at the moment when it is durable. That says whether what the server decided
was lawful. Whether the journal tells the truth is judged from both its sides: everything that a client hears
must be in it by then, made between request and answer, and everything in it must have been asked for; and
the state that the server goes on with, from memory or from the disk, must be the one that the journal tells.
There is one clock, so all times are compared exactly.

The first violation is raised as `Broken` and ends the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pubsubd.broker.broker import Broker
from pubsubd.broker.effects import SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Entry, unpack_chunk
from pubsubd.broker.saved import Saved
from pubsubd.engine.engine import Engine
from pubsubd.eod.endings import EndingRow
from pubsubd.wire import pb
from tests.crash.compare import Stored, differences
from tests.crash.database import subscription_state
from tests.crash.filters import matches
from tests.crash.hashes import payload_hash
from tests.crash.log import Answer
from tests.crash.replay import Record, Replayer, Row

if TYPE_CHECKING:
    from tests.sim.disk import JournalRow, SimDisk

# How often the deep checks run.
_STEPS_PER_CHECK = 8
_STEPS_PER_COMPARISON = 64


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text


# Which invariant a problem of the replayer breaks, by a part of its text; the first that fits.
_INVARIANTS = (
    ("after its ack", "I2"),
    ("inside the lease", "I3"),
    ("before its back-off", "I3"),
    ("before its void lease", "I3"),
    ("us early", "I3"),
    ("the lease ends before", "I3"),
    ("asked for", "I3"),
    ("refused", "I5"),
    ("is not new", "I4"),
    ("accepted, and", "I4"),
    ("answered as done", "I5"),
    ("come again, and the lease", "I5"),
    ("of its key", "I6"),
    ("behind it is outstanding", "I6"),
    ("nothing before it has failed", "I6"),
    ("gets it, and", "I6"),
    ("forwarded", "I8"),
    ("failures", "I8"),
    ("attempt", "I8"),
    ("its copy", "I8"),
    ("drop", "I9"),
    ("retention", "I9"),
    ("filter", "I9"),
    ("match", "I9"),
    ("delivered", "I9"),
)


def _invariant_of(problem: str) -> str:
    return next((invariant for part, invariant in _INVARIANTS if part in problem), "I10")


class Auditor:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.replayer = Replayer(self._matches, self._applied)
        self._attributes: dict[int, Mapping[str, str]] = {}  # by payload_hash
        self._rows = 0
        self._steps = 0
        self._chunks: dict[tuple[int, int], list[tuple[Entry, pb.PubsubMessage]]] = {}

    def check(self, holds: object, invariant: str, text: str) -> None:
        if not holds:
            raise Broken(invariant, text)

    def owed(self) -> dict[str, int]:
        """How many messages each subscription is still owed, by the journal; those that are owed nothing are left out."""
        return {
            one.name: len(one.unacked)
            for one in self.replayer.subscriptions.values()
            if one.attached and not one.deleted and one.unacked
        }

    # -- what clients ask and hear --------------------------------------------------------------------------

    def sending(self, topic: str, messages: Sequence[pb.PubsubMessage], now_us: int) -> None:
        """A Publish is about to leave."""
        for message in messages:
            attributes = dict(message.attributes)
            self._attributes[payload_hash(message.data, attributes)] = attributes

    def published(
        self,
        call_us: int,
        now_us: int,
        topic: str,
        messages: Sequence[pb.PubsubMessage],
        ids: Sequence[str] | None,
    ) -> None:
        """The answer of a Publish; None: it may or may not be stored."""

    def stream_opened(
        self, stream: int, subscription: str, client_id: str, messages_max: int, bytes_max: int, now_us: int
    ) -> None: ...

    def stream_ended(self, stream: int, now_us: int, status: object) -> None: ...

    def delivered(
        self,
        stream: int,
        subscription: str,
        received: Sequence[pb.ReceivedMessage],
        asked_us: int,
        now_us: int,
    ) -> None:
        """Messages arrived on a stream, or by a Pull (0)."""

    def asking(self, kind: str, subscription: str, ack_ids: Sequence[str], seconds: int, now_us: int) -> None:
        """An ack or modack is about to leave."""

    def answered(
        self,
        kind: str,
        subscription: str,
        ack_ids: Sequence[str],
        seconds: int,
        sent_us: int,
        now_us: int,
        results: Mapping[str, Answer],
    ) -> None:
        """The answer of an ack or modack; empty: it was refused as a whole."""

    def configuring(self, call: str, request: Any, now_us: int) -> None:
        """A change of resources, or a seek, is about to leave."""

    def configured(self, call: str, request: Any, sent_us: int, now_us: int, ok: bool | None) -> None:
        """Its answer; None: it may or may not have happened."""

    # -- what becomes durable -------------------------------------------------------------------------------

    def committed(self, rows: Sequence[JournalRow], details: Mapping[int, str], now_us: int) -> None:
        replayer = self.replayer
        self._rows += len(rows)
        replayer.feed([Row(*row) for row in rows], details)
        if replayer.problems:
            raise Broken(_invariant_of(replayer.problems[0]), "; ".join(replayer.problems))

    def _applied(self, record: Record, told: Mapping[str, Any]) -> None:
        self.counts["events"] += 1

    def _matches(self, text: str, hashed: int) -> bool:
        return matches(text, self._attributes.get(hashed, {}))

    # -- the server -----------------------------------------------------------------------------------------

    def stepped(self, engine: Engine | None, now_us: int) -> None:
        """An instant of the simulated time is over."""
        if engine is None:
            return
        self._steps += 1
        if self._steps % _STEPS_PER_CHECK == 0:
            check_broker(engine._broker)

    def killed(self, now_us: int) -> None: ...

    def restarted(self, engine: Engine, disk: SimDisk, now_us: int) -> None:
        self.counts["restarts"] += 1
        self._check_disk(disk)
        self._compare(engine._broker, disk, "restored")

    def finished(self, engine: Engine, disk: SimDisk, now_us: int) -> None:
        self._check_disk(disk)
        self._compare(restored(disk), disk, "restored at the end")
        if owed := self.owed():
            raise Broken("liveness", f"still owed: {owed}")

    def _check_disk(self, disk: SimDisk) -> None:
        self.check(
            len(disk.rows) == self._rows,
            "I10",
            f"{self._rows} rows were committed, {len(disk.rows)} are there",
        )

    def _compare(self, broker: Broker, disk: SimDisk, what: str) -> None:
        self.counts["comparisons"] += 1
        found = differences(self._stored(broker, disk), self.replayer)
        self.check(not found, "I10", f"{what}: {'; '.join(found)}")

    def _stored(self, broker: Broker, disk: SimDisk) -> Stored:
        ids_of_topic: dict[int, list[int]] = {}
        entries: dict[int, Entry] = {}
        messages: dict[int, pb.PubsubMessage] = {}
        for topic_id, rows in disk.chunks.items():
            for last_id, (_, data) in rows.items():
                for entry, message in self._read(topic_id, last_id, data):
                    ids_of_topic.setdefault(topic_id, []).append(entry.message_id)
                    entries[entry.message_id] = entry
                    messages[entry.message_id] = message
        return Stored(
            boot=disk.boot,
            clean=disk.clean,
            topics={name: topic_id for topic_id, name, deleted, _ in disk.topics.values() if not deleted},
            snapshots={name: topic_id for _, topic_id, name, _, _ in disk.snapshots.values()},
            subscriptions={
                one.sub_id: subscription_state(
                    one, ids_of_topic.get(one.topic.topic_id, []), entries, messages
                )
                for one in broker.subscriptions()
            },
            messages=messages,
            rows=[],
            details={},
            now_us=self.replayer.now_us,
        )

    def _read(self, topic_id: int, last_id: int, data: bytes) -> list[tuple[Entry, pb.PubsubMessage]]:
        found = self._chunks.get((topic_id, last_id))
        if found is None:
            found = [(entry, pb.PubsubMessage.FromString(entry.data)) for entry in unpack_chunk(data)]
            self._chunks[topic_id, last_id] = found
        return found


def restored(disk: SimDisk) -> Broker:
    """What a server would go on with that is started over `disk`."""
    loaded = disk.loaded()
    saved = Saved(
        [TopicRow(topic_id, name, bool(deleted), data) for topic_id, name, deleted, data in loaded.topics],
        [SubscriptionRow(*row) for row in loaded.subscriptions],
        [SnapshotRow(*row) for row in loaded.snapshots],
        [EndingRow(*row) for row in loaded.endings],
        loaded.oplog,
    )
    return Broker.restore(saved, disk.secret, disk.boot, True)


def check_broker(broker: Broker) -> None:
    """What holds in the core after every step."""
    for subscription in broker.subscriptions():
        try:
            subscription.check_invariants()
        except AssertionError as error:
            raise Broken("core", f"{subscription.name}: {error}") from error
        held: dict[object, list[int]] = {}
        for lease in subscription.leases:
            if lease.holder is not None:
                held.setdefault(lease.holder, []).append(lease.size)
        for consumer in subscription.consumers:
            sizes = held.get(consumer, [])
            counted = (consumer.outstanding_messages, consumer.outstanding_bytes)
            if not consumer.once and counted != (len(sizes), sum(sizes)):
                raise Broken("I7", f"stream {consumer.stream_id} counts {counted}, and has {sizes}")
            if len(sizes) > consumer.max_messages:
                raise Broken(
                    "I7", f"stream {consumer.stream_id} has {len(sizes)} of {consumer.max_messages} messages"
                )
