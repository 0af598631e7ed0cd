"""A door in front of the server: while the server is down, whoever comes is let wait instead of turned away.

The library opens a broken stream again at once, and at most five times in ten seconds. A port that refuses
connections uses those five up in a few milliseconds, so that each kill silences every subscriber for ten
seconds, and a server that is killed more often meets hardly any. Behind this door, as behind a load balancer,
a new connection waits for the next server, and all clients are back as soon as that is.

Nothing else is changed: bytes are handed on as they come, and when the server dies its connections break.
It is a process of its own. The first line of its output is its port; it ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading

_KNOCK_SECONDS = 0.01
_CHUNK_BYTES = 65_536


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has ended; what was read before is still written."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


async def _server(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_KNOCK_SECONDS)


async def _serve(port: int, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
    reader, writer = await _server(port)
    ways = [
        asyncio.create_task(_hand_on(client_reader, writer)),
        asyncio.create_task(_hand_on(reader, client_writer)),
    ]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for side in (writer, client_writer):
        side.close()
    await asyncio.wait(ways)


async def _stand(port: int) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve(port, reader, writer)

    door = await asyncio.start_server(meet, "127.0.0.1", 0)
    print(door.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end_with_input() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=end_with_input, daemon=True).start()
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True, help="where the server is, when it is there")
    asyncio.run(_stand(parser.parse_args().port))


if __name__ == "__main__":
    main()
