"""Which two Avro schemas go together: each reads what the other one writes."""

from __future__ import annotations

from typing import Any

import pytest

from pubsubd.schema.mismatch import Mismatch
from tests.unit.schema.support import avro, field, record

A, B = field("a", "string"), field("b", ["null", "int"], default=None)
REC = record(A, B)
E = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


def map_(values: Any) -> Any:
    return {"type": "map", "values": values}


def fixed(size: int, name: str = "F") -> Any:
    return {"type": "fixed", "name": name, "size": size}


def enum(*symbols: str, **more: Any) -> Any:
    return {"type": "enum", "name": "E", "symbols": symbols, **more}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (REC, REC),
        (REC, record(A, B, field("c", "string", default=""))),
        (REC, record(A)),
        (REC, record(B, A)),
        (REC, {**REC, "namespace": "other", "doc": "new"}),
        (REC, record(A, field("b", ["int", "null"], default=1))),
        ("string", "bytes"),
        (fixed(2), fixed(2, "other.F")),
        (enum("X"), enum("X")),
        (enum("X", default="X"), enum("X", "Y", default="X")),
        (enum("X", "Y"), enum("Y", "X")),
        (array("string"), array("bytes")),
        (map_(REC), map_(record(A))),
        (["null", "string"], ["string", "null"]),
        (["null", "string"], ["null", "bytes"]),
        ([REC, "int"], [record(A), "int"]),
        (record(field("next", ["null", "Rec"])), record(field("next", ["null", "Rec"]), B)),
        # Each calls the field by the name it has, and knows the other's.
        (record(field("a", "int", aliases=["b"])), record(field("b", "int", aliases=["a"]))),
        (record(A, aliases=["New"]), record(A, name="New", aliases=["Rec"])),
    ],
)
def test_compatible(earlier: Any, later: Any) -> None:
    avro(later).compiled.check_compatible(avro(earlier).compiled)
    avro(earlier).compiled.check_compatible(avro(later).compiled)


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        (REC, record(A, B, field("c", "string")), "c is in one"),
        (REC, record(B), "a is in one"),
        (REC, "int", "Rec cannot be read as int"),
        (REC, record(A, B, name="Other"), "Rec"),
        (REC, record(field("a", "int"), B), "a: .*int"),
        (record(field("a", "string")), record(field("z", "string", aliases=["a"])), "a is in one"),
        ("int", "long", "long cannot be read as int"),
        ("float", "double", "double"),
        ("int", "string", "int"),
        (fixed(2), fixed(3), "bytes"),
        (fixed(2), fixed(2, "G"), "F"),
        (enum("X"), enum("X", "Y"), "symbol Y"),
        (enum("X", "Y", default="X"), enum("X"), "symbol Y"),
        (array("int"), array("string"), "int"),
        (array("int"), map_("int"), "map"),
        (map_("int"), map_("string"), "int"),
        ("int", ["null", "int"], "null"),
        (["null", "int"], ["null", "int", "string"], "string"),
        (
            record(field("in", record(A, name="In"))),
            record(field("in", record(A, field("z", "int"), name="In"))),
            "in: .*z is in one",
        ),
    ],
)
def test_incompatible(earlier: Any, later: Any, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        avro(later).compiled.check_compatible(avro(earlier).compiled)
    with pytest.raises(Mismatch):
        avro(earlier).compiled.check_compatible(avro(later).compiled)


def many_ways(last: str) -> Any:
    """Records that lie in each other, each of them by two ways, and unions in between."""
    types: list[Any] = [record(field("x", last), name="p0.R"), record(field("x", last), name="q0.R")]
    for number in range(1, 60):
        inner = [f"p{number - 1}.R", f"q{number - 1}.R"]
        for package in "pq":
            types.append(record(field("a", inner), field("b", inner), name=f"{package}{number}.R"))
    return types


@pytest.mark.timeout(20)
def test_a_comparison_ends_however_many_ways_there_are() -> None:
    avro(many_ways("string")).compiled.check_compatible(avro(many_ways("bytes")).compiled)
    with pytest.raises(Mismatch):
        avro(many_ways("string")).compiled.check_compatible(avro(many_ways("int")).compiled)


def test_a_comparison_of_a_long_chain_of_types_ends() -> None:
    chain: list[Any] = [record(name="R0")]
    for number in range(1, 3000):
        chain.append(record(field("a", f"R{number - 1}"), name=f"R{number}"))
    one, other = [
        avro(record(field(name, chain, default={}), field("last", "R2999"))) for name in ("one", "other")
    ]

    with pytest.raises(Mismatch, match="too deeply"):
        one.compiled.check_compatible(other.compiled)
