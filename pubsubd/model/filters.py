"""The language of Subscription.filter: from text to a small syntax tree, or to a refusal that says where.

Theory of operation. A grammar says what a filter looks like, and `lark` makes an LALR parser of it. The
parser hands each part to `Shape`, which makes the node; the escapes of strings are decoded there, so that the
tree holds what is compared with attributes and nothing of how it was spelled. What a filter means for a
message is written beside the nodes and is not evaluated here.

Three rules of the language do not show in the grammar but in how its words are cut: the words and the minus
say what may follow them, the dot says what may stand around it, and a key is any word, `AND` included, since
the parser asks for words only where they can stand.

Nothing here recurses over the text. A tree is as deep as the filter has negations and chains inside each
other, and 256 bytes hold about eighty of them.

Source: Subscription.filter, https://cloud.google.com/pubsub/docs/subscription-message-filter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pubsubd.model import errors, limits

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedInput


# --- the tree --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Presence:
    """The message has an attribute `key`, be its value empty."""

    key: str


@dataclass(frozen=True, slots=True)
class Equals:
    """The message has an attribute `key`, and its value is `value`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class NotEquals:
    """`Equals` is not true; so a message without the attribute matches."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class HasPrefix:
    """The message has an attribute `key`, and its value begins with `prefix`."""

    key: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Not:
    operand: Filter


@dataclass(frozen=True, slots=True)
class And:
    """Every operand is true. An empty filter is one without operands, which every message matches."""

    operands: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of two or more operands is true."""

    operands: tuple[Filter, ...]


Filter: TypeAlias = Presence | Equals | NotEquals | HasPrefix | Not | And | Or


def parse_filter(text: str) -> Filter:
    """The syntax tree of a filter; chains and negations stay as they were written.

    Raises:
        InvalidArgument: the filter is too long or none; says at which character and why.
    """
    # A text from the wire is UTF-8 already; any other is refused below, where it can be said what is wrong.
    filter_bytes = len(text.encode(errors="surrogatepass"))
    if filter_bytes > limits.FILTER_BYTES_MAX:
        raise errors.bad_argument(
            "filter", f"the filter has {filter_bytes} bytes, the maximum is {limits.FILTER_BYTES_MAX}"
        )
    if not text.strip(_BLANKS):
        return And(())
    parser, unexpected_input = _parser()
    try:
        # What Shape makes of the text; lark's types know only its own trees.
        return cast(Filter, parser.parse(text))
    except unexpected_input as error:
        raise errors.bad_argument("filter", _reason(text, error)) from None


# --- the grammar -----------------------------------------------------------------------------------------

_BLANKS: Final = " \t\r\n"

_GRAMMAR: Final = r"""
?start: expression

?expression: _unary | conjunction | disjunction
conjunction: _unary (_AND _unary)+
disjunction: _unary (_OR _unary)+

_unary: negation | _primary
negation: (_NOT | _MINUS) _primary
_primary: presence | equals | not_equals | has_prefix | _LEFT expression _RIGHT

presence: _ATTRIBUTES _COLON key
equals: _value _EQUAL string
not_equals: _value _NOT_EQUAL string
has_prefix: _HAS_PREFIX _LEFT _value _COMMA string _RIGHT

_value: _ATTRIBUTES _DOT key
key: WORD -> word
   | STRING -> string
string: STRING

_AND: /AND(?![^ \t\r\n(])/
_OR: /OR(?![^ \t\r\n(])/
_NOT: /NOT(?![^ \t\r\n(])/
_MINUS: /-(?=[^ \t\r\n]|[ \t\r\n]+\()/
_DOT: /(?<![ \t\r\n])\.(?![ \t\r\n])/
_ATTRIBUTES: "attributes"
_HAS_PREFIX: "hasPrefix"
_COLON: ":"
_COMMA: ","
_EQUAL: "="
_NOT_EQUAL: "!="
_LEFT: "("
_RIGHT: ")"

WORD: /[A-Za-z0-9_][A-Za-z0-9_-]*/
STRING: /"(?:[^"\\]|\\[\s\S])*"/

%ignore /[ \t\r\n]+/
"""


@cache
def _parser() -> tuple[Lark, type[UnexpectedInput]]:
    """The parser, and what it raises.

    Made for the first filter and not at start-up: importing lark and building the tables take longer than
    everything else in this room together.
    """
    from lark import Lark, Token, Transformer, UnexpectedInput

    class Shape(Transformer[Token, Filter]):
        """One method for each rule of the grammar that leaves a node."""

        def conjunction(self, parts: list[Filter]) -> Filter:
            return And(tuple(parts))

        def disjunction(self, parts: list[Filter]) -> Filter:
            return Or(tuple(parts))

        def negation(self, parts: list[Filter]) -> Filter:
            return Not(*parts)

        def presence(self, parts: list[str]) -> Filter:
            return Presence(*parts)

        def equals(self, parts: list[str]) -> Filter:
            return Equals(*parts)

        def not_equals(self, parts: list[str]) -> Filter:
            return NotEquals(*parts)

        def has_prefix(self, parts: list[str]) -> Filter:
            return HasPrefix(*parts)

        def word(self, parts: list[Token]) -> str:
            return str(parts[0])

        def string(self, parts: list[Token]) -> str:
            return _decoded(parts[0])

    return Lark(_GRAMMAR, parser="lalr", lexer="contextual", transformer=Shape()), UnexpectedInput


