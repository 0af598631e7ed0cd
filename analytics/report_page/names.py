"""Names of subscriptions and clients as the page shows them: short where nothing is lost by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from analytics.summary import common_prefix

LABEL_MAX = 48  # characters of a name in legends and hover texts; the whole name is in the tables


class Names:
    """Labels of subscriptions, or of topics (`what`): without what all names begin with, and different for
    each incarnation."""

    def __init__(self, full: Mapping[int, str], what: str = "subscription") -> None:
        self._full = dict(full)
        self._what = what
        self.prefix = common_prefix(sorted(set(self._full.values())))
        seen: dict[str, int] = {}
        for name in self._full.values():
            seen[name] = seen.get(name, 0) + 1
        self._twice = {name for name, count in seen.items() if count > 1}

    def full(self, sub_id: int) -> str:
        return self._full.get(sub_id, f"{self._what} number {sub_id}")

    def label(self, sub_id: int) -> str:
        """A name that was deleted and created again is two subscriptions, told apart by their numbers."""
        full = self.full(sub_id)
        short = full.removeprefix(self.prefix) or full
        return f"{short} #{sub_id}" if full in self._twice else short

    def short(self, sub_id: int) -> str:
        return elide(self.label(sub_id))


def elide(name: str, length: int = LABEL_MAX) -> str:
    """The name, or its beginning and end where it is longer than `length` characters."""
    if len(name) <= length:
        return name
    tail = length // 3
    return f"{name[: length - tail - 1]}…{name[-tail:]}"


def collect(tables: Iterable[Iterable[Mapping[str, object]]]) -> dict[int, str]:
    """Names by number from rows with `sub_id` and `subscription`; the first that is not empty counts."""
    names: dict[int, str] = {}
    for rows in tables:
        for row in rows:
            sub_id, name = row["sub_id"], row["subscription"]
            if isinstance(sub_id, int) and sub_id and isinstance(name, str) and name:
                names.setdefault(sub_id, name)
    return names
