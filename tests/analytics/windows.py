"""The rules of the replay with Spark's window functions: slower than the kernel, and told in other words.

Every event looks back over the earlier ones of its message with a window: at the last delivery, the last end
of a lease, the last event that set the state, the last ack. What happens to whole subscriptions (seeks and
bulk drops) is no event of a message. Each row gets the list of these steps of its subscription, and a state
walks along those between two moments (`_walked`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics.dimensions import OPEN, Dimensions
from analytics.layout import Kind, Result
from analytics.tables import CODES, SCHEMAS

NONE, LEASED, EXPIRED, NACKED, RESET, ACKED, GONE, PURGED, RESTORED = range(9)

_STEP = (
    "struct<seq: bigint, epoch: int, ts_us: bigint, is_drop: boolean, is_snapshot: boolean, "
    "target_us: bigint, lo_us: bigint, is_kept: boolean, kept_from_us: bigint, kept_after_id: bigint>"
)
_ABOUT = (
    f"sub_id int, created_us bigint, steps array<{_STEP}>, settings array<struct<seq: bigint, once: boolean>>"
)

_OWN = (
    *(Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE),
    *(Kind.DEADLETTER, Kind.DROP, Kind.FILTERED, Kind.RESET),
)


def facts(
    events: DataFrame, dimensions: Dimensions, *, tolerance_us: int = 0, first_message_id: int = 0
) -> DataFrame:
    """The table `facts` of the journal's events."""
    rows = _looked_back(_own_events(events, dimensions))
    rows = rows.withColumn("found", _found(tolerance_us, first_message_id))
    return _facts(rows, first_message_id)


