"""What the journal says about resources: subscriptions, their epochs, drops, clients and the server's life.

Theory of operation. A journal holds millions of events about messages and few about everything else. Those
few (CONFIG, SEEK, bulk DROP, STREAM, START, GAP) come to the driver, and `Dimensions.from_rows` makes plain
values of them that any job can look up, send to its workers, or turn into a small DataFrame. Nothing here
looks at a message.

Rules of the file:

* Validity is in `seq`, the only order. What has not ended has the end `OPEN`.
* A range of the journal can begin in the middle of things. A subscription that was not seen created began at
  seq 0, and its first known setting holds back to there.
* A seek begins a new epoch. The epoch of an event is the number of seeks of its subscription with smaller
  seq, and so it counts from the start of the range.
* A checkpoint repeats what is known already, so it counts only as the first word about a resource.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from analytics.layout import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OPEN = 2**63 - 1  # the end of what has not ended, in seq and in time

#: What `from_rows` reads of a row.
COLUMNS = (
    "seq",
    "ts_us",
    "kind",
    "topic_id",
    "sub_id",
    "message_id",
    "ref_ts_us",
    "result",
    "client_id",
    "stream_id",
    "aux",
    "detail",
)

# What the service documents for fields that are not set.
_ACK_DEADLINE_S = 10
_RETENTION = "604800s"
_ATTEMPTS = 5

# More seeks than this are joined; fewer are one expression.
_SEEKS_MAX = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """What a subscription was set to from `seq` on."""

    seq: int
    exactly_once: bool = False
    ordered: bool = False
    retain_acked: bool = False
    ack_deadline_s: int = _ACK_DEADLINE_S
    retention_s: float = 604_800.0
    max_delivery_attempts: int = 0  # 0: it has no dead letter policy
    filter: str = ""
    detached: bool = False

    @classmethod
    def of(cls, seq: int, resource: Mapping[str, Any]) -> Setting:
        """Read a `Subscription` in the JSON form of the service."""
        policy = resource.get("dead_letter_policy")
        return cls(
            seq=seq,
            exactly_once=resource.get("enable_exactly_once_delivery", False),
            ordered=resource.get("enable_message_ordering", False),
            retain_acked=resource.get("retain_acked_messages", False),
            ack_deadline_s=resource.get("ack_deadline_seconds") or _ACK_DEADLINE_S,
            retention_s=_seconds(resource.get("message_retention_duration", _RETENTION)),
            max_delivery_attempts=(policy.get("max_delivery_attempts") or _ATTEMPTS) if policy else 0,
            filter=resource.get("filter", ""),
            detached=resource.get("detached", False),
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """One incarnation of a subscription: a name that is created again gets another `sub_id`.

    It is owed what is published between `start_seq` and `end_seq`, which is its detachment or deletion.
    `settings` is never empty and ascends in seq; changes after a detachment are among them.
    """

    sub_id: int
    topic_id: int
    name: str
    start_seq: int
    end_seq: int
    start_us: int
    end_us: int
    settings: tuple[Setting, ...]

    def at(self, seq: int) -> Setting:
        """What it was set to at `seq`; before the first known setting, that one."""
        return self.settings[max(bisect_right(self.settings, seq, key=lambda one: one.seq) - 1, 0)]

    @property
    def current(self) -> Setting:
        """What it was set to last."""
        return self.settings[-1]


@dataclass(frozen=True, slots=True)
class Epoch:
    """The time of a subscription between two seeks. From `target_us` on: of the seek that began it.

    `lo_us` is the oldest publish time that it is owed by the clock. `kept_from_us` and `kept_after_id` say
    which finished messages that seek could bring back, see `keeps`.
    """

    sub_id: int
    topic_id: int
    epoch: int
    start_seq: int
    end_seq: int
    start_us: int
    end_us: int
    lo_us: int
    target_us: int = 0
    retain_acked: bool = False
    kept_from_us: int = 0
    kept_after_id: int = 0
    is_snapshot: bool = False

    def keeps(self, message_id: int, pub_us: int) -> bool:
        """Whether that seek could bring the message back if it was finished."""
        return self.retain_acked and message_id > self.kept_after_id and pub_us >= self.kept_from_us


@dataclass(frozen=True, slots=True)
class BulkDrop:
    """All messages published before `cutoff_us` left the subscription, except those leased at that moment."""

    sub_id: int
    seq: int
    ts_us: int
    cutoff_us: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The events from `first` to `last` are lost, and the event `seq` says so."""

    seq: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Start:
    """The server started; `clean`: its last stop was an orderly one."""

    seq: int
    ts_us: int
    boot: int
    version: str
    clean: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """A streaming pull and what its client asked for; zeros: no limit, or the deadline of the subscription.

    Streams whose opening is before the range are not known. A start of the server closes all streams.
    """

    stream_id: int
    client_id: int
    sub_id: int
    opened_seq: int
    opened_us: int
    closed_us: int
    max_outstanding_messages: int
    max_outstanding_bytes: int
    ack_deadline_s: int


