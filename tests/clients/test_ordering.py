"""Ordering keys with the Python library: in order per key, whatever is nacked and whoever dies."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import PublishToPausedOrderingKeyException
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeStatus

from tests.clients.keyed import (
    LONG_LEASES,
    PATIENCE_SECONDS,
    SETTLE_SECONDS,
    Item,
    KeyedWork,
    first_numbers_of,
    numbers_of,
    publish_keyed,
    random_nacks,
)
from tests.clients.world import Inbox, results

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])

KEYS = [f"key-{number}" for number in range(6)]
NUMBERS = list(range(12))


def ordered(world, exactly_once, **fields):
    """A topic and a subscription that keeps the order of its keys."""
    topic = world.topic()
    subscription = world.subscription(
        topic, enable_message_ordering=True, enable_exactly_once_delivery=exactly_once, **fields
    )
    return topic, subscription


def assert_worked_off(world, subscription, work, published, exactly_once):
    """Every message was begun for the first time in the order of its key, and is acked for good."""
    in_order = numbers_of_published(published)
    work.wait_acked(len(published), PATIENCE_SECONDS)
    assert first_numbers_of(work.seen) == in_order
    assert {sight.message_id for sight in work.seen} == set(published.values())
    if exactly_once:
        assert numbers_of(work.acked) == in_order
        assert Counter(sight.message_id for sight in work.acked) == dict.fromkeys(published.values(), 1)
        assert work.is_quiet(0.5)
    # Without exactly-once delivery, what came twice is still being worked off a second time.
    end = time.monotonic() + PATIENCE_SECONDS
    while not work.is_quiet(0.5):
        assert time.monotonic() < end
    assert world.pull(subscription) == []
    assert work.failures == []


def numbers_of_published(published):
    numbers = defaultdict(list)
    for item in published:
        numbers[item.key].append(item.number)
    return dict(numbers)


@BOTH_MODES
def test_messages_arrive_in_the_order_of_their_key(world, exactly_once):
    topic, subscription = ordered(world, exactly_once)
    work = KeyedWork()
    stream = world.subscribe(subscription, work, flow_control=LONG_LEASES)

    published = publish_keyed(world.ordered_publisher(max_messages=7), topic, KEYS, range(50))

    assert_worked_off(world, subscription, work, published, exactly_once)
    assert len(work.seen) == len(published)
    assert not stream.done()


@BOTH_MODES
def test_the_order_is_kept_across_nacks(world, exactly_once):
    topic, subscription = ordered(world, exactly_once)
    published = publish_keyed(world.ordered_publisher(), topic, KEYS, NUMBERS)
    nacks = random_nacks(1, KEYS, NUMBERS)
    work = KeyedWork(nacks)

    world.subscribe(subscription, work, flow_control=LONG_LEASES)

    assert_worked_off(world, subscription, work, published, exactly_once)
    assert len(work.seen) >= len(published) + sum(nacks.values())


def test_every_answer_is_right_if_the_server_confirms(confirming_world):
    """The library tries an ack again after a second here, if another one of its request fails."""
    world, keys, numbers = confirming_world, KEYS[:3], NUMBERS[:6]
    topic, subscription = ordered(world, exactly_once=True)
    published = publish_keyed(world.ordered_publisher(), topic, keys, numbers)
    work = KeyedWork(random_nacks(6, keys, numbers), confirming=True)

    world.subscribe(subscription, work, flow_control=LONG_LEASES)

    assert_worked_off(world, subscription, work, published, exactly_once=True)


@pytest.mark.slow
@BOTH_MODES
def test_the_order_is_kept_across_nacks_and_a_kill(own_server, own_world, exactly_once):
    world = own_world
    topic, subscription = ordered(world, exactly_once)
    publisher = world.ordered_publisher()
    published = publish_keyed(publisher, topic, KEYS, NUMBERS)
    work = KeyedWork(random_nacks(2, KEYS, NUMBERS))
    stream = world.subscribe(subscription, work, flow_control=LONG_LEASES)
    work.wait_acked(len(published) // 3, PATIENCE_SECONDS)

    # Nothing may be on its way to the subscriber now: what gets lost there is owed until its deadline.
    work.gate.clear()
    time.sleep(2 * SETTLE_SECONDS)
    own_server.kill()
    # Acks, nacks and publishes of which the killed server knows nothing; the library repeats them.
    work.gate.set()
    late = [
        (Item(key, number), publisher.publish(topic, b"%d" % number, ordering_key=key))
        for number in range(20)
        for key in ("late-0", "late-1")
    ]
    time.sleep(SETTLE_SECONDS)
    own_server.start()

    message_ids = results([future for _, future in late], PATIENCE_SECONDS)
    published |= dict(zip((item for item, _ in late), message_ids, strict=True))
    assert_worked_off(world, subscription, work, published, exactly_once)
    assert not stream.done()


@pytest.mark.slow
@pytest.mark.timeout(400)
@BOTH_MODES
def test_kills_at_any_moment_lose_nothing(own_server, own_world, exactly_once):
    """What was on its way comes again at its deadline, a minute later.

    The new stream of the same subscriber gets the next messages of the key before that, so it may begin them
    out of order. Under exactly-once delivery it cannot finish them out of order.
    """
    world = own_world
    topic, subscription = ordered(world, exactly_once)
    published = publish_keyed(world.ordered_publisher(), topic, KEYS, range(30))
    work = KeyedWork(random_nacks(3, KEYS, range(30)))
    stream = world.subscribe(subscription, work)
    for share in (0.2, 0.4, 0.6):
        work.wait_acked(int(share * len(published)), 150)
        own_server.kill()
        own_server.start()

    work.wait_acked(len(published), 150)

    assert {sight.message_id for sight in work.seen} == set(published.values())
    if exactly_once:
        assert numbers_of(work.acked) == numbers_of_published(published)
    stream.cancel()
    stream.result(10)
    assert world.pull(subscription) == []
    assert work.failures == []


@BOTH_MODES
def test_a_key_stays_with_one_of_several_subscribers(world, exactly_once):
    topic, subscription = ordered(world, exactly_once)
    # The key may move when nothing of it is outstanding: after a nack of its last message, and after any nack
    # without exactly-once delivery, which gives back what comes after it as well.
    work = KeyedWork(random_nacks(4, KEYS, NUMBERS[:-3]) if exactly_once else None)
    work.gate.clear()
    for name in ("a", "b", "c"):
        world.subscribe(
            subscription, work.of(name), client=world.subscriber_client(), flow_control=LONG_LEASES
        )
    time.sleep(2)  # for the others to be there before one has every key

    published = publish_keyed(world.ordered_publisher(), topic, KEYS, NUMBERS)
    work.wait_seen(len(KEYS), PATIENCE_SECONDS)
    time.sleep(SETTLE_SECONDS)
    work.gate.set()

    assert_worked_off(world, subscription, work, published, exactly_once)
    clients = defaultdict(set)
    for sight in work.seen:
        clients[sight.item.key].add(sight.client)
    assert {key: len(names) for key, names in clients.items()} == dict.fromkeys(KEYS, 1)
    assert len(set().union(*clients.values())) > 1, "one subscriber did all the work"


def test_the_order_is_kept_when_several_subscribers_nack(world):
    """Without exactly-once delivery, where the nacked messages may change to another subscriber."""
    topic, subscription = ordered(world, exactly_once=False)
    published = publish_keyed(world.ordered_publisher(), topic, KEYS, NUMBERS)
    work = KeyedWork(random_nacks(5, KEYS, NUMBERS))

    for name in ("a", "b", "c"):
        world.subscribe(
            subscription, work.of(name), client=world.subscriber_client(), flow_control=LONG_LEASES
        )

    assert_worked_off(world, subscription, work, published, exactly_once=False)


@BOTH_MODES
def test_a_held_key_costs_other_keys_nothing(world, exactly_once):
    topic, subscription = ordered(world, exactly_once)
    held = []
    free = KeyedWork()

    def work(message):
        if message.ordering_key == "held":
            held.append(message)
        else:
            free(message)

    world.subscribe(subscription, work, flow_control=LONG_LEASES)
    publisher = world.ordered_publisher()
    publish_keyed(publisher, topic, ["held"], range(10))
    published = publish_keyed(publisher, topic, KEYS, NUMBERS)

    free.wait_acked(len(published), PATIENCE_SECONDS)
    assert numbers_of(free.seen) == numbers_of_published(published)
    assert [message.data for message in held] == [b"0"]


def test_messages_without_a_key_are_not_held(world):
    topic, subscription = ordered(world, exactly_once=True)
    inbox = Inbox()
    world.subscribe(subscription, inbox)
    message_ids = world.publish(topic, 20)
    messages = sorted(inbox.wait(20), key=lambda message: int(message.data.split()[1]), reverse=True)

    answers = [message.ack_with_response() for message in messages]

    assert set(results(answers)) == {AcknowledgeStatus.SUCCESS}
    assert sorted(inbox.message_ids) == sorted(message_ids)


def test_an_ack_ahead_of_its_key_succeeds_after_those_before_it(world):
    """It fails temporarily; the library tries it again after a second or two."""
    topic, subscription = ordered(world, exactly_once=True)
    inbox = Inbox(lambda message: message.drop())
    world.subscribe(subscription, inbox, flow_control=LONG_LEASES)
    publish_keyed(world.ordered_publisher(), topic, ["key"], range(3))
    # The library begins the next message of the key when it no longer looks after the one before.
    first, second, third = inbox.wait(3)

    ahead = [third.ack_with_response(), second.ack_with_response()]
    time.sleep(0.5)
    assert [answer.done() for answer in ahead] == [False, False]
    assert first.ack_with_response().result(10) is AcknowledgeStatus.SUCCESS

    assert results(ahead) == [AcknowledgeStatus.SUCCESS] * 2
    assert inbox.stays_at(3, seconds=0.5)
    assert world.pull(subscription) == []


def test_a_subscription_without_ordering_holds_no_key(world):
    topic = world.topic()
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    publish_keyed(world.ordered_publisher(), topic, ["key"], range(5))
    received = world.pull(subscription)

    last_first = [item.ack_id for item in received][::-1]

    for ack_id in last_first:
        world.subscriber.acknowledge(subscription=subscription, ack_ids=[ack_id])
    assert len(received) == 5


def test_a_publisher_goes_on_with_its_key_after_a_refusal(world):
    """The library stops a key after an error, until it is told to go on; the server has stopped nothing."""
    topic = world.publisher.topic_path(world.project, "not-yet")
    publisher = world.ordered_publisher()
    with pytest.raises(exceptions.NotFound):
        publisher.publish(topic, b"0", ordering_key="key").result(10)
    with pytest.raises(PublishToPausedOrderingKeyException):
        publisher.publish(topic, b"1", ordering_key="key").result(10)
    world.topic("not-yet")
    subscription = world.subscription(topic, enable_message_ordering=True)

    publisher.resume_publish(topic, "key")
    publish_keyed(publisher, topic, ["key"], range(2, 5))

    assert [item.message.data for item in world.pull(subscription)] == [b"2", b"3", b"4"]
