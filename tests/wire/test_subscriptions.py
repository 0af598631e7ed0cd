"""CreateSubscription, UpdateSubscription, Get, Delete, Detach: fields, defaults, masks, refusals."""

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, refused, request_refused
from tests.wire.support import unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
DAY = 86_400
WEEK = pb.Duration(seconds=7 * DAY)
MONTH = pb.Duration(seconds=31 * DAY)


def seconds(number: int, nanos: int = 0) -> pb.Duration:
    return pb.Duration(seconds=number, nanos=nanos)


def days(number: int) -> pb.Duration:
    return seconds(number * DAY)


def expiring(ttl: pb.Duration | None) -> pb.ExpirationPolicy:
    return pb.ExpirationPolicy(ttl=ttl)


def leaf(name: str) -> str:
    return name.rsplit("/", 1)[1]


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


@pytest.fixture
def create(client: Client, topic: str):
    def create(**fields):
        return client.CreateSubscription(**{"name": unique("subscription"), "topic": topic, **fields})

    return create


def update(client: Client, name: str, *paths: str, **fields):
    subscription = pb.Subscription(name=name, **fields)
    return client.UpdateSubscription(subscription=subscription, update_mask=pb.FieldMask(paths=paths))


def plain(name: str, topic: str, **fields) -> pb.Subscription:
    """A pull subscription with every default that the service shows."""
    defaults = dict(
        push_config=pb.PushConfig(),
        ack_deadline_seconds=10,
        message_retention_duration=WEEK,
        expiration_policy=expiring(MONTH),
        state=pb.Subscription.ACTIVE,
    )
    return pb.Subscription(name=name, topic=topic, **{**defaults, **fields})


# CreateSubscription


def test_plain_subscription_shows_its_defaults(client: Client, topic: str, create):
    created = create()
    assert created == plain(created.name, topic)
    assert client.GetSubscription(subscription=created.name) == created


def test_fields_are_stored_and_returned(client: Client, topic: str, create):
    fields = dict(
        ack_deadline_seconds=600,
        retain_acked_messages=True,
        message_retention_duration=days(31),
        labels={"env": "test"},
        expiration_policy=expiring(days(365)),
        enable_exactly_once_delivery=True,
        enable_message_ordering=True,
        filter='attributes.a = "b"',
        retry_policy=pb.RetryPolicy(minimum_backoff=seconds(1), maximum_backoff=seconds(2)),
        dead_letter_policy=pb.DeadLetterPolicy(
            dead_letter_topic=client.CreateTopic(name=unique("topic")).name, max_delivery_attempts=7
        ),
    )
    created = create(**fields)
    assert created == plain(created.name, topic, **fields)
    assert client.GetSubscription(subscription=created.name) == created


def test_output_only_and_input_only_fields_are_ignored(topic: str, create):
    created = create(
        detached=True,
        state=pb.Subscription.RESOURCE_ERROR,
        topic_message_retention_duration=days(3),
        analytics_hub_subscription_info=dict(listing="l"),
        tags={"123/env": "test"},
    )
    assert created == plain(created.name, topic)


def test_existing_name_is_refused_whatever_else_differs(client: Client, create):
    name = create().name
    tokens = ("Resource already exists in the project", f"(resource={leaf(name)})")
    with refused(StatusCode.ALREADY_EXISTS, *tokens):
        create(name=name)
    with refused(StatusCode.ALREADY_EXISTS, *tokens):
        create(name=name, ack_deadline_seconds=33)
    with refused(StatusCode.ALREADY_EXISTS, *tokens):  # its own existence comes before its topic's
        create(name=name, topic=unique("topic"))


def test_topic_may_be_in_another_project(client: Client):
    topic = client.CreateTopic(name=unique("topic", "there")).name
    assert client.CreateSubscription(name=unique("subscription", "here"), topic=topic).topic == topic


@pytest.mark.parametrize("bad", [9, 1, 601, -1, 2**31 - 1, -(2**31)])
def test_ack_deadline_out_of_range_is_refused(create, bad: int):
    tokens = ("Invalid ack deadline given", f"(ack_deadline={bad})", "between 10 and 600 seconds")
    with refused(INVALID_ARGUMENT, *tokens):
        create(ack_deadline_seconds=bad)


