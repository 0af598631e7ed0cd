"""Raw calls of google.pubsub.v1, and how a refusal of one is read.

Everything here works with channels of both kinds: on a `grpc.aio` channel a call is awaited, on an
ordinary one it returns the response.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from pubsubd.wire import SERVICES

PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"
UNORDERED = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"

ACK_REQUEST_BYTES_MAX = 524_288
CALL_SECONDS_MAX = 30.0

# A failed batch of acks carries its results in a trailer of up to a megabyte: a client that keeps the
# library's own limit of a few kilobytes would fail locally and never see them.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_metadata_size", 4 << 20),
    ("grpc.absolute_max_metadata_size", 4 << 20),
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
]

ADMIN = "pubsubd.admin.v1.Admin"
PUBSUB = [service for service in SERVICES if service != ADMIN]

UNARY = [method for service in PUBSUB for method in SERVICES[service].values() if not method.client_streaming]
STREAMING_PULL_PATH = "/google.pubsub.v1.Subscriber/StreamingPull"


class Client:
    """One attribute per method: `client.GetTopic(topic=...)`, or `client.GetTopic(request)`."""

    def __init__(self, channel: Any, services: Sequence[str] = PUBSUB) -> None:
        for method in (method for service in services for method in SERVICES[service].values()):
            kind = channel.stream_stream if method.client_streaming else channel.unary_unary
            stub = kind(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            call = stub if method.client_streaming else partial(_call, stub, method.request)
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no such method: {name}")


def _call(
    stub: Any,
    request_type: type[Any],
    request: Any = None,
    *,
    timeout: float = CALL_SECONDS_MAX,
    **fields: Any,
) -> Any:
    return stub(request_type(**fields) if request is None else request, timeout=timeout)


@dataclass
class Refusal:
    """A non-OK answer as its caller sees it."""

    code: StatusCode = StatusCode.OK
    message: str = ""
    status: status_pb2.Status | None = None

    @classmethod
    def of(cls, error: grpc.RpcError) -> Refusal:
        # A trailer whose code or message differs from the call's makes the Python library report success
        # and the Java library hang, so it is looked at wherever a refusal is read.
        trailers = {key: value for key, value in error.trailing_metadata() or ()}
        packed = trailers.get("grpc-status-details-bin")
        status = None if packed is None else status_pb2.Status.FromString(packed)
        refusal = cls(error.code(), error.details() or "", status)
        if status is not None:
            assert refusal.code.value[0] == status.code, "the trailer has another code than the call"
            assert refusal.message == status.message, "the trailer has another message than the call"
        return refusal

    @property
    def error_infos(self) -> list[error_details_pb2.ErrorInfo]:
        found = []
        for detail in self.status.details if self.status is not None else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                found.append(info)
        return found

    @property
    def results(self) -> dict[str, str]:
        """The result of each ack id that the refusal lists."""
        return {key: value for info in self.error_infos for key, value in info.metadata.items()}


@contextmanager
def refused(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """Expects the call inside to be refused with this code and a message that contains the tokens."""
    refusal = Refusal()
    try:
        yield refusal
    except grpc.RpcError as error:
        seen = Refusal.of(error)
        refusal.code, refusal.message, refusal.status = seen.code, seen.message, seen.status
    else:
        raise AssertionError(f"the call was not refused; expected {code.name}")
    assert code == refusal.code, refusal.message
    for token in tokens:
        assert token in refusal.message


@contextmanager
def refused_with_trailer(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """What every non-OK answer of Acknowledge and ModifyAckDeadline is: its status is in the trailer too."""
    with refused(code, *tokens) as refusal:
        yield refusal
    assert refusal.status is not None, "the refusal has no grpc-status-details-bin"
    assert refusal.message.isascii() and refusal.message.isprintable()


@contextmanager
def request_refused(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """The whole ack or modack is refused: nothing was looked at, so no ack id has a result."""
    with refused_with_trailer(code, *tokens) as refusal:
        yield refusal
    assert refusal.error_infos == []


@contextmanager
def permanent(*deliveries: Any) -> Iterator[Refusal]:
    """The PERM(x) of the checklist, for each delivery or ack id."""
    with refused_with_trailer(StatusCode.INVALID_ARGUMENT) as refusal:
        yield refusal
    _check_tunnel(refusal)
    for ack_id in ack_ids_of(deliveries):
        assert refusal.results.get(ack_id) == PERMANENT


@contextmanager
def transient(*deliveries: Any) -> Iterator[Refusal]:
    """The TRANS(x) of the checklist, for each delivery or ack id, with nothing permanent beside it."""
    with refused_with_trailer(StatusCode.ABORTED) as refusal:
        yield refusal
    _check_tunnel(refusal)
    for ack_id in ack_ids_of(deliveries):
        assert refusal.results.get(ack_id) == TRANSIENT


@contextmanager
def unordered(*deliveries: Any) -> Iterator[Refusal]:
    """Acks ahead of their ordering keys: these deliveries or ack ids are refused for now, and no others."""
    with refused_with_trailer(StatusCode.ABORTED, "sent out of order") as refusal:
        yield refusal
    _check_tunnel(refusal)
    assert refusal.results == dict.fromkeys(ack_ids_of(deliveries), UNORDERED)


def _check_tunnel(refusal: Refusal) -> None:
    assert refusal.status is not None
    assert refusal.status.details[0].Is(error_details_pb2.ErrorInfo.DESCRIPTOR)
    (info,) = refusal.error_infos
    assert (info.reason, info.domain) == ("EXACTLY_ONCE_ACKID_FAILURE", "pubsub.googleapis.com")


def ack_ids_of(deliveries: Sequence[Any]) -> list[str]:
    return [item if isinstance(item, str) else item.ack_id for item in deliveries]
