"""A snapshot holds what was unacknowledged, and everything later; a seek to it makes that so again.

Source: CreateSnapshotRequest, Snapshot, SeekRequest.snapshot,
https://cloud.google.com/pubsub/docs/replay-overview.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.model import errors, limits
from pubsubd.model.events import Kind
from pubsubd.model.names import DELETED_TOPIC
from pubsubd.wire import pb
from tests.unit.broker.world import (
    PROJECT,
    SECOND,
    SNAPSHOT,
    START_US,
    SUBSCRIPTION,
    TOPIC,
    World,
    check,
    serve,
    states,
    survives,
)

OTHER = "projects/p/subscriptions/other"
LATER = "projects/p/snapshots/later"
RED = 'attributes.color = "red"'
HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """A subscription that was owed five messages, of which the second and fourth are acked."""
    world.create_subscription(exactly_once=request.param)
    world.turn()
    world.publish(*[b"%d" % number for number in range(5)])
    leases = world.pull()
    world.acknowledge([leases[1].ack_id, leases[3].ack_id])
    world.nack([leases[0].ack_id, leases[2].ack_id, leases[4].ack_id])
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


def ids(world: World, name: str = SUBSCRIPTION) -> list[int]:
    found: list[int] = []
    while leases := world.pull(name):
        found += [lease.message_id for lease in leases]
    return found


def ack_all(world: World, name: str = SUBSCRIPTION) -> None:
    while leases := world.pull(name):
        world.acknowledge([lease.ack_id for lease in leases], name)
    world.turn()


def colored(world: World, *colors: str) -> None:
    for color in colors:
        world.publish(b"x", attributes={"color": color})


# -- what it holds -----------------------------------------------------------------------------------------


def test_what_was_unacknowledged_is_so_again_and_what_came_later_too(both: World) -> None:
    both.create_snapshot()
    both.publish(b"later")
    ack_all(both)
    assert both.owed() == []
    both.publish(b"latest")
    both.turn()
    both.seek_to_snapshot()
    assert both.owed() == [1, 3, 5, 6, 7]
    survives(both)

    assert sorted(ids(both)) == [1, 3, 5, 6, 7]


def test_what_was_acknowledged_then_is_so_again(both: World) -> None:
    both.update(retain_acked_messages=True)
    both.create_snapshot()
    both.turn()
    both.seek_to_time(START_US - 1)
    assert both.owed() == [1, 2, 3, 4, 5]
    both.seek_to_snapshot()
    assert both.owed() == [1, 3, 5]
    survives(both)

    assert sorted(ids(both)) == [1, 3, 5]


def test_it_needs_no_other_retention(both: World) -> None:
    both.create_snapshot()
    ack_all(both)
    both.broker.started("0", True, both.now_us)
    both.turn()
    survives(both)
    both.seek_to_snapshot()

    assert sorted(ids(both)) == [1, 3, 5]


def test_a_message_that_is_outstanding_is_in_it(both: World) -> None:
    leases = both.pull()
    assert len(leases) == 3
    both.create_snapshot()
    both.acknowledge([leases[0].ack_id])
    both.turn()
    both.seek_to_snapshot()
    survives(both)
    assert both.owed() == [1, 3, 5]
    assert ids(both) == [1], "the leases of the others run on"

    assert both.acknowledge([leases[1].ack_id, leases[2].ack_id]) == []
    assert both.owed() == [1]


def test_a_lease_of_what_it_does_not_hold_is_over(both: World) -> None:
    both.update(retain_acked_messages=True)
    both.create_snapshot()
    both.turn()
    both.seek_to_time(START_US - 1)
    leases = [*both.pull(), *both.pull()]
    assert {lease.message_id for lease in leases} >= {2, 4}
    both.seek_to_snapshot()
    both.turn()

    assert {lease.message_id for lease in both.subscription().leases}.isdisjoint({2, 4})
    assert both.acknowledge([lease.ack_id for lease in leases if lease.message_id in (2, 4)]) == []
    survives(both)


def test_attempts_start_anew_for_what_comes_back_and_go_on_for_what_does_not_have_to(both: World) -> None:
    both.create_snapshot()
    (lease,) = [lease for lease in both.pull() if lease.message_id == 3]
    both.acknowledge([one.ack_id for one in both.subscription().leases if one.message_id != 3])
    both.nack([lease.ack_id])
    both.turn()
    both.seek_to_snapshot()
    attempts: dict[int, int] = {}
    while leases := both.pull():
        attempts |= {lease.message_id: lease.attempt for lease in leases}

    assert attempts == {1: 1, 3: 3, 5: 1}


def test_with_exactly_once_ids_of_what_came_back_are_void(world: World) -> None:
    world.create_subscription()
    world.turn()
    world.publish(b"a", b"b")
    leases = world.pull()
    world.create_snapshot()
    ack_ids = [lease.ack_id for lease in leases]
    assert world.acknowledge(ack_ids) == []
    world.turn()
    world.seek_to_snapshot()
    assert world.acknowledge(ack_ids) == ack_ids
    survives(world)
    assert world.acknowledge(ack_ids) == ack_ids
    again = world.pull()

    assert world.acknowledge(ack_ids) == ack_ids
    assert world.acknowledge([lease.ack_id for lease in again]) == []
    assert world.acknowledge([lease.ack_id for lease in again]) == [], "a repetition"
    assert all(lease.generation > 1 for lease in again)


def test_it_can_be_sought_again_and_again(both: World) -> None:
    both.create_snapshot()
    for _ in range(4):
        ack_all(both)
        both.seek_to_snapshot()
        assert both.owed() == [1, 3, 5]
        survives(both)


def test_one_taken_after_a_seek_knows_what_the_cursor_has_yet_to_pass(both: World) -> None:
    both.update(retain_acked_messages=True)
    leases = both.pull()
    both.acknowledge([lease.ack_id for lease in leases if lease.message_id == 5])
    both.turn()
    both.seek_to_time(START_US - 1)
    both.turn()
    assert both.acknowledge([lease.ack_id for lease in leases if lease.message_id == 3]) == []
    assert both.owed() == [1, 2, 4, 5]
    both.create_snapshot()
    both.turn()
    survives(both)
    ack_all(both)
    both.acknowledge([lease.ack_id for lease in leases if lease.message_id == 1])
    both.seek_to_snapshot()
    assert both.owed() == [1, 2, 4, 5]
    survives(both)

    both.seek_to_time(both.now_us + 1)
    both.seek_to_snapshot()
    assert sorted(ids(both)) == [1, 2, 4, 5]


def test_parked_messages_are_in_it(world: World) -> None:
    world.create_subscription(enable_message_ordering=True)
    world.turn()
    world.publish(b"1", b"2", b"3", ordering_key="k")
    world.publish(b"4", ordering_key="l")
    (first,) = world.pull(max_messages=1)
    assert ids(world) == [4]
    world.create_snapshot()
    world.acknowledge([first.ack_id])
    world.acknowledge([lease.ack_id for lease in world.subscription().leases])
    ack_all(world)
    world.seek_to_snapshot()
    assert world.owed() == [1, 2, 3, 4]
    survives(world)
    consumer = world.open_stream()
    serve(world, consumer)

    assert [one for one in consumer.shell.message_ids if one < 4] == [1, 2, 3]


@pytest.mark.usefixtures("cold")
def test_what_comes_back_is_read(both: World) -> None:
    both.create_snapshot()
    ack_all(both)
    both.publish(b"later")
    both.turn()
    both.seek_to_snapshot()
    consumer = both.open_stream()
    serve(both, consumer)
    data = dict(zip(consumer.shell.message_ids, [one.data for one in consumer.shell.messages()], strict=True))

    assert data == {1: b"0", 3: b"2", 5: b"4", 6: b"later"}


# -- other subscriptions -----------------------------------------------------------------------------------


def test_another_subscription_of_the_topic_can_be_set_to_it(both: World) -> None:
    both.create_snapshot()
    both.create_subscription(OTHER)
    both.publish(b"later")
    both.turn()
    both.seek_to_snapshot(name=OTHER)
    survives(both)

    assert sorted(ids(both, OTHER)) == [1, 3, 5, 6]
    assert both.owed() == [1, 3, 5, 6]


@pytest.mark.parametrize("passes", ["cursor", "seek"])
def test_a_repeated_ack_of_what_it_does_not_bring_back_is_ok(world: World, passes: str) -> None:
    """The other subscription was behind its cursor: the snapshot says of 3 by itself that it had finished."""
    world.create_subscription()
    world.create_subscription(OTHER, retain_acked_messages=True)
    world.publish(b"1", b"2", b"3")
    ours = {lease.message_id: lease.ack_id for lease in world.pull()}
    others = {lease.message_id: lease.ack_id for lease in world.pull(OTHER)}
    world.acknowledge(ours.values())
    world.acknowledge([others[1]], OTHER)
    world.seek_to_time(START_US - 1, OTHER)
    world.acknowledge([others[3]], OTHER)
    world.create_snapshot(name=OTHER)
    world.turn()
    world.seek_to_snapshot()
    assert world.owed() == [1, 2]
    if passes == "cursor":
        ack_all(world)
    else:
        world.seek_to_time(world.now_us + 1)
    world.turn()
    world.crash()

    assert world.acknowledge([ours[3]]) == []


def test_it_outlives_its_subscription(both: World) -> None:
    both.create_snapshot()
    both.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    both.create_subscription(OTHER)
    both.turn()
    survives(both)
    both.seek_to_snapshot(name=OTHER)

    assert sorted(ids(both, OTHER)) == [1, 3, 5]


def test_another_filter_rejects_what_the_first_one_took(world: World) -> None:
    """The documented way to change a filter: a new subscription, set to a snapshot of the old one."""
    world.create_subscription()
    world.turn()
    colored(world, "red", "blue", "red", "blue")
    world.pull(max_messages=2)
    world.create_snapshot()
    world.create_subscription(OTHER, filter=RED)
    world.turn()
    world.seek_to_snapshot(name=OTHER)
    colored(world, "blue", "red")
    survives(world)

    assert sorted(ids(world, OTHER)) == [1, 3, 6]
    assert world.owed(OTHER) == [1, 3, 6]
    survives(world)


def test_what_the_first_filter_rejected_was_acknowledged(world: World) -> None:
    world.create_subscription(filter=RED)
    world.create_subscription(OTHER)
    world.turn()
    colored(world, "red", "blue", "red", "blue")
    world.pull(max_messages=1)
    world.create_snapshot()
    colored(world, "blue", "red")
    world.turn()
    world.seek_to_snapshot(name=OTHER)
    assert world.owed(OTHER) == [1, 3, 5, 6], "what came later is judged by its own filter, which is none"
    survives(world)

    assert sorted(ids(world, OTHER)) == [1, 3, 5, 6]
    world.seek_to_time(START_US - 1, OTHER)
    survives(world)


def test_a_restored_message_that_turns_out_unmatched_is_finished_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing is delivered for a long time after that was found out."""
    world.create_subscription(filter=RED)
    world.create_subscription(OTHER)
    world.turn()
    colored(world, "blue", "blue")
    leases = world.pull(OTHER, max_messages=1)
    world.create_snapshot(name=OTHER)
    world.turn()
    world.seek_to_snapshot()
    consumer = world.open_stream()
    serve(world, consumer)
    assert consumer.shell.message_ids == []
    assert world.owed() == []
    world.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), world.now_us)
    world.acknowledge([lease.ack_id for lease in leases], OTHER)
    ack_all(world, OTHER)
    world.broker.started("0", True, world.now_us)
    world.turn()
    assert world.store.chunks[1] == {}
    survives(world)

    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", 1)
    assert ids(world) == []
    survives(world)


