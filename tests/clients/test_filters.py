"""Filters with the Python library: who gets what, and what becomes of what nobody gets."""

from __future__ import annotations

import pytest
from google.api_core import exceptions

from tests.clients.keyed import LONG_LEASES, KeyedWork, numbers_of
from tests.clients.world import Inbox, results

BOTH_MODES = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])

EVEN = 'attributes.parity = "even"'


def publish_parities(world, topic, numbers):
    """Messages of which those with an even number match; returns the ids of all."""
    sent = [
        world.publisher.publish(topic, b"%d" % number, parity="odd" if number % 2 else "even")
        for number in numbers
    ]
    return results(sent)


def numbers_in(messages):
    return sorted(int(message.data) for message in messages)


@BOTH_MODES
def test_only_what_matches_arrives(world, exactly_once):
    topic = world.topic()
    filtered = world.subscription(topic, filter=EVEN, enable_exactly_once_delivery=exactly_once)
    everything = world.subscription(topic, "everything")
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(filtered, inbox)

    publish_parities(world, topic, range(200))

    inbox.wait(100)
    assert numbers_in(inbox.messages) == list(range(0, 200, 2))
    assert inbox.stays_at(100, seconds=0.5)
    assert not stream.done()
    assert world.pull(filtered) == []
    assert len(world.pull(everything, max_messages=1000)) == 200


def test_a_backlog_without_a_match_is_empty(world):
    topic = world.topic()
    subscription = world.subscription(topic, filter='attributes.parity = "none"')
    publish_parities(world, topic, range(50))

    assert world.pull(subscription) == []
    world.publisher.publish(topic, b"50", parity="none").result(10)
    assert [item.message.data for item in world.pull(subscription)] == [b"50"]


@pytest.mark.parametrize(
    ("expression", "matching"),
    [
        ("", {"com", "net", "none", "quoted"}),
        ("attributes:domain", {"com", "net"}),
        ("NOT attributes:domain", {"none", "quoted"}),
        ("-attributes:domain", {"none", "quoted"}),
        ('attributes.domain = "com"', {"com"}),
        ('attributes.domain != "com"', {"net", "none", "quoted"}),
        ('hasPrefix(attributes.domain, "n")', {"net"}),
        ('attributes."iana.org/language_tag" = "en"', {"quoted"}),
        ('attributes:"みんな"', {"quoted"}),
        ('attributes:domain AND NOT attributes.domain = "com"', {"net"}),
        ('attributes:x OR (attributes:domain AND hasPrefix(attributes.domain, "c"))', {"com"}),
    ],
)
def test_the_language(world, expression, matching):
    topic = world.topic()
    subscription = world.subscription(topic, filter=expression)
    messages = {
        "com": {"domain": "com"},
        "net": {"domain": "net"},
        "none": {},
        "quoted": {"iana.org/language_tag": "en", "みんな": ""},
    }
    results([world.publisher.publish(topic, data.encode(), **fields) for data, fields in messages.items()])

    received = {item.message.data.decode() for item in world.pull(subscription)}

    assert received == matching
    assert world.subscriber.get_subscription(subscription=subscription).filter == expression


@pytest.mark.parametrize(
    "expression",
    [
        "attributes.name",
        'name = "com"',
        "attributes.name = com",
        "attributes:a AND attributes:b OR attributes:c",
        "attributes:a and attributes:b",
        "(attributes:a",
        'attributes.name = "' + "x" * 300 + '"',
    ],
)
def test_a_bad_filter_is_refused_and_makes_nothing(world, expression):
    topic = world.topic()
    with pytest.raises(exceptions.InvalidArgument, match="filter"):
        world.subscription(topic, filter=expression)
    assert list(world.subscriber.list_subscriptions(project=f"projects/{world.project}")) == []


def test_the_order_of_a_key_is_kept_over_what_does_not_match(world):
    topic = world.topic()
    subscription = world.subscription(
        topic, filter=EVEN, enable_message_ordering=True, enable_exactly_once_delivery=True
    )
    work = KeyedWork()
    world.subscribe(subscription, work, flow_control=LONG_LEASES)
    publisher = world.ordered_publisher()
    sent = [
        publisher.publish(
            topic, b"%d" % number, ordering_key=f"key-{number % 3}", parity=("even", "odd")[number % 2]
        )
        for number in range(60)
    ]
    results(sent)

    work.wait_acked(30, 20)

    assert numbers_of(work.acked) == {
        f"key-{key}": [number for number in range(0, 60, 2) if number % 3 == key] for key in range(3)
    }


def test_the_filter_still_holds_after_a_kill(own_server, own_world):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic, filter=EVEN, enable_exactly_once_delivery=True)
    publish_parities(world, topic, range(20))
    received = list(world.pull(subscription, max_messages=4))

    own_server.kill()
    own_server.start()

    world.subscriber.acknowledge(subscription=subscription, ack_ids=[item.ack_id for item in received])
    publish_parities(world, topic, range(20, 40))
    while len(received) < 20:
        received += world.pull(subscription)
    assert numbers_in(item.message for item in received) == list(range(0, 40, 2))


def test_a_nacked_match_comes_again(world):
    topic = world.topic()
    subscription = world.subscription(topic, filter=EVEN, enable_exactly_once_delivery=True)
    inbox = Inbox(lambda message: message.nack() if len(inbox) <= 5 else message.ack())
    world.subscribe(subscription, inbox)

    publish_parities(world, topic, range(10))

    inbox.wait(10)
    assert set(numbers_in(inbox.messages)) == {0, 2, 4, 6, 8}
    assert inbox.stays_at(10, seconds=0.5)
