"""CreateTopic, UpdateTopic, GetTopic, DeleteTopic: fields, masks, refusals."""

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, refused
from tests.wire.support import unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
DAY = 86_400
KMS_KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
KINESIS = pb.IngestionDataSourceSettings(
    aws_kinesis=dict(stream_arn="s", consumer_arn="c", aws_role_arn="r", gcp_service_account="g")
)


def seconds(number: int, nanos: int = 0) -> pb.Duration:
    return pb.Duration(seconds=number, nanos=nanos)


def leaf(name: str) -> str:
    return name.rsplit("/", 1)[1]


def update(client: Client, name: str, *paths: str, **fields):
    return client.UpdateTopic(topic=pb.Topic(name=name, **fields), update_mask=pb.FieldMask(paths=paths))


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


def test_plain_topic_is_returned_with_nothing_but_its_name(client: Client):
    name = unique("topic")
    assert client.CreateTopic(name=name) == pb.Topic(name=name)
    assert client.GetTopic(topic=name) == pb.Topic(name=name)


def test_existing_name_is_refused_even_for_the_same_topic(client: Client, topic: str):
    tokens = ("Resource already exists in the project", f"(resource={leaf(topic)})")
    with refused(StatusCode.ALREADY_EXISTS, *tokens):
        client.CreateTopic(name=topic)


def test_missing_topic_is_not_found_by_every_method(client: Client):
    name = unique("topic")
    tokens = ("Resource not found", f"(resource={leaf(name)}).")
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.GetTopic(topic=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.DeleteTopic(topic=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        update(client, name, "labels", labels={"a": "b"})
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.Publish(topic=name, messages=[pb.PubsubMessage(data=b"x")])
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.ListTopicSubscriptions(topic=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.CreateSubscription(name=unique("subscription"), topic=name)


def test_fields_are_stored_and_returned(client: Client):
    topic = pb.Topic(
        name=unique("topic"),
        labels={"env": "test", "empty": "", "λ": "ж-1_"},
        message_storage_policy=dict(allowed_persistence_regions=["europe-west1"], enforce_in_transit=True),
        kms_key_name=KMS_KEY,
        message_retention_duration=seconds(600),
    )
    assert client.CreateTopic(topic) == topic
    assert client.GetTopic(topic=topic.name) == topic


def test_output_only_and_input_only_fields_are_not_returned(client: Client):
    name = unique("topic")
    created = client.CreateTopic(
        name=name, satisfies_pzs=True, state=pb.Topic.INGESTION_RESOURCE_ERROR, tags={"123/env": "test"}
    )
    assert created == pb.Topic(name=name)


def test_topic_with_ingestion_settings_is_active(client: Client):
    name = unique("topic")
    created = client.CreateTopic(name=name, ingestion_data_source_settings=KINESIS)
    assert created.state == pb.Topic.ACTIVE
    kinesis = created.ingestion_data_source_settings.aws_kinesis
    assert (kinesis.stream_arn, kinesis.state) == ("s", pb.IngestionDataSourceSettings.AwsKinesis.ACTIVE)
    assert update(client, name, "ingestion_data_source_settings") == pb.Topic(name=name)


@pytest.mark.parametrize(
    "settings",
    [
        pb.IngestionDataSourceSettings(),
        pb.IngestionDataSourceSettings(aws_kinesis=dict(stream_arn="s")),
        pb.IngestionDataSourceSettings(aws_msk=dict(cluster_arn="c")),
        pb.IngestionDataSourceSettings(confluent_cloud=dict(topic="t")),
        pb.IngestionDataSourceSettings(cloud_storage=dict(bucket="")),
        pb.IngestionDataSourceSettings(cloud_storage=dict(bucket="b", text_format=dict(delimiter="ab"))),
    ],
)
def test_ingestion_settings_without_a_required_field_are_refused(client: Client, settings):
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), ingestion_data_source_settings=settings)


@pytest.mark.parametrize(
    "retention", [seconds(600), seconds(31 * DAY), seconds(600, 1), seconds(31 * DAY - 1)]
)
def test_retention_within_its_bounds_is_taken(client: Client, retention):
    created = client.CreateTopic(name=unique("topic"), message_retention_duration=retention)
    assert created.message_retention_duration == retention


@pytest.mark.parametrize(
    ("retention", "printed"),
    [
        (seconds(599), "9m59s"),
        (seconds(599, 999_999_999), ""),
        (seconds(31 * DAY, 1), ""),
        (seconds(31 * DAY + 1), "744h1s"),
        (seconds(0), ""),
        (seconds(-600), ""),
    ],
)
def test_retention_out_of_bounds_is_refused(client: Client, retention, printed: str):
    tokens = ("message retention duration", "out of bounds", "10m", "744h", printed)
    with refused(INVALID_ARGUMENT, *tokens):
        client.CreateTopic(name=unique("topic"), message_retention_duration=retention)


@pytest.mark.parametrize(
    "retention", [seconds(700, 2_000_000_000), seconds(700, -1), seconds(2**62), seconds(-(2**62), -5)]
)
def test_duration_that_is_none_is_refused(client: Client, retention):
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), message_retention_duration=retention)


