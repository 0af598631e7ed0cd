"""Messages as they are stored: serialised once, at publish, and hashed for the journal.

The same bytes go to every subscriber, so what the server assigns is part of them: fields 3 and 4 are appended
by hand to the serialised rest. Fields may stand in any order on the wire.

Source: PubsubMessage.message_id, PubsubMessage.publish_time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

from pubsubd.wire import pb

_MESSAGE_ID_TAG: Final = b"\x1a"  # field 3, length-delimited
_PUBLISH_TIME_TAG: Final = b"\x22"  # field 4, length-delimited


def stored_message(message: pb.PubsubMessage, message_id: int, publish_us: int) -> bytes:
    """The serialised message with the id and the time that the server gave it; see `stored_messages`."""
    return stored_messages([message], message_id, publish_us)[0]


def stored_messages(
    messages: Sequence[pb.PubsubMessage], first_message_id: int, publish_us: int
) -> list[bytes]:
    """Serialise the messages of one request, with consecutive ids from `first_message_id` on.

    What a publisher put into `message_id` and `publish_time` is dropped, from `messages` as well: they belong
    to a request that is not read again, and a copy would cost more than all the rest.
    """
    publish_time = _publish_time_field(publish_us)
    stored = []
    message_id = first_message_id
    for message in messages:
        message.ClearField("message_id")
        message.ClearField("publish_time")
        digits = b"%d" % message_id
        # An id is far shorter than 128 digits, so its length is one byte.
        head = b"%b%c" % (_MESSAGE_ID_TAG, len(digits))
        stored.append(b"".join((message.SerializeToString(), head, digits, publish_time)))
        message_id += 1
    return stored


def _publish_time_field(publish_us: int) -> bytes:
    seconds, fraction_us = divmod(publish_us, 1_000_000)
    timestamp = pb.Timestamp(seconds=seconds, nanos=fraction_us * 1000).SerializeToString()
    return _PUBLISH_TIME_TAG + bytes([len(timestamp)]) + timestamp


def payload_hash(data: bytes, attributes: Mapping[str, str]) -> int:
    """64-bit hash of what a publisher sent: data and attributes, in a form without ambiguity.

    BLAKE2b with an 8-byte digest, read as a signed little-endian integer, of: the length of data as 8 bytes
    little-endian, data, then the attributes in the order of their keys, each key and value as a 4-byte
    little-endian length and UTF-8.
    """
    if not attributes:
        return _hash(len(data).to_bytes(8, "little") + data)
    parts = [len(data).to_bytes(8, "little"), data]
    for pair in sorted(attributes.items()):
        for text in pair:
            encoded = text.encode()
            parts += (len(encoded).to_bytes(4, "little"), encoded)
    return _hash(b"".join(parts))


def ordering_key_hash(ordering_key: str) -> int:
    """64-bit hash of an ordering key: 0 for none, and never 0 for one."""
    if not ordering_key:
        return 0
    return _hash(ordering_key.encode()) or 1


def _hash(encoded: bytes) -> int:
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little", signed=True)
