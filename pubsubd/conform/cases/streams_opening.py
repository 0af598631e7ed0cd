"""CS: what a stream may be opened with, and what later requests may carry."""

from __future__ import annotations

import asyncio
import time

from grpc import StatusCode

from pubsubd.conform.case import Differs, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.cases.streams import (
    SETTLE_SECONDS,
    all_seen,
    answer,
    check_delivers,
    check_first_refused,
    check_later_refused,
    exactly_once,
    in_words,
    nothing_anywhere,
    running,
    share_out,
)
from pubsubd.conform.lab import Lab, Sub, check_redelivered, count_of
from pubsubd.wire import pb

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT

METADATA_SECONDS_MAX = 2.0


@case(
    "CS-01",
    promise="A message comes with the flag that says whether its acks are answered exactly once.",
    critical="PNGJX",
    seconds=1,
)
async def message_arrives_with_the_flag(lab: Lab) -> str:
    sub = await lab.subscription()
    ids = await sub.publish()
    async with sub.stream(protocol_version=0) as stream:
        await all_seen(ids, stream)
        response = next(response for response in stream.responses if response.received_messages)
        has_flags = response.HasField("subscription_properties")
        check(has_flags, "The response with the message has no subscription_properties.")
        check(exactly_once(response), "The response with the message says that exactly-once delivery is off.")
    return "The message arrived, and its response says that exactly-once delivery is on."


@case("CS-02", promise="A stream cannot be opened without a subscription.", seconds=1)
async def first_request_needs_a_subscription(lab: Lab) -> str:
    await check_first_refused(Sub(lab, "", ""), INVALID_ARGUMENT, "without subscription")
    return "The stream was closed with INVALID_ARGUMENT."


@case("CS-03", promise="A stream cannot be opened for a subscription that does not exist.", seconds=1)
async def first_request_needs_a_subscription_that_exists(lab: Lab) -> str:
    unknown = Sub(lab, "", lab.name("subscription"))
    await check_first_refused(unknown, StatusCode.NOT_FOUND, "for an unknown subscription")
    return "The stream was closed with NOT_FOUND."


@case("CS-04", promise="A stream is opened with a deadline of 10 to 600 seconds, and no other.", seconds=1)
async def first_deadline_out_of_range_is_refused(lab: Lab) -> str:
    sub = await lab.subscription()
    for seconds in (0, 9, 601):
        await check_first_refused(
            sub, INVALID_ARGUMENT, f"with deadline {seconds}", stream_ack_deadline_seconds=seconds
        )
    return "With deadline 0, 9 and 601 the stream was closed with INVALID_ARGUMENT each time."


@case("CS-05", promise="Deadlines of 10 and of 600 seconds are accepted.", seconds=1)
async def first_deadline_at_the_ends_of_its_range_is_accepted(lab: Lab) -> str:
    for seconds in (10, 600):
        async with running(await lab.subscription(), stream_ack_deadline_seconds=seconds) as stream:
            stream.check_open()
    return "With deadline 10 and with 600 the stream was opened and brought a message."


@case("CS-06", promise="Only the first request names the subscription.", seconds=1)
async def later_subscription_is_refused(lab: Lab) -> str:
    sub, other = await lab.subscription(), await lab.subscription()
    await check_later_refused(sub, "with another subscription", subscription=other.name)
    await check_later_refused(other, "with the stream's own subscription", subscription=other.name)
    return "Another name and the stream's own were both refused with INVALID_ARGUMENT."


@case("CS-07", promise="Only the first request carries a client_id.", seconds=1)
async def later_client_id_is_refused(lab: Lab) -> str:
    await check_later_refused(await lab.subscription(), "with client_id", client_id="me")
    return "The stream was closed with INVALID_ARGUMENT."


@case("CS-08", promise="Only the first request sets limits of flow control.", seconds=1)
async def later_limits_are_refused(lab: Lab) -> str:
    for limit in ("max_outstanding_messages", "max_outstanding_bytes"):
        await check_later_refused(await lab.subscription(), f"with {limit} 5", **{limit: 5})
    return "A limit of messages and one of bytes were both refused with INVALID_ARGUMENT."


@case("CS-09", promise="Only the first request carries the protocol version.", seconds=1)
async def later_protocol_version_is_refused(lab: Lab) -> str:
    await check_later_refused(await lab.subscription(), "with protocol_version 1", protocol_version=1)
    return "The stream was closed with INVALID_ARGUMENT."


