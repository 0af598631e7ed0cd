"""The report: OUT/report.html, one page without any network access, from the tables that are in OUT.

Needs pyarrow and plotly, no Spark: `write` reads the Parquet folders as they are. What is made of the tables
is in `report_page`; here it is put together. The page may run its own two scripts, known by their hashes, and
nothing else, so even text that got past the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from plotly.offline import get_plotlyjs

from analytics import paths, summary
from analytics.errors import UsageError
from analytics.report_page import sections
from analytics.report_page.data import Tables
from analytics.report_page.markup import Html, badge, duration, join, moment, tag
from analytics.report_page.names import Names, collect
from analytics.report_page.plots import Plot, Plots
from analytics.report_page.series import Minutes
from analytics.tables import MINUTE_COUNTS

if TYPE_CHECKING:
    from analytics.run import Run

NAME = "report.html"

#: The tables that the report reads.
READ = (
    *("audit_summary", "violations", "evidence", "health_minute", "latency", "latency_quantiles"),
    *("client_minute", "attempts", "dead_letter", "duplicates", "advice"),
)


def run(run: Run) -> None:
    """Write the report of this run's output folder, wherever that is."""
    with run.progress.stage("report"):
        if paths.local(run.out.path) is not None:
            write(run.out.path)
            return
        with tempfile.TemporaryDirectory() as folder:
            _fetch(run, Path(folder))
            run.out.write_text(NAME, build(folder))


def _fetch(run: Run, folder: Path) -> None:
    """Bring the tables that are read to this machine, through the file systems that Spark knows."""
    files = paths.Files(run.spark)
    for name in READ:
        if run.out.exists(name):
            for one in files.below(run.out.table(name)):
                (folder / name / one.relative).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / one.relative).write_bytes(files.read(one.path))
    record = run.out.read_run()
    if record:
        (folder / "_RUN.json").write_text(json.dumps(record), encoding="utf-8")


def write(out: str) -> str:
    """Write OUT/report.html from the tables in OUT, and return its path.

    Raises:
        UsageError: OUT holds no table, or one that cannot be read.
    """
    return Tables(out).write_file(NAME, build(out).encode())


def build(out: str, now: datetime | None = None) -> str:
    """The page as text.

    Raises:
        UsageError: OUT holds no table, or one that cannot be read.
    """
    tables = Tables(out)
    present = [name for name in READ if name in tables.names()]
    if not present:
        raise UsageError(f"{out} holds none of the tables that a report needs; run an audit or health first.")
    record = tables.run_record()
    audit = tables.rows("audit_summary")
    health = tables.read("health_minute")
    advice = tables.rows("advice")
    judged = None
    if audit is not None:
        found = tables.read("violations", ["sub_id", "code", "severity"])
        judged = summary.summarise(audit, found.to_pylist() if found is not None else (), is_complete(record))
    names = Names(collect([audit or [], _names(health), advice or []]))
    clients = tables.read("client_minute")
    plots = Plots(tables, names, health, clients)
    parts, drawn = _main(tables, judged, audit, health, clients, advice, names, plots, record, present)
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    return _page(judged, record, parts, drawn, plots, made)


def is_complete(record: Mapping[str, Any]) -> bool:
    """Whether the run saw the whole journal; without a record the verdicts of the audit alone count."""
    return bool(record.get("complete", True)) and not record.get("gaps")


def _names(health: pa.Table | None) -> Sequence[Mapping[str, object]]:
    if health is None:
        return []
    rows: list[Mapping[str, object]] = (
        health.select(["sub_id", "subscription"])
        .group_by(["sub_id", "subscription"])
        .aggregate([])
        .to_pylist()
    )
    return rows


def _totals(plots: Plots) -> dict[int, dict[str, float]]:
    """Sums of `health_minute` over the range by subscription and column, and the last backlog."""
    health = plots.health
    if health is None:
        return {}
    totals: dict[int, dict[str, float]] = {}
    for column in MINUTE_COUNTS:
        for sub_id, total in health.by_subscription(column).items():
            totals.setdefault(sub_id, {})[column] = total
    for sub_id, backlog in _last(health, "backlog").items():
        totals[sub_id]["backlog"] = backlog
    return {sub_id: values for sub_id, values in totals.items() if sub_id}


def _last(health: Minutes, column: str) -> dict[int, float]:
    """The value of the last minute that has one, by subscription."""
    values = health.values(column)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.lexsort((health.minute[known], health.sub_id[known]))]
    return dict(zip(health.sub_id[order].tolist(), values[order].tolist(), strict=True))


