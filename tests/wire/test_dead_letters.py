"""Delivery attempts, and what becomes of a message that fails as often as its policy allows."""

import asyncio
import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, permanent, refused
from tests.wire.harness import case
from tests.wire.support import Delivery, Sub, World, data_of, message_ids, unique, us_of

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT

COUNT = "CloudPubSubDeadLetterSourceDeliveryCount"
SUBSCRIPTION = "CloudPubSubDeadLetterSourceSubscription"
PROJECT = "CloudPubSubDeadLetterSourceSubscriptionProject"
PUBLISH_TIME = "CloudPubSubDeadLetterSourceTopicPublishTime"


def policy(topic: str, attempts: int = 5) -> pb.DeadLetterPolicy:
    return pb.DeadLetterPolicy(dead_letter_topic=topic, max_delivery_attempts=attempts)


async def with_dead_letters(world: World, attempts: int = 5, *, eod: bool = True, **fields):
    """A subscription with a dead letter policy, and one that gets what is forwarded."""
    dead = await world.subscription()
    sub = await world.subscription(eod=eod, dead_letter_policy=policy(dead.topic, attempts), **fields)
    return sub, dead


async def fail(sub: Sub, times: int) -> list[Delivery]:
    """Takes one message and nacks it, so many times."""
    seen = []
    for _ in range(times):
        (delivery,) = await sub.pull()
        seen.append(delivery)
        await sub.nack(delivery)
    return seen


def attempts_of(deliveries: list[Delivery]) -> list[int]:
    return [delivery.attempt for delivery in deliveries]


def leaf(name: str) -> str:
    return name.rsplit("/", 1)[1]


def project_of(name: str) -> str:
    return name.split("/")[1]


def forwarding_attributes(sub: Sub, count: int, publish_time) -> dict[str, str]:
    """What the copy of a message has besides the attributes of the message itself."""
    seconds, milliseconds = divmod(us_of(publish_time) // 1000, 1000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return {
        COUNT: str(count),
        SUBSCRIPTION: leaf(sub.name),
        PROJECT: project_of(sub.name),
        PUBLISH_TIME: f"{moment}.{milliseconds:03}+00:00",
    }


# Attempts


@case
async def test_attempt_is_the_same_by_pull_and_stream(world: World):
    sub, _ = await with_dead_letters(world)
    await sub.publish()
    seen = await fail(sub, 1)
    async with sub.stream() as stream:
        for _ in range(2):
            seen += await stream.take()
            await sub.nack(seen[-1])
        seen += await stream.take()
    await sub.nack(seen[-1])
    seen += await sub.pull()
    assert attempts_of(seen) == [1, 2, 3, 4, 5]


@case
async def test_attempts_are_counted_for_each_message_and_subscription(world: World):
    sub, dead = await with_dead_letters(world)
    other = await world.subscription(topic=sub.topic, dead_letter_policy=policy(dead.topic, 7))
    await sub.publish(2)
    a, b = await sub.pull(2)
    await sub.nack(a)
    (a,) = await sub.pull()
    assert attempts_of([a, b]) == [2, 1]
    assert attempts_of(await other.pull(2)) == [1, 1]


# Forwarding


