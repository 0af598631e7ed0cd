"""What happens by itself, in time: rests, retention, expirations; and commands that ask storage first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from pubsubd.broker import tail as tail_module
from pubsubd.broker.broker import Broker
from pubsubd.broker.entry import Entry
from pubsubd.broker.questions import Question, Sift
from pubsubd.model import errors, limits
from pubsubd.wire import pb
from tests.unit.broker.world import SECOND, SNAPSHOT, START_US, SUBSCRIPTION, TOPIC, answered
from tests.unit.engine.running import Running, outcome, running
from tests.unit.engine.test_commit import ticks
from tests.unit.engine.virtual import virtual

LATE = 0.1
DEAD = "projects/p/topics/dead-letters"
GRAVE = "projects/p/subscriptions/grave"
DAY = 24 * 3600


async def update(engine: Running, **fields: Any) -> None:
    request = pb.UpdateSubscriptionRequest(
        subscription=pb.Subscription(name=SUBSCRIPTION, **fields), update_mask=pb.FieldMask(paths=[*fields])
    )
    await engine.call(Broker.update_subscription, request)


async def seek(engine: Running, **target: Any) -> None:
    """As the handler does: ask storage, then command, then wait for the commit."""
    request = pb.SeekRequest(subscription=SUBSCRIPTION, **target)
    broker = await engine.engine.broker()
    answers = await engine.engine.answers(broker.seek_questions(request, engine.engine.now_us()))
    broker = await engine.engine.broker()
    broker.seek(request, answers, engine.engine.now_us())
    engine.engine.poke()
    await engine.engine.settled()


async def create_snapshot(engine: Running) -> None:
    request = pb.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    broker = await engine.engine.broker()
    answers = await engine.engine.answers(broker.snapshot_questions(request, engine.engine.now_us()))
    broker = await engine.engine.broker()
    broker.create_snapshot(request, answers, "unique", engine.engine.now_us())
    await engine.engine.settled()


# -- by itself ---------------------------------------------------------------------------------------------


@virtual
async def test_a_message_that_failed_rests_and_is_delivered_by_itself() -> None:
    async with running() as engine:
        await update(engine, retry_policy=pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=10)))
        shell = await engine.open_stream(seconds=60)
        await engine.publish(b"a")
        await ticks()
        for _ in range(3):
            await engine.modify_ack_deadline(shell.ack_ids[-1:], 0)
            await asyncio.sleep(45)

        assert shell.times[1] - shell.times[0] == pytest.approx(10, abs=LATE)
        assert shell.times[2] - (shell.times[0] + 45) == pytest.approx(20, abs=LATE)
        assert shell.times[3] - (shell.times[0] + 90) == pytest.approx(40, abs=LATE)


@virtual
async def test_a_message_is_gone_a_minute_after_its_retention_at_the_latest() -> None:
    async with running() as engine:
        await update(engine, message_retention_duration=pb.Duration(seconds=600))
        await engine.publish(b"a")
        await asyncio.sleep(599)
        assert await engine.owed() == [1]
        await asyncio.sleep(61)

        assert await engine.owed() == []
        assert engine.store.chunks[1] == {}


@virtual
async def test_one_that_was_acked_is_gone_as_soon() -> None:
    async with running() as engine:
        await update(engine, message_retention_duration=pb.Duration(seconds=600), retain_acked_messages=True)
        shell = await engine.open_stream()
        await engine.publish(b"a")
        await ticks()
        await engine.acknowledge(shell.ack_ids)
        await asyncio.sleep(590)
        assert len(engine.store.chunks[1]) == 1
        await asyncio.sleep(70)

        assert engine.store.chunks[1] == {}


@virtual
async def test_after_the_last_message_has_gone_nothing_more_is_written() -> None:
    async with running() as engine:
        await update(
            engine,
            message_retention_duration=pb.Duration(seconds=600),
            expiration_policy=pb.ExpirationPolicy(),
        )
        await engine.publish(b"a")
        await asyncio.sleep(3600)
        before = engine.engine.commits
        await asyncio.sleep(30 * DAY)

        assert engine.engine.commits == before


@virtual
async def test_a_subscription_that_nobody_uses_goes_by_itself() -> None:
    async with running() as engine:
        await update(
            engine,
            message_retention_duration=pb.Duration(seconds=600),
            expiration_policy=pb.ExpirationPolicy(ttl=pb.Duration(seconds=DAY)),
        )
        await asyncio.sleep(DAY - 1)
        assert (await engine.subscription()).name == SUBSCRIPTION
        await asyncio.sleep(2)

        assert list((await engine.engine.broker()).subscriptions()) == []
        assert engine.store.subscriptions == {}


@virtual
async def test_a_snapshot_goes_by_itself() -> None:
    async with running() as engine:
        await update(engine, expiration_policy=pb.ExpirationPolicy())
        await create_snapshot(engine)
        await asyncio.sleep(7 * DAY - 1)
        assert len(engine.store.snapshots) == 1
        await asyncio.sleep(2)

        assert engine.store.snapshots == {}


@virtual
async def test_dead_letters_leave_though_nobody_asks() -> None:
    async with running() as engine:
        await engine.call(Broker.create_topic, pb.Topic(name=DEAD))
        await engine.call(Broker.create_subscription, pb.Subscription(name=GRAVE, topic=DEAD), "unique")
        broker = await engine.engine.broker()
        policy = pb.DeadLetterPolicy(dead_letter_topic=DEAD, max_delivery_attempts=5)
        await update(engine, dead_letter_policy=policy)
        consumer = await engine.open_stream(seconds=10)
        await engine.publish(b"a")
        await asyncio.sleep(60)

        assert len(consumer.times) == 5
        found = {one.name: one for one in broker.subscriptions()}
        assert found[SUBSCRIPTION].topic.last_id == 1
        assert found[GRAVE].topic.last_id == 2
        assert list(engine.store.chunks[2]) == [2]


# -- commands that ask storage first -----------------------------------------------------------------------


@virtual
async def test_a_live_stream_gets_what_a_seek_brought_back() -> None:
    async with running() as engine:
        await update(engine, retain_acked_messages=True)
        shell = await engine.open_stream()
        await engine.publish(b"a", b"b")
        await ticks()
        await engine.acknowledge(shell.ack_ids)
        await seek(engine, time=pb.Timestamp(seconds=1))
        await ticks()

        assert shell.message_ids == [1, 2, 1, 2]


@virtual
async def test_a_seek_counts_what_is_being_stored_while_it_asks() -> None:
    async with running() as engine:
        engine.store.gate = asyncio.Event()
        publish = asyncio.create_task(engine.publish(b"a"))
        await ticks()
        sought = asyncio.create_task(seek(engine, time=pb.Timestamp(seconds=START_US // SECOND + 3600)))
        await ticks()
        assert not sought.done()
        engine.store.gate.set()
        await asyncio.gather(publish, sought)

        assert await engine.owed() == []


@virtual
async def test_a_seek_whose_commit_fails_is_answered_so_and_did_not_happen() -> None:
    async with running() as engine:
        shell = await engine.open_stream(asks_again=False)
        await engine.publish(b"a")
        await ticks()
        engine.store.failing_commits = 1
        assert await outcome(seek(engine, time=pb.Timestamp(seconds=START_US // SECOND + 3600))) != "OK"

        assert await engine.owed() == [1]
        assert await engine.acknowledge(shell.ack_ids) == []


@virtual
async def test_when_storage_cannot_be_read_nothing_is_sought() -> None:
    async with running() as engine:
        await engine.publish(b"a")
        engine.store.failing_reads = 1
        assert (
            await outcome(seek(engine, time=pb.Timestamp(seconds=1))) == "storage cannot be read at present"
        )
        engine.store.failing_reads = 1
        assert await outcome(create_snapshot(engine)) == "storage cannot be read at present"
        assert engine.store.snapshots == {}

        await create_snapshot(engine)
        await seek(engine, snapshot=SNAPSHOT)
        assert await engine.owed() == [1]


@virtual
async def test_of_two_snapshots_with_one_name_one_is_taken() -> None:
    async with running() as engine:
        calls = [asyncio.create_task(create_snapshot(engine)) for _ in range(2)]
        found = await asyncio.gather(*calls, return_exceptions=True)

        assert sorted(isinstance(one, errors.AlreadyExists) for one in found) == [False, True]
        assert len(engine.store.snapshots) == 1


@virtual
async def test_what_came_back_is_read_from_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAIL_BYTES_MAX", 0)
    monkeypatch.setattr(tail_module, "_EVICT_MIN", 1)
    async with running() as engine:
        await update(engine, retain_acked_messages=True)
        shell = await engine.open_stream()
        await engine.publish(*[b"%d" % number for number in range(5)])
        await ticks(20)
        await engine.acknowledge(shell.ack_ids)
        await seek(engine, time=pb.Timestamp(seconds=1))
        await ticks(20)

        assert shell.message_ids == [1, 2, 3, 4, 5] * 2


async def publish_some(random: Random, engine: Running) -> None:
    """Rows of one message and of many, some in the same microsecond."""
    for _ in range(random.randint(1, 12)):
        attributes = {"n": str(random.randrange(3))}
        messages = [pb.PubsubMessage(data=b"x", attributes=attributes)] * random.randint(1, 4)
        request = pb.PublishRequest(topic=TOPIC, messages=messages)
        broker = await engine.engine.broker()
        now_us = engine.engine.now_us()
        broker.publish(request, request.ByteSize(), broker.caller("p", now_us), now_us)
        await engine.engine.settled()
        await asyncio.sleep(random.choice([0, 1, 2]))


def third(attributes: Mapping[str, str]) -> bool:
    return attributes.get("n") == "2"


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_the_answer_to_a_question_is_what_a_look_at_every_message_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 40)
    monkeypatch.setattr(limits, "READ_BYTES_MAX", 1)
    random = Random(seed)
    async with running() as engine:
        await publish_some(random, engine)
        topic_id = (await engine.subscription()).topic.topic_id
        last_id = max(engine.store.chunks[topic_id])
        read = pb.PubsubMessage.FromString
        for _ in range(30):
            after_id = random.randrange(last_id + 2)
            before_us = START_US + random.randrange(-1, 26) * SECOND + random.choice([-1, 0, 1])
            matches = random.choice([None, lambda data: third(read(data).attributes)])
            question = Question(topic_id, after_id, before_us, matches)
            assert await engine.engine.answers([question]) == [answered(engine.store, question)]
        wanted = sorted(random.sample(range(1, last_id + 1), random.randint(0, last_id)))

        def is_third(entry: Entry) -> bool:
            return third(read(entry.data).attributes)

        sift = Sift(topic_id, wanted, is_third)
        assert await engine.engine.answers([sift]) == [answered(engine.store, sift)]
