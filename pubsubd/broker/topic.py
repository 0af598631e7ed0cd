"""One topic: a log whose newest part is in memory, and those who follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsubd.broker.effects import TopicRow, Trim
from pubsubd.broker.tail import Tail
from pubsubd.model import limits, retention
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.broker.snapshot import Snapshot
    from pubsubd.broker.subscription import Subscription

_ANY_TIME_US = 2**62


class Topic:
    def __init__(
        self, topic_id: int, resource: pb.Topic, floor_id: int, last_id: int, deleted: bool = False
    ) -> None:
        """`floor_id`: of all messages up to it, those of this topic are in storage and not in the tail."""
        self.topic_id = topic_id
        self.resource = resource
        self.deleted = deleted
        self.last_id = last_id
        self.tail = Tail(floor_id)
        self.subscriptions: dict[int, Subscription] = {}  # those that may be owed messages: not detached
        self.referrers: dict[int, Subscription] = {}  # all whose Subscription.topic this is
        self.snapshots: dict[int, Snapshot] = {}
        self.timer_us: int | None = None
        self.own_kept_us = 0  # how long it keeps every message after its publication; 0: not at all
        self.kept_us = 0  # the same, of finished messages, for it and for its subscriptions
        # What storage was told to remove may be there or not: messages up to this id; and, where acked
        # messages were kept for a time, those published before this moment.
        self.trimmed_id = 0
        self.trimmed_us = 0
        # Its retention was switched on after this message, and does not bring back what was before.
        self.retained_id = 0
        self._trim_at_us: int | None = None

    @property
    def name(self) -> str:
        name: str = self.resource.name
        return name

    @property
    def is_stored(self) -> bool:
        """Whether anybody can ever ask for what is published to it."""
        return bool(self.subscriptions or self.snapshots or self.own_kept_us)

    def row(self) -> TopicRow:
        data: bytes = self.resource.SerializeToString()
        return TopicRow(self.topic_id, self.name, self.deleted, data)

    def configure(self) -> None:
        """The resource changed, or those who follow it, or what they ask for."""
        self.own_kept_us = retention.topic_kept_us(None if self.deleted else self.resource)
        self.kept_us = max([self.own_kept_us, *[one.acked_kept_us for one in self.subscriptions.values()]])

    def trim(self, now_us: int) -> Trim:
        """What nobody needs any more, at `now_us`."""
        self._trim_at_us = None
        low = [one.low_water() for one in self.subscriptions.values()]
        low += [one.low_water() for one in self.snapshots.values()]
        through_id = min(low, default=self.last_id + 1) - 1
        kept_us = self.kept_us
        if not kept_us:
            self.trimmed_id = max(self.trimmed_id, through_id)
            return Trim(through_id, _ANY_TIME_US)
        self.trimmed_us = max(self.trimmed_us, now_us - kept_us)
        return Trim(through_id, now_us - kept_us)

    def trimmed(self, oldest_us: int | None, now_us: int) -> None:
        """Storage has removed what it was told to; `oldest_us` is the end of the oldest row left."""
        kept_us = self.kept_us
        # What is kept though its time is over waits for those who need it, and they will say so.
        if kept_us and oldest_us is not None and oldest_us + kept_us >= now_us:
            at_us = max(oldest_us + kept_us, now_us + limits.RETENTION_STEP_US)
            self._trim_at_us = at_us if self._trim_at_us is None else min(at_us, self._trim_at_us)

    def trim_soon(self, now_us: int) -> None:
        """Something has finished."""
        at_us = now_us + limits.TRIM_AFTER_US
        if self._trim_at_us is None or at_us < self._trim_at_us:
            self._trim_at_us = at_us

    def published(self, now_us: int) -> None:
        """The first message after a silence: nothing else will ask for its removal."""
        if self.kept_us and self._trim_at_us is None:
            self._trim_at_us = now_us + self.kept_us

    def next_event_us(self) -> int | None:
        return self._trim_at_us
