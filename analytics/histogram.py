"""Latencies as counts per bucket, and quantiles out of such counts.

A bucket is `WIDTH` wide in the natural logarithm of the value in microseconds, so each is 2 % wider than the
one before. Counts can be added up over minutes, batches and machines without an error; only the last step,
from counts to a quantile, knows a value no better than its bucket. The answer is the geometric middle of the
bucket, which is at most 1.01 % away from the true one.

Everything is here twice: for numbers and numpy arrays, and as Spark columns. A test holds the two together.
The logarithms of Java and numpy may differ in the last bit, so a value of days that lies on the very border
of two buckets may fall into the one or the other; the error stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

WIDTH = 0.02

#: Columns of `latency_quantiles` and their ranks per thousand. Whole numbers, because a product like 0.99 * n
#: may come out a hair above the whole number that it is, and the rank would be one too high.
QUANTILES = {"p50": 500, "p90": 900, "p99": 990, "p99_9": 999, "max": 1000}


def bucket_of(value_us: Any) -> np.ndarray:
    """The bucket of each value, int32; what is less than a microsecond counts as one."""
    value = np.maximum(np.asarray(value_us, dtype=np.float64), 1.0)
    return np.floor(np.log(value) / WIDTH).astype(np.int32)


def bucket(value_us: Column) -> Column:
    """The same as a Spark column, int."""
    return F.floor(F.ln(F.greatest(value_us, F.lit(1)).cast("double")) / F.lit(WIDTH)).cast("int")


def lower_us(bucket_no: int) -> float:
    """The least value that falls into the bucket."""
    return math.exp(bucket_no * WIDTH)


def middle_us(bucket_no: int) -> float:
    """The geometric middle of the bucket: the value that stands for all of it."""
    return math.exp((bucket_no + 0.5) * WIDTH)


def middle(bucket_no: Column) -> Column:
    """The same as a Spark column, double."""
    return F.exp((bucket_no + F.lit(0.5)) * F.lit(WIDTH))


def rank_of(total: int, per_mille: int) -> int:
    """Which of `total` sorted values, counted from 1, is the quantile."""
    return max(1, -(-total * per_mille // 1000))


def quantile_us(counts: Mapping[int, int], per_mille: int) -> float:
    """A quantile of `counts` (bucket -> how many), in microseconds; NaN where there is nothing."""
    total = sum(counts.values())
    if not total:
        return math.nan
    rank = rank_of(total, per_mille)
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= rank:
            return middle_us(number)
    raise AssertionError("the ranks end with the total")


def quantiles_us(counts: Mapping[int, int], quantiles: Mapping[str, int] = QUANTILES) -> dict[str, float]:
    """Several quantiles at once, by name."""
    return {name: quantile_us(counts, per_mille) for name, per_mille in quantiles.items()}


def quantiles(histogram: DataFrame, keys: Sequence[str], wanted: Mapping[str, int] = QUANTILES) -> DataFrame:
    """Per `keys` of a table with the columns `bucket` and `n`: `n` in all, and the quantiles in microseconds.

    The same bucket may come in several rows (of several minutes or batches). The window below runs over
    buckets, of which a key has at most some two thousand, never over events.
    """
    counts = histogram.groupBy(*keys, "bucket").agg(F.sum("n").alias("n"))
    whole = Window.partitionBy(*keys)
    upward = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.select(
        *keys, "bucket", F.sum("n").over(upward).alias("seen"), F.sum("n").over(whole).alias("total")
    )
    columns = [
        middle(
            F.min(F.when(F.col("seen") * 1000 >= F.col("total") * F.lit(per_mille), F.col("bucket")))
        ).alias(name)
        for name, per_mille in wanted.items()
    ]
    return ranked.groupBy(*keys).agg(F.max("total").alias("n"), *columns)
