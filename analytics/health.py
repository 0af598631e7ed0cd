"""How the subscriptions are doing, minute by minute: rates, latencies, backlog, clients, dead letters.

Theory of operation. What happens is counted in one pass over the events, by subscription, client and minute;
the tables per minute, per client and about fairness are made of those few rows. Latencies are a second pass:
an event carries the time of the other end of what it closes, so none has to look for another. What needs a
message's whole life (backlog, age of the oldest, publish to ack, attempts) comes from the facts.

Rules of the file:

* A PUBLISH is of a topic; it is counted once for every subscription that is owed it, and seq decides which
  those are.
* `published` leaves out what the filter rejected at publishing. A message that a seek brings back is owed,
  but it was published in its own minute and is not counted again.
* `nacked`, `acked` and `extended` are those that took effect, `extend_failed` those that were refused.
* `clients` had a delivery in that minute; fairness is about them alone, since a client that asks for nothing
  is not treated unfairly.
* In `latency` all publishing is of subscription 0: how long a commit takes does not depend on who subscribes.
* The stream counts with `case_rows`, `counts` and `latency_rows` of this file too, so it cannot count
  otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from analytics import histogram, owed
from analytics.dimensions import OPEN, Dimensions, clients_df, subscriptions_df
from analytics.layout import Kind, Result
from analytics.run import write_facts
from analytics.scratch import Scratch
from analytics.tables import MINUTE_COUNTS

if TYPE_CHECKING:
    from analytics.run import Run

MINUTE_US = 60_000_000
#: Two messages with the same payload on a topic are suspected of being one if they are no further apart.
DUPLICATE_WINDOW_S = 600
EXAMPLES_MAX = 20

#: A subscription is owed what its topic publishes between these, both excluded.
OWNERS = "owner_topic_id int, owner_sub_id int, start_seq bigint, end_seq bigint"

# More ranges than this in one condition cost more than they spare.
_RANGES_MAX = 30

# A minute after all others: when what is still open will have been closed.
_NEVER = 2**62 // MINUTE_US


# -- one event --------------------------------------------------------------------------------------------


def _is(kind: Kind, *results: Result) -> Column:
    same = F.col("kind") == F.lit(int(kind))
    return same & F.col("result").isin([int(one) for one in results]) if results else same


def _is_any(*kinds: Kind) -> Column:
    return F.col("kind").isin([int(kind) for kind in kinds])


def minute_of(name: str) -> Column:
    """Number of the UTC minute of a column of microseconds, counted from the epoch."""
    return F.expr(f"{name} div {MINUTE_US}")


def as_timestamp(minute: str) -> Column:
    """The beginning of the minute of that number."""
    return F.timestamp_seconds(F.col(minute) * 60)


def _cases() -> list[tuple[Column, dict[str, int]]]:
    """What can happen to a message, the frequent first, and what each adds to the columns of a minute."""
    again, at_publishing = F.col("generation") > 1, F.col("ts_us") == F.col("ref_ts_us")
    failed = (Result.PERMANENT, Result.TRANSIENT, Result.OTHER)
    return [
        (_is(Kind.DELIVER) & ~again, {"delivered": 1}),
        (_is(Kind.ACK, Result.OK), {"acked": 1}),
        (_is(Kind.PUBLISH), {"published": 1}),
        (_is(Kind.DELIVER), {"delivered": 1, "redelivered": 1}),
        (_is(Kind.EXTEND, Result.OK), {"extended": 1}),
        (_is(Kind.EXTEND, *failed), {"extend_failed": 1}),
        (_is(Kind.NACK, Result.OK), {"nacked": 1}),
        (_is(Kind.EXPIRE), {"expired": 1}),
        (_is(Kind.ACK, Result.NOOP), {"ack_noop": 1}),
        (_is(Kind.ACK, Result.PERMANENT), {"ack_permanent": 1}),
        (_is(Kind.ACK, Result.TRANSIENT), {"ack_transient": 1}),
        (_is(Kind.RESET), {"reset": 1}),
        (_is(Kind.FILTERED) & at_publishing, {"filtered": 1, "published": -1}),
        (_is(Kind.FILTERED), {"filtered": 1}),
        (_is(Kind.DEADLETTER), {"dead_lettered": 1}),
        (_is(Kind.DROP), {"dropped": 1}),
    ]


def _case() -> Column:
    """The number of the first case that fits, from 1; 0: none, as of a nack that was refused."""
    found = F.when(F.lit(False), 0)
    for number, (fits, _) in enumerate(_cases(), 1):
        found = found.when(fits, number)
    return found.otherwise(0)


def counts(n: str | None = None) -> list[Column]:
    """The columns of `MINUTE_COUNTS` as aggregates over the rows that `case_rows` gives.

    `n`: the column that says for how many events a row stands, if not for one.
    """
    cases = [adds for _, adds in _cases()]
    weight = F.lit(1) if n is None else F.col(n)

    def summed(name: str, value: Column) -> Column:
        adding = [number for number, adds in enumerate(cases, 1) if adds.get(name) == 1]
        taking = [number for number, adds in enumerate(cases, 1) if adds.get(name) == -1]
        each = F.when(F.col("case").isin(adding), value)
        if taking:
            each = each.when(F.col("case").isin(taking), -value)
        return F.sum(each.otherwise(F.lit(0)))

    return [
        (summed("delivered", F.col("bytes")) if name == "bytes" else summed(name, weight)).alias(name)
        for name in MINUTE_COUNTS
    ]


def case_rows(events: DataFrame, sub_id: Column, *more: str) -> DataFrame:
    """The events that are counted.

    `case` is what happened (see `_cases`), `client_id` who was served (0 for what is published), `bytes` the
    size of what was delivered, `processing_us` how long a client took for what it acked. `sub_id` is an
    expression over events; `more` are columns to keep beside.
    """
    about_messages = [kind for kind in Kind if kind <= Kind.DROP or kind in (Kind.FILTERED, Kind.RESET)]
    # A bulk drop is about messages that it does not name, and refers to no publish time.
    is_bulk = _is(Kind.DROP) & (F.col("ref_ts_us") == 0)
    processing_us = F.when(_is(Kind.ACK, Result.OK), F.col("ts_us") - F.col("ref_ts_us"))
    return events.where(_is_any(*about_messages) & ~is_bulk).select(
        sub_id.alias("sub_id"),
        F.when(_is(Kind.PUBLISH), F.lit(0)).otherwise(F.col("client_id")).alias("client_id"),
        "ts_us",
        _case().alias("case"),
        "bytes",
        processing_us.otherwise(F.lit(0)).alias("processing_us"),
        *more,
    )


def owned_rows(events: DataFrame, owners: DataFrame, *more: str) -> DataFrame:
    """As `case_rows`, with a PUBLISH once for each subscription that is owed it; `owners`: `OWNERS`.

    Costs no more than the deliveries that follow, but the batch job has a cheaper way (`client_minutes`).
    """
    topic_id = F.when(_is(Kind.PUBLISH), F.col("topic_id"))
    is_owed = (
        (topic_id == F.col("owner_topic_id"))
        & (F.col("seq") > F.col("start_seq"))
        & (F.col("seq") < F.col("end_seq"))
    )
    joined = events.join(F.broadcast(owners), is_owed, "left")
    return case_rows(joined, F.coalesce("owner_sub_id", "sub_id"), *more).where("sub_id <> 0")


def latency_rows(events: DataFrame) -> DataFrame:
    """(sub_id, ts_us, what, value_us) of each latency that an event closes; `what`: see
    `tables.LATENCIES`."""
    what = (
        F.when(_is(Kind.PUBLISH), 1)
        .when(_is(Kind.DELIVER) & (F.col("generation") == 1), 2)
        .when(_is(Kind.ACK, Result.OK), 5)
        .when(_is(Kind.EXPIRE), 6)
    )
    return (
        events.where(_is_any(Kind.PUBLISH, Kind.DELIVER, Kind.ACK, Kind.EXPIRE) & (F.col("ref_ts_us") > 0))
        .select(
            "sub_id", "ts_us", what.alias("what"), (F.col("ts_us") - F.col("ref_ts_us")).alias("value_us")
        )
        .where("what is not null")
    )


def owner_rows(dimensions: Dimensions) -> list[tuple[int, int, int, int]]:
    """Rows of `OWNERS`."""
    return [
        (one.topic_id, one.sub_id, one.start_seq, one.end_seq) for one in dimensions.subscriptions.values()
    ]


# -- per minute -------------------------------------------------------------------------------------------


def client_minutes(events: DataFrame, dimensions: Dimensions) -> DataFrame:
    """The one pass over the events: (sub_id, client_id, minute number), counts, and `processing_sum_us`.

    What is published is summed up by topic, and only the sums go to the subscriptions that are owed it. In
    minutes in which a subscription begins or ends, seq decides, so these are looked at message by message.
    """
    spark = events.sparkSession
    # A topic is the negative of its number; so one column tells whose a sum is.
    whose = F.when(_is(Kind.PUBLISH), -F.col("topic_id")).otherwise(F.col("sub_id"))
    by_case = (
        case_rows(events, whose)
        .groupBy("sub_id", "client_id", minute_of("ts_us").alias("minute"), "case")
        .agg(
            F.count("*").alias("n"),
            F.sum("bytes").alias("bytes"),
            F.sum("processing_us").alias("processing_us"),
        )
    )
    whole = [
        (-one.topic_id, one.sub_id, one.start_us // MINUTE_US, one.end_us // MINUTE_US)
        for one in dimensions.subscriptions.values()
    ]
    spans = spark.createDataFrame(
        whole, "topic int, owner_sub_id int, first_minute bigint, last_minute bigint"
    )
    is_owed = (
        (F.col("sub_id") == F.col("topic"))
        & (F.col("minute") > F.col("first_minute"))
        & (F.col("minute") < F.col("last_minute"))
    )
    columns = ("sub_id", "client_id", "minute", "case", "n", "bytes", "processing_us")
    rows = (
        by_case.join(F.broadcast(spans), is_owed, "left")
        .withColumn("sub_id", F.coalesce("owner_sub_id", "sub_id"))
        .where("sub_id > 0")
        .select(*columns)
    )
    edges = _edges(events, dimensions)
    if edges is not None:
        rows = rows.unionByName(edges.select(*columns))
    # Three sums for each event are much less work than seventeen; few rows are left for those.
    return rows.groupBy("sub_id", "client_id", "minute").agg(
        *counts("n"), F.sum("processing_us").alias("processing_sum_us")
    )


def _edges(events: DataFrame, dimensions: Dimensions) -> DataFrame | None:
    """What is published in the minutes in which subscriptions begin or end, to those that are owed it."""
    rows = sorted(
        {
            (one.topic_id, one.sub_id, edge_us // MINUTE_US, one.start_seq, one.end_seq)
            for one in dimensions.subscriptions.values()
            for edge_us in (one.start_us, one.end_us)
            if 0 < edge_us < OPEN
        }
    )
    if not rows:
        return None
    edges = events.sparkSession.createDataFrame(
        rows, "topic_id int, owner_sub_id int, minute bigint, start_seq bigint, end_seq bigint"
    )
    published = events.where(_is(Kind.PUBLISH) & _within(sorted({minute for _, _, minute, _, _ in rows})))
    is_owed = (F.col("seq") > F.col("start_seq")) & (F.col("seq") < F.col("end_seq"))
    return (
        case_rows(published, F.col("topic_id"), "seq")
        .select(F.col("sub_id").alias("topic_id"), "seq", "case", minute_of("ts_us").alias("minute"))
        .join(F.broadcast(edges), ["topic_id", "minute"])
        .where(is_owed)
        .groupBy(F.col("owner_sub_id").alias("sub_id"), "minute", "case")
        .agg(F.count("*").alias("n"))
        .withColumns(
            {
                "client_id": F.lit(0),
                "bytes": F.lit(0).cast("bigint"),
                "processing_us": F.lit(0).cast("bigint"),
            }
        )
    )


def _within(minutes: Sequence[int]) -> Column:
    """Rows of these minutes, as ranges of time: Parquet's statistics spare the reading of most others."""
    if len(minutes) > _RANGES_MAX:
        return F.col("ts_us").between(minutes[0] * MINUTE_US, (minutes[-1] + 1) * MINUTE_US - 1)
    ranges = [F.col("ts_us").between(one * MINUTE_US, (one + 1) * MINUTE_US - 1) for one in minutes]
    return reduce(Column.__or__, ranges)


