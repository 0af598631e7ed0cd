"""What a subscription owes its clients, as plainly as it can be said: one record per message.

It is written from the rules of the service, not from the broker: it has no cursor, no queue, no heap, no
cache and no operation log. Everything is found by looking at every message.

Whatever names a lease judges it by its deadline, at once. That a lease which ran out also hands its message
back is an event of its own, `lapse`, which the server's timer brings about a little later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

SECOND = 1_000_000

Attributes = Mapping[str, str]

# The filters that subscriptions here have, and what they mean.
FILTERS: dict[str, Callable[[Attributes], bool]] = {
    "": lambda attributes: True,
    'attributes.color = "red"': lambda attributes: attributes.get("color") == "red",
    "NOT attributes:color": lambda attributes: "color" not in attributes,
    'hasPrefix(attributes.color, "r") OR attributes:size': lambda attributes: (
        attributes.get("color", "").startswith("r") or "size" in attributes
    ),
}


class Is(Enum):
    """Where a message stands on a subscription."""

    UNSENT = 0
    LEASED = 1
    WAITING = 2  # it was delivered, and will be delivered again
    DONE = 3


class End(Enum):
    """How one delivery of a message ended."""

    LAPSED = 0
    NACKED = 1
    ACKED = 2
    RESET = 3  # an earlier message of its ordering key failed
    PURGED = 4  # a seek or the end of its retention finished the message
    FORWARDED = 5


class Answer(Enum):
    """What a client hears of an ack id that is refused."""

    PERMANENT = 0
    TRANSIENT = 1


class Id(NamedTuple):
    """What an ack id names."""

    sub_id: int
    message_id: int
    generation: int


class Post(NamedTuple):
    """A message as it was published."""

    publish_us: int
    key: str
    attributes: Attributes
    data: bytes


@dataclass
class Log:
    """One topic, from its creation on."""

    topic_id: int
    name: str
    kept_us: int = 0  # Topic.message_retention_duration
    deleted: bool = False
    posts: dict[int, Post] = field(default_factory=dict)
    since_id: int = 0  # it keeps what was published after this, for it kept nothing before
    lost_us: int = 0  # and once it kept only what was published since then

    def copy(self) -> Log:
        twin = copy(self)
        twin.posts = dict(self.posts)
        return twin

    def keep(self, kept_us: int, now_us: int) -> None:
        if not self.kept_us:
            self.since_id = max(self.posts, default=0)
        self.lost_us = max(self.lost_us, now_us - (self.kept_us or kept_us))
        self.kept_us = kept_us

    def covers(self, message_id: int, now_us: int) -> bool:
        """Whether the topic itself keeps it, be it finished or not."""
        age_us = now_us - self.posts[message_id].publish_us
        return message_id > self.since_id and 0 < self.kept_us >= age_us and not self.deleted

    def has_kept(self, message_id: int, now_us: int) -> bool:
        return self.covers(message_id, now_us) and self.posts[message_id].publish_us >= self.lost_us


@dataclass
class Message:
    """One message on one subscription that is interested in it."""

    status: Is = Is.UNSENT
    generation: int = 0  # of its last delivery
    attempt: int = 1  # of the delivery under way, or of the next one
    unseen: int = 0  # failures that do not count, for there was no dead letter policy
    deadline_us: int = 0
    delivered_us: int = 0
    size: int = 0
    ack_id: str = ""
    holder: Any = None  # the stream whose window it fills
    named: bool = False
    ready_us: int = 0  # it waits, and not before this moment is over it goes on
    collateral: bool = False  # until then its client may still work on it
    forwarding: bool = False  # it failed for the last time, and goes to the dead letter topic
    stream: Any = None  # who got it last, and under which client_id
    client_name: str = ""
    by_pull: bool = False
    stayed: bool = False  # its lease was running when the subscription was set to another point
    ends: Mapping[int, End] = field(default_factory=dict)  # by generation
    was_sought: bool = False
    dead_through: int = 0  # a seek brought it back: generations up to here are no longer its own
    above: int = 0  # its next generation is larger than this one
    may_be_lost: bool = False  # it finished, and there was a moment since when nothing kept it

    @property
    def failures(self) -> int:
        """As clients count them."""
        return self.attempt - 1 - self.unseen

    def ended(self, end: End) -> None:
        self.ends = {**self.ends, self.generation: end}

    def finish(self) -> None:
        self.status, self.holder, self.unseen = Is.DONE, None, 0
        self.forwarding = self.collateral = self.may_be_lost = False

    def purge(self) -> None:
        """A seek, or the end of its retention, finishes it."""
        if self.status is Is.LEASED or self.ends.get(self.generation) is not End.NACKED:
            self.ended(End.PURGED)
        self.finish()

    def restore(self, above: int) -> None:
        """A seek brings it back after it had finished."""
        self.status, self.attempt, self.unseen, self.ready_us = Is.UNSENT, 1, 0, 0
        self.dead_through, self.above = self.generation, above
        self.was_sought = True


@dataclass
class Snap:
    """A snapshot: what was owed when it was taken, and everything that comes later."""

    name: str
    topic_id: int
    ordered: bool
    owed: frozenset[int]
    last_id: int
    created_us: int
    expire_us: int
    expire_us_max: int


@dataclass
class Sub:
    sub_id: int
    name: str
    topic_id: int
    model: Model
    exactly_once: bool
    start_id: int = 0  # messages with larger ids are its own
    ordered: bool = False
    filter: str = ""
    kept_us: int = 0  # Subscription.message_retention_duration
    retains: bool = False  # Subscription.retain_acked_messages
    retry: tuple[int, int] | None = None  # shortest and longest delay
    dead: tuple[str, int] | None = None  # dead letter topic, and after how many failures
    ttl_us: int | None = None
    active_us: int = 0
    detached: bool = False
    generation_max: int = 0
    sought_snapshot: bool = False
    messages: dict[int, Message] = field(default_factory=dict)

    def copy(self, model: Model) -> Sub:
        twin = copy(self)
        twin.model = model
        twin.messages = {message_id: copy(message) for message_id, message in self.messages.items()}
        return twin

    # -- what it is ----------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        return self.model.logs[self.topic_id]

    @property
    def _topic_kept_us(self) -> int:
        return 0 if self.log.deleted else self.log.kept_us

    @property
    def unacked_kept_us(self) -> int:
        return max(self.kept_us, self._topic_kept_us)

    def may_come_back(self, message_id: int, now_us: int) -> bool:
        """Whether a seek to the past may bring it back though it is finished."""
        is_own = self.retains and message_id > self.start_id
        age_us = now_us - self.log.posts[message_id].publish_us
        return (is_own and age_us <= self.kept_us) or self.log.covers(message_id, now_us)

    @property
    def acked_kept_us(self) -> int:
        return max(self.kept_us if self.retains else 0, self._topic_kept_us)

    def those(self, *statuses: Is) -> dict[int, Message]:
        return {number: message for number, message in self.messages.items() if message.status in statuses}

    @property
    def open(self) -> dict[int, Message]:
        return self.those(Is.UNSENT, Is.LEASED, Is.WAITING)

    def held_by(self, holder: Any) -> list[Message]:
        return [message for message in self.those(Is.LEASED).values() if message.holder is holder]

    def key_of(self, message_id: int) -> str:
        return self.log.posts[message_id].key if self.ordered else ""

    def _of_key(self, key: str) -> Iterator[tuple[int, Message]]:
        posts = self.log.posts
        return ((number, message) for number, message in self.open.items() if posts[number].key == key)

    def is_dead(self, message: Message) -> bool:
        """Whether it goes to the dead letter topic instead of to a client."""
        if self.dead is None:
            return False
        topic, failures_max = self.dead
        return topic in self.model.topics and message.failures >= failures_max

    def past_retention(self, message_id: int, now_us: int) -> bool:
        return self.log.posts[message_id].publish_us + self.unacked_kept_us < now_us

    def oldest_us(self, now_us: int) -> int:
        """When the oldest message was published that is owed; 0 without one."""
        owed = [
            number
            for number, message in self.open.items()
            if message.status is Is.LEASED or not self.past_retention(number, now_us)
        ]
        return self.log.posts[min(owed)].publish_us if owed else 0

    # -- deliveries ----------------------------------------------------------------------------------------

    def objection(
        self, message_id: int, consumer: Any, is_open: Callable[[Any], bool], now_us: int
    ) -> str | None:
        """Why `consumer` must not get the message now."""
        message = self.messages[message_id]
        if message.status in (Is.LEASED, Is.DONE):
            return f"it is {message.status.name}"
        if self.past_retention(message_id, now_us):
            return "it is past its retention"
        if message.status is Is.WAITING and now_us <= message.ready_us:
            return "it rests"
        if self.is_dead(message):
            return "it goes to the dead letter topic"
        key = self.key_of(message_id)
        return self._objection_of_key(key, message_id, consumer, is_open, now_us) if key else None

    def _objection_of_key(
        self, key: str, message_id: int, consumer: Any, is_open: Callable[[Any], bool], now_us: int
    ) -> str | None:
        for number, other in self._of_key(key):
            if number < message_id and other.status is not Is.LEASED:
                return f"{number} of its key comes first"
            if number > message_id and other.status is Is.LEASED:
                return f"{number} of its key is outstanding, and later"
        busy = self.busy(key, now_us)
        if all(message.stream is consumer for message in busy):
            return None
        # A lease whose ack failed with its commit counts against no stream any more.
        known = [one for one in busy if one.holder is not None or one.status is Is.WAITING]
        there = [one for one in known if one.stream is not None and is_open(one.stream)]
        if there:
            return None if all(one.stream is consumer for one in there) else "its key is elsewhere"
        if consumer.name and not consumer.once and all(one.client_name == consumer.name for one in busy):
            return None
        return "its key is held"

    def busy(self, key: str, now_us: int, pulls: bool = False) -> list[Message]:
        """Messages of `key` on which a client may be at work."""
        return [
            message
            for _, message in self._of_key(key)
            if message.status is Is.LEASED
            # A Pull is over, and nobody says who comes next.
            or (message.collateral and now_us <= message.ready_us and (pulls or not message.by_pull))
        ]

    # -- leases that end -----------------------------------------------------------------------------------

    def lapse(self, now_us: int) -> None:
        """The server looks: leases that ran out are over."""
        leased = self.those(Is.LEASED)
        over = {number: message for number, message in leased.items() if message.deadline_us < now_us}
        self._fail(over, End.LAPSED, now_us)

    def release(self, holder: Any, now_us: int) -> None:
        """Its stream ended; the caller knows that the client confirms receipt."""
        if self.exactly_once:
            return
        unseen = {
            number: message
            for number, message in self.those(Is.LEASED).items()
            if message.holder is holder and not message.named and now_us <= message.deadline_us
        }
        self._fail(unseen, End.LAPSED, now_us, counts=False)

    def _fail(self, messages: Mapping[int, Message], end: End, now_us: int, counts: bool = True) -> None:
        behind = self._behind(messages)
        for message in messages.values():
            message.ended(end)
            message.status, message.holder, message.named, message.ready_us = Is.WAITING, None, False, 0
            message.attempt += counts
            if counts and self.is_dead(message):
                message.forwarding = True
            elif counts and self.retry is not None:
                shortest, longest = self.retry
                delay_us = min(longest, shortest * 2 ** (message.attempt - 2)) if shortest else 0
                message.ready_us = min(now_us, message.deadline_us) + delay_us if delay_us else 0
        for message in behind:
            message.ended(End.RESET)
            message.status, message.holder, message.named = Is.WAITING, None, False
            message.collateral = self.exactly_once
            message.ready_us = message.deadline_us if self.exactly_once else 0

    def _behind(self, messages: Iterable[int]) -> list[Message]:
        """Outstanding messages that come after one of `messages` in its ordering key."""
        firsts: dict[str, int] = {}
        for message_id in messages:
            key = self.key_of(message_id)
            if key:
                firsts[key] = min(firsts.get(key, message_id), message_id)
        return [
            message
            for key, first in firsts.items()
            for number, message in self._of_key(key)
            if number > first and message.status is Is.LEASED and number not in set(messages)
        ]

    # -- ack ids -------------------------------------------------------------------------------------------

    def operate(
        self, seconds: int | None, ack_ids: Iterable[str], known: dict[str, Id], now_us: int
    ) -> dict[str, Answer] | None:
        """Ack (`seconds` is None), extend or nack (0). The ids that are refused; None: all is."""
        named = list(dict.fromkeys(ack_ids))
        ours = {
            ack_id: known[ack_id]
            for ack_id in named
            if ack_id in known and known[ack_id].sub_id == self.sub_id
        }
        if not self.exactly_once and len(ours) < len(named):
            return None
        leases = {
            message.ack_id: (number, message)
            for number, message in self.those(Is.LEASED).items()
            if now_us <= message.deadline_us
        }
        running = dict([leases[ack_id] for ack_id in named if ack_id in leases])
        refused: dict[str, Answer] = {}
        if seconds is None and self.exactly_once:
            for ahead in self._ahead(running):
                refused[running.pop(ahead).ack_id] = Answer.TRANSIENT
        others = [ack_id for ack_id in named if ack_id not in leases]
        if seconds == 0:  # what is said of an id is so before others are nacked by the same request
            refused |= self._judge(seconds, others, ours, now_us)
        self._apply(seconds, running, now_us)
        if seconds != 0:
            refused |= self._judge(seconds, others, ours, now_us)
        return refused

    def _ahead(self, acked: Mapping[int, Message]) -> list[int]:
        """Of the messages to ack, those with an earlier one of their key that is not finished after it."""
        return [
            message_id
            for message_id, message in acked.items()
            if (key := self.key_of(message_id))
            and any(
                number < message_id
                and number not in acked
                # Leases that were running at a seek end before what the seek brought back is delivered.
                and (other.status is Is.LEASED or not message.stayed)
                for number, other in self._of_key(key)
            )
        ]

    def _apply(self, seconds: int | None, messages: Mapping[int, Message], now_us: int) -> None:
        if seconds is None:
            for message in messages.values():
                message.ended(End.ACKED)
                message.finish()
        elif seconds:
            for message in messages.values():
                self._extend(message, seconds, now_us)
        else:
            self._fail(messages, End.NACKED, now_us)

    def _extend(self, message: Message, seconds: int, now_us: int) -> None:
        message.deadline_us = now_us + seconds * SECOND
        is_receipt = not message.named and now_us - message.delivered_us <= 2 * SECOND
        if message.holder is not None and is_receipt:
            message.holder.shell.confirms = True
        message.named = True

    def _judge(
        self, seconds: int | None, ack_ids: Iterable[str], names: Mapping[str, Id], now_us: int
    ) -> dict[str, Answer]:
        return {
            ack_id: Answer.PERMANENT
            for ack_id in ack_ids
            if not self._accepts(seconds, names.get(ack_id), now_us)
        }

    def _accepts(self, seconds: int | None, name: Id | None, now_us: int) -> bool:
        """Whether an id whose lease does not run is answered OK; what it does nevertheless is done here."""
        if not self.exactly_once:
            assert name is not None
            if seconds is None:
                self._ack_late(name)
            return True
        if name is None or self.detached:
            return False
        message = self.messages[name.message_id]
        if name.generation <= message.dead_through:
            return False
        end = message.ends.get(name.generation)
        if end is End.RESET and seconds == 0 and message.collateral and now_us <= message.ready_us:
            message.ended(End.NACKED)
            message.collateral, message.ready_us = False, 0
            return True
        if end is End.ACKED:
            return seconds != 0
        if end is End.PURGED:
            return seconds is None
        return end is End.NACKED and seconds == 0

    def _ack_late(self, name: Id) -> None:
        """Without exactly-once an ack counts after its lease, too, unless a seek has said otherwise."""
        message = self.messages.get(name.message_id)
        if message is None or message.status is Is.DONE or name.generation <= message.dead_through:
            return
        message.ends = {**message.ends, name.generation: End.ACKED}
        message.finish()

    # -- what else happens ---------------------------------------------------------------------------------

    def published(self, message_id: int, post: Post) -> None:
        if not self.detached and FILTERS[self.filter](post.attributes):
            self.messages[message_id] = Message()

    def detach(self) -> None:
        self.detached = True
        self.messages.clear()

    def forwarded(self, message_id: int) -> None:
        message = self.messages[message_id]
        message.ends = {
            number: end if end is End.NACKED else End.FORWARDED for number, end in message.ends.items()
        }
        message.finish()

    def drop_before(self, cut_us: int) -> None:
        """The end of retention: what is not leased, and was published before, is gone."""
        posts = self.log.posts
        for number, message in self.those(Is.UNSENT, Is.WAITING).items():
            if posts[number].publish_us < cut_us:
                message.purge()

    def note_losses(self, now_us: int) -> None:
        """Settings are about to change, or have: what is finished and not kept may be gone from now on."""
        for number, message in self.those(Is.DONE).items():
            if not self.may_come_back(number, now_us):
                message.may_be_lost = True

    def set_dead_letters(self, dead: tuple[str, int] | None) -> None:
        before, self.dead = self.dead, dead
        if dead is not None and before is None:
            for message in self.those(Is.LEASED, Is.WAITING).values():
                message.unseen = message.attempt - 1
        if dead is None:
            for message in self.messages.values():
                message.forwarding, message.unseen = False, 0

    # -- seek ----------------------------------------------------------------------------------------------

    def seek_to_time(self, target_us: int, kept: Callable[[int], bool]) -> None:
        """What is finished, and is kept, comes back if it was published since then."""
        posts, above = self.log.posts, self.generation_max
        for number, message in self.messages.items():
            publish_us = posts[number].publish_us
            if message.status is Is.DONE:
                if publish_us >= target_us and kept(number):
                    message.restore(above)
            elif publish_us < target_us:
                message.purge()
            else:
                self._stays(message)

    def seek_to_snapshot(self, snapshot: Snap) -> None:
        self.sought_snapshot = True
        above = self.generation_max
        for number, message in self.messages.items():
            if number in snapshot.owed or number > snapshot.last_id:
                if message.status is Is.DONE:
                    message.restore(above)
                else:
                    self._stays(message)
            elif message.status is not Is.DONE:
                message.purge()

    def _stays(self, message: Message) -> None:
        message.stayed = message.was_sought = True
        if message.status is Is.WAITING and not message.collateral:
            message.ready_us = 0


@dataclass
class Model:
    topics: dict[str, Log] = field(default_factory=dict)  # by name, those that are not deleted
    logs: dict[int, Log] = field(default_factory=dict)  # all
    subs: dict[str, Sub] = field(default_factory=dict)
    snapshots: dict[str, Snap] = field(default_factory=dict)

    def copy(self) -> Model:
        model = Model()
        model.logs = {topic_id: log.copy() for topic_id, log in self.logs.items()}
        model.topics = {name: model.logs[log.topic_id] for name, log in self.topics.items()}
        model.subs = {name: sub.copy(model) for name, sub in self.subs.items()}
        model.snapshots = {name: copy(snapshot) for name, snapshot in self.snapshots.items()}
        return model

    def after_failure(self, discarded: Model) -> Model:
        """What was committed, with the holders that `discarded`, which was not, knows for leases of both."""
        model = self.copy()
        for name, sub in model.subs.items():
            before = discarded.subs.get(name)
            there = before.messages if before is not None and before.sub_id == sub.sub_id else {}
            for message_id, message in sub.those(Is.LEASED).items():
                other = there.get(message_id)
                same = other is not None and other.status is Is.LEASED and other.ack_id == message.ack_id
                if other is not None and other.ends.get(message.generation) in (End.RESET, End.PURGED):
                    continue  # its client was not done with it, and has it again
                message.holder = other.holder if same and other is not None else None
                message.named = bool(same and other is not None and other.holder is not None and other.named)
        return model

    def after_crash(self) -> Model:
        model = self.copy()
        for sub in model.subs.values():
            for message in sub.messages.values():
                message.holder, message.named, message.stream = None, False, None
        return model

    def create_topic(self, topic_id: int, name: str, kept_us: int) -> None:
        self.topics[name] = self.logs[topic_id] = Log(topic_id, name, kept_us)

    def keep_topic(self, name: str, kept_us: int, now_us: int) -> None:
        log = self.topics[name]
        self.note_losses(log, now_us)
        log.keep(kept_us, now_us)
        self.note_losses(log, now_us)

    def delete_topic(self, name: str, now_us: int) -> None:
        log = self.topics.pop(name)
        self.note_losses(log, now_us)
        log.deleted = True
        self.note_losses(log, now_us)
        for sub in self.subs.values():
            if sub.dead is not None and sub.dead[0] == name:
                for message in sub.messages.values():
                    message.forwarding = False

    def note_losses(self, log: Log, now_us: int) -> None:
        for sub in self.subs.values():
            if sub.topic_id == log.topic_id:
                sub.note_losses(now_us)

    def create_sub(self, sub: Sub, now_us: int) -> None:
        self.subs[sub.name] = sub
        log = sub.log
        for message_id, post in log.posts.items():
            if FILTERS[sub.filter](post.attributes):
                kept = log.has_kept(message_id, now_us)
                sub.messages[message_id] = Message(status=Is.DONE, may_be_lost=not kept)

    def publish(self, log: Log, posts: Mapping[int, Post]) -> None:
        log.posts.update(posts)
        for sub in self.subs.values():
            if sub.topic_id == log.topic_id:
                for message_id, post in posts.items():
                    sub.published(message_id, post)

    def take_snapshot(self, name: str, sub: Sub, last_id: int, now_us: int, expire_us: int) -> None:
        self.snapshots[name] = Snap(
            name, sub.topic_id, sub.ordered, frozenset(sub.open), last_id, now_us, expire_us, expire_us
        )
