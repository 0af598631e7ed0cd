"""Ordering keys by themselves: who may get the next message of a key, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.broker import keys as keys_module
from pubsubd.broker.keys import Key, Keys
from pubsubd.broker.waiting import Waiting
from pubsubd.eod.lease import Lease

K, L = 7, 8
NOW = 1000
LATER = 5000


class Client:
    """As much of a consumer as keys look at."""

    def __init__(self, name: str = "", once: bool = False, serial: bool = False) -> None:
        self.name = name
        self.once = once
        self.serial = serial

    def __repr__(self) -> str:
        return f"Client({self.name!r})"


class Desk:
    """The subscription around the keys: its leases, what waits, and who is there."""

    def __init__(self) -> None:
        self.now_us = NOW
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        self.clients: list[Any] = []
        self.asked: list[tuple[int, int]] = []  # (when, key) of the calls back that were asked for
        self.keys = Keys(
            self.leases, self.waiting, lambda at_us, okey: self.asked.append((at_us, okey)), self.is_open
        )

    def is_open(self, client: Any) -> bool:
        return client in self.clients

    def client(self, name: str = "", once: bool = False, serial: bool = False) -> Any:
        client = Client(name, once, serial)
        self.clients.append(client)
        return client

    def give(self, client: Any, *message_ids: int, okey: int = K) -> None:
        """As a delivery does: first all messages, then all leases."""
        key = self.keys.open(okey)
        for message_id in message_ids:
            assert self.keys.may_go(key, client, self.now_us)
            self.keys.given(key, client, message_id)
        for message_id in message_ids:
            self.leases[message_id] = lease(message_id, okey)
        self.keys.going.clear()

    def take(self, client: Any, okey: int = K) -> int:
        """The head of the queue goes to `client`, to whom it is offered."""
        key = self.keys.offered_to(client)
        assert key is not None and key.okey == okey
        message_id = self.keys.taken_from(key)
        self.waiting.pop(message_id, None)
        self.keys.given(key, client, message_id)
        self.keys.arrange(key, self.now_us)
        self.leases[message_id] = lease(message_id, okey)
        self.keys.going.clear()
        return message_id

    def ack(self, *message_ids: int) -> None:
        self.keys.ended([self.leases.pop(message_id) for message_id in message_ids], self.now_us)

    def park(self, *message_ids: int, okey: int = K) -> None:
        for message_id in message_ids:
            self.keys.put_last(self.keys.open(okey), message_id, self.now_us)

    def nack(self, *message_ids: int, ready_us: int = 0, exactly_once: bool = True) -> list[int]:
        """The leases of `message_ids` fail; ids of those behind them, which wait up to `LATER`."""
        failing = [self.leases[message_id] for message_id in message_ids]
        behind = self.keys.failed(failing)
        by_key: dict[int, list[int]] = {}
        for one in (*failing, *behind):
            collateral = exactly_once and one in behind
            until_us = LATER if collateral else ready_us if one in failing else 0
            del self.leases[one.message_id]
            self.waiting[one.message_id] = Waiting(1, 1, one.okey, until_us, collateral)
            by_key.setdefault(one.okey, []).append(one.message_id)
            if collateral:
                self.keys.collateral(self.keys.open(one.okey), self.waiting[one.message_id], self.now_us)
        for okey, ids in by_key.items():
            self.keys.put_back(self.keys.open(okey), sorted(ids), self.now_us)
        return [one.message_id for one in behind]

    def wake(self, at_us: int) -> None:
        """Time passes, and the calls back that are due are made."""
        self.now_us = at_us
        due = [okey for asked_us, okey in self.asked if asked_us < at_us]
        self.asked = [one for one in self.asked if one[0] >= at_us]
        for okey in due:
            self.keys.woken(okey, at_us)

    def close(self, client: Any) -> None:
        self.clients.remove(client)
        self.keys.closed(client, self.now_us)

    def may_go(self, client: Any, okey: int = K) -> bool:
        return self.keys.may_go(self.keys.open(okey), client, self.now_us)

    def offered(self, client: Any) -> int:
        """The key from whose queue `client` may take now; 0 without one."""
        key = self.keys.offered_to(client)
        return 0 if key is None else key.okey


def lease(message_id: int, okey: int) -> Lease:
    return Lease(message_id, 1, 1, LATER, NOW, 1, okey, f"id{message_id}-{okey}", None, 0, 1)


@pytest.fixture
def desk() -> Iterable[Desk]:
    desk = Desk()
    yield desk
    desk.keys.check_invariants()


# -- one stream to a key -----------------------------------------------------------------------------------


def test_a_free_key_is_anybodys_and_a_busy_one_its_streams(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    assert desk.may_go(one) and desk.may_go(other)

    desk.give(one, 1)
    assert desk.may_go(one) and not desk.may_go(other)

    desk.give(one, 2)
    desk.ack(1)
    assert not desk.may_go(other), "the second is still outstanding"


def test_a_key_is_forgotten_when_nothing_of_it_is_left(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2)
    desk.give(one, 3, okey=L)
    desk.ack(2)
    assert len(desk.keys) == 2

    desk.ack(1)
    assert [key.okey for key in desk.keys] == [L]
    assert desk.may_go(other)
    desk.give(other, 4)
    assert not desk.may_go(one)


def test_a_key_whose_stream_has_ended_waits_for_what_is_outstanding(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1)
    desk.park(2)
    desk.close(one)
    assert not desk.may_go(other)
    assert desk.offered(other) == 0

    desk.ack(1)
    assert desk.offered(other) == K
    assert desk.take(other) == 2


@pytest.mark.parametrize(
    ("name", "once", "may"), [("a", False, True), ("b", False, False), ("", False, False), ("a", True, False)]
)
def test_a_key_whose_stream_has_ended_goes_on_with_the_same_client(
    desk: Desk, name: str, once: bool, may: bool
) -> None:
    """A Pull has no client_id of its own, whatever it is called here."""
    one = desk.client("a")
    other = desk.client(name, once)
    desk.give(one, 1)
    assert not desk.may_go(other), "the stream is still there"
    desk.park(2)
    desk.close(one)

    assert desk.may_go(other) == may
    assert desk.offered(other) == (K if may else 0)


def test_a_client_without_a_name_is_not_the_same_as_another_without(desk: Desk) -> None:
    one, other = desk.client(""), desk.client("")
    desk.give(one, 1)
    desk.close(one)

    assert not desk.may_go(other)


def test_a_pull_gets_what_it_can_at_once_and_then_nobody_gets_any(desk: Desk) -> None:
    pull, again, stream = desk.client("a", once=True), desk.client("a", once=True), desk.client("a")
    desk.give(pull, 1, 2)
    desk.park(3)
    desk.close(pull)
    assert not desk.may_go(again) and not desk.may_go(stream)
    assert desk.offered(again) == desk.offered(stream) == 0

    desk.ack(1)
    assert desk.offered(again) == 0, "one batch at a time"
    desk.ack(2)
    assert desk.offered(again) == K


# -- the queue of a key ------------------------------------------------------------------------------------


def test_what_the_cursor_met_while_the_key_was_held_is_for_its_stream(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1)
    desk.park(2, 3)

    assert (desk.offered(one), desk.offered(other)) == (K, 0)
    assert [desk.take(one), desk.take(one)] == [2, 3]
    assert desk.offered(one) == 0
    assert desk.keys.queued == 0


def test_what_comes_back_goes_before_what_never_went(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1, 2)
    desk.park(4, 5)
    desk.nack(2)
    desk.nack(1)

    assert [desk.take(one) for _ in range(4)] == [1, 2, 4, 5]


def test_what_a_seek_brought_back_finds_its_place(desk: Desk) -> None:
    desk.park(5, 9)
    desk.keys.put_back(desk.keys.open(K), [3, 7], NOW)

    client = desk.client()
    assert [desk.take(client) for _ in range(4)] == [3, 5, 7, 9]


def test_a_head_that_is_held_holds_its_key_and_no_other(desk: Desk) -> None:
    """Its bytes are on their way, or it goes to the dead letter topic."""
    client = desk.client()
    desk.keys.held.add(1)
    desk.park(1, 2)
    desk.park(3, okey=L)
    assert desk.offered(client) == L

    desk.keys.held.discard(1)
    desk.keys.arrange(desk.keys.open(K), NOW)
    assert {desk.take(client, okey) for okey in (L, K)} == {3, 1}


def test_a_message_that_finishes_while_it_waits_makes_room(desk: Desk) -> None:
    client = desk.client()
    desk.keys.held.add(1)
    desk.park(1, 2)
    desk.keys.removed(K, 1, NOW)
    assert desk.keys.held == set()
    assert desk.take(client) == 2

    desk.ack(2)
    assert len(desk.keys) == 0


def test_one_that_finishes_in_the_middle_is_passed_over(desk: Desk) -> None:
    client = desk.client()
    desk.park(1, 2, 3, 4)
    desk.keys.removed(K, 2, NOW)
    desk.keys.removed(K, 3, NOW)
    assert desk.keys.queued == 2
    assert [desk.take(client), desk.take(client)] == [1, 4]

    assert (desk.keys.queued, desk.keys.gone) == (0, set())


def test_what_has_finished_is_not_counted_when_queues_are_cleared(desk: Desk) -> None:
    client = desk.client()
    desk.park(1, 2, 3, 4)
    desk.keys.removed(K, 2, NOW)
    desk.keys.removed(K, 4, NOW)

    assert desk.keys.keep_queued(lambda message_id: message_id > 1, NOW) == [1]
    assert (desk.keys.queued, desk.keys.gone) == (1, set())
    assert desk.take(client) == 3


def test_all_that_finish_one_by_one_leave_nothing(desk: Desk) -> None:
    desk.park(1, 2, 3)
    for message_id in (3, 2, 1):
        desk.keys.removed(K, message_id, NOW)

    assert (len(desk.keys), desk.keys.queued, desk.keys.gone) == (0, 0, set())


def test_the_last_one_that_finishes_takes_the_key_with_it(desk: Desk) -> None:
    desk.park(1)
    desk.keys.removed(K, 1, NOW)

    assert len(desk.keys) == 0
    assert not desk.keys.any_offered


def test_what_is_past_its_retention_leaves_all_queues(desk: Desk) -> None:
    client = desk.client()
    desk.park(1, 2, 5)
    desk.park(3, 6, okey=L)
    desk.park(4, okey=9)
    desk.keys.held.add(1)

    assert sorted(desk.keys.keep_queued(lambda message_id: message_id > 4, NOW)) == [1, 2, 3, 4]
    assert desk.keys.queued == 2
    assert desk.keys.held == set()
    assert sorted([desk.take(client, K), desk.take(client, L)]) == [5, 6]
    assert desk.keys.get(9) is None


# -- what waits for a moment -------------------------------------------------------------------------------


def test_a_message_that_rests_holds_its_key_until_then_and_not_at_it(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2)
    desk.nack(1, ready_us=LATER, exactly_once=False)
    assert desk.offered(one) == desk.offered(other) == 0
    assert desk.asked == [(LATER, K)]

    desk.wake(LATER)
    assert desk.offered(one) == 0
    desk.wake(LATER + 1)
    assert (desk.take(one), desk.take(one)) == (1, 2)
    assert not desk.may_go(other)


def test_collateral_messages_bind_the_key_to_its_stream(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2, 3)
    assert desk.nack(1) == [2, 3]
    assert not desk.may_go(other)
    assert (desk.offered(one), desk.offered(other)) == (K, 0)

    desk.close(one)
    assert desk.offered(other) == 0, "its callbacks may still be running"
    desk.wake(LATER)
    assert desk.offered(other) == 0
    desk.wake(LATER + 1)
    assert [desk.take(other) for _ in range(3)] == [1, 2, 3]


def test_a_collateral_message_does_not_go_before_its_moment(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1, 2)
    desk.nack(1)
    assert desk.take(one) == 1
    assert desk.offered(one) == 0

    desk.wake(LATER + 1)
    assert desk.take(one) == 2


def test_collateral_messages_that_were_nacked_bind_nobody(desk: Desk) -> None:
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2, 3)
    desk.nack(1)
    desk.close(one)
    for message_id, bound in ((2, True), (3, False)):
        desk.waiting[message_id].collateral, desk.waiting[message_id].ready_us = False, 0
        desk.keys.released(desk.waiting[message_id], NOW)
        assert (desk.offered(other) == 0) == bound

    assert [desk.take(other) for _ in range(3)] == [1, 2, 3]


def test_a_key_that_was_bound_before_is_bound_anew(desk: Desk) -> None:
    """The time of those that are collateral now counts, not that of others, long ago."""
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2)
    desk.nack(1)
    desk.wake(LATER + 1)
    assert [desk.take(one), desk.take(one)] == [1, 2]
    third = Waiting(1, 1, K, 2 * LATER, collateral=True)
    desk.keys.collateral(desk.keys.open(K), third, desk.now_us)
    desk.keys.released(third, desk.now_us)
    desk.ack(1, 2)

    assert len(desk.keys) == 0
    desk.give(other, 3)


def test_a_key_that_is_bound_and_empty_is_forgotten_when_it_is_over(desk: Desk) -> None:
    """Every collateral message of it was purged."""
    one, other = desk.client(), desk.client()
    desk.give(one, 1, 2)
    desk.nack(1)
    desk.waiting.clear()
    desk.keys.keep_queued(lambda message_id: False, NOW)
    assert not desk.may_go(other)

    desk.wake(LATER + 1)
    assert len(desk.keys) == 0


def test_what_a_pull_had_of_a_key_binds_nobody_once_it_failed(desk: Desk) -> None:
    pull, again = desk.client(once=True), desk.client(once=True)
    desk.give(pull, 1, 2)
    desk.close(pull)
    desk.nack(1)

    assert desk.take(again) == 1
    assert desk.offered(again) == 0, "the second is not due yet"


def test_calls_back_are_asked_for_once(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1)
    desk.nack(1, ready_us=LATER)
    for _ in range(5):
        desk.keys.arrange(desk.keys.open(K), NOW)
    assert desk.asked == [(LATER, K)]

    desk.waiting[1].ready_us = NOW + 1
    desk.keys.arrange(desk.keys.open(K), NOW)
    assert desk.asked == [(LATER, K), (NOW + 1, K)], "an earlier one is asked for beside it"
    desk.wake(NOW + 2)
    assert desk.take(one) == 1


def test_a_call_back_that_came_for_nothing_is_asked_for_again(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1)
    desk.nack(1, ready_us=LATER)
    desk.waiting[1].ready_us = 2 * LATER
    desk.wake(LATER + 1)

    assert desk.offered(one) == 0
    assert desk.asked == [(2 * LATER, K)]


# -- after a seek ------------------------------------------------------------------------------------------


def test_a_sealed_key_waits_for_what_is_outstanding_whoever_asks(desk: Desk) -> None:
    """The seek brought earlier messages back: nothing is delivered while a later one is being worked on."""
    one, same = desk.client("a"), desk.client("a")
    desk.give(one, 5)
    key = desk.keys.open(K)
    key.sealed = True
    desk.park(1, 2)
    assert not desk.may_go(one)
    assert desk.offered(one) == desk.offered(same) == 0

    desk.ack(5)
    assert not key.sealed
    assert [desk.take(same), desk.take(same)] == [1, 2]


def test_a_sealed_key_does_not_go_on_with_the_same_client_either(desk: Desk) -> None:
    one, same = desk.client("a"), desk.client("a")
    desk.give(one, 5)
    desk.keys.open(K).sealed = True
    desk.close(one)
    assert not desk.may_go(same)
    desk.park(1)
    assert desk.offered(same) == 0

    desk.ack(5)
    assert desk.take(same) == 1


def test_the_message_of_a_sealed_key_that_fails_goes_behind_the_earlier_ones(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 5, 6)
    desk.keys.open(K).sealed = True
    desk.park(1)
    assert desk.nack(5, exactly_once=False) == [6]

    assert [desk.take(one) for _ in range(3)] == [1, 5, 6]


# -- failures ----------------------------------------------------------------------------------------------


def test_behind_a_failure_is_what_is_outstanding_after_it(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1, 2, 3, 4)
    desk.give(one, 5, 6, okey=L)
    desk.ack(3)

    assert desk.nack(2) == [4]
    assert sorted(desk.leases) == [1, 5, 6]
    assert list(desk.keys.open(K).queue or ()) == [2, 4]


def test_failures_of_one_request_are_no_collateral_of_each_other(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1, 2, 3)
    desk.give(one, 4, 5, okey=L)

    assert desk.nack(5, 3, 1) == [2]
    assert sorted(desk.leases) == [4]


def test_what_was_redelivered_can_fail_again(desk: Desk) -> None:
    one = desk.client()
    desk.give(one, 1, 2)
    desk.nack(1, exactly_once=False)
    assert [desk.take(one), desk.take(one)] == [1, 2]

    assert desk.nack(1, exactly_once=False) == [2]
    assert [desk.take(one), desk.take(one)] == [1, 2]
    desk.ack(1, 2)
    assert len(desk.keys) == 0


# -- acks in order -----------------------------------------------------------------------------------------


def split(desk: Desk, *message_ids: int) -> tuple[list[int], list[int]]:
    good, ahead = desk.keys.split_in_order([desk.leases[message_id] for message_id in message_ids])
    return sorted(one.message_id for one in good), sorted(one.message_id for one in ahead)


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_a_request_is_judged_as_a_set(desk: Desk, order: tuple[int, ...]) -> None:
    desk.give(desk.client(), 1, 2, 3)

    assert split(desk, *order) == ([1, 2, 3], [])


def test_an_ack_ahead_of_its_key_waits_and_its_predecessors_count(desk: Desk) -> None:
    desk.give(desk.client(), 1, 2, 3, 4)

    assert split(desk, 2) == ([], [2])
    assert split(desk, 3, 1) == ([1], [3])
    assert split(desk, 4, 2, 1) == ([1, 2], [4])
    desk.ack(1, 2)
    assert split(desk, 3) == ([3], [])
    assert split(desk, 4) == ([], [4])


def test_keys_are_judged_by_themselves_and_what_has_none_not_at_all(desk: Desk) -> None:
    client = desk.client()
    desk.give(client, 1, 2)
    desk.give(client, 3, 4, okey=L)
    desk.leases[9] = lease(9, 0)

    assert split(desk, 2, 3, 4, 9) == ([3, 4, 9], [2])


@given(st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9)), st.randoms(use_true_random=False))
def test_in_order_means_that_nothing_before_it_stays_outstanding(
    acked: set[int], wanted: set[int], random: Any
) -> None:
    desk = Desk()
    desk.give(desk.client(), *range(1, 10))
    if acked:
        desk.ack(*acked)
    asked = list(wanted & desk.leases.keys())
    random.shuffle(asked)
    good = {one for one in asked if not any(other < one for other in desk.leases.keys() - wanted)}

    assert split(desk, *asked) == (sorted(good), sorted(set(asked) - good))


# -- cost --------------------------------------------------------------------------------------------------


def test_held_keys_are_not_looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = desk.client(), desk.client()
    for okey in range(100, 1100):
        desk.give(one, okey, okey=okey)
        desk.park(okey + 10_000, okey=okey)
    desk.park(5)
    looked: list[Key] = []
    whole = Keys.may_go
    monkeypatch.setattr(Keys, "may_go", lambda *args: looked.append(args[1]) or whole(*args))

    assert desk.take(other) == 5
    assert desk.offered(other) == 0
    assert looked == []


def test_a_key_that_is_never_idle_stays_small(desk: Desk) -> None:
    client = desk.client()
    desk.give(client, 1)
    for message_id in range(2, 2000):
        desk.give(client, message_id)
        desk.ack(message_id - 1)

    assert len(desk.keys.open(K).leased) <= 2 * keys_module._COMPACT_MIN


def test_nothing_is_offered_where_nothing_is(desk: Desk) -> None:
    client = desk.client("a")
    assert not desk.keys.any_offered
    desk.give(client, 1)
    desk.park(2)
    assert desk.keys.any_offered
    desk.take(client)
    desk.ack(1, 2)

    assert not desk.keys.any_offered
    assert (desk.keys._owned, desk.keys._named, desk.keys._free) == ({}, {}, {})


def test_no_place_is_left_behind_when_the_owner_changes(desk: Desk) -> None:
    one, same = desk.client("a"), desk.client("a")
    desk.give(one, 1)
    desk.park(2, 3)
    desk.close(one)
    assert desk.take(same) == 2
    assert desk.take(same) == 3
    desk.ack(1, 2, 3)

    assert (desk.keys._owned, desk.keys._named, desk.keys._free) == ({}, {}, {})
