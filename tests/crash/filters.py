"""Filters, each beside what it means in plain Python, and attributes that some of them reject."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

Attributes = Mapping[str, str]

FILTERS: dict[str, Callable[[Attributes], bool]] = {
    'attributes.color = "red"': lambda a: a.get("color") == "red",
    'attributes.color != "red"': lambda a: a.get("color") != "red",
    "attributes:size": lambda a: "size" in a,
    "NOT attributes:size": lambda a: "size" not in a,
    'hasPrefix(attributes.color, "gr")': lambda a: a.get("color", "").startswith("gr"),
    'attributes.color = "red" OR attributes.size = "2"': lambda a: (
        a.get("color") == "red" or a.get("size") == "2"
    ),
    'attributes:size AND (attributes.color = "grey" OR NOT attributes.size = "1")': (
        lambda a: "size" in a and (a.get("color") == "grey" or a["size"] != "1")
    ),
}


def matches(filter_text: str, attributes: Attributes) -> bool:
    return not filter_text or FILTERS[filter_text](attributes)


def draw_attributes(chance: random.Random) -> dict[str, str]:
    attributes = {}
    if chance.random() < 0.8:
        attributes["color"] = chance.choice(["red", "green", "grey", "blue"])
    if chance.random() < 0.6:
        attributes["size"] = chance.choice(["1", "2", "3"])
    return attributes
