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

# Whether a message is on its way to a client, or may come there without a seek.
OWED = (State.READY, State.LEASED, State.DELAYED, State.COLLATERAL)
# What only a running lease can be: extended, ended, given back, void.
OF_A_LEASE = (Event.EXTEND, Event.ACK, Event.DEADLINE, Event.RELEASE, Event.RESET)

# Pairs of TRANSITIONS that must not happen.
IMPOSSIBLE = {
    # What is finished stays so; of some a seek can bring it back.
    *product([State.ACKED, State.PURGED], set(Event) - {Event.RESTORE}),
    *product([State.DROPPED, State.FORWARDED], Event),
    *product([State.READY, State.DELAYED, State.COLLATERAL], OF_A_LEASE),
    # And a nack, except of a void lease: whoever sends it has let go.
    *product([State.READY, State.DELAYED], [Event.NACK]),
    # Nothing is delivered before its moment has come, and no second lease is granted while one runs: that is
    # the promise.
    *product([State.LEASED, State.DELAYED, State.COLLATERAL], [Event.DELIVER, Event.FORWARD]),
    *product([State.READY, State.LEASED], [Event.REST_OVER]),
    # What is owed needs nobody to bring it back.
    *product(OWED, [Event.RESTORE]),
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


@pytest.mark.parametrize("state", OWED)
@pytest.mark.parametrize(
    ("event", "after"),
    [(Event.LATE_ACK, State.ACKED), (Event.PURGE, State.PURGED), (Event.DROP, State.DROPPED)],
)
def test_what_is_owed_can_end_at_any_time(state: State, event: Event, after: State) -> None:
    assert TRANSITIONS[state, event] is after


@pytest.mark.parametrize("state", State)
def test_a_delivery_starts_from_ready_only(state: State) -> None:
    assert (TRANSITIONS.get((state, Event.DELIVER)) is State.LEASED) == (state is State.READY)


def test_whatever_waits_comes_back_to_ready() -> None:
    """Nothing is owed that no delivery can follow from."""
    ready = {State.READY}
    for _ in State:
        ready |= {state for (state, event), after in TRANSITIONS.items() if after in ready and state in OWED}

    assert set(OWED) == ready


@pytest.mark.parametrize("operation", Operation)
def test_a_running_lease_obeys_in_both_modes(operation: Operation) -> None:
    assert [table[operation, Standing.CURRENT] for table in VERDICTS] == [Verdict.APPLY] * 2


@pytest.mark.parametrize(("operation", "standing"), PAIRS)
def test_only_a_running_lease_obeys(operation: Operation, standing: Standing) -> None:
    """An ack that is ahead of its ordering key is one too; with exactly-once it has to wait."""
    runs = standing in (Standing.CURRENT, Standing.UNORDERED)
    waits = (operation, standing) == (Operation.ACK, Standing.UNORDERED)

    assert (AT_LEAST_ONCE[operation, standing] is Verdict.APPLY) == runs
    assert (EXACTLY_ONCE[operation, standing] is Verdict.APPLY) == (runs and not waits)


def test_with_exactly_once_nothing_happens_late() -> None:
    """But that somebody lets go of a message whose lease is void, so that it need not wait."""
    late = {pair for pair in PAIRS if EXACTLY_ONCE[pair] is Verdict.APPLY_LATE}

    assert late == {(Operation.NACK, Standing.RESET)}


def test_with_exactly_once_success_without_effect_is_for_what_is_so_already() -> None:
    """And for the extension that crosses its own ack."""
    noop = {pair for pair in PAIRS if EXACTLY_ONCE[pair] is Verdict.NOOP}

    assert noop == {
        (Operation.ACK, Standing.ACKED),
        (Operation.ACK, Standing.PURGED),
        (Operation.NACK, Standing.NACKED),
        (Operation.EXTEND, Standing.ACKED),
    }


def test_only_an_ack_ahead_of_its_ordering_key_is_to_be_tried_again() -> None:
    again = {(mode, pair) for mode in (0, 1) for pair in PAIRS if VERDICTS[mode][pair] is Verdict.TRANSIENT}

    assert again == {(1, (Operation.ACK, Standing.UNORDERED))}


@pytest.mark.parametrize(("operation", "standing"), PAIRS)
def test_without_exactly_once_nothing_is_refused(operation: Operation, standing: Standing) -> None:
    assert AT_LEAST_ONCE[operation, standing] not in (Verdict.PERMANENT, Verdict.TRANSIENT)


def test_without_exactly_once_only_an_ack_counts_late() -> None:
    """And not for a message that a seek brought back."""
    late = {pair for pair in PAIRS if AT_LEAST_ONCE[pair] is Verdict.APPLY_LATE}

    assert late == {
        (Operation.ACK, Standing.LAPSED),
        (Operation.ACK, Standing.NACKED),
        (Operation.ACK, Standing.RESET),
    }


@pytest.mark.parametrize("operation", Operation)
def test_with_exactly_once_an_id_of_before_a_seek_is_worth_nothing(operation: Operation) -> None:
    assert EXACTLY_ONCE[operation, Standing.SUPERSEDED] is Verdict.PERMANENT


def test_a_failed_delivery_is_an_attempt_and_one_that_was_never_seen_is_not() -> None:
    """Nor is one that is over because of another message."""
    waits = (State.READY, State.DELAYED, State.COLLATERAL)
    ends = {
        event for (state, event), after in TRANSITIONS.items() if state is State.LEASED and after in waits
    }

    assert {Event.RELEASE, Event.RESET} == ends - COUNTS_AS_ATTEMPT
    assert ends >= COUNTS_AS_ATTEMPT


def test_the_first_three_verdicts_are_success() -> None:
    """The shell tells success from failure by order."""
    assert sorted(Verdict) == [
        Verdict.APPLY,
        Verdict.APPLY_LATE,
        Verdict.NOOP,
        Verdict.PERMANENT,
        Verdict.TRANSIENT,
    ]
