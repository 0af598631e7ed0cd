"""The private descriptor pool: every protocol definition that pubsubd speaks, apart from the process's default pool.

The default pool refuses two different files that define the same names, and the official client defines
`google.pubsub.v1` there. With a pool of our own, tests and users can import both in one process, in any order.

The definitions come from `descriptors.binpb`, which `python -m pubsubd.wire.generate` makes from `proto/`. It holds
the well-known types too, so that nothing here depends on what else the process has imported.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")


def _load() -> tuple[DescriptorPool, list[str]]:
    """Return the pool, and the names of its files in the order in which they depend on each other."""
    pool = DescriptorPool()
    names = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
        names.append(file.name)
    return pool, names


POOL, FILES = _load()


def namespace(*prefixes: str) -> dict[str, Any]:
    """Return what a generated module for the files under `prefixes` would define at its top level.

    That is: message classes, enum wrappers, and the values of top-level enums, by their short names.
    """
    found: dict[str, Any] = {}
    for name in FILES:
        if not name.startswith(prefixes):
            continue
        file = POOL.FindFileByName(name)
        for short, message in file.message_types_by_name.items():
            found[short] = message_factory.GetMessageClass(message)
        for short, enum in file.enum_types_by_name.items():
            found[short] = EnumTypeWrapper(enum)
            found.update((value.name, value.number) for value in enum.values)
    return found
