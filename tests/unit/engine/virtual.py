"""A loop whose time jumps: nothing is waited for, and where nothing can happen any more the test fails."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from tests.unit.broker.world import START_US


class _Jumping(selectors.SelectSelector):
    """Instead of waiting it moves the clock of its loop."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("every task waits and no timer runs: nothing can happen any more")
        if not found and timeout:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class VirtualClock:
    """The engine's clock, in step with the loop; `wall_us` is what the machine shows at the loop's zero."""

    def __init__(self, not_before_us: int = 0, wall_us: int = START_US) -> None:
        now_us = self._loop_us()
        self._offset_us = max(wall_us + now_us, not_before_us) - now_us

    def now_us(self) -> int:
        return self._loop_us() + self._offset_us

    @staticmethod
    def _loop_us() -> int:
        return round(asyncio.get_running_loop().time() * 1e6)
