"""CS: how streams end: by their client, with their subscription, with the server."""

from __future__ import annotations

import asyncio
import time

from grpc import StatusCode

from pubsubd.conform.case import Hook, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.cases.streams import (
    check_ends,
    in_words,
    running,
    share_out,
)
from pubsubd.conform.lab import Lab, count_of, said

STOP_SECONDS_MAX = 20.0
SHUT_DOWN_NOW = "Server shutdownNow invoked"


@case(
    "CS-23",
    promise="A stream whose client has nothing more to say is given no more messages and ends OK.",
    critical="G",
    seconds=2,
)
async def half_close_ends_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        await stream.half_close()
        seconds = await check_ends(stream, StatusCode.OK, "the half-close", within=10)
        check(seconds <= 1, f"The stream ended OK, but only {seconds:.1f} s after the half-close.")
        # Nothing of what is published from now on may be leased to a stream that is no more.
        ids = await sub.publish(3)
        taken = await sub.pull(3)
        count = len(stream.deliveries) - 1
        check(count == 0, f"The stream brought {count_of(count, 'message')} after the half-close.")
        check({d.message_id for d in taken} == set(ids), "Pull gave other messages than those published.")
    return f"Ended OK after {in_words(seconds)}; messages published then went to a Pull at once."


@case("CS-24", promise="What a half-closed stream has delivered can be acked.", seconds=3)
async def leases_outlive_a_half_closed_stream(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(3)
    async with sub.stream() as stream:
        deliveries = await stream.take(3, within=DELIVERY_SECONDS_MAX)
        await stream.half_close()
        await check_ends(stream, StatusCode.OK, "the half-close")
    await sub.ack(*deliveries)
    return "The stream ended OK; the acks of its 3 messages are OK."


@case(
    "CS-44",
    promise="Streams end when their subscription is deleted.",
    critical="PNGJX",
    seconds=2,
)
async def deleting_the_subscription_ends_its_streams(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as one, sub.stream(protocol_version=0) as other:
        await share_out(sub, one, other)
        await sub.delete()
        for stream in (one, other):
            await check_ends(stream, StatusCode.NOT_FOUND, "the deletion")
    return "Two streams ended with NOT_FOUND."


@case("CS-45", promise="Streams end when their subscription is detached.", seconds=2)
async def detaching_the_subscription_ends_its_streams(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        await lab.client.DetachSubscription(subscription=sub.name)
        seconds = await check_ends(stream, StatusCode.FAILED_PRECONDITION, "the detachment")
    return f"The stream ended with FAILED_PRECONDITION after {in_words(seconds)}."


@case(
    "CS-47",
    promise="A server that is stopped in order tells its streams to come back later.",
    critical="PNG",
    needs=[Hook.STOP],
    seconds=8,
)
async def stop_in_order_ends_streams_as_unavailable(lab: Lab) -> str:
    async with lab.own_server() as own:
        busy, idle = await own.subscription(), await own.subscription()
        await busy.publish(3)
        full = busy.stream(protocol_version=0, max_outstanding_messages=1)
        async with full, running(idle, client_id="c") as other:
            await full.take(within=DELIVERY_SECONDS_MAX)
            start = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(own.stop())
                for stream in (full, other):
                    await check_ends(
                        stream, StatusCode.UNAVAILABLE, "the server was told to stop", STOP_SECONDS_MAX
                    )
                    # By this text the Java and Go libraries take the stream for ended for good.
                    text = said(stream.status)
                    check(SHUT_DOWN_NOW not in text, f"The stream ended with {text}.")
                seconds = time.monotonic() - start
    return f"An idle stream and a full one ended with {text}, the later one after {in_words(seconds)}."