@pytest.mark.parametrize(
    ("given", "exactly_once", "effective"), [(0, False, 10), (0, True, 60), (10, True, 10), (600, False, 600)]
)
def test_ack_deadline_and_its_defaults(create, given: int, exactly_once: bool, effective: int):
    created = create(ack_deadline_seconds=given, enable_exactly_once_delivery=exactly_once)
    assert created.ack_deadline_seconds == effective


@pytest.mark.parametrize(
    "bad", [seconds(599), seconds(599, 999_999_999), seconds(0), seconds(-1), seconds(31 * DAY, 1), days(32)]
)
def test_retention_out_of_bounds_is_refused(create, bad):
    tokens = ("message retention duration", "out of bounds", "10m", "744h")
    with refused(INVALID_ARGUMENT, *tokens):
        create(message_retention_duration=bad)


@pytest.mark.parametrize("ttl", [days(1), days(365), None])
def test_expiration_within_its_limits_is_taken(create, ttl):
    created = create(expiration_policy=expiring(ttl), message_retention_duration=seconds(600))
    assert created.expiration_policy == expiring(ttl)


def test_expiration_out_of_its_limits_is_refused(create):
    for bad in (seconds(DAY - 1), seconds(1), seconds(-1)):
        with refused(INVALID_ARGUMENT, "expiration duration", "too small", "24h"):
            create(expiration_policy=expiring(bad), message_retention_duration=seconds(600))
    with refused(INVALID_ARGUMENT):
        create(expiration_policy=expiring(seconds(365 * DAY + 1)))


@pytest.mark.parametrize(("ttl", "retention"), [(days(1), days(1)), (days(30), WEEK), (None, WEEK)])
def test_default_retention_is_not_longer_than_the_expiration(create, ttl, retention):
    assert create(expiration_policy=expiring(ttl)).message_retention_duration == retention


def test_expiration_shorter_than_the_retention_is_refused(create):
    with refused(INVALID_ARGUMENT):
        create(expiration_policy=expiring(days(1)), message_retention_duration=seconds(DAY + 1))


def test_bad_labels_are_refused(create):
    with refused(INVALID_ARGUMENT, "argument=Invalid labels"):
        create(labels={"Bad": "v"})


def test_topic_retention_shows_and_follows_the_topic(client: Client):
    topic = client.CreateTopic(name=unique("topic"), message_retention_duration=days(1)).name
    name = client.CreateSubscription(name=unique("subscription"), topic=topic).name

    def shown():
        found = client.GetSubscription(subscription=name)
        return (
            found.topic_message_retention_duration
            if found.HasField("topic_message_retention_duration")
            else None
        )

    assert shown() == days(1)
    changed = pb.Topic(name=topic, message_retention_duration=days(2))
    mask = pb.FieldMask(paths=["message_retention_duration"])
    client.UpdateTopic(topic=changed, update_mask=mask)
    assert shown() == days(2)
    client.UpdateTopic(topic=pb.Topic(name=topic), update_mask=mask)
    assert shown() is None
    client.UpdateTopic(topic=changed, update_mask=mask)
    client.DeleteTopic(topic=topic)
    assert shown() is None


BAD_LATER_FIELDS = {
    "push scheme": dict(push_config=dict(push_endpoint="ftp://example.com/x")),
    "push without host": dict(push_config=dict(push_endpoint="http://")),
    "push version": dict(
        push_config=dict(push_endpoint="https://example.com/x", attributes={"x-goog-version": "v9"})
    ),
    "two destinations": dict(
        push_config=dict(push_endpoint="https://example.com/x"), bigquery_config=dict(table="p.d.t")
    ),
    "six transforms": dict(
        message_transforms=[
            dict(javascript_udf=dict(function_name=f"f{i}", code=f"function f{i}(m) {{ return m; }}"))
            for i in range(6)
        ]
    ),
}
GOOD_LATER_FIELDS = {
    "bigquery": dict(bigquery_config=dict(table="p.d.t")),
    "cloud storage": dict(cloud_storage_config=dict(bucket="my-bucket")),
    "transforms": dict(
        message_transforms=[dict(javascript_udf=dict(function_name="f", code="function f(m) { return m; }"))]
    ),
}