def _about(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    """A row per subscription: when it was created, what it was set to, and what happened to all of it."""
    rows = []
    for sub_id, epochs in dimensions.epochs.items():
        seeks = [
            (one.start_seq, one.epoch, one.start_us, False, one.is_snapshot, one.target_us, one.lo_us,
             one.retain_acked, one.kept_from_us, one.kept_after_id)
            for one in epochs[1:]
        ]  # fmt: skip  # short items, many to a line
        drops = [
            (
                one.seq,
                sum(seek[0] < one.seq for seek in seeks),
                one.ts_us,
                True,
                False,
                one.cutoff_us,
                0,
                False,
                0,
                0,
            )
            for one in dimensions.drops.get(sub_id, ())
        ]
        known = dimensions.subscriptions.get(sub_id)
        settings = [(one.seq, one.exactly_once) for one in known.settings] if known else []
        if settings:
            settings[0] = (0, settings[0][1])
        rows.append((sub_id, epochs[0].start_us, sorted(seeks + drops), settings))
    return spark.createDataFrame(rows, _ABOUT)


def _own_events(events: DataFrame, dimensions: Dimensions) -> DataFrame:
    asked = F.col("kind").isin([int(one) for one in (Kind.ACK, Kind.NACK, Kind.EXTEND)])
    own = events.where(
        F.col("kind").isin([int(one) for one in _OWN])
        & (F.col("message_id") != 0)
        & ~(asked & (F.col("generation") == 0))
    )
    joined = own.join(F.broadcast(_about(events.sparkSession, dimensions)), "sub_id", "left")
    return (
        joined.withColumn("steps", F.coalesce("steps", F.array().cast(f"array<{_STEP}>")))
        .withColumn("created_us", F.coalesce("created_us", F.lit(0)))
        .withColumn(
            "once",
            F.expr("coalesce(try_element_at(filter(settings, one -> one.seq <= seq), -1).once, false)"),
        )
        .withColumn("epoch", F.expr("size(filter(steps, one -> not one.is_drop and one.seq < seq))"))
        .withColumn(
            "begun",
            F.expr("try_element_at(filter(steps, one -> not one.is_drop and one.seq < seq), -1)"),
        )
        .drop("settings")
    )


# -- the window -------------------------------------------------------------------------------------------


def _is(*kinds: Kind) -> Column:
    return F.col("kind").isin([int(one) for one in kinds])


def _took_effect(kind: Kind) -> Column:
    return _is(kind) & (F.col("result") == int(Result.OK))


def _state_set() -> Column:
    """The state that the event itself sets, or null."""
    return (
        F.when(_is(Kind.DELIVER), LEASED)
        .when(_is(Kind.EXPIRE), EXPIRED)
        .when(_took_effect(Kind.NACK), NACKED)
        .when(_is(Kind.RESET), RESET)
        .when(_took_effect(Kind.ACK), ACKED)
        .when(_is(Kind.DEADLETTER), GONE)
        .when(_is(Kind.DROP), PURGED)
    )


def _looked_back(own: DataFrame) -> DataFrame:
    """What was so just before each event: see the columns."""
    # The message first: the sort compares it first, and few events have the same.
    message = Window.partitionBy("message_id", "sub_id").orderBy("seq")
    earlier = message.rowsBetween(Window.unboundedPreceding, -1)
    all_of_it = message.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)

    def last(condition: Column, value: Column) -> Column:
        return F.last(F.when(condition, value), ignorenulls=True).over(earlier)

    published = _is(Kind.DELIVER, Kind.DEADLETTER, Kind.DROP, Kind.FILTERED) & (F.col("ref_ts_us") != 0)
    lease = _is(Kind.DELIVER) | _took_effect(Kind.EXTEND)
    sets = F.struct(F.col("seq"), F.col("sets").alias("state"))
    acks = F.struct(F.col("seq"), F.col("generation"))
    rows = own.withColumn("sets", _state_set()).select(
        "*",
        F.first(F.when(published, F.col("ref_ts_us")), ignorenulls=True).over(all_of_it).alias("pub_us"),
        F.first(F.when(F.col("okey") != 0, F.col("okey")), ignorenulls=True).over(all_of_it).alias("key"),
        F.min("seq").over(all_of_it).alias("seen_seq"),
        F.lead("seq").over(message).alias("next_seq"),
        F.lag("seq").over(message).alias("previous_seq"),
        last(_is(Kind.DELIVER), F.col("seq")).alias("delivered_seq"),
        last(_is(Kind.DELIVER), F.col("generation")).alias("newest"),
        last(lease, F.col("deadline_us")).alias("lease_end_us"),
        last(F.col("sets").isNotNull(), sets).alias("set"),
        last(_took_effect(Kind.ACK), acks).alias("acked"),
    )
    set_state = F.coalesce(F.col("set.state"), F.lit(NONE))
    set_seq = F.coalesce(F.col("set.seq"), F.lit(0))
    state = _walked(set_state, set_seq, F.col("seq"))
    # What the bulk drops between this event and the next took; before the first event, too.
    after = F.coalesce("sets", set_state)
    dropped = _dropped(
        after, F.when(F.col("sets").isNotNull(), F.col("seq")).otherwise(set_seq), F.col("seq")
    )
    at_first = F.when(F.col("previous_seq").isNull(), _dropped(F.lit(NONE), F.lit(0), F.lit(0), F.col("seq")))
    nothing = F.array().cast("array<struct<epoch: int, seq: bigint, ts_us: bigint>>")
    return rows.select(
        "*",
        state.alias("state"),
        _last_seq(lambda step: _undoes(step)).alias("undone_seq"),
        _last_seq(lambda step: _acknowledges(step)).alias("sought_seq"),
        _last_seq(lambda step: _applies(step) & step.is_snapshot).alias("snapshot_seq"),
        _walked(set_state, set_seq, F.col("begun.seq") + 1).alias("state_at_begin"),
        F.concat(F.coalesce(at_first, nothing), dropped).alias("dropped"),
    )


# -- steps: what happens to the whole subscription --------------------------------------------------------


def _applies(step: Column) -> Column:
    """Whether a seek has a say over the message: not if that was published later."""
    was_there = (F.col("seen_seq") < step.seq) | (F.col("pub_us") < step.ts_us)
    return ~step.is_drop & F.col("pub_us").isNotNull() & was_there


def _acknowledges(step: Column) -> Column:
    return _applies(step) & ~step.is_snapshot & (F.col("pub_us") < step.target_us)


def _undoes(step: Column) -> Column:
    is_kept = (
        step.is_kept
        & (F.col("pub_us") >= step.kept_from_us)
        & (F.col("message_id") > step.kept_after_id)
        & (F.col("pub_us") >= step.target_us)
    )
    return _applies(step) & (step.is_snapshot | is_kept)


def _next_state(state: Column, step: Column) -> Column:
    ended = state.isin(ACKED, GONE, PURGED)
    return (
        F.when(_takes(state, step), PURGED)
        .when(_acknowledges(step) & (state != ACKED), PURGED)
        .when(_undoes(step) & ended, RESTORED)
        .otherwise(state)
    )


