"""The present server and that of an earlier commit at work at the same moment.

By turns, as the other scenarios have it, each finds another machine: beside other programs the CPU time of
the very same work strays by half from one second to the next. At once, whatever happens to the machine
happens to both. Their rates mean little then, since they share the cores; their CPU times compare to a few
hundredths.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.bench.load import Client, gather
from tests.bench.scenarios import Run, Usage, client_of, each_us, no_garbage_collection, publish, until_quiet
from tests.bench.targets import Target

Parties = list[tuple[Target, Client]]


async def at_once(run: Run) -> None:
    """Both take in and then drain the same backlog, `repeats` times."""
    ours = next(target for target in run.targets if target.name == "pubsubd")
    old = next(target for target in run.targets if target.name == run.compare)
    async with AsyncExitStack() as stack:
        parties = [(one, await stack.enter_async_context(client_of(one))) for one in (ours, old)]
        for repeat in range(run.settings.repeats):
            run.say(f"both at once, repeat {repeat + 1} of {run.settings.repeats}")
            for scenario, costs in (await _measure(run, parties)).items():
                for target, cost in zip((ours, old), costs, strict=True):
                    run.results.add(scenario, "server CPU per message, both at once", "µs", target.name, cost)
    for scenario in ("publish", "drain"):
        run.results.add_ratio(
            scenario,
            "server CPU, times the old server's, both at once",
            "server CPU per message, both at once",
            base=run.compare,
        )


async def _measure(run: Run, parties: Parties) -> dict[str, list[float | None]]:
    pairs = [await client.create_pair() for _, client in parties]
    message_ids: list[set[str]] = [set() for _ in parties]

    async def publish_to(number: int) -> None:
        topic, _ = pairs[number]
        message_ids[number] = await publish(run, parties[number][1], topic, run.settings.messages)

    async def drain(number: int) -> None:
        _, subscription = pairs[number]
        _, client = parties[number]
        await client.drain(subscription, message_ids[number], run.settings.drain_options())

    found = {}
    for scenario, work in (("publish", publish_to), ("drain", drain)):
        for target, _ in parties:
            await until_quiet(target)
        with no_garbage_collection():
            usages = [Usage(target) for target, _ in parties]
            await gather(work(number) for number in range(len(parties)))
        for target, _ in parties:
            await until_quiet(target)
        found[scenario] = [each_us(usage.seconds(), run.settings.messages) for usage in usages]
    for (_, client), pair in zip(parties, pairs, strict=True):
        await client.delete_pair(*pair)
    return found
