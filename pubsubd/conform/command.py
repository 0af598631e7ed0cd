"""`pubsubd conform`: options in; a run of the suite, its report and an exit code out."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from pubsubd.conform import cases, report
from pubsubd.conform.case import GROUPS, REGISTRY, Case
from pubsubd.conform.endpoint import REAL_SERVICE, Endpoint, EndpointError, endpoint_of
from pubsubd.conform.lab import Setting, count_of
from pubsubd.conform.progress import progress_on
from pubsubd.conform.report import Report, ReportError
from pubsubd.conform.runner import JOBS, Runner
from pubsubd.conform.served import Served, StartCommand, StartError

__all__ = ["cases", "conform", "select"]  # the import of `cases` registers them

PROJECT = "conformance"
ANSWER_SECONDS_MAX = 10.0

# For output that goes into a file: no terminal tells how wide it should be.
FILE_WIDTH = 110

HELP = """
Hold a Pub/Sub endpoint against the exactly-once checklist, case by case.

Each case is a promise that client libraries rely on, put to the test over raw gRPC. It makes topics and
subscriptions of its own, and removes them.

\b
Examples:
  pubsubd conform localhost:8085
  pubsubd conform localhost:8085 --only CE,CT-09 -v
  pubsubd conform --start-cmd "pubsubd --port {port} --data-dir {datadir} --admin {admin_port}"
  pubsubd conform pubsub.googleapis.com --project my-project --full --json result.json
  pubsubd conform --card ours.json emulator.json

\b
Outcomes:
  pass      what was promised was seen
  fail      something else was seen
  error     nothing is known about the promise: a lost connection, a call that is not served
  differs   the contract leaves a choice open, and this endpoint takes another one than the checklist
            prefers
  not run   the case needs a hook, such as a restart, that is not given
"""

EPILOG = """
The exit code is 0 if nothing failed or erred, 1 if something did or nobody answered, 2 for wrong usage, 130
after Ctrl-C: what was made is removed, and the report tells of the cases that had come to an end.

