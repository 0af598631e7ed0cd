"""What should be set otherwise: the table `advice`, out of what the journal measured.

Theory of operation. One pass makes a row of each lease: when it began, when it ended, when it was first
acked. All that follows is small: histograms of processing times, and a series over seconds of how many
messages each client held. These come to the driver, and the plain functions of `advice.py` judge them.

Rules of the file:

* Processing time is from delivery to the first ack of that generation, whatever the answer: a late ack tells
  the true time too. A lease that expired or became void without an ack was cut off then (see `survival.py`).
  A nacked lease says nothing about how long the work takes, and counts as neither.
* Advice is for subscriptions that exist at the end of the range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from analytics import histogram
from analytics.advice import SECOND_US, Load, Measured, Minute, advise
from analytics.dimensions import OPEN, Dimensions, Stream, Subscription
from analytics.layout import Kind, Result
from analytics.survival import Survival
from analytics.tables import SCHEMAS

if TYPE_CHECKING:
    from analytics.run import Run

_UNLIMITED = 2**40


# -- leases -----------------------------------------------------------------------------------------------


def _first(condition: Column, name: str = "ts_us") -> Column:
    return F.min(F.when(condition, F.col(name)))


def leases(events: DataFrame) -> DataFrame:
    """A row per lease: sub_id, client_id, bytes, start_us, end_us (NULL: unknown), processing_us, acked.

    `processing_us` is NULL if the lease says nothing about it; without `acked` it is how long the work took
    at least.
    """
    kind, result = F.col("kind"), F.col("result")
    delivered = kind == int(Kind.DELIVER)
    ack = kind == int(Kind.ACK)
    ended = (
        (ack & result.isin(int(Result.OK), int(Result.NOOP)))
        | ((kind == int(Kind.NACK)) & (result == int(Result.OK)))
        | kind.isin(int(Kind.EXPIRE), int(Kind.RESET))
    )
    kinds = [Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.RESET]
    # An ack is mostly read in the same task as its delivery, so this sends little more than a row per lease.
    grouped = (
        events.where(kind.isin([int(one) for one in kinds]) & (F.col("generation") > 0))
        .groupBy("sub_id", "message_id", "generation")
        .agg(
            F.max("client_id").alias("client_id"),
            F.max("bytes").alias("bytes"),
            F.max(F.when(delivered, F.col("ts_us")).otherwise(F.col("ref_ts_us"))).alias("start_us"),
            _first(ack).alias("acked_us"),
            _first(ended).alias("ended_us"),
            _first(kind == int(Kind.EXPIRE), "deadline_us").alias("expired_us"),
            _first(kind == int(Kind.RESET)).alias("reset_us"),
            F.max("deadline_us").alias("deadline_us"),
        )
        .where("start_us > 0")
    )
    seen_us = F.coalesce("acked_us", F.least("expired_us", "reset_us"))
    lapse_us = F.when(F.col("deadline_us") > 0, F.col("deadline_us"))
    return grouped.select(
        "sub_id",
        "client_id",
        "bytes",
        "start_us",
        # A seek ends a lease without a word; then it is over at its deadline at the latest.
        F.coalesce("ended_us", lapse_us).alias("end_us"),
        (seen_us - F.col("start_us")).alias("processing_us"),
        F.col("acked_us").isNotNull().alias("acked"),
    )


def first_ids(clients: Mapping[int, str]) -> dict[int, int]:
    """The first number of each client's name: a name gets another number when the server starts again."""
    first: dict[str, int] = {}
    for client_id in sorted(clients):
        first.setdefault(clients[client_id], client_id)
    return {client_id: first[name] for client_id, name in clients.items()}


def with_first_ids(leases: DataFrame, first_ids: Mapping[int, int]) -> DataFrame:
    """`leases` with one client_id for each name."""
    known = leases.sparkSession.createDataFrame(sorted(first_ids.items()), "client_id int, first_id int")
    joined = leases.join(F.broadcast(known), "client_id", "left")
    return joined.withColumn("client_id", F.coalesce("first_id", "client_id")).drop("first_id")


def processing(leases: DataFrame) -> DataFrame:
    """(sub_id, client_id, acked, bucket, n): the processing times."""
    return (
        leases.where("processing_us >= 0")
        .groupBy("sub_id", "client_id", "acked", histogram.bucket(F.col("processing_us")).alias("bucket"))
        .agg(F.count("*").alias("n"))
    )


def sizes(leases: DataFrame) -> DataFrame:
    """(sub_id, bucket, n): message sizes in bytes, in buckets as of latencies."""
    return (
        leases.where("bytes > 0")
        .groupBy("sub_id", histogram.bucket(F.col("bytes")).alias("bucket"))
        .agg(F.count("*").alias("n"))
    )


LIMITS = "sub_id int, client_id int, second bigint, limit_change bigint"


