"""Bytes between two sockets: all of them, in order, and no more at once than the other side takes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from pubsubd.rest.relay import Relay

SIZE = 5_000_000


class Ends:
    """A relay between two pairs of sockets; the outer ends are the test's."""

    def __init__(self) -> None:
        self.client, front = socket.socketpair()
        behind, self.server = socket.socketpair()
        self.inner = (front, behind)
        for end in (self.client, self.server, *self.inner):
            end.setblocking(False)
        self.closed: list[Relay] = []
        self.relay = Relay(front, behind, self.closed.append)

    async def send(self, end: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(end, data)

    async def read(self, end: socket.socket, size: int, slowly: bool = False) -> bytes:
        """`size` bytes, or fewer if no more come."""
        data = bytearray()
        while len(data) < size and (more := await asyncio.get_running_loop().sock_recv(end, 100_000)):
            data += more
            if slowly:
                await asyncio.sleep(0)
        return bytes(data)


@pytest.fixture
async def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.relay.close()
    ends.client.close()
    ends.server.close()


async def test_what_goes_in_comes_out_in_order_both_ways_at_once(ends: Ends) -> None:
    there, back = random.Random(1).randbytes(SIZE), random.Random(2).randbytes(SIZE)
    ends.relay.start(there[:1000])
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(ends.send(ends.client, there[1000:]))
        group.create_task(ends.send(ends.server, back))
        arrived = group.create_task(ends.read(ends.server, SIZE, slowly=True))
        answered = group.create_task(ends.read(ends.client, SIZE))

    assert arrived.result() == there
    assert answered.result() == back
    assert not ends.relay.owes


async def test_nothing_is_read_for_who_does_not_read(ends: Ends) -> None:
    ends.relay.start(b"")
    sent = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                with contextlib.suppress(BlockingIOError):
                    sent += ends.server.send(bytes(100_000))
                await asyncio.sleep(0.001)
    assert sent < 3_000_000
    assert ends.relay.owes, "what the client did not take is owed"
    async with asyncio.timeout(10):
        assert len(await ends.read(ends.client, sent)) == sent
    assert not ends.relay.owes


async def test_the_servers_last_words_arrive_before_its_end(ends: Ends) -> None:
    data = random.Random(3).randbytes(SIZE)
    ends.relay.start(b"")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        read = group.create_task(ends.read(ends.client, SIZE + 1, slowly=True))
        await ends.send(ends.server, data)
        ends.server.close()

    assert read.result() == data
    assert ends.closed == [ends.relay]
    assert [end.fileno() for end in ends.inner] == [-1, -1]


async def test_the_end_of_the_client_is_told_to_the_server_which_may_still_answer(ends: Ends) -> None:
    ends.relay.start(b"question")
    ends.client.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(5):
        assert await ends.read(ends.server, 100) == b"question"
        await ends.send(ends.server, b"answer")
        assert await ends.read(ends.client, 6) == b"answer"
        ends.server.close()
        assert await ends.read(ends.client, 1) == b""
    assert ends.closed == [ends.relay]


async def test_a_side_that_is_gone_ends_both(ends: Ends) -> None:
    ends.relay.start(b"")
    ends.client.close()
    async with asyncio.timeout(5):
        assert await ends.read(ends.server, 1) == b""
        ends.server.send(b"too late")
        while not ends.closed:
            await asyncio.sleep(0.001)
    assert not ends.relay.owes
    ends.relay.close()
    assert ends.closed == [ends.relay], "it is closed once"


async def test_a_server_that_is_gone_before_the_first_word_ends_it(ends: Ends) -> None:
    ends.server.close()
    ends.relay.start(b"hello")
    async with asyncio.timeout(5):
        assert await ends.read(ends.client, 1) == b""
        assert ends.closed == [ends.relay]
