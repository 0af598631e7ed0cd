"""What a run came to: a table for people, JSON and JUnit XML for programs, a score card for a README."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pubsubd import __version__
from pubsubd.conform.case import GROUPS
from pubsubd.conform.runner import LATE_SECONDS_MAX, STOPPED, Outcome, Result

FORMAT = 1

# Where the sentences of the table begin.
LABEL_WIDTH = 14

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.ERROR: "bold magenta",
    Outcome.DIFFERS: "yellow",
    Outcome.NOT_RUN: "dim",
}

# How a count reads in a sentence: `2 failed`.
VERBS = {
    Outcome.PASS: "passed",
    Outcome.FAIL: "failed",
    Outcome.ERROR: "erred",
    Outcome.DIFFERS: "differ",
    Outcome.NOT_RUN: "not run",
}


def tally(outcome: Outcome, count: int) -> str:
    """`2 failed`, `1 differs`."""
    return f"{count} {VERBS[outcome]}{'s' if outcome == Outcome.DIFFERS and count == 1 else ''}"


class ReportError(Exception):
    """A file is not a report of this suite; the text says why."""


@dataclass(frozen=True)
class Line:
    """One case of a report, as it is kept in a file."""

    id: str
    group: str
    promise: str
    seen: str
    outcome: Outcome
    critical: tuple[str, ...]  # names of client libraries
    seconds: float
    form: str

    @property
    def was_stopped(self) -> bool:
        """Whether nothing is known because the run was stopped before."""
        return self.outcome == Outcome.NOT_RUN and self.seen == STOPPED

    @classmethod
    def of(cls, result: Result) -> Line:
        case = result.case
        return cls(
            case.id,
            case.group,
            case.promise,
            result.seen,
            result.outcome,
            tuple(case.libraries),
            result.seconds,
            result.form,
        )


@dataclass(frozen=True)
class Report:
    """One run."""

    name: str  # what was judged, as its score card says: `pubsubd 1.2`
    endpoint: str
    date: str  # of its start, ISO 8601, UTC
    seconds: float
    full: bool
    lines: tuple[Line, ...]
    left_behind: tuple[str, ...] = ()
    late_seconds_max: float = 0.0  # how late this side was at worst
    version: str = __version__

    @classmethod
    def of(
        cls,
        results: Iterable[Result],
        *,
        endpoint: str,
        began: datetime,
        seconds: float,
        full: bool,
        name: str = "",
        left_behind: Sequence[str] = (),
        late_seconds_max: float = 0.0,
    ) -> Report:
        date = began.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        lines = tuple(Line.of(result) for result in results)
        return cls(
            name or endpoint,
            endpoint,
            date,
            round(seconds, 1),
            full,
            lines,
            tuple(left_behind),
            round(late_seconds_max, 2),
        )

    def counts(self, group: str = "") -> Counter[Outcome]:
        """How many cases, of this group or of all, came to what."""
        return Counter(line.outcome for line in self.lines if group in ("", line.group))

    @property
    def bad(self) -> list[Line]:
        return [line for line in self.lines if line.outcome.is_bad]

    @property
    def tested_nothing(self) -> bool:
        return all(line.outcome == Outcome.NOT_RUN for line in self.lines)

    @property
    def groups(self) -> list[str]:
        return [group for group in GROUPS if any(line.group == group for line in self.lines)]

    @property
    def score(self) -> str:
        """One line: what came to what, and how much of it hurts clients."""
        counts = self.counts()
        total = len(self.lines)
        parts = [f"{counts[Outcome.PASS]} of {total} case{'' if total == 1 else 's'} passed"]
        critical = sum(1 for line in self.bad if line.critical)
        for outcome in (Outcome.FAIL, Outcome.ERROR, Outcome.DIFFERS, Outcome.NOT_RUN):
            if counts[outcome]:
                parts.append(tally(outcome, counts[outcome]))
        text = ", ".join(parts)
        if critical:
            text += f"; {critical} of what failed or erred {'is' if critical == 1 else 'are'} critical"
        return f"{text}. {self.seconds:.0f} s."


# --- for people ---------------------------------------------------------------------------------------------


def show(report: Report, console: Console, *, all_lines: bool = False) -> None:
    """Prints what did not pass with promise and sight, or everything; then a row a group, and the score."""
    for group in report.groups:
        lines = [line for line in report.lines if line.group == group]
        told = [line for line in lines if all_lines or not (line.outcome == Outcome.PASS or line.was_stopped)]
        if told:
            console.print(Text(f"\n{group}  {GROUPS[group]}", style="bold"))
            for line in told:
                console.print(_paragraph(line, console.width), soft_wrap=True)
    console.print()
    console.print(_table(report))
    for name in report.left_behind:
        console.print(f"Could not be deleted: {name}", style="yellow", markup=False)
    if report.late_seconds_max > LATE_SECONDS_MAX:
        console.print(
            f"This side was late by up to {report.late_seconds_max:.1f} s: a machine with more time to spare,"
            " or --jobs with a smaller number, gives surer results.",
            style="yellow",
            soft_wrap=True,
        )
    if stopped := sum(line.was_stopped for line in report.lines):
        cases = f"{stopped} case{'' if stopped == 1 else 's'}"
        console.print(f"The run was stopped: {cases} had not come to an end.", style="yellow")
    if report.tested_nothing:
        console.print("Nothing was put to the test: no case came to an end, or could be run.", style="yellow")
    style = "bold red" if report.bad else "bold yellow" if report.tested_nothing else "bold green"
    console.print(Text(report.score, style=style), soft_wrap=True)


def _paragraph(line: Line, width: int) -> Text:
    head = Text.assemble(
        (f"  {line.id}  ", "bold"),
        (line.outcome.value, STYLES[line.outcome]),
        (f"  {line.seconds:.1f} s" if line.seconds else "", "dim"),
        (f"  {line.form} form" if line.form == "short" else "", "dim"),
    )
    if line.critical:
        head.append(
            "  critical for " + ", ".join(line.critical), style="red" if line.outcome.is_bad else "dim"
        )
    # Text, not markup: what an endpoint says may hold brackets.
    body = [_hanging("promised", line.promise, width), _hanging("seen", line.seen, width)]
    return Text("\n").join([head, *body])


def _hanging(label: str, sentence: str, width: int) -> Text:
    """A sentence beside its label, and below itself."""
    room = max(20, width - LABEL_WIDTH - 1)
    indent = "\n" + " " * LABEL_WIDTH
    return Text.assemble(
        (f"    {label}".ljust(LABEL_WIDTH), "dim"),
        indent.join(textwrap.wrap(sentence, room, break_on_hyphens=False) or [""]),
    )


def _table(report: Report) -> Table:
    table = Table(header_style="bold", pad_edge=False, box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("cases", justify="right")
    for outcome in Outcome:
        table.add_column(outcome.value, justify="right")
    for group in report.groups:
        table.add_row(f"{group}  {GROUPS[group]}", *_cells(report.counts(group)))
    if len(report.groups) != 1:
        table.add_section()
        table.add_row("All", *_cells(report.counts()), style="bold")
    return table


def _cells(counts: Counter[Outcome]) -> list[Text]:
    cells = [Text(str(counts.total()))]
    for outcome in Outcome:
        count = counts[outcome]
        cells.append(Text(str(count), style=STYLES[outcome]) if count else Text("-", style="dim"))
    return cells


# --- for programs -------------------------------------------------------------------------------------------


def json_of(report: Report) -> str:
    """What `read_json` reads again."""
    found = {
        "format": FORMAT,
        "version": report.version,
        "name": report.name,
        "endpoint": report.endpoint,
        "date": report.date,
        "seconds": report.seconds,
        "full": report.full,
        "counts": {outcome.value: report.counts()[outcome] for outcome in Outcome},
        "left_behind": list(report.left_behind),
        "late_seconds_max": report.late_seconds_max,
        "cases": [{**vars(line), "critical": list(line.critical)} for line in report.lines],
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Report:
    """A report from a file that `json_of` filled.

    Raises:
        ReportError: the file holds no such thing.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ReportError(f"{path} has format {found['format']!r}, which this version cannot read")
        lines = tuple(
            Line(**{**case, "outcome": Outcome(case["outcome"]), "critical": tuple(case["critical"])})
            for case in found["cases"]
        )
        return Report(
            name=found["name"],
            endpoint=found["endpoint"],
            date=found["date"],
            seconds=found["seconds"],
            full=found["full"],
            lines=lines,
            left_behind=tuple(found["left_behind"]),
            late_seconds_max=found["late_seconds_max"],
            version=found["version"],
        )
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        reason = "it is not JSON" if isinstance(error, ValueError) else "something in it is missing or odd"
        raise ReportError(f"{path} is no report of pubsubd conform: {reason}") from error


