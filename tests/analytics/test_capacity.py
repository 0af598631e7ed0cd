"""Advice on settings: the estimate of processing times, each formula with its bounds, and a small journal."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import advice
from analytics.advice import Advice, Load, Measured, Minute, advise
from analytics.dimensions import Setting
from analytics.histogram import bucket_of, middle_us
from analytics.layout import Kind, Result
from analytics.survival import Survival
from analytics.tables import MINUTE_COUNTS, SCHEMAS
from tests.analytics import reference
from tests.analytics.generator.builder import Builder
from tests.analytics.scenarios import dimensions_of, rows_of

SECOND_US = 1_000_000


def buckets(*seconds: float) -> Counter[int]:
    return Counter(int(bucket_of(one * SECOND_US)) for one in seconds)


def survival(acked: list[float], censored: list[float] | None = None) -> Survival:
    return Survival.of(buckets(*acked), buckets(*(censored or [])))


# -- Kaplan-Meier -----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1200), min_size=1, max_size=50), st.integers(0, 1200))
def test_when_everything_was_seen_to_end_the_shares_are_counted(acked: list[int], at: int) -> None:
    counts = Counter(acked)
    found = Survival.of(counts, {})
    above = sum(n for bucket, n in counts.items() if bucket > at) / len(acked)
    assert found.above(middle_us(at) / SECOND_US) == pytest.approx(above, abs=1e-9)
    mean = sum(n * middle_us(bucket) for bucket, n in counts.items()) / len(acked) / SECOND_US
    assert found.mean_s == pytest.approx(mean)


def test_what_was_cut_off_counts_until_then() -> None:
    # Of three one ends, one is cut off, one ends: two thirds are left after 1 s, and none after 3 s.
    found = survival(acked=[1, 3], censored=[2])
    assert found.above(0.5) == 1
    assert found.above(1.1) == pytest.approx(2 / 3)
    assert found.above(2.5) == pytest.approx(2 / 3)
    assert found.above(3.1) == 0


def test_in_the_same_moment_the_ack_comes_before_the_cut() -> None:
    assert survival(acked=[1], censored=[1]).above(2) == pytest.approx(1 / 2)


def test_without_an_ack_nothing_is_known_but_that_it_takes_longer() -> None:
    found = survival(acked=[], censored=[10] * 5)
    assert found.above(10) == found.above(1_000) == 1
    assert found.quantile_s(0.5) is None
    assert found.mean_s == pytest.approx(10, rel=0.02)
    assert (found.acked, found.censored, found.n) == (0, 5, 5)


def test_a_quantile_is_the_first_time_that_so_many_do_not_exceed() -> None:
    found = survival(acked=[1] * 99 + [50])
    assert found.quantile_s(0.99) == pytest.approx(1, rel=0.02)
    assert found.quantile_s(0.991) == pytest.approx(50, rel=0.02)


def test_leases_that_cut_work_off_do_not_make_it_look_shorter() -> None:
    chance = random.Random(7)
    work = [chance.expovariate(1 / 8) for _ in range(20_000)]
    lease = [chance.uniform(5, 30) for _ in work]
    acked = [took for took, length in zip(work, lease, strict=True) if took <= length]
    cut = [length for took, length in zip(work, lease, strict=True) if took > length]
    found = survival(acked, cut)
    for seconds in (5, 10, 20):
        assert found.above(seconds) == pytest.approx(math.exp(-seconds / 8), abs=0.01)
    # What was acked alone would say much less.
    assert sum(took > 20 for took in acked) / len(acked) < 0.5 * math.exp(-20 / 8)


# -- formulas ---------------------------------------------------------------------------------------------


def measured(acked: list[float] | None = None, censored: list[float] | None = None, **given: Any) -> Measured:
    about = {"sub_id": 1, "subscription": "s", "setting": Setting(1, ack_deadline_s=10)}
    return Measured(**about | {"survival": survival(acked or [], censored)} | given)


def minute(start_s: int = 0, **given: Any) -> Minute:
    numbers = dict.fromkeys(("published", "delivered", "acked", "extended", "clients"), 0)
    return Minute(start_us=start_s * SECOND_US, **numbers | {"backlog": 0} | given)


def load(acked: list[float] | None = None, **given: Any) -> Load:
    about = {
        "client_id": 9,
        "client": "worker",
        "delivered": 5_000,
        "rate_p95": 10.0,
        "outstanding_max": 7,
        "at_limit": 0.0,
        "max_messages": 100,
        "max_bytes": 1_000_000,
    }
    return Load(**about | {"survival": survival(acked or [])} | given)


def only(rows: list[Advice], setting: str) -> Advice:
    (found,) = [one for one in rows if one.setting.startswith(setting)]
    return found


def test_the_ack_deadline_is_the_99_9_percentile_and_a_fifth() -> None:
    # One in a thousand may be late.
    found = only(advise(measured([20] * 999 + [300])), "ack_deadline_seconds")
    assert found.current == 10
    assert found.recommended == math.ceil(1.2 * middle_us(int(bucket_of(20 * SECOND_US))) / SECOND_US)
    assert found.confidence == advice.MEDIUM
    assert found.evidence["would_expire_10s"] == 1
    assert found.evidence["would_expire_30s"] == pytest.approx(0.001)
    assert found.evidence["would_expire_600s"] == 0


def test_one_more_late_one_decides() -> None:
    found = only(advise(measured([20] * 998 + [300] * 2)), "ack_deadline_seconds")
    assert found.recommended == math.ceil(1.2 * middle_us(int(bucket_of(300 * SECOND_US))) / SECOND_US)


@pytest.mark.parametrize(("took", "recommended"), [(0.01, 10), (8.0, 10), (550.0, 600), (3_000.0, 600)])
def test_the_ack_deadline_stays_within_the_bounds_of_the_service(took: float, recommended: int) -> None:
    assert only(advise(measured([took] * 1_000)), "ack_deadline_seconds").recommended == recommended


def test_where_leases_cut_off_too_much_no_ack_deadline_is_recommended() -> None:
    found = only(advise(measured([1] * 9_000, [10] * 1_000)), "ack_deadline_seconds")
    assert found.recommended is None
    assert found.confidence == advice.LOW
    assert "10 %" in found.reason and "10 s" in found.reason


def test_clients_that_extend_keep_their_ack_deadline() -> None:
    minutes = [minute(delivered=1_000, extended=10)]
    found = only(advise(measured([30] * 1_000, minutes=minutes)), "ack_deadline_seconds")
    assert found.recommended == found.current == 10
    assert "100 % at 10 s" in found.reason and "0 % at 60 s" in found.reason
    minutes = [minute(delivered=1_000, extended=9)]
    found = only(advise(measured([30] * 1_000, minutes=minutes)), "ack_deadline_seconds")
    assert found.recommended != 10


def test_messages_at_once_are_the_rate_times_the_time_and_a_fifth() -> None:
    found = only(advise(measured([2] * 1_000, loads=[load()])), "max_outstanding_messages")
    p99 = middle_us(int(bucket_of(2 * SECOND_US))) / SECOND_US
    assert found.setting == "max_outstanding_messages of worker"
    assert found.recommended == math.ceil(1.2 * 10 * p99)
    assert found.current == 100


def test_a_client_is_judged_by_its_own_times() -> None:
    found = only(advise(measured([2] * 1_000, loads=[load([0.001] * 10)])), "max_outstanding_messages")
    assert found.recommended == 1
    assert found.confidence == advice.LOW


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_messages": 97}, "4 times that"),
        ({"max_messages": 96}, "fits"),
        ({"max_messages": 24, "at_limit": 0.05}, "fits"),
        ({"max_messages": 24, "at_limit": 0.06}, "6 % of the time"),
        ({"max_messages": 0}, "no limit"),
        ({"max_messages": None, "at_limit": None}, "before the range"),
    ],
)
def test_a_limit_that_caps_or_is_far_too_high_is_named(given: dict[str, Any], said: str) -> None:
    found = only(advise(measured([1.95] * 1_000, loads=[load(**given)])), "max_outstanding_messages")
    assert found.recommended == 24
    assert said in found.reason


def test_a_limit_that_caps_is_never_advised_to_be_lower() -> None:
    given = {"max_messages": 50, "at_limit": 0.5}
    found = only(advise(measured([1.95] * 1_000, loads=[load(**given)])), "max_outstanding_messages")
    assert found.recommended == found.current == 50


def test_bytes_at_once_are_messages_times_their_size() -> None:
    found = only(advise(measured([1.95] * 1_000, loads=[load()], bytes_p95=1_000.0)), "max_outstanding_bytes")
    assert (found.current, found.recommended) == (1_000_000, 24_000)


def test_as_many_clients_as_are_busy_for_seven_tenths() -> None:
    minutes = [minute(60 * at, published=6_000, clients=2) for at in range(3)]
    found = only(advise(measured([7] * 1_000, minutes=minutes, loads=[load(max_messages=100)])), "clients")
    mean = middle_us(int(bucket_of(7 * SECOND_US))) / SECOND_US
    assert found.current == 2
    assert found.recommended == math.ceil(100 * mean / (0.7 * 100))
    assert found.evidence["publish_rate_p95_per_s"] == 100


def test_minutes_that_lie_in_the_range_in_part_count_with_their_part() -> None:
    minutes = [minute(published=600, seconds=10.0)]
    assert only(advise(measured([1], minutes=minutes)), "clients").evidence["publish_rate_p95_per_s"] == 60


@pytest.mark.parametrize(
    ("acked", "published", "backlog", "drain_s", "said"),
    [
        (1_200, 600, 1_000, 100.0, "gone in 100 s"),
        (600, 600, 1_000, None, "does not shrink"),
        (600, 1_200, 1_000, None, "does not shrink"),
        (600, 600, 0, 0.0, "no backlog"),
    ],
)
def test_a_backlog_drains_by_what_is_acked_more_than_published(
    acked: int, published: int, backlog: int, drain_s: float | None, said: str
) -> None:
    minutes = [minute(60 * at, acked=acked, published=published, backlog=backlog) for at in range(3)]
    found = only(advise(measured([1], minutes=minutes)), "clients")
    assert found.evidence.get("drain_s") == pytest.approx(drain_s)
    assert said in found.reason


def test_the_backlog_is_that_of_the_last_minutes() -> None:
    before = [minute(60 * at, acked=60_000, published=60, backlog=9) for at in range(60)]
    after = [minute(3_600 + 60 * at, acked=0, published=60, backlog=9) for at in range(10)]
    assert "does not shrink" in only(advise(measured([1], minutes=before + after)), "clients").reason


def test_an_unknown_backlog_is_not_drained() -> None:
    found = only(advise(measured([1], minutes=[minute(published=1, backlog=None)])), "clients")
    assert "backlog" not in found.evidence


@pytest.mark.parametrize(
    ("attempts", "recommended"),
    [
        ({1: 1_000}, 5),
        ({1: 999, 7: 1}, 5),
        ({1: 998, 7: 2}, 7),
        ({1: 500, 200: 500}, 100),
    ],
)
def test_enough_attempts_are_those_that_cover_999_of_a_thousand(
    attempts: dict[int, int], recommended: int
) -> None:
    found = only(advise(measured(attempts=attempts)), "max_delivery_attempts")
    assert (found.current, found.recommended) == (None, recommended)


def test_too_few_attempts_are_told_with_what_they_cost() -> None:
    setting = Setting(1, max_delivery_attempts=5)
    found = only(advise(measured(attempts={1: 900, 6: 100}, setting=setting)), "max_delivery_attempts")
    assert (found.current, found.recommended) == (5, 6)
    assert "10 % of it would become dead letters" in found.reason


@pytest.mark.parametrize(
    ("n", "sure"), [(999, "low"), (1_000, "medium"), (9_999, "medium"), (10_000, "high")]
)
def test_confidence_is_in_numbers(n: int, sure: str) -> None:
    assert only(advise(measured([1] * n)), "ack_deadline_seconds").confidence == sure


def test_of_nothing_there_is_no_advice() -> None:
    assert advise(measured()) == []


# -- a journal --------------------------------------------------------------------------------------------


class Script:
    """Calls of a builder in the order of their times, whatever the order in which they are planned."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._planned: list[tuple[float, int, Callable[[float], Any]]] = []

    def at(self, seconds: float, call: Callable[[float], Any]) -> None:
        self._planned.append((seconds, len(self._planned), call))

    def play(self) -> None:
        for seconds, _, call in sorted(self._planned, key=lambda one: one[:2]):
            call(seconds)


