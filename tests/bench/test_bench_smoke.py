"""The benchmark works: every message it publishes comes back and is acknowledged, on either server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import scenarios
from tests.bench.scenarios import Run, throughput
from tests.bench.settings import Settings
from tests.bench.targets import NullTarget, PubsubdTarget, Target

MESSAGES = 2_000


def target_named(name: str, folder: Path) -> Target:
    return PubsubdTarget(folder) if name == "pubsubd" else NullTarget(prebuilt=name == "prebuilt")


@pytest.mark.parametrize("name", ["pubsubd", "null", "prebuilt"])
async def test_published_messages_are_all_drained_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "QUIET_LOOK_SECONDS", 0.02)  # the counts matter here, not the CPU time
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