@case
async def test_every_id_of_a_forwarded_message_is_refused(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    seen = await fail(sub, 5)
    (copy,) = await dead.pull()
    await dead.ack(copy)
    for delivery in (seen[-1], seen[0]):
        with permanent(delivery):
            await sub.ack(delivery)
        with permanent(delivery):
            await sub.modack(10, delivery)
    await sub.nack(seen[-1])  # repeated: what it asked for is so, and happens once
    await dead.nothing_for(2)


@case
async def test_id_whose_expiry_forwarded_the_message_is_refused(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    await fail(sub, 4)
    (last,) = await sub.pull()
    await sub.modack(1, last)
    await dead.pull()
    for operation in (sub.ack, sub.nack):
        with permanent(last):
            await operation(last)
    assert await dead.pull_now() == []


@case
async def test_expiry_forwards_as_well(world: World):
    for eod in (True, False):
        sub, dead = await with_dead_letters(world, eod=eod)
        await sub.publish()
        await fail(sub, 4)
        (last,) = await sub.pull()
        assert last.attempt == 5
        await sub.modack(1, last)
        (copy,) = await dead.pull()
        assert copy.data == last.data
        assert await sub.pull_now() == []


@case
async def test_forwarding_needs_no_consumer_of_the_subscription(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    await fail(sub, 4)
    async with dead.stream() as stream:
        (last,) = await sub.pull()
        await sub.modack(1, last)
        assert data_of(await stream.take(within=4)) == [last.data]


@case
async def test_copy_is_the_message_with_four_attributes_more(world: World):
    sub, dead = await with_dead_letters(world)
    sent = pb.PubsubMessage(
        data=b"\x00data\xff",
        attributes={"a": "1", "é": "", COUNT: "99", SUBSCRIPTION: "other", "googclient_x": "y"},
        ordering_key="key",
    )
    await sub.publish_messages(sent)
    seen = await fail(sub, 5)
    (copy,) = await dead.pull()
    original = seen[0].message
    assert dict(copy.message.attributes) == {
        "a": "1",
        "é": "",
        "googclient_x": "y",
        **forwarding_attributes(sub, 5, original.publish_time),
    }
    assert (copy.data, copy.key) == (sent.data, "key")
    assert int(copy.message_id) > int(original.message_id)
    assert us_of(copy.message.publish_time) > us_of(original.publish_time)
    assert copy.attempt == 0


@case
async def test_several_messages_of_one_request_are_forwarded(world: World):
    sub, dead = await with_dead_letters(world)
    published = await sub.publish(20)
    first: list[Delivery] = []
    for _ in range(5):
        deliveries = await sub.pull(20)
        first = first or deliveries
        await sub.nack(*deliveries)
    assert message_ids(first) == published
    assert sorted(data_of(await dead.pull(20))) == sorted(data_of(first))
    await asyncio.gather(sub.nothing_for(1), dead.nothing_for(1))


@case
async def test_copy_reaches_every_subscription_of_its_topic_by_its_filter(world: World):
    sub, dead = await with_dead_letters(world)
    mine = f'attributes.{SUBSCRIPTION} = "{leaf(sub.name)}"'
    matching = await world.subscription(topic=dead.topic, filter=mine)
    other = await world.subscription(topic=dead.topic, filter=f"NOT {mine}")
    await sub.publish()
    await fail(sub, 5)
    await asyncio.gather(dead.pull(), matching.pull())
    await other.nothing_for(1)


@case
async def test_dead_letter_topic_may_be_in_another_project(world: World):
    far = unique("topic", "elsewhere")
    await world.client.CreateTopic(name=far)
    dead = await world.subscription(topic=far)
    sub = await world.subscription(dead_letter_policy=policy(far))
    await sub.publish()
    await fail(sub, 5)
    (copy,) = await dead.pull()
    assert copy.message.attributes[PROJECT] == project_of(sub.name)


# Chains


@case
async def test_chain_of_two_dead_letter_topics(world: World):
    last = await world.subscription()
    second = await world.subscription(dead_letter_policy=policy(last.topic, 6))
    first = await world.subscription(dead_letter_policy=policy(second.topic, 5))
    await first.publish_messages(pb.PubsubMessage(data=b"x", attributes={"a": "1"}))
    seen = await fail(first, 5)
    copies = await fail(second, 6)
    (copy,) = await last.pull()
    assert attempts_of(seen) + attempts_of(copies) == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
    attributes = forwarding_attributes(first, 5, seen[0].message.publish_time)
    assert dict(copies[0].message.attributes) == {"a": "1", **attributes}
    attributes = forwarding_attributes(second, 6, copies[0].message.publish_time)
    assert dict(copy.message.attributes) == {"a": "1", **attributes}
    assert copy.data == b"x"


@case
async def test_two_topics_may_be_the_dead_letter_topics_of_each_other(world: World):
    first = await world.subscription()
    second = await world.subscription(dead_letter_policy=policy(first.topic))
    await first.update(dead_letter_policy=policy(second.topic))
    await first.publish()
    for sub in (first, second):
        await fail(sub, 5)
    (back,) = await first.pull()
    assert back.attempt == 1
    assert dict(back.message.attributes)[SUBSCRIPTION] == leaf(second.name)


def test_own_topic_is_refused(client: Client):
    topic = client.CreateTopic(name=unique("topic")).name
    name = unique("subscription")
    with refused(INVALID_ARGUMENT, "dead_letter"):
        client.CreateSubscription(name=name, topic=topic, dead_letter_policy=policy(topic))
    client.CreateSubscription(name=name, topic=topic)
    changed = pb.Subscription(name=name, dead_letter_policy=policy(topic))
    with refused(INVALID_ARGUMENT, "dead_letter"):
        client.UpdateSubscription(
            subscription=changed, update_mask=pb.FieldMask(paths=["dead_letter_policy"])
        )
    assert not client.GetSubscription(subscription=name).HasField("dead_letter_policy")


# The policy and its changes


@pytest.mark.parametrize(
    ("attempts", "tokens"),
    [(4, ["too small", "5"]), (1, ["too small"]), (-1, ["too small"]), (101, ["too large", "100"])],
)
def test_attempts_out_of_range_are_refused(client: Client, attempts: int, tokens: list[str]):
    topic, dead = (client.CreateTopic(name=unique("topic")).name for _ in range(2))
    with refused(INVALID_ARGUMENT, "max_delivery_attempts", str(attempts), *tokens):
        client.CreateSubscription(
            name=unique("subscription"), topic=topic, dead_letter_policy=policy(dead, attempts)
        )


@pytest.mark.parametrize(("attempts", "effective"), [(0, 5), (5, 5), (100, 100)])
def test_attempts_in_range_and_their_default(client: Client, attempts: int, effective: int):
    topic, dead = (client.CreateTopic(name=unique("topic")).name for _ in range(2))
    created = client.CreateSubscription(
        name=unique("subscription"), topic=topic, dead_letter_policy=policy(dead, attempts)
    )
    assert created.dead_letter_policy == policy(dead, effective)
    assert client.GetSubscription(subscription=created.name) == created


def test_update_to_a_bad_policy_is_refused_and_changes_nothing(client: Client):
    topic, dead = (client.CreateTopic(name=unique("topic")).name for _ in range(2))
    created = client.CreateSubscription(
        name=unique("subscription"), topic=topic, dead_letter_policy=policy(dead)
    )
    for bad, code in (
        (policy(dead, 4), INVALID_ARGUMENT),
        (policy("nonsense"), INVALID_ARGUMENT),
        (policy(""), INVALID_ARGUMENT),
        (policy(unique("topic")), StatusCode.NOT_FOUND),
    ):
        changed = pb.Subscription(name=created.name, dead_letter_policy=bad)
        with refused(code):
            client.UpdateSubscription(
                subscription=changed, update_mask=pb.FieldMask(paths=["dead_letter_policy"])
            )
    assert client.GetSubscription(subscription=created.name) == created


@case
async def test_removed_policy_hides_the_attempts_and_forwards_nothing(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    await fail(sub, 4)
    (last,) = await sub.pull()
    await world.client.UpdateSubscription(
        subscription=pb.Subscription(name=sub.name),
        update_mask=pb.FieldMask(paths=["dead_letter_policy"]),
    )
    assert not (await sub.get()).HasField("dead_letter_policy")
    await sub.nack(last)
    assert attempts_of(await fail(sub, 3)) == [0, 0, 0]
    assert await dead.pull_now() == []


@case
async def test_counting_starts_when_a_policy_is_added_to_a_live_stream(world: World):
    sub, dead = await world.subscription(), await world.subscription()
    await sub.publish()
    await fail(sub, 6)
    async with sub.stream() as stream:
        (a,) = await stream.take()
        assert a.attempt == 0
        await sub.update(dead_letter_policy=policy(dead.topic))
        await sub.nack(a)
        (a,) = await stream.take()
        # Whether the delivery of before the policy counts is nowhere said.
        assert a.attempt in (1, 2)
        while a.attempt < 5:
            await sub.nack(a)
            (b,) = await stream.take()
            assert b.attempt == a.attempt + 1
            a = b
        await sub.nack(a)
    (copy,) = await dead.pull()
    assert (copy.data, copy.message.attributes[COUNT]) == (a.data, "5")


@case
async def test_first_delivery_after_a_policy_was_added_is_attempt_1(world: World):
    sub, dead = await world.subscription(), await world.subscription()
    await sub.publish()
    await fail(sub, 6)
    await sub.update(dead_letter_policy=policy(dead.topic))
    assert attempts_of(await fail(sub, 5)) == [1, 2, 3, 4, 5]
    await dead.pull()


@case
async def test_raised_and_lowered_limits_keep_the_counts(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    seen = await fail(sub, 4)
    await sub.update(dead_letter_policy=policy(dead.topic, 8))
    seen += await fail(sub, 2)
    assert await dead.pull_now() == []
    (last,) = await sub.pull()
    await sub.update(dead_letter_policy=policy(dead.topic, 5))
    assert await dead.pull_now() == []  # it is leased, and an ack would still save it
    await sub.nack(last)
    (copy,) = await dead.pull()
    assert attempts_of([*seen, last]) == [1, 2, 3, 4, 5, 6, 7]
    assert copy.message.attributes[COUNT] == "7"


@case
async def test_ack_saves_a_message_that_is_leased_above_a_lowered_limit(world: World):
    sub, dead = await with_dead_letters(world, 10)
    await sub.publish()
    await fail(sub, 6)
    (last,) = await sub.pull()
    await sub.update(dead_letter_policy=policy(dead.topic, 5))
    await sub.ack(last)
    await asyncio.gather(sub.nothing_for(1), dead.nothing_for(1))


@case
async def test_ready_message_above_a_lowered_limit_is_forwarded_instead_of_delivered(world: World):
    sub, dead = await with_dead_letters(world, 10)
    await sub.publish()
    seen = await fail(sub, 6)
    await sub.update(dead_letter_policy=policy(dead.topic, 5))
    await sub.nothing_for(1)
    (copy,) = await dead.pull()
    assert (copy.data, copy.message.attributes[COUNT]) == (seen[0].data, "6")


@case
async def test_changed_dead_letter_topic_is_used_from_then_on(world: World):
    sub, dead = await with_dead_letters(world)
    other = await world.subscription()
    await sub.publish()
    await fail(sub, 3)
    await sub.update(dead_letter_policy=policy(other.topic))
    assert attempts_of(await fail(sub, 2)) == [4, 5]
    await other.pull()
    assert await dead.pull_now() == []


# The dead letter topic goes away


@case
async def test_attempts_and_policy_go_on_without_the_dead_letter_topic(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    await world.client.DeleteTopic(topic=dead.topic)
    assert attempts_of(await fail(sub, 7)) == [1, 2, 3, 4, 5, 6, 7]
    # Deleting a dead letter topic leaves its name in the policy.
    assert (await sub.get()).dead_letter_policy == policy(dead.topic)


@case
async def test_dead_letter_topic_that_is_there_again_is_used(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish(2)
    await world.client.DeleteTopic(topic=dead.topic)
    for _ in range(6):
        await sub.nack(*await sub.pull(2))
    leased, ready = await sub.pull(2)
    await sub.nack(ready)
    await world.client.CreateTopic(name=dead.topic)
    again = await world.subscription(topic=dead.topic)

    assert await sub.pull_now() == []  # where it would have been delivered, it is forwarded
    (copy,) = await again.pull()
    assert (copy.data, copy.message.attributes[COUNT]) == (ready.data, "7")
    await sub.nack(leased)
    (copy,) = await again.pull()
    assert (copy.data, copy.message.attributes[COUNT]) == (leased.data, "7")
    await asyncio.gather(sub.nothing_for(1), again.nothing_for(1))


# Beside ordering keys and retries


@case
async def test_forwarded_message_unblocks_its_key(world: World):
    dead = await world.subscription()
    sub = await world.ordered(dead_letter_policy=policy(dead.topic))
    await sub.publish_key("k", b"m1", b"m2", b"m3")
    for number in range(1, 6):
        (m1,) = await sub.pull_now(1)
        assert (m1.data, m1.attempt) == (b"m1", number)
        await sub.nack(m1)
    m2, m3 = await sub.pull(2)
    assert [(m2.data, m2.attempt), (m3.data, m3.attempt)] == [(b"m2", 1), (b"m3", 1)]
    await sub.ack(m2)  # in order: what is before it was forwarded
    (copy,) = await dead.pull()
    assert (copy.data, copy.key) == (b"m1", "k")


@case
async def test_message_behind_a_forwarded_one_loses_its_id_and_keeps_its_attempts(world: World):
    dead = await world.subscription()
    sub = await world.ordered(dead_letter_policy=policy(dead.topic))
    await sub.publish_key("k", b"m1")
    await fail(sub, 4)
    await sub.publish_key("k", b"m2")
    async with sub.stream() as stream:
        m1, m2 = await stream.take(2)
        before = time.monotonic()
        await sub.modack(3, m2)
        await sub.nack(m1)
        with permanent(m2):
            await sub.ack(m2)
        (again,) = await stream.take(within=5)
    assert (m1.attempt, again.data, again.attempt) == (5, b"m2", 1)
    assert again.at - before >= 3
    await dead.pull()


@case
async def test_last_failure_forwards_without_a_backoff(world: World):
    sub, dead = await with_dead_letters(world)
    await sub.publish()
    await fail(sub, 4)
    (last,) = await sub.pull()
    backoff = pb.Duration(seconds=60)
    await sub.update(retry_policy=pb.RetryPolicy(minimum_backoff=backoff, maximum_backoff=backoff))
    await sub.nack(last)
    copies = await dead.pull()
    assert data_of(copies) == [last.data]


@case
async def test_delayed_message_above_a_lowered_limit_is_forwarded_when_its_delay_is_over(world: World):
    sub, dead = await with_dead_letters(world, 10)
    await sub.publish()
    await fail(sub, 6)
    (last,) = await sub.pull()
    backoff = pb.Duration(seconds=2)
    await sub.update(retry_policy=pb.RetryPolicy(minimum_backoff=backoff, maximum_backoff=backoff))
    before = time.monotonic()
    await sub.nack(last)
    await sub.update(dead_letter_policy=policy(dead.topic, 5))
    async with sub.stream() as stream:
        (copy,) = await dead.pull()
        assert copy.at - before >= 1.8
        assert copy.message.attributes[COUNT] == "7"
        assert stream.deliveries == []
