"""What the journal says about resources: from events written by hand, and from those of a real server."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analytics.dimensions import (
    COLUMNS,
    OPEN,
    BulkDrop,
    Dimensions,
    Gap,
    Setting,
    Start,
    collect,
    epoch_of,
    epochs_df,
    settings_df,
    with_epoch,
)
from analytics.layout import COLUMNS as JOURNAL_COLUMNS
from analytics.layout import Kind

TOPIC, SUB, CLIENT = 1, 7, 3
SECOND_US = 1_000_000


class Rows(list[dict[str, Any]]):
    """Events about resources, one a second; each call adds one and returns its seq."""

    def add(self, kind: Kind, detail: Any = None, **fields: int) -> int:
        seq = fields.get("seq", len(self) + 1)
        row = dict.fromkeys(COLUMNS, 0) | {"seq": seq, "ts_us": seq * SECOND_US, "kind": int(kind)}
        self.append(row | fields | {"detail": None if detail is None else json.dumps(detail)})
        return seq

    def config(self, change: str, *, sub_id: int = SUB, name: str = "orders", **settings: Any) -> int:
        resource = {
            "name": f"projects/p/subscriptions/{name}",
            "topic": "projects/p/topics/t",
            "ack_deadline_seconds": 10,
            **settings,
        }
        said = {"checkpoint": True} if change == "checkpoint" else {"change": change}
        return self.add(Kind.CONFIG, said | {"subscription": resource}, topic_id=TOPIC, sub_id=sub_id)

    def seek(self, target: int, sub_id: int = SUB, **detail: Any) -> int:
        said = {"retain_acked": False, "kept_from_us": 0, **detail}
        return self.add(Kind.SEEK, said, topic_id=TOPIC, sub_id=sub_id, aux=target * SECOND_US)

    def stream(self, stream_id: int, **detail: Any) -> int:
        about = {"topic_id": TOPIC, "sub_id": SUB, "client_id": CLIENT, "stream_id": stream_id}
        return self.add(Kind.STREAM, {"client": "worker-1", **detail}, **about)

    def closed(self, stream_id: int) -> int:
        about = {"topic_id": TOPIC, "sub_id": SUB, "client_id": CLIENT, "stream_id": stream_id}
        return self.add(Kind.STREAM, {}, result=1, **about)

    def start(self, boot: int) -> int:
        return self.add(Kind.START, {"boot": boot, "version": "1.0", "clean": True})

    def dimensions(self) -> Dimensions:
        return Dimensions.from_rows(self)


@pytest.fixture
def rows() -> Rows:
    return Rows()


# -- subscriptions and their settings ---------------------------------------------------------------------


def test_settings_hold_from_their_seq_until_the_next(rows: Rows) -> None:
    created = rows.config("created", enable_exactly_once_delivery=True)
    rows.start(1)
    updated = rows.config("updated", ack_deadline_seconds=60)

    known = rows.dimensions().subscriptions[SUB]

    assert (known.start_seq, known.end_seq) == (created, OPEN)
    assert (known.start_us, known.end_us) == (created * SECOND_US, OPEN)
    assert known.at(updated - 1) == Setting(created, exactly_once=True, ack_deadline_s=10)
    assert known.at(updated) == known.current == Setting(updated, exactly_once=False, ack_deadline_s=60)


def test_everything_that_a_setting_says_is_read(rows: Rows) -> None:
    seq = rows.config(
        "created",
        enable_exactly_once_delivery=True,
        enable_message_ordering=True,
        retain_acked_messages=True,
        ack_deadline_seconds=77,
        message_retention_duration="600.500s",
        dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead", "max_delivery_attempts": 9},
        filter='attributes:"x"',
    )
    assert rows.dimensions().subscriptions[SUB].settings == (
        Setting(seq, True, True, True, 77, 600.5, 9, 'attributes:"x"', False),
    )


def test_a_dead_letter_policy_without_a_number_means_five_attempts(rows: Rows) -> None:
    rows.config("created", dead_letter_policy={"dead_letter_topic": "projects/p/topics/dead"})
    assert rows.dimensions().subscriptions[SUB].current.max_delivery_attempts == 5


@pytest.mark.parametrize("change", ["detached", "deleted", "expired"])
def test_a_subscription_ends_with_detachment_deletion_or_expiry(rows: Rows, change: str) -> None:
    rows.config("created")
    ended = rows.config(change, detached=change == "detached")
    known = rows.dimensions().subscriptions[SUB]
    assert (known.end_seq, known.end_us) == (ended, ended * SECOND_US)


def test_a_deletion_after_the_detachment_does_not_move_the_end(rows: Rows) -> None:
    rows.config("created")
    detached = rows.config("detached", detached=True)
    rows.config("updated", detached=True, ack_deadline_seconds=20)
    rows.config("deleted", detached=True)
    known = rows.dimensions().subscriptions[SUB]
    assert known.end_seq == detached
    assert known.current.detached and known.current.ack_deadline_s == 10


def test_a_name_that_is_created_again_is_another_subscription(rows: Rows) -> None:
    rows.config("created")
    rows.config("deleted")
    rows.config("created", sub_id=8)
    dimensions = rows.dimensions()
    assert dimensions.name_of(SUB) == dimensions.name_of(8) == "projects/p/subscriptions/orders"
    assert dimensions.subscriptions[SUB].end_seq == 2
    assert dimensions.subscriptions[8].end_seq == OPEN


def test_a_subscription_of_which_nothing_is_said_is_named_by_its_number(rows: Rows) -> None:
    assert rows.dimensions().name_of(41) == "subscription 41"


# -- a range that begins in the middle, and checkpoints ----------------------------------------------------


@pytest.mark.parametrize("change", ["updated", "checkpoint"])
def test_the_first_word_about_a_subscription_holds_back_to_the_start(rows: Rows, change: str) -> None:
    rows.start(1)
    rows.config(change, enable_exactly_once_delivery=True)
    known = rows.dimensions().subscriptions[SUB]
    assert (known.start_seq, known.start_us, known.end_seq) == (0, 0, OPEN)
    assert known.at(1).exactly_once


def test_a_checkpoint_after_other_words_changes_nothing(rows: Rows) -> None:
    created = rows.config("created", ack_deadline_seconds=30)
    rows.config("checkpoint", ack_deadline_seconds=60)
    known = rows.dimensions().subscriptions[SUB]
    assert known.start_seq == created
    assert [one.ack_deadline_s for one in known.settings] == [30]


def test_only_the_first_of_several_checkpoints_counts(rows: Rows) -> None:
    rows.config("checkpoint", ack_deadline_seconds=30)
    rows.config("checkpoint", ack_deadline_seconds=30)
    assert len(rows.dimensions().subscriptions[SUB].settings) == 1


def test_a_creation_wins_over_the_checkpoint_before_it(rows: Rows) -> None:
    rows.config("checkpoint", ack_deadline_seconds=60)
    created = rows.config("created", ack_deadline_seconds=30)
    known = rows.dimensions().subscriptions[SUB]
    assert known.start_seq == created
    assert [one.ack_deadline_s for one in known.settings] == [30]


def test_what_a_checkpoint_calls_detached_ended_before_the_range(rows: Rows) -> None:
    rows.config("checkpoint", detached=True)
    dimensions = rows.dimensions()
    assert (dimensions.subscriptions[SUB].start_seq, dimensions.subscriptions[SUB].end_seq) == (0, 0)
    assert [one.end_seq for one in dimensions.epochs[SUB]] == [0]


# -- epochs -----------------------------------------------------------------------------------------------


def test_without_a_seek_there_is_one_epoch(rows: Rows) -> None:
    created = rows.config("created")
    (epoch,) = rows.dimensions().epochs[SUB]
    assert (epoch.sub_id, epoch.topic_id, epoch.epoch) == (SUB, TOPIC, 0)
    assert (epoch.start_seq, epoch.end_seq) == (created, OPEN)
    assert epoch.lo_us == epoch.start_us == created * SECOND_US


def test_each_seek_ends_an_epoch_and_begins_the_next(rows: Rows) -> None:
    created = rows.config("created")
    first = rows.seek(0)
    second = rows.seek(99)
    deleted = rows.config("deleted")

    epochs = rows.dimensions().epochs[SUB]

    assert [(one.epoch, one.start_seq, one.end_seq) for one in epochs] == [
        (0, created, first),
        (1, first, second),
        (2, second, deleted),
    ]
    assert [one.end_us for one in epochs] == [first * SECOND_US, second * SECOND_US, deleted * SECOND_US]


def test_owed_from_the_target_or_from_the_seek_whichever_is_earlier(rows: Rows) -> None:
    rows.config("created")
    rows.seek(1)
    third = rows.seek(99)
    epochs = rows.dimensions().epochs[SUB]
    assert [one.lo_us for one in epochs[1:]] == [1 * SECOND_US, third * SECOND_US]
    assert [one.target_us for one in epochs[1:]] == [1 * SECOND_US, 99 * SECOND_US]


def test_a_seek_to_a_snapshot_says_so(rows: Rows) -> None:
    rows.config("created")
    rows.seek(1, snapshot="projects/p/snapshots/n", snapshot_seq=1)
    rows.seek(1)
    assert [one.is_snapshot for one in rows.dimensions().epochs[SUB]] == [False, True, False]


@pytest.mark.parametrize(
    ("retain_acked", "message_id", "pub_us", "keeps"),
    [
        (True, 11, 500, True),
        (True, 10, 500, False),  # up to this id they are gone
        (True, 11, 499, False),  # published before what is kept
        (False, 11, 500, False),
    ],
)
def test_a_seek_keeps_by_time_and_by_id(
    rows: Rows, retain_acked: bool, message_id: int, pub_us: int, keeps: bool
) -> None:
    rows.config("created")
    rows.seek(0, retain_acked=retain_acked, kept_from_us=500, kept_after_id=10)
    assert rows.dimensions().epochs[SUB][1].keeps(message_id, pub_us) is keeps


def test_a_seek_that_names_no_id_keeps_by_time_alone(rows: Rows) -> None:
    rows.config("created")
    rows.seek(0, retain_acked=True, kept_from_us=500)
    assert rows.dimensions().epochs[SUB][1].keeps(1, 500)


def test_a_subscription_known_only_by_its_seek_has_its_epochs(rows: Rows) -> None:
    rows.start(1)
    seek = rows.seek(0)
    epochs = rows.dimensions().epochs[SUB]
    assert [(one.start_seq, one.end_seq, one.topic_id) for one in epochs] == [
        (0, seek, TOPIC),
        (seek, OPEN, TOPIC),
    ]


# -- drops, topics, clients, streams, the server ----------------------------------------------------------


def test_bulk_drops_are_kept_and_single_ones_are_not(rows: Rows) -> None:
    rows.config("created")
    bulk = rows.add(Kind.DROP, sub_id=SUB, aux=500)
    rows.add(Kind.DROP, sub_id=SUB, message_id=12)
    assert rows.dimensions().drops == {SUB: (BulkDrop(SUB, bulk, bulk * SECOND_US, 500),)}


def test_a_topic_keeps_its_name_after_its_deletion(rows: Rows) -> None:
    rows.add(Kind.CONFIG, {"change": "created", "topic": {"name": "projects/p/topics/a"}}, topic_id=5)
    rows.add(Kind.CONFIG, {"change": "deleted", "topic": {"name": "projects/p/topics/a"}}, topic_id=5)
    assert rows.dimensions().topics == {5: "projects/p/topics/a"}


def test_a_topic_that_is_not_described_is_named_by_its_subscription(rows: Rows) -> None:
    rows.config("checkpoint")
    rows.config("checkpoint", sub_id=8, topic="_deleted-topic_")
    assert rows.dimensions().topics == {TOPIC: "projects/p/topics/t"}


def test_unary_callers_and_streams_name_their_clients(rows: Rows) -> None:
    rows.add(Kind.STREAM, {"client": "publisher", "unary": True}, client_id=1, stream_id=10)
    opened = rows.stream(
        11, max_outstanding_messages=5, max_outstanding_bytes=6, stream_ack_deadline_seconds=7
    )
    closed = rows.closed(11)
    dimensions = rows.dimensions()
    assert dimensions.clients == {1: "publisher", CLIENT: "worker-1"}
    (stream,) = dimensions.streams.values()
    assert (stream.sub_id, stream.client_id, stream.opened_seq) == (SUB, CLIENT, opened)
    assert (stream.max_outstanding_messages, stream.max_outstanding_bytes, stream.ack_deadline_s) == (5, 6, 7)
    assert stream.closed_us == closed * SECOND_US


def test_a_start_of_the_server_closes_the_streams(rows: Rows) -> None:
    rows.stream(11)
    started = rows.start(2)
    rows.stream(12)
    closed = {one.stream_id: one.closed_us for one in rows.dimensions().streams.values()}
    assert closed == {11: started * SECOND_US, 12: OPEN}


def test_the_close_of_a_stream_that_was_opened_before_the_range_is_passed_over(rows: Rows) -> None:
    rows.closed(11)
    assert rows.dimensions().streams == {}


def test_gaps_and_starts_are_told(rows: Rows) -> None:
    rows.start(4)
    rows.add(Kind.GAP, {"last": 90}, aux=50)
    dimensions = rows.dimensions()
    assert dimensions.starts == (Start(1, SECOND_US, 4, "1.0", True),)
    assert dimensions.gaps == (Gap(2, 50, 90),)


def test_the_order_in_which_rows_come_does_not_matter_and_workers_can_be_sent_the_result(rows: Rows) -> None:
    rows.config("created")
    rows.seek(1)
    rows.config("updated", ack_deadline_seconds=30)
    rows.config("deleted")
    dimensions = rows.dimensions()
    assert Dimensions.from_rows(reversed(rows)) == dimensions
    assert pickle.loads(pickle.dumps(dimensions)) == dimensions


# -- what a server writes ---------------------------------------------------------------------------------

_RECORD = struct.Struct("<qqbiiqiiqqbiqqiqq")


def _tail(data_dir: Path, scratch: Path) -> list[dict[str, Any]]:
    """The events of a server that was killed, by the written layout of a record."""
    for file in data_dir.glob("*"):
        if file.is_file():
            shutil.copy(file, scratch)
    (database,) = [file for file in scratch.iterdir() if file.read_bytes()[:15] == b"SQLite format 3"]
    names = [column.name for column in JOURNAL_COLUMNS[:-1]]
    with closing(sqlite3.connect(database)) as connection:
        details = dict(connection.execute("SELECT seq, detail FROM journal_detail"))
        blobs = [data for (data,) in connection.execute("SELECT data FROM journal_tail ORDER BY first_seq")]
    rows = [dict(zip(names, fields, strict=True)) for blob in blobs for fields in _RECORD.iter_unpack(blob)]
    return [row | {"detail": details.get(row["seq"])} for row in rows]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A server that is told to do a bit of everything, is killed in the middle, and once more at the end."""
    grpc = pytest.importorskip("grpc", reason="speaks to a server")
    from pubsubd.wire import pb
    from tests.support.server import ServerProcess
    from tests.wire.calls import CHANNEL_OPTIONS, Client

    data_dir = tmp_path_factory.mktemp("server")
    topic, project = "projects/real/topics/orders", "projects/real"
    main, other, snapshot = (
        f"{project}/{one}" for one in ("subscriptions/main", "subscriptions/other", "snapshots/before")
    )
    with ServerProcess(data_dir) as server:
        with grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
            client = Client(channel)
            client.CreateTopic(name=topic)
            client.CreateTopic(name=f"{topic}-dead")
            client.CreateSubscription(
                name=main,
                topic=topic,
                ack_deadline_seconds=20,
                enable_exactly_once_delivery=True,
                retain_acked_messages=True,
                dead_letter_policy={"dead_letter_topic": f"{topic}-dead", "max_delivery_attempts": 6},
            )
            client.CreateSubscription(name=other, topic=topic)
            client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x")] * 3)
            (received, *_) = client.Pull(subscription=main, max_messages=1).received_messages
            client.Acknowledge(subscription=main, ack_ids=[received.ack_id])
            opening = pb.StreamingPullRequest(
                subscription=main,
                stream_ack_deadline_seconds=15,
                client_id="reader",
                max_outstanding_messages=10,
                max_outstanding_bytes=1000,
            )
            read = threading.Event()
            stream = client.StreamingPull(_then_wait(opening, read))
            next(stream)
            client.CreateSnapshot(name=snapshot, subscription=main)
            client.Seek(subscription=main, time={"seconds": 1})
            client.Seek(subscription=main, snapshot=snapshot)
            stream.cancel()
            read.set()
            changed = pb.Subscription(name=main, ack_deadline_seconds=40)
            client.UpdateSubscription(subscription=changed, update_mask={"paths": ["ack_deadline_seconds"]})
        server.kill()
        server.start()
        with grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
            client = Client(channel)
            client.DetachSubscription(subscription=main)
            client.DeleteSubscription(subscription=other)
            client.CreateSubscription(name=other, topic=topic)
        server.kill()
    return _tail(data_dir, tmp_path_factory.mktemp("copy"))


