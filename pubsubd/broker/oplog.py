"""The operation log: what a commit changed, as bytes, and how that is read back.

Each commit carries one blob of records. State is what the last checkpoint says, changed by every blob since,
in order; a checkpoint is itself a blob of the same records. Ids travel in columns, so that a message costs a
few bytes and no row of its own. Numbers are little-endian; a layout change raises `VERSION`, with which every
blob begins.

An operation that changes nothing is not here: refused ids and replays leave no trace in state.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

VERSION = 1
assert sys.byteorder == "little", "array columns are written in native order"

_HEAD = struct.Struct("<BI")  # record kind, length of what follows
_COUNTERS = struct.Struct("<qqqqqqq")
_DELIVER = struct.Struct("<iqqiIqI?")
_EXTEND = struct.Struct("<iqI")
_FINISH = struct.Struct("<iI")
_RETURN = struct.Struct("<i?I")
_WAITING = struct.Struct("<iI")
_POSITION = struct.Struct("<iqq")
_PUBLISHED = struct.Struct("<iqII")


class Counters(NamedTuple):
    """What is counted over the whole server. Every commit ends with one."""

    message_id: int
    call_id: int
    client_id: int
    topic_id: int
    sub_id: int
    journal_seq: int
    now_us: int


class Delivered(NamedTuple):
    """Leases granted together."""

    sub_id: int
    deadline_us: int
    delivered_us: int
    client_id: int
    boot: int
    cursor: int
    message_ids: Sequence[int]
    sizes: Sequence[int]
    generations: Sequence[int]
    attempts: Sequence[int]
    okeys: Sequence[int]


class Extended(NamedTuple):
    sub_id: int
    deadline_us: int
    message_ids: Sequence[int]


class Finished(NamedTuple):
    """Acked: leased messages, or (late, without exactly-once) waiting ones."""

    sub_id: int
    message_ids: Sequence[int]


class Returned(NamedTuple):
    """Leases ended by nack, deadline or release: their messages wait for redelivery."""

    sub_id: int
    counts: bool  # whether it was an attempt
    message_ids: Sequence[int]


class Waiting(NamedTuple):
    """Messages that wait for redelivery; in checkpoints only."""

    sub_id: int
    message_ids: Sequence[int]
    generations: Sequence[int]
    attempts: Sequence[int]


class Position(NamedTuple):
    """Everything up to `cursor` was delivered; nothing of it is outstanding that is not said later."""

    sub_id: int
    cursor: int
    owed: int


class Published(NamedTuple):
    """`size` messages of a topic, the last of them `last_id`, owed to subscriptions `sub_ids`."""

    topic_id: int
    last_id: int
    size: int
    sub_ids: Sequence[int]


Record = Counters | Delivered | Extended | Finished | Returned | Waiting | Position | Published


def _q(values: Sequence[int]) -> bytes:
    return array("q", values).tobytes()


def _i(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()


def _record(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _HEAD.pack(kind, len(body)) + body


def counters(record: Counters) -> bytes:
    return _record(1, _COUNTERS.pack(*record))


def delivered(record: Delivered) -> bytes:
    # First deliveries of messages without keys are nearly all there is: they need no more than ids and sizes.
    plain = not any(record.okeys) and max(record.generations) == 1 and max(record.attempts) == 1
    head = _DELIVER.pack(*record[:6], len(record.message_ids), plain)
    columns = [_q(record.message_ids), _i(record.sizes)]
    if not plain:
        columns += [_i(record.generations), _i(record.attempts), _q(record.okeys)]
    return _record(2, head, *columns)


def extended(record: Extended) -> bytes:
    return _record(
        3,
        _EXTEND.pack(record.sub_id, record.deadline_us, len(record.message_ids)),
        _q(record.message_ids),
    )


def finished(record: Finished) -> bytes:
    return _record(4, _FINISH.pack(record.sub_id, len(record.message_ids)), _q(record.message_ids))


def returned(record: Returned) -> bytes:
    return _record(
        5,
        _RETURN.pack(record.sub_id, record.counts, len(record.message_ids)),
        _q(record.message_ids),
    )


def waiting(record: Waiting) -> bytes:
    return _record(
        6,
        _WAITING.pack(record.sub_id, len(record.message_ids)),
        _q(record.message_ids),
        _i(record.generations),
        _i(record.attempts),
    )


def position(record: Position) -> bytes:
    return _record(7, _POSITION.pack(*record))


def published(record: Published) -> bytes:
    head = _PUBLISHED.pack(record.topic_id, record.last_id, record.size, len(record.sub_ids))
    return _record(8, head, _i(record.sub_ids))


def blob(records: Sequence[bytes]) -> bytes:
    return b"".join((bytes((VERSION,)), *records))


class _Columns:
    """Reads the columns of one record, front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def read(self, code: str, count: int) -> array[int]:
        column: array[int] = array(code)
        end = self._at + count * column.itemsize
        column.frombytes(self._data[self._at : end])
        self._at = end
        return column


