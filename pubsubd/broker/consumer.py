"""Who takes messages: an open stream, a Pull call that waits, or what pushes them to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pubsubd.flow.window import Window

if TYPE_CHECKING:
    from pubsubd.broker.subscription import Subscription


class Consumer(Window):
    """A window with a subscription behind it. `shell` is whatever the shell wants back with a delivery."""

    __slots__ = (
        "ack_deadline_us",
        "client_id",
        "confirms_receipt",
        "name",
        "once",
        "opened_as",
        "opened_us",
        "serial",
        "shell",
        "stream_id",
        "subscription",
    )

    def __init__(
        self,
        subscription: Subscription,
        stream_id: int,
        client_id: int,
        ack_deadline_us: int,
        max_messages: int,
        max_bytes: int,
        once: bool,
        shell: Any,
        serial: bool = False,
    ) -> None:
        super().__init__(max_messages, max_bytes)
        self.subscription = subscription
        self.stream_id = stream_id
        self.client_id = client_id
        self.ack_deadline_us = ack_deadline_us
        self.name = ""  # StreamingPullRequest.client_id
        self.once = once  # a Pull: one delivery, and its leases count against no window
        self.serial = serial  # gets one message of an ordering key at a time: a push
        self.shell = shell
        # Of a stream: when it was opened, and what the journal says about it.
        self.opened_us = 0
        self.opened_as: Mapping[str, Any] = {}
        # Set once a delivery was extended right after it was sent: this client says what it has seen.
        self.confirms_receipt = False

    @property
    def waits(self) -> bool:
        """Whether it may still get something: not closed, and (a Pull) not served yet."""
        return self in self.subscription.consumers