@pytest.mark.parametrize(
    "labels",
    [
        {"": "v"},
        {"Upper": "v"},
        {"1a": "v"},
        {"_a": "v"},
        {"-a": "v"},
        {"a b": "v"},
        {"a.b": "v"},
        {"a" * 64: "v"},
        {"a": "Upper"},
        {"a": "v" * 64},
        {"a": "a b"},
        {f"a{i}": "v" for i in range(65)},
    ],
)
def test_bad_labels_are_refused(client: Client, labels):
    with refused(INVALID_ARGUMENT, "argument=Invalid labels"):
        client.CreateTopic(name=unique("topic"), labels=labels)


@pytest.mark.parametrize(
    "labels",
    [
        {"a" * 63: "v" * 63},
        {"a": ""},
        {"日本": "日本-1_"},
        {f"a{i}": "v" for i in range(64)},
        {"λ" * 63: "9"},
    ],
)
def test_good_labels_are_taken(client: Client, labels):
    assert dict(client.CreateTopic(name=unique("topic"), labels=labels).labels) == labels


def test_other_broken_fields_are_refused(client: Client):
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), message_storage_policy=pb.MessageStoragePolicy())
    with refused(INVALID_ARGUMENT, "kms_key_name"):
        client.CreateTopic(name=unique("topic"), kms_key_name="my-key")
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), schema_settings=pb.SchemaSettings())


def test_what_comes_later_is_refused_as_unimplemented(client: Client):
    udf = pb.MessageTransform(javascript_udf=dict(function_name="f", code="function f(m) { return m; }"))
    with refused(StatusCode.UNIMPLEMENTED) as refusal:
        client.CreateTopic(name=unique("topic"), message_transforms=[udf])
    assert " " in refusal.message


def test_refused_topic_is_not_created(client: Client):
    name = unique("topic")
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=name, labels={"Bad": ""})
    with refused(StatusCode.NOT_FOUND):
        client.GetTopic(topic=name)


def test_field_limits_are_checked_before_existence(client: Client, topic: str):
    with refused(INVALID_ARGUMENT):
        client.CreateTopic(name=topic, message_retention_duration=seconds(1))
    with refused(INVALID_ARGUMENT):
        update(client, unique("topic"), "message_retention_duration", message_retention_duration=seconds(1))


# UpdateTopic


@pytest.mark.parametrize("mask", [{}, {"update_mask": pb.FieldMask()}])
def test_empty_mask_is_refused(client: Client, topic: str, mask):
    with refused(INVALID_ARGUMENT, "update_mask", "UpdateTopicRequest"):
        client.UpdateTopic(topic=pb.Topic(name=topic, labels={"a": "b"}), **mask)


