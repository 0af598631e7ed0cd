"""The port: listens, looks at the first bytes of a connection, and gives it to who speaks that language.

Theory of operation. HTTP/2 begins with a line that is no request of any other version. A connection that
begins with it is relayed to the gRPC server, which listens in a place of its own on this machine; every other
one is HTTP/1 and stays here. The client's address is part of the name by which the relay calls the gRPC
server, so that it is not lost (see `peer_name`).

Source: RFC 9113, section 3.4 (HTTP/2 connection preface).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

from pubsubd.model import limits
from pubsubd.rest.relay import BUFFER_BYTES, Relay

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_BACKLOG: Final = 4096
_READ_BYTES: Final = 64 * 1024

# Out of descriptors or memory: a connection that waits may be accepted later.
_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger("pubsubd.rest")

#: Makes protocols for connections of HTTP/1; awaited at the first of them.
Http = Callable[[], Awaitable[Callable[[], asyncio.Protocol]]]
Address = tuple[Any, ...] | str


class CannotListen(Exception):
    """The text names the address."""


def listen(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Sockets that listen on every host, all on one port; 0 picks a free one.

    Raises:
        CannotListen: one of them is taken, or is not this machine's.
    """
    tries = 8 if port == 0 else 1
    for left in reversed(range(tries)):
        listeners: list[socket.socket] = []
        try:
            for host in hosts:
                bound = listeners[0].getsockname()[1] if listeners else port
                listeners.extend(_listen_on(host, bound))
            return listeners
        except CannotListen:
            for listener in listeners:
                listener.close()
            # A port that is free on one address may be taken on another.
            if not left:
                raise
    raise AssertionError("not reached")


def _listen_on(host: str, port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            if os.name == "posix":
                # What is left of the connections of a server that was killed does not keep the port.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `::` is every address of both families, any other one is only itself.
                only = address[0] != "::"
                with contextlib.suppress(OSError):
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            port = port or listeners[0].getsockname()[1]
            listener.bind((address[0], port, *address[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
    except (OSError, UnicodeError) as error:  # the latter for a name that no resolver can be asked for
        for listener in listeners:
            listener.close()
        raise CannotListen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") from error
    return listeners


def upstream_target() -> tuple[str, str | None]:
    """Where the gRPC server should listen for the front, as gRPC writes it; and the name of that place.

    On Linux that is a name and no file, which goes with the process however it ends. Elsewhere it is
    a port of loopback, which is known only when the server listens (None).
    """
    if sys.platform == "linux":
        name = f"pubsubd-{os.getpid()}-{secrets.token_hex(8)}"
        return f"unix-abstract:{name}", name
    return "127.0.0.1:0", None


def peer_name(address: Address) -> str:
    """A client's address as gRPC writes it: `ipv4:127.0.0.1:5000`."""
    if len(address) == 4:
        return f"ipv6:%5B{address[0]}%5D:{address[1]}"
    return f"ipv4:{address[0]}:{address[1]}"


class Front:
    """`upstream` is the name of the gRPC server's place, or its port of loopback."""

    def __init__(self, listeners: Sequence[socket.socket], upstream: str | int, http: Http) -> None:
        self._listeners = listeners
        self._upstream = upstream
        self._http = http
        self._numbers = count(1)
        self._relays: dict[Relay, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for listener in self._listeners:
            self._keep(asyncio.create_task(self._accept(listener), name="accept"))

    async def flushed(self) -> None:
        """Until what the gRPC server has said is on its way to its clients, or the time for that is over.

        Connections stay open: whoever ends the process closes them.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.ANSWER_SECONDS_MAX):
                while any([relay.owes for relay in self._relays]):
                    await asyncio.sleep(0.002)

    def close(self) -> None:
        """For a server that could not start: nothing was accepted yet that anybody would miss."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _FULL:
                    _log.warning("no more connections can be accepted at present: %s", error)
                    await asyncio.sleep(limits.ACCEPT_PAUSE_SECONDS)
                continue
            self._keep(asyncio.create_task(self._begin(connection, address)))

    async def _begin(self, connection: socket.socket, address: Address) -> None:
        try:
            async with asyncio.timeout(limits.FIRST_BYTES_SECONDS_MAX):
                first = await _first_bytes(connection)
            if not first:
                connection.close()
            elif first.startswith(_PREFACE[:3]):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._relay(connection, address, first)
            else:
                await self._serve_http(connection, first)
        except (OSError, TimeoutError) as error:
            _log.debug("a connection ended before it began: %s", error)
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def _relay(self, client: socket.socket, address: Address, first: bytes) -> None:
        server = await self._dial(address)
        relay = Relay(client, server, self._relays.pop)
        self._relays[relay] = None
        relay.start(first)

    async def _dial(self, address: Address) -> socket.socket:
        if isinstance(self._upstream, int):
            server = socket.socket()
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(server, ("127.0.0.1", self._upstream))
            return server
        server = socket.socket(socket.AF_UNIX)
        server.setblocking(False)
        # So that it takes what was read in one piece; with the usual size the rest would wait for a turn.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * BUFFER_BYTES)
        # gRPC shows it encoded, as it would show the address itself.
        server.bind(f"\0{self._upstream}-{next(self._numbers)}/{unquote(peer_name(address))}")
        while True:
            try:
                server.connect(f"\0{self._upstream}")
                return server
            except BlockingIOError:  # it has not accepted the last few thousand yet
                await asyncio.sleep(0.01)

    async def _serve_http(self, connection: socket.socket, first: bytes) -> None:
        make = await self._http()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Begun(make(), first), connection)


async def _first_bytes(connection: socket.socket) -> bytes:
    """As many as tell HTTP/2 from everything else; fewer only if there are no more."""
    connection.setblocking(False)
    first = b""
    while len(first) < 3 and _PREFACE.startswith(first):
        more = await asyncio.get_running_loop().sock_recv(connection, _READ_BYTES)
        if not more:
            break
        first += more
    return first


class _Begun(asyncio.Protocol):
    """Stands in for a protocol until it has been given what was read before it was there."""

    def __init__(self, protocol: asyncio.Protocol, first: bytes) -> None:
        self._protocol = protocol
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self._protocol.data_received(self._first)
