"""Many minutes as few points, without inventing anything.

A line of a plot has at most `POINTS_MAX` points. Where there are more minutes, neighbours are merged: counts
are added up, histograms are added up before a quantile is taken, and of a state (backlog, age) the highest
value counts, so that no peak disappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.histogram import QUANTILES, WIDTH, rank_of

POINTS_MAX = 2_000
MINUTE_US = 60_000_000

#: Minutes that a point may stand for: lengths that a person can read off an axis.
_STEPS = (1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1_440)


class Grid(NamedTuple):
    """A time axis: `points`, each `step` minutes long, from minute `start` since the epoch."""

    start: int
    step: int
    points: int

    @classmethod
    def over(cls, first: int, last: int, points_max: int = POINTS_MAX) -> Grid:
        """The finest grid which covers the minutes `first` to `last` with at most `points_max` points."""
        for step in _steps():
            start = first // step * step
            points = (last - start) // step + 1
            if points <= points_max:
                return cls(start, step, points)
        raise AssertionError("steps grow without an end")

    @property
    def seconds(self) -> float:
        """How long a point is."""
        return self.step * 60.0

    def slots(self, minutes: np.ndarray) -> np.ndarray:
        """The point to which each minute belongs."""
        return (minutes - self.start) // self.step


def _steps() -> Iterable[int]:
    yield from _STEPS
    days = 2
    while True:
        yield days * 1_440
        days *= 2


def minutes_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Minutes since the epoch of a timestamp column, whatever its unit and time zone."""
    micros = pc.cast(column, pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
    return _numpy(pc.cast(micros, pa.int64())) // MINUTE_US


def numbers(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """A column as floats, null as NaN. Counts below 2^53 stay exact."""
    return _numpy(pc.cast(column, pa.float64(), safe=False).fill_null(float("nan")))


def _numpy(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values


class Minutes:
    """Rows of a table with a subscription and a minute, as arrays."""

    def __init__(self, table: pa.Table, grid: Grid) -> None:
        self.grid = grid
        self.sub_id = _numpy(table["sub_id"])
        self.minute = minutes_of(table["minute"])
        self._slots = grid.slots(self.minute)
        self._table = table
        self._values: dict[str, np.ndarray] = {}

    def values(self, column: str) -> np.ndarray:
        """A column, null as NaN."""
        if column not in self._values:
            self._values[column] = numbers(self._table[column])
        return self._values[column]

    def ages(self) -> np.ndarray:
        """`oldest_age_s`, which is null where nothing waits: zero there, and NaN where nothing is known."""
        age, backlog = self.values("oldest_age_s"), self.values("backlog")
        return np.where(np.isnan(age) & (backlog == 0), 0.0, age)

    def total(self, column: str) -> np.ndarray:
        """The sum over all subscriptions, per point."""
        return self._sums(slice(None), column)

    def of(self, sub_id: int, column: str) -> np.ndarray:
        """The sum of one subscription, per point."""
        return self._sums(self.sub_id == sub_id, column)

    def by_subscription(self, column: str) -> dict[int, float]:
        """The sum over all minutes, per subscription."""
        ids, place = np.unique(self.sub_id, return_inverse=True)
        sums = np.bincount(place, weights=np.nan_to_num(self.values(column)), minlength=len(ids))
        return {int(i): float(s) for i, s in zip(ids, sums, strict=True)}

    def _sums(self, rows: slice | np.ndarray, column: str) -> np.ndarray:
        weights = np.nan_to_num(self.values(column)[rows])
        return np.bincount(self._slots[rows], weights=weights, minlength=self.grid.points)

    def state(self, sub_id: int, values: np.ndarray) -> np.ndarray:
        """The highest value of a state per point; `values` has one per row.

        A minute without a row is one in which nothing happened and nothing waited: the state of the minute
        before goes on. Before the first row nothing is known.
        """
        grid = self.grid
        rows = self.sub_id == sub_id
        every = np.full(grid.points * grid.step, np.nan)
        places = self.minute[rows] - grid.start
        every[places] = values[rows]
        seen = np.zeros(len(every), dtype=bool)
        seen[places] = True
        before = np.maximum.accumulate(np.where(seen, np.arange(len(every)), -1))
        every = np.where(before >= 0, every[before], np.nan)
        # The grid may end after the last minute that any row has; nothing is known of what follows.
        if len(self.minute):
            every[int(self.minute.max()) - grid.start + 1 :] = np.nan
        return highest(every, grid)


def highest(every: np.ndarray, grid: Grid) -> np.ndarray:
    """The highest of the minutes of each point; NaN where none is known."""
    cut = every.reshape(grid.points, grid.step)
    best = np.where(np.isnan(cut), -np.inf, cut).max(axis=1)
    return np.where(np.isneginf(best), np.nan, best)


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where there is no whole."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


class Histogram:
    """Latencies of one kind: counts per point and bucket, added up batch by batch."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._kept = 0

    def add(self, minutes: np.ndarray, buckets: np.ndarray, counts: np.ndarray) -> None:
        slots = self.grid.slots(minutes).astype(np.int64)
        # Buckets are 0 to a few thousand; one number stands for both.
        self._parts.append((slots << 32 | buckets.astype(np.int64), counts.astype(np.int64)))
        self._kept += len(slots)
        if self._kept > 4_000_000:
            self._parts = [self._merged()]
            self._kept = len(self._parts[0][0])

    def _merged(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        keys = np.concatenate([key for key, _ in self._parts])
        counts = np.concatenate([count for _, count in self._parts])
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)) if len(keys) else np.zeros(0, np.int64)
        return keys[first], np.add.reduceat(counts, first) if len(keys) else counts

    def quantiles(self, names: Sequence[str] = tuple(QUANTILES)) -> dict[str, np.ndarray]:
        """Each quantile per point, in microseconds; NaN where nothing was measured."""
        keys, counts = self._merged()
        answer = {name: np.full(self.grid.points, np.nan) for name in names}
        if not len(keys):
            return answer
        slots, buckets = keys >> 32, keys & 0xFFFFFFFF
        starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 1))
        seen = np.cumsum(counts)
        before = seen[starts] - counts[starts]
        totals = np.diff(np.append(before, seen[-1]))
        for name in names:
            ranks = np.array([rank_of(int(total), QUANTILES[name]) for total in totals])
            place = np.searchsorted(seen, before + ranks)
            answer[name][slots[starts]] = np.exp((buckets[place] + 0.5) * WIDTH)
        return answer

    def count(self) -> int:
        return int(sum(counts.sum() for _, counts in self._parts))
