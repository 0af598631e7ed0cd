"""What a subscription's filter adds to the cost of publishing."""

from __future__ import annotations

import itertools
import random
from contextlib import AsyncExitStack

from pubsubd.wire import pb
from tests.bench.load import DISTINCT_REQUESTS, Client, DrainOptions
from tests.bench.scenarios import Run, Usage, client_of, each_us, no_garbage_collection, until_quiet
from tests.bench.targets import PubsubdTarget, Target

FILTER = 'attributes.k = "v"'
#: The value of `k` in the messages of each kind, in turn.
VALUES = {"no filter": "vw", "none match": "w", "half match": "vw", "all match": "v"}
#: A filter does not look at the data. With little of it, what SQLite writes now or later blurs less.
DATA_BYTES = 100
TURN_MESSAGES = 2_000
CHECKED_MESSAGES = 200
CHECK_SECONDS_MAX = 10


async def filtering(run: Run) -> None:
    """One subscription without and with a filter: the same messages, and the server's CPU time.

    The cost sought is a tenth of what a busy machine's clock is off by from one second to the next. So
    there is a server for every kind, which all take turns of some hundredths of a second, and whose work
    put off until later is nobody else's.
    """
    repeats = run.settings.filter_repeats
    async with AsyncExitStack() as stack:
        parties = []
        for number in range(len(VALUES)):
            target = PubsubdTarget(run.work_dir / f"filter {number}", run.serve_options)
            stack.callback(target.clean_up)
            await target.start()
            parties.append((target, await stack.enter_async_context(client_of(target))))
        for kind in VALUES:
            await _check(parties[0][1], kind)
        for repeat in range(repeats):
            run.say(f"filter, repeat {repeat + 1} of {repeats}")
            # Processes differ a little by themselves: in each repeat every server has another kind.
            turned = parties[repeat % len(parties) :] + parties[: repeat % len(parties)]
            _add(run, await _publish_costs_us(run, dict(zip(VALUES, turned, strict=True))))


def _add(run: Run, costs: dict[str, float]) -> None:
    for kind in VALUES:
        run.results.add("filter", f"publish, server CPU per message, {kind}", "µs", "pubsubd", costs[kind])
    for kind in VALUES:
        if kind != "no filter":
            added = costs[kind] - costs["no filter"]
            run.results.add("filter", f"added by the filter, {kind}", "µs", "pubsubd", added)


async def _publish_costs_us(run: Run, parties: dict[str, tuple[Target, Client]]) -> dict[str, float]:
    turns = max(1, run.settings.filter_messages // TURN_MESSAGES)
    batch = min(run.settings.publish_batch, TURN_MESSAGES)
    pairs, requests, usages = {}, {}, {}
    for kind, (_, client) in parties.items():
        pairs[kind] = await client.create_pair(filter=_filter_of(kind))
        some = [publish_request(pairs[kind][0], kind, batch) for _ in range(DISTINCT_REQUESTS)]
        requests[kind] = list(itertools.islice(itertools.cycle(some), TURN_MESSAGES // batch))
    for kind, (target, _) in parties.items():
        await until_quiet(target)
        usages[kind] = Usage(target)
    with no_garbage_collection():
        for turn in range(turns):
            for kind in VALUES if turn % 2 == 0 else reversed(VALUES):
                client = parties[kind][1]
                count = len(requests[kind]) * batch
                await client.send(requests[kind], count, run.settings.publish_in_flight)
    costs = {}
    for kind, (target, client) in parties.items():
        await until_quiet(target)
        cost = each_us(usages[kind].seconds(), turns * len(requests[kind]) * batch)
        assert cost is not None  # the servers are ours, so their pids are known
        costs[kind] = cost
        await client.delete_pair(*pairs[kind])
    return costs


async def _check(client: Client, kind: str) -> None:
    """Also the warm-up. A filter that is stored and not obeyed would cost nothing at all."""
    topic, subscription = await client.create_pair(filter=_filter_of(kind))
    # The last message matches always: what came before it and should not have come is seen.
    end = pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage(attributes={"k": "v"})])
    requests = [publish_request(topic, kind, CHECKED_MESSAGES), end.SerializeToString()]
    _, message_ids = await client.send(requests, CHECKED_MESSAGES + 1, in_flight=1)
    values = [*itertools.islice(itertools.cycle(VALUES[kind]), CHECKED_MESSAGES), "v"]
    wanted = {i for i, value in zip(message_ids, values, strict=True) if value == "v" or kind == "no filter"}
    await client.drain(subscription, wanted, DrainOptions(seconds_max=CHECK_SECONDS_MAX))
    await client.delete_pair(topic, subscription)


def publish_request(topic: str, kind: str, count: int) -> bytes:
    values = itertools.islice(itertools.cycle(VALUES[kind]), count)
    messages = [
        pb.PubsubMessage(data=random.randbytes(DATA_BYTES), attributes={"k": value}) for value in values
    ]
    return bytes(pb.PublishRequest(topic=topic, messages=messages).SerializeToString())


def _filter_of(kind: str) -> str:
    return "" if kind == "no filter" else FILTER
