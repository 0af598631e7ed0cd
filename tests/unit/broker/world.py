"""A broker with a clock, a store and clients that remember what they got, all in one hand.

`turn` does what the engine does: time passes, what can be delivered is delivered, everything is committed,
and only then do clients hear of it. Its halves, `begin` and `end`, can be called apart, with commands between
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pubsubd.broker.broker import Broker, Caller
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, DocumentRow, Effects, SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Chunk, Entry, chunks, unpack_chunk
from pubsubd.broker.oplog import blob
from pubsubd.broker.questions import Found, Question, Read, ReadMessages, ReadRange, ReadTimes, Sift
from pubsubd.broker.saved import Saved
from pubsubd.broker.subscription import Refusal, Subscription
from pubsubd.eod.endings import EndingRow
from pubsubd.eod.lease import Lease
from pubsubd.journal.journal import Journal
from pubsubd.journal.record import Row, unpack
from pubsubd.model import limits
from pubsubd.model.errors import PubsubError
from pubsubd.model.events import Event, Kind
from pubsubd.storage.store import Commit
from pubsubd.wire import pb
from tests.unit.storage.fake_store import FakeStore

PROJECT = "projects/p"
TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/billing"
SNAPSHOT = "projects/p/snapshots/before"
START_US = 1_800_000_000_000_000
SECOND = limits.SECOND_US


class Shell:
    """What stands behind a stream or a Pull: it keeps what it was told."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self.not_delivered_count = 0
        self.errors: list[PubsubError] = []
        self.properties_changed_count = 0

    def deliver(self, delivery: Delivery) -> None:
        self.got.append(delivery)

    def not_delivered(self) -> None:
        self.not_delivered_count += 1

    def close(self, error: PubsubError) -> None:
        self.errors.append(error)

    def properties_changed(self) -> None:
        self.properties_changed_count += 1

    @property
    def leases(self) -> list[Lease]:
        return [lease for delivery in self.got for lease in delivery.leases]

    @property
    def ack_ids(self) -> list[str]:
        return [lease.ack_id for lease in self.leases]

    @property
    def message_ids(self) -> list[int]:
        return [lease.message_id for lease in self.leases]

    def messages(self) -> list[Any]:
        return [pb.PubsubMessage.FromString(data) for delivery in self.got for data in delivery.datas]


def restored(store: FakeStore, journal: bool = True) -> Broker:
    loaded = store.loaded()
    saved = Saved(
        [TopicRow(topic_id, name, bool(deleted), data) for topic_id, name, deleted, data in loaded.topics],
        [SubscriptionRow(*row) for row in loaded.subscriptions],
        [SnapshotRow(*row) for row in loaded.snapshots],
        [DocumentRow(*row) for row in loaded.documents],
        [EndingRow(*row) for row in loaded.endings],
        loaded.oplog,
    )
    return Broker.restore(saved, store.secret, store.boot, journal)


def answer_read(store: FakeStore, read: ReadRange | ReadMessages) -> list[Entry]:
    """The entries that a read asks for, found in the store as the engine finds them."""
    bytes_max = limits.READ_BYTES_MAX
    if isinstance(read, ReadRange):
        rows = store.range_rows(read.topic_id, read.after_id, read.through_id, bytes_max)
        entries = [entry for row in rows for entry in unpack_chunk(row)]
        return [entry for entry in entries if read.after_id < entry.message_id <= read.through_id]
    rows = store.message_rows(read.topic_id, read.message_ids, bytes_max)
    return [entry for row in rows for entry in unpack_chunk(row) if entry.message_id in read.message_ids]


