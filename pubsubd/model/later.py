"""Features that are checked like everything else but do not work yet.

A server that stored such a field and did nothing with it would lie to its users: a transform that transforms
nothing passes tests that must fail. So a resource that would have the feature is refused after all its other
rules were checked. Whoever builds a feature deletes its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from pubsubd.model import errors
from pubsubd.wire import pb

#: Field of Topic -> is the feature on in this message?
TOPIC: Final[dict[str, Callable[[pb.Topic], bool]]] = {
    "message_transforms": lambda topic: len(topic.message_transforms) > 0,
}

#: Field of Subscription -> is the feature on in this message?
SUBSCRIPTION: Final[dict[str, Callable[[pb.Subscription], bool]]] = {
    "bigquery_config": lambda subscription: subscription.HasField("bigquery_config"),
    "cloud_storage_config": lambda subscription: subscription.HasField("cloud_storage_config"),
    "bigtable_config": lambda subscription: subscription.HasField("bigtable_config"),
    "message_transforms": lambda subscription: len(subscription.message_transforms) > 0,
}


def refuse_later_topic(topic: pb.Topic, touched: Collection[str] | None = None) -> None:
    """Raise Unimplemented if `topic` has a feature of later work, looking at `touched` fields or at all."""
    for field, is_on in TOPIC.items():
        if (touched is None or field in touched) and is_on(topic):
            raise errors.not_implemented(f"Topic.{field}")


def refuse_later_subscription(subscription: pb.Subscription, touched: Collection[str] | None = None) -> None:
    """As `refuse_later_topic`, for a subscription."""
    for field, is_on in SUBSCRIPTION.items():
        if (touched is None or field in touched) and is_on(subscription):
            raise errors.not_implemented(f"Subscription.{field}")
