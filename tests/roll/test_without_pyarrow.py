"""The server is useful without the extra; the roller then says what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_without_what_it_needs_a_roller_says_so_in_one_sentence(tmp_path: Path, missing: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ROLL, missing, "--data-dir", str(tmp_path), "--journal", str(tmp_path / "j")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip  # short items, many to a line

    assert ended.returncode == 1
    assert ended.stderr == ""
    said = json.loads(ended.stdout)
    assert said["error"] == "sealing the journal needs pyarrow and numpy: pip install 'pubsubd[analytics]'"
    assert (said["last_seq"], said["events"], said["segments"], said["backlog"]) == (0, 0, [], None)


_ROLL = """
import sys
sys.modules[sys.argv.pop(1)] = None
from pubsubd.roll.__main__ import main
sys.exit(main())
"""
