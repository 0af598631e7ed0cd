"""Everybody who calls the server: publishers, consumers with good and bad manners, and a forger.

Consumers draw what becomes of each delivery when it comes (`plan.Manners`); in the calm that follows the
storm they have good manners only. What a client was told goes to the auditor when it is told.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as RpcStatus

from pubsubd.eod import answer
from pubsubd.wire import pb
from pubsubd.wire.services import SERVICES
from tests.crash.filters import draw_attributes
from tests.crash.log import Answer
from tests.sim.plan import KEYS, SECOND_US, Manners, Subscription
from tests.sim.wire import Call, Reply, StreamCall

if TYPE_CHECKING:
    from tests.sim.world import World

_ANSWERS = {
    answer.PERMANENT: Answer.PERMANENT,
    answer.UNORDERED: Answer.UNORDERED,
    answer.UNAVAILABLE: Answer.UNKNOWN,
}
# What a well-formed call may be refused with for sure, having done nothing.
_REFUSED = {"NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
_UNDECIDED = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"}
_RESPONSES = {method.name: method.response for methods in SERVICES.values() for method in methods.values()}
_REMEMBERED = 60  # ack ids of a subscription that may be named again
_TRIES = 4


class Population:
    def __init__(self, world: World) -> None:
        from tests.sim.changes import Changer
        from tests.sim.forger import Forger

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
            in_order(_RESPONSES[method], reply.data) + _details_in_order(reply.status.details),
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
        if code not in _REFUSED and code not in _UNDECIDED and code != "OK":
            world.breaks("well-formed requests", f"{method}: {reply.status} for {request}")
        ok = None if code in _UNDECIDED else code == "OK"
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
            elif reply.status.code not in _UNDECIDED | _REFUSED:
                world.breaks("well-formed requests", f"Publish: {reply.status}")
            world.tell("published", call_us, world.wall_us(), topic, messages, ids)
            if ids is not None or reply.status.code in _REFUSED or chance.random() < 0.3:
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


class Consumer:
    """One subscriber: it opens streams or pulls, one after the other."""

    def __init__(self, population: Population, one: Subscription, number: int) -> None:
        self.subscription = one.name
        self.who = f"{one.name.rpartition('/')[2]}/{number}"
        self.client_id = f"client {number}" if population.chance.random() < 0.5 else ""
        self.agent = population.chance.choice(("", "receipts ")) + self.who
        self._population = population
        self._world = population.world
        self._chance = population.world.chance(f"consumer {self.who}")
        self._pulls = self._chance.random() < 0.25
        self._call: Call | None = None
        self._stream: OnStream | None = None
        self._receipts = self._chance.random() < 0.4
        self._streams_acks = self._chance.random() < 0.6

    @property
    def manners(self) -> Manners:
        return self._population.manners

    def leave(self) -> None:
        if self._call is not None:
            self._call.give_up()

    async def run(self) -> None:
        chance, world = self._chance, self._world
        while self._population.consuming:
            await world.server.up.wait()
            if self._pulls if chance.random() < 0.9 else not self._pulls:
                await self._pull()
            else:
                await self._open_stream()
            self._call = self._stream = None
            await asyncio.sleep(chance.uniform(0.02, 0.4))

    # -- getting messages -----------------------------------------------------------------------------------

    async def _pull(self) -> None:
        world, chance = self._world, self._chance
        request = pb.PullRequest(
            subscription=self.subscription,
            max_messages=chance.choice((1, 3, 10)),
            return_immediately=chance.random() < 0.3,
        )
        asked_us = world.wall_us()
        world.operations += 1
        data = request.SerializeToString(deterministic=True)
        world.trace.note(self.who, "> Pull", data, request)
        deadline_us = chance.choice((None, 3, 30, 60))
        future, self._call = world.network.unary(
            "Pull", data, self.agent, None if deadline_us is None else deadline_us * SECOND_US
        )
        reply = await future
        world.happened()
        world.trace.note(
            self.who,
            f"< Pull {reply.status.code} {reply.status.message}",
            in_order(pb.PullResponse, reply.data),
        )
        if reply.status.ok:
            received = list(pb.PullResponse.FromString(reply.data).received_messages)
            if received:
                self._take(received, 0, asked_us)
        elif reply.status.code not in _UNDECIDED | _REFUSED:
            world.breaks("well-formed requests", f"Pull: {reply.status}")
        else:
            await asyncio.sleep(chance.uniform(0.1, 1.0))

    async def _open_stream(self) -> None:
        world, chance, manners = self._world, self._chance, self.manners
        population = self._population
        population.stream_count += 1
        number = population.stream_count
        greedy, dead = chance.random() < manners.greedy, chance.random() < manners.dead
        first = pb.StreamingPullRequest(
            subscription=self.subscription,
            stream_ack_deadline_seconds=chance.choice((10, 10, 12, 30)),
            client_id=self.client_id,
            max_outstanding_messages=0 if greedy else chance.choice((1, 2, 5, 20)),
            max_outstanding_bytes=0 if greedy else chance.choice((0, 0, 150, 1000)),
            protocol_version=chance.choice((0, 1)),
        )
        if world.storm and chance.random() < 0.15:
            # As some libraries do: acks of the stream before come with the first request of the next.
            ids = population.known_ids[self.subscription]
            first.ack_ids.extend(dict.fromkeys(chance.choices(ids, k=min(len(ids), 3))))
        if dead:
            world.fault("dead client")
        if greedy:
            world.fault("greedy client")
        call = world.network.stream("StreamingPull", self.agent, chance.choice((300, 2_000, 60_000)))
        self._call = call
        stream = self._stream = OnStream(self, call, number)
        asked_us = world.wall_us()
        world.tell(
            "stream_opened",
            number,
            self.subscription,
            self.client_id,
            first.max_outstanding_messages,
            first.max_outstanding_bytes,
            asked_us,
            first.stream_ack_deadline_seconds,
        )
        stream.send_first(first)
        self._plan_end(call, stream)
        if dead:
            await asyncio.sleep(chance.choice((2, 12, 40)))
        while (data := await call.read()) is not None:
            response = pb.StreamingPullResponse.FromString(data)
            world.happened()
            world.trace.note(self.who, "< stream", response.SerializeToString(deterministic=True), response)
            stream.confirmed(response)
            if response.received_messages:
                self._take(list(response.received_messages), number, asked_us, greedy)
        world.trace.note(self.who, f"< stream {call.status.code} {call.status.message}")
        stream.ended()
        world.tell("stream_ended", number, world.wall_us(), call.status.code)
        self._check_end(call, stream)
        if call.status.code in _REFUSED:
            await asyncio.sleep(chance.uniform(0.3, 2.0))

    def _check_end(self, call: StreamCall, stream: OnStream) -> None:
        code = call.status.code
        if code == "OK" and not stream.half_closed:
            self._world.breaks("streams end with OK only when half-closed", self.who)
        # Ids of a subscription that was since made anew are nothing to the new one.
        stale = code == "INVALID_ARGUMENT" and "invalid ack ID" in call.status.message
        if code not in _UNDECIDED | _REFUSED and code != "OK" and not stale:
            self._world.breaks("well-formed requests", f"{self.who}: {call.status}")

    def _plan_end(self, call: StreamCall, stream: OnStream) -> None:
        """Some leave early, with deliveries on the way that nobody will see."""
        world, chance = self._world, self._chance
        if not world.storm:
            return
        us = round(chance.uniform(0.05, 6.0) * SECOND_US)
        if chance.random() < self.manners.leaves:
            world.network.after(us, self._leave_early, call)
        elif chance.random() < self.manners.half_closes:
            world.network.after(us, self._half_close, call, stream)

    def _leave_early(self, call: StreamCall) -> None:
        if not call.over and self._world.storm:
            self._world.fault("cancelled stream")
            call.give_up()

    def _half_close(self, call: StreamCall, stream: OnStream) -> None:
        if not call.over:
            self._world.fault("half-closed stream")
            stream.half_closed = True
            call.half_close()

    # -- what becomes of messages ---------------------------------------------------------------------------

    def _take(self, received: list[Any], stream: int, asked_us: int, greedy: bool = False) -> None:
        world, population = self._world, self._population
        world.operations += 1
        population.busy_us = world.loop.now_us
        world.tell("delivered", stream, self.subscription, received, asked_us, world.wall_us())
        ids = population.known_ids[self.subscription]
        ids.extend(one.ack_id for one in received)
        del ids[:-_REMEMBERED]
        times = population.publish_times
        times.append(received[-1].message.publish_time.ToMicroseconds())
        del times[:-_REMEMBERED]
        if greedy and world.storm:
            return
        if not world.storm:
            self._insist("ack", 0, [one.ack_id for one in received], 0)
            return
        if self._receipts:
            self.send("modack", self._chance.choice((10, 30, 60)), [one.ack_id for one in received])
        for delay_us, kind, seconds, ack_ids in self._fates(received):
            world.network.after(delay_us, self._insist, kind, seconds, ack_ids, 0)

    def _fates(self, received: list[Any]) -> list[tuple[int, str, int, list[str]]]:
        """What is asked about which of them, and when; most of them together."""
        chance, manners = self._chance, self.manners
        soon_us = chance.choice((0, 1_000, 30_000, 400_000, 3_000_000))
        together: list[str] = []
        fates: list[tuple[int, str, int, list[str]]] = []
        for one in received:
            dice = chance.random()
            ids = [one.ack_id]
            if (dice := dice - manners.nacks) < 0:
                fates.append((soon_us, "modack", 0, ids))
                self._world.outcome.counts["nacks"] += 1
            elif (dice := dice - manners.forgets) < 0:
                self._world.fault("forgotten delivery")
            elif (dice := dice - manners.late) < 0:
                self._world.fault("late ack")
                fates.append((chance.randint(9_900_000, 13_000_000), "ack", 0, ids))
            elif (dice := dice - manners.extends) < 0:
                fates.append((soon_us, "modack", chance.choice((1, 5, 15, 60)), ids))
                fates.append((soon_us + chance.choice((100, 500_000, 6_000_000)), "ack", 0, ids))
            else:
                together.append(one.ack_id)
            if chance.random() < manners.repeats:
                self._world.fault("duplicate request")
                kind, seconds = chance.choice((("ack", 0), ("ack", 0), ("modack", 0), ("modack", 10)))
                fates.append((soon_us + chance.choice((0, 1_000, 2_000_000)), kind, seconds, ids))
        if together:
            fates.append((soon_us, "ack", 0, together))
        return fates

    # -- acks and deadlines ---------------------------------------------------------------------------------

    def _insist(self, kind: str, seconds: int, ack_ids: list[str], tries: int) -> None:
        """As libraries do: ask again while nobody knows what became of it."""
        world = self._world

        def told(results: dict[str, Answer]) -> None:
            again = [ack_id for ack_id, result in results.items() if result is Answer.UNKNOWN]
            if again and tries < _TRIES:
                us = self._chance.randint(50_000, 500_000) << tries
                world.network.after(us, self._insist, kind, seconds, again, tries + 1)

        self.send(kind, seconds, ack_ids, told)

    def send(
        self,
        kind: str,
        seconds: int,
        ack_ids: Sequence[str],
        told: Callable[[dict[str, Answer]], None] = lambda _: None,
    ) -> None:
        stream = self._stream
        if self._streams_acks and stream is not None and stream.takes(kind, ack_ids):
            stream.send(kind, seconds, ack_ids, told)
        else:
            self._world.spawn(self.ask(kind, seconds, ack_ids, told))

    async def ask(
        self,
        kind: str,
        seconds: int,
        ack_ids: Sequence[str],
        told: Callable[[dict[str, Answer]], None] = lambda _: None,
    ) -> None:
        results = await ask_unary(self._population, self.who, self.subscription, kind, seconds, ack_ids)
        told(results)


async def ask_unary(
    population: Population, who: str, subscription: str, kind: str, seconds: int, ack_ids: Sequence[str]
) -> dict[str, Answer]:
    """One Acknowledge or ModifyAckDeadline, and what it was answered."""
    world = population.world
    sent_us = world.wall_us()
    request: Any
    if kind == "ack":
        method = "Acknowledge"
        request = pb.AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids)
    else:
        method = "ModifyAckDeadline"
        request = pb.ModifyAckDeadlineRequest(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
    world.tell("asking", kind, subscription, list(ack_ids), seconds, sent_us)
    reply = await population.call(who, method, request.SerializeToString(), request)
    results = results_of(reply, ack_ids, world.plan.policy)
    world.tell("answered", kind, subscription, list(ack_ids), seconds, sent_us, world.wall_us(), results)
    return results


def results_of(reply: Reply, ack_ids: Sequence[str], policy: str) -> dict[str, Answer]:
    """How each id of a call is to be understood; empty: nothing of it happened for sure."""
    status = reply.status
    if status.ok:
        return dict.fromkeys(ack_ids, Answer.OK)
    told: dict[str, str] = {}
    if status.details:
        for detail in RpcStatus.FromString(status.details).details:
            told |= _results(detail)
    if not told:
        # UNAVAILABLE and its like say nothing; any other refusal is one of the whole request.
        return dict.fromkeys(ack_ids, Answer.UNKNOWN) if status.code in _UNDECIDED else {}
    unlisted = Answer.UNKNOWN if policy == "abort" else Answer.OK
    return {ack_id: _ANSWERS[told[ack_id]] if ack_id in told else unlisted for ack_id in ack_ids}


def in_order(response: Any, data: bytes) -> bytes:
    """`data` with its maps in order: protobuf writes them as they lie in memory."""
    serialised: bytes = response.FromString(data).SerializeToString(deterministic=True)
    return serialised


def _details_in_order(details: bytes) -> bytes:
    if not details:
        return b""
    status = RpcStatus.FromString(details)
    results = [sorted(_results(detail).items()) for detail in status.details]
    return f"{status.code} {status.message} {results}".encode()


def _results(detail: AnyMessage) -> dict[str, str]:
    info = ErrorInfo()
    if not detail.Unpack(info) or info.reason != answer.REASON:
        return {}
    return dict(info.metadata)


class OnStream:
    """Requests on an open stream, and what the confirmations say."""

    def __init__(self, consumer: Consumer, call: StreamCall, number: int) -> None:
        self.half_closed = False
        self.number = number
        self._consumer = consumer
        self._world = consumer._world
        self._call = call
        # Confirmations tell acks from changes of deadline, but not one such change from another; so nothing
        # is asked about an id while an answer about it is expected.
        self._asked: dict[tuple[str, str], tuple[int, int, _Batch]] = {}

    def takes(self, kind: str, ack_ids: Sequence[str]) -> bool:
        if self._call.over or self.half_closed:
            return False
        return not any((kind, ack_id) in self._asked for ack_id in ack_ids)

    def send_first(self, first: Any) -> None:
        if first.ack_ids:
            self._expect("ack", 0, first.ack_ids, lambda _: None)
        self._write(first)

    def send(
        self, kind: str, seconds: int, ack_ids: Sequence[str], told: Callable[[dict[str, Answer]], None]
    ) -> None:
        self._expect(kind, seconds, ack_ids, told)
        if kind == "ack":
            request = pb.StreamingPullRequest(ack_ids=ack_ids)
        else:
            request = pb.StreamingPullRequest(
                modify_deadline_ack_ids=ack_ids, modify_deadline_seconds=[seconds] * len(ack_ids)
            )
        self._write(request)

    def _write(self, request: Any) -> None:
        data = request.SerializeToString()
        self._world.operations += 1
        self._world.trace.note(self._consumer.who, "> stream", data, request)
        self._call.write(data)

    def _expect(
        self, kind: str, seconds: int, ack_ids: Sequence[str], told: Callable[[dict[str, Answer]], None]
    ) -> None:
        batch = _Batch(len(set(ack_ids)), told)
        sent_us = self._world.wall_us()
        self._world.tell("asking", kind, self._consumer.subscription, list(ack_ids), seconds, sent_us)
        for ack_id in ack_ids:
            self._asked[kind, ack_id] = (seconds, sent_us, batch)

    def confirmed(self, response: Any) -> None:
        if response.HasField("acknowledge_confirmation"):
            said = response.acknowledge_confirmation
            self._resolve("ack", said.ack_ids, Answer.OK)
            self._resolve("ack", said.invalid_ack_ids, Answer.PERMANENT)
            self._resolve("ack", said.temporary_failed_ack_ids, Answer.UNKNOWN)
            self._resolve("ack", said.unordered_ack_ids, Answer.UNORDERED)
        if response.HasField("modify_ack_deadline_confirmation"):
            said = response.modify_ack_deadline_confirmation
            self._resolve("modack", said.ack_ids, Answer.OK)
            self._resolve("modack", said.invalid_ack_ids, Answer.PERMANENT)
            self._resolve("modack", said.temporary_failed_ack_ids, Answer.UNKNOWN)

    def ended(self) -> None:
        for kind, ack_id in list(self._asked):
            self._resolve(kind, [ack_id], Answer.UNKNOWN)

    def _resolve(self, kind: str, ack_ids: Sequence[str], result: Answer) -> None:
        world = self._world
        groups: dict[tuple[int, int], list[str]] = {}
        batches: list[_Batch] = []
        for ack_id in ack_ids:
            if (kind, ack_id) not in self._asked:
                world.breaks(
                    "I5", f"confirmed and not asked, or twice: {self._consumer.who}: {kind} {ack_id}"
                )
                return
            seconds, sent_us, batch = self._asked.pop((kind, ack_id))
            groups.setdefault((seconds, sent_us), []).append(ack_id)
            batch.results[ack_id] = result
            batches.append(batch)
        for (seconds, sent_us), ids in groups.items():
            results = dict.fromkeys(ids, result)
            world.tell(
                "answered", kind, self._consumer.subscription, ids, seconds, sent_us, world.wall_us(), results
            )
        for batch in batches:
            batch.tell_if_complete()


class _Batch:
    """The ids of one request."""

    def __init__(self, count: int, told: Callable[[dict[str, Answer]], None]) -> None:
        self.results: dict[str, Answer] = {}
        self._count = count
        self._told = told

    def tell_if_complete(self) -> None:
        if len(self.results) == self._count:
            self._count = 0
            self._told(self.results)
