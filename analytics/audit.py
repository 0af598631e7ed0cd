"""The audit: did the server keep its promises to every subscription?

Facts say what breaks G1 to G3. G4 compares what is owed at the end with the backlog, G5 looks at ordering
keys, and G0 at the journal's own references. Each has a module; here their findings come together.

    facts -----> G1 G2 G3 ---+
      |  +-----> untouched --+--> G4, G5 --> listed --> evidence --> violations
      |                      |                 |
    events ------------------+--> G0 ----------+--> audit_summary

Where events are missing, only what is wholly known is judged: what happened before the first that is
missing, and messages published after the last. A finding is then as good as in a journal that is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from analytics import backlog, evidence, minutes, order, owed, references
from analytics.backlog import Horizon
from analytics.dimensions import OPEN, Dimensions, subscriptions_df
from analytics.journal import SCHEMA as EVENTS_SCHEMA
from analytics.layout import Kind
from analytics.run import Run, Verdict, write_facts
from analytics.scratch import Scratch, Settle
from analytics.summary import INCOMPLETE, NOT_CHECKED, OK, VIOLATED
from analytics.tables import CODES, SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from analytics.journal import BacklogFile, Journal


def run(run: Run) -> Verdict:
    """Write violations, evidence and audit_summary (and facts, if they are not there yet)."""
    write_facts(run)
    facts = run.out.read(run.spark, "facts")
    file = comparable(run.journal)
    with (
        run.progress.stage("audit", rows=run.journal.count),
        Scratch(run.spark, f"{run.out.path}/_audit.scratch") as scratch,
    ):
        open_at_end = None if file is None else read_backlog(run, file)
        audited = audit(run.journal, facts, run.dimensions, open_at_end, scratch.settle)
        run.out.write("violations", audited.violations)
        run.out.write("evidence", audited.evidence)
        run.out.write("audit_summary", audited.summary)
    return Verdict(violations=audited.broken, complete=run.journal.complete)


def comparable(journal: Journal) -> BacklogFile | None:
    """The backlog file, if it is of the journal's last event; no other can be compared with it."""
    file = journal.backlog
    return file if file is not None and file.seq == journal.last_seq else None


def read_backlog(run: Run, file: BacklogFile) -> DataFrame:
    frame = run.spark.read.schema(backlog.SCHEMA).parquet(file.path)
    if run.options.subscriptions:
        frame = frame.where(frame.sub_id.isin(sorted(run.dimensions.subscriptions)))
    return frame


@dataclass
class Audited:
    """The tables of an audit; `broken` counts violations, those that are not listed included."""

    violations: DataFrame
    evidence: DataFrame
    summary: DataFrame
    broken: int


def audit(
    journal: Journal,
    facts: DataFrame,
    dimensions: Dimensions,
    open_at_end: DataFrame | None,
    settle: Settle,
    listed_max: int = evidence.LISTED_MAX,
) -> Audited:
    """All tables. `open_at_end` has the columns of a backlog file, None: there is none to compare with."""
    events = journal.events
    horizon = horizon_of(journal)
    counts = settle(owed.counts(events))
    untouched = settle(owed.untouched(events, counts, facts, dimensions, settle))
    open_messages = backlog.open_messages(facts, untouched, dimensions)
    found = of_leases(facts, horizon)
    if open_at_end is not None:
        found = found.unionByName(
            backlog.judge(open_messages, open_at_end, facts, dimensions, horizon, journal.last_seq)
        )
    if order.ordered_subscriptions(dimensions):
        first_id = horizon.first_id if horizon.first_missing_seq != OPEN else 0
        found = found.unionByName(
            order.judge(events, facts, untouched, dimensions, settle, first_id, rows_max=journal.count)
        )
    found = settle(evidence.with_severity(found, dimensions))
    sample = settle(references.sample(events, evidence.listed(found, listed_max)))
    wrong = of_references(references.judge(sample, facts, horizon), dimensions)
    found = settle(found.unionByName(evidence.with_severity(wrong, dimensions)))
    tally = [row.asDict() for row in tally_of(found).collect()]
    listed, proof = nothing_found(facts.sparkSession)
    if tally:
        listed = settle(evidence.listed(found, listed_max))
        proof = settle(evidence.evidence(events, listed, settle))
        listed = evidence.violations(listed, proof, dimensions, journal.last_us)
    return Audited(
        violations=listed,
        evidence=proof,
        summary=summary_of(
            facts, untouched, counts, tally, dimensions,
            complete=journal.complete, not_checked=not_checked(dimensions, open_at_end is not None),
        ),
        broken=sum(row["broken"] for row in tally),
    )  # fmt: skip  # short items, many to a line


