"""How generations ended, and how long that is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.eod.endings import Ending, EndingRow, Endings
from pubsubd.model import limits

NOW = 1_800_000_000_000_000
MESSAGE = 17


def add(endings: Endings, message_id: int, generation: int, ending: Ending, at_us: int) -> None:
    endings.extend([EndingRow(1, message_id, generation, int(ending), at_us)])


@pytest.fixture
def endings() -> Endings:
    return Endings()


def test_what_was_never_added_has_no_ending(endings: Endings) -> None:
    assert endings.of(MESSAGE, 1) is None
    assert len(endings) == 0


def test_a_finished_message_without_an_entry_was_acked_by_its_first_generation(endings: Endings) -> None:
    assert endings.finishing_generation(MESSAGE) == 1


def test_each_generation_has_its_own_ending(endings: Endings) -> None:
    add(endings, MESSAGE, 1, Ending.NACKED, NOW)
    add(endings, MESSAGE, 3, Ending.ACKED, NOW)

    assert [endings.of(MESSAGE, generation) for generation in (1, 2, 3)] == [
        Ending.NACKED,
        None,
        Ending.ACKED,
    ]
    assert endings.of(MESSAGE + 1, 1) is None
    assert endings.finishing_generation(MESSAGE) == 3
    assert len(endings) == 2


def test_a_late_ack_replaces_the_nack_of_the_same_generation(endings: Endings) -> None:
    add(endings, MESSAGE, 2, Ending.NACKED, NOW)
    add(endings, MESSAGE, 2, Ending.ACKED, NOW + 1)

    assert endings.of(MESSAGE, 2) is Ending.ACKED
    assert endings.finishing_generation(MESSAGE) == 2


def test_an_ending_is_known_for_as_long_as_a_client_may_ask(endings: Endings) -> None:
    add(endings, MESSAGE, 1, Ending.NACKED, NOW)

    add(endings, MESSAGE + 1, 1, Ending.NACKED, NOW + limits.ENDING_KEPT_US)
    assert endings.of(MESSAGE, 1) is Ending.NACKED

    add(endings, MESSAGE + 2, 1, Ending.NACKED, NOW + limits.ENDING_KEPT_US + 1)
    assert endings.of(MESSAGE, 1) is None
    assert len(endings) == 2


def test_endings_are_kept_longer_than_clients_repeat_themselves() -> None:
    """Ten minutes for some libraries, and an hour is promised."""
    assert limits.ENDING_KEPT_US >= limits.HOUR_US


def test_a_forgotten_ack_is_taken_for_one_by_the_first_generation(endings: Endings) -> None:
    add(endings, MESSAGE, 2, Ending.ACKED, NOW)
    add(endings, MESSAGE + 1, 2, Ending.ACKED, NOW + limits.ENDING_KEPT_US + 1)

    assert endings.finishing_generation(MESSAGE) == 1
    assert endings.finishing_generation(MESSAGE + 1) == 2


def test_the_oldest_are_forgotten_when_there_are_too_many(
    endings: Endings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ENDINGS_MAX", 3)
    for message_id in range(1, 6):
        add(endings, message_id, 2, Ending.ACKED, NOW)

    assert len(endings) == 3
    assert [endings.finishing_generation(message_id) for message_id in range(1, 6)] == [1, 1, 2, 2, 2]


def test_nacks_are_forgotten_before_acks(endings: Endings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ack a client wants to be sure; a nack that is repeated and refused does no harm."""
    monkeypatch.setattr(limits, "ENDINGS_MAX", 2)
    add(endings, 1, 2, Ending.ACKED, NOW)
    add(endings, 2, 2, Ending.NACKED, NOW)
    add(endings, 3, 2, Ending.NACKED, NOW)

    assert [endings.of(message_id, 2) for message_id in (1, 2, 3)] == [Ending.ACKED, None, Ending.NACKED]


