"""CD: delivery attempts, and what becomes of a message that fails as often as its policy allows."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import about, permanent
from pubsubd.conform.case import Differs, Failed, Hook, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX, LEASE_AND_MORE, in_a_row
from pubsubd.conform.lab import Delivery, Lab, OwnLab, Sub, count_of, data_of
from pubsubd.wire import admin_pb, pb

COUNT = "CloudPubSubDeadLetterSourceDeliveryCount"

# The real service forwards in the name of an account of its own.
NOTHING_FORWARDED = (
    f"Nothing came on the dead letter topic within {DELIVERY_SECONDS_MAX:.0f} s; where access is controlled, "
    "the service's own account needs the right to publish there."
)

FAULTS = {
    "before the commit": admin_pb.InjectCommitFaultRequest.KILL_BEFORE_COMMIT,
    "after it": admin_pb.InjectCommitFaultRequest.KILL_AFTER_COMMIT,
}


def policy(topic: str, attempts: int = 5) -> Any:
    return pb.DeadLetterPolicy(dead_letter_topic=topic, max_delivery_attempts=attempts)


async def with_dead_letters(lab: Lab, attempts: int = 5, **fields: Any) -> tuple[Sub, Sub]:
    """A subscription with a dead letter policy, and one that gets what is forwarded."""
    dead = await lab.subscription()
    return await lab.subscription(dead_letter_policy=policy(dead.topic, attempts), **fields), dead


async def next_of(sub: Sub, earlier: Sequence[Delivery] = ()) -> Delivery:
    """The delivery of the one message of a subscription that follows on earlier ones."""
    try:
        (delivery,) = await sub.pull(within=DELIVERY_SECONDS_MAX)
    except Failed:
        again = f"come again after its attempts {in_a_row(attempts_of(earlier))}" if earlier else "come"
        raise Failed(f"Within {DELIVERY_SECONDS_MAX:.0f} s the message did not {again}.") from None
    return delivery


async def fail(sub: Sub, times: int, earlier: Sequence[Delivery] = ()) -> list[Delivery]:
    """Takes one message and nacks it, so many times; returns the deliveries behind the earlier ones."""
    seen = list(earlier)
    for _ in range(times):
        seen.append(await next_of(sub, seen))
        await sub.nack(seen[-1])
    return seen


def attempts_of(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.attempt for delivery in deliveries]


def check_attempts(deliveries: Sequence[Delivery], *attempts: int) -> None:
    seen = attempts_of(deliveries)
    check(seen == list(attempts), f"delivery_attempt was {in_a_row(seen)}, not {in_a_row(attempts)}.")


async def forwarded(sub: Sub, dead: Sub, message: Delivery) -> Delivery:
    """The copy of a message on the dead letter topic, which is acked; `sub` gives nothing more.

    An endpoint may forward only when it would otherwise deliver, so somebody has to ask for the message.
    """
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    while True:
        again = attempts_of(await sub.pull_now())
        check(not again, f"The message came again, as attempt {in_a_row(again or [0])}.")
        if copies := await dead.pull_now():
            break
        late = time.monotonic() > deadline
        check(not late, NOTHING_FORWARDED)
        await asyncio.sleep(0.05)
    check(len(copies) == 1, f"{len(copies)} messages came on the dead letter topic.")
    check(copies[0].data == message.data, "Another message came on the dead letter topic.")
    await dead.ack(copies[0])
    return copies[0]


def check_counted(copy: Delivery, attempts: int) -> None:
    count = copy.message.attributes.get(COUNT, "absent")
    check(count == str(attempts), f"The copy's attribute {COUNT} is {count}, where {attempts} was due.")


async def check_quiet(sub: Sub, dead: Sub, seconds: float) -> None:
    """Neither the message nor another copy of it comes for so long."""
    again, copies = await asyncio.gather(sub.watch(seconds), dead.watch(seconds))
    check(not again, f"{count_of(again, 'message')} of the subscription came, where none was due.")
    check(not copies, f"{count_of(copies, 'message')} came on the dead letter topic, where none was due.")


# Attempts


@case(
    "CD-01",
    promise="Without a dead letter policy delivery_attempt is 0.",
    seconds=2,
)
async def attempt_is_zero_without_a_policy(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    check_attempts(await fail(sub, 2), 0, 0)
    return "delivery_attempt was 0 before a nack and after it."


@case(
    "CD-02",
    promise="With a dead letter policy the first delivery is attempt 1.",
    seconds=2,
)
async def first_delivery_is_attempt_1(lab: Lab) -> str:
    sub, _ = await with_dead_letters(lab)
    await sub.publish(2)
    by_pull = await next_of(sub)
    async with sub.stream() as stream:
        (by_stream,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    check_attempts([by_pull, by_stream], 1, 1)
    return "delivery_attempt was 1, by Pull and on a stream."


@case(
    "CD-03",
    promise="A nack and an expiry count an attempt each.",
    seconds=4,
)
async def nack_and_expiry_count(lab: Lab) -> str:
    sub, _ = await with_dead_letters(lab)
    await sub.publish()
    seen = await fail(sub, 1)
    seen.append(await next_of(sub, seen))
    await sub.modack(1, seen[-1])
    seen.append(await next_of(sub, seen))
    check_attempts(seen, 1, 2, 3)
    return "delivery_attempt was 2 after a nack, and 3 after an expiry."


@case(
    "CD-04",
    promise="Neither the end of a stream nor modacks nor failed acks count an attempt.",
    seconds=4,
)
async def nothing_else_counts(lab: Lab) -> str:
    sub, _ = await with_dead_letters(lab)
    (foreign,) = await (await lab.subscription()).lease()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
        await sub.modack(10, a)
        await stream.send(modify_deadline_ack_ids=[a.ack_id], modify_deadline_seconds=[20])
        for ack_id in (foreign.ack_id, a.ack_id + "x"):
            # How they are refused is the matter of other cases.
            with suppress(grpc.RpcError):
                await sub.ack(ack_id)
            with suppress(grpc.RpcError):
                await sub.nack(ack_id)
    await asyncio.sleep(1)
    await sub.modack(20, a)
    early = await sub.pull_now()
    check(not early, "The message came again although its lease had not ended.")
    await sub.nack(a)
    b = await next_of(sub, [a])
    with about("The ack with the id of before the nack"), permanent(a):
        await sub.ack(a)
    await sub.nack(b)
    c = await next_of(sub, [a, b])
    check_attempts([a, b, c], 1, 2, 3)
    return "Beside modacks, failed acks and the cut of a stream, two nacks made delivery_attempt 2 and 3."


@case(
    "CD-10",
    promise="A restart keeps the number of attempts, and counts none.",
    needs=[Hook.RESTART],
    seconds=15,
)
async def restart_keeps_the_attempts(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub, dead = await with_dead_letters(own, ack_deadline_seconds=600)
        await sub.publish()
        seen = await fail(sub, 2)
        await own.restart()  # while the message waits
        seen.append(await next_of(sub, seen))
        await own.restart()  # while it is leased
        await sub.nack(seen[-1])
        seen = await fail(sub, 2, seen)
        check_attempts(seen, 1, 2, 3, 4, 5)
        check_counted(await forwarded(sub, dead, seen[0]), 5)
    return "Killed twice, delivery_attempt went from 1 to 5; the fifth nack forwarded with a count of 5."


# Forwarding


@case(
    "CD-05",
    promise="The fifth of five nacks forwards the message once, with its count; it is not delivered again.",
    seconds=16,
)
async def fifth_nack_forwards(lab: Lab) -> str:
    sub, dead = await with_dead_letters(lab)
    await sub.publish()
    seen = await fail(sub, 5)
    check_attempts(seen, 1, 2, 3, 4, 5)
    check_counted(await forwarded(sub, dead, seen[0]), 5)
    await check_quiet(sub, dead, LEASE_AND_MORE)
    return f"Five deliveries, then one copy with a count of 5; neither came again in {LEASE_AND_MORE} s."


@case(
    "CD-06",
    promise="The ack id whose nack forwarded the message is refused, and nothing is forwarded twice.",
    critical="PNGJX",
    seconds=16,
)
async def last_ack_id_of_a_forwarded_message_is_refused(lab: Lab) -> str:
    sub, dead = await with_dead_letters(lab)
    await sub.publish()
    seen = await fail(sub, 5)
    await forwarded(sub, dead, seen[0])
    with permanent(seen[-1]) as refusal:
        await sub.ack(seen[-1])
    await check_quiet(sub, dead, LEASE_AND_MORE)
    result = refusal.results[seen[-1].ack_id]
    return (
        f"The ack was refused with {refusal.code.name} and {result}; no second copy came in "
        f"{LEASE_AND_MORE} s."
    )


@case(
    "CD-09",
    promise="An ack of the last attempt ends the message, and forwards nothing.",
    seconds=15,
)
async def ack_of_the_last_attempt_forwards_nothing(lab: Lab) -> str:
    sub, dead = await with_dead_letters(lab)
    await sub.publish()
    seen = await fail(sub, 4)
    seen.append(await next_of(sub, seen))
    check_attempts(seen, 1, 2, 3, 4, 5)
    await sub.ack(seen[-1])
    await check_quiet(sub, dead, LEASE_AND_MORE)
    return f"The ack of attempt 5 was answered OK; no copy and no redelivery in {LEASE_AND_MORE} s."


@case(
    "CD-08",
    promise="max_delivery_attempts is 5 to 100, and 0 means 5.",
    seconds=3,
)
async def attempts_out_of_range_are_refused(lab: Lab) -> str:
    topic, dead_topic = await lab.topic(), await lab.topic()
    codes = [await refusal_of_attempts(lab, topic, dead_topic, attempts) for attempts in (4, 101)]
    sub, dead = await with_dead_letters(lab, 0)
    await sub.publish()
    seen = await fail(sub, 5)
    check_attempts(seen, 1, 2, 3, 4, 5)
    await forwarded(sub, dead, seen[0])
    shown = (await sub.get()).dead_letter_policy.max_delivery_attempts
    if set(codes) != {StatusCode.INVALID_ARGUMENT} or shown != 5:
        raise Differs(
            f"4 was refused with {codes[0].name} and 101 with {codes[1].name}; with 0 the fifth nack "
            f"forwarded, and the policy shows {shown}."
        )
    return "4 and 101 were refused with INVALID_ARGUMENT; 0 became 5, and the fifth nack forwarded."


async def refusal_of_attempts(lab: Lab, topic: str, dead_topic: str, attempts: int) -> StatusCode:
    """The code with which CreateSubscription is refused; which of two it is, is nowhere documented."""
    name = lab.name("subscription")
    try:
        await lab.client.CreateSubscription(
            name=name, topic=topic, dead_letter_policy=policy(dead_topic, attempts)
        )
    except grpc.RpcError as error:
        code = error.code()
        check(
            code in (StatusCode.INVALID_ARGUMENT, StatusCode.OUT_OF_RANGE),
            f"A policy of {attempts} attempts was refused with {code.name}, not with INVALID_ARGUMENT.",
        )
        return code
    raise Failed(f"A subscription with a policy of {attempts} attempts was created.")


@case(
    "CD-11",
    promise="A message whose dead letter topic was deleted stays in normal redelivery.",
    seconds=3,
)
async def missing_dead_letter_topic_loses_nothing(lab: Lab) -> str:
    sub, dead = await with_dead_letters(lab)
    await sub.publish()
    await lab.client.DeleteTopic(topic=dead.topic)
    seen = await fail(sub, 7)
    seen.append(await next_of(sub, seen))
    check(len({delivery.message_id for delivery in seen}) == 1, "Another message came than was published.")
    await sub.ack(seen[-1])
    return "After the fifth nack three more deliveries came, and the last was acked OK."


# Kills


@case(
    "CD-07",
    promise="A kill around the forward leaves each message once: in the backlog, or forwarded.",
    needs=[Hook.RESTART],
    seconds=20,
    seconds_max=600,
    short="6 kills in place of 50",
)
async def kill_around_the_forward_loses_and_doubles_nothing(lab: Lab) -> str:
    kills = 50 if lab.full else 6
    chance = random.Random(7)
    outcomes: Counter[str] = Counter()
    async with lab.own_server() as own:
        moments = [*FAULTS, ""] if own.served.admin_port else [""]
        sub, dead = await with_dead_letters(own, ack_deadline_seconds=600)
        for number in range(kills):
            last, took = await failed_four_times(sub)
            moment = moments[number % len(moments)]
            await kill_at_the_nack(own, sub, last, moment, chance.uniform(0, took))
            await own.start()
            outcomes += await each_once(sub, dead, last)
        await check_quiet(sub, dead, 5)
    at = "before the commit, after it, or at random right after the nack was sent"
    if len(moments) == 1:
        at = "at random, right after the nack was sent"
    return (
        f"After {kills} kills ({at}) {outcomes['forwarded']} of {3 * kills} messages were forwarded and "
        f"{outcomes['backlog']} in the backlog; none was lost, none doubled."
    )


async def failed_four_times(sub: Sub) -> tuple[list[Delivery], float]:
    """Three new messages, leased for the fifth time, and the seconds that a nack of them takes."""
    await sub.publish(3)
    took = []
    for _ in range(4):
        deliveries = await sub.pull(3, within=DELIVERY_SECONDS_MAX)
        start = time.monotonic()
        await sub.nack(*deliveries)
        took.append(time.monotonic() - start)
    last = await sub.pull(3, within=DELIVERY_SECONDS_MAX)
    check_attempts(last, 5, 5, 5)
    return last, min(took)


async def kill_at_the_nack(
    own: OwnLab, sub: Sub, last: Sequence[Delivery], moment: str, seconds: float
) -> None:
    """Kills the server while it handles the nacks that forward.

    `moment` is of FAULTS; when it is empty, the kill comes so many seconds after the nacks.
    """
    if moment:
        await own.inject_fault(FAULTS[moment], commits=1)
        with suppress(grpc.RpcError):
            await sub.nack(*last)
        await own.wait_for_its_end()
    else:
        nack = asyncio.create_task(_nack(sub, last))
        await asyncio.sleep(seconds)
        await own.kill()
        await nack


async def _nack(sub: Sub, deliveries: Sequence[Delivery]) -> None:
    with suppress(grpc.RpcError, asyncio.CancelledError):
        await sub.nack(*deliveries)


async def each_once(sub: Sub, dead: Sub, last: Sequence[Delivery]) -> Counter[str]:
    """Each of `last` is in the backlog or on the dead letter topic: never both, never none.

    Forwards and acks them all, so that the next kill finds nothing; returns how many were where.
    """
    copies = await until_quiet(dead)
    already = {delivery.data for delivery in copies}
    backlog = [delivery for delivery in last if delivery.data not in already]
    for delivery in last:
        if delivery.data in already:
            # A lease that is still good would be a second place where the message is.
            with about("The extension of a message that had been forwarded"), permanent(delivery):
                await sub.modack(600, delivery)
    for delivery in backlog:
        with suppress(grpc.RpcError):
            await sub.nack(delivery)  # if it is still leased; else a Pull brings it
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    while len(copies) < 3 and time.monotonic() < deadline:
        again = await sub.pull_now()
        doubled = [delivery for delivery in again if delivery.data in already]
        check(not doubled, f"{count_of(doubled, 'message')} came again although a copy was forwarded.")
        if again:
            await sub.nack(*again)
        copies += await dead.pull_now()
        await asyncio.sleep(0.02)
    counts = Counter(data_of(copies))
    twice = [data for data, count in counts.items() if count > 1]
    check(not twice, f"After a kill {len(twice)} of 3 messages were forwarded twice.")
    lost = [delivery for delivery in last if not counts[delivery.data]]
    check(not lost, f"After a kill {len(lost)} of 3 messages were neither in the backlog nor forwarded.")
    await dead.ack(*copies)
    check(not await sub.pull_now(), "A message was in the backlog although it had been forwarded.")
    check(not await dead.pull_now(), "A message was forwarded twice after a kill.")
    return Counter(forwarded=len(already), backlog=len(backlog))


async def until_quiet(sub: Sub, seconds: float = 0.3) -> list[Delivery]:
    """What Pulls give until they have given nothing for so long; or far too much, without an end."""
    taken: list[Delivery] = []
    start = last = time.monotonic()
    while time.monotonic() - last < seconds and time.monotonic() - start < DELIVERY_SECONDS_MAX:
        if more := await sub.pull_now():
            taken += more
            last = time.monotonic()
        await asyncio.sleep(0.05)
    return taken
