"""A load that remembers what it was told: publishers and consumers of every kind, in one event loop.

What becomes of a delivery is drawn when it arrives (`_FATES`): most are acked at once, some are nacked,
extended, held over the next kill, let expire, or named again afterwards. Messages of ill repute are nacked
until they are dead letters. A call without an answer is repeated, as client libraries do. Consumers come back
by themselves when the server is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any

import grpc

from pubsubd.wire import pb
from tests.crash.changes import Changes
from tests.crash.filters import draw_attributes, matches
from tests.crash.hashes import payload_hash
from tests.crash.log import Answer, Delivered, Kind, Log, Odd, Operation, Published, now_us
from tests.crash.plan import LEASE_SECONDS, TOPICS, Plan, Watched, duration
from tests.crash.resources import Resources
from tests.crash.snapshots import Snapshots
from tests.wire.calls import CHANNEL_OPTIONS, PERMANENT, TRANSIENT, Client, Refusal

_UNORDERED = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
_GONE = {grpc.StatusCode.UNAVAILABLE}
# What grpc.aio itself says of a stream that broke while it was written to.
_BROKEN_TEXT = "Internal error from Core"
_PAUSE_SECONDS = (0.05, 0.15)
_COME_BACK_SOON = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]
_BATCH_SECONDS = 0.004
_BATCH_MAX = 100
_UNACKED_MAX = 2500
_KEYS = 6
_KEYED = 0.6
_ILL_REPUTE = "nack-me"
_OF_ILL_REPUTE = 0.03


class Load:
    """Starts with `start`, runs until `stop`. `replied` is called right after each answer, with its kind."""

    def __init__(
        self, address: str, log: Log, chance: random.Random, replied: Callable[[str], None], plan: Plan
    ) -> None:
        self.log = log
        self._plan = plan
        # Cleared while the server is known to be down: no news comes from knocking.
        self.up = asyncio.Event()
        self.up.set()
        self._address = address
        self._chance = chance
        self._replied = replied
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._consuming = True
        self._publishing = True
        self._calm = False
        self._numbers = itertools.count(1)
        self._unacked: set[tuple[str, int]] = set()
        self._acked: set[tuple[str, int]] = set()
        self.delivered_us = 0  # when something was last delivered

    async def start(self) -> None:
        client = self.spare_client = self._client()
        for topic, seconds in self._plan.topics.items():
            retention = {"message_retention_duration": duration(seconds)} if seconds else {}
            await client.CreateTopic(name=topic, **retention)
        for one in self._plan.watched:
            await client.CreateSubscription(**one.resource())
        for number, topic in enumerate(TOPICS):
            self._spawn(self._publish(number, topic))
        for one in self._plan.watched:
            for number in range(one.streams):
                self._spawn(self._stream(one, number))
            for _ in range(one.pulls):
                self._spawn(self._pull(one))
        snapshots = Snapshots(self._client(), self.log, self._chance)
        self._resources = Resources(self._client(), self.log, self._chance, snapshots)
        self._changes = Changes(self._client(), self.log, self._chance, self._plan, snapshots)
        self._changing = [
            self._spawn(self._keep_changing(self._resources, 0.05)),
            self._spawn(self._keep_changing(self._changes, 0.25)),
        ]

    def calm_down(self) -> None:
        """Publish nothing more, leave no stream, and ack what comes."""
        self._publishing = False
        self._calm = True

    @property
    def unacked(self) -> set[tuple[str, int]]:
        """(subscription, message id) of what was published and not yet acked for certain."""
        return self._unacked

    def owes(self, owed: Iterable[tuple[str, int]]) -> None:
        """What a dead server was found to owe: messages leave it in other ways than by an ack."""
        self._unacked = set(owed)

    def count_published(self, publish: Published) -> None:
        assert publish.message_ids is not None
        for one in self._plan.of_topic(publish.topic):
            for message_id, attributes in zip(publish.message_ids, publish.attributes, strict=True):
                pair = (one.name, message_id)
                if pair not in self._acked and matches(one.filter, attributes):
                    self._unacked.add(pair)

    def count_acked(self, delivered: Delivered) -> None:
        pair = (delivered.subscription, delivered.message_id)
        self._acked.add(pair)
        self._unacked.discard(pair)

    async def stop(self) -> None:
        self._publishing = self._consuming = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    def check_tasks(self) -> None:
        """Raise what a task of ours failed with: a load that has stopped proves nothing."""
        for task in list(self._tasks):
            if task.done():
                self._tasks.discard(task)
                if not task.cancelled():
                    task.result()

    async def pause(self) -> None:
        """After a call that failed: until it makes sense to try again."""
        await asyncio.sleep(self._chance.uniform(*_PAUSE_SECONDS))
        await self.up.wait()

    # -- plumbing -----------------------------------------------------------------------------------------

    def _client(self) -> Client:
        # Its own connection: what is stuck on one does not stop another.
        options = [*CHANNEL_OPTIONS, *_COME_BACK_SOON, ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(self._address, options=options)
        self._channels.append(channel)
        return Client(channel)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    def _odd(self, what: str, error: grpc.RpcError) -> None:
        self.log.odd.append(Odd(what, error.code().name, error.details() or ""))

    # -- publishing ---------------------------------------------------------------------------------------

    async def _publish(self, publisher: int, topic: str) -> None:
        client = self._client()
        while self._publishing:
            await asyncio.sleep(self._chance.uniform(0.005, 0.03))
            if len(self._unacked) < _UNACKED_MAX:
                await self._publish_once(client, publisher, topic)

    async def _publish_once(self, client: Client, publisher: int, topic: str) -> None:
        chance = self._chance
        count = chance.randint(1, 12)
        datas = [
            b"%d/%d " % (publisher, next(self._numbers)) + b"." * chance.choice((5, 50, 300, 3000))
            for _ in range(count)
        ]
        attributes = [draw_attributes(chance) for _ in range(count)]
        for of_one in attributes:
            if chance.random() < _OF_ILL_REPUTE:
                of_one[_ILL_REPUTE] = "yes"
        # One request carries one key.
        key = f"key-{chance.randrange(_KEYS)}" if chance.random() < _KEYED else ""
        messages = [
            pb.PubsubMessage(data=data, attributes=of_one, ordering_key=key)
            for data, of_one in zip(datas, attributes, strict=True)
        ]
        for data, of_one in zip(datas, attributes, strict=True):
            self.log.attributes[payload_hash(data, of_one)] = of_one
        publish = Published(topic, publisher, now_us(), 0, datas, None, attributes, key)
        try:
            response = await client.Publish(topic=topic, messages=messages)
            self._replied("publish")
            message_ids = [int(message_id) for message_id in response.message_ids]
            publish = publish._replace(message_ids=message_ids)
            self.count_published(publish)
        except grpc.RpcError as error:
            if error.code() not in _GONE:
                self._odd("Publish", error)
        finally:  # also of a call that is cancelled when the load stops: it may have been served
            self.log.publishes.append(publish._replace(done_us=now_us()))
        if publish.message_ids is None:
            await self.pause()

    async def _keep_changing(self, what: Changes | Resources, seconds_max: float) -> None:
        while True:
            await self.up.wait()
            await what.change_one()
            await asyncio.sleep(self._chance.uniform(seconds_max / 10, seconds_max))

    async def check_resources(self) -> None:
        """Compare all resources with what they can be; nothing changes meanwhile or afterwards."""
        for task in self._changing:
            task.cancel()
        await asyncio.wait(self._changing)
        await self._resources.look_at_all()
        await self._changes.look_at_all()

    # -- consuming ----------------------------------------------------------------------------------------

    async def _pull(self, watched: Watched) -> None:
        client = self._client()
        asker = _Unary(self, watched, client)
        while self._consuming:
            asked_us = now_us()
            try:
                response = await client.Pull(
                    subscription=watched.name,
                    max_messages=self._chance.choice((1, 10, 100)),
                    return_immediately=self._chance.random() < 0.5,
                )
            except grpc.RpcError as error:
                if error.code() not in _GONE:
                    self._odd("Pull", error)
                await self.pause()
                continue
            self._take(watched, asker, asked_us, response.received_messages)
            await asyncio.sleep(self._chance.uniform(0, 0.02))

    async def _stream(self, watched: Watched, number: int) -> None:
        # Some say who they are; the keys that one of those had go on with the next of its name.
        client_id = f"client {number}" if self._chance.random() < 0.5 else ""
        client = self._client()
        unary = _Unary(self, watched, client)
        while self._consuming:
            call = client.StreamingPull()
            on_stream = _OnStream(self, watched, call) if watched.acks_on_stream else None
            try:
                async for asked_us, response in self._responses(call, watched, client_id):
                    self._take(watched, on_stream or unary, asked_us, response.received_messages)
                    if on_stream is not None:
                        on_stream.confirmed(response)
            except grpc.RpcError as error:
                if error.code() not in _GONE and error.details() != _BROKEN_TEXT:
                    self._odd("StreamingPull", error)
            finally:
                call.cancel()
                if on_stream is not None:
                    on_stream.ended()
            await self.pause()

    async def _responses(self, call: Any, watched: Watched, client_id: str) -> AsyncIterator[tuple[int, Any]]:
        """(when the stream was opened, response), until this side closes it or it breaks."""
        asked_us = now_us()
        # Some streams are left early, with deliveries on the way that nobody will see.
        until_us = asked_us + int(self._chance.uniform(0.5, 6) * 1e6)
        first = pb.StreamingPullRequest(
            subscription=watched.name,
            stream_ack_deadline_seconds=LEASE_SECONDS,
            client_id=client_id,
            max_outstanding_messages=self._chance.choice((0, 50, 1000)),
            protocol_version=self._chance.choice((0, 1)),
        )
        with _broken_is_fine():
            await call.write(first)
        while (response := await call.read()) is not grpc.aio.EOF:
            yield asked_us, response
            if now_us() > until_us and not self._calm:
                return
        if (code := await call.code()) not in _GONE:
            self.log.odd.append(Odd("StreamingPull", code.name, await call.details()))

    def _take(self, watched: Watched, asker: _Asker, asked_us: int, received_messages: Any) -> None:
        at_us = now_us()
        if received_messages:
            self.delivered_us = at_us
            self._replied("delivery")
        for received in received_messages:
            message = received.message
            delivered = Delivered(
                watched.name,
                int(message.message_id),
                received.ack_id,
                at_us,
                asked_us,
                LEASE_SECONDS,
                message.publish_time.ToMicroseconds(),
                message.data,
                message.ordering_key,
                tuple(sorted(message.attributes.items())),
                received.delivery_attempt,
            )
            self.log.deliveries.append(delivered)
            self._spawn(self._fate(watched, delivered)(_Handled(self, watched, asker, delivered)))

    def _fate(self, watched: Watched, delivered: Delivered) -> Fate:
        if self._calm:
            return _ack_at_once
        if watched.dead_letter and (_ILL_REPUTE, "yes") in delivered.attributes:
            return self._chance.choices(*_FATES_OF_ILL_REPUTE)[0]
        return self._chance.choices(*_FATES)[0]


@contextlib.contextmanager
def _broken_is_fine() -> Iterator[None]:
    """Around a write on a stream: whether it broke is learnt from reading, after what came before that."""
    try:
        yield
    except (grpc.RpcError, asyncio.InvalidStateError):
        return
    except asyncio.CancelledError:
        # Writing on a call that was cancelled raises this as well.
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            raise


# -- what becomes of a delivery ---------------------------------------------------------------------------


class _Handled:
    """One delivery in the hands of its consumer."""

    def __init__(self, load: Load, watched: Watched, asker: _Asker, delivered: Delivered) -> None:
        self._load = load
        self._watched = watched
        self._asker = asker
        self._delivered = delivered

    async def sleep(self, least: float, most: float) -> None:
        await asyncio.sleep(self._load._chance.uniform(least, most))

    async def ask(self, kind: Kind, seconds: int = 0) -> Answer:
        """Ask once for what `kind` says, and write down the answer."""
        answer = await self._asker.ask(kind, self._delivered.ack_id, seconds)
        if kind is Kind.ACK and answer is Answer.OK:
            self._load.count_acked(self._delivered)
        return answer

    async def insist(self, kind: Kind, seconds: int = 0) -> Answer:
        """Ask until there is an answer that is final."""
        while (answer := await self.ask(kind, seconds)) in (Answer.UNKNOWN, Answer.UNORDERED):
            await self._load.pause()
        return answer

    async def ack(self) -> None:
        answer = await self.insist(Kind.ACK)
        # An earlier message of its key may have failed; then this one comes again sooner if it is nacked.
        if answer is Answer.PERMANENT and self._delivered.ordering_key and self._load._chance.random() < 0.6:
            await self.insist(Kind.NACK)


Fate = Callable[[_Handled], Awaitable[None]]


async def _ack_at_once(one: _Handled) -> None:
    await one.ack()


async def _ack_soon(one: _Handled) -> None:
    await one.sleep(0, 0.3)
    await one.ack()


async def _confirm_receipt(one: _Handled) -> None:
    await one.insist(Kind.EXTEND, 15)
    await one.sleep(0, 0.5)
    await one.ack()


async def _hold(one: _Handled) -> None:
    await one.sleep(1, 7)
    await one.ack()


async def _extend_and_hold(one: _Handled) -> None:
    await one.ask(Kind.EXTEND, 12)
    await one.sleep(0.5, 3)
    await one.ask(Kind.EXTEND, 20)
    await one.sleep(0.5, 3)
    await one.ack()


async def _nack(one: _Handled) -> None:
    await one.insist(Kind.NACK)


async def _nack_and_name_again(one: _Handled) -> None:
    await one.insist(Kind.NACK)
    await one.ask(Kind.ACK)
    await one.ask(Kind.NACK)
    await one.ask(Kind.EXTEND, 15)


async def _ack_and_name_again(one: _Handled) -> None:
    await one.insist(Kind.ACK)
    await one.sleep(0, 1)
    await one.ask(Kind.ACK)
    await one.ask(Kind.EXTEND, 10)
    await one.ask(Kind.NACK)


async def _let_expire(one: _Handled) -> None:
    await one.insist(Kind.EXTEND, 1)
    await one.sleep(0.8, 2.5)
    await one.ask(Kind.ACK)
    await one.ask(Kind.EXTEND, 10)


async def _ack_at_the_last_moment(one: _Handled) -> None:
    await one.insist(Kind.EXTEND, 1)
    await one.sleep(0.9, 1.1)
    await one.insist(Kind.ACK)


async def _forget(one: _Handled) -> None:
    """The client lost it: only its deadline brings it back."""


async def _let_expire_soon(one: _Handled) -> None:
    await one.insist(Kind.EXTEND, 1)


_FATES_OF_ILL_REPUTE: tuple[list[Fate], list[float]] = (
    [_nack, _nack_and_name_again, _let_expire_soon, _ack_at_once],
    [75, 10, 10, 5],
)
_FATES: tuple[list[Fate], list[float]] = (
    [
        *(_ack_at_once, _ack_soon, _confirm_receipt, _hold, _extend_and_hold),
        *(_nack, _nack_and_name_again, _ack_and_name_again),
        *(_let_expire, _ack_at_the_last_moment, _forget),
    ],
    [50, 15, 8, 6, 4, 4, 1.5, 3, 3, 2, 0.5],
)


# -- how a consumer names ack ids -------------------------------------------------------------------------


_ANSWERS = {PERMANENT: Answer.PERMANENT, TRANSIENT: Answer.UNKNOWN, _UNORDERED: Answer.UNORDERED}


class _Asker:
    """Gathers ids for a few milliseconds and names them together, as client libraries do."""

    def __init__(self, load: Load, watched: Watched) -> None:
        self._load = load
        self._watched = watched
        self._gathering: dict[tuple[Kind, int], dict[str, asyncio.Future[Answer]]] = defaultdict(dict)

    def ask(self, kind: Kind, ack_id: str, seconds: int) -> asyncio.Future[Answer]:
        batch = self._gathering[kind, seconds]
        if not batch:
            self._load._spawn(self._flush(kind, seconds))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        batch[ack_id] = future
        return future

    async def _flush(self, kind: Kind, seconds: int) -> None:
        await asyncio.sleep(self._load._chance.uniform(0, _BATCH_SECONDS))
        batch = self._gathering.pop((kind, seconds))
        ids = list(batch)
        for start in range(0, len(ids), _BATCH_MAX):
            await self.send(
                kind, seconds, {ack_id: batch[ack_id] for ack_id in ids[start : start + _BATCH_MAX]}
            )

    async def send(self, kind: Kind, seconds: int, batch: dict[str, asyncio.Future[Answer]]) -> None:
        raise NotImplementedError

    def note(
        self,
        kind: Kind,
        seconds: int,
        sent_us: int,
        batch: dict[str, asyncio.Future[Answer]],
        answer_of: Callable[[str], Answer],
    ) -> None:
        done_us = now_us()
        for ack_id, future in batch.items():
            answer = answer_of(ack_id)
            operation = Operation(self._watched.name, ack_id, kind, seconds, sent_us, done_us, answer)
            self._load.log.operations.append(operation)
            if not future.done():
                future.set_result(answer)


class _Unary(_Asker):
    def __init__(self, load: Load, watched: Watched, client: Client) -> None:
        super().__init__(load, watched)
        self._client = client

    async def send(self, kind: Kind, seconds: int, batch: dict[str, asyncio.Future[Answer]]) -> None:
        sent_us = now_us()
        try:
            if kind is Kind.ACK:
                await self._client.Acknowledge(subscription=self._watched.name, ack_ids=list(batch))
            else:
                await self._client.ModifyAckDeadline(
                    subscription=self._watched.name, ack_ids=list(batch), ack_deadline_seconds=seconds
                )
            self._load._replied(kind.value)
            self.note(kind, seconds, sent_us, batch, lambda _: Answer.OK)
        except grpc.RpcError as error:
            self.note(kind, seconds, sent_us, batch, self._reader(kind, error))
        except asyncio.CancelledError:
            self.note(kind, seconds, sent_us, batch, lambda _: Answer.UNKNOWN)
            raise

    def _reader(self, kind: Kind, error: grpc.RpcError) -> Callable[[str], Answer]:
        """How each id of a failed call is to be understood. The server lists exactly those that failed."""
        results: dict[str, str] = {}
        if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED):
            results = Refusal.of(error).results
        if not results or not set(results.values()) <= _ANSWERS.keys():
            if error.code() not in _GONE:
                self._load._odd(kind.value, error)
            return lambda _: Answer.UNKNOWN
        return lambda ack_id: _ANSWERS[results[ack_id]] if ack_id in results else Answer.OK


class _OnStream(_Asker):
    """Names ids in streaming requests, and learns what became of them from the confirmations."""

    def __init__(self, load: Load, watched: Watched, call: Any) -> None:
        super().__init__(load, watched)
        self._call = call
        self._open = True
        self._asked: dict[tuple[Kind, str], tuple[int, int, asyncio.Future[Answer]]] = {}

    async def send(self, kind: Kind, seconds: int, batch: dict[str, asyncio.Future[Answer]]) -> None:
        sent_us = now_us()
        if not self._open:
            unary = _Unary(self._load, self._watched, self._load.spare_client)
            await unary.send(kind, seconds, batch)
            return
        # Confirmations tell acks from changes of deadline, but not one such change from another; so each
        # consumer waits for one answer before it names an id again.
        operation = Kind.ACK if kind is Kind.ACK else Kind.EXTEND
        for ack_id, future in batch.items():
            assert (operation, ack_id) not in self._asked
            self._asked[operation, ack_id] = (sent_us, seconds, future)
        if kind is Kind.ACK:
            request = pb.StreamingPullRequest(ack_ids=list(batch))
        else:
            request = pb.StreamingPullRequest(
                modify_deadline_ack_ids=list(batch), modify_deadline_seconds=[seconds] * len(batch)
            )
        with _broken_is_fine():
            await self._call.write(request)

    def confirmed(self, response: Any) -> None:
        acks, extensions = response.acknowledge_confirmation, response.modify_ack_deadline_confirmation
        if acks.ByteSize() or extensions.ByteSize():
            self._load._replied("confirmation")
        for operation, confirmation in ((Kind.ACK, acks), (Kind.EXTEND, extensions)):
            self._resolve(operation, confirmation.ack_ids, Answer.OK)
            self._resolve(operation, confirmation.invalid_ack_ids, Answer.PERMANENT)
            self._resolve(operation, confirmation.temporary_failed_ack_ids, Answer.UNKNOWN)
        self._resolve(Kind.ACK, acks.unordered_ack_ids, Answer.UNORDERED)

    def ended(self) -> None:
        self._open = False
        for operation, ack_id in list(self._asked):
            self._resolve(operation, [ack_id], Answer.UNKNOWN)

    def _resolve(self, operation: Kind, ack_ids: Any, answer: Answer) -> None:
        for ack_id in ack_ids:
            sent_us, seconds, future = self._asked.pop((operation, ack_id))
            kind = Kind.NACK if operation is Kind.EXTEND and not seconds else operation
            self.note(kind, seconds, sent_us, {ack_id: future}, lambda _: answer)
