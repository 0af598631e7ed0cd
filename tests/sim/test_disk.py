"""What goes wrong with a commit, and what is then on the disk; what goes right is in the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from pubsubd.storage.store import Commit, StorageFailed
from tests.sim.disk import Fate, SimDisk, SimStore, Trouble
from tests.sim.loop import Process, SimLoop

SECRET = b"a secret of the simulated disk.."


class Machine:
    """A disk in a loop, and a process that uses it."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(SECRET)
        self.trouble = Trouble()
        self.faults: list[str] = []
        self.killed: list[Fate] = []
        self.process = Process("server")

    def store(self) -> SimStore:
        return SimStore(
            self.disk,
            self.trouble,
            Random(1),
            kill=self._kill,
            fault=self.faults.append,
            now_us=lambda: self.loop.now_us,
        )

    def _kill(self, fate: Fate) -> None:
        self.killed.append(fate)
        self.process.alive = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.loop.run_until_complete(work)
        finally:
            self.loop.close()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize(("fate", "written"), [(Fate.FAILS, []), (Fate.FAILS_WRITTEN, [b"one"])])
def test_a_commit_that_fails_is_written_or_not(machine: Machine, fate: Fate, written: list[bytes]) -> None:
    async def work() -> None:
        machine.trouble.next_fate = fate
        store = machine.store()
        with pytest.raises(StorageFailed):
            await store.commit(Commit(oplog=b"one"))
        assert (await store.load()).oplog == written
        await store.commit(Commit(oplog=b"two"))
        assert (await store.load()).oplog == [*written, b"two"]

    machine.run(work())
    assert machine.faults == [fate.value]


@pytest.mark.parametrize(("fate", "written"), [(Fate.KILLS_BEFORE, []), (Fate.KILLS_AFTER, [b"one"])])
def test_a_process_dies_at_a_commit_and_hears_no_more(
    machine: Machine, fate: Fate, written: list[bytes]
) -> None:
    heard: list[str] = []

    async def server() -> None:
        await machine.store().commit(Commit(oplog=b"one"))
        heard.append("committed")

    async def work() -> None:
        machine.trouble.next_fate = fate
        machine.loop.create_task(server(), context=machine.process.context)
        await asyncio.sleep(60)
        assert (await machine.store().load()).oplog == written

    machine.run(work())
    assert (machine.killed, heard) == ([fate], [])


def test_a_process_that_is_killed_in_the_middle_writes_nothing_later(machine: Machine) -> None:
    async def work() -> None:
        machine.trouble.stalled_until_us = 1_000_000
        machine.loop.create_task(
            machine.store().commit(Commit(oplog=b"one")), context=machine.process.context
        )
        await asyncio.sleep(0.5)
        machine.process.alive = False
        await asyncio.sleep(60)

    machine.run(work())
    assert machine.disk.oplog == []


def test_a_full_disk_takes_nothing_and_can_be_read(machine: Machine) -> None:
    async def work() -> None:
        store = machine.store()
        await store.commit(Commit(oplog=b"one"))
        machine.trouble.full = True
        with pytest.raises(StorageFailed, match="full"):
            await store.commit(Commit(oplog=b"two"))
        assert (await store.load()).oplog == [b"one"]
        machine.trouble.full = False
        await store.commit(Commit(oplog=b"three"))

    machine.run(work())
    assert machine.disk.oplog == [b"one", b"three"]


def test_a_stalled_disk_answers_when_it_goes_on(machine: Machine) -> None:
    async def work() -> None:
        machine.trouble.stalled_until_us = 7_000_000
        await machine.store().commit(Commit(oplog=b"one"))
        assert machine.loop.now_us >= 7_000_000

    machine.run(work())
    assert machine.disk.oplog == [b"one"]


def test_reads_and_loads_fail_as_often_as_they_should(machine: Machine) -> None:
    async def work() -> None:
        machine.trouble.failing_reads = machine.trouble.failing_loads = 1.0
        store = machine.store()
        for read in (store.load(), store.read_range(1, 0, 9, 9), store.read_messages(1, [1], 9)):
            with pytest.raises(StorageFailed):
                await read
        with pytest.raises(StorageFailed):
            await store.find_chunk(1, 0, 1)

    machine.run(work())


def test_each_boot_has_its_number_and_knows_how_the_last_one_ended(machine: Machine) -> None:
    async def work() -> None:
        first = machine.store()
        assert (first.boot, first.was_clean) == (1, True)
        await first.commit(Commit(oplog=b"", clean=True))
        second = machine.store()
        assert (second.boot, second.was_clean) == (2, True)
        third = machine.store()
        assert (third.boot, third.was_clean) == (3, False)

    machine.run(work())


def test_messages_of_a_topic_that_is_gone_are_removed_by_the_next_boot(machine: Machine) -> None:
    async def work() -> None:
        store = machine.store()
        await store.commit(Commit(oplog=b"", chunks=[(1, 5, 0, b"row"), (2, 6, 0, b"row")]))
        await store.commit(Commit(oplog=b"", topics=[(2, "t", False, b"")]))
        store = machine.store()
        assert store.has_rows_to_trim
        await store.commit(Commit(oplog=b""))
        assert not store.has_rows_to_trim

    machine.run(work())
    assert [*machine.disk.chunks] == [2]
