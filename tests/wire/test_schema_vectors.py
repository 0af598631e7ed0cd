"""The test vectors of the service contract for schemas, in its order."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire import schemas
from tests.wire.calls import Client, refused
from tests.wire.schemas import A_FIELDS, AVRO_REC, GOOD_JSON, PARENT, avro, proto, record
from tests.wire.support import unique

OK, INVALID = None, StatusCode.INVALID_ARGUMENT
A, P = avro(), proto()


def of_field(type_: object, name: str = "x") -> pb.Schema:
    return avro(record({"name": name, "type": type_}))


LETTERS = of_field({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "type")


class Message(NamedTuple):
    number: int
    schema: pb.Schema
    encoding: int
    data: bytes
    code: StatusCode | None


MESSAGES = [
    Message(1, A, pb.JSON, b'{"a":"x","b":null}', OK),
    Message(2, A, pb.JSON, b'{"a":"x","b":{"int":3}}', OK),
    Message(3, A, pb.JSON, b'{"a":"x","b":3}', INVALID),
    Message(4, A, pb.JSON, b'{"a":"x"}', INVALID),
    Message(5, A, pb.JSON, b'{"b":null}', INVALID),
    Message(6, A, pb.JSON, b'{"a":"x","b":null,"z":1}', OK),
    Message(7, A, pb.JSON, b'{"a":1,"b":null}', INVALID),
    Message(8, A, pb.JSON, b"junk", INVALID),
    Message(9, A, pb.JSON, b"", INVALID),
    Message(10, A, pb.JSON, b'{"b":null,"a":"x"}', OK),
    Message(11, A, pb.JSON, b'{"a":"x","b":null} {}', INVALID),
    Message(12, A, pb.BINARY, b"\x02\x78\x00", OK),
    Message(13, A, pb.BINARY, b"\x02\x78\x02\x06", OK),
    Message(14, A, pb.BINARY, b"\x02\x78\x00\x00", INVALID),
    Message(15, A, pb.BINARY, b"\x02", INVALID),
    Message(16, A, pb.BINARY, b"\x02\x78\x04", INVALID),
    Message(17, A, pb.ENCODING_UNSPECIFIED, b"\x02\x78\x00", INVALID),
    Message(18, avro('"string"'), pb.JSON, b'"hi"', OK),
    Message(19, LETTERS, pb.JSON, b'{"type":"A"}', OK),
    Message(20, LETTERS, pb.JSON, b'{"type":"C"}', INVALID),
    Message(21, of_field("bytes"), pb.JSON, rb'{"x":"\u00ff"}', OK),
    Message(22, of_field("bytes"), pb.JSON, rb'{"x":"\u0100"}', INVALID),
    Message(23, of_field("int"), pb.JSON, b'{"x":3000000000}', INVALID),
    Message(24, of_field("int"), pb.JSON, b'{"x":1.5}', INVALID),
    Message(25, of_field("double"), pb.JSON, b'{"x":1}', OK),
    Message(26, P, pb.BINARY, b"\x0a\x01\x78\x10\x03", OK),
    Message(27, P, pb.BINARY, b"", OK),
    Message(28, P, pb.BINARY, b"\x0a\x01\x78\x18\x01", INVALID),
    Message(29, P, pb.BINARY, b"\xff", INVALID),
    Message(30, P, pb.JSON, b'{"a":"x","b":3}', OK),
    Message(31, P, pb.JSON, b'{"a":"x","zz":1}', INVALID),
]


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda vector: f"S{vector.number:02}")
def test_message(client: Client, vector: Message):
    name = schemas.create(client, vector.schema).name
    for spec in ({"schema": vector.schema}, {"name": name}):
        fields = {"parent": PARENT, "message": vector.data, "encoding": vector.encoding, **spec}
        if vector.code is OK:
            assert client.ValidateMessage(**fields) == pb.ValidateMessageResponse()
        else:
            with refused(vector.code):
                client.ValidateMessage(**fields)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(avro("{"), id="S32"),
        pytest.param(avro(""), id="S33"),
        pytest.param(proto('syntax = "proto3"; message A {} message B {}'), id="S34"),
        pytest.param(proto('syntax = "proto3"; import "x.proto"; message A {}'), id="S35"),
        pytest.param(pb.Schema(definition=AVRO_REC), id="S36"),
    ],
)
def test_definition_is_refused(client: Client, schema: pb.Schema):
    with refused(INVALID):
        client.ValidateSchema(parent=PARENT, schema=schema)
    name = unique("schema")
    with refused(INVALID):
        client.CreateSchema(parent=PARENT, schema_id=name.rpartition("/")[2], schema=schema)
    with refused(StatusCode.NOT_FOUND):
        client.GetSchema(name=name)


C_FIELD = {"name": "c", "type": "string"}
WITHOUT_B = 'syntax = "proto3"; message Rec { string a = 1; }'
B_IS_STRING = 'syntax = "proto3"; message Rec { string a = 1; string b = 2; }'
C_FOR_B = 'syntax = "proto3"; message Rec { string a = 1; string c = 2; }'


@pytest.mark.parametrize(
    ("before", "last", "code"),
    [
        pytest.param([A], avro(record(*A_FIELDS, {**C_FIELD, "default": ""})), OK, id="S37"),
        pytest.param([A], avro(record(*A_FIELDS, C_FIELD)), INVALID, id="S38"),
        pytest.param([A], avro('"int"'), INVALID, id="S39"),
        pytest.param([P], proto(B_IS_STRING), INVALID, id="S40"),
        pytest.param([P], proto(WITHOUT_B), OK, id="S41"),
        pytest.param([P, proto(WITHOUT_B)], proto(C_FOR_B), INVALID, id="S42"),
        pytest.param([A] * 20, A, StatusCode.RESOURCE_EXHAUSTED, id="S43"),
    ],
)
def test_commit(client: Client, before: list[pb.Schema], last: pb.Schema, code: StatusCode | None):
    made = [schemas.create(client, before[0])]
    name = made[0].name
    made += [client.CommitSchema(name=name, schema=schema) for schema in before[1:]]
    if code is OK:
        made.append(client.CommitSchema(name=name, schema=last))
    else:
        with refused(code):
            client.CommitSchema(name=name, schema=last)
    listed = client.ListSchemaRevisions(name=name, view=pb.FULL).schemas
    assert list(listed) == made[::-1]


def test_only_revision_stays(client: Client):
    """S44"""
    made = schemas.create(client)
    with refused(INVALID, "DeleteSchema"):
        client.DeleteSchemaRevision(name=f"{made.name}@{made.revision_id}")
    assert client.GetSchema(name=made.name) == made


def test_rollback_to_an_unknown_revision(client: Client):
    """S45"""
    made = schemas.create(client)
    with refused(StatusCode.NOT_FOUND):
        client.RollbackSchema(name=made.name, revision_id="deadbeef")
    assert client.GetSchema(name=made.name) == made


def test_publish_to_a_topic_with_a_schema(client: Client):
    """S46, S47, S48, S49"""
    schema = schemas.create(client)
    topic = schemas.create_topic(client, schema.name)
    subscription = client.CreateSubscription(name=unique("subscription"), topic=topic).name

    client.Publish(topic=topic, messages=schemas.messages(GOOD_JSON))
    with refused(INVALID):
        client.Publish(topic=topic, messages=schemas.messages(GOOD_JSON, b'{"a":"x"}'))
    with refused(INVALID):
        client.Publish(topic=topic, messages=schemas.messages(b"", a="b"))
    client.DeleteSchema(name=schema.name)
    with refused(StatusCode.NOT_FOUND):
        client.Publish(topic=topic, messages=schemas.messages(GOOD_JSON))

    assert client.GetTopic(topic=topic).schema_settings.schema == "_deleted-schema_"
    (got,) = client.Pull(subscription=subscription, max_messages=10).received_messages
    assert got.message.data == GOOD_JSON
    assert dict(got.message.attributes) == {
        "googclient_schemaencoding": "JSON",
        "googclient_schemaname": schema.name,
        "googclient_schemarevisionid": schema.revision_id,
    }


def test_every_vector_is_here():
    """S01 to S49, which are all that there are."""
    assert [vector.number for vector in MESSAGES] == list(range(1, 32))
    assert json.loads(AVRO_REC)["fields"] == list(A_FIELDS)
