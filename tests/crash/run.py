"""One run: a server under load that is killed again and again, and the judgement at its end.

The ways to die are the moments of a commit as a client sees them: before it, between it and the answer, right
after the answer; and besides a random moment, and while the server starts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from pubsubd.wire import admin_pb
from tests.crash.compare import Stored, differences
from tests.crash.database import read_copy, reader
from tests.crash.filters import matches
from tests.crash.load import Load
from tests.crash.log import Killed, Log, now_us
from tests.crash.plan import ATTEMPTS_MAX, TOPICS, Watched, draw
from tests.crash.promises import (
    Judged,
    Rules,
    Violation,
    check_loss,
    judge,
)
from tests.crash.replay import DEADLETTER, DROP, EXPIRE, FILTERED, RESET, SEEK, Replayer
from tests.crash.told import check_told
from tests.support.server import ServerProcess
from tests.wire.calls import ADMIN, CHANNEL_OPTIONS, Client

# Retention that ends within a run; what is shorter than ten minutes is refused otherwise.
_SHORT_RETENTION = """
import sys
from pubsubd.cli import main
from pubsubd.model import limits
limits.RETENTION_SECONDS_MIN = 1
limits.RETENTION_STEP_US = 500_000
"""
# Bounds so small that every run is over them: the log of operations is folded, messages leave memory and are
# read back, finished ones are removed and the write-ahead log is moved many times between two kills.
_SMALL_BOUNDS = """
from pubsubd.storage import store
limits.OPLOG_BYTES_MAX = 20_000
limits.TAIL_BYTES_MAX = 20_000
limits.CHUNK_BYTES_MAX = 4_000
limits.READ_BYTES_MAX = 30_000
limits.READ_MESSAGES_MAX = 7
limits.READ_AHEAD_MESSAGES_MIN = 20
limits.TRIM_MESSAGES_MIN = 20
limits.PARKED_BYTES_MAX = 2_000
limits.PARKED_MESSAGES_MAX = 40
limits.EPOCHS_MAX = 3
store._CHECKPOINT_BYTES = 500_000
store._WAL_BYTES_MAX = 2_000_000
"""
_SERVE = """
sys.exit(main())
"""

Fault = admin_pb.InjectCommitFaultRequest
_REPLIES = ["publish", "ack", "extend", "nack", "delivery", "confirmation"]
WAYS = [
    "at a random moment",
    "before a commit",
    "between commit and reply",
    *(f"after a reply ({kind})" for kind in _REPLIES),
    "while starting",
]

# A fault that nothing meets (an idle moment) is replaced by a kill from outside after this time.
_FAULT_SECONDS_MAX = 2.0
_DRAIN_SECONDS_MAX = 60.0
_QUIET_US = 1_500_000

_COUNTED = {
    EXPIRE: "leases that ran out",
    RESET: "leases that were void",
    FILTERED: "filtered",
    DEADLETTER: "forwarded",
    DROP: "drops",
    SEEK: "seeks",
}


class _Server(ServerProcess):
    """One that is started with small bounds while `small` is set."""

    small = False

    def command(self) -> Sequence[str]:
        python, _, module, *arguments = super().command()
        assert module == "pubsubd"
        bounds = _SMALL_BOUNDS if self.small else ""
        return [python, "-c", _SHORT_RETENTION + bounds + _SERVE, *arguments]


@dataclass
class Outcome:
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    output: list[str] = field(default_factory=list)  # what each server said


class Run:
    """`kills` kills under load; `drain` then waits until every message is acked: a lease or two."""

    def __init__(
        self,
        directory: Path,
        kills: int,
        seed: int,
        *,
        drain: bool = True,
        show: Callable[[str], None] = lambda _: None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._directory = directory
        self._kills = kills
        self._drain = drain
        self._show = show
        self._chance = random.Random(seed)
        self._server = _Server(directory, *options, admin=True)
        self._log = Log()
        self.plan = draw(self._chance)
        self._replayer = Replayer(self._matches)
        self._outcome = Outcome()
        self._kill_at_reply = ""
        self._stored: Stored | None = None

    async def run(self) -> Outcome:
        began_us = now_us()
        await asyncio.to_thread(self._server.start)
        self._load = Load(self._server.address, self._log, self._chance, self._on_reply, self.plan)
        try:
            await self._load.start()
            for number, way in enumerate(self._ways()):
                await self._kill_once(number, way)
            await self._end()
        finally:
            await self._load.stop()
            if self._server.process is not None and self._server.process.poll() is None:
                self._server.kill()
        self._judge()
        self._outcome.seconds = (now_us() - began_us) / 1e6
        return self._outcome

    def _ways(self) -> list[str]:
        """Every way in turn, in an order that changes from round to round."""
        ways: list[str] = []
        while len(ways) < self._kills:
            ways += self._chance.sample(WAYS, len(WAYS))
        return ways[: self._kills]

    # -- killing ------------------------------------------------------------------------------------------

    async def _kill_once(self, number: int, way: str) -> None:
        await asyncio.sleep(self._chance.uniform(0.15, 0.9))
        self._load.check_tasks()
        process = self._server.process
        assert process is not None
        if process.poll() is not None:
            self._break("the server stays up", f"it ended by itself with {process.returncode}")
        elif way.startswith("after a reply"):
            self._kill_at_reply = way.partition("(")[2].rstrip(")")
        elif way in ("before a commit", "between commit and reply"):
            before = way == "before a commit"
            fault = Fault.KILL_BEFORE_COMMIT if before else Fault.KILL_AFTER_COMMIT
            await self._inject(fault, skip=self._chance.randint(0, 60))
        else:
            process.kill()
        if not await self._ended(process):
            way = "at a random moment"
            process.kill()
        killed_us = now_us()
        await asyncio.to_thread(process.wait)
        self._kill_at_reply = ""
        self._load.up.clear()
        await self._check_files()
        if way == "while starting":
            await self._kill_while_starting()
        await asyncio.sleep(self._chance.choice((0, 0, 0.1, 1.2)))
        await self._start_again()
        self._log.kills.append(Killed(way, killed_us))
        self._outcome.kills[way] += 1
        self._show(f"kill {number + 1} of {self._kills}: {way}")

    async def _ended(self, process: subprocess.Popen[str]) -> bool:
        for _ in range(int(_FAULT_SECONDS_MAX / 0.005)):
            if process.poll() is not None:
                return True
            await asyncio.sleep(0.005)
        return False

    def _on_reply(self, kind: str) -> None:
        """Called with each answer before anything else happens, the earliest that a client can know."""
        if kind == self._kill_at_reply:
            self._kill_at_reply = ""
            os.kill(self._server.pid, signal.SIGKILL)

    async def _inject(self, fault: int, skip: int) -> None:
        async with grpc.aio.insecure_channel(self._server.admin_address, options=CHANNEL_OPTIONS) as channel:
            await Client(channel, [ADMIN]).InjectCommitFault(fault=fault, commits=1, skip=skip)

    async def _kill_while_starting(self) -> None:
        for _ in range(2):
            process = subprocess.Popen(
                self._server.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))
            process.kill()
            process.wait()

    async def _start_again(self) -> None:
        self._outcome.output.append(self._server.output)
        self._server.small = self._chance.random() < 0.5
        self._outcome.counts["starts with small bounds"] += self._server.small
        await asyncio.to_thread(self._server.start)
        self._load.up.set()

    # -- the files ----------------------------------------------------------------------------------------

    async def _check_files(self) -> None:
        self._stored = await asyncio.to_thread(read_copy, self._directory)
        await asyncio.to_thread(self._compare, self._stored)
        self._outcome.counts["comparisons of journal and state"] += 1

    def _compare(self, stored: Stored) -> None:
        replayer = self._replayer
        replayer.snapshot_sources = self._log.snapshots
        replayer.feed(stored.rows, stored.details)
        self._outcome.counts["journal events"] = replayer.events
        for problem in replayer.problems:
            self._break("the journal is lawful", problem)
        replayer.problems.clear()
        for difference in differences(stored, replayer):
            self._break("the journal tells the state", difference)
        owed = {one.name: one.unacked for one in stored.subscriptions.values()}
        self._load.owes((one.name, message_id) for one in self.plan.watched for message_id in owed[one.name])

    def _matches(self, filter_text: str, payload: int) -> bool:
        """Whether a message, known to the journal by a hash, passes a filter."""
        return matches(filter_text, self._log.attributes[payload])

    def _break(self, promise: str, text: str) -> None:
        self._outcome.violations.append(Violation(promise, "", 0, text))

    # -- the end ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        self._load.calm_down()
        await self._load.check_resources()
        if self._drain:
            began_us = now_us()
            await self._wait_until_drained()
            self._outcome.counts["seconds until all was acked"] = (now_us() - began_us) // 1_000_000
        await self._load.stop()
        code = await asyncio.to_thread(self._server.terminate)
        if code:
            self._break("the server ends in order", f"it ended with {code}")
        self._outcome.output.append(self._server.output)
        await self._check_files()
        if self._drain:
            self._check_nothing_is_owed()

    async def _wait_until_drained(self) -> None:
        """Nothing is leased or waits, and nothing comes any more."""
        watched = {one.name for one in self.plan.watched}
        async with grpc.aio.insecure_channel(self._server.admin_address, options=CHANNEL_OPTIONS) as channel:
            admin = Client(channel, [ADMIN])
            for _ in range(int(_DRAIN_SECONDS_MAX / 0.1)):
                self._load.check_tasks()
                state = await admin.GetState()
                open_leases = sum(s.leased + s.waiting for s in state.subscriptions if s.name in watched)
                if not open_leases and now_us() > self._load.delivered_us + _QUIET_US:
                    return
                await asyncio.sleep(0.1)

    def _check_nothing_is_owed(self) -> None:
        assert self._stored is not None
        for one in self._stored.subscriptions.values():
            if one.unacked and one.name in {watched.name for watched in self.plan.watched}:
                text = f"{len(one.unacked)} were not, as {sorted(one.unacked)[:5]}"
                self._outcome.violations.append(Violation("everything is delivered", one.name, 0, text))

    def _judge(self) -> None:
        assert self._stored is not None
        log, outcome = self._log, self._outcome
        judged = judge(log, {one.name: _rules(one) for one in self.plan.watched})
        outcome.violations += judged.violations
        outcome.violations += check_told(log, self._replayer, reader(self._stored.secret))
        for topic in TOPICS:
            watched = [one for one in self.plan.of_topic(topic) if one.judged_from_outside]
            kept = {one.name: self._kept(one, judged) for one in watched}
            publishes = [publish for publish in log.publishes if publish.topic == topic]
            outcome.violations += check_loss(Log(publishes=publishes), {topic: kept}, kept)
        for output in outcome.output:
            if "Traceback" in output:
                self._break("no traceback", output[output.index("Traceback") :][:2000])
        self._count(judged)

    def _kept(self, one: Watched, judged: Judged) -> set[int]:
        """What was acked, is owed, was forwarded, or is none of its business."""
        assert self._stored is not None
        (owed,) = (sub.unacked for sub in self._stored.subscriptions.values() if sub.name == one.name)
        (told,) = (sub for sub in self._replayer.subscriptions.values() if sub.name == one.name)
        rejected = {
            message_id
            for publish in self._log.publishes
            for message_id, attributes in zip(publish.message_ids or (), publish.attributes, strict=False)
            if not matches(one.filter, attributes)
        }
        return judged.acked[one.name] | judged.maybe_acked[one.name] | owed | set(told.forwarded) | rejected

    def _count(self, judged: Judged) -> None:
        log, counts = self._log, self._outcome.counts
        counts += judged.counts
        counts["messages published"] = sum(len(one.message_ids or ()) for one in log.publishes)
        counts["publishes without an answer"] = sum(one.message_ids is None for one in log.publishes)
        counts["changes of resources"] = log.resource_changes
        counts["looks at resources"] = log.resource_checks
        for kind, name in _COUNTED.items():
            counts[f"journal: {name}"] = self._replayer.kinds[kind]
        for one in log.seeks:
            target = "to a snapshot" if one.snapshot else "to a time"
            counts[f"seek {target}: {one.answer.value}"] += 1


def _rules(one: Watched) -> Rules:
    attempts_max = ATTEMPTS_MAX if one.dead_letter else 0
    return Rules(one.exactly_once, one.ordered, attempts_max, one.judged_from_outside)
