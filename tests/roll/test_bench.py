"""The benchmark comes to its end, and measures what it says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]: no pyarrow")
pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from tests.roll.bench import main


def test_every_measure_is_taken() -> None:
    sizes = ["--events", "2000", "--repeats", "1", "--rounds", "2", "--group", "50"]

    ended = CliRunner().invoke(main, sizes)

    assert ended.exit_code == 0, ended.output
    for what in ("CPU of the server", "CPU of the engine", "times that without it", "bytes per event"):
        assert what in ended.output
    (events,) = [line for line in ended.output.splitlines() if line.startswith("events  ")]
    assert 2000 <= int(events.split()[-1].replace(",", "")) < 3000
