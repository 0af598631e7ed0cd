"""Protocol Buffer definitions, compiled: whether a message fits one, and whether two go together.

What a schema says is a FileDescriptorSet, which the compiler makes of its text, or which was sent. Each has a
pool to itself, since two schemas, or two revisions of one, may use the same names.

Source: Schema.definition, CompiledProtoSchema, https://protobuf.dev/programming-guides/json/
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    Edition,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pubsubd.schema.mismatch import Mismatch
from pubsubd.schema.proto_json import is_repeated, plain_fit

_TYPE_NAMES: Final = {
    value.number: value.name.removeprefix("TYPE_").lower()
    for value in FieldDescriptorProto.DESCRIPTOR.enum_types_by_name["Type"].values
}
#: What json_format raises for text that is no message. It means to raise its own errors only, but does not
#: look at everything that it is given.
_JSON_ERRORS: Final = (json_format.Error, ValueError, TypeError, AttributeError, KeyError, RecursionError)


class ProtoSchema:
    def __init__(self, descriptors: bytes, root_message: str) -> None:
        """`descriptors` is a FileDescriptorSet with all that `root_message` (a full name) needs.

        Raises:
            Mismatch: it is not.
        """
        try:
            files = {file.name: file for file in FileDescriptorSet.FromString(descriptors).file}
        except DecodeError:
            raise Mismatch("it is no serialised FileDescriptorSet") from None
        self._pool = DescriptorPool()
        try:
            for file in _in_order(files):
                self._pool.AddSerializedFile(file.SerializeToString())
            self._root: Descriptor = self._pool.FindMessageTypeByName(root_message)
            self._class: type[Message] = GetMessageClass(self._root)
            self._has_required = _has_required(self._root)
            self._fits_plainly = None if self._has_required else plain_fit(self._root)
        except KeyError:
            raise Mismatch(f"there is no message {root_message}") from None
        except (TypeError, ValueError) as error:  # also for names that are not UTF-8
            raise Mismatch(str(error)) from None
        except RecursionError:
            raise Mismatch("messages refer to each other too deeply") from None
        self._objects = _Objects()

    @classmethod
    def of_source(cls, descriptors: bytes) -> ProtoSchema:
        """The schema of a text that the compiler made `descriptors` of.

        Raises:
            Mismatch: the text is not what the service takes.
        """
        (file,) = FileDescriptorSet.FromString(descriptors).file
        if len(file.message_type) != 1 or file.enum_type:
            raise Mismatch("it must have one message at its top level, and nothing else")
        if file.service:
            raise Mismatch("it must have no services")
        if any(_extensions(file)):
            raise Mismatch("it must have no extensions")
        if file.syntax == "editions" and file.edition != Edition.EDITION_2023:
            raise Mismatch("of the editions only 2023 is supported")
        name = file.message_type[0].name
        return cls(descriptors, f"{file.package}.{name}" if file.package else name)

    def check_binary(self, data: bytes) -> None:
        """Raise Mismatch unless `data` is a message, with no field that the schema does not know."""
        try:
            message = self._class.FromString(data)
        except DecodeError:
            raise Mismatch(f"The data is no serialised {self._root.name}") from None
        if self._has_required:
            _check_required(message)
        # Two passes in C are quicker than a walk through the message in search of such fields.
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            raise Mismatch(f"The data has fields that {self._root.name} does not have")

    def check_json(self, data: bytes) -> None:
        """Raise Mismatch unless `data` is a message in the JSON form, with known fields only."""
        message = self._class()
        try:
            text = data.decode()
            value = _decode(text)
            if self._fits_plainly is not None and self._fits_plainly(value) and not _SURROGATE.search(text):
                return
            if _EMPTY_TEXT in text or _EMPTY_LIST.search(text):
                self._objects.check(self._root, value)
            json_format.ParseDict(value, message, descriptor_pool=self._pool)
        except _JSON_ERRORS as error:
            raise Mismatch(f"The data is no {self._root.name} in JSON: {error}") from None
        if self._has_required:
            _check_required(message)

    def check_compatible(self, earlier: ProtoSchema) -> None:
        """Raise Mismatch unless messages of either schema can be read with the other."""
        _Pairs().check(self._root, earlier._root)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_decode: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant).decode
# json_format takes an empty list or text where a message should be, and nothing else that is none.
_EMPTY_LIST: Final = re.compile(r"\[\s*\]")
_EMPTY_TEXT: Final = '""'
_SURROGATE: Final = re.compile(r"\\u[dD]")


class _Objects:
    """Looks for what stands where JSON must have an object."""

    def __init__(self) -> None:
        # Of each message, by its full name: what holds messages, by both names that JSON may use.
        self._holders: dict[str, dict[str, tuple[FieldDescriptor, Descriptor]]] = {}

    def check(self, message: Descriptor, value: Any) -> None:
        """Raise ValueError for a list or a text in place of a message."""
        if message.full_name.startswith("google.protobuf."):
            return  # these have JSON forms of their own, and json_format looks closely
        if not isinstance(value, dict):
            raise ValueError(f"{message.name} must be an object")
        holders = self._holders_of(message)
        for key, one in value.items():
            if one is None or key not in holders:
                continue
            field, inner = holders[key]
            if field.message_type is not inner:  # a map
                many = list(one.values()) if isinstance(one, dict) else []
            else:
                many = one if is_repeated(field) and isinstance(one, list) else [one]
            for each in many:
                self.check(inner, each)

    def _holders_of(self, message: Descriptor) -> dict[str, tuple[FieldDescriptor, Descriptor]]:
        found = self._holders.get(message.full_name)
        if found is None:
            found = self._holders[message.full_name] = {}
            for field in message.fields:
                inner = field.message_type
                if inner is not None and inner.GetOptions().map_entry:
                    inner = inner.fields_by_name["value"].message_type
                if inner is not None:
                    found[field.name] = found[field.json_name] = field, inner
        return found


def _check_required(message: Message) -> None:
    if not message.IsInitialized():
        raise Mismatch(f"Required fields are missing: {', '.join(_missing(message))}")


def _missing(message: Any) -> list[str]:
    return list(message.FindInitializationErrors())


def _in_order(files: Mapping[str, FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    """Each file after those that it imports."""
    done: set[str] = set()
    # Of each file on the way the imports that are still to be looked at. No recursion: chains may be long.
    for first in files:
        way = [(first, iter(files[first].dependency))]
        on_way = {first}
        while way:
            name, imports = way[-1]
            needed = next((one for one in imports if one not in done), None)
            if needed is None:
                way.pop()
                on_way.discard(name)
                if name not in done:
                    done.add(name)
                    yield files[name]
            elif needed not in files:
                raise Mismatch(f"{name} imports {needed}, which is not there")
            elif needed in on_way:
                raise Mismatch(f"{name} and {needed} import each other")
            else:
                way.append((needed, iter(files[needed].dependency)))
                on_way.add(needed)


def _extensions(file: FileDescriptorProto) -> Iterator[FieldDescriptorProto]:
    yield from file.extension
    inner = list(file.message_type)
    while inner:
        message = inner.pop()
        yield from message.extension
        inner += message.nested_type


def _messages(root: Descriptor) -> Iterator[Descriptor]:
    """All messages that may lie in one of `root`, itself included."""
    seen = {root.full_name}
    found = [root]
    while found:
        message = found.pop()
        yield message
        for field in message.fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                found.append(inner)


def _has_required(root: Descriptor) -> bool:
    return any(_is_required(field) for message in _messages(root) for field in message.fields)


class _Pairs:
    """Compares messages, and those in them, each pair once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def check(self, root: Descriptor, earlier_root: Descriptor) -> None:
        found = [(root, earlier_root)]
        while found:
            message, earlier = found.pop()
            if (message.full_name, earlier.full_name) in self._seen:
                continue
            self._seen.add((message.full_name, earlier.full_name))
            found += self._check_fields(message, earlier)

    def _check_fields(self, message: Descriptor, earlier: Descriptor) -> list[tuple[Descriptor, Descriptor]]:
        """The pairs of messages that are to be compared as well."""
        _check_one_sided(message, earlier)
        _check_one_sided(earlier, message)
        inner = []
        for number, field in message.fields_by_number.items():
            other = earlier.fields_by_number.get(number)
            if other is None:
                continue
            what = f"field {number} of {message.name}"
            # The JSON form goes by names, so a new one is another field. Not documented for the service.
            if field.name != other.name:
                raise Mismatch(f"{what} is {field.name}, was {other.name}")
            if _kind(field) != _kind(other):
                raise Mismatch(f"{what} ({field.name}) is {_kind(field)}, was {_kind(other)}")
            if field.message_type is not None and other.message_type is not None:
                inner.append((field.message_type, other.message_type))
            if field.enum_type is not None and other.enum_type is not None:
                _check_enum(field.enum_type, other.enum_type)
        return inner


def _check_enum(enum: EnumDescriptor, earlier: EnumDescriptor) -> None:
    for name, value in enum.values_by_name.items():
        other = earlier.values_by_name.get(name)
        if other is not None and other.number != value.number:
            raise Mismatch(f"{name} of {enum.name} is {value.number}, was {other.number}")


def _check_one_sided(message: Descriptor, other: Descriptor) -> None:
    for field in message.fields:
        if field.number in other.fields_by_number:
            continue
        if _is_required(field):
            raise Mismatch(f"the required field {field.name} of {message.name} is in one of the two only")
        if field.name in other.fields_by_name:
            number = other.fields_by_name[field.name].number
            raise Mismatch(f"the field {field.name} of {message.name} has number {field.number} and {number}")


def _kind(field: FieldDescriptor) -> str:
    label = "required " if _is_required(field) else "repeated " if is_repeated(field) else ""
    return label + _TYPE_NAMES[field.type]


def _is_required(field: Any) -> bool:
    """As `is_repeated`."""
    if hasattr(field, "is_required"):
        return bool(field.is_required)
    return bool(field.label == FieldDescriptorProto.LABEL_REQUIRED)
