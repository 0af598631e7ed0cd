"""What the replay kernel must know of subscriptions, as arrays that are cheap to send to every worker.

The rows of all subscriptions lie one after the other, so that a question about a million messages of any
number of subscriptions is one search, without a loop over subscriptions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from analytics.keys import Bools, Ints

if TYPE_CHECKING:
    from analytics.dimensions import Dimensions

NEVER = np.int64(2**63 - 1)  # later than everything, in seq and in time


def first_above(values: Ints, low: Ints, high: Ints, than: Ints) -> Ints:
    """For each i the first place in values[low[i]:high[i]] with a value above than[i]; if none, high[i].

    The values ascend there.
    """
    low, high = low.copy(), high.copy()
    while (searching := low < high).any():
        middle = (low + high) >> 1
        above = values[np.minimum(middle, len(values) - 1)] > than
        high = np.where(searching & above, middle, high)
        low = np.where(searching & ~above, middle + 1, low)
    return high


def next_above(values: Ints, low: Ints, high: Ints, than: Ints) -> Ints:
    """As `first_above`, for values in any order: a table of maxima over 1, 2, 4... values is descended."""
    maxima = [values]
    while len(maxima[-1]) > 1 << (len(maxima) - 1):
        step = 1 << (len(maxima) - 1)
        maxima.append(np.maximum(maxima[-1][:-step], maxima[-1][step:]))
    low = low.copy()
    for level in reversed(range(len(maxima))):
        fits = low + (1 << level) <= high
        block = maxima[level][np.minimum(low, len(maxima[level]) - 1)]
        low = np.where(fits & (block <= than), low + (1 << level), low)
    return low


@dataclass(frozen=True)
class PerSubscription:
    """Rows of several subscriptions one after the other, ascending in seq within each."""

    sub_id: Ints  # each subscription once, ascending
    start: Ints  # its first row; one more entry than sub_id
    seq: Ints

    @classmethod
    def of(cls, rows: Mapping[int, list[tuple[int, ...]]]) -> Self:
        """`rows`: by sub_id, tuples in the order of the fields from seq on."""
        rows = {sub_id: rows[sub_id] for sub_id in sorted(rows) if rows[sub_id]}
        flat = [one for several in rows.values() for one in several]
        names = [field.name for field in fields(cls)][2:]
        table = np.array(flat, np.int64).reshape(len(flat), len(names))
        start = np.cumsum([0, *map(len, rows.values())])
        columns = {name: table[:, at].copy() for at, name in enumerate(names)}
        return cls(sub_id=np.array(list(rows), np.int64), start=start, **columns)

    def spans(self, sub_id: Ints) -> tuple[Ints, Ints]:
        """First row and end for each of `sub_id`; an empty span where there is none."""
        if not len(self.sub_id):
            nothing = np.zeros(len(sub_id), np.int64)
            return nothing, nothing
        at = np.minimum(np.searchsorted(self.sub_id, sub_id), len(self.sub_id) - 1)
        known = self.sub_id[at] == sub_id
        return np.where(known, self.start[at], 0), np.where(known, self.start[at + 1], 0)


@dataclass(frozen=True)
class Settings(PerSubscription):
    exactly_once: Ints

    def is_exactly_once(self, sub_id: Ints, seq: Ints) -> Bools:
        """Whether exactly-once delivery was on. The first known setting holds for all that is before it."""
        low, high = self.spans(sub_id)
        known = high > low
        at = np.maximum(first_above(self.seq, low, high, seq) - 1, low)
        found = np.zeros(len(seq), np.bool_)
        found[known] = self.exactly_once[at[known]] != 0
        return found


@dataclass(frozen=True)
class Seeks(PerSubscription):
    ts_us: Ints
    epoch: Ints
    target_us: Ints
    lo_us: Ints
    kept_from_us: Ints  # NEVER: nothing is kept
    kept_after_id: Ints
    is_snapshot: Ints


@dataclass(frozen=True)
class Drops(PerSubscription):
    ts_us: Ints
    epoch: Ints
    cutoff_us: Ints


@dataclass(frozen=True)
class Created(PerSubscription):
    ts_us: Ints

    def at(self, sub_id: Ints) -> Ints:
        """When each subscription was created; 0: before the range, or not known."""
        low, high = self.spans(sub_id)
        return np.where(high > low, self.ts_us[low], 0) if len(self.ts_us) else low


@dataclass(frozen=True)
class Rules:
    """What the kernel must know of subscriptions, as arrays that are cheap to send to every worker."""

    settings: Settings
    seeks: Seeks
    drops: Drops
    created: Created
    tolerance_us: int = 0  # so much too early is not worth a word
    first_message_id: int = 0  # of the messages published in the range; earlier ones are known in part

    @classmethod
    def of(cls, dimensions: Dimensions, tolerance_us: int = 0, first_message_id: int = 0) -> Rules:
        sought = {sub_id: dimensions.seeks(sub_id) for sub_id in dimensions.epochs}
        seqs = {sub_id: [one.start_seq for one in seeks] for sub_id, seeks in sought.items()}
        return cls(
            settings=Settings.of(
                {
                    sub_id: [(one.seq, one.exactly_once) for one in known.settings]
                    for sub_id, known in dimensions.subscriptions.items()
                }
            ),
            seeks=Seeks.of(
                {
                    sub_id: [
                        (one.start_seq, one.start_us, one.epoch, one.target_us, one.lo_us,
                         one.kept_from_us if one.retain_acked else int(NEVER), one.kept_after_id,
                         one.is_snapshot)
                        for one in seeks
                    ]
                    for sub_id, seeks in sought.items()
                }
            ),
            drops=Drops.of(
                {
                    sub_id: [
                        (one.seq, one.ts_us, bisect_left(seqs.get(sub_id, []), one.seq), one.cutoff_us)
                        for one in drops
                    ]
                    for sub_id, drops in dimensions.drops.items()
                }
            ),
            created=Created.of(
                {
                    sub_id: [(known.start_seq, known.start_us)]
                    for sub_id, known in dimensions.subscriptions.items()
                }
            ),
            tolerance_us=tolerance_us,
            first_message_id=first_message_id,
        )  # fmt: skip  # short items, many to a line
