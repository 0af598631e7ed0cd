"""What a roller does not do, and the one sentence that it says then."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from filelock import FileLock

from pubsubd.roll import folder
from pubsubd.roll.roller import roll
from pubsubd.storage.store import FILE_NAME, SCHEMA_VERSION
from tests.roll.rolling import command, files, roll_process, rows, segment_files, seqs
from tests.roll.writing import HOUR_13, HOUR_US, Writing, at


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def refusal(data_dir: Path, journal: Path) -> str:
    """The sentence; nothing was sealed, and nothing may be deleted because of it."""
    before = files(journal)
    report = roll(data_dir, journal)
    assert report.error is not None
    assert "\n" not in report.error
    assert (report.last_seq, report.events, report.segments) == (0, 0, [])
    assert files(journal) == before
    return report.error


def change(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        connection.execute(statement)
        connection.commit()


# --- the tail ----------------------------------------------------------------------------------------------


async def test_a_row_of_a_later_format_is_not_sealed_and_nothing_after_it(
    writing: Writing, journal: Path
) -> None:
    await writing.commit(*at(0, 1))
    roll(writing.directory, journal)
    await writing.commit(*at(2), version=2)
    await writing.commit(*at(3))

    report = roll(writing.directory, journal)

    assert report.error is not None
    assert "of format 2 from event 3 on, and this pubsubd knows only format 1" in report.error
    assert (report.last_seq, report.events) == (2, 0)
    assert seqs(journal) == [1, 2]


@pytest.mark.parametrize("statement", ["SET data = substr(data, 2)", "SET n = n + 1", "SET n = 0"])
async def test_a_row_that_is_not_what_it_says_is_not_sealed(
    writing: Writing, journal: Path, statement: str
) -> None:
    await writing.commit(*at(0, 1))
    change(writing.directory, f"UPDATE journal_tail {statement}")

    assert "is damaged at event 1" in refusal(writing.directory, journal)


async def test_records_that_are_not_numbered_as_their_row_says_are_not_sealed(
    writing: Writing, journal: Path
) -> None:
    await writing.commit(*at(0, 1))
    change(writing.directory, "UPDATE journal_tail SET first_seq = 4")

    assert "is damaged at event 4" in refusal(writing.directory, journal)


# --- the database ------------------------------------------------------------------------------------------


def test_without_a_database_there_is_nothing_to_seal(tmp_path: Path, journal: Path) -> None:
    assert refusal(tmp_path / "nowhere", journal) == f"there is no database in {tmp_path / 'nowhere'}"


def test_the_database_of_another_program_is_left_alone(tmp_path: Path, journal: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE journal_tail (a)")

    assert "is not a database of pubsubd" in refusal(tmp_path, journal)


def test_what_is_no_database_is_said_to_be_unreadable(tmp_path: Path, journal: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database, but long enough to be one " * 100)

    assert "cannot be read: file is not a database" in refusal(tmp_path, journal)


@pytest.mark.parametrize(
    ("layout", "age"), [(SCHEMA_VERSION - 1, "an older"), (SCHEMA_VERSION + 1, "a newer")]
)
async def test_another_layout_is_refused(writing: Writing, journal: Path, layout: int, age: str) -> None:
    change(writing.directory, f"PRAGMA user_version = {layout}")

    assert f"was written by {age} pubsubd (layout {layout}, " in refusal(writing.directory, journal)


# --- the journal -------------------------------------------------------------------------------------------


async def test_nothing_is_added_to_the_journal_of_another_database(
    writing: Writing, journal: Path, tmp_path: Path
) -> None:
    await writing.commit(*at(0, 1))
    roll(writing.directory, journal)
    async with Writing.open(tmp_path / "other") as other:
        await other.commit(*at(0, 1, 2))

        assert "belongs to another database" in refusal(other.directory, journal)
        (journal / "_server").unlink()  # the segments say so as well
        assert "belongs to another database" in refusal(other.directory, journal)


async def test_nothing_is_added_after_a_segment_that_somebody_else_put_there(
    writing: Writing, journal: Path, tmp_path: Path
) -> None:
    await writing.commit(*at(0))
    roll(writing.directory, journal)
    async with Writing.open(tmp_path / "other") as other:
        await other.commit(*at(0, 1, 2))
        roll(other.directory, tmp_path / "others")
    (foreign,) = segment_files(tmp_path / "others")
    shutil.copy(foreign, journal / HOUR_13)

    assert "is damaged or of another database" in refusal(writing.directory, journal)


async def test_nothing_is_added_to_segments_that_know_more_than_the_database(
    writing: Writing, journal: Path, tmp_path: Path
) -> None:
    """A copy of an hour ago was put in place of the database: it gives old numbers to new events."""
    await writing.commit(*at(0))
    copy = tmp_path / "copy"
    shutil.copytree(writing.directory, copy)
    await writing.commit(*at(1, 2))
    roll(writing.directory, journal)

    sentence = refusal(copy, journal)

    assert "end with event 3 and the database with event 1: it is older" in sentence


async def test_two_rollers_do_not_work_at_once(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0))
    journal.mkdir()
    with FileLock(journal / folder.LOCK):
        report = roll(writing.directory, journal, lock_seconds=0.1)
    assert report.error == f"another roller has been at work in {journal} for 0.1 seconds"
    assert files(journal) == []

    assert roll(writing.directory, journal).last_seq == 1


async def test_rollers_that_come_together_take_turns(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, HOUR_US))
    running = [
        subprocess.Popen(command(writing.directory, journal), stdout=subprocess.DEVNULL) for _ in range(3)
    ]

    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert seqs(journal) == [1, 2]


# --- the disk ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="sizes of files cannot be limited there")
async def test_a_file_that_may_not_grow_is_not_there_and_the_next_roll_does_it(
    writing: Writing, journal: Path
) -> None:
    import resource

    await writing.commit(*at(0))
    # Noise, which does not become smaller.
    noise = [one._replace(payload_hash=hash((at, "x"))) for at, one in enumerate(at(*[HOUR_US] * 3000))]
    await writing.commit(*noise)

    ended = roll_process(
        writing.directory,
        journal,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000)),
    )

    assert ended.code == 1
    assert ended.report is not None and ended.report.error is not None
    assert ended.report.error.endswith("cannot be written: File too large")
    # The hour before was small enough.
    assert ended.report.last_seq == 1
    assert files(journal) == [f"{HOUR_13}/seg-0000000000000001-0000000000000001.parquet"]
    assert roll(writing.directory, journal).last_seq == 3001
    assert rows(journal) == await writing.tail()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a tiny disk")
async def test_a_full_disk_is_told_and_leaves_no_file(writing: Writing, tmp_path: Path) -> None:
    journal = tmp_path / "disk"
    journal.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(journal)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        noise = [one._replace(payload_hash=hash((at, "x"))) for at, one in enumerate(at(*[0] * 20_000))]
        await writing.commit(*noise)

        report = roll(writing.directory, journal)

        assert report.error is not None
        assert report.error.endswith("cannot be written: No space left on device")
        assert (report.last_seq, files(journal)) == (0, [])
        subprocess.run(["mount", "-o", "remount,size=8m", str(journal)], check=True)
        assert roll(writing.directory, journal).last_seq == 20_000
    finally:
        subprocess.run(["umount", str(journal)], check=True)


async def test_a_journal_that_cannot_be_made_is_told(writing: Writing, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    report = roll(writing.directory, tmp_path / "file" / "journal")

    assert (
        report.error
        == f"the journal directory {tmp_path / 'file' / 'journal'} cannot be used: Not a directory"
    )
