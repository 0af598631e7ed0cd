"""Push subscriptions in the broker: one message of a key at a time, late answers, changes, failed commits."""

from __future__ import annotations

import pytest

from pubsubd.broker.consumer import Consumer
from pubsubd.model import errors
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, TOPIC, Shell, World, check, numbered, survives

ENDPOINT = {"push_endpoint": "http://localhost:1/push"}
DAY = 24 * 3600


def pushing(ordered: bool = False, **fields: object) -> World:
    world = World()
    world.create_topic()
    world.create_subscription(
        exactly_once=False, push_config=ENDPOINT, enable_message_ordering=ordered, **fields
    )
    world.turn()
    return world


def sub_id_of(world: World) -> int:
    return world.subscription().sub_id


def open_push(world: World, room: int = 100) -> Consumer:
    consumer = world.broker.open_push(
        SUBSCRIPTION, sub_id_of(world), "push: localhost:1", world.now_us, Shell()
    )
    assert consumer is not None
    consumer.max_messages = room
    world.broker.set_ready(consumer)
    return consumer


def ended(world: World, consumer: Consumer, accepted=(), failed=(), unsent=()) -> None:
    world.broker.push_ended(consumer, accepted, failed, unsent, world.now_us)
    world.broker.set_ready(consumer)
    world.settle()
    check(world.broker)


def taken(consumer: Consumer) -> list[int]:
    return consumer.shell.message_ids


def test_only_a_push_subscription_is_pushed() -> None:
    world = World()
    world.create_topic()
    world.create_subscription(exactly_once=False)

    assert world.broker.open_push(SUBSCRIPTION, sub_id_of(world), "push", world.now_us, Shell()) is None
    assert world.broker.open_push("projects/p/subscriptions/nobody", 1, "push", world.now_us, Shell()) is None


def test_what_the_endpoint_accepts_is_finished_and_what_it_does_not_comes_again() -> None:
    world = pushing()
    consumer = open_push(world)
    a, b = world.publish(b"a", b"b")
    world.settle()
    first, second = consumer.shell.ack_ids
    ended(world, consumer, [first], [second])

    assert taken(consumer) == [a, b, b]
    assert world.owed() == [b]
    assert [lease.attempt for lease in world.subscription().leases] == [2]
    assert [one.message_id for one in world.events(Kind.ACK)] == [a]
    assert [one.message_id for one in world.events(Kind.NACK)] == [b]
    survives(world)


def test_an_answer_after_the_deadline_is_ignored() -> None:
    world = pushing()
    consumer = open_push(world)
    world.publish(b"a")
    world.settle()
    world.advance(10, us=1)
    ended(world, consumer, consumer.shell.ack_ids)

    assert len(world.owed()) == 1
    assert world.events(Kind.ACK) == []
    assert len(consumer.shell.leases) == 2, "it is delivered again"


def test_what_was_never_sent_counts_no_attempt() -> None:
    world = pushing()
    consumer = open_push(world)
    world.publish(b"a")
    world.settle()
    ended(world, consumer, unsent=consumer.shell.ack_ids)

    assert [lease.attempt for lease in consumer.shell.leases] == [1, 1]


def test_of_a_key_one_message_is_outstanding() -> None:
    world = pushing(ordered=True)
    consumer = open_push(world)
    a = world.publish(*numbered(3), ordering_key="a")
    b = world.publish(*numbered(2), ordering_key="b")
    free = world.publish(*numbered(2))
    world.settle()
    assert sorted(taken(consumer)) == sorted([a[0], b[0], *free])

    by_id = {lease.message_id: lease.ack_id for lease in consumer.shell.leases}
    ended(world, consumer, [by_id[a[0]]], [by_id[b[0]]])
    assert taken(consumer)[4:] == [b[0], a[1]] or taken(consumer)[4:] == [a[1], b[0]]
    survives(world)


def test_a_failed_message_holds_its_key_while_it_rests() -> None:
    world = pushing(ordered=True, retry_policy={"minimum_backoff": {"seconds": 20}})
    consumer = open_push(world)
    a = world.publish(*numbered(2), ordering_key="a")
    b = world.publish(*numbered(2), ordering_key="b")
    world.settle()
    by_id = {lease.message_id: lease.ack_id for lease in consumer.shell.leases}
    ended(world, consumer, [by_id[b[0]]], [by_id[a[0]]])
    assert taken(consumer) == [a[0], b[0], b[1]]

    world.advance(20, us=1)
    world.broker.set_ready(consumer)
    world.settle()
    assert taken(consumer)[3:] == [a[0]], "b's ran out and rests"


