"""Judges a simulated history while it happens: the invariants I1 to I10, and that what is owed is delivered.

Theory of operation. The journal is replayed by rules that know nothing of the server's code
(`tests.crash.replay`), each commit at the moment when it is durable. That says whether what the server
decided was lawful. Whether the journal tells the truth is judged from both its sides. Everything that a
client hears must be in it by then, made between request and answer, and everything in it must have been asked
for (`asked`). And the state that the server goes on with, from memory or from the disk, must be the one that
the journal tells (`state`). There is one clock, so all times are compared exactly.

The first violation is raised as `Broken` and ends the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pubsubd.broker.broker import Broker
from pubsubd.engine.engine import Engine
from pubsubd.wire import pb
from tests.crash.compare import differences
from tests.crash.database import reader
from tests.crash.filters import matches
from tests.crash.hashes import key_hash, payload_hash
from tests.crash.log import Answer
from tests.crash.promises import FORWARDED_PREFIX
from tests.crash.replay import (
    ACK,
    CONFIG,
    DEADLETTER,
    DELIVER,
    EXTEND,
    NACK,
    PUBLISH,
    SECOND_US,
    SEEK,
    STREAM,
    Published,
    Record,
    Replayer,
    Row,
)
from tests.crash.told import marks_of_copy
from tests.sim.asked import Changes, Operations, Original, Publishes, as_dict
from tests.sim.broken import Broken
from tests.sim.state import Messages, check_broker, restored
from tests.sim.windows import Limits, Windows

if TYPE_CHECKING:
    from tests.sim.disk import JournalRow, SimDisk

__all__ = ["Auditor", "Broken"]

# No deadline may be set to less; and a lease lasts longer by the time that its commit was expected to take.
_LEASE_US_MIN = 10 * SECOND_US
_COMMIT_US_MAX = SECOND_US

# How often the deep checks run.
_STEPS_PER_CHECK = 8
_STEPS_PER_COMPARISON = 128

# Which invariant a problem of the replayer breaks, by a part of its text; the first that fits.
_INVARIANTS = (
    ("after its ack", "I2"),
    ("refused", "I5"),
    ("inside the lease", "I3"),
    ("before its back-off", "I3"),
    ("before its void lease", "I3"),
    ("us early", "I3"),
    ("the lease ends before", "I3"),
    ("asked for", "I3"),
    ("is not new", "I4"),
    ("differ from those of the delivery", "I4"),
    ("was never delivered", "I4"),
    ("more is known", "I4"),
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


class _Stream:
    """A stream as its client knows it."""

    def __init__(self, subscription: str, limits: Limits, deadline_us: int) -> None:
        self.subscription = subscription
        self.limits = limits
        self.deadline_us = deadline_us
        self.stream_id = 0  # in the journal; 0: not known yet
        self.last_seq = 0  # of what has arrived


class Auditor:
    def __init__(self, secret: bytes = bytes(32)) -> None:
        """`secret` reads ack ids until a disk says what it really is."""
        self.counts: Counter[str] = Counter()
        self.replayer = replayer = Replayer(self._matches, self._applied)
        self._publishes = Publishes(replayer)
        self._operations = Operations(replayer, lambda ack_id: self._named(ack_id))
        self._changes = Changes()
        self._windows = Windows(replayer)
        self._messages = Messages()
        self._named = reader(secret)
        self._streams: dict[int, _Stream] = {}
        self._bound: set[int] = set()  # streams of the journal that a client knows
        self._received: set[str] = set()  # ack ids
        self._disk: SimDisk | None = None
        self._rows = 0
        self._steps = 0
        self._now_us = 0

    def owed(self) -> dict[str, int]:
        """How many messages each subscription is owed by the journal, where there are any.

        What is past its retention is not, whether or not it was dropped.
        """
        replayer, found = self.replayer, {}
        for sub in replayer.subscriptions.values():
            if sub.attached and not sub.deleted and sub.unacked:
                kept_from_us = self._now_us - replayer.unacked_kept_us(sub)
                count = sum(replayer.published[one].ts_us >= kept_from_us for one in sub.unacked)
                if count:
                    found[sub.name] = count
        return found

    # -- what clients ask and hear ------------------------------------------------------------------------

    def sending(self, topic: str, messages: Sequence[pb.PubsubMessage], now_us: int) -> None:
        """A Publish is about to leave."""
        self._publishes.sending(topic, messages, now_us)

    def published(
        self,
        call_us: int,
        now_us: int,
        topic: str,
        messages: Sequence[pb.PubsubMessage],
        ids: Sequence[str] | None,
    ) -> None:
        """The answer of a Publish; None: it may or may not be stored."""
        if ids is not None:
            self.counts["publishes answered"] += 1
            self._publishes.answered(call_us, now_us, topic, messages, ids)

    def stream_opened(
        self,
        stream: int,
        subscription: str,
        client_id: str,
        messages_max: int,
        bytes_max: int,
        now_us: int,
        deadline_seconds: float = 10,
    ) -> None:
        limits = Limits(messages_max, bytes_max)
        self._streams[stream] = _Stream(subscription, limits, round(deadline_seconds * SECOND_US))

    def stream_ended(self, stream: int, now_us: int, status: object) -> None:
        del self._streams[stream]

    def delivered(
        self,
        stream: int,
        subscription: str,
        received: Sequence[pb.ReceivedMessage],
        asked_us: int,
        now_us: int,
    ) -> None:
        """Messages arrived on a stream, or by a Pull (0)."""
        self.counts["deliveries"] += len(received)
        stream_ids = set()
        of_stream = self._streams[stream] if stream else None
        for one in received:
            record = self._delivery(subscription, one, asked_us, now_us)
            stream_ids.add(record.stream_id)
            if of_stream is None:
                continue
            if record.seq <= of_stream.last_seq:
                raise Broken("I6", f"message {record.message_id} came after what was delivered later")
            of_stream.last_seq = record.seq
            more_us = record.deadline_us - record.ts_us - of_stream.deadline_us
            if not 0 <= more_us <= _COMMIT_US_MAX:
                raise Broken("I3", f"a lease of {of_stream.deadline_us} us and {more_us} more: {record}")
        if len(stream_ids) != 1:
            raise Broken("I10", f"one response, and deliveries of {stream_ids}")
        if of_stream is not None:
            self._bind(of_stream, stream_ids.pop())

    def _bind(self, stream: _Stream, stream_id: int) -> None:
        """The journal calls the stream of a client `stream_id`."""
        if stream.stream_id == stream_id:
            return
        if stream.stream_id or stream_id in self._bound:
            raise Broken("I10", f"the delivery of stream {stream_id} came on another")
        stream.stream_id = stream_id
        self._bound.add(stream_id)
        if self._windows.limits(stream_id) != stream.limits:
            text = f"{self._windows.limits(stream_id)}, and not {stream.limits}"
            raise Broken("I7", f"stream {stream_id} asked for {text}")

    def _delivery(self, subscription: str, one: Any, asked_us: int, now_us: int) -> Record:
        """The record of what a client got; it is what was sent, and under an id of its own."""
        if one.ack_id in self._received:
            raise Broken("I4", f"the ack id {one.ack_id} came twice")
        self._received.add(one.ack_id)
        named, message = self._named(one.ack_id), one.message
        sub = None if named is None else self.replayer.subscriptions.get(named.sub_id)
        if named is None or sub is None or sub.name != subscription:
            raise Broken("I4", f"{subscription} got the ack id {one.ack_id}, which names {named}")
        if named.message_id != int(message.message_id):
            raise Broken("I4", f"message {message.message_id} came with an ack id of {named}")
        record = sub.deliveries.get((named.message_id, named.generation))
        if record is None or not asked_us <= record.ts_us <= now_us:
            raise Broken("I10", f"{named} came at {now_us}, asked for at {asked_us}; recorded: {record}")
        if record.deadline_us - record.ts_us < _LEASE_US_MIN:
            raise Broken("I3", f"a lease that nobody can have asked for: {record}")
        shown = sub.shown_attempts[named.message_id, named.generation]
        if one.delivery_attempt != shown:
            raise Broken("I8", f"attempt {one.delivery_attempt} of {named} was shown, and not {shown}")
        self._check_content(message, self.replayer.published[named.message_id])
        return record

    def _check_content(self, message: Any, published: Published) -> None:
        attributes = dict(message.attributes)
        if (
            message.publish_time.ToMicroseconds() != published.ts_us
            or key_hash(message.ordering_key) != published.okey
            or payload_hash(message.data, attributes) != published.payload_hash
        ):
            raise Broken("I1", f"{message} is not what was published as {published}")
        message_id = int(message.message_id)
        if message_id in self.replayer.copies:
            self._check_copy(message_id, Original(message.data, attributes, message.ordering_key))
        elif published.payload_hash not in self._publishes.originals:
            raise Broken("I1", f"nobody sent {message}")

    def _check_copy(self, message_id: int, copy: Original) -> None:
        """A dead letter is the message that failed, and says where and how often."""
        replayer = self.replayer
        _, source_id = replayer.copies[message_id]
        source = replayer.published[source_id]
        marks = marks_of_copy(replayer, message_id)
        kept = {key: text for key, text in copy.attributes.items() if key not in marks}
        original = self._publishes.originals.get(source.payload_hash)
        found = {key: text for key, text in copy.attributes.items() if key.startswith(FORWARDED_PREFIX)}
        # What was forwarded may be forwarded again; then the marks of before are not sent by anybody.
        if marks != {key: copy.attributes.get(key) for key in marks} or found.keys() != marks.keys():
            raise Broken("I8", f"dead letter {message_id} says {found}, and not {marks}")
        if original is not None and copy._replace(attributes=kept) != original:
            raise Broken("I8", f"dead letter {message_id} is {copy}, and what failed was {original}")

    def asking(self, kind: str, subscription: str, ack_ids: Sequence[str], seconds: int, now_us: int) -> None:
        """An ack or modack is about to leave."""
        for named in self._operations.asking(kind, subscription, ack_ids, seconds, now_us):
            if kind == "ack" or not seconds:
                self._windows.done_with(named)

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
        self._operations.answered(kind, subscription, ack_ids, seconds, sent_us, now_us, results)

    def configuring(self, call: str, request: Any, now_us: int) -> None:
        """A change of resources, or a seek, is about to leave."""
        self._changes.configuring(call, request, now_us)
        asked_us = self.replayer.seek_asked_us
        # One whose call was cancelled right before may still be done.
        if call == "Seek" and now_us - asked_us > SECOND_US:
            self.replayer.seek_asked_us = now_us

    def configured(self, call: str, request: Any, sent_us: int, now_us: int, ok: bool | None) -> None:
        """Its answer; None: it may or may not have happened."""
        self._changes.configured(call, request, sent_us, now_us, ok)

    # -- what becomes durable -----------------------------------------------------------------------------

    def committed(self, rows: Sequence[JournalRow], details: Mapping[int, str], now_us: int) -> None:
        self._now_us = now_us
        if not rows:
            return
        replayer = self.replayer
        self._rows += len(rows)
        replayer.feed([Row(*row) for row in rows], details)
        if replayer.problems:
            raise Broken(_invariant_of(replayer.problems[0]), "; ".join(replayer.problems))
        self._publishes.end_row()

    def _applied(self, record: Record, told: Mapping[str, Any]) -> None:
        kind = record.kind
        if kind == DELIVER:
            self._windows.delivered(record)
        elif kind in (ACK, NACK, EXTEND):
            self._operations.recorded(record)
        elif kind == PUBLISH:
            self._publishes.published(record)
        elif kind == DEADLETTER:
            self._publishes.copied(record)
        elif kind == CONFIG:
            self._changes.changed(record, told)
        elif kind == SEEK:
            subscription = self.replayer.subscriptions[record.sub_id].name
            self._changes.sought(record, subscription, told.get("snapshot", ""))
        elif kind == STREAM and record.result == 0 and not told.get("unary"):
            limits = Limits(told.get("max_outstanding_messages", 0), told.get("max_outstanding_bytes", 0))
            self._windows.opened(record.stream_id, limits)

    def _matches(self, text: str, hashed: int) -> bool:
        original = self._publishes.originals.get(hashed)
        return matches(text, original.attributes if original is not None else {})

    # -- the server ---------------------------------------------------------------------------------------

    def stepped(self, engine: Engine | None, now_us: int) -> None:
        """An instant of the simulated time is over."""
        self._now_us = now_us
        if engine is None:
            return
        self._steps += 1
        if self._steps % _STEPS_PER_CHECK == 0:
            check_broker(engine._broker)
        if self._steps % _STEPS_PER_COMPARISON == 0 and self._disk is not None and _is_quiet(engine):
            self._compare(engine._broker, self._disk, "in memory")

    def killed(self, now_us: int) -> None: ...

    def restarted(self, engine: Engine, disk: SimDisk, now_us: int) -> None:
        self.counts["restarts"] += 1
        self._now_us = now_us
        self._disk = disk
        self._named = reader(disk.secret)
        self._check_rows(disk)
        self._compare(engine._broker, disk, "restored")

    def finished(self, engine: Engine, disk: SimDisk, now_us: int) -> None:
        self._now_us = now_us
        self.check_disk(disk)
        if _is_quiet(engine):
            self._compare(engine._broker, disk, "in memory at the end")
        self.counts += self._operations.counts
        self.counts["forwarded"] = self.replayer.kinds[DEADLETTER]
        if owed := self.owed():
            raise Broken("liveness", f"still owed: {owed}")

    def check_disk(self, disk: SimDisk) -> None:
        """A server that is started over `disk` goes on where the journal ends."""
        self._check_rows(disk)
        self._compare(restored(disk), disk, "restored")

    def _check_rows(self, disk: SimDisk) -> None:
        """What was committed is there: the journal, and resources as it shows them."""
        if disk.dropped_seq > disk.sealed_seq:
            raise Broken("I10", f"{disk.sealed_seq} was sealed, {disk.dropped_seq} was deleted")
        if len(disk.rows) + disk.rows_dropped != self._rows:
            raise Broken("I10", f"{self._rows} rows were committed, {len(disk.rows)} are there")
        resources: dict[tuple[str, str], dict[str, Any]] = {}
        for _, name, deleted, data in disk.topics.values():
            if not deleted:
                resources["topic", name] = as_dict(pb.Topic.FromString(data))
        for _, _, name, _, data in disk.subscriptions.values():
            resources["subscription", name] = as_dict(pb.Subscription.FromString(data))
        for _, _, name, data, _ in disk.snapshots.values():
            resources["snapshot", name] = as_dict(pb.Snapshot.FromString(data))
        for key in {**resources, **self._changes.resources}:
            stored, told = resources.get(key), self._changes.resources.get(key)
            if stored != told:
                raise Broken("I10", f"{key}: the disk has {stored}, the journal {told}")

    def _compare(self, broker: Broker, disk: SimDisk, what: str) -> None:
        self.counts["comparisons"] += 1
        found = differences(self._messages.stored(broker, disk, self._now_us), self.replayer)
        if found:
            raise Broken("I10", f"{what}: {'; '.join(found)}")
        for name, held in self._messages.held(disk).items():
            told = self.replayer.held(self.replayer.snapshots[name])
            if held != told:
                lost, more = sorted(told - held)[:5], sorted(held - told)[:5]
                raise Broken("I10", f"{what}: snapshot {name} is without {lost}, and has {more} besides")


def _is_quiet(engine: Engine) -> bool:
    """Whether everything that was decided is durable, and nothing else is in memory."""
    if engine._stopping or not engine._in_command.is_set():  # the last commit is not `_flying`
        return False
    return engine._flying is None and not engine._broker.must_commit()
