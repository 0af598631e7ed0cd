"""Streaming pull with the Python library, in both modes of delivery."""

from __future__ import annotations

import threading
import time

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.types import FlowControl

from tests.clients.world import Inbox, error_of, results

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])


def open_stream(world, inbox, exactly_once, **options):
    """A topic, a subscription and a stream on it."""
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    stream = world.subscribe(subscription, inbox, **options)
    return topic, subscription, stream


def expire(message):
    """End the lease of `message` by its deadline, without the library extending it meanwhile."""
    message.drop()
    message.modify_ack_deadline(1)
    time.sleep(1.5)


@BOTH_MODES
def test_every_message_arrives_once_and_stays_away_after_its_ack(world, exactly_once):
    inbox = Inbox(lambda message: message.ack())
    topic, _, _ = open_stream(world, inbox, exactly_once)

    message_ids = world.publish(topic, 500)

    inbox.wait(500)
    assert sorted(inbox.message_ids) == sorted(message_ids)
    assert inbox.stays_at(500, seconds=1)


@BOTH_MODES
def test_ack_with_response_succeeds(world, exactly_once):
    answers = []
    inbox = Inbox(lambda message: answers.append(message.ack_with_response()))
    topic, subscription, _ = open_stream(world, inbox, exactly_once)

    world.publish(topic, 200)

    inbox.wait(200)
    time.sleep(0.1)
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}
    assert world.pull(subscription) == []


@BOTH_MODES
def test_the_message_knows_the_mode_of_its_subscription(world, exactly_once):
    inbox = Inbox(lambda message: message.ack())
    topic, _, _ = open_stream(world, inbox, exactly_once)

    world.publish(topic, 1)

    (message,) = inbox.wait(1)
    # Not part of its documented interface, but what decides whether futures mean anything.
    assert message.exactly_once_enabled is exactly_once


def test_an_expired_ack_fails_and_the_message_comes_again(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)

    expire(first)
    error = error_of(first.ack_with_response())

    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    _, second = inbox.wait(2)
    assert second.message_id == first.message_id
    assert second.ack_id != first.ack_id
    assert second.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


def test_an_expired_ack_does_not_hurt_the_new_delivery(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    expire(first)
    _, second = inbox.wait(2)

    assert error_of(first.ack_with_response()) is not None
    assert error_of(first.nack_with_response()) is not None

    assert inbox.stays_at(2, seconds=1)
    assert second.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


def test_every_ack_of_an_expired_batch_is_answered(world):
    """The failures of a whole batch have to fit into what the library's channel to an emulator accepts."""
    count = 500
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, count)
    messages = inbox.wait(count)
    for message in messages:
        message.drop()
        message.modify_ack_deadline(1)
    time.sleep(2.5)

    answers = [message.ack_with_response() for message in messages]

    assert {error_of(answer).error_code for answer in answers} == {AcknowledgeStatus.INVALID_ACK_ID}


@BOTH_MODES
def test_a_nacked_message_comes_again_at_once(world, exactly_once):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)

    assert first.nack_with_response().result(10) is AcknowledgeStatus.SUCCESS

    _, second = inbox.wait(2, seconds=3)
    assert second.message_id == first.message_id
    assert second.ack_id != first.ack_id
    assert second.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


