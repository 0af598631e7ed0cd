"""CS: acks and modacks sent on the stream, and the confirmations that answer them.

The proto does not guarantee confirmations: an endpoint that sends none differs, if it keeps the rest.
"""

from __future__ import annotations

import asyncio

from grpc import StatusCode

from pubsubd.conform.case import Differs, Failed, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.cases.streams import (
    REFUSAL_SECONDS_MAX,
    ack_confirmation,
    acks_confirmed,
    check_delivers,
    check_ends,
    check_listed,
    modack_confirmation,
    modacks_confirmed,
    nothing_anywhere,
    running,
)
from pubsubd.conform.lab import Delivery, Lab, Stream, Sub, check_redelivered, count_of, said

MALFORMED = "not-an-ack-id"


@case("CS-49", promise="An ack on the stream takes effect and is confirmed.", seconds=14)
async def ack_on_the_stream_is_confirmed(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        seen = await ack_confirmation(stream, a.ack_id)
        check_listed(seen, "ack_ids", a.ack_id, "The ack")
        await nothing_anywhere(sub, stream, 12)
    if seen is None:
        raise Differs("No confirmation came, but the ack took effect: no redelivery for 12 s.")
    return "The id is in ack_ids of the confirmation; no redelivery for 12 s."


@case("CS-50", promise="An ack on the stream that comes too late is told as invalid.", seconds=4)
async def late_ack_on_the_stream_is_invalid(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()
    async with sub.stream() as stream:
        seen = await ack_confirmation(stream, a.ack_id)
        check_listed(seen, "invalid_ack_ids", a.ack_id, "The ack of an expired id")
        await _check_stays(stream, sub, a)
    if seen is None:
        raise Differs("No confirmation came; the stream stayed open.")
    return "The id is in invalid_ack_ids of the confirmation, and the stream stayed open."


async def _check_stays(stream: Stream, sub: Sub, due: Delivery) -> None:
    """The stream brings this message again, which is acked, and what is published now."""
    try:
        (again,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    except Failed:
        stream.check_open()
        raise Failed("The late ack was taken: its message does not come again.") from None
    check_redelivered(again, due)
    await sub.ack(again)
    await check_delivers(stream, sub)
    stream.check_open()


@case("CS-51", promise="Modacks on the stream take effect and are confirmed.", seconds=17)
async def modacks_on_the_stream_are_confirmed(lab: Lab) -> str:
    sub = await lab.subscription()
    (expired,) = await sub.lease_expired()
    async with sub.stream() as stream:
        (b,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        good = await modack_confirmation(stream, b.ack_id, 30)
        check_listed(good, "ack_ids", b.ack_id, "The modack of a leased id")
        bad = await modack_confirmation(stream, expired.ack_id, 30)
        check_listed(bad, "invalid_ack_ids", expired.ack_id, "The modack of an expired id")
        await nothing_anywhere(sub, stream, 12)
    if good is None or bad is None:
        raise Differs("Not each modack was confirmed, but the extension by 30 s took effect.")
    return (
        "The leased id is in ack_ids of its confirmation and the lease of 10 s held for 12 s; the expired "
        "id is in invalid_ack_ids."
    )


@case(
    "CS-52",
    promise="An id that is no ack id is told as invalid and does not cost the stream.",
    seconds=2,
)
async def malformed_id_on_the_stream_is_invalid(lab: Lab) -> str:
    sub = await lab.subscription()
    async with running(sub) as stream:
        seen = await ack_confirmation(stream, MALFORMED)
        if stream.status is not None:
            code = stream.status[0]
            check(code is StatusCode.INVALID_ARGUMENT, f"The stream ended with {said(stream.status)}.")
            raise Differs("The stream was closed with INVALID_ARGUMENT.")
        check_listed(seen, "invalid_ack_ids", MALFORMED, "The malformed id")
        await check_delivers(stream, sub)
    if seen is None:
        raise Differs("No confirmation came; the stream stayed open.")
    return "The id is in invalid_ack_ids of the confirmation, and the stream stayed open."


@case(
    "CS-53",
    promise="Without exactly-once delivery, an id that is no ack id ends the stream.",
    seconds=1,
)
async def malformed_id_on_the_stream_ends_it_without_exactly_once(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    async with running(sub) as stream:
        await stream.send(ack_ids=[MALFORMED])
        await check_ends(stream, StatusCode.INVALID_ARGUMENT, "an ack of a malformed id", REFUSAL_SECONDS_MAX)
    return "The stream was closed with INVALID_ARGUMENT."


@case(
    "CS-54",
    promise="Without exactly-once delivery, an ack on the stream that comes too late is no matter.",
    seconds=6,
)
async def late_ack_on_the_stream_is_no_matter_without_exactly_once(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease_expired()
    async with sub.stream() as stream:
        await stream.send(ack_ids=[a.ack_id])
        await asyncio.sleep(3)
        stream.check_open()
        # The late ack may have ended the message or not.
        stream.take_now()
        await check_delivers(stream, sub)
        _check_nothing_confirmed(stream)
    return "The stream stayed open and brought no confirmation."


@case("CS-55", promise="Unary acks are not confirmed on the stream.", seconds=4)
async def unary_acks_are_not_confirmed_on_the_stream(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(2)
    async with sub.stream() as stream:
        a, b = await stream.take(2, within=DELIVERY_SECONDS_MAX)
        await sub.modack(20, a, b)
        await sub.ack(a, b)
        await stream.nothing_for(3)
        _check_nothing_confirmed(stream)
    return "Two messages were extended and acked by unary calls; the stream brought no confirmation."


def _check_nothing_confirmed(stream: Stream) -> None:
    confirmed = [r for r in stream.responses if acks_confirmed(r) or modacks_confirmed(r)]
    check(not confirmed, f"The stream brought {count_of(confirmed, 'confirmation')}.")
