"""What is measured. Each scenario takes the run, lets its servers take turns, and adds to the results."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pubsubd.wire import pb
from tests.bench.load import PROJECT, Client, DrainOptions, LoadError, gather, read
from tests.bench.results import Results
from tests.bench.settings import Settings
from tests.bench.targets import PubsubdTarget, Target

MODACK_DRAIN = "drain with receipt modacks"

WARM_UP_MESSAGES = 2_000
WARM_UP_SECONDS = 1.0
#: A server is quiet again when it uses less than this share of a core.
QUIET_SHARE = 0.08
QUIET_LOOK_SECONDS = 0.25
QUIET_SECONDS_MAX = 5.0
SUBSCRIPTIONS_PER_TOPIC = 100
CALLS_AT_ONCE = 16


@dataclass
class Run:
    targets: list[Target]
    settings: Settings
    work_dir: Path
    serve_options: list[str] = field(default_factory=list)
    receipt_modack: bool = False
    #: The name of the target that the others are compared with: the server of an earlier commit.
    compare: str = ""
    results: Results = field(default_factory=Results)
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)


class Usage:
    """The CPU time a server, and beside it the load generator, uses from now on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.since = target.cpu_seconds()
        self.own_since = time.process_time()

    def seconds(self) -> float | None:
        now = self.target.cpu_seconds()
        return None if now is None or self.since is None else now - self.since

    def own_seconds(self) -> float:
        return time.process_time() - self.own_since


