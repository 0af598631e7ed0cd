"""Rollers as processes of their own, and what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pubsubd.roll import faults
from pubsubd.roll.roller import Report

ROLL_SECONDS_MAX = 60.0


class Ended(NamedTuple):
    code: int
    report: Report | None  # None: it died


def command(data_dir: Path, journal: Path, *options: str) -> Sequence[str]:
    place = ["--data-dir", str(data_dir), "--journal", str(journal)]
    return [sys.executable, "-m", "pubsubd.roll", *place, *options]


def roll_process(data_dir: Path, journal: Path, *options: str, die_at: str = "", **more: Any) -> Ended:
    """Run one to its end; `die_at`: where it kills itself."""
    environment = {**os.environ, faults.VARIABLE: die_at}
    ended = subprocess.run(
        command(data_dir, journal, *options),
        capture_output=True, text=True, timeout=ROLL_SECONDS_MAX, env=environment, check=False, **more,
    )  # fmt: skip  # short items, many to a line
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ended(ended.returncode, Report(**json.loads(ended.stdout)) if ended.stdout else None)


def files(journal: Path) -> list[str]:
    """Every file but the roller's lock and the mark of the owner, relative to the journal."""
    return sorted(
        str(path.relative_to(journal))
        for path in journal.rglob("*")
        if path.is_file() and path.name not in ("_roll.lock", "_server")
    )


def segment_files(journal: Path) -> list[Path]:
    """In the order of their numbers."""
    return sorted(journal.glob("segments/date=*/hour=*/seg-*.parquet"), key=lambda path: path.name)


def tables(journal: Path) -> list[pa.Table]:
    """What is in each segment; that its name tells the truth is checked on the way."""
    found = []
    for path in segment_files(journal):
        # One file alone: its folder's name would become columns.
        with path.open("rb") as file:
            table = pq.read_table(file)
        _, first_seq, last_seq = path.stem.split("-")
        seqs = table["seq"].to_pylist()
        assert seqs == list(range(int(first_seq), int(last_seq) + 1)), path
        found.append(table)
    return found


def rows(journal: Path) -> list[dict[str, Any]]:
    """Every sealed event, in the order of segments."""
    return [row for table in tables(journal) for row in table.to_pylist()]


def seqs(journal: Path) -> list[int]:
    return [seq for table in tables(journal) for seq in table["seq"].to_pylist()]
