"""A message that was delivered, or brought back by a snapshot, and waits for its next delivery."""

from __future__ import annotations


class Waiting:
    __slots__ = ("attempt", "binds", "collateral", "generation", "okey", "ready_us", "unchecked")

    def __init__(
        self,
        generation: int,
        attempt: int,
        okey: int = 0,
        ready_us: int = 0,
        collateral: bool = False,
        unchecked: bool = False,
    ) -> None:
        self.generation = generation  # of its last delivery
        self.attempt = attempt  # that its next delivery will be
        self.okey = okey
        self.ready_us = ready_us  # not delivered up to and including this moment
        # Its lease was void before the deadline, which is `ready_us`: a predecessor of its key came back.
        self.collateral = collateral
        self.binds = False  # collateral, and counted by its key
        # It came from the snapshot of another subscription; whether it matches the filter is not known yet.
        self.unchecked = unchecked
