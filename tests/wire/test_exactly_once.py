"""Leases under exactly-once delivery, beyond what the conformance suite asks: kills at chosen moments."""

import asyncio

from grpc import StatusCode

from pubsubd.conform.cases.histories import History
from pubsubd.wire import admin_pb
from tests.wire.calls import permanent, refused
from tests.wire.harness import case
from tests.wire.support import Delivery, Sub, World

KILL_BEFORE_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_BEFORE_COMMIT
KILL_AFTER_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_AFTER_COMMIT


@case
async def test_acks_on_a_detached_subscription_are_permanent_failures(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await world.client.DetachSubscription(subscription=sub.name)
    with permanent(a):
        await sub.ack(a)
    with permanent(a):
        await sub.modack(10, a)


async def ack_whose_reply_is_lost(own: World, sub: Sub, delivery: Delivery) -> None:
    with refused(StatusCode.UNAVAILABLE):
        await sub.ack(delivery)
    await asyncio.to_thread(own.server.wait)
    await own.disconnect()
    await own.start_server()


@case
async def test_ack_that_committed_before_a_kill_is_ok_when_repeated(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await own.inject_fault(KILL_AFTER_COMMIT, commits=1)
        await ack_whose_reply_is_lost(own, sub, a)
        await sub.nothing_for(12)
        await sub.ack(a)


@case
async def test_ack_that_did_not_commit_before_a_kill_can_be_repeated(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        (a,) = await sub.lease()
        await own.inject_fault(KILL_BEFORE_COMMIT, commits=1)
        await ack_whose_reply_is_lost(own, sub, a)
        await sub.nothing_for(5)
        await sub.ack(a)
        await sub.nothing_for(2)


@case
async def test_nacked_message_and_its_ids_survive_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        (a,) = await sub.lease()
        await sub.nack(a)
        await own.restart_server()
        with permanent(a):
            await sub.ack(a)
        await sub.nack(a)
        (b,) = await sub.pull()
        assert b.message_id == a.message_id and b.ack_id != a.ack_id
        await own.restart_server()
        await sub.nothing_for(2)
        await sub.ack(b)


@case
async def test_random_history_with_kills_agrees_with_the_rules(world: World):
    async with world.own_server() as own:
        await History(own, messages=200, seconds=30, seed=36).run(lives=5, between=own.restart_server)
