"""Events are numbered without a hole, and what a bounded tail drops is told."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.journal.journal import Append, Journal
from pubsubd.journal.record import RECORD, unpack
from pubsubd.model.events import Event, Kind

NOW_US = 1_700_000_000_000_000
# A GAP event tells its last number in a detail, which takes room as well.
GAP_DETAIL_BYTES = 40


def acks(count: int) -> list[Event]:
    return [Event(NOW_US, Kind.ACK, message_id=at + 1) for at in range(count)]


class Tail:
    """The table that a journal writes to, as storage would keep it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.journal = Journal(0, (), bytes_max)
        self.rows: dict[int, list[tuple[int, Event]]] = {}
        self.details: dict[int, str] = {}

    def append(self, count: int) -> Append:
        append = self.journal.append(acks(count), [], NOW_US)
        assert append is not None
        self.rows = {first: row for first, row in self.rows.items() if first > append.drop_through_seq}
        self.details = {seq: text for seq, text in self.details.items() if seq > append.drop_through_seq}
        self.rows[append.row.first_seq] = list(unpack(append.row))
        self.details.update(append.details)
        return append

    @property
    def seqs(self) -> list[int]:
        return [seq for row in self.rows.values() for seq, _ in row]

    @property
    def bytes(self) -> int:
        return RECORD.size * len(self.seqs) + sum(map(len, self.details.values()))


def gaps(append: Append) -> list[tuple[int, int]]:
    """The first and last lost number of each GAP event in a row."""
    details = dict(append.details)
    return [
        (event.aux, json.loads(details[seq])["last"])
        for seq, event in unpack(append.row)
        if event.kind == Kind.GAP
    ]


def test_numbers_begin_at_one_and_go_on_over_commits() -> None:
    journal = Journal(0, (), 1 << 20)

    first, second = journal.append(acks(2), [], NOW_US), journal.append(acks(1), [], NOW_US)

    assert first is not None and second is not None
    assert [seq for append in (first, second) for seq, _ in unpack(append.row)] == [1, 2, 3]
    assert journal.last_seq == 3


def test_numbers_go_on_after_a_restart() -> None:
    append = Journal(41, [(40, 2, 2 * RECORD.size)], 1 << 20).append(acks(1), [], NOW_US)

    assert append is not None
    assert append.row.first_seq == 42


def test_a_commit_without_events_writes_nothing() -> None:
    journal = Journal(7, (), 0)

    assert journal.append([], [], NOW_US) is None
    assert journal.last_seq == 7


def test_a_detail_goes_with_the_number_of_its_event() -> None:
    append = Journal(10, (), 1 << 20).append(acks(3), [(0, {"b": 1, "a": "é"}), (2, {})], NOW_US)

    assert append is not None
    assert [(seq, json.loads(text)) for seq, text in append.details] == [(11, {"a": "é", "b": 1}), (13, {})]


def test_within_the_bound_nothing_is_dropped() -> None:
    tail = Tail(10 * RECORD.size)

    for _ in range(5):
        append = tail.append(2)
        assert (append.drop_through_seq, gaps(append)) == (0, [])
    assert tail.seqs == list(range(1, 11))


def test_the_oldest_rows_are_dropped_and_the_same_commit_says_so() -> None:
    tail = Tail(10 * RECORD.size + GAP_DETAIL_BYTES)
    for _ in range(5):
        tail.append(2)

    append = tail.append(2)

    # Two more events and the GAP itself need the room of two rows.
    assert append.drop_through_seq == 4
    assert gaps(append) == [(1, 4)]
    assert tail.seqs == list(range(5, 14))


def test_one_event_names_all_that_a_commit_drops() -> None:
    tail = Tail(10 * RECORD.size + GAP_DETAIL_BYTES)
    for _ in range(10):
        tail.append(1)

    append = tail.append(6)

    assert gaps(append) == [(1, 7)]
    assert tail.seqs == list(range(8, 18))


def test_details_of_dropped_events_go_too() -> None:
    tail = Tail(4 * RECORD.size)

    for _ in range(20):
        tail.append(2)

    assert set(tail.details) <= set(tail.seqs)


def test_a_commit_larger_than_the_bound_is_kept_whole() -> None:
    tail = Tail(4 * RECORD.size)
    tail.append(2)

    append = tail.append(50)

    # A commit is one row, and an event that is true is never left out.
    assert gaps(append) == [(1, 2)]
    assert len(tail.seqs) == 51


def test_the_bound_holds_after_a_restart() -> None:
    rows = [(1 + 2 * at, 2, 2 * RECORD.size) for at in range(5)]

    append = Journal(10, rows, 4 * RECORD.size + GAP_DETAIL_BYTES).append(acks(1), [], NOW_US)

    assert append is not None
    assert gaps(append) == [(1, 8)]
    assert append.row.n == 2


