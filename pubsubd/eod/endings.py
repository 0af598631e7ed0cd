"""How generations ended, for as long as a client may still ask.

A finished message without an entry was acked by its first generation: that is what most messages do, so it
costs nothing to remember. Only other endings are entries: a nack, an ack by a later generation, and what
seeks and dead letter topics did. They are kept for `limits.ENDING_KEPT_US`, longer than any client library
retries, and in number up to `limits.ENDINGS_MAX`. A success that follows from forgetting is true: it speaks
of a message that will not come again. A refusal need not be: whoever repeats the ack of a later generation
after that time hears that it failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from pubsubd.model import limits


class Ending(IntEnum):
    NACKED = 1
    ACKED = 2
    PURGED = 3  # its lease ran when a seek acknowledged the message
    FORWARDED = 4  # it is on the dead letter topic; of this generation and of all before it


_ENDINGS = {int(ending): ending for ending in Ending}


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
        # message_id: (how, generation, when), of messages that finished otherwise than by their first one
        self._finished: dict[int, tuple[Ending, int, int]] = {}

    def __len__(self) -> int:
        return len(self._nacked) + len(self._finished)

    def __iter__(self) -> Iterator[tuple[int, int, Ending]]:
        """(message_id, generation, ending) of all; nacks first."""
        for message_id, generation in self._nacked:
            yield message_id, generation, Ending.NACKED
        for message_id, (ending, generation, _) in self._finished.items():
            yield message_id, generation, ending

    def extend(self, rows: Sequence[EndingRow]) -> None:
        """Remember `rows`, oldest first."""
        nacked, finished = self._nacked, self._finished
        for _, message_id, generation, ending, at_us in rows:
            if ending == Ending.NACKED:
                nacked.pop((message_id, generation), None)
                nacked[message_id, generation] = at_us
                continue
            if ending == Ending.ACKED:
                nacked.pop((message_id, generation), None)  # late, without exactly-once
            finished.pop(message_id, None)
            finished[message_id] = (_ENDINGS[ending], generation, at_us)
        if rows:
            self._forget(rows[-1].at_us)

    def of(self, message_id: int, generation: int) -> Ending | None:
        if (message_id, generation) in self._nacked:
            return Ending.NACKED
        found = self._finished.get(message_id)
        if found is None:
            return None
        ending, finishing, _ = found
        if ending is Ending.FORWARDED:
            return ending if generation <= finishing else None
        return ending if generation == finishing else None

    def knows(self, message_id: int) -> bool:
        """Whether it is remembered how the message finished."""
        return message_id in self._finished

    def finishing_generation(self, message_id: int, first: int = 1) -> int:
        """The generation that a finished message ended with: `first`, unless an entry says otherwise."""
        found = self._finished.get(message_id)
        return first if found is None else found[1]

    def _forget(self, now_us: int) -> None:
        oldest_us = now_us - limits.ENDING_KEPT_US
        nacked, finished = self._nacked, self._finished
        while nacked and nacked[key := next(iter(nacked))] < oldest_us:
            del nacked[key]
        while finished and finished[message_id := next(iter(finished))][2] < oldest_us:
            del finished[message_id]
        while len(self) > limits.ENDINGS_MAX:
            # A nack that is forgotten costs a repeated nack its success; an ack, a client its certainty.
            if nacked:
                del nacked[next(iter(nacked))]
            else:
                del finished[next(iter(finished))]
