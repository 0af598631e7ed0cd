"""What a subscription owes untouched, epoch by epoch: arrays against a plain loop over each message."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

pytest.importorskip("numpy", reason="needs pubsubd[analytics]")

import numpy as np

from analytics.dimensions import OPEN, BulkDrop, Epoch
from analytics.minutes import History
from analytics.owed import (
    _STAYED,
    _WAS_CLOSED,
    _WAS_FILTERED,
    _WAS_PENDING,
    Published,
    Told,
    walk,
)

#: (epoch, message): dropped at, carried, certain.
Untouched = dict[tuple[int, int], tuple[int, bool, bool]]


@dataclass
class Case:
    history: History
    published: Published
    facts: dict[tuple[int, int], int]  # (epoch, place): outcome
    leased: set[tuple[int, int]]  # (epoch, place)


def by_arrays(case: Case) -> Untouched:
    def told(rows: dict[tuple[int, int], int]) -> Told:
        ordered = sorted(rows.items())
        return Told(
            np.array([epoch for (epoch, _), _ in ordered], np.int64),
            np.array([place for (_, place), _ in ordered], np.int64),
            np.array([outcome for _, outcome in ordered], np.int64),
        )

    found: Untouched = {}
    leased = told(dict.fromkeys(case.leased, _STAYED))
    for epoch, places, gone_us, carried, certain in walk(
        case.history, case.published, told(case.facts), leased
    ):
        for at, place in enumerate(places.tolist()):
            found[epoch, place] = (int(gone_us[at]), bool(carried[at]), bool(certain[at]))
    return found


def by_loop(case: Case) -> Untouched:
    found: Untouched = {}
    for place in range(len(case.published.seq)):
        found |= {(epoch, place): told for epoch, told in _of_one(case, place).items()}
    return found


def _of_one(case: Case, place: int) -> dict[int, tuple[int, bool, bool]]:
    """One message through all epochs, in sentences."""
    seq, pub_us = int(case.published.seq[place]), int(case.published.pub_us[place])
    message_id = int(case.published.message_id[place])
    state, found = "absent", {}
    is_unread = case.history.has_filter and seq < case.history.epochs[0].start_seq
    for epoch in case.history.epochs:
        is_older, carried = seq < epoch.start_seq, False
        if is_older and epoch.epoch == 0:
            state = "closed"
        elif is_older and state != "filtered":
            was_open = state == "open"
            if epoch.is_snapshot:
                state = "uncertain"
            elif pub_us < epoch.target_us:
                state = "closed"
            elif epoch.keeps(message_id, pub_us):
                state = "open"
            if state == "open" and is_unread:
                state = "uncertain"
            acknowledged = not epoch.is_snapshot and pub_us < epoch.target_us
            carried = was_open and not acknowledged and (epoch.epoch, place) in case.leased
        elif epoch.start_seq < seq < epoch.end_seq:
            state = "open"
        outcome = case.facts.get((epoch.epoch, place))
        if outcome is None and state in ("open", "uncertain"):
            gone_us = _dropped(case, epoch, seq, pub_us) if not carried else 0
            found[epoch.epoch] = (gone_us, carried, state == "open")
            if gone_us:
                state = "closed"
        elif outcome is not None:
            is_unread = False
            state = {_WAS_PENDING: "open", _WAS_CLOSED: "closed", _WAS_FILTERED: "filtered"}.get(
                outcome, state
            )
    return found


def _dropped(case: Case, epoch: Epoch, seq: int, pub_us: int) -> int:
    later = [one.start_seq for one in case.history.epochs if one.epoch > epoch.epoch]
    for drop in case.history.drops:
        if epoch.start_seq < drop.seq < min([*later, OPEN]) and seq < drop.seq and pub_us < drop.cutoff_us:
            return drop.ts_us
    return 0


def draw_case(chance: random.Random) -> Case:
    """Seqs 1 to 40 with times ten times as large; messages, seeks and drops anywhere among them."""
    created, *others = chance.sample(range(41), chance.randint(2, 20))
    what = {seq: chance.choices(("message", "seek", "drop"), (6, 2, 1))[0] for seq in others}
    seeks = sorted(seq for seq in others if seq > created and what[seq] == "seek")
    drops = sorted(seq for seq in others if seq > created and what[seq] == "drop")
    messages = np.array(sorted(seq for seq in others if what[seq] == "message"), np.int64)
    ends = [*seeks, OPEN]
    epochs = [Epoch(1, 1, 0, created, ends[0], created * 10, ends[0], created * 10)]
    for at, seq in enumerate(seeks):
        target = chance.randint(0, 450)
        epochs.append(
            Epoch(
                1, 1, at + 1, seq, ends[at + 1], seq * 10, ends[at + 1], min(target, seq * 10), target,
                retain_acked=chance.random() < 0.6, kept_from_us=chance.choice((0, chance.randint(0, 400))),
                kept_after_id=chance.choice((0, chance.randint(0, 10))), is_snapshot=chance.random() < 0.2,
            )
        )  # fmt: skip  # short items, many to a line
    dropped = tuple(BulkDrop(1, seq, seq * 10, chance.randint(0, seq * 10)) for seq in drops)
    n = len(messages)
    published = Published(np.arange(1, n + 1), messages, messages * 10, np.zeros(n, np.int64))
    # Nothing happens to a message before it is published.
    places = [(one.epoch, place) for one in epochs for place in range(n) if messages[place] < one.end_seq]
    sought = [
        (one.epoch, place) for one in epochs[1:] for place in range(n) if messages[place] < one.start_seq
    ]
    outcomes = (_STAYED, _WAS_PENDING, _WAS_CLOSED, _WAS_FILTERED)
    return Case(
        History(tuple(epochs), dropped, has_filter=chance.random() < 0.5),
        published,
        facts={one: chance.choice(outcomes) for one in places if chance.random() < 0.3},
        leased={one for one in sought if chance.random() < 0.3},
    )


@pytest.mark.parametrize("seed", range(20))
def test_arrays_and_a_loop_over_each_message_agree(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        case = draw_case(chance)
        assert by_arrays(case) == by_loop(case), case


def one_message(history: History, seq: int, pub_us: int, **facts: int) -> Untouched:
    published = Published(np.array([7]), np.array([seq]), np.array([pub_us]), np.array([0]))
    told = {(int(epoch.removeprefix("e")), 0): outcome for epoch, outcome in facts.items()}
    return by_arrays(Case(history, published, told, set()))


def test_sequence_decides_what_was_published_in_time() -> None:
    history = History((Epoch(1, 1, 0, 10, 20, 1000, 2000, 1000),))
    assert one_message(history, seq=9, pub_us=1000) == {}
    assert one_message(history, seq=11, pub_us=1000) == {(0, 0): (0, False, True)}
    assert one_message(history, seq=21, pub_us=2000) == {}


def test_what_is_published_after_a_seek_into_the_future_is_owed_whatever_its_target() -> None:
    seek = Epoch(1, 1, 1, 20, OPEN, 2000, OPEN, 2000, target_us=9_999_999)
    history = History((Epoch(1, 1, 0, 10, 20, 1000, 2000, 1000), seek))
    assert one_message(history, seq=11, pub_us=1100) == {(0, 0): (0, False, True)}
    assert one_message(history, seq=21, pub_us=2100) == {(1, 0): (0, False, True)}


@pytest.mark.parametrize(("retain_acked", "owed"), [(True, {(1, 0): (0, False, True)}), (False, {})])
def test_what_was_acked_comes_back_only_if_it_is_kept(retain_acked: bool, owed: Untouched) -> None:
    seek = Epoch(1, 1, 1, 20, OPEN, 2000, OPEN, 0, target_us=0, retain_acked=retain_acked)
    history = History((Epoch(1, 1, 0, 10, 20, 1000, 2000, 1000), seek))
    assert one_message(history, seq=11, pub_us=1100, e0=_WAS_CLOSED) == owed


@pytest.mark.parametrize("has_filter", [True, False])
def test_what_a_filter_has_not_seen_yet_is_not_said_to_be_lost(has_filter: bool) -> None:
    """Published before the subscription, brought back by a seek, and not read so far."""
    seek = Epoch(1, 1, 1, 20, OPEN, 2000, OPEN, 0, target_us=0, retain_acked=True)
    history = History((Epoch(1, 1, 0, 10, 20, 1000, 2000, 1000), seek), has_filter=has_filter)
    is_certain = not has_filter
    assert one_message(history, seq=5, pub_us=500) == {(1, 0): (0, False, is_certain)}
    assert one_message(history, seq=5, pub_us=500, e1=_WAS_FILTERED) == {}
