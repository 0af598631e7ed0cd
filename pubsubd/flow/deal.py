"""Dealing what is ready to those who can take it.

Every consumer that is ready gets an equal part of what is at hand, and who was served least recently comes
first, so that messages that trickle in one by one go round as well. A consumer whose window or
response is full passes; its part goes to the others in the next round. Nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from pubsubd.flow.window import Window

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")
Consumer = TypeVar("Consumer", bound=Window)
Consumer_contra = TypeVar("Consumer_contra", bound=Window, contravariant=True)


class Source(Protocol[Consumer_contra, Item_co]):
    """Where messages come from: deliverable now, oldest first."""

    def at_hand(self) -> int:
        """How many messages could be taken now."""

    def take(
        self, consumer: Consumer_contra, count: int, window_bytes: int, response_bytes: int, fresh: bool
    ) -> tuple[Sequence[Item_co], int]:
        """Up to `count` messages for `consumer`, and their size in bytes.

        Takes while the sum is below `window_bytes` and stays within `response_bytes`; into a `fresh` response
        the first message goes whatever its size.
        """


class Hand(Generic[Consumer, Item]):
    """What one consumer gets in this dealing."""

    __slots__ = ("consumer", "items", "size")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.items: list[Item] = []
        self.size = 0


def deal(
    source: Source[Consumer, Item], consumers: Sequence[Consumer], response_bytes: int
) -> list[Hand[Consumer, Item]]:
    """Deal what `source` has to `consumers`, who stand in the order in which they were last served.

    `response_bytes` is what one consumer may get at a time. Returns the hands that are not empty. Nothing is
    booked: the caller grants the leases and fills the windows.
    """
    hands: list[Hand[Consumer, Item]] = [Hand(consumer) for consumer in consumers]
    seated = hands
    while seated and (left := source.at_hand()):
        quota = -(-left // len(seated))
        dealt = sum([_fill(hand, source, quota, response_bytes) for hand in seated])
        if not dealt:  # the next message fits into nobody's response, or is for none of them
            break
        # Who was not full stays, even with empty hands: the source may have more once it was asked again.
        seated = [hand for hand in seated if _room(hand)]
    return [hand for hand in hands if hand.items]


def _room(hand: Hand[Consumer, Item]) -> int:
    """How many more messages the window of this consumer has room for."""
    if hand.consumer.room_bytes() <= hand.size:
        return 0
    return hand.consumer.room_messages() - len(hand.items)


def _fill(hand: Hand[Consumer, Item], source: Source[Consumer, Item], quota: int, response_bytes: int) -> int:
    """Give `hand` up to `quota` messages; how many it got."""
    count = min(quota, _room(hand))
    if count <= 0:
        return 0
    window_bytes = hand.consumer.room_bytes() - hand.size
    items, size = source.take(hand.consumer, count, window_bytes, response_bytes - hand.size, not hand.items)
    hand.items.extend(items)
    hand.size += size
    return len(items)
