"""The state that a server would go on with, against the one that its journal tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.crash.replay import Lease, Replayer, Row, Subscription


@dataclass
class SubscriptionState:
    """What a subscription promises, in the journal's terms."""

    name: str
    topic_id: int
    leases: dict[int, Lease]
    waiting: dict[int, tuple[int, int]]  # message_id: (last generation, attempt of the next delivery)
    unacked: set[int]


@dataclass(frozen=True)
class Stored:
    """Everything that a copy of the files tells."""

    boot: int
    clean: bool
    topics: dict[str, int]
    subscriptions: dict[int, SubscriptionState]
    messages: dict[int, Any]  # as they are sent
    rows: list[Row]
    details: dict[int, str]
    snapshots: dict[str, int] = field(default_factory=dict)
    secret: bytes = b""
    now_us: int = 0  # when it was last written


def differences(stored: Stored, replayer: Replayer) -> list[str]:
    """Where the state that the server restored is another than the one that the journal tells."""
    found: list[str] = []

    def compare(what: str, state: Any, journal: Any) -> None:
        if state == journal:
            return
        if isinstance(state, dict):
            keys = [key for key in {**state, **journal} if state.get(key) != journal.get(key)]
            state, journal = ({key: side.get(key) for key in keys[:3]} for side in (state, journal))
        elif isinstance(state, set):
            state, journal = sorted(state - journal)[:5], sorted(journal - state)[:5]
        found.append(f"{what}: the state has {state}, the journal {journal}")

    def expect_stored(what: str, message_ids: Iterable[int]) -> None:
        if missing := sorted(set(message_ids) - stored.messages.keys()):
            found.append(f"{what} is not stored: {len(missing)} messages, first {missing[:5]}")

    compare("topics", stored.topics, {name: topic_id for topic_id, name in replayer.topics.items()})
    compare("snapshots", stored.snapshots, {one.name: one.topic_id for one in replayer.snapshots.values()})
    told = {sub_id: one for sub_id, one in replayer.subscriptions.items() if not one.deleted}
    compare(
        "subscriptions",
        {i: s.name for i, s in stored.subscriptions.items()},
        {i: s.name for i, s in told.items()},
    )
    for sub_id in stored.subscriptions.keys() & told.keys():
        state, journal = stored.subscriptions[sub_id], told[sub_id]
        compare(f"leases of {state.name}", state.leases, journal.leases)
        compare(f"waiting on {state.name}", _delivered_before(state, journal), journal.waiting)
        compare(f"unacked on {state.name}", state.unacked, journal.unacked)
        expect_stored(f"what {state.name} is owed", state.unacked)
    now_us = max(stored.now_us, replayer.now_us)
    for sub_id in told:
        expect_stored(f"what {told[sub_id].name} retains", replayer.retained(sub_id, now_us))
    for topic_id in replayer.topics:
        expect_stored(f"what topic {topic_id} retains", replayer.retained_by_topic(topic_id, now_us))
    for snapshot in replayer.snapshots.values():
        expect_stored(f"what {snapshot.name} holds", replayer.held(snapshot))
    return found


def _delivered_before(state: SubscriptionState, journal: Subscription) -> dict[int, tuple[int, int]]:
    """What waits for a redelivery; what a seek brought back is as if it were new, and may wait as well."""
    as_new = journal.unacked - journal.waiting.keys() - journal.leases.keys()
    return {
        message_id: standing
        for message_id, standing in state.waiting.items()
        if message_id not in as_new or standing[1] != 1
    }
