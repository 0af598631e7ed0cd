"""Whoever administers: updates, seeks, snapshots, deletions and what is made anew, lists."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pubsubd.wire import pb
from tests.sim.plan import (
    DEAD_TOPIC,
    HOUR_US,
    PROJECT,
    SECOND_US,
    Subscription,
    Topic,
    draw_retention,
    draw_retry,
    draw_subscription,
    timestamp,
)

if TYPE_CHECKING:
    from tests.sim.clients import Population

_FIELDS = (
    *("enable_exactly_once_delivery", "enable_exactly_once_delivery", "retry_policy", "dead_letter_policy"),
    *("ack_deadline_seconds", "message_retention_duration", "retain_acked_messages"),
)
_SNAPSHOTS = [f"{PROJECT}/snapshots/snap-{number}" for number in range(3)]


class Changer:
    def __init__(self, population: Population) -> None:
        self._population = population
        self._world = population.world
        self._chance = population.world.chance("changes")
        # What each subscription was last created with, as far as is known; where it reads from matters only.
        self._drawn = {one.name: one for one in self._world.plan.subscriptions if one.topic != DEAD_TOPIC}
        self._topics = [topic for topic in self._world.plan.topics if topic.name != DEAD_TOPIC]
        self._kinds = [
            *[self._update] * 5,
            *[self._seek_to_time] * 4,
            *[self._seek_to_snapshot] * 3,
            *[self._create_snapshot] * 3,
            self._delete_snapshot,
            *[self._recreate_subscription] * 2,
            self._recreate_topic,
            self._update_topic,
            self._detach,
            *[self._look] * 2,
        ]

    async def run(self) -> None:
        world = self._world
        while world.storm:
            await asyncio.sleep(self._chance.expovariate(1 / world.plan.changes))
            await world.server.up.wait()
            if world.storm:
                await self._chance.choice(self._kinds)()

    def _one(self) -> Subscription:
        return self._chance.choice([*self._drawn.values()])

    def _count(self, what: str) -> None:
        self._world.outcome.faults[what] += 1

    async def _do(self, method: str, request: Any) -> bool | None:
        ok, _ = await self._population.configure(method, request)
        return ok

    # -- subscriptions --------------------------------------------------------------------------------------

    async def _update(self) -> None:
        chance, one = self._chance, self._one()
        path = chance.choice(_FIELDS)
        change = pb.Subscription(name=one.name)
        if path == "enable_exactly_once_delivery":
            change.enable_exactly_once_delivery = chance.random() < 0.6
        elif path == "retry_policy" and chance.random() < 0.6:
            least, most = draw_retry(chance)
            change.retry_policy.minimum_backoff.FromMicroseconds(round(least * 1e6))
            change.retry_policy.maximum_backoff.FromMicroseconds(round(most * 1e6))
        elif path == "dead_letter_policy" and chance.random() < 0.6:
            change.dead_letter_policy.dead_letter_topic = DEAD_TOPIC
            change.dead_letter_policy.max_delivery_attempts = chance.choice((5, 5, 6))
        elif path == "ack_deadline_seconds":
            change.ack_deadline_seconds = chance.choice((10, 11, 30))
        elif path == "message_retention_duration":
            change.message_retention_duration.seconds = chance.choice((12, 40, 600))
        elif path == "retain_acked_messages":
            change.retain_acked_messages = chance.random() < 0.5
        self._count(f"changed {path}")
        mask = pb.FieldMask(paths=[path])
        await self._do(
            "UpdateSubscription", pb.UpdateSubscriptionRequest(subscription=change, update_mask=mask)
        )

    async def _recreate_subscription(self) -> None:
        chance, one = self._chance, self._one()
        self._count("deleted subscription")
        await self._do("DeleteSubscription", pb.DeleteSubscriptionRequest(subscription=one.name))
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.3, 3.0)))
        await self._create_subscription(one.name)

    async def _create_subscription(self, name: str) -> None:
        chance = self._chance
        drawn = draw_subscription(chance, name, chance.choice(self._topics).name)
        self._drawn[name] = drawn
        await self._do("CreateSubscription", drawn.resource())

    async def _detach(self) -> None:
        one = self._one()
        self._count("detached subscription")
        await self._do("DetachSubscription", pb.DetachSubscriptionRequest(subscription=one.name))
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 2.0)))
        await self._do("DeleteSubscription", pb.DeleteSubscriptionRequest(subscription=one.name))
        await self._create_subscription(one.name)

    # -- seeks and snapshots --------------------------------------------------------------------------------

    async def _seek_to_time(self) -> None:
        chance, now_us = self._chance, self._world.wall_us()
        back_us = chance.choices((chance.randint(0, 8 * SECOND_US), 0, -HOUR_US, now_us), (70, 10, 15, 5))[0]
        times = self._population.publish_times
        if times and chance.random() < 0.5:
            # To a message itself, or right before or after it.
            back_us = now_us - chance.choice(times) + chance.choice((0, 0, 1, -1))
        self._count("seek to a time")
        await self._do(
            "Seek", pb.SeekRequest(subscription=self._one().name, time=timestamp(now_us - back_us))
        )

    async def _seek_to_snapshot(self) -> None:
        self._count("seek to a snapshot")
        request = pb.SeekRequest(subscription=self._one().name, snapshot=self._chance.choice(_SNAPSHOTS))
        await self._do("Seek", request)

    async def _create_snapshot(self) -> None:
        self._count("snapshot")
        name = self._chance.choice(_SNAPSHOTS)
        await self._do("CreateSnapshot", pb.CreateSnapshotRequest(name=name, subscription=self._one().name))

    async def _delete_snapshot(self) -> None:
        self._count("deleted snapshot")
        await self._do("DeleteSnapshot", pb.DeleteSnapshotRequest(snapshot=self._chance.choice(_SNAPSHOTS)))

    # -- topics ---------------------------------------------------------------------------------------------

    async def _recreate_topic(self) -> None:
        chance, topic = self._chance, self._chance.choice(self._topics)
        self._count("deleted topic")
        await self._do("DeleteTopic", pb.DeleteTopicRequest(topic=topic.name))
        await asyncio.sleep(chance.choice((0.0, 0.3, 2.0)))
        await self._do("CreateTopic", Topic(topic.name, draw_retention(chance)).resource())
        # What reads from it now reads nothing but what is left: some of those are made anew.
        for one in [*self._drawn.values()]:
            if one.topic == topic.name and chance.random() < 0.8:
                await self._do("DeleteSubscription", pb.DeleteSubscriptionRequest(subscription=one.name))
                await self._create_subscription(one.name)

    async def _update_topic(self) -> None:
        topic = self._chance.choice(self._topics)
        change = Topic(topic.name, draw_retention(self._chance)).resource()
        self._count("changed a topic's retention")
        mask = pb.FieldMask(paths=["message_retention_duration"])
        await self._do("UpdateTopic", pb.UpdateTopicRequest(topic=change, update_mask=mask))

    async def _look(self) -> None:
        method, request = self._chance.choice(
            (
                ("GetSubscription", pb.GetSubscriptionRequest(subscription=self._one().name)),
                ("ListSubscriptions", pb.ListSubscriptionsRequest(project=PROJECT)),
                ("ListTopics", pb.ListTopicsRequest(project=PROJECT)),
                ("ListSnapshots", pb.ListSnapshotsRequest(project=PROJECT)),
                ("GetTopic", pb.GetTopicRequest(topic=self._topics[0].name)),
            )
        )
        await self._population.call("admin", method, request.SerializeToString(), request)