def junit_of(report: Report) -> str:
    """A suite a group; a case that differs or was not run is skipped, with its reason."""
    document = JUnitXml("pubsubd conform")
    for group in report.groups:
        suite = TestSuite(f"{group} {GROUPS[group]}")
        suite.timestamp = report.date
        suite.hostname = report.endpoint
        for line in report.lines:
            if line.group == group:
                suite.add_testcase(_test_case(line))
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]  # junitparser types only a part of itself
    body: bytes = document.tostring()  # type: ignore[no-untyped-call]  # as above
    return '<?xml version="1.0" encoding="utf-8"?>\n' + body.decode() + "\n"


def _test_case(line: Line) -> TestCase:
    found = TestCase(f"{line.id} {line.promise}", f"conform.{line.group}", line.seconds)
    kinds = {
        Outcome.FAIL: Failure,
        Outcome.ERROR: Error,
        Outcome.DIFFERS: Skipped,
        Outcome.NOT_RUN: Skipped,
    }
    if kind := kinds.get(line.outcome):
        note = f"{line.outcome.value}: {line.seen}" if kind is Skipped else line.seen
        found.result = [kind(note, line.outcome.value)]
    else:
        found.system_out = line.seen
    return found


# --- the score card -----------------------------------------------------------------------------------------