def _takes(state: Column, step: Column) -> Column:
    """Whether a bulk drop takes the message; its cut-off stands where a seek has its target."""
    waits = ~state.isin(LEASED, ACKED, GONE, PURGED)
    return step.is_drop & F.coalesce(F.col("pub_us") < step.target_us, F.lit(False)) & waits


def _between(low: Column, high: Column) -> Column:
    return F.filter("steps", lambda step: (step.seq > low) & (step.seq < high))


def _walked(state: Column, low: Column, high: Column) -> Column:
    """The state that `state` becomes by the steps after seq `low` and before seq `high`."""
    return F.aggregate(_between(low, high), state, _next_state)


def _dropped(state: Column, low: Column, since: Column, until: Column | None = None) -> Column:
    """The drops after `since`, up to its next event, that take the message. At `low` it was in `state`."""
    until = F.coalesce("next_seq", F.lit(OPEN)) if until is None else until
    drops = F.filter("steps", lambda step: step.is_drop & (step.seq > since) & (step.seq < until))
    taking = F.filter(drops, lambda step: _takes(_walked(state, low, step.seq), step))
    return F.transform(taking, lambda step: F.struct(step.epoch, step.seq, step.ts_us))


def _last_seq(condition: Callable[[Column], Column]) -> Column:
    """The seq of the last step before the event for which `condition` holds; 0: none."""
    found = F.filter("steps", lambda step: (step.seq < F.col("seq")) & condition(step))
    return F.coalesce(F.array_max(F.transform(found, lambda step: step.seq)), F.lit(0))


# -- findings and facts -----------------------------------------------------------------------------------


def _found(tolerance_us: int, first_message_id: int) -> Column:
    """What the event breaks: indexes in CODES, ascending."""
    state, kind_is = F.col("state"), _is
    ok, refused = F.col("result") == int(Result.OK), F.col("result") == int(Result.PERMANENT)
    asked = kind_is(Kind.ACK, Kind.NACK, Kind.EXTEND)
    is_newest = F.coalesce(F.col("generation") == F.col("newest"), F.lit(False))
    delivered = F.coalesce("delivered_seq", F.lit(0))
    is_early = F.coalesce(F.col("ts_us") < F.col("lease_end_us") - tolerance_us, F.lit(False))
    in_lease = F.coalesce(F.col("ts_us") < F.col("lease_end_us"), F.lit(False))
    was_acked = F.coalesce(F.col("acked.seq") > F.col("undone_seq"), F.lit(False))
    was_sought = F.col("sought_seq") > F.col("undone_seq")
    is_known = (F.col("message_id") >= first_message_id) | (delivered > 0)
    is_judged = asked & is_known & (F.col("snapshot_seq") <= delivered)
    is_right = (
        ((state == LEASED) & is_newest)
        | (kind_is(Kind.NACK) & (state == RESET) & is_newest)
        | (kind_is(Kind.ACK) & (state == PURGED) & is_newest)
        | (kind_is(Kind.ACK) & ~F.col("once"))
    )
    is_repeated = (
        kind_is(Kind.ACK)
        & (state == ACKED)
        & F.coalesce(F.col("generation") == F.col("acked.generation"), F.lit(False))
    )
    conditions = {
        "G1_delivered_after_ack": kind_is(Kind.DELIVER) & was_acked,
        "G1_delivered_after_seek": kind_is(Kind.DELIVER) & was_sought & ~was_acked,
        "G2_early_redelivery": kind_is(Kind.DELIVER)
        & ((state == LEASED) | ((state == RESET) & F.col("once")))
        & is_early,
        "G2_early_expire": kind_is(Kind.EXPIRE) & is_known & state.isin(LEASED, RESET) & is_early,
        "G3_valid_rejected": is_judged & refused & (state == LEASED) & is_newest & in_lease,
        "G3_invalid_accepted": is_judged & ok & ~is_right & ~is_repeated,
        "G3_repeat_accepted": is_judged & ok & ~is_right & is_repeated,
    }
    codes = [F.when(condition, CODES.index(code)) for code, condition in conditions.items()]
    return F.array_compact(F.array(*codes))