def test_a_key_whose_message_left_for_the_dead_letter_topic_goes_on() -> None:
    world = World()
    world.create_topic()
    world.create_topic("projects/p/topics/dead")
    policy = {"dead_letter_topic": "projects/p/topics/dead", "max_delivery_attempts": 5}
    world.create_subscription(
        exactly_once=False,
        push_config=ENDPOINT,
        enable_message_ordering=True,
        dead_letter_policy=policy,
    )
    consumer = open_push(world)
    first, second = world.publish(*numbered(2), ordering_key="a")
    world.settle()
    for _ in range(5):
        ended(world, consumer, failed=consumer.shell.ack_ids[-1:])

    assert taken(consumer) == [first] * 5 + [second]
    attempts = [attempt for delivery in consumer.shell.got for attempt in delivery.attempts or []]
    assert attempts == [1, 2, 3, 4, 5, 1]


def test_the_window_bounds_what_is_granted() -> None:
    world = pushing()
    consumer = open_push(world, room=2)
    world.publish(*numbered(5))
    world.settle()
    assert len(taken(consumer)) == 2
    ended(world, consumer, consumer.shell.ack_ids[:1])
    assert len(taken(consumer)) == 3


def test_while_it_is_not_ready_nothing_is_granted_and_nothing_kept_at_hand() -> None:
    world = pushing()
    consumer = open_push(world, room=1)
    world.publish(*numbered(10))
    world.settle()
    backlog = world.subscription().backlog
    assert backlog._ahead

    world.broker.set_unready(consumer, rest=True)
    world.publish(b"more")
    world.settle()
    assert len(taken(consumer)) == 1 and not backlog._ahead
    assert not world.broker.is_stepping
    consumer.max_messages = 100
    world.broker.set_ready(consumer)
    world.settle()
    assert len(taken(consumer)) == 11


def test_streams_end_when_their_subscription_is_pushed_and_pushing_ends_when_it_is_pulled() -> None:
    world = World()
    world.create_topic()
    world.create_subscription(exactly_once=False)
    stream = world.open_stream()
    world.update(push_config=ENDPOINT)
    world.turn()
    (error,) = stream.shell.errors
    assert isinstance(error, errors.FailedPrecondition)

    consumer = open_push(world)
    world.publish(b"a")
    world.settle()
    world.update(clear=["push_config"])
    world.publish(b"b")
    world.settle()
    (error,) = consumer.shell.errors
    assert isinstance(error, errors.FailedPrecondition)
    assert len(taken(consumer)) == 1
    ended(world, consumer, consumer.shell.ack_ids)
    assert len(world.owed()) == 1, "the ack of the one that was under way counts"


def test_an_answer_counts_for_the_broker_that_was_restored() -> None:
    world = pushing()
    consumer = open_push(world)
    world.publish(b"a", b"b")
    world.settle()
    world.broker.push_ended(consumer, consumer.shell.ack_ids, (), (), world.now_us)
    world.begin()
    world.fail()
    assert len(world.owed()) == 2
    world.broker.close_stream(consumer, world.now_us)
    ended(world, consumer, consumer.shell.ack_ids)

    assert world.owed() == []


def test_an_answer_for_a_subscription_that_was_deleted_is_none_for_its_successor() -> None:
    world = pushing()
    consumer = open_push(world)
    world.publish(b"a")
    world.settle()
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.create_subscription(exactly_once=False, push_config=ENDPOINT)
    world.publish(b"b")
    world.broker.push_ended(consumer, consumer.shell.ack_ids, (), (), world.now_us)
    world.turn()

    assert len(world.owed()) == 1


@pytest.mark.parametrize("accepts", [True, False])
def test_only_what_the_endpoint_accepts_keeps_a_subscription_from_expiring(accepts: bool) -> None:
    ttl = pb.ExpirationPolicy(ttl={"seconds": 2 * DAY})
    world = pushing(expiration_policy=ttl, message_retention_duration={"seconds": 2 * DAY})
    consumer = open_push(world)
    for _ in range(3):
        world.advance(DAY)
        world.publish(b"x")
        world.settle()
        if accepts:
            ended(world, consumer, consumer.shell.ack_ids[-1:])

    assert accepts == any(one.name == SUBSCRIPTION for one in world.broker.subscriptions())


def test_the_key_that_signs_tokens_is_kept() -> None:
    world = pushing()
    world.broker.keep_push_key(b"secret")
    world.begin()
    world.fail()
    assert world.broker.push_key == b""

    world.broker.keep_push_key(b"secret")
    world.turn()
    world.crash()
    assert world.broker.push_key == b"secret"


def test_pushing_is_in_the_journal_as_a_stream_of_its_own() -> None:
    world = pushing()
    consumer = open_push(world)
    world.publish(b"a")
    world.settle()
    ended(world, consumer, consumer.shell.ack_ids)
    world.broker.close_stream(consumer, world.now_us)
    world.turn()

    opened, closed = [one for one in world.events(Kind.STREAM) if one.stream_id == consumer.stream_id]
    (delivered,), (acked,) = world.events(Kind.DELIVER), world.events(Kind.ACK)
    assert (opened.result, closed.result) == (0, 1)
    assert delivered.stream_id == acked.stream_id == consumer.stream_id
    details = " ".join(world.store.journal_details.values())
    assert '"client":"push: localhost:1"' in details.replace('": ', '":')
    assert world.subscription().topic.name == TOPIC
