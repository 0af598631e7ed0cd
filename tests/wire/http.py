"""REST as a client of plain HTTP sees it: a line, some headers, a body."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]  # by names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json; charset=UTF-8", self
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert error["code"] == self.status
        return error


class Rest:
    """A server's REST interface; a connection for each request."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """`body` is sent as it is if it is bytes, else as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=40)
        try:
            return send(connection, method, path, body, headers)
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """As a call, for what is to succeed; the JSON of its answer."""
        reply = self(method, f"/v1/{path}", body)
        assert reply.status == 200, reply
        return reply.json

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        """For several requests, one after the other."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        with socket.create_connection((self.host, self.port), timeout=20) as connection:
            yield connection


def send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    return Reply(
        response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    )
