"""What was found, for a person: each violation in words, and all events of its message.

At most `LISTED_MAX` findings per code and subscription are listed, those with the smallest seq; how many
there are in all is in the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analytics.dimensions import Dimensions, settings_df, subscriptions_df
from analytics.layout import COLUMNS, Kind, Result
from analytics.scratch import Settle
from analytics.summary import NOTES
from analytics.tables import CODES, SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LISTED_MAX = 1000

#: Codes of promises that do not depend on exactly-once delivery.
ALWAYS = tuple(code for code in CODES if code[:2] in ("G0", "G4", "G5"))
VIOLATION, INFO = "violation", "info"


def with_severity(found: DataFrame, dimensions: Dimensions) -> DataFrame:
    """Rows of `backlog.FOUND` and `severity`, by how the subscription was set at that seq."""
    from pyspark.sql import functions as F

    settings = settings_df(found.sparkSession, dimensions).select(
        F.col("sub_id").alias("_sub_id"), F.col("seq").alias("_from_seq"), "next_seq", "exactly_once"
    )
    is_then = (
        (F.col("sub_id") == F.col("_sub_id"))
        & (F.col("seq") >= F.col("_from_seq"))
        & (F.col("seq") < F.col("next_seq"))
    )
    severity = (
        F.when(F.col("code").isin(list(NOTES)), INFO)
        .when(F.col("code").isin(list(ALWAYS)), VIOLATION)
        .when(F.col("exactly_once"), VIOLATION)
        .otherwise(INFO)
    )
    joined = found.join(F.broadcast(settings), is_then, "left").withColumn("severity", severity)
    return joined.select(*found.columns, "severity")


def listed(found: DataFrame, listed_max: int = LISTED_MAX) -> DataFrame:
    """The first findings of each code and subscription, with `violation_id` from 1."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    each = Window.partitionBy("code", "sub_id").orderBy("seq", "message_id", "epoch")
    everything = Window.orderBy("seq", "code", "sub_id", "message_id", "epoch")
    return (
        found.withColumn("_place", F.row_number().over(each))
        .where(F.col("_place") <= listed_max)
        .drop("_place")
        .withColumn("violation_id", F.row_number().over(everything).cast("bigint"))
    )


def evidence(events: DataFrame, listed: DataFrame, settle: Settle) -> DataFrame:
    """violation_id and the columns of the event: all events of the message on the subscription, its
    publication, and what happened meanwhile to the subscription (seeks, bulk drops) or to the server
    (starts)."""
    from pyspark.sql import functions as F

    names = [column.name for column in COLUMNS]
    of = listed.select(
        "violation_id", F.col("sub_id").alias("_sub_id"), F.col("message_id").alias("_message_id")
    )
    about = events.where("message_id <> 0").join(
        F.broadcast(of),
        (F.col("message_id") == F.col("_message_id"))
        & ((F.col("sub_id") == F.col("_sub_id")) | (F.col("sub_id") == 0)),
    )
    of_message = settle(about.select("violation_id", *names))
    spans = of_message.groupBy("violation_id").agg(F.min("seq").alias("_first"), F.max("seq").alias("_last"))
    is_start = F.col("kind") == int(Kind.START)
    is_for_all = (F.col("kind") == int(Kind.SEEK)) | F.expr(f"kind = {int(Kind.DROP)} and message_id = 0")
    meanwhile = (
        events.where(is_start | is_for_all)
        .select(*names)
        .join(
            F.broadcast(of.join(spans, "violation_id")),
            (F.col("seq") > F.col("_first"))
            & (F.col("seq") < F.col("_last"))
            & (is_start | (F.col("sub_id") == F.col("_sub_id"))),
        )
        .select("violation_id", *names)
    )
    return of_message.unionByName(meanwhile)


