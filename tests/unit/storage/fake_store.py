"""A Store in dictionaries: what tests of the engine and of the broker commit to and restore from.

It passes the contract of the real one (test_contract.py). What it has beyond it are faults on demand, and
that it can be used without a loop: `apply`, `loaded`, `range_rows`, `message_rows` and `found_chunk` are the
port without its awaits.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence

from pubsubd.storage.store import Commit, Loaded, StorageFailed

SECRET = b"a secret of thirty-two bytes ...".ljust(32)
TRIM_ROWS = 16


class FakeStore:
    def __init__(self, trim_rows: int = TRIM_ROWS) -> None:
        self.secret = SECRET
        self.boot = 1
        self.was_clean = True
        self.trim_rows = trim_rows
        self.topics: dict[int, tuple[int, str, int, bytes]] = {}
        self.subscriptions: dict[int, tuple[int, int, str, int, bytes]] = {}
        self.snapshots: dict[int, tuple[int, int, str, bytes, bytes]] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.endings: list[tuple[int, int, int, int, int]] = []
        self.oplog: list[bytes] = []
        self.chunks: dict[int, dict[int, bytes]] = {}
        self.last_us: dict[tuple[int, int], int] = {}  # of each row that there ever was
        self.journal: list[tuple[int, int, int, bytes]] = []
        self.journal_details: dict[int, str] = {}
        self.commits: list[Commit] = []
        self._clean = False
        self._trims: dict[int, tuple[int, int]] = {}
        # Faults: how many of the next commits, loads and reads fail, and whether a commit that fails is
        # stored all the same, which a writer cannot know when its disk answers nothing sensible.
        self.failing_commits = 0
        self.failing_loads = 0
        self.failing_reads = 0
        self.fails_after_writing = False
        self.commit_seconds = 0.0
        self.load_seconds = 0.0
        self.gate: asyncio.Event | None = None

    def reopened(self) -> FakeStore:
        """The store as the next process finds it, however this one ended."""
        after = FakeStore(self.trim_rows)
        after.boot = self.boot + 1
        after.was_clean = self._clean
        for name in (
            *("topics", "subscriptions", "snapshots", "documents", "endings", "oplog", "chunks"),
            *("last_us", "journal", "journal_details"),
        ):
            setattr(after, name, getattr(self, name))
        after._trims = dict.fromkeys(self.chunks.keys() - self.topics.keys(), (1 << 62, 1 << 62))
        return after

    # -- without a loop ------------------------------------------------------------------------------------

    def apply(self, commit: Commit) -> dict[int, int | None]:
        """One transaction."""
        self.commits.append(commit)
        for topic_id, last_id, last_us, data in commit.chunks:
            rows = self.chunks.setdefault(topic_id, {})
            if rows:
                newest_id = max(rows)
                assert last_id > newest_id, "rows of a topic are appended"
                assert last_us >= self.last_us[topic_id, newest_id], "and time does not go back"
            rows[last_id] = data
            self.last_us[topic_id, last_id] = last_us
        if commit.oplog_is_checkpoint:
            self.oplog = []
        self.oplog = [*self.oplog, commit.oplog]
        if commit.journal is not None:
            self.journal.append(commit.journal)
        self.journal_details.update(commit.journal_details)
        if commit.journal_drop_through:
            through = commit.journal_drop_through
            self.journal = [row for row in self.journal if row[0] > through]
            self.journal_details = {seq: text for seq, text in self.journal_details.items() if seq > through}
        if commit.endings:
            self.endings = [row for row in self.endings if row[4] >= commit.endings_kept_from_us]
            self.endings.extend(commit.endings)
        for topic in commit.topics:
            self.topics[topic[0]] = (topic[0], topic[1], int(topic[2]), topic[3])
        for gone in commit.topics_gone:
            self.topics.pop(gone, None)
        for subscription in commit.subscriptions:
            self.subscriptions[subscription[0]] = tuple(subscription)
        for gone in commit.subscriptions_gone:
            self.subscriptions.pop(gone, None)
        for snapshot in commit.snapshots:
            self.snapshots[snapshot[0]] = tuple(snapshot)
        for gone in commit.snapshots_gone:
            self.snapshots.pop(gone, None)
        self.documents.update({(kind, name): data for kind, name, data in commit.documents})
        for which in commit.documents_gone:
            self.documents.pop(which, None)
        if commit.clean:
            self._clean = True
        self._trims.update(commit.trims)
        return self._trim()

    def _trim(self) -> dict[int, int | None]:
        """A few rows of each topic; of those whose last went, when their oldest was published."""
        trimmed: dict[int, int | None] = {}
        for topic_id, (through_id, before_us) in list(self._trims.items()):
            rows = self.chunks.get(topic_id, {})
            finished = [
                last_id
                for last_id in sorted(rows)
                if last_id <= through_id and self.last_us[topic_id, last_id] < before_us
            ]
            for last_id in finished[: self.trim_rows]:
                del rows[last_id]
            if len(finished) <= self.trim_rows:
                del self._trims[topic_id]
                trimmed[topic_id] = self.last_us[topic_id, min(rows)] if rows else None
        return trimmed

    def loaded(self) -> Loaded:
        return Loaded(
            [self.topics[key] for key in sorted(self.topics)],
            [self.subscriptions[key] for key in sorted(self.subscriptions)],
            [self.snapshots[key] for key in sorted(self.snapshots)],
            [(*which, data) for which, data in sorted(self.documents.items())],
            list(self.endings),
            list(self.oplog),
            [(first_seq, n, len(data)) for first_seq, n, _, data in self.journal],
        )

    def range_rows(self, topic_id: int, after_id: int, through_id: int, bytes_max: int) -> list[bytes]:
        rows = self.chunks.get(topic_id, {})
        found: list[bytes] = []
        for last_id in sorted(rows):
            if last_id > after_id:
                found.append(rows[last_id])
                if last_id >= through_id or sum(map(len, found)) >= bytes_max:
                    break
        return found

    def message_rows(self, topic_id: int, message_ids: Sequence[int], bytes_max: int) -> list[bytes]:
        rows = self.chunks.get(topic_id, {})
        last_ids = sorted(rows)
        found: list[bytes] = []
        for at in sorted({bisect_left(last_ids, message_id) for message_id in message_ids}):
            if at < len(last_ids) and sum(map(len, found)) < bytes_max:
                found.append(rows[last_ids[at]])
        return found

    def found_chunk(self, topic_id: int, after_id: int, before_us: int) -> tuple[int, bytes | None]:
        rows = self.chunks.get(topic_id, {})
        before_id = 0
        for last_id in sorted(rows):
            if last_id > after_id:
                if self.last_us[topic_id, last_id] >= before_us:
                    return before_id, rows[last_id]
                before_id = last_id
        return before_id, None

    # -- the port ------------------------------------------------------------------------------------------

    @property
    def has_rows_to_trim(self) -> bool:
        return bool(self._trims)

    async def load(self) -> Loaded:
        await asyncio.sleep(self.load_seconds)
        if self.failing_loads:
            self.failing_loads -= 1
            raise StorageFailed("disk I/O error")
        return self.loaded()

    async def commit(self, commit: Commit) -> dict[int, int | None]:
        await asyncio.sleep(self.commit_seconds)
        if self.gate is not None:
            await self.gate.wait()
        if not self.failing_commits:
            return self.apply(commit)
        self.failing_commits -= 1
        if self.fails_after_writing:
            self.apply(commit)
        raise StorageFailed("database or disk is full")

    async def read_range(self, topic_id: int, after_id: int, through_id: int, bytes_max: int) -> list[bytes]:
        await self._read()
        return self.range_rows(topic_id, after_id, through_id, bytes_max)

    async def read_messages(self, topic_id: int, message_ids: Sequence[int], bytes_max: int) -> list[bytes]:
        await self._read()
        return self.message_rows(topic_id, message_ids, bytes_max)

    async def find_chunk(self, topic_id: int, after_id: int, before_us: int) -> tuple[int, bytes | None]:
        await self._read()
        return self.found_chunk(topic_id, after_id, before_us)

    async def read_journal(self) -> tuple[list[tuple[int, int, int, bytes]], dict[int, str]]:
        return list(self.journal), dict(self.journal_details)

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _read(self) -> None:
        await asyncio.sleep(0)
        if self.failing_reads:
            self.failing_reads -= 1
            raise StorageFailed("disk I/O error")
