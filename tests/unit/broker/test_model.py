"""The broker against a plain model: any commands in any order, commits that fail, and kills at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pubsubd.broker import tail
from pubsubd.broker.broker import Broker
from pubsubd.broker.clients import Clients
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, Effects
from pubsubd.broker.entry import unpack_chunk
from pubsubd.broker.questions import ReadTimes
from pubsubd.broker.subscription import Refusal, Subscription
from pubsubd.eod import lease as lease_module
from pubsubd.eod.ack_id import AckIds
from pubsubd.journal.record import Row, unpack
from pubsubd.model import errors, limits
from pubsubd.model.events import Event, Kind, Result
from pubsubd.wire import pb
from tests.unit.broker.model import Id, Is, Model, Sub
from tests.unit.broker.world import SECOND, Shell, World, answer_read, answered, check, restored, states
from tests.unit.eod.hypothesis_settings import QUICK, THOROUGH

TOPICS = ["projects/p/topics/orders", "projects/p/topics/invoices"]
SUBSCRIPTIONS = [f"projects/p/subscriptions/{name}" for name in ("billing", "audit", "mail")]

# Small, so that a few messages pass every bound.
SMALL = {
    "TAIL_BYTES_MAX": 300,
    "CHUNK_BYTES_MAX": 120,
    "READ_BYTES_MAX": 150,
    "READ_MESSAGES_MAX": 3,
    "READ_AHEAD_MESSAGES_MIN": 4,
    "RESPONSE_BYTES_MAX": 400,
    "PUMP_BYTES_MAX": 700,
    "RESTING_SUBSCRIPTIONS_MAX": 1,
    "TRIM_MESSAGES_MIN": 2,
    # What is forgotten has tests of its own; here the histories are longer than it takes.
    "ENDING_KEPT_US": 10**15,
}


class Chance(Protocol):
    """Who decides what happens next: hypothesis, which looks for simple failures, or a seeded generator."""

    def one(self, these: Sequence[Any]) -> Any: ...

    def some(self, these: Sequence[Any], least: int, most: int) -> list[Any]:
        """`least` to `most` of them, and any of them more than once."""


class Drawn(NamedTuple):
    draw: Callable[[st.SearchStrategy[Any]], Any]

    def one(self, these: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(these))

    def some(self, these: Sequence[Any], least: int, most: int) -> list[Any]:
        return list(self.draw(st.lists(st.sampled_from(these), min_size=least, max_size=most)))


class Seeded(NamedTuple):
    random: Random

    def one(self, these: Sequence[Any]) -> Any:
        return self.random.choice(these)

    def some(self, these: Sequence[Any], least: int, most: int) -> list[Any]:
        return self.random.choices(these, k=self.random.randint(least, most))


class StreamShell(Shell):
    """Also what the model has to know of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.confirms = False
        self.half_closed = False
        self.once = False


