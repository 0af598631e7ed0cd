"""What comes back, when, with which numbers, and from where its bytes come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.broker.questions import ReadMessages, ReadRange
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SECOND, START_US, SUBSCRIPTION, World, answer_read, check, numbered

OTHER = "projects/p/subscriptions/other"


def numbers(world: World) -> list[tuple[int, int, int]]:
    """(message, generation, attempt) of what a Pull gets."""
    return [(lease.message_id, lease.generation, lease.attempt) for lease in world.pull()]


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that is committed stays in memory."""
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    yield


# -- numbers -----------------------------------------------------------------------------------------------


def test_a_nacked_message_comes_back_at_once_with_a_new_id(eod: World) -> None:
    eod.publish(b"a")
    (first,) = eod.pull()
    eod.nack([first.ack_id])

    (second,) = eod.pull()
    assert (second.message_id, second.generation, second.attempt) == (1, 2, 2)
    assert first.ack_id != second.ack_id


def test_a_lapsed_message_comes_back_after_its_deadline_and_not_at_it(eod: World) -> None:
    eod.publish(b"a")
    (first,) = eod.pull()
    eod.now_us = first.deadline_us
    assert eod.pull() == []

    eod.advance(us=1)
    assert numbers(eod) == [(1, 2, 2)]
    (expired,) = eod.events(Kind.EXPIRE)
    assert (first.deadline_us, 1, 1) == (expired.deadline_us, expired.generation, expired.attempt)