def test_a_snapshot_of_one_that_was_set_to_a_snapshot_holds_no_more(world: World) -> None:
    world.create_subscription(OTHER, filter=RED)
    world.create_subscription()
    world.turn()
    colored(world, "red", "blue", "red")
    world.turn()
    world.create_snapshot(name=OTHER)
    world.turn()
    world.seek_to_snapshot()
    assert world.owed() == [1, 3]
    world.create_snapshot(LATER)
    survives(world)
    ack_all(world)
    world.seek_to_snapshot(LATER)

    assert world.owed() == [1, 3]
    survives(world)


def test_the_first_filter_is_forgotten_with_the_next_seek(world: World) -> None:
    world.create_subscription(OTHER, filter=RED)
    world.create_subscription(retain_acked_messages=True)
    world.turn()
    colored(world, "red", "blue")
    world.turn()
    world.create_snapshot(LATER)
    world.create_snapshot(name=OTHER)
    world.seek_to_snapshot()
    assert world.owed() == [1]
    world.seek_to_snapshot(LATER)
    assert world.owed() == [1, 2]
    world.seek_to_snapshot()
    world.seek_to_time(START_US - 1)

    assert world.owed() == [1, 2]
    survives(world)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_owed_is_what_it_holds(world: World, seed: int) -> None:
    """Snapshots at random moments of a random life, sought in random order."""
    random = Random(seed)
    names = [SUBSCRIPTION, OTHER]
    for name in names:
        world.create_subscription(name, exactly_once=seed % 2 == 0, retain_acked_messages=True)
    world.turn()
    held: dict[str, tuple[list[int], int]] = {}
    for step in range(60):
        name = random.choice(names)
        match random.randrange(8):
            case 0 | 1:
                world.publish(*[b"x"] * random.randint(1, 3))
                world.turn()
            case 2:
                world.turn()
                snapshot = f"projects/p/snapshots/snap{step}"
                world.create_snapshot(snapshot, name)
                held[snapshot] = (world.owed(name), world.broker.message_id)
            case 3 if held:
                world.turn()
                snapshot = random.choice(list(held))
                world.seek_to_snapshot(snapshot, name)
                owed, last_id = held[snapshot]
                assert world.owed(name) == [*owed, *range(last_id + 1, world.broker.message_id + 1)]
            case 4:
                world.turn()
                world.seek_to_time(START_US + random.randrange(60) * SECOND, name)
            case 5:
                survives(world)
            case _:
                world.pull(name, max_messages=random.randint(1, 4))
                there = [lease.ack_id for lease in world.subscription(name).leases]
                chosen = random.sample(there, random.randint(0, len(there)))
                if chosen:
                    (world.acknowledge if random.random() < 0.7 else world.nack)(chosen, name)
        world.advance(random.choice([0, 1, 1, 3, 11]))
        world.settle()
        check(world.broker)

    assert held


