"""Which RPC a request line means: every one but StreamingPull has a place of its own."""

from __future__ import annotations

import pytest

from pubsubd.rest.routes import find
from pubsubd.wire import SERVICES

TOPIC, SUBSCRIPTION = "projects/p/topics/t", "projects/p/subscriptions/s"
SNAPSHOT, SCHEMA = "projects/p/snapshots/n", "projects/p/schemas/c"

BINDINGS = [
    ("PUT", TOPIC, "CreateTopic", {"name": TOPIC}, "*"),
    ("PATCH", TOPIC, "UpdateTopic", {"topic": {"name": TOPIC}}, "*"),
    ("POST", f"{TOPIC}:publish", "Publish", {"topic": TOPIC}, "*"),
    ("GET", TOPIC, "GetTopic", {"topic": TOPIC}, ""),
    ("GET", "projects/p/topics", "ListTopics", {"project": "projects/p"}, ""),
    ("GET", f"{TOPIC}/subscriptions", "ListTopicSubscriptions", {"topic": TOPIC}, ""),
    ("GET", f"{TOPIC}/snapshots", "ListTopicSnapshots", {"topic": TOPIC}, ""),
    ("DELETE", TOPIC, "DeleteTopic", {"topic": TOPIC}, ""),
    ("POST", f"{SUBSCRIPTION}:detach", "DetachSubscription", {"subscription": SUBSCRIPTION}, ""),
    ("PUT", SUBSCRIPTION, "CreateSubscription", {"name": SUBSCRIPTION}, "*"),
    ("GET", SUBSCRIPTION, "GetSubscription", {"subscription": SUBSCRIPTION}, ""),
    ("PATCH", SUBSCRIPTION, "UpdateSubscription", {"subscription": {"name": SUBSCRIPTION}}, "*"),
    ("GET", "projects/p/subscriptions", "ListSubscriptions", {"project": "projects/p"}, ""),
    ("DELETE", SUBSCRIPTION, "DeleteSubscription", {"subscription": SUBSCRIPTION}, ""),
    *(
        ("POST", f"{SUBSCRIPTION}:{name[0].lower()}{name[1:]}", name, {"subscription": SUBSCRIPTION}, "*")
        for name in ("ModifyAckDeadline", "Acknowledge", "Pull", "ModifyPushConfig", "Seek")
    ),
    ("GET", SNAPSHOT, "GetSnapshot", {"snapshot": SNAPSHOT}, ""),
    ("GET", "projects/p/snapshots", "ListSnapshots", {"project": "projects/p"}, ""),
    ("PUT", SNAPSHOT, "CreateSnapshot", {"name": SNAPSHOT}, "*"),
    ("PATCH", SNAPSHOT, "UpdateSnapshot", {"snapshot": {"name": SNAPSHOT}}, "*"),
    ("DELETE", SNAPSHOT, "DeleteSnapshot", {"snapshot": SNAPSHOT}, ""),
    ("POST", "projects/p/schemas", "CreateSchema", {"parent": "projects/p"}, "schema"),
    ("GET", SCHEMA, "GetSchema", {"name": SCHEMA}, ""),
    ("GET", "projects/p/schemas", "ListSchemas", {"parent": "projects/p"}, ""),
    ("GET", f"{SCHEMA}:listRevisions", "ListSchemaRevisions", {"name": SCHEMA}, ""),
    ("POST", f"{SCHEMA}:commit", "CommitSchema", {"name": SCHEMA}, "*"),
    ("POST", f"{SCHEMA}:rollback", "RollbackSchema", {"name": SCHEMA}, "*"),
    ("DELETE", f"{SCHEMA}:deleteRevision", "DeleteSchemaRevision", {"name": SCHEMA}, ""),
    ("DELETE", SCHEMA, "DeleteSchema", {"name": SCHEMA}, ""),
    ("POST", "projects/p/schemas:validate", "ValidateSchema", {"parent": "projects/p"}, "*"),
    ("POST", "projects/p/schemas:validateMessage", "ValidateMessage", {"parent": "projects/p"}, "*"),
    *(
        binding
        for resource in (TOPIC, SUBSCRIPTION, SNAPSHOT, SCHEMA)
        for binding in [
            ("GET", f"{resource}:getIamPolicy", "GetIamPolicy", {"resource": resource}, ""),
            ("POST", f"{resource}:setIamPolicy", "SetIamPolicy", {"resource": resource}, "*"),
            ("POST", f"{resource}:testIamPermissions", "TestIamPermissions", {"resource": resource}, "*"),
        ]
    ),
]


@pytest.mark.parametrize(
    ("http_method", "path", "name", "fields", "body"), BINDINGS, ids=[f"{b[0]}-{b[1]}" for b in BINDINGS]
)
def test_a_request_line_means_an_rpc(http_method, path, name, fields, body) -> None:
    match = find(http_method, f"/v1/{path}")

    assert match is not None
    assert (match.method.name, match.fields, match.body) == (name, fields, body)


def test_every_rpc_but_the_streaming_one_has_a_binding() -> None:
    bound = {name for _, _, name, _, _ in BINDINGS}
    public = {
        name for service, methods in SERVICES.items() if service.startswith("google.") for name in methods
    }

    assert public - bound == {"StreamingPull"}


@pytest.mark.parametrize(
    ("http_method", "path"),
    [
        ("GET", "/v1"),
        ("GET", "/v1/"),
        ("GET", "/v2/projects/p/topics"),
        ("GET", "/projects/p/topics"),
        ("GET", "/v1/projects/p"),
        ("GET", "/v1/projects/p/things"),
        ("GET", "/v1/projects/p/things/t"),
        ("GET", f"/v1/{TOPIC}/"),
        ("GET", f"/v1/{TOPIC}/x"),
        ("POST", f"/v1/{TOPIC}"),
        ("GET", f"/v1/{TOPIC}:publish"),
        ("POST", f"/v1/{TOPIC}:Publish"),
        ("POST", f"/v1/{SUBSCRIPTION}:publish"),
        ("POST", f"/v1/{SUBSCRIPTION}:streamingPull"),
        ("POST", f"/v1/{TOPIC}%3Apublish"),
        ("DELETE", f"/v1/{TOPIC}:"),
        ("get", f"/v1/{TOPIC}"),
        ("POST", "/v1/projects/p/topics:publish"),
    ],
)
def test_everything_else_means_none(http_method: str, path: str) -> None:
    assert find(http_method, path) is None or path.endswith(":")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("a%2Bb", "a+b"),
        ("a+b", "a+b"),
        ("a%25b", "a%b"),
        ("a%252Fb", "a%2Fb"),
        ("a%2Fb", "a/b"),
        ("%E2%82%AC", "\u20ac"),
        ("a%zzb", "a%zzb"),
        ("", ""),
    ],
)
def test_a_segment_is_decoded_once_and_after_the_path_was_taken_apart(sent: str, meant: str) -> None:
    match = find("GET", f"/v1/projects/p/topics/{sent}")

    assert match is not None and match.fields == {"topic": f"projects/p/topics/{meant}"}


def test_the_verb_stands_after_the_last_colon() -> None:
    match = find("GET", "/v1/projects/example.com:p/topics/a%3Ab:getIamPolicy")

    assert match is not None
    assert match.fields == {"resource": "projects/example.com:p/topics/a:b"}
