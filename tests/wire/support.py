"""The world of one case: a server, a connection to it, and subscriptions that no other case knows."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.support.server import ServerProcess
from tests.wire.calls import ADMIN, CHANNEL_OPTIONS, Client, Refusal, ack_ids_of

T = TypeVar("T")

PUBLISH_MESSAGES_MAX = 1000
PUBLISH_BYTES_MAX = 1_000_000
PULL_MESSAGES_MAX = 1000

_numbers = itertools.count(1)


def unique(word: str, project: str = "wire") -> str:
    """A resource name that no other case of this run uses, such as `projects/wire/topics/t-7`."""
    return f"projects/{project}/{word}s/{word[0]}{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Delivery:
    """One message as it was handed out once, and when this side saw it (`time.monotonic`)."""

    ack_id: str
    message_id: str
    data: bytes
    at: float
    message: Any
    attempt: int  # 0 without a dead letter policy

    @classmethod
    def of(cls, received: Any) -> Delivery:
        message = received.message
        attempt = received.delivery_attempt
        return cls(received.ack_id, message.message_id, message.data, time.monotonic(), message, attempt)

    @property
    def key(self) -> str:
        return self.message.ordering_key


class World:
    """A server that listens on `address`, as one case sees it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._open: list[grpc.aio.Channel] = []

    async def __aenter__(self) -> World:
        self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    def connect(self) -> None:
        self.client = self.new_client()
        if self.server.admin_port:
            self.admin = Client(self._channel(self.server.admin_address, []), [ADMIN])

    async def disconnect(self) -> None:
        channels, self._open = self._open, []
        for channel in channels:
            await channel.close()

    def new_client(self, *options: tuple[str, Any]) -> Client:
        """A client with a connection of its own, so that what it does not read stops nobody else."""
        return Client(self._channel(self.server.address, list(options)))

    def _channel(self, address: str, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
        # Options that come later win, so a case can narrow a limit again.
        own = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1), *options]
        channel = grpc.aio.insecure_channel(address, options=own)
        self._open.append(channel)
        return channel

    async def topic(self, **fields: Any) -> str:
        name = unique("topic")
        await self.client.CreateTopic(name=name, **fields)
        return name

    async def subscription(self, *, topic: str = "", eod: bool = True, **fields: Any) -> Sub:
        """The `EOD` of the checklist, or `STD` with `eod=False`."""
        sub = Sub(self, topic or await self.topic(), unique("subscription"))
        fields.setdefault("ack_deadline_seconds", 10)
        await self.client.CreateSubscription(
            name=sub.name, topic=sub.topic, enable_exactly_once_delivery=eod, **fields
        )
        return sub

    async def ordered(self, *, eod: bool = True, **fields: Any) -> Sub:
        """The `ORD` of the checklist, or `ORD-STD` with `eod=False`."""
        return await self.subscription(eod=eod, enable_message_ordering=True, **fields)

    @asynccontextmanager
    async def own_server(self, *options: str, in_memory: bool = False) -> AsyncIterator[World]:
        """A server for this case alone: one it may stop, kill or put under load."""
        with tempfile.TemporaryDirectory() as data_dir:
            server = ServerProcess(None if in_memory else Path(data_dir), *options, admin=True)
            await asyncio.to_thread(server.start)
            world = World(server)
            world.connect()
            try:
                yield world
            finally:
                await world.disconnect()
                if server.process is not None and server.process.poll() is None:
                    await asyncio.to_thread(server.kill)
            assert "Traceback" not in server.output, server.output

    async def kill_server(self) -> None:
        """SIGKILL: what the server had not committed is gone."""
        await asyncio.to_thread(self.server.kill)
        await self.disconnect()

    async def start_server(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.connect()

    async def restart_server(self) -> None:
        await self.kill_server()
        await self.start_server()

    async def said(self, *words: str, count: int = 1) -> list[str]:
        """The lines of the server's output with these words; they may arrive a little after a reply."""
        for _ in range(100):
            lines = [line for line in self.server.lines if all(word in line for word in words)]
            if len(lines) >= count:
                return lines
            await asyncio.sleep(0.03)
        raise AssertionError(f"no {count} lines with {words} in: {self.server.output}")

    async def inject_fault(self, fault: int, **fields: Any) -> None:
        await self.admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=fault, **fields))

    async def state_of(self, sub: Sub) -> Any:
        (state,) = (await self.admin.GetState(subscription=sub.name)).subscriptions
        return state


