"""Three implementations of the replay say the same: the kernel, window functions, and the plain loop."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]")

from analytics.dimensions import COLUMNS, Dimensions
from analytics.layout import Kind
from analytics.tables import CODES
from tests.analytics.generator.journal import write
from tests.analytics.sequences import World, random_moves, world
from tests.analytics.test_reference import Row, by_kernel, by_reference, by_windows

#: What is found in a single message; the other codes need its neighbours.
REPLAYED = tuple(code for code in CODES if code.startswith(("G1", "G2", "G3")))


@pytest.mark.slow
def test_random_events_are_told_the_same_by_windows(spark: Any) -> None:
    # Read from somewhere on, so that messages and leases are there which nobody saw begin.
    random = world(random_moves(Random(2), 300), tolerance_us=1, first_seq=60)
    assert sum(len(row["v_seq"]) for row in random.expected()) > 30
    assert _windows(random) == random.expected()


def _windows(random: World) -> list[Row]:
    return by_windows(
        random.read,
        random.dimensions,
        tolerance_us=random.tolerance_us,
        first_message_id=random.first_message_id,
    )


@pytest.mark.slow
def test_every_planted_violation_is_found_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    expected = write(tmp_path, events=20_000, seed=5, violations=3)
    rows = [
        row
        for file in sorted(tmp_path.rglob("seg-*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    dimensions = Dimensions.from_rows(
        {name: row[name] for name in COLUMNS} for row in rows if row["kind"] >= Kind.DROP
    )
    planted = {(one.code, one.sub_id, one.message_id, one.seq) for one in expected.violations}
    planted = {one for one in planted if one[0] in REPLAYED}
    assert {code for code, *_ in planted} == set(REPLAYED)

    by_loop = by_reference(rows, dimensions)
    assert _found(by_loop) == planted
    assert by_kernel(rows, dimensions) == by_loop
    assert by_windows(rows, dimensions) == by_loop


def _found(facts: list[Row]) -> set[tuple[str, int, int, int]]:
    return {
        (CODES[kind], row["sub_id"], row["message_id"], seq)
        for row in facts
        for kind, seq in zip(row["v_kind"], row["v_seq"], strict=True)
    }
