"""Events on their way into a journal, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from analytics.layout import COLUMNS

#: `mark` is the number of an expectation that wants to know the event's seq; 0 = none.
TYPES = {column.name: np.dtype(column.type) for column in COLUMNS if column.name not in ("seq", "detail")}
TYPES |= {"mark": np.dtype("int32")}

Columns = dict[str, np.ndarray]


class Events:
    """Collects events in the order in which they happen, as far as they happen at the same moment."""

    def __init__(self, end_us: int) -> None:
        self.end_us = end_us
        self._parts: list[Columns] = []

    def add(self, kind: int, ts_us: Any, **columns: Any) -> None:
        """Events of one kind: arrays, or a number for all; what is not named is 0. None is after the end."""
        ts_us = np.asarray(ts_us, np.int64)
        before = ts_us < self.end_us
        if not before.any():
            return
        whole = bool(before.all())
        n = int(before.sum())
        part = {}
        for name, dtype in TYPES.items():
            value = {"kind": int(kind), "ts_us": ts_us}.get(name, columns.pop(name, 0))
            if isinstance(value, np.ndarray):
                part[name] = (value if whole else value[before]).astype(dtype, copy=False)
            elif value:
                part[name] = np.full(n, value, dtype)
            else:
                part[name] = np.zeros(n, dtype)
        assert not columns, columns
        self._parts.append(part)

    def take(self) -> Columns:
        parts, self._parts = self._parts, []
        return concatenate(parts)


def concatenate(parts: list[Columns]) -> Columns:
    if not parts:
        return {name: np.zeros(0, dtype) for name, dtype in TYPES.items()}
    return {name: np.concatenate([part[name] for part in parts]) for name in TYPES}
