"""The world of one case: a server of this repository, and all that the conformance suite has for any."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pubsubd.conform.endpoint import Endpoint
from pubsubd.conform.lab import (
    Delivery,
    Lab,
    Setting,
    Stream,
    Sub,
    data_of,
    from_now,
    message_ids,
    timestamp,
    until,
)
from pubsubd.wire import admin_pb
from tests.support.server import ServerProcess
from tests.wire.calls import ADMIN, Client

__all__ = [
    "Delivery",
    "Stream",
    "Sub",
    "World",
    "data_of",
    "from_now",
    "message_ids",
    "timestamp",
    "unique",
    "until",
    "us_of",
]

_numbers = itertools.count(1)

# A start takes all of a core for a while, and many at once would keep the others from theirs for seconds.
# What a case starts again does not wait: leases run on meanwhile.
_STARTING = asyncio.Semaphore(2)


def unique(word: str, project: str = "wire") -> str:
    """A resource name that no other case of this run uses, such as `projects/wire/topics/t-7`."""
    return f"projects/{project}/{word}s/{word[0]}{os.getpid()}-{next(_numbers)}"


class FlaggedStream(Stream):
    """A stream whose every response has the flags: without them three client libraries take them for off."""

    async def __aexit__(self, kind: object, *rest: object) -> None:
        await super().__aexit__(kind, *rest)
        assert kind is not None or not self.bare_responses, self.bare_responses[0]


class World(Lab):
    """A server that listens on `address`, as one case sees it."""

    stream_type = FlaggedStream

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(Setting(Endpoint(server.address), "wire"))
        self.server = server

    def name(self, word: str) -> str:
        """A name that no other case has; nobody deletes it, for the server goes with the tests."""
        return unique(word)

    def connect(self) -> None:
        super().connect()
        if self.server.admin_port:
            self.admin = Client(self._keep(Endpoint(self.server.admin_address).channel()), [ADMIN])

    @asynccontextmanager
    async def own_server(self, *options: str, in_memory: bool = False) -> AsyncIterator[World]:
        """A server for this case alone: one it may stop, kill or put under load."""
        with tempfile.TemporaryDirectory() as data_dir:
            server = ServerProcess(None if in_memory else Path(data_dir), *options, admin=True)
            async with _STARTING:
                await asyncio.to_thread(server.start)
            world = World(server)
            world.connect()
            try:
                yield world
            finally:
                await world.disconnect()
                if server.process is not None and server.process.poll() is None:
                    await asyncio.to_thread(server.kill)
            assert "Traceback" not in server.output, server.output

    async def kill_server(self) -> None:
        """SIGKILL: what the server had not committed is gone."""
        await asyncio.to_thread(self.server.kill)
        await self.disconnect()

    async def start_server(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.connect()

    async def restart_server(self) -> None:
        await self.kill_server()
        await self.start_server()

    async def said(self, *words: str, count: int = 1) -> list[str]:
        """The lines of the server's output with these words; they may arrive a little after a reply."""
        for _ in range(100):
            lines = [line for line in self.server.lines if all(word in line for word in words)]
            if len(lines) >= count:
                return lines
            await asyncio.sleep(0.03)
        raise AssertionError(f"no {count} lines with {words} in: {self.server.output}")

    async def inject_fault(self, fault: int, **fields: Any) -> None:
        await self.admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=fault, **fields))

    async def state_of(self, sub: Sub) -> Any:
        (state,) = (await self.admin.GetState(subscription=sub.name)).subscriptions
        return state


def us_of(moment: Any) -> int:
    """Microseconds since the epoch of a Timestamp."""
    assert moment.nanos % 1000 == 0, "times of this server are whole microseconds"
    return moment.seconds * 1_000_000 + moment.nanos // 1000
