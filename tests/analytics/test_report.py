"""The report's page as text: it needs no network, lets no name become code, and says what the tables say."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

for needed in ("numpy", "pyarrow", "plotly", "pyspark"):
    pytest.importorskip(needed, reason=f"needs pubsubd[analytics]: no {needed}")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from analytics import report
from analytics.errors import UsageError
from analytics.report_page.data import Tables as Reader
from analytics.report_page.names import Names
from analytics.report_page.plots import LINES_MAX, LINES_SHOWN, Plots, iso
from analytics.report_page.sections import EVIDENCE_MAX
from analytics.report_page.series import POINTS_MAX, Grid, Histogram, Minutes
from analytics.report_page.words import CODES_IN_WORDS, WORDS
from analytics.tables import CODES, MINUTE_COUNTS
from tests.analytics.report_tables import (
    MINUTE_US,
    NASTY,
    NASTY_CLIENT,
    NASTY_DETAIL,
    PREFIX,
    START_US,
    Tables,
    arrow_schema,
    quantiles,
    timestamp,
    write_table,
)

MINUTES = 320


class Page(HTMLParser):
    """A page taken apart as a browser would: elements, text, scripts, and tables by id."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self._open: list[str] = []
        self._table: str | None = None
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "script":
            self.scripts.append((given, ""))
        if tag == "table":
            self._table = given.get("id")
            if self._table:
                self.tables[self._table] = []
        if tag == "tr" and self._table:
            self.tables[self._table].append([])
        if tag in ("td", "th") and self._table:
            self.tables[self._table][-1].append(("", given.get("data-value")))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
            return
        if self._open and self._open[-1] == "style":
            return
        self.texts.append(data)
        if self._table and ("td" in self._open or "th" in self._open):
            text, value = self.tables[self._table][-1][-1]
            self.tables[self._table][-1][-1] = (text + data, value)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def plots(self) -> dict[str, Any]:
        (data,) = [
            script for attributes, script in self.scripts if attributes.get("type") == "application/json"
        ]
        return {plot["key"]: plot for plot in json.loads(data)["plots"]}

    def line(self, key: str, label: str) -> list[float | None]:
        """The values of a line, by its label in the legend or by its whole name."""
        plot = self.plots[key]
        (number,) = [n for n, (shown, name) in enumerate(plot["legend"]) if label in (shown, name)]
        values: list[float | None] = plot["figure"]["data"][number]["y"]
        return values


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(minutes=MINUTES)


@pytest.fixture(scope="module")
def out(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tables.write(tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def source(out: Path) -> str:
    return report.build(str(out), datetime(2026, 11, 18, 20, 0, tzinfo=UTC))


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def small() -> Tables:
    """Enough of everything, and quick to write."""
    return Tables(minutes=6, subscriptions=5)


def is_near(found: list[float | None], expected: list[float | None]) -> bool:
    """Equal up to the seven digits with which values are written."""
    return len(found) == len(expected) and all(
        (a is None and b is None) or (a is not None and b is not None and math.isclose(a, b, rel_tol=5e-7))
        for a, b in zip(found, expected, strict=True)
    )


# One file without network access.


def test_nothing_on_the_page_is_fetched_from_anywhere(page: Page):
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, value)
    css = re.search(r"<style>(.*?)</style>", page.source, re.S)
    assert css and "url(" not in css[1] and "@import" not in css[1]


def test_a_policy_forbids_all_but_the_two_scripts_of_the_page(page: Page):
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert "connect-src" not in rules
    code = [script for attributes, script in page.scripts if attributes.get("type") != "application/json"]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in code]
    assert rules["script-src"] == [f"'sha256-{digest}'" for digest in digests]


def test_plotly_is_embedded_exactly_once(source: str, page: Page):
    assert source.count(get_plotlyjs()[5_000:6_000]) == 1
    assert len(re.findall(r"\* plotly\.js v\d", source)) == 1
    assert len(page.scripts) == 3


# Names stay names.


