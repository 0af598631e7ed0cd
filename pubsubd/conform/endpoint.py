"""How to reach an endpoint: in the clear, over TLS, or over TLS with application default credentials."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import CHANNEL_OPTIONS, Client, Refusal, in_words

REAL_SERVICE = ".googleapis.com"
TLS_PORT = 443
SCOPES = ["https://www.googleapis.com/auth/pubsub"]

# What gRPC says of a connection that cannot be one, and what its user may want to look at.
HINTS = {
    "WRONG_VERSION_NUMBER": "does it speak TLS?",
    "Failed parsing HTTP/2": "is it gRPC, and without TLS?",
}

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/\s]+)(:(?P<port>\d{1,5}))?")


class EndpointError(Exception):
    """The endpoint cannot be used as it was given; the text says why."""


@dataclass(frozen=True)
class Endpoint:
    """HOST:PORT, and what a connection to it takes."""

    address: str
    credentials: grpc.ChannelCredentials | None = None  # None: no TLS

    def channel(self, *options: tuple[str, object]) -> grpc.aio.Channel:
        """A connection of its own. Options given here win over those of every connection."""
        # Of two options of one name gRPC takes the first, so each stands here once.
        own = list({**dict(CHANNEL_OPTIONS), "grpc.use_local_subchannel_pool": 1, **dict(options)}.items())
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, options=own)
        return grpc.aio.secure_channel(self.address, self.credentials, options=own)

    async def answers(self, project: str, within: float) -> None:
        """Returns as soon as a call is answered, even if by a refusal.

        Raises:
            EndpointError: it was not answered in this time, or we are not let in.
        """
        channel = self.channel()
        try:
            client, deadline = Client(channel), time.monotonic() + within
            while (refusal := await _first_answer(client, project)).code in (
                StatusCode.UNAVAILABLE,
                StatusCode.DEADLINE_EXCEEDED,
            ):
                if time.monotonic() > deadline:
                    raise EndpointError(f"no gRPC answer from {self.address}: {_cause(refusal)}")
                await asyncio.sleep(0.05)
        finally:
            await channel.close()
        if refusal.code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            raise EndpointError(f"{self.address} does not let us in: {refusal}")


def _cause(refusal: Refusal) -> str:
    """Why there was no answer: the last thing that gRPC tried, and a hint where one helps."""
    words = in_words(refusal.code, refusal.message.rpartition("last error: ")[2])
    hints = [hint for text, hint in HINTS.items() if text in refusal.message]
    return " ".join([words, *(f"({hint})" for hint in hints)])


async def _first_answer(client: Client, project: str) -> Refusal:
    try:
        await client.GetTopic(topic=f"projects/{project}/topics/conform-ready", timeout=2)
    except grpc.RpcError as error:
        return Refusal(error.code(), error.details() or "")
    return Refusal()


def endpoint_of(
    text: str, *, tls: bool | None = None, ca_cert: Path | None = None, adc: bool | None = None
) -> Endpoint:
    """The endpoint that a command line means.

    A host of the real service implies TLS and application default credentials; a certificate and
    credentials imply TLS, for a token is not sent in the clear.

    Raises:
        EndpointError: the text is no address, or the options contradict each other.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"] or TLS_PORT) < 65536:
        raise EndpointError(f"{text!r} is not HOST:PORT")
    real = found["host"].lower().endswith(REAL_SERVICE)
    adc = real if adc is None else adc
    wanted = [name for name, given in (("--adc", adc), ("--ca-cert", ca_cert)) if given]
    if tls is False and wanted:
        raise EndpointError(f"{wanted[0]} and --no-tls contradict each other")
    if found["port"] is None and not real:
        raise EndpointError(f"{text!r} has no port")
    address = f"{found['host']}:{found['port'] or TLS_PORT}"
    if not (real and tls is None) and not tls and not wanted:
        return Endpoint(address)
    return Endpoint(address, _credentials(ca_cert, adc))


def _credentials(ca_cert: Path | None, adc: bool) -> grpc.ChannelCredentials:
    try:
        roots = None if ca_cert is None else ca_cert.read_bytes()
    except OSError as error:
        raise EndpointError(f"{ca_cert} cannot be read: {error.strerror}") from error
    if roots is not None and b"-----BEGIN CERTIFICATE-----" not in roots:
        raise EndpointError(f"{ca_cert} holds no certificate in PEM form")
    channel = grpc.ssl_channel_credentials(root_certificates=roots)
    return grpc.composite_channel_credentials(channel, _call_credentials()) if adc else channel


def _call_credentials() -> grpc.CallCredentials:
    """A token with every call, from wherever Google's own libraries find one."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.grpc import AuthMetadataPlugin
        from google.auth.transport.requests import Request
    except ImportError as error:
        raise EndpointError(
            f"application default credentials need an extra: pip install 'pubsubd[google]' ({error})"
        ) from error
    try:
        credentials, _ = google.auth.default(scopes=SCOPES)
    except GoogleAuthError as error:
        raise EndpointError(f"no application default credentials: {error}") from error
    plugin: Any = AuthMetadataPlugin
    return grpc.metadata_call_credentials(plugin(credentials, Request()))
