"""Requests that no library would send: each is answered with a status that says what is wrong.

None may be answered UNKNOWN or INTERNAL, none may hang, and the session's server is searched for tracebacks
when it has stopped. The client here keeps the library's own limits, as raw clients do.
"""

import os
import random
import struct
from collections.abc import Iterator

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.support.server import ServerProcess
from tests.wire.calls import STREAMING_PULL_PATH, UNARY, Client, Refusal, refused, refused_with_trailer
from tests.wire.support import unique

PATHS = [method.path for method in UNARY] + [STREAMING_PULL_PATH]
ACK_PATHS = {
    "/google.pubsub.v1.Subscriber/Acknowledge",
    "/google.pubsub.v1.Subscriber/ModifyAckDeadline",
}
MIB = 1 << 20

# What the name of a resource could look like that somebody hopes to break something with.
HOSTILE = {
    "control characters": "projects/p/topics/a\x00\x01\x1b[31m\r\nb",
    "line break": "projects/p/topics/abc\ngrpc-status: 0",
    "not ASCII": "projects/p/topics/\u202eabc\u0000\U0001f4a9é",
    "percent": "projects/p/topics/%00%ff%",
    "format": "projects/{p}/topics/{0.__class__}%s%n$(id)",
    "sql": "projects/p/topics/a'; DROP TABLE topics; --",
    "path": "projects/../topics/../../etc/passwd",
    "long": "projects/p/topics/" + "a" * MIB,
    "long and not ASCII": "é" * (MIB // 2),
    "long project": "projects/" + "p" * MIB + "/topics/abc",
}


@pytest.fixture(scope="module")
def narrow(server: ServerProcess) -> Iterator[grpc.Channel]:
    """A channel with the limits of the library: 8 kB of metadata and 4 MB for a message received."""
    options = [("grpc.max_send_message_length", 64 * MIB)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel


def answer(channel: grpc.Channel, path: str, body: bytes) -> Refusal:
    """Sends the bytes as they are; an answer of OK is a refusal with that code."""
    try:
        if path == STREAMING_PULL_PATH:
            next(channel.stream_stream(path)(iter([body]), timeout=10), b"")
        else:
            channel.unary_unary(path)(body, timeout=10)
    except grpc.RpcError as error:
        return Refusal.of(error)
    return Refusal()


def check_civil(refusal: Refusal, path: str) -> None:
    assert refusal.code not in (
        StatusCode.UNKNOWN,
        StatusCode.INTERNAL,
        StatusCode.CANCELLED,
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
    ), refusal
    if refusal.code != StatusCode.OK:
        assert " " in refusal.message
        assert len(refusal.message) < 2000
    if path in ACK_PATHS:
        assert refusal.status is not None
        assert refusal.message.isascii() and refusal.message.isprintable()


def length_delimited(field: int, content: bytes) -> bytes:
    tag, size, encoded = field << 3 | 2, len(content), b""
    while size > 127:
        encoded += bytes([size & 127 | 128])
        size >>= 7
    return bytes([tag]) + encoded + bytes([size]) + content


@pytest.mark.parametrize("path", PATHS)
def test_empty_request_is_refused(narrow: grpc.Channel, path: str):
    refusal = answer(narrow, path, b"")
    check_civil(refusal, path)
    assert refusal.code in (StatusCode.INVALID_ARGUMENT, StatusCode.UNIMPLEMENTED)


@pytest.mark.parametrize("path", PATHS)
def test_random_bytes_are_refused(narrow: grpc.Channel, path: str):
    chance = random.Random(path)
    bodies = [chance.randbytes(chance.choice([1, 2, 5, 20, 300, 5000])) for _ in range(30)]
    # These are broken for certain: cut lengths, an endless varint, a group that never ends, bad UTF-8.
    broken = [b"\xff", b"\x0a\xff", b"\x0a\x05ab", b"\x80" * 12, b"\x0b" * 200, b"\x0a\x02\xff\xfe"]
    for body in bodies + broken:
        check_civil(answer(narrow, path, body), path)
    for body in broken[:4]:
        refusal = answer(narrow, path, body)
        assert refusal.code in (StatusCode.INVALID_ARGUMENT, StatusCode.UNIMPLEMENTED)


@pytest.mark.parametrize("path", PATHS)
def test_deeply_nested_request_is_refused(narrow: grpc.Channel, path: str):
    body = b""
    for _ in range(2000):
        body = length_delimited(1, body)
    check_civil(answer(narrow, path, body), path)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("path", PATHS)
def test_hostile_name_is_refused(narrow: grpc.Channel, path: str, kind: str):
    # Field 1 or 2 is the name in most requests; in the others it is some other string or message.
    for field in (1, 2):
        body = length_delimited(field, HOSTILE[kind].encode())
        check_civil(answer(narrow, path, body), path)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_in_other_fields_is_refused_or_kept(narrow: grpc.Channel, kind: str):
    text = HOSTILE[kind]
    client = Client(narrow)
    topic = client.CreateTopic(name=unique("topic")).name
    subscription = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    with refused(StatusCode.INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), labels={text: "v"})
    with refused(StatusCode.INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), labels={"k": text})
    with refused(StatusCode.INVALID_ARGUMENT):
        client.ListTopics(project="projects/p", page_token=text)
    with refused(StatusCode.INVALID_ARGUMENT):
        mask = pb.FieldMask(paths=[text])
        client.UpdateTopic(topic=pb.Topic(name=topic), update_mask=mask)
    with refused(StatusCode.INVALID_ARGUMENT):
        client.CreateTopic(name=unique("topic"), kms_key_name=text)
    if len(text) < 1000:
        ack_ids = [text]
        client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x", attributes={text: text})])
        (received,) = client.Pull(subscription=subscription, max_messages=1).received_messages
        assert dict(received.message.attributes) == {text: text}
    else:
        ack_ids = [text[:400_000]] if text.isascii() else [text[:200_000]]
        with refused(StatusCode.INVALID_ARGUMENT):
            client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x", attributes={text: "v"})])
        with refused(StatusCode.INVALID_ARGUMENT):
            client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x", ordering_key=text)])
    with refused_with_trailer(StatusCode.INVALID_ARGUMENT):
        client.Acknowledge(subscription=subscription, ack_ids=ack_ids)


