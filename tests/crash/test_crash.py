"""SIGKILL under load, at random moments and at every boundary of a commit; the command does it more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.__main__ import table
from tests.crash.run import WAYS, Outcome, Run


def check(outcome: Outcome) -> None:
    print(table(outcome))
    assert outcome.violations == []


async def test_a_few_kills_break_no_promise(tmp_path: Path) -> None:
    outcome = await Run(tmp_path, kills=2, seed=1, drain=False).run()

    check(outcome)
    assert outcome.kills.total() == 2
    assert outcome.counts["comparisons of journal and state"] == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_kills_break_no_promise(tmp_path: Path) -> None:
    outcome = await Run(tmp_path, kills=30, seed=2).run()

    check(outcome)
    assert outcome.kills.total() == 30
    # A run in which too little happened would prove too little.
    assert set(outcome.kills) == set(WAYS)
    for what in (
        *("after a kill: ack ok", "after a kill: ack permanent", "after a kill: extend ok", "redeliveries"),
        *("ack unordered", "journal: filtered", "journal: forwarded", "journal: leases that were void"),
        *("journal: drops", "seek to a snapshot: ok", "seek to a time: ok"),
    ):
        assert outcome.counts[what] >= 5, what


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_kills_break_no_promise_when_each_commit_waits_for_the_disk(tmp_path: Path) -> None:
    check(await Run(tmp_path, kills=5, seed=3, drain=False, options=("--durability", "power")).run())
