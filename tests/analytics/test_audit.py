"""The audit as one job over one journal: every code is found where it should be, and nowhere else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics.layout import Kind
from analytics.tables import CODES
from tests.analytics.audited import SCENES, Scene, journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.run import Verdict
    from tests.analytics.generator.builder import Builder

Row = dict[str, Any]


@dataclass
class Audited:
    builder: Builder
    scenes: dict[str, Scene]
    verdict: Verdict
    violations: list[Row]
    evidence: list[Row]
    summary: dict[int, Row]  # by sub_id

    def of(self, name: str) -> tuple[Scene, list[Row], Row]:
        scene = self.scenes[name]
        return scene, [row for row in self.violations if row["sub_id"] == scene.sub], self.summary[scene.sub]


@pytest.fixture(scope="session")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    from analytics import audit
    from analytics.journal import load_journal
    from analytics.output import Output
    from analytics.run import prepare

    folder: Path = tmp_path_factory.mktemp("audit")
    builder, scenes = journal()
    builder.write(folder / "journal")
    builder.backlog(
        folder / "journal", open=[(scene.sub, one) for scene in scenes.values() for one in scene.backlog]
    )
    out = Output(spark, str(folder / "out"))
    run = prepare(spark, load_journal(spark, str(folder / "journal")), out)
    verdict = audit.run(run)

    def rows(name: str) -> list[Row]:
        return [row.asDict() for row in out.read(spark, name).collect()]

    summary = {row["sub_id"]: row for row in rows("audit_summary")}
    return Audited(builder, scenes, verdict, rows("violations"), rows("evidence"), summary)


@pytest.mark.parametrize("name", SCENES)
def test_all_of_it_is_found_and_nothing_else(audited: Audited, name: str) -> None:
    scene, violations, summary = audited.of(name)
    assert sorted((row["code"], row["message_id"]) for row in violations) == sorted(scene.found)
    assert summary["verdict"] == scene.verdict
    found = defaultdict(int)
    for code, _ in scene.found:
        found[code] += 1
    checked = [code for code in CODES if scene.verdict != "not_checked" or not code.startswith("G4")]
    assert {code: summary[code] for code in checked} == {code: found[code] for code in checked}
    assert all(summary[code] is None for code in CODES if code not in checked)
    assert {name: summary[name] for name in scene.counts or {}} == (scene.counts or {})


def test_every_code_is_found_somewhere(audited: Audited) -> None:
    # Those of leases have examples of their own, and are counted by the kernel.
    elsewhere = {"G1_delivered_after_seek", "G2_early_expire", "G3_valid_rejected", "G3_invalid_accepted"}
    assert {row["code"] for row in audited.violations} == set(CODES) - elsewhere


def test_the_result_counts_violations_and_no_notes(audited: Audited) -> None:
    grave = [row for row in audited.violations if row["severity"] == "violation"]
    notes = [row for row in audited.violations if row["severity"] == "info"]
    assert audited.verdict.violations == len(grave)
    assert audited.verdict.complete
    assert len(notes) == 3


def test_a_violation_tells_its_event_and_says_in_words_what_is_wrong(audited: Audited) -> None:
    name = "a_restart_between_lease_and_redelivery_exempts_nothing"
    _scene, (violation,), _ = audited.of(name)
    (event,) = [one for one in audited.builder.events if one["seq"] == violation["seq"]]
    assert (event["kind"], event["generation"]) == (Kind.DELIVER, 2)
    assert {key: violation[key] for key in ("ts_us", "generation", "client_id")} == {
        key: event[key] for key in ("ts_us", "generation", "client_id")
    }
    assert violation["subscription"].startswith("projects/p/subscriptions/scene-")
    assert violation["expected"].startswith("no redelivery before 2026-01-31 ")
    assert violation["found"] == "redelivered 8.000000 s earlier, as generation 2"


def test_no_violation_is_without_words(audited: Audited) -> None:
    assert all(row["expected"] and row["found"] for row in audited.violations)
    numbers = [row["violation_id"] for row in audited.violations]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_the_evidence_holds_all_events_of_the_message_and_a_start_between(audited: Audited) -> None:
    _scene, (violation,), _ = audited.of("a_restart_between_lease_and_redelivery_exempts_nothing")
    events = [row for row in audited.evidence if row["violation_id"] == violation["violation_id"]]
    events.sort(key=lambda row: row["seq"])
    assert [row["kind"] for row in events] == [Kind.PUBLISH, Kind.DELIVER, Kind.START, Kind.DELIVER]
    (start,) = [row for row in events if row["kind"] == Kind.START]
    assert '"clean": false' in start["detail"]


def test_the_evidence_shows_a_seek_between(audited: Audited) -> None:
    _scene, (violation,), _ = audited.of("what_a_seek_brought_back_is_not_passed_over")
    events = [row for row in audited.evidence if row["violation_id"] == violation["violation_id"]]
    kinds = [row["kind"] for row in sorted(events, key=lambda row: row["seq"])]
    assert kinds == [Kind.PUBLISH, Kind.DELIVER, Kind.ACK, Kind.SEEK, Kind.DELIVER]
    assert {row["message_id"] for row in events} == {violation["message_id"], 0}
