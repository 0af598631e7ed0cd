"""What a run shows while it lasts: a live display in a terminal, otherwise a line for what did not pass."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pubsubd.conform.case import Case
from pubsubd.conform.report import STYLES, tally
from pubsubd.conform.runner import Outcome, Result

RUNNING_SHOWN_MAX = 6
REFRESHES_PER_SECOND = 4


class Progress(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def started(self, case: Case) -> None: ...

    def finished(self, result: Result) -> None: ...


def progress_on(console: Console, total: int) -> Progress:
    return Display(console, total) if console.is_terminal else Lines(console)


def headline(result: Result) -> Text:
    """One finished case in one line."""
    return Text.assemble(
        (f"{result.case.id} ", "bold"),
        (result.outcome.value, STYLES[result.outcome]),
        f": {result.seen}",
    )


class Lines:
    """One line for each finished case that did not pass."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def started(self, case: Case) -> None: ...

    def finished(self, result: Result) -> None:
        if result.outcome not in (Outcome.PASS, Outcome.NOT_RUN):
            self._console.print(headline(result), soft_wrap=True)


class Display(Lines):
    """A bar, the counts so far, and the cases that will take longest, below the lines of `Lines`."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console)
        self._total = total
        self._running: dict[str, tuple[Case, float]] = {}
        self._counts: Counter[Outcome] = Counter()
        self._began = time.monotonic()
        # The display draws itself from a thread of its own, so that no case waits for it.
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, case: Case) -> None:
        self._running[case.id] = (case, time.monotonic())

    def finished(self, result: Result) -> None:
        self._running.pop(result.case.id, None)
        self._counts[result.outcome] += 1
        super().finished(result)

    def _draw(self) -> RenderableType:
        now = time.monotonic()
        done = self._counts.total()
        top = Table.grid(padding=(0, 2))
        clock = f"{int(now - self._began) // 60}:{int(now - self._began) % 60:02}"
        bar = ProgressBar(total=self._total, completed=done, width=40)
        top.add_row(bar, f"{done}/{self._total}", clock, self._tally())
        # A copy: the run goes on while this is drawn.
        running = sorted(list(self._running.values()), key=lambda each: now - each[1] - each[0].seconds)
        rows = [_row(case, now - began) for case, began in running[:RUNNING_SHOWN_MAX]]
        if (more := len(running) - RUNNING_SHOWN_MAX) > 0:
            rows.append(Text(f"and {more} more", style="dim"))
        return Group(top, *rows)

    def _tally(self) -> Text:
        parts = [
            Text(tally(outcome, self._counts[outcome]), style=STYLES[outcome])
            for outcome in Outcome
            if self._counts[outcome]
        ]
        return Text("  ").join(parts)


def _row(case: Case, seconds: float) -> Text:
    """One running case in one line, cut where the terminal ends."""
    gone = f"{seconds:.0f}/{case.seconds:.0f} s"
    row = Text.assemble((case.id, "bold"), (f"{gone:>11}  ", "dim"), case.promise)
    row.no_wrap, row.overflow = True, "ellipsis"
    return row
