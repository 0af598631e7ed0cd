"""Avro data in the binary encoding: is it one datum of a type, and nothing else?

Theory of operation. A type becomes a function of the data and a position in it that returns the position
behind the value, or raises. Nothing is built: what a value is, nobody asks. Every step either consumes a
byte or is bounded by the definition, so that the time follows the length of the data.

fastavro reads the same encoding in C. It is not used here because data from outside can crash it (five
thousand records in each other end the process) or keep it busy for ever (an array of 2^60 nulls), and it
takes what is none: negative indices of enums and unions, integers that do not fit. See DESIGN.md.

Source: https://avro.apache.org/docs/1.11.1/specification/#binary-encoding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pubsubd.schema.avro import Array, Enum, Fixed, Map, Primitive, Record, Type, Union
from pubsubd.schema.mismatch import Mismatch

#: Data and a position to the position behind the value; IndexError where the data ends too early.
Skip = Callable[[bytes, int], int]

_TOO_SHORT: Final = "Too little data to parse"


def binary_check(type_: Type) -> Callable[[bytes], None]:
    """A function that raises Mismatch unless its argument is exactly one datum of `type_`."""
    skip = _Compiler().skip(type_)

    def check(data: bytes) -> None:
        try:
            end = skip(data, 0)
        except IndexError:
            raise Mismatch(_TOO_SHORT) from None
        except RecursionError:
            raise Mismatch("The data is nested too deeply") from None
        if end < len(data):
            raise Mismatch("Too much data to parse")

    return check


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of 64 bits, and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 0x80:  # nearly all lengths and indices
        return (byte >> 1) ^ -(byte & 1), at
    raw, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise Mismatch("An integer has too many bytes")
    if raw >= 1 << 64:
        raise Mismatch("An integer does not fit into 64 bits")
    return (raw >> 1) ^ -(raw & 1), at


def _skip_null(data: bytes, at: int) -> int:
    return at


def _skip_boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise Mismatch("A boolean is neither 0 nor 1")
    return at + 1


def _skip_int(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    value, at = _number(data, at)
    if not -(2**31) <= value < 2**31:
        raise Mismatch("An int does not fit into 32 bits")
    return at


def _skip_long(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    return _number(data, at)[1]


def _skip_fixed(size: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        end = at + size
        if end > len(data):
            raise Mismatch(_TOO_SHORT)
        return end

    return skip


def _skip_bytes(data: bytes, at: int) -> int:
    length, at = _number(data, at)
    end = at + length
    if length < 0:
        raise Mismatch("A length is negative")
    if end > len(data):
        raise Mismatch(_TOO_SHORT)
    return end


def _skip_string(data: bytes, at: int) -> int:
    end = _skip_bytes(data, at)
    try:
        # The length in front is no part of the text: its bytes may be none.
        data[_number(data, at)[1] : end].decode()
    except UnicodeDecodeError:
        raise Mismatch("A string is not UTF-8") from None
    return end


_PRIMITIVES: Final[dict[str, Skip]] = {
    "null": _skip_null,
    "boolean": _skip_boolean,
    "int": _skip_int,
    "long": _skip_long,
    "float": _skip_fixed(4),
    "double": _skip_fixed(8),
    "bytes": _skip_bytes,
    "string": _skip_string,
}


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[Record, Skip] = {}  # a record may lie in itself

    def skip(self, type_: Type) -> Skip:
        if type_.is_nothing:
            return _skip_null
        match type_:
            case Primitive():
                return _PRIMITIVES[type_.name]
            case Fixed():
                return _skip_fixed(type_.size)
            case Enum():
                return _skip_enum(len(type_.symbols))
            case Array():
                return _skip_blocks(self.skip(type_.items), type_.items.is_nothing)
            case Map():
                skip_value = self.skip(type_.values)
                return _skip_blocks(lambda data, at: skip_value(data, _skip_string(data, at)), False)
            case Union():
                return _skip_union([self.skip(branch) for branch in type_.branches])
            case Record():
                return self._records.get(type_) or self._record(type_)

    def _record(self, record: Record) -> Skip:
        fields: list[Skip] = []

        def skip(data: bytes, at: int) -> int:
            for skip_field in fields:
                at = skip_field(data, at)
            return at

        self._records[record] = skip
        fields.extend([self.skip(field.type) for field in record.fields])
        return skip


def _skip_enum(count: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        index, at = _number(data, at)
        if not 0 <= index < count:
            raise Mismatch("Invalid enum index")
        return at

    return skip


def _skip_union(branches: list[Skip]) -> Skip:
    count = len(branches)

    def skip(data: bytes, at: int) -> int:
        index, at = _number(data, at)
        if not 0 <= index < count:
            raise Mismatch("Invalid union index")
        return branches[index](data, at)

    return skip


def _skip_blocks(skip_item: Skip, is_nothing: bool) -> Skip:
    """Items in blocks, each with their number in front; a negative one is followed by the block's size."""

    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = _number(data, at)
            if count == 0:
                return at
            if count < 0:
                count = -count
                _, at = _number(data, at)
            if not is_nothing:
                for _ in range(count):
                    at = skip_item(data, at)

    return skip
