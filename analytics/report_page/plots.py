"""The plots: which lines, in which units.

A plot is a Plotly figure without colours and sizes, which page.js sets for the reader's scheme and screen.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from analytics.report_page.data import Tables
from analytics.report_page.names import Names
from analytics.report_page.series import (
    Grid,
    Histogram,
    Minutes,
    minutes_of,
    numbers,
    ratio,
)
from analytics.report_page.words import WORDS, Words

LINES_MAX = 20  # subscriptions in one plot
LINES_SHOWN = 5  # of them drawn at first; the others are a click away
BARS_MAX = 40

#: With eight colours, twenty lines differ in colour and dash.
COLOURS = 8
_DASHES = ("solid", "dash", "dot")

#: Settings of a Plotly axis.
Axis = Mapping[str, Any]
NO_AXIS: Axis = {}
_PER_CENT: dict[str, Any] = {"ticksuffix": " %"}

MILLISECONDS = "time (log scale)"  # such a plot is in milliseconds, its ticks in readable units
_TIMES = ((1_000.0, "s"), (1.0, "ms"), (0.001, "µs"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """One line: its label, its whole name, and a value per point; NaN where there is none."""

    label: str
    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Plot:
    """A plot as a Plotly figure, or None where there is nothing to draw; WORDS has its title and caption.

    `legend` has, per line, what the page shows and the whole name.
    """

    key: str
    figure: dict[str, Any] | None = None
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> Words:
        return WORDS[self.key]


def iso(minute: int) -> str:
    """A minute since the epoch as Plotly reads it, UTC."""
    return (_EPOCH + timedelta(minutes=minute)).strftime("%Y-%m-%d %H:%M")


def _rounded(values: np.ndarray) -> list[float | int | None]:
    """Values for JSON: seven digits are more than a plot can show, and whole numbers stay whole."""
    answer: list[float | int | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            answer.append(None)
        elif value == int(value) and abs(value) < 2**53:
            answer.append(int(value))
        else:
            answer.append(float(f"{value:.7g}"))
    return answer


def _mode(values: np.ndarray) -> str:
    """Points that have no neighbour would be invisible as a line."""
    known = np.isfinite(values)
    alone = known & ~np.roll(known, 1) & ~np.roll(known, -1)
    return "lines+markers" if known.sum() <= 60 or alone.sum() * 20 > known.sum() else "lines"


def _trace(line: Line, number: int, shown: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": _mode(line.values),
        # Plotly reads some HTML in names.
        "name": html.escape(line.label),
        "y": _rounded(line.values),
        "visible": True if shown else "legendonly",
        "line": {"width": 1.8, "dash": _DASHES[number // COLOURS % len(_DASHES)]},
        "marker": {"size": 4},
        "meta": {"colour": number % COLOURS},
    }


def _figure(lines: Sequence[Line], y_title: str, shown: int, axis: Axis) -> dict[str, Any]:
    data = [_trace(line, number, number < shown) for number, line in enumerate(lines)]
    y_axis = {"title": {"text": y_title}, "rangemode": "tozero", "hoverformat": ",.4~g", "fixedrange": True}
    y_axis |= axis
    return {"data": data, "layout": {"yaxis": y_axis, "hovermode": "x unified"}}


def _plot(key: str, figure: dict[str, Any], lines: Sequence[Line]) -> Plot:
    return Plot(key, figure, tuple((line.label, line.name) for line in lines))


def _log_axis(lines: Sequence[Line], units: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """A log axis of one decade at least, so that noise does not look like change; `units` label its ticks.

    A unit is how much of the axis' own unit it is, and its name; the largest that fits is used.
    """
    values = np.concatenate([line.values for line in lines])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = math.log10(values.min()) - 0.1, math.log10(values.max()) + 0.1
    spare = max(0.0, 1.2 - (high - low)) / 2
    low, high = low - spare, high + spare
    steps = (1,) if high - low > 2.5 else (1, 2, 5)
    ticks = [s * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for s in steps]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {
        "type": "log",
        "rangemode": "normal",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [_with_unit(tick, units) for tick in ticks],
    }


def _with_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, name = next((unit for unit in units if value >= unit[0]), units[-1])
    return f"{value / (size or 1):,g} {name}"


def over_time(
    key: str,
    lines: Iterable[Line],
    grid: Grid | None,
    y_title: str,
    axis: Axis = NO_AXIS,
    shown: int = LINES_SHOWN,
) -> Plot:
    """A plot of lines over time; a line that is zero all the time is left out unless `axis` has a range."""
    zero_too = "range" in axis
    chosen = [line for line in lines if np.any(np.isfinite(line.values) & (zero_too | (line.values > 0)))]
    if not chosen or grid is None:
        return Plot(key)
    if y_title == MILLISECONDS:
        axis = {**_log_axis(chosen, _TIMES), "ticksuffix": " ms"}
    figure = _figure(chosen, y_title, shown, axis)
    for trace in figure["data"]:
        trace |= {"x0": iso(grid.start), "dx": grid.step * 60_000}
    figure["layout"]["xaxis"] = {
        "type": "date",
        "title": {"text": "time (UTC)"},
        "range": [iso(grid.start), iso(grid.start + max(grid.points - 1, 1) * grid.step)],
        "hoverformat": "%Y-%m-%d %H:%M",
    }
    return _plot(key, figure, chosen)


def worst(values: Mapping[int, float], count: int = LINES_MAX) -> list[int]:
    """The subscriptions with the highest values, the highest first; without those that have none or zero."""
    some = {sub_id: value for sub_id, value in values.items() if value > 0}
    return sorted(some, key=lambda sub_id: (-some[sub_id], sub_id))[:count]


class Plots:
    """Makes the plots of a report from its tables; `grid` is None where no table has minutes."""

    def __init__(
        self, tables: Tables, names: Names, health: pa.Table | None, clients: pa.Table | None
    ) -> None:
        self.tables = tables
        self.names = names
        present = [table for table in (health, clients) if table is not None and len(table)]
        self.grid = _grid(present)
        self.health = Minutes(health, self.grid) if health is not None and len(health) and self.grid else None
        self.clients = clients if self.grid and clients is not None and len(clients) else None

    def _line(self, sub_id: int, values: np.ndarray) -> Line:
        return Line(self.names.short(sub_id), self.names.full(sub_id), values)

    # Traffic.

    def traffic(self) -> list[Plot]:
        health = self.health
        lines: list[Line] = []
        busiest: list[Line] = []
        if health is not None:
            words = {"published": "published", "delivered": "delivered", "acked": "acked"}
            words["redelivered"] = "redelivered"
            seconds = health.grid.seconds
            lines = [Line(word, word, health.total(column) / seconds) for column, word in words.items()]
            busy = worst(health.by_subscription("delivered"))
            busiest = [self._line(sub_id, health.of(sub_id, "delivered") / seconds) for sub_id in busy]
        return [
            over_time(
                "rates",
                lines,
                self.grid,
                "messages per second",
            ),
            over_time(
                "deliveries",
                busiest,
                self.grid,
                "deliveries per second",
            ),
        ]

    # Backlog.

    def backlog(self) -> list[Plot]:
        health = self.health
        backlogs, ages = [], []
        if health is not None:
            backlogs = self._states(health.values("backlog"))
            ages = self._states(health.ages())
        return [
            over_time(
                "backlog",
                backlogs,
                self.grid,
                "messages",
            ),
            over_time(
                "oldest-age",
                ages,
                self.grid,
                "age in seconds",
            ),
        ]

    def _states(self, values: np.ndarray) -> list[Line]:
        assert self.health is not None
        ids, place = np.unique(self.health.sub_id, return_inverse=True)
        peaks = np.full(len(ids), -np.inf)
        np.fmax.at(peaks, place, values)
        chosen = worst({int(sub_id): float(peak) for sub_id, peak in zip(ids, peaks, strict=True)})
        return [self._line(one, self.health.state(one, values)) for one in chosen]

    # Latency.

    def latency(self) -> list[Plot]:
        """Per kind of latency quantiles of all subscriptions, and where clients matter p99 of each."""
        overall: dict[int, dict[int, float]] = {}
        for row in self.tables.rows("latency_quantiles") or []:
            if row["p99"] is not None and row["sub_id"]:
                overall.setdefault(row["what"], {})[row["sub_id"]] = row["p99"]
        chosen = {what: worst(overall.get(what, {})) for what in (2, 5, 9)}
        merged, single = self._histograms(chosen)
        plots = []
        for what in (2, 5, 9, 1, 6):
            plots.append(self._quantiles(what, merged.get(what)))
            if what in chosen:
                plots.append(self._p99(what, chosen[what], single))
        return plots

    def _histograms(
        self, chosen: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, Histogram], dict[tuple[int, int], Histogram]]:
        """One pass over `latency`: a histogram per kind, and one per kind and chosen subscription."""
        merged: dict[int, Histogram] = {}
        single: dict[tuple[int, int], Histogram] = {}
        if self.grid is None:
            return merged, single
        for batch in self.tables.batches("latency", ("sub_id", "minute", "what", "bucket", "n")):
            minutes = minutes_of(batch["minute"])
            inside = (minutes >= self.grid.start) & (self.grid.slots(minutes) < self.grid.points)
            what, sub_id, bucket, n = (batch[name].to_numpy() for name in ("what", "sub_id", "bucket", "n"))
            for kind in np.unique(what).tolist():
                rows = inside & (what == kind)
                merged.setdefault(kind, Histogram(self.grid)).add(minutes[rows], bucket[rows], n[rows])
                for one in set(np.unique(sub_id[rows]).tolist()) & set(chosen.get(kind, ())):
                    its = rows & (sub_id == one)
                    histogram = single.setdefault((kind, one), Histogram(self.grid))
                    histogram.add(minutes[its], bucket[its], n[its])
        return merged, single

    def _quantiles(self, what: int, histogram: Histogram | None) -> Plot:
        labels = {"p50": "p50 (median)", "p90": "p90", "p99": "p99", "p99_9": "p99.9"}
        lines = []
        if histogram is not None:
            quantiles = histogram.quantiles(tuple(labels))
            lines = [Line(labels[key], labels[key], values / 1000) for key, values in quantiles.items()]
        return over_time(f"latency-{what}", lines, self.grid, MILLISECONDS)

    def _p99(self, what: int, chosen: Sequence[int], single: Mapping[tuple[int, int], Histogram]) -> Plot:
        lines = [
            self._line(one, single[what, one].quantiles(("p99",))["p99"] / 1000)
            for one in chosen
            if (what, one) in single
        ]
        return over_time(f"p99-{what}", lines, self.grid, MILLISECONDS)

    # Failures.

    def failures(self) -> list[Plot]:
        health = self.health
        reasons: list[Line] = []
        acks: list[Line] = []
        redelivered: list[Line] = []
        expired: list[Line] = []
        if health is not None:
            reasons = [
                Line(word, word, health.total(column) / health.grid.step) for column, word in _REASONS.items()
            ]
            whole = sum(
                (health.total(name) for name in ("acked", "ack_permanent", "ack_transient", "ack_noop")),
                np.zeros(health.grid.points),
            )
            acks = [
                Line(word, word, 100 * ratio(health.total(column), whole)) for column, word in _ACKS.items()
            ]
            redelivered = self._shares("redelivered", "delivered")
            expired = self._shares("expired", "delivered")
        return [
            over_time(
                "failures",
                reasons,
                self.grid,
                "events per minute",
                shown=len(_REASONS),
            ),
            over_time(
                "ack-failures",
                acks,
                self.grid,
                "share of acks",
                _PER_CENT,
            ),
            over_time(
                "redelivered",
                redelivered,
                self.grid,
                "share of deliveries",
                _PER_CENT,
            ),
            over_time(
                "expired",
                expired,
                self.grid,
                "share of deliveries",
                _PER_CENT,
            ),
        ]

    def _shares(self, part: str, whole: str) -> list[Line]:
        """part / whole in per cent, of those with most of `part`: shares of little say little."""
        assert self.health is not None
        return [
            self._line(one, 100 * ratio(self.health.of(one, part), self.health.of(one, whole)))
            for one in worst(self.health.by_subscription(part))
        ]

    # Clients.

    def fairness(self) -> list[Plot]:
        if self.clients is None or self.grid is None:
            return [Plot("clients"), Plot("fairness"), Plot("largest-share")]
        shares = Shares(self.clients, self.grid)
        many: dict[int, float] = {}
        unfair: dict[int, float] = {}
        greedy: dict[int, float] = {}
        for sub_id in shares.sub_ids:
            clients, jain, largest = shares.of(sub_id)
            many[sub_id] = clients.max()
            if np.isfinite(jain).any():
                # Perfectly fair ones are drawn too, if there are no others.
                unfair[sub_id] = 1.0001 - float(np.nanmin(jain))
                greedy[sub_id] = float(np.nanmax(largest))

        def lines(chosen: Sequence[int], which: int, factor: float = 1.0) -> list[Line]:
            return [self._line(one, factor * shares.of(one)[which]) for one in chosen]

        return [
            over_time(
                "clients",
                lines(worst(many), 0),
                self.grid,
                "clients",
            ),
            over_time(
                "fairness",
                lines(worst(unfair), 1),
                self.grid,
                "Jain's index (0 to 1)",
                {"range": [0, 1.05]},
            ),
            over_time(
                "largest-share",
                lines(worst(greedy), 2, 100.0),
                self.grid,
                "share of deliveries",
                {"range": [0, 105], **_PER_CENT},
            ),
        ]

    # Attempts and what leaves without an ack.

    def attempts(self, rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
        total: dict[int, int] = {}
        by_subscription: dict[int, dict[int, int]] = {}
        for row in rows:
            deliveries = min(row["deliveries"], BARS_MAX)
            total[deliveries] = total.get(deliveries, 0) + row["messages"]
            mine = by_subscription.setdefault(row["sub_id"], {})
            mine[deliveries] = mine.get(deliveries, 0) + row["messages"]
        again = {
            sub_id: sum(n for k, n in mine.items() if k > 1) / max(1, sum(n for k, n in mine.items() if k))
            for sub_id, mine in by_subscription.items()
        }
        return [_attempts_bars(total), self._attempts_lines(by_subscription, worst(again))]

    def _attempts_lines(self, rows: Mapping[int, Mapping[int, int]], chosen: Sequence[int]) -> Plot:
        longest = max((k for one in chosen for k in rows[one]), default=0)
        steps = np.arange(1, longest + 1)
        lines = []
        for one in chosen:
            delivered = sum(n for k, n in rows[one].items() if k)
            more = np.array([sum(n for k, n in rows[one].items() if k > step) for step in steps])
            lines.append(self._line(one, np.where(more > 0, 100 * more / max(delivered, 1), np.nan)))
        if not lines:
            return Plot("attempts-share")
        figure = _figure(
            lines, "share of messages (log scale)", LINES_SHOWN, _log_axis(lines, ((0.0, "%"),)) | _PER_CENT
        )
        for trace in figure["data"]:
            trace |= {"x": steps.tolist(), "mode": "lines+markers", "marker": {"size": 6}}
        figure["layout"]["xaxis"] = _whole_axis("more than so many deliveries", longest)
        return _plot("attempts-share", figure, lines)

    def dead_letters(self, rows: pa.Table | None) -> list[Plot]:
        health = self.health
        lines: list[Line] = []
        left: list[Line] = []
        if self.grid is not None and rows is not None and len(rows):
            dead = Minutes(rows, self.grid)
            lines = [
                self._line(one, dead.of(one, "n") / self.grid.step)
                for one in worst(dead.by_subscription("n"))
            ]
        if health is not None:
            words = {
                "dead_lettered": "dead letter topic",
                "dropped": "dropped (retention or detachment)",
                "filtered": "rejected by the filter",
            }
            left = [
                Line(word, word, health.total(column) / health.grid.step) for column, word in words.items()
            ]
        return [
            over_time(
                "dead-letters",
                lines,
                self.grid,
                "messages per minute",
            ),
            over_time(
                "left",
                left,
                self.grid,
                "messages per minute",
            ),
        ]


_REASONS = {
    "expired": "lease expired",
    "nacked": "nacked",
    "reset": "lease void",
    "ack_permanent": "ack: invalid id",
    "ack_transient": "ack: try again",
    "extend_failed": "deadline change refused",
}
_ACKS = {"ack_permanent": "invalid id", "ack_transient": "try again", "ack_noop": "already done"}


def _grid(present: Sequence[pa.Table]) -> Grid | None:
    if not present:
        return None
    spans = [(minutes.min(), minutes.max()) for minutes in (minutes_of(table["minute"]) for table in present)]
    return Grid.over(int(min(low for low, _ in spans)), int(max(high for _, high in spans)))


class Shares:
    """How the deliveries of each subscription were spread over its clients; exact for merged minutes."""

    def __init__(self, table: pa.Table, grid: Grid) -> None:
        self.grid = grid
        merged = (
            table.select(["sub_id", "client_id", "delivered"])
            .append_column("slot", pa.array(grid.slots(minutes_of(table["minute"]))))
            .group_by(["sub_id", "client_id", "slot"])
            .aggregate([("delivered", "sum")])
            .sort_by("sub_id")
        )
        served = numbers(merged["delivered_sum"]) > 0
        self._slots = numbers(merged["slot"]).astype(np.int64)[served]
        self._delivered = numbers(merged["delivered_sum"])[served]
        ids, starts = np.unique(numbers(merged["sub_id"]).astype(np.int64)[served], return_index=True)
        ends = np.append(starts[1:], len(self._slots))
        self._rows = {int(i): slice(int(a), int(b)) for i, a, b in zip(ids, starts, ends, strict=True)}

    @property
    def sub_ids(self) -> list[int]:
        return list(self._rows)

    def of(self, sub_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Per point: clients that got messages, Jain's index, and the largest share of one client.

        The latter two are NaN where there are not two clients at least.
        """
        rows, points = self._rows[sub_id], self.grid.points
        slots, delivered = self._slots[rows], self._delivered[rows]
        clients = np.bincount(slots, minlength=points).astype(float)
        total = np.bincount(slots, weights=delivered, minlength=points)
        squares = np.bincount(slots, weights=delivered**2, minlength=points)
        largest = np.zeros(points)
        np.maximum.at(largest, slots, delivered)
        several = clients >= 2
        return (
            clients,
            np.where(several, ratio(total**2, clients * squares), np.nan),
            np.where(several, ratio(largest, total), np.nan),
        )


def _whole_axis(title: str, longest: int) -> dict[str, Any]:
    return {
        "type": "linear",
        "title": {"text": title},
        "dtick": max(1, math.ceil(longest / 10)),
        "range": [0.5, longest + 0.5],
    }


def _attempts_bars(total: Mapping[int, int]) -> Plot:
    steps = sorted(step for step, messages in total.items() if step and messages)
    if not steps:
        return Plot("attempts")
    title = "deliveries of a message"
    if steps[-1] == BARS_MAX:
        title += f" ({BARS_MAX}: that many or more)"
    trace = {
        "type": "bar",
        "name": "messages",
        "x": steps,
        "y": [total[step] for step in steps],
        "meta": {"colour": 0},
    }
    layout = {
        "xaxis": _whole_axis(title, steps[-1]),
        "yaxis": {
            "title": {"text": "messages (log scale)"},
            "type": "log",
            "hoverformat": ",d",
            # A bar of a single message would have no height if the axis began at one.
            "range": [math.log10(0.5), math.log10(max(total.values()) * 2)],
            "dtick": 1,
        },
        "hovermode": "x",
    }
    return Plot("attempts", {"data": [trace], "layout": layout})
