"""How to reach an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from pubsubd.conform.calls import CHANNEL_OPTIONS


@dataclass(frozen=True)
class Endpoint:
    """HOST:PORT, and what a connection to it takes."""

    address: str
    credentials: grpc.ChannelCredentials | None = None  # None: no TLS

    def channel(self, *options: tuple[str, Any]) -> grpc.aio.Channel:
        """A connection of its own. Options given here win over those of every connection."""
        own = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1), *options]
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, options=own)
        return grpc.aio.secure_channel(self.address, self.credentials, options=own)
