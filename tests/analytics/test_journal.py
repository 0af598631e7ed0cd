"""Reading a journal: all of it, only what was asked for, and never silently less."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

import pyarrow as pa
from pyarrow import parquet

from analytics import failures, info, journal, layout
from analytics.errors import UsageError
from analytics.journal import Journal, load_journal
from tests.analytics.generator.segments import SERVER, metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SCHEMA = pa.schema([(column.name, getattr(pa, column.type)()) for column in layout.COLUMNS])


def segment(
    folder: Path, first: int, last: int, at: datetime = NOON, about: Mapping[str, str] | None = None
) -> Path:
    """Events `first` to `last`, one a second from `at`."""
    start_us = int(at.timestamp()) * 1_000_000
    count = last - first + 1
    columns: dict[str, Any] = {column.name: [0] * count for column in layout.COLUMNS}
    columns["seq"] = list(range(first, last + 1))
    columns["ts_us"] = [start_us + n * 1_000_000 for n in range(count)]
    columns["detail"] = [None] * count
    table = pa.table(columns, schema=SCHEMA)
    table = table.replace_schema_metadata(dict(metadata() if about is None else about))
    hours = folder / "segments" / f"date={at:%Y-%m-%d}" / f"hour={at:%H}"
    hours.mkdir(parents=True, exist_ok=True)
    path = hours / f"seg-{first:016}-{last:016}.parquet"
    parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
    return path


def backlog(folder: Path, seq: int, about: Mapping[str, str] | None = None) -> Path:
    path = folder / "backlog" / f"backlog-{seq}.parquet"
    path.parent.mkdir(exist_ok=True)
    columns = {"sub_id": pa.array([], pa.int32()), "message_id": pa.array([], pa.int64())}
    parquet.write_table(pa.table(columns).replace_schema_metadata(dict(about or metadata())), path)
    return path


def seqs(loaded: Journal) -> list[int]:
    return sorted(row.seq for row in loaded.events.select("seq").collect())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_whole_journal_is_read_with_the_columns_of_the_layout_and_its_hours(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 11, 15, NOON + timedelta(hours=1))
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.events.columns == [*(column.name for column in layout.COLUMNS), "date", "hour"]
    wanted = {"int8": "tinyint", "int32": "int", "int64": "bigint", "string": "string"}
    types = dict(loaded.events.dtypes)
    assert all(types[column.name] == wanted[column.type] for column in layout.COLUMNS)
    assert (types["date"], types["hour"]) == ("date", "int")
    hours = loaded.events.groupBy("date", "hour").count().orderBy("hour").collect()
    assert [tuple(row) for row in hours] == [(date(2026, 1, 31), 12, 10), (date(2026, 1, 31), 13, 5)]
    assert loaded.complete and not loaded.is_partial_start
    assert (loaded.first_seq, loaded.last_seq, loaded.count, loaded.server) == (1, 15, 15, SERVER)
    noon_us = int(NOON.timestamp()) * 1_000_000
    assert (loaded.first_us, loaded.last_us) == (noon_us, noon_us + 3604 * 1_000_000)


def test_a_hole_between_segments_is_named_and_makes_the_journal_incomplete(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 14, 20, NOON + 30 * SECOND)
    segment(tmp_path, 22, 30, NOON + 60 * SECOND)
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.missing == [(11, 13), (21, 21)]
    assert not loaded.complete


def test_what_retention_took_from_the_beginning_is_no_hole(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 101, 110)
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.complete
    assert loaded.is_partial_start


def test_a_truncated_segment_is_missing_and_the_others_are_read(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    damaged = segment(tmp_path, 11, 20, NOON + 30 * SECOND)
    damaged.write_bytes(damaged.read_bytes()[:-40])
    segment(tmp_path, 21, 30, NOON + 60 * SECOND)
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.missing == [(11, 20)]
    assert [bad.segment.path for bad in loaded.damaged] == [str(damaged)]
    assert seqs(loaded) == [*range(1, 11), *range(21, 31)]
    assert loaded.count == 20


def test_a_flipped_bit_in_a_footer_is_found_or_changes_nothing_that_is_relied_on(tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    path = segment(tmp_path, 11, 20, NOON + 30 * SECOND)
    whole = path.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    found = 0
    tried = range(len(whole) - 8 - length, len(whole), 11)
    for at in [*tried, len(whole) - 6, len(whole) - 1]:
        path.write_bytes(whole)
        flip(path, at)
        try:
            seen = info.look(str(tmp_path))
        except UsageError:
            found += 1
            continue
        found += bool(seen.damaged)
        assert seen.missing == ([(11, 20)] if seen.damaged else [])
        assert seen.events == (10 if seen.damaged else 20)
    # The magic number, the length, the names of columns, the counts: a good part of all bytes.
    assert found > len(tried) / 10


def test_a_segment_with_another_number_of_events_than_its_name_says_is_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    path = segment(tmp_path, 11, 20, NOON + 30 * SECOND)
    path.rename(path.with_name(f"seg-{11:016}-{25:016}.parquet"))
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.missing == [(11, 25)]
    assert "15 events by its name, 10 by its footer" in loaded.damaged[0].why
    assert seqs(loaded) == list(range(1, 11))


def test_a_flipped_bit_in_a_page_is_noticed_and_the_segment_can_then_be_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    path = segment(tmp_path, 11, 20, NOON + 30 * SECOND)
    column = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    flip(path, begin + column.total_compressed_size - 3)
    loaded = load_journal(spark, str(tmp_path))
    assert loaded.complete

    with pytest.raises(Exception) as caught:
        loaded.events.agg({"seq": "sum"}).collect()
    assert failures.from_spark(caught.value)
    assert failures.damaged_segment(caught.value) == str(path)

    again = load_journal(spark, str(tmp_path), unreadable={str(path): "its pages cannot be read"})
    assert again.missing == [(11, 20)]
    assert seqs(again) == list(range(1, 11))


def test_a_format_of_the_future_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 11, 20, NOON + 30 * SECOND, metadata(version=2))
    with pytest.raises(UsageError, match="format version 2, and this program reads version 1"):
        load_journal(spark, str(tmp_path))


def test_the_files_of_another_program_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10, about={"writer": "somebody else"})
    with pytest.raises(UsageError, match="was not written by pubsubd"):
        load_journal(spark, str(tmp_path))


def test_segments_of_two_servers_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 11, 20, NOON + 30 * SECOND, metadata(server="f" * 16))
    with pytest.raises(UsageError, match="are of different servers"):
        load_journal(spark, str(tmp_path))


def test_segments_that_claim_the_same_events_are_refused(tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 10, 20, NOON + 30 * SECOND)
    with pytest.raises(UsageError, match="both claim event 10"):
        journal.segments_of(str(tmp_path))


def test_an_empty_journal_is_refused_and_so_is_a_folder_that_is_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        load_journal(spark, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no folder `segments`"):
        load_journal(spark, str(tmp_path))
    (tmp_path / "segments" / "date=2026-01-31" / "hour=12").mkdir(parents=True)
    with pytest.raises(UsageError, match="no sealed segment"):
        load_journal(spark, str(tmp_path))


def test_a_journal_of_which_no_segment_can_be_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10).write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="None of the 1 segments"):
        load_journal(spark, str(tmp_path))


def test_names_that_begin_with_an_underscore_or_a_dot_and_foreign_names_are_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = segment(tmp_path, 1, 10)
    for name in ("_seg-0000000000000011-0000000000000020.parquet.tmp", ".seg.parquet", "notes.txt"):
        (path.parent / name).write_bytes(b"not a segment")
    (path.parent / "_spare").mkdir()
    (path.parent / "_spare" / f"seg-{11:016}-{20:016}.parquet").write_bytes(b"not a segment")
    loaded = load_journal(spark, str(tmp_path))

    assert loaded.complete
    assert seqs(loaded) == list(range(1, 11))


def test_a_range_begins_with_the_first_event_at_its_start_and_ends_before_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    for hour in range(4):
        segment(tmp_path, hour * 20 + 1, hour * 20 + 10, NOON + timedelta(hours=hour))
        segment(tmp_path, hour * 20 + 11, hour * 20 + 20, NOON + timedelta(hours=hour, seconds=10))
    start = NOON + timedelta(hours=1, seconds=13)
    end = NOON + timedelta(hours=2, seconds=4)
    loaded = load_journal(spark, str(tmp_path), start, end)

    assert (loaded.first_seq, loaded.last_seq, loaded.count) == (34, 44, 11)
    assert seqs(loaded) == list(range(34, 45))
    assert loaded.is_partial_start and loaded.complete
    assert loaded.first_us == int(start.timestamp()) * 1_000_000
    # The repeated CONFIG rows at the beginning of the hour are needed to know what exists.
    assert loaded.resources.selectExpr("min(seq)").first() == (21,)
    hours = {Path(name).parent.name for name in loaded.events.inputFiles()}
    assert hours == {"hour=13", "hour=14"}, "hours outside the range are not even opened"


def test_times_without_a_zone_are_utc_and_others_are_converted(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    without = load_journal(spark, str(tmp_path), datetime(2026, 1, 31, 12, 0, 5))
    zoned = load_journal(spark, str(tmp_path), datetime.fromisoformat("2026-01-31T14:00:05+02:00"))

    assert without.first_seq == zoned.first_seq == 6


def test_a_range_without_events_is_refused_and_the_sentence_says_what_there_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    with pytest.raises(UsageError, match="its hours go from 2026-01-31 12h to 2026-01-31 12h UTC"):
        load_journal(spark, str(tmp_path), NOON + timedelta(days=1))
    with pytest.raises(UsageError, match="holds no event"):
        load_journal(spark, str(tmp_path), NOON + 20 * SECOND)


def test_a_hole_outside_the_range_does_not_count(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 21, 30, NOON + timedelta(hours=1))
    segment(tmp_path, 31, 40, NOON + timedelta(hours=1, seconds=20))
    loaded = load_journal(spark, str(tmp_path), NOON + timedelta(hours=1))

    assert loaded.complete
    assert loaded.first_seq == 21


def test_the_backlog_file_is_that_of_the_last_event_or_else_the_newest(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    first, second = backlog(tmp_path, 10), backlog(tmp_path, 15)
    loaded = load_journal(spark, str(tmp_path))
    assert loaded.backlog is not None and loaded.backlog.path == str(first)
    first.unlink()
    loaded = load_journal(spark, str(tmp_path))
    assert loaded.backlog is not None and loaded.backlog.path == str(second)


def test_an_explicit_backlog_file_ends_the_range(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, 1, 10)
    segment(tmp_path, 11, 20, NOON + 30 * SECOND)
    loaded = load_journal(spark, str(tmp_path), backlog=str(backlog(tmp_path, 14)))

    assert (loaded.last_seq, loaded.count) == (14, 14)
    assert loaded.backlog is not None and loaded.backlog.seq == 14
    with pytest.raises(UsageError, match="of a later time"):
        load_journal(spark, str(tmp_path), backlog=str(backlog(tmp_path, 24)))


def test_a_backlog_file_that_is_damaged_or_of_another_server_is_as_good_as_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment(tmp_path, 1, 10)
    other = backlog(tmp_path, 12, metadata(server="f" * 16))
    torn = backlog(tmp_path, 10)
    torn.write_bytes(torn.read_bytes()[:-5])
    assert load_journal(spark, str(tmp_path)).backlog is None
    with pytest.raises(UsageError, match="is of no use: its footer is damaged"):
        load_journal(spark, str(tmp_path), backlog=str(torn))
    with pytest.raises(UsageError, match="is of no use: it is of another server"):
        load_journal(spark, str(tmp_path), backlog=str(other))


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a [1] {b}%20#c* d"
    segment(folder, 1, 10)
    assert seqs(load_journal(spark, str(folder))) == list(range(1, 11))


def test_ranges_are_merged_where_they_touch() -> None:
    assert journal.merged([(5, 7), (1, 2), (3, 4), (9, 9), (6, 8)]) == [(1, 9)]
    assert journal.merged([(5, 7), (1, 3)]) == [(1, 3), (5, 7)]


def test_info_tells_ranges_counts_and_holes_without_spark(tmp_path: Path) -> None:
    segment(tmp_path, 5, 10)
    segment(tmp_path, 12, 20, NOON + 30 * SECOND)
    backlog(tmp_path, 20)
    seen = info.look(str(tmp_path))

    told = info.as_json(seen)
    assert (told["first_seq"], told["last_seq"], told["events"], told["missing"]) == (5, 20, 15, [[11, 11]])
    assert told["events_per_hour"] == {"2026-01-31T12": 15}
    text = info.text(seen)
    assert "complete   NO" in text
    assert "missing    11" in text
    assert "4 earlier events are no longer kept" in text
    assert "as of 20, the last event" in text
