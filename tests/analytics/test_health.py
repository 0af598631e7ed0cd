"""Health of a small journal, one subscription for each scenario, against a plain count over its events."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra pubsubd[analytics]")

from analytics import health, histogram
from analytics.dimensions import Dimensions
from analytics.journal import load_journal
from analytics.layout import Kind, Result
from analytics.output import Output
from analytics.run import Options, prepare, write_facts
from analytics.tables import MINUTE_COUNTS
from tests.analytics.generator.builder import Builder

#: The first test waits for the one run.
pytestmark = pytest.mark.timeout(300)

MINUTE_US = 60_000_000

# -- the journal ------------------------------------------------------------------------------------------


def scenarios() -> Builder:
    b = Builder()
    for build in (
        _answers, _quiet, _born_late, _sought, _seek_to_now, _dropped, _snapshot, _dead_letters, _uneven,
        _filtered, _twice,
    ):  # fmt: skip  # short items, many to a line
        b.begin()
        build(b)
    return b


def _answers(b: Builder) -> None:
    """Every kind of answer, and redelivery."""
    s = b.subscription("answers", exactly_once=False)
    topic = b.topic_of(s)
    messages = [b.publish(topic, at=5 * n) for n in range(1, 7)]
    for n, m in enumerate(messages):
        b.deliver(s, m, at=31 + n)
    b.extend(s, messages[0], at=38)
    b.extend(s, messages[1], at=38, result=Result.PERMANENT)
    b.ack(s, messages[0], at=39)
    b.ack(s, messages[0], at=39, result=Result.NOOP)
    b.nack(s, messages[1], at=40)
    b.expire(s, messages[2])
    b.reset(s, messages[3], at=44)
    b.deliver(s, messages[1], at=59)
    b.deliver(s, messages[2], at=61)
    b.deliver(s, messages[3], at=62)
    b.ack(s, messages[1], at=63)
    b.ack(s, messages[2], at=64, result=Result.TRANSIENT)
    b.ack(s, messages[2], at=65)
    b.ack(s, messages[3], at=66, generation=1, result=Result.PERMANENT)
    b.add(Kind.ACK, 67, topic_id=topic, sub_id=s, result=Result.PERMANENT)
    b.drop(s, messages[4], at=68)
    b.extend(s, messages[3], at=68, result=Result.TRANSIENT)
    b.nack(s, messages[5], at=69, result=Result.PERMANENT)


def _quiet(b: Builder) -> None:
    """Minutes in which nothing happens, while a message waits that was never delivered."""
    s = b.subscription("quiet")
    first = b.publish(b.topic_of(s), at=10)
    b.publish(b.topic_of(s), at=20)
    b.deliver(s, first, at=21)
    b.ack(s, first, at=5 * 60)


def _born_late(b: Builder) -> None:
    """Created and deleted within minutes in which its topic is busy."""
    topic = b.topic("busy")
    early = b.subscription("born early", topic=topic)
    b.publish(topic, at=1)
    late = b.subscription("born late", topic=topic, at=2)
    second = b.publish(topic, at=2)
    b.publish(topic, at=61)
    b.delete(late, at=62)
    b.publish(topic, at=63)
    b.deliver(early, second, at=64)
    b.ack(early, second, at=65)


def _sought(b: Builder) -> None:
    """Back to where kept messages come back, then on past a message that was never delivered."""
    s = b.subscription("sought", retain_acked=True)
    messages = [b.publish(b.topic_of(s), at=30 * n) for n in range(1, 7)]
    for n, m in enumerate(messages[:5]):
        b.deliver(s, m, at=200 + n)
        b.ack(s, m, at=205 + n)
    b.seek(s, to=60, at=270, kept_from=75)
    b.deliver(s, messages[2], at=290)
    b.ack(s, messages[2], at=291)
    b.publish(b.topic_of(s), at=292)
    b.seek(s, to=160, at=400)
    b.publish(b.topic_of(s), at=401)


def _seek_to_now(b: Builder) -> None:
    """To the end of all, which empties it; the leased message is acknowledged too."""
    s = b.subscription("seek to now")
    messages = [b.publish(b.topic_of(s), at=n) for n in (1, 2, 3)]
    b.deliver(s, messages[0], at=4, lease_s=300)
    b.seek(s, to=1000, at=130)
    b.ack(s, messages[0], at=131)
    b.publish(b.topic_of(s), at=190)


def _dropped(b: Builder) -> None:
    """Retention takes what is old, but not what is leased at that moment, also across a seek."""
    s = b.subscription("dropped", retain_acked=True)
    messages = [b.publish(b.topic_of(s), at=n) for n in (1, 2, 3)]
    b.deliver(s, messages[1], at=61, lease_s=600)
    b.seek(s, to=0, at=62)
    b.bulk_drop(s, before=50, at=125)
    b.ack(s, messages[1], at=190)


def _snapshot(b: Builder) -> None:
    """What a snapshot holds only the snapshot knows."""
    s = b.subscription("snapshot")
    b.publish(b.topic_of(s), at=1)
    snapshot = b.snapshot(s, "then", at=2)
    b.seek_snapshot(s, snapshot, at=65)
    b.publish(b.topic_of(s), at=66)


def _dead_letters(b: Builder) -> None:
    graveyard = b.topic("graveyard")
    s = b.subscription("dead letters", dead_letter=(graveyard, 5))
    for n, attempts in enumerate((2, 1, 3)):
        m = b.publish(b.topic_of(s), at=10 * n)
        for attempt in range(attempts):
            b.deliver(s, m, at=10 * n + attempt + 1)
            b.nack(s, m)
        b.deadletter(s, m, at=10 * n + 6 + n, topic=graveyard)


def _uneven(b: Builder) -> None:
    """Three of four messages go to one client."""
    s = b.subscription("uneven")
    streams = [b.stream(s, client) for client in ("greedy", "modest")]
    for n in range(4):
        m = b.publish(b.topic_of(s), at=n + 1, bytes=10)
        b.deliver(s, m, at=n + 1.5, stream=streams[n == 3])
        b.ack(s, m, at=n + 1.5 + 0.1 * (n + 1))


def _filtered(b: Builder) -> None:
    s = b.subscription("filtered", filter='attributes.kind = "good"')
    for n in range(4):
        m = b.publish(b.topic_of(s), at=n)
        if n % 2:
            b.filtered(s, m)


def _twice(b: Builder) -> None:
    topic = b.topic("twice")
    for at in (0, 5, 2000, 2900):
        b.publish(topic, at=at, payload="the same")
    for at in (2901, 2902, 2930):
        b.publish(topic, at=at, payload="another")


# -- a plain count ----------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """What is open on one subscription, as a loop over the events finds it."""

    topic_id: int
    open: dict[int, int] = field(default_factory=dict)  # message_id -> publish time
    leased: set[int] = field(default_factory=set)
    filtered: set[int] = field(default_factory=set)
    is_known: bool = True
    is_over: bool = False


class Plain:
    """Counts and backlog per (sub_id, minute number) by a loop; minutes without an event have no counts."""

    def __init__(self, b: Builder) -> None:
        self.counts: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.backlog: dict[tuple[int, int], tuple[int | None, float | None]] = {}
        self._published: dict[int, dict[str, int]] = {}
        self._subscriptions: dict[int, Waiting] = {}
        last_us = b.events[-1]["ts_us"]
        minute = b.events[0]["ts_us"] // MINUTE_US
        for event in b.events:
            while event["ts_us"] // MINUTE_US > minute:
                self._end_minute(minute, (minute + 1) * MINUTE_US)
                minute += 1
            detail = b.details.get(event["seq"])
            self._count(event)
            self._follow(event, json.loads(detail) if detail else {})
        self._end_minute(minute, last_us)

    def _end_minute(self, minute: int, now_us: int) -> None:
        for sub_id, one in self._subscriptions.items():
            age_s = (now_us - min(one.open.values())) / 1e6 if one.open else 0.0
            self.backlog[sub_id, minute] = (len(one.open), age_s) if one.is_known else (None, None)

    def _count(self, event: dict[str, int]) -> None:
        kind, result, minute = event["kind"], event["result"], event["ts_us"] // MINUTE_US
        if kind == Kind.PUBLISH:
            for sub_id, one in self._subscriptions.items():
                if one.topic_id == event["topic_id"] and not one.is_over:
                    self.counts[sub_id, minute]["published"] += 1
            return
        if event["message_id"] == 0 and kind != Kind.ACK:
            return
        ack = {Result.OK: "acked", Result.NOOP: "ack_noop", Result.PERMANENT: "ack_permanent",
               Result.TRANSIENT: "ack_transient"}  # fmt: skip  # short items, many to a line
        columns = {
            Kind.DELIVER: {"delivered": 1, "redelivered": int(event["generation"] > 1),
                           "bytes": event["bytes"]},
            Kind.ACK: {ack.get(result): 1},
            Kind.NACK: {"nacked": int(result == Result.OK)},
            Kind.EXTEND: {"extended": int(result == Result.OK), "extend_failed": int(result >= 2)},
            Kind.EXPIRE: {"expired": 1},
            Kind.RESET: {"reset": 1},
            Kind.DEADLETTER: {"dead_lettered": 1},
            Kind.DROP: {"dropped": 1},
            Kind.FILTERED: {"filtered": 1, "published": -1},
        }[kind]  # fmt: skip  # short items, many to a line
        for name, n in columns.items():
            self.counts[event["sub_id"], minute][name] += n

    def _follow(self, event: dict[str, int], detail: dict[str, Any]) -> None:
        kind, sub_id, message_id = event["kind"], event["sub_id"], event["message_id"]
        if kind == Kind.PUBLISH:
            self._published[message_id] = event
            for one in self._subscriptions.values():
                if one.topic_id == event["topic_id"] and not one.is_over:
                    one.open[message_id] = event["ts_us"]
        elif kind == Kind.CONFIG and "subscription" in detail:
            if detail["change"] == "created":
                self._subscriptions[sub_id] = Waiting(event["topic_id"])
            else:
                self._subscriptions[sub_id].is_over = True
                self._subscriptions[sub_id].open.clear()
        elif kind == Kind.SEEK:
            self._seek(self._subscriptions[sub_id], event, detail)
        elif kind == Kind.DELIVER:
            self._subscriptions[sub_id].leased.add(message_id)
        elif kind in (Kind.EXPIRE, Kind.RESET) or (kind == Kind.NACK and event["result"] == Result.OK):
            self._subscriptions[sub_id].leased.discard(message_id)
        elif kind == Kind.DROP and message_id == 0:
            one = self._subscriptions[sub_id]
            for m, pub_us in list(one.open.items()):
                if pub_us < event["aux"] and m not in one.leased:
                    del one.open[m]
        elif kind in (Kind.DEADLETTER, Kind.DROP, Kind.FILTERED) or (
            kind == Kind.ACK and event["result"] == Result.OK
        ):
            one = self._subscriptions[sub_id]
            one.open.pop(message_id, None)
            one.leased.discard(message_id)
            if kind == Kind.FILTERED:
                one.filtered.add(message_id)

    def _seek(self, one: Waiting, event: dict[str, int], detail: dict[str, Any]) -> None:
        if "snapshot" in detail:
            one.is_known = False
            return
        for m, published in self._published.items():
            if published["topic_id"] != one.topic_id or m in one.filtered:
                continue
            pub_us = published["ts_us"]
            if pub_us < event["aux"]:
                one.open.pop(m, None)
                one.leased.discard(m)
            elif detail["retain_acked"] and pub_us >= detail["kept_from_us"]:
                one.open[m] = pub_us


# -- one run ----------------------------------------------------------------------------------------------


@dataclass
class Found:
    b: Builder
    plain: Plain
    dimensions: Dimensions
    tables: dict[str, list[Any]]
    exact: list[Any]
    per_minute: list[Any]

    def sub(self, name: str) -> int:
        full = f"projects/p/subscriptions/{name}"
        return next(one.sub_id for one in self.dimensions.subscriptions.values() if one.name == full)

    def of(self, table: str, name: str) -> list[Any]:
        return [row for row in self.tables[table] if row.sub_id == self.sub(name)]

    def minutes(self, name: str) -> list[Any]:
        return sorted(self.of("health_minute", name), key=lambda row: row.minute)


TABLES = ("health_minute", "latency", "latency_quantiles", "client_minute", "fairness", "attempts",
          "dead_letter", "duplicates")  # fmt: skip  # short items, many to a line


@pytest.fixture(scope="session")
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    folder: Path = tmp_path_factory.mktemp("health")
    b = scenarios()
    b.write(folder / "journal")
    out = Output(spark, str(folder / "out"), ("parquet",))
    run = prepare(spark, load_journal(spark, str(folder / "journal")), out, Options())
    write_facts(run)
    health.run(run)
    facts = out.read(spark, "facts")
    every = health.latency_rows(run.journal.events).unionByName(health.acked_rows(facts))
    per_minute = health.latency_quantiles(out.read(spark, "latency"), ("sub_id", "minute", "what"))
    yield Found(
        b,
        Plain(b),
        run.dimensions,
        {name: out.read(spark, name).collect() for name in TABLES},
        health.exact_quantiles(every).collect(),
        per_minute.collect(),
    )


def number_of(minute: Any) -> int:
    """Of a timestamp as Spark gives it out: UTC, without a zone or with this machine's."""
    return int(minute.timestamp()) // 60


