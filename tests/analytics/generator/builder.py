"""Journals of a few events, written by hand: one call is one event.

    b = Builder()
    orders = b.topic("orders")                                 # CONFIG created; the topic's number
    s = b.subscription("late acks", topic=orders)              # CONFIG created; the subscription's number
    m = b.publish(orders, at=1)                                # the message's number
    b.deliver(s, m, at=2)                                      # generation 1, attempt 1, a lease of 10 s
    b.ack(s, m, at=3)                                          # OK, of the newest generation
    seq = b.deliver(s, m, at=4)                                # which no server may do: the event's seq
    b.write(journal)                                           # segments; again: what was added since
    b.backlog(journal, open=[])                                # what is open as of the last event

`at` is in seconds from the start (13:00 UTC), or from `begin()`, which moves the origin to the newest event:
each scenario of one journal begins with it, counts from 0, and time never goes backwards over the journal.
Without `at` an event happens at the time of the one before; an EXPIRE at the end of its lease.

What an event says of others follows from them: generation, attempt, deadline_us, ref_ts_us, bytes, okey, and
the client and stream of the delivery. Every column can be replaced: `b.ack(s, m, at=9, ref_ts_us=5)`. Events
about messages return their seq, but publish returns the message's number. `generation=` of an ack, nack or
extend names an older delivery. `result=` is a `layout.Result`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from analytics.layout import COLUMNS, Kind, Result
from tests.analytics.generator import segments

SECOND_US = 1_000_000
START_US = 1_769_864_400 * SECOND_US  # 2026-01-31 13:00 UTC
SEGMENT_EVENTS = 1_000_000
LEASE_S = 10.0

_NUMBERS = tuple(column.name for column in COLUMNS if column.name != "detail")


def hash64(data: bytes) -> int:
    """The journal's 64-bit hash."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def key_hash(key: str) -> int:
    """`okey` of an ordering key; 0 without one."""
    return (hash64(key.encode()) or 1) if key else 0


def payload_hash(data: bytes, attributes: dict[str, str] | None = None) -> int:
    """`payload_hash` of a message."""
    parts = [len(data).to_bytes(8, "little"), data]
    for pair in sorted((attributes or {}).items()):
        parts += [part for text in pair for part in (len(text.encode()).to_bytes(4, "little"), text.encode())]
    return hash64(b"".join(parts))


@dataclass
class _Delivery:
    generation: int
    attempt: int
    ts_us: int
    deadline_us: int
    client_id: int
    stream_id: int


@dataclass
class _Message:
    """One message on one subscription, as far as defaults depend on it."""

    deliveries: dict[int, _Delivery] = field(default_factory=dict)
    newest: int = 0
    attempt: int = 1  # of the next delivery
    finished: bool = False


@dataclass
class _Subscription:
    topic_id: int
    resource: dict[str, Any]
    created_us: int
    messages: dict[int, _Message] = field(default_factory=dict)

    @property
    def lease_us(self) -> int:
        return int(self.resource["ack_deadline_seconds"] * SECOND_US)


