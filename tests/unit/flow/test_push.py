"""How many requests an endpoint gets, and when the next one may start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.flow.push import PushWindow
from pubsubd.model import limits

NOW = 1_800_000_000_000_000
MS = 1000
SECOND = limits.SECOND_US


def test_the_window_starts_small_and_doubles_from_round_to_round() -> None:
    window = PushWindow(1000)
    sizes = []
    for _ in range(4):
        sizes.append(window.size)
        for _ in range(window.size):
            window.succeeded()

    assert sizes == [3, 6, 12, 24]


def test_above_three_thousand_it_grows_by_one_from_round_to_round() -> None:
    window = PushWindow(30_000)
    for _ in range(3000 - 3):
        window.succeeded()
    assert window.size == 3000
    for _ in range(3000 + 3001 + 3002):
        window.succeeded()

    assert window.size in (3002, 3003)


@pytest.mark.parametrize("size_max", [1, 2, 10])
def test_it_never_passes_its_bound(size_max: int) -> None:
    window = PushWindow(size_max)
    for _ in range(50):
        window.succeeded()

    assert size_max == window.size


def test_a_failure_halves_it_and_one_request_is_always_allowed() -> None:
    window = PushWindow(1000, backs_off=False)
    for _ in range(20):
        window.succeeded()
    sizes = []
    for _ in range(6):
        window.failed(NOW)
        sizes.append(window.size)

    assert sizes == [11, 5, 2, 1, 1, 1]
    assert window.room(0, NOW) == 1


def test_the_pause_doubles_from_100_ms_to_a_minute() -> None:
    window = PushWindow(1000)
    pauses = []
    for _ in range(12):
        window.failed(NOW)
        pauses.append(window.backoff_us // MS)

    assert pauses == [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000]


def test_no_request_starts_before_the_last_failure_and_the_pause() -> None:
    window = PushWindow(1000)
    window.failed(NOW)
    window.failed(NOW + 50 * MS)

    assert window.opens_us == NOW + 250 * MS
    assert window.room(0, NOW + 250 * MS - 1) == 0
    assert window.room(0, NOW + 250 * MS) == 1


def test_a_success_halves_the_pause_and_below_100_ms_there_is_none() -> None:
    window = PushWindow(1000)
    for _ in range(3):
        window.failed(NOW)
    pauses = []
    for _ in range(3):
        window.succeeded()
        pauses.append(window.backoff_us // MS)

    assert pauses == [200, 100, 0]
    assert window.opens_us == 0 and window.room(0, NOW) > 0


def test_without_back_off_there_is_no_pause() -> None:
    window = PushWindow(1000, backs_off=False)
    window.failed(NOW)

    assert window.backoff_us == 0 and window.room(0, NOW) == 1


def test_room_is_what_the_window_leaves() -> None:
    window = PushWindow(1000)

    assert [window.room(outstanding, NOW) for outstanding in (0, 2, 3, 7)] == [3, 1, 0, 0]


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 5000))
def test_whatever_comes_the_window_and_the_pause_stay_within_their_bounds(
    outcomes: list[bool], size_max: int
) -> None:
    window = PushWindow(size_max)
    for number, succeeded in enumerate(outcomes):
        if succeeded:
            window.succeeded()
        else:
            window.failed(NOW + number)
        assert 1 <= window.size <= size_max
        assert window.backoff_us == 0 or 100 * MS <= window.backoff_us <= 60 * SECOND
