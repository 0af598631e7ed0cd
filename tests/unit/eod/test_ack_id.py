"""Ack ids: short, opaque, authentic, and never twice the same."""

from __future__ import annotations

import string
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.eod.ack_id import LONG_BYTES, SHORT_BYTES, AckIds, AckToken
from pubsubd.model import limits

SECRET = b"0123456789abcdef"
ALPHABET = string.ascii_letters + string.digits + "-_"
TOKEN = AckToken(7, 1, 1, 123_456, 1_800_000_000_000_000, 3, 12)

# One number that the short form has no room for.
LONG_TOKEN = TOKEN._replace(client_id=65_536)

i32 = st.integers(0, 2**31 - 1)
i64 = st.integers(0, 2**63 - 1)
u8, u16, u24, u40 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 24, 40))
times = st.integers(0, 2**56 - 1)
short_tokens = st.builds(AckToken, u24, u8, u8, u40, times, u16, u16)
tokens = short_tokens | st.builds(AckToken, i32, i32, i32, i64, times, i32, st.integers(0, 2**32 - 1))


@pytest.fixture
def ack_ids() -> AckIds:
    return AckIds(SECRET)


@pytest.fixture(params=[TOKEN, LONG_TOKEN], ids=["short", "long"])
def token(request: pytest.FixtureRequest) -> AckToken:
    found: AckToken = request.param
    return found


@pytest.fixture
def ack_id(ack_ids: AckIds, token: AckToken) -> str:
    return ack_ids.make([token])[0]


def read_all(ack_ids: AckIds, found: Iterable[str]) -> list[AckToken | None]:
    return [ack_ids.read(ack_id) for ack_id in found]


@given(st.lists(tokens, max_size=20))
def test_what_was_made_is_read_back_in_order(found: list[AckToken]) -> None:
    ack_ids = AckIds(SECRET)

    assert found == read_all(ack_ids, ack_ids.make(found))


@given(tokens)
def test_an_id_is_a_short_text_of_the_url_alphabet(token: AckToken) -> None:
    (made,) = AckIds(SECRET).make([token])

    assert len(made) in (SHORT_BYTES, LONG_BYTES)
    assert len(made) <= limits.ACK_ID_BYTES_MAX
    assert set(made) <= set(ALPHABET)


@given(short_tokens)
def test_what_servers_usually_count_to_fits_into_thirty_six_characters(token: AckToken) -> None:
    (made,) = AckIds(SECRET).make([token])

    assert len(made) == 36 == SHORT_BYTES


@pytest.mark.parametrize(
    ("field", "outgrown"),
    [
        ("sub_id", 2**24),
        ("generation", 2**8),
        ("attempt", 2**8),
        ("message_id", 2**40),
        ("client_id", 2**16),
        ("boot", 2**16),
    ],
)
def test_a_number_that_outgrows_the_short_form_is_not_cut(ack_ids: AckIds, field: str, outgrown: int) -> None:
    largest, larger = TOKEN._replace(**{field: outgrown - 1}), TOKEN._replace(**{field: outgrown})

    assert [len(ack_ids.make([one])[0]) for one in (largest, larger)] == [SHORT_BYTES, LONG_BYTES]
    assert read_all(ack_ids, ack_ids.make([largest, larger])) == [largest, larger]


def test_no_tokens_are_no_ids(ack_ids: AckIds) -> None:
    assert ack_ids.make([]) == []


def test_an_id_is_a_function_of_what_it_names(ack_ids: AckIds, ack_id: str, token: AckToken) -> None:
    assert [ack_id] == AckIds(SECRET).make([token]) == ack_ids.make([tuple(token)])


@given(st.lists(tokens, min_size=1, max_size=6))
def test_an_id_does_not_depend_on_its_batch(found: list[AckToken]) -> None:
    """After a restart the ids of all running leases are made again, in other company."""
    ack_ids = AckIds(SECRET)

    assert ack_ids.make(found) == [ack_id for token in found for ack_id in ack_ids.make([token])]


def test_an_id_with_one_character_changed_is_refused(ack_ids: AckIds, ack_id: str) -> None:
    for at in range(len(ack_id)):
        for other in ALPHABET:
            altered = ack_id[:at] + other + ack_id[at + 1 :]
            assert (ack_ids.read(altered) is None) == (altered != ack_id)


def test_an_id_that_was_cut_is_refused(ack_ids: AckIds, ack_id: str) -> None:
    for length in range(len(ack_id)):
        assert ack_ids.read(ack_id[:length]) is None
        assert ack_ids.read(ack_id[-length:] if length else "") is None


@pytest.mark.parametrize("more", ["a", "=", "\n", " ", "AAAA", "\0"])
def test_an_id_with_something_before_or_behind_it_is_refused(ack_ids: AckIds, ack_id: str, more: str) -> None:
    assert read_all(ack_ids, [ack_id + more, more + ack_id, ack_id[: -len(more)] + more]) == [None] * 3


@pytest.mark.parametrize("foreign", ["+", "/", "=", "ä", "\udc80", "\n", " ", "\0", "\u0661"])
def test_a_foreign_character_is_refused_wherever_it_stands(
    ack_ids: AckIds, ack_id: str, foreign: str
) -> None:
    altered = [ack_id[:at] + foreign + ack_id[at + 1 :] for at in range(len(ack_id))]

    assert set(read_all(ack_ids, altered)) == {None}


@pytest.mark.parametrize(
    "text", ["", "projects/p/subscriptions/s:1", "A" * 36, "A" * 60, "_" * 60, "=" * 36, "A" * 100_000]
)
def test_what_never_was_an_id_is_refused(ack_ids: AckIds, text: str) -> None:
    assert ack_ids.read(text) is None


@given(st.text(min_size=60, max_size=60) | st.text(min_size=36, max_size=36))
def test_no_text_of_the_right_length_passes(text: str) -> None:
    assert AckIds(SECRET).read(text) is None


@given(st.text(ALPHABET, min_size=60, max_size=60) | st.text(ALPHABET, min_size=36, max_size=36))
def test_no_text_in_the_right_alphabet_passes(text: str) -> None:
    assert AckIds(SECRET).read(text) is None


@pytest.mark.parametrize("secret", [b"another secret..", SECRET + b"\0", SECRET[:-1] + b"g" * 2])
def test_another_server_does_not_know_the_id(ack_id: str, secret: bytes) -> None:
    assert AckIds(secret).read(ack_id) is None


@pytest.mark.parametrize("field", AckToken._fields)
def test_every_field_is_part_of_the_id(ack_ids: AckIds, ack_id: str, token: AckToken, field: str) -> None:
    other = token._replace(**{field: getattr(token, field) + 1})

    assert [ack_id] != ack_ids.make([other])
    assert [other] == read_all(ack_ids, ack_ids.make([other]))


def test_a_field_cannot_be_changed_without_the_secret(ack_ids: AckIds) -> None:
    """The tag of one id does not fit the body of another: here the body takes the first 29 characters."""
    mine, other = ack_ids.make([TOKEN, TOKEN._replace(message_id=TOKEN.message_id + 1)])

    assert ack_ids.read(other[:29] + mine[29:]) is None
    assert ack_ids.read(mine[:29] + other[29:]) is None


def test_ids_of_many_deliveries_are_distinct(ack_ids: AckIds) -> None:
    made = ack_ids.make(
        [
            TOKEN._replace(sub_id=sub_id, message_id=message_id, generation=generation)
            for sub_id in range(1, 5)
            for message_id in range(1, 501)
            for generation in range(1, 6)
        ]
    )

    assert len(set(made)) == len(made) == 10_000
