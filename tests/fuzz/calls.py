"""The unary methods as targets call them: what each takes, what the broker does with it, and examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pubsubd.broker import Broker
from pubsubd.wire import pb
from tests.fuzz.live import DEAD_TOPIC, FILTERED, PLAIN, PROJECT, Call, Live
from tests.unit.broker.world import SNAPSHOT, SUBSCRIPTION, TOPIC

_NOW = 1_800_000_000  # seconds; where World begins


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
    bucket="bucket", text_format={"delimiter": ","}, minimum_object_create_time=_time(_NOW)
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
            pb.Subscription(name=_OTHER, topic=TOPIC, push_config=_PUSH),
        ],
        [
            pb.Subscription(name=_OTHER, topic=TOPIC, cloud_storage_config=_FILES),
            pb.Subscription(name=_OTHER, topic=TOPIC, bigquery_config=pb.BigQueryConfig(table="p.d.t")),
            pb.Subscription(
                name=_OTHER,
                topic=TOPIC,
                bigtable_config=pb.BigtableConfig(table="projects/p/instances/i/tables/t"),
            ),
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
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=PLAIN, push_config=_PUSH), update_mask=_mask("push_config")
            ),
        ],
        [
            pb.UpdateSubscriptionRequest(
                subscription=pb.Subscription(name=PLAIN, cloud_storage_config=_FILES),
                update_mask=_mask(field),
            )
            for field in ("cloud_storage_config", "filter")
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
                snapshot=pb.Snapshot(name=SNAPSHOT, expire_time=_time(_NOW + 7200)),
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
            pb.SeekRequest(subscription=PLAIN, time=_time(_NOW - 1)),
            pb.SeekRequest(subscription=SUBSCRIPTION, time=_time(_NOW)),
            pb.SeekRequest(subscription=FILTERED, time=_time(2 * _NOW)),
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
