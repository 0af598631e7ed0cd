"""Bytes between two sockets, both ways: a client of gRPC and the gRPC server behind the front.

Theory of operation. Each direction has one reader callback. It takes what has come into a buffer that all
share, and hands it on at once; what the other side does not take is kept, and nothing more is read until that
is gone. So a connection holds no more than one buffer, and whoever does not read is not read for: the
backpressure of one socket is that of the other.

gRPC says goodbye in its own words and then closes, so the end of the server's side ends both; the end of the
client's side is told to the server, which answers it by its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

#: What is moved at once, at most: the fewer pieces, the less each byte costs.
BUFFER_BYTES: Final = 512 * 1024

# Callbacks of one loop do not overlap, so one buffer is enough for all.
_BUFFER: Final = memoryview(bytearray(BUFFER_BYTES))


class _Direction:
    """From one socket to another."""

    __slots__ = ("_kept", "_loop", "_on_end", "_sink", "_source")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        sink: socket.socket,
        on_end: Callable[[bool], None],
    ) -> None:
        """`on_end` is called at the end of `source`; with True if there is nobody to be told of it."""
        self._loop = loop
        self._source = source
        self._sink = sink
        self._on_end = on_end
        self._kept: memoryview | None = None

    @property
    def has_kept(self) -> bool:
        return self._kept is not None

    def start(self, first: bytes) -> None:
        """Hand on what was read from the source already, then what comes from it."""
        if first:
            self._pass_on(memoryview(first))
        self._go_on()

    def _readable(self) -> None:
        try:
            size = self._source.recv_into(_BUFFER)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._on_end(True)
            return
        if not size:
            self._loop.remove_reader(self._source)
            self._on_end(False)
            return
        self._pass_on(_BUFFER[:size])
        if self._kept is not None:
            self._loop.remove_reader(self._source)

    def _writable(self) -> None:
        kept, self._kept = self._kept, None
        assert kept is not None
        self._loop.remove_writer(self._sink)
        self._pass_on(kept)
        self._go_on()

    def _go_on(self) -> None:
        if self._kept is None and self._source.fileno() >= 0:
            self._loop.add_reader(self._source, self._readable)

    def _pass_on(self, data: memoryview) -> None:
        try:
            sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._on_end(True)
            return
        if sent < len(data):
            self._kept = memoryview(bytes(data[sent:]))
            self._loop.add_writer(self._sink, self._writable)


class Relay:
    """A client's connection and the one that was made for it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, on_closed: Callable[[Relay], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._server = server
        self._on_closed = on_closed
        self._is_closed = False
        self._to_server = _Direction(self._loop, client, server, self._client_ended)
        self._to_client = _Direction(self._loop, server, client, self._server_ended)

    def start(self, first: bytes) -> None:
        """`first` was read from the client already."""
        self._to_client.start(b"")
        self._to_server.start(first)

    @property
    def owes(self) -> bool:
        """Whether the server has said anything that is not on its way to the client yet."""
        if self._is_closed:
            return False
        if self._to_client.has_kept:
            return True
        try:
            return bool(self._server.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for end in (self._client, self._server):
            self._loop.remove_reader(end)
            self._loop.remove_writer(end)
            end.close()
        self._on_closed(self)

    def _client_ended(self, abruptly: bool) -> None:
        if abruptly:
            self.close()
            return
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def _server_ended(self, abruptly: bool) -> None:
        self.close()
