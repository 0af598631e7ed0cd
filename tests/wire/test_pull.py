"""Unary Pull: how many, how long it waits, who gets what."""

import asyncio
import time

import grpc
from grpc import StatusCode

from tests.wire.calls import refused
from tests.wire.harness import case
from tests.wire.support import World, message_ids

# The envelope of https://cloud.google.com/pubsub/quotas#resource_limits for one pull response.
RESPONSE_BYTES_MAX = 10 << 20


@case
async def test_max_messages_must_be_positive(world: World):
    sub = await world.subscription()
    for bad in (0, -1, -(2**31)):
        with refused(StatusCode.INVALID_ARGUMENT, "argument=max_messages"):
            await sub.pull_now(bad)


@case
async def test_max_messages_is_not_exceeded_and_neither_is_a_thousand(world: World):
    sub = await world.subscription()
    await sub.publish(1500)
    assert 0 < len(await sub.pull_now(7)) <= 7
    assert 0 < len(await sub.pull_now(2**31 - 1)) <= 1000


@case
async def test_response_stays_in_its_envelope(world: World):
    sub = await world.subscription()
    await sub.publish_data(*[b"%d" % i * 4_000_000 for i in range(5)])
    for _ in range(3):
        response = await world.client.Pull(subscription=sub.name, max_messages=10)
        assert 1 <= len(response.received_messages) <= 2
        assert response.ByteSize() <= RESPONSE_BYTES_MAX


@case
async def test_return_immediately_does_not_wait(world: World):
    sub = await world.subscription()
    start = time.monotonic()
    assert await sub.pull_now() == []
    assert time.monotonic() - start < 5


@case
async def test_waiting_pull_is_answered_by_the_first_message(world: World):
    sub = await world.subscription()
    pull = asyncio.ensure_future(world.client.Pull(subscription=sub.name, max_messages=100))
    await asyncio.sleep(1)
    assert not pull.done()
    start = time.monotonic()
    ids = await sub.publish(3)
    response = await pull
    assert time.monotonic() - start < 5
    seen = [received.message.message_id for received in response.received_messages]
    assert seen and set(seen) <= set(ids)


@case(alone=True)  # with others beside it a second may pass before the answer is read
async def test_empty_pull_is_answered_a_second_before_its_deadline(world: World):
    sub = await world.subscription()
    start = time.monotonic()
    response = await world.client.Pull(subscription=sub.name, max_messages=10, timeout=5)
    assert len(response.received_messages) == 0
    assert 3.5 <= time.monotonic() - start < 5


@case
async def test_empty_pull_is_answered_after_25_seconds(world: World):
    sub = await world.subscription()
    start = time.monotonic()
    response = await world.client.Pull(subscription=sub.name, max_messages=10, timeout=60)
    assert len(response.received_messages) == 0
    assert 24 <= time.monotonic() - start < 35


@case
async def test_cancelled_pull_takes_nothing_with_it(world: World):
    sub = await world.subscription()
    for _ in range(20):
        pull = world.client.Pull(subscription=sub.name, max_messages=10)
        await asyncio.sleep(0.02)
        pull.cancel()
    await asyncio.sleep(0.3)
    ids = await sub.publish(20)
    assert sorted(message_ids(await sub.pull(20, within=3))) == sorted(ids)


@case
async def test_oldest_message_comes_first_also_when_it_comes_again(world: World):
    sub = await world.subscription()
    ids = await sub.publish(10)
    first = await sub.pull(3)
    assert message_ids(first) == ids[:3]
    await sub.nack(first[0])
    assert message_ids(await sub.pull(8)) == [ids[0], *ids[3:]]


@case
async def test_pulls_and_streams_share_the_messages(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong()
        pull = asyncio.ensure_future(world.client.Pull(subscription=sub.name, max_messages=10, timeout=10))
        await asyncio.sleep(0.2)
        ids = await sub.publish(100)
        pulled = [received.message.message_id for received in (await pull).received_messages]
        await asyncio.sleep(1)
        assert sorted(pulled + message_ids(stream.deliveries)) == sorted(ids)
        assert pulled


@case
async def test_delivery_attempt_is_absent_without_a_dead_letter_policy(world: World):
    sub = await world.subscription()
    await sub.publish()
    for _ in range(2):
        response = await world.client.Pull(subscription=sub.name, max_messages=1)
        (received,) = response.received_messages
        assert received.delivery_attempt == 0
        await sub.nack(received)


@case
async def test_open_pull_ends_when_the_subscription_does(world: World):
    for end, code in (
        (world.client.DeleteSubscription, StatusCode.NOT_FOUND),
        (world.client.DetachSubscription, StatusCode.FAILED_PRECONDITION),
    ):
        sub = await world.subscription()
        pull = asyncio.ensure_future(world.client.Pull(subscription=sub.name, max_messages=10))
        await asyncio.sleep(0.3)
        await end(subscription=sub.name)
        with refused(code):
            await asyncio.wait_for(pull, 5)


@case
async def test_deadline_of_the_subscription_counts_for_pull_and_later_deliveries_only(world: World):
    sub = await world.subscription(ack_deadline_seconds=10)
    await sub.publish()
    before = time.monotonic()
    (a,) = await sub.pull()
    await sub.update(ack_deadline_seconds=60)
    (b,) = await sub.pull(within=14)
    assert (a.message_id, b.at - before >= 10) == (b.message_id, True)
    await sub.nothing_for(13)


@case
async def test_calls_with_odd_but_legal_headers_are_served(world: World):
    sub = await world.subscription()
    channel = grpc.aio.insecure_channel(world.server.address)
    path = "/google.pubsub.v1.Subscriber/GetSubscription"
    headers = (
        ("x-goog-request-params", "subscription=other"),
        ("x-bin", b"\x00\xff"),
        ("authorization", "no"),
    )
    body = b"\x0a" + bytes([len(sub.name)]) + sub.name.encode()
    assert await channel.unary_unary(path)(body, metadata=headers, timeout=5)
    await channel.close()
