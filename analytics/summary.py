"""The summary of an audit: a verdict per guarantee and per subscription, and how 80 columns show it.

Standard library only, and rows are plain mappings, so that any command can use it whatever it read them with.

A row of `audit_summary` has one verdict and a count per code. A count alone makes no violation: G1 to G3 are
promised with exactly-once delivery only, and what is found without it is a note. Where the rows of
`violations` are at hand their severities decide; otherwise the subscription's setting does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from analytics.tables import CODES

OK = "ok"
VIOLATED = "violated"
NOT_CHECKED = "not_checked"
INCOMPLETE = "incomplete"
NOT_PROMISED = "not_promised"

#: From the one that hides all others to the one that says least.
_WEIGHT = (VIOLATED, INCOMPLETE, NOT_CHECKED, OK, NOT_PROMISED)

#: What is shown in a terminal and on the page.
LABELS = {
    OK: "ok",
    VIOLATED: "VIOLATED",
    NOT_CHECKED: "not checked",
    INCOMPLETE: "incomplete",
    NOT_PROMISED: "not promised",
}
_CELLS = {OK: "ok", NOT_CHECKED: "?", INCOMPLETE: "inc", NOT_PROMISED: "-"}

#: A note, never a violation, whatever the settings were.
NOTES = frozenset({"G3_repeat_accepted"})

ROWS_MAX = 40  # subscriptions shown in a terminal; the rest is counted


class Promise(NamedTuple):
    """A guarantee in words: a title of at most 34 characters, and a sentence for the page."""

    title: str
    sentence: str
    with_exactly_once: bool  # promised only where exactly-once delivery is on
    with_ordering: bool = False


GUARANTEES = {
    "G0": Promise(
        "the journal agrees with itself",
        "Every record that refers to an earlier event gives that event's time. All latencies rest on this.",
        False,
    ),
    "G1": Promise(
        "no delivery after a successful ack",
        "Once an ack is confirmed, or a seek has acknowledged a message, the subscription never delivers it "
        "again (until a later seek brings it back).",
        True,
    ),
    "G2": Promise(
        "no redelivery during a lease",
        "While a client holds a message and its ack deadline has not passed, nobody else gets it.",
        True,
    ),
    "G3": Promise(
        "acks are answered rightly",
        "An ack, nack or deadline change is accepted if its ack id is valid and refused if it is not.",
        True,
    ),
    "G4": Promise(
        "nothing lost, nothing invented",
        "Every message owed to a subscription was acked, left in a recorded way, or is still in its backlog; "
        "and the backlog holds nothing else.",
        False,
    ),
    "G5": Promise(
        "order within an ordering key",
        "With message ordering, the messages of one ordering key arrive in the order of publishing.",
        False,
        True,
    ),
}


@dataclass(frozen=True)
class Guarantee:
    """A guarantee over all subscriptions; `notes` counts findings that break no promise."""

    code: str
    title: str
    verdict: str
    found: int
    notes: int
    subscriptions: int  # to which it was promised


@dataclass(frozen=True)
class SubscriptionVerdict:
    """What the audit says of one subscription; the dictionaries have an entry per guarantee, G0 to G5."""

    sub_id: int
    subscription: str
    messages: int
    verdict: str
    guarantees: dict[str, str]
    found: dict[str, int]
    notes: dict[str, int]


@dataclass(frozen=True)
class Summary:
    verdict: str
    complete: bool
    guarantees: tuple[Guarantee, ...]
    subscriptions: tuple[SubscriptionVerdict, ...]  # the worst first


Severities = Mapping[tuple[int, str], set[str]]  # by subscription and code


def summarise(
    rows: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]] = (), complete: bool = True
) -> Summary:
    """Judge rows of `audit_summary`; of `found`, rows of `violations`, sub_id, code and severity are read.

    A null count says that the code was not checked for that subscription.
    """
    severities: dict[tuple[int, str], set[str]] = {}
    for one in found:
        severities.setdefault((one["sub_id"], one["code"]), set()).add(one["severity"])
    judged = [_judge(row, severities, complete) for row in rows]
    verdict = worst(one.verdict for one in judged) if judged else OK
    if verdict in (OK, NOT_CHECKED) and not complete:
        verdict = INCOMPLETE
    judged.sort(
        key=lambda one: (
            _WEIGHT.index(one.verdict),
            -sum(one.found.values()),
            -sum(one.notes.values()),
            one.subscription,
            one.sub_id,
        )
    )
    guarantees = tuple(_over_all(guarantee, judged) for guarantee in GUARANTEES)
    return Summary(verdict, complete, guarantees, tuple(judged))


def worst(verdicts: Iterable[str]) -> str:
    """The verdict which hides the others."""
    return min(verdicts, key=_WEIGHT.index, default=NOT_PROMISED)


def violated_codes(row: Mapping[str, Any], severities: Severities) -> set[str]:
    """The codes of which the findings break a promise to this subscription."""
    if row["verdict"] != VIOLATED:
        return set()
    codes = {code for code in CODES if row.get(code) and code not in NOTES}

    def breaks(code: str) -> bool:
        known = severities.get((row["sub_id"], code))
        if known is not None:
            return "violation" in known
        return bool(row["exactly_once"]) or not GUARANTEES[code[:2]].with_exactly_once

    # None of them: the audit knows more than the row tells, as when exactly-once was switched off since.
    return {code for code in codes if breaks(code)} or codes


def _judge(row: Mapping[str, Any], severities: Severities, complete: bool) -> SubscriptionVerdict:
    violated = violated_codes(row, severities)
    found = dict.fromkeys(GUARANTEES, 0)
    notes = dict.fromkeys(GUARANTEES, 0)
    for code in CODES:
        (found if code in violated else notes)[code[:2]] += row.get(code) or 0
    verdicts = {
        guarantee: VIOLATED if found[guarantee] else _verdict(row, guarantee, complete)
        for guarantee in GUARANTEES
    }
    return SubscriptionVerdict(
        row["sub_id"], row["subscription"] or "", row["messages"] or 0, row["verdict"], verdicts, found, notes
    )


def _verdict(row: Mapping[str, Any], guarantee: str, complete: bool) -> str:
    """The verdict where no promise was seen broken."""
    promise = GUARANTEES[guarantee]
    if promise.with_exactly_once and not row["exactly_once"]:
        return NOT_PROMISED
    if promise.with_ordering and not row["ordered"]:
        return NOT_PROMISED
    if row["verdict"] == INCOMPLETE or not complete:
        return INCOMPLETE
    if any(row.get(code) is None for code in CODES if code.startswith(guarantee)):
        return NOT_CHECKED
    # G4 needs the backlog of the journal's end; the other guarantees are always checked.
    return NOT_CHECKED if row["verdict"] == NOT_CHECKED and guarantee == "G4" else OK


def _over_all(guarantee: str, judged: Sequence[SubscriptionVerdict]) -> Guarantee:
    verdicts = [one.guarantees[guarantee] for one in judged]
    return Guarantee(
        guarantee,
        GUARANTEES[guarantee].title,
        worst(verdicts),
        sum(one.found[guarantee] for one in judged),
        sum(one.notes[guarantee] for one in judged),
        sum(verdict != NOT_PROMISED for verdict in verdicts),
    )


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as values that `json.dumps` takes."""
    return asdict(summary)


