"""From bytes to values: each decision is taken by the next bytes, and is zero when there are none left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}
_EDGES = (
    1,
    5,
    9,
    10,
    59,
    60,
    600,
    601,
    1000,
    1001,
    3600,
    86_400,
    604_800,
    2_678_400,
    2**31 - 1,
    2**40,
    2**63 - 1,
)
_FIELDS_MAX = 8
_DEPTH_MAX = 5
# As many as a list needs to pass the largest bound on one: 1000 messages.
_MANY = 1001
_LONG = 3000
_BYTES_MAX = 200_000


class Source:
    """Reads an input front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._room = _BYTES_MAX

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        if self.is_empty:
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1; at most 256 of them."""
        return self.byte() % count

    def one(self, these: Sequence[Any]) -> Any:
        return these[self.below(len(these))]

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def blob(self) -> bytes:
        """Up to 254 of the next bytes, or all of them."""
        count = self.byte()
        return self.rest() if count == 255 else self.take(count)

    def number(self, low: int, high: int) -> int:
        """A small one, one at an edge, or any; `low` and `high` are edges too."""
        kind = self.byte()
        if kind < 128:
            value = kind - 8
        elif kind < 200:
            value = self.one((low, high, low + 1, high - 1, *_EDGES)) * (1 if kind < 180 else -1)
        else:
            value = int.from_bytes(self.take(8), "little", signed=True)
        return min(max(value, low), high)

    def text(self, known: Sequence[str]) -> str:
        """One of the `known` texts, whole or altered, or any other."""
        kind = self.byte()
        if kind < 160 and known:
            return str(self.one(known))
        if kind < 216 and known:
            return self._altered(str(self.one(known)))
        if kind < 220:
            return self.one(("x", "é", "\n", "\U0001f600")) * _LONG
        return self.blob().decode(errors="replace")

    def _altered(self, text: str) -> str:
        for _ in range(1 + self.below(3)):
            at = self.byte() * 256 + self.byte()
            at = at % (len(text) + 1)
            match self.below(5):
                case 0:
                    text = text[:at] + text[at + 1 :]
                case 1:
                    text = text[:at] + chr(self.byte()) + text[at:]
                case 2:
                    text = text[:at] + chr(self.byte()) + text[at + 1 :]
                case 3:
                    text = text[:at] + text[at : at + 40] + text[at:]
                case _:
                    text = text[:at]
        return text

    # -- messages -----------------------------------------------------------------------------------------

    def fill(self, message: Any, known: Sequence[str], depth: int = _DEPTH_MAX) -> Any:
        """Set some fields of `message`, with `known` texts where they are texts."""
        fields = message.DESCRIPTOR.fields
        if not fields or not depth or message.DESCRIPTOR.full_name == "google.protobuf.Struct":
            return message
        for _ in range(self.below(_FIELDS_MAX)):
            self._set(message, self.one(fields), known, depth)
        return message

    def _set(self, message: Any, field: FieldDescriptor, known: Sequence[str], depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            for number in range(self._how_many()):
                entries[self.text(known) + str(number)] = self.text(known)
        elif field.is_repeated:
            self._append(getattr(message, field.name), field, known, depth)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            self.fill(part, known, depth - 1)
        else:
            setattr(message, field.name, self._value(field, known))

    def _append(self, values: Any, field: FieldDescriptor, known: Sequence[str], depth: int) -> None:
        count = self._how_many()
        if field.message_type is None:
            values.extend([self._value(field, known)] * max(0, count - 3))
            values.extend([self._value(field, known) for _ in range(min(count, 3))])
        else:
            for _ in range(min(count, 3)):
                self.fill(values.add(), known, depth - 1)
            if count > 3:
                first: Message = values[0]
                # The same, often: it must not become large.
                copies = min(count - 3, self._room // (1 + first.ByteSize()))
                self._room -= copies * first.ByteSize()
                values.extend([first] * copies)

    def _how_many(self) -> int:
        kind = self.byte()
        return _MANY if kind >= 252 else kind % 4

    def _value(self, field: FieldDescriptor, known: Sequence[str]) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.text(known)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.blob()
        if field.type == FieldDescriptor.TYPE_BOOL:
            return bool(self.below(2))
        low, high = _INTEGERS[field.type]
        return self.number(low, high)
