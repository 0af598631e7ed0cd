"""What a synthetic journal is of: topics, subscriptions, their clients, and what is done to them when.

All of it is planned before the first message, so that the life of a message can be told to its end when it
is published, whatever seeks and drops lie ahead. Times are microseconds. Messages and what happens to them
have even times, the plan's events odd ones: nobody has to ask which of two came first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.analytics.generator.builder import key_hash

S = 1_000_000
NEVER = 1 << 62

# What is planned for a subscription.
SEEK, SNAPSHOT, SEEK_SNAPSHOT, BULK_DROP, DETACH, DELETE = range(6)


@dataclass(frozen=True)
class Profile:
    """A subscription and how its clients behave. Shares are of deliveries unless it says otherwise."""

    name: str
    topic: str
    exactly_once: bool = True
    ordered: bool = False
    lease_s: int = 10
    latency_s: float = 0.02  # median from publish to delivery
    work_s: float = 0.15  # median from delivery to ack
    spread: float = 0.8  # sigma of the logarithm of both
    lost: float = 0.004  # no answer: the lease expires
    nacked: float = 0.006
    late: float = 0.002  # the ack comes after the lease
    trouble: float = 0.0  # ordered only: share of keys that fail once a block
    extends: bool = False
    passes: float = 1.0  # share of messages that the filter lets through
    poison: float = 0.0  # share of messages that are nacked whenever they come
    stuck: float = 0.0  # share of messages that are never delivered
    attempts_max: int = 0  # then to the dead letter topic
    retention_s: int = 604_800
    retain_acked: bool = False
    seeks: tuple[str, ...] = ()
    clients: int = 2
    slow: float = 1.0  # how much longer the last client takes
    start: float = 0.0  # created and ended at this part of the journal
    end: float = 1.0
    end_by: int = DELETE

    def resource(self) -> dict[str, Any]:
        """As CONFIG tells it."""
        out: dict[str, Any] = {
            "name": f"projects/p/subscriptions/{self.name}",
            "topic": f"projects/p/topics/{self.topic}",
            "ack_deadline_seconds": self.lease_s,
            "message_retention_duration": f"{self.retention_s}s",
        }
        if self.retain_acked:
            out["retain_acked_messages"] = True
        if self.ordered:
            out["enable_message_ordering"] = True
        if self.exactly_once:
            out["enable_exactly_once_delivery"] = True
        if self.passes < 1:
            out["filter"] = f"attributes:under{self.passes * 100:.0f}"
        if self.attempts_max:
            topic = "projects/p/topics/dead"
            out["dead_letter_policy"] = {
                "dead_letter_topic": topic,
                "max_delivery_attempts": self.attempts_max,
            }
        return out


#: Topics and their shares of all messages. `dead` gets copies only.
TOPICS = {"orders": 0.28, "clicks": 0.36, "mails": 0.08, "audit": 0.10, "sensors": 0.18, "dead": 0.0}

PROFILES = (
    Profile("orders-billing", "orders", clients=3, slow=2.5),
    Profile("orders-search", "orders", exactly_once=False, lost=0.01, late=0.01, seeks=("back", "now")),
    Profile("orders-ledger", "orders", ordered=True, trouble=0.05, work_s=0.2),
    Profile("clicks-warehouse", "clicks", exactly_once=False, latency_s=0.4, work_s=0.6, nacked=0.002,
            clients=4),
    Profile("clicks-live", "clicks", passes=0.4, retain_acked=True, seeks=("back", "future")),
    Profile("mails-send", "mails", nacked=0.03, poison=0.01, attempts_max=5, work_s=0.8, spread=0.7),
    Profile("mails-log", "mails", exactly_once=False, stuck=0.003, poison=0.002, attempts_max=6,
            retention_s=600),
    Profile("audit-archive", "audit", extends=True, work_s=8.0, spread=0.5, clients=3, slow=1.5),
    Profile("audit-replay", "audit", retain_acked=True, late=0.01, work_s=4.0, spread=0.6,
            seeks=("back", "future", "exact", "part", "now")),
    Profile("audit-branch", "audit", seeks=("snapshot",)),
    Profile("sensors-store", "sensors", exactly_once=False, ordered=True, trouble=0.03, latency_s=0.1,
            clients=3),
    Profile("sensors-alarm", "sensors", passes=0.3, stuck=0.02, poison=0.0005, retention_s=600, clients=1),
    Profile("dead-inspect", "dead", work_s=1.5, clients=1),
    Profile("audit-trial", "audit", start=0.3, end=0.8, end_by=DETACH, work_s=2.0),
    Profile("mails-test", "mails", exactly_once=False, start=0.1, end=0.45),
    Profile("mails-test", "mails", start=0.5),
)  # fmt: skip  # short items, many to a line

PUBLISHERS = 3
KEYS = 10_000  # ordering keys of a topic
KEYED = {"orders": 0.8, "sensors": 1.0, "mails": 0.1}  # share of messages with a key


@dataclass
class Control:
    """Something planned for a subscription. `target_us` is of a seek, a drop's cut-off, or a snapshot's time.

    What was published before `kept_us`, or in that very request before place `kept_place`, is not kept.
    """

    kind: int
    ts_us: int
    target_us: int = 0
    kept_us: int = NEVER
    kept_place: int = 0
    kept_after_id: int = 0
    exact: bool = False  # the target becomes the time of a message
    part: bool = False  # so does `kept_us`, and of that request a part is kept
    name: str = ""
    snapshot_seq: int = 0


@dataclass
class Subscription:
    """`index` counts from 0, `sub_id` from 1."""

    index: int
    profile: Profile
    topic_id: int
    start_us: int
    end_us: int
    controls: list[Control] = field(default_factory=list)

    @property
    def sub_id(self) -> int:
        return self.index + 1


class World:
    """The plan of a journal of `duration_us`, from `start_us` on."""

    def __init__(self, start_us: int, duration_us: int, skew: str) -> None:
        self.start_us, self.end_us = start_us, start_us + duration_us
        self.weights = dict(TOPICS)
        self.hot_key = 0.0  # share of the topic `orders`
        profiles: tuple[Profile, ...] = PROFILES
        if skew == "key":
            # Half of all messages are of one key.
            self.weights = {name: share * 0.4 for name, share in TOPICS.items()} | {"orders": 0.0}
            self.weights["orders"] = 1 - sum(self.weights.values())
            self.hot_key = 0.5 / self.weights["orders"]
        elif skew == "subscription":
            # `clicks` has one subscription only, which is owed as many messages as all others together.
            profiles = tuple(one for one in PROFILES if one.name != "clicks-live")
            owed = sum(
                TOPICS[one.topic] * one.passes * (one.end - one.start)
                for one in profiles
                if one.name != "clicks-warehouse"
            )
            others = 1 - TOPICS["clicks"]
            self.weights["clicks"] = owed / (owed + others)
            for name in self.weights:
                if name != "clicks":
                    self.weights[name] *= (1 - self.weights["clicks"]) / others
        elif skew != "none":
            raise ValueError(f"skew is none, key or subscription, not {skew}")
        self.topics = {name: at + 1 for at, name in enumerate(TOPICS)}
        self.subscriptions = [
            Subscription(
                index,
                one,
                self.topics[one.topic],
                start_us + int(one.start * duration_us) // 2 * 2 + (201 if one.start else 101),
                NEVER if one.end == 1 else start_us + int(one.end * duration_us) // 2 * 2 + 301,
            )
            for index, one in enumerate(profiles)
        ]
        self.restarts_us = [
            (start_us + int(part * duration_us) // 2 * 2 + 401, clean)
            for part, clean in ((0.4, False), (0.75, True))
        ]
        for one in self.subscriptions:
            self._plan(one)
        self.okeys = {
            name: np.array([key_hash(f"{name}-{at}") for at in range(KEYS)], np.int64) for name in KEYED
        }
        self._columns()

    def named(self, name: str) -> Subscription:
        return next(one for one in self.subscriptions if one.profile.name == name)

    def of_topic(self, topic_id: int) -> list[Subscription]:
        return [one for one in self.subscriptions if one.topic_id == topic_id]

    # -- what is done to subscriptions ---------------------------------------------------------------------

    def _plan(self, one: Subscription) -> None:
        profile = one.profile
        if profile.seeks:
            # At most 50; far enough apart that each finds over what was leased when the one before came.
            every_us = max(300 * S, (self.end_us - self.start_us) // 50) // 2 * 2
            at_us, turn = one.start_us + 200 * S + one.index * 1000, 0
            while at_us < self.end_us - 100 * S:
                one.controls += self._seek(one, profile.seeks[turn % len(profile.seeks)], at_us)
                at_us, turn = at_us + every_us, turn + 1
        if profile.retention_s == 600 and profile.exactly_once:
            for at_us in range(one.start_us + 630 * S, self.end_us, 60 * S):
                one.controls.append(Control(BULK_DROP, at_us, at_us - 600 * S))
        if one.end_us < NEVER:
            one.controls.append(Control(profile.end_by, one.end_us))
        one.controls.sort(key=lambda control: control.ts_us)

    def _seek(self, one: Subscription, how: str, at_us: int) -> list[Control]:
        kept_us = one.start_us if one.profile.retain_acked else NEVER
        seek = Control(SEEK, at_us, at_us - 60 * S, kept_us)
        if how == "now":
            return [replace(seek, target_us=at_us)]
        if how == "future":
            return [replace(seek, target_us=at_us + 30 * S)]
        if how == "exact":
            return [replace(seek, target_us=at_us - 45 * S - 1, exact=True)]
        if how == "part":
            return [replace(seek, target_us=at_us - 120 * S, kept_us=at_us - 100 * S - 1, part=True)]
        if how == "snapshot":
            name = f"projects/p/snapshots/{one.profile.name}-{at_us}"
            taken = Control(SNAPSHOT, at_us - 40 * S, at_us - 40 * S, name=name)
            return [taken, Control(SEEK_SNAPSHOT, at_us, at_us - 40 * S, name=name)]
        return [seek]

    def settle(
        self, t0_us: int, t1_us: int, request_us: np.ndarray, topic_id: np.ndarray, size: np.ndarray
    ) -> None:
        """The requests of a time are known: seeks that are to hit one exactly get its time."""
        for one in self.subscriptions:
            for control in one.controls:
                for is_meant, name in ((control.exact, "target_us"), (control.part, "kept_us")):
                    nominal_us = getattr(control, name)
                    if not is_meant or not t0_us <= nominal_us < t1_us:
                        continue
                    distance_us = np.abs(request_us - nominal_us)
                    usable = (topic_id == one.topic_id) & (size > 1) & (request_us < control.ts_us)
                    distance_us[~usable] = NEVER
                    at = int(distance_us.argmin())
                    if distance_us[at] < 120 * S:
                        setattr(control, name, int(request_us[at]))
                        control.kept_place = int(size[at]) // 2 if control.part else 0
        self._columns()

    def _columns(self) -> None:
        """The controls as tables: a row a subscription, a column a control, and one more that never comes."""
        width = 1 + max(len(one.controls) for one in self.subscriptions)
        shape = (len(self.subscriptions), width)
        self.control_us = np.full(shape, NEVER)
        self.control_kind = np.full(shape, -1, np.int8)
        self.control_target_us = np.zeros(shape, np.int64)
        self.control_kept_us = np.full(shape, NEVER)
        self.control_kept_place = np.zeros(shape, np.int64)
        for one in self.subscriptions:
            for at, control in enumerate(one.controls):
                where = one.index, at
                self.control_us[where], self.control_kind[where] = control.ts_us, control.kind
                self.control_target_us[where] = control.target_us
                self.control_kept_us[where] = control.kept_us
                self.control_kept_place[where] = control.kept_place
        # The next seek from a place on, and how many snapshots lie before it.
        is_seek = (self.control_kind == SEEK) | (self.control_kind == SEEK_SNAPSHOT)
        place = np.where(is_seek, np.arange(width), width - 1)
        self.next_seek = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1]
        is_snapshot = self.control_kind == SNAPSHOT
        self.snapshots_before = np.cumsum(is_snapshot, axis=1) - is_snapshot

    # -- clients -------------------------------------------------------------------------------------------

    def period(self, ts_us: np.ndarray) -> np.ndarray:
        """How many times the server has been restarted."""
        return np.searchsorted([at_us for at_us, _ in self.restarts_us], ts_us)

    def client_id(self, period: np.ndarray | int, sub: np.ndarray | int, slot: np.ndarray | int) -> Any:
        """The client in a place of a subscription; each start of the server numbers them anew."""
        return 1 + PUBLISHERS + (period * len(self.subscriptions) + sub) * 4 + slot

    def stream_id(self, period: np.ndarray | int, sub: np.ndarray | int, slot: np.ndarray | int) -> Any:
        return self.client_id(period, sub, slot)
