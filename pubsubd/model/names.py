"""Names of resources: what is one, and how to take one apart.

Names are compared byte for byte. A project is whatever stands between two slashes, since people use ids
such as `test` that the real service would refuse; every other segment follows the published rules.

Source: the `name` fields of Topic, Subscription, Snapshot and Schema, and
https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names.
"""

from __future__ import annotations

import re
from typing import Final

from pubsubd.model import errors, limits

#: Shown in place of the name of a topic or schema that is gone. None of them is a name: a client that sends
#: one back is refused, because an id begins with a letter.
DELETED_TOPIC: Final = "_deleted-topic_"
DELETED_SCHEMA: Final = "_deleted-schema_"

_ID: Final = (
    rf"(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]"
    rf"{{{limits.RESOURCE_ID_CHARS_MIN - 1},{limits.RESOURCE_ID_CHARS_MAX - 1}}}"
)
_PROJECT: Final = re.compile(r"projects/[^/]+")
_TOPIC: Final = re.compile(rf"projects/[^/]+/topics/{_ID}")
_SUBSCRIPTION: Final = re.compile(rf"projects/[^/]+/subscriptions/{_ID}")
_SNAPSHOT: Final = re.compile(rf"projects/[^/]+/snapshots/{_ID}")
_SCHEMA: Final = re.compile(rf"projects/[^/]+/schemas/{_ID}")
_SCHEMA_REVISION: Final = re.compile(rf"(projects/[^/]+/schemas/{_ID})(?:@([^/@]+))?")


def check_project(name: str, field: str = "name") -> None:
    """Raise InvalidArgument unless `name` is `projects/{project}`; the project need not exist."""
    _check(_PROJECT, name, field)


def check_topic(name: str, field: str = "name") -> None:
    """Raise InvalidArgument unless `name` is `projects/{project}/topics/{topic}`."""
    _check(_TOPIC, name, field)


def check_subscription(name: str, field: str = "name") -> None:
    """Raise InvalidArgument unless `name` is `projects/{project}/subscriptions/{subscription}`."""
    _check(_SUBSCRIPTION, name, field)


def check_snapshot(name: str, field: str = "name") -> None:
    """Raise InvalidArgument unless `name` is `projects/{project}/snapshots/{snapshot}`."""
    _check(_SNAPSHOT, name, field)


def check_schema(name: str, field: str = "name") -> None:
    """Raise InvalidArgument unless `name` is `projects/{project}/schemas/{schema}`, without a revision."""
    _check(_SCHEMA, name, field)


def schema_and_revision(name: str, field: str = "name") -> tuple[str, str]:
    """The schema and the revision id, empty for none, of `projects/{project}/schemas/{schema}@{revision_id}`.

    Raises:
        InvalidArgument: `name` is no such name. Which revision ids there are is not judged here.

    Source: GetSchemaRequest.name, DeleteSchemaRevisionRequest.name.
    """
    found = _SCHEMA_REVISION.fullmatch(name)
    if found is None:
        raise errors.bad_name(name, field)
    return found[1], found[2] or ""


def _check(pattern: re.Pattern[str], name: str, field: str) -> None:
    # fullmatch, because `$` would let a trailing line break pass.
    if pattern.fullmatch(name) is None:
        raise errors.bad_name(name, field)


def leaf(name: str) -> str:
    """The last segment: `t` of `projects/p/topics/t`."""
    return name.rpartition("/")[2]


def collection_of(name: str) -> str:
    """The word before the last segment, `topics` of `projects/p/topics/t`; empty where there is none."""
    return name.rpartition("/")[0].rpartition("/")[2]


def project_of(name: str) -> str:
    """The project that a valid name lies in: `projects/p` of `projects/p/topics/t`."""
    return name[: name.index("/", len("projects/"))]


def generated_subscription_name(project: str, unique: str) -> str:
    """Name for a subscription created without one, in `project` (`projects/p`).

    `unique` comes from the caller, since this room draws no chance; it must be made of characters that an
    id may hold.

    Source: Subscription.name (the server assigns a name when none is given).
    """
    name = f"{project}/subscriptions/sub-{unique}"
    assert _SUBSCRIPTION.fullmatch(name), name
    return name


def generated_snapshot_name(project: str, unique: str) -> str:
    """As `generated_subscription_name`, for a snapshot; it lies in the project of its subscription.

    Source: CreateSnapshotRequest.name (the server assigns a name when none is given).
    """
    name = f"{project}/snapshots/snap-{unique}"
    assert _SNAPSHOT.fullmatch(name), name
    return name
