"""Seek with the Python library: what is replayed, what is purged, and what becomes of what is outstanding."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus

from tests.clients.keyed import LONG_LEASES, KeyedWork, numbers_of, publish_keyed
from tests.clients.world import Inbox, error_of, results

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])

# By then the library has sent the acks that its callbacks asked for.
SENT_SECONDS = 0.5

LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)


def in_a_day():
    return datetime.now(UTC) + timedelta(days=1)


def seek(world, subscription, **target):
    world.subscriber.seek(request={"subscription": subscription, **target})


def publish_apart(world, topic, count):
    """Publishes one by one, so that each message has a publish time of its own; returns the message ids."""
    message_ids = []
    for number in range(count):
        message_ids.append(world.publisher.publish(topic, b"%d" % number).result(10))
        time.sleep(0.002)
    return message_ids


def data_of(messages):
    return [int(message.data) for message in messages]


def pulled(world, subscription):
    return sorted(data_of(item.message for item in world.pull(subscription)))


@BOTH_MODES
def test_acked_messages_come_again_on_the_open_stream(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(
        topic, retain_acked_messages=True, enable_exactly_once_delivery=exactly_once
    )
    answers = []
    inbox = Inbox(lambda message: answers.append(message.ack_with_response()))
    stream = world.subscribe(subscription, inbox)
    message_ids = publish_apart(world, topic, 20)
    messages = {message.message_id: message for message in inbox.wait(20)}
    time.sleep(SENT_SECONDS)
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}

    # From this message on, itself included.
    seek(world, subscription, time=messages[message_ids[8]].publish_time)

    again = inbox.wait(32)[20:]
    assert sorted(message.message_id for message in again) == sorted(message_ids[8:])
    assert inbox.stays_at(32, seconds=0.5)
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}
    assert not stream.done()
    stream.cancel()
    stream.result(10)
    assert world.pull(subscription) == []


def test_everything_that_is_retained_comes_again(world):
    topic = world.topic()
    subscription = world.subscription(topic, retain_acked_messages=True, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)
    message_ids = world.publish(topic, 500)
    inbox.wait(500)
    time.sleep(SENT_SECONDS)

    for times in (2, 3):
        seek(world, subscription, time=LONG_AGO)
        inbox.wait(times * 500)
        time.sleep(SENT_SECONDS)

    assert sorted(inbox.message_ids) == sorted(message_ids * 3)


def test_the_old_ack_id_of_a_replayed_message_is_of_no_use(world):
    topic = world.topic()
    subscription = world.subscription(topic, retain_acked_messages=True, enable_exactly_once_delivery=True)
    inbox = Inbox()
    world.subscribe(subscription, inbox)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    assert first.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS

    seek(world, subscription, time=LONG_AGO)
    _, second = inbox.wait(2)
    error = error_of(first.ack_with_response())

    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert second.message_id == first.message_id
    assert second.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    assert inbox.stays_at(2, seconds=0.5)


def test_a_message_that_was_never_acked_keeps_its_lease(world):
    topic = world.topic()
    subscription = world.subscription(topic, retain_acked_messages=True, enable_exactly_once_delivery=True)
    inbox = Inbox()
    world.subscribe(subscription, inbox)
    world.publish(topic, 5)
    messages = inbox.wait(5)

    seek(world, subscription, time=LONG_AGO)

    assert inbox.stays_at(5, seconds=0.5)
    answers = [message.ack_with_response() for message in messages]
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}


def test_a_seek_into_the_future_acks_what_is_outstanding(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox()
    world.subscribe(subscription, inbox)
    world.publish(topic, 2)
    acked, nacked = inbox.wait(2)

    seek(world, subscription, time=in_a_day())

    assert acked.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS
    error = error_of(nacked.nack_with_response())
    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert inbox.stays_at(2, seconds=0.5)


@BOTH_MODES
def test_a_seek_into_the_future_purges_the_backlog_and_nothing_later(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    world.publish(topic, 200)

    seek(world, subscription, time=in_a_day())

    assert world.pull(subscription) == []
    message_ids = world.publish(topic, 3)
    assert sorted(item.message.message_id for item in world.pull(subscription)) == sorted(message_ids)


def test_a_seek_purges_what_is_older_and_keeps_the_rest(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    other = world.subscription(topic, "other")
    publish_apart(world, topic, 10)
    times = {int(item.message.data): item.message.publish_time for item in world.pull(other)}

    seek(world, subscription, time=times[6])

    assert pulled(world, subscription) == [6, 7, 8, 9]


def test_without_retention_nothing_comes_again(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)
    world.publish(topic, 10)
    inbox.wait(10)
    time.sleep(SENT_SECONDS)

    seek(world, subscription, time=LONG_AGO)

    assert inbox.stays_at(10, seconds=0.5)


def test_retention_that_begins_while_the_stream_is_open(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)

    world.update(subscription, retain_acked_messages=True)
    message_ids = world.publish(topic, 10)
    inbox.wait(10)
    time.sleep(SENT_SECONDS)
    seek(world, subscription, time=LONG_AGO)

    assert sorted(message.message_id for message in inbox.wait(20)[10:]) == sorted(message_ids)


def test_a_topic_that_retains_gives_a_new_subscription_what_came_before_it(world):
    topic = world.publisher.topic_path(world.project, "retaining")
    world.publisher.create_topic(request={"name": topic, "message_retention_duration": timedelta(hours=1)})
    message_ids = world.publish(topic, 20)
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)
    assert inbox.stays_at(0, seconds=0.3)

    seek(world, subscription, time=LONG_AGO)

    inbox.wait(20)
    assert sorted(inbox.message_ids) == sorted(message_ids)


def test_a_replay_is_in_the_order_of_its_keys(world):
    topic = world.topic()
    subscription = world.subscription(
        topic,
        retain_acked_messages=True,
        enable_message_ordering=True,
        enable_exactly_once_delivery=True,
    )
    work = KeyedWork()
    world.subscribe(subscription, work, flow_control=LONG_LEASES)
    keys = ["a", "b", "c"]
    publish_keyed(world.ordered_publisher(), topic, keys, range(20))
    work.wait_acked(60, 20)

    seek(world, subscription, time=LONG_AGO)
    end = time.monotonic() + 20
    while len(work.acked) < 120 and time.monotonic() < end:
        time.sleep(0.05)

    assert numbers_of(work.acked) == {key: [*range(20), *range(20)] for key in keys}
    assert work.failures == []


def test_a_replay_obeys_the_filter(world):
    topic = world.topic()
    subscription = world.subscription(topic, retain_acked_messages=True, filter="attributes:wanted")
    for data, fields in {b"0": {}, b"1": {"wanted": "yes"}, b"2": {}}.items():
        world.publisher.publish(topic, data, **fields).result(10)
    (received,) = world.pull(subscription)
    world.subscriber.acknowledge(subscription=subscription, ack_ids=[received.ack_id])

    seek(world, subscription, time=LONG_AGO)

    assert pulled(world, subscription) == [1]


@BOTH_MODES
def test_a_replay_goes_on_after_a_kill(own_server, own_world, exactly_once):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(
        topic, retain_acked_messages=True, enable_exactly_once_delivery=exactly_once
    )
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox, await_callbacks_on_shutdown=True)
    message_ids = world.publish(topic, 200)
    inbox.wait(200)
    time.sleep(SENT_SECONDS)
    stream.cancel()
    stream.result(10)

    seek(world, subscription, time=LONG_AGO)
    first_half = world.pull(subscription)
    world.subscriber.acknowledge(subscription=subscription, ack_ids=[item.ack_id for item in first_half])
    own_server.kill()
    own_server.start()
    rest = Inbox(lambda message: message.ack())
    world.subscribe(subscription, rest)

    rest.wait(200 - len(first_half))
    replayed = [item.message.message_id for item in first_half] + rest.message_ids
    assert sorted(replayed) == sorted(message_ids)
    assert rest.stays_at(200 - len(first_half), seconds=0.3)


def test_other_subscriptions_notice_nothing(world):
    topic = world.topic()
    subscription = world.subscription(topic, retain_acked_messages=True)
    other = world.subscription(topic, "other", retain_acked_messages=True)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(other, inbox)
    world.publish(topic, 50)
    inbox.wait(50)

    seek(world, subscription, time=in_a_day())
    seek(world, subscription, time=LONG_AGO)

    assert inbox.stays_at(50, seconds=0.5)
    assert not stream.done()


def test_a_seek_needs_a_target_and_a_subscription(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    missing = world.subscriber.subscription_path(world.project, "missing")
    with pytest.raises(exceptions.InvalidArgument):
        seek(world, subscription)
    with pytest.raises(exceptions.NotFound, match="missing"):
        seek(world, missing, time=LONG_AGO)
    with pytest.raises(exceptions.NotFound, match="missing"):
        seek(world, subscription, snapshot=world.subscriber.snapshot_path(world.project, "missing"))
