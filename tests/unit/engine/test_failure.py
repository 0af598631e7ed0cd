"""Commits that fail: who is told what, what the state is, and how it goes on."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import pairwise

import pytest

from pubsubd.broker.broker import Broker
from pubsubd.engine import engine as engine_module
from pubsubd.engine.engine import Engine, Left, NotSettled
from pubsubd.journal.record import Row, unpack
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.storage.store import Commit, StorageFailed
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, check, owed, restored, states
from tests.unit.engine.running import Running, outcome, running
from tests.unit.engine.test_commit import ticks
from tests.unit.engine.virtual import VirtualClock, virtual
from tests.unit.storage.fake_store import FakeStore

FAILED = "the commit failed"


class Noting(FakeStore):
    """Notes when commits are tried."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[float] = []

    async def commit(self, commit: Commit) -> dict[int, int | None]:
        self.tried.append(asyncio.get_running_loop().time())
        return await super().commit(commit)


@virtual
async def test_everybody_in_the_commit_and_on_top_of_it_is_told() -> None:
    async with running() as engine:
        engine.store.gate = asyncio.Event()
        engine.store.failing_commits = 1
        inside = [asyncio.create_task(outcome(engine.publish(b"x"))) for _ in range(5)]
        await ticks()
        on_top = [asyncio.create_task(outcome(engine.publish(b"y"))) for _ in range(5)]
        joined = asyncio.create_task(outcome(engine.engine.settled()))
        await ticks()
        engine.store.gate.set()

        assert await asyncio.gather(*inside, *on_top, joined) == [FAILED] * 11
        assert engine.store.chunks == {}
        assert await engine.publish(b"z") == [1], "nobody was told a number"


@virtual
async def test_the_state_is_what_was_last_committed() -> None:
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a", b"b")
        await ticks()
        before = states(await engine.engine.broker())
        engine.store.failing_commits = 1
        assert await outcome(engine.acknowledge(shell.ack_ids[:1])) == FAILED

        broker = await engine.engine.broker()
        assert states(broker) == before == states(restored(engine.store))
        check(broker)
        assert await engine.acknowledge(shell.ack_ids[:1]) == []
        assert await engine.owed() == [2]


@virtual
async def test_a_commit_that_failed_and_is_there_is_believed() -> None:
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a")
        await ticks()
        engine.store.failing_commits, engine.store.fails_after_writing = 1, True
        assert await outcome(engine.acknowledge(shell.ack_ids)) == FAILED

        assert await engine.owed() == []
        assert await engine.acknowledge(shell.ack_ids) == []
        await asyncio.sleep(60)
        assert shell.message_ids == [1]


@virtual
async def test_commands_wait_until_the_state_is_restored() -> None:
    async with running() as engine:
        engine.store.failing_commits = 1
        engine.store.load_seconds = 2
        assert await outcome(engine.publish(b"a")) == FAILED
        assert await outcome(engine.engine.settled()) == FAILED
        started = engine.now

        assert await engine.publish(b"b") == [1]
        assert 2 <= engine.now - started <= 2.2


@virtual
async def test_when_nothing_can_be_read_commands_are_refused_in_time_and_go_on_later() -> None:
    async with running() as engine:
        engine.store.failing_commits, engine.store.failing_loads = 1, 10_000
        assert await outcome(engine.publish(b"a")) == FAILED
        started = engine.now
        assert await outcome(engine.publish(b"a")) == "storage cannot be read at present"
        assert engine.now - started == pytest.approx(limits.SETTLE_SECONDS_MAX)

        engine.store.failing_loads = 0
        await asyncio.sleep(6)
        assert await engine.publish(b"b") == [1]


@virtual
async def test_streams_stay_and_are_served_when_storage_works_again() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await ticks()
        engine.store.failing_commits = 3
        assert await outcome(engine.modify_ack_deadline(shell.ack_ids, 0)) == FAILED
        assert shell.message_ids == [1], "the nack did not happen"
        await asyncio.sleep(5)
        assert await engine.modify_ack_deadline(shell.ack_ids, 0) == []
        await ticks()

        assert shell.message_ids == [1, 1]
        assert shell.errors == []
        check(await engine.engine.broker())


