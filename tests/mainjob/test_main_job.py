"""The main job in its small form, against a real server process."""

from __future__ import annotations

import pytest

from tests.mainjob.job import MainJob, Settings
from tests.mainjob.report import summary, write_report


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_small_main_job_keeps_every_promise(tmp_path):
    # Leases of ten seconds: a lost ack shows when the lease runs out, which is what the end waits for.
    settings = Settings(
        tmp_path,
        messages=2_000,
        subscribers=2,
        kills=2,
        stops=1,
        backlog=500,
        lease_seconds=10,
        timeout_seconds=160,
    )
    outcome = MainJob(settings, show=lambda _: None).run()

    report = tmp_path / "report.jsonl"
    write_report(outcome, report)
    assert outcome.passed, summary(outcome, report)
    assert (len(outcome.kills_us), len(outcome.stops_us)) == (2, 1)
    assert len(report.read_text().splitlines()) >= 1 + 2_000
