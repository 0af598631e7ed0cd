"""Each feature in the middle of its work, and a restart: the state is the same, and what follows as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pubsubd.eod.lease import Lease
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import (
    START_US,
    SUBSCRIPTION,
    World,
    check,
    numbered,
    promised,
    restored,
    serve,
)

OTHER = "projects/p/subscriptions/other"
DEAD = "projects/p/topics/dead-letters"
RED = 'attributes.color = "red"'
# Whatever waits for a moment has its moment among these.
LATER = [0, 1, 4, 6, 11, 30, 61]

Build = Callable[[World, bool], None]


def take(world: World, count: int = 0, name: str = SUBSCRIPTION) -> list[Lease]:
    """What a stream gets that closes afterwards."""
    consumer = world.open_stream(name, max_outstanding_messages=count)
    serve(world, consumer)
    world.close_stream(consumer)
    leases: list[Lease] = consumer.shell.leases
    return leases


def key(world: World, count: int, name: str = "k") -> None:
    world.publish(*numbered(count), ordering_key=name)


def plain(world: World, exactly_once: bool) -> None:
    world.create_subscription(exactly_once=exactly_once)
    world.publish(*numbered(6))
    leases = take(world, 4)
    world.acknowledge([leases[0].ack_id])
    world.nack([leases[1].ack_id])
    world.modify_ack_deadline([leases[2].ack_id], 60)


def collateral(world: World, exactly_once: bool) -> None:
    world.create_subscription(exactly_once=exactly_once, enable_message_ordering=True)
    key(world, 5)
    key(world, 2, "other")
    leases = take(world, 4)
    world.modify_ack_deadline([leases[2].ack_id], 30)
    world.nack([leases[1].ack_id])
    world.nack([leases[3].ack_id])


def parked(world: World, exactly_once: bool) -> None:
    world.create_subscription(exactly_once=exactly_once, enable_message_ordering=True)
    key(world, 3)
    take(world, 1)
    key(world, 2)
    key(world, 1, "other")
    take(world)


def resting(world: World, exactly_once: bool) -> None:
    retry = pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=5))
    world.create_subscription(exactly_once=exactly_once, retry_policy=retry)
    world.publish(*numbered(3))
    leases = take(world)
    world.nack([leases[0].ack_id])
    world.advance(1)
    world.nack([leases[1].ack_id])


def resting_key(world: World, exactly_once: bool) -> None:
    retry = pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=5))
    world.create_subscription(exactly_once=exactly_once, enable_message_ordering=True, retry_policy=retry)
    key(world, 4)
    world.nack([take(world, 3)[0].ack_id])


def policy(topic: str = DEAD) -> pb.DeadLetterPolicy:
    return pb.DeadLetterPolicy(dead_letter_topic=topic, max_delivery_attempts=5)


def failing(world: World, exactly_once: bool) -> None:
    """Between the fourth failure and the fifth, with failures that do not count."""
    world.create_topic(DEAD)
    world.create_subscription(OTHER, DEAD)
    world.create_subscription(exactly_once=exactly_once)
    world.publish(*numbered(3))
    world.nack([lease.ack_id for lease in take(world, 2)])
    world.update(dead_letter_policy=policy())
    for _ in range(4):
        world.nack([lease.ack_id for lease in take(world)])
    take(world, 1)


def forwarded(world: World, exactly_once: bool) -> None:
    failing(world, exactly_once)
    world.nack([lease.ack_id for lease in take(world)])
    world.settle()


def without_its_topic(world: World, exactly_once: bool) -> None:
    failing(world, exactly_once)
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=DEAD), world.now_us)
    world.nack([lease.ack_id for lease in take(world)])


def filtered(world: World, exactly_once: bool) -> None:
    world.create_subscription(exactly_once=exactly_once, filter=RED)
    for color in ("blue", "red", "blue", "red", "red", "blue"):
        world.publish(b"x", attributes={"color": color})
    world.nack([lease.ack_id for lease in take(world, 2)][:1])


def dropped(world: World, exactly_once: bool) -> None:
    """One that outlives its retention in a lease, and one that does not."""
    world.create_subscription(exactly_once=exactly_once, message_retention_duration=pb.Duration(seconds=600))
    world.publish(*numbered(3))
    leases = take(world, 2)
    world.modify_ack_deadline([leases[0].ack_id], 600)
    world.advance(599)
    world.modify_ack_deadline([leases[0].ack_id], 20)
    world.settle()
    world.advance(2)
    world.settle()
    world.publish(b"young")


def sought_back(world: World, exactly_once: bool) -> None:
    world.create_subscription(exactly_once=exactly_once, retain_acked_messages=True)
    world.publish(*numbered(6))
    leases = take(world, 5)
    world.acknowledge([leases[0].ack_id, leases[1].ack_id])
    world.nack([leases[2].ack_id])
    world.turn()
    world.seek_to_time(START_US - 1)
    take(world, 1)


def sought_back_with_keys(world: World, exactly_once: bool) -> None:
    world.create_subscription(
        exactly_once=exactly_once, enable_message_ordering=True, retain_acked_messages=True
    )
    key(world, 5)
    leases = take(world, 4)
    world.acknowledge([leases[0].ack_id, leases[1].ack_id])
    world.nack([leases[3].ack_id])
    world.turn()
    world.seek_to_time(START_US - 1)


def sought_forth(world: World, exactly_once: bool) -> None:
    plain(world, exactly_once)
    world.turn()
    world.seek_to_time(world.now_us + 1)
    world.publish(b"new")


def sought_twice(world: World, exactly_once: bool) -> None:
    sought_back(world, exactly_once)
    world.turn()
    world.advance(1)
    world.publish(b"later")
    world.turn()
    world.seek_to_time(START_US + 1)
    take(world)
    world.turn()
    world.seek_to_time(START_US - 1)


def set_to_a_snapshot(world: World, exactly_once: bool) -> None:
    """Of a subscription with another filter."""
    world.create_subscription(OTHER, filter=RED)
    world.create_subscription(exactly_once=exactly_once, filter="attributes:color")
    for color in ("red", "blue", "red", "blue", "red"):
        world.publish(b"x", attributes={"color": color})
    world.publish(b"x")
    take(world, 2, OTHER)
    world.acknowledge([lease.ack_id for lease in take(world, 3)])
    world.turn()
    world.create_snapshot(name=OTHER)
    world.turn()
    world.seek_to_snapshot()


def detached(world: World, exactly_once: bool) -> None:
    collateral(world, exactly_once)
    world.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)


FEATURES: list[Build] = [
    plain,
    collateral,
    parked,
    resting,
    resting_key,
    failing,
    forwarded,
    without_its_topic,
    filtered,
    dropped,
    sought_back,
    sought_back_with_keys,
    sought_forth,
    sought_twice,
    set_to_a_snapshot,
    detached,
]


def built(build: Build, exactly_once: bool) -> World:
    world = World()
    world.create_topic()
    build(world, exactly_once)
    world.settle()
    return world


def what_follows(world: World) -> list[list[tuple[int, int, int]]]:
    """What a patient client gets, step by step: (message, generation, attempt). It acks some of it."""
    found: list[list[tuple[int, int, int]]] = []
    for seconds in LATER:
        world.advance(seconds, us=1)
        world.settle()
        leases = [] if world.subscription().detached else take(world)
        found.append(sorted((lease.message_id, lease.generation, lease.attempt) for lease in leases))
        acked = [lease.ack_id for lease in leases if (lease.message_id + lease.generation) % 3 == 0]
        if acked:
            world.acknowledge(acked)
        check(world.broker)
    return found


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("build", FEATURES)
def test_the_state_is_the_same_with_a_checkpoint_and_without(build: Build, exactly_once: bool) -> None:
    world = built(build, exactly_once)
    before = promised(world.broker, world.store)
    assert before == promised(restored(world.store), world.store)
    world.turn(checkpoint=True)

    assert before == promised(world.broker, world.store) == promised(restored(world.store), world.store)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("build", FEATURES)
def test_what_follows_is_the_same_as_without_a_restart(
    build: Build, checkpoint: bool, exactly_once: bool
) -> None:
    one, other = built(build, exactly_once), built(build, exactly_once)
    other.turn(checkpoint)
    other.crash()
    check(other.broker)

    assert what_follows(one) == what_follows(other)
    assert one.owed() == other.owed()
    other.turn()
    assert promised(other.broker, other.store) == promised(restored(other.store), other.store)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
@pytest.mark.parametrize("build", FEATURES)
def test_what_follows_is_the_same_as_without_a_commit_that_failed(build: Build, exactly_once: bool) -> None:
    one, other = built(build, exactly_once), built(build, exactly_once)
    other.create_topic("projects/p/topics/never")
    other.begin()
    other.fail()
    check(other.broker)

    assert what_follows(one) == what_follows(other)
    assert one.owed() == other.owed()


@pytest.mark.parametrize("build", FEATURES)
def test_what_happened_is_journalled_the_same(build: Build) -> None:
    """A restart in between adds nothing to what is said about messages."""
    one, other = built(build, True), built(build, True)
    other.crash()
    what_follows(one)
    what_follows(other)
    one.turn()
    other.turn()

    def said(world: World) -> dict[tuple[int, int, int], int]:
        counts: dict[tuple[int, int, int], int] = {}
        for event in world.events():
            if event.kind not in (Kind.STREAM, Kind.ACK, Kind.START):
                at = (event.kind, event.message_id, event.generation)
                counts[at] = counts.get(at, 0) + 1
        return counts

    assert said(one) == said(other)
