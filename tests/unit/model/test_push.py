"""Push: its configuration, checked and completed, and the request that a message becomes."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import push
from pubsubd.model.message import stored_message
from pubsubd.wire import pb
from tests.unit.model.conftest import refusal


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://example.com",
        "http://localhost:8080/push?token=1",
        "http://127.0.0.1/x#y",
        "HTTPS://example.com/",
        "http://[::1]:9000/push",
        "https://user:secret@example.com/x",
        "http://host?x=1",
    ],
)
def test_an_http_or_https_url_with_a_host_is_an_endpoint(endpoint: str) -> None:
    push.check_push_config(pb.PushConfig(push_endpoint=endpoint))


@pytest.mark.parametrize(
    "endpoint",
    [
        "example.com",
        "ftp://example.com",
        "http://",
        "http:///path",
        "http://:80/",
        "#fragment",
        "//example.com",
        "http://example.com:port",
        "http://example.com:0",
        "http://example.com:65536",
        "http://[::1",
        "http://exa mple.com",
        "http://example.com/\n",
        "http://exämple.com",
        "javascript:alert(1)",
    ],
)
def test_anything_else_is_refused_and_shown(endpoint: str) -> None:
    message = refusal("INVALID_ARGUMENT", push.check_push_config, pb.PushConfig(push_endpoint=endpoint))

    assert message.startswith("Invalid push endpoint given (endpoint=")


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_the_documented_versions_are_accepted(version: str) -> None:
    push.check_push_config(
        pb.PushConfig(push_endpoint="https://x.test", attributes={"x-goog-version": version, "other": "kept"})
    )


def test_another_version_is_refused() -> None:
    config = pb.PushConfig(push_endpoint="https://x.test", attributes={"x-goog-version": "v2"})

    message = refusal("INVALID_ARGUMENT", push.check_push_config, config)

    assert "Invalid push endpoint version" in message and "(version=v2)" in message


@pytest.mark.parametrize("email", ["", "someone", "@x", "a b@x"])
def test_a_service_account_that_is_no_email_is_refused(email: str) -> None:
    config = pb.PushConfig(push_endpoint="https://x.test", oidc_token={"service_account_email": email})

    message = refusal("INVALID_ARGUMENT", push.check_push_config, config)

    assert "argument=PushConfig::oidc_token::service_account_email" in message


def test_without_an_endpoint_nothing_else_matters_and_nothing_else_is_kept() -> None:
    config = pb.PushConfig(attributes={"x-goog-version": "v9"}, oidc_token={}, no_wrapper={})

    push.check_push_config(config)
    push.settle(config)

    assert pb.PushConfig() == config


def test_version_and_wrapper_are_filled_in() -> None:
    config = pb.PushConfig(push_endpoint="https://x.test")

    push.settle(config)

    assert config.attributes == {"x-goog-version": "v1"}
    assert config.WhichOneof("wrapper") == "pubsub_wrapper"


def test_a_chosen_version_and_wrapper_are_kept() -> None:
    config = pb.PushConfig(
        push_endpoint="https://x.test", attributes={"x-goog-version": "v1beta1"}, no_wrapper={}
    )

    push.settle(config)

    assert config.attributes == {"x-goog-version": "v1beta1"}
    assert config.WhichOneof("wrapper") == "no_wrapper"


# --- the request -----------------------------------------------------------------------------------------

PUBLISHED_US = 1_614_366_835_749_999
NAME = "projects/p/subscriptions/billing"
USER_AGENT = "APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)"


def wrapped(message: pb.PubsubMessage, attempt: int | None = None) -> bytes:
    form = push.PushForm(NAME, pb.PushConfig(push_endpoint="https://x.test", pubsub_wrapper={}))
    return form.request(stored_message(message, 42, PUBLISHED_US), attempt).body


def unwrapped(message: pb.PubsubMessage, write_metadata: bool = True) -> push.PushRequest:
    no_wrapper = pb.PushConfig.NoWrapper(write_metadata=write_metadata)
    form = push.PushForm(NAME, pb.PushConfig(push_endpoint="https://x.test", no_wrapper=no_wrapper))
    return form.request(stored_message(message, 42, PUBLISHED_US), 3)


def headers_of(**attributes: str) -> list[tuple[str, str]]:
    return unwrapped(pb.PubsubMessage(data=b"x", attributes=attributes)).headers


def test_a_wrapped_message_is_this_text() -> None:
    message = pb.PubsubMessage(data=b"\xfb\xff?>", attributes={"b": "2", "a": '"/'}, ordering_key="k\n")

    assert wrapped(message, 5) == (
        b'{"message":{"attributes":{"a":"\\"/","b":"2"},"data":"+/8/Pg==",'
        b'"messageId":"42","message_id":"42","orderingKey":"k\\n",'
        b'"publishTime":"2021-02-26T19:13:55.749Z","publish_time":"2021-02-26T19:13:55.749Z"},'
        b'"subscription":"projects/p/subscriptions/billing","deliveryAttempt":5}'
    )


def test_what_is_empty_is_left_out() -> None:
    assert wrapped(pb.PubsubMessage(data=b"x")) == (
        b'{"message":{"data":"eA==","messageId":"42","message_id":"42",'
        b'"publishTime":"2021-02-26T19:13:55.749Z","publish_time":"2021-02-26T19:13:55.749Z"},'
        b'"subscription":"projects/p/subscriptions/billing"}'
    )
    assert b'"data"' not in wrapped(pb.PubsubMessage(attributes={"a": "b"}))


@given(
    st.binary(max_size=50),
    st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=4),
    st.text(max_size=9),
)
def test_any_message_is_found_again_in_its_json(data: bytes, attributes: dict[str, str], key: str) -> None:
    found = json.loads(wrapped(pb.PubsubMessage(data=data, attributes=attributes, ordering_key=key)))

    assert data == b64decode(found["message"].get("data", ""))
    assert attributes == found["message"].get("attributes", {})
    assert key == found["message"].get("orderingKey", "")


def test_an_unwrapped_request_without_metadata_is_the_data() -> None:
    message = pb.PubsubMessage(data=b"\x00\xff", attributes={"content-type": "text/plain", "a": "b"})

    request = unwrapped(message, write_metadata=False)

    assert request.body == b"\x00\xff"
    assert request.headers == [
        ("Content-Type", "application/octet-stream"),
        ("User-Agent", USER_AGENT),
        ("From", "noreply@google.com"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "gzip, deflate, br"),
    ]


def test_metadata_are_headers_and_so_are_attributes() -> None:
    message = pb.PubsubMessage(data=b"x", attributes={"b": "ü", "a": "1"}, ordering_key="k")

    assert unwrapped(message).headers[5:] == [
        ("x-goog-pubsub-subscription-name", NAME),
        ("x-goog-pubsub-message-id", "42"),
        ("x-goog-pubsub-publish-time", "2021-02-26T19:13:55.749Z"),
        ("x-goog-pubsub-ordering-key", "k"),
        ("a", "1"),
        ("b", "ü"),
    ]


def test_metadata_win_over_attributes_of_their_names() -> None:
    headers = headers_of(**{"X-Goog-Pubsub-Message-Id": "forged", "x-goog-pubsub-other": "kept"})

    assert [value for name, value in headers if name.lower() == "x-goog-pubsub-message-id"] == ["42"]
    assert ("x-goog-pubsub-other", "kept") in headers


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "user-agent", "Accept"])
def test_an_attribute_replaces_what_is_sent_anyway(name: str) -> None:
    headers = headers_of(**{name: "mine"})

    assert [value for one, value in headers if one.lower() == name.lower()] == ["mine"]


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "connection", "AUTHORIZATION", "Expect", "upgrade", "TE"],
)
def test_an_attribute_says_nothing_about_the_request_itself(name: str) -> None:
    assert name.lower() not in {one.lower() for one, _ in headers_of(**{name: "1"})}


@pytest.mark.parametrize("name", ["a b", "a:b", "ä", "a\nb", "(a)", "a,b"])
def test_an_attribute_whose_name_is_none_of_a_header_is_skipped(name: str) -> None:
    assert len(headers_of(**{name: "1"})) == len(headers_of())


@pytest.mark.parametrize("value", ["a\r\nInjected: 1", "\x00", "a\x7f"])
def test_an_attribute_with_control_characters_is_skipped(value: str) -> None:
    assert len(headers_of(name=value)) == len(headers_of())


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("https://example.com/x?y", "example.com"),
        ("http://user:secret@localhost:8080/push", "localhost:8080"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_an_endpoint_is_known_by_its_host_and_port(endpoint: str, host: str) -> None:
    assert host == push.endpoint_host(endpoint)
