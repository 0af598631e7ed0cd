"""Publish minutes that need no look: in them nothing that is owed is without a fact, whatever seeks did."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

pytest.importorskip("numpy", reason="needs pubsubd[analytics]")

import numpy as np

from analytics.dimensions import OPEN, Epoch
from analytics.minutes import _COLUMNS, _PUBLISHED, MINUTE_US, History, suspicious_of

S = 1_000_000


class World:
    """A subscription with seeks, and messages that are told of in nearly every epoch that owes them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.length_us = 12 * MINUTE_US
        moments = sorted(chance.sample(range(1, self.length_us), chance.randint(1, 4)))
        created, *seeks = moments if chance.random() < 0.5 else [0, *moments]
        ended = chance.choice((OPEN, OPEN, self.length_us - chance.randint(1, 3 * MINUTE_US)))
        seeks = [seek for seek in seeks if seek < ended]
        ends = [*seeks, ended]
        epochs = [Epoch(1, 1, 0, created, ends[0], created, ends[0], created)]
        for at, seek in enumerate(seeks):
            target, kept_from = self.moment(), self.moment()
            epochs.append(
                Epoch(
                    1, 1, at + 1, seek, ends[at + 1], seek, ends[at + 1], min(target, seek), target,
                    retain_acked=chance.random() < 0.6, kept_from_us=kept_from,
                    kept_after_id=chance.choice((0, 0, chance.randint(0, 60))),
                    is_snapshot=chance.random() < 0.1,
                )
            )  # fmt: skip  # short items, many to a line
        self.history = History(tuple(epochs))
        # A message's id ascends with its time, which is its seq as well.
        self.published = dict(enumerate(sorted(chance.sample(range(self.length_us), 60)), 1))
        self.forgets = chance.choice((0.0, 0.0, 0.03))
        self.rows: list[dict[str, int]] = []
        self.without_fact: set[int] = set()  # minutes
        self._tell()

    def moment(self) -> int:
        """Often the edge of a minute."""
        minute = self.chance.randrange(13)
        return minute * MINUTE_US + self.chance.choice((0, 0, 1, -1, 30 * S))

    def _tell(self) -> None:
        sets: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for message, at in self.published.items():
            sets[_PUBLISHED, at // MINUTE_US]["all"].append(message)
            self._live(message, at, sets)
        for (epoch, minute), members in sets.items():
            ids = members["all"]
            row = {"epoch": epoch, "minute": minute, "first_id": min(ids), "last_id": max(ids)}
            for name in ("all", "owed", "through", "open"):
                row["n_" + name] = len(members[name])
                row["x_" + name] = int(
                    np.bitwise_xor.reduce([hash((7, one)) for one in members[name]] or [0])
                )
            self.rows.append(row)

    def _live(self, message: int, at: int, sets: dict[tuple[int, int], dict[str, list[int]]]) -> None:
        state = "absent"
        is_rejected = self.chance.random() < 0.1
        for epoch in self.history.epochs:
            if at < epoch.start_seq:
                if epoch.epoch == 0:
                    state = "closed"
                elif state != "rejected":
                    state = self._sought(epoch, message, at, state)
            elif epoch.start_seq < at < epoch.end_seq:
                state = "open"
            is_owed = state in ("open", "uncertain")
            if is_owed and self.chance.random() < self.forgets:
                self.without_fact.add(at // MINUTE_US)
                continue
            if not is_owed and self.chance.random() < 0.8:
                continue
            if not is_owed and state == "absent":
                continue
            names = ["all"]
            if is_owed and is_rejected:
                state = "rejected"
            elif is_owed:
                names += ["owed", "through"]
                state = self.chance.choice(("open", "closed", "closed"))
                names += ["open"] if state == "open" else []
            elif state != "rejected":
                names.append("through")
            for name in names:
                sets[epoch.epoch, at // MINUTE_US][name].append(message)

    def _sought(self, epoch: Epoch, message: int, at: int, state: str) -> str:
        if epoch.is_snapshot:
            return "uncertain"
        if at < epoch.target_us:
            return "closed"
        return "open" if epoch.keeps(message, at) else state

    def suspicious(self) -> set[int]:
        types = {name: np.array([row.get(name, 1) for row in self.rows], np.int64) for name in _COLUMNS}
        return set(suspicious_of(types, self.history).tolist())


@pytest.mark.parametrize("seed", range(20))
def test_a_minute_with_something_untouched_is_always_looked_at(seed: int) -> None:
    chance = random.Random(seed)
    found = 0
    for _ in range(60):
        world = World(chance)
        assert world.without_fact <= world.suspicious(), world.history
        found += len(world.without_fact)
    assert found > 10


def test_most_minutes_of_a_healthy_subscription_need_no_look() -> None:
    chance = random.Random(1)
    looked_at = minutes = 0
    for _ in range(200):
        world = World(chance)
        if world.without_fact or any(epoch.is_snapshot for epoch in world.history.epochs):
            continue
        minutes += len({at // MINUTE_US for at in world.published.values()})
        looked_at += len(world.suspicious())
    # Each seek has up to three edges, and there are up to three seeks in these twelve minutes.
    assert looked_at < 0.6 * minutes


def test_one_epoch_without_edges_needs_no_look_at_all() -> None:
    history = History((Epoch(1, 1, 0, 0, OPEN, 0, OPEN, 0),))
    rows = [
        {"epoch": epoch, "minute": minute, "first_id": minute, "last_id": minute, "n_all": 3, "x_all": 5}
        for epoch in (_PUBLISHED, 0)
        for minute in (1, 2, 3)
    ]
    rows[-1]["x_all"] = 4
    columns = {name: np.array([row.get(name, 0) for row in rows], np.int64) for name in _COLUMNS}
    assert suspicious_of(columns, history).tolist() == [3]
