"""What a command is at: a line per stage on a terminal, nothing in a pipe.

Spark counts tasks, not rows. A stage that knows how many rows it works on shows the share of them that the
finished tasks stand for; the time left follows from that share and the time since the stage began.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.progress import Progress as Bars

_LOOK_EVERY_S = 0.5


@dataclass
class Share:
    """How much of a stage is done, by tasks; it never goes back although jobs are found one by one."""

    done: int = 0
    total: int = 0
    highest: float = 0.0

    def update(self, done: int, total: int) -> float:
        self.done, self.total = done, total
        if total:
            # Until the stage ends a later job may come, so the last bit is kept back.
            self.highest = max(self.highest, min(done / total, 0.99))
        return self.highest


@dataclass
class Progress:
    """Stages of one command; `durations` (name, seconds) are kept whether or not anything is shown."""

    spark: SparkSession | None = None
    shown: bool = False
    durations: list[tuple[str, float]] = field(default_factory=list)
    console: Console | None = None  # stderr, unless a test reads along
    _in_line: bool = False

    @contextmanager
    def stage(self, name: str, rows: int | None = None) -> Iterator[None]:
        """Everything that runs inside belongs to the stage; `rows` is about how many rows go through it."""
        began = time.monotonic()
        has_line = self.shown and not self._in_line
        try:
            if has_line:
                self._in_line = True
                with self._line(name, rows):
                    yield
            else:  # a stage within a stage has its time taken, and no line of its own
                yield
        finally:
            self.durations.append((name, time.monotonic() - began))
            if has_line:
                self._in_line = False

    @contextmanager
    def _line(self, name: str, rows: int | None) -> Iterator[None]:
        bars = _bars(self.console)
        task = bars.add_task(name, total=1.0, rows=_rows(0, rows), left="")
        over = threading.Event()
        group = f"{name}-{time.monotonic_ns()}"
        context = self.spark.sparkContext if self.spark is not None else None
        if context is not None:
            context.setJobGroup(group, name)
        looker = threading.Thread(
            target=self._look, args=(bars, task, group, rows, over), name="progress", daemon=True
        )
        began = time.monotonic()
        ended = False
        with bars:
            looker.start()
            try:
                yield
                ended = True
            finally:
                over.set()
                looker.join(5)
                if context is not None:
                    with suppress(Exception):  # the session may have died, which is told elsewhere
                        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it
                        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]  # None unsets it
                took = f"{time.monotonic() - began:.1f} s"
                if ended:
                    bars.update(task, completed=1.0, rows=_rows(rows or 0, rows), left=took)
                else:
                    bars.update(task, left=f"stopped after {took}")

    def _look(self, bars: Bars, task: Any, group: str, rows: int | None, over: threading.Event) -> None:
        share = Share()
        began = time.monotonic()
        while not over.wait(_LOOK_EVERY_S):
            try:
                part = share.update(*tasks_of(self.spark, group))
            except Exception:
                return  # a session that is going down; what became of the stage is told by its caller
            left = time_left(time.monotonic() - began, part)
            shown = "" if left is None else f"about {duration(left)} left"
            bars.update(task, completed=part, rows=_rows(int(part * (rows or 0)), rows), left=shown)


def tasks_of(spark: SparkSession | None, group: str) -> tuple[int, int]:
    """Tasks finished, and all tasks known of, in the jobs of a group."""
    if spark is None:
        return 0, 0
    tracker = spark.sparkContext.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info is None:
            continue
        for stage_id in info.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                total += stage.numTasks
                # A stage that was skipped, because its output is there from an earlier job, runs no task.
                done += stage.numCompletedTasks if info.status == "RUNNING" else stage.numTasks
    return done, total


def time_left(elapsed_s: float, part: float) -> float | None:
    """Seconds, or None as long as too little is done to say."""
    if part < 0.02 or elapsed_s < 1:
        return None
    return elapsed_s * (1 - part) / part


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def _rows(done: int, rows: int | None) -> str:
    return "" if not rows else f"{done:,} of {rows:,} rows" if done < rows else f"{rows:,} rows"


def _bars(console: Console | None) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[rows]}"),
        TextColumn("{task.fields[left]}"),
        console=console or Console(stderr=True),
    )


def on_terminal() -> bool:
    return sys.stderr.isatty()
