"""The benchmark works: every message it publishes comes back and is acknowledged, on either server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import filtering, pushing, scenarios
from tests.bench import schemas as schemas_bench
from tests.bench.checkout import CheckoutTarget, git
from tests.bench.comparing import at_once
from tests.bench.filtering import filtering as measure_filters
from tests.bench.ordering import ordering as measure_ordering
from tests.bench.pushing import pushing as measure_pushes
from tests.bench.scenarios import Run, throughput
from tests.bench.seeking import seeking as measure_seeks
from tests.bench.settings import Settings
from tests.bench.targets import NullTarget, PubsubdTarget, Target

MESSAGES = 2_000


def target_named(name: str, folder: Path) -> Target:
    return PubsubdTarget(folder) if name == "pubsubd" else NullTarget(prebuilt=name == "prebuilt")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts matter here, not the CPU time."""
    monkeypatch.setattr(scenarios, "QUIET_LOOK_SECONDS", 0.02)


def measured(run: Run, scenario: str) -> dict[str, list[float]]:
    return {
        key.measure: by_target["pubsubd"]
        for key, by_target in run.results.values.items()
        if key.scenario == scenario
    }


@pytest.mark.parametrize("name", ["pubsubd", "null", "prebuilt"])
async def test_published_messages_are_all_drained_once(name: str, tmp_path: Path) -> None:
    target = target_named(name, tmp_path)
    settings = Settings(messages=MESSAGES, repeats=1, drain_seconds=5)
    run = Run([target], settings, tmp_path, receipt_modack=True)
    try:
        await target.start()
        await throughput(run, ["publish", "drain"])
    finally:
        target.clean_up()

    # A missing message, a foreign one or a refused acknowledgement would have raised.
    for scenario in ("drain", "drain with receipt modacks"):
        assert run.results.get(scenario, "deliveries per message", name) == [1.0]
        assert run.results.get(scenario, "rate", name)[0] > 0
    assert run.results.get("publish", "server CPU per message", name)[0] > 0


async def test_a_filter_s_cost_is_the_difference_to_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "TURN_MESSAGES", 200)
    run = Run([], Settings(filter_messages=200, filter_repeats=1), tmp_path)

    await measure_filters(run)  # raises when a subscription receives what its filter does not let through

    costs = measured(run, "filter")
    (without,), (with_filter,) = (
        costs[f"publish, server CPU per message, {kind}"] for kind in ("no filter", "half match")
    )
    assert costs["added by the filter, half match"] == [with_filter - without]


async def test_a_schema_s_cost_is_compared_with_no_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas_bench, "TURN_MESSAGES", 200)
    run = Run([], Settings(schema_messages=200, schema_repeats=1), tmp_path)

    await schemas_bench.schemas(run)  # raises when a schema refuses an order, or takes what is none

    costs = measured(run, "schema")
    (without,), (with_schema,) = (
        costs[f"publish, server CPU per message, {kind}"] for kind in ("no schema", "Avro in JSON")
    )
    assert costs["Avro in JSON: times that without"] == [with_schema / without]


async def test_backlogs_with_ordering_keys_are_drained_in_order(tmp_path: Path) -> None:
    run = Run([], Settings(ordering_keys=100, held_messages=3_000, ordering_repeats=1), tmp_path)

    await measure_ordering(run)  # raises when a message is missing, comes too early, or passes a held one

    costs = measured(run, "ordered")
    for kind in ("one message a key", "five messages a key", "one key", "beside a held key"):
        assert costs[f"{kind}: rate, times that without keys"][0] > 0
        assert costs[f"{kind}: peak memory"][0] > 0


async def test_every_message_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "DEAD_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(pushing, "DEAD_SECONDS", 0.1)
    run = Run([], Settings(push_messages=200, push_repeats=1), tmp_path)

    await measure_pushes(run)  # raises when the endpoint does not get as many

    costs = measured(run, "push")
    for kind in pushing.KINDS:
        assert costs[f"rate{kind}"][0] > 0
        assert costs[f"server CPU per message{kind}"][0] > 0


async def test_what_each_seek_brings_back_is_drained(tmp_path: Path) -> None:
    run = Run([], Settings(seek_messages=1_000, seek_seconds=0.6, seek_rate=50), tmp_path)

    await measure_seeks(run)  # raises when another message comes than the seek should bring back

    costs = measured(run, "seek")
    for kind in ("a snapshot", "the middle", "the beginning", "now"):
        assert costs[f"answer, to {kind}"][0] > 0
    assert costs["another subscription's p99, beside seeks"][0] > 0


async def test_an_earlier_commit_is_measured_beside_the_present_one(tmp_path: Path) -> None:
    try:
        worktrees = git("worktree", "list")
    except RuntimeError as error:
        pytest.skip(f"an earlier commit is only found in a clone: {error}")
    old = CheckoutTarget("HEAD", tmp_path / "old")
    new = PubsubdTarget(tmp_path / "new")
    run = Run([new, old], Settings(messages=500, repeats=1, drain_seconds=5), tmp_path, compare=old.name)
    try:
        for target in run.targets:
            await target.start()
        await throughput(run, ["publish", "drain"])
        await at_once(run)
    finally:
        for target in run.targets:
            target.clean_up()

    (ratio,) = run.results.get("drain", "rate, times the old server's", "pubsubd")
    rates = [run.results.get("drain", "rate", target.name)[0] for target in (new, old)]
    assert ratio == rates[0] / rates[1]
    assert run.results.get("drain", "server CPU, times the old server's, both at once", "pubsubd")[0] > 0
    assert git("worktree", "list") == worktrees
