"""What a server is told before it starts, and the two things it says about starting.

Read by the command line and by the server's composition; imports nothing heavy, so that `pubsubd --help`
is quick.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import platformdirs

Durability = Literal["process", "power"]
AckBatchPolicy = Literal["omit", "confirm", "abort"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

# The official emulator's port, which people's scripts and compose files already name.
PORT_DEFAULT = 8085
LOOPBACK_V4 = "127.0.0.1"
LOOPBACK_V6 = "::1"


def loopback_hosts() -> tuple[str, ...]:
    """Both loopback addresses, or only the IPv4 one where the machine has no IPv6.

    Clients dial `localhost`, which resolves to either; a server on one of them alone costs every client of
    the other kind a failed attempt, and some do not make a second one.
    """
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((LOOPBACK_V6, 0))
    except OSError:
        return (LOOPBACK_V4,)
    return (LOOPBACK_V4, LOOPBACK_V6)


def default_data_dir() -> Path:
    """Where this platform wants a program to keep its data, e.g. `~/.local/share/pubsubd`."""
    return Path(platformdirs.user_data_dir("pubsubd", appauthor=False))


@dataclass(frozen=True, slots=True)
class Sealing:
    """When the tail of the journal becomes segments, and how long they stay."""

    events: int = 1_000_000  # as soon as there are so many
    seconds: float = 60.0  # as soon as the oldest is so old; 0: only when there are many, or when asked
    keep_hours: int = 168  # 0: for ever


@dataclass(frozen=True, slots=True)
class Pushing:
    """How messages are pushed to endpoints."""

    window: int = 1000  # requests outstanding at one endpoint
    backs_off: bool = True  # an endpoint that fails is left in peace for a while
    issuer: str = "https://accounts.google.com"  # of the tokens that push requests may carry


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set; each field is an option of `pubsubd serve`, explained in its `--help`."""

    hosts: tuple[str, ...] = field(default_factory=loopback_hosts)
    port: int = PORT_DEFAULT  # 0 picks a free one
    grpc_port: int | None = None  # one more port, of gRPC alone; 0 picks a free one
    rest: bool = True  # False: the port is of gRPC alone
    reset: bool = True  # whether POST /reset does what it says
    project: str | None = None  # only for the banner: any project exists
    data_dir: Path | None = field(default_factory=default_data_dir)  # None keeps everything in memory
    durability: Durability = "process"
    ack_batch_policy: AckBatchPolicy = "omit"
    journal: bool = True
    journal_dir: Path | None = None  # None: `journal` in the data directory
    sealing: Sealing = field(default_factory=Sealing)
    pushing: Pushing = field(default_factory=Pushing)
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    admin_port: int | None = None  # None: no admin service; 0 picks a free port


@dataclass(frozen=True, slots=True)
class Started:
    """Where a server listens, known only once it does."""

    port: int
    hosts: tuple[str, ...]
    admin_port: int | None = None
    journal_dir: Path | None = None  # where segments go; None if none are written
    grpc_port: int | None = None


class StartupError(Exception):
    """The server cannot start; the text is one sentence for the person who started it.

    Raised for what that person can change: a port or data directory in use, a database that is not ours, is
    damaged or is newer than this version. Ends the process with status 1 and no traceback.
    """
