"""What a case works with: a connection to the endpoint, and subscriptions that no other case knows."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import ADMIN, Client, Refusal, ack_ids_of, in_words
from pubsubd.conform.case import Erred, Failed, NotRun, check
from pubsubd.conform.endpoint import Endpoint
from pubsubd.conform.served import Served, StartCommand
from pubsubd.wire import admin_pb, pb

PUBLISH_MESSAGES_MAX = 1000
PUBLISH_BYTES_MAX = 1_000_000
PULL_MESSAGES_MAX = 1000
CLEAN_UP_SECONDS_MAX = 10.0

# Pauses between Pulls that gave nothing: the first, and what it doubles up to. Two dozen cases that asked
# without pause would cost money on a metered service, and come to the end of its quota.
PULL_PAUSE_SECONDS = 0.02
PULL_PAUSE_SECONDS_MAX = 0.2

# How a deletion is refused when there is nothing to delete; nothing is there under a name that is none.
NOT_THERE = (StatusCode.NOT_FOUND, StatusCode.INVALID_ARGUMENT)

# Servers of their own that start at the same moment would hold up the clocks of all cases beside them.
STARTS_AT_ONCE_MAX = 2

_numbers = itertools.count(1)


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
        return str(self.message.ordering_key)


@dataclass
class Setting:
    """What all cases of a run share."""

    endpoint: Endpoint
    project: str = "conformance"
    full: bool = False
    start_command: StartCommand | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS_AT_ONCE_MAX))


class Lab:
    """The endpoint as one case sees it."""

    stream_type: type[Stream]  # what `Sub.stream` makes; below, where Stream is known

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.endpoint = setting.endpoint
        self._open: list[grpc.aio.Channel] = []
        self.made: list[str] = []  # names under which there may be something

    async def __aenter__(self) -> Self:
        self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    @property
    def full(self) -> bool:
        """Whether the written form of a long case is wanted."""
        return self.setting.full

    def connect(self) -> None:
        self.client = self.new_client()

    async def disconnect(self) -> None:
        channels, self._open = self._open, []
        for channel in channels:
            await channel.close()

    def new_client(self, *options: tuple[str, Any]) -> Client:
        """A client with a connection of its own, so that what it does not read stops nobody else."""
        return Client(self.new_channel(*options))

    def new_channel(self, *options: tuple[str, Any]) -> grpc.aio.Channel:
        """A connection of its own, with channel options beside the usual ones; closed with the case."""
        return self._keep(self.endpoint.channel(*options))

    def _keep(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        self._open.append(channel)
        return channel

    def name(self, word: str) -> str:
        """A name that nothing else has, such as `projects/conformance/topics/conform-1f2e3d4c-7`.

        `word` is `topic`, `subscription`, `snapshot` or `schema`. What a case makes under it goes when the
        case ends.
        """
        name = f"projects/{self.setting.project}/{word}s/conform-{self.setting.run}-{next(_numbers)}"
        self.made.append(name)
        return name

    async def topic(self, **fields: Any) -> str:
        name = self.name("topic")
        await self.client.CreateTopic(name=name, **fields)
        return name

    async def subscription(self, *, topic: str = "", eod: bool = True, **fields: Any) -> Sub:
        """The `EOD` of the checklist, or `STD` with `eod=False`."""
        sub = Sub(self, topic or await self.topic(), self.name("subscription"))
        fields.setdefault("ack_deadline_seconds", 10)
        await self.client.CreateSubscription(
            name=sub.name, topic=sub.topic, enable_exactly_once_delivery=eod, **fields
        )
        return sub

    async def ordered(self, *, eod: bool = True, **fields: Any) -> Sub:
        """The `ORD` of the checklist, or `ORD-STD` with `eod=False`."""
        return await self.subscription(eod=eod, enable_message_ordering=True, **fields)

    async def clean_up(self) -> list[str]:
        """Deletes what was made under names from `name`; returns the names that may still be there.

        They are what is left in `made`, also when this is cancelled.
        """
        if self.made:
            # A new connection: the case may have done anything to its own.
            client = self.new_client()
            for kind in ("snapshot", "subscription", "topic", "schema"):
                names = [name for name in self.made if f"/{kind}s/" in name]
                await asyncio.gather(*[self._delete(client, kind, name) for name in names])
        return list(self.made)

    async def _delete(self, client: Client, kind: str, name: str) -> None:
        delete = getattr(client, f"Delete{kind.title()}")
        try:
            await delete(**{"name" if kind == "schema" else kind: name}, timeout=CLEAN_UP_SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() not in NOT_THERE:
                return
        self.made.remove(name)

    @asynccontextmanager
    async def own_server(self, environment: Mapping[str, str] | None = None) -> AsyncIterator[OwnLab]:
        """A server for this case alone: one it may stop, kill or put under load.

        `environment` adds variables to those of this process, as in `PUBSUBD_ACK_BATCH_POLICY=confirm`.
        """
        command = self.setting.start_command
        if command is None:
            raise NotRun("It needs a server of its own, which --start-cmd makes.")
        served = Served(command, environment, self.setting.project)
        try:
            async with self.setting.starting:
                await served.start()
            async with OwnLab(self.setting, served) as own:
                yield own
        finally:
            served.remove()


class OwnLab(Lab):
    """A server that one case has for itself."""

    def __init__(self, setting: Setting, served: Served) -> None:
        super().__init__(setting)
        self.endpoint = served.endpoint
        self.served = served

    def connect(self) -> None:
        super().connect()
        if self.served.admin_port:
            channel = self._keep(self.served.admin_endpoint.channel())
            self._admin = Client(channel, [ADMIN])

    async def kill(self) -> None:
        """SIGKILL: what the server had not committed is gone. Connections of this side are closed."""
        await self.served.kill()
        await self.disconnect()

    async def stop(self) -> int:
        """The stop in order, by SIGTERM; streams of this side see how it ends them. Returns the exit code."""
        return await self.served.stop()

    async def start(self) -> None:
        """Starts it again, on the same port and directory; `client` is a new connection."""
        await self.disconnect()
        await self.served.start()
        self.connect()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def wait_for_its_end(self) -> int:
        """Until an injected fault has ended the server; returns its exit code, -9 after SIGKILL."""
        return await self.served.wait()

    async def inject_fault(self, fault: int, **fields: Any) -> None:
        """A fault of our own admin service: `FAIL`, `STALL`, `KILL_BEFORE_COMMIT`, ... of `admin_pb`."""
        if not self.served.admin_port:
            raise NotRun("It needs a server with injected faults: --start-cmd with {admin_port}.")
        await self._admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=fault, **fields))


class Sub:
    """One subscription and its topic, with the calls that cases make all the time."""

    def __init__(self, lab: Lab, topic: str, name: str) -> None:
        self.lab = lab
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
            ids += await self.publish_messages(
                *[pb.PubsubMessage(data=item) for item in data[start : start + share]]
            )
        return ids

    async def publish_messages(self, *messages: Any) -> list[str]:
        """One Publish of these messages."""
        response = await self.lab.client.Publish(topic=self.topic, messages=messages)
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
        pause = PULL_PAUSE_SECONDS
        while len(taken) < count:
            left = deadline - time.monotonic()
            given = await self.pull_now(min(count - len(taken), PULL_MESSAGES_MAX))
            taken += given
            if len(taken) < count:
                # Asked once more at the deadline, so that no pause hides what came in time.
                check(left > 0, f"Pull gave {len(taken)} of {count} messages in {within:g} s.")
                pause = PULL_PAUSE_SECONDS if given else min(2 * pause, PULL_PAUSE_SECONDS_MAX)
                await until(min(time.monotonic() + pause, deadline))
        return taken

    async def pull_now(self, max_messages: int = 100) -> list[Delivery]:
        """One Pull that does not wait."""
        response = await self.lab.client.Pull(
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
        return await self.lab.client.Acknowledge(subscription=self.name, ack_ids=ack_ids)

    async def failed_acks(self, *deliveries: Any) -> dict[str, str]:
        """Acks under exactly-once delivery; returns the results of the ids that failed."""
        try:
            await self.ack(*deliveries)
        except grpc.RpcError as error:
            refusal = Refusal.of(error)
            if not refusal.results:
                raise
            return refusal.results
        return {}

    async def modack(self, seconds: int, *deliveries: Any) -> Any:
        ack_ids = ack_ids_of(deliveries)
        return await self.lab.client.ModifyAckDeadline(
            subscription=self.name, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )

    async def nack(self, *deliveries: Any) -> Any:
        return await self.modack(0, *deliveries)

    async def update(self, **fields: Any) -> Any:
        changed = pb.Subscription(name=self.name, **fields)
        return await self.lab.client.UpdateSubscription(
            subscription=changed, update_mask=pb.FieldMask(paths=list(fields))
        )

    async def get(self) -> Any:
        return await self.lab.client.GetSubscription(subscription=self.name)

    async def delete(self) -> None:
        await self.lab.client.DeleteSubscription(subscription=self.name)

    async def seek(self, moment: Any) -> None:
        """Seeks to a Timestamp."""
        await self.lab.client.Seek(subscription=self.name, time=moment)

    async def snapshot(self, **fields: Any) -> Any:
        """A new snapshot of this subscription."""
        return await self.lab.client.CreateSnapshot(
            **{"name": self.lab.name("snapshot"), "subscription": self.name, **fields}
        )

    async def restore(self, snapshot: Any) -> None:
        """Seeks to a snapshot."""
        await self.lab.client.Seek(subscription=self.name, snapshot=snapshot.name)

    async def set_exactly_once(self, on: bool) -> None:
        await self.update(enable_exactly_once_delivery=on)

    def stream(self, *, client: Client | None = None, reading: bool = True, **fields: Any) -> Stream:
        """The SP(v) of the checklist: deadline 10, no limits, `protocol_version` 1 unless given."""
        first = {"stream_ack_deadline_seconds": 10, "protocol_version": 1, **fields}
        request = pb.StreamingPullRequest(subscription=self.name, **first)
        return self.lab.stream_type(client or self.lab.client, request, reading=reading)

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
        seen = await self.watch(seconds)
        check(not seen, f"{count_of(seen, 'message')} came within {seconds:.0f} s, where none was due.")

    async def redelivered(self, earlier: Delivery, within: float = 5) -> Delivery:
        """The next delivery of a message, on a stream: it has a new ack id."""
        async with self.stream() as stream:
            (again,) = await stream.take(within=within)
        check_redelivered(again, earlier)
        return again


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

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        if self._reader is not None:
            await self._reader

    @property
    def bare_responses(self) -> list[Any]:
        """Responses without the flags: to three client libraries they mean that the flags are off."""
        return [r for r in self.responses if not r.HasField("subscription_properties")]

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

        await self._until(
            enough,
            within,
            lambda: f"The stream brought {len(self.deliveries) - self._taken} of {count} messages",
        )
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
        seen = self.deliveries[self._taken :]
        check(
            not seen, f"The stream brought {count_of(seen, 'message')} within {seconds:.0f} s; none was due."
        )
        self.check_open()

    def check_open(self) -> None:
        check(self.status is None, f"The stream ended with {said(self.status)}.")

    async def response(
        self, wanted: Callable[[Any], bool] = lambda _: True, *, after: int | None = None, within: float = 5
    ) -> Any:
        """The first response like this that came after the given number of responses, or comes now."""
        start = len(self.responses) if after is None else after

        def found() -> list[Any]:
            return [response for response in self.responses[start:] if wanted(response)]

        await self._until(lambda: bool(found()), within, lambda: "The stream brought no such response")
        return found()[0]

    async def pong(self, within: float = 5, **fields: Any) -> Any:
        """Sends a keep-alive and returns the next response of any kind."""
        before = len(self.responses)
        await self.send(**fields)
        return await self.response(after=before, within=within)

    async def ended(self, within: float = 5) -> tuple[StatusCode, str]:
        """The status that the server closes the stream with."""
        await self._until(lambda: self.status is not None, within, lambda: "The stream did not end", True)
        assert self.status is not None
        return self.status

    async def ends_with(self, code: StatusCode, within: float = 5) -> str:
        """The message that the server closes the stream with, under this code."""
        seen = await self.ended(within)
        check(code == seen[0], f"The stream ended with {said(seen)}, not with {code.name}.")
        return seen[1]

    async def _until(
        self, done: Callable[[], bool], within: float, missing: Callable[[], str], may_end: bool = False
    ) -> None:
        try:
            async with asyncio.timeout(within):
                while not done():
                    if not may_end and self.status is not None:
                        if self.status[0] == StatusCode.UNIMPLEMENTED:
                            raise Erred(f"StreamingPull was refused with {said(self.status)}.")
                        raise Failed(f"{missing()} before it ended with {said(self.status)}.")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Failed(f"{missing()} within {within:g} s.") from None


Lab.stream_type = Stream


def check_redelivered(again: Delivery, earlier: Delivery) -> None:
    """The same message under a new ack id."""
    check(again.message_id == earlier.message_id, "Another message came than the one that was due again.")
    check(again.ack_id != earlier.ack_id, "The message came again under its old ack id.")


def said(status: tuple[StatusCode, str] | None) -> str:
    """How a stream ended, in words."""
    if status is None:
        return "nothing"
    return in_words(*status)


def count_of(items: Sized | int, word: str) -> str:
    """`1 message`, `no messages`, `7 messages`."""
    count = items if isinstance(items, int) else len(items)
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


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
    return int(moment.seconds * 1_000_000 + moment.nanos // 1000)


def from_now(seconds: float) -> Any:
    """A Timestamp so long after now; before it, when negative."""
    return timestamp(time.time_ns() // 1000 + round(seconds * 1_000_000))


async def until(moment: float) -> None:
    """Sleeps to a moment of `time.monotonic`."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
