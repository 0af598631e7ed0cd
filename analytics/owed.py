"""Messages that a subscription is owed in an epoch and of which the epoch has no event: the untouched ones.

Theory of operation. What happened to messages is in the facts, but a message to which nothing happened is
in no fact. Nearly all messages have facts, so the untouched are found without a join of all messages: per
subscription and publish minute, number and xor of the hashes of what was published are compared with those
of what has facts. Equal pairs prove equal sets. Only where they differ the messages themselves are looked
at.

A seek can bring a message back that nobody touches afterwards, and whether it does depends on what became of
the message before. So the messages that are looked at are followed from epoch to epoch: `walk` does that, a
pure function of arrays. `certain` is false for what only a snapshot could tell, where it is told of at all.

Rules of the file:

* A message published in an epoch is owed in it. Sequence decides this, not time.
* A seek to a time closes what was published before the target; the rest stays as it is, or comes back if it
  was closed and is kept.
* A seek to a snapshot makes everything before it uncertain, until a seek to a time settles it.
* A bulk drop closes what was published before its cut-off, except what is leased at that moment.
* What the filter rejected never comes back.
* What was published before the subscription was created is put to its filter when it is read, not when a
  seek brings it back. Until something is told of it, it is uncertain whether it is owed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analytics.arrow import Mapped
from analytics.dimensions import OPEN, Dimensions, Epoch
from analytics.layout import Kind, Result
from analytics.minutes import WAS_FILTERED, History, differing, histories, minute_of
from analytics.scratch import Settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: The longest lease without an extension, and as much again for a lapsed one that nobody has ended yet.
LEASE_US_MAX = 2 * 600_000_000

#: `carried`: a lease ran when the epoch began, told where there are bulk drops. `certain` is false where only
#: a snapshot's content could tell. `gone_us`: a bulk drop took it away then.
UNTOUCHED = (
    "sub_id int, epoch int, message_id bigint, pub_us bigint, okey bigint, gone_us bigint, carried boolean, "
    "certain boolean"
)

# States of a message between its events, as far as being owed goes.
_ABSENT, _PENDING, _CLOSED, _UNCERTAIN, _FILTERED = range(5)

# What a row that `walk_partition` reads tells.
_PUBLISHED, _FACT, _LEASED = range(3)
# What became of a message in an epoch, by its fact.
_STAYED, _WAS_PENDING, _WAS_CLOSED, _WAS_FILTERED = range(4)

_ROWS = (
    "tell int, sub_id int, message_id bigint, seq bigint, pub_us bigint, okey bigint, epoch int, outcome int"
)


# -- pure -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """Messages of the subscription's topic, in the order of their ids."""

    message_id: np.ndarray
    seq: np.ndarray
    pub_us: np.ndarray
    okey: np.ndarray


@dataclass(frozen=True)
class Told:
    """Of some messages, by their place in `Published`: something about an epoch."""

    epoch: np.ndarray
    place: np.ndarray
    outcome: np.ndarray

    def of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        mine = self.epoch == epoch
        return self.place[mine], self.outcome[mine]