async def until_quiet(target: Target) -> None:
    """Lets the server finish what it has put off."""
    give_up = time.monotonic() + QUIET_SECONDS_MAX
    while time.monotonic() < give_up:
        usage = Usage(target)
        await asyncio.sleep(QUIET_LOOK_SECONDS)
        used = usage.seconds()
        if used is None or used < QUIET_SHARE * QUIET_LOOK_SECONDS:
            return


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """The load generator holds many strings and makes few cycles; a collection would only add noise."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def client_of(target: Target) -> AsyncIterator[Client]:
    client = Client(target.address)
    try:
        yield client
    finally:
        await client.close()


# Start


async def start(run: Run) -> None:
    for _ in range(run.settings.start_repeats):
        for target in run.targets:
            if target.is_ours_to_start:
                seconds = await target.start()
                run.results.add("start", "exec to first answer", "s", target.name, seconds)
                run.results.add("start", "peak memory, empty", "MB", target.name, target.peak_memory_mb())
                await target.stop()


# Publish and drain


async def throughput(run: Run, names: Collection[str]) -> None:
    """Publish a backlog and drain it, or only one of them, as `names` says."""
    warm_up = replace(run, results=Results(), settings=replace(run.settings))
    warm_up.settings.messages = min(WARM_UP_MESSAGES, run.settings.messages)
    warm_up.settings.slow_messages = warm_up.settings.messages // 2
    for target in run.targets:
        await _throughput_once(warm_up, target, names)
    for repeat in range(run.settings.repeats):
        # Forwards and backwards: whoever comes first finds another machine than whoever comes after it.
        for target in run.targets if repeat % 2 == 0 else reversed(run.targets):
            run.say(f"publish and drain, repeat {repeat + 1} of {run.settings.repeats}: {target.name}")
            await _throughput_once(run, target, names)
    for scenario in ("drain", MODACK_DRAIN):
        run.results.add_ratio(
            scenario, "server CPU, times the null server's", "server CPU per message", base="null"
        )
        run.results.add_ratio(scenario, "rate, times the emulator's", "rate", base="emulator")
    if run.compare:
        for scenario in ("publish", "drain", MODACK_DRAIN):
            run.results.add_ratio(scenario, "rate, times the old server's", "rate", base=run.compare)
            run.results.add_ratio(
                scenario, "server CPU, times the old server's", "server CPU per message", base=run.compare
            )


async def _throughput_once(run: Run, target: Target, names: Collection[str]) -> None:
    count = run.settings.messages
    drain_count = run.settings.slow_messages if target.is_slow else count
    variants = [("drain", run.settings.drain_options())] if "drain" in names else []
    if variants and run.receipt_modack:
        variants.append((MODACK_DRAIN, run.settings.drain_options(receipt_modack=True)))
    async with client_of(target) as client:
        topic, subscription = await client.create_pair()
        message_ids: set[str] = set()
        if "publish" in names:
            message_ids = await _measure_publish(run, target, client, topic, count)
        for scenario, options in variants:
            # What the publishing left behind is drained when it is as much as should be drained.
            if len(message_ids) != drain_count:
                await client.delete_pair(topic, subscription)
                topic, subscription = await client.create_pair()
                message_ids = await publish(run, client, topic, drain_count)
            await _measure_drain(run, target, client, scenario, subscription, message_ids, options)
            message_ids = set()
        await client.delete_pair(topic, subscription)
        await until_quiet(target)


async def publish(run: Run, client: Client, topic: str, count: int) -> set[str]:
    settings = run.settings
    published = await client.publish(
        topic, count, settings.message_bytes, settings.publish_batch, settings.publish_in_flight
    )
    return published.message_ids


async def _measure_publish(run: Run, target: Target, client: Client, topic: str, count: int) -> set[str]:
    settings = run.settings
    await until_quiet(target)
    with no_garbage_collection():
        usage = Usage(target)
        published = await client.publish(
            topic, count, settings.message_bytes, settings.publish_batch, settings.publish_in_flight
        )
        own = usage.own_seconds()
    add = run.results.add
    add("publish", "rate", "msg/s", target.name, count / published.seconds)
    await until_quiet(target)
    add("publish", "server CPU per message", "µs", target.name, each_us(usage.seconds(), count))
    add("publish", "load generator CPU per message", "µs", target.name, each_us(own, count))
    return published.message_ids


async def _measure_drain(
    run: Run,
    target: Target,
    client: Client,
    scenario: str,
    subscription: str,
    message_ids: set[str],
    options: DrainOptions,
) -> None:
    # The null server uses this call to make its responses ready; to the others it is one RPC more.
    await client.call("Subscriber/GetSubscription", pb.GetSubscriptionRequest(subscription=subscription))
    await until_quiet(target)
    count = len(message_ids)
    with no_garbage_collection():
        usage = Usage(target)
        drained = await client.drain(subscription, message_ids, options)
        used, own = usage.seconds(), usage.own_seconds()
    add = run.results.add
    add(scenario, "rate", "msg/s", target.name, count / drained.seconds)
    await until_quiet(target)
    total = usage.seconds()
    add(scenario, "server CPU per message", "µs", target.name, each_us(total, count))
    if total is not None and used is not None:
        add(scenario, "of it after the last answer", "µs", target.name, each_us(total - used, count))
    add(scenario, "load generator CPU per message", "µs", target.name, each_us(own, count))
    add(scenario, "deliveries per message", "", target.name, drained.deliveries / count)


def each_us(seconds: float | None, count: int) -> float | None:
    return None if seconds is None else seconds / count * 1e6


# Latency


async def latency(run: Run) -> None:
    settings = run.settings
    for target in run.targets:
        run.say(f"latency, {settings.latency_seconds:g} s: {target.name}")
        warm_up = replace(run, results=Results())
        await _measure_latency(warm_up, target, WARM_UP_SECONDS)
        await _measure_latency(run, target, settings.latency_seconds)


async def _measure_latency(run: Run, target: Target, seconds: float) -> None:
    settings = run.settings
    async with client_of(target) as client:
        # A subscription of its own each time: the official emulator goes on delivering to a stream that was
        # cancelled, so what comes after it on the same subscription may be late by a lease.
        topic, subscription = await client.create_pair()
        await until_quiet(target)
        with no_garbage_collection():
            usage = Usage(target)
            measured = await client.measure_latency(
                topic,
                subscription,
                rate=settings.latency_rate,
                seconds=seconds,
                size=settings.message_bytes,
                ack_interval=settings.ack_interval_ms / 1e3,
            )
            used = usage.seconds()
        await client.delete_pair(topic, subscription)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        run.results.add("latency", name, "ms", target.name, percentile(measured.seconds, share) * 1e3)
    run.results.add("latency", "max", "ms", target.name, measured.seconds[-1] * 1e3)
    count = len(measured.seconds)
    run.results.add("latency", "server CPU per message", "µs", target.name, each_us(used, count))
    late = percentile(measured.late, 0.99) * 1e3
    run.results.add("latency", "p99 of sending later than planned", "ms", target.name, late)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# Backlog


async def backlog(run: Run) -> None:
    """A large backlog against a small one, each on a new data directory, drained after a restart."""
    small, large = run.settings.backlog_small, run.settings.backlog
    small_rates = []
    for _ in range(run.settings.backlog_repeats):
        small_rates.append((await _backlog_once(run, small, "small"))[0])
    rate, mark_rate = await _backlog_once(run, large, "large")
    small_rate = statistics.median(small_rates)
    add = run.results.add
    add("backlog", "drain rate, times that of the small backlog", "x", "pubsubd", rate / small_rate)
    add("backlog", "the same, for as many messages only", "x", "pubsubd", mark_rate / small_rate)


async def _backlog_once(run: Run, count: int, which: str) -> tuple[float, float]:
    """Returns the drain's rate, and that of its first messages: as many as the small backlog has."""
    run.say(f"backlog, {count:,} messages")
    target = PubsubdTarget(run.work_dir / "backlog", run.serve_options)
    add = run.results.add
    mark = run.settings.backlog_small
    try:
        await target.start()
        async with client_of(target) as client:
            topic, subscription = await client.create_pair()
            message_ids = await publish(run, client, topic, count)
        filling_mb = target.peak_memory_mb() or 0.0
        await target.stop()
        seconds = await target.start()
        add("backlog", f"start on the {which} backlog", "s", "pubsubd", seconds)
        with no_garbage_collection():
            async with client_of(target) as client:
                usage = Usage(target)
                drained = await client.drain(subscription, message_ids, run.settings.drain_options(mark=mark))
        add("backlog", f"drain rate, {which} backlog", "msg/s", "pubsubd", count / drained.seconds)
        if which == "large":
            await until_quiet(target)
            draining_mb = target.peak_memory_mb() or 0.0
            add("backlog", "server CPU per message", "µs", "pubsubd", each_us(usage.seconds(), count))
            add("backlog", "peak memory", "MB", "pubsubd", max(filling_mb, draining_mb))
            add("backlog", "peak memory while it is published", "MB", "pubsubd", filling_mb)
            add("backlog", "peak memory after the restart", "MB", "pubsubd", draining_mb)
        await target.stop()
    finally:
        target.clean_up()
    return count / drained.seconds, mark / drained.mark_seconds


