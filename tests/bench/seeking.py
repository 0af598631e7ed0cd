"""How long a Seek over many retained messages takes, and what other subscriptions notice of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

from pubsubd.wire import pb
from tests.bench.load import (
    PROJECT,
    Client,
    Latencies,
    LoadError,
    acknowledge_request,
    batches,
    parse_response,
    read,
)
from tests.bench.scenarios import Run, client_of, no_garbage_collection, percentile, publish, until_quiet
from tests.bench.targets import PubsubdTarget

SNAPSHOT = f"{PROJECT}/snapshots/bench-snapshot"
KINDS = ["a snapshot", "the middle", "the beginning", "now"]
#: One message in so many was unacked, among acked ones, when the snapshot was taken.
LEFT_EVERY = 100
PAUSE_SECONDS = 0.25
#: For so long nothing may come when nothing should.
NOTHING_SECONDS = 0.5


@dataclass
class Retained:
    """A subscription whose acked messages are kept, and what each seek should bring back."""

    subscription: str
    #: Which messages must come again, by what is sought.
    wanted: dict[str, set[str]]
    middle_us: int

    def request(self, kind: str) -> Any:
        if kind == "a snapshot":
            return pb.SeekRequest(subscription=self.subscription, snapshot=SNAPSHOT)
        at_us = {"the beginning": 0, "the middle": self.middle_us, "now": time.time_ns() // 1000}[kind]
        at = pb.Timestamp(seconds=at_us // 1_000_000, nanos=at_us % 1_000_000 * 1000)
        return pb.SeekRequest(subscription=self.subscription, time=at)


async def seeking(run: Run) -> None:
    """Seek and drain what comes again; then seek while the latency of another subscription is measured."""
    target = PubsubdTarget(run.work_dir / "seek", run.serve_options)
    try:
        await target.start()
        async with client_of(target) as client, client_of(target) as other:
            retained = await _fill(run, client)
            for kind in KINDS:
                run.say(f"seek to {kind}, and what comes again")
                await _seek(run, client, retained.request(kind), kind)
                await _check(run, client, retained, kind)
            await until_quiet(target)
            run.say("seek, latency of another subscription")
            with no_garbage_collection():
                _add_latencies(run, "without seeks", await _latency(run, other))
                watched = asyncio.create_task(_latency(run, other))
                await _seek_until_done(run, client, retained, watched)
                _add_latencies(run, "beside seeks", watched.result())
            run.results.add("seek", "peak memory", "MB", "pubsubd", target.peak_memory_mb())
        await target.stop()
    finally:
        target.clean_up()


async def _fill(run: Run, client: Client) -> Retained:
    settings = run.settings
    half = settings.seek_messages // 2
    topic, subscription = await client.create_pair(retain_acked_messages=True)
    run.say(f"seek, publishing and acknowledging {2 * half:,} messages")
    first = await publish(run, client, topic, half)
    left = set(itertools.islice(first, 0, None, LEFT_EVERY))
    options = replace(settings.drain_options(), leave=left)
    drained = await client.drain(subscription, first, options)
    snapshot = pb.CreateSnapshotRequest(name=SNAPSHOT, subscription=subscription)
    began = time.perf_counter()
    await client.call("Subscriber/CreateSnapshot", snapshot)
    run.results.add("seek", "CreateSnapshot's answer", "s", "pubsubd", time.perf_counter() - began)
    for ack_ids in batches(drained.left, settings.ack_batch):
        await client.call("Subscriber/Acknowledge", acknowledge_request(subscription, ack_ids))
    middle_us = time.time_ns() // 1000
    second = await publish(run, client, topic, half)
    await client.drain(subscription, second, settings.drain_options())
    wanted: dict[str, set[str]] = {
        "a snapshot": left | second,
        "the middle": second,
        "the beginning": first | second,
        "now": set(),
    }
    return Retained(subscription, wanted, middle_us)


async def _seek(run: Run, client: Client, request: Any, kind: str) -> None:
    began = time.perf_counter()
    await client.call("Subscriber/Seek", request)
    run.results.add("seek", f"answer, to {kind}", "s", "pubsubd", time.perf_counter() - began)


async def _check(run: Run, client: Client, retained: Retained, kind: str) -> None:
    """What must come again comes, and nothing else. A seek that does nothing would be fast."""
    wanted = retained.wanted[kind]
    if wanted:
        drained = await client.drain(retained.subscription, wanted, run.settings.drain_options())
        rate = len(wanted) / drained.seconds
        run.results.add("seek", f"drain rate after it, to {kind}", "msg/s", "pubsubd", rate)
    async with client.stream(retained.subscription) as stream:
        with contextlib.suppress(TimeoutError):
            ack_ids, _ = parse_response(await asyncio.wait_for(read(stream), NOTHING_SECONDS))
            if ack_ids:
                raise LoadError(f"{len(ack_ids)} messages that a seek to {kind} should not bring back")


async def _latency(run: Run, client: Client) -> Latencies:
    settings = run.settings
    topic, subscription = await client.create_pair()
    latencies = await client.measure_latency(
        topic,
        subscription,
        rate=settings.seek_rate,
        seconds=settings.seek_seconds,
        size=settings.message_bytes,
        ack_interval=settings.ack_interval_ms / 1e3,
    )
    await client.delete_pair(topic, subscription)
    return latencies


async def _seek_until_done(run: Run, client: Client, retained: Retained, watched: asyncio.Task[Any]) -> None:
    for kind in itertools.cycle(KINDS):
        await asyncio.wait([watched], timeout=PAUSE_SECONDS)
        if watched.done():
            return
        await _seek(run, client, retained.request(kind), kind)


def _add_latencies(run: Run, when: str, latencies: Latencies) -> None:
    add = run.results.add
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(latencies.seconds, share) * 1e3
        add("seek", f"another subscription's {name}, {when}", "ms", "pubsubd", value)
    add("seek", f"another subscription's max, {when}", "ms", "pubsubd", latencies.seconds[-1] * 1e3)
    late = percentile(latencies.late, 0.99) * 1e3
    add("seek", f"p99 of sending later than planned, {when}", "ms", "pubsubd", late)
