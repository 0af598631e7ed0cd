"""The private descriptor pool: what pubsubd speaks, apart from the default pool of the process.

The default pool refuses two different files that define the same names, and the official client defines
`google.pubsub.v1` there. With a pool of our own, both can be imported in one process, in any order.

The definitions come from `descriptors.binpb`, which `python -m pubsubd.wire.generate` makes from `proto/`.
It holds the well-known types too, so that nothing here depends on what else the process has imported.
"""

from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")


def _load() -> tuple[DescriptorPool, list[str]]:
    """Return the pool, and the names of its files, each after those it imports."""
    pool = DescriptorPool()
    names = []
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
        names.append(file.name)
    return pool, names


POOL, FILES = _load()


def namespace(prefix: str) -> dict[str, Any]:
    """Return what modules generated for the files below `prefix` would define at their top level.

    That is, by short name: message classes, enum wrappers, and the values of enums outside any message.
    """
    found: dict[str, Any] = {}
    for file in (POOL.FindFileByName(name) for name in FILES if name.startswith(prefix)):
        for name, message in file.message_types_by_name.items():
            found[name] = _message_class(message)
        for name, enum in file.enum_types_by_name.items():
            found[name] = EnumTypeWrapper(enum)
            found.update((value.name, value.number) for value in enum.values)
    return found


def _message_class(message: Descriptor) -> type[Message]:
    """Return the class of `message`, with the classes of the messages inside it as attributes.

    The C implementation of protobuf finds those by itself; the one in pure Python, which runs where no wheel
    fits, leaves them out for classes that no generated module defined.
    """
    made = GetMessageClass(message)
    for name, nested in message.nested_types_by_name.items():
        if not hasattr(made, name):
            setattr(made, name, _message_class(nested))
    return made


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether the field is a list or a map. Of the two ways to ask each is missing from some version."""
    known: Any = field
    if hasattr(known, "is_repeated"):
        return bool(known.is_repeated)
    return bool(known.label == FieldDescriptor.LABEL_REPEATED)