def _then_wait(opening: Any, until: threading.Event) -> Iterator[Any]:
    yield opening
    until.wait(20)


def test_what_a_real_server_writes_is_understood(told: list[dict[str, Any]]) -> None:
    dimensions = Dimensions.from_rows(told)

    main, first_other, second_other = dimensions.subscriptions.values()
    assert main.name == "projects/real/subscriptions/main"
    assert [one.ack_deadline_s for one in main.settings] == [20, 40, 40]
    assert [one.detached for one in main.settings] == [False, False, True]
    assert {(one.exactly_once, one.retain_acked, one.max_delivery_attempts) for one in main.settings} == {
        (True, True, 6)
    }
    assert first_other.name == second_other.name == "projects/real/subscriptions/other"
    assert first_other.end_seq < second_other.start_seq and second_other.end_seq == OPEN
    assert set(dimensions.topics.values()) == {
        "projects/real/topics/orders",
        "projects/real/topics/orders-dead",
    }

    beginning, to_time, to_snapshot = dimensions.epochs[main.sub_id]
    assert beginning.start_seq == main.start_seq and to_snapshot.end_seq == main.end_seq < OPEN
    assert (to_time.target_us, to_time.lo_us, to_time.is_snapshot) == (SECOND_US, SECOND_US, False)
    published = [row for row in told if row["kind"] == Kind.PUBLISH]
    assert all(to_time.keeps(row["message_id"], row["ts_us"]) for row in published)
    assert to_snapshot.is_snapshot

    (drop,) = dimensions.drops[main.sub_id]
    assert drop.seq < main.end_seq and drop.cutoff_us > max(row["ts_us"] for row in published)
    (stream,) = dimensions.streams.values()
    assert dimensions.clients[stream.client_id] == "reader"
    assert (stream.max_outstanding_messages, stream.max_outstanding_bytes, stream.ack_deadline_s) == (
        10,
        1000,
        15,
    )
    assert stream.opened_us < stream.closed_us < OPEN
    assert [one.clean for one in dimensions.starts][1:] == [False]
    assert dimensions.gaps == ()


