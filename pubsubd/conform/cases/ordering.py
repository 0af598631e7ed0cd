"""CO: ordering keys: who gets a message next, acks in order, and what a failed delivery does to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc

from pubsubd.conform.calls import Refusal, about, permanent, transient, unordered
from pubsubd.conform.case import Differs, Failed, case, check
from pubsubd.conform.cases.shared import (
    DELIVERY_SECONDS_MAX,
    LEASE_AND_MORE,
    REFUSED,
    in_a_row,
    is_refused,
)
from pubsubd.conform.cases.streams import ack_confirmation, all_seen, check_listed
from pubsubd.conform.lab import Delivery, Lab, Stream, Sub, check_redelivered
from pubsubd.wire import pb

KEY = "k"

# What is due at once may be late by so much: the endpoint may be far away, or have many cases to serve.
PROMPT = 5.0

# Seconds by which two clocks may have drifted apart while a case waits.
SLACK = 0.1

# The first message and those that were handed out behind it, of which one fails.
THREE = ("m1", "m2", "m3")


def data(names: Sequence[str]) -> list[bytes]:
    return [name.encode() for name in names]


def names_of(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.data.decode(errors="replace") for delivery in deliveries]


def are_due(names: Sequence[str]) -> str:
    return f"{in_a_row(names)} {'was' if len(names) == 1 else 'were'} due"


def numbered(count: int) -> list[str]:
    return [f"m{number}" for number in range(1, count + 1)]


def check_named(deliveries: Sequence[Delivery], *names: str) -> None:
    """These messages, in this order."""
    seen = names_of(deliveries)
    check(seen == list(names), f"{in_a_row(seen)} came in this order, where {are_due(names)}.")


async def taken(stream: Stream, *names: str, within: float = PROMPT) -> list[Delivery]:
    """The next messages of the stream, which have to be these."""
    try:
        deliveries = await stream.take(len(names), within=within)
    except Failed:
        stream.check_open()
        seen = in_a_row(names_of(stream.take_now()))
        raise Failed(f"Within {within:.0f} s {seen} came, where {are_due(names)}.") from None
    check_named(deliveries, *names)
    return deliveries


async def handed_out(sub: Sub, stream: Stream, *names: str) -> list[Delivery]:
    """Publishes messages of one key, and takes them from the stream."""
    await sub.publish_key(KEY, *data(names))
    return await taken(stream, *names, within=DELIVERY_SECONDS_MAX)


async def ack(sub: Sub, *deliveries: Delivery) -> None:
    """One request for all, which has to be answered OK."""
    what = f"The ack of {in_a_row(names_of(deliveries))}"
    try:
        await sub.ack(*deliveries)
    except grpc.RpcError as error:
        refusal = Refusal.of(error)
        if not refusal.results:
            raise
        refused: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            refused.setdefault(refusal.results.get(delivery.ack_id, "no result"), []).append(delivery)
        results = "; ".join(f"{result} for {in_a_row(names_of(ids))}" for result, ids in refused.items())
        raise Failed(f"{what} was refused with {refusal.code.name}: {results}.") from None


def is_early(delivery: Delivery, since: float, seconds: float) -> bool:
    """Whether it came again before the deadline of its earlier lease, `seconds` after `since` or later."""
    return delivery.at - since < seconds - SLACK


# Delivery


@case(
    "CO-01",
    promise="Messages of a key arrive in the order in which they were published.",
    critical="PNGJX",
    seconds=3,
)
async def messages_of_a_key_arrive_in_order(lab: Lab) -> str:
    sub = await lab.ordered()
    later = await lab.ordered(topic=sub.topic)
    names = numbered(10)
    async with sub.stream() as stream:
        for item in data(names):
            await sub.publish_key(KEY, item)
        await taken(stream, *names, within=DELIVERY_SECONDS_MAX)
    async with later.stream() as stream:
        await taken(stream, *names, within=DELIVERY_SECONDS_MAX)
    return "Ten messages came in order on a stream that was open before them, and on one opened after."


@case(
    "CO-02",
    promise="A key that waits for an ack does not hold another key.",
    seconds=3,
)
async def held_key_does_not_hold_another(lab: Lab) -> str:
    sub = await lab.ordered()
    await sub.publish_key("k1", b"m1")
    await sub.pull()
    async with sub.stream() as stream:
        await sub.publish_key("k1", b"m2")
        other = await sub.publish_key("k2", b"other")
        with about("On the stream, while k1 was held"):
            await all_seen(other, stream)
    return "With a message of k1 leased to a Pull and another behind it, the stream brought that of k2."


@case(
    "CO-12",
    promise="While messages of a key are outstanding, all further ones go to the stream that has them.",
    critical="PNGJX",
    seconds=5,
)
async def outstanding_key_stays_on_one_stream(lab: Lab) -> str:
    sub = await lab.ordered()
    names = numbered(50)
    async with sub.stream() as first, sub.stream() as second:
        await asyncio.sleep(1)
        ids: list[str] = []
        for start in range(0, 50, 5):
            ids += await sub.publish_key(KEY, *data(names[start : start + 5]))
        with about("On both streams together"):
            await all_seen(ids, first, second)
        counts = sorted([len(first.deliveries), len(second.deliveries)])
        check(
            counts == [0, 50],
            f"Of 50 messages of one key {counts[1]} came on one stream and {counts[0]} on the other.",
        )
        seen = names_of(first.deliveries or second.deliveries)
    check(seen == names, f"All 50 came on one stream, but as {in_a_row(seen)}.")
    return "All 50 messages came in order on one of two streams."


@case(
    "CO-13",
    promise="A key of which a stream that ended has an unacked message is held until that one has ended.",
    seconds=14,
)
async def key_of_an_ended_stream_is_held(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream(client_id="a") as a:
        (m1,) = await handed_out(sub, a, "m1")
    async with sub.stream(client_id="b") as b:
        before = time.monotonic()
        await sub.modack(10, m1)
        await sub.publish_key(KEY, b"m2")
        first, second = await b.take(2, within=DELIVERY_SECONDS_MAX)
        waited = first.at - before
        check(
            first.data != b"m2", f"m2 came on another stream after {waited:.1f} s, while m1 was outstanding."
        )
        check_named([first, second], "m1", "m2")
        early = is_early(first, before, 10)
        check(not early, f"m1 came again {waited:.1f} s after an extension by 10 s.")
    return (
        f"The other stream got nothing for {waited:.1f} s, until the lease of m1 had ended; then m1 and m2."
    )


@case(
    "CO-14",
    promise="The key of a stream that ended may go on with a stream of the same client_id.",
    seconds=5,
)
async def key_goes_on_with_the_same_client(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream(client_id="a") as a:
        (m1,) = await handed_out(sub, a, "m1")
    await sub.modack(60, m1)
    async with sub.stream(client_id="b") as other, sub.stream(client_id="a") as again:
        await asyncio.sleep(1)
        await sub.publish_key(KEY, b"m2")
        deadline = time.monotonic() + PROMPT
        while not (again.deliveries or other.deliveries) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        check(
            not other.deliveries,
            f"{in_a_row(names_of(other.deliveries))} came on a stream of another client_id.",
        )
        went_on = bool(again.deliveries)
        if went_on:
            (m2,) = await taken(again, "m2")
            await ack(sub, m1)
            await ack(sub, m2)
        else:
            await ack(sub, m1)
            while not (seen := again.deliveries + other.deliveries):
                check(time.monotonic() < deadline + 10, "m1 was acked, and still m2 did not come.")
                await asyncio.sleep(0.02)
            check_named(seen, "m2")
    if not went_on:
        raise Differs("m2 did not go on with the stream of the same client_id; it came when m1 was acked.")
    return "m2 came on the stream of the same client_id while m1 was outstanding; both were acked OK."


@case(
    "CO-19",
    promise="While a Pull has messages of a key, another Pull gets nothing of that key.",
    seconds=4,
)
async def second_pull_gets_nothing_of_the_key(lab: Lab) -> str:
    sub = await lab.ordered()
    await sub.publish_key(KEY, *data(THREE))
    deadline = time.monotonic() + 10
    while not (first := await sub.pull_now()):
        check(time.monotonic() < deadline, "Pull gave nothing for 10 s after the messages were published.")
        await asyncio.sleep(0.05)
    check_named(first, *THREE[: len(first)])
    await sub.publish_key(KEY, b"m4")
    for _ in range(5):
        second = names_of(await sub.pull_now())
        check(
            not second,
            f"A second Pull gave {in_a_row(second)}, while {in_a_row(names_of(first))} were outstanding.",
        )
        await asyncio.sleep(0.5)

    await ack(sub, *first)
    due = [*THREE, "m4"][len(first) :]
    check_named(await sub.pull(len(due)), *due)
    given = in_a_row(names_of(first))
    return f"One Pull had {given}; five more gave nothing, and after the acks {in_a_row(due)} came."


# Acks


@case(
    "CO-03",
    promise="One request may ack messages of a key in any order.",
    critical="G",
    seconds=15,
)
async def one_request_acks_in_any_order(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2, m3 = await handed_out(sub, stream, *THREE)
        await ack(sub, m3, m1, m2)
        await stream.nothing_for(LEASE_AND_MORE)
    return f"Acknowledge of m3, m1 and m2 was answered OK; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CO-04",
    promise="An ack ahead of an unacked message of its key is refused for now, and works in its turn.",
    critical="PNGJX",
    seconds=3,
)
async def ack_ahead_is_refused_for_now(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2, _ = await handed_out(sub, stream, *THREE)
        with about("The ack of m2"), unordered(m2) as refusal:
            await sub.ack(m2)
        await ack(sub, m1)
        await ack(sub, m2)
    result = refusal.results[m2.ack_id]
    return f"The ack of m2 was refused with {refusal.code.name} and {result}; then m1 and m2 were acked OK."


@case(
    "CO-05",
    promise="In a request with a gap, what is before it is acked and what is behind it is refused for now.",
    seconds=15,
)
async def gap_in_a_request_refuses_what_is_behind_it(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2, m3 = await handed_out(sub, stream, *THREE)
        with about("The ack of m1 and m3"), transient(m3) as refusal:
            await sub.ack(m1, m3)
        await ack(sub, m2, m3)
        await stream.nothing_for(LEASE_AND_MORE)
    result = refusal.results[m3.ack_id]
    return (
        f"m3 was refused with {refusal.code.name} and {result}; m2 and m3 were then acked OK, and none of "
        f"the three came again in {LEASE_AND_MORE} s."
    )


@case(
    "CO-06",
    promise="Extensions need no order.",
    seconds=14,
)
async def extensions_need_no_order(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2, m3 = await handed_out(sub, stream, *THREE)
        await sub.modack(30, m3)
        await sub.modack(30, m1)
        await sub.modack(30, m2)
        await stream.nothing_for(12)
        await ack(sub, m1, m2, m3)
    return "Extensions of m3, m1 and m2 by 30 s were OK; none came again in 12 s, and all were acked OK."


@case(
    "CO-07",
    promise="An ack ahead of its key that travels on the stream is confirmed as unordered.",
    seconds=3,
)
async def ack_ahead_on_the_stream_is_confirmed_as_unordered(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2, _ = await handed_out(sub, stream, *THREE)
        seen = await ack_confirmation(stream, m2.ack_id)
        stream.check_open()
        check_listed(seen, "unordered_ack_ids", m2.ack_id, "The ack of m2")
        await ack(sub, m1)
        await ack(sub, m2)
    if seen is None:
        raise Differs("No confirmation came; m1 and m2 were then acked OK.")
    return "The confirmation lists m2 as unordered and nothing else; then m1 and m2 were acked OK."


@case(
    "CO-15",
    promise="Without exactly-once delivery acks need no order.",
    seconds=15,
)
async def acks_need_no_order_without_exactly_once(lab: Lab) -> str:
    sub = await lab.ordered(eod=False)
    async with sub.stream() as stream:
        m1, m2, m3 = await handed_out(sub, stream, *THREE)
        await ack(sub, m3)
        await ack(sub, m1, m2)
        await stream.nothing_for(LEASE_AND_MORE)
    return f"m3 was acked OK alone, and m1 and m2 after it; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CO-20",
    promise="Messages without a key may be acked in any order.",
    seconds=15,
)
async def messages_without_a_key_are_acked_in_any_order(lab: Lab) -> str:
    sub = await lab.ordered()
    await sub.publish_data(*data(THREE))
    async with sub.stream() as stream:
        deliveries = await stream.take(3, within=DELIVERY_SECONDS_MAX)
        m1, m2, m3 = sorted(deliveries, key=lambda delivery: delivery.data)
        for delivery in (m3, m1, m2):
            await ack(sub, delivery)
        await stream.nothing_for(LEASE_AND_MORE)
    return f"m3, m1 and m2 were acked OK one by one; no redelivery for {LEASE_AND_MORE} s."


# Nacks and expiries


async def failed_first(
    sub: Sub, stream: Stream, *, lease: int = 30
) -> tuple[list[Delivery], Delivery, float]:
    """m1, m2 and m3 are handed out and leased for `lease` seconds; then m1 is nacked, and comes again.

    Returns the three deliveries, the new one of m1, and a moment by which the leases had begun.
    """
    deliveries = await handed_out(sub, stream, *THREE)
    before = time.monotonic()
    await sub.modack(lease, *deliveries)
    await sub.nack(deliveries[0])
    (again,) = await taken(stream, "m1")
    check_redelivered(again, deliveries[0])
    return deliveries, again, before


@case(
    "CO-08",
    promise="A nacked message comes again at once, and the later ones of its key after it and in order.",
    critical="PNGJX",
    seconds=33,
)
async def nacked_message_comes_first_and_later_ones_follow(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        _, again, before = await failed_first(sub, stream)
        await sub.modack(120, again)
        later = await taken(stream, "m2", "m3", within=30 + PROMPT)
    return (
        f"m1 came again {again.at - before:.1f} s after its nack, and m2 and m3 in order "
        f"{later[-1].at - before:.1f} s after it."
    )


@case(
    "CO-09",
    promise="When an earlier message is nacked, the later ones keep their deadlines and lose their ack ids.",
    seconds=33,
)
async def later_messages_keep_their_deadlines_and_lose_their_ids(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        (_, m2, m3), again, before = await failed_first(sub, stream)
        with about("The ack with the old ids of m2 and m3"), permanent(m2, m3) as refusal:
            await sub.ack(m2, m3)
        await ack(sub, again)
        later = await taken(stream, "m2", "m3", within=30 + PROMPT)
        with about("The ack with the old ids of m2 and m3, when they had come again,"), permanent(m2, m3):
            await sub.ack(m2, m3)
    result = refusal.results[m2.ack_id]
    if is_early(later[0], before, 30):
        # Whether later messages keep their leases is nowhere documented: two rules contradict each other.
        raise Differs(
            f"m2 and m3 came again in order, but {later[0].at - before:.1f} s into their leases of 30 s; "
            f"acks with their old ids were refused with {result}."
        )
    return (
        f"Acks with the old ids of m2 and m3 were refused with {result}; the messages came again "
        f"{later[0].at - before:.1f} s after their leases of 30 s had begun."
    )


@case(
    "CO-10",
    promise="A nack with the ack id that an earlier message's nack voided is OK and releases the message.",
    seconds=4,
)
async def nack_of_the_later_messages_releases_them(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        (_, m2, m3), again, _ = await failed_first(sub, stream)
        before = time.monotonic()
        refused = await is_refused(sub.nack(m3, m2), m2, m3)
        try:
            later = await taken(stream, "m2", "m3")
        except Failed as failed:
            raise Failed(f"The nacks were {REFUSED}. {failed}" if refused else str(failed)) from None
    if refused:
        raise Differs(
            f"The nacks of m2 and m3 were {REFUSED}, but both came again in order without them, "
            f"{later[-1].at - again.at:.1f} s after m1."
        )
    return f"The nacks of m2 and m3 were OK; both came again in order {later[-1].at - before:.1f} s later."


@case(
    "CO-11",
    promise="Only the nacked message counts an attempt, and not those that follow it.",
    seconds=33,
)
async def only_the_nacked_message_counts_an_attempt(lab: Lab) -> str:
    policy = pb.DeadLetterPolicy(dead_letter_topic=await lab.topic(), max_delivery_attempts=5)
    sub = await lab.ordered(dead_letter_policy=policy)
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        first, again, _ = await failed_first(sub, stream)
        await sub.modack(120, again)
        later = await taken(stream, "m2", "m3", within=30 + PROMPT)
    before = [delivery.attempt for delivery in first]
    check(before == [1, 1, 1], f"The first deliveries have the attempts {before}.")
    after = [delivery.attempt for delivery in (again, *later)]
    check(after == [2, 1, 1], f"m1, m2 and m3 came again with the attempts {after}, where 2, 1, 1 were due.")
    return "delivery_attempt was 1 for all three, and then 2 for m1, 1 for m2 and m3."


@case(
    "CO-16",
    promise="Without exactly-once delivery a nack brings its message and later unacked ones back at once.",
    seconds=5,
)
async def nack_brings_later_unacked_messages_back_at_once(lab: Lab) -> str:
    sub = await lab.ordered(eod=False)
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        m1, _, m3 = await handed_out(sub, stream, *THREE)
        await ack(sub, m3)
        before = time.monotonic()
        await sub.nack(m1)
        again = await taken(stream, "m1", "m2")
        await asyncio.sleep(2)
        more = stream.take_now()
    if more:
        check_named(more, "m3")
        raise Differs("m1 and m2 came again at once and in order, and then m3 although it was acked.")
    return (
        f"m1 and m2 came again in order within {again[-1].at - before:.1f} s; m3, which was acked, did not."
    )


@case(
    "CO-17",
    promise="When a message expires, a later one of its key follows it although its lease was extended.",
    seconds=9,
)
async def expiry_resets_a_later_message_though_it_was_extended(lab: Lab) -> str:
    sub = await lab.ordered()
    async with sub.stream() as stream:
        m1, m2 = await handed_out(sub, stream, "m1", "m2")
        await sub.modack(8, m2)
        await sub.modack(1, m1)
        (again,) = await taken(stream, "m1")
        with about("The extension of m2 after that"), permanent(m2) as refusal:
            await sub.modack(30, m2)
        await sub.modack(60, again)
        await taken(stream, "m2", within=8 + PROMPT)
    result = refusal.results[m2.ack_id]
    return f"m1 came again first; the extension of m2 was then refused with {result}, and m2 followed."


@case(
    "CO-18",
    promise="The retry delay of a nacked message delays its whole key, which then goes on in order.",
    seconds=13,
)
async def backoff_of_a_message_delays_its_key(lab: Lab) -> str:
    backoff = pb.Duration(seconds=10)
    sub = await lab.ordered(retry_policy=pb.RetryPolicy(minimum_backoff=backoff, maximum_backoff=backoff))
    async with sub.stream() as stream:
        m1, *_ = await handed_out(sub, stream, *THREE)
        before = time.monotonic()
        await sub.nack(m1)
        await sub.publish_key(KEY, b"m4")
        again = await taken(stream, *THREE, "m4", within=20)
        waited = again[0].at - before
        check(waited >= 9, f"m1 came again {waited:.1f} s after its nack, where 10 s were due.")
    return f"Nothing of the key came for {waited:.1f} s after the nack, then m1 to m4 in order."
