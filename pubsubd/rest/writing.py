"""From a message to its JSON, and a refusal to the body of an error.

Pure. Fields stand in the order of their definition and not of their numbers, as the service writes them,
which is why the library's own writer will not do.

Source: https://protobuf.dev/programming-guides/json, https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pubsubd.wire.pool import is_repeated

# A FieldDescriptor. Its type says of most of what it holds that it may be None.
Field = Any

#: The canonical codes by number: their names, and the statuses of HTTP that they have.
CODES: Final = {
    0: ("OK", 200),
    1: ("CANCELLED", 499),
    2: ("UNKNOWN", 500),
    3: ("INVALID_ARGUMENT", 400),
    4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404),
    6: ("ALREADY_EXISTS", 409),
    7: ("PERMISSION_DENIED", 403),
    8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 400),
    10: ("ABORTED", 409),
    11: ("OUT_OF_RANGE", 400),
    12: ("UNIMPLEMENTED", 501),
    13: ("INTERNAL", 500),
    14: ("UNAVAILABLE", 503),
    15: ("DATA_LOSS", 500),
    16: ("UNAUTHENTICATED", 401),
}
HTTP_STATUS: Final = dict(CODES.values())

_WELL_KNOWN: Final = {
    f"google.protobuf.{name}"
    for name in ("Duration", "FieldMask", "ListValue", "Struct", "Timestamp", "Value")
}
_INT64: Final = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)


def text_of(tree: Any, pretty: bool = True) -> str:
    """JSON of a tree, with a line break behind it."""
    if pretty:
        return json.dumps(tree, ensure_ascii=False, indent=2) + "\n"
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")) + "\n"


def tree_of(message: Message, enums_as_numbers: bool = False) -> Any:
    """What JSON says of a message; fields with default values are left out."""
    if message.DESCRIPTOR.full_name in _WELL_KNOWN:
        return json_format.MessageToDict(message)
    tree: dict[str, Any] = {}
    there = {field.number: value for field, value in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        if field.number in there:
            tree[field.json_name] = _field(field, there[field.number], enums_as_numbers)
    return tree


def _field(field: Field, value: Any, enums_as_numbers: bool) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _single(entry, value[key], enums_as_numbers) for key in sorted(value)}
    if is_repeated(field):
        return [_single(field, each, enums_as_numbers) for each in value]
    return _single(field, value, enums_as_numbers)


def _single(field: Field, value: Any, enums_as_numbers: bool) -> Any:
    if field.message_type is not None:
        return tree_of(value, enums_as_numbers)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b64encode(value).decode("ascii")
    if field.type == FieldDescriptor.TYPE_ENUM and not enums_as_numbers:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type in _INT64:
        return str(value)
    return value


def error_tree(status: str, message: str, details: list[Any] | None = None) -> dict[str, Any]:
    """The body of a refusal; `status` is the name of a canonical code."""
    error: dict[str, Any] = {"code": HTTP_STATUS[status], "message": message, "status": status}
    if details:
        error["details"] = details
    return {"error": error}
