"""The filter language: what is a filter, what tree it gives, and what is said of a text that is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pubsubd.model.errors import InvalidArgument
from pubsubd.model.filters import (
    And,
    Equals,
    Filter,
    HasPrefix,
    Not,
    NotEquals,
    Or,
    Presence,
    parse_filter,
)
from tests.unit.model.arbitrary_filters import any_tree, spelled
from tests.unit.model.conftest import refusal

A, B, C = Presence("a"), Presence("b"), Presence("c")


# --- conditions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("attributes:name", Presence("name")),
        ("attributes:_private", Presence("_private")),
        ("attributes:5", Presence("5")),
        ('attributes.name = "com"', Equals("name", "com")),
        ('attributes.name="com"', Equals("name", "com")),
        ('attributes.is-even = "false"', Equals("is-even", "false")),
        ('attributes.is-="x"', Equals("is-", "x")),
        ('attributes.name = ""', Equals("name", "")),
        ('attributes.name != "com"', NotEquals("name", "com")),
        ('attributes.name!="com"', NotEquals("name", "com")),
        ('hasPrefix(attributes.name, "co")', HasPrefix("name", "co")),
        ('hasPrefix(attributes.name, "")', HasPrefix("name", "")),
        ('hasPrefix(attributes."a.b/c","x")', HasPrefix("a.b/c", "x")),
        ('attributes:"iana.org/language_tag"', Presence("iana.org/language_tag")),
        ('attributes."iana.org/language_tag" = "en"', Equals("iana.org/language_tag", "en")),
        ('attributes:"みんな"', Presence("みんな")),
        ('attributes:""', Presence("")),
    ],
)
def test_a_condition_names_an_attribute_and_what_it_must_be(text: str, tree: Filter) -> None:
    assert tree == parse_filter(text)


@pytest.mark.parametrize("word", ["AND", "OR", "NOT", "attributes", "hasPrefix", "ANDY", "NOT-"])
def test_a_word_of_the_language_is_a_key_where_a_key_is_needed(word: str) -> None:
    assert Presence(word) == parse_filter(f"attributes:{word}")
    assert And((Equals(word, "x"), A)) == parse_filter(f'attributes.{word}="x" AND attributes:a')


@pytest.mark.parametrize(
    "text",
    [
        'attributes.iana.org/language_tag = "en"',
        r"attributes:\u307F\u3093\u306A",
        "attributes:みんな",
        "attributes:-a",
        "attributes:",
        "attributes",
        "attributes.name",
        'attributes = "com"',
        'attributes.name = "com',
        "attributes.name = com",
        "attributes.name = 'com'",
        "attributes.n = 5",
        "attributes.name = attributes.website",
        '"com" = attributes.name',
        'name = "com"',
        'data = "x"',
        'message_id = "1"',
        'attributes.name == "com"',
        'attributes.name ! = "com"',
        'attributes.name > "a"',
        'attributes.name <= "a"',
        'attributes.name:"com"',
        'Attributes.name = "com"',
        'hasSuffix(attributes.name, "x")',
        'HASPREFIX(attributes.name, "co")',
        'hasPrefix(attributes:name, "x")',
        "hasPrefix(attributes.name)",
        "hasPrefix(attributes.name, x)",
        'hasPrefix(attributes.name, "x", "y")',
        'hasPrefix("x", attributes.name)',
        'hasPrefix attributes.name, "x"',
        'attributes.name "com"',
        '"attributes:name"',
        "\ud800",
        "attributes:\x00",
    ],
    ids=ascii,
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    refusal("INVALID_ARGUMENT", parse_filter, text)


# --- strings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (r'"\u307F\u3093\u306A"', "みんな"),
        (r'"\"q\""', '"q"'),
        (r'"a\\b"', "a\\b"),
        (r'"\x41"', "A"),
        (r'"\x4aB"', "JB"),
        (r'"\101"', "A"),
        (r'"\1011"', "A1"),
        (r'"\n"', "\n"),
        (r'"\'\n\r\t\a\b\f\v"', "'\n\r\t\a\b\f\v"),
        (r'"\\n"', "\\n"),
        (r'"\000\x00\u0000"', "\0\0\0"),
        (r'"\U0001F600"', "\U0001f600"),
        (r'"\U0010ffff"', "\U0010ffff"),
        # A character of three bytes, in whatever mixture of notations.
        (r'"\xe3\x81\xbf"', "み"),
        (r'"\343\201\xBF"', "み"),
        ('"line\r\nbreak"', "line\r\nbreak"),
        ('"\'"', "'"),
    ],
)
def test_a_string_stands_for_what_its_escapes_say(literal: str, text: str) -> None:
    assert Equals(text, text) == parse_filter(f"attributes.{literal} = {literal}")


@pytest.mark.parametrize(
    "escape",
    [
        *(r"\q", r"\N", r"\/", r"\?", r"\8", r"\1", r"\12", r"\400", r"\777", "\\\n", r"\é"),
        *(r"\x", r"\x4", r"\x4g", r"\X41", r"\u123", r"\u123g", r"\U0001F60", r"\U00110000", r"\U10000000"),
        # Digits of other scripts are digits to Python.
        *("\\x\u0664\u0661", "\\\u0661\u0660\u0661"),
    ],
    ids=ascii,
)
def test_an_escape_of_no_known_kind_is_refused_where_it_stands(escape: str) -> None:
    message = refusal("INVALID_ARGUMENT", parse_filter, f'attributes.k = "ab{escape}"')

    assert "at character 19" in message and "escape" in message


@pytest.mark.parametrize(
    "content",
    [r"\xff", r"\303", r"\xe3\x81", r"\ud83d", r"\ud83d\ude00", r"\xed\xa0\x80", r"\xc0\x80", "\ud800"],
    ids=ascii,
)
def test_a_string_that_is_not_utf_8_is_refused(content: str) -> None:
    message = refusal("INVALID_ARGUMENT", parse_filter, f'attributes.k = "ab{content}"')

    assert "at character 16" in message and "UTF-8" in message


# --- operators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("NOT attributes:name", Not(Presence("name"))),
        ("-attributes:name", Not(Presence("name"))),
        ('NOT attributes.name = "com"', Not(Equals("name", "com"))),
        ('NOT hasPrefix(attributes.name, "co")', Not(HasPrefix("name", "co"))),
        ('-hasPrefix(attributes.name, "co")', Not(HasPrefix("name", "co"))),
        ('NOT (attributes:a OR attributes.b = "x")', Not(Or((A, Equals("b", "x"))))),
        ("NOT (NOT attributes:a)", Not(Not(A))),
        ("-(-attributes:a)", Not(Not(A))),
        ("NOT attributes:a AND attributes:b", And((Not(A), B))),
        (
            'attributes:"iana.org/language_tag" AND NOT attributes.name = "com"',
            And((Presence("iana.org/language_tag"), Not(Equals("name", "com")))),
        ),
        ('attributes.name = "com" AND -attributes:lang', And((Equals("name", "com"), Not(Presence("lang"))))),
        ("attributes:a AND attributes:b AND attributes:c", And((A, B, C))),
        ("attributes:a OR attributes:b OR attributes:c", Or((A, B, C))),
        (
            'attributes:a AND (attributes.b = "1" OR attributes.b = "2")',
            And((A, Or((Equals("b", "1"), Equals("b", "2"))))),
        ),
        ("(attributes:a AND attributes:b) OR attributes:c", Or((And((A, B)), C))),
        ("(attributes:a AND attributes:b) AND attributes:c", And((And((A, B)), C))),
        ("((attributes:a))", A),
    ],
)
def test_operators_combine_conditions(text: str, tree: Filter) -> None:
    assert tree == parse_filter(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("attributes:a AND attributes:b OR attributes:c", 31),
        ("attributes:a OR attributes:b AND attributes:c", 30),
        ("attributes:a AND (attributes:b) OR attributes:c", 33),
        ("NOT (attributes:a OR -attributes:b AND attributes:c)", 36),
    ],
)
def test_and_and_or_are_not_mixed_without_parentheses(text: str, position: int) -> None:
    message = refusal("INVALID_ARGUMENT", parse_filter, text)

    assert f"at character {position}," in message and "mixed" in message


@pytest.mark.parametrize(
    "text",
    [
        "attributes:a and attributes:b",
        "attributes:a or attributes:b",
        "not attributes:a",
        "attributes:a && attributes:b",
        "!attributes:a",
        "attributes:a attributes:b",
        "(attributes:a) (attributes:b)",
        "(attributes:a",
        "attributes:a)",
        "()",
        "attributes:a AND ()",
        "NOT",
        "-",
        "AND",
        "OR attributes:a",
        "attributes:a AND",
        "attributes:a AND OR attributes:b",
        "attributes:a NOT attributes:b",
        'attributes.name = "com" AND ("net" OR "org")',
        'attributes.name = ("com" OR "net")',
        "NOT NOT attributes:a",
        "--attributes:a",
        "NOT -attributes:a",
        "-NOT attributes:a",
        "NOT" * 80,
        "(" * 256,
        ")" * 256,
        "-(" * 128,
    ],
)
def test_operators_without_their_conditions_are_refused(text: str) -> None:
    assert "mixed" not in refusal("INVALID_ARGUMENT", parse_filter, text)


# --- spaces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("  attributes:a  ", A),
        ("\r\nattributes\t: \n a\n", A),
        ('attributes.a  =\t"x"', Equals("a", "x")),
        ('attributes.a\n!=\n"x"', NotEquals("a", "x")),
        ('hasPrefix ( attributes.a , "x" ) ', HasPrefix("a", "x")),
        ("( attributes:a )", A),
        ("NOT(attributes:a)", Not(A)),
        ("- (attributes:a)", Not(A)),
        ("NOT\nattributes:a", Not(A)),
        ("(attributes:a)AND(attributes:b)", And((A, B))),
        ('attributes:"a"AND attributes:b', And((A, B))),
        ('attributes.k="x"OR(NOT(attributes:b))', Or((Equals("k", "x"), Not(B)))),
        ("attributes:a\tOR\r\nattributes:b", Or((A, B))),
    ],
)
def test_spaces_may_stand_around_signs(text: str, tree: Filter) -> None:
    assert tree == parse_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        'attributes .a = "x"',
        'attributes. a = "x"',
        'attributes\n.\n"a" = "x"',
        "attributes:aAND attributes:b",
        "attributes:a ANDattributes:b",
        "attributes:a AND-attributes:b",
        'attributes:a AND"b"',
        "(attributes:a)ORattributes:b",
        "NOTattributes:a",
        "NOT-attributes:a",
        "- attributes:a",
        'has Prefix(attributes.a, "x")',
        # A space that is none of space, tab and line break.
        "attributes:a\u00a0AND attributes:b",
        "attributes:a\vAND attributes:b",
        "\u3000",
    ],
    ids=ascii,
)
def test_spaces_elsewhere_or_none_between_words_are_refused(text: str) -> None:
    refusal("INVALID_ARGUMENT", parse_filter, text)


@pytest.mark.parametrize("text", ["", " ", "\r\n\t "])
def test_an_empty_filter_demands_nothing(text: str) -> None:
    assert And(()) == parse_filter(text)


# --- bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a" * 243, "é" * 121 + "a", r"\u00e9" * 40 + "abc"])
def test_a_filter_may_have_256_bytes(key: str) -> None:
    assert isinstance(parse_filter(f'attributes:"{key}"'), Presence)
    assert "257 bytes" in refusal("INVALID_ARGUMENT", parse_filter, f'attributes:"{key}x"')


def test_spaces_and_repeated_conditions_count_as_bytes() -> None:
    assert parse_filter("attributes:a".ljust(256)) == A
    assert "257 bytes" in refusal("INVALID_ARGUMENT", parse_filter, "attributes:a".ljust(257))
    assert "maximum is 256" in refusal("INVALID_ARGUMENT", parse_filter, " " * 1_000_000)


@pytest.mark.parametrize(
    ("opening", "closing", "depth", "negations"),
    [("(", ")", 122, 0), ("-(", ")", 81, 81), ("NOT(", ")", 48, 48), ("( ", " )", 61, 0)],
)
def test_the_deepest_nesting_that_fits_is_parsed(
    opening: str, closing: str, depth: int, negations: int
) -> None:
    tree = parse_filter(opening * depth + "attributes:a" + closing * depth)

    for _ in range(negations):
        assert isinstance(tree, Not)
        tree = tree.operand
    assert tree == A


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attributes.n = 5", ["at character 16", "'5'", "a string in double quotes"]),
        ("attributes:a and attributes:b", ["at character 14", "'and'", "'AND', 'OR', the end"]),
        ("not attributes:a", ["at character 1,", "'not'", "'NOT'"]),
        ("\n(attributes:a", ["it ends", "')'"]),
        ("attributes:a)", ["at character 13", "a parenthesis closes"]),
        ('attributes.name = "com', ["at character 19", "does not end"]),
        ("attributes:\u307f", ["at character 12", r"'\u307f'"]),
        ("attributes:a\nAND\nattributes.b", ["it ends", "'=', '!='"]),
    ],
)
def test_a_refusal_says_where_what_and_what_instead(text: str, words: list[str]) -> None:
    message = refusal("INVALID_ARGUMENT", parse_filter, text)

    assert [word for word in ["(argument=filter)", *words] if word not in message] == []


def test_the_parser_is_not_loaded_before_the_first_filter() -> None:
    program = """
