"""Numbers the events of each commit, and keeps the tail within its bound.

Without something that seals the tail into segments it would grow for ever. So the oldest rows are dropped
once the tail passes `bytes_max`, and what one commit drops is recorded in that commit as one GAP event: a
reader knows what it does not see.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pubsubd.journal.record import RECORD, Row, pack
from pubsubd.model.events import Event, EventTuple, Kind

_log = logging.getLogger(__name__)

# A GAP event and its detail, whose numbers have as many digits as numbers have.
_GAP_BYTES = RECORD.size + len('{"last":}') + 19


class Append(NamedTuple):
    """What one commit does to the journal."""

    row: Row
    details: list[tuple[int, str]]  # (seq, JSON)
    drop_through_seq: int  # rows up to here go; 0: none


class Journal:
    def __init__(
        self, last_seq: int, rows: Iterable[tuple[int, int, int]], bytes_max: int, told: bool = False
    ) -> None:
        """`rows`: (first_seq, n, bytes) of the tail as it is, ascending; `told`: the log has said so."""
        self.last_seq = last_seq
        self.told = told
        self._bytes_max = bytes_max
        self._rows = deque(rows)
        self._bytes = sum(size for _, _, size in self._rows)

    @property
    def tail_ends_at(self) -> int:
        """The last number that the tail holds; 0 if it is empty."""
        if not self._rows:
            return 0
        first_seq, n, _ = self._rows[-1]
        return first_seq + n - 1

    def append(
        self, events: Sequence[EventTuple], details: Sequence[tuple[int, Mapping[str, Any]]], now_us: int
    ) -> Append | None:
        """The row for `events`, or None without any; `details` are (index of the event, what it says)."""
        if not events:
            return None
        first_seq = self.last_seq + 1
        texts = [(first_seq + at, _json(detail)) for at, detail in details]
        size = RECORD.size * len(events) + sum(len(text) for _, text in texts)
        dropped = self._drop(size)
        if dropped is not None:
            first_lost, last_lost = dropped
            events = [*events, Event(now_us, Kind.GAP, aux=first_lost)]
            texts.append((first_seq + len(events) - 1, _json({"last": last_lost})))
            size += _GAP_BYTES
        row = pack(first_seq, events)
        self.last_seq += row.n
        self._rows.append((row.first_seq, row.n, size))
        self._bytes += size
        return Append(row, texts, dropped[1] if dropped else 0)

    def _drop(self, more: int) -> tuple[int, int] | None:
        """Make room for `more` bytes, and for the record of the drop; (first, last) seq of what goes."""
        if self._bytes + more <= self._bytes_max or not self._rows:
            return None
        if not self.told:
            self.told = True
            _log.warning(
                "the journal has reached its bound of %d MiB: its oldest events are dropped from now on, "
                "and each drop is recorded as a gap",
                self._bytes_max >> 20,
            )
        first_lost = last_lost = self._rows[0][0]
        while self._rows and self._bytes + more + _GAP_BYTES > self._bytes_max:
            first_seq, n, size = self._rows.popleft()
            self._bytes -= size
            last_lost = first_seq + n - 1
        return first_lost, last_lost


def _json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"), sort_keys=True)
