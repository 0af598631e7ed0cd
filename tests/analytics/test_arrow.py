"""What Python makes of a DataFrame is the same table, whoever writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")
pa = pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")

from analytics import arrow
from analytics.arrow import Mapped, arrow_schema
from analytics.paths import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SCHEMA = "number int, wide bigint, even boolean, smalls array<tinyint>, wides array<bigint>"


def work(batches: Iterable[Any]) -> Iterator[Any]:
    """Two rows for each number below 4, none for others; some values are null, some lists empty."""
    schema = arrow_schema(SCHEMA)
    for batch in batches:
        for (number,) in zip(*batch.columns, strict=True):
            n = number.as_py()
            if n < 4:
                rows = [
                    {
                        "number": n,
                        "wide": None if n == 1 else n << 40,
                        "even": n % 2 == 0,
                        "smalls": list(range(n)),
                        "wides": [n << 40] * two,
                    }
                    for two in range(2)
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=schema)


def mapped(spark: SparkSession, numbers: int) -> Mapped:
    return Mapped(spark.range(0, numbers, 1, 3), work, SCHEMA)


def rows(spark: SparkSession, folder: Path) -> list[Any]:
    return sorted(spark.read.schema(SCHEMA).parquet(locate(str(folder))).collect(), key=repr)


def test_a_table_is_the_same_whoever_writes_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped(spark, 9).write(locate(str(tmp_path / "by workers")))
    assert not list((tmp_path / "by workers").glob("*SUCCESS")), "Spark has not written it"
    monkeypatch.setattr(arrow, "local", lambda path: None)
    mapped(spark, 9).write(locate(str(tmp_path / "by Spark")))
    assert (tmp_path / "by Spark" / "_SUCCESS").exists()

    found = rows(spark, tmp_path / "by workers")
    assert found == rows(spark, tmp_path / "by Spark")
    assert len(found) == 8


def test_a_table_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    mapped(spark, 0).write(locate(str(tmp_path / "table")))

    assert spark.read.parquet(locate(str(tmp_path / "table"))).columns == arrow_schema(SCHEMA).names


def test_a_table_takes_the_place_of_an_earlier_one(spark: SparkSession, tmp_path: Path) -> None:
    for numbers in (9, 2):
        mapped(spark, numbers).write(locate(str(tmp_path / "table")))

    assert {row.number for row in rows(spark, tmp_path / "table")} == {0, 1}
