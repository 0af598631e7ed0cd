"""HTML out of values. Whatever comes from tables goes through `text`, and only this module writes tags."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from analytics import summary

NONE = "\N{EN DASH}"


class Html(str):
    """Text that is HTML already. Everything else is escaped when it becomes part of the page."""

    __slots__ = ()


def text(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(text(part) for part in parts))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element; an attribute that is None is left out, `class_` stands for `class`, and _ for -."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{join(inside)}</{name}>")


def badge(verdict: str) -> Html:
    return tag("span", summary.LABELS[verdict].lower(), class_=f"badge {verdict}")


class Column(NamedTuple):
    """A column of a table. Kinds: `h` what the row is about, `n` a number, `t` short text, `w` long text."""

    title: str
    kind: str = "t"
    hint: str | None = None


class Cell(NamedTuple):
    """What a cell shows, and the value by which it sorts."""

    shown: object
    value: object


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], label: str, key: str | None = None
) -> Html:
    """A table which scrolls by itself where it is wider than the page; with a `key` it can be sorted.

    A cell is a `Cell`, text, HTML, or None for unknown.
    """
    heads = []
    for column in columns:
        title = tag("button", column.title, type="button", title=column.hint) if key else text(column.title)
        kind = "n" if column.kind == "n" else None
        heads.append(tag("th", title, scope="col", class_=kind, title=None if key else column.hint))
    body = [tag("tr", *map(_cell, columns, row)) for row in rows]
    whole = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        id=key,
        class_="sortable" if key else None,
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(column: Column, given: object) -> Html:
    shown, value = given if isinstance(given, Cell) else (given, None)
    inside = NONE if shown is None else shown
    if column.kind == "h":
        return tag("th", inside, scope="row", data_value=value)
    if column.kind == "n" and value is None:
        value = ""
    return tag("td", inside, class_=column.kind, data_value=value)


# Numbers as people read them.


def count(value: float | None) -> Cell:
    return Cell(None, None) if value is None else Cell(f"{value:,.0f}", value)


def share(part: float | None, whole: float | None) -> Cell:
    """part / whole in per cent."""
    if part is None or not whole:
        return Cell(None, None)
    per_cent = 100 * part / whole
    return Cell(f"{per_cent:.2f} %" if per_cent < 10 else f"{per_cent:.1f} %", per_cent)


def number(value: float | None) -> str:
    """A number of unknown size and unit: whole ones whole, others with four digits."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:,.4g}"


def duration(micros: float | None) -> Cell:
    """A length of time in the unit in which it is easiest to read; sorts by microseconds."""
    if micros is None:
        return Cell(None, None)
    for unit, name in ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if micros >= unit:
            return Cell(f"{micros / unit:.3g} {name}", micros)
    return Cell(f"{micros:.0f} µs", micros)


def seconds(value: float | None) -> Cell:
    return duration(None if value is None else value * 1e6)


def moment(micros: int | None, digits: int = 0) -> str:
    """A time in UTC; with 6 digits to the microsecond."""
    if not micros:
        return NONE
    whole, rest = divmod(micros, 1_000_000)
    shown = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{shown}.{rest:06d}" if digits else shown
