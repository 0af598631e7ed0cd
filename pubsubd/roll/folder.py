"""The journal's folder: which files are in it, and how one gets there whole or not at all.

Names that begin with `_` are nobody's business but the roller's. A file is written under such a name beside
its place, flushed, renamed, and then its folder is flushed: so every file with a real name is complete.
Needs nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pubsubd.journal.segments import BACKLOG, SEGMENTS, segment_name
from pubsubd.roll.faults import Faults, Step

VERSION = 1  # of the segments' layout
# Key-value metadata of every segment and backlog file.
VERSION_KEY = "pubsubd.format"
SERVER_KEY = "pubsubd.server"

LOCK = "_roll.lock"

_TEMPORARY = re.compile(r"_.*\.tmp")
_SEGMENT = re.compile(r"seg-(\d{16})-(\d{16})\.parquet")
_BACKLOG = re.compile(r"backlog-(\d+)\.parquet")
_DATE = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)")
_HOUR = re.compile(r"hour=(\d{1,2})")

_HOUR_US = 3600 * 10**6
# Times of events are not quite in the order of their numbers, so the newest segment may lie in the folder
# before the newest one.
_NEWEST_HOURS = 3

# A Parquet file ends with its metadata, their length and a mark.
_MARK = b"PAR1"
_FOOTER_BYTES_MAX = 16 << 20


class Segment(NamedTuple):
    path: Path
    first_seq: int
    last_seq: int


class Hour(NamedTuple):
    """A folder of one hour."""

    start_us: int
    path: Path


# -- what is there ------------------------------------------------------------------------------------------


def hours(journal: Path) -> list[Hour]:
    """Every hour that has a folder, oldest first."""
    found = []
    for date_path in _entries(journal / SEGMENTS):
        date = _DATE.fullmatch(date_path.name)
        for path in _entries(date_path) if date else ():
            hour = _HOUR.fullmatch(path.name)
            if date and hour:
                with contextlib.suppress(ValueError):  # a thirteenth month is not ours
                    begins = datetime(*map(int, (*date.groups(), hour[1])), tzinfo=UTC)  # type: ignore[misc,arg-type]  # four integers
                    found.append(Hour(int(begins.timestamp()) * 10**6, path))
    return sorted(found)


def segments(folder: Path) -> list[Segment]:
    """The segments of one hour, in order."""
    found = [(_SEGMENT.fullmatch(path.name), path) for path in _entries(folder)]
    return sorted(
        [Segment(path, int(named[1]), int(named[2])) for named, path in found if named],
        key=lambda one: one.first_seq,
    )


def newest_segment(journal: Path) -> Segment | None:
    """The one that ends last: all events up to its `last_seq` are sealed, or lost for good."""
    newest: list[Segment] = []
    looked_into = 0
    for hour in reversed(hours(journal)):
        there = segments(hour.path)
        newest += there
        looked_into += bool(there)
        if looked_into == _NEWEST_HOURS:
            break
    return max(newest, key=lambda one: one.last_seq, default=None)


def server_of(path: Path) -> str | None:
    """The `server_id` of whoever wrote a segment or a backlog file; None if that is not to be found in it.

    The metadata are searched for the pair as Thrift's compact protocol writes it: each of its two texts as a
    byte that announces it and a byte with its length.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read()
        length = int.from_bytes(end[:4], "little")
        if end[4:] != _MARK or not 0 < length <= min(size - 8, _FOOTER_BYTES_MAX):
            return None
        file.seek(size - 8 - length)
        footer = file.read(length)
    key = b"\x18" + bytes([len(SERVER_KEY)]) + SERVER_KEY.encode()
    found = re.search(re.escape(key) + rb"\x18\x10([0-9a-f]{16})", footer)
    return found[1].decode() if found else None


def metadata(server: str) -> dict[str, str]:
    return {VERSION_KEY: str(VERSION), SERVER_KEY: server}


def segment_path(journal: Path, ts_us: int, first_seq: int, last_seq: int) -> Path:
    """Where the segment belongs whose first event was at `ts_us`."""
    at = datetime.fromtimestamp(ts_us // _HOUR_US * 3600, UTC)
    folder = journal / SEGMENTS / f"date={at:%Y-%m-%d}" / f"hour={at:%H}"
    return folder / segment_name(first_seq, last_seq)


def backlog_path(journal: Path, seq: int) -> Path:
    return journal / BACKLOG / f"backlog-{seq}.parquet"


def backlogs(journal: Path) -> list[tuple[int, Path]]:
    """(seq, path) of every backlog file, oldest first."""
    found = [(_BACKLOG.fullmatch(path.name), path) for path in _entries(journal / BACKLOG)]
    return sorted((int(named[1]), path) for named, path in found if named)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


# -- how a file gets there ----------------------------------------------------------------------------------


@contextlib.contextmanager
def written(path: Path, faults: Faults) -> Iterator[BinaryIO]:
    """A file to write to, which is `path` afterwards, for good; after an exception nothing is there."""
    _make(path.parent)
    temporary = path.with_name(f"_{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            faults.at(Step.WRITTEN)
            os.fsync(file.fileno())
        faults.at(Step.FLUSHED)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    faults.at(Step.RENAMED)
    flush_folder(path.parent)
    faults.at(Step.DONE)


def _make(folder: Path) -> None:
    """Make `folder` and what leads to it, so that it is found again after a loss of power."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


# -- what goes ----------------------------------------------------------------------------------------------


def remove_temporary(journal: Path) -> None:
    """What rollers that died have left, each in the newest hour of its time; nobody else may be writing."""
    folders = [hour.path for hour in hours(journal)[-_NEWEST_HOURS:]] + [journal / BACKLOG]
    for path in [path for folder in folders for path in _entries(folder)]:
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def remove_old_hours(journal: Path, before_us: int) -> int:
    """Remove the folders of hours that ended before, and backlogs from before what is left; how many hours.

    The newest segment stays: its name says how far the journal is sealed. Oldest first, so that what is left
    after a death on the way has no hole.
    """
    newest = newest_segment(journal)
    old = [hour for hour in hours(journal) if hour.start_us + _HOUR_US <= before_us]
    old = [hour for hour in old if newest is None or hour.path != newest.path.parent]
    doomed = [segment for hour in old for segment in segments(hour.path)]
    for segment in sorted(doomed, key=lambda one: one.first_seq):
        segment.path.unlink(missing_ok=True)
    removed = 0
    for hour in old:
        with contextlib.suppress(OSError):  # something of somebody else's is in it
            hour.path.rmdir()
            removed += 1
        with contextlib.suppress(OSError):  # another hour of that day stays
            hour.path.parent.rmdir()
    if doomed:
        last_removed = max(segment.last_seq for segment in doomed)
        for seq, path in backlogs(journal):
            if seq <= last_removed:
                path.unlink(missing_ok=True)
    return removed
