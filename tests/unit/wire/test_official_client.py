"""Our definitions against those that the official Python client carries."""

from enum import IntEnum
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import pubsub, schema

from pubsubd.wire import POOL, SERVICES, pb

CLIENT_TYPES = {
    name: getattr(module, name)
    for module in (pubsub, schema)
    for name in sorted(module.__protobuf__.manifest)
}
CLIENT_ENUMS = {name: kind for name, kind in CLIENT_TYPES.items() if issubclass(kind, IntEnum)}
CLIENT_MESSAGES = {name: kind for name, kind in CLIENT_TYPES.items() if name not in CLIENT_ENUMS}


def as_proto(descriptor, kind):
    copy = kind()
    descriptor.CopyToProto(copy)
    return copy


def fields(message: DescriptorProto, scope: str = "") -> dict[str, tuple[object, ...]]:
    """Return what matters on the wire and in Python about each field, of nested messages too, by its path."""
    found: dict[str, tuple[object, ...]] = {}
    path = f"{scope}{message.name}"
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        # proto-plus, of which the client is made, adds an underscore to names that mean something in Python.
        name = field.name.removesuffix("_")
        kind = FieldDescriptorProto.Type.Name(field.type)
        label = FieldDescriptorProto.Label.Name(field.label)
        found[f"{path}.{name}"] = (
            field.number,
            kind,
            field.type_name,
            label,
            oneof,
            field.proto3_optional,
        )
    for nested in message.nested_type:
        found[f"{path}.{nested.name}"] = ("message", nested.options.map_entry)
        found |= fields(nested, f"{path}.")
    for enum in message.enum_type:
        found |= enum_values(enum, f"{path}.")
    return found


def enum_values(enum: EnumDescriptorProto, scope: str = "") -> dict[str, tuple[object, ...]]:
    return {f"{scope}{enum.name}.{value.name}": (value.number,) for value in enum.value}


def test_the_client_has_as_many_types_as_we_think():
    # Guards the tests below against comparing nothing.
    assert len(CLIENT_MESSAGES) > 70
    assert set(CLIENT_ENUMS) == {"Encoding", "SchemaView"}


@pytest.mark.parametrize("name", CLIENT_MESSAGES)
def test_every_field_of_the_client_is_ours_too(name):
    theirs = fields(as_proto(CLIENT_MESSAGES[name].pb().DESCRIPTOR, DescriptorProto))
    ours = fields(as_proto(POOL.FindMessageTypeByName(f"google.pubsub.v1.{name}"), DescriptorProto))

    # Ours may have more: the service may be ahead of the oldest client that we test with.
    assert theirs == {path: ours.get(path) for path in theirs}


@pytest.mark.parametrize("name", CLIENT_ENUMS)
def test_every_value_of_the_client_s_enums_is_ours_too(name):
    ours = enum_values(as_proto(POOL.FindEnumTypeByName(f"google.pubsub.v1.{name}"), EnumDescriptorProto))

    assert {f"{name}.{value.name}": (value.value,) for value in CLIENT_ENUMS[name]}.items() <= ours.items()


class Rpc(NamedTuple):
    request: str  # full name of the message, as is `response`
    response: str
    client_streaming: bool
    server_streaming: bool


def full_name(message_class) -> str:
    """Return the full name of a class made by proto-plus or, as that of google.protobuf.Empty, by protoc."""
    plain = message_class.pb() if hasattr(message_class, "pb") else message_class
    return plain.DESCRIPTOR.full_name


class RecordingChannel(grpc.Channel):
    """Notes the methods that a client asks of its channel, and connects to nothing."""

    def __init__(self):
        self.rpcs: dict[str, Rpc] = {}

    def _record(self, path, serializer, deserializer, *streaming):
        # The client offers google.iam.v1.IAMPolicy too, which is another API.
        if path.startswith("/google.pubsub.v1."):
            # What it passes are methods of its message classes, so their owners are the types.
            request, response = full_name(serializer.__self__), full_name(deserializer.__self__)
            self.rpcs[path] = Rpc(request, response, *streaming)
        return lambda *args, **kwargs: None

    def unary_unary(self, method, request_serializer=None, response_deserializer=None, *args, **kwargs):
        return self._record(method, request_serializer, response_deserializer, False, False)

    def unary_stream(self, method, request_serializer=None, response_deserializer=None, *args, **kwargs):
        return self._record(method, request_serializer, response_deserializer, False, True)

    def stream_unary(self, method, request_serializer=None, response_deserializer=None, *args, **kwargs):
        return self._record(method, request_serializer, response_deserializer, True, False)

    def stream_stream(self, method, request_serializer=None, response_deserializer=None, *args, **kwargs):
        return self._record(method, request_serializer, response_deserializer, True, True)

    def subscribe(self, callback, try_to_connect=False):
        pass

    def unsubscribe(self, callback):
        pass

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None


