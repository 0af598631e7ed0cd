"""What the replay has to say of a few events: one subscription each, all in one journal.

A scenario writes its events and returns what is expected: every finding, as (code, seq) in order, and of the
facts the columns that it is about. What is not named is not looked at; findings are always all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from analytics.dimensions import Dimensions
from analytics.layout import Result
from analytics.tables import CODES
from tests.analytics.generator.builder import Builder

US = 1e-6  # a microsecond, in the builder's seconds
NOOP, PERMANENT, TRANSIENT = Result.NOOP, Result.PERMANENT, Result.TRANSIENT

Row = dict[str, Any]


@dataclass
class Expected:
    sub: int
    found: list[tuple[str, int]] = field(default_factory=list)
    facts: dict[tuple[int, int], Row] = field(default_factory=dict)  # by message and epoch

    def check(self, rows: list[Row]) -> None:
        """`rows`: facts of any implementation."""
        mine = [row for row in rows if row["sub_id"] == self.sub]
        found = [
            (CODES[kind], seq) for row in mine for kind, seq in zip(row["v_kind"], row["v_seq"], strict=True)
        ]
        assert found == self.found
        assert all(row["violations"] == len(row["v_seq"]) for row in mine)
        by_epoch = {(row["message_id"], row["epoch"]): row for row in mine}
        for place, expected in self.facts.items():
            row = by_epoch.get(place)
            assert row is not None, f"no row for {place}"
            assert {name: row[name] for name in expected} == expected, place


Scenario = Callable[[Builder], Expected]
SCENARIOS: dict[str, Scenario] = {}


def scenario(write: Scenario) -> Scenario:
    SCENARIOS[write.__name__] = write
    return write


def journal() -> tuple[Builder, dict[str, Expected]]:
    """All scenarios, one after the other."""
    builder = Builder()
    expected = {}
    for name, write in SCENARIOS.items():
        builder.begin()
        expected[name] = write(builder)
    return builder, expected


def rows_of(builder: Builder) -> list[Row]:
    """The events as rows of the journal."""
    return [event | {"detail": builder.details.get(event["seq"])} for event in builder.events]


def dimensions_of(builder: Builder) -> Dimensions:
    return Dimensions.from_rows(rows_of(builder))


def leased(b: Builder, name: str = "", **settings: Any) -> tuple[int, int]:
    """A subscription, and a message that was published at 1 s and is leased from 2 s to 12 s."""
    sub = b.subscription(f"scenario-{len(b.events)}{name}", at=0, **settings)
    message = b.publish(b.topic_of(sub), at=1)
    b.deliver(sub, message, at=2)
    return sub, message


# -- G1: delivered though it was done ---------------------------------------------------------------------


@scenario
def an_acked_message_is_in_order(b: Builder) -> Expected:
    sub, message = leased(b)
    first = b.last_seq
    b.ack(sub, message, at=5)
    row = {
        "pub_us": b.us(1),
        "first_seq": first,
        "first_us": b.us(2),
        "last_us": b.us(2),
        "deliveries": 1,
        "attempts": 1,
        "acks": 1,
        "ack_us": b.us(5),
        "gone_us": None,
        "owed": True,
        "partial": False,
        "violations": 0,
        "v_kind": [],
        "v_seq": [],
    }
    return Expected(sub, facts={(message, 0): row})


@scenario
def a_delivery_after_the_ack_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=5)
    seq = b.deliver(sub, message, at=20)
    return Expected(sub, [("G1_delivered_after_ack", seq)])


@scenario
def every_delivery_after_the_ack_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=5)
    second = b.deliver(sub, message, at=20)
    b.expire(sub, message)
    third = b.deliver(sub, message, at=40)
    return Expected(sub, [("G1_delivered_after_ack", second), ("G1_delivered_after_ack", third)])


@scenario
def a_delivery_after_the_ack_of_an_older_generation_is_found_without_exactly_once(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.expire(sub, message)
    b.ack(sub, message, at=13)
    seq = b.deliver(sub, message, at=14)
    return Expected(sub, [("G1_delivered_after_ack", seq)])


@scenario
def one_event_can_break_two_rules(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=5)
    second = b.deliver(sub, message, at=20)
    third = b.deliver(sub, message, at=25)
    codes = ["G1_delivered_after_ack", "G1_delivered_after_ack", "G2_early_redelivery"]
    return Expected(sub, list(zip(codes, [second, third, third], strict=True)))


@scenario
def an_ack_that_changed_nothing_allows_the_redelivery(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.ack(sub, message, at=14, generation=1, result=NOOP)
    b.expire(sub, message)
    b.deliver(sub, message, at=30)
    row = {"acks": 0, "ack_us": None, "ack_fails": 0, "deliveries": 3}
    return Expected(sub, facts={(message, 0): row})


# -- G2: redelivered or expired too early -----------------------------------------------------------------


@scenario
def a_redelivery_at_the_lease_end_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.deliver(sub, message, at=12)
    return Expected(sub)


@scenario
def a_redelivery_a_microsecond_before_the_lease_end_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    seq = b.deliver(sub, message, at=12 - US)
    return Expected(sub, [("G2_early_redelivery", seq)])


@scenario
def an_expiry_at_the_lease_end_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message, at=12)
    b.deliver(sub, message, at=12)
    return Expected(sub, facts={(message, 0): {"expires": 1, "deliveries": 2, "attempts": 2}})


@scenario
def an_expiry_a_microsecond_before_the_lease_end_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    seq = b.expire(sub, message, at=12 - US)
    b.deliver(sub, message, at=12)
    return Expected(sub, [("G2_early_expire", seq)])


@scenario
def a_nacked_message_may_come_back_at_once(b: Builder) -> Expected:
    sub, message = leased(b)
    b.nack(sub, message, at=3)
    b.deliver(sub, message, at=3)
    return Expected(sub, facts={(message, 0): {"nacks": 1, "deliveries": 2, "attempts": 2}})


@scenario
def a_refused_nack_does_not_end_the_lease(b: Builder) -> Expected:
    sub, message = leased(b)
    b.nack(sub, message, at=3, result=TRANSIENT)
    seq = b.deliver(sub, message, at=4)
    return Expected(sub, [("G2_early_redelivery", seq)], {(message, 0): {"nacks": 0}})


@scenario
def an_extension_moves_the_lease_end(b: Builder) -> Expected:
    sub, message = leased(b)
    b.extend(sub, message, at=10, seconds=20)
    seq = b.deliver(sub, message, at=30 - US)
    return Expected(sub, [("G2_early_redelivery", seq)], {(message, 0): {"extends": 1}})


@scenario
def an_extension_can_shorten_the_lease(b: Builder) -> Expected:
    sub, message = leased(b)
    b.extend(sub, message, at=3, seconds=1)
    b.expire(sub, message, at=4)
    b.deliver(sub, message, at=4)
    return Expected(sub)


@scenario
def a_refused_extension_does_not_move_the_lease_end(b: Builder) -> Expected:
    sub, message = leased(b)
    b.extend(sub, message, at=11, result=TRANSIENT)
    b.deliver(sub, message, at=12)
    return Expected(sub, facts={(message, 0): {"extends": 0}})


@scenario
def a_restart_exempts_nothing(b: Builder) -> Expected:
    sub, message = leased(b)
    b.start(at=5, clean=False)
    seq = b.deliver(sub, message, at=6)
    return Expected(sub, [("G2_early_redelivery", seq)])


@scenario
def a_lease_is_good_after_a_restart(b: Builder) -> Expected:
    sub, message = leased(b)
    b.start(at=5)
    seq = b.ack(sub, message, at=6, result=PERMANENT)
    return Expected(sub, [("G3_valid_rejected", seq)])


@scenario
def a_hole_in_the_generations_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.start(at=12, clean=False)
    b.deliver(sub, message, at=13, generation=4)
    b.ack(sub, message, at=14)
    return Expected(sub, facts={(message, 0): {"deliveries": 2, "acks": 1}})


# -- G3: a valid ack id refused, an invalid one accepted --------------------------------------------------


@scenario
def refusals_of_a_valid_ack_id_are_found(b: Builder) -> Expected:
    sub, message = leased(b)
    ack = b.ack(sub, message, at=12 - US, result=PERMANENT)
    nack = b.nack(sub, message, result=PERMANENT)
    extend = b.extend(sub, message, result=PERMANENT)
    row = {"ack_fails": 1, "acks": 0, "nacks": 0, "extends": 0}
    return Expected(sub, [("G3_valid_rejected", seq) for seq in (ack, nack, extend)], {(message, 0): row})


@scenario
def at_the_lease_end_a_refusal_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=12, result=PERMANENT)
    b.nack(sub, message, result=PERMANENT)
    b.extend(sub, message, result=PERMANENT)
    return Expected(sub)


@scenario
def between_the_lease_end_and_the_expiry_an_ack_may_be_accepted(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=13)
    return Expected(sub)


@scenario
def after_the_expiry_a_refusal_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.ack(sub, message, at=13, result=PERMANENT)
    return Expected(sub)


@scenario
def after_the_expiry_an_accepted_ack_nack_or_extension_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    found = [b.extend(sub, message, at=13), b.nack(sub, message), b.expire(sub, message), b.ack(sub, message)]
    return Expected(sub, [("G3_invalid_accepted", seq) for seq in (found[0], found[1], found[3])])


@scenario
def an_older_generation_is_refused(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.ack(sub, message, at=14, generation=1, result=PERMANENT)
    b.ack(sub, message, at=15, generation=2)
    return Expected(sub)


@scenario
def an_older_generation_that_is_accepted_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    seq = b.ack(sub, message, at=14, generation=1)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def a_generation_that_was_never_delivered_and_is_accepted_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    seq = b.ack(sub, message, at=3, generation=2)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def a_transient_refusal_is_right_and_the_next_try_counts(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3, result=TRANSIENT)
    b.ack(sub, message, at=4)
    row = {"ack_fails": 1, "acks": 1, "ack_us": b.us(4)}
    return Expected(sub, facts={(message, 0): row})


@scenario
def a_repeated_ack_that_changes_nothing_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3)
    b.ack(sub, message, at=4, result=NOOP)
    b.extend(sub, message, at=5, result=NOOP)
    return Expected(sub, facts={(message, 0): {"acks": 1, "ack_us": b.us(3)}})


@scenario
def a_repeated_ack_that_is_recorded_as_done_is_noted(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3)
    seq = b.ack(sub, message, at=4)
    return Expected(sub, [("G3_repeat_accepted", seq)], {(message, 0): {"acks": 2, "ack_us": b.us(3)}})


@scenario
def a_repeated_ack_of_another_generation_is_no_repetition(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.ack(sub, message, at=14)
    seq = b.ack(sub, message, at=15, generation=1)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def an_extension_or_nack_after_the_ack_that_has_an_effect_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3)
    extend = b.extend(sub, message, at=4)
    nack = b.nack(sub, message, at=5)
    return Expected(sub, [("G3_invalid_accepted", extend), ("G3_invalid_accepted", nack)])


@scenario
def without_exactly_once_a_late_ack_may_take_effect(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.ack(sub, message, at=14, generation=1)
    b.ack(sub, message, at=15, generation=2)
    return Expected(sub, facts={(message, 0): {"acks": 2, "ack_us": b.us(14)}})


@scenario
def without_exactly_once_a_late_extension_or_nack_must_not(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.expire(sub, message)
    extend = b.extend(sub, message, at=13)
    nack = b.nack(sub, message, at=14)
    return Expected(sub, [("G3_invalid_accepted", extend), ("G3_invalid_accepted", nack)])


@scenario
def the_setting_at_that_moment_decides(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.expire(sub, message)
    b.config(sub_id=sub, at=13, enable_exactly_once_delivery=True)
    seq = b.ack(sub, message, at=14)
    b.config(sub_id=sub, at=15, enable_exactly_once_delivery=None)
    b.ack(sub, message, at=16)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def an_unknown_ack_id_is_not_replayed(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3, generation=0, attempt=0, result=PERMANENT)
    b.ack(sub, 0, at=4, generation=0, result=PERMANENT)
    return Expected(sub, facts={(message, 0): {"ack_fails": 0}})


# -- seeks to a time --------------------------------------------------------------------------------------


@scenario
def a_delivery_after_the_seek_that_acknowledged_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.seek(sub, to=2, at=13)
    seq = b.deliver(sub, message, at=14)
    facts = {(message, 0): {"owed": True, "deliveries": 1}, (message, 1): {"owed": False, "deliveries": 1}}
    return Expected(sub, [("G1_delivered_after_seek", seq)], facts)


@scenario
def a_message_that_was_never_delivered_is_acknowledged_by_a_seek_as_well(b: Builder) -> Expected:
    sub = b.subscription("acknowledged unseen", at=0)
    message = b.publish(b.topic_of(sub), at=1)
    b.seek(sub, to=2, at=3)
    seq = b.deliver(sub, message, at=4)
    return Expected(sub, [("G1_delivered_after_seek", seq)], {(message, 1): {"owed": False}})


@scenario
def a_seek_to_the_very_publish_time_leaves_the_message_open(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.seek(sub, to=1, at=13)
    b.deliver(sub, message, at=14)
    return Expected(sub, facts={(message, 1): {"owed": True, "first_us": b.us(14), "pub_us": b.us(1)}})


@scenario
def a_seek_to_the_microsecond_after_the_publish_time_acknowledges(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.seek(sub, to=1 + US, at=13)
    seq = b.deliver(sub, message, at=14)
    return Expected(sub, [("G1_delivered_after_seek", seq)])


@scenario
def after_the_seek_that_acknowledged_the_last_ack_id_may_be_acked_and_nothing_else(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=2, at=3)
    extend = b.extend(sub, message, at=4)
    nack = b.nack(sub, message, at=5)
    # These two had an effect, and so the ack comes too late.
    late = b.ack(sub, message, at=6)
    other = b.publish(b.topic_of(sub), at=7)
    b.deliver(sub, other, at=8)
    b.seek(sub, to=8, at=9)
    b.ack(sub, other, at=10)
    return Expected(
        sub,
        [("G3_invalid_accepted", extend), ("G3_invalid_accepted", nack), ("G3_invalid_accepted", late)],
        {(other, 2): {"owed": False, "acks": 1, "ack_us": b.us(10)}},
    )


@scenario
def an_older_ack_id_is_dead_after_the_seek_that_acknowledged(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.seek(sub, to=2, at=14)
    seq = b.ack(sub, message, at=15, generation=1)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def a_running_lease_is_carried_over_a_seek(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=0, at=3)
    b.extend(sub, message, at=10, seconds=10)
    b.ack(sub, message, at=20 - US)
    row = {"owed": True, "deliveries": 0, "first_seq": None, "extends": 1, "acks": 1, "pub_us": b.us(1)}
    return Expected(sub, facts={(message, 1): row})


@scenario
def a_redelivery_inside_a_lease_that_was_carried_over_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=0, at=3)
    seq = b.deliver(sub, message, at=12 - US)
    return Expected(sub, [("G2_early_redelivery", seq)])


@scenario
def a_refusal_inside_a_lease_that_was_carried_over_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=0, at=3)
    seq = b.ack(sub, message, at=4, result=PERMANENT)
    return Expected(sub, [("G3_valid_rejected", seq)])


@scenario
def an_acked_message_that_is_kept_comes_back(b: Builder) -> Expected:
    sub, message = leased(b, retain_acked=True)
    b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4)
    b.deliver(sub, message, at=5)
    b.ack(sub, message, at=6)
    facts = {
        (message, 0): {"owed": True, "ack_us": b.us(3)},
        (message, 1): {"owed": True, "ack_us": b.us(6), "first_us": b.us(5), "attempts": 1},
    }
    return Expected(sub, facts=facts)


@scenario
def of_what_comes_back_the_old_ack_id_is_dead(b: Builder) -> Expected:
    sub, message = leased(b, retain_acked=True)
    b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4)
    b.ack(sub, message, at=5, result=PERMANENT)
    seq = b.ack(sub, message, at=6)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def an_acked_message_that_is_not_kept_does_not_come_back(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4)
    b.ack(sub, message, at=5, result=NOOP)
    seq = b.deliver(sub, message, at=6)
    return Expected(sub, [("G1_delivered_after_ack", seq)], {(message, 1): {"owed": False}})


@scenario
def what_is_kept_from_the_very_publish_time_on_comes_back(b: Builder) -> Expected:
    sub, message = leased(b, retain_acked=True)
    b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4, kept_from=1)
    b.deliver(sub, message, at=6)
    return Expected(sub, facts={(message, 1): {"owed": True}})


@scenario
def what_is_kept_from_a_microsecond_later_does_not(b: Builder) -> Expected:
    sub, message = leased(b, retain_acked=True)
    b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=4, kept_from=1 + US)
    seq = b.deliver(sub, message, at=6)
    return Expected(sub, [("G1_delivered_after_ack", seq)], {(message, 1): {"owed": False}})


@scenario
def of_one_moment_messages_are_kept_by_their_ids(b: Builder) -> Expected:
    sub, older = leased(b, retain_acked=True)
    newer = b.publish(b.topic_of(sub), at=3)
    b.deliver(sub, newer, at=3)
    b.ack(sub, older, at=4)
    b.ack(sub, newer, at=4)
    b.seek(sub, to=0, at=5, kept_from=0, kept_after_id=older)
    b.deliver(sub, newer, at=6)
    seq = b.deliver(sub, older, at=6)
    facts = {(older, 1): {"owed": False}, (newer, 1): {"owed": True}}
    return Expected(sub, [("G1_delivered_after_ack", seq)], facts)


@scenario
def a_seek_into_the_future_acknowledges_what_was_published_and_nothing_that_comes(b: Builder) -> Expected:
    sub, before = leased(b)
    b.expire(sub, before)
    b.seek(sub, to=1000, at=13)
    after = b.publish(b.topic_of(sub), at=14)
    b.deliver(sub, after, at=15)
    b.ack(sub, after, at=16)
    seq = b.deliver(sub, before, at=17)
    facts = {(before, 1): {"owed": False}, (after, 1): {"owed": True, "acks": 1}}
    return Expected(sub, [("G1_delivered_after_seek", seq)], facts)


@scenario
def a_later_seek_brings_back_what_an_earlier_one_acknowledged(b: Builder) -> Expected:
    sub, message = leased(b, retain_acked=True)
    b.seek(sub, to=2, at=3)
    b.seek(sub, to=0, at=4)
    b.deliver(sub, message, at=5)
    return Expected(sub, facts={(message, 2): {"owed": True, "epoch": 2, "deliveries": 1}})


@scenario
def a_later_seek_does_not_bring_back_what_is_not_kept(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=2, at=3)
    b.seek(sub, to=0, at=4)
    seq = b.deliver(sub, message, at=13)
    return Expected(sub, [("G1_delivered_after_seek", seq)], {(message, 2): {"owed": False}})


@scenario
def an_ack_after_the_seek_that_acknowledged_makes_it_an_acked_message(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=2, at=3)
    b.ack(sub, message, at=4)
    seq = b.deliver(sub, message, at=13)
    return Expected(sub, [("G1_delivered_after_ack", seq)])


@scenario
def what_was_published_before_the_subscription_comes_only_if_it_is_kept(b: Builder) -> Expected:
    topic = b.topic("older than its subscription", at=0)
    lost, kept = b.publish(topic, at=1), b.publish(topic, at=2)
    sub = b.subscription("younger than its messages", topic, at=3)
    b.seek(sub, to=0, at=4, kept_from=2)
    b.deliver(sub, kept, at=5)
    b.deliver(sub, lost, at=6)
    facts = {(lost, 1): {"owed": False}, (kept, 1): {"owed": True}}
    return Expected(sub, facts=facts)


@scenario
def what_one_seek_brought_in_the_next_need_not_keep(b: Builder) -> Expected:
    topic = b.topic("brought in once", at=0)
    message = b.publish(topic, at=1)
    sub = b.subscription("seeks twice", topic, at=3)
    b.seek(sub, to=0, at=4, kept_from=1)
    b.seek(sub, to=0, at=5)
    b.deliver(sub, message, at=6)
    return Expected(sub, facts={(message, 2): {"owed": True}})


# -- seeks to a snapshot ----------------------------------------------------------------------------------


@scenario
def after_a_seek_to_a_snapshot_an_acked_message_may_come_back(b: Builder) -> Expected:
    sub, message = leased(b)
    taken = b.snapshot(sub, "before the ack", at=3)
    b.ack(sub, message, at=4)
    b.seek_snapshot(sub, taken, at=5)
    b.deliver(sub, message, at=6)
    return Expected(sub, facts={(message, 1): {"owed": True}})


@scenario
def until_the_next_delivery_every_answer_is_right_after_a_seek_to_a_snapshot(b: Builder) -> Expected:
    sub, message = leased(b)
    taken = b.snapshot(sub, "of a lease", at=3)
    b.seek_snapshot(sub, taken, at=4)
    b.ack(sub, message, at=5, result=PERMANENT)
    b.ack(sub, message, at=5)
    b.ack(sub, message, at=5)
    b.deliver(sub, message, at=6, generation=2)
    found = b.ack(sub, message, at=7, result=PERMANENT)
    # The ack between counts: what it acked is delivered again.
    return Expected(sub, [("G1_delivered_after_ack", found - 1), ("G3_valid_rejected", found)])


@scenario
def a_lease_is_carried_over_a_seek_to_a_snapshot(b: Builder) -> Expected:
    sub, message = leased(b)
    taken = b.snapshot(sub, "of a lease that goes on", at=3)
    b.seek_snapshot(sub, taken, at=4)
    seq = b.deliver(sub, message, at=12 - US)
    return Expected(sub, [("G2_early_redelivery", seq)])


@scenario
def a_seek_to_a_snapshot_undoes_that_a_seek_acknowledged(b: Builder) -> Expected:
    sub, message = leased(b)
    taken = b.snapshot(sub, "before the seek", at=3)
    b.expire(sub, message)
    b.seek(sub, to=2, at=13)
    b.seek_snapshot(sub, taken, at=14)
    b.deliver(sub, message, at=15)
    return Expected(sub, facts={(message, 2): {"owed": True}})


# -- RESET ------------------------------------------------------------------------------------------------


@scenario
def a_void_lease_is_refused_by_ack_and_extension(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    b.ack(sub, message, at=4, result=PERMANENT)
    b.extend(sub, message, at=5, result=PERMANENT)
    return Expected(sub, facts={(message, 0): {"resets": 1, "ack_fails": 1}})


@scenario
def a_void_lease_that_takes_an_ack_or_extension_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    extend = b.extend(sub, message, at=4)
    ack = b.ack(sub, message, at=5)
    return Expected(sub, [("G3_invalid_accepted", extend), ("G3_invalid_accepted", ack)])


@scenario
def the_nack_of_a_void_lease_is_right_and_allows_the_redelivery_at_once(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    b.nack(sub, message, at=4)
    b.deliver(sub, message, at=4, attempt=1)
    return Expected(sub, facts={(message, 0): {"nacks": 1, "deliveries": 2}})


@scenario
def the_nack_of_an_older_generation_than_the_void_one_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.deliver(sub, message, at=13)
    b.reset(sub, message, at=14)
    seq = b.nack(sub, message, at=15, generation=1)
    return Expected(sub, [("G3_invalid_accepted", seq)])


@scenario
def a_redelivery_at_the_end_of_a_void_lease_is_right(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    b.deliver(sub, message, at=12)
    return Expected(sub, facts={(message, 0): {"attempts": 1, "deliveries": 2}})


@scenario
def a_redelivery_before_the_end_of_a_void_lease_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    seq = b.deliver(sub, message, at=12 - US)
    return Expected(sub, [("G2_early_redelivery", seq)])


@scenario
def without_exactly_once_what_was_void_may_come_at_once(b: Builder) -> Expected:
    sub, message = leased(b, exactly_once=False)
    b.reset(sub, message, at=3)
    b.deliver(sub, message, at=3)
    return Expected(sub)


@scenario
def an_early_expiry_of_a_void_lease_is_found(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    early = b.expire(sub, message, at=12 - US)
    return Expected(sub, [("G2_early_expire", early)])


@scenario
def a_collateral_redelivery_after_a_seek_is_no_first_delivery(b: Builder) -> Expected:
    sub, message = leased(b)
    b.seek(sub, to=0, at=3)
    b.reset(sub, message, at=4)
    b.deliver(sub, message, at=12)
    b.nack(sub, message, at=13)
    b.deliver(sub, message, at=14)
    row = {"first_seq": None, "first_us": None, "last_us": b.us(14), "deliveries": 2}
    return Expected(sub, facts={(message, 1): row})


# -- drops, dead letters, filters -------------------------------------------------------------------------


@scenario
def a_bulk_drop_takes_what_waits_and_not_what_is_leased(b: Builder) -> Expected:
    sub, held = leased(b)
    waits = b.publish(b.topic_of(sub), at=3)
    b.deliver(sub, waits, at=3)
    b.nack(sub, waits, at=4)
    b.bulk_drop(sub, before=4, at=5)
    b.ack(sub, waits, at=6)  # as after a seek that acknowledged it
    b.ack(sub, held, at=7)
    facts = {(held, 0): {"gone_us": None, "acks": 1}, (waits, 0): {"gone_us": b.us(5), "owed": True}}
    return Expected(sub, facts=facts)


@scenario
def a_bulk_drop_takes_what_was_published_before_the_cut_off_and_nothing_else(b: Builder) -> Expected:
    sub, older = leased(b)
    b.nack(sub, older, at=2)
    newer = b.publish(b.topic_of(sub), at=3)
    b.deliver(sub, newer, at=3)
    b.nack(sub, newer, at=4)
    b.bulk_drop(sub, before=3, at=5)
    b.deliver(sub, newer, at=6)
    facts = {(older, 0): {"gone_us": b.us(5)}, (newer, 0): {"gone_us": None}}
    return Expected(sub, facts=facts)


@scenario
def a_bulk_drop_does_not_take_what_is_acked(b: Builder) -> Expected:
    sub, message = leased(b)
    b.ack(sub, message, at=3)
    b.bulk_drop(sub, before=5, at=5)
    seq = b.ack(sub, message, at=6)
    return Expected(sub, [("G3_repeat_accepted", seq)], {(message, 0): {"gone_us": None}})


@scenario
def after_a_drop_the_last_ack_id_may_be_acked_and_not_extended(b: Builder) -> Expected:
    sub, message = leased(b)
    b.expire(sub, message)
    b.drop(sub, message, at=13)
    extend = b.extend(sub, message, at=14)
    b.ack(sub, message, at=15)
    row = {"gone_us": b.us(13), "ack_us": b.us(15)}
    return Expected(sub, [("G3_invalid_accepted", extend)], {(message, 0): row})


@scenario
def a_detachment_voids_the_leases_and_takes_everything(b: Builder) -> Expected:
    sub, message = leased(b)
    b.reset(sub, message, at=3)
    b.detach(sub, at=3)
    b.ack(sub, message, at=4, result=PERMANENT)
    return Expected(sub, facts={(message, 0): {"gone_us": b.us(3), "resets": 1, "owed": True}})


@scenario
def a_dead_letter_is_gone_and_its_ack_id_is_dead(b: Builder) -> Expected:
    dead = b.topic("dead letters", at=0)
    sub, message = leased(b, dead_letter=(dead, 5))
    b.expire(sub, message)
    b.deadletter(sub, message, at=12, topic=dead)
    b.ack(sub, message, at=13, result=PERMANENT)
    seq = b.ack(sub, message, at=14)
    row = {"gone_us": b.us(12), "owed": True}
    return Expected(sub, [("G3_invalid_accepted", seq)], {(message, 0): row})


@scenario
def a_dead_letter_that_is_kept_comes_back(b: Builder) -> Expected:
    dead = b.topic("dead letters that come back", at=0)
    sub, message = leased(b, dead_letter=(dead, 5), retain_acked=True)
    b.expire(sub, message)
    b.deadletter(sub, message, at=12, topic=dead)
    b.seek(sub, to=0, at=13)
    b.deliver(sub, message, at=14)
    b.ack(sub, message, at=15)
    facts = {(message, 0): {"gone_us": b.us(12)}, (message, 1): {"gone_us": None, "owed": True}}
    return Expected(sub, facts=facts)


@scenario
def a_filtered_message_is_not_owed(b: Builder) -> Expected:
    sub = b.subscription("choosy", at=0, filter='attributes:"x"')
    message = b.publish(b.topic_of(sub), at=1)
    b.filtered(sub, message, at=1)
    row = {"owed": False, "gone_us": b.us(1), "deliveries": 0, "pub_us": b.us(1), "first_seq": None}
    return Expected(sub, facts={(message, 0): row})


# -- where a message belongs ------------------------------------------------------------------------------


@scenario
def the_ordering_key_is_known_though_refusals_do_not_carry_it(b: Builder) -> Expected:
    sub = b.subscription("keyed", at=0, ordered=True)
    message = b.publish(b.topic_of(sub), at=1, key="k")
    b.deliver(sub, message, at=2)
    okey = b.events[-1]["okey"]
    b.seek(sub, to=0, at=3)
    b.expire(sub, message)
    b.ack(sub, message, at=13, result=PERMANENT)
    facts = {(message, epoch): {"okey": okey} for epoch in (0, 1)}
    return Expected(sub, facts=facts)


@scenario
def each_subscription_of_a_topic_is_judged_by_itself(b: Builder) -> Expected:
    sub, message = leased(b)
    other = b.subscription("another of the same topic", b.topic_of(sub), at=0.5)
    b.ack(sub, message, at=3)
    b.deliver(other, message, at=4)
    b.ack(other, message, at=5)
    seq = b.deliver(sub, message, at=6)
    return Expected(sub, [("G1_delivered_after_ack", seq)], {(message, 0): {"deliveries": 2, "acks": 1}})


@scenario
def events_of_an_epoch_are_counted_in_its_row(b: Builder) -> Expected:
    sub, message = leased(b)
    b.extend(sub, message, at=3)
    b.extend(sub, message, at=4)
    b.nack(sub, message, at=5)
    b.seek(sub, to=0, at=6)
    b.deliver(sub, message, at=7)
    b.expire(sub, message)
    b.deliver(sub, message, at=18)
    b.ack(sub, message, at=19, result=TRANSIENT)
    b.ack(sub, message, at=20)
    facts = {
        (message, 0): {"deliveries": 1, "attempts": 1, "extends": 2, "nacks": 1, "expires": 0, "acks": 0},
        (message, 1): {
            "deliveries": 2,
            "attempts": 3,
            "extends": 0,
            "nacks": 0,
            "expires": 1,
            "acks": 1,
            "ack_fails": 1,
            "first_us": b.us(7),
            "last_us": b.us(18),
            "ack_us": b.us(20),
        },
    }
    return Expected(sub, facts=facts)
