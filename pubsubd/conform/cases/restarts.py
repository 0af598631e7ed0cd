"""CE: what a client was told holds when the server is killed, and when an answer is lost on its way."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import Client, about, permanent
from pubsubd.conform.case import Erred, Failed, Hook, case, check
from pubsubd.conform.cases.shared import LEASE_AND_MORE, REFUSED, is_refused, pull_one, quiet_until
from pubsubd.conform.lab import Delivery, Lab, Sub, check_redelivered, count_of, said, until
from pubsubd.conform.relay import Relay


@case(
    "CE-14",
    promise="A message whose ack was answered OK does not return after the server is killed.",
    critical="PNGJX",
    needs=[Hook.RESTART],
    seconds=18,
)
async def acked_message_does_not_return_after_a_kill(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.ack(a)
        await own.restart()

        await sub.nothing_for(LEASE_AND_MORE)
        await sub.ack(a)
    return f"Killed right after the answer; no redelivery for {LEASE_AND_MORE} s; the same ack was OK again."


@case(
    "CE-15",
    promise="A lease is honoured across a kill: its ack id works until its deadline.",
    critical="PNGJX",
    needs=[Hook.RESTART],
    seconds=25,
)
async def lease_is_honoured_across_a_kill(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        start, a = await pull_one(sub)
        await sub.nothing_for(start + 5 - time.monotonic())
        await own.restart()
        await sub.nothing_for(start + 20 - time.monotonic())

        await sub.ack(a)
    return "Killed and started at 5 s of 60 s; no redelivery until 20 s, and the ack was OK then."


@case(
    "CE-16",
    promise="A lease that ended while the server was down is over: its id is refused for good.",
    critical="PNGJX",
    needs=[Hook.RESTART],
    seconds=20,
)
async def lease_that_ended_while_down_is_over(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        start, a = await pull_one(sub)
        await until(start + 5)
        await own.kill()
        await until(start + 15)
        await own.start()
        await until(start + 16)

        with about("An ack of the expired id"), permanent(a):
            await sub.ack(a)
        (b,) = await sub.pull()
        check_redelivered(b, a)
    return f"The ack at 16 s was {REFUSED}; the message was redelivered with a new ack id."


@case(
    "CE-19",
    promise="An extension that was answered OK is honoured after a kill.",
    needs=[Hook.RESTART],
    seconds=65,
)
async def extension_is_honoured_after_a_kill(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        sent = time.monotonic()
        await sub.modack(60, a)
        await own.restart()

        async with sub.stream() as stream:
            await quiet_until(sent + 59, sub, stream)
            (b,) = await stream.take(within=LEASE_AND_MORE)
        check_redelivered(b, a)
        check(b.at - sent >= 60, f"It came again {b.at - sent:.2f} s after an extension by 60 s.")
    return f"Killed right after the answer to a modack by 60 s; redelivered {b.at - sent:.1f} s after it."


# Kills under load

LOAD_MESSAGES = 20
LOAD_PAUSE_SECONDS = 0.02
HELD_SECONDS_MAX = 0.1
ANSWERED_EACH_LIFE_MIN = 20
LIFE_SECONDS_MAX = 30.0


@dataclass
class Receiver:
    """Publishes to a subscription, receives from it and acks; remembers which acks were answered OK."""

    sub: Sub
    chance: random.Random
    newest: dict[str, Delivery] = field(default_factory=dict)  # by message id
    acked: set[str] = field(default_factory=set)  # message ids
    held: set[str] = field(default_factory=set)  # ack ids that came in this life and are not acked yet
    faults: list[str] = field(default_factory=list)
    redelivered: int = 0
    answered: int = 0  # acks of this life
    since: float = 0.0  # when this life began

    def note(self, delivery: Delivery) -> None:
        # The server may have been asked before the answer came: even so, whoever acked had the newest id.
        if delivery.message_id in self.acked:
            self.faults.append("A message was delivered after an ack of it had been answered OK.")
        self.redelivered += delivery.message_id in self.newest
        self.newest[delivery.message_id] = delivery
        self.held.add(delivery.ack_id)

    async def live(self) -> None:
        """Works until the server is gone.

        Raises:
            Failed: the server ended a stream or refused a call for another reason.
        """
        self.held.clear()
        self.answered, self.since = 0, time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                group.create_task(self._receive(group))
        except* grpc.RpcError as errors:
            # Whatever else was under way ended in the wake of the first.
            codes = {error.code() for error in errors.exceptions if isinstance(error, grpc.RpcError)}
            if not codes <= {StatusCode.UNAVAILABLE, StatusCode.CANCELLED}:
                raise
        except* ServerGone:
            pass

    async def _publish(self) -> None:
        while True:
            await self.sub.publish(LOAD_MESSAGES)
            await asyncio.sleep(LOAD_PAUSE_SECONDS)

    async def _receive(self, group: asyncio.TaskGroup) -> None:
        async with self.sub.stream() as stream:
            while stream.status is None:
                deliveries = stream.take_now()
                for delivery in deliveries:
                    self.note(delivery)
                if deliveries:
                    group.create_task(self._ack(deliveries))
                await asyncio.sleep(LOAD_PAUSE_SECONDS)
        if stream.status[0] != StatusCode.UNAVAILABLE:
            raise Failed(f"The stream ended with {said(stream.status)}.")
        raise ServerGone

    async def _ack(self, deliveries: list[Delivery]) -> None:
        await asyncio.sleep(self.chance.uniform(0, HELD_SECONDS_MAX))
        failed = await self.sub.failed_acks(*deliveries)
        for delivery in deliveries:
            self.held.discard(delivery.ack_id)
            if delivery.ack_id not in failed:
                self.answered += 1
                self.acked.add(delivery.message_id)
                if self.newest[delivery.message_id] is not delivery:
                    self.faults.append("The ack of an earlier delivery was answered OK.")

    def is_between(self) -> bool:
        """Whether enough acks of this life were answered, and messages were delivered whose acks were not.

        Raises:
            Erred: it has not come to that for a long time.
        """
        if self.answered >= ANSWERED_EACH_LIFE_MIN and self.held:
            return True
        if time.monotonic() > self.since + LIFE_SECONDS_MAX:
            raise Erred(f"Only {self.answered} acks were answered OK in {LIFE_SECONDS_MAX:.0f} s.")
        return False


class ServerGone(Exception):
    """The connection broke, which is what ends a life."""


@case(
    "CE-17",
    promise="Whenever the server is killed under load, no message whose ack was answered OK comes back.",
    critical="PNGJX",
    needs=[Hook.RESTART],
    seconds=30,
    seconds_max=1800,
    short="kills the server 6 times instead of 100",
)
async def no_acked_message_returns_after_kills_under_load(lab: Lab) -> str:
    kills = 100 if lab.full else 6
    async with lab.own_server() as own:
        receiver = Receiver(await own.subscription(), random.Random(17))
        for _ in range(kills):
            life = asyncio.create_task(receiver.live())
            try:
                await asyncio.wait([life], timeout=receiver.chance.uniform(0.5, 2))
                while not life.done() and not receiver.is_between():
                    await asyncio.sleep(0.001)
                if life.done():
                    await life
                    raise Erred("The server was gone before it was killed.")
                await own.served.kill()
                await life
            finally:
                life.cancel()
            await own.start()
        for delivery in await receiver.sub.watch(LEASE_AND_MORE):
            receiver.note(delivery)
    count = len(receiver.faults)
    check(not count, f"{count_of(count, 'time')} in {kills} kills: {' '.join(sorted({*receiver.faults}))}")
    return (
        f"{kills} kills between deliveries and acks, {len(receiver.acked)} acks answered OK, "
        f"{count_of(receiver.redelivered, 'message')} delivered again and none of those acked."
    )


# A lost reply

HEARD_SECONDS = 1.0
CUT_AFTER_SECONDS = (0.0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05)
ANSWERED_ROUNDS = 4


async def ack_without_an_answer(sub: Sub, delivery: Delivery, cut_after: float) -> bool:
    """Sends an ack and cuts the connection so long after; returns whether the server had said something."""
    async with Relay(sub.lab.endpoint) as relay:
        channel = relay.endpoint.channel(("grpc.enable_retries", 0), *relay.options)
        try:
            client = Client(channel)
            await client.GetSubscription(subscription=sub.name)  # so that nothing but the ack is sent below
            await asyncio.sleep(0.05)
            relay.keep_replies()
            call = client.Acknowledge(subscription=sub.name, ack_ids=[delivery.ack_id])
            await relay.request_sent()
            await asyncio.sleep(cut_after)
            relay.hang_up()
            try:
                await call
            except grpc.RpcError:
                return relay.bytes_kept > 0
            raise Erred("The ack was answered over a connection that lets no answer through.")
        finally:
            await channel.close()


@case(
    "CE-18",
    promise="The retry of an ack whose reply was lost is OK, unless the message is redelivered.",
    critical="PNGJX",
    seconds=17,
)
async def retry_of_an_ack_whose_reply_was_lost(lab: Lab) -> str:
    sub = await lab.subscription()
    # Some cuts race with the ack, which may have been carried out or not; the others come long after it.
    cuts = [*CUT_AFTER_SECONDS, *[HEARD_SECONDS] * ANSWERED_ROUNDS]
    deliveries = await sub.lease(len(cuts))
    heard = await asyncio.gather(*map(ack_without_an_answer, [sub] * len(cuts), deliveries, cuts))
    if not all(heard[len(CUT_AFTER_SECONDS) :]):
        raise Erred(f"The server said nothing within {HEARD_SECONDS:g} s after the acks.")

    lab.client = lab.new_client()  # of which `sub` makes use from now on
    refused = {a.message_id: await is_refused(sub.ack(a), a) for a in deliveries}
    seen = {delivery.message_id for delivery in await sub.watch(LEASE_AND_MORE)}
    for message_id, was_refused in refused.items():
        if was_refused:
            check(message_id in seen, "The retry was refused for good, and the message never came back.")
        else:
            check(message_id not in seen, "The retry was OK, and the message was redelivered all the same.")
    count = sum(refused.values())
    consistent = "" if not count else f" The {count} refused were redelivered, the others were not."
    return (
        f"{len(cuts)} connections cut after an ack was sent, {ANSWERED_ROUNDS} of them {HEARD_SECONDS:g} s "
        f"after it with the answer held back: {len(cuts) - count} retries were OK, {count or 'none'} refused."
        + consistent
    )
