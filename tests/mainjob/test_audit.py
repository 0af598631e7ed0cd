"""The audit on records small enough to judge by eye. Times here are in seconds."""

from __future__ import annotations

import pytest

from tests.mainjob.audit import INVALID_ACK_ID, Ledger, Violation
from tests.mainjob.events import Asked, Called, Delivered, Event, Noted, Published, Resolved, decode, encode

LEASE = 60


def us(seconds: float) -> int:
    return int(seconds * 1_000_000)


def published(at: float, message_id: str = "1", seq: int = 0) -> Published:
    return Published(us(at), seq, message_id)


def delivered(at: float, delivery: str, message_id: str = "1", seq: int = 0) -> Delivered:
    return Delivered(us(at), 0, message_id, delivery, seq)


def call(
    method: str,
    sent: float,
    answered: float,
    delivery: str,
    *,
    code: str = "OK",
    failure: str = "",
    seconds: int = 0,
) -> Called:
    failures = {delivery: failure} if failure else {}
    return Called(us(sent), us(answered), 0, method, seconds, code, (delivery,), failures)


def extended(sent: float, answered: float, delivery: str, seconds: int = LEASE, code: str = "OK") -> Called:
    return call("modack", sent, answered, delivery, seconds=seconds, code=code)


def refused(method: str, sent: float, answered: float, delivery: str, seconds: int = 0) -> Called:
    return call(
        method, sent, answered, delivery, code="INVALID_ARGUMENT", failure=INVALID_ACK_ID, seconds=seconds
    )


def received(at: float, delivery: str, message_id: str = "1", seq: int = 0) -> list[Event]:
    """What the library does with a message: it confirms receipt, then it calls back."""
    return [extended(at, at + 0.1, delivery), delivered(at + 0.2, delivery, message_id, seq)]


def acked(at: float, delivery: str) -> list[Event]:
    return [
        Asked(us(at), 0, delivery, "ack"),
        call("ack", at, at + 0.1, delivery),
        Resolved(us(at + 0.2), 0, delivery, "ack", "SUCCESS"),
    ]


def nacked(at: float, delivery: str) -> list[Event]:
    return [
        Asked(us(at), 0, delivery, "nack"),
        call("modack", at, at + 0.1, delivery),
        Resolved(us(at + 0.2), 0, delivery, "nack", "SUCCESS"),
    ]


def violations(*events: Event, messages: int = 1) -> list[Violation]:
    ledger = Ledger()
    for event in events:
        ledger.add(event)
    return ledger.audit(range(messages)).violations


def rules(*events: Event, messages: int = 1) -> list[str]:
    return [violation.rule for violation in violations(*events, messages=messages)]


def test_a_message_that_is_delivered_and_acked_passes():
    assert rules(published(0), *received(1, "a"), *acked(2, "a")) == []


def test_the_order_in_which_the_files_are_read_does_not_matter():
    assert rules(*received(1, "a"), *acked(2, "a"), published(0)) == []


def test_a_message_without_an_ack_is_not_processed():
    assert rules(published(0), *received(1, "a")) == ["not processed"]


def test_a_message_that_never_arrives_is_not_processed():
    assert rules(published(0)) == ["not processed"]


def test_a_payload_without_a_message_id_is_not_published():
    assert rules(published(0), *received(1, "a"), *acked(2, "a"), messages=2) == ["not published"]


def test_an_ack_that_failed_does_not_process_the_message():
    failed = Resolved(us(3), 0, "a", "ack", "INVALID_ACK_ID")
    assert rules(
        published(0), *received(1, "a"), Asked(us(2), 0, "a", "ack"), refused("ack", 70, 71, "a"), failed
    ) == ["not processed"]


def test_an_ack_that_is_missing_from_the_list_of_failures_took_effect():
    answer = Called(us(2), us(2.1), 0, "ack", 0, "INVALID_ARGUMENT", ("a", "b"), {"b": INVALID_ACK_ID})
    assert rules(published(0), *received(1, "a"), answer, Resolved(us(3), 0, "a", "ack", "OTHER")) == []


def test_an_error_without_a_list_of_failures_confirms_nothing():
    lost = call("ack", 2, 2.1, "a", code="UNAVAILABLE")
    assert rules(published(0), *received(1, "a"), lost) == ["not processed"]


def test_redelivery_after_a_nack_is_legitimate():
    assert rules(published(0), *received(1, "a"), *nacked(2, "a"), *received(2.05, "b"), *acked(3, "b")) == []


def test_redelivery_after_the_lease_ran_out_is_legitimate():
    assert rules(published(0), *received(1, "a"), *received(61.5, "b"), *acked(62, "b")) == []


def test_a_message_that_only_the_subscriber_knows_is_a_repeated_publish():
    repeated = [*received(1, "b", message_id="2"), *acked(2, "b")]
    assert rules(published(0), *received(1, "a"), *acked(2, "a"), *repeated) == []


def test_a_repeated_publish_must_be_processed_too_once_it_was_delivered():
    repeated = received(1, "b", message_id="2")
    assert rules(published(0), *received(1, "a"), *acked(2, "a"), *repeated) == ["not processed"]


def test_delivery_after_a_confirmed_ack_is_a_violation():
    assert rules(published(0), *received(1, "a"), *acked(2, "a"), *received(100, "b")) == [
        "delivered after its ack"
    ]


def test_delivery_after_a_confirmed_ack_is_a_violation_without_a_recorded_call():
    late = delivered(100, "b")
    assert rules(published(0), *received(1, "a"), *acked(2, "a"), late) == ["delivered after its ack"]


