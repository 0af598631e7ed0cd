"""The Python library under load while the server is stopped, or killed, and started again."""

from __future__ import annotations

import threading
import time

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeStatus
from google.cloud.pubsub_v1.types import PublisherOptions

from tests.clients.world import QUICK_RETRY, Inbox, error_of, results

MESSAGES = 2_000
# The library reopens a broken stream at most five times in ten seconds. Under exactly-once delivery what was
# on its way to a subscriber when the server was killed is owed until its deadline, which is a minute away.
PATIENCE_SECONDS = 80


def publish_meanwhile(world, topic):
    """Publish at a steady pace from another thread; the list of futures is complete when it ends."""
    sent = []
    publisher = world.publisher_client(publisher_options=PublisherOptions(retry=QUICK_RETRY))

    def run():
        for number in range(MESSAGES):
            sent.append(publisher.publish(topic, b"%d" % number))
            time.sleep(0.0005)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exactly_once", "end"),
    [
        pytest.param(True, "kill", id="exactly-once-kill"),
        pytest.param(False, "terminate", id="at-least-once-terminate"),
        pytest.param(True, "terminate", id="exactly-once-terminate"),
        pytest.param(False, "kill", id="at-least-once-kill"),
    ],
)
def test_a_restart_under_load_loses_nothing(own_server, own_world, exactly_once, end):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=exactly_once)
    lock = threading.Lock()
    acks = []

    def ack(message):
        answer = message.ack_with_response()
        with lock:
            acks.append((message.message_id, answer))

    inbox = Inbox(ack)
    stream = world.subscribe(subscription, inbox)
    thread, sent = publish_meanwhile(world, topic)

    inbox.wait(MESSAGES // 4)
    getattr(own_server, end)()
    own_server.start()

    thread.join()
    published = set(results(sent, PATIENCE_SECONDS))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not published <= set(inbox.message_ids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert published <= set(inbox.message_ids)
    with lock:
        assert set(results([answer for _, answer in acks], PATIENCE_SECONDS)) == {AcknowledgeStatus.SUCCESS}
    if exactly_once:
        assert len(set(inbox.message_ids)) == len(inbox)
    assert not stream.done()
    assert world.pull(subscription) == []


@pytest.mark.slow
def test_a_graceful_stop_ends_no_subscriber(own_server, own_world):
    """The library comes back at once, while the server is still stopping, and must not be told to give up."""
    world = own_world
    topic = world.topic()
    inboxes, streams = [], []
    for number in range(8):
        subscription = world.subscription(topic, f"subscription-{number}", enable_exactly_once_delivery=True)
        inboxes.append(Inbox(lambda message: message.ack()))
        streams.append(world.subscribe(subscription, inboxes[-1], client=world.subscriber_client()))
    world.publish(topic, 1)
    for inbox in inboxes:
        inbox.wait(1)

    own_server.terminate()
    time.sleep(0.5)

    assert [error_of(stream) for stream in streams if stream.done()] == []
    own_server.start()


def test_calls_during_a_graceful_stop_are_answered_or_unavailable(own_server, own_world):
    """Any other error without details is a success to the library, and the message comes again."""
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    world.publish(topic, 1)
    (received,) = world.pull(subscription)
    errors = []

    def extend():
        client = world.subscriber_client()
        while True:
            try:
                client.modify_ack_deadline(
                    subscription=subscription,
                    ack_ids=[received.ack_id],
                    ack_deadline_seconds=60,
                    retry=None,
                    timeout=5,
                )
            except exceptions.GoogleAPICallError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=extend) for _ in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    own_server.terminate()
    for thread in threads:
        thread.join()

    assert {type(error) for error in errors} == {exceptions.ServiceUnavailable}, errors


def test_leases_and_ack_ids_survive_a_kill(own_server, own_world):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    world.publish(topic, 10)
    received = world.pull(subscription)

    own_server.kill()
    own_server.start()

    assert world.pull(subscription) == []
    world.subscriber.acknowledge(subscription=subscription, ack_ids=[item.ack_id for item in received[:5]])
    world.subscriber.modify_ack_deadline(
        subscription=subscription, ack_ids=[item.ack_id for item in received[5:]], ack_deadline_seconds=0
    )
    again = {item.message.message_id for item in world.pull(subscription)}
    assert again == {item.message.message_id for item in received[5:]}


def test_topics_and_subscriptions_survive_a_kill(own_server, own_world):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, labels={"kept": "yes"}, ack_deadline_seconds=33)
    before = world.subscriber.get_subscription(subscription=subscription)
    message_ids = world.publish(topic, 20)

    own_server.kill()
    own_server.start()

    assert world.subscriber.get_subscription(subscription=subscription) == before
    assert sorted(item.message.message_id for item in world.pull(subscription)) == sorted(message_ids)
    assert len({*message_ids, *world.publish(topic, 20)}) == 40
