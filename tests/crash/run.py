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
from typing import Any

import grpc

from pubsubd.wire import admin_pb
from tests.crash.database import Stored, read_copy
from tests.crash.load import EXACTLY_ONCE, SUBSCRIPTIONS, Load
from tests.crash.log import Killed, Log, now_us
from tests.crash.promises import Judged, Violation, check_loss, check_whole_requests, judge
from tests.crash.replay import Replayer
from tests.support.server import ServerProcess
from tests.wire.calls import ADMIN, CHANNEL_OPTIONS, Client

# Bounds so small that every run is over them: the log of operations is folded, messages leave memory and are
# read back, finished ones are removed and the write-ahead log is moved many times between two kills.
_SMALL_BOUNDS = """
import sys
from pubsubd.cli import main
from pubsubd.model import limits
from pubsubd.storage import store
limits.OPLOG_BYTES_MAX = 20_000
limits.TAIL_BYTES_MAX = 20_000
limits.CHUNK_BYTES_MAX = 4_000
limits.READ_BYTES_MAX = 30_000
limits.READ_MESSAGES_MAX = 7
limits.READ_AHEAD_MESSAGES_MIN = 20
limits.TRIM_MESSAGES_MIN = 20
store._CHECKPOINT_BYTES = 500_000
store._WAL_BYTES_MAX = 2_000_000
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


class _Server(ServerProcess):
    """One that is started with small bounds while `small` is set."""

    small = False

    def command(self) -> Sequence[str]:
        python, _, module, *arguments = super().command()
        assert module == "pubsubd"
        return [python, "-c", _SMALL_BOUNDS, *arguments] if self.small else super().command()


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
        self._replayer = Replayer()
        self._outcome = Outcome()
        self._kill_at_reply = ""
        self._stored: Stored | None = None

    async def run(self) -> Outcome:
        began_us = now_us()
        await asyncio.to_thread(self._server.start)
        self._load = Load(self._server.address, self._log, self._chance, self._on_reply)
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
        replayer.feed(stored.rows, stored.details)
        self._outcome.counts["journal events"] = replayer.events
        for problem in replayer.problems:
            self._break("the journal is lawful", problem)
        replayer.problems.clear()
        for difference in differences(stored, replayer):
            self._break("the journal tells the state", difference)

    def _break(self, promise: str, text: str) -> None:
        self._outcome.violations.append(Violation(promise, "", 0, text))

    # -- the end ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        self._load.calm_down()
        await self._load.check_resources()
        if self._drain and not await self._drained():
            self._break(
                "everything is delivered", f"{len(self._load.unacked)} deliveries and acks are missing"
            )
        await self._load.stop()
        code = await asyncio.to_thread(self._server.terminate)
        if code:
            self._break("the server ends in order", f"it ended with {code}")
        self._outcome.output.append(self._server.output)
        await self._check_files()

    async def _drained(self) -> bool:
        async with grpc.aio.insecure_channel(self._server.admin_address, options=CHANNEL_OPTIONS) as channel:
            admin = Client(channel, [ADMIN])
            for _ in range(int(_DRAIN_SECONDS_MAX / 0.1)):
                self._load.check_tasks()
                state = await admin.GetState()
                open_leases = sum(s.leased + s.waiting for s in state.subscriptions if s.name in EXACTLY_ONCE)
                if not self._load.unacked and not open_leases:
                    # What is delivered now was acked before, and the judgement will see it.
                    await asyncio.sleep(0.5)
                    return True
                await asyncio.sleep(0.1)
        return False

    def _judge(self) -> None:
        assert self._stored is not None
        log, outcome = self._log, self._outcome
        judged = judge(log, EXACTLY_ONCE)
        outcome.violations += judged.violations
        owed = {one.name: one.unacked for one in self._stored.subscriptions.values()}
        kept = {
            name: judged.acked[name] | judged.maybe_acked[name] | owed.get(name, set())
            for name in EXACTLY_ONCE
        }
        outcome.violations += check_loss(log, SUBSCRIPTIONS, kept)
        if self._drain:
            outcome.violations += check_whole_requests(log, SUBSCRIPTIONS)
        outcome.violations += self._check_against_journal(judged)
        for output in outcome.output:
            if "Traceback" in output:
                self._break("no traceback", output[output.index("Traceback") :][:2000])
        outcome.counts += judged.counts
        outcome.counts["messages published"] = sum(len(one.message_ids or ()) for one in log.publishes)
        outcome.counts["publishes without an answer"] = sum(one.message_ids is None for one in log.publishes)
        outcome.counts["changes of resources"] = log.resource_changes
        outcome.counts["looks at resources"] = log.resource_checks

    def _check_against_journal(self, judged: Judged) -> list[Violation]:
        """What clients were told is in the journal, and what they were handed was in it before."""
        found: list[Violation] = []
        by_name = {one.name: one for one in self._replayer.subscriptions.values() if one.name in EXACTLY_ONCE}
        for one in self._log.deliveries:
            published = self._replayer.published.get(one.message_id)
            if published is None or published.ts_us != one.publish_us:
                text = f"{one.publish_us} on the wire, {published} in the journal"
                found.append(Violation("publish time", one.subscription, one.message_id, text))
        seen = Counter((one.subscription, one.message_id) for one in self._log.deliveries)
        written = Counter(
            (name, message_id) for name, one in by_name.items() for message_id, _ in one.deliveries
        )
        for (name, message_id), count in (seen - written).items():
            found.append(Violation("deliveries are in the journal", name, message_id, f"{count} are not"))
        for name, message_ids in judged.acked.items():
            for message_id in message_ids - set(by_name[name].acked):
                found.append(Violation("acks are in the journal", name, message_id, "this one is not"))
        return found


def differences(stored: Stored, replayer: Replayer) -> list[str]:
    """Where the state that the server restored is another than the one that the journal tells."""
    found: list[str] = []

    def compare(what: str, state: Any, journal: Any) -> None:
        if state == journal:
            return
        if isinstance(state, dict):
            keys = [key for key in {**state, **journal} if state.get(key) != journal.get(key)]
            state, journal = ({key: side.get(key) for key in keys[:3]} for side in (state, journal))
        elif isinstance(state, set):
            state, journal = sorted(state - journal)[:5], sorted(journal - state)[:5]
        found.append(f"{what}: the state has {state}, the journal {journal}")

    compare("topics", stored.topics, {name: topic_id for topic_id, name in replayer.topics.items()})
    told = {sub_id: one for sub_id, one in replayer.subscriptions.items() if not one.deleted}
    compare(
        "subscriptions",
        {i: s.name for i, s in stored.subscriptions.items()},
        {i: s.name for i, s in told.items()},
    )
    for sub_id in stored.subscriptions.keys() & told.keys():
        state, journal = stored.subscriptions[sub_id], told[sub_id]
        compare(f"leases of {state.name}", state.leases, journal.leases)
        compare(f"waiting on {state.name}", state.waiting, journal.waiting)
        compare(f"unacked on {state.name}", state.unacked, journal.unacked)
        compare(f"owed on {state.name}", state.owed, len(journal.unacked))
        compare(f"missing messages of {state.name}", state.unacked - stored.messages.keys(), set())
    return found
