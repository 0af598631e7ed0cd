"""The suite is whole: every id of the checklist, and each can be told to somebody in sentences."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from pubsubd import conform
from pubsubd.conform import cases  # noqa: F401 (registers the cases)
from pubsubd.conform.case import GROUPS, REGISTRY, Hook, NotRun
from pubsubd.conform.cases import tunnel
from pubsubd.conform.endpoint import Endpoint
from pubsubd.conform.lab import Lab, Setting

# How many cases each group of the checklist has; they are numbered from 01 without a gap.
COUNTS = {
    "CT": 28, "CS": 62, "CE": 39, "CN": 12, "CO": 20, "CD": 11, "CM": 29, "CP": 27, "CR": 18,
}  # fmt: skip  # short items, many to a line
CHECKLIST = [f"{group}-{number:02}" for group, count in COUNTS.items() for number in range(1, count + 1)]

# The long cases, by the checklist; each has a short form in the default run.
LONG = {"CE-11", "CE-13", "CE-17", "CE-35", "CS-48", "CD-07"}

# What needs a server that is killed, stopped or broken, by the checklist.
HOOKED = {
    Hook.RESTART: {
        *("CE-14", "CE-15", "CE-16", "CE-17", "CE-19", "CN-11", "CD-07", "CD-10", "CM-28", "CP-27"),
    },
    Hook.STOP: {"CS-47"},
    Hook.FAULTS: {"CT-21", "CT-22"},
}

# Column C of the checklist: which client libraries depend on which promises. None depends on the others.
CRITICAL = {
    "PNGJX": """
        CT-01 CT-02 CT-09 CT-15 CT-26 CT-28
        CS-01 CS-15 CS-26 CS-36 CS-37 CS-41 CS-42 CS-44 CS-58 CS-59 CS-61
        CE-01 CE-04 CE-05 CE-06 CE-07 CE-08 CE-11 CE-13 CE-14 CE-15 CE-16 CE-17 CE-18 CE-20 CE-29 CE-34 CE-35
        CO-01 CO-04 CO-08 CO-12 CD-06
    """,
    "PNGJ": "CE-36",
    "PNX": "CS-10",
    "PNG": "CS-47",
    "PGJ": "CS-20",
    "NGJ": "CS-18 CS-21 CS-22",
    "PN": "CS-17",
    "PJ": "CT-16 CT-24",
    "NG": "CT-10 CT-17",
    "JX": "CE-02",
    "P": "CT-03 CT-04 CT-06 CT-07 CT-08 CT-21 CT-22 CS-48",
    "G": "CT-20 CS-19 CS-23 CS-31 CS-32 CO-03",
    "X": "CT-23 CS-11 CS-16 CS-38 CE-37",
}


def test_every_case_of_the_checklist_is_there_once():
    assert list(COUNTS) == list(GROUPS)
    assert sorted(REGISTRY) == sorted(CHECKLIST)


def test_every_promise_is_a_sentence_of_its_own():
    for case in REGISTRY.values():
        first = case.promise.split()[0]
        assert first[0].isupper() or "_" in first, case.id  # a field is not written with a capital
        assert case.promise.endswith("."), case.id
        assert 20 <= len(case.promise) <= 160, case.id
    assert len({case.promise for case in REGISTRY.values()}) == len(REGISTRY)


def test_the_long_cases_say_what_their_short_form_leaves_out():
    assert {case.id for case in REGISTRY.values() if case.short} == LONG


def test_every_case_names_the_libraries_that_depend_on_it():
    expected = dict.fromkeys(CHECKLIST, frozenset[str]())
    for letters, ids in CRITICAL.items():
        expected |= dict.fromkeys(ids.split(), frozenset(letters))

    assert {case.id: frozenset(case.critical) for case in REGISTRY.values()} == expected


def test_no_case_waits_longer_than_the_default_run_may_take():
    assert max(case.seconds for case in REGISTRY.values()) <= 120
    assert sum(case.seconds for case in REGISTRY.values() if case.alone) <= 60


def test_cases_that_restart_or_break_a_server_say_so():
    hooked = {hook: {case.id for case in REGISTRY.values() if hook in case.needs} for hook in Hook}

    assert hooked == HOOKED


def test_a_policy_that_cannot_be_set_is_not_held_against_an_endpoint():
    """Cases of one policy are about endpoints that have it, or can be given it."""
    elsewhere = tunnel.wrong_policy(Lab(Setting(Endpoint("localhost:1"))), "The good id is listed too.")

    assert isinstance(elsewhere, NotRun)
    assert "--start-cmd" in str(elsewhere) and str(elsewhere).endswith("The good id is listed too.")


def test_the_command_lists_them_all():
    done = subprocess.run(
        [sys.executable, "-m", "pubsubd", "conform", "--list"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("C")]
    assert listed == CHECKLIST
    assert f"{len(CHECKLIST)} cases" in done.stdout


def test_nothing_is_judged_by_an_assert():
    """It would do nothing under `python -O`; what is left only tells mypy that a value is there."""
    for path in Path(conform.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                assert ast.unparse(node.test).endswith(" is not None"), f"{path}, line {node.lineno}"