# Idle


async def idle(run: Run) -> None:
    """All servers at once: they have nothing to do, so they do not disturb one another."""
    settings = run.settings
    sizes = f"{settings.streams} streams, {settings.subscriptions} subscriptions"
    async with AsyncExitStack() as stack:
        parties = []
        for target in run.targets:
            if target.pid is not None:
                run.say(f"idle, {sizes}: {target.name}")
                parties.append(await stack.enter_async_context(idle_party(target, settings)))
        for party in parties:
            await until_quiet(party.target)
        await _watch_idle(run, parties, "share of a core", settings.idle_seconds, pinging=False)
        name = "share of a core, clients pinging"
        await _watch_idle(run, parties, name, settings.idle_seconds, pinging=True)
        for party in parties:
            run.results.add("idle", "peak memory", "MB", party.target.name, party.target.peak_memory_mb())


async def _watch_idle(
    run: Run, parties: list[IdleParty], measure: str, seconds: float, *, pinging: bool
) -> None:
    run.say(f"idle, watching for {seconds:g} s, {'with' if pinging else 'without'} pings")
    usages = [Usage(party.target) for party in parties]
    answers = [party.answers for party in parties]
    began = time.monotonic()
    pings = [party.ping(seconds, run.settings.ping_seconds) for party in parties] if pinging else []
    await gather([asyncio.sleep(seconds), *pings])
    watched = time.monotonic() - began
    for party, usage, before in zip(parties, usages, answers, strict=True):
        used = usage.seconds()
        if used is not None:
            run.results.add("idle", measure, "%", party.target.name, used / watched * 100)
        if pinging:
            share = (party.answers - before) / max(1, party.pings)
            run.results.add("idle", "responses per ping", "", party.target.name, share)


class IdleParty:
    """The idle clients of one server: streams that are open, and what comes back on them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.streams: list[Any] = []
        self.pings = 0
        self.answers = 0

    async def count_answers(self, stream: Any) -> None:
        while True:
            await read(stream)
            self.answers += 1

    async def ping(self, seconds: float, period: float) -> None:
        """Spreads the pings over the period, as clients that started at different times do."""
        empty = pb.StreamingPullRequest().SerializeToString()
        pause = period / len(self.streams)
        began = time.monotonic()
        for number in range(int(seconds / pause)):
            await asyncio.sleep(max(0.0, began + number * pause - time.monotonic()))
            await self.streams[number % len(self.streams)].write(empty)
            self.pings += 1


@asynccontextmanager
async def idle_party(target: Target, settings: Settings) -> AsyncIterator[IdleParty]:
    party = IdleParty(target)
    async with client_of(target) as client, AsyncExitStack() as stack:
        topics, subscriptions = await _create_many(client, settings.subscriptions)
        readers = []
        for number in range(settings.streams):
            # Every client has its own connection, as every process would.
            own = await stack.enter_async_context(client_of(target))
            subscription = subscriptions[number % len(subscriptions)]
            stream = await stack.enter_async_context(own.stream(subscription, protocol_version=1))
            party.streams.append(stream)
            readers.append(asyncio.create_task(party.count_answers(stream)))
        try:
            yield party
            if failed := [each for each in readers if each.done()]:
                raise LoadError(f"{len(failed)} idle streams ended: {failed[0].exception()}")
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        await _delete_many(client, topics, subscriptions)


async def _create_many(client: Client, count: int) -> tuple[list[str], list[str]]:
    topics = [f"{PROJECT}/topics/idle-{n}" for n in range(-(-count // SUBSCRIPTIONS_PER_TOPIC))]
    subscriptions = [f"{PROJECT}/subscriptions/idle-{n}" for n in range(count)]
    for topic in topics:
        await client.create_topic(topic)
    plan = enumerate(subscriptions)

    async def worker() -> None:
        for number, name in plan:
            await client.create_subscription(name, topics[number // SUBSCRIPTIONS_PER_TOPIC])

    await gather(worker() for _ in range(CALLS_AT_ONCE))
    return topics, subscriptions


async def _delete_many(client: Client, topics: list[str], subscriptions: list[str]) -> None:
    plan = iter(subscriptions)

    async def worker() -> None:
        for name in plan:
            await client.delete_subscription(name)

    await gather(worker() for _ in range(CALLS_AT_ONCE))
    for topic in topics:
        await client.delete_topic(topic)