# In a terminal.


def text(summary: Summary, width: int = 80, rows_max: int = ROWS_MAX) -> str:
    """The summary as lines of at most `width` columns, 76 at least; in ASCII but for names."""
    width = max(width, 76)
    lines = [_line("guarantee", "subscriptions", "found", "verdict", width)]
    for one in summary.guarantees:
        verdict = LABELS[one.verdict] if summary.subscriptions else "nothing to judge"
        lines.append(
            _line(f"{one.code}  {one.title}", f"{one.subscriptions:,}", _short(one.found), verdict, width)
        )
    notes = sum(one.notes for one in summary.guarantees)
    lines.append("")
    lines += _subscription_lines(summary, width, rows_max)
    if notes:
        lines.append(f"Notes: {notes:,} findings that break no promise.")
    if any(one.verdict == NOT_CHECKED for one in summary.guarantees):
        lines.append("? = not checked: needs the backlog of the journal's end, and no seek to a snapshot.")
    if not summary.complete:
        lines.append("The journal is incomplete, so what was not found may still have happened.")
    lines.append(f"Verdict: {LABELS[summary.verdict]}")
    return "\n".join(line.rstrip() for line in lines)


def _line(first: str, second: str, third: str, last: str, width: int) -> str:
    return f"{_fit(first, width - 42)} {second:>13} {third:>9}  {last}"


