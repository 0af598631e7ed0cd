"""In which order a roller asks the system to keep things, so that a loss of power leaves no half."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from tests.crash.syscalls import why_no_tracing
from tests.roll.rolling import ROLL_SECONDS_MAX, command, segment_files
from tests.roll.writing import HOUR_US, Writing, at

_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_PATH = re.compile(r'<([^<>]*)>|"([^"]*)"')


def calls(record: Path) -> list[tuple[str, str]]:
    """(what was done, to which file or folder by its last name), of those that matter here."""
    found = []
    for line in record.read_text().splitlines():
        call = _CALL.search(line)
        if call is not None and call[3] != "-1":
            paths = [Path(one or other).name for one, other in _PATH.findall(call[2])]
            found.append(("rename" if call[1].startswith("rename") else call[1], paths[-1]))
    return found


@pytest.mark.skipif(bool(why_no_tracing()), reason=why_no_tracing())
async def test_the_log_is_flushed_first_and_each_file_before_and_after_it_gets_its_name(
    writing: Writing, tmp_path: Path
) -> None:
    journal, record = tmp_path / "journal", tmp_path / "record"
    await writing.commit(*at(0, HOUR_US))

    strace = ["strace", "-f", "-qq", "-y", "-o", str(record), "-e", "trace=fsync,?rename,renameat,renameat2"]
    subprocess.run(
        [*strace, *command(writing.directory, journal, "--backlog")],
        check=True,
        timeout=ROLL_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
    )

    made = calls(record)
    names = [path.name for path in (*segment_files(journal), *journal.glob("backlog/*"))]
    assert len(names) == 3
    flushed_log = made.index(("fsync", "pubsubd.sqlite3-wal"))
    for name, folder in zip(names, ("hour=13", "hour=14", "backlog"), strict=True):
        flushed = made.index(("fsync", f"_{name}.tmp"))
        renamed = made.index(("rename", name))
        flushed_folder = made.index(("fsync", folder), renamed)
        assert flushed_log < flushed < renamed < flushed_folder
    # A folder that is new is kept by the one that it is in.
    assert made.index(("fsync", "date=2026-01-31")) < made.index(("rename", names[0]))