# -- the resource ------------------------------------------------------------------------------------------


def snapshots(world: World) -> list[str]:
    request = pb.ListSnapshotsRequest(project=PROJECT)
    return [one.name for one in world.broker.list_snapshots(request).snapshots]


def get(world: World, name: str = SNAPSHOT) -> pb.Snapshot:
    return world.broker.get_snapshot(pb.GetSnapshotRequest(snapshot=name))


def test_it_can_be_found_and_deleted(both: World) -> None:
    both.create_snapshot(LATER)
    made = both.create_snapshot()
    both.turn()
    survives(both)
    assert (made, made.topic) == (get(both), TOPIC)
    assert snapshots(both) == [SNAPSHOT, LATER]
    of_topic = pb.ListTopicSnapshotsRequest(topic=TOPIC)
    assert list(both.broker.list_topic_snapshots(of_topic).snapshots) == [SNAPSHOT, LATER]

    both.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), both.now_us)
    survives(both)
    assert snapshots(both) == [LATER]
    assert list(both.broker.list_topic_snapshots(of_topic).snapshots) == [LATER]
    assert len(both.store.snapshots) == 1
    with pytest.raises(errors.NotFound):
        get(both)
    both.create_snapshot()
    assert get(both).name == SNAPSHOT, "the name is free"


