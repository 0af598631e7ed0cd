"""The newest messages of all topics, in memory: a live subscriber never reads the disk.

Bounded over the whole server by `limits.TAIL_BYTES_MAX`. The oldest published go first, whatever their topic,
but never one that is not committed, since only storage has what is not here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from pubsubd.broker.entry import Entry
from pubsubd.model import limits

# Evicting is a move of the whole list, so it waits until this many messages go at once.
_EVICT_MIN = 256


class Tail:
    """The newest messages of one topic, ascending. What has an id up to `floor` must be read from storage."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._ids: list[int] = []
        self._entries: list[Entry] = []
        self._gone = 0  # entries at the front that were evicted and are not yet cut off

    def append(self, entries: Sequence[Entry]) -> None:
        self._entries.extend(entries)
        self._ids.extend([entry.message_id for entry in entries])

    def find(self, message_id: int) -> Entry | None:
        at = bisect_left(self._ids, message_id, self._gone)
        if at < len(self._ids) and self._ids[at] == message_id:
            return self._entries[at]
        return None

    def after(self, message_id: int, count: int) -> list[Entry]:
        """Up to `count` messages with ids above `message_id`, which must not be below `floor`."""
        at = bisect_right(self._ids, message_id, self._gone)
        return self._entries[at : at + count]

    def before(self, time_us: int) -> int:
        """The last message that is here and was published before `time_us`; 0 without one."""
        at = bisect_left(self._entries, time_us, self._gone, key=attrgetter("publish_us"))
        return self._ids[at - 1] if at > self._gone else 0

    def evict_through(self, message_id: int) -> None:
        self.floor = max(self.floor, message_id)
        self._gone = bisect_right(self._ids, message_id, self._gone)
        if self._gone >= _EVICT_MIN or self._gone == len(self._ids):
            del self._ids[: self._gone]
            del self._entries[: self._gone]
            self._gone = 0


class TailBudget:
    """Decides what leaves the tails."""

    def __init__(self) -> None:
        self._order: deque[tuple[Tail, int, int]] = deque()
        self._bytes = 0

    def added(self, tail: Tail, last_id: int, size: int) -> None:
        """`size` bytes of messages up to `last_id` were appended to `tail`."""
        self._order.append((tail, last_id, size))
        self._bytes += size

    def evict(self, committed_id: int) -> None:
        """Bring the sum within its bound, as far as messages up to `committed_id` allow."""
        while self._bytes > limits.TAIL_BYTES_MAX and self._order[0][1] <= committed_id:
            tail, last_id, size = self._order.popleft()
            self._bytes -= size
            tail.evict_through(last_id)
