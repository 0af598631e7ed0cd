"""What the journal costs: `python -m tests.roll.bench`.

Two questions. What does a commit cost with the journal and without it: the whole server, and its engine
alone, where nothing hides what the journal adds? And how fast is what they have written sealed, and how large
is it then? CPU time is what counts: it depends less on what else the machine is doing.
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import grpc

from pubsubd.broker.broker import Broker
from pubsubd.broker.effects import Delivery
from pubsubd.engine.engine import Engine
from pubsubd.model.errors import PubsubError
from pubsubd.storage.store import Store
from pubsubd.wire import pb
from tests.bench.results import align
from tests.bench.targets import process_cpu_seconds
from tests.roll.rolling import roll_process, segment_files
from tests.support.server import ServerProcess
from tests.wire.calls import CHANNEL_OPTIONS, Client

TOPIC = "projects/bench/topics/topic"
COMMITS_RATIO_MAX = 1.3
ROLLED_PER_SECOND_MIN = 1_000_000
BYTES_PER_EVENT_MAX = 22.0

#: A mixture: sizes around this many bytes, and how many messages of a hundred are nacked, or have a key.
SIZE_MEDIAN, SIZE_SPREAD = 300, 1.0
NACKED_PERCENT, KEYED_PERCENT = 3, 40
KEYS = 2_000
#: name: fields
SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"enable_exactly_once_delivery": True},
    "ordered": {"enable_exactly_once_delivery": True, "enable_message_ordering": True},
    "filtered": {"filter": 'attributes.kind = "a"'},
}


class Shell:
    """A consumer that is handed messages and does nothing else."""

    def __init__(self) -> None:
        self.ack_ids: list[str] = []
        self.consumer: Any = None

    def deliver(self, delivery: Delivery) -> None:
        self.ack_ids += [lease.ack_id for lease in delivery.leases]

    def not_delivered(self) -> None:
        pass  # the machine was busy for seconds; the lease runs out

    def close(self, error: PubsubError) -> None:
        raise AssertionError(f"the stream was closed: {error}")

    def properties_changed(self) -> None:
        pass


class Service:
    """An engine, and calls on it as handlers make them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def call(self, command: Any, request: Any, *more: Any) -> Any:
        broker = await self.engine.broker()
        answer = command(broker, request, *more, self.engine.now_us())
        await self.engine.settled()
        return answer

    async def create(self, subscriptions: dict[str, dict[str, Any]]) -> None:
        await self.call(Broker.create_topic, pb.Topic(name=TOPIC))
        for name, fields in subscriptions.items():
            request = pb.Subscription(name=subscription(name), topic=TOPIC, ack_deadline_seconds=60, **fields)
            await self.call(Broker.create_subscription, request, name)

    async def publish(self, *requests: Sequence[Any], client: str) -> None:
        """Requests that share a commit."""
        broker = await self.engine.broker()
        for messages in requests:
            request = pb.PublishRequest(topic=TOPIC, messages=messages)
            caller = broker.caller(client, self.engine.now_us())
            broker.publish(request, request.ByteSize(), caller, self.engine.now_us())
        await self.engine.settled()

    async def open_stream(self, name: str, client: str) -> Shell:
        request = pb.StreamingPullRequest(subscription=subscription(name), stream_ack_deadline_seconds=60)
        broker = await self.engine.broker()
        shell = Shell()
        shell.consumer = broker.open_stream(request, request.ByteSize(), client, self.engine.now_us(), shell)
        return shell

    async def take(self, shell: Shell) -> list[str]:
        """What it can have now."""
        self.engine.set_ready(shell.consumer)
        await self.engine.pumped()
        await self.engine.settled()
        taken, shell.ack_ids = shell.ack_ids, []
        return taken

    async def acknowledge(self, name: str, ack_ids: Sequence[str], client: str) -> None:
        request = pb.AcknowledgeRequest(subscription=subscription(name), ack_ids=ack_ids)
        await self._unary(Broker.acknowledge, request, client)

    async def modify_ack_deadline(self, name: str, ack_ids: Sequence[str], seconds: int, client: str) -> None:
        request = pb.ModifyAckDeadlineRequest(
            subscription=subscription(name), ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        await self._unary(Broker.modify_ack_deadline, request, client)

    async def _unary(self, command: Any, request: Any, client: str) -> None:
        broker = await self.engine.broker()
        caller = broker.caller(client, self.engine.now_us())
        command(broker, request, request.ByteSize(), caller, self.engine.now_us())
        await self.engine.settled()


def subscription(name: str) -> str:
    return f"projects/bench/subscriptions/{name}"


@asynccontextmanager
async def serving(folder: Path, journal: bool) -> AsyncIterator[Service]:
    folder.mkdir()
    store = await Store.open(folder, "process")
    engine = Engine(store, journal, journal_bytes_max=1 << 40)
    try:
        await engine.start("bench")
        yield Service(engine)
        await engine.stop()
    finally:
        await store.close()


# Commits: a group of messages is published, delivered and acknowledged


def server_commits(folder: Path, journal: bool, rounds: int, group: int) -> float:
    """CPU microseconds of a server for each of them, one request and one commit each."""
    messages = [pb.PubsubMessage(data=b"." * 500, attributes={"kind": "a"}) for _ in range(group)]
    options = ["--journal", "on" if journal else "off", "--seal-seconds", "0"]
    with (
        ServerProcess(folder, *options) as server,
        grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel,
    ):
        client = Client(channel)
        client.CreateTopic(name=TOPIC)
        client.CreateSubscription(name=subscription("plain"), topic=TOPIC, **SUBSCRIPTIONS["plain"])
        request = pb.PublishRequest(topic=TOPIC, messages=messages)
        before = 0.0
        for number in range(rounds + 2):
            if number == 2:
                before = process_cpu_seconds(server.pid)
            client.Publish(request)
            pulled = client.Pull(subscription=subscription("plain"), max_messages=group)
            assert len(pulled.received_messages) == group
            ack_ids = [one.ack_id for one in pulled.received_messages]
            client.Acknowledge(subscription=subscription("plain"), ack_ids=ack_ids)
        return (process_cpu_seconds(server.pid) - before) / (3 * rounds) * 1e6


async def engine_commits(folder: Path, journal: bool, rounds: int, group: int) -> float:
    """The same of the engine in this process, deciding and committing."""
    messages = [pb.PubsubMessage(data=b"." * 500, attributes={"kind": "a"}) for _ in range(group)]
    async with serving(folder, journal) as service:
        await service.create({"plain": SUBSCRIPTIONS["plain"]})
        shell = await service.open_stream("plain", "subscriber")
        used = 0.0
        made = 0
        for number in range(rounds + 2):
            before, commits_before = time.process_time(), service.engine.commits
            await service.publish(messages, client="publisher")
            ack_ids = await service.take(shell)
            await service.acknowledge("plain", ack_ids, "subscriber")
            assert len(ack_ids) == group
            if number >= 2:
                used += time.process_time() - before
                made += service.engine.commits - commits_before
        return used / made * 1e6


# A journal as it comes


async def fill(folder: Path, events: int, seed: int) -> int:
    """A database with about so many events, from several clients of each subscription; how many they are.

    Requests are small and come in no order, so hardly two events have the same times and numbers.
    """
    chance = random.Random(seed)
    async with serving(folder, True) as service:
        await service.create(SUBSCRIPTIONS)
        clients = []
        for name in SUBSCRIPTIONS:
            for number in range(3):
                client = f"subscriber-{name}-{number}"
                clients.append(Subscriber(service, name, client, await service.open_stream(name, client)))
        while service.engine.journal_seq < events:
            await service.publish(*published(chance), client=f"publisher-{chance.randrange(4)}")
            for one in chance.sample(clients, 4):
                await one.work(chance)
        return service.engine.journal_seq


class Subscriber:
    def __init__(self, service: Service, name: str, client: str, shell: Shell) -> None:
        self._service = service
        self._name = name
        self._client = client
        self._shell = shell
        self._held: list[str] = []

    async def work(self, chance: random.Random) -> None:
        """Take what there is, and be done with some of what is held."""
        taken = await self._service.take(self._shell)
        if taken and self._name != "filtered":
            # As client libraries do with exactly-once delivery.
            await self._service.modify_ack_deadline(self._name, taken, 60, self._client)
        self._held += taken
        chance.shuffle(self._held)
        count = min(len(self._held), chance.randint(1, 40))
        done, self._held = self._held[:count], self._held[count:]
        nacked = [one for one in done if chance.random() < NACKED_PERCENT / 100]
        if nacked:
            await self._service.modify_ack_deadline(self._name, nacked, 0, self._client)
        if acked := [one for one in done if one not in nacked]:
            await self._service.acknowledge(self._name, acked, self._client)


def published(chance: random.Random) -> Iterator[list[Any]]:
    """Requests that happen to come together; one has no key or one key."""
    for _ in range(chance.randint(1, 5)):
        key = f"key-{chance.randrange(KEYS)}" if chance.random() < KEYED_PERCENT / 100 else ""
        yield [message(chance, key) for _ in range(chance.randint(1, 8))]


def message(chance: random.Random, key: str) -> Any:
    size = int(chance.lognormvariate(0, SIZE_SPREAD) * SIZE_MEDIAN)
    return pb.PubsubMessage(
        data=chance.randbytes(min(size, 20_000)), attributes={"kind": chance.choice("abc")}, ordering_key=key
    )


def rolled(data_dir: Path, journal: Path) -> tuple[int, float]:
    """Events that a process sealed, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = roll_process(data_dir, journal)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.report is not None and ended.report.error is None, ended
    return ended.report.events, sum(
        getattr(after, one) - getattr(before, one) for one in ("ru_utime", "ru_stime")
    )


# The command


@click.command()
@click.option("--events", default=300_000, show_default=True, help="Events of the journal that is sealed.")
@click.option("--repeats", default=5, show_default=True, help="Of which the median is shown.")
@click.option(
    "--rounds", default=60, show_default=True, help="Groups published, delivered and acked each time."
)
@click.option("--group", default=500, show_default=True, help="Messages of a commit.")
@click.option("--seed", default=1, show_default=True)
@click.option("--check", is_flag=True, help="Exit with 1 when a goal is missed.")
def main(events: int, repeats: int, rounds: int, group: int, seed: int, check: bool) -> None:
    """What a commit costs with the journal and without, and what it costs to seal it."""
    all_met = True
    with tempfile.TemporaryDirectory(prefix="pubsubd-bench-") as folder:
        scratch = Path(folder)
        for lines in (
            measure_commits(scratch, repeats, rounds, group),
            measure_rolls(scratch, events, repeats, seed),
        ):
            found = list(lines)
            all_met &= all(met for _, met in found)
            print("\n".join(align([["", "", "goal", "", ""], *[row for row, _ in found]])), flush=True)
    sys.exit(1 if check and not all_met else 0)


Line = tuple[list[str], bool]


def line(what: str, unit: str, value: float, goal: str = "", met: bool = True) -> Line:
    verdict = "" if not goal else "met" if met else "MISSED"
    return [what, unit, goal, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", verdict], met or not goal


def measure_commits(scratch: Path, repeats: int, rounds: int, group: int) -> Iterable[Line]:
    goal = f"≤ {COMMITS_RATIO_MAX:g}"

    def engine_once(*arguments: Any) -> float:
        return asyncio.run(engine_commits(*arguments))

    for what, once, limit in (("server", server_commits, goal), ("engine", engine_once, "")):
        found: dict[bool, list[float]] = {True: [], False: []}
        for repeat in range(repeats):
            # Forwards and backwards: whoever comes first finds another machine than whoever comes after it.
            for journal in (True, False) if repeat % 2 else (False, True):
                folder = scratch / f"{what}-{repeat}-{journal}"
                found[journal].append(once(folder, journal, rounds, group))
        ratio = statistics.median([on / off for on, off in zip(found[True], found[False], strict=True)])
        yield line(
            f"CPU of the {what}, a commit of {group}, journal off", "µs", statistics.median(found[False])
        )
        yield line("the same, journal on", "µs", statistics.median(found[True]))
        yield line("times that without it", "x", ratio, limit, ratio <= COMMITS_RATIO_MAX)


def measure_rolls(scratch: Path, events: int, repeats: int, seed: int) -> Iterable[Line]:
    data_dir = scratch / "rolled"
    count = asyncio.run(fill(data_dir, events, seed))
    seconds: list[float] = []
    starts: list[float] = []
    for repeat in range(repeats):
        journal = scratch / f"journal-{repeat}"
        sealed, taken = rolled(data_dir, journal)
        assert sealed == count
        seconds.append(taken)
        starts.append(rolled(data_dir, journal)[1])  # there is nothing to seal any more
    size = sum(path.stat().st_size for path in segment_files(scratch / "journal-0"))
    start, whole = statistics.median(starts), statistics.median(seconds)
    rate = count / (whole - start)
    yield line("events", "", count)
    yield line("CPU of a roller that has nothing to do", "s", start)
    yield line("CPU of one that seals all of them", "s", whole)
    goal = f"≥ {ROLLED_PER_SECOND_MIN:g}"
    yield line(
        "events per second of a core, beyond the start", "1/s", rate, goal, rate >= ROLLED_PER_SECOND_MIN
    )
    yield line("the same with the start", "1/s", count / whole)
    each = size / count
    yield line("bytes per event", "B", each, f"≤ {BYTES_PER_EVENT_MAX:g}", each <= BYTES_PER_EVENT_MAX)


if __name__ == "__main__":
    main()
