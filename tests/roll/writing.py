"""A database whose journal a test writes itself, commit by commit, through the server's own storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pubsubd.broker import oplog
from pubsubd.journal.journal import Journal
from pubsubd.journal.record import Row, unpack
from pubsubd.model.events import Event, EventTuple, Kind
from pubsubd.storage.store import Commit, Store

HOUR_US = 3600 * 10**6
#: 2026-01-31 13:00:00 UTC, and where its events go.
HOUR_13_US = 1_769_864_400_000_000
HOUR_13 = "segments/date=2026-01-31/hour=13"
HOUR_14 = "segments/date=2026-01-31/hour=14"
MIDNIGHT = "segments/date=2026-02-01/hour=00"


class Writing:
    def __init__(self, directory: Path, store: Store) -> None:
        self.directory = directory
        self.store = store
        self.journal = Journal(0, (), 1 << 40)

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path) -> AsyncIterator[Writing]:
        directory.mkdir(exist_ok=True)
        store = await Store.open(directory, "process")
        try:
            yield cls(directory, store)
        finally:
            await store.close()

    async def commit(
        self,
        *events: EventTuple,
        details: Sequence[tuple[int, dict[str, Any]]] = (),
        drop_through: int = 0,
        version: int = 1,
    ) -> None:
        """One commit; `details` are (index of the event, what it says)."""
        append = self.journal.append(events, details, 0)
        counters = oplog.Counters(0, 0, 0, 0, 0, self.journal.last_seq, 0)
        await self.store.commit(
            Commit(
                oplog=oplog.blob([oplog.counters(counters)]),
                journal=append.row._replace(version=version) if append else None,
                journal_details=append.details if append else (),
                journal_drop_through=drop_through,
            )
        )

    async def sealed(self, seq: int) -> None:
        """What the server does once a roller has said so."""
        await self.commit(drop_through=seq)

    async def tail(self) -> list[dict[str, Any]]:
        """Every event of the tail, as a row of a table."""
        rows, details = await self.store.read_journal()
        return [
            {"seq": seq, **event._asdict(), "detail": details.get(seq)}
            for row in rows
            for seq, event in unpack(Row(*row))
        ]


def at(*us: int, kind: int = Kind.ACK) -> list[Event]:
    """One event for each time, counted from 13:00."""
    return [Event(HOUR_13_US + one, kind) for one in us]
