"""Dead-letter topics with the Python library: who gets there, when, how often and with which attributes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.types import DeadLetterPolicy

from tests.clients.keyed import LONG_LEASES, Item, KeyedWork, numbers_of, publish_keyed
from tests.clients.world import Inbox, error_of, results

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])

ATTEMPTS_MAX = 5
POISON = "poison"


class Graveyard:
    """A topic with a subscription that forwards to a dead-letter topic, and the one subscription of that."""

    def __init__(self, world, exactly_once=False, **fields):
        self.world = world
        self.topic = world.topic()
        self.dead_letter_topic = world.topic("dead-letters")
        self.dead_letters = world.subscription(self.dead_letter_topic, "dead-letters")
        self.subscription = world.subscription(
            self.topic,
            enable_exactly_once_delivery=exactly_once,
            dead_letter_policy=self.policy,
            **fields,
        )

    @property
    def policy(self):
        return DeadLetterPolicy(dead_letter_topic=self.dead_letter_topic, max_delivery_attempts=ATTEMPTS_MAX)

    def arrived(self, count, seconds=10):
        """The dead letters, as soon as there are that many and no more within half a second."""
        inbox = Inbox(lambda message: message.ack())
        self.world.subscribe(self.dead_letters, inbox, client=self.world.subscriber_client())
        messages = inbox.wait(count, seconds)
        assert inbox.stays_at(count, seconds=0.5)
        return messages


class Attempts:
    """A callback that nacks the poisoned messages and acks the others, and keeps every `delivery_attempt`."""

    def __init__(self):
        self._lock = threading.Lock()
        self.of = defaultdict(list)

    def __call__(self, message):
        with self._lock:
            self.of[message.message_id].append(message.delivery_attempt)
        if POISON in message.attributes:
            message.nack()
        else:
            message.ack()


def nack(world, subscription, *received):
    world.subscriber.modify_ack_deadline(
        subscription=subscription, ack_ids=[item.ack_id for item in received], ack_deadline_seconds=0
    )


def publish_poison(world, topic, count):
    return results([world.publisher.publish(topic, b"bad %d" % n, poison="yes") for n in range(count)])


@BOTH_MODES
def test_what_is_nacked_too_often_is_on_the_dead_letter_topic_once(world, exactly_once):
    graveyard = Graveyard(world, exactly_once)
    attempts = Attempts()
    inbox = Inbox(attempts)
    world.subscribe(graveyard.subscription, inbox)

    good = world.publish(graveyard.topic, 30)
    bad = publish_poison(world, graveyard.topic, 20)

    dead = graveyard.arrived(len(bad))
    assert sorted(message.data for message in dead) == sorted(b"bad %d" % n for n in range(len(bad)))
    expected = {message_id: [1] for message_id in good}
    expected |= {message_id: list(range(1, ATTEMPTS_MAX + 1)) for message_id in bad}
    assert attempts.of == expected
    assert inbox.stays_at(len(good) + ATTEMPTS_MAX * len(bad), seconds=0.5)
    assert world.pull(graveyard.subscription) == []


def test_a_dead_letter_says_where_it_comes_from(world):
    graveyard = Graveyard(world)
    inbox = Inbox(lambda message: message.nack())
    world.subscribe(graveyard.subscription, inbox)
    sent = world.publisher.publish(
        graveyard.topic,
        b"\x00\xff data",
        poison="yes",
        empty="",
        CloudPubSubDeadLetterSourceDeliveryCount="to be overwritten",
    )
    message_id = sent.result(10)

    (dead,) = graveyard.arrived(1)

    source = inbox.messages[0]
    assert source.message_id == message_id
    assert dead.data == b"\x00\xff data"
    assert dict(dead.attributes) == {
        "poison": "yes",
        "empty": "",
        "CloudPubSubDeadLetterSourceDeliveryCount": str(ATTEMPTS_MAX),
        "CloudPubSubDeadLetterSourceSubscription": "subscription",
        "CloudPubSubDeadLetterSourceSubscriptionProject": world.project,
        "CloudPubSubDeadLetterSourceTopicPublishTime": source.publish_time.isoformat(timespec="milliseconds"),
    }
    assert dead.message_id != message_id
    assert dead.publish_time > source.publish_time
    assert dead.delivery_attempt is None


def test_the_attempts_count_nacks_and_expiries_and_nothing_else(world):
    graveyard = Graveyard(world, exactly_once=True)
    inbox = Inbox()
    stream = world.subscribe(graveyard.subscription, inbox)
    world.publish(graveyard.topic, 1)

    def give_back(message):
        message.nack_with_response().result(10)

    def expire(message):
        message.drop()
        message.modify_ack_deadline_with_response(1).result(10)

    for number, end in enumerate([give_back, expire, give_back, expire], start=1):
        message = inbox.wait(number)[-1]
        assert message.delivery_attempt == number
        assert message.modify_ack_deadline_with_response(20).result(10) is AcknowledgeStatus.SUCCESS
        end(message)
    last = inbox.wait(ATTEMPTS_MAX)[-1]
    stream.cancel()
    stream.result(10)

    assert last.delivery_attempt == ATTEMPTS_MAX
    nack(world, graveyard.subscription, last)
    (dead,) = graveyard.arrived(1)
    assert dead.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == str(ATTEMPTS_MAX)


def test_an_ack_of_the_last_attempt_keeps_the_message_from_being_forwarded(world):
    graveyard = Graveyard(world, exactly_once=True)
    answers = []

    def work(message):
        if message.delivery_attempt < ATTEMPTS_MAX:
            message.nack()
        else:
            answers.append(message.ack_with_response())

    inbox = Inbox(work)
    world.subscribe(graveyard.subscription, inbox)
    world.publish(graveyard.topic, 3)

    inbox.wait(3 * ATTEMPTS_MAX)
    time.sleep(0.1)
    assert results(answers) == [AcknowledgeStatus.SUCCESS] * 3
    graveyard.arrived(0)
    assert world.pull(graveyard.subscription) == []


def test_after_the_forward_nothing_can_be_done_to_the_message(world):
    graveyard = Graveyard(world, exactly_once=True)
    answers = []
    inbox = Inbox(lambda message: answers.append(message.nack_with_response()))
    world.subscribe(graveyard.subscription, inbox)
    world.publish(graveyard.topic, 1)
    messages = inbox.wait(ATTEMPTS_MAX)
    graveyard.arrived(1)
    time.sleep(0.1)
    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}

    errors = [error_of(message.ack_with_response()) for message in messages]

    assert all(isinstance(error, AcknowledgeError) for error in errors)
    assert {error.error_code for error in errors} == {AcknowledgeStatus.INVALID_ACK_ID}
    assert world.pull(graveyard.dead_letters) == []
    assert len(inbox) == ATTEMPTS_MAX


@BOTH_MODES
def test_attempts_are_still_known_after_a_kill(own_server, own_world, exactly_once):
    world = own_world
    graveyard = Graveyard(world, exactly_once)
    world.publish(graveyard.topic, 3)
    attempts = []
    for number in range(1, ATTEMPTS_MAX + 1):
        received = world.pull(graveyard.subscription)
        attempts.append([item.delivery_attempt for item in received])
        nack(world, graveyard.subscription, *received)
        if number in (2, ATTEMPTS_MAX):
            own_server.kill()
            own_server.start()

    assert attempts == [[number] * 3 for number in range(1, ATTEMPTS_MAX + 1)]
    assert len(graveyard.arrived(3)) == 3
    assert world.pull(graveyard.subscription) == []


def test_a_key_goes_on_when_its_poisoned_message_is_forwarded(world):
    """In order, and what a nack takes back with it is not an attempt of the others."""
    graveyard = Graveyard(world, exactly_once=True, enable_message_ordering=True)
    poisoned = Item("key", 1)
    publisher = world.ordered_publisher()
    published = publish_keyed(publisher, graveyard.topic, ["key", "other"], range(5))
    work = KeyedWork({poisoned: 100})

    world.subscribe(graveyard.subscription, work, flow_control=LONG_LEASES)

    (dead,) = graveyard.arrived(1, seconds=20)
    assert (dead.ordering_key, dead.data) == ("key", b"1")
    work.wait_acked(len(published) - 1, 20)
    assert numbers_of(work.acked) == {"key": [0, 2, 3, 4], "other": [0, 1, 2, 3, 4]}
    attempts = defaultdict(set)
    for sight in work.seen:
        attempts[sight.item].add(sight.delivery_attempt)
    assert attempts.pop(poisoned) == set(range(1, ATTEMPTS_MAX + 1))
    assert all(numbers == {1} for numbers in attempts.values()), attempts


def test_a_deleted_dead_letter_topic_loses_nothing(world):
    graveyard = Graveyard(world, exactly_once=True)
    world.publisher.delete_topic(topic=graveyard.dead_letter_topic)
    world.publish(graveyard.topic, 1)

    attempts = []
    for _ in range(ATTEMPTS_MAX + 1):
        (received,) = world.pull(graveyard.subscription)
        attempts.append(received.delivery_attempt)
        nack(world, graveyard.subscription, received)
    (received,) = world.pull(graveyard.subscription)
    assert [*attempts, received.delivery_attempt] == list(range(1, ATTEMPTS_MAX + 3))

    # A topic of the same name will do. The message is held until somebody would get what is forwarded there.
    world.publisher.create_topic(name=graveyard.dead_letter_topic)
    graveyard.dead_letters = world.subscription(graveyard.dead_letter_topic, "dead-letters-again")
    nack(world, graveyard.subscription, received)

    (dead,) = graveyard.arrived(1)
    assert dead.data == b"message 0"
    assert dead.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == str(ATTEMPTS_MAX + 2)
    assert world.pull(graveyard.subscription) == []


def test_dead_letters_can_be_dead_lettered_again(world):
    graveyard = Graveyard(world)
    last_topic = world.topic("last")
    last = world.subscription(last_topic, "last")
    world.update(graveyard.dead_letters, dead_letter_policy=DeadLetterPolicy(dead_letter_topic=last_topic))
    for subscription in (graveyard.subscription, graveyard.dead_letters):
        world.subscribe(subscription, lambda message: message.nack(), client=world.subscriber_client())
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(last, inbox, client=world.subscriber_client())

    world.publish(graveyard.topic, 1)

    (message,) = inbox.wait(1)
    assert message.data == b"message 0"
    assert message.attributes["CloudPubSubDeadLetterSourceSubscription"] == "dead-letters"
    assert inbox.stays_at(1, seconds=0.5)


def test_a_policy_that_comes_and_goes_while_the_stream_is_open(world):
    graveyard = Graveyard(world, exactly_once=True)
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(graveyard.subscription, inbox)

    for count, policy in enumerate([graveyard.policy, None, graveyard.policy], start=1):
        world.update(graveyard.subscription, dead_letter_policy=policy)
        world.publish(graveyard.topic, 1)
        inbox.wait(count)

    assert [message.delivery_attempt for message in inbox.messages] == [1, None, 1]
    assert not stream.done()


def test_the_policy_is_returned_with_its_default(world):
    topic, dead_letter_topic = world.topic(), world.topic("dead-letters")
    subscription = world.subscription(topic, dead_letter_policy={"dead_letter_topic": dead_letter_topic})

    policy = world.subscriber.get_subscription(subscription=subscription).dead_letter_policy

    assert policy.dead_letter_topic == dead_letter_topic
    assert policy.max_delivery_attempts == ATTEMPTS_MAX


@pytest.mark.parametrize("attempts", [4, 101, -1])
def test_too_few_or_too_many_attempts_are_refused(world, attempts):
    topic, dead_letter_topic = world.topic(), world.topic("dead-letters")
    policy = DeadLetterPolicy(dead_letter_topic=dead_letter_topic, max_delivery_attempts=attempts)
    with pytest.raises(exceptions.InvalidArgument, match="max_delivery_attempts"):
        world.subscription(topic, dead_letter_policy=policy)


def test_a_policy_needs_an_existing_topic_other_than_its_own(world):
    topic = world.topic()
    missing = world.publisher.topic_path(world.project, "missing")
    with pytest.raises(exceptions.NotFound, match="missing"):
        world.subscription(topic, dead_letter_policy={"dead_letter_topic": missing})
    with pytest.raises(exceptions.InvalidArgument, match="dead_letter_topic"):
        world.subscription(topic, dead_letter_policy={"dead_letter_topic": "dead-letters"})
    with pytest.raises(exceptions.InvalidArgument):
        world.subscription(topic, dead_letter_policy={"dead_letter_topic": topic})
