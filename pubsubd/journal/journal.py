"""Numbers the events of each commit, and keeps the tail short.

Another process seals the tail into segments and says how far it came; rows that it has sealed whole go with
the next commits, a few at a time. Where nothing seals, or not fast enough, the oldest rows are dropped once
the tail passes `bytes_max`, and what one commit drops is recorded in that commit as one GAP event: a reader
knows what it does not see.
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


# How much of what is sealed goes with one commit: a delete of many pages would hold up what it carries.
_FORGOTTEN_BYTES = 4 * 1024**2


class Append(NamedTuple):
    """What one commit does to the journal."""

    row: Row
    details: list[tuple[int, str]]  # (seq, JSON)
    drop_through_seq: int  # rows up to here go; 0: none


class _Held(NamedTuple):
    """A row of the tail."""

    first_seq: int
    last_seq: int
    bytes: int
    since_us: int  # when it came, or when this process found it


class Journal:
    def __init__(
        self,
        last_seq: int,
        rows: Iterable[tuple[int, int, int]],
        bytes_max: int,
        told: bool = False,
        sealed_seq: int = 0,
        now_us: int = 0,
    ) -> None:
        """`rows`: (first_seq, n, bytes) of the tail as it is, ascending; `told`: the log has said that it is
        full; `sealed_seq`: all up to here are in segments."""
        self.last_seq = last_seq
        self.told = told
        self.sealed_seq = 0
        self._bytes_max = bytes_max
        self._rows = deque(_Held(first_seq, first_seq + n - 1, size, now_us) for first_seq, n, size in rows)
        self._bytes = sum(row.bytes for row in self._rows)
        self._sealed: deque[_Held] = deque()  # they come before the others, and wait to be deleted
        #: The last number that is in the tail or in a segment; 0 if there is none.
        self.ends_at = max(self._rows[-1].last_seq if self._rows else 0, sealed_seq)
        self.sealed(sealed_seq)

    def sealed(self, seq: int) -> None:
        """Events up to `seq` are in segments. That may end within a row, which is kept then."""
        self.sealed_seq = max(self.sealed_seq, seq)
        while self._rows and self._rows[0].last_seq <= self.sealed_seq:
            self._sealed.append(self._rows.popleft())

    @property
    def unsealed(self) -> int:
        """Events that are in no segment."""
        return self.last_seq - self.sealed_seq if self._rows else 0

    @property
    def unsealed_since_us(self) -> int:
        """Since when the oldest of those has been there; 0 without any."""
        return self._rows[0].since_us if self._rows else 0

    @property
    def has_sealed_rows(self) -> bool:
        """Whether further commits have rows to delete."""
        return bool(self._sealed)

    def forget_sealed(self) -> int:
        """Through which seq sealed rows go with this commit; 0: none."""
        through_seq = forgotten = 0
        while self._sealed and forgotten < _FORGOTTEN_BYTES:
            row = self._sealed.popleft()
            forgotten += row.bytes
            through_seq = row.last_seq
        self._bytes -= forgotten
        return through_seq

    def append(
        self, events: Sequence[EventTuple], details: Sequence[tuple[int, Mapping[str, Any]]], now_us: int
    ) -> Append | None:
        """The row for `events`, or None without any; `details` are (index of the event, what it says)."""
        if not events:
            return None
        first_seq = self.last_seq + 1
        texts = [(first_seq + at, _json(detail)) for at, detail in details]
        size = RECORD.size * len(events) + sum(len(text) for _, text in texts)
        drop_through_seq = 0
        if self._bytes + size > self._bytes_max:
            # What is in segments is not lost by that, and makes room first.
            drop_through_seq = self._drop_sealed()
        if self._bytes + size > self._bytes_max and self._rows:
            first_lost, drop_through_seq = self._drop(size)
            events = [*events, Event(now_us, Kind.GAP, aux=first_lost)]
            texts.append((first_seq + len(events) - 1, _json({"last": drop_through_seq})))
            size += _GAP_BYTES
        row = pack(first_seq, events)
        self.last_seq += row.n
        self._rows.append(_Held(first_seq, self.last_seq, size, now_us))
        self._bytes += size
        return Append(row, texts, drop_through_seq)

    def _drop_sealed(self) -> int:
        """All sealed rows go; through which seq, 0 without any."""
        through_seq = self._sealed[-1].last_seq if self._sealed else 0
        self._bytes -= sum(row.bytes for row in self._sealed)
        self._sealed.clear()
        return through_seq

    def _drop(self, more: int) -> tuple[int, int]:
        """Make room for `more` bytes, and for the record of the drop; (first, last) seq of what is lost."""
        if not self.told:
            self.told = True
            _log.warning(
                "the journal has reached its bound of %d MiB: its oldest events are dropped from now on, "
                "and each drop is recorded as a gap",
                self._bytes_max >> 20,
            )
        first_lost = last_lost = max(self._rows[0].first_seq, self.sealed_seq + 1)
        while self._rows and self._bytes + more + _GAP_BYTES > self._bytes_max:
            row = self._rows.popleft()
            self._bytes -= row.bytes
            last_lost = row.last_seq
        return first_lost, last_lost


def _json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, separators=(",", ":"), sort_keys=True)
