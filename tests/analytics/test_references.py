"""Which messages the audit looks at to check the journal's own references."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from analytics import references
from analytics.backlog import Horizon
from analytics.tables import SCHEMAS
from tests.analytics.generator.builder import Builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def journal(spark: SparkSession) -> tuple[Builder, int, DataFrame, int]:
    """40 messages with a wrong reference each, and one that was never published: its number is the last."""
    builder = Builder()
    sub = builder.subscription("s", at=0)
    for _ in range(40):
        message = builder.publish(builder.topic_of(sub), at=1)
        builder.deliver(sub, message, at=2)
        builder.ack(sub, message, at=3, ref_ts_us=7)
    ghost = builder.publish(builder.topic_of(sub), at=4)
    builder.events.pop()
    builder.deliver(sub, ghost, at=5)
    columns = builder.columns()
    names = list(columns)
    rows: list[Any] = list(zip(*(columns[name].tolist() for name in names), strict=True))
    types = {"kind": "tinyint", "result": "tinyint"}
    schema = ", ".join(f"{name} {types.get(name, 'bigint')}" for name in names)
    return builder, sub, spark.createDataFrame(rows, schema), ghost


def test_one_in_so_many_is_looked_at_and_what_is_suspicious_anyway(spark: SparkSession) -> None:
    _, _, events, _ = journal(spark)
    named = spark.createDataFrame([(3,), (3,), (5,)], "message_id bigint")
    sample = references.sample(events, named, one_in=8)
    looked_at = {row.message_id for row in sample.select("message_id").distinct().collect()}
    drawn = {
        row.message_id
        for row in events.where("message_id <> 0 and pmod(xxhash64(message_id), 8) = 0").collect()
    }
    assert 1 <= len(drawn) < 20
    assert looked_at == drawn | {3, 5}
    facts = spark.createDataFrame([], SCHEMAS["facts"])
    found = references.judge(sample, facts, Horizon()).collect()
    assert {row.message_id for row in found} == looked_at
    assert {row.code for row in found} == {"G0_reference"}


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_message_that_was_never_published_is_found_in_a_whole_journal(
    spark: SparkSession, is_whole: bool
) -> None:
    _, _, events, ghost = journal(spark)
    sample = references.sample(events, spark.createDataFrame([], "message_id bigint"), one_in=1)
    facts = spark.createDataFrame([], SCHEMAS["facts"])
    found = references.judge(sample, facts, replace(Horizon(), is_whole=is_whole)).collect()
    assert len(found) == 40 + is_whole
    assert (ghost in {row.message_id for row in found}) is is_whole
