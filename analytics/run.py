"""What the jobs of one command share: session, journal, what exists, where to write, what was asked."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

from analytics.errors import UsageError
from analytics.output import FORMATS, Output
from analytics.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.dimensions import Dimensions
    from analytics.journal import Journal


@dataclass(frozen=True)
class Options:
    tolerance_us: int = 0  # how much too early the audit forgives
    exact: bool = False  # quantiles by sorting instead of by histograms
    backlog: str | None = None
    subscriptions: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    formats: tuple[str, ...] = FORMATS


@dataclass(frozen=True)
class Verdict:
    """What an audit comes to: how many violations, and whether everything that happened could be read."""

    violations: int
    complete: bool


@dataclass
class Run:
    spark: SparkSession
    journal: Journal
    dimensions: Dimensions
    out: Output
    options: Options = field(default_factory=Options)
    progress: Progress = field(default_factory=Progress)


def prepare(
    spark: SparkSession,
    journal: Journal,
    out: Output,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Run:
    """Learn what existed in the range, and keep only the subscriptions that were asked for."""
    from analytics.dimensions import collect

    options = options or Options()
    progress = progress or Progress(spark)
    with progress.stage("resources", rows=journal.count):
        dimensions = collect(journal.resources)
    journal.gaps = [
        (max(gap.first, journal.first_seq), min(gap.last, journal.last_seq))
        for gap in dimensions.gaps
        if gap.first <= journal.last_seq and gap.last >= journal.first_seq
    ]
    if options.subscriptions:
        journal, dimensions = narrow(journal, dimensions, options.subscriptions)
    return Run(spark, journal, dimensions, out, options, progress)


def narrow(journal: Journal, dimensions: Dimensions, names: tuple[str, ...]) -> tuple[Journal, Dimensions]:
    """Only what concerns the named subscriptions: a name may be whole or its last part.

    Events of their topics stay, and events that are of no subscription.

    Raises:
        UsageError: no subscription has such a name.
    """
    chosen: dict[int, Any] = {}
    for name in names:
        found = {
            sub_id: subscription
            for sub_id, subscription in dimensions.subscriptions.items()
            if subscription.name == name or subscription.name.rpartition("/")[2] == name
        }
        if not found:
            known = sorted({subscription.name for subscription in dimensions.subscriptions.values()})
            raise UsageError(f"The journal knows no subscription {name}; it knows {_some(known)}.")
        chosen |= found
    topics = sorted({subscription.topic_id for subscription in chosen.values()})
    ids = ", ".join(str(sub_id) for sub_id in sorted(chosen))
    of_topics = f"topic_id in ({', '.join(map(str, topics))}, 0)"
    kept = f"sub_id in ({ids}) or (sub_id = 0 and {of_topics})"
    return (
        dataclasses.replace(journal, events=journal.events.where(kept), subscriptions=names),
        dataclasses.replace(
            dimensions,
            subscriptions=chosen,
            epochs=_only(dimensions.epochs, chosen),
            drops=_only(dimensions.drops, chosen),
        ),
    )


def _only(by_subscription: Mapping[int, Any], chosen: Mapping[int, Any]) -> dict[int, Any]:
    return {sub_id: value for sub_id, value in by_subscription.items() if sub_id in chosen}


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def write_facts(run: Run) -> None:
    """The heavy step, once per command: everything after it reads OUT/facts."""
    from analytics.facts import facts

    if "facts" in run.out.written:
        return
    with run.progress.stage("facts", rows=run.journal.count):
        run.out.write("facts", facts(run.journal, run.dimensions, run.options))


def versions(spark: SparkSession) -> dict[str, str]:
    java: Any = spark.sparkContext._jvm
    found = {
        "spark": spark.version,
        "python": platform.python_version(),
        "java": str(java.System.getProperty("java.version")),
    }
    for name, package in {"analytics": "pubsubd", "pyarrow": "pyarrow", "numpy": "numpy"}.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"  # run from a checkout
    return found


def record(run: Run, command: str, began: datetime, status: int) -> dict[str, Any]:
    """What `_RUN.json` says; `_us` is microseconds since the epoch, `_s` seconds."""
    journal, settings = run.journal, run.spark.sparkContext.getConf()
    return {
        "command": command,
        "exit_status": status,
        "started_us": int(began.timestamp() * 1_000_000),
        "finished_us": int(datetime.now(UTC).timestamp() * 1_000_000),
        "versions": versions(run.spark),
        "journal": journal.path,
        "server": journal.server,
        "range": {
            "first_seq": journal.first_seq,
            "last_seq": journal.last_seq,
            "first_us": journal.first_us,
            "last_us": journal.last_us,
            "events": journal.count,
            "starts_inside": journal.is_partial_start,
        },
        "complete": journal.complete,
        "missing": [list(pair) for pair in journal.missing],
        "gaps": [list(pair) for pair in journal.gaps],
        "damaged": [{"path": bad.segment.path, "why": bad.why} for bad in journal.damaged],
        "topics": run.dimensions.topics,
        "backlog": None
        if journal.backlog is None
        else {"path": journal.backlog.path, "seq": journal.backlog.seq},
        "options": _without_none(dataclasses.asdict(run.options)),
        "settings": {
            "spark.master": run.spark.sparkContext.master,
            "spark.driver.memory": settings.get("spark.driver.memory", "1g"),
            "spark.sql.shuffle.partitions": run.spark.conf.get("spark.sql.shuffle.partitions"),
        },
        "counts": {
            "segments": len(journal.segments),
            "events": journal.count,
            "subscriptions": len(run.dimensions.subscriptions),
            "rows": {name: run.out.rows(name) for name in run.out.written},
        },
        "durations_s": _summed(run.progress.durations),
    }


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _summed(durations: list[tuple[str, float]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, took in durations:
        seconds[name] = round(seconds.get(name, 0.0) + took, 3)
    return seconds
