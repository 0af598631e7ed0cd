"""A push endpoint that does as little as it can: `python -m tests.bench.sink` prints its port.

After so many requests as a line on its standard input names, counted from there, it prints when they were
there (`time.monotonic`).
"""

from __future__ import annotations

import asyncio
import sys
import time

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = b"\r\ncontent-length: "


class Count:
    def __init__(self) -> None:
        self.left = 0

    def came(self) -> None:
        self.left -= 1
        if not self.left:
            print(time.monotonic(), flush=True)


class Sink(asyncio.Protocol):
    def __init__(self, count: Count) -> None:
        self._count = count
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while (end := self._bytes.find(b"\r\n\r\n")) >= 0:
            head = self._bytes[: end + 2].lower()
            start = head.index(_LENGTH) + len(_LENGTH)
            size = end + 4 + int(head[start : head.index(b"\r", start)])
            if len(self._bytes) < size:
                return
            self._bytes = self._bytes[size:]
            self._transport.write(_ANSWER)
            self._count.came()


async def main() -> None:
    count, loop = Count(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: Sink(count), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        count.left = int(line)


if __name__ == "__main__":
    asyncio.run(main())
