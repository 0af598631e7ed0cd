"""The server as a process: started over the disk, stopped in order, or killed.

Engine, Service and everything below are the product's own; `_main` is what `pubsubd.server.run` does around
them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

from pubsubd.engine.engine import Engine
from pubsubd.server.calls import MethodHandler
from pubsubd.server.service import Service
from pubsubd.storage.store import Commit, StorageFailed
from pubsubd.wire.services import SERVICES
from tests.sim.disk import Fate, SimDisk, SimStore, Trouble
from tests.sim.loop import Process, SimLoop
from tests.sim.plan import Plan

_METHODS = {
    method.name: method.path
    for name, methods in SERVICES.items()
    if name.startswith("google.pubsub.")
    for method in methods.values()
}


class Host(Protocol):
    """What the machine tells whoever watches."""

    def wall_us(self) -> int: ...

    def fault(self, name: str) -> None: ...

    def wrote(self, commit: Commit) -> None: ...

    def started(self, engine: Engine) -> None: ...

    def ended(self, how: str) -> None: ...

    def broke(self, error: BaseException) -> None: ...


class Server:
    def __init__(
        self, loop: SimLoop, disk: SimDisk, trouble: Trouble, chance: Random, plan: Plan, host: Host
    ) -> None:
        self.boots = 0
        self.engine: Engine | None = None  # of the server that is up
        self.process: Process | None = None
        self.gone = asyncio.Event()  # no process runs
        self.gone.set()
        self.begun = asyncio.Event()  # one runs
        self.up = asyncio.Event()
        self._loop = loop
        self._disk = disk
        self._trouble = trouble
        self._chance = chance
        self._plan = plan
        self._host = host
        self._handlers: dict[str, MethodHandler] = {}
        self._stop: asyncio.Event | None = None
        self._uniques = itertools.count(1)

    def serving(self) -> tuple[Callable[[str], MethodHandler], Process] | None:
        if self.process is None or not self._handlers:
            return None
        return self._handlers.__getitem__, self.process

    def boot(self) -> None:
        """Start a process; `up` is set once it serves, `gone` when it ends."""
        assert self.process is None
        self.boots += 1
        self.process = Process(f"boot {self.boots}")
        self.gone.clear()
        self.begun.set()
        self._stop = asyncio.Event()
        task = self._loop.create_task(self._main(self.process), context=self.process.context)
        task.add_done_callback(self._main_ended)

    def stop(self) -> None:
        """As SIGTERM does."""
        if self._stop is not None:
            self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def kill(self, how: str) -> None:
        if self.process is not None:
            self._end(how)

    def _main_ended(self, task: asyncio.Task[str]) -> None:
        error = task.exception()
        if error is not None:
            self._host.broke(error)
        self._end("failed" if error is not None else task.result())

    def _end(self, how: str) -> None:
        assert self.process is not None
        self.process.alive = False
        self.process = self.engine = self._stop = None
        self._handlers = {}
        self.up.clear()
        self.begun.clear()
        self.gone.set()
        self._host.ended(how)

    async def _main(self, process: Process) -> str:
        chance = self._chance
        await asyncio.sleep(chance.uniform(0.001, 0.3))
        if self._trouble.full:
            return "did not start: the disk is full"
        store = SimStore(
            self._disk,
            self._trouble,
            chance,
            self._host.wrote,
            self._die,
            self._host.fault,
            lambda: self._loop.now_us,
        )
        engine = Engine(store, True, self._plan.journal_bytes, self._clock)
        try:
            await engine.start("sim", self._disk.sealed_seq)
        except StorageFailed as failure:
            return f"did not start: {failure}"
        service = Service(engine, self._plan.policy, lambda: f"unique-{next(self._uniques)}")
        self._handlers = _table(service)
        self.engine = engine
        self._host.started(engine)
        self.up.set()
        assert self._stop is not None
        stopping = asyncio.create_task(self._stop.wait())
        sealing = asyncio.create_task(self._keep_sealing(engine))
        await asyncio.wait([stopping, engine.loop_task], return_when=asyncio.FIRST_COMPLETED)
        sealing.cancel()
        if engine.loop_task.done():
            engine.loop_task.result()
        self.up.clear()
        await service.close()
        await engine.stop()
        await service.answered()
        await store.close()
        return "stopped in order"

    async def _keep_sealing(self, engine: Engine) -> None:
        """What rollers do beside the server. One that is killed in time has sealed and said nothing."""
        # Chance of its own, so that a history is the same with and without it.
        chance = Random(f"{self._plan.operations} {self.boots}")
        while True:
            await asyncio.sleep(chance.uniform(1, 120))
            sealed_seq = self._disk.seal(chance)
            if chance.random() < 0.8:
                engine.sealed(sealed_seq)

    def _die(self, fate: Fate) -> None:
        self._host.fault(fate.value)
        self.kill(fate.value)

    def _clock(self, not_before_us: int) -> Any:
        # Nothing on disk can be from the future: the machine's clock is never set back here.
        assert not_before_us <= self._host.wall_us(), "a time on disk has not come yet"
        return SimpleNamespace(now_us=self._host.wall_us)


def _table(service: Service) -> dict[str, MethodHandler]:
    """Every method by name, as grpc would find it."""
    found: dict[str, MethodHandler] = {}
    handlers = service.handlers()
    for name, path in _METHODS.items():
        details: Any = SimpleNamespace(method=path, invocation_metadata=())
        for handler in handlers:
            method = handler.service(details)
            if method is not None:
                found[name] = method
    return found