def walk(
    history: History, published: Published, facts: Told, leased: Told
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """For each epoch: its number, the places of untouched messages, when they were dropped (0: they were
    not), whether a lease was carried into the epoch, and whether it is certain that they are owed.

    `leased` names messages leased when the epoch began.
    """
    seq = published.seq
    state = np.zeros(len(seq), dtype=np.int8)
    # Whether the filter lets it pass is not known.
    unread = np.zeros(len(seq), dtype=bool)
    if history.has_filter and history.epochs[0].epoch == 0:
        unread = seq < history.epochs[0].start_seq
    for epoch in history.epochs:
        carried = np.zeros(len(seq), dtype=bool)
        before = seq < epoch.start_seq
        if epoch.epoch == 0:
            state[before] = _CLOSED
        elif epoch.is_snapshot:
            carried[leased.of(epoch.epoch)[0]] = True
            carried &= state == _PENDING
            state[before & (state != _FILTERED)] = _UNCERTAIN
        else:
            carried[leased.of(epoch.epoch)[0]] = True
            _seek(epoch, published, before, state, carried)
            state[unread & (state == _PENDING)] = _UNCERTAIN
        state[(seq > epoch.start_seq) & (seq < epoch.end_seq)] = _PENDING
        untouched = (state == _PENDING) | (state == _UNCERTAIN)
        places, outcomes = facts.of(epoch.epoch)
        untouched[places] = False
        unread[places] = False
        gone_us = _dropped(history, epoch, published, untouched & ~carried)
        found = np.flatnonzero(untouched)
        yield epoch.epoch, found, gone_us[found], carried[found], state[found] == _PENDING
        state[gone_us > 0] = _CLOSED
        state[places[outcomes == _WAS_PENDING]] = _PENDING
        state[places[outcomes == _WAS_CLOSED]] = _CLOSED
        state[places[outcomes == _WAS_FILTERED]] = _FILTERED


def _seek(
    epoch: Epoch, published: Published, before: np.ndarray, state: np.ndarray, carried: np.ndarray
) -> None:
    """A seek to a time takes effect on `state` and on the leases that are `carried` over it."""
    carried &= state == _PENDING
    closes = before & (published.pub_us < epoch.target_us)
    carried &= ~closes
    state[closes & ((state == _PENDING) | (state == _UNCERTAIN))] = _CLOSED
    if epoch.retain_acked:
        kept = (published.message_id > epoch.kept_after_id) & (published.pub_us >= epoch.kept_from_us)
        returns = before & ~closes & kept & ((state == _CLOSED) | (state == _UNCERTAIN))
        state[returns] = _PENDING


def _dropped(history: History, epoch: Epoch, published: Published, candidates: np.ndarray) -> np.ndarray:
    """When bulk drops of this epoch took each of the candidates away; 0: none did."""
    gone_us = np.zeros(len(candidates), dtype=np.int64)
    following = [one.start_seq for one in history.epochs if one.epoch == epoch.epoch + 1]
    until_seq = following[0] if following else OPEN
    for drop in history.drops:
        if epoch.start_seq < drop.seq < until_seq:
            covers = (published.pub_us < drop.cutoff_us) & (published.seq < drop.seq)
            gone_us[candidates & covers & (gone_us == 0)] = drop.ts_us
    return gone_us


def walk_partition(
    batches: Iterable[pa.RecordBatch], histories: dict[int, History]
) -> Iterator[pa.RecordBatch]:
    """Rows of `_ROWS`, all about a message on a subscription in one partition; yields rows of `UNTOUCHED`."""
    import pyarrow as pa

    read = list(batches)
    if not read:
        return
    table = pa.Table.from_batches(read)
    column = {name: table[name].to_numpy() for name in table.column_names}
    for sub_id in np.unique(column["sub_id"]):
        mine = column["sub_id"] == sub_id
        yield from _walk_one(
            int(sub_id), histories[int(sub_id)], {name: values[mine] for name, values in column.items()}
        )


def _walk_one(sub_id: int, history: History, column: dict[str, np.ndarray]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows = np.flatnonzero(column["tell"] == _PUBLISHED)
    if not len(rows):
        return
    rows = rows[np.argsort(column["message_id"][rows])]
    published = Published(*(column[name][rows] for name in ("message_id", "seq", "pub_us", "okey")))

    def told(tell: int) -> Told:
        mine = np.flatnonzero(column["tell"] == tell)
        ids = column["message_id"][mine]
        place = np.minimum(np.searchsorted(published.message_id, ids), len(rows) - 1)
        is_known = published.message_id[place] == ids
        mine = mine[is_known]
        return Told(column["epoch"][mine], place[is_known], column["outcome"][mine])

    for epoch, places, gone_us, carried, certain in walk(history, published, told(_FACT), told(_LEASED)):
        if len(places):
            n = len(places)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(n, sub_id, dtype=np.int32)),
                    pa.array(np.full(n, epoch, dtype=np.int32)),
                    pa.array(published.message_id[places]),
                    pa.array(published.pub_us[places]),
                    pa.array(published.okey[places]),
                    pa.array(gone_us, mask=gone_us == 0),
                    pa.array(carried),
                    pa.array(certain),
                ],
                names=[
                    "sub_id", "epoch", "message_id", "pub_us", "okey", "gone_us", "carried", "certain",
                ],
            )  # fmt: skip  # short items, many to a line


# -- Spark ------------------------------------------------------------------------------------------------


def counts(events: DataFrame) -> DataFrame:
    """Of PUBLISH by topic, of DEADLETTER and FILTERED by subscription, a row per minute: how many, the xor of
    the hashes of their message ids, and the smallest and largest."""
    from pyspark.sql import functions as F

    kinds = [int(Kind.PUBLISH), int(Kind.DEADLETTER), int(Kind.FILTERED)]
    return (
        events.where(F.col("kind").isin(kinds))
        .groupBy("kind", "topic_id", "sub_id", minute_of("ts_us").alias("minute"))
        .agg(
            F.count("*").alias("n"),
            F.bit_xor(F.xxhash64("message_id")).alias("x"),
            F.min("message_id").alias("first_id"),
            F.max("message_id").alias("last_id"),
        )
    )


def _sought(dimensions: Dimensions) -> list[int]:
    """Subscriptions with seeks that are described in the range."""
    return [sub_id for sub_id in dimensions.subscriptions if dimensions.seeks(sub_id)]


def _dropped_after_seeks(dimensions: Dimensions) -> list[int]:
    """Subscriptions of which a bulk drop may have met a lease that a seek carried over."""
    return [
        sub_id
        for sub_id in _sought(dimensions)
        if any(drop.seq > dimensions.seeks(sub_id)[0].start_seq for drop in dimensions.drops.get(sub_id, ()))
    ]


