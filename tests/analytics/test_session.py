"""The session of a command: what is set, and what the caller's settings win over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

from analytics import session
from tests.analytics.conftest import why_not

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

SHOW = """
import json, os, sys
from analytics.session import make_session, scale
spark = make_session("local[2]", {"spark.sql.ansi.enabled": "false", "spark.driver.memory": "600m"})

def where(frames):
    import pandas, sys
    for frame in frames:
        yield pandas.DataFrame({"path": [sys.executable] * len(frame)})

names = sys.argv[1:]
shown = {name: spark.conf.get(name, None) for name in names}
shown["python"] = spark.range(1).mapInPandas(where, "path string").first()[0]
shown["none"] = spark.conf.get("spark.sql.shuffle.partitions")
scale(spark, 20_000_000)
shown["many"] = spark.conf.get("spark.sql.shuffle.partitions")
scale(spark, 20_000_000, {"spark.sql.shuffle.partitions": "7"})
shown["asked"] = spark.conf.get("spark.sql.shuffle.partitions")
spark.stop()
print(json.dumps(shown))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_embedded_session_has_our_settings_the_callers_win_and_java_is_silent(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    names = [
        *("spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.driver.memory"),
        *("spark.ui.enabled", "spark.ui.showConsoleProgress", "spark.log.level"),
        *("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.adaptive.enabled"),
        *("spark.sql.files.maxPartitionBytes", "spark.sql.execution.arrow.pyspark.enabled"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": "/nowhere/python"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *names],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown = json.loads(done.stdout)  # and nothing else is written
    assert [shown[name] for name in names] == [
        *("local[2]", "127.0.0.1", "127.0.0.1", "600m"),
        *("false", "false", "ERROR"),
        *("UTC", "false", "true"),
        *("32m", "true"),
    ]
    assert shown["python"] == sys.executable
    # Two for each core, then one for each million events, then what the caller says.
    assert (shown["none"], shown["many"], shown["asked"]) == ("4", "20", "20")


def test_a_session_that_the_process_has_is_used(spark: SparkSession) -> None:
    assert session.make_session(conf={"spark.sql.session.timeZone": "UTC"}) is spark
    session.scale(spark, 50_000_000)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "it was chosen by whoever made the session"


def test_java_gets_half_of_the_memory_and_at_most_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(gib: int) -> int:
        sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gib * (1 << 30) // 4096}
        monkeypatch.setattr(os, "sysconf", lambda name: sizes[name])
        monkeypatch.setattr(session, "MEMORY_LIMITS", ())
        return session.driver_memory() // (1 << 30)

    assert [machine(4), machine(10), machine(64)] == [2, 5, 8]


def test_a_limit_of_a_container_counts_as_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text(f"{2 << 30}\n")
    limits = (str(tmp_path / "nowhere"), str(tmp_path / "max"), str(tmp_path / "limit"))
    monkeypatch.setattr(session, "MEMORY_LIMITS", limits)
    assert session.driver_memory() == 1 << 30


def test_the_package_for_executors_can_be_imported_from_its_zip(tmp_path: Path) -> None:
    bundle = session.package_zip(tmp_path / "analytics.zip")
    names = zipfile.ZipFile(bundle).namelist()
    assert "analytics/__init__.py" in names and "analytics/kernel.py" in names
    assert not [name for name in names if "__pycache__" in name]
    found = subprocess.run(
        [sys.executable, "-c", "import analytics.layout; print(analytics.layout.__file__)"],
        env={**os.environ, "PYTHONPATH": str(bundle)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert found.stdout.startswith(str(bundle))
