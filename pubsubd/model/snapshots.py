"""What makes a snapshot and a seek valid, how long a snapshot lives, and what a client sees of it.

Nothing here looks a resource up: whether the subscription and the snapshot exist, and belong to the same
topic, is the broker's to decide. A function returns a new message and never changes the one it was given.

Source: Snapshot, CreateSnapshotRequest, UpdateSnapshotRequest, SeekRequest.
"""

from __future__ import annotations

from typing import Final

from pubsubd.model import durations, errors, limits, masks, names, requests
from pubsubd.model.labels import check_labels
from pubsubd.wire import pb

_MUTABLE: Final = frozenset({"labels", "expire_time"})
_IMMUTABLE: Final = frozenset({"name", "topic"})


# --- snapshots -------------------------------------------------------------------------------------------


def check_create_snapshot(request: pb.CreateSnapshotRequest) -> None:
    """Raise InvalidArgument for a bad name or label. An empty name is fine: the server makes one up.

    Source: CreateSnapshotRequest.name, CreateSnapshotRequest.labels.
    """
    if request.name:
        names.check_snapshot(request.name)
    names.check_subscription(request.subscription)
    check_labels(request.labels)


def created_snapshot(request: pb.CreateSnapshotRequest, topic_name: str, expire_us: int) -> pb.Snapshot:
    """The snapshot as it will be stored and returned.

    An empty name is left empty: the caller sets one from `names.generated_snapshot_name`. `topic_name` is
    that of the subscription, also if the topic was deleted: see `shown_snapshot`.

    Raises:
        InvalidArgument: a field breaks its rule.

    Source: Subscriber.CreateSnapshot.
    """
    check_create_snapshot(request)
    return pb.Snapshot(
        name=request.name,
        topic=topic_name,
        expire_time=_timestamp(expire_us),
        labels=request.labels,
    )


def expire_us(now_us: int, oldest_us: int) -> int:
    """When a snapshot taken now goes: a week after the oldest message that its subscription still owes.

    `oldest_us` is the publish time of that message, 0 if there is none.

    Raises:
        FailedPrecondition: the snapshot would live for less than an hour.

    Source: Snapshot.expire_time.
    """
    # A clock that was set back does not lengthen the life of a snapshot.
    age_us = max(0, now_us - oldest_us) if oldest_us else 0
    lifetime_us = limits.SNAPSHOT_LIFETIME_US_MAX - age_us
    if lifetime_us < limits.SNAPSHOT_LIFETIME_US_MIN:
        raise errors.backlog_too_old()
    return now_us + lifetime_us


def check_snapshot_update(request: pb.UpdateSnapshotRequest) -> list[str]:
    """Everything about an update that can be judged without the snapshot; returns the paths of its mask.

    Values outside the mask are not looked at.

    Raises:
        InvalidArgument: bad name, bad mask, or a masked field breaks its rule.

    Source: UpdateSnapshotRequest.update_mask.
    """
    names.check_snapshot(request.snapshot.name)
    paths = masks.checked_paths(
        request.update_mask, "UpdateSnapshotRequest", "Snapshot", _MUTABLE, _IMMUTABLE
    )
    if "labels" in paths:
        check_labels(request.snapshot.labels)
    if "expire_time" in paths:
        if not request.snapshot.HasField("expire_time"):
            raise errors.bad_argument("expire_time", "a snapshot cannot be without one")
        durations.check_timestamp(request.snapshot.expire_time, "expire_time")
    return paths


def updated_snapshot(
    current: pb.Snapshot, request: pb.UpdateSnapshotRequest, now_us: int, expire_us_max: int
) -> pb.Snapshot:
    """`current` with what the mask names taken from the request; `current` stays as it is.

    `expire_us_max` is what `expire_us` gave when the snapshot was taken. Between now and then the end may be
    moved to and fro; it is stored in whole microseconds.

    Raises:
        InvalidArgument: the request breaks a rule, by itself or together with `current`.

    Source: Subscriber.UpdateSnapshot.
    """
    paths = check_snapshot_update(request)
    snapshot = pb.Snapshot()
    snapshot.CopyFrom(current)
    masks.carry_over(snapshot, request.snapshot, paths)
    if "expire_time" in paths:
        asked_us = expire_time_us(snapshot)
        if asked_us <= now_us:
            raise errors.bad_argument("expire_time", "it must lie in the future")
        if asked_us > expire_us_max:
            raise errors.bad_argument(
                "expire_time",
                "it must not be later than seven days after the oldest message of the snapshot",
            )
        snapshot.expire_time.CopyFrom(_timestamp(asked_us))
    return snapshot


def shown_snapshot(stored: pb.Snapshot, topic_deleted: bool) -> pb.Snapshot:
    """The snapshot as a client sees it.

    Source: Snapshot.topic; what it is once the topic was deleted is documented for subscriptions only.
    """
    snapshot = pb.Snapshot()
    snapshot.CopyFrom(stored)
    if topic_deleted:
        snapshot.topic = names.DELETED_TOPIC
    return snapshot


def expire_time_us(snapshot: pb.Snapshot) -> int:
    """When the snapshot goes, in whole microseconds; a fraction of one is dropped."""
    return _nanoseconds(snapshot.expire_time) // 1000


def check_list_snapshots(request: pb.ListSnapshotsRequest) -> None:
    """Raise InvalidArgument for a bad project or page size; the token is `paging.page`'s to judge.

    Source: ListSnapshotsRequest.project, ListSnapshotsRequest.page_size.
    """
    names.check_project(request.project)
    requests.check_page_size(request.page_size)


def check_list_topic_snapshots(request: pb.ListTopicSnapshotsRequest) -> None:
    """Raise InvalidArgument for a bad topic name or page size; the token is `paging.page`'s to judge.

    Source: ListTopicSnapshotsRequest.topic, ListTopicSnapshotsRequest.page_size.
    """
    names.check_topic(request.topic)
    requests.check_page_size(request.page_size)


# --- seek ------------------------------------------------------------------------------------------------


def check_seek(request: pb.SeekRequest) -> None:
    """Raise InvalidArgument unless the request names a subscription and one target, a time or a snapshot.

    Source: SeekRequest.time, SeekRequest.snapshot.
    """
    names.check_subscription(request.subscription)
    match request.WhichOneof("target"):
        case "time":
            durations.check_timestamp(request.time, "time")
        case "snapshot":
            names.check_snapshot(request.snapshot)
        case _:
            raise errors.no_seek_target()


def seek_time_us(request: pb.SeekRequest) -> int:
    """The first microsecond that does not lie before the time sought; negative before 1970.

    Rounded up, so that a publish time, which is whole, lies before this one just when it lies before the
    time sought.

    Source: SeekRequest.time.
    """
    return -(-_nanoseconds(request.time) // 1000)


# --- timestamps ------------------------------------------------------------------------------------------


def _nanoseconds(timestamp: pb.Timestamp) -> int:
    time_ns: int = timestamp.seconds * durations.SECOND_NS + timestamp.nanos
    return time_ns


def _timestamp(time_us: int) -> pb.Timestamp:
    seconds, fraction_us = divmod(time_us, limits.SECOND_US)
    return pb.Timestamp(seconds=seconds, nanos=fraction_us * 1000)
