"""Protocol Buffer schemas: which are taken, which data fits, which revisions go together."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model.errors import InvalidArgument
from pubsubd.schema.compiled import compiled
from pubsubd.schema.mismatch import Mismatch
from pubsubd.schema.proto import ProtoSchema
from pubsubd.schema.proto_json import plain_fit
from pubsubd.wire import pb
from tests.unit.schema.support import accepts, descriptors, proto, reason

JSON, BINARY = pb.JSON, pb.BINARY


def message(*fields: str, syntax: str = "proto3", package: str = "") -> str:
    lines = [f'syntax = "{syntax}";', f"package {package};" if package else ""]
    return "\n".join([*lines, f"message Rec {{ {' '.join(fields)} }}"])


REC = message("string a = 1;", "int32 b = 2;")
EDITION = 'edition = "2023"; message Rec { string a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }'
PROTO2 = message("required string a = 1;", "optional int32 b = 2;", syntax="proto2")


@pytest.mark.parametrize("text", [REC, EDITION, PROTO2, message("string a = 1;", package="a.b")])
def test_every_syntax_is_taken(text: str) -> None:
    prepared = proto(text)

    assert accepts(prepared, b"\x0a\x01x", BINARY)
    assert accepts(prepared, b'{"a":"x"}', JSON)


def test_two_schemas_may_use_the_same_names() -> None:
    one, other = proto(message("string a = 1;")), proto(message("int32 a = 1;"))

    assert accepts(one, b"\x0a\x01x", BINARY) and not accepts(one, b"\x08\x01", BINARY)
    assert accepts(other, b"\x08\x01", BINARY) and not accepts(other, b"\x0a\x01x", BINARY)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('syntax = "proto3";', "one message"),
        (REC + "message Other {}", "one message"),
        (REC + "enum Other { A = 0; }", "one message"),
        (REC + "service S { rpc Do(Rec) returns (Rec); }", "services"),
        (message("extensions 10 to 20;", syntax="proto2") + "extend Rec { optional int32 x = 10; }", "ext"),
        (
            message("extensions 10 to 20; extend Rec { optional int32 x = 10; }", syntax="proto2"),
            "extensions",
        ),
        ('edition = "2024"; message Rec { string a = 1; }', "2023"),
    ],
)
def test_what_the_service_does_not_take_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        proto(text)


NESTED = message(
    "message In { int64 n = 1; repeated In more = 2; }",
    "enum Color { RED = 0; GREEN = 1; }",
    "In in = 1; Color color = 2; map<string, In> by_name = 3; repeated int32 numbers = 4; bytes raw = 5;",
    "oneof which { bool yes = 6; string no = 7; }",
    "uint64 huge = 8;",
)


@pytest.mark.parametrize(
    ("text", "data", "is_value"),
    [
        (REC, "", True),
        (REC, "0a0178 1003", True),
        (REC, "1003 0a0178", True),
        (REC, "0a0178 1801", False),
        (REC, "ff", False),
        (REC, "0a02 78", False),
        (REC, "0a01ff", False),  # not UTF-8
        (REC, "0801", False),  # a number where a text should be
        (PROTO2, "0a0178", True),
        (PROTO2, "1003", False),
        (NESTED, "0a02 0801", True),
        (NESTED, "0a02 1801", False),  # unknown inside
        (NESTED, "0a06 0801 12021801", False),  # and further inside
        (NESTED, "1a07 0a0161 1202 0801", True),
        (NESTED, "1a07 0a0161 1202 1801", False),
        (NESTED, "1005", True),  # an enum that is open takes any number
        (message("enum E { X = 0; }", "optional E e = 1;", syntax="proto2"), "0805", False),
    ],
)
def test_binary_data(text: str, data: str, is_value: bool) -> None:
    assert accepts(proto(text), bytes.fromhex(data), BINARY) is is_value


@pytest.mark.parametrize(
    ("text", "data", "is_value"),
    [
        (REC, "{}", True),
        (REC, '{"a":"x","b":3}', True),
        (REC, '{"a":"x","zz":1}', False),
        (REC, '{"a":1}', False),
        (REC, '{"b":1.5}', False),
        (REC, '{"b":"3"}', True),
        (REC, '{"b":3000000000}', False),
        (REC, '{"a":"x","a":"y"}', False),
        (REC, '{"a":null}', True),
        *[(REC, text, False) for text in ("", "junk", "null", "[]", "1", '"x"', "{} {}", "[{}]", "\ufeff{}")],
        (PROTO2, '{"a":""}', True),
        (PROTO2, '{"b":1}', False),
        (NESTED, '{"in":{"n":"9007199254740993"},"color":"GREEN"}', True),
        (NESTED, '{"in":{"n":3,"more":[{"n":4}]},"color":1}', True),
        (NESTED, '{"in":{"zz":3}}', False),
        (NESTED, '{"color":"BLUE"}', False),
        (NESTED, '{"byName":{"x":{"n":1}},"numbers":[1,2],"raw":"AAE="}', True),
        (NESTED, '{"by_name":{"x":{}}}', True),
        (NESTED, '{"yes":true,"no":"x"}', False),
        (NESTED, '{"numbers":[null]}', False),
        (NESTED, '{"numbers":[],"color":null,"raw":"","no":"","in":null,"byName":{}}', True),
        (NESTED, '{"in":{"more":[]}}', True),
        *[
            (NESTED, text, False)
            for text in ('{"in":[]}', '{"in":""}', '{"in":{"more":[[]]}}', '{"byName":{"x":""}}')
        ],
        (NESTED, '{"byName":[]}', False),
        (message('message In {} In in = 1 [json_name = "other"];'), '{"other":[]}', False),
        (NESTED, '{"numbers":' + "[" * 100_000, False),
        (NESTED, '{"in":' + '{"more":[' * 5000 + "]}" * 5000 + "}", False),
    ],
)
def test_json_data(text: str, data: str, is_value: bool) -> None:
    assert accepts(proto(text), data.encode(), JSON) is is_value


def test_json_data_is_utf_8() -> None:
    assert not accepts(proto(REC), '{"a":"é"}'.encode("latin-1"), JSON)


def test_a_refusal_says_why() -> None:
    assert "zz" in reason(proto(REC), b'{"zz":1}', JSON)
    assert "does not have" in reason(proto(REC), b"\x18\x01", BINARY)
    assert reason(proto(PROTO2), b"", BINARY).endswith("missing: a")


_KEYS = st.sampled_from(["in", "n", "more", "color", "byName", "numbers", "raw", "yes", "no", "zz", "[x]"])
_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


_LONGS = st.integers(-(2**64), 2**64) | st.text("-+ 0123.", max_size=4)
_FITTING = st.fixed_dictionaries(
    {},
    optional={
        "in": st.fixed_dictionaries({}, optional={"n": _LONGS}),
        "color": st.sampled_from(["RED", "GREEN", "BLUE", 0, 5, None]),
        "by_name": st.dictionaries(st.text(max_size=2), st.just({}), max_size=2),
        "numbers": st.lists(st.integers(-(2**32), 2**32), max_size=3),
        "huge": st.integers(-1, 2**65) | st.text("-0123456789", max_size=20),
        "raw": st.text("AB+/=-_ ", max_size=9),
        "yes": st.booleans(),
        "no": st.text(max_size=3),
    },
)


@given(_FITTING | _JSON_VALUES)
def test_a_quick_look_agrees_with_json_format(value: object) -> None:
    pool = DescriptorPool()
    for one in FileDescriptorSet.FromString(descriptors(NESTED)).file:
        pool.AddSerializedFile(one.SerializeToString())
    rec = pool.FindMessageTypeByName("Rec")
    if plain_fit(rec)(value):
        json_format.ParseDict(value, GetMessageClass(rec)(), descriptor_pool=pool)


def test_a_text_with_half_a_character_is_refused() -> None:
    assert not accepts(proto(REC), rb'{"a":"\ud800"}', JSON)
    assert accepts(proto(REC), rb'{"a":"\ud83d\ude00"}', JSON)


@given(_JSON_VALUES)
def test_any_json_is_judged(value: object) -> None:
    accepts(proto(NESTED), json.dumps(value).encode(), JSON)


@given(st.binary(max_size=60))
def test_any_bytes_are_judged(data: bytes) -> None:
    accepts(proto(NESTED), data, BINARY)
    accepts(proto(NESTED), data, JSON)


# --- revisions -------------------------------------------------------------------------------------------

IN = "message In { string x = 1; } In in = 3;"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (REC, REC),
        (REC, message("string a = 1;")),
        (REC, message("string a = 1;", "int32 b = 2;", "repeated bool c = 3;")),
        (REC, message("string a = 1;", package="other")),
        (REC, message()),
        (message(IN), message("message Other { string x = 1; int32 y = 2; } Other in = 3;")),
        (message("enum E { X = 0; } E e = 1;"), message("enum E { X = 0; Y = 1; } E e = 1;")),
        (message("map<string, int32> m = 1;"), message("map<string, int32> m = 1;", "int32 n = 2;")),
    ],
)
def test_compatible(earlier: str, later: str) -> None:
    proto(later).compiled.check_compatible(proto(earlier).compiled)
    proto(earlier).compiled.check_compatible(proto(later).compiled)


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        (REC, message("string a = 1;", "string b = 2;"), "field 2 .* is string, was int32"),
        (REC, message("string a = 1;", "int32 c = 2;"), "is c, was b"),
        (REC, message("string a = 1;", "int32 b = 3;"), "number 3 and 2"),
        (REC, message("repeated string a = 1;"), "is repeated string, was string"),
        (PROTO2, message("optional int32 b = 2;", syntax="proto2"), "required field a"),
        (PROTO2, message("optional string a = 1;", syntax="proto2"), "is string, was required string"),
        (message(IN), message("message In { int32 x = 1; } In in = 3;"), "field 1 of In"),
        (
            message("enum E { X = 0; Y = 1; } E e = 1;"),
            message("enum E { X = 0; Y = 2; } E e = 1;"),
            "Y of E",
        ),
        (message("map<string, int32> m = 1;"), message("map<string, string> m = 1;"), "field 2"),
    ],
)
def test_incompatible(earlier: str, later: str, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        proto(later).compiled.check_compatible(proto(earlier).compiled)
    with pytest.raises(Mismatch):
        proto(earlier).compiled.check_compatible(proto(later).compiled)


# --- compiled schemas ------------------------------------------------------------------------------------


def file(name: str, *imports: str, message: str = "") -> FileDescriptorProto:
    made = FileDescriptorProto(name=name, dependency=imports, syntax="proto3", package="p")
    if message:
        made.message_type.add(name=message)
    return made


def compiled_of(*files: FileDescriptorProto, root: str = "p.M") -> pb.Schema:
    sent = pb.CompiledProtoSchema(
        root_message=root, compiled_bytes=FileDescriptorSet(file=files).SerializeToString()
    )
    return pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, compiled_proto_schema=sent)


def test_a_long_chain_of_messages_is_refused() -> None:
    chain = file("m", message="M")
    for number in range(3000):
        holder = chain.message_type.add(name=f"M{number}")
        name = f".p.M{number - 1}" if number else ".p.M"
        holder.field.add(name="in", number=1, type=11, type_name=name, label=1)

    with pytest.raises(InvalidArgument, match="too deeply"):
        compiled(compiled_of(chain, root="p.M2999"), b"")


def test_a_compiled_schema_may_have_its_files_in_any_order() -> None:
    compiled(compiled_of(file("m", "a", "b", message="M"), file("a", "b"), file("b")), b"")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (compiled_of(file("m", message="M"), root="M"), "no message M"),
        (compiled_of(file("m", message="M"), root=""), "no message"),
        (compiled_of(file("m", "a", message="M")), "a, which is not there"),
        (compiled_of(file("m", "a", message="M"), file("a", "m")), "import each other"),
        (compiled_of(file("m", "m", message="M")), "import each other"),
        (compiled_of(file("m", message="M"), file("a", message="M")), "M"),
        (compiled_of(file("m", message="not a name")), ""),
    ],
)
def test_a_compiled_schema_that_is_not_whole_is_refused(schema: pb.Schema, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Invalid schema definition.*{why}"):
        compiled(schema, b"")


@given(st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_any_compiled_schema_is_judged(at: int, others: bytes) -> None:
    data = bytearray(descriptors(NESTED))
    at %= len(data)
    data[at : at + len(others)] = others
    try:
        ProtoSchema(bytes(data), "Rec").check_json(b"{}")
    except Mismatch as mismatch:
        assert mismatch.reason
