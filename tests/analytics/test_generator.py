"""The synthetic journals: in the layout, repeatable, and lawful but for what is meant to be wrong."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs pubsubd[analytics]")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pubsubd[analytics]")

from analytics import layout
from analytics.dimensions import OPEN, Dimensions
from analytics.layout import Kind, Result
from analytics.tables import CODES
from tests.analytics import reference
from tests.analytics.generator.builder import SECOND_US, Builder
from tests.analytics.generator.journal import Expected, write

EVENTS = 30_000
EACH = 2  # faults of every class


@dataclass
class Written:
    path: Path
    expected: Expected
    rows: list[dict[str, Any]]
    dimensions: Dimensions
    facts: list[dict[str, Any]]
    backlog: set[tuple[int, int]]

    @property
    def by_name(self) -> dict[str, int]:
        return {name: sub_id for sub_id, name in self.expected.subscriptions.items()}


def read(path: Path, expected: Expected) -> Written:
    rows = read_rows(path)
    resources = [row for row in rows if row["kind"] in _ABOUT_RESOURCES or row["kind"] == Kind.DROP]
    dimensions = Dimensions.from_rows(one for one in resources if one["message_id"] == 0)
    (backlog,) = (path / layout.BACKLOG).iterdir()
    still_open = pq.ParquetFile(backlog).read().to_pylist()
    facts = reference.replay(rows, dimensions)
    pairs = {(row["sub_id"], row["message_id"]) for row in still_open}
    return Written(path, expected, rows, dimensions, facts, pairs)


_ABOUT_RESOURCES = (Kind.SEEK, Kind.CONFIG, Kind.STREAM, Kind.START, Kind.GAP)


def read_rows(path: Path) -> list[dict[str, Any]]:
    segments = sorted((path / layout.SEGMENTS).rglob("*.parquet"), key=lambda one: one.name)
    return [row for segment in segments for row in pq.ParquetFile(segment).read().to_pylist()]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("faulty")
    return read(path, write(path, events=EVENTS, seed=1, violations=EACH, segment_events=7_000))


@pytest.fixture(scope="module")
def lawful(tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("lawful")
    return read(path, write(path, events=EVENTS, seed=2))


# -- files ------------------------------------------------------------------------------------------------


def test_segments_have_the_names_columns_and_metadata_of_the_layout(faulty: Written) -> None:
    segments = sorted((faulty.path / layout.SEGMENTS).rglob("*.parquet"))
    assert len(segments) > 3
    last = 0
    for segment in sorted(segments, key=lambda one: one.name):
        match = layout.SEGMENT_PATH.fullmatch(str(segment.relative_to(faulty.path / layout.SEGMENTS)))
        assert match is not None
        file = pq.ParquetFile(segment)
        assert int(match[3]) == last + 1
        assert file.metadata.num_rows == int(match[4]) - int(match[3]) + 1
        last = int(match[4])
        schema = file.schema_arrow
        assert [(one.name, str(one.type)) for one in schema] == [
            (one.name, one.type) for one in layout.COLUMNS
        ]
        assert file.metadata.metadata[layout.VERSION_KEY.encode()] == b"1"
        assert len(file.metadata.metadata[layout.SERVER_KEY.encode()]) == 16
    assert last == faulty.expected.events


def test_every_event_has_its_number_and_time_never_goes_back(faulty: Written) -> None:
    assert [row["seq"] for row in faulty.rows] == list(range(1, len(faulty.rows) + 1))
    assert all(a["ts_us"] <= b["ts_us"] for a, b in zip(faulty.rows, faulty.rows[1:], strict=False))
    published = [row["message_id"] for row in faulty.rows if row["kind"] == Kind.PUBLISH]
    assert published == list(range(1, faulty.expected.messages + 1))


def test_about_as_many_events_as_were_asked_for_in_few_bytes(lawful: Written) -> None:
    assert lawful.expected.events == pytest.approx(EVENTS, rel=0.05)
    assert lawful.expected.events == len(lawful.rows)
    assert dict(lawful.expected.kinds) == Counter(row["kind"] for row in lawful.rows)
    size = sum(one.stat().st_size for one in lawful.path.rglob("seg-*.parquet"))
    assert 10 <= size / len(lawful.rows) <= 22


def test_the_same_seed_makes_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("same", 5), ("other", 6)):
        write(tmp_path / name, events=4_000, seed=seed, violations=1)

    def contents(name: str) -> dict[str, bytes]:
        folder = tmp_path / name
        return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*.parquet")}

    assert contents("one") == contents("same")
    assert contents("one") != contents("other")


def test_an_hour_begins_a_segment_and_repeats_the_resources_first(tmp_path: Path) -> None:
    write(tmp_path, events=3_000, seed=0)  # half an hour, all in one
    assert len(list(tmp_path.rglob("hour=*"))) == 1
    b = Builder()
    topic = b.topic("t")
    b.publish(topic, at=3599)
    b.checkpoint(at=3600)
    b.publish(topic, at=3601)
    first, second = b.write(tmp_path / "by hand")
    assert (first.parent.name, second.parent.name) == ("hour=13", "hour=14")
    assert [row["kind"] for row in pq.ParquetFile(second).read().to_pylist()] == [Kind.CONFIG, Kind.PUBLISH]


# -- what is in them --------------------------------------------------------------------------------------


def test_a_lawful_journal_breaks_no_rule_of_deliveries(lawful: Written) -> None:
    assert lawful.expected.violations == []
    assert [row for row in lawful.facts if row["violations"]] == []


def test_what_was_meant_to_break_a_rule_does_and_nothing_else(faulty: Written) -> None:
    found = {
        (CODES[code], row["sub_id"], row["message_id"], seq)
        for row in faulty.facts
        for code, seq in zip(row["v_kind"], row["v_seq"], strict=True)
    }
    of_leases = {tuple(one) for one in faulty.expected.violations if one.code[:2] in ("G1", "G2", "G3")}
    assert found == of_leases


def test_there_are_faults_of_every_class(faulty: Written) -> None:
    counted = Counter(one.code for one in faulty.expected.violations)
    # A wrong reference is looked for where something else is wrong, so there is one more of that.
    assert counted == dict.fromkeys(CODES, EACH) | {"G1_delivered_after_ack": 2 * EACH}
    broken = {one.message_id for one in faulty.expected.violations}
    assert len(broken) == EACH * len(CODES)


@pytest.mark.parametrize("which", ["lawful", "faulty"])
def test_the_backlog_file_is_what_is_owed_and_not_finished(which: str, request: Any) -> None:
    written: Written = request.getfixturevalue(which)
    missing, surplus = set(), set()
    for sub_id, subscription in written.dimensions.subscriptions.items():
        epoch = written.dimensions.epochs[sub_id][-1]
        backlog = {pair for pair in written.backlog if pair[0] == sub_id}
        if subscription.end_seq < OPEN:
            surplus |= backlog
        elif not epoch.is_snapshot:
            still_open = open_messages(written, sub_id)
            missing |= still_open - backlog
            surplus |= backlog - still_open
    assert missing == written.expected.of("G4_lost")
    assert surplus == written.expected.of("G4_ghost")


def open_messages(written: Written, sub_id: int) -> set[tuple[int, int]]:
    """What a subscription is owed in its last epoch and has not finished."""
    subscription, epoch = written.dimensions.subscriptions[sub_id], written.dimensions.epochs[sub_id][-1]
    facts: dict[int, dict[int, Any]] = defaultdict(dict)
    for row in written.facts:
        if row["sub_id"] == sub_id:
            facts[row["message_id"]][row["epoch"]] = row
    rejected = {
        row["message_id"] for row in written.rows if row["kind"] == Kind.FILTERED and row["sub_id"] == sub_id
    }
    out = set()
    for row in written.rows:
        if row["kind"] != Kind.PUBLISH or row["topic_id"] != subscription.topic_id:
            continue
        message_id, before_seek = row["message_id"], row["seq"] < epoch.start_seq
        lives = facts.get(message_id, {})
        if row["seq"] < subscription.start_seq or message_id in rejected:
            continue
        if epoch.epoch in lives:
            last = lives[epoch.epoch]
            is_open = last["owed"] and not last["ack_us"] and not last["gone_us"]
        elif before_seek and epoch.epoch and row["ts_us"] < epoch.target_us:
            is_open = False
        elif before_seek and any(life["ack_us"] or life["gone_us"] for life in lives.values()):
            is_open = epoch.keeps(message_id, row["ts_us"])
        else:
            drops = written.dimensions.drops.get(sub_id, ())
            is_open = not any(drop.seq > row["seq"] and row["ts_us"] < drop.cutoff_us for drop in drops)
        if is_open:
            out.add((sub_id, message_id))
    return out


@pytest.mark.parametrize("which", ["lawful", "faulty"])
def test_keys_are_delivered_in_order_but_where_it_is_meant(which: str, request: Any) -> None:
    written: Written = request.getfixturevalue(which)
    ordered = [one for one in written.dimensions.subscriptions.values() if one.current.ordered]
    late, past = set(), set()
    for subscription in ordered:
        first_seq = {
            row["message_id"]: row["first_seq"]
            for row in written.facts
            if row["sub_id"] == subscription.sub_id and row["first_seq"]
        }
        latest: dict[int, int] = defaultdict(int)
        skipped: set[int] = set()
        for row in written.rows:
            if row["kind"] != Kind.PUBLISH or row["topic_id"] != subscription.topic_id or not row["okey"]:
                continue
            pair, seq = (subscription.sub_id, row["message_id"]), first_seq.get(row["message_id"])
            if seq is None:
                skipped.add(row["okey"])
                continue
            if seq < latest[row["okey"]]:
                late.add(pair)
            if row["okey"] in skipped:
                past.add(pair)
            latest[row["okey"]] = max(latest[row["okey"]], seq)
    assert late == written.expected.of("G5_out_of_order")
    assert past == written.expected.of("G5_skipped")


def test_all_that_a_server_does_is_in_a_journal(lawful: Written) -> None:
    kinds = {Kind(row["kind"]) for row in lawful.rows}
    assert kinds == set(Kind) - {Kind.GAP}
    results = {(Kind(row["kind"]).name, Result(row["result"]).name) for row in lawful.rows}
    assert {("ACK", "OK"), ("ACK", "NOOP"), ("ACK", "PERMANENT"), ("NACK", "OK"), ("EXTEND", "OK")} <= results
    seeks = [json.loads(row["detail"]) for row in lawful.rows if row["kind"] == Kind.SEEK]
    assert {"snapshot" in seek for seek in seeks} == {True, False}
    assert any(seek.get("kept_after_id") for seek in seeks)
    assert sum(row["kind"] == Kind.START for row in lawful.rows) == 3
    assert any(row["kind"] == Kind.DROP and row["message_id"] == 0 for row in lawful.rows)
    names = Counter(one.name for one in lawful.dimensions.subscriptions.values())
    assert names.most_common(1)[0][1] == 2  # one was deleted and created again
    assert any(one.current.detached for one in lawful.dimensions.subscriptions.values())


def test_seeks_bring_back_what_was_acked_and_find_leases_that_run_on(lawful: Written) -> None:
    again = [row for row in lawful.facts if row["epoch"] > 0 and row["deliveries"] and row["owed"]]
    acked_before = {
        (row["sub_id"], row["message_id"]) for row in lawful.facts if row["epoch"] == 0 and row["acks"]
    }
    assert sum((row["sub_id"], row["message_id"]) in acked_before for row in again) > 10
    carried = [row for row in lawful.facts if row["epoch"] > 0 and row["acks"] and not row["deliveries"]]
    assert carried


def test_dead_letters_are_published_again_with_the_id_that_is_told(lawful: Written) -> None:
    copies = {row["aux"]: row for row in lawful.rows if row["kind"] == Kind.DEADLETTER}
    published = {row["message_id"]: row for row in lawful.rows if row["kind"] == Kind.PUBLISH}
    assert copies
    for copy_id, row in copies.items():
        copy, source = published[copy_id], published[row["message_id"]]
        assert (copy["topic_id"], copy["ts_us"]) == (row["topic_id"], row["ts_us"])
        assert (copy["okey"], copy["payload_hash"]) == (source["okey"], source["payload_hash"])


@pytest.mark.parametrize("skew", ["key", "subscription"])
def test_a_skewed_journal_has_half_of_all_in_one_place(tmp_path: Path, skew: str) -> None:
    write(tmp_path, events=8_000, skew=skew)
    rows = read_rows(tmp_path)
    if skew == "key":
        places = Counter(row["okey"] for row in rows if row["kind"] == Kind.PUBLISH)
        places.pop(0, None)
        total = sum(row["kind"] == Kind.PUBLISH for row in rows)
    else:
        places = Counter(row["sub_id"] for row in rows if row["kind"] == Kind.DELIVER)
        total = places.total()
    assert places.most_common(1)[0][1] / total == pytest.approx(0.5, abs=0.08)


# -- by hand ----------------------------------------------------------------------------------------------


def test_what_a_written_event_says_of_others_follows_from_them(tmp_path: Path) -> None:
    b = Builder()
    topic = b.topic("t")
    sub = b.subscription("s", topic, ack_deadline_s=20)
    stream = b.stream(sub, "worker")
    b.begin()
    message = b.publish(topic, at=1, key="k")
    b.deliver(sub, message, at=2, stream=stream)
    b.extend(sub, message, at=3, seconds=30)
    b.expire(sub, message)
    b.deliver(sub, message, at=40)
    b.ack(sub, message, at=41, generation=1, result=Result.PERMANENT)
    b.nack(sub, message, at=42)
    b.deliver(sub, message, at=43)
    b.reset(sub, message, at=44)
    b.deliver(sub, message, at=64)
    b.write(tmp_path)
    rows = [row for row in read_rows(tmp_path) if row["message_id"]]
    told = [
        (Kind(row["kind"]).name, (row["ts_us"] - b.start_us) / SECOND_US, row["generation"], row["attempt"])
        for row in rows
    ]
    assert told == [
        ("PUBLISH", 1, 0, 0),
        ("DELIVER", 2, 1, 1),
        ("EXTEND", 3, 1, 1),
        ("EXPIRE", 33, 1, 1),
        ("DELIVER", 40, 2, 2),
        ("ACK", 41, 1, 1),
        ("NACK", 42, 2, 2),
        ("DELIVER", 43, 3, 3),
        ("RESET", 44, 3, 3),
        ("DELIVER", 64, 4, 3),
    ]
    published, delivered, extended, expired, _, refused, *_ = rows
    assert delivered["ref_ts_us"] == published["ts_us"]
    assert delivered["deadline_us"] - delivered["ts_us"] == 20 * SECOND_US
    assert expired["deadline_us"] == extended["deadline_us"] == expired["ts_us"]
    assert refused["ref_ts_us"] == delivered["ts_us"] == expired["ref_ts_us"]
    assert refused["client_id"] == delivered["client_id"] != published["client_id"]


def test_a_second_write_has_only_what_was_added(tmp_path: Path) -> None:
    b = Builder()
    topic = b.topic("t")
    (first,) = b.write(tmp_path)
    b.publish(topic)
    (second,) = b.write(tmp_path)
    assert pq.ParquetFile(first).metadata.num_rows == b.last_seq - 1
    assert pq.ParquetFile(second).metadata.num_rows == 1
    assert b.write(tmp_path) == []


def test_what_is_lost_is_not_written_and_a_gap_may_say_so(tmp_path: Path) -> None:
    b = Builder()
    topic = b.topic("t")
    for at in range(5):
        b.publish(topic, at=at)
    seq = b.gap(5, 6, at=9)
    paths = b.write(tmp_path)
    rows = read_rows(tmp_path)
    assert len(paths) == 2
    assert {5, 6}.isdisjoint(row["seq"] for row in rows)
    gap = next(row for row in rows if row["seq"] == seq)
    assert (gap["aux"], json.loads(gap["detail"])) == (5, {"last": 6})
