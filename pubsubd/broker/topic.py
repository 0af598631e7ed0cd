"""One topic: a log whose newest part is in memory, and the subscriptions that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsubd.broker.effects import TopicRow
from pubsubd.broker.tail import Tail
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.broker.subscription import Subscription


class Topic:
    def __init__(self, topic_id: int, resource: pb.Topic, last_id: int, deleted: bool = False) -> None:
        """`last_id`: of all messages up to it, those of this topic are in storage and not in the tail."""
        self.topic_id = topic_id
        self.resource = resource
        self.deleted = deleted
        self.last_id = last_id
        self.tail = Tail(last_id)
        self.subscriptions: dict[int, Subscription] = {}  # those that may be owed messages: not detached
        self.referrers: dict[int, Subscription] = {}  # all whose Subscription.topic this is

    @property
    def name(self) -> str:
        name: str = self.resource.name
        return name

    def row(self) -> TopicRow:
        data: bytes = self.resource.SerializeToString()
        return TopicRow(self.topic_id, self.name, self.deleted, data)

    def unneeded_through(self) -> int:
        """Messages up to this id are needed by no subscription."""
        return min(
            (subscription.low_water() - 1 for subscription in self.subscriptions.values()),
            default=self.last_id,
        )
