"""How long a message rests after it failed, before it is delivered again.

Source: Subscription.retry_policy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.eod.lease import Lease
from pubsubd.model import limits
from pubsubd.wire import pb
from tests.unit.broker.world import SECOND, START_US, SUBSCRIPTION, World, check, serve, survives


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """Ten seconds after the first failure, and never more than a minute."""
    world.create_subscription(exactly_once=request.param, retry_policy=policy(10, 60))
    world.turn()
    return world


@pytest.fixture(autouse=True)
def checked(world: World) -> Iterator[None]:
    yield
    check(world.broker)


def policy(minimum: float, maximum: float) -> pb.RetryPolicy:
    def duration(seconds: float) -> pb.Duration:
        return pb.Duration(seconds=int(seconds), nanos=round(seconds % 1 * 1e9))

    return pb.RetryPolicy(minimum_backoff=duration(minimum), maximum_backoff=duration(maximum))


def rests(world: World, seconds: float) -> Lease:
    """Nothing is delivered for that long, up to and including the last microsecond; then one message is."""
    world.now_us += round(seconds * SECOND)
    assert world.pull() == []
    world.now_us += 1
    (lease,) = world.pull()
    return lease


def test_the_rest_doubles_from_nack_to_nack_up_to_its_maximum(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    for seconds in (10, 20, 40, 60, 60):
        both.nack([lease.ack_id])
        lease = rests(both, seconds)

    assert (lease.generation, lease.attempt) == (6, 6)


def test_the_rest_counts_from_the_deadline_and_not_from_when_it_was_noticed(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.now_us = lease.deadline_us + 3 * SECOND
    both.turn()

    assert rests(both, 7).generation == 2


def test_a_nack_and_a_deadline_count_alike(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    lease = rests(both, 10)
    both.now_us = lease.deadline_us + 1
    both.turn()
    both.now_us = lease.deadline_us

    rests(both, 20)


def test_each_message_rests_by_itself(both: World) -> None:
    both.publish(b"a", b"b", b"c")
    first, second, _ = both.pull()
    both.nack([first.ack_id])
    both.advance(5)
    both.nack([second.ack_id])
    both.publish(b"d")
    assert [lease.message_id for lease in both.pull()] == [4]

    both.modify_ack_deadline([lease.ack_id for lease in both.subscription().leases], 600)
    assert rests(both, 5).message_id == 1
    assert both.now_us == START_US + 10 * SECOND + 1
    both.advance(us=-1)
    assert rests(both, 5).message_id == 2


def test_a_message_that_has_rested_is_delivered_by_itself(both: World) -> None:
    consumer = both.open_stream(seconds=600)
    both.publish(b"a")
    serve(both, consumer)
    both.nack(consumer.shell.ack_ids)
    both.settle()
    assert both.broker.next_deadline_us() == both.now_us + 10 * SECOND

    both.broker.set_ready(consumer)
    both.advance(10, us=1)
    both.settle()
    assert consumer.shell.message_ids == [1, 1]


def test_a_fraction_of_a_second_is_one(world: World) -> None:
    world.create_subscription(retry_policy=policy(0.25, 600))
    world.publish(b"a")
    (lease,) = world.pull()
    for seconds in (0.25, 0.5, 1):
        world.nack([lease.ack_id])
        lease = rests(world, seconds)


def test_with_a_minimum_of_zero_nothing_rests(world: World) -> None:
    world.create_subscription(retry_policy=policy(0, 600))
    world.publish(b"a")
    for attempt in (1, 2, 3, 4):
        (lease,) = world.pull()
        assert lease.attempt == attempt
        world.nack([lease.ack_id])


def test_the_defaults_are_ten_seconds_and_ten_minutes(world: World) -> None:
    world.create_subscription(retry_policy=pb.RetryPolicy())
    world.publish(b"a")
    (lease,) = world.pull()
    for seconds in (10, 20, 40, 80, 160, 320, 600, 600):
        world.nack([lease.ack_id])
        lease = rests(world, seconds)


def test_an_update_is_for_failures_after_it(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.update(retry_policy=policy(1, 1))
    lease = rests(both, 10)

    both.nack([lease.ack_id])
    rests(both, 1)


def test_a_policy_that_goes_ends_no_rest(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.update(clear=["retry_policy"])
    lease = rests(both, 10)

    both.nack([lease.ack_id])
    assert len(both.pull()) == 1


def test_a_seek_ends_a_rest(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.turn()
    both.seek_to_time(START_US - 1)
    survives(both)

    (lease,) = both.pull()
    assert (lease.generation, lease.attempt) == (2, 2), "it was not finished, so it goes on"


def test_a_rest_survives(both: World) -> None:
    both.publish(b"a", b"b")
    for lease in both.pull():
        both.nack([lease.ack_id])
        both.advance(1)
    survives(both)
    assert both.pull() == []

    both.now_us = START_US + 10 * SECOND
    assert both.pull() == []
    both.advance(us=1)
    assert [lease.message_id for lease in both.pull()] == [1]
    both.advance(1)
    assert [lease.message_id for lease in both.pull()] == [2]
    survives(both)


def test_a_failed_commit_ends_no_rest(both: World) -> None:
    both.publish(b"a")
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.turn()
    both.publish(b"b")
    both.begin()
    both.fail()

    assert rests(both, 10).message_id == 1


def test_a_message_that_rests_can_be_acked_without_exactly_once(world: World) -> None:
    world.create_subscription(exactly_once=False, retry_policy=policy(10, 60))
    world.publish(b"a")
    (lease,) = world.pull()
    world.nack([lease.ack_id])
    assert world.acknowledge([lease.ack_id]) == []

    world.advance(11)
    assert world.pull() == []
    assert world.owed() == []


def test_what_a_client_cannot_have_seen_does_not_rest(world: World) -> None:
    """It did not fail."""
    world.create_subscription(exactly_once=False, retry_policy=policy(10, 60))
    consumer = world.open_stream(seconds=60)
    world.publish(b"a", b"b")
    world.settle()
    world.modify_ack_deadline(consumer.shell.ack_ids[:1], 60)
    world.close_stream(consumer)

    assert [(lease.message_id, lease.attempt) for lease in world.pull()] == [(2, 1)]


def test_many_that_rest_cost_one_timer(both: World) -> None:
    both.publish(*[b"x"] * 200)
    both.nack([lease.ack_id for lease in both.pull()])
    before = len(both.broker._timers)
    both.turn()

    assert len(both.broker._timers) <= before + 1
    both.advance(10, us=1)
    assert len(both.pull()) == 200


def test_a_message_that_rested_is_read_if_it_is_not_in_memory(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    consumer = both.open_stream(seconds=600)
    both.publish(b"a", b"b")
    serve(both, consumer)
    both.nack(consumer.shell.ack_ids)
    both.advance(10, us=1)
    serve(both, consumer)

    assert [message.data for message in consumer.shell.messages()] == [b"a", b"b"] * 2


def test_a_deleted_subscription_leaves_no_timer_that_matters(both: World) -> None:
    both.publish(b"a")
    both.nack([lease.ack_id for lease in both.pull()])
    both.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    both.advance(11)
    both.turn()

    assert not both.broker.has_work()