def answered(store: FakeStore, question: Question | Sift) -> Any:
    """What the engine answers to a question."""
    if isinstance(question, Sift):
        rows = store.range_rows(question.topic_id, 0, 2**62, 2**62)
        wanted = set(question.message_ids)
        entries = [entry for row in rows for entry in unpack_chunk(row) if entry.message_id in wanted]
        return frozenset(entry.message_id for entry in entries if not question.matches(entry))
    topic_id, after_id, before_us, matches, known = question
    rows = store.range_rows(topic_id, after_id, 2**62, 2**62)
    entries = [entry for row in rows for entry in unpack_chunk(row) if entry.message_id > after_id]
    before_id = max([one.message_id for one in entries if one.publish_us < before_us], default=0)
    for entry in entries:
        if entry.publish_us >= before_us and (matches is None or matches(entry.data)):
            return Found(before_id, entry.message_id, entry.publish_us, known)
    return Found(before_id, 0, 0, known)


def owed(store: FakeStore, subscription: Subscription, effects: Iterable[Effects] = ()) -> list[int]:
    """Messages that are not finished, among those in `store` and in the `effects` that are not there yet."""
    topic_id, backlog = subscription.topic.topic_id, subscription.backlog
    rows = store.range_rows(topic_id, 0, 2**62, 2**62)
    entries = {entry.message_id: entry for row in rows for entry in unpack_chunk(row)}
    for one in effects:
        entries |= {entry.message_id: entry for entry in one.messages.get(topic_id, ())}
    fresh = [
        entry.message_id
        for entry in backlog._accepted([entries[message_id] for message_id in sorted(entries)])
        if entry.message_id > backlog.cursor and entry.message_id not in backlog.carried
    ]
    below = [*subscription.leases.by_message, *backlog.waiting, *dict(backlog.parked_messages())]
    return sorted({*fresh, *below})


