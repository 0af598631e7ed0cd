"""How much a consumer may hold unfinished."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.flow.window import Window
from pubsubd.model import limits


def window(max_messages: int = 0, max_bytes: int = 0, messages: int = 0, size: int = 0) -> Window:
    made = Window(max_messages, max_bytes)
    made.outstanding_messages, made.outstanding_bytes = messages, size
    return made


@pytest.mark.parametrize("none", [0, -1, -(2**63)])
def test_zero_and_less_mean_no_limit_but_ours(none: int) -> None:
    wide = window(none, none, 1000, 10**12)

    assert wide.room_messages() == limits.OUTSTANDING_MESSAGES_MAX - 1000
    assert wide.room_bytes() > 2**60


def test_our_limit_is_no_limit_to_a_client_that_asked_for_less() -> None:
    assert window(7).room_messages() == 7


@pytest.mark.parametrize(("outstanding", "room"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_room_in_messages_is_what_the_limit_leaves(outstanding: int, room: int) -> None:
    assert room == window(3, messages=outstanding).room_messages()


@pytest.mark.parametrize(
    ("outstanding", "open_"), [(0, True), (98, True), (99, True), (100, False), (5000, False)]
)
def test_sending_goes_on_while_the_bytes_are_below_the_limit(outstanding: int, open_: bool) -> None:
    half = window(10, 100, 1, outstanding)

    assert open_ == (half.room_messages() > 0) == (half.room_bytes() > 0)


def test_a_window_that_holds_more_than_its_limit_has_no_room_and_not_less() -> None:
    """It can: leases outlive the stream's limits when a broker is restored under an open stream."""
    assert window(3, messages=5).room_messages() == 0


@given(st.integers(), st.integers(), st.integers(0, 10**6), st.integers(0, 10**12))
def test_room_is_never_negative(max_messages: int, max_bytes: int, messages: int, size: int) -> None:
    assert window(max_messages, max_bytes, messages, size).room_messages() >= 0
