"""Writes small journals for tests, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.crash.replay import (
    CONFIG,
    DEADLETTER,
    DELIVER,
    DROP,
    EXPIRE,
    EXTEND,
    FILTERED,
    NACK,
    OK,
    PUBLISH,
    RECORD,
    RESET,
    SECOND_US,
    SEEK,
    STREAM,
    Record,
    Replayer,
    Row,
    Subscription,
)

TOPIC, SUB, CLIENT = 1, 1, 9
LEASE_SECONDS = 10
MATCHING = 1  # the payload_hash that passes every filter


class Journal:
    """One topic and one subscription. Each event is a row of its own, unless `commit` says otherwise.

    Times are seconds. What an event about a message says of its publish, of its newest delivery and of its
    attempts is right by itself; fields that are named replace it.
    """

    def __init__(self, topic: dict[str, Any] | None = None, **settings: Any) -> None:
        self.rows: list[Row] = []
        self.details: dict[int, str] = {}
        self._row: list[Record] | None = None
        self._published: dict[int, Record] = {}
        self._newest: dict[int, Record] = {}
        self._attempts: dict[int, int] = {}
        self._calls = 100
        self.settings = {"name": "s", "enable_exactly_once_delivery": True, **settings}
        self.add(STREAM, 0, client_id=CLIENT, detail={"client": "python", "unary": True})
        self.topic("created", 0, **(topic or {}))
        self.config("created", 0)

    @contextmanager
    def commit(self) -> Iterator[None]:
        """What is added inside is one row."""
        self._row = []
        yield
        row, self._row = self._row, None
        self._write(row)

    @property
    def next_seq(self) -> int:
        return (self.rows[-1].first_seq + self.rows[-1].n if self.rows else 1) + len(self._row or ())

    def add(self, kind: int, at: float, *, seq: int = 0, detail: Any = None, **fields: int) -> Record:
        seq = seq or self.next_seq
        if detail is not None:
            self.details[seq] = json.dumps(detail)
        empty = Record(*[0] * len(Record._fields))
        record = empty._replace(**{"seq": seq, "ts_us": int(at * SECOND_US), "kind": kind, **fields})
        if self._row is None:
            self._write([record])
        else:
            self._row.append(record)
        return record

    def _write(self, row: list[Record]) -> None:
        data = b"".join(RECORD.pack(*record) for record in row)
        self.rows.append(Row(row[0].seq, len(row), 1, data))

    # -- resources ----------------------------------------------------------------------------------------

    def topic(self, change: str, at: float, *, topic_id: int = TOPIC, name: str = "t", **fields: Any) -> None:
        detail = {"change": change, "topic": {"name": name, **fields}}
        self.add(CONFIG, at, topic_id=topic_id, detail=detail)

    def config(self, change: str, at: float, **settings: Any) -> None:
        self.settings.update(settings)
        detail = {"change": change, "subscription": self.settings}
        self.add(CONFIG, at, topic_id=TOPIC, sub_id=SUB, detail=detail)

    def snapshot(self, change: str, at: float, name: str = "n") -> Record:
        detail = {"change": change, "snapshot": {"name": name}}
        return self.add(CONFIG, at, topic_id=TOPIC, sub_id=SUB, detail=detail)

    def open_stream(self, stream_id: int, at: float, client_id: int = CLIENT, name: str = "python") -> Record:
        return self.add(STREAM, at, stream_id=stream_id, client_id=client_id, detail={"client": name})

    def close_stream(self, opened: Record, at: float) -> None:
        about = {"stream_id": opened.stream_id, "client_id": opened.client_id, "ref_ts_us": opened.ts_us}
        self.add(STREAM, at, result=1, detail={}, **about)

    # -- messages -----------------------------------------------------------------------------------------

    def publish(self, *message_ids: int, at: float = 0, **fields: int) -> None:
        for message_id in message_ids:
            given = {"topic_id": TOPIC, "ref_ts_us": int(at * SECOND_US), "bytes": 10, **fields}
            self._published[message_id] = self.add(PUBLISH, at, message_id=message_id, **given)

    def deliver(self, *message_ids: int, at: float, **fields: int) -> None:
        """Each becomes the next generation; the attempt is one more than nacks and expiries before."""
        for message_id in message_ids:
            published, before = self._published[message_id], self._newest.get(message_id)
            given = {
                "generation": before.generation + 1 if before else 1,
                "attempt": self._attempts.get(message_id, 1),
                "deadline_us": int((at + LEASE_SECONDS) * SECOND_US),
                "ref_ts_us": published.ts_us,
                "bytes": published.bytes,
                "okey": published.okey,
                "client_id": CLIENT,
                **fields,
            }
            record = self._about(DELIVER, message_id, at, **given)
            self._newest[message_id], self._attempts[message_id] = record, record.attempt

    def ask(self, kind: int, *message_ids: int, at: float, result: int = OK, **fields: int) -> None:
        """One call; about the newest deliveries unless `generation` and what goes with it says otherwise."""
        self._calls += 1
        for message_id in message_ids:
            given = {**self._of(message_id), "result": result, "stream_id": self._calls, **fields}
            if kind == EXTEND and result == OK and given["aux"]:
                given.setdefault("deadline_us", int((at + given["aux"]) * SECOND_US))
            self._about(kind, message_id, at, **given)
            if kind == NACK and result == OK:
                self._attempts[message_id] = given["attempt"] + 1
            if kind == EXTEND and result == OK:
                ends_us = given["deadline_us"]
                self._newest[message_id] = self._newest[message_id]._replace(deadline_us=ends_us)

    def expire(self, *message_ids: int, at: float, **fields: int) -> None:
        for message_id in message_ids:
            given = {**self._of(message_id), "deadline_us": self._newest[message_id].deadline_us, **fields}
            self._about(EXPIRE, message_id, at, **given)
            self._attempts[message_id] = given["attempt"] + 1

    def reset(self, *message_ids: int, at: float, **fields: int) -> None:
        for message_id in message_ids:
            given = {**self._of(message_id), "deadline_us": self._newest[message_id].deadline_us, **fields}
            self._about(RESET, message_id, at, **given)

    def fail(self, message_id: int, *, times: int, at: float) -> None:
        for _ in range(times):
            self.deliver(message_id, at=at)
            self.ask(NACK, message_id, at=at)

    def filter_out(self, *message_ids: int, at: float, **fields: int) -> None:
        for message_id in message_ids:
            self._about(FILTERED, message_id, at, ref_ts_us=self._published[message_id].ts_us, **fields)

    def forward(self, message_id: int, copy_id: int, *, at: float, topic_id: int, **copy: int) -> None:
        """In a commit of the caller's, together with the failure that it follows from."""
        published = self._published[message_id]
        about = {"topic_id": topic_id, "aux": copy_id, "ref_ts_us": published.ts_us}
        self._about(DEADLETTER, message_id, at, **about)
        self.publish(copy_id, at=at, **{"topic_id": topic_id, "okey": published.okey, **copy})

    def drop(self, message_id: int, at: float) -> None:
        self._about(DROP, message_id, at, ref_ts_us=self._published[message_id].ts_us)

    def drop_before(self, before: float, at: float) -> None:
        self.add(DROP, at, topic_id=TOPIC, sub_id=SUB, aux=int(before * SECOND_US))

    def seek(self, to: float, at: float, kept_from: float | None = None) -> None:
        """To a time; what was published from second `kept_from` on is kept, if anything is."""
        kept_from_us = 0 if kept_from is None else int(kept_from * SECOND_US)
        detail = {"retain_acked": kept_from is not None, "kept_from_us": kept_from_us, "kept_after_id": 0}
        self.add(SEEK, at, topic_id=TOPIC, sub_id=SUB, aux=int(to * SECOND_US), detail=detail)

    def seek_to(self, taken: Record, at: float, name: str = "n", **fields: int) -> None:
        """To a snapshot."""
        detail = {"retain_acked": False, "kept_from_us": 0, "snapshot": name, "snapshot_seq": taken.seq}
        given = {"aux": taken.ts_us, **fields}
        self.add(SEEK, at, topic_id=TOPIC, sub_id=SUB, detail=detail, **given)

    def restart_attempts(self, message_id: int) -> None:
        """A seek brought it back."""
        self._attempts[message_id] = 1

    def _of(self, message_id: int) -> dict[str, int]:
        newest = self._newest[message_id]
        return {"generation": newest.generation, "attempt": newest.attempt, "ref_ts_us": newest.ts_us}

    def _about(self, kind: int, message_id: int, at: float, **fields: int) -> Record:
        given = {
            "topic_id": TOPIC,
            "sub_id": SUB,
            "client_id": 0 if kind in (FILTERED, DEADLETTER, DROP) else CLIENT,
        }
        return self.add(kind, at, message_id=message_id, **{**given, **fields})

    # -- what it tells ------------------------------------------------------------------------------------

    def replay(self) -> Replayer:
        replayer = Replayer(lambda _, payload_hash: payload_hash == MATCHING)
        replayer.feed(self.rows, self.details)
        return replayer

    @property
    def problems(self) -> list[str]:
        """What the replayer says, without the numbers that it begins with."""
        return [problem.partition(": ")[2] for problem in self.replay().problems]

    @property
    def subscription(self) -> Subscription:
        """What a lawful journal says of the subscription."""
        replayer = self.replay()
        assert replayer.problems == []
        return replayer.subscriptions[SUB]
