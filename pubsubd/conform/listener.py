"""The push endpoint of a case: an HTTP listener on loopback, where an endpoint on this machine reaches it.

It is written out here, down to the bytes: a case wants to see what was sent and not what a library made of
it, and to answer in ways that no library offers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pubsubd.conform.case import Failed, NotRun, check
from pubsubd.conform.lab import Lab

HOST = "127.0.0.1"
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\]|\[::ffff:127\.\d+\.\d+\.\d+\])(:\d+)?", re.I)
_REQUEST_BYTES_MAX = 2**25


@dataclass
class Push:
    """One request as it came, and when (`time.monotonic`)."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    at: float
    at_once: int  # requests that were not answered then, with this one
    gone_at: float = 0.0  # when the other side closed the connection before it was answered

    def header(self, name: str) -> str:
        """The value of a header; empty without it."""
        values = [value for one, value in self.headers if one.lower() == name.lower()]
        check(len(values) <= 1, f"The header {name} was there {len(values)} times.")
        return values[0] if values else ""

    @property
    def envelope(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body)
        except ValueError:
            raise Failed(f"The body was no JSON: {self.body[:100]!r}.") from None
        check(isinstance(found, dict) and isinstance(found.get("message"), dict), f"The body was {found!r}.")
        return dict(found)

    @property
    def message(self) -> dict[str, Any]:
        return dict(self.envelope["message"])

    @property
    def message_id(self) -> str:
        return str(self.message.get("messageId", "absent"))

    @property
    def data(self) -> bytes:
        try:
            return b64decode(self.message.get("data", ""), validate=True)
        except NotBase64:
            raise Failed(f"The data was no base64: {self.message['data'][:100]!r}.") from None


class Listener:
    """Answers requests as `answers` says, by path: a list of answers, the last of which is repeated.

    An answer is a status, `hangup` (close without a word), `stall` (no answer at all), `redirect`, or
    `slow:SECONDS:STATUS`.
    """

    def __init__(self) -> None:
        self.port = 0
        self.answers: dict[str, list[str]] = {}
        self.came: list[Push] = []
        self._new: asyncio.Queue[Push] = asyncio.Queue()
        self._open = 0
        self._serving: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/push") -> str:
        return f"http://{HOST}:{self.port}{path}"

    def plan(self, *answers: str, path: str = "/push") -> None:
        self.answers[path] = list(answers)

    async def next(self, within: float, what: str = "No push came") -> Push:
        """The next request that nobody has looked at."""
        try:
            async with asyncio.timeout(within):
                return await self._new.get()
        except TimeoutError:
            raise Failed(f"{what} within {within:g} s.") from None

    async def take(self, count: int, within: float) -> list[Push]:
        pushes: list[Push] = []
        deadline = time.monotonic() + within
        while len(pushes) < count:
            left = deadline - time.monotonic()
            try:
                pushes.append(await self.next(max(0.0, left)))
            except Failed:
                raise Failed(f"{len(pushes)} of {count} pushes came within {within:g} s.") from None
        return pushes

    async def nothing_for(self, seconds: float) -> None:
        with contextlib.suppress(Failed):
            push = await self.next(seconds)
            raise Unexpected(f"A push of message {push.message_id} came, where none was due.")

    # -- the listener -------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0, limit=_REQUEST_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What is no request ends the connection, as it would at any server.
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            try:
                while True:
                    push = await self._read(reader)
                    self._open += 1
                    push.at_once = self._open
                    self.came.append(push)
                    self._new.put_nowait(push)
                    try:
                        if not await self._answer(push, reader, writer):
                            return
                    finally:
                        self._open -= 1
            finally:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Push:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape")
        line, *lines = head.split("\r\n")[:-2]
        method, target, _ = line.split(" ")
        pairs = [one.partition(":") for one in lines]
        headers = [(name, value.strip()) for name, _, value in pairs]
        known = {name.lower(): value for name, value in headers}
        if known.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            body = await reader.readexactly(int(known.get("content-length", "0")))
        return Push(method, target, headers, body, time.monotonic(), 0)

    async def _answer(self, push: Push, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        plan = self.answers.get(push.target) or ["204"]
        kind, _, rest = (plan.pop(0) if len(plan) > 1 else plan[0]).partition(":")
        status, more = kind, ""
        if kind == "hangup":
            return False
        if kind == "stall":
            with contextlib.suppress(OSError):
                await reader.read()  # until the other side gives up
            push.gone_at = time.monotonic()
            return False
        if kind == "slow":
            seconds, _, status = rest.partition(":")
            await asyncio.sleep(float(seconds))
        elif kind == "redirect":
            status, more = "302", f"Location: {self.url('/elsewhere')}\r\n"
        # A 102 is no final response in HTTP: nothing else of it may follow.
        length = "" if status in ("102", "204") else "Content-Length: 0\r\n"
        writer.write(f"HTTP/1.1 {status} Answer\r\n{more}{length}\r\n".encode())
        await writer.drain()
        return True


class Unexpected(Failed):
    """Something came that was not due."""


@asynccontextmanager
async def listening(lab: Lab) -> AsyncIterator[Listener]:
    """A listener for this case alone.

    Raises:
        NotRun: the endpoint under test is not on this machine, so it cannot push to loopback.
    """
    if _LOOPBACK.fullmatch(lab.endpoint.address) is None:
        raise NotRun("It listens on loopback, where only an endpoint on this machine can push to.")
    listener = Listener()
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()
