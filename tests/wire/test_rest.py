"""REST/JSON: every RPC but StreamingPull over plain HTTP, on the port of gRPC."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import pytest

from tests.wire.calls import Client
from tests.wire.harness import case
from tests.wire.http import Rest, send
from tests.wire.support import World, unique


@pytest.fixture(scope="session")
def rest(server) -> Rest:
    return Rest(server.port)


@pytest.fixture
def topic(rest: Rest) -> str:
    name = unique("topic")
    rest.ok("PUT", name)
    return name


@pytest.fixture
def subscription(rest: Rest, topic: str) -> str:
    name = unique("subscription")
    rest.ok("PUT", name, {"topic": topic, "ackDeadlineSeconds": 60})
    return name


# --- every method -----------------------------------------------------------------------------------------


def test_a_topic_from_its_creation_to_its_end(rest: Rest, client: Client):
    name = unique("topic")
    body = {"name": "ignored", "labels": {"a": "b"}, "messageRetentionDuration": "600.000s"}
    created = {"name": name, "labels": {"a": "b"}, "messageRetentionDuration": "600s"}
    assert rest.ok("PUT", name, body) == created
    assert rest.ok("GET", name) == created
    assert client.GetTopic(topic=name).labels == {"a": "b"}
    assert rest("PUT", f"/v1/{name}").error["status"] == "ALREADY_EXISTS"

    new = {"name": "ignored", "messageRetentionDuration": "1200s"}
    patch = {"topic": new, "updateMask": "labels,messageRetentionDuration"}
    assert rest.ok("PATCH", name, patch) == {"name": name, "messageRetentionDuration": "1200s"}
    for path in ("messageRetentionDuration", "message_retention_duration"):
        assert rest.ok("PATCH", f"{name}?updateMask={path}", {"topic": {}}) == {"name": name}

    assert rest.ok("DELETE", name) == {}
    reply = rest("GET", f"/v1/{name}")
    assert (reply.status, reply.error["status"]) == (404, "NOT_FOUND")
    assert reply.error["message"].startswith(f"Resource not found (resource={name.rpartition('/')[2]})")
    assert "details" not in reply.error


def test_a_message_from_publish_to_ack(rest: Rest, topic: str, subscription: str):
    messages = [
        {"data": "aGk", "attributes": {"k": "v"}, "orderingKey": "o"},
        {"data": base64.b64encode(bytes(range(256))).decode(), "orderingKey": "o"},
    ]
    published = rest.ok("POST", f"{topic}:publish", {"messages": messages})
    (first, second) = published["messageIds"]

    received = rest.ok("POST", f"{subscription}:pull", {"maxMessages": 10})["receivedMessages"]
    assert [each["message"]["messageId"] for each in received] == [first, second]
    message = received[0]["message"]
    assert list(message) == ["data", "attributes", "messageId", "publishTime", "orderingKey"]
    assert (message["data"], message["attributes"], message["orderingKey"]) == ("aGk=", {"k": "v"}, "o")
    assert message["publishTime"].endswith("Z")
    assert base64.b64decode(received[1]["message"]["data"]) == bytes(range(256))

    ack_ids = [each["ackId"] for each in received]
    nack = {"ackIds": ack_ids[:1], "ackDeadlineSeconds": 0}
    assert rest.ok("POST", f"{subscription}:modifyAckDeadline", nack) == {}
    (again,) = rest.ok("POST", f"{subscription}:pull", {"max_messages": "1"})["receivedMessages"]
    assert again["message"]["messageId"] == first
    acks = {"ackIds": [again["ackId"], ack_ids[1]]}
    assert rest.ok("POST", f"{subscription}:acknowledge", acks) == {}
    nothing = rest.ok("POST", f"{subscription}:pull", {"maxMessages": 10, "returnImmediately": True})
    assert nothing == {}


def test_a_subscription_from_its_creation_to_its_end(rest: Rest, topic: str):
    name = unique("subscription")
    created = rest.ok("PUT", name, {"topic": topic, "deadLetterPolicy": None, "labels": {"a": "b"}})
    assert created["messageRetentionDuration"] == "604800s"
    assert (created["state"], created["pushConfig"]) == ("ACTIVE", {})
    body = {"subscription": {"ackDeadlineSeconds": 30}, "updateMask": "ackDeadlineSeconds,labels"}
    changed = rest.ok("PATCH", name, body)
    assert changed["ackDeadlineSeconds"] == 30 and "labels" not in changed
    assert rest.ok("GET", f"{topic}/subscriptions") == {"subscriptions": [name]}
    assert rest.ok("POST", f"{name}:modifyPushConfig", {"pushConfig": {}}) == {}
    assert rest.ok("POST", f"{name}:detach") == {}
    assert rest.ok("GET", name)["detached"] is True
    assert rest.ok("DELETE", name) == {}
    assert rest("GET", f"/v1/{name}").status == 404


def test_a_snapshot_and_a_seek(rest: Rest, topic: str, subscription: str):
    name = unique("snapshot")
    rest.ok("POST", f"{topic}:publish", {"messages": [{"data": "aGk="}]})
    created = rest.ok("PUT", name, {"subscription": subscription, "labels": {"a": "b"}})
    assert list(created) == ["name", "topic", "expireTime", "labels"]
    (received,) = rest.ok("POST", f"{subscription}:pull", {"maxMessages": 1})["receivedMessages"]
    rest.ok("POST", f"{subscription}:acknowledge", {"ackIds": [received["ackId"]]})

    assert rest.ok("POST", f"{subscription}:seek", {"snapshot": name}) == {}
    (again,) = rest.ok("POST", f"{subscription}:pull", {"maxMessages": 1})["receivedMessages"]
    assert again["message"]["messageId"] == received["message"]["messageId"]
    assert rest.ok("POST", f"{subscription}:seek", {"time": "2100-01-01T00:00:00+01:00"}) == {}
    body = {"snapshot": {"labels": {}}, "updateMask": "labels"}
    assert "labels" not in rest.ok("PATCH", name, body)
    assert rest.ok("GET", f"{topic}/snapshots") == {"snapshots": [name]}
    project = name.partition("/snapshots/")[0]
    assert name in [each["name"] for each in rest.ok("GET", f"{project}/snapshots")["snapshots"]]
    assert rest.ok("GET", name)["name"] == name
    assert rest.ok("DELETE", name) == {}


def test_lists_have_pages(rest: Rest):
    project = "projects/rest-pages"
    names = [f"{project}/topics/page{n}" for n in range(3)]
    for name in names:
        rest.ok("PUT", name)
        rest.ok("PUT", name.replace("topics", "subscriptions"), {"topic": name})
    first = rest.ok("GET", f"{project}/topics?pageSize=2")
    assert [each["name"] for each in first["topics"]] == names[:2]
    second = rest.ok("GET", f"{project}/topics?page_size=2&pageToken={first['nextPageToken']}")
    assert [each["name"] for each in second["topics"]] == names[2:] and "nextPageToken" not in second
    assert len(rest.ok("GET", f"{project}/subscriptions")["subscriptions"]) == 3
    assert rest("GET", f"/v1/{project}/topics?pageSize=1001").status == 400
    assert rest("GET", f"/v1/{project}/topics?pageToken=x").status == 400


def test_policies(rest: Rest, topic: str, subscription: str):
    for resource in (topic, subscription):
        policy = rest.ok("GET", f"{resource}:getIamPolicy?options.requestedPolicyVersion=3")
        assert policy == {"etag": "ACAB"}
        policy["bindings"] = [{"role": "roles/pubsub.viewer", "members": ["allUsers"]}]
        changed = rest.ok("POST", f"{resource}:setIamPolicy", {"policy": policy})
        assert changed["bindings"] == policy["bindings"] and changed["etag"] != "ACAB"
        assert rest.ok("GET", f"{resource}:getIamPolicy") == changed
        reply = rest("POST", f"/v1/{resource}:setIamPolicy", {"policy": policy})
        assert (reply.status, reply.error["status"]) == (409, "ABORTED")
        wanted = {"permissions": ["pubsub.topics.get"]}
        assert rest.ok("POST", f"{resource}:testIamPermissions", wanted) == wanted


# --- names ------------------------------------------------------------------------------------------------


def test_a_name_is_decoded_once(rest: Rest, client: Client):
    name = unique("topic") + "%+x"
    rest.ok("PUT", name.replace("%", "%25").replace("+", "%2B"))
    assert client.GetTopic(topic=name).name == name
    assert rest.ok("GET", name.replace("%", "%25"))["name"] == name
    for bad in ("a%20b", "x", "goog-x", "a%2Fb", "caf%C3%A9"):
        reply = rest("PUT", f"/v1/projects/p/topics/{bad}")
        assert (reply.status, reply.error["status"]) == (400, "INVALID_ARGUMENT"), bad
        assert "Invalid resource name given (name=" in reply.error["message"]


def test_a_project_that_is_empty_is_no_project(rest: Rest):
    assert rest("PUT", "/v1/projects//topics/orders").status == 400


# --- refusals ---------------------------------------------------------------------------------------------


def test_unknown_fields_are_all_named(rest: Rest, topic: str, subscription: str):
    body = {"messages": [{"data": "aGk=", "foo": 1}], "bar": 2}
    error = rest("POST", f"/v1/{topic}:publish", body).error
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert "Invalid JSON payload received." in error["message"]
    for words in ("Unknown name \"foo\" at 'messages[0]'", 'Unknown name "bar"', "Cannot find field."):
        assert words in error["message"]
    (detail,) = error["details"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert [each.get("field") for each in detail["fieldViolations"]] == ["messages[0]", None]
    nothing = rest.ok("POST", f"{subscription}:pull", {"maxMessages": 1, "returnImmediately": True})
    assert nothing == {}, "nothing was published"


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"\xff", b"not json", b'{"messages": NaN}'])
def test_what_is_no_json_is_refused(rest: Rest, topic: str, body: bytes):
    error = rest("POST", f"/v1/{topic}:publish", body).error
    assert error["status"] == "INVALID_ARGUMENT"
    assert error["message"].startswith("Invalid JSON payload received.")
    assert error["details"][0]["fieldViolations"]


def test_parameters_that_are_wrong_are_refused(rest: Rest, topic: str):
    project = topic.partition("/topics/")[0]
    error = rest("GET", f"/v1/{project}/topics?pageSize=abc").error
    assert "page_size" in error["message"] and '"abc"' in error["message"]
    error = rest("GET", f"/v1/{project}/topics?foo=1").error
    assert 'Unknown name "foo"' in error["message"]
    for form in ("media", "proto", "xml"):
        assert rest("GET", f"/v1/{topic}?alt={form}").status == 400
        assert rest("GET", f"/v1/{topic}?$alt={form}").status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/v2/x"), ("GET", "/v1"), ("GET", "/favicon.ico"), ("POST", "/"), ("GET", "/reset")),
        *(("POST", "/v1/projects/p/topics/abc"), ("GET", "/v1/projects/p/topics/abc:publish")),
        *(("POST", "/v1/projects/p/subscriptions/abc:streamingPull"), ("TRACE", "/")),
        *(("POST", "/shutdown"), ("GET", "/$discovery/rest?version=v1")),
    ],
)
def test_nothing_is_there(rest: Rest, method: str, path: str):
    reply = rest(method, path)
    assert (reply.status, reply.error["status"]) == (404, "NOT_FOUND")


def test_a_refused_ack_says_why_for_each_id(rest: Rest, topic: str):
    name = unique("subscription")
    rest.ok("PUT", name, {"topic": topic, "enableExactlyOnceDelivery": True})
    error = rest("POST", f"/v1/{name}:acknowledge", {"ackIds": ["junk"]}).error
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    (detail,) = error["details"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert detail["reason"] == "EXACTLY_ONCE_ACKID_FAILURE"
    assert detail["metadata"] == {"junk": "PERMANENT_FAILURE_INVALID_ACK_ID"}


def test_a_message_of_a_refusal_is_json_whatever_was_sent(rest: Rest, topic: str):
    for name in ("\u20ac", '"', "\\", "\x07"):
        rest("POST", f"/v1/{topic}:publish", {name: name}).error  # noqa: B018 (reading it checks it)


# --- how answers look -------------------------------------------------------------------------------------


def test_an_answer_is_indented_unless_told_otherwise(rest: Rest, topic: str):
    assert rest("GET", f"/v1/{topic}").body == f'{{\n  "name": "{topic}"\n}}\n'.encode()
    for parameter in ("prettyPrint=false", "$prettyPrint=false"):
        assert rest("GET", f"/v1/{topic}?{parameter}").body == f'{{"name":"{topic}"}}\n'.encode()
    assert rest("GET", f"/v1/{topic}x?prettyPrint=false").body.startswith(b'{"error":{"code":404,')


def test_enums_are_numbers_if_asked_for(rest: Rest, subscription: str):
    shown = rest.ok("GET", f"{subscription}?$alt=json;enum-encoding=int")
    assert shown["state"] == 1
    assert rest.ok("GET", f"{subscription}?%24alt=json%3Benum-encoding%3Dint")["state"] == 1


def test_system_parameters_are_ignored(rest: Rest, topic: str):
    names = (
        "fields key access_token oauth_token callback quotaUser upload_protocol uploadType $.xgafv $fields"
    )
    query = "&".join(f"{name}=x" for name in names.split())
    assert rest.ok("GET", f"{topic}?{query}&alt=json") == {"name": topic}


def test_the_method_may_stand_in_a_header(rest: Rest, topic: str):
    reply = rest("POST", f"/v1/{topic}", headers={"X-HTTP-Method-Override": "GET"})
    assert reply.json == {"name": topic}


def test_any_kind_of_body_is_json(rest: Rest, topic: str):
    for kind in ("application/x-www-form-urlencoded", "text/plain", ""):
        body = json.dumps({"messages": [{"data": "aGk="}]}).encode()
        reply = rest("POST", f"/v1/{topic}:publish", body, {"Content-Type": kind})
        assert len(reply.json["messageIds"]) == 1


# --- what emulator users rely on --------------------------------------------------------------------------


def test_the_root_answers_ok(rest: Rest):
    reply = rest("GET", "/")
    assert (reply.status, reply.body) == (200, b"Ok")
    assert rest("HEAD", "/").status == 200


def test_a_page_of_another_origin_may_ask(rest: Rest, topic: str):
    headers = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "content-type,x-goog-api-client",
    }
    for path in ("/", f"/v1/{topic}:publish", "/nowhere"):
        reply = rest("OPTIONS", path, headers=headers)
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "PUT" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == "content-type,x-goog-api-client"
    for path in (f"/v1/{topic}", "/nowhere"):
        reply = rest("GET", path, headers={"Origin": "http://localhost:3000"})
        assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"


@case
async def test_a_reset_leaves_nothing_of_any_project(world: World):
    async with world.own_server() as own:
        rest = Rest(own.server.port)
        sub = await own.subscription()
        await sub.publish(3)
        rest.ok("PUT", "projects/other/topics/orders")
        schema = {"type": "AVRO", "definition": '"string"'}
        made = rest.ok("POST", "projects/other/schemas?schemaId=words", schema)
        policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": ["allUsers"]}]}}
        rest.ok("POST", f"{made['name']}:setIamPolicy", policy)
        async with sub.stream() as stream:
            await stream.pong()
            reply = rest("POST", "/reset")
            assert reply.status == 200
            await stream.ends_with(grpc.StatusCode.NOT_FOUND)
        assert rest.ok("GET", "projects/other/topics") == {}
        assert rest("GET", f"/v1/{sub.name}").status == 404
        await own.restart_server()
        assert rest.ok("GET", "projects/other/topics") == {}
        assert rest.ok("GET", "projects/other/schemas") == {}
        rest.ok("POST", "projects/other/schemas?schemaId=words", schema)
        assert "bindings" not in rest.ok("GET", f"{made['name']}:getIamPolicy")
        await own.client.CreateTopic(name="projects/other/topics/orders")


@case
async def test_a_message_that_does_not_fit_its_schema_is_refused_with_the_reason(world: World):
    async with world.own_server() as own:
        rest = Rest(own.server.port)
        definition = {
            "type": "PROTOCOL_BUFFER",
            "definition": 'syntax = "proto3"; message M { string a = 1; }',
        }
        name = rest.ok("POST", "projects/p/schemas?schemaId=letters", definition)["name"]
        settings = {"schemaSettings": {"schema": name, "encoding": "JSON"}}
        assert rest.ok("PUT", "projects/p/topics/letters", settings)["schemaSettings"]["encoding"] == "JSON"

        data = base64.b64encode(b'{"a": "x", "b": 1}').decode()
        reply = rest("POST", "/v1/projects/p/topics/letters:publish", {"messages": [{"data": data}]})

        assert (reply.status, reply.error["status"]) == (400, "INVALID_ARGUMENT")
        (info,) = reply.error["details"]
        assert (info["@type"], info["reason"]) == (
            "type.googleapis.com/google.rpc.ErrorInfo",
            "INVALID_JSON_PROTO_MESSAGE",
        )


@case
async def test_a_reset_may_be_forbidden(world: World):
    async with world.own_server("--no-reset") as own:
        rest = Rest(own.server.port)
        rest.ok("PUT", "projects/p/topics/orders")
        assert rest("POST", "/reset").status == 404
        assert rest.ok("GET", "projects/p/topics/orders")


@case
async def test_without_rest_the_port_is_of_grpc_alone(world: World):
    async with world.own_server("--no-rest") as own:
        sub = await own.subscription()
        await sub.publish()
        assert len(await sub.pull()) == 1
        with pytest.raises(Exception):  # noqa: B017 (whatever a client of HTTP makes of such an answer)
            Rest(own.server.port).ok("GET", sub.name)


@case
async def test_grpc_may_have_one_more_port_of_its_own(world: World):
    async with world.own_server("--grpc-port", "0") as own:
        (line,) = await own.said("  grpc ")
        sub = await own.subscription()
        async with grpc.aio.insecure_channel(line.split()[1]) as channel:
            direct = Client(channel)
            await direct.Publish(topic=sub.topic, messages=[{"data": b"x"}])
        assert len(await sub.pull()) == 1


def test_ipv6_is_served_as_well(rest: Rest, topic: str):
    assert Rest(rest.port, "::1").ok("GET", topic) == {"name": topic}


# --- waiting ----------------------------------------------------------------------------------------------


def test_a_pull_whose_caller_has_gone_takes_no_message(
    rest: Rest, client: Client, topic: str, subscription: str
):
    body = b'{"maxMessages": 1}'
    with rest.raw() as connection:
        head = f"POST /v1/{subscription}:pull HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        with pytest.raises(TimeoutError):
            connection.settimeout(0.5)
            connection.recv(1)
    # The end of the connection and the next call may meet.
    with rest.connection() as connection:
        for _ in range(20):
            assert send(connection, "GET", f"/v1/{topic}").status == 200
    rest.ok("POST", f"{topic}:publish", {"messages": [{"data": "aGk="}]})
    received: Any = client.Pull(subscription=subscription, max_messages=1)
    assert len(received.received_messages) == 1


@case
async def test_a_stop_answers_what_was_asked_over_rest(world: World):
    import asyncio

    async with world.own_server() as own:
        rest = Rest(own.server.port)
        sub = await own.subscription()
        pull = asyncio.create_task(
            asyncio.to_thread(rest, "POST", f"/v1/{sub.name}:pull", {"maxMessages": 1})
        )
        await asyncio.sleep(0.7)
        assert await asyncio.to_thread(own.server.terminate) == 0
        reply = await pull
        assert (reply.status, reply.json) == (200, {})
