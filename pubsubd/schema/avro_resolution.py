"""Whether what was written with one Avro schema can be read with another.

Source: https://avro.apache.org/docs/1.11.1/specification/#schema-resolution
"""

from __future__ import annotations

from typing import Final

from pubsubd.schema.avro import Array, Enum, Field, Fixed, Map, Primitive, Record, Type, Union
from pubsubd.schema.mismatch import Mismatch

#: What a reader takes for what was written, beside the same type.
_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


def check_readable(reader: Type, writer: Type) -> None:
    """Raise Mismatch if `reader` cannot read everything that `writer` writes."""
    try:
        _Pairs().check(reader, writer)
    except RecursionError:
        raise Mismatch("types refer to each other too deeply") from None


class _Pairs:
    def __init__(self) -> None:
        # Records that are being looked at or were found to go together: records may lie in themselves.
        self._seen: set[tuple[Record, Record]] = set()
        # They do not, whatever is assumed of others; or the same question could be asked without end.
        self._failed: dict[tuple[Record, Record], Mismatch] = {}

    def check(self, reader: Type, writer: Type) -> None:
        if isinstance(writer, Union):
            for branch in writer.branches:
                self.check(reader, branch)
            return
        match reader:
            case Union():
                self._check_branches(reader, writer)
            case Primitive():
                if not isinstance(writer, Primitive) or (
                    writer.name != reader.name and writer.name not in _PROMOTIONS.get(reader.name, ())
                ):
                    raise _other(reader, writer)
            case Array():
                if not isinstance(writer, Array):
                    raise _other(reader, writer)
                self.check(reader.items, writer.items)
            case Map():
                if not isinstance(writer, Map):
                    raise _other(reader, writer)
                self.check(reader.values, writer.values)
            case Fixed():
                if not isinstance(writer, Fixed) or not _is_same_name(reader, writer):
                    raise _other(reader, writer)
                if reader.size != writer.size:
                    raise Mismatch(f"{reader.name} has {writer.size} bytes and not {reader.size}")
            case Enum():
                if not isinstance(writer, Enum) or not _is_same_name(reader, writer):
                    raise _other(reader, writer)
                if not reader.has_default and (lost := set(writer.symbols).difference(reader.symbols)):
                    raise Mismatch(f"{reader.name} lacks the symbol {min(lost)}, and has no default")
            case Record():
                if not isinstance(writer, Record) or not _is_same_name(reader, writer):
                    raise _other(reader, writer)
                self._check_record(reader, writer)

    def _check_branches(self, reader: Union, writer: Type) -> None:
        found: Mismatch | None = None
        # Those of its own name first: what is wrong with them is what people want to know.
        for branch in sorted(reader.branches, key=lambda branch: branch.name != writer.name):
            seen = set(self._seen)
            try:
                self.check(branch, writer)
            except Mismatch as mismatch:
                self._seen = seen  # what was assumed on the way need not be true
                found = found or mismatch
            else:
                return
        raise found or _other(reader, writer)

    def _check_record(self, reader: Record, writer: Record) -> None:
        pair = reader, writer
        if pair in self._seen:
            return
        if pair in self._failed:
            raise self._failed[pair]
        self._seen.add(pair)
        try:
            self._check_fields(reader, writer)
        except Mismatch as mismatch:
            self._failed[pair] = mismatch
            raise

    def _check_fields(self, reader: Record, writer: Record) -> None:
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            other = _written_as(field, written)
            if other is not None:
                try:
                    self.check(field.type, other.type)
                except Mismatch as mismatch:
                    raise mismatch.inside(field.name) from None
            elif not field.has_default:
                raise Mismatch(f"the field {field.name} is in one of the two only, and has no default there")


def _written_as(field: Field, written: dict[str, Field]) -> Field | None:
    names = [name for name in (field.name, *field.aliases) if name in written]
    return written[names[0]] if names else None


def _is_same_name(reader: Record | Enum | Fixed, writer: Record | Enum | Fixed) -> bool:
    """Namespaces do not count, except in aliases."""
    own = reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2]
    return own or writer.name in reader.aliases


def _other(reader: Type, writer: Type) -> Mismatch:
    return Mismatch(f"{writer.name} cannot be read as {reader.name}")
