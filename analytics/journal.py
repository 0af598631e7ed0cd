"""The sealed segments of a journal as a table, and what is known to be missing of it.

Nothing is inferred: the schema is fixed, the order of segments comes from their names, and what a segment
claims (format version, which server, number of events) is compared with what it holds before a job relies on
it. The tail that is not sealed yet is the server's file and is not read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from analytics import footer, layout
from analytics.errors import UsageError
from analytics.footer import Footer
from analytics.paths import Files, Listed, below, local, locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SQL_TYPES = {"int8": "tinyint", "int32": "int", "int64": "bigint", "string": "string"}
#: Schema of what `load_journal` gives, as Spark DDL.
SCHEMA = ", ".join(f"{column.name} {_SQL_TYPES[column.type]}" for column in layout.COLUMNS)
SCHEMA_WITH_HOURS = f"{SCHEMA}, date date, hour int"


@dataclass(frozen=True, order=True)
class Segment:
    """A sealed file of events `first_seq` to `last_seq`; date and hour are those of its first event, UTC."""

    first_seq: int
    last_seq: int
    path: str
    date: date
    hour: int
    size: int = 0  # bytes

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1


@dataclass(frozen=True)
class BacklogFile:
    """The open messages of every subscription as of `seq`."""

    path: str
    seq: int
    size: int = 0  # bytes


@dataclass(frozen=True)
class Damaged:
    """A segment that is not read, and why."""

    segment: Segment
    why: str


@dataclass
class Journal:
    """A range of events, `first_seq` to `last_seq`, and what is missing in it.

    `events` has the columns of `layout.COLUMNS` in order, then `date` and `hour`. `resources` is the same
    from the beginning of the first hour, for the rows that say what exists: with a start in the middle of an
    hour, the repeated CONFIG rows of that hour lie before the range.
    """

    path: str
    events: DataFrame
    resources: DataFrame
    segments: list[Segment]
    server: str
    first_seq: int
    last_seq: int
    count: int
    first_us: int
    last_us: int
    missing: list[tuple[int, int]]
    damaged: list[Damaged]
    backlog: BacklogFile | None
    message_id_max: int | None  # of all events in these segments; None where a footer does not tell
    sub_id_max: int | None
    subscriptions: tuple[str, ...] = ()
    gaps: list[tuple[int, int]] = field(default_factory=list)  # of GAP events, once the dimensions are known

    @property
    def complete(self) -> bool:
        return not self.missing and not self.gaps

    @property
    def is_partial_start(self) -> bool:
        """Whether events before the range exist or existed."""
        return self.first_seq > 1


def _segments_in(files: Iterable[Listed]) -> list[Segment]:
    found = []
    for file in files:
        match = layout.SEGMENT_PATH.fullmatch(file.relative)
        if match:
            day, hour, first, last = match.groups()
            segment = Segment(int(first), int(last), file.path, date.fromisoformat(day), int(hour), file.size)
            found.append(segment)
    return sorted(found)


def _backlogs_in(files: Iterable[Listed]) -> list[BacklogFile]:
    found = []
    for file in files:
        match = layout.BACKLOG_NAME.fullmatch(file.relative)
        if match:
            found.append(BacklogFile(file.path, int(match[1]), file.size))
    return sorted(found, key=lambda file: file.seq)


def _files_below(path: str, folder: str, files: Files | None) -> list[Listed] | None:
    """Files below JOURNAL/`folder`, None if there is no such folder; without `files` only on this machine."""
    here = local(path)
    if here is not None:
        inside = here / folder
        return below(inside) if inside.is_dir() else None
    if files is None:
        raise UsageError(f"{path} is not on this machine; this command reads only folders of this machine.")
    inside_uri = f"{locate(path)}/{folder}"
    return files.below(inside_uri) if files.exists(inside_uri) else None


def _check_folder(path: str, files: Files | None) -> None:
    here = local(path)
    if here is not None:
        if not here.exists():
            raise UsageError(f"There is no folder {path}.")
        if not here.is_dir():
            raise UsageError(f"{path} is not a folder.")
    elif files is not None and not files.exists(locate(path)):
        raise UsageError(f"There is no folder {path}.")


def segments_of(path: str, files: Files | None = None) -> list[Segment]:
    """The segments of a journal in their order; without `files` no Spark is needed, but a local folder.

    Raises:
        UsageError: there is no such folder, or it holds no segment.
    """
    _check_folder(path, files)
    listed = _files_below(path, layout.SEGMENTS, files)
    found = _segments_in(listed or ())
    if not found:
        why = "no folder `segments`" if listed is None else "no sealed segment"
        raise UsageError(
            f"{path} holds {why}: it is not a journal, or nothing of it is sealed yet "
            "(`--seal ADDR` asks a running server to)."
        )
    for earlier, later in pairwise(found):
        if later.first_seq <= earlier.last_seq:
            raise UsageError(
                f"{earlier.path} and {later.path} both claim event {later.first_seq}: "
                "they are not of one journal."
            )
    return found


def backlogs_of(path: str, files: Files | None = None) -> list[BacklogFile]:
    """The backlog files of a journal, oldest first."""
    return _backlogs_in(_files_below(path, layout.BACKLOG, files) or ())


def backlog_file(path: str) -> BacklogFile:
    """A backlog file that somebody names; its seq is in its name.

    Raises:
        UsageError: there is no such file, or it has another kind of name.
    """
    match = layout.BACKLOG_NAME.fullmatch(path.rstrip("/").rpartition("/")[2])
    here = local(path)
    if here is not None and not here.is_file():
        raise UsageError(f"There is no backlog file {path}.")
    if not match:
        raise UsageError(f"{path} is not a backlog file: their names are backlog-SEQ.parquet.")
    return BacklogFile(locate(path), int(match[1]), here.stat().st_size if here is not None else 0)


def _problem_of(file: BacklogFile, server: str, files: Files) -> str | None:
    """Why a backlog file cannot be compared with this journal, or None."""
    here = local(file.path)
    size = file.size if here is not None else files.size(file.path)
    tail = footer.tail_of(here) if here is not None else lambda count: files.tail(file.path, size, count)
    told = footer.read_backlog(tail, size)
    if told.problem is not None:
        return told.problem
    if told.version != str(layout.VERSION):
        return f"it is of format version {told.version}" if told.version else "pubsubd did not write it"
    return None if told.server == server else "it is of another server"


def holes(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Ranges of seq, both ends included, that no segment between the first and the last holds."""
    return [
        (earlier.last_seq + 1, later.first_seq - 1)
        for earlier, later in pairwise(segments)
        if later.first_seq > earlier.last_seq + 1
    ]


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in as few ranges as can be, in order."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def footers(segments: Sequence[Segment], files: Files | None = None) -> list[Footer]:
    """What each segment says of itself, in the order given; a damaged one has a `problem`."""
    return [_checked(segment, files) for segment in segments]


