"""The command: `python -m tests.crash --kills 500`."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from tests.crash.run import WAYS, Outcome, Run

_SHOWN_MAX = 20


@click.command()
@click.option("--kills", type=click.IntRange(min=1), default=50, show_default=True, help="How often it dies.")
@click.option("--seed", type=int, help="Draws the same load and moments again; the timing is the machine's.")
@click.option("--drain/--no-drain", default=True, help="Whether to wait at the end for the last ack.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Kept; has to be empty.")
@click.option("--server-option", multiple=True, help="For `pubsubd serve`, as in --durability=power.")
def main(
    kills: int, seed: int | None, drain: bool, data_dir: Path | None, server_option: tuple[str, ...]
) -> None:
    """Kill pubsubd under load, and check from outside that it kept its promises."""
    if seed is None:
        seed = random.randrange(1_000_000)
    click.echo(f"{kills} kills, seed {seed}")
    with tempfile.TemporaryDirectory() as scratch:
        directory = data_dir or Path(scratch)
        run = Run(directory, kills, seed, drain=drain, show=_progress, options=server_option)
        outcome = asyncio.run(run.run())
    _progress("")
    click.echo(str(run.plan))
    click.echo(table(outcome))
    raise SystemExit(1 if outcome.violations else 0)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def table(outcome: Outcome) -> str:
    """What happened and what was broken, for a person."""
    lines = ["kills"]
    lines += [f"  {way:<42}{outcome.kills[way]:>10,}" for way in WAYS if outcome.kills[way]]
    lines.append("what clients saw")
    lines += [f"  {what:<42}{count:>10,}" for what, count in sorted(outcome.counts.items())]
    broken = Counter(violation.promise for violation in outcome.violations)
    lines.append(f"broken promises{len(outcome.violations):>37,}")
    lines += [f"  {promise:<42}{count:>10,}" for promise, count in broken.most_common()]
    for violation in outcome.violations[:_SHOWN_MAX]:
        lines.append(
            f"  ! {violation.promise}: {violation.subscription} {violation.message_id}: {violation.text}"
        )
    lines.append(f"{outcome.seconds:.1f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
