"""Subscriptions and topics that are changed while the Python library has a stream open on them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import ExpirationPolicy, RetryPolicy

from tests.clients.world import Inbox

CHANGES = [
    pytest.param({"ack_deadline_seconds": 33}, {"ack_deadline_seconds": 60}, id="ack_deadline_seconds"),
    pytest.param({"labels": {"stage": "test"}}, {"labels": {}}, id="labels"),
    pytest.param({"retain_acked_messages": True}, {"retain_acked_messages": False}, id="retain"),
    pytest.param(
        {"message_retention_duration": timedelta(hours=1)},
        {"message_retention_duration": timedelta(days=7)},
        id="message_retention_duration",
    ),
    pytest.param(
        {"expiration_policy": ExpirationPolicy(ttl=timedelta(days=20))},
        {"expiration_policy": ExpirationPolicy(ttl=timedelta(days=31))},
        id="expiration_policy",
    ),
    pytest.param(
        {
            "retry_policy": RetryPolicy(
                minimum_backoff=timedelta(seconds=1.5), maximum_backoff=timedelta(seconds=20)
            )
        },
        {"retry_policy": RetryPolicy()},
        id="retry_policy",
    ),
    pytest.param(
        {"enable_exactly_once_delivery": False}, {"enable_exactly_once_delivery": False}, id="exactly_once"
    ),
]


def values_of(subscription, fields):
    return {field: getattr(subscription, field) for field in fields}


@pytest.mark.parametrize(("fields", "defaults"), CHANGES)
def test_the_stream_goes_on_while_a_field_is_set_and_cleared(world, fields, defaults):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox)
    world.publish(topic, 5)
    inbox.wait(5)

    assert values_of(world.update(subscription, **fields), fields) == fields
    assert values_of(world.subscriber.get_subscription(subscription=subscription), fields) == fields
    world.publish(topic, 5)
    inbox.wait(10)

    assert values_of(world.update(subscription, *fields), fields) == defaults
    message_ids = world.publish(topic, 5)
    inbox.wait(15)
    assert sorted(inbox.message_ids[10:]) == sorted(message_ids)
    assert inbox.stays_at(15, seconds=0.3)
    assert not stream.done()


def test_an_expiration_policy_without_a_ttl_is_never(world):
    topic = world.topic()
    subscription = world.subscription(topic)

    updated = world.update(subscription, expiration_policy=ExpirationPolicy())

    assert "expiration_policy" in updated
    assert "ttl" not in updated.expiration_policy


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"message_retention_duration": timedelta(minutes=9)}, "retention"),
        ({"message_retention_duration": timedelta(days=32)}, "retention"),
        ({"expiration_policy": ExpirationPolicy(ttl=timedelta(hours=23))}, "expiration"),
        ({"retry_policy": RetryPolicy(minimum_backoff=timedelta(seconds=601))}, "minimum_backoff"),
        ({"dead_letter_policy": {"dead_letter_topic": "nonsense"}}, "dead_letter_topic"),
    ],
)
def test_a_refused_update_leaves_the_subscription_and_its_stream(world, fields, word):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox)
    before = world.subscriber.get_subscription(subscription=subscription)

    with pytest.raises(exceptions.InvalidArgument, match=word):
        world.update(subscription, labels={"not": "taken"}, **fields)

    assert world.subscriber.get_subscription(subscription=subscription) == before
    world.publish(topic, 3)
    inbox.wait(3)
    assert not stream.done()


def test_a_subscription_shows_how_long_its_topic_retains(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox)

    shown = []
    for duration in (timedelta(hours=1), None):
        world.publisher.update_topic(
            request={
                "topic": {"name": topic, "message_retention_duration": duration},
                "update_mask": {"paths": ["message_retention_duration"]},
            }
        )
        found = world.subscriber.get_subscription(subscription=subscription)
        shown.append(found.topic_message_retention_duration)

    assert shown == [timedelta(hours=1), timedelta(0)]
    world.publish(topic, 3)
    inbox.wait(3)
    assert not stream.done()
