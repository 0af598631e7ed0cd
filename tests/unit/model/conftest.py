"""Shared by the tests of the model room: a valid resource of each kind, and how a refusal is asserted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pubsubd.model import later
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/billing"

DAY = 24 * 3600


def seconds(value: float) -> pb.Duration:
    whole, fraction = divmod(round(value * 1_000_000_000), 1_000_000_000)
    return pb.Duration(seconds=whole, nanos=fraction)


def new_topic(**fields: object) -> pb.Topic:
    return pb.Topic(**{"name": TOPIC, **fields})


def new_subscription(**fields: object) -> pb.Subscription:
    return pb.Subscription(**{"name": SUBSCRIPTION, "topic": TOPIC, **fields})


def refusal(status: str, call: Callable[..., object], *arguments: object) -> str:
    """Make the call, which must be refused with this status, and return the message of the refusal."""
    with pytest.raises(PubsubError) as caught:
        call(*arguments)
    assert status == caught.value.status
    message = caught.value.message
    assert message.isascii() and message.isprintable() and message == str(caught.value)
    return message


@pytest.fixture
def everything_implemented(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of later features, without the refusal at their end."""
    monkeypatch.setattr(later, "TOPIC", {})
    monkeypatch.setattr(later, "SUBSCRIPTION", {})
