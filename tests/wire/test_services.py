"""What the server says about itself: health, reflection, and methods that are not there yet."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.wire.calls import Client, refused
from tests.wire.support import unique

METHODS = {
    "google.pubsub.v1.Publisher": """CreateTopic UpdateTopic Publish GetTopic ListTopics
        ListTopicSubscriptions ListTopicSnapshots DeleteTopic DetachSubscription""",
    "google.pubsub.v1.Subscriber": """CreateSubscription GetSubscription UpdateSubscription ListSubscriptions
        DeleteSubscription ModifyAckDeadline Acknowledge Pull StreamingPull ModifyPushConfig GetSnapshot
        ListSnapshots CreateSnapshot UpdateSnapshot DeleteSnapshot Seek""",
    "google.pubsub.v1.SchemaService": """CreateSchema GetSchema ListSchemas ListSchemaRevisions CommitSchema
        RollbackSchema DeleteSchemaRevision DeleteSchema ValidateSchema ValidateMessage""",
}
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", ["", *METHODS])
def test_health_is_serving(channel: grpc.Channel, service: str):
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status == SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=5)
    assert next(watch).status == SERVING
    watch.cancel()


def test_health_of_an_unknown_service_is_not_found(channel: grpc.Channel):
    with refused(StatusCode.NOT_FOUND):
        health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="google.pubsub.v1.Nobody"), timeout=5
        )


def test_reflection_lists_the_services_and_gives_their_files(channel: grpc.Channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {*METHODS, "grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    for service, methods in METHODS.items():
        found = pool.FindServiceByName(service)
        assert {method.name for method in found.methods} == set(methods.split())
    message = pool.FindMessageTypeByName("google.pubsub.v1.StreamingPullRequest")
    assert message.fields_by_name["protocol_version"].number == 10


def test_unknown_methods_are_unimplemented(channel: grpc.Channel):
    for path in ("/google.pubsub.v1.Publisher/Nothing", "/nobody.Nothing/Nothing"):
        with refused(StatusCode.UNIMPLEMENTED):
            channel.unary_unary(path)(b"", timeout=5)


def test_admin_service_is_not_on_the_public_port(channel: grpc.Channel):
    with refused(StatusCode.UNIMPLEMENTED):
        channel.unary_unary("/pubsubd.admin.v1.Admin/GetState")(b"", timeout=5)
    assert "pubsubd.admin.v1.Admin" not in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_server_answers_on_every_address_that_localhost_may_mean(server, client: Client):
    name = unique("topic")
    client.CreateTopic(name=name)
    for host in ("127.0.0.1", "[::1]", "localhost"):
        with grpc.insecure_channel(f"{host}:{server.port}") as other:
            assert Client(other).GetTopic(topic=name).name == name
