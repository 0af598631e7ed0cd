"""A journal that a real server wrote for real clients: nothing to find, unless the server has a fault."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analytics.end_to_end.load import FaultyServer, Load
from tests.clients.world import World
from tests.support.server import ServerProcess

pytest.importorskip("pyspark", reason="needs the extra pubsubd[analytics]")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def analysed(command: str, journal: Path, out: Path) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "analytics", command, "--journal", str(journal), "--out", str(out)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300)


def summary(out: Path) -> dict[str, dict[str, str]]:
    with (out / "audit_summary.csv").open(newline="") as file:
        return {row["subscription"].rpartition("/")[2]: row for row in csv.DictReader(file)}


def load(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, run: Callable[[Load], None]) -> None:
    with server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        world = World()
        try:
            run(Load(world, server))
        finally:
            world.close()
        assert server.terminate() == 0, server.output


def test_a_server_that_keeps_its_promises_has_nothing_to_fear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(ServerProcess(tmp_path / "data", "--seal-seconds", "5"), monkeypatch, Load.run)

    done = analysed("all", tmp_path / "data" / "journal", tmp_path / "out")

    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(tmp_path / "out")
    assert {row["verdict"] for row in found.values()} == {"ok"}, found
    for name, column in (
        *(("plain", "acks_ok"), ("ordered", "deliveries"), ("hopeless", "dead_lettered")),
        *(("filtered", "filtered"), ("grave", "acks_ok"), ("sought", "deliveries")),
    ):
        assert int(found[name][column]) > 0, (name, column, found[name])
    assert int(found["plain"]["deliveries"]) > int(found["plain"]["messages"]), "some were delivered again"
    assert (tmp_path / "out" / "report.html").stat().st_size > 1_000_000
    assert "ok" in done.stdout
    assert json.loads((tmp_path / "out" / "_RUN.json").read_text())["complete"] is True


@pytest.mark.parametrize(
    ("fault", "code"),
    [("stale-id-accepted", "G3_invalid_accepted"), ("acked-delivered-again", "G1_delivered_after_ack")],
)
def test_a_server_with_a_fault_is_found_out(
    fault: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(FaultyServer(fault, tmp_path / "data"), monkeypatch, Load.run_briefly)

    done = analysed("audit", tmp_path / "data" / "journal", tmp_path / "out")

    assert done.returncode == 1, done.stdout + done.stderr
    assert sum(int(row[code]) for row in summary(tmp_path / "out").values()) > 0, done.stdout
    assert code.partition("_")[0] in done.stdout
