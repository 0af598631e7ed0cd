"""The summary: what counts as a violation, and what 80 columns show of it."""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any

import pytest

from analytics import summary
from analytics.summary import GUARANTEES, Summary, summarise, text
from analytics.tables import CODES

PREFIX = "projects/demo/subscriptions/"


def row(sub_id: int = 1, name: str = "orders", verdict: str = "ok", **given: Any) -> dict[str, Any]:
    """A row of `audit_summary` in which nothing was found, but for what is given."""
    plain = {"sub_id": sub_id, "subscription": PREFIX + name, "exactly_once": True, "ordered": True}
    return plain | {"messages": 1000, "verdict": verdict} | dict.fromkeys(CODES, 0) | given


def violation(code: str, severity: str, sub_id: int = 1) -> dict[str, Any]:
    return {"sub_id": sub_id, "code": code, "severity": severity}


def verdicts(of: Summary) -> dict[str, str]:
    return {one.code: one.verdict for one in of.guarantees}


def width(line: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line
    )


def test_every_guarantee_is_ok_where_nothing_was_found():
    assert set(verdicts(summarise([row()])).values()) == {"ok"}
    assert summarise([row()]).verdict == "ok"


@pytest.mark.parametrize("code", [code for code in CODES if code != "G3_repeat_accepted"])
def test_a_finding_of_each_code_is_a_violation_of_its_guarantee_and_of_no_other(code: str):
    found = summarise([row(verdict="violated", **{code: 7})])
    expected = dict.fromkeys(GUARANTEES, "ok") | {code[:2]: "violated"}
    assert verdicts(found) == expected
    assert {one.code: one.found for one in found.guarantees}[code[:2]] == 7
    assert found.verdict == "violated"


def test_without_exactly_once_delivery_findings_of_g1_to_g3_are_notes():
    found = summarise([row(exactly_once=False, G1_delivered_after_ack=3, G2_early_redelivery=4)])
    assert verdicts(found)["G1"] == verdicts(found)["G2"] == verdicts(found)["G3"] == "not_promised"
    assert verdicts(found)["G0"] == verdicts(found)["G4"] == "ok"
    assert [one.notes for one in found.guarantees[:4]] == [0, 3, 4, 0]
    assert found.verdict == "ok"


def test_without_exactly_once_delivery_a_loss_is_still_a_violation():
    found = summarise([row(verdict="violated", exactly_once=False, G4_lost=1, G2_early_redelivery=4)])
    assert verdicts(found)["G4"] == "violated"
    assert verdicts(found)["G2"] == "not_promised"


def test_without_ordering_nothing_is_promised_about_order():
    found = summarise([row(ordered=False), row(2, "mail")])
    assert found.guarantees[5].subscriptions == 1
    assert found.subscriptions[0].guarantees["G5"] != found.subscriptions[1].guarantees["G5"]


def test_a_repeated_ack_recorded_as_ok_is_a_note_even_beside_violations():
    found = summarise([row(verdict="violated", G3_repeat_accepted=2, G1_delivered_after_ack=1)])
    assert verdicts(found)["G3"] == "ok"
    assert found.guarantees[3].notes == 2


def test_severities_decide_where_the_settings_have_changed_meanwhile():
    # Now off, but on when it happened; and the other way round.
    found = summarise(
        [
            row(1, verdict="violated", exactly_once=False, G1_delivered_after_ack=1, G2_early_expire=1),
            row(2, "mail", "violated", G1_delivered_after_ack=5, G4_lost=1),
        ],
        [
            violation("G1_delivered_after_ack", "violation"),
            violation("G2_early_expire", "info"),
            violation("G1_delivered_after_ack", "info", 2),
            violation("G4_lost", "violation", 2),
        ],
    )
    of = {one.sub_id: one for one in found.subscriptions}
    assert of[1].guarantees["G1"] == "violated"
    assert of[1].guarantees["G2"] == "not_promised"
    assert of[2].guarantees["G1"] == "ok"
    assert of[2].notes["G1"] == 5


def test_the_audit_is_believed_where_the_settings_would_excuse_everything():
    found = summarise([row(verdict="violated", exactly_once=False, G1_delivered_after_ack=1)])
    assert verdicts(found)["G1"] == "violated"


def test_a_missing_part_of_the_journal_makes_everything_incomplete_but_what_was_found():
    found = summarise([row(verdict="violated", G4_lost=1), row(2, verdict="incomplete")], complete=False)
    assert verdicts(found)["G4"] == "violated"
    assert {verdicts(found)[code] for code in ("G0", "G1", "G2", "G3", "G5")} == {"incomplete"}
    assert "incomplete" in text(found)


