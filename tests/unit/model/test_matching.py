"""Which messages a filter lets through. What is no filter at all is refused in test_filters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pubsubd.model.filters import And, Equals, Filter, HasPrefix, Not, NotEquals, Or, Presence, parse_filter
from pubsubd.model.matching import compile_filter
from pubsubd.wire import pb
from tests.unit.model.arbitrary_filters import any_tree, spelled

A_WITH_1_OR_2 = 'attributes:a AND (attributes.b = "1" OR attributes.b = "2")'
NO_A_NOR_X = 'NOT (attributes:a OR attributes.b = "x")'
LANGUAGE_NOT_COM = 'attributes:"iana.org/language_tag" AND NOT attributes.name = "com"'


def is_match(tree: Filter, attributes: Mapping[str, str]) -> bool:
    """Asked with a dictionary and with the attributes of a message, which must say the same."""
    matches = compile_filter(tree)
    message = pb.PubsubMessage(attributes=attributes)
    of_dictionary, of_message = matches(dict(attributes)), matches(message.attributes)
    assert of_dictionary is of_message
    # A map of protobuf makes an entry for a key that it is asked for in the wrong way.
    assert attributes == dict(message.attributes)
    return of_dictionary


# --- conditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("attributes:name", {"name": "com"}),
        ("attributes:name", {"name": ""}),
        ("NOT attributes:name", {}),
        ("-attributes:name", {}),
        ('attributes.name = "com"', {"name": "com"}),
        ('attributes.name="com"', {"name": "com"}),
        ('attributes.name = ""', {"name": ""}),
        ('attributes.name != "com"', {"name": "net"}),
        ('attributes.name != "com"', {}),
        ('NOT attributes.name = "com"', {}),
        ('hasPrefix(attributes.name, "co")', {"name": "com"}),
        ('hasPrefix(attributes.name, "co")', {"name": "co"}),
        ('hasPrefix(attributes.name, "")', {"name": ""}),
        ('NOT hasPrefix(attributes.name, "co")', {}),
        ('hasPrefix(attributes."a.b/c","x")', {"a.b/c": "xyz"}),
        ('attributes:"iana.org/language_tag"', {"iana.org/language_tag": "en"}),
        ('attributes."iana.org/language_tag" = "en"', {"iana.org/language_tag": "en"}),
        (r'attributes:"\u307F\u3093\u306A"', {"みんな": "1"}),
        ('attributes:"みんな"', {"みんな": "1"}),
        (r'attributes.k = "\"q\""', {"k": '"q"'}),
        (r'attributes.k = "a\\b"', {"k": r"a\b"}),
        (r'attributes.k = "\x41"', {"k": "A"}),
        (r'attributes.k = "\101"', {"k": "A"}),
        (r'attributes.k = "\n"', {"k": "\n"}),
        ('attributes.is-even = "false"', {"is-even": "false"}),
        ("attributes:_private", {"_private": "1"}),
        ("  attributes:a  ", {"a": "1"}),
        ("", {"any": "1"}),
        ("", {}),
    ],
)
def test_a_message_whose_attributes_are_as_the_condition_says_matches(
    text: str, attributes: dict[str, str]
) -> None:
    assert is_match(parse_filter(text), attributes)


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("attributes:name", {"Name": "com"}),
        ("attributes:name", {}),
        ("NOT attributes:name", {"name": "x"}),
        ('attributes.name = "com"', {"name": "COM"}),
        ('attributes.name = "com"', {"name": "com "}),
        ('attributes.name = "com"', {}),
        ('attributes.name = ""', {}),
        ('attributes.name != "com"', {"name": "com"}),
        ('hasPrefix(attributes.name, "co")', {"name": "xco"}),
        ('hasPrefix(attributes.name, "co")', {"name": "c"}),
        ('hasPrefix(attributes.name, "co")', {}),
        ('hasPrefix(attributes.name, "")', {}),
    ],
)
def test_another_message_does_not_match(text: str, attributes: dict[str, str]) -> None:
    assert not is_match(parse_filter(text), attributes)


# --- operators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        (LANGUAGE_NOT_COM, {"iana.org/language_tag": "en", "name": "net"}, True),
        (LANGUAGE_NOT_COM, {"iana.org/language_tag": "en", "name": "com"}, False),
        (LANGUAGE_NOT_COM, {"iana.org/language_tag": "en"}, True),
        ('attributes.name = "com" AND -attributes:lang', {"name": "com"}, True),
        ('attributes.name = "com" AND -attributes:lang', {"name": "com", "lang": "en"}, False),
        ("attributes:a AND attributes:b AND attributes:c", {"a": "", "b": "", "c": ""}, True),
        ("attributes:a AND attributes:b AND attributes:c", {"a": "", "b": ""}, False),
        ("attributes:a OR attributes:b OR attributes:c", {"c": "1"}, True),
        ("attributes:a OR attributes:b OR attributes:c", {"d": "1"}, False),
        (A_WITH_1_OR_2, {"a": "x", "b": "2"}, True),
        (A_WITH_1_OR_2, {"b": "2"}, False),
        ("(attributes:a AND attributes:b) OR attributes:c", {"c": "1"}, True),
        (NO_A_NOR_X, {"b": "y"}, True),
        (NO_A_NOR_X, {"a": "1"}, False),
        ("NOT attributes:a AND attributes:b", {"b": "1"}, True),
        ("NOT attributes:a AND attributes:b", {"a": "1"}, False),
        ("((attributes:a))", {"a": "1"}, True),
    ],
)
def test_operators_combine_what_conditions_say(text: str, attributes: dict[str, str], expected: bool) -> None:
    assert expected == is_match(parse_filter(text), attributes)


@pytest.mark.parametrize(
    "text",
    [
        "-(" * 81 + "attributes:a" + ")" * 81,
        "NOT(" * 47 + "attributes:a" + ")" * 47,
        "(" * 122 + "attributes:a" + ")" * 122,
    ],
)
def test_the_deepest_nesting_that_fits_is_compiled(text: str) -> None:
    tree = parse_filter(text)

    # Either an odd number of negations, or mere parentheses.
    assert is_match(tree, {"a": ""}) is text.startswith("((")
    assert is_match(tree, {}) is not text.startswith("((")


def test_the_deepest_chains_that_fit_are_compiled() -> None:
    # Each chain is an operand of the next, and the operators alternate, so no two of them are one.
    text, operators = "attributes:a", 0
    while len(longer := f"-({text}){('OR', 'AND')[operators % 2]}(attributes:b)") <= 256:
        text, operators = longer, operators + 1
    tree = parse_filter(text)

    assert operators == 12
    for attributes in ({}, {"a": ""}, {"b": ""}, {"a": "", "b": ""}):
        assert evaluated(tree, attributes) == is_match(tree, attributes)


def test_a_client_cannot_write_source() -> None:
    hostile = "') or True or ('\" {attributes} \\"

    assert not is_match(Equals(hostile, "__import__"), {"attributes": "True", "text_0": "True"})
    assert is_match(Equals(hostile, "text_0"), {hostile: "text_0"})


# --- any filter, any message -----------------------------------------------------------------------------


def evaluated(tree: Filter, attributes: Mapping[str, str]) -> bool:
    """What a tree means, in the words that stand beside its nodes."""
    match tree:
        case Presence(key):
            return key in attributes
        case Equals(key, value):
            return key in attributes and attributes[key] == value
        case NotEquals(key, value):
            return not evaluated(Equals(key, value), attributes)
        case HasPrefix(key, prefix):
            return key in attributes and attributes[key][: len(prefix)] == prefix
        case Not(operand):
            return not evaluated(operand, attributes)
        case And(operands):
            return all(evaluated(operand, attributes) for operand in operands)
        case Or(operands):
            return any(evaluated(operand, attributes) for operand in operands)


# Few and short, so that keys are often present and values often equal, or one the beginning of another.
_TEXTS = st.sampled_from(["a", "b", "", "ab", "aé", "\U0001f600", '"'])
_ATTRIBUTES = st.dictionaries(_TEXTS, _TEXTS, max_size=4)


@given(any_tree(_TEXTS, leaves_max=12), st.lists(_ATTRIBUTES, min_size=1, max_size=8))
def test_a_compiled_tree_says_what_the_tree_means(tree: Filter, messages: list[dict[str, str]]) -> None:
    for attributes in messages:
        assert evaluated(tree, attributes) == is_match(tree, attributes)


@given(any_tree(_TEXTS, leaves_max=6), st.lists(_ATTRIBUTES, min_size=1, max_size=8), st.data())
def test_a_compiled_text_says_what_the_tree_means_that_it_was_spelled_from(
    tree: Filter, messages: list[dict[str, str]], data: st.DataObject
) -> None:
    text = spelled(tree, data)
    assume(len(text.encode()) <= 256)
    parsed = parse_filter(text)

    for attributes in messages:
        assert evaluated(tree, attributes) == is_match(parsed, attributes)