def _subscription_lines(summary: Summary, width: int, rows_max: int) -> list[str]:
    if not summary.subscriptions:
        return ["No subscription in the journal.", ""]
    shown = summary.subscriptions[:rows_max]
    names = [one.subscription for one in summary.subscriptions]
    prefix = common_prefix(names)
    column = width - 50
    lines = [f"{_fit('subscription', column)} {'messages':>10}  G0  G1  G2  G3  G4  G5  verdict"]
    for one in shown:
        cells = " ".join(f"{_cell(one, guarantee):>3}" for guarantee in GUARANTEES)
        # A name that was deleted and created again is two subscriptions.
        number = f" #{one.sub_id}" if names.count(one.subscription) > 1 else ""
        name = _fit(one.subscription[len(prefix) :], column - len(number)).rstrip() + number
        name += " " * (column - _columns(name))
        lines.append(f"{name} {_short(one.messages):>10} {cells}  {LABELS[one.verdict]}")
    if len(summary.subscriptions) > len(shown):
        lines.append(
            f"... and {len(summary.subscriptions) - len(shown):,} more, see the table audit_summary."
        )
    if prefix:
        lines.append(f"Names begin with {_fit(prefix, width - 17).rstrip()}")
    lines.append("")
    return lines


def _cell(one: SubscriptionVerdict, guarantee: str) -> str:
    verdict = one.guarantees[guarantee]
    if verdict == VIOLATED:
        # The count if it fits into three columns with its mark.
        return f"!{one.found[guarantee]}" if one.found[guarantee] < 100 else "!!!"
    return _CELLS[verdict]


def _short(number: int) -> str:
    """A count in at most 10 columns."""
    for unit, name in ((1, ""), (10**6, "M"), (10**12, "T")):
        shown = f"{number // unit:,}{name}"
        if len(shown) <= 10:
            return shown
    return f"{number:.1e}"


def common_prefix(names: Sequence[str]) -> str:
    """What all names begin with, up to and with a slash, e.g. `projects/p/subscriptions/`; may be empty."""
    if not names:
        return ""
    low, high = min(names), max(names)
    length = 0
    while length < min(len(low), len(high)) and low[length] == high[length]:
        length += 1
    return low[: low.rfind("/", 0, length) + 1]


def _fit(name: str, width: int) -> str:
    """The name in exactly `width` columns: control characters replaced, the middle left out if need be."""
    clean = "".join("?" if unicodedata.category(c).startswith(("C", "Z")) and c != " " else c for c in name)
    if _columns(clean) > width:
        head = _take(clean, (width - 2) // 2)
        tail = _take(clean[::-1], width - 2 - _columns(head))[::-1]
        clean = f"{head}..{tail}"
    return clean + " " * (width - _columns(clean))


def _take(name: str, width: int) -> str:
    taken = ""
    for character in name:
        if _columns(taken + character) > width:
            break
        taken += character
    return taken


def _columns(name: str) -> int:
    """How many columns a terminal needs for it."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in name
    )
