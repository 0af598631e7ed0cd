"""The replayer obtains the state of a lawful journal, and reports each unlawful event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.compare import Stored, SubscriptionState, differences
from tests.crash.journals import SUB, TOPIC, Journal
from tests.crash.replay import (
    ACK,
    CONFIG,
    EXTEND,
    FILTERED,
    NACK,
    NOOP,
    PERMANENT,
    PUBLISH,
    Lease,
)

SECOND = 1_000_000


@pytest.fixture
def journal() -> Journal:
    """Message 1 is leased from second 0 to 10."""
    journal = Journal()
    journal.publish(1)
    journal.deliver(1, at=0)
    return journal


def test_the_state_of_a_lawful_journal(journal: Journal) -> None:
    journal.ask(EXTEND, 1, at=5, aux=60)
    journal.publish(2, 3, 4, at=6)
    journal.deliver(2, 3, 4, at=6)
    journal.ask(ACK, 2, at=7)
    journal.ask(ACK, 2, at=7, result=NOOP)
    journal.ask(NACK, 3, at=7)
    journal.expire(4, at=17)
    journal.ask(ACK, 4, at=18, result=PERMANENT)
    journal.publish(5, at=18)
    journal.deliver(3, at=19)

    subscription = journal.subscription

    assert subscription.leases == {1: Lease(1, 1, 65 * SECOND), 3: Lease(2, 2, 29 * SECOND)}
    assert subscription.waiting == {4: (1, 2)}
    assert subscription.unacked == {1, 3, 4, 5}


def test_rows_are_taken_once(journal: Journal) -> None:
    replayer = journal.replay()
    replayer.feed(journal.rows, journal.details)
    assert (replayer.problems, replayer.events) == ([], len(journal.rows))


def test_detachment_drops_everything(journal: Journal) -> None:
    journal.publish(2)
    with journal.commit():
        journal.reset(1, at=1)
        journal.drop_before(1.1, at=1)
        journal.config("detached", 1, detached=True)
    journal.publish(3, at=2)

    subscription = journal.subscription

    assert (subscription.unacked, subscription.leases, subscription.waiting) == (set(), {}, {})


def test_resources_that_are_told_again_as_they_are(journal: Journal) -> None:
    journal.add(CONFIG, 1, topic_id=TOPIC, detail={"checkpoint": True, "topic": {"name": "t"}})
    detail = {"checkpoint": True, "subscription": journal.settings}
    journal.add(CONFIG, 1, topic_id=TOPIC, sub_id=SUB, detail=detail)
    assert journal.problems == []


@pytest.mark.parametrize("change", [{"enable_message_ordering": True}, {"name": "another"}])
def test_a_resource_that_is_told_again_and_otherwise(journal: Journal, change: dict[str, Any]) -> None:
    detail = {"checkpoint": True, "subscription": {**journal.settings, **change}}
    journal.add(CONFIG, 1, topic_id=TOPIC, sub_id=SUB, detail=detail)
    assert journal.problems == [f"what is repeated was told otherwise: {detail}"]


def test_a_missing_event(journal: Journal) -> None:
    journal.add(PUBLISH, 0, seq=journal.next_seq + 1, topic_id=TOPIC, message_id=2)
    assert journal.problems == ["follows 5"]


def test_a_message_id_that_does_not_increase(journal: Journal) -> None:
    journal.publish(1)
    assert "the id follows 1" in journal.problems


def test_a_delivery_inside_a_lease(journal: Journal) -> None:
    journal.deliver(1, at=9)
    assert journal.problems == [f"delivered inside the lease {Lease(1, 1, 10 * SECOND)}"]


def test_a_delivery_after_its_ack(journal: Journal) -> None:
    journal.ask(ACK, 1, at=1)
    journal.deliver(1, at=20)
    assert journal.problems == ["delivered after its ack"]


def test_a_generation_used_twice(journal: Journal) -> None:
    journal.ask(NACK, 1, at=1)
    journal.deliver(1, at=2, generation=1)
    assert journal.problems == ["generation 1 is not new"]


def test_an_attempt_that_was_not_counted(journal: Journal) -> None:
    journal.ask(NACK, 1, at=1)
    journal.deliver(1, at=2, attempt=1)
    assert journal.problems == ["attempt 1, not 2"]


def test_an_ack_taken_after_its_deadline(journal: Journal) -> None:
    journal.ask(ACK, 1, at=10.5)
    assert journal.problems == [f"accepted, and the lease is {Lease(1, 1, 10 * SECOND)}"]


def test_an_ack_refused_inside_its_lease(journal: Journal) -> None:
    journal.ask(ACK, 1, at=5, result=PERMANENT)
    assert journal.problems == [f"refused inside the lease {Lease(1, 1, 10 * SECOND)}"]


@pytest.mark.parametrize("kind", [ACK, NACK])
def test_a_repetition_that_is_refused(journal: Journal, kind: int) -> None:
    journal.ask(kind, 1, at=5)
    journal.ask(kind, 1, at=6, result=NOOP)
    assert journal.problems == []
    journal.ask(kind, 1, at=7, result=PERMANENT)
    assert journal.problems == ["refused, and it is as was asked"]


@pytest.mark.parametrize("kind", [ACK, NACK])
@pytest.mark.parametrize(("seconds", "problems"), [(4500, 1), (4501, 0)])
def test_a_repetition_that_comes_very_late(journal: Journal, kind: int, seconds: int, problems: int) -> None:
    journal.ask(kind, 1, at=5)
    journal.ask(kind, 1, at=5 + seconds, result=PERMANENT)
    assert len(journal.problems) == problems


@pytest.mark.parametrize(("seconds", "problems"), [(4500, 1), (4501, 0)])
def test_what_became_of_a_message_may_be_forgotten(journal: Journal, seconds: int, problems: int) -> None:
    journal.expire(1, at=11)
    journal.deliver(1, at=12)
    journal.ask(ACK, 1, at=13)
    journal.ask(ACK, 1, at=13 + seconds, result=NOOP, generation=1, attempt=1, ref_ts_us=0)
    assert len(journal.problems) == problems


def test_a_message_that_is_owed_is_not_forgotten(journal: Journal) -> None:
    journal.expire(1, at=11)
    journal.ask(ACK, 1, at=9000, result=NOOP)
    assert journal.problems == ["answered as done, and it is not"]


@pytest.mark.parametrize("exactly_once", [True, False])
def test_an_answer_as_if_it_were_done(exactly_once: bool) -> None:
    journal = Journal(enable_exactly_once_delivery=exactly_once)
    journal.publish(1)
    journal.deliver(1, at=0)
    journal.ask(ACK, 1, at=5, result=NOOP)
    assert journal.problems == ["answered as done, and it is not"]


def test_a_lease_ended_early(journal: Journal) -> None:
    journal.expire(1, at=9)
    assert journal.problems == ["1000000 us early"]


def test_a_reference_to_another_time(journal: Journal) -> None:
    journal.ask(ACK, 1, at=5, ref_ts_us=7)
    assert journal.problems == ["ref_ts_us, attempt or client differ from those of the delivery"]


def test_a_delivery_that_misstates_its_publish(journal: Journal) -> None:
    journal.publish(2, at=1)
    journal.deliver(2, at=2, ref_ts_us=2 * SECOND)
    (problem,) = journal.problems
    assert problem.startswith("ref_ts_us, bytes or okey differ")


def test_an_extension_by_another_length(journal: Journal) -> None:
    journal.ask(EXTEND, 1, at=5, deadline_us=30 * SECOND, aux=60)
    assert journal.problems == ["asked for 60 s, got 25000000 us"]


def test_a_client_without_a_name(journal: Journal) -> None:
    journal.ask(ACK, 1, at=5, client_id=77)
    assert "client 77 was never introduced" in journal.problems


def test_without_exactly_once_late_acks_count_and_nothing_else_does() -> None:
    journal = Journal(enable_exactly_once_delivery=False)
    journal.publish(1, 2, 3)
    journal.deliver(1, 2, 3, at=0)
    journal.expire(1, 2, 3, at=11)
    journal.ask(ACK, 1, at=12)
    journal.ask(NACK, 2, at=12, result=NOOP)
    journal.ask(EXTEND, 2, at=12, result=NOOP, aux=10)
    assert (journal.subscription.unacked, journal.subscription.leases) == ({2, 3}, {})

    journal.ask(NACK, 3, at=12)
    assert journal.problems == ["accepted, and the lease is None"]


def test_a_reset_of_what_no_key_holds(journal: Journal) -> None:
    journal.reset(1, at=1)
    assert journal.problems == ["reset, and nothing before it has failed"]


# -- filters ----------------------------------------------------------------------------------------------


@pytest.fixture
def filtered() -> Journal:
    """Message 1 matches, message 2 does not."""
    journal = Journal(filter="attributes:x")
    journal.publish(1, payload_hash=1)
    with journal.commit():
        journal.publish(2)
        journal.filter_out(2, at=0)
    return journal


def test_what_a_filter_rejects_is_not_owed(filtered: Journal) -> None:
    assert filtered.subscription.unacked == {1}


def test_a_rejected_message_is_delivered(filtered: Journal) -> None:
    filtered.deliver(2, at=1)
    assert filtered.problems == ["delivered although the filter rejects it"]


def test_a_message_that_should_have_been_rejected(filtered: Journal) -> None:
    filtered.publish(3)
    filtered.deliver(3, at=1)
    assert filtered.problems == ["delivered although it does not match attributes:x"]


def test_a_rejected_message_that_matches(filtered: Journal) -> None:
    filtered.filter_out(1, at=1)
    assert filtered.problems == ["it matches attributes:x"]


def test_a_message_rejected_twice(filtered: Journal) -> None:
    filtered.filter_out(2, at=1)
    assert filtered.problems == ["told before"]


def test_what_is_older_than_the_subscription_is_rejected_as_often_as_it_comes_by(filtered: Journal) -> None:
    filtered.config("deleted", 1)
    resource = {"name": "s", "filter": "attributes:x"}
    filtered.add(CONFIG, 2, topic_id=TOPIC, sub_id=2, detail={"change": "created", "subscription": resource})
    for _ in range(2):
        filtered.add(FILTERED, 3, topic_id=TOPIC, sub_id=2, message_id=2)
    assert filtered.problems == []


def test_a_seek_does_not_bring_back_what_a_filter_rejects(filtered: Journal) -> None:
    filtered.config("updated", 0, retain_acked_messages=True)
    filtered.publish(3, at=1)  # as if it had been published before there was a subscription
    filtered.seek(3, at=3, kept_from=0)
    filtered.seek(0, at=3, kept_from=0)
    assert filtered.subscription.unacked == {1}


# -- back-off ---------------------------------------------------------------------------------------------


def test_a_redelivery_waits_for_its_back_off() -> None:
    journal = Journal(retry_policy={"minimum_backoff": "2s", "maximum_backoff": "3s"})
    journal.publish(1)
    journal.deliver(1, at=0)
    journal.ask(NACK, 1, at=1)
    journal.deliver(1, at=3)
    journal.expire(1, at=14)  # its deadline was second 13
    journal.deliver(1, at=16)
    assert journal.problems == []

    journal.ask(NACK, 1, at=17)
    journal.deliver(1, at=19)
    assert journal.problems == ["delivered 700000 us before its back-off ends"]


def test_a_seek_ends_every_back_off() -> None:
    journal = Journal(retry_policy={})
    journal.publish(1)
    journal.deliver(1, at=0)
    journal.ask(NACK, 1, at=1)
    journal.seek(0, at=2)
    journal.deliver(1, at=2)
    assert journal.problems == []


# -- dead letters -----------------------------------------------------------------------------------------

DEAD = 2


def dead_lettering(**settings: Any) -> Journal:
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 5}
    journal = Journal(**{"dead_letter_policy": policy, **settings})
    journal.topic("created", 0, topic_id=DEAD, name="dead")
    journal.publish(1)
    return journal


def test_a_message_is_forwarded_at_the_failure_that_uses_up_its_attempts() -> None:
    journal = dead_lettering()
    journal.fail(1, times=4, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
    journal.ask(ACK, 1, at=4, result=PERMANENT)

    assert journal.subscription.unacked == set()
    assert journal.subscription.forwarded == {1: 2}
    assert journal.replay().copies == {2: (SUB, 1)}


def test_a_message_that_should_have_been_forwarded() -> None:
    journal = dead_lettering()
    journal.fail(1, times=5, at=1)
    assert journal.subscription.unacked == {1}
    journal.deliver(1, at=2)
    assert journal.problems == ["delivered after 5 failures"]


def test_nothing_is_forwarded_where_the_topic_is_missing() -> None:
    journal = dead_lettering()
    journal.topic("deleted", 1, topic_id=DEAD, name="dead")
    journal.fail(1, times=5, at=1)
    assert journal.subscription.unacked == {1}

    # It is when the topic is there again and the message would be delivered.
    journal.topic("created", 2, topic_id=3, name="dead")
    again = journal.next_seq
    journal.deliver(1, at=2)
    (problem,) = journal.replay().problems
    assert problem == f"seq {again}, kind 2, message 1: delivered after 5 failures"


def test_failures_count_from_when_there_is_a_policy() -> None:
    journal = dead_lettering(dead_letter_policy=None)
    journal.fail(1, times=3, at=1)
    journal.deliver(1, at=1)
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 5}
    journal.config("updated", 1, dead_letter_policy=policy)
    journal.ask(NACK, 1, at=2)
    journal.fail(1, times=3, at=2)
    assert journal.problems == []

    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
    assert journal.problems == []


def test_a_message_forwarded_too_early() -> None:
    journal = dead_lettering()
    journal.fail(1, times=3, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
    assert journal.problems == ["forwarded after 4 failures"]


def test_a_message_forwarded_twice() -> None:
    journal = dead_lettering()
    journal.fail(1, times=4, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
        journal.forward(1, 3, at=3, topic_id=DEAD)
    assert journal.problems[0] == "forwarded after it was forwarded"


def test_a_forwarded_message_is_delivered() -> None:
    journal = dead_lettering()
    journal.fail(1, times=4, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
    journal.deliver(1, at=4, attempt=1)
    assert journal.problems == ["delivered after it was forwarded"]


def test_a_copy_that_was_not_published() -> None:
    journal = dead_lettering()
    journal.fail(1, times=4, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD)
    row = journal.rows.pop()
    journal.rows.append(row._replace(n=2, data=row.data[: 2 * len(row.data) // 3]))
    assert journal.problems == ["its copy 2 was not published with it"]


def test_a_copy_with_another_key() -> None:
    journal = dead_lettering()
    journal.fail(1, times=4, at=1)
    journal.deliver(1, at=2)
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD, okey=7)
    (problem,) = journal.problems
    assert problem.startswith("its copy is Published(topic_id=2")


def test_an_id_that_was_nacked_and_then_acked_is_an_acked_one() -> None:
    journal = Journal(enable_exactly_once_delivery=False)
    journal.publish(1)
    journal.deliver(1, at=1)
    journal.ask(NACK, 1, at=2)
    journal.ask(ACK, 1, at=3)
    journal.config("updated", at=4, enable_exactly_once_delivery=True)
    journal.ask(NACK, 1, at=5, result=PERMANENT)
    assert journal.problems == []
    journal.ask(NACK, 1, at=6, result=NOOP)
    assert journal.problems == ["answered as done, and it is not"]


# -- retention --------------------------------------------------------------------------------------------


def test_what_outlives_its_retention_is_dropped() -> None:
    journal = Journal(message_retention_duration="600s")
    journal.publish(1, 2, 3, at=0)
    journal.publish(4, at=50)
    journal.deliver(1, at=0)
    journal.ask(NACK, 1, at=1)
    journal.deliver(2, at=590)
    journal.ask(EXTEND, 2, at=591, aux=60)
    journal.drop_before(20, at=620)
    assert journal.subscription.unacked == {2, 4}

    # What was leased goes when its lease has ended.
    with journal.commit():
        journal.ask(NACK, 2, at=640)
        journal.drop(2, at=640)
    assert journal.subscription.unacked == {4}


def test_a_topic_may_keep_messages_for_longer() -> None:
    journal = Journal(topic={"message_retention_duration": "700s"}, message_retention_duration="600s")
    journal.publish(1, at=0)
    journal.drop_before(20, at=650)
    assert journal.problems == ["drops what is younger than 700000000 us"]


def test_a_longer_retention_that_comes_with_the_commit_of_a_drop() -> None:
    journal = Journal(message_retention_duration="600s")
    journal.publish(1, at=0)
    with journal.commit():
        journal.drop_before(20, at=620)
        journal.topic("updated", at=620, message_retention_duration="700s")
    assert journal.problems == []
    assert journal.subscription.unacked == set()


def test_a_delivery_after_its_retention() -> None:
    journal = Journal(message_retention_duration="600s")
    journal.publish(1, at=0)
    journal.deliver(1, at=601)
    assert journal.problems == ["delivered after its retention"]


def test_a_single_message_dropped_too_early() -> None:
    journal = Journal(message_retention_duration="600s")
    journal.publish(1, at=0)
    journal.drop(1, at=10)
    assert journal.problems == ["dropped within its retention"]


def test_a_dropped_message_is_delivered() -> None:
    journal = Journal(message_retention_duration="600s")
    journal.publish(1, at=0)
    journal.deliver(1, at=595)
    journal.expire(1, at=606)
    journal.drop_before(6, at=606)
    journal.config("updated", 607, message_retention_duration="900s")
    journal.deliver(1, at=608, attempt=1)
    assert journal.problems == ["delivered after a seek or drop took it away"]


# -- seek -------------------------------------------------------------------------------------------------


def seekable(**settings: Any) -> Journal:
    """Messages 1 to 4 of seconds 1 to 4: acked, leased, nacked once, and never delivered."""
    journal = Journal(**settings)
    for message_id in range(1, 5):
        journal.publish(message_id, at=message_id)
    journal.deliver(1, 2, 3, at=4)
    journal.ask(ACK, 1, at=5)
    journal.ask(NACK, 3, at=5)
    return journal


def test_a_seek_to_the_future_takes_everything_away() -> None:
    journal = seekable()
    journal.seek(1000, at=6)
    journal.ask(ACK, 2, at=7, result=NOOP)
    journal.ask(NACK, 2, at=7, result=PERMANENT)
    journal.publish(5, at=8)

    subscription = journal.subscription

    assert (subscription.unacked, subscription.leases, subscription.waiting) == ({5}, {}, {})
    journal.deliver(2, at=20)
    assert journal.problems == ["delivered after a seek or drop took it away"]


def test_an_ack_of_what_a_seek_took_away_is_no_failure() -> None:
    journal = seekable()
    journal.seek(1000, at=6)
    journal.ask(ACK, 2, at=7, result=PERMANENT)
    assert journal.problems == ["refused, and it is as was asked"]


def test_a_seek_to_the_past_without_retained_messages() -> None:
    journal = seekable()
    journal.seek(0, at=6)
    journal.ask(ACK, 2, at=7)
    journal.deliver(3, at=7)

    subscription = journal.subscription

    assert (subscription.unacked, set(subscription.leases)) == ({3, 4}, {3})


def test_a_seek_to_the_past_brings_back_what_is_kept() -> None:
    journal = seekable(retain_acked_messages=True)
    journal.publish(5, at=5)
    journal.deliver(5, at=5)
    journal.ask(ACK, 5, at=5)
    journal.seek(1, at=6, kept_from=0)
    journal.restart_attempts(1)
    journal.deliver(1, at=6)
    # Old ids are dead, whatever they did.
    before = {"generation": 1, "ref_ts_us": 4 * SECOND}
    journal.ask(ACK, 1, at=7, result=PERMANENT, **before)
    assert (journal.subscription.unacked, set(journal.subscription.leases)) == ({1, 2, 3, 4, 5}, {1, 2})

    journal.ask(ACK, 1, at=7, result=NOOP, **before)
    assert journal.problems == ["answered as done, and it is not"]


def test_without_exactly_once_an_id_from_before_a_seek_has_no_effect() -> None:
    journal = seekable(retain_acked_messages=True, enable_exactly_once_delivery=False)
    journal.seek(1, at=6, kept_from=0)
    journal.ask(ACK, 1, at=7, result=NOOP)
    assert journal.subscription.unacked == {1, 2, 3, 4}

    journal.ask(ACK, 1, at=7)
    assert "accepted, and the lease is None" in journal.problems


def test_attempts_begin_anew_for_what_a_seek_brings_back_and_go_on_for_the_rest() -> None:
    journal = seekable(retain_acked_messages=True)
    journal.ask(NACK, 2, at=6)
    journal.deliver(2, at=6)
    journal.ask(ACK, 2, at=6)
    journal.seek(0, at=6, kept_from=0)
    journal.deliver(2, at=7, attempt=3)
    journal.deliver(3, at=7, attempt=1)
    assert journal.problems == ["attempt 3, not 1", "attempt 1, not 2"]


def test_a_seek_keeps_the_equal_and_takes_the_earlier() -> None:
    journal = seekable()
    journal.seek(4, at=6)
    assert journal.subscription.unacked == {4}


def test_a_seek_that_keeps_less_than_was_promised() -> None:
    journal = seekable(retain_acked_messages=True)
    journal.seek(1, at=6, kept_from=2)
    assert journal.problems == ["kept from 2000000 on, and that is without [1]"]

    journal = seekable(retain_acked_messages=True)
    journal.seek(1, at=6)
    assert journal.problems == ["retain_acked is False, and it is kept for 604800000000 us"]


def test_a_seek_that_keeps_more_than_was_promised() -> None:
    journal = seekable(retain_acked_messages=True, message_retention_duration="600s")
    journal.seek(1, at=700, kept_from=84)
    assert journal.problems == ["kept from 84000000 on, for 600000000 us"]


def test_a_seek_keeps_what_was_kept_when_it_was_asked_for() -> None:
    journal = seekable(retain_acked_messages=True, message_retention_duration="600s")
    journal.seek(1, at=700, kept_from=86)
    assert journal.problems == []


def test_what_finished_before_it_was_retained_need_not_come_back() -> None:
    journal = seekable()
    journal.config("updated", 6, retain_acked_messages=True)
    journal.seek(1, at=7, kept_from=5)
    assert journal.subscription.unacked == {2, 3, 4}


def test_a_seek_to_a_snapshot() -> None:
    journal = seekable()
    with journal.commit():
        taken = journal.snapshot("created", 6)
    journal.ask(ACK, 2, at=7)
    journal.deliver(3, 4, at=7)
    journal.ask(ACK, 3, 4, at=8)
    journal.publish(5, 6, at=8)
    journal.deliver(5, at=8)
    journal.ask(ACK, 5, at=8)
    journal.seek_to(taken, at=9)
    assert journal.subscription.unacked == {2, 3, 4, 5, 6}

    # It is there until it is deleted, and a seek takes away what it does not hold.
    journal.seek(0, at=9, kept_from=None)
    with journal.commit():
        journal.snapshot("deleted", 10)
    journal.seek_to(taken, at=11)
    assert journal.problems == ["snapshot n is gone"]


def test_a_snapshot_takes_away_what_it_does_not_hold() -> None:
    journal = seekable(retain_acked_messages=True)
    taken = journal.snapshot("created", 6)
    journal.seek(0, at=7, kept_from=0)
    assert 1 in journal.subscription.unacked
    journal.seek_to(taken, at=8)
    assert journal.subscription.unacked == {2, 3, 4}


def test_a_snapshot_said_to_be_of_another_time() -> None:
    journal = seekable()
    taken = journal.snapshot("created", 6)
    journal.seek_to(taken, at=8, aux=7)
    assert journal.problems == [f"the snapshot was taken at 6000000, seq {taken.seq}"]


# -- the state --------------------------------------------------------------------------------------------


def stored(message_ids: set[int], snapshots: dict[str, int] | None = None, **changes: Any) -> Stored:
    fields = {
        "name": "s",
        "topic_id": TOPIC,
        "leases": {1: Lease(1, 1, 10 * SECOND)},
        "waiting": {},
        "unacked": {1},
    }
    state = SubscriptionState(**{**fields, **changes})
    messages = dict.fromkeys(message_ids)
    return Stored(1, False, {"t": TOPIC}, {SUB: state}, messages, [], {}, snapshots or {})


def test_state_and_journal_that_differ(journal: Journal) -> None:
    replayer = journal.replay()

    assert differences(stored({1}), replayer) == []
    for changes in (
        {"leases": {1: Lease(1, 1, 9 * SECOND)}},
        {"leases": {1: Lease(2, 1, 10 * SECOND)}},
        {"leases": {}},
        {"waiting": {1: (1, 2)}},
        {"unacked": set()},
        {"name": "other"},
        {"snapshots": {"n": TOPIC}},
    ):
        assert len(differences(stored({1}, **changes), replayer)) == 1, changes


def test_a_message_that_is_owed_has_to_be_stored(journal: Journal) -> None:
    assert differences(stored(set()), journal.replay()) == [
        "what s is owed is not stored: 1 messages, first [1]"
    ]


@pytest.mark.parametrize("whose", ["s", "topic 1", "n"])
def test_a_message_that_a_seek_could_bring_back_has_to_be_stored(whose: str) -> None:
    topic = {"message_retention_duration": "600s"} if whose == "topic 1" else {}
    journal = Journal(topic, retain_acked_messages=whose == "s", message_retention_duration="600s")
    journal.publish(1, 2, at=1)
    if whose == "n":
        journal.snapshot("created", 1)
    journal.deliver(1, 2, at=1)
    journal.ask(ACK, 2, at=1)
    snapshots = {"n": TOPIC} if whose == "n" else {}
    leases = {1: Lease(1, 1, 11 * SECOND)}

    assert differences(stored({1, 2}, snapshots, leases=leases), journal.replay()) == []
    (difference,) = differences(stored({1}, snapshots, leases=leases), journal.replay())
    what = "holds" if whose == "n" else "retains"
    assert difference == f"what {whose} {what} is not stored: 1 messages, first [2]"


def test_what_a_seek_brought_back_may_wait(journal: Journal) -> None:
    journal.config("updated", 1, retain_acked_messages=True)
    journal.publish(2, at=2)
    journal.deliver(2, at=2)
    journal.ask(ACK, 2, at=2)
    journal.seek(2, at=3, kept_from=1)
    journal.ask(ACK, 1, at=3, result=NOOP)

    brought_back = {"leases": {}, "unacked": {2}, "waiting": {2: (1, 1)}}
    assert differences(stored({1, 2}, **brought_back), journal.replay()) == []
    assert len(differences(stored({1, 2}, **{**brought_back, "waiting": {2: (1, 2)}}), journal.replay())) == 1


def test_a_nack_holds_again_once_the_life_after_a_seek_is_over() -> None:
    journal = Journal(retain_acked_messages=True)
    journal.publish(1)
    journal.deliver(1, at=1)
    journal.ask(NACK, 1, at=2)
    journal.deliver(1, at=2)
    journal.ask(ACK, 1, at=3)
    journal.seek(0, at=4, kept_from=0)
    journal.restart_attempts(1)
    journal.deliver(1, at=5)
    first = {"generation": 1, "attempt": 1, "ref_ts_us": 1_000_000}
    journal.ask(NACK, 1, at=6, result=PERMANENT, **first)
    journal.ask(ACK, 1, at=7)
    journal.ask(NACK, 1, at=8, result=NOOP, **first)
    assert journal.problems == []


def test_an_ack_holds_again_once_a_seek_took_away_what_another_had_brought_back() -> None:
    journal = Journal(retain_acked_messages=True)
    journal.publish(1)
    journal.deliver(1, at=1)
    journal.ask(ACK, 1, at=2)
    journal.seek(0, at=3, kept_from=0)
    journal.ask(EXTEND, 1, at=4, aux=10, deadline_us=0, result=PERMANENT)
    journal.seek(5, at=5, kept_from=0)
    journal.ask(EXTEND, 1, at=6, aux=10, deadline_us=0, result=NOOP)
    assert journal.problems == []


@pytest.mark.parametrize("acked", [True, False])
def test_a_snapshot_of_another_filter_may_leave_an_ack_in_doubt(acked: bool) -> None:
    journal = Journal()
    detail: dict[str, Any] = {"change": "created", "subscription": {"name": "o", "filter": "attributes:x"}}
    journal.add(CONFIG, 0, topic_id=TOPIC, sub_id=SUB + 1, detail=detail)
    with journal.commit():
        journal.publish(2)
        journal.filter_out(2, at=0, sub_id=SUB + 1)
    journal.deliver(2, at=1)
    if acked:  # or else it is leased, and the seek takes it away
        journal.ask(ACK, 2, at=2)
    detail = {"change": "created", "snapshot": {"name": "n"}}
    taken = journal.add(CONFIG, 3, topic_id=TOPIC, sub_id=SUB + 1, detail=detail)
    journal.seek_to(taken, at=4)
    journal.ask(ACK, 2, at=5, result=NOOP)
    journal.ask(ACK, 2, at=6, result=PERMANENT)
    assert journal.problems == []


def test_a_snapshot_of_its_own_leaves_no_ack_in_doubt() -> None:
    journal = Journal()
    journal.publish(2)
    journal.deliver(2, at=1)
    journal.ask(ACK, 2, at=2)
    journal.seek_to(journal.snapshot("created", at=3), at=4)
    journal.ask(ACK, 2, at=5, result=PERMANENT)
    assert journal.problems == ["refused, and it is as was asked"]
