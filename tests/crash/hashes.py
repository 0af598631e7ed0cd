"""The hashes of the journal, as its format defines them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b


def payload_hash(data: bytes, attributes: Mapping[str, str]) -> int:
    parts = [struct.pack("<q", len(data)), data]
    for key in sorted(attributes):
        for text in (key.encode(), attributes[key].encode()):
            parts += [struct.pack("<i", len(text)), text]
    return _digest(b"".join(parts))


def key_hash(ordering_key: str) -> int:
    """Of an ordering key; 0 without one."""
    return (_digest(ordering_key.encode()) or 1) if ordering_key else 0


def _digest(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
