"""The Spark session of a command: local by default, a cluster by its master's address, or spark-submit's.

An embedded session's JVM writes what it has to say into a file instead of the terminal; `log_tail` reads it
when something went wrong. Under spark-submit everything but SQL settings is the caller's business.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import tempfile
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from analytics import jvm
from analytics.errors import UsageError

#: Wanted in every session, embedded, on a cluster and under spark-submit.
SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # Segments are dense: at 19 bytes an event the default of 128 MiB would be 7 M events in one task.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
#: Wanted where little is read: to compile each query and its loops takes twice the CPU that it saves.
SMALL_EVENTS = 500_000
SMALL_SQL_SETTINGS = {"spark.sql.codegen.wholeStage": "false"}
SMALL_JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
PARTITIONS = "spark.sql.shuffle.partitions"
_EVENTS_PER_PARTITION = 1_000_000
_DRIVER_MEMORY_MAX = 8 << 30
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # containers
_REACH_MASTER_S = 10
_FIRST_TASK_S = 90

_MASTER = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|spark://.+|yarn|k8s://.+")
_HOST_PORT = re.compile(r"(?:https?://)?\[?([^\[\]/,]+?)\]?:(\d+)")

_log: IO[bytes] | None = None


def make_session(
    master: str | None = None, conf: Mapping[str, str] | None = None, events: int | None = None
) -> SparkSession:
    """The session of this process; `conf` wins over everything that is set here.

    `events` is how many events will be read, if that is known yet: see `scale` and `SMALL_EVENTS`. A session
    that the process has already (a notebook's, a test's) is used as it is, with `conf` applied to it.

    Raises:
        UsageError: no Java was found or it does not start, or the master cannot be reached.
    """
    chosen = dict(conf or {})
    active = SparkSession.getActiveSession()
    if active is not None:
        for key, value in chosen.items():
            active.conf.set(key, value)
        return active
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        session = _submitted(chosen)
    else:
        session = _embedded(chosen.pop("spark.master", master or "local[*]"), chosen, events)
    scale(session, events or 0, chosen)
    return session


def scale(session: SparkSession, events: int, conf: Mapping[str, str] | None = None) -> None:
    """Choose the number of shuffle partitions for a number of events, unless the caller has chosen one."""
    given = session.sparkContext.getConf().contains(PARTITIONS) or PARTITIONS in (conf or {})
    if not given:
        cores = session.sparkContext.defaultParallelism
        session.conf.set(PARTITIONS, str(max(2 * cores, math.ceil(events / _EVENTS_PER_PARTITION))))


def _submitted(chosen: Mapping[str, str]) -> SparkSession:
    given = SparkConf()
    wanted = {key: value for key, value in SQL_SETTINGS.items() if not given.contains(key)}
    return SparkSession.builder.config(map={**wanted, **chosen}).getOrCreate()


def _embedded(master: str, chosen: Mapping[str, str], events: int | None = None) -> SparkSession:
    is_local = master.startswith("local")
    jvm.find()
    if not is_local:
        check_master(master)
    wanted = dict(SQL_SETTINGS)
    wanted |= {
        "spark.master": master,
        "spark.app.name": "pubsubd analytics",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if is_local or _is_loopback(master):
        wanted |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_local:
        wanted |= {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": f"{driver_memory() >> 20}m",
        }
        if events is not None and events <= SMALL_EVENTS:
            wanted |= {**SMALL_SQL_SETTINGS, "spark.driver.extraJavaOptions": SMALL_JVM_OPTIONS}
    wanted |= chosen
    # Without it the workers run whatever python3 is on the PATH.
    os.environ["PYSPARK_PYTHON"] = wanted.get("spark.pyspark.python", sys.executable)
    if is_local:
        # Workers are children of the JVM and shall find this package as this process did.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_package().parent), os.environ.get("PYTHONPATH")])
        )
    settings = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
    try:
        session = SparkSession(SparkContext(conf=settings, gateway=_gateway(settings)))
        if not is_local:
            # A master that does not answer is noticed only after the context is there.
            _try_executors(session, master)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(_why_no_session(master, error)) from error
    return session


def _gateway(settings: SparkConf) -> Any:
    """The JVM of this process; a new one writes into a file."""
    global _log
    if SparkContext._gateway is not None:
        return SparkContext._gateway
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _log = tempfile.NamedTemporaryFile(prefix="pubsubd-spark-", suffix=".log")  # noqa: SIM115  # lives as long as the JVM
    try:
        return launch_gateway(settings, {"stdout": _log, "stderr": _log})  # type: ignore[no-untyped-call]  # pyspark has no types here
    except PySparkRuntimeError as error:
        lines = [line for line in log_tail().splitlines() if line.strip()]
        raise UsageError(f"Java did not start: {lines[-1] if lines else error}.") from error


def log_tail(lines: int = 200) -> str:
    """The last that the JVM of an embedded session wrote."""
    if _log is None:
        return ""
    text = Path(_log.name).read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def driver_memory() -> int:
    """Bytes for the JVM: half of what this process may use, at most 8 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in MEMORY_LIMITS:
        try:
            memory = min(memory, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return max(min(memory // 2, _DRIVER_MEMORY_MAX), 512 << 20)


def check_master(master: str) -> None:
    """Refuse an address that is none, and one where nobody listens: Spark itself would try for a minute.

    Raises:
        UsageError
    """
    if not _MASTER.fullmatch(master):
        raise UsageError(
            f"{master} is not an address of a Spark master, such as spark://host:7077 or local[2]."
        )
    addresses = _HOST_PORT.findall(master.partition("://")[2])
    if master.startswith("spark://") and not addresses:
        raise UsageError(f"{master} names no host and port, as in spark://host:7077.")
    problems = []
    for host, port in addresses:
        try:
            socket.create_connection((host, int(port)), _REACH_MASTER_S).close()
            return
        except (OSError, OverflowError) as error:
            problems.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
    if problems:
        raise UsageError(f"The Spark master {master} cannot be reached ({'; '.join(problems)}).")


def _is_loopback(master: str) -> bool:
    hosts = [host for host, _ in _HOST_PORT.findall(master.partition("://")[2])]
    return bool(hosts) and all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)


def _has_lost_master(error: Exception) -> bool:
    said = str(error)
    return any(
        words in said for words in ("All masters are unresponsive", "stopped SparkContext", "shut down")
    )


def _why_no_session(master: str, error: Exception) -> str:
    said = str(error)
    if _has_lost_master(error):
        return f"The Spark master {master} does not answer; is that the address of a master of Spark 4?"
    first = next(
        (line for line in said.splitlines() if line.strip() and "An error occurred" not in line), said
    )
    return f"Spark did not start with master {master}: {re.sub(r'^:? ?[a-z]+(?:[.][A-Za-z]+)+: ', '', first)}"


def _package() -> Path:
    return Path(__file__).parent


def package_zip(target: Path) -> Path:
    """This package as a zip that executors can import."""
    package = _package()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                bundle.write(file, file.relative_to(package.parent))
    return target


def _probe(_: Any) -> list[str]:
    """Runs on an executor: what it lacks."""
    import importlib.util

    wanted = ("numpy", "pyarrow", "pandas", "analytics")
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def _try_executors(session: SparkSession, master: str) -> None:
    """Send the package along and run a first task: a cluster without workers is told, not waited for."""
    context = session.sparkContext
    folder = Path(tempfile.mkdtemp(prefix="pubsubd-analytics-"))
    bundle = package_zip(folder / "analytics.zip")
    context.addPyFile(str(bundle))
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(context.parallelize([0], 1).mapPartitions(_probe).collect())
        except Exception as error:
            answer.append(error)

    asking = threading.Thread(target=ask, name="first task", daemon=True)
    asking.start()
    asking.join(_FIRST_TASK_S)
    if not answer:
        session.stop()
        raise UsageError(
            f"{master} gave no executor within {_FIRST_TASK_S} s: "
            "are there workers, with cores and memory left?"
        )
    if isinstance(answer[0], Exception):
        if _has_lost_master(answer[0]):
            raise answer[0]
        session.stop()
        raise UsageError(f"No Python program runs on the executors of {master}: {_first_line(answer[0])}")
    if answer[0]:
        session.stop()
        raise UsageError(f"Python on the executors of {master} lacks {', '.join(answer[0])}.")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Error" in line), lines[0] if lines else type(error).__name__)
