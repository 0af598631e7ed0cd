"""How generations ended, for as long as a client may still ask.

A finished message without an entry was acked by its first generation: that is what most messages do, so it
costs nothing to remember. Only other endings are entries: a nack, and an ack by a later generation. They are
kept for `limits.ENDING_KEPT_US`, longer than any client library retries. What is forgotten never makes an
answer untrue: an ack that is then answered OK speaks of a message that will not come again.
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
    """The endings of one subscription, oldest first."""

    def __init__(self) -> None:
        self._endings: dict[tuple[int, int], tuple[Ending, int]] = {}
        self._acked: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._endings)

    def __iter__(self) -> Iterator[tuple[int, int, Ending]]:
        for (message_id, generation), (ending, _) in self._endings.items():
            yield message_id, generation, ending

    def add(self, message_id: int, generation: int, ending: Ending, at_us: int) -> None:
        # One that replaces another is as young as it is new.
        self._endings.pop((message_id, generation), None)
        self._endings[message_id, generation] = (ending, at_us)
        if ending is Ending.ACKED:
            self._acked[message_id] = generation
        self._forget(at_us)

    def of(self, message_id: int, generation: int) -> Ending | None:
        found = self._endings.get((message_id, generation))
        return found[0] if found else None

    def acked_generation(self, message_id: int) -> int:
        """The generation that acked a finished message: the first, unless an entry says otherwise."""
        return self._acked.get(message_id, 1)

    def _forget(self, now_us: int) -> None:
        endings = self._endings
        while True:
            key = next(iter(endings))
            ending, at_us = endings[key]
            if at_us >= now_us - limits.ENDING_KEPT_US and len(endings) <= limits.ENDINGS_MAX:
                return
            del endings[key]
            if ending is Ending.ACKED and self._acked.get(key[0]) == key[1]:
                del self._acked[key[0]]
