"""SchemaService over gRPC, and topics that have a schema."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire import schemas
from tests.wire.calls import Client, Refusal, refused
from tests.wire.harness import case
from tests.wire.schemas import A_FIELDS, AVRO_REC, GOOD_JSON, PARENT, PROTO_REC, avro, messages, proto, record
from tests.wire.support import World, unique

INVALID_ARGUMENT, NOT_FOUND = StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND
FAIL = admin_pb.InjectCommitFaultRequest.FAIL
NONE = admin_pb.InjectCommitFaultRequest.NONE
WITH_C = record(*A_FIELDS, {"name": "c", "type": "string", "default": ""})
BASIC, FULL = pb.BASIC, pb.FULL


def info_of(refusal: Refusal) -> Any:
    (info,) = refusal.error_infos
    return info


def basic(schema: Any) -> Any:
    shown = pb.Schema()
    shown.CopyFrom(schema)
    shown.ClearField("definition")
    return shown


# --- the resource ----------------------------------------------------------------------------------------


def test_created_schema_is_returned_whole(client: Client):
    name = unique("schema")
    sent = pb.Schema(name="ignored", type=pb.Schema.AVRO, definition=AVRO_REC, revision_id="mine")
    before = time.time()

    made = client.CreateSchema(parent=PARENT, schema_id=name.rpartition("/")[2], schema=sent)

    assert (made.name, made.type, made.definition) == (name, pb.Schema.AVRO, AVRO_REC)
    assert len(made.revision_id) == 8 and set(made.revision_id) <= set("0123456789abcdef")
    assert before - 1 < made.revision_create_time.ToMicroseconds() / 1e6 < time.time() + 1
    assert client.GetSchema(name=name) == made
    assert client.GetSchema(name=f"{name}@{made.revision_id}", view=BASIC) == basic(made)


def test_name_that_is_taken_or_none_is_refused(client: Client):
    made = schemas.create(client)
    with refused(StatusCode.ALREADY_EXISTS, made.name.rpartition("/")[2]):
        client.CreateSchema(parent=PARENT, schema_id=made.name.rpartition("/")[2], schema=avro())
    for schema_id in ("", "ab", "goog-x", "a@b1c2d3e4", "a/b", "_deleted-schema_"):
        with refused(INVALID_ARGUMENT, f"(name={PARENT}/schemas/{schema_id})"):
            client.CreateSchema(parent=PARENT, schema_id=schema_id, schema=avro())
    with refused(INVALID_ARGUMENT, "Invalid resource name given"):
        client.CreateSchema(parent="nowhere", schema_id="abc", schema=avro())


@pytest.mark.parametrize(
    ("schema", "tokens"),
    [
        (pb.Schema(), ["schema.type"]),
        (pb.Schema(type=3, definition=AVRO_REC), ["schema.type"]),
        (avro("nonsense"), ["Invalid schema definition"]),
        (avro("é\n\x00"), ["Invalid schema definition"]),
        (avro('"' + "x" * 307_200 + '"'), ["schema definition size", "307202", "307200"]),
        (avro(record(*A_FIELDS) + " " * 307_200), ["schema definition size"]),
        (proto('syntax = "proto3"; message Rec { string a == 1; }'), ["Invalid schema definition", "1:44"]),
        (proto('syntax = "proto3"; message Rec { Nobody a = 1; }'), ["Nobody"]),
        (proto('import "google/protobuf/timestamp.proto"; message Rec {}'), ["Invalid schema definition"]),
        (proto("message {"), ["Invalid schema definition"]),
        (
            pb.Schema(type=pb.Schema.AVRO, compiled_proto_schema=pb.CompiledProtoSchema(compiled_bytes=b"x")),
            ["compiled_proto_schema"],
        ),
        (
            pb.Schema(
                type=pb.Schema.PROTOCOL_BUFFER,
                definition=PROTO_REC,
                compiled_proto_schema=pb.CompiledProtoSchema(compiled_bytes=b"x"),
            ),
            ["schema.definition"],
        ),
        (
            pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, compiled_proto_schema=pb.CompiledProtoSchema()),
            ["Invalid schema definition"],
        ),
        (
            pb.Schema(
                type=pb.Schema.PROTOCOL_BUFFER,
                compiled_proto_schema=pb.CompiledProtoSchema(root_message="R", compiled_bytes=b"\xff"),
            ),
            ["Invalid schema definition"],
        ),
    ],
)
def test_definition_that_is_none_is_refused_with_the_reason(client: Client, schema: Any, tokens: list[str]):
    with refused(INVALID_ARGUMENT, *tokens):
        client.ValidateSchema(parent=PARENT, schema=schema)
    with refused(INVALID_ARGUMENT, *tokens):
        client.CreateSchema(parent=PARENT, schema_id="never", schema=schema)
    existing = schemas.create(client)
    with refused(INVALID_ARGUMENT, *tokens):
        client.CommitSchema(name=existing.name, schema=schema)


def groups_in_each_other(count: int) -> Any:
    return proto('syntax="proto2";message M{' + "optional group A=1{" * count + "}" * count + "}")


def test_definition_that_lies_in_itself_too_deeply_is_refused(client: Client):
    with refused(INVALID_ARGUMENT, "Invalid schema definition", "recursion"):
        client.ValidateSchema(parent=PARENT, schema=groups_in_each_other(500))


@pytest.mark.slow
def test_definition_that_keeps_the_compiler_busy_is_refused(client: Client):
    with refused(INVALID_ARGUMENT, "Invalid schema definition", "too long"):
        client.ValidateSchema(parent=PARENT, schema=groups_in_each_other(15_000))


def test_other_calls_are_answered_while_definitions_are_compiled(client: Client):
    fields = " ".join(f"string a_field_with_a_long_name_{n} = {n};" for n in range(1, 4000))
    large = proto(f'syntax = "proto3"; message Rec {{ {fields} }} {" " * 100_000}')
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.ValidateSchema, parent=PARENT, schema=large) for _ in range(4)]
        slowest = 0.0
        while not all(call.done() for call in calls):
            began = time.monotonic()
            client.ListSchemas(parent="projects/nobody")
            slowest = max(slowest, time.monotonic() - began)
    assert [call.result() for call in calls] == [pb.ValidateSchemaResponse()] * 4
    assert slowest < 1


def test_names_of_calls_are_checked(client: Client):
    made = schemas.create(client)
    with_revision = f"{made.name}@{made.revision_id}"
    for call in (client.DeleteSchema, client.ListSchemaRevisions):
        for name in (with_revision, "nonsense", ""):
            with refused(INVALID_ARGUMENT, "Invalid resource name given"):
                call(name=name)
    with refused(INVALID_ARGUMENT, "Invalid resource name given"):
        client.CommitSchema(name=with_revision, schema=avro())
    with refused(INVALID_ARGUMENT, "Invalid resource name given"):
        client.RollbackSchema(name=with_revision, revision_id=made.revision_id)
    with refused(INVALID_ARGUMENT, "revision_id"):
        client.RollbackSchema(name=made.name)
    for name in (made.name, f"{made.name}@", f"{with_revision}@{made.revision_id}"):
        with refused(INVALID_ARGUMENT):
            client.DeleteSchemaRevision(name=name, revision_id=made.revision_id)
    with refused(INVALID_ARGUMENT):
        client.GetSchema(name=f"{with_revision}@{made.revision_id}")
    for parent in ("", "projects/", "projects/p/topics/t"):
        with refused(INVALID_ARGUMENT, f"(name={parent})"):
            client.ListSchemas(parent=parent)


def test_what_is_not_there_is_not_found(client: Client):
    nowhere = unique("schema")
    made = schemas.create(client)
    for call, fields in (
        (client.GetSchema, {"name": nowhere}),
        (client.GetSchema, {"name": f"{nowhere}@{made.revision_id}"}),
        (client.GetSchema, {"name": f"{made.name}@deadbeef"}),
        (client.ListSchemaRevisions, {"name": nowhere}),
        (client.CommitSchema, {"name": nowhere, "schema": avro()}),
        (client.RollbackSchema, {"name": nowhere, "revision_id": made.revision_id}),
        (client.DeleteSchemaRevision, {"name": f"{made.name}@deadbeef"}),
        (client.DeleteSchemaRevision, {"name": f"{nowhere}@deadbeef"}),
        (client.DeleteSchema, {"name": nowhere}),
        (client.ValidateMessage, {"parent": PARENT, "name": nowhere, "encoding": pb.JSON}),
        (client.ValidateMessage, {"parent": PARENT, "name": f"{made.name}@deadbeef", "encoding": pb.JSON}),
    ):
        with refused(NOT_FOUND, "Resource not found"):
            call(**fields)
    with refused(NOT_FOUND, "Resource not found", nowhere.rpartition("/")[2]):
        schemas.create_topic(client, nowhere)


def test_schemas_are_listed_by_name_in_their_newest_revision(client: Client):
    parent = f"projects/{unique('topic').rpartition('/')[2]}"
    made = [
        client.CreateSchema(parent=parent, schema_id=schema_id, schema=avro())
        for schema_id in ("bbb", "aaa", "abc")
    ]
    newest = client.CommitSchema(name=made[0].name, schema=avro(WITH_C))
    expected = [made[1], made[2], newest]

    assert list(client.ListSchemas(parent=parent).schemas) == [basic(one) for one in expected]
    assert list(client.ListSchemas(parent=parent, view=FULL).schemas) == expected
    first = client.ListSchemas(parent=parent, page_size=2)
    client.DeleteSchema(name=expected[1].name)
    rest = client.ListSchemas(parent=parent, page_size=2, page_token=first.next_page_token)
    assert [one.name for one in (*first.schemas, *rest.schemas)] == [one.name for one in expected]
    assert rest.next_page_token == ""
    with refused(INVALID_ARGUMENT, "Invalid page token given"):
        client.ListSchemas(parent=PARENT, page_token=first.next_page_token)
    with refused(INVALID_ARGUMENT, "Invalid page token given"):
        client.ListSchemaRevisions(name=newest.name, page_token="nonsense")
    for call, fields in ((client.ListSchemas, {"parent": parent}), (client.ListSchemaRevisions, made[0])):
        fields = fields if isinstance(fields, dict) else {"name": fields.name}
        for page_size in (-1, 1001):
            with refused(INVALID_ARGUMENT, "page_size"):
                call(**fields, page_size=page_size)
        with refused(INVALID_ARGUMENT, "view"):
            call(**fields, view=7)


# --- revisions -------------------------------------------------------------------------------------------


def test_revisions_are_listed_newest_first(client: Client):
    first = schemas.create(client)
    second = client.CommitSchema(name=first.name, schema=avro(WITH_C))
    third = client.CommitSchema(name=first.name, schema=pb.Schema(name=first.name, type=2, definition=WITH_C))

    assert len({first.revision_id, second.revision_id, third.revision_id}) == 3
    listed = client.ListSchemaRevisions(name=first.name)
    assert list(listed.schemas) == [basic(one) for one in (third, second, first)]
    page = client.ListSchemaRevisions(name=first.name, page_size=2, view=FULL)
    assert list(page.schemas) == [third, second]
    last = client.ListSchemaRevisions(name=first.name, view=FULL, page_token=page.next_page_token)
    assert (list(last.schemas), last.next_page_token) == ([first], "")
    assert client.GetSchema(name=first.name) == third
    assert client.GetSchema(name=f"{first.name}@{first.revision_id}") == first


def test_revision_of_another_type_or_name_is_refused(client: Client):
    made = schemas.create(client)
    with refused(INVALID_ARGUMENT, "type"):
        client.CommitSchema(name=made.name, schema=proto())
    with refused(INVALID_ARGUMENT, "schema.name"):
        client.CommitSchema(
            name=made.name, schema=pb.Schema(name=unique("schema"), type=2, definition=WITH_C)
        )


def test_revision_that_does_not_go_with_another_is_refused_with_the_reason(client: Client):
    made = schemas.create(client)
    words = ["Revision is incompatible with previous revision", made.revision_id, "the field c"]
    with refused(INVALID_ARGUMENT, *words):
        client.CommitSchema(name=made.name, schema=avro(record(*A_FIELDS, {"name": "c", "type": "int"})))


def test_rollback_makes_a_new_revision_of_an_old_definition(client: Client):
    first = schemas.create(client)
    client.CommitSchema(name=first.name, schema=avro(WITH_C))

    made = client.RollbackSchema(name=first.name, revision_id=first.revision_id)

    assert made.definition == first.definition and made.revision_id != first.revision_id
    assert client.GetSchema(name=first.name) == made
    assert len(client.ListSchemaRevisions(name=first.name).schemas) == 3


def test_deleted_revision_is_returned_and_gone(client: Client):
    first = schemas.create(client)
    second = client.CommitSchema(name=first.name, schema=avro(WITH_C))

    assert client.DeleteSchemaRevision(name=f"{first.name}@{second.revision_id}") == second

    assert client.GetSchema(name=first.name) == first
    with refused(NOT_FOUND):
        client.GetSchema(name=f"{first.name}@{second.revision_id}")


def test_schema_that_was_compiled_is_kept_as_it_was_sent(client: Client):
    file = FileDescriptorProto(name="rec.proto", package="p", syntax="proto3")
    rec = file.message_type.add(name="Rec")
    rec.field.add(name="a", number=1, type=9, label=1)
    other = FileDescriptorProto(name="other.proto", dependency=["rec.proto"], package="q", syntax="proto3")
    holder = other.message_type.add(name="Holder")
    holder.field.add(name="rec", number=1, type=11, type_name=".p.Rec", label=1)
    sent = pb.CompiledProtoSchema(
        root_message="q.Holder", compiled_bytes=FileDescriptorSet(file=[other, file]).SerializeToString()
    )
    made = schemas.create(client, pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, compiled_proto_schema=sent))

    assert client.GetSchema(name=made.name).compiled_proto_schema == sent
    shown = client.GetSchema(name=made.name, view=BASIC)
    assert not shown.HasField("compiled_proto_schema") and shown.revision_id == made.revision_id
    valid = dict(parent=PARENT, name=made.name)
    client.ValidateMessage(**valid, message=b'{"rec":{"a":"x"}}', encoding=pb.JSON)
    client.ValidateMessage(**valid, message=b"\x0a\x03\x0a\x01x", encoding=pb.BINARY)
    with refused(INVALID_ARGUMENT):
        client.ValidateMessage(**valid, message=b'{"rec":{"b":"x"}}', encoding=pb.JSON)


# --- messages --------------------------------------------------------------------------------------------


def test_message_is_held_against_what_is_named(client: Client):
    first = schemas.create(client)
    client.CommitSchema(name=first.name, schema=avro(WITH_C))
    fields = dict(parent=PARENT, encoding=pb.JSON)

    client.ValidateMessage(**fields, name=first.name, message=GOOD_JSON)
    client.ValidateMessage(**fields, name=f"{first.name}@{first.revision_id}", message=GOOD_JSON)
    newest = client.GetSchema(name=first.name).revision_id
    with refused(INVALID_ARGUMENT, "Field was not found in JSON object: c"):
        client.ValidateMessage(**fields, name=f"{first.name}@{newest}", message=GOOD_JSON)
    with refused(INVALID_ARGUMENT, "schema_spec"):
        client.ValidateMessage(**fields, message=GOOD_JSON)
    with refused(INVALID_ARGUMENT, "Invalid schema definition"):
        client.ValidateMessage(**fields, schema=avro("nonsense"), message=GOOD_JSON)
    with refused(INVALID_ARGUMENT, "encoding"):
        client.ValidateMessage(parent=PARENT, schema=avro(), message=GOOD_JSON)


@pytest.mark.parametrize(
    ("schema", "encoding", "reason"),
    [
        (avro(), pb.JSON, "INVALID_JSON_AVRO_MESSAGE"),
        (avro(), pb.BINARY, "INVALID_BINARY_AVRO_MESSAGE"),
        (proto(), pb.JSON, "INVALID_JSON_PROTO_MESSAGE"),
        (proto(), pb.BINARY, "INVALID_BINARY_PROTO_MESSAGE"),
    ],
)
def test_refused_message_tells_programs_why(client: Client, schema: Any, encoding: int, reason: str):
    made = schemas.create(client, schema)
    topic = schemas.create_topic(client, made.name, encoding)
    with refused(INVALID_ARGUMENT, "Invalid data in message: Message failed schema validation") as refusal:
        client.Publish(topic=topic, messages=messages(b"\xff\xff"))

    info = info_of(refusal)
    assert (info.reason, info.domain) == (reason, "pubsub.googleapis.com")
    assert info.metadata["message"] == "Message failed schema validation"
    assert made.name in info.metadata["revisionInfo"]
    assert f"revision_id={made.revision_id}" in info.metadata["revisionInfo"]
    with refused(INVALID_ARGUMENT) as refusal:
        client.ValidateMessage(parent=PARENT, schema=schema, encoding=encoding, message=b"\xff\xff")
    assert info_of(refusal).reason == reason


def test_attributes_of_the_schema_are_put_on_every_message(client: Client):
    made = schemas.create(client, proto())
    topic = schemas.create_topic(client, made.name, pb.BINARY)
    subscription = client.CreateSubscription(name=unique("subscription"), topic=topic).name
    many = {f"k{n}": "v" for n in range(99)} | {"googclient_schemaname": "mine"}
    client.Publish(topic=topic, messages=[*messages(b"", **many), *messages(b"\x0a\x01x", a="b")])

    got = client.Pull(subscription=subscription, max_messages=10).received_messages
    for one in got:
        attributes = dict(one.message.attributes)
        assert attributes["googclient_schemaencoding"] == "BINARY"
        assert attributes["googclient_schemaname"] == made.name
        assert attributes["googclient_schemarevisionid"] == made.revision_id
    assert sorted(len(one.message.attributes) for one in got) == [4, 102]


def test_schema_settings_are_checked_at_creation(client: Client):
    made = schemas.create(client)
    for bad in (
        {"schema": ""},
        {"schema": made.name},
        {"schema": made.name, "encoding": 3},
        {"schema": f"{made.name}@{made.revision_id}", "encoding": pb.JSON},
        {"schema": "_deleted-schema_", "encoding": pb.JSON},
    ):
        with refused(INVALID_ARGUMENT):
            client.CreateTopic(name=unique("topic"), schema_settings=bad)
    with refused(NOT_FOUND):
        schemas.create_topic(client, made.name, first_revision_id="deadbeef")
    second = client.CommitSchema(name=made.name, schema=avro(WITH_C))
    with refused(INVALID_ARGUMENT, "first_revision_id"):
        schemas.create_topic(
            client, made.name, first_revision_id=second.revision_id, last_revision_id=made.revision_id
        )


def test_schema_of_a_topic_is_changed_and_taken_away(client: Client):
    made = schemas.create(client)
    topic = client.CreateTopic(name=unique("topic")).name

    def update(*paths: str, **settings: Any) -> Any:
        whole = pb.Topic(name=topic, schema_settings=settings or None)
        return client.UpdateTopic(topic=whole, update_mask=pb.FieldMask(paths=paths)).schema_settings

    client.Publish(topic=topic, messages=messages(b"anything"))
    assert update("schema_settings", schema=made.name, encoding=pb.JSON).schema == made.name
    with refused(INVALID_ARGUMENT):
        client.Publish(topic=topic, messages=messages(b"anything"))
    assert update("schema_settings.encoding", encoding=pb.BINARY).schema == made.name
    client.Publish(topic=topic, messages=messages(b"\x02\x78\x00"))
    with refused(NOT_FOUND):
        update("schema_settings.last_revision_id", last_revision_id="deadbeef")
    with refused(NOT_FOUND):
        update("schema_settings.schema", schema=unique("schema"))
    update("schema_settings")
    client.Publish(topic=topic, messages=messages(b"anything"))
    assert not client.GetTopic(topic=topic).HasField("schema_settings")


def test_topic_and_schema_may_be_of_different_projects(client: Client):
    made = client.CreateSchema(
        parent="projects/elsewhere", schema_id=unique("schema").rpartition("/")[2], schema=avro()
    )
    topic = schemas.create_topic(client, made.name)
    assert client.Publish(topic=topic, messages=messages(GOOD_JSON)).message_ids


def test_two_topics_with_schemas_of_the_same_names_do_not_mix(client: Client):
    topics = []
    for type_ in ("string", "int32"):
        made = schemas.create(client, proto(f'syntax = "proto3"; message Same {{ {type_} a = 1; }}'))
        topics.append(schemas.create_topic(client, made.name, pb.BINARY))
    for topic, good, bad in ((topics[0], b"\x0a\x01x", b"\x08\x01"), (topics[1], b"\x08\x01", b"\x0a\x01x")):
        client.Publish(topic=topic, messages=messages(good))
        with refused(INVALID_ARGUMENT):
            client.Publish(topic=topic, messages=messages(bad))


def test_data_that_is_nested_or_long_without_end_does_no_harm(client: Client):
    nulls = {"type": "array", "items": "null"}
    definition = record({"name": "next", "type": ["null", "Rec"]}, {"name": "nulls", "type": nulls})
    topic = schemas.create_topic(client, schemas.create(client, avro(definition)).name, pb.BINARY)
    for data in (b"\x02" * 9_000_000, b"\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        with refused(INVALID_ARGUMENT):
            client.Publish(topic=topic, messages=messages(data))
    client.Publish(topic=topic, messages=messages(b"\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"))


def test_large_request_is_checked_beside_others(client: Client):
    topic = schemas.create_topic(client, schemas.create(client, avro('{"type":"array","items":"int"}')).name)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.Publish, topic=topic, messages=messages(b"[" + b"1," * 2_000_000 + b"1]"))
        slowest = 0.0
        while not call.done():
            began = time.monotonic()
            client.ListSchemas(parent="projects/nobody")
            slowest = max(slowest, time.monotonic() - began)
    assert len(call.result().message_ids) == 1
    assert slowest < 1
    with refused(INVALID_ARGUMENT, "Message failed schema validation"):
        client.Publish(topic=topic, messages=messages(b"[" + b"1," * 500_000 + b"]"))


# --- what lasts ------------------------------------------------------------------------------------------


async def _made(world: World) -> tuple[Any, Any, str]:
    name = unique("schema")
    first = await world.client.CreateSchema(parent=PARENT, schema_id=name.rpartition("/")[2], schema=proto())
    second = await world.client.CommitSchema(
        name=name, schema=proto('syntax = "proto3"; message Rec { string a = 1; }')
    )
    settings = pb.SchemaSettings(schema=name, encoding=pb.JSON, last_revision_id=first.revision_id)
    topic = (await world.client.CreateTopic(name=unique("topic"), schema_settings=settings)).name
    return first, second, topic


@case
async def test_schemas_survive_a_kill(world: World):
    async with world.own_server() as own:
        first, second, topic = await _made(own)
        await own.restart_server()

        listed = await own.client.ListSchemaRevisions(name=first.name, view=FULL)
        assert list(listed.schemas) == [second, first]
        await own.client.Publish(topic=topic, messages=messages(b'{"b":1}'))
        with refused(INVALID_ARGUMENT, f"revision_id={first.revision_id}"):
            await own.client.Publish(topic=topic, messages=messages(b'{"c":1}'))
        await own.client.DeleteSchema(name=first.name)
        await own.restart_server()

        with refused(NOT_FOUND):
            await own.client.GetSchema(name=first.name)
        assert (await own.client.GetTopic(topic=topic)).schema_settings.schema == "_deleted-schema_"
        with refused(NOT_FOUND, "_deleted-schema_"):
            await own.client.Publish(topic=topic, messages=messages(b"{}"))


@case
async def test_schemas_that_could_not_be_written_are_as_they_were(world: World):
    async with world.own_server() as own:
        first, second, topic = await _made(own)
        client = own.client
        await own.inject_fault(FAIL)
        for call in (
            client.CreateSchema(parent=PARENT, schema_id="another", schema=avro()),
            client.CommitSchema(name=first.name, schema=proto()),
            client.RollbackSchema(name=first.name, revision_id=first.revision_id),
            client.DeleteSchemaRevision(name=f"{first.name}@{first.revision_id}"),
            client.DeleteSchema(name=first.name),
        ):
            with refused(StatusCode.UNAVAILABLE):
                await call
        await own.inject_fault(NONE)

        listed = await client.ListSchemas(parent=PARENT, view=FULL)
        assert list(listed.schemas) == [second]
        listed = await client.ListSchemaRevisions(name=first.name, view=FULL)
        assert list(listed.schemas) == [second, first]
        assert (await client.GetTopic(topic=topic)).schema_settings.schema == first.name
        await client.Publish(topic=topic, messages=messages(b'{"b":1}'))