class Builder:
    """See the module. `server` is the database that the journal says it is of."""

    start_us = START_US

    def __init__(self, server: str = segments.SERVER, start_us: int = START_US, first_seq: int = 1) -> None:
        self.events: list[dict[str, int]] = []
        self.details: dict[int, str] = {}
        self.start_us = start_us
        self.server = server
        self._zero_us = start_us
        self._now_us = start_us
        self._seq = first_seq - 1
        self._message_id = 0
        self._topics: dict[int, dict[str, Any]] = {}
        self._subscriptions: dict[int, _Subscription] = {}
        self._published: dict[int, dict[str, int]] = {}
        self._streams: dict[int, dict[str, int]] = {}
        self._clients: dict[str, int] = {}
        self._calls = 0
        self._boot = 0
        self._lost: set[int] = set()
        self._written = 0
        self.start()
        self.default_client = self.client("builder")

    # -- time -

    def begin(self) -> None:
        """A new scenario: from now on `at` counts from the newest event."""
        self._zero_us = self._now_us

    def us(self, at: float) -> int:
        """The journal's time of a second."""
        return self._zero_us + round(at * SECOND_US)

    @property
    def last_seq(self) -> int:
        return self._seq

    # -- the server -

    def start(self, at: float | None = None, *, clean: bool = True, version: str = "0.1.0") -> int:
        """The server started; `clean`: the one before had said goodbye."""
        self._boot += 1
        return self.add(Kind.START, at, detail={"boot": self._boot, "version": version, "clean": clean})

    def gap(self, first: int, last: int, at: float | None = None) -> int:
        """Events `first` to `last` are lost, and the journal says so: they are not written."""
        self.lose(first, last)
        return self.add(Kind.GAP, at, aux=first, detail={"last": last})

    def lose(self, first: int, last: int) -> None:
        """Events `first` to `last` are not written, and nothing says so. (They must not be written yet.)"""
        self._lost.update(range(first, last + 1))

    def client(self, name: str, at: float | None = None) -> int:
        """A unary caller; returns its number. The same name has the same number."""
        if name not in self._clients:
            self._clients[name] = len(self._clients) + 1
            self._calls += 1
            detail = {"client": name, "unary": True}
            self.add(Kind.STREAM, at, client_id=self._clients[name], stream_id=self._calls, detail=detail)
        return self._clients[name]

    # -- resources -

    def topic(self, name: str, at: float | None = None, **resource: Any) -> int:
        """Create a topic; `resource` are more fields of it. Returns its number."""
        topic_id = len(self._topics) + 1
        self._topics[topic_id] = {"name": _full("topics", name), **resource}
        self.config(topic_id, at=at, change="created")
        return topic_id

    def subscription(
        self,
        name: str,
        topic: int = 0,
        at: float | None = None,
        *,
        exactly_once: bool = True,
        ordered: bool = False,
        ack_deadline_s: int = int(LEASE_S),
        retain_acked: bool = False,
        retention_s: int = 604_800,
        filter: str = "",
        dead_letter: tuple[int, int] | None = None,
        **resource: Any,
    ) -> int:
        """Create a subscription; returns its number. `topic` 0: a new topic of the same name, see `topic_of`.

        `dead_letter` is (topic number, max_delivery_attempts); `resource` are more fields of the resource.
        """
        topic_id = topic or self.topic(name, at)
        sub_id = len(self._subscriptions) + 1
        whole: dict[str, Any] = {
            "name": _full("subscriptions", name),
            "topic": self._topics[topic_id]["name"],
            "ack_deadline_seconds": ack_deadline_s,
            "message_retention_duration": f"{retention_s}s",
        }
        if retain_acked:
            whole["retain_acked_messages"] = True
        if exactly_once:
            whole["enable_exactly_once_delivery"] = True
        if ordered:
            whole["enable_message_ordering"] = True
        if filter:
            whole["filter"] = filter
        if dead_letter is not None:
            whole["dead_letter_policy"] = {
                "dead_letter_topic": self._topics[dead_letter[0]]["name"],
                "max_delivery_attempts": dead_letter[1],
            }
        # The times of what is created are those of `_now_us`, which `add` moves on; so first the event.
        created_us = self._now_us if at is None else self.us(at)
        self._subscriptions[sub_id] = _Subscription(topic_id, {**whole, **resource}, created_us)
        self.config(sub_id=sub_id, at=at, change="created")
        return sub_id

    def topic_of(self, sub: int) -> int:
        return self._subscriptions[sub].topic_id

    def config(
        self,
        topic_id: int = 0,
        *,
        sub_id: int = 0,
        at: float | None = None,
        change: str = "updated",
        checkpoint: bool = False,
        **fields: Any,
    ) -> int:
        """A topic or a subscription was changed: `fields` of its resource are new (None: no more)."""
        if sub_id:
            topic_id = topic_id or self._subscriptions[sub_id].topic_id
            what, resource = "subscription", self._subscriptions[sub_id].resource
        else:
            what, resource = "topic", self._topics[topic_id]
        resource |= fields
        for name in [name for name, value in fields.items() if value is None]:
            del resource[name]
        detail = {"change": change, what: resource} | ({"checkpoint": True} if checkpoint else {})
        return self.add(Kind.CONFIG, at, topic_id=topic_id, sub_id=sub_id, detail=detail)

    def checkpoint(self, at: float | None = None) -> None:
        """Repeat every resource, as the first events of an hour do."""
        for topic_id in self._topics:
            self.config(topic_id, at=at, change="created", checkpoint=True)
        for sub_id in self._subscriptions:
            self.config(sub_id=sub_id, at=at, change="created", checkpoint=True)

    def detach(self, sub: int, at: float | None = None) -> None:
        """Detach: everything is dropped. What is leased has to be `reset` by the caller before."""
        seq = self.bulk_drop(sub, at=at)
        self.events[-1]["aux"] = self.events[-1]["ts_us"] + 1
        assert self.events[-1]["seq"] == seq
        self.config(sub_id=sub, change="detached", detached=True)

    def delete(self, sub: int, at: float | None = None) -> int:
        return self.config(sub_id=sub, at=at, change="deleted")

    def stream(
        self,
        sub: int,
        client: str = "builder",
        at: float | None = None,
        *,
        max_outstanding_messages: int = 1000,
        max_outstanding_bytes: int = 100_000_000,
        ack_deadline_s: int = int(LEASE_S),
    ) -> int:
        """Open a streaming pull, which introduces its client; its number is for `deliver(..., stream=)`."""
        client_id = self._clients.setdefault(client, len(self._clients) + 1)
        self._calls += 1
        about = {
            "topic_id": self._subscriptions[sub].topic_id,
            "sub_id": sub,
            "client_id": client_id,
            "stream_id": self._calls,
        }
        detail = {
            "client": client,
            "max_outstanding_messages": max_outstanding_messages,
            "max_outstanding_bytes": max_outstanding_bytes,
            "stream_ack_deadline_seconds": ack_deadline_s,
        }
        self.add(Kind.STREAM, at, detail=detail, **about)
        self._streams[self._calls] = {**about, "ts_us": self._now_us}
        return self._calls

    def close(self, stream: int, at: float | None = None) -> int:
        opened = dict(self._streams[stream])
        opened["ref_ts_us"] = opened.pop("ts_us")
        return self.add(Kind.STREAM, at, result=1, detail={}, **opened)

    # -- messages -

    def publish(
        self, topic: int, at: float | None = None, *, key: str = "", payload: str | None = None, **fields: int
    ) -> int:
        """One message; returns its number. Without `payload` each has its own. The request is 1 ms older."""
        self._message_id = fields.pop("message_id", self._message_id + 1)
        message_id = self._message_id
        now_us = self._now_us if at is None else self.us(at)
        data = f"message {message_id}" if payload is None else payload
        given = {
            "topic_id": topic,
            "message_id": message_id,
            "ref_ts_us": now_us - 1000,
            "client_id": self.default_client,
            "okey": key_hash(key),
            "bytes": 100,
            "payload_hash": payload_hash(data.encode()),
            **fields,
        }
        self.add(Kind.PUBLISH, at, **given)
        self._published[message_id] = self.events[-1]
        return message_id

    def deliver(
        self,
        sub: int,
        message: int,
        at: float | None = None,
        *,
        stream: int = 0,
        lease_s: float | None = None,
        **fields: int,
    ) -> int:
        """The next generation, leased for `lease_s` (the subscription's ack deadline)."""
        subscription, one = self._subscriptions[sub], self._message(sub, message)
        published = self._published[message]
        now_us = self._now_us if at is None else self.us(at)
        lease_us = subscription.lease_us if lease_s is None else round(lease_s * SECOND_US)
        client_id = self._streams[stream]["client_id"] if stream else self.default_client
        given = {
            "generation": one.newest + 1,
            "attempt": one.attempt,
            "deadline_us": now_us + lease_us,
            "ref_ts_us": published["ts_us"],
            "client_id": client_id,
            "stream_id": stream,
            "okey": published["okey"],
            "bytes": published["bytes"],
            **fields,
        }
        one.newest, one.attempt = given["generation"], given["attempt"]
        one.deliveries[one.newest] = _Delivery(
            one.newest, one.attempt, now_us, given["deadline_us"], given["client_id"], given["stream_id"]
        )
        return self._about(Kind.DELIVER, sub, message, at, **given)

    def ack(
        self, sub: int, message: int, at: float | None = None, *, result: int = Result.OK, **fields: int
    ) -> int:
        if result == Result.OK:
            self._message(sub, message).finished = True
        return self._ask(Kind.ACK, sub, message, at, result=result, **fields)

    def nack(
        self, sub: int, message: int, at: float | None = None, *, result: int = Result.OK, **fields: int
    ) -> int:
        seq = self._ask(Kind.NACK, sub, message, at, result=result, **fields)
        if result == Result.OK:
            self._message(sub, message).attempt = self.events[-1]["attempt"] + 1
        return seq

    def extend(
        self,
        sub: int,
        message: int,
        at: float | None = None,
        *,
        seconds: int = int(LEASE_S),
        result: int = Result.OK,
        **fields: int,
    ) -> int:
        """Move the end of the lease to `seconds` from now, if it is accepted."""
        if result == Result.OK:
            now_us = self._now_us if at is None else self.us(at)
            fields.setdefault("deadline_us", now_us + seconds * SECOND_US)
            one = self._message(sub, message)
            one.deliveries[fields.get("generation", one.newest)].deadline_us = fields["deadline_us"]
        return self._ask(Kind.EXTEND, sub, message, at, result=result, aux=seconds, **fields)

    def expire(self, sub: int, message: int, at: float | None = None, **fields: int) -> int:
        """The lease ran out; without `at`: at its end, or at the newest event if that is later."""
        one = self._message(sub, message)
        deadline_us = one.deliveries[one.newest].deadline_us
        if at is None:
            at = (max(deadline_us, self._now_us) - self._zero_us) / SECOND_US
        one.attempt = one.deliveries[one.newest].attempt + 1
        return self._void(Kind.EXPIRE, sub, message, at, **fields)

    def reset(self, sub: int, message: int, at: float | None = None, **fields: int) -> int:
        """The lease is void before its end; the redelivery is not counted as an attempt."""
        return self._void(Kind.RESET, sub, message, at, **fields)

    def filtered(self, sub: int, message: int, at: float | None = None, **fields: int) -> int:
        given = {"okey": self._published[message]["okey"], **self._publish_ref(message), **fields}
        return self._about(Kind.FILTERED, sub, message, at, **given)

    def drop(self, sub: int, message: int, at: float | None = None, **fields: int) -> int:
        """One message leaves by retention."""
        self._message(sub, message).finished = True
        return self._about(Kind.DROP, sub, message, at, **{**self._publish_ref(message), **fields})

    def deadletter(
        self, sub: int, message: int, at: float | None = None, *, topic: int, **fields: int
    ) -> int:
        """The message leaves for `topic`, and its copy is published there; returns the copy's number."""
        one, published = self._message(sub, message), self._published[message]
        one.finished = True
        given = {
            "topic_id": topic,
            "generation": one.newest,
            "attempt": max(one.attempt - 1, 0),
            "okey": published["okey"],
            "aux": self._message_id + 1,
            **self._publish_ref(message),
            **fields,
        }
        self._about(Kind.DEADLETTER, sub, message, at, **given)
        copy: dict[str, Any] = {name: published[name] for name in ("bytes", "okey", "payload_hash")}
        return self.publish(topic, at, message_id=given["aux"], ref_ts_us=self._now_us, client_id=0, **copy)

    def bulk_drop(self, sub: int, before: float | None = None, at: float | None = None) -> int:
        """All that was published before second `before` (default: the moment) leaves, but what is leased."""
        now_us = self._now_us if at is None else self.us(at)
        cutoff_us = now_us if before is None else self.us(before)
        topic_id = self._subscriptions[sub].topic_id
        return self.add(Kind.DROP, at, topic_id=topic_id, sub_id=sub, aux=cutoff_us)

    # -- seeks -

    def seek(
        self,
        sub: int,
        to: float,
        at: float | None = None,
        *,
        kept_from: float | None = None,
        kept_after_id: int | None = 0,
    ) -> int:
        """To the time of second `to`. What was published from second `kept_from` on is kept, if given.

        Without it, everything since the subscription's creation is kept if it retains acked messages, else
        nothing. `kept_after_id` None leaves that field out.
        """
        subscription = self._subscriptions[sub]
        retains = bool(subscription.resource.get("retain_acked_messages")) or kept_from is not None
        now_us = self._now_us if at is None else self.us(at)
        kept_from_us = now_us
        if retains:
            kept_from_us = subscription.created_us if kept_from is None else self.us(kept_from)
        detail: dict[str, Any] = {"retain_acked": retains, "kept_from_us": kept_from_us}
        if kept_after_id is not None:
            detail["kept_after_id"] = kept_after_id
        target_us = self.us(to)
        for message_id, one in subscription.messages.items():
            published_us = self._published[message_id]["ts_us"]
            is_kept = retains and published_us >= kept_from_us and message_id > (kept_after_id or 0)
            if one.finished and published_us >= target_us and is_kept:
                one.finished, one.attempt = False, 1
        return self.add(
            Kind.SEEK, at, topic_id=subscription.topic_id, sub_id=sub, aux=target_us, detail=detail
        )

    def snapshot(self, sub: int, name: str, at: float | None = None) -> int:
        """Take a snapshot; returns the seq to give to `seek_snapshot`."""
        topic_id = self._subscriptions[sub].topic_id
        resource = {"name": _full("snapshots", name), "topic": self._topics[topic_id]["name"]}
        detail = {"change": "created", "snapshot": resource}
        return self.add(Kind.CONFIG, at, topic_id=topic_id, sub_id=sub, detail=detail)

    def seek_snapshot(self, sub: int, snapshot: int, at: float | None = None) -> int:
        """To the snapshot that event `snapshot` took. All that was finished counts attempts from 1 again."""
        taken = next(event for event in self.events if event["seq"] == snapshot)
        name = json.loads(self.details[snapshot])["snapshot"]["name"]
        subscription = self._subscriptions[sub]
        for one in subscription.messages.values():
            if one.finished:
                one.finished, one.attempt = False, 1
        retains = bool(subscription.resource.get("retain_acked_messages"))
        detail = {
            "snapshot": name,
            "snapshot_seq": snapshot,
            "retain_acked": retains,
            "kept_from_us": taken["ts_us"],
        }
        return self.add(
            Kind.SEEK, at, topic_id=subscription.topic_id, sub_id=sub, aux=taken["ts_us"], detail=detail
        )

    # -- events -

    def add(self, kind: int, at: float | None = None, *, detail: Any = None, **fields: int) -> int:
        """Any event: what is not named is 0. Returns its seq."""
        unknown = set(fields) - set(_NUMBERS)
        if unknown:
            raise TypeError(f"There are no columns {sorted(unknown)}.")
        ts_us = fields.get("ts_us", self._now_us if at is None else self.us(at))
        self._seq = fields.get("seq", self._seq + 1)
        event = dict.fromkeys(_NUMBERS, 0) | fields | {"seq": self._seq, "ts_us": ts_us, "kind": int(kind)}
        if detail is not None:
            self.details[self._seq] = json.dumps(detail)
        self.events.append(event)
        self._now_us = max(self._now_us, ts_us)
        return self._seq

    def _ask(self, kind: Kind, sub: int, message: int, at: float | None, **fields: int) -> int:
        """What a client asked for, of a delivery that it may have had long ago."""
        one = self._message(sub, message)
        generation = fields.get("generation", one.newest)
        given: dict[str, int] = {}
        if (of := one.deliveries.get(generation)) is not None:
            given = {
                "generation": generation,
                "attempt": of.attempt,
                "ref_ts_us": of.ts_us,
                "client_id": of.client_id,
                "stream_id": of.stream_id,
            }
        # An ack id does not carry the key, so answers about a lease that is over do not have it.
        if fields.get("result", Result.OK) == Result.OK:
            given["okey"] = self._published[message]["okey"]
        return self._about(kind, sub, message, at, **{**given, **fields})

    def _void(self, kind: Kind, sub: int, message: int, at: float | None, **fields: int) -> int:
        one = self._message(sub, message)
        of = one.deliveries[fields.get("generation", one.newest)]
        given = {
            "generation": of.generation,
            "attempt": of.attempt,
            "deadline_us": of.deadline_us,
            "ref_ts_us": of.ts_us,
            "client_id": of.client_id,
            "okey": self._published[message]["okey"],
            **fields,
        }
        return self._about(kind, sub, message, at, **given)

    def _about(self, kind: Kind, sub: int, message: int, at: float | None, **fields: int) -> int:
        given = {
            "topic_id": self._subscriptions[sub].topic_id,
            "sub_id": sub,
            "message_id": message,
            **fields,
        }
        return self.add(kind, at, **given)

    def _publish_ref(self, message: int) -> dict[str, int]:
        return {"ref_ts_us": self._published[message]["ts_us"]}

    def _message(self, sub: int, message: int) -> _Message:
        return self._subscriptions[sub].messages.setdefault(message, _Message())

    # -- files -

    def columns(self, events: Iterable[dict[str, int]] | None = None) -> dict[str, np.ndarray]:
        """Events (default: all) as arrays of their columns, without the text."""
        rows = self.events if events is None else list(events)
        types = {column.name: column.type for column in COLUMNS}
        return {name: np.array([row[name] for row in rows], dtype=types[name]) for name in _NUMBERS}

    def write(self, journal: Path, segment_events: int = SEGMENT_EVENTS) -> list[Path]:
        """Write what was added since the last call as segments, cut at hours and at what is lost."""
        rows = [row for row in self.events[self._written :] if row["seq"] not in self._lost]
        self._written = len(self.events)
        paths = []
        while rows:
            hour, n = _hour(rows[0]), 1
            while (
                n < min(len(rows), segment_events)
                and _hour(rows[n]) <= hour
                and rows[n]["seq"] == rows[n - 1]["seq"] + 1
            ):
                n += 1
            part, rows = rows[:n], rows[n:]
            details = {row["seq"]: self.details[row["seq"]] for row in part if row["seq"] in self.details}
            about = segments.metadata(self.server)
            paths.append(segments.write_segment(Path(journal), self.columns(part), details, about))
        return paths

    def backlog(self, journal: Path, open: Iterable[tuple[int, int]], seq: int | None = None) -> Path:
        """Write the backlog file: `open` are (subscription, message), as of `seq` (default: all events)."""
        pairs = sorted(open)
        return segments.write_backlog(
            Path(journal),
            self.last_seq if seq is None else seq,
            [sub for sub, _ in pairs],
            [message for _, message in pairs],
            segments.metadata(self.server),
        )


def _hour(row: dict[str, int]) -> int:
    return row["ts_us"] // segments.HOUR_US


def _full(collection: str, name: str) -> str:
    return name if "/" in name else f"projects/p/{collection}/{name}"
