"""What the clients of a run were told, and when: everything that the promises are judged by."""

from __future__ import annotations

import time
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
    UNKNOWN = "unknown"  # no answer, or a transient failure: it may or may not have taken effect


class Published(NamedTuple):
    """One Publish request. `message_ids` is None when its answer never came."""

    topic: str
    publisher: int
    sent_us: int
    done_us: int
    datas: list[bytes]
    message_ids: list[int] | None


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


class Operation(NamedTuple):
    """One ack id in one request."""

    subscription: str
    ack_id: str
    kind: Kind
    seconds: int
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
    kills: list[Killed] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    # What was wrong about a resource after a restart, in words; see resources.py.
    resources_wrong: list[str] = field(default_factory=list)
    resource_changes: int = 0
    resource_checks: int = 0
