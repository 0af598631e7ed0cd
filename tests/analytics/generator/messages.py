"""What is published: requests of several messages, to topics of different weight, now more, now fewer.

The messages of a block have handles, their places from 1, until their ids are known: dead letters are
published among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from tests.analytics.generator.builder import key_hash
from tests.analytics.generator.lives import Copy
from tests.analytics.generator.violations import Fault
from tests.analytics.generator.world import KEYED, KEYS, PUBLISHERS, World

BATCH = 5  # messages of a request, on average
BATCH_MAX = 50
TWICE = 0.003  # share of messages with the content of another
SIZES = 3_000  # as many as a dictionary holds well


@dataclass
class Published:
    """Messages; those of one request are neighbours, at one time."""

    ts_us: np.ndarray
    topic_id: np.ndarray
    place: np.ndarray  # in the request
    okey: np.ndarray
    bytes: np.ndarray
    payload_hash: np.ndarray
    ref_ts_us: np.ndarray  # when the request came
    client_id: np.ndarray
    stream_id: np.ndarray
    copy: np.ndarray  # which dead letter it is, see Copy.number; 0 = none
    fault_sub: np.ndarray  # the subscription on which its life is a fault's; 0 = none

    def __len__(self) -> int:
        return len(self.ts_us)

    @classmethod
    def join(cls, parts: Sequence[Published]) -> Published:
        return cls(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)))


class Publisher:
    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        self._requests = 1_000_000  # number of the last
        self._sizes = np.unique(np.exp(rng.normal(6, 1, SIZES)).astype(np.int64) + 20)

    def publish(self, t0_us: int, t1_us: int, messages: int) -> Published:
        """About `messages` messages between two times. Settles the seeks whose target is among them."""
        world, rng = self.world, self.rng
        n = max(messages // BATCH, 10)
        ts_us = np.unique(t0_us + (self._times(n) * (t1_us - t0_us)).astype(np.int64) // 2 * 2)
        ts_us = ts_us[(ts_us > world.start_us + 2000) & (ts_us < t1_us)]
        n = len(ts_us)
        topic_id = 1 + rng.choice(len(world.weights), n, p=np.array([*world.weights.values()]))
        size = np.minimum(rng.geometric(1 / BATCH, n), BATCH_MAX)
        world.settle(t0_us, t1_us, ts_us, topic_id, size)

        m = int(size.sum())
        request = np.repeat(np.arange(n), size)
        payload = rng.integers(-(1 << 63), 1 << 63, m)
        again = np.flatnonzero(rng.random(m) < TWICE)
        payload[again] = payload[rng.integers(0, m, len(again))]
        took_us = (200 + rng.gamma(2.0, 800, n)).astype(np.int64)
        return Published(
            ts_us=ts_us[request],
            topic_id=topic_id[request],
            place=np.arange(m) - np.repeat(np.cumsum(size) - size, size),
            okey=self._keys(topic_id)[request],
            bytes=rng.choice(self._sizes, m),
            payload_hash=payload,
            ref_ts_us=(ts_us - took_us)[request],
            client_id=(1 + rng.integers(0, PUBLISHERS, n))[request],
            stream_id=self._numbers(n)[request],
            copy=np.zeros(m, np.int64),
            fault_sub=np.zeros(m, np.int64),
        )

    def _times(self, n: int) -> np.ndarray:
        """When requests come, as parts of the block, ascending."""
        load = self.rng.gamma(3.0, 1.0, 24)
        part = self.rng.choice(24, n, p=load / load.sum())
        return np.sort((part + self.rng.random(n)) / 24)

    def _keys(self, topic_id: np.ndarray) -> np.ndarray:
        """Of requests: clients put messages of one key into one."""
        world, rng = self.world, self.rng
        out = np.zeros(len(topic_id), np.int64)
        for name, share in KEYED.items():
            chosen = topic_id == world.topics[name]
            n = int(chosen.sum())
            okeys = world.okeys[name][(KEYS * rng.random(n) ** 2.5).astype(np.int64)]
            okeys[rng.random(n) >= share] = 0
            if name == "orders":
                okeys[rng.random(n) < world.hot_key] = world.okeys[name][0]
            out[chosen] = okeys
        return out

    def _numbers(self, n: int) -> np.ndarray:
        self._requests += n
        return np.arange(self._requests - n, self._requests)

    def of_fault(self, fault: Fault) -> Published:
        """The messages of a fault."""
        ts_us = np.array(fault.publish_us)
        n = len(ts_us)
        return Published(
            ts_us=ts_us,
            topic_id=np.full(n, fault.subscription.topic_id),
            place=np.zeros(n, np.int64),
            okey=np.full(n, key_hash(fault.key)),
            bytes=np.full(n, self._sizes[0]),
            payload_hash=self.rng.integers(-(1 << 63), 1 << 63, n),
            ref_ts_us=ts_us - 500,
            client_id=np.ones(n, np.int64),
            stream_id=self._numbers(n),
            copy=np.zeros(n, np.int64),
            fault_sub=np.full(n, fault.subscription.sub_id),
        )

    def of_copies(self, copies: Copy) -> Published:
        """Dead letters arrive at their topic; the server publishes them."""
        n = len(copies)
        none = np.zeros(n, np.int64)
        return Published(
            ts_us=copies.ts_us,
            topic_id=np.full(n, self.world.topics["dead"]),
            place=none,
            okey=copies.okey,
            bytes=copies.bytes,
            payload_hash=copies.payload_hash,
            ref_ts_us=copies.ts_us,
            client_id=none,
            stream_id=none,
            copy=copies.number,
            fault_sub=none,
        )
