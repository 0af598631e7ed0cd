"""An HTTP server of its own process that push requests go to, and that does with them what it is told.

`python -m tests.support.endpoint` prints its port, and then a line of JSON for each request: all bytes of it.
From its standard input it reads what it is to do, by path: a list of answers, of which the last one is
repeated. An answer is a status, or one of the ways in which endpoints go wrong; see `_answer`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WITHIN_SECONDS = 20.0


# In the process of the endpoint

_MIXED = [*["204"] * 6, "200", "slow:0.05:204", "slow:0.2:204", "500", "hangup", "redirect"]


class _Server:
    def __init__(self) -> None:
        self.plans: dict[str, list[str]] = {}
        self.connections = 0
        self.open = 0
        self.chance = random.Random(1)

    def say(self, **what: Any) -> None:
        print(json.dumps({**what, "at": time.monotonic()}), flush=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection, served = self.connections, 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, _, rest = head.partition(b"\r\n")
                lengths = [
                    one[15:] for one in rest.lower().split(b"\r\n") if one.startswith(b"content-length:")
                ]
                body = await reader.readexactly(int(lengths[0]))
                served += 1
                method, path, _ = line.decode().split(" ")
                self.open += 1
                self.say(
                    what="request",
                    method=method,
                    path=path,
                    head=head.decode("latin-1"),
                    body=base64.b64encode(body).decode(),
                    connection=connection,
                    served=served,
                    open=self.open,
                )
                try:
                    await self._answer(self._next(path), reader, writer)
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.say(what="closed", connection=connection)
        except _Hangup:
            pass
        finally:
            writer.close()

    def _next(self, path: str) -> str:
        plan = self.plans.get(path) or ["204"]
        return plan.pop(0) if len(plan) > 1 else plan[0]

    async def _answer(self, answer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`204`, `slow:0.5:204`, `stall`, `hangup`, `garbage`, `redirect`, `processing`, `large`,
        `close:204`, `mixed`, which is one of several by chance, or `once:204`, which answers and hangs up
        at the next request on the same connection."""
        if answer == "mixed":
            answer = self.chance.choice(_MIXED)
        word, _, rest = answer.partition(":")
        match word:
            case "slow":
                seconds, _, status = rest.partition(":")
                await asyncio.sleep(float(seconds))
                writer.write(_response(status))
            case "stall":
                await reader.read()  # until the other side gives up
                raise asyncio.IncompleteReadError(b"", None)
            case "hangup":
                raise _Hangup
            case "garbage":
                writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
            case "redirect":
                writer.write(b"HTTP/1.1 307 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
            case "processing":
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            case "large":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1_000_000)
            case "close":
                writer.write(_response(rest, b"Connection: close\r\n"))
                await writer.drain()
                raise _Hangup
            case "once":
                writer.write(_response(rest))
                await reader.readuntil(b"\r\n\r\n")
                raise _Hangup
            case _:
                writer.write(_response(answer))
        await writer.drain()


class _Hangup(Exception):
    pass


def _response(status: str, header: bytes = b"") -> bytes:
    if status == "204":
        return b"HTTP/1.1 204 No Content\r\n" + header + b"\r\n"
    return b"HTTP/1.1 %s Whatever\r\n%sContent-Length: 4\r\n\r\nbody" % (status.encode(), header)


async def _main(port: int, certificate: str) -> None:
    server = _Server()
    tls = None
    if certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    listening = await asyncio.start_server(
        server.serve, "127.0.0.1", port, ssl=tls, limit=2**26, backlog=1000
    )
    print(json.dumps({"what": "port", "port": listening.sockets[0].getsockname()[1]}), flush=True)
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order = json.loads(line)
        server.plans[order["path"]] = order["answers"]
        server.say(what="planned", path=order["path"])


# In the process of the tests


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    head: str
    body: bytes
    connection: int
    served: int
    open: int
    at: float
    headers: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        lines = self.head.split("\r\n")[1:-2]
        self.headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]

    def header(self, name: str) -> str:
        (value,) = self.all_of(name)
        return value

    def all_of(self, name: str) -> list[str]:
        return [value for one, value in self.headers if one.lower() == name.lower()]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.json["message"].get("data", ""))


class PushEndpoint:
    """The endpoint as a test has it: `url(path)` for the subscription, `plan` for what it does, `next`."""

    def __init__(self, process: asyncio.subprocess.Process, scheme: str) -> None:
        self.process = process
        self.scheme = scheme
        self.port = 0
        self.requests: list[Request] = []  # all that came
        self._new: asyncio.Queue[Request] = asyncio.Queue()
        self._news = asyncio.Event()
        self._other: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    def url(self, path: str = "/push") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    async def plan(self, *answers: str, path: str = "/push") -> None:
        """What the next requests to `path` are answered; the last answer holds for all that follow."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"path": path, "answers": answers}).encode() + b"\n")
        await self._heard("planned")

    async def next(self, within: float = WITHIN_SECONDS) -> Request:
        """The next request that nobody has looked at."""
        async with asyncio.timeout(within):
            return await self._new.get()

    async def news(self) -> None:
        """Until another request has come, for those who look at `requests`."""
        await self._news.wait()
        self._news.clear()

    async def take(self, count: int, within: float = WITHIN_SECONDS) -> list[Request]:
        async with asyncio.timeout(within):
            return [await self._new.get() for _ in range(count)]

    async def nothing_for(self, seconds: float) -> None:
        """Nothing comes for so long."""
        try:
            request = await self.next(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"a request came: {request}")

    async def connection_closed(self, connection: int, within: float = WITHIN_SECONDS) -> float:
        """Until the other side has closed a connection; when that was."""
        async with asyncio.timeout(within):
            while (found := await self._heard("closed"))["connection"] != connection:
                pass
        return float(found["at"])

    async def _heard(self, what: str) -> dict[str, Any]:
        while (found := await self._other.get())["what"] != what:
            pass
        return found

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            found = json.loads(line)
            if found["what"] == "port":
                self.port = found["port"]
                self._other.put_nowait(found)
            elif found.pop("what") == "request":
                request = Request(**{**found, "body": base64.b64decode(found["body"])})
                self.requests.append(request)
                self._new.put_nowait(request)
                self._news.set()
            else:
                self._other.put_nowait(json.loads(line))

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


@asynccontextmanager
async def push_endpoint(port: int = 0, certificate: Path | None = None) -> AsyncIterator[PushEndpoint]:
    """An endpoint of its own; over TLS with a certificate and its key in one PEM file."""
    words: Sequence[str] = ["-m", "tests.support.endpoint", str(port), str(certificate or "")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )
    endpoint = PushEndpoint(process, "https" if certificate else "http")
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            await endpoint._heard("port")
        yield endpoint
    finally:
        await endpoint.kill()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))
