"""Flow control settings of the Python library, which the server has to honour for each stream."""

from __future__ import annotations

import threading
import time

import pytest
from google.cloud.pubsub_v1.types import FlowControl

from tests.clients.world import Inbox

LIMIT = 5


class Gate:
    """A callback that holds its message until it is let through, and counts how many it holds."""

    def __init__(self):
        self._open = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.held = 0
        self.held_max = 0

    def __call__(self, message):
        with self._lock:
            self.held += 1
            self.held_max = max(self.held, self.held_max)
        self._open.acquire(timeout=20)
        with self._lock:
            self.held -= 1
        message.ack_with_response().result(10)

    def release(self, count=1_000):
        self._open.release(count)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.release()


def test_never_more_than_max_messages_are_outstanding(world, gate):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(gate)
    message_ids = world.publish(topic, 30)
    world.subscribe(subscription, inbox, flow_control=FlowControl(max_messages=LIMIT))

    inbox.wait(LIMIT)
    assert inbox.stays_at(LIMIT, seconds=1)
    # The library reads on when it is down to less than four fifths of its limit: two have to go.
    for let_through in (2, 4, 6):
        gate.release(2)
        inbox.wait(LIMIT + let_through)
        assert inbox.stays_at(LIMIT + let_through, seconds=0.3)
    gate.release()

    inbox.wait(30)
    assert sorted(inbox.message_ids) == sorted(message_ids)
    assert gate.held_max == LIMIT


def test_the_server_keeps_back_what_a_full_subscriber_has_no_room_for(world, gate):
    """Not held by the client: another subscriber gets all of it at once."""
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    full, free = Inbox(gate), Inbox(lambda message: message.ack())
    world.subscribe(subscription, full, flow_control=FlowControl(max_messages=LIMIT))
    world.publish(topic, LIMIT)
    full.wait(LIMIT)

    message_ids = world.publish(topic, 100)
    world.subscribe(subscription, free, client=world.subscriber_client())

    free.wait(100, seconds=5)
    assert sorted(free.message_ids) == sorted(message_ids)
    assert len(full) == LIMIT


def test_max_bytes_is_honoured(world, gate):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(gate)
    for _ in range(10):
        world.publisher.publish(topic, bytes(1_000)).result(10)
    # Sending goes on while the outstanding bytes are below the limit: two messages are, three are not.
    world.subscribe(subscription, inbox, flow_control=FlowControl(max_bytes=2_500))

    inbox.wait(3)
    assert inbox.stays_at(3, seconds=1)
    gate.release()
    inbox.wait(10)


def test_a_message_larger_than_max_bytes_arrives_alone(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    inbox = Inbox(lambda message: message.ack())
    world.publisher.publish(topic, bytes(50_000)).result(10)

    world.subscribe(subscription, inbox, flow_control=FlowControl(max_bytes=1_000))

    inbox.wait(1)


def test_legacy_flow_control_leaves_the_limits_to_the_client(world, gate):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox(gate)
    world.publish(topic, 50)

    world.subscribe(
        subscription, inbox, flow_control=FlowControl(max_messages=LIMIT), use_legacy_flow_control=True
    )

    inbox.wait(LIMIT)
    assert inbox.stays_at(LIMIT, seconds=1)
    # The server was told of no limit, so the client has been given everything and holds it back itself.
    assert world.pull(subscription) == []
    gate.release()
    inbox.wait(50)
    assert gate.held_max <= LIMIT


def test_an_expired_lease_makes_room(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    inbox = Inbox()
    world.publish(topic, 2)
    world.subscribe(subscription, inbox, flow_control=FlowControl(max_messages=1))
    (first,) = inbox.wait(1)
    assert inbox.stays_at(1, seconds=0.5)

    first.drop()
    first.modify_ack_deadline(1)

    time.sleep(1)
    assert inbox.wait(2)[1].ack_with_response().result(10)