class World:
    def __init__(self, journal: bool = True, trim_rows: int = 1_000_000) -> None:
        self.store = FakeStore(trim_rows)
        self.now_us = START_US
        self.commit_us = 0
        self._journal_on = journal
        self.broker = restored(self.store, journal)
        self.journal = Journal(0, (), 1 << 40)
        self.flying: Effects | None = None
        self._flying_commit: Commit | None = None
        self._flying_message_id = 0
        self.reads: list[Read] = []
        self.refused: list[Refusal] = []

    # -- what the engine does ------------------------------------------------------------------------------

    def begin(self, checkpoint: bool = False) -> Effects:
        """Time passes, deliveries are granted, and what has gathered goes on its way to the store."""
        assert self.flying is None
        self.broker.advance_to(self.now_us)
        self.broker.pump(self.now_us, self.commit_us)
        self.reads.extend(self.broker.take_reads())
        self.flying = self.broker.take_effects()
        self._flying_message_id = self.broker.message_id
        self._flying_commit = self.commit_of(self.flying, checkpoint)
        return self.flying

    def end(self) -> None:
        """The commit succeeded: what depended on it is said."""
        assert self.flying is not None and self._flying_commit is not None
        effects, self.flying = self.flying, None
        oldest_us = self.store.apply(self._flying_commit)
        self.broker.committed(self._flying_message_id)
        self.broker.trimmed(oldest_us, self.now_us)
        for delivery in effects.deliveries:
            delivery.consumer.shell.deliver(delivery)
        for consumer, error in effects.closed:
            consumer.shell.close(error)
        for consumer in effects.changed:
            consumer.shell.properties_changed()

    def fail(self, written: bool = False) -> None:
        """The commit failed; `written`: it is in the store nevertheless, and nobody knows."""
        assert self.flying is not None and self._flying_commit is not None
        effects, self.flying = self.flying, None
        if written:
            self.store.apply(self._flying_commit)
        old = self.broker
        on_top = old.take_effects()
        self._take_over()
        self.broker.adopt(old, [effects, on_top])
        for delivery in (*effects.deliveries, *on_top.deliveries):
            delivery.consumer.shell.not_delivered()

    def crash(self) -> None:
        """The process is killed and started again: streams are gone, and all that was not committed."""
        self.flying = None
        self.store = self.store.reopened()
        self._take_over()

    def _take_over(self) -> None:
        self.broker = restored(self.store, self._journal_on)
        self.reads.clear()
        self.journal = Journal(self.broker.journal_seq, self.store.loaded().journal_rows, 1 << 40)

    def turn(self, checkpoint: bool = False) -> Effects:
        effects = self.begin(checkpoint)
        self.end()
        return effects

    def settle(self) -> None:
        """Turns and reads until nothing follows by itself."""
        while True:
            effects = self.turn()
            if not (self.read() or effects.deliveries or self.broker.has_work()):
                return

    def read(self) -> int:
        """Storage answers what it was asked; how much that was."""
        reads, self.reads = self.reads, []
        for read in reads:
            if isinstance(read, ReadTimes):
                self.broker.found(read, answered(self.store, read.question), self.now_us)
            else:
                self.broker.loaded(read, answer_read(self.store, read))
        return len(reads)

    def commit_of(self, effects: Effects, checkpoint: bool) -> Commit:
        append = self.journal.append(effects.events, effects.details, self.now_us)
        counters = self.broker.counters(self.journal.last_seq, self.now_us)
        rows: list[Chunk] = []
        for topic_id, entries in effects.messages.items():
            rows.extend(chunks(topic_id, entries))
        return Commit(
            oplog=self.broker.checkpoint(self.now_us) if checkpoint else blob([*effects.records, counters]),
            oplog_is_checkpoint=checkpoint,
            chunks=rows,
            topics=[row for row in effects.topics.values() if row is not None],
            topics_gone=[topic_id for topic_id, row in effects.topics.items() if row is None],
            subscriptions=[row for row in effects.subscriptions.values() if row is not None],
            subscriptions_gone=[sub_id for sub_id, row in effects.subscriptions.items() if row is None],
            snapshots=[row for row in effects.snapshots.values() if row is not None],
            snapshots_gone=[snapshot_id for snapshot_id, row in effects.snapshots.items() if row is None],
            documents=[(*which, data) for which, data in effects.documents.items() if data is not None],
            documents_gone=[which for which, data in effects.documents.items() if data is None],
            endings=effects.endings,
            endings_kept_from_us=self.now_us - limits.ENDING_KEPT_US,
            journal=append.row if append else None,
            journal_details=append.details if append else (),
            trims=dict(effects.trims),
        )

    # -- what clients do -----------------------------------------------------------------------------------

    def advance(self, seconds: float = 0, us: int = 0) -> None:
        self.now_us += round(seconds * SECOND) + us

    def caller(self, client: str = "python") -> Caller:
        return self.broker.caller(client, self.now_us)

    def create_topic(self, name: str = TOPIC, **fields: object) -> pb.Topic:
        return self.broker.create_topic(pb.Topic(name=name, **fields), self.now_us)

    def create_subscription(
        self, name: str = SUBSCRIPTION, topic: str = TOPIC, exactly_once: bool = True, **fields: object
    ) -> Subscription:
        request = pb.Subscription(
            name=name,
            topic=topic,
            enable_exactly_once_delivery=exactly_once,
            **{"ack_deadline_seconds": 10, **fields},
        )
        self.broker.create_subscription(request, "unique", self.now_us)
        return self.subscription(name)

    def subscription(self, name: str = SUBSCRIPTION) -> Subscription:
        (found,) = [one for one in self.broker.subscriptions() if one.name == name]
        return found

    def switch(self, exactly_once: bool, name: str = SUBSCRIPTION) -> None:
        request = pb.UpdateSubscriptionRequest(
            subscription=pb.Subscription(name=name, enable_exactly_once_delivery=exactly_once),
            update_mask=pb.FieldMask(paths=["enable_exactly_once_delivery"]),
        )
        self.broker.update_subscription(request, self.now_us)

    def update(self, name: str = SUBSCRIPTION, clear: Sequence[str] = (), **fields: object) -> None:
        """Set some properties of a subscription, and give those in `clear` up."""
        request = pb.UpdateSubscriptionRequest(
            subscription=pb.Subscription(name=name, **fields),
            update_mask=pb.FieldMask(paths=[*fields, *clear]),
        )
        self.broker.update_subscription(request, self.now_us)

    def publish(
        self,
        *datas: bytes,
        topic: str = TOPIC,
        ordering_key: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> list[int]:
        """One request, whose messages share their ordering key and their attributes."""
        messages = [
            pb.PubsubMessage(data=data, ordering_key=ordering_key, attributes=attributes) for data in datas
        ]
        request = pb.PublishRequest(topic=topic, messages=messages)
        ids = self.broker.publish(request, request.ByteSize(), self.caller("publisher"), self.now_us)
        return [int(message_id) for message_id in ids]

    def open_stream(
        self, name: str = SUBSCRIPTION, seconds: int = 10, ready: bool = True, **fields: Any
    ) -> Consumer:
        """A stream; its Shell is `consumer.shell`."""
        request = pb.StreamingPullRequest(subscription=name, stream_ack_deadline_seconds=seconds, **fields)
        consumer = self.broker.open_stream(request, request.ByteSize(), "python", self.now_us, Shell())
        if ready:
            self.broker.set_ready(consumer)
        return consumer

    def open_pull(self, name: str = SUBSCRIPTION, max_messages: int = 1000) -> Consumer:
        request = pb.PullRequest(subscription=name, max_messages=max_messages)
        return self.broker.open_pull(request, self.caller(), self.now_us, Shell())

    def close_stream(self, consumer: Consumer) -> None:
        self.broker.close_stream(consumer, self.now_us)

    def pull(self, name: str = SUBSCRIPTION, max_messages: int = 1000) -> list[Lease]:
        """What a Pull gets that does not wait."""
        consumer = self.open_pull(name, max_messages)
        self.settle()
        self.broker.close_pull(consumer)
        leases: list[Lease] = consumer.shell.leases
        return leases

    def acknowledge(self, ack_ids: Iterable[str], name: str = SUBSCRIPTION) -> list[str]:
        """The ids that were refused."""
        request = pb.AcknowledgeRequest(subscription=name, ack_ids=ack_ids)
        caller = self.caller()
        _, self.refused = self.broker.acknowledge(request, request.ByteSize(), caller, self.now_us)
        return [refusal.ack_id for refusal in self.refused]

    def modify_ack_deadline(
        self, ack_ids: Iterable[str], seconds: int, name: str = SUBSCRIPTION
    ) -> list[str]:
        """The ids that were refused."""
        request = pb.ModifyAckDeadlineRequest(
            subscription=name, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        caller = self.caller()
        _, self.refused = self.broker.modify_ack_deadline(request, request.ByteSize(), caller, self.now_us)
        return [refusal.ack_id for refusal in self.refused]

    def nack(self, ack_ids: Iterable[str], name: str = SUBSCRIPTION) -> list[str]:
        return self.modify_ack_deadline(ack_ids, 0, name)

    def seek_to_time(self, time_us: int, name: str = SUBSCRIPTION) -> None:
        seconds, fraction_us = divmod(time_us, SECOND)
        self._seek(
            pb.SeekRequest(subscription=name, time=pb.Timestamp(seconds=seconds, nanos=1000 * fraction_us))
        )

    def seek_to_snapshot(self, snapshot: str = SNAPSHOT, name: str = SUBSCRIPTION) -> None:
        self._seek(pb.SeekRequest(subscription=name, snapshot=snapshot))

    def _seek(self, request: pb.SeekRequest) -> None:
        questions = self.broker.seek_questions(request, self.now_us)
        self.broker.seek(request, self.answers(questions), self.now_us)

    def create_snapshot(self, snapshot: str = SNAPSHOT, name: str = SUBSCRIPTION) -> pb.Snapshot:
        request = pb.CreateSnapshotRequest(name=snapshot, subscription=name)
        questions = self.broker.snapshot_questions(request, self.now_us)
        return self.broker.create_snapshot(request, self.answers(questions), "unique", self.now_us)

    def answers(self, questions: Iterable[Question]) -> list[Found]:
        """What storage says to what a command asks before it is given."""
        return [answered(self.store, question) for question in questions]

    # -- what became durable -------------------------------------------------------------------------------

    def owed(self, name: str = SUBSCRIPTION) -> list[int]:
        """Every message that is not finished, found in what is stored and not in any count."""
        flying = [] if self.flying is None else [self.flying]
        return owed(self.store, self.subscription(name), [*flying, self.broker.ledger.now])

    def events(self, *kinds: Kind) -> list[Event]:
        """The journal, or what it holds of some kinds."""
        found = [event for row in self.store.journal for _, event in unpack(Row(*row))]
        return [event for event in found if not kinds or event.kind in kinds]


def state_of(subscription: Subscription) -> dict[str, object]:
    """What a subscription promises, in a form that can be compared across a restart."""
    return {
        "resource": subscription.resource.SerializeToString(deterministic=True),
        "cursor": subscription.cursor,
        "waiting": {
            message_id: (one.generation, one.attempt, one.okey, one.ready_us, one.collateral, one.unchecked)
            for message_id, one in sorted(subscription.backlog.waiting.items())
        },
        "parked": sorted(subscription.backlog.parked_messages()),
        "carried": dict(sorted(subscription.backlog.carried.items())),
        "restored": dict(sorted(subscription._restored.items())),
        "epochs": (subscription._epochs, subscription.backlog.first_generation, subscription._generation_max),
        "past": subscription._past,
        "offsets": dict(sorted(subscription._offsets.items())),
        "leases": {
            lease.message_id: (
                lease.generation, lease.attempt, lease.deadline_us, lease.delivered_us, lease.ack_id,
                lease.size, lease.okey, lease.client_id, lease.boot,
            )
            for lease in sorted(subscription.leases, key=lambda lease: lease.message_id)
        },
        "endings": (dict(subscription.endings._nacked), dict(subscription.endings._finished)),
    }  # fmt: skip  # short items, many to a line


def states(broker: Broker) -> dict[str, dict[str, object]]:
    return {subscription.name: state_of(subscription) for subscription in broker.subscriptions()}


def check(broker: Broker) -> None:
    """What holds after every step, whatever the step was."""
    for subscription in broker.subscriptions():
        check_subscription(subscription)


def check_subscription(subscription: Subscription) -> None:
    subscription.check_invariants()
    leases = subscription.leases
    for consumer in subscription.consumers:
        held = [lease for lease in leases if lease.holder is consumer]
        assert consumer.outstanding_messages == len(held)
        assert consumer.outstanding_bytes == sum(lease.size for lease in held)
    assert subscription.ready.keys() <= subscription.consumers.keys()


def serve(world: World, *consumers: Consumer) -> None:
    """Deliver to streams that take whatever comes, until nothing more does."""
    before = -1
    while before < (now := sum(len(consumer.shell.leases) for consumer in consumers)):
        before = now
        for consumer in consumers:
            world.broker.set_ready(consumer)
        world.settle()


def promised(broker: Broker, store: FakeStore) -> dict[str, dict[str, object]]:
    """As `states`, without what may or may not be remembered of messages that have finished.

    What is owed stands in place of the cursor, which may or may not have passed what is not.
    """
    return {one.name: _promised(one, store) for one in broker.subscriptions()}


def _promised(subscription: Subscription, store: FakeStore) -> dict[str, object]:
    backlog = subscription.backlog
    there = backlog.waiting.keys() | subscription.leases.by_message.keys()
    return {
        **state_of(subscription),
        "cursor": None,
        "owed": owed(store, subscription),
        "carried": {one: first for one, first in backlog.carried.items() if one in there},
        "restored": {one: first for one, first in subscription._restored.items() if one in there},
    }


def survives(world: World) -> None:
    """Nothing that was promised is lost or changed when the process is killed and started again."""
    world.turn()
    before = promised(world.broker, world.store)
    assert before == promised(restored(world.store), world.store)
    world.turn(checkpoint=True)
    assert before == promised(world.broker, world.store) == promised(restored(world.store), world.store)
    world.crash()
    assert before == promised(world.broker, world.store)
    check(world.broker)


def numbered(count: int, size: int = 1) -> Sequence[bytes]:
    return [b"%d" % n + b"." * size for n in range(count)]
