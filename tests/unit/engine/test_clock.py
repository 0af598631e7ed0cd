"""The only clock."""

from __future__ import annotations

import time

from pubsubd.engine.clock import Clock


def test_it_shows_wall_time_in_whole_microseconds() -> None:
    before = time.time_ns() // 1000
    now_us = Clock().now_us()

    assert isinstance(now_us, int)
    assert before <= now_us <= time.time_ns() // 1000 + 1


def test_it_never_goes_back() -> None:
    clock = Clock()
    shown = [clock.now_us() for _ in range(1000)]

    assert shown == sorted(shown)


def test_it_is_never_behind_what_storage_knows() -> None:
    """The machine's clock was set back an hour while the server was down."""
    last_us = time.time_ns() // 1000 + 3_600_000_000
    clock = Clock(last_us)

    assert last_us <= clock.now_us() < last_us + 1_000_000


def test_a_time_that_is_past_changes_nothing() -> None:
    before = time.time_ns() // 1000

    assert Clock(12345).now_us() >= before
