"""A subscriber process: acks what it receives, nacks its share once, and writes down everything it sees.

It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.mainjob.events import Asked, Delivered, EventLog, Resolved, delivery_key, now_us
from tests.mainjob.payload import read_payload
from tests.mainjob.recorder import CallRecorder

_OUTSTANDING_MAX = 1_000
_RESTART_SECONDS = 0.5
_CLOSE_SECONDS_MAX = 60.0


class NackChoice:
    """Which messages this subscriber nacks, once each.

    No subscriber knows what the others nacked. Each of them nacks in its own interval of the hash, so that a
    message is the business of at most one.
    """

    def __init__(self, seed: int, subscriber: int, percent: float) -> None:
        self._seed = seed
        self._low = subscriber * percent / 100
        self._high = (subscriber + 1) * percent / 100
        self._done: set[str] = set()

    def __call__(self, message_id: str) -> bool:
        digest = hashlib.blake2s(f"{self._seed}/{message_id}".encode(), digest_size=8).digest()
        position = int.from_bytes(digest, "big") / 2**64
        if not self._low <= position < self._high or message_id in self._done:
            return False
        self._done.add(message_id)
        return True


class Subscriber:
    """Its callback asks for an ack or a nack and returns: the work of this job is the protocol."""

    def __init__(self, number: int, payload: int, choice: NackChoice, log: EventLog) -> None:
        self._number = number
        self._payload = payload
        self._choice = choice
        self._log = log

    def receive(self, message: Message) -> None:
        at_us = now_us()
        delivery = delivery_key(message.ack_id)
        try:
            seq = read_payload(message.data, self._payload)
        except ValueError as error:
            self._log.note("payload damaged", f"message {message.message_id}: {error}")
            seq = -1
        self._log.write(Delivered(at_us, self._number, message.message_id, delivery, seq))
        action = "nack" if self._choice(message.message_id) else "ack"
        self._log.write(Asked(now_us(), self._number, delivery, action))
        future = message.nack_with_response() if action == "nack" else message.ack_with_response()
        future.add_done_callback(lambda done: self._resolve(delivery, action, done))

    def _resolve(self, delivery: str, action: str, future: Any) -> None:
        at_us = now_us()
        error = future.exception()
        if error is None:
            result = future.result().name
        elif isinstance(error, AcknowledgeError):
            result = f"{error.error_code.name} {error.info or ''}".strip()
        else:
            result = repr(error)
        self._log.write(Resolved(at_us, self._number, delivery, action, result))


def make_client(address: str, recorder: CallRecorder) -> pubsub_v1.SubscriberClient:
    """The same channel that PUBSUB_EMULATOR_HOST gives every user of the library, with a recorder on it."""
    channel = grpc.intercept_channel(grpc.insecure_channel(address), recorder)
    return pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))


def flow_control(lease_seconds: int) -> FlowControl:
    if lease_seconds == 0:
        return FlowControl(max_messages=_OUTSTANDING_MAX)
    return FlowControl(
        max_messages=_OUTSTANDING_MAX,
        min_duration_per_lease_extension=lease_seconds,
        max_duration_per_lease_extension=lease_seconds,
    )


def run(
    client: pubsub_v1.SubscriberClient,
    subscription: str,
    subscriber: Subscriber,
    limits: FlowControl,
    log: EventLog,
    stop: threading.Event,
) -> None:
    """Receive until `stop` is set. The library reopens broken streams; should it give up, start over."""
    while not stop.is_set():
        future = client.subscribe(
            subscription, subscriber.receive, flow_control=limits, await_callbacks_on_shutdown=True
        )
        while not stop.is_set() and not future.done():
            stop.wait(0.1)
        future.cancel()
        try:
            future.result(_CLOSE_SECONDS_MAX)
        except futures.TimeoutError:
            log.note("subscriber did not close in time")
        except Exception as error:  # Whatever ended the stream: it is counted, and the next one is opened.
            log.note("streaming pull ended by itself", repr(error))
            stop.wait(_RESTART_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--subscription", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--nack-percent", type=float, required=True)
    parser.add_argument("--payload", type=int, required=True)
    parser.add_argument("--lease-seconds", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    log = EventLog(options.log)
    choice = NackChoice(options.seed, options.number, options.nack_percent)
    subscriber = Subscriber(options.number, options.payload, choice, log)
    client = make_client(os.environ["PUBSUB_EMULATOR_HOST"], CallRecorder(options.number, log))
    stop = threading.Event()

    def end_with_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=end_with_input, daemon=True).start()
    run(client, options.subscription, subscriber, flow_control(options.lease_seconds), log, stop)
    client.close()


if __name__ == "__main__":
    main()
