"""The command line: `python -m analytics COMMAND`, and through submit.py the same under spark-submit.

Commands import what they need when they run: `info` and every mistake in the options are answered without
Spark.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analytics import failures
from analytics.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.journal import Journal
    from analytics.run import Run

PROGRAM = "python -m analytics"
EXIT_INTERRUPTED = 130  # as a shell tells of Ctrl-C

#: Jobs of a command, in their order; the facts come before them.
JOBS = {
    "audit": ("audit",),
    "health": ("health",),
    "capacity": ("health", "capacity"),
    "all": ("audit", "health", "capacity"),
}
_DAMAGED_MAX = 20  # segments that a command leaves out one by one before it gives up


class Moment(click.ParamType[Any]):
    """A time in ISO 8601; UTC where it names no zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2026-01-31 or 2026-01-31T13:30 (UTC).", param, ctx)


class Setting(click.ParamType[Any]):
    """A Spark setting, KEY=VALUE."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = value.partition("=")
        if not equals or not key.startswith("spark."):
            self.fail(f"{value!r} is not a setting such as spark.driver.memory=8g.", param, ctx)
        return key.strip(), setting


class Formats(click.ParamType[Any]):
    """A list of formats; Parquet is among them whatever is asked, since jobs read each other's tables."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        asked = tuple(part.strip() for part in value.split(","))
        unknown = [part for part in asked if part not in ("parquet", "csv")]
        if unknown:
            self.fail(f"{unknown[0]!r} is not a format; there are parquet and csv.", param, ctx)
        return asked


