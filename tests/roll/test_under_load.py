"""Whatever dies and whenever, every event is in the journal once, and what is open is known."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from tests.crash.__main__ import table
from tests.roll.under_load import Run, segment_files


async def check(run: Run) -> None:
    outcome = await run.run()
    backlogs = run.check_backlogs_beside_the_server()
    print(table(outcome))
    print(dict(run.rollers), f"{run.backlogs} and {backlogs} backlogs")

    assert outcome.violations == []
    assert segment_files(run.journal)
    # The last thing that a server does is to have all of it sealed, with what is open then.
    assert outcome.counts["sealed events"] == outcome.counts["journal events"]
    assert (run.journal / "backlog" / f"backlog-{outcome.counts['journal events']}.parquet").exists()


@pytest.mark.timeout(180)
async def test_a_few_kills_of_server_and_rollers_lose_no_event(tmp_path: Path) -> None:
    await check(Run(tmp_path, kills=2, seed=1, drain=False))


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_fifty_kills_of_server_and_rollers_lose_no_event(tmp_path: Path) -> None:
    run = Run(tmp_path, kills=40, seed=4, drain=False)
    await check(run)

    assert run.rollers["killed"] >= 10
    assert run.rollers["starts after which they kill themselves"] >= 5
    assert run.rollers["let live"] >= 5
    assert run.backlogs >= 10
