"""The publisher process: publishes every payload, in batches, and again if a publish should ever fail.

Standard input carries the number of confirmed acks, a line each time it grows, so that publishing goes on
until shortly before the end and the kills hit it too. When it says `end of pace`, the messages that are left
are published without any.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
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
_SETTLE_SECONDS = 0.05
END_OF_PACE = "end of pace"


class Pace:
    """Holds the publisher back while more than `backlog_max` messages wait for their ack, and to a rate."""

    def __init__(self, backlog_max: int, rate: float) -> None:
        """`rate` is messages a second; 0: as many as there is room for."""
        self._backlog_max = backlog_max
        self._rate = rate
        self._started = time.monotonic()
        self._acked = 0
        self._changed = threading.Condition()

    def follow(self, lines: Callable[[], str]) -> None:
        while line := lines():
            with self._changed:
                if line.strip() == END_OF_PACE:
                    self._rate = 0.0
                else:
                    self._acked = int(line)
                self._changed.notify_all()

    def wait_for_room(self, published: int, seconds: float) -> bool:
        """Whether there is room, for which it waits so long at most."""
        with self._changed:
            if not self._changed.wait_for(lambda: published - self._acked < self._backlog_max, seconds):
                return False
            early = published / self._rate - (time.monotonic() - self._started) if self._rate else 0.0
            return early <= 0.0 or (early <= seconds and not self._changed.wait(early))


def publish_all(topic: str, messages: int, payload: int, pace: Pace, log: EventLog) -> None:
    client = pubsub_v1.PublisherClient(
        batch_settings=BatchSettings(max_messages=100, max_latency=0.05),
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

    def settled() -> int:
        count = 0
        while not answers.empty():
            count += settle(*answers.get())
        return count

    confirmed = 0
    for seq in range(messages):
        # What was answered is written down, or published again, also while nothing new may be published.
        while not pace.wait_for_room(seq, _SETTLE_SECONDS):
            confirmed += settled()
        publish(seq)
        confirmed += settled()
    while confirmed < messages:
        confirmed += settle(*answers.get(timeout=_CONFIRM_SECONDS_MAX))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--payload", type=int, required=True)
    parser.add_argument("--backlog", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    pace = Pace(options.backlog, options.rate)
    threading.Thread(target=pace.follow, args=(sys.stdin.readline,), daemon=True).start()
    publish_all(options.topic, options.messages, options.payload, pace, EventLog(options.log))


if __name__ == "__main__":
    main()
