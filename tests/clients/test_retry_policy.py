"""Retry policies with the Python library: how long a message stays away after it failed."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.types import RetryPolicy

from tests.clients.keyed import LONG_LEASES, Item, KeyedWork, publish_keyed
from tests.clients.world import Inbox, error_of

BOTH_MODES = pytest.mark.parametrize(
    "exactly_once",
    [
        pytest.param(True, id="exactly-once"),
        pytest.param(False, id="at-least-once", marks=pytest.mark.slow),
    ],
)

# The service calls its back-off approximate; a tenth less is early.
EARLY = 0.9
# For a machine that has other things to do.
LATE_SECONDS = 3.0


def backoff(minimum, maximum):
    return RetryPolicy(minimum_backoff=timedelta(seconds=minimum), maximum_backoff=timedelta(seconds=maximum))


class Times:
    """A callback that does `action` and keeps when it was called, on the clock of the test."""

    def __init__(self, action):
        self._action = action
        self._lock = threading.Lock()
        self.seconds = []

    def __call__(self, message):
        with self._lock:
            self.seconds.append(time.monotonic())
        self._action(message)

    @property
    def gaps(self):
        return [later - earlier for earlier, later in pairwise(self.seconds)]


def assert_delays(gaps, delays):
    assert len(gaps) == len(delays)
    for gap, delay in zip(gaps, delays, strict=True):
        assert EARLY * delay <= gap <= 1.1 * delay + LATE_SECONDS, (gaps, delays)


@BOTH_MODES
def test_the_delay_doubles_up_to_its_maximum(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(
        topic, retry_policy=backoff(0.5, 1.5), enable_exactly_once_delivery=exactly_once
    )
    times = Times(lambda message: message.nack())
    inbox = Inbox(times)
    world.subscribe(subscription, inbox)

    world.publish(topic, 1)

    inbox.wait(5)
    assert_delays(times.gaps[:4], [0.5, 1.0, 1.5, 1.5])


def test_other_messages_are_not_delayed(world):
    topic = world.topic()
    subscription = world.subscription(topic, retry_policy=backoff(60, 600), enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.nack() if message.data == b"message 0" else message.ack())
    world.subscribe(subscription, inbox)

    message_ids = world.publish(topic, 100)

    inbox.wait(100, seconds=5)
    assert sorted(inbox.message_ids) == sorted(message_ids)
    assert inbox.stays_at(100, seconds=0.5)


def test_an_expired_lease_is_delayed_too(world):
    topic = world.topic()
    subscription = world.subscription(topic, retry_policy=backoff(1, 600), enable_exactly_once_delivery=True)
    times = Times(lambda message: message.drop())
    inbox = Inbox(times)
    world.subscribe(subscription, inbox)
    world.publish(topic, 1)
    (message,) = inbox.wait(1)

    message.modify_ack_deadline_with_response(1).result(10)
    shortened = time.monotonic()

    inbox.wait(2)
    assert_delays([times.seconds[1] - shortened - 1], [1])


def test_the_ack_id_of_a_delayed_message_is_of_no_use(world):
    topic = world.topic()
    subscription = world.subscription(topic, retry_policy=backoff(1, 600), enable_exactly_once_delivery=True)
    inbox = Inbox()
    world.subscribe(subscription, inbox)
    world.publish(topic, 1)
    (first,) = inbox.wait(1)
    assert first.nack_with_response().result(10) is AcknowledgeStatus.SUCCESS

    error = error_of(first.ack_with_response())

    assert isinstance(error, AcknowledgeError)
    assert error.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert inbox.wait(2)[1].ack_with_response().result(10) is AcknowledgeStatus.SUCCESS


def test_a_delay_holds_its_key_and_no_other(world):
    topic = world.topic()
    subscription = world.subscription(
        topic, retry_policy=backoff(4, 600), enable_message_ordering=True, enable_exactly_once_delivery=True
    )
    work = KeyedWork({Item("failing", 0): 1})
    world.subscribe(subscription, work, flow_control=LONG_LEASES)
    publisher = world.ordered_publisher()
    publish_keyed(publisher, topic, ["failing"], [0])
    work.wait_seen(1, 10)
    time.sleep(0.5)
    begin = time.monotonic()

    publish_keyed(publisher, topic, ["failing"], [1, 2])
    publish_keyed(publisher, topic, ["free"], range(3))

    work.wait_acked(3, 3)
    assert {sight.item.key for sight in work.acked} == {"free"}
    work.wait_acked(6, 10)
    assert time.monotonic() - begin > 0.5
    assert [sight.item.number for sight in work.acked if sight.item.key == "failing"] == [0, 1, 2]
    assert len(work.seen) == 7


def test_a_delay_survives_a_kill(own_server, own_world):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, retry_policy=backoff(3, 600), enable_exactly_once_delivery=True)
    world.publish(topic, 1)
    (received,) = world.pull(subscription)
    world.subscriber.modify_ack_deadline(
        subscription=subscription, ack_ids=[received.ack_id], ack_deadline_seconds=0
    )
    nacked = time.monotonic()

    own_server.kill()
    own_server.start()
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)

    (message,) = inbox.wait(1)
    assert message.message_id == received.message.message_id
    assert time.monotonic() - nacked >= EARLY * 3


def test_a_policy_that_comes_and_goes_while_the_stream_is_open(world):
    """It applies to what fails after the change."""
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox()
    stream = world.subscribe(subscription, inbox)
    world.publish(topic, 1)
    inbox.wait(1)

    gaps = []
    for count, policy in enumerate([None, backoff(2, 2), None], start=1):
        world.update(subscription, retry_policy=policy)
        nacked = time.monotonic()
        inbox.messages[-1].nack()
        inbox.wait(count + 1)
        gaps.append(time.monotonic() - nacked)

    assert_delays(gaps, [0, 2, 0])
    assert not stream.done()


def test_the_policy_is_returned_with_its_defaults(world):
    topic = world.topic()
    subscription = world.subscription(topic, retry_policy={})

    policy = world.subscriber.get_subscription(subscription=subscription).retry_policy

    assert policy.minimum_backoff == timedelta(seconds=10)
    assert policy.maximum_backoff == timedelta(seconds=600)


@pytest.mark.parametrize(
    ("minimum", "maximum", "word"),
    [(-1, 10, "minimum_backoff"), (10, 601, "maximum_backoff"), (20, 10, "maximum_backoff")],
)
def test_a_policy_out_of_bounds_is_refused(world, minimum, maximum, word):
    topic = world.topic()
    with pytest.raises(exceptions.InvalidArgument, match=word):
        world.subscription(topic, retry_policy=backoff(minimum, maximum))
