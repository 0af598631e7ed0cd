"""The state that a server goes on with, in the terms of the journal; and what always holds in the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pubsubd.broker.broker import Broker
from pubsubd.broker.effects import DocumentRow, SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Entry, unpack_chunk
from pubsubd.broker.saved import Saved
from pubsubd.broker.snapshot import Snapshot
from pubsubd.eod.endings import EndingRow
from pubsubd.wire import pb
from tests.crash.compare import Stored
from tests.crash.database import subscription_state
from tests.crash.filters import matches
from tests.sim.broken import Broken

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk


def restored(disk: SimDisk) -> Broker:
    """What a server would go on with that is started over `disk`."""
    loaded = disk.loaded()
    saved = Saved(
        [TopicRow(topic_id, name, bool(deleted), data) for topic_id, name, deleted, data in loaded.topics],
        [SubscriptionRow(*row) for row in loaded.subscriptions],
        [SnapshotRow(*row) for row in loaded.snapshots],
        [DocumentRow(*row) for row in loaded.documents],
        [EndingRow(*row) for row in loaded.endings],
        loaded.oplog,
    )
    return Broker.restore(saved, disk.secret, disk.boot, True)


class Messages:
    """What is stored, each row read once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], list[tuple[Entry, Any]]] = {}

    def stored(self, broker: Broker, disk: SimDisk, now_us: int) -> Stored:
        """`broker`: what the server has in memory, or would have."""
        ids_of_topic: dict[int, list[int]] = {}
        entries: dict[int, Entry] = {}
        messages: dict[int, Any] = {}
        for topic_id, rows in disk.chunks.items():
            ids = ids_of_topic.setdefault(topic_id, [])
            for last_id, (_, data) in rows.items():
                for entry, message in self._read(topic_id, last_id, data):
                    ids.append(entry.message_id)
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
            now_us=now_us,
        )

    def held(self, disk: SimDisk) -> dict[str, set[int]]:
        """What each snapshot would bring back."""
        found: dict[str, set[int]] = {}
        for row in disk.snapshots.values():
            snapshot = Snapshot.of_row(SnapshotRow(*row), None)
            stored = {
                entry.message_id: message
                for last_id, (_, data) in disk.chunks.get(row[1], {}).items()
                for entry, message in self._read(row[1], last_id, data)
            }
            later = [one for one in stored if one > snapshot.cursor and one not in snapshot.finished]
            found[row[2]] = {
                message_id
                for message_id in (*snapshot.owed, *later)
                if message_id not in stored  # which is found elsewhere
                or all(
                    message_id > through_id or matches(text, stored[message_id].attributes)
                    for through_id, text in snapshot.filters
                )
            }
        return found

    def _read(self, topic_id: int, last_id: int, data: bytes) -> list[tuple[Entry, Any]]:
        found = self._rows.get((topic_id, last_id))
        if found is None:
            found = [(entry, pb.PubsubMessage.FromString(entry.data)) for entry in unpack_chunk(data)]
            self._rows[topic_id, last_id] = found
        return found


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
                text = f"{len(sizes)} of {consumer.max_messages} messages"
                raise Broken("I7", f"stream {consumer.stream_id} has {text}")
