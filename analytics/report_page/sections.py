"""The sections of the page, from the verdict to the provenance: tables in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from analytics.layout import Kind, Result
from analytics.report_page.data import Tables
from analytics.report_page.markup import (
    NONE,
    Cell,
    Column,
    Html,
    badge,
    count,
    duration,
    join,
    moment,
    number,
    seconds,
    share,
    table,
    tag,
)
from analytics.report_page.names import Names, elide
from analytics.report_page.plots import LINES_MAX, LINES_SHOWN, Plot
from analytics.report_page.words import CODES_IN_WORDS
from analytics.summary import GUARANTEES, VIOLATED, Summary
from analytics.tables import CODES

Row = Mapping[str, Any]

ROWS_MAX = 2_000  # of a table on the page
EVIDENCE_MAX = 10  # violations per code that are shown with all events of their message
EVENTS_MAX = 100  # of a message
CLIENTS_MAX = 200
NAME_MAX = 90  # characters of a name in a table


def section(key: str, title: str, *inside: object) -> Html:
    return tag("section", tag("h2", title, id=key), *inside)


def absent(name: str, command: str) -> Html:
    """The sentence in place of a table which is not there."""
    return tag(
        "p",
        "The output folder has no table ",
        tag("code", name),
        ", so there is nothing to show here. ",
        tag("code", f"python -m analytics {command}"),
        " writes it.",
        class_="note",
    )


def more(shown: int, total: int, name: str) -> Html:
    if shown >= total:
        return Html("")
    return tag(
        "p", f"Shown are {shown:,} of {total:,}; all are in the table ", tag("code", name), ".", class_="note"
    )


def figures(pairs: Iterable[tuple[str, object]]) -> Html:
    """A few large numbers with a word below each."""
    return tag(
        "ul",
        *(tag("li", tag("b", value), tag("span", word)) for word, value in pairs),
        class_="figures",
    )


def plot_grid(plots: Sequence[Plot]) -> Html:
    return tag("div", *map(_figure, plots), class_="plots")


def _figure(plot: Plot) -> Html:
    words = plot.words
    caption = tag("figcaption", words.caption)
    title = tag("h3", words.title, id=f"title-{plot.key}")
    if plot.figure is None:
        return tag("figure", title, tag("p", words.empty, class_="nothing muted"), caption)
    lines = len(plot.legend)
    note: object = ""
    if any(trace["visible"] == "legendonly" for trace in plot.figure["data"] if "visible" in trace):
        note = tag(
            "p",
            f"{LINES_SHOWN} of {lines} lines are drawn; a click on a name shows or hides its line."
            + (
                f" Subscriptions beyond the first {LINES_MAX} are only in the tables."
                if lines == LINES_MAX
                else ""
            ),
            class_="note",
        )
    drawing = tag("div", class_="plot", role="img", data_plot=plot.key, aria_labelledby=f"title-{plot.key}")
    return tag("figure", title, drawing, note, caption)


# The verdict.


def verdict(summary: Summary | None) -> Html:
    if summary is None:
        return section("verdict", "Verdict", absent("audit_summary", "audit"))
    cards = []
    for one in summary.guarantees:
        found = f"{one.found:,} found" if one.found else "none found"
        notes = f", {one.notes:,} notes" if one.notes else ""
        scope = f"Promised to {one.subscriptions:,} of {len(summary.subscriptions):,} subscriptions"
        cards.append(
            tag(
                "li",
                tag("h3", tag("span", f"{one.code}: {one.title}"), badge(one.verdict)),
                tag("p", GUARANTEES[one.code].sentence),
                tag("p", f"{scope}; {found}{notes}.", class_="note"),
                data_guarantee=one.code,
                data_verdict=one.verdict,
                data_found=one.found,
            )
        )
    return section(
        "verdict",
        "Verdict",
        tag(
            "p",
            "What the server promised, checked against every event in the range. ",
            tag("b", "Not promised"),
            " means that the subscription's settings do not include it; what is found there is a note. ",
            tag("b", "Not checked"),
            " means that there was nothing to compare with: G4 needs the backlog of the journal's end. ",
            tag("b", "Incomplete"),
            " means that a part of the journal is missing, so what was not found may still have happened.",
        ),
        tag("ul", *cards, class_="cards"),
    )


# Subscriptions.

_SUBSCRIPTION_COLUMNS = (
    Column("subscription", "h"),
    Column("verdict"),
    Column("violations", "n", "what broke a promise, all guarantees together"),
    Column("which", "t", "guarantees that were violated"),
    Column("exactly-once"),
    Column("ordered"),
    Column("messages", "n", "owed to the subscription in the range"),
    Column("deliveries", "n"),
    Column("acked", "n", "acks that took effect"),
    Column("open", "n", "not acked and not gone at the end"),
    Column("redelivered", "n", "share of deliveries that were not the first"),
    Column("expired", "n", "leases that ran out, as share of deliveries"),
    Column("p99 to delivery", "n", "from publishing to the first delivery"),
    Column("p99 to ack", "n", "from a delivery to its ack"),
    Column("dead-lettered", "n"),
    Column("dropped", "n", "by retention or detachment"),
    Column("filtered", "n", "rejected by the subscription's filter"),
)


def subscriptions(
    summary: Summary | None,
    audit: Sequence[Row] | None,
    totals: Mapping[int, Mapping[str, float]],
    quantiles: Sequence[Row],
    names: Names,
) -> Html:
    """One row per subscription, the worst first; `totals` are sums of `health_minute`."""
    p99 = {(row["sub_id"], row["what"]): row["p99"] for row in quantiles}
    audited = {row["sub_id"]: row for row in audit or []}
    judged = {one.sub_id: one for one in summary.subscriptions} if summary else {}
    order = list(judged) + sorted(set(totals) - set(judged), key=names.label)
    if not order:
        inside = tag("p", "The tables know no subscription.", class_="note")
        if audit is None:
            inside = absent("audit_summary", "audit")
        return section("subscriptions", "Subscriptions", inside)
    rows = []
    for sub_id in order[:ROWS_MAX]:
        row, health, one = audited.get(sub_id, {}), totals.get(sub_id, {}), judged.get(sub_id)
        violated = [code for code, its in one.guarantees.items() if its == VIOLATED] if one else []
        deliveries = health.get("delivered", row.get("deliveries"))
        rows.append(
            (
                Cell(_name(names, sub_id), names.label(sub_id)),
                badge(one.verdict) if one else "not audited",
                count(sum(one.found.values()) if one else None),
                ", ".join(violated),
                _yes(row.get("exactly_once")),
                _yes(row.get("ordered")),
                count(row.get("messages", health.get("published"))),
                count(row.get("deliveries", health.get("delivered"))),
                count(row.get("acks_ok", health.get("acked"))),
                count(row.get("open", health.get("backlog"))),
                share(health.get("redelivered"), deliveries),
                share(health.get("expired"), deliveries),
                duration(p99.get((sub_id, 2))),
                duration(p99.get((sub_id, 5))),
                count(row.get("dead_lettered", health.get("dead_lettered"))),
                count(row.get("dropped", health.get("dropped"))),
                count(row.get("filtered", health.get("filtered"))),
            )
        )
    prefix = ["All names begin with ", tag("code", names.prefix), ". "] if names.prefix else []
    return section(
        "subscriptions",
        "Subscriptions",
        tag("p", *prefix, "A click on a heading sorts; a second click turns the order round."),
        tag(
            "label",
            "Only names with ",
            tag("input", type="search", data_filters="subscription-table", autocomplete="off"),
            class_="filter",
        ),
        table(_SUBSCRIPTION_COLUMNS, rows, "Subscriptions", "subscription-table"),
        more(len(rows), len(order), "audit_summary"),
    )


def _name(names: Names, sub_id: int) -> Html:
    """The label, cut if it is very long, and the whole name where the pointer rests."""
    return tag("span", elide(names.label(sub_id), NAME_MAX), title=names.full(sub_id))


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


# Clients.

_CLIENT_COLUMNS = (
    Column("subscription", "h"),
    Column("client", "w"),
    Column("delivered", "n"),
    Column("acked", "n"),
    Column("nacked", "n"),
    Column("expired", "n", "leases that this client let run out"),
    Column("failed share", "n", "nacked and expired, as share of delivered"),
    Column("mean processing", "n", "from a delivery to its ack"),
)


def clients(minutes: pa.Table | None, names: Names) -> Html:
    """Clients by name and what they failed to ack; totals over the range.

    A client that comes again, after a restart say, has another number but the same name.
    """
    if minutes is None:
        return absent("client_minute", "health")
    sums = ("delivered", "acked", "nacked", "expired", "processing_sum_us")
    merged = (
        minutes.group_by(["sub_id", "client"]).aggregate([(column, "sum") for column in sums]).to_pylist()
    )
    merged.sort(
        key=lambda row: (
            -(row["nacked_sum"] + row["expired_sum"]),
            -row["delivered_sum"],
            row["sub_id"],
            row["client"] or "",
        )
    )
    rows = [
        (
            Cell(_name(names, row["sub_id"]), names.label(row["sub_id"])),
            row["client"] or "unknown",
            count(row["delivered_sum"]),
            count(row["acked_sum"]),
            count(row["nacked_sum"]),
            count(row["expired_sum"]),
            share(row["nacked_sum"] + row["expired_sum"], row["delivered_sum"]),
            duration(row["processing_sum_us_sum"] / row["acked_sum"] if row["acked_sum"] else None),
        )
        for row in merged[:CLIENTS_MAX]
    ]
    if not rows:
        return tag("p", "No client was seen.", class_="note")
    return join(
        (
            tag("h3", "Clients, those with most failures first"),
            table(_CLIENT_COLUMNS, rows, "Clients", "client-table"),
            more(len(rows), len(merged), "client_minute"),
        )
    )


# Dead letters and duplicates.


def dead_letters(rows: pa.Table | None, names: Names, topics: Names) -> Html:
    if rows is None:
        return absent("dead_letter", "health")
    if not len(rows):
        return Html("")
    merged = rows.group_by(["sub_id", "topic_id"]).aggregate(
        [
            ("n", "sum"),
            ("attempts_p50", "min"),
            ("attempts_p50", "max"),
            ("age_p50_s", "min"),
            ("age_p50_s", "max"),
        ]
    )
    columns = (
        Column("subscription", "h"),
        Column("to", "w"),
        Column("messages", "n"),
        Column("attempts", "n", "median per minute: lowest to highest"),
        Column("age", "n", "median per minute: lowest to highest"),
    )
    listed = sorted(merged.to_pylist(), key=lambda row: -row["n_sum"])
    shown = [
        (
            Cell(_name(names, row["sub_id"]), names.label(row["sub_id"])),
            Cell(_name(topics, row["topic_id"]), topics.label(row["topic_id"])),
            count(row["n_sum"]),
            _range(row, "attempts_p50", number),
            _range(row, "age_p50_s", lambda value: str(seconds(value).shown)),
        )
        for row in listed[:ROWS_MAX]
    ]
    return join(
        (
            tag("h3", "Dead letters in the whole range"),
            table(columns, shown, "Dead letters", "dead-letter-table"),
            more(len(shown), len(listed), "dead_letter"),
        )
    )


def _range(row: Row, column: str, shown: Any) -> Cell:
    low, high = row[f"{column}_min"], row[f"{column}_max"]
    if low is None:
        return Cell(None, None)
    return Cell(shown(low) if low == high else f"{shown(low)} to {shown(high)}", high)


def duplicates(rows: Sequence[Row] | None, topics: Names) -> Html:
    intro = tag(
        "p",
        "Messages of one topic with the same data and attributes, published within ten minutes. "
        "The server does not merge them; publishers that retry, or that send twice, make them. Good: none, "
        "unless repeating is what your data does.",
    )
    if rows is None:
        return section("duplicates", "Published twice", absent("duplicates", "health"))
    if not rows:
        return section("duplicates", "Published twice", intro, tag("p", "None were found.", class_="note"))
    columns = (
        Column("topic", "h"),
        Column("groups", "n", "of equal messages"),
        Column("messages", "n"),
        Column("longest span", "n", "between the first and the last of a group"),
        Column("examples", "w", "first message of a group, how many, and how far apart"),
    )
    listed = sorted(rows, key=lambda row: -row["messages"])
    shown = [
        (
            Cell(_name(topics, row["topic_id"]), topics.label(row["topic_id"])),
            count(row["groups"]),
            count(row["messages"]),
            seconds(row["max_spread_s"]),
            "; ".join(
                f"message {one['first_message_id']}: {one['messages']} in {seconds(one['spread_s']).shown}"
                for one in (row["examples"] or [])[:5]
            ),
        )
        for row in listed[:ROWS_MAX]
    ]
    return section(
        "duplicates",
        "Published twice",
        intro,
        table(columns, shown, "Messages published twice", "duplicate-table"),
        more(len(shown), len(listed), "duplicates"),
    )


# Violations and their evidence.


def violations(tables: Tables, audit: Sequence[Row] | None, names: Names) -> Html:
    title = "Violations and notes"
    rows = tables.rows("violations")
    if rows is None:
        return section("violations", title, absent("violations", "audit"))
    counts = {code: sum(row[code] or 0 for row in audit or []) for code in CODES}
    for code in CODES:
        counts[code] = max(counts[code], sum(row["code"] == code for row in rows))
    if not any(counts.values()):
        return section("violations", title, tag("p", "Nothing was found that breaks a rule."))
    by_code: dict[str, list[Row]] = {code: [] for code in CODES}
    for row in rows:
        by_code.setdefault(row["code"], []).append(row)
    chosen = {
        code: sorted(its, key=lambda row: (row["severity"] != "violation", row["seq"]))[:EVIDENCE_MAX]
        for code, its in by_code.items()
        if its
    }
    evidence = _evidence(tables, [row["violation_id"] for its in chosen.values() for row in its])
    clients = _client_names(tables, [event for events in (evidence or {}).values() for event in events])
    parts = [
        _code_part(code, its, counts.get(code, len(its)), evidence, clients, names)
        for code, its in chosen.items()
    ]
    intro = tag(
        "p",
        "What the audit found, by rule, each with all events of the message concerned, in the order in which "
        "they were committed. A note breaks a rule that the subscription's settings did not promise.",
    )
    columns = (Column("rule", "h"), Column("what it means", "w"), Column("found", "n"))
    listed = [(code, CODES_IN_WORDS.get(code, ""), count(found)) for code, found in counts.items() if found]
    return section("violations", title, intro, table(columns, listed, "Found, by rule", "code-table"), *parts)


def _code_part(
    code: str,
    rows: Sequence[Row],
    total: int,
    evidence: Mapping[int, Sequence[Row]] | None,
    clients: Mapping[int, str],
    names: Names,
) -> Html:
    shown = [_violation(row, evidence, clients, names, row is rows[0]) for row in rows]
    return join((tag("h3", code), *shown, more(len(rows), total, "violations")))


def _violation(
    row: Row,
    evidence: Mapping[int, Sequence[Row]] | None,
    clients: Mapping[int, str],
    names: Names,
    is_first: bool,
) -> Html:
    head = tag(
        "summary",
        badge(VIOLATED)
        if row["severity"] == "violation"
        else tag("span", "note", class_="badge not_promised"),
        f" {elide(names.label(row['sub_id']) if row['sub_id'] else 'no subscription')}, "
        f"message {row['message_id']}, event {row['seq']}",
    )
    facts = tag(
        "dl",
        *_pair("subscription", row["subscription"] or names.full(row["sub_id"])),
        *_pair("time", moment(row["ts_us"], 6) + " UTC"),
        *_pair("expected", row["expected"]),
        *_pair("found", row["found"]),
    )
    if evidence is None:
        events: Html = absent("evidence", "audit")
    else:
        events = _events(evidence.get(row["violation_id"], ()), row, clients)
    return tag(
        "details", head, facts, events, data_violation=row["violation_id"], open="" if is_first else None
    )


def _pair(word: str, value: object) -> tuple[Html, Html]:
    return tag("dt", word), tag("dd", NONE if value in (None, "") else value)


def _events(events: Sequence[Row], violation: Row, clients: Mapping[int, str]) -> Html:
    if not events:
        return tag("p", "The journal's range holds no event of this message.", class_="note")
    columns = (
        Column("event", "n"),
        Column("time (UTC)"),
        Column("kind"),
        Column("lease", "n", "generation: which lease of the message"),
        Column("attempt", "n"),
        Column("answer"),
        Column("lease ends (UTC)"),
        Column("client", "w"),
        Column("detail", "w"),
    )
    rows = [
        (
            Cell(str(event["seq"]) + (_HERE if event["seq"] == violation["seq"] else ""), event["seq"]),
            moment(event["ts_us"], 6),
            _word(Kind, event["kind"]),
            event["generation"] or None,
            event["attempt"] or None,
            _word(Result, event["result"]) if event["kind"] in _ANSWERED else None,
            moment(event["deadline_us"], 6),
            _client(clients, event["client_id"]),
            event["detail"],
        )
        for event in events[:EVENTS_MAX]
    ]
    return join((table(columns, rows, "Events of the message"), more(len(rows), len(events), "evidence")))


def _client(clients: Mapping[int, str], client_id: int) -> str | None:
    if not client_id:
        return None
    return clients.get(client_id) or f"client number {client_id}"


_HERE = "\N{NO-BREAK SPACE}←"  # beside the event that breaks the rule
_ANSWERED = frozenset({Kind.EXTEND, Kind.NACK, Kind.ACK})


def _word(words: type[Kind] | type[Result], value: int) -> str:
    try:
        return words(value).name
    except ValueError:
        return str(value)


def _evidence(tables: Tables, violation_ids: Sequence[int]) -> dict[int, list[Row]] | None:
    rows = tables.rows("evidence", ds.field("violation_id").isin(violation_ids))
    if rows is None:
        return None
    found: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["seq"]):
        found.setdefault(row["violation_id"], []).append(row)
    return found


def _client_names(tables: Tables, events: Iterable[Row]) -> dict[int, str]:
    wanted = sorted({event["client_id"] for event in events if event["client_id"]})
    if not wanted:
        return {}
    known = tables.read("client_minute", ["client_id", "client"], ds.field("client_id").isin(wanted))
    if known is None:
        return {}
    pairs = known.group_by(["client_id", "client"]).aggregate([]).to_pylist()
    return {pair["client_id"]: pair["client"] for pair in pairs if pair["client"]}


# Advice and provenance.


def advice(rows: Sequence[Row] | None, names: Names) -> Html:
    if rows is None:
        return section("advice", "Advice", absent("advice", "capacity"))
    intro = tag(
        "p",
        "Settings that the measurements argue for. Low confidence: fewer than 1,000 measurements. Look at "
        "the reason before you change anything. What need not change comes last.",
    )
    if not rows:
        return section("advice", "Advice", intro, tag("p", "Nothing needs to be changed.", class_="note"))
    columns = (
        Column("subscription", "h"),
        Column("setting", "w"),
        Column("now", "n"),
        Column("recommended", "n"),
        Column("confidence"),
        Column("reason", "w"),
        Column("measured"),
    )
    weight = {"high": 0, "medium": 1, "low": 2}
    listed = sorted(
        rows,
        key=lambda row: (
            row["recommended"] is None or row["recommended"] == row["current"],
            weight.get(row["confidence"], 3),
            row["subscription"] or "",
            row["setting"] or "",
        ),
    )
    shown = [
        (
            Cell(_name(names, row["sub_id"]), names.label(row["sub_id"])),
            row["setting"],
            Cell(number(row["current"]), row["current"]),
            Cell(number(row["recommended"]), row["recommended"]),
            row["confidence"],
            row["reason"],
            _measured(row["evidence"]),
        )
        for row in listed[:ROWS_MAX]
    ]
    return section(
        "advice",
        "Advice",
        intro,
        table(columns, shown, "Advice", "advice-table"),
        more(len(shown), len(listed), "advice"),
    )


def _measured(evidence: Any) -> Html | None:
    """The figures behind an advice, folded away: there are many."""
    pairs = sorted(evidence.items() if isinstance(evidence, dict) else evidence or [])
    if not pairs:
        return None
    lines = (tag("li", f"{key.replace('_', ' ')}: {number(value)}") for key, value in pairs)
    return tag("details", tag("summary", f"{len(pairs)} figures"), tag("ul", *lines), class_="inline")


def provenance(record: Mapping[str, Any], present: Iterable[str], note: str) -> Html:
    """Where the numbers come from: what `_RUN.json` says, known parts in words and the rest as it is."""
    title = "Provenance"
    named = tag("p", "Tables in the output folder: ", join((tag("code", one) for one in present), ", "), ".")
    if not record:
        return section(
            "provenance",
            title,
            tag(
                "p",
                "The output folder has no ",
                tag("code", "_RUN.json"),
                ", which would tell of the run.",
                class_="note",
            ),
            named,
            tag("p", note, class_="note"),
        )
    pairs: list[Html] = []
    for word, value in known_facts(record):
        pairs += _pair(word, value)
    return section("provenance", title, tag("dl", *pairs), named, tag("p", note, class_="note"))


_WORDS = {
    "command": "command",
    "exit_status": "exit status",
    "journal": "journal",
    "server": "journal of server",
    "complete": "complete",
    "missing": "missing events",
    "gaps": "events known to be lost",
    "damaged": "damaged segments",
    "backlog": "backlog file",
    "versions": "versions",
    "options": "options",
    "settings": "settings of Spark",
    "counts": "counts",
    "durations_s": "seconds per stage",
}


def known_facts(record: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    """Pairs of a word and a text, from what `_RUN.json` holds."""
    span = record.get("range") or {}
    if span:
        yield "events", _plain([span.get("first_seq", 0), span.get("last_seq", 0)])
        yield "from", moment(span.get("first_us"), 6) + " UTC"
        yield "to", moment(span.get("last_us"), 6) + " UTC"
        if span.get("starts_inside"):
            yield "beginning", "inside the journal: messages published earlier are known in part"
    began, ended = record.get("started_us"), record.get("finished_us")
    if began and ended:
        yield "run", f"{moment(began)} to {moment(ended)} UTC ({seconds((ended - began) / 1e6).shown})"
    told = {"range", "started_us", "finished_us", "topics"}
    ordered = [key for key in _WORDS if key in record]
    ordered += [key for key in record if key not in _WORDS and key not in told]
    for key in ordered:
        yield _WORDS.get(key, key.replace("_", " ")), _plain(record[key])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == [] or value == () or value == {}:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) == 2 and all(isinstance(one, int) for one in value):
            return f"{value[0]:,} to {value[1]:,}"
        return "; ".join(_plain(one) for one in value)
    if isinstance(value, (int, float)):
        return number(value)
    return str(value)