@dataclass(frozen=True, slots=True)
class Dimensions:
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    epochs: dict[int, tuple[Epoch, ...]] = field(default_factory=dict)  # by sub_id; index = epoch
    drops: dict[int, tuple[BulkDrop, ...]] = field(default_factory=dict)  # by sub_id, ascending in seq
    topics: dict[int, str] = field(default_factory=dict)
    clients: dict[int, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    starts: tuple[Start, ...] = ()
    streams: dict[int, Stream] = field(default_factory=dict)  # by stream_id

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Dimensions:
        """`rows`: events with the fields of `COLUMNS`, in any order; those about messages are passed over."""
        reader = _Reader()
        for row in sorted(rows, key=lambda row: row["seq"]):
            reader.read(row)
        return reader.dimensions()

    def name_of(self, sub_id: int) -> str:
        """The subscription's name; of one that no event of the range describes, its number."""
        known = self.subscriptions.get(sub_id)
        return known.name if known else f"subscription {sub_id}"

    def seeks(self, sub_id: int) -> tuple[Epoch, ...]:
        """The epochs of a subscription that a seek began."""
        return self.epochs.get(sub_id, ())[1:]

    @property
    def seek_count(self) -> int:
        return sum(len(epochs) - 1 for epochs in self.epochs.values())


def _seconds(text: str) -> float:
    """The JSON form of a duration, as in "1.500s"."""
    return float(Decimal(text.removesuffix("s")))


class _Reader:
    """Takes events in the order of seq."""

    def __init__(self) -> None:
        self._subscriptions: dict[int, Subscription] = {}
        self._seeks: dict[int, list[Epoch]] = {}
        self._drops: dict[int, list[BulkDrop]] = {}
        self._topics: dict[int, str] = {}
        self._topics_of_subscriptions: dict[int, str] = {}
        self._clients: dict[int, str] = {}
        self._gaps: list[Gap] = []
        self._starts: list[Start] = []
        self._streams: dict[int, Stream] = {}
        self._open: set[int] = set()  # stream_id

    def read(self, row: Mapping[str, Any]) -> None:
        kind = row["kind"]
        if kind == Kind.CONFIG:
            self._config(row, json.loads(row["detail"]))
        elif kind == Kind.SEEK:
            self._seek(row, json.loads(row["detail"]))
        elif kind == Kind.DROP and row["message_id"] == 0:
            drop = BulkDrop(row["sub_id"], row["seq"], row["ts_us"], row["aux"])
            self._drops.setdefault(drop.sub_id, []).append(drop)
        elif kind == Kind.STREAM:
            self._stream(row, json.loads(row["detail"] or "{}"))
        elif kind == Kind.START:
            self._start(row, json.loads(row["detail"]))
        elif kind == Kind.GAP:
            self._gaps.append(Gap(row["seq"], row["aux"], json.loads(row["detail"])["last"]))

    def dimensions(self) -> Dimensions:
        return Dimensions(
            subscriptions=self._subscriptions,
            epochs=self._epochs(),
            drops={sub_id: tuple(drops) for sub_id, drops in self._drops.items()},
            topics={**self._topics_of_subscriptions, **self._topics},
            clients=self._clients,
            gaps=tuple(self._gaps),
            starts=tuple(self._starts),
            streams=self._streams,
        )

    def _config(self, row: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        # The name of a topic, once given, stays after its deletion: its messages are still about.
        if "topic" in detail:
            self._topics.setdefault(row["topic_id"], detail["topic"]["name"])
        elif "subscription" in detail:
            change = "checkpoint" if detail.get("checkpoint") else detail["change"]
            self._subscription(row, change, detail["subscription"])

    def _subscription(self, row: Mapping[str, Any], change: str, resource: Mapping[str, Any]) -> None:
        sub_id, seq, ts_us = row["sub_id"], row["seq"], row["ts_us"]
        setting = Setting.of(seq, resource)
        known = self._subscriptions.get(sub_id)
        if change == "created" or known is None:
            # What is not seen created was there before the range, and if it is detached, so was that.
            was_there = change != "created"
            start = (0, 0) if was_there else (seq, ts_us)
            end = (0, 0) if setting.detached and change in ("checkpoint", "updated") else (OPEN, OPEN)
            known = Subscription(
                sub_id, row["topic_id"], resource["name"], start[0], end[0], start[1], end[1], (setting,)
            )
        elif change == "checkpoint":
            return
        else:
            known = replace(known, settings=(*known.settings, setting))
        if change in ("detached", "deleted", "expired") and known.end_seq == OPEN:
            known = replace(known, end_seq=seq, end_us=ts_us)
        self._subscriptions[sub_id] = known
        if resource.get("topic", "").startswith("projects/"):
            self._topics_of_subscriptions.setdefault(row["topic_id"], resource["topic"])

    def _seek(self, row: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        seeks = self._seeks.setdefault(row["sub_id"], [])
        begun = Epoch(
            sub_id=row["sub_id"],
            topic_id=row["topic_id"],
            epoch=len(seeks) + 1,
            start_seq=row["seq"],
            end_seq=OPEN,
            start_us=row["ts_us"],
            end_us=OPEN,
            lo_us=min(row["aux"], row["ts_us"]),
            target_us=row["aux"],
            retain_acked=detail["retain_acked"],
            kept_from_us=detail["kept_from_us"],
            kept_after_id=detail.get("kept_after_id", 0),
            is_snapshot="snapshot" in detail,
        )
        seeks.append(begun)

    def _epochs(self) -> dict[int, tuple[Epoch, ...]]:
        """Of every subscription that is configured or sought; each epoch ends where the next begins."""
        epochs = {}
        for sub_id in sorted({*self._subscriptions, *self._seeks}):
            seeks = self._seeks.get(sub_id, [])
            known = self._subscriptions.get(sub_id)
            if known is None:
                first, end = Epoch(sub_id, seeks[0].topic_id, 0, 0, OPEN, 0, OPEN, 0), (OPEN, OPEN)
            else:
                start_us, end = known.start_us, (known.end_seq, known.end_us)
                first = Epoch(sub_id, known.topic_id, 0, known.start_seq, OPEN, start_us, OPEN, start_us)
            begun = [first, *seeks]
            ends = [*[(one.start_seq, one.start_us) for one in seeks], end]
            epochs[sub_id] = tuple(
                replace(one, end_seq=end_seq, end_us=end_us)
                for one, (end_seq, end_us) in zip(begun, ends, strict=True)
            )
        return epochs

    def _stream(self, row: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        if "client" in detail:
            self._clients[row["client_id"]] = detail["client"]
        if detail.get("unary"):
            return
        stream_id = row["stream_id"]
        if row["result"] == 0:
            self._open.add(stream_id)
            self._streams[stream_id] = Stream(
                stream_id=stream_id,
                client_id=row["client_id"],
                sub_id=row["sub_id"],
                opened_seq=row["seq"],
                opened_us=row["ts_us"],
                closed_us=OPEN,
                max_outstanding_messages=detail.get("max_outstanding_messages", 0),
                max_outstanding_bytes=detail.get("max_outstanding_bytes", 0),
                ack_deadline_s=detail.get("stream_ack_deadline_seconds", 0),
            )
        else:
            self._close(stream_id, row["ts_us"])

    def _close(self, stream_id: int, ts_us: int) -> None:
        if stream_id in self._open:
            self._open.remove(stream_id)
            self._streams[stream_id] = replace(self._streams[stream_id], closed_us=ts_us)

    def _start(self, row: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        self._starts.append(
            Start(row["seq"], row["ts_us"], detail["boot"], detail["version"], detail["clean"])
        )
        for stream_id in sorted(self._open):
            self._close(stream_id, row["ts_us"])


# -- Spark ------------------------------------------------------------------------------------------------


def collect(events: DataFrame) -> Dimensions:
    """Read the dimensions out of the journal's events: one pass over it, and few rows to the driver."""
    from pyspark.sql import functions as F

    about_resources = [int(one) for one in (Kind.SEEK, Kind.CONFIG, Kind.STREAM, Kind.START, Kind.GAP)]
    is_bulk_drop = (F.col("kind") == int(Kind.DROP)) & (F.col("message_id") == 0)
    rows = events.where(F.col("kind").isin(about_resources) | is_bulk_drop).select(*COLUMNS)
    # Every hour repeats every resource; only the first word about each can matter.
    told = F.get_json_object("detail", "$.checkpoint") == "true"
    resource = F.get_json_object("detail", "$.snapshot.name")
    is_repeated = (F.col("kind") == int(Kind.CONFIG)) & F.coalesce(told, F.lit(False))
    once = (
        rows.withColumn("_once", F.when(is_repeated, F.lit(0)).otherwise(F.col("seq")))
        .groupBy("_once", "topic_id", "sub_id", resource.alias("_resource"))
        .agg(F.min_by(F.struct(*COLUMNS), "seq").alias("row"))
        .select("row.*")
    )
    return Dimensions.from_rows(row.asDict() for row in once.collect())


def epoch_of(dimensions: Dimensions, sub_id: str | Column, seq: str | Column) -> Column:
    """The epoch of an event: how many seeks of its subscription have a smaller seq."""
    from pyspark.sql import functions as F

    sub_id = F.col(sub_id) if isinstance(sub_id, str) else sub_id
    seq = F.col(seq) if isinstance(seq, str) else seq
    found = F.lit(0)
    for one, epochs in dimensions.epochs.items():
        if len(epochs) > 1:
            passed = [(seq > F.lit(epoch.start_seq)).cast("int") for epoch in epochs[1:]]
            found = F.when(sub_id == one, reduce(lambda a, b: a + b, passed)).otherwise(found)
    return found


def with_epoch(events: DataFrame, dimensions: Dimensions) -> DataFrame:
    """`events` and the column `epoch`: by an expression, or by a broadcast join where seeks are many."""
    from pyspark.sql import functions as F

    if dimensions.seek_count <= _SEEKS_MAX:
        return events.withColumn("epoch", epoch_of(dimensions, "sub_id", "seq"))
    begun = epochs_df(events.sparkSession, dimensions).where("epoch > 0")
    spans = begun.select(F.col("sub_id").alias("_sub_id"), "epoch", "start_seq", "_next_seq")
    inside = (
        (F.col("sub_id") == F.col("_sub_id"))
        & (F.col("seq") > F.col("start_seq"))
        & (F.col("seq") <= F.col("_next_seq"))
    )
    joined = events.join(F.broadcast(spans), inside, "left")
    return joined.select(*events.columns, F.coalesce("epoch", F.lit(0)).alias("epoch"))


EPOCHS = (
    "sub_id int, topic_id int, epoch int, start_seq bigint, end_seq bigint, start_us bigint, end_us bigint, "
    "lo_us bigint, target_us bigint, retain_acked boolean, kept_from_us bigint, kept_after_id bigint, "
    "is_snapshot boolean, is_last boolean, _next_seq bigint"
)
SETTINGS = (
    "sub_id int, seq bigint, next_seq bigint, exactly_once boolean, ordered boolean, retain_acked boolean, "
    "ack_deadline_s int, retention_s double, max_delivery_attempts int, filter string, detached boolean"
)
SUBSCRIPTIONS = (
    "sub_id int, topic_id int, subscription string, start_seq bigint, end_seq bigint, start_us bigint, "
    "end_us bigint, exactly_once boolean, ordered boolean"
)
CLIENTS = "client_id int, client string"


def epochs_df(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    """A row per epoch. `_next_seq` is the next seek alone, while `end_seq` can be a detachment before it."""
    rows = []
    for epochs in dimensions.epochs.values():
        ends = [*[one.start_seq for one in epochs[1:]], OPEN]
        for one, next_seq in zip(epochs, ends, strict=True):
            rows.append(
                (one.sub_id, one.topic_id, one.epoch, one.start_seq, one.end_seq, one.start_us, one.end_us,
                 one.lo_us, one.target_us, one.retain_acked, one.kept_from_us, one.kept_after_id,
                 one.is_snapshot, next_seq == OPEN, next_seq)
            )  # fmt: skip  # short items, many to a line
    return spark.createDataFrame(rows, EPOCHS)


def settings_df(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    """A row per setting, valid at seq <= x < next_seq; the first of each subscription from 0 on."""
    rows = []
    for known in dimensions.subscriptions.values():
        starts = [0, *[one.seq for one in known.settings[1:]], OPEN]
        for at, one in enumerate(known.settings):
            rows.append(
                (known.sub_id, starts[at], starts[at + 1], one.exactly_once, one.ordered, one.retain_acked,
                 one.ack_deadline_s, one.retention_s, one.max_delivery_attempts, one.filter, one.detached)
            )  # fmt: skip  # short items, many to a line
    return spark.createDataFrame(rows, SETTINGS)


def subscriptions_df(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    """A row per subscription, with what it was set to last."""
    rows = [
        (one.sub_id, one.topic_id, one.name, one.start_seq, one.end_seq, one.start_us, one.end_us,
         one.current.exactly_once, one.current.ordered)
        for one in dimensions.subscriptions.values()
    ]  # fmt: skip  # short items, many to a line
    return spark.createDataFrame(rows, SUBSCRIPTIONS)


def clients_df(spark: SparkSession, dimensions: Dimensions) -> DataFrame:
    return spark.createDataFrame(sorted(dimensions.clients.items()), CLIENTS)