def _main(
    tables: Tables,
    judged: summary.Summary | None,
    audit: Sequence[Mapping[str, Any]] | None,
    health: pa.Table | None,
    clients: pa.Table | None,
    advice: Sequence[Mapping[str, Any]] | None,
    names: Names,
    plots: Plots,
    record: Mapping[str, Any],
    present: Sequence[str],
) -> tuple[list[Html], list[Plot]]:
    """The sections in order, and the plots in them."""
    drawn: list[Plot] = []

    def grid(made: Sequence[Plot]) -> Html:
        drawn.extend(made)
        return sections.plot_grid(made)

    def of_health(made: Sequence[Plot]) -> Html:
        return sections.absent("health_minute", "health") if health is None else grid(made)

    topics = Names({int(number): name for number, name in (record.get("topics") or {}).items()}, "topic")
    dead = tables.read("dead_letter")
    attempts = tables.rows("attempts")
    parts = [
        sections.verdict(judged),
        sections.subscriptions(judged, audit, _totals(plots), tables.rows("latency_quantiles") or [], names),
        sections.section("traffic", "Traffic", _intro(plots), of_health(plots.traffic())),
        sections.section("backlog", "Backlog", of_health(plots.backlog())),
        sections.section(
            "latency",
            "Latency",
            sections.absent("latency", "health")
            if "latency" not in present or plots.grid is None
            else grid(plots.latency()),
        ),
        sections.section("failures", "Failures", of_health(plots.failures())),
        sections.section(
            "clients",
            "Clients and fairness",
            grid(plots.fairness()) if clients is not None else "",
            sections.clients(clients, names),
        ),
        sections.section(
            "attempts",
            "Delivery attempts",
            sections.absent("attempts", "health") if attempts is None else grid(plots.attempts(attempts)),
        ),
        sections.section(
            "dead-letters",
            "Dead letters and drops",
            grid(plots.dead_letters(dead)) if dead is not None or health is not None else "",
            sections.dead_letters(dead, names, topics),
        ),
        sections.duplicates(tables.rows("duplicates"), topics),
        sections.violations(tables, audit, names),
        sections.advice(advice, names),
        sections.provenance(record, present, _merged(plots)),
    ]
    return parts, drawn


def _intro(plots: Plots) -> Html:
    if plots.grid is None:
        return Html("")
    each = "a minute" if plots.grid.step == 1 else f"{plots.grid.step:,} minutes"
    return tag(
        "p",
        f"Each point of the plots below is {each}, labelled with its beginning. With a mouse, drag over a "
        "plot to zoom (all plots over time follow), and double-click to return.",
    )


def _merged(plots: Plots) -> str:
    if plots.grid is None or plots.grid.step == 1:
        return "Plots show every minute."
    return (
        f"Plots merge {plots.grid.step:,} minutes into a point: counts and histograms are added up, of "
        "backlog and age the highest is taken. The tables have every minute."
    )


_SECTIONS = {
    "verdict": "Verdict",
    "subscriptions": "Subscriptions",
    "traffic": "Traffic",
    "backlog": "Backlog",
    "latency": "Latency",
    "failures": "Failures",
    "clients": "Clients",
    "attempts": "Attempts",
    "dead-letters": "Dead letters",
    "duplicates": "Duplicates",
    "violations": "Violations",
    "advice": "Advice",
    "provenance": "Provenance",
}


def _page(
    judged: summary.Summary | None,
    record: Mapping[str, Any],
    parts: Sequence[Html],
    drawn: Sequence[Plot],
    plots: Plots,
    made: str,
) -> str:
    plotly, script = _script(get_plotlyjs()), _script(_file("page.js"))
    data = {
        "plots": [
            {"key": plot.key, "figure": plot.figure, "legend": plot.legend} for plot in drawn if plot.figure
        ]
    }
    return Template(_file("page.html")).substitute(
        title="Delivery report",
        hashes=" ".join(f"'sha256-{_hash(one)}'" for one in (plotly, script)),
        css=_file("page.css"),
        header=_header(judged, record, plots),
        nav=join(tag("li", tag("a", word, href=f"#{key}")) for key, word in _SECTIONS.items()),
        main=join(parts),
        footer=tag("p", f"Made {made} by pubsubd analytics. All times are UTC."),
        data=as_script_data(data),
        plotly=plotly,
        js=script,
    )


def _header(judged: summary.Summary | None, record: Mapping[str, Any], plots: Plots) -> Html:
    span = record.get("range") or {}
    first, last = span.get("first_us"), span.get("last_us")
    if not first and plots.grid is not None:
        first = plots.grid.start * 60_000_000
        last = first + plots.grid.points * plots.grid.step * 60_000_000
    when = "The tables say no range."
    if first and last:
        when = f"{moment(first)} to {moment(last)} UTC ({duration(last - first).shown})."
    whole = "" if is_complete(record) else " The journal is incomplete: a part of it is missing."
    totals = _totals(plots)
    pairs: list[tuple[str, object]] = []
    events = (record.get("counts") or {}).get("events")
    if events is not None:
        pairs.append(("events read", f"{events:,}"))
    if judged is not None:
        pairs.append(("subscriptions", f"{len(judged.subscriptions):,}"))
        pairs.append(("violations", f"{sum(one.found for one in judged.guarantees):,}"))
    for word, column in (("messages owed", "published"), ("deliveries", "delivered"), ("acked", "acked")):
        if totals:
            pairs.append((word, f"{sum(values[column] for values in totals.values()):,.0f}"))
    mark = badge(judged.verdict) if judged else tag("span", "not audited", class_="badge not_promised")
    return join((tag("h1", "Delivery report ", mark), tag("p", when + whole), sections.figures(pairs)))


def _file(name: str) -> str:
    return resources.files("analytics.report_page").joinpath(name).read_text(encoding="utf-8")


def as_script_data(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin a comment."""
    shown = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        shown = shown.replace(character, f"\\u{ord(character):04x}")
    return shown


def _script(source: str) -> str:
    """A script as it may stand inside a script element."""
    # A browser turns CR LF into LF before it takes the hash. The others would change where the element ends.
    source = source.replace("\r\n", "\n")
    if "</script" in source.lower() or "<!--" in source:
        source = source.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return source


def _hash(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
