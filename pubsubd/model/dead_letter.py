"""The copy of a message that goes to a dead letter topic.

Source: DeadLetterPolicy, https://cloud.google.com/pubsub/docs/handling-failures (attributes of a forwarded
message).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pubsubd.model import names
from pubsubd.wire import pb

_PREFIX: Final = "CloudPubSubDeadLetterSource"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def forwarded(data: bytes, attempts: int, subscription_name: str, publish_us: int) -> pb.PubsubMessage:
    """The message to publish: what the publisher sent, and where it failed.

    `data` is the stored form of the source message, `attempts` how often the subscription delivered it,
    `publish_us` its publish time. The copy has neither id nor publish time, which the dead letter topic
    gives it. Attributes of these names that it carries already, from an earlier forwarding, are replaced.
    """
    message = pb.PubsubMessage.FromString(data)
    message.ClearField("message_id")
    message.ClearField("publish_time")
    attributes = message.attributes
    attributes[f"{_PREFIX}DeliveryCount"] = str(attempts)
    attributes[f"{_PREFIX}Subscription"] = names.leaf(subscription_name)
    attributes[f"{_PREFIX}SubscriptionProject"] = names.leaf(names.project_of(subscription_name))
    attributes[f"{_PREFIX}TopicPublishTime"] = _time_text(publish_us)
    return message


def _time_text(time_us: int) -> str:
    """`2026-11-21T09:30:00.123+00:00`: three digits, the rest cut off and not rounded."""
    # A float would not hold a time of today to the microsecond.
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="milliseconds")
