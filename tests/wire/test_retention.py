"""What is kept of finished messages: topic retention, retain_acked_messages, and what ends them.

The shortest retention is ten minutes, so nothing here waits for the end of one; that is the work of the unit
tests, whose clock is their own.
"""

import asyncio

from pubsubd.wire import pb
from tests.wire.harness import case
from tests.wire.support import Sub, World, data_of, from_now, message_ids, timestamp, us_of

PAST = pb.Timestamp(seconds=1)
TEN_MINUTES = pb.Duration(seconds=600)


async def retaining_topic(world: World) -> str:
    return await world.topic(message_retention_duration=TEN_MINUTES)


async def publish_each(world: World, topic: str, *data: bytes) -> list[str]:
    """Publishes messages with times of their own."""
    publisher = Sub(world, topic, "")
    return [(await publisher.publish_data(item))[0] for item in data]


async def set_topic_retention(world: World, topic: str, retention: pb.Duration | None) -> None:
    changed = pb.Topic(name=topic, message_retention_duration=retention)
    mask = pb.FieldMask(paths=["message_retention_duration"])
    await world.client.UpdateTopic(topic=changed, update_mask=mask)


async def finish(sub: Sub, count: int) -> list[str]:
    """Takes and acks so many messages."""
    deliveries = await sub.pull(count)
    await sub.ack(*deliveries)
    return message_ids(deliveries)


# Of the topic


@case
async def test_topic_keeps_what_was_published_before_a_subscription_existed(world: World):
    topic = await retaining_topic(world)
    ids = await publish_each(world, topic, b"1", b"2", b"3")
    sub = await world.subscription(topic=topic)
    await sub.nothing_for(1)  # nothing of it comes unasked

    await sub.seek(from_now(-600))
    deliveries = await sub.pull(3)
    assert message_ids(deliveries) == ids
    second = us_of(deliveries[1].message.publish_time)
    await sub.ack(*deliveries)
    await sub.seek(timestamp(second))
    assert await finish(sub, 2) == ids[1:]
    await sub.nothing_for(1)


@case
async def test_topic_keeps_what_its_subscriptions_acked(world: World):
    sub = await world.subscription(topic=await retaining_topic(world))
    other = await world.subscription(topic=sub.topic)
    ids = await sub.publish(3)
    assert await finish(sub, 3) == await finish(other, 3) == ids
    await sub.seek(PAST)
    assert await finish(sub, 3) == ids
    assert await other.pull_now() == []


@case
async def test_topic_retention_brings_back_nothing_of_before_it(world: World):
    sub = await world.subscription()
    await sub.publish(2)
    await finish(sub, 2)
    unacked = await sub.publish(1)
    await set_topic_retention(world, sub.topic, TEN_MINUTES)
    assert (await sub.get()).topic_message_retention_duration == TEN_MINUTES
    later = await sub.publish(2)
    await finish(sub, 3)
    await sub.seek(PAST)
    back = message_ids(await sub.pull(2))
    back += message_ids(await sub.pull_now())
    # What was unacked at the time may be kept from then on.
    assert [message_id for message_id in back if message_id not in unacked] == later


@case
async def test_topic_retention_switched_off_keeps_nothing_but_backlogs(world: World):
    sub = await world.subscription(topic=await retaining_topic(world))
    await sub.publish(3)
    await finish(sub, 2)
    async with sub.stream() as stream:
        (leased,) = await stream.take()
        await set_topic_retention(world, sub.topic, None)
        assert not (await sub.get()).HasField("topic_message_retention_duration")
        later = await sub.publish(2)
        assert message_ids(await stream.take(2)) == later
        await sub.seek(PAST)
        await stream.nothing_for(1)
        await sub.nack(leased)
        assert message_ids(await stream.take()) == [leased.message_id]


@case
async def test_deleted_topic_keeps_nothing(world: World):
    topic = await retaining_topic(world)
    sub = await world.subscription(topic=topic)
    retaining = await world.subscription(topic=topic, retain_acked_messages=True)
    ids = await sub.publish(3)
    await finish(retaining, 3)
    await finish(sub, 2)
    await world.client.DeleteTopic(topic=topic)
    await sub.seek(PAST)
    assert await finish(sub, 1) == ids[2:]
    assert await sub.pull_now() == []
    await retaining.seek(PAST)
    assert await finish(retaining, 3) == ids


@case
async def test_dead_letter_topic_keeps_copies_for_a_subscription_to_come(world: World):
    dead = await retaining_topic(world)
    policy = dict(dead_letter_topic=dead, max_delivery_attempts=5)
    sub = await world.subscription(dead_letter_policy=policy)
    await sub.publish_data(b"x")
    for _ in range(5):
        await sub.nack(*await sub.pull())
    late = await world.subscription(topic=dead)
    await late.seek(PAST)
    assert data_of(await late.pull()) == [b"x"]


# Of the subscription


@case
async def test_acked_messages_are_kept_once_it_is_switched_on(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        early = await sub.publish(2)
        await sub.ack(*await stream.take(2))
        await sub.update(retain_acked_messages=True)
        kept = await sub.publish(2)
        await sub.ack(*await stream.take(2))
        await sub.seek(PAST)
        await asyncio.sleep(1)
        again = message_ids(stream.take_now())
        # What was acked before may have been dropped by then, or not.
        assert [message_id for message_id in again if message_id not in early] == kept


@case
async def test_acked_messages_are_kept_until_it_is_switched_off(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    async with sub.stream() as stream:
        (first, *_) = await sub.publish(2)
        a, _ = await stream.take(2)
        assert a.message_id == first
        await sub.ack(a)
        await sub.update(retain_acked_messages=False)
        await sub.seek(PAST)
        await stream.nothing_for(1)


@case
async def test_each_subscription_keeps_for_itself(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    other = await world.subscription(topic=sub.topic)
    ids = await sub.publish(3)
    await finish(sub, 3)
    await finish(other, 3)
    late = await world.subscription(topic=sub.topic)
    for one in (other, late):
        await one.seek(PAST)
        assert await one.pull_now() == []
    await sub.seek(PAST)
    assert await finish(sub, 3) == ids


@case
async def test_changed_retention_touches_nothing_that_is_young(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    ids = await sub.publish(3)
    await finish(sub, 1)
    (leased,) = await sub.pull(1)
    for seconds in (600, 31 * 86_400, 601):
        duration = pb.Duration(seconds=seconds)
        assert (await sub.update(message_retention_duration=duration)).message_retention_duration == duration
    await sub.ack(leased)
    assert await finish(sub, 1) == ids[2:]
    await sub.seek(PAST)
    assert await finish(sub, 3) == ids


# Restarts


@case
async def test_what_is_kept_survives_a_kill(world: World):
    async with world.own_server() as own:
        topic = await retaining_topic(own)
        early = await publish_each(own, topic, b"1", b"2")
        sub = await own.subscription(topic=topic)
        later = await sub.publish(2)
        await finish(sub, 2)
        retaining = await own.subscription(retain_acked_messages=True)
        kept = await retaining.publish(500)
        await retaining.ack(*await retaining.pull(500))
        await own.restart_server()

        assert await sub.pull_now() == []
        await sub.seek(PAST)
        late = await own.subscription(topic=topic)
        await late.seek(PAST)
        await retaining.seek(PAST)
        assert await finish(sub, 4) == await finish(late, 4) == early + later
        assert await finish(retaining, 500) == kept
        for one in (sub, late, retaining):
            assert await one.pull_now() == []
