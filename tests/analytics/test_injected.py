"""The audit of a synthetic journal with planted faults of every class: it finds all of them and nothing else.

The same again when parts of the journal are missing: what is left must not accuse anybody wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from analytics.tables import CODES
from tests.analytics.generator.journal import Expected, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.run import Verdict

Found = set[tuple[str, int, int]]  # code, sub_id, message_id

EVENTS, EACH = 20_000, 3


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    path = tmp_path_factory.mktemp("injected")
    return path, write(path, events=EVENTS, seed=11, violations=EACH, segment_events=2_000)


def audited(spark: SparkSession, journal: Path, out: Path) -> tuple[Verdict, list[Any], dict[str, Any]]:
    """The verdict, the rows of violations, and those of the summary by the subscription's last name."""
    from analytics import audit
    from analytics.journal import load_journal
    from analytics.output import Output
    from analytics.run import prepare

    output = Output(spark, str(out), formats=("parquet",))
    verdict = audit.run(prepare(spark, load_journal(spark, str(journal)), output))
    summary = output.read(spark, "audit_summary").collect()
    by_name = {row.subscription.rpartition("/")[2]: row for row in summary}
    return verdict, output.read(spark, "violations").collect(), by_name


def planted(expected: Expected) -> Found:
    return {(one.code, one.sub_id, one.message_id) for one in expected.violations}


@pytest.mark.slow
def test_everything_that_was_planted_is_found_and_nothing_else(
    spark: SparkSession, journal: tuple[Path, Expected], tmp_path: Path
) -> None:
    path, expected = journal
    verdict, violations, summary = audited(spark, path, tmp_path)
    assert {one.code for one in expected.violations} == set(CODES)
    assert {(row.code, row.sub_id, row.message_id) for row in violations} == planted(expected)
    assert len(violations) == len(expected.violations)
    at = {(row.code, row.sub_id, row.message_id): row.seq for row in violations}
    told = {(one.code, one.sub_id, one.message_id): one.seq for one in expected.violations if one.seq}
    assert {one: at[one] for one in told} == told
    assert verdict.complete
    assert verdict.violations == sum(row.severity == "violation" for row in violations)
    # Lawful, and in the journal: seeks of all kinds, drops, dead letters, filters, detachment.
    clean = ("orders-search", "clicks-live", "mails-log", "sensors-store", "sensors-alarm", "audit-trial")
    assert {name: summary[name].verdict for name in clean} == dict.fromkeys(clean, "ok")
    assert summary["audit-branch"].verdict == "not_checked"  # its last seek was to a snapshot


@pytest.mark.slow
def test_what_is_left_of_a_journal_accuses_nobody_wrongly(
    spark: SparkSession, journal: tuple[Path, Expected], tmp_path: Path
) -> None:
    from analytics.journal import segments_of

    path, expected = journal
    segments = segments_of(str(path))
    middle = segments[len(segments) // 2]
    aside = tmp_path / "aside"
    Path(middle.path).rename(aside)
    try:
        verdict, violations, summary = audited(spark, path, tmp_path / "out")
    finally:
        aside.rename(middle.path)
    assert not verdict.complete
    found = {(row.code, row.sub_id, row.message_id) for row in violations}
    assert found <= planted(expected)
    # What happened before the hole is judged as far as single messages go, and after it everything is.
    assert any(row.seq < middle.first_seq for row in violations)
    assert {code[:2] for code, _, _ in found} == {"G0", "G1", "G2", "G3", "G4", "G5"}
    assert {row.verdict for row in summary.values()} == {"violated", "incomplete"}
