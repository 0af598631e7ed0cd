"""A small live broker with something of everything in it, and the requests that reach it.

A request takes the way that it takes in the server: its bytes are parsed, checked, and given to the command
of the broker; what a client would be told is put together. `Live` judges each: a refusal has to be one, to
say what is wrong and to leave everything as it was; what was created or changed has to be what is shown. When
an input is through, everything that was promised has to survive a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from pubsubd.broker import Broker, Consumer, Refusal
from pubsubd.eod import answer
from pubsubd.model import errors, limits
from pubsubd.model.errors import PubsubError
from pubsubd.model.requests import check_streaming_pull_later
from pubsubd.server import responses
from pubsubd.server.calls import parse
from pubsubd.wire import pb
from tests.fuzz.source import Source
from tests.unit.broker.world import (
    SNAPSHOT,
    SUBSCRIPTION,
    TOPIC,
    Shell,
    World,
    check,
    promised,
    restored,
    states,
)
from tests.unit.storage.fake_store import FakeStore

DEAD_TOPIC = "projects/p/topics/dead"
PLAIN = "projects/p/subscriptions/plain"
FILTERED = "projects/p/subscriptions/filtered"
PROJECT = "projects/p"

_SECONDS = (0, 1, 9, 11, 61, 601, 3601, 700_000)

#: What an INVALID_ARGUMENT says, one of them: which field, or which quantity of the request, is wrong.
_SUBJECTS = (
    *("Invalid schema definition", "Invalid data in message"),
    *("(argument=", "(name=", "(dead_letter_topic=", "(schema=", "(ack_deadline=", "(ack_id=", "(token="),
    *("(endpoint=", "(version=", "message_count", "request_size", "attribute", "page_size", "update_mask"),
    *("message retention duration", "expiration duration", "minimum_backoff", "maximum_backoff"),
    *("max_delivery_attempts", "messages in the publish request", "ack ID in the request"),
    *("Request payload size", "The request is not a serialised"),
)
_STATUSES = {kind.status for kind in PubsubError.__subclasses__() if hasattr(kind, "status")}


#: By subscription: ids of deliveries, most of them leased, one nacked and one acked.
AckIdsOf = Mapping[str, Sequence[str]]


class Call(NamedTuple):
    """A unary method: what it takes, what the broker does with it, and examples of requests.

    Those in `refused` pass many checks before the one that refuses them.
    """

    request: type[Message]
    act: Callable[[Live, Any, int], Any]
    examples: Callable[[AckIdsOf], list[Any]]
    refused: Sequence[Any] = ()

    def drawn_from(self, ack_ids: AckIdsOf) -> list[Any]:
        return [*self.examples(ack_ids), *self.refused]


class Live:
    def __init__(self, client: str = "fuzz") -> None:
        """`client` is who calls, as its metadata say."""
        template = _template()
        self.world = World()
        self.world.store = _copied(template.world.store)
        self.world.now_us = template.world.now_us
        self.world.crash()
        self.ack_ids = dict(template.ack_ids)
        self.known = template.known
        self.streams: list[Consumer] = []
        self.refusals = 0
        self._client = client

    @property
    def broker(self) -> Broker:
        return self.world.broker

    # -- steps --------------------------------------------------------------------------------------------

    def step(self, source: Source) -> None:
        """Something other than a request: time, a commit, deliveries, or a kill and a new start."""
        match source.below(4):
            case 0:
                self.world.advance(source.one(_SECONDS))
                self.world.settle()
            case 1:
                self.world.turn()
            case 2:
                for consumer in self.streams:
                    self.broker.set_ready(consumer)
                self.world.settle()
            case _:
                self.world.crash()
                self.streams.clear()

    def call(self, method: Call, source: Source) -> None:
        self.request(method, drawn(method.request, method.drawn_from(self.ack_ids), self.known, source))

    def request(self, method: Call, data: bytes) -> Any:
        """The request of one unary call, as bytes; returns the response, or None if it was refused."""
        self.broker.caller(self._client, self.world.now_us)  # a new client is no effect of the request
        before = self.fingerprint()
        try:
            request = parse(method.request, data)
            response = method.act(self, request, len(data))
        except PubsubError as error:
            self._judge(error, f"{method.request.DESCRIPTOR.name} {data!r}", before)
            return None
        if response is not None:
            assert type(response).FromString(response.SerializeToString()) == response
        return response

    def open_stream(self, source: Source) -> Consumer | None:
        example = pb.StreamingPullRequest(
            subscription=source.one((SUBSCRIPTION, PLAIN, FILTERED)), stream_ack_deadline_seconds=10
        )
        data = drawn(pb.StreamingPullRequest, [example], self.known, source)
        before = self.fingerprint()
        try:
            request = parse(pb.StreamingPullRequest, data)
            consumer = self.broker.open_stream(request, len(data), self._client, self.world.now_us, Shell())
        except PubsubError as error:
            self._judge(error, f"first request {data!r}", before)
            return None
        self.streams.append(consumer)
        # What it carries beside is handled as that of a later request.
        request.stream_ack_deadline_seconds = 0
        self._on_stream(consumer, request, data)
        self.broker.set_ready(consumer)
        return consumer

    def later(self, consumer: Consumer, source: Source) -> None:
        """A request of an open stream; a refusal ends the stream."""
        ack_ids = self.ack_ids.get(consumer.subscription.name, [])
        received = consumer.shell.ack_ids[-3:]
        examples = [
            pb.StreamingPullRequest(ack_ids=ack_ids[:2]),
            pb.StreamingPullRequest(modify_deadline_ack_ids=ack_ids[:2], modify_deadline_seconds=[0, 600]),
            pb.StreamingPullRequest(ack_ids=received, stream_ack_deadline_seconds=600),
            pb.StreamingPullRequest(
                modify_deadline_ack_ids=received, modify_deadline_seconds=[0] * len(received)
            ),
        ]
        known = [*self.known, *received]
        data = drawn(pb.StreamingPullRequest, examples, known, source)
        before = self.fingerprint()
        try:
            request = parse(pb.StreamingPullRequest, data)
            check_streaming_pull_later(request, len(data))
        except PubsubError as error:
            self._judge(error, f"later request {data!r}", before)
            self._close(consumer)
            return
        self._on_stream(consumer, request, data)

    def _on_stream(self, consumer: Consumer, request: Any, data: bytes) -> None:
        before = self.fingerprint()
        try:
            verdict = self.broker.stream_request(consumer, request, self.world.now_us)
        except PubsubError as error:
            self._judge(error, f"on a stream {data!r}", before)
            self._close(consumer)
            return
        confirmation = responses.confirmation(
            _sorted_out(request.ack_ids, verdict.refused_acks),
            _sorted_out(request.modify_deadline_ack_ids, verdict.refused_extensions),
        )
        answered = pb.StreamingPullResponse.FromString(confirmation)
        told = answered.acknowledge_confirmation
        listed = [*told.ack_ids, *told.invalid_ack_ids, *told.unordered_ack_ids]
        assert sorted(listed) == sorted(set(request.ack_ids)), "each ack id has one result"

    def _close(self, consumer: Consumer) -> None:
        self.streams.remove(consumer)
        self.broker.close_stream(consumer, self.world.now_us)

    def finish(self, thorough: bool) -> None:
        """What was accepted is in order, can be delivered, and survives the process.

        `thorough`: also by way of a checkpoint, and goes on after a kill.
        """
        for consumer in list(self.streams):
            self._deliver(consumer.shell)
            self._close(consumer)
        self.world.settle()
        check(self.broker)
        self._survives()
        if thorough:
            self.world.turn(checkpoint=True)
            self._survives()
            self.world.crash()
            check(self.broker)

    def _survives(self) -> None:
        """What was promised is what a server that is started now goes on from."""
        again = restored(self.world.store)
        check(again)
        kept, found = self._promises(self.broker), self._promises(again)
        assert kept.keys() == found.keys(), f"{sorted(kept)} became {sorted(found)}"
        for name, promises in kept.items():
            changed = {
                key: (one, found[name][key]) for key, one in promises.items() if found[name][key] != one
            }
            assert not changed, f"{name} became another by a restart: {changed}"

    def _promises(self, broker: Broker) -> dict[str, dict[str, Any]]:
        promises: dict[str, dict[str, Any]] = dict(promised(broker, self.world.store))
        since_us = self.world.now_us - limits.ENDING_KEPT_US
        for promise in promises.values():
            nacked, finished = promise["endings"]
            # What is older may be remembered, or not.
            promise["endings"] = (
                {key: at_us for key, at_us in nacked.items() if at_us >= since_us},
                {key: one for key, one in finished.items() if one[2] >= since_us},
            )
        return promises

    @staticmethod
    def _deliver(shell: Shell) -> None:
        for delivery in shell.got:
            data = responses.received_messages(delivery.leases, delivery.datas, delivery.attempts)
            received = pb.StreamingPullResponse.FromString(data).received_messages
            assert [one.ack_id for one in received] == [lease.ack_id for lease in delivery.leases]

    # -- what the calls of the table need -----------------------------------------------------------------

    def pull(self, request: Any, request_bytes: int) -> Any:
        caller = self.broker.caller(self._client, self.world.now_us)
        consumer = self.broker.open_pull(request, caller, self.world.now_us, Shell())
        self.world.settle()
        self.broker.close_pull(consumer)
        self._deliver(consumer.shell)
        if consumer.shell.ack_ids:
            # What was received last is what the next requests are about.
            self.ack_ids[consumer.subscription.name] = consumer.shell.ack_ids

    def on_ack_ids(self, command: Callable[..., Any], request: Any, request_bytes: int) -> None:
        caller = self.broker.caller(self._client, self.world.now_us)
        _, refused = command(self.broker, request, request_bytes, caller, self.world.now_us)
        failed = {one.ack_id: answer.result_of(one.standing) for one in refused}
        assert failed.keys() <= set(request.ack_ids)
        policies: tuple[answer.Policy, ...] = ("omit", "confirm", "abort")
        for policy in policies:
            found = answer.answer(request.ack_ids, failed, policy)
            assert (found is None) == (not failed)
            if found is not None:
                info = AnyMessage()
                info.Pack(ErrorInfo(reason=answer.REASON, domain=answer.DOMAIN, metadata=found.metadata))
                assert Status(code=3, message=found.message, details=[info]).SerializeToString()
                assert found.metadata.keys() >= failed.keys()

    def publish(self, request: Any, request_bytes: int) -> Any:
        caller = self.broker.caller(self._client, self.world.now_us)
        message_ids = self.broker.publish(request, request_bytes, caller, self.world.now_us)
        assert len(message_ids) == len(request.messages)
        return pb.PublishResponse(message_ids=message_ids)

    def create_snapshot(self, request: Any) -> Any:
        questions = self.broker.snapshot_questions(request, self.world.now_us)
        answers = self.world.answers(questions)
        shown = self.broker.create_snapshot(request, answers, "unique", self.world.now_us)
        assert shown == self.broker.get_snapshot(pb.GetSnapshotRequest(snapshot=shown.name))
        return shown

    def seek(self, request: Any) -> Any:
        questions = self.broker.seek_questions(request, self.world.now_us)
        return self.broker.seek(request, self.world.answers(questions), self.world.now_us)

    def shown_topic(self, shown: Any) -> Any:
        assert shown == self.broker.get_topic(pb.GetTopicRequest(topic=shown.name))
        return shown

    def shown_subscription(self, shown: Any) -> Any:
        assert shown == self.broker.get_subscription(pb.GetSubscriptionRequest(subscription=shown.name))
        return shown

    # -- judging ------------------------------------------------------------------------------------------

    def fingerprint(self) -> dict[str, object]:
        """Everything that a refused request must leave alone; that somebody asked may be noted."""
        broker, ledger = self.broker, self.broker.ledger.now
        return {
            "message_id": broker.message_id,
            "topics": {
                name: topic.resource.SerializeToString(deterministic=True)
                for name, topic in broker._topics.items()
            },
            "snapshots": {
                name: one.resource.SerializeToString(deterministic=True)
                for name, one in broker._snapshots.items()
            },
            "subscriptions": states(broker),
            "consumers": [list(one.consumers) for one in broker.subscriptions()],
            "rows": (
                *map(len, (ledger.messages, ledger.endings, ledger.topics, ledger.subscriptions)),
                *map(len, (ledger.snapshots, ledger.closed, ledger.changed)),
            ),
        }

    def _judge(self, error: PubsubError, what: str, before: dict[str, object]) -> None:
        self.refusals += 1
        judge_refusal(error, what)
        after = self.fingerprint()
        changed = [key for key, value in before.items() if after[key] != value]
        assert not changed, f"{what} was refused ({error}) and changed {changed}"


def judge_refusal(error: PubsubError, what: str) -> None:
    """A refusal is one line of printable ASCII, has a status of the API, and says which field is wrong."""
    message = error.message
    assert error.status in _STATUSES, f"{what}: status {error.status}"
    assert message and message.isascii() and message.isprintable(), f"{what}: {message!r}"
    assert len(message) <= limits.ERROR_MESSAGE_CHARS_MAX, f"{what}: {len(message)} characters"
    if isinstance(error, errors.InvalidArgument):
        assert any(subject in message for subject in _SUBJECTS), f"{what}: names no field: {message}"


def drawn(kind: type[Message], examples: Sequence[Any], known: Sequence[str], source: Source) -> bytes:
    """A request as bytes: any bytes, those of an example with some fields set, or those with some damaged."""
    way = source.below(8)
    if way == 0:
        return source.blob()
    request: Any = kind()
    if way > 1:
        request.CopyFrom(source.one(examples))
    source.fill(request, known)
    data: bytes = request.SerializeToString()
    if way == 2 and data:
        damaged = bytearray(data)
        for _ in range(1 + source.below(3)):
            damaged[source.number(0, 2**31 - 1) % len(damaged)] = source.byte()
        return bytes(damaged)
    return data


def _sorted_out(ack_ids: Sequence[str], refused: Sequence[Refusal]) -> responses.Outcomes | None:
    if not ack_ids:
        return None
    bad = {refusal.ack_id for refusal in refused}
    assert bad <= set(ack_ids)
    return responses.Outcomes([one for one in dict.fromkeys(ack_ids) if one not in bad], sorted(bad))


# --- the world that every input begins with ----------------------------------------------------------------


def _copied(store: FakeStore) -> FakeStore:
    """A store of its own with the same rows."""
    copy = store.reopened()
    for name, value in vars(copy).items():
        if isinstance(value, dict):
            setattr(
                copy, name, {key: dict(one) if isinstance(one, dict) else one for key, one in value.items()}
            )
        elif isinstance(value, list):
            setattr(copy, name, list(value))
    return copy


class _Template(NamedTuple):
    world: World
    ack_ids: AckIdsOf
    known: list[str]


@cache
def _template() -> _Template:
    world = World()
    world.create_topic(message_retention_duration=pb.Duration(seconds=3600), labels={"team": "a"})
    world.create_topic(DEAD_TOPIC)
    world.create_subscription(
        enable_message_ordering=True,
        retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=1)),
        dead_letter_policy=pb.DeadLetterPolicy(dead_letter_topic=DEAD_TOPIC, max_delivery_attempts=5),
    )
    world.create_subscription(PLAIN, exactly_once=False, retain_acked_messages=True)
    world.create_subscription(FILTERED, exactly_once=True, filter='attributes.kind = "order"')
    world.publish(b"a", b"b", b"c")
    world.publish(b"d", b"e", ordering_key="k")
    world.publish(b"f", b"g", attributes={"kind": "order"})
    world.turn()
    ack_ids: dict[str, list[str]] = {}
    for name in (SUBSCRIPTION, PLAIN, FILTERED):
        ack_ids[name] = [lease.ack_id for lease in world.pull(name, 6)]
        world.nack(ack_ids[name][-1:], name)
        world.acknowledge(ack_ids[name][-2:-1], name)
    world.create_snapshot(name=PLAIN)
    world.turn(checkpoint=True)
    tokens = [
        world.broker.list_topics(pb.ListTopicsRequest(project=PROJECT, page_size=1)).next_page_token,
        world.broker.list_subscriptions(
            pb.ListSubscriptionsRequest(project=PROJECT, page_size=1)
        ).next_page_token,
    ]
    names = [PROJECT, TOPIC, DEAD_TOPIC, SUBSCRIPTION, PLAIN, FILTERED, SNAPSHOT]
    others = [f"{PROJECT}/{kind}/other" for kind in ("topics", "subscriptions", "snapshots", "schemas")]
    paths = [
        field.name for kind in (pb.Topic, pb.Subscription, pb.Snapshot) for field in kind.DESCRIPTOR.fields
    ]
    parts = [
        "message_storage_policy.enforce_in_transit",
        "message_storage_policy.allowed_persistence_regions",
    ]
    texts = [
        "",
        "abc",
        "k",
        "kind",
        "order",
        "a.b.c",
        "us-east1",
        "gs://bucket",
        "http://127.0.0.1:9/push",
        "v1",
    ]
    filters = ["attributes:kind", 'attributes.kind != "order" AND NOT hasPrefix(attributes.a, "x")']
    known = [
        *names,
        *others,
        *[one for ids in ack_ids.values() for one in (*ids[:2], *ids[-2:])],
        *tokens,
        *dict.fromkeys(paths),
        *parts,
        *texts,
        *filters,
    ]
    return _Template(world, ack_ids, known)
