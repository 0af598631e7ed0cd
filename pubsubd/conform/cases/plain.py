"""CN: the same calls on subscriptions without exactly-once delivery."""

from __future__ import annotations

import asyncio
import time

from grpc import StatusCode

from pubsubd.conform.calls import about, refused, request_refused
from pubsubd.conform.case import Differs, Hook, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX, LEASE_AND_MORE, LEASE_SECONDS, altered
from pubsubd.conform.lab import Delivery, Lab, Sub, check_redelivered, count_of

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT


async def expired_and_redelivered(sub: Sub) -> tuple[Delivery, Delivery]:
    (a,) = await sub.lease_expired()
    (b,) = await sub.pull(within=20)
    check_redelivered(b, a)
    return a, b


@case(
    "CN-01",
    promise="The ack of a superseded id is answered OK.",
    seconds=3,
)
async def ack_of_a_superseded_id_is_ok(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    a, b = await expired_and_redelivered(sub)

    await sub.ack(a)
    await sub.ack(b)
    return "The ack of the earlier delivery was answered OK, and that of the newer one after it."


@case(
    "CN-02",
    promise="The ack of an expired id is answered OK, and should end the message.",
    seconds=6,
)
async def ack_of_an_expired_id_ends_the_message(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease_expired()

    await sub.ack(a)
    if seen := [*await sub.pull_now(), *await sub.watch(3)]:
        raise Differs(f"The ack was answered OK, but {count_of(seen, 'redelivery')} came within 3 s.")
    return "Answered OK; no redelivery for 3 s."


@case(
    "CN-03",
    promise="A second ack and a modack after the ack are answered OK.",
    seconds=1,
)
async def repeated_ack_and_late_modack_are_ok(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.ack(a)

    await sub.ack(a)
    await sub.modack(10, a)
    return "Both were answered OK."


@case(
    "CN-04",
    promise="An altered ack id refuses the request with INVALID_ARGUMENT and a trailer; no id has a result.",
    seconds=1,
)
async def altered_id_refuses_the_request(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()
    copies = altered(a.ack_id)

    for what, copy in copies.items():
        with about(f"The ack id {what}"), request_refused(INVALID_ARGUMENT):
            await sub.ack(copy)
    return f"{len(copies)} flipped, cut and lengthened copies were refused so."


@case(
    "CN-05",
    promise="An ack without ids is refused with INVALID_ARGUMENT.",
    seconds=1,
)
async def no_ack_ids_is_refused(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)

    with refused(INVALID_ARGUMENT) as refusal:
        await sub.ack()
    return f"Refused with {refusal}."


@case(
    "CN-06",
    promise="An extension of 601 or -1 seconds is refused with INVALID_ARGUMENT.",
    seconds=1,
)
async def deadline_out_of_range_is_refused(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()

    for seconds in (601, -1):
        with about(f"An extension of {seconds} seconds"), refused(INVALID_ARGUMENT):
            await sub.modack(seconds, a)
    return "Both were refused so."


@case(
    "CN-07",
    promise="A malformed id refuses the whole ack, and a valid id beside it keeps its lease.",
    seconds=12,
)
async def valid_id_beside_a_malformed_one_is_unaffected(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()

    with refused(INVALID_ARGUMENT):
        await sub.ack(a, "junk")
    await sub.nothing_for(7)
    await sub.redelivered(a, within=LEASE_AND_MORE - 7)
    return "Refused with INVALID_ARGUMENT; the valid one stayed leased, and came again after its deadline."


@case(
    "CN-08",
    promise="A second nack of an earlier delivery is answered OK, and leaves the newer lease alone.",
    seconds=9,
)
async def repeated_nack_does_not_touch_the_newer_lease(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.nack(a)
    (b,) = await sub.pull()
    check_redelivered(b, a)

    await sub.nack(a)
    await sub.nothing_for(8)
    await sub.ack(b)
    return "Answered OK; the newer delivery was alone for 8 s, and its ack was OK."


@case(
    "CN-09",
    promise="Every response of a stream carries the subscription's properties, with exactly-once off.",
    seconds=4,
)
async def responses_say_that_exactly_once_is_off(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    await sub.publish()
    async with sub.stream() as stream:
        await stream.take(within=DELIVERY_SECONDS_MAX)
        # Whether a keep-alive is answered is not asked here (CS-18), but if it is, the answer counts.
        await stream.send()
        await asyncio.sleep(1)
        await sub.publish()
        await stream.take(within=DELIVERY_SECONDS_MAX)
        stream.check_open()
    bare = len(stream.bare_responses)
    check(not bare, f"{bare} of {count_of(stream.responses, 'response')} had no properties.")
    wrong = [r for r in stream.responses if r.subscription_properties.exactly_once_delivery_enabled]
    check(not wrong, f"{count_of(wrong, 'response')} said that exactly-once is on.")
    empty = [r for r in stream.responses if not r.received_messages]
    return (
        f"{count_of(stream.responses, 'response')}, {len(empty) or 'none'} without messages: all had the "
        "properties, with exactly-once off."
    )


@case(
    "CN-10",
    promise="A message comes again after its deadline, and should not before.",
    seconds=12,
)
async def message_comes_back_at_its_deadline(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    await sub.publish()
    before = time.monotonic()
    (a,) = await sub.pull()

    b = await sub.redelivered(a, within=LEASE_AND_MORE)
    if b.at - before < LEASE_SECONDS:
        raise Differs(f"It came again after {b.at - before:.1f} s already, with a deadline of 10 s.")
    return f"It came again {b.at - a.at:.1f} s after its delivery."


@case(
    "CN-11",
    promise="A message whose ack was answered OK should not return after the server is killed.",
    needs=[Hook.RESTART],
    seconds=16,
)
async def acked_message_does_not_return_after_a_restart(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription(eod=False)
        (a,) = await sub.lease()
        await sub.ack(a)
        await own.restart()
        if await sub.watch(LEASE_AND_MORE):
            raise Differs("The message came again after the restart.")
    return f"Killed right after the answer; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CN-12",
    promise="An ack on an unknown subscription is refused with NOT_FOUND.",
    seconds=1,
)
async def unknown_subscription_is_not_found(lab: Lab) -> str:
    nowhere = Sub(lab, "", lab.name("subscription"))

    with refused(StatusCode.NOT_FOUND) as refusal:
        await nowhere.ack("x")
    return f"Refused with {refusal}."
