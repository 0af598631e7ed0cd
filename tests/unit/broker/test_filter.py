"""What a filter rejects is finished at once, whichever way it comes in.

Source: Subscription.filter, https://cloud.google.com/pubsub/docs/subscription-message-filter.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.model.message import ordering_key_hash
from pubsubd.wire import pb
from tests.unit.broker.world import START_US, SUBSCRIPTION, World, check, serve, survives

OTHER = "projects/p/subscriptions/other"
RED = 'attributes.color = "red"'


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """A subscription that wants red messages, and one that wants all."""
    world.create_subscription(exactly_once=request.param, filter=RED)
    world.create_subscription(OTHER)
    world.turn()
    return world


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that is committed stays in memory."""
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    yield


@pytest.fixture(autouse=True)
def checked(world: World) -> Iterator[None]:
    yield
    check(world.broker)


def publish(world: World, *colors: str, key: str = "") -> list[int]:
    """Ids of those that are red."""
    red: list[int] = []
    for color in colors:
        (message_id,) = world.publish(b"x", attributes={"color": color}, ordering_key=key)
        red += [message_id] if color == "red" else []
    return red


def ids(world: World, name: str = SUBSCRIPTION) -> list[int]:
    return [lease.message_id for lease in world.pull(name)]


def test_only_what_matches_is_owed_and_delivered(both: World) -> None:
    red = publish(both, "red", "blue", "", "red", "green", "red")
    assert both.owed() == red
    assert ids(both) == red
    assert ids(both, OTHER) == [1, 2, 3, 4, 5, 6]

    both.acknowledge([lease.ack_id for lease in both.subscription().leases])
    assert both.owed() == []
    survives(both)


def test_one_request_may_hold_both_kinds(both: World) -> None:
    messages = [pb.PubsubMessage(data=b"x", attributes={"color": color}) for color in ("blue", "red", "blue")]
    request = pb.PublishRequest(topic=both.subscription().topic.name, messages=messages)
    both.broker.publish(request, request.ByteSize(), both.caller(), both.now_us)

    assert ids(both) == [2]


def test_a_message_without_attributes_is_judged_too(world: World) -> None:
    world.create_subscription(filter="NOT attributes:color")
    world.publish(b"plain")
    world.publish(b"red", attributes={"color": "red"})

    assert ids(world) == [1]


def test_what_is_rejected_is_journalled_once_for_each_subscription(both: World) -> None:
    both.create_subscription("projects/p/subscriptions/blue", filter='attributes.color = "blue"')
    both.turn()
    publish(both, "red", "blue", key="k")
    both.advance(5)
    publish(both, "green")
    both.turn()
    sub_ids = [both.subscription(name).sub_id for name in (SUBSCRIPTION, "projects/p/subscriptions/blue")]
    okey = ordering_key_hash("k")

    found = both.events(Kind.FILTERED)
    assert sorted((event.sub_id, event.message_id, event.okey) for event in found) == [
        (sub_ids[0], 2, okey),
        (sub_ids[0], 3, 0),
        (sub_ids[1], 1, okey),
        (sub_ids[1], 3, 0),
    ]
    published = {event.message_id: event for event in both.events(Kind.PUBLISH)}
    assert all(event.ref_ts_us == published[event.message_id].ts_us for event in found)
    assert all(event.ts_us == event.ref_ts_us and event.topic_id == 1 for event in found)
    assert all((event.generation, event.attempt, event.result) == (0, 0, 0) for event in found)


def test_reading_it_again_is_no_event(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    publish(both, "blue", "red", "blue")
    both.turn()
    before = len(both.events(Kind.FILTERED))
    both.crash()
    assert ids(both) == [2]
    both.turn()

    assert len(both.events(Kind.FILTERED)) == before == 2


def test_the_cursor_passes_what_is_rejected_and_nothing_is_kept_for_it(world: World) -> None:
    """A backlog that grows for a subscription which never wants any of it would fill the disk."""
    world.create_subscription(filter=RED)
    world.turn()
    for _ in range(5):
        publish(world, "blue", "green")
        world.turn()
    assert world.subscription().cursor == 10
    world.crash()
    assert world.subscription().cursor == 10

    world.broker.started("0", False, world.now_us)
    world.turn()
    assert world.store.chunks.get(1, {}) == {}


def test_the_cursor_stays_before_what_matches(world: World) -> None:
    world.create_subscription(filter=RED)
    publish(world, "blue", "red", "blue", "blue")
    world.turn()
    survives(world)

    assert world.owed() == [2]
    assert ids(world) == [2]


@pytest.mark.usefixtures("cold")
def test_a_cold_backlog_is_filtered_as_it_is_read(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 60)
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 2)
    red = []
    for number in range(30):
        red += publish(both, "red" if number % 7 == 3 else "blue")
        both.turn()
    both.crash()
    consumer = both.open_stream()
    serve(both, consumer)

    assert consumer.shell.message_ids == red