@virtual
async def test_a_stream_that_ends_while_the_state_is_restored_has_ended() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await asyncio.sleep(1)
        engine.store.failing_commits = 1
        engine.store.load_seconds = 2
        assert await outcome(engine.publish(b"b")) == FAILED
        engine.engine.stop_assigning(shell.consumer)
        engine.engine.close_stream(shell.consumer)
        await engine.publish(b"c")
        await ticks()

        assert shell.message_ids == [1]
        (subscription,) = (await engine.engine.broker()).subscriptions()
        assert list(subscription.consumers) == []
        assert [lease.holder for lease in subscription.leases] == [shell.consumer]
        events = [event for row in engine.store.journal for _, event in unpack(Row(*row))]
        ended = [event.stream_id for event in events if event.kind == Kind.STREAM and event.result == 1]
        assert ended == [shell.consumer.stream_id]


@virtual
async def test_a_delivery_whose_commit_failed_is_made_again() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.failing_commits = 1
        shell = await engine.open_stream()
        await asyncio.sleep(1)

        assert shell.not_delivered_count == 1
        assert [(lease.message_id, lease.generation) for lease in shell.leases] == [(1, 1)]


@virtual
async def test_a_pull_whose_commit_failed_is_told_and_the_message_is_there_for_the_next() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.failing_commits = 1
        first = await engine.open_pull()
        await asyncio.sleep(1)
        second = await engine.open_pull()
        await asyncio.sleep(1)

        assert (first.not_delivered_count, first.got) == (1, [])
        assert [(lease.message_id, lease.generation) for lease in second.leases] == [(1, 1)]


@virtual
async def test_nothing_is_delivered_and_no_lease_ends_until_a_commit_succeeds() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await ticks()
        lease = shell.leases[0]
        engine.store.failing_commits = 1_000_000
        assert await outcome(engine.publish(b"b")) == FAILED
        await asyncio.sleep(100)
        assert list((await engine.subscription()).leases.by_ack_id) == [lease.ack_id]
        assert shell.message_ids == [1]
        assert shell.not_delivered_count == 1, "that was the commit which failed first"
        # It is over all the same, for whoever asks; and he is told that nothing is certain.
        assert await outcome(engine.acknowledge([lease.ack_id])) == FAILED

        engine.store.failing_commits = 0
        await asyncio.sleep(6)
        assert [lease.generation for lease in shell.leases] == [1, 2]


@virtual
async def test_storage_is_tried_again_less_and_less_often() -> None:
    store = Noting()
    async with running(store) as engine:
        store.failing_commits = 1_000_000
        store.tried.clear()
        await outcome(engine.publish(b"a"))
        await asyncio.sleep(60)
        waits = [round(later - earlier, 3) for earlier, later in pairwise(store.tried)]

        assert waits[0] == engine_module._PROBE_SECONDS_MIN
        assert waits == sorted(waits)
        assert waits[-1] == engine_module._PROBE_SECONDS_MAX
        store.failing_commits = 0
        await asyncio.sleep(5)
        assert await engine.publish(b"a") == [1]

        # After that it begins anew.
        store.failing_commits = 1
        store.tried.clear()
        await outcome(engine.publish(b"b"))
        await asyncio.sleep(1)
        assert store.tried[1] - store.tried[0] == pytest.approx(0.1, abs=0.01)


@virtual
async def test_calls_are_tried_meanwhile_and_all_together() -> None:
    """Each failure costs a restore: a thousand impatient clients must not cause a thousand."""
    store = Noting()
    async with running(store) as engine:
        store.failing_commits = 4
        started = engine.now
        outcomes = [await outcome(engine.publish(b"x"))]
        store.tried.clear()
        while outcomes[-1] != "OK":
            calls = [asyncio.create_task(outcome(engine.publish(b"x"))) for _ in range(50)]
            outcomes += await asyncio.gather(*calls)

        assert outcomes == [FAILED] * 151 + ["OK"] * 50
        assert len(store.tried) == 4
        assert engine.now - started < 5


@virtual
async def test_a_failure_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as engine:
        engine.store.failing_commits = 5
        await outcome(engine.publish(b"a"))
        await asyncio.sleep(30)

        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert ["database or disk is full" in record.getMessage() for record in errors] == [True]
        assert "storage works again" in caplog.messages


