"""Ack ids: what they name, and how they are known to be ours.

An ack id is the URL-safe base64 of a packed `AckToken` and a keyed BLAKE2b tag over it. It names one
generation of one message on one incarnation of a subscription; ids of a deleted subscription never match one
created later under its name, because incarnations (`sub_id`) are never used twice. The boot number and the
delivery time make the id of a generation that a crash undid differ from any later one. The attempt, time and
client ride along so that a journal record about an ended lease is complete without remembering the lease.

There are two forms. The short one, 36 characters, has room for what servers usually count to; the long one,
60, for everything. Short matters: with `PUBSUB_EMULATOR_HOST` Python's client has gRPC's default limit of 8
KiB for the trailers in which failed ids come back, and what is beyond it leaves their futures unresolved for
ever. A hundred failures, the size of its ack batches, fit at 36 characters and do not at 40.

Source: pubsub.proto, ReceivedMessage.ack_id (opaque to clients).
"""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from pubsubd.model import limits

_LONG_VERSION = 1
_LONG = struct.Struct("<BiiiqqiI")
_LONG_TAG_BYTES = 8
_SHORT_VERSION = 3
# version, generation, client, boot, time << 8 | attempt, message << 24 | subscription
_SHORT = struct.Struct("<BBHHQQ")
_SHORT_TAG_BYTES = 5  # one guess in 10^12 passes; and what it names has to be leased as well
LONG_BYTES = 60
SHORT_BYTES = 36
assert max(SHORT_BYTES, LONG_BYTES) <= limits.ACK_ID_BYTES_MAX
# Multiples of three, so that no id needs padding and a batch can be encoded in one call.
assert (_LONG.size + _LONG_TAG_BYTES) * 4 == LONG_BYTES * 3
assert (_SHORT.size + _SHORT_TAG_BYTES) * 4 == SHORT_BYTES * 3

_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_+/", b"+/\x00\x00")


class AckToken(NamedTuple):
    """What an authentic ack id says."""

    sub_id: int
    generation: int
    attempt: int
    message_id: int
    delivered_us: int
    client_id: int
    boot: int


Fields = tuple[int, int, int, int, int, int, int]  # an AckToken, or as plain as one


class AckIds:
    """Makes and reads the ack ids of one server; `secret` (16 to 64 bytes) lives as long as its database."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(key=secret, digest_size=_LONG_TAG_BYTES)

    def make(self, tokens: Iterable[Fields]) -> list[str]:
        """The ids of `tokens`, in order. The id of a token does not depend on the others."""
        keyed = self._keyed
        parts: list[bytes] = []
        ends: list[int] = []
        end = 0
        for sub_id, generation, attempt, message_id, delivered_us, client_id, boot in tokens:
            if (generation | attempt) >> 8 or (client_id | boot) >> 16 or sub_id >> 24 or message_id >> 40:
                packed = _LONG.pack(
                    _LONG_VERSION, sub_id, generation, attempt, message_id, delivered_us, client_id, boot
                )
                tag_bytes = _LONG_TAG_BYTES
                end += LONG_BYTES
            else:
                packed = _SHORT.pack(
                    _SHORT_VERSION,
                    generation,
                    client_id,
                    boot,
                    delivered_us << 8 | attempt,
                    message_id << 24 | sub_id,
                )
                tag_bytes = _SHORT_TAG_BYTES
                end += SHORT_BYTES
            tag = keyed.copy()
            tag.update(packed)
            parts.append(packed)
            parts.append(tag.digest()[:tag_bytes])
            ends.append(end)
        text = b2a_base64(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
        return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def read(self, ack_id: str) -> AckToken | None:
        """What `ack_id` names, or None if this server never made it."""
        if len(ack_id) not in (SHORT_BYTES, LONG_BYTES):
            return None
        try:
            raw = a2b_base64(ack_id.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except (UnicodeEncodeError, Base64Error):
            return None
        tag_bytes = _SHORT_TAG_BYTES if len(ack_id) == SHORT_BYTES else _LONG_TAG_BYTES
        packed, tag = raw[:-tag_bytes], raw[-tag_bytes:]
        keyed = self._keyed.copy()
        keyed.update(packed)
        # The tag decides between "refused" and "refused": its timing tells a caller nothing worth hiding.
        if keyed.digest()[:tag_bytes] != tag:
            return None
        return _unpack(packed)


def _unpack(packed: bytes) -> AckToken | None:
    if packed[0] == _LONG_VERSION and len(packed) == _LONG.size:
        _, *fields = _LONG.unpack(packed)
        return AckToken(*fields)
    if packed[0] == _SHORT_VERSION and len(packed) == _SHORT.size:
        _, generation, client_id, boot, time_attempt, message_sub = _SHORT.unpack(packed)
        return AckToken(
            sub_id=message_sub & 0xFF_FFFF,
            generation=generation,
            attempt=time_attempt & 0xFF,
            message_id=message_sub >> 24,
            delivered_us=time_attempt >> 8,
            client_id=client_id,
            boot=boot,
        )
    return None
