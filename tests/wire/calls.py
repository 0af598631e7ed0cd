"""The calls of the conformance suite, held to what our own server says beyond its promises.

The suite judges any endpoint, so it leaves open what the contract leaves open; here the texts and the codes
that this server has chosen are part of the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpc import StatusCode

from pubsubd.conform import calls
from pubsubd.conform.calls import (
    ACK_REQUEST_BYTES_MAX,
    ADMIN,
    CALL_SECONDS_MAX,
    CHANNEL_OPTIONS,
    PERMANENT,
    PUBSUB,
    TRANSIENT,
    UNORDERED,
    Client,
    Refusal,
    ack_ids_of,
    permanent,
    refused,
    refused_with_trailer,
)
from pubsubd.wire import SERVICES

__all__ = [
    "ACK_REQUEST_BYTES_MAX",
    "ADMIN",
    "CALL_SECONDS_MAX",
    "CHANNEL_OPTIONS",
    "PERMANENT",
    "PUBSUB",
    "STREAMING_PULL_PATH",
    "TRANSIENT",
    "UNARY",
    "UNORDERED",
    "Client",
    "Refusal",
    "ack_ids_of",
    "permanent",
    "refused",
    "refused_with_trailer",
    "request_refused",
    "transient",
    "unordered",
]

UNARY = [method for service in PUBSUB for method in SERVICES[service].values() if not method.client_streaming]
STREAMING_PULL_PATH = "/google.pubsub.v1.Subscriber/StreamingPull"


@contextmanager
def request_refused(code: StatusCode, *tokens: str) -> Iterator[Refusal]:
    """The whole ack or modack is refused: nothing was looked at, and there is no ErrorInfo of any kind."""
    with refused_with_trailer(code, *tokens) as refusal:
        yield refusal
    assert refusal.error_infos == []


@contextmanager
def transient(*deliveries: Any) -> Iterator[Refusal]:
    """The TRANS(x) of the checklist, for each delivery or ack id, with nothing permanent beside it."""
    with calls.transient(*deliveries) as refusal:
        yield refusal
    assert refusal.code is StatusCode.ABORTED
    for ack_id in ack_ids_of(deliveries):
        assert refusal.results.get(ack_id) == TRANSIENT


@contextmanager
def unordered(*deliveries: Any) -> Iterator[Refusal]:
    """Acks ahead of their ordering keys: these deliveries or ack ids are refused for now, and no others."""
    with calls.unordered(*deliveries) as refusal:
        yield refusal
    assert refusal.code is StatusCode.ABORTED
    assert "sent out of order" in refusal.message
    assert refusal.results == dict.fromkeys(ack_ids_of(deliveries), UNORDERED)
