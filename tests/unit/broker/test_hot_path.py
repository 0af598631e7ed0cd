"""What an operation on an ack id does, against the tables of the state machine: every pair, in both modes.

The broker does not look into the tables for an id whose lease runs, so the two are compared: each standing is
brought about by commands, each operation is applied, and the answer, the effect on state and the event must
be what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import pytest

from pubsubd.broker.subscription import Subscription
from pubsubd.eod.ack_id import AckIds, AckToken
from pubsubd.eod.endings import Ending
from pubsubd.eod.machine import (
    COUNTS_AS_ATTEMPT,
    TRANSITIONS,
    VERDICTS,
    Event,
    Operation,
    Standing,
    State,
    Verdict,
)
from pubsubd.model.errors import InvalidArgument
from pubsubd.model.events import Kind, Result
from pubsubd.wire import pb
from tests.unit.broker.world import START_US, SUBSCRIPTION, World, check, restored, state_of, states

OTHER = "projects/p/subscriptions/other"
DEAD_LETTERS = "projects/p/topics/dead-letters"
SECONDS = 30

EVENTS = {
    (Operation.ACK, Verdict.APPLY): Event.ACK,
    (Operation.ACK, Verdict.APPLY_LATE): Event.LATE_ACK,
    (Operation.EXTEND, Verdict.APPLY): Event.EXTEND,
    (Operation.NACK, Verdict.APPLY): Event.NACK,
    # Of a message whose lease is void, by somebody who has let go of it.
    (Operation.NACK, Verdict.APPLY_LATE): Event.NACK,
}
KINDS = {Operation.ACK: Kind.ACK, Operation.EXTEND: Kind.EXTEND, Operation.NACK: Kind.NACK}
RESULTS = {
    Verdict.APPLY: Result.OK,
    Verdict.APPLY_LATE: Result.OK,
    Verdict.NOOP: Result.NOOP,
    Verdict.PERMANENT: Result.PERMANENT,
    Verdict.TRANSIENT: Result.TRANSIENT,
}
REFUSED = (Verdict.PERMANENT, Verdict.TRANSIENT)
# A message that is finished; whatever comes late finds nothing to do.
FINISHED = (State.ACKED, State.PURGED, State.FORWARDED)


# -- ways to a standing ------------------------------------------------------------------------------------
# Each returns the ack id. The world has one message, and the mode is set afterwards, so that what happens
# only without exactly-once is seen with it as well, and the other way round.


def delivered(world: World) -> str:
    (lease,) = world.pull()
    return lease.ack_id


def extended(world: World) -> str:
    ack_id = delivered(world)
    world.modify_ack_deadline([ack_id], 600)
    return ack_id


def delivered_again(world: World) -> str:
    lapsed(world)
    return delivered(world)


def to_the_last_microsecond(world: World) -> str:
    ack_id = delivered(world)
    world.now_us = next(iter(world.subscription().leases)).deadline_us
    return ack_id


def overdue(world: World) -> str:
    """The test lets one more microsecond pass, right before the operation, so that nobody has looked."""
    return to_the_last_microsecond(world)


def lapsed(world: World) -> str:
    ack_id = to_the_last_microsecond(world)
    world.advance(us=1)
    world.turn()
    return ack_id


def lapsed_and_redelivered(world: World) -> str:
    ack_id = lapsed(world)
    delivered(world)
    return ack_id


def shortened_and_lapsed(world: World) -> str:
    ack_id = delivered(world)
    world.modify_ack_deadline([ack_id], 1)
    world.advance(1, us=1)
    world.turn()
    return ack_id


def released(world: World) -> str:
    world.switch(exactly_once=False)
    world.publish(b"named")
    consumer = world.open_stream()
    world.settle()
    ack_id, named = consumer.shell.ack_ids
    world.modify_ack_deadline([named], 10)
    world.close_stream(consumer)
    world.acknowledge([named])
    return str(ack_id)


def nacked(world: World) -> str:
    ack_id = delivered(world)
    world.nack([ack_id])
    return ack_id


def nacked_and_redelivered(world: World) -> str:
    ack_id = nacked(world)
    delivered(world)
    return ack_id


def nacked_and_acked_by_the_next(world: World) -> str:
    ack_id = nacked(world)
    world.acknowledge([delivered(world)])
    return ack_id


def acked(world: World) -> str:
    ack_id = delivered(world)
    world.acknowledge([ack_id])
    return ack_id


def acked_by_a_later_generation(world: World) -> str:
    ack_id = delivered_again(world)
    world.acknowledge([ack_id])
    return ack_id


def acked_late(world: World) -> str:
    world.switch(exactly_once=False)
    ack_id = lapsed(world)
    world.acknowledge([ack_id])
    return ack_id


def nacked_and_acked_late(world: World) -> str:
    world.switch(exactly_once=False)
    ack_id = nacked(world)
    world.acknowledge([ack_id])
    return ack_id


def overtaken(world: World) -> str:
    ack_id = lapsed(world)
    world.acknowledge([delivered(world)])
    return ack_id


def overtaken_by_a_late_ack(world: World) -> str:
    world.switch(exactly_once=False)
    first = lapsed(world)
    second = delivered(world)
    world.acknowledge([first])
    return second


def detached(world: World) -> str:
    ack_id = delivered(world)
    world.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    return ack_id


def acked_and_detached(world: World) -> str:
    ack_id = acked(world)
    world.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    return ack_id


def undone_by_a_crash(world: World) -> str:
    """Authentic, and about a delivery that never became durable."""
    consumer = world.open_pull()
    (delivery,) = world.begin().deliveries
    assert consumer is delivery.consumer
    world.crash()
    return delivery.leases[0].ack_id


def retried_later(world: World) -> None:
    world.update(retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=60)))


def nacked_and_resting(world: World) -> str:
    retried_later(world)
    return nacked(world)


def lapsed_and_resting(world: World) -> str:
    retried_later(world)
    return lapsed(world)


def rested(world: World) -> str:
    ack_id = nacked_and_resting(world)
    world.advance(60, us=1)
    world.turn()
    return ack_id


def three_of_a_key(world: World) -> list[str]:
    """Ids of three messages with one ordering key, all outstanding."""
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.create_subscription(enable_message_ordering=True)
    world.publish(b"first", b"second", b"third", ordering_key="k")
    return [lease.ack_id for lease in world.pull()]


def first_of_a_key(world: World) -> str:
    return three_of_a_key(world)[0]


def ahead_of_its_key(world: World) -> str:
    return three_of_a_key(world)[2]


def reset(world: World) -> str:
    first, _, third = three_of_a_key(world)
    world.nack([first])
    return third


def reset_and_rested(world: World) -> str:
    ack_id = reset(world)
    world.advance(10, us=1)
    world.turn()
    return ack_id


def reset_without_exactly_once(world: World) -> str:
    first, _, third = three_of_a_key(world)
    world.switch(exactly_once=False)
    world.nack([first])
    return third


def kept_through_a_seek(world: World) -> str:
    ack_id = delivered(world)
    world.seek_to_time(START_US - 1)
    return ack_id


def lapsed_before_a_seek(world: World) -> str:
    ack_id = lapsed(world)
    world.seek_to_time(START_US - 1)
    return ack_id


def purged(world: World) -> str:
    ack_id = delivered(world)
    world.turn()
    world.seek_to_time(world.now_us + 1)
    return ack_id


def lapsed_and_purged(world: World) -> str:
    ack_id = lapsed(world)
    world.seek_to_time(world.now_us + 1)
    return ack_id


def nacked_and_purged(world: World) -> str:
    ack_id = nacked(world)
    world.turn()
    world.seek_to_time(world.now_us + 1)
    return ack_id


def forwarded(world: World, ends: Callable[[World], str] | None = None) -> str:
    """The id of a delivery that lapsed, of a message that went to the dead letter topic afterwards."""
    world.create_topic(DEAD_LETTERS)
    world.turn()
    ack_id = lapsed(world)
    world.update(
        dead_letter_policy=pb.DeadLetterPolicy(dead_letter_topic=DEAD_LETTERS, max_delivery_attempts=5)
    )
    for _ in range(5):
        (ends or lapsed)(world)
        world.settle()
    return ack_id


def forwarded_at_a_nack(world: World) -> str:
    return forwarded(world, nacked)


def nacked_and_forwarded(world: World) -> str:
    ack_ids: list[str] = []

    def noted(world: World) -> str:
        ack_ids.append(nacked(world))
        return ack_ids[-1]

    forwarded(world, noted)
    return ack_ids[-1]


def brought_back(world: World, ends: Callable[[World], str]) -> str:
    world.update(retain_acked_messages=True)
    ack_id = ends(world)
    world.turn()
    world.seek_to_time(START_US - 1)
    return ack_id


def acked_and_brought_back(world: World) -> str:
    return brought_back(world, acked)


def acked_by_a_later_generation_and_brought_back(world: World) -> str:
    return brought_back(world, acked_by_a_later_generation)


def purged_and_brought_back(world: World) -> str:
    return brought_back(world, purged)


def forwarded_and_brought_back(world: World) -> str:
    return brought_back(world, forwarded)


def nacked_acked_and_brought_back(world: World) -> str:
    return brought_back(world, nacked_and_acked_by_the_next)


def brought_back_and_delivered(world: World) -> str:
    ack_id = acked_and_brought_back(world)
    delivered(world)
    return ack_id


def brought_back_and_acked(world: World) -> str:
    ack_id = acked_and_brought_back(world)
    world.acknowledge([delivered(world)])
    return ack_id


def brought_back_by_a_snapshot(world: World) -> str:
    world.create_snapshot()
    ack_id = acked(world)
    world.turn()
    world.seek_to_snapshot()
    return ack_id


def finished_before(ends: Callable[[World], str], then: Callable[[World], str]) -> Callable[[World], str]:
    """What an earlier life of a message left behind is not taken for an ending of this one."""

    def way(world: World) -> str:
        brought_back(world, ends)
        return then(world)

    way.__name__ = f"{then.__name__}_after_{ends.__name__}"
    return way


LIVES = [
    (standing, state, finished_before(ends, then))
    for ends in (acked, acked_by_a_later_generation, nacked_and_acked_by_the_next, purged, forwarded)
    for standing, state, then in (
        (Standing.CURRENT, State.LEASED, delivered),
        (Standing.LAPSED, State.READY, lapsed),
        (Standing.NACKED, State.READY, nacked),
        (Standing.ACKED, State.ACKED, acked),
        (Standing.ACKED, State.ACKED, acked_by_a_later_generation),
        (Standing.OVERTAKEN, State.ACKED, overtaken),
    )
]
WAYS: list[tuple[Standing, State, Callable[[World], str]]] = [
    (Standing.CURRENT, State.LEASED, delivered),
    (Standing.CURRENT, State.LEASED, extended),
    (Standing.CURRENT, State.LEASED, delivered_again),
    (Standing.CURRENT, State.LEASED, to_the_last_microsecond),
    (Standing.LAPSED, State.READY, overdue),
    (Standing.LAPSED, State.READY, lapsed),
    (Standing.LAPSED, State.LEASED, lapsed_and_redelivered),
    (Standing.LAPSED, State.READY, shortened_and_lapsed),
    (Standing.LAPSED, State.READY, released),
    (Standing.NACKED, State.READY, nacked),
    (Standing.NACKED, State.LEASED, nacked_and_redelivered),
    (Standing.NACKED, State.ACKED, nacked_and_acked_by_the_next),
    (Standing.ACKED, State.ACKED, acked),
    (Standing.ACKED, State.ACKED, acked_by_a_later_generation),
    (Standing.ACKED, State.ACKED, acked_late),
    (Standing.ACKED, State.ACKED, nacked_and_acked_late),
    (Standing.OVERTAKEN, State.ACKED, overtaken),
    (Standing.OVERTAKEN, State.ACKED, overtaken_by_a_late_ack),
    (Standing.DETACHED, State.DROPPED, detached),
    (Standing.DETACHED, State.DROPPED, acked_and_detached),
    (Standing.UNKNOWN, State.READY, undone_by_a_crash),
    (Standing.NACKED, State.DELAYED, nacked_and_resting),
    (Standing.LAPSED, State.DELAYED, lapsed_and_resting),
    (Standing.NACKED, State.READY, rested),
    (Standing.CURRENT, State.LEASED, first_of_a_key),
    (Standing.UNORDERED, State.LEASED, ahead_of_its_key),
    (Standing.RESET, State.COLLATERAL, reset),
    (Standing.LAPSED, State.READY, reset_and_rested),
    (Standing.LAPSED, State.READY, reset_without_exactly_once),
    (Standing.CURRENT, State.LEASED, kept_through_a_seek),
    (Standing.LAPSED, State.READY, lapsed_before_a_seek),
    (Standing.PURGED, State.PURGED, purged),
    (Standing.PURGED, State.PURGED, lapsed_and_purged),
    (Standing.NACKED, State.PURGED, nacked_and_purged),
    (Standing.FORWARDED, State.FORWARDED, forwarded),
    (Standing.FORWARDED, State.FORWARDED, forwarded_at_a_nack),
    (Standing.NACKED, State.FORWARDED, nacked_and_forwarded),
    (Standing.SUPERSEDED, State.READY, acked_and_brought_back),
    (Standing.SUPERSEDED, State.READY, acked_by_a_later_generation_and_brought_back),
    (Standing.SUPERSEDED, State.READY, purged_and_brought_back),
    (Standing.SUPERSEDED, State.READY, forwarded_and_brought_back),
    (Standing.SUPERSEDED, State.READY, nacked_acked_and_brought_back),
    (Standing.SUPERSEDED, State.LEASED, brought_back_and_delivered),
    (Standing.SUPERSEDED, State.ACKED, brought_back_and_acked),
    (Standing.SUPERSEDED, State.READY, brought_back_by_a_snapshot),
    *LIVES,
]
MODES = [pytest.param(False, id="at least once"), pytest.param(True, id="exactly once")]
CASES = [
    pytest.param(operation, standing, state, way, id=f"{operation.name} {way.__name__}")
    for (standing, state, way), operation in product(WAYS, Operation)
]


class Found(NamedTuple):
    """Where one message stands, read off the subscription; and the attempt that it is at."""

    state: State
    attempt: int


def found(subscription: Subscription, message_id: int, now_us: int) -> Found:
    if subscription.detached:
        return Found(State.DROPPED, 0)
    backlog = subscription.backlog
    lease = subscription.leases.by_message.get(message_id)
    if lease is not None and now_us <= lease.deadline_us:
        return Found(State.LEASED, lease.attempt)
    if lease is not None:
        return Found(State.READY, lease.attempt + 1)
    waiting = backlog.waiting.get(message_id)
    if waiting is not None and now_us <= waiting.ready_us:
        return Found(State.COLLATERAL if waiting.collateral else State.DELAYED, waiting.attempt)
    if waiting is not None:
        return Found(State.READY, waiting.attempt)
    if message_id > backlog.cursor and message_id not in backlog.carried:
        return Found(State.READY, 1)
    ending = subscription.endings._finished.get(message_id)
    first = subscription._first_generation(message_id)
    if ending is None or (first > 1 and ending[1] < first):
        return Found(State.ACKED, 0)  # the other one is of before a seek
    return Found(_FINISHED[ending[0]], 0)


_FINISHED = {
    Ending.ACKED: State.ACKED,
    Ending.PURGED: State.PURGED,
    Ending.FORWARDED: State.FORWARDED,
}


def settled(state: State, subscription: Subscription) -> State:
    """Without a retry policy there is nothing to rest for."""
    rests = subscription.resource.HasField("retry_policy")
    return State.READY if state is State.DELAYED and not rests else state


def token_of(world: World, ack_id: str) -> AckToken:
    token = AckIds(world.store.secret).read(ack_id)
    assert token is not None
    return token


def apply(world: World, operation: Operation, ack_ids: list[str]) -> list[str]:
    if operation is Operation.ACK:
        return world.acknowledge(ack_ids)
    return world.modify_ack_deadline(ack_ids, SECONDS if operation is Operation.EXTEND else 0)


@pytest.fixture
def one_message(world: World) -> World:
    world.create_subscription()
    world.turn()
    world.publish(b"data")
    world.turn()
    return world


@pytest.mark.parametrize("exactly_once", MODES)
@pytest.mark.parametrize(("operation", "standing", "state", "way"), CASES)
def test_the_hot_path_does_what_the_tables_say(
    one_message: World,
    operation: Operation,
    standing: Standing,
    state: State,
    way: Callable[[World], str],
    exactly_once: bool,
) -> None:
    world = one_message
    ack_id = way(world)
    world.switch(exactly_once)
    world.turn()
    subscription, token = world.subscription(), token_of(world, ack_id)
    message_id = token.message_id
    world.now_us += way is overdue
    if standing not in (Standing.CURRENT, Standing.UNORDERED):
        assert standing is subscription.standing(token, world.now_us)
    before, before_all = found(subscription, message_id, world.now_us), state_of(subscription)
    okey = subscription.leases.by_message[message_id].okey if before.state is State.LEASED else 0
    assert state is before.state
    verdict = VERDICTS[exactly_once][operation, standing]
    if verdict is Verdict.APPLY_LATE and before.state in FINISHED:
        verdict = Verdict.NOOP  # another generation was faster: there is nothing left to ack

    refused = apply(world, operation, [ack_id])

    assert refused == ([ack_id] if verdict in REFUSED else [])
    if refused:
        assert [(ack_id, standing)] == [(one.ack_id, one.standing) for one in world.refused]
    if (operation, verdict) in EVENTS:
        event = EVENTS[operation, verdict]
        after = found(subscription, message_id, world.now_us)
        assert settled(TRANSITIONS[before.state, event], subscription) is after.state
        if after.state is not State.ACKED:
            counts = event in COUNTS_AS_ATTEMPT and before.state is State.LEASED
            assert before.attempt + counts == after.attempt
        if event is Event.EXTEND:
            deadline_us = subscription.leases.by_message[message_id].deadline_us
            assert world.now_us + SECONDS * 1_000_000 == deadline_us
    else:
        assert before_all == state_of(subscription)
    check(world.broker)
    okey = okey if verdict is Verdict.APPLY else 0
    assert [operation_event(world, operation, token, standing, verdict, okey)] == [
        event for event in world.broker.ledger.now.events if event[1] == KINDS[operation]
    ]
    world.turn()
    assert states(world.broker) == states(restored(world.store))


def operation_event(
    world: World, operation: Operation, token: AckToken, standing: Standing, verdict: Verdict, okey: int
) -> tuple[int, ...]:
    """The one event that an operation on one id writes, whatever came of it."""
    if standing is Standing.UNKNOWN:
        token = AckToken(token.sub_id, 0, 0, 0, 0, 0, 0)
    extend = operation is Operation.EXTEND
    deadline_us = world.now_us + SECONDS * 1_000_000 if extend and verdict is Verdict.APPLY else 0
    return (
        world.now_us, KINDS[operation], world.subscription().topic.topic_id, token.sub_id, token.message_id,
        token.generation, token.attempt, deadline_us, token.delivered_us, RESULTS[verdict], token.client_id,
        world.broker._call_id, okey, 0, 0, SECONDS if extend else 0,
    )  # fmt: skip  # short items, many to a line


def test_every_standing_has_a_way_to_it() -> None:
    assert set(Standing) == {standing for standing, _, _ in WAYS}


# -- ids that are nobody's, or somebody else's -------------------------------------------------------------


def malformed(world: World) -> str:
    return "no such thing"


def empty(world: World) -> str:
    return ""


def forged(world: World) -> str:
    """Right in every part, signed with another secret."""
    (made,) = AckIds(b"another secret..").make([token_of(world, delivered(world))])
    return made


def altered(world: World) -> str:
    ack_id = delivered(world)
    return ack_id[:-1] + ("A" if ack_id[-1] != "A" else "B")


def of_another_subscription(world: World) -> str:
    world.create_subscription(OTHER)
    world.turn()
    world.publish(b"data")
    return world.pull(OTHER)[0].ack_id


def of_a_deleted_namesake(world: World) -> str:
    ack_id = delivered(world)
    world.turn()
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), world.now_us)
    world.create_subscription()
    world.turn()
    return ack_id


FOREIGN = [malformed, empty, forged, altered, of_another_subscription, of_a_deleted_namesake]


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("way", FOREIGN)
def test_with_exactly_once_a_foreign_id_is_refused_by_itself(
    one_message: World, operation: Operation, way: Callable[[World], str]
) -> None:
    world = one_message
    ack_id = way(world)
    world.publish(b"data")
    good = world.pull()[-1]
    world.turn()
    kept = state_of(world.subscription())["waiting"]

    assert [ack_id] == apply(world, operation, [ack_id, good.ack_id, ack_id])

    assert Standing.UNKNOWN is world.refused[0].standing
    # Its neighbour took effect.
    after = found(world.subscription(), good.message_id, world.now_us).state
    expected = TRANSITIONS[State.LEASED, EVENTS[operation, Verdict.APPLY]]
    assert settled(expected, world.subscription()) is after
    if operation is not Operation.NACK:
        assert kept == state_of(world.subscription())["waiting"]
    events = [event for event in world.broker.ledger.now.events if event[1] == KINDS[operation]]
    assert [event[9] for event in events] == [Result.OK, Result.PERMANENT]
    assert (events[1][4], events[1][5], events[1][6], events[1][8]) == (0, 0, 0, 0)


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("way", FOREIGN)
def test_without_exactly_once_a_foreign_id_refuses_the_request_and_nothing_is_done(
    one_message: World, operation: Operation, way: Callable[[World], str]
) -> None:
    world = one_message
    world.switch(exactly_once=False)
    ack_id = way(world)
    if way is of_a_deleted_namesake:
        world.switch(exactly_once=False)
    world.publish(b"data")
    good = world.pull()[-1].ack_id
    world.turn()
    before = state_of(world.subscription())

    for ack_ids in ([ack_id], [good, ack_id], [ack_id, good]):
        with pytest.raises(InvalidArgument):
            apply(world, operation, ack_ids)

    assert before == state_of(world.subscription())
    effects = world.broker.take_effects()
    assert not (effects.records or effects.endings)
    assert not [event for event in effects.events if event[1] == KINDS[operation]]


@pytest.mark.parametrize("exactly_once", MODES)
@pytest.mark.parametrize("operation", Operation)
def test_an_id_that_is_repeated_counts_once(
    one_message: World, operation: Operation, exactly_once: bool
) -> None:
    world = one_message
    world.switch(exactly_once)
    ack_id = delivered(world)
    world.turn()

    assert apply(world, operation, [ack_id] * 5) == []

    assert len([event for event in world.broker.ledger.now.events if event[1] == KINDS[operation]]) == 1
    assert len(world.broker.ledger.now.records) == 1


@pytest.mark.parametrize("operation", Operation)
def test_a_refused_id_that_is_repeated_is_refused_once(one_message: World, operation: Operation) -> None:
    ack_id = lapsed(one_message)

    assert [ack_id] == apply(one_message, operation, [ack_id] * 5)


def test_without_exactly_once_two_generations_in_one_request_are_one_ack(one_message: World) -> None:
    world = one_message
    world.switch(exactly_once=False)
    first = lapsed(world)
    second = delivered(world)
    world.turn()

    assert world.acknowledge([first, second]) == []

    assert world.owed() == []
    acks = [event for event in world.broker.ledger.now.events if event[1] == Kind.ACK]
    assert [(event[5], event[9]) for event in acks] == [(2, Result.OK), (1, Result.NOOP)]


def test_without_exactly_once_two_old_generations_in_one_request_are_one_ack(one_message: World) -> None:
    world = one_message
    world.switch(exactly_once=False)
    first, second = lapsed(world), lapsed(world)

    assert world.acknowledge([first, second]) == []

    assert world.owed() == []
    acks = [event for event in world.broker.ledger.now.events if event[1] == Kind.ACK]
    assert [(event[5], event[9]) for event in acks] == [(1, Result.OK), (2, Result.NOOP)]
