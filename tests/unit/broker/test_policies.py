"""Policies live as long as their resources, through crashes and failed commits; a reset takes everything."""

from __future__ import annotations

import pytest

from pubsubd.model import errors
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SNAPSHOT, SUBSCRIPTION, TOPIC, World

VIEWER = pb.Binding(role="roles/pubsub.viewer", members=["user:ann@example.com"])
RESOURCES = (TOPIC, SUBSCRIPTION, SNAPSHOT)


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic()
    world.create_subscription()
    world.create_snapshot()
    world.turn()
    return world


def set_policy(world: World, resource: str, *bindings: pb.Binding) -> pb.Policy:
    request = pb.SetIamPolicyRequest(resource=resource, policy=pb.Policy(bindings=bindings))
    return world.broker.set_iam_policy(request, world.now_us)


def policy_of(world: World, resource: str) -> pb.Policy:
    return world.broker.get_iam_policy(pb.GetIamPolicyRequest(resource=resource))


def permissions(world: World, resource: str, *wanted: str) -> list[str]:
    request = pb.TestIamPermissionsRequest(resource=resource, permissions=wanted)
    return list(world.broker.test_iam_permissions(request).permissions)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_policy_survives_a_crash(world: World, resource: str) -> None:
    assert policy_of(world, resource) == pb.Policy(etag=b"\x00\x20\x01")
    policy = set_policy(world, resource, VIEWER)
    world.turn()

    world.crash()

    assert policy_of(world, resource) == policy
    assert [policy_of(world, other).bindings for other in RESOURCES if other != resource] == [[], []]


def test_a_policy_that_was_not_committed_was_not_set(world: World) -> None:
    before = set_policy(world, TOPIC, VIEWER)
    world.turn()
    set_policy(world, TOPIC)
    world.begin()
    world.fail()

    assert policy_of(world, TOPIC) == before


def test_a_resource_that_is_not_there_has_no_policy_and_gives_no_permission(world: World) -> None:
    for missing in ("projects/p/topics/none", "projects/p/schemas/none"):
        with pytest.raises(errors.NotFound):
            policy_of(world, missing)
        with pytest.raises(errors.NotFound):
            set_policy(world, missing, VIEWER)
        assert permissions(world, missing, "pubsub.topics.get") == []


def test_whoever_asks_has_every_permission_on_what_is_there(world: World) -> None:
    wanted = ("pubsub.topics.publish", "pubsub.topics.get")

    assert permissions(world, TOPIC, *wanted) == [*wanted]


def test_a_resource_of_the_same_name_does_not_inherit(world: World) -> None:
    for resource in RESOURCES:
        set_policy(world, resource, VIEWER)
    world.turn()
    world.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), world.now_us)
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), world.now_us)
    world.create_topic()
    world.create_subscription()
    world.create_snapshot()
    world.turn()

    world.crash()

    for resource in RESOURCES:
        assert policy_of(world, resource).bindings == []
    assert world.store.documents == {}


def test_what_expires_takes_its_policy_with_it(world: World) -> None:
    set_policy(world, SNAPSHOT, VIEWER)
    world.advance(seconds=8 * 24 * 3600)
    world.turn()

    assert world.broker.policies == {} == world.store.documents


def test_a_reset_leaves_nothing_and_is_one_commit(world: World) -> None:
    for resource in RESOURCES:
        set_policy(world, resource, VIEWER)
    world.create_topic("projects/other/topics/forsaken")
    world.create_subscription("projects/other/subscriptions/one", "projects/other/topics/forsaken")
    world.broker.delete_topic(pb.DeleteTopicRequest(topic="projects/other/topics/forsaken"), world.now_us)
    (last_id,) = world.publish(b"a")
    consumer = world.open_stream()
    world.settle()
    assert len(consumer.shell.leases) == 1

    world.broker.reset(world.now_us)
    world.turn()

    (error,) = consumer.shell.errors
    assert error.status == "NOT_FOUND"
    for _ in range(2):
        loaded = world.store.loaded()
        assert [*loaded.topics, *loaded.subscriptions, *loaded.snapshots, *loaded.documents] == []
        assert list(world.broker.subscriptions()) == []
        world.crash()
    changes = [event for event in world.events(Kind.CONFIG)]
    assert len(changes) == 3 + 2 + 1 + 4, "each deletion is told"
    world.create_topic()
    world.create_subscription()
    assert world.publish(b"b") == [last_id + 1], "no id is given twice"
    assert [lease.message_id for lease in world.pull()] == [last_id + 1]


def test_a_reset_that_failed_did_not_happen(world: World) -> None:
    world.publish(b"a")
    world.turn()
    world.broker.reset(world.now_us)
    world.begin()
    world.fail()

    assert len(world.pull()) == 1
