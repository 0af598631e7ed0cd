"""Pages and their tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model.errors import PubsubError
from pubsubd.model.paging import page
from tests.unit.model.conftest import refusal

SECRET = b"0123456789abcdef"
TOPICS = "ListTopics projects/p"
NAMES = [f"projects/p/topics/t{n:04}" for n in range(2500)]


def test_a_page_size_of_zero_means_1000() -> None:
    first, token = page(NAMES, TOPICS, 0, "", SECRET)

    assert NAMES[:1000] == first
    assert token


def test_the_pages_joined_are_the_list_and_the_last_has_no_token() -> None:
    seen: list[str] = []
    token = ""
    for _ in range(3):
        names, token = page(NAMES, TOPICS, 900, token, SECRET)
        seen += names

    assert seen == NAMES
    assert token == ""


def test_a_page_that_reaches_the_end_exactly_has_no_token() -> None:
    assert (NAMES[:5], "") == page(NAMES[:5], TOPICS, 5, "", SECRET)


def test_an_empty_list_is_one_empty_page() -> None:
    assert page([], TOPICS, 10, "", SECRET) == ([], "")


def test_the_page_size_may_change_between_pages() -> None:
    _, token = page(NAMES, TOPICS, 2, "", SECRET)

    assert NAMES[2:7] == page(NAMES, TOPICS, 5, token, SECRET)[0]


def test_a_token_does_not_depend_on_the_page_size() -> None:
    _, one = page(NAMES[:1] + NAMES[5:], TOPICS, 1, "", SECRET)
    _, other = page(NAMES[:1] + NAMES[9:], TOPICS, 1, "", SECRET)

    assert one == other


def test_a_token_stays_good_when_the_name_it_ended_with_is_gone() -> None:
    _, token = page(NAMES, TOPICS, 3, "", SECRET)
    remaining = [name for name in NAMES if name != NAMES[2]]

    assert NAMES[3:5] == page(remaining, TOPICS, 2, token, SECRET)[0]


def test_a_token_past_everything_that_is_left_gives_an_empty_last_page() -> None:
    _, token = page(NAMES, TOPICS, 3, "", SECRET)

    assert page(NAMES[:2], TOPICS, 3, token, SECRET) == ([], "")


def test_a_name_created_meanwhile_before_the_boundary_is_not_shown() -> None:
    _, token = page(NAMES[10:], TOPICS, 3, "", SECRET)

    assert NAMES[13:15] == page(NAMES, TOPICS, 2, token, SECRET)[0]


@pytest.mark.parametrize(
    ("context", "secret"),
    [
        ("ListTopics projects/q", SECRET),
        ("ListSubscriptions projects/p", SECRET),
        ("ListTopics projects/pp", SECRET),
        (TOPICS, b"fedcba9876543210"),
    ],
)
def test_a_token_of_another_list_or_another_server_is_refused(context: str, secret: bytes) -> None:
    _, token = page(NAMES, context, 3, "", secret)

    said = refusal("INVALID_ARGUMENT", page, NAMES, TOPICS, 3, token, SECRET)

    assert f"Invalid page token given (token={token})" in said


def test_a_context_cannot_borrow_from_the_name_after_it() -> None:
    _, token = page(["bc", "d"], "a", 1, "", SECRET)

    refusal("INVALID_ARGUMENT", page, ["c", "d"], "ab", 1, token, SECRET)


def test_a_token_altered_in_any_place_is_refused() -> None:
    _, token = page(NAMES, TOPICS, 3, "", SECRET)
    altered = [token[:n] + ("A" if token[n] != "A" else "B") + token[n + 1 :] for n in range(len(token))]

    for bad in (*altered, token[:-1], token + "A", token + "=", token + "\n", " " + token, "A" + token):
        refusal("INVALID_ARGUMENT", page, NAMES, TOPICS, 3, bad, SECRET)


@pytest.mark.parametrize("token", ["x", NAMES[3], "AAAA", "ü", "\n", "=", "A" * 100_000])
def test_what_is_no_token_is_refused(token: str) -> None:
    said = refusal("INVALID_ARGUMENT", page, NAMES, TOPICS, 3, token, SECRET)

    assert said.startswith("Invalid page token given (token=")


@pytest.mark.parametrize("page_size", [-1, 1001])
def test_a_page_size_out_of_bounds_is_refused(page_size: int) -> None:
    assert "page_size" in refusal("INVALID_ARGUMENT", page, NAMES, TOPICS, page_size, "", SECRET)


@given(st.text(min_size=1))
def test_any_string_but_a_token_is_refused_in_one_line(token: str) -> None:
    with pytest.raises(PubsubError) as caught:
        page(NAMES, TOPICS, 3, token, SECRET)

    assert caught.value.message.isascii() and caught.value.message.isprintable()


@given(st.sets(st.text(min_size=1), max_size=30), st.integers(1, 7))
def test_walking_the_pages_of_any_names_visits_each_once_in_order(names: set[str], page_size: int) -> None:
    everything = sorted(names)
    seen, token = page(everything, TOPICS, page_size, "", SECRET)
    while token:
        more, token = page(everything, TOPICS, page_size, token, SECRET)
        seen += more

    assert everything == seen
