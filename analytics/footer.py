"""What a segment says of itself in its Parquet footer, read so that no damage can do worse than be found.

Parquet has no checksum over its footer, and a native reader that is given one with a flipped bit may bring
down the process. Here the footer is taken apart in Python: lengths are checked before they are believed, and
what does not fit a segment of the journal is a problem with a name.

The footer is Thrift's compact protocol: structures of numbered fields, whose types come with them. The
numbers used below are those of parquet.thrift (FileMetaData, SchemaElement, RowGroup, ColumnChunk,
Statistics, KeyValue).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analytics import layout

MAGIC = b"PAR1"
_END = 8  # the footer's length, and MAGIC
_GUESS = 64 << 10  # read at once; footers of segments are about 4 KiB a row group
_DEPTH_MAX = 16

# Physical types, and the annotations of 8-bit integers and text; None: plain.
_PHYSICAL = {"int8": 1, "int32": 1, "int64": 2, "string": 6}
_CONVERTED = {"int8": (15,), "int32": (None, 17), "int64": (None, 18), "string": (0,)}
_PLACES = {column.name: place for place, column in enumerate(layout.COLUMNS)}


@dataclass(frozen=True)
class Footer:
    """`problem` is a sentence if the segment cannot be relied on; the rest is then of no use."""

    count: int = 0
    version: str | None = None
    server: str = ""
    first_us: int | None = None  # smallest and largest ts_us
    last_us: int | None = None
    message_id_max: int | None = None
    sub_id_max: int | None = None
    problem: str | None = None


class Malformed(ValueError):
    """The bytes are no footer."""


def read(tail: Callable[[int], bytes], size: int) -> Footer:
    """The footer of a file of `size` bytes; `tail(n)` gives its last n bytes."""
    try:
        return _footer(tail, size)
    except OSError as error:
        return Footer(problem=f"it cannot be read ({error.strerror or error})")
    except (Malformed, UnicodeDecodeError, struct.error) as error:
        return Footer(problem=f"its footer is damaged ({error})")


def read_backlog(tail: Callable[[int], bytes], size: int) -> Footer:
    """The same of a backlog file, which has other columns: only whose it is, and that its footer is whole."""
    try:
        return _origin(_metadata(tail, size))
    except OSError as error:
        return Footer(problem=f"it cannot be read ({error.strerror or error})")
    except (Malformed, UnicodeDecodeError, struct.error) as error:
        return Footer(problem=f"its footer is damaged ({error})")


def tail_of(path: Path) -> Callable[[int], bytes]:
    """Reads the last bytes of a file of this machine."""

    def tail(count: int) -> bytes:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - count, 0))
            return file.read(count)

    return tail


def _metadata(tail: Callable[[int], bytes], size: int) -> dict[int, Any]:
    """FileMetaData, by the numbers of its fields."""
    end = tail(min(size, _GUESS))
    if len(end) < _END + len(MAGIC) or end[-4:] != MAGIC:
        raise Malformed("it does not end as a Parquet file does")
    length = int.from_bytes(end[-_END:-4], "little")
    if length > size - _END - len(MAGIC):
        raise Malformed("it claims to be longer than the file")
    if length + _END > len(end):
        end = tail(length + _END)
    return _Compact(end[-_END - length : -_END]).structure()


def _origin(about: dict[int, Any]) -> Footer:
    named = _structures(about, 5, missing_is_empty=True)
    pairs = {_bytes(pair, 1).decode(): _bytes(pair, 2).decode() for pair in named}
    return Footer(_int(about, 3), pairs.get(layout.VERSION_KEY), pairs.get(layout.SERVER_KEY, ""))


def _footer(tail: Callable[[int], bytes], size: int) -> Footer:
    about = _metadata(tail, size)
    footer = _origin(about)
    if footer.version != str(layout.VERSION):
        return footer  # of another program or format: not for us to judge
    _check_columns(_structures(about, 2))
    groups = _structures(about, 4)
    _check_groups(groups, footer.count, size)
    first_us, last_us = _bounds(groups, "ts_us", "<q")
    return replace(
        footer,
        first_us=first_us,
        last_us=last_us,
        message_id_max=_bounds(groups, "message_id", "<q")[1],
        sub_id_max=_bounds(groups, "sub_id", "<i")[1],
    )


def _check_columns(schema: list[dict[int, Any]]) -> None:
    """The root, then a leaf per column in the order of the layout."""
    if len(schema) != len(layout.COLUMNS) + 1:
        raise Malformed(f"{len(schema) - 1} columns, not {len(layout.COLUMNS)}")
    for column, found in zip(layout.COLUMNS, schema[1:], strict=True):
        if _bytes(found, 4) != column.name.encode():
            raise Malformed(f"no column {column.name} in its place")
        if found.get(1) != _PHYSICAL[column.type] or found.get(6) not in _CONVERTED[column.type]:
            raise Malformed(f"column {column.name} is not of type {column.type}")


def _check_groups(groups: list[dict[int, Any]], count: int, size: int) -> None:
    """All columns with all rows, within the file."""
    rows = 0
    for group in groups:
        chunks = _structures(group, 1)
        if len(chunks) != len(layout.COLUMNS):
            raise Malformed("a row group lacks columns")
        rows += _int(group, 3)
        for chunk in chunks:
            about = chunk.get(3)
            if not isinstance(about, dict) or _int(about, 5) != _int(group, 3):
                raise Malformed("a column lacks rows")
            if not 0 < _int(about, 9) < size or not 0 < _int(about, 7) < size:
                raise Malformed("a column lies outside the file")
    if rows != count:
        raise Malformed("its counts of rows disagree")


def _bounds(groups: list[dict[int, Any]], column: str, form: str) -> tuple[int | None, int | None]:
    """The smallest and the largest number in a column, None if a row group does not tell them."""
    lows: list[int] = []
    highs: list[int] = []
    for group in groups:
        statistics = _structures(group, 1)[_PLACES[column]][3].get(12)
        if not isinstance(statistics, dict) or 5 not in statistics or 6 not in statistics:
            return None, None
        lows += struct.unpack(form, _bytes(statistics, 6))
        highs += struct.unpack(form, _bytes(statistics, 5))
    return min(lows, default=None), max(highs, default=None)


def _int(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or value < 0:
        raise Malformed(f"field {number} is no count")
    return value


def _bytes(fields: dict[int, Any], number: int) -> bytes:
    value = fields.get(number)
    if not isinstance(value, bytes):
        raise Malformed(f"field {number} is no text")
    return value


def _structures(fields: dict[int, Any], number: int, missing_is_empty: bool = False) -> list[dict[int, Any]]:
    value = fields.get(number, [] if missing_is_empty else None)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Malformed(f"field {number} is no list")
    return value


class _Compact:
    """Thrift's compact protocol: a structure becomes a dictionary of its fields, by their numbers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._depth = 0

    def structure(self) -> dict[int, Any]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise Malformed("it is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._signed()
            # A field of type boolean has its value in its type.
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind == 12:
            return self.structure()
        if kind == 8:
            return self._take(self._varint())
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (9, 10):
            return self._list()
        if kind == 7:
            return struct.unpack("<d", self._take(8))[0]
        if kind in (1, 2, 3):
            return self._byte()
        raise Malformed("a field is of an unknown type")

    def _list(self) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._varint()
        if count > len(self._data) - self._at:
            raise Malformed("a list is longer than all that follows")
        return [self._value(kind) for _ in range(count)]

    def _byte(self) -> int:
        at = self._at
        if at >= len(self._data):
            raise Malformed("it ends in the middle")
        self._at = at + 1
        return self._data[at]

    def _take(self, count: int) -> bytes:
        at = self._at
        if count > len(self._data) - at:
            raise Malformed("a text is longer than all that follows")
        self._at = at + count
        return self._data[at : at + count]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise Malformed("a number is too long")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
