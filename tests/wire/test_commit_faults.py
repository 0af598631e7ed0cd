"""A disk that is slow, or refuses to write: what is answered then, and what becomes of it afterwards."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire.calls import Refusal, permanent, refused, transient, unordered
from tests.wire.harness import case
from tests.wire.support import World, data_of, from_now, message_ids, unique, until

FAIL = admin_pb.InjectCommitFaultRequest.FAIL
STALL = admin_pb.InjectCommitFaultRequest.STALL
NONE = admin_pb.InjectCommitFaultRequest.NONE
KILL_BEFORE_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_BEFORE_COMMIT
KILL_AFTER_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_AFTER_COMMIT


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
        sub = await own.subscription(ack_deadline_seconds=60)
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
            await stream.pong(within=2)
            await stream.half_close()
            await stream.ends_with(StatusCode.OK, within=2)
            assert not ack.done() and time.monotonic() - start < 4.5
            await ack


@case
async def test_ack_that_arrived_in_time_is_honoured_when_the_disk_is_slow(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish()
        before = time.monotonic()
        async with sub.stream() as stream:
            (a,) = await stream.take()
            await until(before + 7)
            await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=6))
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
            await until(before + 7)
            await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=6))
            await sub.modack(30, a)
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


@case
async def test_delivery_features_that_could_not_be_written_are_as_they_were(world: World):
    async with world.own_server() as own:
        dead = await own.subscription()
        policy = dict(dead_letter_topic=dead.topic, max_delivery_attempts=5)
        failing = await own.subscription(dead_letter_policy=policy, ack_deadline_seconds=60)
        await failing.publish()
        for _ in range(4):
            await failing.nack(*await failing.pull())
        (fifth,) = await failing.pull()
        ordered = await own.ordered(retain_acked_messages=True, ack_deadline_seconds=60)
        await ordered.publish_key("k", b"m1", b"m2", b"m3", b"m4")
        m1, m2, m3 = await ordered.pull(3)
        await ordered.ack(m1)
        snapshot = await ordered.snapshot()

        await own.inject_fault(FAIL)
        with transient(fifth):
            await failing.nack(fifth)
        with transient(m2):
            await ordered.nack(m2)
        for moment in (pb.Timestamp(seconds=1), from_now(3600)):
            with refused(StatusCode.UNAVAILABLE):
                await ordered.seek(moment)
        with refused(StatusCode.UNAVAILABLE):
            await ordered.restore(snapshot)
        with refused(StatusCode.UNAVAILABLE):
            await ordered.snapshot(name="projects/wire/snapshots/lost")
        with refused(StatusCode.UNAVAILABLE):
            await own.client.DeleteSnapshot(snapshot=snapshot.name)
        await own.inject_fault(NONE)

        assert await dead.pull_now() == await failing.pull_now() == await ordered.pull_now() == []
        with refused(StatusCode.NOT_FOUND):
            await own.client.GetSnapshot(snapshot="projects/wire/snapshots/lost")
        assert await own.client.GetSnapshot(snapshot=snapshot.name) == snapshot
        await ordered.ack(m1)  # repeated, so nothing has brought it back
        with unordered(m3):
            await ordered.ack(m3)
        await ordered.ack(m2, m3)
        assert data_of(await ordered.pull()) == [b"m4"]
        await failing.nack(fifth)
        assert data_of(await dead.pull()) == [fifth.data]


@case
async def test_kill_around_a_commit_does_a_seek_or_a_nack_wholly_or_not_at_all(world: World):
    async with world.own_server() as own:
        seeking = await own.subscription(ack_deadline_seconds=60, retain_acked_messages=True)
        ordered = await own.ordered(ack_deadline_seconds=60)
        await seeking.publish_data(b"a", b"b")
        a, _ = await seeking.pull(2)
        await seeking.ack(a)
        await ordered.publish_key("k", b"m1", b"m2")
        m1, m2 = await ordered.pull(2)

        async def killed(fault: int, call: Awaitable[Any]) -> None:
            await own.inject_fault(fault, commits=1)
            with refused(StatusCode.UNAVAILABLE):
                await call
            await asyncio.to_thread(own.server.wait)
            await own.disconnect()
            await own.start_server()

        await killed(KILL_BEFORE_COMMIT, seeking.seek(pb.Timestamp(seconds=1)))
        assert await seeking.pull_now() == []
        await seeking.ack(a)
        await killed(KILL_AFTER_COMMIT, seeking.seek(pb.Timestamp(seconds=1)))
        assert data_of(await seeking.pull()) == [b"a"]
        with permanent(a):
            await seeking.ack(a)
        await killed(KILL_BEFORE_COMMIT, ordered.nack(m1))
        await ordered.ack(m1)
        await killed(KILL_AFTER_COMMIT, ordered.nack(m2))
        (again,) = await ordered.pull()
        assert again.data == b"m2"
        await ordered.nack(m2)
        await ordered.ack(again)
