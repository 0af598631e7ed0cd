"""Facts by Spark: the same as the plain loop says, of journals that are read from segments."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

np = pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")
pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")
pa = pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")

from analytics import keys
from analytics.arrow import arrow_schema
from analytics.dimensions import collect
from analytics.facts import _bounds, facts, partitions, replayer
from analytics.journal import load_journal
from analytics.keys import Shape
from analytics.rules import Rules
from analytics.run import Options
from analytics.tables import SCHEMAS
from tests.analytics import reference, scenarios
from tests.analytics.generator.builder import Builder
from tests.analytics.sequences import random_moves, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of(spark: SparkSession, journal: Path, options: Options | None = None) -> list[dict[str, Any]]:
    options = options or Options()
    read = load_journal(spark, str(journal), start=options.start, end=options.end)
    rows = [row.asDict() for row in facts(read, collect(read.resources), options).frame().collect()]
    return sorted(rows, key=lambda row: (row["sub_id"], row["message_id"], row["epoch"]))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Builder]:
    """Every scenario of the replay, in segments of 40 events."""
    builder, _ = scenarios.journal()
    path = tmp_path_factory.mktemp("facts")
    builder.write(path, segment_events=40)
    return path, builder


@pytest.fixture(scope="module")
def expected(written: tuple[Path, Builder]) -> list[dict[str, Any]]:
    _, builder = written
    return reference.replay(scenarios.rows_of(builder), scenarios.dimensions_of(builder))


@pytest.mark.parametrize("shape", Shape)
def test_facts_of_segments_are_those_of_the_plain_loop(
    spark: SparkSession,
    written: tuple[Path, Builder],
    expected: list[dict[str, Any]],
    shape: Shape,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "shape_of", lambda *largest: shape)
    assert len(expected) > 30 and any(row["violations"] for row in expected)
    assert rows_of(spark, written[0]) == expected


def test_messages_of_before_the_range_are_known_in_part(spark: SparkSession, tmp_path: Path) -> None:
    """The range begins between two messages of one moment: what decides is the id, not the time."""
    builder = Builder()
    sub = builder.subscription("orders", at=0)
    before = builder.publish(builder.topic_of(sub), at=1)
    builder.deliver(sub, before, at=1)
    builder.write(tmp_path)
    builder.checkpoint(at=1)
    inside = builder.publish(builder.topic_of(sub), at=1)
    builder.ack(sub, before, at=1)
    builder.deliver(sub, inside, at=2)
    builder.ack(sub, inside, at=3)
    late = builder.ack(sub, inside, at=4)
    builder.write(tmp_path)
    first, *_ = sorted((tmp_path / "segments").rglob("*.parquet"))
    first.unlink()

    rows = rows_of(spark, tmp_path)

    assert [(row["message_id"], row["partial"], row["v_seq"]) for row in rows] == [
        (before, True, []),
        (inside, False, [late]),
    ]


def test_largest_ids_are_the_same_by_footers_and_by_the_events(
    spark: SparkSession, written: tuple[Path, Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, builder = written
    journal = load_journal(spark, str(path))
    by_footers = _bounds(journal)
    monkeypatch.setattr("analytics.facts._largest_by_footers", lambda segments: None)

    assert by_footers == _bounds(journal)
    assert by_footers == (*(max(row[name] for row in builder.events) for name in ("message_id", "sub_id")), 0)


def test_spark_and_numpy_pack_the_same_bits(spark: SparkSession) -> None:
    columns = {
        "message_id": [1, 2**41 - 1, 7],
        "sub_id": [2**14 - 1, 1, 3],
        "epoch": [255, 0, 1],
        "kind": [15, 2, 5],
        "result": [4, 0, 2],
        "generation": [2**31 - 1, 1, 9],
        "attempt": [1, 2**31 - 1, 4],  # the second is capped
        **{name: [0, 1, -(2**63)] for name in keys.PLAIN},
    }
    types = {"kind": "tinyint", "result": "tinyint", "message_id": "bigint"} | dict.fromkeys(
        keys.PLAIN, "bigint"
    )
    schema = ", ".join(f"{name} {types.get(name, 'int')}" for name in columns)
    events = spark.createDataFrame(list(zip(*columns.values(), strict=True)), schema)
    for shape in Shape:
        by_spark = keys.pack(events, shape)
        by_numpy = keys.pack_arrays({name: np.array(values) for name, values in columns.items()}, shape)
        assert tuple(by_spark.columns) == shape.columns
        found = {tuple(row) for row in by_spark.collect()}
        assert found == set(zip(*(by_numpy[name].tolist() for name in shape.columns), strict=True))


def test_messages_spread_evenly_and_stay_together(spark: SparkSession) -> None:
    """Also those of one subscription, of one key, or of ids in steps, and whatever the epoch is."""
    from pyspark.sql import functions as F

    events = spark.range(8_000).select(
        (F.col("id") % 4_000 * 1_024 + 1).alias("message_id"),
        F.lit(1).alias("sub_id"),
        (F.col("id") / 4_000).cast("int").alias("epoch"),
        *[F.lit(1).alias(name) for name in ("kind", "result", "generation", "attempt", *keys.PLAIN)],
    )
    for shape in Shape:
        spread = keys.pack(events, shape).repartition(4, *keys.message_columns(shape))
        message = keys.message_columns(shape)[0]
        placed = spread.select(F.spark_partition_id().alias("part"), message.alias("message"))
        sizes = [row["count"] for row in placed.groupBy("part").count().collect()]
        parts = placed.distinct().groupBy("message").count().agg(F.max("count")).first()

        assert len(sizes) == 4 and max(sizes) < 1.2 * 2_000
        assert parts is not None and parts[0] == 1


def test_a_partition_has_at_most_a_million_events_and_each_core_at_least_two() -> None:
    assert partitions(0, cores=2) == 4
    assert partitions(4_000_000, cores=2) == 4
    assert partitions(4_000_001, cores=2) == 5
    assert partitions(20_000_000, cores=2) == 20
    assert partitions(1_000_000, cores=16) == 32


def test_arrow_types_are_those_of_the_table(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    table = StructType.fromDDL(SCHEMAS["facts"])
    assert arrow_schema(SCHEMAS["facts"]).names == table.names
    assert [str(field.type) for field in arrow_schema(SCHEMAS["facts"])] == [
        {
            "int": "int32",
            "bigint": "int64",
            "boolean": "bool",
            "array<tinyint>": "list<item: int8>",
            "array<bigint>": "list<item: int64>",
        }[field.dataType.simpleString()]
        for field in table
    ]


def test_what_a_worker_is_given_survives_the_way_there() -> None:
    """And what it gives is cut into batches of the table's schema, without a row lost between them."""
    from pyspark import cloudpickle

    one = world(random_moves(Random(7), 600))
    work = replayer(Rules.of(one.dimensions), Shape.ONE_KEY)
    work = cloudpickle.loads(cloudpickle.dumps(work))
    columns = keys.pack_arrays(one.replayed, Shape.ONE_KEY)
    table = pa.table({name: columns[name] for name in Shape.ONE_KEY.columns})

    found = list(work(iter(table.to_batches(max_chunksize=100))))

    rows = [row for batch in found for row in batch.to_pylist()]
    assert all(batch.schema == arrow_schema(SCHEMAS["facts"]) for batch in found)
    assert sorted(rows, key=lambda row: (row["sub_id"], row["message_id"], row["epoch"])) == one.expected()
    assert list(work(iter([]))) == []
