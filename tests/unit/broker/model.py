"""What a subscription owes its clients, as plainly as it can be said: one record per message.

It is written from the rules of the service, not from the broker: it has no cursor, no heap, no cache and no
operation log. A lease that ran out is over at once, whether or not anybody looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

SECOND = 1_000_000


class Is(Enum):
    UNSENT = 0
    LEASED = 1
    WAITING = 2
    DONE = 3


class Id(NamedTuple):
    """What an ack id names."""

    sub_id: int
    message_id: int
    generation: int


@dataclass
class Message:
    status: Is = Is.UNSENT
    generation: int = 0
    attempt: int = 1  # of the delivery under way, or of the next one
    deadline_us: int = 0
    delivered_us: int = 0
    size: int = 0
    ack_id: str = ""
    holder: Any = None
    named: bool = False
    acked_by: int = 0
    nacked: frozenset[int] = frozenset()

    def give_back(self, counts: bool) -> None:
        self.status, self.holder, self.named = Is.WAITING, None, False
        self.attempt += counts


@dataclass
class Sub:
    sub_id: int
    name: str
    topic_id: int
    exactly_once: bool
    detached: bool = False
    messages: dict[int, Message] = field(default_factory=dict)

    def copy(self) -> Sub:
        twin = copy(self)
        twin.messages = {message_id: copy(message) for message_id, message in self.messages.items()}
        return twin

    def those(self, *statuses: Is) -> dict[int, Message]:
        return {number: message for number, message in self.messages.items() if message.status in statuses}

    def held_by(self, holder: Any) -> list[Message]:
        return [message for message in self.those(Is.LEASED).values() if message.holder is holder]

    @property
    def owed(self) -> int:
        return len(self.messages) - len(self.those(Is.DONE))

    # -- what happens --------------------------------------------------------------------------------------

    def lapse(self, now_us: int) -> None:
        for message in self.messages.values():
            if message.status is Is.LEASED and message.deadline_us < now_us:
                message.give_back(counts=True)

    def detach(self) -> None:
        self.detached = True
        self.messages.clear()

    def release(self, holder: Any) -> None:
        """Its stream ended; the caller knows that the client confirms receipt."""
        if not self.exactly_once:
            for message in self.held_by(holder):
                if not message.named:
                    message.give_back(counts=False)

    def operate(
        self, seconds: int | None, ack_ids: Iterable[str], known: dict[str, Id], now_us: int
    ) -> list[str] | None:
        """Ack (`seconds` is None), extend or nack (0). The ids that are refused; None: all is."""
        self.lapse(now_us)
        named = list(dict.fromkeys(ack_ids))
        ours = {
            ack_id: known[ack_id]
            for ack_id in named
            if ack_id in known and known[ack_id].sub_id == self.sub_id
        }
        if not self.exactly_once and len(ours) < len(named):
            return None
        running = {message.ack_id: message for message in self.those(Is.LEASED).values()}
        for ack_id in named:
            if ack_id in running:
                self._apply(seconds, running[ack_id], now_us)
        return [
            ack_id
            for ack_id in named
            if ack_id not in running and not self._accepts(seconds, ours.get(ack_id))
        ]

    def _apply(self, seconds: int | None, message: Message, now_us: int) -> None:
        if seconds is None:
            message.status, message.holder, message.acked_by = Is.DONE, None, message.generation
        elif seconds:
            message.deadline_us = now_us + seconds * SECOND
            if (
                message.holder is not None
                and not message.named
                and now_us - message.delivered_us <= 2 * SECOND
            ):
                message.holder.shell.confirms = True
            message.named = True
        else:
            message.nacked |= {message.generation}
            message.give_back(counts=True)

    def _accepts(self, seconds: int | None, name: Id | None) -> bool:
        """Whether an id whose lease does not run is answered OK; what a late ack does is done here."""
        if not self.exactly_once:
            assert name is not None
            message = self.messages.get(name.message_id)
            if seconds is None and message is not None and message.status is not Is.DONE:
                message.status, message.holder, message.acked_by = Is.DONE, None, name.generation
            return True
        if name is None or self.detached:
            return False
        message = self.messages[name.message_id]
        if message.acked_by == name.generation:
            return seconds != 0
        return seconds == 0 and name.generation in message.nacked


@dataclass
class Model:
    topics: dict[str, int] = field(default_factory=dict)  # name: incarnation, of those that are not deleted
    subs: dict[str, Sub] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(dict(self.topics), {name: sub.copy() for name, sub in self.subs.items()})

    def after_failure(self, discarded: Model) -> Model:
        """What was committed, with the holders that `discarded`, which was not, knows for leases of both."""
        model = self.copy()
        for name, sub in model.subs.items():
            before = discarded.subs.get(name)
            there = before.messages if before is not None and before.sub_id == sub.sub_id else {}
            for message_id, message in sub.those(Is.LEASED).items():
                other = there.get(message_id)
                same = other is not None and other.status is Is.LEASED and other.ack_id == message.ack_id
                message.holder = other.holder if same and other is not None else None
                message.named = bool(same and other is not None and other.holder is not None and other.named)
        return model

    def after_crash(self) -> Model:
        model = self.copy()
        for sub in model.subs.values():
            for message in sub.messages.values():
                message.holder, message.named = None, False
        return model

    def publish(self, topic: str, message_ids: Sequence[int]) -> None:
        topic_id = self.topics[topic]
        for sub in self.subs.values():
            if sub.topic_id == topic_id and not sub.detached:
                sub.messages.update({message_id: Message() for message_id in message_ids})
