"""The load generator: one client of one server, with raw bytes on the wire.

Nothing here knows which server it talks to. Everything a call returns is checked: a publish that answers
too few ids, an acknowledgement that is not OK or a message that was not published ends the measurement
with a `LoadError`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from pubsubd.wire import pb

PROJECT = "projects/bench"
CALL_SECONDS_MAX = 60.0
STREAM_ACK_DEADLINE_SECONDS = 60
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
METADATA_BYTES_MAX = 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Without it all channels to one address would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    # The results of a refused Acknowledge travel in trailers, one for each ack id.
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
]
# Publish requests are packed once and sent again and again; a few different ones keep a compressing or
# deduplicating store honest.
DISTINCT_REQUESTS = 16
SEND_TIME = struct.Struct(">q")
#: The result of an acknowledgement that came ahead of its ordering key, and how long it waits then.
AHEAD = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
AHEAD_PAUSE_SECONDS = 0.01

Call = Callable[..., Awaitable[bytes]]


class LoadError(Exception):
    """The server did not do what was asked, so its figures would mean nothing."""


@dataclass
class Published:
    seconds: float
    message_ids: set[str]


@dataclass
class DrainOptions:
    ack_batch: int = 1000
    acks_in_flight: int = 4
    #: The stream's flow control limit; 0 means none.
    max_outstanding_messages: int = 0
    #: Extend every message's lease when it arrives, and acknowledge only after that was answered, as the
    #: client libraries do with exactly-once delivery.
    receipt_modack: bool = False
    seconds_max: float = 300.0
    #: Also note when this many messages had arrived.
    mark: int = 0
    #: Messages that are received and not acknowledged; `Drained.left` has their ack ids.
    leave: Collection[str] = ()

    def batch(self) -> int:
        """Acknowledgements must leave before the stream's limit is reached, or nothing would move again."""
        limit = self.max_outstanding_messages
        return min(self.ack_batch, max(1, limit // 2)) if limit else self.ack_batch


@dataclass
class Drained:
    seconds: float
    deliveries: int
    mark_seconds: float = 0.0
    #: Message ids in the order of their first arrival.
    message_ids: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    #: Acknowledgements sent again because they came ahead of an earlier message of their ordering key.
    acks_repeated: int = 0


@dataclass
class Latencies:
    """Seconds from before Publish was called until the stream's read returned, sorted."""

    seconds: list[float] = field(default_factory=list)
    #: How late each message was sent against the plan: the load generator's own share of trouble.
    late: list[float] = field(default_factory=list)


class Client:
    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._methods: dict[str, Call] = {}

    async def close(self) -> None:
        await self.channel.close()

    async def call(self, method: str, request: Any) -> bytes:
        """`method` is like Publisher/CreateTopic, `request` a message or its bytes."""
        if method not in self._methods:
            self._methods[method] = self.channel.unary_unary(f"/google.pubsub.v1.{method}")
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return await self._methods[method](data, timeout=CALL_SECONDS_MAX)

    async def create_pair(self, **fields: Any) -> tuple[str, str]:
        """A new topic and its one subscription, with exactly-once delivery and these fields."""
        unique = uuid.uuid4().hex
        topic, subscription = f"{PROJECT}/topics/t{unique}", f"{PROJECT}/subscriptions/s{unique}"
        await self.create_topic(topic)
        await self.create_subscription(subscription, topic, **fields)
        return topic, subscription

    async def create_topic(self, name: str) -> None:
        await self.call("Publisher/CreateTopic", pb.Topic(name=name))

    async def create_subscription(self, name: str, topic: str, **fields: Any) -> None:
        await self.call(
            "Subscriber/CreateSubscription",
            pb.Subscription(
                name=name,
                topic=topic,
                ack_deadline_seconds=STREAM_ACK_DEADLINE_SECONDS,
                enable_exactly_once_delivery=True,
                **fields,
            ),
        )

    async def delete_pair(self, topic: str, subscription: str) -> None:
        await self.delete_subscription(subscription)
        await self.delete_topic(topic)

    async def delete_topic(self, name: str) -> None:
        await self.call("Publisher/DeleteTopic", pb.DeleteTopicRequest(topic=name))

    async def delete_subscription(self, name: str) -> None:
        request = pb.DeleteSubscriptionRequest(subscription=name)
        await self.call("Subscriber/DeleteSubscription", request)

    @asynccontextmanager
    async def stream(
        self, subscription: str, max_outstanding_messages: int = 0, protocol_version: int = 0
    ) -> AsyncIterator[Any]:
        """An open StreamingPull whose `read` returns bytes; it is cancelled at the end."""
        call: Any = self.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")()
        initial = pb.StreamingPullRequest(
            subscription=subscription,
            stream_ack_deadline_seconds=STREAM_ACK_DEADLINE_SECONDS,
            client_id=uuid.uuid4().hex,
            max_outstanding_messages=max_outstanding_messages,
            protocol_version=protocol_version,
        )
        try:
            await call.write(initial.SerializeToString())
            yield call
        finally:
            call.cancel()

    async def publish(self, topic: str, count: int, size: int, batch: int, in_flight: int) -> Published:
        """`count` messages of `size` bytes in requests of `batch`, with `in_flight` requests on their way."""
        whole, rest = divmod(count, batch)
        full = [publish_request(topic, batch, size) for _ in range(DISTINCT_REQUESTS)]
        last = [publish_request(topic, rest, size)] if rest else []
        plan = itertools.chain(itertools.islice(itertools.cycle(full), whole), last)
        seconds, message_ids = await self.send(plan, count, in_flight)
        return Published(seconds, set(message_ids))

    async def send(self, requests: Iterable[bytes], count: int, in_flight: int) -> tuple[float, list[str]]:
        """Publish requests of `count` messages in all; returns the seconds and the ids, in their order."""
        plan = enumerate(requests)
        responses: dict[int, bytes] = {}

        async def worker() -> None:
            for number, request in plan:
                responses[number] = await self.call("Publisher/Publish", request)

        started = time.perf_counter()
        await gather(worker() for _ in range(in_flight))
        seconds = time.perf_counter() - started
        answers = (pb.PublishResponse.FromString(responses[number]) for number in range(len(responses)))
        ids = [message_id for answer in answers for message_id in answer.message_ids]
        if len(ids) != count or len(set(ids)) != count:
            raise LoadError(f"{count} messages were published, {len(set(ids))} distinct ids were answered")
        return seconds, ids

    async def drain(self, subscription: str, expected: set[str], options: DrainOptions) -> Drained:
        """Receive and acknowledge every expected message over one stream."""
        drain = _Drain(self, subscription, expected, options)
        try:
            async with asyncio.timeout(options.seconds_max):
                return await drain.run()
        except TimeoutError:
            seen = len(drain.message_ids)
            raise LoadError(f"{seen} of {len(expected)} messages within {options.seconds_max} s") from None

    async def measure_latency(
        self, topic: str, subscription: str, rate: int, seconds: float, size: int, ack_interval: float
    ) -> Latencies:
        """Publish `rate` messages a second, one per request, whether or not the earlier ones have arrived."""
        return await _OpenLoop(self, topic, subscription, size, ack_interval).run(rate, seconds)


class _Drain:
    """One measured drain: the stream's reader, and acknowledgements that run beside it."""

    def __init__(self, client: Client, subscription: str, expected: set[str], options: DrainOptions) -> None:
        self.client = client
        self.subscription = subscription
        self.expected = expected
        self.options = options
        #: In the order of their first arrival.
        self.message_ids: dict[str, None] = {}
        self.left: list[str] = []
        self.acks_repeated = 0
        self.slots = asyncio.Semaphore(options.acks_in_flight)

    async def run(self) -> Drained:
        deliveries, mark_seconds = 0, 0.0
        pending: list[str] = []
        batch = self.options.batch()
        started = time.perf_counter()
        limit = self.options.max_outstanding_messages
        async with self.client.stream(self.subscription, limit) as stream, asyncio.TaskGroup() as tasks:
            while len(self.message_ids) < len(self.expected):
                ack_ids, message_ids = parse_response(await read(stream))
                deliveries += len(ack_ids)
                self.message_ids.update(dict.fromkeys(message_ids))
                if self.options.leave:
                    ack_ids = self._leave_some(ack_ids, message_ids)
                if self.options.receipt_modack and ack_ids:
                    await self.slots.acquire()
                    tasks.create_task(self._extend_then_acknowledge(ack_ids))
                else:
                    pending.extend(ack_ids)
                is_last = len(self.message_ids) >= len(self.expected)
                while len(pending) >= batch or (is_last and pending):
                    await self.slots.acquire()
                    tasks.create_task(self._acknowledge(pending[:batch]))
                    del pending[:batch]
                if not mark_seconds and len(self.message_ids) >= self.options.mark > 0:
                    mark_seconds = time.perf_counter() - started
        seconds = time.perf_counter() - started
        if foreign := len(self.message_ids.keys() - self.expected):
            raise LoadError(f"{foreign} messages came that should not")
        message_ids = list(self.message_ids)
        return Drained(seconds, deliveries, mark_seconds, message_ids, self.left, self.acks_repeated)

    def _leave_some(self, ack_ids: list[str], message_ids: list[str]) -> list[str]:
        leave = self.options.leave
        both = list(zip(ack_ids, message_ids, strict=True))
        self.left.extend(ack_id for ack_id, message_id in both if message_id in leave)
        return [ack_id for ack_id, message_id in both if message_id not in leave]

    async def _acknowledge(self, ack_ids: list[str]) -> None:
        try:
            while ack_ids:
                request = acknowledge_request(self.subscription, ack_ids)
                try:
                    await self.client.call("Subscriber/Acknowledge", request)
                    return
                except grpc.aio.AioRpcError as error:
                    # Requests that run beside one another may overtake; clients repeat these, too.
                    ack_ids = ahead_of_their_key(error)
                    self.acks_repeated += len(ack_ids)
                await asyncio.sleep(AHEAD_PAUSE_SECONDS)
        finally:
            self.slots.release()

    async def _extend_then_acknowledge(self, ack_ids: list[str]) -> None:
        try:
            batch = self.options.batch()
            for some in batches(ack_ids, batch):
                extension = pb.ModifyAckDeadlineRequest(
                    subscription=self.subscription,
                    ack_ids=some,
                    ack_deadline_seconds=STREAM_ACK_DEADLINE_SECONDS,
                )
                await self.client.call("Subscriber/ModifyAckDeadline", extension)
                await self.client.call("Subscriber/Acknowledge", acknowledge_request(self.subscription, some))
        finally:
            self.slots.release()


class _OpenLoop:
    """Messages sent by the clock, each with its send time inside, and received by one stream."""

    def __init__(self, client: Client, topic: str, subscription: str, size: int, ack_interval: float) -> None:
        self.client = client
        self.topic = topic
        self.subscription = subscription
        self.filler = random.randbytes(size - SEND_TIME.size)
        self.ack_interval = ack_interval
        self.latencies = Latencies()
        self.ack_ids: list[str] = []
        self.expected: set[str] = set()
        self.received: set[str] = set()
        self.receiving = True

    async def run(self, rate: int, seconds: float) -> Latencies:
        async with self.client.stream(self.subscription) as stream:
            # The first message opens the way: it is received before the clock starts and not counted.
            await self._publish_now()
            self._receive(await read(stream))
            self.latencies = Latencies()
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(stream, 1 + round(rate * seconds)))
                acknowledger = tasks.create_task(self._acknowledge_now_and_then())
                await self._send_by_the_clock(tasks, rate, round(rate * seconds))
                try:
                    await asyncio.wait_for(reader, CALL_SECONDS_MAX)
                except TimeoutError:
                    missing = 1 + round(rate * seconds) - len(self.received)
                    raise LoadError(f"{missing} messages came not even {CALL_SECONDS_MAX} s later") from None
                self.receiving = False
                await acknowledger
        self.latencies.seconds.sort()
        self.latencies.late.sort()
        return self.latencies

    async def _send_by_the_clock(self, tasks: asyncio.TaskGroup, rate: int, count: int) -> None:
        started = time.monotonic()
        for number in range(count):
            planned = started + number / rate
            while (now := time.monotonic()) < planned:
                await asyncio.sleep(planned - now)
            self.latencies.late.append(now - planned)
            tasks.create_task(self._publish_now())

    async def _publish_now(self) -> None:
        data = SEND_TIME.pack(time.monotonic_ns()) + self.filler
        request = pb.PublishRequest(topic=self.topic, messages=[pb.PubsubMessage(data=data)])
        await self.client.call("Publisher/Publish", request)

    async def _read(self, stream: Any, count: int) -> None:
        while len(self.received) < count:
            self._receive(await read(stream))

    def _receive(self, response: bytes) -> None:
        now = time.monotonic_ns()
        for received in pb.StreamingPullResponse.FromString(response).received_messages:
            self.ack_ids.append(received.ack_id)
            self.received.add(received.message.message_id)
            (sent,) = SEND_TIME.unpack_from(received.message.data)
            self.latencies.seconds.append((now - sent) / 1e9)

    async def _acknowledge_now_and_then(self) -> None:
        while self.receiving or self.ack_ids:
            ack_ids, self.ack_ids = self.ack_ids, []
            if ack_ids:
                request = acknowledge_request(self.subscription, ack_ids)
                await self.client.call("Subscriber/Acknowledge", request)
            await asyncio.sleep(self.ack_interval)


def ahead_of_their_key(error: grpc.aio.AioRpcError) -> list[str]:
    """The ack ids that an Acknowledge refused for the order of their keys. Raises `error` for any other."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in Status.FromString(value).details:
                info = ErrorInfo()
                if detail.Unpack(info) and set(info.metadata.values()) == {AHEAD}:
                    return list(info.metadata)
    raise error


def parse_response(response: bytes) -> tuple[list[str], list[str]]:
    received = pb.StreamingPullResponse.FromString(response).received_messages
    return [each.ack_id for each in received], [each.message.message_id for each in received]


def publish_request(topic: str, count: int, size: int, **fields: Any) -> bytes:
    messages = [pb.PubsubMessage(data=random.randbytes(size), **fields) for _ in range(count)]
    return bytes(pb.PublishRequest(topic=topic, messages=messages).SerializeToString())


def acknowledge_request(subscription: str, ack_ids: Sequence[str]) -> bytes:
    return bytes(pb.AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids).SerializeToString())


def batches(items: list[str], size: int) -> Iterable[list[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def read(stream: Any) -> bytes:
    response = await stream.read()
    if response is grpc.aio.EOF:
        raise LoadError(f"the stream ended: {await stream.code()} {await stream.details()}")
    return bytes(response)


async def gather(work: Iterable[Awaitable[None]]) -> None:
    """Like asyncio.gather, but the first failure ends the others."""

    async def run(each: Awaitable[None]) -> None:
        await each

    async with asyncio.TaskGroup() as tasks:
        for each in work:
            tasks.create_task(run(each))


async def first_answer(address: str, seconds_max: float, check: Callable[[], None] = lambda: None) -> float:
    """Seconds until ListTopics was answered. `check` raises when waiting has become pointless."""
    started = time.monotonic()
    host, _, port = address.rpartition(":")
    request = pb.ListTopicsRequest(project=PROJECT).SerializeToString()
    while time.monotonic() - started < seconds_max:
        check()
        try:
            # A gRPC channel would wait a second after its first refused connection; a socket need not.
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
        except OSError:
            await asyncio.sleep(0.005)
            continue
        client = Client(address)
        try:
            await client.call("Publisher/ListTopics", request)
            return time.monotonic() - started
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
        finally:
            await client.close()
    raise LoadError(f"{address} did not answer within {seconds_max} s")