def minutes(by_client: DataFrame) -> DataFrame:
    """(sub_id, minute number), the counts, and `clients`: how many had a delivery."""
    sums = [F.sum(name).alias(name) for name in MINUTE_COUNTS]
    served = F.count_if((F.col("client_id") != 0) & (F.col("delivered") > 0)).cast("int")
    return by_client.groupBy("sub_id", "minute").agg(*sums, served.alias("clients"))


def client_minute(by_client: DataFrame, dimensions: Dimensions) -> DataFrame:
    """The table of that name: what each client was given and did, and how long it worked on what it acked."""
    names = clients_df(by_client.sparkSession, dimensions)
    name = F.coalesce("client", F.concat(F.lit("client "), F.col("client_id").cast("string")))
    return (
        by_client.where("client_id <> 0 and delivered + acked + nacked + expired > 0")
        .join(F.broadcast(names), "client_id", "left")
        .select(
            "sub_id", "client_id", name.alias("client"), as_timestamp("minute").alias("minute"), "delivered",
            "bytes", "acked", "nacked", "expired", "processing_sum_us",
        )
    )  # fmt: skip  # short items, many to a line


def fairness(by_client: DataFrame) -> DataFrame:
    """How evenly each minute's deliveries went to the clients that got some.

    Jain's index is 1 where all got the same, and 1/n where one of n got everything.
    """
    x = F.col("delivered").cast("double")
    return (
        by_client.where("client_id <> 0 and delivered > 0")
        .groupBy("sub_id", "minute")
        .agg(
            F.count("*").cast("int").alias("clients"),
            (F.sum(x) * F.sum(x) / (F.count("*") * F.sum(x * x))).alias("jain"),
            (F.max(x) / F.sum(x)).alias("largest_share"),
        )
        .select("sub_id", as_timestamp("minute").alias("minute"), "clients", "jain", "largest_share")
    )