def _checked(segment: Segment, files: Files | None) -> Footer:
    here = local(segment.path)
    if here is not None:
        told = footer.read(footer.tail_of(here), segment.size)
    else:
        assert files is not None, "segments elsewhere are listed with files"
        told = footer.read(lambda count: files.tail(segment.path, segment.size, count), segment.size)
    if told.problem is None and told.version == str(layout.VERSION) and told.count != segment.count:
        claimed = f"it has {segment.count} events by its name, {told.count} by its footer"
        return replace(told, problem=claimed)
    return told


def check_origin(segments: Sequence[Segment], told: Sequence[Footer]) -> tuple[str, list[Footer]]:
    """The server that all segments are of, as their metadata name it, and the footers with what is wrong of
    them.

    One that names no version among others that do is taken for damaged, not for another program's.

    Raises:
        UsageError: the segments are of another program, of a later format, or of several servers.
    """
    sound = [(segment, said) for segment, said in zip(segments, told, strict=True) if not said.problem]
    named = [(segment, said) for segment, said in sound if (said.version or "").isdecimal()]
    if sound and not named:
        raise UsageError(f"{sound[0][0].path} was not written by pubsubd: it names no format version.")
    for segment, said in named:
        if said.version != str(layout.VERSION):
            raise UsageError(
                f"{segment.path} has format version {said.version}, and this program reads version "
                f"{layout.VERSION}: it was written by another release of pubsubd; use that one's analytics."
            )
        if said.server != named[0][1].server:
            raise UsageError(
                f"{named[0][0].path} and {segment.path} are of different servers "
                f"({named[0][1].server or 'not named'} and {said.server or 'not named'})."
            )
    checked = [
        said if said.problem or said.version else replace(said, problem="it names no format version")
        for said in told
    ]
    return (named[0][1].server if named else ""), checked


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _hour_of(moment: datetime) -> tuple[date, int]:
    utc = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    return utc.date(), utc.hour


