"""What the cases of StreamingPull share.

Nothing here counts on what only some endpoints do: that a stream has taken its first request is seen by a
message that arrives on it, not by the answer to a keep-alive. Streams follow one another on one subscription
only where that is the point: an endpoint that gives messages to streams that are gone is told so elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from grpc import StatusCode

from pubsubd.conform.case import Erred, Failed, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.lab import Delivery, Stream, Sub, count_of, said

# How long a refusal may take: also an endpoint far away makes it.
REFUSAL_SECONDS_MAX = 10.0

# Some client libraries give a stream up that leaves a keep-alive unanswered for longer.
PONG_SECONDS_MAX = 15.0

# How long to give an endpoint for a request on a stream that nothing answers.
SETTLE_SECONDS = 1.0


def exactly_once(response: Any) -> bool:
    return bool(response.subscription_properties.exactly_once_delivery_enabled)


def acks_confirmed(response: Any) -> bool:
    """Whether it tells what became of an ack: some endpoints add an empty confirmation to everything."""
    return bool(response.acknowledge_confirmation.ListFields())


def modacks_confirmed(response: Any) -> bool:
    return bool(response.modify_ack_deadline_confirmation.ListFields())


def in_words(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.01 else "less than 0.01 s"


async def check_delivers(stream: Stream, sub: Sub) -> Any:
    """The stream is given what is published now, which is acked; returns the response that brought it."""
    before = len(stream.responses)
    (message_id,) = await sub.publish()
    (delivery,) = await stream.take(within=DELIVERY_SECONDS_MAX)
    check(delivery.message_id == message_id, "The stream was given another message than the one published.")
    await sub.ack(delivery)
    return next(response for response in stream.responses[before:] if response.received_messages)


@asynccontextmanager
async def running(sub: Sub, **fields: Any) -> AsyncIterator[Stream]:
    """A stream that has delivered a message, so that what is written to it now is a later request."""
    async with sub.stream(**fields) as stream:
        await check_delivers(stream, sub)
        yield stream


async def check_ends(
    stream: Stream, code: StatusCode, after: str, within: float = REFUSAL_SECONDS_MAX
) -> float:
    """The server closes the stream with this code; returns how many seconds that took.

    `after` says in the sentence of what was seen what had been done: `a first request with deadline 9`.
    """
    start = time.monotonic()
    try:
        seen = await stream.ended(within)
    except Failed:
        raise Failed(f"The stream was still open {within:g} s after {after}.") from None
    if seen[0] is StatusCode.UNIMPLEMENTED:
        raise Erred(f"StreamingPull was refused with {said(seen)}.")
    check(seen[0] is code, f"After {after} the stream ended with {said(seen)}, not with {code.name}.")
    return time.monotonic() - start


async def check_first_refused(sub: Sub, code: StatusCode, what: str, **fields: Any) -> None:
    """A stream opened `what` is closed with this code: `what` is `with deadline 9`."""
    async with sub.stream(**fields) as stream:
        await check_ends(stream, code, f"a first request {what}")


async def check_later_refused(sub: Sub, what: str, **fields: Any) -> None:
    """A stream that runs is closed with INVALID_ARGUMENT by a request `what`."""
    async with running(sub) as stream:
        await stream.send(**fields)
        await check_ends(stream, StatusCode.INVALID_ARGUMENT, f"a later request {what}")


async def answer(stream: Stream, **fields: Any) -> tuple[Any, float]:
    """Sends a keep-alive; returns the next response of any kind and how many seconds it took."""
    before = len(stream.responses)
    start = time.monotonic()
    await stream.send(**fields)
    try:
        response = await stream.response(after=before, within=PONG_SECONDS_MAX)
    except Failed:
        stream.check_open()
        raise Failed(f"A keep-alive was not answered within {PONG_SECONDS_MAX:g} s.") from None
    return response, time.monotonic() - start


async def nothing_anywhere(sub: Sub, stream: Stream, seconds: float) -> None:
    """No delivery on this stream, which stays open, on another one, or to Pulls."""
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.nothing_for(seconds))
        group.create_task(sub.nothing_for(seconds))


async def all_seen(ids: Iterable[str], *streams: Stream, within: float = DELIVERY_SECONDS_MAX) -> None:
    """Returns when these messages have arrived, whichever of the streams brought each."""
    wanted = set(ids)
    deadline = time.monotonic() + within
    while missing := wanted - {delivery.message_id for s in streams for delivery in s.deliveries}:
        for stream in streams:
            stream.check_open()
        count = len(wanted) - len(missing)
        check(
            time.monotonic() < deadline, f"{count} of {count_of(wanted, 'message')} came within {within:g} s."
        )
        await asyncio.sleep(0.02)


async def share_out(sub: Sub, *streams: Stream, within: float = DELIVERY_SECONDS_MAX) -> None:
    """Publishes, and acks what arrives, until each of the streams was given something."""
    deadline = time.monotonic() + within
    while not all(stream.deliveries for stream in streams):
        given = sum(bool(stream.deliveries) for stream in streams)
        late = time.monotonic() > deadline
        check(not late, f"Only {given} of {len(streams)} streams was given messages within {within:g} s.")
        await all_seen(await sub.publish(2 * len(streams)), *streams)
        await ack_all(sub, *streams)


async def ack_all(sub: Sub, *streams: Stream) -> list[Delivery]:
    """Acks what nobody took from these streams yet."""
    taken = [delivery for stream in streams for delivery in stream.take_now()]
    if taken:
        await sub.ack(*taken)
    return taken


def lists_of(confirmation: Any) -> dict[str, list[str]]:
    """The lists of a confirmation that hold anything, by their names."""
    return {field.name: list(values) for field, values in confirmation.ListFields()}


async def ack_confirmation(stream: Stream, *ack_ids: str) -> dict[str, list[str]] | None:
    """Acks on the stream; returns the lists of the confirmation, or None when there is none."""
    before = len(stream.responses)
    await stream.send(ack_ids=ack_ids)
    response = await _confirmed(stream, acks_confirmed, before)
    return None if response is None else lists_of(response.acknowledge_confirmation)


async def modack_confirmation(stream: Stream, ack_id: str, seconds: int) -> dict[str, list[str]] | None:
    """A modack on the stream; returns the lists of the confirmation, or None when there is none."""
    before = len(stream.responses)
    await stream.send(modify_deadline_ack_ids=[ack_id], modify_deadline_seconds=[seconds])
    response = await _confirmed(stream, modacks_confirmed, before)
    return None if response is None else lists_of(response.modify_ack_deadline_confirmation)


async def _confirmed(stream: Stream, wanted: Any, before: int) -> Any:
    try:
        return await stream.response(wanted, after=before, within=5)
    except Failed:
        return None


def check_listed(seen: dict[str, list[str]] | None, name: str, ack_id: str, what: str) -> None:
    """The id stands in this list and in no other; no confirmation at all is judged elsewhere."""
    lists = {} if seen is None else seen
    where = ", ".join(lists) or "no list"
    check(seen is None or lists == {name: [ack_id]}, f"{what} is confirmed in {where}, not in {name} alone.")
