"""The operation log: what a commit changed, as bytes, and how that is read back.

Each commit carries one blob of records. State is what the last checkpoint says, changed by every blob since,
in order; a checkpoint is itself a blob of the same records. Ids travel in columns, so that a message costs a
few bytes and no row of its own. Numbers are little-endian; a layout change raises `VERSION`, with which every
blob begins. Version 2 has more kinds of records than version 1 and the same of old, so that one reader does
for both.

An operation that changes nothing is not here: refused ids and replays leave no trace in state.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

VERSION = 2
_VERSIONS = (1, 2)
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
_IDS = struct.Struct("<iI")
_MARK = struct.Struct("<iq")
_PARKED = struct.Struct("<iqI")
_SOUGHT = struct.Struct("<iqiIIII")
_EPOCHS = struct.Struct("<iiiIIII")


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


class OldWaiting(NamedTuple):
    """Messages that wait for redelivery, as version 1 wrote them; in checkpoints only."""

    sub_id: int
    message_ids: Sequence[int]
    generations: Sequence[int]
    attempts: Sequence[int]


class Position(NamedTuple):
    """Everything up to `cursor` was delivered; nothing of it is outstanding that is not said later."""

    sub_id: int
    cursor: int


class Published(NamedTuple):
    """Messages of a topic, the last of them `last_id`."""

    topic_id: int
    last_id: int


class Retained(NamedTuple):
    """The retention of a topic was switched on: it keeps messages after this one."""

    topic_id: int
    after_id: int


class Skipped(NamedTuple):
    """Nothing up to `cursor` matches the filter that was not delivered."""

    sub_id: int
    cursor: int


class Delayed(NamedTuple):
    """Waiting messages are not delivered up to and including these moments."""

    sub_id: int
    message_ids: Sequence[int]
    ready_us: Sequence[int]


class Reset(NamedTuple):
    """Leases void because a predecessor of their ordering key came back; collateral with exactly-once."""

    sub_id: int
    collateral: bool
    message_ids: Sequence[int]


class Released(NamedTuple):
    """Collateral messages that were nacked."""

    sub_id: int
    message_ids: Sequence[int]


class Parked(NamedTuple):
    """Messages that the cursor has passed and that wait for their ordering key, never delivered."""

    sub_id: int
    cursor: int
    message_ids: Sequence[int]
    okeys: Sequence[int]


class Dropped(NamedTuple):
    """Everything up to `through_id` that is not leased is gone."""

    sub_id: int
    through_id: int


class Sought(NamedTuple):
    """A seek: what left, what waits again, and what the cursor does not take for new when it comes by."""

    sub_id: int
    cursor: int
    first_generation: int
    past: str  # see Subscription
    purged_ids: Sequence[int]
    restored_ids: Sequence[int]
    restored_okeys: Sequence[int]
    carried_ids: Sequence[int]
    carried_generations: Sequence[int]


class Waiting(NamedTuple):
    """Messages that wait for redelivery; in checkpoints only. Flags: 1 collateral, 2 unchecked."""

    sub_id: int
    message_ids: Sequence[int]
    generations: Sequence[int]
    attempts: Sequence[int]
    okeys: Sequence[int]
    ready_us: Sequence[int]
    flags: Sequence[int]


class Epochs(NamedTuple):
    """What seeks have left behind; in checkpoints, and before the leases of a subscription."""

    sub_id: int
    first_generation: int
    generation_max: int
    past: str
    floors: Sequence[int]
    generations: Sequence[int]
    carried_ids: Sequence[int]
    carried_generations: Sequence[int]
    restored_ids: Sequence[int]
    restored_generations: Sequence[int]


class Offsets(NamedTuple):
    """By how much the attempts that clients see are lower than those counted."""

    sub_id: int
    message_ids: Sequence[int]
    offsets: Sequence[int]


class Active(NamedTuple):
    """Somebody used the subscription."""

    sub_id: int
    at_us: int


OfSubscription = (
    Delivered
    | Extended
    | Finished
    | Returned
    | OldWaiting
    | Position
    | Skipped
    | Delayed
    | Reset
    | Released
    | Parked
    | Dropped
    | Sought
    | Waiting
    | Epochs
    | Offsets
    | Active
)
Record = Counters | Published | Retained | OfSubscription


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


def position(record: Position) -> bytes:
    return _record(7, _POSITION.pack(*record, 0))


def published(record: Published) -> bytes:
    return _record(8, _PUBLISHED.pack(*record, 0, 0))


def skipped(record: Skipped) -> bytes:
    return _record(9, _MARK.pack(*record))


def delayed(record: Delayed) -> bytes:
    head = _IDS.pack(record.sub_id, len(record.message_ids))
    return _record(10, head, _q(record.message_ids), _q(record.ready_us))


def reset(record: Reset) -> bytes:
    head = _RETURN.pack(record.sub_id, record.collateral, len(record.message_ids))
    return _record(11, head, _q(record.message_ids))


def released(record: Released) -> bytes:
    return _record(12, _IDS.pack(record.sub_id, len(record.message_ids)), _q(record.message_ids))


def parked(record: Parked) -> bytes:
    head = _PARKED.pack(record.sub_id, record.cursor, len(record.message_ids))
    return _record(13, head, _q(record.message_ids), _q(record.okeys))


def dropped(record: Dropped) -> bytes:
    return _record(14, _MARK.pack(*record))


def sought(record: Sought) -> bytes:
    text = record.past.encode()
    counts = len(record.purged_ids), len(record.restored_ids), len(record.carried_ids)
    return _record(
        15,
        _SOUGHT.pack(*record[:3], len(text), *counts),
        text,
        _q(record.purged_ids),
        _q(record.restored_ids),
        _q(record.restored_okeys),
        _q(record.carried_ids),
        _i(record.carried_generations),
    )


def waiting(record: Waiting) -> bytes:
    head = _IDS.pack(record.sub_id, len(record.message_ids))
    _, ids, generations, attempts, okeys, ready_us, flags = record
    return _record(16, head, _q(ids), _i(generations), _i(attempts), _q(okeys), _q(ready_us), _i(flags))


def epochs(record: Epochs) -> bytes:
    text = record.past.encode()
    counts = len(record.floors), len(record.carried_ids), len(record.restored_ids)
    return _record(
        17,
        _EPOCHS.pack(*record[:3], len(text), *counts),
        text,
        _q(record.floors),
        _i(record.generations),
        _q(record.carried_ids),
        _i(record.carried_generations),
        _q(record.restored_ids),
        _i(record.restored_generations),
    )


def offsets(record: Offsets) -> bytes:
    head = _IDS.pack(record.sub_id, len(record.message_ids))
    return _record(18, head, _q(record.message_ids), _i(record.offsets))


def active(record: Active) -> bytes:
    return _record(19, _MARK.pack(*record))


def retained(record: Retained) -> bytes:
    return _record(20, _MARK.pack(*record))


def blob(records: Sequence[bytes]) -> bytes:
    return b"".join((bytes((VERSION,)), *records))


class _Columns:
    """Reads the columns of one record, front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def read(self, code: str, count: int) -> array[int]:
        column: array[int] = array(code)
        column.frombytes(self._take(count * column.itemsize))
        return column

    def text(self, length: int) -> str:
        return self._take(length).decode()

    def _take(self, length: int) -> bytes:
        # Said here, or a damaged count would be believed, and memory made for as many.
        if self._at + length > len(self._data):
            raise ValueError("a record is shorter than it says")
        begin, self._at = self._at, self._at + length
        return self._data[begin : self._at]


