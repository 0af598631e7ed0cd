"""What a command says when it cannot go on, and the exit codes that scripts may rely on."""

from __future__ import annotations

EXIT_OK = 0
EXIT_VIOLATED = 1  # the audit found a promise that was not kept
EXIT_USAGE = 2  # wrong usage, or input or output that cannot be used
EXIT_INCOMPLETE = 3  # parts of the journal are missing, and nothing worse


class UsageError(Exception):
    """One sentence for the person who called; the command ends with `EXIT_USAGE` and shows no traceback."""
