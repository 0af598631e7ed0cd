"""What is done to subscriptions that are watched, while they are consumed: seeks, snapshots, updates."""

from __future__ import annotations

import itertools
import random
from typing import Any

import grpc

from pubsubd.wire import pb
from tests.crash.log import Answer, Log, Odd, Sought, now_us
from tests.crash.plan import DEAD_TOPIC, Plan, Watched, dead_letter_policy, duration, retry_policy
from tests.crash.snapshots import UNSURE, Snapshots
from tests.wire.calls import Client

_VANISHING = "projects/crash/topics/vanishing"  # a dead letter topic that comes and goes
_FIELDS = [
    *("ack_deadline_seconds", "labels", "retain_acked_messages", "message_retention_duration"),
    *("retry_policy", "dead_letter_policy", "enable_exactly_once_delivery", "expiration_policy"),
]
_TOPIC_FIELDS = ["labels", "message_retention_duration"]


class Changes:
    """One task calls `change_one` again and again."""

    def __init__(
        self, client: Client, log: Log, chance: random.Random, plan: Plan, snapshots: Snapshots
    ) -> None:
        self._client = client
        self._log = log
        self._chance = chance
        self._plan = plan
        self._snapshots = snapshots
        self._numbers = itertools.count(1)
        self._sought = [one for one in plan.watched if one.seeks]
        self._updated = [one for one in plan.watched if one.updates]
        # What the changed fields of a resource can be, serialised; empty: not looked at yet.
        self._states: dict[str, set[bytes]] = {}
        self._vanishing: set[bool] = {False}

    async def change_one(self) -> None:
        draw = self._chance.random()
        if draw < 0.4 and self._sought:
            await self._seek(self._chance.choice(self._sought))
        elif draw < 0.55:
            one = self._chance.choice(self._plan.watched)
            await self._snapshots.create(one.name, one.topic, one.ordered)
        elif draw < 0.65:
            await self._snapshots.change_one()
        elif draw < 0.9 and self._updated:
            await self._update(self._chance.choice(self._updated))
        elif draw < 0.95:
            await self._update_topic(self._chance.choice([*self._plan.topics]))
        else:
            await self._let_vanish()

    async def look_at_all(self) -> None:
        await self._snapshots.look_at_all()
        for name in self._states:
            await self._look(name)

    # -- seek ---------------------------------------------------------------------------------------------

    async def _seek(self, one: Watched) -> None:
        snapshots = self._snapshots.fitting(one.topic, one.ordered)
        sent_us = now_us()
        snapshot, target_us = "", 0
        if snapshots and self._chance.random() < 0.7:
            snapshot = self._chance.choice(snapshots)
            call = self._client.Seek(subscription=one.name, snapshot=snapshot)
        else:
            # Mostly a few seconds back; at times to the present, the future, or before everything.
            back_us = self._chance.choices(
                [self._chance.randint(0, 6_000_000), 0, -3_600_000_000, sent_us], [70, 10, 15, 5]
            )[0]
            target_us = sent_us - back_us
            time = pb.Timestamp(seconds=target_us // 1_000_000, nanos=target_us % 1_000_000 * 1000)
            call = self._client.Seek(subscription=one.name, time=time)
        answer = Answer.UNKNOWN
        try:
            await call
            answer = Answer.OK
        except grpc.RpcError as error:
            if error.code() not in UNSURE:
                self._log.odd.append(Odd(f"Seek {snapshot}", error.code().name, error.details() or ""))
        finally:
            self._log.seeks.append(Sought(one.name, target_us, snapshot, sent_us, now_us(), answer))

    # -- updates ------------------------------------------------------------------------------------------

    async def _update(self, one: Watched) -> None:
        if len(self._states.get(one.name, ())) != 1:
            await self._look(one.name)
            return
        paths = self._chance.sample(_FIELDS, self._chance.randint(1, 3))
        change = pb.Subscription(name=one.name)
        for path in paths:
            self._draw_field(change, path)
        call = self._client.UpdateSubscription(subscription=change, update_mask=pb.FieldMask(paths=paths))
        after = pb.Subscription.FromString(*self._states[one.name])
        await self._change(one.name, _carried_over(after, change, paths), call)

    def _draw_field(self, change: Any, path: str) -> None:
        chance = self._chance
        match path:
            case "ack_deadline_seconds":
                change.ack_deadline_seconds = chance.randint(10, 13)
            case "labels":
                change.labels["change"] = str(next(self._numbers))
            case "retain_acked_messages":
                change.retain_acked_messages = chance.random() < 0.5
            case "message_retention_duration":
                change.message_retention_duration.CopyFrom(duration(chance.choice([6, 20, 600])))
            case "retry_policy" if chance.random() < 0.6:
                change.retry_policy.CopyFrom(retry_policy(chance.choice([0.05, 0.2]), 0.5))
            case "dead_letter_policy" if chance.random() < 0.7:
                topic = _VANISHING if True in self._vanishing and chance.random() < 0.3 else DEAD_TOPIC
                change.dead_letter_policy.CopyFrom(dead_letter_policy(topic, chance.choice([5, 6, 8])))
            case "enable_exactly_once_delivery":
                change.enable_exactly_once_delivery = chance.random() < 0.6
            case "expiration_policy":
                change.expiration_policy.ttl.CopyFrom(duration(86_400 * chance.randint(7, 30)))

    async def _update_topic(self, name: str) -> None:
        if len(self._states.get(name, ())) != 1:
            await self._look(name)
            return
        change = pb.Topic(name=name)
        if self._chance.random() < 0.5:
            change.message_retention_duration.CopyFrom(duration(self._chance.choice([4, 15, 40])))
        change.labels["change"] = str(next(self._numbers))
        call = self._client.UpdateTopic(topic=change, update_mask=pb.FieldMask(paths=_TOPIC_FIELDS))
        await self._change(name, _part(change, _TOPIC_FIELDS), call)

    async def _change(self, name: str, after: bytes, call: Any) -> None:
        self._log.resource_changes += 1
        try:
            await call
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                self._states[name].add(after)
            # The topic that an update named may have vanished.
            elif error.code() is not grpc.StatusCode.NOT_FOUND or _VANISHING.encode() not in after:
                self._wrong(f"an update of {name} was answered {error.code()}: {error.details()}")
        else:
            self._states[name] = {after}

    async def _look(self, name: str) -> None:
        try:
            if name in self._plan.topics:
                seen = _part(await self._client.GetTopic(topic=name), _TOPIC_FIELDS)
            else:
                seen = _part(await self._client.GetSubscription(subscription=name), _FIELDS)
        except grpc.RpcError as error:
            if error.code() not in UNSURE:
                self._wrong(f"Get {name} was answered {error.code()}: {error.details()}")
            return
        self._log.resource_checks += 1
        states = self._states.get(name, set())
        if states and seen not in states:
            self._wrong(f"{name} is {seen!r}, and can be {states}")
        self._states[name] = {seen}

    async def _let_vanish(self) -> None:
        exists = self._chance.choice([*self._vanishing])
        call = (
            self._client.DeleteTopic(topic=_VANISHING)
            if exists
            else self._client.CreateTopic(name=_VANISHING)
        )
        try:
            await call
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                self._vanishing.add(not exists)
                return
            if len(self._vanishing) == 1:
                self._wrong(f"{_VANISHING}: {error.code()}: {error.details()}")
        self._vanishing = {not exists}

    def _wrong(self, text: str) -> None:
        self._log.resources_wrong.append(text)


def _carried_over(resource: Any, change: Any, paths: list[str]) -> bytes:
    """`resource` with `paths` taken from `change`, which clears what it does not set."""
    for path in paths:
        resource.ClearField(path)
    resource.MergeFrom(_only(change, paths))
    return bytes(resource.SerializeToString(deterministic=True))


def _part(resource: Any, fields: list[str]) -> bytes:
    return bytes(_only(resource, fields).SerializeToString(deterministic=True))


def _only(resource: Any, fields: list[str]) -> Any:
    part = type(resource)()
    part.CopyFrom(resource)
    for field, _ in resource.ListFields():
        if field.name not in fields:
            part.ClearField(field.name)
    return part