# -- per minute -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", MINUTE_COUNTS)
def test_a_count_of_a_minute_is_that_of_a_loop_over_the_events(found: Found, column: str) -> None:
    expected = {key: row[column] for key, row in found.plain.counts.items() if row[column]}

    counted = {(row.sub_id, number_of(row.minute)): row[column] for row in found.tables["health_minute"]}

    assert expected == {key: n for key, n in counted.items() if n}
    assert expected, "the journal has no such event"


def test_each_minute_of_a_subscription_is_one_row_and_every_counted_minute_is_there(found: Found) -> None:
    keys = [(row.sub_id, number_of(row.minute)) for row in found.tables["health_minute"]]

    assert len(keys) == len(set(keys))
    assert set(found.plain.counts) <= set(keys)


def test_the_backlog_at_each_minutes_end_is_that_of_a_loop_over_the_events(found: Found) -> None:
    for row in found.tables["health_minute"]:
        expected, _ = found.plain.backlog[row.sub_id, number_of(row.minute)]
        assert row.backlog == expected, (row.subscription, row.minute)


def test_the_age_of_the_oldest_open_message_is_that_of_a_loop_over_the_events(found: Found) -> None:
    for row in found.tables["health_minute"]:
        _, expected = found.plain.backlog[row.sub_id, number_of(row.minute)]
        assert row.oldest_age_s == (None if expected is None else pytest.approx(expected)), row.subscription