def test_an_ending_given_anew_does_not_hold_up_the_forgetting(
    endings: Endings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ENDINGS_MAX", 2)
    add(endings, 1, 2, Ending.NACKED, NOW)
    add(endings, 2, 2, Ending.NACKED, NOW)
    add(endings, 1, 2, Ending.ACKED, NOW + limits.ENDING_KEPT_US + 1)
    add(endings, 3, 2, Ending.NACKED, NOW + limits.ENDING_KEPT_US + 2)

    assert len(endings) <= 2
    assert endings.of(3, 2) is Ending.NACKED


@pytest.mark.parametrize("ending", [Ending.ACKED, Ending.PURGED])
def test_the_generation_that_a_message_finished_with_is_known(endings: Endings, ending: Ending) -> None:
    add(endings, MESSAGE, 2, ending, NOW)

    assert [endings.of(MESSAGE, generation) for generation in (1, 2, 3)] == [None, ending, None]
    assert endings.finishing_generation(MESSAGE) == 2


def test_a_message_that_was_forwarded_was_so_for_every_generation(endings: Endings) -> None:
    """But a nack that is repeated is told so, and what comes after a seek is another matter."""
    for generation in (2, 3):
        add(endings, MESSAGE, generation, Ending.NACKED, NOW)
    add(endings, MESSAGE, 3, Ending.FORWARDED, NOW)

    assert [endings.of(MESSAGE, generation) for generation in (1, 2, 3, 4)] == [
        Ending.FORWARDED,
        Ending.NACKED,
        Ending.NACKED,
        None,
    ]
    assert endings.of(MESSAGE + 1, 1) is None


def test_it_is_known_of_which_messages_the_end_is_remembered(endings: Endings) -> None:
    add(endings, MESSAGE, 1, Ending.NACKED, NOW)
    assert not endings.knows(MESSAGE)

    add(endings, MESSAGE, 2, Ending.PURGED, NOW)
    assert endings.knows(MESSAGE)


def test_a_message_that_came_back_ends_anew(endings: Endings) -> None:
    add(endings, MESSAGE, 2, Ending.PURGED, NOW)
    add(endings, MESSAGE, 4, Ending.ACKED, NOW + 1)

    assert [endings.of(MESSAGE, generation) for generation in (2, 4)] == [None, Ending.ACKED]
    assert endings.finishing_generation(MESSAGE) == 4
    assert len(endings) == 1


def test_without_an_entry_the_caller_says_which_generation_came_first(endings: Endings) -> None:
    """After a seek that is not the first of all."""
    assert endings.finishing_generation(MESSAGE, 5) == 5


def test_all_entries_can_be_listed(endings: Endings) -> None:
    add(endings, MESSAGE, 3, Ending.ACKED, NOW)
    add(endings, MESSAGE, 1, Ending.NACKED, NOW)

    assert list(endings) == [(MESSAGE, 1, Ending.NACKED), (MESSAGE, 3, Ending.ACKED)]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.integers(1, 4), st.sampled_from(Ending), st.integers(0, limits.HOUR_US)
        ),
        max_size=40,
    )
)
def test_whatever_is_within_its_time_is_known(steps: list[tuple[int, int, Ending, int]]) -> None:
    endings = Endings()
    nacked: dict[tuple[int, int], int] = {}
    finished: dict[int, tuple[int, Ending, int]] = {}
    now_us = NOW
    for message_id, generation, ending, later_us in steps:
        now_us += later_us
        if message_id in finished:
            continue  # it has no further endings
        if ending is Ending.NACKED:
            nacked[message_id, generation] = now_us
        else:
            if ending is Ending.ACKED:
                nacked.pop((message_id, generation), None)
            finished[message_id] = (generation, ending, now_us)
        add(endings, message_id, generation, ending, now_us)
    oldest_us = max([*nacked.values(), *[at_us for *_, at_us in finished.values()]], default=NOW)
    oldest_us -= limits.ENDING_KEPT_US

    for (message_id, generation), at_us in nacked.items():
        if at_us >= oldest_us:
            assert endings.of(message_id, generation) is Ending.NACKED
    for message_id, (generation, ending, at_us) in finished.items():
        if at_us >= oldest_us:
            assert endings.of(message_id, generation) in (ending, Ending.NACKED)
            assert endings.finishing_generation(message_id) == generation
        assert endings.finishing_generation(message_id) in (generation, 1)
    said = {(*key, Ending.NACKED) for key in nacked}
    said |= {(message_id, generation, ending) for message_id, (generation, ending, _) in finished.items()}
    assert set(endings) <= said
