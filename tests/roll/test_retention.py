"""Whole hours go once they are old enough."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from pubsubd.roll.roller import Report, roll
from tests.roll.rolling import files, segment_files, seqs
from tests.roll.writing import HOUR_13_US, HOUR_US, Writing, at


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def roll_at(writing: Writing, journal: Path, hours: float, keep_hours: int, backlog: bool = False) -> Report:
    """`hours` after 13:00."""
    now_us = HOUR_13_US + int(hours * HOUR_US)
    report = roll(writing.directory, journal, keep_hours=keep_hours, backlog=backlog, now_us=lambda: now_us)
    assert report.error is None
    return report


async def test_an_hour_goes_when_its_end_is_too_long_ago(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, HOUR_US, 2 * HOUR_US))

    assert roll_at(writing, journal, 3.99, keep_hours=3).removed_hours == 0
    assert seqs(journal) == [1, 2, 3]
    assert roll_at(writing, journal, 4, keep_hours=3).removed_hours == 1
    assert seqs(journal) == [2, 3]
    assert sorted(path.name for path in journal.glob("segments/*/*")) == ["hour=14", "hour=15"]


async def test_all_is_kept_unless_told_otherwise(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, HOUR_US))

    assert roll_at(writing, journal, 10_000, keep_hours=0).removed_hours == 0
    assert seqs(journal) == [1, 2]


async def test_the_newest_segment_stays_however_old_it_is(writing: Writing, journal: Path) -> None:
    """Its name tells a server that starts how far its journal is sealed."""
    await writing.commit(*at(0, 11 * HOUR_US, 11 * HOUR_US))

    assert roll_at(writing, journal, 1000, keep_hours=1).removed_hours == 1
    await writing.sealed(3)
    again = roll_at(writing, journal, 1000, keep_hours=1)

    assert (again.last_seq, again.removed_hours) == (3, 0)
    assert seqs(journal) == [2, 3]


async def test_a_day_goes_with_its_last_hour(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, 10 * HOUR_US, 11 * HOUR_US))  # 13:00, 23:00, midnight

    assert roll_at(writing, journal, 20, keep_hours=2).removed_hours == 2
    assert [path.name for path in (journal / "segments").iterdir()] == ["date=2026-02-01"]


async def test_a_backlog_goes_with_the_segments_that_led_to_it(writing: Writing, journal: Path) -> None:
    for hours in (0, 1, 2):
        await writing.commit(*at(hours * HOUR_US))
        roll_at(writing, journal, hours, keep_hours=100, backlog=True)

    roll_at(writing, journal, 3.5, keep_hours=2)

    assert files(journal)[:2] == ["backlog/backlog-2.parquet", "backlog/backlog-3.parquet"]
    assert seqs(journal) == [2, 3]


async def test_what_is_somebody_else_s_is_not_removed(writing: Writing, journal: Path) -> None:
    await writing.commit(*at(0, HOUR_US))
    roll_at(writing, journal, 2, keep_hours=0)
    first, _ = segment_files(journal)
    (first.parent / "notes.txt").write_text("mine")
    (journal / "segments" / "date=yesterday" / "hour=1").mkdir(parents=True)

    roll_at(writing, journal, 100, keep_hours=1)

    assert not first.exists()
    assert (first.parent / "notes.txt").read_text() == "mine"
    assert (journal / "segments" / "date=yesterday" / "hour=1").is_dir()
