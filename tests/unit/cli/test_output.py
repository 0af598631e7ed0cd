"""What the command prints: help, version, banner, farewell, and why it could not start."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from pubsubd import __version__, cli
from pubsubd.settings import Settings, Started, StartupError
from tests.support import server as support

ROOT = Path(__file__).parents[3]
BOTH = ("127.0.0.1", "::1")


class Left(BaseException):
    def __init__(self, status: int) -> None:
        self.status = status


@pytest.fixture
def serve_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`serve_with(run)` runs the command with `run` in the server's place; returns the exit status."""

    def serve(run) -> int:
        stand_in = ModuleType("pubsubd.server.run")
        stand_in.run = run
        monkeypatch.setitem(sys.modules, "pubsubd.server.run", stand_in)
        # A server that has served ends its process on the spot; here that is an exception nobody catches.
        monkeypatch.setattr(cli, "_leave", leave)
        try:
            return cli.main(["--data-dir", str(tmp_path)])
        except Left as left:
            return left.status

    def leave(status: int) -> None:
        raise Left(status)

    return serve


# --- help and version --------------------------------------------------------------------------------------


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert f"pubsubd {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["serve", "--help"]])
def test_help_explains_every_option_and_names_its_variable(capsys, arguments):
    assert cli.main(arguments) == 0

    text = " ".join(capsys.readouterr().out.split())
    for option in cli.serve.params:
        if isinstance(option, cli.Option):
            assert option.help, option.name
            assert option.opts[0] in text
            assert f"PUBSUBD_{option.name.upper()}" in text


def test_help_explains_every_ack_batch_policy():
    (option,) = (option for option in cli.serve.params if option.name == "ack_batch_policy")

    for policy in option.type.choices:
        assert f"\n{policy} " in cli.EPILOG


def test_help_and_version_do_not_import_the_server():
    # The import of gRPC alone takes longer than everything else that these two do.
    code = "import sys; from pubsubd.cli import main; main(['--help']); print('grpc' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.endswith("False\n")


# --- the banner --------------------------------------------------------------------------------------------


def test_the_banner_says_where_the_data_lies_and_how_durable_it_is():
    settings = Settings(hosts=BOTH, data_dir=Path("/data"))

    assert [
        f"pubsubd {__version__}",
        "  data       /data (durability: process: survives a killed process)",
        "  journal    on",
        "",
        "  export PUBSUB_EMULATOR_HOST=localhost:8085",
        "",
        "ready; Ctrl-C stops it",
    ] == cli.banner(settings, Started(port=8085, hosts=BOTH)).splitlines()


def test_the_banner_of_a_server_that_keeps_nothing_says_so():
    lines = cli.banner(Settings(hosts=BOTH, data_dir=None), Started(port=8085, hosts=BOTH))

    assert "in memory, gone at exit" in lines
    assert "durability" not in lines


def test_the_banner_names_the_project_and_the_admin_port_when_given():
    settings = Settings(hosts=BOTH, project="orders", journal=False)

    lines = cli.banner(settings, Started(port=1, hosts=BOTH, admin_port=9001)).splitlines()

    assert "  journal    off" in lines
    assert "  admin      127.0.0.1:9001" in lines
    assert "  export PUBSUB_PROJECT_ID=orders" in lines
    assert lines[-1].startswith("ready")


def test_programs_that_start_a_server_can_read_its_ports_from_the_banner():
    text = cli.banner(Settings(hosts=BOTH), Started(port=40123, hosts=("127.0.0.1",), admin_port=40124))

    def found(pattern):
        return [match.group(1) for line in text.splitlines() if (match := pattern.search(line))]

    assert found(support._HOST_LINE) == ["40123"]
    assert found(support._ADMIN_LINE) == ["40124"]


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (BOTH, "localhost:9000"),
        (("0.0.0.0",), "localhost:9000"),
        (("::",), "localhost:9000"),
        (("127.0.0.1",), "127.0.0.1:9000"),
        (("::1",), "[::1]:9000"),
        (("emulator.internal",), "emulator.internal:9000"),
    ],
)
def test_the_address_to_dial_is_one_that_the_server_listens_on(hosts, address):
    assert address == cli.dial(hosts, 9000)


# --- running -----------------------------------------------------------------------------------------------


def test_banner_and_farewell_go_to_stdout(serve_with, capsys):
    async def run(settings, announce):
        announce(Started(port=8085, hosts=BOTH))
        return "stopped; nothing is left"

    assert serve_with(run) == 0

    output = capsys.readouterr()
    assert output.out.endswith("ready; Ctrl-C stops it\nstopped; nothing is left\n")
    assert output.err == ""


def test_a_server_that_cannot_start_says_why_in_one_line(serve_with, capsys):
    async def run(settings, announce):
        raise StartupError("port 8085 is taken")

    assert serve_with(run) == 1
    assert capsys.readouterr() == ("", "pubsubd: port 8085 is taken\n")


def test_a_system_error_before_the_start_is_no_traceback(serve_with, capsys):
    async def run(settings, announce):
        raise PermissionError(13, "Permission denied", "/data")

    assert serve_with(run) == 1
    assert capsys.readouterr() == ("", "pubsubd: cannot start: [Errno 13] Permission denied: '/data'\n")


def test_an_error_after_the_start_is_our_mistake_and_is_not_hidden(serve_with, capsys):
    async def run(settings, announce):
        announce(Started(port=8085, hosts=BOTH))
        raise PermissionError(13, "Permission denied")

    assert serve_with(run) == 1
    assert "bug in pubsubd" in capsys.readouterr().err


def test_an_interrupt_during_the_start_is_no_traceback(serve_with, capsys):
    async def run(settings, announce):
        raise KeyboardInterrupt

    assert serve_with(run) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_has_gone_does_not_stop_the_server():
    code = "from pubsubd import cli; cli._say('into a pipe that nobody reads'); cli._say('again')"
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)

    assert (process.returncode, process.stderr) == (0, "")


# --- from the outside --------------------------------------------------------------------------------------


def pubsubd(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pubsubd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_a_wrong_option_ends_the_process_with_status_2_and_one_sentence():
    process = pubsubd("--prot", "0")

    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("pubsubd: No such option")
    assert len(process.stderr.splitlines()) == 1


def test_help_ends_the_process_with_status_0():
    process = pubsubd("--help")

    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("Usage: pubsubd [serve] [OPTIONS]")


def test_the_installed_command_is_the_same_function():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert resolve_name(project["project"]["scripts"]["pubsubd"]) is cli.main