def test_lists_come_in_pages(both: World) -> None:
    names = [f"projects/p/snapshots/snap{number}" for number in range(5)]
    for name in names:
        both.create_snapshot(name)
    both.create_snapshot("projects/q/snapshots/elsewhere")
    found: list[str] = []
    token = ""
    for _ in range(3):
        request = pb.ListSnapshotsRequest(project=PROJECT, page_size=2, page_token=token)
        response = both.broker.list_snapshots(request)
        found += [one.name for one in response.snapshots]
        token = response.next_page_token

    assert (found, token) == (names, "")


def test_without_a_name_it_gets_one(both: World) -> None:
    first = both.create_snapshot("")
    assert first.name.startswith("projects/p/snapshots/snap")
    assert snapshots(both) == [first.name]


def test_labels_are_kept_and_changed(both: World) -> None:
    request = pb.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION, labels={"env": "test"})
    answers = both.answers(both.broker.snapshot_questions(request, both.now_us))
    both.broker.create_snapshot(request, answers, "unique", both.now_us)
    assert get(both).labels == {"env": "test"}
    update = pb.UpdateSnapshotRequest(
        snapshot=pb.Snapshot(name=SNAPSHOT, labels={"env": "prod"}),
        update_mask=pb.FieldMask(paths=["labels"]),
    )
    both.broker.update_snapshot(update, both.now_us)
    survives(both)

    assert get(both).labels == {"env": "prod"}
    ack_all(both)
    both.seek_to_snapshot()
    assert both.owed() == [1, 3, 5], "and it holds what it held"