def nothing_found(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """The tables `violations` and `evidence` without rows."""
    return (
        spark.createDataFrame([], SCHEMAS["violations"]),
        spark.createDataFrame([], f"violation_id bigint, {EVENTS_SCHEMA}"),
    )


def horizon_of(journal: Journal) -> Horizon:
    """From where on the journal is wholly known."""
    from pyspark.sql import functions as F

    missing = [*journal.missing, *journal.gaps]
    if not missing and not journal.is_partial_start:
        return Horizon()
    published = journal.events.where(F.col("kind") == int(Kind.PUBLISH))
    if missing:
        published = published.where(F.col("seq") > max(last for _, last in missing))
    first = published.agg(F.min("message_id")).first()
    return Horizon(
        first_id=OPEN if first is None or first[0] is None else int(first[0]),
        is_whole=False,
        first_missing_seq=min((first for first, _ in missing), default=OPEN),
    )


def of_leases(facts: DataFrame, horizon: Horizon) -> DataFrame:
    """Rows of `backlog.FOUND`: what the facts say about G1 to G3."""
    from pyspark.sql import functions as F

    codes = F.array(*map(F.lit, CODES))
    found = (
        facts.where("violations > 0")
        .withColumn("one", F.explode(F.arrays_zip("v_kind", "v_seq")))
        .select(
            F.element_at(codes, F.col("one.v_kind").cast("int") + 1).alias("code"),
            "sub_id",
            "message_id",
            "epoch",
            F.col("one.v_seq").alias("seq"),
            F.lit(0).cast("bigint").alias("other"),
        )
    )
    if horizon.first_missing_seq == OPEN:
        return found
    is_known = (F.col("seq") < horizon.first_missing_seq) | (F.col("message_id") >= horizon.first_id)
    return found.where(is_known)


def of_references(wrong: DataFrame, dimensions: Dimensions) -> DataFrame:
    """What `references` found as rows of `backlog.FOUND`."""
    from analytics.dimensions import with_epoch

    return with_epoch(wrong, dimensions).select("code", "sub_id", "message_id", "epoch", "seq", "other")


def not_checked(dimensions: Dimensions, has_backlog: bool) -> set[int]:
    """Living subscriptions of which G4 cannot be said."""
    if not has_backlog:
        return set(backlog.last_epochs(dimensions))
    return backlog.uncheckable(dimensions)


def tally_of(found: DataFrame) -> DataFrame:
    """(sub_id, code, n, broken): how many were found, and how many of them break a promise."""
    from pyspark.sql import functions as F

    is_broken = (F.col("severity") == evidence.VIOLATION).cast("int")
    return found.groupBy("sub_id", "code").agg(F.count("*").alias("n"), F.sum(is_broken).alias("broken"))


def summary_of(
    facts: DataFrame,
    untouched: DataFrame,
    counts: DataFrame,
    tally: Sequence[Mapping[str, Any]],
    dimensions: Dimensions,
    *,
    complete: bool,
    not_checked: set[int],
) -> DataFrame:
    """Rows of the table `audit_summary`: one per subscription that is described, or has anything to count.

    messages: those that were owed at any time. dropped: by retention or detachment, bulk drops included. The
    counts of G4 are null where it was not checked.
    """
    from pyspark.sql import functions as F

    def events_of(kind: Kind) -> Column:
        return F.sum(F.when(F.col("kind") == int(kind), F.col("n")))

    parts = [
        subscriptions_df(facts.sparkSession, dimensions).select(
            "sub_id", "subscription", "exactly_once", "ordered"
        ),
        counts.where("sub_id <> 0")
        .groupBy("sub_id")
        .agg(events_of(Kind.DEADLETTER).alias("dead_lettered"), events_of(Kind.FILTERED).alias("filtered")),
        _of_messages(facts, untouched, dimensions),
        _brought(facts, untouched, dimensions),
        _by_code(facts.sparkSession, tally),
    ]
    every = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
    about = ("subscription", "exactly_once", "ordered")
    sums = [name for name in every.columns if name not in ("sub_id", *about)]
    rows = every.groupBy("sub_id").agg(
        *[F.max(name).alias(name) for name in about],
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in sums],
    )
    is_unchecked = F.col("sub_id").isin(sorted(not_checked)) | F.col("subscription").isNull()
    verdict = (
        F.when(F.col("broken") > 0, VIOLATED)
        .when(F.lit(not complete), INCOMPLETE)
        .when(is_unchecked, NOT_CHECKED)
        .otherwise(OK)
    )
    return _as_summary(
        rows.withColumns({"verdict": verdict, "is_unchecked": is_unchecked})
        .withColumn("dropped", F.greatest(F.col("left") - F.col("dead_lettered"), F.lit(0)))
        .withColumn("subscription", F.coalesce("subscription", F.format_string("subscription %d", "sub_id")))
        .withColumn("exactly_once", F.coalesce("exactly_once", F.lit(False)))
        .withColumn("ordered", F.coalesce("ordered", F.lit(False)))
    )