def limit_rows(streams: Iterable[Stream]) -> list[tuple[int, int, int, int]]:
    """Rows of `LIMITS`: how many messages more (or less) a client may hold from a second on."""
    rows = []
    for one in streams:
        limit = one.max_outstanding_messages or _UNLIMITED
        rows.append((one.sub_id, one.client_id, one.opened_us // SECOND_US, limit))
        if one.closed_us != OPEN:
            rows.append((one.sub_id, one.client_id, one.closed_us // SECOND_US, -limit))
    return rows


def client_seconds(leases: DataFrame, limits: DataFrame) -> DataFrame:
    """Per second with a change: sub_id, client_id, second, delivered, outstanding, most, seconds.

    `outstanding` is how many messages the client holds at the end of the second, `most` how many its streams
    let it hold (0: not known), `seconds` how long that stays so.
    """
    begun = leases.select("sub_id", "client_id", "start_us", "end_us").where("client_id <> 0")
    # A lease of less than a second is a delivery and no change.
    second = F.expr(f"start_us div {SECOND_US}"), F.expr(f"end_us div {SECOND_US}")
    changes = begun.select(
        "sub_id",
        "client_id",
        F.explode(
            F.array_compact(
                F.array(
                    F.struct(
                        second[0].alias("second"), F.lit(1).alias("delivered"), F.lit(1).alias("change")
                    ),
                    F.when(
                        second[1].isNotNull(),
                        F.struct(
                            second[1].alias("second"), F.lit(0).alias("delivered"), F.lit(-1).alias("change")
                        ),
                    ),
                )
            )
        ).alias("one"),
    ).select("sub_id", "client_id", "one.*", F.lit(0).cast("bigint").alias("limit_change"))
    opened = limits.select(
        "sub_id", "client_id", "second", F.lit(0).alias("delivered"), F.lit(0).alias("change"), "limit_change"
    )
    per_second = (
        changes.unionByName(opened)
        .groupBy("sub_id", "client_id", "second")
        .agg(
            F.sum("delivered").alias("delivered"),
            F.sum("change").alias("change"),
            F.sum("limit_change").alias("limit_change"),
        )
    )
    # The series has a row per second and client at most, whatever the number of messages.
    of_client = Window.partitionBy("sub_id", "client_id").orderBy("second")
    return per_second.select(
        "sub_id",
        "client_id",
        "second",
        "delivered",
        F.sum("change").over(of_client).alias("outstanding"),
        F.sum("limit_change").over(of_client).alias("most"),
        F.coalesce(F.lead("second").over(of_client) - F.col("second"), F.lit(1)).alias("seconds"),
    )


def client_loads(seconds: DataFrame) -> DataFrame:
    """Per client: delivered in all, p95 of deliveries per busy second, and how much it held, and how long."""
    limited = F.col("most") > 0
    at_limit = limited & (F.col("outstanding") >= F.col("most"))
    return seconds.groupBy("sub_id", "client_id").agg(
        F.sum("delivered").alias("delivered"),
        F.percentile(F.when(F.col("delivered") > 0, F.col("delivered")), F.lit(0.95)).alias("rate_p95"),
        F.max("outstanding").alias("outstanding_max"),
        F.sum(F.when(limited, F.col("seconds")).otherwise(F.lit(0))).alias("limited_s"),
        F.sum(F.when(at_limit, F.col("seconds")).otherwise(F.lit(0))).alias("at_limit_s"),
    )


def attempts_of_acked(facts: DataFrame) -> DataFrame:
    """(sub_id, attempts, n): at which attempt messages were acked."""
    acked = facts.where("ack_us is not null and attempts > 0")
    return acked.groupBy("sub_id", "attempts").agg(F.count("*").alias("n"))


# -- from tables to measurements --------------------------------------------------------------------------


def measure(
    spark: SparkSession,
    events: DataFrame,
    facts: DataFrame,
    health_minute: DataFrame,
    dimensions: Dimensions,
    first_us: int,
    last_us: int,
) -> list[Measured]:
    """What is known of each subscription that is there at the end of the range, by its name."""
    living = {one.sub_id: one for one in dimensions.subscriptions.values() if one.end_seq == OPEN}
    same = first_ids(dimensions.clients)
    streams = [
        replace(one, client_id=same.get(one.client_id, one.client_id))
        for one in dimensions.streams.values()
        if one.sub_id in living
    ]
    rows = with_first_ids(leases(events), same).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        times = processing(rows).collect()
        size = sizes(rows).collect()
        limits = spark.createDataFrame(limit_rows(streams), LIMITS)
        loads = client_loads(client_seconds(rows, limits)).collect()
    finally:
        rows.unpersist()
    by_subscription = _survivals((row.sub_id, row.acked, row.bucket, row.n) for row in times)
    by_client = _survivals(((row.sub_id, row.client_id), row.acked, row.bucket, row.n) for row in times)
    bytes_of = _counts((row.sub_id, row.bucket, row.n) for row in size)
    attempts = _counts((row.sub_id, row.attempts, row.n) for row in attempts_of_acked(facts).collect())
    minutes = _minutes(health_minute, first_us, last_us)
    loads_of = _loads(loads, streams, dimensions.clients, by_client)
    return [
        Measured(
            sub_id=one.sub_id,
            subscription=one.name,
            setting=one.current,
            survival=by_subscription.get(one.sub_id, _NOTHING),
            minutes=minutes.get(one.sub_id, ()),
            loads=loads_of.get(one.sub_id, ()),
            attempts=attempts.get(one.sub_id, {}),
            bytes_p95=histogram.quantile_us(bytes_of.get(one.sub_id, {}), 950),
            stream_deadline_s=_stream_deadline_s(streams, one),
        )
        for one in sorted(living.values(), key=lambda one: (one.name, one.sub_id))
    ]


_NOTHING = Survival.of({}, {})


def _counts(rows: Iterable[tuple[Any, int, int]]) -> dict[Any, dict[int, int]]:
    found: dict[Any, dict[int, int]] = defaultdict(dict)
    for key, value, n in rows:
        found[key][value] = found[key].get(value, 0) + n
    return found


def _survivals(rows: Iterable[tuple[Any, bool, int, int]]) -> dict[Any, Survival]:
    by_end = _counts(((key, acked), bucket, n) for key, acked, bucket, n in rows)
    keys = {key for key, _ in by_end}
    return {key: Survival.of(by_end.get((key, True), {}), by_end.get((key, False), {})) for key in keys}


def _minutes(health_minute: DataFrame, first_us: int, last_us: int) -> dict[int, list[Minute]]:
    found: dict[int, list[Minute]] = defaultdict(list)
    start_us = F.unix_micros("minute").alias("start_us")
    for row in health_minute.select("*", start_us).collect():
        inside_us = min(row.start_us + 60 * SECOND_US, last_us) - max(row.start_us, first_us)
        found[row.sub_id].append(
            Minute(
                start_us=row.start_us,
                published=row.published,
                delivered=row.delivered,
                acked=row.acked,
                extended=row.extended + row.extend_failed,
                clients=row.clients,
                backlog=row.backlog,
                seconds=max(inside_us / SECOND_US, 1.0),
            )
        )
    return found


def _loads(
    rows: Iterable[Any],
    streams: Iterable[Stream],
    names: Mapping[int, str],
    survivals: Mapping[tuple[int, int], Survival],
) -> dict[int, list[Load]]:
    """By subscription, the busiest client first. Those that only make unary calls have no limits."""
    newest: dict[tuple[int, int], Stream] = {}
    for one in sorted(streams, key=lambda one: one.opened_seq):
        newest[one.sub_id, one.client_id] = one
    found: dict[int, list[Load]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row.delivered, row.client_id)):
        stream = newest.get((row.sub_id, row.client_id))
        if stream is None or row.rate_p95 is None:
            continue
        found[row.sub_id].append(
            Load(
                client_id=row.client_id,
                client=names.get(row.client_id, f"client {row.client_id}"),
                delivered=row.delivered,
                rate_p95=row.rate_p95,
                outstanding_max=row.outstanding_max,
                at_limit=row.at_limit_s / row.limited_s if row.limited_s else None,
                max_messages=stream.max_outstanding_messages,
                max_bytes=stream.max_outstanding_bytes,
                survival=survivals.get((row.sub_id, row.client_id), _NOTHING),
            )
        )
    return found


def _stream_deadline_s(streams: Iterable[Stream], subscription: Subscription) -> int:
    """What the newest of its streams asks for."""
    mine = [one for one in streams if one.sub_id == subscription.sub_id]
    return max(mine, key=lambda one: one.opened_seq).ack_deadline_s if mine else 0


# -- the job ----------------------------------------------------------------------------------------------


def advice(spark: SparkSession, measured: Iterable[Measured]) -> DataFrame:
    """The table of that name."""
    rows = [
        (one.sub_id, one.subscription, one.setting, one.current, one.recommended, one.reason,
         dict(one.evidence), one.confidence)
        for each in measured
        for one in advise(each)
    ]  # fmt: skip  # short items, many to a line
    return spark.createDataFrame(rows, SCHEMAS["advice"])


def run(run: Run) -> None:
    """Writes `advice`; reads OUT/facts and OUT/health_minute."""
    journal, dimensions, out, spark = run.journal, run.dimensions, run.out, run.spark
    with run.progress.stage("advice", rows=journal.count):
        measured = measure(
            spark,
            journal.events,
            out.read(spark, "facts"),
            out.read(spark, "health_minute"),
            dimensions,
            journal.first_us,
            journal.last_us,
        )
        out.write("advice", advice(spark, measured))
