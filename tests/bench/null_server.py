"""A server that answers everything at once and keeps no promise: what gRPC and Python cost by themselves.

Handlers and serialisers are those of the real server: bytes in, bytes out; a message is serialised once,
when it is published, and responses of about 1 MB are joined from those bytes when they are sent. There are
no rules, no leases, no ack ids that mean anything, and no disk. What is published waits in memory and goes
once to whichever stream asks first.

With `--prebuilt` even the joining is done ahead: GetSubscription, which a benchmark calls before it starts
its clock, makes the responses, and the stream only writes them. That is the floor of the transport.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio

from pubsubd.wire import pb

RESPONSE_BYTES = 1_000_000
# As long as our ack ids are, so that responses and acknowledgements have a real one's size.
ACK_ID_LENGTH = 36
MESSAGE_BYTES_MAX = 64 * 1024 * 1024

EMPTY = b""
# Tags of StreamingPullResponse.received_messages, ReceivedMessage.ack_id and ReceivedMessage.message.
RECEIVED_TAG, ACK_ID_TAG, MESSAGE_TAG = b"\x0a", b"\x0a", b"\x12"
PROPERTIES = pb.StreamingPullResponse(
    subscription_properties={"exactly_once_delivery_enabled": True}
).SerializeToString()


def varint(number: int) -> bytes:
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


# Lengths of messages repeat; a table spares the loop.
LENGTHS = [varint(number) for number in range(65_536)]
ACK_ID_HEADER = ACK_ID_TAG + varint(ACK_ID_LENGTH)


class Backlog:
    """What one subscription has not sent yet: messages as (id, bytes), and responses made ahead."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []
        self.responses: list[bytes] = []
        self.arrived = asyncio.Event()

    def add(self, messages: list[tuple[int, bytes]]) -> None:
        self.messages.extend(messages)
        self.arrived.set()

    def make_responses(self) -> Iterator[bytes]:
        yield from self.responses
        self.responses.clear()
        waiting, self.messages = self.messages, []
        start, size = 0, 0
        for end, (_, message) in enumerate(waiting, 1):
            size += len(message)
            if size >= RESPONSE_BYTES:
                yield response_of(waiting[start:end])
                start, size = end, 0
        if start < len(waiting):
            yield response_of(waiting[start:])


def response_of(messages: list[tuple[int, bytes]]) -> bytes:
    parts = [PROPERTIES]
    for message_id, message in messages:
        length = len(message)
        message_length = LENGTHS[length] if length < len(LENGTHS) else varint(length)
        whole = len(ACK_ID_HEADER) + ACK_ID_LENGTH + len(MESSAGE_TAG) + len(message_length) + length
        parts += (
            RECEIVED_TAG,
            LENGTHS[whole] if whole < len(LENGTHS) else varint(whole),
            ACK_ID_HEADER,
            b"%0*d" % (ACK_ID_LENGTH, message_id),
            MESSAGE_TAG,
            message_length,
            message,
        )
    return b"".join(parts)


class NullServer:
    def __init__(self, *, prebuilt: bool) -> None:
        self.prebuilt = prebuilt
        self.next_id = 1
        self.topics: dict[str, list[str]] = {}
        self.subscriptions: dict[str, Backlog] = {}

    async def create_topic(self, request: bytes, _: object) -> bytes:
        self.topics[pb.Topic.FromString(request).name] = []
        return request

    async def list_topics(self, request: bytes, _: object) -> bytes:
        topics = [pb.Topic(name=name) for name in itertools.islice(self.topics, 100)]
        return pb.ListTopicsResponse(topics=topics).SerializeToString()

    async def delete_topic(self, request: bytes, _: object) -> bytes:
        self.topics.pop(pb.DeleteTopicRequest.FromString(request).topic, None)
        return EMPTY

    async def create_subscription(self, request: bytes, _: object) -> bytes:
        subscription = pb.Subscription.FromString(request)
        self.subscriptions[subscription.name] = Backlog()
        self.topics[subscription.topic].append(subscription.name)
        return request

    async def get_subscription(self, request: bytes, _: object) -> bytes:
        name = pb.GetSubscriptionRequest.FromString(request).subscription
        if self.prebuilt:
            backlog = self.subscriptions[name]
            backlog.responses = list(backlog.make_responses())
        return pb.Subscription(name=name).SerializeToString()

    async def delete_subscription(self, request: bytes, _: object) -> bytes:
        name = pb.DeleteSubscriptionRequest.FromString(request).subscription
        del self.subscriptions[name]
        for names in self.topics.values():
            if name in names:
                names.remove(name)
        return EMPTY

    async def publish(self, request: bytes, _: object) -> bytes:
        parsed = pb.PublishRequest.FromString(request)
        first_id, count = self.next_id, len(parsed.messages)
        self.next_id += count
        now = int(time.time())
        stored = []
        for message_id, message in enumerate(parsed.messages, first_id):
            message.message_id = str(message_id)
            message.publish_time.seconds = now
            stored.append((message_id, message.SerializeToString()))
        for name in self.topics[parsed.topic]:
            self.subscriptions[name].add(stored)
        ids = [str(message_id) for message_id, _ in stored]
        return pb.PublishResponse(message_ids=ids).SerializeToString()

    async def acknowledge(self, request: bytes, _: object) -> bytes:
        list(pb.AcknowledgeRequest.FromString(request).ack_ids)
        return EMPTY

    async def modify_ack_deadline(self, request: bytes, _: object) -> bytes:
        list(pb.ModifyAckDeadlineRequest.FromString(request).ack_ids)
        return EMPTY

    async def streaming_pull(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        initial = pb.StreamingPullRequest.FromString(await anext(requests))
        answers_pings = initial.protocol_version > 0
        backlog = self.subscriptions[initial.subscription]
        sender = asyncio.create_task(self._send(backlog, context))
        try:
            async for _ in requests:
                if answers_pings:
                    backlog.responses.append(PROPERTIES)
                    backlog.arrived.set()
        finally:
            sender.cancel()

    async def _send(self, backlog: Backlog, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while True:
            backlog.arrived.clear()
            for response in backlog.make_responses():
                await context.write(response)
            await backlog.arrived.wait()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        unary = grpc.unary_unary_rpc_method_handler
        publisher: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "CreateTopic": unary(self.create_topic),
            "ListTopics": unary(self.list_topics),
            "DeleteTopic": unary(self.delete_topic),
            "Publish": unary(self.publish),
        }
        subscriber: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "CreateSubscription": unary(self.create_subscription),
            "GetSubscription": unary(self.get_subscription),
            "DeleteSubscription": unary(self.delete_subscription),
            "Acknowledge": unary(self.acknowledge),
            "ModifyAckDeadline": unary(self.modify_ack_deadline),
            "StreamingPull": grpc.stream_stream_rpc_method_handler(self.streaming_pull),
        }
        return [
            grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
        ]


async def serve(port: int, *, prebuilt: bool) -> None:
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(NullServer(prebuilt=prebuilt).handlers())
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prebuilt", action="store_true", help="make responses before they are asked for")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, prebuilt=arguments.prebuilt))


if __name__ == "__main__":
    main()
