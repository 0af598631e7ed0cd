"""What goes wrong beside the clients: the weather of the disk, and who operates the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.disk import Fate
from tests.sim.plan import SECOND_US

if TYPE_CHECKING:
    from tests.sim.world import World

_WAIT_SECONDS_MAX = 3.0  # for a fault that nothing meets


class Weather:
    """The disk is well, then it is not for a while, then it is again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance("weather")
        self._task: asyncio.Task[None] | None = None
        self._usual = (world.trouble.commit_us, world.trouble.read_us)

    def begin(self) -> None:
        if self._world.plan.disk_trouble:
            self._task = self._world.spawn(self._change())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._clear()

    def _clear(self) -> None:
        trouble = self._world.trouble
        trouble.commit_us, trouble.read_us = self._usual
        trouble.full, trouble.unmet = False, ""
        trouble.failing_commits = trouble.failing_reads = trouble.failing_loads = 0.0
        trouble.stalled_until_us = 0

    async def _change(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / self._world.plan.disk_trouble))
            # What nobody meets is no trouble.
            await self._world.server.begun.wait()
            self._turn_bad()
            await asyncio.sleep(chance.choice((0.02, 0.1, 0.5, 2.0, 6.0)))
            self._clear()
            self._world.trace.note("disk", "is well again")

    def _turn_bad(self) -> None:
        chance, trouble = self._chance, self._world.trouble
        kind = chance.randrange(7)
        if kind == 0:
            slow_ms = chance.choice((20, 100, 700, 1500))
            trouble.commit_us = (slow_ms * 500, slow_ms * 1000)
            trouble.unmet = "disk slow"
        elif kind == 1:
            trouble.stalled_until_us = self._world.loop.now_us + round(
                chance.choice((0.5, 2.0, 8.0, 12.0)) * SECOND_US
            )
            trouble.unmet = "disk stalled"
        elif kind in (2, 3):
            trouble.failing_commits = chance.choice((0.2, 0.7, 1.0))
            trouble.failing_written = chance.choice((0.0, 0.5, 1.0))
            trouble.failing_loads = chance.choice((0.0, 0.0, 0.6))
        elif kind == 4:
            trouble.full = True
            trouble.failing_loads = chance.choice((0.0, 0.5))
            trouble.unmet = "disk full for a while"
        elif kind == 5:
            trouble.failing_reads = chance.choice((0.3, 1.0))
        else:
            trouble.read_us = (10_000, chance.choice((100_000, 3_000_000)))
            trouble.unmet = "reads slow"


class Operator:
    """Ends the server in every way there is, and starts it again; and now and then the machine sleeps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance("operator")
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self._ways = [
            self._at_any_moment,
            self._before_a_commit,
            self._after_a_commit,
            self._between_commits,
            self._in_order,
            self._while_starting,
        ]

    def begin(self) -> None:
        # This one runs in any case: a server that ends is started again.
        self._tasks = [self._world.spawn(self._keep_up())]
        if self._world.plan.kills:
            self._tasks.append(self._world.spawn(self._keep_ending()))
        if self._world.plan.jumps:
            self._tasks.append(self._world.spawn(self._keep_leaping()))

    async def end(self) -> None:
        """No more of it, and the server is up."""
        server, (_, *others) = self._world.server, self._tasks
        self._ending = True
        for task in others:
            task.cancel()
        self._world.trouble.next_fate = None
        self._world.at_rest.clear()
        while server.stopping or not server.up.is_set():
            await (server.gone.wait() if server.stopping else server.up.wait())

    def leave(self) -> None:
        """A server that ends now stays down. Until then one may, at a commit that began in the storm."""
        self._tasks[0].cancel()

    async def _keep_up(self) -> None:
        world, chance, server = self._world, self._chance, self._world.server
        while True:
            await server.gone.wait()
            if self._ending:
                await asyncio.sleep(0.1)
            elif world.plan.jumps and chance.random() < 0.08:
                world.fault("down for hours")
                await asyncio.sleep(chance.choice((0.5, 2.0, 30.0)) * 3600)
            else:
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.1, 1.2, 12.0)))
            server.boot()

    async def _keep_ending(self) -> None:
        world = self._world
        while True:
            await world.server.up.wait()
            await asyncio.sleep(self._chance.expovariate(1 / world.plan.kills))
            if world.server.up.is_set():
                await self._chance.choice(self._ways)()

    async def _at_any_moment(self) -> None:
        self._kill("killed at any moment")

    async def _before_a_commit(self) -> None:
        await self._at_a_commit(Fate.KILLS_BEFORE)

    async def _after_a_commit(self) -> None:
        await self._at_a_commit(Fate.KILLS_AFTER)

    async def _at_a_commit(self, fate: Fate) -> None:
        trouble = self._world.trouble
        trouble.skip = self._chance.choice((0, 1, 5, 20))
        trouble.next_fate = fate
        try:
            async with asyncio.timeout(_WAIT_SECONDS_MAX):
                await self._world.server.gone.wait()
        except TimeoutError:
            self._kill("killed at any moment")
        finally:
            trouble.next_fate = None

    async def _between_commits(self) -> None:
        """When an instant is over in which no commit was being written."""

        def look() -> None:
            engine = self._world.server.engine
            if engine is not None and engine._flying is None:
                self._world.at_rest.clear()
                self._kill("killed between commits")

        self._world.at_rest.append(look)
        await asyncio.sleep(_WAIT_SECONDS_MAX)
        self._world.at_rest.clear()

    async def _in_order(self) -> None:
        self._world.fault("stopped in order")
        self._world.server.stop()
        if self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.uniform(0, 0.5))
            self._kill("killed while stopping")

    async def _while_starting(self) -> None:
        self._kill("killed at any moment")
        for _ in range(self._chance.randint(1, 3)):
            await self._world.server.begun.wait()
            await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.2, 0.301)))
            self._kill(
                "killed while starting" if not self._world.server.up.is_set() else "killed at any moment"
            )

    def _kill(self, how: str) -> None:
        if self._world.server.process is not None:
            self._world.fault(how)
            self._world.server.kill(how)

    async def _keep_leaping(self) -> None:
        world, chance = self._world, self._chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / world.plan.jumps))
            await world.server.up.wait()
            seconds = chance.choice((3, 11, 30, 300, 3600, 5 * 3600))
            world.fault("the machine slept for hours" if seconds >= 3600 else "the machine slept for a while")
            world.leap(seconds * SECOND_US)