@pytest.mark.parametrize(("age", "life"), [(0, 7 * DAY), (DAY, 6 * DAY), (7 * DAY - HOUR, HOUR)])
def test_it_lives_a_week_from_its_oldest_message_on(world: World, age: int, life: int) -> None:
    world.create_subscription(message_retention_duration=pb.Duration(seconds=31 * DAY))
    world.turn()
    if age:
        world.publish(b"a")
        world.turn()
    world.advance(age)
    made = world.create_snapshot()

    assert made.expire_time.seconds == START_US // SECOND + age + life


def test_one_that_would_not_live_an_hour_is_refused(world: World) -> None:
    world.create_subscription(message_retention_duration=pb.Duration(seconds=31 * DAY))
    world.turn()
    world.publish(b"a")
    world.turn()
    world.advance(7 * DAY - HOUR, us=1)

    with pytest.raises(errors.FailedPrecondition):
        world.create_snapshot()
    ack_all(world)
    assert world.create_snapshot().expire_time.seconds > 0


def test_the_oldest_message_is_one_that_matches(world: World) -> None:
    world.create_subscription(filter=RED)
    world.turn()
    colored(world, "red")
    world.turn()
    world.advance(DAY)
    colored(world, "blue")
    ack_all(world)
    world.advance(DAY)
    colored(world, "red")
    world.turn()
    world.advance(DAY)
    made = world.create_snapshot()

    assert made.expire_time.seconds == START_US // SECOND + 3 * DAY + 6 * DAY


@pytest.mark.parametrize("how", ["outstanding", "waiting"])
def test_a_message_that_was_delivered_is_as_old_as_it_is(world: World, how: str) -> None:
    world.create_subscription()
    world.turn()
    world.publish(b"old")
    world.turn()
    world.advance(DAY)
    world.publish(b"young")
    leases = world.pull()
    if how == "waiting":
        world.nack([lease.ack_id for lease in leases])
    made = world.create_snapshot()

    assert made.expire_time.seconds == START_US // SECOND + 7 * DAY


def test_every_change_is_in_the_journal(both: World) -> None:
    both.create_snapshot()
    update = pb.UpdateSnapshotRequest(
        snapshot=pb.Snapshot(name=SNAPSHOT, labels={"a": "b"}), update_mask=pb.FieldMask(paths=["labels"])
    )
    both.broker.update_snapshot(update, both.now_us)
    both.turn()
    both.seek_to_snapshot()
    both.turn()
    both.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), both.now_us)
    both.turn()
    found = {seq: json.loads(text) for seq, text in both.store.journal_details.items()}
    of_it = [(seq, one) for seq, one in sorted(found.items()) if "snapshot" in one]

    assert [one.get("change") for _, one in of_it] == ["created", "updated", None, "deleted"]
    (created_seq, created), (_, updated), (sought_seq, sought), _ = of_it
    assert (created["snapshot"]["name"], created["snapshot"]["topic"]) == (SNAPSHOT, TOPIC)
    assert updated["snapshot"]["labels"] == {"a": "b"}
    assert sought == {
        "snapshot": SNAPSHOT,
        "snapshot_seq": created_seq,
        "retain_acked": False,
        "kept_from_us": both.now_us,
    }
    events = dict(enumerate(both.events(), 1))
    assert (events[sought_seq].kind, events[sought_seq].aux) == (Kind.SEEK, START_US)
    assert events[created_seq].sub_id == both.subscription().sub_id, "of which it was taken"