@virtual
async def test_a_deletion_that_fails_ends_its_streams_so_that_they_come_back() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await ticks()
        engine.store.failing_commits = 1
        request = pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION)
        assert await outcome(engine.call(Broker.delete_subscription, request)) == FAILED
        await asyncio.sleep(1)

        assert [error.status for error in shell.errors] == ["UNAVAILABLE"]
        broker = await engine.engine.broker()
        broker.close_stream(shell.consumer, engine.engine.now_us())
        assert await engine.acknowledge(shell.ack_ids) == []


@virtual
async def test_rows_of_acks_that_failed_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIM_MESSAGES_MIN", 0)
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    async with running() as engine:
        shell = await engine.open_stream(max_outstanding_messages=3)
        await engine.publish(b"a", b"b", b"c")
        await ticks(20)
        engine.store.failing_commits = 1
        assert await outcome(engine.acknowledge(shell.ack_ids)) == FAILED
        await asyncio.sleep(30)

        assert {lease.message_id for lease in shell.leases if lease.generation > 1} == {1, 2, 3}


@virtual
async def test_a_read_for_the_broker_before_is_dropped() -> None:
    store = FakeStore()
    async with running(store) as engine:
        await engine.publish(b"a", b"b")
    async with running(store.reopened()) as engine:
        engine.store.failing_commits = 1
        shell = await engine.open_stream()
        await outcome(engine.publish(b"c"))
        await asyncio.sleep(1)

        assert shell.message_ids == [1, 2]


# -- the end -------------------------------------------------------------------------------------------------


async def stopped(engine: Running) -> Left:
    return await asyncio.wait_for(engine.engine.stop(), 60)


@virtual
async def test_a_stop_commits_what_is_left_and_says_goodbye() -> None:
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False, max_outstanding_messages=1)
        await engine.publish(b"a", b"b")
        await ticks()
        broker = await engine.engine.broker()
        broker.acknowledge(
            pb.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=shell.ack_ids),
            100,
            broker.caller("python", engine.engine.now_us()),
            engine.engine.now_us(),
        )
        answered = asyncio.create_task(outcome(engine.engine.settled()))
        left = await stopped(engine)

        assert await answered == "OK"
        assert left == Left(leased=0, waiting=0, subscriptions=1)
        last = engine.store.commits[-1]
        assert (last.clean, last.oplog_is_checkpoint) == (True, True)
        again = engine.store.reopened()
        assert again.was_clean
        assert [owed(again, one) for one in restored(again).subscriptions()] == [[2]]


@virtual
async def test_a_stop_says_what_is_outstanding_and_what_waits() -> None:
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False, max_outstanding_messages=3)
        await engine.publish(b"a", b"b", b"c", b"d")
        await ticks()
        await engine.modify_ack_deadline(shell.ack_ids[:1], 0)

        assert await stopped(engine) == Left(leased=2, waiting=1, subscriptions=1)


@virtual
async def test_a_stop_waits_for_the_commit_that_is_being_written() -> None:
    async with running() as engine:
        engine.store.commit_seconds = 2
        publish = asyncio.create_task(engine.publish(b"a"))
        await ticks()
        left = await stopped(engine)

        assert await publish == [1]
        assert left == Left(leased=0, waiting=0, subscriptions=1)
        assert await engine.owed() == [1]


@virtual
async def test_a_stop_on_a_full_disk_ends_and_tells_who_waits() -> None:
    async with running() as engine:
        engine.store.failing_commits = 1_000_000
        publish = asyncio.create_task(outcome(engine.publish(b"a")))
        await ticks()
        left = await stopped(engine)

        assert await publish == FAILED
        assert left == Left(leased=0, waiting=0, subscriptions=1)
        assert not engine.store.reopened().was_clean


@virtual
async def test_a_stop_while_nothing_can_be_read_ends() -> None:
    async with running() as engine:
        engine.store.failing_commits, engine.store.failing_loads = 1_000_000, 1_000_000
        await outcome(engine.publish(b"a"))
        with suppress(NotSettled):  # to say so is as good
            await stopped(engine)


@pytest.mark.parametrize("fault", ["failing_commits", "failing_loads"])
@virtual
async def test_a_start_that_cannot_be_stored_is_refused(fault: str) -> None:
    store = FakeStore()
    setattr(store, fault, 1)
    engine = Engine(store, True, clock=VirtualClock)

    with pytest.raises(StorageFailed):
        await engine.start("0.0.0")
