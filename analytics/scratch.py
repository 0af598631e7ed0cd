"""Intermediate results of a job, written down so that what follows starts from them.

A long chain of DataFrames is planned anew for each of its results, which soon takes longer than the work
itself. A frame that is kept in memory does not shorten the chain, and on a cluster it is lost with a
machine. A table shortens it, and stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from analytics.arrow import Mapped
from analytics.paths import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The same rows, and quick to start from.
Settle = Callable[["DataFrame | Mapped"], "DataFrame"]


class Scratch:
    """Tables below a folder of their own, which a `with` removes at its end."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, folder
        self._numbers = itertools.count()

    def settle(self, frame: DataFrame | Mapped) -> DataFrame:
        path = f"{self._folder}/{next(self._numbers)}"
        if isinstance(frame, Mapped):
            frame.write(path)
        else:
            frame.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        Files(self._spark).delete(self._folder)
