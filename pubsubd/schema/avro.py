"""Avro definitions: from JSON to types whose names are resolved.

The rules of Avro 1.11. What the service does not use is dropped: documentation, the order of fields, and
logical types, which only say how a value is to be understood. fastavro is asked as well, but takes nearly
anything (names with spaces, a field twice, fixed types of a negative size), so the rules are here.

Source: https://avro.apache.org/docs/1.11.1/specification/#schema-declaration and Schema.definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from pubsubd.model import limits
from pubsubd.schema.mismatch import Mismatch

# Every type says whether all its values take no bytes in the binary encoding (`is_nothing`): any number of
# them follows from nothing, so nobody must go through them one by one.
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERS: Final = ("ascending", "descending", "ignore")
_MISSING: Final = object()


class Primitive:
    def __init__(self, name: str) -> None:
        self.name = name  # as unions and refusals call the type
        self.is_nothing = name == "null"


class Field:
    def __init__(self, name: str, type_: Type, has_default: bool, aliases: Sequence[str]) -> None:
        self.name = name
        self.type = type_
        self.has_default = has_default
        self.aliases = aliases


class Record:
    def __init__(self, name: str, aliases: Sequence[str]) -> None:
        self.name = name  # in full, with its namespace; so are the aliases
        self.aliases = aliases
        self.fields: list[Field] = []  # filled later, since it may hold the record itself
        self.is_nothing = False


class Enum:
    is_nothing = False

    def __init__(self, name: str, aliases: Sequence[str], symbols: Sequence[str], has_default: bool) -> None:
        self.name = name
        self.aliases = aliases
        self.symbols = symbols
        self.has_default = has_default


class Fixed:
    def __init__(self, name: str, aliases: Sequence[str], size: int) -> None:
        self.name = name
        self.aliases = aliases
        self.size = size
        self.is_nothing = size == 0


class Array:
    name = "array"
    is_nothing = False

    def __init__(self, items: Type) -> None:
        self.items = items


class Map:
    name = "map"
    is_nothing = False

    def __init__(self, values: Type) -> None:
        self.values = values


class Union:
    name = "union"
    is_nothing = False

    def __init__(self, branches: Sequence[Type]) -> None:
        self.branches = branches


Type = Primitive | Record | Enum | Fixed | Array | Map | Union


def parse(definition: str) -> Type:
    """The type that `definition` declares.

    Raises:
        Mismatch: it is no Avro schema.
    """
    try:
        declared = json.loads(definition, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"it is no JSON: {error}") from None
    found = _Parser().type(declared, "", 0)
    try:
        # Of our copy, since it leaves its marks in what it is given.
        parse_schema(declared, _write_hint=False)
    except (SchemaParseException, UnknownType) as error:
        raise Mismatch(str(error)) from None
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


class _Parser:
    """Walks over a declaration in the order of the text, in which a type stands before what refers to it."""

    def __init__(self) -> None:
        self._named: dict[str, Record | Enum | Fixed] = {}

    def type(self, declared: Any, namespace: str, depth: int) -> Type:
        if depth > limits.SCHEMA_DEPTH_MAX:
            raise Mismatch(f"types lie in each other more than {limits.SCHEMA_DEPTH_MAX} times")
        if isinstance(declared, str):
            return self._reference(declared, namespace)
        if isinstance(declared, list):
            return self._union(declared, namespace, depth)
        if not isinstance(declared, dict):
            raise Mismatch(f"{_shown(declared)} is no type")
        kind = declared.get("type", _MISSING)
        if kind is _MISSING:
            raise Mismatch(f"{_shown(declared)} has no type")
        match kind:
            case "record" | "error":
                return self._record(declared, namespace, depth)
            case "enum":
                return self._enum(declared, namespace)
            case "fixed":
                return self._fixed(declared, namespace)
            case "array":
                return Array(self.type(_required(declared, "items"), namespace, depth + 1))
            case "map":
                return Map(self.type(_required(declared, "values"), namespace, depth + 1))
            case str():
                return self._reference(kind, namespace)
        raise Mismatch(f"{_shown(kind)} is no name of a type")

    def _reference(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full)
        if found is None:
            raise Mismatch(f"unknown type {_shown(name)}")
        return found

    def _union(self, declared: list[Any], namespace: str, depth: int) -> Union:
        branches = [self.type(one, namespace, depth + 1) for one in declared]
        if not branches:
            raise Mismatch("a union has no types")
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise Mismatch("a union lies directly in another one")
            if branch.name in seen:
                raise Mismatch(f"a union has {branch.name} twice")
            seen.add(branch.name)
        return Union(branches)

    def _record(self, declared: dict[str, Any], namespace: str, depth: int) -> Record:
        name, inner = self._name(declared, namespace)
        record = Record(name, _aliases(declared, inner))
        self._named[name] = record
        fields = _required(declared, "fields")
        if not isinstance(fields, list):
            raise Mismatch(f"the fields of {name} are no list")
        seen: set[str] = set()
        for field in fields:
            if not isinstance(field, dict):
                raise Mismatch(f"a field of {name} is {_shown(field)}")
            field_name = _required(field, "name")
            if not isinstance(field_name, str) or _NAME.fullmatch(field_name) is None:
                raise Mismatch(f"{_shown(field_name)} is no name of a field")
            if field_name in seen:
                raise Mismatch(f"{name} has the field {field_name} twice")
            seen.add(field_name)
            if field.get("order", "ascending") not in _ORDERS:
                raise Mismatch(f"{_shown(field['order'])} is no order of a field")
            type_ = self.type(_required(field, "type"), inner, depth + 1)
            if "default" in field and not _is_default(type_, field["default"]):
                raise Mismatch(f"{_shown(field['default'])} is no default of the field {field_name}")
            aliases = _names(field, "aliases")
            record.fields.append(Field(field_name, type_, "default" in field, aliases))
        record.is_nothing = all(field.type.is_nothing for field in record.fields)
        return record

    def _enum(self, declared: dict[str, Any], namespace: str) -> Enum:
        name, inner = self._name(declared, namespace)
        symbols = _required(declared, "symbols")
        if not isinstance(symbols, list):
            raise Mismatch(f"the symbols of {name} are no list")
        for symbol in symbols:
            if not isinstance(symbol, str) or _NAME.fullmatch(symbol) is None:
                raise Mismatch(f"{_shown(symbol)} is no symbol")
        if len(set(symbols)) < len(symbols):
            raise Mismatch(f"{name} has a symbol twice")
        if "default" in declared and declared["default"] not in symbols:
            raise Mismatch(f"the default of {name} is none of its symbols")
        enum = Enum(name, _aliases(declared, inner), symbols, "default" in declared)
        self._named[name] = enum
        return enum

    def _fixed(self, declared: dict[str, Any], namespace: str) -> Fixed:
        name, inner = self._name(declared, namespace)
        size = _required(declared, "size")
        if type(size) is not int or size < 0:
            raise Mismatch(f"{_shown(size)} is no size of {name}")
        fixed = Fixed(name, _aliases(declared, inner), size)
        self._named[name] = fixed
        return fixed

    def _name(self, declared: dict[str, Any], namespace: str) -> tuple[str, str]:
        """The full name of a type, and the namespace of the names in it."""
        name = _required(declared, "name")
        own = declared.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            raise Mismatch(f"{_shown(name)} is no name of a type")
        full = name if "." in name or not own else f"{own}.{name}"
        *_, last = parts = full.split(".")
        if any(_NAME.fullmatch(part) is None for part in parts) or last in PRIMITIVES:
            raise Mismatch(f"{_shown(full)} is no name of a type")
        if full in self._named:
            raise Mismatch(f"the type {full} is defined twice")
        return full, full.rpartition(".")[0]


def _required(declared: Mapping[str, Any], key: str) -> Any:
    if key not in declared:
        raise Mismatch(f"{_shown(declared)} has no {key}")
    return declared[key]


def _names(declared: Mapping[str, Any], key: str) -> list[str]:
    names = declared.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Mismatch(f"the {key} {_shown(names)} are no names")
    return names


def _aliases(declared: Mapping[str, Any], namespace: str) -> list[str]:
    """In full: relative to the namespace of the type that has them."""
    names = _names(declared, "aliases")
    return [name if "." in name or not namespace else f"{namespace}.{name}" for name in names]


def _shown(declared: Any) -> str:
    text = json.dumps(declared)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_default(type_: Type, value: Any) -> bool:
    """Defaults have a notation of their own: that of JSON data, but a union is the value of its first type.

    Source: https://avro.apache.org/docs/1.11.1/specification/#schema-record (default).
    """
    match type_:
        case Primitive():
            return _is_primitive_default(type_.name, value)
        case Union():
            return _is_default(type_.branches[0], value)
        case Array():
            return isinstance(value, list) and all(_is_default(type_.items, one) for one in value)
        case Map():
            return isinstance(value, dict) and all(_is_default(type_.values, one) for one in value.values())
        case Enum():
            return isinstance(value, str) and value in type_.symbols
        case Fixed():
            return _is_bytes(value) and len(value) == type_.size
        case Record():
            return isinstance(value, dict) and all(
                _is_default(field.type, value[field.name]) if field.name in value else field.has_default
                for field in type_.fields
            )


def _is_primitive_default(name: str, value: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return type(value) is int and -(2**31) <= value < 2**31
        case "long":
            return type(value) is int and -(2**63) <= value < 2**63
        case "float" | "double":
            return type(value) in (int, float)
        case "bytes":
            return _is_bytes(value)
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(ord(char) < 256 for char in value)
