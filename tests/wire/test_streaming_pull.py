"""What our own server does on streams beyond the cases CS of the conformance suite.

Every response that a case reads is checked to carry `subscription_properties` when its stream is left.
"""

import asyncio
import time

from grpc import StatusCode

from pubsubd.conform.lab import Delivery
from pubsubd.model import limits
from pubsubd.wire import pb
from tests.wire.harness import case
from tests.wire.support import Sub, World, unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT


async def first_request_ends(sub: Sub, code: StatusCode, **fields) -> str:
    async with sub.stream(**fields) as stream:
        return await stream.ends_with(code)


async def later_request_ends(world: World, code: StatusCode, **fields) -> str:
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong()
        await stream.send(**fields)
        return await stream.ends_with(code)


async def check_alive(stream, sub: Sub) -> None:
    """The stream still delivers what is published."""
    (message_id,) = await sub.publish()
    (delivery,) = await stream.take()
    assert delivery.message_id == message_id


async def receipt_confirmed(sub: Sub, stream) -> Delivery:
    """A delivery whose lease was extended so soon that this counts as the client's receipt."""
    while True:
        started = time.monotonic()
        await sub.publish()
        (delivery,) = await stream.take()
        await sub.modack(60, delivery)
        if time.monotonic() - started < limits.RECEIPT_US / limits.SECOND_US:
            return delivery
        await sub.ack(delivery)


# Opening


@case
async def test_refusals_of_a_stream_say_why(world: World):
    message = await first_request_ends(Sub(world, "", unique("subscription")), StatusCode.NOT_FOUND)
    assert "Resource not found" in message
    sub = await world.subscription()
    await world.client.DetachSubscription(subscription=sub.name)
    message = await first_request_ends(sub, StatusCode.FAILED_PRECONDITION)
    assert "Subscription is detached" in message


@case
async def test_first_request_with_a_name_of_another_form_is_refused(world: World):
    for name in ("subscriptions/s", "projects//subscriptions/abc", unique("topic")):
        await first_request_ends(Sub(world, "", name), INVALID_ARGUMENT)


@case
async def test_first_request_is_refused_for_each_broken_field(world: World):
    sub = await world.subscription()
    ids = ["a", "b"]
    for fields in (
        dict(stream_ack_deadline_seconds=-1),
        dict(modify_deadline_ack_ids=ids, modify_deadline_seconds=[10]),
        dict(modify_deadline_ack_ids=ids[:1], modify_deadline_seconds=[-1]),
        dict(modify_deadline_ack_ids=ids[:1], modify_deadline_seconds=[601]),
        dict(protocol_version=-1),
        dict(ack_ids=["x" * 524_288]),
    ):
        await first_request_ends(sub, INVALID_ARGUMENT, **fields)


@case
async def test_later_request_is_refused_for_each_broken_field(world: World):
    for fields in (
        dict(stream_ack_deadline_seconds=-1),
        dict(modify_deadline_ack_ids=["a"], modify_deadline_seconds=[601]),
        dict(modify_deadline_seconds=[10]),
    ):
        await later_request_ends(world, INVALID_ARGUMENT, **fields)


