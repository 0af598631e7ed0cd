"""Flow control and fairness between streams."""

import asyncio
import contextlib
import time

import psutil

from tests.wire.harness import case
from tests.wire.support import World

STREAMS = 4
SHARE_MIN = 0.7


@case(alone=True)
async def test_no_lease_starts_behind_a_client_that_does_not_read(world: World):
    sub = await world.subscription()
    await sub.publish(10_000, size=10_000)
    async with sub.stream(client=world.new_client(), reading=False):
        seen = []
        for _ in range(8):
            await asyncio.sleep(0.5)
            seen.append((await world.state_of(sub)).leased)
    # A response is about a megabyte, a hundred of these messages. One may be in commit while one is being
    # written; the transport holds what it had taken before it noticed that nobody reads.
    assert 0 < max(seen) <= 600
    assert max(seen[2:]) == min(seen[2:]), seen


@case(alone=True)
async def test_equal_streams_get_equal_shares(world: World):
    sub = await world.subscription()
    await sub.publish(20_000, size=500)
    streams = [sub.stream(client=world.new_client(), max_outstanding_messages=500) for _ in range(STREAMS)]
    async with streams[0], streams[1], streams[2], streams[3]:
        counts = await asyncio.gather(*[drain(sub, stream) for stream in streams])
    assert sum(counts) == 20_000
    assert min(counts) >= SHARE_MIN * 20_000 / STREAMS, counts


@case(alone=True)
async def test_equal_streams_without_limits_get_equal_shares(world: World):
    sub = await world.subscription()
    streams = [sub.stream(client=world.new_client()) for _ in range(STREAMS)]
    async with streams[0], streams[1], streams[2], streams[3]:
        for stream in streams:
            await stream.pong()
        drains = [asyncio.create_task(drain(sub, stream)) for stream in streams]
        await sub.publish(20_000, size=500)
        counts = await asyncio.gather(*drains)
    assert sum(counts) == 20_000
    assert min(counts) >= SHARE_MIN * 20_000 / STREAMS, counts


async def drain(sub, stream) -> int:
    """Takes and acks until nothing has come for a second."""
    count, last = 0, time.monotonic()
    while time.monotonic() - last < 1:
        if deliveries := stream.take_now():
            count, last = count + len(deliveries), time.monotonic()
            await sub.ack(*deliveries)
        else:
            await asyncio.sleep(0.002)
    return count


@case(alone=True)
async def test_full_stream_does_not_slow_the_others(world: World):
    sub = await world.subscription()
    await sub.publish(5)
    full = sub.stream(max_outstanding_messages=5, stream_ack_deadline_seconds=60)
    unread = sub.stream(client=world.new_client(), reading=False, stream_ack_deadline_seconds=60)
    free = sub.stream(client=world.new_client())
    async with full:
        await full.take(5)
        async with unread, free:
            await free.pong()
            await sub.publish(2000, size=100)
            # The one that does not read is given what fits in its connection; the rest goes on.
            start = time.monotonic()
            assert await drain(sub, free) >= 500
            assert time.monotonic() - start < 5
        assert len(full.deliveries) == 5


@case
async def test_byte_limit_counts_whole_messages_and_unary_acks_free_it(world: World):
    sub = await world.subscription()
    await sub.publish_data(*[b"%d" % i * 1000 for i in range(6)])
    async with sub.stream(max_outstanding_bytes=2500) as stream:
        first = await stream.take(3)
        await stream.nothing_for(1)
        await sub.ack(first[0])
        await stream.take(1)
        await stream.nothing_for(1)
        await sub.nack(first[1])
        await stream.take(1)
        await stream.nothing_for(1)


@case
async def test_messages_larger_than_the_byte_limit_come_one_at_a_time(world: World):
    sub = await world.subscription()
    await sub.publish_data(b"a" * 5000, b"b" * 5000)
    async with sub.stream(max_outstanding_bytes=1000) as stream:
        (a,) = await stream.take()
        await stream.nothing_for(2)
        await sub.ack(a)
        await stream.take()


@case
async def test_failed_ack_does_not_take_a_slot_again(world: World):
    sub = await world.subscription()
    await sub.publish(4)
    async with sub.stream(max_outstanding_messages=2) as stream:
        a, _ = await stream.take(2)
        await sub.modack(1, a)
        (third,) = await stream.take(1, within=4)
        assert await sub.failed_acks(a) != {}
        await stream.nothing_for(2)
        await sub.ack(third)
        await stream.take(1)


@case
async def test_client_that_sends_acks_and_never_reads_does_not_fill_the_memory(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish(3000, size=1000)
        junk = [f"{number:0100}" for number in range(1000)]
        process = psutil.Process(own.server.pid)
        async with sub.stream(client=own.new_client(), reading=False) as stream:
            await asyncio.sleep(1)
            before = process.memory_info().rss
            # Each asks for a confirmation of 100 kB. The server may stop to read, and then the writes wait.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    for _ in range(3000):
                        await stream.send(ack_ids=junk)
            assert process.memory_info().rss - before < 60_000_000
        await sub.pull()


@case
async def test_many_streams_share_one_connection(world: World):
    subs = [await world.subscription() for _ in range(5)]
    client = world.new_client()
    async with contextlib.AsyncExitStack() as stack:
        streams = [
            (sub, await stack.enter_async_context(sub.stream(client=client)))
            for sub in subs
            for _ in range(50)
        ]
        await asyncio.gather(*[stream.pong(within=5) for _, stream in streams])
        ids = [message_id for sub in subs for message_id in await sub.publish(50)]
        await asyncio.sleep(2)
        seen = [delivery.message_id for _, stream in streams for delivery in stream.deliveries]
        assert sorted(seen) == sorted(ids)


@case
async def test_messages_that_trickle_in_go_round(world: World):
    for looks in (0, 1):
        sub = await world.subscription()
        async with sub.stream() as one, sub.stream() as other:
            await one.pong()
            await other.pong()
            for _ in range(looks):
                await sub.pull_now()  # which asks the server to deal when there is nothing
            for count in range(1, 21):
                await sub.publish()
                while len(one.deliveries) + len(other.deliveries) < count:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.03)  # both streams are idle again
            assert 5 <= len(one.deliveries) <= 15
