"""Publish minutes in which a subscription may be owed something that has no fact.

Theory of operation. Per subscription, epoch and publish minute, number and xor of the hashes of the messages
that the subscription is owed are compared with those of its facts: equal pairs prove equal sets. What is owed
of a minute follows from minute to minute alone, as long as everything in it shares one fate:

* In the epoch in which it was published, all of it is owed.
* A seek to a later time leaves nothing of it owed.
* A seek to an earlier time makes all of it owed that the filter let through, if it is kept; if it is not
  kept, what was open when the epoch before ended.
* Of a seek to a snapshot nothing follows.

Where a seek, its target, the beginning of what is kept, or the subscription's own beginning or end lies
within the minute, and where the pairs differ, the minute is named, and its messages have to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analytics.dimensions import BulkDrop, Dimensions, Epoch
from analytics.layout import Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MINUTE_US = 60_000_000
_PUBLISHED = -1  # in the place of an epoch

#: Of facts: all, owed, let through by the filter, and owed and open when the epoch ended.
_SETS = ("all", "owed", "through", "open")
_COLUMNS = (
    "sub_id",
    "epoch",
    "minute",
    "first_id",
    "last_id",
    *[part + name for name in _SETS for part in ("n_", "x_")],
)


@dataclass(frozen=True)
class History:
    """The seeks and bulk drops of a subscription, and whether it has a filter."""

    epochs: tuple[Epoch, ...]
    drops: tuple[BulkDrop, ...] = ()
    has_filter: bool = False


@dataclass(frozen=True)
class Counted:
    """A number and a xor of hashes per minute."""

    n: Ints
    x: Ints

    def differs(self, other: Counted) -> Bools:
        differs: Bools = (self.n != other.n) | (self.x != other.x)
        return differs

    def where(self, mask: Bools, other: Counted) -> Counted:
        return Counted(np.where(mask, self.n, other.n), np.where(mask, self.x, other.x))


@dataclass(frozen=True)
class Minutes:
    """Publish minutes of a topic, each with the smallest and largest message id in it."""

    minute: Ints
    first_id: Ints
    last_id: Ints
    published: Counted


def suspicious(history: History, minutes: Minutes, facts: Callable[[int, str], Counted]) -> Bools:
    """Which minutes have to be looked at. `facts`: per epoch and name in `_SETS`, counted in these
    minutes."""
    low_us, high_us = minutes.minute * MINUTE_US, (minutes.minute + 1) * MINUTE_US  # below high_us
    epochs = history.epochs
    found = np.zeros(len(low_us), np.bool_)
    nothing = Counted(np.zeros_like(low_us), np.zeros_like(low_us))
    through, still_open = nothing, nothing
    at_home = np.zeros_like(found)  # published wholly in an epoch that has begun
    for epoch in epochs:
        if epoch.epoch > 0:
            found |= at_home & _sought(epoch, minutes, facts, through, still_open)
            in_time = low_us >= epoch.target_us
            # What a seek acknowledged is open no more; of the rest the facts of this epoch tell.
            still_open = facts(epoch.epoch, "open").where(in_time, nothing)
        is_home = (low_us > epoch.start_us) & (high_us <= epoch.end_us)
        touches = (low_us <= epoch.end_us) & (high_us > epoch.start_us)
        found |= touches & ~is_home
        found |= is_home & minutes.published.differs(facts(epoch.epoch, "all"))
        through = facts(epoch.epoch, "through").where(is_home, through)
        still_open = facts(epoch.epoch, "open").where(is_home, still_open)
        at_home |= is_home
    return found | (_may_return(history, minutes) & (high_us <= epochs[0].start_us))


def _sought(
    epoch: Epoch,
    minutes: Minutes,
    facts: Callable[[int, str], Counted],
    through: Counted,
    still_open: Counted,
) -> Bools:
    """Minutes, published wholly before a seek, whose owed messages are not those with facts after it."""
    low_us, high_us = minutes.minute * MINUTE_US, (minutes.minute + 1) * MINUTE_US
    if epoch.is_snapshot:
        return np.ones(len(low_us), np.bool_)
    is_later, is_earlier = low_us >= epoch.target_us, high_us <= epoch.target_us
    is_kept, is_gone = _kept(epoch, minutes)
    owed = facts(epoch.epoch, "owed")
    differs: Bools = np.where(is_kept, owed.differs(through), owed.differs(still_open))
    found: Bools = (~is_later & ~is_earlier) | (is_later & (~(is_kept | is_gone) | differs))
    return found


def _kept(epoch: Epoch, minutes: Minutes) -> tuple[Bools, Bools]:
    """Minutes of which a seek could bring everything back that was finished, and those of which nothing."""
    low_us, high_us = minutes.minute * MINUTE_US, (minutes.minute + 1) * MINUTE_US
    if not epoch.retain_acked:
        nothing = np.zeros(len(low_us), np.bool_)
        return nothing, ~nothing
    kept = (low_us >= epoch.kept_from_us) & (minutes.first_id > epoch.kept_after_id)
    gone = (high_us <= epoch.kept_from_us) | (minutes.last_id <= epoch.kept_after_id)
    return kept, gone


def _may_return(history: History, minutes: Minutes) -> Bools:
    """Minutes from before the subscription that a seek could bring to it."""
    high_us = (minutes.minute + 1) * MINUTE_US
    found = np.zeros(len(high_us), np.bool_)
    for epoch in history.epochs[1:]:
        found |= epoch.is_snapshot | (~_kept(epoch, minutes)[1] & (high_us > epoch.target_us))
    return found


def histories(dimensions: Dimensions) -> dict[int, History]:
    """By sub_id, of every subscription that is described in the range."""
    return {
        sub_id: History(
            dimensions.epochs[sub_id], dimensions.drops.get(sub_id, ()), _has_filter(dimensions, sub_id)
        )
        for sub_id in dimensions.subscriptions
    }


def suspicious_of(columns: Mapping[str, Ints], history: History) -> Ints:
    """The minutes of one subscription, from rows of `_COLUMNS`: those published, and its facts."""
    is_published = columns["epoch"] == _PUBLISHED
    order = np.flatnonzero(is_published)
    order = order[np.argsort(columns["minute"][order])]
    minute = columns["minute"][order]
    published = Counted(columns["n_all"][order], columns["x_all"][order])
    minutes = Minutes(minute, columns["first_id"][order], columns["last_id"][order], published)

    def facts(epoch: int, name: str) -> Counted:
        rows = np.flatnonzero(columns["epoch"] == epoch)
        rows = rows[np.isin(columns["minute"][rows], minute)]
        place = np.searchsorted(minute, columns["minute"][rows])
        n, x = np.zeros_like(minute), np.zeros_like(minute)
        n[place], x[place] = columns[f"n_{name}"][rows], columns[f"x_{name}"][rows]
        return Counted(n, x)

    return minute[suspicious(history, minutes, facts)]


# -- Spark ------------------------------------------------------------------------------------------------


def minute_of(us: str) -> Column:
    """Number of the UTC minute of the time in a column, counted from the epoch."""
    from pyspark.sql import functions as F

    # Whole numbers: a division by `/` goes through floating point, at twice the cost.
    return F.expr(f"{us} div {MINUTE_US}")


#: The filter rejected it: it left without a delivery, and was never owed.
WAS_FILTERED = "(gone_us is not null and not owed and deliveries = 0 and attempts = 0)"
IS_OPEN = "(owed and ack_us is null and gone_us is null)"


def differing(counts: DataFrame, facts: DataFrame, dimensions: Dimensions) -> DataFrame:
    """(topic_id, sub_id, minute) of which some message may be untouched; few rows, unless much is."""
    from pyspark.sql import functions as F

    topics = {sub_id: one.topic_id for sub_id, one in dimensions.subscriptions.items()}
    subscriptions = facts.sparkSession.createDataFrame(sorted(topics.items()), "sub_id int, topic_id int")
    zeros = [F.lit(0).cast("bigint").alias(name) for name in _COLUMNS[7:]]
    published = (
        counts.where(F.col("kind") == int(Kind.PUBLISH))
        .drop("sub_id")
        .join(F.broadcast(subscriptions), "topic_id")
        .select(
            "sub_id", F.lit(_PUBLISHED).alias("epoch"), "minute", "first_id", "last_id",
            F.col("n").alias("n_all"), F.col("x").alias("x_all"), *zeros,
        )
    )  # fmt: skip  # short items, many to a line
    told = facts.where("not partial and pub_us > 0").where(F.col("sub_id").isin(sorted(topics)))
    members = {"all": "true", "owed": "owed", "through": f"not {WAS_FILTERED}", "open": IS_OPEN}
    told = told.withColumns({"minute": minute_of("pub_us"), "hash": F.xxhash64("message_id")})
    sought = F.col("sub_id").isin([sub_id for sub_id in topics if dimensions.seeks(sub_id)])
    touched = (
        _counted(told.where(sought), members)
        .unionByName(_counted(told.where(~sought), {"all": "true"}), allowMissingColumns=True)
        .fillna(0)
        .withColumns({name: F.lit(0).cast("bigint") for name in ("first_id", "last_id")})
    )
    known = histories(dimensions)

    def look(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        columns = {name: table[name].to_numpy().astype(np.int64) for name in table.column_names}
        sub_id = int(columns["sub_id"][0])
        minute = suspicious_of(columns, known[sub_id])
        n = len(minute)
        return pa.table(
            {
                "topic_id": pa.array(np.full(n, topics[sub_id], np.int32)),
                "sub_id": pa.array(np.full(n, sub_id, np.int32)),
                "minute": pa.array(minute),
            }
        )

    rows = published.select(*_COLUMNS).unionByName(touched.select(*_COLUMNS))
    return rows.groupBy("sub_id").applyInArrow(look, "topic_id int, sub_id int, minute bigint")


def _counted(facts: DataFrame, members: Mapping[str, str]) -> DataFrame:
    """(sub_id, epoch, minute) and for each name and condition of `members` a number and a xor."""
    from pyspark.sql import functions as F

    sets = []
    for name, condition in members.items():
        is_in = F.expr(condition)
        sets += [
            F.count_if(is_in).alias(f"n_{name}"),
            F.coalesce(F.bit_xor(F.when(is_in, F.col("hash"))), F.lit(0)).alias(f"x_{name}"),
        ]
    return facts.groupBy("sub_id", "epoch", "minute").agg(*sets)


def _has_filter(dimensions: Dimensions, sub_id: int) -> bool:
    subscription = dimensions.subscriptions.get(sub_id)
    return subscription is not None and any(setting.filter for setting in subscription.settings)