def test_every_client_of_a_real_server_has_a_name(told: list[dict[str, Any]]) -> None:
    clients = Dimensions.from_rows(told).clients
    assert {row["client_id"] for row in told} - {0} <= set(clients)
    assert all(clients.values())


# -- Spark ------------------------------------------------------------------------------------------------


def _events(spark: Any, rows: list[dict[str, Any]]) -> Any:
    from pyspark.sql import types as T

    schema = T.StructType(
        [
            T.StructField(
                one.name,
                {
                    "int8": T.ByteType(),
                    "int32": T.IntegerType(),
                    "int64": T.LongType(),
                    "string": T.StringType(),
                }[one.type],
            )
            for one in JOURNAL_COLUMNS
        ]
    )
    return spark.createDataFrame(
        [tuple(row.get(one.name, 0) for one in JOURNAL_COLUMNS) for row in rows], schema
    )


def test_collected_with_spark_it_is_the_same(spark: Any, told: list[dict[str, Any]]) -> None:
    assert collect(_events(spark, told)) == Dimensions.from_rows(told)


def test_collecting_brings_one_checkpoint_of_each_resource(spark: Any, rows: Rows) -> None:
    for _hour in range(3):
        rows.config("checkpoint", labels={"snapshot": "no"})
        rows.config("checkpoint", sub_id=8)
        topic = {"name": "projects/p/topics/t"}
        rows.add(Kind.CONFIG, {"checkpoint": True, "topic": topic}, topic_id=TOPIC)
        taken = {"name": "projects/p/snapshots/n"}
        rows.add(Kind.CONFIG, {"checkpoint": True, "snapshot": taken}, topic_id=TOPIC, sub_id=SUB)
    dimensions = collect(_events(spark, rows))
    assert dimensions == rows.dimensions()
    assert sorted(dimensions.subscriptions) == [SUB, 8]


