"""That an invariant does not hold."""

from __future__ import annotations


class Broken(AssertionError):
    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text
