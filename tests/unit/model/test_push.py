"""Push configuration: checked and completed already, though push itself is later work."""

from __future__ import annotations

import pytest

from pubsubd.model import push
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
