"""How long messages are kept, and after what silence a subscription goes.

Arithmetic only: lengths in microseconds, which count from the publish time of a message or from the last
activity of a subscription. What is leased, or held by a snapshot, is the broker's to know.

Source: Topic.message_retention_duration, Subscription.message_retention_duration,
Subscription.retain_acked_messages, ExpirationPolicy.ttl.
"""

from __future__ import annotations

from pubsubd.model import durations, limits
from pubsubd.wire import pb


def topic_kept_us(topic: pb.Topic | None) -> int:
    """How long a topic keeps every message for seeks; 0: not at all, as one that was deleted (None).

    Source: Topic.message_retention_duration.
    """
    if topic is None or not topic.HasField("message_retention_duration"):
        return 0
    return durations.microseconds(topic.message_retention_duration)


def unacked_kept_us(subscription: pb.Subscription, topic: pb.Topic | None) -> int:
    """How long a message that nobody acknowledged is kept for the subscription.

    The longer of the two retentions counts; `topic` is None once it was deleted.

    Source: Subscription.message_retention_duration, Topic.message_retention_duration.
    """
    return max(_subscription_kept_us(subscription), topic_kept_us(topic))


def acked_kept_us(subscription: pb.Subscription) -> int:
    """How long a subscription keeps what was acknowledged, for a seek to bring it back; 0: not at all.

    Source: Subscription.retain_acked_messages.
    """
    return _subscription_kept_us(subscription) if subscription.retain_acked_messages else 0


def expires_after_us(subscription: pb.Subscription) -> int | None:
    """How long a subscription may be without activity before it is deleted; None: as long as it likes.

    Source: Subscription.expiration_policy.
    """
    if not subscription.HasField("expiration_policy"):
        return limits.EXPIRATION_TTL_SECONDS_DEFAULT * limits.SECOND_US
    # A policy without ttl means that the subscription never expires.
    if not subscription.expiration_policy.HasField("ttl"):
        return None
    return durations.microseconds(subscription.expiration_policy.ttl)


def _subscription_kept_us(subscription: pb.Subscription) -> int:
    if not subscription.HasField("message_retention_duration"):
        return limits.SUBSCRIPTION_RETENTION_SECONDS_DEFAULT * limits.SECOND_US
    return durations.microseconds(subscription.message_retention_duration)
