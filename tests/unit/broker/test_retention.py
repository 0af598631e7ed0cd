"""Messages, subscriptions and snapshots that are past their time.

Source: Subscription.message_retention_duration, Topic.message_retention_duration,
Subscription.retain_acked_messages, ExpirationPolicy.ttl, Snapshot.expire_time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.model import errors, limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import (
    SECOND,
    SNAPSHOT,
    START_US,
    SUBSCRIPTION,
    TOPIC,
    World,
    check,
    serve,
    survives,
)

OTHER = "projects/p/subscriptions/other"
MINUTE = 60
HOUR = 3600
DAY = 24 * HOUR
LATE = limits.RETENTION_STEP_US // SECOND + 1


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """A subscription whose messages are kept for an hour."""
    world.create_subscription(exactly_once=request.param, message_retention_duration=seconds(HOUR))
    world.turn()
    return world


@pytest.fixture(autouse=True)
def checked(world: World) -> Iterator[None]:
    yield
    check(world.broker)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that is committed stays in memory."""
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    yield


def seconds(count: float) -> pb.Duration:
    return pb.Duration(seconds=int(count))


def stored(world: World, topic_id: int = 1) -> list[int]:
    return sorted(world.store.chunks.get(topic_id, {}))


def drops(world: World) -> list[tuple[int, int]]:
    return [(event.message_id, event.aux) for event in world.events(Kind.DROP)]


def ids(world: World, name: str = SUBSCRIPTION) -> list[int]:
    return [lease.message_id for lease in world.pull(name)]


def changes(world: World) -> list[str]:
    details = [json.loads(text) for _, text in sorted(world.store.journal_details.items())]
    return [
        f"{what} {detail['change']}"
        for detail in details
        for what in ("topic", "subscription", "snapshot")
        if what in detail
    ]


def update_topic(world: World, **fields: Any) -> None:
    request = pb.UpdateTopicRequest(
        topic=pb.Topic(name=TOPIC, **fields), update_mask=pb.FieldMask(paths=["message_retention_duration"])
    )
    world.broker.update_topic(request, world.now_us)


# -- messages that nobody acknowledged ---------------------------------------------------------------------


def test_a_message_is_delivered_up_to_its_last_microsecond_and_not_after(both: World) -> None:
    both.publish(b"a")
    both.turn()
    both.advance(HOUR)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.advance(us=1)

    assert ids(both) == []
    both.settle()
    assert both.owed() == []
    assert drops(both) == [(0, START_US + 1)]


def test_what_is_past_its_time_goes_by_itself(both: World) -> None:
    for _ in range(6):
        both.publish(b"x")
        both.turn()
        both.advance(10 * MINUTE)
    assert both.now_us == START_US + HOUR * SECOND
    assert stored(both) == [1, 2, 3, 4, 5, 6]
    for left in range(5, -1, -1):
        both.advance(LATE)
        both.settle()
        assert len(both.owed()) == left
        assert stored(both) == [1, 2, 3, 4, 5, 6][6 - left :]
        both.advance(10 * MINUTE - LATE)

    assert len(drops(both)) == 6
    survives(both)


def test_it_goes_within_a_minute(both: World) -> None:
    both.publish(b"x")
    both.settle()
    due_us = both.broker.next_deadline_us()

    assert due_us is not None
    assert due_us <= START_US + (HOUR + MINUTE) * SECOND
    both.now_us = due_us + 1
    both.settle()
    assert (both.owed(), stored(both)) == ([], [])


def test_many_that_go_are_one_drop(both: World) -> None:
    for _ in range(50):
        both.publish(b"x")
        both.advance(us=1)
        both.turn()
    both.advance(HOUR)
    both.settle()
    both.advance(LATE)
    both.settle()

    assert len(drops(both)) <= 2
    assert both.owed() == []