def test_what_was_not_committed_never_happened(both: World) -> None:
    both.create_snapshot()
    both.begin()
    both.fail()
    assert snapshots(both) == []
    both.create_snapshot()
    both.turn()
    both.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), both.now_us)
    both.begin()
    both.fail()
    assert snapshots(both) == [SNAPSHOT]
    ack_all(both)
    before = states(both.broker)
    both.seek_to_snapshot()
    both.begin()
    both.fail()
    assert states(both.broker) == before


# -- refusals ----------------------------------------------------------------------------------------------


def refused(world: World, snapshot: str = SNAPSHOT, name: str = SUBSCRIPTION) -> str:
    request = pb.SeekRequest(subscription=name, snapshot=snapshot)
    before = states(world.broker)
    with pytest.raises(errors.PubsubError) as caught:
        world.broker.seek_questions(request, world.now_us)
    assert before == states(world.broker)
    return str(caught.value.status)


def test_what_cannot_be_taken_is_refused(both: World) -> None:
    both.create_snapshot()
    with pytest.raises(errors.AlreadyExists):
        both.create_snapshot()
    with pytest.raises(errors.NotFound):
        both.create_snapshot(LATER, OTHER)
    with pytest.raises(errors.InvalidArgument):
        both.create_snapshot("nonsense")
    both.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    with pytest.raises(errors.FailedPrecondition):
        both.create_snapshot(LATER)
    assert snapshots(both) == [SNAPSHOT]


def test_one_that_is_taken_twice_at_a_time_is_taken_once(both: World) -> None:
    request = pb.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    answers = both.answers(both.broker.snapshot_questions(request, both.now_us))
    both.broker.create_snapshot(request, answers, "unique", both.now_us)

    with pytest.raises(errors.AlreadyExists):
        both.broker.create_snapshot(request, answers, "unique", both.now_us)


def test_what_cannot_be_sought_is_refused(both: World) -> None:
    assert refused(both) == "NOT_FOUND"
    both.create_snapshot()
    assert refused(both, name=OTHER) == "NOT_FOUND"
    both.create_topic("projects/p/topics/invoices")
    both.create_subscription(OTHER, "projects/p/topics/invoices")
    assert refused(both, name=OTHER) == "FAILED_PRECONDITION"


def test_a_topic_of_the_same_name_is_another_topic(both: World) -> None:
    both.create_snapshot()
    both.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), both.now_us)
    assert get(both).topic == DELETED_TOPIC
    both.create_topic()
    both.create_subscription(OTHER)
    survives(both)

    assert refused(both, name=OTHER) == "FAILED_PRECONDITION"
    both.seek_to_snapshot()
    assert sorted(ids(both)) == [1, 3, 5], "its own subscription still can"


def test_one_without_order_is_not_for_an_ordered_subscription(both: World) -> None:
    both.create_snapshot()
    both.create_subscription(OTHER, enable_message_ordering=True)

    assert refused(both, name=OTHER) == "FAILED_PRECONDITION"


def test_an_ordered_one_is_for_both(world: World) -> None:
    world.create_subscription(enable_message_ordering=True)
    world.create_subscription(OTHER)
    world.turn()
    world.publish(b"1", b"2", ordering_key="k")
    world.turn()
    world.create_snapshot()
    ack_all(world)
    ack_all(world, OTHER)
    world.seek_to_snapshot()
    world.seek_to_snapshot(name=OTHER)
    survives(world)

    assert ids(world) == [1, 2]
    assert sorted(ids(world, OTHER)) == [1, 2]


def test_a_snapshot_that_goes_while_storage_is_asked_is_not_found(both: World) -> None:
    both.create_snapshot()
    request = pb.SeekRequest(subscription=SUBSCRIPTION, snapshot=SNAPSHOT)
    answers = both.answers(both.broker.seek_questions(request, both.now_us))
    both.broker.delete_snapshot(pb.DeleteSnapshotRequest(snapshot=SNAPSHOT), both.now_us)

    with pytest.raises(errors.NotFound):
        both.broker.seek(request, answers, both.now_us)
