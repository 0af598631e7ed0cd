"""One run: a seed, the storm that it draws, the calm after it, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pubsubd.broker import tail
from pubsubd.engine.engine import Engine
from pubsubd.eod import lease
from pubsubd.eod.ack_id import AckIds
from pubsubd.model import limits
from pubsubd.storage.store import Commit
from tests.crash.replay import Row
from tests.sim.broken import Broken
from tests.sim.clients import Population
from tests.sim.disk import SimDisk, Trouble
from tests.sim.loop import SimLoop, Stuck
from tests.sim.plan import SECOND_US, START_US, Plan, draw
from tests.sim.server import Server
from tests.sim.trace import LINES, Trace
from tests.sim.trouble import Operator, Weather
from tests.sim.wire import Delays, Network, Status

# A storm that does not get its operations done in this time is over as well.
_STORM_SECONDS_MAX = 1_000_000
_CALM_SECONDS_MAX = 1800
_QUIET_US = 20 * SECOND_US
# What no client is ever to be told: some take it for the end, others for a success.
_NEVER = {"UNKNOWN", "INTERNAL"}


@dataclass
class Outcome:
    seed: int
    operations: int = 0
    steps: int = 0
    simulated_us: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    cpu_seconds: float = 0.0
    invariant: str = ""  # that does not hold
    text: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.invariant)


class World:
    """`auditor` judges what it is told; `lines`: how much of the history is kept to be shown, None: all."""

    def __init__(self, seed: int, auditor: Any, lines: int | None = LINES, plan: Plan | None = None) -> None:
        self.plan = plan or draw(seed)
        self.auditor = auditor
        self.loop = SimLoop(self._rest)
        self.trace = Trace(self.wall_us, lines)
        self.outcome = Outcome(seed)
        self.operations = 0
        self.storm = True
        self.broken: tuple[str, str] | None = None
        self.disk = SimDisk(Random(f"secret {seed}").randbytes(32))
        self.trouble = Trouble(commit_us=(100, 3_000), read_us=(50, 1_000))
        self.server = Server(self.loop, self.disk, self.trouble, self.chance("disk"), self.plan, self)
        self.network = Network(
            self.loop, self.chance("network"), Delays(), self.server.serving, self._call_ended
        )
        self.at_rest: list[Callable[[], None]] = []  # called when an instant is over
        self._enough = asyncio.Event()
        self._leapt_us = 0
        self._happened = False
        self._ack_ids = AckIds(self.disk.secret)

    def chance(self, part: str) -> Random:
        """The generator of one part: what another part draws does not change what it does."""
        return Random(f"{part} {self.plan.seed}")

    # -- time -----------------------------------------------------------------------------------------------

    def wall_us(self) -> int:
        """What every clock shows: there is one time for all, on which clients and server agree."""
        return START_US + self.loop.now_us + self._leapt_us

    def leap(self, us: int) -> None:
        """The machine was suspended: clocks go on, timers do not know."""
        self._leapt_us += us

    # -- what happens ---------------------------------------------------------------------------------------

    def fault(self, name: str) -> None:
        self.outcome.faults[name] += 1
        self.operations += 1
        self.trace.note("fault", name)

    def tell(self, what: str, *told: Any) -> None:
        """Tell the auditor; what it finds ends the run on the spot."""
        if self.broken is not None:
            return
        try:
            getattr(self.auditor, what)(*told)
        except Broken as broken:
            self.breaks(broken.invariant, broken.text)
        except Exception:  # which must not be taken for the product's
            self.breaks("the auditor failed", traceback.format_exc())

    def breaks(self, invariant: str, text: str) -> None:
        if self.broken is None:
            self.broken = (invariant, text)
            self.trace.note("broken", invariant, shown=text)
            self.loop.halted = True

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the world's own; that it fails ends the run."""
        return self.loop.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.breaks("the simulation failed", traceback.format_exc())

    def _call_ended(self, method: str, status: Status) -> None:
        if status.code in _NEVER:
            self.breaks("what no client is told", f"{method}: {status.code} {status.message}")

    # -- the server's host ----------------------------------------------------------------------------------

    def wrote(self, commit: Commit) -> None:
        rows = [] if commit.journal is None else [Row(*commit.journal)]
        journal = b"" if commit.journal is None else commit.journal[3]
        details = "".join(text for _, text in commit.journal_details)
        self.trace.note("disk", "commit", b"".join((commit.oplog, journal, details.encode())))
        self._happened = True
        self.tell("committed", rows, dict(commit.journal_details), self.wall_us())

    def started(self, engine: Engine) -> None:
        self.trace.note("server", f"boot {self.server.boots} is up")
        self.tell("restarted", engine, self.disk, self.wall_us())

    def ended(self, how: str) -> None:
        self.trace.note("server", how)
        self.tell("killed", self.wall_us())
        self.network.server_ended()

    def broke(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.breaks("the server stays up", text)

    def _rest(self) -> None:
        for callback in self.at_rest:
            callback()
        if self.operations >= self.plan.operations:
            self._enough.set()
        if self._happened:
            self._happened = False
            self.tell("stepped", self.server.engine, self.wall_us())
        if self.loop.failures:
            self.breaks("nothing fails unseen", "\n".join(self.loop.failures))

    def happened(self) -> None:
        """Something that the auditor may want to look at when this instant is over."""
        self._happened = True

    # -- a run ----------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        began = time.process_time()
        with _bounds(self.plan), _listening(self.breaks), _no_garbage():
            try:
                self.loop.run_until_complete(self._live())
            except Stuck as error:
                self.breaks("something can always happen", str(error))
            except Exception:
                self.breaks("the simulation failed", traceback.format_exc())
            outcome = self._finish()
            self.loop.close()
        outcome.cpu_seconds = time.process_time() - began
        return outcome

    def _finish(self) -> Outcome:
        outcome = self.outcome
        outcome.operations = self.operations
        outcome.steps = self.loop.steps
        outcome.simulated_us = self.loop.now_us + self._leapt_us
        outcome.digest = self.trace.digest()
        outcome.counts["commits"] = self.disk.commits
        outcome.counts["boots"] = self.server.boots
        self._count_plan(outcome.faults)
        if self.broken is not None:
            outcome.invariant, outcome.text = self.broken
        if self.broken is not None or self.trace.whole:
            outcome.trace = self.trace.text(self._readable)
        return outcome

    def _count_plan(self, faults: Counter[str]) -> None:
        faults["small bounds"] += self.plan.small
        for one in self.plan.subscriptions:
            faults["exactly-once"] += one.exactly_once
            faults["ordering"] += one.ordered
            faults["a filter"] += bool(one.filter)
            faults["a retry policy"] += one.retry is not None
            faults["dead letters"] += bool(one.attempts)

    def _readable(self, text: str) -> str:
        """With what each ack id stands for."""

        def name(found: re.Match[str]) -> str:
            token = self._ack_ids.read(found[0])
            if token is None:
                return found[0]
            return f"<sub {token.sub_id} message {token.message_id} generation {token.generation}>"

        return re.sub(r"[A-Za-z0-9_-]{40,60}", name, text)

    async def _live(self) -> None:
        self.server.boot()
        await self.server.up.wait()
        population = Population(self)
        await population.settle()
        weather, operator = Weather(self), Operator(self)
        population.begin()
        weather.begin()
        operator.begin()
        await self._storm()
        self.storm = False
        self.outcome.counts["seconds of storm"] = self.loop.now_us // SECOND_US
        self.trace.note("world", "the storm is over")
        await weather.end()
        await operator.end()
        population.calm_down()
        await self._calm(population)
        await self.server.up.wait()
        assert self.server.engine is not None
        self.tell("finished", self.server.engine, self.disk, self.wall_us())
        await population.end()
        operator.leave()
        self.server.stop()
        await self.server.gone.wait()
        self.server.boot()
        await self.server.up.wait()

    async def _storm(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STORM_SECONDS_MAX):
                await self._enough.wait()

    async def _calm(self, population: Population) -> None:
        """Until everything that is owed was delivered and acked."""
        until_us = self.loop.now_us + _CALM_SECONDS_MAX * SECOND_US
        while self.loop.now_us < until_us:
            await asyncio.sleep(1)
            quiet = self.loop.now_us - population.busy_us > _QUIET_US
            if (
                quiet
                and not self.auditor.owed()
                and population.is_idle()
                and (engine := self.server.engine) is not None
            ):
                broker = await engine.broker()
                if not any(one.unfinished_count or one.is_reading for one in broker.subscriptions()):
                    return
        engine = self.server.engine
        left = [
            f"{one.name}: {len(one.leases)} leased, {one.waiting_count} waiting, reading: {one.is_reading}"
            for one in (() if engine is None else engine._broker.subscriptions())
        ]
        self.breaks("liveness", f"after {_CALM_SECONDS_MAX} quiet seconds not all is acked: {left}")
        await asyncio.sleep(0)


@contextlib.contextmanager
def _bounds(plan: Plan) -> Iterator[None]:
    """The limits of this history."""
    values: list[tuple[Any, str, Any]] = [(limits, name, value) for name, value in plan.bounds.items()]
    if plan.small:
        values += [(tail, "_EVICT_MIN", 2), (lease, "_SWEEP_MIN", 4)]
    before = [(where, name, getattr(where, name)) for where, name, _ in values]
    try:
        for where, name, value in values:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


class _Listener(logging.Handler):
    """The server's log: what it calls a bug of its own is one."""

    def __init__(self, breaks: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._breaks = breaks

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._breaks("no bug is logged", self.format(record))


@contextlib.contextmanager
def _listening(breaks: Callable[[str, str], None]) -> Iterator[None]:
    logger = logging.getLogger("pubsubd")
    listener, propagates = _Listener(breaks), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagates
        logger.setLevel(level)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is finalised at a time that depends on anything but the history."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
