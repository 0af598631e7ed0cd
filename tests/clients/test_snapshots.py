"""Snapshots with the Python library: taken, read, changed, listed, deleted, and sought."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions

from tests.clients.world import Inbox, results

LIFETIME = timedelta(days=7)
# What a call may take on a machine that has other things to do, as far as times are compared.
SOON = timedelta(seconds=5)
# By then the library has sent the acks that its callbacks asked for.
SENT_SECONDS = 0.5


@pytest.fixture
def topic(world):
    return world.topic()


@pytest.fixture
def subscription(world, topic):
    return world.subscription(topic, enable_exactly_once_delivery=True)


def snapshot_path(world, name="snapshot"):
    return world.subscriber.snapshot_path(world.project, name)


def take(world, subscription, name="snapshot", **fields):
    return world.subscriber.create_snapshot(
        request={"name": snapshot_path(world, name), "subscription": subscription, **fields}
    )


def update(world, name, paths, **fields):
    return world.subscriber.update_snapshot(
        request={"snapshot": {"name": name, **fields}, "update_mask": {"paths": paths}}
    )


def seek(world, subscription, snapshot):
    world.subscriber.seek(request={"subscription": subscription, "snapshot": snapshot})


def publish(world, topic, numbers):
    return results([world.publisher.publish(topic, b"%d" % number) for number in numbers])


def acknowledge(world, subscription, received):
    world.subscriber.acknowledge(subscription=subscription, ack_ids=[item.ack_id for item in received])


def pulled(world, subscription):
    return sorted(int(item.message.data) for item in world.pull(subscription))


def test_a_snapshot_is_taken_and_read(world, topic, subscription):
    before = datetime.now(UTC)
    taken = take(world, subscription, labels={"team": "a"})

    assert taken == world.subscriber.get_snapshot(snapshot=snapshot_path(world))
    assert taken.name == snapshot_path(world)
    assert taken.topic == topic
    assert dict(taken.labels) == {"team": "a"}
    assert before + LIFETIME - SOON <= taken.expire_time <= before + LIFETIME + SOON


def test_the_oldest_unacked_message_shortens_its_life(world, topic, subscription):
    publish(world, topic, [0])
    time.sleep(1.5)
    publish(world, topic, [1])
    (oldest, _) = sorted(world.pull(subscription), key=lambda item: item.message.publish_time)

    taken = take(world, subscription)

    assert abs(taken.expire_time - (oldest.message.publish_time + LIFETIME)) < timedelta(milliseconds=100)


def test_a_snapshot_may_be_named_by_the_server(world, subscription):
    first = world.subscriber.create_snapshot(request={"subscription": subscription})
    second = world.subscriber.create_snapshot(request={"subscription": subscription})

    assert first.name != second.name
    assert first.name.startswith(f"projects/{world.project}/snapshots/")
    assert world.subscriber.get_snapshot(snapshot=first.name) == first


def test_seeking_it_brings_back_what_was_unacked_then_and_what_came_later(world, topic):
    subscription = world.subscription(topic, enable_exactly_once_delivery=True)
    publish(world, topic, range(5))
    first = world.pull(subscription)
    acknowledge(world, subscription, [item for item in first if int(item.message.data) < 2])
    taken = take(world, subscription)
    acknowledge(world, subscription, [item for item in first if int(item.message.data) >= 2])
    publish(world, topic, range(5, 8))
    inbox = Inbox(lambda message: message.ack())
    stream = world.subscribe(subscription, inbox)
    inbox.wait(3)
    time.sleep(SENT_SECONDS)

    seek(world, subscription, taken.name)

    again = inbox.wait(9)[3:]
    assert sorted(int(message.data) for message in again) == [2, 3, 4, 5, 6, 7]
    assert inbox.stays_at(9, seconds=0.5)
    assert not stream.done()


def test_seeking_it_acks_what_was_acked_then(world, topic):
    subscription = world.subscription(topic, retain_acked_messages=True)
    publish(world, topic, range(6))
    received = world.pull(subscription)
    acknowledge(world, subscription, [item for item in received if int(item.message.data) % 2])
    taken = take(world, subscription)
    long_ago = datetime(2001, 2, 3, tzinfo=UTC)
    world.subscriber.seek(request={"subscription": subscription, "time": long_ago})

    seek(world, subscription, taken.name)
    # Those were leased all the while.
    world.subscriber.modify_ack_deadline(
        subscription=subscription,
        ack_ids=[item.ack_id for item in received if not int(item.message.data) % 2],
        ack_deadline_seconds=0,
    )

    assert pulled(world, subscription) == [0, 2, 4]


def test_another_subscription_of_the_topic_may_seek_it(world, topic, subscription):
    publish(world, topic, range(4))
    taken = take(world, subscription)
    other = world.subscription(topic, "other", filter="attributes:nothing-has-it")
    plain = world.subscription(topic, "plain")

    seek(world, other, taken.name)
    seek(world, plain, taken.name)

    assert pulled(world, other) == []
    assert pulled(world, plain) == [0, 1, 2, 3]


def test_it_outlives_its_subscription_and_a_kill(own_server, own_world):
    world = own_world
    topic = world.topic()
    subscription = world.subscription(topic)
    publish(world, topic, range(4))
    taken = take(world, subscription, labels={"kept": "yes"})
    acknowledge(world, subscription, world.pull(subscription))
    world.subscriber.delete_subscription(subscription=subscription)

    own_server.kill()
    own_server.start()

    assert world.subscriber.get_snapshot(snapshot=taken.name) == taken
    again = world.subscription(topic, "again")
    seek(world, again, taken.name)
    assert pulled(world, again) == [0, 1, 2, 3]


def test_snapshots_are_listed_by_project_and_by_topic(world, topic, subscription):
    names = sorted(take(world, subscription, f"snapshot-{number}").name for number in range(5))
    elsewhere = world.subscription(world.topic("other"), "elsewhere")
    other = take(world, elsewhere, "of-another-topic")

    listed = world.subscriber.list_snapshots(request={"project": f"projects/{world.project}", "page_size": 2})
    assert [item.name for item in listed] == sorted([*names, other.name])
    of_topic = world.publisher.list_topic_snapshots(request={"topic": topic, "page_size": 2})
    assert list(of_topic) == names


def test_a_snapshot_is_updated_by_its_mask(world, subscription):
    taken = take(world, subscription, labels={"team": "a"})

    labelled = update(
        world, taken.name, ["labels"], labels={"stage": "test"}, expire_time=taken.expire_time - LIFETIME / 2
    )
    assert dict(labelled.labels) == {"stage": "test"}
    assert labelled.expire_time == taken.expire_time

    shortened = update(world, taken.name, ["expire_time"], expire_time=taken.expire_time - LIFETIME / 2)
    assert shortened.expire_time == taken.expire_time - LIFETIME / 2
    assert dict(shortened.labels) == {"stage": "test"}
    assert world.subscriber.get_snapshot(snapshot=taken.name) == shortened


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "update_mask"),
        (["name"], "not mutable"),
        (["topic"], "not mutable"),
        (["labels", "colour"], "not a known"),
    ],
)
def test_a_bad_mask_is_refused_and_changes_nothing(world, subscription, paths, words):
    taken = take(world, subscription, labels={"team": "a"})
    with pytest.raises(exceptions.InvalidArgument, match=words):
        update(world, taken.name, paths)
    assert world.subscriber.get_snapshot(snapshot=taken.name) == taken


@pytest.mark.parametrize("offset", [timedelta(seconds=1), -2 * LIFETIME], ids=["too-late", "in-the-past"])
def test_a_bad_expire_time_is_refused_and_changes_nothing(world, subscription, offset):
    taken = take(world, subscription)
    with pytest.raises(exceptions.InvalidArgument, match="expire_time"):
        update(world, taken.name, ["expire_time"], expire_time=taken.expire_time + offset)
    assert world.subscriber.get_snapshot(snapshot=taken.name) == taken


def test_a_snapshot_expires(world, topic, subscription):
    taken = take(world, subscription)
    update(world, taken.name, ["expire_time"], expire_time=datetime.now(UTC) + timedelta(seconds=1))
    time.sleep(1.5)

    with pytest.raises(exceptions.NotFound):
        world.subscriber.get_snapshot(snapshot=taken.name)
    with pytest.raises(exceptions.NotFound):
        seek(world, subscription, taken.name)
    assert list(world.publisher.list_topic_snapshots(topic=topic)) == []


def test_a_deleted_snapshot_is_gone_and_its_name_free(world, topic, subscription):
    taken = take(world, subscription)
    world.subscriber.delete_snapshot(snapshot=taken.name)

    with pytest.raises(exceptions.NotFound, match="snapshot"):
        world.subscriber.get_snapshot(snapshot=taken.name)
    with pytest.raises(exceptions.NotFound):
        world.subscriber.delete_snapshot(snapshot=taken.name)
    with pytest.raises(exceptions.NotFound):
        seek(world, subscription, taken.name)
    assert list(world.publisher.list_topic_snapshots(topic=topic)) == []
    assert take(world, subscription).name == taken.name


def test_a_snapshot_that_exists_is_not_taken_again(world, subscription):
    taken = take(world, subscription)
    with pytest.raises(exceptions.AlreadyExists, match="already exists"):
        take(world, subscription, labels={"another": "one"})
    assert world.subscriber.get_snapshot(snapshot=taken.name) == taken


def test_a_snapshot_needs_its_subscription(world):
    with pytest.raises(exceptions.NotFound, match="missing"):
        take(world, world.subscriber.subscription_path(world.project, "missing"))


def test_a_snapshot_of_another_topic_cannot_be_sought(world, topic, subscription):
    elsewhere = world.subscription(world.topic("other"), "elsewhere")
    taken = take(world, elsewhere)
    publish(world, topic, range(2))

    with pytest.raises(exceptions.FailedPrecondition, match="other"):
        seek(world, subscription, taken.name)
    assert pulled(world, subscription) == [0, 1]


def test_a_detached_subscription_can_neither_seek_nor_be_taken(world, subscription):
    taken = take(world, subscription)
    world.publisher.detach_subscription(request={"subscription": subscription})

    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        take(world, subscription, "another")
    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        seek(world, subscription, taken.name)


def test_a_snapshot_of_a_deleted_topic_says_so(world, topic, subscription):
    publish(world, topic, range(3))
    taken = take(world, subscription)
    world.publisher.delete_topic(topic=topic)

    assert world.subscriber.get_snapshot(snapshot=taken.name).topic == "_deleted-topic_"
    acknowledge(world, subscription, world.pull(subscription))
    seek(world, subscription, taken.name)
    assert pulled(world, subscription) == [0, 1, 2]
