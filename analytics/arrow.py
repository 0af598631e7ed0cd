"""What Python makes of the partitions of a DataFrame, and how it becomes a table.

Spark writes Parquet row by row, after it has taken every row apart that Python gave it as columns: for a wide
table this costs as much as all that Python did before. Where the workers see the folder of the table, each
writes its own partition instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analytics.paths import local

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Work = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

_ARROW_TYPES = {
    "int": "int32",
    "bigint": "int64",
    "boolean": "bool",
    "array<tinyint>": "list<int8>",
    "array<bigint>": "list<int64>",
}


@dataclass(frozen=True)
class Mapped:
    """`work` on each partition of `source`; `schema`: what comes out, as Spark writes it down."""

    source: DataFrame
    work: Work
    schema: str

    def frame(self) -> DataFrame:
        return self.source.mapInArrow(self.work, self.schema)

    def write(self, path: str) -> None:
        """Write a Parquet table at `path` (as `paths.locate` gives it), in place of what is there."""
        folder = local(path)
        if folder is None or not self.source.sparkSession.sparkContext.master.startswith("local"):
            self.frame().write.mode("overwrite").parquet(path)
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write = partial(_write_partition, work=self.work, schema=self.schema, folder=folder)
        self.source.mapInArrow(write, "file string").collect()
        if not any(folder.iterdir()):  # a table without rows says its columns all the same
            _write(arrow_schema(self.schema).empty_table(), folder, 0)


def _write_partition(
    batches: Iterable[pa.RecordBatch], work: Work, schema: str, folder: Path
) -> Iterator[pa.RecordBatch]:
    """A file for the partition, unless nothing comes out of it."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "Spark calls this"
    table = pa.Table.from_batches(work(batches), arrow_schema(schema))
    if table.num_rows:
        file = _write(table, folder, context.partitionId())
        yield pa.RecordBatch.from_pydict({"file": [file.name]})


def _write(table: pa.Table, folder: Path, number: int) -> Path:
    import pyarrow.parquet as pq

    file = folder / f"part-{number:05}.parquet"
    pq.write_table(table, file)
    return file


def arrow_schema(schema: str) -> pa.Schema:
    """A table's columns as Arrow names their types."""
    import pyarrow as pa

    fields = []
    for column in schema.split(", "):
        name, kind = column.split(" ")
        arrow = _ARROW_TYPES[kind]
        is_list = arrow.startswith("list<")
        of = pa.type_for_alias(arrow.removeprefix("list<").removesuffix(">"))
        fields.append(pa.field(name, pa.list_(of) if is_list else of))
    return pa.schema(fields)
