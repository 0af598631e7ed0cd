"""What the clients of a run were told, and when: everything that the promises are judged by."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

# Wall time when this process started plus a monotonic clock: as the server's own, so that the two can be
# compared within the little that the wall clock is corrected by during a run.
_OFFSET_US = time.time_ns() // 1000 - time.monotonic_ns() // 1000


def now_us() -> int:
    return time.monotonic_ns() // 1000 + _OFFSET_US


class Kind(Enum):
    ACK = "ack"
    EXTEND = "extend"
    NACK = "nack"


class Answer(Enum):
    """What a client was told about one ack id."""

    OK = "ok"
    PERMANENT = "permanent"
    UNORDERED = "unordered"  # not yet: an earlier message of its ordering key is not acked
    UNKNOWN = "unknown"  # no answer, or a transient failure: it may or may not have taken effect


class Published(NamedTuple):
    """One Publish request. `message_ids` is None when its answer never came."""

    topic: str
    publisher: int
    sent_us: int
    done_us: int
    datas: list[bytes]
    message_ids: list[int] | None
    attributes: Sequence[Mapping[str, str]] = ()  # of each message; empty: of none
    ordering_key: str = ""


class Delivered(NamedTuple):
    """One message as it was handed out once."""

    subscription: str
    message_id: int
    ack_id: str
    at_us: int
    asked_us: int  # when the stream or Pull that brought it was opened; its lease did not begin before
    lease_seconds: int
    publish_us: int
    data: bytes
    ordering_key: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    attempt: int = 0


class Operation(NamedTuple):
    """One ack id in one request."""

    subscription: str
    ack_id: str
    kind: Kind
    seconds: int
    sent_us: int
    done_us: int
    answer: Answer


class Sought(NamedTuple):
    """One Seek, to a time or to a snapshot."""

    subscription: str
    target_us: int
    snapshot: str
    sent_us: int
    done_us: int
    answer: Answer


class Killed(NamedTuple):
    way: str
    at_us: int


class Odd(NamedTuple):
    """An answer that no client should ever get."""

    what: str
    code: str
    message: str


@dataclass
class Log:
    publishes: list[Published] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    seeks: list[Sought] = field(default_factory=list)
    # Of everything that was sent, answered or not: what the journal's hash of it stands for.
    attributes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)  # name: of which subscription it was asked for
    kills: list[Killed] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    # What was wrong about a resource after a restart, in words; see resources.py.
    resources_wrong: list[str] = field(default_factory=list)
    resource_changes: int = 0
    resource_checks: int = 0
