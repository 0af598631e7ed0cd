"""Leases that run out by themselves, commits that take long, and messages that have to be read."""

from __future__ import annotations

import asyncio
import json

import pytest

from pubsubd.broker.consumer import Consumer
from pubsubd.engine import engine as engine_module
from pubsubd.journal.record import Row, unpack
from pubsubd.model import limits
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import SECOND, START_US, SUBSCRIPTION, Shell
from tests.unit.engine.running import outcome, running
from tests.unit.engine.test_commit import ticks
from tests.unit.engine.virtual import virtual
from tests.unit.storage.fake_store import FakeStore

# How late the end of a lease may be noticed.
LATE = 0.1


@virtual
async def test_a_lease_that_runs_out_is_delivered_again_by_itself_and_not_early() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await asyncio.sleep(25)

        first, second, third = shell.times
        assert 10 < second - first <= 10 + LATE
        assert 10 < third - second <= 10 + LATE
        assert [lease.attempt for lease in shell.leases] == [1, 2, 3]
        leases = shell.leases
        assert leases[1].delivered_us > leases[0].deadline_us


@virtual
async def test_an_extension_moves_the_timer_either_way() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await asyncio.sleep(5)
        await engine.modify_ack_deadline(shell.ack_ids, 60)
        extended = engine.now
        await asyncio.sleep(50)
        assert len(shell.times) == 1
        await engine.modify_ack_deadline(shell.ack_ids, 1)
        shortened = engine.now
        await asyncio.sleep(5)

        assert shortened - extended == 50
        assert 1 < shell.times[1] - shortened <= 1 + LATE


@virtual
async def test_leases_that_end_close_together_share_a_commit() -> None:
    async with running() as engine:
        await engine.open_stream(asks_again=True)
        for number in range(20):
            await engine.publish(b"%d" % number)
            await asyncio.sleep(0.0001)
        before = engine.engine.commits
        await asyncio.sleep(10.1)

        assert 0 < engine.engine.commits - before <= 4


@virtual
async def test_the_time_that_a_commit_takes_is_added_to_the_lease() -> None:
    async with running() as engine:
        engine.store.commit_seconds = 0.3
        await engine.publish(b"a")
        shell = await engine.open_stream()
        await asyncio.sleep(1)

        (lease,) = shell.leases
        assert lease.deadline_us - lease.delivered_us == 10 * SECOND + 300_000
        assert shell.times[0] - (lease.delivered_us - START_US) / 1e6 == pytest.approx(0.3)


@virtual
async def test_a_fast_disk_is_believed_by_and_by() -> None:
    async with running() as engine:
        engine.store.commit_seconds = 0.8
        await engine.publish(b"a")
        engine.store.commit_seconds = 0.0
        found = []
        for _ in range(40):
            await engine.publish(b"b")
            found.append(engine.engine._commit_us)

        assert found == sorted(found, reverse=True)
        assert 0 < found[0] < 800_000
        assert found[-1] < 10_000


@virtual
async def test_a_response_that_is_old_is_not_sent_and_its_lease_lapses() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.commit_seconds = 1.2
        shell = await engine.open_stream()
        await asyncio.sleep(2)
        assert (shell.message_ids, shell.not_delivered_count) == ([], 1)
        assert len((await engine.subscription()).leases) == 1

        engine.store.commit_seconds = 0.0
        await asyncio.sleep(12)
        (lease,) = shell.leases
        assert (lease.message_id, lease.generation) == (1, 2)


@virtual
async def test_a_pull_whose_response_is_old_is_told() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.commit_seconds = 1.2
        shell = await engine.open_pull()
        await asyncio.sleep(3)

        assert (shell.got, shell.not_delivered_count) == ([], 1)


@virtual
async def test_a_response_just_within_its_time_is_sent() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.commit_seconds = limits.DELIVERY_DELAY_US_MAX / 1e6
        shell = await engine.open_stream()
        await asyncio.sleep(2)

        assert shell.message_ids == [1]


@virtual
async def test_a_call_whose_commit_hangs_is_answered_in_time_and_the_commit_counts() -> None:
    async with running() as engine:
        shell = await engine.open_stream(seconds=60, asks_again=False)
        await engine.publish(b"a")
        await ticks()
        engine.store.gate = asyncio.Event()
        started = engine.now
        assert await outcome(engine.acknowledge(shell.ack_ids)) == "storage takes too long to answer"
        assert engine.now - started == pytest.approx(limits.SETTLE_SECONDS_MAX)
        # Somebody who comes later has a time of his own.
        assert await outcome(engine.publish(b"b")) == "storage takes too long to answer"
        assert engine.now - started == pytest.approx(2 * limits.SETTLE_SECONDS_MAX)

        engine.store.gate.set()
        assert await engine.acknowledge(shell.ack_ids) == []
        assert await engine.owed() == [2]


