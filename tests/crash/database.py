"""What the files of a server say, read from a copy while nobody writes them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pubsubd.broker.broker import Broker
from pubsubd.broker.effects import SubscriptionRow, TopicRow
from pubsubd.broker.entry import unpack_chunk
from pubsubd.broker.saved import Replay, Saved
from pubsubd.eod.endings import EndingRow
from pubsubd.storage.store import FILE_NAME, Store
from pubsubd.wire import pb
from tests.crash.replay import Lease, Row


@dataclass
class SubscriptionState:
    """What a subscription promises, in the journal's terms."""

    name: str
    topic_id: int
    leases: dict[int, Lease]
    waiting: dict[int, tuple[int, int]]  # message_id: (last generation, attempt of the next delivery)
    unacked: set[int]
    owed: int


class Stored(NamedTuple):
    """Everything that a copy of the files tells."""

    boot: int
    clean: bool
    topics: dict[str, int]
    subscriptions: dict[int, SubscriptionState]
    messages: dict[int, pb.PubsubMessage]
    rows: list[Row]
    details: dict[int, str]


def read_copy(directory: Path) -> Stored:
    """Copy the database of a server that is dead, open it as the server would, and tell what it holds."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in directory.glob(f"{FILE_NAME}*"):
            shutil.copy(file, scratch)
        return read(Path(scratch))


def read(directory: Path) -> Stored:
    """As `read_copy`, of files that nobody needs any more: opening them changes them."""
    return asyncio.run(_read(directory))


async def _read(directory: Path) -> Stored:
    store = await Store.open(directory, "process")
    try:
        loaded = await store.load()
        rows, details = await store.read_journal()
    finally:
        await store.close()
    saved = Saved(
        [TopicRow(topic_id, name, bool(deleted), data) for topic_id, name, deleted, data in loaded.topics],
        [SubscriptionRow(*row) for row in loaded.subscriptions],
        [EndingRow(*row) for row in loaded.endings],
        loaded.oplog,
    )
    ids_of_topic, messages = _messages(directory / FILE_NAME)
    return Stored(
        boot=store.boot - 1,
        clean=store.was_clean,
        topics={row.name: row.topic_id for row in saved.topics if not row.deleted},
        subscriptions=_states(saved, store.secret, ids_of_topic),
        messages=messages,
        rows=[Row(*row) for row in rows],
        details=details,
    )


def _messages(path: Path) -> tuple[dict[int, list[int]], dict[int, pb.PubsubMessage]]:
    ids_of_topic: dict[int, list[int]] = {}
    messages: dict[int, pb.PubsubMessage] = {}
    with closing(sqlite3.connect(path)) as connection:
        for topic_id, data in connection.execute(
            "SELECT topic_id, data FROM chunk ORDER BY topic_id, last_id"
        ):
            for entry in unpack_chunk(data):
                ids_of_topic.setdefault(topic_id, []).append(entry.message_id)
                messages[entry.message_id] = pb.PubsubMessage.FromString(entry.data)
    return ids_of_topic, messages


def _states(saved: Saved, secret: bytes, ids_of_topic: dict[int, list[int]]) -> dict[int, SubscriptionState]:
    # The broker is what the server would go on with. What waits is shown only by what it is made from.
    broker = Broker.restore(saved, secret, 1, True)
    waiting_of = {sub_id: one.waiting for sub_id, one in Replay(saved).subscriptions.items()}
    states = {}
    for subscription in broker.subscriptions():
        leases = {
            lease.message_id: Lease(lease.generation, lease.attempt, lease.deadline_us)
            for lease in subscription.leases
        }
        waiting = waiting_of[subscription.sub_id]
        ahead: set[int] = set()
        if not subscription.detached:
            ahead = {m for m in ids_of_topic.get(subscription.topic.topic_id, ()) if m > subscription.cursor}
        states[subscription.sub_id] = SubscriptionState(
            subscription.name,
            subscription.topic.topic_id,
            leases,
            waiting,
            ahead | set(leases) | set(waiting),
            subscription.owed,
        )
    return states
