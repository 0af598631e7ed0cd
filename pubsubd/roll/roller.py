"""One roll: from the tail to segments, and what belongs to it.

The order is what makes it safe to die anywhere. A segment gets its name when it is whole and flushed, and the
server deletes rows only when it has heard, or has seen by the names, that they are sealed. So after a death
rows are in the tail, or in both, never in neither; the next roll begins after the last name.

This process writes nothing to the database: the server is its only writer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from pubsubd.journal import segments
from pubsubd.roll import folder
from pubsubd.roll.backlog import open_messages
from pubsubd.roll.database import Batch, Database, viewing
from pubsubd.roll.errors import RollFailed, reason
from pubsubd.roll.faults import Faults
from pubsubd.roll.segment import ROW_GROUP, BacklogWriter, Part, events_of, parts, write_segment

LOCK_SECONDS_MAX = 30.0


@dataclass
class Report:
    """What was done, also if it was not all. Everything up to `last_seq` is sealed; 0: that is not known."""

    last_seq: int = 0
    events: int = 0
    segments: list[str] = field(default_factory=list)
    backlog: str | None = None
    removed_hours: int = 0
    error: str | None = None  # one sentence


def roll(
    data_dir: Path,
    journal: Path,
    *,
    backlog: bool = False,
    keep_hours: int = 0,
    faults: Faults | None = None,
    lock_seconds: float = LOCK_SECONDS_MAX,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Report:
    """Seal everything that is committed when this begins; then, if asked, write down what is open, and remove
    hours older than `keep_hours` (0: none)."""
    report = Report()
    try:
        journal.mkdir(parents=True, exist_ok=True)
        with FileLock(journal / folder.LOCK, timeout=lock_seconds):
            roller = _Roller(journal, faults or Faults(""), report)
            with viewing(data_dir) as database:
                roller.seal(database)
                if backlog:
                    roller.write_backlog(database)
            if keep_hours:
                before_us = now_us() - keep_hours * 3600 * 10**6
                report.removed_hours = folder.remove_old_hours(journal, before_us)
    except Timeout:
        report.error = f"another roller has been at work in {journal} for {lock_seconds:g} seconds"
    except RollFailed as failure:
        report.error = str(failure)
    except OSError as error:
        report.error = f"the journal directory {journal} cannot be used: {reason(error)}"
    return report


class _Roller:
    def __init__(self, journal: Path, faults: Faults, report: Report) -> None:
        self._journal = journal
        self._faults = faults
        self._report = report
        self._server = ""
        folder.remove_temporary(journal)

    def seal(self, database: Database) -> None:
        last_sealed = self._check_ours(database)
        self._report.last_seq = last_sealed
        # As few segments as their size allows, and all about the same size.
        unsealed = database.unsealed(last_sealed)
        events = math.ceil(unsealed / max(1, math.ceil(unsealed / ROW_GROUP)))
        for batch in database.tail(last_sealed, max(1, events)):
            self._seal_batch(batch)

    def _check_ours(self, database: Database) -> int:
        """The last number that is sealed.

        Raises:
            RollFailed: the segments are of another database, or of another past of this one.
        """
        self._server = segments.server_id(database.secret)
        newest = folder.newest_segment(self._journal)
        owner = segments.owner(self._journal)
        if owner is None and newest is not None:
            owner = folder.server_of(newest.path) or "unknown"
        if owner is None:
            segments.own(self._journal, self._server)
        elif owner != self._server:
            raise RollFailed(
                f"the journal in {self._journal} belongs to another database ({owner}, not {self._server}), "
                "and nothing is added to it"
            )
        if newest is None:
            return 0
        if folder.server_of(newest.path) != self._server:
            raise RollFailed(f"{newest.path} is damaged or of another database, and nothing is added to it")
        journal_seq = database.journal_seq()
        if newest.last_seq > journal_seq:
            raise RollFailed(
                f"the segments in {self._journal} end with event {newest.last_seq} and the database with "
                f"event {journal_seq}: it is older than they are, and nothing is added to them"
            )
        return newest.last_seq

    def _seal_batch(self, batch: Batch) -> None:
        try:
            events = events_of(batch.rows, batch.first_seq)
        except ValueError as error:
            raise RollFailed(f"the journal is damaged at {error}") from error
        batch.rows.clear()  # a hundred megabytes that nobody needs any more
        for part in parts(events, batch.details):
            self._write_segment(part)

    def _write_segment(self, part: Part) -> None:
        path = folder.segment_path(self._journal, part.first_us, part.first_seq, part.last_seq)
        try:
            with folder.written(path, self._faults) as file:
                write_segment(file, part, self._server)
        except OSError as error:
            raise RollFailed(f"the segment {path} cannot be written: {reason(error)}") from error
        self._report.last_seq = part.last_seq
        self._report.events += len(part.events)
        self._report.segments.append(str(path))

    def write_backlog(self, database: Database) -> None:
        """As of the same commit as the last event that was sealed."""
        broker = database.broker()
        path = folder.backlog_path(self._journal, broker.journal_seq)
        try:
            with folder.written(path, self._faults) as file:
                writer = BacklogWriter(file, self._server)
                for sub_id, message_ids in open_messages(database, broker):
                    writer.add(sub_id, message_ids)
                writer.close()
        except OSError as error:
            raise RollFailed(f"the backlog {path} cannot be written: {reason(error)}") from error
        self._report.backlog = str(path)
