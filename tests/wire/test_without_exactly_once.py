"""CN: the same calls on subscriptions without exactly-once delivery."""

import asyncio
import time

from grpc import StatusCode

from tests.wire.calls import request_refused
from tests.wire.harness import case
from tests.wire.support import Sub, World, unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT


@case
async def test_CN_01_ack_of_a_superseded_id_is_ok(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    (b,) = await sub.pull()
    await sub.ack(a)
    await sub.ack(b)
    await sub.nothing_for(2)


@case
async def test_ack_of_a_superseded_id_acks_the_message(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    (b,) = await sub.pull()
    await sub.ack(a)
    await sub.modack(1, b)
    await sub.nothing_for(4)


@case
async def test_CN_02_ack_of_an_expired_id_ends_the_message(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    await sub.ack(a)
    await sub.nothing_for(2)


@case
async def test_CN_03_repeated_ack_and_late_modack_are_ok(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.ack(a)
    await sub.ack(a)
    await sub.modack(10, a)
    await sub.nack(a)
    await sub.nothing_for(2)


@case
async def test_CN_04_altered_id_refuses_the_request(world: World):
    sub, other = await world.subscription(eod=False), await world.subscription(eod=False)
    (a,) = await sub.lease()
    (foreign,) = await other.lease()
    altered = a.ack_id[:-1]
    for ack_id in (altered, a.ack_id + "x", "junk", foreign.ack_id):
        with request_refused(INVALID_ARGUMENT, f"(ack_id={ack_id})"):
            await sub.ack(ack_id)
        with request_refused(INVALID_ARGUMENT, f"(ack_id={ack_id})"):
            await sub.modack(10, ack_id)
    with request_refused(INVALID_ARGUMENT):
        await sub.ack("")


@case
async def test_CN_05_no_ack_ids_is_refused(world: World):
    sub = await world.subscription(eod=False)
    with request_refused(INVALID_ARGUMENT):
        await sub.ack()


@case
async def test_CN_06_deadline_out_of_range_is_refused(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    for seconds in (601, -1):
        with request_refused(INVALID_ARGUMENT, "Invalid ack deadline given", f"(ack_deadline={seconds})"):
            await sub.modack(seconds, a)


@case
async def test_CN_07_valid_id_beside_a_malformed_one_is_unaffected(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    with request_refused(INVALID_ARGUMENT):
        await sub.ack(a, "junk")
    with request_refused(INVALID_ARGUMENT):
        await sub.nack(a, "junk")
    await sub.nothing_for(7)  # still leased
    async with sub.stream() as stream:
        (b,) = await stream.take(within=6)  # and not acked
        assert b.message_id == a.message_id


@case
async def test_CN_08_repeated_nack_does_not_touch_the_newer_lease(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.nack(a)
    (b,) = await sub.pull()
    await sub.nack(a)
    await sub.nothing_for(3)
    await sub.ack(b)


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
async def test_CN_09_responses_say_that_exactly_once_is_off(world: World):
    sub = await world.subscription(eod=False)
    await sub.publish()
    async with sub.stream() as stream:
        await stream.take()
        await stream.pong()
    # Leaving the stream has checked that the properties are present in each response.
    assert not any(r.subscription_properties.exactly_once_delivery_enabled for r in stream.responses)


@case
async def test_CN_10_message_comes_back_at_its_deadline_and_not_before(world: World):
    sub = await world.subscription(eod=False)
    before = time.monotonic()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        (b,) = await stream.take(within=14)
    assert b.message_id == a.message_id
    assert b.at - before >= 10


@case
async def test_CN_11_acked_message_does_not_return_after_a_restart(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(eod=False)
        (a,) = await sub.lease()
        await sub.ack(a)
        await own.restart_server()
        await sub.nothing_for(12)


@case
async def test_CN_12_unknown_subscription_is_not_found(world: World):
    nowhere = Sub(world, "", unique("subscription"))
    with request_refused(StatusCode.NOT_FOUND):
        await nowhere.ack("x")


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
