"""The server's database, read beside the server and never written: one view of it for everything.

Theory of operation. One read transaction is open from the first question to the last, so the tail, the state
and the messages are of one commit, however many follow meanwhile. The write-ahead log keeps that view for us,
and neither commits nor the moving of the log wait for it.

Before anything is sealed the log is flushed. Without that a loss of power could take commits from the
database whose events are in a segment already, and the server would give their numbers to other events.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pubsubd.broker import Broker, oplog
from pubsubd.broker.effects import SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Entry, unpack_chunk
from pubsubd.broker.saved import Saved
from pubsubd.eod.endings import EndingRow
from pubsubd.journal.record import RECORD, VERSION
from pubsubd.roll.errors import RollFailed, reason
from pubsubd.roll.folder import flush_folder
from pubsubd.storage.store import APPLICATION_ID, FILE_NAME, SCHEMA_VERSION

_EVERY_SEQ = 2**63 - 1


class Batch(NamedTuple):
    """Consecutive rows of the tail, from `first_seq` on; records before it are sealed already."""

    first_seq: int
    rows: list[tuple[int, int, int, bytes]]  # as in journal.record.Row
    details: list[tuple[int, str]]  # (seq, JSON), ascending


class Database:
    """A view of the database as of one commit. Use `viewing`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._execute = connection.execute
        self._check_ours()
        identity = self._execute("SELECT secret, boot FROM server").fetchone()
        if identity is None:
            raise RollFailed(f"the database {path} is damaged: it does not say which server it belongs to")
        self.secret, self._boot = identity

    def _check_ours(self) -> None:
        (application_id,) = self._execute("PRAGMA application_id").fetchone()
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            raise RollFailed(f"{self._path} is not a database of pubsubd")
        if version != SCHEMA_VERSION:
            age = "a newer" if version > SCHEMA_VERSION else "an older"
            raise RollFailed(
                f"{self._path} was written by {age} pubsubd "
                f"(layout {version}, this one reads {SCHEMA_VERSION})"
            )

    # -- the journal --------------------------------------------------------------------------------------

    def journal_seq(self) -> int:
        """The number of the last event of the last commit; 0 if there was none."""
        newest = self._execute("SELECT data FROM oplog ORDER BY commit_id DESC LIMIT 1").fetchone()
        if newest is None:
            return 0
        # It is the last thing that a commit says, so all of it has to be gone through.
        try:
            said = [one for one in oplog.records(newest[0]) if isinstance(one, oplog.Counters)]
            return said[-1].journal_seq
        except Exception as error:  # whatever bytes from outside can cause
            raise RollFailed(f"the database {self._path} is damaged: {error}") from error

    def unsealed(self, last_sealed: int) -> int:
        """About how many events follow those that are sealed."""
        (count,) = self._execute(
            "SELECT coalesce(sum(n), 0) FROM journal_tail WHERE first_seq > ?", (last_sealed,)
        ).fetchone()
        return int(count)

    def tail(self, last_sealed: int, events: int) -> Iterator[Batch]:
        """What follows `last_sealed`, in batches of whole rows: at least `events` each, except the last.

        Raises:
            RollFailed: a row is of a later format, or damaged; what is before it has been given out.
        """
        # The last sealed event may lie inside a row, which begins before it.
        (begin,) = self._execute(
            "SELECT coalesce(max(first_seq), 0) FROM journal_tail WHERE first_seq <= ?", (last_sealed + 1,)
        ).fetchone()
        bad = self._execute(
            "SELECT first_seq, version FROM journal_tail WHERE first_seq >= ?"
            " AND (version <> ? OR n < 1 OR length(data) <> n * ?) ORDER BY first_seq LIMIT 1",
            (begin, VERSION, RECORD.size),
        ).fetchone()
        rows: list[tuple[int, int, int, bytes]] = []
        held = 0
        # There may be as many rows as events, so no more is done for each than has to be.
        for row in self._execute(
            "SELECT first_seq, n, version, data FROM journal_tail WHERE first_seq BETWEEN ? AND ?"
            " AND first_seq + n - 1 > ? ORDER BY first_seq",
            (begin, _EVERY_SEQ if bad is None else bad[0] - 1, last_sealed),
        ):
            rows.append(row)
            held += row[1]
            if held >= events:
                yield self._batch(last_sealed, rows)
                rows, held = [], 0
        if rows:
            yield self._batch(last_sealed, rows)
        if bad is not None:
            first_seq, version = bad
            raise RollFailed(
                f"the journal in {self._path} is damaged at event {first_seq}"
                if version == VERSION
                else f"the journal in {self._path} is of format {version} from event {first_seq} on, "
                f"and this pubsubd knows only format {VERSION}"
            )

    def _batch(self, last_sealed: int, rows: list[tuple[int, int, int, bytes]]) -> Batch:
        first_seq = max(last_sealed + 1, rows[0][0])
        last_seq = rows[-1][0] + rows[-1][1] - 1
        details = self._execute(
            "SELECT seq, detail FROM journal_detail WHERE seq BETWEEN ? AND ? ORDER BY seq",
            (first_seq, last_seq),
        )
        return Batch(first_seq, rows, details.fetchall())

    # -- the state ----------------------------------------------------------------------------------------

    def broker(self) -> Broker:
        """What the server would go on with if it started now.

        Raises:
            RollFailed: what is stored makes no sense.
        """
        topics, subscriptions, snapshots, endings = (
            "SELECT topic_id, name, deleted, resource FROM topic ORDER BY 1",
            "SELECT sub_id, topic_id, name, start_id, resource FROM subscription ORDER BY 1",
            "SELECT snapshot_id, topic_id, name, resource, state FROM snapshot ORDER BY 1",
            "SELECT sub_id, message_id, generation, ending, at_us FROM ending ORDER BY ending_id",
        )
        saved = Saved(
            [TopicRow(*row) for row in self._execute(topics)],
            [SubscriptionRow(*row) for row in self._execute(subscriptions)],
            [SnapshotRow(*row) for row in self._execute(snapshots)],
            (),  # documents say nothing of what is owed
            [EndingRow(*row) for row in self._execute(endings)],
            [data for (data,) in self._execute("SELECT data FROM oplog ORDER BY commit_id")],
        )
        try:
            return Broker.restore(saved, self.secret, self._boot, False)
        except Exception as error:  # whatever bytes from outside can cause
            raise RollFailed(f"the database {self._path} is damaged: {error}") from error

    def chunks(self, topic_id: int, after_id: int) -> Iterator[bytes]:
        """The rows that hold messages of a topic after `after_id`, in order."""
        for (data,) in self._execute(
            "SELECT data FROM chunk WHERE topic_id = ? AND last_id > ? ORDER BY last_id", (topic_id, after_id)
        ):
            yield data

    def messages(self, topic_id: int, message_ids: Iterable[int]) -> Iterator[Entry]:
        """Those of the messages, ids ascending, that are stored."""
        there: dict[int, Entry] = {}
        last_read = 0
        for message_id in message_ids:
            if message_id > last_read:
                row = self._execute(
                    "SELECT last_id, data FROM chunk WHERE topic_id = ? AND last_id >= ?"
                    " ORDER BY last_id LIMIT 1",
                    (topic_id, message_id),
                ).fetchone()
                if row is None:
                    return
                last_read, data = row
                there = {entry.message_id: entry for entry in unpack_chunk(data)}
            if message_id in there:
                yield there[message_id]


@contextlib.contextmanager
def viewing(directory: Path) -> Iterator[Database]:
    """The database in `directory` as of the last commit; its write-ahead log is flushed.

    Raises:
        RollFailed: there is none, or it is not ours, is of another layout, is damaged or cannot be read.
    """
    path = directory / FILE_NAME
    if not path.exists():
        raise RollFailed(f"there is no database in {directory}")
    try:
        with contextlib.closing(_connect(path)) as connection:
            connection.execute("BEGIN")
            # The view is of the moment of the first read.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            try:
                _flush_log(path)
            except OSError as error:
                raise RollFailed(f"the log of {path} cannot be flushed: {reason(error)}") from error
            yield Database(path, connection)
    except sqlite3.Error as error:
        raise RollFailed(f"the database {path} cannot be read: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    # Read-only: it also never moves the log into the database, not even as the last one that has it open.
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None)


def _flush_log(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        flags = os.O_RDONLY if os.name == "posix" else os.O_RDWR
        opened = os.open(log, flags)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
        flush_folder(path.parent)
