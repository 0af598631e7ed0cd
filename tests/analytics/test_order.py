"""First deliveries within ordering keys: windows, whole and in blocks, against a plain loop."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from analytics import order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[int, int, int, int, int | None, int | None, int | None, bool, int]


def draw(chance: Random) -> list[Row]:
    """Three keys of 30 messages, delivered nearly in order; some never, some leased over a seek."""
    rows: list[Row] = []
    for okey in (1, 2, 3):
        for number in range(30):
            message_id = 3 * number + okey
            first_seq: int | None = 100 + 10 * number + chance.choice((0, 0, 0, 0, 25))
            closed_us: int | None = 10 * (first_seq or 0) + chance.randint(1, 300)
            if chance.random() < 0.1:
                first_seq, closed_us = None, chance.choice((None, closed_us))
            first_us = None if first_seq is None else 10 * first_seq
            carried = chance.random() < 0.1
            rows.append((1, 0, okey, message_id, first_seq, first_us, closed_us, carried, 1))
    return rows


def by_loop(rows: list[Row]) -> set[tuple[int, str]]:
    found = set()
    for _, _, okey, message_id, first_seq, first_us, _, carried, _ in rows:
        if first_seq is None or first_us is None or carried:
            continue
        for other in rows:
            if other[2] != okey or other[3] >= message_id or other[7]:
                continue
            if other[4] is None and (other[6] is None or other[6] > first_us):
                found.add((message_id, "G5_skipped"))
            elif other[4] is not None and other[4] > first_seq:
                found.add((message_id, "G5_out_of_order"))
    return found


@pytest.mark.parametrize("in_blocks", [False, True])
def test_windows_find_what_a_loop_over_all_pairs_finds(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, in_blocks: bool
) -> None:
    rows = draw(Random(4))
    expected = by_loop(rows)
    assert {code for _, code in expected} == {"G5_skipped", "G5_out_of_order"}
    # One key is large and is cut into pieces of seven ids; the others are not.
    rows += [(1, 0, 2, 1000 + at, 9000 + at, 90_000 + 10 * at, None, False, 1) for at in range(5)]
    expected = by_loop(rows)
    messages = spark.createDataFrame(rows, order.MESSAGES)
    monkeypatch.setattr(order, "BLOCK_IDS", 7)
    big = order.big_keys(messages, lambda frame: frame, key_rows_max=30) if in_blocks else None
    if in_blocks:
        assert big is not None
        assert [row.okey for row in big.collect()] == [2]
    found = order.first_deliveries(messages, big).collect()
    assert {(row.message_id, row.code) for row in found} == expected
    assert len(found) == len(expected)


def test_no_key_is_cut_if_none_is_large(spark: SparkSession) -> None:
    rows: list[Any] = draw(Random(4))
    assert order.big_keys(spark.createDataFrame(rows, order.MESSAGES), lambda frame: frame, 30) is None