def records(data: bytes) -> Iterator[Record]:
    """What a blob says, in order."""
    if data[0] != VERSION:
        raise ValueError(f"operation log version {data[0]} is not {VERSION}")
    at = 1
    while at < len(data):
        kind, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield _READERS[kind](data, at)
        at += length


def _read_counters(data: bytes, at: int) -> Counters:
    return Counters(*_COUNTERS.unpack_from(data, at))


def _read_delivered(data: bytes, at: int) -> Delivered:
    sub_id, deadline_us, delivered_us, client_id, boot, cursor, count, plain = _DELIVER.unpack_from(data, at)
    columns = _Columns(data, at + _DELIVER.size)
    message_ids, sizes = columns.read("q", count), columns.read("i", count)
    generations = attempts = array("i", [1]) * count
    okeys = array("q", [0]) * count
    if not plain:
        generations, attempts = columns.read("i", count), columns.read("i", count)
        okeys = columns.read("q", count)
    return Delivered(
        sub_id, deadline_us, delivered_us, client_id, boot, cursor,
        message_ids, sizes, generations, attempts, okeys,
    )  # fmt: skip


def _read_extended(data: bytes, at: int) -> Extended:
    sub_id, deadline_us, count = _EXTEND.unpack_from(data, at)
    return Extended(sub_id, deadline_us, _Columns(data, at + _EXTEND.size).read("q", count))


def _read_finished(data: bytes, at: int) -> Finished:
    sub_id, count = _FINISH.unpack_from(data, at)
    return Finished(sub_id, _Columns(data, at + _FINISH.size).read("q", count))


def _read_returned(data: bytes, at: int) -> Returned:
    sub_id, counts, count = _RETURN.unpack_from(data, at)
    return Returned(sub_id, counts, _Columns(data, at + _RETURN.size).read("q", count))


def _read_waiting(data: bytes, at: int) -> Waiting:
    sub_id, count = _WAITING.unpack_from(data, at)
    columns = _Columns(data, at + _WAITING.size)
    return Waiting(sub_id, columns.read("q", count), columns.read("i", count), columns.read("i", count))


def _read_position(data: bytes, at: int) -> Position:
    return Position(*_POSITION.unpack_from(data, at))


def _read_published(data: bytes, at: int) -> Published:
    topic_id, last_id, count, sub_count = _PUBLISHED.unpack_from(data, at)
    sub_ids = _Columns(data, at + _PUBLISHED.size).read("i", sub_count)
    return Published(topic_id, last_id, count, sub_ids)


_READERS: dict[int, Callable[[bytes, int], Record]] = {
    1: _read_counters,
    2: _read_delivered,
    3: _read_extended,
    4: _read_finished,
    5: _read_returned,
    6: _read_waiting,
    7: _read_position,
    8: _read_published,
}