def violations(listed: DataFrame, evidence: DataFrame, dimensions: Dimensions, last_us: int) -> DataFrame:
    """Rows of the table `violations`. `last_us` is the time of findings that are no event: it is the
    journal's end."""
    from pyspark.sql import functions as F

    before = evidence.join(
        F.broadcast(listed.select("violation_id", F.col("seq").alias("_seq"))), "violation_id"
    )
    kind, seq = F.col("kind"), F.col("seq")
    is_ok = F.col("result") == int(Result.OK)
    is_earlier = seq < F.col("_seq")
    is_it = seq == F.col("_seq")
    is_delivery = kind == int(Kind.DELIVER)

    def newest(value: str, condition: Column) -> Column:
        return F.max_by(F.when(condition, F.col(value)), F.when(condition, seq))

    sets_lease = is_delivery | ((kind == int(Kind.EXTEND)) & is_ok)
    told = before.groupBy("violation_id").agg(
        F.max(F.when(is_it, F.col("ts_us"))).alias("ts_us"),
        F.max(F.when(is_it, F.col("kind"))).alias("kind"),
        F.max(F.when(is_it, F.col("generation"))).alias("generation"),
        F.max(F.when(is_it, F.col("client_id"))).alias("client_id"),
        F.max(F.when(is_it, F.col("ref_ts_us"))).alias("ref_ts_us"),
        newest("deadline_us", is_earlier & sets_lease).alias("lease_us"),
        newest("generation", is_earlier & is_delivery).alias("newest"),
        newest("client_id", is_earlier & is_delivery).alias("holder"),
        newest("seq", is_earlier & (kind == int(Kind.ACK)) & is_ok).alias("ack_seq"),
        newest("seq", is_earlier & (kind == int(Kind.SEEK))).alias("seek_seq"),
    )
    names = subscriptions_df(listed.sparkSession, dimensions).select("sub_id", "subscription")
    expected, found = _in_words()
    rows = (
        listed.join(told, "violation_id", "left")
        .join(F.broadcast(names), "sub_id", "left")
        .withColumn("subscription", F.coalesce("subscription", F.format_string("subscription %d", "sub_id")))
        .withColumn("ts_us", F.coalesce("ts_us", F.lit(last_us)))
        .withColumn("generation", F.coalesce("generation", "newest", F.lit(0)))
        .withColumn("client_id", F.coalesce("client_id", "holder", F.lit(0)))
        .withColumn("expected", expected)
        .withColumn("found", found)
    )
    return _as_table("violations", rows)


def _as_table(name: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(SCHEMAS[name])
    return rows.select(*[F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields])


def _in_words() -> tuple[Column, Column]:
    """What should have been, and what was, per code; from the columns that `violations` gathers."""
    from pyspark.sql import functions as F

    def moment(us: str) -> Column:
        return F.date_format(F.timestamp_micros(us), "yyyy-MM-dd HH:mm:ss.SSSSSS")

    def said(pattern: str, *columns: Column | str) -> Column:
        return F.format_string(pattern, *columns)

    kinds = F.create_map(*[part for kind in Kind for part in (F.lit(int(kind)), F.lit(kind.name))])
    kind = F.coalesce(F.element_at(kinds, F.col("kind").cast("int")), F.lit("event"))
    early = said("%.6f s", ((F.col("lease_us") - F.col("ts_us")) / 1e6).cast("double"))
    lease_end = F.coalesce(moment("lease_us"), F.lit("its end"))
    delivered = said("delivered at %s as generation %d", moment("ts_us"), "generation")
    words = {
        "G0_reference": (
            F.when(F.col("other") == 0, F.lit("an event that it refers to")).otherwise(
                said("%s, when what it refers to happened", moment("other"))
            ),
            F.when(F.col("other") == 0, said("%s of a message that was never published", kind)).otherwise(
                said("%s refers to %s", kind, F.coalesce(moment("ref_ts_us"), F.lit("another time")))
            ),
        ),
        "G1_delivered_after_ack": (
            said("no delivery after the ack at seq %d", F.coalesce("ack_seq", F.lit(0))),
            delivered,
        ),
        "G1_delivered_after_seek": (
            said("no delivery after the seek at seq %d", F.coalesce("seek_seq", F.lit(0))),
            delivered,
        ),
        "G2_early_redelivery": (
            said("no redelivery before %s", lease_end),
            said("redelivered %s earlier, as generation %d", early, "generation"),
        ),
        "G2_early_expire": (said("no expiry before %s", lease_end), said("expired %s earlier", early)),
        "G3_valid_rejected": (
            said("success: generation %d is leased until %s", "generation", lease_end),
            said("%s refused as invalid, %s before that", kind, early),
        ),
        "G3_invalid_accepted": (
            said("no success: generation %d is not leased", "generation"),
            said("%s at %s answered with success", kind, moment("ts_us")),
        ),
        "G3_repeat_accepted": (
            said("nothing changes after the ack at seq %d", F.coalesce("ack_seq", F.lit(0))),
            F.lit("the same ack took effect again"),
        ),
        "G4_lost": (
            F.lit("in the backlog: it is owed, and neither acked nor gone"),
            F.lit("not in the backlog"),
        ),
        "G4_ghost": (F.lit("not in the backlog: it is not owed, or acked, or gone"), F.lit("in the backlog")),
        "G5_out_of_order": (
            F.lit("first delivered after what was published earlier with its ordering key"),
            said("first delivered at %s, before one of them", moment("ts_us")),
        ),
        "G5_skipped": (
            F.lit("first delivered after what was published earlier with its ordering key"),
            said("delivered at %s, and one of them never was", moment("ts_us")),
        ),
        "G5_redelivery_gap": (
            said("what follows message %d in its ordering key, which was redelivered", "other"),
            F.lit("this message, although others lie between"),
        ),
    }
    expected = found = F.lit("")
    for code, (should, was) in words.items():
        is_code = F.col("code") == code
        expected, found = F.when(is_code, should).otherwise(expected), F.when(is_code, was).otherwise(found)
    return expected, found
