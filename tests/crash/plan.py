"""What a run subscribes with: features dealt to subscriptions by chance.

The first subscription has none of them. Each feature is dealt to a part of the others, so that every run has
all of them and each run other combinations. Nobody seeks or changes the last of these, so that what its
clients are told can be judged without a look at the journal.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pubsubd.wire import pb
from tests.crash.filters import FILTERS

LEASE_SECONDS = 10  # the shortest that the service allows
ATTEMPTS_MAX = 5
_PROJECT = "projects/crash"
TOPICS = [f"{_PROJECT}/topics/first", f"{_PROJECT}/topics/second"]
DEAD_TOPIC = f"{_PROJECT}/topics/dead"
# How many of the subscriptions with features have each.
_DEALT_TO_ALL = {
    "ordered": 3,
    "filter": 2,
    "retry": 2,
    "dead_letter": 3,
    "retain_acked": 2,
}
_DEALT_TO_ALL_BUT_THE_LAST = {
    "exactly_once": 2,
    "retention": 1,
    "seeks": 3,
    "updates": 2,
}
_FEATURES = [*_DEALT_TO_ALL, *_DEALT_TO_ALL_BUT_THE_LAST, "acks_on_stream"]
_COUNT = 6


@dataclass(frozen=True)
class Watched:
    """A subscription that is there from beginning to end, as it is created."""

    name: str
    topic: str
    exactly_once: bool = False
    ordered: bool = False
    filter: str = ""
    retry: tuple[float, float] | None = None  # seconds
    dead_letter: bool = False
    retain_acked: bool = False
    retention: int = 0  # seconds; 0: as long as the service keeps messages by itself
    seeks: bool = False
    updates: bool = False
    streams: int = 0
    pulls: int = 0
    acks_on_stream: bool = False

    @property
    def judged_from_outside(self) -> bool:
        """Whether its clients can tell what is right: nobody seeks or changes it, and nothing is too old."""
        return not (self.seeks or self.updates or self.retention)

    def features(self) -> list[str]:
        return [feature for feature in _FEATURES if getattr(self, feature)]

    def resource(self) -> dict[str, Any]:
        """The fields of its creation."""
        fields: dict[str, Any] = {
            "name": self.name,
            "topic": self.topic,
            "ack_deadline_seconds": LEASE_SECONDS,
            "enable_exactly_once_delivery": self.exactly_once,
            "enable_message_ordering": self.ordered,
            "filter": self.filter,
            "retain_acked_messages": self.retain_acked,
        }
        if self.retry is not None:
            fields["retry_policy"] = retry_policy(*self.retry)
        if self.dead_letter:
            fields["dead_letter_policy"] = dead_letter_policy(DEAD_TOPIC)
        if self.retention:
            fields["message_retention_duration"] = duration(self.retention)
        return fields


@dataclass(frozen=True)
class Plan:
    topics: Mapping[str, int]  # name: retention in seconds, 0 for none
    watched: tuple[Watched, ...]

    def of_topic(self, topic: str) -> list[Watched]:
        return [one for one in self.watched if one.topic == topic]

    def __str__(self) -> str:
        return "; ".join(
            f"{one.name.rpartition('/')[2]} ({', '.join(one.features())})" for one in self.watched
        )


def draw(chance: random.Random) -> Plan:
    last = _COUNT - 1
    have = {feature: set(chance.sample(range(1, _COUNT), count)) for feature, count in _DEALT_TO_ALL.items()}
    for feature, count in _DEALT_TO_ALL_BUT_THE_LAST.items():
        have[feature] = set(chance.sample(range(1, last), count))
    have["exactly_once"].add(last)
    watched = [Watched(f"{_PROJECT}/subscriptions/plain", TOPICS[0], exactly_once=True, streams=2, pulls=1)]
    for number in range(1, _COUNT):
        streams, pulls = chance.choice([(2, 0), (1, 1), (1, 1), (0, 2)]) if number != last else (1, 1)
        watched.append(
            Watched(
                f"{_PROJECT}/subscriptions/number-{number}",
                # Half on each topic: a snapshot of one is of use to another.
                TOPICS[number % len(TOPICS)],
                exactly_once=number in have["exactly_once"],
                ordered=number in have["ordered"],
                filter=chance.choice([*FILTERS]) if number in have["filter"] else "",
                retry=chance.choice([(0.1, 0.4), (0.3, 1.0), (0.0, 0.0)])
                if number in have["retry"]
                else None,
                dead_letter=number in have["dead_letter"],
                retain_acked=number in have["retain_acked"],
                retention=chance.choice([5, 12]) if number in have["retention"] else 0,
                seeks=number in have["seeks"],
                updates=number in have["updates"],
                streams=streams,
                pulls=pulls,
                # Without exactly-once delivery, which an update may switch off, they are never confirmed.
                acks_on_stream=number == last,
            )
        )
    watched.append(
        Watched(
            f"{_PROJECT}/subscriptions/dead-letters",
            DEAD_TOPIC,
            exactly_once=chance.random() < 0.5,
            ordered=chance.random() < 0.3,
            streams=1,
        )
    )
    kept = chance.sample([0, 15], 2)
    return Plan({TOPICS[0]: kept[0], TOPICS[1]: kept[1], DEAD_TOPIC: 0}, tuple(watched))


def duration(seconds: float) -> Any:
    return pb.Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))


def retry_policy(minimum: float, maximum: float) -> Any:
    return pb.RetryPolicy(minimum_backoff=duration(minimum), maximum_backoff=duration(maximum))


def dead_letter_policy(topic: str, attempts: int = ATTEMPTS_MAX) -> Any:
    return pb.DeadLetterPolicy(dead_letter_topic=topic, max_delivery_attempts=attempts)