# -- latencies --------------------------------------------------------------------------------------------


def acked_rows(facts: DataFrame) -> DataFrame:
    """As `latency_rows`, from publish to ack: once for each epoch in which a message was acked."""
    return facts.where("ack_us is not null and pub_us > 0").select(
        "sub_id",
        F.col("ack_us").alias("ts_us"),
        F.lit(9).alias("what"),
        (F.col("ack_us") - F.col("pub_us")).alias("value_us"),
    )


def histograms(rows: DataFrame) -> DataFrame:
    """The table `latency` of rows as `latency_rows` gives them."""
    return (
        rows.groupBy(
            "sub_id",
            minute_of("ts_us").alias("minute"),
            "what",
            histogram.bucket(F.col("value_us")).alias("bucket"),
        )
        .agg(F.count("*").alias("n"))
        .select("sub_id", as_timestamp("minute").alias("minute"), "what", "bucket", "n")
    )


def latency(events: DataFrame, facts: DataFrame) -> DataFrame:
    """The table of that name."""
    return histograms(latency_rows(events)).unionByName(histograms(acked_rows(facts)))


def latency_quantiles(latency: DataFrame, by: Sequence[str] = ("sub_id", "what")) -> DataFrame:
    """Quantiles out of the table `latency`, in microseconds; per minute too if `by` has it."""
    return histogram.quantiles(latency, by)


