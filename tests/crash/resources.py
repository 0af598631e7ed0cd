"""Topics and subscriptions that come, change and go while the server is killed.

Theory of operation. Each resource carries a label that no other change gave it, so one look tells which
change it is at. Of each name we hold the set of states that it can be in: an answered change leaves one, a
change without an answer leaves the state before it and the state after it. Looking removes the contradicted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable
from typing import Any

import grpc

from pubsubd.wire import pb
from tests.crash.log import Log
from tests.wire.calls import PERMANENT, Client, Refusal

_LABEL = "change"
_DETACHED = " detached"
_UNSURE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED}

# None: it does not exist.
State = str | None


class Resources:
    """A few names whose resources one task changes all the time."""

    def __init__(self, client: Client, log: Log, chance: random.Random) -> None:
        self._client = client
        self._log = log
        self._chance = chance
        self._changes = itertools.count(1)
        self._topics = [f"projects/crash/topics/coming-and-going-{n}" for n in range(3)]
        self._subscriptions = [f"projects/crash/subscriptions/coming-and-going-{n}" for n in range(3)]
        self._states: dict[str, set[State]] = {name: {None} for name in (*self._topics, *self._subscriptions)}
        # An ack id of a subscription that was deleted since must not fit one of the same name.
        self._ack_ids: dict[str, str] = {}
        self._stale_ack_ids: dict[str, str] = {}

    async def change_one(self) -> None:
        """One random change. Errors that say that the server is gone leave the outcome open."""
        name = self._chance.choice([*self._topics, *self._subscriptions, *self._subscriptions])
        if len(self._states[name]) > 1:
            await self.look(name)
        elif self._states[name] == {None}:
            await self._create(name)
        elif self._chance.random() < 0.4:
            await self._delete(name)
        elif name in self._subscriptions and self._chance.random() < 0.5:
            await self._lease_one(name)
        elif name in self._subscriptions and self._chance.random() < 0.2:
            await self._detach(name)
        else:
            await self._update(name)

    async def look_at_all(self) -> None:
        for name in self._states:
            await self.look(name)

    async def look(self, name: str) -> None:
        """Compare one resource with what it can be."""
        seen: State = None
        try:
            if name in self._topics:
                resource = await self._client.GetTopic(topic=name)
            else:
                resource = await self._client.GetSubscription(subscription=name)
            seen = resource.labels[_LABEL] + _DETACHED * getattr(resource, "detached", False)
        except grpc.RpcError as error:
            if error.code() in _UNSURE:
                return
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._wrong(f"Get {name} was answered {error.code()}: {error.details()}")
                return
        self._log.resource_checks += 1
        if seen not in self._states[name]:
            self._wrong(f"{name} is at change {seen}, and can be at {sorted(map(str, self._states[name]))}")
        self._states[name] = {seen}
        if seen is None:
            self._forget(name)

    async def _create(self, name: str) -> None:
        label = str(next(self._changes))
        if name in self._topics:
            call = self._client.CreateTopic(name=name, labels={_LABEL: label})
            await self._change(name, label, call)
            return
        topic = self._chance.choice(self._topics)
        if self._states[topic] == {None} or len(self._states[topic]) > 1:
            return
        call = self._client.CreateSubscription(
            name=name, topic=topic, labels={_LABEL: label}, enable_exactly_once_delivery=True
        )
        if await self._change(name, label, call) and name in self._stale_ack_ids:
            await self._check_stale(name, self._stale_ack_ids.pop(name))

    async def _detach(self, name: str) -> None:
        (state,) = self._states[name]
        assert state is not None
        subscription = await self._get_subscription(name)
        # A topic that was deleted has nothing to detach from, and nobody detaches twice.
        if subscription is not None and subscription.topic in self._topics and _DETACHED not in state:
            await self._change(name, state + _DETACHED, self._client.DetachSubscription(subscription=name))

    async def _get_subscription(self, name: str) -> Any:
        try:
            return await self._client.GetSubscription(subscription=name)
        except grpc.RpcError as error:
            if error.code() not in _UNSURE:
                self._wrong(f"Get {name} was answered {error.code()}: {error.details()}")
            return None

    async def _update(self, name: str) -> None:
        label = str(next(self._changes))
        (state,) = self._states[name]
        after = label + _DETACHED * (state is not None and _DETACHED in state)
        mask = pb.FieldMask(paths=["labels"])
        if name in self._topics:
            topic = pb.Topic(name=name, labels={_LABEL: label})
            await self._change(name, after, self._client.UpdateTopic(topic=topic, update_mask=mask))
        else:
            subscription = pb.Subscription(name=name, labels={_LABEL: label})
            await self._change(
                name, after, self._client.UpdateSubscription(subscription=subscription, update_mask=mask)
            )

    async def _delete(self, name: str) -> None:
        if name in self._topics:
            call = self._client.DeleteTopic(topic=name)
        else:
            call = self._client.DeleteSubscription(subscription=name)
        if await self._change(name, None, call):
            self._forget(name)

    def _forget(self, name: str) -> None:
        if name in self._ack_ids:
            self._stale_ack_ids[name] = self._ack_ids.pop(name)

    async def _lease_one(self, name: str) -> None:
        """Publish to the topic of a subscription and pull, so that it is deleted with a lease open."""
        try:
            subscription = await self._client.GetSubscription(subscription=name)
            if subscription.detached:
                return
            if subscription.topic in self._topics:
                await self._client.Publish(topic=subscription.topic, messages=[pb.PubsubMessage(data=b"x")])
            pulled = await self._client.Pull(subscription=name, max_messages=1, return_immediately=True)
        except grpc.RpcError as error:
            if error.code() not in _UNSURE | {grpc.StatusCode.NOT_FOUND}:
                self._wrong(f"a message of {name} was answered {error.code()}: {error.details()}")
            return
        for received in pulled.received_messages:
            self._ack_ids[name] = received.ack_id

    async def _check_stale(self, name: str, ack_id: str) -> None:
        self._log.resource_checks += 1
        try:
            await self._client.Acknowledge(subscription=name, ack_ids=[ack_id])
        except grpc.RpcError as error:
            if error.code() not in _UNSURE and Refusal.of(error).results != {ack_id: PERMANENT}:
                self._wrong(f"an ack id of the {name} before was answered {error.code()}: {error.details()}")
        else:
            self._wrong(f"{name} was deleted and created, and took an ack id of the one before")

    async def _change(self, name: str, after: State, call: Awaitable[Any]) -> bool:
        """Await the call; whether it was answered OK."""
        self._log.resource_changes += 1
        try:
            await call
        except grpc.RpcError as error:
            if error.code() in _UNSURE:
                self._states[name].add(after)
            else:
                self._wrong(f"{name} at {self._states[name]}: {error.code()}: {error.details()}")
            return False
        self._states[name] = {after}
        return True

    def _wrong(self, text: str) -> None:
        self._log.resources_wrong.append(text)