@pytest.mark.parametrize("path", ["name", "state", "satisfies_pzs", "tags", "kms_key_name"])
def test_immutable_path_is_refused(client: Client, topic: str, path: str):
    with refused(INVALID_ARGUMENT, "UpdateTopicRequest", path, "is not mutable"):
        update(client, topic, "labels", path, labels={"a": "b"})
    assert client.GetTopic(topic=topic) == pb.Topic(name=topic)


@pytest.mark.parametrize(
    "path",
    [
        "nonsense",
        "*",
        "",
        "messageRetentionDuration",
        "labels.env",
        "topic.labels",
        "LABELS",
        "message_retention_duration.seconds",
        "message_storage_policy.nonsense",
        "la\nbels",
    ],
)
def test_unknown_path_is_refused(client: Client, topic: str, path: str):
    with refused(INVALID_ARGUMENT, "UpdateTopicRequest", "is not a known Topic field"):
        update(client, topic, "labels", path, labels={"a": "b"})
    assert client.GetTopic(topic=topic) == pb.Topic(name=topic)


def test_missing_topic_in_the_update_is_refused(client: Client):
    with refused(INVALID_ARGUMENT):
        client.UpdateTopic(update_mask=pb.FieldMask(paths=["labels"]))


def test_update_replaces_what_the_mask_names_and_nothing_else(client: Client):
    name = client.CreateTopic(
        name=unique("topic"), labels={"a": "1"}, message_retention_duration=seconds(600)
    ).name
    updated = update(
        client, name, "labels", "labels", labels={"b": "2"}, message_retention_duration=seconds(-1)
    )
    expected = pb.Topic(name=name, labels={"b": "2"}, message_retention_duration=seconds(600))
    assert updated == expected
    assert client.GetTopic(topic=name) == expected


def test_field_absent_from_the_body_is_cleared(client: Client):
    name = client.CreateTopic(
        name=unique("topic"),
        labels={"a": "1"},
        message_retention_duration=seconds(600),
        message_storage_policy=dict(allowed_persistence_regions=["r"]),
    ).name
    paths = ("labels", "message_retention_duration", "message_storage_policy")
    assert update(client, name, *paths) == pb.Topic(name=name)
    assert client.GetTopic(topic=name) == pb.Topic(name=name)


def test_parts_of_the_storage_policy_are_replaced_alone(client: Client):
    name = client.CreateTopic(
        name=unique("topic"), message_storage_policy=dict(allowed_persistence_regions=["r"])
    ).name
    updated = update(
        client,
        name,
        "message_storage_policy.enforce_in_transit",
        message_storage_policy=dict(allowed_persistence_regions=["other"], enforce_in_transit=True),
    )
    policy = pb.MessageStoragePolicy(allowed_persistence_regions=["r"], enforce_in_transit=True)
    assert updated.message_storage_policy == policy


def test_bad_value_in_an_update_keeps_what_was(client: Client):
    name = client.CreateTopic(name=unique("topic"), message_retention_duration=seconds(600)).name
    with refused(INVALID_ARGUMENT, "message retention duration"):
        update(
            client,
            name,
            "labels",
            "message_retention_duration",
            labels={"a": "b"},
            message_retention_duration=seconds(599),
        )
    assert client.GetTopic(topic=name) == pb.Topic(name=name, message_retention_duration=seconds(600))


# DeleteTopic


def test_subscriptions_outlive_their_topic(client: Client, topic: str):
    name = unique("subscription")
    client.CreateSubscription(name=name, topic=topic)
    client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"kept")])
    assert client.DeleteTopic(topic=topic) == pb.Empty()
    with refused(StatusCode.NOT_FOUND, "Resource not found"):
        client.GetTopic(topic=topic)

    assert client.GetSubscription(subscription=name).topic == "_deleted-topic_"
    (received,) = client.Pull(subscription=name, max_messages=10).received_messages
    assert received.message.data == b"kept"
    client.Acknowledge(subscription=name, ack_ids=[received.ack_id])
