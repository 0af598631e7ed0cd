"""A relay between a client and the endpoint, for replies that get lost on their way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Self

from pubsubd.conform.case import Erred
from pubsubd.conform.endpoint import Endpoint

PIECE_BYTES_MAX = 1 << 16


class Relay:
    """Passes bytes on in both directions, until it is told to keep those of the server, or to hang up.

    Bytes are all that it knows, so it serves connections with TLS too.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._far = endpoint
        self._deaf = False
        self._sent = asyncio.Event()
        self._links: list[asyncio.StreamWriter] = []
        self.bytes_kept = 0  # what the server said since `keep_replies`

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = replace(self._far, address=f"127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()

    @property
    def options(self) -> list[tuple[str, str]]:
        """Channel options by which the other side seems to be the endpoint itself."""
        host = self._far.address.rpartition(":")[0]
        if self._far.credentials is None:
            return []
        return [("grpc.ssl_target_name_override", host), ("grpc.default_authority", self._far.address)]

    def keep_replies(self) -> None:
        """From now on the client hears nothing more; what it says still arrives."""
        self._deaf = True
        self._sent.clear()

    async def request_sent(self, within: float = 10) -> None:
        """Until the client has said something since `keep_replies`, and it was passed on."""
        try:
            async with asyncio.timeout(within):
                await self._sent.wait()
        except TimeoutError:
            raise Erred(f"The client had sent nothing after {within:g} s.") from None

    def hang_up(self) -> None:
        """Cuts all connections, in the middle of whatever they carry."""
        links, self._links = self._links, []
        for link in links:
            link.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._far.address.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.transport.abort()
            return
        self._links += [writer, far_writer]
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_back(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await _piece(reader):
            writer.write(piece)
            self._sent.set()
        writer.transport.abort()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await _piece(reader):
            if self._deaf:
                self.bytes_kept += len(piece)
            else:
                writer.write(piece)
        writer.transport.abort()


async def _piece(reader: asyncio.StreamReader) -> bytes:
    """What came; nothing when the connection is over, however it ended."""
    try:
        return await reader.read(PIECE_BYTES_MAX)
    except OSError:
        return b""
