"""Asks a running server to seal its journal, so that the last minute can be read too.

Two messages of two fields are written and read by hand here: the server's own classes are the server's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from analytics.errors import UsageError

METHOD = "/pubsubd.admin.v1.Admin/Seal"
_PATIENCE_S = 300  # the server may have a long tail to write
_VARINT, _TEXT = 0, 2  # wire types


class Sealed(NamedTuple):
    last_seq: int
    backlog: str  # path on the server's machine; empty if none was written


def seal(address: str, backlog: bool = True) -> Sealed:
    """Have everything that is committed sealed, and the open messages written beside it if `backlog`.

    Raises:
        UsageError: no server answers there, or it cannot seal.
    """
    import grpc

    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(METHOD, request_serializer=encode, response_deserializer=decode)
        try:
            answer: Sealed = call(backlog, timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            raise UsageError(_sentence(address, error)) from error
    return answer


def encode(backlog: bool) -> bytes:
    """SealRequest {bool backlog = 1}."""
    return b"\x08\x01" if backlog else b""


def decode(data: bytes) -> Sealed:
    """SealResponse {int64 last_seq = 1; string backlog = 2}; fields of later versions are passed over."""
    last_seq, backlog, at = 0, "", 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            if number == 1:
                last_seq = value
        elif wire == _TEXT:
            length, at = _varint(data, at)
            if number == 2:
                backlog = data[at : at + length].decode()
            at += length
        else:
            raise UsageError("The server's answer to `seal` is of a kind this program does not know.")
    return Sealed(last_seq, backlog)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return value, at
    raise UsageError("The server's answer to `seal` ends in the middle.")


def _sentence(address: str, error: Any) -> str:
    code, details = error.code().name, str(error.details()).rstrip(".")
    if code == "UNAVAILABLE":
        return f"No server answers at {address}; the admin service is on only with `pubsubd --admin PORT`."
    if code == "UNIMPLEMENTED":
        return (
            f"The server at {address} has no command `seal`: it is not the port of pubsubd's admin service."
        )
    if code == "DEADLINE_EXCEEDED":
        return f"The server at {address} did not finish sealing within {_PATIENCE_S} s."
    return f"The server at {address} could not seal its journal: {details or code}."