def card(reports: Sequence[Report]) -> str:
    """Markdown: a column for each report, and what failed in each."""
    heads = [_cell(report.name) for report in reports]
    lines = [
        "| | cases | " + " | ".join(heads) + " |",
        "|---|---:|" + "---|" * len(reports),
    ]
    groups = [group for group in GROUPS if any(group in report.groups for report in reports)]
    for group in groups:
        total = max(report.counts(group).total() for report in reports)
        cells = [_tally(report.counts(group)) for report in reports]
        lines.append(f"| {group} {GROUPS[group]} | {total} | " + " | ".join(cells) + " |")
    total = max(len(report.lines) for report in reports)
    lines.append(f"| **All** | {total} | " + " | ".join(_tally(report.counts()) for report in reports) + " |")
    runs = [
        f"{report.name}: {report.date[:10]}, {'written' if report.full else 'short'} forms of the long cases,"
        f" {report.seconds:.0f} s."
        for report in reports
    ]
    lines += ["", *(f"* {run}" for run in runs)]
    for report in reports:
        for title, told in (
            ("failed or erred", report.bad),
            ("differs", [line for line in report.lines if line.outcome == Outcome.DIFFERS]),
        ):
            if told:
                lines += ["", f"What {title}: {report.name}", "", *_failures(told)]
    return "\n".join(lines) + "\n"


def _tally(counts: Counter[Outcome]) -> str:
    if not counts:
        return "not run"
    return ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])


def _failures(lines: Sequence[Line]) -> list[str]:
    rows = ["| | critical for | promised | seen |", "|---|---|---|---|"]
    for line in lines:
        cells = [
            f"{line.id} {line.outcome.value}",
            ", ".join(line.critical),
            _cell(line.promise),
            _cell(line.seen),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
