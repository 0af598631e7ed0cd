"""The port that gRPC and REST share: whatever comes in at it, the neighbours do not notice."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from pubsubd.storage.store import FILE_NAME
from tests.support.server import ServerProcess
from tests.wire.calls import CHANNEL_OPTIONS, Client, refused
from tests.wire.harness import case
from tests.wire.http import Rest, send
from tests.wire.support import World, unique

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="session")
def rest(server: ServerProcess) -> Rest:
    return Rest(server.port)


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("topic")
    client.CreateTopic(name=name)
    return name


@contextmanager
def undisturbed(client: Client) -> Iterator[None]:
    """What a gRPC client published around this is there, all of it and in time."""
    topic, subscription = unique("topic"), unique("subscription")
    client.CreateTopic(name=topic)
    client.CreateSubscription(name=subscription, topic=topic, ack_deadline_seconds=600)
    before = list(client.Publish(topic=topic, messages=[{"data": b"x"}] * 10, timeout=5).message_ids)
    yield
    began = time.monotonic()
    after = list(client.Publish(topic=topic, messages=[{"data": b"x"}] * 10, timeout=5).message_ids)
    received = client.Pull(subscription=subscription, max_messages=100, timeout=5).received_messages
    assert [each.message.message_id for each in received] == [*before, *after]
    assert time.monotonic() - began < 5


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes the connection."""
    data = b""
    while more := connection.recv(65536):
        data += more
    return data


def read_answers(connection: socket.socket, count: int) -> bytes:
    data = b""
    while data.count(b"HTTP/1.1 200 OK") < count or not data.endswith(b"}\n"):
        more = connection.recv(65536)
        assert more, data
        data += more
    return data


# --- HTTP as it is spoken ---------------------------------------------------------------------------------


def test_a_connection_serves_many_requests(rest: Rest, topic: str):
    with rest.connection() as connection:
        for number in range(50):
            assert send(connection, "GET", f"/v1/{topic}").status == 200
            assert send(connection, "POST", f"/v1/{topic}:publish", b"{").status == 400, number


