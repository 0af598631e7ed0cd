"""OUT: tables that are whole or not there, a CSV that people and diff can read, a record of the run."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

from analytics import tables
from analytics.errors import UsageError
from analytics.output import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS = tables.SCHEMAS["attempts"]
ADVICE = tables.SCHEMAS["advice"]


@pytest.fixture
def out(spark: SparkSession, tmp_path: Path) -> Output:
    return Output(spark, str(tmp_path / "out"))


def attempts(spark: SparkSession, *rows: tuple[int, int, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), ATTEMPTS)


def test_a_table_is_written_as_parquet_and_as_one_csv_file_and_replaced_as_a_whole(
    spark: SparkSession, out: Output, tmp_path: Path
) -> None:
    out.write("attempts", attempts(spark, (2, 1, 7), (1, 2, 3), (1, 1, 9)).repartition(2))
    folder = tmp_path / "out"

    assert sorted(path.name for path in folder.iterdir()) == ["attempts", "attempts.csv"]
    assert (folder / "attempts.csv").read_text() == "sub_id,deliveries,messages\n1,1,9\n1,2,3\n2,1,7\n"
    assert out.rows("attempts") == 3

    out.write("attempts", attempts(spark, (5, 1, 1)))

    assert [tuple(row) for row in out.read(spark, "attempts").collect()] == [(5, 1, 1)]
    assert (folder / "attempts.csv").read_text() == "sub_id,deliveries,messages\n5,1,1\n"
    assert sorted(path.name for path in folder.iterdir()) == ["attempts", "attempts.csv"]
    assert out.written == ["attempts"]


def test_a_table_that_fails_while_it_is_written_leaves_the_one_before(
    spark: SparkSession, out: Output
) -> None:
    out.write("attempts", attempts(spark, (1, 1, 1)))
    broken = attempts(spark, (2, 2, 2)).selectExpr(
        "sub_id", "deliveries", "messages + raise_error('a task failed') as messages"
    )
    with pytest.raises(Exception, match="a task failed"):
        out.write("attempts", broken)

    assert [tuple(row) for row in out.read(spark, "attempts").collect()] == [(1, 1, 1)]


def test_text_of_users_survives_csv(spark: SparkSession, out: Output, tmp_path: Path) -> None:
    text = 'a "quoted", name\nand a line'
    row = (1, text, "ack_deadline", 10.0, None, "", {"share": 0.5}, "low")
    out.write("advice", spark.createDataFrame([row], ADVICE))

    with (tmp_path / "out" / "advice.csv").open(newline="") as file:
        (read,) = csv.DictReader(file)
    assert read["subscription"] == text
    assert read["evidence"] == '{"share":0.5}'
    assert read["recommended"] == ""


def test_a_time_in_csv_names_its_zone(spark: SparkSession, out: Output, tmp_path: Path) -> None:
    schema = tables.SCHEMAS["fairness"]
    minute = datetime(2026, 1, 31, 13, 5, tzinfo=UTC)
    out.write("fairness", spark.createDataFrame([(1, minute, 2, 1.0, 0.5)], schema))

    assert (tmp_path / "out" / "fairness.csv").read_text().splitlines()[
        1
    ] == "1,2026-01-31T13:05:00Z,2,1.0,0.5"


def test_an_empty_table_has_its_columns(spark: SparkSession, out: Output, tmp_path: Path) -> None:
    out.write("attempts", attempts(spark))

    assert out.exists("attempts") and not out.exists("advice")
    assert out.rows("attempts") == 0
    assert out.read(spark, "attempts").columns == ["sub_id", "deliveries", "messages"]
    assert (tmp_path / "out" / "attempts.csv").read_text() == "sub_id,deliveries,messages\n"


def test_csv_is_left_out_where_it_is_not_asked_for_or_of_no_use(spark: SparkSession, tmp_path: Path) -> None:
    only = Output(spark, str(tmp_path), ("parquet",))
    only.write("attempts", attempts(spark, (1, 1, 1)))
    both = Output(spark, str(tmp_path))
    both.write("latency", spark.createDataFrame([], tables.SCHEMAS["latency"]))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "latency"]


def test_a_table_with_other_columns_than_promised_is_a_mistake_of_ours(
    spark: SparkSession, out: Output
) -> None:
    with pytest.raises(AssertionError, match="table attempts"):
        out.write("attempts", attempts(spark).selectExpr("sub_id", "deliveries", "cast(messages as int)"))


def test_a_folder_that_cannot_be_written_to_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        Output(spark, str(tmp_path / "file" / "out"))


def test_the_record_of_a_run_is_read_back_and_copied_with_the_tables(
    spark: SparkSession, out: Output, tmp_path: Path
) -> None:
    assert out.read_run() is None
    out.write("attempts", attempts(spark, (1, 1, 1)))
    out.write_run({"command": "audit", "journal": "ä"})
    out.write_run({"command": "health", "journal": "ä"})
    assert out.read_run() == {"command": "health", "journal": "ä"}

    out.copy(["attempts", "advice"], str(tmp_path / "copy"))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["_RUN.json", "attempts"]
