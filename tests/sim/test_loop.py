"""Virtual time, and processes that stop where they are."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.sim.loop import Process, SimLoop, Stuck


def run(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimLoop()

    async def work() -> list[float]:
        seen = [loop.time()]
        await asyncio.sleep(3600)
        seen.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        return [*seen, loop.time()]

    assert run(loop, work()) == [0.0, 3600.0, 3600.25]


def test_timers_of_one_moment_keep_their_order() -> None:
    loop = SimLoop()
    seen: list[int] = []

    async def work() -> None:
        for number in range(20):
            loop.call_later(0.5, seen.append, number)
        await asyncio.sleep(1)

    run(loop, work())
    assert seen == list(range(20))


@pytest.mark.parametrize("now_us", [1, 3, 55_690_381, 1_234_567_891])
def test_a_timer_is_never_early(now_us: int) -> None:
    """Not even by a rounding error: who waits for the rest of the time would wait for ever."""
    loop = SimLoop()
    loop.now_us = now_us

    async def work() -> None:
        for delay in (0.1, 0.3, 1e-7, 0.7):
            until = loop.time() + delay
            await asyncio.sleep(delay)
            assert loop.time() >= until

    run(loop, work())


def test_where_nothing_can_happen_it_says_so() -> None:
    loop = SimLoop()

    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(loop, work())


def test_a_killed_process_does_nothing_more() -> None:
    loop = SimLoop()
    seen: list[str] = []

    async def life() -> None:
        try:
            while True:
                seen.append(f"at {loop.now_us}")
                await asyncio.sleep(1)
        finally:
            seen.append("finally")

    async def child() -> None:
        await asyncio.gather(life(), asyncio.Event().wait())

    async def work() -> None:
        process = Process("victim")
        loop.create_task(child(), context=process.context)
        await asyncio.sleep(2.5)
        process.alive = False
        gc.collect()
        await asyncio.sleep(10)
        assert seen == ["at 0", "at 1000000", "at 2000000"]

    run(loop, work())


def test_who_waits_for_the_dead_is_not_dead() -> None:
    """A callback belongs to who asked for it, whoever it is that brings it about."""
    loop = SimLoop()
    heard: list[str] = []

    async def work() -> None:
        process = Process("victim")
        news = loop.create_future()

        async def victim() -> None:
            news.set_result("this much was said")
            await asyncio.Event().wait()

        async def survivor() -> None:
            heard.append(await news)

        task = loop.create_task(survivor())
        loop.create_task(victim(), context=process.context)
        await asyncio.sleep(0)
        process.alive = False
        await task

    run(loop, work())
    assert heard == ["this much was said"]


def test_the_end_of_each_instant_is_told() -> None:
    rests: list[int] = []
    loop = SimLoop(lambda: rests.append(loop.now_us))

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.sleep(2)
        await asyncio.sleep(2)

    run(loop, work())
    assert rests == [0, 2_000_000]


def test_what_fails_unseen_is_kept() -> None:
    loop = SimLoop()

    def fails() -> None:
        raise RuntimeError("unseen")

    async def work() -> None:
        loop.call_soon(fails)
        await asyncio.sleep(1)

    run(loop, work())
    assert "unseen" in loop.failures[0]
