"""Snapshots as resources: names, fields, lives, lists. What a seek to one does is in test_seek.py."""

import asyncio
import re
import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, refused
from tests.wire.harness import case
from tests.wire.support import World, from_now, timestamp, unique, us_of

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
WEEK_US = 7 * 86_400 * 1_000_000


def leaf(name: str) -> str:
    return name.rsplit("/", 1)[1]


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


@pytest.fixture
def subscription(client: Client, topic: str) -> str:
    return client.CreateSubscription(name=unique("subscription"), topic=topic).name


@pytest.fixture
def create(client: Client, subscription: str):
    def create(**fields):
        return client.CreateSnapshot(**{"name": unique("snapshot"), "subscription": subscription, **fields})

    return create


def update(client: Client, name: str, *paths: str, **fields):
    changed = pb.Snapshot(name=name, **fields)
    return client.UpdateSnapshot(snapshot=changed, update_mask=pb.FieldMask(paths=paths))


# CreateSnapshot


def test_snapshot_has_a_name_a_topic_labels_and_an_end(client: Client, topic: str, create):
    name = unique("snapshot")
    before = time.time_ns() // 1000
    created = create(name=name, labels={"env": "test"})
    after = time.time_ns() // 1000
    expected = pb.Snapshot(name=name, topic=topic, labels={"env": "test"}, expire_time=created.expire_time)
    assert created == expected
    assert before <= us_of(created.expire_time) - WEEK_US <= after
    assert client.GetSnapshot(snapshot=name) == created


def test_snapshot_without_a_name_gets_one_in_the_project_of_its_subscription(client: Client, topic: str):
    subscription = client.CreateSubscription(name=unique("subscription", "there"), topic=topic).name
    names = {client.CreateSnapshot(subscription=subscription).name for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"projects/there/snapshots/snap-[0-9a-f-]{36}", name)
        assert client.GetSnapshot(snapshot=name).topic == topic


def test_snapshot_may_be_in_another_project(client: Client, topic: str, create):
    name = unique("snapshot", "elsewhere")
    assert create(name=name).topic == topic
    assert [found.name for found in client.ListSnapshots(project="projects/elsewhere").snapshots] == [name]


def test_existing_name_is_refused(client: Client, create):
    name = create().name
    with refused(
        StatusCode.ALREADY_EXISTS, "Resource already exists in the project", f"(resource={leaf(name)})"
    ):
        create(name=name, labels={"a": "b"})
    assert not client.GetSnapshot(snapshot=name).labels


def test_bad_requests_are_refused(client: Client, create):
    for bad in ("nonsense", unique("topic"), "projects/p/snapshots/goog-x", "projects/p/snapshots/ab"):
        with refused(INVALID_ARGUMENT, "Invalid resource name given", f"(name={bad})"):
            create(name=bad)
    for bad in ("", "nonsense", unique("topic")):
        with refused(INVALID_ARGUMENT, "Invalid resource name given", f"={bad})"):
            create(subscription=bad)
    with refused(INVALID_ARGUMENT, "argument=Invalid labels"):
        create(labels={"Bad": "v"})
    missing = unique("subscription")
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(missing)})."):
        create(subscription=missing)


def test_refused_snapshot_is_not_created(client: Client, subscription: str, create):
    name = unique("snapshot")
    client.DetachSubscription(subscription=subscription)
    with refused(StatusCode.FAILED_PRECONDITION, "Subscription is detached"):
        create(name=name)
    with refused(StatusCode.NOT_FOUND):
        client.GetSnapshot(snapshot=name)


@case
async def test_snapshot_lives_as_much_less_as_its_backlog_is_old(world: World):
    sub = await world.subscription()
    await sub.publish()
    await asyncio.sleep(1)
    await sub.publish()
    a, b = await sub.pull(2)
    oldest = {"leased": await sub.snapshot()}
    await sub.ack(a)
    oldest["acked"] = await sub.snapshot()
    await sub.nack(b)
    oldest["nacked"] = await sub.snapshot()
    published = {name: us_of(found.expire_time) - WEEK_US for name, found in oldest.items()}
    first, second = (us_of(delivery.message.publish_time) for delivery in (a, b))
    assert published == {"leased": first, "acked": second, "nacked": second}


