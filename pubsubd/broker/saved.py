"""What storage gives back: resources as rows, state as an operation log to be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pubsubd.broker import oplog
from pubsubd.broker.effects import DocumentRow, SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.waiting import Waiting
from pubsubd.eod.endings import EndingRow
from pubsubd.model import limits


class Saved(NamedTuple):
    """Everything that a broker is restored from."""

    topics: Sequence[TopicRow]
    subscriptions: Sequence[SubscriptionRow]
    snapshots: Sequence[SnapshotRow]
    documents: Sequence[DocumentRow]
    endings: Iterable[EndingRow]
    blobs: Iterable[bytes]  # the operation log, oldest first


class SavedLease:
    __slots__ = (
        "attempt",
        "boot",
        "client_id",
        "deadline_us",
        "delivered_us",
        "generation",
        "okey",
        "size",
    )

    def __init__(self, record: oplog.Delivered, generation: int, attempt: int, size: int, okey: int) -> None:
        self.deadline_us = record.deadline_us
        self.delivered_us = record.delivered_us
        self.client_id = record.client_id
        self.boot = record.boot
        self.generation = generation
        self.attempt = attempt
        self.size = size
        self.okey = okey


@dataclass
class SavedSubscription:
    cursor: int
    leased: dict[int, SavedLease] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    parked: dict[int, int] = field(default_factory=dict)  # message_id: hash of its ordering key
    offsets: dict[int, int] = field(default_factory=dict)
    # What seeks have left behind; see Backlog and Subscription.
    carried: dict[int, int] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    restored: dict[int, int] = field(default_factory=dict)
    first_generation: int = 1
    generation_max: int = 1
    past: str = "[]"
    active_us: int = 0

    def forget_lives(self) -> None:
        """Of messages that have finished, unless the cursor has yet to pass them."""
        there = self.leased.keys() | self.waiting.keys()
        self.carried = {
            one: first for one, first in self.carried.items() if one > self.cursor or one in there
        }
        self.restored = {one: first for one, first in self.restored.items() if one in there}


class Replay:
    """Applies operation records in order; each says what was true once its commit was."""

    def __init__(self, saved: Saved) -> None:
        self.counters = oplog.Counters(0, 0, 0, 0, 0, 0, 0)
        self.topics: dict[int, int] = {}  # topic_id: its last message
        self.retained: dict[int, int] = {}  # topic_id: Topic.retained_id
        self.subscriptions = {
            row.sub_id: SavedSubscription(cursor=row.start_id) for row in saved.subscriptions
        }
        for blob in saved.blobs:
            for record in oplog.records(blob):
                self.apply(record)
        for sub in self.subscriptions.values():
            sub.forget_lives()

    def apply(self, record: oplog.Record) -> None:
        if isinstance(record, oplog.Counters):
            self.counters = record
        elif isinstance(record, oplog.Published):
            self.topics[record.topic_id] = record.last_id
        elif isinstance(record, oplog.Retained):
            self.retained[record.topic_id] = record.after_id
        elif record.sub_id in self.subscriptions:  # else it was deleted since
            _apply(self.subscriptions[record.sub_id], record)


def with_epoch(epochs: list[tuple[int, int]], floor_id: int, generation: int) -> list[tuple[int, int]]:
    """A seek moved the cursor back to `floor_id`: what it gave back is delivered from `generation` on.

    The newest of the entries whose floor is below a message is the one that counts for it.
    """
    kept = [epoch for epoch in epochs if epoch[0] < floor_id] + [(floor_id, generation)]
    return kept[-limits.EPOCHS_MAX :]


def _apply(sub: SavedSubscription, record: oplog.OfSubscription) -> None:
    leased, waiting = sub.leased, sub.waiting
    match record:
        case oplog.Delivered():
            _apply_delivered(sub, record)
        case oplog.Extended():
            for message_id in record.message_ids:
                leased[message_id].deadline_us = record.deadline_us
        case oplog.Finished():
            for message_id in record.message_ids:
                if leased.pop(message_id, None) is None:
                    waiting.pop(message_id, None)
                sub.offsets.pop(message_id, None)
        case oplog.Returned():
            for message_id in record.message_ids:
                lease = leased.pop(message_id)
                waiting[message_id] = Waiting(lease.generation, lease.attempt + record.counts, lease.okey)
        case oplog.Delayed():
            for message_id, ready_us in zip(record.message_ids, record.ready_us, strict=True):
                waiting[message_id].ready_us = ready_us
        case oplog.Reset():
            for message_id in record.message_ids:
                lease = leased.pop(message_id)
                ready_us = lease.deadline_us if record.collateral else 0
                waiting[message_id] = Waiting(
                    lease.generation, lease.attempt, lease.okey, ready_us, record.collateral
                )
        case oplog.Released():
            for message_id in record.message_ids:
                waiting[message_id].collateral, waiting[message_id].ready_us = False, 0
        case oplog.Parked():
            sub.parked.update(zip(record.message_ids, record.okeys, strict=True))
            sub.cursor = max(sub.cursor, record.cursor)
        case oplog.Skipped():
            sub.cursor = max(sub.cursor, record.cursor)
        case oplog.Dropped():
            _apply_dropped(sub, record)
        case oplog.Sought():
            _apply_sought(sub, record)
        case oplog.OldWaiting():
            for message_id, generation, attempt in zip(*record[1:], strict=True):
                waiting[message_id] = Waiting(generation, attempt)
                sub.generation_max = max(sub.generation_max, generation)
        case oplog.Waiting():
            for message_id, generation, attempt, okey, ready_us, flags in zip(*record[1:], strict=True):
                waiting[message_id] = Waiting(
                    generation, attempt, okey, ready_us, bool(flags & 1), bool(flags & 2)
                )
        case oplog.Epochs():
            sub.first_generation, sub.generation_max = record.first_generation, record.generation_max
            sub.past = record.past
            sub.epochs = list(zip(record.floors, record.generations, strict=True))
            sub.carried = dict(zip(record.carried_ids, record.carried_generations, strict=True))
            sub.restored = dict(zip(record.restored_ids, record.restored_generations, strict=True))
        case oplog.Offsets():
            sub.offsets = dict(zip(record.message_ids, record.offsets, strict=True))
        case oplog.Active():
            sub.active_us = record.at_us
        case oplog.Position():
            leased.clear()
            waiting.clear()
            sub.parked.clear()
            sub.carried.clear()
            sub.offsets.clear()
            sub.cursor = record.cursor


def _apply_delivered(sub: SavedSubscription, record: oplog.Delivered) -> None:
    leased, waiting, parked = sub.leased, sub.waiting, sub.parked
    columns = zip(
        record.message_ids, record.generations, record.attempts, record.sizes, record.okeys, strict=True
    )
    for message_id, generation, attempt, size, okey in columns:
        if waiting.pop(message_id, None) is None and parked:
            parked.pop(message_id, None)
        leased[message_id] = SavedLease(record, generation, attempt, size, okey)
    sub.cursor = max(sub.cursor, record.cursor)
    sub.generation_max = max(sub.generation_max, *record.generations)


def _apply_dropped(sub: SavedSubscription, record: oplog.Dropped) -> None:
    through_id = record.through_id
    for gone in [message_id for message_id in sub.waiting if message_id <= through_id]:
        del sub.waiting[gone]
        sub.offsets.pop(gone, None)
    for gone in [message_id for message_id in sub.parked if message_id <= through_id]:
        del sub.parked[gone]
    sub.cursor = max(sub.cursor, through_id)


def _apply_sought(sub: SavedSubscription, record: oplog.Sought) -> None:
    for message_id in record.purged_ids:
        if sub.leased.pop(message_id, None) is None and sub.waiting.pop(message_id, None) is None:
            sub.parked.pop(message_id, None)
        sub.offsets.pop(message_id, None)
    generation = record.first_generation - 1
    for waiting in sub.waiting.values():
        if not waiting.collateral:
            waiting.ready_us = 0
    for message_id, okey in zip(record.restored_ids, record.restored_okeys, strict=True):
        sub.waiting[message_id] = Waiting(generation, 1, okey, unchecked=True)
    if record.cursor < sub.cursor:
        sub.parked = {one: okey for one, okey in sub.parked.items() if one <= record.cursor}
    sub.cursor = record.cursor
    sub.carried = dict(zip(record.carried_ids, record.carried_generations, strict=True))
    sub.restored.update(dict.fromkeys(record.restored_ids, record.first_generation))
    if record.first_generation > sub.first_generation:
        sub.first_generation = sub.generation_max = record.first_generation
        sub.epochs = with_epoch(sub.epochs, record.cursor, record.first_generation)
    sub.past = record.past