def records(data: bytes) -> Iterator[Record]:
    """What a blob says, in order."""
    if data[0] not in _VERSIONS:
        raise ValueError(f"operation log version {data[0]} is not among {_VERSIONS}")
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
    )  # fmt: skip  # short items, many to a line


def _read_extended(data: bytes, at: int) -> Extended:
    sub_id, deadline_us, count = _EXTEND.unpack_from(data, at)
    return Extended(sub_id, deadline_us, _Columns(data, at + _EXTEND.size).read("q", count))


def _read_finished(data: bytes, at: int) -> Finished:
    sub_id, count = _FINISH.unpack_from(data, at)
    return Finished(sub_id, _Columns(data, at + _FINISH.size).read("q", count))


def _read_returned(data: bytes, at: int) -> Returned:
    sub_id, counts, count = _RETURN.unpack_from(data, at)
    return Returned(sub_id, counts, _Columns(data, at + _RETURN.size).read("q", count))


def _read_old_waiting(data: bytes, at: int) -> OldWaiting:
    sub_id, count = _WAITING.unpack_from(data, at)
    columns = _Columns(data, at + _WAITING.size)
    return OldWaiting(sub_id, columns.read("q", count), columns.read("i", count), columns.read("i", count))


def _read_position(data: bytes, at: int) -> Position:
    sub_id, cursor, _ = _POSITION.unpack_from(data, at)
    return Position(sub_id, cursor)


