"""What a seed draws before its history begins: resources, bounds, clients, and how bad the weather gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pubsubd.wire import pb
from tests.crash.filters import FILTERS

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
# When a history begins; any whole time will do.
START_US = 1_700_000_000 * SECOND_US
PROJECT = "projects/sim"
DEAD_TOPIC = f"{PROJECT}/topics/dead"
KEYS = ("", "", "a", "b")

# Bounds of every run: retention that ends within a history, snapshots that do not outlive it.
BOUNDS = {
    "RETENTION_SECONDS_MIN": 10,
    "RETENTION_STEP_US": SECOND_US,
}
# Bounds so small that every history is over them, as in tests/crash/run.py: the log of operations is folded,
# messages leave memory and are read back, finished ones are removed.
SMALL_BOUNDS = {
    "OPLOG_BYTES_MAX": 3_000,
    "TAIL_BYTES_MAX": 600,
    "CHUNK_BYTES_MAX": 300,
    "READ_BYTES_MAX": 300,
    "READ_MESSAGES_MAX": 3,
    "READ_AHEAD_MESSAGES_MIN": 4,
    "RESPONSE_BYTES_MAX": 500,
    "PUMP_BYTES_MAX": 1_500,
    "RESTING_SUBSCRIPTIONS_MAX": 1,
    "TRIM_MESSAGES_MIN": 3,
    "TRIM_AFTER_US": SECOND_US,
    "PARKED_MESSAGES_MAX": 6,
    "PARKED_BYTES_MAX": 500,
    "EPOCHS_MAX": 3,
    "STREAM_REQUESTS_UNCONFIRMED_MAX": 2,
    "UNCOMMITTED_BYTES_MAX": 2_000,
}


@dataclass(frozen=True)
class Topic:
    name: str
    retention: int = 0  # seconds; 0: none

    def resource(self) -> pb.Topic:
        topic = pb.Topic(name=self.name)
        if self.retention:
            topic.message_retention_duration.seconds = self.retention
        return topic


@dataclass(frozen=True)
class Subscription:
    """A subscription as it is created; changes and recreations draw others of its name."""

    name: str
    topic: str
    exactly_once: bool = False
    ordered: bool = False
    filter: str = ""
    retry: tuple[float, float] | None = None  # seconds
    attempts: int = 0  # 0: no dead letter policy
    retain_acked: bool = False
    retention: int = 0  # seconds; 0: the default
    deadline: int = 10

    def resource(self) -> pb.Subscription:
        resource = pb.Subscription(
            name=self.name,
            topic=self.topic,
            ack_deadline_seconds=self.deadline,
            enable_exactly_once_delivery=self.exactly_once,
            enable_message_ordering=self.ordered,
            filter=self.filter,
            retain_acked_messages=self.retain_acked,
        )
        if self.retry is not None:
            least, most = self.retry
            resource.retry_policy.minimum_backoff.FromMicroseconds(round(least * 1e6))
            resource.retry_policy.maximum_backoff.FromMicroseconds(round(most * 1e6))
        if self.attempts:
            resource.dead_letter_policy.dead_letter_topic = DEAD_TOPIC
            resource.dead_letter_policy.max_delivery_attempts = self.attempts
        if self.retention:
            resource.message_retention_duration.seconds = self.retention
        return resource


@dataclass(frozen=True)
class Manners:
    """How consumers behave; parts of one."""

    late: float = 0.0  # acks after the deadline
    forgets: float = 0.0
    nacks: float = 0.0
    extends: float = 0.0
    repeats: float = 0.0  # names an id again that it has named
    half_closes: float = 0.0
    leaves: float = 0.0  # cancels its stream
    dead: float = 0.0  # opens a stream and does not read
    greedy: float = 0.0  # no limits, and no acks


@dataclass(frozen=True)
class Plan:
    seed: int
    topics: tuple[Topic, ...]
    subscriptions: tuple[Subscription, ...]
    policy: str
    bounds: dict[str, int]
    small: bool
    operations: int  # how many of them the storm lasts
    publishers: int
    consumers: int  # for each subscription
    manners: Manners
    changes: float  # seconds between changes of resources
    forgeries: float  # seconds between requests of somebody with ill intent; 0: none
    disk_trouble: float  # seconds between troubles of the disk; 0: none
    kills: float  # seconds between ends of the server; 0: none
    cuts: float  # seconds between broken connections; 0: none
    jumps: float  # seconds between leaps of time; 0: none
    journal_bytes: int


def draw(seed: int) -> Plan:
    chance = Random(f"plan {seed}")
    topics = [
        Topic(f"{PROJECT}/topics/topic-{number}", draw_retention(chance))
        for number in range(chance.choice((1, 1, 2)))
    ]
    count = chance.choice((1, 2, 2, 3))
    subscriptions = [
        draw_subscription(chance, f"{PROJECT}/subscriptions/sub-{number}", chance.choice(topics).name)
        for number in range(count)
    ]
    topics.append(Topic(DEAD_TOPIC))
    subscriptions.append(
        Subscription(
            f"{PROJECT}/subscriptions/dead-letters", DEAD_TOPIC, chance.random() < 0.5, chance.random() < 0.3
        )
    )
    small = chance.random() < 0.5
    return Plan(
        seed,
        tuple(topics),
        tuple(subscriptions),
        chance.choice(("confirm", "omit", "abort")),
        BOUNDS | (SMALL_BOUNDS if small else {}),
        small,
        operations=chance.randint(430, 560),
        publishers=chance.choice((1, 1, 2)),
        consumers=chance.choice((1, 1, 2)),
        manners=_draw_manners(chance),
        changes=chance.choice((0.4, 1.0, 4.0)),
        forgeries=chance.choice((0.5, 2.0, 5.0)),
        disk_trouble=chance.choice((0.0, 1.0, 4.0)),
        kills=chance.choice((0.0, 1.5, 4.0, 12.0)),
        cuts=chance.choice((0.0, 1.0, 5.0)),
        jumps=chance.choice((0.0, 4.0, 15.0)),
        journal_bytes=1 << 40,
    )


def draw_retention(chance: Random) -> int:
    return chance.choice((0, 12, 15, 60))


def draw_subscription(chance: Random, name: str, topic: str) -> Subscription:
    return Subscription(
        name,
        topic,
        exactly_once=chance.random() < 0.6,
        ordered=chance.random() < 0.5,
        filter=chance.choice([*FILTERS]) if chance.random() < 0.25 else "",
        retry=draw_retry(chance) if chance.random() < 0.4 else None,
        attempts=5 if chance.random() < 0.5 else 0,
        retain_acked=chance.random() < 0.4,
        retention=chance.choice((12, 20, 60)) if chance.random() < 0.35 else 0,
        deadline=chance.choice((10, 10, 11, 20)),
    )


def draw_retry(chance: Random) -> tuple[float, float]:
    return chance.choice(((0.0, 0.0), (0.05, 0.2), (0.1, 0.5), (0.5, 3.0), (2.0, 2.0)))


def _draw_manners(chance: Random) -> Manners:
    """Each kind of misbehaviour by itself: some histories are nearly well-behaved, some full of one kind."""
    manners = Manners()
    for name, most in (
        ("late", 0.25),
        ("forgets", 0.2),
        ("nacks", 0.4),
        ("extends", 0.3),
        ("repeats", 0.3),
        ("half_closes", 0.5),
        ("leaves", 0.5),
        ("dead", 0.15),
        ("greedy", 0.15),
    ):
        if chance.random() < 0.6:
            manners = replace(manners, **{name: chance.random() * most})
    if chance.random() < 0.2:
        # Hardly anything is ever accepted: what has a dead letter policy gets there.
        manners = replace(manners, nacks=chance.uniform(0.6, 0.95))
    return manners


def timestamp(us: int) -> Any:
    return pb.Timestamp(seconds=us // SECOND_US, nanos=us % SECOND_US * 1000)
