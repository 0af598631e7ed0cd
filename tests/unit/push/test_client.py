"""The line in which requests wait for their turn."""

from __future__ import annotations

import asyncio

import pytest

from pubsubd.push.client import Turns


async def ticks(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_comes_when_all_turns_are_taken_waits_in_line() -> None:
    turns, order = Turns(2, 1000), []

    async def wait(name: str) -> None:
        await turns.take(1)
        order.append(name)

    await turns.take(1)
    await turns.take(1)
    waiting = [asyncio.create_task(wait(name)) for name in ("a", "b", "c")]
    await ticks()
    assert order == []
    turns.leave(1)
    await ticks()
    assert order == ["a"]
    turns.leave(1)
    turns.leave(1)
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]


async def test_bytes_are_bounded_but_for_the_one_that_passes_the_bound() -> None:
    turns = Turns(100, 10)
    await turns.take(8)
    await turns.take(5_000_000)
    waiting = asyncio.create_task(turns.take(1))
    await ticks()
    assert not waiting.done()
    turns.leave(8)
    await ticks()
    assert not waiting.done()
    turns.leave(5_000_000)
    await waiting


async def test_who_gives_up_waiting_takes_no_turn() -> None:
    turns = Turns(1, 1000)
    await turns.take(1)
    gone, waiting = [asyncio.create_task(turns.take(1)) for _ in range(2)]
    await ticks()
    gone.cancel()
    turns.leave(1)
    await waiting
    assert gone.cancelled()


async def test_who_gives_up_when_it_is_its_turn_leaves_it_to_the_next() -> None:
    turns = Turns(1, 1000)
    await turns.take(1)
    gone, waiting = [asyncio.create_task(turns.take(1)) for _ in range(2)]
    await ticks()
    turns.leave(1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await waiting
