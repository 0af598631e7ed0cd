"""The operation log: what is written is what is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.broker import oplog

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
    )  # fmt: skip


@st.composite
def waiting(draw: Callable[..., Any]) -> oplog.Waiting:
    rows = draw(st.lists(st.tuples(i64, i32, i32), min_size=1, max_size=6))
    message_ids, generations, attempts = ([row[at] for row in rows] for at in range(3))
    return oplog.Waiting(draw(i32), message_ids, generations, attempts)


ids = st.lists(i64, min_size=1, max_size=6)
RECORDS: dict[Any, tuple[Callable[[Any], bytes], st.SearchStrategy[Any]]] = {
    oplog.Counters: (oplog.counters, st.builds(oplog.Counters, *[i64] * 7)),
    oplog.Delivered: (oplog.delivered, delivered()),
    oplog.Extended: (oplog.extended, st.builds(oplog.Extended, i32, i64, ids)),
    oplog.Finished: (oplog.finished, st.builds(oplog.Finished, i32, ids)),
    oplog.Returned: (oplog.returned, st.builds(oplog.Returned, i32, st.booleans(), ids)),
    oplog.Waiting: (oplog.waiting, waiting()),
    oplog.Position: (oplog.position, st.builds(oplog.Position, i32, i64, i64)),
    oplog.Published: (
        oplog.published,
        st.builds(oplog.Published, i32, i64, st.integers(0, 2**32 - 1), st.lists(i32, max_size=5)),
    ),
}


def plain(record: oplog.Record) -> tuple[Any, ...]:
    """A record with lists in place of arrays, so that it can be compared."""
    return (type(record), *(value if isinstance(value, int) else list(value) for value in record))


def read(data: bytes) -> list[tuple[Any, ...]]:
    return [plain(record) for record in oplog.records(data)]


def written(record: oplog.Record) -> bytes:
    return RECORDS[type(record)][0](record)


def test_every_kind_of_record_is_tried_here() -> None:
    assert set(oplog.Record.__args__) == set(RECORDS)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_survives(kind: Any) -> None:
    @given(RECORDS[kind][1])
    def survives(record: oplog.Record) -> None:
        assert [plain(record)] == read(oplog.blob([written(record)]))

    survives()


@given(st.lists(st.one_of([strategy for _, strategy in RECORDS.values()]), max_size=12))
def test_a_blob_is_its_records_in_order(records: list[oplog.Record]) -> None:
    assert [plain(record) for record in records] == read(oplog.blob([written(record) for record in records]))


def test_a_blob_of_another_version_is_not_read() -> None:
    data = oplog.blob([oplog.position(oplog.Position(1, 2, 3))])

    with pytest.raises(ValueError, match="version 2"):
        list(oplog.records(bytes([2]) + data[1:]))


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
