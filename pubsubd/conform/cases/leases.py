"""CE: the life of a delivery under exactly-once: leases, extensions, nacks, acks, and changes around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import NOT_JUDGED, Refusal, about, permanent
from pubsubd.conform.case import Differs, Failed, case, check
from pubsubd.conform.cases.shared import (
    DELIVERY_SECONDS_MAX,
    LEASE_AND_MORE,
    REFUSED,
    is_refused,
    lease_many,
    pull_one,
    quiet_until,
)
from pubsubd.conform.lab import (
    Delivery,
    Lab,
    Stream,
    Sub,
    check_redelivered,
    message_ids,
    timestamp,
    until,
    us_of,
)
from pubsubd.wire import pb

# The documentation gives a seek up to a minute; elsewhere it is over at once, and this costs nothing.
SEEK_SECONDS_MAX = 60


# Deadlines


@case(
    "CE-01",
    promise="An extension in time keeps the message away until its new deadline.",
    critical="PNGJX",
    seconds=25,
)
async def extension_keeps_the_message_away(lab: Lab) -> str:
    sub = await lab.subscription()
    start, a = await pull_one(sub)
    await sub.nothing_for(start + 5 - time.monotonic())
    await sub.modack(30, a)
    await sub.nothing_for(start + 25 - time.monotonic())

    await sub.ack(a)
    return "Extended by 30 s at 5 s, no redelivery until 25 s, and the ack was OK then."


@case(
    "CE-02",
    promise="An extension may shorten a lease, and the message comes back at the earlier deadline.",
    critical="JX",
    seconds=5,
)
async def extension_may_shorten_a_lease(lab: Lab) -> str:
    sub = await lab.subscription(ack_deadline_seconds=60)
    (a,) = await sub.lease()
    sent = time.monotonic()
    await sub.modack(1, a)
    b = await sub.redelivered(a, within=3)

    check(b.at - sent >= 1, f"It came again {b.at - sent:.2f} s after an extension by 1 s.")
    with about("An ack of the old id"), permanent(a):
        await sub.ack(a)
    with about("A modack of the old id"), permanent(a):
        await sub.modack(10, a)
    return f"Redelivered {b.at - sent:.1f} s after the modack by 1 s; the old id was {REFUSED}."


@case(
    "CE-03",
    promise="An extension counts from its own request, not from the old deadline.",
    seconds=25,
)
async def extension_counts_from_the_request(lab: Lab) -> str:
    sub = await lab.subscription()
    start, a = await pull_one(sub)
    async with sub.stream() as stream:
        await until(start + 1)
        sent = time.monotonic()
        await sub.modack(20, a)
        await quiet_until(start + 19, sub, stream)
        (b,) = await stream.take(within=start + 24 - time.monotonic())
    check_redelivered(b, a)
    check(b.at - sent >= 20, f"It came again {b.at - sent:.2f} s after an extension by 20 s.")
    return f"Redelivered {b.at - sent:.1f} s after the modack by 20 s, and not before."


async def returned_at_its_deadline(sub: Sub, stream: Stream) -> tuple[Delivery, Delivery, float]:
    """A message that nobody touched, its redelivery, and the seconds between publication and that."""
    before = time.monotonic()
    await sub.publish()
    (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    (b,) = await stream.take(within=LEASE_AND_MORE + 1)
    check_redelivered(b, a)
    check(b.at - before >= 10, f"It came again {b.at - before:.2f} s after its publication.")
    check(b.at - a.at <= LEASE_AND_MORE, f"It came again only {b.at - a.at:.2f} s after its delivery.")
    return a, b, b.at - before


@case(
    "CE-04",
    promise="A message that nobody touches comes back at its deadline of 10 s under a new ack id.",
    critical="PNGJX",
    seconds=12,
)
async def untouched_message_comes_back(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as stream:
        _, _, seconds = await returned_at_its_deadline(sub, stream)
    return f"Redelivered {seconds:.2f} s after its publication, with the same message id and a new ack id."


@case(
    "CE-05",
    promise="Once a message was redelivered, its earlier ack id is refused for good and the new one works.",
    critical="PNGJX",
    seconds=25,
)
async def earlier_ack_id_is_refused(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as stream:
        a, b, _ = await returned_at_its_deadline(sub, stream)

        with about("An ack of the earlier id"), permanent(a):
            await sub.ack(a)
        await stream.nothing_for(3)
        await sub.ack(b)
        await stream.nothing_for(LEASE_AND_MORE - 3)
    return f"The earlier id was {REFUSED}; the new one stayed leased, and its ack was OK."


@case(
    "CE-06",
    promise="An expired ack id is refused for good although nobody else was given the message.",
    critical="PNGJX",
    seconds=3,
)
async def expired_ack_id_is_refused_though_idle(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with about("An ack of the expired id"), permanent(a):
        await sub.ack(a)
    (b,) = await sub.pull()
    check_redelivered(b, a)
    return f"The ack was {REFUSED}; a later Pull delivered the message."


@case(
    "CE-07",
    promise="An expired lease cannot be extended.",
    critical="PNGJX",
    seconds=3,
)
async def expired_lease_cannot_be_extended(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with about("A modack of the expired id"), permanent(a):
        await sub.modack(30, a)
    (b,) = await sub.pull()
    check_redelivered(b, a)
    return f"The modack was {REFUSED} and had no effect: the next Pull delivered the message."


@case(
    "CE-37",
    promise="An ack needs no modack before it: one within the deadline is OK.",
    critical="X",
    seconds=13,
)
async def ack_without_any_modack(lab: Lab) -> str:
    sub = await lab.subscription()
    start = time.monotonic()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await until(start + 9)

        await sub.ack(a)
        await stream.nothing_for(LEASE_AND_MORE - 9)
    return "The first call with the ack id, 9 s after the delivery, was OK and ended the message."


@case(
    "CE-38",
    promise="An ack half a second before the deadline is OK, one a second after it is refused for good.",
    seconds=12,
)
async def ack_shortly_before_and_after_the_deadline(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(2)
    asked = time.monotonic()
    a, b = await sub.pull(2)
    await until(asked + 9.5)
    await sub.ack(a)
    await until(max(a.at, b.at) + 11)

    with about("An ack 11 s after the delivery"), permanent(b):
        await sub.ack(b)
    return f"OK after 9.5 s; {REFUSED} after 11 s."


@case(
    "CE-39",
    promise="The longest extension is OK, and a nack ends it.",
    seconds=3,
)
async def long_extension_ends_with_a_nack(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.modack(600, a)
    await sub.modack(0, a)

    await sub.redelivered(a, within=DELIVERY_SECONDS_MAX)
    return "Modacks by 600 s and 0 s were OK, and the message was redelivered."


@case(
    "CE-36",
    promise="The receipt modack of a thousand messages, at once after their delivery, is OK.",
    critical="PJNG",
    alone=True,
    seconds=5,
)
async def receipt_modack_of_a_thousand(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(1000)
    async with sub.stream(stream_ack_deadline_seconds=60) as stream:
        deliveries = await stream.take(1000, within=30)
        await asyncio.sleep(0.01)
        sent = time.monotonic()
        await sub.modack(60, *deliveries)
    return f"The modack of 1000 ids in one call was OK after {(time.monotonic() - sent) * 1000:.0f} ms."


# Nacks


@case(
    "CE-08",
    promise="A nacked message comes back at once under a new ack id.",
    critical="PNGJX",
    seconds=2,
)
async def nacked_message_comes_back_at_once(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await sub.nack(a)
        answered = time.monotonic()
        (b,) = await stream.take(within=2)
        check_redelivered(b, a)
    return f"The nack was OK; redelivered {max(0.0, b.at - answered) * 1000:.0f} ms after its answer."


@case(
    "CE-09",
    promise="A nacked ack id is good for nothing more, even before the message was redelivered.",
    seconds=2,
)
async def nacked_ack_id_is_refused(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)

    with about("An ack of the nacked id"), permanent(a):
        await sub.ack(a)
    with about("A modack of the nacked id"), permanent(a):
        await sub.modack(10, a)
    await sub.redelivered(a)
    return f"Ack and modack were each {REFUSED}; the message was redelivered all the same."


@case(
    "CE-10",
    promise="A repeated nack is OK and has no second effect: the newer delivery stays leased.",
    seconds=5,
)
async def repeated_nack_has_no_effect(lab: Lab) -> str:
    # The attempts are only counted, and so only seen, with a dead letter policy.
    policy = {"dead_letter_topic": await lab.topic(), "max_delivery_attempts": 10}
    sub = await lab.subscription(dead_letter_policy=policy)
    (a,) = await sub.lease()
    await sub.nack(a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        check_redelivered(b, a)
        refusals = [await is_refused(sub.nack(a), a) for _ in range(2)]

        await quiet_until(time.monotonic() + 3, sub, stream)
        await sub.nack(b)
        (c,) = await stream.take()
    check_redelivered(c, b)
    attempts = [a.attempt, b.attempt, c.attempt]
    check(attempts in ([1, 2, 3], [0, 0, 0]), f"The three deliveries have the attempts {attempts}.")
    counted = "the next attempt was number 3" if c.attempt else "attempts are not counted here"
    if any(refusals):
        raise Differs(f"A repeated nack was {REFUSED}; the newer delivery stayed leased, and {counted}.")
    return f"OK twice more; the newer delivery stayed leased, and {counted}."


# Acks


@case(
    "CE-11",
    promise="An ack that is repeated, at once or minutes later, is OK again.",
    critical="PNGJX",
    seconds=26,
    seconds_max=720,
    short="repeats the ack at once, after 12 s and after 25 s instead of 60 s and 10 min",
)
async def repeated_ack_is_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.ack(a)
    start = time.monotonic()
    moments = (0, 60, 600) if lab.full else (0, 12, 25)
    for moment in moments:
        await until(start + moment)
        if await is_refused(sub.ack(a), a):
            when = f"{moment} s after the first" if moment else "at once"
            raise Failed(f"The ack repeated {when} was {REFUSED}.")
    await sub.nothing_for(1)
    return f"OK again at once, {moments[1]} s and {moments[2]} s after the first, and no redelivery."


@case(
    "CE-12",
    promise="After an ack an extension of the same id is OK without effect, and a nack is refused for good.",
    seconds=14,
)
async def late_extension_is_ok_and_late_nack_is_not(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.ack(a)
    extension_refused = await is_refused(sub.modack(10, a), a)

    with about("A nack after the ack"), permanent(a):
        await sub.nack(a)
    await sub.nothing_for(LEASE_AND_MORE)
    if extension_refused:
        raise Differs(f"The modack after the ack was {REFUSED}; so was the nack, and no redelivery.")
    return f"The modack was OK, the nack was {REFUSED}, and no redelivery for {LEASE_AND_MORE} s."


@case(
    "CE-13",
    promise="Of a thousand messages acked through ten calls at once none comes back.",
    critical="PNGJX",
    seconds=18,
    seconds_max=240,
    short=f"watches for {LEASE_AND_MORE + 2} s instead of 2 min",
)
async def parallel_acks_leave_nothing_behind(lab: Lab) -> str:
    sub = await lab.subscription()
    deliveries = await lease_many(sub, 1000)
    # Short leases again: what the acks did not end will be seen before long.
    await sub.modack(10, *deliveries)
    await asyncio.gather(*[sub.ack(*deliveries[start::10]) for start in range(10)])

    seconds = 120 if lab.full else LEASE_AND_MORE + 2
    await sub.nothing_for(seconds)
    return f"1000 messages were acked by 10 calls, and none came back within {seconds} s."


@case(
    "CE-34",
    promise="The same payload published twice is two messages, acked apart from each other.",
    critical="PNGJX",
    seconds=15,
)
async def same_payload_twice_is_two_messages(lab: Lab) -> str:
    sub = await lab.subscription()
    ids = await sub.publish_data(b"same") + await sub.publish_data(b"same")
    a, b = await sub.pull(2)
    check(len({*ids}) == 2, "Both publications were given one message id.")
    check({*ids} == {*message_ids([a, b])}, "The messages delivered are not the two that were published.")
    check(a.data == b.data == b"same", "The messages do not have the payload that was published.")

    await sub.ack(a)
    await sub.modack(20, b)
    async with sub.stream() as stream:
        await quiet_until(time.monotonic() + LEASE_AND_MORE, sub, stream)
        await sub.nack(b)
        (again,) = await stream.take()
        check_redelivered(again, b)
        await sub.ack(again)
    return "Two message ids; after the ack of one the other stayed leased, came back by a nack and was acked."


# Pull


@case(
    "CE-20",
    promise="Deliveries by Pull have the same leases: an end at 10 s, a refused id then, a nack at once.",
    critical="PNGJX",
    seconds=12,
)
async def pull_gives_the_same_leases(lab: Lab) -> str:
    sub = await lab.subscription()
    asked, a = await pull_one(sub)
    while (now := time.monotonic()) < asked + 9.5:
        check(not await sub.pull_now(), f"A Pull {now - asked:.1f} s after the delivery gave it again.")
        await asyncio.sleep(0.5)
    (b,) = await sub.pull(within=a.at + LEASE_AND_MORE - time.monotonic())
    check_redelivered(b, a)
    waited = b.at - asked
    check(waited >= 10, f"It came again {waited:.2f} s after the Pull, before its deadline.")

    with about("An ack of the earlier id"), permanent(a):
        await sub.ack(a)
    check(not await sub.pull_now(), "The refused ack ended the lease of the newer delivery.")
    await sub.nack(b)
    (c,) = await sub.pull(within=2)
    check_redelivered(c, b)
    await sub.ack(c)
    return f"Pulled again after {waited:.2f} s; the old id was {REFUSED}; after a nack it came at once."


async def waiting_pull(sub: Sub, seconds: float) -> list[Delivery]:
    """One Pull that may wait for messages, given up by this side after so long."""
    try:
        response = await sub.lab.client.Pull(subscription=sub.name, max_messages=10, timeout=seconds)
    except grpc.RpcError as error:
        if error.code() != StatusCode.DEADLINE_EXCEEDED:
            raise
        return []
    return [Delivery.of(received) for received in response.received_messages]


@case(
    "CE-21",
    promise="A Pull does not get a message that a stream has leased.",
    seconds=5,
)
async def pull_does_not_get_what_a_stream_holds(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        waiting, at_once = await asyncio.gather(waiting_pull(sub, 4), sub.pull_now())

        check(not waiting + at_once, "A Pull was given the message that the stream had leased.")
        await sub.ack(a)
    return "A Pull that waited up to 4 s and one that did not came back empty."


@case(
    "CE-22",
    promise="A message published right after a Pull gave up goes to the next Pull, not to the dead one.",
    seconds=3,
    seconds_max=60,
)
async def message_is_not_lost_to_a_dead_pull(lab: Lab) -> str:
    sub = await lab.subscription()
    start = time.monotonic()
    check(not await waiting_pull(sub, 1), "A Pull on an empty subscription gave a message.")
    await until(start + 1.05)
    await sub.publish()
    published = time.monotonic()
    (a,) = await sub.pull(within=2 * LEASE_AND_MORE)
    await sub.ack(a)

    waited = a.at - published
    if waited > 5:
        raise Differs(f"Delivered only after {waited:.1f} s: until then it was leased to the dead Pull.")
    return f"Delivered to the next Pull {waited * 1000:.0f} ms after its publication."


# Seeks


def before(delivery: Delivery) -> Any:
    """A moment before the publication, as the server's own clock had it."""
    return timestamp(us_of(delivery.message.publish_time) - 1_000_000)


