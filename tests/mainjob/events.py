"""What a client process writes down, one JSON array per line: the name of the event, then its fields.

Every time is CLOCK_MONOTONIC in microseconds. All processes of a run share a machine, so the times of
different processes compare.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path


def now_us() -> int:
    return time.monotonic_ns() // 1000


def delivery_key(ack_id: str) -> str:
    """A short name for a delivery. An ack id names a delivery too, but fills a line of its own."""
    return hashlib.blake2s(ack_id.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Published:
    """Publish was answered with this message id."""

    at_us: int
    seq: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A subscriber's callback was entered."""

    at_us: int
    subscriber: int
    message_id: str
    delivery: str
    seq: int


@dataclass(frozen=True, slots=True)
class Called:
    """One attempt of one unary call, `ack` or `modack`, from before it was sent until its answer was here.

    `failures` holds the per-id results that the answer carried, by delivery.
    """

    started_us: int
    ended_us: int
    subscriber: int
    method: str
    seconds: int
    code: str
    deliveries: tuple[str, ...]
    failures: dict[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """The application asked the library for an `ack` or a `nack`."""

    at_us: int
    subscriber: int
    delivery: str
    action: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The future of an `ack` or a `nack` was resolved; `result` is SUCCESS or what the error says."""

    at_us: int
    subscriber: int
    delivery: str
    action: str
    result: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that is worth counting and showing, in words: `subject` is counted, `text` explains."""

    at_us: int
    subject: str
    text: str


Event = Published | Delivered | Called | Asked | Resolved | Noted
_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Published, Delivered, Called, Asked, Resolved, Noted)
}
_FIELDS = {name: tuple(kind.__dataclass_fields__) for name, kind in _TYPES.items()}


def encode(event: Event) -> str:
    name = type(event).__name__
    return json.dumps([name, *(getattr(event, field) for field in _FIELDS[name])], separators=(",", ":"))


def decode(line: str) -> Event:
    name, *fields = json.loads(line)
    if name == "Called":
        fields[6] = tuple(fields[6])
    return _TYPES[name](*fields)


class EventLog:
    """The file of one process. Each event is handed to the system as it happens, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        line = encode(event) + "\n"
        with self._lock:
            self._file.write(line)

    def note(self, subject: str, text: str = "") -> None:
        self.write(Noted(now_us(), subject, text))


class EventTail:
    """Reads along in the file that another process is writing."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._partial = ""

    def read(self) -> list[Event]:
        """Everything that was written since the last call."""
        text = self._partial + self._file.read()
        *lines, self._partial = text.split("\n")
        return [decode(line) for line in lines]
