"""Endpoints behind TLS: a proxy that ends it, and one that lets in only calls with the right token."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt
from grpc import StatusCode

from pubsubd.conform.calls import CHANNEL_OPTIONS

STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"


class Authority:
    """A certificate authority of the test, and a certificate of it for this machine."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self._certificate = self._ca.issue_cert("127.0.0.1", "localhost")
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(context)
        context.set_alpn_protocols(["h2"])
        return context

    def credentials(self) -> grpc.ServerCredentials:
        chain = b"".join(blob.bytes() for blob in self._certificate.cert_chain_pems)
        return grpc.ssl_server_credentials([(self._certificate.private_key_pem.bytes(), chain)])


@asynccontextmanager
async def tls_proxy(address: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Ends TLS in front of a server in the clear, as a load balancer does; yields its address."""
    host, port = address.split(":")
    protocols: set[str | None] = set()
    connections: list[asyncio.Future[Any]] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocols.add(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        onward_reader, onward_writer = await asyncio.open_connection(host, port)
        both = asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))
        connections.append(both)
        # Cancelled when the proxy closes, which is no error of a connection.
        await asyncio.wait([both])

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert protocols == {"h2"}
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


class TokenGate(grpc.GenericRpcHandler):
    """Hands on calls with the right token, byte for byte, and refuses all others."""

    def __init__(self, onward: grpc.aio.Channel, token: str) -> None:
        self._onward = onward
        self._token = token
        self.let_in = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        metadata = dict(details.invocation_metadata)
        if metadata.get("authorization") != f"Bearer {self._token}":
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        self.let_in += 1
        if details.method == STREAMING_PULL:
            call = self._onward.stream_stream(details.method)

            async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
                answers = call(requests)
                try:
                    async for answer in answers:
                        yield answer
                except grpc.aio.AioRpcError as error:
                    await _end(context, error)
                finally:
                    answers.cancel()

            return grpc.stream_stream_rpc_method_handler(stream)
        unary = self._onward.unary_unary(details.method)

        async def answer(request: bytes, context: Any) -> bytes | None:
            try:
                return await unary(request)
            except grpc.aio.AioRpcError as error:
                await _end(context, error)

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _refuse(self, requests: object, context: Any) -> AsyncIterator[bytes]:
        await context.abort(StatusCode.UNAUTHENTICATED, "no valid token")
        yield b""


async def _end(context: Any, error: grpc.aio.AioRpcError) -> None:
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))


@asynccontextmanager
async def gated(
    address: str, credentials: grpc.ServerCredentials, token: str
) -> AsyncIterator[tuple[str, TokenGate]]:
    """A TLS endpoint in front of a server, which wants this token; yields its address and the gate."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as onward:
        gate = TokenGate(onward, token)
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        server.add_generic_rpc_handlers([gate])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            yield f"127.0.0.1:{port}", gate
        finally:
            await server.stop(None)


@contextmanager
def service_account(directory: Path, token: str) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The key file of a service account, whose tokens come from this machine.

    Yields the file, and the claims of each assertion that a token was given for. An assertion that is not
    signed with the key of the account is given none.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    asked: list[dict[str, Any]] = []

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            (assertion,) = form["assertion"]
            _, claims, signed, signature = jwt._unverified_decode(assertion)
            if not crypt.verify_signature(signed, signature, [public]):
                self.send_error(401)
                return
            asked.append(claims)
            body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Tokens)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    account = {
        "type": "service_account",
        "project_id": "of-the-account",
        "private_key_id": "1",
        "private_key": private.decode(),
        "client_email": "conform@of-the-account.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    file = directory / "account.json"
    file.write_text(json.dumps(account))
    try:
        yield file, asked
    finally:
        server.shutdown()
        server.server_close()