# Get, Delete


def test_missing_snapshot_is_not_found_by_every_method(client: Client):
    name = unique("snapshot")
    tokens = ("Resource not found", f"(resource={leaf(name)}).")
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.GetSnapshot(snapshot=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        client.DeleteSnapshot(snapshot=name)
    with refused(StatusCode.NOT_FOUND, *tokens):
        update(client, name, "labels", labels={"a": "b"})


def test_malformed_names_are_refused_by_every_method(client: Client):
    for bad in ("", "nonsense", unique("topic")):
        with refused(INVALID_ARGUMENT, "Invalid resource name given"):
            client.GetSnapshot(snapshot=bad)
        with refused(INVALID_ARGUMENT, "Invalid resource name given"):
            client.DeleteSnapshot(snapshot=bad)
        with refused(INVALID_ARGUMENT, "Invalid resource name given"):
            update(client, bad, "labels")
    with refused(INVALID_ARGUMENT, "Invalid resource name given"):
        client.ListTopicSnapshots(topic="nonsense")


def test_deleted_snapshot_is_gone_and_its_name_free(client: Client, create):
    name = create(labels={"a": "1"}).name
    assert client.DeleteSnapshot(snapshot=name) == pb.Empty()
    with refused(StatusCode.NOT_FOUND):
        client.GetSnapshot(snapshot=name)
    assert not create(name=name).labels


def test_snapshot_outlives_its_subscription(client: Client, subscription: str, create):
    created = create()
    client.DeleteSubscription(subscription=subscription)
    assert client.GetSnapshot(snapshot=created.name) == created


def test_snapshot_of_a_deleted_topic_says_so(client: Client, topic: str, create):
    before = create()
    client.DeleteTopic(topic=topic)
    after = create()
    client.CreateTopic(name=topic)
    for name in (before.name, after.name):
        assert client.GetSnapshot(snapshot=name).topic == "_deleted-topic_"
    assert after.topic == "_deleted-topic_"
    assert list(client.ListTopicSnapshots(topic=topic).snapshots) == []


# UpdateSnapshot


def test_labels_are_replaced_and_cleared(client: Client, create):
    created = create(labels={"a": "1", "b": "2"})
    updated = update(client, created.name, "labels", labels={"c": "3"}, expire_time=timestamp(1))
    expected = pb.Snapshot()
    expected.CopyFrom(created)
    expected.labels.clear()
    expected.labels["c"] = "3"
    assert updated == expected
    assert client.GetSnapshot(snapshot=created.name) == expected
    assert not update(client, created.name, "labels").labels


def test_end_may_be_moved_up_to_the_first_one(client: Client, create):
    created = create()
    end = us_of(created.expire_time)
    for us in (end - 1, end - 6 * 86_400 * 1_000_000, end):
        updated = update(client, created.name, "expire_time", expire_time=timestamp(us))
        assert us_of(updated.expire_time) == us
        assert client.GetSnapshot(snapshot=created.name) == updated
    for bad in (timestamp(end + 1), from_now(-1), timestamp(1), pb.Timestamp(nanos=-1)):
        with refused(INVALID_ARGUMENT, "expire_time"):
            update(client, created.name, "expire_time", expire_time=bad)
    with refused(INVALID_ARGUMENT, "expire_time"):
        update(client, created.name, "expire_time")
    assert client.GetSnapshot(snapshot=created.name) == created


@case
async def test_snapshot_is_gone_at_its_end(world: World):
    sub = await world.subscription()
    made = await sub.snapshot()
    changed = pb.Snapshot(name=made.name, expire_time=from_now(3))
    mask = pb.FieldMask(paths=["expire_time"])
    await world.client.UpdateSnapshot(snapshot=changed, update_mask=mask)
    await world.client.GetSnapshot(snapshot=made.name)
    await asyncio.sleep(5)
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(made.name)})."):
        await world.client.GetSnapshot(snapshot=made.name)
    with refused(StatusCode.NOT_FOUND):
        await sub.restore(made)
    with refused(StatusCode.NOT_FOUND):
        await world.client.UpdateSnapshot(snapshot=changed, update_mask=mask)
    assert list((await world.client.ListTopicSnapshots(topic=sub.topic)).snapshots) == []
    listed = (await world.client.ListSnapshots(project="projects/wire")).snapshots
    assert made.name not in [snapshot.name for snapshot in listed]
    assert (await sub.snapshot(name=made.name)).name == made.name


