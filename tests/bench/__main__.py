"""The command: `python -m tests.bench`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import platform
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import grpc
import psutil
from click.core import ParameterSource

from tests.bench import scenarios
from tests.bench.checkout import CheckoutTarget
from tests.bench.comparing import at_once
from tests.bench.filtering import filtering
from tests.bench.load import LoadError
from tests.bench.ordering import ordering
from tests.bench.pushing import pushing
from tests.bench.scenarios import Run
from tests.bench.schemas import schemas
from tests.bench.seeking import seeking
from tests.bench.settings import Settings, full_settings, size_fields
from tests.bench.targets import (
    EmulatorTarget,
    NullTarget,
    PubsubdTarget,
    Target,
    find_emulator,
    installed_version,
    parse_target,
)

#: Those that share the servers of the run, and those that start servers of ours for themselves.
SHARED = ["publish", "drain", "latency", "idle"]
OWN = {
    "backlog": scenarios.backlog,
    "filter": filtering,
    "ordered": ordering,
    "push": pushing,
    "seek": seeking,
    "schema": schemas,
}
SCENARIOS = ["start", *SHARED, *OWN]
#: What a comparison with an earlier commit measures, unless told otherwise.
COMPARED, COMPARE_REPEATS = ["publish", "drain"], 5
SERVERS = ["pubsubd", "null", "prebuilt", "emulator"]
PACKAGES = ["pubsubd", "grpcio", "protobuf", "aiosqlite", "psutil"]


def size_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for every size, with its defaults, quick and full, in the help."""
    for each in reversed(size_fields()):
        quick, full, least = each.default, each.metadata["full"], each.metadata["least"]
        shown = f"{quick:,}" if quick == full else f"{quick:,}, full {full:,}"
        command = click.option(
            "--" + each.name.replace("_", "-"),
            type=click.FloatRange(min=least) if each.type == "float" else click.IntRange(min=least),
            help=f"{each.metadata['help']} [{shown}]",
        )(command)
    return command