class Sub:
    """One subscription and its topic, with the calls that cases make all the time."""

    def __init__(self, world: World, topic: str, name: str) -> None:
        self.world = world
        self.topic = topic
        self.name = name

    async def publish(self, count: int = 1, size: int = 20) -> list[str]:
        """Publishes messages that differ in their data; returns their ids."""
        numbers = (next(_numbers) for _ in range(count))
        return await self.publish_data(*[b"%d " % number + b"x" * size for number in numbers])

    async def publish_data(self, *data: bytes) -> list[str]:
        ids: list[str] = []
        share = max(1, min(PUBLISH_MESSAGES_MAX, PUBLISH_BYTES_MAX // max(map(len, data))))
        for start in range(0, len(data), share):
            messages = [pb.PubsubMessage(data=item) for item in data[start : start + share]]
            response = await self.world.client.Publish(topic=self.topic, messages=messages)
            ids += response.message_ids
        return ids

    async def publish_messages(self, *messages: Any) -> list[str]:
        """One Publish of these messages."""
        response = await self.world.client.Publish(topic=self.topic, messages=messages)
        return list(response.message_ids)

    async def publish_key(self, key: str, *data: bytes) -> list[str]:
        """One Publish of messages of this ordering key."""
        return await self.publish_messages(*[pb.PubsubMessage(data=item, ordering_key=key) for item in data])

    async def publish_attributes(self, *attributes: dict[str, str]) -> list[str]:
        """One Publish of a message for each dictionary of attributes."""
        return await self.publish_messages(*[pb.PubsubMessage(attributes=item) for item in attributes])

    async def pull(self, count: int = 1, within: float = 10) -> list[Delivery]:
        """As many Pulls as it takes to be given this many messages."""
        taken: list[Delivery] = []
        deadline = time.monotonic() + within
        while len(taken) < count:
            assert time.monotonic() < deadline, f"{len(taken)} of {count} messages in {within} s"
            wanted = min(count - len(taken), PULL_MESSAGES_MAX)
            taken += await self.pull_now(wanted)
            if len(taken) < count:
                await asyncio.sleep(0.02)
        return taken

    async def pull_now(self, max_messages: int = 100) -> list[Delivery]:
        """One Pull that does not wait."""
        response = await self.world.client.Pull(
            subscription=self.name, max_messages=max_messages, return_immediately=True
        )
        return [Delivery.of(received) for received in response.received_messages]

    async def lease(self, count: int = 1) -> list[Delivery]:
        """Publishes messages and pulls them."""
        await self.publish(count)
        return await self.pull(count)

    async def lease_expired(self, count: int = 1) -> list[Delivery]:
        """The fast expiry of the checklist: deliveries whose lease has ended, not delivered again yet."""
        deliveries = await self.lease(count)
        await self.expire(*deliveries)
        return deliveries

    async def expire(self, *deliveries: Any) -> None:
        await self.modack(1, *deliveries)
        await asyncio.sleep(2)

    async def ack(self, *deliveries: Any) -> Any:
        ack_ids = ack_ids_of(deliveries)
        return await self.world.client.Acknowledge(subscription=self.name, ack_ids=ack_ids)

    async def failed_acks(self, *deliveries: Any) -> dict[str, str]:
        """Acks under exactly-once delivery; returns the results of the ids that failed."""
        try:
            await self.ack(*deliveries)
        except grpc.RpcError as error:
            refusal = Refusal.of(error)
            assert refusal.results, refusal
            return refusal.results
        return {}

    async def modack(self, seconds: int, *deliveries: Any) -> Any:
        ack_ids = ack_ids_of(deliveries)
        return await self.world.client.ModifyAckDeadline(
            subscription=self.name, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )

    async def nack(self, *deliveries: Any) -> Any:
        return await self.modack(0, *deliveries)

    async def update(self, **fields: Any) -> Any:
        changed = pb.Subscription(name=self.name, **fields)
        return await self.world.client.UpdateSubscription(
            subscription=changed, update_mask=pb.FieldMask(paths=list(fields))
        )

    async def get(self) -> Any:
        return await self.world.client.GetSubscription(subscription=self.name)

    async def seek(self, moment: Any) -> None:
        """Seeks to a Timestamp."""
        await self.world.client.Seek(subscription=self.name, time=moment)

    async def snapshot(self, **fields: Any) -> Any:
        """A new snapshot of this subscription."""
        return await self.world.client.CreateSnapshot(
            **{"name": unique("snapshot"), "subscription": self.name, **fields}
        )

    async def restore(self, snapshot: Any) -> None:
        """Seeks to a snapshot."""
        await self.world.client.Seek(subscription=self.name, snapshot=snapshot.name)

    async def set_exactly_once(self, on: bool) -> None:
        await self.update(enable_exactly_once_delivery=on)

    def stream(self, *, client: Client | None = None, reading: bool = True, **fields: Any) -> Stream:
        """The SP(v) of the checklist: deadline 10, no limits, `protocol_version` 1 unless given."""
        first = {"stream_ack_deadline_seconds": 10, "protocol_version": 1, **fields}
        request = pb.StreamingPullRequest(subscription=self.name, **first)
        return Stream(client or self.world.client, request, reading=reading)

    async def watch(self, seconds: float) -> list[Delivery]:
        """All that an open stream and repeated Pulls are given in so long a time."""
        seen: list[Delivery] = []
        deadline = time.monotonic() + seconds
        async with self.stream() as stream:
            while (now := time.monotonic()) < deadline:
                seen += await self.pull_now()
                await until(min(now + 1, deadline))
            seen += stream.deliveries
        # A lease may end at the very moment that this does, and a call takes a while.
        return [delivery for delivery in seen if delivery.at <= deadline]

    async def nothing_for(self, seconds: float) -> None:
        """The "no redelivery" of the checklist."""
        assert await self.watch(seconds) == []


class Stream:
    """A StreamingPull that is read in the background; used with `async with`, which cancels it."""

    def __init__(self, client: Client, request: Any, *, reading: bool = True) -> None:
        self.deliveries: list[Delivery] = []
        self.responses: list[Any] = []
        self.status: tuple[StatusCode, str] | None = None
        self._client = client
        self._request = request
        self._reading = reading
        self._taken = 0
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Stream:
        self.call = self._client.StreamingPull()
        if self._request is not None:
            await self.call.write(self._request)
        if self._reading:
            self.read()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.cancel()
        if self._reader is not None:
            await self._reader
        # A response without the flags means to three client libraries that they are off.
        bare = [r for r in self.responses if not r.HasField("subscription_properties")]
        assert kind is not None or not bare, bare[0]

    def cancel(self) -> None:
        self.call.cancel()

    def read(self) -> None:
        """Starts to read, for a stream that was opened with `reading=False`."""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                self.responses.append(response)
                self.deliveries += map(Delivery.of, response.received_messages)
                self._news.set()
            self.status = (await self.call.code(), await self.call.details())
        except grpc.aio.AioRpcError as error:
            self.status = (error.code(), error.details() or "")
        except asyncio.CancelledError:
            self.status = (StatusCode.CANCELLED, "by this side")
        self._news.set()

    async def send(self, **fields: Any) -> None:
        """Writes one request; without fields it is a keep-alive."""
        await self.call.write(pb.StreamingPullRequest(**fields))

    async def half_close(self) -> None:
        await self.call.done_writing()

    async def take(self, count: int = 1, within: float = 5) -> list[Delivery]:
        """The next messages that nobody took yet."""

        def enough() -> bool:
            return len(self.deliveries) >= self._taken + count

        await self._until(enough, within, lambda: f"{len(self.deliveries) - self._taken} of {count} messages")
        return self.take_now(count)

    def take_now(self, count: int = sys.maxsize) -> list[Delivery]:
        """What nobody took yet, without waiting."""
        taken = self.deliveries[self._taken : self._taken + count]
        self._taken += len(taken)
        return taken

    async def take_all(self, within: float = 5) -> list[Delivery]:
        """The messages that nobody took yet, and at least one."""
        (first,) = await self.take(1, within)
        return [first, *self.take_now()]

    async def nothing_for(self, seconds: float) -> None:
        """No further message arrives for so long, and the stream stays open."""
        await asyncio.sleep(seconds)
        assert self.deliveries[self._taken :] == []
        self.check_open()

    def check_open(self) -> None:
        assert self.status is None, self.status

    async def response(
        self, wanted: Callable[[Any], bool] = lambda _: True, *, after: int | None = None, within: float = 5
    ) -> Any:
        """The first response like this that came after the given number of responses, or comes now."""
        start = len(self.responses) if after is None else after

        def found() -> list[Any]:
            return [response for response in self.responses[start:] if wanted(response)]

        await self._until(lambda: bool(found()), within, lambda: "no such response")
        return found()[0]

    async def pong(self, within: float = 5, **fields: Any) -> Any:
        """Sends a keep-alive and returns the next response of any kind."""
        before = len(self.responses)
        await self.send(**fields)
        return await self.response(after=before, within=within)

    async def ended(self, within: float = 5) -> tuple[StatusCode, str]:
        """The status that the server closes the stream with."""
        await self._until(lambda: self.status is not None, within, lambda: "the stream is still open", True)
        assert self.status is not None
        return self.status

    async def ends_with(self, code: StatusCode, within: float = 5) -> str:
        seen, message = await self.ended(within)
        assert code == seen, message
        return message

    async def _until(
        self, done: Callable[[], bool], within: float, missing: Callable[[], str], may_end: bool = False
    ) -> None:
        try:
            async with asyncio.timeout(within):
                while not done():
                    assert may_end or self.status is None, f"{missing()}; the stream ended: {self.status}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{missing()} within {within} s; status {self.status}") from None


def message_ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message_id for delivery in deliveries]


def data_of(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.data for delivery in deliveries]


def timestamp(us: int) -> Any:
    """A Timestamp from microseconds since the epoch."""
    seconds, rest = divmod(us, 1_000_000)
    return pb.Timestamp(seconds=seconds, nanos=rest * 1000)


def us_of(moment: Any) -> int:
    """Microseconds since the epoch of a Timestamp."""
    assert moment.nanos % 1000 == 0, "times of this server are whole microseconds"
    return moment.seconds * 1_000_000 + moment.nanos // 1000


def from_now(seconds: float) -> Any:
    """A Timestamp so long after now; before it, when negative."""
    return timestamp(time.time_ns() // 1000 + round(seconds * 1_000_000))


async def until(moment: float) -> None:
    """Sleeps to a moment of `time.monotonic`."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
