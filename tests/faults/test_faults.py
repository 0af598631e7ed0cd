"""Every planted fault is caught by what the catalogue names, and without a fault nothing is."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.catalogue import FAULTS, Case, Histories
from tests.faults.planting import Patch, PlantingError, patched

_ROOT = Path(__file__).parents[2]
# Histories keep a core busy, cases mostly wait.
_HISTORIES_AT_ONCE = 2
_CASES_AT_ONCE = 6
_SECONDS_MAX = 120

_HISTORIES = {
    name: fault.caught_by for name, fault in FAULTS.items() if isinstance(fault.caught_by, Histories)
}
_CASES = {name: fault.caught_by for name, fault in FAULTS.items() if isinstance(fault.caught_by, Case)}

_IDS = sorted({case.id for case in _CASES.values()})
_SEEDS_MAX = max(histories.seeds for histories in _HISTORIES.values())


def _run(*arguments: str, again: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
        )
    except OSError as error:
        # Seen twice in hundreds of starts out of threads, before the program began: the kernel's EFAULT.
        if error.errno != errno.EFAULT or not again:
            raise
        return _run(*arguments, again=False)


def _simulated(name: str, seeds: int) -> dict[str, Any]:
    done = _run("tests.faults.simulate", name, str(seeds))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _conformed(name: str, ids: str, into: Path) -> dict[str, str]:
    """The outcome of each case."""
    serve = f"{sys.executable} -m tests.faults.serve {name} --"
    options = "--port {port} --data-dir {datadir} --admin {admin_port}"
    file = into / f"{name}.json"
    done = _run("pubsubd", "conform", "--only", ids, "--start-cmd", f"{serve} {options}", "--json", str(file))
    assert file.exists(), done.stdout + done.stderr
    return {case["id"]: case["outcome"] for case in json.loads(file.read_text())["cases"]}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[dict[str, Future[Any]]]:
    """Of what was selected, side by side."""
    into = tmp_path_factory.mktemp("cases")
    items = request.session.items
    wanted = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    wanted |= {item.name for item in items}
    with ThreadPoolExecutor(_HISTORIES_AT_ONCE) as busy, ThreadPoolExecutor(_CASES_AT_ONCE) as waiting:
        found: dict[str, Future[Any]] = {}
        if test_without_a_fault_every_case_passes.__name__ in wanted:
            found["every case"] = waiting.submit(_conformed, "none", ",".join(_IDS), into)
        if test_without_a_fault_no_history_breaks.__name__ in wanted:
            found["every history"] = busy.submit(_simulated, "none", _SEEDS_MAX)
        for name, case in _CASES.items():
            if name in wanted:
                found[name] = waiting.submit(_conformed, name, case.id, into)
        for name, histories in _HISTORIES.items():
            if name in wanted:
                found[name] = busy.submit(_simulated, name, histories.seeds)
        yield found
        for future in found.values():
            future.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("name", _HISTORIES)
def test_a_simulated_history_catches(name: str, results: dict[str, Future[Any]]) -> None:
    found = results[name].result()

    assert found["invariant"] in _HISTORIES[name].invariants.split(), found


@pytest.mark.slow
@pytest.mark.parametrize("name", _CASES)
def test_a_case_catches(name: str, results: dict[str, Future[Any]]) -> None:
    case = _CASES[name]

    assert results[name].result() == {case.id: case.outcome}


@pytest.mark.slow
def test_without_a_fault_no_history_breaks(results: dict[str, Future[Any]]) -> None:
    found = results["every history"].result()

    assert found["invariant"] == "", found


@pytest.mark.slow
def test_without_a_fault_every_case_passes(results: dict[str, Future[Any]]) -> None:
    assert results["every case"].result() == dict.fromkeys(_IDS, "pass")


@pytest.mark.parametrize("name", FAULTS)
def test_the_text_to_be_replaced_is_there(name: str) -> None:
    for patch in FAULTS[name].patches:
        source = (_ROOT / f"{patch.module.replace('.', '/')}.py").read_text()

        compile(patched(source, patch), patch.module, "exec")


def test_enough_faults_are_planted() -> None:
    assert len(FAULTS) >= 25
    assert _HISTORIES and _CASES


def test_every_invariant_is_put_to_the_test() -> None:
    named = {invariant for one in _HISTORIES.values() for invariant in one.invariants.split()}

    assert named >= {f"I{number}" for number in range(1, 11)} | {"liveness"}


@pytest.mark.parametrize(
    ("old", "new", "count"), [("three", "four", 1), ("one", "1", 1), ("two", "two", 1), ("one", "1", 3)]
)
def test_a_patch_that_does_not_fit_is_an_error(old: str, new: str, count: int) -> None:
    with pytest.raises(PlantingError):
        patched("one two one", Patch("module", old, new, count))


def test_a_module_that_is_imported_already_cannot_be_planted() -> None:
    script = (
        "import pubsubd.flow.window\n"
        "from tests.faults.planting import Patch, plant\n"
        "plant([Patch('pubsubd.flow.window', 'maxsize', 'sys.maxsize')])"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=_ROOT, capture_output=True, text=True)

    assert "imported already" in done.stderr


def test_what_is_planted_runs() -> None:
    script = (
        "from tests.faults.planting import Patch, plant\n"
        "patch = Patch('pubsubd.flow.window', 'self.max_bytes - self.outstanding_bytes', '17')\n"
        "plant([patch])\n"
        "from pubsubd.flow.window import Window\n"
        "print(Window().room_bytes())"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=_ROOT, capture_output=True, text=True)

    assert done.stdout == "17\n", done.stderr
