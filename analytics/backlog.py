"""G4: what a subscription owes at the end of the journal is what its backlog holds, no more and no less.

The open messages are those with a fact in the last epoch that neither an ack nor a departure has closed,
and the untouched ones that no bulk drop took away. Compared with the backlog file of the journal's last
event, an open message that is missing there is lost, and one that is there without being open is a ghost.

Not judged are subscriptions that have ended, those whose last seek was to a snapshot (only the snapshot knows
what it made them owe), and messages published where the journal does not tell everything of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analytics.dimensions import OPEN, Dimensions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What the finders of violations return; `other` is a message that a text will name, 0: none.
FOUND = "code string, sub_id int, message_id bigint, epoch int, seq bigint, other bigint"

SCHEMA = "sub_id int, message_id bigint"  # of a backlog file
OPEN_MESSAGES = "sub_id int, epoch int, message_id bigint, pub_us bigint, certain boolean"


@dataclass(frozen=True)
class Horizon:
    """From where on the journal tells everything about a message.

    `first_id` is the first message published after everything that is missing: what is as new as that is
    wholly known. `is_whole`: the range begins with the journal, and nothing is missing.
    `first_missing_seq`: before it nothing is missing.
    """

    first_id: int = 0
    is_whole: bool = True
    first_missing_seq: int = OPEN


def last_epochs(dimensions: Dimensions) -> dict[int, int]:
    """By sub_id the epoch that runs at the journal's end, of subscriptions that have not ended."""
    return {
        sub_id: dimensions.epochs[sub_id][-1].epoch
        for sub_id, one in dimensions.subscriptions.items()
        if one.end_seq == OPEN
    }


def uncheckable(dimensions: Dimensions) -> set[int]:
    """Subscriptions whose last epoch a seek to a snapshot began."""
    return {sub_id for sub_id in last_epochs(dimensions) if dimensions.epochs[sub_id][-1].is_snapshot}


def _last_epochs_df(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    return spark.createDataFrame(sorted(last_epochs(dimensions).items()), "sub_id int, epoch int")


def open_messages(facts: DataFrame, untouched: DataFrame, dimensions: Dimensions) -> DataFrame:
    """Rows of `OPEN_MESSAGES`: what every living subscription owes at the end, as the journal tells it."""
    from pyspark.sql import functions as F

    last = F.broadcast(_last_epochs_df(facts.sparkSession, dimensions))
    columns = ("sub_id", "epoch", "message_id", "pub_us", "certain")
    # Of a message published before the range nothing is known until it is delivered.
    is_known = F.expr("not partial or deliveries > 0")
    started = (
        facts.where("owed and ack_us is null and gone_us is null")
        .join(last, ["sub_id", "epoch"])
        .withColumn("certain", is_known)
        .select(*columns)
    )
    waiting = untouched.where("gone_us is null").join(last, ["sub_id", "epoch"]).select(*columns)
    return started.unionByName(waiting)


def judge(
    open_messages: DataFrame,
    backlog: DataFrame,
    facts: DataFrame,
    dimensions: Dimensions,
    horizon: Horizon,
    last_seq: int,
) -> DataFrame:
    """Rows of `FOUND` with G4_lost and G4_ghost. `backlog` has the columns of a backlog file as of
    `last_seq`."""
    from pyspark.sql import functions as F

    spark = facts.sparkSession
    unjudged = sorted(uncheckable(dimensions))
    known = sorted(set(last_epochs(dimensions)) - set(unjudged))
    mine = backlog.distinct().where(~F.col("sub_id").isin(unjudged))
    if not horizon.is_whole:
        # Of others the journal does not say that they do not exist.
        mine = mine.where(F.col("sub_id").isin(sorted(dimensions.subscriptions)))
    expected = open_messages.where(F.col("sub_id").isin(known))
    both = expected.join(mine.withColumn("there", F.lit(True)), ["sub_id", "message_id"], "full_outer")
    wrong = both.where("there is null or epoch is null")
    is_new = F.col("message_id") >= F.lit(horizon.first_id)
    # A message with a fact is known from its first delivery on, unless events are missing after that.
    has_missing = horizon.first_missing_seq != OPEN
    lost = wrong.where(F.expr("there is null and certain") & (is_new | F.lit(not has_missing))).select(
        F.lit("G4_lost").alias("code"), "sub_id", "message_id", "epoch"
    )
    ghosts = wrong.where("epoch is null")
    if not horizon.is_whole:
        closed = (
            facts.where("ack_us is not null or gone_us is not null")
            .join(F.broadcast(_last_epochs_df(spark, dimensions)), ["sub_id", "epoch"])
            .select("sub_id", "message_id")
        )
        was_closed = ghosts.join(closed, ["sub_id", "message_id"], "left_semi")
        ghosts = ghosts.where(is_new) if has_missing else ghosts.where(is_new).unionByName(
            was_closed.where(~is_new)
        )  # fmt: skip  # short items, many to a line
    last = _last_epochs_df(spark, dimensions).withColumnRenamed("epoch", "last_epoch")
    ghost = (
        ghosts.drop("epoch")
        .join(F.broadcast(last), "sub_id", "left")
        .select(
            F.lit("G4_ghost").alias("code"),
            "sub_id",
            "message_id",
            F.coalesce("last_epoch", F.lit(0)).alias("epoch"),
        )
    )
    return lost.unionByName(ghost).select(
        "*", F.lit(last_seq).cast("bigint").alias("seq"), F.lit(0).cast("bigint").alias("other")
    )
