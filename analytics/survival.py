"""How long work takes, when some of it was not seen to end: Kaplan-Meier over histogram buckets.

An ack says how long a message was worked on. A lease that ran out without one says only that it took longer.
Leaving such leases out would make the work look shorter than it is, and more so the shorter the leases are.
The estimate goes upward through the buckets: of what is still under way at each, it takes the share that was
acked there; what was cut off counts as under way up to its bucket and then leaves without being acked.

Source: E. L. Kaplan and P. Meier, "Nonparametric Estimation from Incomplete Observations", 1958.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analytics.histogram import middle_us

_US = 1e6


@dataclass(frozen=True)
class Survival:
    """Which share of the work takes longer than a time; times in seconds, a bucket stands for its middle."""

    seconds: tuple[float, ...]  # of each bucket, ascending
    shares: tuple[float, ...]  # still under way after that bucket
    acked: int
    censored: int  # not seen to end

    @classmethod
    def of(cls, acked: Mapping[int, int], censored: Mapping[int, int]) -> Survival:
        """`acked`, `censored`: bucket -> how many."""
        under_way = sum(acked.values()) + sum(censored.values())
        share, seconds, shares = 1.0, [], []
        for bucket in sorted({*acked, *censored}):
            ended, cut = acked.get(bucket, 0), censored.get(bucket, 0)
            # Of one bucket the acks come first: what was cut off there was under way all along.
            share *= 1 - ended / under_way
            under_way -= ended + cut
            seconds.append(middle_us(bucket) / _US)
            shares.append(share)
        return cls(tuple(seconds), tuple(shares), sum(acked.values()), sum(censored.values()))

    @property
    def n(self) -> int:
        return self.acked + self.censored

    @property
    def is_known_until_s(self) -> float:
        """The longest time that was seen, to an end or not; 0 without measurements."""
        return self.seconds[-1] if self.seconds else 0.0

    def above(self, seconds: float) -> float:
        """The share that takes longer than `seconds`; beyond what was seen, that of the longest time seen."""
        left = 1.0
        for at, share in zip(self.seconds, self.shares, strict=True):
            if at > seconds:
                break
            left = share
        return left

    def quantile_s(self, share: float) -> float | None:
        """The shortest time that at most 1 - `share` of the work exceeds; None: nothing seen is that long."""
        # Products of fractions may come out a hair above what they are.
        limit = 1 - share + 1e-9
        return next((at for at, left in zip(self.seconds, self.shares, strict=True) if left <= limit), None)

    @property
    def mean_s(self) -> float:
        """The mean, where what was not seen to end counts as if it ended at the longest time seen."""
        mean, before = 0.0, 1.0
        for at, left in zip(self.seconds, self.shares, strict=True):
            mean += (before - left) * at
            before = left
        return mean + before * self.is_known_until_s
