"""What the audit has to say of a few events: one subscription each, all in one journal.

A scene writes its events and returns its subscription, what the backlog file says of it, and everything
that the audit has to find: code and message. What G1 to G3 are about has its own examples, in `scenarios`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analytics.layout import Result
from tests.analytics.generator.builder import Builder


@dataclass
class Scene:
    sub: int
    found: tuple[tuple[str, int], ...] = ()  # code, message
    backlog: tuple[int, ...] = ()
    verdict: str = "ok"
    counts: dict[str, int] | None = None  # of audit_summary


Write = Callable[[Builder], Scene]
SCENES: dict[str, Write] = {}


def scene(write: Write) -> Write:
    SCENES[write.__name__] = write
    return write


def lost(sub: int, *messages: int, backlog: tuple[int, ...] = ()) -> Scene:
    return Scene(sub, tuple(("G4_lost", message) for message in messages), backlog, "violated")


def ghost(sub: int, *messages: int, backlog: tuple[int, ...] = ()) -> Scene:
    found = tuple(("G4_ghost", message) for message in messages)
    return Scene(sub, found, (*messages, *backlog), "violated")


def journal() -> tuple[Builder, dict[str, Scene]]:
    builder, scenes = Builder(), {}
    for name, write in SCENES.items():
        builder.begin()
        scenes[name] = write(builder)
    return builder, scenes


def new(b: Builder, messages: int = 0, **settings: Any) -> tuple[int, list[int]]:
    """A subscription of its own topic, and messages published at 1, 2, 3... s."""
    sub = b.subscription(f"scene-{len(b.events)}", at=0, **settings)
    return sub, [b.publish(b.topic_of(sub), at=1 + number) for number in range(messages)]


def keyed(b: Builder, messages: int, key: str = "k", **settings: Any) -> tuple[int, list[int]]:
    """The same with message ordering and one ordering key."""
    sub = b.subscription(f"scene-{len(b.events)}", at=0, **{"ordered": True, **settings})
    return sub, [b.publish(b.topic_of(sub), at=1 + number, key=key) for number in range(messages)]


# -- G4 without seeks -------------------------------------------------------------------------------------


@scene
def what_is_acked_or_waits_is_where_it_belongs(b: Builder) -> Scene:
    sub, (acked, leased, waiting) = new(b, 3)
    b.deliver(sub, acked, at=5)
    b.deliver(sub, leased, at=5)
    b.ack(sub, acked, at=6)
    counts = {"messages": 3, "deliveries": 2, "acks_ok": 1, "open": 2, "partial": 0, "G4_lost": 0}
    return Scene(sub, backlog=(leased, waiting), counts=counts)


@scene
def a_subscription_without_messages_owes_nothing(b: Builder) -> Scene:
    sub, _ = new(b)
    return Scene(sub, counts={"messages": 0, "open": 0})


@scene
def what_was_never_delivered_and_is_not_in_the_backlog_is_lost(b: Builder) -> Scene:
    sub, (first, second, third) = new(b, 3)
    b.deliver(sub, first, at=5)
    b.ack(sub, first, at=6)
    return lost(sub, second, backlog=(third,))


@scene
def what_was_lost_minutes_ago_is_found_between_minutes_in_order(b: Builder) -> Scene:
    sub, _ = new(b)
    messages = [b.publish(b.topic_of(sub), at=30 * number) for number in range(1, 12)]
    for number, message in enumerate(messages):
        if number != 5:
            b.deliver(sub, message, at=400 + number)
            b.ack(sub, message)
    return lost(sub, messages[5])


@scene
def a_delivery_without_an_end_that_is_not_in_the_backlog_is_lost(b: Builder) -> Scene:
    sub, (leased, nacked, expired, refused) = new(b, 4)
    for message in (leased, nacked, expired, refused):
        b.deliver(sub, message, at=5)
    b.nack(sub, nacked, at=6)
    b.expire(sub, expired, at=15)
    b.expire(sub, refused, at=15)
    b.ack(sub, refused, at=16, result=Result.PERMANENT)
    return lost(sub, leased, nacked, expired, refused)


@scene
def what_is_acked_and_in_the_backlog_is_a_ghost(b: Builder) -> Scene:
    sub, (acked, waiting) = new(b, 2)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    return ghost(sub, acked, backlog=(waiting,))


@scene
def what_was_never_published_is_a_ghost(b: Builder) -> Scene:
    sub, (waiting,) = new(b, 1)
    return ghost(sub, 10_000_000, backlog=(waiting,))


@scene
def what_was_published_before_the_subscription_is_not_owed(b: Builder) -> Scene:
    topic = b.topic("early", at=0)
    b.publish(topic, at=1)
    b.publish(topic, at=2)
    # In the same microsecond, and before it in seq.
    sub = b.subscription("early", topic=topic, at=2)
    owed = b.publish(topic, at=2)
    return Scene(sub, backlog=(owed,), counts={"messages": 1, "open": 1})


@scene
def what_was_published_before_the_subscription_is_a_ghost_in_its_backlog(b: Builder) -> Scene:
    topic = b.topic("earlier", at=0)
    early = b.publish(topic, at=1)
    sub = b.subscription("earlier", topic=topic, at=2)
    return ghost(sub, early)


@scene
def what_left_for_the_dead_letter_topic_is_gone_here_and_owed_there(b: Builder) -> Scene:
    dead = b.topic("dead", at=0)
    sub, (forwarded, waiting) = new(b, 2, dead_letter=(dead, 5))
    b.deliver(sub, forwarded, at=5)
    b.nack(sub, forwarded, at=6)
    b.deadletter(sub, forwarded, at=6, topic=dead)
    return Scene(sub, backlog=(waiting,), counts={"dead_lettered": 1, "dropped": 0, "messages": 2, "open": 1})


@scene
def a_copy_in_the_dead_letter_topic_can_be_lost(b: Builder) -> Scene:
    dead = b.topic("dead-2", at=0)
    reader = b.subscription("dead-2-reader", topic=dead, at=0)
    sub, (forwarded,) = new(b, 1, dead_letter=(dead, 5))
    b.deliver(sub, forwarded, at=5)
    b.nack(sub, forwarded, at=6)
    copy = b.deadletter(sub, forwarded, at=6, topic=dead)
    return lost(reader, copy)


@scene
def a_forwarded_message_in_the_backlog_is_a_ghost(b: Builder) -> Scene:
    dead = b.topic("dead-3", at=0)
    sub, (forwarded,) = new(b, 1, dead_letter=(dead, 5))
    b.deliver(sub, forwarded, at=5)
    b.nack(sub, forwarded, at=6)
    b.deadletter(sub, forwarded, at=6, topic=dead)
    return ghost(sub, forwarded)


@scene
def what_the_filter_rejects_is_not_owed(b: Builder) -> Scene:
    sub, (rejected, waiting) = new(b, 2, filter="attributes:x")
    b.filtered(sub, rejected, at=5)
    return Scene(sub, backlog=(waiting,), counts={"filtered": 1, "messages": 1, "dropped": 0})


@scene
def what_the_filter_rejects_is_a_ghost_in_the_backlog(b: Builder) -> Scene:
    sub, (rejected,) = new(b, 1, filter="attributes:x")
    b.filtered(sub, rejected, at=5)
    return ghost(sub, rejected)


@scene
def retention_takes_what_is_older_and_not_leased(b: Builder) -> Scene:
    sub, (leased, nacked, _waiting, younger) = new(b, 4)
    b.deliver(sub, leased, at=5, lease_s=600)
    b.deliver(sub, nacked, at=5)
    b.nack(sub, nacked, at=6)
    b.bulk_drop(sub, before=3.5, at=10)
    return Scene(sub, backlog=(leased, younger), counts={"dropped": 2, "messages": 4, "open": 2})


@scene
def retention_does_not_excuse_the_loss_of_what_is_younger_or_leased(b: Builder) -> Scene:
    sub, (leased, _older, younger) = new(b, 3)
    b.deliver(sub, leased, at=5, lease_s=600)
    b.bulk_drop(sub, before=2.5, at=10)
    return lost(sub, leased, younger)


@scene
def what_retention_took_is_a_ghost_in_the_backlog(b: Builder) -> Scene:
    sub, (never_delivered, nacked) = new(b, 2)
    b.deliver(sub, nacked, at=5)
    b.nack(sub, nacked, at=6)
    b.bulk_drop(sub, before=5, at=10)
    return ghost(sub, never_delivered, nacked)


@scene
def a_detached_subscription_owes_nothing(b: Builder) -> Scene:
    sub, (leased, _waiting) = new(b, 2)
    b.deliver(sub, leased, at=5)
    b.reset(sub, leased, at=6)
    b.detach(sub, at=6)
    b.publish(b.topic_of(sub), at=7)
    return Scene(sub, counts={"open": 0, "dropped": 2, "messages": 2})


@scene
def a_deleted_subscription_owes_nothing(b: Builder) -> Scene:
    sub, (_waiting,) = new(b, 1)
    b.delete(sub, at=6)
    return Scene(sub, counts={"open": 0})


@scene
def the_backlog_of_a_deleted_subscription_is_of_ghosts(b: Builder) -> Scene:
    sub, (waiting,) = new(b, 1)
    b.delete(sub, at=6)
    return ghost(sub, waiting)


@scene
def without_exactly_once_a_loss_is_a_violation_as_well(b: Builder) -> Scene:
    sub, (message,) = new(b, 1, exactly_once=False)
    return lost(sub, message)


# -- G4 over seeks ----------------------------------------------------------------------------------------


@scene
def acked_and_kept_comes_back_and_is_owed(b: Builder) -> Scene:
    sub, (first, second) = new(b, 2, retain_acked=True)
    for message in (first, second):
        b.deliver(sub, message, at=5)
        b.ack(sub, message, at=6)
    b.seek(sub, to=1.5, at=10)
    return Scene(sub, backlog=(second,), counts={"messages": 2, "open": 1})


@scene
def acked_and_kept_comes_back_and_can_be_lost(b: Builder) -> Scene:
    sub, (first, second) = new(b, 2, retain_acked=True)
    for message in (first, second):
        b.deliver(sub, message, at=5)
        b.ack(sub, message, at=6)
    b.seek(sub, to=1.5, at=10)
    return lost(sub, second)


@scene
def acked_and_not_kept_does_not_come_back(b: Builder) -> Scene:
    sub, (acked, waiting) = new(b, 2)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    b.seek(sub, to=0.5, at=10)
    return Scene(sub, backlog=(waiting,))


@scene
def acked_and_not_kept_is_a_ghost_in_the_backlog(b: Builder) -> Scene:
    sub, (acked,) = new(b, 1)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    b.seek(sub, to=0.5, at=10)
    return ghost(sub, acked)


@scene
def of_one_moment_some_are_kept_and_some_are_not(b: Builder) -> Scene:
    sub, _ = new(b)
    topic = b.topic_of(sub)
    first, second = b.publish(topic, at=1), b.publish(topic, at=1)
    for message in (first, second):
        b.deliver(sub, message, at=2)
        b.ack(sub, message, at=3)
    b.seek(sub, to=0, at=10, kept_from=1, kept_after_id=first)
    return lost(sub, second)


@scene
def a_seek_into_the_future_acknowledges_what_waits(b: Builder) -> Scene:
    sub, (_waiting, leased) = new(b, 2)
    b.deliver(sub, leased, at=5)
    b.seek(sub, to=1000, at=10)
    b.ack(sub, leased, at=11)
    later = b.publish(b.topic_of(sub), at=12)
    return Scene(sub, backlog=(later,), counts={"messages": 3, "open": 1})


@scene
def what_a_seek_acknowledged_is_a_ghost_in_the_backlog(b: Builder) -> Scene:
    sub, (waiting, leased, acked) = new(b, 3)
    b.deliver(sub, leased, at=5)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    b.seek(sub, to=7, at=10)
    return ghost(sub, waiting, leased, acked)


@scene
def a_message_of_the_very_target_is_owed(b: Builder) -> Scene:
    sub, (_before, at_target) = new(b, 2)
    b.seek(sub, to=2, at=10)
    return lost(sub, at_target)


@scene
def a_lease_carried_over_a_seek_is_owed(b: Builder) -> Scene:
    sub, (leased,) = new(b, 1)
    b.deliver(sub, leased, at=5)
    b.seek(sub, to=0.5, at=6)
    return Scene(sub, backlog=(leased,))


@scene
def a_lease_carried_over_a_seek_can_be_lost(b: Builder) -> Scene:
    sub, (leased, expired) = new(b, 2)
    b.deliver(sub, leased, at=5)
    b.deliver(sub, expired, at=5)
    b.seek(sub, to=0.5, at=6)
    b.expire(sub, expired)
    return lost(sub, leased, expired)


@scene
def a_lease_carried_over_a_seek_is_safe_from_retention(b: Builder) -> Scene:
    sub, (leased, nacked) = new(b, 2)
    b.deliver(sub, leased, at=5, lease_s=600)
    b.deliver(sub, nacked, at=5)
    b.nack(sub, nacked, at=5.5)
    b.seek(sub, to=0.5, at=6)
    b.bulk_drop(sub, before=5, at=7)
    return Scene(sub, backlog=(leased,), counts={"dropped": 1})


@scene
def what_one_seek_acknowledged_another_brings_back_if_it_is_kept(b: Builder) -> Scene:
    sub, (_first, second) = new(b, 2, retain_acked=True)
    b.seek(sub, to=100, at=10)
    b.seek(sub, to=0.5, at=11, kept_from=1.5)
    return lost(sub, second)


@scene
def what_was_published_before_the_subscription_comes_with_a_seek_if_it_is_kept(b: Builder) -> Scene:
    topic = b.topic("kept", at=0)
    _too_old, kept = b.publish(topic, at=1), b.publish(topic, at=2)
    sub = b.subscription("kept", topic=topic, at=3)
    b.seek(sub, to=0, at=4, kept_from=1.5)
    return Scene(sub, backlog=(kept,), counts={"messages": 1, "open": 1})


@scene
def what_was_published_before_the_subscription_and_came_with_a_seek_can_be_lost(b: Builder) -> Scene:
    topic = b.topic("kept-2", at=0)
    _too_old, kept = b.publish(topic, at=1), b.publish(topic, at=2)
    sub = b.subscription("kept-2", topic=topic, at=3)
    b.seek(sub, to=0, at=4, kept_from=1.5)
    return lost(sub, kept)


@scene
def what_the_filter_rejected_does_not_come_back(b: Builder) -> Scene:
    sub, (rejected, acked) = new(b, 2, filter="attributes:x", retain_acked=True)
    b.filtered(sub, rejected, at=5)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    b.seek(sub, to=0.5, at=10)
    return Scene(sub, backlog=(acked,))


@scene
def what_a_seek_to_a_snapshot_owes_is_not_checked(b: Builder) -> Scene:
    sub, (acked, _waiting) = new(b, 2)
    snapshot = b.snapshot(sub, "s1", at=3)
    b.deliver(sub, acked, at=5)
    b.ack(sub, acked, at=6)
    b.seek_snapshot(sub, snapshot, at=7)
    return Scene(sub, verdict="not_checked")


@scene
def after_a_snapshot_a_seek_to_a_time_settles_what_is_kept(b: Builder) -> Scene:
    sub, (_not_kept, kept) = new(b, 2, retain_acked=True)
    snapshot = b.snapshot(sub, "s2", at=3)
    b.deliver(sub, kept, at=5)
    b.ack(sub, kept, at=6)
    b.seek_snapshot(sub, snapshot, at=7)
    b.seek(sub, to=0, at=8, kept_from=1.5)
    return lost(sub, kept)


@scene
def after_a_snapshot_what_is_not_kept_stays_uncertain(b: Builder) -> Scene:
    sub, (there, _absent) = new(b, 2)
    snapshot = b.snapshot(sub, "s3", at=3)
    b.seek_snapshot(sub, snapshot, at=7)
    b.seek(sub, to=0, at=8)
    return Scene(sub, backlog=(there,))


# -- G5 ---------------------------------------------------------------------------------------------------


@scene
def messages_of_a_key_come_in_the_order_of_publishing(b: Builder) -> Scene:
    sub, messages = keyed(b, 3)
    for message in messages:
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    return Scene(sub)


@scene
def a_delivery_before_an_earlier_one_of_its_key_is_found(b: Builder) -> Scene:
    sub, (first, second, third) = keyed(b, 3)
    for message in (second, first, third):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    return Scene(sub, (("G5_out_of_order", second),), verdict="violated")


@scene
def keys_do_not_wait_for_each_other(b: Builder) -> Scene:
    sub, (first, second) = keyed(b, 2)
    other = b.publish(b.topic_of(sub), key="other", at=3)
    without = [b.publish(b.topic_of(sub), at=4 + number) for number in range(2)]
    for message in (without[1], other, first, without[0], second):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    return Scene(sub)


@scene
def without_message_ordering_keys_mean_nothing(b: Builder) -> Scene:
    sub, (first, second) = keyed(b, 2, ordered=False)
    for message in (second, first):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    return Scene(sub)


@scene
def order_is_promised_without_exactly_once_as_well(b: Builder) -> Scene:
    sub, (first, second) = keyed(b, 2, exactly_once=False)
    for message in (second, first):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    return Scene(sub, (("G5_out_of_order", second),), verdict="violated")


@scene
def a_delivery_past_one_that_still_waits_is_found(b: Builder) -> Scene:
    sub, (first, second, third) = keyed(b, 3)
    b.deliver(sub, second, at=10)
    b.ack(sub, second)
    return Scene(sub, (("G5_skipped", second),), (first, third), "violated")


@scene
def what_left_unseen_holds_its_key_up_no_more(b: Builder) -> Scene:
    sub, (_dropped, rejected, third) = keyed(b, 3, filter="attributes:x")
    b.bulk_drop(sub, before=1.5, at=9)
    b.filtered(sub, rejected, at=9)
    b.deliver(sub, third, at=10)
    b.ack(sub, third)
    return Scene(sub)


@scene
def what_left_unseen_only_later_was_skipped(b: Builder) -> Scene:
    sub, (_dropped, second) = keyed(b, 2)
    b.deliver(sub, second, at=10)
    b.ack(sub, second)
    b.bulk_drop(sub, before=1.5, at=12)
    return Scene(sub, (("G5_skipped", second),), verdict="violated")


@scene
def each_epoch_has_an_order_of_its_own(b: Builder) -> Scene:
    sub, (first, second) = keyed(b, 2, retain_acked=True)
    for message in (first, second):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    b.seek(sub, to=0, at=20)
    for message in (first, second):
        b.deliver(sub, message, at=21)
        b.ack(sub, message)
    return Scene(sub, counts={"messages": 2, "deliveries": 4, "open": 0})


@scene
def what_a_seek_brought_back_comes_in_order_as_well(b: Builder) -> Scene:
    sub, (first, second, third) = keyed(b, 3, retain_acked=True)
    for message in (first, second, third):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    b.seek(sub, to=0, at=20)
    b.deliver(sub, second, at=21)
    b.ack(sub, second)
    b.deliver(sub, first, at=22)
    b.ack(sub, first)
    return Scene(sub, (("G5_out_of_order", second),), (third,), "violated")


@scene
def what_a_seek_brought_back_is_not_passed_over(b: Builder) -> Scene:
    sub, (first, second) = keyed(b, 2, retain_acked=True)
    for message in (first, second):
        b.deliver(sub, message, at=10)
        b.ack(sub, message)
    b.seek(sub, to=0, at=20)
    b.deliver(sub, second, at=21)
    return Scene(sub, (("G5_skipped", second),), (first, second), "violated")


@scene
def what_a_seek_did_not_bring_back_is_not_waited_for(b: Builder) -> Scene:
    sub, (acked, second) = keyed(b, 2)
    b.deliver(sub, acked, at=10)
    b.ack(sub, acked)
    b.seek(sub, to=0, at=20)
    b.deliver(sub, second, at=21)
    return Scene(sub, backlog=(second,))


@scene
def a_lease_carried_over_a_seek_counts_as_delivered(b: Builder) -> Scene:
    sub, (leased, second) = keyed(b, 2)
    b.deliver(sub, leased, at=10)
    b.seek(sub, to=0, at=11)
    b.deliver(sub, second, at=12)
    return Scene(sub, backlog=(leased, second))


@scene
def a_lease_carried_over_a_seek_may_end_and_be_redelivered(b: Builder) -> Scene:
    sub, (leased, second) = keyed(b, 2)
    b.deliver(sub, leased, at=10)
    b.seek(sub, to=0, at=11)
    b.deliver(sub, second, at=12)
    b.expire(sub, leased)
    b.reset(sub, second)
    b.deliver(sub, leased, at=25)
    b.deliver(sub, second, at=26)
    return Scene(sub, backlog=(leased, second))


@scene
def a_failure_takes_what_is_behind_it_along(b: Builder) -> Scene:
    sub, messages = keyed(b, 3)
    for message in messages:
        b.deliver(sub, message, at=10)
    b.nack(sub, messages[0], at=11)
    for message in messages[1:]:
        b.reset(sub, message)
    for message in messages:
        b.deliver(sub, message, at=21)
        b.ack(sub, message)
    return Scene(sub)


@scene
def after_a_redelivery_the_next_message_of_the_key_follows(b: Builder) -> Scene:
    sub, messages = keyed(b, 3)
    for message in messages:
        b.deliver(sub, message, at=10)
    b.nack(sub, messages[0], at=11)
    for message in messages[1:]:
        b.reset(sub, message)
    for message in (messages[0], messages[2], messages[1]):
        b.deliver(sub, message, at=21)
    return Scene(sub, (("G5_redelivery_gap", messages[2]),), tuple(messages), "violated")


@scene
def what_is_acked_already_need_not_follow_a_redelivery(b: Builder) -> Scene:
    sub, messages = keyed(b, 3, exactly_once=False)
    for message in messages:
        b.deliver(sub, message, at=10)
    b.nack(sub, messages[0], at=11)
    b.reset(sub, messages[1])
    b.reset(sub, messages[2])
    b.ack(sub, messages[1], at=12)
    b.deliver(sub, messages[0], at=21)
    b.deliver(sub, messages[2], at=22)
    return Scene(sub, backlog=(messages[0], messages[2]))


@scene
def a_redelivery_may_be_followed_by_what_is_new(b: Builder) -> Scene:
    sub, messages = keyed(b, 4)
    b.deliver(sub, messages[0], at=10, lease_s=600)
    b.deliver(sub, messages[1], at=10)
    b.expire(sub, messages[1])
    b.deliver(sub, messages[1], at=21)
    b.nack(sub, messages[1], at=22)
    b.deliver(sub, messages[1], at=23)
    b.deliver(sub, messages[2], at=24)
    return Scene(sub, backlog=tuple(messages))


# -- G0, and how grave a finding is -----------------------------------------------------------------------


@scene
def what_a_suspicious_message_refers_to_is_checked(b: Builder) -> Scene:
    sub, (message,) = new(b, 1)
    b.deliver(sub, message, at=5)
    b.nack(sub, message, at=6)
    b.deliver(sub, message, at=7, ref_ts_us=b.us(1) + 5)
    b.ack(sub, message, at=8, ref_ts_us=b.us(5))
    b.deliver(sub, message, at=9)
    found = (("G0_reference", message), ("G0_reference", message), ("G1_delivered_after_ack", message))
    return Scene(sub, found, verdict="violated", counts={"G0_reference": 2})


@scene
def without_exactly_once_a_delivery_after_the_ack_is_a_note(b: Builder) -> Scene:
    sub, (message,) = new(b, 1, exactly_once=False)
    b.deliver(sub, message, at=5)
    b.ack(sub, message, at=6)
    b.deliver(sub, message, at=7)
    return Scene(sub, (("G1_delivered_after_ack", message),), counts={"G1_delivered_after_ack": 1})


@scene
def the_setting_of_that_moment_makes_it_a_violation(b: Builder) -> Scene:
    sub, (first, second) = new(b, 2)
    b.config(sub_id=sub, at=3, enable_exactly_once_delivery=False)
    b.deliver(sub, first, at=5)
    b.ack(sub, first, at=6)
    b.deliver(sub, first, at=7)
    b.config(sub_id=sub, at=8, enable_exactly_once_delivery=True)
    b.deliver(sub, second, at=9)
    b.ack(sub, second, at=10)
    b.deliver(sub, second, at=11)
    found = (("G1_delivered_after_ack", first), ("G1_delivered_after_ack", second))
    return Scene(sub, found, verdict="violated", counts={"G1_delivered_after_ack": 2})


@scene
def a_repeated_ack_that_is_recorded_as_done_is_a_note(b: Builder) -> Scene:
    sub, (message,) = new(b, 1)
    b.deliver(sub, message, at=5)
    b.ack(sub, message, at=6)
    b.ack(sub, message, at=7)
    return Scene(sub, (("G3_repeat_accepted", message),))


@scene
def a_late_ack_without_exactly_once_is_right(b: Builder) -> Scene:
    sub, (message,) = new(b, 1, exactly_once=False)
    b.deliver(sub, message, at=5)
    b.expire(sub, message)
    b.ack(sub, message, at=20)
    return Scene(sub)


@scene
def a_restart_between_lease_and_redelivery_exempts_nothing(b: Builder) -> Scene:
    sub, (message,) = new(b, 1)
    b.deliver(sub, message, at=5)
    b.start(at=6, clean=False)
    b.deliver(sub, message, at=7)
    return Scene(sub, (("G2_early_redelivery", message),), (message,), "violated")
