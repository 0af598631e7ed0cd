"""From packed records to Parquet: whole columns at a time, and no Python per event.

How each column is kept follows from what is in it: of numbers and times that grow the differences, of what
repeats a dictionary, and the rest (hashes, numbers of calls) as it is. On top of that zstd, at its quickest
level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pubsubd.journal.record import RECORD
from pubsubd.model.events import Event
from pubsubd.roll import folder

#: Rows of a row group at most, and events of a segment as far as whole commits allow.
ROW_GROUP = 1 << 20

_HOUR_US = 3600 * 10**6
# The layout of a record says the types: struct's letters are numpy's, beside the one for a byte.
_TYPES = [{"b": "i1", "i": "<i4", "q": "<i8"}[letter] for letter in RECORD.format[1:]]
_NAMES = ["seq", *Event._fields]
RECORD_TYPE = np.dtype(list(zip(_NAMES, _TYPES, strict=True)))
assert RECORD_TYPE.itemsize == RECORD.size

_DIFFERENCES = ("seq", "ts_us", "message_id", "deadline_us", "ref_ts_us")
_DICTIONARIES = (
    *("kind", "topic_id", "sub_id", "generation", "attempt", "result", "client_id", "bytes", "okey", "aux"),
    "detail",
)
# Records are taken apart in blocks that stay in the processor's cache: a quarter of the time of one column
# after the other.
_BLOCK = 4096


class Part(NamedTuple):
    """The events of one segment."""

    events: npt.NDArray[np.void]  # of RECORD_TYPE
    details: Sequence[tuple[int, str]]  # (seq, JSON), ascending

    @property
    def first_seq(self) -> int:
        return int(self.events["seq"][0])

    @property
    def last_seq(self) -> int:
        return int(self.events["seq"][-1])

    @property
    def first_us(self) -> int:
        return int(self.events["ts_us"][0])


def events_of(rows: Sequence[tuple[int, int, int, bytes]], first_seq: int) -> npt.NDArray[np.void]:
    """The records of `rows` (see journal.record.Row) from `first_seq` on.

    Raises:
        ValueError: they are not numbered as their rows say; the text names the first such row.
    """
    first_seqs, counts, _, datas = zip(*rows, strict=True)
    events = np.frombuffer(b"".join(datas), RECORD_TYPE)
    begins = np.cumsum([0, *counts])
    wrong = events["seq"] != np.arange(len(events)) + np.repeat(np.array(first_seqs) - begins[:-1], counts)
    if wrong.any():
        row = int(np.searchsorted(begins, wrong.argmax(), "right")) - 1
        raise ValueError(f"event {first_seqs[row]}")
    return events[np.searchsorted(events["seq"], first_seq) :]


def parts(events: npt.NDArray[np.void], details: Sequence[tuple[int, str]]) -> Iterator[Part]:
    """Cut where a later hour begins and where numbers are missing, so that names tell what is there."""
    at = 0
    seqs = events["seq"]
    hours = events["ts_us"] // _HOUR_US
    while at < len(events):
        ends = (hours[at:] > hours[at]) | (seqs[at:] - seqs[at] != np.arange(len(events) - at))
        end = at + int(ends.argmax()) if ends.any() else len(events)
        first, last = int(seqs[at]), int(seqs[end - 1])
        yield Part(events[at:end], [one for one in details if first <= one[0] <= last])
        at = end


def write_segment(file: BinaryIO, part: Part, server: str) -> None:
    table = _table(part, server)
    pq.write_table(
        table,
        file,
        row_group_size=ROW_GROUP,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(_DICTIONARIES),
        column_encoding=dict.fromkeys(_DIFFERENCES, "DELTA_BINARY_PACKED"),
        write_statistics=True,
        write_page_checksum=True,  # a damaged page is found when it is read
    )


def _table(part: Part, server: str) -> pa.Table:
    events = part.events
    columns: dict[str, Any] = {name: np.empty(len(events), RECORD_TYPE[name]) for name in _NAMES}
    for begin in range(0, len(events), _BLOCK):
        block = events[begin : begin + _BLOCK]
        for name, column in columns.items():
            column[begin : begin + _BLOCK] = block[name]
    fields = [pa.field(name, pa.from_numpy_dtype(RECORD_TYPE[name]), nullable=False) for name in _NAMES]
    schema = pa.schema([*fields, pa.field("detail", pa.string())], folder.metadata(server))
    return pa.table([*map(_array, columns.values()), _texts(part)], schema=schema)


def _array(column: npt.NDArray[Any]) -> pa.Array:
    """What `pa.array` makes of it, without the half second in which that looks for pandas."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(column.dtype), len(column), [None, pa.py_buffer(np.ascontiguousarray(column))]
    )


def _texts(part: Part) -> pa.StringArray:
    """A column that is null but where an event has a detail."""
    count = len(part.events)
    datas = [text.encode() for _, text in part.details]
    places = np.array([seq - part.first_seq for seq, _ in part.details], np.int64)
    ends = np.zeros(count + 1, np.int32)
    ends[places + 1] = [len(data) for data in datas]
    np.cumsum(ends, out=ends)
    is_there = np.zeros(count, np.bool_)
    is_there[places] = True
    return pa.StringArray.from_buffers(
        count,
        pa.py_buffer(ends),
        pa.py_buffer(b"".join(datas)),
        pa.py_buffer(np.packbits(is_there, bitorder="little")),
    )


class BacklogWriter:
    """Writes (sub_id, message_id) pairs as they come, in row groups that are neither tiny nor huge."""

    _SCHEMA = pa.schema(
        [
            pa.field("sub_id", pa.int32(), nullable=False),
            pa.field("message_id", pa.int64(), nullable=False),
        ]
    )

    def __init__(self, file: BinaryIO, server: str) -> None:
        self._writer = pq.ParquetWriter(
            file,
            self._SCHEMA.with_metadata(folder.metadata(server)),
            compression="zstd",
            compression_level=1,
            use_dictionary=["sub_id"],
            column_encoding={"message_id": "DELTA_BINARY_PACKED"},
        )
        self._held: list[tuple[int, npt.NDArray[np.int64]]] = []
        self._held_count = 0

    def add(self, sub_id: int, message_ids: npt.NDArray[np.int64]) -> None:
        if len(message_ids):
            self._held.append((sub_id, message_ids))
            self._held_count += len(message_ids)
            if self._held_count >= ROW_GROUP:
                self._flush()

    def _flush(self) -> None:
        if self._held_count:
            self._held.sort(key=lambda one: one[0])
            counts = [len(message_ids) for _, message_ids in self._held]
            sub_ids = np.repeat(np.array([sub_id for sub_id, _ in self._held], np.int32), counts)
            message_ids = np.concatenate([message_ids for _, message_ids in self._held])
            table = pa.table([_array(sub_ids), _array(message_ids)], schema=self._SCHEMA)
            self._writer.write_table(table, row_group_size=ROW_GROUP)
        self._held, self._held_count = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
