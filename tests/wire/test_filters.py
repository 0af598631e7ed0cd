"""Subscription.filter: what is refused, what is delivered, and what a message that does not match leaves."""

import asyncio

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, refused
from tests.wire.harness import case
from tests.wire.support import Delivery, World, data_of, from_now, message_ids, unique, us_of

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
ODD = {"kind": "odd"}
EVEN = {"kind": "even"}
ODD_ONLY = 'attributes.kind = "odd"'


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


def attributes_of(deliveries: list[Delivery]) -> list[dict[str, str]]:
    return [dict(delivery.message.attributes) for delivery in deliveries]


# At creation


@pytest.mark.parametrize(
    "bad",
    [
        "attributes",
        "attributes.name",
        "attributes:",
        'name = "com"',
        'data = "x"',
        '"com" = attributes.name',
        "attributes.name = attributes.website",
        "attributes.name = com",
        "attributes.n = 5",
        'attributes.name == "com"',
        'attributes.name > "a"',
        'attributes.name:"com"',
        "attributes.name = 'com'",
        'attributes.iana.org/language_tag = "en"',
        "attributes:a AND attributes:b OR attributes:c",
        "attributes:a OR attributes:b AND attributes:c",
        'attributes.name = "com" AND ("net" OR "org")',
        "attributes:a and attributes:b",
        "not attributes:a",
        "NOT NOT attributes:a",
        "attributes:a attributes:b",
        'hasSuffix(attributes.name, "x")',
        'HASPREFIX(attributes.name, "co")',
        'hasPrefix(attributes:name, "x")',
        "hasPrefix(attributes.name)",
        "(attributes:a",
        "attributes:a)",
        'attributes.name = "com',
        'attributes.k = "\\q"',
        'attributes.k = "\\xff"',
        "attributes:\\u307F",
        "attributes:a AND",
        "NOT",
        "(" * 200,
    ],
)
def test_broken_filter_is_refused(client: Client, topic: str, bad: str):
    name = unique("subscription")
    with refused(INVALID_ARGUMENT, "filter"):
        client.CreateSubscription(name=name, topic=topic, filter=bad)
    with refused(StatusCode.NOT_FOUND):
        client.GetSubscription(subscription=name)


def test_filter_has_at_most_256_bytes(client: Client, topic: str):
    def of_length(length: int, letter: str = "a") -> str:
        rest = length - len('attributes:""')
        return f'attributes:"{letter * (rest // len(letter.encode()))}"'

    longest = of_length(256)
    assert len(longest) == 256
    created = client.CreateSubscription(name=unique("subscription"), topic=topic, filter=longest)
    assert created.filter == longest
    for bad in (of_length(257), of_length(300, "é"), " " * 257):
        with refused(INVALID_ARGUMENT, "filter"):
            client.CreateSubscription(name=unique("subscription"), topic=topic, filter=bad)


@pytest.mark.parametrize("given", ["", ODD_ONLY, "  attributes:a  ", 'attributes:"é/x"'])
def test_filter_is_returned_as_it_was_given(client: Client, topic: str, given: str):
    created = client.CreateSubscription(name=unique("subscription"), topic=topic, filter=given)
    assert created.filter == given
    assert client.GetSubscription(subscription=created.name) == created


def test_filter_cannot_be_changed(client: Client, topic: str):
    for given in ("", ODD_ONLY):
        created = client.CreateSubscription(name=unique("subscription"), topic=topic, filter=given)
        changed = pb.Subscription(name=created.name, filter="attributes:other")
        with refused(INVALID_ARGUMENT, "filter", "is not mutable"):
            client.UpdateSubscription(subscription=changed, update_mask=pb.FieldMask(paths=["filter"]))
        assert client.GetSubscription(subscription=created.name) == created


def test_length_and_grammar_are_checked_before_the_topic_is_looked_for(client: Client):
    with refused(INVALID_ARGUMENT, "filter"):
        client.CreateSubscription(name=unique("subscription"), topic=unique("topic"), filter="NOT")


# Delivery

# Each filter with the messages of SENT that match it.
SENT: dict[str, dict[str, str]] = {
    "com": {"name": "com"},
    "COM": {"name": "COM"},
    "net": {"name": "net", "lang": "en"},
    "empty": {"name": ""},
    "tagged": {"iana.org/language_tag": "en"},
    "Japanese": {"みんな": "みんな"},
    "quote": {"k": '"q"\n'},
    "none": {"other": "x"},
}
ALL = set(SENT)
FILTERS: dict[str, set[str]] = {
    "": ALL,
    "attributes:name": {"com", "COM", "net", "empty"},
    "NOT attributes:name": ALL - {"com", "COM", "net", "empty"},
    "-attributes:lang": ALL - {"net"},
    'attributes.name = "com"': {"com"},
    'attributes.name="com"': {"com"},
    'attributes.name != "com"': ALL - {"com"},
    'NOT attributes.name = ""': ALL - {"empty"},
    'hasPrefix(attributes.name, "co")': {"com"},
    'hasPrefix(attributes.name, "")': {"com", "COM", "net", "empty"},
    'attributes:"iana.org/language_tag"': {"tagged"},
    'attributes:"\\u307F\\u3093\\u306A"': {"Japanese"},
    'attributes."みんな" = "みんな"': {"Japanese"},
    'attributes.k = "\\"q\\"\\n"': {"quote"},
    'attributes.name = "c\\x6f\\155"': {"com"},
    "attributes:name AND attributes:lang": {"net"},
    "attributes:lang OR attributes:k OR attributes:other": {"net", "quote", "none"},
    'attributes:name AND (attributes.name = "net" OR attributes.name = "")': {"net", "empty"},
    "NOT (attributes:name OR attributes:k)": {"tagged", "Japanese", "none"},
    "((attributes:other))": {"none"},
}


