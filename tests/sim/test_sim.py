"""Seeds, each a history of its own; see DESIGN.md. A failure prints how to see it again."""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim import campaign
from tests.sim.__main__ import failure
from tests.sim.auditor import Auditor
from tests.sim.broken import Broken
from tests.sim.campaign import Campaign, run_seed
from tests.sim.world import World

OPERATIONS_MEDIAN_MIN = 500


def check(found: Campaign) -> None:
    assert not found.failures, "\n\n".join(map(failure, found.failures[:3]))
    assert sorted(found.operations)[found.seeds // 2] >= OPERATIONS_MEDIAN_MIN


@pytest.mark.timeout(300)
def test_a_hundred_histories_keep_every_promise() -> None:
    found = campaign.run(range(100))

    check(found)
    assert found.missing() == [], "a class of faults never happened"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_more_histories_keep_every_promise() -> None:
    check(campaign.run(range(100, 300)))


def elsewhere(seed: int, hash_seed: str) -> str:
    """The hash of a history that another process made."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(seed)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"trace ([0-9a-f]{32})", done.stdout)
    assert found is not None, done.stdout
    return found[1]


@pytest.mark.parametrize("seed", [3, 14])
def test_one_seed_is_one_history_whatever_the_hash_seed(seed: int) -> None:
    here = run_seed(seed)

    assert run_seed(seed).digest == here.digest
    assert elsewhere(seed, "1") == here.digest
    assert elsewhere(seed, "4242") == here.digest


def test_two_seeds_are_two_histories() -> None:
    assert run_seed(3).digest != run_seed(4).digest


def test_a_history_asks_nothing_of_the_real_world(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()

    def never(real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                raise AssertionError("the real world was asked")
            return real(*args, **kwargs)  # threads that other tests left behind

        return ask

    # A record of the log says when it was made, and nobody looks.
    monkeypatch.setattr(logging, "time", SimpleNamespace(time=lambda: 0.0, time_ns=lambda: 0))
    for where, names in (
        (
            time,
            ("time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime", "clock_gettime_ns", "sleep"),
        ),
        (random, ("random", "randint", "uniform", "choice", "shuffle")),
        (os, ("urandom",)),
        (secrets, ("token_bytes", "token_hex")),
        (uuid, ("uuid1", "uuid4")),
        (threading.Thread, ("start",)),
        (socket, ("socket",)),
    ):
        for name in names:
            monkeypatch.setattr(where, name, never(getattr(where, name)))

    assert not run_seed(3).failed


class Displeased(Auditor):
    """Finds something wrong at the commit that it is told."""

    def __init__(self, commit: int) -> None:
        super().__init__()
        self._left = commit

    def committed(self, *told: Any) -> None:
        super().committed(*told)
        self._left -= 1
        if not self._left:
            raise Broken("I1", "nothing is lost but this")


def test_a_failure_names_its_seed_and_shows_what_led_to_it() -> None:
    first, again = (World(3, Displeased(60)).run() for _ in range(2))
    shown = failure(first)

    assert first.failed
    assert "seed 3 breaks I1: nothing is lost but this" in shown
    assert "python -m tests.sim --seed 3 --trace" in shown
    assert len(first.trace.splitlines()) == 41
    assert "nothing is lost but this" in first.trace.splitlines()[-1]
    assert first.trace == again.trace
    assert first.digest == again.digest


def test_a_failure_ends_the_history_on_the_spot() -> None:
    world = World(3, Displeased(60))
    world.run()

    assert world.disk.commits == 60


def test_the_whole_trace_is_there_when_asked_for() -> None:
    outcome = run_seed(3, None)

    assert len(outcome.trace.splitlines()) > 1000
    assert outcome.digest == run_seed(3).digest


def test_a_campaign_in_processes_finds_what_one_alone_finds() -> None:
    alone, together = campaign.run(range(12), jobs=1), campaign.run(range(12), jobs=2)

    assert together.operations != []
    assert sorted(together.operations) == sorted(alone.operations)
    assert together.faults == alone.faults
    assert together.steps == alone.steps
