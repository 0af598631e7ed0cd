"""Runs cases, side by side where they only wait, one by one where they load; says what each came to."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import grpc

from pubsubd.conform.calls import Refusal, method_of
from pubsubd.conform.case import Case, Differs, Erred, Failed, Hook, NotRun
from pubsubd.conform.endpoint import EndpointError
from pubsubd.conform.lab import Lab, Setting

# More at once would wait for the processor instead of the clock, and no run would be shorter: a few cases
# that wait for minutes decide how long one takes.
JOBS = 24

# A case whose own clock was later than this cannot tell what it promised to look at.
LATE_SECONDS_MAX = 0.5
TICK_SECONDS = 0.05

# How long an endpoint is asked for an answer after a promise seemed broken, before it counts as gone.
GONE_SECONDS_MAX = 2.0

# What is seen of a case that a stopped run never came to, or not to the end of.
STOPPED = "The run was stopped before its end."

# What the promises are about. Other calls prepare a case; when one of them is refused, the promise was never
# put to the test.
DATA_CALLS = frozenset({"Acknowledge", "ModifyAckDeadline", "Pull", "Publish"})


class Outcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    DIFFERS = "differs"
    NOT_RUN = "not run"

    @property
    def is_bad(self) -> bool:
        return self in (Outcome.FAIL, Outcome.ERROR)


@dataclass(frozen=True)
class Result:
    """What one case came to."""

    case: Case
    outcome: Outcome
    seen: str  # printable, in one line
    seconds: float = 0.0
    form: str = "as written"


class Watcher(Protocol):
    """Whoever wants to know how far a run is."""

    def started(self, case: Case) -> None: ...

    def finished(self, result: Result) -> None: ...


def missing_hooks(case: Case, setting: Setting) -> str:
    """Why the case cannot be run with this setting; empty when it can."""
    command = setting.start_command
    if not case.needs:
        return ""
    if command is None:
        return f"It needs {' and '.join(case.needs)}, which --start-cmd makes."
    missing = [hook for hook in case.needs if hook not in command.hooks]
    if not missing:
        return ""
    words = {Hook.RESTART: "{datadir}", Hook.FAULTS: "{admin_port}"}
    lacking = " and no ".join(words[hook] for hook in missing)
    return f"It needs {' and '.join(missing)}, and the start command has no {lacking}."


def judge(error: BaseException) -> tuple[Outcome, str]:
    """What a case came to that ended with this exception, and the sentence that says so."""
    match error:
        case Failed():
            return Outcome.FAIL, str(error)
        case Differs():
            return Outcome.DIFFERS, str(error)
        case NotRun():
            return Outcome.NOT_RUN, str(error)
        case Erred():
            return Outcome.ERROR, str(error)
        case grpc.RpcError():
            return _judge_call(error)
        case ExceptionGroup():
            # A broken promise says more than what broke in its wake.
            return min((judge(each) for each in error.exceptions), key=lambda seen: seen[0] != Outcome.FAIL)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return Outcome.ERROR, f"The case itself broke{place}: {type(error).__name__}: {error}."


def _judge_call(error: grpc.RpcError) -> tuple[Outcome, str]:
    method = method_of(error)
    try:
        refusal = Refusal.of(error)
    except Failed as failed:
        return Outcome.FAIL, str(failed)
    judged = method in DATA_CALLS and refusal.was_judged
    return Outcome.FAIL if judged else Outcome.ERROR, f"{method or 'A call'} was refused with {refusal}."


def _plain(text: str) -> str:
    """In one line, and without what a terminal would obey or XML could not write: endpoints may send that."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))


class Lateness:
    """How late this side is: what should have happened at a moment, and when it did.

    A process that gets no processor time sends acks after their deadlines, and would blame the endpoint.
    """

    def __init__(self) -> None:
        self._due = time.monotonic()
        self._late: list[tuple[float, float]] = []  # when it was due, when it happened
        self.seconds_max = 0.0

    async def watch(self) -> None:
        while True:
            self._due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._note(time.monotonic())

    def since(self, start: float) -> float:
        """The worst of the time from `start` on; 0 if it was no worse than may be."""
        self._note(time.monotonic())
        worst = max((now - max(due, start) for due, now in self._late), default=0.0)
        return worst if worst > LATE_SECONDS_MAX else 0.0

    def _note(self, now: float) -> None:
        seconds = now - self._due
        self.seconds_max = max(self.seconds_max, seconds)
        if seconds > LATE_SECONDS_MAX:
            self._late.append((self._due, now))


