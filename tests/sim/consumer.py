"""Consumers, with good and bad manners.

One draws what becomes of each delivery when it comes (`plan.Manners`); in the calm that follows the storm
everybody has good manners only. What a client was told goes to the auditor when it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pubsubd.wire import pb
from tests.crash.log import Answer
from tests.sim.acks import REFUSED, UNDECIDED, OnStream, ask_unary, in_order
from tests.sim.plan import SECOND_US, Manners, Subscription
from tests.sim.wire import Call, StreamCall

if TYPE_CHECKING:
    from tests.sim.clients import Population

_REMEMBERED = 60  # ack ids of a subscription that may be named again
_TRIES = 4


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
        elif reply.status.code not in UNDECIDED | REFUSED:
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
        if call.status.code in REFUSED:
            await asyncio.sleep(chance.uniform(0.3, 2.0))

    def _check_end(self, call: StreamCall, stream: OnStream) -> None:
        code = call.status.code
        if code == "OK" and not stream.half_closed:
            self._world.breaks("streams end with OK only when half-closed", self.who)
        # Ids of a subscription that was since made anew are nothing to the new one.
        stale = code == "INVALID_ARGUMENT" and "invalid ack ID" in call.status.message
        if code not in UNDECIDED | REFUSED and code != "OK" and not stale:
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