def exact_quantiles(rows: DataFrame, by: Sequence[str] = ("sub_id", "what")) -> DataFrame:
    """The same from every single value, between two of which a quantile is interpolated.

    Keeps a count for each different value in memory, so it is for those who ask for it.
    """
    shares = {name: rank / 1000 for name, rank in histogram.QUANTILES.items() if name != "max"}
    found = F.percentile("value_us", F.array(*map(F.lit, shares.values())))
    return (
        rows.groupBy(*by)
        .agg(
            F.count("*").alias("n"),
            found.alias("found"),
            F.max("value_us").cast("double").alias("max"),
        )
        .select(*by, "n", *(F.col("found")[at].alias(name) for at, name in enumerate(shares)), "max")
    )


# -- backlog ----------------------------------------------------------------------------------------------


def backlog(
    facts: DataFrame, untouched: DataFrame, dimensions: Dimensions, first_us: int, last_us: int
) -> DataFrame:
    """(sub_id, minute number, backlog, oldest_us) at the end of each minute in which something changed.

    Both are NULL where only a snapshot's content could tell, `oldest_us` is also where nothing is open. What
    is owed in an epoch is open from its publishing, at the earliest from the beginning of the epoch, until it
    is acked or gone, at the latest until the end of the epoch. It is either in the facts or untouched (see
    `owed.py`). So a minute adds what opens in it and takes off what closes in it; and the oldest open message
    is the oldest of all that close in later minutes, wherever something is open at all.

    Of messages published before `first_us`, where the range begins, those count that are delivered or leave
    in the range.
    """
    epochs = _epoch_minutes(facts.sparkSession, dimensions, first_us, last_us)
    changes = _changes(_spans(facts, untouched), epochs)
    whole = Window.partitionBy("sub_id", "epoch")
    forward = whole.orderBy("minute")
    later = whole.orderBy(F.desc("minute")).rowsBetween(Window.unboundedPreceding, -1)
    is_known, is_open = F.col("is_known") & F.col("all_certain"), F.col("backlog") > 0
    return (
        changes.select(
            "*",
            F.sum("change").over(forward).alias("backlog"),
            F.min("closing_us").over(later).alias("oldest_us"),
            F.bool_and("is_certain").over(whole).alias("all_certain"),
        )
        .join(F.broadcast(epochs), ["sub_id", "epoch"])
        .where("minute >= first_minute and minute < end_minute")
        .select(
            "sub_id",
            "minute",
            F.when(is_known, F.col("backlog")).alias("backlog"),
            F.when(is_known & is_open, F.col("oldest_us")).alias("oldest_us"),
        )
    )


