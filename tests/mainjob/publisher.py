"""The publisher process: publishes every payload, in batches, and again if a publish should ever fail.

Standard input carries the number of confirmed acks, a line each time it grows, so that publishing goes on
until shortly before the end and the kills hit it too.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.futures import Future
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from tests.mainjob.events import EventLog, Published, now_us
from tests.mainjob.payload import make_payload

_OUTSTANDING_MAX = 2_000
_CONFIRM_SECONDS_MAX = 600.0


class Pace:
    """Holds the publisher back while more than `backlog_max` messages wait for their ack."""

    def __init__(self, backlog_max: int) -> None:
        self._backlog_max = backlog_max
        self._acked = 0
        self._changed = threading.Condition()

    def follow(self, lines: Callable[[], str]) -> None:
        while line := lines():
            with self._changed:
                self._acked = int(line)
                self._changed.notify_all()

    def wait_for_room(self, published: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: published - self._acked < self._backlog_max)


def publish_all(topic: str, messages: int, payload: int, pace: Pace, log: EventLog) -> None:
    client = pubsub_v1.PublisherClient(
        batch_settings=BatchSettings(max_messages=100),
        publisher_options=PublisherOptions(
            flow_control=PublishFlowControl(
                message_limit=_OUTSTANDING_MAX,
                byte_limit=_OUTSTANDING_MAX * (payload + 1_000),
                limit_exceeded_behavior=LimitExceededBehavior.BLOCK,
            )
        ),
    )
    answers: queue.Queue[tuple[int, Future]] = queue.Queue()

    def publish(seq: int) -> None:
        future = client.publish(topic, make_payload(seq, payload))
        future.add_done_callback(lambda done: answers.put((seq, done)))

    def settle(seq: int, future: Future) -> bool:
        error = future.exception()
        if error is None:
            log.write(Published(now_us(), seq, future.result()))
            return True
        log.note("publish failed and was repeated", repr(error))
        publish(seq)
        return False

    confirmed = 0
    for seq in range(messages):
        pace.wait_for_room(seq)
        publish(seq)
        while not answers.empty():
            confirmed += settle(*answers.get())
    while confirmed < messages:
        confirmed += settle(*answers.get(timeout=_CONFIRM_SECONDS_MAX))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--payload", type=int, required=True)
    parser.add_argument("--backlog", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    pace = Pace(options.backlog)
    threading.Thread(target=pace.follow, args=(sys.stdin.readline,), daemon=True).start()
    publish_all(options.topic, options.messages, options.payload, pace, EventLog(options.log))


if __name__ == "__main__":
    main()
