"""From a message to JSON: names, order and spellings of the service."""

from __future__ import annotations

import json

import grpc
import pytest
from google.protobuf import json_format

from pubsubd.rest.writing import CODES, error_tree, text_of, tree_of
from pubsubd.wire import pb


def test_fields_stand_in_the_order_of_their_definition() -> None:
    subscription = pb.Subscription(
        state=1,
        detached=True,
        name="s",
        bigquery_config={"table": "t"},
        ack_deadline_seconds=10,
        labels={"a": "b"},
    )
    declared = [field.json_name for field in pb.Subscription.DESCRIPTOR.fields]

    assert list(tree_of(subscription)) == [name for name in declared if name in tree_of(subscription)]
    assert declared.index("bigqueryConfig") < declared.index("ackDeadlineSeconds")


def test_the_tree_is_that_of_the_library() -> None:
    messages = [
        pb.Subscription(
            name="projects/p/subscriptions/s",
            message_retention_duration={"seconds": 1, "nanos": 500_000_000},
            expiration_policy={},
            dead_letter_policy={"max_delivery_attempts": 5},
            cloud_storage_config={"max_bytes": 2**40, "avro_config": {"write_metadata": True}},
            labels={"b": "1", "a": "2"},
            state=1,
        ),
        pb.PullResponse(
            received_messages=[
                {
                    "ack_id": "x",
                    "message": {"data": b"\xfb\xff", "publish_time": {"seconds": 5, "nanos": 1000}},
                    "delivery_attempt": 2,
                }
            ]
        ),
        pb.Topic(schema_settings={"encoding": 1}),
        pb.UpdateTopicRequest(update_mask={"paths": ["message_retention_duration"]}),
        pb.Empty(),
    ]
    for message in messages:
        assert tree_of(message) == json_format.MessageToDict(message)


def test_enums_may_be_written_as_numbers() -> None:
    assert tree_of(pb.Schema(type=2)) == {"type": "AVRO"}
    assert tree_of(pb.Schema(type=2), enums_as_numbers=True) == {"type": 2}
    assert tree_of(pb.Schema(type=77)) == {"type": 77}


def test_the_text_has_two_spaces_and_a_line_break() -> None:
    assert text_of({}) == "{}\n"
    assert text_of({"a": ["\u20ac"]}) == '{\n  "a": [\n    "\u20ac"\n  ]\n}\n'
    assert text_of({"a": [1]}, pretty=False) == '{"a":[1]}\n'


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_code_has_a_status_of_http(code: grpc.StatusCode) -> None:
    name, status = CODES[code.value[0]]

    assert name == code.name
    assert json.loads(text_of(error_tree(name, "text"))) == {
        "error": {"code": status, "message": "text", "status": name}
    }
    assert status in (200, 400, 401, 403, 404, 409, 429, 499, 500, 501, 503, 504)
