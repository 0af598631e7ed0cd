"""The table of RPCs, and server reflection from the private pool."""

from google.protobuf.descriptor_database import DescriptorDatabase
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.reflection import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from pubsubd.wire import POOL, SERVICES, admin_pb, pb


def ask(servicer, **request):
    (response,) = servicer.ServerReflectionInfo(iter([ServerReflectionRequest(**request)]), None)
    return response


def test_the_table_names_classes_path_and_streaming_of_each_rpc():
    publish = SERVICES["google.pubsub.v1.Publisher"]["Publish"]
    assert publish.path == "/google.pubsub.v1.Publisher/Publish"
    assert (publish.request, publish.response) == (pb.PublishRequest, pb.PublishResponse)
    assert not publish.client_streaming and not publish.server_streaming

    acknowledge = SERVICES["google.pubsub.v1.Subscriber"]["Acknowledge"]
    assert acknowledge.response is pb.Empty

    get_state = SERVICES["pubsubd.admin.v1.Admin"]["GetState"]
    assert get_state.request is admin_pb.GetStateRequest


def test_there_are_35_public_rpcs_and_only_streaming_pull_streams():
    public = [
        method
        for service, methods in SERVICES.items()
        if service.startswith("google.pubsub.v1.")
        for method in methods.values()
    ]

    assert len(public) == 35
    streaming = [method for method in public if method.client_streaming or method.server_streaming]
    assert [method.path for method in streaming] == ["/google.pubsub.v1.Subscriber/StreamingPull"]
    assert streaming[0].client_streaming and streaming[0].server_streaming


def test_reflection_serves_every_service_with_all_it_needs():
    reflection = ReflectionServicer(SERVICES, pool=POOL)

    listed = ask(reflection, list_services="").list_services_response.service
    assert {service.name for service in listed} == set(SERVICES)

    for name, methods in SERVICES.items():
        response = ask(reflection, file_containing_symbol=name)
        files = [
            FileDescriptorProto.FromString(file)
            for file in response.file_descriptor_response.file_descriptor_proto
        ]
        # What a client such as grpcurl does with the answer; it fails when an import is missing.
        database = DescriptorDatabase()
        for file in files:
            database.Add(file)
        rebuilt = DescriptorPool(database).FindServiceByName(name)
        assert set(rebuilt.methods_by_name) == set(methods)
