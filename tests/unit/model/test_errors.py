"""Refusals: one line of printable ASCII, with the words that people search for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import errors, limits


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (
            errors.bad_name("projects/p/topics/1"),
            "INVALID_ARGUMENT",
            ["Invalid resource name given (name=projects/p/topics/1)", "resource_names"],
        ),
        (
            errors.bad_name("", "dead_letter_topic"),
            "INVALID_ARGUMENT",
            ["Invalid resource name given (dead_letter_topic=)"],
        ),
        (errors.not_found("projects/p/topics/t"), "NOT_FOUND", ["Resource not found (resource=t)."]),
        (
            errors.already_exists("projects/p/topics/t"),
            "ALREADY_EXISTS",
            ["Resource already exists in the project (resource=t)"],
        ),
        (errors.bad_argument("max_messages"), "INVALID_ARGUMENT", ["(argument=max_messages)"]),
        (errors.bad_argument("filter", "too odd"), "INVALID_ARGUMENT", ["(argument=filter)", "too odd"]),
        (
            errors.too_small("message_count", 0, 1),
            "INVALID_ARGUMENT",
            ["message_count", "is too small", "0", "1"],
        ),
        (
            errors.too_large("request_size", 11, 10),
            "INVALID_ARGUMENT",
            ["request_size", "is too large", "11", "10"],
        ),
        (
            errors.out_of_bounds("page_size", 1001, 0, 1000),
            "INVALID_ARGUMENT",
            ["page_size", "is out of bounds", "1001", "0", "1000"],
        ),
        (errors.bad_token("abc"), "INVALID_ARGUMENT", ["Invalid page token given (token=abc)"]),
        (
            errors.mask_empty("UpdateTopicRequest"),
            "INVALID_ARGUMENT",
            ["update_mask", "UpdateTopicRequest", "must be set"],
        ),
        (
            errors.mask_immutable("UpdateTopicRequest", "name"),
            "INVALID_ARGUMENT",
            ["update_mask", "UpdateTopicRequest", "'name' is not mutable"],
        ),
        (
            errors.mask_unknown("UpdateTopicRequest", "Topic", "Labels"),
            "INVALID_ARGUMENT",
            ["update_mask", "UpdateTopicRequest", "'Labels' is not a known Topic field", "snake_case"],
        ),
        (errors.bad_ack_id("zzz"), "INVALID_ARGUMENT", ["invalid ack ID (ack_id=zzz)"]),
        (errors.no_ack_ids(), "INVALID_ARGUMENT", ["You have not specified an ack ID in the request."]),
        (
            errors.bad_ack_deadline(9, 10, 600),
            "INVALID_ARGUMENT",
            ["Invalid ack deadline given (ack_deadline=9)", "between 10 and 600 seconds"],
        ),
        (
            errors.request_too_large(524_288),
            "INVALID_ARGUMENT",
            ["Request payload size exceeds the limit: 524288 bytes."],
        ),
        (errors.wrong_type(), "FAILED_PRECONDITION", ["This method is not supported"]),
        (errors.detached(), "FAILED_PRECONDITION", ["Subscription is detached"]),
        (errors.already_detached(), "FAILED_PRECONDITION", ["already detached"]),
        (
            errors.backlog_too_old(),
            "FAILED_PRECONDITION",
            ["backlog of the source subscription is too old", "within an hour"],
        ),
        (errors.no_seek_target(), "INVALID_ARGUMENT", ["a time or a snapshot must be specified"]),
        (
            errors.foreign_snapshot("projects/p/topics/a", "projects/q/topics/b"),
            "FAILED_PRECONDITION",
            ["snapshot topic=projects/p/topics/a", "subscription topic=projects/q/topics/b"],
        ),
        (errors.unordered_snapshot(), "FAILED_PRECONDITION", ["without message ordering"]),
        (errors.not_implemented("Subscription.filter"), "UNIMPLEMENTED", ["Subscription.filter"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_has_its_status_and_its_words(
    error: errors.PubsubError, status: str, words: list[str]
) -> None:
    assert status == error.status
    for word in words:
        assert word in error.message


def test_every_status_is_a_canonical_name() -> None:
    statuses = {kind.status for kind in errors.PubsubError.__subclasses__()}

    assert statuses == {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "ABORTED",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNIMPLEMENTED",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
    }


@given(st.text())
def test_a_message_is_one_line_of_printable_ascii_whatever_went_into_it(text: str) -> None:
    for error in (errors.InvalidArgument(text), errors.bad_name(text), errors.bad_token(text)):
        assert error.message.isascii() and error.message.isprintable()


def test_a_message_that_is_fine_is_left_alone() -> None:
    assert errors.InvalidArgument("100% of 'a' \\ \"b\"").message == "100% of 'a' \\ \"b\""


def test_line_breaks_and_letters_beyond_ascii_are_written_as_escapes() -> None:
    assert errors.echo("a\nb\u307f\U0001f600") == "a\\x0ab\\u307f\\U0001f600"


def test_a_huge_name_is_cut_and_its_length_told() -> None:
    message = errors.bad_name("x" * 1_000_000).message

    assert len(message) < limits.ECHO_CHARS_MAX + 300
    assert "...[1000000 characters]" in message


def test_the_longest_ordinary_name_is_shown_whole() -> None:
    name = f"projects/{'p' * 30}/subscriptions/{'s' * 256}"

    assert f"(name={name})" in errors.bad_name(name).message
