"""The folder that sealed events go to, as far as names tell.

    JOURNAL/segments/date=2026-01-31/hour=13/seg-<first seq, 16 digits>-<last seq, 16 digits>.parquet
    JOURNAL/backlog/backlog-<seq>.parquet
    JOURNAL/_server                            which database the journal belongs to

Readers ignore names that begin with `_` or `.`.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path

SEGMENTS = "segments"
BACKLOG = "backlog"
_OWNER = "_server"
_SEGMENT = re.compile(r"seg-(\d{16})-(\d{16})\.parquet")


def server_id(secret: bytes) -> str:
    """Which database a journal belongs to, in 16 hex digits from which nobody learns its secret."""
    return blake2b(secret, digest_size=8).hexdigest()


def segment_name(first_seq: int, last_seq: int) -> str:
    return f"seg-{first_seq:016d}-{last_seq:016d}.parquet"


def last_sealed(journal_dir: Path) -> int:
    """The last number that is in a segment; 0 if there is none."""
    return max(
        (
            int(found.group(2))
            for path in (journal_dir / SEGMENTS).glob("date=*/hour=*/seg-*.parquet")
            if (found := _SEGMENT.fullmatch(path.name))
        ),
        default=0,
    )


def owner(journal_dir: Path) -> str | None:
    """The server id that the journal belongs to; None if nobody has claimed it."""
    try:
        return (journal_dir / _OWNER).read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def own(journal_dir: Path, server_id: str) -> None:
    """Claim a journal that is nobody's. A kill leaves it claimed or not."""
    journal_dir.mkdir(parents=True, exist_ok=True)
    written = journal_dir / f"{_OWNER}.{os.getpid()}.tmp"
    written.write_text(server_id, "ascii")
    written.replace(journal_dir / _OWNER)