def test_our_rpcs_are_those_that_the_client_calls(monkeypatch):
    channel = RecordingChannel()
    # The client puts an interceptor before the channel, which asks it for a method only at a call.
    monkeypatch.setattr(grpc, "intercept_channel", lambda channel, *interceptors: channel)
    for transport_class in (PublisherGrpcTransport, SubscriberGrpcTransport, SchemaServiceGrpcTransport):
        # Preparing the wrapped methods asks the channel for every method of the service.
        transport_class(channel=channel)

    ours = {
        method.path: Rpc(
            method.request.DESCRIPTOR.full_name,
            method.response.DESCRIPTOR.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for service, methods in SERVICES.items()
        if service.startswith("google.pubsub.v1.")
        for method in methods.values()
    }

    assert ours == channel.rpcs
    assert len(ours) == 35


ROUND_TRIPS = [
    pubsub.Topic(
        name="projects/p/topics/t",
        labels={"a": "b"},
        message_storage_policy={"allowed_persistence_regions": ["eu"], "enforce_in_transit": True},
        message_retention_duration={"seconds": 600},
        ingestion_data_source_settings={"cloud_storage": {"bucket": "b", "text_format": {"delimiter": ";"}}},
        message_transforms=[{"javascript_udf": {"function_name": "f", "code": "c"}, "disabled": True}],
        tags={"1/k": "v"},
    ),
    pubsub.Subscription(
        name="projects/p/subscriptions/s",
        topic="projects/p/topics/t",
        push_config={"push_endpoint": "https://e", "oidc_token": {"audience": "a"}, "no_wrapper": {}},
        bigtable_config={
            "table": "t",
            "column_family_mapping": {"delimited_key": {"key_fields": ["a"], "delimiter": b"#"}},
        },
        ack_deadline_seconds=10,
        expiration_policy={},
        enable_exactly_once_delivery=True,
        state=pubsub.Subscription.State.ACTIVE,
        message_transforms=[{"ai_inference": {"unstructured_inference": {"parameters": {"t": 0.5}}}}],
    ),
    pubsub.StreamingPullRequest(
        subscription="s",
        ack_ids=["a", "b"],
        modify_deadline_seconds=[0, 600],
        modify_deadline_ack_ids=["c", "d"],
        stream_ack_deadline_seconds=60,
        client_id="c",
        max_outstanding_messages=2**40,
        max_outstanding_bytes=-1,
        protocol_version=1,
    ),
    pubsub.StreamingPullResponse(
        received_messages=[
            {
                "ack_id": "a",
                "message": {"data": b"\x00\xff", "attributes": {"k": "v"}, "message_id": "1"},
                "delivery_attempt": 3,
            }
        ],
        acknowledge_confirmation={"ack_ids": ["a"], "temporary_failed_ack_ids": ["b"]},
        modify_ack_deadline_confirmation={"invalid_ack_ids": ["c"]},
        subscription_properties={"exactly_once_delivery_enabled": True},
    ),
    pubsub.SeekRequest(subscription="s", time={"seconds": 5, "nanos": 6}),
    schema.Schema(name="n", type_=schema.Schema.Type.AVRO, definition="{}", revision_id="0123abcd"),
    schema.ValidateMessageRequest(parent="p", schema={"name": "n"}, message=b"{}", encoding="JSON"),
]


@pytest.mark.parametrize("theirs", ROUND_TRIPS, ids=lambda message: type(message).__name__)
def test_a_client_s_message_comes_back_from_our_class_unchanged(theirs):
    client_class = type(theirs)

    ours = getattr(pb, client_class.__name__).FromString(client_class.serialize(theirs))
    # What our class does not know would otherwise pass through unseen.
    ours.DiscardUnknownFields()

    assert client_class.deserialize(ours.SerializeToString()) == theirs