class Every(click.ParamType[Any]):
    """A length of time: `30s`, `5m`, or seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", value)
        seconds = float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1) if match else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a length of time such as 30s or 5m.", param, ctx)
        return seconds


Command = Callable[..., Any]


def _options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


_journal = click.option(
    "--journal", required=True, metavar="DIR", help="The journal: the folder that holds segments/."
)
_out = click.option("--out", required=True, metavar="DIR", help="Where the tables go.")
_spark_options = _options(
    click.option("--master", metavar="URL", help="A Spark master; without it Spark runs in this process."),
    click.option("--conf", "conf", multiple=True, type=Setting(), help="A Spark setting; wins over ours."),
)
_said_options = _options(
    click.option("--quiet", is_flag=True, help="Say nothing but errors."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
)
_format = click.option(
    "--format", "formats", type=Formats(), default="parquet,csv", show_default=True, help="Of the tables."
)
_range_options = _options(
    click.option("--from", "start", type=Moment(), help="The first moment to look at; UTC without a zone."),
    click.option("--to", "end", type=Moment(), help="The moment to stop before."),
    click.option(
        "--subscription",
        "subscriptions",
        multiple=True,
        metavar="NAME",
        help="Only this one; may be repeated.",
    ),
    click.option("--backlog", metavar="FILE", help="What was open at the end, as a server left it."),
    click.option("--seal", "seal", metavar="ADDR", help="Ask the server's admin service to seal first."),
    click.option(
        "--tolerance-ms",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="How much too early a redelivery may be.",
    ),
    click.option("--exact", is_flag=True, help="Quantiles by sorting, slower, instead of within 1 %."),
)
_batch_options = _options(_journal, _out, _range_options, _format, _spark_options, _said_options)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """What the ack journal of pubsubd says.

    Exit status: 0 all right, 1 violations found, 2 wrong usage or input, 3 parts of the journal are missing.
    """


@commands.command("audit")
@_batch_options
def _audit(**given: Any) -> int:
    """Was every promise kept?"""
    return batch("audit", **given)


@commands.command("health")
@_batch_options
def _health(**given: Any) -> int:
    """How do the subscriptions fare, minute by minute?"""
    return batch("health", **given)


@commands.command("capacity")
@_batch_options
def _capacity(**given: Any) -> int:
    """What should be set differently?"""
    return batch("capacity", **given)


@commands.command("all")
@_batch_options
def _all(**given: Any) -> int:
    """Audit, health, capacity, and the report."""
    return batch("all", **given)


@commands.command("report")
@_out
@_said_options
def _report(out: str, quiet: bool, as_json: bool) -> int:
    """A page from the tables that are in OUT."""
    _need("pyarrow", "plotly")
    from analytics import report

    path = report.write(out)
    if as_json:
        click.echo(json.dumps({"command": "report", "report": str(path)}))
    elif not quiet:
        click.echo(path)
    return EXIT_OK


@commands.command("stream")
@_journal
@_out
@click.option("--checkpoint", required=True, metavar="DIR", help="Where the stream keeps its place.")
@click.option("--every", type=Every(), help="How often to look for new segments.  [default: 30s]")
@click.option("--available-now", is_flag=True, help="Read what there is, then end.")
@_spark_options
@_said_options
def _stream(
    journal: str,
    out: str,
    checkpoint: str,
    every: float | None,
    available_now: bool,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    quiet: bool,
    as_json: bool,
) -> int:
    """Health, continuously, each event exactly once."""
    if every is not None and available_now:
        raise click.UsageError("--every and --available-now exclude each other.")
    _need("pyspark", "pyarrow", "pandas", "numpy")
    from analytics import paths
    from analytics.progress import on_terminal

    here = paths.local(journal)
    if here is not None and not here.is_dir():
        raise UsageError(f"There is no folder {journal}.")
    _check_writable(out)
    _check_writable(checkpoint)
    stream = importlib.import_module("analytics.stream")
    say = _say if on_terminal() and not quiet and not as_json else None
    with _session(master, dict(conf)) as spark:
        stream.run(spark, journal, out, checkpoint, None if available_now else every or 30.0, say)
    return EXIT_OK


@commands.command("info")
@_journal
@_said_options
def _info(journal: str, quiet: bool, as_json: bool) -> int:
    """What is in a journal, and what is missing; needs no Java."""
    from analytics import info

    found = info.look(journal)
    if as_json:
        click.echo(json.dumps(info.as_json(found)))
    elif not quiet:
        click.echo(info.text(found))
    return EXIT_OK if found.complete else EXIT_INCOMPLETE


@commands.command("warm-up")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
def _warm_up(quiet: bool) -> int:
    """Record once what makes every later start quicker (about 200 MB in the cache folder)."""
    _need("pyspark", "pyarrow", "pandas", "numpy")
    from analytics import warmup

    done = warmup.warm_up(say=(lambda line: None) if quiet else _say)
    if not quiet:
        click.echo(done)
    return EXIT_OK


def batch(
    command: str,
    *,
    journal: str,
    out: str,
    start: datetime | None,
    end: datetime | None,
    subscriptions: Sequence[str],
    backlog: str | None,
    seal: str | None,
    tolerance_ms: int,
    exact: bool,
    formats: tuple[str, ...],
    master: str | None,
    conf: Sequence[tuple[str, str]],
    quiet: bool,
    as_json: bool,
) -> int:
    """Run the jobs of a command over one journal; returns the exit status."""
    _need("pyspark", "pyarrow", "pandas", "numpy", *(["plotly"] if command == "all" else []))
    from analytics import paths
    from analytics.journal import backlog_file, segments_of
    from analytics.run import Options

    began = datetime.now(UTC)
    if start is not None and end is not None and start >= end:
        raise click.UsageError("--from has to be earlier than --to.")
    if backlog is not None:
        backlog_file(backlog)
    _check_writable(out)
    if seal is not None:
        backlog = _sealed(seal, journal, backlog, end)
    events = None
    if paths.local(journal) is not None:
        # Before Spark takes its seconds to start, so that a mistake is told at once.
        events = sum(segment.count for segment in segments_of(journal))
    options = Options(tolerance_ms * 1000, exact, backlog, tuple(subscriptions), start, end, formats)
    with _session(master, dict(conf), events) as spark:
        run, status, pieces = _run_jobs(
            command, spark, journal, out, options, began, not quiet and not as_json
        )
        record = _recorded(run, command, began, status)
        if command == "all":
            # The page shows the record, so that is written before it and, with the page's own time, after it.
            importlib.import_module("analytics.report").run(run)
            record = _recorded(run, command, began, status)
        _tell(run, record, pieces, quiet, as_json)
    return status


def _run_jobs(
    command: str,
    spark: SparkSession,
    journal: str,
    out: str,
    options: Any,
    began: datetime,
    shown: bool,
) -> tuple[Run, int, dict[str, Any]]:
    """Run the jobs; if a segment turns out to be damaged inside, it is left out and all is run again."""
    from analytics.journal import load_journal
    from analytics.output import Output
    from analytics.progress import Progress, on_terminal
    from analytics.run import prepare, write_facts
    from analytics.session import scale

    unreadable: dict[str, str] = {}
    while True:
        progress = Progress(spark, shown and on_terminal())
        try:
            loaded = load_journal(
                spark, journal, options.start, options.end, options.subscriptions, options.backlog, unreadable
            )
            scale(spark, loaded.count)
            output = Output(spark, out, options.formats)
            run = prepare(spark, loaded, output, options, progress)
            write_facts(run)
            results = {name: importlib.import_module(f"analytics.{name}").run(run) for name in JOBS[command]}
        except Exception as error:
            damaged = failures.damaged_segment(error) if failures.from_spark(error) else None
            if damaged is None or damaged in unreadable or len(unreadable) >= _DAMAGED_MAX:
                raise
            unreadable[damaged] = "its pages cannot be read"
            continue
        verdict = results.get("audit")
        if verdict is not None and verdict.violations:
            return run, EXIT_VIOLATED, results
        return run, EXIT_OK if run.journal.complete else EXIT_INCOMPLETE, results


def _recorded(run: Run, command: str, began: datetime, status: int) -> dict[str, Any]:
    from analytics.run import record

    told = record(run, command, began, status)
    run.out.write_run(told)
    return told


def _tell(run: Run, record: dict[str, Any], results: dict[str, Any], quiet: bool, as_json: bool) -> None:
    summary = _summary(run) if "audit" in results else None
    if as_json:
        from analytics import summary as summaries

        told = dict(record)
        if summary is not None:
            told["summary"] = summaries.as_json(summary)
        click.echo(json.dumps(told, default=str))
        return
    if quiet:
        return
    if summary is not None:
        from analytics import summary as summaries

        click.echo(summaries.text(summary))
    incomplete = incompleteness(run.journal)
    if incomplete:
        click.echo(incomplete, err=True)
    click.echo(f"Tables are in {run.out.path.removeprefix('file://')}.", err=True)


def _summary(run: Run) -> Any:
    from analytics import summary

    rows = [row.asDict() for row in run.out.read(run.spark, "audit_summary").collect()]
    found = run.out.read(run.spark, "violations").select("sub_id", "code", "severity")
    counted = [row.asDict() for row in found.distinct().collect()]
    return summary.summarise(rows, counted, run.journal.complete)


def incompleteness(journal: Journal) -> str | None:
    """What is missing, in one sentence, or None."""
    if journal.complete:
        return None
    from analytics.info import ranges
    from analytics.journal import merged

    lost = merged([*journal.missing, *journal.gaps])
    why = [f"{bad.segment.path}: {bad.why}" for bad in journal.damaged[:3]]
    because = f" (damaged: {'; '.join(why)})" if why else ""
    return f"The journal is incomplete: it lacks the events {ranges(lost)}{because}."


def _sealed(address: str, journal: str, backlog: str | None, end: datetime | None) -> str | None:
    """Have the server seal; its backlog file then ends the range, unless the caller has set an end."""
    from analytics import paths
    from analytics.journal import backlogs_of
    from analytics.seal import seal

    wanted = backlog is None and end is None
    done = seal(address, backlog=wanted)
    if not wanted or paths.local(journal) is None:
        return backlog
    found = [file.path for file in backlogs_of(journal) if file.seq == done.last_seq]
    if not found:
        raise UsageError(
            f"The server at {address} has sealed its journal up to event {done.last_seq}, but {journal} "
            "holds no backlog of that event: it is another server's journal."
        )
    return found[0]


class _session:
    """The session of a command, stopped at its end unless the process had it before."""

    def __init__(self, master: str | None, conf: Mapping[str, str], events: int | None = None) -> None:
        self._master = master
        self._conf = conf
        self._events = events

    def __enter__(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from analytics.session import make_session

        self._ours = SparkSession.getActiveSession() is None
        self._spark = make_session(self._master, self._conf, self._events)
        return self._spark

    def __exit__(self, *_: object) -> None:
        if self._ours:
            try:
                self._spark.stop()
            except Exception:
                return  # its JVM has died, which is what is being told


def _check_writable(out: str) -> None:
    """Refuse an output folder that cannot be used before Spark takes its seconds to start."""
    from analytics import paths

    here = paths.local(out)
    if here is None:
        return
    try:
        here.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=here, prefix="_"):
            pass
    except OSError as error:
        reason = "it is a file" if here.is_file() else error.strerror
        raise UsageError(f"The output folder {out} cannot be written to: {reason}.") from error


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"This needs {', '.join(missing)}: pip install 'pubsubd[analytics]'.")


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run a command and return the exit status; every refusal is one sentence on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = commands.main(given, prog_name=program, standalone_mode=False)
        return status if isinstance(status, int) else EXIT_OK
    except UsageError as error:
        return _refuse(program, str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        message = error.format_message()
        return _refuse(program, message if message.endswith(".") else f"{message}.")
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        out = _value_of(given, "--out") or "the output"
        if not failures.from_spark(error) and not isinstance(error, OSError):
            # A mistake of ours: whoever mends it needs all of it, and 1 would say that violations were found.
            traceback.print_exc()
            return EXIT_USAGE
        where = _keep_details(out)
        return _refuse(
            program, f"{failures.sentence(error, out)}" + (f" Details are in {where}." if where else "")
        )


def _refuse(program: str, sentence: str) -> int:
    click.echo(f"{program}: {sentence}", err=True)
    return EXIT_USAGE


def _value_of(given: Sequence[str], option: str) -> str | None:
    for word, following in zip(given, [*given[1:], None], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _keep_details(out: str) -> Path | None:
    """The traceback and what Java said, in a file, since neither is for the terminal."""
    from analytics import paths

    folder = paths.local(out)
    try:
        from analytics.session import log_tail

        java = log_tail()
    except ImportError:
        java = ""
    try:
        place = folder if folder is not None and folder.is_dir() else Path(tempfile.gettempdir())
        file = place / "_ERROR.txt"
        file.write_text(f"{traceback.format_exc()}\n{java}\n", encoding="utf-8")
    except OSError:
        return None
    return file
