"""What becomes of messages on subscriptions with ordering: key by key, in the order of publishing.

Every message is delivered once and acked, in order, by the client that has the key; only where a message
fails is what is outstanding behind it reset, and all of it delivered again in order.
"""

from __future__ import annotations

import numpy as np

from analytics.layout import Kind, Result
from tests.analytics.generator.events import Events
from tests.analytics.generator.lives import even
from tests.analytics.generator.world import S, Subscription, World

# What happens to the first lease: it is acked, nacked, runs out, or is reset; and then perhaps nacked.
NOTHING, NACKED, EXPIRED, RESET, RELEASED = range(5)


class Keys:
    """Keeps, of one subscription, when the newest message of each key was delivered."""

    def __init__(self, world: World, subscription: Subscription) -> None:
        self.world, self.subscription, self.profile = world, subscription, subscription.profile
        self._newest: dict[int, int] = {}  # by okey

    def run(
        self,
        rng: np.random.Generator,
        events: Events,
        *,
        handle: np.ndarray,
        pub_us: np.ndarray,
        okey: np.ndarray,
        size: np.ndarray,
    ) -> np.ndarray:
        """Tell the lives of a block's messages; which of them are open at the end of the journal."""
        n = len(handle)
        if not n:
            return np.zeros(0, bool)
        # Without a key every message is for itself.
        alone = np.where(okey == 0, np.arange(1, n + 1), 0)
        order = np.lexsort((handle, alone, okey))
        inverse = np.empty(n, np.int64)
        inverse[order] = np.arange(n)
        handle, pub_us, okey, size, alone = (a[order] for a in (handle, pub_us, okey, size, alone))
        starts = np.flatnonzero(np.r_[True, (okey[1:] != okey[:-1]) | (alone[1:] != alone[:-1])])
        key_of = np.zeros(n, np.int64)
        key_of[starts] = 1
        key_of = np.cumsum(key_of) - 1

        profile = self.profile
        latency_us = even(profile.latency_s * S * np.exp(profile.spread * rng.standard_normal(n)))
        floor_us = np.array([self._newest.get(int(key), 0) if key else 0 for key in okey[starts]])
        first_us = pub_us + latency_us
        first_us[starts] = np.maximum(first_us[starts], floor_us)
        first_us = _running_max(first_us, key_of)

        final_us = first_us.copy()  # of the delivery that is acked
        fate = np.zeros(n, np.int8)
        failed_us = np.zeros(n, np.int64)
        self._trouble(rng, starts, okey, first_us, final_us, fate, failed_us)
        self._newest |= dict(
            zip(okey[starts].tolist(), final_us[np.r_[starts[1:], n] - 1].tolist(), strict=True)
        )

        work_us = even(
            np.minimum(profile.work_s * S * np.exp(profile.spread * rng.standard_normal(n)), 3 * S)
        )
        acked_us = _running_max(final_us + work_us, key_of)
        slot = np.where(okey == 0, handle, okey) % profile.clients
        self._tell(
            events, rng, handle, pub_us, okey, size, slot, fate, first_us, failed_us, final_us, acked_us
        )
        return (acked_us >= events.end_us)[inverse]

    def _trouble(
        self,
        rng: np.random.Generator,
        starts: np.ndarray,
        okey: np.ndarray,
        first_us: np.ndarray,
        final_us: np.ndarray,
        fate: np.ndarray,
        failed_us: np.ndarray,
    ) -> None:
        """Let a message of some keys fail. Changes the four arrays."""
        lease_us = self.profile.lease_s * S
        ends = np.r_[starts[1:], len(okey)]
        chosen = np.flatnonzero((rng.random(len(starts)) < self.profile.trouble) & (okey[starts] != 0))
        for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True):
            at = int(rng.integers(start, end))
            expires = rng.random() < 0.4
            after_us = lease_us + 40_000 if expires else int(rng.integers(50, 1500)) * 1000
            then_us = int(first_us[at]) + after_us
            behind = at + int(np.searchsorted(first_us[at:end], then_us))  # the first that is not outstanding
            fate[at], fate[at + 1 : behind] = EXPIRED if expires else NACKED, RESET
            failed_us[at:behind] = then_us
            again_us = np.full(behind - at, then_us + int(rng.integers(50, 1000)) * 1000)
            # What lapsed together with it was not reset.
            lapsed = at + int(np.searchsorted(first_us[at:behind], then_us - lease_us, "right"))
            fate[at + 1 : lapsed] = EXPIRED
            if self.profile.exactly_once and rng.random() < 0.3:
                # Their clients give up what is behind, so it need not wait.
                fate[max(lapsed, at + 1) : behind] = RELEASED
            elif self.profile.exactly_once:
                # Clients have leases that they think are good.
                again_us[1:] = np.maximum(again_us[1:], first_us[at + 1 : behind] + lease_us + 2)
            final_us[at:behind] = np.maximum.accumulate(again_us)
            first_us[behind:end] = np.maximum(first_us[behind:end], final_us[behind - 1] + 2)
            final_us[behind:end] = first_us[behind:end]

    def _tell(
        self,
        events: Events,
        rng: np.random.Generator,
        handle: np.ndarray,
        pub_us: np.ndarray,
        okey: np.ndarray,
        size: np.ndarray,
        slot: np.ndarray,
        fate: np.ndarray,
        first_us: np.ndarray,
        failed_us: np.ndarray,
        final_us: np.ndarray,
        acked_us: np.ndarray,
    ) -> None:
        world, subscription = self.world, self.subscription
        lease_us = self.profile.lease_s * S

        def tell(
            kind: Kind, rows: np.ndarray, ts_us: np.ndarray, of_us: np.ndarray, **columns: object
        ) -> None:
            """About the delivery at `of_us`."""
            events.add(
                kind,
                ts_us,
                topic_id=subscription.topic_id,
                sub_id=subscription.sub_id,
                message_id=handle[rows],
                client_id=world.client_id(world.period(of_us), subscription.index, slot[rows]),
                **columns,
            )

        def stream(rows: np.ndarray, ts_us: np.ndarray) -> np.ndarray:
            out: np.ndarray = world.stream_id(world.period(ts_us), subscription.index, slot[rows])
            return out

        everything = np.arange(len(handle))
        failed = np.flatnonzero(fate != NOTHING)
        attempt = np.where((fate == NACKED) | (fate == EXPIRED), 2, 1)
        generation = np.where(fate != NOTHING, 2, 1)
        for rows, at_us, number, tries in (
            (everything, first_us, 1, 1),
            (failed, final_us[failed], 2, attempt[failed]),
        ):
            tell(
                Kind.DELIVER,
                rows,
                at_us,
                at_us,
                generation=number,
                attempt=tries,
                deadline_us=at_us + lease_us,
                ref_ts_us=pub_us[rows],
                okey=okey[rows],
                bytes=size[rows],
                stream_id=stream(rows, at_us),
            )
        for kind, which in (
            (Kind.NACK, [NACKED]),
            (Kind.EXPIRE, [EXPIRED]),
            (Kind.RESET, [RESET, RELEASED]),
        ):
            rows = np.flatnonzero(np.isin(fate, which))
            asked = kind == Kind.NACK
            tell(
                kind,
                rows,
                failed_us[rows],
                first_us[rows],
                generation=1,
                attempt=1,
                deadline_us=0 if asked else first_us[rows] + lease_us,
                ref_ts_us=first_us[rows],
                okey=okey[rows],
                stream_id=stream(rows, failed_us[rows]) if asked else 0,
            )
        if self.profile.exactly_once:
            # Clients of reset messages do not know it, and are refused.
            rows = np.flatnonzero((fate == RESET) & (rng.random(len(fate)) < 0.5))
            late_us = failed_us[rows] + 2 + even(rng.uniform(0, 0.04 * S, len(rows)))
            about = {"generation": 1, "attempt": 1, "ref_ts_us": first_us[rows], "result": Result.PERMANENT}
            tell(Kind.ACK, rows, late_us, first_us[rows], **about, stream_id=stream(rows, late_us))
            rows = np.flatnonzero(fate == RELEASED)
            late_us = failed_us[rows] + 2 + even(rng.uniform(0, 0.04 * S, len(rows)))
            about = {"generation": 1, "attempt": 1, "ref_ts_us": first_us[rows], "okey": okey[rows]}
            tell(Kind.NACK, rows, late_us, first_us[rows], **about, stream_id=stream(rows, late_us))
        tell(
            Kind.ACK,
            everything,
            acked_us,
            final_us,
            generation=generation,
            attempt=attempt,
            ref_ts_us=final_us,
            okey=okey,
            stream_id=stream(everything, acked_us),
        )


def _running_max(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Within each group (ascending, from 0) the largest so far. Values span less than 2^38 us: three days."""
    base = values.min()
    lifted = (values - base) + (group << 38)
    largest: np.ndarray = np.maximum.accumulate(lifted) - (group << 38) + base
    return largest
