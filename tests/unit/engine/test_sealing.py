"""The tail of the journal goes as it is sealed, and every hour begins with all resources."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pubsubd.journal.record import Row, unpack
from pubsubd.model.events import Kind
from tests.unit.broker.world import SUBSCRIPTION, TOPIC
from tests.unit.engine.running import Running, running
from tests.unit.engine.virtual import virtual
from tests.unit.storage.fake_store import FakeStore

HOUR_SECONDS = 3600


def seqs(store: FakeStore) -> list[int]:
    return [seq for row in store.journal for seq, _ in unpack(Row(*row))]


def repeated(store: FakeStore) -> list[tuple[int, dict[str, Any]]]:
    """The records that repeat a resource: number and detail."""
    found = sorted((seq, json.loads(text)) for seq, text in store.journal_details.items())
    return [(seq, detail) for seq, detail in found if detail.get("checkpoint")]


async def settle(engine: Running) -> None:
    engine.engine.poke()
    await asyncio.sleep(0.1)


@virtual
async def test_what_is_sealed_leaves_the_tail_without_anybody_asking() -> None:
    async with running() as engine:
        await engine.publish(b"a", b"b")
        sealed_seq = engine.engine.journal_seq
        await engine.publish(b"c")

        engine.engine.sealed(sealed_seq)
        await asyncio.sleep(0.1)

        assert min(seqs(engine.store)) == sealed_seq + 1
        assert min(engine.store.journal_details, default=sealed_seq + 1) > sealed_seq
        commits = engine.engine.commits
        await asyncio.sleep(HOUR_SECONDS)
        assert engine.engine.commits == commits, "and then it rests"


@virtual
async def test_a_commit_that_fails_deletes_later_what_it_was_to_delete() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        sealed_seq = engine.engine.journal_seq
        engine.store.failing_commits = 1

        engine.engine.sealed(sealed_seq)
        await asyncio.sleep(5)

        assert engine.store.failing_commits == 0
        assert [seq for seq in seqs(engine.store) if seq <= sealed_seq] == []


@virtual
async def test_the_tail_says_how_long_it_is_and_since_when() -> None:
    async with running() as engine:
        heard: list[tuple[int, int]] = []
        engine.engine.watch_tail(lambda events, since_us: heard.append((events, since_us)))
        await engine.publish(b"a", b"b")
        events, since_us = heard[-1]
        assert events == engine.engine.journal_seq

        engine.engine.sealed(engine.engine.journal_seq)
        await asyncio.sleep(60)
        await engine.publish(b"c")

        assert heard[-1][0] == 1
        assert heard[-1][1] >= since_us + 60_000_000


@virtual
async def test_a_start_after_everything_was_sealed_misses_nothing() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.engine.sealed(engine.engine.journal_seq)
        await asyncio.sleep(0.1)
        sealed_seq = engine.engine.journal_seq
        assert engine.store.journal == []
        store = engine.store.reopened()

    async with running(store, sealed_seq=sealed_seq):
        found = [event.kind for row in store.journal for _, event in unpack(Row(*row))]
        assert found == [Kind.START]
        assert seqs(store) == [sealed_seq + 1]


@virtual
async def test_each_hour_begins_with_all_resources() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        assert repeated(engine.store) == []
        before_seq = engine.engine.journal_seq

        await asyncio.sleep(HOUR_SECONDS)
        await engine.publish(b"b")

        found = repeated(engine.store)
        assert [seq for seq, _ in found] == [before_seq + 1, before_seq + 2], "before anything else"
        assert found[0][1]["topic"]["name"] == TOPIC
        assert found[1][1]["subscription"]["name"] == SUBSCRIPTION
        await engine.publish(b"c")
        assert len(repeated(engine.store)) == 2, "and once"


@virtual
async def test_a_repetition_that_was_lost_with_its_commit_is_made_again() -> None:
    async with running() as engine:
        await asyncio.sleep(HOUR_SECONDS)
        engine.store.failing_commits = 1
        await asyncio.gather(engine.publish(b"a"), return_exceptions=True)
        await asyncio.sleep(5)

        await engine.publish(b"b")

        assert len(repeated(engine.store)) >= 2


@virtual
async def test_nothing_is_repeated_while_nobody_calls() -> None:
    async with running() as engine:
        await settle(engine)
        commits = engine.engine.commits

        await asyncio.sleep(5 * HOUR_SECONDS)

        assert engine.engine.commits == commits


@virtual
async def test_what_is_only_looked_at_does_not_wait_for_the_repetition() -> None:
    async with running() as engine:
        await asyncio.sleep(HOUR_SECONDS)
        engine.store.gate = asyncio.Event()

        broker = await engine.engine.broker()
        assert broker.must_commit(), "all resources are told again"
        assert not broker.has_decided()
        await engine.engine.settled()

        engine.store.gate.set()
