"""Topics at creation and at update."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import topics
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.arbitrary import any_message
from tests.unit.model.conftest import DAY, TOPIC, new_topic, refusal, seconds

KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
KINESIS = {"stream_arn": "s", "consumer_arn": "c", "aws_role_arn": "r", "gcp_service_account": "g"}
MSK = {"cluster_arn": "c", "topic": "t", "aws_role_arn": "r", "gcp_service_account": "g"}
CONFLUENT = {
    "bootstrap_server": "b",
    "cluster_id": "c",
    "topic": "t",
    "identity_pool_id": "i",
    "gcp_service_account": "g",
}


def ingestion(**source: object) -> dict[str, object]:
    return {"ingestion_data_source_settings": pb.IngestionDataSourceSettings(**source)}


def update(*paths: str, **fields: object) -> pb.UpdateTopicRequest:
    return pb.UpdateTopicRequest(topic=new_topic(**fields), update_mask=pb.FieldMask(paths=paths))


# --- creation --------------------------------------------------------------------------------------------


def test_a_topic_with_a_name_only_is_returned_as_its_name_only() -> None:
    assert new_topic() == topics.created_topic(new_topic())


def test_what_a_client_may_set_is_kept() -> None:
    request = new_topic(
        labels={"env": "test"},
        message_storage_policy={"allowed_persistence_regions": ["europe-west1"], "enforce_in_transit": True},
        kms_key_name=KEY,
        message_retention_duration=seconds(DAY),
    )

    assert request == topics.created_topic(request)


def test_the_result_is_a_copy() -> None:
    request = new_topic(labels={"env": "test"})

    topics.created_topic(request).labels["env"] = "prod"

    assert request.labels["env"] == "test"


def test_what_only_the_server_sets_is_ignored_and_tags_are_never_returned() -> None:
    request = new_topic(satisfies_pzs=True, state=pb.Topic.INGESTION_RESOURCE_ERROR, tags={"123/env": "test"})

    assert new_topic() == topics.created_topic(request)


def test_fields_that_this_server_does_not_know_are_dropped() -> None:
    request = pb.Topic.FromString(new_topic().SerializeToString() + b"\xf2\x3f\x01x")

    assert new_topic().SerializeToString() == topics.created_topic(request).SerializeToString()


@pytest.mark.parametrize("name", ["", "orders", "projects/p/topics/goog-x", "_deleted-topic_"])
def test_a_bad_name_is_refused(name: str) -> None:
    message = refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(name=name))

    assert f"Invalid resource name given (name={name})" in message


@pytest.mark.parametrize("retention", [600, 600.000000001, DAY, 31 * DAY])
def test_retention_of_10_minutes_to_31_days_is_accepted(retention: float) -> None:
    topics.created_topic(new_topic(message_retention_duration=seconds(retention)))


@pytest.mark.parametrize(
    ("retention", "passed"),
    [
        (pb.Duration(), "0s"),
        (pb.Duration(seconds=599), "9m59s"),
        (pb.Duration(seconds=599, nanos=999_999_999), "9m59.999999999s"),
        (pb.Duration(seconds=31 * DAY, nanos=1), "744h0.000000001s"),
        (pb.Duration(seconds=-600), "-10m"),
    ],
)
def test_retention_out_of_bounds_is_refused_with_both_bounds(retention: pb.Duration, passed: str) -> None:
    message = refusal(
        "INVALID_ARGUMENT", topics.created_topic, new_topic(message_retention_duration=retention)
    )

    for words in ("message retention duration", "is out of bounds", f"{passed} was", "10m", "744h"):
        assert words in message


def test_a_malformed_duration_is_refused() -> None:
    retention = pb.Duration(seconds=3600, nanos=2_000_000_000)

    message = refusal(
        "INVALID_ARGUMENT", topics.created_topic, new_topic(message_retention_duration=retention)
    )

    assert "(argument=message_retention_duration)" in message


def test_a_bad_label_is_refused() -> None:
    assert "Invalid labels" in refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(labels={"A": ""}))


@pytest.mark.parametrize("regions", [[], [""]])
def test_a_storage_policy_without_a_region_is_refused(regions: list[str]) -> None:
    policy = {"allowed_persistence_regions": regions, "enforce_in_transit": True}

    message = refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(message_storage_policy=policy))

    assert "not a valid configuration" in message


@pytest.mark.parametrize(
    "key", ["k", "projects/p/locations/l/keyRings/r", KEY + "/cryptoKeyVersions/1", KEY + "\n"]
)
def test_a_key_name_of_another_shape_is_refused(key: str) -> None:
    message = refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(kms_key_name=key))

    assert "(argument=kms_key_name)" in message


# --- ingestion -------------------------------------------------------------------------------------------

SOURCES = {
    "aws_kinesis": KINESIS,
    "aws_msk": MSK,
    "confluent_cloud": CONFLUENT,
    "cloud_storage": {"bucket": "b"},
    "azure_event_hubs": {},
}


@pytest.mark.parametrize("kind", SOURCES)
def test_ingestion_settings_are_stored_and_make_the_topic_and_its_source_active(kind: str) -> None:
    source = {**SOURCES[kind], "state": 2}

    topic = topics.created_topic(new_topic(**ingestion(**{kind: source})))

    assert topic.state == pb.Topic.ACTIVE
    stored = getattr(topic.ingestion_data_source_settings, kind)
    assert stored.state == 1
    for field, value in SOURCES[kind].items():
        assert value == getattr(stored, field)


@pytest.mark.parametrize("settings", [{}, {"platform_logs_settings": {"severity": 2}}])
def test_ingestion_settings_without_a_source_are_refused(settings: dict[str, object]) -> None:
    message = refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(**ingestion(**settings)))

    assert "no ingestion source provided" in message


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind, source in SOURCES.items() for field in source]
)
def test_a_source_without_a_required_field_is_refused(kind: str, field: str) -> None:
    source = {**SOURCES[kind], field: ""}

    message = refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(**ingestion(**{kind: source})))

    assert f"{kind}.{field}" in message


@pytest.mark.parametrize("delimiter", ["", "ab"])
def test_a_text_delimiter_of_other_than_one_character_is_refused(delimiter: str) -> None:
    source = {"bucket": "b", "text_format": {"delimiter": delimiter}}

    refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(**ingestion(cloud_storage=source)))


@pytest.mark.parametrize("text_format", [{}, {"delimiter": ";"}, {"delimiter": "é"}])
def test_a_text_delimiter_of_one_character_or_none_is_accepted(text_format: dict[str, str]) -> None:
    source = {"bucket": "b", "text_format": text_format}

    topics.created_topic(new_topic(**ingestion(cloud_storage=source)))


def test_a_malformed_minimum_object_create_time_is_refused() -> None:
    source = {"bucket": "b", "minimum_object_create_time": pb.Timestamp(nanos=-1)}

    refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(**ingestion(cloud_storage=source)))


def test_an_unknown_severity_of_platform_logs_is_refused() -> None:
    settings = ingestion(cloud_storage={"bucket": "b"}, platform_logs_settings={"severity": 99})

    refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(**settings))


# --- features of later work ------------------------------------------------------------------------------

SCHEMA = {"schema": "projects/p/schemas/abc", "encoding": pb.JSON}
UDF = {"javascript_udf": {"function_name": "f", "code": "function f(m) { return m; }"}}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"message_transforms": [UDF]}, "Topic.message_transforms"),
        ({"message_transforms": [{**UDF, "disabled": True}]}, "Topic.message_transforms"),
    ],
)
def test_a_valid_use_of_a_later_feature_is_unimplemented(fields: dict[str, object], name: str) -> None:
    assert name in refusal("UNIMPLEMENTED", topics.created_topic, new_topic(**fields))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"schema": "", "encoding": pb.JSON},
        {"schema": "projects/p/schemas/abc@12345678", "encoding": pb.JSON},
        {"schema": "_deleted-schema_", "encoding": pb.JSON},
        {"schema": "projects/p/schemas/abc"},
        {"schema": "projects/p/schemas/abc", "encoding": 7},
    ],
)
def test_bad_schema_settings_are_refused_as_such(schema: dict[str, object]) -> None:
    refusal("INVALID_ARGUMENT", topics.created_topic, new_topic(schema_settings=schema))


def test_schema_settings_are_stored() -> None:
    request = new_topic(schema_settings=SCHEMA)

    assert request == topics.created_topic(request)


# --- update ----------------------------------------------------------------------------------------------

FULL = new_topic(
    labels={"env": "test"},
    message_storage_policy={"allowed_persistence_regions": ["europe-west1"]},
    message_retention_duration=seconds(DAY),
    ingestion_data_source_settings={"cloud_storage": {"bucket": "b"}},
)


@pytest.fixture
def current() -> pb.Topic:
    return topics.created_topic(FULL)


@pytest.mark.parametrize("mask", [None, pb.FieldMask()])
def test_an_update_without_a_mask_is_refused(current: pb.Topic, mask: pb.FieldMask | None) -> None:
    request = pb.UpdateTopicRequest(topic=new_topic(), update_mask=mask)

    message = refusal("INVALID_ARGUMENT", topics.updated_topic, current, request)

    assert "update_mask in UpdateTopicRequest must be set" in message


@pytest.mark.parametrize("request_topic", [None, pb.Topic(name="orders")])
def test_an_update_without_a_topic_or_with_a_bad_name_is_refused(request_topic: pb.Topic | None) -> None:
    request = pb.UpdateTopicRequest(topic=request_topic, update_mask=pb.FieldMask(paths=["labels"]))

    assert "Invalid resource name given" in refusal("INVALID_ARGUMENT", topics.check_topic_update, request)


@pytest.mark.parametrize("path", ["name", "kms_key_name", "state", "satisfies_pzs", "tags"])
def test_an_immutable_field_in_the_mask_is_refused(current: pb.Topic, path: str) -> None:
    message = refusal("INVALID_ARGUMENT", topics.updated_topic, current, update("labels", path))

    assert f"'{path}' is not mutable" in message


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "nonsense",
        "labels.env",
        "messageRetentionDuration",
        "message_storage_policy.nonsense",
        "message_retention_duration.seconds",
        "ingestion_data_source_settings.cloud_storage",
        "labels,message_retention_duration",
        "a\nb",
    ],
)
def test_an_unknown_path_in_the_mask_is_refused(current: pb.Topic, path: str) -> None:
    message = refusal("INVALID_ARGUMENT", topics.updated_topic, current, update("labels", path))

    assert "is not a known Topic field" in message
    assert "snake_case" in message


def test_one_bad_path_refuses_the_whole_update_and_changes_nothing(current: pb.Topic) -> None:
    before = current.SerializeToString(deterministic=True)

    refusal("INVALID_ARGUMENT", topics.updated_topic, current, update("labels", "name", labels={"a": "b"}))

    assert before == current.SerializeToString(deterministic=True)


def test_a_path_named_twice_is_harmless(current: pb.Topic) -> None:
    assert topics.updated_topic(current, update("labels", "labels", labels={"a": "b"})).labels == {"a": "b"}


def test_labels_are_replaced_as_a_whole(current: pb.Topic) -> None:
    updated = topics.updated_topic(current, update("labels", labels={"team": "x"}))

    assert updated.labels == {"team": "x"}
    assert current.labels == {"env": "test"}


@pytest.mark.parametrize(
    "path",
    ["labels", "message_storage_policy", "message_retention_duration", "ingestion_data_source_settings"],
)
def test_a_masked_field_that_is_absent_is_cleared_and_the_rest_kept(current: pb.Topic, path: str) -> None:
    expected = pb.Topic()
    expected.CopyFrom(FULL)
    expected.ClearField(path)

    assert topics.created_topic(expected) == topics.updated_topic(current, update(path))


def test_fields_outside_the_mask_are_ignored_even_when_invalid(current: pb.Topic) -> None:
    request = update("labels", labels={"a": "b"}, kms_key_name="bad", message_retention_duration=seconds(1))

    updated = topics.updated_topic(current, request)

    assert seconds(DAY) == updated.message_retention_duration
    assert updated.kms_key_name == ""


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("labels", {"labels": {"A": ""}}),
        ("message_retention_duration", {"message_retention_duration": seconds(599)}),
        ("message_storage_policy", {"message_storage_policy": {}}),
        ("ingestion_data_source_settings", {"ingestion_data_source_settings": {}}),
        ("schema_settings", {"schema_settings": {}}),
        ("message_transforms", {"message_transforms": [{}]}),
    ],
)
def test_a_masked_field_is_checked_as_at_creation_and_without_the_topic(
    path: str, fields: dict[str, object]
) -> None:
    refusal("INVALID_ARGUMENT", topics.check_topic_update, update(path, **fields))


def test_a_part_of_the_storage_policy_can_be_replaced(current: pb.Topic) -> None:
    request = update(
        "message_storage_policy.enforce_in_transit", message_storage_policy={"enforce_in_transit": True}
    )

    policy = topics.updated_topic(current, request).message_storage_policy

    assert policy.enforce_in_transit
    assert policy.allowed_persistence_regions == ["europe-west1"]


def test_a_part_that_leaves_the_storage_policy_without_regions_is_refused(current: pb.Topic) -> None:
    request = update("message_storage_policy.allowed_persistence_regions")

    message = refusal("INVALID_ARGUMENT", topics.updated_topic, current, request)

    assert "not a valid configuration" in message


def test_a_path_to_the_whole_field_covers_the_one_to_its_part(current: pb.Topic) -> None:
    request = update(
        "message_storage_policy.enforce_in_transit",
        "message_storage_policy",
        message_storage_policy={"allowed_persistence_regions": ["us-east1"], "enforce_in_transit": True},
    )

    assert (
        request.topic.message_storage_policy == topics.updated_topic(current, request).message_storage_policy
    )


def test_a_part_of_a_policy_that_is_nowhere_set_stays_unset() -> None:
    plain = topics.created_topic(new_topic())

    assert plain == topics.updated_topic(plain, update("message_storage_policy.enforce_in_transit"))


def test_an_update_that_would_turn_a_later_feature_on_is_unimplemented(current: pb.Topic) -> None:
    turn_on = update("message_transforms", message_transforms=[UDF])

    refusal("UNIMPLEMENTED", topics.updated_topic, current, turn_on)


@pytest.mark.parametrize("path", ["schema_settings", "schema_settings.encoding", "message_transforms"])
def test_an_update_that_clears_what_is_not_there_is_fine(current: pb.Topic, path: str) -> None:
    assert current == topics.updated_topic(current, update(path))


def test_a_part_of_the_schema_settings_is_checked_with_the_rest_of_them() -> None:
    current = topics.created_topic(new_topic(schema_settings=SCHEMA))
    binary = update("schema_settings.encoding", schema_settings={"encoding": pb.BINARY})

    updated = topics.updated_topic(current, binary)

    assert (SCHEMA["schema"], pb.BINARY) == (updated.schema_settings.schema, updated.schema_settings.encoding)
    refusal("INVALID_ARGUMENT", topics.updated_topic, current, update("schema_settings.encoding"))


# --- anything at all -------------------------------------------------------------------------------------


@given(any_message(pb.Topic), st.booleans())
def test_any_message_makes_a_topic_or_a_refusal(request: pb.Topic, is_named: bool) -> None:
    if is_named:
        request.name = TOPIC
    try:
        topic = topics.created_topic(request)
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()
    else:
        assert topic == topics.created_topic(topic)


PATHS = [
    *(field.name for field in pb.Topic.DESCRIPTOR.fields),
    "message_storage_policy.enforce_in_transit",
    "schema_settings.encoding",
]


@given(any_message(pb.Topic), st.lists(st.text() | st.sampled_from(PATHS), max_size=4))
def test_any_update_makes_a_topic_or_a_refusal(request: pb.Topic, paths: list[str]) -> None:
    request.name = TOPIC
    mask = pb.FieldMask(paths=paths)
    try:
        topics.updated_topic(
            topics.created_topic(FULL), pb.UpdateTopicRequest(topic=request, update_mask=mask)
        )
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()
