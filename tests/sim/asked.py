"""What clients asked and were answered, against the journal: each answer is in it, and nothing else is.

A request may take effect once, and only after it was sent. An answer that says what became of it has its
record by then, made between request and answer, and no record stands for two answers. So a server cannot
answer before its commit, answer what it did not decide, or do what nobody asked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import json_format

from pubsubd.wire import pb
from tests.crash.hashes import key_hash, payload_hash
from tests.crash.log import Answer
from tests.crash.replay import (
    ACK,
    EXTEND,
    NACK,
    NOOP,
    OK,
    PERMANENT,
    SECOND_US,
    TRANSIENT,
    Record,
    Replayer,
)
from tests.crash.told import Named
from tests.sim.broken import Broken

_RESULTS = {Answer.OK: (OK, NOOP), Answer.PERMANENT: (PERMANENT,), Answer.UNORDERED: (TRANSIENT,)}
_KIND_NAMES = {ACK: "ack", NACK: "nack", EXTEND: "extension"}


class Content(NamedTuple):
    """What a Publish carries."""

    topic: str
    hashes: tuple[int, ...]
    okey: int

    @classmethod
    def of(cls, topic: str, messages: Sequence[pb.PubsubMessage]) -> Content:
        hashes = tuple(payload_hash(one.data, one.attributes) for one in messages)
        return cls(topic, hashes, key_hash(messages[0].ordering_key))


class Original(NamedTuple):
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str


class Publishes:
    def __init__(self, replayer: Replayer) -> None:
        self.originals: dict[int, Original] = {}  # by payload_hash
        self._replayer = replayer
        self._beginning: dict[tuple[int, str], Content] = {}  # by the first hash and the topic
        self._sent: dict[Content, list[int]] = defaultdict(list)  # when
        self._stored: dict[Content, list[tuple[int, int]]] = defaultdict(list)  # first id, when
        self._answered: set[int] = set()
        self._row: list[tuple[Record, str]] = []  # with the name that the topic has then
        self._copies: set[int] = set()

    def sending(self, topic: str, messages: Sequence[pb.PubsubMessage], now_us: int) -> None:
        content = Content.of(topic, messages)
        for one, hashed in zip(messages, content.hashes, strict=True):
            self.originals[hashed] = Original(one.data, dict(one.attributes), one.ordering_key)
        self._beginning[content.hashes[0], topic] = content
        self._sent[content].append(now_us)

    def answered(
        self, call_us: int, now_us: int, topic: str, messages: Sequence[pb.PubsubMessage], ids: Sequence[str]
    ) -> None:
        content = Content.of(topic, messages)
        first_id = int(ids[0])
        if [int(one) for one in ids] != list(range(first_id, first_id + len(messages))):
            raise Broken("I1", f"{len(messages)} messages got the ids {ids}")
        at_us = dict(self._stored[content]).get(first_id)
        if at_us is None or not call_us <= at_us <= now_us:
            raise Broken("I1", f"answered {ids}; the journal has this content at {self._stored[content]}")
        if first_id in self._answered:
            raise Broken("I1", f"the ids {ids} were answered twice")
        self._answered.add(first_id)

    def published(self, record: Record) -> None:
        self._row.append((record, self._replayer.topics.get(record.topic_id, "")))

    def copied(self, record: Record) -> None:
        """A dead letter was published."""
        self._copies.add(record.aux)

    def end_row(self) -> None:
        """Each request is in one commit, whole, and was sent."""
        row = [one for one in self._row if one[0].message_id not in self._copies]
        at = 0
        while at < len(row):
            record, topic = row[at]
            content = self._beginning.get((record.payload_hash, topic))
            if content is None:
                raise Broken("I1", f"message {record.message_id} on {topic} begins no request")
            of_request = [one for one, _ in row[at : at + len(content.hashes)]]
            if (
                tuple(one.payload_hash for one in of_request) != content.hashes
                or any(one.okey != content.okey for one in of_request)
                or of_request[-1].message_id - record.message_id != len(of_request) - 1
            ):
                raise Broken("I1", f"message {record.message_id} and {of_request[1:]} are not {content}")
            stored, sent = self._stored[content], self._sent[content]
            stored.append((record.message_id, record.ts_us))
            if len(stored) > len(sent) or sent[len(stored) - 1] > record.ts_us:
                raise Broken("I1", f"message {record.message_id}: sent at {sent}, stored at {stored}")
            at += len(of_request)
        self._row.clear()
        self._copies.clear()


@dataclass
class _Told:
    """One thing that can be asked for: when it was, and the records of it."""

    sent_us: list[int] = field(default_factory=list)
    records: int = 0
    unclaimed: list[Record] = field(default_factory=list)


class Asked:
    """Requests of one sort, by what they ask for."""

    def __init__(self, invariant: str) -> None:
        self._invariant = invariant
        self._told: dict[Hashable, _Told] = defaultdict(_Told)

    def asking(self, what: Hashable, now_us: int) -> None:
        self._told[what].sent_us.append(now_us)

    def recorded(self, what: Hashable, record: Record) -> None:
        told = self._told[what]
        told.records += 1
        told.unclaimed.append(record)
        # The nth record is of the nth request or of a later one; of which does not matter here.
        if told.records > len(told.sent_us) or told.sent_us[told.records - 1] > record.ts_us:
            raise Broken(self._invariant, f"nobody asked for it: {what}, asked {told.sent_us}, {record}")

    def done(self, what: Hashable, sent_us: int, now_us: int, right: Callable[[Record], bool]) -> bool:
        """It was answered as done: take the record of it, if there is one."""
        told = self._told[what]
        for at, record in enumerate(told.unclaimed):
            if sent_us <= record.ts_us <= now_us and right(record):
                del told.unclaimed[at]
                return True
        return False

    def refused(self, what: Hashable, sent_us: int) -> None:
        """It was refused for sure: nothing came of it, and nothing may."""
        told = self._told[what]
        told.sent_us.remove(sent_us)
        if told.records > len(told.sent_us):
            raise Broken(self._invariant, f"it was refused, and took effect: {what}, {told.unclaimed}")

    def records(self, what: Hashable) -> list[tuple[int, int]]:
        """For messages: result and time of what no answer was matched with."""
        return [(record.result, record.ts_us) for record in self._told[what].unclaimed]


class Operations:
    """Acks, nacks and extensions; `named` reads ack ids."""

    def __init__(self, replayer: Replayer, named: Callable[[str], Named | None]) -> None:
        self.counts: Counter[str] = Counter()
        self._replayer = replayer
        self._named = named
        self._asked = Asked("I5")
        self._unknown: dict[tuple[int, int], list[int]] = defaultdict(list)  # sub_id, kind: when

    def asking(
        self, kind: str, subscription: str, ack_ids: Sequence[str], seconds: int, now_us: int
    ) -> list[Named]:
        """What they name, if it is of that subscription."""
        found: list[Named] = []
        for ack_id in dict.fromkeys(ack_ids):
            named = self._own(ack_id, subscription)
            if named is not None:
                self._asked.asking((_kind_of(kind, seconds), seconds, named), now_us)
                found.append(named)
        return found

    def recorded(self, record: Record) -> None:
        if record.generation:
            named = Named(record.sub_id, record.message_id, record.generation)
            self._asked.recorded((record.kind, record.aux, named), record)
        else:
            self._unknown[record.sub_id, record.kind].append(record.ts_us)

    def answered(
        self,
        kind: str,
        subscription: str,
        ack_ids: Sequence[str],
        seconds: int,
        sent_us: int,
        now_us: int,
        results: Mapping[str, Answer],
    ) -> None:
        kind_id = _kind_of(kind, seconds)
        if results and results.keys() != set(ack_ids):
            raise Broken("I5", f"asked about {list(ack_ids)}, answered {results}")
        for ack_id in dict.fromkeys(ack_ids):
            named = self._own(ack_id, subscription)
            what = (kind_id, seconds, named)
            result = results.get(ack_id)
            if result is None:
                if named is not None:
                    self._asked.refused(what, sent_us)
                continue
            self.counts[f"{_KIND_NAMES[kind_id]} {result.value}"] += 1
            if result is Answer.UNKNOWN:
                continue
            expected = _RESULTS[result]
            if named is None:
                if result is not Answer.PERMANENT:
                    raise Broken("I4", f"{ack_id} is not of {subscription}, and was answered {result.value}")
            elif not self._asked.done(
                what, sent_us, now_us, lambda record, expected=expected: record.result in expected
            ) and not (result is Answer.PERMANENT and self._was_unknown(named, kind_id, sent_us, now_us)):
                raise Broken(
                    "I5",
                    f"{_KIND_NAMES[kind_id]} of {named} was answered {result.value}, sent at {sent_us}; "
                    f"the journal has {self._asked.records(what)}",
                )

    def _was_unknown(self, named: Named, kind: int, sent_us: int, now_us: int) -> bool:
        """Its subscription has been deleted, and perhaps created anew; or it names nothing that is known."""
        if self._replayer.subscriptions[named.sub_id].deleted:
            return True
        return any(sent_us <= at_us <= now_us for at_us in self._unknown[named.sub_id, kind])

    def _own(self, ack_id: str, subscription: str) -> Named | None:
        named = self._named(ack_id)
        if named is None:
            return None
        sub = self._replayer.subscriptions.get(named.sub_id)
        return named if sub is not None and sub.name == subscription else None


def _kind_of(kind: str, seconds: int) -> int:
    return ACK if kind == "ack" else EXTEND if seconds else NACK


# How each call names what it changes: the kind of resource, the change, and where its name is.
_CHANGES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "CreateTopic": ("topic", "created", lambda r: r),
    "UpdateTopic": ("topic", "updated", lambda r: r.topic),
    "DeleteTopic": ("topic", "deleted", lambda r: r.topic),
    "CreateSubscription": ("subscription", "created", lambda r: r),
    "UpdateSubscription": ("subscription", "updated", lambda r: r.subscription),
    "DeleteSubscription": ("subscription", "deleted", lambda r: r.subscription),
    "DetachSubscription": ("subscription", "detached", lambda r: r.subscription),
    "CreateSnapshot": ("snapshot", "created", lambda r: r),
    "UpdateSnapshot": ("snapshot", "updated", lambda r: r.snapshot),
    "DeleteSnapshot": ("snapshot", "deleted", lambda r: r.snapshot),
}


class Changes:
    """Changes of resources, and seeks."""

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}  # by kind and name, as last changed
        self._asked = Asked("I10")

    def configuring(self, call: str, request: Any, now_us: int) -> None:
        self._asked.asking(_what(call, request), now_us)

    def configured(self, call: str, request: Any, sent_us: int, now_us: int, ok: bool | None) -> None:
        what = _what(call, request)
        if ok is False:
            self._asked.refused(what, sent_us)
        elif ok and not self._asked.done(what, sent_us, now_us, lambda record: True):
            raise Broken("I10", f"{call} was answered OK and is not in the journal: {what}")

    def changed(self, record: Record, told: Mapping[str, Any]) -> None:
        for kind in ("topic", "subscription", "snapshot"):
            if (resource := told.get(kind)) is not None:
                if told.get("checkpoint"):
                    self._repeated(kind, resource)
                    continue
                change, name = told["change"], resource["name"]
                if change in ("deleted", "expired"):
                    self.resources.pop((kind, name), None)
                else:
                    self.resources[kind, name] = resource
                if change != "expired":
                    self._asked.recorded((kind, change, name), record)

    def _repeated(self, kind: str, resource: Any) -> None:
        """Each hour of the journal begins with every resource as it is."""
        told = self.resources.get((kind, resource["name"]))
        if told != resource:
            raise Broken("I10", f"repeated as {resource}, and told before as {told}")

    def sought(self, record: Record, subscription: str, snapshot: str) -> None:
        self._asked.recorded(("seek", subscription, snapshot or record.aux), record)


def _what(call: str, request: Any) -> Hashable:
    if call == "Seek":
        time = request.time
        time_us = time.seconds * SECOND_US + time.nanos // 1000
        return ("seek", request.subscription, request.snapshot or time_us)
    kind, change, resource_of = _CHANGES[call]
    resource = resource_of(request)
    return (kind, change, resource if isinstance(resource, str) else resource.name)


def as_dict(resource: Any) -> dict[str, Any]:
    """A resource as the journal shows it."""
    found: dict[str, Any] = json_format.MessageToDict(resource, preserving_proto_field_name=True)
    return found
