"""Where journals and tables are: a folder of this machine, or a URI that Hadoop's file systems know.

A path without a scheme is a folder of this machine, also on a cluster whose default file system is another:
the same command means the same thing everywhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class Listed(NamedTuple):
    """A file below a folder: where it is, its path relative to that folder, and its size in bytes."""

    path: str
    relative: str
    size: int


def local(path: str) -> Path | None:
    """The folder or file of this machine that `path` names, or None if it is somewhere else."""
    if path.startswith("file:"):
        rest = path.removeprefix("file:")
        return Path("/" + rest.lstrip("/"))
    if _SCHEME.match(path):
        return None
    return Path(path).expanduser().absolute()


def locate(path: str) -> str:
    """`path` as Spark shall see it: absolute, with its scheme."""
    here = local(path)
    return path.rstrip("/") if here is None else f"file://{here}"


def below(folder: Path) -> list[Listed]:
    """All files below a folder of this machine; what begins with _ or a dot is not looked at."""
    found: list[Listed] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "_."]
        for name in files:
            if name[0] not in "_.":
                path = Path(parent, name)
                found.append(Listed(str(path), str(path.relative_to(folder)), path.stat().st_size))
    return found


class Files:
    """Files of any file system that Spark's Hadoop knows; paths as `locate` gives them."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._jvm: Any = context._jvm
        self._conf: Any = context._jsc.hadoopConfiguration()

    def path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def system(self, path: str) -> Any:
        return self.path(path).getFileSystem(self._conf)

    def exists(self, path: str) -> bool:
        return bool(self.system(path).exists(self.path(path)))

    def below(self, folder: str) -> list[Listed]:
        """All files below `folder`; what begins with _ or a dot is left out, folders included."""
        root = self.path(folder)
        system = self.system(folder)
        prefix = str(system.makeQualified(root).toString()).rstrip("/") + "/"
        found = []
        remaining = system.listFiles(root, True)
        while remaining.hasNext():
            status = remaining.next()
            path = str(status.getPath().toString())
            relative = path.removeprefix(prefix)
            if not any(part[0] in "_." for part in relative.split("/")):
                found.append(Listed(path, relative, int(status.getLen())))
        return found

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return int(self.system(path).getFileStatus(self.path(path)).getLen())

    def delete(self, path: str) -> None:
        self.system(path).delete(self.path(path), True)

    def make_folder(self, path: str) -> None:
        if not self.system(path).mkdirs(self.path(path)):
            raise OSError(f"cannot make the folder {path}")

    def rename(self, old: str, new: str) -> None:
        if not self.system(old).rename(self.path(old), self.path(new)):
            raise OSError(f"cannot rename {old} to {new}")

    def copy(self, old: str, new: str) -> None:
        """Copy a file or a folder with all that is in it."""
        copier = self._jvm.org.apache.hadoop.fs.FileUtil
        copier.copy(self.system(old), self.path(old), self.system(new), self.path(new), False, self._conf)

    def read(self, path: str) -> bytes:
        stream = self.system(path).open(self.path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def tail(self, path: str, size: int, count: int) -> bytes:
        """The last `count` bytes of a file of `size`; OSError if they cannot be read."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types

        try:
            stream = self.system(path).open(self.path(path))
            try:
                stream.seek(max(size - count, 0))
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise OSError(str(error.java_exception.getMessage())) from error

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, replacing what is there."""
        stream = self.system(path).create(self.path(path), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def footer(self, path: str) -> Any:
        """The Parquet footer, read by the JVM: an object of parquet-mr."""
        source = self._jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
            self.path(path), self._conf
        )
        reader = self._jvm.org.apache.parquet.hadoop.ParquetFileReader.open(source)
        try:
            return reader.getFooter()
        finally:
            reader.close()
