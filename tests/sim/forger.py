"""Somebody with ill intent, or a broken library: ack ids that are not his, requests without sense."""

from __future__ import annotations

import asyncio
import string
from typing import TYPE_CHECKING, Any

from pubsubd.wire import pb
from tests.sim.acks import ask_unary, in_order

if TYPE_CHECKING:
    from tests.sim.clients import Population

_URL_SAFE = string.ascii_letters + string.digits + "-_"
_METHODS = (
    *("Publish", "Pull", "Acknowledge", "ModifyAckDeadline", "Seek", "CreateSubscription", "CreateTopic"),
    *("UpdateSubscription", "CreateSnapshot", "GetTopic", "DeleteTopic", "DetachSubscription"),
)
_MAY_BE = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNAVAILABLE", "ABORTED", "CANCELLED"}


class Forger:
    def __init__(self, population: Population) -> None:
        self._population = population
        self._world = population.world
        self._chance = population.world.chance("forger")
        self._subscriptions = [one.name for one in self._world.plan.subscriptions]

    async def run(self) -> None:
        world, chance = self._world, self._chance
        kinds = [*[self._name_ids] * 6, self._malformed, self._malformed, self._malformed_stream]
        while world.storm:
            await asyncio.sleep(chance.expovariate(1 / world.plan.forgeries))
            await world.server.up.wait()
            if world.storm:
                await chance.choice(kinds)()

    # -- ack ids --------------------------------------------------------------------------------------------

    async def _name_ids(self) -> None:
        chance = self._chance
        subscription = chance.choice(self._subscriptions)
        ids: list[str] = []
        for _ in range(chance.choice((1, 1, 3))):
            kind, ack_id = self._draw_id(subscription)
            self._world.fault(f"ack id {kind}")
            ids.append(ack_id)
        kind, seconds = chance.choice((("ack", 0), ("ack", 0), ("modack", 0), ("modack", 20)))
        await ask_unary(self._population, "forger", subscription, kind, seconds, list(dict.fromkeys(ids)))

    def _draw_id(self, subscription: str) -> tuple[str, str]:
        chance = self._chance
        own = self._population.known_ids[subscription]
        foreign = [
            ack_id
            for name, ids in self._population.known_ids.items()
            if name != subscription
            for ack_id in ids[-5:]
        ]
        kind = chance.choice(("forged", "altered", "foreign", "named again"))
        if kind == "named again" and own:
            return kind, chance.choice(own)
        if kind == "foreign" and foreign:
            return kind, chance.choice(foreign)
        if kind == "altered" and own:
            genuine = chance.choice(own)
            at = chance.randrange(len(genuine))
            other = chance.choice([char for char in _URL_SAFE if char != genuine[at]])
            return kind, genuine[:at] + other + genuine[at + 1 :]
        length = chance.choice((40, 40, 60, 1, 39, 164))
        return "forged", "".join(chance.choices(_URL_SAFE, k=length))

    # -- requests that make no sense ------------------------------------------------------------------------

    async def _malformed(self) -> None:
        chance = self._chance
        self._world.fault("malformed request")
        if chance.random() < 0.4:
            # What it decodes to, if to anything, is nothing that a publisher or an administrator would be
            # answered OK for: there is no valid name in it.
            method, data = chance.choice(_METHODS), chance.randbytes(chance.choice((0, 1, 7, 40)))
        else:
            method, request = chance.choice(_senseless(chance.choice(self._subscriptions)))
            data = request.SerializeToString()
        reply = await self._population.call("forger", method, data)
        if reply.status.code not in _MAY_BE:
            self._world.breaks("malformed requests", f"{method} {data!r}: {reply.status}")

    async def _malformed_stream(self) -> None:
        chance, world = self._chance, self._world
        subscription = chance.choice(self._subscriptions)
        call = world.network.stream("StreamingPull", "forger", 2_000)
        world.fault("malformed stream")
        first = pb.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
        first.max_outstanding_messages = 1
        number = 0
        if chance.random() < 0.5:
            number = self._population.stream_count = self._population.stream_count + 1
            world.tell("stream_opened", number, subscription, "", 1, 0, world.wall_us(), 10)
            requests = [first, chance.choice(_senseless_later(subscription))]
        else:
            first.stream_ack_deadline_seconds = chance.choice((1, 9, 601, -1))
            requests = [first]
        for request in requests:
            call.write(request.SerializeToString())
        asked_us = world.wall_us()
        while (data := await call.read()) is not None:
            received = list(pb.StreamingPullResponse.FromString(data).received_messages)
            world.trace.note("forger", "< stream", in_order(pb.StreamingPullResponse, data))
            if received:
                world.tell("delivered", number, subscription, received, asked_us, world.wall_us())
        world.trace.note("forger", f"< stream {call.status.code} {call.status.message}")
        if number:
            world.tell("stream_ended", number, world.wall_us(), call.status.code)
        if call.status.code not in _MAY_BE:
            world.breaks("malformed requests", f"a stream was ended with {call.status}")


def _senseless(subscription: str) -> list[tuple[str, Any]]:
    topic = "projects/sim/topics/topic-0"
    long = "x" * 300
    return [
        ("Publish", pb.PublishRequest(topic=topic)),
        ("Publish", pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage()])),
        ("Publish", pb.PublishRequest(topic="topic-0", messages=[pb.PubsubMessage(data=b"x")])),
        (
            "Publish",
            pb.PublishRequest(
                topic=topic,
                messages=[pb.PubsubMessage(data=b"x", ordering_key=key) for key in ("a", "b")],
            ),
        ),
        (
            "Publish",
            pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage(data=b"x", attributes={long: "1"})]),
        ),
        ("Pull", pb.PullRequest(subscription=subscription, max_messages=0)),
        ("Pull", pb.PullRequest(subscription=subscription, max_messages=-3)),
        ("Pull", pb.PullRequest(subscription="projects/sim/topics/topic-0", max_messages=1)),
        ("Acknowledge", pb.AcknowledgeRequest(subscription=subscription)),
        (
            "ModifyAckDeadline",
            pb.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=["x"], ack_deadline_seconds=601),
        ),
        (
            "ModifyAckDeadline",
            pb.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=["x"], ack_deadline_seconds=-1),
        ),
        ("Seek", pb.SeekRequest(subscription=subscription)),
        ("CreateSubscription", pb.Subscription(name="projects/sim/subscriptions/1-x", topic=topic)),
        (
            "CreateSubscription",
            pb.Subscription(name="projects/sim/subscriptions/new", topic=topic, filter="attributes:"),
        ),
        (
            "CreateSubscription",
            pb.Subscription(name="projects/sim/subscriptions/new", topic=topic, ack_deadline_seconds=9),
        ),
        ("UpdateSubscription", pb.UpdateSubscriptionRequest(subscription=pb.Subscription(name=subscription))),
    ]


def _senseless_later(subscription: str) -> list[pb.StreamingPullRequest]:
    request = pb.StreamingPullRequest
    return [
        request(subscription=subscription),
        request(modify_deadline_ack_ids=["x"]),
        request(modify_deadline_ack_ids=["x"], modify_deadline_seconds=[-1]),
        request(modify_deadline_ack_ids=["x"], modify_deadline_seconds=[601]),
        request(client_id="another"),
        request(max_outstanding_messages=3),
    ]