class Runner:
    """One run of some cases against one endpoint."""

    def __init__(self, setting: Setting, cases: Sequence[Case], watcher: Watcher, jobs: int = JOBS) -> None:
        self._setting = setting
        self._cases = cases
        self._watcher = watcher
        self._places = asyncio.Semaphore(jobs)
        self.results: list[Result] = []
        self._lateness = Lateness()
        self._again: list[tuple[Case, float]] = []
        self._running: set[asyncio.Task[None]] = set()
        self.left_behind: list[str] = []  # names of what a finished case could not delete

    @property
    def late_seconds_max(self) -> float:
        """How late this side was at worst, in the whole run."""
        return self._lateness.seconds_max

    async def run(self) -> list[Result]:
        """Runs all; returns the results in the order of the cases.

        Cancelled, it removes what the cases made before it ends. `results` then holds what is known, and
        `NOT_RUN` for all others.
        """
        watch = asyncio.create_task(self._lateness.watch())
        try:
            await self._run_all()
        except asyncio.CancelledError:
            finished = {result.case.id for result in self.results}
            for case in self._cases:
                if case.id not in finished:
                    self._finish(case, Outcome.NOT_RUN, STOPPED, 0.0)
            raise
        finally:
            watch.cancel()
            order = {case.id: number for number, case in enumerate(self._cases)}
            self.results.sort(key=lambda result: order[result.case.id])
        return self.results

    def abandon(self) -> None:
        """For a run that is being cancelled already: lets what the cases made stay where it is."""
        for task in self._running:
            task.cancel()

    async def _run_all(self) -> None:
        able = []
        for case in self._cases:
            if missing := missing_hooks(case, self._setting):
                self._finish(case, Outcome.NOT_RUN, missing, 0.0)
            else:
                able.append(case)
        able.sort(key=lambda case: -case.seconds)
        async with asyncio.TaskGroup() as group:
            for case in able:
                if not case.alone:
                    group.create_task(self._run_in_place(case))
        for case in able:
            if case.alone:
                await self._run(case)
        for case, late in self._again:
            await self._run(case, late)

    async def _run_in_place(self, case: Case) -> None:
        async with self._places:
            await self._run(case)

    async def _run(self, case: Case, late_before: float = 0.0) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._run_now(case, late_before)
        finally:
            self._running.discard(task)

    async def _run_now(self, case: Case, late_before: float) -> None:
        self._watcher.started(case)
        start = time.monotonic()
        outcome, seen = await self._outcome_of(case)
        late = self._lateness.since(start)
        if outcome.is_bad and late and not late_before:
            # Once more, when nothing runs beside it; what it comes to then is its outcome, whatever it is.
            self._again.append((case, late))
            return
        if late_before:
            seen += f" (Second try: in the first, not passed, this side was {late_before:.1f} s late.)"
        self._finish(case, outcome, seen, time.monotonic() - start)

    async def _outcome_of(self, case: Case) -> tuple[Outcome, str]:
        task = asyncio.current_task()
        assert task is not None
        limit = asyncio.timeout(case.seconds_max)
        try:
            async with Lab(self._setting) as lab:
                try:
                    async with limit:
                        return Outcome.PASS, await case.body(lab)
                finally:
                    # Also when the run is being ended: what was made must not stay on a real project.
                    try:
                        await lab.clean_up()
                    finally:
                        self.left_behind += lab.made
        except asyncio.CancelledError:
            # A call that the case itself cancelled may end the case the same way.
            if task.cancelling():
                raise
            return Outcome.ERROR, "The case itself broke: it was cancelled from within."
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return Outcome.ERROR, f"It had not come to its end after {case.seconds_max:g} s."
            outcome, seen = judge(error)
            if outcome == Outcome.FAIL:
                return await self._unless_gone(seen)
            return outcome, seen

    async def _unless_gone(self, seen: str) -> tuple[Outcome, str]:
        """A fail, unless nobody is there any more: a stream that a lost connection ended broke no promise."""
        try:
            await self._setting.endpoint.answers(self._setting.project, GONE_SECONDS_MAX)
        except EndpointError as error:
            return Outcome.ERROR, f"The endpoint was gone ({error}). Before that was seen: {seen}"
        return Outcome.FAIL, seen

    def _finish(self, case: Case, outcome: Outcome, seen: str, seconds: float) -> None:
        result = Result(case, outcome, _plain(seen), round(seconds, 3), case.form(self._setting.full))
        self.results.append(result)
        self._watcher.finished(result)
