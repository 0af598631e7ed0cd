"""What the broker asks storage for, and the answers.

Reads bring messages to a subscription. Questions are about the times of stored messages: where a moment lies
in a topic's log. A command that needs answers comes in two steps: what it asks, and, with the answers,
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pubsubd.broker.entry import Entry
    from pubsubd.broker.subscription import Subscription


class Known(NamedTuple):
    """When a question was asked: messages up to `message_id` were in storage, or had been.

    Later ones were published at `later_us` or after it.
    """

    message_id: int = 0
    later_us: int = 0


class Question(NamedTuple):
    """Where does `before_us` lie among the messages of a topic whose ids are above `after_id`?"""

    topic_id: int
    after_id: int
    before_us: int
    matches: Callable[[bytes], bool] | None = None  # which messages count as the next one; None: all
    known: Known = Known()


class Sift(NamedTuple):
    """Which of these messages, ids ascending, do not match? The answer is a set of their ids."""

    topic_id: int
    message_ids: list[int]
    matches: Callable[[Entry], bool]


class Found(NamedTuple):
    before_id: int  # the last message published before that moment; 0: none
    next_id: int  # the first one published then or later, and when; 0: none
    next_us: int
    known: Known = Known()  # of the question


class ReadRange(NamedTuple):
    """Messages of a topic after `after_id` and up to `through_id`, as many as fit into one read."""

    subscription: Subscription
    topic_id: int
    after_id: int
    through_id: int


class ReadMessages(NamedTuple):
    subscription: Subscription
    topic_id: int
    message_ids: list[int]  # ascending


class ReadTimes(NamedTuple):
    """A question that a subscription has on its own account; the answer comes by `Broker.found`."""

    subscription: Subscription
    question: Question


Answer = Found | frozenset[int]
Read = ReadRange | ReadMessages | ReadTimes
