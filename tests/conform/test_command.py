"""The command as a user meets it: what is asked wrongly, what is run, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from pubsubd.conform import command
from pubsubd.conform.case import Differs, Failed, Hook, NotRun
from pubsubd.conform.command import Stop, conform, select
from pubsubd.conform.served import free_port
from tests.conform.support import START_COMMAND, Cases


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Cases:
    """Cases that stand in for those of the checklist."""
    cases = Cases()
    monkeypatch.setattr(command, "REGISTRY", cases.registry)
    return cases


@pytest.fixture
def outcomes(cases: Cases) -> Cases:
    """Cases that come to each outcome in turn."""

    @cases("CT-90")
    async def passes(lab):
        return "Seen."

    @cases("CT-91")
    async def fails(lab):
        raise Failed("Seen instead.")

    @cases("CE-90")
    async def errs(lab):
        raise RuntimeError("broken")

    @cases("CE-91")
    async def differs(lab):
        raise Differs("Another way.")

    @cases("CO-90", needs=[Hook.RESTART])
    async def needs_a_hook(lab):
        return "Never said."

    return cases


def call(*arguments: str):
    """Runs the command in this process; `exit_code` is what it returned or the code of its refusal."""
    done = CliRunner().invoke(conform, [str(each) for each in arguments], standalone_mode=False)
    if done.exception is not None:
        done.exit_code = getattr(done.exception, "exit_code", done.exit_code)
        done.said = getattr(done.exception, "format_message", lambda: repr(done.exception))()
    else:
        done.exit_code = done.return_value
    return done


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give HOST:PORT, or --start-cmd"),
        (["localhost"], "has no port"),
        (["localhost:99999"], "is not HOST:PORT"),
        (["a:1", "b:2"], "one endpoint at a time"),
        (["localhost:1", "--only", "XX"], "'XX' is neither a group"),
        (["localhost:1", "--only", "CT-99"], "'CT-99' is neither a group"),
        (["--start-cmd", "serve"], "has no {port}"),
        (["--start-cmd", "serve 'unclosed {port}"], "the start command cannot be read: no closing quotation"),
        (["localhost:1", "--only", ","], "',' names no case"),
        (["localhost:1", "--project", ""], "'' is not a project id"),
        (["localhost:1", "--project", "a b"], "'a b' is not a project id"),
        (["localhost:1", "--ca-cert", __file__], "holds no certificate in PEM form"),
        (["localhost:1", "--json", "/no/such/dir/file"], "no such directory"),
        (["localhost:1", "--no-tls", "--adc"], "--adc and --no-tls contradict each other"),
        (["pubsub.googleapis.com", "--no-adc"], "--project"),
        (["--card"], "--card needs JSON files"),
        (["--card", "/no/such/file.json"], "cannot be read"),
    ],
)
def test_wrong_usage_is_refused_with_code_2_and_a_sentence(outcomes, arguments, says):
    done = call(*arguments)

    assert done.exit_code == 2
    assert says in done.said


def test_nobody_at_the_endpoint_is_code_1_and_a_sentence(outcomes, monkeypatch):
    monkeypatch.setattr(command, "ANSWER_SECONDS_MAX", 0.3)
    done = call(f"127.0.0.1:{free_port()}")

    assert done.exit_code == 1
    assert done.said.startswith("no gRPC answer from 127.0.0.1:")


@pytest.mark.parametrize(
    ("only", "code"),
    [
        ("CT-90", 0),
        ("CT-91", 1),
        ("CE-90", 1),
        ("CE-91", 0),
        ("CO", 0),
        ("CT-90,CE-91,CO", 0),
        ("CT", 1),
        ("", 1),
    ],
)
def test_the_exit_code_is_0_only_if_nothing_failed_or_erred(outcomes, server, only, code):
    assert call(server.address, "--only", only).exit_code == code


def test_files_are_written_and_the_table_printed(outcomes, server, tmp_path):
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "junit", "markdown")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]

    done = call(server.address, "--name", "ours", *options)

    found = json.loads(files["json"].read_text())
    assert {case["id"]: case["outcome"] for case in found["cases"]} == {
        "CT-90": "pass",
        "CT-91": "fail",
        "CE-90": "error",
        "CE-91": "differs",
        "CO-90": "not run",
    }
    assert found["endpoint"] == server.address and found["name"] == "ours"
    assert files["junit"].read_text().count("<testcase ") == 5
    assert files["markdown"].read_text().startswith("| | cases | ours |")
    assert "Seen instead." in done.output
    assert f"5 cases, about 5 s, against {server.address}" in done.output
    assert "1 of 5 cases passed, 1 failed, 1 erred, 1 differs, 1 not run." in done.output


def test_reports_are_put_side_by_side(outcomes, server, tmp_path):
    for name in ("ours", "theirs"):
        call(server.address, "--name", name, "--json", str(tmp_path / f"{name}.json"))

    done = call("--card", str(tmp_path / "ours.json"), str(tmp_path / "theirs.json"))

    assert done.exit_code == 0
    assert done.output.startswith("| | cases | ours | theirs |\n")


def test_the_list_names_cases_and_runs_nothing(outcomes):
    done = call("--list", "--only", "CO,CT-91")

    assert done.exit_code == 0
    assert "CT-91" in done.output and "Promise of CO-90." in done.output
    assert "needs a server that may be killed" in done.output
    assert "CT-90" not in done.output
    assert "2 cases" in done.output


def test_cases_are_in_the_order_of_the_checklist(cases):
    for case_id in ("CD-01", "CT-10", "CS-02", "CE-01", "CT-02"):

        @cases(case_id)
        async def body(lab):
            return ""

    assert [case.id for case in select("")] == ["CT-02", "CT-10", "CS-02", "CE-01", "CD-01"]


def test_a_server_is_started_when_no_endpoint_is_given(cases, tmp_path):
    @cases("CT-90", needs=[Hook.RESTART])
    async def body(lab):
        sub = await lab.subscription()
        await sub.publish()
        async with lab.own_server() as own:
            if own.endpoint == lab.endpoint:
                raise NotRun("One server for both.")
        return "Seen."

    assert call("--start-cmd", START_COMMAND).exit_code == 0


def test_a_server_that_does_not_start_is_code_1(outcomes):
    done = call("--start-cmd", "sh -c 'echo no disk; exit 3' {port}")

    assert done.exit_code == 1
    assert "ended with 3; it printed: no disk" in done.said


# --- as a process -------------------------------------------------------------------------------------------


def pubsubd(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "pubsubd", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_help_of_pubsubd_mentions_it_and_pays_nothing_for_it():
    code = (
        "import sys; from pubsubd.cli import main\n"
        "try: main(['--help'])\n"
        "finally: assert not {'grpc', 'rich', 'junitparser', 'pubsubd.conform'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "pubsubd conform" in done.stdout


def test_wrong_usage_ends_the_process_with_2_and_one_line():
    process = pubsubd("conform", "localhost")
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (2, "")
    assert err == "pubsubd: 'localhost' has no port.\n"


def test_files_are_written_though_nobody_reads_what_is_printed(server, tmp_path):
    report = tmp_path / "report.json"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as closed:
        done = subprocess.run(
            [sys.executable, "-m", "pubsubd", "conform", server.address, "--only", "CT-26", "--json", report],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )

    assert "Traceback" not in done.stderr
    assert json.loads(report.read_text())["counts"]["pass"] == 1


async def test_the_first_signal_ends_a_run_in_order_and_the_next_at_once():
    calls = []

    class Running:
        def abandon(self):
            calls.append("abandon")

    running = asyncio.create_task(asyncio.sleep(60))
    err = Console(file=StringIO())
    stop = Stop(running, err)
    stop.runner = Running()

    stop()
    assert calls == [] and running.cancelling() == 1
    assert "Stopping: what the cases made is removed" in err.file.getvalue()
    stop()
    assert calls == ["abandon"]
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_no_server_and_no_resources(server, tmp_path, number):
    """One case on the endpoint and one on a server of its own, both in the middle of a long wait."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from pubsubd.conform import command\n"
        "from tests.conform.test_command import long_cases\n"
        "from pubsubd.cli import main\n"
        "command.REGISTRY = long_cases()\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    project, report = f"ended-{number.name.lower()}", tmp_path / "report.json"
    hooks = ["--start-cmd", START_COMMAND]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        [sys.executable, script, "conform", server.address, "--project", project, *hooks, "--json", report],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        wait_for(lambda: len(asyncio.run(names_in(server, project))) == 2)
        wait_for(lambda: list(tmp_path.glob("pubsubd-conform-*/data/*")) != [])
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()

    assert process.returncode == 130
    assert "Stopped; what the cases had made is removed." in err and "Traceback" not in err
    found = json.loads(report.read_text())
    assert {case["id"]: case["outcome"] for case in found["cases"]} == {
        "CT-90": "not run",
        "CT-91": "pass",
        "CE-90": "not run",
    }
    assert asyncio.run(names_in(server, project)) == []
    assert list(tmp_path.glob("pubsubd-conform-*")) == []


def long_cases():
    cases = Cases()

    @cases("CT-90", seconds=100)
    async def on_the_endpoint(lab):
        await lab.subscription()
        await asyncio.sleep(100)

    @cases("CT-91")
    async def at_once(lab):
        return "Seen."

    @cases("CE-90", seconds=100, needs=[Hook.RESTART])
    async def on_its_own(lab):
        async with lab.own_server() as own:
            await own.subscription()
            await asyncio.sleep(100)

    return cases.registry


async def names_in(server, project: str) -> list[str]:
    from pubsubd.conform.endpoint import Endpoint
    from pubsubd.conform.lab import Lab, Setting

    async with Lab(Setting(Endpoint(server.address))) as lab:
        topics = (await lab.client.ListTopics(project=f"projects/{project}")).topics
        subscriptions = (await lab.client.ListSubscriptions(project=f"projects/{project}")).subscriptions
    return [found.name for found in [*topics, *subscriptions]]


def wait_for(condition, within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
