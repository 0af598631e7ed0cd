"""What a run is turned into: JSON and JUnit that read back, a table, a score card."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from rich.console import Console

from pubsubd import __version__
from pubsubd.conform.progress import Display, Lines
from pubsubd.conform.report import Report, ReportError, card, json_of, junit_of, read_json, show
from pubsubd.conform.runner import STOPPED, Outcome, Result
from tests.conform.support import Cases

SEEN = {
    "CT-01": (Outcome.PASS, "Answered OK."),
    "CT-02": (Outcome.FAIL, "Answered [OK] | <here>."),
    "CE-14": (Outcome.NOT_RUN, "It needs a restart."),
    "CE-35": (Outcome.ERROR, "The connection was lost."),
    "CO-05": (Outcome.DIFFERS, "Refused."),
}


def results() -> list[Result]:
    cases = Cases()
    for case_id in SEEN:

        @cases(case_id, critical="PX" if case_id in ("CT-02", "CE-14") else "", short="less of it")
        async def body(lab):
            return ""

    return [
        Result(cases.registry[case_id], outcome, seen, 1.5, "short")
        for case_id, (outcome, seen) in SEEN.items()
    ]


def report(name: str = "ours", **changes) -> Report:
    began = datetime(2026, 11, 21, 14, 25, tzinfo=UTC)
    fields = {"endpoint": "localhost:8085", "began": began, "seconds": 61.04, "full": False, **changes}
    return Report.of(results(), name=name, **fields)


def shown(**options) -> str:
    console = Console(file=StringIO(), width=110)
    show(report(left_behind=["projects/p/topics/t"]), console, **options)
    return console.file.getvalue()


def test_json_says_all_and_reads_back(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json_of(report()), encoding="utf-8")

    found = json.loads(path.read_text())
    assert found["version"] == __version__
    assert found["endpoint"] == "localhost:8085"
    assert found["date"] == "2026-11-21T14:25:00Z"
    assert found["seconds"] == 61.0
    assert found["counts"] == {"pass": 1, "fail": 1, "error": 1, "differs": 1, "not run": 1}
    assert found["cases"][1] == {
        "id": "CT-02",
        "group": "CT",
        "promise": "Promise of CT-02.",
        "seen": "Answered [OK] | <here>.",
        "outcome": "fail",
        "critical": ["Python", "C++"],
        "seconds": 1.5,
        "form": "short",
    }
    assert read_json(path) == report()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', "{broken"])
def test_what_is_no_report_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)

    with pytest.raises(ReportError, match=r"other\.json") as refused:
        read_json(path)
    assert "Error(" not in str(refused.value)  # nothing of Python's


def test_a_missing_report_is_refused(tmp_path):
    with pytest.raises(ReportError, match="cannot be read"):
        read_json(tmp_path / "none.json")


def test_junit_has_a_suite_a_group_and_reads_back(tmp_path):
    path = Path(tmp_path / "report.xml")
    path.write_text(junit_of(report()), encoding="utf-8")

    document = JUnitXml.fromfile(str(path))
    suites = {suite.name: list(suite) for suite in document}
    assert list(suites) == [
        "CT Tunnelled results",
        "CE Exactly-once state machine",
        "CO Ordering",
    ]
    assert (document.tests, document.failures, document.errors, document.skipped) == (5, 1, 1, 2)
    found = {case.name.split()[0]: case for cases in suites.values() for case in cases}
    assert found["CT-01"].result == [] and found["CT-01"].time == 1.5
    assert found["CT-01"].classname == "conform.CT"
    (failure,) = found["CT-02"].result
    assert isinstance(failure, Failure) and failure.message == "Answered [OK] | <here>."
    assert isinstance(found["CE-35"].result[0], Error)
    for case_id, reason in (("CE-14", "not run: It needs a restart."), ("CO-05", "differs: Refused.")):
        (skipped,) = found[case_id].result
        assert isinstance(skipped, Skipped) and skipped.message == reason


def test_the_table_tells_what_did_not_pass():
    text = shown()

    for case_id in ("CT-02", "CE-14", "CE-35", "CO-05"):
        assert f"{case_id}  {SEEN[case_id][0].value}" in text
        assert f"Promise of {case_id}." in text
    assert "Answered [OK] |" in text
    assert "critical for Python, C++" in text
    assert "CT-01" not in text
    assert "Could not be deleted: projects/p/topics/t" in text
    assert text.rstrip().endswith(
        "1 of 5 cases passed, 1 failed, 1 erred, 1 differs, 1 not run; 1 of what failed or erred is critical."
        " 61 s."
    )


def test_the_table_tells_everything_when_asked():
    text = shown(all_lines=True)

    assert "CT-01  pass" in text and "Answered OK." in text


def test_the_table_warns_when_this_side_was_late():
    console = Console(file=StringIO(), width=300)
    show(report(late_seconds_max=1.26), console)

    assert "This side was late by up to 1.3 s" in console.file.getvalue()
    assert "This side was late" not in shown()


def shown_of(*seen: tuple[Outcome, str]) -> str:
    """The table of a run with these outcomes."""
    found = [Result(result.case, *each) for result, each in zip(results(), seen, strict=False)]
    console = Console(file=StringIO(), width=200)
    began = datetime(2026, 11, 21, tzinfo=UTC)
    show(Report.of(found, name="", endpoint="x:1", began=began, seconds=1, full=False), console)
    return console.file.getvalue()


def test_the_score_of_one_case_is_said_of_one():
    assert "1 of 1 case passed. 1 s." in shown_of((Outcome.PASS, "Seen."))
    assert "0 of 2 cases passed, 2 differ." in shown_of(*[(Outcome.DIFFERS, "Seen.")] * 2)


def test_a_run_that_tested_nothing_says_so():
    nothing = "Nothing was put to the test"

    assert nothing in shown_of(*[(Outcome.NOT_RUN, "It needs a restart.")] * 2)
    assert nothing not in shown_of((Outcome.NOT_RUN, "It needs a restart."), (Outcome.PASS, "Seen."))


def test_cases_that_a_stopped_run_did_not_come_to_are_counted_and_not_listed():
    text = shown_of((Outcome.PASS, "Seen."), (Outcome.NOT_RUN, STOPPED), (Outcome.NOT_RUN, STOPPED))

    assert "The run was stopped: 2 cases had not come to an end." in text
    assert "CT-02" not in text
    assert "1 of 3 cases passed, 2 not run." in text


def test_the_table_counts_each_group():
    rows = [line.split() for line in shown().splitlines()]

    assert ["CT", "Tunnelled", "results", "2", "1", "1", "-", "-", "-"] in rows
    assert ["CE", "Exactly-once", "state", "machine", "2", "-", "-", "1", "-", "1"] in rows
    assert ["All", "5", "1", "1", "1", "1", "1"] in rows


def test_the_card_has_a_column_a_report_and_what_failed_in_each():
    text = card([report("ours"), report("theirs | 0.8", full=True)])

    lines = text.splitlines()
    assert lines[0] == "| | cases | ours | theirs \\| 0.8 |"
    assert lines[2] == "| CT Tunnelled results | 2 | 1 pass, 1 fail | 1 pass, 1 fail |"
    assert "| **All** | 5 |" in text
    assert "* ours: 2026-11-21, short forms of the long cases, 61 s." in lines
    assert "* theirs | 0.8: 2026-11-21, written forms of the long cases, 61 s." in lines
    assert "What failed or erred: ours" in lines and "What differs: ours" in lines
    row = "| CT-02 fail | Python, C++ | Promise of CT-02. | Answered [OK] \\| &lt;here>. |"
    assert lines.count(row) == 2
    assert not any(line.startswith("| CE-14") for line in lines)


def test_without_a_terminal_a_line_is_printed_for_what_did_not_pass():
    console = Console(file=StringIO(), width=40)
    with Lines(console) as progress:
        for result in results():
            progress.started(result.case)
            progress.finished(result)

    assert console.file.getvalue().splitlines() == [
        "CT-02 fail: Answered [OK] | <here>.",
        "CE-35 error: The connection was lost.",
        "CO-05 differs: Refused.",
    ]


def test_in_a_terminal_the_display_shows_how_far_the_run_is():
    console = Console(file=StringIO(), width=100, force_terminal=True)
    first, second, third, *_ = results()
    with Display(console, 5) as display:
        for result in (first, second, third):
            display.started(result.case)
        display.finished(second)
        drawn = Console(file=StringIO(), width=70)
        drawn.print(display._draw())

    text = drawn.file.getvalue()
    assert text.count("\n") == 3  # nothing is wrapped, however narrow the terminal is
    assert "1/5" in text and "1 failed" in text
    assert "CT-01" in text and "CE-14" in text and "CT-02" not in text
    assert "fail" in console.file.getvalue()
