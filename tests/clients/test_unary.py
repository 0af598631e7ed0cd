"""Pull, Acknowledge and ModifyAckDeadline with the Python library."""

from __future__ import annotations

import time

import pytest
from google.api_core import exceptions

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])
INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"


@pytest.fixture
def topic(world):
    return world.topic()


def make(world, topic, exactly_once, messages=1):
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    world.publish(topic, messages)
    return subscription


def acknowledge(world, subscription, *ack_ids):
    world.subscriber.acknowledge(subscription=subscription, ack_ids=ack_ids)


def modify(world, subscription, seconds, *ack_ids):
    world.subscriber.modify_ack_deadline(
        subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
    )


@BOTH_MODES
def test_what_was_pulled_and_acknowledged_is_gone(world, topic, exactly_once):
    subscription = make(world, topic, exactly_once, messages=30)

    received = world.pull(subscription)
    acknowledge(world, subscription, *(item.ack_id for item in received))

    assert len({item.ack_id for item in received}) == 30
    assert world.pull(subscription) == []


@BOTH_MODES
def test_what_is_leased_is_not_pulled_again(world, topic, exactly_once):
    subscription = make(world, topic, exactly_once, messages=10)

    first = world.pull(subscription, max_messages=4)
    second = world.pull(subscription)

    assert (len(first), len(second)) == (4, 6)
    assert world.pull(subscription) == []


@BOTH_MODES
def test_a_deadline_of_zero_gives_the_message_back(world, topic, exactly_once):
    subscription = make(world, topic, exactly_once)
    (first,) = world.pull(subscription)

    modify(world, subscription, 0, first.ack_id)

    (second,) = world.pull(subscription)
    assert second.message.message_id == first.message.message_id
    assert second.ack_id != first.ack_id


@BOTH_MODES
def test_pull_waits_for_a_message(world, topic, exactly_once):
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    waiting = world.subscriber.pull

    future = world.publisher.publish(topic, b"soon")
    response = waiting(subscription=subscription, max_messages=10, timeout=10)

    assert [item.message.message_id for item in response.received_messages] == [future.result(10)]


def test_pull_with_nothing_to_give_answers_empty_before_the_deadline_of_the_client(world, topic):
    subscription = world.subscription(topic)
    response = world.subscriber.pull(subscription=subscription, max_messages=10, timeout=3)
    assert list(response.received_messages) == []


def test_an_expired_ack_fails_with_its_reason_under_exactly_once_delivery(world, topic):
    subscription = make(world, topic, exactly_once=True)
    (first,) = world.pull(subscription)
    modify(world, subscription, 1, first.ack_id)
    time.sleep(1.3)

    with pytest.raises(exceptions.InvalidArgument) as refusal:
        acknowledge(world, subscription, first.ack_id)

    assert refusal.value.reason == "EXACTLY_ONCE_ACKID_FAILURE"
    assert refusal.value.domain == "pubsub.googleapis.com"
    assert refusal.value.metadata == {first.ack_id: INVALID}
    (second,) = world.pull(subscription)
    acknowledge(world, subscription, second.ack_id)


def test_only_the_ids_that_failed_are_listed_and_the_others_took_effect(world, topic):
    subscription = make(world, topic, exactly_once=True, messages=2)
    expired, good = world.pull(subscription)
    modify(world, subscription, 1, expired.ack_id)
    time.sleep(1.3)

    with pytest.raises(exceptions.InvalidArgument) as refusal:
        acknowledge(world, subscription, expired.ack_id, good.ack_id)

    assert refusal.value.metadata == {expired.ack_id: INVALID}
    (again,) = world.pull(subscription)
    assert again.message.message_id == expired.message.message_id


def test_an_expired_ack_is_accepted_without_exactly_once_delivery(world, topic):
    subscription = make(world, topic, exactly_once=False)
    (first,) = world.pull(subscription)
    modify(world, subscription, 1, first.ack_id)
    time.sleep(1.3)

    acknowledge(world, subscription, first.ack_id)

    assert world.pull(subscription) == []


@BOTH_MODES
def test_an_ack_may_be_repeated(world, topic, exactly_once):
    subscription = make(world, topic, exactly_once)
    (received,) = world.pull(subscription)
    acknowledge(world, subscription, received.ack_id)
    acknowledge(world, subscription, received.ack_id)


@BOTH_MODES
def test_an_altered_ack_id_is_refused(world, topic, exactly_once):
    subscription = make(world, topic, exactly_once)
    (received,) = world.pull(subscription)
    with pytest.raises(exceptions.InvalidArgument):
        acknowledge(world, subscription, received.ack_id[:-1])
    acknowledge(world, subscription, received.ack_id)


@pytest.mark.parametrize("seconds", [-1, 601])
def test_an_ack_deadline_out_of_range_is_refused(world, topic, seconds):
    subscription = make(world, topic, exactly_once=True)
    (received,) = world.pull(subscription)
    with pytest.raises(exceptions.InvalidArgument, match="Invalid ack deadline"):
        modify(world, subscription, seconds, received.ack_id)


def test_an_empty_list_of_ack_ids_is_refused(world, topic):
    subscription = make(world, topic, exactly_once=True)
    with pytest.raises(exceptions.InvalidArgument):
        acknowledge(world, subscription)


def test_calls_on_a_missing_subscription_are_not_found(world):
    missing = world.subscriber.subscription_path(world.project, "missing")
    with pytest.raises(exceptions.NotFound):
        acknowledge(world, missing, "any")
    with pytest.raises(exceptions.NotFound):
        modify(world, missing, 10, "any")
    with pytest.raises(exceptions.NotFound):
        world.pull(missing)


def test_pulling_less_than_one_message_is_refused(world, topic):
    subscription = world.subscription(topic)
    with pytest.raises(exceptions.InvalidArgument, match="max_messages"):
        world.pull(subscription, max_messages=-1)
