"""A smoke test each for the official Node, Java and Go libraries: publish, receive, ack with an answer.

The one for Node does so with ordering keys as well.
Each runs where its toolchain is installed and its packages can be had, and says why where it does not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOURCES = Path(__file__).parent
INSTALL_SECONDS_MAX = 600
RUN_SECONDS_MAX = 240


def test_node(server, tmp_path):
    install = [["npm", "install", "--no-audit", "--no-fund"]]
    place = prepare("node", tmp_path, needs=["node", "npm"], install=install)
    assert_all_acked(server, place, ["node", "smoke.js", new_project()], inOrder=True)


def test_java(server, tmp_path):
    maven = ["mvn", "--batch-mode", "--quiet"]
    fetch = [[*maven, "dependency:go-offline"], [*maven, "exec:help"]]
    place = prepare("java", tmp_path, needs=["javac", "mvn"], install=fetch)
    assert_all_acked(server, place, [*maven, "compile", "exec:java", f"-Dexec.args={new_project()}"])


def test_go(server, tmp_path):
    install = [
        ["go", "mod", "init", "pubsubd/smoke"],
        ["go", "get", "cloud.google.com/go/pubsub/v2@latest"],
        ["go", "mod", "tidy"],
    ]
    place = prepare("go", tmp_path, needs=["go"], install=install)
    assert_all_acked(server, place, ["go", "run", ".", new_project()])


def new_project() -> str:
    return f"smoke-{uuid.uuid4().hex[:12]}"


def prepare(name: str, tmp_path: Path, needs: Sequence[str], install: Sequence[Sequence[str]]) -> Path:
    """A copy of the sources with the packages they need; skips the test where those cannot be had."""
    for tool in needs:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    place = tmp_path / name
    shutil.copytree(SOURCES / name, place)
    for command in install:
        try:
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' '.join(command)}: no packages within {INSTALL_SECONDS_MAX} s")
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {first_words(done.stderr + done.stdout)}")
    return place


def first_words(output: str) -> str:
    """The first line that says something, without the colours that some tools never leave out."""
    lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines())
    return next((line[:300] for line in lines if line), "no word of explanation")


def assert_all_acked(server, place: Path, command: Sequence[str], **more: Any) -> None:
    done = subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        # Without this the Node library looks for the metadata server of a machine in the cloud.
        env={**os.environ, "PUBSUB_EMULATOR_HOST": server.address, "METADATA_SERVER_DETECTION": "none"},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    outcome = json.loads(done.stdout.strip().splitlines()[-1])
    assert outcome == {"published": 100, "same": True, "succeeded": 100, "failed": 0, **more}, done.stderr