@pytest.mark.parametrize("from_memory", [False, True])
def test_a_match_far_behind_is_found_without_another_push(
    both: World, monkeypatch: pytest.MonkeyPatch, from_memory: bool
) -> None:
    """What was looked at in vain is not a reason to stop looking."""
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 3)
    if not from_memory:
        monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
        monkeypatch.setattr(limits, "READ_BYTES_MAX", 1)
        monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    publish(both, "red")
    for _ in range(20):
        publish(both, "blue", "green")
        both.turn()
    publish(both, "red")
    both.turn()
    consumer = both.open_stream()
    both.settle()
    both.broker.set_ready(consumer)
    both.settle()

    assert consumer.shell.message_ids == [1, 42]


def test_a_live_stream_gets_what_matches(both: World) -> None:
    consumer = both.open_stream()
    red = []
    for color in ("red", "blue", "red", "red", "green"):
        red += publish(both, color)
        serve(both, consumer)

    assert consumer.shell.message_ids == red
    assert both.subscription().cursor >= red[-1]
    survives(both)


def test_redeliveries_are_not_judged_again(both: World) -> None:
    publish(both, "blue", "red", "blue", "red")
    for generation in (1, 2, 3):
        leases = both.pull()
        assert [(lease.message_id, lease.generation) for lease in leases] == [
            (2, generation),
            (4, generation),
        ]
        both.nack([lease.ack_id for lease in leases])


@pytest.mark.parametrize("colors", [("blue", "red"), ("red", "blue"), ("blue", "blue", "red", "red", "blue")])
def test_a_failed_commit_changes_nothing_of_what_is_owed(both: World, colors: tuple[str, ...]) -> None:
    publish(both, "blue")
    both.turn()
    publish(both, *colors)
    both.begin()
    both.fail()
    assert both.owed() == []
    red = publish(both, *colors)
    both.turn()

    assert both.owed() == red
    assert ids(both) == red
    survives(both)


def test_a_subscription_that_waits_behind_others_is_filtered_alike(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 2)
    consumer = both.open_stream(max_outstanding_messages=1)
    red = publish(both, *["red", "blue"] * 10)
    got: list[int] = []
    for _ in red:
        serve(both, consumer)
        got = consumer.shell.message_ids
        assert both.acknowledge(consumer.shell.ack_ids[-1:]) == []

    assert got == red
    assert both.owed() == []


def test_the_order_of_a_key_has_no_gaps_where_messages_were_rejected(world: World) -> None:
    world.create_subscription(filter=RED, enable_message_ordering=True)
    red = publish(world, "red", "blue", "red", "blue", "red", key="k")
    leases = world.pull()
    assert [lease.message_id for lease in leases] == red

    for lease in leases:
        assert world.acknowledge([lease.ack_id]) == []


def test_a_detached_subscription_rejects_nothing_any_more(both: World) -> None:
    both.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    publish(both, "blue")
    both.turn()

    assert both.events(Kind.FILTERED) == []


def test_a_seek_delivers_nothing_that_was_rejected(both: World) -> None:
    both.update(retain_acked_messages=True)
    red = publish(both, "blue", "red", "blue", "red")
    both.acknowledge([lease.ack_id for lease in both.pull()])
    both.turn()
    both.seek_to_time(START_US - 1)
    assert both.owed() == red
    survives(both)

    assert ids(both) == red
    survives(both)


def test_bytes_that_are_not_utf_8_beyond_the_attributes_do_not_matter(both: World) -> None:
    both.publish(b"\xff\xfe\x00", attributes={"color": "red"})

    assert ids(both) == [1]


def test_nothing_of_it_costs_a_subscription_without_a_filter(world: World) -> None:
    world.create_subscription()
    publish(world, "blue")
    world.turn()

    assert world.events(Kind.FILTERED) == []
    assert world.subscription().matches is None
