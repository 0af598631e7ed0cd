"""From the syntax tree of a filter to a function that says whether a message matches.

Theory of operation. The function is asked once for every message published and every subscription with a
filter, so the tree is not walked each time: it is written out as one Python expression over the attributes,
which is compiled once. No text of a client gets into the source; keys and values are parameters of an outer
function, and the source holds only their names.

A negation is carried down to the conditions on the way, so that none remains and two in a row cost nothing.
What remains is as deep as chains stand inside each other, each with a condition of its own: 256 bytes hold
about fifteen, while the compiler of Python gives up at a hundred or two.

Source: Subscription.filter, https://cloud.google.com/pubsub/docs/subscription-message-filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from pubsubd.model.filters import And, Equals, Filter, HasPrefix, Not, NotEquals, Or, Presence

#: Says whether a message with these attributes matches.
Matches: TypeAlias = Callable[[Mapping[str, str]], bool]


def compile_filter(tree: Filter) -> Matches:
    """A function of a message's attributes, a dictionary or the map of a `pb.PubsubMessage`."""
    source = _Source()
    expression = source.expression(tree, negated=False)
    parameters = ", ".join(source.names.values())
    outer = eval(f"lambda {parameters}: lambda attributes: {expression}", {"__builtins__": {}})
    return cast(Matches, outer(*source.names))


class _Source:
    """Writes the expression; `names` holds each text that it needs, and the parameter that stands for it."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def expression(self, tree: Filter, negated: bool) -> str:
        while isinstance(tree, Not):
            tree, negated = tree.operand, not negated
        match tree:
            case Presence(key):
                return f"{self._name(key)} {'not in' if negated else 'in'} attributes"
            case Equals(key, value):
                return self._test(key, f" == {self._name(value)}", negated)
            case NotEquals(key, value):
                return self._test(key, f" == {self._name(value)}", not negated)
            case HasPrefix(key, prefix):
                return self._test(key, f".startswith({self._name(prefix)})", negated)
            case And() | Or():
                return self._chain(tree, negated)

    def _test(self, key: str, test: str, negated: bool) -> str:
        """A test of the value; a message without the attribute fails it, so it passes the negated one."""
        # Two operators on a map of protobuf cost less than one call of its `get`. Without the first of them
        # the second would put an empty attribute into the message.
        name = self._name(key)
        passes = f"{name} in attributes and attributes[{name}]{test}"
        return f"not ({passes})" if negated else f"({passes})"

    def _chain(self, chain: And | Or, negated: bool) -> str:
        """Of a negated chain the operands are negated and the operator is the other one."""
        is_and = isinstance(chain, And) is not negated
        if not chain.operands:
            return str(is_and)
        parts = [self.expression(operand, negated) for operand in chain.operands]
        return f"({(' and ' if is_and else ' or ').join(parts)})"

    def _name(self, text: str) -> str:
        return self.names.setdefault(text, f"text_{len(self.names)}")