def test_delivery_after_an_ack_that_was_only_absent_from_the_failures_is_a_violation():
    answer = Called(us(2), us(2.1), 0, "ack", 0, "INVALID_ARGUMENT", ("a", "b"), {"b": INVALID_ACK_ID})
    assert rules(published(0), *received(1, "a"), answer, *received(100, "c")) == ["delivered after its ack"]


def test_two_confirmed_acks_of_two_deliveries_are_a_violation_whatever_the_times():
    assert "acked twice" in rules(
        published(0), *received(1, "a"), *received(61.5, "b"), *acked(62, "b"), *acked(63, "a")
    )


def test_a_delivery_whose_receipt_was_confirmed_before_the_ack_of_a_later_one_passes():
    # The callback waited in the queue of a slow process; its own ack is refused, as it must be.
    slow = [extended(1, 1.1, "a"), delivered(80, "a"), refused("ack", 80, 80.1, "a")]
    assert rules(published(0), *slow, *received(62, "b"), *acked(63, "b")) == []


def test_delivery_inside_a_confirmed_lease_is_a_violation():
    assert rules(published(0), *received(1, "a"), *received(20, "b"), *acked(21, "b")) == [
        "delivered inside a lease"
    ]


def test_an_extension_keeps_the_message_from_others():
    assert rules(
        published(0), *received(1, "a"), extended(50, 50.1, "a"), *received(100, "b"), *acked(101, "b")
    ) == ["delivered inside a lease"]


def test_an_ack_inside_the_lease_of_another_delivery_is_a_violation():
    seen_first = [extended(1, 1.1, "b"), delivered(1.2, "b")]
    assert "delivered inside a lease" in rules(
        published(0), *seen_first, *received(62, "a"), call("ack", 70, 70.1, "b")
    )


def test_an_extension_without_an_answer_proves_no_lease():
    lost = extended(1, 1.1, "a", code="UNAVAILABLE")
    assert rules(published(0), lost, delivered(2, "a"), *received(20, "b"), *acked(21, "b")) == []


def test_a_shorter_extension_that_may_have_come_later_shortens_what_is_known():
    shorter = extended(5, 5.1, "a", seconds=10, code="UNAVAILABLE")
    assert rules(published(0), *received(1, "a"), shorter, *received(20, "b"), *acked(21, "b")) == []


def test_a_nack_without_an_answer_ends_what_is_known():
    lost = call("modack", 2, 2.1, "a", code="UNAVAILABLE")
    assert rules(published(0), *received(1, "a"), lost, *received(5, "b"), *acked(6, "b")) == []


def test_a_delivery_refused_at_receipt_is_no_delivery():
    assert (
        rules(published(0), refused("modack", 100, 100.1, "old", LEASE), *received(1, "a"), *acked(2, "a"))
        == []
    )


def test_refusing_an_ack_inside_its_lease_is_a_violation():
    assert rules(
        published(0), *received(1, "a"), refused("ack", 5, 5.1, "a"), *received(70, "b"), *acked(71, "b")
    ) == ["refused inside a lease"]


def test_refusing_an_extension_inside_the_lease_is_a_violation():
    assert "refused inside a lease" in rules(
        published(0),
        *received(1, "a"),
        refused("modack", 5, 5.1, "a", LEASE),
        *received(70, "b"),
        *acked(71, "b"),
    )


def test_refusing_an_extension_that_raced_its_own_nack_is_right():
    late = refused("modack", 1.95, 2.2, "a", LEASE)
    assert (
        rules(published(0), *received(1, "a"), late, *nacked(2, "a"), *received(3, "b"), *acked(4, "b")) == []
    )


def test_a_repeated_ack_whose_first_answer_was_lost_proves_life_from_its_first_attempt():
    lost = call("ack", 2, 2.1, "a", code="UNAVAILABLE")
    assert rules(published(0), *received(1, "a"), lost, *acked(90, "a")) == []


def test_success_without_an_answer_is_reported():
    dropped = call("ack", 2, 2.1, "a", code="UNKNOWN")
    claimed = Resolved(us(2.2), 0, "a", "ack", "SUCCESS")
    assert rules(published(0), *received(1, "a"), dropped, claimed) == ["success without an answer"]


def test_an_ack_id_used_twice_is_a_violation():
    assert "ack id used twice" in rules(published(0), *received(1, "a"), delivered(5, "a"), *acked(6, "a"))


def test_a_payload_under_a_foreign_message_id_is_a_violation():
    assert "wrong payload" in rules(
        published(0),
        published(0, "2", 1),
        *received(1, "a", seq=1),
        *acked(2, "a"),
        *received(1, "b", "2", 1),
        *acked(2, "b"),
        messages=2,
    )


def test_counts_tell_redeliveries_after_a_nack_from_others():
    ledger = Ledger()
    for event in (published(0), *received(1, "a"), *nacked(2, "a"), *received(3, "b"), *acked(4, "b")):
        ledger.add(event)
    counts = ledger.audit(range(1)).counts
    assert (counts["redeliveries"], counts["redeliveries of messages never nacked"]) == (1, 0)


@pytest.mark.parametrize(
    "event",
    [
        published(0),
        delivered(1, "a"),
        Called(1, 2, 0, "modack", 60, "INVALID_ARGUMENT", ("a", "b"), {"a": INVALID_ACK_ID}),
        Asked(1, 0, "a", "nack"),
        Resolved(1, 0, "a", "ack", "SUCCESS"),
        Noted(1, "streaming pull ended by itself", "ServiceUnavailable('…')"),
    ],
)
def test_an_event_survives_its_line(event):
    assert event == decode(encode(event))
