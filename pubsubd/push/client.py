"""The HTTP client of push: one POST, and whether its answer acknowledges.

Theory of operation. One session for all endpoints keeps connections open. Only the status of a response
counts; its body is read as far as the connection needs it to be used again, and no redirect is followed.
Whoever sends cancels the task at the deadline of the message, so there are no timeouts here but for what
comes after the status.

Two things that aiohttp decides otherwise are done around it. `102 Processing` acknowledges, though in HTTP
it announces another response. And a server may close a connection that it has kept open at the moment at
which we use it again; a request that was cut off like that, without a byte of an answer, goes once more on
another connection and is no failure of the endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import Any, NamedTuple

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from pubsubd.model import limits
from pubsubd.model.push import ACKNOWLEDGING, PushRequest

_log = logging.getLogger("pubsubd.push")

# Files that a server needs beside those of its pushes.
_FILES_OTHERWISE = 256
_PROCESSING = 102
_LINE_BYTES_MAX = 64 * 1024


class Result(NamedTuple):
    """What became of a request; `reason` says in words why it was not accepted."""

    accepted: bool
    reason: str = ""


class _Processing(Exception):
    """The endpoint has answered 102."""


class _CutOff(Exception):
    """A connection that had served a request before ended without a byte of an answer to this one."""


class _Response(aiohttp.ClientResponse):
    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        read, used = protocol.read, getattr(protocol, "has_served", False)

        async def look() -> Any:
            message, payload = await read()
            if message.code == _PROCESSING:
                raise _Processing
            return message, payload

        protocol.has_served = True
        protocol.read = look
        try:
            return await super().start(connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if used:
                raise _CutOff from error
            raise
        finally:
            protocol.read = read


class Turns:
    """Bounds what is under way to all endpoints together; who comes later waits in line."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count, self._bytes = count_max, bytes_max
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, size: int) -> None:
        if not self._line and self._has_room():
            self._give(size)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((future, size))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._count += 1
        self._bytes += size
        while self._line and (self._line[0][0].done() or self._has_room()):
            future, wanted = self._line.popleft()
            if not future.done():
                self._give(wanted)
                future.set_result(None)

    def _has_room(self) -> bool:
        # The last one may be larger than what is left, so that any message gets through.
        return self._count > 0 and self._bytes > 0

    def _give(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size


class Client:
    """Made inside the event loop that it is used in."""

    def __init__(self) -> None:
        self.turns = Turns(_files_max(), limits.PUSH_BYTES_ALL_MAX)
        self._session = aiohttp.ClientSession(
            # How many requests there are is the window's business.
            connector=aiohttp.TCPConnector(
                limit=0, limit_per_host=0, keepalive_timeout=limits.PUSH_KEEP_ALIVE_SECONDS
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            response_class=_Response,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
        )

    async def close(self) -> None:
        await self._session.close()

    async def post(self, url: URL, request: PushRequest, authorization: str) -> Result:
        headers = CIMultiDict(request.headers)
        if authorization:
            headers["Authorization"] = authorization
        try:
            try:
                return await self._post(url, headers, request.body)
            except (_CutOff, aiohttp.ClientConnectionResetError):
                return await self._post(url, headers, request.body)
        except _Processing:
            return Result(True)
        except (aiohttp.ClientError, _CutOff, OSError, ssl.SSLError, ValueError) as error:
            return Result(False, _in_words(error))

    async def _post(self, url: URL, headers: CIMultiDict[str], body: bytes) -> Result:
        response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        try:
            if not response.closed:
                await _drain(response)
        finally:
            response.release()
        status = response.status
        return Result(True) if status in ACKNOWLEDGING else Result(False, f"it answered {status}")


def _in_words(error: Exception) -> str:
    """One line for the log, whatever the other side has sent."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words[: limits.ECHO_CHARS_MAX].encode("ascii", "backslashreplace").decode()


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a body that is short and prompt, so that its connection can be used again."""
    left = limits.PUSH_RESPONSE_BYTES_MAX
    try:
        async with asyncio.timeout(limits.PUSH_RESPONSE_SECONDS_MAX):
            while left > 0 and (data := await response.content.readany()):
                left -= len(data)
    except (aiohttp.ClientError, OSError, TimeoutError):
        left = 0
    if left <= 0:
        response.close()


def _files_max() -> int:
    """How many connections there may be at once; the server asked for more files when it started."""
    try:
        import resource
    except ImportError:  # Windows
        return limits.PUSHES_ALL_MAX
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.PUSHES_ALL_MAX
    return max(1, min(limits.PUSHES_ALL_MAX, soft - _FILES_OTHERWISE))
