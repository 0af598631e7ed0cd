"""The operation log: what is written is what is read."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.broker import oplog
from pubsubd.broker.effects import SubscriptionRow
from pubsubd.broker.saved import Replay, Saved

i32 = st.integers(0, 2**31 - 1)
i64 = st.integers(0, 2**63 - 1)
boot = st.integers(0, 2**32 - 1)


@st.composite
def delivered(draw: Callable[..., Any]) -> oplog.Delivered:
    size = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return list(draw(st.lists(values, min_size=size, max_size=size)))

    ones = st.just(1)
    plain = draw(st.booleans())
    generations, attempts = (ones, ones) if plain else (st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
    okeys = st.just(0) if plain else st.integers(-(2**63), 2**63 - 1)
    return oplog.Delivered(
        draw(i32), draw(i64), draw(i64), draw(i32), draw(boot), draw(i64),
        column(i64), column(i32), column(generations), column(attempts), column(okeys),
    )  # fmt: skip  # short items, many to a line


@st.composite
def columns(
    draw: Callable[..., Any], kind: Any, head: list[st.SearchStrategy[Any]], *values: st.SearchStrategy[int]
) -> Any:
    """A record of `kind` that ends with columns of one length."""
    rows = draw(st.lists(st.tuples(*values), max_size=6))
    return kind(*[draw(one) for one in head], *([row[at] for row in rows] for at in range(len(values))))


def pairs(draw: Callable[..., Any], second: st.SearchStrategy[int]) -> tuple[list[int], list[int]]:
    """Two columns of one length."""
    found = draw(st.lists(st.tuples(i64, second), max_size=4))
    return [one for one, _ in found], [other for _, other in found]


@st.composite
def sought(draw: Callable[..., Any]) -> oplog.Sought:
    return oplog.Sought(
        draw(i32), draw(i64), draw(i32), draw(text), draw(any_ids), *pairs(draw, key), *pairs(draw, i32)
    )


@st.composite
def epochs(draw: Callable[..., Any]) -> oplog.Epochs:
    numbers = [draw(i32) for _ in range(3)]
    return oplog.Epochs(*numbers, draw(text), *pairs(draw, i32), *pairs(draw, i32), *pairs(draw, i32))


ids = st.lists(i64, min_size=1, max_size=6)
any_ids = st.lists(i64, max_size=6)
key = st.integers(-(2**63), 2**63 - 1)
# A filter has 256 bytes at most, and any character.
text = st.text(max_size=40)
# A moment can lie before 1970 if a seek says so.
moment = st.integers(-(2**62), 2**62)
RECORDS: dict[Any, tuple[Callable[[Any], bytes], st.SearchStrategy[Any]]] = {
    oplog.Counters: (oplog.counters, st.builds(oplog.Counters, *[i64] * 7)),
    oplog.Delivered: (oplog.delivered, delivered()),
    oplog.Extended: (oplog.extended, st.builds(oplog.Extended, i32, i64, ids)),
    oplog.Finished: (oplog.finished, st.builds(oplog.Finished, i32, ids)),
    oplog.Returned: (oplog.returned, st.builds(oplog.Returned, i32, st.booleans(), ids)),
    oplog.Position: (oplog.position, st.builds(oplog.Position, i32, i64)),
    oplog.Published: (oplog.published, st.builds(oplog.Published, i32, i64)),
    oplog.Retained: (oplog.retained, st.builds(oplog.Retained, i32, i64)),
    oplog.Skipped: (oplog.skipped, st.builds(oplog.Skipped, i32, i64)),
    oplog.Delayed: (oplog.delayed, columns(oplog.Delayed, [i32], i64, moment)),
    oplog.Reset: (oplog.reset, st.builds(oplog.Reset, i32, st.booleans(), ids)),
    oplog.Released: (oplog.released, st.builds(oplog.Released, i32, ids)),
    oplog.Parked: (oplog.parked, columns(oplog.Parked, [i32, i64], i64, key)),
    oplog.Dropped: (oplog.dropped, st.builds(oplog.Dropped, i32, i64)),
    oplog.Sought: (oplog.sought, sought()),
    oplog.Waiting: (
        oplog.waiting,
        columns(oplog.Waiting, [i32], i64, i32, i32, key, moment, st.integers(0, 3)),
    ),
    oplog.Epochs: (oplog.epochs, epochs()),
    oplog.Offsets: (oplog.offsets, columns(oplog.Offsets, [i32], i64, i32)),
    oplog.Active: (oplog.active, st.builds(oplog.Active, i32, i64)),
}
# What only earlier versions wrote.
READ_ONLY = {oplog.OldWaiting}


def plain(record: oplog.Record) -> tuple[Any, ...]:
    """A record with lists in place of arrays, so that it can be compared."""
    return (type(record), *(value if isinstance(value, int | str) else list(value) for value in record))


def read(data: bytes) -> list[tuple[Any, ...]]:
    return [plain(record) for record in oplog.records(data)]


def written(record: oplog.Record) -> bytes:
    return RECORDS[type(record)][0](record)


def test_every_kind_of_record_is_tried_here() -> None:
    assert set(oplog.Record.__args__) - READ_ONLY == set(RECORDS)
    assert len(oplog._READERS) == len(RECORDS) + len(READ_ONLY)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_survives(kind: Any) -> None:
    @given(RECORDS[kind][1])
    def survives(record: oplog.Record) -> None:
        assert [plain(record)] == read(oplog.blob([written(record)]))

    survives()


@given(st.lists(st.one_of([strategy for _, strategy in RECORDS.values()]), max_size=12))
def test_a_blob_is_its_records_in_order(records: list[oplog.Record]) -> None:
    assert [plain(record) for record in records] == read(oplog.blob([written(record) for record in records]))


@pytest.mark.parametrize("version", [0, 3, 255])
def test_a_blob_of_another_version_is_not_read(version: int) -> None:
    data = oplog.blob([oplog.position(oplog.Position(1, 2))])

    with pytest.raises(ValueError, match=f"version {version} "):
        list(oplog.records(bytes([version]) + data[1:]))


def of_version_1(kind: int, body: bytes) -> bytes:
    """A blob with one record, put together by hand as version 1 wrote it."""
    return struct.pack("<BBI", 1, kind, len(body)) + body


# One of each kind that there was: counters, delivered (plain and not), extended, finished, returned, waiting,
# position and published.
VERSION_1 = [
    (1, struct.pack("<7q", 1, 2, 3, 4, 5, 6, 7), oplog.Counters(1, 2, 3, 4, 5, 6, 7)),
    (
        2,
        struct.pack("<iqqiIqI?2q2i", 1, 20, 10, 3, 4, 9, 2, True, 8, 9, 100, 200),
        oplog.Delivered(1, 20, 10, 3, 4, 9, [8, 9], [100, 200], [1, 1], [1, 1], [0, 0]),
    ),
    (
        2,
        struct.pack("<iqqiIqI?qiiiq", 1, 20, 10, 3, 4, 9, 1, False, 8, 100, 2, 3, -5),
        oplog.Delivered(1, 20, 10, 3, 4, 9, [8], [100], [2], [3], [-5]),
    ),
    (3, struct.pack("<iqI2q", 1, 30, 2, 8, 9), oplog.Extended(1, 30, [8, 9])),
    (4, struct.pack("<iI2q", 1, 2, 8, 9), oplog.Finished(1, [8, 9])),
    (5, struct.pack("<i?Iq", 1, True, 1, 8), oplog.Returned(1, True, [8])),
    (6, struct.pack("<iI2q2i2i", 1, 2, 8, 9, 2, 3, 1, 4), oplog.OldWaiting(1, [8, 9], [2, 3], [1, 4])),
    # It also counted what was owed, and named those whom a message was owed to.
    (7, struct.pack("<iqq", 1, 9, 77), oplog.Position(1, 9)),
    (8, struct.pack("<iqII2i", 1, 9, 3, 2, 5, 6), oplog.Published(1, 9)),
]


@pytest.mark.parametrize(("kind", "body", "record"), VERSION_1, ids=lambda one: type(one).__name__)
def test_what_version_1_wrote_is_still_read(kind: int, body: bytes, record: oplog.Record) -> None:
    assert [plain(record)] == read(of_version_1(kind, body))


def test_a_state_that_version_1_wrote_is_restored() -> None:
    """A checkpoint: two outstanding messages, one that waits, and a cursor behind them."""
    (leased,) = [body for _, body, record in VERSION_1 if body[-8:] == struct.pack("<2i", 100, 200)]
    body = struct.pack("<iIq2i", 1, 1, 7, 2, 3)
    blobs = [of_version_1(7, struct.pack("<iqq", 1, 9, 77)), of_version_1(6, body), of_version_1(2, leased)]
    replay = Replay(Saved([], [SubscriptionRow(1, 1, "s", 0, b"")], [], [], [], blobs))

    saved = replay.subscriptions[1]
    assert (saved.cursor, sorted(saved.leased), sorted(saved.waiting)) == (9, [8, 9], [7])
    assert (saved.waiting[7].generation, saved.waiting[7].attempt, saved.waiting[7].okey) == (2, 3, 0)
    assert (saved.epochs, saved.carried, saved.parked) == ([], {}, {})
    assert (saved.first_generation, saved.generation_max) == (1, 2), "as large as any that is known"


def test_new_blobs_say_their_version() -> None:
    assert oplog.blob([])[0] == oplog.VERSION == 2


def test_an_empty_blob_says_nothing() -> None:
    assert read(oplog.blob([])) == []


def test_the_usual_delivery_costs_an_id_and_a_size() -> None:
    """A first delivery without a key: 12 bytes for each further message."""

    def size(count: int, generation: int) -> int:
        ids = list(range(count))
        ones = [1] * count
        record = oplog.Delivered(1, 2, 3, 4, 5, 6, ids, ids, [generation] * count, ones, [0] * count)
        return len(oplog.delivered(record))

    assert size(11, 1) - size(10, 1) == 12
    assert size(11, 2) - size(10, 2) == 28


def test_a_count_of_more_than_a_record_holds_is_refused_before_memory_is_made_for_it() -> None:
    """A damaged byte of it would cost gigabytes: columns that are all alike are not written out."""
    record = oplog.delivered(oplog.Delivered(1, 2, 3, 4, 5, 6, [8, 9], [7, 7], [1, 1], [1, 1], [0, 0]))
    count_at = 5 + struct.calcsize("<iqqiIq")
    damaged = record[:count_at] + struct.pack("<I", 50_000_000) + record[count_at + 4 :]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="shorter"):
            read(oplog.blob([damaged]))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1_000_000


def test_a_text_of_more_than_a_record_holds_is_refused() -> None:
    record = oplog.sought(oplog.Sought(1, 2, 3, "[]", [], [], [], [], []))

    with pytest.raises(ValueError, match="shorter"):
        read(oplog.blob([record[:-1]]))
