"""Watches the unary calls of an unmodified client on its channel: when each was sent, how it was answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tests.mainjob.events import Called, EventLog, delivery_key, now_us

_METHODS = {
    "/google.pubsub.v1.Subscriber/Acknowledge": "ack",
    "/google.pubsub.v1.Subscriber/ModifyAckDeadline": "modack",
}


class CallRecorder(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types of its own
    """Retries of the library are separate calls here: it retries above the channel."""

    def __init__(self, subscriber: int, log: EventLog) -> None:
        self._subscriber = subscriber
        self._log = log

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        method = _METHODS.get(details.method)
        if method is None:
            return continuation(details, request)
        started_us = now_us()
        call = continuation(details, request)
        code = call.code()
        ended_us = now_us()
        self._log.write(
            Called(
                started_us,
                ended_us,
                self._subscriber,
                method,
                0 if method == "ack" else request.ack_deadline_seconds,
                code.name,
                tuple(delivery_key(ack_id) for ack_id in request.ack_ids),
                {} if code is grpc.StatusCode.OK else _failures(call),
            )
        )
        return call


def _failures(call: Any) -> dict[str, str]:
    """The per-id results of an answer, by delivery; empty when it carries none."""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = ErrorInfo()
            for detail in Status.FromString(value).details:
                if detail.Unpack(info):
                    return {delivery_key(ack_id): text for ack_id, text in info.metadata.items()}
    return {}
