"""The journal against what went over the wire, and the journal that is bounded or off."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pubsubd.broker.broker import Broker
from pubsubd.engine.engine import Engine
from pubsubd.storage.store import Store
from pubsubd.wire import pb
from tests.crash.hashes import key_hash, payload_hash
from tests.crash.replay import (
    ACK,
    CONFIG,
    DELIVER,
    EXPIRE,
    EXTEND,
    GAP,
    NACK,
    NOOP,
    OK,
    PERMANENT,
    PUBLISH,
    RECORD,
    START,
    STREAM,
    Record,
    Replayer,
    Row,
)
from tests.crash.served import SUBSCRIPTION, TOPIC, Served, check_journal

SECOND = 1_000_000


def records(rows: list[Row], *kinds: int) -> list[Record]:
    found = [Record(*fields) for row in rows for fields in RECORD.iter_unpack(row.data)]
    return [record for record in found if not kinds or record.kind in kinds]


def test_what_went_over_the_wire_is_in_the_journal(tmp_path: Path) -> None:
    attributes = {"z": "1", "a": "é"}
    with Served(tmp_path) as served:
        served.create()
        before_us = time.time_ns() // 1000
        plain, keyed = (*served.publish(b"x"), *served.publish(b"y", attributes=attributes, ordering_key="k"))
        first, second = served.pull(2)
        served.modack(30, first)
        served.ack(first)
        served.ack(first)
        served.modack(10, first)
        served.modack(0, second)
        with pytest.raises(grpc.RpcError):
            served.ack(second)
        with pytest.raises(grpc.RpcError):
            served.ack("not an id")
        (again,) = served.pull()
        served.modack(1, again)
        time.sleep(1.5)
        after_us = time.time_ns() // 1000
        served.kill()
        stored = served.stored()

    check_journal(stored)
    published = {record.message_id: record for record in records(stored.rows, PUBLISH)}
    for received in (first, second):
        record = published[int(received.message.message_id)]
        assert record.ts_us == received.message.publish_time.ToMicroseconds()
        assert received.message.publish_time.nanos % 1000 == 0
        assert before_us <= record.ref_ts_us <= record.ts_us <= after_us
        assert record.bytes == received.message.ByteSize()
    assert (published[plain].okey, published[plain].payload_hash) == (0, payload_hash(b"x", {}))
    assert (published[keyed].okey, published[keyed].payload_hash) == (
        key_hash("k"),
        payload_hash(b"y", attributes),
    )

    told = [
        (record.kind, record.message_id, record.generation, record.attempt, record.result, record.aux)
        for record in records(stored.rows, DELIVER, EXTEND, ACK, NACK, EXPIRE)
    ]
    assert told == [
        (DELIVER, plain, 1, 1, OK, 0),
        (DELIVER, keyed, 1, 1, OK, 0),
        (EXTEND, plain, 1, 1, OK, 30),
        (ACK, plain, 1, 1, OK, 0),
        (ACK, plain, 1, 1, NOOP, 0),
        (EXTEND, plain, 1, 1, NOOP, 10),
        (NACK, keyed, 1, 1, OK, 0),
        (ACK, keyed, 1, 1, PERMANENT, 0),
        (ACK, 0, 0, 0, PERMANENT, 0),
        (DELIVER, keyed, 2, 2, OK, 0),
        (EXTEND, keyed, 2, 2, OK, 1),
        (EXPIRE, keyed, 2, 2, OK, 0),
    ]
    expired = records(stored.rows, EXPIRE)[0]
    assert expired.deadline_us == records(stored.rows, EXTEND)[-1].deadline_us <= expired.ts_us
    for record in records(stored.rows, DELIVER, EXTEND, ACK, NACK, EXPIRE):
        assert before_us <= record.ts_us <= after_us
        assert record.okey == (key_hash("k") if record.message_id == keyed and record.result == OK else 0)
    # A unary call has a number of its own, and the same for all that it did.
    calls = [record.stream_id for record in records(stored.rows, DELIVER, EXTEND, ACK, NACK)]
    assert calls[0] == calls[1] and len(set(calls)) == len(calls) - 1
    assert all(calls)


def test_resources_streams_and_starts_are_told_in_full(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(b"x")
        mask = pb.FieldMask(paths=["labels"])
        changed = pb.Subscription(name=SUBSCRIPTION, labels={"team": "red"})
        served.client.UpdateSubscription(subscription=changed, update_mask=mask)
        _stream_once(served, "me")
        served.client.DetachSubscription(subscription=SUBSCRIPTION)
        served.client.DeleteSubscription(subscription=SUBSCRIPTION)
        served.client.DeleteTopic(topic=TOPIC)
        served.restart()
        served.stop()
        stored = served.stored()

    check_journal(stored)
    details = {seq: json.loads(text) for seq, text in stored.details.items()}
    configs = [details[record.seq] for record in records(stored.rows, CONFIG)]
    assert [(c["change"], "topic" if "topic" in c else "subscription") for c in configs] == [
        ("created", "topic"),
        ("created", "subscription"),
        ("updated", "subscription"),
        ("detached", "subscription"),
        ("deleted", "subscription"),
        ("deleted", "topic"),
    ]
    assert configs[2]["subscription"]["labels"] == {"team": "red"}
    assert configs[2]["subscription"]["enable_exactly_once_delivery"] is True
    opened, closed = (
        record for record in records(stored.rows, STREAM) if not details[record.seq].get("unary")
    )
    assert (opened.result, closed.result, closed.ref_ts_us) == (0, 1, opened.ts_us)
    assert opened.stream_id == closed.stream_id != 0
    assert details[opened.seq] == {
        "client": "me",
        "max_outstanding_messages": 7,
        "max_outstanding_bytes": 70_000,
        "stream_ack_deadline_seconds": 20,
    }
    unary = [details[record.seq] for record in records(stored.rows, STREAM) if "unary" in details[record.seq]]
    # Once for each start of the server, since it does not remember names over a restart.
    assert {detail["client"].partition("/")[0] for detail in unary} == {"grpc-python"}
    starts = [details[record.seq] for record in records(stored.rows, START)]
    assert [(start["boot"], start["clean"]) for start in starts] == [(1, True), (2, False)]


def _stream_once(served: Served, client_id: str) -> None:
    first = pb.StreamingPullRequest(
        subscription=SUBSCRIPTION,
        stream_ack_deadline_seconds=20,
        client_id=client_id,
        max_outstanding_messages=7,
        max_outstanding_bytes=70_000,
    )
    call = served.client.StreamingPull(iter([first]))
    assert [received.message.data for response in call for received in response.received_messages] in (
        [],
        [b"x"],
    )


def test_the_journal_can_be_off(tmp_path: Path) -> None:
    with Served(tmp_path, "--journal", "off") as served:
        served.create()
        message_ids = served.publish(b"x", b"y")
        first, _ = served.pull(2)
        served.modack(60, first)
        served.kill()
        without = served.stored()
        served.start()
        served.ack(first)
        served.stop()

    assert (without.rows, without.details) == ([], {})
    # The state needs no journal.
    (state,) = without.subscriptions.values()
    assert state.unacked == set(message_ids) == set(state.leases)
    (state,) = served.stored().subscriptions.values()
    assert len(state.unacked) == 1
    assert served.stored().rows == []


def test_what_happened_while_the_journal_was_off_is_a_gap(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.stop()
        before = served.stored()
        served.server.options = ["--journal", "off"]
        served.start()
        served.publish(b"x")
        served.stop()
        assert served.stored().rows == before.rows
        served.server.options = []
        served.start()
        served.kill()
        after = served.stored()

    seqs = [record.seq for record in records(after.rows)]
    last = records(before.rows)[-1].seq
    first = min(seq for seq in seqs if seq > last)
    assert first > last + 1
    told = [(record.aux, json.loads(after.details[record.seq])) for record in records(after.rows, GAP)]
    assert told == [(last + 1, {"last": first - 1})]


async def test_a_bounded_tail_drops_the_oldest_rows_and_says_which(tmp_path: Path) -> None:
    bytes_max = 200 * RECORD.size
    async with _engine(tmp_path, bytes_max) as (store, engine):
        broker = await engine.broker()
        broker.create_topic(pb.Topic(name=TOPIC), engine.now_us())
        await engine.settled()
        lost: set[int] = set()
        known = {row.first_seq for row in await _tail(store)}
        for _ in range(60):
            await _publish(engine, broker, 9)
            rows = await _tail(store)
            _, details = await store.read_journal()
            lost |= _check_tail(rows, details, known, lost)
            assert sum(len(row.data) for row in rows) <= bytes_max
            known |= {row.first_seq for row in rows}
        assert lost
        before = engine.journal_seq

    # A server that starts again knows how full the tail is.
    async with _engine(tmp_path, bytes_max) as (store, engine):
        assert sum(len(row.data) for row in await _tail(store)) <= bytes_max
        assert engine.journal_seq > before


@asynccontextmanager
async def _engine(directory: Path, bytes_max: int) -> AsyncIterator[tuple[Store, Engine]]:
    store = await Store.open(directory, "process")
    try:
        engine = Engine(store, journal=True, journal_bytes_max=bytes_max)
        await engine.start("test")
        yield store, engine
        await engine.stop()
    finally:
        # A thread of it would keep the interpreter alive.
        await store.close()


async def _tail(store: Store) -> list[Row]:
    rows, _ = await store.read_journal()
    return [Row(*row) for row in rows]


async def _publish(engine: Engine, broker: Broker, count: int) -> None:
    request = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"x")] * count)
    now_us = engine.now_us()
    broker.publish(request, request.ByteSize(), broker.caller("test", now_us), now_us)
    await engine.settled()


def _check_tail(rows: list[Row], details: dict[int, Any], known: set[int], lost: set[int]) -> set[int]:
    """The tail has no hole, and one GAP event tells what the newest commit dropped; returns that."""
    first_seq = rows[0].first_seq
    replayer = Replayer()
    replayer.last_seq = first_seq - 1
    replayer.feed(rows, details)
    # What was published before the tail begins is not known to whoever reads only the tail.
    assert [problem for problem in replayer.problems if "follows" in problem] == []
    assert set(details) <= set(range(first_seq, replayer.last_seq + 1))
    gone = set(range(max(lost, default=0) + 1, first_seq))
    (newest,) = {row.first_seq for row in rows} - known
    row = next(row for row in rows if row.first_seq == newest)
    told = [(record.aux, json.loads(details[record.seq])["last"]) for record in records([row], GAP)]
    assert told == ([(min(gone), max(gone))] if gone else [])
    return gone
