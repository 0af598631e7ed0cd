"""The lease table: deadlines tested a microsecond before, at, and a microsecond after them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pubsubd.eod import lease as lease_module
from pubsubd.eod.lease import Lease, LeaseTable
from pubsubd.flow.window import Window
from tests.unit.eod.hypothesis_settings import QUICK, THOROUGH

NOW = 1_800_000_000_000_000


class Holder(Window):
    __slots__ = ("confirms_receipt",)

    def __init__(self) -> None:
        super().__init__()
        self.confirms_receipt = False


def a_lease(message_id: int, deadline_us: int, generation: int = 1, holder: Holder | None = None) -> Lease:
    ack_id = f"{message_id}-{generation}"
    return Lease(message_id, generation, 1, deadline_us, NOW, 100, 0, ack_id, holder, 1, 1)


def granted(
    table: LeaseTable, *message_ids: int, deadline_us: int, holder: Holder | None = None
) -> list[Lease]:
    leases = [a_lease(message_id, deadline_us, holder=holder) for message_id in message_ids]
    table.grant(leases)
    if holder is not None:
        holder.outstanding_messages += len(leases)
        holder.outstanding_bytes += sum(lease.size for lease in leases)
    return leases


def ids(leases: Sequence[Lease]) -> list[int]:
    return [lease.message_id for lease in leases]


@pytest.fixture
def table() -> LeaseTable:
    return LeaseTable()


def test_an_empty_table_has_no_deadline(table: LeaseTable) -> None:
    assert len(table) == 0
    assert table.next_deadline_us() is None
    assert table.lapsed(NOW) == []


@pytest.mark.parametrize(("after_us", "runs"), [(-1, True), (0, True), (1, False)])
def test_a_lease_runs_up_to_and_including_its_deadline(table: LeaseTable, after_us: int, runs: bool) -> None:
    (lease,) = granted(table, 1, deadline_us=NOW)

    leases, others = table.running(["1-1"], NOW + after_us)

    assert ([lease], []) == (leases, others) if runs else (leases, others) == ([], ["1-1"])


@pytest.mark.parametrize(("after_us", "runs"), [(-1, True), (0, True), (1, False)])
def test_a_lease_does_not_lapse_before_its_deadline_is_over(
    table: LeaseTable, after_us: int, runs: bool
) -> None:
    granted(table, 1, deadline_us=NOW)

    assert ([] if runs else [1]) == ids(table.lapsed(NOW + after_us))


def test_ids_are_split_in_order_and_unknown_ones_are_others(table: LeaseTable) -> None:
    granted(table, 1, 2, 3, deadline_us=NOW)

    leases, others = table.running(["3-1", "x", "1-1", "1-2", ""], NOW)

    assert ids(leases) == [3, 1]
    assert others == ["x", "1-2", ""]


def test_an_extended_lease_runs_until_its_new_deadline(table: LeaseTable) -> None:
    leases = granted(table, 1, 2, deadline_us=NOW)

    table.extend(leases[:1], NOW + 5)

    assert ids(table.lapsed(NOW + 5)) == [2]
    table.end([leases[1]])
    assert table.next_deadline_us() == NOW + 5
    assert ids(table.lapsed(NOW + 6)) == [1]


def test_a_lease_may_be_shortened(table: LeaseTable) -> None:
    leases = granted(table, 1, 2, deadline_us=NOW + 100)

    table.extend(leases[1:], NOW + 5)

    assert table.next_deadline_us() == NOW + 5
    assert ids(table.lapsed(NOW + 6)) == [2]
    table.end(leases[1:])
    assert ids(table.lapsed(NOW + 101)) == [1]


def test_a_lease_that_was_moved_and_moved_back_lapses_once(table: LeaseTable) -> None:
    leases = granted(table, 1, deadline_us=NOW)
    table.extend(leases, NOW + 9)
    table.extend(leases, NOW)
    table.extend(leases, NOW)
    table.check_invariants()

    assert table.lapsed(NOW) == []
    assert ids(table.lapsed(NOW + 1)) == [1]
    table.end(leases)
    assert table.lapsed(NOW + 100) == []


def test_a_message_delivered_again_has_only_its_new_lease(table: LeaseTable) -> None:
    table.end(granted(table, 1, deadline_us=NOW))

    table.grant([a_lease(1, NOW + 50, generation=2)])

    assert table.lapsed(NOW + 50) == []
    assert table.running(["1-1"], NOW) == ([], ["1-1"])
    assert ids(table.running(["1-2"], NOW)[0]) == [1]
    assert [lease.generation for lease in table.lapsed(NOW + 51)] == [2]


def test_the_next_deadline_is_never_later_than_the_truth(table: LeaseTable) -> None:
    granted(table, 1, deadline_us=NOW + 30)
    granted(table, 2, deadline_us=NOW + 10)
    granted(table, 3, deadline_us=NOW + 20)

    assert table.next_deadline_us() == NOW + 10
    table.end(table.lapsed(NOW + 11))
    assert table.next_deadline_us() == NOW + 20
    table.end(list(table))
    assert table.next_deadline_us() is None


def test_leases_that_share_a_deadline_lapse_in_the_order_they_were_granted(table: LeaseTable) -> None:
    granted(table, 5, 3, deadline_us=NOW)
    granted(table, 9, 1, deadline_us=NOW)

    assert ids(table.lapsed(NOW + 1)) == [5, 3, 9, 1]


def test_an_ended_lease_frees_the_window_of_its_holder(table: LeaseTable) -> None:
    holder, other = Holder(), Holder()
    leases = granted(table, 1, 2, deadline_us=NOW, holder=holder)
    granted(table, 3, deadline_us=NOW, holder=other)
    granted(table, 4, deadline_us=NOW)

    table.end(leases[:1])

    assert (holder.outstanding_messages, holder.outstanding_bytes) == (1, 100)
    assert (other.outstanding_messages, other.outstanding_bytes) == (1, 100)
    assert ids(list(table)) == [2, 3, 4]


def entries(table: LeaseTable) -> int:
    return sum(len(leases) for _, _, leases in table._due)


def test_memory_follows_what_is_outstanding_not_what_was(table: LeaseTable) -> None:
    """A hundred thousand leases come and go under one that stays, whose entry is first in the heap."""
    granted(table, 0, deadline_us=NOW)
    most = 0
    for start in range(1, 100_001, 100):
        table.end(granted(table, *range(start, start + 100), deadline_us=NOW + start))
        most = max(most, entries(table))

    assert most <= lease_module._SWEEP_MIN + 2 * 101
    table.check_invariants()


def test_memory_is_bounded_when_one_lease_is_extended_for_ever(table: LeaseTable) -> None:
    leases = granted(table, *range(100), deadline_us=NOW)
    most = 0
    for step in range(1000):
        table.extend(leases, NOW + step)
        most = max(most, entries(table))

    assert most <= lease_module._SWEEP_MIN + 3 * 100
    table.check_invariants()


def test_a_sweep_loses_no_deadline(table: LeaseTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_SWEEP_MIN", 0)
    leases = [lease for n in range(50) for lease in granted(table, n, deadline_us=NOW + n)]
    for lease in leases[::2]:
        table.extend([lease], lease.deadline_us + 1000)
        table.extend([lease], lease.deadline_us + 1000)
    table.end(leases[1::4])

    table.check_invariants()
    expected = sorted(leases[::2] + leases[3::4], key=lambda lease: lease.deadline_us)
    assert ids(expected) == ids(table.lapsed(NOW + 10_000))


class Machine(RuleBasedStateMachine):
    """The table beside a dictionary of deadlines."""

    times = st.integers(0, 30)

    @initialize()
    def begin(self) -> None:
        self.table = LeaseTable()
        self.now_us = NOW
        self.deadlines: dict[int, int] = {}
        self.generations: dict[int, int] = {}
        self.holder = Holder()

    @rule(message_ids=st.sets(st.integers(1, 8), min_size=1), seconds=times)
    def grant(self, message_ids: set[int], seconds: int) -> None:
        fresh = sorted(message_ids - self.deadlines.keys())
        if not fresh:
            return
        for message_id in fresh:
            self.generations[message_id] = self.generations.get(message_id, 0) + 1
            self.deadlines[message_id] = self.now_us + seconds
        self.table.grant(
            [a_lease(one, self.now_us + seconds, self.generations[one], self.holder) for one in fresh]
        )
        self.holder.outstanding_messages += len(fresh)
        self.holder.outstanding_bytes += 100 * len(fresh)

    def named(self, message_ids: set[int]) -> list[str]:
        return [f"{message_id}-{self.generations.get(message_id, 1)}" for message_id in sorted(message_ids)]

    @rule(message_ids=st.sets(st.integers(1, 8)), seconds=times)
    def extend(self, message_ids: set[int], seconds: int) -> None:
        leases, others = self.table.running(self.named(message_ids), self.now_us)
        running = [one for one in sorted(message_ids) if self.deadlines.get(one, -1) >= self.now_us]
        assert running == ids(leases)
        assert len(others) == len(message_ids) - len(running)
        if leases:
            self.table.extend(leases, self.now_us + seconds)
            self.deadlines.update(dict.fromkeys(running, self.now_us + seconds))

    @rule(message_ids=st.sets(st.integers(1, 8)))
    def end(self, message_ids: set[int]) -> None:
        leases, _ = self.table.running(self.named(message_ids), self.now_us)
        self.table.end(leases)
        for lease in leases:
            del self.deadlines[lease.message_id]

    @rule(seconds=st.integers(0, 10))
    def pass_time(self, seconds: int) -> None:
        self.now_us += seconds

    @rule()
    def lapse(self) -> None:
        lapsed = self.table.lapsed(self.now_us)
        assert {one for one, deadline in self.deadlines.items() if deadline < self.now_us} == set(ids(lapsed))
        assert len(set(ids(lapsed))) == len(lapsed)
        self.table.end(lapsed)
        for lease in lapsed:
            del self.deadlines[lease.message_id]

    @invariant()
    def holds(self) -> None:
        table = self.table
        table.check_invariants()
        assert self.deadlines == {lease.message_id: lease.deadline_us for lease in table}
        assert len(self.deadlines) == len(table) == self.holder.outstanding_messages
        assert 100 * len(table) == self.holder.outstanding_bytes
        hint = table.next_deadline_us()
        assert (hint is None) == (not self.deadlines)
        assert hint is None or hint <= min(self.deadlines.values())
        assert entries(table) <= 3 * len(table) + lease_module._SWEEP_MIN + 8


@pytest.mark.parametrize("sweep_min", [0, 4, 4096])
def test_the_table_agrees_with_a_dictionary(sweep_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_SWEEP_MIN", sweep_min)
    run_state_machine_as_test(Machine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("sweep_min", [0, 4])
def test_the_table_agrees_with_a_dictionary_for_long(sweep_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_SWEEP_MIN", sweep_min)
    run_state_machine_as_test(Machine, settings=THOROUGH)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 6))
def test_what_has_lapsed_and_what_runs_are_everything(deadlines: list[int], now: int) -> None:
    table = LeaseTable()
    for message_id, deadline in enumerate(deadlines):
        granted(table, message_id, deadline_us=NOW + deadline)
    ack_ids = [f"{message_id}-1" for message_id in range(len(deadlines))]

    running, others = table.running(ack_ids, NOW + now)
    lapsed = table.lapsed(NOW + now)

    assert set(ids(running)) | set(ids(lapsed)) == set(range(len(deadlines)))
    assert not set(ids(running)) & set(ids(lapsed))
    assert {f"{message_id}-1" for message_id in ids(lapsed)} == set(others)
