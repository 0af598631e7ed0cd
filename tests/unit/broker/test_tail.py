"""The newest messages in memory, and what leaves first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.broker import tail as tail_module
from pubsubd.broker.entry import Entry
from pubsubd.broker.tail import Tail, TailBudget
from pubsubd.model import limits


def entries(*message_ids: int, size: int = 10) -> list[Entry]:
    return [Entry(message_id, 0, 0, b"." * size) for message_id in message_ids]


def ids(found: list[Entry]) -> list[int]:
    return [entry.message_id for entry in found]


@pytest.fixture
def tail() -> Tail:
    """Messages 3, 5, 8, 9 and 12; up to 2 there was something else."""
    tail = Tail(2)
    tail.append(entries(3, 5))
    tail.append(entries(8, 9, 12))
    return tail


def test_a_message_is_found_by_its_id(tail: Tail) -> None:
    assert entries(8) == [tail.find(8)]
    assert [tail.find(message_id) for message_id in (1, 4, 10, 13)] == [None] * 4


@pytest.mark.parametrize(
    ("after", "there"), [(2, [3, 5]), (3, [5, 8]), (4, [5, 8]), (9, [12]), (12, []), (99, [])]
)
def test_what_follows_an_id_is_found(tail: Tail, after: int, there: list[int]) -> None:
    assert there == ids(tail.after(after, 2))


def test_what_was_evicted_is_not_found_and_moves_the_floor(tail: Tail) -> None:
    tail.evict_through(8)

    assert tail.floor == 8
    assert [tail.find(message_id) for message_id in (3, 5, 8)] == [None, None, None]
    assert ids(tail.after(8, 10)) == [9, 12]


def test_evicting_what_is_gone_changes_nothing(tail: Tail) -> None:
    tail.evict_through(8)
    tail.evict_through(5)

    assert tail.floor == 8
    assert ids(tail.after(8, 10)) == [9, 12]


def test_the_floor_is_the_last_message_evicted_although_nothing_follows(tail: Tail) -> None:
    tail.evict_through(12)

    assert tail.floor == 12
    assert tail.after(12, 10) == []
    tail.append(entries(20))
    assert ids(tail.after(12, 10)) == [20]


def test_evicted_messages_do_not_stay_in_memory_for_ever() -> None:
    tail = Tail(0)
    for message_id in range(1, 5001):
        tail.append(entries(message_id))
        tail.evict_through(message_id - 10)

    assert len(tail._entries) <= tail_module._EVICT_MIN + 10


@pytest.fixture
def hundred_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 100)
    yield


def fill(budget: TailBudget, tail: Tail, *message_ids: int, size: int) -> None:
    tail.append(entries(*message_ids, size=size))
    budget.added(tail, message_ids[-1], size * len(message_ids))


@pytest.mark.usefixtures("hundred_bytes")
def test_the_oldest_go_first_whatever_their_topic() -> None:
    budget, orders, invoices = TailBudget(), Tail(0), Tail(0)
    fill(budget, orders, 1, size=60)
    fill(budget, invoices, 2, size=40)
    budget.evict(2)
    assert (orders.floor, invoices.floor) == (0, 0), "a hundred bytes are within the bound"

    fill(budget, invoices, 3, size=1)
    budget.evict(3)

    assert (orders.floor, invoices.floor) == (1, 0)


@pytest.mark.usefixtures("hundred_bytes")
def test_what_is_not_committed_stays() -> None:
    budget, tail = TailBudget(), Tail(0)
    fill(budget, tail, 1, 2, size=100)
    fill(budget, tail, 3, size=100)

    budget.evict(0)
    budget.evict(1)
    assert ids(tail.after(0, 10)) == [1, 2, 3], "part of a publish does not go either"

    budget.evict(2)
    assert (tail.floor, ids(tail.after(2, 10))) == (2, [3])


@pytest.mark.usefixtures("hundred_bytes")
def test_a_single_publish_above_the_bound_goes_as_soon_as_it_is_committed() -> None:
    budget, tail = TailBudget(), Tail(0)
    fill(budget, tail, 1, size=5000)

    budget.evict(1)

    assert tail.floor == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.booleans()), max_size=60))
def test_the_sum_is_bounded_and_what_is_left_is_the_newest(steps: list[tuple[int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TAIL_BYTES_MAX", 100)
        patch.setattr(tail_module, "_EVICT_MIN", 3)
        budget, tails = TailBudget(), [Tail(0), Tail(0), Tail(0)]
        published: list[list[Entry]] = [[], [], []]
        committed = 0
        for message_id, (which, size, commits) in enumerate(steps, 1):
            fill(budget, tails[which], message_id, size=size)
            published[which] += entries(message_id, size=size)
            if commits:
                committed = message_id
                budget.evict(committed)
        kept = [entry for tail in tails for entry in tail.after(tail.floor, 100)]
        for tail, everything in zip(tails, published, strict=True):
            assert [entry for entry in everything if entry.message_id > tail.floor] == tail.after(
                tail.floor, 100
            )
            assert [
                tail.find(entry.message_id) for entry in everything if entry.message_id > tail.floor
            ] == tail.after(tail.floor, 100)
        assert all(tail.floor <= committed for tail in tails)
        uncommitted = [entry for entry in kept if entry.message_id > committed]
        if steps and steps[-1][2]:
            assert sum(len(entry.data) for entry in kept) <= 100 or not uncommitted
