"""A server of one test with a client beside it, for tests that do one thing after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from pubsubd.wire import admin_pb, pb
from tests.crash.compare import Stored, differences
from tests.crash.database import read_copy
from tests.crash.replay import Replayer
from tests.support.server import ServerProcess
from tests.wire.calls import ADMIN, CHANNEL_OPTIONS, Client

TOPIC = "projects/crash/topics/orders"
SUBSCRIPTION = "projects/crash/subscriptions/billing"

Fault = admin_pb.InjectCommitFaultRequest


class Served:
    """`client` calls the service, `admin` its hooks. No test passes with a traceback in the output."""

    def __init__(self, directory: Path | None, *options: str, server: ServerProcess | None = None) -> None:
        self.directory = directory
        self.server = server or ServerProcess(directory, *options, admin=True)
        self.said = ""
        self._channels: list[grpc.Channel] = []

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.kill()
        if kind is None:
            assert "Traceback" not in self.said, self.said

    def start(self) -> None:
        self.server.start()
        self.connect()

    def connect(self) -> None:
        self.client = Client(self._channel(self.server.address))
        self.admin = Client(self._channel(self.server.admin_address), [ADMIN])

    def kill(self) -> None:
        self._disconnect()
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.kill()
        self.said += self.server.output
        self.server.lines = []

    def stop(self) -> int:
        self._disconnect()
        return self.server.terminate()

    def restart(self) -> None:
        self.kill()
        self.start()

    def wait_for_end(self) -> int:
        """The server dies of a fault; returns its exit code."""
        self._disconnect()
        return self.server.wait()

    def _disconnect(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels = []

    def _channel(self, address: str) -> grpc.Channel:
        # Without a pool of its own a new channel would go on with the connection of an old one.
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(address, options=options)
        self._channels.append(channel)
        return channel

    # -- what tests do all the time -----------------------------------------------------------------------

    def create(
        self, *, exactly_once: bool = True, topic: str = TOPIC, subscription: str = SUBSCRIPTION
    ) -> None:
        self.client.CreateTopic(name=topic)
        self.subscribe(exactly_once=exactly_once, topic=topic, subscription=subscription)

    def subscribe(
        self, *, exactly_once: bool = True, topic: str = TOPIC, subscription: str = SUBSCRIPTION
    ) -> None:
        self.client.CreateSubscription(
            name=subscription,
            topic=topic,
            ack_deadline_seconds=60,  # no test waits for a lease to end, and none may meet one that did
            enable_exactly_once_delivery=exactly_once,
        )

    def publish(self, *datas: bytes, topic: str = TOPIC, **fields: Any) -> list[int]:
        messages = [pb.PubsubMessage(data=data, **fields) for data in datas]
        response = self.client.Publish(topic=topic, messages=messages)
        return [int(message_id) for message_id in response.message_ids]

    def pull(self, max_messages: int = 1, *, subscription: str = SUBSCRIPTION) -> list[Any]:
        """What one Pull brings, waiting for at least one message."""
        response = self.client.Pull(subscription=subscription, max_messages=max_messages)
        return list(response.received_messages)

    def pull_now(self, max_messages: int = 1000, *, subscription: str = SUBSCRIPTION) -> list[Any]:
        response = self.client.Pull(
            subscription=subscription, max_messages=max_messages, return_immediately=True
        )
        return list(response.received_messages)

    def ack(self, *received: Any, subscription: str = SUBSCRIPTION) -> None:
        ack_ids = [one if isinstance(one, str) else one.ack_id for one in received]
        self.client.Acknowledge(subscription=subscription, ack_ids=ack_ids)

    def modack(self, seconds: int, *received: Any, subscription: str = SUBSCRIPTION) -> None:
        ack_ids = [one if isinstance(one, str) else one.ack_id for one in received]
        self.client.ModifyAckDeadline(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )

    def inject(self, fault: int, **fields: Any) -> None:
        self.admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=fault, **fields))

    def stored(self) -> Stored:
        """What the files say; the server has to be dead."""
        assert self.directory is not None
        return read_copy(self.directory)


def check_journal(stored: Stored) -> Replayer:
    """The journal is lawful and tells the state."""
    replayer = Replayer()
    replayer.feed(stored.rows, stored.details)
    assert replayer.problems == []
    assert differences(stored, replayer) == []
    return replayer
