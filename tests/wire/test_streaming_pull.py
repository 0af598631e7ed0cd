"""CS: StreamingPull on the wire: opening, keep-alives, flow control, closing, on-stream acks.

Every response that a case reads is checked to carry `subscription_properties` when its stream is left.
"""

import asyncio
import itertools
import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import permanent
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


def exactly_once(response) -> bool:
    return response.subscription_properties.exactly_once_delivery_enabled


def acks_confirmed(response) -> bool:
    return response.HasField("acknowledge_confirmation")


def modacks_confirmed(response) -> bool:
    return response.HasField("modify_ack_deadline_confirmation")


# Opening


@case
async def test_CS_01_message_arrives_with_the_flag_on_a_version_0_stream(world: World):
    sub = await world.subscription()
    await sub.publish()

    async with sub.stream(protocol_version=0) as stream:
        await stream.take()
        (response,) = stream.responses
        assert exactly_once(response)
        assert not response.subscription_properties.message_ordering_enabled


@case
async def test_CS_02_first_request_without_subscription_is_refused(world: World):
    for name in ("", "subscriptions/s", "projects//subscriptions/abc", unique("topic")):
        await first_request_ends(Sub(world, "", name), INVALID_ARGUMENT)


@case
async def test_CS_03_first_request_for_an_unknown_subscription_is_refused(world: World):
    message = await first_request_ends(Sub(world, "", unique("subscription")), StatusCode.NOT_FOUND)
    assert "Resource not found" in message


@case
async def test_CS_04_first_deadline_out_of_range_is_refused(world: World):
    sub = await world.subscription()
    for seconds in (0, 9, 601, -1):
        await first_request_ends(sub, INVALID_ARGUMENT, stream_ack_deadline_seconds=seconds)


@case
async def test_CS_05_first_deadline_at_the_ends_of_its_range_is_accepted(world: World):
    sub = await world.subscription()
    for seconds in (10, 600):
        async with sub.stream(stream_ack_deadline_seconds=seconds) as stream:
            await stream.pong()


@case
async def test_first_request_is_refused_for_each_broken_field(world: World):
    sub = await world.subscription()
    ids = ["a", "b"]
    await first_request_ends(sub, INVALID_ARGUMENT, modify_deadline_ack_ids=ids, modify_deadline_seconds=[10])
    await first_request_ends(
        sub, INVALID_ARGUMENT, modify_deadline_ack_ids=ids[:1], modify_deadline_seconds=[-1]
    )
    await first_request_ends(
        sub, INVALID_ARGUMENT, modify_deadline_ack_ids=ids[:1], modify_deadline_seconds=[601]
    )
    await first_request_ends(sub, INVALID_ARGUMENT, protocol_version=-1)
    await first_request_ends(sub, INVALID_ARGUMENT, ack_ids=["x" * 524_288])


@case
async def test_CS_32_streams_of_one_client_id_both_receive(world: World):
    sub = await world.subscription()
    async with sub.stream(client_id="one") as first, sub.stream(client_id="one") as second:
        await first.pong()
        await second.pong()
        await sub.publish(20)
        await asyncio.gather(first.take(5), second.take(5))
        first.check_open()


