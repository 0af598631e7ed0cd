"""Any filter at all: hypothesis strategies for syntax trees, and for the texts that mean one."""

from __future__ import annotations

from hypothesis import strategies as st

from pubsubd.model.filters import And, Equals, Filter, HasPrefix, Not, NotEquals, Or, Presence


def any_tree(texts: st.SearchStrategy[str], leaves_max: int = 4) -> st.SearchStrategy[Filter]:
    """Trees of about so many conditions, whose keys and values are drawn from `texts`."""
    conditions = st.one_of(
        st.builds(Presence, texts),
        st.builds(Equals, texts, texts),
        st.builds(NotEquals, texts, texts),
        st.builds(HasPrefix, texts, texts),
    )
    return st.recursive(conditions, _combined, max_leaves=leaves_max)


def _combined(trees: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    several = st.lists(trees, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, trees), st.builds(And, several), st.builds(Or, several))


def spelled(tree: Filter, data: st.DataObject) -> str:
    """One of the texts that mean this tree, chosen by `data`; it may be longer than a filter may be."""
    return Speller(lambda strategy: data.draw(strategy)).filter(tree)


_CONTROL = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\a": r"\a", "'": r"\'"}


class Speller:
    """Writes a tree as one of the texts that mean it, chosen by `draw`."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def _one_of(self, *spellings: str) -> str:
        return self._draw(st.sampled_from(spellings))

    def _gap(self) -> str:
        return self._one_of("", "", " ", "\r\n\t")

    def _char(self, char: str) -> str:
        spellings = [] if char in '"\\' else [char] * 3
        spellings.append(f"\\U{ord(char):08x}")
        spellings.append("".join(f"\\x{byte:02X}" for byte in char.encode()))
        spellings.append("".join(f"\\{byte:03o}" for byte in char.encode()))
        if ord(char) < 0x10000:
            spellings.append(f"\\u{ord(char):04X}")
        if char in _CONTROL:
            spellings.append(_CONTROL[char])
        return self._one_of(*spellings)

    def _string(self, text: str) -> str:
        return '"' + "".join(map(self._char, text)) + '"'

    def _key(self, text: str) -> str:
        is_word = text.isascii() and text.replace("-", "_").replace("_", "a").isalnum() and text[0] != "-"
        return self._one_of(text, self._string(text)) if is_word else self._string(text)

    def _comparison(self, key: str, operator: str, value: str) -> str:
        return f"attributes.{self._key(key)}{self._gap()}{operator}{self._gap()}{self._string(value)}"

    def filter(self, tree: Filter) -> str:
        gap = self._gap
        match tree:
            case Presence(key):
                return f"attributes{gap()}:{gap()}{self._key(key)}"
            case Equals(key, value):
                return self._comparison(key, "=", value)
            case NotEquals(key, value):
                return self._comparison(key, "!=", value)
            case HasPrefix(key, prefix):
                arguments = f"{gap()}attributes.{self._key(key)}{gap()},{gap()}{self._string(prefix)}{gap()}"
                return f"hasPrefix{gap()}({arguments})"
            case Not(operand):
                return self._one_of("NOT ", "NOT\n", "-") + self._operand(operand, Not)
            case And(operands):
                return self._one_of(" AND ", "\nAND\t").join(self._operand(part, And) for part in operands)
            case Or(operands):
                return self._one_of(" OR ", "\nOR\t").join(self._operand(part, Or) for part in operands)

    def _operand(self, tree: Filter, parent: type[Not | And | Or]) -> str:
        text = self.filter(tree)
        needs_parentheses = isinstance(tree, And | Or) or (isinstance(tree, Not) and parent is Not)
        in_parentheses = f"({self._gap()}{text}{self._gap()})"
        return in_parentheses if needs_parentheses else self._one_of(text, in_parentheses)
