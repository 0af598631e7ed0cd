"""Tables of an output folder, read with pyarrow as they lie there; no Spark.

A table is a folder of Parquet files. Names that begin with _ or a dot are no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from analytics import paths
from analytics.errors import UsageError


class Tables:
    """The tables in OUT; a table that is not there reads as None."""

    def __init__(self, out: str) -> None:
        self.out = out
        here = paths.local(out)
        try:
            if here is not None:
                self.system, self.root = fs.LocalFileSystem(), str(here)
            else:
                self.system, self.root = fs.FileSystem.from_uri(out)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"The output folder {out} cannot be reached: {error}") from error

    def names(self) -> set[str]:
        """The tables that are there; the caller knows which of them it understands."""
        try:
            entries = self.system.get_file_info(fs.FileSelector(self.root))
        except OSError as error:
            raise UsageError(f"There is no output folder {self.out} to report on.") from error
        folders = {one.base_name for one in entries if one.type == fs.FileType.Directory}
        return {name for name in folders if not name.startswith(("_", "."))}

    def dataset(self, name: str) -> ds.Dataset | None:
        """The table without reading it, or None if it is not there."""
        folder = f"{self.root}/{name}"
        if self.system.get_file_info(folder).type != fs.FileType.Directory:
            return None
        files = [
            one.path
            for one in self.system.get_file_info(fs.FileSelector(folder, recursive=True))
            if one.type == fs.FileType.File and one.size and not _is_hidden(one.path[len(folder) + 1 :])
        ]
        if not files:
            return None
        try:
            return ds.dataset(sorted(files), filesystem=self.system, format="parquet")
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(name, error) from error

    def read(
        self, name: str, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.Table | None:
        """Some columns and rows of a table, or None if it is not there."""
        dataset = self.dataset(name)
        if dataset is None:
            return None
        try:
            return dataset.to_table(columns=None if columns is None else list(columns), filter=where)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._unreadable(name, error) from error

    def rows(self, name: str, where: ds.Expression | None = None) -> list[dict[str, Any]] | None:
        """A small table as dictionaries, or None if it is not there."""
        table = self.read(name, where=where)
        return None if table is None else table.to_pylist()

    def batches(
        self, name: str, columns: Sequence[str], where: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A table that may be larger than memory, piece by piece; nothing if it is not there."""
        dataset = self.dataset(name)
        if dataset is None:
            return
        try:
            yield from dataset.to_batches(columns=list(columns), filter=where)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(name, error) from error

    def run_record(self) -> dict[str, Any]:
        """What `_RUN.json` says; empty if it is not there or no JSON object."""
        try:
            with self.system.open_input_stream(f"{self.root}/_RUN.json") as stream:
                record = json.loads(stream.read())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def write_file(self, name: str, data: bytes) -> str:
        """Write a file of OUT under a temporary name, rename it, and return its path."""
        temporary, final = f"{self.root}/_{name}.tmp", f"{self.root}/{name}"
        try:
            with self.system.open_output_stream(temporary) as stream:
                stream.write(data)
            self.system.move(temporary, final)
        except OSError as error:
            raise UsageError(f"{name} cannot be written to {self.out}: {error}") from error
        return final

    def _unreadable(self, name: str, error: Exception) -> UsageError:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return UsageError(f"The table {name} in {self.out} cannot be read: {first}")


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))
