"""What the files of a server say, read from a copy while nobody writes them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pubsubd.broker.broker import Broker
from pubsubd.broker.effects import DocumentRow, SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Entry, unpack_chunk
from pubsubd.broker.saved import Saved
from pubsubd.broker.subscription import Subscription
from pubsubd.eod.ack_id import AckIds
from pubsubd.eod.endings import EndingRow
from pubsubd.storage.store import FILE_NAME, Store
from pubsubd.wire import pb
from tests.crash.compare import Stored, SubscriptionState
from tests.crash.filters import matches
from tests.crash.replay import Lease, Row
from tests.crash.told import Named


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
        [SnapshotRow(*row) for row in loaded.snapshots],
        [DocumentRow(*row) for row in loaded.documents],
        [EndingRow(*row) for row in loaded.endings],
        loaded.oplog,
    )
    ids_of_topic, entries = _entries(directory / FILE_NAME)
    messages = {one.message_id: pb.PubsubMessage.FromString(one.data) for one in entries.values()}
    # What the server would go on with.
    broker = Broker.restore(saved, store.secret, 1, True)
    return Stored(
        boot=store.boot - 1,
        clean=store.was_clean,
        topics={row.name: row.topic_id for row in saved.topics if not row.deleted},
        snapshots={row.name: row.topic_id for row in saved.snapshots},
        subscriptions={
            one.sub_id: subscription_state(one, ids_of_topic.get(one.topic.topic_id, []), entries, messages)
            for one in broker.subscriptions()
        },
        messages=messages,
        rows=[Row(*row) for row in rows],
        details=details,
        secret=store.secret,
        now_us=broker.newest_us,
    )


def reader(secret: bytes) -> Callable[[str], Named | None]:
    """Reads the ack ids of a server."""
    ack_ids = AckIds(secret)

    def read(ack_id: str) -> Named | None:
        token = ack_ids.read(ack_id)
        return None if token is None else Named(token.sub_id, token.message_id, token.generation)

    return read


def _entries(path: Path) -> tuple[dict[int, list[int]], dict[int, Entry]]:
    ids_of_topic: dict[int, list[int]] = {}
    entries: dict[int, Entry] = {}
    with closing(sqlite3.connect(path)) as connection:
        for topic_id, data in connection.execute(
            "SELECT topic_id, data FROM chunk ORDER BY topic_id, last_id"
        ):
            for entry in unpack_chunk(data):
                ids_of_topic.setdefault(topic_id, []).append(entry.message_id)
                entries[entry.message_id] = entry
    return ids_of_topic, entries


def subscription_state(
    subscription: Subscription,
    ids_of_topic: list[int],
    entries: dict[int, Entry],
    messages: dict[int, pb.PubsubMessage],
) -> SubscriptionState:
    backlog, resource = subscription.backlog, subscription.resource
    leases = {
        lease.message_id: Lease(lease.generation, lease.attempt, lease.deadline_us)
        for lease in subscription.leases
    }
    ahead: list[int] = []
    if not subscription.detached:
        ahead = [m for m in ids_of_topic if m > backlog.cursor and m not in backlog.carried]
        # Of messages from before a snapshot that it was set to, what the filters of that time rejected.
        for through_id, matched in backlog.past:
            ahead = [m for m in ahead if m > through_id or matched(entries[m].data)]
    # A filter is applied when a message is read.
    unread = {m for m, one in backlog.waiting.items() if one.unchecked}
    rejected = {
        m for m in (*ahead, *unread) if m in messages and not matches(resource.filter, messages[m].attributes)
    }
    waiting = {m: (one.generation, one.attempt) for m, one in backlog.waiting.items() if m not in rejected}
    parked = {message_id for message_id, _ in backlog.parked_messages()}
    return SubscriptionState(
        subscription.name,
        subscription.topic.topic_id,
        leases,
        waiting,
        {*leases, *waiting, *parked, *ahead} - rejected,
    )