def now_for(delivery: Delivery) -> Any:
    """Now, or just after the publication where the clock of the server is ahead of ours."""
    return timestamp(max(time.time_ns() // 1000, us_of(delivery.message.publish_time) + 1))


@case(
    "CE-23",
    promise="An acked message that a seek brings back has a new ack id, and the old one is refused for good.",
    seconds=5,
    seconds_max=120,
)
async def acked_message_comes_back_by_a_seek(lab: Lab) -> str:
    sub = await lab.subscription(retain_acked_messages=True)
    (a,) = await sub.lease()
    await sub.ack(a)
    await sub.seek(before(a))
    (b,) = await sub.pull(within=SEEK_SECONDS_MAX)
    check_redelivered(b, a)
    check(b.message == a.message, "The message came back changed.")

    with about("An ack of the id from before the seek"), permanent(a):
        await sub.ack(a)
    await sub.ack(b)
    await sub.nothing_for(2)
    return f"Redelivered with a new ack id; the old one was {REFUSED}, and the ack of the new one was OK."


@case(
    "CE-24",
    promise="A seek that leaves a message unacked leaves its lease alone.",
    seconds=15,
)
async def seek_leaves_an_unacked_lease_alone(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.seek(before(a))
    await sub.nothing_for(3)

    await sub.ack(a)
    await sub.nothing_for(LEASE_AND_MORE - 3)
    return "It stayed leased through the seek, the ack was OK, and no redelivery."


@case(
    "CE-25",
    promise="The ack of a leased message that a seek has purged is OK, and it never comes back.",
    seconds=14,
)
async def ack_of_a_purged_message_is_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.seek(now_for(a))

    check(not await is_refused(sub.ack(a), a), f"The ack was {REFUSED}.")
    await sub.nothing_for(LEASE_AND_MORE)
    return f"The ack was OK; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CE-26",
    promise="The nack of a leased message that a seek has purged is refused for good; it never comes back.",
    seconds=14,
)
async def nack_of_a_purged_message_is_refused(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.seek(now_for(a))

    with about("A nack right after the seek that purged the message"), permanent(a):
        await sub.nack(a)
    await sub.nothing_for(LEASE_AND_MORE)
    return f"The nack was {REFUSED}; no redelivery for {LEASE_AND_MORE} s."


# Configuration


async def default_deadline(lab: Lab, *, eod: bool, expected: int) -> str:
    sub = await lab.subscription(eod=eod, ack_deadline_seconds=0)
    shown = (await sub.get()).ack_deadline_seconds
    if shown == 0:
        raise Differs("GetSubscription shows the deadline of 0 that was given, not the one in effect.")
    check(shown == expected, f"GetSubscription shows a deadline of {shown} s, not {expected} s.")
    return f"GetSubscription shows a deadline of {shown} s."


@case(
    "CE-27",
    promise="Without a value given the deadline is 60 s under exactly-once delivery.",
    seconds=1,
)
async def default_deadline_with_exactly_once(lab: Lab) -> str:
    return await default_deadline(lab, eod=True, expected=60)


@case(
    "CE-28",
    promise="Without a value given the deadline is 10 s without exactly-once delivery.",
    seconds=1,
)
async def default_deadline_without_exactly_once(lab: Lab) -> str:
    return await default_deadline(lab, eod=False, expected=10)


@case(
    "CE-29",
    promise="A lease stays valid when exactly-once delivery is switched on.",
    critical="PNGJX",
    seconds=14,
)
async def lease_stays_valid_when_switched_on(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.set_exactly_once(True)

    await sub.ack(a)
    await sub.nothing_for(LEASE_AND_MORE)
    return "The ack inside the deadline was OK, and no redelivery."


@case(
    "CE-30",
    promise="An ack id that expired is refused for good once exactly-once delivery is switched on.",
    seconds=3,
)
async def expired_ack_id_is_refused_when_switched_on(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    (a,) = await sub.lease_expired()
    await sub.set_exactly_once(True)

    with about("An ack of the expired id"), permanent(a):
        await sub.ack(a)
    return f"The ack was {REFUSED}."


@case(
    "CE-31",
    promise="An ack id that expired is OK once exactly-once delivery is switched off.",
    seconds=3,
)
async def expired_ack_id_is_ok_when_switched_off(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()
    await sub.set_exactly_once(False)

    await sub.ack(a)
    return "The ack was OK."


async def refusal_code(word: str, call: Awaitable[Any]) -> StatusCode:
    """How a call is refused that has to be; a call that nobody looked at was not."""
    try:
        await call
    except grpc.RpcError as error:
        refusal = Refusal.of(error)
        if refusal.code in NOT_JUDGED:
            raise
        broken = refusal.code in (StatusCode.INTERNAL, StatusCode.UNKNOWN)
        check(not broken, f"{word} was answered {refusal}.")
        return refusal.code
    raise Failed(f"{word} was answered OK.")


@case(
    "CE-32",
    promise="Exactly-once delivery and push exclude each other, however they are to be combined.",
    seconds=1,
)
async def exactly_once_and_push_exclude_each_other(lab: Lab) -> str:
    push = pb.PushConfig(push_endpoint="https://example.com/push")
    codes = [await refusal_code("CreateSubscription with push", lab.subscription(push_config=push))]
    sub = await lab.subscription()
    codes.append(await refusal_code("UpdateSubscription to push", sub.update(push_config=push)))
    modify = lab.client.ModifyPushConfig(subscription=sub.name, push_config=push)
    codes.append(await refusal_code("ModifyPushConfig", modify))

    seen = await sub.get()
    check(not seen.push_config.push_endpoint, "The subscription has a push endpoint after the refusals.")
    check(seen.enable_exactly_once_delivery, "Exactly-once delivery is off after the refusals.")
    if codes != [StatusCode.INVALID_ARGUMENT] * 3:
        names = ", ".join(code.name for code in codes)
        raise Differs(f"All three are refused, with {names}; the documentation names no code.")
    return "CreateSubscription, UpdateSubscription and ModifyPushConfig were refused with INVALID_ARGUMENT."


@case(
    "CE-33",
    promise="An ack id of a deleted subscription means nothing to its successor of the same name.",
    seconds=3,
)
async def ack_id_of_a_deleted_subscription_is_refused(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.delete()
    await lab.client.CreateSubscription(
        name=sub.name, topic=sub.topic, ack_deadline_seconds=10, enable_exactly_once_delivery=True
    )

    with about("An ack of an id of the deleted subscription"), permanent(a):
        await sub.ack(a)
    (b,) = await sub.lease()
    with about("A later ack of an id of the deleted subscription"), permanent(a):
        await sub.ack(a)
    await sub.ack(b)
    return f"It was {REFUSED}, also while a message of the new subscription was leased."
