"""What a broker is restored from, and that it is the one that made the promises."""

from __future__ import annotations

import itertools

import pytest

from pubsubd.eod.ack_id import AckIds
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, World, check, numbered, owed, restored, states

OTHER = "projects/p/subscriptions/other"


def lively(world: World) -> None:
    """Something of everything: leased, extended, nacked, lapsed, acked, never delivered, two topics."""
    world.create_topic("projects/p/topics/invoices")
    world.create_subscription(OTHER, "projects/p/topics/invoices", exactly_once=False)
    world.publish(*numbered(12))
    world.publish(*numbered(3), topic="projects/p/topics/invoices")
    world.turn()
    leases = world.pull(max_messages=10)
    world.modify_ack_deadline([lease.ack_id for lease in leases[:2]], 600)
    world.nack([lease.ack_id for lease in leases[2:4]])
    world.acknowledge([lease.ack_id for lease in leases[4:6]])
    world.turn()
    (again,) = world.pull(max_messages=1)
    world.acknowledge([again.ack_id])
    world.advance(11)
    world.pull(OTHER, max_messages=2)
    world.advance(11)
    world.turn()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restored_broker_is_in_the_state_that_was_committed(eod: World, checkpoint: bool) -> None:
    lively(eod)
    eod.turn(checkpoint)

    again = restored(eod.store)

    assert states(eod.broker) == states(again)
    assert eod.broker.message_id == again.message_id
    check(again)


def test_a_checkpoint_replaces_all_before_it(eod: World) -> None:
    lively(eod)
    before = len(eod.store.oplog)
    eod.turn(checkpoint=True)

    assert 1 == len(eod.store.oplog) < before
    eod.publish(b"later")
    eod.pull()
    assert states(eod.broker) == states(restored(eod.store))


def test_a_checkpoint_holds_what_its_own_commit_changes(eod: World) -> None:
    eod.publish(b"a", b"b")
    eod.turn()
    consumer = eod.open_stream(max_outstanding_messages=1)
    eod.begin(checkpoint=True)
    eod.publish(b"on top")
    eod.end()

    again = restored(eod.store)
    (subscription,) = again.subscriptions()
    assert consumer.shell.ack_ids == list(subscription.leases.by_ack_id)
    assert owed(eod.store, subscription) == [1, 2]
    eod.turn()
    assert states(eod.broker) == states(restored(eod.store))


def test_what_was_not_committed_never_happened(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    before = states(eod.broker)
    eod.acknowledge([lease.ack_id])
    eod.publish(b"b")
    eod.create_subscription(OTHER)
    eod.begin()
    eod.crash()

    assert before == states(eod.broker)
    assert eod.acknowledge([lease.ack_id]) == [], "the client asks again, and the lease still runs"
    assert eod.publish(b"c") == [2], "nobody was told the number"


def test_what_was_committed_happened_although_nobody_was_told(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.acknowledge([lease.ack_id])
    eod.begin()
    eod.end()
    eod.crash()

    assert eod.acknowledge([lease.ack_id]) == []
    assert eod.pull() == []


def test_a_restart_neither_ends_nor_extends_a_lease_nor_counts_an_attempt(eod: World) -> None:
    eod.publish(b"a")
    (lease,) = eod.pull()
    eod.crash()
    eod.advance(us=1)
    eod.settle()
    assert lease.deadline_us == eod.broker.next_deadline_us()

    eod.now_us = lease.deadline_us
    assert eod.pull() == []
    assert eod.modify_ack_deadline([lease.ack_id], 10) == []
    eod.turn()
    eod.crash()
    eod.advance(10, us=1)
    assert [lease.ack_id] == eod.acknowledge([lease.ack_id])
    (second,) = eod.pull()
    assert (second.generation, second.attempt) == (2, 2)


def test_ids_of_running_leases_are_the_same_after_a_restart(eod: World) -> None:
    """Also beside one whose numbers are so large that its id is a longer one."""
    eod.publish(b"often", b"once", b"once more")
    eod.turn()
    for _ in range(260):
        (often,) = eod.pull(max_messages=1)
        eod.nack([often.ack_id])
    often, once = eod.pull(max_messages=2)
    (more,) = eod.pull()
    assert len(often.ack_id) > len(more.ack_id)
    ack_ids = list(eod.subscription().leases.by_ack_id)
    eod.crash()
    assert list(eod.subscription().leases.by_ack_id) == ack_ids

    assert eod.acknowledge([often.ack_id]) == []
    eod.turn()
    eod.crash()
    assert eod.acknowledge([once.ack_id, more.ack_id]) == []


def test_endings_are_known_after_a_restart(eod: World) -> None:
    eod.publish(*numbered(4))
    nacked, acked, lapsed, _ = eod.pull()
    eod.nack([nacked.ack_id])
    eod.acknowledge([acked.ack_id])
    eod.advance(11)
    (*_, last) = eod.pull()
    eod.acknowledge([last.ack_id])
    eod.turn()
    eod.crash()

    assert [nacked.ack_id] == eod.acknowledge([nacked.ack_id])
    assert eod.nack([nacked.ack_id]) == []
    assert eod.acknowledge([acked.ack_id, last.ack_id]) == []
    assert [lapsed.ack_id] == eod.acknowledge([lapsed.ack_id])


def test_the_endings_of_a_deleted_subscription_are_nobodys(eod: World) -> None:
    eod.publish(b"a")
    eod.nack([eod.pull()[0].ack_id])
    eod.turn()
    eod.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION), eod.now_us)
    eod.create_subscription()
    eod.turn()
    eod.crash()

    assert len(eod.store.endings) == 1
    assert len(eod.subscription().endings) == 0


