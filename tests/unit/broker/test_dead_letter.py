"""Messages that failed too often leave for the dead letter topic: once, with what they were, and never lost.

Source: Subscription.dead_letter_policy, ReceivedMessage.delivery_attempt,
https://cloud.google.com/pubsub/docs/handling-failures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.eod.lease import Lease
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import (
    SECOND,
    START_US,
    SUBSCRIPTION,
    TOPIC,
    World,
    check,
    restored,
    serve,
    states,
    survives,
)

DEAD = "projects/p/topics/dead-letters"
GRAVE = "projects/p/subscriptions/grave"
PREFIX = "CloudPubSubDeadLetterSource"


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """A subscription with a dead letter topic, and one on that topic."""
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription(exactly_once=request.param, dead_letter_policy=policy())
    world.turn()
    return world


@pytest.fixture
def eod(world: World) -> World:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription(dead_letter_policy=policy())
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


def policy(attempts: int = 5, topic: str = DEAD) -> pb.DeadLetterPolicy:
    return pb.DeadLetterPolicy(dead_letter_topic=topic, max_delivery_attempts=attempts)


def fail(world: World, times: int, how: str = "nack") -> list[Lease]:
    """One message is delivered and fails so often."""
    leases: list[Lease] = []
    for _ in range(times):
        (lease,) = world.pull()
        leases.append(lease)
        if how == "nack":
            world.nack([lease.ack_id])
        else:
            world.now_us = lease.deadline_us + 1
        world.settle()
    return leases


def buried(world: World, name: str = GRAVE) -> list[pb.PubsubMessage]:
    consumer = world.open_stream(name, seconds=600)
    serve(world, consumer)
    world.broker.stop_assigning(consumer)
    messages: list[pb.PubsubMessage] = consumer.shell.messages()
    return messages


# -- the fifth failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "deadline"])
def test_the_fifth_failure_sends_a_message_to_the_dead_letter_topic(both: World, how: str) -> None:
    both.publish(b"bad", ordering_key="k", attributes={"color": "red"})
    leases = fail(both, 5, how)

    assert [(lease.generation, lease.attempt) for lease in leases] == [(at, at) for at in range(1, 6)]
    assert both.pull() == []
    assert both.owed() == []
    (message,) = buried(both)
    assert (message.data, message.ordering_key, message.message_id) == (b"bad", "k", "2")
    assert dict(message.attributes) == {
        "color": "red",
        f"{PREFIX}DeliveryCount": "5",
        f"{PREFIX}Subscription": "billing",
        f"{PREFIX}SubscriptionProject": "p",
        f"{PREFIX}TopicPublishTime": "2027-01-15T08:00:00.000+00:00",
    }
    assert both.now_us == message.publish_time.seconds * SECOND + message.publish_time.nanos // 1000


def test_an_ack_in_time_keeps_it_here(both: World) -> None:
    both.publish(b"good")
    fail(both, 4)
    (lease,) = both.pull()
    assert lease.attempt == 5
    assert both.acknowledge([lease.ack_id]) == []

    assert buried(both) == []


def test_the_number_of_attempts_is_the_policys(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription(dead_letter_policy=policy(7))
    world.publish(b"bad")
    assert len(fail(world, 7)) == 7

    assert buried(world)[0].attributes[f"{PREFIX}DeliveryCount"] == "7"


def test_what_the_client_never_did_does_not_count(both: World) -> None:
    """Extensions, failed acks, the end of a stream, a restart."""
    both.publish(b"a")
    for _ in range(3):
        fail(both, 1)
    consumer = both.open_stream(seconds=10)
    both.settle()
    (lease,) = consumer.shell.leases
    for _ in range(10):
        both.modify_ack_deadline([lease.ack_id], 10)
        both.advance(5)
        both.settle()
    both.close_stream(consumer)
    both.turn()
    both.crash()
    assert [one.attempt for one in both.subscription().leases] == [4]

    both.now_us += 10 * SECOND + 1
    (lease,) = both.pull()
    assert lease.attempt == 5


def test_both_halves_are_one_commit(both: World) -> None:
    both.publish(b"bad")
    fail(both, 5)
    both.turn()
    (deadletter,) = both.events(Kind.DEADLETTER)
    copies = [event for event in both.events(Kind.PUBLISH) if event.message_id == deadletter.aux]
    (commit,) = [
        commit for commit in both.store.commits if any(chunk.last_id == 2 for chunk in commit.chunks)
    ]

    assert len(copies) == 1
    assert (deadletter.message_id, deadletter.generation, deadletter.attempt) == (1, 5, 5)
    assert (deadletter.topic_id, deadletter.sub_id) == (copies[0].topic_id, both.subscription().sub_id)
    assert (deadletter.ref_ts_us, deadletter.okey) == (START_US, 0)
    assert copies[0].ts_us == both.now_us
    seqs = [at for at, event in enumerate(both.events()) if event in (deadletter, copies[0])]
    assert commit.journal is not None
    first_seq, count = commit.journal[0] - 1, commit.journal[1]
    assert all(first_seq <= at < first_seq + count for at in seqs)


@pytest.mark.parametrize("written", [False, True])
def test_a_commit_that_fails_forwards_once_or_not_yet(both: World, written: bool) -> None:
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.begin()
    both.fail(written)
    both.settle()
    if not written:
        assert both.owed() == [1]
        assert both.nack([lease.ack_id]) == []
        both.settle()

    assert both.owed() == []
    assert len(buried(both)) == 1


def test_a_crash_between_the_failure_and_the_forwarding_loses_nothing(both: World) -> None:
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.broker.advance_to(both.now_us)
    # The nack is committed by itself, as when the bytes have to be read first.
    both.flying = both.broker.take_effects()
    both._flying_commit = both.commit_of(both.flying, False)
    both._flying_message_id = both.broker.message_id
    both.end()
    both.crash()
    assert both.owed() == [1]
    both.settle()

    assert both.owed() == []
    assert len(buried(both)) == 1
    survives(both)


def test_it_is_forwarded_though_nobody_consumes(both: World) -> None:
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.now_us = lease.deadline_us + 1
    both.settle()

    assert both.owed() == []
    assert both.owed(GRAVE) == [2]


@pytest.mark.usefixtures("cold")
def test_what_is_not_in_memory_is_read_first(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", 2)
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 1)
    both.publish(*[b"%d" % number for number in range(7)])
    for _ in range(5):
        leases = []
        while leases_now := both.pull():
            leases += leases_now
        assert len(leases) == 7
        both.nack([lease.ack_id for lease in leases])
    both.settle()

    assert both.owed() == []
    assert sorted(message.data for message in buried(both)) == [b"%d" % number for number in range(7)]


@pytest.mark.usefixtures("cold")
def test_a_read_for_it_that_fails_is_asked_again(both: World) -> None:
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.turn()
    (read,) = both.reads
    both.reads.clear()
    both.broker.read_failed(read, both.now_us)
    both.settle()

    assert both.owed() == []
    assert len(buried(both)) == 1


# -- what clients see --------------------------------------------------------------------------------------


def test_attempts_are_shown_only_with_a_policy(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription()
    world.publish(b"a")
    shown = []
    for at in range(4):
        consumer = world.open_pull()
        world.settle()
        (delivery,) = consumer.shell.got
        shown.append(delivery.attempts)
        world.nack([delivery.leases[0].ack_id])
        if at == 1:
            world.update(dead_letter_policy=policy())

    assert shown == [None, None, [1], [2]], "it starts at one when the policy comes"


def test_old_ids_are_void(eod: World) -> None:
    eod.publish(b"bad")
    leases = fail(eod, 5)
    ack_ids = [lease.ack_id for lease in leases]

    for ack_id in ack_ids:
        assert eod.acknowledge([ack_id]) == [ack_id]
        assert eod.modify_ack_deadline([ack_id], 60) == [ack_id]
    assert eod.nack(ack_ids) == [], "each was nacked, so a repetition is true"
    survives(eod)
    assert eod.acknowledge(ack_ids) == ack_ids


def test_an_id_whose_deadline_forwarded_it_is_void(eod: World) -> None:
    eod.publish(b"bad")
    lease = fail(eod, 5, "deadline")[-1]

    assert eod.acknowledge([lease.ack_id]) == [lease.ack_id]
    assert eod.nack([lease.ack_id]) == [lease.ack_id]
    eod.turn()
    assert len(buried(eod)) == 1


def test_without_exactly_once_a_late_ack_is_too_late(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription(exactly_once=False, dead_letter_policy=policy())
    world.publish(b"bad")
    leases = fail(world, 5)

    assert world.acknowledge([lease.ack_id for lease in leases]) == []
    assert len(buried(world)) == 1


# -- the policy changes ------------------------------------------------------------------------------------


def test_what_failed_before_there_was_a_policy_does_not_count(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription()
    world.publish(b"bad")
    fail(world, 8)
    world.update(dead_letter_policy=policy())
    survives(world)
    leases = fail(world, 5)

    assert [lease.attempt for lease in leases] == [9, 10, 11, 12, 13]
    assert world.owed() == []
    assert buried(world)[0].attributes[f"{PREFIX}DeliveryCount"] == "5"


def test_a_policy_that_goes_and_comes_starts_anew(both: World) -> None:
    both.publish(b"a")
    fail(both, 4)
    both.update(clear=["dead_letter_policy"])
    fail(both, 3)
    both.update(dead_letter_policy=policy())
    survives(both)
    fail(both, 4)
    assert both.owed() == [1]

    fail(both, 1)
    assert both.owed() == []


def test_a_policy_that_changes_keeps_the_counts(both: World) -> None:
    both.publish(b"a")
    fail(both, 4)
    both.update(dead_letter_policy=policy(9))
    fail(both, 4)
    assert both.owed() == [1]

    fail(both, 1)
    assert both.owed() == []
    assert buried(both)[0].attributes[f"{PREFIX}DeliveryCount"] == "9"


def test_what_failed_too_often_for_a_lowered_maximum_goes_instead_of_being_delivered(both: World) -> None:
    both.update(dead_letter_policy=policy(9))
    both.publish(b"a", b"b")
    first, _ = both.pull()
    both.nack([first.ack_id])
    fail(both, 6)
    both.update(dead_letter_policy=policy(5))
    assert both.pull() == []
    both.settle()

    assert both.owed() == [2], "the other one is outstanding, and failed never"
    assert buried(both)[0].attributes[f"{PREFIX}DeliveryCount"] == "7"


def test_a_lease_is_not_cut_short_by_a_lowered_maximum(both: World) -> None:
    both.update(dead_letter_policy=policy(9))
    both.publish(b"a")
    fail(both, 6)
    (lease,) = both.pull()
    both.update(dead_letter_policy=policy(5))
    both.settle()
    assert both.acknowledge([lease.ack_id]) == []

    assert buried(both) == []


def test_a_policy_that_goes_stops_what_waits_to_be_forwarded(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    both.publish(b"a")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.turn()
    assert both.reads
    both.update(clear=["dead_letter_policy"])
    both.settle()

    assert both.owed() == [1]
    assert len(both.pull()) == 1
    assert buried(both) == []


# -- the topic goes ----------------------------------------------------------------------------------------


def delete_dead(world: World) -> None:
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=DEAD), world.now_us)
    world.turn()


def test_without_its_topic_a_message_stays_and_is_delivered_again(both: World) -> None:
    delete_dead(both)
    both.publish(b"bad")
    leases = fail(both, 9)
    assert [lease.attempt for lease in leases] == list(range(1, 10))
    assert both.owed() == [1]
    survives(both)

    # A new topic of that name is the one that is meant.
    both.create_topic(DEAD)
    both.create_subscription("projects/p/subscriptions/new", DEAD)
    assert both.pull() == []
    both.settle()
    assert both.owed() == []
    (message,) = buried(both, "projects/p/subscriptions/new")
    assert message.attributes[f"{PREFIX}DeliveryCount"] == "9"


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_topic_that_goes_while_messages_are_on_their_way_to_it(world: World, ordered: bool) -> None:
    world.create_topic(DEAD)
    world.create_subscription(dead_letter_policy=policy(), enable_message_ordering=ordered)
    world.turn()
    world.publish(b"bad", ordering_key="k")
    fail(world, 4)
    (lease,) = world.pull()
    world.nack([lease.ack_id])
    world.turn()
    assert world.reads
    delete_dead(world)
    world.settle()

    assert [(lease.message_id, lease.attempt) for lease in world.pull()] == [(1, 6)]


def test_a_dead_letter_topic_without_subscriptions_keeps_nothing(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(dead_letter_policy=policy())
    world.publish(b"bad")
    fail(world, 5)
    world.turn()

    assert world.owed() == []
    assert world.store.chunks.get(2, {}) == {}
    assert world.publish(b"next") == [3], "its number is used up"


def test_the_policy_of_a_deleted_subscription_does_nothing(both: World) -> None:
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    both.settle()

    assert buried(both) == []
    assert states(both.broker) == states(restored(both.store))


# -- with other features -----------------------------------------------------------------------------------


def test_dead_letters_can_die_again(world: World) -> None:
    other = "projects/p/topics/really-dead"
    world.create_topic(DEAD)
    world.create_topic(other)
    world.create_subscription(dead_letter_policy=policy())
    world.create_subscription(GRAVE, DEAD, dead_letter_policy=policy(5, other))
    world.create_subscription("projects/p/subscriptions/end", other)
    world.publish(b"bad", attributes={"a": "b"})
    fail(world, 5)
    for _ in range(5):
        (lease,) = world.pull(GRAVE)
        world.nack([lease.ack_id], GRAVE)
        world.settle()

    (message,) = buried(world, "projects/p/subscriptions/end")
    assert message.attributes["a"] == "b"
    assert message.attributes[f"{PREFIX}Subscription"] == "grave"
    assert (world.owed(), world.owed(GRAVE)) == ([], [])
    survives(world)


def test_a_circle_of_dead_letter_topics_turns_by_failures_only(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(dead_letter_policy=policy())
    world.create_subscription(GRAVE, DEAD, dead_letter_policy=policy(5, TOPIC))
    world.publish(b"bad")
    for name in (SUBSCRIPTION, GRAVE) * 3:
        for _ in range(5):
            (lease,) = world.pull(name)
            world.nack([lease.ack_id], name)
            world.settle()

    assert world.owed() == [7]
    assert world.owed(GRAVE) == []


def test_the_last_failure_is_followed_by_no_rest(both: World) -> None:
    both.update(retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=10)))
    both.publish(b"bad")
    for seconds in (10, 20, 40, 80):
        fail(both, 1)
        both.advance(seconds, us=1)
    fail(both, 1)

    assert len(buried(both)) == 1


def test_what_rests_and_has_failed_too_often_is_forwarded_when_its_rest_is_over(both: World) -> None:
    both.update(
        retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=10)), dead_letter_policy=policy(9)
    )
    both.publish(b"bad")
    for seconds in (10, 20, 40, 80):
        fail(both, 1)
        both.advance(seconds, us=1)
    fail(both, 1)
    both.update(dead_letter_policy=policy(5))
    both.settle()
    assert buried(both) == []
    both.advance(160, us=1)
    assert both.pull() == []
    both.settle()

    assert len(buried(both)) == 1


def test_what_the_filter_rejects_never_fails(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD)
    world.create_subscription(dead_letter_policy=policy(), filter="attributes:color")
    world.publish(b"no")
    world.publish(b"yes", attributes={"color": "red"})
    fail(world, 5)

    assert [message.data for message in buried(world)] == [b"yes"]


def test_the_filter_on_the_dead_letter_topic_sees_the_copy(world: World) -> None:
    world.create_topic(DEAD)
    world.create_subscription(GRAVE, DEAD, filter=f'attributes.{PREFIX}DeliveryCount = "5"')
    other = "projects/p/subscriptions/other-grave"
    world.create_subscription(other, DEAD, filter=f"NOT attributes:{PREFIX}Subscription")
    world.create_subscription(dead_letter_policy=policy())
    world.publish(b"bad")
    fail(world, 5)

    assert len(buried(world)) == 1
    assert buried(world, other) == []


def test_many_leave_at_once(both: World) -> None:
    both.publish(*[b"x"] * 100)
    for _ in range(5):
        both.nack([lease.ack_id for lease in both.pull()])
    both.settle()

    assert both.owed() == []
    assert both.owed(GRAVE) == list(range(101, 201))
    assert len(both.events(Kind.DEADLETTER)) == 100
    survives(both)


def test_a_seek_brings_back_what_was_forwarded(both: World) -> None:
    both.update(retain_acked_messages=True)
    both.publish(b"bad")
    leases = fail(both, 5)
    both.turn()
    both.seek_to_time(START_US - 1)
    survives(both)

    (lease,) = both.pull()
    assert (lease.message_id, lease.attempt) == (1, 1), "it starts anew"
    assert lease.generation > leases[-1].generation
    assert both.acknowledge([lease.ack_id]) == []
    assert both.acknowledge([lease.ack_id]) == [], "a repetition"


def test_a_seek_purges_what_is_on_its_way_to_the_dead_letter_topic(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    both.publish(b"bad")
    fail(both, 4)
    (lease,) = both.pull()
    both.nack([lease.ack_id])
    both.turn()
    both.seek_to_time(both.now_us + 1)
    both.settle()

    assert both.owed() == []
    assert buried(both) == []
    survives(both)