--start-cmd is a command line (quotes work, no shell is run) that starts a server on {port}. It is run anew
for each case that kills or stops its server. {datadir} is an empty directory: with it the command is taken to
keep its data over a kill. {admin_port} is for pubsubd itself, whose admin service injects faults.
"""


def ids_of(text: str) -> list[str]:
    return [word.strip().upper() for word in text.split(",") if word.strip()]


def select(only: str, registry: dict[str, Case] | None = None) -> list[Case]:
    """The cases of `CE`, `CE-05`, or a list of such words with commas; all for an empty text.

    Raises:
        click.BadParameter: a word names neither a group nor a case, or there is none between the commas.
    """
    order = list(GROUPS)
    known = sorted(
        (REGISTRY if registry is None else registry).values(),
        key=lambda case: (order.index(case.group), case.id),
    )
    words = ids_of(only)
    if only.strip() and not words:
        raise click.BadParameter(f"{only!r} names no case.")
    for word in words:
        if word not in {case.id for case in known} | set(order):
            raise click.BadParameter(f"{word!r} is neither a group ({', '.join(order)}) nor a case.")
    return [case for case in known if not words or case.id in words or case.group in words]


@dataclass(frozen=True)
class Options:
    """What a run was asked for."""

    endpoint: Endpoint | None  # None: a server of the start command
    start_command: StartCommand | None
    cases: Sequence[Case]
    full: bool = False
    project: str = PROJECT
    jobs: int = JOBS
    name: str = ""


@click.command(
    help=HELP,
    epilog=EPILOG,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
@click.argument("arguments", nargs=-1, metavar="[HOST:PORT]")
@click.option("--only", default="", metavar="IDS", help="Groups and cases, as in CE,CT-09.")
@click.option("--full", is_flag=True, help="Run the long cases as they are written: up to 20 minutes.")
@click.option(
    "--start-cmd",
    metavar="COMMAND",
    help="Starts a server that cases may kill. Without HOST:PORT it makes the one for all other cases too.",
)
@click.option(
    "--project",
    metavar="PROJECT",
    help=f"Project in which everything is made.  [default: {PROJECT}; required for the real service]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=JOBS,
    show_default=True,
    metavar="N",
    help="Cases at once; those that load the server run one by one all the same.",
)
@click.option("--tls/--no-tls", default=None, help="Connect with TLS.  [default: for *.googleapis.com]")
@click.option(
    "--ca-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="PEM file of the authorities to trust; implies --tls.",
)
@click.option(
    "--adc/--no-adc",
    default=None,
    help="Send application default credentials; implies --tls.  [default: for *.googleapis.com]",
)
@click.option("--list", "only_list", is_flag=True, help="Print the cases and their promises; run nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Print what was promised and seen for every case.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON.")
@click.option(
    "--junit", "junit_file", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML."
)
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the score card in Markdown.",
)
@click.option("--name", default="", metavar="TEXT", help="What the endpoint is called in reports.")
@click.option(
    "--card",
    "is_card",
    is_flag=True,
    help="Run nothing: make one score card of the JSON files given as arguments.",
)
def conform(
    arguments: tuple[str, ...],
    only: str,
    full: bool,
    start_cmd: str | None,
    project: str | None,
    jobs: int,
    tls: bool | None,
    ca_cert: Path | None,
    adc: bool | None,
    only_list: bool,
    verbose: bool,
    json_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    name: str,
    is_card: bool,
) -> int:
    out = _console()
    if is_card:
        return _card(arguments, markdown_file)
    chosen = select(only)
    if only_list:
        _list(chosen, out, full)
        return 0
    if len(arguments) > 1:
        raise click.UsageError(f"one endpoint at a time; {arguments[1]!r} is a second one.")
    for path in (json_file, junit_file, markdown_file):
        # Said before the run, not after minutes of it.
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise click.UsageError(f"{path} cannot be written: no such directory.")
    try:
        command = None if start_cmd is None else StartCommand(start_cmd)
        endpoint = endpoint_of(arguments[0], tls=tls, ca_cert=ca_cert, adc=adc) if arguments else None
    except (ValueError, EndpointError) as error:
        raise click.UsageError(f"{error}.") from error
    if endpoint is None and command is None:
        raise click.UsageError("give HOST:PORT, or --start-cmd.")
    if project is not None and not (re.fullmatch(r"[^\s/]+", project) and project.isprintable()):
        raise click.UsageError(
            f"{project!r} is not a project id; one is not empty and holds no slash and no space."
        )
    if project is None and endpoint is not None and REAL_SERVICE in endpoint.address:
        raise click.UsageError("the real service needs --project: what is made there may cost money.")
    options = Options(endpoint, command, chosen, full, project or PROJECT, jobs, name)
    try:
        done, was_stopped = asyncio.run(_run(options, Console(stderr=True, highlight=False)))
    except StartError as error:
        text = str(error).rstrip(".")
        raise click.ClickException(f"{text[:1].lower()}{text[1:]}.") from error
    except EndpointError as error:
        raise click.ClickException(f"{error}.") from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("Stopped before the first case.", err=True)
        return 130
    # Files first: whoever reads what is printed may close it at the first line.
    unwritten = [
        _write(json_file, report.json_of(done)),
        _write(junit_file, report.junit_of(done)),
        _write(markdown_file, report.card([done])),
    ]
    report.show(done, out, all_lines=verbose)
    for problem in filter(None, unwritten):
        raise problem
    if was_stopped:
        left = len(done.left_behind)
        what = f"{left} of the things that the cases had made may still be there; the report names them"
        click.echo(f"Stopped; {what if left else 'what the cases had made is removed'}.", err=True)
        return 130
    return int(bool(done.bad))


class Stop:
    """What Ctrl-C and SIGTERM do: the first ends the run in order, another one does not wait for that.

    A KeyboardInterrupt would come up anywhere, also in the middle of a deletion.
    """

    def __init__(self, task: asyncio.Task[Any], err: Console) -> None:
        self.runner: Runner | None = None
        self._task = task
        self._err = err
        self._comes_again = False

    def __call__(self) -> None:
        self._task.cancel()
        if self.runner is not None:
            if self._comes_again:
                self.runner.abandon()
            else:
                self._err.print("Stopping: what the cases made is removed. Ctrl-C again leaves it there.")
        self._comes_again = True


async def _run(options: Options, err: Console) -> tuple[Report, bool]:
    """One run, from the first connection to the last deletion, and whether it was stopped before its end."""
    task = asyncio.current_task()
    assert task is not None
    # Whoever ends us in order wants our servers and topics gone too.
    stop = Stop(task, err)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    began, start = datetime.now(UTC), time.monotonic()
    served, was_stopped = None, False
    try:
        if options.endpoint is None:
            assert options.start_command is not None
            what = "a server of --start-cmd"
            served = Served(options.start_command, project=options.project)
            await served.start()
            endpoint = served.endpoint
        else:
            endpoint = options.endpoint
            what = endpoint.address
            await endpoint.answers(options.project, ANSWER_SECONDS_MAX)
        setting = Setting(endpoint, options.project, options.full, options.start_command)
        if not err.is_terminal:
            # Where no display shows it, for minutes nothing else may be said.
            err.print(Text(f"{_forecast(options)} against {what}"), soft_wrap=True)
        with progress_on(err, len(options.cases)) as progress:
            runner = stop.runner = Runner(setting, options.cases, progress, options.jobs)
            try:
                await runner.run()
            except asyncio.CancelledError:
                was_stopped = True
    finally:
        if served is not None:
            served.remove()
    done = Report.of(
        runner.results,
        name=options.name,
        endpoint=what,
        began=began,
        seconds=time.monotonic() - start,
        full=options.full,
        left_behind=runner.left_behind,
        late_seconds_max=runner.late_seconds_max,
    )
    return done, was_stopped


def _forecast(options: Options) -> str:
    """How many cases, and about how long they take."""
    together = [case.seconds for case in options.cases if not case.alone]
    seconds = max([sum(together) / options.jobs, *together])
    seconds += sum(case.seconds for case in options.cases if case.alone)
    return f"{count_of(options.cases, 'case')}, {'at least' if options.full else 'about'} {seconds:.0f} s,"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=FILE_WIDTH)


def _write(path: Path | None, text: str) -> click.ClickException | None:
    """Returns why the file could not be written."""
    try:
        if path is not None:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        return click.ClickException(f"{path} cannot be written: {error.strerror}.")
    return None


def _card(files: Sequence[str], markdown_file: Path | None) -> int:
    if not files:
        raise click.UsageError("--card needs JSON files that --json wrote.")
    try:
        text = report.card([report.read_json(Path(file)) for file in files])
    except ReportError as error:
        raise click.UsageError(f"{error}.") from error
    if markdown_file is None:
        sys.stdout.write(text)
    elif problem := _write(markdown_file, text):
        raise problem
    return 0


def _list(chosen: Sequence[Case], out: Console, full: bool) -> None:
    for case in chosen:
        notes = [
            *([f"critical for {', '.join(case.libraries)}"] if case.critical else []),
            *([f"needs {' and '.join(case.needs)}"] if case.needs else []),
            *([f"short form: {case.short}"] if case.short and not full else []),
        ]
        out.print(Text.assemble((case.id, "bold"), f"  {case.promise}"), soft_wrap=True)
        if notes:
            out.print(Text(f"       {'; '.join(notes)}", style="dim"), soft_wrap=True)
    out.print(f"{len(chosen)} cases")
