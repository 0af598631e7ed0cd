"""The only clock: wall time that never goes back, in whole microseconds."""

from __future__ import annotations

import time


class Clock:
    """Wall time at construction plus a monotonic clock.

    `not_before_us` is the newest time that storage knows. If the machine's clock was set back since then,
    ours goes on from there: leases then last rather longer than promised, never shorter. Later steps of the
    machine's clock are not followed.
    """

    def __init__(self, not_before_us: int = 0) -> None:
        started_us = max(time.time_ns() // 1000, not_before_us)
        self._offset_us = started_us - _ticks_us()

    def now_us(self) -> int:
        return _ticks_us() + self._offset_us


def _ticks_us() -> int:
    """Time that goes on evenly, also while the machine is suspended where the system tells that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return time.monotonic_ns() // 1000
