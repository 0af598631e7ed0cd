"""How many push requests may be outstanding at one endpoint, and when the next one may start.

Theory of operation. The window starts small and grows with every success, so that it doubles from one round
of requests to the next, and halves with every failure. Beside it a pause grows with failures and shrinks with
successes; until it is over, counted from the last failure, no request starts. An endpoint that is down
therefore gets one request a minute, and one success is enough for it to get the next one at once.

The service documents the shape (slow start, exponential growth, a pause between 100 ms and 60 s) and not the
numbers in between; those are ours.

Source: https://cloud.google.com/pubsub/docs/push (how delivery rates are set, push backoff).
"""

from __future__ import annotations

from pubsubd.model import limits


class PushWindow:
    """The state of one endpoint. `size_max` bounds the window; without `backs_off` there is no pause."""

    __slots__ = ("_backs_off", "_failed_us", "_size", "_size_max", "backoff_us")

    def __init__(self, size_max: int, backs_off: bool = True) -> None:
        self._size_max = size_max
        self._backs_off = backs_off
        self._size = float(min(limits.PUSH_WINDOW_START, size_max))
        self._failed_us = 0
        self.backoff_us = 0

    @property
    def size(self) -> int:
        """How many requests may be outstanding; at least one."""
        return int(self._size)

    @property
    def opens_us(self) -> int:
        """No request may start before this moment."""
        return self._failed_us + self.backoff_us if self.backoff_us else 0

    def room(self, outstanding: int, now_us: int) -> int:
        """How many more requests may start."""
        return 0 if now_us < self.opens_us else max(0, self.size - outstanding)

    def succeeded(self) -> None:
        """A message was accepted by the endpoint."""
        grown = 1.0 if self._size < limits.PUSH_WINDOW_LINEAR_FROM else 1.0 / self._size
        self._size = min(float(self._size_max), self._size + grown)
        self.backoff_us //= 2
        if self.backoff_us < limits.PUSH_BACKOFF_US_MIN:
            self.backoff_us = 0

    def failed(self, now_us: int) -> None:
        """A message was not accepted, or not in time."""
        self._size = max(1.0, self._size // 2)
        self._failed_us = now_us
        if self._backs_off:
            doubled = max(limits.PUSH_BACKOFF_US_MIN, 2 * self.backoff_us)
            self.backoff_us = min(limits.PUSH_BACKOFF_US_MAX, doubled)