def leased_at_seeks(events: DataFrame, dimensions: Dimensions, sub_ids: Collection[int]) -> DataFrame:
    """(sub_id, epoch, message_id) of messages that were leased when a seek of `sub_ids` began the epoch.

    Only events shortly before seeks are read: a lease is extended at least every ten minutes, or it lapses.
    """
    from pyspark.sql import functions as F

    rows = [
        (one.sub_id, one.epoch, one.start_seq, one.start_us)
        for sub_id in sub_ids
        for one in dimensions.seeks(sub_id)
    ]
    seeks = events.sparkSession.createDataFrame(
        rows, "sub_id int, epoch int, start_seq bigint, start_us bigint"
    )
    starts = [start_us for _, _, _, start_us in rows]
    begins = (F.col("kind") == int(Kind.DELIVER)) | (
        (F.col("kind") == int(Kind.EXTEND)) & (F.col("result") == int(Result.OK))
    )
    ends = F.col("kind").isin([int(Kind.EXPIRE), int(Kind.RESET), int(Kind.DEADLETTER), int(Kind.DROP)]) | (
        F.col("kind").isin([int(Kind.ACK), int(Kind.NACK)]) & (F.col("result") == int(Result.OK))
    )
    lately = (
        events.where(F.col("message_id") != 0)
        .where(F.col("sub_id").isin(sorted({sub_id for sub_id, _, _, _ in rows})))
        .where(F.col("ts_us").between(min(starts) - LEASE_US_MAX, max(starts)))
        .where(begins | ends)
        .select("sub_id", "message_id", "seq", "ts_us", begins.alias("begins"))
    )
    return (
        lately.join(F.broadcast(seeks), "sub_id")
        .where(
            (F.col("seq") < F.col("start_seq")) & (F.col("ts_us") >= F.col("start_us") - F.lit(LEASE_US_MAX))
        )
        .groupBy("sub_id", "epoch", "message_id")
        .agg(F.max_by("begins", "seq").alias("leased"))
        .where("leased")
        .select("sub_id", "epoch", "message_id")
    )


def untouched(
    events: DataFrame, counts: DataFrame, facts: DataFrame, dimensions: Dimensions, settle: Settle
) -> DataFrame | Mapped:
    """Rows of `UNTOUCHED`. `counts` is that of the same events, `facts` the table of that name."""
    from pyspark.sql import functions as F

    spark = facts.sparkSession
    if not dimensions.subscriptions:
        return spark.createDataFrame([], UNTOUCHED)
    minutes = settle(differing(counts, facts, dimensions))
    none = F.lit(None)
    published = (
        events.where(F.col("kind") == int(Kind.PUBLISH))
        .select(
            "topic_id", "message_id", "seq", F.col("ts_us").alias("pub_us"), "okey",
            minute_of("ts_us").alias("minute"),
        )
        .join(F.broadcast(minutes), ["topic_id", "minute"])
        .select(
            F.lit(_PUBLISHED).alias("tell"), "sub_id", "message_id", "seq", "pub_us", "okey",
            F.lit(0).alias("epoch"), F.lit(_STAYED).alias("outcome"),
        )
    )  # fmt: skip  # short items, many to a line
    outcome = (
        F.when(F.expr(WAS_FILTERED), _WAS_FILTERED)
        .when(F.expr("ack_us is not null or gone_us is not null"), _WAS_CLOSED)
        .when(F.col("owed"), _WAS_PENDING)
        .otherwise(_STAYED)
    )
    # Without a publish time only an ack says anything, and then the minute is not known.
    told = facts.where("pub_us > 0 or ack_us is not null").withColumn("minute", minute_of("pub_us"))
    timed = told.where("pub_us > 0").join(
        F.broadcast(minutes.select("sub_id", "minute")), ["sub_id", "minute"], "left_semi"
    )
    known = sorted(dimensions.subscriptions)
    untimed = told.where("coalesce(pub_us, 0) = 0").where(F.col("sub_id").isin(known))
    columns = ("tell", "sub_id", "message_id", "seq", "pub_us", "okey", "epoch", "outcome")
    touched = timed.unionByName(untimed).select(
        F.lit(_FACT).alias("tell"), "sub_id", "message_id", none.cast("bigint").alias("seq"), "pub_us",
        "okey", "epoch", outcome.alias("outcome"),
    )  # fmt: skip  # short items, many to a line
    rows = published.select(*columns).unionByName(touched.select(*columns))
    # A lease that a seek carried over matters to a bulk drop alone.
    if dropped := _dropped_after_seeks(dimensions):
        leased = leased_at_seeks(events, dimensions, dropped).select(
            F.lit(_LEASED).alias("tell"), "sub_id", "message_id", none.cast("bigint").alias("seq"),
            none.cast("bigint").alias("pub_us"), none.cast("bigint").alias("okey"), "epoch",
            F.lit(_STAYED).alias("outcome"),
        )  # fmt: skip  # short items, many to a line
        rows = rows.unionByName(leased)
    rows = rows.fillna(0, subset=["seq", "pub_us", "okey"])
    work = partial(_walk, histories=histories(dimensions))
    return Mapped(rows.repartition("sub_id", "message_id"), work, UNTOUCHED)


def _walk(batches: Iterator[Any], histories: dict[int, History]) -> Iterator[Any]:
    return walk_partition(batches, histories)
