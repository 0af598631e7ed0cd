"""How long a message rests after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model.backoff import Backoff, backoff_of
from tests.unit.model.conftest import new_subscription, seconds

SECOND_US = 1_000_000
MAXIMUM_US = 600 * SECOND_US


def test_the_delay_doubles_from_the_minimum_up_to_the_maximum() -> None:
    backoff = Backoff(10 * SECOND_US, 60 * SECOND_US)

    delays = [backoff.delay_us(failures) // SECOND_US for failures in range(1, 6)]

    assert delays == [10, 20, 40, 60, 60]


@pytest.mark.parametrize("minimum_us", [1, SECOND_US, MAXIMUM_US])
def test_a_message_that_failed_a_million_times_rests_for_the_maximum(minimum_us: int) -> None:
    for failures in (64, 10**6):
        assert Backoff(minimum_us, MAXIMUM_US).delay_us(failures) == MAXIMUM_US


@given(st.integers(0, MAXIMUM_US), st.integers(0, MAXIMUM_US), st.integers(1, 200))
def test_the_delay_is_what_the_formula_says(one_us: int, other_us: int, failures: int) -> None:
    minimum_us, maximum_us = sorted((one_us, other_us))

    expected_us = min(maximum_us, minimum_us * 2 ** (failures - 1))

    assert expected_us == Backoff(minimum_us, maximum_us).delay_us(failures)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, Backoff(10 * SECOND_US, 600 * SECOND_US)),
        ({"minimum_backoff": seconds(1.5)}, Backoff(1_500_000, 600 * SECOND_US)),
        ({"maximum_backoff": seconds(20)}, Backoff(10 * SECOND_US, 20 * SECOND_US)),
        ({"minimum_backoff": seconds(5), "maximum_backoff": seconds(5)}, Backoff(5_000_000, 5_000_000)),
    ],
    ids=str,
)
def test_the_bounds_are_those_of_the_policy_or_its_defaults(
    policy: dict[str, object], expected: Backoff
) -> None:
    assert backoff_of(new_subscription(retry_policy=policy)) == expected


def test_without_a_policy_or_with_a_minimum_of_zero_there_is_no_delay() -> None:
    assert backoff_of(new_subscription()) is None
    for maximum in (0, 600):
        policy = {"minimum_backoff": seconds(0), "maximum_backoff": seconds(maximum)}
        assert backoff_of(new_subscription(retry_policy=policy)) is None