@pytest.mark.parametrize("fields", BAD_LATER_FIELDS.values(), ids=BAD_LATER_FIELDS)
def test_broken_field_of_later_work_is_refused_as_broken(create, fields):
    with refused(INVALID_ARGUMENT):
        create(**fields)


@pytest.mark.parametrize("fields", GOOD_LATER_FIELDS.values(), ids=GOOD_LATER_FIELDS)
def test_field_of_later_work_is_refused_as_unimplemented(client: Client, create, fields):
    name = unique("subscription")
    with refused(StatusCode.UNIMPLEMENTED) as refusal:
        create(name=name, **fields)
    assert " " in refusal.message
    with refused(StatusCode.NOT_FOUND):
        client.GetSubscription(subscription=name)


def test_dead_letter_policy_names_an_existing_topic(create):
    with refused(StatusCode.NOT_FOUND):
        create(dead_letter_policy=dict(dead_letter_topic=unique("topic")))
    for bad in ("", "nonsense"):
        with refused(INVALID_ARGUMENT, "Invalid resource name given", f"(dead_letter_topic={bad})"):
            create(dead_letter_policy=dict(dead_letter_topic=bad))


def test_field_limits_are_checked_before_existence(create):
    with refused(INVALID_ARGUMENT, "Invalid ack deadline given"):
        create(topic=unique("topic"), ack_deadline_seconds=5)


# UpdateSubscription


@pytest.mark.parametrize("mask", [{}, {"update_mask": pb.FieldMask()}])
def test_empty_mask_is_refused(client: Client, create, mask):
    name = create().name
    with refused(INVALID_ARGUMENT, "update_mask", "UpdateSubscriptionRequest"):
        client.UpdateSubscription(subscription=pb.Subscription(name=name, labels={"a": "b"}), **mask)


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "topic",
        "enable_message_ordering",
        "filter",
        "detached",
        "tags",
        "state",
        "topic_message_retention_duration",
        "analytics_hub_subscription_info",
    ],
)
def test_immutable_path_is_refused(client: Client, create, path: str):
    created = create()
    with refused(INVALID_ARGUMENT, "UpdateSubscriptionRequest", path, "is not mutable"):
        update(client, created.name, "labels", path, labels={"a": "b"})
    assert client.GetSubscription(subscription=created.name) == created


@pytest.mark.parametrize(
    "path",
    [
        "nonsense",
        "*",
        "",
        "ackDeadlineSeconds",
        "labels.env",
        "push_config.push_endpoint",
        "dead_letter_policy.max_delivery_attempts",
        "expiration_policy.ttl",
    ],
)
def test_unknown_path_is_refused(client: Client, create, path: str):
    created = create()
    with refused(INVALID_ARGUMENT, "UpdateSubscriptionRequest", "is not a known Subscription field"):
        update(client, created.name, "labels", path, labels={"a": "b"})
    assert client.GetSubscription(subscription=created.name) == created


def test_missing_subscription_in_the_update_is_refused(client: Client):
    with refused(INVALID_ARGUMENT):
        client.UpdateSubscription(update_mask=pb.FieldMask(paths=["labels"]))


def test_unknown_subscription_is_not_found_but_only_after_the_mask(client: Client):
    name = unique("subscription")
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(name)})."):
        update(client, name, "labels")
    with refused(INVALID_ARGUMENT, "nonsense"):
        update(client, name, "nonsense")
    with refused(INVALID_ARGUMENT, "Invalid ack deadline given"):
        update(client, name, "ack_deadline_seconds", ack_deadline_seconds=5)


def test_update_changes_what_the_mask_names_and_nothing_else(client: Client, topic: str, create):
    name = create(labels={"a": "1"}).name
    updated = update(
        client,
        name,
        "ack_deadline_seconds",
        "retain_acked_messages",
        "message_retention_duration",
        ack_deadline_seconds=33,
        retain_acked_messages=True,
        message_retention_duration=seconds(700),
        labels={"Not": "Looked At"},
        expiration_policy=expiring(seconds(1)),
    )
    expected = plain(
        name,
        topic,
        labels={"a": "1"},
        ack_deadline_seconds=33,
        retain_acked_messages=True,
        message_retention_duration=seconds(700),
    )
    assert updated == expected
    assert client.GetSubscription(subscription=name) == expected


