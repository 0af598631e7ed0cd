"""What storage gives back: resources as rows, state as an operation log to be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pubsubd.broker import oplog
from pubsubd.broker.effects import SubscriptionRow, TopicRow
from pubsubd.eod.endings import EndingRow


class Saved(NamedTuple):
    """Everything that a broker is restored from."""

    topics: Sequence[TopicRow]
    subscriptions: Sequence[SubscriptionRow]
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
    owed: int = 0
    leased: dict[int, SavedLease] = field(default_factory=dict)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)


class Replay:
    """Applies operation records in order; each says what was true once its commit was."""

    def __init__(self, saved: Saved) -> None:
        self.counters = oplog.Counters(0, 0, 0, 0, 0, 0, 0)
        self.subscriptions = {
            row.sub_id: SavedSubscription(cursor=row.start_id) for row in saved.subscriptions
        }
        for blob in saved.blobs:
            for record in oplog.records(blob):
                self.apply(record)

    def apply(self, record: oplog.Record) -> None:
        if isinstance(record, oplog.Counters):
            self.counters = record
        elif isinstance(record, oplog.Published):
            for sub_id in record.sub_ids:
                if sub_id in self.subscriptions:
                    self.subscriptions[sub_id].owed += record.size
        elif record.sub_id in self.subscriptions:  # else it was deleted since
            _apply(self.subscriptions[record.sub_id], record)


def _apply(
    sub: SavedSubscription,
    record: oplog.Delivered
    | oplog.Extended
    | oplog.Finished
    | oplog.Returned
    | oplog.Waiting
    | oplog.Position,
) -> None:
    leased, waiting = sub.leased, sub.waiting
    match record:
        case oplog.Delivered():
            columns = zip(
                record.message_ids,
                record.generations,
                record.attempts,
                record.sizes,
                record.okeys,
                strict=True,
            )
            for message_id, generation, attempt, size, okey in columns:
                waiting.pop(message_id, None)
                leased[message_id] = SavedLease(record, generation, attempt, size, okey)
            sub.cursor = max(sub.cursor, record.cursor)
        case oplog.Extended():
            for message_id in record.message_ids:
                leased[message_id].deadline_us = record.deadline_us
        case oplog.Finished():
            for message_id in record.message_ids:
                if leased.pop(message_id, None) is None:
                    del waiting[message_id]
            sub.owed -= len(record.message_ids)
        case oplog.Returned():
            for message_id in record.message_ids:
                lease = leased.pop(message_id)
                waiting[message_id] = (lease.generation, lease.attempt + record.counts)
        case oplog.Waiting():
            standings = zip(record.generations, record.attempts, strict=True)
            waiting.update(zip(record.message_ids, standings, strict=True))
        case oplog.Position():
            leased.clear()
            waiting.clear()
            sub.cursor = record.cursor
            sub.owed = record.owed
