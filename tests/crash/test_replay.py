"""The replayer obtains the state of a lawful journal, and reports each unlawful event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.crash.database import Stored, SubscriptionState
from tests.crash.replay import (
    ACK,
    CONFIG,
    DELIVER,
    DROP,
    EXPIRE,
    EXTEND,
    NACK,
    NOOP,
    OK,
    PERMANENT,
    PUBLISH,
    RECORD,
    RESET,
    STREAM,
    Lease,
    Record,
    Replayer,
    Row,
)
from tests.crash.run import differences

SECOND = 1_000_000
TOPIC, SUB, CLIENT = 1, 1, 9


class Journal:
    """Writes a journal event by event; each in a row of its own."""

    def __init__(self, exactly_once: bool = True) -> None:
        self.rows: list[Row] = []
        self.details: dict[int, str] = {}
        self.add(STREAM, 0, client_id=CLIENT, detail={"client": "python", "unary": True})
        self.add(CONFIG, 0, topic_id=TOPIC, detail={"change": "created", "topic": {"name": "t"}})
        subscription = {"name": "s", "enable_exactly_once_delivery": exactly_once}
        self.config("created", subscription)

    def add(self, kind: int, at: float, *, seq: int = 0, detail: Any = None, **fields: int) -> None:
        seq = seq or (self.rows[-1].first_seq + 1 if self.rows else 1)
        if detail is not None:
            self.details[seq] = json.dumps(detail)
        record = Record(*[0] * len(Record._fields))._replace(
            seq=seq, ts_us=int(at * SECOND), kind=kind, **fields
        )
        self.rows.append(Row(seq, 1, 1, RECORD.pack(*record)))

    def config(self, change: str, subscription: dict[str, Any]) -> None:
        self.add(
            CONFIG, 0, topic_id=TOPIC, sub_id=SUB, detail={"change": change, "subscription": subscription}
        )

    def publish(self, message_id: int, at: float = 0, **fields: int) -> None:
        self.add(
            PUBLISH, at, topic_id=TOPIC, message_id=message_id, ref_ts_us=int(at * SECOND), bytes=10, **fields
        )

    def deliver(
        self, message_id: int, at: float, generation: int = 1, attempt: int = 1, **fields: int
    ) -> None:
        given = {"deadline_us": int((at + 10) * SECOND), "ref_ts_us": 0, "bytes": 10, **fields}
        self._about(DELIVER, message_id, at, generation, attempt, **given)

    def ask(self, kind: int, message_id: int, at: float, result: int = OK, **fields: int) -> None:
        """By default about the first delivery, made at second 0."""
        given = {"generation": 1, "attempt": 1, "ref_ts_us": 0, "result": result, **fields}
        generation, attempt = given.pop("generation"), given.pop("attempt")
        self._about(kind, message_id, at, generation, attempt, **given)

    def _about(
        self, kind: int, message_id: int, at: float, generation: int, attempt: int, **fields: int
    ) -> None:
        given = {"client_id": CLIENT, **fields}
        self.add(
            kind, at, topic_id=TOPIC, sub_id=SUB, message_id=message_id,
            generation=generation, attempt=attempt, **given,
        )  # fmt: skip

    def replay(self) -> Replayer:
        replayer = Replayer()
        replayer.feed(self.rows, self.details)
        return replayer


@pytest.fixture
def journal() -> Journal:
    """Message 1 is leased from second 0 to 10."""
    journal = Journal()
    journal.publish(1)
    journal.deliver(1, 0)
    return journal


def problems(journal: Journal) -> list[str]:
    """What the replayer says, without the numbers that it begins with."""
    return [problem.partition(": ")[2] for problem in journal.replay().problems]


def test_the_state_of_a_lawful_journal(journal: Journal) -> None:
    journal.ask(EXTEND, 1, 5, deadline_us=65 * SECOND, aux=60)
    for message_id in (2, 3, 4, 5):
        journal.publish(message_id, 6)
        journal.deliver(message_id, 6, ref_ts_us=6 * SECOND)
    journal.ask(ACK, 2, 7, ref_ts_us=6 * SECOND)
    journal.ask(ACK, 2, 7, NOOP, ref_ts_us=6 * SECOND)
    journal.ask(NACK, 3, 7, ref_ts_us=6 * SECOND)
    journal.ask(EXPIRE, 4, 17, ref_ts_us=6 * SECOND, deadline_us=16 * SECOND)
    journal.ask(ACK, 4, 18, PERMANENT, ref_ts_us=6 * SECOND)
    journal.ask(RESET, 5, 7, ref_ts_us=6 * SECOND, deadline_us=16 * SECOND)
    journal.publish(6, 8)
    journal.deliver(3, 19, generation=2, attempt=2, ref_ts_us=6 * SECOND)

    replayer = journal.replay()
    (subscription,) = replayer.subscriptions.values()

    assert replayer.problems == []
    assert subscription.leases == {1: Lease(1, 1, 65 * SECOND), 3: Lease(2, 2, 29 * SECOND)}
    assert subscription.waiting == {4: (1, 2), 5: (1, 1)}
    assert subscription.unacked == {1, 3, 4, 5, 6}


def test_rows_are_taken_once(journal: Journal) -> None:
    replayer = journal.replay()
    replayer.feed(journal.rows, journal.details)
    assert (replayer.problems, replayer.events) == ([], len(journal.rows))


def test_detachment_drops_everything(journal: Journal) -> None:
    journal.publish(2)
    journal.ask(RESET, 1, 1, deadline_us=10 * SECOND)
    journal.add(DROP, 1, topic_id=TOPIC, sub_id=SUB, aux=SECOND + 1)
    journal.config("detached", {"name": "s", "enable_exactly_once_delivery": True, "detached": True})
    journal.publish(3, 2)

    (subscription,) = journal.replay().subscriptions.values()

    assert problems(journal) == []
    assert (subscription.unacked, subscription.leases, subscription.waiting) == (set(), {}, {})


def test_a_missing_event(journal: Journal) -> None:
    journal.add(PUBLISH, 0, seq=journal.rows[-1].first_seq + 2, topic_id=TOPIC, message_id=2)
    assert problems(journal) == ["follows 5"]


def test_a_message_id_that_does_not_increase(journal: Journal) -> None:
    journal.publish(1)
    assert problems(journal) == ["the id follows 1"]


def test_a_delivery_inside_a_lease(journal: Journal) -> None:
    journal.deliver(1, 9, generation=2)
    assert problems(journal) == [f"delivered inside the lease {Lease(1, 1, 10 * SECOND)}"]


def test_a_delivery_after_its_ack(journal: Journal) -> None:
    journal.ask(ACK, 1, 1)
    journal.deliver(1, 20, generation=2)
    assert problems(journal) == ["delivered after its ack"]


def test_a_generation_used_twice(journal: Journal) -> None:
    journal.ask(NACK, 1, 1)
    journal.deliver(1, 2, generation=1, attempt=2)
    assert problems(journal) == ["generation 1 is not new"]


def test_an_attempt_that_was_not_counted(journal: Journal) -> None:
    journal.ask(NACK, 1, 1)
    journal.deliver(1, 2, generation=2, attempt=1)
    assert problems(journal) == ["attempt 1, not 2"]


def test_an_ack_taken_after_its_deadline(journal: Journal) -> None:
    journal.ask(ACK, 1, 10.5)
    assert problems(journal) == [f"accepted, and the lease is {Lease(1, 1, 10 * SECOND)}"]


def test_an_ack_refused_inside_its_lease(journal: Journal) -> None:
    journal.ask(ACK, 1, 5, PERMANENT)
    assert problems(journal) == [f"refused inside the lease {Lease(1, 1, 10 * SECOND)}"]


def test_an_answer_as_if_it_were_done(journal: Journal) -> None:
    journal.ask(ACK, 1, 5, NOOP)
    assert problems(journal) == ["answered as done, and it is not"]


def test_a_lease_ended_early(journal: Journal) -> None:
    journal.ask(EXPIRE, 1, 9, deadline_us=10 * SECOND)
    assert problems(journal) == ["1000000 us early"]


def test_a_reference_to_another_time(journal: Journal) -> None:
    journal.ask(ACK, 1, 5, ref_ts_us=7)
    assert problems(journal) == ["ref_ts_us, attempt or client differ from those of the delivery"]


def test_a_delivery_that_misstates_its_publish(journal: Journal) -> None:
    journal.publish(2, 1)
    journal.deliver(2, 2, ref_ts_us=2 * SECOND)
    (problem,) = problems(journal)
    assert problem.startswith("ref_ts_us, bytes or okey differ")


def test_an_extension_by_another_length(journal: Journal) -> None:
    journal.ask(EXTEND, 1, 5, deadline_us=30 * SECOND, aux=60)
    assert problems(journal) == ["asked for 60 s, got 25000000 us"]


def test_a_client_without_a_name(journal: Journal) -> None:
    journal.ask(ACK, 1, 5, client_id=77)
    assert "client 77 was never introduced" in problems(journal)


def test_state_and_journal_that_differ(journal: Journal) -> None:
    replayer = journal.replay()

    def stored(**changes: Any) -> Stored:
        fields = {
            "name": "s",
            "topic_id": TOPIC,
            "leases": {1: Lease(1, 1, 10 * SECOND)},
            "waiting": {},
            "unacked": {1},
            "owed": 1,
        }
        return Stored(
            1, False, {"t": TOPIC}, {SUB: SubscriptionState(**{**fields, **changes})}, {1: None}, [], {}
        )

    assert differences(stored(), replayer) == []
    for changes in (
        {"leases": {1: Lease(1, 1, 9 * SECOND)}},
        {"leases": {1: Lease(2, 1, 10 * SECOND)}},
        {"leases": {}},
        {"waiting": {1: (1, 2)}},
        {"owed": 2},
        {"name": "other"},
    ):
        assert len(differences(stored(**changes), replayer)) == 1, changes
    # A message that is owed has to be stored, too.
    assert len(differences(stored(unacked={1, 2}), replayer)) == 2