@pytest.mark.parametrize(
    "path",
    [
        "/google.pubsub.v1.Publisher/CreateTopic",
        "/google.pubsub.v1.Publisher/Publish",
        "/google.pubsub.v1.Subscriber/Acknowledge",
        STREAMING_PULL_PATH,
    ],
)
def test_huge_requests_are_refused(narrow: grpc.Channel, path: str):
    under = length_delimited(2, b"x" * (20 * MIB - 64))
    refusal = answer(narrow, path, under)
    check_civil(refusal, path)
    assert refusal.code == StatusCode.INVALID_ARGUMENT

    # Above the transport's limit the handler never sees the call, so there is no trailer to look for.
    over = length_delimited(2, b"x" * (20 * MIB + 64))
    refusal = answer(narrow, path, over)
    assert refusal.code in (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED)


def test_numbers_at_their_ends_are_refused_or_taken(client: Client):
    topic = client.CreateTopic(name=unique("topic")).name
    ends = [-(2**63), -(2**31), -1, 2**31, 2**62, 2**63 - 1]
    for number in ends:
        for nanos in (-(2**31), -1, 0, 999_999_999, 2**31 - 1):
            duration = pb.Duration(seconds=number, nanos=nanos)
            with refused(StatusCode.INVALID_ARGUMENT):
                client.CreateTopic(name=unique("topic"), message_retention_duration=duration)
            with refused(StatusCode.INVALID_ARGUMENT):
                client.CreateSubscription(
                    name=unique("subscription"), topic=topic, expiration_policy=dict(ttl=duration)
                )


def open_stream(client: Client, first: pb.StreamingPullRequest, *later: pb.StreamingPullRequest):
    return client.StreamingPull(iter([first, *later]), timeout=10)


@pytest.fixture
def subscription(client: Client) -> str:
    topic = client.CreateTopic(name=unique("topic")).name
    return client.CreateSubscription(
        name=unique("subscription"), topic=topic, enable_exactly_once_delivery=True
    ).name


def test_stream_that_begins_with_acks_or_a_keep_alive_is_refused(client: Client):
    for first in (pb.StreamingPullRequest(), pb.StreamingPullRequest(ack_ids=["x"])):
        with refused(StatusCode.INVALID_ARGUMENT):
            list(open_stream(client, first))


def test_stream_that_ends_before_it_begins_is_answered(client: Client):
    try:
        assert list(client.StreamingPull(iter([]), timeout=10)) == []
    except grpc.RpcError as error:
        assert error.code() == StatusCode.INVALID_ARGUMENT


def test_stream_that_begins_twice_is_refused(client: Client, subscription: str):
    first = pb.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
    with refused(StatusCode.INVALID_ARGUMENT):
        list(open_stream(client, first, first))


def test_broken_bytes_on_an_open_stream_are_refused(channel: grpc.Channel, subscription: str):
    first = pb.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
    for broken in (b"\xff", b"\x0a\x05ab", b"\x12\x02\xff\xfe"):
        bodies = [first.SerializeToString(), b"", broken]
        with refused(StatusCode.INVALID_ARGUMENT):
            list(channel.stream_stream(STREAMING_PULL_PATH)(iter(bodies), timeout=10))


def test_huge_request_on_an_open_stream_is_refused(client: Client, subscription: str):
    first = pb.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=10)
    huge = pb.StreamingPullRequest(ack_ids=["x" * MIB] * 19)
    with refused(StatusCode.INVALID_ARGUMENT):
        list(open_stream(client, first, huge))


def test_unfinished_http2_does_not_disturb_others(server: ServerProcess, client: Client, subscription: str):
    import socket

    for content in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", os.urandom(500)):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            raw.sendall(content + struct.pack(">I", 0))
    assert client.GetSubscription(subscription=subscription).name == subscription


def test_server_has_met_no_error_that_nobody_thought_of(server: ServerProcess, client: Client):
    assert client.ListTopics(project="projects/wire").topics
    assert "Traceback" not in server.output, server.output
