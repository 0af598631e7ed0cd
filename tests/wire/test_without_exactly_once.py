"""What our own server does without exactly-once delivery beyond the cases CN of the conformance suite."""

import asyncio

from grpc import StatusCode

from tests.wire.calls import request_refused
from tests.wire.harness import case
from tests.wire.support import Sub, World, unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT


@case
async def test_ack_of_a_superseded_id_acks_the_message(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    (b,) = await sub.pull()
    await sub.ack(a)
    await sub.modack(1, b)
    await sub.nothing_for(4)
    await sub.ack(b)


@case
async def test_nack_after_the_ack_is_ok_and_brings_nothing_back(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.ack(a)
    await sub.modack(10, a)
    await sub.nack(a)
    await sub.nothing_for(2)


@case
async def test_malformed_and_foreign_ids_refuse_the_request_by_name(world: World):
    sub, other = await world.subscription(eod=False), await world.subscription(eod=False)
    (a,) = await sub.lease()
    (foreign,) = await other.lease()
    for ack_id in (a.ack_id[:-1], "junk", foreign.ack_id):
        for call in (sub.ack(ack_id), sub.modack(10, ack_id), sub.ack(a, ack_id), sub.nack(a, ack_id)):
            with request_refused(INVALID_ARGUMENT, f"(ack_id={ack_id})"):
                await call
    with request_refused(INVALID_ARGUMENT):
        await sub.ack("")
    # None of the nacks has given the message back.
    await sub.nothing_for(2)


@case
async def test_refusals_have_a_trailer_here_too(world: World):
    sub, nowhere = await world.subscription(eod=False), Sub(world, "", unique("subscription"))
    (a,) = await sub.lease()
    for seconds in (601, -1):
        with request_refused(INVALID_ARGUMENT, "Invalid ack deadline given", f"(ack_deadline={seconds})"):
            await sub.modack(seconds, a)
    with request_refused(INVALID_ARGUMENT):
        await sub.ack()
    with request_refused(StatusCode.NOT_FOUND):
        await nowhere.ack("x")


@case
async def test_stale_extension_does_not_revive_or_move_a_lease(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    await sub.modack(60, a)
    (b,) = await sub.pull()
    await sub.modack(60, a)
    async with sub.stream() as stream:
        (c,) = await stream.take(within=14)
    assert a.message_id == b.message_id == c.message_id


@case
async def test_acks_on_a_detached_subscription_are_ok(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    await world.client.DetachSubscription(subscription=sub.name)
    await sub.ack(a)
    await sub.modack(10, a)


@case
async def test_unary_pulls_of_two_clients_get_different_messages(world: World):
    sub = await world.subscription(eod=False)
    await sub.publish(100)
    taken = await asyncio.gather(sub.pull(50), sub.pull(50))
    assert len({delivery.message_id for part in taken for delivery in part}) == 100
