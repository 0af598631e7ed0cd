"""What the package's speed is compared with does the same work: DuckDB's audit finds what is to be found."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="duckdb, a tool of the benchmark, is not installed")
pytest.importorskip("pyarrow", reason="needs pubsubd[analytics]")

from tests.analytics import duck
from tests.analytics.generator.journal import write


@pytest.mark.parametrize("violations", [0, 2])
def test_sql_by_hand_finds_what_is_wrong_in_a_synthetic_journal_and_nothing_else(
    tmp_path: Path, violations: int
) -> None:
    expected = write(tmp_path / "journal", events=30_000, seed=3, violations=violations)
    audit = duck.Audit(tmp_path / "journal", tmp_path)
    audit.facts()
    audit.audit()
    assert sorted(audit.found()) == sorted(tuple(one) for one in expected.violations)
    for name in ("facts", "violations", "evidence", "audit_summary"):
        assert (tmp_path / f"{name}.parquet").is_file()
