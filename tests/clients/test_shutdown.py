"""How a subscriber of the Python library ends, and what becomes of the messages it had."""

from __future__ import annotations

import threading
import time

import pytest
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeStatus
from google.cloud.pubsub_v1.types import FlowControl

from tests.clients.world import Inbox

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])


@BOTH_MODES
def test_cancel_ends_the_stream_and_its_future(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox)
    world.publish(topic, 10)
    inbox.wait(10)

    stream.cancel()

    assert stream.result(5) is True
    assert stream.cancelled()
    world.publish(topic, 5)
    assert inbox.stays_at(10, seconds=0.5)


def test_an_ack_asked_for_before_the_end_is_still_sent(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    answers = []
    inbox = Inbox(lambda message: answers.append(message.ack_with_response()))
    stream = world.subscribe(subscription, inbox, await_callbacks_on_shutdown=True)
    world.publish(topic, 100)
    inbox.wait(100)

    stream.cancel()
    stream.result(10)

    assert all(answer.done() and answer.result() is AcknowledgeStatus.SUCCESS for answer in answers)
    assert len(answers) == 100
    assert world.pull(subscription) == []


@BOTH_MODES
def test_callbacks_that_run_at_the_end_are_awaited_and_their_acks_count(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    finish = threading.Event()
    finished = []

    def work(message):
        finish.wait(10)
        message.ack()
        finished.append(message.message_id)

    inbox = Inbox(work)
    limits = FlowControl(max_messages=3)
    stream = world.subscribe(subscription, inbox, flow_control=limits, await_callbacks_on_shutdown=True)
    world.publish(topic, 3)
    inbox.wait(3)

    stream.cancel()
    time.sleep(0.3)
    assert not stream.done()
    finish.set()
    stream.result(10)

    assert sorted(finished) == sorted(inbox.message_ids)
    assert world.pull(subscription) == []


@BOTH_MODES
def test_messages_received_but_not_begun_go_to_the_next_subscriber(world, exactly_once):
    """The library nacks what it holds when it is closed."""
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    finish = threading.Event()

    def work(message):
        finish.wait(10)
        message.ack()

    busy = Inbox(work)
    # Published first, so that all of them come in the one response that the library reads before it is full.
    message_ids = world.publish(topic, 20)
    stream = world.subscribe(
        subscription,
        busy,
        flow_control=FlowControl(max_messages=2),
        use_legacy_flow_control=True,
        await_callbacks_on_shutdown=True,
    )
    busy.wait(2)
    time.sleep(0.3)

    stream.cancel()
    time.sleep(0.3)
    finish.set()
    stream.result(10)
    rest = Inbox(lambda message: message.ack())
    world.subscribe(subscription, rest, client=world.subscriber_client())

    rest.wait(18, seconds=5)
    assert sorted(busy.message_ids + rest.message_ids) == sorted(message_ids)


def _unseen(world, exactly_once):
    """Close a subscriber to which messages were sent that it never read.

    Returns the subscription and the message ids of the unread messages.
    """
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    finish = threading.Event()
    busy = Inbox(lambda message: finish.wait(20))
    stream = world.subscribe(
        subscription, busy, flow_control=FlowControl(max_messages=3), use_legacy_flow_control=True
    )
    # Three callbacks fill the client; it has confirmed the receipt of their messages and stops reading.
    world.publish(topic, 3)
    busy.wait(3)
    time.sleep(0.5)
    unread = world.publish(topic, 20)
    time.sleep(2)
    assert len(busy) == 3
    assert world.pull(subscription) == [], "the server did not send to a stream without a limit"

    stream.cancel()
    stream.result(10)
    finish.set()
    return subscription, unread


def test_messages_sent_but_never_read_come_back_at_once(world):
    """Otherwise each closed subscriber would hold up messages for a lease of 60 seconds."""
    subscription, unread = _unseen(world, exactly_once=False)
    inbox = Inbox(lambda message: message.ack())

    world.subscribe(subscription, inbox, client=world.subscriber_client())

    inbox.wait(20, seconds=5)
    assert sorted(inbox.message_ids) == sorted(unread)


def test_under_exactly_once_delivery_no_lease_is_cut_short(world):
    subscription, _ = _unseen(world, exactly_once=True)
    inbox = Inbox(lambda message: message.ack())

    world.subscribe(subscription, inbox, client=world.subscriber_client())

    assert inbox.stays_at(0, seconds=3)


@BOTH_MODES
def test_a_subscriber_can_be_closed_and_opened_again_and_again(world, exactly_once):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    message_ids, received = [], []
    for _ in range(5):
        inbox = Inbox(lambda message: message.ack())
        message_ids += world.publish(topic, 20)
        stream = world.subscribe(subscription, inbox, await_callbacks_on_shutdown=True)
        inbox.wait(20, seconds=5)
        stream.cancel()
        stream.result(5)
        received += inbox.message_ids
        # The server has to hear of the end before the next message, or would lease it to the closed stream.
        time.sleep(0.2)
    assert sorted(received) == sorted(message_ids)