@case
async def test_snapshot_ends_while_the_server_is_down(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        made, kept = await sub.snapshot(), await sub.snapshot()
        changed = pb.Snapshot(name=made.name, expire_time=from_now(0.5))
        await own.client.UpdateSnapshot(snapshot=changed, update_mask=pb.FieldMask(paths=["expire_time"]))
        await own.kill_server()
        await asyncio.sleep(0.6)
        await own.start_server()
        with refused(StatusCode.NOT_FOUND):
            await own.client.GetSnapshot(snapshot=made.name)
        assert await own.client.GetSnapshot(snapshot=kept.name) == kept


@pytest.mark.parametrize("mask", [{}, {"update_mask": pb.FieldMask()}])
def test_empty_mask_is_refused(client: Client, create, mask):
    name = create().name
    with refused(INVALID_ARGUMENT, "update_mask", "UpdateSnapshotRequest"):
        client.UpdateSnapshot(snapshot=pb.Snapshot(name=name, labels={"a": "b"}), **mask)


@pytest.mark.parametrize("path", ["name", "topic"])
def test_immutable_path_is_refused(client: Client, create, path: str):
    created = create()
    with refused(INVALID_ARGUMENT, "UpdateSnapshotRequest", path, "is not mutable"):
        update(client, created.name, "labels", path, labels={"a": "b"})
    assert client.GetSnapshot(snapshot=created.name) == created


@pytest.mark.parametrize("path", ["nonsense", "*", "", "expireTime", "labels.env", "expire_time.seconds"])
def test_unknown_path_is_refused(client: Client, create, path: str):
    created = create()
    with refused(INVALID_ARGUMENT, "UpdateSnapshotRequest", "is not a known Snapshot field"):
        update(client, created.name, "labels", path, labels={"a": "b"})
    assert client.GetSnapshot(snapshot=created.name) == created


def test_missing_snapshot_in_the_update_is_refused(client: Client):
    with refused(INVALID_ARGUMENT):
        client.UpdateSnapshot(update_mask=pb.FieldMask(paths=["labels"]))


def test_bad_labels_are_refused(client: Client, create):
    with refused(INVALID_ARGUMENT, "argument=Invalid labels"):
        update(client, create().name, "labels", labels={"Bad": "v"})


# ListTopicSnapshots


def test_snapshots_of_a_topic_are_listed_by_name(client: Client, topic: str, subscription: str, create):
    other = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    names = [create().name, create(subscription=other).name, create(name=unique("snapshot", "far")).name]
    foreign = client.CreateSubscription(
        name=unique("subscription"), topic=client.CreateTopic(name=unique("topic")).name
    ).name
    create(subscription=foreign)
    assert list(client.ListTopicSnapshots(topic=topic).snapshots) == sorted(names)
    client.DeleteSnapshot(snapshot=names[0])
    assert list(client.ListTopicSnapshots(topic=topic).snapshots) == sorted(names[1:])


def test_snapshots_of_a_missing_topic_are_not_found(client: Client):
    name = unique("topic")
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(name)})."):
        client.ListTopicSnapshots(topic=name)
