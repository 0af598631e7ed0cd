"""G5: messages of one ordering key come in the order of publishing, on subscriptions with message ordering.

Theory of operation. Within one subscription, epoch and key, messages in the order of their ids carry two
running values: the latest first delivery so far, and the latest moment until which something earlier stayed
open without ever being delivered. A first delivery before the one, or before the other, is out of order.
Both are running maxima, so the window streams whatever the size of a key; a key with more than
`KEY_ROWS_MAX` messages is cut into blocks, and each block begins with what the blocks before it came to.

Redeliveries are judged by what follows them, for keys that have any.

A lease that runs when a seek begins an epoch counts as a delivery, although the epoch has no event of it.
That is looked up only where it can matter: for keys in which something was found without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.dimensions import OPEN, Dimensions, with_epoch
from analytics.layout import Kind
from analytics.owed import leased_at_seeks
from analytics.scratch import Settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Messages of a key beyond which it is cut into blocks, and how many message ids a block spans.
KEY_ROWS_MAX = 5_000_000
BLOCK_IDS = 1_000_000
#: Message ids between a redelivery and what follows it are looked up in stretches of this length.
_STRETCH_IDS = 4096

_KEY = ("sub_id", "epoch", "okey")
_FOREVER_US = 2**62

#: A message of a key in an epoch. `closed_us`: acked or gone; null: neither.
MESSAGES = (
    "sub_id int, epoch int, okey bigint, message_id bigint, first_seq bigint, first_us bigint, "
    "closed_us bigint, carried boolean, deliveries int"
)


def ordered_subscriptions(dimensions: Dimensions) -> list[int]:
    """Message ordering cannot be changed, so any setting says it."""
    return sorted(one.sub_id for one in dimensions.subscriptions.values() if one.current.ordered)


def messages(facts: DataFrame, untouched: DataFrame, dimensions: Dimensions, first_id: int = 0) -> DataFrame:
    """Rows of `MESSAGES`: every message with a key that an ordered subscription owes, from `first_id` on."""
    from pyspark.sql import functions as F

    ordered = ordered_subscriptions(dimensions)
    mine = F.col("sub_id").isin(ordered) & (F.col("okey") != 0) & (F.col("message_id") >= first_id)
    delivered = facts.where(mine & F.expr("not partial and (owed or deliveries > 0)")).select(
        *_KEY,
        "message_id",
        "first_seq",
        "first_us",
        F.least("ack_us", "gone_us").alias("closed_us"),
        # Delivered, and none of it a first delivery: the lease before it was made void in an earlier epoch.
        F.expr("deliveries > 0 and first_seq is null").alias("carried"),
        "deliveries",
    )
    none = F.lit(None).cast("bigint")
    waiting = untouched.where(mine & F.col("certain")).select(
        *_KEY,
        "message_id",
        none.alias("first_seq"),
        none.alias("first_us"),
        F.col("gone_us").alias("closed_us"),
        "carried",
        F.lit(0).alias("deliveries"),
    )
    return delivered.unionByName(waiting)


def big_keys(messages: DataFrame, settle: Settle, key_rows_max: int = KEY_ROWS_MAX) -> DataFrame | None:
    """The keys with so many messages that they are cut into blocks."""
    from pyspark.sql import functions as F

    keys = settle(
        messages.groupBy(*_KEY).agg(F.count("*").alias("n")).where(F.col("n") > key_rows_max).select(*_KEY)
    )
    return None if keys.isEmpty() else keys


def first_deliveries(messages: DataFrame, big_keys: DataFrame | None = None) -> DataFrame:
    """(sub_id, epoch, okey, message_id, seq, code): G5_out_of_order and G5_skipped."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    counted = ~F.col("carried")
    first = F.when(counted, F.col("first_seq"))
    # How long it stayed open without ever being delivered.
    waited = F.when(
        counted & F.col("first_seq").isNull(), F.coalesce("closed_us", F.lit(_FOREVER_US).cast("bigint"))
    )
    rows = messages.select(
        *_KEY,
        "message_id",
        "carried",
        "first_seq",
        "first_us",
        first.alias("_first"),
        waited.alias("_waited"),
    )
    block = F.lit(0).cast("bigint")
    if big_keys is not None:
        rows = rows.join(F.broadcast(big_keys.withColumn("is_big", F.lit(True))), list(_KEY), "left")
        block = F.when(F.col("is_big"), F.expr(f"message_id div {BLOCK_IDS}")).otherwise(block)
    rows = rows.withColumn("block", block)
    before = (
        Window.partitionBy(*_KEY, "block")
        .orderBy("message_id")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    running = rows.select(
        "*", F.max("_first").over(before).alias("latest"), F.max("_waited").over(before).alias("until_us")
    )
    if big_keys is not None:
        running = _with_earlier_blocks(running, rows.where("is_big"))
    is_late = F.coalesce(F.col("latest") > F.col("first_seq"), F.lit(False))
    is_past = F.coalesce(F.col("until_us") > F.col("first_us"), F.lit(False))
    judged = running.where("first_seq is not null and not carried").where(is_late | is_past)
    codes = F.filter(
        F.array(F.when(is_late, F.lit("G5_out_of_order")), F.when(is_past, F.lit("G5_skipped"))),
        lambda code: code.isNotNull(),
    )
    return judged.select(*_KEY, "message_id", F.col("first_seq").alias("seq"), F.explode(codes).alias("code"))


def _with_earlier_blocks(running: DataFrame, rows: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    before = (
        Window.partitionBy(*_KEY)
        .orderBy("block")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    carried = (
        rows.groupBy(*_KEY, "block")
        .agg(F.max("_first").alias("_first"), F.max("_waited").alias("_waited"))
        .select(
            *_KEY,
            "block",
            F.max("_first").over(before).alias("earlier_latest"),
            F.max("_waited").over(before).alias("earlier_until_us"),
        )
    )
    return (
        running.join(F.broadcast(carried), [*_KEY, "block"], "left")
        .withColumn("latest", F.greatest("latest", "earlier_latest"))
        .withColumn("until_us", F.greatest("until_us", "earlier_until_us"))
    )


def redeliveries(events: DataFrame, messages: DataFrame, settle: Settle) -> DataFrame | None:
    """(sub_id, epoch, okey, message_id, seq, other, code): G5_redelivery_gap; None: there is nothing to
    judge.

    `events` have a column `epoch`. The violation is the delivery that followed, and `other` the message whose
    redelivery it followed.
    """
    from pyspark.sql import functions as F

    keys = settle(
        messages.groupBy(*_KEY)
        .agg(F.sum("deliveries").alias("deliveries"), F.sum((F.col("deliveries") > 0).cast("int")).alias("n"))
        .where("deliveries > n")
        .select(*_KEY)
    )
    if keys.isEmpty():
        return None
    of_keys = _of_keys(messages, keys)
    leaps = settle(_leaps(_of_keys(events.where(F.col("kind") == int(Kind.DELIVER)), keys), of_keys))
    if leaps.isEmpty():
        return None
    stretch = F.explode(F.expr(f"sequence(low div {_STRETCH_IDS}, high div {_STRETCH_IDS})"))
    passed = of_keys.withColumn("stretch", F.expr(f"message_id div {_STRETCH_IDS}"))
    return (
        passed.join(F.broadcast(leaps.withColumn("stretch", stretch)), [*_KEY, "stretch"])
        .where("message_id > low and message_id < high and (closed_us is null or closed_us > next_us)")
        .select(
            *_KEY, F.col("high").alias("message_id"), F.col("next_seq").alias("seq"),
            F.col("low").alias("other"), F.lit("G5_redelivery_gap").alias("code"),
        )
        .distinct()
    )  # fmt: skip  # short items, many to a line


def _leaps(deliveries: DataFrame, messages: DataFrame) -> DataFrame:
    """Redeliveries of `low` that are followed by a delivery of `high`, which is later than the next of the
    key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_time = Window.partitionBy(*_KEY).orderBy("seq")
    followed = deliveries.select(
        *_KEY,
        F.col("message_id").alias("low"),
        "seq",
        "generation",
        F.lead("message_id").over(in_time).alias("high"),
        F.lead("seq").over(in_time).alias("next_seq"),
        F.lead("ts_us").over(in_time).alias("next_us"),
    ).where("generation > 1 and high > low + 1")
    in_key = Window.partitionBy(*_KEY).orderBy("message_id")
    places = messages.select(
        *_KEY,
        F.col("message_id").alias("low"),
        "first_seq",
        F.lead("message_id").over(in_key).alias("successor"),
    )
    # The first delivery of an epoch is no redelivery, whatever its generation.
    return (
        followed.join(places, [*_KEY, "low"])
        .where("seq > first_seq and high > successor")
        .select(*_KEY, "low", "high", "next_seq", "next_us")
    )


def _of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    return rows.join(keys, list(_KEY), "left_semi")


def judge(
    events: DataFrame,
    facts: DataFrame,
    untouched: DataFrame,
    dimensions: Dimensions,
    settle: Settle,
    first_id: int = 0,
    rows_max: int = OPEN,
) -> DataFrame:
    """Rows of `backlog.FOUND` with the codes of G5, for messages from `first_id` on.

    No subscription has more than `rows_max` messages in an epoch.
    """
    from pyspark.sql import functions as F

    ordered = ordered_subscriptions(dimensions)
    mine = with_epoch(events.where(F.col("sub_id").isin(ordered) & (F.col("okey") != 0)), dimensions)
    known = settle(messages(facts, untouched, dimensions, first_id))
    has_big = rows_max > KEY_ROWS_MAX
    found = _judge(mine, known, settle, has_big)
    if any(dimensions.seeks(sub_id) for sub_id in ordered):
        found = settle(found)
        doubtful = settle(found.where("epoch > 0").select(*_KEY).distinct())
        if not doubtful.isEmpty():
            marked = settle(_with_leases(known, doubtful, events, dimensions))
            again = _judge(mine, marked, settle, has_big)
            found = found.where("epoch = 0").unionByName(again)
    return found.select("code", "sub_id", "message_id", "epoch", "seq", "other")


def _judge(events: DataFrame, messages: DataFrame, settle: Settle, has_big: bool) -> DataFrame:
    from pyspark.sql import functions as F

    first = first_deliveries(messages, big_keys(messages, settle) if has_big else None).withColumn(
        "other", F.lit(0).cast("bigint")
    )
    again = redeliveries(events, messages, settle)
    return first if again is None else first.unionByName(again)


def _with_leases(
    messages: DataFrame, keys: DataFrame, events: DataFrame, dimensions: Dimensions
) -> DataFrame:
    """Messages of the doubtful keys, `carried` where a lease ran when the epoch began."""
    from pyspark.sql import functions as F

    leased = leased_at_seeks(events, dimensions, ordered_subscriptions(dimensions)).withColumn(
        "leased", F.lit(True)
    )
    marked = F.coalesce("leased", F.lit(False)) | F.col("carried")
    return (
        _of_keys(messages, keys)
        .join(leased, ["sub_id", "epoch", "message_id"], "left")
        .withColumn("carried", marked)
        .drop("leased")
    )
