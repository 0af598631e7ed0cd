"""From JSON to a request, and everything that is wrong with one at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pubsubd.rest.malformed import Malformed
from pubsubd.rest.reading import parse_json, read_request
from pubsubd.wire import SERVICES, pb

TOPIC = "projects/p/topics/t"
INT32 = "(TYPE_INT32)"


def read(request_class: Any, body: Any, body_field: str = "*", **parameters: str) -> Any:
    return read_request(request_class, {}, body_field, body, parameters.items())


def violations(request_class: Any, body: Any, **parameters: str) -> list[dict[str, str]]:
    with pytest.raises(Malformed) as caught:
        read(request_class, body, **parameters)
    (detail,) = caught.value.details
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    found: list[dict[str, str]] = detail["fieldViolations"]
    assert caught.value.message.startswith(found[0]["description"][:200])
    return found


# --- values -----------------------------------------------------------------------------------------------


def test_names_are_those_of_json_or_of_the_definition() -> None:
    for name in ("maxMessages", "max_messages"):
        assert read(pb.PullRequest, {name: 5}) == pb.PullRequest(max_messages=5)


@pytest.mark.parametrize("value", [5, "5", 5.0])
def test_integers_are_numbers_or_texts(value: Any) -> None:
    assert read(pb.PullRequest, {"maxMessages": value}).max_messages == 5


@pytest.mark.parametrize("value", ["aGk=", "aGk", "aGk=="])
def test_bytes_are_base64_with_padding_or_without(value: str) -> None:
    assert read(pb.PubsubMessage, {"data": value}).data == b"hi"


def test_bytes_may_be_of_the_url_safe_alphabet() -> None:
    for value in ("-_-_", "+/+/"):
        assert read(pb.PubsubMessage, {"data": value}).data == b"\xfb\xff\xbf"
    assert read(pb.PubsubMessage, {"data": ""}).data == b""


@pytest.mark.parametrize("value", ["a", "aGk\n", "a*", "aGkx=x", "\u20ac", 5, True, ["aGk="], {}])
def test_what_is_no_base64_is_a_bad_value(value: Any) -> None:
    (found,) = violations(pb.PublishRequest, {"messages": [{}, {"data": value}]})

    assert found["field"] == "messages[1].data"
    assert "messages[1].data" in found["description"] and "(TYPE_BYTES)" in found["description"]


def test_times_durations_and_masks_are_texts() -> None:
    body = {
        "subscription": {"messageRetentionDuration": "600.5s"},
        "updateMask": "messageRetentionDuration,dead_letter_policy,pushConfig.pushEndpoint",
    }
    request = read(pb.UpdateSubscriptionRequest, body)
    assert request.subscription.message_retention_duration == pb.Duration(seconds=600, nanos=500_000_000)
    assert list(request.update_mask.paths) == [
        *("message_retention_duration", "dead_letter_policy", "push_config.push_endpoint"),
    ]
    for text in ("2024-01-01T00:00:01Z", "2024-01-01T02:00:01.000+02:00"):
        assert read(pb.SeekRequest, {"time": text}).time == pb.Timestamp(seconds=1_704_067_201)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"time": "yesterday"}, "Timestamp"),
        ({"time": 5}, "Timestamp"),
        ({"time": "2024-01-01T00:00:00"}, "Timestamp"),
        ({"time": {}}, "Timestamp"),
    ],
)
def test_what_is_no_time_is_a_bad_value(body: Any, kind: str) -> None:
    (found,) = violations(pb.SeekRequest, body)

    assert found["field"] == "time" and f"google.protobuf.{kind}" in found["description"]


@pytest.mark.parametrize("text", ["600", "600m", "s", "999999999999999s", 600, "1e3s"])
def test_what_is_no_duration_is_a_bad_value(text: Any) -> None:
    (found,) = violations(pb.Topic, {"messageRetentionDuration": text})

    assert found["field"] == "message_retention_duration"


def test_enums_are_names_or_numbers() -> None:
    for value in ("AVRO", 2):
        assert read(pb.Schema, {"type": value}).type == 2
    assert read(pb.Schema, {"type": 77}).type == 77
    for bad in ("avro", "", 1.5, True, 2**31):
        (found,) = violations(pb.Schema, {"type": bad})
        assert "google.pubsub.v1.Schema.Type" in found["description"]


@pytest.mark.parametrize("bad", ["abc", "", "1.5", 1.5, True, 2**31, "99999999999", [], {}, "0x10", "5 "])
def test_what_is_no_integer_is_a_bad_value(bad: Any) -> None:
    (found,) = violations(pb.PullRequest, {"maxMessages": bad})

    assert found["field"] == "max_messages" and INT32 in found["description"]


@pytest.mark.parametrize("bad", ["true", 1, 0, "yes", {}])
def test_a_bool_is_no_text_and_no_number(bad: Any) -> None:
    (found,) = violations(pb.PullRequest, {"returnImmediately": bad})

    assert "(TYPE_BOOL)" in found["description"]


def test_null_is_absent() -> None:
    assert read(pb.Topic, {"labels": None, "kmsKeyName": None, "schemaSettings": None}) == pb.Topic()
    violations(pb.AcknowledgeRequest, {"ackIds": [None]})


def test_an_empty_message_is_there() -> None:
    request = read(pb.Subscription, {"pushConfig": {}, "retryPolicy": {}})

    assert request.HasField("push_config") and request.HasField("retry_policy")


def test_maps_and_lists_are_what_they_are() -> None:
    request = read(pb.PubsubMessage, {"attributes": {"a": "1", "": "\u20ac"}})
    assert dict(request.attributes) == {"a": "1", "": "\u20ac"}
    for body in (
        {"attributes": []},
        {"attributes": {"a": 1}},
        {"attributes": "a"},
        {"attributes": {"a": None}},
    ):
        violations(pb.PubsubMessage, body)
    for body in ({"ackIds": "a"}, {"ackIds": {"a": 1}}, {"ackIds": [1]}):
        violations(pb.AcknowledgeRequest, body)
    violations(pb.PublishRequest, {"messages": ["text"]})


def test_half_a_surrogate_pair_is_no_text() -> None:
    (found,) = violations(pb.Topic, parse_json(b'{"kmsKeyName": "\\ud800"}'))

    assert found["field"] == "kms_key_name"


def test_one_of_two_and_not_both() -> None:
    violations(pb.SeekRequest, {"time": "2024-01-01T00:00:00Z", "snapshot": "projects/p/snapshots/abc"})
    assert read(pb.SeekRequest, {"time": None, "snapshot": "x"}).snapshot == "x"


def test_no_definition_has_a_map_of_messages() -> None:
    """Their keys would need a look of their own: protobuf raises for half of a surrogate pair."""

    def check(descriptor: Any, seen: set[str]) -> None:
        if descriptor.full_name in seen or descriptor.full_name.startswith("google.protobuf."):
            return
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                assert field.message_type.fields_by_name["value"].message_type is None, field.full_name
            else:
                check(field.message_type, seen)

    for methods in SERVICES.values():
        for method in methods.values():
            check(method.request.DESCRIPTOR, set())


# --- what is unknown --------------------------------------------------------------------------------------


def test_every_unknown_name_is_named_with_its_place() -> None:
    found = violations(pb.PublishRequest, {"messages": [{"data": "aGk=", "foo": 1}], "bar": {}, "a\nb": 1})

    assert found == [
        {
            "field": "messages[0]",
            "description": "Invalid JSON payload received. Unknown name \"foo\" at 'messages[0]': "
            "Cannot find field.",
        },
        {"description": 'Invalid JSON payload received. Unknown name "bar": Cannot find field.'},
        {"description": 'Invalid JSON payload received. Unknown name "a\\x0ab": Cannot find field.'},
    ]


def test_a_body_that_is_one_field_has_its_places_below_it() -> None:
    with pytest.raises(Malformed, match="at 'schema'"):
        read(pb.CreateSchemaRequest, {"foo": 1}, "schema")
    request = read(pb.CreateSchemaRequest, {"type": "AVRO"}, "schema", schemaId="abc")
    assert request == pb.CreateSchemaRequest(schema=pb.Schema(type=2), schema_id="abc")


def test_a_thousand_mistakes_make_a_message_of_bounded_length() -> None:
    body = {f"{n}" * 1000: n for n in range(1000)}
    with pytest.raises(Malformed) as caught:
        read(pb.Topic, body)

    assert len(caught.value.message) <= 2000
    assert sum(len(each["description"]) for each in caught.value.details[0]["fieldViolations"]) < 20_000


# --- bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"  \n", b"{}", b"\xef\xbb\xbf{}"])
def test_nothing_is_an_empty_object(body: bytes) -> None:
    assert parse_json(body) == {}


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[]", b"5", b'"text"', b"null", b"{}{}", b"{'a': 1}", b'{"a": NaN}', b'{"a": 1,}', b"\xff"),
        *(b'{"a": ' + b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"a=1&b=2", b'{"a": "\n"}'),
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_is_no_object_is_refused_in_one_sentence(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"^Invalid JSON payload received\. [^.]{5,120}\.$"):
        parse_json(body)


def test_a_text_of_a_million_characters_is_not_repeated() -> None:
    (found,) = violations(pb.PullRequest, {"maxMessages": "x" * 1_000_000})

    assert len(found["description"]) < 600


# --- parameters -------------------------------------------------------------------------------------------


def test_parameters_are_fields_by_both_names() -> None:
    request = read(pb.ListTopicsRequest, {}, pageSize="5", page_token="t")
    assert request == pb.ListTopicsRequest(page_size=5, page_token="t")
    for value in ("FULL", "2"):
        assert read(pb.GetSchemaRequest, {}, view=value).view == 2
    for name in ("options.requestedPolicyVersion", "options.requested_policy_version"):
        policy = read(pb.GetIamPolicyRequest, {}, **{name: "3"})
        assert policy.options.requested_policy_version == 3
    mask = read(pb.UpdateTopicRequest, {}, updateMask="labels,kmsKeyName").update_mask
    assert list(mask.paths) == ["labels", "kms_key_name"]
    assert read(pb.PullRequest, {}, returnImmediately="true").return_immediately


@pytest.mark.parametrize("name", ["foo", "", ".", "options.foo", "resource.foo", "options", "options."])
def test_an_unknown_parameter_is_named(name: str) -> None:
    (found,) = violations(pb.GetIamPolicyRequest, {}, **{name: "1"})

    assert f'Unknown name "{name}": Cannot bind query parameter' in found["description"]


def test_a_bad_parameter_is_a_bad_value() -> None:
    (found,) = violations(pb.ListTopicsRequest, {}, pageSize="abc")

    assert found == {
        "field": "page_size",
        "description": "Invalid value at 'page_size' (TYPE_INT32), \"abc\"",
    }


def test_the_path_counts_more_than_the_body_and_that_more_than_a_parameter() -> None:
    request = read_request(
        pb.UpdateTopicRequest,
        {"topic": {"name": TOPIC}},
        "*",
        {"topic": {"name": "other", "labels": {"a": "b"}}, "updateMask": "labels"},
        [("updateMask", "kmsKeyName"), ("topic.kmsKeyName", "k")],
    )

    assert request == pb.UpdateTopicRequest(
        topic=pb.Topic(name=TOPIC, labels={"a": "b"}, kms_key_name="k"),
        update_mask=pb.FieldMask(paths=["labels"]),
    )


# --- anything ---------------------------------------------------------------------------------------------

_KEYS = sorted(
    {
        field.json_name
        for each in (pb.Subscription, pb.Topic, pb.PubsubMessage)
        for field in each.DESCRIPTOR.fields
    }
)
_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_KEYS), _TREES, max_size=4))
def test_no_tree_is_more_than_malformed(tree: dict[str, Any]) -> None:
    for request_class in (pb.Subscription, pb.Topic, pb.PubsubMessage, pb.UpdateSubscriptionRequest):
        try:
            request = read(request_class, tree)
        except Malformed as error:
            assert error.message.isascii() and error.message.isprintable()
        else:
            assert request_class.FromString(request.SerializeToString()) == request
