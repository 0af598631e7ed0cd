"""The layout of journal records: other programs read it, so it is written down here once more."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.journal.record import RECORD, VERSION, Row, pack, unpack
from pubsubd.model.events import Event, Kind, Result

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BYTE = st.integers(-128, 127)
EVENTS = st.builds(
    Event, INT64, BYTE, INT32, INT32, INT64, INT32, INT32, INT64, INT64, BYTE, INT32, INT64, INT64, INT32,
    INT64, INT64,
)  # fmt: skip  # short items, many to a line


def test_a_record_is_98_bytes_little_endian_without_padding() -> None:
    event = Event(
        ts_us=2, kind=3, topic_id=4, sub_id=5, message_id=6, generation=7, attempt=8, deadline_us=9,
        ref_ts_us=10, result=11, client_id=12, stream_id=13, okey=14, bytes=15, payload_hash=16, aux=17,
    )  # fmt: skip  # short items, many to a line

    row = pack(1, [event])

    assert (RECORD.format, len(row.data)) == ("<qqbiiqiiqqbiqqiqq", 98)
    assert struct.unpack("<qqbiiqiiqqbiqqiqq", row.data) == tuple(range(1, 18))


def test_a_row_holds_its_events_in_order_and_numbered_without_a_gap() -> None:
    events = [Event(at, Kind.ACK, message_id=at) for at in range(5)]

    row = pack(100, events)

    assert (row.first_seq, row.n, row.version) == (100, 5, VERSION)
    assert list(unpack(row)) == [(100 + at, event) for at, event in enumerate(events)]


@given(st.integers(1, 2**62), st.lists(EVENTS, max_size=5))
def test_what_is_packed_is_unpacked(first_seq: int, events: list[Event]) -> None:
    assert list(unpack(pack(first_seq, events))) == list(enumerate(events, first_seq))


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2"):
        list(unpack(Row(1, 0, 2, b"")))


def test_the_numbers_of_kinds_and_results() -> None:
    """They are on disk, and readers have them as numbers."""
    assert [kind.name for kind in Kind] == [
        "PUBLISH", "DELIVER", "EXTEND", "NACK", "ACK", "EXPIRE", "DEADLETTER", "DROP", "SEEK", "CONFIG",
        "FILTERED", "STREAM", "START", "GAP", "RESET",
    ]  # fmt: skip  # short items, many to a line
    assert list(map(int, Kind)) == list(range(1, 16))
    assert [result.name for result in Result] == ["OK", "NOOP", "PERMANENT", "TRANSIENT", "OTHER"]
    assert list(map(int, Result)) == list(range(5))
