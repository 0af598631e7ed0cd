"""Raw calls of google.pubsub.v1, and how a refusal of one is read.

Everything here works with channels of both kinds: on a `grpc.aio` channel a call is awaited, on an
ordinary one it returns the response.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from pubsubd.conform.case import Failed, check
from pubsubd.wire import SERVICES

PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"
TRANSIENT = "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"
UNORDERED = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
TRANSIENT_PREFIX = "TRANSIENT_FAILURE_"

# A client retries the whole request on these, below the code that reads results, or gives up on it.
MISREAD = frozenset({StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.CANCELLED})

# What a client is answered when nothing was judged: by the network, by a quota, or by a call nobody serves.
NOT_JUDGED = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.UNIMPLEMENTED,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,
        StatusCode.UNAUTHENTICATED,
        StatusCode.PERMISSION_DENIED,
        StatusCode.RESOURCE_EXHAUSTED,
    }
)

REASON = "EXACTLY_ONCE_ACKID_FAILURE"
DOMAIN = "pubsub.googleapis.com"

ACK_REQUEST_BYTES_MAX = 524_288
CALL_SECONDS_MAX = 30.0
MESSAGE_SHOWN_MAX = 200

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
            call = stub if method.client_streaming else partial(_call, method.name, stub, method.request)
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no such method: {name}")


# The method whose call was last answered OK, so that a sentence can name it.
_answered: ContextVar[str] = ContextVar("answered", default="")


class NamedCall:
    """A call of a `grpc.aio` channel; the error it ends with can be asked for its method."""

    def __init__(self, name: str, call: Any) -> None:
        self._name = name
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        _answered.set("")
        try:
            response = yield from self._call.__await__()
            _answered.set(self._name)
            return response
        except grpc.aio.AioRpcError as error:
            error.add_note(self._name)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def method_of(error: BaseException) -> str:
    """The method of a failed call; empty for one that is not known."""
    return next(iter(getattr(error, "__notes__", ())), "")


def _call(
    method: str,
    stub: Any,
    request_type: type[Any],
    request: Any = None,
    /,
    *,
    timeout: float = CALL_SECONDS_MAX,
    **fields: Any,
) -> Any:
    call = stub(request_type(**fields) if request is None else request, timeout=timeout)
    return NamedCall(method, call) if isinstance(call, grpc.aio.Call) else call


@dataclass
class Refusal:
    """A non-OK answer as its caller sees it."""

    code: StatusCode = StatusCode.OK
    message: str = ""
    status: status_pb2.Status | None = None
    method: str = ""

    @property
    def subject(self) -> str:
        """How a sentence begins that speaks of the call."""
        return self.method or "The call"

    @classmethod
    def of(cls, error: grpc.RpcError) -> Refusal:
        # A trailer whose code or message differs from the call's makes the Python library report success
        # and the Java library hang, so it is looked at wherever a refusal is read.
        metadata: Any = error.trailing_metadata() or ()
        packed = {key: value for key, value in metadata}.get("grpc-status-details-bin")
        status = None if packed is None else status_pb2.Status.FromString(packed)
        refusal = cls(error.code(), error.details() or "", status, method_of(error))
        if status is not None:
            number, name = refusal.code.value[0], refusal.code.name
            check(number == status.code, f"The call ended {name}, but its trailer says code {status.code}.")
            check(
                refusal.message == status.message,
                f"The call's message is {refusal.message[:MESSAGE_SHOWN_MAX]!r}, but its trailer says"
                f" {status.message[:MESSAGE_SHOWN_MAX]!r}.",
            )
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
    def was_judged(self) -> bool:
        """Whether a server that looked at the request gave it, as far as one can tell.

        A lost connection and a quota bring no results of ack ids, so whoever sends them has looked.
        """
        return self.code not in NOT_JUDGED or any(info.reason == REASON for info in self.error_infos)

    @property
    def results(self) -> dict[str, str]:
        """The result of each ack id that the refusal lists."""
        return {key: value for info in self.error_infos for key, value in info.metadata.items()}

    def __str__(self) -> str:
        return in_words(self.code, self.message)


def in_words(code: StatusCode, message: str) -> str:
    """A status for a sentence; some endpoints repeat all that they were sent in its message."""
    if len(message) > MESSAGE_SHOWN_MAX:
        message = f"{message[:MESSAGE_SHOWN_MAX]}…"
    return f"{code.name} ({message})" if message else code.name


@contextmanager
def _any_refusal(expected: str) -> Iterator[Refusal]:
    refusal = Refusal()
    _answered.set("")
    try:
        yield refusal
    except grpc.RpcError as error:
        seen = Refusal.of(error)
        if not seen.was_judged and seen.code.name != expected:
            raise
        refusal.code, refusal.message, refusal.status = seen.code, seen.message, seen.status
        refusal.method = seen.method
    else:
        raise Failed(f"{_answered.get() or 'The call'} was answered OK, not refused with {expected}.")


# How sentences of this module begin that say of a call what became of it.
_SUBJECT = re.compile(r"(The call|[A-Z][A-Za-z]+)(?= was (answered|refused) )")


@contextmanager
def about(what: str) -> Iterator[None]:
    """Says of which of several calls a broken promise is; `what` can begin a sentence: `The ack of m2`."""
    try:
        yield
    except Failed as failed:
        text = str(failed)
        subject = _SUBJECT.match(text)
        raise Failed(f"{what}: {text}" if subject is None else what + text[subject.end() :]) from failed


@contextmanager
def refused(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """Expects the call inside to be refused with this code and a message that contains the tokens.

    Messages are not part of any promise: tokens are for tests of our own server.
    """
    with _any_refusal(code.name) as refusal:
        yield refusal
    check(code == refusal.code, f"{refusal.subject} was refused with {refusal}, not with {code.name}.")
    for token in tokens:
        check(token in refusal.message, f"The refusal says {refusal.message!r}, without {token!r}.")


def _check_trailer(refusal: Refusal) -> None:
    # That its code and message are those of the call was seen when the refusal was read.
    check(
        refusal.status is not None,
        f"{refusal.subject} was refused with {refusal}, without a grpc-status-details-bin trailer.",
    )
    check(
        refusal.message.isascii() and refusal.message.isprintable(),
        f"The message {refusal.message[:MESSAGE_SHOWN_MAX]!r} is not one line of ASCII.",
    )


@contextmanager
def refused_with_trailer(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """What every non-OK answer of Acknowledge and ModifyAckDeadline is: its status is in the trailer too."""
    with refused(code, *tokens) as refusal:
        yield refusal
    _check_trailer(refusal)


@contextmanager
def request_refused(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """The whole ack or modack is refused: nothing was looked at, so no ack id has a result."""
    with refused_with_trailer(code, *tokens) as refusal:
        yield refusal
    reasons = [info.reason for info in refusal.error_infos]
    check(REASON not in reasons, f"The refusal of the whole request carries an ErrorInfo {REASON}.")


@contextmanager
def permanent(*deliveries: Any) -> Iterator[Refusal]:
    """The PERM(x) of the checklist, for each delivery or ack id."""
    with refused_with_trailer(StatusCode.INVALID_ARGUMENT) as refusal:
        yield refusal
    _check_tunnel(refusal)
    for ack_id in ack_ids_of(deliveries):
        seen = refusal.results.get(ack_id, "absent")
        check(seen == PERMANENT, f"The result of an ack id is {seen}, not {PERMANENT}.")


@contextmanager
def transient(*deliveries: Any) -> Iterator[Refusal]:
    """The TRANS(x) of the checklist, for each delivery or ack id, with nothing permanent beside it.

    Which code carries it is the endpoint's choice, apart from those that clients misread (CT-24).
    """
    with _any_refusal("a transient result") as refusal:
        yield refusal
    _check_trailer(refusal)
    _check_tunnel(refusal)
    for ack_id in ack_ids_of(deliveries):
        seen = refusal.results.get(ack_id, "absent")
        check(
            seen.startswith(TRANSIENT_PREFIX), f"The result of an ack id is {seen}, not {TRANSIENT_PREFIX}…."
        )
    _check_nothing_permanent(refusal)


@contextmanager
def unordered(*deliveries: Any) -> Iterator[Refusal]:
    """Acks ahead of their ordering keys: these deliveries or ack ids are refused for now."""
    with _any_refusal(UNORDERED) as refusal:
        yield refusal
    _check_trailer(refusal)
    _check_tunnel(refusal)
    for ack_id in ack_ids_of(deliveries):
        seen = refusal.results.get(ack_id, "absent")
        check(seen == UNORDERED, f"The result of an ack id is {seen}, not {UNORDERED}.")
    _check_nothing_permanent(refusal)


def _check_nothing_permanent(refusal: Refusal) -> None:
    bad = [ack_id for ack_id, result in refusal.results.items() if result == PERMANENT]
    check(not bad, f"{len(bad)} of the results are {PERMANENT}.")


def _check_tunnel(refusal: Refusal) -> None:
    """The results of single ack ids travel in the first detail, which is the only ErrorInfo."""
    details: Sequence[Any] = refusal.status.details if refusal.status is not None else ()
    infos = refusal.error_infos
    check(
        refusal.code not in MISREAD,
        f"{refusal.subject} was refused with results under {refusal.code.name}, which clients read as a lost"
        " connection.",
    )
    check(infos, f"{refusal.subject} was refused with {refusal}, without an ErrorInfo for the ack ids.")
    check(details[0].Is(error_details_pb2.ErrorInfo.DESCRIPTOR), "The first detail is not the ErrorInfo.")
    check(len(infos) == 1, f"The refusal has {len(infos)} ErrorInfos.")
    named = (infos[0].reason, infos[0].domain)
    check(named == (REASON, DOMAIN), f"The ErrorInfo has reason {named[0]!r} and domain {named[1]!r}.")


def ack_ids_of(deliveries: Sequence[Any]) -> list[str]:
    return [item if isinstance(item, str) else item.ack_id for item in deliveries]