def test_field_absent_from_the_body_goes_back_to_its_default(client: Client, topic: str, create):
    name = create(
        ack_deadline_seconds=33,
        labels={"a": "1"},
        retain_acked_messages=True,
        message_retention_duration=seconds(700),
        expiration_policy=expiring(days(40)),
    ).name
    paths = (
        "ack_deadline_seconds",
        "labels",
        "retain_acked_messages",
        "message_retention_duration",
        "expiration_policy",
    )
    assert update(client, name, *paths) == plain(name, topic)


def test_absent_ack_deadline_is_60_under_exactly_once(client: Client, create):
    name = create(ack_deadline_seconds=33, enable_exactly_once_delivery=True).name
    assert update(client, name, "ack_deadline_seconds").ack_deadline_seconds == 60


def test_absent_retention_is_bounded_by_the_merged_expiration(client: Client, create):
    name = create(message_retention_duration=seconds(700)).name
    updated = update(
        client,
        name,
        "message_retention_duration",
        "expiration_policy",
        expiration_policy=expiring(days(2)),
    )
    assert updated.message_retention_duration == days(2)


def test_empty_expiration_policy_means_never(client: Client, create):
    updated = update(client, create().name, "expiration_policy", expiration_policy=pb.ExpirationPolicy())
    assert updated.expiration_policy == pb.ExpirationPolicy()


def test_rules_across_fields_hold_for_the_merged_result(client: Client, create):
    created = create()
    with refused(INVALID_ARGUMENT):
        update(client, created.name, "expiration_policy", expiration_policy=expiring(days(2)))
    assert client.GetSubscription(subscription=created.name) == created


def test_exactly_once_can_be_switched(client: Client, create):
    name = create().name
    updated = update(client, name, "enable_exactly_once_delivery", enable_exactly_once_delivery=True)
    assert updated.enable_exactly_once_delivery
    assert updated.ack_deadline_seconds == 10
    assert not update(client, name, "enable_exactly_once_delivery").enable_exactly_once_delivery


# Get, Delete, Detach


def test_missing_subscription_is_not_found_by_every_method(client: Client):
    name = unique("subscription")
    tokens = ("Resource not found", f"(resource={leaf(name)}).")
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.GetSubscription(subscription=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.DeleteSubscription(subscription=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.DetachSubscription(subscription=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.Pull(subscription=name, max_messages=1)
    with request_refused(StatusCode.NOT_FOUND, *tokens):
        client.Acknowledge(subscription=name, ack_ids=["x"])
    with request_refused(StatusCode.NOT_FOUND, *tokens):
        client.ModifyAckDeadline(subscription=name, ack_ids=["x"], ack_deadline_seconds=10)


def test_request_is_checked_before_the_subscription_is_looked_for(client: Client):
    name = unique("subscription")
    with refused(INVALID_ARGUMENT, "argument=max_messages"):
        client.Pull(subscription=name, max_messages=0)
    with request_refused(INVALID_ARGUMENT):
        client.Acknowledge(subscription=name)
    with request_refused(INVALID_ARGUMENT, "(ack_deadline=700)"):
        client.ModifyAckDeadline(subscription=name, ack_ids=["x"], ack_deadline_seconds=700)


def test_detached_subscription_keeps_its_name_and_nothing_else(client: Client, topic: str, create):
    name = create().name
    client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x")])
    assert client.DetachSubscription(subscription=name) == pb.DetachSubscriptionResponse()

    assert client.GetSubscription(subscription=name) == plain(name, topic, detached=True)
    assert list(client.ListTopicSubscriptions(topic=topic).subscriptions) == []
    with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
        client.Pull(subscription=name, max_messages=1)
    with refused(StatusCode.FAILED_PRECONDITION, "detached"):
        client.DetachSubscription(subscription=name)
    assert update(client, name, "labels", labels={"a": "b"}).labels == {"a": "b"}
    client.DeleteSubscription(subscription=name)
    with refused(StatusCode.NOT_FOUND):
        client.GetSubscription(subscription=name)


def test_subscription_of_a_deleted_topic_cannot_be_detached(client: Client, topic: str, create):
    name = create().name
    client.DeleteTopic(topic=topic)
    with refused(StatusCode.NOT_FOUND, "Resource not found"):
        client.DetachSubscription(subscription=name)