def test_nothing_is_delivered_before_the_drop_and_what_is_younger_is_after_it(both: World) -> None:
    both.publish(b"old")
    both.turn()
    both.advance(HOUR - 1)
    both.publish(b"young")
    both.turn()
    both.advance(1, us=1)
    consumer = both.open_stream()
    both.turn()
    assert consumer.shell.message_ids == []

    serve(both, consumer)
    assert consumer.shell.message_ids == [2]


@pytest.mark.usefixtures("cold")
def test_what_must_be_read_is_not_delivered_either(both: World) -> None:
    both.publish(b"old")
    both.turn()
    both.advance(HOUR - 1)
    both.publish(b"young")
    both.turn()
    both.crash()
    both.advance(1, us=1)
    consumer = both.open_stream()
    serve(both, consumer)

    assert consumer.shell.message_ids == [2]


def test_a_lease_is_never_cut_short(both: World) -> None:
    both.publish(b"a", b"b", b"c")
    leases = both.pull()
    for _ in range(8):
        both.modify_ack_deadline([lease.ack_id for lease in leases], 600)
        both.advance(10 * MINUTE)
        both.settle()
    assert both.acknowledge([leases[0].ack_id]) == []
    assert both.owed() == [2, 3]
    assert stored(both) == [3]

    both.nack([leases[1].ack_id])
    assert ids(both) == []
    both.settle()
    assert both.owed() == [3], "it has gone when its lease had ended"
    both.advance(us=1)
    both.settle()
    both.advance(LATE)
    both.settle()
    assert (both.owed(), stored(both)) == ([], [])
    assert both.acknowledge([leases[2].ack_id]) == [], "what was asked for is so: it will not come again"
    survives(both)


def test_a_drop_spares_leases_and_takes_their_neighbours(both: World) -> None:
    both.publish(b"a", b"b", b"c")
    first, second, third = both.pull()
    both.advance(5)
    both.nack([first.ack_id, third.ack_id])
    for _ in range(7):
        both.modify_ack_deadline([second.ack_id], 600)
        both.advance(10 * MINUTE)
        both.settle()

    assert both.owed() == [2]
    assert both.acknowledge([second.ack_id]) == []
    survives(both)


def test_a_client_that_comes_after_the_drop_finds_nothing_and_then_what_is_new(both: World) -> None:
    both.publish(b"a")
    both.turn()
    both.advance(2 * HOUR)
    both.settle()
    both.publish(b"b")

    assert ids(both) == [2]


def test_what_rests_or_is_parked_goes_as_well(world: World) -> None:
    world.create_subscription(
        message_retention_duration=seconds(HOUR),
        enable_message_ordering=True,
        retry_policy=pb.RetryPolicy(minimum_backoff=seconds(600)),
    )
    world.publish(b"1", b"2", b"3", ordering_key="k")
    world.publish(b"4", b"5")
    leases = world.pull(max_messages=1)
    assert ids(world) == [4, 5]
    world.nack([leases[0].ack_id, *[lease.ack_id for lease in world.subscription().leases]])
    world.settle()
    survives(world)
    for _ in range(2):
        world.advance(HOUR)
        world.settle()

    assert world.owed() == []
    assert ids(world) == []
    keys = world.subscription().backlog.keys
    assert keys is not None and keys.queued == 0
    survives(world)


@pytest.mark.parametrize("kept", [HOUR, 31 * DAY])
def test_a_retention_that_changes_counts_at_once(both: World, kept: int) -> None:
    both.publish(b"a")
    both.turn()
    both.update(message_retention_duration=seconds(kept))
    both.advance(30 * DAY if kept > HOUR else HOUR)
    both.settle()
    assert both.owed() == [1]

    both.update(message_retention_duration=seconds(10 * MINUTE))
    both.advance(us=1)
    both.settle()
    assert (both.owed(), stored(both)) == ([], [])


def test_a_retention_that_grows_while_storage_is_asked_keeps_what_is_there(both: World) -> None:
    both.publish(b"a")
    both.settle()
    both.advance(HOUR, us=1)
    both.turn()
    assert both.reads, "storage is asked how old its messages are"
    both.update(message_retention_duration=seconds(2 * HOUR))
    both.settle()

    assert both.owed() == [1]


