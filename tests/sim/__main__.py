"""Run seeds: `python -m tests.sim --seeds 1000`, or one again: `python -m tests.sim --seed 7 --trace`."""

from __future__ import annotations

import argparse
import sys

from tests.sim import campaign
from tests.sim.trace import LINES
from tests.sim.world import Outcome

_FAILURES_SHOWN = 10
_SHOW_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--jobs", type=int, help="processes (default: one for each core)")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: show its whole history")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed, options.trace)
    shown = _Shown()
    found = campaign.run(range(options.start, options.start + options.seeds), options.jobs, shown)
    print(found.report())
    return 1 if found.failures else 0


def _one(seed: int, trace: bool) -> int:
    outcome = campaign.run_seed(seed, None if trace else LINES)
    if trace:
        print(outcome.trace)
    if outcome.failed:
        print(failure(outcome, with_trace=not trace))
    print(
        f"seed {seed}: {outcome.operations} operations, {outcome.steps} steps, "
        f"{outcome.simulated_us / 3.6e9:.2f} simulated hours, {outcome.cpu_seconds:.2f} s; "
        f"trace {outcome.digest}"
    )
    return 1 if outcome.failed else 0


def failure(outcome: Outcome, with_trace: bool = True) -> str:
    trace = f"\n{outcome.trace}" if with_trace else ""
    return (
        f"seed {outcome.seed} breaks {outcome.invariant}: {outcome.text}{trace}\n"
        f"again: python -m tests.sim --seed {outcome.seed} --trace"
    )


class _Shown:
    """What is printed while it runs."""

    def __init__(self) -> None:
        self._seeds = self._failures = 0

    def __call__(self, outcome: Outcome) -> None:
        self._seeds += 1
        if outcome.failed:
            self._failures += 1
            if self._failures <= _FAILURES_SHOWN:
                print(failure(outcome), flush=True)
            elif self._failures == _FAILURES_SHOWN + 1:
                print("further failures are counted, and not shown", flush=True)
        if self._seeds % _SHOW_EVERY == 0:
            print(f"{self._seeds} seeds, {self._failures} failed", flush=True)


if __name__ == "__main__":
    sys.exit(main())
