"""The journal replayed by somebody who knows nothing but its format and its meaning.

Independent of the server's code on purpose: the layout is written down again, and each rule is the plain
sentence that it is. Two things come out: what every subscription must be in (to be compared with what the
server restored), and every event that breaks a rule.

A rule that speaks of several events of one commit ("the copy of a dead letter is published with it") is
judged when the row ends; what ordering keys demand is in `order.py`.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from tests.crash.order import KeyOrder

RECORD = struct.Struct("<qqbiiqiiqqbiqqiqq")
VERSION = 1

PUBLISH, DELIVER, EXTEND, NACK, ACK, EXPIRE = 1, 2, 3, 4, 5, 6
DEADLETTER, DROP, SEEK, CONFIG, FILTERED = 7, 8, 9, 10, 11
STREAM, START, GAP, RESET = 12, 13, 14, 15
WITH_DETAIL = {SEEK, CONFIG, STREAM, START, GAP}
OK, NOOP, PERMANENT, TRANSIENT = 0, 1, 2, 3

SECOND_US = 1_000_000
# What the service documents for fields that were not set.
_MINIMUM_BACKOFF_SECONDS, _MAXIMUM_BACKOFF_SECONDS = "10s", "600s"
_RETENTION_SECONDS = "604800s"
_ATTEMPTS = 5
# What is kept is looked up when a seek is asked for, which may be so much before it is done.
_ANSWER_US_MAX = 15 * SECOND_US
# How much less than the exact delay a redelivery may wait: it may be jittered by a tenth.
_JITTER = 0.1
# For so long it is remembered what became of an ack id; then a repetition may be answered either way.
_REMEMBERED_US = 75 * 60 * SECOND_US


class Row(NamedTuple):
    """One row of `journal_tail`: the events of one commit."""

    first_seq: int
    n: int
    version: int
    data: bytes


class Record(NamedTuple):
    seq: int
    ts_us: int
    kind: int
    topic_id: int
    sub_id: int
    message_id: int
    generation: int
    attempt: int
    deadline_us: int
    ref_ts_us: int
    result: int
    client_id: int
    stream_id: int
    okey: int
    bytes: int
    payload_hash: int
    aux: int


class Lease(NamedTuple):
    generation: int
    attempt: int
    deadline_us: int


class Published(NamedTuple):
    topic_id: int
    ts_us: int
    okey: int
    bytes: int
    payload_hash: int
    seq: int


class Snapshot(NamedTuple):
    """What was owed when it was taken; and everything that was published to the topic afterwards."""

    name: str
    topic_id: int
    seq: int
    ts_us: int
    captured: frozenset[int]


class Seek(NamedTuple):
    record: Record
    subscription: str
    snapshot: str


class Settings(NamedTuple):
    """What the configuration of a subscription says, as far as it matters here."""

    exactly_once: bool = False
    ordered: bool = False
    filter: str = ""
    backoff_us: tuple[int, int] | None = None
    dead_letter: tuple[str, int] | None = None  # topic, attempts
    kept_us: int = 0
    retain_acked: bool = False

    @classmethod
    def of(cls, resource: Mapping[str, Any]) -> Settings:
        backoff = dead_letter = None
        if (retry := resource.get("retry_policy")) is not None:
            backoff = (
                duration_us(retry.get("minimum_backoff", _MINIMUM_BACKOFF_SECONDS)),
                duration_us(retry.get("maximum_backoff", _MAXIMUM_BACKOFF_SECONDS)),
            )
        if (policy := resource.get("dead_letter_policy")) is not None:
            dead_letter = (policy["dead_letter_topic"], policy.get("max_delivery_attempts") or _ATTEMPTS)
        return cls(
            exactly_once=resource.get("enable_exactly_once_delivery", False),
            ordered=resource.get("enable_message_ordering", False),
            filter=resource.get("filter", ""),
            backoff_us=backoff,
            dead_letter=dead_letter,
            kept_us=duration_us(resource.get("message_retention_duration", _RETENTION_SECONDS)),
            retain_acked=resource.get("retain_acked_messages", False),
        )


def duration_us(text: str) -> int:
    """The JSON form of a duration, as in "1.500s"."""
    return int(Decimal(text.removesuffix("s")) * SECOND_US)


@dataclass
class _RowSoFar:
    """What has to be judged when the whole commit is known."""

    published: set[int] = field(default_factory=set)
    dead: list[Record] = field(default_factory=list)
    dropped: list[tuple[Record, Subscription, int]] = field(default_factory=list)  # kept_us at that moment


@dataclass
class Keeping:
    """Since when finished messages are kept for how long, by a topic or by a subscription."""

    kept_us: int = 0  # 0: not at all
    from_us: int = 0  # what was published before may be gone

    def change(self, kept_us: int, now_us: int) -> None:
        if kept_us != self.kept_us:
            self.from_us = self.since(now_us) if self.kept_us else now_us
            self.kept_us = kept_us

    def since(self, now_us: int) -> int:
        """Everything published from here on must be there."""
        return max(self.from_us, now_us - self.kept_us) if self.kept_us else now_us


@dataclass
class Subscription:
    sub_id: int
    topic_id: int
    name: str
    created_us: int = 0
    created_seq: int = 0
    settings: Settings = field(default_factory=Settings)
    attached: bool = True
    deleted: bool = False
    unacked: set[int] = field(default_factory=set)  # everything that is owed
    leases: dict[int, Lease] = field(default_factory=dict)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)  # last generation, next attempt
    ready_us: dict[int, int] = field(default_factory=dict)  # not before: back-off
    reset: dict[int, int] = field(default_factory=dict)  # its void lease would have ended then
    acked: dict[int, int] = field(default_factory=dict)  # message_id: generation that acked it
    purged: dict[int, bool] = field(default_factory=dict)  # by a seek or a drop; whether it was leased then
    forwarded: dict[int, int] = field(default_factory=dict)  # message_id: that of its copy
    filtered: set[int] = field(default_factory=set)
    superseded: dict[int, int] = field(default_factory=dict)  # a seek brought it back after this generation
    acked_by: set[tuple[int, int]] = field(default_factory=set)  # every message and generation that ever was
    # Finished, and a seek to a snapshot may have made the server forget it; see `_sought_by_snapshot`.
    doubtful: set[int] = field(default_factory=set)
    carried: set[int] = field(default_factory=set)  # leases that ran while a seek was done
    nacked_us: dict[tuple[int, int], int] = field(default_factory=dict)  # by message and generation
    finished_us: dict[int, int] = field(default_factory=dict)  # when a message was last finished
    deliveries: dict[tuple[int, int], Record] = field(default_factory=dict)
    last_generation: dict[int, int] = field(default_factory=dict)
    uncounted: dict[int, int] = field(default_factory=dict)  # failures before there was a dead letter policy
    keeping: Keeping = field(default_factory=Keeping)
    shown_attempts: dict[tuple[int, int], int] = field(default_factory=dict)  # by message and generation
    _published: Mapping[int, Published] = field(default_factory=dict)
    _by_key: dict[int, set[int]] = field(default_factory=dict)  # what is owed, with ordering only

    @property
    def exactly_once(self) -> bool:
        return self.settings.exactly_once

    def with_key(self, okey: int) -> set[int]:
        """What is owed of an ordering key, if keys mean something here."""
        return self._by_key.get(okey, set())

    def owe(self, message_id: int) -> None:
        self.unacked.add(message_id)
        okey = self._published[message_id].okey
        if okey and self.settings.ordered:
            self._by_key.setdefault(okey, set()).add(message_id)

    def failures(self, message_id: int) -> int:
        """Attempts that failed and count towards the dead letter policy."""
        _, attempt = self.waiting.get(message_id, (0, 1))
        return attempt - 1 - self.uncounted.get(message_id, 0)

    def finish(self, message_id: int, now_us: int) -> None:
        self.finished_us[message_id] = now_us
        self.unacked.discard(message_id)
        if message_id in self._published:
            self.with_key(self._published[message_id].okey).discard(message_id)
        self.leases.pop(message_id, None)
        self.waiting.pop(message_id, None)
        self.ready_us.pop(message_id, None)
        self.reset.pop(message_id, None)
        self.carried.discard(message_id)

    def purge(self, message_id: int, now_us: int) -> None:
        self.purged[message_id] = message_id in self.leases
        self.finish(message_id, now_us)

    def bring_back(self, message_id: int) -> None:
        self.owe(message_id)
        self.acked.pop(message_id, None)
        self.purged.pop(message_id, None)
        self.forwarded.pop(message_id, None)
        self.uncounted.pop(message_id, None)
        self.superseded[message_id] = self.last_generation.get(message_id, 0)

    def why_not_owed(self, message_id: int) -> str:
        for what, where in (
            ("after its ack", self.acked),
            ("after a seek or drop took it away", self.purged),
            ("after it was forwarded", self.forwarded),
            ("although the filter rejects it", self.filtered),
        ):
            if message_id in where:
                return what
        return "and is not owed"


class Replayer:
    """Feed it rows in order; `problems` are the events that break a rule.

    `matches` says whether a message, named by its payload_hash, passes a filter; the journal does not hold
    attributes. `applied` is told of every event, once it has taken effect here.
    """

    def __init__(
        self,
        matches: Callable[[str, int], bool] = lambda filter, payload_hash: True,
        applied: Callable[[Record, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.problems: list[str] = []
        self.last_seq = 0
        self.now_us = 0
        self.events = 0
        self.kinds: Counter[int] = Counter()
        self.published: dict[int, Published] = {}
        self.of_topic: dict[int, list[int]] = {}  # message ids, ascending
        self.topics: dict[int, str] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.snapshot_sources: dict[str, str] = {}  # of which subscription one was taken, if told so
        self.boots: list[tuple[int, bool]] = []
        self.gaps: list[tuple[int, int]] = []
        self.copies: dict[int, tuple[int, int]] = {}  # of dead letters: (sub_id, message_id) of the source
        self.failures_of_copies: dict[int, int] = {}
        self.judged: list[Record] = []  # every ACK, NACK and EXTEND
        self.seeks: list[Seek] = []
        self.seek_asked_us = 0  # when the last one was asked for, if told so
        self.streams: dict[int, int] = {}  # stream_id: opened at
        self.all_streams: set[int] = set()  # whether open or not
        self.clients: dict[int, str] = {0: ""}
        self._matches = matches
        self._applied = applied
        self._keeping: dict[int, Keeping] = {}  # by topic
        self._last_message_id = 0
        self._order = KeyOrder(self)
        self._row = _RowSoFar()

    def feed(self, rows: Iterable[Row], details: Mapping[int, str]) -> None:
        """Rows that were fed before are skipped."""
        for row in rows:
            if row.first_seq <= self.last_seq:
                continue
            if row.version != VERSION or len(row.data) != row.n * RECORD.size:
                self.problems.append(
                    f"row {row.first_seq}: version {row.version}, {row.n} events, {len(row.data)} bytes"
                )
                return
            for fields in RECORD.iter_unpack(row.data):
                record = Record(*fields)
                if record.seq != self.last_seq + 1:
                    self.problem(record, f"follows {self.last_seq}")
                self.last_seq = record.seq
                self.now_us = max(self.now_us, record.ts_us)
                self.events += 1
                self.kinds[record.kind] += 1
                self._apply(record, details.get(record.seq))
            self._end_row()

    def problem(self, record: Record, text: str) -> None:
        self.problems.append(f"seq {record.seq}, kind {record.kind}, message {record.message_id}: {text}")

    def _apply(self, record: Record, detail: str | None) -> None:
        self._order.before(record)
        if (detail is not None) != (record.kind in WITH_DETAIL):
            self.problem(record, f"detail is {detail}")
        if record.client_id not in self.clients and record.kind != STREAM:
            self.problem(record, f"client {record.client_id} was never introduced")
        told = json.loads(detail) if detail else {}
        self._take(record, told)
        if self._applied is not None:
            self._applied(record, told)

    def _take(self, record: Record, told: Any) -> None:
        if record.kind in _OF_SERVER:
            _OF_SERVER[record.kind](self, record, told)
            return
        subscription = self.subscriptions.get(record.sub_id)
        if subscription is None or subscription.deleted:
            self.problem(record, f"there is no subscription {record.sub_id}")
        elif record.topic_id != subscription.topic_id and record.kind != DEADLETTER:
            self.problem(record, f"topic {record.topic_id} is not that of subscription {record.sub_id}")
        elif record.kind == SEEK:
            self._seek(record, subscription, told)
        elif record.kind not in _OF_SUBSCRIPTION:
            self.problem(record, "unknown kind")
        else:
            _OF_SUBSCRIPTION[record.kind](self, record, subscription)

    def _end_row(self) -> None:
        self._order.end_call()
        self._order.end_row()
        row, self._row = self._row, _RowSoFar()
        for record in row.dead:
            copy = self.published.get(record.aux)
            if record.aux not in row.published or copy is None:
                self.problem(record, f"its copy {record.aux} was not published with it")
            elif (copy.topic_id, copy.okey) != (record.topic_id, self.published[record.message_id].okey):
                self.problem(record, f"its copy is {copy}")
        for record, sub, then_us in row.dropped:
            # A change of the retention that one of the two records tells may stand before or after the other.
            kept_us = min(then_us, self.unacked_kept_us(sub))
            if sub.attached and record.aux > record.ts_us - kept_us:
                self.problem(record, f"drops what is younger than {kept_us} us")

    # -- the server's events ------------------------------------------------------------------------------

    def _publish(self, record: Record, detail: Any) -> None:
        message_id = record.message_id
        if message_id <= self._last_message_id:
            self.problem(record, f"the id follows {self._last_message_id}")
        self._last_message_id = message_id
        if record.topic_id not in self.topics:
            self.problem(record, f"there is no topic {record.topic_id}")
        if not record.ref_ts_us <= record.ts_us:
            self.problem(record, "the request arrived after it")
        self.published[message_id] = Published(
            record.topic_id, record.ts_us, record.okey, record.bytes, record.payload_hash, record.seq
        )
        self.of_topic.setdefault(record.topic_id, []).append(message_id)
        self._row.published.add(message_id)
        for subscription in self.subscriptions.values():
            if (
                subscription.topic_id == record.topic_id
                and subscription.attached
                and not subscription.deleted
            ):
                subscription.owe(message_id)

    def _config(self, record: Record, detail: Any) -> None:
        if detail.get("checkpoint"):
            self._config_repeated(record, detail)
            return
        for what, apply in (
            ("topic", self._topic_changed),
            ("snapshot", self._snapshot_changed),
            ("subscription", self._subscription_changed),
        ):
            if what in detail:
                apply(record, detail["change"], detail[what])
                return
        self.problem(record, f"detail is {detail}")

    def _config_repeated(self, record: Record, detail: Any) -> None:
        """A resource is told again, and has to be as it was told before."""
        sub = self.subscriptions.get(record.sub_id)
        same = (
            ("topic" in detail and self.topics.get(record.topic_id) == detail["topic"]["name"])
            or ("snapshot" in detail and detail["snapshot"]["name"] in self.snapshots)
            or (
                sub is not None
                and not sub.deleted
                and sub.name == detail["subscription"]["name"]
                and sub.settings == Settings.of(detail["subscription"])
            )
        )
        if not same:
            self.problem(record, f"what is repeated was told otherwise: {detail}")

    def _topic_changed(self, record: Record, change: str, resource: Mapping[str, Any]) -> None:
        topic_id = record.topic_id
        if change == "created" and topic_id in self.topics:
            self.problem(record, "the topic is there already")
        self.topics[topic_id] = resource["name"]
        kept_us = duration_us(resource.get("message_retention_duration", "0s"))
        if change == "deleted":
            del self.topics[topic_id]
            kept_us = 0
        self._keeping.setdefault(topic_id, Keeping()).change(kept_us, record.ts_us)

    def _subscription_changed(self, record: Record, change: str, resource: Mapping[str, Any]) -> None:
        if change == "created":
            if record.sub_id in self.subscriptions:
                self.problem(record, "the incarnation is not new")
            self.subscriptions[record.sub_id] = Subscription(
                record.sub_id,
                record.topic_id,
                resource["name"],
                record.ts_us,
                record.seq,
                _published=self.published,
            )
        sub = self.subscriptions[record.sub_id]
        before, sub.settings = sub.settings, Settings.of(resource)
        sub.deleted = change in ("deleted", "expired")
        if change == "detached":
            sub.attached = False
        sub.keeping.change(sub.settings.kept_us if sub.settings.retain_acked else 0, record.ts_us)
        if sub.settings.dead_letter is None:
            sub.uncounted.clear()
        elif before.dead_letter is None:
            # Counting begins now, for what has failed already as for everything else.
            attempts = {m: lease.attempt for m, lease in sub.leases.items()}
            attempts |= {m: attempt for m, (_, attempt) in sub.waiting.items()}
            sub.uncounted = {m: attempt - 1 for m, attempt in attempts.items() if attempt > 1}

    def _snapshot_changed(self, record: Record, change: str, resource: Mapping[str, Any]) -> None:
        name = resource["name"]
        if change in ("deleted", "expired"):
            if self.snapshots.pop(name, None) is None:
                self.problem(record, f"there is no snapshot {name}")
        elif change == "created":
            if name in self.snapshots:
                self.problem(record, f"{name} is there already")
            source = self.subscriptions.get(record.sub_id) or self._source_of(name)
            if source is None or source.topic_id != record.topic_id or not source.attached:
                self.problem(record, f"a snapshot of subscription {record.sub_id}")
                return
            self.snapshots[name] = Snapshot(
                name, record.topic_id, record.seq, record.ts_us, frozenset(source.unacked)
            )
        elif name not in self.snapshots:
            self.problem(record, f"there is no snapshot {name}")

    def _source_of(self, snapshot: str) -> Subscription | None:
        name = self.snapshot_sources.get(snapshot)
        found = [one for one in self.subscriptions.values() if one.name == name and not one.deleted]
        return found[-1] if found else None

    def _stream(self, record: Record, detail: Any) -> None:
        if record.result == 0:
            if "client" not in detail:
                self.problem(record, f"detail is {detail}")
            self.clients[record.client_id] = detail.get("client", "")
            if not detail.get("unary"):
                self.streams[record.stream_id] = record.ts_us
                self.all_streams.add(record.stream_id)
        elif (opened_us := self.streams.pop(record.stream_id, 0)) != record.ref_ts_us:
            self.problem(record, f"the stream was opened at {opened_us}, not at {record.ref_ts_us}")

    def _start(self, record: Record, detail: Any) -> None:
        if self.boots and detail["boot"] <= self.boots[-1][0]:
            self.problem(record, f"boot {detail['boot']} follows {self.boots[-1][0]}")
        self.boots.append((detail["boot"], detail["clean"]))
        self.streams.clear()

    def _gap(self, record: Record, detail: Any) -> None:
        self.gaps.append((record.aux, detail["last"]))

    # -- one subscription's events: deliveries and their ends ---------------------------------------------

    def _deliver(self, record: Record, sub: Subscription) -> None:
        message_id = record.message_id
        published = self.published.get(message_id)
        lease = sub.leases.get(message_id)
        if published is None or message_id not in sub.unacked:
            self.problem(record, f"delivered {sub.why_not_owed(message_id)}")
        elif (
            record.ref_ts_us != published.ts_us
            or record.bytes != published.bytes
            or record.okey != published.okey
        ):
            self.problem(record, f"ref_ts_us, bytes or okey differ from those of {published}")
        elif record.ts_us > published.ts_us + self.unacked_kept_us(sub):
            self.problem(record, "delivered after its retention")
        elif not self._passes(sub, published):
            self.problem(record, f"delivered although it does not match {sub.settings.filter}")
        if lease is not None:
            self.problem(record, f"delivered inside the lease {lease}")
        elif (early_us := sub.ready_us.get(message_id, 0) - record.ts_us) > 0:
            self.problem(record, f"delivered {early_us} us before its back-off ends")
        if sub.exactly_once and record.ts_us < sub.reset.get(message_id, 0):
            self.problem(record, f"delivered before its void lease ends at {sub.reset[message_id]}")
        if record.generation <= sub.last_generation.get(message_id, 0):
            self.problem(record, f"generation {record.generation} is not new")
        if record.attempt != sub.waiting.get(message_id, (0, 1))[1]:
            self.problem(record, f"attempt {record.attempt}, not {sub.waiting.get(message_id, (0, 1))[1]}")
        if self._should_forward(sub, message_id):
            self.problem(record, f"delivered after {sub.failures(message_id)} failures")
        if record.deadline_us <= record.ts_us:
            self.problem(record, "the lease ends before it begins")
        self._order.delivered(record, sub)
        shown = 1 + sub.failures(message_id) if sub.settings.dead_letter is not None else 0
        sub.shown_attempts[message_id, record.generation] = shown
        for where in (sub.waiting, sub.ready_us, sub.reset):
            where.pop(message_id, None)
        sub.last_generation[message_id] = record.generation
        sub.leases[message_id] = Lease(record.generation, record.attempt, record.deadline_us)
        sub.deliveries[message_id, record.generation] = record

    def _refers(self, record: Record, sub: Subscription) -> None:
        """Common to all that says what became of a generation."""
        delivery = sub.deliveries.get((record.message_id, record.generation))
        if record.generation == 0:
            if (record.message_id, record.ref_ts_us, record.result) != (0, 0, PERMANENT) and sub.exactly_once:
                self.problem(record, "an unknown id, and yet more is known")
        elif delivery is None:
            self.problem(record, f"generation {record.generation} was never delivered")
        elif (record.ref_ts_us, record.attempt, record.client_id) != (
            delivery.ts_us,
            delivery.attempt,
            delivery.client_id,
        ):
            self.problem(record, "ref_ts_us, attempt or client differ from those of the delivery")

    def _current(self, record: Record, sub: Subscription) -> Lease | None:
        """The lease that the event speaks of, if that is the newest."""
        lease = sub.leases.get(record.message_id)
        return lease if lease is not None and lease.generation == record.generation else None

    def _judge(self, record: Record, sub: Subscription) -> Lease | None:
        """Whether the answer to a client was right; returns the lease if the operation took effect on it."""
        self.judged.append(record)
        self._refers(record, sub)
        lease = self._current(record, sub)
        running = lease is not None and record.ts_us <= lease.deadline_us
        if record.result == OK and not running and not self._works_without_lease(record, sub):
            self.problem(record, f"accepted, and the lease is {lease}")
        elif record.result == PERMANENT and lease is not None and record.ts_us < lease.deadline_us:
            self.problem(record, f"refused inside the lease {lease}")
        elif record.result == PERMANENT and not sub.exactly_once:
            self.problem(record, "refused without exactly-once")
        elif record.result == PERMANENT and self._is_repetition(record, sub) and not _is_old(record, sub):
            self.problem(record, "refused, and it is as was asked")
        elif record.result == NOOP and not (self._may_be_noop(record, sub, running) or _is_old(record, sub)):
            self.problem(record, "answered as done, and it is not")
        elif record.result == TRANSIENT and not (running and record.kind == ACK and sub.exactly_once):
            self.problem(record, f"told to come again, and the lease is {lease}")
        elif record.result not in (OK, NOOP, PERMANENT, TRANSIENT):
            self.problem(record, f"result {record.result}")
        return lease if record.result == OK else None

    def _works_without_lease(self, record: Record, sub: Subscription) -> bool:
        message_id, generation = record.message_id, record.generation
        if generation == 0:
            return False
        if record.kind == NACK:  # which releases a message whose lease is void
            newest = sub.last_generation.get(message_id) == generation
            return sub.exactly_once and message_id in sub.reset and newest
        alive = message_id in sub.unacked and generation > sub.superseded.get(message_id, 0)
        return record.kind == ACK and not sub.exactly_once and alive

    def _is_repetition(self, record: Record, sub: Subscription) -> bool:
        """Whether the effect that is asked for is the recorded outcome of this id."""
        message_id, generation = record.message_id, record.generation
        if generation == 0 or not sub.attached or generation <= sub.superseded.get(message_id, 0):
            return False
        newest = sub.last_generation.get(message_id) == generation
        if record.kind == NACK:
            is_void = newest and record.ts_us <= sub.reset.get(message_id, 0)
            return (message_id, generation) in sub.nacked_us or is_void
        if message_id in sub.doubtful:
            return False
        if record.kind == ACK and newest and sub.purged.get(message_id, False):
            return True
        return sub.acked.get(message_id) == generation

    def _may_be_noop(self, record: Record, sub: Subscription, running: bool) -> bool:
        if not sub.exactly_once:
            return not running and not self._works_without_lease(record, sub)
        message_id, generation = record.message_id, record.generation
        purged = message_id in sub.purged and sub.last_generation.get(message_id) == generation
        if self._is_repetition(record, sub) or (record.kind == ACK and purged):
            return True
        # If a seek brought it back since, and that life is over, too, what is known of this id holds again.
        ended = sub.nacked_us if record.kind == NACK else sub.acked_by
        return (message_id, generation) in ended and message_id not in sub.unacked

    def _extend(self, record: Record, sub: Subscription) -> None:
        lease = self._judge(record, sub)
        if lease is not None:
            if record.deadline_us != record.ts_us + record.aux * SECOND_US:
                self.problem(record, f"asked for {record.aux} s, got {record.deadline_us - record.ts_us} us")
            sub.leases[record.message_id] = lease._replace(deadline_us=record.deadline_us)
        elif record.deadline_us:
            self.problem(record, "a deadline without a lease")

    def _nack(self, record: Record, sub: Subscription) -> None:
        if self._judge(record, sub) is not None:
            self._failed(record, sub, record.ts_us)
        elif record.result == OK:
            sub.reset.pop(record.message_id, None)
        if record.result == OK:
            sub.nacked_us[record.message_id, record.generation] = record.ts_us

    def _ack(self, record: Record, sub: Subscription) -> None:
        self._judge(record, sub)
        if record.result == TRANSIENT and record.message_id in self.published:
            self._order.turned_away(record, sub)
        elif record.result == OK and record.message_id in self.published:
            self._order.acked(record, sub)
        if record.result == OK:
            sub.finish(record.message_id, record.ts_us)
            sub.acked[record.message_id] = record.generation
            sub.acked_by.add((record.message_id, record.generation))
            sub.doubtful.discard(record.message_id)
            # Without exactly-once an id that was nacked may be acked afterwards; that is then its outcome.
            sub.nacked_us.pop((record.message_id, record.generation), None)

    def _expire(self, record: Record, sub: Subscription) -> None:
        self._refers(record, sub)
        lease = self._current(record, sub)
        if lease is None or lease.deadline_us != record.deadline_us:
            self.problem(record, f"the lease is {lease}")
        elif record.ts_us < lease.deadline_us:
            self.problem(record, f"{lease.deadline_us - record.ts_us} us early")
        if lease is not None:
            self._failed(record, sub, lease.deadline_us)

    def _failed(self, record: Record, sub: Subscription, at_us: int) -> None:
        """A nack or expiry ended the lease: an attempt that failed."""
        if record.message_id in self.published:
            self._order.failed(record, sub)
        self._return(record, sub, 1)
        if sub.settings.backoff_us is not None:
            minimum_us, maximum_us = sub.settings.backoff_us
            delay_us = min(maximum_us, minimum_us << min(record.attempt - 1, 40))
            sub.ready_us[record.message_id] = at_us + int(delay_us * (1 - _JITTER))

    def _reset(self, record: Record, sub: Subscription) -> None:
        self._refers(record, sub)
        lease = self._current(record, sub)
        if lease is None or lease.deadline_us != record.deadline_us:
            self.problem(record, f"the lease is {lease}")
            return
        if record.message_id in self.published:
            self._order.reset(record, sub)
        self._return(record, sub, 0)
        if sub.exactly_once:
            sub.reset[record.message_id] = lease.deadline_us

    def _return(self, record: Record, sub: Subscription, attempts: int) -> None:
        del sub.leases[record.message_id]
        sub.carried.discard(record.message_id)
        sub.waiting[record.message_id] = (record.generation, record.attempt + attempts)

    # -- one subscription's events: messages that leave it or come back -----------------------------------

    def _filtered(self, record: Record, sub: Subscription) -> None:
        published = self.published.get(record.message_id)
        if published is None or published.topic_id != sub.topic_id:
            self.problem(record, "it was never published there")
            return
        if record.ref_ts_us != published.ts_us:
            self.problem(record, f"ref_ts_us differs from that of {published}")
        # What is older than the subscription is looked at anew after each seek that brings it back.
        if record.message_id in sub.filtered and published.seq > sub.created_seq:
            self.problem(record, "told before")
        if record.message_id in sub.last_generation:
            self.problem(record, "it was delivered")
        if not sub.settings.filter or self._passes(sub, published):
            self.problem(record, f"it matches {sub.settings.filter}")
        sub.finish(record.message_id, record.ts_us)
        sub.filtered.add(record.message_id)

    def _deadletter(self, record: Record, sub: Subscription) -> None:
        message_id = record.message_id
        published = self.published.get(message_id)
        policy = sub.settings.dead_letter
        if published is None or message_id not in sub.unacked:
            self.problem(record, f"forwarded {sub.why_not_owed(message_id)}")
        elif record.ref_ts_us != published.ts_us:
            self.problem(record, f"ref_ts_us differs from that of {published}")
        if message_id in sub.leases:
            self.problem(record, f"forwarded inside the lease {sub.leases[message_id]}")
        if policy is None:
            self.problem(record, "forwarded without a policy")
        else:
            if self.topics.get(record.topic_id) != policy[0]:
                self.problem(record, f"topic {record.topic_id} is not {policy[0]}")
            if sub.failures(message_id) < policy[1]:
                self.problem(record, f"forwarded after {sub.failures(message_id)} failures")
        self._row.dead.append(record)
        self.copies[record.aux] = (record.sub_id, message_id)
        self.failures_of_copies[record.aux] = sub.failures(message_id)
        sub.finish(message_id, record.ts_us)
        sub.forwarded[message_id] = record.aux

    def _should_forward(self, sub: Subscription, message_id: int) -> bool:
        policy = sub.settings.dead_letter
        if policy is None or policy[0] not in self.topics.values():
            return False
        return sub.failures(message_id) >= policy[1]

    def _drop(self, record: Record, sub: Subscription) -> None:
        if record.message_id:
            published = self.published.get(record.message_id)
            if published is None or record.message_id not in sub.unacked or record.message_id in sub.leases:
                self.problem(record, "dropped, and it is leased or not owed")
                return
            if record.ref_ts_us != published.ts_us:
                self.problem(record, f"ref_ts_us differs from that of {published}")
            if record.ts_us <= published.ts_us + self.unacked_kept_us(sub):
                self.problem(record, "dropped within its retention")
            sub.purge(record.message_id, record.ts_us)
            return
        self._row.dropped.append((record, sub, self.unacked_kept_us(sub)))
        for message_id in [m for m in sub.unacked if self.published[m].ts_us < record.aux]:
            if message_id not in sub.leases:
                sub.purge(message_id, record.ts_us)

    def _seek(self, record: Record, sub: Subscription, detail: Any) -> None:
        if not sub.attached:
            self.problem(record, "a seek of what is detached")
        self.seeks.append(Seek(record, sub.name, detail.get("snapshot", "")))
        if "snapshot" in detail:
            owed = self._sought_by_snapshot(record, sub, detail)
        else:
            owed = self._sought_by_time(record, sub, detail)
        sub.carried |= set(sub.leases)
        sub.ready_us.clear()
        if owed is None:
            return
        for message_id in sub.unacked - owed:
            sub.purge(message_id, record.ts_us)
        for message_id in owed - sub.unacked:
            if message_id not in sub.filtered and self._passes(sub, self.published[message_id]):
                sub.bring_back(message_id)

    def _sought_by_time(self, record: Record, sub: Subscription, detail: Any) -> set[int]:
        kept_from_us = detail["kept_from_us"]
        self._check_kept(record, sub, detail["retain_acked"], kept_from_us)
        later = self._published_since(sub.topic_id, record.aux)
        kept, after_id = detail["retain_acked"], detail["kept_after_id"]
        return {
            m for m in later if m in sub.unacked or (kept and m > after_id and self._ts_us(m) >= kept_from_us)
        }

    def _sought_by_snapshot(self, record: Record, sub: Subscription, detail: Any) -> set[int] | None:
        snapshot = self.snapshots.get(detail["snapshot"])
        if snapshot is None or snapshot.topic_id != sub.topic_id:
            where = "gone" if snapshot is None else f"of topic {snapshot.topic_id}"
            self.problem(record, f"snapshot {detail['snapshot']} is {where}")
            return None
        if (detail["snapshot_seq"], record.aux) != (snapshot.seq, snapshot.ts_us):
            self.problem(record, f"the snapshot was taken at {snapshot.ts_us}, seq {snapshot.seq}")
        held = self.held(snapshot)
        # A snapshot does not say which messages the filter of its subscription rejected. Above its cursor
        # they look to another subscription as if the seek had brought them back, and to its filter as if
        # they had never been owed: the repetition of an ack is then refused.
        finished = {*sub.acked, *sub.purged, *sub.unacked} - held
        sub.doubtful |= {m for m in finished if self._is_rejected_by_some(m)}
        return held

    def _is_rejected_by_some(self, message_id: int) -> bool:
        published = self.published[message_id]
        subs = (one for one in self.subscriptions.values() if one.topic_id == published.topic_id)
        return any(not self._passes(one, published) for one in subs)

    def _check_kept(self, record: Record, sub: Subscription, retain_acked: bool, kept_from_us: int) -> None:
        """As much is kept as the settings promise, and no more than that."""
        now_us = record.ts_us
        topic = self._keeping[sub.topic_id]
        kept_us = max(topic.kept_us, sub.keeping.kept_us)
        if retain_acked != (kept_us > 0):
            self.problem(record, f"retain_acked is {retain_acked}, and it is kept for {kept_us} us")
        elif retain_acked:
            since_us = min(topic.since(now_us), max(sub.keeping.since(now_us), sub.created_us))
            gone = [
                m for m in self._published_since(sub.topic_id, since_us + 1) if self._ts_us(m) < kept_from_us
            ]
            if gone:
                self.problem(record, f"kept from {kept_from_us} on, and that is without {gone[:5]}")
            elif kept_from_us < (self.seek_asked_us or now_us - _ANSWER_US_MAX) - kept_us:
                self.problem(record, f"kept from {kept_from_us} on, for {kept_us} us")

    # -- what has to be stored ----------------------------------------------------------------------------

    def retained(self, sub_id: int, now_us: int) -> list[int]:
        """What a seek of this subscription can bring back by its own setting."""
        sub = self.subscriptions[sub_id]
        if not sub.keeping.kept_us or not sub.attached:
            return []
        since_us = max(sub.keeping.since(now_us), sub.created_us)
        return [m for m in self._published_since(sub.topic_id, since_us + 1) if m not in sub.filtered]

    def retained_by_topic(self, topic_id: int, now_us: int) -> list[int]:
        return self._published_since(topic_id, self._keeping[topic_id].since(now_us) + 1)

    def held(self, snapshot: Snapshot) -> set[int]:
        topic = self.of_topic.get(snapshot.topic_id, [])
        first = bisect_right(topic, snapshot.seq, key=lambda message_id: self.published[message_id].seq)
        return {*snapshot.captured, *topic[first:]}

    def _published_since(self, topic_id: int, since_us: int) -> list[int]:
        topic = self.of_topic.get(topic_id, [])
        return topic[bisect_left(topic, since_us, key=self._ts_us) :]

    def _ts_us(self, message_id: int) -> int:
        return self.published[message_id].ts_us

    # -- what is common -----------------------------------------------------------------------------------

    def _passes(self, sub: Subscription, published: Published) -> bool:
        return not sub.settings.filter or self._matches(sub.settings.filter, published.payload_hash)

    def unacked_kept_us(self, sub: Subscription) -> int:
        return max(sub.settings.kept_us, self._keeping[sub.topic_id].kept_us)


def _is_old(record: Record, sub: Subscription) -> bool:
    """Whether what became of the id may be forgotten: of a nack by itself, of an ack with its message."""
    ended_us = sub.nacked_us.get((record.message_id, record.generation), record.ts_us)
    if record.kind != NACK:
        ended_us = sub.finished_us.get(record.message_id, record.ts_us)
        if record.message_id in sub.unacked:
            return False
    return record.ts_us - ended_us > _REMEMBERED_US


_OF_SERVER: dict[int, Callable[[Replayer, Record, Any], None]] = {
    PUBLISH: Replayer._publish,
    CONFIG: Replayer._config,
    STREAM: Replayer._stream,
    START: Replayer._start,
    GAP: Replayer._gap,
}
_OF_SUBSCRIPTION: dict[int, Callable[[Replayer, Record, Subscription], None]] = {
    DELIVER: Replayer._deliver,
    EXTEND: Replayer._extend,
    NACK: Replayer._nack,
    ACK: Replayer._ack,
    EXPIRE: Replayer._expire,
    DEADLETTER: Replayer._deadletter,
    DROP: Replayer._drop,
    FILTERED: Replayer._filtered,
    RESET: Replayer._reset,
}
