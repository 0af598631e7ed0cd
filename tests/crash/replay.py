"""The journal replayed by somebody who knows nothing but its format and its meaning.

Independent of the server's code on purpose: the layout is written down again, and each rule is the plain
sentence that it is. Two things come out: what every subscription must be in (to be compared with what the
server restored), and every event that breaks a rule.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RECORD = struct.Struct("<qqbiiqiiqqbiqqiqq")
VERSION = 1

PUBLISH, DELIVER, EXTEND, NACK, ACK, EXPIRE = 1, 2, 3, 4, 5, 6
DROP, CONFIG, STREAM, START, GAP, RESET = 8, 10, 12, 13, 14, 15
WITH_DETAIL = {CONFIG, STREAM, START, GAP}
OK, NOOP, PERMANENT, TRANSIENT = 0, 1, 2, 3


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


@dataclass
class Subscription:
    sub_id: int
    topic_id: int
    name: str
    exactly_once: bool
    attached: bool = True
    deleted: bool = False
    unacked: set[int] = field(default_factory=set)
    leases: dict[int, Lease] = field(default_factory=dict)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)  # message_id: generation that acked it
    nacked: set[tuple[int, int]] = field(default_factory=set)
    deliveries: dict[tuple[int, int], Record] = field(default_factory=dict)
    last_generation: dict[int, int] = field(default_factory=dict)


class Replayer:
    """Feed it rows in order; `problems` are the events that break a rule."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.last_seq = 0
        self.events = 0
        self.published: dict[int, Published] = {}
        self.topics: dict[int, str] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.boots: list[tuple[int, bool]] = []
        self.gaps: list[tuple[int, int]] = []
        self._last_message_id = 0
        self._streams: dict[int, int] = {}  # stream_id: opened at
        self._clients: set[int] = {0}

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
                    self._problem(record, f"follows {self.last_seq}")
                self.last_seq = record.seq
                self.events += 1
                self._apply(record, details.get(record.seq))

    def _problem(self, record: Record, text: str) -> None:
        self.problems.append(f"seq {record.seq}, kind {record.kind}, message {record.message_id}: {text}")

    def _apply(self, record: Record, detail: str | None) -> None:
        if (detail is not None) != (record.kind in WITH_DETAIL):
            self._problem(record, f"detail is {detail}")
        if record.client_id not in self._clients and record.kind != STREAM:
            self._problem(record, f"client {record.client_id} was never introduced")
        if record.kind in _OF_SERVER:
            _OF_SERVER[record.kind](self, record, json.loads(detail) if detail else {})
            return
        subscription = self.subscriptions.get(record.sub_id)
        if subscription is None or subscription.deleted:
            self._problem(record, f"there is no subscription {record.sub_id}")
        elif record.topic_id != subscription.topic_id:
            self._problem(record, f"topic {record.topic_id} is not that of subscription {record.sub_id}")
        elif record.kind not in _OF_SUBSCRIPTION:
            self._problem(record, "unknown kind")
        else:
            _OF_SUBSCRIPTION[record.kind](self, record, subscription)

    # -- the server's events ------------------------------------------------------------------------------

    def _publish(self, record: Record, detail: Any) -> None:
        if record.message_id <= self._last_message_id:
            self._problem(record, f"the id follows {self._last_message_id}")
        self._last_message_id = record.message_id
        if record.topic_id not in self.topics:
            self._problem(record, f"there is no topic {record.topic_id}")
        if not record.ref_ts_us <= record.ts_us:
            self._problem(record, "the request arrived after it")
        self.published[record.message_id] = Published(
            record.topic_id, record.ts_us, record.okey, record.bytes, record.payload_hash
        )
        for subscription in self.subscriptions.values():
            if (
                subscription.topic_id == record.topic_id
                and subscription.attached
                and not subscription.deleted
            ):
                subscription.unacked.add(record.message_id)

    def _config(self, record: Record, detail: Any) -> None:
        change = detail["change"]
        if "topic" in detail:
            if change == "created" and record.topic_id in self.topics:
                self._problem(record, "the topic is there already")
            self.topics[record.topic_id] = detail["topic"]["name"]
            if change == "deleted":
                del self.topics[record.topic_id]
            return
        resource = detail["subscription"]
        if change == "created":
            if record.sub_id in self.subscriptions:
                self._problem(record, "the incarnation is not new")
            self.subscriptions[record.sub_id] = Subscription(
                record.sub_id, record.topic_id, resource["name"], False
            )
        subscription = self.subscriptions[record.sub_id]
        subscription.exactly_once = resource.get("enable_exactly_once_delivery", False)
        subscription.deleted = change == "deleted"
        if change == "detached":
            subscription.attached = False

    def _stream(self, record: Record, detail: Any) -> None:
        self._clients.add(record.client_id)
        if record.result == 0:
            if "client" not in detail:
                self._problem(record, f"detail is {detail}")
            if not detail.get("unary"):
                self._streams[record.stream_id] = record.ts_us
        elif (opened_us := self._streams.pop(record.stream_id, 0)) != record.ref_ts_us:
            self._problem(record, f"the stream was opened at {opened_us}, not at {record.ref_ts_us}")

    def _start(self, record: Record, detail: Any) -> None:
        if self.boots and detail["boot"] <= self.boots[-1][0]:
            self._problem(record, f"boot {detail['boot']} follows {self.boots[-1][0]}")
        self.boots.append((detail["boot"], detail["clean"]))
        self._streams.clear()

    def _gap(self, record: Record, detail: Any) -> None:
        self.gaps.append((record.aux, detail["last"]))

    # -- one subscription's events ------------------------------------------------------------------------

    def _deliver(self, record: Record, sub: Subscription) -> None:
        message_id = record.message_id
        published = self.published.get(message_id)
        lease = sub.leases.get(message_id)
        if published is None or message_id not in sub.unacked:
            self._problem(record, "delivered after its ack" if message_id in sub.acked else "it is not owed")
        elif (
            record.ref_ts_us != published.ts_us
            or record.bytes != published.bytes
            or record.okey != published.okey
        ):
            self._problem(record, f"ref_ts_us, bytes or okey differ from those of {published}")
        if lease is not None:
            self._problem(record, f"delivered inside the lease {lease}")
        if record.generation <= sub.last_generation.get(message_id, 0):
            self._problem(record, f"generation {record.generation} is not new")
        if record.attempt != sub.waiting.get(message_id, (0, 1))[1]:
            self._problem(record, f"attempt {record.attempt}, not {sub.waiting.get(message_id, (0, 1))[1]}")
        if record.deadline_us <= record.ts_us:
            self._problem(record, "the lease ends before it begins")
        sub.waiting.pop(message_id, None)
        sub.last_generation[message_id] = record.generation
        sub.leases[message_id] = Lease(record.generation, record.attempt, record.deadline_us)
        sub.deliveries[message_id, record.generation] = record

    def _refers(self, record: Record, sub: Subscription) -> None:
        """Common to all that says what became of a generation."""
        delivery = sub.deliveries.get((record.message_id, record.generation))
        if record.generation == 0:
            if (record.message_id, record.ref_ts_us, record.result) != (0, 0, PERMANENT) and sub.exactly_once:
                self._problem(record, "an unknown id, and yet more is known")
        elif delivery is None:
            self._problem(record, f"generation {record.generation} was never delivered")
        elif (record.ref_ts_us, record.attempt, record.client_id) != (
            delivery.ts_us,
            delivery.attempt,
            delivery.client_id,
        ):
            self._problem(record, "ref_ts_us, attempt or client differ from those of the delivery")

    def _current(self, record: Record, sub: Subscription) -> Lease | None:
        """The lease that the event speaks of, if that is the newest."""
        lease = sub.leases.get(record.message_id)
        return lease if lease is not None and lease.generation == record.generation else None

    def _judge(self, record: Record, sub: Subscription) -> Lease | None:
        """Whether the answer to a client was right; returns the lease if the operation took effect on it."""
        self._refers(record, sub)
        lease = self._current(record, sub)
        running = lease is not None and record.ts_us <= lease.deadline_us
        if record.result == OK and not running and sub.exactly_once:
            self._problem(record, f"accepted, and the lease is {lease}")
        if record.result == PERMANENT and lease is not None and record.ts_us < lease.deadline_us:
            self._problem(record, f"refused inside the lease {lease}")
        if record.result == PERMANENT and not sub.exactly_once:
            self._problem(record, "refused without exactly-once")
        if record.result == NOOP and sub.exactly_once:
            acked = sub.acked.get(record.message_id) == record.generation
            nacked = (record.message_id, record.generation) in sub.nacked
            if not (nacked if record.kind == NACK else acked):
                self._problem(record, "answered as done, and it is not")
        if record.result not in (OK, NOOP, PERMANENT):
            self._problem(record, f"result {record.result}")
        return lease if record.result == OK else None

    def _extend(self, record: Record, sub: Subscription) -> None:
        lease = self._judge(record, sub)
        if lease is not None:
            if record.deadline_us != record.ts_us + record.aux * 1_000_000:
                self._problem(record, f"asked for {record.aux} s, got {record.deadline_us - record.ts_us} us")
            sub.leases[record.message_id] = lease._replace(deadline_us=record.deadline_us)
        elif record.deadline_us:
            self._problem(record, "a deadline without a lease")

    def _nack(self, record: Record, sub: Subscription) -> None:
        if self._judge(record, sub) is not None:
            self._return(record, sub, 1)
            sub.nacked.add((record.message_id, record.generation))

    def _ack(self, record: Record, sub: Subscription) -> None:
        self._judge(record, sub)
        if record.result == OK:
            sub.leases.pop(record.message_id, None)
            sub.waiting.pop(record.message_id, None)
            sub.unacked.discard(record.message_id)
            sub.acked[record.message_id] = record.generation

    def _expire(self, record: Record, sub: Subscription) -> None:
        self._refers(record, sub)
        lease = self._current(record, sub)
        if lease is None or lease.deadline_us != record.deadline_us:
            self._problem(record, f"the lease is {lease}")
        elif record.ts_us < lease.deadline_us:
            self._problem(record, f"{lease.deadline_us - record.ts_us} us early")
        if lease is not None:
            self._return(record, sub, 1)

    def _reset(self, record: Record, sub: Subscription) -> None:
        self._refers(record, sub)
        lease = self._current(record, sub)
        if lease is None or lease.deadline_us != record.deadline_us:
            self._problem(record, f"the lease is {lease}")
        else:
            self._return(record, sub, 0)

    def _return(self, record: Record, sub: Subscription, attempts: int) -> None:
        del sub.leases[record.message_id]
        sub.waiting[record.message_id] = (record.generation, record.attempt + attempts)

    def _drop(self, record: Record, sub: Subscription) -> None:
        if record.message_id:
            self._problem(record, "nothing drops single messages yet")
        gone = {m for m in sub.unacked if self.published[m].ts_us < record.aux and m not in sub.leases}
        sub.unacked -= gone
        for message_id in gone:
            sub.waiting.pop(message_id, None)


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
    RESET: Replayer._reset,
    DROP: Replayer._drop,
}
