"""The network: calls of clients that reach the handlers of the server, with delays, cuts and bounded buffers.

Handlers get bytes and a fake ServicerContext, and nothing tells them that there is no socket. What is under
way in one direction of a stream keeps its order. `write` of the server returns when the bytes fit into the
window of the client, who opens it by reading: a client that does not read blocks it.

A call ends for the server by its own doing, or because the client cancelled, its deadline passed, or the
connection was cut; then its task is cancelled, and reads and writes fail in some order, as with gRPC.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import grpc

from pubsubd.server.calls import MethodHandler
from tests.sim.loop import Process, SimLoop

Trailers = Sequence[tuple[str, bytes]]


class Status(NamedTuple):
    """How a call ended, as its client hears it."""

    code: str  # canonical name; "" while it goes on
    message: str = ""
    details: bytes = b""  # google.rpc.Status

    @property
    def ok(self) -> bool:
        return self.code == "OK"


LOST = Status("UNAVAILABLE", "the connection was lost")
NOBODY = Status("UNAVAILABLE", "nobody listens")
LATE = Status("DEADLINE_EXCEEDED", "no answer in time")
CANCELLED = Status("CANCELLED", "cancelled by its client")


class Reply(NamedTuple):
    status: Status
    data: bytes = b""


class Delays(NamedTuple):
    """How long a message takes, in microseconds: mostly near `least`, at times up to `most`."""

    least: int = 100
    most: int = 2_000
    slow: float = 0.02  # how many of them take ten times as long


class Network:
    """`serving` gives the handlers and the process of the server that listens, or None."""

    def __init__(
        self,
        loop: SimLoop,
        chance: Random,
        delays: Delays,
        serving: Callable[[], tuple[Callable[[str], MethodHandler], Process] | None],
        ended: Callable[[str, Status], None],
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.delays = delays
        self.serving = serving
        self.ended = ended  # told how each call ended on the server's side
        self._outside = contextvars.Context()  # of no process
        self._calls: dict[Call, None] = {}

    def after(self, us: int, callback: Callable[..., object], *args: Any) -> None:
        """Let something happen that belongs to no process."""
        self.loop.call_at_us(self.loop.now_us + us, callback, *args, context=self._outside)

    def delay_us(self) -> int:
        delays, chance = self.delays, self.chance
        us = chance.randint(delays.least, delays.most)
        return us * 10 if chance.random() < delays.slow else us

    def unary(
        self, method: str, data: bytes, agent: str, deadline_us: int | None = None
    ) -> tuple[asyncio.Future[Reply], Call]:
        call = UnaryCall(self, method, agent, deadline_us)
        call.begin(data)
        return call.reply, call

    def stream(self, method: str, agent: str, window: int) -> StreamCall:
        call = StreamCall(self, method, agent, window)
        call.begin()
        return call

    def opened(self, call: Call) -> None:
        self._calls[call] = None

    def closed(self, call: Call) -> None:
        self._calls.pop(call, None)

    def server_ended(self) -> None:
        """Its process is gone: every call breaks. What it had sent may arrive, or not."""
        for call in list(self._calls):
            call.broken()

    @property
    def calls(self) -> list[Call]:
        return list(self._calls)


class Context:
    """The part of grpc.aio.ServicerContext that handlers use."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return (("user-agent", self._call.agent),)

    def peer(self) -> str:
        return "ipv4:10.0.0.1:50000"

    def time_remaining(self) -> float | None:
        at_us = self._call.deadline_at_us
        return None if at_us is None else max(0, at_us - self._call.network.loop.now_us) / 1e6

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._call.check_not_gone()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailers = ()) -> None:
        self._call.check_not_gone()
        binary = dict(trailing_metadata).get("grpc-status-details-bin", b"")
        self._call.end(Status(code.name, details, binary))
        raise grpc.aio.AbortError("Locally aborted.")

    async def read(self) -> Any:
        assert isinstance(self._call, StreamCall)
        return await self._call.server_read()

    async def write(self, data: bytes) -> None:
        assert isinstance(self._call, StreamCall)
        await self._call.server_write(data)


