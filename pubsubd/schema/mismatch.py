"""Why a message, or a definition, is not what it should be."""

from __future__ import annotations

from typing import Final

# Enough for people; what clients send may be long, and lie deep.
_PLACE_CHARS_MAX: Final = 100
_REASON_CHARS_MAX: Final = 1000


class Mismatch(Exception):
    """`reason` is a sentence without its end; it may repeat what a client sent."""

    def __init__(self, reason: str) -> None:
        self.reason = reason[:_REASON_CHARS_MAX]
        super().__init__(self.reason)

    def inside(self, place: str) -> Mismatch:
        """The same, seen from outside of `place`."""
        return Mismatch(f"{place[:_PLACE_CHARS_MAX]}: {self.reason}")
