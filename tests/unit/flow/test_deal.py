"""Dealing: never above a window, equal parts, and nobody waits for anybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.flow.deal import Hand, deal
from pubsubd.flow.window import Window

WIDE = 1 << 60


class Pile:
    """Messages of the given sizes, numbered from 0: the plainest Source there is."""

    def __init__(self, sizes: Sequence[int], at_hand_max: int = WIDE) -> None:
        self.sizes = list(sizes)
        self.next = 0
        self.at_hand_max = at_hand_max

    def at_hand(self) -> int:
        return min(len(self.sizes) - self.next, self.at_hand_max)

    def take(
        self, consumer: Window, count: int, window_bytes: int, response_bytes: int, fresh: bool
    ) -> tuple[list[int], int]:
        assert count > 0 and window_bytes > 0
        items: list[int] = []
        total = 0
        while self.next < len(self.sizes) and len(items) < count and total < window_bytes:
            size = self.sizes[self.next]
            if total + size > response_bytes and (items or not fresh):
                break
            items.append(self.next)
            total += size
            self.next += 1
        return items, total


def from_seat(windows: Sequence[Window], first: int) -> list[Window]:
    """The table in the order in which it was last served, if the one at index `first` is next."""
    first %= len(windows)
    return [*windows[first:], *windows[:first]]


def dealt(
    sizes: Sequence[int], windows: Sequence[Window], first: int = 0, response_bytes: int = WIDE
) -> list[list[int]]:
    """What each window gets, in the order of `windows`."""
    hands: list[Hand[Window, int]] = deal(Pile(sizes), from_seat(windows, first), response_bytes)
    got = {id(hand.consumer): hand.items for hand in hands}
    return [got.get(id(window), []) for window in windows]


def book(hands: Sequence[Hand[Window, int]]) -> None:
    for hand in hands:
        hand.consumer.outstanding_messages += len(hand.items)
        hand.consumer.outstanding_bytes += hand.size


def test_one_consumer_gets_everything_in_order() -> None:
    assert dealt([1] * 4, [Window()]) == [[0, 1, 2, 3]]


def test_nothing_to_deal_is_no_hand() -> None:
    assert deal(Pile([]), [Window(), Window()], WIDE) == []


def test_an_empty_hand_is_not_returned() -> None:
    full, free = Window(1), Window(1)
    full.outstanding_messages = 1

    (hand,) = deal(Pile([1, 1]), [full, free], WIDE)

    assert hand.consumer is free
    assert (hand.items, hand.size) == ([0], 1)


def test_nothing_is_booked_by_dealing() -> None:
    window = Window(5, 100)

    deal(Pile([1] * 3), [window], WIDE)

    assert (window.outstanding_messages, window.outstanding_bytes) == (0, 0)


@pytest.mark.parametrize("outstanding", [0, 1, 6, 7, 9])
def test_the_message_limit_is_never_passed_within_one_response(outstanding: int) -> None:
    window = Window(7)
    window.outstanding_messages = outstanding

    (got,) = dealt([1] * 100, [window])

    assert max(0, 7 - outstanding) == len(got)


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (1000, 5)])
def test_the_byte_limit_is_passed_by_one_message_at_most(limit: int, count: int) -> None:
    (got,) = dealt([10] * 5, [Window(0, limit)])

    assert count == len(got)


def test_a_message_above_the_limit_passes_when_nothing_is_outstanding() -> None:
    (got,) = dealt([5000, 1], [Window(0, 100)])

    assert got == [0]


def test_a_message_above_the_limit_passes_below_the_limit_only() -> None:
    half, full = Window(0, 100), Window(0, 100)
    half.outstanding_bytes, full.outstanding_bytes = 99, 100

    assert dealt([5000, 1], [half, full]) == [[0], []]


@pytest.mark.parametrize("consumers", [1, 2, 3, 5, 8])
def test_equal_consumers_get_equal_shares(consumers: int) -> None:
    shares = [len(items) for items in dealt([1] * 1000, [Window() for _ in range(consumers)])]

    assert sum(shares) == 1000
    assert max(shares) - min(shares) <= consumers


def test_what_one_cannot_take_goes_to_the_others() -> None:
    shares = [len(items) for items in dealt([1] * 100, [Window(3), Window(), Window(10), Window()])]

    assert [shares[0], shares[2]] == [3, 10]
    assert sum(shares) == 100
    assert abs(shares[1] - shares[3]) <= 1


def test_a_full_consumer_does_not_stall_the_others() -> None:
    full = Window(1)
    full.outstanding_messages = 1

    shares = [len(items) for items in dealt([1] * 10, [full, Window(), full])]

    assert shares == [0, 10, 0]


def test_when_all_are_full_the_rest_stays() -> None:
    pile = Pile([1] * 10)

    deal(pile, [Window(2), Window(3)], WIDE)

    assert pile.at_hand() == 5


def test_messages_that_trickle_in_go_round() -> None:
    windows = [Window(), Window(), Window()]
    turns: Counter[int] = Counter()
    for turn in range(9):
        (hand,) = deal(Pile([1]), from_seat(windows, turn), WIDE)
        turns[windows.index(hand.consumer)] += 1

    assert turns == {0: 3, 1: 3, 2: 3}


def test_the_first_may_be_any_number() -> None:
    windows = [Window(), Window()]

    assert dealt([1], windows, first=7) == [[], [0]]
    assert dealt([1], windows, first=10**9) == [[0], []]


@pytest.mark.parametrize(("response_bytes", "count"), [(10, 1), (19, 1), (20, 2), (29, 2), (100, 10)])
def test_a_response_stays_within_its_bound(response_bytes: int, count: int) -> None:
    (got,) = dealt([10] * 10, [Window()], response_bytes=response_bytes)

    assert count == len(got)


def test_one_message_larger_than_a_response_goes_alone() -> None:
    small, large, then = dealt([1, 50, 1], [Window(), Window(), Window()], response_bytes=10)

    assert [small, large, then] == [[0], [1], [2]]


def test_a_large_message_waits_for_a_response_of_its_own() -> None:
    """It is the head of the line: overtaking it would break the order of what is delivered."""
    assert dealt([1, 1, 50, 1], [Window()], response_bytes=10) == [[0, 1]]


def test_a_source_that_fetches_more_while_it_is_dealt_from_is_asked_again() -> None:
    hands = deal(Pile([1] * 10, at_hand_max=3), [Window(), Window()], WIDE)

    assert sum(len(hand.items) for hand in hands) == 10
    assert len(hands) == 2


sizes = st.lists(st.integers(1, 40), max_size=60)
windows = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 200), st.integers(0, 15), st.integers(0, 250)),
    min_size=1,
    max_size=6,
)


@given(sizes, windows, st.integers(0, 1000), st.integers(1, 120))
def test_whatever_is_dealt_the_limits_hold(
    sizes: list[int], limits: list[tuple[int, int, int, int]], first: int, response_bytes: int
) -> None:
    consumers = []
    for max_messages, max_bytes, messages, size in limits:
        window = Window(max_messages, max_bytes)
        window.outstanding_messages, window.outstanding_bytes = messages, size
        consumers.append(window)
    pile = Pile(sizes)

    hands: list[Hand[Window, int]] = deal(pile, from_seat(consumers, first), response_bytes)

    dealt_items = sorted(item for hand in hands for item in hand.items)
    assert list(range(pile.next)) == dealt_items
    assert len({id(hand.consumer) for hand in hands}) == len(hands)
    for hand in hands:
        window = hand.consumer
        assert hand.items == sorted(hand.items)
        assert hand.size == sum(sizes[item] for item in hand.items)
        assert window.outstanding_messages + len(hand.items) <= window.max_messages
        before_the_last = window.outstanding_bytes + hand.size - sizes[hand.items[-1]]
        assert before_the_last < window.max_bytes
        assert hand.size <= response_bytes or len(hand.items) == 1
    if pile.at_hand():
        # Nobody could have taken the next one.
        book(hands)
        got = {id(hand.consumer): hand.size for hand in hands}
        for window in consumers:
            fits = got.get(id(window), 0) + sizes[pile.next] <= response_bytes or id(window) not in got
            assert not (window.room_messages() and fits)


@given(st.integers(0, 200), st.integers(1, 8), st.integers(0, 100))
def test_shares_of_equal_consumers_differ_by_little(messages: int, consumers: int, first: int) -> None:
    shares = [len(items) for items in dealt([1] * messages, [Window() for _ in range(consumers)], first)]

    assert messages == sum(shares)
    # What does not divide goes to the front of the table, which is another one in the next dealing.
    assert max(shares) <= -(-messages // consumers)


@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 1000))
def test_over_many_dealings_everybody_gets_the_same(count: int, consumers: int, first: int) -> None:
    """However few messages there are each time: the head of the table moves on."""
    table = [Window() for _ in range(consumers)]
    got: Counter[int] = Counter()
    for turn in range(first, first + 10 * consumers):
        for hand in deal(Pile([1] * count), from_seat(table, turn), WIDE):
            got[table.index(hand.consumer)] += len(hand.items)

    assert [got[seat] for seat in range(consumers)] == [10 * count] * consumers


class Bound:
    """Messages that are each for one consumer only, as those of an ordering key are."""

    def __init__(self, owners: Sequence[Window]) -> None:
        self.left = list(enumerate(owners))

    def at_hand(self) -> int:
        return len(self.left)

    def take(
        self, consumer: Window, count: int, window_bytes: int, response_bytes: int, fresh: bool
    ) -> tuple[list[int], int]:
        items = [item for item, owner in self.left if owner is consumer][:count]
        self.left = [(item, owner) for item, owner in self.left if item not in items]
        return items, len(items)


def test_what_is_for_one_consumer_goes_to_nobody_else() -> None:
    one, other = Window(), Window()

    hands = deal(Bound([one] * 9 + [other]), [other, one], WIDE)

    assert {id(hand.consumer): hand.items for hand in hands} == {id(one): [*range(9)], id(other): [9]}


def test_dealing_ends_when_what_is_left_is_for_nobody_who_is_there() -> None:
    absent, present = Window(), Window()
    source = Bound([absent, present, absent])

    (hand,) = deal(source, [present], WIDE)

    assert hand.items == [1]
    assert source.at_hand() == 2


def test_a_full_owner_holds_up_nobody() -> None:
    full, free = Window(1), Window()
    full.outstanding_messages = 1

    (hand,) = deal(Bound([full, free, full, free]), [full, free], WIDE)

    assert (hand.consumer, hand.items) == (free, [1, 3])
