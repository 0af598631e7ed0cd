"""Changes while messages are outstanding and streams are open: updates, detaching, deleted topics."""

import asyncio

from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import permanent, refused, unordered
from tests.wire.harness import case
from tests.wire.support import Sub, World, data_of, from_now, message_ids

PAST = pb.Timestamp(seconds=1)
DAY = 86_400


def seconds(number: int) -> pb.Duration:
    return pb.Duration(seconds=number)


async def clear(sub: Sub, path: str) -> None:
    """An update whose mask names a field that the body does not hold."""
    await sub.lab.client.UpdateSubscription(
        subscription=pb.Subscription(name=sub.name), update_mask=pb.FieldMask(paths=[path])
    )


# Updates

UPDATABLE = {
    "ack_deadline_seconds": 33,
    "labels": {"a": "1"},
    "retain_acked_messages": True,
    "message_retention_duration": seconds(700),
    "expiration_policy": pb.ExpirationPolicy(ttl=seconds(40 * DAY)),
    "retry_policy": pb.RetryPolicy(minimum_backoff=seconds(0), maximum_backoff=seconds(1)),
    "enable_exactly_once_delivery": False,
}


@case
async def test_every_field_can_be_updated_under_an_open_stream(world: World):
    sub = await world.ordered()
    dead = await world.topic()
    changes = {**UPDATABLE, "dead_letter_policy": pb.DeadLetterPolicy(dead_letter_topic=dead)}

    async def check_alive() -> None:
        (message_id,) = await sub.publish()
        (delivery,) = await stream.take()
        assert delivery.message_id == message_id
        await sub.ack(delivery)

    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        await sub.publish_key("k", b"first")
        (held,) = await stream.take()
        created = await sub.get()
        for path, value in changes.items():
            updated = await sub.update(**{path: value})
            assert updated == await sub.get() != created, path
            await check_alive()
            await clear(sub, path)
            await check_alive()
        assert await sub.update(enable_exactly_once_delivery=True, ack_deadline_seconds=10) == created

        await sub.publish_key("k", b"second")
        (second,) = await stream.take()
        with unordered(second):
            await sub.ack(second)
        await sub.ack(held, second)


