"""A roller that dies leaves nothing half done that anybody would read, and the next one goes on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from pubsubd.roll.faults import Step
from pubsubd.roll.roller import roll
from tests.roll.rolling import Ended, files, roll_process, rows, seqs
from tests.roll.writing import HOUR_13, HOUR_14, HOUR_US, Writing, at

KILLED = Ended(-9, None)
FIRST = f"{HOUR_13}/seg-0000000000000001-0000000000000002.parquet"
SECOND = f"{HOUR_14}/seg-0000000000000003-0000000000000004.parquet"
BACKLOG = "backlog/backlog-4.parquet"


def temporary(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/_{file}.tmp"


# What is there after a death at a step of the first file, of the second, and of the backlog.
DEATHS = [
    (Step.WRITTEN, 1, [temporary(FIRST)]),
    (Step.FLUSHED, 1, [temporary(FIRST)]),
    (Step.RENAMED, 1, [FIRST]),
    (Step.DONE, 1, [FIRST]),
    (Step.WRITTEN, 2, [FIRST, temporary(SECOND)]),
    (Step.RENAMED, 2, [FIRST, SECOND]),
    (Step.FLUSHED, 3, [temporary(BACKLOG), FIRST, SECOND]),
    (Step.DONE, 3, [BACKLOG, FIRST, SECOND]),
]


@pytest.mark.parametrize(("step", "time", "left"), DEATHS, ids=lambda one: str(one)[:8])
async def test_whatever_a_dead_roller_left_the_next_one_completes(
    writing: Writing, tmp_path: Path, step: Step, time: int, left: Iterable[str]
) -> None:
    journal = tmp_path / "journal"
    # One commit, so that the first segment ends inside of a row.
    await writing.commit(*at(0, 1, HOUR_US, HOUR_US + 1), details=[(2, {"a": 1})])

    assert roll_process(writing.directory, journal, "--backlog", die_at=f"{step}:{time}") == KILLED

    assert files(journal) == sorted(left)
    report = roll(writing.directory, journal, backlog=True)
    assert (report.last_seq, report.error) == (4, None)
    assert files(journal) == [BACKLOG, FIRST, SECOND]
    assert rows(journal) == await writing.tail()


async def test_rows_that_were_not_deleted_are_not_sealed_again(writing: Writing, tmp_path: Path) -> None:
    """The server may be killed between hearing of a segment and deleting its rows."""
    journal = tmp_path / "journal"
    await writing.commit(*at(0, 1))
    await writing.commit(*at(2))
    roll(writing.directory, journal)
    await writing.commit(*at(3))
    await writing.sealed(2)  # of three

    roll(writing.directory, journal)

    assert seqs(journal) == [1, 2, 3, 4]


async def test_only_the_rollers_own_leftovers_go(writing: Writing, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    await writing.commit(*at(0))
    roll(writing.directory, journal)
    folder = journal / HOUR_13
    for name in ("_seg.tmp", "_SUCCESS", ".hidden", "notes.txt"):
        (folder / name).write_text("x")

    await writing.commit(*at(1))
    report = roll(writing.directory, journal)

    assert (report.last_seq, report.error) == (2, None)
    assert {path.name for path in folder.iterdir()} >= {"_SUCCESS", ".hidden", "notes.txt"}
    assert not (folder / "_seg.tmp").exists()
