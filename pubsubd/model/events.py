"""The vocabulary of the ack journal: what can be recorded, and with which answer.

An event is a plain tuple in the order of `Event`, since one is made for every delivery and every ack.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    PUBLISH = 1
    DELIVER = 2
    EXTEND = 3
    NACK = 4
    ACK = 5
    EXPIRE = 6
    DEADLETTER = 7
    DROP = 8
    SEEK = 9
    CONFIG = 10
    FILTERED = 11
    STREAM = 12
    START = 13
    GAP = 14
    RESET = 15


class Result(IntEnum):
    """The answer that the client got."""

    OK = 0
    NOOP = 1  # told OK, and nothing changed
    PERMANENT = 2
    TRANSIENT = 3
    OTHER = 4


class Event(NamedTuple):
    """One record without its sequence number, which the journal assigns in commit order. Times are in
    microseconds; 0 means none."""

    ts_us: int
    kind: int
    topic_id: int = 0
    sub_id: int = 0
    message_id: int = 0
    generation: int = 0
    attempt: int = 0
    deadline_us: int = 0
    ref_ts_us: int = 0  # the other end of the latency that this event closes
    result: int = 0
    client_id: int = 0
    stream_id: int = 0
    okey: int = 0
    bytes: int = 0
    payload_hash: int = 0
    aux: int = 0


EventTuple = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]
