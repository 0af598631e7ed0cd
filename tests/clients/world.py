"""What the client tests share: a project of their own, clients that are closed afterwards, an inbox."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from google.api_core.exceptions import ServiceUnavailable
from google.api_core.retry import Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.futures import Future
from google.cloud.pubsub_v1.subscriber.futures import StreamingPullFuture
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions

PATIENCE_SECONDS = 10.0
# What the library does by default, in smaller steps: each of its own is four times the one before, so that a
# publisher may stay silent for half a minute when the server was away for half a second.
QUICK_RETRY = Retry(
    if_exception_type(ServiceUnavailable), initial=0.1, multiplier=1.3, maximum=1.0, timeout=60.0
)
_CLOSE_SECONDS_MAX = 20.0


class Inbox:
    """A callback that keeps what it was given, and does `action` with it."""

    def __init__(self, action: Callable[[Message], Any] | None = None) -> None:
        self._action = action
        self._messages: list[Message] = []
        self._changed = threading.Condition()

    def __call__(self, message: Message) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()
        if self._action is not None:
            self._action(message)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> list[Message]:
        with self._changed:
            return list(self._messages)

    @property
    def message_ids(self) -> list[str]:
        return [message.message_id for message in self.messages]

    def wait(self, count: int, seconds: float = PATIENCE_SECONDS) -> list[Message]:
        """The first `count` messages, as soon as they are there."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._messages) >= count, seconds):
                raise AssertionError(f"{len(self._messages)} of {count} messages came within {seconds} s")
            return self._messages[:count]

    def stays_at(self, count: int, seconds: float) -> bool:
        """True if exactly `count` messages are there now and still after `seconds`."""
        with self._changed:
            more = self._changed.wait_for(lambda: len(self._messages) > count, seconds)
            return not more and len(self._messages) == count


class World:
    """The clients of one test, in a project that no other test uses. They find the server as users' do."""

    def __init__(self) -> None:
        self.project = f"clients-{uuid.uuid4().hex[:12]}"
        self._closing = contextlib.ExitStack()
        self._streams: list[StreamingPullFuture] = []
        self.publisher = self.publisher_client()
        self.subscriber = self.subscriber_client()

    def publisher_client(self, **options: Any) -> pubsub_v1.PublisherClient:
        publisher = pubsub_v1.PublisherClient(**options)
        self._closing.callback(publisher.transport.close)
        return publisher

    def ordered_publisher(self, **batch_settings: Any) -> pubsub_v1.PublisherClient:
        """One that lets messages have ordering keys, and batches the messages of a key."""
        return self.publisher_client(
            batch_settings=BatchSettings(**batch_settings),
            publisher_options=PublisherOptions(enable_message_ordering=True, retry=QUICK_RETRY),
        )

    def subscriber_client(self) -> pubsub_v1.SubscriberClient:
        return self._closing.enter_context(pubsub_v1.SubscriberClient())

    def topic(self, name: str = "topic") -> str:
        path = self.publisher.topic_path(self.project, name)
        self.publisher.create_topic(name=path)
        return path

    def subscription(self, topic: str, name: str = "subscription", **fields: Any) -> str:
        path = self.subscriber.subscription_path(self.project, name)
        self.subscriber.create_subscription(request={"name": path, "topic": topic, **fields})
        return path

    def update(self, subscription: str, *cleared: str, **fields: Any) -> pubsub_v1.types.Subscription:
        """Sets the given fields, and sets those that are only named back to their defaults."""
        request = {
            "subscription": {"name": subscription, **fields},
            "update_mask": {"paths": [*cleared, *fields]},
        }
        return self.subscriber.update_subscription(request=request)

    def publish(self, topic: str, count: int, text: str = "message") -> list[str]:
        sent: Sequence[Future] = [
            self.publisher.publish(topic, f"{text} {number}".encode()) for number in range(count)
        ]
        return [future.result(PATIENCE_SECONDS) for future in sent]

    def subscribe(
        self,
        subscription: str,
        callback: Callable[[Message], Any],
        client: pubsub_v1.SubscriberClient | None = None,
        **options: Any,
    ) -> StreamingPullFuture:
        stream = (client or self.subscriber).subscribe(subscription, callback, **options)
        self._streams.append(stream)
        return stream

    def pull(self, subscription: str, max_messages: int = 100) -> list[pubsub_v1.types.ReceivedMessage]:
        """What is deliverable now, possibly nothing."""
        request = {"subscription": subscription, "max_messages": max_messages, "return_immediately": True}
        with warnings.catch_warnings():
            # Deprecated, because production answers it with less than it has. A test wants no more than that.
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(self.subscriber.pull(request=request).received_messages)

    def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        for stream in self._streams:
            # A stream that a test broke on purpose ends with its error; the test has looked at it.
            with contextlib.suppress(Exception):
                stream.result(_CLOSE_SECONDS_MAX)
        self._closing.close()


def results(answers: Sequence[Any], seconds: float = PATIENCE_SECONDS) -> list[Any]:
    """The results of many futures; raises the first error."""
    end = time.monotonic() + seconds
    return [answer.result(max(end - time.monotonic(), 0.001)) for answer in answers]


def error_of(answer: Any, seconds: float = PATIENCE_SECONDS) -> BaseException | None:
    try:
        return answer.exception(seconds)
    except futures.TimeoutError:
        raise AssertionError(f"a future was not resolved within {seconds} s") from None
