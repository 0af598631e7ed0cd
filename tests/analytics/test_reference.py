"""The rules of the replay, told by examples; every implementation has to agree with each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]")

from analytics.dimensions import Dimensions
from analytics.layout import COLUMNS
from tests.analytics import reference
from tests.analytics.generator.builder import Builder
from tests.analytics.generator.segments import SCHEMA
from tests.analytics.scenarios import SCENARIOS, US, Expected, Row, dimensions_of, journal, leased, rows_of

Replay = Callable[..., list[Row]]


_written: tuple[Builder, dict[str, Expected]] | None = None
_rows: dict[str, list[Row]] = {}


def by_reference(events: list[Row], dimensions: Dimensions, **options: int) -> list[Row]:
    return reference.replay(events, dimensions, **options)


def by_kernel(
    events: list[Row], dimensions: Dimensions, *, tolerance_us: int = 0, first_message_id: int = 0
) -> list[Row]:
    np = pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")
    from analytics.kernel import replay
    from analytics.rules import Rules

    begun = {sub_id: [one.start_seq for one in epochs[1:]] for sub_id, epochs in dimensions.epochs.items()}
    names = [column.name for column in COLUMNS if column.name != "detail"]
    columns = {name: np.array([event[name] for event in events], np.int64) for name in names}
    epochs = [bisect_left(begun.get(event["sub_id"], []), event["seq"]) for event in events]
    columns["epoch"] = np.array(epochs, np.int64)
    return replay(columns, Rules.of(dimensions, tolerance_us, first_message_id)).rows()


def by_windows(events: list[Row], dimensions: Dimensions, **options: int) -> list[Row]:
    """Needs the session of the fixture `spark`."""
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.analytics import windows

    table = pa.Table.from_pylist(events, SCHEMA)
    frame = SparkSession.active().createDataFrame(table)
    rows = windows.facts(frame, dimensions, **options).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: [row[name] for name in KEY])


KEY = ("sub_id", "message_id", "epoch")
IMPLEMENTATIONS: dict[str, Replay] = {"reference": by_reference, "kernel": by_kernel, "windows": by_windows}


@pytest.fixture(params=IMPLEMENTATIONS)
def replay(request: pytest.FixtureRequest) -> Replay:
    if request.param == "windows":
        request.getfixturevalue("spark")
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(params=["reference", "kernel"])
def quick_replay(request: pytest.FixtureRequest) -> Replay:
    """Without those that need seconds for each call."""
    return IMPLEMENTATIONS[request.param]


@pytest.fixture
def replayed(request: pytest.FixtureRequest, replay: Replay) -> tuple[dict[str, Expected], list[Row]]:
    """What is expected of all scenarios, and what one implementation made of them, once."""
    global _written
    _written = _written or journal()
    builder, expected = _written
    name = next(name for name, one in IMPLEMENTATIONS.items() if one is replay)
    if name not in _rows:
        _rows[name] = replay(rows_of(builder), dimensions_of(builder))
    return expected, _rows[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, replayed: tuple[dict[str, Expected], list[Row]]) -> None:
    expected, rows = replayed
    expected[name].check(rows)


def _found(rows: list[Row]) -> list[int]:
    return [seq for row in rows for seq in row["v_seq"]]


def _replay(replay: Replay, builder: Builder, **options: Any) -> list[Row]:
    return replay(rows_of(builder), dimensions_of(builder), **options)


def test_an_event_as_early_as_the_tolerance_is_right(quick_replay: Replay) -> None:
    b = Builder()
    sub, message = leased(b)
    right = b.expire(sub, message, at=12 - 5e-3)
    b.deliver(sub, message, at=13)
    early = b.expire(sub, message, at=23 - 5e-3 - US)
    assert _found(_replay(quick_replay, b)) == [right, early]
    assert _found(_replay(quick_replay, b, tolerance_us=5_000)) == [early]


def test_the_tolerance_is_not_for_answers(quick_replay: Replay) -> None:
    b = Builder()
    sub, message = leased(b)
    refused = b.ack(sub, message, at=12 - US, result=2)
    assert _found(_replay(quick_replay, b, tolerance_us=5_000)) == [refused]


def test_what_was_published_before_the_range_is_judged_from_its_first_delivery_on(
    quick_replay: Replay,
) -> None:
    b = Builder()
    sub, message = leased(b)
    b.expire(sub, message)
    seen_from = b.last_seq + 1
    b.ack(sub, message, at=13)  # of a lease that nobody saw begin
    again = b.deliver(sub, message, at=14)  # and it was acked, as everybody saw
    refused = b.ack(sub, message, at=15, result=2)
    events = [row for row in rows_of(b) if row["seq"] >= seen_from]
    dimensions = dimensions_of(b)

    (row,) = quick_replay(events, dimensions, first_message_id=message + 1)
    assert row["partial"] and row["v_seq"] == [again, refused]

    (row,) = quick_replay(events, dimensions, first_message_id=message)
    assert not row["partial"] and row["v_seq"] == [seen_from, again, refused]


def test_a_message_of_which_only_answers_are_left_has_no_publish_time(quick_replay: Replay) -> None:
    b = Builder()
    sub, message = leased(b)
    seq = b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4)
    b.bulk_drop(sub, at=5)
    events = [row for row in rows_of(b) if row["seq"] == seq]
    (row,) = quick_replay(events, dimensions_of(b), first_message_id=message + 1)
    assert row["pub_us"] is None and not row["owed"] and row["gone_us"] is None and row["v_seq"] == []


def test_a_subscription_of_which_nothing_is_known_is_judged_as_without_exactly_once(
    quick_replay: Replay,
) -> None:
    b = Builder()
    sub, message = leased(b)
    b.expire(sub, message)
    b.ack(sub, message, at=13)
    again = b.deliver(sub, message, at=14)
    (row,) = quick_replay(rows_of(b), Dimensions())
    assert row["v_seq"] == [again]


def test_the_order_in_which_events_come_does_not_matter(quick_replay: Replay) -> None:
    builder, _ = journal()
    rows, dimensions = rows_of(builder), dimensions_of(builder)
    assert quick_replay(rows[::-1], dimensions) == quick_replay(rows, dimensions)


def test_without_events_there_are_no_facts(quick_replay: Replay) -> None:
    assert quick_replay([], Dimensions()) == []


def test_a_message_with_a_hundred_thousand_events_is_replayed(quick_replay: Replay) -> None:
    b = Builder()
    sub, message = leased(b)
    for _ in range(33_333):
        b.extend(sub, message)
        b.nack(sub, message)
        b.deliver(sub, message)
    early = b.deliver(sub, message)
    (row,) = _replay(quick_replay, b)
    assert (row["deliveries"], row["extends"], row["nacks"]) == (33_335, 33_333, 33_333)
    assert row["v_seq"] == [early]