def test_a_nacked_delivery_cannot_be_acked_any_more(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    first.nack_with_response().result(10)

    error = error_of(first.ack_with_response())

    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    inbox.wait(2)[1].ack_with_response().result(10)


def test_an_ack_that_is_repeated_succeeds_again(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (message,) = inbox.wait(1)

    assert message.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    assert message.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    assert inbox.stays_at(1, seconds=1)


@BOTH_MODES
def test_a_callback_that_raises_nacks_its_message(world, exactly_once):
    def fail_once(message):
        if len(inbox) == 1:
            raise ValueError("on purpose")
        message.ack()

    inbox = Inbox(fail_once)
    topic, _, stream = open_stream(world, inbox, exactly_once)
    world.publish(topic, 1)

    inbox.wait(2)
    assert isinstance(error_of(stream), ValueError)


def test_modify_ack_deadline_with_response_succeeds_while_leased(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (message,) = inbox.wait(1)

    assert message.modify_ack_deadline_with_response(30).result(10) is AcknowledgeStatus.SUCCESS
    assert inbox.stays_at(1, seconds=1)
    assert message.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


def test_modify_ack_deadline_with_response_fails_after_expiry(world):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    expire(first)

    error = error_of(first.modify_ack_deadline_with_response(30))

    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    inbox.wait(2)[1].ack_with_response().result(10)


@BOTH_MODES
def test_a_deadline_that_is_shortened_brings_the_message_back_early(world, exactly_once):
    inbox = Inbox()
    topic, _, _ = open_stream(world, inbox, exactly_once)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    first.drop()
    first.modify_ack_deadline(2)

    assert inbox.stays_at(1, seconds=1)
    _, second = inbox.wait(2, seconds=5)
    second.ack_with_response().result(10)


@pytest.mark.slow
def test_the_lease_is_held_for_as_long_as_the_library_extends_it(world):
    inbox = Inbox()
    # The shortest leases that the library can be told to ask for; it extends them in time.
    limits = FlowControl(min_duration_per_lease_extension=10, max_duration_per_lease_extension=10)
    topic, _, _ = open_stream(world, inbox, exactly_once=True, flow_control=limits)
    world.publish(topic, 1)
    (message,) = inbox.wait(1)

    assert inbox.stays_at(1, seconds=12)
    assert message.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


@BOTH_MODES
def test_several_subscribers_share_the_messages(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    inboxes = [Inbox(lambda message: message.ack()) for _ in range(4)]
    for inbox in inboxes:
        world.subscribe(subscription, inbox, client=world.subscriber_client())
    message_ids = []
    while not all(map(len, inboxes)):  # until each stream is open
        message_ids += world.publish(topic, 4)
        time.sleep(0.1)
    before = [len(inbox) for inbox in inboxes]

    message_ids += world.publish(topic, 400)

    end = time.monotonic() + 10
    while sum(map(len, inboxes)) < len(message_ids) and time.monotonic() < end:
        time.sleep(0.05)
    received = [message_id for inbox in inboxes for message_id in inbox.message_ids]
    assert sorted(received) == sorted(message_ids)
    # An equal share is 100; none may get under 70 % of it.
    assert min(len(inbox) - earlier for inbox, earlier in zip(inboxes, before, strict=True)) >= 70


def test_a_stream_on_a_missing_subscription_ends_not_found(world):
    missing = world.subscriber.subscription_path(world.project, "missing")
    stream = world.subscribe(missing, Inbox())
    assert isinstance(error_of(stream), exceptions.NotFound)


def test_deleting_the_subscription_ends_its_stream_not_found(world):
    inbox = Inbox(lambda message: message.ack())
    topic, subscription, stream = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    inbox.wait(1)

    world.subscriber.delete_subscription(subscription=subscription)

    assert isinstance(error_of(stream), exceptions.NotFound)


def test_detaching_the_subscription_ends_its_stream(world):
    inbox = Inbox(lambda message: message.ack())
    topic, subscription, stream = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    inbox.wait(1)

    world.publisher.detach_subscription(request={"subscription": subscription})

    assert isinstance(error_of(stream), exceptions.FailedPrecondition)


def test_deleting_the_topic_leaves_the_stream_and_its_backlog(world):
    gate = threading.Event()

    def hold(message):
        gate.wait(10)
        message.ack()

    inbox = Inbox(hold)
    topic, _, stream = open_stream(world, inbox, True, flow_control=FlowControl(max_messages=5))
    world.publish(topic, 20)
    inbox.wait(5)

    world.publisher.delete_topic(topic=topic)
    gate.set()

    inbox.wait(20)
    assert not stream.done()


def test_exactly_once_switched_on_reaches_the_open_stream(world):
    inbox = Inbox()
    topic, subscription, stream = open_stream(world, inbox, exactly_once=False)
    world.publish(topic, 1)
    inbox.wait(1)[0].ack_with_response().result(10)

    _switch(world, subscription, on=True)
    world.publish(topic, 1)

    message = inbox.wait(2)[1]
    message.nack_with_response().result(10)
    # Only under exactly-once delivery can an ack fail.
    error = error_of(message.ack_with_response())
    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert inbox.wait(3)[2].ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    assert not stream.done()


def test_exactly_once_switched_off_reaches_the_open_stream(world):
    inbox = Inbox()
    topic, subscription, stream = open_stream(world, inbox, exactly_once=True)
    world.publish(topic, 1)
    inbox.wait(1)[0].ack_with_response().result(10)

    _switch(world, subscription, on=False)
    world.publish(topic, 1)

    message = inbox.wait(2)[1]
    message.nack_with_response().result(10)
    assert message.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    assert not stream.done()


def test_switching_exactly_once_under_load_resolves_every_future(world):
    answers = []
    inbox = Inbox(lambda message: answers.append(message.ack_with_response()))
    topic, subscription, stream = open_stream(world, inbox, exactly_once=False)

    message_ids = []
    for on in (True, False, True, False, True):
        message_ids += world.publish(topic, 100)
        _switch(world, subscription, on)
    message_ids += world.publish(topic, 100)

    inbox.wait(600)
    time.sleep(0.2)
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}
    assert sorted(inbox.message_ids) == sorted(message_ids)
    assert not stream.done()


def _switch(world, subscription, on):
    world.subscriber.update_subscription(
        request={
            "subscription": {"name": subscription, "enable_exactly_once_delivery": on},
            "update_mask": {"paths": ["enable_exactly_once_delivery"]},
        }
    )
