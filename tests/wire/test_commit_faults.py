"""A disk that is slow, or refuses to write: what is answered then, and what becomes of it afterwards."""

import asyncio
import time

from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire.calls import Refusal, refused, transient
from tests.wire.harness import case
from tests.wire.support import World, message_ids, unique, until

FAIL = admin_pb.InjectCommitFaultRequest.FAIL
STALL = admin_pb.InjectCommitFaultRequest.STALL
NONE = admin_pb.InjectCommitFaultRequest.NONE


@case
async def test_publish_that_could_not_be_written_is_unavailable_and_leaves_nothing(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await own.inject_fault(FAIL)
        with refused(StatusCode.UNAVAILABLE):
            await sub.publish()

        await own.inject_fault(NONE)
        await sub.nothing_for(2)
        ids = await sub.publish(3)
        assert message_ids(await sub.pull(3)) == ids


@case
async def test_resources_that_could_not_be_written_are_as_they_were(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(labels={"a": "1"})
        other = unique("topic")
        await own.inject_fault(FAIL)
        with refused(StatusCode.UNAVAILABLE):
            await own.client.CreateTopic(name=other)
        with refused(StatusCode.UNAVAILABLE):
            await sub.update(labels={"a": "2"})
        with refused(StatusCode.UNAVAILABLE):
            await own.client.DeleteSubscription(subscription=sub.name)
        with refused(StatusCode.UNAVAILABLE):
            await own.client.DetachSubscription(subscription=sub.name)
        with refused(StatusCode.UNAVAILABLE):
            await own.client.DeleteTopic(topic=sub.topic)
        await own.inject_fault(NONE)

        found = await own.client.GetSubscription(subscription=sub.name)
        assert (found.topic, dict(found.labels), found.detached) == (sub.topic, {"a": "1"}, False)
        with refused(StatusCode.NOT_FOUND):
            await own.client.GetTopic(topic=other)
        await own.client.CreateTopic(name=other)


@case
async def test_delivery_that_could_not_be_written_is_not_made(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        ids = await sub.publish(3)
        async with sub.stream(stream_ack_deadline_seconds=60) as stream:
            (a, *_) = await stream.take(3)
            await own.inject_fault(FAIL)
            with transient(a):
                await sub.nack(a)
            await stream.nothing_for(2)
            await own.inject_fault(NONE)
            await sub.nack(a)
            (b,) = await stream.take(within=5)
            assert b.message_id == a.message_id == ids[0]

        await own.inject_fault(FAIL)
        with transient(b):
            await sub.ack(b)
        await own.restart_server()
        # The fault went with the old process; the lease and its id did not.
        await sub.nothing_for(2)
        await sub.ack(b)


@case
async def test_stream_opened_while_nothing_can_be_written_delivers_afterwards(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        ids = await sub.publish(3)
        await own.inject_fault(FAIL)
        async with sub.stream() as stream:
            await stream.pong(within=2)
            await stream.nothing_for(1)
            await own.inject_fault(NONE)
            assert message_ids(await stream.take(3, within=5)) == ids


@case
async def test_ack_on_the_stream_that_could_not_be_written_is_temporarily_failed(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        async with sub.stream() as stream:
            await own.inject_fault(FAIL)
            await stream.send(
                ack_ids=[a.ack_id], modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[30]
            )
            response = await stream.response(lambda r: r.HasField("acknowledge_confirmation"), after=0)
            confirmation = response.acknowledge_confirmation
            assert list(confirmation.temporary_failed_ack_ids) == [a.ack_id]
            assert not confirmation.ack_ids and not confirmation.invalid_ack_ids
            await own.inject_fault(NONE)
            await stream.send(ack_ids=[a.ack_id])
            await stream.response(lambda r: a.ack_id in r.acknowledge_confirmation.ack_ids, after=0)


@case
async def test_pong_does_not_wait_for_a_slow_disk(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish(10)
        async with sub.stream(max_outstanding_messages=5) as stream:
            a, *_ = await stream.take(5)
            await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=5))
            ack = asyncio.ensure_future(sub.ack(a))
            await asyncio.sleep(0.2)
            start = time.monotonic()
            await stream.pong(within=1)
            await stream.half_close()
            await stream.ends_with(StatusCode.OK, within=1.2)
            assert not ack.done() and time.monotonic() - start < 3
            await ack


@case
async def test_ack_that_arrived_in_time_is_honoured_when_the_disk_is_slow(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish()
        before = time.monotonic()
        async with sub.stream() as stream:
            (a,) = await stream.take()
            await until(before + 9)
            await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=5))
            await sub.ack(a)
            assert time.monotonic() - before >= 13
            await stream.nothing_for(3)


@case
async def test_extension_that_arrived_in_time_is_honoured_when_the_disk_is_slow(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish()
        before = time.monotonic()
        async with sub.stream() as stream:
            (a,) = await stream.take()
            await until(before + 9)
            await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=4))
            await sub.modack(20, a)
            await stream.nothing_for(10)
            await sub.ack(a)


@case
async def test_stop_during_a_slow_commit_gives_no_code_that_clients_misread(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        deliveries = await sub.lease(10)
        await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=3))
        acks = [asyncio.ensure_future(sub.ack(delivery)) for delivery in deliveries]
        await asyncio.sleep(0.3)
        assert await asyncio.to_thread(own.server.terminate) == 0
        results = await asyncio.gather(*acks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                assert Refusal.of(result).code in (StatusCode.ABORTED, StatusCode.UNAVAILABLE)

        await own.disconnect()
        await own.start_server()
        state = await own.state_of(sub)
        leased = {lease.message_id for lease in state.leases}
        for delivery, result in zip(deliveries, results, strict=True):
            assert isinstance(result, BaseException) or int(delivery.message_id) not in leased