def _epoch_minutes(spark: SparkSession, dimensions: Dimensions, first_us: int, last_us: int) -> DataFrame:
    """(sub_id, epoch, start_us, first_minute, end_minute, is_known): at the ends of which minutes it runs.

    After its last epoch a subscription has one more, in which nothing is owed, if it ends within the range.
    """
    rows = []
    for epochs in dimensions.epochs.values():
        for one in epochs:
            start_us = max(one.start_us, first_us)
            rows.append((one.sub_id, one.epoch, start_us, one.end_us, not one.is_snapshot))
        last = epochs[-1]
        if last.end_us <= last_us:
            rows.append((last.sub_id, last.epoch + 1, last.end_us, 2**62, True))
    named = [
        (sub_id, epoch, start_us, start_us // MINUTE_US, min(end_us, 2**62) // MINUTE_US, is_known)
        for sub_id, epoch, start_us, end_us, is_known in rows
    ]
    return spark.createDataFrame(
        named,
        "sub_id int, epoch int, start_us bigint, first_minute bigint, end_minute bigint, is_known boolean",
    )


def _spans(facts: DataFrame, untouched: DataFrame) -> DataFrame:
    """(sub_id, epoch, pub_us, end_us, is_certain) of every message that is owed; `end_us` NULL: it is
    open."""
    # Of a message published before the range nothing is known until something is done with it.
    is_known = "not partial or deliveries > 0 or ack_us is not null or gone_us is not null"
    with_facts = facts.where("owed").where(is_known)
    columns = ("sub_id", "epoch", "pub_us")
    return with_facts.select(
        *columns, F.least("ack_us", "gone_us").alias("end_us"), F.lit(True).alias("is_certain")
    ).unionByName(
        untouched.select(*columns, F.col("gone_us").alias("end_us"), F.col("certain").alias("is_certain"))
    )


def _changes(spans: DataFrame, epochs: DataFrame) -> DataFrame:
    """(sub_id, epoch, minute, change, closing_us, is_certain): how the backlog changes in a minute, the
    oldest publish time of what closes in it, and whether all of it is known to be owed.

    Every epoch has a row for its first minute.
    """
    pairs = (
        spans.groupBy(
            "sub_id", "epoch", minute_of("pub_us").alias("opens"), minute_of("end_us").alias("closes")
        )
        .agg(
            F.count("*").alias("n"),
            F.min("pub_us").alias("pub_us"),
            F.bool_and("is_certain").alias("is_certain"),
        )
        .join(F.broadcast(epochs), ["sub_id", "epoch"])
        .withColumn("opens", F.greatest("opens", "first_minute"))
        # `greatest` passes over NULL, which is what has not closed.
        .withColumn("closes", F.greatest(F.coalesce("closes", F.lit(_NEVER)), "first_minute"))
    )
    none, certain = F.lit(None).cast("bigint"), F.lit(True)
    key = F.struct("sub_id", "epoch").alias("key")
    n, pub_us, is_certain = F.col("n"), F.col("pub_us"), F.col("is_certain")
    parts = [
        pairs.select(key, F.col("opens").alias("minute"), n, none.alias("pub_us"), is_certain),
        pairs.select(key, F.col("closes").alias("minute"), (-n).alias("n"), pub_us, is_certain),
        epochs.select(
            key, F.col("first_minute").alias("minute"), F.lit(0).cast("bigint").alias("n"),
            none.alias("pub_us"), certain.alias("is_certain"),
        ),
    ]  # fmt: skip  # short items, many to a line
    return (
        reduce(DataFrame.unionByName, parts)
        .groupBy("key.sub_id", "key.epoch", "minute")
        .agg(
            F.sum("n").alias("change"),
            F.min("pub_us").alias("closing_us"),
            F.bool_and("is_certain").alias("is_certain"),
        )
    )


def health_minute(minutes: DataFrame, backlog: DataFrame, dimensions: Dimensions, last_us: int) -> DataFrame:
    """The table of that name: a row for each minute in which something happened, or something was open.

    `last_us` is the end of the range: the last minute is not over there, and ages are as of then.
    """
    spark = minutes.sparkSession
    ordered = Window.partitionBy("sub_id").orderBy("minute")
    last_minute = last_us // MINUTE_US
    # A step function of two columns: a struct, because NULL is one of its values.
    step = F.struct("backlog", "oldest_us")
    known = backlog.select("sub_id", "minute", step.alias("step"))
    joined = minutes.withColumn("counted", F.lit(True)).join(known, ["sub_id", "minute"], "full")
    stepped = joined.select(
        "sub_id",
        "minute",
        *MINUTE_COUNTS,
        "clients",
        "counted",
        F.last("step", ignorenulls=True).over(ordered).alias("step"),
        F.lead("minute").over(ordered).alias("next_minute"),
    )
    # What stays open through minutes in which nothing happens gets older.
    until = F.coalesce(F.col("next_minute") - 1, F.greatest("minute", F.lit(last_minute)))
    stays = F.col("step.backlog") > 0
    every = F.when(stays, F.sequence("minute", until)).otherwise(F.array("minute"))
    filled = (
        stepped.where(F.col("counted") | stays)
        .select("*", F.explode(every).alias("at"))
        .withColumn("counted", F.col("counted") & (F.col("at") == F.col("minute")))
    )
    end_us = F.least((F.col("at") + 1) * MINUTE_US, F.greatest(F.col("at") * MINUTE_US, F.lit(last_us)))
    age_s = (end_us - F.col("step.oldest_us")) / F.lit(1e6)
    numbers = [
        F.when(F.col("counted"), F.col(name)).otherwise(F.lit(0)).alias(name)
        for name in (*MINUTE_COUNTS, "clients")
    ]
    return with_names(filled, dimensions, spark).select(
        "sub_id",
        "subscription",
        as_timestamp("at").alias("minute"),
        *numbers,
        F.col("step.backlog").alias("backlog"),
        F.when(F.col("step.backlog") == 0, F.lit(0.0)).otherwise(age_s).alias("oldest_age_s"),
    )


def with_names(frame: DataFrame, dimensions: Dimensions, spark: SparkSession) -> DataFrame:
    """`frame` and the column `subscription`; one that no event of the range describes has its number."""
    names = subscriptions_df(spark, dimensions).select("sub_id", F.col("subscription").alias("name"))
    number = F.concat(F.lit("subscription "), F.col("sub_id").cast("string"))
    joined = frame.join(F.broadcast(names), "sub_id", "left")
    return joined.withColumn("subscription", F.coalesce("name", number)).drop("name")


# -- the rest ---------------------------------------------------------------------------------------------


def attempts(facts: DataFrame) -> DataFrame:
    """How many messages were delivered how often; a message counts once for each epoch with deliveries."""
    return facts.where("deliveries > 0").groupBy("sub_id", "deliveries").agg(F.count("*").alias("messages"))


def dead_letter(events: DataFrame) -> DataFrame:
    """Per minute: what left for which topic, after how many attempts, and how old it was."""
    return (
        events.where(_is(Kind.DEADLETTER))
        .groupBy("sub_id", "topic_id", minute_of("ts_us").alias("minute"))
        .agg(
            F.count("*").alias("n"),
            F.percentile("attempt", F.lit(0.5)).alias("attempts_p50"),
            (F.percentile(F.col("ts_us") - F.col("ref_ts_us"), F.lit(0.5)) / F.lit(1e6)).alias("age_p50_s"),
        )
        .select(
            "sub_id", "topic_id", as_timestamp("minute").alias("minute"), "n", "attempts_p50", "age_p50_s"
        )
    )


def duplicates(events: DataFrame, window_s: int = DUPLICATE_WINDOW_S) -> DataFrame:
    """Messages of a topic with the same data and attributes that were published shortly one after the other.

    A group is a chain of them in which none follows the one before later than `window_s`; `spread` is from
    its first to its last. The same payload at different times makes different groups. The first pass keeps
    the payloads that occur twice at all; of these, messages are taken together by spans of the window's
    length before anything is sorted, so a payload that is sent all day costs a row per span.
    """
    window_us = window_s * 1_000_000
    same = ["topic_id", "payload_hash"]
    published = events.where(_is(Kind.PUBLISH))
    repeated = published.groupBy(*same).agg(F.count("*").alias("n")).where("n > 1").select(*same)
    spans = (
        published.join(repeated, same, "left_semi")
        .groupBy(*same, F.expr(f"ts_us div {window_us}").alias("span"))
        .agg(
            F.count("*").alias("n"),
            F.min("ts_us").alias("first_us"),
            F.max("ts_us").alias("last_us"),
            F.min("message_id").alias("first_message_id"),
        )
    )
    ordered = Window.partitionBy(*same).orderBy("span")
    begins = F.coalesce(F.col("first_us") - F.lag("last_us").over(ordered) > window_us, F.lit(True))
    chained = spans.withColumn("begins", begins.cast("int")).withColumn(
        "chain", F.sum("begins").over(ordered)
    )
    groups = (
        chained.groupBy(*same, "chain")
        .agg(
            F.sum("n").alias("messages"),
            ((F.max("last_us") - F.min("first_us")) / F.lit(1e6)).alias("spread_s"),
            F.min("first_message_id").alias("first_message_id"),
        )
        .where("messages > 1")
    )
    example = F.struct("payload_hash", "messages", "spread_s", "first_message_id")
    of_topic = Window.partitionBy("topic_id").orderBy(F.desc("messages"), "first_message_id")
    return (
        groups.withColumn("rank", F.row_number().over(of_topic))
        .groupBy("topic_id")
        .agg(
            F.count("*").alias("groups"),
            F.sum("messages").alias("messages"),
            F.max("spread_s").alias("max_spread_s"),
            F.collect_list(
                F.when(F.col("rank") <= EXAMPLES_MAX, F.struct(F.col("rank"), example.alias("example")))
            ).alias("ranked"),
        )
        .select(
            "topic_id",
            "groups",
            "messages",
            "max_spread_s",
            F.transform(F.array_sort("ranked"), lambda one: one["example"]).alias("examples"),
        )
    )


# -- the job ----------------------------------------------------------------------------------------------


def run(run: Run) -> None:
    """Write all tables of health (and facts, if they are not there yet)."""
    write_facts(run)
    journal, dimensions, out, spark = run.journal, run.dimensions, run.out, run.spark
    events, facts = journal.events, out.read(spark, "facts")
    with Scratch(spark, f"{out.path}/_health.scratch") as scratch:
        with run.progress.stage("clients per minute", rows=journal.count):
            by_client = scratch.settle(client_minutes(events, dimensions))
            out.write("client_minute", client_minute(by_client, dimensions))
            out.write("fairness", fairness(by_client))
        with run.progress.stage("health per minute", rows=journal.count):
            published = scratch.settle(owed.counts(events))
            untouched = scratch.settle(owed.untouched(events, published, facts, dimensions, scratch.settle))
            open_at = backlog(facts, untouched, dimensions, journal.first_us, journal.last_us)
            counted = minutes(by_client)
            out.write("health_minute", health_minute(counted, open_at, dimensions, journal.last_us))
    with run.progress.stage("latencies", rows=journal.count):
        out.write("latency", latency(events, facts))
        if run.options.exact:
            every = latency_rows(events).unionByName(acked_rows(facts))
            out.write("latency_quantiles", exact_quantiles(every))
        else:
            out.write("latency_quantiles", latency_quantiles(out.read(spark, "latency")))
    with run.progress.stage("attempts, dead letters, duplicates", rows=journal.count):
        out.write("attempts", attempts(facts))
        out.write("dead_letter", dead_letter(events))
        out.write("duplicates", duplicates(events))
