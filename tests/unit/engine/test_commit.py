"""Group commit, and that nothing is said before it."""

from __future__ import annotations

import asyncio

import pytest

from pubsubd.broker.broker import Broker
from pubsubd.model import limits
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, TOPIC, restored, state_of, states
from tests.unit.engine.running import Running, running
from tests.unit.engine.virtual import virtual
from tests.unit.storage.fake_store import FakeStore


async def ticks(count: int = 5) -> None:
    """Let everything run that can run, without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)


async def while_a_commit_is_written(engine: Running) -> asyncio.Event:
    """The next commit hangs until the event is set."""
    engine.store.gate = asyncio.Event()
    return engine.store.gate


@virtual
async def test_the_start_is_committed_before_anything_else() -> None:
    store = FakeStore()
    async with running(store):
        first = store.commits[0]

    assert first.oplog_is_checkpoint
    assert any('"boot":1' in text for _, text in first.journal_details)


@virtual
async def test_an_answer_waits_for_its_commit() -> None:
    async with running() as engine:
        gate = await while_a_commit_is_written(engine)
        publish = asyncio.create_task(engine.publish(b"a"))
        await asyncio.sleep(1)
        assert not publish.done()

        gate.set()
        assert await publish == [1]
        assert engine.store.chunks


@virtual
async def test_calls_that_come_together_share_a_commit() -> None:
    async with running() as engine:
        engine.store.commit_seconds = 0.01
        before = engine.engine.commits
        ids = await asyncio.gather(*[engine.publish(b"x") for _ in range(200)])

        assert sorted(number for (number,) in ids) == list(range(1, 201))
        assert engine.engine.commits - before <= 2


@virtual
async def test_what_comes_while_a_commit_is_written_goes_into_the_next() -> None:
    async with running() as engine:
        gate = await while_a_commit_is_written(engine)
        before = engine.engine.commits
        calls = []
        for _ in range(50):
            calls.append(asyncio.create_task(engine.publish(b"x")))
            await asyncio.sleep(0.001)
        gate.set()
        await asyncio.gather(*calls)

        assert engine.engine.commits - before == 2


@virtual
async def test_a_single_call_does_not_wait_for_company() -> None:
    async with running() as engine:
        started = engine.now
        await engine.publish(b"a")

        assert engine.now == started


@virtual
async def test_nothing_to_store_is_nothing_to_wait_for() -> None:
    async with running() as engine:
        before = engine.engine.commits
        for _ in range(10):
            await engine.engine.settled()

        assert engine.engine.commits == before


@virtual
async def test_a_repetition_waits_for_what_it_repeats() -> None:
    """An ack that comes again while the first one is being written must not be answered before it."""
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a")
        await ticks()
        gate = await while_a_commit_is_written(engine)
        first = asyncio.create_task(engine.acknowledge(shell.ack_ids))
        await ticks()
        again = asyncio.create_task(engine.acknowledge(shell.ack_ids))
        other = asyncio.create_task(engine.engine.settled())
        await asyncio.sleep(1)
        assert not (first.done() or again.done() or other.done())

        gate.set()
        assert (await first, await again, await other) == ([], [], None)


@virtual
async def test_without_a_journal_a_repetition_still_waits_for_what_it_repeats() -> None:
    async with running(journal=False) as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a")
        await ticks()
        gate = await while_a_commit_is_written(engine)
        first = asyncio.create_task(engine.acknowledge(shell.ack_ids))
        await ticks()
        again = asyncio.create_task(engine.acknowledge(shell.ack_ids))
        await asyncio.sleep(1)
        assert not (first.done() or again.done())

        gate.set()
        assert (await first, await again) == ([], [])


@virtual
async def test_a_delivery_goes_out_after_its_commit() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        gate = await while_a_commit_is_written(engine)
        shell = await engine.open_stream()
        await asyncio.sleep(0.5)
        assert shell.message_ids == []

        gate.set()
        await ticks()
        assert shell.message_ids == [1]
        assert shell.ack_ids == list((await engine.subscription()).leases.by_ack_id)


@virtual
async def test_the_end_of_a_stream_and_a_switch_are_said_after_their_commit() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        await ticks()
        gate = await while_a_commit_is_written(engine)
        request = pb.UpdateSubscriptionRequest(
            subscription=pb.Subscription(name=SUBSCRIPTION, enable_exactly_once_delivery=False),
            update_mask=pb.FieldMask(paths=["enable_exactly_once_delivery"]),
        )
        switch = asyncio.create_task(engine.call(Broker.update_subscription, request))
        await ticks()
        delete = pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION)
        deletion = asyncio.create_task(engine.call(Broker.delete_subscription, delete))
        await asyncio.sleep(1)
        assert (shell.properties_changed_count, shell.errors) == (0, [])

        gate.set()
        await asyncio.gather(switch, deletion)
        assert shell.properties_changed_count == 1
        assert [error.status for error in shell.errors] == ["NOT_FOUND"]


@virtual
async def test_what_is_stored_is_what_is_there() -> None:
    async with running() as engine:
        shell = await engine.open_stream()
        for number in range(20):
            await engine.publish(b"%d" % number)
        await ticks()
        await engine.acknowledge(shell.ack_ids[:7])
        await engine.modify_ack_deadline(shell.ack_ids[7:9], 0)
        await ticks()

        assert states(await engine.engine.broker()) == states(restored(engine.store))


@virtual
async def test_a_long_operation_log_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPLOG_BYTES_MAX", 1000)
    async with running() as engine:
        for _ in range(200):
            await engine.publish(b"x")
        folded = [commit for commit in engine.store.commits if commit.oplog_is_checkpoint]
        state = state_of(await engine.subscription())

        assert 3 <= len(folded) <= 40
        assert sum(map(len, engine.store.oplog)) < 2000
        assert states(restored(engine.store)) == {SUBSCRIPTION: state}


@virtual
async def test_the_journal_is_kept_within_its_bound() -> None:
    async with running(journal_bytes_max=5000) as engine:
        for _ in range(200):
            await engine.publish(b"x")

        rows, _ = await engine.store.read_journal()
        assert sum(len(row[3]) for row in rows) <= 6000
        assert rows[0][0] > 1
        assert engine.engine.journal_seq == rows[-1][0] + rows[-1][1] - 1


@virtual
async def test_what_came_on_top_of_a_commit_stays_in_memory_until_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    async with running() as engine:
        shell = await engine.open_stream()
        await ticks()
        gate = await while_a_commit_is_written(engine)
        first = asyncio.create_task(engine.publish(b"a"))
        await ticks()
        second = asyncio.create_task(engine.publish(b"b"))
        await ticks()
        engine.store.commit_seconds = 0.1
        gate.set()
        await asyncio.gather(first, second)
        await asyncio.sleep(1)

        assert shell.message_ids == [1, 2]


@virtual
async def test_unneeded_rows_go_while_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRIM_MESSAGES_MIN", 0)
    async with running(FakeStore(trim_rows=3)) as engine:
        for _ in range(20):
            await engine.publish(b"x")
        shell = await engine.open_stream()
        await ticks()
        await engine.acknowledge(shell.ack_ids)
        await ticks(50)
        after = engine.engine.commits
        await asyncio.sleep(3600)

        assert engine.store.chunks[1] == {}
        assert engine.engine.commits == after


@virtual
async def test_an_idle_server_writes_nothing() -> None:
    async with running() as engine:
        await engine.open_stream()
        await ticks()
        before = engine.engine.commits
        await asyncio.sleep(24 * 3600)

        assert engine.engine.commits == before


@virtual
async def test_a_topic_exists_for_the_next_caller_at_once_and_for_the_disk_before_the_answer() -> None:
    async with running() as engine:
        gate = await while_a_commit_is_written(engine)
        name = f"{TOPIC}2"
        created = asyncio.create_task(engine.call(Broker.create_topic, pb.Topic(name=name)))
        await ticks()
        found = (await engine.engine.broker()).get_topic(pb.GetTopicRequest(topic=name))
        shown = asyncio.create_task(engine.engine.settled())
        await asyncio.sleep(1)

        assert found.name == name
        assert not (created.done() or shown.done()), "whoever was shown it waits as well"
        gate.set()
        await asyncio.gather(created, shown)
