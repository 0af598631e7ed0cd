"""From JSON and query parameters to a request, with everything that is wrong with them found at once.

Pure. The library's own parser stops at the first mistake, and does not say where it stands, so the
walk over messages is ours. Names may be those of JSON or of the definition, and `null` is absent.

Source: https://protobuf.dev/programming-guides/json, google/api/http.proto.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pubsubd.model.errors import echo
from pubsubd.rest.malformed import Malformed, Violation, bad_json, bad_value, unknown_name, unknown_parameter
from pubsubd.wire.pool import is_repeated

# A FieldDescriptor. Its type says of most of what it holds that it may be None.
Field = Any

_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_UPPER: Final = re.compile(r"[A-Z]")
_URL_SAFE: Final = str.maketrans("-_", "+/")
#: How much of a wrong value is written out before it is cut for the message.
_SHOWN_CHARS_MAX: Final = 1000

_TYPES: Final = {
    FieldDescriptor.TYPE_BOOL: "TYPE_BOOL",
    FieldDescriptor.TYPE_BYTES: "TYPE_BYTES",
    FieldDescriptor.TYPE_DOUBLE: "TYPE_DOUBLE",
    FieldDescriptor.TYPE_FLOAT: "TYPE_FLOAT",
    FieldDescriptor.TYPE_INT32: "TYPE_INT32",
    FieldDescriptor.TYPE_INT64: "TYPE_INT64",
    FieldDescriptor.TYPE_STRING: "TYPE_STRING",
}


class _Wrong(ValueError):
    """A value is not of the type of its field; the text may say more."""


# --- the body ---------------------------------------------------------------------------------------------


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that `body` is; nothing at all is an empty one.

    Raises:
        Malformed: it is no JSON, or no object.
    """
    try:
        text = body.decode("utf-8-sig")
        tree = json.loads(text, parse_constant=_refuse_constant) if text.strip() else {}
    except UnicodeDecodeError as error:
        raise Malformed([bad_json(f"The body is not UTF-8 (byte {error.start})")]) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed([bad_json(f"{error.msg} ({where})")]) from None
    except (ValueError, RecursionError) as error:
        raise Malformed([bad_json(str(error).partition(";")[0])]) from None
    if not isinstance(tree, dict):
        raise Malformed([bad_json("Root element must be a message")])
    return tree


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# --- the request ------------------------------------------------------------------------------------------


def read_request(
    request_class: type[Message],
    from_path: Mapping[str, Any],
    body_field: str,
    body: Mapping[str, Any],
    parameters: Iterable[tuple[str, str]],
) -> Message:
    """The request that a path, a body and query parameters make together.

    What the path says counts more than what the body says, and that more than a parameter.

    Raises:
        Malformed: with all that is wrong.
    """
    request = request_class()
    reader = _Reader()
    reader.read_parameters(request, parameters)
    if body_field == "*":
        reader.fill(request, body, "")
    elif body_field:
        # Wherever a mistake stands in it, its path begins at the field that the body is.
        reader.fill_field(request, body_field, body)
    reader.fill(request, from_path, "")
    if reader.violations:
        raise Malformed(reader.violations)
    return request


