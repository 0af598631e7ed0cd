"""Deaths on demand, for tests of what a roller leaves behind."""

from __future__ import annotations

import os
import signal
from enum import StrEnum

#: `STEP` or `STEP:N`: the process dies when it comes to that step for the Nth time.
VARIABLE = "PUBSUBD_ROLL_DIE_AT"


class Step(StrEnum):
    """What has just been done; files are written one after the other, each in these steps."""

    WRITTEN = "written"  # under its temporary name, not yet flushed
    FLUSHED = "flushed"  # flushed, not yet renamed
    RENAMED = "renamed"  # has its name, and the folder is not yet flushed
    DONE = "done"  # there for good, and nobody was told


class Faults:
    def __init__(self, plan: str) -> None:
        step, _, times = plan.partition(":")
        self._step = Step(step) if step else None
        self._left = int(times or 1)

    @classmethod
    def from_environment(cls) -> Faults:
        return cls(os.environ.get(VARIABLE, ""))

    def at(self, step: Step) -> None:
        """The process has come to `step`."""
        if step is self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
