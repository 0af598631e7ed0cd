"""Buckets of latencies and quantiles out of them, without Spark."""

from __future__ import annotations

import math
from collections import Counter

import pytest

pytest.importorskip("pyspark", reason="needs the extra pubsubd[analytics]")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analytics import histogram

#: From a microsecond to thirty days.
VALUES = st.integers(min_value=1, max_value=30 * 86_400 * 1_000_000)


def counts_of(values: list[int]) -> Counter[int]:
    return Counter(histogram.bucket_of(values).tolist())


@given(VALUES)
def test_a_bucket_stands_for_its_values_within_about_one_percent(value: int) -> None:
    middle = histogram.middle_us(int(histogram.bucket_of(value)))

    assert abs(middle - value) <= 0.0101 * value


@given(st.lists(VALUES, min_size=2))
def test_greater_values_never_fall_into_smaller_buckets(values: list[int]) -> None:
    buckets = histogram.bucket_of(sorted(values))

    assert (np.diff(buckets) >= 0).all()


@pytest.mark.parametrize("value", [-5, 0, 1])
def test_what_is_less_than_a_microsecond_counts_as_one(value: int) -> None:
    assert histogram.bucket_of(value) == 0


def test_a_bucket_begins_where_the_one_before_ends() -> None:
    for number in (1, 50, 500, 1000):
        border = histogram.lower_us(number)

        assert histogram.bucket_of(border * 1.0000001) == number
        assert histogram.bucket_of(border * 0.9999999) == number - 1


@given(st.lists(VALUES, min_size=1, max_size=300), st.integers(min_value=1, max_value=1000))
def test_a_quantile_is_that_of_the_sorted_values_within_about_one_percent(
    values: list[int], per_mille: int
) -> None:
    exact = sorted(values)[histogram.rank_of(len(values), per_mille) - 1]

    found = histogram.quantile_us(counts_of(values), per_mille)

    assert abs(found - exact) <= 0.0101 * exact


@given(st.lists(VALUES, min_size=1, max_size=100), st.lists(VALUES, max_size=100))
def test_counts_of_two_parts_add_up_to_those_of_the_whole(one: list[int], other: list[int]) -> None:
    assert counts_of(one) + counts_of(other) == counts_of(one + other)


def test_ranks_are_exact_where_products_of_fractions_are_not() -> None:
    assert [histogram.rank_of(1000, rank) for rank in (1, 500, 990, 999, 1000)] == [1, 500, 990, 999, 1000]
    assert [histogram.rank_of(100, rank) for rank in (70, 290, 570, 990)] == [7, 29, 57, 99]
    assert histogram.rank_of(1, 500) == 1
    assert histogram.rank_of(3, 500) == 2


def test_a_rare_long_tail_is_seen_at_its_rank_and_not_before() -> None:
    counts = counts_of([1_000] * 990 + [5_000_000] * 10)

    found = histogram.quantiles_us(counts)

    assert found["p99"] == pytest.approx(1_000, rel=0.0101)
    assert found["p99_9"] == found["max"] == pytest.approx(5_000_000, rel=0.0101)


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(histogram.quantile_us({}, 500))
