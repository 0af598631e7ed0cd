"""Ordering keys from end to end: in order, to one client at a time, and after what went wrong.

Source: Subscription.enable_message_ordering, https://cloud.google.com/pubsub/docs/ordering.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.broker.consumer import Consumer
from pubsubd.eod.lease import Lease
from pubsubd.eod.machine import Standing
from pubsubd.model import limits
from pubsubd.model.events import Kind, Result
from pubsubd.wire import pb
from tests.unit.broker.world import START_US, SUBSCRIPTION, World, check, serve, survives

DEAD_LETTERS = "projects/p/topics/dead-letters"


@pytest.fixture(params=[False, True], ids=["at least once", "exactly once"])
def both(request: pytest.FixtureRequest, world: World) -> World:
    """An ordered subscription, with and without exactly-once delivery."""
    world.create_subscription(exactly_once=request.param, enable_message_ordering=True)
    world.turn()
    return world


@pytest.fixture
def eod(world: World) -> World:
    world.create_subscription(exactly_once=True, enable_message_ordering=True)
    world.turn()
    return world


@pytest.fixture
def std(world: World) -> World:
    world.create_subscription(exactly_once=False, enable_message_ordering=True)
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


def publish(world: World, count: int = 1, key: str = "k") -> list[int]:
    return world.publish(*[b"%d" % number for number in range(count)], ordering_key=key)


def ids(leases: list[Lease]) -> list[int]:
    return [lease.message_id for lease in leases]


def numbers(leases: list[Lease]) -> list[tuple[int, int, int]]:
    return [(lease.message_id, lease.generation, lease.attempt) for lease in leases]


def delivered(world: World, count: int = 3) -> tuple[Consumer, list[Lease]]:
    """A stream that has the first messages of a key, all outstanding."""
    consumer = world.open_stream(seconds=30)
    publish(world, count)
    serve(world, consumer)
    leases: list[Lease] = consumer.shell.leases
    assert ids(leases) == list(range(1, count + 1))
    return consumer, leases


# -- in order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("response_bytes", [1, 100, 10_000])
def test_messages_of_a_key_come_in_the_order_of_their_publication(
    both: World, monkeypatch: pytest.MonkeyPatch, response_bytes: int
) -> None:
    monkeypatch.setattr(limits, "RESPONSE_BYTES_MAX", response_bytes)
    sent: dict[str, list[int]] = {"a": [], "b": [], "": []}
    for turn in range(10):
        for key, found in sent.items():
            found += publish(both, 1 + turn % 3, key)
        both.turn()
    consumers = [both.open_stream() for _ in range(3)]
    serve(both, *consumers)

    got = [message_id for consumer in consumers for message_id in consumer.shell.message_ids]
    assert sorted(got) == sorted(message_id for found in sent.values() for message_id in found)
    for key in ("a", "b"):
        assert [message_id for message_id in got if message_id in sent[key]] == sent[key]


def test_a_key_goes_to_one_stream_as_long_as_something_of_it_is_outstanding(both: World) -> None:
    streams = [both.open_stream(), both.open_stream()]
    for _ in range(20):
        publish(both)
        serve(both, *streams)
    one, other = sorted(streams, key=lambda consumer: -len(consumer.shell.leases))
    assert (one.shell.message_ids, other.shell.message_ids) == (list(range(1, 21)), [])

    assert both.acknowledge(one.shell.ack_ids) == []
    publish(both)
    both.broker.stop_assigning(one)
    serve(both, other)
    assert other.shell.message_ids == [21], "nothing of it is outstanding any more"


def test_a_full_owner_holds_its_keys_and_no_others(both: World) -> None:
    full = both.open_stream(max_outstanding_messages=1)
    publish(both, 3, "held")
    serve(both, full)
    other = both.open_stream()
    publish(both, 2, "free")
    publish(both, 2, "")
    serve(both, full, other)

    assert full.shell.message_ids == [1]
    assert other.shell.message_ids == [4, 5, 6, 7]
    both.acknowledge(full.shell.ack_ids)
    both.broker.stop_assigning(full)
    serve(both, other)
    assert other.shell.message_ids[4:] == [2, 3], "it is nobody's now"


def test_messages_without_a_key_go_to_everybody_in_any_order(both: World) -> None:
    streams = [both.open_stream(), both.open_stream()]
    publish(both, 10, "")
    serve(both, *streams)
    assert all(len(stream.shell.leases) == 5 for stream in streams)

    for stream in streams:
        for lease in reversed(stream.shell.leases):
            assert both.acknowledge([lease.ack_id]) == []


def test_without_ordering_a_key_means_nothing(world: World) -> None:
    world.create_subscription(enable_message_ordering=False)
    streams = [world.open_stream(), world.open_stream()]
    publish(world, 10)
    serve(world, *streams)

    assert all(len(stream.shell.leases) == 5 for stream in streams)
    for lease in reversed(streams[0].shell.leases):
        assert world.acknowledge([lease.ack_id]) == []


# -- streams that end --------------------------------------------------------------------------------------


def test_when_the_stream_ends_its_key_waits_for_its_messages(both: World) -> None:
    one, leases = delivered(both, 1)
    both.close_stream(one)
    other = both.open_stream()
    publish(both)
    serve(both, other)
    assert other.shell.message_ids == []

    both.advance(30, us=1)
    serve(both, other)
    assert numbers(other.shell.leases) == [(1, 2, 2), (2, 1, 1)]
    assert both.owed() == [1, 2]
    assert leases[0].ack_id not in other.shell.ack_ids


def test_when_they_are_acked_it_goes_on_at_once(both: World) -> None:
    one, leases = delivered(both, 1)
    both.close_stream(one)
    other = both.open_stream()
    publish(both)
    serve(both, other)
    both.acknowledge([leases[0].ack_id])
    serve(both, other)

    assert other.shell.message_ids == [2]


def test_a_new_stream_of_the_same_client_goes_on_with_the_key(both: World) -> None:
    one = both.open_stream(client_id="worker-1")
    stranger = both.open_stream(client_id="worker-2")
    publish(both)
    both.broker.stop_assigning(stranger)
    serve(both, one)
    assert one.shell.message_ids == [1]
    both.close_stream(one)
    publish(both)
    stranger, same = both.open_stream(client_id="worker-2"), both.open_stream(client_id="worker-1")
    serve(both, stranger, same)

    assert (stranger.shell.message_ids, same.shell.message_ids) == ([], [2])


def test_a_key_of_before_a_restart_waits_for_what_is_outstanding(both: World) -> None:
    consumer, leases = delivered(both, 2)
    both.broker.stop_assigning(consumer)
    publish(both)
    both.turn()
    both.crash()
    stream = both.open_stream()
    serve(both, stream)
    assert stream.shell.message_ids == []

    both.acknowledge([lease.ack_id for lease in leases])
    serve(both, stream)
    assert stream.shell.message_ids == [3]


def test_a_key_goes_on_with_its_stream_after_a_commit_that_failed(both: World) -> None:
    one, _ = delivered(both, 2)
    other = both.open_stream()
    publish(both)
    both.broker.set_ready(one)
    both.begin()
    both.fail()
    assert both.publish(b"again", ordering_key="k") == [3]
    serve(both, other, one)

    assert (one.shell.message_ids, other.shell.message_ids) == ([1, 2, 3], [])


def test_a_key_that_went_over_to_a_stream_goes_back_when_the_commit_fails(both: World) -> None:
    one = both.open_stream()
    publish(both)
    both.settle()
    other = both.open_stream()
    publish(both)
    both.settle()
    assert both.acknowledge(one.shell.ack_ids) == []
    both.begin()
    assert [delivery.consumer for delivery in both.flying.deliveries] == [other]
    both.fail()
    serve(both, other)
    assert other.shell.message_ids == [], "the first is outstanding again, and not here"

    serve(both, one)
    assert one.shell.message_ids == [1, 2]


# -- Pull --------------------------------------------------------------------------------------------------


def test_a_pull_gets_a_batch_of_a_key_and_nobody_the_next_until_that_is_finished(both: World) -> None:
    publish(both, 5)
    first = both.pull(max_messages=2)
    stream = both.open_stream()
    serve(both, stream)
    assert ids(first) == [1, 2]
    assert both.pull() == []
    assert stream.shell.message_ids == []

    both.acknowledge([first[0].ack_id])
    assert both.pull() == [], "one of the batch is outstanding"
    both.acknowledge([first[1].ack_id])
    serve(both, stream)
    assert stream.shell.message_ids == [3, 4, 5]


def test_a_key_that_a_pull_holds_costs_others_nothing(both: World) -> None:
    publish(both, 3, "a")
    publish(both, 3, "b")
    assert ids(both.pull(max_messages=4)) == [1, 2, 3, 4]
    publish(both, 2, "c")
    publish(both, 1, "")

    assert ids(both.pull()) == [7, 8, 9]


def test_what_a_pull_had_comes_back_in_order_to_the_next(std: World) -> None:
    publish(std, 4)
    leases = std.pull(max_messages=3)
    std.nack([leases[1].ack_id])

    assert std.pull() == [], "the first one is still outstanding"
    std.acknowledge([leases[0].ack_id])
    assert numbers(std.pull()) == [(2, 2, 2), (3, 2, 1), (4, 1, 1)]


def test_with_exactly_once_what_a_pull_had_comes_back_each_in_its_time(eod: World) -> None:
    publish(eod, 4)
    leases = eod.pull(max_messages=3)
    eod.nack([leases[0].ack_id])
    again = eod.pull()
    assert numbers(again) == [(1, 2, 2)]
    eod.acknowledge([again[0].ack_id])
    assert eod.pull() == []

    eod.advance(10, us=1)
    assert numbers(eod.pull()) == [(2, 2, 1), (3, 2, 1), (4, 1, 1)]


# -- acks in order -----------------------------------------------------------------------------------------


def test_acks_of_one_request_are_judged_together(both: World) -> None:
    _, leases = delivered(both)

    assert both.acknowledge([leases[at].ack_id for at in (2, 0, 1)]) == []
    assert both.owed() == []


def test_with_exactly_once_an_ack_that_is_ahead_is_to_be_tried_again(eod: World) -> None:
    consumer, leases = delivered(eod)
    first, second, third = [lease.ack_id for lease in leases]
    assert eod.acknowledge([third, first]) == [third]
    assert [one.standing for one in eod.refused] == [Standing.UNORDERED]
    assert eod.owed() == [2, 3]
    assert consumer.outstanding_messages == 2

    assert eod.acknowledge([third]) == [third]
    eod.turn()
    assert [(event.message_id, event.result) for event in eod.events(Kind.ACK)] == [
        (1, Result.OK),
        (3, Result.TRANSIENT),
        (3, Result.TRANSIENT),
    ]
    assert eod.acknowledge([third, second]) == []
    assert eod.owed() == []
    assert eod.acknowledge([third]) == [], "a repetition"


def test_an_ack_on_a_stream_that_is_ahead_is_named_by_itself(eod: World) -> None:
    consumer, leases = delivered(eod)
    request = pb.StreamingPullRequest(ack_ids=[leases[1].ack_id])
    verdict = eod.broker.stream_request(consumer, request, eod.now_us)

    assert [(one.ack_id, one.standing) for one in verdict.refused_acks] == [
        (leases[1].ack_id, Standing.UNORDERED)
    ]


def test_an_ack_that_is_ahead_changes_nothing(eod: World) -> None:
    _, leases = delivered(eod)
    deadline_us = leases[2].deadline_us
    eod.advance(5)
    eod.acknowledge([leases[2].ack_id])

    assert leases[2].deadline_us == deadline_us
    assert eod.modify_ack_deadline([leases[2].ack_id], 60) == [], "extensions know no order"


def test_without_exactly_once_acks_may_come_in_any_order(std: World) -> None:
    _, leases = delivered(std)

    assert std.acknowledge([leases[2].ack_id]) == []
    assert std.owed() == [1, 2]


def test_another_key_is_no_predecessor(eod: World) -> None:
    publish(eod, 1, "a")
    publish(eod, 1, "b")
    publish(eod, 1, "")
    leases = eod.pull()

    for lease in reversed(leases):
        assert eod.acknowledge([lease.ack_id]) == []


# -- what fails --------------------------------------------------------------------------------------------


def fails(world: World, lease: Lease, how: str) -> None:
    """The lease ends by a nack, or because its time is over while its neighbours are extended."""
    if how == "nack":
        assert world.nack([lease.ack_id]) == []
        return
    assert world.modify_ack_deadline([lease.ack_id], 1) == []
    world.advance(1, us=1)
    world.settle()


@pytest.mark.parametrize("how", ["nack", "deadline"])
def test_without_exactly_once_later_messages_come_again_at_once_and_in_order(std: World, how: str) -> None:
    consumer, leases = delivered(std, 4)
    std.acknowledge([leases[2].ack_id])
    fails(std, leases[0], how)
    serve(std, consumer)

    assert numbers(consumer.shell.leases[4:]) == [(1, 2, 2), (2, 2, 1), (4, 2, 1)]
    assert [event.message_id for event in std.events(Kind.RESET)] == [2, 4]


def test_without_exactly_once_an_ack_of_before_still_counts(std: World) -> None:
    consumer, leases = delivered(std)
    std.broker.stop_assigning(consumer)
    std.nack([leases[0].ack_id])
    assert std.acknowledge([leases[1].ack_id]) == []
    assert std.owed() == [1, 3]

    other = std.open_stream()
    serve(std, other)
    assert other.shell.message_ids == [1, 3]
    assert std.acknowledge([leases[2].ack_id]) == []
    assert std.owed() == [1], "even under the feet of a newer delivery"
    assert std.nack([leases[0].ack_id]) == []
    assert len(std.subscription().leases) == 1, "a stale nack ends no newer lease"


@pytest.mark.parametrize("how", ["nack", "deadline"])
def test_with_exactly_once_later_messages_come_not_before_their_own_deadlines(eod: World, how: str) -> None:
    consumer, leases = delivered(eod)
    deadline_us = leases[1].deadline_us
    fails(eod, leases[0], how)
    eod.acknowledge([leases[2].ack_id])
    serve(eod, consumer)
    assert numbers(consumer.shell.leases[3:]) == [(1, 2, 2)]
    assert eod.acknowledge([consumer.shell.ack_ids[3]]) == []

    eod.now_us = deadline_us
    serve(eod, consumer)
    assert len(consumer.shell.leases) == 4
    eod.advance(us=1)
    serve(eod, consumer)
    assert numbers(consumer.shell.leases[4:]) == [(2, 2, 1), (3, 2, 1)]


def test_their_own_deadline_is_the_last_one_that_was_asked_for(eod: World) -> None:
    consumer, leases = delivered(eod)
    eod.modify_ack_deadline([leases[1].ack_id], 100)
    eod.modify_ack_deadline([leases[2].ack_id], 1)
    eod.nack([leases[0].ack_id])
    eod.advance(99)
    serve(eod, consumer)
    assert set(consumer.shell.message_ids[3:]) == {1}, "the third waits for the second"

    eod.advance(1, us=1)
    serve(eod, consumer)
    assert consumer.shell.message_ids[-2:] == [2, 3]


def test_with_exactly_once_old_ids_are_void_and_a_nack_releases(eod: World) -> None:
    consumer, (first, second, third) = delivered(eod)
    eod.nack([first.ack_id])
    assert eod.acknowledge([second.ack_id]) == [second.ack_id]
    assert [one.standing for one in eod.refused] == [Standing.RESET]
    assert eod.modify_ack_deadline([third.ack_id], 60) == [third.ack_id]
    assert eod.nack([third.ack_id, second.ack_id]) == []
    assert eod.nack([third.ack_id]) == [], "a repetition"

    serve(eod, consumer)
    assert numbers(consumer.shell.leases[3:]) == [(1, 2, 2), (2, 2, 1), (3, 2, 1)]
    assert eod.acknowledge([second.ack_id]) == [second.ack_id]
    assert eod.acknowledge(consumer.shell.ack_ids[3:]) == []


def test_the_event_of_a_reset_says_until_when(eod: World) -> None:
    _, leases = delivered(eod)
    eod.nack([leases[1].ack_id])
    eod.turn()

    (event,) = eod.events(Kind.RESET)
    lease = leases[2]
    assert (event.message_id, event.generation, event.attempt) == (3, 1, 1)
    assert (event.deadline_us, event.ref_ts_us, event.okey) == (
        lease.deadline_us,
        lease.delivered_us,
        lease.okey,
    )


def test_a_predecessor_is_not_touched(both: World) -> None:
    consumer, leases = delivered(both)
    both.nack([leases[1].ack_id])
    serve(both, consumer)

    assert both.acknowledge([leases[0].ack_id]) == []


def test_messages_that_fail_together_are_no_collateral_of_each_other(eod: World) -> None:
    consumer, leases = delivered(eod, 4)
    eod.nack([leases[2].ack_id, leases[0].ack_id])
    serve(eod, consumer)
    assert numbers(consumer.shell.leases[4:]) == [(1, 2, 2)]
    eod.advance(30, us=1)
    serve(eod, consumer)

    # The first one ran out once more meanwhile; the third was nacked, and counts that.
    assert numbers(consumer.shell.leases[5:]) == [(1, 3, 3), (2, 2, 1), (3, 2, 2), (4, 2, 1)]


def test_a_key_that_fails_again_starts_again(std: World) -> None:
    consumer, _ = delivered(std)
    for generation in (2, 3, 4):
        std.nack([consumer.shell.ack_ids[-3]])
        serve(std, consumer)
        assert [(lease.message_id, lease.generation) for lease in consumer.shell.leases[-3:]] == [
            (1, generation),
            (2, generation),
            (3, generation),
        ]
    assert [lease.attempt for lease in consumer.shell.leases[-3:]] == [4, 1, 1]


def test_messages_published_meanwhile_come_last(both: World) -> None:
    consumer, leases = delivered(both, 2)
    both.nack([leases[0].ack_id])
    publish(both, 2)
    serve(both, consumer)
    both.advance(30, us=1)
    serve(both, consumer)

    got = consumer.shell.message_ids[2:]
    assert got[-4:] == [1, 2, 3, 4]


def test_another_key_does_not_notice(both: World) -> None:
    consumer, leases = delivered(both, 2)
    publish(both, 2, "other")
    serve(both, consumer)
    other = consumer.shell.leases[2:]
    both.nack([leases[0].ack_id])

    assert both.acknowledge([lease.ack_id for lease in other]) == []


def test_the_delay_of_a_message_is_that_of_its_key(both: World) -> None:
    both.update(retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=10)))
    consumer, leases = delivered(both)
    both.nack([lease.ack_id for lease in leases])
    publish(both)
    publish(both, 1, "other")
    serve(both, consumer)
    assert consumer.shell.message_ids[3:] == [5]

    both.advance(10)
    serve(both, consumer)
    assert consumer.shell.message_ids[3:] == [5]
    both.advance(us=1)
    serve(both, consumer)
    assert consumer.shell.message_ids[4:] == [1, 2, 3, 4]


def test_a_message_that_goes_to_the_dead_letter_topic_makes_room(both: World) -> None:
    both.create_topic(DEAD_LETTERS)
    policy = pb.DeadLetterPolicy(dead_letter_topic=DEAD_LETTERS, max_delivery_attempts=5)
    both.update(dead_letter_policy=policy)
    consumer, _ = delivered(both, 2)
    for _ in range(5):
        (ack_id,) = [lease.ack_id for lease in both.subscription().leases if lease.message_id == 1]
        assert both.nack([ack_id]) == []
        serve(both, consumer)
    both.advance(30, us=1)
    serve(both, consumer)

    assert both.owed() == [2]
    last = consumer.shell.leases[-1]
    assert last.message_id == 2
    assert both.acknowledge([last.ack_id]) == []


@pytest.mark.parametrize("ended", ["open", "closed"])
def test_a_collateral_message_binds_its_key_to_the_stream(eod: World, ended: str) -> None:
    one, leases = delivered(eod)
    other = eod.open_stream()
    eod.nack([leases[0].ack_id])
    if ended == "closed":
        eod.close_stream(one)
    serve(eod, other)
    assert other.shell.message_ids == [], "what one stream had may still be worked on there"

    eod.advance(30, us=1)
    if ended == "open":
        eod.close_stream(one)
    serve(eod, other)
    assert other.shell.message_ids == [1, 2, 3]


# -- what survives -----------------------------------------------------------------------------------------


def test_collateral_messages_wait_over_a_restart(eod: World) -> None:
    _, leases = delivered(eod)
    eod.nack([leases[0].ack_id])
    survives(eod)
    eod.advance(29)
    assert ids(eod.pull()) in ([], [1])

    assert eod.acknowledge([leases[1].ack_id]) == [leases[1].ack_id]
    assert eod.nack([leases[2].ack_id]) == []
    survives(eod)
    assert eod.nack([leases[2].ack_id]) == []
    eod.advance(12)
    assert ids(eod.pull()) == [1, 2, 3]


def test_parked_messages_survive(both: World) -> None:
    publish(both, 2)
    (first,) = both.pull(max_messages=1)
    publish(both, 2)
    publish(both, 1, "other")
    assert ids(both.pull()) == [5]
    assert ids_parked(both) == [2, 3, 4]
    survives(both)
    assert ids_parked(both) == [2, 3, 4]

    both.acknowledge([first.ack_id])
    assert ids(both.pull()) == [2, 3, 4]
    survives(both)


def ids_parked(world: World) -> list[int]:
    return sorted(dict(world.subscription().backlog.parked_messages()))


@pytest.mark.usefixtures("cold")
def test_a_key_whose_messages_are_not_in_memory_keeps_its_order(both: World) -> None:
    for number in range(12):
        publish(both, 1, "ab"[number % 2])
        both.turn()
    consumer = both.open_stream(max_outstanding_messages=3)
    seen: list[int] = []
    for _ in range(40):
        serve(both, consumer)
        new = ids(consumer.shell.leases)[len(seen) :]
        seen += new
        both.acknowledge([lease.ack_id for lease in consumer.shell.leases[-len(new) :]] if new else ["x"][:0])
        if len(seen) == 12:
            break

    assert [one for one in seen if one % 2] == [1, 3, 5, 7, 9, 11]
    assert [one for one in seen if not one % 2] == [2, 4, 6, 8, 10, 12]


@pytest.mark.usefixtures("cold")
def test_redeliveries_of_a_key_are_read_in_order(std: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", 2)
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 1)
    consumer, leases = delivered(std, 6)
    std.nack([leases[0].ack_id])
    serve(std, consumer)

    assert numbers(consumer.shell.leases[6:]) == [(1, 2, 2), *[(number, 2, 1) for number in range(2, 7)]]
    assert [message.data for message in consumer.shell.messages()[6:]] == [b"%d" % at for at in range(6)]


# -- bounds ------------------------------------------------------------------------------------------------


def test_there_is_a_bound_to_what_the_cursor_passes(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_MESSAGES_MAX", 5)
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 4)
    publish(both, 1)
    (held,) = both.pull()
    publish(both, 20)
    publish(both, 3, "other")
    stream = both.open_stream()
    serve(both, stream)
    assert stream.shell.message_ids == []
    assert len(ids_parked(both)) == 5
    survives(both)

    stream = both.open_stream()
    both.acknowledge([held.ack_id])
    for _ in range(10):
        serve(both, stream)
    assert [one for one in stream.shell.message_ids if one <= 21] == list(range(2, 22))
    assert sorted(stream.shell.message_ids)[-3:] == [22, 23, 24]


def test_bytes_of_parked_messages_are_bounded(both: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_BYTES_MAX", 200)
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    publish(both, 1)
    (held,) = both.pull()
    for _ in range(10):
        both.publish(b"x" * 50, ordering_key="k")
        both.turn()
    stream = both.open_stream()
    serve(both, stream)
    assert len(ids_parked(both)) == 10
    assert both.subscription().backlog._fetched_bytes <= 200

    both.acknowledge([held.ack_id])
    serve(both, stream)
    assert stream.shell.message_ids == list(range(2, 12))
    assert both.subscription().backlog._fetched_bytes == 0


def test_what_is_finished_of_a_key_leaves_nothing_behind(both: World) -> None:
    consumer = both.open_stream()
    for number in range(50):
        publish(both, 2, f"key {number}")
    serve(both, consumer)
    both.acknowledge(consumer.shell.ack_ids)
    keys = both.subscription().backlog.keys
    assert keys is not None

    assert len(keys) == 0
    assert not keys.any_offered


# -- after a seek ------------------------------------------------------------------------------------------


def test_after_a_seek_a_key_starts_from_its_earliest_message(both: World) -> None:
    both.update(retain_acked_messages=True)
    consumer, leases = delivered(both, 4)
    both.acknowledge([lease.ack_id for lease in leases])
    serve(both, consumer)
    both.seek_to_time(START_US - 1)
    serve(both, consumer)

    assert ids(consumer.shell.leases[4:]) == [1, 2, 3, 4]


def test_after_a_seek_nothing_of_a_key_goes_while_a_lease_runs(both: World) -> None:
    both.update(retain_acked_messages=True)
    consumer, leases = delivered(both, 4)
    both.acknowledge([lease.ack_id for lease in leases[:2]])
    both.turn()
    both.seek_to_time(START_US - 1)
    publish(both, 1, "other")
    serve(both, consumer)
    assert consumer.shell.message_ids[4:] == [5], "the third and fourth are still being worked on"

    assert both.acknowledge([leases[2].ack_id]) == []
    serve(both, consumer)
    assert consumer.shell.message_ids[5:] == []
    assert both.acknowledge([leases[3].ack_id]) == []
    serve(both, consumer)
    assert consumer.shell.message_ids[5:] == [1, 2]


def test_a_key_stays_sealed_over_a_commit_that_failed(both: World) -> None:
    both.update(retain_acked_messages=True)
    consumer, leases = delivered(both, 4)
    both.acknowledge([lease.ack_id for lease in leases[:2]])
    both.turn()
    both.seek_to_time(START_US - 1)
    publish(both, 1, "other")
    serve(both, consumer)
    publish(both)
    both.begin()
    both.fail()
    serve(both, consumer)
    assert consumer.shell.message_ids[4:] == [5]

    assert both.acknowledge([lease.ack_id for lease in leases[2:]]) == []
    serve(both, consumer)
    assert consumer.shell.message_ids[5:] == [1, 2]


@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_seek_a_lease_that_fails_takes_its_place_in_the_order(both: World, restarts: bool) -> None:
    both.update(retain_acked_messages=True)
    consumer, leases = delivered(both, 4)
    both.acknowledge([leases[0].ack_id])
    both.acknowledge([leases[1].ack_id])
    both.turn()
    both.seek_to_time(START_US - 1)
    if restarts:
        survives(both)
        consumer = both.open_stream(seconds=30)
    serve(both, consumer)
    both.nack([leases[2].ack_id])
    serve(both, consumer)
    both.advance(30, us=1)
    serve(both, consumer)

    assert ids(consumer.shell.leases)[-4:] == [1, 2, 3, 4]


def test_a_seek_to_the_future_frees_a_key(both: World) -> None:
    _, leases = delivered(both)
    publish(both, 2)
    both.turn()
    both.seek_to_time(both.now_us + 1)
    publish(both)
    stream = both.open_stream()
    serve(both, stream)

    assert stream.shell.message_ids == [6]
    assert both.acknowledge([leases[1].ack_id]) == [], "it is acknowledged"


# -- the subscription goes ---------------------------------------------------------------------------------


def test_a_detached_subscription_has_no_keys(both: World) -> None:
    delivered(both)
    publish(both, 2)
    both.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), both.now_us)
    both.turn()

    keys = both.subscription().backlog.keys
    assert keys is not None and len(keys) == 0
    survives(both)


def test_a_switch_of_exactly_once_keeps_keys(both: World) -> None:
    consumer, leases = delivered(both)
    both.switch(not both.subscription().exactly_once)
    publish(both)
    other = both.open_stream()
    serve(both, other, consumer)
    assert (consumer.shell.message_ids[3:], other.shell.message_ids) == ([4], [])

    assert (both.acknowledge([leases[1].ack_id]) == []) != both.subscription().exactly_once
