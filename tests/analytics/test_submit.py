"""The same jobs on a cluster: through spark-submit and by a master's address, against embedded Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

import pyspark
from pyarrow import dataset

from analytics import jvm, session
from analytics.errors import EXIT_USAGE, EXIT_VIOLATED
from pubsubd.conform.served import free_port
from tests.analytics.conftest import why_not
from tests.analytics.generator.builder import Builder

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
PATIENCE_S = 600

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "PYSPARK"))}
    return {
        **kept,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if reason := why_not():
        pytest.skip(reason)
    jvm.find()


def start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *arguments], env=environment(), stdout=file, stderr=file
        )


def wait_for(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while words not in log.read_text(errors="replace"):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master without any worker; gives its address."""
    log = tmp_path_factory.mktemp("master") / "log"
    port = free_port()
    options = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    master = start(log, "org.apache.spark.deploy.master.Master", *options)
    try:
        wait_for(log, "I have been elected leader", master)
        yield f"spark://127.0.0.1:{port}"
    finally:
        master.terminate()
        master.wait(30)


@pytest.fixture
def cluster(alone: str, tmp_path: Path) -> Iterator[str]:
    """The master with one worker of two cores."""
    log = tmp_path / "worker.log"
    options = (
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "-c",
        "2",
        "-m",
        "2g",
        "-d",
        str(tmp_path / "work"),
    )
    worker = start(log, "org.apache.spark.deploy.worker.Worker", *options, alone)
    try:
        wait_for(log, "Successfully registered with master", worker)
        yield alone
    finally:
        worker.terminate()
        worker.wait(30)


def write_journal(folder: Path) -> None:
    """Two subscriptions, some hundred messages, and one delivery that should not have been."""
    b = Builder()
    topic = b.topic("orders")
    kept = b.subscription("kept", topic=topic, exactly_once=True)
    broken = b.subscription("broken", topic=topic, exactly_once=True)
    for number in range(200):
        m = b.publish(topic, at=number)
        for s in (kept, broken):
            b.deliver(s, m)
            b.ack(s, m)
        if number == 100:
            b.deliver(broken, m)
            b.ack(broken, m)
    b.write(folder)
    b.backlog(folder, open=[])


def rows(folder: Path) -> list[str]:
    table: Any = dataset.dataset(folder, format="parquet").to_table()
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.full
def test_spark_submit_and_a_masters_address_give_the_output_of_embedded_spark(
    cluster: str, tmp_path: Path
) -> None:
    write_journal(tmp_path / "journal")
    bundle = session.package_zip(tmp_path / "analytics.zip")
    job = ("all", "--journal", tmp_path / "journal", "--out")
    embedded = run(
        *(sys.executable, "-m", "analytics", *job, tmp_path / "embedded", "--master", "local[2]"),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    submitted = run(
        *(SPARK / "bin" / "spark-submit", "--master", cluster, "--py-files", bundle),
        *(ROOT / "analytics" / "submit.py", *job, tmp_path / "submitted"),
        cwd=tmp_path,
    )
    addressed = run(
        *(sys.executable, "-m", "analytics", *job, tmp_path / "addressed", "--master", cluster),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    for done in (embedded, submitted, addressed):
        assert done.returncode == EXIT_VIOLATED, done.stdout + done.stderr
        # spark-submit writes on one stream what the program writes on two.
        assert embedded.stdout and done.stdout.startswith(embedded.stdout)

    expected = sorted(path.name for path in (tmp_path / "embedded").iterdir())
    assert {"facts", "violations.csv", "audit_summary.csv", "health_minute", "report.html"} <= set(expected)
    for other in ("submitted", "addressed"):
        assert sorted(path.name for path in (tmp_path / other).iterdir()) == expected
        for name in expected:
            here, there = tmp_path / "embedded" / name, tmp_path / other / name
            if here.suffix == ".csv":
                assert here.read_bytes() == there.read_bytes(), name
            elif here.is_dir():
                assert rows(here) == rows(there), name


@pytest.mark.full
def test_a_master_without_workers_is_told_and_not_waited_for(alone: str, tmp_path: Path) -> None:
    write_journal(tmp_path / "journal")
    short = "import sys; from analytics import cli, session; session._FIRST_TASK_S = 5; sys.exit(cli.main())"
    done = run(
        *(sys.executable, "-c", short, "audit", "--journal", tmp_path / "journal", "--out", tmp_path / "out"),
        *("--master", alone),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert done.returncode == EXIT_USAGE
    (line,) = done.stderr.splitlines()
    assert "gave no executor within 5 s" in line


@pytest.mark.full
def test_what_listens_but_is_no_master_is_told_within_a_bounded_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"spark://127.0.0.1:{server.getsockname()[1]}"
        write_journal(tmp_path / "journal")
        done = run(
            *(sys.executable, "-m", "analytics", "audit", "--journal", tmp_path / "journal"),
            *("--out", tmp_path / "out", "--master", address),
            cwd=tmp_path,
            PYTHONPATH=str(ROOT),
        )
    assert done.returncode == EXIT_USAGE
    (line,) = done.stderr.splitlines()
    assert "does not answer" in line