@case
async def test_refused_update_changes_nothing_under_an_open_stream(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        created = await sub.get()
        for bad in (
            dict(labels={"a": "1"}, ack_deadline_seconds=5),
            dict(labels={"a": "1"}, message_retention_duration=seconds(1)),
            dict(labels={"a": "1"}, retry_policy=dict(minimum_backoff=seconds(601))),
            dict(labels={"a": "1"}, enable_message_ordering=True),
            dict(labels={"a": "1"}, filter="attributes:a"),
        ):
            with refused(StatusCode.INVALID_ARGUMENT):
                await sub.update(**bad)
            assert await sub.get() == created
        await sub.publish()
        await stream.take()


@case
async def test_deadline_of_a_later_pull_is_the_updated_one(world: World):
    sub = await world.subscription(ack_deadline_seconds=60)
    await sub.update(ack_deadline_seconds=10)
    await sub.publish()
    (a,) = await sub.pull()
    await asyncio.sleep(1)
    (b,) = await sub.pull(within=12)
    assert b.message_id == a.message_id
    assert b.at - a.at >= 9.5


@case
async def test_updates_survive_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.ordered()
        dead = await own.topic()
        policy = pb.DeadLetterPolicy(dead_letter_topic=dead, max_delivery_attempts=6)
        cleared = await own.ordered()
        await cleared.update(**UPDATABLE, dead_letter_policy=policy)
        for path in [*UPDATABLE, "dead_letter_policy"]:
            await clear(cleared, path)
        expected = await cleared.get()
        changed = await sub.update(**UPDATABLE, dead_letter_policy=policy)
        await own.restart_server()
        assert await sub.get() == changed
        assert await cleared.get() == expected


# DetachSubscription


@case
async def test_detaching_drops_what_was_outstanding_delayed_and_kept(world: World):
    for eod in (True, False):
        dead = await world.subscription()
        sub = await world.ordered(
            eod=eod,
            retain_acked_messages=True,
            retry_policy=dict(minimum_backoff=seconds(1), maximum_backoff=seconds(1)),
            dead_letter_policy=dict(dead_letter_topic=dead.topic, max_delivery_attempts=5),
        )
        await sub.publish_key("k", b"1", b"2", b"3")
        await sub.publish(3)
        leased = await sub.pull(6)
        await sub.ack(leased[0])
        await sub.nack(leased[1])
        await sub.modack(1, leased[3])
        snapshot = await sub.snapshot()
        await world.client.DetachSubscription(subscription=sub.name)

        assert (await sub.get()).detached
        with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
            await sub.pull_now()
        with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
            await sub.seek(PAST)
        with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
            await sub.snapshot()
        if eod:
            with permanent(*leased[1:]):
                await sub.ack(*leased[1:])
        else:
            await sub.ack(*leased)
            await sub.nack(*leased)
        # Time for the delays and leases that were running.
        await asyncio.sleep(1.5)
        assert await dead.pull_now() == []

        # What a snapshot took before is there for others.
        other = await world.ordered(topic=sub.topic)
        await other.restore(snapshot)
        assert sorted(data_of(await other.pull(5))) == sorted(data_of(leased[1:]))
        assert not (await other.get()).detached


@case
async def test_detached_subscription_is_detached_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(retain_acked_messages=True)
        other = await own.subscription(topic=sub.topic)
        await sub.publish(3)
        await sub.ack(*await sub.pull(1))
        await own.client.DetachSubscription(subscription=sub.name)
        await own.restart_server()
        assert (await sub.get()).detached
        assert (await sub.get()).topic == sub.topic
        listed = await own.client.ListTopicSubscriptions(topic=sub.topic)
        assert list(listed.subscriptions) == [other.name]
        with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
            await sub.pull_now()
        await sub.publish()
        assert len(await other.pull(4)) == 4
        await own.client.DeleteSubscription(subscription=sub.name)


@case
async def test_subscription_in_the_middle_of_everything_can_be_deleted(world: World):
    dead = await world.subscription()
    sub = await world.ordered(
        retry_policy=dict(minimum_backoff=seconds(1), maximum_backoff=seconds(1)),
        dead_letter_policy=dict(dead_letter_topic=dead.topic, max_delivery_attempts=5),
    )
    await sub.publish_key("k", b"1", b"2", b"3")
    await sub.publish(2)
    leased = await sub.pull(5)
    await sub.nack(leased[0], leased[3])
    await world.client.DeleteSubscription(subscription=sub.name)
    fields = dict(name=sub.name, topic=sub.topic, enable_message_ordering=True)
    await world.client.CreateSubscription(**fields)
    await asyncio.sleep(1.5)
    await sub.publish_key("k", b"4")
    assert data_of(await sub.pull()) == [b"4"]
    assert await sub.pull_now() == await dead.pull_now() == []


# Deleted topics


@case
async def test_backlog_of_a_deleted_topic_is_served_with_every_feature(world: World):
    async with world.own_server() as own:
        dead = await own.subscription()
        sub = await own.ordered(
            ack_deadline_seconds=60,
            filter="NOT attributes:skip",
            dead_letter_policy=dict(dead_letter_topic=dead.topic, max_delivery_attempts=5),
        )
        await sub.publish_attributes({"skip": ""})
        await sub.publish_key("k", b"1", b"2", b"3")
        await own.client.DeleteTopic(topic=sub.topic)
        assert (await sub.get()).topic == "_deleted-topic_"
        for _ in range(3):
            await sub.nack(*await sub.pull_now(1))
        await own.restart_server()
        assert (await sub.get()).topic == "_deleted-topic_"
        for number in (4, 5):
            (a,) = await sub.pull_now(1)
            assert (a.data, a.attempt) == (b"1", number)
            await sub.nack(a)
        b, c = await sub.pull(2)
        with unordered(c):
            await sub.ack(c)
        await sub.ack(b, c)
        assert data_of(await dead.pull()) == [b"1"]
        assert await sub.pull_now() == []
        with refused(StatusCode.NOT_FOUND):
            await sub.publish()


@case
async def test_topic_of_a_deleted_name_is_another_topic(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    ids = await sub.publish(2)
    await world.client.DeleteTopic(topic=sub.topic)
    retention = pb.Duration(seconds=600)
    await world.client.CreateTopic(name=sub.topic, message_retention_duration=retention)
    new = await world.subscription(topic=sub.topic)
    later = await sub.publish(2)
    assert (await sub.get()).topic == "_deleted-topic_"
    assert not (await sub.get()).HasField("topic_message_retention_duration")
    async with sub.stream() as old_stream, new.stream() as new_stream:
        assert message_ids(await old_stream.take(2)) == ids
        assert message_ids(await new_stream.take(2)) == later
        await sub.seek(from_now(60))
        await new.seek(PAST)
        await old_stream.nothing_for(0.5)
        await new_stream.nothing_for(0)
