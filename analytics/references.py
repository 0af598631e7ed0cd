"""G0: every record that refers to an earlier event gives the time of that event.

All latencies rest on single rows, and so on this. It is checked on a sample, since the check joins the rows
with what they refer to: the messages of which something else was found, and one in a thousand by the hash
of its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.backlog import Horizon
from analytics.layout import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONE_IN = 1000

#: `ref_ts_us` is the publish time, or the time of the DELIVER of that generation.
_OF_PUBLISH = (Kind.DELIVER, Kind.DEADLETTER, Kind.DROP, Kind.FILTERED)
_OF_DELIVER = (Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.RESET)


def sample(events: DataFrame, message_ids: DataFrame, one_in: int = ONE_IN) -> DataFrame:
    """Events of the messages named by `message_ids` (message_id), and of one in so many others."""
    from pyspark.sql import functions as F

    named = message_ids.select("message_id").distinct().withColumn("named", F.lit(True))
    drawn = F.pmod(F.xxhash64("message_id"), F.lit(one_in)) == 0
    return (
        events.where("message_id <> 0")
        .select("seq", "ts_us", "kind", "sub_id", "message_id", "generation", "ref_ts_us")
        .join(F.broadcast(named), "message_id", "left")
        .where(drawn | F.col("named"))
        .drop("named")
    )


def judge(sample: DataFrame, facts: DataFrame, horizon: Horizon) -> DataFrame:
    """(code, sub_id, message_id, seq, other): G0_reference; `other` is the right time, 0: there is no such
    event.

    What is referred to may be missing: then nothing is said, except where the journal is whole and tells of a
    message that was never published.
    """
    from pyspark.sql import functions as F

    published = (
        sample.where(F.col("kind") == int(Kind.PUBLISH))
        .groupBy("message_id")
        .agg(F.min("ts_us").alias("right_us"))
    )
    of_publish = (
        sample.where(F.col("kind").isin([int(kind) for kind in _OF_PUBLISH]))
        .join(published, "message_id", "left")
        .where(F.expr("ref_ts_us <> right_us") | (F.col("right_us").isNull() & F.lit(horizon.is_whole)))
        .select("sub_id", "message_id", "seq", F.coalesce("right_us", F.lit(0)).alias("other"))
    )
    delivered = (
        sample.where(F.col("kind") == int(Kind.DELIVER))
        .groupBy("sub_id", "message_id", "generation")
        .agg(F.collect_set("ts_us").alias("right_us"))
    )
    of_deliver = (
        sample.where(F.col("kind").isin([int(kind) for kind in _OF_DELIVER]))
        .where("generation > 0")
        .join(delivered, ["sub_id", "message_id", "generation"])
        .where("not array_contains(right_us, ref_ts_us)")
        .select("sub_id", "message_id", "seq", F.array_min("right_us").alias("other"))
    )
    # The facts took their publish time from one of these rows, which is then to blame, and not they.
    of_facts = (
        facts.where("pub_us is not null")
        .join(F.broadcast(published), "message_id")
        .where("pub_us <> right_us")
        .join(F.broadcast(of_publish.select("sub_id", "message_id")), ["sub_id", "message_id"], "left_anti")
        .select(
            "sub_id",
            "message_id",
            F.coalesce("first_seq", F.lit(0)).cast("bigint").alias("seq"),
            F.col("right_us").alias("other"),
        )
    )
    wrong = of_publish.unionByName(of_deliver).unionByName(of_facts)
    return wrong.select(F.lit("G0_reference").alias("code"), "sub_id", "message_id", "seq", "other")
