"""An engine that runs on a fake store, and what handlers do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from pubsubd.broker.broker import Broker
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery
from pubsubd.broker.subscription import Subscription
from pubsubd.engine.engine import Engine, NotSettled
from pubsubd.wire import pb
from tests.unit.broker.world import SUBSCRIPTION, TOPIC, Shell, owed
from tests.unit.engine.virtual import VirtualClock
from tests.unit.storage.fake_store import FakeStore


class StreamShell(Shell):
    """As the server's: it asks again when a delivery was not made. It notes when things were said."""

    def __init__(self, running: Running, asks_again: bool = True) -> None:
        super().__init__()
        self._running = running
        self._asks_again = asks_again
        self.consumer: Consumer
        self.times: list[float] = []

    def deliver(self, delivery: Delivery) -> None:
        super().deliver(delivery)
        self.times.append(asyncio.get_running_loop().time())
        if self._asks_again:
            self._running.engine.set_ready(self.consumer)

    def not_delivered(self) -> None:
        super().not_delivered()
        if self._asks_again:
            self._running.engine.set_ready(self.consumer)


class Running:
    def __init__(self, store: FakeStore, engine: Engine) -> None:
        self.store = store
        self.engine = engine

    async def call(self, command: Any, request: Any, *more: Any) -> Any:
        """A handler: decide, wait until it is durable, answer."""
        broker = await self.engine.broker()
        answer = command(broker, request, *more, self.engine.now_us())
        await self.engine.settled()
        return answer

    async def create(self, exactly_once: bool = True) -> None:
        await self.call(Broker.create_topic, pb.Topic(name=TOPIC))
        request = pb.Subscription(
            name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=10, enable_exactly_once_delivery=exactly_once
        )
        await self.call(Broker.create_subscription, request, "unique")

    async def publish(self, *datas: bytes) -> list[int]:
        request = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=data) for data in datas])
        broker = await self.engine.broker()
        caller = broker.caller("publisher", self.engine.now_us())
        ids = broker.publish(request, request.ByteSize(), caller, self.engine.now_us())
        await self.engine.settled()
        return [int(message_id) for message_id in ids]

    async def acknowledge(self, ack_ids: Iterable[str]) -> list[str]:
        request = pb.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids)
        broker = await self.engine.broker()
        caller = broker.caller("python", self.engine.now_us())
        _, refused = broker.acknowledge(request, request.ByteSize(), caller, self.engine.now_us())
        await self.engine.settled()
        return [refusal.ack_id for refusal in refused]

    async def modify_ack_deadline(self, ack_ids: Iterable[str], seconds: int) -> list[str]:
        request = pb.ModifyAckDeadlineRequest(
            subscription=SUBSCRIPTION, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        broker = await self.engine.broker()
        caller = broker.caller("python", self.engine.now_us())
        _, refused = broker.modify_ack_deadline(request, request.ByteSize(), caller, self.engine.now_us())
        await self.engine.settled()
        return [refusal.ack_id for refusal in refused]

    async def open_stream(self, seconds: int = 10, asks_again: bool = True, **fields: Any) -> StreamShell:
        request = pb.StreamingPullRequest(
            subscription=SUBSCRIPTION, stream_ack_deadline_seconds=seconds, **fields
        )
        broker = await self.engine.broker()
        shell = StreamShell(self, asks_again)
        now_us = self.engine.now_us()
        shell.consumer = broker.open_stream(request, request.ByteSize(), "python", now_us, shell)
        self.engine.set_ready(shell.consumer)
        return shell

    async def open_pull(self) -> Shell:
        broker = await self.engine.broker()
        shell = Shell()
        now_us = self.engine.now_us()
        request = pb.PullRequest(subscription=SUBSCRIPTION, max_messages=10)
        broker.open_pull(request, broker.caller("python", now_us), now_us, shell)
        self.engine.poke()
        return shell

    async def subscription(self) -> Subscription:
        (found,) = (await self.engine.broker()).subscriptions()
        return found

    async def owed(self) -> list[int]:
        """What is not finished, of what is stored."""
        return owed(self.store, await self.subscription())

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def running(store: FakeStore | None = None, **options: Any) -> AsyncIterator[Running]:
    """A started engine with a topic and a subscription, if its store is new."""
    store = store or FakeStore()
    new = not store.oplog
    sealed_seq = options.pop("sealed_seq", 0)
    engine = Engine(store, options.pop("journal", True), clock=VirtualClock, **options)
    await engine.start("0.0.0", sealed_seq)
    found = Running(store, engine)
    try:
        if new:
            await found.create()
        yield found
    finally:
        engine.loop_task.cancel()
        with suppress(asyncio.CancelledError):
            await engine.loop_task
        for task in engine._reads:
            task.cancel()


async def outcome(call: Any) -> str:
    """`OK`, or the message of the refusal to say so."""
    try:
        await call
    except NotSettled as error:
        return error.message
    return "OK"