def _facts(rows: DataFrame, first_message_id: int) -> DataFrame:
    key = ["sub_id", "message_id", "epoch"]

    def count(condition: Column) -> Column:
        return F.count_if(condition)

    first_of_epoch = F.coalesce("delivered_seq", F.lit(0)) <= F.coalesce("begun.seq", F.lit(0))
    is_first = _is(Kind.DELIVER) & ((F.col("generation") == 1) | (first_of_epoch & (F.col("state") != RESET)))
    findings = F.transform("found", lambda code: F.struct(F.col("seq"), code.alias("code")))
    grouped = (
        rows.withColumn("opens", _open_at_begin())
        .groupBy(*key)
        .agg(
            F.first("pub_us").alias("pub_us"),
            F.coalesce(F.first("key"), F.lit(0)).alias("okey"),
            F.min(F.when(is_first, F.struct("seq", "ts_us"))).alias("first"),
            F.max(F.when(_is(Kind.DELIVER), F.struct("seq", "ts_us"))).alias("last"),
            count(_is(Kind.DELIVER)).alias("deliveries"),
            F.max("attempt").alias("attempts"),
            count(_took_effect(Kind.EXTEND)).alias("extends"),
            count(_took_effect(Kind.NACK)).alias("nacks"),
            count(_is(Kind.EXPIRE)).alias("expires"),
            count(_is(Kind.RESET)).alias("resets"),
            count(_is(Kind.ACK) & (F.col("result") > int(Result.NOOP))).alias("ack_fails"),
            count(_took_effect(Kind.ACK)).alias("acks"),
            F.min(F.when(_took_effect(Kind.ACK), F.struct("seq", "ts_us"))).alias("ack"),
            F.min_by("opens", "seq").alias("open"),
            F.first("begun.is_snapshot").alias("is_snapshot"),
            F.array_sort(F.flatten(F.collect_list(findings))).alias("v"),
        )
    )
    gone = _gone(rows)
    filtered = rows.where(_is(Kind.FILTERED)).groupBy("sub_id", "message_id").agg(F.min("epoch").alias("out"))
    joined = grouped.join(gone, key, "left").join(filtered, ["sub_id", "message_id"], "left")
    is_open = F.col("open") | (F.coalesce("is_snapshot", F.lit(False)) & (F.col("deliveries") > 0))
    is_filtered = F.coalesce(F.col("out") <= F.col("epoch"), F.lit(False))
    made = {
        "first_seq": F.col("first.seq"),
        "first_us": F.col("first.ts_us"),
        "last_us": F.col("last.ts_us"),
        "ack_us": F.col("ack.ts_us"),
        "owed": F.col("pub_us").isNotNull() & is_open & ~is_filtered,
        "partial": F.col("message_id") < first_message_id,
        "violations": F.size("v"),
        "v_kind": F.col("v.code"),
        "v_seq": F.col("v.seq"),
    }
    joined = reduce(lambda frame, name: frame.withColumn(name, made[name]), made, joined)
    schema = T._parse_datatype_string(SCHEMAS["facts"])
    assert isinstance(schema, T.StructType)
    return joined.select(*[F.col(one.name).cast(one.dataType) for one in schema])


def _open_at_begin() -> Column:
    """Whether the message is open when the epoch of the event begins; right on the epoch's first event."""
    was_created = F.col("pub_us") >= F.col("created_us")
    begun = F.col("begun")
    brought_in = F.exists(
        "steps", lambda step: (step.seq <= begun.seq) & F.coalesce(_undoes(step), F.lit(False))
    )
    came_later = (F.col("pub_us") >= begun.ts_us) & ~(F.col("seen_seq") < begun.seq)
    by_time = (was_created | brought_in) & ~F.col("state_at_begin").isin(ACKED, GONE, PURGED)
    return F.coalesce(
        F.when(begun.isNull(), was_created)
        .when(came_later, F.lit(True))
        .when(begun.is_snapshot, F.col("pub_us") >= begun.lo_us)
        .otherwise(by_time),
        F.lit(False),
    )


def _gone(rows: DataFrame) -> DataFrame:
    """The first moment in each epoch when a message left without an ack."""
    itself = F.when(
        _is(Kind.DEADLETTER, Kind.DROP, Kind.FILTERED), F.array(F.struct("epoch", "seq", "ts_us"))
    )
    nothing = F.array().cast("array<struct<epoch: int, seq: bigint, ts_us: bigint>>")
    left = rows.select(
        "sub_id", "message_id", F.explode(F.concat(F.coalesce(itself, nothing), "dropped")).alias("left")
    )
    return left.groupBy("sub_id", "message_id", F.col("left.epoch").alias("epoch")).agg(
        F.min_by("left.ts_us", "left.seq").alias("gone_us")
    )
