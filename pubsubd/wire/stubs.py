"""Writes stubs from descriptors, so that type checkers know the messages, their fields and enum values.

protoc can write stubs too, but one module a file, which is not how `pb` and `admin_pb` are cut. Only the
kinds of fields that `proto/` uses are known here; another kind is a KeyError.
"""

import re
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)

HEAD = "# Made from proto/ by `python -m pubsubd.wire.generate`; edits here are lost.\n"

# Wrapping lines as the formatter does would take more code than everything else here.
UNWRAPPED = "# Made by a program, so its lines are not wrapped:\n# fmt: off\n# ruff: noqa: E501\n"
WIDTH = 110

# By section, and in the order that ruff wants; only what the body names is imported.
IMPORTS = (
    {"collections.abc": ("Iterable", "Mapping"), "typing": ("Any",)},
    {
        "google.protobuf.internal": ("containers", "well_known_types"),
        "google.protobuf.internal.enum_type_wrapper": ("EnumTypeWrapper",),
        "google.protobuf.message": ("Message",),
    },
    {"pubsubd.wire": ("pb",)},
)

# These have methods beyond those of every message.
WELL_KNOWN = {
    f"google.protobuf.{name}" for name in ("Duration", "FieldMask", "ListValue", "Struct", "Timestamp")
}

SCALARS = {
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_ENUM: "int",
    FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_INT64: "int",
    FieldDescriptorProto.TYPE_STRING: "str",
}


def stub(descriptors: FileDescriptorSet, package: str) -> str:
    """Return the stub of one module, which holds the packages whose names begin with `package`."""
    body: list[str] = []
    for file in descriptors.file:
        if file.package.startswith(package):
            for enum in file.enum_type:
                body += ["", *_enum(enum)]
            for message in file.message_type:
                body += ["", *_message(message, file.package, package)]
    text = "\n".join(body)
    head = HEAD + UNWRAPPED * any(len(line) > WIDTH for line in body)
    return f"{head}\n{_imports(text)}{text}\n"


def _imports(body: str) -> str:
    named = set(re.findall(r"\w+", body))
    lines: list[str] = []
    for section in IMPORTS:
        for module, names in section.items():
            if used := [name for name in names if name in named]:
                lines.append(f"from {module} import {', '.join(used)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    # Values are plain integers at run time, and so are the fields that hold them.
    yield f"{enum.name}: EnumTypeWrapper"
    for value in enum.value:
        yield f"{value.name}: int"


def _message(message: DescriptorProto, scope: str, package: str) -> Iterator[str]:
    """Write a class; `scope` is the full name of what it stands in, `package` as `stub` takes it."""
    name = f"{scope}.{message.name}"
    bases = f"Message, well_known_types.{message.name}" if name in WELL_KNOWN else "Message"
    entries = {f".{name}.{entry.name}": entry for entry in message.nested_type if entry.options.map_entry}

    body: list[str] = []
    for enum in message.enum_type:
        body += _enum(enum)
    for nested in message.nested_type:
        if not nested.options.map_entry:
            body += _message(nested, name, package)
    parameters: list[str] = []
    attributes: list[str] = []
    for field in message.field:
        read, write = _field_types(field, entries, package)
        parameters.append(f"        {field.name}: {write} | None = ...,")
        if read in SCALARS.values():
            attributes.append(f"{field.name}: {read}")
        else:
            attributes += ["@property", f"def {field.name}(self) -> {read}: ..."]
    if parameters:
        body += ["def __init__(", "    self,", "    *,", *(line[4:] for line in parameters), ") -> None: ..."]
    body += attributes

    if not body:
        yield f"class {message.name}({bases}): ..."
        return
    yield f"class {message.name}({bases}):"
    for line in body:
        yield f"    {line}" if line else ""


def _field_types(
    field: FieldDescriptorProto, entries: dict[str, DescriptorProto], package: str
) -> tuple[str, str]:
    """Return the type that the attribute has, and the one that the constructor takes."""
    if entry := entries.get(field.type_name):
        key, value = (_field_types(part, {}, package)[0] for part in entry.field)
        container = "ScalarMap" if value in SCALARS.values() else "MessageMap"
        return f"containers.{container}[{key}, {value}]", f"Mapping[{key}, {value}]"
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        one = _message_name(field.type_name, package)
        accepted, container = f"{one} | Mapping[str, Any]", "RepeatedCompositeFieldContainer"
    else:
        one = accepted = SCALARS[field.type]
        container = "RepeatedScalarFieldContainer"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"containers.{container}[{one}]", f"Iterable[{accepted}]"
    return one, accepted


def _message_name(type_name: str, package: str) -> str:
    """Return how the stub of `package` writes a full name, as .google.pubsub.v1.Topic."""
    short = re.sub(r"^\.[a-z0-9.]+\.(?=[A-Z])", "", type_name)
    return short if type_name.startswith(f".{package}") else f"pb.{short}"
