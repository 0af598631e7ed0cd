"""The folder OUT: tables as Parquet and CSV, each complete or not there, and a record of the run.

A table is written under a name that begins with `_` and then renamed, through Hadoop's file systems, so OUT
can be any folder that all executors see.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from analytics import tables
from analytics.arrow import Mapped
from analytics.errors import UsageError
from analytics.paths import Files, local, locate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUN_NAME = "_RUN.json"
FORMATS = ("parquet", "csv")
#: Too large for a person, or made of batches.
WITHOUT_CSV = frozenset({"facts", "evidence", "latency", "live", "live_latency", "health_stream"})


class Output:
    """Tables below one folder. Parquet is always written, since later jobs read it; CSV if it is in
    `formats`.

    Raises:
        UsageError: the folder cannot be made or written to.
    """

    def __init__(self, spark: SparkSession, path: str, formats: Sequence[str] = FORMATS) -> None:
        self.spark = spark
        self.path = locate(path)
        self.formats = tuple(formats)
        self.written: list[str] = []  # tables of this run, in order
        self._files = Files(spark)
        self._prepare(path)

    def _prepare(self, path: str) -> None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types

        probe = f"{self.path}/_probe"
        try:
            if local(path) is not None:
                # No .crc file beside each file: they would only puzzle whoever edits a CSV.
                self._files.system(self.path).setWriteChecksum(False)
            self._files.make_folder(self.path)
            self._files.write(probe, b"")
            self._files.delete(probe)
        except (Py4JJavaError, OSError) as error:
            raise UsageError(f"The output folder {path} cannot be written to ({_cause(error)}).") from error

    def table(self, name: str) -> str:
        """Where the Parquet files of a table are."""
        return f"{self.path}/{name}"

    def exists(self, name: str) -> bool:
        return self._files.exists(self.table(name))

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """A table that was written before, in this run or an earlier one."""
        reader = spark.read.option("__globPaths__", "false")
        if name in tables.SCHEMAS:
            reader = reader.schema(tables.SCHEMAS[name])
        return reader.parquet(self.table(name))

    def write(self, name: str, frame: DataFrame | Mapped) -> None:
        """Write a table, in place of one of that name; the columns have to be those of `tables.SCHEMAS`."""
        _check_columns(name, frame)
        temporary = f"{self.path}/_{name}.tmp"
        if isinstance(frame, Mapped):
            frame.write(temporary)
        else:
            frame.write.mode("overwrite").parquet(temporary)
        self._swap(temporary, self.table(name))
        if "csv" in self.formats and name not in WITHOUT_CSV:
            self._write_csv(name)
        if name not in self.written:
            self.written.append(name)

    def _swap(self, new: str, old: str) -> None:
        """Put `new` in the place of `old`; between the two renames, and only there, the name is free."""
        folder, _, name = old.rpartition("/")
        aside = f"{folder}/_{name}.old"
        self._files.delete(aside)
        if self._files.exists(old):
            self._files.rename(old, aside)
        self._files.rename(new, old)
        self._files.delete(aside)

    def _write_csv(self, name: str) -> None:
        """One file, sorted, so that two runs over the same events leave the same bytes."""
        frame = self.read(self.spark, name)
        flat = frame.selectExpr(*(_as_text(field) for field in frame.schema.fields))
        temporary = f"{self.path}/_{name}.csv.tmp"
        (
            flat.repartition(1)
            .sortWithinPartitions(*flat.columns)
            .write.mode("overwrite")
            .option("header", "true")
            .option("escape", '"')
            .option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ssXXX")
            .csv(temporary)
        )
        (part,) = [file for file in self._files.below(temporary) if file.relative.startswith("part-")]
        self._swap(part.path, f"{self.path}/{name}.csv")
        # An executor elsewhere has written one: a checksum that an edited file would no longer match.
        self._files.delete(f"{self.path}/.{name}.csv.crc")
        self._files.delete(temporary)

    def copy(self, names: Iterable[str], folder: str) -> None:
        """Copy those of the tables that are there, and the record of the run, to a folder of this machine."""
        target = locate(folder)
        for name in (*names, RUN_NAME):
            if self.exists(name):
                self._files.copy(self.table(name), f"{target}/{name}")

    def rows(self, name: str) -> int:
        """How many rows a table has, from the footers of its files."""
        return sum(
            sum(int(block.getRowCount()) for block in self._files.footer(file.path).getBlocks())
            for file in self._files.below(self.table(name))
        )

    def write_text(self, name: str, text: str) -> None:
        """A file of text, such as the report, complete or not there."""
        temporary = f"{self.path}/_{name}.tmp"
        self._files.write(temporary, text.encode())
        self._swap(temporary, f"{self.path}/{name}")

    def write_run(self, record: dict[str, Any]) -> None:
        """`_RUN.json`: what was run, over what, and how long it took."""
        text = json.dumps(record, indent=1, ensure_ascii=False, default=str)
        temporary = f"{self.path}/{RUN_NAME}.tmp"
        self._files.write(temporary, text.encode())
        self._swap(temporary, f"{self.path}/{RUN_NAME}")

    def read_run(self) -> dict[str, Any] | None:
        """What `write_run` left, or None."""
        path = f"{self.path}/{RUN_NAME}"
        if not self._files.exists(path):
            return None
        record: dict[str, Any] = json.loads(self._files.read(path))
        return record


def _check_columns(name: str, frame: DataFrame | Mapped) -> None:
    from pyspark.sql.types import StructType

    if name not in tables.SCHEMAS:
        return
    schema: Any = StructType.fromDDL(tables.SCHEMAS[name])
    if isinstance(frame, Mapped):
        assert frame.schema == tables.SCHEMAS[name]
        return
    wanted = [(f.name, f.dataType.simpleString()) for f in schema.fields]
    found = [(f.name, f.dataType.simpleString()) for f in frame.schema.fields]
    assert found == wanted, f"table {name}: {sorted(set(found) ^ set(wanted))}, or another order"


def _as_text(field: Any) -> str:
    """A column as CSV can hold it: what has parts becomes JSON."""
    kind = field.dataType.typeName()
    return (
        f"to_json(`{field.name}`) as `{field.name}`"
        if kind in ("array", "map", "struct")
        else f"`{field.name}`"
    )


def _cause(error: BaseException) -> str:
    """The first line of what Java said, without its class."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return str(error).splitlines()[0]
    said = str(java.getMessage() or java.toString()).splitlines()[0]
    return said
