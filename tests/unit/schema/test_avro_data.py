"""Which data is a value of an Avro schema, judged beside fastavro, which writes the binary encoding."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.wire import pb
from tests.unit.schema.arbitrary_avro import named, schemas, values
from tests.unit.schema.support import accepts, avro, field, reason, record

JSON, BINARY = pb.JSON, pb.BINARY


def binary_of(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def json_of(schema: Any, value: Any) -> bytes:
    # fastavro fails here for a record without fields, and for a map of nulls.
    return json.dumps(_json_form(schema, value)).encode()


def _json_form(schema: Any, value: Any) -> Any:
    if isinstance(schema, list):
        names = {bool: "boolean", int: "long", str: "string"}
        return None if value is None else {names[type(value)]: value}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    match schema:
        case {"type": "record", "fields": fields}:
            return {one["name"]: _json_form(one["type"], value[one["name"]]) for one in fields}
        case {"type": "array", "items": items}:
            return [_json_form(items, one) for one in value]
        case {"type": "map", "values": inner}:
            return {key: _json_form(inner, one) for key, one in value.items()}
    return value


@given(st.data())
def test_what_fastavro_writes_is_accepted_whole_and_in_no_part(data: st.DataObject) -> None:
    schema = named(data.draw(schemas()))
    value = data.draw(values(schema))
    prepared = avro(schema)

    written = binary_of(schema, value)
    assert accepts(prepared, written, BINARY)
    assert not accepts(prepared, written + b"\x00", BINARY)
    if written:
        cut = data.draw(st.integers(0, len(written) - 1))
        # Where a value ends is said by itself, so none begins another one.
        assert not accepts(prepared, written[:cut], BINARY)

    assert accepts(prepared, json_of(schema, value), JSON)


@given(st.data())
def test_what_is_accepted_can_be_read_by_fastavro(data: st.DataObject) -> None:
    schema = named(data.draw(schemas()))
    prepared = avro(schema)
    written = bytearray(binary_of(schema, data.draw(values(schema))))
    for _ in range(data.draw(st.integers(1, 3))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    if accepts(prepared, bytes(written), BINARY) and "null" not in str(schema):
        source = io.BytesIO(bytes(written))
        fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
        assert source.read() == b""


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("boolean", "02"),
        ("int", "80808080 10"),  # 2^31
        ("int", "ffffffff ff01"),
        ("long", "ffffffff ffffffff ff02"),
        ("long", "80808080 80808080 808000"),
        ("long", "80"),
        ("float", "000000"),
        ("double", "00"),
        ("bytes", "01"),  # a length of -1
        ("bytes", "04 00"),
        ("string", "02 ff"),
        ("string", "04 c3"),
        ({"type": "fixed", "name": "F", "size": 2}, "00"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "01"),
        (["null", "int"], "01 00"),
        (["null", "int"], "04"),
        ({"type": "array", "items": "int"}, "02"),
        ({"type": "array", "items": "int"}, "02 00"),
        ({"type": "map", "values": "int"}, "02 02 ff 00 00"),
        ("null", "00"),
    ],
)
def test_binary_data_that_is_no_value_is_refused(schema: Any, data: str) -> None:
    assert not accepts(avro(schema), bytes.fromhex(data), BINARY)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("int", "ffffffff 0f"),  # -2^31
        ("long", "ffffffff ffffffff ff01"),
        ("int", "8000"),  # a zero, the long way
        ({"type": "array", "items": "int"}, "02 00 02 00 00"),  # two blocks
        ({"type": "array", "items": "int"}, "03 04 00 00 00"),  # a block with its size
        ({"type": "map", "values": "int"}, "02 02 61 00 00"),
        ("float", "0000c07f"),  # not a number
        ({"type": "long", "logicalType": "timestamp-millis"}, "ffffffff ffffffff ff01"),
    ],
)
def test_binary_data_in_every_form_is_accepted(schema: Any, data: str) -> None:
    assert accepts(avro(schema), bytes.fromhex(data), BINARY)


NOTHING = record(name="N0")
for _number in range(1, 90):
    NOTHING = record(field("a", NOTHING), field("b", f"N{_number - 1}"), name=f"N{_number}")


@pytest.mark.parametrize(
    "schema",
    [
        "null",
        record(name="Empty"),
        {"type": "fixed", "name": "F", "size": 0},
        record(field("a", "null"), field("b", record(name="In")), name="Out"),
        NOTHING,
    ],
)
def test_any_number_of_values_without_bytes_takes_no_time(schema: Any) -> None:
    prepared = avro({"type": "array", "items": schema})
    began = time.process_time()

    assert accepts(prepared, bytes.fromhex("feffffff ffffffff ff01 00"), BINARY)
    assert time.process_time() - began < 1


def test_data_that_is_nested_without_end_is_refused() -> None:
    prepared = avro(record(field("next", ["null", "Rec"])))

    assert accepts(prepared, b"\x02" * 100 + b"\x00", BINARY)
    assert not accepts(prepared, b"\x02" * 1_000_000 + b"\x00", BINARY)
    assert accepts(prepared, b'{"next":{"Rec":' * 100 + b'{"next":null}' + b"}}" * 100, JSON)
    assert not accepts(prepared, b'{"next":{"Rec":' * 100_000, JSON)
    assert not accepts(prepared, b'{"next":{"Rec":' * 2000 + b'{"next":null}' + b"}}" * 2000, JSON)


def test_a_record_that_holds_itself_has_no_values() -> None:
    prepared = avro(record(field("self", "Rec")))

    assert not accepts(prepared, b"", BINARY)
    assert not accepts(prepared, b'{"self":{"self":{}}}', JSON)


UNION = record(field("u", ["null", "int", {"type": "enum", "name": "x.E", "symbols": ["A"]}]))


@pytest.mark.parametrize(
    ("schema", "data", "is_value"),
    [
        (UNION, '{"u":null}', True),
        (UNION, '{"u":{"int":1}}', True),
        (UNION, '{"u":{"x.E":"A"}}', True),
        (UNION, '{"u":{"E":"A"}}', False),
        (UNION, '{"u":{"int":"1"}}', False),
        (UNION, '{"u":{"int":1,"x.E":"A"}}', False),
        (UNION, '{"u":{}}', False),
        (UNION, '{"u":{"null":null}}', False),
        (UNION, '{"u":1}', False),
        (["int", "string"], "null", False),
        ("boolean", "true", True),
        ("boolean", "1", False),
        ("int", "true", False),
        ("int", "1.0", False),
        ("int", "-2147483648", True),
        ("long", "9223372036854775807", True),
        ("long", "9223372036854775808", False),
        ("double", "1e300", True),
        ("double", "NaN", False),
        ("double", "-Infinity", False),
        ("double", '"1"', False),
        ("float", "3", True),
        ("string", "1", False),
        ("string", ' \n"x"\t ', True),
        ("string", "'x'", False),
        ("bytes", '"\u00e9"', True),
        ("bytes", "1", False),
        ({"type": "fixed", "name": "F", "size": 2}, '"\\u0000\u00ff"', True),
        ({"type": "fixed", "name": "F", "size": 2}, '"a"', False),
        ({"type": "array", "items": "int"}, "[1,2]", True),
        ({"type": "array", "items": "int"}, "{}", False),
        ({"type": "map", "values": "int"}, '{"a":1}', True),
        ({"type": "map", "values": "int"}, '{"a":"1"}', False),
        ("int", "1" * 5000, False),
        ("int", "\ufeff1", False),
    ],
)
def test_json_data(schema: Any, data: str, is_value: bool) -> None:
    assert accepts(avro(schema), data.encode(), JSON) is is_value


def test_json_data_is_utf_8() -> None:
    assert not accepts(avro("string"), '"é"'.encode("latin-1"), JSON)
    assert not accepts(avro("string"), '"x"'.encode("utf-16"), JSON)


def test_a_refusal_says_why_and_where() -> None:
    inner = record(field("e", {**UNION, "name": "U"}), name="In")
    prepared = avro(record(field("a", "string"), field("in", inner)))

    assert reason(prepared, b"{}", JSON) == "Field was not found in JSON object: a"
    assert "Too much data" in reason(avro("null"), b"\x00", BINARY)
    assert "Invalid enum index" in reason(avro({"type": "enum", "name": "E", "symbols": ["A"]}), b'"B"', JSON)
    deep = reason(prepared, b'{"a":"","in":{"e":{"u":{"int":"1"}}}}', JSON)
    assert deep.startswith("in: e: u: Expected int but found a string")


def test_a_refusal_is_short_whatever_was_sent() -> None:
    long = record(field("u", ["null", {"type": "map", "values": "int"}]))

    assert len(reason(avro(long), b'{"u":{"' + b"x" * 1_000_000 + b'":1}}', JSON)) <= 1000
