"""The three tables are complete, and say what the documentation says."""

from __future__ import annotations

from itertools import product

import pytest

from pubsubd.eod.machine import (
    AT_LEAST_ONCE,
    COUNTS_AS_ATTEMPT,
    EXACTLY_ONCE,
    REASONS,
    TRANSITIONS,
    VERDICTS,
    Event,
    Operation,
    Standing,
    State,
    Verdict,
)

PAIRS = list(product(Operation, Standing))

# Pairs of TRANSITIONS that must not happen. A terminal state has no way out, and a message that has no lease
# has none to extend, end or give back.
IMPOSSIBLE = {
    *product([State.ACKED, State.DROPPED], Event),
    (State.READY, Event.EXTEND),
    (State.READY, Event.ACK),
    (State.READY, Event.NACK),
    (State.READY, Event.DEADLINE),
    (State.READY, Event.RELEASE),
    # No second lease while one runs: that is the promise.
    (State.LEASED, Event.DELIVER),
}


@pytest.mark.parametrize("table", [AT_LEAST_ONCE, EXACTLY_ONCE], ids=["at least once", "exactly once"])
def test_a_table_of_verdicts_has_every_pair_and_nothing_else(
    table: dict[tuple[Operation, Standing], Verdict],
) -> None:
    assert set(PAIRS) == set(table)


def test_the_tables_are_indexed_by_the_flag() -> None:
    assert VERDICTS[False] is AT_LEAST_ONCE
    assert VERDICTS[True] is EXACTLY_ONCE


def test_the_transitions_that_are_missing_are_the_impossible_ones() -> None:
    assert set(product(State, Event)) - set(TRANSITIONS) == IMPOSSIBLE


def test_every_standing_has_a_reason_for_the_log() -> None:
    assert set(Standing) == set(REASONS)


@pytest.mark.parametrize("operation", Operation)
def test_a_running_lease_obeys_in_both_modes(operation: Operation) -> None:
    assert [table[operation, Standing.CURRENT] for table in VERDICTS] == [Verdict.APPLY] * 2


@pytest.mark.parametrize(("operation", "standing"), PAIRS)
def test_only_a_running_lease_obeys(operation: Operation, standing: Standing) -> None:
    applied = [table[operation, standing] is Verdict.APPLY for table in VERDICTS]

    assert [standing is Standing.CURRENT] * 2 == applied


@pytest.mark.parametrize(("operation", "standing"), PAIRS)
def test_with_exactly_once_nothing_happens_late(operation: Operation, standing: Standing) -> None:
    assert EXACTLY_ONCE[operation, standing] is not Verdict.APPLY_LATE


def test_with_exactly_once_success_without_effect_is_for_what_is_so_already() -> None:
    """And for the extension that crosses its own ack."""
    noop = {pair for pair in PAIRS if EXACTLY_ONCE[pair] is Verdict.NOOP}

    assert noop == {
        (Operation.ACK, Standing.ACKED),
        (Operation.NACK, Standing.NACKED),
        (Operation.EXTEND, Standing.ACKED),
    }


@pytest.mark.parametrize(("operation", "standing"), PAIRS)
def test_without_exactly_once_nothing_is_refused(operation: Operation, standing: Standing) -> None:
    assert AT_LEAST_ONCE[operation, standing] is not Verdict.PERMANENT


def test_without_exactly_once_only_an_ack_counts_late() -> None:
    late = {pair for pair in PAIRS if AT_LEAST_ONCE[pair] is Verdict.APPLY_LATE}

    assert late == {(Operation.ACK, Standing.LAPSED), (Operation.ACK, Standing.NACKED)}


def test_a_failed_delivery_is_an_attempt_and_one_that_was_never_seen_is_not() -> None:
    ends = {
        event
        for (state, event), after in TRANSITIONS.items()
        if (state, after) == (State.LEASED, State.READY)
    }

    assert {Event.RELEASE} == ends - COUNTS_AS_ATTEMPT
    assert ends >= COUNTS_AS_ATTEMPT


def test_the_first_three_verdicts_are_success() -> None:
    """The shell tells success from failure by order."""
    assert sorted(Verdict) == [Verdict.APPLY, Verdict.APPLY_LATE, Verdict.NOOP, Verdict.PERMANENT]
