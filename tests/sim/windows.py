"""The windows of streams, as the journal and the clients know them (I7).

A delivery counts against the window of its stream until its lease is over, or until a client has said that it
is done with it: a failed ack does not take up room again.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.crash.replay import Record, Replayer
from tests.crash.told import Named
from tests.sim.broken import Broken


class Limits(NamedTuple):
    """What a stream asked for; up to 0: no limit."""

    messages: int
    bytes: int


class Windows:
    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._limits: dict[int, Limits] = {}  # by stream_id
        self._held: dict[int, dict[Named, int]] = {}  # by stream_id: sizes
        self._done: set[Named] = set()

    def opened(self, stream_id: int, limits: Limits) -> None:
        self._limits[stream_id] = limits
        self._held.setdefault(stream_id, {})

    def limits(self, stream_id: int) -> Limits | None:
        return self._limits.get(stream_id)

    def done_with(self, named: Named) -> None:
        """A client asks to ack or nack it."""
        self._done.add(named)

    def delivered(self, record: Record) -> None:
        """A lease was granted to a stream, or to a Pull, which has no window."""
        limits = self._limits.get(record.stream_id)
        if limits is None or (limits.messages <= 0 and limits.bytes <= 0):
            return
        held = self._held[record.stream_id]
        for named in [one for one in held if not self._counts(one, record.ts_us)]:
            del held[named]
        if 0 < limits.messages <= len(held):
            self._break(record, f"{len(held)} of {limits.messages} messages were outstanding before it")
        if 0 < limits.bytes <= sum(held.values()):
            self._break(record, f"{sum(held.values())} of {limits.bytes} bytes were outstanding before it")
        held[Named(record.sub_id, record.message_id, record.generation)] = record.bytes

    def _counts(self, named: Named, now_us: int) -> bool:
        lease = self._replayer.subscriptions[named.sub_id].leases.get(named.message_id)
        return (
            lease is not None
            and lease.generation == named.generation
            and lease.deadline_us >= now_us
            and named not in self._done
        )

    @staticmethod
    def _break(record: Record, text: str) -> None:
        raise Broken("I7", f"stream {record.stream_id} got message {record.message_id}: {text}")
