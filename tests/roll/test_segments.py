"""What is sealed: every event of the tail, in the right file, kept in the right way."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

import pyarrow as pa
import pyarrow.parquet as pq

from pubsubd.journal import segments
from pubsubd.journal.record import RECORD
from pubsubd.model.events import Event, Kind
from pubsubd.roll import folder, roller
from pubsubd.roll.roller import roll
from tests.roll.rolling import files, rows, segment_files, seqs, tables
from tests.roll.writing import HOUR_13, HOUR_13_US, HOUR_14, HOUR_US, MIDNIGHT, Writing, at


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


# --- content -----------------------------------------------------------------------------------------------

_RANGES = {
    letter: st.integers(-(2**bits), 2**bits - 1) for letter, bits in {"b": 7, "i": 31, "q": 63}.items()
}
# Out of order by more than any server's.
_TIMES = st.integers(HOUR_13_US, HOUR_13_US + 3 * HOUR_US - 1)


def _events() -> st.SearchStrategy[Event]:
    fields = dict(zip(Event._fields, RECORD.format[2:], strict=True))
    anything = {name: _RANGES[letter] for name, letter in fields.items() if name != "ts_us"}
    return st.builds(Event, ts_us=_TIMES, **anything)


_COMMITS = st.lists(
    st.lists(st.tuples(_events(), st.none() | st.text(max_size=5)), min_size=1, max_size=6), max_size=8
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(commits=_COMMITS, rolls_before=st.sets(st.integers(0, 7)))
async def test_segments_hold_every_event_of_the_tail_once_and_nothing_else(
    commits: list[list[tuple[Event, str | None]]], rolls_before: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        journal = Path(scratch) / "journal"
        async with Writing.open(Path(scratch) / "data") as writing:
            for number, commit in enumerate(commits):
                if number in rolls_before:
                    assert roll(writing.directory, journal).error is None
                events = [event for event, _ in commit]
                texts = [(at, {"text": text}) for at, (_, text) in enumerate(commit) if text is not None]
                await writing.commit(*events, details=texts)

            report = roll(writing.directory, journal)

            assert report.error is None
            assert report.last_seq == writing.journal.last_seq
            assert rows(journal) == await writing.tail()


async def test_a_detail_is_beside_its_event_and_all_others_have_none(writing: Writing, journal: Path) -> None:
    texts = {1: {"name": "ä" * 100}, 2: {"other": ""}, 5: {"deep": [{}]}}
    await writing.commit(*at(*range(6)), details=list(texts.items()))

    roll(writing.directory, journal)

    (table,) = tables(journal)
    told = [None if one is None else json.loads(one) for one in table["detail"].to_pylist()]
    assert told == [texts.get(index) for index in range(6)]


async def test_a_roll_adds_what_came_since_the_one_before(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, 1, 2))
    first = roll(writing.directory, journal)
    before = segment_files(journal)[0].read_bytes()
    await writing.commit(*at(3, 4))
    second = roll(writing.directory, journal)

    assert (first.events, first.last_seq, second.events, second.last_seq) == (3, 3, 2, 5)
    assert [path.name for path in segment_files(journal)] == [
        "seg-0000000000000001-0000000000000003.parquet",
        "seg-0000000000000004-0000000000000005.parquet",
    ]
    assert segment_files(journal)[0].read_bytes() == before
    assert second.segments == [str(segment_files(journal)[1])]


async def test_a_roll_of_nothing_new_writes_nothing_and_says_how_far_it_is(
    writing: Writing, journal: Path
) -> None:
    await writing.commit(*at(0, 1))
    roll(writing.directory, journal)
    before = files(journal)

    again = roll(writing.directory, journal)
    await writing.sealed(2)
    after_deletion = roll(writing.directory, journal)

    assert (again.last_seq, again.events, again.segments, again.error) == (2, 0, [], None)
    assert (after_deletion.last_seq, after_deletion.events, after_deletion.error) == (2, 0, None)
    assert files(journal) == before


async def test_an_empty_journal_is_no_error(writing: Writing, journal: Path) -> None:
    report = roll(writing.directory, journal)

    assert (report.last_seq, report.events, report.error) == (0, 0, None)
    assert files(journal) == []


async def test_the_database_is_as_it_was(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(*range(100)))
    tail = await writing.tail()
    database = {path.name: path.read_bytes() for path in writing.directory.glob("*.sqlite3*")}
    del database["pubsubd.sqlite3-shm"]  # where readers note that they read

    roll(writing.directory, journal, backlog=True)

    assert {name: (writing.directory / name).read_bytes() for name in database} == database
    assert await writing.tail() == tail


async def test_a_database_that_nobody_has_open_is_read_too(tmp_path: Path, journal: Path) -> None:
    async with Writing.open(tmp_path / "data") as writing:
        await writing.commit(*at(0, 1))

    report = roll(tmp_path / "data", journal)

    assert (report.last_seq, report.error) == (2, None)
    async with Writing.open(tmp_path / "data") as writing:
        assert [row["seq"] for row in await writing.tail()] == [1, 2]


# --- where segments begin ----------------------------------------------------------------------------------


async def test_a_segment_ends_with_its_hour_also_inside_of_a_commit(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, HOUR_US - 1, HOUR_US, HOUR_US + 1), *at(11 * HOUR_US))

    report = roll(writing.directory, journal)

    assert files(journal) == [
        f"{HOUR_13}/seg-0000000000000001-0000000000000002.parquet",
        f"{HOUR_14}/seg-0000000000000003-0000000000000004.parquet",
        f"{MIDNIGHT}/seg-0000000000000005-0000000000000005.parquet",
    ]
    assert report.segments == [str(journal / name) for name in files(journal)]
    assert seqs(journal) == [1, 2, 3, 4, 5]


async def test_an_event_from_before_the_hour_does_not_begin_a_segment(
    writing: Writing, journal: Path
) -> None:
    """An ack carries the time of its arrival, which may be a moment before what stands before it."""
    await writing.commit(*at(HOUR_US - 1, HOUR_US, HOUR_US - 2, HOUR_US + 1))

    roll(writing.directory, journal)

    assert files(journal) == [
        f"{HOUR_13}/seg-0000000000000001-0000000000000001.parquet",
        f"{HOUR_14}/seg-0000000000000002-0000000000000004.parquet",
    ]


async def test_a_segment_may_come_to_lie_in_the_folder_before_the_newest(
    writing: Writing, journal: Path
) -> None:
    await writing.commit(*at(HOUR_US))
    roll(writing.directory, journal)
    await writing.commit(*at(HOUR_US - 1))
    roll(writing.directory, journal)
    report = roll(writing.directory, journal)

    assert files(journal) == [
        f"{HOUR_13}/seg-0000000000000002-0000000000000002.parquet",
        f"{HOUR_14}/seg-0000000000000001-0000000000000001.parquet",
    ]
    assert (report.last_seq, report.events) == (2, 0)


async def test_numbers_that_are_missing_are_missing_in_the_names(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, 1))
    await writing.commit(*at(2))
    writing.journal.last_seq += 1  # as a server does that runs without its journal
    await writing.commit(*at(3), details=[(0, {"last": 4})])

    report = roll(writing.directory, journal)

    assert [path.name for path in segment_files(journal)] == [
        "seg-0000000000000001-0000000000000003.parquet",
        "seg-0000000000000005-0000000000000005.parquet",
    ]
    assert report.last_seq == 5
    assert rows(journal) == await writing.tail()


async def test_what_left_the_tail_unsealed_is_not_waited_for(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, 1))
    roll(writing.directory, journal)
    await writing.commit(*at(2, 3))
    await writing.commit(*at(4), drop_through=4)

    report = roll(writing.directory, journal)

    assert (report.last_seq, report.events) == (5, 1)
    assert seqs(journal) == [1, 2, 5]


async def test_much_is_cut_into_as_few_segments_as_their_size_allows(
    writing: Writing, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roller, "ROW_GROUP", 100)
    for _ in range(21):
        await writing.commit(*at(*range(10)))

    roll(writing.directory, journal)

    assert [table.num_rows for table in tables(journal)] == [70, 70, 70]
    assert rows(journal) == await writing.tail()


# --- how it is kept ----------------------------------------------------------------------------------------

DIFFERENCES = {"seq", "ts_us", "message_id", "deadline_us", "ref_ts_us"}
DICTIONARIES = {
    *("kind", "topic_id", "sub_id", "generation", "attempt", "result", "client_id", "bytes", "okey", "aux"),
    "detail",
}


async def test_every_column_has_its_encoding_its_statistics_and_zstd(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(*range(1000)), details=[(7, {"a": 1})])
    roll(writing.directory, journal)

    (path,) = segment_files(journal)
    (group,) = groups(path)
    for column in [group.column(index) for index in range(group.num_columns)]:
        assert column.compression == "ZSTD"
        assert column.is_stats_set and column.statistics.has_min_max, column.path_in_schema
        assert ("DELTA_BINARY_PACKED" in column.encodings) == (column.path_in_schema in DIFFERENCES)
        assert ("RLE_DICTIONARY" in column.encodings) == (column.path_in_schema in DICTIONARIES)


def groups(path: Path) -> list[Any]:
    with pq.ParquetFile(path) as file:
        return [file.metadata.row_group(index) for index in range(file.num_row_groups)]


async def test_a_commit_larger_than_a_row_group_is_one_segment_of_several(
    writing: Writing, journal: Path
) -> None:
    await writing.commit(*(at(0) * ((1 << 20) + 1)))
    roll(writing.directory, journal)

    (path,) = segment_files(journal)
    assert [group.num_rows for group in groups(path)] == [1 << 20, 1]


async def test_files_say_their_format_and_whose_they_are(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0))
    report = roll(writing.directory, journal, backlog=True)

    for path in (*segment_files(journal), Path(report.backlog or "")):
        said = pq.read_schema(path).metadata
        assert said[b"pubsubd.format"] == b"1"
        assert said[b"pubsubd.server"].decode() == segments.server_id(writing.store.secret)
        assert writing.store.secret not in path.read_bytes()
        assert folder.server_of(path) == segments.server_id(writing.store.secret)


def test_of_a_file_of_another_program_nothing_is_said(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    assert folder.server_of(other) is None
    for data in (b"", b"PAR1", b"no parquet at all", b"\xff\xff\xff\x7fPAR1", other.read_bytes()[:-3]):
        (tmp_path / "broken").write_bytes(data)
        assert folder.server_of(tmp_path / "broken") is None


async def test_readers_of_the_journal_describe_the_same_files(writing: Writing, journal: Path) -> None:
    """The server and its readers have a description each, so that neither needs the other."""
    layout = pytest.importorskip("analytics.layout", reason="a server without the analytics")
    await writing.commit(*at(0, HOUR_US, kind=Kind.PUBLISH), details=[(0, {})])
    report = roll(writing.directory, journal, backlog=True)

    for path, first_seq in zip(segment_files(journal), (1, 2), strict=True):
        schema = pq.read_schema(path)
        assert [(field.name, str(field.type)) for field in schema] == [
            (column.name, column.type) for column in layout.COLUMNS
        ]
        named = layout.SEGMENT_PATH.fullmatch(str(path.relative_to(journal / layout.SEGMENTS)))
        assert named is not None
        assert [int(number) for number in named.groups()[2:]] == [first_seq, first_seq]
    named = layout.BACKLOG_NAME.fullmatch(Path(report.backlog or "").name)
    assert named is not None and int(named[1]) == 2
    assert Path(report.backlog or "").parent == journal / layout.BACKLOG
    assert (layout.VERSION_KEY, layout.SERVER_KEY) == (folder.VERSION_KEY, folder.SERVER_KEY)
    assert layout.VERSION == folder.VERSION
