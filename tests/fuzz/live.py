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
NOW = 1_800_000_000  # seconds; where World begins

_SECONDS = (0, 1, 9, 11, 61, 601, 3601, 700_000)
_STEPS_MAX = 12

#: What an INVALID_ARGUMENT says, one of them: which field, or which quantity of the request, is wrong.
_SUBJECTS = (
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
        """Something other than a request: time passes, or what was decided is committed and delivered."""
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
                self.world.begin()
                self.world.end()

    def call(self, name: str, source: Source) -> None:
        method = CALLS[name]
        self.request(name, drawn(method.request, method.drawn_from(self.ack_ids), self.known, source))

    def request(self, name: str, data: bytes) -> Any:
        """The request of one unary call, as bytes; returns the response, or None if it was refused."""
        method = CALLS[name]
        self.broker.caller(self._client, self.world.now_us)  # a new client is no effect of the request
        before = self.fingerprint()
        try:
            request = parse(method.request, data)
            response = method.act(self, request, len(data))
        except PubsubError as error:
            self._judge(error, f"{name} {data!r}", before)
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
        "https://example.com/push",
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


# --- the unary methods -------------------------------------------------------------------------------------


def _time(seconds: int) -> Any:
    return pb.Timestamp(seconds=seconds)


def _mask(*paths: str) -> Any:
    return pb.FieldMask(paths=paths)


def _looked(command: Callable[..., Any]) -> Callable[[Live, Any, int], Any]:
    return lambda live, request, _: command(live.broker, request)


def _changed(command: Callable[..., Any]) -> Callable[[Live, Any, int], Any]:
    return lambda live, request, _: command(live.broker, request, live.world.now_us)


def _create_topic(live: Live, request: Any, _: int) -> Any:
    return live.shown_topic(live.broker.create_topic(request, live.world.now_us))


def _update_topic(live: Live, request: Any, _: int) -> Any:
    return live.shown_topic(live.broker.update_topic(request, live.world.now_us))


def _create_subscription(live: Live, request: Any, _: int) -> Any:
    return live.shown_subscription(live.broker.create_subscription(request, "unique", live.world.now_us))


def _update_subscription(live: Live, request: Any, _: int) -> Any:
    return live.shown_subscription(live.broker.update_subscription(request, live.world.now_us))


def _acknowledge(live: Live, request: Any, request_bytes: int) -> None:
    live.on_ack_ids(Broker.acknowledge, request, request_bytes)


def _modify(live: Live, request: Any, request_bytes: int) -> None:
    live.on_ack_ids(Broker.modify_ack_deadline, request, request_bytes)


_OTHER_TOPIC = f"{PROJECT}/topics/other"
_OTHER = f"{PROJECT}/subscriptions/other"
_UDF = pb.MessageTransform(javascript_udf=pb.JavaScriptUDF(function_name="f", code="x"))
_ZLIB = pb.MessageTransform(
    compression=pb.Compression(
        compression_algorithm=pb.Compression.ZLIB, compression_mode=pb.Compression.COMPRESS
    )
)
_ENDPOINT = pb.MessageTransform(
    ai_inference=pb.AIInference(endpoint="projects/p/locations/l/publishers/g/models/m")
)
_KINESIS = pb.IngestionDataSourceSettings.AwsKinesis(
    stream_arn="a", consumer_arn="b", aws_role_arn="c", gcp_service_account="d"
)
_BUCKET = pb.IngestionDataSourceSettings.CloudStorage(
    bucket="bucket", text_format={"delimiter": ","}, minimum_object_create_time=_time(NOW)
)
_FILES = pb.CloudStorageConfig(
    bucket="bucket",
    filename_datetime_format="YYYY-MM-DD/hh_mm_ss",
    max_duration=pb.Duration(seconds=60),
    max_bytes=1000,
    max_messages=1000,
)
_PUSH = pb.PushConfig(
    push_endpoint="https://user@example.com:8080/push?a=b",
    oidc_token=pb.PushConfig.OidcToken(service_account_email="a@b"),
)

#: Every unary method that has a behaviour.
CALLS: dict[str, Call] = {
    "CreateTopic": Call(
        pb.Topic,
        _create_topic,
        lambda _: [
            pb.Topic(name=_OTHER_TOPIC),
            pb.Topic(
                name=_OTHER_TOPIC,
                message_retention_duration=pb.Duration(seconds=600),
                message_storage_policy=pb.MessageStoragePolicy(allowed_persistence_regions=["us-east1"]),
                kms_key_name="projects/p/locations/l/keyRings/r/cryptoKeys/k",
                labels={"a": "b", "é": "1"},
            ),
            pb.Topic(
                name=_OTHER_TOPIC,
                ingestion_data_source_settings=pb.IngestionDataSourceSettings(aws_kinesis=_KINESIS),
            ),
            pb.Topic(
                name=_OTHER_TOPIC,
                ingestion_data_source_settings=pb.IngestionDataSourceSettings(cloud_storage=_BUCKET),
            ),
        ],
        [
            pb.Topic(name=_OTHER_TOPIC, message_transforms=[_UDF, _ZLIB, _ENDPOINT]),
            pb.Topic(
                name=_OTHER_TOPIC,
                schema_settings=pb.SchemaSettings(schema="projects/p/schemas/other", encoding=pb.JSON),
            ),
            pb.Topic(name=TOPIC),
            pb.Topic(name=_OTHER_TOPIC, labels={"a" * 64: ""}),
        ],
    ),
    "UpdateTopic": Call(
        pb.UpdateTopicRequest,
        _update_topic,
        lambda _: [
            pb.UpdateTopicRequest(topic=pb.Topic(name=TOPIC), update_mask=_mask("labels")),
            pb.UpdateTopicRequest(
                topic=pb.Topic(name=TOPIC), update_mask=_mask("message_retention_duration")
            ),
        ],
    ),
    "GetTopic": Call(
        pb.GetTopicRequest, _looked(Broker.get_topic), lambda _: [pb.GetTopicRequest(topic=TOPIC)]
    ),
    "ListTopics": Call(
        pb.ListTopicsRequest,
        _looked(Broker.list_topics),
        lambda _: [pb.ListTopicsRequest(project=PROJECT, page_size=1)],
    ),
    "ListTopicSubscriptions": Call(
        pb.ListTopicSubscriptionsRequest,
        _looked(Broker.list_topic_subscriptions),
        lambda _: [pb.ListTopicSubscriptionsRequest(topic=TOPIC, page_size=1)],
    ),
    "ListTopicSnapshots": Call(
        pb.ListTopicSnapshotsRequest,
        _looked(Broker.list_topic_snapshots),
        lambda _: [pb.ListTopicSnapshotsRequest(topic=TOPIC)],
    ),
    "DeleteTopic": Call(
        pb.DeleteTopicRequest,
        _changed(Broker.delete_topic),
        lambda _: [pb.DeleteTopicRequest(topic=TOPIC), pb.DeleteTopicRequest(topic=DEAD_TOPIC)],
    ),
    "Publish": Call(
        pb.PublishRequest,
        Live.publish,
        lambda _: [
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"new")]),
            pb.PublishRequest(
                topic=TOPIC,
                messages=[pb.PubsubMessage(attributes={"kind": "order"}, ordering_key="k")] * 2,
            ),
            pb.PublishRequest(
                topic=TOPIC,
                messages=[
                    pb.PubsubMessage(data=b"x", attributes={"é" * 128: "é" * 512}, ordering_key="é" * 512)
                ],
            ),
            pb.PublishRequest(topic=DEAD_TOPIC, messages=[pb.PubsubMessage(data=b"nobody reads this")]),
        ],
        [
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"x"), pb.PubsubMessage()]),
            pb.PublishRequest(
                topic=TOPIC,
                messages=[pb.PubsubMessage(data=b"x", ordering_key=key) for key in ("k", "l")],
            ),
            pb.PublishRequest(
                topic=TOPIC, messages=[pb.PubsubMessage(attributes={str(n): "" for n in range(101)})]
            ),
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(attributes={"é" * 129: ""})]),
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(attributes={"": ""})]),
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(attributes={"a": "é" * 513})]),
            pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"x", ordering_key="é" * 513)]),
        ],
    ),
    "DetachSubscription": Call(
        pb.DetachSubscriptionRequest,
        lambda live, request, _: live.broker.detach_subscription(request, live.world.now_us),
        lambda _: [pb.DetachSubscriptionRequest(subscription=PLAIN)],
    ),
    "CreateSubscription": Call(
        pb.Subscription,
        _create_subscription,
        lambda _: [
            pb.Subscription(name=_OTHER, topic=TOPIC),
            pb.Subscription(topic=TOPIC, enable_exactly_once_delivery=True, filter="attributes:kind"),
            pb.Subscription(
                name=_OTHER,
                topic=TOPIC,
                filter='NOT hasPrefix(attributes.kind, "o") OR attributes.a != "b"',
                message_retention_duration=pb.Duration(seconds=600),
                retain_acked_messages=True,
                expiration_policy=pb.ExpirationPolicy(ttl=pb.Duration(seconds=86_400)),
                retry_policy=pb.RetryPolicy(maximum_backoff=pb.Duration(seconds=20, nanos=1)),
                dead_letter_policy=pb.DeadLetterPolicy(dead_letter_topic=DEAD_TOPIC),
            ),
        ],
        [
            pb.Subscription(name=_OTHER, topic=TOPIC, cloud_storage_config=_FILES),
            pb.Subscription(name=_OTHER, topic=TOPIC, bigquery_config=pb.BigQueryConfig(table="p.d.t")),
            pb.Subscription(
                name=_OTHER,
                topic=TOPIC,
                bigtable_config=pb.BigtableConfig(table="projects/p/instances/i/tables/t"),
            ),
            pb.Subscription(name=_OTHER, topic=TOPIC, push_config=_PUSH),
            pb.Subscription(name=_OTHER, topic=TOPIC, push_config=_PUSH, enable_exactly_once_delivery=True),
            pb.Subscription(name=_OTHER, topic=TOPIC, message_transforms=[_UDF, _ZLIB, _ENDPOINT]),
            pb.Subscription(
                name=_OTHER,
                topic=TOPIC,
                dead_letter_policy=pb.DeadLetterPolicy(dead_letter_topic=TOPIC, max_delivery_attempts=100),
            ),
            pb.Subscription(name=SUBSCRIPTION, topic=TOPIC),
        ],
    ),
    "UpdateSubscription": Call(
        pb.UpdateSubscriptionRequest,
        _update_subscription,
        lambda _: [
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=PLAIN, enable_exactly_once_delivery=True),
                update_mask=_mask("enable_exactly_once_delivery"),
            ),
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=SUBSCRIPTION),
                update_mask=_mask("dead_letter_policy", "retry_policy", "message_retention_duration"),
            ),
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=FILTERED), update_mask=_mask("expiration_policy")
            ),
        ],
        [
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=PLAIN, push_config=_PUSH, cloud_storage_config=_FILES),
                update_mask=_mask(field),
            )
            for field in ("push_config", "cloud_storage_config", "filter")
        ],
    ),
    "GetSubscription": Call(
        pb.GetSubscriptionRequest,
        _looked(Broker.get_subscription),
        lambda _: [pb.GetSubscriptionRequest(subscription=SUBSCRIPTION)],
    ),
    "ListSubscriptions": Call(
        pb.ListSubscriptionsRequest,
        _looked(Broker.list_subscriptions),
        lambda _: [pb.ListSubscriptionsRequest(project=PROJECT, page_size=2)],
    ),
    "DeleteSubscription": Call(
        pb.DeleteSubscriptionRequest,
        lambda live, request, _: live.broker.delete_subscription(request, live.world.now_us),
        lambda _: [pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION)],
    ),
    "CreateSnapshot": Call(
        pb.CreateSnapshotRequest,
        lambda live, request, _: live.create_snapshot(request),
        lambda _: [
            pb.CreateSnapshotRequest(name=f"{PROJECT}/snapshots/other", subscription=SUBSCRIPTION),
            pb.CreateSnapshotRequest(subscription=PLAIN),
        ],
    ),
    "GetSnapshot": Call(
        pb.GetSnapshotRequest,
        _looked(Broker.get_snapshot),
        lambda _: [pb.GetSnapshotRequest(snapshot=SNAPSHOT)],
    ),
    "ListSnapshots": Call(
        pb.ListSnapshotsRequest,
        _looked(Broker.list_snapshots),
        lambda _: [pb.ListSnapshotsRequest(project=PROJECT)],
    ),
    "UpdateSnapshot": Call(
        pb.UpdateSnapshotRequest,
        _changed(Broker.update_snapshot),
        lambda _: [
            pb.UpdateSnapshotRequest(
                snapshot=pb.Snapshot(name=SNAPSHOT, expire_time=_time(NOW + 7200)),
                update_mask=_mask("expire_time"),
            ),
            pb.UpdateSnapshotRequest(
                snapshot=pb.Snapshot(name=SNAPSHOT, labels={"a": "b"}), update_mask=_mask("labels")
            ),
        ],
    ),
    "DeleteSnapshot": Call(
        pb.DeleteSnapshotRequest,
        lambda live, request, _: live.broker.delete_snapshot(request, live.world.now_us),
        lambda _: [pb.DeleteSnapshotRequest(snapshot=SNAPSHOT)],
    ),
    "Seek": Call(
        pb.SeekRequest,
        lambda live, request, _: live.seek(request),
        lambda _: [
            pb.SeekRequest(subscription=PLAIN, time=_time(NOW - 1)),
            pb.SeekRequest(subscription=SUBSCRIPTION, time=_time(NOW)),
            pb.SeekRequest(subscription=FILTERED, time=_time(2 * NOW)),
            pb.SeekRequest(subscription=PLAIN, snapshot=SNAPSHOT),
        ],
    ),
    "Pull": Call(
        pb.PullRequest,
        Live.pull,
        lambda _: [pb.PullRequest(subscription=name, max_messages=5) for name in (SUBSCRIPTION, PLAIN)],
    ),
    "Acknowledge": Call(
        pb.AcknowledgeRequest,
        _acknowledge,
        lambda ack_ids: [
            pb.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids[SUBSCRIPTION][:3]),
            pb.AcknowledgeRequest(subscription=PLAIN, ack_ids=ack_ids[PLAIN]),
            pb.AcknowledgeRequest(subscription=FILTERED, ack_ids=ack_ids[FILTERED]),
        ],
    ),
    "ModifyAckDeadline": Call(
        pb.ModifyAckDeadlineRequest,
        _modify,
        lambda ack_ids: [
            pb.ModifyAckDeadlineRequest(
                subscription=SUBSCRIPTION, ack_ids=ack_ids[SUBSCRIPTION], ack_deadline_seconds=0
            ),
            pb.ModifyAckDeadlineRequest(subscription=PLAIN, ack_ids=ack_ids[PLAIN], ack_deadline_seconds=600),
            pb.ModifyAckDeadlineRequest(subscription=FILTERED, ack_ids=ack_ids[FILTERED]),
        ],
    ),
}
#: Those that are answered UNIMPLEMENTED.
LATER = {"ModifyPushConfig"}
NAMES = list(CALLS)
STEPS_MAX = _STEPS_MAX
