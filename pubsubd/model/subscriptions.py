"""What makes a Subscription valid, its defaults, and what a client sees of it.

Each field has a rule of its own, which needs nothing but the field; `_check_together` holds the rules that
several fields share and runs on the result of a creation or an update. Nothing here looks a resource up:
whether the topic and the dead-letter topic exist, and whether the name is free, is the broker's to decide.
A function returns a new message and never changes the one it was given.

Source: Subscription, UpdateSubscriptionRequest,
https://cloud.google.com/pubsub/docs/subscription-properties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pubsubd.model import (
    durations,
    errors,
    exports,
    filters,
    later,
    limits,
    masks,
    names,
    push,
    transforms,
)
from pubsubd.model.labels import check_labels
from pubsubd.wire import pb

_EXPORTS: Final = ("bigquery_config", "cloud_storage_config", "bigtable_config")

#: Written by the server only, or never shown; what a client sends here is dropped.
_NOT_STORED: Final = (
    "detached",
    "topic_message_retention_duration",
    "state",
    "analytics_hub_subscription_info",
    "tags",
)
_IMMUTABLE: Final = frozenset({"name", "topic", "enable_message_ordering", "filter", *_NOT_STORED})


def created_subscription(request: pb.Subscription) -> pb.Subscription:
    """The subscription as it will be stored, every default filled in.

    An empty name is left empty: the caller sets one from `names.generated_subscription_name`.

    Raises:
        InvalidArgument: a field breaks its rule, or two fields do together.
        Unimplemented: the subscription is valid but asks for a feature of later work.

    Source: Subscriber.CreateSubscription.
    """
    if request.name:
        names.check_subscription(request.name)
    names.check_topic(request.topic)
    for rule in _RULES.values():
        rule(request)
    subscription = _taken_in(request)
    subscription.state = pb.Subscription.ACTIVE
    _fill_defaults(subscription)
    _check_together(subscription)
    later.refuse_later_subscription(subscription)
    return subscription


def check_subscription_update(request: pb.UpdateSubscriptionRequest) -> list[str]:
    """Everything about an update that can be judged without the subscription; returns the paths of its mask.

    Values outside the mask are not looked at.

    Raises:
        InvalidArgument: bad name, bad mask, or a masked field breaks its rule.
    """
    if not request.HasField("subscription"):
        raise errors.bad_argument("subscription", "the subscription to update is missing")
    names.check_subscription(request.subscription.name)
    paths = masks.checked_paths(
        request.update_mask, "UpdateSubscriptionRequest", "Subscription", _MUTABLE, _IMMUTABLE
    )
    for path in paths:
        _RULES[path](request.subscription)
    return paths


def updated_subscription(current: pb.Subscription, request: pb.UpdateSubscriptionRequest) -> pb.Subscription:
    """`current` with what the mask names taken from the request; `current` stays as it is.

    A masked field that the request does not set goes back to what creation would have given it.

    Raises:
        InvalidArgument: the request breaks a rule, by itself or together with `current`.
        Unimplemented: the result would have a feature of later work.

    Source: Subscriber.UpdateSubscription.
    """
    paths = check_subscription_update(request)
    subscription = pb.Subscription()
    subscription.CopyFrom(current)
    masks.carry_over(subscription, _taken_in(request.subscription), paths)
    if "push_config" in paths:
        push.keep_version(subscription.push_config, current.push_config)
    _fill_defaults(subscription)
    _check_together(subscription)
    later.refuse_later_subscription(subscription, paths)
    return subscription


def shown_subscription(stored: pb.Subscription, topic: pb.Topic | None) -> pb.Subscription:
    """The subscription as a client sees it; `topic` is None once the topic was deleted.

    Retention of the topic is looked up at each showing, so that it follows later changes of the topic.

    Source: Subscription.topic, Subscription.topic_message_retention_duration.
    """
    subscription = pb.Subscription()
    subscription.CopyFrom(stored)
    subscription.ClearField("tags")
    subscription.ClearField("topic_message_retention_duration")
    if topic is None:
        subscription.topic = names.DELETED_TOPIC
    elif topic.HasField("message_retention_duration"):
        subscription.topic_message_retention_duration.CopyFrom(topic.message_retention_duration)
    return subscription


def check_pullable(subscription: pb.Subscription) -> None:
    """Refuse Pull and StreamingPull where messages are not pulled; the error ends an open stream, too.

    Raises:
        FailedPrecondition: the subscription is detached, or delivers by push or export.

    Source: Subscription.detached; for push not documented, observed.
    """
    if subscription.detached:
        raise errors.detached()
    if subscription.push_config.push_endpoint or any(map(subscription.HasField, _EXPORTS)):
        raise errors.wrong_type()


def _taken_in(request: pb.Subscription) -> pb.Subscription:
    """A copy without what a client cannot set, and without fields that this server does not know."""
    subscription = pb.Subscription()
    subscription.CopyFrom(request)
    subscription.DiscardUnknownFields()
    for field in _NOT_STORED:
        subscription.ClearField(field)
    for field in _EXPORTS:
        if subscription.HasField(field):
            config = getattr(subscription, field)
            config.state = config.ACTIVE
    return subscription


# --- defaults --------------------------------------------------------------------------------------------


def _fill_defaults(subscription: pb.Subscription) -> None:
    """Set each field that has a default and is unset. Running it again changes nothing."""
    if not subscription.ack_deadline_seconds:
        subscription.ack_deadline_seconds = _default_ack_deadline_seconds(subscription)
    push.settle(subscription.push_config)
    # A pull subscription shows an empty push_config, so it must be there.
    subscription.push_config.SetInParent()
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.seconds = limits.EXPIRATION_TTL_SECONDS_DEFAULT
    if not subscription.HasField("message_retention_duration"):
        _fill_retention(subscription)
    if subscription.HasField("dead_letter_policy"):
        policy = subscription.dead_letter_policy
        policy.max_delivery_attempts = policy.max_delivery_attempts or limits.MAX_DELIVERY_ATTEMPTS_DEFAULT
    if subscription.HasField("retry_policy"):
        _fill_backoff(subscription.retry_policy)


def _default_ack_deadline_seconds(subscription: pb.Subscription) -> int:
    if subscription.HasField("cloud_storage_config"):
        # A file may stay open for max_duration, which must not exceed the deadline. What the real service
        # does with its default of 10 s here is not documented; this keeps the default valid.
        return max(
            limits.EXPORT_DURATION_SECONDS_DEFAULT, -(-_max_duration_ns(subscription) // durations.SECOND_NS)
        )
    if subscription.enable_exactly_once_delivery:
        return limits.ACK_DEADLINE_SECONDS_DEFAULT_EXACTLY_ONCE
    return limits.ACK_DEADLINE_SECONDS_DEFAULT


def _fill_retention(subscription: pb.Subscription) -> None:
    # A subscription must not expire before its messages do, so a short ttl shortens the default.
    retention_ns = limits.SUBSCRIPTION_RETENTION_SECONDS_DEFAULT * durations.SECOND_NS
    if subscription.expiration_policy.HasField("ttl"):
        retention_ns = min(retention_ns, durations.nanoseconds(subscription.expiration_policy.ttl))
    subscription.message_retention_duration.CopyFrom(durations.duration_of(retention_ns))


def _fill_backoff(policy: pb.RetryPolicy) -> None:
    if not policy.HasField("minimum_backoff"):
        policy.minimum_backoff.seconds = limits.MINIMUM_BACKOFF_SECONDS_DEFAULT
    if not policy.HasField("maximum_backoff"):
        policy.maximum_backoff.seconds = limits.MAXIMUM_BACKOFF_SECONDS_DEFAULT


def _max_duration_ns(subscription: pb.Subscription) -> int:
    config = subscription.cloud_storage_config
    if config.HasField("max_duration"):
        return durations.nanoseconds(config.max_duration)
    return limits.EXPORT_DURATION_SECONDS_DEFAULT * durations.SECOND_NS


# --- one rule per field; each sees the whole message and looks at its field only --------------------------


def _check_push_config(subscription: pb.Subscription) -> None:
    push.check_push_config(subscription.push_config)


def _check_bigquery(subscription: pb.Subscription) -> None:
    if subscription.HasField("bigquery_config"):
        exports.check_bigquery(subscription.bigquery_config)


def _check_cloud_storage(subscription: pb.Subscription) -> None:
    if subscription.HasField("cloud_storage_config"):
        exports.check_cloud_storage(subscription.cloud_storage_config)


def _check_bigtable(subscription: pb.Subscription) -> None:
    if subscription.HasField("bigtable_config"):
        exports.check_bigtable(subscription.bigtable_config)


def _check_ack_deadline(subscription: pb.Subscription) -> None:
    ack_deadline_seconds = subscription.ack_deadline_seconds
    if ack_deadline_seconds and not (
        limits.ACK_DEADLINE_SECONDS_MIN <= ack_deadline_seconds <= limits.ACK_DEADLINE_SECONDS_MAX
    ):
        raise errors.bad_ack_deadline(
            ack_deadline_seconds, limits.ACK_DEADLINE_SECONDS_MIN, limits.ACK_DEADLINE_SECONDS_MAX
        )


def _check_labels(subscription: pb.Subscription) -> None:
    check_labels(subscription.labels)


def _check_expiration(subscription: pb.Subscription) -> None:
    # A policy without ttl means that the subscription never expires.
    if not subscription.expiration_policy.HasField("ttl"):
        return
    ttl = subscription.expiration_policy.ttl
    durations.check_duration(ttl, "expiration_policy.ttl")
    ttl_ns = durations.nanoseconds(ttl)
    minimum_ns = limits.EXPIRATION_TTL_SECONDS_MIN * durations.SECOND_NS
    maximum_ns = limits.EXPIRATION_TTL_SECONDS_MAX * durations.SECOND_NS
    passed = durations.hours_text(ttl_ns)
    if ttl_ns < minimum_ns:
        raise errors.too_small("expiration duration", passed, durations.hours_text(minimum_ns))
    if ttl_ns > maximum_ns:
        raise errors.too_large("expiration duration", passed, durations.hours_text(maximum_ns))


def _check_filter(subscription: pb.Subscription) -> None:
    # Asked first, so that only the first real filter pays for making the parser.
    if subscription.filter:
        filters.parse_filter(subscription.filter)


def _check_dead_letter_policy(subscription: pb.Subscription) -> None:
    if not subscription.HasField("dead_letter_policy"):
        return
    policy = subscription.dead_letter_policy
    names.check_topic(policy.dead_letter_topic, "dead_letter_topic")
    attempts = policy.max_delivery_attempts
    if attempts and attempts < limits.MAX_DELIVERY_ATTEMPTS_MIN:
        raise errors.too_small("max_delivery_attempts", attempts, limits.MAX_DELIVERY_ATTEMPTS_MIN)
    if attempts > limits.MAX_DELIVERY_ATTEMPTS_MAX:
        raise errors.too_large("max_delivery_attempts", attempts, limits.MAX_DELIVERY_ATTEMPTS_MAX)


def _check_retry_policy(subscription: pb.Subscription) -> None:
    if not subscription.HasField("retry_policy"):
        return
    policy = pb.RetryPolicy()
    policy.CopyFrom(subscription.retry_policy)
    _fill_backoff(policy)
    minimum_ns = _checked_backoff_ns(policy.minimum_backoff, "minimum_backoff")
    maximum_ns = _checked_backoff_ns(policy.maximum_backoff, "maximum_backoff")
    if maximum_ns < minimum_ns:
        raise errors.too_small(
            "maximum_backoff", durations.seconds_text(maximum_ns), durations.seconds_text(minimum_ns)
        )


def _checked_backoff_ns(backoff: pb.Duration, field: str) -> int:
    durations.check_duration(backoff, f"retry_policy.{field}")
    backoff_ns = durations.nanoseconds(backoff)
    minimum_ns = limits.BACKOFF_SECONDS_MIN * durations.SECOND_NS
    maximum_ns = limits.BACKOFF_SECONDS_MAX * durations.SECOND_NS
    if not minimum_ns <= backoff_ns <= maximum_ns:
        raise errors.out_of_bounds(
            field,
            durations.seconds_text(backoff_ns),
            durations.seconds_text(minimum_ns),
            durations.seconds_text(maximum_ns),
        )
    return backoff_ns


def _check_transforms(subscription: pb.Subscription) -> None:
    transforms.check_transforms(subscription.message_transforms)


def _anything(subscription: pb.Subscription) -> None:
    """The rule of a field whose every value is allowed."""


_RULES: Final[dict[str, Callable[[pb.Subscription], None]]] = {
    "push_config": _check_push_config,
    "bigquery_config": _check_bigquery,
    "cloud_storage_config": _check_cloud_storage,
    "bigtable_config": _check_bigtable,
    "ack_deadline_seconds": _check_ack_deadline,
    "retain_acked_messages": _anything,
    "message_retention_duration": durations.check_retention,
    "labels": _check_labels,
    "expiration_policy": _check_expiration,
    "filter": _check_filter,
    "dead_letter_policy": _check_dead_letter_policy,
    "retry_policy": _check_retry_policy,
    "enable_exactly_once_delivery": _anything,
    "message_transforms": _check_transforms,
}
_MUTABLE: Final = frozenset(_RULES).difference(_IMMUTABLE)


# --- rules that several fields share ---------------------------------------------------------------------


def _check_together(subscription: pb.Subscription) -> None:
    """Refuse a subscription, defaults filled, whose fields do not go together (InvalidArgument)."""
    deliveries = [field for field in _EXPORTS if subscription.HasField(field)]
    if subscription.push_config.push_endpoint:
        deliveries.insert(0, "push_config")
    if len(deliveries) > 1:
        raise errors.bad_argument(deliveries[1], f"it cannot be combined with {deliveries[0]}")
    if deliveries and subscription.enable_exactly_once_delivery:
        raise errors.bad_argument(
            "enable_exactly_once_delivery", f"it cannot be combined with {deliveries[0]}"
        )
    _check_expires_after_retention(subscription)
    if subscription.HasField("dead_letter_policy") and (
        subscription.dead_letter_policy.dead_letter_topic == subscription.topic
    ):
        raise errors.bad_argument(
            "dead_letter_policy.dead_letter_topic", "it must differ from the topic of the subscription"
        )
    if subscription.HasField("cloud_storage_config") and (
        _max_duration_ns(subscription) > subscription.ack_deadline_seconds * durations.SECOND_NS
    ):
        raise errors.bad_argument(
            "cloud_storage_config.max_duration", "it must not be longer than ack_deadline_seconds"
        )


def _check_expires_after_retention(subscription: pb.Subscription) -> None:
    if not subscription.expiration_policy.HasField("ttl"):
        return
    ttl_ns = durations.nanoseconds(subscription.expiration_policy.ttl)
    retention_ns = durations.nanoseconds(subscription.message_retention_duration)
    if ttl_ns < retention_ns:
        raise errors.bad_argument(
            "expiration_policy.ttl",
            f"it is {durations.hours_text(ttl_ns)} and must not be shorter than the "
            f"message_retention_duration, which is {durations.hours_text(retention_ns)}",
        )
