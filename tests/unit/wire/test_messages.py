"""Messages of the private pool behave like generated ones, and live beside those of the official client."""

import subprocess
import sys

import pytest
from google.protobuf import json_format

from pubsubd.wire import POOL, admin_pb, pb

IMPORTS = ("from pubsubd.wire import pb", "from google.cloud import pubsub_v1")

USE_BOTH = """
theirs = pubsub_v1.types.PubsubMessage(data=b"x", attributes={"a": "b"}, ordering_key="k")
ours = pb.PubsubMessage.FromString(pubsub_v1.types.PubsubMessage.serialize(theirs))
assert (ours.data, dict(ours.attributes), ours.ordering_key) == (b"x", {"a": "b"}, "k")
assert pubsub_v1.types.PubsubMessage.deserialize(ours.SerializeToString()) == theirs
"""


@pytest.mark.parametrize("order", [IMPORTS, IMPORTS[::-1]], ids=["server first", "client first"])
def test_server_and_official_client_share_a_process_in_either_order_of_import(order):
    # A fresh process, because an import cannot be taken back.
    program = "\n".join((*order, USE_BOTH))

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_messages_touches_no_default_pool_and_no_grpc():
    program = """
import sys
from google.protobuf import descriptor_pool
from pubsubd.wire import pb
assert "grpc" not in sys.modules
try:
    descriptor_pool.Default().FindMessageTypeByName("google.pubsub.v1.Topic")
except KeyError:
    sys.exit(0)
sys.exit("google.pubsub.v1.Topic is in the default pool")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_enum_values_and_nested_messages_are_attributes():
    assert pb.Subscription.ACTIVE == 1
    assert pb.Topic.State.Name(2) == "INGESTION_RESOURCE_ERROR"
    assert pb.Encoding.Value("BINARY") == pb.BINARY == 2
    assert admin_pb.InjectCommitFaultRequest.KILL_AFTER_COMMIT == 4

    confirmation = pb.StreamingPullResponse.AcknowledgeConfirmation(ack_ids=["a"])
    response = pb.StreamingPullResponse(acknowledge_confirmation=confirmation)
    assert type(response.acknowledge_confirmation) is pb.StreamingPullResponse.AcknowledgeConfirmation
    assert pb.BigtableConfig.ColumnFamilyMapping.DelimitedKey(key_fields=["a"]).key_fields == ["a"]


def test_timestamps_and_durations_keep_microseconds():
    publish_time = pb.Timestamp()
    publish_time.FromMicroseconds(1_700_000_000_123_456)
    message = pb.PubsubMessage(publish_time=publish_time)
    assert message.publish_time.ToMicroseconds() == 1_700_000_000_123_456
    assert message.publish_time.ToJsonString() == "2023-11-14T22:13:20.123456Z"

    retention = pb.Duration()
    retention.FromMicroseconds(-1_500_000)
    assert (retention.seconds, retention.nanos) == (-1, -500_000_000)
    assert retention.ToMicroseconds() == -1_500_000


def test_field_masks_read_their_json_form():
    mask = pb.FieldMask()
    mask.FromJsonString("labels,ackDeadlineSeconds,pushConfig.pushEndpoint")

    assert mask.paths == ["labels", "ack_deadline_seconds", "push_config.push_endpoint"]
    assert mask.ToJsonString() == "labels,ackDeadlineSeconds,pushConfig.pushEndpoint"


def test_structs_take_python_values():
    inference = pb.AIInference.UnstructuredInference()
    inference.parameters.update({"temperature": 0.5, "stop": ["a"]})

    assert json_format.MessageToDict(inference) == {"parameters": {"temperature": 0.5, "stop": ["a"]}}


def test_json_keeps_the_service_s_names():
    subscription = pb.Subscription(name="s", ack_deadline_seconds=10, state=pb.Subscription.ACTIVE)
    subscription.message_retention_duration.FromSeconds(600)

    as_json = json_format.MessageToDict(subscription)

    assert as_json == {
        "name": "s",
        "ackDeadlineSeconds": 10,
        "messageRetentionDuration": "600s",
        "state": "ACTIVE",
    }
    assert json_format.ParseDict(as_json, pb.Subscription()) == subscription


def test_fields_that_may_be_unset_say_so():
    assert not pb.Subscription().HasField("expiration_policy")
    # An empty policy means "never expires", which is not the same as none.
    assert pb.Subscription(expiration_policy=pb.ExpirationPolicy()).HasField("expiration_policy")
    text_format = pb.IngestionDataSourceSettings.CloudStorage.TextFormat
    assert not text_format().HasField("delimiter")
    assert text_format(delimiter="").HasField("delimiter")


def test_the_pool_holds_what_every_file_imports():
    file = POOL.FindFileByName("google/pubsub/v1/pubsub.proto")

    assert {dependency.name for dependency in file.dependencies} == {
        "google/protobuf/duration.proto",
        "google/protobuf/empty.proto",
        "google/protobuf/field_mask.proto",
        "google/protobuf/struct.proto",
        "google/protobuf/timestamp.proto",
        "google/pubsub/v1/schema.proto",
    }
