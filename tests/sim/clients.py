"""Everybody who calls the server: publishers, consumers, whoever administers, and a forger."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pubsubd.wire import pb
from tests.crash.filters import draw_attributes
from tests.sim.acks import REFUSED, RESPONSES, UNDECIDED, details_in_order, in_order
from tests.sim.changes import Changer
from tests.sim.consumer import Consumer
from tests.sim.forger import Forger
from tests.sim.plan import KEYS, SECOND_US, Manners
from tests.sim.wire import Call, Reply, StreamCall

if TYPE_CHECKING:
    from tests.sim.world import World

_TRIES = 4


class Population:
    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance("clients")
        self.pace = self.chance.choice((0.06, 0.2, 0.6))  # seconds between publishes
        self.manners = world.plan.manners
        self.publishing = self.consuming = True
        self.busy_us = 0  # when something was last delivered
        self.stream_count = 0
        self.known_ids: dict[str, list[str]] = defaultdict(list)
        self.publish_times: list[int] = []  # of messages that were delivered lately
        self._numbers = 0
        self._open_calls = 0
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changer = Changer(self)
        self._forger = Forger(self)

    # -- life -----------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Create what the plan says, before anything goes wrong."""
        for topic in self.world.plan.topics:
            await self.configure("CreateTopic", topic.resource())
        for subscription in self.world.plan.subscriptions:
            await self.configure("CreateSubscription", subscription.resource())

    def begin(self) -> None:
        plan, spawn = self.world.plan, self.world.spawn
        for number in range(plan.publishers):
            self._tasks.append(spawn(self._publish(number)))
        for one in plan.subscriptions:
            for number in range(1 if "dead" in one.name else plan.consumers):
                consumer = Consumer(self, one, number)
                self._consumers.append(consumer)
                self._tasks.append(spawn(consumer.run()))
        self._tasks.append(spawn(self._changer.run()))
        self._tasks.append(spawn(self._forger.run()))
        if plan.cuts:
            self._tasks.append(spawn(self._cut_connections()))

    def calm_down(self) -> None:
        """No more mischief: what comes is acked."""
        self.publishing = False
        self.manners = Manners()
        for consumer in self._consumers:
            consumer.leave()

    def is_idle(self) -> bool:
        """No call is under way but those that wait for messages."""
        return not self._open_calls

    async def end(self) -> None:
        self.consuming = False
        for consumer in self._consumers:
            consumer.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    # -- calls ----------------------------------------------------------------------------------------------

    async def call(
        self, who: str, method: str, data: bytes, shown: Any = "", deadline_us: int | None = None
    ) -> Reply:
        world = self.world
        world.operations += 1
        world.trace.note(who, f"> {method}", data, shown)
        pull = method == "Pull"
        self._open_calls += not pull
        future, call = world.network.unary(method, data, who, deadline_us)
        if not pull:
            self._play_tricks(call)
        try:
            reply = await future
        finally:
            self._open_calls -= not pull
        world.happened()
        world.trace.note(
            who,
            f"< {method} {reply.status.code} {reply.status.message}",
            in_order(RESPONSES[method], reply.data) + details_in_order(reply.status.details),
        )
        return reply

    def _play_tricks(self, call: Call) -> None:
        """Some calls are cancelled, and of some the answer is lost."""
        chance = self.chance
        if not self.world.storm or chance.random() > 0.04:
            return
        us = chance.choice((0, 500, 1_500, 3_000, 20_000))
        if chance.random() < 0.5:
            self.world.network.after(us, self._trick, "cancelled call", call, call.give_up)
        else:
            self.world.network.after(us, self._trick, "lost answer", call, call.cut)

    def _trick(self, name: str, call: Call, trick: Callable[[], None]) -> None:
        if not call.over:
            self.world.fault(name)
            trick()

    async def configure(self, method: str, request: Any) -> tuple[bool | None, bytes]:
        """Change resources; whether it happened, None where nobody knows, and the answer."""
        world = self.world
        sent_us = world.wall_us()
        world.tell("configuring", method, request, sent_us)
        data = request.SerializeToString(deterministic=True)
        reply = await self.call("admin", method, data, request)
        code = reply.status.code
        if code not in REFUSED and code not in UNDECIDED and code != "OK":
            world.breaks("well-formed requests", f"{method}: {reply.status} for {request}")
        ok = None if code in UNDECIDED else code == "OK"
        world.tell("configured", method, request, sent_us, world.wall_us(), ok)
        return ok, reply.data

    # -- publishing -----------------------------------------------------------------------------------------

    async def _publish(self, number: int) -> None:
        world, chance = self.world, self.chance
        topics = [topic.name for topic in world.plan.topics if "dead" not in topic.name]
        while self.publishing:
            await asyncio.sleep(chance.expovariate(1 / self.pace))
            await world.server.up.wait()
            for _ in range(chance.choice((1, 1, 1, 4))):
                if self.publishing:
                    await self._publish_once(f"publisher {number}", chance.choice(topics))

    async def _publish_once(self, who: str, topic: str) -> None:
        world, chance = self.world, self.chance
        key = chance.choice(KEYS)
        messages = []
        for _ in range(chance.choice((1, 1, 2, 5))):
            self._numbers += 1
            messages.append(
                pb.PubsubMessage(
                    data=b"%d" % self._numbers + b"." * chance.choice((0, 0, 10, 60)),
                    attributes=draw_attributes(chance),
                    ordering_key=key,
                )
            )
        request = pb.PublishRequest(topic=topic, messages=messages)
        data = request.SerializeToString(deterministic=True)
        for _ in range(_TRIES):
            call_us = world.wall_us()
            world.tell("sending", topic, messages, call_us)
            deadline_us = chance.choice((None, None, 60 * SECOND_US, 5_000))
            reply = await self.call(who, "Publish", data, request, deadline_us)
            ids = None
            if reply.status.ok:
                ids = list(pb.PublishResponse.FromString(reply.data).message_ids)
            elif reply.status.code not in UNDECIDED | REFUSED:
                world.breaks("well-formed requests", f"Publish: {reply.status}")
            world.tell("published", call_us, world.wall_us(), topic, messages, ids)
            if ids is not None or reply.status.code in REFUSED or chance.random() < 0.3:
                return
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            await world.server.up.wait()

    # -- the network ----------------------------------------------------------------------------------------

    async def _cut_connections(self) -> None:
        world, chance = self.world, self.chance
        while world.storm:
            await asyncio.sleep(chance.expovariate(1 / world.plan.cuts))
            await world.server.up.wait()
            streams = [call for call in world.network.calls if isinstance(call, StreamCall)]
            if streams and world.storm:
                world.fault("cut stream")
                chance.choice(streams).cut()
