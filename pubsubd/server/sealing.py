"""When the tail of the journal is sealed into segments, and by whom.

A process of its own does it (`python -m pubsubd.roll`), once per call, so that nothing it does or meets can
hold up or fail a commit. It reads what is committed, writes Parquet, and says how far it came; the engine
then deletes those rows. When it fails, the tail stays, the log says why once, and it is tried again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pubsubd.engine.engine import Engine
from pubsubd.journal import segments
from pubsubd.settings import Sealing

_log = logging.getLogger("pubsubd.journal")

_RETRY_SECONDS_MAX = 600.0
#: At shutdown: whoever stops a server does not want to wait; what is not sealed then stays in the tail.
LAST_SECONDS_MAX = 20.0


class CannotSeal(Exception):
    """The journal cannot be sealed; the text is one sentence that says why."""


class Sealed(NamedTuple):
    last_seq: int  # everything up to here is in segments
    backlog: str | None  # the file with what is open as of that number


def why_not() -> str | None:
    """A sentence, if segments cannot be written by this installation."""
    if find_spec("pyarrow") is None:
        return "segments need pyarrow: pip install 'pubsubd[analytics]'"
    return None


@dataclass
class Place:
    """Where the journal of a database goes; made by `prepare`."""

    data_dir: Path
    journal_dir: Path
    sealed_seq: int = 0  # found in segments at the start
    refusal: str | None = None  # why nothing may be sealed here


def prepare(data_dir: Path, journal_dir: Path, secret: bytes) -> Place:
    """Look at what is there. Segments of another database are left alone, and nothing is added to them."""
    place = Place(data_dir, journal_dir, refusal=why_not())
    try:
        owner = segments.owner(journal_dir)
        if owner == segments.server_id(secret):
            place.sealed_seq = segments.last_sealed(journal_dir)
        elif owner is not None:
            place.refusal = (
                f"the journal in {journal_dir} belongs to another database; move it, or name another"
            )
    except OSError as error:
        place.refusal = f"the journal directory {journal_dir} cannot be used: {error.strerror or error}"
    return place


def abandon(place: Place) -> None:
    """The segments go on after the database ends, which was perhaps restored from a copy: its next events
    will have numbers that others have. Nothing is added, now or when the numbers have caught up."""
    place.refusal = (
        f"the journal in {place.journal_dir} knows more than the database, which may have been restored from "
        "a copy; move it, or name another"
    )
    with contextlib.suppress(OSError):
        segments.own(place.journal_dir, "nobody: the database has become older than these segments")


class Sealer:
    """Seals when the tail is long or old enough, and when asked."""

    def __init__(self, engine: Engine, place: Place, sealing: Sealing) -> None:
        self._engine = engine
        self._place = place
        self._sealing = sealing
        self._one_at_a_time = asyncio.Lock()
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._since_us = 0  # of the event that the timer is for
        self._retry_seconds = 0.0  # 0: the last try went well
        self._said = ""
        self._task: asyncio.Task[None] | None = None
        if place.refusal is not None:
            # Who has not installed what it takes has not asked for segments.
            level = logging.DEBUG if place.refusal == why_not() else logging.WARNING
            _log.log(level, "the journal is not sealed into segments, its tail is bounded: %s", place.refusal)
        else:
            self._task = asyncio.create_task(self._run(), name="sealer")
            engine.watch_tail(self._grew)

    async def seal(self, backlog: bool = False, seconds_max: float | None = None) -> Sealed:
        """Seal all that is committed now.

        Raises:
            CannotSeal: it did not work; the tail is as it was.
        """
        if self._place.refusal is not None:
            raise CannotSeal(self._place.refusal)
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(seconds_max):
                    return await self._roll(backlog)
            except TimeoutError:
                raise CannotSeal(f"it took longer than {seconds_max:g} s") from None

    async def close(self, last: bool) -> None:
        """Stop; `last`: after sealing what is left, with the backlog beside it."""
        self._rest()
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if last:
            try:
                await self.seal(backlog=True, seconds_max=LAST_SECONDS_MAX)
            except CannotSeal as error:
                _log.warning(
                    "the end of the journal stays in the database and is sealed next time: %s", error
                )

    # -- when ---------------------------------------------------------------------------------------------

    def _grew(self, events: int, since_us: int) -> None:
        """After each commit."""
        if self._retry_seconds:
            return
        if not events:
            self._rest()
        elif events >= self._sealing.events:
            self._due.set()
        elif self._sealing.seconds and since_us != self._since_us:
            self._wake_in(self._sealing.seconds - (self._engine.now_us() - since_us) / 1e6)
            self._since_us = since_us

    def _rest(self) -> None:
        self._since_us = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_in(self, seconds: float) -> None:
        self._rest()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._due.set)

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.seal()
            except CannotSeal as error:
                self._retry_seconds = min(
                    max(2 * self._retry_seconds, self._sealing.seconds, 1.0), _RETRY_SECONDS_MAX
                )
                if str(error) != self._said:
                    self._said = str(error)
                    _log.error("the journal cannot be sealed for now, and stays in the database: %s", error)
                self._wake_in(self._retry_seconds)
                continue
            if self._retry_seconds:
                _log.warning("the journal is sealed again")
                self._retry_seconds, self._said = 0.0, ""
            self._rest()
            self._due.clear()
            self._engine.watch_tail(self._grew)

    # -- by whom ------------------------------------------------------------------------------------------

    async def _roll(self, backlog: bool) -> Sealed:
        place = self._place
        command = [sys.executable, "-m", "pubsubd.roll"]
        command += ["--data-dir", str(place.data_dir), "--journal", str(place.journal_dir)]
        if self._sealing.keep_hours:
            command += ["--keep-hours", str(self._sealing.keep_hours)]
        if backlog:
            command.append("--backlog")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Of its own session: Ctrl-C is for the server, which then has it seal once more.
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            raise CannotSeal(f"its process cannot be started: {error.strerror or error}") from error
        try:
            said, complained = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        try:
            answer = json.loads(said)
            refusal, last_seq = answer["error"], answer["last_seq"]
        except (ValueError, LookupError, TypeError):
            last_words = complained.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            refusal, last_seq = f"its process ended with {process.returncode}: {last_words[0]}", 0
        if refusal is not None:
            raise CannotSeal(refusal)
        self._engine.sealed(last_seq)
        return Sealed(last_seq, answer["backlog"])
