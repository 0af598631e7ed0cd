"""What ordering keys cost a subscription that drains a backlog."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from pubsubd.wire import pb
from tests.bench.load import (
    PROJECT,
    Client,
    Drained,
    DrainOptions,
    LoadError,
    acknowledge_request,
    parse_response,
    publish_request,
    read,
)
from tests.bench.scenarios import Run, Usage, client_of, no_garbage_collection, until_quiet
from tests.bench.targets import PubsubdTarget

#: A request may hold one key only, so a backlog of many keys is published by many small requests.
SMALL_REQUESTS_IN_FLIGHT = 200
#: Messages of each key in the rounds of publishing; a key's rounds lie all other keys apart.
ONE_EACH, FIVE_EACH = [1], [3, 2]
HELD_SECONDS = 600


@dataclass
class Part:
    """Requests that may be on their way together: (messages, ordering key)."""

    requests: Sequence[tuple[int, str]]
    in_flight: int


@dataclass
class Kind:
    """A backlog on a server of its own, so that the peak memory is its own too.

    Publishing it costs far more than draining it. So it is published once, and every repeat drains a
    subscription of its own.
    """

    name: str
    parts: list[Part]
    #: The backlog of as many messages without keys, published by as many requests. None for those.
    base: Kind | None = None
    #: The first message is received and kept while the others of its key wait behind it.
    is_held: bool = False
    target: PubsubdTarget = field(init=False)
    #: message id: ordering key, in the order of publishing.
    keys: dict[str, str] = field(default_factory=dict)

    def subscription(self, repeat: int) -> str:
        return f"{PROJECT}/subscriptions/ordered-{repeat}"


@dataclass
class Cost:
    rate: float
    cpu_us: float
    acks_repeated: float


async def ordering(run: Run) -> None:
    """Backlogs with ordering keys and without, drained by turns."""
    repeats = run.settings.ordering_repeats
    kinds = list(make_kinds(run))
    async with AsyncExitStack() as stack:
        for kind in kinds:
            kind.target = PubsubdTarget(run.work_dir / f"ordered {kind.name}", run.serve_options)
            stack.callback(kind.target.clean_up)
            run.say(f"ordered, publishing: {kind.name}")
            await kind.target.start()
            await _fill(run, kind)
        for repeat in range(repeats):
            costs = {}
            for kind in kinds if repeat % 2 == 0 else reversed(kinds):
                run.say(f"ordered, repeat {repeat + 1} of {repeats}: {kind.name}")
                costs[kind.name] = await _drain(run, kind, repeat)
            for kind in kinds:
                _add(run, kind, costs)
        for kind in kinds:
            peak = kind.target.peak_memory_mb()
            run.results.add("ordered", f"{kind.name}: peak memory", "MB", "pubsubd", peak)


def make_kinds(run: Run) -> Iterator[Kind]:
    count, queued, batch = run.settings.ordering_keys, run.settings.held_messages, run.settings.publish_batch
    for name, rounds in (("one message a key", ONE_EACH), ("five messages a key", FIVE_EACH)):
        base = Kind(f"no keys, as many as {name}", [_round(count, size, "") for size in rounds])
        yield base
        yield Kind(name, [_round(count, size, "key-{}") for size in rounds], base)
    # One request at a time: the order of messages that were on their way together is not known.
    others = Part(_split(count, batch, ""), in_flight=1)
    base = Kind("no keys, batches", [others])
    yield base
    yield Kind("one key", [Part(_split(count, batch, "hot"), in_flight=1)], base)
    held = Part([(1, "held"), *_split(queued, batch, "held")], in_flight=1)
    yield Kind("beside a held key", [held, others], base, is_held=True)


def _round(keys: int, size: int, pattern: str) -> Part:
    """`size` messages of each key, the keys in any order."""
    numbers = random.Random(size).sample(range(keys), keys)
    return Part([(size, pattern.format(f"{number:06}")) for number in numbers], SMALL_REQUESTS_IN_FLIGHT)


def _split(count: int, batch: int, key: str) -> list[tuple[int, str]]:
    return [(min(batch, count - start), key) for start in range(0, count, batch)]


async def _fill(run: Run, kind: Kind) -> None:
    topic = f"{PROJECT}/topics/ordered"
    async with client_of(kind.target) as client:
        await client.create_topic(topic)
        for repeat in range(run.settings.ordering_repeats):
            is_ordered = kind.base is not None
            await client.create_subscription(
                kind.subscription(repeat), topic, enable_message_ordering=is_ordered
            )
        for part in kind.parts:
            sizes_and_keys = part.requests
            requests = (
                publish_request(topic, size, run.settings.message_bytes, ordering_key=key)
                for size, key in sizes_and_keys
            )
            count = sum(size for size, _ in sizes_and_keys)
            _, message_ids = await client.send(requests, count, part.in_flight)
            keys = itertools.chain.from_iterable([key] * size for size, key in sizes_and_keys)
            kind.keys.update(zip(message_ids, keys, strict=True))


async def _drain(run: Run, kind: Kind, repeat: int) -> Cost:
    subscription, options = kind.subscription(repeat), run.settings.drain_options()
    await until_quiet(kind.target)
    async with client_of(kind.target) as client, AsyncExitStack() as stack:
        expected = set(kind.keys)
        if kind.is_held:
            holder = client_of(kind.target)
            ack_id = await _hold(await stack.enter_async_context(holder), stack, kind, subscription)
            expected = {message_id for message_id, key in kind.keys.items() if not key}
        with no_garbage_collection():
            usage = Usage(kind.target)
            drained = await client.drain(subscription, expected, options)
        await until_quiet(kind.target)
        used = usage.seconds()
        check_order(kind, drained)
        if kind.is_held:
            await stack.aclose()
            await client.call("Subscriber/Acknowledge", acknowledge_request(subscription, [ack_id]))
            await _drain_the_held(run, client, kind, subscription, options)
    assert used is not None  # the server is ours, so its pid is known
    count = len(expected)
    return Cost(count / drained.seconds, used / count * 1e6, drained.acks_repeated / count)


async def _hold(client: Client, stack: AsyncExitStack, kind: Kind, subscription: str) -> str:
    """Receives the first message on a stream that takes no second one; returns its ack id."""
    stream = await stack.enter_async_context(client.stream(subscription, max_outstanding_messages=1))
    (ack_id,), message_ids = parse_response(await read(stream))
    if message_ids != [next(iter(kind.keys))]:
        raise LoadError(f"the first message came not first, but {message_ids}")
    extension = pb.ModifyAckDeadlineRequest(
        subscription=subscription, ack_ids=[ack_id], ack_deadline_seconds=HELD_SECONDS
    )
    await client.call("Subscriber/ModifyAckDeadline", extension)
    return ack_id


async def _drain_the_held(
    run: Run, client: Client, kind: Kind, subscription: str, options: DrainOptions
) -> None:
    queued = [message_id for message_id, key in kind.keys.items() if key][1:]
    drained = await client.drain(subscription, set(queued), options)
    check_order(kind, drained)
    rate = len(queued) / drained.seconds
    run.results.add("ordered", "the held key, once it is free: rate", "msg/s", "pubsubd", rate)


def check_order(kind: Kind, drained: Drained) -> None:
    """Raises LoadError where a message came before an earlier one of its key."""
    place = {message_id: number for number, message_id in enumerate(kind.keys)}
    last: dict[str, int] = {}
    for message_id in drained.message_ids:
        if key := kind.keys[message_id]:
            if place[message_id] < last.get(key, -1):
                raise LoadError(f"{kind.name}: message {message_id} of {key} came too late")
            last[key] = place[message_id]


def _add(run: Run, kind: Kind, costs: dict[str, Cost]) -> None:
    cost = costs[kind.name]

    def add(measure: str, unit: str, value: float) -> None:
        run.results.add("ordered", f"{kind.name}: {measure}", unit, "pubsubd", value)

    add("rate", "msg/s", cost.rate)
    if kind.base:
        add("rate, times that without keys", "x", cost.rate / costs[kind.base.name].rate)
    add("server CPU per message", "µs", cost.cpu_us)
    if kind.base:
        add("server CPU, times that without keys", "x", cost.cpu_us / costs[kind.base.name].cpu_us)
        add("acks repeated per message", "", cost.acks_repeated)
