"""What a topic's schema adds to the cost of publishing."""

from __future__ import annotations

import io
import itertools
import json
import random
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

from pubsubd.wire import pb
from tests.bench.load import DISTINCT_REQUESTS, PROJECT, Client, LoadError
from tests.bench.scenarios import Run, Usage, client_of, each_us, no_garbage_collection, until_quiet
from tests.bench.targets import PubsubdTarget, Target

TURN_MESSAGES = 2_000
WITHOUT = "no schema"

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "string"},
            {"name": "currency", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}},
            {"name": "total", "type": "double"},
            {"name": "paid", "type": "boolean"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "text", "type": "string"},
        ],
    }
)
PROTO = """
syntax = "proto3";
message Order {
  enum Currency { EUR = 0; USD = 1; }
  int64 id = 1;
  string customer = 2;
  Currency currency = 3;
  double total = 4;
  bool paid = 5;
  optional string note = 6;
  repeated string tags = 7;
  string text = 8;
}
"""


@dataclass
class Kind:
    """A topic with a schema, or with none, and what is published to it."""

    name: str
    schema: pb.Schema | None
    encoding: int
    #: From an order, in the form of JSON, to the data of a message.
    encode: Callable[[dict[str, Any]], bytes]


async def schemas(run: Run) -> None:
    """The same orders to a topic without a schema and to four with one: the server's CPU time.

    As with filters, there is a server for every kind, which all take turns.
    """
    kinds = make_kinds(run.work_dir)
    repeats = run.settings.schema_repeats
    async with AsyncExitStack() as stack:
        parties = []
        for kind in kinds:
            target = PubsubdTarget(run.work_dir / f"schema {kind.name}", run.serve_options)
            stack.callback(target.clean_up)
            await target.start()
            parties.append((target, await stack.enter_async_context(client_of(target))))
        for repeat in range(repeats):
            run.say(f"schema, repeat {repeat + 1} of {repeats}")
            # Processes differ a little by themselves: in each repeat every server has another kind.
            at = repeat % len(parties)
            costs = await _publish_costs_us(run, kinds, [*parties[at:], *parties[:at]])
            for name, cost in costs.items():
                run.results.add("schema", f"publish, server CPU per message, {name}", "µs", "pubsubd", cost)
            for name, cost in costs.items():
                if name != WITHOUT:
                    ratio = cost / costs[WITHOUT]
                    run.results.add("schema", f"{name}: times that without", "x", "pubsubd", ratio)


def make_kinds(folder: Path) -> list[Kind]:
    avro = pb.Schema(type=pb.Schema.AVRO, definition=AVRO)
    proto = pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, definition=PROTO)
    order_class = _order_class(folder)

    def message(order: dict[str, Any]) -> Any:
        return json_format.ParseDict(order, order_class())

    def proto_binary(order: dict[str, Any]) -> bytes:
        return bytes(message(order).SerializeToString())

    def proto_json(order: dict[str, Any]) -> bytes:
        return json_format.MessageToJson(message(order), indent=None).encode()

    def avro_json(order: dict[str, Any]) -> bytes:
        note = None if order["note"] is None else {"string": order["note"]}
        return json.dumps({**order, "note": note}).encode()

    return [
        Kind(WITHOUT, None, pb.JSON, lambda order: json.dumps(order).encode()),
        Kind("Avro in BINARY", avro, pb.BINARY, _avro_binary),
        Kind("Avro in JSON", avro, pb.JSON, avro_json),
        Kind(
            "Protocol Buffers in BINARY", proto, pb.BINARY, lambda order: message(order).SerializeToString()
        ),
        Kind(
            "Protocol Buffers in JSON",
            proto,
            pb.JSON,
            lambda order: json_format.MessageToJson(message(order), indent=None).encode(),
        ),
    ]


def _avro_binary(order: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(AVRO), order)
    return out.getvalue()


def _order_class(folder: Path) -> Any:
    (folder / "order.proto").write_text(PROTO)
    out = folder / "order.binpb"
    if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", "order.proto"]):
        raise RuntimeError("the definition of an order could not be compiled")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


def random_order(size: int) -> dict[str, Any]:
    """About `size` bytes of JSON."""
    return {
        "id": random.randrange(1 << 40),
        "customer": f"customer-{random.randrange(1_000_000)}",
        "currency": random.choice(["EUR", "USD"]),
        "total": random.random() * 1000,
        "paid": random.random() < 0.5,
        "note": random.choice([None, "leave at the door"]),
        "tags": [f"tag-{random.randrange(100)}" for _ in range(3)],
        "text": random.randbytes(max(0, size - 200) // 2).hex(),
    }


async def _publish_costs_us(
    run: Run, kinds: list[Kind], parties: list[tuple[Target, Client]]
) -> dict[str, float]:
    turns = max(1, run.settings.schema_messages // TURN_MESSAGES)
    batch = min(run.settings.publish_batch, TURN_MESSAGES)
    places, requests, usages = {}, {}, {}
    by_kind = list(zip(kinds, parties, strict=True))
    for kind, (_, client) in by_kind:
        places[kind.name] = topic, _ = await _create(client, kind)
        some = [_request(topic, kind, batch, run.settings.message_bytes) for _ in range(DISTINCT_REQUESTS)]
        requests[kind.name] = list(itertools.islice(itertools.cycle(some), TURN_MESSAGES // batch))
        # Also the warm-up: a schema is compiled when it is first needed.
        await client.send(requests[kind.name], TURN_MESSAGES, in_flight=1)
    for kind, (target, _) in by_kind:
        await until_quiet(target)
        usages[kind.name] = Usage(target)
    with no_garbage_collection():
        for turn in range(turns):
            for kind, (_, client) in by_kind if turn % 2 == 0 else reversed(by_kind):
                count = len(requests[kind.name]) * batch
                await client.send(requests[kind.name], count, run.settings.publish_in_flight)
    costs = {}
    for kind, (target, client) in by_kind:
        await until_quiet(target)
        cost = each_us(usages[kind.name].seconds(), turns * len(requests[kind.name]) * batch)
        assert cost is not None  # the servers are ours, so their pids are known
        costs[kind.name] = cost
        await client.delete_pair(*places[kind.name])
    return costs


async def _create(client: Client, kind: Kind) -> tuple[str, str]:
    """A topic that refuses what its schema does not take, and its one subscription."""
    unique = uuid.uuid4().hex
    topic = pb.Topic(name=f"{PROJECT}/topics/t{unique}")
    if kind.schema is not None:
        name = f"s{unique}"
        create = pb.CreateSchemaRequest(parent=PROJECT, schema_id=name, schema=kind.schema)
        await client.call("SchemaService/CreateSchema", create)
        topic.schema_settings.schema = f"{PROJECT}/schemas/{name}"
        topic.schema_settings.encoding = kind.encoding
    await client.call("Publisher/CreateTopic", topic)
    subscription = f"{PROJECT}/subscriptions/s{unique}"
    await client.create_subscription(subscription, topic.name)
    if kind.schema is not None:
        await _check(client, topic.name)
    return topic.name, subscription


async def _check(client: Client, topic: str) -> None:
    """A schema that nobody is held to would cost nothing at all."""
    bad = pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage(data=b"\xff")])
    try:
        await client.call("Publisher/Publish", bad)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
    else:
        raise LoadError("a message that does not fit the schema was accepted")


def _request(topic: str, kind: Kind, count: int, size: int) -> bytes:
    messages = [pb.PubsubMessage(data=kind.encode(random_order(size))) for _ in range(count)]
    return bytes(pb.PublishRequest(topic=topic, messages=messages).SerializeToString())
