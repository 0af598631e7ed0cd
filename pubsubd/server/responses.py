"""Responses put together from bytes that are already serialised.

A message is serialised once, at publish. A response is those bytes behind hand-written field headers, so that
delivering a message builds no object. The field numbers are those of pubsub.proto: ReceivedMessage ack_id=1,
message=2, delivery_attempt=3; StreamingPullResponse received_messages=1, modify_ack_deadline_confirmation=3,
subscription_properties=4, acknowledge_confirmation=5; PullResponse received_messages=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

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


def received_messages(
    leases: Sequence[Lease], datas: Sequence[bytes], attempts: Sequence[int] | None = None
) -> bytes:
    """Field 1 of StreamingPullResponse and of PullResponse, once per message.

    `attempts` are shown where there is a dead letter policy.
    """
    if attempts is not None:
        return _with_attempts(leases, datas, attempts)
    parts: list[bytes] = []
    extend = parts.extend
    for lease, data in zip(leases, datas, strict=True):
        ack_id = lease.ack_id.encode("ascii")
        ack_id_head, message_head = _heads(len(ack_id), len(data))
        extend((ack_id_head, ack_id, message_head, data))
    return b"".join(parts)


def _with_attempts(leases: Sequence[Lease], datas: Sequence[bytes], attempts: Sequence[int]) -> bytes:
    parts: list[bytes] = []
    for lease, data, attempt in zip(leases, datas, attempts, strict=True):
        received = b"".join(
            (
                b"\x0a",
                _varint(len(lease.ack_id)),
                lease.ack_id.encode("ascii"),
                b"\x12",
                _varint(len(data)),
                data,
                b"\x18",
                _varint(attempt),
            )
        )
        parts += (b"\x0a", _varint(len(received)), received)
    return b"".join(parts)


def properties(exactly_once: bool, ordered: bool) -> bytes:
    """Field 4 of StreamingPullResponse. Every response has it: clients read its absence as "both off"."""
    flags = (b"\x08\x01" if exactly_once else b"") + (b"\x10\x01" if ordered else b"")
    return b"\x22" + bytes((len(flags),)) + flags


class Outcomes(NamedTuple):
    """What became of ids that came on a stream."""

    succeeded: Sequence[str]
    invalid: Sequence[str] = ()
    failed_for_now: Sequence[str] = ()
    unordered: Sequence[str] = ()


def confirmation(acks: Outcomes | None, extensions: Outcomes | None) -> bytes:
    """Fields 3 and 5; None where the request had no such ids."""
    response = pb.StreamingPullResponse()
    if acks is not None:
        confirmed = response.acknowledge_confirmation
        confirmed.SetInParent()
        confirmed.ack_ids.extend(acks.succeeded)
        confirmed.invalid_ack_ids.extend(acks.invalid)
        confirmed.unordered_ack_ids.extend(acks.unordered)
        confirmed.temporary_failed_ack_ids.extend(acks.failed_for_now)
    if extensions is not None:
        extended = response.modify_ack_deadline_confirmation
        extended.SetInParent()
        extended.ack_ids.extend(extensions.succeeded)
        extended.invalid_ack_ids.extend(extensions.invalid)
        extended.temporary_failed_ack_ids.extend(extensions.failed_for_now)
    data: bytes = response.SerializeToString()
    return data
