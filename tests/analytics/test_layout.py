"""The server and the analytics describe the journal each for itself; both say the same."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

import analytics
from analytics import layout
from pubsubd.journal import record, segments
from pubsubd.model import events

_STRUCT = {"q": "int64", "i": "int32", "b": "int8"}


def test_columns_are_the_fields_of_an_event_in_its_order() -> None:
    names = [column.name for column in layout.COLUMNS]
    assert names == ["seq", *events.Event._fields, "detail"]


def test_columns_are_as_wide_as_the_fields_of_a_record() -> None:
    widths = [_STRUCT[code] for code in record.RECORD.format.removeprefix("<")]
    assert [column.type for column in layout.COLUMNS] == [*widths, "string"]


def test_kinds_and_results_have_the_same_numbers() -> None:
    assert {kind.name: kind.value for kind in layout.Kind} == {kind.name: kind.value for kind in events.Kind}
    assert {one.name: one.value for one in layout.Result} == {one.name: one.value for one in events.Result}


def test_a_segment_that_the_server_names_is_one_that_the_analytics_find() -> None:
    path = f"date=2026-01-31/hour=3/{segments.segment_name(7, 1_000_000)}"
    found = layout.SEGMENT_PATH.fullmatch(path)
    assert found is not None
    assert found.groups() == ("2026-01-31", "3", f"{7:016d}", f"{1_000_000:016d}")
    assert (layout.SEGMENTS, layout.BACKLOG) == (segments.SEGMENTS, segments.BACKLOG)


def test_the_file_that_the_server_writes_has_those_columns() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="segments need the extra pubsubd[analytics]")
    from pubsubd.roll import segment

    row = record.pack(1, [events.Event(5, events.Kind.START)])
    file = io.BytesIO()
    segment.write_segment(file, segment.Part(segment.events_of([row], 1), [(1, "{}")]), "0" * 16)

    written = parquet.read_schema(file)
    assert [(field.name, str(field.type)) for field in written] == [
        (column.name, column.type) for column in layout.COLUMNS
    ]
    assert written.metadata[layout.VERSION_KEY.encode()] == str(layout.VERSION).encode()
    assert written.metadata[layout.SERVER_KEY.encode()] == b"0" * 16


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_analytics_imports_nothing_from_the_server() -> None:
    package = Path(analytics.__file__).parent
    paths = sorted(package.rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        assert not {name for name in _imports(path) if name.split(".")[0] in ("pubsubd", "tests")}, path


def test_the_server_imports_nothing_from_analytics() -> None:
    package = Path(segments.__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        assert "analytics" not in {name.split(".")[0] for name in _imports(path)}, path