def test_the_longer_retention_counts(both: World) -> None:
    update_topic(both, message_retention_duration=seconds(3 * HOUR))
    both.publish(b"a")
    both.turn()
    both.advance(3 * HOUR)
    both.settle()
    assert both.owed() == [1]

    both.advance(us=1)
    both.settle()
    both.advance(LATE)
    both.settle()
    assert (both.owed(), stored(both)) == ([], [])


def test_with_the_topic_goes_what_it_kept(both: World) -> None:
    update_topic(both, message_retention_duration=seconds(3 * HOUR))
    both.publish(b"a")
    both.turn()
    both.advance(2 * HOUR)
    both.settle()
    assert both.owed() == [1]
    both.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), both.now_us)
    both.advance(us=1)
    both.settle()

    assert (both.owed(), stored(both)) == ([], [])


def test_a_question_that_storage_cannot_answer_is_asked_again(both: World) -> None:
    both.publish(b"a")
    both.turn()
    both.advance(HOUR, us=1)
    both.turn()
    for read in both.reads:
        both.broker.read_failed(read, both.now_us)
    both.reads.clear()
    both.settle()
    assert both.owed() == [1]

    both.advance(LATE)
    both.settle()
    assert both.owed() == []


def test_a_message_that_is_past_its_time_at_the_start_is_not_delivered(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.turn()
    both.crash()
    both.advance(HOUR, us=1)

    assert ids(both) == []
    both.settle()
    assert both.owed() == []
    assert lease.ack_id not in both.subscription().leases.by_ack_id


def test_a_subscription_with_nothing_to_lose_asks_nothing(both: World) -> None:
    both.publish(b"a")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.settle()
    both.advance(HOUR, us=1)
    both.settle()

    assert drops(both) == []


# -- messages that somebody acknowledged -------------------------------------------------------------------


@pytest.mark.parametrize("retain", [False, True])
def test_a_message_that_was_acked_goes_with_its_retention_at_the_latest(both: World, retain: bool) -> None:
    both.update(retain_acked_messages=retain)
    both.publish(b"a")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.settle()
    both.advance(HOUR - 1)
    both.settle()
    assert stored(both) == [1] or not retain

    both.advance(MINUTE)
    both.settle()
    assert stored(both) == []


def test_what_the_topic_keeps_needs_no_subscription(world: World) -> None:
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), world.now_us)
    world.create_topic(message_retention_duration=seconds(HOUR))
    for _ in range(3):
        world.publish(b"x")
        world.turn()
        world.advance(10 * MINUTE)
    assert stored(world, 2) == [1, 2, 3]
    survives(world)

    world.broker.started("0", False, world.now_us)
    world.turn()
    world.advance(30 * MINUTE, us=1)
    world.settle()
    assert stored(world, 2) == [2, 3]
    world.advance(20 * MINUTE)
    world.settle()
    world.advance(LATE)
    world.settle()
    assert stored(world, 2) == []


def test_without_anybody_nothing_is_kept(world: World) -> None:
    world.publish(b"x")
    world.turn()

    assert stored(world) == []


def test_what_a_snapshot_holds_stays(both: World) -> None:
    both.publish(b"a")
    both.turn()
    both.create_snapshot()
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.publish(b"b")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.turn()
    both.broker.started("0", True, both.now_us)
    both.turn()
    assert stored(both) == [1, 2]

    both.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), both.now_us)
    both.turn()
    assert stored(both) == []


def test_a_retention_that_is_switched_off_lets_go(both: World) -> None:
    both.update(retain_acked_messages=True)
    both.publish(b"a")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.turn()
    both.update(retain_acked_messages=False)
    both.turn()

    assert stored(both) == []


