"""The disk: what is durable (`SimDisk`), and how one boot of a server sees it (`SimStore`).

`SimStore` keeps the contract of `pubsubd.storage.store.Store`, and passes its tests. A commit is one step:
all of it is durable or nothing. Before and after that step time passes, and things go wrong, as `Trouble`
says. A caller whose commit fails cannot know whether it was written, which is what the contract allows.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from pubsubd.storage.store import Commit, Loaded, StorageFailed

TRIM_ROWS = 16
_EVERY_MESSAGE = (2**63 - 1, 2**62)
_ENDINGS_FORGOTTEN_MIN = 500

JournalRow = tuple[int, int, int, bytes]


class Fate(Enum):
    """What becomes of one commit."""

    FINE = "fine"
    FAILS = "commit fails, nothing is written"
    FAILS_WRITTEN = "commit fails, and is written"
    KILLS_BEFORE = "killed before a commit is durable"
    KILLS_AFTER = "killed after a commit, before its replies"


@dataclass
class Trouble:
    """What the disk does at present; the world changes it as time goes on."""

    commit_us: tuple[int, int] = (0, 0)  # how long a commit takes
    read_us: tuple[int, int] = (0, 0)
    full: bool = False  # nothing can be written
    unmet: str = ""  # what is told as a fault as soon as something meets it
    failing_commits: float = 0.0  # chances
    failing_written: float = 0.0
    failing_reads: float = 0.0
    failing_loads: float = 0.0
    stalled_until_us: int = 0  # nothing ends before
    next_fate: Fate | None = None  # of the next commit
    skip: int = 0  # after so many others


class SimDisk:
    """Everything that survives a process."""

    def __init__(self, secret: bytes, trim_rows: int = TRIM_ROWS) -> None:
        self.secret = secret
        self.boot = 0
        self.clean = True
        self.trim_rows = trim_rows
        self.commits = 0
        self.topics: dict[int, tuple[int, str, int, bytes]] = {}
        self.subscriptions: dict[int, tuple[int, int, str, int, bytes]] = {}
        self.snapshots: dict[int, tuple[int, int, str, bytes, bytes]] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.endings: list[tuple[int, int, int, int, int]] = []
        self.oplog: list[bytes] = []
        # topic_id: last_id: (last_us, data); rows of a topic are appended, so they are in order.
        self.chunks: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.rows: list[JournalRow] = []
        self.details: dict[int, str] = {}
        self.sealed_seq = 0  # the journal up to here is in segments
        self.dropped_seq = 0  # it has left the tail up to here
        self.rows_dropped = 0

    def open(self) -> tuple[int, bool, list[int]]:
        """A process opens it: its number, whether the one before ended in order, and topics left behind."""
        self.boot += 1
        was_clean, self.clean = self.clean, False
        return self.boot, was_clean, sorted(self.chunks.keys() - self.topics.keys())

    def write(self, commit: Commit, trims: dict[int, tuple[int, int]]) -> dict[int, int | None]:
        """One transaction; returns the topics of `trims` that have no more rows to remove."""
        self.commits += 1
        for topic_id, last_id, last_us, data in commit.chunks:
            rows = self.chunks.setdefault(topic_id, {})
            if rows:
                newest_id = next(reversed(rows))
                assert last_id > newest_id, "rows of a topic are appended"
                assert last_us >= rows[newest_id][0], "and time does not go back"
            rows[last_id] = (last_us, data)
        if commit.oplog_is_checkpoint:
            self.oplog = []
        self.oplog.append(commit.oplog)
        self._write_journal(commit)
        if commit.endings:
            self.endings.extend(commit.endings)
            looked_at = max(_ENDINGS_FORGOTTEN_MIN, 2 * len(commit.endings))
            kept = [row for row in self.endings[:looked_at] if row[4] >= commit.endings_kept_from_us]
            self.endings = kept + self.endings[looked_at:]
        for topic_id, name, deleted, resource in commit.topics:
            self.topics[topic_id] = (topic_id, name, int(deleted), resource)
        for gone in commit.topics_gone:
            self.topics.pop(gone, None)
        for subscription in commit.subscriptions:
            self.subscriptions[subscription[0]] = subscription
        for gone in commit.subscriptions_gone:
            self.subscriptions.pop(gone, None)
        for snapshot in commit.snapshots:
            self.snapshots[snapshot[0]] = snapshot
        for gone in commit.snapshots_gone:
            self.snapshots.pop(gone, None)
        self.documents.update({(kind, name): data for kind, name, data in commit.documents})
        for which in commit.documents_gone:
            self.documents.pop(which, None)
        if commit.clean:
            self.clean = True
        return self._trim(trims)

    def _write_journal(self, commit: Commit) -> None:
        if commit.journal is not None:
            self.rows.append(commit.journal)
        self.details.update(commit.journal_details)
        if through := commit.journal_drop_through:
            self.dropped_seq = max(self.dropped_seq, through)
            rows = [row for row in self.rows if row[0] > through]
            self.rows_dropped += len(self.rows) - len(rows)
            self.rows = rows
            self.details = {seq: text for seq, text in self.details.items() if seq > through}

    def seal(self, chance: Random) -> int:
        """What a roller does, as far as it comes: it can end within a row. Returns what it would say."""
        if self.rows:
            first_seq, n, _, _ = self.rows[-1]
            self.sealed_seq = chance.randint(self.sealed_seq, max(self.sealed_seq, first_seq + n - 1))
        return self.sealed_seq

    def _trim(self, trims: dict[int, tuple[int, int]]) -> dict[int, int | None]:
        trimmed: dict[int, int | None] = {}
        for topic_id, (through_id, before_us) in trims.items():
            rows = self.chunks.get(topic_id, {})
            finished: list[int] = []
            for last_id, (last_us, _) in rows.items():
                if last_id > through_id or last_us >= before_us or len(finished) > self.trim_rows:
                    break
                finished.append(last_id)
            for last_id in finished[: self.trim_rows]:
                del rows[last_id]
            if len(finished) <= self.trim_rows:
                trimmed[topic_id] = next(iter(rows.values()))[0] if rows else None
            if not rows:
                self.chunks.pop(topic_id, None)
        return trimmed

    def loaded(self) -> Loaded:
        return Loaded(
            [self.topics[key] for key in sorted(self.topics)],
            [self.subscriptions[key] for key in sorted(self.subscriptions)],
            [self.snapshots[key] for key in sorted(self.snapshots)],
            [(*which, data) for which, data in sorted(self.documents.items())],
            list(self.endings),
            list(self.oplog),
            [
                (
                    first_seq,
                    n,
                    len(data)
                    + sum(len(self.details.get(seq, "")) for seq in range(first_seq, first_seq + n)),
                )
                for first_seq, n, _, data in self.rows
            ],
        )


class SimStore:
    """One boot's view of the disk; use `open`.

    `wrote` is called when a commit has become durable, `kill` when the process is to end on the spot.
    """

    def __init__(
        self,
        disk: SimDisk,
        trouble: Trouble,
        chance: Random,
        wrote: Callable[[Commit], None] = lambda _: None,
        kill: Callable[[Fate], None] = lambda _: None,
        fault: Callable[[str], None] = lambda _: None,
        now_us: Callable[[], int] = lambda: 0,
    ) -> None:
        self.disk = disk
        self._trouble = trouble
        self._chance = chance
        self._wrote = wrote
        self._kill = kill
        self._fault = fault
        self._now_us = now_us
        self.path = "the simulated disk"
        self.secret = disk.secret
        self.boot, self.was_clean, orphans = disk.open()
        self._trims = dict.fromkeys(orphans, _EVERY_MESSAGE)

    # -- the port -------------------------------------------------------------------------------------------

    @property
    def has_rows_to_trim(self) -> bool:
        return bool(self._trims)

    async def load(self) -> Loaded:
        await self._pass(self._trouble.read_us)
        if self._strikes(self._trouble.failing_loads):
            self._fault("load fails")
            raise StorageFailed("disk I/O error")
        return self.disk.loaded()

    async def commit(self, commit: Commit) -> dict[int, int | None]:
        trouble = self._trouble
        fate = self._fate(trouble)
        # Whatever is decided now, time passes before it is written and before it is known.
        whole_us = self._draw_us(trouble.commit_us)
        self._meet()
        before_us = self._chance.randrange(whole_us + 1) if whole_us else 0
        await self._sleep_us(before_us)
        await self._until_not_stalled()
        if trouble.full and fate is Fate.FINE:
            self._fault("disk full")
            raise StorageFailed("database or disk is full")
        if fate is Fate.FAILS:
            self._fault(fate.value)
            await self._sleep_us(whole_us - before_us)
            raise StorageFailed("disk I/O error")
        if fate is Fate.KILLS_BEFORE:
            await self._die(fate)
        trims = self._trims | commit.trims
        trimmed = self.disk.write(commit, trims)
        self._wrote(commit)
        if fate is Fate.KILLS_AFTER:
            await self._die(fate)
        await self._sleep_us(whole_us - before_us)
        await self._until_not_stalled()
        if fate is Fate.FAILS_WRITTEN:
            self._fault(fate.value)
            raise StorageFailed("disk I/O error")
        self._trims = {topic_id: bounds for topic_id, bounds in trims.items() if topic_id not in trimmed}
        return trimmed

    async def read_range(self, topic_id: int, after_id: int, through_id: int, bytes_max: int) -> list[bytes]:
        await self._read()
        found: list[bytes] = []
        size = 0
        for last_id, (_, data) in self.disk.chunks.get(topic_id, {}).items():
            if last_id > after_id:
                found.append(data)
                size += len(data)
                if last_id >= through_id or size >= bytes_max:
                    break
        return found

    async def read_messages(self, topic_id: int, message_ids: Sequence[int], bytes_max: int) -> list[bytes]:
        await self._read()
        rows = self.disk.chunks.get(topic_id, {})
        last_ids = list(rows)
        found: list[bytes] = []
        size = 0
        for at in sorted({bisect_left(last_ids, message_id) for message_id in message_ids}):
            if at < len(last_ids) and size < bytes_max:
                data = rows[last_ids[at]][1]
                found.append(data)
                size += len(data)
        return found

    async def find_chunk(self, topic_id: int, after_id: int, before_us: int) -> tuple[int, bytes | None]:
        await self._read()
        before_id = 0
        for last_id, (last_us, data) in self.disk.chunks.get(topic_id, {}).items():
            if last_id > after_id:
                if last_us >= before_us:
                    return before_id, data
                before_id = last_id
        return before_id, None

    async def read_journal(self) -> tuple[list[JournalRow], dict[int, str]]:
        return list(self.disk.rows), dict(self.disk.details)

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- trouble --------------------------------------------------------------------------------------------

    def _fate(self, trouble: Trouble) -> Fate:
        if trouble.next_fate is not None:
            if trouble.skip == 0:
                fate, trouble.next_fate = trouble.next_fate, None
                return fate
            trouble.skip -= 1
        if trouble.failing_commits and self._strikes(trouble.failing_commits):
            written = self._strikes(trouble.failing_written)
            return Fate.FAILS_WRITTEN if written else Fate.FAILS
        return Fate.FINE

    def _strikes(self, probability: float) -> bool:
        return bool(probability) and self._chance.random() < probability

    def _draw_us(self, bounds: tuple[int, int]) -> int:
        return self._chance.randint(*bounds) if bounds[1] else 0

    async def _die(self, fate: Fate) -> None:
        self._kill(fate)
        await asyncio.Future()

    async def _read(self) -> None:
        self._meet(reading=True)
        await self._pass(self._trouble.read_us)
        if self._strikes(self._trouble.failing_reads):
            self._fault("read fails")
            raise StorageFailed("disk I/O error")

    def _meet(self, reading: bool = False) -> None:
        """The trouble there is may be one that only those meet who read."""
        unmet = self._trouble.unmet
        if unmet and (reading or not unmet.startswith("reads")):
            self._trouble.unmet = ""
            self._fault(unmet)

    async def _pass(self, bounds: tuple[int, int]) -> None:
        await self._sleep_us(self._draw_us(bounds))
        await self._until_not_stalled()

    async def _until_not_stalled(self) -> None:
        while (left_us := self._trouble.stalled_until_us - self._now_us()) > 0:
            await asyncio.sleep(left_us / 1e6)

    @staticmethod
    async def _sleep_us(us: int) -> Any:
        if us:
            await asyncio.sleep(us / 1e6)