def _hour_us(segment: Segment) -> int:
    start = datetime(segment.date.year, segment.date.month, segment.date.day, segment.hour, tzinfo=UTC)
    return _micros(start)


def load_journal(
    spark: SparkSession,
    path: str,
    start: datetime | None = None,
    end: datetime | None = None,
    subscriptions: Sequence[str] = (),
    backlog: str | None = None,
    unreadable: Mapping[str, str] | None = None,
) -> Journal:
    """The events from `start` (included) to `end` (excluded), and what is missing among them.

    Times without a zone are UTC. The range is one of seq without holes of its own: from the first event at or
    after `start` up to before the first at or after `end`; some rows in between may carry an earlier time,
    since an ACK has the time at which it arrived. An explicit `backlog` file ends the range at its seq.
    `subscriptions` is only carried along: which rows belong to them is known once the dimensions are.
    `unreadable` has paths of segments that a reader failed on before although their footers are sound, and
    why; they count as missing.

    Raises:
        UsageError: there is nothing to read, or what is there is not one journal of this format.
    """
    files = Files(spark)
    named = backlog_file(backlog) if backlog else None
    everything = segments_of(path, files)
    wanted = _of_hours(everything, start, end)
    if named is not None:
        wanted = [segment for segment in wanted if segment.first_seq <= named.seq]
    if not wanted:
        raise UsageError(_nothing_between(path, everything, start, end))
    told = footers(wanted, files)
    if unreadable:
        told = [
            replace(said, problem=unreadable.get(segment.path, said.problem))
            for segment, said in zip(wanted, told, strict=True)
        ]
    server, told = check_origin(wanted, told)
    damaged = [
        Damaged(segment, said.problem)
        for segment, said in zip(wanted, told, strict=True)
        if said.problem is not None
    ]
    sound = [(s, f) for s, f in zip(wanted, told, strict=True) if f.problem is None]
    if not sound:
        raise UsageError(f"None of the {len(wanted)} segments of {path} can be read: {damaged[0].why}.")

    first_seq, last_seq = wanted[0].first_seq, wanted[-1].last_seq
    hours_first_seq = first_seq
    if start is not None:
        found = _first_at_or_after(spark, sound, _micros(start))
        if found is None:
            raise UsageError(_nothing_between(path, everything, start, end))
        first_seq = found
    if end is not None:
        after = _first_at_or_after(spark, sound, _micros(end))
        last_seq = last_seq if after is None else after - 1
    if named is not None:
        if problem := _problem_of(named, server, files):
            raise UsageError(f"The backlog file {named.path} is of no use: {problem}.")
        if named.seq > last_seq:
            raise UsageError(
                f"{named.path} is of a later time than the events that are read, which end with {last_seq}."
            )
        last_seq = named.seq
    if first_seq > last_seq:
        raise UsageError(_nothing_between(path, everything, start, end))

    missing = merged(
        (max(first, first_seq), min(last, last_seq))
        for first, last in [
            *holes(wanted),
            *((bad.segment.first_seq, bad.segment.last_seq) for bad in damaged),
        ]
        if first <= last_seq and last >= first_seq
    )
    used = [s for s, _ in sound if s.first_seq <= last_seq and s.last_seq >= hours_first_seq]
    rows = _read(spark, used, files, path)
    in_range = [s for s in used if s.last_seq >= first_seq]
    told_of = [said for segment, said in sound if segment in set(in_range)]
    first_us = min(
        (said.first_us for said in told_of if said.first_us is not None), default=_hour_us(wanted[0])
    )
    last_us = max(
        (said.last_us for said in told_of if said.last_us is not None), default=_hour_us(wanted[-1])
    )
    return Journal(
        path=path,
        events=rows.where(f"seq between {first_seq} and {last_seq}"),
        resources=rows.where(f"seq between {hours_first_seq} and {last_seq}"),
        segments=in_range,
        server=server,
        first_seq=first_seq,
        last_seq=last_seq,
        count=sum(min(s.last_seq, last_seq) - max(s.first_seq, first_seq) + 1 for s in in_range),
        first_us=first_us if start is None else max(first_us, _micros(start)),
        last_us=last_us if end is None else min(last_us, _micros(end)),
        missing=missing,
        damaged=damaged,
        backlog=named or _usable(backlogs_of(path, files), server, files, last_seq),
        message_id_max=_largest(said.message_id_max for said in told_of),
        sub_id_max=_largest(said.sub_id_max for said in told_of),
        subscriptions=tuple(subscriptions),
    )