@case(
    "CS-10",
    promise="A client may change the deadline of its stream while it is open.",
    critical="PNX",
    seconds=2,
)
async def later_deadline_is_taken(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        await stream.send(stream_ack_deadline_seconds=60)
        await asyncio.sleep(SETTLE_SECONDS)
        await check_delivers(stream, sub)
        stream.check_open()
    return "The stream stayed open and brought a message published afterwards."


@case(
    "CS-11",
    promise="A later deadline of 0, which a client cannot tell from none, changes nothing.",
    critical="X",
    seconds=18,
)
async def later_deadline_of_zero_changes_nothing(lab: Lab) -> str:
    # Three deadlines that differ: the subscription's, the stream's, and the least that there is.
    sub = await lab.subscription(ack_deadline_seconds=30)
    async with running(sub, stream_ack_deadline_seconds=15) as stream:
        # A library leaves a zero out, so an explicit one is written as bytes: field 5, a varint.
        await stream.call.write(pb.StreamingPullRequest.FromString(b"\x28\x00"))
        await asyncio.sleep(SETTLE_SECONDS)
        start = time.monotonic()
        await sub.publish()
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        (b,) = await stream.take(within=19)
        passed = b.at - start
        check_redelivered(b, a)
        check(passed >= 15, f"The message came again after {passed:.1f} s, not after the stream's 15 s.")
    return f"The stream stayed open; a message came again after {passed:.1f} s, its deadline being 15 s."


@case("CS-12", promise="A later deadline is 10 to 600 seconds as well.", seconds=1)
async def later_deadline_out_of_range_is_refused(lab: Lab) -> str:
    for seconds in (5, 601):
        await check_later_refused(
            await lab.subscription(), f"with deadline {seconds}", stream_ack_deadline_seconds=seconds
        )
    return "With deadline 5 and with 601 the stream was closed with INVALID_ARGUMENT."


@case("CS-13", promise="Each ack id of a request has its own number of seconds.", seconds=1)
async def lists_of_different_length_are_refused(lab: Lab) -> str:
    for id_count, seconds_count in ((2, 1), (1, 2)):
        sub = await lab.subscription(ack_deadline_seconds=60)
        ids = [delivery.ack_id for delivery in await sub.lease(id_count)]
        await check_later_refused(
            sub,
            f"with {count_of(ids, 'id')} and {count_of(seconds_count, 'deadline')}",
            modify_deadline_ack_ids=ids,
            modify_deadline_seconds=[30] * seconds_count,
        )
    return "Too few and too many deadlines were both refused with INVALID_ARGUMENT."


@case("CS-14", promise="No lease is extended by a negative number of seconds.", seconds=1)
async def negative_seconds_are_refused(lab: Lab) -> str:
    sub = await lab.subscription(ack_deadline_seconds=60)
    (a,) = await sub.lease()
    await check_later_refused(
        sub, "with -1 seconds", modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[-1]
    )
    return "The stream was closed with INVALID_ARGUMENT."


@case(
    "CS-32",
    promise="Several streams of one client_id are open at once, as the Go library has them.",
    critical="G",
    seconds=3,
)
async def streams_of_one_client_id_both_receive(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream(client_id="one") as first, sub.stream(client_id="one") as second:
        await share_out(sub, first, second)
        await asyncio.sleep(SETTLE_SECONDS)
        for stream in (first, second):
            stream.check_open()
    return "Both streams were given messages and stayed open."


@case("CS-33", promise="A stream needs no client_id.", seconds=1)
async def stream_without_client_id_works(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        stream.check_open()
    return "The stream was opened and brought a message."


@case("CS-46", promise="A detached subscription cannot be streamed.", seconds=1)
async def detached_subscription_cannot_be_streamed(lab: Lab) -> str:
    sub = await lab.subscription()
    await lab.client.DetachSubscription(subscription=sub.name)
    await check_first_refused(sub, StatusCode.FAILED_PRECONDITION, "for a detached subscription")
    return "The stream was closed with FAILED_PRECONDITION."


@case("CS-56", promise="The first request may extend leases of an earlier stream.", seconds=17)
async def first_request_may_extend_a_lease(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream() as earlier:
        (a,) = await earlier.take(within=DELIVERY_SECONDS_MAX)
    async with sub.stream(modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[30]) as stream:
        await check_delivers(stream, sub)
        await nothing_anywhere(sub, stream, 14)
    await sub.ack(a)
    return "The stream brought a message; the lease of 10 s held for 14 s, and its ack is OK."


@case("CS-60", promise="A protocol version that is not known yet is served like version 1.", seconds=2)
async def newer_protocol_version_is_served_like_version_1(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream(protocol_version=7) as stream:
        await check_delivers(stream, sub)
        _, seconds = await answer(stream)
    return f"A stream of version 7 brought a message, and its keep-alive was answered in {in_words(seconds)}."


@case("CS-62", promise="A stream's initial metadata does not wait for the first message.", seconds=2)
async def initial_metadata_does_not_wait_for_a_message(lab: Lab) -> str:
    sub = await lab.subscription()
    start = time.monotonic()
    async with sub.stream(protocol_version=0) as stream:
        told = asyncio.ensure_future(stream.call.initial_metadata())
        await asyncio.wait([told], timeout=METADATA_SECONDS_MAX)
        seconds = time.monotonic() - start
        in_time = told.done()
        stream.check_open()
        if not in_time:
            await check_delivers(stream, sub)
            told.cancel()
            raise Differs("No initial metadata came within 2 s, but the stream brings messages.")
    return f"The initial metadata came after {in_words(seconds)}, before any message."