class Call:
    """One call, both of its ends."""

    def __init__(self, network: Network, method: str, agent: str, deadline_us: int | None) -> None:
        self.network = network
        self.method = method
        self.agent = agent
        self.deadline_at_us = None if deadline_us is None else network.loop.now_us + deadline_us
        self.task: asyncio.Task[Any] | None = None  # of the handler
        self.gone = False  # the client is, as far as the server can know
        self.server_status: Status | None = None
        network.opened(self)
        if deadline_us is not None:
            network.after(deadline_us, self.give_up, LATE)

    # -- the server's side ----------------------------------------------------------------------------------

    def check_not_gone(self) -> None:
        if self.gone:
            raise grpc.aio.InternalError("the call is over")

    def end(self, status: Status) -> None:
        """The server says how it ended."""
        if self.server_status is None:
            self.server_status = status
            self.network.ended(self.method, status)

    def start(self, run: Callable[[MethodHandler, Context], Any]) -> None:
        """The call reaches the server, or nobody."""
        if self.over or self.gone:
            return
        serving = self.network.serving()
        if serving is None:
            self.network.after(self.network.delay_us(), self.finish, NOBODY)
            return
        handler_of, process = serving
        coroutine = self._serve(run, handler_of(self.method))
        self.task = self.network.loop.create_task(coroutine, context=process.context.copy())

    async def _serve(self, run: Callable[[MethodHandler, Context], Any], handler: MethodHandler) -> None:
        data = b""
        try:
            data = await run(handler, Context(self))
            self.end(Status("OK"))
        except grpc.aio.AbortError:
            assert self.server_status is not None, "aborted without a status"
        except grpc.aio.BaseError:
            if not self.gone:
                raise
        except asyncio.CancelledError:
            if not self.gone:
                raise
            return
        except Exception as error:  # what grpc.aio makes of it
            self.end(Status("UNKNOWN", f"Unexpected {type(error)}: {error}"))
        if not self.gone:
            self.answered(data or b"")

    def answered(self, data: bytes) -> None:
        raise NotImplementedError

    def client_gone(self) -> None:
        """The server learns that its client has gone."""
        if not self.gone:
            self.gone = True
            if self.task is not None and not self.task.done():
                self.task.cancel()

    # -- the client's side ----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        raise NotImplementedError

    def finish(self, status: Status) -> None:
        raise NotImplementedError

    def give_up(self, status: Status = CANCELLED) -> None:
        """The client wants no answer any more."""
        if not self.over:
            self.finish(status)
            self.network.after(self.network.delay_us(), self.client_gone)

    def cut(self) -> None:
        """The connection breaks, and both sides learn of it, each in its time."""
        if not self.over:
            self.network.after(self.network.delay_us(), self.finish, LOST)
            self.network.after(self.network.delay_us(), self.client_gone)

    def broken(self) -> None:
        """The server's process has ended."""
        self.gone = True
        self.network.after(self.network.delay_us(), self.finish, LOST)


class UnaryCall(Call):
    def __init__(self, network: Network, method: str, agent: str, deadline_us: int | None) -> None:
        self.reply: asyncio.Future[Reply] = network.loop.create_future()
        super().__init__(network, method, agent, deadline_us)

    def begin(self, data: bytes) -> None:
        async def run(handler: MethodHandler, context: Context) -> Any:
            return await handler.unary_unary(data, context)

        self.network.after(self.network.delay_us(), self.start, run)

    def answered(self, data: bytes) -> None:
        status = self.server_status
        assert status is not None
        self.network.after(self.network.delay_us(), self.arrive, Reply(status, data))

    def arrive(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)
        self.network.closed(self)

    @property
    def over(self) -> bool:
        return self.reply.done()

    def finish(self, status: Status) -> None:
        self.arrive(Reply(status))


