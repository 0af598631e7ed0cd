"""An event loop whose time is virtual, and processes in it that can be killed.

Theory of operation. Callbacks run in the order in which they became ready. When none is left the loop tells
`on_rest` that an instant is over, and jumps to the next timer. Nothing is waited for, nothing comes from
outside, and there are no threads; so one program is one history. Where nothing can happen any more, `Stuck`.

Which process a callback belongs to is a context variable: tasks inherit it from who made them. Callbacks of
a process that was killed are dropped, so its tasks stop where they are, as under SIGKILL: no `finally` runs,
and nothing is answered. `close` ends them when everything is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stuck(Exception):
    """Every task waits and no timer runs."""


class Process:
    """What is killed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Handle:
    """A callback that will run, and can be cancelled; asyncio's own do more than is needed here."""

    __slots__ = ("_at_us", "args", "callback", "context")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        at_us: int = 0,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self._at_us = at_us

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._at_us / 1e6


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, on_rest: Callable[[], None] = lambda: None) -> None:
        self.now_us = 0
        self.steps = 0  # instants in which something happened
        self.halted = False  # set it to end the run on the spot
        self.failures: list[str] = []  # of tasks and callbacks, that nobody took up
        self._on_rest = on_rest
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._number = 0  # so that timers of one moment keep their order
        self._closed = False
        self._running = False
        # Everything that was killed or not finished; kept, so that nothing of it is finalised by chance.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # -- what asyncio asks of a loop ------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, _or_current(context))
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        # Never before its time, not by a rounding error either: who then sees no time pass waits for ever.
        at_us = ceil(when * 1e6)
        if at_us / 1e6 < when:
            at_us += 1
        return self.call_at_us(at_us, callback, *args, context=context)

    def call_at_us(
        self,
        at_us: int,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, _or_current(context), at_us)
        self._number += 1
        heapq.heappush(self._timers, (max(at_us, self.now_us), self._number, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Result]:
        task = asyncio.Task(coro, loop=self, name=name or "", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget, context=_NOBODY)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            error = context.get("exception")
            self.failures.append(f"{context.get('message')}: {error!r}")

    # -- running --------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Coroutine[Any, Any, Result]) -> Result:
        asyncio._set_running_loop(self)
        self._running = True
        task = self.create_task(future)
        try:
            while not task.done() and not self.halted:
                if self._ready:
                    self._run_ready()
                else:
                    self._jump()
            return task.result() if task.done() else None
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _run_ready(self) -> None:
        ready = self._ready
        pop = ready.popleft
        # Those that are added meanwhile have their turn afterwards, as in asyncio's own loop; it makes no
        # difference here, where no timer can come between them.
        while ready and not self.halted:
            handle = pop()
            if handle.callback is None:
                continue
            context = handle.context
            process = context.get(_PROCESS)
            if process is None or process.alive:
                try:
                    context.run(handle.callback, *handle.args)
                except Exception:
                    self.failures.append(traceback.format_exc())

    def _jump(self) -> None:
        """An instant is over; on to the next in which something is to be done."""
        self.steps += 1
        self._on_rest()
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if self._ready:
            return
        if not timers:
            raise Stuck("every task waits and no timer runs: nothing can happen any more")
        self.now_us = timers[0][0]
        while timers and timers[0][0] == self.now_us:
            handle = heapq.heappop(timers)[2]
            if handle.callback is not None:
                self._ready.append(handle)

    def close(self) -> None:
        """End what never ended, without letting it do anything more."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for task in list(self._tasks):
            task._log_destroy_pending = False
            # Closing runs its `finally`, whose awaits cannot be served.
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        self._tasks.clear()


_NOBODY = contextvars.Context()


def _or_current(context: contextvars.Context | None) -> contextvars.Context:
    return contextvars.copy_context() if context is None else context  # an empty one is false
