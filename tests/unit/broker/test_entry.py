"""Messages in rows of storage."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.broker.entry import Entry, chunks, unpack_chunk
from pubsubd.model import limits

i64 = st.integers(-(2**63), 2**63 - 1)
# Never empty: the id and the publish time are part of what is stored.
messages = st.lists(
    st.tuples(st.integers(1, 1000), i64, i64, st.binary(min_size=1, max_size=60)), min_size=1, max_size=30
)


def ascending(found: list[tuple[int, int, int, bytes]]) -> list[Entry]:
    entries: list[Entry] = []
    message_id = 0
    for step, publish_us, okey, data in found:
        message_id += step
        entries.append(Entry(message_id, publish_us, okey, data))
    return entries


@given(messages, st.integers(1, 200))
def test_messages_survive_their_chunks(found: list[tuple[int, int, int, bytes]], bytes_max: int) -> None:
    entries = ascending(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES_MAX", bytes_max)
        rows = chunks(7, entries)

    assert entries == [entry for row in rows for entry in unpack_chunk(row.blob)]
    for row in rows:
        there = unpack_chunk(row.blob)
        assert (7, there[-1].message_id, there[-1].publish_us) == (row.topic_id, row.last_id, row.last_us)
        assert sum(len(entry.data) for entry in there) <= bytes_max or len(there) == 1
    # As few as the bound allows: the next message never had room in the row before.
    for row, following in itertools.pairwise(rows):
        size = sum(len(entry.data) for entry in unpack_chunk(row.blob))
        assert size + len(unpack_chunk(following.blob)[0].data) > bytes_max


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([10], [1]),
        ([50, 50], [2]),
        ([50, 51], [1, 1]),
        ([99, 1, 1], [2, 1]),
        # One larger than a row has a row of its own.
        ([500], [1]),
        ([1, 500, 1], [1, 1, 1]),
        ([0] * 10, [10]),
        ([100, 0], [2]),
    ],
)
def test_a_row_is_filled_up_to_its_bound(
    sizes: list[int], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 100)
    entries = [Entry(message_id, 0, 0, b"." * size) for message_id, size in enumerate(sizes, 1)]

    assert rows == [len(unpack_chunk(row.blob)) for row in chunks(1, entries)]


def test_empty_messages_survive() -> None:
    entries = [Entry(1, 5, 6, b""), Entry(2, 5, 6, b"")]

    (row,) = chunks(1, entries)

    assert entries == unpack_chunk(row.blob)
