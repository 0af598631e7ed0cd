"""What the replayer says of ordering keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.journals import Journal
from tests.crash.replay import ACK, EXTEND, NACK, NOOP, PERMANENT, TRANSIENT

KEY, STREAM = 77, 5


def ordered(**settings: Any) -> Journal:
    """Messages 1 to 4 of one key and 9 of none; nothing is delivered."""
    journal = Journal(**{"enable_message_ordering": True, **settings})
    journal.open_stream(STREAM, 0)
    journal.publish(1, 2, 3, 4, okey=KEY)
    journal.publish(9)
    return journal


@pytest.fixture
def journal() -> Journal:
    """Messages 1 to 3 are leased from second 0 to 10."""
    journal = ordered()
    journal.deliver(1, 2, 3, at=0, stream_id=STREAM)
    return journal


# -- deliveries -------------------------------------------------------------------------------------------


def test_messages_go_out_in_order(journal: Journal) -> None:
    journal.deliver(9, at=0)
    journal.deliver(4, at=1, stream_id=STREAM)
    assert journal.problems == []


def test_a_message_that_overtakes() -> None:
    journal = ordered()
    journal.deliver(2, at=0, stream_id=STREAM)
    assert journal.problems == ["delivered before 1 of its key"]


def test_order_is_nothing_to_a_subscription_without_it() -> None:
    journal = ordered(enable_message_ordering=False)
    journal.deliver(2, at=0)
    journal.deliver(1, at=0, stream_id=STREAM)
    journal.ask(ACK, 2, at=0)
    assert journal.problems == []


def test_a_key_is_with_one_stream_at_a_time(journal: Journal) -> None:
    journal.open_stream(6, 1)
    journal.deliver(9, at=1, stream_id=6)
    journal.deliver(4, at=1, stream_id=6)
    assert journal.problems == [
        f"stream 6 gets it, and {STREAM} has {other} of its key" for other in (1, 2, 3)
    ]


def test_a_key_is_free_when_nothing_of_it_is_outstanding(journal: Journal) -> None:
    journal.ask(ACK, 1, 2, 3, at=1)
    journal.deliver(4, at=1)
    assert journal.problems == []


def test_a_client_goes_on_with_a_stream_of_the_same_name() -> None:
    journal = ordered()
    first = journal.open_stream(6, 0, client_id=11, name="me")
    journal.deliver(1, at=0, stream_id=6, client_id=11)
    journal.close_stream(first, 1)
    journal.open_stream(7, 2, client_id=12, name="me")
    journal.deliver(2, at=2, stream_id=7, client_id=12)
    assert journal.problems == []

    journal.open_stream(8, 3, client_id=13, name="you")
    journal.deliver(3, at=3, stream_id=8, client_id=13)
    assert "stream 8 gets it, and 6 has 1 of its key" in journal.problems


# -- failures ---------------------------------------------------------------------------------------------


def test_what_is_behind_a_failed_message_comes_after_it(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, 3, at=1)
    journal.ask(ACK, 2, at=2, result=PERMANENT)
    journal.ask(EXTEND, 2, at=2, result=PERMANENT, aux=30)
    journal.deliver(1, at=2, stream_id=STREAM)
    # A message whose lease is void waits for its end, unless it is nacked.
    journal.ask(NACK, 2, at=3)
    journal.ask(NACK, 2, at=3, result=NOOP)
    journal.restart_attempts(2)
    journal.deliver(2, at=4, stream_id=STREAM)
    journal.deliver(3, at=10, stream_id=STREAM)
    assert journal.problems == []


def test_a_lease_behind_a_failed_message(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(3, at=1)
    assert journal.problems == ["failed, and 2 behind it is outstanding"]


def test_a_lease_behind_a_failed_message_may_end_with_it(journal: Journal) -> None:
    with journal.commit():
        journal.expire(1, 2, 3, at=11)
    assert journal.problems == []


def test_a_reset_without_a_failure(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 2, at=1)
        journal.reset(1, 3, at=1)
    assert journal.problems == ["reset, and nothing before it has failed"]


def test_a_void_lease_is_waited_for(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, 3, at=1)
    journal.deliver(1, at=2, stream_id=STREAM)
    journal.deliver(2, at=9, stream_id=STREAM)
    assert journal.problems == ["delivered before its void lease ends at 10000000"]


def test_another_stream_waits_for_void_leases(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, 3, at=1)
    journal.deliver(1, at=2)
    assert journal.problems == [f"stream 0 gets it, and {STREAM} has {other} of its key" for other in (2, 3)]


def test_nobody_waits_for_a_pull_whose_leases_are_void() -> None:
    journal = ordered()
    journal.deliver(1, 2, at=0, stream_id=91)
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, at=1)
    journal.deliver(1, at=1, stream_id=92)
    assert journal.problems == []


def test_without_exactly_once_nobody_waits_for_void_leases() -> None:
    journal = ordered(enable_exactly_once_delivery=False)
    journal.deliver(1, 2, at=0, stream_id=STREAM)
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, at=1)
    journal.deliver(1, 2, at=1)
    journal.ask(ACK, 2, at=1)
    assert journal.problems == []


def test_a_redelivery_that_overtakes(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, 3, at=1)
    journal.deliver(2, at=11, stream_id=STREAM)
    assert journal.problems == ["delivered before 1 of its key"]


def test_a_reset_does_not_count_as_an_attempt(journal: Journal) -> None:
    with journal.commit():
        journal.ask(NACK, 1, at=1)
        journal.reset(2, 3, at=1)
    journal.deliver(1, at=2, stream_id=STREAM)
    journal.deliver(2, at=11, stream_id=STREAM, attempt=2)
    assert journal.problems == ["attempt 2, not 1"]


# -- acks -------------------------------------------------------------------------------------------------


def test_acks_of_one_call_are_judged_together(journal: Journal) -> None:
    with journal.commit():
        journal.ask(ACK, 3, 1, 2, at=1)
    assert journal.problems == []


def test_an_ack_ahead_of_its_key(journal: Journal) -> None:
    journal.ask(ACK, 2, at=1, result=TRANSIENT)
    journal.ask(ACK, 1, at=1)
    journal.ask(ACK, 2, at=2)
    assert journal.problems == []

    journal.publish(10, 11, okey=KEY, at=3)
    journal.deliver(4, 10, at=3, stream_id=STREAM)
    journal.ask(ACK, 10, at=3)
    assert journal.problems == ["acked before 3 of its key"]


def test_two_calls_of_one_stream_may_come_at_the_same_moment(journal: Journal) -> None:
    journal.ask(ACK, 2, at=1, result=TRANSIENT, stream_id=STREAM)
    journal.ask(ACK, 1, at=1, stream_id=STREAM)
    journal.ask(ACK, 2, at=1, stream_id=STREAM)
    assert journal.problems == []


def test_an_ack_that_was_not_ahead(journal: Journal) -> None:
    journal.ask(ACK, 1, at=1, result=TRANSIENT)
    assert journal.problems == ["told to come again, and nothing of its key is before it"]


def test_without_exactly_once_acks_come_in_any_order() -> None:
    journal = ordered(enable_exactly_once_delivery=False)
    journal.deliver(1, 2, at=0, stream_id=STREAM)
    journal.ask(ACK, 2, at=1)
    assert journal.problems == []
    journal.ask(ACK, 1, at=1, result=TRANSIENT)
    assert "told to come again, and the lease is Lease" in journal.problems[0]


# -- seek -------------------------------------------------------------------------------------------------


def test_a_lease_that_a_seek_carries_over_ends_before_anything_else_is_delivered() -> None:
    journal = ordered(retain_acked_messages=True)
    journal.deliver(1, 2, at=0, stream_id=STREAM)
    journal.ask(ACK, 1, at=1)
    journal.seek(0, at=2, kept_from=0)
    journal.ask(ACK, 2, at=3)
    for message_id in (1, 2):
        journal.restart_attempts(message_id)
    journal.deliver(1, at=4)
    assert journal.problems == []


def test_nothing_is_delivered_before_a_lease_that_a_seek_carries_over() -> None:
    journal = ordered(retain_acked_messages=True)
    journal.deliver(1, 2, at=0, stream_id=STREAM)
    journal.ask(ACK, 1, at=1)
    journal.seek(0, at=2, kept_from=0)
    journal.restart_attempts(1)
    journal.deliver(1, at=3, stream_id=STREAM)
    assert journal.problems == ["delivered while 2, later in its key, is outstanding"]
