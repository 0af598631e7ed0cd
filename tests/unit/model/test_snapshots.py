"""Snapshots at creation, at update and in lists; seek requests; how long a snapshot lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import snapshots
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.arbitrary import any_message
from tests.unit.model.conftest import DAY, SUBSCRIPTION, TOPIC, refusal

SNAPSHOT = "projects/p/snapshots/before"
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
WEEK_US = 7 * DAY * SECOND_US
NOW_US = 1_795_000_000_123_456
TIMESTAMP_MIN, TIMESTAMP_MAX = -62_135_596_800, 253_402_300_799


def creation(**fields: object) -> pb.CreateSnapshotRequest:
    return pb.CreateSnapshotRequest(**{"name": SNAPSHOT, "subscription": SUBSCRIPTION, **fields})


def time(time_us: int, nanos: int = 0) -> pb.Timestamp:
    seconds, fraction_us = divmod(time_us, SECOND_US)
    return pb.Timestamp(seconds=seconds, nanos=fraction_us * 1000 + nanos)


def stored(**fields: object) -> pb.Snapshot:
    return pb.Snapshot(
        **{
            "name": SNAPSHOT,
            "topic": TOPIC,
            "expire_time": time(NOW_US + WEEK_US),
            "labels": {"a": "b"},
            **fields,
        }
    )


def update(*paths: str, **fields: object) -> pb.UpdateSnapshotRequest:
    return pb.UpdateSnapshotRequest(
        snapshot=pb.Snapshot(**{"name": SNAPSHOT, **fields}), update_mask=pb.FieldMask(paths=paths)
    )


# --- creation --------------------------------------------------------------------------------------------


def test_a_snapshot_has_its_name_topic_labels_and_the_time_at_which_it_goes() -> None:
    request = creation(labels={"env": "test"}, tags={"123/env": "test"})

    snapshot = snapshots.created_snapshot(request, TOPIC, NOW_US)

    assert snapshot == pb.Snapshot(
        name=SNAPSHOT,
        topic=TOPIC,
        expire_time=pb.Timestamp(seconds=1_795_000_000, nanos=123_456_000),
        labels={"env": "test"},
    )


def test_a_created_snapshot_is_a_copy() -> None:
    request = creation(labels={"env": "test"})

    snapshots.created_snapshot(request, TOPIC, NOW_US).labels["env"] = "prod"

    assert request.labels["env"] == "test"


def test_an_empty_name_is_left_to_the_server() -> None:
    assert snapshots.created_snapshot(creation(name=""), TOPIC, NOW_US).name == ""


@pytest.mark.parametrize("name", ["before", "projects/p/snapshots/goog-x", "projects/p/topics/before", TOPIC])
def test_a_bad_name_is_refused(name: str) -> None:
    said = refusal("INVALID_ARGUMENT", snapshots.check_create_snapshot, creation(name=name))

    assert f"Invalid resource name given (name={name})" in said


@pytest.mark.parametrize("subscription", ["", "billing", TOPIC])
def test_a_bad_name_of_the_subscription_is_refused(subscription: str) -> None:
    said = refusal(
        "INVALID_ARGUMENT", snapshots.check_create_snapshot, creation(subscription=subscription, name="")
    )

    assert f"Invalid resource name given (name={subscription})" in said


@pytest.mark.parametrize("labels", [{"A": "b"}, {"": "b"}, {"a": "B"}, {f"k{i}": "" for i in range(65)}])
def test_bad_labels_are_refused_at_creation_and_at_update(labels: dict[str, str]) -> None:
    said = refusal("INVALID_ARGUMENT", snapshots.created_snapshot, creation(labels=labels), TOPIC, NOW_US)
    assert "(argument=Invalid labels" in said

    said = refusal("INVALID_ARGUMENT", snapshots.check_snapshot_update, update("labels", labels=labels))
    assert "(argument=Invalid labels" in said


# --- how long it lives -----------------------------------------------------------------------------------


def test_a_snapshot_of_nothing_lives_for_a_week() -> None:
    assert snapshots.expire_us(NOW_US, 0) == NOW_US + WEEK_US


@pytest.mark.parametrize("age_us", [0, 1, HOUR_US, WEEK_US - HOUR_US])
def test_it_goes_a_week_after_its_oldest_message_was_published(age_us: int) -> None:
    oldest_us = NOW_US - age_us

    assert oldest_us + WEEK_US == snapshots.expire_us(NOW_US, oldest_us)


def test_a_lifetime_of_one_hour_is_allowed_and_a_microsecond_less_refused() -> None:
    oldest_us = NOW_US - (WEEK_US - HOUR_US)

    assert snapshots.expire_us(NOW_US, oldest_us) == NOW_US + HOUR_US
    for too_old_us in (oldest_us - 1, oldest_us - WEEK_US, 1):
        said = refusal("FAILED_PRECONDITION", snapshots.expire_us, NOW_US, too_old_us)
        assert "backlog of the source subscription is too old" in said


def test_a_message_from_the_future_does_not_lengthen_its_life() -> None:
    assert snapshots.expire_us(NOW_US, NOW_US + 1) == NOW_US + WEEK_US


# --- update ----------------------------------------------------------------------------------------------


def updated(request: pb.UpdateSnapshotRequest) -> pb.Snapshot:
    return snapshots.updated_snapshot(stored(), request, NOW_US, NOW_US + WEEK_US)


def test_labels_are_replaced_as_a_whole_and_the_rest_stays() -> None:
    assert updated(update("labels", labels={"c": "d"})) == stored(labels={"c": "d"})
    assert updated(update("labels")) == stored(labels={})


def test_what_the_mask_does_not_name_is_not_looked_at() -> None:
    request = update("labels", labels={"c": "d"}, topic="nonsense", expire_time=pb.Timestamp(nanos=-1))

    assert updated(request) == stored(labels={"c": "d"})


@pytest.mark.parametrize("expire_us", [NOW_US + 1, NOW_US + HOUR_US, NOW_US + WEEK_US])
def test_a_snapshot_may_go_at_any_time_between_now_and_its_first_end(expire_us: int) -> None:
    assert updated(update("expire_time", expire_time=time(expire_us))) == stored(expire_time=time(expire_us))


def test_the_end_may_be_moved_back_to_what_it_was_at_first() -> None:
    current = stored(expire_time=time(NOW_US + HOUR_US))

    request = update("expire_time", "labels", expire_time=time(NOW_US + WEEK_US))

    assert snapshots.updated_snapshot(current, request, NOW_US, NOW_US + WEEK_US) == stored(labels={})
    assert current == stored(expire_time=time(NOW_US + HOUR_US))


@pytest.mark.parametrize(
    ("expire_us", "words"),
    [
        (NOW_US, "in the future"),
        (NOW_US - 1, "in the future"),
        (0, "in the future"),
        (-1, "in the future"),
        (NOW_US + WEEK_US + 1, "not be later"),
        (TIMESTAMP_MAX * SECOND_US, "not be later"),
    ],
)
def test_another_end_is_refused(expire_us: int, words: str) -> None:
    said = refusal("INVALID_ARGUMENT", updated, update("expire_time", expire_time=time(expire_us)))

    assert "(argument=expire_time)" in said and words in said


def test_the_end_is_stored_in_whole_microseconds() -> None:
    asked = update("expire_time", expire_time=time(NOW_US + WEEK_US, nanos=999))
    assert updated(asked) == stored()

    # What remains of it must still lie in the future.
    refusal("INVALID_ARGUMENT", updated, update("expire_time", expire_time=time(NOW_US, nanos=999)))


def test_the_end_cannot_be_removed() -> None:
    assert "(argument=expire_time)" in refusal("INVALID_ARGUMENT", updated, update("expire_time"))


@pytest.mark.parametrize(
    "timestamp",
    [
        pb.Timestamp(seconds=TIMESTAMP_MIN - 1),
        pb.Timestamp(seconds=TIMESTAMP_MAX + 1),
        pb.Timestamp(seconds=1, nanos=-1),
        pb.Timestamp(seconds=1, nanos=1_000_000_000),
        pb.Timestamp(seconds=2**63 - 1),
    ],
    ids=str,
)
def test_a_timestamp_that_is_none_is_refused_at_update_and_at_seek(timestamp: pb.Timestamp) -> None:
    said = refusal("INVALID_ARGUMENT", updated, update("expire_time", expire_time=timestamp))
    assert "(argument=expire_time)" in said and "google.protobuf.Timestamp" in said

    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=timestamp)
    said = refusal("INVALID_ARGUMENT", snapshots.check_seek, request)
    assert "(argument=time)" in said and "google.protobuf.Timestamp" in said


def test_the_paths_of_a_mask_are_returned_once_each() -> None:
    request = update("labels", "expire_time", "labels", expire_time=time(NOW_US))

    assert snapshots.check_snapshot_update(request) == ["labels", "expire_time"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "update_mask in UpdateSnapshotRequest must be set"),
        (["name"], "update_mask in UpdateSnapshotRequest is invalid: the field 'name' is not mutable"),
        (["labels", "topic"], "the field 'topic' is not mutable"),
        (["expireTime"], "'expireTime' is not a known Snapshot field"),
        (["labels.a"], "'labels.a' is not a known Snapshot field"),
        (["expire_time.seconds"], "'expire_time.seconds' is not a known Snapshot field"),
        (["*"], "'*' is not a known Snapshot field"),
        (["tags"], "'tags' is not a known Snapshot field"),
    ],
)
def test_a_bad_mask_is_refused(paths: list[str], words: str) -> None:
    assert words in refusal("INVALID_ARGUMENT", snapshots.check_snapshot_update, update(*paths))


@pytest.mark.parametrize("name", ["", "before", SUBSCRIPTION])
def test_an_update_of_a_bad_name_is_refused(name: str) -> None:
    said = refusal("INVALID_ARGUMENT", snapshots.check_snapshot_update, update("labels", name=name))

    assert f"Invalid resource name given (name={name})" in said


def test_an_update_without_a_snapshot_is_refused_for_its_name() -> None:
    request = pb.UpdateSnapshotRequest(update_mask=pb.FieldMask(paths=["labels"]))

    assert "(name=)" in refusal("INVALID_ARGUMENT", snapshots.check_snapshot_update, request)


# --- what a client sees ----------------------------------------------------------------------------------


def test_a_snapshot_is_shown_as_it_is_stored_until_its_topic_was_deleted() -> None:
    snapshot = stored()

    assert snapshots.shown_snapshot(snapshot, topic_deleted=False) == snapshot
    assert snapshots.shown_snapshot(snapshot, topic_deleted=True) == stored(topic="_deleted-topic_")
    assert snapshot == stored()


# --- lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [0, 1, 1000])
def test_a_list_with_a_page_size_of_0_to_1000_is_accepted(page_size: int) -> None:
    snapshots.check_list_snapshots(pb.ListSnapshotsRequest(project="projects/p", page_size=page_size))
    snapshots.check_list_topic_snapshots(pb.ListTopicSnapshotsRequest(topic=TOPIC, page_size=page_size))


@pytest.mark.parametrize("page_size", [-1, 1001])
def test_another_page_size_is_refused(page_size: int) -> None:
    for check, request in (
        (
            snapshots.check_list_snapshots,
            pb.ListSnapshotsRequest(project="projects/p", page_size=page_size),
        ),
        (
            snapshots.check_list_topic_snapshots,
            pb.ListTopicSnapshotsRequest(topic=TOPIC, page_size=page_size),
        ),
    ):
        said = refusal("INVALID_ARGUMENT", check, request)
        assert "page_size is out of bounds" in said


def test_a_list_of_a_bad_project_or_topic_is_refused() -> None:
    said = refusal(
        "INVALID_ARGUMENT", snapshots.check_list_snapshots, pb.ListSnapshotsRequest(project="projects/")
    )
    assert "Invalid resource name given (name=projects/)" in said

    request = pb.ListTopicSnapshotsRequest(topic="_deleted-topic_")
    said = refusal("INVALID_ARGUMENT", snapshots.check_list_topic_snapshots, request)
    assert "Invalid resource name given (name=_deleted-topic_)" in said


# --- seek ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        {"time": pb.Timestamp()},
        {"time": pb.Timestamp(seconds=TIMESTAMP_MIN)},
        {"time": pb.Timestamp(seconds=TIMESTAMP_MAX, nanos=999_999_999)},
        {"snapshot": SNAPSHOT},
        {"snapshot": "projects/other/snapshots/before"},
    ],
    ids=str,
)
def test_a_seek_names_one_target(target: dict[str, object]) -> None:
    snapshots.check_seek(pb.SeekRequest(subscription=SUBSCRIPTION, **target))


def test_a_seek_without_a_target_is_refused() -> None:
    said = refusal("INVALID_ARGUMENT", snapshots.check_seek, pb.SeekRequest(subscription=SUBSCRIPTION))

    assert "a time or a snapshot must be specified" in said


@pytest.mark.parametrize("snapshot", ["", "before", TOPIC, "projects/p/snapshots/ab"])
def test_a_seek_to_a_bad_name_is_refused(snapshot: str) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, snapshot=snapshot)

    assert f"(name={snapshot})" in refusal("INVALID_ARGUMENT", snapshots.check_seek, request)


def test_a_seek_of_a_bad_name_is_refused_before_its_target() -> None:
    assert "(name=s)" in refusal("INVALID_ARGUMENT", snapshots.check_seek, pb.SeekRequest(subscription="s"))


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected_us"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (0, 999, 1),
        (0, 1000, 1),
        (0, 1001, 2),
        (1_795_000_000, 123_456_000, NOW_US),
        (1_795_000_000, 123_456_001, NOW_US + 1),
        (1, 999_999_999, 2 * SECOND_US),
        (-1, 0, -SECOND_US),
        (-1, 999_999_001, 0),
        (-1, 1, -SECOND_US + 1),
        (TIMESTAMP_MIN, 0, TIMESTAMP_MIN * SECOND_US),
        (TIMESTAMP_MAX, 999_999_999, (TIMESTAMP_MAX + 1) * SECOND_US),
    ],
)
def test_the_time_sought_is_rounded_up_to_a_microsecond(seconds: int, nanos: int, expected_us: int) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=pb.Timestamp(seconds=seconds, nanos=nanos))

    assert expected_us == snapshots.seek_time_us(request)


@given(st.integers(-(10**9), 10**9), st.integers(-3, 3), st.integers(0, 999))
def test_a_message_lies_before_the_rounded_time_just_when_it_lies_before_the_time_sought(
    sought_us: int, offset_us: int, sought_nanos: int
) -> None:
    request = pb.SeekRequest(subscription=SUBSCRIPTION, time=time(sought_us, sought_nanos))
    publish_us = sought_us + offset_us

    is_before = publish_us * 1000 < sought_us * 1000 + sought_nanos

    assert is_before == (publish_us < snapshots.seek_time_us(request))


# --- any request -----------------------------------------------------------------------------------------


@given(any_message(pb.CreateSnapshotRequest))
def test_any_creation_is_accepted_or_refused(request: pb.CreateSnapshotRequest) -> None:
    try:
        snapshots.created_snapshot(request, TOPIC, NOW_US)
    except PubsubError as error:
        assert error.status == "INVALID_ARGUMENT"


@given(any_message(pb.Snapshot), st.lists(st.sampled_from(["labels", "expire_time", "name", ""]), max_size=3))
def test_any_update_is_accepted_or_refused(snapshot: pb.Snapshot, paths: list[str]) -> None:
    snapshot.name = SNAPSHOT
    request = pb.UpdateSnapshotRequest(snapshot=snapshot, update_mask=pb.FieldMask(paths=paths))
    try:
        after = updated(request)
    except PubsubError as error:
        assert error.status == "INVALID_ARGUMENT"
    else:
        assert NOW_US < snapshots.expire_time_us(after) <= NOW_US + WEEK_US


@given(any_message(pb.SeekRequest))
def test_any_seek_is_accepted_or_refused(request: pb.SeekRequest) -> None:
    try:
        snapshots.check_seek(request)
    except PubsubError as error:
        assert error.status == "INVALID_ARGUMENT"
    else:
        assert request.snapshot or abs(snapshots.seek_time_us(request)) < 2**62