def test_an_extension_counts_from_the_request_and_may_shorten(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.advance(5)
    eod.modify_ack_deadline([lease.ack_id], 600)
    assert eod.now_us + 600_000_000 == lease.deadline_us
    eod.advance(500)
    assert eod.pull() == []

    eod.modify_ack_deadline([lease.ack_id], 1)
    eod.advance(1)
    assert eod.pull() == []
    eod.advance(us=1)
    assert numbers(eod) == [(1, 2, 2)], "an extension is no attempt"


def test_attempts_count_nacks_and_expiries_and_nothing_else(eod: World) -> None:
    eod.publish(b"a")
    for attempt in range(1, 6):
        ((_, generation, found),) = numbers(eod)
        assert (attempt, attempt) == (generation, found)
        (lease,) = eod.subscription().leases
        eod.modify_ack_deadline([lease.ack_id], 30)
        eod.acknowledge(["x"])
        if attempt % 2:
            eod.nack([lease.ack_id])
            assert eod.nack([lease.ack_id]) == [], "again, without a second effect"
        else:
            eod.crash()
            eod.advance(31)


def test_redeliveries_come_before_what_was_never_delivered(eod: World) -> None:
    eod.publish(*numbered(4))
    first = eod.pull(max_messages=2)
    eod.nack([lease.ack_id for lease in first])

    assert [lease.message_id for lease in eod.pull()] == [1, 2, 3, 4]


def test_the_answer_does_not_depend_on_whether_the_timer_fired(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.now_us = lease.deadline_us + 1

    assert [lease.ack_id] == eod.acknowledge([lease.ack_id])
    assert [lease.ack_id] == eod.nack([lease.ack_id])
    assert [lease.ack_id] == eod.modify_ack_deadline([lease.ack_id], 10)
    assert numbers(eod) == [(1, 2, 2)]


# -- without exactly-once ----------------------------------------------------------------------------------


def test_a_late_ack_spares_the_redelivery(std: World) -> None:
    std.publish(b"a")
    (lease,) = std.pull()
    std.advance(11)
    std.turn()
    std.acknowledge([lease.ack_id])

    assert std.pull() == []
    assert std.owed() == []


def test_a_late_ack_ends_the_newer_lease_and_frees_its_window(std: World) -> None:
    std.publish(b"a", b"b")
    first, _ = std.pull()
    std.advance(11)
    consumer = std.open_stream(max_outstanding_messages=1)
    std.settle()
    assert consumer.shell.message_ids == [1]
    std.broker.set_ready(consumer)
    std.acknowledge([first.ack_id])
    std.settle()

    assert consumer.shell.message_ids == [1, 2]
    assert std.acknowledge(consumer.shell.ack_ids) == [], "the newer id is answered OK, too"
    assert std.owed() == []
    check(std.broker)


def test_a_late_nack_or_extension_does_not_touch_a_newer_lease(std: World) -> None:
    std.publish(b"a")
    (first,) = std.pull()
    std.nack([first.ack_id])
    (second,) = std.pull()
    deadline_us = second.deadline_us

    assert std.nack([first.ack_id]) == []
    assert std.modify_ack_deadline([first.ack_id], 600) == []
    assert {1: second} == std.subscription().leases.by_message
    assert deadline_us == second.deadline_us
    assert std.pull() == []


@pytest.mark.parametrize("staged_at_once", [2, 500])
def test_a_late_ack_reaches_a_message_that_is_staged_and_hides_nothing(
    std: World, monkeypatch: pytest.MonkeyPatch, staged_at_once: int
) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", staged_at_once)
    std.publish(*numbered(3))
    leases = std.pull()
    std.advance(11)
    consumer = std.open_stream(max_outstanding_messages=1)
    std.settle()
    assert consumer.shell.message_ids == [1]
    std.acknowledge([leases[1].ack_id])
    std.broker.stop_assigning(consumer)

    assert [lease.message_id for lease in std.pull()] == [3]


# -- a stream that ends ------------------------------------------------------------------------------------


def test_with_exactly_once_no_lease_is_cut_short(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a", b"b")
    eod.settle()
    eod.modify_ack_deadline(consumer.shell.ack_ids[:1], 10)
    eod.close_stream(consumer)

    assert eod.pull() == []
    assert eod.acknowledge(consumer.shell.ack_ids) == []


def test_without_it_what_the_client_cannot_have_seen_is_given_back_at_once(std: World) -> None:
    """A client that confirms what it receives, and has not confirmed the second message."""
    consumer = std.open_stream(seconds=60)
    std.publish(b"a")
    std.settle()
    std.advance(1)
    std.modify_ack_deadline(consumer.shell.ack_ids, 60)
    std.publish(b"b")
    std.broker.set_ready(consumer)
    std.settle()
    std.close_stream(consumer)

    assert numbers(std) == [(2, 2, 1)], "no attempt is counted"
    (reset,) = std.events(Kind.RESET)
    assert (reset.message_id, reset.generation) == (2, 1)
    assert std.acknowledge(consumer.shell.ack_ids) == []
    assert std.owed() == []


@pytest.mark.parametrize("after_seconds", [2.000001, 5, 59])
def test_a_client_that_extends_late_does_not_confirm_receipt(std: World, after_seconds: float) -> None:
    consumer = std.open_stream(seconds=60)
    std.publish(b"a", b"b")
    std.settle()
    std.advance(after_seconds)
    std.modify_ack_deadline(consumer.shell.ack_ids[:1], 60)
    std.close_stream(consumer)

    assert std.pull() == []


def test_a_nack_is_no_confirmation_of_receipt(std: World) -> None:
    consumer = std.open_stream(seconds=60)
    std.publish(b"a", b"b")
    std.settle()
    std.nack(consumer.shell.ack_ids[:1])
    std.close_stream(consumer)

    assert [lease.message_id for lease in std.pull()] == [1]


def test_a_confirmation_two_seconds_after_delivery_counts(std: World) -> None:
    consumer = std.open_stream(seconds=60)
    std.publish(b"a", b"b")
    std.settle()
    std.advance(2)
    std.modify_ack_deadline(consumer.shell.ack_ids[:1], 60)
    std.close_stream(consumer)

    assert [lease.message_id for lease in std.pull()] == [2]


def test_what_the_stream_of_another_client_holds_is_not_given_back(std: World) -> None:
    one, other = std.open_stream(seconds=60), std.open_stream(seconds=60)
    std.publish(*numbered(4))
    std.settle()
    std.modify_ack_deadline([one.shell.ack_ids[0], other.shell.ack_ids[0]], 60)
    std.close_stream(one)

    assert one.shell.message_ids[1:] == [lease.message_id for lease in std.pull()]


def test_what_has_run_out_is_expired_and_not_given_back(std: World) -> None:
    """Whether or not the timer was there before the client went."""
    consumer = std.open_stream()
    std.publish(b"a", b"b")
    std.settle()
    std.modify_ack_deadline(consumer.shell.ack_ids[:1], 10)
    std.advance(10, us=1)
    std.close_stream(consumer)

    assert numbers(std) == [(1, 2, 2), (2, 2, 2)]
    assert len(std.events(Kind.EXPIRE)) == 2
    assert std.events(Kind.RESET) == []


# -- bytes that are not in memory --------------------------------------------------------------------------


@pytest.mark.usefixtures("cold")
def test_a_cold_backlog_is_read_in_order(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 60)
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "READ_AHEAD_MESSAGES_MIN", 3)
    for start in range(10):
        eod.publish(*numbered(5))
        eod.turn()
        assert start >= 0
    consumer = eod.open_stream()
    for _ in range(30):
        eod.settle()
        eod.broker.set_ready(consumer)

    assert list(range(1, 51)) == consumer.shell.message_ids
    check(eod.broker)


@pytest.mark.usefixtures("cold")
def test_a_read_asks_for_what_follows_and_no_more_than_there_is(eod: World) -> None:
    eod.publish(*numbered(3))
    eod.turn()
    eod.open_stream()
    eod.turn()

    (read,) = eod.reads
    assert (read.after_id, read.through_id) == (0, 3) if isinstance(read, ReadRange) else None
    eod.turn()
    assert len(eod.reads) == 1, "asked once"


@pytest.mark.usefixtures("cold")
def test_what_is_published_while_a_read_is_under_way_comes_after_it(eod: World) -> None:
    eod.publish(*numbered(3))
    eod.turn()
    consumer = eod.open_stream()
    eod.turn()
    eod.publish(*numbered(2))
    eod.turn()
    eod.settle()
    for _ in range(3):
        eod.broker.set_ready(consumer)
        eod.settle()

    assert consumer.shell.message_ids == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("cold")
def test_cold_redeliveries_are_read_and_come_back_with_their_numbers(eod: World) -> None:
    eod.publish(*numbered(3))
    leases = eod.pull()
    eod.nack([lease.ack_id for lease in leases[::2]])
    consumer = eod.open_stream()
    eod.turn()
    (read,) = eod.reads
    assert read.message_ids == [1, 3] if isinstance(read, ReadMessages) else None

    eod.settle()
    assert [(lease.message_id, lease.generation, lease.attempt) for lease in consumer.shell.leases] == [
        (1, 2, 2),
        (3, 2, 2),
    ]
    assert [message.data for message in consumer.shell.messages()] == [b"0.", b"2."]


@pytest.mark.usefixtures("cold")
def test_a_read_that_failed_is_asked_again(eod: World) -> None:
    eod.publish(*numbered(3))
    eod.turn()
    consumer = eod.open_stream()
    eod.turn()
    eod.broker.read_failed(eod.reads.pop(), eod.now_us)
    eod.settle()
    assert consumer.shell.message_ids == [1, 2, 3]

    eod.nack(consumer.shell.ack_ids)
    eod.broker.set_ready(consumer)
    eod.turn()
    eod.broker.read_failed(eod.reads.pop(), eod.now_us)
    eod.settle()
    assert consumer.shell.message_ids == [1, 2, 3] * 2


@pytest.mark.usefixtures("cold")
def test_a_read_that_brings_part_of_the_messages_is_followed_by_another(
    eod: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 1)
    for data in numbered(4):
        eod.publish(data)
        eod.turn()
    leases = eod.pull(max_messages=10) + eod.pull(max_messages=10) + eod.pull() + eod.pull()
    eod.nack([lease.ack_id for lease in leases])
    consumer = eod.open_stream()
    for _ in range(5):
        eod.settle()
        eod.broker.set_ready(consumer)

    assert sorted(consumer.shell.message_ids) == [1, 2, 3, 4]


@pytest.mark.usefixtures("cold")
def test_a_late_ack_while_the_message_is_being_read_spares_the_redelivery(std: World) -> None:
    std.publish(b"a", b"b")
    leases = std.pull()
    std.advance(11)
    consumer = std.open_stream()
    std.turn()
    assert len(std.reads) == 1
    std.acknowledge([leases[0].ack_id])
    std.settle()

    assert consumer.shell.message_ids == [2]


@pytest.mark.usefixtures("cold")
def test_an_answer_for_a_subscription_that_was_deleted_meanwhile_is_dropped(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.nack([lease.ack_id])
    eod.turn()
    eod.open_stream()
    eod.turn()
    (read,) = eod.reads
    eod.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    eod.turn()
    assert answer_read(eod.store, read) == []

    eod.broker.loaded(read, [])
    eod.broker.read_failed(read, eod.now_us)

    assert not eod.broker.has_work()


@pytest.mark.usefixtures("cold")
def test_an_answer_for_a_subscription_that_was_detached_meanwhile_is_dropped(eod: World) -> None:
    eod.publish(*numbered(3))
    (lease,) = eod.pull(max_messages=1)
    eod.nack([lease.ack_id])
    eod.open_stream()
    eod.turn()
    reads = list(eod.reads)
    answers = [answer_read(eod.store, read) for read in reads]
    eod.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    for read, entries in zip(reads, answers, strict=True):
        eod.broker.loaded(read, entries)
    eod.reads.clear()
    eod.settle()

    assert eod.owed() == []
    check(eod.broker)


def test_late_acks_of_a_whole_batch_do_not_hide_what_comes_after_it(
    std: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", 2)
    std.publish(*numbered(6))
    leases = std.pull()
    std.advance(11)
    std.turn()
    std.acknowledge([lease.ack_id for lease in leases[:4]])
    consumer = std.open_stream()
    std.settle()

    assert consumer.shell.message_ids == [5, 6]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("limits_of_streams", [(1, 0), (0, 1)])
def test_a_full_stream_does_not_hide_what_is_still_to_be_fetched(
    eod: World, monkeypatch: pytest.MonkeyPatch, limits_of_streams: tuple[int, int]
) -> None:
    monkeypatch.setattr(limits, "READ_MESSAGES_MAX", 1)
    eod.publish(b"a", b"b")
    leases = eod.pull()
    eod.nack([lease.ack_id for lease in leases])
    streams = [eod.open_stream(max_outstanding_messages=limit) for limit in limits_of_streams]
    eod.settle()

    assert sorted(stream.shell.message_ids for stream in streams) == [[1], [2]]


def test_subscriptions_that_nobody_consumes_let_go_of_what_they_had_at_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTING_SUBSCRIPTIONS_MAX", 2)
    names = [f"projects/p/subscriptions/sub{number}" for number in range(4)]
    for name in names:
        world.create_subscription(name)
    world.publish(*numbered(5))
    world.turn()
    for name in names:
        leases = world.pull(name, max_messages=2)
        world.nack([lease.ack_id for lease in leases], name)
        world.pull(name, max_messages=1)

    at_hand = [len(world.subscription(name).backlog._ahead) for name in names]
    assert at_hand == [0, 0, 3, 3], "the last two keep theirs"
    check(world.broker)
    for name in names:
        assert [lease.message_id for lease in world.pull(name)] == [2, 3, 4, 5]


@pytest.mark.usefixtures("cold")
def test_a_range_that_arrives_after_its_subscription_let_go_leaves_no_gap(
    eod: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTING_SUBSCRIPTIONS_MAX", 0)
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 1)
    eod.publish(*numbered(6))
    eod.turn()
    monkeypatch.setattr(limits, "READ_BYTES_MAX", len(next(iter(eod.store.chunks[1].values()))) + 1)
    stream = eod.open_stream(max_outstanding_messages=1)
    eod.turn()
    eod.read()
    eod.turn()
    assert stream.shell.message_ids == [1]
    assert [entry.message_id for entry in eod.subscription().backlog._ahead] == [2]
    assert [read.after_id for read in eod.reads if isinstance(read, ReadRange)] == [2]

    eod.broker.stop_assigning(stream)
    eod.read()
    later = eod.open_stream()
    for _ in range(6):
        eod.settle()
        eod.broker.set_ready(later)

    assert later.shell.message_ids == [2, 3, 4, 5, 6]


# -- rows that nobody needs --------------------------------------------------------------------------------


@pytest.fixture
def trims_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "TRIM_MESSAGES_MIN", 0)
    yield


def stored(world: World) -> list[int]:
    return sorted(world.store.chunks.get(1, {}))


@pytest.mark.usefixtures("trims_at_once")
def test_a_message_that_somebody_needs_stays(eod: World) -> None:
    eod.create_subscription(OTHER)
    for data in numbered(4):
        eod.publish(data)
        eod.turn()
    one = eod.pull()
    other = eod.pull(OTHER)
    assert eod.acknowledge([lease.ack_id for lease in one]) == []
    eod.turn()
    assert stored(eod) == [1, 2, 3, 4], "the other has them still"

    eod.acknowledge([lease.ack_id for lease in other[:2]], OTHER)
    eod.acknowledge([lease.ack_id for lease in other[3:]], OTHER)
    eod.nack([other[2].ack_id], OTHER)
    eod.turn()
    assert 3 in stored(eod) and not {1, 2} & set(stored(eod))


@pytest.mark.usefixtures("trims_at_once")
def test_what_is_finished_everywhere_goes(eod: World) -> None:
    for data in numbered(4):
        eod.publish(data)
        eod.turn()
    eod.acknowledge([lease.ack_id for lease in eod.pull()])
    eod.turn()

    assert stored(eod) == []


def test_looking_for_unneeded_rows_waits_until_it_is_worth_it(eod: World) -> None:
    eod.publish(b"a")
    eod.acknowledge([lease.ack_id for lease in eod.pull()])

    assert eod.turn().trims == {}


@pytest.mark.usefixtures("trims_at_once")
def test_it_is_not_looked_for_with_every_ack(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIM_MESSAGES_MIN", 2)
    eod.publish(*numbered(9))
    trims = []
    for lease in eod.pull():
        eod.acknowledge([lease.ack_id])
        trims += [trim.through_id for trim in eod.turn().trims.values()]

    assert trims == [5, 8]


def test_at_the_start_rows_that_nobody_needs_are_looked_for(eod: World) -> None:
    eod.publish(b"a")
    eod.acknowledge([lease.ack_id for lease in eod.pull()])
    eod.turn()
    eod.crash()
    eod.broker.started("0.0.0", False, eod.now_us)
    eod.turn()

    assert stored(eod) == []


# -- the timer ---------------------------------------------------------------------------------------------


def test_the_timer_is_the_earliest_deadline(world: World) -> None:
    eod = world
    eod.create_subscription(expiration_policy=pb.ExpirationPolicy())
    assert eod.broker.next_deadline_us() is None
    eod.publish(b"a", b"b")
    eod.turn()
    (first,) = eod.pull(max_messages=1)
    eod.advance(5)
    (second,) = eod.pull(max_messages=1)
    assert first.deadline_us == eod.broker.next_deadline_us()

    eod.modify_ack_deadline([second.ack_id], 1)
    assert second.deadline_us == eod.broker.next_deadline_us()
    eod.now_us = second.deadline_us + 1
    eod.turn()
    assert first.deadline_us == eod.broker.next_deadline_us()
    eod.now_us = first.deadline_us + 1
    eod.turn()
    retention_us = limits.SUBSCRIPTION_RETENTION_SECONDS_DEFAULT * SECOND
    assert START_US + retention_us == eod.broker.next_deadline_us()


def test_extensions_and_shortenings_leave_no_timers_behind(eod: World) -> None:
    eod.publish(b"a", b"b")
    leases = eod.pull()
    ack_ids = [lease.ack_id for lease in leases]
    for _ in range(50):
        eod.modify_ack_deadline(ack_ids, 600)
        eod.advance(1)
        eod.modify_ack_deadline(ack_ids, 10)
        eod.advance(1)
        eod.modify_ack_deadline(ack_ids, 600)
        eod.advance(300)
        eod.turn()
        eod.modify_ack_deadline(ack_ids, 600)
        eod.advance(301)
        eod.turn()

    assert eod.acknowledge(ack_ids) == []
    assert len(eod.broker._timers) <= 4


def test_an_idle_subscription_costs_a_turn_nothing(world: World) -> None:
    eod = world
    eod.create_subscription(expiration_policy=pb.ExpirationPolicy())
    eod.open_stream()
    eod.settle()
    eod.advance(1000)

    assert not eod.broker.has_work()
    assert eod.broker.next_deadline_us() is None
    effects = eod.begin()
    assert not effects.must_commit()
