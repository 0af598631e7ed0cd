"""Avro data in the JSON encoding: is it a value of a type?

The rules that people stumble over: a value of a union is null or an object with one key that names its type,
as `{"int": 3}`; every field has to be there, since defaults are for readers; keys that the record does not
have do no harm. The order of keys is free.

Source: https://avro.apache.org/docs/1.11.1/specification/#json-encoding
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

from pubsubd.schema.avro import Array, Enum, Fixed, Map, Primitive, Record, Type, Union
from pubsubd.schema.mismatch import Mismatch

Check = Callable[[Any], None]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def json_check(type_: Type) -> Callable[[bytes], None]:
    """A function that raises Mismatch unless its argument is one value of `type_`."""
    check_value = _Compiler().check(type_)

    def check(data: bytes) -> None:
        try:
            value = _decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise Mismatch(f"The data is no JSON: {error}") from None
        try:
            check_value(value)
        except RecursionError:
            raise Mismatch("The data is nested too deeply") from None

    return check


def _unfit(name: str, value: Any) -> Mismatch:
    kinds = {str: "a string", bool: "a boolean", dict: "an object", list: "an array", type(None): "null"}
    return Mismatch(f"Expected {name} but found {kinds.get(type(value), 'another number')}")


def _check_null(value: Any) -> None:
    if value is not None:
        raise _unfit("null", value)


def _check_boolean(value: Any) -> None:
    if type(value) is not bool:
        raise _unfit("boolean", value)


def _check_int(value: Any) -> None:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise _unfit("int", value)


def _check_long(value: Any) -> None:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _unfit("long", value)


def _check_float(value: Any) -> None:
    if type(value) is not float and type(value) is not int:
        raise _unfit("a floating point number", value)


def _check_bytes(value: Any) -> None:
    if type(value) is not str:
        raise _unfit("bytes", value)
    if not value.isascii() and max(value) > "\xff":
        raise Mismatch("Bytes hold a character above U+00FF")


def _check_string(value: Any) -> None:
    if type(value) is not str:
        raise _unfit("string", value)


_PRIMITIVES: Final[dict[str, Check]] = {
    "null": _check_null,
    "boolean": _check_boolean,
    "int": _check_int,
    "long": _check_long,
    "float": _check_float,
    "double": _check_float,
    "bytes": _check_bytes,
    "string": _check_string,
}


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[Record, Check] = {}  # a record may lie in itself

    def check(self, type_: Type) -> Check:
        match type_:
            case Primitive():
                return _PRIMITIVES[type_.name]
            case Fixed():
                return _check_fixed(type_)
            case Enum():
                return _check_enum(type_)
            case Array():
                return _check_array(self.check(type_.items))
            case Map():
                return _check_map(self.check(type_.values))
            case Union():
                return _check_union({branch.name: self.check(branch) for branch in type_.branches})
            case Record():
                return self._records.get(type_) or self._record(type_)

    def _record(self, record: Record) -> Check:
        fields: list[tuple[str, Check]] = []

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _unfit(record.name, value)
            for name, check_field in fields:
                if name not in value:
                    raise Mismatch(f"Field was not found in JSON object: {name}")
                try:
                    check_field(value[name])
                except Mismatch as mismatch:
                    raise mismatch.inside(name) from None

        self._records[record] = check
        fields.extend([(field.name, self.check(field.type)) for field in record.fields])
        return check


def _check_fixed(fixed: Fixed) -> Check:
    def check(value: Any) -> None:
        _check_bytes(value)
        if len(value) != fixed.size:
            raise Mismatch(f"{fixed.name} has {len(value)} bytes instead of {fixed.size}")

    return check


def _check_enum(enum: Enum) -> Check:
    symbols = frozenset(enum.symbols)

    def check(value: Any) -> None:
        if type(value) is not str:
            raise _unfit(enum.name, value)
        if value not in symbols:
            raise Mismatch(f"Invalid enum index: {value} is no symbol of {enum.name}")

    return check


def _check_array(check_item: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not list:
            raise _unfit("array", value)
        for item in value:
            check_item(item)

    return check


def _check_map(check_value: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _unfit("map", value)
        for one in value.values():
            check_value(one)

    return check


def _check_union(branches: dict[str, Check]) -> Check:
    has_null = "null" in branches

    def check(value: Any) -> None:
        if value is None:
            if not has_null:
                raise _unfit("a type of the union", value)
            return
        if type(value) is not dict or len(value) != 1:
            raise Mismatch("A value of a union is null or an object whose one key names the type")
        ((name, one),) = value.items()
        if name == "null" or name not in branches:
            raise Mismatch(f"The union has no type {name}")
        branches[name](one)

    return check