def test_a_topic_that_keeps_no_longer_lets_go(both: World) -> None:
    update_topic(both, message_retention_duration=seconds(DAY))
    both.publish(b"a")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.turn()
    assert stored(both) == [1]
    update_topic(both)
    both.turn()

    assert stored(both) == []


def test_rows_go_in_small_steps(world: World) -> None:
    world.store.trim_rows = 3
    world.create_subscription(message_retention_duration=seconds(HOUR))
    for _ in range(10):
        world.publish(b"x")
        world.turn()
    world.advance(HOUR, us=1)
    world.turn()
    world.read()
    left = []
    while stored(world):
        world.publish(b"y", topic=TOPIC)
        world.turn()
        left.append(len([one for one in stored(world) if one <= 10]))
        if len(left) > 8:
            break

    assert left[:4] == [7, 4, 1, 0]


# -- subscriptions -----------------------------------------------------------------------------------------


def never_used(world: World, days: int = 1) -> None:
    world.create_subscription(
        message_retention_duration=seconds(HOUR),
        expiration_policy=pb.ExpirationPolicy(ttl=seconds(days * DAY)),
    )
    world.turn()


def exists(world: World, name: str = SUBSCRIPTION) -> bool:
    try:
        world.broker.get_subscription(pb.GetSubscriptionRequest(subscription=name))
    except errors.NotFound:
        return False
    return True


def test_a_subscription_that_nobody_uses_goes_after_its_time(world: World) -> None:
    never_used(world)
    world.publish(b"a")
    world.turn()
    world.advance(DAY)
    world.settle()
    assert exists(world)

    world.advance(us=1)
    world.settle()
    assert not exists(world)
    assert changes(world)[-1] == "subscription expired"
    assert stored(world) == []
    request = pb.ListTopicSubscriptionsRequest(topic=TOPIC)
    assert list(world.broker.list_topic_subscriptions(request).subscriptions) == []
    survives(world)
    assert not exists(world)


def test_the_default_is_a_month(world: World) -> None:
    world.create_subscription()
    world.turn()
    world.advance(31 * DAY)
    world.settle()
    assert exists(world)
    world.advance(us=1)
    world.settle()

    assert not exists(world)


def test_a_policy_without_a_time_is_for_ever(world: World) -> None:
    world.create_subscription(expiration_policy=pb.ExpirationPolicy())
    world.turn()
    world.advance(10_000 * DAY)
    world.settle()

    assert exists(world)


def pulls(world: World) -> None:
    world.pull()


def acks(world: World) -> None:
    world.acknowledge([lease.ack_id for lease in world.subscription().leases] or ["x" * 40])


def opens_a_stream(world: World) -> None:
    world.close_stream(world.open_stream())


def updates(world: World) -> None:
    world.update(ack_deadline_seconds=20)


def seeks(world: World) -> None:
    world.seek_to_time(START_US)


def takes_a_snapshot(world: World) -> None:
    world.create_snapshot()


@pytest.mark.parametrize("use", [pulls, acks, opens_a_stream, updates, seeks, takes_a_snapshot])
def test_whoever_uses_it_keeps_it(world: World, use: Any) -> None:
    never_used(world)
    world.advance(DAY - 1)
    use(world)
    world.settle()
    world.advance(DAY)
    world.settle()
    assert exists(world)

    world.advance(us=1)
    world.settle()
    assert not exists(world)


def test_whoever_looks_at_it_does_not(world: World) -> None:
    never_used(world)
    world.advance(DAY - 1)
    assert exists(world)
    world.broker.list_subscriptions(pb.ListSubscriptionsRequest(project="projects/p"))
    world.publish(b"a")
    world.settle()
    world.advance(1, us=1)
    world.settle()

    assert not exists(world)


