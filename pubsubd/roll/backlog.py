"""What is open: every message that some subscription still owes its clients, as of one commit.

The broker keeps what was delivered at least once, and a cursor for the rest. What is above the cursor is
read from storage, a row at a time, since it may be millions of messages; each row is read once for all
subscriptions of its topic. Only a filter needs more of a message than its number.

A message that is past its retention is open until the server has dropped it, which is an event of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pubsubd.broker import Broker, Subscription
from pubsubd.broker.entry import Entry, unpack_chunk
from pubsubd.roll.database import Database

_COUNT = struct.Struct("<I")

Ids: TypeAlias = npt.NDArray[np.int64]


def open_messages(database: Database, broker: Broker) -> Iterator[tuple[int, Ids]]:
    """(sub_id, message ids); a subscription comes several times, each of its messages once."""
    following: dict[int, list[Subscription]] = {}
    for subscription in broker.subscriptions():
        if not subscription.detached:
            following.setdefault(subscription.topic.topic_id, []).append(subscription)
            yield subscription.sub_id, _known(database, subscription)
    for topic_id, subscriptions in following.items():
        yield from _ahead(database, topic_id, subscriptions)


def _known(database: Database, subscription: Subscription) -> Ids:
    """What the broker holds one by one: leased, waiting, or parked behind another of its ordering key."""
    backlog = subscription.backlog
    known = {lease.message_id for lease in subscription.leases}
    known.update(backlog.waiting)
    known.update([message_id for message_id, _ in backlog.parked_messages()])
    # From a snapshot; whether these match is found out when they are read.
    unchecked = sorted([message_id for message_id, one in backlog.waiting.items() if one.unchecked])
    for entry in database.messages(subscription.topic.topic_id, unchecked):
        if not _matches(subscription, entry):
            known.discard(entry.message_id)
    return np.array(sorted(known), np.int64)


def _ahead(database: Database, topic_id: int, subscriptions: list[Subscription]) -> Iterator[tuple[int, Ids]]:
    """What no one was given yet. What is carried, a seek has left above the cursor: it is leased, waits or is
    finished."""
    carried = {
        one.sub_id: np.array(sorted(one.backlog.carried), np.int64)
        for one in subscriptions
        if one.backlog.carried
    }
    after_id = min(one.backlog.cursor for one in subscriptions)
    for data in database.chunks(topic_id, after_id):
        (count,) = _COUNT.unpack_from(data)
        message_ids = np.frombuffer(data, "<i8", count, _COUNT.size)
        entries: list[Entry] = []
        for one in subscriptions:
            backlog = one.backlog
            begin = np.searchsorted(message_ids, backlog.cursor, "right")
            if begin == count:
                continue
            ahead = message_ids[begin:]
            if one.sub_id in carried:
                ahead = ahead[~np.isin(ahead, carried[one.sub_id], assume_unique=True)]
            if backlog.matches is not None or backlog.past:
                entries = entries or unpack_chunk(data)
                owed = {entry.message_id for entry in entries[begin:] if _matches(one, entry)}
                ahead = ahead[np.isin(ahead, np.array(sorted(owed), np.int64), assume_unique=True)]
            yield one.sub_id, ahead


def _matches(subscription: Subscription, entry: Entry) -> bool:
    """Whether a message passes the filter, and those that held when a snapshot was taken."""
    backlog = subscription.backlog
    if backlog.matches is not None and not backlog.matches(entry.data):
        return False
    return all(entry.message_id > through_id or matches(entry.data) for through_id, matches in backlog.past)
