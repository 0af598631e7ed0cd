"""Publishers and subscribers at work while commits fail, stall and vanish: what was answered stays true."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

from pubsubd.broker.effects import Delivery
from pubsubd.engine.engine import NotSettled
from tests.unit.broker.world import check, restored, states
from tests.unit.engine.running import Running, StreamShell, running
from tests.unit.engine.virtual import virtual
from tests.unit.storage.fake_store import FakeStore

SECONDS = 60


class Worker(StreamShell):
    """A subscriber: it acks most of what it gets, nacks some, and forgets the rest."""

    def __init__(self, running: Running, random: Random, acked: set[int]) -> None:
        super().__init__(running)
        self._random = random
        self.acked = acked  # by any of them, and answered OK
        self.broken: list[int] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def deliver(self, delivery: Delivery) -> None:
        super().deliver(delivery)
        self.broken += [lease.message_id for lease in delivery.leases if lease.message_id in self.acked]
        task = asyncio.create_task(self._work(delivery))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _work(self, delivery: Delivery) -> None:
        for lease in delivery.leases:
            await asyncio.sleep(self._random.expovariate(3))
            dice = self._random.random()
            with suppress(NotSettled):
                if dice < 0.7:
                    if not await self._running.acknowledge([lease.ack_id]):
                        self.acked.add(lease.message_id)
                elif dice < 0.9:
                    await self._running.modify_ack_deadline([lease.ack_id], self._random.choice([0, 1, 30]))


async def trouble(store: FakeStore, random: Random) -> None:
    """The disk: it fails, hangs, and lies about what it wrote."""
    while True:
        await asyncio.sleep(random.expovariate(0.3))
        store.failing_commits = random.choice([0, 1, 1, 2, 5])
        store.fails_after_writing = random.random() < 0.5
        store.commit_seconds = random.choice([0.0, 0.0, 0.001, 0.02, 0.5, 1.5])
        store.failing_loads = random.choice([0, 0, 0, 2])


async def publishing(engine: Running, random: Random, answered: set[int]) -> None:
    while True:
        await asyncio.sleep(random.expovariate(5))
        with suppress(NotSettled):
            answered.update(await engine.publish(*[b"x"] * random.randint(1, 3)))


async def subscribing(engine: Running, random: Random, acked: set[int]) -> Worker:
    opened = await engine.open_stream(max_outstanding_messages=random.choice([0, 5]))
    worker = Worker(engine, random, acked)
    worker.consumer = opened.consumer
    worker.consumer.shell = worker
    return worker


@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_what_was_answered_stays_true(seed: int) -> None:
    random = Random(seed)
    acked: set[int] = set()
    published: set[int] = set()
    async with running(FakeStore(trim_rows=2)) as engine:
        workers = [await subscribing(engine, random, acked) for _ in range(3)]
        jobs = [asyncio.create_task(publishing(engine, random, published)) for _ in range(3)]
        jobs.append(asyncio.create_task(trouble(engine.store, random)))
        await asyncio.sleep(SECONDS)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        # The disk is well again, and everything comes to rest.
        engine.store.failing_commits = engine.store.failing_loads = 0
        engine.store.commit_seconds = 0.0
        for _ in range(2000):
            if not await engine.owed():
                break
            await asyncio.sleep(5)
        for worker in workers:
            await asyncio.gather(*worker.tasks)
        broker = await engine.engine.broker()

        assert not engine.engine.loop_task.done()
        assert [worker.broken for worker in workers] == [[], [], []], (
            "delivered after an ack that was answered OK"
        )
        assert len(published) > 100
        assert published <= {number for worker in workers for number in worker.message_ids}
        assert await engine.owed() == []
        check(broker)
        assert states(broker) == states(restored(engine.store))
