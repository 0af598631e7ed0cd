"""Snapshots that come and go while the server is killed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import grpc

from pubsubd.wire import pb
from tests.crash.log import Log
from tests.wire.calls import Client

UNSURE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED}
_ALIVE_MAX = 5
_LABEL = "change"


@dataclass
class Taken:
    name: str
    source: str
    topic: str
    ordered: bool
    # What its label can be; None: it does not exist.
    states: set[str | None] = field(default_factory=lambda: {None})

    @property
    def exists(self) -> bool:
        return len(self.states) == 1 and None not in self.states


class Snapshots:
    """A few at a time. No name is used twice, so that each is of one subscription."""

    def __init__(self, client: Client, log: Log, chance: random.Random) -> None:
        self._client = client
        self._log = log
        self._chance = chance
        self._numbers = itertools.count(1)
        self._taken: dict[str, Taken] = {}

    def fitting(self, topic: str, ordered: bool) -> list[str]:
        """Those that a subscription can be set to. One with ordering takes none from one without."""
        return [one.name for one in self._taken.values() if one.exists and self._fits(one, topic, ordered)]

    def _fits(self, one: Taken, topic: str, ordered: bool) -> bool:
        return one.topic == topic and (one.ordered or not ordered)

    async def create(self, subscription: str, topic: str, ordered: bool) -> None:
        number = next(self._numbers)
        one = Taken(f"projects/crash/snapshots/snapshot-{number}", subscription, topic, ordered)
        self._taken[one.name] = one
        self._log.snapshots[one.name] = subscription
        call = self._client.CreateSnapshot(
            name=one.name, subscription=subscription, labels={_LABEL: str(number)}
        )
        await self._change(one, str(number), call)

    async def change_one(self) -> None:
        """Look at one that may or may not be there; else delete or change one."""
        if not self._taken:
            return
        one = self._chance.choice([*self._taken.values()])
        if len(one.states) > 1:
            await self.look(one)
        elif one.states == {None}:
            del self._taken[one.name]
        elif len(self._taken) > _ALIVE_MAX or self._chance.random() < 0.3:
            await self._change(one, None, self._client.DeleteSnapshot(snapshot=one.name))
        else:
            label = str(next(self._numbers))
            snapshot = pb.Snapshot(name=one.name, labels={_LABEL: label})
            mask = pb.FieldMask(paths=["labels"])
            await self._change(one, label, self._client.UpdateSnapshot(snapshot=snapshot, update_mask=mask))

    async def look_at_all(self) -> None:
        for one in self._taken.values():
            await self.look(one)

    async def look(self, one: Taken) -> None:
        seen: str | None = None
        try:
            seen = (await self._client.GetSnapshot(snapshot=one.name)).labels[_LABEL]
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                return
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._wrong(f"Get {one.name} was answered {error.code()}: {error.details()}")
                return
        self._log.resource_checks += 1
        if seen not in one.states:
            self._wrong(f"{one.name} is at change {seen}, and can be at {sorted(map(str, one.states))}")
        one.states = {seen}

    async def _change(self, one: Taken, after: str | None, call: Any) -> None:
        self._log.resource_changes += 1
        try:
            await call
        except grpc.RpcError as error:
            if error.code() in UNSURE:
                one.states.add(after)
            else:
                self._wrong(f"{one.name} at {one.states}: {error.code()}: {error.details()}")
        else:
            one.states = {after}

    def _wrong(self, text: str) -> None:
        self._log.resources_wrong.append(text)
