"""Publishing with the Python library."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings

from tests.clients.world import Inbox, results


def test_a_batch_gets_one_message_id_per_message(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    publisher = pubsub_v1.PublisherClient(batch_settings=BatchSettings(max_messages=100, max_latency=0.5))

    sent = [publisher.publish(topic, b"%d" % number) for number in range(300)]
    message_ids = results(sent)
    publisher.stop()

    assert len(set(message_ids)) == 300
    assert all(message_id.isdecimal() for message_id in message_ids)
    received = {}
    while len(received) < 300:
        pulled = world.pull(subscription)
        assert pulled, f"only {len(received)} of 300 messages arrived"
        received |= {item.message.message_id: item.message.data for item in pulled}
    assert received == {message_id: b"%d" % number for number, message_id in enumerate(message_ids)}


def test_a_batch_leaves_when_its_latency_is_over(world):
    topic = world.topic()
    publisher = pubsub_v1.PublisherClient(batch_settings=BatchSettings(max_messages=1000, max_latency=0.05))

    assert publisher.publish(topic, b"alone").result(5).isdecimal()
    publisher.stop()


def test_data_attributes_and_publish_time_arrive_as_they_were_published(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)

    future = world.publisher.publish(topic, b"\x00\xff data", language="en", empty="", umlaut="schön")
    message_id = future.result(10)

    (message,) = inbox.wait(1)
    assert message.message_id == message_id
    assert message.data == b"\x00\xff data"
    assert dict(message.attributes) == {"language": "en", "empty": "", "umlaut": "schön"}
    assert message.publish_time.timestamp() > 1_700_000_000
    assert message.delivery_attempt is None


def test_a_message_of_attributes_alone_is_not_empty(world):
    topic = world.topic()
    assert world.publisher.publish(topic, b"", key="value").result(10)


def test_an_empty_message_is_refused(world):
    topic = world.topic()
    with pytest.raises(exceptions.InvalidArgument):
        world.publisher.publish(topic, b"").result(10)


def test_publishing_to_a_missing_topic_is_not_found(world):
    missing = world.publisher.topic_path(world.project, "missing")
    with pytest.raises(exceptions.NotFound):
        world.publisher.publish(missing, b"data").result(10)


def test_ordering_keys_travel_with_their_messages(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    publisher = pubsub_v1.PublisherClient(publisher_options=options)

    results([publisher.publish(topic, b"%d" % n, ordering_key=f"key-{n % 2}") for n in range(10)])
    publisher.stop()

    keys = {item.message.data: item.message.ordering_key for item in world.pull(subscription)}
    assert keys == {b"%d" % n: f"key-{n % 2}" for n in range(10)}


def test_every_subscription_gets_every_message(world):
    topic = world.topic()
    inboxes = [Inbox(lambda message: message.ack()) for _ in range(3)]
    for number, inbox in enumerate(inboxes):
        world.subscribe(world.subscription(topic, f"subscription-{number}"), inbox)

    message_ids = world.publish(topic, 50)

    for inbox in inboxes:
        inbox.wait(50)
        assert sorted(inbox.message_ids) == sorted(message_ids)


def test_a_large_message_passes(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    # Below the 4 MiB that a gRPC client accepts by default: the library does not raise it for an emulator.
    data = bytes(range(256)) * 14_000

    world.publisher.publish(topic, data).result(10)

    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)
    (message,) = inbox.wait(1)
    assert message.data == data
