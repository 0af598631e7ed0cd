"""Checks of a Publish request, in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import publishing
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.arbitrary import any_message
from tests.unit.model.conftest import TOPIC, refusal


def message(data: bytes = b"x", ordering_key: str = "", **attributes: str) -> pb.PubsubMessage:
    return pb.PubsubMessage(data=data, ordering_key=ordering_key, attributes=attributes)


def request(*messages: pb.PubsubMessage, topic: str = TOPIC) -> pb.PublishRequest:
    return pb.PublishRequest(topic=topic, messages=messages)


def check(publish: pb.PublishRequest) -> None:
    publishing.check_publish(publish, publish.ByteSize())


@pytest.mark.parametrize(
    "messages",
    [
        [message()],
        [message(b"", k="v")],
        [message(b"", k="")],  # an empty value is an attribute all the same
        [message()] * 1000,
        [pb.PubsubMessage(attributes={f"k{n}": "v" for n in range(100)})],
        [pb.PubsubMessage(attributes={"k" * 256: "v" * 1024})],
        [pb.PubsubMessage(attributes={"é" * 128: "\U0001f600" * 256})],
        [message(ordering_key="k" * 1024)] * 2,
        [message(ordering_key="é" * 512)],
        [message(googclient_schemaname="x", goog="x")],
        [pb.PubsubMessage(data=b"x", message_id="mine", publish_time=pb.Timestamp(seconds=1))],
    ],
    ids=lambda messages: str(messages)[:60],
)
def test_a_request_within_the_rules_is_accepted(messages: list[pb.PubsubMessage]) -> None:
    check(request(*messages))


def test_a_bad_topic_name_is_refused() -> None:
    assert "Invalid resource name" in refusal("INVALID_ARGUMENT", check, request(message(), topic="t"))


def test_a_request_without_messages_is_too_small() -> None:
    said = refusal("INVALID_ARGUMENT", check, request())

    for words in ("message_count", "is too small", "0 was passed", "1"):
        assert words in said


def test_more_than_1000_messages_are_too_large() -> None:
    said = refusal("INVALID_ARGUMENT", check, request(*[message()] * 1001))

    for words in ("message_count", "is too large", "1001 was passed", "1000"):
        assert words in said


def test_a_request_of_10_000_000_bytes_is_accepted_and_one_byte_more_refused() -> None:
    publishing.check_publish(request(message()), 10_000_000)

    said = refusal("INVALID_ARGUMENT", publishing.check_publish, request(message()), 10_000_001)

    for words in ("request_size", "is too large", "10000001 was passed", "10000000"):
        assert words in said


@pytest.mark.parametrize("empty", [message(b""), message(b"", ordering_key="k")])
def test_a_message_without_data_and_attributes_is_refused(empty: pb.PubsubMessage) -> None:
    said = refusal("INVALID_ARGUMENT", check, request(message(), empty))

    assert "is empty" in said and "at least one attribute" in said


def test_more_than_100_attributes_are_refused() -> None:
    crowded = pb.PubsubMessage(attributes={f"k{n}": "v" for n in range(101)})

    assert "too large: 101 was passed" in refusal("INVALID_ARGUMENT", check, request(message(), crowded))


@pytest.mark.parametrize("key", ["k" * 257, "é" * 129, "\U0001f600" * 65])
def test_an_attribute_key_above_256_bytes_is_refused(key: str) -> None:
    said = refusal("INVALID_ARGUMENT", check, request(pb.PubsubMessage(attributes={key: "v"})))

    assert "has a key that is too long" in said
    assert f"{len(key.encode())} bytes" in said and "256" in said and "quotas" in said


@pytest.mark.parametrize("value", ["v" * 1025, "é" * 513])
def test_an_attribute_value_above_1024_bytes_is_refused(value: str) -> None:
    said = refusal("INVALID_ARGUMENT", check, request(message(size=value)))

    assert 'The attribute "size" has a value that is too long' in said
    assert f"{len(value.encode())} bytes" in said and "1024" in said and "quotas" in said


def test_an_empty_attribute_key_is_refused() -> None:
    assert "key" in refusal("INVALID_ARGUMENT", check, request(pb.PubsubMessage(attributes={"": "v"})))


@pytest.mark.parametrize("key", ["k" * 1025, "é" * 513])
def test_an_ordering_key_above_1024_bytes_is_refused(key: str) -> None:
    said = refusal("INVALID_ARGUMENT", check, request(message(ordering_key=key)))

    assert "messages.ordering_key" in said and "1024" in said


@pytest.mark.parametrize("keys", [("a", "b"), ("", "a"), ("a", ""), ("a", "a", "b")])
def test_different_ordering_keys_in_one_request_are_refused(keys: tuple[str, ...]) -> None:
    said = refusal("FAILED_PRECONDITION", check, request(*[message(ordering_key=key) for key in keys]))

    assert "no ordering key" in said


# Each entry breaks one rule; they stand in the order in which the rules are checked.
BROKEN = [
    (message(b""), "is empty"),
    (pb.PubsubMessage(attributes={f"k{n}": "v" for n in range(101)}), "attribute_count"),
    (pb.PubsubMessage(attributes={"k" * 257: "v"}), "key that is too long"),
    (message(k="v" * 1025), "value that is too long"),
    (message(ordering_key="k" * 1025), "ordering_key"),
    (message(ordering_key="other"), "no ordering key"),
]


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_the_first_rule_broken_by_any_message_is_the_one_reported(first: int) -> None:
    # The worst offender comes last in the request, so the order of messages cannot decide.
    messages = [message(), *(bad for bad, _ in reversed(BROKEN[first:]))]

    with pytest.raises(PubsubError) as caught:
        check(request(*messages))

    assert BROKEN[first][1] in caught.value.message


@given(any_message(pb.PublishRequest), st.booleans(), st.integers(0, 2**40))
def test_any_request_passes_or_is_refused(publish: pb.PublishRequest, is_named: bool, size: int) -> None:
    if is_named:
        publish.topic = TOPIC
    for request_bytes in (size, publish.ByteSize()):
        try:
            publishing.check_publish(publish, request_bytes)
        except PubsubError as error:
            assert error.message.isascii() and error.message.isprintable()


@given(st.lists(any_message(pb.PubsubMessage), min_size=1, max_size=4))
def test_the_quick_look_never_passes_what_the_rules_refuse(messages: list[pb.PubsubMessage]) -> None:
    if publishing._are_plainly_fine(messages):
        publishing._check_messages(messages)