def test_no_text_of_a_table_becomes_an_element_or_an_attribute(page: Page):
    assert not [tag for tag, _ in page.elements if tag in ("img", "i", "iframe", "object")]
    emphasised = {"Not promised", "Not checked", "Incomplete"}
    assert emphasised <= set(page.texts)
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("name", NASTY[:3])
def test_hostile_names_are_shown_letter_by_letter(page: Page, name: str):
    shown = [row[0][0] for row in page.tables["subscription-table"]]
    assert name in shown
    assert name in [full.removeprefix(PREFIX) for plot in page.plots.values() for _, full in plot["legend"]]


def test_hostile_clients_and_details_are_shown_letter_by_letter(page: Page):
    assert NASTY_CLIENT in page.text
    assert NASTY_DETAIL in page.text
    assert "/data/<journal>" in page.text


def test_names_in_plots_are_escaped_for_plotly_which_reads_html(page: Page):
    for plot in page.plots.values():
        for trace in plot["figure"]["data"]:
            assert "<" not in trace["name"]


def test_data_inside_the_script_element_cannot_end_it():
    hostile = "</script><!--<script>&\u2028\u2029 ]]>"
    shown = report.as_script_data({"name": hostile})
    assert not set("<>&\u2028\u2029") & set(shown)
    assert json.loads(shown) == {"name": hostile}


# The numbers are those of the tables.


def test_the_table_of_subscriptions_says_what_the_tables_say(page: Page, tables: Tables):
    header, *rows = page.tables["subscription-table"]
    columns = [text.strip() for text, _ in header]
    by_label = {dict(zip(columns, row, strict=True))["subscription"][1]: row for row in rows}
    assert len(by_label) == len(tables.names)
    p99 = {(row["sub_id"], row["what"]): row["p99"] for row in tables.rows["latency_quantiles"]}
    for audit in tables.rows["audit_summary"]:
        row = dict(zip(columns, by_label[audit["subscription"].removeprefix(PREFIX)], strict=True))
        mine = [one for one in tables.rows["health_minute"] if one["sub_id"] == audit["sub_id"]]
        total = {name: sum(one[name] for one in mine) for name in MINUTE_COUNTS}
        expected = {
            "messages": audit["messages"],
            "deliveries": audit["deliveries"],
            "acked": audit["acks_ok"],
            "open": audit["open"],
            "dead-lettered": audit["dead_lettered"],
            "dropped": audit["dropped"],
            "filtered": audit["filtered"],
            "redelivered": 100 * total["redelivered"] / audit["deliveries"],
            "expired": 100 * total["expired"] / audit["deliveries"],
            "p99 to delivery": p99[audit["sub_id"], 2],
            "p99 to ack": p99[audit["sub_id"], 5],
        }
        for column, value in expected.items():
            assert float(row[column][1] or "nan") == pytest.approx(value), column
        assert row["messages"][0] == f"{audit['messages']:,}"
        assert row["verdict"][0] == audit["verdict"].replace("_", " ")
        assert row["exactly-once"][0] == ("yes" if audit["exactly_once"] else "no")


def test_every_guarantee_has_its_verdict_and_its_count(page: Page):
    cards = {
        attributes["data-guarantee"]: (attributes["data-verdict"], attributes["data-found"])
        for tag, attributes in page.elements
        if tag == "li" and "data-guarantee" in attributes
    }
    assert cards == {
        "G0": ("ok", "0"),
        "G1": ("violated", "24"),
        "G2": ("ok", "0"),
        "G3": ("ok", "0"),
        "G4": ("violated", "4"),
        "G5": ("ok", "0"),
    }


