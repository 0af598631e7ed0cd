"""What every handler does: read the request, name the caller, and turn errors into statuses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from pubsubd.eod.answer import DOMAIN, REASON, Answer
from pubsubd.model import errors
from pubsubd.model.errors import PubsubError

_log = logging.getLogger("pubsubd.server")

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[bytes, bytes]
    MethodHandler = grpc.RpcMethodHandler[bytes, bytes]
else:  # generic for type checkers only
    Context = grpc.aio.ServicerContext
    MethodHandler = grpc.RpcMethodHandler

Handler = Callable[[bytes, Context], Awaitable[bytes]]
Request = TypeVar("Request", bound=Message)

# Refusals that rest on what was looked up, which may not be committed yet.
LOOKED_UP = (
    errors.NotFound,
    errors.AlreadyExists,
    errors.FailedPrecondition,
    errors.Unfit,
    errors.ResourceExhausted,
)


def parse(request_class: type[Request], data: bytes) -> Request:
    """The request that `data` encodes.

    Raises:
        InvalidArgument: it encodes none.
    """
    try:
        return request_class.FromString(data)
    except DecodeError:
        name = request_class.DESCRIPTOR.name
        raise errors.InvalidArgument(f"The request is not a serialised {name}.") from None


async def next_request(context: Context) -> bytes | None:
    """The next request of a stream, or None once the client has closed its side."""
    data: object = await context.read()
    return data if isinstance(data, bytes) else None


def client_name(context: Context) -> str:
    """User agent and host of the caller, by which the journal knows it."""
    agent = ""
    for key, value in context.invocation_metadata() or ():
        if key == "user-agent":
            agent = str(value)
            break
    # Through the port that REST shares it comes from the front, which names itself after the client.
    peer = context.peer().rpartition("/")[2]
    return f"{agent} {peer.rpartition(':')[0]}"


async def refuse(context: Context, error: PubsubError) -> NoReturn:
    details = [_packed(error.info)] if error.info is not None else []
    await _abort(context, error.status, error.message, *details)


async def refuse_ack_ids(context: Context, answer: Answer) -> NoReturn:
    """End the call with results per ack id."""
    info = errors.ErrorInfo(REASON, DOMAIN, answer.metadata)
    await _abort(context, answer.status, answer.message, _packed(info))


def _packed(info: errors.ErrorInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(ErrorInfo(reason=info.reason, domain=info.domain, metadata=info.metadata))
    return packed


async def _abort(context: Context, status: str, message: str, *details: AnyMessage) -> NoReturn:
    code = grpc.StatusCode[status]
    # Every refusal carries the details trailer: Python's client takes a failed acknowledgement without one,
    # or with one that differs from the status in a byte, for a success.
    whole = Status(code=code.value[0], message=message, details=details)
    await context.abort(code, message, (("grpc-status-details-bin", whole.SerializeToString()),))
    raise AssertionError("abort returned")


@contextmanager
def quiet_if_gone() -> Iterator[None]:
    """Ends what a call was at when its client has gone: nobody is there to be told, and it is no error."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:
        _log.debug("a client has gone: %s", error)


def guarded(handler: Handler) -> Handler:
    """A handler whose errors are answered. What is no PubsubError is a bug of ours, and logged as one."""

    async def handle(data: bytes, context: Context) -> bytes:
        with quiet_if_gone():
            try:
                return await handler(data, context)
            except PubsubError as error:
                await refuse(context, error)
            except grpc.aio.BaseError:
                raise
            except Exception:
                _log.exception("a request could not be handled; this is a bug in pubsubd")
                # ABORTED, so that clients of every language try again and none takes it for an answer.
                await refuse(context, errors.Aborted("The server failed to handle the request; see its log."))
        return b""

    return handle


def unary(handler: Handler) -> MethodHandler:
    """A unary method that gets and returns serialised messages."""
    return grpc.unary_unary_rpc_method_handler(guarded(handler))
