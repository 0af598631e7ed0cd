"""A server under load that is killed again and again, as in `tests.crash`, and its rollers with it.

At every death of the server the journal is read as a reader on the same machine would: the tail first, the
segments second. What the two have together is then judged like a journal that never left the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from pubsubd.roll import faults
from pubsubd.roll.faults import Step
from pubsubd.roll.segment import RECORD_TYPE
from tests.crash import run as crash
from tests.crash.compare import Stored
from tests.crash.database import read_copy
from tests.crash.replay import Replayer, Row
from tests.roll.rolling import Ended, roll_process, segment_files, tables

_LOOK_SECONDS = 0.02
_STEPS = [f"{step}:{time}" for step in Step for time in (1, 2)]


class Journal(NamedTuple):
    """All there is, sealed or not."""

    events: npt.NDArray[Any]  # of RECORD_TYPE
    details: dict[int, str]
    last_sealed: int


class _Server(crash._Server):
    """`die_at`: where its rollers kill themselves."""

    die_at = ""

    def command(self) -> Sequence[str]:
        return ["/usr/bin/env", f"{faults.VARIABLE}={self.die_at}", *super().command()]


class Run(crash.Run):
    """A run of `tests.crash` whose server seals all the time; `rollers` counts what became of each roller."""

    def __init__(self, directory: Path, kills: int, seed: int, **more: Any) -> None:
        super().__init__(directory / "data", kills, seed, **more)
        self.journal = directory / "journal"
        self.rollers: Counter[str] = Counter()
        self.backlogs = 0  # that were compared with what is owed
        options = ("--journal-dir", str(self.journal), "--seal-seconds", "0.2")
        self._server = _Server(directory / "data", *options, admin=True)
        self._doomed: set[asyncio.Task[None]] = set()
        self._is_ending = False

    async def run(self) -> crash.Outcome:
        beside = [asyncio.create_task(self._watch_rollers()), asyncio.create_task(self._roll_beside())]
        try:
            return await super().run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    # -- rollers ------------------------------------------------------------------------------------------

    async def _watch_rollers(self) -> None:
        """Of those that the server starts some are killed, at whatever they are doing then."""
        seen: set[int] = set()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for pid in self._roller_pids() - seen:
                seen.add(pid)
                if not self._is_ending and self._chance.random() < 0.5:
                    task = asyncio.create_task(self._kill_roller(pid))
                    self._doomed.add(task)
                    task.add_done_callback(self._doomed.discard)
                else:
                    self.rollers["let live"] += 1

    async def _roll_beside(self) -> None:
        """Rollers that somebody else starts, whether the server is up or not."""
        while True:
            await asyncio.sleep(self._chance.uniform(1, 4))
            ended = await asyncio.to_thread(self._roll, "--backlog")
            if ended.report is None or ended.report.error is not None:
                self._break("a roller comes to its end", str(ended))
            self.rollers["beside"] += 1

    def _roller_pids(self) -> set[int]:
        process = self._server.process
        with contextlib.suppress(psutil.Error):
            if process is not None:
                return {child.pid for child in psutil.Process(process.pid).children()}
        return set()

    async def _kill_roller(self, pid: int) -> None:
        # Most of its life is reading libraries.
        await asyncio.sleep(self._chance.choice((0.2, 1.0)) + self._chance.uniform(0, 1.0))
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if str(self.journal) in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
                self.rollers["killed"] += 1
                return
        self.rollers["was faster"] += 1

    async def _start_again(self) -> None:
        is_last = len(self._log.kills) + 1 == self._kills
        dies = not is_last and self._chance.random() < 0.4  # the last one's end is to be an orderly one
        self._server.die_at = self._chance.choice(_STEPS) if dies else ""
        self.rollers["starts after which they kill themselves"] += bool(self._server.die_at)
        await super()._start_again()

    async def _end(self) -> None:
        self._is_ending = True
        await asyncio.gather(*self._doomed)
        await super()._end()

    # -- the files ----------------------------------------------------------------------------------------

    async def _check_files(self) -> None:
        # A roller outlives its server, and goes on beside all of this.
        self._stored = await asyncio.to_thread(read_copy, self._directory)
        journal = await asyncio.to_thread(self._read_journal, self._stored)
        rows = self._rows_after(self._replayer.last_seq, journal, self._stored)
        await asyncio.to_thread(self._compare, replace(self._stored, rows=rows, details=journal.details))
        self._outcome.counts["comparisons of journal and state"] += 1
        self._outcome.counts["sealed events"] = journal.last_sealed
        if self._chance.random() < 0.5:
            await asyncio.to_thread(self._check_backlog, self._stored, journal)

    def _read_journal(self, stored: Stored) -> Journal:
        sealed = [_events(table) for table in tables(self.journal)]
        seqs = np.concatenate([np.zeros(0, np.int64), *[events["seq"] for events in sealed]])
        if not np.array_equal(seqs, np.arange(1, len(seqs) + 1)):
            self._break("every event is sealed once, and in order", f"the segments have {seqs}")
        last_sealed = len(seqs)
        details = dict(stored.details)
        for table in tables(self.journal):
            told = table.filter(pa.compute.is_valid(table["detail"]))
            details |= dict(zip(told["seq"].to_pylist(), told["detail"].to_pylist(), strict=True))
        tail = np.frombuffer(b"".join([row.data for row in stored.rows]), RECORD_TYPE)
        both = np.concatenate([np.zeros(0, RECORD_TYPE), *sealed])
        again = tail[tail["seq"] <= last_sealed]
        if not np.array_equal(again, both[again["seq"] - 1]):
            self._break("what is sealed is what was in the tail", f"of {len(again)} events in both")
        return Journal(np.concatenate([both, tail[tail["seq"] > last_sealed]]), details, last_sealed)

    def _rows_after(self, last_seq: int, journal: Journal, stored: Stored) -> list[Row]:
        """Rows as of commits where the tail still has them; for the rest it is one that is made up."""
        events = journal.events[last_seq:]
        rows = [row for row in stored.rows if row.first_seq > last_seq]
        begins = rows[0].first_seq if rows else last_seq + len(events) + 1
        gone = events[: begins - last_seq - 1]
        made_up = [Row(last_seq + 1, len(gone), 1, gone.tobytes())] if len(gone) else []
        return [*made_up, *rows]

    def _check_backlog(self, stored: Stored, journal: Journal) -> None:
        """What a roller writes down as open is what another reader of the database says is owed."""
        ended = self._roll("--backlog")
        if ended.report is None or ended.report.error is not None or ended.report.backlog is None:
            self._break("a roller comes to its end", str(ended))
            return
        if ended.report.last_seq != len(journal.events):
            self._break("a roll seals all", f"{ended.report.last_seq} of {len(journal.events)}")
        path = Path(ended.report.backlog)
        if path.name != f"backlog-{ended.report.last_seq}.parquet":
            self._break("a backlog is as of the last event", path.name)
        open_now = read_backlog(path)
        for sub_id, one in stored.subscriptions.items():
            if open_now.get(sub_id, set()) != one.unacked:
                differ = sorted(open_now.get(sub_id, set()) ^ one.unacked)
                self._break("the backlog is what is owed", f"{one.name}: not of {differ[:5]}")
        self.backlogs += 1

    def _roll(self, *options: str) -> Ended:
        assert self._directory is not None
        return roll_process(self._directory, self.journal, *options)

    def check_backlogs_beside_the_server(self) -> int:
        """Those that were written by rollers beside a living server, against what the journal up to there
        tells; how many."""
        journal = self._read_journal(self._stored) if self._stored else None
        assert journal is not None
        found = sorted(self.journal.glob("backlog/backlog-*.parquet"), key=lambda path: int(path.stem[8:]))
        replayer, at = Replayer(self._matches), 0
        replayer.snapshot_sources = self._log.snapshots
        for path in found:
            seq = int(path.stem.removeprefix("backlog-"))
            part = journal.events[at:seq]
            replayer.feed([Row(at + 1, len(part), 1, part.tobytes())] if len(part) else [], journal.details)
            at, open_then = seq, read_backlog(path)
            for sub_id, one in replayer.subscriptions.items():
                owed = set() if one.deleted else one.unacked
                if open_then.get(sub_id, set()) != owed:
                    differ = sorted(open_then.get(sub_id, set()) ^ owed)
                    self._break("the backlog is what the journal tells", f"{seq}, {one.name}: {differ[:5]}")
        return len(found)


def read_backlog(path: Path) -> dict[int, set[int]]:
    """sub_id: its open messages; that none is there twice is checked on the way."""
    with path.open("rb") as file:
        table = pq.read_table(file)
    pairs = list(zip(table["sub_id"].to_pylist(), table["message_id"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)), path
    found: dict[int, set[int]] = {}
    for sub_id, message_id in pairs:
        found.setdefault(sub_id, set()).add(message_id)
    return found


def _events(table: pa.Table) -> npt.NDArray[Any]:
    events = np.empty(table.num_rows, RECORD_TYPE)
    for name in RECORD_TYPE.names or ():
        events[name] = table[name].to_numpy()
    return events


__all__ = ["Run", "read_backlog", "segment_files"]