import sys
from pubsubd import cli
from pubsubd.model import subscriptions
from pubsubd.server import run
from pubsubd.wire import pb

request = pb.Subscription(name="projects/p/subscriptions/abc", topic="projects/p/topics/abc")
subscriptions.created_subscription(request)
assert "lark" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- any text, any tree ----------------------------------------------------------------------------------

_WORDS = [
    *("attributes", "hasPrefix", "AND", "OR", "NOT", "-", "(", ")", ".", ":", ",", "=", "!=", " ", "\n", "a"),
    *("attributes:a", "attributes.", '"', '"b"', "\\", r"\x41", r"\u00e9", '"\\', "é", "\0", "\ud800"),
]


def _is_parsed_or_refused(text: str) -> None:
    try:
        parse_filter(text)
    except InvalidArgument as error:
        assert "(argument=filter)" in error.message


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    _is_parsed_or_refused(text)


@given(st.lists(st.sampled_from(_WORDS), max_size=40), st.sampled_from(["", " "]))
def test_any_words_of_the_language_are_parsed_or_refused(words: list[str], between: str) -> None:
    _is_parsed_or_refused(between.join(words))


@given(st.text('attributes:"\\x41u0é', max_size=30))
def test_any_content_of_a_string_is_parsed_or_refused(content: str) -> None:
    _is_parsed_or_refused(f'attributes:"{content}"')


_TREES = any_tree(
    st.text(max_size=4) | st.sampled_from(["name", "AND", "x-1", '"', "\\", "\n", "é", "\U0001f600"])
)


@given(_TREES, st.data())
def test_a_tree_that_is_spelled_and_parsed_is_the_same_tree(tree: Filter, data: st.DataObject) -> None:
    text = spelled(tree, data)
    assume(len(text.encode()) <= 256)

    assert tree == parse_filter(text)