def _each(
    script: Script,
    sub: int,
    stream: int,
    at: float,
    *steps: tuple[float, str, dict[str, Any]],
    deliver: dict[str, int] | None = None,
) -> None:
    """One message: published, delivered at once, and then each step so many seconds after the delivery."""
    b = script.b
    message: list[int] = []

    def begin(now: float) -> None:
        message.append(b.publish(b.topic_of(sub), at=now))
        b.deliver(sub, message[0], at=now, stream=stream, **(deliver or {}))

    script.at(at, begin)
    for after, name, fields in steps:
        script.at(
            at + after, lambda now, name=name, fields=fields: getattr(b, name)(sub, message[0], now, **fields)
        )


def _minutes(b: Builder) -> list[dict[str, Any]]:
    """`health_minute`, counted by hand as far as it is read."""
    counted: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    subs = {b.topic_of(event["sub_id"]): event["sub_id"] for event in b.events if event["sub_id"]}
    names = {Kind.PUBLISH: "published", Kind.DELIVER: "delivered", Kind.ACK: "acked", Kind.EXTEND: "extended"}
    for event in b.events:
        sub = subs.get(event["topic_id"], 0)
        if event["kind"] in names and event["result"] == Result.OK and sub:
            counted[sub, event["ts_us"] // (60 * SECOND_US)][names[Kind(event["kind"])]] += 1
    nothing = dict.fromkeys(MINUTE_COUNTS, 0)
    return [
        {
            **nothing,
            **counts,
            "sub_id": sub,
            "subscription": "",
            "minute": datetime.fromtimestamp(minute * 60, UTC),
            "clients": 1,
            "backlog": 0,
            "oldest_age_s": 0.0,
        }
        for (sub, minute), counts in counted.items()
    ]


@pytest.fixture(scope="module")
def advised(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The table of a journal with a subscription for each case: name and setting -> row."""
    from analytics import capacity
    from analytics.journal import load_journal
    from analytics.output import Output
    from analytics.run import prepare

    b = Builder()
    b.begin()
    ok, late = {}, {"result": Result.PERMANENT}

    steady = b.subscription("steady", at=0)
    stream = b.stream(steady, "worker", at=0, max_outstanding_messages=200, max_outstanding_bytes=5_000)
    script = Script(b)
    for n in range(1_200):
        _each(script, steady, stream, 1 + n // 10, (2, "ack", ok))

    slow = b.subscription("slow", at=0, dead_letter=(b.topic("dead", at=0), 6))
    stream = b.stream(slow, "worker", at=0, max_outstanding_messages=0)
    for n in range(40):
        # Ten in all are still at work when the lease is over, and say so with a late ack. One never does.
        steps = [(3, "ack", ok)] if n >= 10 else [(10, "expire", ok)] + ([(15, "ack", late)] if n else [])
        _each(script, slow, stream, 1 + n, *steps)

    capped = b.subscription("capped", at=0)
    stream = b.stream(capped, "worker", at=0, max_outstanding_messages=5)
    for n in range(100):
        _each(script, capped, stream, 1 + n, (5, "ack", ok))

    lost = b.subscription("lost", at=0)
    stream = b.stream(lost, "worker", at=0)
    for n in range(20):
        _each(script, lost, stream, 1 + n, *([(1, "ack", ok)] if n % 2 else [(10, "expire", ok)]))

    moody = b.subscription("moody", at=0)
    stream = b.stream(moody, "worker", at=0)
    for n in range(20):
        _each(script, moody, stream, 1 + n, (2, "ack", ok) if n % 2 else (9, "nack", ok))

    unary = b.subscription("unary", at=0)
    for n in range(5):
        _each(script, unary, 0, 1 + n, (2, "ack", ok))

    extending = b.subscription("extending", at=0)
    stream = b.stream(extending, "worker", at=0, ack_deadline_s=60)
    for n in range(10):
        _each(script, extending, stream, 1 + n, (9, "extend", {"seconds": 30}), (30, "ack", ok))

    restarted = b.subscription("restarted", at=0)
    streams = [b.stream(restarted, "worker", at=0)]
    # After its restart the server knows the name by another number.
    script.at(100, lambda now: b.start(at=now))
    again = {"sub_id": restarted, "topic_id": b.topic_of(restarted), "client_id": 77, "stream_id": 7_777}
    limits = {"client": "worker", "max_outstanding_messages": 30, "max_outstanding_bytes": 3_000}
    script.at(100, lambda now: b.add(Kind.STREAM, now, detail=limits, **again))
    for n in range(20):
        fields = {"client_id": 77, "stream_id": 7_777} if n >= 10 else {}
        _each(script, restarted, streams[0], 1 + n * 10, (2, "ack", ok), deliver=fields)

    deleted = b.subscription("deleted", at=0)
    _each(script, deleted, 0, 1, (2, "ack", ok))
    script.at(200, lambda now: b.delete(deleted, at=now))
    script.play()

    folder: Path = tmp_path_factory.mktemp("capacity")
    b.write(folder / "journal")
    run = prepare(spark, load_journal(spark, str(folder / "journal")), Output(spark, str(folder / "out")))
    facts = reference.replay(b.events, dimensions_of(b))
    run.out.write("facts", spark.createDataFrame(facts, SCHEMAS["facts"]))
    run.out.write("health_minute", spark.createDataFrame(_minutes(b), SCHEMAS["health_minute"]))
    capacity.run(run)
    rows = run.out.read(spark, "advice").collect()
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row.subscription.rpartition("/")[2], {})[row.setting] = row
    return found


def near(seconds: float) -> float:
    """The value that stands for it in a histogram."""
    return middle_us(int(bucket_of(seconds * SECOND_US))) / SECOND_US


MESSAGES, BYTES = "max_outstanding_messages of worker", "max_outstanding_bytes of worker"


def test_journal_of_steady_work(advised: dict[str, dict[str, Any]]) -> None:
    rows = advised["steady"]
    assert rows["ack_deadline_seconds"].recommended == 10
    assert rows["ack_deadline_seconds"].evidence["n"] == 1_200
    assert rows["ack_deadline_seconds"].confidence == "medium"
    need = math.ceil(1.2 * 10 * near(2))
    assert (rows[MESSAGES].current, rows[MESSAGES].recommended) == (200, need)
    assert rows[MESSAGES].evidence["rate_p95_per_s"] == 10
    assert rows[MESSAGES].evidence["outstanding_max"] == 20
    assert "8 times that" in rows[MESSAGES].reason
    size = middle_us(int(bucket_of(100)))
    assert (rows[BYTES].current, rows[BYTES].recommended) == (5_000, math.ceil(need * size))
    assert rows["max_delivery_attempts"].recommended == 5
    assert rows["max_delivery_attempts"].evidence["acked_at_1"] == 1


def test_journal_of_work_that_outlasts_its_leases(advised: dict[str, dict[str, Any]]) -> None:
    row = advised["slow"]["ack_deadline_seconds"]
    assert (row.evidence["n"], row.evidence["not_seen_to_end"]) == (40, 1)
    # 30 of 40 end at 3 s; of the other ten one is cut off at 10 s, and nine of nine end at 15 s.
    assert row.evidence["would_expire_10s"] == pytest.approx(10 / 40)
    assert row.evidence["would_expire_20s"] == 0
    assert row.recommended == math.ceil(1.2 * near(15))
    assert row.confidence == "low"
    assert advised["slow"][MESSAGES].current is None
    assert "no limit" in advised["slow"][MESSAGES].reason
    assert advised["slow"]["max_delivery_attempts"].current == 6


def test_journal_of_a_client_at_its_limit(advised: dict[str, dict[str, Any]]) -> None:
    row = advised["capped"][MESSAGES]
    # From the fifth delivery on it always holds five.
    assert row.evidence["at_limit_share"] > 0.8
    assert row.recommended >= row.current == 5
    assert row.evidence["outstanding_max"] == 5


def test_journal_of_work_that_is_never_seen_to_end(advised: dict[str, dict[str, Any]]) -> None:
    row = advised["lost"]["ack_deadline_seconds"]
    assert row.recommended is None
    assert row.evidence["would_expire_10s"] == pytest.approx(0.5)


def test_journal_of_nacks_which_say_nothing_about_the_work(advised: dict[str, dict[str, Any]]) -> None:
    evidence = advised["moody"]["ack_deadline_seconds"].evidence
    assert (evidence["n"], evidence["not_seen_to_end"]) == (10, 0)


def test_journal_of_unary_callers_who_have_no_limits(advised: dict[str, dict[str, Any]]) -> None:
    assert set(advised["unary"]) == {"ack_deadline_seconds", "clients", "max_delivery_attempts"}


def test_journal_of_clients_that_extend(advised: dict[str, dict[str, Any]]) -> None:
    row = advised["extending"]["ack_deadline_seconds"]
    assert row.evidence["extends_per_delivery"] == 1
    assert row.recommended == row.current == 10
    assert "Its streams ask for 60 s" in row.reason


def test_journal_of_a_client_whose_number_changed(advised: dict[str, dict[str, Any]]) -> None:
    row = advised["restarted"][MESSAGES]
    assert (row.current, row.evidence["delivered"], row.evidence["n"]) == (30, 20, 20)


def test_journal_of_what_was_deleted_has_no_advice(advised: dict[str, dict[str, Any]]) -> None:
    assert "deleted" not in advised and "unary" in advised


def test_where_nothing_was_delivered_the_table_is_empty(spark: Any) -> None:
    import pyarrow as pa

    from analytics import capacity
    from tests.analytics.generator.segments import SCHEMA

    b = Builder()
    b.subscription("idle", at=0)
    nothing = [spark.createDataFrame([], SCHEMAS[name]) for name in ("facts", "health_minute")]
    events = spark.createDataFrame(pa.Table.from_pylist(rows_of(b), SCHEMA))
    measured = capacity.measure(spark, events, *nothing, dimensions_of(b), 0, 1)
    assert [(one.subscription, one.survival.n) for one in measured] == [("projects/p/subscriptions/idle", 0)]
    assert capacity.advice(spark, measured).collect() == []
