"""Any message at all: a hypothesis strategy made from the definition of a message.

Random bytes rarely parse into anything. These messages are well formed on the wire, and hostile in every
field: long and foreign strings, numbers at the ends of their range, enum values that nobody defined.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "abc",
            "v1",
            "gs://b",
            "f",
            "projects/p/topics/abc",
            "projects/p/subscriptions/abc",
            "projects/p/schemas/abc",
            "https://example.com/x",
            "http://[::1",
            "a.b.c",
            "attributes:a",
            "\r\n",
            "x" * 3000,
        ]
    ),
    st.text(max_size=20),
)
NUMBERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_ENUM: (0, 2**31 - 1),
}


def any_message(kind: type[Message], depth: int = 4) -> st.SearchStrategy[Any]:
    """Messages of `kind` with any of their fields set to anything, nested messages `depth` levels down."""
    return _fields(kind.DESCRIPTOR, depth).map(lambda fields: kind(**fields))


def _fields(descriptor: Descriptor, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    if descriptor.full_name == "google.protobuf.Struct":
        return st.just({})
    strategies = {
        field.name: _values(field, depth)
        for field in descriptor.fields
        if depth or field.message_type is None
    }
    return st.fixed_dictionaries({}, optional=strategies)


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    one = _value(field, depth)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return _fields(field.message_type, depth - 1)
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=10)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    low, high = NUMBERS[field.type]
    return st.sampled_from([low, high]) | st.integers(-2, 700).filter(lambda number: number >= low)
