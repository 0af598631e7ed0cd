"""What is in a journal, without Spark: ranges, counts, holes, damage. Reads names and footers only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from analytics.journal import (
    BacklogFile,
    Damaged,
    Segment,
    backlogs_of,
    check_origin,
    footers,
    holes,
    merged,
    segments_of,
)


@dataclass(frozen=True)
class Info:
    """A journal at a glance; times are microseconds since the epoch, None if no footer tells them."""

    path: str
    server: str
    segments: list[Segment]
    damaged: list[Damaged]
    first_seq: int
    last_seq: int
    events: int  # in segments that can be read
    bytes: int
    first_us: int | None
    last_us: int | None
    missing: list[tuple[int, int]]
    backlogs: list[BacklogFile]

    @property
    def complete(self) -> bool:
        return not self.missing


def look(path: str) -> Info:
    """Read names and footers.

    Raises:
        UsageError: there is no journal, or one that this program cannot read.
    """
    segments = segments_of(path)
    told = footers(segments)
    server, told = check_origin(segments, told)
    damaged = [
        Damaged(segment, footer.problem)
        for segment, footer in zip(segments, told, strict=True)
        if footer.problem is not None
    ]
    lost = [(bad.segment.first_seq, bad.segment.last_seq) for bad in damaged]
    sound = [footer for footer in told if footer.problem is None]
    return Info(
        path=path,
        server=server,
        segments=segments,
        damaged=damaged,
        first_seq=segments[0].first_seq,
        last_seq=segments[-1].last_seq,
        events=sum(footer.count for footer in sound),
        bytes=sum(segment.size for segment in segments),
        first_us=min((f.first_us for f in sound if f.first_us is not None), default=None),
        last_us=max((f.last_us for f in sound if f.last_us is not None), default=None),
        missing=merged([*holes(segments), *lost]),
        backlogs=backlogs_of(path),
    )


def as_json(info: Info) -> dict[str, Any]:
    hours: dict[str, int] = {}
    for segment in info.segments:
        name = f"{segment.date}T{segment.hour:02}"
        hours[name] = hours.get(name, 0) + segment.count
    return {
        "journal": info.path,
        "server": info.server,
        "complete": info.complete,
        "segments": len(info.segments),
        "events": info.events,
        "bytes": info.bytes,
        "first_seq": info.first_seq,
        "last_seq": info.last_seq,
        "first_us": info.first_us,
        "last_us": info.last_us,
        "missing": [list(pair) for pair in info.missing],
        "damaged": [{"path": bad.segment.path, "why": bad.why} for bad in info.damaged],
        "backlogs": [{"path": file.path, "seq": file.seq} for file in info.backlogs],
        "events_per_hour": hours,
    }


def text(info: Info) -> str:
    """For a terminal."""
    size = f"{info.bytes / 1e6:,.1f} MB"
    per_event = f", {info.bytes / info.events:.1f} bytes an event" if info.events else ""
    lines = [
        f"journal    {info.path}",
        f"server     {info.server or 'not named'}",
        f"events     {info.first_seq:,} to {info.last_seq:,}",
        f"count      {info.events:,} in {len(info.segments):,} segments",
        f"size       {size}{per_event}",
    ]
    if info.first_us is not None and info.last_us is not None:
        lines.append(f"times      {moment(info.first_us)} to {moment(info.last_us)} UTC")
    if info.first_seq > 1:
        lines.append(f"before     {info.first_seq - 1:,} earlier events are no longer kept")
    newest = info.backlogs[-1] if info.backlogs else None
    if newest is None:
        lines.append("backlog    no file")
    elif newest.seq == info.last_seq:
        lines.append(f"backlog    as of {newest.seq:,}, the last event")
    else:
        lines.append(f"backlog    as of {newest.seq:,}, not the last event")
    lines.append(f"complete   {'yes' if info.complete else 'NO'}")
    lines += [f"missing    {ranges([pair])}" for pair in info.missing]
    lines += [f"damaged    {bad.segment.path}: {bad.why}" for bad in info.damaged]
    return "\n".join(lines)


def moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ranges(pairs: list[tuple[int, int]], shown_max: int = 5) -> str:
    """`21 to 24 and 31`, with as many as a person wants to read."""
    words = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in pairs[:shown_max]]
    if len(pairs) > shown_max:
        words.append(f"{len(pairs) - shown_max} ranges more")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
