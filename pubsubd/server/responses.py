"""Responses put together from bytes that are already serialised.

A message is serialised once, at publish. A response is those bytes behind hand-written field headers, so that
delivering a message builds no object. The field numbers are those of pubsub.proto: ReceivedMessage ack_id=1,
message=2, delivery_attempt=3; StreamingPullResponse received_messages=1, modify_ack_deadline_confirmation=3,
subscription_properties=4, acknowledge_confirmation=5; PullResponse received_messages=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pubsubd.eod.lease import Lease
from pubsubd.wire import pb


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=4096)
def _heads(ack_id_bytes: int, data_bytes: int) -> tuple[bytes, bytes]:
    """What stands before the ack id, and before the message, of a received message of these sizes."""
    ack_id_head = b"\x0a" + _varint(ack_id_bytes)
    message_head = b"\x12" + _varint(data_bytes)
    received_bytes = len(ack_id_head) + ack_id_bytes + len(message_head) + data_bytes
    return b"\x0a" + _varint(received_bytes) + ack_id_head, message_head


def received_messages(leases: Sequence[Lease], datas: Sequence[bytes]) -> bytes:
    """Field 1 of StreamingPullResponse and of PullResponse, once per message."""
    parts: list[bytes] = []
    extend = parts.extend
    for lease, data in zip(leases, datas, strict=True):
        ack_id = lease.ack_id.encode("ascii")
        ack_id_head, message_head = _heads(len(ack_id), len(data))
        extend((ack_id_head, ack_id, message_head, data))
    return b"".join(parts)


def properties(exactly_once: bool, ordered: bool) -> bytes:
    """Field 4 of StreamingPullResponse. Every response has it: clients read its absence as "both off"."""
    flags = (b"\x08\x01" if exactly_once else b"") + (b"\x10\x01" if ordered else b"")
    return b"\x22" + bytes((len(flags),)) + flags


def confirmation(
    acks: tuple[Sequence[str], Sequence[str], Sequence[str]] | None,
    extensions: tuple[Sequence[str], Sequence[str], Sequence[str]] | None,
) -> bytes:
    """Fields 3 and 5: what became of ids that came on the stream, as (succeeded, invalid, failed for now)."""
    response = pb.StreamingPullResponse()
    if acks is not None:
        confirmed = response.acknowledge_confirmation
        confirmed.SetInParent()
        confirmed.ack_ids.extend(acks[0])
        confirmed.invalid_ack_ids.extend(acks[1])
        confirmed.temporary_failed_ack_ids.extend(acks[2])
    if extensions is not None:
        extended = response.modify_ack_deadline_confirmation
        extended.SetInParent()
        extended.ack_ids.extend(extensions[0])
        extended.invalid_ack_ids.extend(extensions[1])
        extended.temporary_failed_ack_ids.extend(extensions[2])
    data: bytes = response.SerializeToString()
    return data
