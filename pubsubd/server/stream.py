"""StreamingPull: one reader and one writer around a consumer.

Theory of operation. The writer takes what is in front of it: control responses (pongs, confirmations, changed
properties) before deliveries. When it begins to write a delivery it says so, and the engine may grant the
next one: so one response is in commit, or waits committed, while the previous one is being written, and never
more. A client that does not read therefore stops the granting of leases. A control response waits for no
delivery but the one that the transport already has.

A stream ends for one reason, `_end`: the client half-closed (OK), or an error. Returning from the handler
would mean OK and an escaped exception UNKNOWN, and both stop some clients for good; so every other end is an
abort, UNAVAILABLE where the client should come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc

from pubsubd.broker import Broker, Consumer, Delivery, Refusal
from pubsubd.engine.engine import Engine, NotSettled
from pubsubd.eod.machine import Standing
from pubsubd.model import errors, limits
from pubsubd.model.errors import PubsubError
from pubsubd.model.requests import check_streaming_pull_later
from pubsubd.server import responses
from pubsubd.server.calls import LOOKED_UP, Context, client_name, next_request, parse, quiet_if_gone, refuse
from pubsubd.server.refusals import log_refusals
from pubsubd.wire import pb

_log = logging.getLogger("pubsubd.server")

_DONE = errors.Unavailable("the client has closed its side of the stream")


class Stream:
    """One open StreamingPull; the Shell of its consumer."""

    def __init__(self, engine: Engine, context: Context) -> None:
        self._engine = engine
        self._context = context
        self._control: deque[bytes] = deque()
        self._delivery: Delivery | None = None
        self._something = asyncio.Event()
        self._end: PubsubError | None = None
        self._protocol_version = 0
        self._consumer: Consumer
        self._is_open = False
        self._confirming: set[asyncio.Task[None]] = set()
        self._properties = b""  # as they were last committed
        self._ending = asyncio.Event()
        self._progress = asyncio.Event()  # a request was decided, or a response written

    # -- Shell --------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._something.set()

    def not_delivered(self) -> None:
        if self._end is None:
            self._engine.set_ready(self._consumer)

    def close(self, error: PubsubError) -> None:
        if self._end is None:
            self._end = error
            if self._is_open:
                self._engine.stop_assigning(self._consumer)
            self._something.set()
            self._ending.set()

    def properties_changed(self) -> None:
        self._properties = self._properties_now()
        # Clients of the first protocol version do not expect a response without messages.
        if self._protocol_version >= 1:
            self._send(b"")

    # -- the call -----------------------------------------------------------------------------------------

    async def serve(self) -> None:
        first = await self._open()
        tasks: list[asyncio.Task[Any]] = []
        try:
            # Some clients wait for metadata before they count the stream as open.
            await self._context.send_initial_metadata(())
            self.properties_changed()
            if self._end is None:
                reader, writer = (
                    asyncio.create_task(self._read(first)),
                    asyncio.create_task(self._write()),
                )
                tasks = [reader, writer, asyncio.create_task(self._ending.wait())]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._wind_up(reader, writer)
        finally:
            for task in tasks:
                task.cancel()
            self._forget()
        if self._end is not None and self._end is not _DONE:
            await self._refuse(self._end)

    async def _open(self) -> pb.StreamingPullRequest:
        """Read and check the first request, and open the stream."""
        data = await next_request(self._context)
        try:
            if data is None:
                raise errors.InvalidArgument("The stream was closed before its first request.")
            request = parse(pb.StreamingPullRequest, data)
            broker = await self._engine.broker()
            self._consumer = broker.open_stream(
                request, len(data), client_name(self._context), self._engine.now_us(), self
            )
        except PubsubError as error:
            await self._refuse(error)
        self._is_open = True
        self._protocol_version = request.protocol_version
        return request

    def _forget(self) -> None:
        self.close(_DONE)
        self._engine.close_stream(self._consumer)

    async def _refuse(self, error: PubsubError) -> NoReturn:
        """End the call with `error`, unless that rests on something that did not become durable."""
        if isinstance(error, LOOKED_UP):
            try:
                await self._engine.settled()
            except NotSettled:
                error = errors.interrupted()
        await refuse(self._context, error)

    async def _wind_up(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """One of the two has ended, or the stream was closed: let the writer finish what it is at."""
        for task in (reader, writer):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.close(self._reason(error))
        if self._end is None:
            # Half-closed: nothing new is assigned, and what was received is answered.
            self._engine.stop_assigning(self._consumer)
            if self._confirming:
                await asyncio.wait(self._confirming, timeout=limits.HALF_CLOSE_SECONDS_MAX / 2)
            self.close(_DONE)
        if not writer.done():
            await asyncio.wait([writer], timeout=limits.HALF_CLOSE_SECONDS_MAX / 2)

    @staticmethod
    def _reason(error: BaseException) -> PubsubError:
        """What the client is told when reading or writing ended with `error`."""
        if isinstance(error, grpc.aio.BaseError):
            raise error  # the call is over, so nobody is there to be told
        if isinstance(error, NotSettled):
            return errors.interrupted()
        if isinstance(error, PubsubError):
            return error
        _log.error("a stream failed; this is a bug in pubsubd", exc_info=error)
        return errors.interrupted()

    # -- requests -----------------------------------------------------------------------------------------

    async def _read(self, first: pb.StreamingPullRequest) -> None:
        engine = self._engine
        # The first request may carry acks and extensions of an earlier stream.
        first.stream_ack_deadline_seconds = 0
        self._handle(await engine.broker(), first)
        engine.set_ready(self._consumer)
        while (data := await next_request(self._context)) is not None:
            request = parse(pb.StreamingPullRequest, data)
            check_streaming_pull_later(request, len(data))
            if self._protocol_version >= 1 and not self._control:
                self._send(b"")
            while len(self._confirming) + len(self._control) >= limits.STREAM_REQUESTS_UNCONFIRMED_MAX:
                # A client that sends acks and does not read their confirmations is not read from either.
                self._progress.clear()
                await self._progress.wait()
            self._handle(await engine.broker(), request)

    def _handle(self, broker: Broker, request: pb.StreamingPullRequest) -> None:
        verdict = broker.stream_request(self._consumer, request, self._engine.now_us())
        if not request.ack_ids and not request.modify_deadline_ack_ids:
            return
        subscription = self._consumer.subscription
        log_refusals("ack", subscription.name, verdict.refused_acks)
        log_refusals("modify_ack_deadline", subscription.name, verdict.refused_extensions)
        self._engine.poke()
        if subscription.exactly_once:
            task = asyncio.create_task(
                self._confirm(request, verdict.refused_acks, verdict.refused_extensions)
            )
            self._confirming.add(task)
            task.add_done_callback(self._confirmed)

    def _confirmed(self, task: asyncio.Task[None]) -> None:
        self._confirming.discard(task)
        self._progress.set()

    async def _confirm(
        self,
        request: pb.StreamingPullRequest,
        refused_acks: Sequence[Refusal],
        refused_extensions: Sequence[Refusal],
    ) -> None:
        settled = True
        try:
            await self._engine.settled()
        except NotSettled:
            settled = False
        ack_ids, extended = request.ack_ids, request.modify_deadline_ack_ids
        self._send(
            responses.confirmation(
                _sorted_out(ack_ids, refused_acks, settled) if ack_ids else None,
                _sorted_out(extended, refused_extensions, settled) if extended else None,
            )
        )

    # -- responses ----------------------------------------------------------------------------------------

    def _send(self, response: bytes) -> None:
        self._control.append(response)
        self._something.set()

    async def _write(self) -> None:
        write = self._context.write
        while True:
            if self._end is not None and (
                self._end is not _DONE or not (self._control or self._delivery is not None)
            ):
                return
            if self._control:
                await write(self._control.popleft() + self._properties)
                self._progress.set()
            elif self._delivery is not None:
                await self._write_delivery()
            else:
                await self._something.wait()
                self._something.clear()

    async def _write_delivery(self) -> None:
        delivery, self._delivery = self._delivery, None
        assert delivery is not None
        self._engine.set_ready(self._consumer)
        deadline_us = delivery.leases[0].deadline_us
        useful_us = min(limits.LEASE_LEFT_US_MIN, (deadline_us - delivery.delivered_us) // 2)
        if deadline_us - self._engine.now_us() < useful_us:
            # It waited too long behind a client that did not read. Nobody could make use of it: let it lapse.
            return
        received = responses.received_messages(delivery.leases, delivery.datas, delivery.attempts)
        await self._context.write(received + self._properties)

    def _properties_now(self) -> bytes:
        resource = self._consumer.subscription.resource
        return responses.properties(resource.enable_exactly_once_delivery, resource.enable_message_ordering)


class Streams:
    """All open streams, so that they can be closed before the server stops."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[Stream, asyncio.Task[None] | None] = {}
        self._closing: PubsubError | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def streaming_pull(self, _requests: object, context: Context) -> None:
        if self._closing is not None:
            await refuse(context, self._closing)
        stream = Stream(self._engine, context)
        self._open[stream] = asyncio.current_task()
        try:
            with quiet_if_gone():
                try:
                    await stream.serve()
                except grpc.aio.BaseError:
                    raise
                except Exception:
                    _log.exception("a stream could not be served; this is a bug in pubsubd")
                    await refuse(context, errors.interrupted())
        finally:
            del self._open[stream]

    async def close_all(self, error: PubsubError) -> None:
        """End every stream with `error`, and wait until its client was told."""
        self._closing = error
        tasks = [task for task in self._open.values() if task is not None]
        for stream in self._open:
            stream.close(error)
        if tasks:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait(tasks, timeout=limits.CLOSE_STREAMS_SECONDS_MAX)


def _sorted_out(ack_ids: Sequence[str], refused: Sequence[Refusal], settled: bool) -> responses.Outcomes:
    if not settled:
        return responses.Outcomes([], failed_for_now=list(dict.fromkeys(ack_ids)))
    standings = {refusal.ack_id: refusal.standing for refusal in refused}
    return responses.Outcomes(
        [ack_id for ack_id in dict.fromkeys(ack_ids) if ack_id not in standings],
        [ack_id for ack_id, standing in standings.items() if standing is not Standing.UNORDERED],
        unordered=[ack_id for ack_id, standing in standings.items() if standing is Standing.UNORDERED],
    )
