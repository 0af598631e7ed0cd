"""Which texts are Avro schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pubsubd.model import limits
from pubsubd.model.errors import InvalidArgument
from pubsubd.schema.avro import parse
from pubsubd.schema.mismatch import Mismatch
from tests.unit.schema.support import avro_text, field, record

E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
F = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    "definition",
    [
        *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
        {"type": "string"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "string", "logicalType": "nobody-knows"},
        {"type": "bytes", "logicalType": "decimal"},
        ["null", "int", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, E, F],
        record(),
        record(name="a.b.Rec"),
        record(namespace="a.b"),
        record(namespace=""),
        record(doc="what it is", aliases=["Old", "x.Older"]),
        record(field("a", "int", doc="d", order="descending", aliases=["old"], whatever=1)),
        {"type": "error", "name": "Rec", "fields": []},
        {"type": "enum", "name": "E", "symbols": []},
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
        {"type": "fixed", "name": "F", "size": 0},
        # A type is known by its name once it is defined, in the namespace of what it stands in.
        record(field("next", ["null", "Rec"])),
        record(field("e", E), field("f", "E")),
        record(field("e", E), field("f", "x.E"), namespace="x"),
        record(field("e", {**E, "namespace": "y"}), field("f", "y.E"), namespace="x"),
        record(field("e", {**E, "namespace": "y"}), field("f", E), namespace="x"),
    ],
)
def test_a_schema_is_taken(definition: Any) -> None:
    parse(json.dumps(definition))


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("null", None),
        ("boolean", True),
        ("int", -1),
        ("long", 2**40),
        ("double", 0),
        ("float", 1.5),
        ("string", "x"),
        ("bytes", "\u00ff"),
        (F, "ab"),
        (E, "B"),
        ({"type": "array", "items": "int"}, [1]),
        ({"type": "map", "values": "int"}, {"a": 1}),
        (["null", "int"], None),
        (["int", "null"], 1),
        (record(field("a", "int"), field("b", "int", default=1), name="In"), {"a": 1}),
    ],
)
def test_a_default_of_the_type_is_taken(type_: Any, default: Any) -> None:
    parse(json.dumps(record(field("x", type_, default=default))))


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("null", 0),
        ("boolean", 1),
        ("int", True),
        ("int", 1.0),
        ("int", 2**31),
        ("long", 2**63),
        ("double", "0"),
        ("string", None),
        ("bytes", "\u0100"),
        (F, "abc"),
        (E, "C"),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, []),
        # A default of a union is one of its first type.
        (["null", "int"], 1),
        (["int", "null"], None),
        (record(field("a", "int"), name="In"), {}),
        (record(field("a", "int"), name="In"), {"a": "x"}),
    ],
)
def test_a_default_of_another_type_is_refused(type_: Any, default: Any) -> None:
    with pytest.raises(Mismatch, match="default"):
        parse(json.dumps(record(field("x", type_, default=default))))


@pytest.mark.parametrize(
    "definition",
    [
        *("{", "", "nothing", "{} {}", "[" * 100_000, '{"type": NaN}', "1" * 5000),
        *("1", "null", "true", "{}", "[]", '"x"', '{"type": 1}', '{"type": {"type": "string"}}'),
        '{"type": ["null", "int"]}',
        *[
            json.dumps(one)
            for one in (
                record(name="1Rec"),
                record(name="a b"),
                record(name=""),
                record(name="a..b"),
                record(name="string"),
                record(name="x.int"),
                record(namespace=1),
                record(aliases="Old"),
                record(aliases=[1]),
                {"type": "record", "fields": []},
                {"type": "record", "name": "R"},
                {"type": "record", "name": "R", "fields": {}},
                record("a"),
                record({"name": "a"}),
                record({"type": "int"}),
                record(field("a b", "int")),
                record(field("a-b", "int")),
                record(field(1, "int")),  # type: ignore[arg-type]  # a name that is no text
                record(field("a", "int"), field("a", "int")),
                record(field("a", "int", order="upwards")),
                record(field("a", "nothing")),
                record(field("a", "Later"), field("b", record(name="Later"))),
                record(field("e", E), field("f", E)),
                record(field("e", {**E, "namespace": "y"}), field("f", "E"), namespace="x"),
                record(field("a", ["int", "int"])),
                record(field("a", ["null", ["int"]])),
                record(field("a", [E, "E"])),
                record(field("a", [])),
                {"type": "array"},
                {"type": "map"},
                {"type": "enum", "name": "E"},
                {"type": "enum", "name": "E", "symbols": "AB"},
                {"type": "enum", "name": "E", "symbols": ["A", "A"]},
                {"type": "enum", "name": "E", "symbols": ["a b"]},
                {"type": "enum", "name": "E", "symbols": [1]},
                {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
                {"type": "fixed", "name": "F"},
                {"type": "fixed", "name": "F", "size": -1},
                {"type": "fixed", "name": "F", "size": True},
                {"type": "fixed", "name": "F", "size": "2"},
            )
        ],
    ],
)
def test_what_is_no_schema_is_refused(definition: str) -> None:
    with pytest.raises(Mismatch):
        parse(definition)
    with pytest.raises(InvalidArgument, match="Invalid schema definition"):
        avro_text(definition)


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


def test_types_lie_in_each_other_to_a_bound() -> None:
    parse(nested(limits.SCHEMA_DEPTH_MAX))
    with pytest.raises(Mismatch, match="lie in each other"):
        parse(nested(limits.SCHEMA_DEPTH_MAX + 1))
