"""How long a message rests after a nack or an expired deadline before it is delivered again.

Source: Subscription.retry_policy, RetryPolicy.minimum_backoff, RetryPolicy.maximum_backoff.
"""

from __future__ import annotations

from dataclasses import dataclass

from pubsubd.model import durations, limits
from pubsubd.wire import pb


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that doubles from one failure of a message to the next, between two bounds."""

    minimum_us: int
    maximum_us: int

    def delay_us(self, failures: int) -> int:
        """The delay after so many failures in a row, the latest included; at least one.

        Without jitter, so that whoever tests a subscriber knows when a message returns.
        """
        assert failures >= 1, failures
        # One microsecond doubled this often exceeds the maximum; further doubling only makes long integers.
        doublings = min(failures - 1, self.maximum_us.bit_length())
        return min(self.maximum_us, self.minimum_us << doublings)


def backoff_of(subscription: pb.Subscription) -> Backoff | None:
    """The delays that the subscription asks for; None where a failed message may be delivered at once.

    That is so without a retry policy, and with a minimum of zero, which stays zero however often it doubles.
    """
    if not subscription.HasField("retry_policy"):
        return None
    policy = subscription.retry_policy
    minimum_us = limits.MINIMUM_BACKOFF_SECONDS_DEFAULT * limits.SECOND_US
    if policy.HasField("minimum_backoff"):
        minimum_us = durations.microseconds(policy.minimum_backoff)
    maximum_us = limits.MAXIMUM_BACKOFF_SECONDS_DEFAULT * limits.SECOND_US
    if policy.HasField("maximum_backoff"):
        maximum_us = durations.microseconds(policy.maximum_backoff)
    return Backoff(minimum_us, maximum_us) if minimum_us else None