def test_minutes_with_something_open_have_a_row_although_nothing_happens(found: Found) -> None:
    expected = {key for key, (backlog, _) in found.plain.backlog.items() if backlog}

    assert expected <= {(row.sub_id, number_of(row.minute)) for row in found.tables["health_minute"]}


def test_the_oldest_gets_older_through_quiet_minutes(found: Found) -> None:
    rows = found.minutes("quiet")[:6]

    # Until its ack after five minutes the first message is the oldest, then the second, ten seconds younger.
    assert [row.backlog for row in rows] == [2, 2, 2, 2, 2, 1]
    ages = [row.oldest_age_s for row in rows]
    assert [later - earlier for earlier, later in pairwise(ages)] == [60, 60, 60, 60, 50]


def test_a_subscription_counts_what_is_published_between_its_creation_and_its_end(found: Found) -> None:
    assert sum(row.published for row in found.minutes("born early")) == 4
    assert sum(row.published for row in found.minutes("born late")) == 2
    assert found.minutes("born late")[-1].backlog == 0


def test_kept_messages_are_open_again_after_a_seek_and_those_before_the_target_are_not(found: Found) -> None:
    sought = found.sub("sought")
    at_us = {seq["ts_us"] for seq in found.b.events if seq["kind"] == Kind.SEEK and seq["sub_id"] == sought}
    minutes = sorted(us // MINUTE_US for us in at_us)
    backlog = {number_of(row.minute): row.backlog for row in found.minutes("sought")}

    # Published at 30, 60, ... 180 s; all but the last are acked. Back to 60 s, and kept from 75 s: 4 are
    # open, of which one is acked, and one more is published. Then those before 160 s are acknowledged.
    assert [backlog[minute] for minute in minutes] == [4, 3]


def test_a_leased_message_outlives_a_bulk_drop_also_across_a_seek(found: Found) -> None:
    rows = found.minutes("dropped")

    assert [row.backlog for row in rows] == [3, 3, 1, 0]


def test_after_a_seek_to_a_snapshot_the_backlog_is_unknown(found: Found) -> None:
    rows = found.minutes("snapshot")

    assert [row.backlog for row in rows] == [1, None]
    assert rows[1].published == 1 and rows[1].oldest_age_s is None


# -- clients ----------------------------------------------------------------------------------------------


def test_fairness_is_jains_index_over_the_clients_that_were_served(found: Found) -> None:
    (row,) = found.of("fairness", "uneven")

    assert row.clients == 2
    assert row.jain == pytest.approx((3 + 1) ** 2 / (2 * (9 + 1)))
    assert row.largest_share == pytest.approx(3 / 4)


def test_each_client_has_its_deliveries_and_the_time_that_it_worked(found: Found) -> None:
    rows = {row.client: row for row in found.of("client_minute", "uneven")}

    assert set(rows) == {"greedy", "modest"}
    assert (rows["greedy"].delivered, rows["greedy"].acked, rows["greedy"].bytes) == (3, 3, 30)
    assert rows["greedy"].processing_sum_us == 100_000 + 200_000 + 300_000
    assert (rows["modest"].delivered, rows["modest"].processing_sum_us) == (1, 400_000)
    assert [row.clients for row in found.minutes("uneven")][:1] == [2]


# -- latencies --------------------------------------------------------------------------------------------


def latencies(b: Builder) -> dict[tuple[int, int], list[int]]:
    """(sub_id, what) -> values, for those that one event tells."""
    values = defaultdict(list)
    for event in b.events:
        what = {
            Kind.PUBLISH: 1,
            Kind.DELIVER: 2 if event["generation"] == 1 else 0,
            Kind.ACK: 5 if event["result"] == Result.OK else 0,
            Kind.EXPIRE: 6,
        }.get(Kind(event["kind"]), 0)
        if what:
            values[event["sub_id"], what].append(event["ts_us"] - event["ref_ts_us"])
    return values


def test_a_histogram_has_each_latency_in_its_bucket(found: Found) -> None:
    expected = {
        (sub_id, what, int(bucket)): sum(histogram.bucket_of(values) == bucket)
        for (sub_id, what), values in latencies(found.b).items()
        for bucket in histogram.bucket_of(values)
    }
    counted: dict[tuple[int, int, int], int] = defaultdict(int)
    for row in found.tables["latency"]:
        if row.what != 9:
            counted[row.sub_id, row.what, row.bucket] += row.n

    assert expected == counted


def test_publish_to_ack_is_from_the_facts(found: Found) -> None:
    (row,) = [row for row in found.of("latency_quantiles", "quiet") if row.what == 9]

    assert row.n == 1
    assert row.p50 == row.max == pytest.approx(290e6, rel=0.0101)


def test_quantiles_are_within_about_one_percent_of_the_sorted_values(found: Found) -> None:
    rows = {(row.sub_id, row.what): row for row in found.tables["latency_quantiles"]}

    for key, values in latencies(found.b).items():
        row = rows[key]
        assert row.n == len(values)
        for name, rank in histogram.QUANTILES.items():
            exact = sorted(values)[histogram.rank_of(len(values), rank) - 1]
            assert row[name] == pytest.approx(max(exact, 1), rel=0.0101), (key, name)


def test_exact_quantiles_are_those_of_the_values_themselves(found: Found) -> None:
    rows = {(row.sub_id, row.what): row for row in found.exact}

    for key, values in latencies(found.b).items():
        assert rows[key].p50 == pytest.approx(statistics.median(values))
        assert rows[key].max == max(values)


def test_quantiles_per_minute_are_of_that_minute_alone(found: Found) -> None:
    sub = found.sub("answers")
    rows = [row for row in found.per_minute if row.sub_id == sub and row.what == 5]

    assert [row.n for row in sorted(rows, key=lambda row: row.minute)] == [1, 2]


# -- the rest ---------------------------------------------------------------------------------------------


def test_attempts_say_how_many_messages_were_delivered_how_often(found: Found) -> None:
    rows = {row.deliveries: row.messages for row in found.of("attempts", "dead letters")}

    assert rows == {1: 1, 2: 1, 3: 1}


def test_dead_letters_are_counted_with_their_attempts_and_age(found: Found) -> None:
    (row,) = found.of("dead_letter", "dead letters")

    assert (row.n, row.attempts_p50, row.age_p50_s) == (3, 2.0, 7.0)


def test_duplicates_are_equal_payloads_shortly_one_after_the_other(found: Found) -> None:
    topic = next(topic_id for topic_id, name in found.dimensions.topics.items() if name.endswith("/twice"))
    (row,) = [row for row in found.tables["duplicates"] if row.topic_id == topic]

    # 0 and 5 s belong together, 2000 and 2900 s are too far apart.
    assert (row.groups, row.messages, row.max_spread_s) == (2, 5, 29.0)
    assert [(one.messages, one.spread_s) for one in row.examples] == [(3, 29.0), (2, 5.0)]


def test_messages_that_differ_are_no_duplicates(found: Found) -> None:
    assert len(found.tables["duplicates"]) == 1
