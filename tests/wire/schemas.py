"""Definitions that tests of schemas share, and calls with them."""

from __future__ import annotations

import json
from typing import Any

from pubsubd.wire import pb
from tests.wire.calls import Client
from tests.wire.support import unique

PARENT = "projects/wire"
AVRO, PROTO = pb.Schema.AVRO, pb.Schema.PROTOCOL_BUFFER


def record(*fields: dict[str, Any], name: str = "Rec") -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


A_FIELDS = ({"name": "a", "type": "string"}, {"name": "b", "type": ["null", "int"], "default": None})
AVRO_REC = record(*A_FIELDS)
PROTO_REC = 'syntax = "proto3"; message Rec { string a = 1; int32 b = 2; }'
GOOD_JSON = b'{"a":"x","b":null}'


def avro(definition: str = AVRO_REC) -> pb.Schema:
    return pb.Schema(type=AVRO, definition=definition)


def proto(definition: str = PROTO_REC) -> pb.Schema:
    return pb.Schema(type=PROTO, definition=definition)


def create(client: Client, schema: pb.Schema | None = None) -> Any:
    """A new schema, by default the record in Avro."""
    name = unique("schema")
    sent = avro() if schema is None else schema
    return client.CreateSchema(parent=PARENT, schema_id=name.rpartition("/")[2], schema=sent)


def create_topic(client: Client, schema: str, encoding: int = pb.JSON, **range_: str) -> str:
    settings = pb.SchemaSettings(schema=schema, encoding=encoding, **range_)
    return str(client.CreateTopic(name=unique("topic"), schema_settings=settings).name)


def messages(*datas: bytes, **attributes: str) -> list[pb.PubsubMessage]:
    return [pb.PubsubMessage(data=data, attributes=attributes) for data in datas]
