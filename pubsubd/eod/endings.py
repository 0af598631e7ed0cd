"""How generations ended, for as long as a client may still ask.

A finished message without an entry was acked by its first generation: that is what most messages do, so it
costs nothing to remember. Only other endings are entries: a nack, and an ack by a later generation. They are
kept for `limits.ENDING_KEPT_US`, longer than any client library retries, and in number up to
`limits.ENDINGS_MAX`. A success that follows from forgetting is true: it speaks of a message that will not
come again. A refusal need not be: whoever repeats the ack of a later generation after that time hears that it
failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from pubsubd.model import limits


class Ending(IntEnum):
    NACKED = 1
    ACKED = 2


class EndingRow(NamedTuple):
    """As it is stored: one row per ending that must be remembered."""

    sub_id: int
    message_id: int
    generation: int
    ending: int
    at_us: int


class Endings:
    """The endings of one subscription."""

    def __init__(self) -> None:
        # Both oldest first.
        self._nacked: dict[tuple[int, int], int] = {}  # (message_id, generation): when
        self._acked: dict[int, tuple[int, int]] = {}  # message_id: (generation, when)

    def __len__(self) -> int:
        return len(self._nacked) + len(self._acked)

    def __iter__(self) -> Iterator[tuple[int, int, Ending]]:
        """(message_id, generation, ending) of all; nacks first."""
        for message_id, generation in self._nacked:
            yield message_id, generation, Ending.NACKED
        for message_id, (generation, _) in self._acked.items():
            yield message_id, generation, Ending.ACKED

    def add(self, message_id: int, generation: int, ending: Ending, at_us: int) -> None:
        if ending is Ending.ACKED:
            self._nacked.pop((message_id, generation), None)
            self._acked.pop(message_id, None)
            self._acked[message_id] = (generation, at_us)
        else:
            self._nacked.pop((message_id, generation), None)
            self._nacked[message_id, generation] = at_us
        self._forget(at_us)

    def of(self, message_id: int, generation: int) -> Ending | None:
        if (message_id, generation) in self._nacked:
            return Ending.NACKED
        acked = self._acked.get(message_id)
        return Ending.ACKED if acked is not None and acked[0] == generation else None

    def acked_generation(self, message_id: int) -> int:
        """The generation that acked a finished message: the first, unless an entry says otherwise."""
        acked = self._acked.get(message_id)
        return 1 if acked is None else acked[0]

    def _forget(self, now_us: int) -> None:
        oldest_us = now_us - limits.ENDING_KEPT_US
        nacked, acked = self._nacked, self._acked
        while nacked and nacked[key := next(iter(nacked))] < oldest_us:
            del nacked[key]
        while acked and acked[message_id := next(iter(acked))][1] < oldest_us:
            del acked[message_id]
        while len(self) > limits.ENDINGS_MAX:
            # A nack that is forgotten costs a repeated nack its success; an ack, a client its certainty.
            if nacked:
                del nacked[next(iter(nacked))]
            else:
                del acked[next(iter(acked))]
