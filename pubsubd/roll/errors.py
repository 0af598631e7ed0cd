"""What can go wrong, said in one sentence each."""

from __future__ import annotations

import os


class RollFailed(Exception):
    """Nothing more is sealed; the text is one sentence for the person who runs the server."""


def reason(error: OSError) -> str:
    """Why a file could not be read or written, without its name and number."""
    if error.strerror:
        return error.strerror
    return os.strerror(error.errno) if error.errno else str(error)