@case
async def test_stream_of_version_0_is_told_nothing_but_messages(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        await check_alive(stream, sub)
        (response,) = stream.responses
        assert not response.subscription_properties.message_ordering_enabled


# Keep-alives


@case
async def test_flood_of_keep_alives_is_taken(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        for _ in range(3000):
            await stream.send()
        await sub.publish()
        await stream.take(within=15)
        await stream.pong()


# Half-close


@case
async def test_half_close_behind_requests_processes_them_first(world: World):
    sub = await world.subscription()
    took = float("inf")
    while took >= limits.HALF_CLOSE_SECONDS_MAX / 2:  # for storage that is slower nothing is held open
        a, b = await sub.lease(2)
        async with sub.stream() as stream:
            await stream.send(ack_ids=[a.ack_id])
            await stream.send(ack_ids=[b.ack_id])
            half_closed = time.monotonic()
            await stream.half_close()
            await stream.ends_with(StatusCode.OK)
            took = time.monotonic() - half_closed
    confirmed = [i for r in stream.responses for i in r.acknowledge_confirmation.ack_ids]
    assert sorted(confirmed) == sorted([a.ack_id, b.ack_id])
    await sub.nothing_for(12)


# Flow control


@case
async def test_message_of_almost_ten_megabytes_is_delivered_alone(world: World):
    sub = await world.subscription()
    await sub.publish_data(b"small", b"x" * 9_999_000, b"small")
    async with sub.stream() as stream:
        deliveries = await stream.take(3, within=10)
        assert sorted(len(d.data) for d in deliveries) == [5, 5, 9_999_000]
        (large,) = [r for r in stream.responses if r.ByteSize() > 4_000_000]
        assert len(large.received_messages) == 1


@case
async def test_client_that_pauses_is_given_everything_soon_after(world: World):
    sub = await world.subscription()
    ids = await sub.publish(2000, size=10_000)
    paused = sub.stream(client=world.new_client(), reading=False, stream_ack_deadline_seconds=600)
    async with paused as stream:
        await asyncio.sleep(4)
        stream.read()
        # A lease that waits behind the pause must not keep its message away for ten minutes.
        assert {d.message_id for d in await stream.take(len(ids), within=15)} == set(ids)


@case
async def test_streams_cancelled_while_they_are_written_to_leave_no_errors_in_the_log(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish(5000, size=10_000)
        for turn in range(100):
            reading = turn % 3 != 0
            stream = sub.stream(client=own.new_client(), reading=reading, max_outstanding_bytes=400_000)
            async with stream:
                if reading:
                    await stream.take()
                await asyncio.sleep(0.005 * (turn % 7))
            if turn % 5 == 0:
                await own.disconnect()  # the whole connection goes
                own.connect()
        await sub.pull()
        assert " ERROR " not in own.server.output, own.server.output


# Leases of streams


@case
async def test_unconfirmed_deliveries_of_an_ended_stream_return_at_once_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        await receipt_confirmed(sub, stream)
        await sub.publish()
        (unseen,) = await stream.take()
    (again,) = await sub.pull(within=2)
    assert again.message_id == unseen.message_id
    await sub.nothing_for(3)  # the confirmed one is kept for the client that works on it


@case
async def test_deliveries_of_a_client_that_never_confirms_stay_leased(world: World):
    sub = await world.subscription(eod=False)
    await sub.publish(2)
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        await stream.take(2)
    await sub.nothing_for(3)


@case
async def test_unconfirmed_deliveries_stay_leased_under_exactly_once(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        (confirmed,) = await stream.take()
        await sub.modack(60, confirmed)
        await sub.publish()
        await stream.take()
    await sub.nothing_for(3)


# What others do to the subscription


@case
async def test_deleting_the_topic_leaves_streams_open_and_the_backlog_deliverable(world: World):
    sub = await world.subscription()
    await sub.publish(3)
    async with sub.stream(max_outstanding_messages=1) as stream:
        (a,) = await stream.take()
        await world.client.DeleteTopic(topic=sub.topic)
        await sub.ack(a)
        (b,) = await stream.take()
        await sub.ack(b)
        await stream.take()
        stream.check_open()


@case
async def test_updates_leave_streams_open(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong()
        await sub.update(ack_deadline_seconds=20)
        await sub.update(labels={"a": "b"})
        await check_alive(stream, sub)


# Acks on the stream


def acks_confirmed(response) -> bool:
    return response.HasField("acknowledge_confirmation")


def modacks_confirmed(response) -> bool:
    return response.HasField("modify_ack_deadline_confirmation")


def confirmation(**lists):
    return pb.StreamingPullResponse.AcknowledgeConfirmation(**lists)


def modack_confirmation(**lists):
    return pb.StreamingPullResponse.ModifyAckDeadlineConfirmation(**lists)


@case
async def test_ack_on_the_stream_goes_before_a_modack_of_the_same_request(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    async with sub.stream() as stream:
        await stream.send(ack_ids=[a.ack_id], modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[0])
        response = await stream.response(acks_confirmed, after=0)
        assert response.acknowledge_confirmation == confirmation(ack_ids=[a.ack_id])
        await stream.nothing_for(2)


@case
async def test_nack_on_the_stream_brings_the_message_back(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        await stream.send(modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[0])
        (b,) = await stream.take()
        assert (b.message_id, b.ack_id == a.ack_id) == (a.message_id, False)


@case
async def test_empty_ack_id_on_the_stream_is_invalid(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.send(modify_deadline_ack_ids=[""], modify_deadline_seconds=[10])
        response = await stream.response(modacks_confirmed, after=0)
        assert response.modify_ack_deadline_confirmation == modack_confirmation(invalid_ack_ids=[""])
        await stream.pong()


@case
async def test_response_that_confirms_nothing_has_no_confirmation(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await check_alive(stream, sub)
        await stream.pong()
        assert not any(acks_confirmed(r) or modacks_confirmed(r) for r in stream.responses)