@virtual
async def test_a_backlog_of_an_earlier_start_is_read_and_delivered() -> None:
    store = FakeStore()
    async with running(store) as engine:
        for number in range(10):
            await engine.publish(b"%d" % number)
    async with running(store.reopened()) as engine:
        shell = await engine.open_stream()
        await ticks(20)
        await engine.publish(b"new")
        await ticks(20)

        assert shell.message_ids == list(range(1, 12))
        assert [message.data for message in shell.messages()][-2:] == [b"9", b"new"]


@virtual
async def test_the_clock_goes_on_from_the_newest_time_that_storage_knows() -> None:
    store = FakeStore()
    async with running(store) as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a")
        await asyncio.sleep(5)
        await engine.publish(b"b")
        last_us = engine.engine.now_us()

    async def later() -> None:
        """Another process, whose machine believes that it is earlier."""
        async with running(store.reopened()) as engine:
            assert engine.engine.now_us() >= last_us
            again = await engine.open_stream()
            await asyncio.sleep(6)
            assert [lease.generation for lease in again.leases if lease.message_id == 1] == [2]

    await later()
    assert shell.message_ids == [1]


@virtual
async def test_a_read_that_fails_is_tried_again() -> None:
    store = FakeStore()
    async with running(store) as engine:
        await engine.publish(b"a")
    store = store.reopened()
    store.failing_reads = 3  # one of them is what the subscription asks about the age of its messages
    async with running(store) as engine:
        shell = await engine.open_stream()
        await asyncio.sleep(1.9 * engine_module._PROBE_SECONDS_MAX)
        assert shell.message_ids == []
        await asyncio.sleep(0.2 * engine_module._PROBE_SECONDS_MAX)

        assert shell.message_ids == [1]


@virtual
async def test_redeliveries_that_are_not_in_memory_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    async with running() as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a", b"b")
        await ticks(20)
        await engine.modify_ack_deadline(shell.ack_ids, 0)
        await ticks(20)

        assert shell.message_ids == [1, 2, 1, 2]
        assert [message.data for message in shell.messages()] == [b"a", b"b"] * 2


@virtual
async def test_whoever_looks_once_knows_when_he_has_looked() -> None:
    async with running() as engine:
        broker = await engine.engine.broker()
        request = pb.PullRequest(subscription=SUBSCRIPTION, max_messages=10)

        def open_pull() -> Consumer:
            now_us = engine.engine.now_us()
            return broker.open_pull(request, broker.caller("python", now_us), now_us, Shell())

        nothing = open_pull()
        await engine.engine.pumped()
        assert nothing.waits
        broker.close_pull(nothing)
        await engine.publish(b"a")
        engine.store.gate = asyncio.Event()
        something = open_pull()
        await engine.engine.pumped()
        assert not something.waits, "granted, although its commit is still being written"
        assert something.shell.got == []

        engine.store.gate.set()
        await ticks()
        assert something.shell.message_ids == [1]


@virtual
async def test_a_message_that_storage_has_lost_ends_the_server() -> None:
    """A subscription that waits for it for ever, and looks healthy, would be worse."""
    store = FakeStore()
    async with running(store) as engine:
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await ticks()
        await engine.modify_ack_deadline(shell.ack_ids, 600)
    store = store.reopened()
    store.chunks.clear()
    with pytest.raises(AssertionError, match=SUBSCRIPTION):  # which is what the commit loop ends with
        async with running(store) as engine:
            await engine.open_stream()
            await engine.modify_ack_deadline(shell.ack_ids, 0)
            await ticks(20)
            ended = engine.engine.loop_task.done()
    assert ended


@virtual
async def test_a_journal_that_was_off_says_so_when_it_is_on_again() -> None:
    store = FakeStore()
    async with running(store) as engine:
        await engine.publish(b"a")
        last_seq = engine.engine.journal_seq
    store = store.reopened()
    async with running(store, journal=False) as engine:
        await engine.publish(b"b")
    store = store.reopened()
    async with running(store) as engine:
        await engine.publish(b"c")

    events = [(seq, event) for row in store.journal for seq, event in unpack(Row(*row))]
    ((gap_seq, gap),) = [(seq, event) for seq, event in events if event.kind == Kind.GAP]
    assert gap.aux == last_seq + 1
    lost = json.loads(store.journal_details[gap_seq])["last"]
    seqs = [seq for seq, _ in events]
    assert lost >= gap.aux
    assert seqs == [*range(1, gap.aux), *range(lost + 1, seqs[-1] + 1)]