def test_details_count_towards_the_bound() -> None:
    journal = Journal(1, [(1, 1, RECORD.size)], 10 * RECORD.size)

    append = journal.append(acks(1), [(0, {"client": "x" * 900})], NOW_US)

    assert append is not None
    assert gaps(append) == [(1, 1)]


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tail = Tail(4 * RECORD.size)

    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            tail.append(2)

    assert len(caplog.records) == 1


@given(st.integers(3, 40), st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_a_reader_knows_what_it_does_not_see(records_max: int, sizes: list[int]) -> None:
    tail = Tail(records_max * RECORD.size)
    lost: set[int] = set()

    for count in sizes:
        append = tail.append(count)
        told = gaps(append)
        # At most one GAP in a commit, and it names exactly what that commit dropped.
        assert len(told) == bool(append.drop_through_seq)
        for first, last in told:
            assert last == append.drop_through_seq
            assert first == max(lost, default=0) + 1
            lost.update(range(first, last + 1))
        # Every number is either there or named, and the bound holds unless this one commit is larger.
        assert sorted(lost | set(tail.seqs)) == list(range(1, tail.journal.last_seq + 1))
        assert not lost & set(tail.seqs)
        assert tail.bytes <= tail.bytes_max or tail.seqs == [seq for seq, _ in unpack(append.row)]


# --- what is sealed ----------------------------------------------------------------------------------------


def filled(rows: int, *, bytes_max: int = 1 << 20, sealed_seq: int = 0) -> Journal:
    """A journal that finds `rows` rows of two events each."""
    found = [(1 + 2 * at, 2, 2 * RECORD.size) for at in range(rows)]
    return Journal(2 * rows, found, bytes_max, sealed_seq=sealed_seq, now_us=NOW_US)


def test_rows_that_are_sealed_go_with_the_next_commit() -> None:
    journal = filled(5)
    assert not journal.has_sealed_rows

    journal.sealed(6)

    assert journal.has_sealed_rows
    assert journal.forget_sealed() == 6
    assert not journal.has_sealed_rows
    assert journal.forget_sealed() == 0


def test_a_row_that_is_sealed_in_part_stays_until_it_is_sealed_whole() -> None:
    journal = filled(5)

    journal.sealed(7)

    assert journal.forget_sealed() == 6
    assert journal.unsealed == 3
    journal.sealed(8)
    assert journal.forget_sealed() == 8


def test_a_commit_deletes_only_so_much_as_does_not_hold_it_up() -> None:
    million = 1024**2
    journal = Journal(20, [(1 + at, 1, million) for at in range(20)], 1 << 40)

    journal.sealed(20)

    steps = []
    while through_seq := journal.forget_sealed():
        steps.append(through_seq)
    assert steps == [4, 8, 12, 16, 20]


def test_what_was_sealed_before_the_start_goes_with_the_start() -> None:
    journal = filled(5, sealed_seq=4)

    assert journal.forget_sealed() == 4
    assert journal.unsealed == 6


def test_numbers_that_are_only_in_segments_are_not_missing() -> None:
    assert Journal(100, (), 1 << 20, sealed_seq=100).ends_at == 100
    assert Journal(100, (), 1 << 20, sealed_seq=90).ends_at == 90
    assert filled(5, sealed_seq=4).ends_at == 10


def test_it_tells_how_much_is_unsealed_and_since_when() -> None:
    journal = filled(2)
    assert (journal.unsealed, journal.unsealed_since_us) == (4, NOW_US)

    journal.append(acks(1), [], NOW_US + 5)
    journal.sealed(4)
    assert (journal.unsealed, journal.unsealed_since_us) == (1, NOW_US + 5)

    journal.sealed(5)
    assert (journal.unsealed, journal.unsealed_since_us) == (0, 0)


def test_sealed_rows_make_room_before_anything_is_lost() -> None:
    journal = filled(5, bytes_max=10 * RECORD.size)
    journal.sealed(4)

    append = journal.append(acks(2), [], NOW_US)

    assert append is not None
    assert append.drop_through_seq == 4
    assert gaps(append) == []


def test_a_gap_names_only_what_is_in_no_segment() -> None:
    journal = filled(5, bytes_max=10 * RECORD.size + GAP_DETAIL_BYTES)
    journal.sealed(3)

    append = journal.append(acks(5), [], NOW_US)

    # Rows 1 and 2 go, and row 3 too for the five events and the GAP; number 3 is in a segment.
    assert append is not None
    assert gaps(append) == [(4, append.drop_through_seq)]