class _Reader:
    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def fill(self, message: Message, tree: Mapping[str, Any], at: str) -> None:
        """Set the fields of `message`, which stands `at` this path, that `tree` names."""
        fields = _fields(message.DESCRIPTOR)
        chosen: dict[str, str] = {}  # of each oneof
        for name, value in tree.items():
            field = fields.get(name)
            if field is None:
                self.violations.append(unknown_name(name, at))
                continue
            if value is None:
                continue
            path = f"{at}.{field.name}" if at else field.name
            oneof = field.containing_oneof
            if oneof is not None and chosen.setdefault(oneof.name, field.name) != field.name:
                self.violations.append(
                    Violation(
                        at,
                        f"Invalid value at '{at}': oneof field '{oneof.name}' is already set. "
                        f"Cannot set '{field.name}'",
                    )
                )
                continue
            self._set(message, field, value, path)

    def fill_field(self, message: Message, name: str, tree: Mapping[str, Any]) -> None:
        self.fill(message, {name: tree}, "")

    def _set(self, message: Message, field: Field, value: Any, path: str) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._set_map(message, field, value, path)
        elif is_repeated(field):
            message.ClearField(field.name)
            self._set_list(message, field, value, path)
        elif field.message_type is not None:
            self._set_message(getattr(message, field.name), value, path)
        else:
            self._guarded(field, value, path, partial(setattr, message, field.name))

    def _set_list(self, message: Message, field: Field, value: Any, path: str) -> None:
        if not isinstance(value, list):
            self.violations.append(bad_value(path, f"repeated {_expected(field)}", _shown(value)))
            return
        items = getattr(message, field.name)
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            if field.message_type is not None:
                self._set_message(items.add(), item, where)
            else:
                self._guarded(field, item, where, items.append)

    def _set_map(self, message: Message, field: Field, value: Any, path: str) -> None:
        message.ClearField(field.name)
        entry = field.message_type
        key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if not isinstance(value, dict):
            expected = f"map<{_expected(key_field)}, {_expected(value_field)}>"
            self.violations.append(bad_value(path, expected, _shown(value)))
            return
        target = getattr(message, field.name)
        for key, item in value.items():
            where = f"{path}[{echo(key)}]"
            if value_field.message_type is not None:
                self._set_message(target[key], item, where)
            else:
                self._guarded(value_field, item, where, partial(target.__setitem__, key))

    def _set_message(self, target: Message, value: Any, path: str) -> None:
        target.SetInParent()
        name = target.DESCRIPTOR.full_name
        try:
            if name in _WRITTEN_AS_TEXT:
                if not isinstance(value, str):
                    raise _Wrong
                _WRITTEN_AS_TEXT[name](target, value)
            elif name in _FREE_FORM:
                json_format.ParseDict(value, target)
            elif isinstance(value, dict):
                self.fill(target, value, path)
            else:
                raise _Wrong
        except (_Wrong, ValueError, json_format.ParseError, RecursionError):
            self.violations.append(bad_value(path, f"type.googleapis.com/{name}", _shown(value)))

    def _guarded(self, field: Field, value: Any, path: str, use: Callable[[Any], None]) -> None:
        try:
            use(_scalar(field, value))
        # What protobuf itself refuses, such as half of a surrogate pair.
        except (_Wrong, ValueError, TypeError) as error:
            why = str(error) if isinstance(error, _Wrong) else ""
            self.violations.append(bad_value(path, _expected(field), _shown(value), why))

    def read_parameters(self, request: Message, parameters: Iterable[tuple[str, str]]) -> None:
        """Set the fields of `request` that query parameters name, as in `options.requestedPolicyVersion`."""
        for name, text in parameters:
            message, field = request, None
            at: list[str] = []
            for part in name.split("."):
                if field is not None:
                    message = getattr(message, field.name)
                field = _fields(message.DESCRIPTOR).get(part)
                if field is None:
                    break
                at.append(field.name)
                last = len(at) == name.count(".") + 1
                if not last and (field.message_type is None or is_repeated(field)):
                    field = None
                    break
            if field is None or not _is_parameter(field):
                self.violations.append(unknown_parameter(name))
            elif field.message_type is not None:
                self._set_message(getattr(message, field.name), text, ".".join(at))
            elif is_repeated(field):
                self._guarded(
                    field, _from_text(field, text), ".".join(at), getattr(message, field.name).append
                )
            else:
                self._set(message, field, _from_text(field, text), ".".join(at))


def _is_parameter(field: Field) -> bool:
    if field.message_type is None:
        return True
    return not is_repeated(field) and field.message_type.full_name in _WRITTEN_AS_TEXT


def _from_text(field: Field, text: str) -> Any:
    """A query parameter in place of the JSON value that it stands for."""
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"true": True, "false": False}.get(text, text)
    if field.type == FieldDescriptor.TYPE_ENUM and _INTEGER.fullmatch(text):
        return int(text)
    return text


@cache
def _fields(descriptor: Descriptor) -> dict[str, Field]:
    """By both names that each may go by."""
    by_name = {field.name: field for field in descriptor.fields}
    return by_name | {field.json_name: field for field in descriptor.fields}


# --- single values ----------------------------------------------------------------------------------------


def _scalar(field: Field, value: Any) -> Any:
    """What `value` of JSON is for `field`.

    Raises:
        _Wrong: nothing.
    """
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        if isinstance(value, str):
            return value
    elif kind == FieldDescriptor.TYPE_BYTES:
        if isinstance(value, str):
            return _decoded(value)
    elif kind == FieldDescriptor.TYPE_BOOL:
        if isinstance(value, bool):
            return value
    elif kind == FieldDescriptor.TYPE_ENUM:
        return _enum(field, value)
    elif kind in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64):
        return _integer(value, _INT32 if kind == FieldDescriptor.TYPE_INT32 else _INT64)
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        return _number(value)
    raise _Wrong


def _decoded(text: str) -> bytes:
    """Base64 of either alphabet, padded or not."""
    bare = text.rstrip("=").translate(_URL_SAFE)
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _Wrong("Base64 decoding failed") from None


def _integer(value: Any, allowed: range) -> int:
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole or (isinstance(value, str) and _INTEGER.fullmatch(value)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise _Wrong
    return value


def _number(value: float | str) -> float:
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        try:
            value = float(value)
        except ValueError:
            raise _Wrong from None
        if not math.isfinite(value):
            raise _Wrong
    return float(value)


def _enum(field: Field, value: Any) -> int:
    if isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        if known is not None:
            return int(known.number)
        raise _Wrong
    return _integer(value, _INT32)


def _timestamp(target: Any, text: str) -> None:
    target.FromJsonString(text)


def _mask(target: Any, text: str) -> None:
    """Paths of either spelling."""
    target.Clear()
    paths = [path.strip() for path in text.split(",")]
    target.paths.extend(_UPPER.sub(lambda found: f"_{found[0].lower()}", path) for path in paths if path)


_WRITTEN_AS_TEXT: Final[dict[str, Callable[[Any, str], None]]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _timestamp,
    "google.protobuf.FieldMask": _mask,
}
_FREE_FORM: Final = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}


def _expected(field: Field) -> str:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return f"type.googleapis.com/{field.enum_type.full_name}"
    if field.message_type is not None:
        return f"type.googleapis.com/{field.message_type.full_name}"
    return _TYPES[field.type]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        value = value[:_SHOWN_CHARS_MAX]
    elif isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    return json.dumps(value)
