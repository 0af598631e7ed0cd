"""A subscription is set to a time: what was published before it is acknowledged, and what came later is not.

Source: SeekRequest.time, https://cloud.google.com/pubsub/docs/replay-overview.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.eod.machine import Standing
from pubsubd.model import errors, limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import (
    SECOND,
    START_US,
    SUBSCRIPTION,
    TOPIC,
    World,
    check,
    promised,
    restored,
    serve,
    states,
    survives,
)

OTHER = "projects/p/subscriptions/other"
HOUR = 3600
LONG_AGO = -(10**14)  # before 1970


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """Five messages, one a second from `START_US` on; what is acked is kept."""
    world.create_subscription(exactly_once=request.param, retain_acked_messages=True)
    world.turn()
    five(world)
    return world


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def unkept(request: pytest.FixtureRequest, world: World) -> World:
    """The same, and what is acked is gone."""
    world.create_subscription(exactly_once=request.param)
    world.turn()
    five(world)
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


def five(world: World) -> None:
    for number in range(5):
        world.publish(b"%d" % number)
        world.turn()
        world.advance(1)


def at(message_id: int) -> int:
    """When a message of the five was published."""
    return START_US + (message_id - 1) * SECOND


def ids(world: World, name: str = SUBSCRIPTION) -> list[int]:
    return [lease.message_id for lease in world.pull(name)]


def ack_all(world: World, name: str = SUBSCRIPTION) -> None:
    while leases := world.pull(name):
        world.acknowledge([lease.ack_id for lease in leases], name)
    world.turn()


# -- which messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("time_us", "left"),
    [
        (LONG_AGO, [1, 2, 3, 4, 5]),
        (at(1), [1, 2, 3, 4, 5]),
        (at(3) - 1, [3, 4, 5]),
        (at(3), [3, 4, 5]),
        (at(3) + 1, [4, 5]),
        (at(5) + 1, []),
    ],
)
def test_what_was_published_before_it_is_acknowledged(
    world: World, kept: bool, time_us: int, left: list[int]
) -> None:
    world.create_subscription(retain_acked_messages=kept)
    world.turn()
    five(world)
    world.seek_to_time(time_us)
    assert world.owed() == left
    survives(world)

    assert ids(world) == left


@pytest.mark.parametrize(
    ("time_us", "back"),
    [(LONG_AGO, [1, 2, 3, 4, 5]), (at(3), [3, 4, 5]), (at(3) + 1, [4, 5]), (at(5) + 1, [])],
)
def test_what_was_acked_and_published_since_comes_back(both: World, time_us: int, back: list[int]) -> None:
    ack_all(both)
    both.seek_to_time(time_us)
    assert both.owed() == back
    survives(both)

    assert ids(both) == back


def test_what_was_acked_and_is_not_kept_does_not_come_back(unkept: World) -> None:
    leases = unkept.pull()
    unkept.acknowledge([lease.ack_id for lease in leases[:3]])
    unkept.turn()
    unkept.seek_to_time(LONG_AGO)

    assert unkept.owed() == [4, 5]
    survives(unkept)


def test_all_and_nothing(both: World) -> None:
    """Back and forth, each time as if it were the first."""
    for _ in range(3):
        both.seek_to_time(both.now_us)
        assert both.owed() == []
        assert ids(both) == []
        both.seek_to_time(LONG_AGO)
        assert both.owed() == [1, 2, 3, 4, 5]
        assert ids(both) == [1, 2, 3, 4, 5]
        survives(both)


def test_the_future_is_for_what_is_there_and_not_for_what_comes(both: World) -> None:
    both.seek_to_time(both.now_us + HOUR * SECOND)
    both.turn()
    assert both.owed() == []
    both.publish(b"new")

    assert ids(both) == [6]
    survives(both)


def test_what_is_being_stored_counts_as_published(both: World) -> None:
    ack_all(both)
    both.publish(b"flying")
    both.begin()
    both.publish(b"gathered")
    both.seek_to_time(both.now_us + 1)
    assert both.owed() == []
    both.end()
    survives(both)
    assert ids(both) == []

    both.publish(b"flying")
    both.begin()
    both.publish(b"gathered")
    both.seek_to_time(both.now_us)
    assert both.owed() == [6, 7, 8, 9], "all of them in this microsecond"
    both.end()
    assert ids(both) == [6, 7, 8, 9]


def test_a_message_from_before_the_subscription_does_not_come(both: World) -> None:
    both.create_subscription(OTHER, retain_acked_messages=True)
    both.turn()
    both.seek_to_time(LONG_AGO, OTHER)
    both.publish(b"new")

    assert ids(both, OTHER) == [6]


def test_what_the_topic_keeps_comes_whoever_had_it(world: World) -> None:
    world.create_topic("projects/p/topics/kept", message_retention_duration=pb.Duration(seconds=HOUR))
    for number in range(3):
        world.publish(b"%d" % number, topic="projects/p/topics/kept")
        world.turn()
        world.advance(1)
    world.create_subscription(OTHER, "projects/p/topics/kept")
    world.turn()
    assert ids(world, OTHER) == [], "unless a seek asks"
    world.seek_to_time(at(2), OTHER)
    assert world.owed(OTHER) == [2, 3]
    survives(world)
    ack_all(world, OTHER)
    world.seek_to_time(LONG_AGO, OTHER)

    assert ids(world, OTHER) == [1, 2, 3]


def test_what_is_past_its_retention_does_not_come_back(both: World) -> None:
    both.update(message_retention_duration=pb.Duration(seconds=HOUR))
    ack_all(both)
    both.now_us = at(3) + HOUR * SECOND
    both.settle()
    both.seek_to_time(LONG_AGO)

    assert both.owed() == [3, 4, 5]
    assert ids(both) == [3, 4, 5]


def test_what_storage_was_told_to_remove_does_not_come_back(both: World) -> None:
    both.update(retain_acked_messages=False)
    ack_all(both)
    both.broker.started("0", True, both.now_us)
    both.turn()
    both.update(retain_acked_messages=True)
    both.publish(b"six")
    ack_all(both)
    both.seek_to_time(LONG_AGO)

    assert ids(both) == [6]


def test_another_subscription_does_not_notice(both: World) -> None:
    both.create_subscription(OTHER)
    both.publish(b"six")
    both.turn()
    before = states(both.broker)[OTHER]
    both.seek_to_time(both.now_us + 1)
    both.seek_to_time(LONG_AGO)
    both.turn()

    assert states(both.broker)[OTHER] == before
    assert ids(both, OTHER) == [6]


# -- leases, and what waits --------------------------------------------------------------------------------


def test_a_lease_of_what_is_acknowledged_is_over(both: World) -> None:
    consumer = both.open_stream(max_outstanding_messages=5)
    serve(both, consumer)
    ack_ids = consumer.shell.ack_ids
    both.seek_to_time(at(4))
    assert consumer.outstanding_messages == 2
    both.turn()
    assert promised(both.broker, both.store) == promised(restored(both.store), both.store)

    assert both.acknowledge(ack_ids) == [], "what was asked for is so"
    assert both.owed() == []
    both.advance(11)
    assert ids(both) == []


def test_with_exactly_once_other_operations_on_it_fail(world: World) -> None:
    world.create_subscription()
    world.turn()
    five(world)
    leases = world.pull()
    world.seek_to_time(world.now_us)
    ack_ids = [lease.ack_id for lease in leases]

    assert world.modify_ack_deadline(ack_ids, 60) == ack_ids
    assert world.nack(ack_ids) == ack_ids
    assert {one.standing for one in world.refused} == {Standing.PURGED}
    survives(world)
    assert world.acknowledge(ack_ids) == []


def test_a_lease_of_what_stays_unacknowledged_stays(both: World) -> None:
    leases = both.pull()
    both.acknowledge([lease.ack_id for lease in leases[:2]])
    both.turn()
    both.seek_to_time(LONG_AGO)
    survives(both)
    assert ids(both) == [1, 2], "the others are outstanding"

    assert both.modify_ack_deadline([leases[2].ack_id], 60) == []
    assert both.acknowledge([lease.ack_id for lease in leases[2:]]) == []
    both.advance(11)
    assert ids(both) == [1, 2]
    survives(both)


def test_such_a_lease_that_runs_out_is_delivered_again(both: World) -> None:
    leases = both.pull()
    both.acknowledge([lease.ack_id for lease in leases[:2]])
    both.turn()
    both.seek_to_time(LONG_AGO)
    both.advance(11)
    numbers = {lease.message_id: (lease.generation, lease.attempt) for lease in both.pull()}

    assert numbers == {1: (2, 1), 2: (2, 1), 3: (2, 2), 4: (2, 2), 5: (2, 2)}


def test_what_waited_goes_on_with_its_attempts(both: World) -> None:
    leases = both.pull()
    both.nack([leases[1].ack_id])
    both.acknowledge([leases[0].ack_id])
    both.turn()
    both.seek_to_time(LONG_AGO)
    survives(both)

    leases = both.pull() + both.pull()
    assert [(lease.message_id, lease.generation, lease.attempt) for lease in leases] == [(1, 2, 1), (2, 2, 2)]


def test_what_waited_and_is_acknowledged_is_gone(both: World) -> None:
    leases = both.pull()
    both.nack([lease.ack_id for lease in leases])
    both.turn()
    both.seek_to_time(at(4))
    survives(both)

    assert ids(both) == [4, 5]


def test_with_exactly_once_old_ids_of_what_came_back_are_void(world: World) -> None:
    world.create_subscription(retain_acked_messages=True)
    world.turn()
    five(world)
    leases = world.pull()
    ack_ids = [lease.ack_id for lease in leases]
    world.acknowledge(ack_ids)
    world.turn()
    world.seek_to_time(LONG_AGO)
    survives(world)
    for _ in range(2):
        assert world.acknowledge(ack_ids) == ack_ids
        assert world.modify_ack_deadline(ack_ids, 60) == ack_ids
        assert world.nack(ack_ids) == ack_ids
        assert {one.standing for one in world.refused} == {Standing.SUPERSEDED}
        again = world.pull()

    assert again == []
    assert world.acknowledge([lease.ack_id for lease in world.subscription().leases]) == []


def test_without_it_they_are_answered_ok_and_do_nothing(world: World) -> None:
    world.create_subscription(exactly_once=False, retain_acked_messages=True)
    world.turn()
    five(world)
    leases = world.pull()
    world.acknowledge([lease.ack_id for lease in leases])
    world.turn()
    world.seek_to_time(LONG_AGO)

    assert world.acknowledge([lease.ack_id for lease in leases]) == []
    assert world.owed() == [1, 2, 3, 4, 5]
    assert ids(world) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(8))
def test_no_generation_is_ever_granted_twice(world: World, seed: int) -> None:
    """An ack id that stands for two deliveries would ack the wrong one."""
    random = Random(seed)
    world.create_subscription(exactly_once=seed % 2 == 0, retain_acked_messages=True)
    world.turn()
    granted: Counter[tuple[int, int]] = Counter()
    for _ in range(60):
        match random.randrange(7):
            case 0:
                world.publish(*[b"x"] * random.randint(1, 3))
            case 1:
                world.seek_to_time(START_US + random.randrange(60) * SECOND)
            case 2:
                survives(world)
            case _:
                leases = world.pull(max_messages=random.randint(1, 4))
                granted.update((lease.message_id, lease.generation) for lease in leases)
                there = [lease.ack_id for lease in world.subscription().leases]
                chosen = random.sample(there, random.randint(0, len(there)))
                if chosen:
                    (world.acknowledge if random.random() < 0.6 else world.nack)(chosen)
        world.advance(random.choice([0, 1, 1, 3, 11]))
        world.turn()
        check(world.broker)

    assert granted
    assert max(granted.values()) == 1


# -- live streams, and bytes that are on their way ---------------------------------------------------------


def test_a_live_stream_gets_what_came_back_at_once(both: World) -> None:
    consumer = both.open_stream()
    serve(both, consumer)
    both.acknowledge(consumer.shell.ack_ids)
    both.settle()
    both.seek_to_time(at(4))
    both.settle()

    assert consumer.shell.message_ids == [1, 2, 3, 4, 5, 4, 5]


def test_a_full_stream_has_room_for_what_comes_after_a_purge(both: World) -> None:
    consumer = both.open_stream(max_outstanding_messages=3)
    serve(both, consumer)
    assert consumer.shell.message_ids == [1, 2, 3]
    both.seek_to_time(at(4))
    serve(both, consumer)

    assert consumer.shell.message_ids == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("cold")
def test_what_came_back_is_read(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 1)
    ack_all(both)
    both.seek_to_time(at(2))
    consumer = both.open_stream()
    for _ in range(5):
        serve(both, consumer)

    assert consumer.shell.message_ids == [2, 3, 4, 5]
    assert [message.data for message in consumer.shell.messages()] == [b"1", b"2", b"3", b"4"]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("time_us", [LONG_AGO, at(3), at(5) + 1])
def test_a_range_whose_read_is_under_way_is_not_taken_for_what_is_owed_now(both: World, time_us: int) -> None:
    both.pull(max_messages=1)
    consumer = both.open_stream()
    both.broker.set_ready(consumer)
    both.turn()
    both.seek_to_time(time_us)
    both.read()
    serve(both, consumer)

    expected = [one for one in (2, 3, 4, 5) if at(one) >= time_us]
    assert consumer.shell.message_ids[-len(expected) :] == expected or not expected
    assert Counter(consumer.shell.message_ids) == Counter(set(consumer.shell.message_ids))


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("time_us", [LONG_AGO, at(2)])
def test_a_key_whose_read_is_under_way_keeps_its_order(world: World, time_us: int) -> None:
    world.create_subscription(enable_message_ordering=True)
    world.turn()
    for number in range(3):
        world.publish(b"%d" % number, ordering_key="k")
        world.turn()
        world.advance(1)
    consumer = world.open_stream(seconds=60)
    serve(world, consumer)
    first, second, third = consumer.shell.leases
    world.nack([first.ack_id])
    world.turn()
    assert world.reads
    world.seek_to_time(time_us)
    world.read()
    check(world.broker)
    serve(world, consumer)
    assert {2, 3}.isdisjoint(consumer.shell.message_ids[3:]), "their deadlines are not over"

    world.advance(61)
    serve(world, consumer)
    assert consumer.shell.message_ids[-2:] == [2, 3]
    assert world.nack([second.ack_id, third.ack_id]) != []


# -- all or nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("time_us", [LONG_AGO, at(3), at(5) + 1])
def test_a_seek_whose_commit_failed_did_not_happen(both: World, time_us: int) -> None:
    leases = both.pull(max_messages=4)
    both.acknowledge([leases[0].ack_id])
    both.nack([leases[1].ack_id])
    both.turn()
    before = states(both.broker)
    both.seek_to_time(time_us)
    both.begin()
    both.fail()

    assert before == states(both.broker)
    check(both.broker)


def test_a_seek_that_was_not_committed_is_lost_in_a_crash(both: World) -> None:
    ack_all(both)
    both.seek_to_time(LONG_AGO)
    both.crash()

    assert both.owed() == []


def test_it_is_in_the_journal(both: World) -> None:
    both.update(message_retention_duration=pb.Duration(seconds=HOUR))
    both.seek_to_time(at(3))
    both.turn()
    (event,) = both.events(Kind.SEEK)

    assert (event.sub_id, event.topic_id, event.message_id) == (1, 1, 0)
    assert (event.ts_us, event.aux) == (both.now_us, at(3))
    assert details(both)[-1] == {"kept_after_id": 0, "kept_from_us": START_US, "retain_acked": True}


def test_it_says_what_is_kept(unkept: World) -> None:
    unkept.seek_to_time(at(3))
    unkept.turn()

    assert details(unkept)[-1] == {"kept_after_id": 0, "kept_from_us": 0, "retain_acked": False}


def details(world: World) -> list[dict[str, object]]:
    return [
        json.loads(text)
        for _, text in sorted(world.store.journal_details.items())
        if "retain_acked" in json.loads(text)
    ]


@pytest.mark.parametrize("seconds", [-62_135_596_800, 253_402_300_799])
def test_the_ends_of_time_are_times(both: World, seconds: int) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=seconds))
    both.broker.seek(request, both.answers(both.broker.seek_questions(request, both.now_us)), both.now_us)

    assert both.owed() == ([1, 2, 3, 4, 5] if seconds < 0 else [])
    survives(both)


def test_a_fraction_of_a_microsecond_lies_after_it(both: World) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=at(3) // SECOND, nanos=1))
    both.broker.seek(request, both.answers(both.broker.seek_questions(request, both.now_us)), both.now_us)

    assert both.owed() == [4, 5]


# -- refusals ----------------------------------------------------------------------------------------------


def refused(world: World, request: pb.SeekRequest) -> errors.PubsubError:
    before = states(world.broker)
    with pytest.raises(errors.PubsubError) as caught:
        world.broker.seek_questions(request, world.now_us)
    assert before == states(world.broker)
    return caught.value


def test_what_cannot_be_sought_is_refused(both: World) -> None:
    now = pb.Timestamp(seconds=1)
    assert refused(both, pb.SeekRequest(subscription=SUBSCRIPTION)).status == "INVALID_ARGUMENT"
    assert refused(both, pb.SeekRequest(subscription=OTHER, time=now)).status == "NOT_FOUND"
    bad = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(nanos=-1))
    assert refused(both, bad).status == "INVALID_ARGUMENT"
    both.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=now)
    assert refused(both, request).status == "FAILED_PRECONDITION"


def test_a_subscription_that_changed_while_storage_was_asked_is_to_be_sought_again(both: World) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=1))
    answers = both.answers(both.broker.seek_questions(request, both.now_us))
    both.update(retain_acked_messages=False)

    with pytest.raises(errors.Aborted):
        both.broker.seek(request, answers, both.now_us)


def test_what_was_published_while_storage_was_asked_is_judged_by_its_time(both: World) -> None:
    ack_all(both)
    both.advance(1)
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=at(7) // SECOND))
    assert both.now_us == at(7)
    both.advance(us=-1)
    answers = both.answers(both.broker.seek_questions(request, both.now_us))
    both.publish(b"just before")
    both.turn()
    both.advance(us=1)
    both.publish(b"just then")
    both.turn()
    both.broker.seek(request, answers, both.now_us)

    assert both.owed() == [7]


def test_messages_of_one_moment_that_are_kept_in_part_are_told_apart(world: World) -> None:
    """In one microsecond: a message, the subscription, and a message that it was owed."""
    world.publish(b"before it")
    world.create_subscription(retain_acked_messages=True)
    world.publish(b"after it")
    ack_all(world)
    world.turn()
    world.seek_to_time(LONG_AGO)
    world.turn()

    assert world.owed() == [2]
    told = details(world)[-1]
    assert (told["kept_after_id"], told["kept_from_us"]) == (1, START_US)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("stored", [True, False])
def test_the_journal_says_from_when_on_it_was_kept_though_storage_took_its_time(
    both: World, stored: bool
) -> None:
    """It was asked when 3 was the oldest that is kept, or when nothing was; it is answered much later."""
    both.update(message_retention_duration=pb.Duration(seconds=HOUR))
    ack_all(both)
    both.turn()
    both.now_us = at(3) + HOUR * SECOND if stored else at(100) + HOUR * SECOND
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=0))
    asked_us = both.now_us
    answers = both.answers(both.broker.seek_questions(request, both.now_us))
    for _ in range(3):
        both.advance(1)
        both.publish(b"later")
        both.turn()
    ack_all(both)
    both.broker.seek(request, answers, both.now_us)
    both.turn()

    assert both.owed()[-3:] == [6, 7, 8]
    assert details(both)[-1]["kept_from_us"] == (at(3) if stored else asked_us)


@pytest.mark.usefixtures("cold")
def test_a_time_that_passes_while_storage_is_asked_is_to_be_sought_again(both: World) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=at(8) // SECOND))
    answers = both.answers(both.broker.seek_questions(request, both.now_us))
    both.publish(b"six")
    both.turn()
    both.now_us = at(9)
    both.publish(b"seven")
    both.turn()

    with pytest.raises(errors.Aborted):
        both.broker.seek(request, answers, both.now_us)
    both.seek_to_time(at(8))
    assert both.owed() == [7]


def test_a_subscription_of_a_deleted_topic_can_be_sought(both: World) -> None:
    both.broker.delete_topic(pb.DeleteTopicRequest(topic=TOPIC), both.now_us)
    ack_all(both)
    both.seek_to_time(at(4))

    assert ids(both) == [4, 5]
    survives(both)


def test_seeks_leave_little_behind(both: World) -> None:
    """However often a subscription is sought: the last ones are what ids must be told apart by."""
    for _ in range(50):
        both.seek_to_time(LONG_AGO)
        both.pull()
        both.turn()
    both.turn(checkpoint=True)
    (blob,) = both.store.oplog

    assert len(both.subscription()._epochs) == 1
    assert len(blob) < 1500