def names_of(allowed: list[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def split(_: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if unknown := set(names) - set(allowed):
            raise click.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(allowed)}")
        return names

    return split


def targets_of(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Target]:
    try:
        return [parse_target(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--only",
    default=",".join(SCENARIOS),
    callback=names_of(SCENARIOS),
    help="Scenarios, separated by commas.",
    show_default=True,
)
@click.option(
    "--servers",
    default=",".join(SERVERS),
    callback=names_of(SERVERS),
    help="Servers to start, separated by commas. null has our handlers without rules and storage, "
    "prebuilt only writes responses that lie ready, emulator is the official one where it is installed.",
    show_default=True,
)
@click.option(
    "--target",
    "others",
    multiple=True,
    callback=targets_of,
    metavar="NAME=HOST:PORT[,pid=N]",
    help="One more server, already running. With its pid, CPU and memory are measured too.",
)
@click.option(
    "--emulator-jar",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The official emulator, where it is not in the Cloud SDK's place.",
)
@click.option(
    "--compare",
    metavar="COMMIT",
    help="Also measure the server of this commit of the repository, by turns with the present one: "
    f"{' and '.join(COMPARED)}, {COMPARE_REPEATS} times each, unless other options say otherwise.",
)
@click.option("--serve-option", "serve_options", multiple=True, help="One more word for `pubsubd serve`.")
@click.option("--receipt-modack", is_flag=True, help="Also drain as clients do: extend, then acknowledge.")
@click.option("--work-dir", type=click.Path(file_okay=False, path_type=Path), help="Where data folders go.")
@click.option("--json", "json_file", type=click.File("w", encoding="utf-8"), help="Also write this file.")
@click.option("--full", is_flag=True, help="The sizes of the published figures; takes many minutes.")
@click.option("--check", is_flag=True, help="Exit with 1 when a goal is missed or a scenario fails.")
@size_options
@click.pass_context
def main(
    context: click.Context,
    only: list[str],
    servers: list[str],
    others: list[Target],
    emulator_jar: Path | None,
    compare: str | None,
    serve_options: tuple[str, ...],
    receipt_modack: bool,
    work_dir: Path | None,
    json_file: Any,
    full: bool,
    check: bool,
    **sizes: Any,
) -> None:
    """Measures pubsubd beside a server that does nothing and, where it is installed, the official emulator.

    Prints a table: medians of the repeats, and the goals that pubsubd is held to.
    """
    # A run that is told to end leaves no server behind, just as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = {name: value for name, value in sizes.items() if value is not None}
    if compare:
        given.setdefault("repeats", COMPARE_REPEATS)
        only = only if was_said(context, "only") else COMPARED
        servers = servers if was_said(context, "servers") else ["pubsubd"]
    settings = Settings(**{**(full_settings() if full else {}), **given})
    with tempfile.TemporaryDirectory(prefix="pubsubd-bench-", dir=work_dir) as folder:
        run = Run([], settings, Path(folder), list(serve_options), receipt_modack)
        run.targets = [*start_list(run, servers, emulator_jar), *old_server(run, compare), *others]
        failed = asyncio.run(measure(run, only))
        facts = {**describe(run), "seconds": round(time.monotonic() - run.began, 1)}
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # suppressed when it has none
    print(f"\n{headline(facts, full)}\n")
    print(run.results.as_table([target.name for target in run.targets]))
    if json_file:
        json.dump({**facts, **run.results.as_json()}, json_file, indent=1, ensure_ascii=False)
        json_file.write("\n")
    if check and (failed or run.results.missed()):
        sys.exit(1)


def was_said(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def old_server(run: Run, commit: str | None) -> list[Target]:
    if not commit:
        return []
    try:
        target = CheckoutTarget(commit, run.work_dir / "old", run.serve_options)
    except RuntimeError as error:
        raise click.BadParameter(str(error), param_hint="--compare") from None
    run.compare = target.name
    return [target]


def start_list(run: Run, servers: list[str], emulator_jar: Path | None) -> list[Target]:
    targets: list[Target] = []
    if "pubsubd" in servers:
        targets.append(PubsubdTarget(run.work_dir / "pubsubd", run.serve_options))
    if "null" in servers:
        targets.append(NullTarget())
    if "prebuilt" in servers:
        targets.append(NullTarget(prebuilt=True))
    if "emulator" in servers:
        if jar := emulator_jar or find_emulator():
            targets.append(EmulatorTarget(jar))
        else:
            run.results.note("the official emulator is not installed here: nothing is compared with it")
    return targets


async def measure(run: Run, names: list[str]) -> bool:
    """Returns whether a scenario failed; the others are measured all the same."""
    failed = False
    try:
        if "start" in names:
            failed |= not await attempt(run, "start", scenarios.start(run))
        if set(names) & set(SHARED):
            async with running(run.targets):
                if {"publish", "drain"} & set(names):
                    failed |= not await attempt(run, "publish and drain", scenarios.throughput(run, names))
                if run.compare and {"publish", "drain"} <= set(names):
                    failed |= not await attempt(run, "both at once", at_once(run))
                if "latency" in names:
                    failed |= not await attempt(run, "latency", scenarios.latency(run))
                if "idle" in names:
                    failed |= not await attempt(run, "idle", scenarios.idle(run))
        for name in [name for name in OWN if name in names]:
            if any(target.is_persistent for target in run.targets):
                failed |= not await attempt(run, name, OWN[name](run))
            else:
                run.results.note(f"{name}: left out, it is about pubsubd, which --servers does not name")
    finally:
        for target in run.targets:
            target.clean_up()
    return failed


async def attempt(run: Run, name: str, scenario: Any) -> bool:
    try:
        await scenario
        return True
    except* (LoadError, grpc.RpcError, RuntimeError) as errors:
        for error in leaves(errors):
            run.results.note(f"{name} FAILED: {type(error).__name__}: {short(error)}")
    return False


def leaves(errors: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in errors.exceptions:
        found.extend(leaves(each) if isinstance(each, BaseExceptionGroup) else [each])
    return found


def short(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


@asynccontextmanager
async def running(targets: list[Target]) -> AsyncIterator[None]:
    for target in targets:
        await target.start()
    try:
        yield
    finally:
        for target in targets:
            with contextlib.suppress(OSError):
                await target.stop()


def describe(run: Run) -> dict[str, Any]:
    versions: dict[str, str | None] = {name: installed_version(name) for name in PACKAGES}
    versions |= {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    return {
        "command": [Path(sys.executable).name, "-m", "tests.bench", *sys.argv[1:]],
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "platform": platform.platform(),
        "cpu": {"count": os.cpu_count(), "model": cpu_model(), "load_average": psutil.getloadavg()[0]},
        "memory_mb": psutil.virtual_memory().total // 1_000_000,
        "filesystem": filesystem_of(run.work_dir),
        "settings": vars(run.settings),
        "targets": {target.name: target.describe() for target in run.targets},
    }


def headline(facts: dict[str, Any], full: bool) -> str:
    cpu = facts["cpu"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    machine = f"{cpu['count']} cores ({cpu['model']}), {facts['filesystem']}"
    return f"{'full' if full else 'quick'} sizes, {facts['seconds']:g} s; {machine}; {versions}"


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def filesystem_of(folder: Path) -> str:
    """The kind of file system the data directories are on: a memory disk would flatter a database."""
    inside = [p for p in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(p.mountpoint)]
    return max(inside, key=lambda p: len(p.mountpoint)).fstype if inside else "unknown"


if __name__ == "__main__":
    main()
