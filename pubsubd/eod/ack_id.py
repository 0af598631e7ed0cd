"""Ack ids: what they name, and how they are known to be ours.

An ack id is the URL-safe base64 of a packed `AckToken` and a keyed BLAKE2b tag over it: 60 ASCII characters.
It names one generation of one message on one incarnation of a subscription; ids of a deleted subscription
never match one created later under its name, because incarnations (`sub_id`) are never used twice. The boot
number and the delivery time make the id of a generation that a crash undid differ from any later one.
The attempt, time and client ride along so that a journal record about an ended lease is complete
without remembering the lease.

Source: pubsub.proto, ReceivedMessage.ack_id (opaque to clients).
"""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

_VERSION = 1
_TOKEN = struct.Struct("<BiiiqqiI")
_TAG_BYTES = 8
_RAW_BYTES = _TOKEN.size + _TAG_BYTES
# A multiple of three, so that no id needs padding and a batch can be encoded in one call.
assert _RAW_BYTES % 3 == 0
ACK_ID_BYTES = _RAW_BYTES // 3 * 4

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


class AckIds:
    """Makes and reads the ack ids of one server; `secret` (16 to 64 bytes) lives as long as its database."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(key=secret, digest_size=_TAG_BYTES)

    def make(self, tokens: Iterable[AckToken | tuple[int, int, int, int, int, int, int]]) -> list[str]:
        """The ids of `tokens`, in order."""
        keyed = self._keyed
        pack = _TOKEN.pack
        parts: list[bytes] = []
        for token in tokens:
            packed = pack(_VERSION, *token)
            tag = keyed.copy()
            tag.update(packed)
            parts.append(packed)
            parts.append(tag.digest())
        text = b2a_base64(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
        return [text[at : at + ACK_ID_BYTES] for at in range(0, len(text), ACK_ID_BYTES)]

    def read(self, ack_id: str) -> AckToken | None:
        """What `ack_id` names, or None if this server never made it."""
        if len(ack_id) != ACK_ID_BYTES:
            return None
        try:
            raw = a2b_base64(ack_id.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except (UnicodeEncodeError, Base64Error):
            return None
        packed, tag = raw[:-_TAG_BYTES], raw[-_TAG_BYTES:]
        keyed = self._keyed.copy()
        keyed.update(packed)
        # The tag decides between "refused" and "refused": its timing tells a caller nothing worth hiding.
        if keyed.digest() != tag:
            return None
        version, *fields = _TOKEN.unpack(packed)
        return AckToken(*fields) if version == _VERSION else None

    def read_all(self, ack_ids: Sequence[str]) -> list[AckToken | None]:
        return [self.read(ack_id) for ack_id in ack_ids]