def _of_messages(facts: DataFrame, untouched: DataFrame, dimensions: Dimensions) -> DataFrame:
    """(sub_id, messages, deliveries, acks_ok, open, left, partial).

    A message has a row in each epoch that touched it, and is counted in the one in which it was published.
    """
    from pyspark.sql import functions as F

    columns = (
        "sub_id", "epoch", "pub_us", "deliveries", "acks", "ack_us", "gone_us", "owed", "partial",
    )  # fmt: skip  # short items, many to a line
    none = F.lit(None).cast("bigint")
    waiting = untouched.where("certain").select(
        "sub_id", "epoch", "pub_us", F.lit(0).alias("deliveries"), F.lit(0).alias("acks"),
        none.alias("ack_us"), "gone_us", F.lit(True).alias("owed"), F.lit(False).alias("partial"),
    )  # fmt: skip  # short items, many to a line
    rows = facts.select(*columns).unionByName(waiting.select(*columns))
    last = backlog.last_epochs(dimensions)
    epochs = [
        (sub_id, one.epoch, one.start_us if one.epoch else 0, last.get(sub_id) == one.epoch)
        for sub_id in dimensions.subscriptions
        for one in dimensions.epochs[sub_id]
    ]
    begun = facts.sparkSession.createDataFrame(
        epochs, "sub_id int, epoch int, start_us bigint, is_last boolean"
    )
    is_known = "(not partial or deliveries > 0)"
    return (
        rows.join(F.broadcast(begun), ["sub_id", "epoch"], "left")
        .groupBy("sub_id")
        .agg(
            F.count_if(F.expr("owed and pub_us >= coalesce(start_us, 0)")).alias("messages"),
            F.sum("deliveries").alias("deliveries"),
            F.sum("acks").alias("acks_ok"),
            F.count_if(F.expr(f"is_last and {minutes.IS_OPEN} and {is_known}")).alias("open"),
            F.count_if(F.expr("owed and gone_us is not null")).alias("left"),
            F.count_if(F.col("partial")).alias("partial"),
        )
    )


def _brought(facts: DataFrame, untouched: DataFrame, dimensions: Dimensions) -> DataFrame:
    """(sub_id, messages): what seeks brought from before the subscription, each message once."""
    from pyspark.sql import functions as F

    sought = [
        (sub_id, one.start_us)
        for sub_id, one in dimensions.subscriptions.items()
        if any(seek.retain_acked or seek.is_snapshot for seek in dimensions.seeks(sub_id))
    ]
    created = facts.sparkSession.createDataFrame(sought, "sub_id int, created_us bigint")
    columns = ("sub_id", "message_id", "pub_us")
    is_theirs = F.col("sub_id").isin([sub_id for sub_id, _ in sought])
    owed = facts.where(F.col("owed") & is_theirs).select(*columns)
    waiting = untouched.where(F.col("certain") & is_theirs).select(*columns)
    return (
        owed.unionByName(waiting)
        .join(F.broadcast(created), "sub_id")
        .where("pub_us < created_us")
        .select("sub_id", "message_id")
        .distinct()
        .groupBy("sub_id")
        .agg(F.count("*").alias("messages"))
    )


def _by_code(spark: SparkSession, tally: Sequence[Mapping[str, Any]]) -> DataFrame:
    """The tally as (sub_id, broken, a column for each code)."""
    columns = ", ".join(f"{code} bigint" for code in CODES)
    rows = [
        (row["sub_id"], row["broken"], *(row["n"] if code == row["code"] else 0 for code in CODES))
        for row in tally
    ]
    return spark.createDataFrame(rows, f"sub_id int, broken bigint, {columns}")


def _as_summary(rows: DataFrame) -> DataFrame:
    """The columns of the table, in order and of its types."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType, StructType

    columns = []
    schema: Any = StructType.fromDDL(SCHEMAS["audit_summary"])
    for field in schema.fields:
        value = F.col(field.name)
        if isinstance(field.dataType, LongType):
            value = F.coalesce(value, F.lit(0))
        if field.name.startswith("G4_"):
            value = F.when(~F.col("is_unchecked"), value)
        columns.append(value.cast(field.dataType).alias(field.name))
    return rows.select(*columns)
