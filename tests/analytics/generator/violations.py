"""Faults on purpose: messages whose life on one subscription breaks exactly one rule, told event by event.

Each has its own messages, which live on their topic's other subscriptions as any other does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from analytics.layout import Kind, Result
from analytics.tables import CODES
from tests.analytics.generator import world as plan
from tests.analytics.generator.events import Events
from tests.analytics.generator.world import S, Subscription, World


class Violation(NamedTuple):
    """What the audit has to find. `seq` 0: what is wrong is not an event (G4)."""

    code: str
    sub_id: int
    message_id: int
    seq: int


@dataclass
class Fault:
    """One planned fault: `messages` are published to the subscription's topic from `ts_us` on."""

    code: str
    subscription: Subscription
    ts_us: int
    key: str = ""

    @property
    def publish_us(self) -> list[int]:
        """When its messages are published."""
        n = {"G5_out_of_order": 2, "G5_skipped": 2, "G5_redelivery_gap": 3}.get(self.code, 1)
        return [self.ts_us + 10_000 * at for at in range(n)]


def faults(world: World, each: int) -> list[Fault]:
    """`each` of every class, spread over the journal and over the subscriptions that allow it."""
    plain = [world.named(name) for name in ("orders-billing", "audit-archive", "mails-send")]
    ordered = world.named("orders-ledger")
    sought = world.named("audit-replay")
    ends = [one.ts_us for one in sought.controls if one.kind == plan.SEEK and one.target_us >= one.ts_us]
    out = []
    first_us, last_us = world.start_us + 10 * S, world.end_us - 120 * S
    for turn, code in enumerate(CODES):
        for at in range(each):
            ts_us = first_us + int((at + turn / len(CODES)) * (last_us - first_us) / each) // 2 * 2
            subscription = plain[(at + turn) % len(plain)]
            if code == "G1_delivered_after_seek":
                # A little before a seek that acknowledges everything.
                subscription, ts_us = sought, ends[at % len(ends)] - 5 * S - 1 - 2 * (at // len(ends))
            if code.startswith("G5"):
                subscription = ordered
            out.append(Fault(code, subscription, ts_us, f"{code}-{at}" if code.startswith("G5") else ""))
    return sorted(out, key=lambda fault: fault.ts_us)


class Teller:
    """Adds the events of faults. `marks` are what has to be found, numbered from 1: code, sub_id, handle."""

    def __init__(self, world: World, events: Events) -> None:
        self.world, self.events = world, events
        self.marks: list[tuple[str, int, int]] = []
        self.backlog: list[tuple[int, int]] = []  # what the backlog file is to hold: sub_id, handle

    def tell(self, fault: Fault, first_handle: int, okey: int, size: int) -> None:
        """The messages of the fault have consecutive handles."""
        published_us = fault.publish_us
        lives = [
            _Life(self, fault, first_handle + at, published_us[at], okey, size)
            for at in range(len(published_us))
        ]
        getattr(self, "_" + fault.code.lower())(fault, *lives)

    def mark(self, fault: Fault, handle: int, code: str = "") -> int:
        self.marks.append((code or fault.code, fault.subscription.sub_id, handle))
        return len(self.marks)

    # Times are seconds after publishing. A lease is at least 10 s long.

    def _g0_reference(self, fault: Fault, life: _Life) -> None:
        # Looked at only where something else is wrong, so that is, too.
        life.deliver(0.1)
        life.ack(0.5, ref_ts_us=life.delivered_us[1] - 7, mark=self.mark(fault, life.handle))
        life.deliver(0.9, mark=self.mark(fault, life.handle, "G1_delivered_after_ack"))
        life.ack(1.2, result=Result.NOOP)

    def _g1_delivered_after_ack(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.ack(0.5)
        life.deliver(0.9, mark=self.mark(fault, life.handle))
        life.ack(1.2, result=Result.NOOP)

    def _g1_delivered_after_seek(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.deliver(16, mark=self.mark(fault, life.handle))
        life.ack(17, result=Result.NOOP)

    def _g2_early_redelivery(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.deliver(2, mark=self.mark(fault, life.handle))
        life.ack(2.5)

    def _g2_early_expire(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.expire(4, mark=self.mark(fault, life.handle))
        life.deliver(5, attempt=2)
        life.ack(5.5)

    def _g3_valid_rejected(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.ack(1, result=Result.PERMANENT, mark=self.mark(fault, life.handle))
        life.ack(2)

    def _g3_invalid_accepted(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.expire(fault.subscription.profile.lease_s + 0.2)
        life.ack(fault.subscription.profile.lease_s + 1, mark=self.mark(fault, life.handle))

    def _g3_repeat_accepted(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.ack(0.4)
        life.ack(0.8, mark=self.mark(fault, life.handle))

    def _g4_lost(self, fault: Fault, life: _Life) -> None:
        # Every other has been delivered once.
        if life.handle % 2:
            life.deliver(0.1)
            life.expire(fault.subscription.profile.lease_s + 0.2)
        self.mark(fault, life.handle)

    def _g4_ghost(self, fault: Fault, life: _Life) -> None:
        life.deliver(0.1)
        life.ack(0.4)
        self.mark(fault, life.handle)
        self.backlog.append((fault.subscription.sub_id, life.handle))

    def _g5_out_of_order(self, fault: Fault, first: _Life, second: _Life) -> None:
        second.deliver(0.1, mark=self.mark(fault, second.handle))
        first.deliver(0.2)
        first.ack(0.4)
        second.ack(0.5)

    def _g5_skipped(self, fault: Fault, first: _Life, second: _Life) -> None:
        second.deliver(0.1, mark=self.mark(fault, second.handle))
        second.ack(0.4)
        self.backlog.append((fault.subscription.sub_id, first.handle))

    def _g5_redelivery_gap(self, fault: Fault, first: _Life, second: _Life, third: _Life) -> None:
        for life in (first, second, third):
            life.deliver(0.1)
        at_s = 1.0
        first.nack(at_s)
        second.reset(at_s)
        third.reset(at_s)
        first.deliver(1.5, attempt=2)
        first.ack(2)
        third.deliver(12, mark=self.mark(fault, third.handle))
        second.deliver(12.5)
        second.ack(13)
        third.ack(13.5)


class _Life:
    """One message on the fault's subscription. Times are seconds after its publishing."""

    def __init__(
        self, teller: Teller, fault: Fault, handle: int, published_us: int, okey: int, size: int
    ) -> None:
        self.teller, self.fault, self.handle = teller, fault, handle
        self.published_us, self.okey, self.size = published_us, okey, size
        self.delivered_us: dict[int, int] = {}
        self.generation, self.attempt = 0, 1
        self.deadline_us = 0

    def deliver(self, at: float, *, attempt: int = 1, mark: int = 0) -> None:
        self.generation, self.attempt = self.generation + 1, attempt
        now_us = self._us(at)
        self.delivered_us[self.generation] = now_us
        self.deadline_us = now_us + self.fault.subscription.profile.lease_s * S
        about = {"deadline_us": self.deadline_us, "ref_ts_us": self.published_us, "bytes": self.size}
        self._add(Kind.DELIVER, at, **about, stream_id=self._place(now_us, "stream_id"), mark=mark)

    def ack(self, at: float, *, result: int = Result.OK, **columns: int) -> None:
        okey = self.okey if result == Result.OK else 0
        stream_id = self._place(self._us(at), "stream_id")
        self._add(Kind.ACK, at, **{"result": result, "okey": okey, "stream_id": stream_id, **columns})

    def nack(self, at: float) -> None:
        self._add(Kind.NACK, at, stream_id=self._place(self._us(at), "stream_id"))

    def expire(self, at: float, mark: int = 0) -> None:
        self._add(Kind.EXPIRE, at, deadline_us=self.deadline_us, mark=mark)

    def reset(self, at: float) -> None:
        self._add(Kind.RESET, at, deadline_us=self.deadline_us)

    def _us(self, at: float) -> int:
        return self.published_us + round(at * S) // 2 * 2

    def _place(self, ts_us: int, what: str) -> int:
        """The first client of the subscription."""
        world = self.teller.world
        return int(getattr(world, what)(int(world.period(np.array(ts_us))), self.fault.subscription.index, 0))

    def _add(self, kind: Kind, at: float, **columns: Any) -> None:
        subscription, delivered_us = self.fault.subscription, self.delivered_us[self.generation]
        given = {
            "topic_id": subscription.topic_id,
            "sub_id": subscription.sub_id,
            "message_id": self.handle,
            "generation": self.generation,
            "attempt": self.attempt,
            "ref_ts_us": delivered_us,
            "client_id": self._place(delivered_us, "client_id"),
            "okey": self.okey,
            **columns,
        }
        self.teller.events.add(kind, [self._us(at)], **given)
