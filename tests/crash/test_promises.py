"""The judge finds what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.crash.log import Answer, Delivered, Kind, Log, Operation, Published
from tests.crash.promises import (
    Rules,
    Violation,
    check_loss,
    check_publishes,
    check_whole_requests,
    judge,
)

SECOND = 1_000_000
SUB = "projects/p/subscriptions/s"
OK, PERMANENT, UNKNOWN = Answer.OK, Answer.PERMANENT, Answer.UNKNOWN

REDELIVERED_ACKED = "no delivery after a confirmed ack"
REDELIVERED_LEASED = "no delivery inside a lease"
WRONGLY_TAKEN = "only the newest ack id works, and only in its lease"
WRONGLY_REFUSED = "an ack id works while its lease runs"


def deliver(at: float, ack_id: str = "a", message_id: int = 1, lease_seconds: int = 10) -> Delivered:
    at_us = int(at * SECOND)
    return Delivered(SUB, message_id, ack_id, at_us, at_us, lease_seconds, 0, b"x")


def ask(
    at: float, kind: Kind, answer: Answer, ack_id: str = "a", seconds: int = 0, took: float = 0.01
) -> Operation:
    return Operation(SUB, ack_id, kind, seconds, int(at * SECOND), int((at + took) * SECOND), answer)


def judged(*steps: Delivered | Operation, **rules: Any) -> list[str]:
    log = Log(publishes=[Published("t", 0, 0, SECOND, [b"x", b"y"], [1, 2])])
    for step in steps:
        if isinstance(step, Delivered):
            log.deliveries.append(step)
        else:
            log.operations.append(step)
    return [violation.promise for violation in judge(log, {SUB: Rules(**rules)}).violations]


LAWFUL: dict[str, Sequence[Delivered | Operation]] = {
    "acked once": [deliver(0), ask(1, Kind.ACK, OK)],
    "acked twice": [deliver(0), ask(1, Kind.ACK, OK), ask(2, Kind.ACK, OK)],
    "expired": [deliver(0), ask(12, Kind.ACK, PERMANENT), deliver(13, "b"), ask(14, Kind.ACK, OK, "b")],
    "expired and redelivered": [deliver(0), deliver(11, "b"), ask(11.1, Kind.ACK, PERMANENT)],
    "nacked": [deliver(0), ask(1, Kind.NACK, OK), deliver(1.1, "b"), ask(2, Kind.NACK, OK)],
    "redelivered before the nack was answered": [
        deliver(0),
        ask(1, Kind.NACK, OK, took=0.5),
        deliver(1.1, "b"),
    ],
    "extended": [deliver(0), ask(1, Kind.EXTEND, OK, seconds=60), ask(59, Kind.ACK, OK)],
    "extended over its end": [deliver(0), ask(1, Kind.EXTEND, OK, seconds=20), deliver(21.2, "b")],
    "shortened": [deliver(0), ask(1, Kind.EXTEND, OK, seconds=1), deliver(2.1, "b")],
    "at the end either answer is right": [deliver(0), ask(9.995, Kind.ACK, PERMANENT, took=0.1)],
    "an ack without an answer took effect": [deliver(0), ask(1, Kind.ACK, UNKNOWN), ask(30, Kind.ACK, OK)],
    "an ack without an answer did not": [
        deliver(0),
        ask(1, Kind.ACK, UNKNOWN),
        deliver(11, "b"),
        ask(12, Kind.ACK, PERMANENT),
    ],
    "an extension without an answer did not": [
        deliver(0),
        ask(1, Kind.EXTEND, UNKNOWN, seconds=60),
        deliver(11, "b"),
    ],
    "an extension without an answer took effect": [
        deliver(0),
        ask(1, Kind.EXTEND, UNKNOWN, seconds=60),
        ask(50, Kind.ACK, OK),
    ],
    "a nack without an answer": [deliver(0), ask(1, Kind.NACK, UNKNOWN), deliver(2, "b")],
    "extended after its ack": [deliver(0), ask(1, Kind.ACK, OK), ask(2, Kind.EXTEND, OK, seconds=10)],
    "nacked after its ack": [deliver(0), ask(1, Kind.ACK, OK), ask(2, Kind.NACK, PERMANENT)],
}

BROKEN: dict[str, tuple[str, Sequence[Delivered | Operation]]] = {
    "acked and redelivered": (REDELIVERED_ACKED, [deliver(0), ask(1, Kind.ACK, OK), deliver(20, "b")]),
    "redelivered while acking": (REDELIVERED_ACKED, [deliver(0), ask(1, Kind.ACK, OK), deliver(1.005, "b")]),
    "a repeated ack": (
        REDELIVERED_ACKED,
        [deliver(0), ask(1, Kind.ACK, UNKNOWN), ask(11, Kind.ACK, OK), deliver(30, "b")],
    ),
    "leased twice": (REDELIVERED_LEASED, [deliver(0), deliver(9, "b")]),
    "an extension is forgotten": (
        REDELIVERED_LEASED,
        [deliver(0), ask(1, Kind.EXTEND, OK, seconds=60), deliver(15, "b")],
    ),
    "an old id acks": (
        WRONGLY_TAKEN,
        [deliver(0), deliver(11, "b"), ask(12, Kind.ACK, OK)],
    ),
    "an expired id acks": (WRONGLY_TAKEN, [deliver(0), ask(12, Kind.ACK, OK)]),
    "a nacked id acks": (WRONGLY_TAKEN, [deliver(0), ask(1, Kind.NACK, OK), ask(2, Kind.ACK, OK)]),
    "an expired id is extended": (WRONGLY_TAKEN, [deliver(0), ask(12, Kind.EXTEND, OK, seconds=10)]),
    "an acked id is nacked": (WRONGLY_TAKEN, [deliver(0), ask(1, Kind.ACK, OK), ask(2, Kind.NACK, OK)]),
    "refused in its lease": (WRONGLY_REFUSED, [deliver(0), ask(5, Kind.ACK, PERMANENT)]),
    "refused although extended": (
        WRONGLY_REFUSED,
        [deliver(0), ask(1, Kind.EXTEND, OK, seconds=60), ask(30, Kind.ACK, PERMANENT)],
    ),
    "a repeated ack is refused": (
        WRONGLY_REFUSED,
        [deliver(0), ask(1, Kind.ACK, OK), ask(2, Kind.ACK, PERMANENT)],
    ),
    "an ack without an answer is refused in its lease": (
        WRONGLY_REFUSED,
        [deliver(0), ask(1, Kind.ACK, UNKNOWN), ask(2, Kind.ACK, PERMANENT)],
    ),
    "a repeated nack is refused": (
        WRONGLY_REFUSED,
        [deliver(0), ask(1, Kind.NACK, OK), ask(2, Kind.NACK, PERMANENT)],
    ),
    "an ack id comes twice": ("ack ids are unique", [deliver(0), deliver(11)]),
    "an answer that takes too long": ("answers in time", [deliver(0), ask(1, Kind.ACK, UNKNOWN, took=16)]),
}


@pytest.mark.parametrize("steps", LAWFUL.values(), ids=LAWFUL.keys())
def test_what_is_lawful_is_not_reported(steps: Sequence[Delivered | Operation]) -> None:
    assert judged(*steps) == []


@pytest.mark.parametrize(("promise", "steps"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_reported_once(promise: str, steps: Sequence[Delivered | Operation]) -> None:
    assert judged(*steps) == [promise]


def test_a_lease_begins_no_earlier_than_the_one_before_it_ended() -> None:
    # The stream was opened long ago, and says nothing about when this delivery was granted.
    late = deliver(11, "b")._replace(asked_us=0)

    assert judged(deliver(0), late, deliver(20, "c")) == []
    assert judged(deliver(0), late, deliver(19, "c")) == [REDELIVERED_LEASED]


def test_without_exactly_once_an_ack_still_ends_deliveries() -> None:
    acked = [deliver(0), ask(1, Kind.ACK, OK)]

    assert judged(*acked, deliver(1.5, "b"), exactly_once=False) == []
    assert judged(*acked, deliver(5, "b"), exactly_once=False) == [REDELIVERED_ACKED]


def test_without_exactly_once_no_id_is_refused() -> None:
    refused = [deliver(0), ask(20, Kind.ACK, PERMANENT)]

    assert judged(*refused, exactly_once=False) == ["ids are never refused without exactly-once"]


def keyed(at: float, ack_id: str, message_id: int) -> Delivered:
    data = {1: b"x", 2: b"y"}[message_id]
    return deliver(at, ack_id, message_id)._replace(data=data, ordering_key="k")


def test_an_earlier_message_of_the_key_voids_a_lease() -> None:
    both = [keyed(0, "a", 1), keyed(0, "b", 2)]
    failed = [*both, ask(1, Kind.NACK, OK, "a")]

    assert judged(*failed, ask(2, Kind.ACK, PERMANENT, "b"), ordered=True) == []
    assert judged(*failed, ask(2, Kind.EXTEND, PERMANENT, "b", seconds=20), ordered=True) == []
    assert judged(*both, ask(0.999, Kind.ACK, PERMANENT, "b"), *failed[2:], ordered=True) == []
    # Only that does.
    assert judged(*both, ask(2, Kind.ACK, PERMANENT, "b"), ordered=True) == [WRONGLY_REFUSED]
    assert judged(*failed, ask(2, Kind.ACK, PERMANENT, "b")) == [WRONGLY_REFUSED]
    later = [*both, ask(1, Kind.NACK, OK, "b"), ask(2, Kind.ACK, PERMANENT, "a")]
    assert judged(*later, ordered=True) == [WRONGLY_REFUSED]


def test_a_void_lease_is_waited_for_unless_it_is_nacked() -> None:
    void = [
        keyed(0, "a", 1),
        keyed(0, "b", 2),
        ask(1, Kind.NACK, OK, "a"),
        ask(2, Kind.ACK, PERMANENT, "b"),
        keyed(3, "c", 1),
    ]

    assert judged(*void, keyed(10.1, "d", 2), ordered=True) == []
    assert judged(*void, keyed(9, "d", 2), ordered=True) == [REDELIVERED_LEASED]
    assert judged(*void, ask(4, Kind.NACK, OK, "b"), keyed(5, "d", 2), ordered=True) == []


def test_a_message_that_may_have_expired_voids_a_lease() -> None:
    extended = [keyed(0, "a", 1), keyed(0, "b", 2), ask(1, Kind.EXTEND, OK, "b", seconds=60)]

    assert judged(*extended, ask(12, Kind.ACK, PERMANENT, "b"), ordered=True) == []
    assert judged(*extended, ask(8, Kind.ACK, PERMANENT, "b"), ordered=True) == [WRONGLY_REFUSED]


def test_an_ack_out_of_order_changes_nothing() -> None:
    both = [keyed(0, "a", 1), keyed(0, "b", 2), ask(1, Kind.ACK, Answer.UNORDERED, "b")]

    assert judged(*both, ask(2, Kind.ACK, OK, "a"), ask(3, Kind.ACK, OK, "b"), ordered=True) == []
    assert judged(*both, keyed(5, "c", 2), ordered=True) == [REDELIVERED_LEASED]
    acked = [keyed(0, "a", 1), ask(1, Kind.ACK, OK, "a"), ask(2, Kind.ACK, Answer.UNORDERED, "a")]
    assert judged(*acked, ordered=True) == ["only what runs and has a key can be unordered"]


def test_more_attempts_than_there_are() -> None:
    nacked = [deliver(0)._replace(attempt=5), ask(1, Kind.NACK, OK)]

    assert judged(*nacked, deliver(2, "b")._replace(attempt=6), attempts_max=5) == ["delivery attempts"]
    assert judged(*nacked, deliver(2, "b")._replace(attempt=4), attempts_max=6) == ["delivery attempts"]


def test_what_is_changed_by_others_is_left_to_the_journal() -> None:
    assert judged(deliver(0), ask(1, Kind.ACK, OK), deliver(20, "b"), judged=False) == []


def published(publish: Published, *deliveries: Delivered) -> list[str]:
    log = Log(publishes=[publish], deliveries=list(deliveries))
    return [violation.promise for violation in check_publishes(log)]


def test_a_message_under_two_ids_was_stored_twice() -> None:
    once = Published("t", 0, 0, SECOND, [b"x"], None)

    assert published(once, deliver(0), deliver(0, "b", message_id=1)) == []
    assert published(once, deliver(0), deliver(0, "b", message_id=2)) == ["a publish is stored once"]


def test_an_id_names_one_message() -> None:
    two = Published("t", 0, 0, SECOND, [b"x", b"y"], None)
    assert published(two, deliver(0), deliver(0, "b")._replace(data=b"y")) == [
        "a message id names one message"
    ]


def test_a_dead_letter_is_no_message_stored_twice() -> None:
    once = Published("t", 0, 0, SECOND, [b"x"], [1])
    copy = deliver(0, "b", message_id=2)._replace(
        attributes=(("CloudPubSubDeadLetterSourceSubscription", "s"),)
    )
    assert published(once, deliver(0), copy) == []


def test_ids_increase() -> None:
    assert published(Published("t", 0, 0, SECOND, [b"x", b"y"], [7, 5])) == ["message ids increase"]


def test_the_publish_time_lies_between_request_and_answer() -> None:
    assert published(Published("t", 0, 5 * SECOND, 6 * SECOND, [b"x"], [1]), deliver(7)) == ["publish time"]


def test_a_message_that_nobody_sent() -> None:
    wrong = published(Published("t", 0, 0, SECOND, [b"y"], [1]), deliver(0))
    assert wrong == ["messages arrive as they were sent"]


def test_half_of_a_request() -> None:
    log = Log(publishes=[Published("t", 0, 0, SECOND, [b"x", b"y"], None)], deliveries=[deliver(0)])

    assert [v.promise for v in check_whole_requests(log, {"t": [SUB]})] == ["whole requests"]

    log.deliveries.append(deliver(0, "b", message_id=2)._replace(data=b"y"))
    assert check_whole_requests(log, {"t": [SUB]}) == []


def test_a_lost_message() -> None:
    log = Log(publishes=[Published("t", 0, 0, SECOND, [b"x", b"y"], [1, 2])])

    assert check_loss(log, {"t": [SUB]}, {SUB: {1, 2}}) == []
    assert check_loss(log, {"t": [SUB]}, {SUB: {1}}) == [
        Violation("no acknowledged publish is lost", SUB, 2, "published b'y'")
    ]
