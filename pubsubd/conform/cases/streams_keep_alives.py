"""CS: keep-alives, their answers, and the flags that every response carries."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from typing import Any

import grpc

from pubsubd.conform.calls import Client
from pubsubd.conform.case import Differs, Erred, Failed, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.cases.streams import (
    PONG_SECONDS_MAX,
    SETTLE_SECONDS,
    acks_confirmed,
    answer,
    check_delivers,
    exactly_once,
    in_words,
    modacks_confirmed,
)
from pubsubd.conform.lab import Lab, Stream, Sub, count_of, said, until

LOAD_SECONDS = 16.0
LOAD_MESSAGES_PER_SECOND = 1000
LOAD_BATCH = 100
LOAD_CALLS_MAX = 20


@case(
    "CS-15",
    promise="A stream without messages stays open while its client sends keep-alives.",
    critical="PNGJX",
    seconds=101,
)
async def idle_stream_with_keep_alives_stays_open(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream(protocol_version=0) as stream:
        start = time.monotonic()
        for moment in (30, 60, 90):
            await until(start + moment)
            stream.check_open()
            await stream.send()
        await until(start + 100)
        await check_delivers(stream, sub)
    return "Open after 100 s with a keep-alive every 30 s; a message published then arrived."


@case("CS-16", promise="A silent stream stays open.", critical="X", seconds=86)
async def silent_stream_stays_open(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream(protocol_version=0) as stream:
        await stream.nothing_for(85)
        await check_delivers(stream, sub)
    return "Open after 85 s without any request; a message published then arrived."


@case("CS-17", promise="Keep-alives of protocol version 0 are not answered.", critical="PN", seconds=7)
async def keep_alives_of_version_0_are_not_answered(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream(protocol_version=0) as stream:
        # What a stream says at its start is not an answer.
        await asyncio.sleep(SETTLE_SECONDS)
        before = len(stream.responses)
        for _ in range(5):
            await stream.send()
        await asyncio.sleep(5)
        stream.check_open()
        count = len(stream.responses) - before
        check(count == 0, f"{count_of(count, 'response')} came within 5 s of 5 keep-alives.")
    return "No response came within 5 s of 5 keep-alives."


@case(
    "CS-18",
    promise="A keep-alive of protocol version 1 is answered, also when there are no messages.",
    critical="NGJ",
    seconds=2,
)
async def keep_alive_is_answered(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as stream:
        await asyncio.sleep(SETTLE_SECONDS)
        times = [(await answer(stream))[1] for _ in range(5)]
    usual = statistics.median(times)
    if usual > 1:
        raise Differs(f"Answered, but after {usual:.1f} s, where 1 s is the aim.")
    return f"5 keep-alives were answered, usually after {in_words(usual)}."


@case(
    "CS-19",
    promise="A request that only changes the deadline is answered like a keep-alive.",
    critical="G",
    seconds=1,
)
async def keep_alive_with_a_deadline_is_answered(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as stream:
        await asyncio.sleep(SETTLE_SECONDS)
        _, seconds = await answer(stream, stream_ack_deadline_seconds=60)
    return f"Answered after {in_words(seconds)}."


@case("CS-20", promise="The answer to a keep-alive carries the flags.", critical="PGJ", seconds=1)
async def pong_carries_the_flag(lab: Lab) -> str:
    sub = await lab.subscription()
    async with sub.stream() as stream:
        await asyncio.sleep(SETTLE_SECONDS)
        pong, _ = await answer(stream)
        has_flags = pong.HasField("subscription_properties")
        check(has_flags, "The answer has no subscription_properties, which clients take for all flags off.")
        check(exactly_once(pong), "The answer says that exactly-once delivery is off.")
    return "The answer says that exactly-once delivery is on."


@case(
    "CS-21",
    promise="A keep-alive is answered while flow control holds messages back.",
    critical="NGJ",
    seconds=2,
)
async def pong_comes_while_messages_are_held_back(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish(3)
    async with sub.stream(max_outstanding_messages=1, stream_ack_deadline_seconds=60) as stream:
        await stream.take(within=DELIVERY_SECONDS_MAX)
        await asyncio.sleep(SETTLE_SECONDS)
        pong, seconds = await answer(stream)
        count = len(pong.received_messages)
        check(count == 0, f"The answer brought {count_of(count, 'message')} beyond the limit of 1.")
    return f"Answered after {in_words(seconds)}, with 1 message outstanding of at most 1."


@case(
    "CS-22",
    promise="Keep-alives are answered under load.",
    critical="NGJ",
    alone=True,
    seconds=LOAD_SECONDS + 1,
)
async def keep_alives_are_answered_under_load(lab: Lab) -> str:
    sub = await lab.subscription()
    client = lab.new_client()
    async with sub.stream(client=client, stream_ack_deadline_seconds=60) as stream:
        start = time.monotonic()
        end = start + LOAD_SECONDS
        arrivals = [start]

        async def listen() -> None:
            while True:
                try:
                    await stream.response(within=PONG_SECONDS_MAX)
                except Failed:
                    stream.check_open()
                    silence = f"For {PONG_SECONDS_MAX:g} s the stream brought no response."
                    raise Failed(silence) from None
                arrivals.append(time.monotonic())

        async def ack() -> None:
            while True:
                await sub.ack(*await stream.take_all(within=LOAD_SECONDS))
                # A call for every few messages would be a load of another kind.
                await asyncio.sleep(0.1)

        async def keep_alive() -> None:
            for number in itertools.count():
                await until(start + 5 * number)
                await stream.send()

        async with asyncio.TaskGroup() as group:
            others = [group.create_task(work()) for work in (listen, ack, keep_alive)]
            published = await load(sub, start, end)
            for task in others:
                task.cancel()
        # A stream that fell silent a second after the start has been so for less time than is allowed.
        await answer(stream)
        arrivals.append(time.monotonic())
        rate = published / LOAD_SECONDS
        if rate < LOAD_MESSAGES_PER_SECOND * 0.8:
            raise Erred(f"Only {rate:.0f} messages a second could be published, so the load was never there.")
        longest = max(later - earlier for earlier, later in itertools.pairwise(arrivals))
        check(longest <= PONG_SECONDS_MAX, f"For {longest:.1f} s the stream brought no response.")
    return (
        f"{rate:.0f} messages a second for {LOAD_SECONDS:.0f} s, {len(stream.deliveries)} delivered; "
        f"never longer than {longest:.2f} s without a response."
    )


async def load(sub: Sub, start: float, end: float) -> int:
    """Publishes at a steady rate, without waiting for one call before the next; returns how many messages."""
    places = asyncio.Semaphore(LOAD_CALLS_MAX)
    count = 0

    async def publish() -> None:
        nonlocal count
        try:
            count += len(await sub.publish(LOAD_BATCH))
        finally:
            places.release()

    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            await until(start + number * LOAD_BATCH / LOAD_MESSAGES_PER_SECOND)
            if time.monotonic() >= end:
                break
            await places.acquire()
            group.create_task(publish())
    return count


@case(
    "CS-41",
    promise="The next response of an open stream tells that exactly-once delivery was switched on.",
    critical="PNGJX",
    seconds=1,
)
async def flag_switched_on_shows_in_the_next_response(lab: Lab) -> str:
    await _check_switched(await lab.subscription(eod=False), True)
    return "The stream stayed open; before the update its responses said off, the next one said on."


@case(
    "CS-42",
    promise="The next response of an open stream tells that exactly-once delivery was switched off.",
    critical="PNGJX",
    seconds=1,
)
async def flag_switched_off_shows_in_the_next_response(lab: Lab) -> str:
    await _check_switched(await lab.subscription(), False)
    return "The stream stayed open; before the update its responses said on, the next one said off."


async def _check_switched(sub: Sub, on: bool) -> None:
    words = {True: "on", False: "off"}
    async with sub.stream(protocol_version=0) as stream:
        before = exactly_once(await check_delivers(stream, sub))
        check(before is not on, f"Before it was switched {words[on]}, a response said that it was.")
        await sub.set_exactly_once(on)
        seen = len(stream.responses)
        await check_delivers(stream, sub)
        check(
            exactly_once(stream.responses[seen]) is on,
            f"It was switched {words[on]}, and the next response says {words[before]}.",
        )


@case("CS-43", promise="A stream learns of a switched flag also when no message comes.", seconds=2)
async def switched_flag_is_told_without_a_message(lab: Lab) -> str:
    sub = await lab.subscription(eod=False)
    async with sub.stream() as stream:
        await asyncio.sleep(SETTLE_SECONDS)
        before = len(stream.responses)
        await sub.set_exactly_once(True)
        start = time.monotonic()
        try:
            told = await stream.response(exactly_once, after=before, within=1)
        except Failed:
            stream.check_open()
        else:
            check(len(told.received_messages) == 0, "The flag came with a message that nobody published.")
            seconds = time.monotonic() - start
            return f"A response without messages said so after {in_words(seconds)}, without being asked."
        pong, _ = await answer(stream)
        check(exactly_once(pong), "1 s after the update the answer to a keep-alive still says off.")
    raise Differs("Only the answer to the next keep-alive said so.")


@case(
    "CS-48",
    promise="A client may ping every 10 seconds on a connection without data.",
    critical="P",
    seconds=77,
    seconds_max=420,
    short="75 s instead of 5 min",
)
async def frequent_pings_do_not_end_the_connection(lab: Lab) -> str:
    # A server built on C-core that was told nothing loses patience at the fifth ping, others sooner.
    seconds = 300 if lab.full else 75
    channel = lab.new_channel(
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    sub = await lab.subscription()
    async with sub.stream(client=Client(channel), protocol_version=0) as stream:
        await asyncio.wait_for(channel.channel_ready(), DELIVERY_SECONDS_MAX)
        # A GOAWAY that leaves the stream alone for a while is seen at the channel, which looks for another
        # connection from then on.
        leaving = asyncio.ensure_future(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        start = time.monotonic()
        await asyncio.wait([leaving], timeout=seconds)
        passed = time.monotonic() - start
        await asyncio.sleep(0)
        ended = f" and the stream ended with {said(stream.status)}" if stream.status else ""
        check(not leaving.done(), f"After {passed:.0f} s the server let go of the connection{ended}.")
        leaving.cancel()
        await check_delivers(stream, sub)
    return f"{seconds} s with a ping every 10 s; then the stream brought a message, on the same connection."


@case(
    "CS-59",
    promise="Every response carries the flags, whatever else it carries.",
    critical="PNGJX",
    seconds=5,
)
async def responses_of_every_kind_carry_the_flags(lab: Lab) -> str:
    sub = await lab.subscription()
    patience = Patience()
    async with sub.stream() as stream:
        while len(stream.responses) < 200:
            await sub.publish()
            (a,) = await stream.take(within=DELIVERY_SECONDS_MAX)
            await patience.send(stream)
            await patience.send(stream, ack_ids=[a.ack_id])
            for response in stream.responses:
                kind = _kind(response)
                check(response.HasField("subscription_properties"), f"A response with {kind} has no flags.")
                check(
                    exactly_once(response), f"A response with {kind} says that exactly-once delivery is off."
                )
        counts = Counter(map(_kind, stream.responses))
    listed = ", ".join(f"{count} with {kind}" for kind, count in sorted(counts.items()))
    return f"Of {len(stream.responses)} responses, {listed}; every one had the flags."


def _kind(response: Any) -> str:
    kinds = []
    if response.received_messages:
        kinds.append("messages")
    if acks_confirmed(response) or modacks_confirmed(response):
        kinds.append("a confirmation")
    return " and ".join(kinds) or "nothing else"


class Patience:
    """Waits for what a request causes, and no longer where three such requests have caused nothing."""

    def __init__(self) -> None:
        self._answered: set[bool] = set()
        self._missed: Counter[bool] = Counter()

    async def send(self, stream: Stream, **fields: Any) -> None:
        kind = bool(fields)
        before = len(stream.responses)
        await stream.send(**fields)
        if kind not in self._answered and self._missed[kind] >= 3:
            return
        try:
            await stream.response(after=before, within=1)
            self._answered.add(kind)
        except Failed:
            stream.check_open()
            self._missed[kind] += 1
