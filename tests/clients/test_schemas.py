"""Schemas through the official Python client, used as its documentation does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from google.api_core.exceptions import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from google.cloud.pubsub import SchemaServiceClient
from google.pubsub_v1.types import Encoding, Schema, SchemaSettings, SchemaView, Topic
from google.rpc.error_details_pb2 import ErrorInfo

from tests.clients.world import Inbox, World

AVRO = json.dumps(
    {"type": "record", "name": "State", "fields": [{"name": "name", "type": "string"}]},
)
WITH_POST = json.dumps(
    {
        "type": "record",
        "name": "State",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "post_abbr", "type": "string", "default": ""},
        ],
    }
)
PROTO = 'syntax = "proto3"; message StateProto { string name = 1; string post_abbr = 2; }'


@pytest.fixture
def client(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaServiceClient]:
    with SchemaServiceClient() as client:
        yield client


def create(client: SchemaServiceClient, world: World, type_: Schema.Type, definition: str) -> Schema:
    name = client.schema_path(world.project, "states")
    schema = Schema(name=name, type_=type_, definition=definition)
    parent = f"projects/{world.project}"
    return client.create_schema(request={"parent": parent, "schema": schema, "schema_id": "states"})


def create_topic(world: World, schema: str, encoding: Encoding) -> str:
    path = world.publisher.topic_path(world.project, "with-schema")
    settings = SchemaSettings(schema=schema, encoding=encoding)
    world.publisher.create_topic(request=Topic(name=path, schema_settings=settings))
    return path


def test_a_schema_lives_as_the_documentation_tells(client: SchemaServiceClient, world: World):
    made = create(client, world, Schema.Type.AVRO, AVRO)
    with pytest.raises(AlreadyExists):
        create(client, world, Schema.Type.AVRO, AVRO)
    later = client.commit_schema(
        request={"name": made.name, "schema": Schema(name=made.name, type_=made.type_, definition=WITH_POST)}
    )
    with pytest.raises(InvalidArgument, match="incompatible with previous revision"):
        client.commit_schema(name=made.name, schema=Schema(type_=made.type_, definition='"int"'))

    assert client.get_schema(request={"name": made.name, "view": SchemaView.FULL}) == later
    assert client.get_schema(name=f"{made.name}@{made.revision_id}").definition == AVRO
    listed = list(client.list_schema_revisions(request={"name": made.name, "page_size": 1}))
    assert [one.revision_id for one in listed] == [later.revision_id, made.revision_id]
    again = client.rollback_schema(name=made.name, revision_id=made.revision_id)
    assert again.definition == AVRO
    deleted = client.delete_schema_revision(request={"name": f"{made.name}@{later.revision_id}"})
    assert deleted.revision_id == later.revision_id
    assert [one.name for one in client.list_schemas(parent=f"projects/{world.project}")] == [made.name]
    while len(list(client.list_schema_revisions(name=made.name))) < 20:
        client.rollback_schema(name=made.name, revision_id=made.revision_id)
    with pytest.raises(ResourceExhausted):
        client.rollback_schema(name=made.name, revision_id=made.revision_id)
    client.delete_schema(name=made.name)
    with pytest.raises(NotFound):
        client.get_schema(name=made.name)


@pytest.mark.parametrize(
    ("type_", "definition", "encoding", "good", "bad"),
    [
        (Schema.Type.AVRO, AVRO, Encoding.JSON, b'{"name":"Alaska"}', b'{"title":"Alaska"}'),
        (Schema.Type.AVRO, AVRO, Encoding.BINARY, b"\x0cAlaska", b"\x0cAlask"),
        (Schema.Type.PROTOCOL_BUFFER, PROTO, Encoding.JSON, b'{"postAbbr":"AK"}', b'{"title":"Alaska"}'),
        (Schema.Type.PROTOCOL_BUFFER, PROTO, Encoding.BINARY, b"\x0a\x06Alaska", b"\x1a\x00"),
    ],
)
def test_messages_are_checked_and_arrive(
    client: SchemaServiceClient,
    world: World,
    type_: Schema.Type,
    definition: str,
    encoding: Encoding,
    good: bytes,
    bad: bytes,
):
    schema = create(client, world, type_, definition)
    topic = create_topic(world, schema.name, encoding)
    subscription = world.subscription(topic)
    inbox = Inbox(lambda message: message.ack())
    world.subscribe(subscription, inbox)

    world.publisher.publish(topic, good, origin="test").result(timeout=10)
    with pytest.raises(InvalidArgument, match="Message failed schema validation") as caught:
        world.publisher.publish(topic, bad).result(timeout=10)

    (info,) = [detail for detail in caught.value.details if isinstance(detail, ErrorInfo)]
    assert info.domain == "pubsub.googleapis.com"
    assert caught.value.reason == info.reason
    (message,) = inbox.wait(1)
    assert message.data == good
    assert dict(message.attributes) == {
        "origin": "test",
        "googclient_schemaencoding": encoding.name,
        "googclient_schemaname": schema.name,
        "googclient_schemarevisionid": schema.revision_id,
    }
    parent = f"projects/{world.project}"
    valid = {"parent": parent, "name": schema.name, "encoding": encoding}
    client.validate_message(request={**valid, "message": good})
    with pytest.raises(InvalidArgument):
        client.validate_message(request={**valid, "message": bad})
    client.validate_schema(parent=parent, schema=Schema(type_=type_, definition=definition))
    with pytest.raises(InvalidArgument, match="Invalid schema definition"):
        client.validate_schema(parent=parent, schema=Schema(type_=type_, definition="{"))
