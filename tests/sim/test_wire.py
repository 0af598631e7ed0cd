"""The network between clients and handlers: order, room, and the ways in which a call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.sim.loop import Process, SimLoop
from tests.sim.wire import Delays, Network, StreamCall

Handler = Callable[..., Awaitable[Any]]


class Net:
    """One handler for every method, behind a network."""

    def __init__(self, handler: Handler) -> None:
        self.loop = SimLoop()
        self.process: Process | None = Process("server")
        self.ended: list[str] = []
        found: Any = SimpleNamespace(unary_unary=handler, stream_stream=handler)
        self.network = Network(
            self.loop,
            Random(7),
            Delays(),
            lambda: None if self.process is None else ((lambda _: found), self.process),
            lambda _, status: self.ended.append(status.code),
        )

    def stream(self, window: int = 1_000) -> StreamCall:
        return self.network.stream("StreamingPull", "somebody", window)

    def run(self, work: Awaitable[None]) -> None:
        async def whole() -> None:
            await work

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()
        assert self.loop.failures == []


async def read_all(call: StreamCall) -> list[bytes]:
    found = []
    while (data := await call.read()) is not None:
        found.append(data)
    return found


# -- unary -------------------------------------------------------------------------------------------------


def test_a_call_is_answered_after_a_while() -> None:
    async def handler(data: bytes, context: Any) -> bytes:
        assert context.invocation_metadata() == (("user-agent", "somebody"),)
        return data + b"!"

    net = Net(handler)

    async def work() -> None:
        future, _ = net.network.unary("Publish", b"hello", "somebody")
        reply = await future
        assert (reply.status.code, reply.data) == ("OK", b"hello!")
        assert net.loop.now_us > 0

    net.run(work())


def test_a_refusal_comes_with_its_details() -> None:
    async def handler(data: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no", (("grpc-status-details-bin", b"details"),))
        return b""

    net = Net(handler)

    async def work() -> None:
        reply = await net.network.unary("Publish", b"", "somebody")[0]
        assert reply.status == ("NOT_FOUND", "no", b"details")

    net.run(work())


def test_what_escapes_from_a_handler_is_told_as_grpc_tells_it() -> None:
    async def handler(data: bytes, context: Any) -> bytes:
        raise ValueError("a bug")

    net = Net(handler)

    async def work() -> None:
        assert (await net.network.unary("Publish", b"", "somebody")[0]).status.code == "UNKNOWN"

    net.run(work())
    assert net.ended == ["UNKNOWN"]


def test_nobody_listens() -> None:
    net = Net(lambda *_: asyncio.sleep(0))
    net.process = None

    async def work() -> None:
        assert (await net.network.unary("Publish", b"", "somebody")[0]).status.code == "UNAVAILABLE"

    net.run(work())


@pytest.mark.parametrize("way", ["deadline", "cancelled", "cut"])
def test_a_call_that_its_client_leaves_is_cancelled(way: str) -> None:
    seen: list[str] = []

    async def handler(data: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return b""

    net = Net(handler)

    async def work() -> None:
        future, call = net.network.unary("Pull", b"", "somebody", 5_000_000 if way == "deadline" else None)
        await asyncio.sleep(1)
        if way == "cancelled":
            call.give_up()
        elif way == "cut":
            call.cut()
        codes = {"deadline": "DEADLINE_EXCEEDED", "cancelled": "CANCELLED", "cut": "UNAVAILABLE"}
        assert (await future).status.code == codes[way]
        await asyncio.sleep(1)
        assert seen == ["cancelled"]
        assert net.network.calls == []

    net.run(work())


def test_the_calls_of_a_dead_server_break() -> None:
    async def handler(data: bytes, context: Any) -> bytes:
        await asyncio.sleep(60)
        return b"never"

    net = Net(handler)

    async def work() -> None:
        future, _ = net.network.unary("Pull", b"", "somebody")
        await asyncio.sleep(1)
        assert net.process is not None
        net.process.alive = False
        net.process = None
        net.network.server_ended()
        assert (await future).status.code == "UNAVAILABLE"

    net.run(work())


# -- streams -----------------------------------------------------------------------------------------------


def test_a_stream_keeps_the_order_of_both_directions() -> None:
    async def handler(_: Any, context: Any) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    net = Net(handler)
    sent = [b"%d" % number for number in range(50)]

    async def work() -> None:
        call = net.stream()
        for data in sent:
            call.write(data)
        call.half_close()
        assert await read_all(call) == sent
        assert call.status.code == "OK"

    net.run(work())


def test_a_client_that_does_not_read_blocks_the_writer() -> None:
    written: list[int] = []

    async def handler(_: Any, context: Any) -> None:
        for number in range(10):
            await context.write(b"x" * 40)
            written.append(number)

    net = Net(handler)

    async def work() -> None:
        call = net.stream(window=100)
        await asyncio.sleep(60)
        assert written == [0, 1]
        await call.read()
        await asyncio.sleep(1)
        assert written == [0, 1, 2]
        assert len(await read_all(call)) == 9

    net.run(work())


def test_a_response_larger_than_the_window_goes_through_alone() -> None:
    async def handler(_: Any, context: Any) -> None:
        await context.write(b"x" * 500)
        await context.write(b"y")

    net = Net(handler)

    async def work() -> None:
        assert await read_all(net.stream(window=100)) == [b"x" * 500, b"y"]

    net.run(work())


@pytest.mark.parametrize("way", ["give_up", "cut"])
@pytest.mark.parametrize("busy", ["reading", "writing"])
def test_a_handler_learns_that_its_client_has_gone(way: str, busy: str) -> None:
    done: list[str] = []

    async def handler(_: Any, context: Any) -> None:
        try:
            if busy == "reading":
                await context.read()
            else:
                while True:
                    await context.write(b"x" * 100)
        finally:
            done.append("ended")

    net = Net(handler)

    async def work() -> None:
        for _ in range(10):
            call = net.stream(window=200)
            await asyncio.sleep(1)
            getattr(call, way)()
            await asyncio.sleep(1)
            assert call.over
        assert done == ["ended"] * 10
        assert net.network.calls == []

    net.run(work())


def test_the_status_comes_after_what_was_sent_before_it() -> None:
    async def handler(_: Any, context: Any) -> None:
        await context.write(b"one")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "come back")

    net = Net(handler)

    async def work() -> None:
        call = net.stream()
        await asyncio.sleep(5)
        assert await read_all(call) == [b"one"]
        assert call.status.message == "come back"

    net.run(work())
