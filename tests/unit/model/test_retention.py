"""How long messages are kept, and when a subscription expires."""

from __future__ import annotations

import pytest

from pubsubd.model import retention
from pubsubd.model.subscriptions import created_subscription
from pubsubd.wire import pb
from tests.unit.model.conftest import DAY, new_subscription, new_topic, seconds

SECOND_US = 1_000_000
DAY_US = DAY * SECOND_US


def subscription(**fields: object) -> pb.Subscription:
    return created_subscription(new_subscription(**fields))


def topic(kept: float | None = None) -> pb.Topic:
    return new_topic() if kept is None else new_topic(message_retention_duration=seconds(kept))


def test_a_topic_keeps_nothing_unless_it_is_told_to() -> None:
    assert retention.topic_kept_us(topic()) == 0
    assert retention.topic_kept_us(None) == 0
    assert retention.topic_kept_us(topic(600.5)) == 600_500_000


@pytest.mark.parametrize(
    ("own", "of_topic", "expected_us"),
    [(600, None, 600 * SECOND_US), (600, DAY, DAY_US), (DAY, 600, DAY_US), (31 * DAY, 31 * DAY, 31 * DAY_US)],
)
def test_the_longer_retention_counts_for_messages_not_acknowledged(
    own: int, of_topic: int | None, expected_us: int
) -> None:
    own_one = subscription(message_retention_duration=seconds(own))

    assert retention.unacked_kept_us(own_one, topic(of_topic)) == expected_us
    assert retention.unacked_kept_us(own_one, None) == own * SECOND_US


def test_a_subscription_keeps_messages_for_a_week_when_nothing_else_is_said() -> None:
    for unsaid in (subscription(), new_subscription()):
        assert retention.unacked_kept_us(unsaid, None) == 7 * DAY_US
        assert retention.acked_kept_us(unsaid) == 0


@pytest.mark.parametrize(("retain_acked", "expected_us"), [(False, 0), (True, 3600 * SECOND_US)])
def test_acknowledged_messages_are_kept_if_the_subscription_says_so(
    retain_acked: bool, expected_us: int
) -> None:
    own = subscription(message_retention_duration=seconds(3600), retain_acked_messages=retain_acked)

    assert retention.acked_kept_us(own) == expected_us


def test_a_fraction_of_a_microsecond_is_dropped() -> None:
    length = pb.Duration(seconds=600, nanos=1999)

    assert retention.topic_kept_us(new_topic(message_retention_duration=length)) == 600_000_001
    assert retention.unacked_kept_us(new_subscription(message_retention_duration=length), None) == 600_000_001


def test_a_subscription_expires_after_its_ttl_or_never() -> None:
    assert retention.expires_after_us(subscription()) == 31 * DAY_US
    assert retention.expires_after_us(new_subscription()) == 31 * DAY_US
    assert retention.expires_after_us(subscription(expiration_policy={"ttl": seconds(8 * DAY)})) == 8 * DAY_US
    assert retention.expires_after_us(subscription(expiration_policy={})) is None
