"""Cases that spend their time waiting, run at once.

Most rules of leases can only be seen by waiting for seconds. A case is an `async def` that takes a
`World`; the decorator makes an ordinary test of it. When the first one is asked for its outcome, all cases
that were selected start together on one event loop in a thread of its own, and each test then reports
what its own case came to. So `-k`, `-m` and the report work as always, and the waits overlap.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest

Body = Callable[..., Awaitable[None]]

# More at once would wait for the processor instead of the clock.
CASES_AT_ONCE_MAX = 48
CASE_SECONDS_MAX = 150.0


def case(body: Body | None = None, *, alone: bool = False, seconds_max: float = CASE_SECONDS_MAX) -> Any:
    """Makes a test of an async case. `alone` is for loads: such a case runs after the others, by itself."""
    if body is None:
        return lambda body: case(body, alone=alone, seconds_max=seconds_max)

    # The waiting is bounded by the case's own timeout, whenever its turn comes.
    @pytest.mark.timeout(0)
    def test(conductor: Conductor) -> None:
        conductor.outcome(body)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    test.__module__ = body.__module__
    test.body = body  # by this the conductor finds the cases that were selected
    body.alone = alone
    body.seconds_max = seconds_max
    return test


class Conductor:
    """One event loop in a thread, the cases that run on it, and their outcomes."""

    def __init__(self, make_world: Callable[[], Any], bodies: Iterable[Any]) -> None:
        self._make_world = make_world
        self._outcomes: dict[Any, Future[None]] = {body: Future() for body in bodies}
        self._loop = asyncio.new_event_loop()
        self._all = self._loop.create_task(self._run_all())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def outcome(self, body: Any) -> None:
        """Returns when the case has passed; raises what it raised."""
        self._outcomes[body].result()

    def close(self) -> None:
        """Ends what still runs; the cases stop the servers that they started."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        self._all.cancel()
        await asyncio.gather(self._all, return_exceptions=True)

    async def _run_all(self) -> None:
        places = asyncio.Semaphore(CASES_AT_ONCE_MAX)
        await asyncio.gather(*[self._run(body, places) for body in self._outcomes if not body.alone])
        for body in self._outcomes:
            if body.alone:
                await self._run(body, places)

    async def _run(self, body: Any, places: asyncio.Semaphore) -> None:
        async with places:
            try:
                async with asyncio.timeout(body.seconds_max), self._make_world() as world:
                    await body(world)
            except BaseException as error:
                self._outcomes[body].set_exception(error)
                task = asyncio.current_task()
                # A call that a case cancelled may end it the same way, and must not end the others.
                if task is not None and task.cancelling():
                    raise
            else:
                self._outcomes[body].set_result(None)