def _largest(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else max((number for number in known if number is not None), default=None)


def _of_hours(segments: Sequence[Segment], start: datetime | None, end: datetime | None) -> list[Segment]:
    """Those that can hold events of the range: no segment goes on into an hour later than its folder's."""
    low = _hour_of(start) if start else (date.min, 0)
    high = _hour_of(end) if end else (date.max, 23)
    return [segment for segment in segments if low <= (segment.date, segment.hour) <= high]


def _fitting(backlogs: Sequence[BacklogFile], last_seq: int) -> BacklogFile | None:
    """The one of the end of the range if there is one, else the newest; None without any."""
    exact = [file for file in backlogs if file.seq == last_seq]
    fitting = exact or list(backlogs)
    return fitting[-1] if fitting else None


def _usable(backlogs: Sequence[BacklogFile], server: str, files: Files, last_seq: int) -> BacklogFile | None:
    """The fitting one of those that can be relied on: a damaged one is as good as none."""
    found = _fitting(backlogs, last_seq)
    if found is None or _problem_of(found, server, files) is None:
        return found
    return _usable([file for file in backlogs if file != found], server, files, last_seq)


def _nothing_between(
    path: str, segments: Sequence[Segment], start: datetime | None, end: datetime | None
) -> str:
    bounds = [f"from {start.isoformat(' ')}" if start else "", f"to {end.isoformat(' ')}" if end else ""]
    first, last = segments[0], segments[-1]
    return (
        f"{path} holds no event {' '.join(filter(None, bounds)) or 'before the backlog file'}; "
        "its hours go from "
        f"{first.date} {first.hour:02}h to {last.date} {last.hour:02}h UTC."
    )


def _first_at_or_after(
    spark: SparkSession, sound: Sequence[tuple[Segment, Footer]], moment_us: int
) -> int | None:
    """The smallest seq of an event at or after a moment; it is in the first segment that reaches that."""
    for segment, said in sound:
        if said.last_us is not None and said.last_us < moment_us:
            continue
        rows = spark.read.schema(SCHEMA).option("__globPaths__", "false").parquet(locate(segment.path))
        (found,) = rows.where(f"ts_us >= {moment_us}").selectExpr("min(seq) as seq").collect()
        if found.seq is not None:
            return int(found.seq)
    return None


def _read(spark: SparkSession, segments: Sequence[Segment], files: Files, path: str) -> DataFrame:
    """Whole hours as folders where all that is in them is wanted, else file by file.

    A file by itself costs Spark a look of its own; a day has 1,440 of them and 24 folders.
    """
    by_folder: dict[str, list[Segment]] = {}
    for segment in segments:
        by_folder.setdefault(segment.folder, []).append(segment)
    there: dict[str, int] = {}
    for file in _files_below(path, layout.SEGMENTS, files) or ():
        folder = file.path.rpartition("/")[0]
        there[folder] = there.get(folder, 0) + 1
    wanted: list[str] = []
    for folder, inside in by_folder.items():
        if there.get(folder) == len(inside):
            wanted.append(locate(folder))
        else:
            wanted += [locate(segment.path) for segment in inside]
    reader: Any = (
        spark.read.schema(SCHEMA_WITH_HOURS)
        .option("basePath", f"{locate(path)}/{layout.SEGMENTS}")
        # Else a bracket or a star in the name of a folder would be a pattern.
        .option("__globPaths__", "false")
        # Segments carry checksums of their pages, but are not checked unless somebody asks.
        .option("parquet.page.verify-checksum.enabled", "true")
    )
    rows: DataFrame = reader.parquet(*wanted)
    return rows
