"""`pubsubd conform`: options in, a run of the suite, a report and an exit code out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from pubsubd.conform import cases
from pubsubd.conform.case import REGISTRY, Case
from pubsubd.conform.endpoint import Endpoint
from pubsubd.conform.lab import Setting
from pubsubd.conform.runner import JOBS, Outcome, Result, Runner
from pubsubd.conform.served import Served, StartCommand, StartError

assert cases  # imported for the cases that it registers


class Lines:
    def started(self, case: Case) -> None: ...

    def finished(self, result: Result) -> None:
        click.echo(f"{result.case.id} {result.outcome.value}: {result.seen} ({result.seconds:.1f} s)")


def select(only: str) -> list[Case]:
    """The cases of `CE`, `CE-05`, or a list of such words with commas; all for an empty text."""
    words = [word.strip().upper() for word in only.split(",") if word.strip()]
    known = sorted(REGISTRY.values(), key=lambda case: case.id)
    for word in words:
        if word not in REGISTRY and word not in {case.group for case in known}:
            raise click.BadParameter(f"{word!r} is neither a group nor a case.")
    return [case for case in known if not words or case.id in words or case.group in words]


@click.command()
@click.argument("endpoint", required=False, metavar="[HOST:PORT]")
@click.option("--only", default="", metavar="IDS")
@click.option("--full", is_flag=True)
@click.option("--start-cmd", metavar="COMMAND")
@click.option("--project", default="conformance", metavar="PROJECT")
@click.option("--jobs", type=click.IntRange(1), default=JOBS)
def conform(
    endpoint: str | None, only: str, full: bool, start_cmd: str | None, project: str, jobs: int
) -> int:
    """Hold an endpoint against the exactly-once checklist."""
    command = None if start_cmd is None else StartCommand(start_cmd)
    if endpoint is None and command is None:
        raise click.UsageError("give HOST:PORT or --start-cmd.")
    chosen = select(only)

    async def run() -> list[Result]:
        served = None
        try:
            if endpoint is None:
                assert command is not None
                served = Served(command)
                await served.start()
            where = Endpoint(endpoint) if served is None else served.endpoint
            setting = Setting(where, project, full, command)
            return await Runner(setting, chosen, Lines(), jobs).run()
        finally:
            if served is not None:
                served.remove()

    try:
        results = asyncio.run(run())
    except StartError as error:
        raise click.ClickException(str(error)) from error
    return int(any(result.outcome in (Outcome.FAIL, Outcome.ERROR) for result in results))


Command = Callable[..., int]