def test_rates_are_the_sums_of_all_subscriptions_divided_by_the_seconds_of_a_minute(
    page: Page, tables: Tables
):
    for word in ("published", "delivered", "acked", "redelivered"):
        sums = Counter[int]()
        for row in tables.rows["health_minute"]:
            sums[(row["minute"] - START_US) // MINUTE_US] += row[word]
        assert is_near(page.line("rates", word), [sums[minute] / 60 for minute in range(MINUTES)])


def test_failures_are_counted_by_reason(page: Page, tables: Tables):
    words = {"expired": "lease expired", "ack_permanent": "ack: invalid id", "nacked": "nacked"}
    for column, word in words.items():
        sums = Counter[int]()
        for row in tables.rows["health_minute"]:
            sums[(row["minute"] - START_US) // MINUTE_US] += row[column]
        assert is_near(page.line("failures", word), [float(sums[minute]) for minute in range(MINUTES)])


def test_a_subscriptions_backlog_and_age_are_those_of_each_minute(page: Page, tables: Tables):
    mine = [row for row in tables.rows["health_minute"] if row["sub_id"] == 1]
    assert is_near(page.line("backlog", NASTY[0]), [row["backlog"] for row in mine])
    assert is_near(page.line("oldest-age", NASTY[0]), [row["oldest_age_s"] for row in mine])


def test_quantiles_are_taken_from_the_histograms_of_all_subscriptions_together(page: Page, tables: Tables):
    for what in (1, 2, 5, 6, 9):
        buckets: dict[int, Counter[int]] = defaultdict(Counter)
        for row in tables.rows["latency"]:
            if row["what"] == what:
                buckets[(row["minute"] - START_US) // MINUTE_US][row["bucket"]] += row["n"]
        by_minute = [quantiles(buckets[minute]) for minute in range(MINUTES)]
        for key, label in (("p50", "p50 (median)"), ("p99", "p99"), ("p99_9", "p99.9")):
            expected = [one[key] / 1000 for one in by_minute]
            assert is_near(page.line(f"latency-{what}", label), expected), (what, key)


def test_a_subscriptions_p99_is_taken_from_its_own_histograms(page: Page, tables: Tables):
    buckets: dict[int, Counter[int]] = defaultdict(Counter)
    for row in tables.rows["latency"]:
        if row["what"] == 5 and row["sub_id"] == 1:
            buckets[(row["minute"] - START_US) // MINUTE_US][row["bucket"]] += row["n"]
    expected = [quantiles(buckets[minute])["p99"] / 1000 for minute in range(MINUTES)]
    assert is_near(page.line("p99-5", NASTY[0]), expected)


def test_fairness_is_that_of_the_table_where_minutes_are_not_merged(page: Page, tables: Tables):
    plot = page.plots["fairness"]
    labels = {name: label for label, name in plot["legend"]}
    checked = 0
    for sub_id, name in enumerate(tables.names, 1):
        if name in labels:
            of = {row["minute"]: row for row in tables.rows["fairness"] if row["sub_id"] == sub_id}
            times = [timestamp(minute) for minute in range(MINUTES)]
            jain = [of[time]["jain"] if time in of and of[time]["clients"] > 1 else None for time in times]
            assert is_near(page.line("fairness", labels[name]), jain)
            checked += 1
    assert checked == LINES_MAX


def test_attempts_are_added_up_over_subscriptions(page: Page, tables: Tables):
    sums = Counter[int]()
    for row in tables.rows["attempts"]:
        sums[row["deliveries"]] += row["messages"]
    (bars,) = page.plots["attempts"]["figure"]["data"]
    assert dict(zip(bars["x"], bars["y"], strict=True)) == {step: n for step, n in sums.items() if n}


def test_attempts_of_a_subscription_are_the_share_that_needed_more(page: Page, tables: Tables):
    rows = [row for row in tables.rows["attempts"] if row["sub_id"] == 3]
    whole = sum(row["messages"] for row in rows)
    more = [sum(row["messages"] for row in rows if row["deliveries"] > step) for step in range(1, 9)]
    expected = [100 * one / whole if one else None for one in more]
    assert is_near(page.line("attempts-share", PREFIX + NASTY[2]), expected)


def test_topics_have_their_names_where_the_record_tells_them(tmp_path: Path):
    made, prefix = small(), "projects/p/topics/"
    buried = {
        "sub_id": 1,
        "topic_id": 90,
        "minute": timestamp(1),
        "n": 2,
        "attempts_p50": 5.0,
        "age_p50_s": 1.0,
    }
    made.rows["dead_letter"] = [buried]
    made.run["topics"] = {"90": f"{prefix}<graves>", "3": f"{prefix}orders"}
    named = report.build(str(made.write(tmp_path)))
    assert "&lt;graves&gt;" in named and f'title="{prefix}orders"' in named
    assert "topic number" not in named

    del made.run["topics"]
    nameless = report.build(str(made.write(tmp_path)))
    assert "topic number 90" in nameless and "topic number 3" in nameless


def test_dead_letters_are_counted_per_minute(page: Page, tables: Tables):
    rows = {row["minute"]: row["n"] for row in tables.rows["dead_letter"] if row["sub_id"] == 1}
    expected: list[float | None] = [float(rows.get(timestamp(minute), 0)) for minute in range(MINUTES)]
    assert is_near(page.line("dead-letters", NASTY[0]), expected)


def test_the_clients_table_adds_up_the_minutes(page: Page, tables: Tables):
    header, *rows = page.tables["client-table"]
    columns = [text.strip() for text, _ in header]
    found = {
        (row[columns.index("subscription")][1], row[columns.index("client")][0]): row[
            columns.index("delivered")
        ][1]
        for row in rows
    }
    sums = Counter[tuple[str, str]]()
    for row in tables.rows["client_minute"]:
        sums[tables.name(row["sub_id"]).removeprefix(PREFIX), row["client"]] += row["delivered"]
    assert {key: int(value or 0) for key, value in found.items()} == dict(sums)


def test_advice_shows_the_setting_the_numbers_and_the_reason(page: Page, tables: Tables):
    header, *rows = page.tables["advice-table"]
    columns = [text.strip() for text, _ in header]
    assert len(rows) == len(tables.rows["advice"])
    shown = {row[0][1]: {column: cell for column, cell in zip(columns, row, strict=True)} for row in rows}
    for advice in tables.rows["advice"]:
        row = shown[advice["subscription"].removeprefix(PREFIX)]
        assert row["setting"][0] == advice["setting"]
        assert float(row["now"][1] or 0) == advice["current"]
        assert float(row["recommended"][1] or 0) == advice["recommended"]
        assert row["reason"][0] == advice["reason"]
        assert "processing p99 s: 14.2" in row["measured"][0]


def test_each_code_that_was_found_is_counted_and_explained(page: Page):
    _, *rows = page.tables["code-table"]
    assert {row[0][0]: int(row[2][1] or 0) for row in rows} == {
        "G1_delivered_after_ack": 24,
        "G2_early_redelivery": 4,
        "G3_repeat_accepted": 2,
        "G4_lost": 4,
    }
    assert all(row[1][0] == CODES_IN_WORDS[row[0][0]] for row in rows)


def test_violations_come_with_the_events_of_their_message(page: Page, tables: Tables):
    shown = {
        int(attributes["data-violation"] or 0)
        for tag, attributes in page.elements
        if tag == "details" and "data-violation" in attributes
    }
    by_code: dict[str, list[int]] = defaultdict(list)
    for row in tables.rows["violations"]:
        by_code[row["code"]].append(row["violation_id"])
    assert shown == {one for its in by_code.values() for one in its[:EVIDENCE_MAX]}
    assert page.text.count("\N{NO-BREAK SPACE}←") == len(shown)
    assert page.text.count("DELIVER of generation 2") == len(shown)
    assert f"Shown are {EVIDENCE_MAX} of 24" in page.text


# Bounds.


def test_no_line_has_more_than_2000_points_and_no_plot_more_than_20_subscriptions(page: Page):
    for key, plot in page.plots.items():
        lines = plot["figure"]["data"]
        assert len(lines) <= LINES_MAX, key
        for line in lines:
            assert len(line["y"]) <= POINTS_MAX
        drawn = [line for line in lines if line.get("visible", True) is True]
        assert 0 < len(drawn) <= max(LINES_SHOWN, 6), key
    assert len(page.plots["deliveries"]["figure"]["data"]) == LINES_MAX


def test_the_subscriptions_in_a_plot_are_the_worst(page: Page, tables: Tables):
    sums = Counter[str]()
    for row in tables.rows["health_minute"]:
        sums[row["subscription"]] += row["redelivered"]
    expected = [name for name, _ in sums.most_common(LINES_MAX)]
    assert {name for _, name in page.plots["redelivered"]["legend"]} == set(expected)
    assert page.plots["redelivered"]["legend"][0][1] == expected[0]


def health_rows(minutes: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(5)
    rows = []
    for sub_id in (1, 2):
        for minute in range(minutes):
            counts = {name: int(random.integers(0, 100)) for name in MINUTE_COUNTS}
            row = {"sub_id": sub_id, "subscription": f"{PREFIX}s{sub_id}", "minute": timestamp(minute)}
            row |= counts | {"clients": 1, "backlog": int(random.integers(0, 9999)), "oldest_age_s": 1.5}
            rows.append(row)
    return rows


def test_merged_minutes_lose_nothing(tmp_path: Path):
    minutes = 3 * POINTS_MAX + 100
    rows = health_rows(minutes)
    latency = [
        {"sub_id": 1, "minute": timestamp(minute), "what": 5, "bucket": minute * 7 % 900, "n": 1 + minute % 3}
        for minute in range(minutes)
    ]
    write_table(tmp_path, "health_minute", rows)
    write_table(tmp_path, "latency", latency)
    page = Page(report.build(str(tmp_path)))
    published = page.line("rates", "published")
    assert len(published) <= POINTS_MAX
    trace = page.plots["rates"]["figure"]["data"][0]
    step = trace["dx"] // 60_000
    assert step == 5
    total = sum(value * 60 * step for value in published if value)
    assert total == pytest.approx(sum(row["published"] for row in rows), rel=1e-6)

    first = (START_US // MINUTE_US) // step * step
    highest: dict[int, int] = {}
    for row in rows:
        if row["sub_id"] == 1:
            slot = (row["minute"] // MINUTE_US - first) // step
            highest[slot] = max(highest.get(slot, 0), row["backlog"])
    assert page.line("backlog", "s1") == [highest[slot] for slot in range(len(published))]

    buckets: dict[int, Counter[int]] = defaultdict(Counter)
    for one in latency:
        buckets[(one["minute"] // MINUTE_US - first) // step][one["bucket"]] += one["n"]
    expected = [quantiles(buckets[slot])["p99"] / 1000 for slot in range(len(published))]
    assert is_near(page.line("latency-5", "p99"), expected)
    assert "merge 5 minutes into a point" in page.text


@given(st.integers(0, 40_000_000), st.integers(0, 3_000_000), st.integers(1, 2_000))
def test_a_grid_covers_the_range_with_no_more_points_than_allowed(first: int, length: int, points_max: int):
    grid = Grid.over(first, first + length, points_max)
    assert 1 <= grid.points <= points_max
    assert grid.start <= first < grid.start + grid.step
    slots = grid.slots(np.array([first, first + length]))
    assert slots[0] == 0 and slots[1] == grid.points - 1


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=60),
    st.integers(1, 7),
)
def test_quantiles_of_merged_histograms_are_those_of_all_their_values(
    rows: list[tuple[int, int, int]], step: int
):
    grid = Grid(0, step, 40 // step + 1)
    histogram = Histogram(grid)
    values: dict[int, Counter[int]] = defaultdict(Counter)
    for minute, bucket, n in rows:
        histogram.add(np.array([minute]), np.array([bucket]), np.array([n]))
        values[minute // step][bucket] += n
    found = histogram.quantiles()
    for slot in range(grid.points):
        if slot not in values:
            assert math.isnan(found["p50"][slot])
            continue
        expected = quantiles(values[slot])
        assert {name: pytest.approx(found[name][slot]) for name in expected} == expected


def minutes_table(rows: list[tuple[int, int, int | None, float | None]]) -> pa.Table:
    return pa.table(
        {
            "sub_id": [row[0] for row in rows],
            "minute": pa.array([row[1] * MINUTE_US for row in rows], pa.timestamp("us")),
            "backlog": pa.array([row[2] for row in rows], pa.int64()),
            "oldest_age_s": pa.array([row[3] for row in rows], pa.float64()),
        }
    )


def test_a_minute_without_a_row_keeps_the_backlog_of_the_minute_before():
    minutes = Minutes(minutes_table([(1, 12, 5, 1.0), (1, 14, 0, None), (2, 17, 1, 1.0)]), Grid(10, 1, 9))
    state = minutes.state(1, minutes.values("backlog"))
    assert state.tolist()[2:8] == [5, 5, 0, 0, 0, 0]
    assert np.isnan(state[[0, 1, 8]]).all()


def test_an_unknown_backlog_stays_unknown_and_no_backlog_has_no_age():
    minutes = Minutes(minutes_table([(1, 10, None, None), (1, 11, 0, None), (1, 12, 4, 9.0)]), Grid(10, 1, 3))
    assert np.isnan(minutes.state(1, minutes.values("backlog"))[0])
    ages = minutes.state(1, minutes.ages())
    assert np.isnan(ages[0]) and ages.tolist()[1:] == [0.0, 9.0]


# What is not there.


@pytest.mark.parametrize("name", report.READ)
def test_a_missing_table_is_a_sentence_and_no_crash(tmp_path: Path, name: str):
    small().write(tmp_path, without=(name,))
    page = Page(report.build(str(tmp_path)))
    if name != "latency_quantiles":  # which only orders what other tables say
        assert f"The output folder has no table {name}" in page.text
    for key in ("verdict", "subscriptions", "traffic", "latency", "violations", "advice", "provenance"):
        assert [1 for tag, attributes in page.elements if tag == "h2" and attributes.get("id") == key]


@pytest.mark.parametrize("name", report.READ)
def test_any_table_alone_is_enough_for_a_page(tmp_path: Path, name: str):
    small().write(tmp_path, without=tuple(one for one in report.READ if one != name))
    (tmp_path / "_RUN.json").unlink()
    page = Page(report.build(str(tmp_path)))
    assert "Delivery report" in page.text
    assert "_RUN.json" in page.text


def test_tables_without_rows_are_sentences_too(tmp_path: Path):
    for name in report.READ:
        write_table(tmp_path, name, [])
    page = Page(report.build(str(tmp_path)))
    assert page.plots == {}
    for words in WORDS.values():
        if words.title.startswith(("Messages per", "Backlog", "Failures")):
            assert words.empty in page.text
    assert "Nothing was found that breaks a rule." in page.text


def test_a_folder_without_tables_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="none of the tables"):
        report.write(str(tmp_path))
    with pytest.raises(UsageError, match="no output folder"):
        report.write(str(tmp_path / "missing"))
    assert not list(tmp_path.iterdir())


def test_a_damaged_table_is_named(tmp_path: Path):
    small().write(tmp_path)
    for part in (tmp_path / "health_minute").glob("*.parquet"):
        part.write_bytes(b"PAR1 but not really")
    with pytest.raises(UsageError, match="health_minute"):
        report.write(str(tmp_path))


def test_files_that_are_no_part_of_a_table_are_not_read(tmp_path: Path):
    small().write(tmp_path)
    before = report.build(str(tmp_path), datetime(2026, 1, 1, tzinfo=UTC))
    (tmp_path / "advice" / "_temporary").mkdir()
    (tmp_path / "advice" / "_temporary" / "part-0.parquet").write_bytes(b"half")
    (tmp_path / "advice" / ".hidden.parquet").write_bytes(b"half")
    assert report.build(str(tmp_path), datetime(2026, 1, 1, tzinfo=UTC)) == before


def test_null_values_in_a_row_are_shown_as_unknown(tmp_path: Path):
    tables = small()
    for name in (
        "advice",
        "audit_summary",
        "client_minute",
        "latency_quantiles",
        "violations",
        "dead_letter",
    ):
        keep = {"sub_id", "minute", "code", "verdict", "violation_id", "client_id", "what", "setting", "n"}
        keep |= {"delivered", "acked", "nacked", "expired", "processing_sum_us", "severity", "seq"}
        tables.rows[name] = [
            {key: value if key in keep else None for key, value in row.items()} for row in tables.rows[name]
        ]
    assert "Delivery report" in Page(report.build(str(tables.write(tmp_path)))).text


# Writing it, and where it comes from.


def test_the_file_is_whole_and_nothing_is_left_beside_it(tmp_path: Path):
    small().write(tmp_path)
    (tmp_path / "report.html").write_text("older", encoding="utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    path = report.write(str(tmp_path))
    assert Path(path) == tmp_path / "report.html"
    assert {one.name for one in tmp_path.iterdir()} == before
    assert Path(path).read_text(encoding="utf-8").endswith("</html>\n")


def test_a_uri_is_a_folder_too(tmp_path: Path):
    small().write(tmp_path)
    report.write(f"file://{tmp_path}")
    assert (tmp_path / "report.html").exists()


def test_the_provenance_shows_the_range_the_versions_and_the_run_time(page: Page, tables: Tables):
    for expected in (
        "1 to 9,876,543",
        "2026-11-18 11:06:00.000000 UTC",
        "00c0ffee00c0ffee",
        "pyspark 4.3.0",
        "(1.2 min)",
        "inside the journal",
        "spark.master local[2]",
        "facts 31.25, audit 40.5",
        "tolerance_us 0",
        "audit_summary",
    ):
        assert expected in page.text
    assert iso(START_US // MINUTE_US) == "2026-11-18 11:06"


def test_an_incomplete_journal_is_said_at_the_top_and_in_every_guarantee(tmp_path: Path):
    tables = small()
    tables.run |= {"complete": False, "missing": [[17, 30]]}
    for row in tables.rows["audit_summary"]:
        if row["verdict"] != "violated":
            row["verdict"] = "incomplete"
    page = Page(report.build(str(tables.write(tmp_path))))
    assert "The journal is incomplete" in page.text
    assert "17 to 30" in page.text
    verdicts = {attributes.get("data-verdict") for tag, attributes in page.elements if tag == "li"}
    assert verdicts == {None, "violated", "incomplete"}


def test_a_name_that_was_created_again_is_two_subscriptions():
    names = Names({1: PREFIX + "a", 2: PREFIX + "a", 3: PREFIX + "b"})
    assert [names.label(sub_id) for sub_id in (1, 2, 3, 4)] == ["a #1", "a #2", "b", "subscription number 4"]


# For people.


def test_every_plot_has_a_title_units_and_a_caption_that_says_what_good_is(page: Page, tables: Tables):
    assert set(page.plots) == set(WORDS)
    for key, plot in page.plots.items():
        layout = plot["figure"]["layout"]
        assert layout["xaxis"]["title"]["text"] and layout["yaxis"]["title"]["text"]
        assert "Good: " in WORDS[key].caption
        assert WORDS[key].caption in page.text and WORDS[key].title in page.text


def test_every_code_is_explained():
    assert set(CODES_IN_WORDS) == set(CODES)


def test_plotly_accepts_every_figure(page: Page):
    from plotly import graph_objects

    for plot in page.plots.values():
        graph_objects.Figure(plot["figure"])


def test_log_axes_label_their_ticks_with_a_unit(page: Page):
    axis = page.plots["latency-5"]["figure"]["layout"]["yaxis"]
    assert {"100 ms", "1 s"} <= set(axis["ticktext"])
    low, high = axis["range"]
    values = [value for line in page.plots["latency-5"]["figure"]["data"] for value in line["y"] if value]
    assert 10**low < min(values) and max(values) < 10**high


def test_values_that_stand_alone_are_drawn_as_points(tmp_path: Path):
    rows = [row | {"acked": 0} for row in health_rows(200)]
    for row in rows[::40]:
        row["acked"] = 5
    latency = [
        {"sub_id": 1, "minute": timestamp(minute), "what": 5, "bucket": 500, "n": 1}
        for minute in range(0, 200, 40)
    ]
    write_table(tmp_path, "health_minute", rows)
    write_table(tmp_path, "latency", latency)
    page = Page(report.build(str(tmp_path)))
    assert page.plots["latency-5"]["figure"]["data"][0]["mode"] == "lines+markers"
    assert page.plots["rates"]["figure"]["data"][0]["mode"] == "lines"


# Colours.


def schemes() -> dict[str, dict[str, str]]:
    css = (Path(report.__file__).parent / "report_page" / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    return {"light": light, "dark": light | dark}


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The ratio of luminances as WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(scheme: str):
    colours = schemes()[scheme]
    pairs = [(text, back) for text in ("text", "muted", "link") for back in ("page", "panel")] + [
        (name, f"{name}-back") for name in ("good", "bad", "doubt", "quiet")
    ]
    for text, back in pairs:
        assert contrast(colours[text], colours[back]) >= 4.5, (text, back)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_stand_out_from_the_page(scheme: str):
    colours = schemes()[scheme]
    for number in range(8):
        assert contrast(colours[f"line-{number}"], colours["page"]) >= 3, number


# How colours look to people who lack one kind of cone: matrices on linear RGB (Machado and others, 2009).
EYES = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE Lab of linear RGB: distances in it are about what eyes see."""
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ rgb / np.array([0.9505, 1, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_lines_can_be_told_apart_by_colour_blind_people(scheme: str, eyes: str):
    colours = schemes()[scheme]
    seen = [lab(np.clip(EYES[eyes] @ linear(colours[f"line-{number}"]), 0, 1)) for number in range(8)]
    nearest = min(float(np.linalg.norm(one - other)) for at, one in enumerate(seen) for other in seen[:at])
    assert nearest >= 20


def test_lines_of_the_same_colour_differ_in_their_dashes(page: Page):
    for plot in page.plots.values():
        looks = [
            (line["meta"]["colour"], line.get("line", {}).get("dash")) for line in plot["figure"]["data"]
        ]
        assert len(set(looks)) == len(looks)


def test_the_fixture_follows_the_schemas():
    for name, rows in small().rows.items():
        if rows:
            assert set(rows[0]) == set(arrow_schema(name).names), name


def test_plots_can_be_made_without_any_table(tmp_path: Path):
    (tmp_path / "advice").mkdir()
    plots = Plots(Reader(str(tmp_path)), Names({}), None, None)
    made = [*plots.traffic(), *plots.backlog(), *plots.latency(), *plots.failures(), *plots.fairness()]
    made += [*plots.attempts([]), *plots.dead_letters(None)]
    assert [plot.key for plot in made] == list(WORDS)
    assert all(plot.figure is None for plot in made)


@pytest.mark.parametrize("reachable", [True, False], ids=["of this machine", "that only Spark reaches"])
def test_a_run_leaves_its_report_in_a_folder(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: bool
):
    from analytics import paths
    from analytics.output import Output
    from analytics.progress import Progress
    from analytics.run import Run

    small().write(tmp_path)
    out = Output(spark, str(tmp_path))
    expected = Page(report.build(str(tmp_path))).plots
    if not reachable:
        local = paths.local
        monkeypatch.setattr(paths, "local", lambda path: None if path == out.path else local(path))
    report.run(Run(spark, None, None, out, progress=Progress()))  # type: ignore[arg-type]  # unused
    written = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert written.plots == expected
    assert "00c0ffee00c0ffee" in written.text
