"""What makes a Topic valid, at creation and at update.

Nothing here looks a resource up: whether the topic exists, and whether a schema that it names does, is the
broker's to decide. A function returns a new message and never changes the one it was given.

Source: Topic, UpdateTopicRequest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pubsubd.model import durations, errors, ingestion, later, masks, names, transforms
from pubsubd.model.labels import check_labels
from pubsubd.wire import pb

_KMS_KEY: Final = re.compile(r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+")

#: Written by the server only, or never shown; what a client sends here is dropped.
_NOT_STORED: Final = ("satisfies_pzs", "state", "tags")

#: Paths below a message field that may be updated on their own. Documented is only the whole field for the
#: policy; taking its parts as well costs nothing and refuses nobody.
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "message_storage_policy": ("allowed_persistence_regions", "enforce_in_transit"),
    "schema_settings": ("schema", "encoding", "first_revision_id", "last_revision_id"),
}
_IMMUTABLE: Final = frozenset({"name", "kms_key_name", *_NOT_STORED})


def created_topic(request: pb.Topic) -> pb.Topic:
    """The topic as it will be stored and returned.

    Raises:
        InvalidArgument: a field breaks its rule.
        Unimplemented: the topic is valid but asks for a feature of later work.

    Source: Publisher.CreateTopic.
    """
    names.check_topic(request.name)
    for rule in _RULES.values():
        rule(request)
    topic = _taken_in(request)
    _settle(topic)
    later.refuse_later_topic(topic)
    return topic


def check_topic_update(request: pb.UpdateTopicRequest) -> list[str]:
    """Everything about an update that can be judged without the topic; returns the paths of its mask.

    Values outside the mask are not looked at.

    Raises:
        InvalidArgument: bad name, bad mask, or a masked field breaks its rule.
    """
    names.check_topic(request.topic.name)
    paths = masks.checked_paths(request.update_mask, "UpdateTopicRequest", "Topic", _MUTABLE, _IMMUTABLE)
    for path in paths:
        if path in _RULES:
            _RULES[path](request.topic)
    return paths


def updated_topic(current: pb.Topic, request: pb.UpdateTopicRequest) -> pb.Topic:
    """`current` with what the mask names taken from the request; `current` stays as it is.

    Raises:
        InvalidArgument: the request breaks a rule, by itself or together with `current`.
        Unimplemented: the result would have a feature of later work.

    Source: Publisher.UpdateTopic.
    """
    paths = check_topic_update(request)
    topic = pb.Topic()
    topic.CopyFrom(current)
    asked = _taken_in(request.topic)
    masks.carry_over(topic, asked, paths)
    for path in paths:
        field, dot, part = path.partition(".")
        # A path to the whole field covers those to its parts.
        if dot and field not in paths and (topic.HasField(field) or asked.HasField(field)):
            masks.carry_over(getattr(topic, field), getattr(asked, field), [part])
            getattr(topic, field).SetInParent()
    touched = {path.partition(".")[0] for path in paths}
    # A part may be fine by itself and still make the whole invalid.
    for field in touched:
        _RULES[field](topic)
    _settle(topic)
    later.refuse_later_topic(topic, touched)
    return topic


def _taken_in(request: pb.Topic) -> pb.Topic:
    """A copy without what a client cannot set, and without fields that this server does not know."""
    topic = pb.Topic()
    topic.CopyFrom(request)
    topic.DiscardUnknownFields()
    for field in _NOT_STORED:
        topic.ClearField(field)
    return topic


def _settle(topic: pb.Topic) -> None:
    """Set what follows from the rest: only a topic with ingestion settings has a state."""
    topic.ClearField("state")
    if topic.HasField("ingestion_data_source_settings"):
        ingestion.activate(topic.ingestion_data_source_settings)
        topic.state = pb.Topic.ACTIVE


# --- one rule per field; each sees the whole message and looks at its field only --------------------------


def _check_labels(topic: pb.Topic) -> None:
    check_labels(topic.labels)


def _check_storage_policy(topic: pb.Topic) -> None:
    if not topic.HasField("message_storage_policy"):
        return
    regions = topic.message_storage_policy.allowed_persistence_regions
    # Regions are not compared with a list: it would be out of date, and a local server has only one.
    if not regions or not all(regions):
        raise errors.bad_argument(
            "message_storage_policy", "without a region it is not a valid configuration"
        )


def _check_kms_key_name(topic: pb.Topic) -> None:
    if topic.kms_key_name and _KMS_KEY.fullmatch(topic.kms_key_name) is None:
        raise errors.bad_argument(
            "kms_key_name",
            f"'{errors.echo(topic.kms_key_name)}' is not of the form "
            "projects/*/locations/*/keyRings/*/cryptoKeys/*",
        )


def _check_schema_settings(topic: pb.Topic) -> None:
    if not topic.HasField("schema_settings"):
        return
    settings = topic.schema_settings
    names.check_schema(settings.schema, "schema")
    if settings.encoding not in (pb.JSON, pb.BINARY):
        raise errors.bad_argument("schema_settings.encoding", "it must be JSON or BINARY")


def _check_ingestion(topic: pb.Topic) -> None:
    if topic.HasField("ingestion_data_source_settings"):
        ingestion.check_ingestion(topic.ingestion_data_source_settings)


def _check_transforms(topic: pb.Topic) -> None:
    transforms.check_transforms(topic.message_transforms)


_RULES: Final[dict[str, Callable[[pb.Topic], None]]] = {
    "labels": _check_labels,
    "message_storage_policy": _check_storage_policy,
    "kms_key_name": _check_kms_key_name,
    "schema_settings": _check_schema_settings,
    "message_retention_duration": durations.check_retention,
    "ingestion_data_source_settings": _check_ingestion,
    "message_transforms": _check_transforms,
}
_MUTABLE: Final = (
    frozenset(_RULES)
    .difference(_IMMUTABLE)
    .union(f"{field}.{part}" for field, parts in _PARTS.items() for part in parts)
)