class StreamCall(Call):
    """`window`: how many bytes the server may have sent that the client has not read."""

    def __init__(self, network: Network, method: str, agent: str, window: int) -> None:
        super().__init__(network, method, agent, None)
        self.status = Status("")
        self._window = window
        self._unread = 0
        self._to_client: deque[bytes] = deque()
        self._to_server: deque[bytes] = deque()
        self._client_wakes: asyncio.Future[None] | None = None
        self._server_wakes: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._half_closed = False
        self._client_free_us = self._server_free_us = 0  # when the last that is under way arrives
        self._last: Status | None = None  # arrived, behind responses that are not read yet

    def begin(self) -> None:
        async def run(handler: MethodHandler, context: Context) -> None:
            await handler.stream_stream(None, context)

        self._send_to_server(self.start, run)

    # -- under way ------------------------------------------------------------------------------------------

    def _send_to_server(self, callback: Callable[..., object], *args: Any) -> None:
        now_us = self.network.loop.now_us
        self._server_free_us = max(self._server_free_us, now_us + self.network.delay_us())
        self.network.after(self._server_free_us - now_us, callback, *args)

    def _send_to_client(self, callback: Callable[..., object], *args: Any) -> None:
        now_us = self.network.loop.now_us
        self._client_free_us = max(self._client_free_us, now_us + self.network.delay_us())
        self.network.after(self._client_free_us - now_us, callback, *args)

    # -- the server's side ----------------------------------------------------------------------------------

    async def server_read(self) -> Any:
        while not self._to_server:
            if self._half_closed or self.gone:
                return grpc.aio.EOF
            self._server_wakes = self.network.loop.create_future()
            await self._server_wakes
        return self._to_server.popleft()

    async def server_write(self, data: bytes) -> None:
        self.check_not_gone()
        while self._unread and self._unread + len(data) > self._window:
            room: asyncio.Future[None] = self.network.loop.create_future()
            self._room.append(room)
            await room
            self.check_not_gone()
        self._unread += len(data)
        self._send_to_client(self._arrive_at_client, data)

    def answered(self, data: bytes) -> None:
        assert self.server_status is not None
        self._send_to_client(self._end_arrives, self.server_status)

    def client_gone(self) -> None:
        if self.gone:
            return
        if self.network.chance.random() < 0.5:
            super().client_gone()
            self._wake_server()
        else:
            # Reads and writes learn of it first, and the handler is cancelled a little later.
            self.gone = True
            self._wake_server()
            self.network.after(self.network.chance.choice((0, 0, 500)), self._cancel)

    def _cancel(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def _wake_server(self) -> None:
        _wake(self._server_wakes)
        while self._room:
            _wake(self._room.popleft())

    def _arrive_at_server(self, data: bytes) -> None:
        self._to_server.append(data)
        _wake(self._server_wakes)

    def _half_close_arrives(self) -> None:
        self._half_closed = True
        _wake(self._server_wakes)

    # -- the client's side ----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return bool(self.status.code)

    def write(self, data: bytes) -> None:
        if not self.over:
            self._send_to_server(self._arrive_at_server, data)

    def half_close(self) -> None:
        self._send_to_server(self._half_close_arrives)

    async def read(self) -> bytes | None:
        """The next response, or None when the stream is over; then `status` says how it ended."""
        while not self._to_client:
            if self._last is not None and not self.over:
                self.finish(self._last)
            if self.over:
                return None
            self._client_wakes = self.network.loop.create_future()
            await self._client_wakes
        data = self._to_client.popleft()
        # The window opens again, and the server hears of it a little later.
        self.network.after(self.network.delay_us(), self._read_by_client, len(data))
        return data

    def _read_by_client(self, size: int) -> None:
        self._unread -= size
        while self._room:
            _wake(self._room.popleft())

    def _arrive_at_client(self, data: bytes) -> None:
        if not self.over:
            self._to_client.append(data)
            _wake(self._client_wakes)

    def _end_arrives(self, status: Status) -> None:
        self._last = self._last or status
        _wake(self._client_wakes)

    def finish(self, status: Status) -> None:
        if not self.over:
            self.status = status
            self._to_client.clear()
            _wake(self._client_wakes)
        self.network.closed(self)

    def broken(self) -> None:
        self.gone = True
        # What the dead process had sent arrives first, or is lost with the connection.
        if self.network.chance.random() < 0.5:
            self._send_to_client(self._end_arrives, LOST)
        else:
            self.network.after(self.network.delay_us(), self.finish, LOST)


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
