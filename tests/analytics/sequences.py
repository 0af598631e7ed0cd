"""Journals of random events, for comparing implementations of the replay.

Nothing here behaves like a server: deliveries come inside leases and after acks, answers are right or wrong,
a seek falls anywhere. Numbers are small on purpose, so that times, generations and bounds meet often. What is
kept is what every journal has: seq and publish order rise, one message has one publish time, and no message
is told of before it is published.

A journal is made of a list of `Move`s, which hypothesis can shorten, or a seeded generator can draw many of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from analytics.dimensions import Dimensions
from analytics.keys import Ints
from analytics.layout import COLUMNS, Kind, Result
from tests.analytics import reference

TOPIC = 1
SUBSCRIPTIONS = (1, 2)
START_US = 1_000
_NUMBERS = tuple(column.name for column in COLUMNS if column.name != "detail")

#: What can happen, more often what is more telling.
ACTIONS = (
    ("publish",) * 2
    + ("deliver",) * 6
    + ("ack",) * 4
    + ("nack", "extend", "expire", "reset") * 2
    + ("deadletter", "drop", "filtered", "unknown", "toggle")
    + ("create", "bulk_drop") * 2
    + ("seek",) * 3
    + ("snapshot",)
)
RESULTS = (Result.OK,) * 4 + (Result.PERMANENT,) * 2 + (Result.NOOP, Result.TRANSIENT, Result.OTHER)


class Move(NamedTuple):
    """One event. `a`, `b`: small numbers that the action makes something of."""

    action: str
    sub_id: int
    message: int  # of the published ones, counted from the newest
    wait_us: int
    result: int
    a: int
    b: int


moves = st.builds(
    Move,
    st.sampled_from(ACTIONS),
    st.sampled_from(SUBSCRIPTIONS),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(RESULTS),
    st.integers(0, 5),
    st.integers(0, 5),
)


def random_moves(random: Random, count: int) -> list[Move]:
    return [
        Move(
            random.choice(ACTIONS),
            random.choice(SUBSCRIPTIONS),
            random.randrange(4),
            random.randrange(4),
            random.choice(RESULTS),
            random.randrange(6),
            random.randrange(6),
        )
        for _ in range(count)
    ]


@dataclass
class World:
    """A journal and how it is read: from the event `first_seq` on."""

    rows: list[dict[str, Any]]
    tolerance_us: int = 0
    first_seq: int = 1

    @cached_property
    def read(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["seq"] >= self.first_seq]

    @cached_property
    def dimensions(self) -> Dimensions:
        return Dimensions.from_rows(self.read)

    @property
    def first_message_id(self) -> int:
        """Of the messages that were published in the range; 0 where the range begins with the journal."""
        if self.first_seq == 1:
            return 0
        published = [row["message_id"] for row in self.read if row["kind"] == Kind.PUBLISH]
        return min(published, default=2**62)

    @property
    def columns(self) -> dict[str, Ints]:
        """The events as arrays, with the epoch."""
        columns: dict[str, Ints] = {
            name: np.array([row[name] for row in self.read], np.int64) for name in _NUMBERS
        }
        columns["epoch"] = np.array(
            [
                sum(seek.start_seq < row["seq"] for seek in self.dimensions.seeks(row["sub_id"]))
                for row in self.read
            ],
            np.int64,
        )
        return columns

    @property
    def replayed(self) -> dict[str, Ints]:
        """Of `columns` the events that reach the kernel, which can be packed."""
        columns = self.columns
        wanted = np.isin(columns["kind"], reference.REPLAYED) & (columns["message_id"] != 0)
        wanted &= ~np.isin(columns["kind"], reference.ASKED) | (columns["generation"] != 0)
        return {name: values[wanted] for name, values in columns.items()}

    def expected(self) -> list[dict[str, Any]]:
        """What the plain loop says."""
        return reference.replay(
            self.read,
            self.dimensions,
            tolerance_us=self.tolerance_us,
            first_message_id=self.first_message_id,
        )


@dataclass
class Writer:
    rows: list[dict[str, Any]] = field(default_factory=list)
    now_us: int = START_US
    published_us: list[int] = field(default_factory=list)  # message_id - 1
    generations: dict[tuple[int, int], int] = field(default_factory=dict)
    exactly_once: dict[int, bool] = field(default_factory=dict)

    def event(self, kind: Kind, detail: dict[str, Any] | None = None, **columns: int) -> None:
        row: dict[str, Any] = dict.fromkeys(_NUMBERS, 0)
        row |= {"seq": len(self.rows) + 1, "ts_us": self.now_us, "kind": int(kind), "topic_id": TOPIC}
        row["detail"] = None if detail is None else json.dumps(detail)
        self.rows.append(row | columns)

    def publish(self) -> None:
        self.published_us.append(self.now_us)
        self.event(Kind.PUBLISH, message_id=len(self.published_us), okey=self.okey(len(self.published_us)))

    def okey(self, message_id: int) -> int:
        return -7 * (message_id % 3)

    def config(self, sub_id: int, change: str) -> None:
        resource = {
            "name": f"projects/p/subscriptions/{sub_id}",
            "enable_exactly_once_delivery": self.exactly_once[sub_id],
        }
        self.event(Kind.CONFIG, {"change": change, "subscription": resource}, sub_id=sub_id)

    def make(self, move: Move) -> None:
        self.now_us += move.wait_us
        if move.action == "publish" or not self.published_us:
            self.publish()
            return
        if move.action == "create" and move.sub_id not in self.exactly_once:
            self.exactly_once[move.sub_id] = bool(move.a % 2)
            self.config(move.sub_id, "created")
        elif move.action == "toggle" and move.sub_id in self.exactly_once:
            self.exactly_once[move.sub_id] = not self.exactly_once[move.sub_id]
            self.config(move.sub_id, "updated")
        elif move.action in ("seek", "snapshot"):
            self.seek(move)
        elif move.action == "bulk_drop":
            self.event(Kind.DROP, sub_id=move.sub_id, aux=self.now_us + 1 - move.a)
        elif move.action not in ("create", "toggle"):
            self.about_message(move)

    def seek(self, move: Move) -> None:
        detail: dict[str, Any] = {
            "retain_acked": move.result == Result.OK,
            "kept_from_us": self.now_us - 3 * move.b,
            "kept_after_id": max(0, len(self.published_us) - move.message) if move.a % 2 else 0,
        }
        if move.action == "snapshot":
            detail |= {"snapshot": "projects/p/snapshots/s", "snapshot_seq": 1}
        # Also into the future, and to the very time at which a message was published.
        target_us = self.now_us + 2 - 4 * move.a
        if move.wait_us == 1:
            target_us = self.published_us[-1 - move.message % len(self.published_us)]
        self.event(Kind.SEEK, detail, sub_id=move.sub_id, aux=target_us)

    def about_message(self, move: Move) -> None:
        message_id = len(self.published_us) - move.message % len(self.published_us)
        of = (move.sub_id, message_id)
        newest = self.generations.get(of, 0)
        common = {"sub_id": move.sub_id, "message_id": message_id}
        pub_us = {"ref_ts_us": self.published_us[message_id - 1], "okey": self.okey(message_id)}
        # Mostly the newest generation, now and then an older one or one that never was.
        asked = {"generation": max(1, newest + (0, 0, 0, 0, 1, -1)[move.b]), "attempt": 1}
        match move.action:
            case "deliver":
                self.generations[of] = newest = newest + (2 if move.b == 5 else 1)
                deadline_us = self.now_us + 1 + 2 * move.a
                self.event(
                    Kind.DELIVER,
                    **common,
                    **pub_us,
                    generation=newest,
                    attempt=1 + move.b,
                    deadline_us=deadline_us,
                )
            case "ack" | "nack":
                kind = Kind.ACK if move.action == "ack" else Kind.NACK
                # Judged as of its arrival, which may be a little before.
                self.event(kind, **common, **asked, result=move.result, ts_us=self.now_us - move.a % 2)
            case "extend":
                deadline_us = self.now_us + 1 + move.a if move.result == Result.OK else 0
                self.event(Kind.EXTEND, **common, **asked, result=move.result, deadline_us=deadline_us)
            case "expire" | "reset":
                kind = Kind.EXPIRE if move.action == "expire" else Kind.RESET
                self.event(kind, **common, **asked, deadline_us=self.now_us, okey=pub_us["okey"])
            case "unknown":
                self.event(Kind.ACK, **common, result=Result.PERMANENT)
            case "deadletter":
                self.event(Kind.DEADLETTER, **common, **pub_us, generation=newest, attempt=move.b)
            case "drop":
                self.event(Kind.DROP, **common, **pub_us)
            case _:
                self.event(Kind.FILTERED, **common, **pub_us)


def world(of: Sequence[Move], *, tolerance_us: int = 0, first_seq: int = 1) -> World:
    writer = Writer()
    for move in of:
        writer.make(move)
    return World(writer.rows, tolerance_us, min(first_seq, max(len(writer.rows), 1)))


#: Any journal, read as a whole or from somewhere on.
worlds = st.builds(
    lambda of, tolerance_us, first_seq: world(of, tolerance_us=tolerance_us, first_seq=first_seq),
    st.lists(moves, max_size=40),
    st.integers(0, 2),
    st.one_of(st.just(1), st.integers(1, 20)),
)
