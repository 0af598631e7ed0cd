"""Calls of this process to its own methods: what REST does in place of a client of gRPC.

A handler gets what it gets from gRPC, serialised requests and a context, so that there is one
implementation of each method. Of a context it uses what `LocalContext` has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import grpc

from pubsubd.server.calls import Context, Handler, guarded

_DETAILS = "grpc-status-details-bin"


class _Refused(grpc.aio.AbortError):
    """What gRPC's own `abort` raises, with what it was told."""

    def __init__(self, status: bytes) -> None:
        super().__init__()
        self.status = status


class LocalContext:
    """What handlers use of a ServicerContext."""

    def __init__(self, agent: str, peer: str) -> None:
        self._metadata = (("user-agent", agent),)
        self._peer = peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return None

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> NoReturn:
        (status,) = [value for key, value in trailing_metadata if key == _DETAILS]
        raise _Refused(status)


class LocalCalls:
    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = {path: guarded(handler) for path, handler in handlers.items()}

    async def __call__(self, path: str, request: bytes, agent: str, peer: str) -> tuple[bool, bytes]:
        """Call the method at `path` for a client with this user agent and address (`ipv4:127.0.0.1:5000`).

        Returns True and the response, or False and the google.rpc.Status of the refusal, both serialised.
        """
        context = cast(Context, LocalContext(agent, peer))

        async def call() -> tuple[bool, bytes]:
            try:
                return True, await self._handlers[path](request, context)
            except _Refused as refused:
                return False, refused.status

        # A task of its own, as each call of gRPC has: at the end the server waits for calls, not connections.
        return await asyncio.create_task(call())
