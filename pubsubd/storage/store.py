"""The database file: opened, read at start, written one commit at a time.

Theory of operation. The writer is one aiosqlite connection with its own thread; a commit is one hop to it,
and everything in it is one transaction. Reads of cold messages have a connection and a thread of their own,
which the write-ahead log lets run beside the writer. What a commit carries is decided elsewhere: here it is
rows.

Durability. `process`: synchronous=NORMAL; a committed transaction is in the operating system's hands, so it
survives the death of the process. `power`: synchronous=FULL; it is flushed to the device before `commit`
returns. In memory nothing survives.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import aiosqlite

from pubsubd.storage.faults import Fault, Faults
from pubsubd.storage.migration import DamagedChunk, migrate

APPLICATION_ID = 0x50756253  # "PubS"
SCHEMA_VERSION = 3
FILE_NAME = "pubsubd.sqlite3"

_PAGE_BYTES = 8192
_CACHE_KIB = 16 * 1024
# The write-ahead log is moved into the database by a connection of its own whenever about so much was added
# to it, beside the commits. Under constant load it never ends up empty and so grows; then the writer finishes
# the move itself, which has little left to do and stops commits for a few milliseconds.
_CHECKPOINT_BYTES = 32 * 1024**2
_WAL_BYTES_MAX = 128 * 1024**2
# Rows of old endings looked at beside each commit that adds some; twice what it adds, if that is more.
_ENDINGS_FORGOTTEN_MIN = 500
_TRIM_ROWS_MAX = 16
_BUSY_MS = 5000  # as sqlite3 has it by itself
_EVERY_MESSAGE = (2**63 - 1, 2**62)  # a bound of ids and one of time that no message reaches

Durability = Literal["process", "power"]
Result = TypeVar("Result")


class Unusable(Exception):
    """The database cannot be opened; the text is one sentence for the person who starts the server."""


class StorageFailed(Exception):
    """The database could not be read or written. Of a commit nothing may be counted on: it is not known
    whether it is in the file, and what the file holds must be loaded again."""


@dataclass
class Commit:
    """Rows of one transaction, each shaped for its table."""

    oplog: bytes
    oplog_is_checkpoint: bool = False  # it replaces all earlier rows
    chunks: Sequence[tuple[int, int, int, bytes]] = ()
    topics: Sequence[tuple[int, str, bool, bytes]] = ()
    topics_gone: Sequence[int] = ()
    subscriptions: Sequence[tuple[int, int, str, int, bytes]] = ()
    subscriptions_gone: Sequence[int] = ()
    snapshots: Sequence[tuple[int, int, str, bytes, bytes]] = ()
    snapshots_gone: Sequence[int] = ()
    documents: Sequence[tuple[str, str, bytes]] = ()
    documents_gone: Sequence[tuple[str, str]] = ()
    endings: Sequence[tuple[int, int, int, int, int]] = ()
    endings_kept_from_us: int = 0
    journal: tuple[int, int, int, bytes] | None = None
    journal_details: Sequence[tuple[int, str]] = ()
    journal_drop_through: int = 0
    # topic_id: (through_id, before_us); rows whose last message has an id up to the one and was published
    # before the other may go. 2**62 is no bound of time.
    trims: dict[int, tuple[int, int]] = field(default_factory=dict)
    clean: bool = False  # the last commit before an orderly end

    def wal_bytes(self) -> int:
        """About how much it adds to the write-ahead log: what it carries, and the pages that rows share."""
        carried = len(self.oplog) + sum(len(data) for *_, data in self.chunks)
        carried += sum(len(state) for *_, state in self.snapshots)
        carried += sum(len(data) for *_, data in self.documents)
        return carried + (len(self.journal[3]) if self.journal else 0) + 4 * _PAGE_BYTES


class Loaded(NamedTuple):
    """Everything but messages."""

    topics: list[tuple[int, str, int, bytes]]
    subscriptions: list[tuple[int, int, str, int, bytes]]
    snapshots: list[tuple[int, int, str, bytes, bytes]]
    documents: list[tuple[str, str, bytes]]
    endings: list[tuple[int, int, int, int, int]]
    oplog: list[bytes]
    journal_rows: list[tuple[int, int, int]]  # (first_seq, n, bytes)


class _Found(NamedTuple):
    """What opening the database tells."""

    secret: bytes
    boot: int
    clean: bool
    orphans: list[int]  # topics that are gone and whose messages are not


class _Connection(aiosqlite.Connection):
    """A connection whose thread runs whole functions: one hop for a transaction, not one per statement."""

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        # aiosqlite has no public name for this, and no types where it stands; without it a commit would be
        # five hops and not one.
        result: Result = await self._execute(function, self._conn, *args)  # type: ignore[no-untyped-call]  # see above
        return result

    async def end(self) -> None:
        """Close, and wait for the thread: one that is left behind speaks to a loop that is gone."""
        await self.close()
        await asyncio.to_thread(self._thread.join)


class Store:
    """One open database. Use `open` and `close`."""

    def __init__(
        self,
        path: str,
        writer: _Connection,
        reader: _Connection,
        checkpointer: _Connection | None,
        found: _Found,
    ) -> None:
        self.path = path
        self.secret = found.secret
        self.boot = found.boot
        self.was_clean = found.clean
        self.faults = Faults()
        self._writer = writer
        self._reader = reader
        self._checkpointer = checkpointer
        self._checkpoint: asyncio.Task[None] | None = None
        self._wal_bytes = 0  # since it was last begun anew, and since it was last moved; both about
        self._wal_bytes_unmoved = 0
        self._wal_bytes_refused = 0  # how long it was when it could not be begun anew
        # Messages of topics that went before all of their rows did.
        self._trims = dict.fromkeys(found.orphans, _EVERY_MESSAGE)

    @classmethod
    async def open(cls, directory: Path | None, durability: Durability) -> Store:
        """Open the database in `directory`, or one in memory.

        Raises:
            Unusable: it is not ours, is of a later version, is damaged, or cannot be read or written.
        """
        path = ":memory:" if directory is None else str(directory / FILE_NAME)
        writer = _Connection(lambda: sqlite3.connect(path, isolation_level=None), 64)
        try:
            await writer
            found = await writer.run(_prepare, durability, path)
        except BaseException as error:
            await writer.end()
            if isinstance(error, sqlite3.Error):
                raise Unusable(f"the database {path} cannot be used: {error}") from error
            raise
        if directory is None:
            return cls(path, writer, writer, None, found)
        reader, checkpointer = (
            _Connection(lambda: sqlite3.connect(path, isolation_level=None), 64) for _ in range(2)
        )
        await reader
        await reader.run(_tune)
        await checkpointer
        return cls(path, writer, reader, checkpointer, found)

    async def close(self) -> None:
        if self._checkpoint is not None:
            await self._checkpoint
        if self._checkpointer is not None:
            await self._checkpointer.end()
            await self._reader.end()
        await self._writer.end()

    async def load(self) -> Loaded:
        """What was last committed.

        Raises:
            StorageFailed: it cannot be read at present.
        """
        try:
            return await self._writer.run(_load)
        except sqlite3.Error as error:
            raise StorageFailed(str(error)) from error

    async def commit(self, commit: Commit) -> dict[int, int | None]:
        """Make `commit` durable at the configured level before returning.

        Returns, for each topic whose trimming came to its end, the `last_us` of the oldest row that is left;
        None when none is.

        Raises:
            StorageFailed: nothing was written, or it is not known whether it was.
        """
        # The bounds of this commit count on acks that happen only with it.
        trims = self._trims | commit.trims
        try:
            trimmed = await self._writer.run(_transact, commit, trims, self.faults)
        except (sqlite3.Error, OSError) as error:
            raise StorageFailed(str(error)) from error
        self._trims = {topic_id: bounds for topic_id, bounds in trims.items() if topic_id not in trimmed}
        wal_bytes = commit.wal_bytes()
        self._wal_bytes += wal_bytes
        self._wal_bytes_unmoved += wal_bytes
        if self._checkpointer is not None:
            await self._move_wal(self._checkpointer)
        return trimmed

    async def _move_wal(self, checkpointer: _Connection) -> None:
        """Keep the write-ahead log short. A failure is no harm: the log only grows."""
        if self._checkpoint is not None and not self._checkpoint.done():
            return
        if self._wal_bytes > max(_WAL_BYTES_MAX, self._wal_bytes_refused + _CHECKPOINT_BYTES):
            if await self._writer.run(_checkpoint, "RESTART"):
                self._wal_bytes = self._wal_bytes_unmoved = self._wal_bytes_refused = 0
            else:
                # Somebody reads what is in the log, as whoever seals the journal does for a second or two.
                self._wal_bytes_refused = self._wal_bytes
        elif self._wal_bytes_unmoved > _CHECKPOINT_BYTES:
            self._wal_bytes_unmoved = 0
            self._checkpoint = asyncio.create_task(self._move_wal_beside(checkpointer))

    async def _move_wal_beside(self, checkpointer: _Connection) -> None:
        await checkpointer.run(_checkpoint, "PASSIVE")

    @property
    def has_rows_to_trim(self) -> bool:
        """Whether further commits have finished messages to remove."""
        return bool(self._trims)

    async def read_range(self, topic_id: int, after_id: int, through_id: int, bytes_max: int) -> list[bytes]:
        """Chunks with messages after `after_id` up to `through_id`, in order, about `bytes_max` in sum."""
        try:
            return await self._reader.run(_read_range, topic_id, after_id, through_id, bytes_max)
        except sqlite3.Error as error:
            raise StorageFailed(str(error)) from error

    async def read_messages(self, topic_id: int, message_ids: Sequence[int], bytes_max: int) -> list[bytes]:
        """The chunks that hold the first of these messages, ids ascending; about `bytes_max` in sum."""
        try:
            return await self._reader.run(_read_messages, topic_id, message_ids, bytes_max)
        except sqlite3.Error as error:
            raise StorageFailed(str(error)) from error

    async def find_chunk(self, topic_id: int, after_id: int, before_us: int) -> tuple[int, bytes | None]:
        """Where a point in time lies among the chunks that end after `after_id`.

        Returns the `last_id` of the last of them whose `last_us` is less than `before_us`, 0 without one, and
        the data of the one that follows, None without one. Some forty probes of the index, however many rows
        there are.
        """
        try:
            return await self._reader.run(_find_chunk, topic_id, after_id, before_us)
        except sqlite3.Error as error:
            raise StorageFailed(str(error)) from error

    async def read_journal(self) -> tuple[list[tuple[int, int, int, bytes]], dict[int, str]]:
        """The tail of the journal: its rows and its details."""
        return await self._reader.run(_read_journal)


# Everything below runs in a connection's thread.


def _checkpoint(connection: sqlite3.Connection, mode: str) -> bool:
    """Move the write-ahead log into the database as far as `mode` can; whether it came to an end.

    It waits for no reader: commits would wait with it.
    """
    try:
        connection.execute("PRAGMA busy_timeout = 0")
        busy, _, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    except sqlite3.Error:
        return False
    finally:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return not busy


def _tune(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute("PRAGMA temp_store = MEMORY")


def _prepare(connection: sqlite3.Connection, durability: Durability, path: str) -> _Found:
    _check_ours(connection, path)
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'power' else 'NORMAL'}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    _tune(connection)
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not version:
        _create(connection)
    elif version < SCHEMA_VERSION:
        _migrate(connection, version, path)
    identity = connection.execute("SELECT secret, boot, clean FROM server").fetchone()
    if identity is None:
        raise Unusable(f"the database {path} is damaged: it does not say which server it belongs to")
    secret, boot, clean = identity
    connection.execute("UPDATE server SET boot = boot + 1, clean = 0")
    connection.execute("COMMIT")
    if 0 < version < SCHEMA_VERSION:
        # All messages are in the log now. Later moves of it would not count them.
        _checkpoint(connection, "TRUNCATE")
    return _Found(secret, boot + 1, bool(clean), _orphans(connection))


def _orphans(connection: sqlite3.Connection) -> list[int]:
    """Topics that have messages and do not exist; one probe of the index for each that has messages."""
    found: list[int] = []
    topic_id = 0
    while True:
        (topic_id,) = connection.execute(
            "SELECT min(topic_id) FROM chunk WHERE topic_id > ?", (topic_id,)
        ).fetchone()
        if topic_id is None:
            return found
        if connection.execute("SELECT 1 FROM topic WHERE topic_id = ?", (topic_id,)).fetchone() is None:
            found.append(topic_id)


def _check_ours(connection: sqlite3.Connection, path: str) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application_id != APPLICATION_ID and not (empty and application_id == 0 and version == 0):
        raise Unusable(f"{path} is the database of another program, and pubsubd does not touch it")
    if version > SCHEMA_VERSION:
        raise Unusable(
            f"{path} was written by a newer pubsubd (layout {version}, this one knows {SCHEMA_VERSION}); "
            "use that version, or another data directory"
        )


def _create(connection: sqlite3.Connection) -> None:
    script = resources.files("pubsubd.storage").joinpath("schema.sql").read_text()
    without_comments = "\n".join(line.partition("--")[0] for line in script.splitlines())
    for statement in without_comments.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT INTO server VALUES (?, 0, 1)", (secrets.token_bytes(32),))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _migrate(connection: sqlite3.Connection, version: int, path: str) -> None:
    """Bring an older layout to the present one, in the transaction that is open."""
    try:
        migrate(connection, version)
    except DamagedChunk as error:
        raise Unusable(f"the database {path} is damaged: {error}") from error
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _load(connection: sqlite3.Connection) -> Loaded:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    try:
        return Loaded(
            connection.execute("SELECT topic_id, name, deleted, resource FROM topic ORDER BY 1").fetchall(),
            connection.execute(
                "SELECT sub_id, topic_id, name, start_id, resource FROM subscription ORDER BY 1"
            ).fetchall(),
            connection.execute(
                "SELECT snapshot_id, topic_id, name, resource, state FROM snapshot ORDER BY 1"
            ).fetchall(),
            connection.execute("SELECT kind, name, data FROM document ORDER BY 1, 2").fetchall(),
            connection.execute(
                "SELECT sub_id, message_id, generation, ending, at_us FROM ending ORDER BY ending_id"
            ).fetchall(),
            [data for (data,) in connection.execute("SELECT data FROM oplog ORDER BY commit_id")],
            connection.execute(
                "SELECT first_seq, n, length(data) + (SELECT coalesce(sum(length(detail)), 0)"
                " FROM journal_detail WHERE seq BETWEEN first_seq AND first_seq + n - 1)"
                " FROM journal_tail ORDER BY first_seq"
            ).fetchall(),
        )
    finally:
        connection.execute("ROLLBACK")


def _transact(
    connection: sqlite3.Connection, commit: Commit, trims: dict[int, tuple[int, int]], faults: Faults
) -> dict[int, int | None]:
    """Returns the topics of `trims` that have no more rows to remove, each with the time of its oldest."""
    fault = faults.begin()
    connection.execute("BEGIN IMMEDIATE")
    try:
        _write(connection, commit)
        trimmed: dict[int, int | None] = {}
        for topic_id, (through_id, before_us) in trims.items():
            ended, oldest_us = _trim(connection, topic_id, through_id, before_us)
            if ended:
                trimmed[topic_id] = oldest_us
        faults.kill_if(fault is Fault.KILL_BEFORE_COMMIT)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    faults.kill_if(fault is Fault.KILL_AFTER_COMMIT)
    return trimmed


def _write(connection: sqlite3.Connection, commit: Commit) -> None:
    execute, executemany = connection.execute, connection.executemany
    if commit.chunks:
        executemany("INSERT INTO chunk VALUES (?, ?, ?, ?)", commit.chunks)
    if commit.oplog_is_checkpoint:
        execute("DELETE FROM oplog")
    execute("INSERT INTO oplog (data) VALUES (?)", (commit.oplog,))
    if commit.journal is not None:
        execute("INSERT INTO journal_tail VALUES (?, ?, ?, ?)", commit.journal)
    if commit.journal_details:
        executemany("INSERT INTO journal_detail VALUES (?, ?)", commit.journal_details)
    if commit.journal_drop_through:
        through = (commit.journal_drop_through,)
        execute("DELETE FROM journal_tail WHERE first_seq <= ?", through)
        execute("DELETE FROM journal_detail WHERE seq <= ?", through)
    if commit.endings:
        executemany(
            "INSERT INTO ending (sub_id, message_id, generation, ending, at_us) VALUES (?, ?, ?, ?, ?)",
            commit.endings,
        )
        execute(
            "DELETE FROM ending WHERE ending_id IN (SELECT ending_id FROM ending ORDER BY ending_id LIMIT ?)"
            " AND at_us < ?",
            (max(_ENDINGS_FORGOTTEN_MIN, 2 * len(commit.endings)), commit.endings_kept_from_us),
        )
    if commit.topics:
        executemany("INSERT OR REPLACE INTO topic VALUES (?, ?, ?, ?)", commit.topics)
    if commit.topics_gone:
        executemany("DELETE FROM topic WHERE topic_id = ?", [(gone,) for gone in commit.topics_gone])
    if commit.subscriptions:
        executemany("INSERT OR REPLACE INTO subscription VALUES (?, ?, ?, ?, ?)", commit.subscriptions)
    if commit.subscriptions_gone:
        executemany(
            "DELETE FROM subscription WHERE sub_id = ?", [(gone,) for gone in commit.subscriptions_gone]
        )
    if commit.snapshots:
        executemany("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?)", commit.snapshots)
    if commit.snapshots_gone:
        executemany("DELETE FROM snapshot WHERE snapshot_id = ?", [(gone,) for gone in commit.snapshots_gone])
    if commit.documents:
        executemany("INSERT OR REPLACE INTO document VALUES (?, ?, ?)", commit.documents)
    if commit.documents_gone:
        executemany("DELETE FROM document WHERE kind = ? AND name = ?", commit.documents_gone)
    if commit.clean:
        execute("UPDATE server SET clean = 1")


def _trim(
    connection: sqlite3.Connection, topic_id: int, through_id: int, before_us: int
) -> tuple[bool, int | None]:
    """Remove a few rows of finished messages; whether none are left, and the time of the oldest row that is.

    Rows are in the order of both bounds, so those to remove are the first ones.
    """
    # One row more than are removed: it says whether they were the last.
    rows = connection.execute(
        "SELECT last_id, last_us FROM chunk WHERE topic_id = ? ORDER BY last_id LIMIT ?",
        (topic_id, _TRIM_ROWS_MAX + 1),
    ).fetchall()
    finished = [last_id for last_id, last_us in rows if last_id <= through_id and last_us < before_us]
    removed = finished[:_TRIM_ROWS_MAX]
    if removed:
        connection.execute("DELETE FROM chunk WHERE topic_id = ? AND last_id <= ?", (topic_id, removed[-1]))
    oldest_us = rows[len(removed)][1] if len(removed) < len(rows) else None
    return removed == finished, oldest_us


def _read_range(
    connection: sqlite3.Connection, topic_id: int, after_id: int, through_id: int, bytes_max: int
) -> list[bytes]:
    found: list[bytes] = []
    size = 0
    # A chunk that ends after `through_id` may begin before it, so the first of those belongs to the answer.
    rows: Iterable[tuple[int, bytes]] = connection.execute(
        "SELECT last_id, data FROM chunk WHERE topic_id = ? AND last_id > ? ORDER BY last_id",
        (topic_id, after_id),
    )
    for last_id, data in rows:
        found.append(data)
        size += len(data)
        if size >= bytes_max or last_id >= through_id:
            break
    return found


def _read_messages(
    connection: sqlite3.Connection, topic_id: int, message_ids: Sequence[int], bytes_max: int
) -> list[bytes]:
    found: list[bytes] = []
    last_found = size = 0
    for message_id in message_ids:
        if message_id <= last_found:
            continue
        row = connection.execute(
            "SELECT last_id, data FROM chunk WHERE topic_id = ? AND last_id >= ? ORDER BY last_id LIMIT 1",
            (topic_id, message_id),
        ).fetchone()
        if row is not None:
            last_found, data = row
            found.append(data)
            size += len(data)
            if size >= bytes_max:
                break
    return found


def _find_chunk(
    connection: sqlite3.Connection, topic_id: int, after_id: int, before_us: int
) -> tuple[int, bytes | None]:
    # One view of the rows for all probes, whatever is trimmed or added beside them.
    connection.execute("BEGIN")
    try:
        before_id, next_id = _bisect(connection, topic_id, after_id, before_us)
        if not next_id:
            return before_id, None
        (data,) = connection.execute(
            "SELECT data FROM chunk WHERE topic_id = ? AND last_id = ?", (topic_id, next_id)
        ).fetchone()
        return before_id, data
    finally:
        connection.execute("ROLLBACK")


def _bisect(connection: sqlite3.Connection, topic_id: int, after_id: int, before_us: int) -> tuple[int, int]:
    """The last row before a point in time and the one that follows, by `last_id`; 0: there is none.

    Ids are halved and not counts of rows, which the index does not know.
    """
    newest = connection.execute(
        "SELECT last_id, last_us FROM chunk WHERE topic_id = ? ORDER BY last_id DESC LIMIT 1", (topic_id,)
    ).fetchone()
    if newest is None or newest[0] <= after_id:
        return 0, 0
    newest_id, newest_us = newest
    if newest_us < before_us:
        return newest_id, 0
    # Rows up to `low` are before. The first that is not has an id in (low, high], or else it is `next_id`.
    before_id, next_id = 0, newest_id
    low, high = after_id, newest_id - 1
    while low < high:
        middle = (low + high) // 2
        last_id, last_us = connection.execute(
            "SELECT last_id, last_us FROM chunk WHERE topic_id = ? AND last_id > ? ORDER BY last_id LIMIT 1",
            (topic_id, middle),
        ).fetchone()
        if last_us < before_us:
            before_id = low = last_id
        else:
            next_id, high = last_id, middle
    return before_id, next_id


def _read_journal(
    connection: sqlite3.Connection,
) -> tuple[list[tuple[int, int, int, bytes]], dict[int, str]]:
    rows = connection.execute("SELECT first_seq, n, version, data FROM journal_tail ORDER BY 1").fetchall()
    return rows, dict(connection.execute("SELECT seq, detail FROM journal_detail").fetchall())
