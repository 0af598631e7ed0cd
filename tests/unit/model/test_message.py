"""Messages as they are stored, and their hashes."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model.message import ordering_key_hash, payload_hash, stored_message, stored_messages
from pubsubd.wire import pb

MESSAGE_IDS = st.integers(1, 2**63 - 1)
TIMES_US = st.integers(0, 253_402_300_799_999_999)


@given(
    st.binary(max_size=50),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.text(max_size=5),
    MESSAGE_IDS,
    TIMES_US,
)
def test_a_stored_message_is_what_was_published_with_the_id_and_time_of_the_server(
    data: bytes, attributes: dict[str, str], ordering_key: str, message_id: int, publish_us: int
) -> None:
    message = pb.PubsubMessage(
        data=data,
        attributes=attributes,
        ordering_key=ordering_key,
        message_id="chosen by the publisher",
        publish_time=pb.Timestamp(seconds=7, nanos=7),
    )
    seconds, fraction_us = divmod(publish_us, 1_000_000)

    stored = pb.PubsubMessage.FromString(stored_message(message, message_id, publish_us))

    assert stored == pb.PubsubMessage(
        data=data,
        attributes=attributes,
        ordering_key=ordering_key,
        message_id=str(message_id),
        publish_time=pb.Timestamp(seconds=seconds, nanos=fraction_us * 1000),
    )


def test_the_messages_of_a_request_get_consecutive_ids_and_one_time() -> None:
    messages = [pb.PubsubMessage(data=b"%d" % n) for n in range(3)]

    stored = [pb.PubsubMessage.FromString(data) for data in stored_messages(messages, 99, 1_500_000)]

    assert [message.data for message in stored] == [b"0", b"1", b"2"]
    assert [message.message_id for message in stored] == ["99", "100", "101"]
    assert {(1, 500_000_000)} == {(m.publish_time.seconds, m.publish_time.nanos) for m in stored}


def test_no_messages_are_stored_as_none() -> None:
    assert stored_messages([], 1, 1) == []


def test_the_payload_hash_is_that_of_its_definition() -> None:
    # "data" then b=2 after a=1, spelled out byte by byte.
    encoded = b"\x04\0\0\0\0\0\0\0data\x01\0\0\0a\x01\0\0\x001\x02\0\0\0\xc3\xa9\x00\0\0\0"
    expected = int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little", signed=True)

    assert expected == payload_hash(b"data", {"é": "", "a": "1"})


def test_the_payload_hash_of_data_alone_is_that_of_its_definition() -> None:
    encoded = b"\x04\0\0\0\0\0\0\0data"
    expected = int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little", signed=True)

    assert expected == payload_hash(b"data", {})


def test_the_payload_hash_does_not_change_between_processes() -> None:
    assert -(2**63) <= payload_hash(b"", {}) < 2**63
    assert payload_hash(b"x", {"a": "b"}) == payload_hash(
        b"x", pb.PubsubMessage(attributes={"a": "b"}).attributes
    )


def test_payloads_that_differ_only_in_where_a_part_ends_have_different_hashes() -> None:
    hashes = {
        payload_hash(b"ab", {}),
        payload_hash(b"a", {"b": ""}),
        payload_hash(b"", {"a": "b"}),
        payload_hash(b"", {"ab": ""}),
        payload_hash(b"", {"": "ab"}),
    }

    assert len(hashes) == 5


@given(st.text(min_size=1))
def test_the_hash_of_an_ordering_key_is_a_signed_64_bit_number_and_not_zero(key: str) -> None:
    expected = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)

    assert (expected or 1) == ordering_key_hash(key)
    assert -(2**63) <= ordering_key_hash(key) < 2**63


def test_no_ordering_key_hashes_to_zero() -> None:
    assert ordering_key_hash("") == 0
