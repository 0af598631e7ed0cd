"""A commit that fails: nothing of it happened, nobody was told, and the streams stay."""

from __future__ import annotations

import pytest

from pubsubd.model import errors
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, World, check, numbered, states

OTHER = "projects/p/subscriptions/other"


def test_the_state_is_what_was_last_committed(eod: World) -> None:
    eod.publish(b"a", b"b")
    (lease,) = eod.pull(max_messages=1)
    before = states(eod.broker)

    eod.acknowledge([lease.ack_id])
    eod.publish(b"in the commit")
    eod.begin()
    eod.publish(b"on top of it")
    eod.create_subscription(OTHER)
    eod.fail()

    assert before == states(eod.broker)
    assert eod.publish(b"c") == [3]
    assert eod.acknowledge([lease.ack_id]) == []


def test_what_was_written_all_the_same_is_the_state(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.acknowledge([lease.ack_id])
    eod.begin()
    eod.fail(written=True)

    assert eod.owed() == []
    assert eod.acknowledge([lease.ack_id]) == []
    assert eod.pull() == []


def test_a_stream_stays_and_gets_what_it_was_to_get(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.turn()
    eod.publish(b"b")
    eod.broker.set_ready(consumer)
    eod.turn()
    assert consumer.shell.message_ids == [1, 2]

    eod.nack(consumer.shell.ack_ids[:1])
    eod.broker.set_ready(consumer)
    assert len(eod.begin().deliveries) == 1
    eod.fail()

    assert consumer.shell.not_delivered_count == 1
    # Both leases run as they did; the client was done with one of them, so that takes up no room.
    assert sorted(eod.subscription().leases.by_message) == [1, 2]
    assert consumer.outstanding_messages == 1
    assert consumer.shell.errors == []
    check(eod.broker)
    eod.nack(consumer.shell.ack_ids[:1])
    eod.broker.set_ready(consumer)
    eod.settle()
    assert consumer.shell.message_ids == [1, 2, 1]
    assert consumer.shell.leases[2].generation == 2


def test_an_ack_that_failed_with_its_commit_takes_up_no_room_again(eod: World) -> None:
    consumer = eod.open_stream(max_outstanding_messages=2)
    eod.publish(b"a", b"b")
    eod.settle()
    eod.acknowledge(consumer.shell.ack_ids[:1])
    eod.begin()
    eod.fail()

    assert consumer.outstanding_messages == 1
    assert eod.acknowledge(consumer.shell.ack_ids) == [], "tried again, it succeeds"
    assert consumer.outstanding_messages == 0
    check(eod.broker)


def test_a_waiting_pull_waits_on_and_one_that_was_granted_is_told(eod: World) -> None:
    eod.publish(b"a")
    eod.turn()
    granted, waiting = eod.open_pull(max_messages=1), eod.open_pull()
    eod.begin()
    eod.fail()

    assert (granted.shell.not_delivered_count, waiting.shell.not_delivered_count) == (1, 0)
    eod.settle()
    assert (granted.shell.message_ids, waiting.shell.message_ids) == ([], [1])


def test_a_consumer_that_was_ready_is_ready(eod: World) -> None:
    consumer = eod.open_stream()
    idle = eod.open_stream(ready=False)
    eod.begin()
    eod.fail()
    eod.publish(b"a")
    eod.settle()

    assert consumer.shell.message_ids == [1]
    assert idle.shell.message_ids == []


def test_a_stream_on_a_subscription_that_was_never_made_is_closed(world: World) -> None:
    world.create_subscription()
    consumer, pull = world.open_stream(), world.open_pull()
    world.publish(b"a")
    world.begin()
    world.fail()
    assert consumer.shell.errors == []
    world.broker.set_ready(consumer)  # as its shell does when it hears that nothing is delivered
    world.settle()

    for one in (consumer, pull):
        (error,) = one.shell.errors
        assert isinstance(error, errors.NotFound)
        assert one.shell.message_ids == []
    world.close_stream(consumer)
    world.broker.close_pull(pull)


@pytest.mark.parametrize("how", ["delete", "detach"])
def test_a_deletion_that_failed_leaves_everything_and_its_streams_come_back_by_themselves(
    eod: World, how: str
) -> None:
    consumer = eod.open_stream()
    eod.publish(*numbered(3))
    eod.settle()
    before = states(eod.broker)
    if how == "delete":
        eod.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    else:
        eod.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    eod.begin()
    eod.fail()

    assert before == states(eod.broker)
    assert len(eod.store.chunks[1]) == 1
    eod.begin()
    eod.fail()
    eod.turn()
    assert errors.Unavailable in [type(error) for error in consumer.shell.errors]
    assert not [error for error in consumer.shell.errors if not isinstance(error, errors.Unavailable)]
    eod.close_stream(consumer)
    assert eod.acknowledge(consumer.shell.ack_ids) == []
    check(eod.broker)


@pytest.mark.parametrize("how", ["delete", "detach"])
def test_an_ack_on_a_stream_that_is_about_to_be_closed_is_not_lost(eod: World, how: str) -> None:
    """Its deletion failed, and it has not heard yet that it has to come back. What it asks for must not be
    answered as done, since the broker that it was open on is gone."""
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.settle()
    if how == "delete":
        eod.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    else:
        eod.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    eod.begin()
    eod.fail()
    request = pb.StreamingPullRequest(ack_ids=consumer.shell.ack_ids)
    try:
        verdict = eod.broker.stream_request(consumer, request, eod.now_us)
    except (errors.NotFound, errors.Unavailable):
        return

    eod.turn()
    assert verdict.refused_acks or eod.owed() == []


def test_numbers_of_calls_and_clients_are_not_used_again(eod: World) -> None:
    """A stream that was opened in the commit goes on under its numbers."""
    stream = eod.open_stream(client_id="mine")
    eod.begin()
    eod.fail()
    other = eod.caller("go")

    assert other.call_id > stream.stream_id
    assert other.client_id != stream.client_id


def test_a_read_of_the_broker_before_is_asked_again(eod: World) -> None:
    eod.publish(*numbered(3))
    eod.turn()
    eod.crash()
    consumer = eod.open_stream()
    eod.begin()
    assert len(eod.reads) == 1
    eod.fail()
    assert eod.reads == []
    eod.settle()

    assert consumer.shell.message_ids == [1, 2, 3]


def test_what_a_client_confirmed_before_a_failure_is_confirmed_after_it(std: World) -> None:
    """Its stream ends then: what it has confirmed stays leased, what it has not is given back."""
    consumer = std.open_stream(seconds=60)
    std.publish(b"a", b"b")
    std.settle()
    std.modify_ack_deadline(consumer.shell.ack_ids[:1], 60)
    std.turn()
    std.begin()
    std.fail()
    std.close_stream(consumer)

    assert [lease.message_id for lease in std.pull()] == [2]


@pytest.mark.parametrize("written", [False, True])
def test_the_journal_learns_of_streams_and_clients_exactly_once(eod: World, written: bool) -> None:
    stream = eod.open_stream(client_id="mine", ready=False)
    gone = eod.open_stream(client_id="gone", ready=False)
    eod.close_stream(gone)
    waiting = eod.open_pull()
    eod.begin()
    on_top = eod.open_stream(client_id="on top", ready=False)
    eod.fail(written)
    eod.turn()

    told = [(event.stream_id, event.result) for event in eod.events(Kind.STREAM)]
    pulls = {event.client_id for event in eod.events(Kind.STREAM) if not event.sub_id}
    ids = [(stream.stream_id, 0), (gone.stream_id, 0), (gone.stream_id, 1), (on_top.stream_id, 0)]
    assert [told.count(one) for one in ids] == [1, 1, 1, 1]
    assert waiting.client_id in pulls, "it waits on, and what it gets will be under this number"


def test_leases_that_a_seek_ended_fill_their_window_again(eod: World) -> None:
    consumer = eod.open_stream(max_outstanding_messages=2)
    eod.publish(b"a", b"b", b"c")
    eod.settle()
    assert consumer.shell.message_ids == [1, 2]

    eod.seek_to_time(eod.now_us + 1)
    assert consumer.outstanding_messages == 0
    eod.begin()
    eod.fail()
    eod.broker.set_ready(consumer)
    eod.settle()

    assert consumer.shell.message_ids == [1, 2]
    assert (consumer.outstanding_messages, consumer.outstanding_bytes) == (
        2,
        2 * consumer.shell.leases[0].size,
    )