@case
async def test_CS_33_stream_without_client_id_works(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await check_alive(stream, sub)


@case
async def test_CS_60_newer_protocol_version_is_served_like_version_1(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=7) as stream:
        await stream.pong()


@case
async def test_CS_62_initial_metadata_does_not_wait_for_a_message(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        async with asyncio.timeout(2):
            await stream.call.initial_metadata()


@case
async def test_CS_56_first_request_may_extend_a_lease_of_an_earlier_stream(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream() as earlier:
        (a,) = await earlier.take()
    await sub.publish()

    first = dict(modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[30])
    async with sub.stream(**first) as stream:
        (b,) = await stream.take()
        assert b.message_id != a.message_id
        await sub.ack(b)
        await stream.nothing_for(14)
    await sub.ack(a)


# Later requests


@case
async def test_CS_06_later_subscription_is_refused(world: World):
    await later_request_ends(world, INVALID_ARGUMENT, subscription=unique("subscription"))
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.send(subscription=sub.name)  # not even the one that the stream is for
        await stream.ends_with(INVALID_ARGUMENT)


@case
async def test_CS_07_later_client_id_is_refused(world: World):
    await later_request_ends(world, INVALID_ARGUMENT, client_id="me")


@case
async def test_CS_08_later_limits_are_refused(world: World):
    await later_request_ends(world, INVALID_ARGUMENT, max_outstanding_messages=5)
    await later_request_ends(world, INVALID_ARGUMENT, max_outstanding_bytes=5)


@case
async def test_CS_09_later_protocol_version_is_refused(world: World):
    await later_request_ends(world, INVALID_ARGUMENT, protocol_version=1)


@case
async def test_CS_10_later_deadline_is_taken(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.send(stream_ack_deadline_seconds=60)
        await check_alive(stream, sub)


@case
async def test_CS_11_later_deadline_of_zero_changes_nothing(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        # Zero is the default, so an explicit one can only be sent as bytes: field 5, a varint.
        request = pb.StreamingPullRequest.FromString(b"\x28\x00")
        await stream.call.write(request)
        before = time.monotonic()
        await check_alive(stream, sub)
        (again,) = await stream.take(within=14)
        assert 10 <= again.at - before <= 13.5


@case
async def test_CS_12_later_deadline_out_of_range_is_refused(world: World):
    for seconds in (5, 601, -1):
        await later_request_ends(world, INVALID_ARGUMENT, stream_ack_deadline_seconds=seconds)


@case
async def test_CS_13_lists_of_different_length_are_refused(world: World):
    await later_request_ends(
        world, INVALID_ARGUMENT, modify_deadline_ack_ids=["a", "b"], modify_deadline_seconds=[10]
    )
    await later_request_ends(world, INVALID_ARGUMENT, modify_deadline_seconds=[10])


@case
async def test_CS_14_seconds_out_of_range_are_refused(world: World):
    for seconds in (-1, 601):
        await later_request_ends(
            world, INVALID_ARGUMENT, modify_deadline_ack_ids=["a"], modify_deadline_seconds=[seconds]
        )


# Keep-alives


async def idle_with_keep_alives(world: World, seconds: float, interval: float) -> None:
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(interval)
            await stream.send()
        await check_alive(stream, sub)


@case
async def test_CS_15_idle_stream_with_keep_alives_stays_open_short_form(world: World):
    await idle_with_keep_alives(world, 25, 6)


@pytest.mark.slow
@case(seconds_max=150)
async def test_CS_15_idle_stream_with_keep_alives_stays_open(world: World):
    await idle_with_keep_alives(world, 100, 30)


@case
async def test_CS_16_silent_stream_stays_open_short_form(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        await asyncio.sleep(25)
        await check_alive(stream, sub)


@pytest.mark.slow
@case(seconds_max=120)
async def test_CS_16_silent_stream_stays_open(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        await asyncio.sleep(85)
        await check_alive(stream, sub)


@case
async def test_CS_17_keep_alives_of_version_0_are_not_answered(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        for _ in range(5):
            await stream.send()
        await stream.nothing_for(2)
        assert stream.responses == []


@case
async def test_CS_18_keep_alive_of_version_1_is_answered(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        for _ in range(3):
            await stream.pong(within=1)


@case
async def test_flood_of_keep_alives_is_taken(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        for _ in range(3000):
            await stream.send()
        await sub.publish()
        await stream.take(within=15)
        await stream.pong()


@case
async def test_CS_19_keep_alive_with_a_deadline_is_answered(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong(within=1, stream_ack_deadline_seconds=60)


@case
async def test_CS_20_pong_carries_the_flag(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        assert exactly_once(await stream.pong())


@case
async def test_CS_21_pong_comes_while_flow_control_holds_messages_back(world: World):
    sub = await world.subscription()
    await sub.publish(3)
    async with sub.stream(max_outstanding_messages=1) as stream:
        await stream.take()
        pong = await stream.pong()
        assert len(pong.received_messages) == 0
        assert len(stream.deliveries) == 1


@case(alone=True)
async def test_CS_22_keep_alives_are_answered_under_load(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        arrivals = []

        async def load() -> None:
            while True:
                await sub.publish(100)
                await asyncio.sleep(0.1)

        async def acks() -> None:
            while True:
                await sub.ack(*await stream.take(100))

        async def listen() -> None:
            while True:
                await stream.response()
                arrivals.append(time.monotonic())

        tasks = [asyncio.create_task(work()) for work in (load, acks, listen)]
        for _ in range(3):
            await asyncio.sleep(5)
            await stream.send()
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        stream.check_open()
        assert len(stream.deliveries) > 5000
        assert max(b - a for a, b in itertools.pairwise(arrivals)) < 15


# Half-close


@case
async def test_CS_23_half_close_stops_delivery_and_ends_ok(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong()
        await stream.half_close()
        start = time.monotonic()
        await stream.ends_with(StatusCode.OK, within=1)
        assert time.monotonic() - start <= 1
        await sub.publish()
        assert stream.deliveries == []


@case
async def test_CS_24_leases_outlive_a_half_closed_stream(world: World):
    sub = await world.subscription()
    await sub.publish(3)
    async with sub.stream() as stream:
        deliveries = await stream.take(3)
        await stream.half_close()
        await stream.ends_with(StatusCode.OK)
    await sub.ack(*deliveries)
    await sub.nothing_for(2)


@case
async def test_half_close_behind_requests_processes_them_first(world: World):
    sub = await world.subscription()
    a, b = await sub.lease(2)
    async with sub.stream() as stream:
        await stream.send(ack_ids=[a.ack_id])
        await stream.send(ack_ids=[b.ack_id])
        await stream.half_close()
        await stream.ends_with(StatusCode.OK)
    confirmed = [i for r in stream.responses for i in r.acknowledge_confirmation.ack_ids]
    assert sorted(confirmed) == sorted([a.ack_id, b.ack_id])
    await sub.nothing_for(12)


# Flow control


@case
async def test_CS_25_message_limit_is_never_exceeded(world: World):
    sub = await world.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        await stream.take(3)
        await stream.nothing_for(3)


@case
async def test_CS_26_ack_makes_room_for_exactly_one_more(world: World):
    sub = await world.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        a, *_ = await stream.take(3)
        await sub.ack(a)
        await stream.take(1)
        await stream.nothing_for(3)


@case
async def test_CS_27_nack_makes_room_for_one_more(world: World):
    sub = await world.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        a, *_ = await stream.take(3)
        await sub.nack(a)
        await stream.take(1)
        await stream.nothing_for(3)


@case
async def test_CS_28_expiry_frees_the_slots(world: World):
    sub = await world.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        first = await stream.take(3)
        await stream.take(3, within=13)
        assert stream.deliveries[3].at - first[0].at >= 9.5
        await stream.nothing_for(1)


@case
async def test_CS_29_byte_limit_may_be_overshot_by_one_message(world: World):
    sub = await world.subscription()
    await sub.publish_data(*[b"%d" % i * 600 for i in range(5)])
    async with sub.stream(max_outstanding_bytes=1000) as stream:
        await stream.take(2)
        await stream.nothing_for(3)


@case
async def test_CS_30_message_larger_than_the_byte_limit_is_delivered_alone(world: World):
    sub = await world.subscription()
    await sub.publish_data(b"a" * 5000, b"b" * 5000)
    async with sub.stream(max_outstanding_bytes=1000) as stream:
        (a,) = await stream.take()
        await stream.nothing_for(2)
        await sub.ack(a)
        await stream.take()


@case
async def test_CS_31_limits_of_zero_or_less_are_no_limits(world: World):
    for limit in (-1, 0):
        sub = await world.subscription()
        await sub.publish(2000)
        async with sub.stream(max_outstanding_messages=limit, max_outstanding_bytes=limit) as stream:
            await stream.take(2000, within=20)


@case
async def test_CS_34_two_streams_both_receive_a_share(world: World):
    sub = await world.subscription()
    async with sub.stream() as one, sub.stream() as other:
        await one.pong()
        await other.pong()
        await sub.publish(100)
        await asyncio.gather(one.take(20), other.take(20))
        await asyncio.sleep(1)
        assert len(one.deliveries) + len(other.deliveries) == 100


@case
async def test_CS_35_full_stream_does_not_stall_another(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream(max_outstanding_messages=1) as full:
        await full.take()
        async with sub.stream() as free:
            await free.pong()
            await sub.publish(20)
            await free.take(20, within=1)
            assert len(full.deliveries) == 1


@case
async def test_CS_57_large_messages_pass_through_a_4_mb_client(world: World):
    sub = await world.subscription()
    await sub.publish_data(*[b"%02d" % i + b"x" * 1_000_000 for i in range(20)])
    narrow = world.new_client(("grpc.max_receive_message_length", 4 << 20))
    async with sub.stream(client=narrow) as stream:
        await stream.take(20, within=20)
        assert all(r.ByteSize() < 4_000_000 for r in stream.responses if len(r.received_messages) > 1)


@case
async def test_message_of_almost_ten_megabytes_is_delivered_alone(world: World):
    sub = await world.subscription()
    await sub.publish_data(b"small", b"x" * 9_999_000, b"small")
    async with sub.stream() as stream:
        deliveries = await stream.take(3, within=10)
        assert sorted(len(d.data) for d in deliveries) == [5, 5, 9_999_000]
        (large,) = [r for r in stream.responses if r.ByteSize() > 4_000_000]
        assert len(large.received_messages) == 1


async def client_that_stops_reading(world: World, seconds: float) -> None:
    async with world.own_server() as own:
        sub = await own.subscription()
        ids = await sub.publish(10_000, size=10_000)
        async with sub.stream(client=own.new_client(), reading=False) as stream:
            await asyncio.sleep(seconds)
            stream.read()
            acked: set[str] = set()
            stale = 0
            while len(acked) < len(ids):
                deliveries = await stream.take_all(within=10)
                fresh = [d for d in deliveries if time.monotonic() - d.at < 5]
                failed = await sub.failed_acks(*fresh)
                acked |= {d.message_id for d in fresh if d.ack_id not in failed}
                # Only what was already on its way to this client when it stopped can be out of date.
                assert not failed or len(acked) < 1000
                stale += len(failed)
            assert stale < 1000


@case
async def test_CS_58_leases_are_valid_after_the_client_did_not_read_short_form(world: World):
    await client_that_stops_reading(world, 20)


@pytest.mark.slow
@case(seconds_max=150)
async def test_CS_58_leases_are_valid_after_the_client_did_not_read(world: World):
    await client_that_stops_reading(world, 60)


@case
async def test_CS_61_opened_and_cancelled_streams_leave_no_trace(world: World):
    sub = await world.subscription()
    await sub.publish(10)
    for _ in range(50):
        async with sub.stream(max_outstanding_messages=1) as stream:
            await stream.pong()
    async with sub.stream() as stream:
        await stream.take(10, within=13)


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
async def test_CS_36_lease_outlives_its_stream(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        (a,) = await stream.take()
    await sub.nothing_for(20)
    await sub.ack(a)


@case
async def test_CS_37_message_of_an_ended_stream_comes_back_at_its_deadline(world: World):
    sub = await world.subscription()
    before = time.monotonic()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
    async with sub.stream() as stream:
        (b,) = await stream.take(within=13)
    assert b.at - before >= 10
    assert (b.message_id, b.ack_id == a.ack_id) == (a.message_id, False)
    with permanent(a):
        await sub.ack(a)


@case
async def test_CS_38_deadline_of_the_stream_counts_not_that_of_the_subscription(world: World):
    sub = await world.subscription(ack_deadline_seconds=10)
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=20) as stream:
        (a,) = await stream.take()
        await stream.nothing_for(15)
    await sub.ack(a)


@case
async def test_CS_39_updated_deadline_counts_for_later_deliveries(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong(stream_ack_deadline_seconds=60)
        await sub.publish()
        (a,) = await stream.take()
        await stream.nothing_for(20)
    await sub.ack(a)


@case
async def test_CS_40_updated_deadline_leaves_running_leases_alone(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        (a,) = await stream.take()
        await stream.pong(stream_ack_deadline_seconds=10)
        await stream.nothing_for(20)
    await sub.ack(a)


@case
async def test_unconfirmed_deliveries_of_an_ended_stream_return_at_once_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        (confirmed,) = await stream.take()
        await sub.modack(60, confirmed)
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
async def test_CS_41_exactly_once_switched_on_shows_in_the_next_response(world: World):
    sub = await world.subscription(eod=False)
    async with sub.stream(protocol_version=0) as stream:
        await check_alive(stream, sub)
        assert not exactly_once(stream.responses[-1])
        await sub.set_exactly_once(True)
        await check_alive(stream, sub)
        assert exactly_once(stream.responses[-1])


@case
async def test_CS_42_exactly_once_switched_off_shows_in_the_next_response(world: World):
    sub = await world.subscription()
    async with sub.stream(protocol_version=0) as stream:
        await check_alive(stream, sub)
        assert exactly_once(stream.responses[-1])
        await sub.set_exactly_once(False)
        await check_alive(stream, sub)
        assert not exactly_once(stream.responses[-1])


@case
async def test_CS_43_switched_flag_is_told_without_a_message(world: World):
    sub = await world.subscription(eod=False)
    async with sub.stream() as stream:
        await stream.pong()
        before = len(stream.responses)
        await sub.set_exactly_once(True)
        told = await stream.response(exactly_once, after=before, within=1)
        assert len(told.received_messages) == 0


@case
async def test_CS_44_deleting_the_subscription_ends_its_streams(world: World):
    sub = await world.subscription()
    async with sub.stream() as one, sub.stream(protocol_version=0) as other:
        await one.pong()
        await world.client.DeleteSubscription(subscription=sub.name)
        await one.ends_with(StatusCode.NOT_FOUND, within=10)
        await other.ends_with(StatusCode.NOT_FOUND, within=10)


@case
async def test_CS_45_detaching_the_subscription_ends_its_streams(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.pong()
        await world.client.DetachSubscription(subscription=sub.name)
        await stream.ends_with(StatusCode.FAILED_PRECONDITION, within=10)


@case
async def test_CS_46_detached_subscription_cannot_be_streamed(world: World):
    sub = await world.subscription()
    await world.client.DetachSubscription(subscription=sub.name)
    message = await first_request_ends(sub, StatusCode.FAILED_PRECONDITION)
    assert "Subscription is detached" in message


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


@case
async def test_CS_48_frequent_pings_do_not_end_the_connection_short_form(world: World):
    # A C-core server that was told nothing loses patience at the fifth ping.
    await ping_without_data(world, 35, interval_ms=5_000)


@pytest.mark.full
@case(seconds_max=360)
async def test_CS_48_frequent_pings_do_not_end_the_connection(world: World):
    await ping_without_data(world, 300, interval_ms=10_000)


async def ping_without_data(world: World, seconds: float, interval_ms: int) -> None:
    pinging = world.new_client(
        ("grpc.keepalive_time_ms", interval_ms),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    sub = await world.subscription()
    async with sub.stream(client=pinging, protocol_version=0) as stream:
        await asyncio.sleep(seconds)
        await check_alive(stream, sub)


# Acks on the stream


@case
async def test_CS_49_ack_on_the_stream_is_confirmed(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        await stream.send(ack_ids=[a.ack_id])
        response = await stream.response(acks_confirmed, after=0)
        assert response.acknowledge_confirmation == confirmation(ack_ids=[a.ack_id])
        await stream.nothing_for(12)


def confirmation(**lists):
    return pb.StreamingPullResponse.AcknowledgeConfirmation(**lists)


def modack_confirmation(**lists):
    return pb.StreamingPullResponse.ModifyAckDeadlineConfirmation(**lists)


@case
async def test_CS_50_ack_of_an_expired_id_on_the_stream_is_invalid(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()
    async with sub.stream() as stream:
        await stream.send(ack_ids=[a.ack_id])
        response = await stream.response(acks_confirmed, after=0)
        assert response.acknowledge_confirmation == confirmation(invalid_ack_ids=[a.ack_id])
        await stream.pong()


@case
async def test_CS_51_modacks_on_the_stream_are_confirmed(world: World):
    sub = await world.subscription()
    (expired,) = await sub.lease_expired()
    async with sub.stream() as stream:
        (b,) = await stream.take()
        await stream.send(modify_deadline_ack_ids=[b.ack_id], modify_deadline_seconds=[30])
        response = await stream.response(modacks_confirmed, after=0)
        assert response.modify_ack_deadline_confirmation == modack_confirmation(ack_ids=[b.ack_id])

        before = len(stream.responses)
        await stream.send(modify_deadline_ack_ids=[expired.ack_id], modify_deadline_seconds=[30])
        response = await stream.response(modacks_confirmed, after=before)
        assert response.modify_ack_deadline_confirmation == modack_confirmation(
            invalid_ack_ids=[expired.ack_id]
        )
        await stream.nothing_for(12)


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
async def test_CS_52_malformed_id_on_the_stream_is_invalid_under_exactly_once(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        await stream.send(ack_ids=["not-an-id"])
        response = await stream.response(acks_confirmed, after=0)
        assert response.acknowledge_confirmation == confirmation(invalid_ack_ids=["not-an-id"])
        await stream.send(modify_deadline_ack_ids=[""], modify_deadline_seconds=[10])
        response = await stream.response(modacks_confirmed, after=0)
        assert response.modify_ack_deadline_confirmation == modack_confirmation(invalid_ack_ids=[""])
        await stream.pong()


@case
async def test_CS_53_malformed_id_on_the_stream_ends_it_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    async with sub.stream() as stream:
        await stream.send(ack_ids=["not-an-id"])
        await stream.ends_with(INVALID_ARGUMENT)


@case
async def test_CS_54_expired_id_on_the_stream_is_no_matter_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    async with sub.stream() as stream:
        await stream.send(ack_ids=[a.ack_id])
        await stream.pong()
        await asyncio.sleep(2)
        stream.check_open()
        assert not any(acks_confirmed(r) or modacks_confirmed(r) for r in stream.responses)


@case
async def test_CS_55_unary_acks_are_not_confirmed_on_the_stream(world: World):
    sub = await world.subscription()
    await sub.publish(2)
    async with sub.stream() as stream:
        a, b = await stream.take(2)
        await sub.modack(20, a, b)
        await sub.ack(a, b)
        await stream.pong()
        await stream.nothing_for(2)
        assert not any(acks_confirmed(r) or modacks_confirmed(r) for r in stream.responses)


@case
async def test_CS_59_responses_of_every_kind_carry_the_properties(world: World):
    sub = await world.subscription()
    async with sub.stream() as stream:
        while len(stream.responses) < 200:
            await sub.publish()
            (a,) = await stream.take()
            await stream.pong()
            await stream.pong(ack_ids=[a.ack_id])
        assert all(r.HasField("subscription_properties") and exactly_once(r) for r in stream.responses)
        kinds = {(bool(r.received_messages), acks_confirmed(r)) for r in stream.responses}
        assert {(True, False), (False, True), (False, False)} <= kinds


# Shutting down


@case
async def test_CS_47_graceful_stop_ends_streams_as_unavailable(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        await sub.publish(3)
        async with sub.stream() as one, sub.stream(protocol_version=0, max_outstanding_messages=1) as other:
            await one.pong()
            stopped = asyncio.create_task(asyncio.to_thread(own.server.terminate))
            for stream in (one, other):
                message = await stream.ends_with(StatusCode.UNAVAILABLE, within=10)
                assert "Server shutdownNow invoked" not in message
                assert message != ""
            assert await stopped == 0
