"""Push with the Python library, which configures it, and an endpoint as Python's users write one."""

from __future__ import annotations

import json
import queue
import threading
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

WITHIN_SECONDS = 20


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, so each request has a connection of its own. Its server has two queues of ours."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.came.put(body)  # type: ignore[attr-defined]  # one of the queues
        self.send_response(self.server.statuses.get())  # type: ignore[attr-defined]  # the other
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def endpoint() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.came, server.statuses = queue.Queue(), queue.Queue()
    server.url = f"http://127.0.0.1:{server.server_port}/push"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def data_of(body: dict[str, Any]) -> bytes:
    return b64decode(body["message"]["data"])


def test_messages_are_pushed_until_the_endpoint_is_taken_away(world, endpoint):
    topic = world.topic()
    subscription = world.subscription(topic, push_config={"push_endpoint": endpoint.url})
    for status in (200, 500, 200):
        endpoint.statuses.put(status)
    world.publisher.publish(topic, b"first").result()
    assert data_of(endpoint.came.get(timeout=WITHIN_SECONDS)) == b"first"
    world.publisher.publish(topic, b"second", kind="order").result()
    bodies = [endpoint.came.get(timeout=WITHIN_SECONDS) for _ in range(2)]

    assert [data_of(body) for body in bodies] == [b"second", b"second"]
    assert bodies[0]["message"]["attributes"] == {"kind": "order"}
    assert bodies[0]["subscription"] == subscription

    world.subscriber.modify_push_config(subscription=subscription, push_config={})
    world.publisher.publish(topic, b"third").result()
    response = world.subscriber.pull(subscription=subscription, max_messages=1, timeout=WITHIN_SECONDS)
    assert [one.message.data for one in response.received_messages] == [b"third"]
    assert endpoint.came.empty()


def test_a_push_subscription_is_shown_with_its_configuration(world, endpoint):
    config = {
        "push_endpoint": endpoint.url,
        "oidc_token": {"service_account_email": "a@b.test", "audience": "me"},
        "no_wrapper": {"write_metadata": True},
    }
    name = world.subscription(world.topic(), push_config=config)
    shown = world.subscriber.get_subscription(subscription=name).push_config

    assert shown.push_endpoint == endpoint.url
    assert (shown.oidc_token.service_account_email, shown.oidc_token.audience) == ("a@b.test", "me")
    assert shown.no_wrapper.write_metadata
    assert dict(shown.attributes) == {"x-goog-version": "v1"}