def test_requests_that_come_at_once_are_answered_in_order(rest: Rest, client: Client):
    topics = [unique("topic") for _ in range(60)]
    for topic in topics:
        client.CreateTopic(name=topic)
    with rest.raw() as connection:
        connection.sendall(
            b"".join(f"GET /v1/{topic} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for topic in topics)
        )
        data = read_answers(connection, len(topics))
    places = [data.index(f'"{topic}"'.encode()) for topic in topics]
    assert places == sorted(places)


def test_the_first_version_of_http_is_spoken_and_then_the_connection_ends(rest: Rest, topic: str):
    with rest.raw() as connection:
        connection.sendall(f"GET /v1/{topic} HTTP/1.0\r\n\r\n".encode())
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.0 200 OK\r\n") and f'"{topic}"'.encode() in data
    with rest.raw() as connection:
        request = f"GET /v1/{topic} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode()
        for _ in range(2):
            connection.sendall(request)
            assert b"200 OK" in connection.recv(65536)


def test_a_whole_address_in_the_request_line_is_a_path(rest: Rest, topic: str):
    with rest.raw() as connection:
        connection.sendall(
            f"GET http://localhost/v1/{topic}?alt=json HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        read_answers(connection, 1)


def test_a_body_may_come_in_pieces_or_compressed(rest: Rest, topic: str):
    body = b'{"messages": [{"data": "aGk="}]}'
    with rest.connection() as connection:
        connection.request("POST", f"/v1/{topic}:publish", iter([body[:5], body[5:]]), encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 200, response.read()
    compressed = rest("POST", f"/v1/{topic}:publish", gzip.compress(body), {"Content-Encoding": "gzip"})
    assert compressed.status == 200


def test_a_client_that_waits_to_be_told_to_go_on_is_told(rest: Rest, topic: str):
    body = b'{"messages": [{"data": "aGk="}]}'
    with rest.raw() as connection:
        head = f"POST /v1/{topic}:publish HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        read_answers(connection, 1)


# --- large ------------------------------------------------------------------------------------------------


def test_the_largest_publish_request_fits(rest: Rest, client: Client, topic: str):
    data = "A" * 4 * (9_900_000 // 3)
    with undisturbed(client):
        assert rest("POST", f"/v1/{topic}:publish", {"messages": [{"data": data}]}).status == 200
        error = rest("POST", f"/v1/{topic}:publish", {"messages": [{"data": data}] * 2}).error
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        assert "request_size" in error["message"]


def test_a_body_that_is_too_large_is_refused_before_it_is_read(rest: Rest, client: Client, topic: str):
    with undisturbed(client), rest.raw() as connection:
        head = f"POST /v1/{topic}:publish HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")
        # A client that hears nothing before it has sent all is read for a while, and then no more.
        with pytest.raises(OSError):
            while True:
                connection.sendall(b" " * 1_000_000)
                time.sleep(0.01)


def test_a_body_of_unknown_length_is_read_so_far_and_no_further(rest: Rest, client: Client, topic: str):
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with undisturbed(client), rest.raw() as connection:
        connection.sendall(f"POST /v1/{topic}:publish HTTP/1.1\r\nHost: x\r\n".encode())
        connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(34):
            connection.sendall(piece)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 400") and b"payload size exceeds the limit" in answer


def test_what_grows_when_it_is_unpacked_is_refused(rest: Rest, client: Client, topic: str):
    bomb = gzip.compress(b" " * 200_000_000, 9)
    with undisturbed(client):
        reply = rest("POST", f"/v1/{topic}:publish", bomb, {"Content-Encoding": "gzip"})
        assert reply.status == 400


def test_headers_that_are_too_large_are_refused(rest: Rest, client: Client):
    with undisturbed(client):
        assert rest("GET", "/", headers={"X": "x" * 100_000}).status == 400
        assert rest("GET", "/" + "x" * 100_000).status in (400, 414)


# --- slow, silent, gone -----------------------------------------------------------------------------------


def test_connections_that_say_little_or_nothing_are_in_nobodys_way(rest: Rest, client: Client, topic: str):
    beginnings = [
        *(b"", b"P", b"PR", b"PRI", PREFACE[:10], PREFACE, b"GET", b"GET / HTTP/1.1\r\nHost:"),
        f"POST /v1/{topic}:publish HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode(),
    ]
    with ExitStack() as open_connections:
        for beginning in beginnings * 20:
            open_connections.enter_context(rest.raw()).sendall(beginning)
        with undisturbed(client):
            assert rest("GET", f"/v1/{topic}").status == 200


def test_a_request_that_comes_byte_by_byte_is_a_request(rest: Rest, topic: str):
    with rest.raw() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in f"GET /v1/{topic} HTTP/1.1\r\nHost: x\r\n\r\n".encode():
            connection.sendall(bytes([byte]))
        read_answers(connection, 1)


def test_a_grpc_client_whose_first_bytes_come_one_by_one_is_one(server: ServerProcess, rest: Rest):
    settings_frame = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    with rest.raw() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PREFACE + settings_frame:
            connection.sendall(bytes([byte]))
        # The server's own settings: length, type 4.
        assert connection.recv(4096)[3] == 4


def test_a_client_that_does_not_read_its_answers_is_in_nobodys_way(rest: Rest, client: Client, topic: str):
    with rest.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1)
        request = f"GET /v1/{topic} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 100
        with undisturbed(client), pytest.raises(TimeoutError):
            while True:
                connection.sendall(request)


def test_connections_that_end_in_any_way_leave_nothing_behind(
    server: ServerProcess, rest: Rest, client: Client
):
    process = psutil.Process(server.pid)
    rest("GET", "/")
    before = process.num_fds()
    beginnings = [b"", b"P", PREFACE, PREFACE + b"\0" * 9, b"GET / HTTP/1.1\r\n"]
    chance = random.Random(7)
    with undisturbed(client):
        for number in range(300):
            with rest.raw() as connection:
                connection.sendall(chance.choice(beginnings))
                if number % 3 == 0:
                    # Ends with a reset instead of the usual farewell.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                elif number % 3 == 1:
                    connection.shutdown(socket.SHUT_WR)
                    read_all(connection)
    deadline = time.monotonic() + 10
    while process.num_fds() > before + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.num_fds() <= before + 3


# --- garbage ----------------------------------------------------------------------------------------------


def test_garbage_is_answered_or_hung_up_on(rest: Rest, client: Client):
    chance = random.Random(5)
    tls_hello = bytes.fromhex("16030100c8010000c40303") + bytes(200)
    garbage = [
        *(chance.randbytes(chance.choice([1, 10, 1000, 70_000])) for _ in range(40)),
        *(tls_hello, b"\0" * 1000, b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"SSH-2.0-x\r\n"),
        *(PREFACE + chance.randbytes(1000), b"PRIVATE / HTTP/1.1\r\n\r\n", PREFACE[:12] + b"\0" * 100),
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/projects/p/topics/t:publish HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: 5\r\n\r\nabcde",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMA\r\n\r\n",
    ]
    with undisturbed(client):
        for data in garbage:
            with rest.raw() as connection:
                try:
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    answer = read_all(connection)
                except ConnectionError:  # it hung up while we were speaking
                    continue
                assert not answer.startswith(b"HTTP/1.1 5"), (data[:60], answer[:200])


# --- who calls --------------------------------------------------------------------------------------------


@case
async def test_the_journal_knows_a_client_by_its_address_whichever_way_it_comes(world: World):
    async with world.own_server("--grpc-port", "0") as own:
        (line,) = await own.said("  grpc ")
        direct = line.split()[1].rpartition(":")[2]
        await own.client.CreateTopic(name="projects/p/topics/orders")
        for host in ("127.0.0.1", "[::1]"):
            for port in (own.server.port, direct):
                options = [("grpc.primary_user_agent", f"by-{port}"), *CHANNEL_OPTIONS]
                async with grpc.aio.insecure_channel(f"{host}:{port}", options=options) as channel:
                    message = {"data": b"x"}
                    await Client(channel).Publish(topic="projects/p/topics/orders", messages=[message])
            rest = Rest(own.server.port, host.strip("[]"))
            publish = "/v1/projects/p/topics/orders:publish"
            body, agent = {"messages": [{"data": "aGk="}]}, {"User-Agent": "by-http"}
            assert (await asyncio.to_thread(rest, "POST", publish, body, agent)).status == 200
        await own.kill_server()  # and so nothing is moved out of the database
        assert own.server.data_dir is not None
        clients = clients_in(own.server.data_dir)
        for host in ("ipv4:127.0.0.1", "ipv6:%5B::1%5D"):
            for agent in (f"by-{own.server.port}", f"by-{direct}", "by-http"):
                found = [name for name in clients if name.startswith(agent) and name.endswith(f" {host}")]
                assert len(found) == 1, (host, agent, clients)


def clients_in(data_dir: Path) -> list[str]:
    """The names of clients that a journal tells of."""
    with sqlite3.connect(data_dir / FILE_NAME) as connection:
        rows = connection.execute("SELECT detail FROM journal_detail").fetchall()
    return [name for (text,) in rows if (name := json.loads(text).get("client"))]


# --- limits of the machine --------------------------------------------------------------------------------


@case(alone=True)
async def test_too_many_connections_wait_and_harm_nobody(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        rest = Rest(own.server.port)
        await asyncio.to_thread(rest, "GET", "/")
        process = psutil.Process(own.server.pid)
        allowed = process.num_fds() + 20
        process.rlimit(psutil.RLIMIT_NOFILE, (allowed, allowed))
        with ExitStack() as open_connections:
            for _ in range(100):
                open_connections.enter_context(rest.raw()).sendall(b"GET / HTTP/1.1\r\n")
            await own.said("no more connections can be accepted")
            await sub.publish(5)
            assert len(await sub.pull(5)) == 5
            used = process.cpu_times().user
            await asyncio.sleep(1)
            assert process.cpu_times().user - used < 0.3, "it does not try again and again"
        reply = await asyncio.to_thread(rest, "GET", "/")
        assert reply.status == 200
        assert len(own.server.output) < 5000


def test_a_refusal_of_the_grpc_server_passes_unchanged(server: ServerProcess, topic: str):
    with grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        client = Client(channel)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            client.Publish(topic=topic, messages=[{"data": os.urandom(26_000_000)}])
        assert client.GetTopic(topic=topic).name == topic