# --- strings ---------------------------------------------------------------------------------------------

#: A piece of what stands between the quotation marks. A backslash that begins no escape matches alone.
_PIECE: Final = re.compile(
    r"""
    (?P<plain> [^\\]+ )
  | \\(?: x(?P<hexadecimal> [0-9A-Fa-f]{2} )
        | (?P<octal> [0-3][0-7]{2} )
        | u(?P<short> [0-9A-Fa-f]{4} )
        | U(?P<long> 00(?: 0[0-9A-Fa-f] | 10 )[0-9A-Fa-f]{4} )
        | (?P<control> [\\"'nrtabfv] )
        | )
    """,
    re.VERBOSE,
)
_CONTROL: Final = dict(zip("\\\"'nrtabfv", b"\\\"'\n\r\t\a\b\f\v", strict=True))


def _decoded(literal: Token) -> str:
    """What a string literal stands for. Hexadecimal and octal escapes are bytes of UTF-8, `u` code points."""
    decoded = bytearray()
    for piece in _PIECE.finditer(literal, 1, len(literal) - 1):
        match piece.lastgroup:
            case "plain":
                decoded += piece[0].encode(errors="surrogatepass")
            case "hexadecimal":
                decoded.append(int(piece["hexadecimal"], 16))
            case "octal":
                decoded.append(int(piece["octal"], 8))
            case "short" | "long" as digits:
                # Halves of a surrogate pair are no characters, not even two in a row; found at the end.
                decoded += chr(int(piece[digits], 16)).encode(errors="surrogatepass")
            case "control":
                decoded.append(_CONTROL[piece["control"]])
            case _:
                raise errors.bad_argument(
                    "filter", f"{_place(literal, piece.start())}, a backslash begins no escape that is known"
                )
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise errors.bad_argument("filter", f"{_place(literal)}, a string is not valid UTF-8") from None


def _place(token: Token, offset: int = 0) -> str:
    assert token.start_pos is not None
    return _at(token.start_pos + offset)


# --- refusals --------------------------------------------------------------------------------------------

#: What a terminal is called in a refusal, in the order in which they are listed there.
_CALLED: Final = {
    "_ATTRIBUTES": "'attributes'",
    "_HAS_PREFIX": "'hasPrefix'",
    "_NOT": "'NOT'",
    "_MINUS": "'-' (without a space after it)",
    "_LEFT": "'('",
    "_DOT": "'.' (without spaces around it)",
    "_COLON": "':'",
    "_EQUAL": "'='",
    "_NOT_EQUAL": "'!='",
    "_COMMA": "','",
    "WORD": "a key",
    "STRING": "a string in double quotes",
    "_AND": "'AND'",
    "_OR": "'OR'",
    "_RIGHT": "')'",
    "$END": "the end",
}
_OPERATORS: Final = frozenset({"_AND", "_OR"})
#: What is shown of the text where it goes wrong: a word, or one character.
_SHOWN: Final = re.compile(r"[A-Za-z0-9_-]+|.", re.DOTALL)


def _reason(text: str, error: UnexpectedInput) -> str:
    """Why a text is no filter, in words: where it goes wrong, what stands there, and what could."""
    # What the error itself calls expected includes, for one, a parenthesis that would close none.
    parser: Any = error.interactive_parser  # lark gives no types to its methods
    can_follow: set[str] = parser.accepts()
    needed = ", ".join(words for terminal, words in _CALLED.items() if terminal in can_follow)
    token: Token | None = getattr(error, "token", None)
    # The end has a token as well, but the place that it gives is that of the last word.
    is_at_end = token is not None and token.type == "$END"
    found = None if is_at_end else _SHOWN.match(text, error.pos_in_stream or 0)
    if found is None:
        return f"it ends where one of these is needed: {needed}"
    place, shown = _at(found.start()), found[0]
    if (shown == "AND" and can_follow & _OPERATORS == {"_OR"}) or (
        shown == "OR" and can_follow & _OPERATORS == {"_AND"}
    ):
        return f"{place}, AND and OR are mixed, which needs parentheses"
    if shown == ")" and can_follow == {"$END"}:
        return f"{place}, a parenthesis closes that was not opened"
    if shown == '"' and "STRING" in can_follow:
        return f"{place}, a string begins that does not end"
    return f"{place}, '{errors.echo(shown)}' stands where one of these is needed: {needed}"


def _at(position: int) -> str:
    """Characters are counted from one, as people do."""
    return f"at character {position + 1}"
