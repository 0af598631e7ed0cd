"""Databases of older layouts, brought to the present one. What a layout was is written down here for good.

All of it is one transaction, that of the start: a process that dies on the way leaves the old layout, and the
next start begins again.
"""

from __future__ import annotations

import sqlite3
import struct

_COUNT = struct.Struct("<I")
_PUBLISH_US = struct.Struct("<q")  # as wide as an id
_MOVED_ROWS = 16


class DamagedChunk(Exception):
    """Messages that cannot be read; the text says which."""


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring layout `version` to the present one, in the transaction that is open.

    Raises:
        DamagedChunk: messages are not in the layout that they should have.
    """
    if version < 2:
        _add_times_and_snapshots(connection)
    if version < 3:
        _add_documents(connection)


def _add_times_and_snapshots(connection: sqlite3.Connection) -> None:
    """Version 1 had no snapshots, and of a chunk's times only those inside of it.

    The rows are written anew: a column that is added stands last, where reading it would read the messages.
    """
    connection.execute("ALTER TABLE chunk RENAME TO chunk_without_times")
    connection.execute(
        "CREATE TABLE chunk (topic_id INTEGER NOT NULL, last_id INTEGER NOT NULL, last_us INTEGER NOT NULL,"
        " data BLOB NOT NULL, PRIMARY KEY (topic_id, last_id)) WITHOUT ROWID"
    )
    while _move_chunks(connection):
        pass
    connection.execute("DROP TABLE chunk_without_times")
    connection.execute(
        "CREATE TABLE snapshot (snapshot_id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL,"
        " name TEXT NOT NULL, resource BLOB NOT NULL, state BLOB NOT NULL)"
    )


def _add_documents(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE document (kind TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,"
        " PRIMARY KEY (kind, name)) WITHOUT ROWID"
    )


def _move_chunks(connection: sqlite3.Connection) -> int:
    """A few rows from the old table to the new one; how many.

    Rows leave the old table as they are copied, so that their pages are used again and the file hardly grows.
    To drop a full table would also take as much memory as it is large: temporary files are kept there.
    """
    old = connection.execute(
        "SELECT topic_id, last_id, data FROM chunk_without_times ORDER BY topic_id, last_id LIMIT ?",
        (_MOVED_ROWS,),
    ).fetchall()
    new = [(topic_id, last_id, _last_us(topic_id, last_id, data), data) for topic_id, last_id, data in old]
    connection.executemany(
        "DELETE FROM chunk_without_times WHERE topic_id = ? AND last_id = ?", [row[:2] for row in old]
    )
    connection.executemany("INSERT INTO chunk VALUES (?, ?, ?, ?)", new)
    return len(old)


def _last_us(topic_id: int, last_id: int, data: bytes) -> int:
    """The publish time of the last message: the end of the second column, which follows count and ids."""
    try:
        (count,) = _COUNT.unpack_from(data)
        (last_us,) = _PUBLISH_US.unpack_from(data, _COUNT.size + (2 * count - 1) * _PUBLISH_US.size)
    except struct.error as error:
        raise DamagedChunk(f"its messages up to {last_id} of topic {topic_id} cannot be read") from error
    return int(last_us)
