"""Lengths of time and their spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import durations
from pubsubd.wire import pb
from tests.unit.model.conftest import refusal

SECOND = durations.SECOND_NS


@pytest.mark.parametrize(
    ("length_ns", "text"),
    [
        (599 * SECOND, "9m59s"),
        (600 * SECOND, "10m"),
        (31 * 86400 * SECOND, "744h"),
        (86400 * SECOND, "24h"),
        (3661 * SECOND, "1h1m1s"),
        (3601 * SECOND, "1h1s"),
        (0, "0s"),
        (SECOND // 2, "0.5s"),
        (599 * SECOND + 999_999_999, "9m59.999999999s"),
        (-SECOND, "-1s"),
    ],
)
def test_long_lengths_are_spelled_in_hours_minutes_and_seconds(length_ns: int, text: str) -> None:
    assert text == durations.hours_text(length_ns)


@pytest.mark.parametrize(
    ("length_ns", "text"),
    [
        (0, "0s"),
        (600 * SECOND, "600s"),
        (3 * SECOND // 2, "1.500s"),
        (SECOND + 1000, "1.000001s"),
        (1, "0.000000001s"),
        (-SECOND // 4, "-0.250s"),
    ],
)
def test_backoffs_are_spelled_as_json_spells_a_duration(length_ns: int, text: str) -> None:
    assert text == durations.seconds_text(length_ns)


def test_a_length_becomes_integers() -> None:
    duration = pb.Duration(seconds=3, nanos=1999)

    assert durations.nanoseconds(duration) == 3_000_001_999
    assert durations.microseconds(duration) == 3_000_001


@given(st.integers(0, 10**18))
def test_a_length_survives_the_way_there_and_back(length_ns: int) -> None:
    assert length_ns == durations.nanoseconds(durations.duration_of(length_ns))


@pytest.mark.parametrize(
    "duration",
    [
        pb.Duration(seconds=1, nanos=1_000_000_000),
        pb.Duration(seconds=1, nanos=-1),
        pb.Duration(seconds=-1, nanos=1),
        pb.Duration(seconds=315_576_000_001),
        pb.Duration(seconds=-315_576_000_001),
    ],
)
def test_a_duration_that_has_no_json_form_is_refused(duration: pb.Duration) -> None:
    message = refusal("INVALID_ARGUMENT", durations.check_duration, duration, "some.field")

    assert "(argument=some.field)" in message


@pytest.mark.parametrize(
    "timestamp",
    [
        pb.Timestamp(seconds=-62_135_596_801),
        pb.Timestamp(seconds=253_402_300_800),
        pb.Timestamp(nanos=-1),
        pb.Timestamp(nanos=1_000_000_000),
    ],
)
def test_a_timestamp_outside_the_years_1_to_9999_is_refused(timestamp: pb.Timestamp) -> None:
    refusal("INVALID_ARGUMENT", durations.check_timestamp, timestamp, "some.field")