@case
async def test_subscriptions_of_one_topic_get_what_matches_their_filters(world: World):
    topic = await world.topic()
    subs = {given: await world.subscription(topic=topic, filter=given) for given in FILTERS}
    await subs[""].publish_messages(
        *[pb.PubsubMessage(data=name.encode(), attributes=given) for name, given in SENT.items()]
    )
    for number, (given, sub) in enumerate(subs.items()):
        expected = [name.encode() for name in SENT if name in FILTERS[given]]
        if number % 2:
            assert data_of(await sub.pull_now()) == expected, given
        else:
            async with sub.stream() as stream:
                assert data_of(await stream.take(len(expected))) == expected, given
        assert await sub.pull_now() == [], given


@case
async def test_open_stream_and_waiting_pull_see_matching_messages_only(world: World):
    topic = await world.topic()
    streamed = await world.subscription(topic=topic, filter=ODD_ONLY)
    pulled = await world.subscription(topic=topic, filter=ODD_ONLY)
    async with streamed.stream() as stream:
        await stream.pong()
        pull = asyncio.ensure_future(world.client.Pull(subscription=pulled.name, max_messages=10))
        await asyncio.sleep(0.3)
        await streamed.publish_attributes(EVEN)
        await asyncio.sleep(0.5)
        assert not pull.done()
        assert stream.deliveries == []
        _, odd, _ = await streamed.publish_attributes(EVEN, ODD, EVEN)
        assert message_ids(await stream.take()) == [odd]
        (received,) = (await asyncio.wait_for(pull, 5)).received_messages
        assert received.message.message_id == odd
        await stream.nothing_for(0.5)


@case
async def test_matching_message_comes_again_like_any_other(world: World):
    sub = await world.subscription(filter=ODD_ONLY)
    await sub.publish_attributes(EVEN, ODD, EVEN, ODD)
    a, b = await sub.pull(2)
    await sub.ack(a)
    await sub.nack(b)
    (again,) = await sub.pull()
    assert again.message_id == b.message_id
    await sub.ack(again)
    await sub.nothing_for(1)


@case
async def test_unmatched_message_of_a_key_stands_in_no_way(world: World):
    sub = await world.ordered(filter=ODD_ONLY)
    kinds = [EVEN, ODD] * 3
    await sub.publish_messages(
        *[
            pb.PubsubMessage(data=b"%d" % number, attributes=kind, ordering_key="k")
            for number, kind in enumerate(kinds)
        ]
    )
    one, three, five = await sub.pull(3)
    assert data_of([one, three, five]) == [b"1", b"3", b"5"]
    await sub.ack(one)
    await sub.ack(three)
    await sub.nack(five)
    assert data_of(await sub.pull()) == [b"5"]


@case
async def test_unmatched_messages_are_no_backlog(world: World):
    sub = await world.subscription(filter=ODD_ONLY)
    await sub.publish_attributes(*[EVEN] * 10)
    await asyncio.sleep(1.1)
    (odd,) = await sub.publish_attributes(ODD)
    # A snapshot lives seven days less the age of the oldest unacked message.
    made = await sub.snapshot()
    (a,) = await sub.pull()
    assert a.message_id == odd
    assert us_of(made.expire_time) - us_of(a.message.publish_time) == 7 * 86_400 * 1_000_000


@case
async def test_seek_brings_back_matching_messages_only(world: World):
    topic = await world.topic(message_retention_duration=pb.Duration(seconds=600))
    early = await world.subscription(topic=topic)
    ids = await early.publish_attributes(EVEN, ODD, EVEN, ODD)
    late = await world.subscription(topic=topic, filter=ODD_ONLY)
    assert await late.pull_now() == []
    for _ in range(2):
        await late.seek(from_now(-600))
        deliveries = await late.pull(2)
        assert message_ids(deliveries) == ids[1::2]
        assert await late.pull_now() == []
        await late.ack(*deliveries)


# Restarts


@case
async def test_filter_holds_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(filter=ODD_ONLY, ack_deadline_seconds=60)
        (leased,) = await sub.publish_attributes(ODD)
        (a,) = await sub.pull()
        # Nobody consumes these, so the server meets them first after its restart.
        waiting = await sub.publish_attributes(*[EVEN, ODD] * 500)
        await own.restart_server()
        assert (await sub.get()).filter == ODD_ONLY
        later = await sub.publish_attributes(EVEN, ODD)
        await sub.ack(a)
        assert a.message_id == leased
        async with sub.stream() as stream:
            deliveries = await stream.take(501)
            assert message_ids(deliveries) == [*waiting[1::2], later[1]]
            assert all(attributes == ODD for attributes in attributes_of(deliveries))
            await sub.ack(*deliveries)
            await stream.nothing_for(0.5)
