"""The copy of a message that goes to a dead letter topic."""

from __future__ import annotations

import pytest

from pubsubd.model.dead_letter import forwarded
from pubsubd.model.message import stored_message
from pubsubd.wire import pb
from tests.unit.model.conftest import SUBSCRIPTION

NOW_US = 1_795_000_000_123_456
ADDED = {
    "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    "CloudPubSubDeadLetterSourceSubscription": "billing",
    "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
    "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-18T11:06:40.123+00:00",
}


def copy_of(message: pb.PubsubMessage, publish_us: int = NOW_US) -> pb.PubsubMessage:
    return forwarded(stored_message(message, 42, publish_us), 5, SUBSCRIPTION, publish_us)


def test_a_copy_is_the_original_with_four_attributes_and_neither_id_nor_publish_time() -> None:
    message = pb.PubsubMessage(data=b"\0x", attributes={"a": "", "ü": "é"}, ordering_key="k")

    assert copy_of(message) == pb.PubsubMessage(
        data=b"\0x", attributes={"a": "", "ü": "é", **ADDED}, ordering_key="k"
    )


def test_attributes_of_an_earlier_forwarding_are_replaced() -> None:
    once = copy_of(pb.PubsubMessage(data=b"x"))

    twice = forwarded(
        stored_message(once, 43, NOW_US + 1000), 7, "projects/q/subscriptions/dead", NOW_US + 1000
    )

    assert twice == pb.PubsubMessage(
        data=b"x",
        attributes={
            "CloudPubSubDeadLetterSourceDeliveryCount": "7",
            "CloudPubSubDeadLetterSourceSubscription": "dead",
            "CloudPubSubDeadLetterSourceSubscriptionProject": "q",
            "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-18T11:06:40.124+00:00",
        },
    )


def test_a_project_may_be_one_of_a_domain() -> None:
    copy = forwarded(b"", 5, "projects/example.com:shop/subscriptions/abc", NOW_US)

    assert copy.attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] == "example.com:shop"


@pytest.mark.parametrize(
    ("publish_us", "text"),
    [
        (1_795_000_000_999_999, "2026-11-18T11:06:40.999+00:00"),
        (1_795_000_000_000_999, "2026-11-18T11:06:40.000+00:00"),
        (1_795_000_000_000_000, "2026-11-18T11:06:40.000+00:00"),
        (1_795_000_000_010_000, "2026-11-18T11:06:40.010+00:00"),
        (0, "1970-01-01T00:00:00.000+00:00"),
    ],
)
def test_the_publish_time_has_three_digits_and_is_cut_off_not_rounded(publish_us: int, text: str) -> None:
    attributes = copy_of(pb.PubsubMessage(data=b"x"), publish_us).attributes

    assert attributes["CloudPubSubDeadLetterSourceTopicPublishTime"] == text


def test_fields_that_this_server_does_not_know_go_along() -> None:
    unknown = b"\xf2\x3f\x01x"

    copy = forwarded(pb.PubsubMessage(data=b"x").SerializeToString() + unknown, 5, SUBSCRIPTION, NOW_US)

    assert unknown in copy.SerializeToString()
