"""What the README shows is what happens: the example is run, and the tables name everything there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pubsubd import cli
from pubsubd.wire import SERVICES
from tests.support.server import ServerProcess

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_prints_what_the_readme_says(tmp_path):
    (example,) = blocks("python")
    (printed,) = [text for text in blocks("text") if text.startswith("billed")]

    with ServerProcess(tmp_path / "data") as server:
        run = subprocess.run(
            [sys.executable, "-c", example],
            env={**os.environ, "PUBSUB_EMULATOR_HOST": f"localhost:{server.port}"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    assert (run.returncode, run.stdout) == (0, printed), run.stderr


def test_the_table_of_what_works_names_every_rpc_once():
    table = section("What works")
    rpcs = re.findall(
        r"\b[A-Z][A-Za-z]+\b", "".join(re.findall(r"^\| (?:Pub|Sub|Schema).*$", table, re.MULTILINE))
    )

    for service, methods in SERVICES.items():
        if service.startswith("google.pubsub.v1."):
            assert [name for name in methods if rpcs.count(name) != 1] == []


def test_the_table_of_settings_names_every_option_and_its_variable():
    rows = [row.split(" | ") for row in section("Settings").splitlines() if row.startswith("| `--")]

    documented = {(re.search(r"--[a-z-]+", row[0]).group(), row[1]) for row in rows}
    assert documented == {
        (option.opts[0], f"`{option.envvar}`")
        for option in cli.serve.params
        if isinstance(option, cli.Option)
    }
