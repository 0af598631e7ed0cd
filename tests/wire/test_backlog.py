"""What a subscription is owed: larger than memory, across restarts, beside other subscriptions."""

import time

from grpc import StatusCode

from tests.wire.calls import refused
from tests.wire.harness import case
from tests.wire.support import Sub, World, message_ids, until


async def drain(sub: Sub, count: int) -> dict[str, bytes]:
    """Takes and acks so many messages; returns their data in the order of their arrival."""
    seen: dict[str, bytes] = {}
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        while len(seen) < count:
            deliveries = await stream.take_all(within=10)
            seen.update((delivery.message_id, delivery.data) for delivery in deliveries)
            await sub.ack(*deliveries)
    return seen


async def publish_numbered(sub: Sub, count: int, size: int) -> dict[str, bytes]:
    data = [b"%d " % number + b"x" * size for number in range(count)]
    return dict(zip(await sub.publish_data(*data), data, strict=True))


@case(alone=True)
async def test_backlog_larger_than_memory_is_delivered_whole_and_in_order(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        published = await publish_numbered(sub, 6000, 10_000)
        first = await sub.pull(1000)
        await sub.ack(*first)
        seen = {delivery.message_id: delivery.data for delivery in first}
        await own.restart_server()
        seen |= await drain(sub, 5000)
        assert list(seen.items()) == list(published.items())
        await sub.nothing_for(1)


@case
async def test_what_one_subscription_has_finished_is_kept_for_another(world: World):
    async with world.own_server() as own:
        fast = await own.subscription()
        slow = await own.subscription(topic=fast.topic, ack_deadline_seconds=600)
        published = await publish_numbered(fast, 6000, 200)
        assert await drain(fast, 6000) == published
        assert message_ids(await slow.pull(10)) == list(published)[:10]
        await own.restart_server()
        assert await drain(slow, 5990) == dict(list(published.items())[10:])


@case
async def test_message_held_in_the_middle_survives_what_is_finished_around_it(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=600)
        await publish_numbered(sub, 3000, 200)
        first = await sub.pull(3000)
        held = first[1500]
        start = time.monotonic()
        await sub.ack(*first[:1500], *first[1501:])
        for _ in range(3):
            await publish_numbered(sub, 3000, 200)
            await drain(sub, 3000)
        await own.restart_server()
        await until(start + 6)  # time for what tidies up in the background
        await sub.nack(held)
        (again,) = await sub.pull(within=3)
        assert (again.message_id, again.data) == (held.message_id, held.data)
        assert again.message == held.message


@case
async def test_backlog_of_a_deleted_topic_survives_a_restart(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        published = await publish_numbered(sub, 100, 20)
        await own.client.DeleteTopic(topic=sub.topic)
        await own.client.CreateTopic(name=sub.topic)
        await own.restart_server()
        await publish_numbered(sub, 1, 20)  # to the new topic, which this one is not attached to
        assert await drain(sub, 100) == published
        await sub.nothing_for(1)


@case
async def test_later_subscription_gets_later_messages_only(world: World):
    async with world.own_server() as own:
        early = await own.subscription()
        before = await publish_numbered(early, 50, 20)
        late = await own.subscription(topic=early.topic)
        after = await publish_numbered(early, 50, 20)
        await own.restart_server()
        assert await drain(late, 50) == after
        assert await drain(early, 100) == before | after
        assert max(map(int, before)) < min(map(int, after))


@case
async def test_message_ids_go_on_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        ids: list[str] = []
        for _ in range(3):
            ids += await sub.publish(10)
            await own.restart_server()
        assert len(set(ids)) == 30
        assert sorted(ids, key=int) == ids
        assert sorted(message_ids(await sub.pull(30)), key=int) == ids


async def short_life(world: World) -> None:
    sub = await world.subscription()
    a, b = await sub.lease(2)
    await sub.ack(a)
    await sub.nack(b)
    (again,) = await sub.pull()
    assert again.message_id == b.message_id
    await sub.ack(again)
    await sub.nothing_for(1)


@case
async def test_server_works_without_a_journal(world: World):
    async with world.own_server("--journal", "off") as own:
        await short_life(own)
        await own.restart_server()
        await short_life(own)


@case
async def test_server_works_with_durability_through_power_loss(world: World):
    async with world.own_server("--durability", "power") as own:
        await short_life(own)
        await own.restart_server()
        await short_life(own)


@case
async def test_server_works_in_memory_and_forgets(world: World):
    async with world.own_server(in_memory=True) as own:
        await short_life(own)
        sub = await own.subscription()
        await own.restart_server()
        with refused(StatusCode.NOT_FOUND):
            await sub.publish()
        await short_life(own)
