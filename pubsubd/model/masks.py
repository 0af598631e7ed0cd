"""Update masks: which fields an update may name, and how they are carried over.

An update takes every field that its mask names from the message it sends, also when that field is absent
there, and leaves everything else alone. One bad path refuses the whole update.

Source: UpdateTopicRequest.update_mask, UpdateSubscriptionRequest.update_mask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from google.protobuf.message import Message

from pubsubd.model import errors
from pubsubd.wire import pb

M = TypeVar("M", bound=Message)


def checked_paths(
    mask: pb.FieldMask, request: str, resource: str, mutable: Collection[str], immutable: Collection[str]
) -> list[str]:
    """The paths of `mask`, each once, in the order given.

    Raises:
        InvalidArgument: there is no path, or one that is immutable or unknown; `request` and `resource`
            are the names that the refusal uses.
    """
    paths: list[str] = list(dict.fromkeys(mask.paths))
    if not paths:
        raise errors.mask_empty(request)
    for path in paths:
        if path in immutable:
            raise errors.mask_immutable(request, path)
        if path not in mutable:
            raise errors.mask_unknown(request, resource, path)
    return paths


def carry_over(target: M, source: M, fields: Iterable[str]) -> None:
    """Make each of `fields` in `target` what it is in `source`; absent there means absent afterwards."""
    part = type(source)()
    part.CopyFrom(source)
    wanted = set(fields)
    for descriptor in source.DESCRIPTOR.fields:
        name = descriptor.name
        if name in wanted:
            target.ClearField(name)
        else:
            part.ClearField(name)
    # A merge into cleared fields is a replacement, for single values, lists and maps alike.
    target.MergeFrom(part)