def test_an_id_lost_in_a_crash_is_never_made_again(eod: World) -> None:
    """The same message, generation, client and microsecond; the boot number differs."""
    eod.publish(b"a")
    eod.turn()
    ids: list[str] = []
    for _ in range(3):
        eod.open_pull()
        eod.broker.pump(eod.now_us, 0)
        eod.reads.extend(eod.broker.take_reads())
        eod.read()
        (delivery,) = eod.begin().deliveries
        ids += [lease.ack_id for lease in delivery.leases]
        eod.crash()

    assert len(set(ids)) == 3
    read = AckIds(eod.store.secret).read
    assert [token.boot for token in map(read, ids) if token is not None] == [1, 2, 3]


def test_numbers_go_on_where_they_were(eod: World) -> None:
    lively(eod)
    eod.turn()
    call_id, seq = eod.caller().call_id, eod.journal.last_seq
    clients = {event.client_id for event in eod.events(Kind.STREAM)}
    eod.turn()
    eod.crash()

    assert eod.publish(b"x") == [16]
    assert eod.caller("new").call_id > call_id
    eod.turn()
    assert eod.journal.last_seq > seq
    rows = [(first_seq, n) for first_seq, n, _, _ in eod.store.journal]
    assert all(first + n == following for (first, n), (following, _) in itertools.pairwise(rows))
    assert eod.events(Kind.STREAM)[-1].client_id not in clients


def test_the_clock_must_not_be_behind_the_last_commit(eod: World) -> None:
    eod.advance(1000)
    eod.publish(b"a")
    eod.turn()

    assert eod.now_us == restored(eod.store).newest_us


def test_a_restored_backlog_is_read_from_storage(eod: World) -> None:
    eod.publish(*numbered(5))
    eod.turn()
    eod.crash()
    consumer = eod.open_stream()
    eod.turn()
    assert consumer.shell.message_ids == []
    assert len(eod.reads) == 1
    eod.settle()
    eod.publish(*numbered(2))
    for _ in range(3):
        eod.broker.set_ready(consumer)
        eod.settle()

    assert consumer.shell.message_ids == [1, 2, 3, 4, 5, 6, 7]


def test_restoring_costs_what_is_outstanding_and_not_the_backlog(eod: World) -> None:
    eod.publish(*numbered(900))
    eod.turn(checkpoint=True)
    (blob,) = eod.store.oplog
    assert len(blob) < 200

    for _ in range(3):
        eod.acknowledge([lease.ack_id for lease in eod.pull(max_messages=100)])
    eod.turn(checkpoint=True)
    (blob,) = eod.store.oplog
    assert len(blob) < 200
    assert [len(owed(eod.store, one)) for one in restored(eod.store).subscriptions()] == [600]


def test_the_start_is_in_the_journal(world: World) -> None:
    world.broker.started("1.2.3", clean=False, now_us=world.now_us)
    world.turn()

    (event,) = world.events(Kind.START)
    assert (world.now_us, 0, 0) == (event.ts_us, event.sub_id, event.topic_id)
    assert '{"boot":1,"clean":false,"version":"1.2.3"}' in world.store.journal_details.values()


@pytest.mark.parametrize("kept", [True, False])
def test_a_nack_is_remembered_for_its_time_over_restarts(eod: World, kept: bool) -> None:
    eod.publish(b"a", b"b")
    first, _ = eod.pull()
    eod.nack([first.ack_id])
    eod.turn()
    eod.advance(us=limits.ENDING_KEPT_US + (not kept))
    eod.crash()
    # Endings are forgotten when another is added.
    again = eod.pull()
    eod.nack([lease.ack_id for lease in again if lease.message_id == 2])
    eod.turn()
    eod.crash()

    assert ([] if kept else [first.ack_id]) == eod.nack([first.ack_id])
