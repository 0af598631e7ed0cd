"""Faults on demand, for tests of what clients are told when the disk does not do its part."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from enum import IntEnum


class Fault(IntEnum):
    NONE = 0
    FAIL = 1  # the commit fails as on a full disk; nothing was written
    STALL = 2  # the commit waits first
    KILL_BEFORE_COMMIT = 3  # SIGKILL with everything written and nothing committed
    KILL_AFTER_COMMIT = 4  # SIGKILL with everything committed and nothing said


class Faults:
    """Set by one thread, met by the writer's. A new fault replaces the one before."""

    def __init__(self) -> None:
        self._plan = (Fault.NONE, 0, 0, 0.0)

    def inject(self, fault: int, commits: int, skip: int, stall_seconds: float) -> None:
        """Let `skip` commits through, then hit `commits` of them with a `Fault`; 0 hits until replaced."""
        self._plan = (Fault(fault), commits or -1, skip, stall_seconds)

    def begin(self) -> Fault:
        """A commit begins; what will happen to it."""
        fault, commits, skip, stall_seconds = self._plan
        if fault is Fault.NONE or commits == 0:
            return Fault.NONE
        if skip:
            self._plan = (fault, commits, skip - 1, stall_seconds)
            return Fault.NONE
        self._plan = (fault, commits - 1 if commits > 0 else commits, 0, stall_seconds)
        if fault is Fault.FAIL:
            raise sqlite3.OperationalError("database or disk is full (injected)")
        if fault is Fault.STALL:
            time.sleep(stall_seconds)
        return fault

    @staticmethod
    def kill_if(now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
