"""Many seeds, in processes of their own, and what they came to."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from tests.sim.auditor import Auditor
from tests.sim.trace import LINES
from tests.sim.world import Outcome, World

_BATCH = 10
_HOUR_US = 3_600_000_000

# Every class of fault and of change; a campaign of some size that leaves one out has not done its work.
CLASSES = {
    "clients": (
        *("late ack", "duplicate request", "forgotten delivery", "lost answer", "cancelled call"),
        *("ack id forged", "ack id altered", "ack id foreign", "ack id named again"),
        *("malformed request", "malformed stream", "half-closed stream", "cancelled stream", "cut stream"),
        *("greedy client", "dead client"),
    ),
    "disk": (
        *("disk slow", "disk stalled", "disk full for a while", "disk full", "reads slow", "read fails"),
        *("load fails", "commit fails, nothing is written", "commit fails, and is written"),
    ),
    "ends of the server": (
        *("killed at any moment", "killed before a commit is durable", "killed between commits"),
        *("killed after a commit, before its replies", "killed while starting", "killed while stopping"),
        *("stopped in order", "down for hours"),
    ),
    "time": ("the machine slept for a while", "the machine slept for hours"),
    "bounds": ("small bounds",),
    "changes": (
        *("seek to a time", "seek to a snapshot", "snapshot", "deleted snapshot"),
        *("deleted subscription", "detached subscription", "deleted topic", "changed a topic's retention"),
        *("changed enable_exactly_once_delivery", "changed retry_policy", "changed dead_letter_policy"),
        *("changed ack_deadline_seconds", "changed message_retention_duration"),
        "changed retain_acked_messages",
    ),
    "subscriptions with": ("exactly-once", "ordering", "a filter", "a retry policy", "dead letters"),
}


def run_seed(seed: int, lines: int | None = LINES) -> Outcome:
    auditor = Auditor()
    world = World(seed, auditor, lines)
    outcome = world.run()
    outcome.counts.update(auditor.counts)
    return outcome


@dataclass
class Campaign:
    """What many seeds came to."""

    seeds: int = 0
    operations: list[int] = field(default_factory=list)
    steps: int = 0
    simulated_us: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.operations.append(outcome.operations)
        self.steps += outcome.steps
        self.simulated_us += outcome.simulated_us
        self.cpu_seconds += outcome.cpu_seconds
        self.faults += outcome.faults
        self.counts += outcome.counts
        if outcome.failed:
            self.failures.append(outcome)

    def missing(self) -> list[str]:
        """Classes that never happened."""
        return [name for names in CLASSES.values() for name in names if not self.faults[name]]

    def report(self) -> str:
        lines = [
            f"seeds                  {self.seeds}, of which {len(self.failures)} failed",
            f"operations             {sum(self.operations):,}, median {median(self.operations):,.0f} a seed",
            f"steps                  {self.steps:,}",
            f"simulated hours        {self.simulated_us / _HOUR_US:,.1f}",
            f"seconds                {self.seconds:.1f}, of the processor {self.cpu_seconds:.1f}",
        ]
        for title, names in CLASSES.items():
            lines.append(f"{title}:")
            lines += [f"  {self.faults[name]:>10,}  {name}" for name in names]
        others = [name for name in self.faults if all(name not in names for names in CLASSES.values())]
        for title, counter in (
            ("others", {name: self.faults[name] for name in others}),
            ("counted", self.counts),
        ):
            if counter:
                lines.append(f"{title}:")
                lines += [f"  {counter[name]:>10,}  {name}" for name in sorted(counter)]
        if missing := self.missing():
            lines.append(f"never happened: {', '.join(missing)}")
        return "\n".join(lines)


def run(
    seeds: Iterable[int],
    jobs: int | None = None,
    show: Callable[[Outcome], None] = lambda _: None,
) -> Campaign:
    """Run `seeds`; `show` is called with each outcome as it comes."""
    campaign = Campaign()
    began = time.monotonic()
    for outcome in _outcomes(seeds, jobs or len(os.sched_getaffinity(0))):
        campaign.add(outcome)
        show(outcome)
    campaign.seconds = time.monotonic() - began
    return campaign


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    # Not forked: what grpc or a test runner has started in this process is none of theirs. What they
    # have imported when they begin is no garbage, and need not be looked at after each run.
    with multiprocessing.get_context("spawn").Pool(jobs, gc.freeze) as pool:
        for outcomes in pool.imap_unordered(_run_batch, _batches(seeds)):
            yield from outcomes


def _run_batch(seeds: list[int]) -> list[Outcome]:
    return [run_seed(seed) for seed in seeds]


def _batches(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while batch := list(islice(rest, _BATCH)):
        yield batch
