"""Topics and subscriptions with the Python library: made, read, changed, listed, deleted, and refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.protobuf import field_mask_pb2


@pytest.fixture
def topic(world):
    return world.topic()


@pytest.fixture
def subscription(world, topic):
    return world.subscription(topic)


def update_subscription(world, name, paths, **fields):
    return world.subscriber.update_subscription(
        request={
            "subscription": {"name": name, **fields},
            "update_mask": field_mask_pb2.FieldMask(paths=paths),
        }
    )


def test_a_topic_is_made_and_read(world):
    name = world.publisher.topic_path(world.project, "orders")
    made = world.publisher.create_topic(
        request={"name": name, "labels": {"team": "a"}, "message_retention_duration": timedelta(hours=1)}
    )
    read = world.publisher.get_topic(topic=name)

    assert made == read
    assert read.name == name
    assert dict(read.labels) == {"team": "a"}
    assert read.message_retention_duration == timedelta(hours=1)


def test_a_topic_that_exists_is_not_made_again(world, topic):
    with pytest.raises(exceptions.AlreadyExists, match="already exists"):
        world.publisher.create_topic(name=topic)


@pytest.mark.parametrize("leaf", ["x", "googly", "1st", "a" * 256, "with space", "a/b"])
def test_a_bad_topic_name_is_refused(world, leaf):
    with pytest.raises(exceptions.InvalidArgument, match="Invalid resource name"):
        world.publisher.create_topic(name=f"projects/{world.project}/topics/{leaf}")


def test_a_topic_is_updated_by_its_mask(world, topic):
    updated = world.publisher.update_topic(
        request={
            "topic": {
                "name": topic,
                "labels": {"stage": "test"},
                "message_retention_duration": timedelta(hours=2),
            },
            "update_mask": field_mask_pb2.FieldMask(paths=["labels"]),
        }
    )

    assert dict(updated.labels) == {"stage": "test"}
    assert not updated.message_retention_duration
    assert world.publisher.get_topic(topic=topic) == updated


def test_topics_are_listed_page_by_page(world):
    names = sorted(world.topic(f"topic-{number}") for number in range(5))

    request = {"project": f"projects/{world.project}", "page_size": 2}
    pages = list(world.publisher.list_topics(request=request).pages)

    assert [len(page.topics) for page in pages] == [2, 2, 1]
    assert [topic.name for page in pages for topic in page.topics] == names
    assert [topic.name for topic in world.publisher.list_topics(request=request)] == names


def test_an_unused_project_lists_nothing(world):
    assert list(world.publisher.list_topics(project="projects/never-used")) == []
    assert list(world.subscriber.list_subscriptions(project="projects/never-used")) == []


def test_a_bad_page_is_refused(world):
    project = f"projects/{world.project}"
    with pytest.raises(exceptions.InvalidArgument, match="page_size"):
        list(world.publisher.list_topics(request={"project": project, "page_size": 1001}))
    with pytest.raises(exceptions.InvalidArgument, match="page token"):
        list(world.publisher.list_topics(request={"project": project, "page_token": "made-up"}))


def test_a_deleted_topic_is_gone_and_its_subscription_stays(world, topic, subscription):
    world.publisher.delete_topic(topic=topic)

    with pytest.raises(exceptions.NotFound):
        world.publisher.get_topic(topic=topic)
    with pytest.raises(exceptions.NotFound):
        world.publisher.delete_topic(topic=topic)
    assert world.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"


def test_a_subscription_is_made_with_its_defaults(world, topic):
    name = world.subscriber.subscription_path(world.project, "plain")
    made = world.subscriber.create_subscription(name=name, topic=topic)

    assert made == world.subscriber.get_subscription(subscription=name)
    assert made.topic == topic
    assert made.ack_deadline_seconds == 10
    assert made.message_retention_duration == timedelta(days=7)
    assert made.expiration_policy.ttl == timedelta(days=31)
    assert made.state == pubsub_v1.types.Subscription.State.ACTIVE
    assert not made.enable_exactly_once_delivery


def test_exactly_once_delivery_begins_with_a_deadline_of_a_minute(world, topic):
    name = world.subscriber.subscription_path(world.project, "exactly-once")
    made = world.subscriber.create_subscription(
        request={"name": name, "topic": topic, "enable_exactly_once_delivery": True}
    )
    assert made.enable_exactly_once_delivery
    assert made.ack_deadline_seconds == 60


def test_a_subscription_that_exists_is_not_made_again(world, topic, subscription):
    with pytest.raises(exceptions.AlreadyExists):
        world.subscriber.create_subscription(name=subscription, topic=topic)


def test_a_subscription_needs_its_topic(world):
    with pytest.raises(exceptions.NotFound, match="missing"):
        world.subscription(world.publisher.topic_path(world.project, "missing"))


@pytest.mark.parametrize("seconds", [9, 601, -1])
def test_a_bad_ack_deadline_is_refused(world, topic, seconds):
    with pytest.raises(exceptions.InvalidArgument, match="between 10 and 600"):
        world.subscription(topic, ack_deadline_seconds=seconds)


def test_a_subscription_is_updated_by_its_mask(world, subscription):
    updated = update_subscription(
        world,
        subscription,
        ["ack_deadline_seconds", "labels"],
        ack_deadline_seconds=42,
        labels={"stage": "test"},
        retain_acked_messages=True,
    )

    assert updated.ack_deadline_seconds == 42
    assert dict(updated.labels) == {"stage": "test"}
    assert not updated.retain_acked_messages
    assert world.subscriber.get_subscription(subscription=subscription) == updated


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "update_mask"),
        (["topic"], "not mutable"),
        (["name"], "not mutable"),
        (["filter"], "not mutable"),
        (["colour"], "not a known"),
        (["ack_deadline_seconds", "colour"], "not a known"),
    ],
)
def test_a_bad_mask_is_refused_and_changes_nothing(world, subscription, paths, words):
    before = world.subscriber.get_subscription(subscription=subscription)
    with pytest.raises(exceptions.InvalidArgument, match=words):
        update_subscription(world, subscription, paths, ack_deadline_seconds=42)
    assert world.subscriber.get_subscription(subscription=subscription) == before


def test_updating_what_does_not_exist_is_not_found(world):
    missing = world.subscriber.subscription_path(world.project, "missing")
    with pytest.raises(exceptions.NotFound):
        update_subscription(world, missing, ["labels"])


def test_subscriptions_are_listed_by_project_and_by_topic(world, topic):
    names = sorted(world.subscription(topic, f"subscription-{number}") for number in range(5))
    other = world.subscription(world.topic("other"), "of-another-topic")

    listed = world.subscriber.list_subscriptions(
        request={"project": f"projects/{world.project}", "page_size": 2}
    )
    assert [item.name for item in listed] == sorted([*names, other])
    of_topic = world.publisher.list_topic_subscriptions(request={"topic": topic, "page_size": 2})
    assert list(of_topic) == names


def test_a_deleted_subscription_is_gone(world, topic, subscription):
    world.subscriber.delete_subscription(subscription=subscription)

    with pytest.raises(exceptions.NotFound):
        world.subscriber.get_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        world.subscriber.delete_subscription(subscription=subscription)
    assert list(world.publisher.list_topic_subscriptions(topic=topic)) == []


def test_a_name_can_be_used_again_and_shares_nothing(world, topic, subscription):
    world.publish(topic, 3)
    (received, *_) = world.pull(subscription)
    world.subscriber.delete_subscription(subscription=subscription)
    world.subscriber.create_subscription(name=subscription, topic=topic)

    assert world.pull(subscription) == []
    with pytest.raises(exceptions.InvalidArgument):
        world.subscriber.acknowledge(subscription=subscription, ack_ids=[received.ack_id])


def test_a_detached_subscription_is_left_without_messages(world, topic, subscription):
    world.publish(topic, 3)
    world.publisher.detach_subscription(request={"subscription": subscription})

    assert world.subscriber.get_subscription(subscription=subscription).detached
    assert list(world.publisher.list_topic_subscriptions(topic=topic)) == []
    with pytest.raises(exceptions.FailedPrecondition):
        world.pull(subscription)


@pytest.mark.parametrize(
    "fields",
    [
        {"bigquery_config": {"table": "project.dataset.table"}},
        {"cloud_storage_config": {"bucket": "bucket"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_not_built_yet_says_so(world, topic, fields):
    with pytest.raises(exceptions.MethodNotImplemented):
        world.subscription(topic, **fields)