def test_an_incomplete_journal_without_subscriptions_is_not_ok():
    assert summarise([], complete=False).verdict == "incomplete"


def test_without_a_backlog_only_g4_is_not_checked():
    found = summarise([row(verdict="not_checked")])
    assert verdicts(found) == dict.fromkeys(GUARANTEES, "ok") | {"G4": "not_checked"}
    assert found.verdict == "not_checked"


def test_a_null_count_says_not_checked_beside_a_violation():
    found = summarise([row(verdict="violated", G1_delivered_after_seek=1, G4_lost=None, G4_ghost=None)])
    assert verdicts(found)["G1"] == "violated"
    assert verdicts(found)["G4"] == "not_checked"


def test_the_worst_subscriptions_come_first():
    found = summarise(
        [
            row(1, "a"),
            row(2, "b", "not_checked"),
            row(3, "c", "violated", G4_lost=1),
            row(4, "d", "violated", G4_lost=9),
        ]
    )
    assert [one.sub_id for one in found.subscriptions] == [4, 3, 2, 1]


def test_no_line_is_wider_than_80_columns_whatever_the_names_and_counts():
    names = ["x" * 255, "日本語" * 40, "e\u0301" * 90, "short", "with spaces in it" * 9]
    rows = [
        row(number, name, "violated", messages=10**17, **dict.fromkeys(CODES, 10**9))
        for number, name in enumerate(names, 1)
    ]
    rows += [row(99, "other", "not_checked", subscription="projects/" + "p" * 300 + "/subscriptions/s")]
    for columns in (76, 80, 120):
        shown = text(summarise(rows, complete=False), columns)
        assert max(map(width, shown.splitlines())) <= columns


def test_names_cannot_steer_the_terminal():
    shown = text(summarise([row(name="\x1b[2J\x07\u202eevil\r\nG0  ok")]))
    assert not any(unicodedata.category(c).startswith("C") for c in shown.replace("\n", ""))
    assert "evil" in shown


def test_two_long_names_can_be_told_apart_by_their_ends():
    shown = text(summarise([row(1, "a" * 60 + "-east"), row(2, "a" * 60 + "-west")]))
    assert "-east" in shown and "-west" in shown


def test_every_guarantee_has_its_verdict_in_a_line_of_its_own():
    shown = text(summarise([row(verdict="violated", G2_early_expire=12)]))
    lines = {line[:2]: line for line in shown.splitlines()}
    for code, promise in GUARANTEES.items():
        assert promise.title in lines[code]
        assert lines[code].endswith("VIOLATED" if code == "G2" else "ok")
    assert " 12 " in lines["G2"]
    assert shown.splitlines()[-1] == "Verdict: VIOLATED"


def test_a_subscriptions_line_shows_how_much_was_found_where():
    shown = text(summarise([row(verdict="violated", G2_early_expire=12, G4_lost=100, messages=1234567)]))
    line = next(line for line in shown.splitlines() if line.startswith("orders"))
    assert line.split() == ["orders", "1,234,567", "ok", "ok", "!12", "ok", "!!!", "ok", "VIOLATED"]


def test_a_name_that_was_created_again_shows_its_numbers():
    shown = text(summarise([row(7, "again"), row(8, "again"), row(9, "once")]))
    assert "again #7 " in shown and "again #8 " in shown and "once #" not in shown


def test_many_subscriptions_are_counted_instead_of_listed():
    shown = text(summarise([row(number, f"s{number}") for number in range(1, 101)]), rows_max=10)
    assert "and 90 more" in shown
    assert len(shown.splitlines()) < 30


def test_nothing_to_judge_is_said_so():
    shown = text(summarise([]))
    assert shown.count("nothing to judge") == len(GUARANTEES)
    assert "No subscription" in shown


def test_the_summary_can_be_written_as_json():
    told = json.loads(json.dumps(summary.as_json(summarise([row(verdict="violated", G4_lost=2)]))))
    assert told["verdict"] == "violated"
    assert told["guarantees"][4] == {
        "code": "G4",
        "title": GUARANTEES["G4"].title,
        "verdict": "violated",
        "found": 2,
        "notes": 0,
        "subscriptions": 1,
    }
    assert told["subscriptions"][0]["found"]["G4"] == 2


def test_every_code_belongs_to_a_guarantee():
    assert {code[:2] for code in CODES} == set(GUARANTEES)


def test_the_summary_needs_nothing_but_the_standard_library():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(summary.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {name for name in imported if name and name.split(".")[0] not in sys.stdlib_module_names} == {
        "analytics.tables"
    }
