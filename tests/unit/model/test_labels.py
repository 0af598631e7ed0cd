"""Labels of resources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model.errors import PubsubError
from pubsubd.model.labels import check_labels
from tests.unit.model.conftest import refusal


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"a": ""},
        {"a" * 63: "b" * 63},
        {"é": "é"},
        {"é" * 63: "み" * 63},  # characters count, not bytes
        {"み-1_": "み-1_"},
        {"a٣": "٣"},  # a digit that is not ASCII
        {"key": "-_0"},
        {f"k{n}": "" for n in range(64)},
    ],
)
def test_labels_within_the_rules_are_accepted(labels: dict[str, str]) -> None:
    check_labels(labels)


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ({"": "v"}, "key ''"),
        ({"a" * 64: ""}, "a" * 64),
        ({"A": ""}, "'A'"),
        ({"1a": ""}, "'1a'"),
        ({"-a": ""}, "'-a'"),
        ({"_a": ""}, "'_a'"),
        ({"aB": ""}, "'aB'"),
        ({"a.b": ""}, "'a.b'"),
        ({"a b": ""}, "'a b'"),
        ({"a\n": ""}, "'a\\x0a'"),
        ({"key": "V"}, "'key'"),
        ({"key": "v" * 64}, "'key'"),
        ({"key": "a.b"}, "'key'"),
        ({f"k{n}": "" for n in range(65)}, "65 labels"),
    ],
)
def test_labels_that_break_a_rule_are_refused_by_key(labels: dict[str, str], shown: str) -> None:
    message = refusal("INVALID_ARGUMENT", check_labels, labels)

    assert "(argument=Invalid labels" in message
    assert shown in message


def test_of_several_bad_labels_the_first_in_order_is_named() -> None:
    message = refusal("INVALID_ARGUMENT", check_labels, {"zZ": "", "bB": "", "cC": ""})

    assert "'bB'" in message


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_any_labels_pass_or_are_refused(labels: dict[str, str]) -> None:
    try:
        check_labels(labels)
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()