def test_an_open_stream_keeps_it_and_its_end_starts_the_clock(world: World) -> None:
    never_used(world)
    consumer = world.open_stream()
    for _ in range(50):
        world.advance(DAY)
        world.settle()
    assert exists(world)
    world.advance(DAY // 2)
    world.close_stream(consumer)
    world.settle()
    world.advance(DAY)
    world.settle()
    assert exists(world)

    world.advance(us=1)
    world.settle()
    assert not exists(world)


def test_a_restart_forgets_at_most_an_hour_of_use(world: World) -> None:
    never_used(world)
    for _ in range(30):
        world.advance(HOUR // 2)
        world.pull()
    world.turn()
    last_us = world.now_us
    survives(world)
    world.now_us = last_us + DAY * SECOND
    world.settle()
    assert exists(world), "never too early"

    world.advance(HOUR, us=1)
    world.settle()
    assert not exists(world)


def test_use_is_not_written_with_every_call(world: World) -> None:
    never_used(world)
    world.pull()
    world.turn()
    world.advance(1)
    world.broker.close_pull(world.open_pull())
    effects = world.begin()

    assert effects.records == []


def test_a_change_of_the_policy_counts_from_the_change(world: World) -> None:
    never_used(world)
    world.advance(DAY // 2)
    world.update(expiration_policy=pb.ExpirationPolicy(ttl=seconds(2 * DAY)))
    world.advance(2 * DAY)
    world.settle()
    assert exists(world)
    world.update(expiration_policy=pb.ExpirationPolicy(ttl=seconds(DAY)))
    world.advance(DAY, us=1)
    world.settle()

    assert not exists(world)


def test_what_outlives_a_subscription_is_a_detached_one(world: World) -> None:
    """It is used as little, and goes as well."""
    never_used(world)
    world.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.turn()
    world.advance(DAY, us=1)
    world.settle()

    assert not exists(world)


def test_the_last_subscription_takes_a_deleted_topic_with_it(world: World) -> None:
    never_used(world)
    world.publish(b"a")
    world.turn()
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), world.now_us)
    world.turn()
    assert 1 in world.store.topics
    world.advance(DAY, us=1)
    world.settle()

    assert (world.store.topics, stored(world)) == ({}, [])


# -- snapshots ---------------------------------------------------------------------------------------------


def has_snapshot(world: World) -> bool:
    try:
        world.broker.get_snapshot(pb.GetSnapshotRequest(snapshot=SNAPSHOT))
    except errors.NotFound:
        return False
    return True


def test_a_snapshot_goes_after_a_week_and_what_only_it_held(world: World) -> None:
    world.create_subscription()
    world.publish(b"a")
    world.turn()
    world.create_snapshot()
    world.acknowledge([lease.ack_id for lease in world.pull()])
    world.turn()
    world.advance(7 * DAY)
    world.settle()
    assert has_snapshot(world)
    assert stored(world) == [1]

    world.advance(us=1)
    world.settle()
    assert not has_snapshot(world)
    assert changes(world)[-1] == "snapshot expired"
    assert (stored(world), world.store.snapshots) == ([], {})
    survives(world)
    assert not has_snapshot(world)


def test_an_expiry_that_was_moved_counts(world: World) -> None:
    world.create_subscription()
    world.turn()
    world.create_snapshot()
    expire = pb.Timestamp(seconds=START_US // SECOND + 2 * HOUR)
    request = pb.UpdateSnapshotRequest(
        snapshot=pb.Snapshot(name=SNAPSHOT, expire_time=expire),
        update_mask=pb.FieldMask(paths=["expire_time"]),
    )
    world.broker.update_snapshot(request, world.now_us)
    survives(world)
    world.advance(2 * HOUR)
    world.settle()
    assert has_snapshot(world)

    world.advance(us=1)
    world.settle()
    assert not has_snapshot(world)


def test_the_last_snapshot_takes_a_deleted_topic_with_it(world: World) -> None:
    world.create_subscription()
    world.publish(b"a")
    world.turn()
    world.create_snapshot()
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), world.now_us)
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.turn()
    survives(world)
    assert 1 in world.store.topics
    world.advance(7 * DAY, us=1)
    world.settle()

    assert (world.store.topics, stored(world)) == ({}, [])
