"""Writes segments and backlog files in the journal's layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analytics import layout

SERVER = "5e7f00d5a1b2c3d4"  # which database a synthetic journal belongs to, unless told otherwise
HOUR_US = 3_600_000_000
ROW_GROUP_ROWS = 1 << 20

SCHEMA = pa.schema([(column.name, getattr(pa, column.type)()) for column in layout.COLUMNS])
BACKLOG_SCHEMA = pa.schema([("sub_id", pa.int32()), ("message_id", pa.int64())])

_DELTA = ("seq", "ts_us", "message_id", "deadline_us", "ref_ts_us")
_DICTIONARY = (
    *("kind", "topic_id", "sub_id", "generation", "attempt", "result"),
    *("client_id", "bytes", "okey", "aux", "detail"),
)


def metadata(server: str = SERVER, version: int = layout.VERSION) -> dict[str, str]:
    """The key-value metadata of every file of a journal."""
    return {layout.VERSION_KEY: str(version), layout.SERVER_KEY: server}


def write_segment(
    journal: Path,
    columns: Mapping[str, np.ndarray],
    details: Mapping[int, str],
    about: Mapping[str, str] | None = None,
) -> Path:
    """Write events of one hour, consecutive in seq, as one segment; returns its path.

    `columns` holds every column but the text; `details` is by seq. The hour is that of the first event.
    """
    seq = columns["seq"]
    detail: pa.Array = pa.nulls(len(seq), pa.string())
    if details:
        text = np.full(len(seq), None, dtype=object)
        for at, value in details.items():
            text[at - int(seq[0])] = value
        detail = pa.array(text, pa.string())
    arrays = [
        pa.array(columns[field.name], field.type) if field.name != "detail" else detail for field in SCHEMA
    ]
    when = datetime.fromtimestamp(int(columns["ts_us"][0]) // 1_000_000, UTC)
    folder = journal / layout.SEGMENTS / f"date={when:%Y-%m-%d}" / f"hour={when:%H}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seg-{int(seq[0]):016d}-{int(seq[-1]):016d}.parquet"
    _write(pa.Table.from_arrays(arrays, schema=SCHEMA), path, _DICTIONARY, _DELTA, about)
    return path


class SegmentWriter:
    """Takes events in the order of seq, block by block, and writes them as segments of one hour each."""

    def __init__(self, journal: Path, events_max: int, about: Mapping[str, str] | None = None) -> None:
        self._journal, self._max, self._about = journal, events_max, about
        self._columns: dict[str, np.ndarray] = {}
        self._details: dict[int, str] = {}

    def append(self, columns: Mapping[str, np.ndarray], details: Mapping[int, str]) -> None:
        self._details |= details
        if self._columns:
            columns = {name: np.concatenate([self._columns[name], columns[name]]) for name in columns}
        self._columns = dict(columns)
        while n := self._whole():
            self._write(n)

    def close(self) -> None:
        """Write what is left."""
        if len(self._columns["seq"]):
            self._write(len(self._columns["seq"]))

    def _whole(self) -> int:
        """Of how many events the next segment is, if its end has been seen; else 0."""
        ts_us = self._columns["ts_us"]
        if not len(ts_us):
            return 0
        later = np.flatnonzero(ts_us // HOUR_US > ts_us[0] // HOUR_US)
        n = int(later[0]) if len(later) else len(ts_us) + 1
        n = min(n, self._max)
        return n if n <= len(ts_us) else 0

    def _write(self, n: int) -> None:
        columns = {name: column[:n] for name, column in self._columns.items()}
        last = int(columns["seq"][-1])
        details = {seq: text for seq, text in self._details.items() if seq <= last}
        write_segment(self._journal, columns, details, self._about)
        self._details = {seq: text for seq, text in self._details.items() if seq > last}
        self._columns = {name: column[n:] for name, column in self._columns.items()}


def write_backlog(
    journal: Path,
    seq: int,
    sub_id: Iterable[int] | np.ndarray,
    message_id: Iterable[int] | np.ndarray,
    about: Mapping[str, str] | None = None,
) -> Path:
    """Write the open messages as of `seq`; returns the file's path."""
    path = journal / layout.BACKLOG / f"backlog-{seq}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [pa.array(sub_id, pa.int32()), pa.array(message_id, pa.int64())]
    _write(pa.Table.from_arrays(arrays, schema=BACKLOG_SCHEMA), path, ("sub_id",), ("message_id",), about)
    return path


def _write(
    table: pa.Table,
    path: Path,
    dictionary: Iterable[str],
    delta: Iterable[str],
    about: Mapping[str, str] | None,
) -> None:
    pq.write_table(
        table.replace_schema_metadata(dict(metadata() if about is None else about)),
        path,
        compression="zstd",
        compression_level=1,
        use_dictionary=list(dictionary),
        column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        row_group_size=ROW_GROUP_ROWS,
        write_page_checksum=True,
    )