def test_events_get_the_number_of_seeks_before_them(
    spark: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.config("created")
    rows.config("created", sub_id=8)
    first, second, detached = rows.seek(1), rows.seek(2), rows.config("detached", detached=True)
    dimensions = rows.dimensions()
    asked = [(SUB, seq) for seq in (1, first, first + 1, second, second + 1, detached + 1)] + [(8, 9), (0, 9)]
    events = spark.createDataFrame(asked, "sub_id int, seq bigint")
    expected = [0, 0, 1, 1, 2, 2, 0, 0]

    by_expression = events.select("*", epoch_of(dimensions, "sub_id", "seq").alias("epoch")).collect()
    monkeypatch.setattr("analytics.dimensions._SEEKS_MAX", 1)
    by_join = with_epoch(events, dimensions).collect()

    epochs = {(*pair,): epoch for pair, epoch in zip(asked, expected, strict=True)}
    assert {(row.sub_id, row.seq): row.epoch for row in by_expression} == epochs
    assert {(row.sub_id, row.seq): row.epoch for row in by_join} == epochs


def test_settings_and_epochs_as_tables_leave_no_seq_out(spark: Any, rows: Rows) -> None:
    rows.config("created")
    updated = rows.config("updated", ack_deadline_seconds=30)
    seek = rows.seek(1)
    dimensions = rows.dimensions()
    settings = settings_df(spark, dimensions).orderBy("seq").collect()
    assert [(row.seq, row.next_seq, row.ack_deadline_s) for row in settings] == [
        (0, updated, 10),
        (updated, OPEN, 30),
    ]
    epochs = epochs_df(spark, dimensions).orderBy("epoch").collect()
    assert [(row.epoch, row.start_seq, row.end_seq, row.is_last) for row in epochs] == [
        (0, 1, seek, False),
        (1, seek, OPEN, True),
    ]
