"""SIGTERM and SIGINT: streams end as UNAVAILABLE, what is owed is said, the exit code is 0."""

import asyncio
import re
import signal
import time

from grpc import StatusCode

from tests.wire.calls import Refusal
from tests.wire.harness import case
from tests.wire.support import Sub, World

STOP_SECONDS_MAX = 10.0


def check_open_calls_end_well(message: str) -> None:
    assert message != ""
    assert "Server shutdownNow invoked" not in message


async def leave_something(world: World) -> Sub:
    """Five messages: one acked, one nacked, two leased, and one that was not looked at."""
    sub = await world.subscription(ack_deadline_seconds=60)
    await sub.publish(5)
    a, b, _, _ = await sub.pull(4)
    await sub.ack(a)
    await sub.nack(b)
    return sub


async def check_farewell(world: World) -> None:
    """One line says what the server left: two messages outstanding, and one that is to come again."""
    (line,) = await world.said("outstanding", "redelivery")
    assert re.findall(r"\d+", line) == ["2", "1", "1"], line


@case
async def test_client_that_does_not_read_does_not_hold_the_server_up(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish(3000, size=10_000)
        async with sub.stream(client=own.new_client(), reading=False) as unread:
            await asyncio.sleep(1)
            start = time.monotonic()
            assert await asyncio.to_thread(own.server.terminate) == 0
            assert time.monotonic() - start < STOP_SECONDS_MAX
            unread.read()
            code, message = await unread.ended()
            assert code == StatusCode.UNAVAILABLE
            check_open_calls_end_well(message)


@case
async def test_waiting_pull_is_answered(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        pull = asyncio.ensure_future(own.client.Pull(subscription=sub.name, max_messages=10))
        await asyncio.sleep(0.5)
        assert await asyncio.to_thread(own.server.terminate) == 0
        (result,) = await asyncio.gather(pull, return_exceptions=True)
        if isinstance(result, BaseException):
            refusal = Refusal.of(result)
            assert refusal.code == StatusCode.UNAVAILABLE
            check_open_calls_end_well(refusal.message)
        else:
            assert len(result.received_messages) == 0


@case
async def test_what_is_owed_is_said_and_still_there(world: World):
    async with world.own_server() as own:
        sub = await leave_something(own)
        assert await asyncio.to_thread(own.server.terminate) == 0
        await check_farewell(own)
        await own.disconnect()

        await own.start_server()
        state = await own.state_of(sub)
        assert state.leased == 2
        assert len(await sub.pull(2)) == 2
        await sub.nothing_for(2)


@case
async def test_interrupt_from_the_keyboard_is_as_graceful(world: World):
    async with world.own_server() as own:
        sub = await leave_something(own)
        async with sub.stream() as stream:
            await stream.pong()
            own.server.process.send_signal(signal.SIGINT)
            await stream.ends_with(StatusCode.UNAVAILABLE, within=STOP_SECONDS_MAX)
        assert await asyncio.to_thread(own.server.wait) == 0


@case
async def test_acks_during_the_stop_are_kept_or_refused_but_never_lost(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        deliveries = await sub.lease(2000)
        calls = [asyncio.ensure_future(sub.ack(delivery)) for delivery in deliveries[:500]]
        await asyncio.sleep(0.05)
        assert await asyncio.to_thread(own.server.terminate) == 0
        results = await asyncio.gather(*calls, return_exceptions=True)
        acked = {
            delivery.ack_id
            for delivery, result in zip(deliveries[:500], results, strict=True)
            if not isinstance(result, BaseException)
        }
        await own.disconnect()
        await own.start_server()
        state = await own.state_of(sub)
        assert state.leased <= 2000 - len(acked)
        leased = {lease.message_id for lease in state.leases}
        assert not leased & {int(d.message_id) for d in deliveries if d.ack_id in acked}
