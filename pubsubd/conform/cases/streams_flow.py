"""CS: flow control, shares of several streams, and the leases of what a stream delivers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import permanent
from pubsubd.conform.case import Differs, Failed, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX, LEASE_AND_MORE
from pubsubd.conform.cases.streams import (
    SETTLE_SECONDS,
    ack_all,
    all_seen,
    check_delivers,
    in_words,
    nothing_anywhere,
    running,
    share_out,
)
from pubsubd.conform.lab import Delivery, Lab, Sub, check_redelivered, count_of, until

MEGABYTE = 1_000_000
NARROW_BYTES = 4 << 20  # what a client takes that was told nothing

# CS-58: a client that stops reading in front of a hundred megabytes.
PAUSE_SECONDS = 60.0
PAUSE_MESSAGES = 10_000
PAUSE_MESSAGE_BYTES = 10_000
PAUSE_BATCH = 100
# What the connection held when its client stopped has been sent, so its leases run out meanwhile.
UNDER_WAY_MAX = 1000


@case("CS-25", promise="A stream has no more messages outstanding than its client asked for.", seconds=5)
async def message_limit_is_never_exceeded(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        await stream.take(3, within=DELIVERY_SECONDS_MAX)
        await stream.nothing_for(3)
    return "With a limit of 3 messages, 3 of 10 came, and no more for 3 s."


@case(
    "CS-26",
    promise="An ack, on whichever call, makes room for one more message.",
    critical="PNGJX",
    seconds=5,
)
async def ack_makes_room_for_exactly_one_more(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        a, *_ = await stream.take(3, within=DELIVERY_SECONDS_MAX)
        await sub.ack(a)
        await stream.take(1)
        await stream.nothing_for(3)
    return "After the ack of one of 3 outstanding messages exactly one more came."


@case("CS-27", promise="A nack makes room for one more message.", seconds=5)
async def nack_makes_room_for_one_more(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        a, *_ = await stream.take(3, within=DELIVERY_SECONDS_MAX)
        await sub.nack(a)
        (b,) = await stream.take(1)
        await stream.nothing_for(3)
        which = "the nacked one" if b.message_id == a.message_id else "another one"
    return f"After the nack of one of 3 outstanding messages one more came: {which}."


@case("CS-28", promise="A lease that ends makes room, and its message comes again.", seconds=14)
async def expiry_frees_the_slots(lab: Lab) -> str:
    sub = await lab.subscription()
    start = time.monotonic()
    await sub.publish(10)
    async with sub.stream(max_outstanding_messages=3) as stream:
        first = await stream.take(3, within=DELIVERY_SECONDS_MAX)
        more = await stream.take(3, within=15)
        passed = more[0].at - start
        check(passed >= 10, f"A fourth message came after {passed:.1f} s, inside the leases of 10 s.")
        # Whether fresh messages come first is the endpoint's choice, so they are acked out of the way.
        due = {delivery.message_id: delivery for delivery in first}
        while due:
            for delivery in more:
                if earlier := due.pop(delivery.message_id, None):
                    check_redelivered(delivery, earlier)
            await sub.ack(*more)
            if due:
                more = await stream.take_all()
    return f"3 more came after {passed:.1f} s, and each of the first 3 came again under a new ack id."


@case("CS-29", promise="A limit of bytes is overshot by one message at most.", seconds=5)
async def byte_limit_may_be_overshot_by_one_message(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish_data(*[b"%d" % number * 600 for number in range(5)])
    async with sub.stream(max_outstanding_bytes=1000) as stream:
        await stream.take(2, within=DELIVERY_SECONDS_MAX)
        await stream.nothing_for(3)
    return "With a limit of 1000 bytes, 2 of 5 messages of 600 bytes came, and no more for 3 s."


@case("CS-30", promise="A message larger than the limit of bytes is delivered.", seconds=1)
async def message_larger_than_the_byte_limit_is_delivered(lab: Lab) -> str:
    sub = await lab.subscription()
    ids = await sub.publish_data(b"x" * 5000)
    async with sub.stream(max_outstanding_bytes=1000) as stream:
        await all_seen(ids, stream)
    return "With a limit of 1000 bytes a message of 5000 bytes came."


@case("CS-31", promise="Limits of zero or less are no limits.", critical="G", seconds=3)
async def limits_of_zero_or_less_are_no_limits(lab: Lab) -> str:
    for limit in (-1, 0):
        sub = await lab.subscription()
        ids = await sub.publish(2000)
        async with sub.stream(
            max_outstanding_messages=limit, max_outstanding_bytes=limit, stream_ack_deadline_seconds=60
        ) as stream:
            await all_seen(ids, stream)
    return "With limits of -1 and of 0, 2000 messages came each time without an ack."


@case("CS-34", promise="Streams that have room share the messages.", seconds=3)
async def two_streams_both_receive_a_share(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as one, sub.stream() as other:
        await share_out(sub, one, other)
        before = len(one.deliveries), len(other.deliveries)
        await all_seen(await sub.publish(100), one, other)
        shares = len(one.deliveries) - before[0], len(other.deliveries) - before[1]
    if min(shares) < 20:
        raise Differs(f"All 100 came, but {shares[0]} on one stream and {shares[1]} on the other.")
    return f"Of 100 messages {shares[0]} came on one stream and {shares[1]} on the other."


@case("CS-35", promise="A stream that is full does not hold up another one.", seconds=2)
async def full_stream_does_not_hold_up_another(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream(max_outstanding_messages=1, stream_ack_deadline_seconds=60) as full:
        await full.take(within=DELIVERY_SECONDS_MAX)
        async with sub.stream(stream_ack_deadline_seconds=60) as free:
            await asyncio.sleep(SETTLE_SECONDS)
            start = time.monotonic()
            ids = await sub.publish(20)
            await all_seen(ids, free)
            seconds = free.deliveries[-1].at - start
            check(seconds <= 2, f"It took {seconds:.1f} s until the other stream had the 20 messages.")
            check(len(full.deliveries) == 1, "The full stream was given a second message.")
    return f"All 20 messages came on the other stream, the last {in_words(seconds)} after their Publish."


@case(
    "CS-36",
    promise="A lease lives on when its stream is cancelled, and its ack id stays good.",
    critical="PNGJX",
    seconds=22,
)
async def lease_outlives_its_stream(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    await sub.nothing_for(20)
    await sub.ack(a)
    return "No redelivery for 20 s after the stream was cancelled; the ack is OK."


@case(
    "CS-37",
    promise="What a cancelled stream left outstanding comes again at its deadline, under a new ack id.",
    critical="PNGJX",
    seconds=12,
)
async def message_of_a_cancelled_stream_comes_again(lab: Lab) -> str:
    sub = await lab.subscription()
    start = time.monotonic()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=LEASE_AND_MORE)
    check_redelivered(b, a)
    passed = b.at - start
    check(passed >= 10, f"The message came again {passed:.1f} s after its Publish, inside its lease of 10 s.")
    with permanent(a) as refusal:
        await sub.ack(a)
    return f"It came again after {passed:.1f} s; the old ack id is refused with {refusal.results[a.ack_id]}."


@case(
    "CS-38",
    promise="The deadline of the stream counts for what it delivers, not that of the subscription.",
    critical="X",
    seconds=16,
)
async def deadline_of_the_stream_counts(lab: Lab) -> str:
    sub = await lab.subscription(ack_deadline_seconds=10)
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=20) as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await nothing_anywhere(sub, stream, 15)
        await sub.ack(a)
    return "With 20 s on the stream and 10 s on the subscription, no redelivery for 15 s; the ack is OK."


@case("CS-39", promise="An updated deadline of the stream counts for later deliveries.", seconds=22)
async def updated_deadline_counts_for_later_deliveries(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        await stream.send(stream_ack_deadline_seconds=60)
        await asyncio.sleep(SETTLE_SECONDS)
        await sub.publish()
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await nothing_anywhere(sub, stream, 20)
        await sub.ack(a)
    return "Updated from 10 s to 60 s: no redelivery for 20 s of a later message; its ack is OK."


@case("CS-40", promise="An updated deadline of the stream leaves running leases alone.", seconds=21)
async def updated_deadline_leaves_running_leases_alone(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await stream.send(stream_ack_deadline_seconds=10)
        await nothing_anywhere(sub, stream, 20)
        await sub.ack(a)
    return "Updated from 60 s to 10 s: no redelivery for 20 s of an earlier message; its ack is OK."


@case("CS-57", promise="Responses fit a client that takes no more than 4 MB at once.", seconds=4)
async def large_messages_pass_through_a_narrow_client(lab: Lab) -> str:
    sub = await lab.subscription()
    ids = await sub.publish_data(*[b"%02d" % number + b"x" * (MEGABYTE - 2) for number in range(20)])
    narrow = lab.new_client(("grpc.max_receive_message_length", NARROW_BYTES))
    async with sub.stream(client=narrow, stream_ack_deadline_seconds=60) as stream:
        await all_seen(ids, stream, within=40)
        largest = max(response.ByteSize() for response in stream.responses)
    check(largest <= NARROW_BYTES, f"A response had {largest / MEGABYTE:.1f} MB, more than the client takes.")
    return f"All 20 messages of 1 MB came; the largest response had {largest / MEGABYTE:.1f} MB."


@case(
    "CS-58",
    promise="No lease runs out behind a client that stops reading: what it reads later, it can ack.",
    critical="PNGJX",
    seconds=80,
)
async def leases_are_valid_after_the_client_did_not_read(lab: Lab) -> str:
    sub = await lab.subscription()
    # With a window of its own choice the connection would hold much of what is to wait at the server.
    client = lab.new_client(("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
    async with sub.stream(client=client, reading=False) as stream:
        start = time.monotonic()
        await _publish_gently(sub, start, PAUSE_SECONDS / 2)
        await until(start + PAUSE_SECONDS)

        acked: set[str] = set()
        read = late = 0
        while len(acked) < PAUSE_MESSAGES:
            response = await _next_response(stream.call, len(acked))
            read += len(response.received_messages)
            fresh = {received.ack_id: received.message.message_id for received in response.received_messages}
            again = acked & set(fresh.values())
            check(not again, f"{count_of(again, 'message')} came again after an ack that was answered OK.")
            failed = await sub.failed_acks(*fresh) if fresh else {}
            late += len(failed)
            check(
                not failed or read <= UNDER_WAY_MAX,
                f"Acks failed of messages that had just been read: {late} of the first {read}.",
            )
            acked |= {message_id for ack_id, message_id in fresh.items() if ack_id not in failed}
            # Reading as fast as it goes would be a load to all that runs beside this.
            await asyncio.sleep(0.05)
    return (
        f"After {PAUSE_SECONDS:.0f} s without reading, all {PAUSE_MESSAGES} messages came; "
        f"{late or 'none'} too late to be acked, of the {UNDER_WAY_MAX} that may have been under way."
    )


async def _publish_gently(sub: Sub, start: float, seconds: float) -> None:
    """A hundred megabytes at an even pace, so that what runs beside this keeps its time."""
    batches = PAUSE_MESSAGES // PAUSE_BATCH
    for number in range(batches):
        await until(start + seconds * number / batches)
        await sub.publish(PAUSE_BATCH, size=PAUSE_MESSAGE_BYTES)


async def _next_response(call: Any, count: int) -> Any:
    so_far = f"when {count} of {PAUSE_MESSAGES} messages were acked"
    try:
        response = await asyncio.wait_for(call.read(), DELIVERY_SECONDS_MAX)
    except TimeoutError:
        raise Failed(f"The stream brought nothing for {DELIVERY_SECONDS_MAX:.0f} s, {so_far}.") from None
    except grpc.aio.AioRpcError as error:
        raise Failed(f"The stream ended with {error.code().name}, {so_far}.") from None
    check(response is not grpc.aio.EOF, f"The stream ended with {StatusCode.OK.name}, {so_far}.")
    return response


@case(
    "CS-61",
    promise="Streams that are opened and cancelled leave nothing behind.",
    critical="PNGJX",
    seconds=20,
)
async def cancelled_streams_leave_nothing_behind(lab: Lab) -> str:
    sub = await lab.subscription()
    ids = await sub.publish(10)
    given: dict[str, tuple[float, Delivery]] = {}
    for _ in range(50):
        opened = time.monotonic()
        async with sub.stream(max_outstanding_messages=1) as stream:
            await asyncio.sleep(0.1)
            given |= {delivery.message_id: (opened, delivery) for delivery in stream.deliveries}
    opened = time.monotonic()
    async with sub.stream() as stream:
        await all_seen(ids, stream, within=15)
        passed = time.monotonic() - opened
        for again in await ack_all(sub, stream):
            if again.message_id in given:
                before, earlier = given[again.message_id]
                check_redelivered(again, earlier)
                lease = again.at - before
                check(lease >= 10, f"A message came again after {lease:.1f} s, inside its lease of 10 s.")
        await check_delivers(stream, sub)
    return (
        f"50 streams had been given {count_of(given, 'message')}, none of which came again inside its lease; "
        f"a new stream was given all 10 within {passed:.1f} s, and their acks are OK."
    )
