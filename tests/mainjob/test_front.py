"""The door lets clients wait for a server, hands everything on, and breaks with the server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A port that nobody listens to yet."""
    with socket.socket() as listener:
        listener.settimeout(10)
        listener.bind(("127.0.0.1", 0))
        yield listener


@pytest.fixture
def client(server: socket.socket) -> Iterator[socket.socket]:
    """Connected to the door before it."""
    command = [sys.executable, "-m", "tests.mainjob.front", f"--port={server.getsockname()[1]}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as front:
        assert front.stdin is not None and front.stdout is not None
        with socket.create_connection(("127.0.0.1", int(front.stdout.readline())), timeout=10) as connected:
            yield connected
        front.stdin.close()
        assert front.wait(10) == 0


def test_a_client_waits_for_a_server_and_is_handed_on(server: socket.socket, client: socket.socket) -> None:
    client.sendall(b"is anybody there?")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)

    server.listen()
    connection, _ = server.accept()
    with connection:
        assert connection.recv(100) == b"is anybody there?"
        connection.sendall(b"yes")
        assert client.recv(100) == b"yes"


def test_a_client_hears_what_its_server_said_last_and_then_that_it_is_gone(
    server: socket.socket, client: socket.socket
) -> None:
    server.listen()
    connection, _ = server.accept()
    connection.sendall(b"last words")
    connection.close()

    assert client.recv(100) == b"last words"
    assert client.recv(100) == b""
