"""A quick look at JSON for a Protocol Buffer message: does it plainly fit?

True is the word of json_format as well; False means "ask json_format", not "refuse". It takes what most data
is made of, in the form that libraries write. json_format builds the message field by field in Python, and
looks through every text for surrogates; see DESIGN.md for what that costs.

A message becomes a function of its value and of how deep it lies, as in `avro_json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

Fits = Callable[[Any, int], bool]

# Half of what json_format takes.
_DEPTH_MAX: Final = 50
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def plain_fit(root: Descriptor) -> Callable[[Any], bool]:
    """Whether a value, decoded without double keys and single surrogates, is plainly a message of `root`."""
    fits = _Compiler().message(root)
    return lambda value: fits(value, 0)


def _boolean(value: Any, depth: int) -> bool:
    return type(value) is bool


def _string(value: Any, depth: int) -> bool:
    return type(value) is str


def _bytes(value: Any, depth: int) -> bool:
    return type(value) is str and _BASE64.fullmatch(value) is not None


def _never(value: Any, depth: int) -> bool:
    return False


def _integer(low: int, high: int) -> Fits:
    return lambda value, depth: type(value) is int and low <= value <= high


def _long(low: int, high: int, text: re.Pattern[str]) -> Fits:
    def fits(value: Any, depth: int) -> bool:
        # Libraries write these as texts, since JavaScript's numbers cannot hold them.
        if type(value) is str:
            return text.fullmatch(value) is not None
        return type(value) is int and low <= value <= high

    return fits


def _floating(bound: float) -> Fits:
    return lambda value, depth: type(value) in (float, int) and -bound < value < bound


_SCALARS: Final[dict[int, Fits]] = {
    FieldDescriptor.CPPTYPE_BOOL: _boolean,
    FieldDescriptor.CPPTYPE_DOUBLE: _floating(1e300),
    FieldDescriptor.CPPTYPE_FLOAT: _floating(1e38),
    FieldDescriptor.CPPTYPE_INT32: _integer(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: _long(-(2**63), 2**63 - 1, re.compile(r"-?[0-9]{1,18}")),
    FieldDescriptor.CPPTYPE_STRING: _string,
    FieldDescriptor.CPPTYPE_UINT32: _integer(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: _long(0, 2**64 - 1, re.compile(r"[0-9]{1,18}")),
}


class _Compiler:
    def __init__(self) -> None:
        self._messages: dict[str, Fits] = {}  # a message may lie in itself

    def message(self, message: Descriptor) -> Fits:
        if message.full_name.startswith("google.protobuf."):
            return _never  # these have forms of their own
        return self._messages.get(message.full_name) or self._message(message)

    def _message(self, message: Descriptor) -> Fits:
        fields: dict[str, Fits] = {}
        oneofs: dict[str, str] = {}

        def fits(value: Any, depth: int) -> bool:
            if type(value) is not dict or depth > _DEPTH_MAX:
                return False
            for key, one in value.items():
                field_fits = fields.get(key)
                if field_fits is None or not field_fits(one, depth):
                    return False
            if not oneofs:
                return True
            chosen = [oneofs[key] for key in value if key in oneofs]
            return len(chosen) < 2 or len(set(chosen)) == len(chosen)

        self._messages[message.full_name] = fits
        for field in message.fields:
            fields[field.name] = fields[field.json_name] = self._field(field)
            oneof = field.containing_oneof
            if oneof is not None and len(oneof.fields) > 1:
                oneofs[field.name] = oneofs[field.json_name] = oneof.name
        return fits

    def _field(self, field: FieldDescriptor) -> Fits:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key = inner.fields_by_name["key"]
            if key.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                return _never
            return _all_values(self._one(inner.fields_by_name["value"]))
        return _all_items(self._one(field)) if is_repeated(field) else self._one(field)

    def _one(self, field: FieldDescriptor) -> Fits:
        if field.message_type is not None:
            fits = self.message(field.message_type)
            return lambda value, depth: fits(value, depth + 1)
        if field.enum_type is not None:
            names = frozenset(field.enum_type.values_by_name)
            return lambda value, depth: type(value) is str and value in names
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes
        return _SCALARS[field.cpp_type]


def _all_items(fits: Fits) -> Fits:
    def all_fit(value: Any, depth: int) -> bool:
        if type(value) is not list:
            return False
        for item in value:  # noqa: SIM110 (a generator costs as much as the look itself)
            if not fits(item, depth):
                return False
        return True

    return all_fit


def _all_values(fits: Fits) -> Fits:
    items_fit = _all_items(fits)
    return lambda value, depth: type(value) is dict and items_fit(list(value.values()), depth)


def is_repeated(field: Any) -> bool:
    """Newer versions of protobuf have a property for it, older ones the label that came before."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)