def _read_published(data: bytes, at: int) -> Published:
    # Version 1 also says to whom they are owed.
    topic_id, last_id, _, _ = _PUBLISHED.unpack_from(data, at)
    return Published(topic_id, last_id)


def _read_skipped(data: bytes, at: int) -> Skipped:
    return Skipped(*_MARK.unpack_from(data, at))


def _read_delayed(data: bytes, at: int) -> Delayed:
    sub_id, count = _IDS.unpack_from(data, at)
    columns = _Columns(data, at + _IDS.size)
    return Delayed(sub_id, columns.read("q", count), columns.read("q", count))


def _read_reset(data: bytes, at: int) -> Reset:
    sub_id, collateral, count = _RETURN.unpack_from(data, at)
    return Reset(sub_id, collateral, _Columns(data, at + _RETURN.size).read("q", count))


def _read_released(data: bytes, at: int) -> Released:
    sub_id, count = _IDS.unpack_from(data, at)
    return Released(sub_id, _Columns(data, at + _IDS.size).read("q", count))


def _read_parked(data: bytes, at: int) -> Parked:
    sub_id, cursor, count = _PARKED.unpack_from(data, at)
    columns = _Columns(data, at + _PARKED.size)
    return Parked(sub_id, cursor, columns.read("q", count), columns.read("q", count))


def _read_dropped(data: bytes, at: int) -> Dropped:
    return Dropped(*_MARK.unpack_from(data, at))


def _read_sought(data: bytes, at: int) -> Sought:
    sub_id, cursor, generation, text_bytes, purged, restored, carried = _SOUGHT.unpack_from(data, at)
    columns = _Columns(data, at + _SOUGHT.size)
    return Sought(
        sub_id,
        cursor,
        generation,
        columns.text(text_bytes),
        columns.read("q", purged),
        columns.read("q", restored),
        columns.read("q", restored),
        columns.read("q", carried),
        columns.read("i", carried),
    )


def _read_waiting(data: bytes, at: int) -> Waiting:
    sub_id, count = _IDS.unpack_from(data, at)
    columns = _Columns(data, at + _IDS.size)
    return Waiting(sub_id, *[columns.read(code, count) for code in "qiiqqi"])


def _read_epochs(data: bytes, at: int) -> Epochs:
    sub_id, first, highest, text_bytes, floors, carried, restored = _EPOCHS.unpack_from(data, at)
    columns = _Columns(data, at + _EPOCHS.size)
    return Epochs(
        sub_id,
        first,
        highest,
        columns.text(text_bytes),
        columns.read("q", floors),
        columns.read("i", floors),
        columns.read("q", carried),
        columns.read("i", carried),
        columns.read("q", restored),
        columns.read("i", restored),
    )


def _read_offsets(data: bytes, at: int) -> Offsets:
    sub_id, count = _IDS.unpack_from(data, at)
    columns = _Columns(data, at + _IDS.size)
    return Offsets(sub_id, columns.read("q", count), columns.read("i", count))


def _read_active(data: bytes, at: int) -> Active:
    return Active(*_MARK.unpack_from(data, at))


def _read_retained(data: bytes, at: int) -> Retained:
    return Retained(*_MARK.unpack_from(data, at))


_READERS: dict[int, Callable[[bytes, int], Record]] = {
    1: _read_counters,
    2: _read_delivered,
    3: _read_extended,
    4: _read_finished,
    5: _read_returned,
    6: _read_old_waiting,
    7: _read_position,
    8: _read_published,
    9: _read_skipped,
    10: _read_delayed,
    11: _read_reset,
    12: _read_released,
    13: _read_parked,
    14: _read_dropped,
    15: _read_sought,
    16: _read_waiting,
    17: _read_epochs,
    18: _read_offsets,
    19: _read_active,
    20: _read_retained,
}
