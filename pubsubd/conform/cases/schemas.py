"""CM: schemas, and the messages of topics that have one."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import about, refused
from pubsubd.conform.case import Differs, Hook, case, check
from pubsubd.conform.cases.shared import in_a_row
from pubsubd.conform.lab import Lab, Sub, count_of
from pubsubd.wire import pb

INVALID_ARGUMENT, NOT_FOUND = StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND
BASIC, FULL = pb.BASIC, pb.FULL
REVISIONS_MAX = 20


def record(*fields: tuple[str, Any] | tuple[str, Any, Any]) -> pb.Schema:
    """An Avro record `Rec`; a field is its name and type, and its default if it has one."""
    declared = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return avro({"type": "record", "name": "Rec", "fields": declared})


def avro(definition: Any) -> pb.Schema:
    return pb.Schema(type=pb.Schema.AVRO, definition=json.dumps(definition))


def proto(*fields: str) -> pb.Schema:
    text = f'syntax = "proto3"; message Rec {{ {" ".join(fields)} }}'
    return pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, definition=text)


AVRO_FIELDS = (("a", "string"), ("b", ["null", "int"], None))
AVRO = record(*AVRO_FIELDS)
WITH_C = record(*AVRO_FIELDS, ("c", "string", ""))
PROTO = proto("string a = 1;", "int32 b = 2;")
GOOD, BAD = b'{"a":"x","b":null}', b'{"a":"x"}'
GOOD_WITH_C = b'{"a":"x","b":null,"c":""}'


async def create(lab: Lab, schema: pb.Schema = AVRO) -> Any:
    name = lab.name("schema")
    parent, _, schema_id = name.rpartition("/schemas/")
    return await lab.client.CreateSchema(parent=parent, schema_id=schema_id, schema=schema)


async def subscription_to(lab: Lab, schema: Any, encoding: int = pb.JSON, **range_: str) -> Sub:
    """A topic whose messages have this schema, and its subscription."""
    settings = pb.SchemaSettings(schema=schema.name, encoding=encoding, **range_)
    return await lab.subscription(topic=await lab.topic(schema_settings=settings))


async def publish(sub: Sub, *datas: bytes, **attributes: str) -> None:
    messages = [pb.PubsubMessage(data=data, attributes=attributes) for data in datas]
    await sub.lab.client.Publish(topic=sub.topic, messages=messages)


async def check_messages(
    lab: Lab, schema: pb.Schema, encoding: int, good: list[bytes], bad: list[bytes]
) -> str:
    """Each is held against the schema in a call of its own; nothing is stored."""
    parent = f"projects/{lab.setting.project}"

    async def validate(data: bytes) -> None:
        await lab.client.ValidateMessage(parent=parent, schema=schema, message=data, encoding=encoding)

    for data in good:
        try:
            await validate(data)
        except grpc.RpcError as error:
            check(error.code() != INVALID_ARGUMENT, f"{data!r} was refused: {error.details()}")
            raise
    for data in bad:
        with about(f"{data!r}"), refused(INVALID_ARGUMENT):
            await validate(data)
    return f"{count_of(good, 'message')} accepted, {len(bad)} refused so."


# --- the resource ----------------------------------------------------------------------------------------


@case("CM-01", promise="A created schema is returned whole, with a revision id of eight digits.", seconds=1)
async def created_schema_is_returned(lab: Lab) -> str:
    made = await create(lab)
    check(made.definition == AVRO.definition, "The definition is not the one that was sent.")
    check(made.type == AVRO.type, f"The type is {made.type}.")
    is_id = re.fullmatch("[0-9a-f]{8}", made.revision_id)
    check(is_id, f"The revision id is {made.revision_id!r}, not eight hexadecimal digits.")
    check(made.HasField("revision_create_time"), "It has no revision_create_time.")
    return f"Its revision is {made.revision_id}."


@case(
    "CM-02", promise="GetSchema shows everything by default, and no definition in the view BASIC.", seconds=1
)
async def views_show_what_they_say(lab: Lab) -> str:
    made = await create(lab)

    check(await lab.client.GetSchema(name=made.name) == made, "GetSchema shows another schema than was made.")
    basic = await lab.client.GetSchema(name=f"{made.name}@{made.revision_id}", view=BASIC)
    check(basic.revision_id == made.revision_id, "The revision that was asked for is not the one shown.")
    check(not basic.definition, "The view BASIC shows the definition.")
    return "So it does, for the name with the revision, too."


@case("CM-03", promise="A schema whose name is taken or none is not created.", seconds=1)
async def names_of_schemas_are_checked(lab: Lab) -> str:
    made = await create(lab)
    parent, _, schema_id = made.name.rpartition("/schemas/")

    with refused(StatusCode.ALREADY_EXISTS):
        await lab.client.CreateSchema(parent=parent, schema_id=schema_id, schema=AVRO)
    for other in ("", "goog-x", "a b"):
        with about(f"The id {other!r}"), refused(INVALID_ARGUMENT):
            await lab.client.CreateSchema(parent=parent, schema_id=other, schema=AVRO)
    return "Refused with ALREADY_EXISTS and INVALID_ARGUMENT."


@case("CM-04", promise="What is no definition is refused with INVALID_ARGUMENT, and not stored.", seconds=2)
async def definitions_are_checked(lab: Lab) -> str:
    name = lab.name("schema")
    parent, _, schema_id = name.rpartition("/schemas/")
    bad = {
        "A brace": pb.Schema(type=pb.Schema.AVRO, definition="{"),
        "An empty definition": pb.Schema(type=pb.Schema.AVRO),
        "A definition without a type": pb.Schema(definition=AVRO.definition),
        "An unknown type": record(("a", "nothing")),
    }
    for what, schema in bad.items():
        with about(what), refused(INVALID_ARGUMENT):
            await lab.client.CreateSchema(parent=parent, schema_id=schema_id, schema=schema)
        with about(f"{what} in ValidateSchema"), refused(INVALID_ARGUMENT):
            await lab.client.ValidateSchema(parent=parent, schema=schema)
    await lab.client.ValidateSchema(parent=parent, schema=AVRO)
    with about("GetSchema after all that"), refused(NOT_FOUND):
        await lab.client.GetSchema(name=name)
    return f"{len(bad)} of them were, and nothing was stored."


@case("CM-05", promise="What a call on a schema names and does not exist is NOT_FOUND.", seconds=1)
async def what_is_not_there_is_not_found(lab: Lab) -> str:
    made, nowhere = await create(lab), lab.name("schema")
    client = lab.client
    await client.CommitSchema(name=made.name, schema=WITH_C)
    for what, call in {
        "GetSchema": client.GetSchema(name=nowhere),
        "GetSchema of a revision": client.GetSchema(name=f"{made.name}@deadbeef"),
        "ListSchemaRevisions": client.ListSchemaRevisions(name=nowhere),
        "CommitSchema": client.CommitSchema(name=nowhere, schema=AVRO),
        "RollbackSchema": client.RollbackSchema(name=made.name, revision_id="deadbeef"),
        "DeleteSchemaRevision": client.DeleteSchemaRevision(name=f"{made.name}@deadbeef"),
        "DeleteSchema": client.DeleteSchema(name=nowhere),
    }.items():
        with about(what), refused(NOT_FOUND):
            await call
    return "Seven calls were answered so."


@case("CM-06", promise="ListSchemas shows the newest revision of each schema, sorted by name.", seconds=1)
async def schemas_are_listed(lab: Lab) -> str:
    made = [await create(lab), await create(lab)]
    newest = await lab.client.CommitSchema(name=made[0].name, schema=WITH_C)
    shown: list[Any] = []
    token = ""
    while True:
        page = await lab.client.ListSchemas(
            parent=made[0].name.rpartition("/schemas/")[0], view=FULL, page_size=1000, page_token=token
        )
        shown += page.schemas
        if not (token := page.next_page_token):
            break
    names = [schema.name for schema in shown]
    check(names == sorted(names), "The names are not in order.")
    ours = {schema.name: schema for schema in shown if schema.name in (made[0].name, made[1].name)}
    check(ours == {made[0].name: newest, made[1].name: made[1]}, "Not the newest revisions are shown.")
    return f"{count_of(shown, 'schema')} in order, each once."


# --- messages --------------------------------------------------------------------------------------------


@case("CM-07", promise="JSON data is held against an Avro record as Avro's JSON encoding says.", seconds=2)
async def avro_json(lab: Lab) -> str:
    good = [GOOD, b'{"a":"x","b":{"int":3}}', b'{"a":"x","b":null,"z":1}', b'{"b":null,"a":"x"}']
    bad = [b'{"a":"x","b":3}', BAD, b'{"b":null}', b'{"a":1,"b":null}', b"junk", b"", GOOD + b" {}"]
    return await check_messages(lab, AVRO, pb.JSON, good, bad)


@case("CM-08", promise="Binary data is exactly one datum of an Avro record.", seconds=2)
async def avro_binary(lab: Lab) -> str:
    good = [bytes.fromhex("027800"), bytes.fromhex("02780206")]
    bad = [bytes.fromhex(data) for data in ("02780000", "02", "027804", "")]
    return await check_messages(lab, AVRO, pb.BINARY, good, bad)


@case("CM-09", promise="Values fit their Avro types: numbers in range, symbols, bytes below 256.", seconds=3)
async def avro_types(lab: Lab) -> str:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    for type_, good, bad in (
        (enum, '"A"', ['"C"']),
        ("bytes", r'"\u00ff"', [r'"\u0100"']),
        ("int", "3", ["3000000000", "1.5", '"3"', "true"]),
        ("double", "1", ['"1"']),
    ):
        datas = [b'{"x":%b}' % value.encode() for value in (good, *bad)]
        await check_messages(lab, record(("x", type_)), pb.JSON, datas[:1], datas[1:])
    await check_messages(lab, avro("string"), pb.JSON, [b'"hi"'], [b"hi"])
    return "Enum, bytes, int, double and a bare string were judged so."


@case("CM-10", promise="Binary data of a Protocol Buffer schema has only fields that it knows.", seconds=2)
async def proto_binary(lab: Lab) -> str:
    good = [bytes.fromhex("0a01781003"), b""]
    bad = [bytes.fromhex("0a01781801"), b"\xff"]
    return await check_messages(lab, PROTO, pb.BINARY, good, bad)


@case("CM-11", promise="JSON data of a Protocol Buffer schema has only fields that it knows.", seconds=2)
async def proto_json(lab: Lab) -> str:
    good, bad = [b'{"a":"x","b":3}', b"{}"], [b'{"a":"x","zz":1}', b'{"a":1}', b"junk", b""]
    return await check_messages(lab, PROTO, pb.JSON, good, bad)


@case("CM-12", promise="ValidateMessage needs a schema and an encoding, and knows stored schemas.", seconds=1)
async def validate_message_names_a_schema(lab: Lab) -> str:
    made = await create(lab)
    parent = f"projects/{lab.setting.project}"
    validate = lab.client.ValidateMessage

    await validate(parent=parent, name=made.name, message=GOOD, encoding=pb.JSON)
    revision = f"{made.name}@{made.revision_id}"
    await validate(parent=parent, name=revision, message=GOOD, encoding=pb.JSON)
    with about("A message that does not fit"), refused(INVALID_ARGUMENT):
        await validate(parent=parent, name=made.name, message=BAD, encoding=pb.JSON)
    with about("A call without a schema"), refused(INVALID_ARGUMENT):
        await validate(parent=parent, message=GOOD, encoding=pb.JSON)
    with about("A call without an encoding"), refused(INVALID_ARGUMENT):
        await validate(parent=parent, name=made.name, message=GOOD)
    with about("A schema that does not exist"), refused(NOT_FOUND):
        await validate(parent=parent, name=lab.name("schema"), message=GOOD, encoding=pb.JSON)
    return "Accepted by name and by revision; four others were refused."


# --- revisions -------------------------------------------------------------------------------------------


@case(
    "CM-13",
    promise="A compatible Avro definition becomes a new revision, which is then the newest.",
    seconds=1,
)
async def compatible_revision_is_taken(lab: Lab) -> str:
    made = await create(lab)

    second = await lab.client.CommitSchema(name=made.name, schema=WITH_C)

    check(second.revision_id != made.revision_id, "The new revision has the id of the old one.")
    check(await lab.client.GetSchema(name=made.name) == second, "GetSchema does not show the new revision.")
    old = await lab.client.GetSchema(name=f"{made.name}@{made.revision_id}")
    check(old == made, "The old revision is not what it was.")
    return f"{made.revision_id} was followed by {second.revision_id}."


@case(
    "CM-14", promise="An Avro definition that cannot read or be read by an earlier one is refused.", seconds=1
)
async def incompatible_avro_is_refused(lab: Lab) -> str:
    made = await create(lab)

    for what, schema in {
        "A new field without default": record(*AVRO_FIELDS, ("c", "string")),
        "A removed field without default": record(AVRO_FIELDS[1]),
        "Another type": avro("int"),
        "A Protocol Buffer": PROTO,
    }.items():
        with about(what), refused(INVALID_ARGUMENT):
            await lab.client.CommitSchema(name=made.name, schema=schema)
    check(await lab.client.GetSchema(name=made.name) == made, "The schema has changed.")
    return "Four were refused so, and the schema is what it was."


@case(
    "CM-15",
    promise="The number of a Protocol Buffer field keeps its type, also after its removal.",
    seconds=2,
)
async def incompatible_proto_is_refused(lab: Lab) -> str:
    made = await create(lab, PROTO)

    with about("Another type"), refused(INVALID_ARGUMENT):
        await lab.client.CommitSchema(name=made.name, schema=proto("string a = 1;", "string b = 2;"))
    await lab.client.CommitSchema(name=made.name, schema=proto("string a = 1;"))
    with about("Another type after the removal"), refused(INVALID_ARGUMENT):
        await lab.client.CommitSchema(name=made.name, schema=proto("string a = 1;", "string c = 2;"))
    return "Refused both times; the removal was accepted."


@case("CM-16", promise="A schema has at most 20 revisions.", seconds=2)
async def revisions_are_limited(lab: Lab) -> str:
    made = await create(lab)
    for _ in range(REVISIONS_MAX - 1):
        await lab.client.CommitSchema(name=made.name, schema=AVRO)

    # Judged here, since this code may also stand for a quota.
    try:
        await lab.client.CommitSchema(name=made.name, schema=AVRO)
    except grpc.RpcError as error:
        code = error.code()
        check(code == StatusCode.RESOURCE_EXHAUSTED, f"The 21st was refused with {code.name}.")
    else:
        check(False, "The 21st was accepted.")
    return "The 21st was refused with RESOURCE_EXHAUSTED."


@case("CM-17", promise="Revisions are listed page by page, and should be newest first.", seconds=1)
async def revisions_are_listed(lab: Lab) -> str:
    made = [await create(lab)]
    name = made[0].name
    made += [await lab.client.CommitSchema(name=name, schema=schema) for schema in (WITH_C, WITH_C)]

    first = await lab.client.ListSchemaRevisions(name=name, page_size=2, view=FULL)
    rest = await lab.client.ListSchemaRevisions(name=name, page_token=first.next_page_token, view=FULL)
    shown = [*first.schemas, *rest.schemas]
    check(len(first.schemas) <= 2, f"A page of two has {len(first.schemas)}.")
    if shown == made:
        raise Differs("They are listed oldest first.")
    check(shown == made[::-1], f"Listed were {in_a_row(schema.revision_id for schema in shown)}.")
    return "Three, newest first."


@case("CM-18", promise="RollbackSchema makes a new revision of an old definition.", seconds=1)
async def rollback_makes_a_revision(lab: Lab) -> str:
    made = await create(lab)
    await lab.client.CommitSchema(name=made.name, schema=WITH_C)

    back = await lab.client.RollbackSchema(name=made.name, revision_id=made.revision_id)

    check(back.definition == made.definition, "Its definition is another one.")
    check(back.revision_id != made.revision_id, "It has the id of the old revision.")
    check(await lab.client.GetSchema(name=made.name) == back, "It is not the newest revision.")
    with about("A rollback without an id"), refused(INVALID_ARGUMENT):
        await lab.client.RollbackSchema(name=made.name)
    return f"{made.revision_id} came back as {back.revision_id}."


@case("CM-19", promise="A revision can be deleted, but the only one cannot.", seconds=1)
async def revisions_are_deleted(lab: Lab) -> str:
    made = await create(lab)
    second = await lab.client.CommitSchema(name=made.name, schema=WITH_C)

    await lab.client.DeleteSchemaRevision(name=f"{made.name}@{second.revision_id}")

    check(await lab.client.GetSchema(name=made.name) == made, "The older revision is not the newest now.")
    with about("The only revision"), refused(INVALID_ARGUMENT):
        await lab.client.DeleteSchemaRevision(name=f"{made.name}@{made.revision_id}")
    with about("A name without revision"), refused(INVALID_ARGUMENT):
        await lab.client.DeleteSchemaRevision(name=made.name)
    return "The newest one of two was, the other one was refused."


# --- topics ----------------------------------------------------------------------------------------------


@case("CM-20", promise="Messages of a topic with a schema carry its name, encoding and revision.", seconds=2)
async def attributes_are_added(lab: Lab) -> str:
    made = await create(lab)
    sub = await subscription_to(lab, made)

    await publish(sub, GOOD, origin="conform")

    (got,) = await sub.pull()
    expected = {
        "origin": "conform",
        "googclient_schemaencoding": "JSON",
        "googclient_schemaname": made.name,
        "googclient_schemarevisionid": made.revision_id,
    }
    seen = dict(got.message.attributes)
    check(seen == expected, f"The attributes are {seen}.")
    return "All three stand beside what the publisher sent."


@case(
    "CM-21",
    promise="A message that does not fit refuses its request, and nothing of it is stored.",
    seconds=3,
)
async def one_bad_message_refuses_all(lab: Lab) -> str:
    sub = await subscription_to(lab, await create(lab))

    with refused(INVALID_ARGUMENT):
        await publish(sub, GOOD, BAD)
    with about("A message of attributes only"), refused(INVALID_ARGUMENT):
        await publish(sub, b"", a="b")
    await sub.nothing_for(2)
    return "Nothing arrived within 2 s."


@case("CM-22", promise="The refusal of a message tells programs why, by an ErrorInfo.", seconds=1)
async def refusal_has_an_error_info(lab: Lab) -> str:
    made = await create(lab)
    sub = await subscription_to(lab, made)

    with refused(INVALID_ARGUMENT) as refusal:
        await publish(sub, BAD)

    check(len(refusal.error_infos) == 1, f"It has {count_of(refusal.error_infos, 'ErrorInfo')}.")
    (info,) = refusal.error_infos
    named = (info.reason, info.domain)
    expected = ("INVALID_JSON_AVRO_MESSAGE", "pubsub.googleapis.com")
    check(named == expected, f"The ErrorInfo has reason {named[0]!r} and domain {named[1]!r}.")
    said = info.metadata.get("revisionInfo", "")
    check(made.revision_id in said, f"Its revisionInfo does not name the revision: {said!r}.")
    return f"revisionInfo: {said}"


@case("CM-23", promise="A message is accepted by the newest revision that it fits.", seconds=2)
async def revisions_are_tried(lab: Lab) -> str:
    first = await create(lab)
    second = await lab.client.CommitSchema(name=first.name, schema=WITH_C)
    sub = await subscription_to(lab, first)

    await publish(sub, GOOD, GOOD_WITH_C)

    got = {one.data: one.message.attributes["googclient_schemarevisionid"] for one in await sub.pull(2)}
    expected = {GOOD: first.revision_id, GOOD_WITH_C: second.revision_id}
    check(got == expected, f"Accepted by {in_a_row(got.values())}.")
    return "One by the older revision, one by the newer."


@case("CM-24", promise="Only the revisions between a topic's bounds accept its messages.", seconds=2)
async def bounds_leave_revisions_out(lab: Lab) -> str:
    first = await create(lab)
    second = await lab.client.CommitSchema(name=first.name, schema=WITH_C)
    newer = await subscription_to(lab, first, first_revision_id=second.revision_id)
    older = await subscription_to(lab, first, last_revision_id=first.revision_id)

    await publish(newer, GOOD_WITH_C)
    await publish(older, GOOD)
    with refused(INVALID_ARGUMENT):
        await publish(newer, GOOD)
    (got,) = await older.pull()
    check(
        got.message.attributes["googclient_schemarevisionid"] == first.revision_id,
        "A message was accepted by a revision that the bounds leave out.",
    )
    return "A message of the older revision was refused where that one is left out."


@case("CM-25", promise="Schema settings that name what is not there are refused.", seconds=1)
async def settings_are_checked(lab: Lab) -> str:
    made = await create(lab)

    async def attach(**settings: Any) -> None:
        await lab.topic(schema_settings=pb.SchemaSettings(**settings))

    with about("A schema that does not exist"), refused(NOT_FOUND):
        await attach(schema=lab.name("schema"), encoding=pb.JSON)
    with about("A revision that does not exist"), refused(NOT_FOUND):
        await attach(schema=made.name, encoding=pb.JSON, first_revision_id="deadbeef")
    with about("No encoding"), refused(INVALID_ARGUMENT):
        await attach(schema=made.name)
    with about("No schema"), refused(INVALID_ARGUMENT):
        await attach(encoding=pb.JSON)
    return "Four were refused so."


@case(
    "CM-26",
    promise="A deleted schema is shown as `_deleted-schema_`, and refuses what is published.",
    seconds=2,
)
async def deleted_schema_stays_deleted(lab: Lab) -> str:
    made = await create(lab)
    sub = await subscription_to(lab, made)
    await publish(sub, GOOD)

    await lab.client.DeleteSchema(name=made.name)
    parent, _, schema_id = made.name.rpartition("/schemas/")
    await lab.client.CreateSchema(parent=parent, schema_id=schema_id, schema=AVRO)

    shown = (await lab.client.GetTopic(topic=sub.topic)).schema_settings.schema
    check(shown == "_deleted-schema_", f"The topic shows {shown!r}.")
    with about("Publish after that"), refused(NOT_FOUND):
        await publish(sub, GOOD)
    (got,) = await sub.pull()
    check(got.data == GOOD, "What was published before is not what it was.")
    return "Also after another schema was created under the name; earlier messages arrive."


@case("CM-27", promise="An update gives a topic a schema, changes its encoding and takes it away.", seconds=2)
async def schema_of_a_topic_is_updated(lab: Lab) -> str:
    made = await create(lab)
    sub = await lab.subscription()

    async def update(path: str, **settings: Any) -> None:
        topic = pb.Topic(name=sub.topic, schema_settings=settings or None)
        await lab.client.UpdateTopic(topic=topic, update_mask=pb.FieldMask(paths=[path]))

    await publish(sub, b"anything")
    await update("schema_settings", schema=made.name, encoding=pb.JSON)
    with about("Other data once there is a schema"), refused(INVALID_ARGUMENT):
        await publish(sub, b"anything")
    await update("schema_settings.encoding", encoding=pb.BINARY)
    await publish(sub, bytes.fromhex("027800"))
    await update("schema_settings")
    await publish(sub, b"anything")
    return "Data was judged accordingly each time."


@case(
    "CM-28", promise="Schemas and their revisions are there after the server is killed.", needs=[Hook.RESTART]
)
async def schemas_survive_a_kill(lab: Lab) -> str:
    async with lab.own_server() as own:
        made = [await create(own, PROTO)]
        name = made[0].name
        made.append(await own.client.CommitSchema(name=name, schema=proto("string a = 1;")))
        sub = await subscription_to(own, made[0])
        await own.restart()

        listed = (await own.client.ListSchemaRevisions(name=name, view=FULL)).schemas
        check(sorted(map(str, listed)) == sorted(map(str, made)), "The revisions are others than before.")
        await publish(sub, b'{"b":1}')
        with refused(INVALID_ARGUMENT):
            await publish(sub, b'{"c":1}')
    return "Both revisions were, and messages were held against them."


@case("CM-29", promise="A Protocol Buffer text has one message at its top level, and no imports.", seconds=2)
async def proto_definitions_are_checked(lab: Lab) -> str:
    parent = f"projects/{lab.setting.project}"
    for what, text in {
        "Two messages": "message A {} message B {}",
        "No message": "",
        "An import": 'import "x.proto"; message A {}',
        "A service": "message A {} service S { rpc Do(A) returns (A); }",
        "An unknown type": "message A { Nobody a = 1; }",
    }.items():
        schema = pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, definition=f'syntax = "proto3"; {text}')
        with about(what), refused(INVALID_ARGUMENT):
            await lab.client.ValidateSchema(parent=parent, schema=schema)
    for schema in (
        PROTO,
        proto("message In { int32 x = 1; }", "enum E { A = 0; }", "In in = 1;", "E e = 2;"),
    ):
        await lab.client.ValidateSchema(parent=parent, schema=schema)
    return "Five were refused; types inside the message are accepted."
