"""How much of a subscription one consumer may hold unfinished.

A message counts against the window of the stream that delivered it, from the delivery until it is acked,
nacked or its lease ends, whoever says so. The message limit is never passed. The byte limit may be passed by
one message, because sending is allowed while the sum is below it: so a message larger than the limit still
gets through when nothing else is outstanding.

Source: pubsub.proto, StreamingPullRequest.max_outstanding_messages and .max_outstanding_bytes.
"""

from __future__ import annotations

from sys import maxsize

from pubsubd.model import limits


class Window:
    """`max_messages` and `max_bytes` (of serialised PubsubMessage) up to zero mean no limit but ours."""

    __slots__ = ("max_bytes", "max_messages", "outstanding_bytes", "outstanding_messages")

    def __init__(self, max_messages: int = 0, max_bytes: int = 0) -> None:
        self.max_messages = max_messages if max_messages > 0 else limits.OUTSTANDING_MESSAGES_MAX
        self.max_bytes = max_bytes if max_bytes > 0 else maxsize
        self.outstanding_messages = 0
        self.outstanding_bytes = 0

    def room_messages(self) -> int:
        """How many more messages may be sent; 0 when either limit is reached."""
        if self.outstanding_bytes >= self.max_bytes:
            return 0
        return max(0, self.max_messages - self.outstanding_messages)

    def room_bytes(self) -> int:
        """Sending may go on while what is sent stays below this."""
        return self.max_bytes - self.outstanding_bytes