# How often what happens. One rule that draws from this list, instead of a rule for each: hypothesis leaves
# rules out by chance, and without streams, commits and acks together there is little to see.
STEPS = (
    ["operate", "publish"] * 40
    + ["begin", "set_ready"] * 30
    + ["settle", "turn"] * 20
    + ["open_stream", "operate_on_stream", "pass_time", "storage_answers"] * 10
    + ["pull", "create_subscription", "create_topic"] * 6
    + ["fail", "fail_twice", "kill", "close_stream", "half_close", "switch", "delete_subscription"] * 3
    + ["give_up_pull", "delete_topic", "detach_subscription"]
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Model()
        self.committed = Model()
        self.flying_model = Model()
        self.said: dict[str, Id] = {}  # ack ids that clients have
        self.made: set[str] = set()
        self.streams: list[Consumer] = []
        self.pulls: list[Consumer] = []
        self.audit = Audit()
        self.audited_rows = 0

    @property
    def broker(self) -> Broker:
        return self.world.broker

    @initialize(exactly_once=st.booleans(), names=st.permutations(SUBSCRIPTIONS))
    def begin_with_a_backlog(self, exactly_once: bool, names: list[str]) -> None:
        # Soon client numbers, and with them ack ids, get longer.
        self.broker._clients = Clients(2**16 - 4)
        self.world.create_topic(TOPICS[0])
        self.model.topics[TOPICS[0]] = self.broker._topics[TOPICS[0]].topic_id
        self._create_subscription(names[0], TOPICS[0], exactly_once)
        self._create_subscription(names[1], TOPICS[0], not exactly_once)
        self._publish(TOPICS[0], [1, 40, 300, 1, 1])
        self._open_stream(names[0], 10, 0, 0)
        self._turn()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        chance = Drawn(data.draw)
        getattr(self, chance.one(STEPS))(chance)

    # -- resources -----------------------------------------------------------------------------------------

    def create_topic(self, chance: Chance) -> None:
        name = chance.one(TOPICS)
        if name in self.model.topics:
            with pytest.raises(errors.AlreadyExists):
                self.world.create_topic(name)
            return
        self.world.create_topic(name)
        self.model.topics[name] = self.broker._topics[name].topic_id

    def delete_topic(self, chance: Chance) -> None:
        name = chance.one(TOPICS)
        request = pb.DeleteTopicRequest(topic=name)
        if name not in self.model.topics:
            with pytest.raises(errors.NotFound):
                self.broker.delete_topic(request, self.world.now_us)
            return
        self.broker.delete_topic(request, self.world.now_us)
        del self.model.topics[name]

    def create_subscription(self, chance: Chance) -> None:
        name, topic = chance.one(SUBSCRIPTIONS), chance.one(TOPICS)
        if name in self.model.subs or topic not in self.model.topics:
            with pytest.raises((errors.AlreadyExists, errors.NotFound)):
                self.world.create_subscription(name, topic)
            return
        self._create_subscription(name, topic, chance.one([False, True]))

    def _create_subscription(self, name: str, topic: str, exactly_once: bool) -> None:
        made = self.world.create_subscription(name, topic, exactly_once)
        assert made.sub_id not in [sub.sub_id for sub in self.model.subs.values()]
        self.model.subs[name] = Sub(made.sub_id, name, self.model.topics[topic], exactly_once)

    def delete_subscription(self, chance: Chance) -> None:
        """Rather one that gets nothing any more, or histories would run dry."""
        live = self.model.topics.values()
        dry = [name for name, sub in self.model.subs.items() if sub.detached or sub.topic_id not in live]
        name = chance.one(dry * 9 + SUBSCRIPTIONS)
        request = pb.DeleteSubscriptionRequest(subscription=name)
        if name not in self.model.subs:
            with pytest.raises(errors.NotFound):
                self.broker.delete_subscription(request, self.world.now_us)
            return
        self.broker.delete_subscription(request, self.world.now_us)
        del self.model.subs[name]

    def detach_subscription(self, chance: Chance) -> None:
        name = chance.one(SUBSCRIPTIONS)
        sub = self.model.subs.get(name)
        request = pb.DetachSubscriptionRequest(subscription=name)
        if sub is None or sub.detached or sub.topic_id not in self.model.topics.values():
            with pytest.raises((errors.FailedPrecondition, errors.NotFound)):
                self.broker.detach_subscription(request, self.world.now_us)
            return
        self.broker.detach_subscription(request, self.world.now_us)
        sub.detach()

    def switch(self, chance: Chance) -> None:
        name, exactly_once = chance.one(SUBSCRIPTIONS), chance.one([False, True])
        if name in self.model.subs:
            self.world.switch(exactly_once, name)
            self.model.subs[name].exactly_once = exactly_once

    def publish(self, chance: Chance) -> None:
        topic = chance.one([*self.model.topics] * 5 + TOPICS)
        sizes = chance.some([1, 1, 40, 300], 1, 5)
        if topic not in self.model.topics:
            with pytest.raises(errors.NotFound):
                self.world.publish(b"x", topic=topic)
            return
        self._publish(topic, sizes)

    def _publish(self, topic: str, sizes: Sequence[int]) -> None:
        before = self.broker.message_id
        ids = self.world.publish(*[b"x" * size for size in sizes], topic=topic)
        assert list(range(before + 1, before + 1 + len(sizes))) == ids
        self.model.publish(topic, ids)

    # -- consumers -----------------------------------------------------------------------------------------

    def _a_pullable(self, chance: Chance) -> str | None:
        names = [name for name, sub in self.model.subs.items() if not sub.detached]
        return chance.one(names) if names else None

    def open_stream(self, chance: Chance) -> None:
        name = self._a_pullable(chance)
        if name is not None and len(self.streams) < 5:
            seconds = chance.one([10, 10, 60])
            max_messages = chance.one([0, 0, 0, 1, 2, 5])
            self._open_stream(name, seconds, max_messages, chance.one([0, 0, 0, 30, 200]))

    def _open_stream(self, name: str, seconds: int, max_messages: int, max_bytes: int) -> None:
        request = pb.StreamingPullRequest(
            subscription=name,
            stream_ack_deadline_seconds=seconds,
            max_outstanding_messages=max_messages,
            max_outstanding_bytes=max_bytes,
        )
        shell = StreamShell()
        consumer = self.broker.open_stream(request, request.ByteSize(), "client", self.world.now_us, shell)
        self.streams.append(consumer)
        self.broker.set_ready(consumer)

    def pull(self, chance: Chance) -> None:
        name = self._a_pullable(chance)
        if name is not None and len(self.pulls) < 3:
            request = pb.PullRequest(subscription=name, max_messages=chance.one([1, 2, 100]))
            shell = StreamShell()
            shell.once = True
            self.pulls.append(self.broker.open_pull(request, self.world.caller(), self.world.now_us, shell))

    def set_ready(self, chance: Chance) -> None:
        for consumer in self.streams:
            if chance.one([True, True, False]):
                self.broker.set_ready(consumer)

    def half_close(self, chance: Chance) -> None:
        """A client has sent its last request, and is still there; or it goes for good."""
        for consumer in self.streams:
            if consumer.shell.half_closed:
                self._close(consumer)
                return
        if self.streams:
            consumer = chance.one(self.streams)
            consumer.shell.half_closed = True
            self.broker.stop_assigning(consumer)

    def close_stream(self, chance: Chance) -> None:
        if self.streams:
            self._close(chance.one(self.streams))

    def _close(self, consumer: Consumer) -> None:
        self.streams.remove(consumer)
        self.world.close_stream(consumer)
        sub = self._sub_of(consumer)
        if sub is not None and consumer.shell.confirms:
            sub.lapse(self.world.now_us)
            sub.release(consumer)

    def give_up_pull(self, chance: Chance) -> None:
        if self.pulls:
            self._end_pull(chance.one(self.pulls))

    def _end_pull(self, consumer: Consumer) -> None:
        self.pulls.remove(consumer)
        self.broker.close_pull(consumer)

    # -- ack ids -------------------------------------------------------------------------------------------

    def _some_ids(self, chance: Chance, sub: Sub, forged: bool) -> list[str]:
        """Ids of the subscription, mostly running ones; perhaps some that are not its own."""
        mine = [ack_id for ack_id, name in self.said.items() if name.sub_id == sub.sub_id]
        running = [message.ack_id for message in sub.those(Is.LEASED).values() if message.ack_id in self.said]
        pools = [pool for pool in (running, running, mine) if pool]
        if forged:
            other = [ack_id for ack_id, name in self.said.items() if name.sub_id != sub.sub_id]
            wrong = AckIds(b"another secret..").make([(sub.sub_id, 1, 1, 1, self.world.now_us, 1, 1)])
            altered = [ack_id[:-1] + ("A" if ack_id[-1] != "A" else "B") for ack_id in running[:1]]
            pools.append([*other, *wrong, *altered, "", "x"])
        return [chance.one(pool) for pool in chance.some(pools, 1, 4)] if pools else []

    def operate(self, chance: Chance) -> None:
        """Acknowledge or ModifyAckDeadline."""
        there = {name.sub_id for name in self.said.values()}
        names = [name for name, sub in self.model.subs.items() if sub.sub_id in there]
        if not names:
            return
        name = chance.one(names)
        sub = self.model.subs[name]
        seconds = chance.one([None, None, 0, 0, 1, 10, 10, 600])
        ack_ids = self._some_ids(chance, sub, forged=chance.one([False] * 7 + [True]))
        before = states(self.broker)
        expected = sub.operate(seconds, ack_ids, self.said, self.world.now_us)
        if expected is None:
            with pytest.raises(errors.InvalidArgument):
                self._call(name, seconds, ack_ids)
            assert before == states(self.broker)
        else:
            assert expected == self._call(name, seconds, ack_ids)

    def _call(self, name: str, seconds: int | None, ack_ids: list[str]) -> list[str]:
        if seconds is None:
            return self.world.acknowledge(ack_ids, name)
        return self.world.modify_ack_deadline(ack_ids, seconds, name)

    def operate_on_stream(self, chance: Chance) -> None:
        """Acks and extensions in one streaming request."""
        asking = [consumer for consumer in self.streams if not consumer.shell.half_closed]
        if not asking:
            return
        consumer = chance.one(asking)
        sub = self._sub_of(consumer)
        if sub is None:
            # Its subscription was deleted, or the broker was replaced; the stream is about to hear of it.
            request = pb.StreamingPullRequest(ack_ids=chance.some([*self.said, "x"], 1, 2))
            with pytest.raises((errors.NotFound, errors.Unavailable)):
                self.broker.stream_request(consumer, request, self.world.now_us)
            return
        ack_ids = self._some_ids(chance, sub, sub.exactly_once)[:3]
        moved = self._some_ids(chance, sub, sub.exactly_once)
        seconds = chance.some([0, 10, 60], len(moved), len(moved))
        request = pb.StreamingPullRequest(
            ack_ids=ack_ids, modify_deadline_ack_ids=moved, modify_deadline_seconds=seconds
        )
        now_us = self.world.now_us
        refused_acks = sub.operate(None, ack_ids, self.said, now_us)
        refused: list[str] = []
        for value in dict.fromkeys(seconds):
            same = [ack_id for ack_id, one in zip(moved, seconds, strict=True) if one == value]
            refused += sub.operate(value, same, self.said, now_us) or []

        verdict = self.broker.stream_request(consumer, request, now_us)

        assert refused_acks == named(verdict.refused_acks)
        assert refused == named(verdict.refused_extensions)

    def _sub_of(self, consumer: Consumer) -> Sub | None:
        """What the model calls the subscription that `consumer` stands on, while that is a living one."""
        subscription = consumer.subscription
        if self.broker._subscriptions.get(subscription.name) is not subscription:
            return None
        return self.model.subs[subscription.name]

    # -- time, commits and their failures ------------------------------------------------------------------

    def pass_time(self, chance: Chance) -> None:
        """Some time, or until a lease ends: to its last microsecond, or to the first one after it."""
        step = chance.one([1, 1000, SECOND, 5 * SECOND, 11 * SECOND, "at", "after"])
        if isinstance(step, int):
            self.world.advance(us=step)
            return
        leased = [message for sub in self.model.subs.values() for message in sub.those(Is.LEASED).values()]
        ahead = [message.deadline_us for message in leased if message.deadline_us >= self.world.now_us]
        if ahead:
            self.world.now_us = min(ahead) + (step == "after")

    def begin(self, chance: Chance) -> None:
        """A commit sets out; what happens until it arrives happens on top of it."""
        if self.world.flying is not None:
            self._succeed()
        else:
            self._begin(chance.one([False, False, False, True]), chance.one([0, 0, 7000]))

    def turn(self, chance: Chance) -> None:
        if self.world.flying is not None:
            self._succeed()
        self._turn(chance.one([False, False, False, True]))

    def settle(self, chance: Chance) -> None:
        """Turns and reads until nothing follows by itself: then whoever could get something has it."""
        if self.world.flying is not None:
            self._succeed()
        for _ in range(200):
            self._turn()
            while self.world.reads:
                self._answer(0)
            if not self.broker.has_work():
                break
        else:
            raise AssertionError("it does not come to rest")
        for subscription in self.broker.subscriptions():
            if any(consumer.room_messages() for consumer in subscription.ready):
                assert not self.model.subs[subscription.name].those(Is.UNSENT, Is.WAITING)

    def fail(self, chance: Chance) -> None:
        if self.world.flying is None:
            self._begin()
        self._fail(written=chance.one([False, True]))

    def fail_twice(self, chance: Chance) -> None:
        self.fail(chance)
        self.fail(chance)

    def kill(self, chance: Chance) -> None:
        if self.world.flying is not None and chance.one([False, True]):
            self.world.end()
            self._now_committed()
        self.world.crash()
        self.model = self.committed.after_crash()
        self.streams.clear()
        self.pulls.clear()

    def storage_answers(self, chance: Chance) -> None:
        if self.world.reads:
            at = chance.one(range(len(self.world.reads)))
            if chance.one([True, True, True, False]):
                self._answer(at)
            else:
                self.broker.read_failed(self.world.reads.pop(at), self.world.now_us)

    def _begin(self, checkpoint: bool = False, commit_us: int = 0) -> None:
        self.world.commit_us = commit_us
        for sub in self.model.subs.values():
            sub.lapse(self.world.now_us)
        self._deliveries(self.world.begin(checkpoint))
        self.flying_model = self.model.copy()

    def _succeed(self) -> None:
        effects = self.world.flying
        assert effects is not None
        self.world.end()
        self._now_committed()
        for delivery in effects.deliveries:
            for lease in delivery.leases:
                self.said[lease.ack_id] = Id(delivery.subscription.sub_id, lease.message_id, lease.generation)
        self._after_saying()

    def _fail(self, written: bool) -> None:
        self.world.fail(written)
        self.world.advance(us=1)  # nothing takes no time, and ids of deliveries that were undone count on it
        if written:
            self._now_committed()
        self.model = self.committed.after_failure(self.model)
        self._after_saying()

    def _turn(self, checkpoint: bool = False) -> None:
        self._begin(checkpoint)
        self._succeed()

    def _answer(self, at: int) -> None:
        read = self.world.reads.pop(at)
        if isinstance(read, ReadTimes):
            self.broker.found(read, answered(self.world.store, read.question), self.world.now_us)
        else:
            self.broker.loaded(read, answer_read(self.world.store, read))

    # -- what must hold ------------------------------------------------------------------------------------

    def _deliveries(self, effects: Effects) -> None:
        unsent = {name: sorted(sub.those(Is.UNSENT)) for name, sub in self.model.subs.items()}
        for delivery in effects.deliveries:
            self._delivery(delivery)
        for name, sub in self.model.subs.items():
            fresh = sorted(set(unsent[name]) - set(sub.those(Is.UNSENT)))
            assert fresh == unsent[name][: len(fresh)], "first deliveries leave nothing out"

    def _delivery(self, delivery: Delivery) -> None:
        consumer, now_us = delivery.consumer, self.world.now_us
        assert consumer in (*self.streams, *self.pulls)
        assert delivery.subscription is consumer.subscription
        sub = self.model.subs[consumer.subscription.name]
        assert sub.sub_id == consumer.subscription.sub_id
        first: list[int] = []
        sizes = [len(data) for data in delivery.datas]
        assert sum(sizes) <= limits.RESPONSE_BYTES_MAX or len(sizes) == 1
        for lease, data in zip(delivery.leases, delivery.datas, strict=True):
            message = sub.messages[lease.message_id]
            # Not acked, and not under a lease: the two promises.
            assert message.status in (Is.UNSENT, Is.WAITING)
            if message.status is Is.UNSENT:
                first.append(lease.message_id)
            assert (message.generation + 1, message.attempt) == (lease.generation, lease.attempt)
            assert now_us + self.world.commit_us + consumer.ack_deadline_us == lease.deadline_us
            assert lease.ack_id not in self.made
            self.made.add(lease.ack_id)
            assert str(lease.message_id) == pb.PubsubMessage.FromString(data).message_id
            assert len(data) == lease.size
            if not consumer.once:
                held = sub.held_by(consumer)
                assert len(held) < consumer.max_messages
                assert sum(one.size for one in held) < consumer.max_bytes
            message.status, message.generation, message.ack_id = Is.LEASED, lease.generation, lease.ack_id
            message.deadline_us, message.delivered_us, message.size = lease.deadline_us, now_us, lease.size
            message.holder, message.named = None if consumer.once else consumer, False
        assert first == sorted(first)
        assert consumer not in consumer.subscription.ready

    def _now_committed(self) -> None:
        self.committed = self.flying_model
        self._nothing_needed_is_gone()
        matches(restored(self.world.store), self.committed)
        journal = self.world.store.journal
        for row in journal[self.audited_rows :]:
            self.audit.read(row)
        self.audited_rows = len(journal)
        self.audit.compare(self.committed)

    def _nothing_needed_is_gone(self) -> None:
        stored = {
            topic_id: {entry.message_id for row in rows.values() for entry in unpack_chunk(row)}
            for topic_id, rows in self.world.store.chunks.items()
        }
        for sub in self.committed.subs.values():
            owed = sub.those(Is.UNSENT, Is.LEASED, Is.WAITING).keys()
            assert owed <= stored.get(sub.topic_id, set())

    def _after_saying(self) -> None:
        """Whoever was told that it is over, ends; a Pull also with what it got."""
        for consumer in [*self.streams, *self.pulls]:
            shell = consumer.shell
            if shell.once and (shell.got or shell.errors or shell.not_delivered_count):
                self._end_pull(consumer)
            elif not shell.once and shell.errors:
                self._close(consumer)
            elif shell.not_delivered_count:
                shell.not_delivered_count = 0
                self.broker.set_ready(consumer)

    @invariant()
    def live_state_agrees(self) -> None:
        check(self.broker)
        now = self.model.copy()
        for sub in now.subs.values():
            sub.lapse(self.world.now_us)
        matches(self.broker, now, self.world.now_us)
        assert len(self.broker._timers) <= 40

    @invariant()
    def the_timer_is_in_time(self) -> None:
        leases = [lease.deadline_us for one in self.broker.subscriptions() for lease in one.leases]
        wake_us = self.broker.next_deadline_us()
        if leases:
            assert wake_us is not None and wake_us <= min(leases)


def named(refused: Iterable[Refusal]) -> list[str]:
    return [refusal.ack_id for refusal in refused]


def matches(broker: Broker, model: Model, now_us: int = 0) -> None:
    """The broker says what the model says; leases that ran out before `now_us` count as given back."""
    assert sorted(model.subs) == sorted(one.name for one in broker.subscriptions())
    assert sorted(model.topics) == sorted(broker._topics)
    for subscription in broker.subscriptions():
        _matches(subscription, model.subs[subscription.name], now_us)


def _matches(subscription: Subscription, sub: Sub, now_us: int) -> None:
    assert sub.sub_id == subscription.sub_id
    assert (sub.exactly_once, sub.detached) == (subscription.exactly_once, subscription.detached)
    waiting = {
        number: (one.generation, one.attempt) for number, one in subscription.backlog.waiting.items()
    }
    leased = {}
    for lease in subscription.leases:
        if lease.deadline_us < now_us:
            waiting[lease.message_id] = (lease.generation, lease.attempt + 1)
        else:
            leased[lease.message_id] = (lease.generation, lease.attempt, lease.deadline_us, lease.ack_id)
    assert leased == {
        number: (one.generation, one.attempt, one.deadline_us, one.ack_id)
        for number, one in sub.those(Is.LEASED).items()
    }
    assert waiting == {number: (one.generation, one.attempt) for number, one in sub.those(Is.WAITING).items()}
    if not sub.detached:
        assert all(number > subscription.cursor for number in sub.those(Is.UNSENT))
        assert all(number <= subscription.cursor for number in sub.those(Is.LEASED, Is.WAITING, Is.DONE))
        lowest = min(sub.those(Is.UNSENT, Is.LEASED, Is.WAITING), default=subscription.cursor + 1)
        assert subscription.low_water() <= lowest


class Audit:
    """The journal replayed: does it tell the same story, and is every promise kept in it?"""

    def __init__(self) -> None:
        self.seq = 0
        # (sub_id, message_id): [status, generation, attempt, deadline, delivered]
        self.stories: dict[tuple[int, int], list[Any]] = {}

    def read(self, row: tuple[int, int, int, bytes]) -> None:
        for seq, event in unpack(Row(*row)):
            assert self.seq + 1 == seq
            self.seq = seq
            if event.kind in (Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.RESET):
                self._event(event)
            elif event.kind == Kind.DROP:
                for key in [key for key in self.stories if key[0] == event.sub_id]:
                    del self.stories[key]

    def _event(self, event: Event) -> None:
        if event.result != Result.OK:
            return
        key = (event.sub_id, event.message_id)
        if event.kind == Kind.DELIVER:
            before = self.stories.get(key, [Is.UNSENT, 0, 0, 0, 0])
            assert before[0] in (Is.UNSENT, Is.WAITING)
            assert before[1] + 1 == event.generation
            self.stories[key] = [Is.LEASED, event.generation, event.attempt, event.deadline_us, event.ts_us]
            return
        story = self.stories[key]
        status, generation, attempt, deadline_us, delivered_us = story
        current = status is Is.LEASED and generation == event.generation
        if current:
            assert (attempt, delivered_us) == (event.attempt, event.ref_ts_us)
        if event.kind == Kind.ACK:
            assert status is not Is.DONE, "one ack takes effect"
            story[0] = Is.DONE
            return
        assert current
        if event.kind == Kind.EXTEND:
            assert event.ts_us <= deadline_us
            assert event.ts_us + event.aux * SECOND == event.deadline_us
            story[3] = event.deadline_us
            return
        if event.kind == Kind.EXPIRE:
            assert event.ts_us > deadline_us == event.deadline_us
        elif event.kind == Kind.RESET:
            assert deadline_us == event.deadline_us
        story[0] = Is.WAITING

    def compare(self, model: Model) -> None:
        for sub in model.subs.values():
            sent = sub.those(Is.LEASED, Is.WAITING, Is.DONE)
            told = {number: story for (sub_id, number), story in self.stories.items() if sub_id == sub.sub_id}
            assert sent.keys() == told.keys()
            for number, message in sent.items():
                assert (message.status, message.generation) == tuple(told[number][:2])
                if message.status is Is.LEASED:
                    assert message.deadline_us == told[number][3]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in SMALL.items():
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(tail, "_EVICT_MIN", 2)
    monkeypatch.setattr(lease_module, "_SWEEP_MIN", 4)
    yield


@pytest.mark.usefixtures("small")
def test_any_history_keeps_the_promises() -> None:
    run_state_machine_as_test(Machine, settings=QUICK)


def play(seed: int, steps: int) -> Machine:
    """A history out of a seed: longer than what hypothesis makes, and the same each time."""
    machine, chance = Machine(), Seeded(Random(seed))
    machine.begin_with_a_backlog(chance.one([False, True]), SUBSCRIPTIONS)
    for _ in range(steps):
        getattr(machine, chance.one(STEPS))(chance)
        machine.live_state_agrees()
        machine.the_timer_is_in_time()
    machine.settle(chance)
    return machine


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(8))
def test_a_seeded_history_keeps_the_promises(seed: int) -> None:
    machine = play(seed, 500)

    # It was worth looking at.
    assert len(machine.said) > 20
    assert max(name.generation for name in machine.said.values()) > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("small")
def test_any_long_history_keeps_the_promises() -> None:
    run_state_machine_as_test(Machine, settings=THOROUGH)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_long_seeded_history_keeps_the_promises(seed: int) -> None:
    play(seed, 1500)
