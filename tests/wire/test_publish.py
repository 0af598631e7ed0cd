"""Publish: what it answers, what it refuses, and in which order it looks."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.support.server import ServerProcess
from tests.wire.calls import Client, refused
from tests.wire.support import unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
REQUEST_BYTES_MAX = 10_000_000


def message(data: bytes = b"x", **fields) -> pb.PubsubMessage:
    return pb.PubsubMessage(data=data, **fields)


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


@pytest.fixture
def subscription(client: Client, topic: str) -> str:
    return client.CreateSubscription(name=unique("subscription"), topic=topic).name


def received(client: Client, subscription: str, count: int) -> list[pb.PubsubMessage]:
    found: list[pb.PubsubMessage] = []
    while len(found) < count:
        response = client.Pull(subscription=subscription, max_messages=1000, return_immediately=True)
        assert response.received_messages, f"{len(found)} of {count}"
        found += [item.message for item in response.received_messages]
    return found


def request_of(topic: str, size: int) -> pb.PublishRequest:
    """A request that is this many bytes long."""
    request = pb.PublishRequest(topic=topic, messages=[message(b"x" * (size - 1000))])
    request.messages[0].data += b"x" * (size - request.ByteSize())
    assert request.ByteSize() == size
    return request


def test_ids_are_decimal_distinct_and_in_request_order(client: Client, topic: str, subscription: str):
    messages = [message(b"%d" % number) for number in range(100)]
    ids = list(client.Publish(topic=topic, messages=messages).message_ids)
    assert len(set(ids)) == 100
    assert all(message_id.isascii() and message_id.isdecimal() for message_id in ids)
    assert {m.message_id: m.data for m in received(client, subscription, 100)} == {
        message_id: b"%d" % number for number, message_id in enumerate(ids)
    }


def test_message_arrives_as_it_was_published(client: Client, topic: str, subscription: str):
    before = time.time()
    sent = message(b"\x00\xff", attributes={"k": "v", "empty": "", "é": "ж", "googclient_x": "y"})
    (message_id,) = client.Publish(topic=topic, messages=[sent]).message_ids
    (got,) = received(client, subscription, 1)
    assert (got.data, dict(got.attributes), got.ordering_key) == (sent.data, dict(sent.attributes), "")
    assert got.message_id == message_id
    published = got.publish_time.seconds + got.publish_time.nanos / 1e9
    assert before - 0.001 <= published <= time.time() + 0.001
    assert got.publish_time.nanos % 1000 == 0


def test_ordering_key_is_kept(client: Client, topic: str, subscription: str):
    client.Publish(topic=topic, messages=[message(ordering_key="k" * 1024)])
    (got,) = received(client, subscription, 1)
    assert got.ordering_key == "k" * 1024


def test_id_and_time_of_the_publisher_are_overwritten(client: Client, topic: str, subscription: str):
    sent = message(message_id="mine", publish_time=pb.Timestamp(seconds=1))
    (message_id,) = client.Publish(topic=topic, messages=[sent]).message_ids
    (got,) = received(client, subscription, 1)
    assert message_id not in ("", "mine")
    assert got.message_id == message_id
    assert got.publish_time.seconds > 1_000_000_000


def test_all_subscriptions_get_the_message_under_one_id(client: Client, topic: str, subscription: str):
    other = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    (message_id,) = client.Publish(topic=topic, messages=[message()]).message_ids
    late = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    assert [m.message_id for m in received(client, subscription, 1)] == [message_id]
    assert [m.message_id for m in received(client, other, 1)] == [message_id]
    pulled = client.Pull(subscription=late, max_messages=1, return_immediately=True)
    assert len(pulled.received_messages) == 0


def test_topic_without_subscriptions_takes_messages(client: Client, topic: str):
    assert len(client.Publish(topic=topic, messages=[message()]).message_ids) == 1


def test_retained_messages_are_not_given_to_a_new_subscription(client: Client):
    day = pb.Duration(seconds=86_400)
    topic = client.CreateTopic(name=unique("topic"), message_retention_duration=day).name
    client.Publish(topic=topic, messages=[message()])
    name = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    assert client.Pull(subscription=name, max_messages=1, return_immediately=True) == pb.PullResponse()


@pytest.mark.parametrize(
    "sent",
    [
        message(b"", attributes={"a": ""}),
        message(attributes={f"k{i}": "v" for i in range(100)}),
        message(attributes={"k" * 256: "v" * 1024}),
        message(attributes={"é" * 128: "é" * 512}),
        message(attributes={"googfoo": "v"}),
    ],
)
def test_message_at_the_limits_is_taken(client: Client, topic: str, subscription: str, sent):
    client.Publish(topic=topic, messages=[sent])
    (got,) = received(client, subscription, 1)
    assert (got.data, dict(got.attributes)) == (sent.data, dict(sent.attributes))


@pytest.mark.parametrize(
    ("bad", "tokens"),
    [
        (message(b""), ["empty"]),
        (message(b"", ordering_key="k"), ["empty"]),
        (message(attributes={f"k{i}": "v" for i in range(101)}), ["100"]),
        (message(attributes={"k" * 257: "v"}), ["has a key that is too long", "257", "256"]),
        (message(attributes={"é" * 129: "v"}), ["has a key that is too long", "258", "256"]),
        (
            message(attributes={"key": "v" * 1025}),
            ['The attribute "key"', "has a value that is too long", "1025", "1024"],
        ),
        (message(attributes={"key": "é" * 513}), ["has a value that is too long", "1026", "1024"]),
        (message(attributes={"": "v"}), []),
        (message(ordering_key="k" * 1025), []),
        (message(ordering_key="é" * 513), []),
    ],
)
def test_bad_message_refuses_the_whole_request(client: Client, topic: str, subscription: str, bad, tokens):
    with refused(INVALID_ARGUMENT, *tokens):
        client.Publish(topic=topic, messages=[message(ordering_key=bad.ordering_key), bad])
    pulled = client.Pull(subscription=subscription, max_messages=10, return_immediately=True)
    assert len(pulled.received_messages) == 0


def test_number_of_messages_is_limited(client: Client, topic: str):
    with refused(INVALID_ARGUMENT, "message_count", "too small", "0", "1"):
        client.Publish(topic=topic)
    with refused(INVALID_ARGUMENT, "message_count", "too large", "1001", "1000"):
        client.Publish(topic=topic, messages=[message()] * 1001)
    assert len(client.Publish(topic=topic, messages=[message()] * 1000).message_ids) == 1000


def test_request_of_exactly_the_size_limit_is_taken(client: Client, topic: str, subscription: str):
    request = request_of(topic, REQUEST_BYTES_MAX)
    client.Publish(request)
    (got,) = received(client, subscription, 1)
    assert got.data == request.messages[0].data


@pytest.mark.parametrize("size", [REQUEST_BYTES_MAX + 1, 10_485_760])
def test_request_over_the_size_limit_is_refused(client: Client, topic: str, size: int):
    with refused(INVALID_ARGUMENT, "request_size", "too large", str(size), "10000000"):
        client.Publish(request_of(topic, size))


def test_request_over_the_payload_limit_is_refused(client: Client, topic: str):
    for size in (10_485_761, 15_000_000):
        with refused(INVALID_ARGUMENT):
            client.Publish(request_of(topic, size))


def test_one_request_has_one_ordering_key(client: Client, topic: str):
    for keys in (("a", "b"), ("a", ""), ("", "a")):
        with refused(StatusCode.FAILED_PRECONDITION, "ordering key"):
            client.Publish(topic=topic, messages=[message(ordering_key=key) for key in keys])
    client.Publish(topic=topic, messages=[message(ordering_key="a")] * 2)


def test_checks_come_in_their_order(client: Client):
    missing = unique("topic")
    with refused(INVALID_ARGUMENT, "Invalid resource name given"):
        client.Publish(topic="nonsense")
    with refused(INVALID_ARGUMENT, "message_count"):
        client.Publish(topic=missing)
    with refused(INVALID_ARGUMENT, "empty"):
        client.Publish(topic=missing, messages=[message(b"")])
    with refused(StatusCode.FAILED_PRECONDITION, "ordering key"):
        client.Publish(topic=missing, messages=[message(ordering_key="a"), message()])
    with refused(StatusCode.NOT_FOUND, "Resource not found"):
        client.Publish(topic=missing, messages=[message()])


def test_publish_time_does_not_go_back(client: Client, topic: str, subscription: str):
    for _ in range(50):
        client.Publish(topic=topic, messages=[message()])
    found = sorted(received(client, subscription, 50), key=lambda m: int(m.message_id))
    times = [(m.publish_time.seconds, m.publish_time.nanos) for m in found]
    assert times == sorted(times)


def test_compressed_request_is_taken(server: ServerProcess, topic: str, client: Client, subscription: str):
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as gzip:
        Client(gzip).Publish(topic=topic, messages=[message(b"x" * 100_000)])
    (got,) = received(client, subscription, 1)
    assert got.data == b"x" * 100_000


def test_creations_that_race_have_one_winner(client: Client):
    name = unique("topic")
    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(client.CreateTopic, name=name) for _ in range(10)]
    errors = [future.exception() for future in futures]
    codes = [error.code() for error in errors if error is not None]
    assert codes == [StatusCode.ALREADY_EXISTS] * 9
