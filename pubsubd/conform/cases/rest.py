"""CR: the same service as JSON over HTTP, on the same port."""

from __future__ import annotations

import base64
import re
from typing import Any

from grpc import StatusCode

from pubsubd.conform.calls import refused
from pubsubd.conform.case import Differs, Failed, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX
from pubsubd.conform.lab import Lab
from pubsubd.conform.web import Web

EVERY_BYTE = bytes(range(256))
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def pulled(web: Web, subscription: str, count: int = 1) -> list[dict[str, Any]]:
    """So many messages, pulled over REST."""
    received: list[dict[str, Any]] = []
    for _ in range(20):
        answer = await web.ok("POST", f"{subscription}:pull", {"maxMessages": count - len(received)})
        received += answer.get("receivedMessages", [])
        if len(received) >= count:
            return received
    raise Failed(f"{len(received)} of {count} messages came.")


@case("CR-01", promise="A topic made with PUT is read with GET and gone after DELETE.", seconds=1)
async def topic_comes_and_goes(lab: Lab) -> str:
    web, name = Web(lab.endpoint), lab.name("topic")

    created = await web.ok("PUT", name, {"labels": {"a": "b"}})
    check(created == {"name": name, "labels": {"a": "b"}}, f"PUT was answered with {created}.")
    shown = await web.ok("GET", name)
    check(shown == created, f"GET was answered with {shown}.")
    check((await lab.client.GetTopic(topic=name)).name == name, "gRPC shows another one.")
    gone = await web.ok("DELETE", name)
    check(gone == {}, f"DELETE was answered with {gone}.")
    with refused(StatusCode.NOT_FOUND):
        await lab.client.GetTopic(topic=name)
    return "Made, shown by both interfaces, and deleted."


@case("CR-02", promise="A message published over REST is received over gRPC byte for byte.", seconds=2)
async def message_goes_from_rest_to_grpc(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    message = {"data": encoded(EVERY_BYTE), "attributes": {"k": "\u20ac"}, "orderingKey": "o"}

    answer = await web.ok("POST", f"{sub.topic}:publish", {"messages": [message]})
    (delivery,) = await sub.pull(within=DELIVERY_SECONDS_MAX)
    check(answer == {"messageIds": [delivery.message_id]}, f"Publish was answered with {answer}.")
    check(delivery.data == EVERY_BYTE, "Its data is another one.")
    check(dict(delivery.message.attributes) == {"k": "\u20ac"}, "Its attributes are other ones.")
    check(delivery.key == "o", f"Its ordering key is {delivery.key!r}.")
    return "All 256 bytes, the attribute and the ordering key arrived."


@case("CR-03", promise="A message pulled over REST has base64 data and an RFC 3339 time.", seconds=2)
async def message_goes_from_grpc_to_rest(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    messages = [{"data": EVERY_BYTE, "attributes": {"k": "v"}}]
    (message_id,) = (await lab.client.Publish(topic=sub.topic, messages=messages)).message_ids

    (received,) = await pulled(web, sub.name)
    message = received["message"]
    check(message["messageId"] == message_id, f"Its id is {message['messageId']}.")
    check(message["data"] == encoded(EVERY_BYTE), f"Its data is {message['data']}.")
    check(message["attributes"] == {"k": "v"}, f"Its attributes are {message['attributes']}.")
    time = message["publishTime"]
    check(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.(\d{3}|\d{6}|\d{9}))?Z", time), f"Its time is {time}."
    )
    check("orderingKey" not in message, "It has an ordering key, which was not set.")
    return f"Its data, its attribute and its time, as {time}."


@case("CR-04", promise="An ack over REST ends a message, and a nack brings it back.", seconds=5)
async def acks_and_nacks_count(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    await sub.publish()
    (first,) = await pulled(web, sub.name)

    body = {"ackIds": [first["ackId"]], "ackDeadlineSeconds": 0}
    check(await web.ok("POST", f"{sub.name}:modifyAckDeadline", body) == {}, "The nack is not answered {}.")
    (again,) = await pulled(web, sub.name)
    check(again["message"]["messageId"] == first["message"]["messageId"], "Another message came.")
    check(await web.ok("POST", f"{sub.name}:acknowledge", {"ackIds": [again["ackId"]]}) == {}, "Not {}.")
    await sub.nothing_for(2)
    return "It came back after the nack, and not after the ack."


@case(
    "CR-05", promise="A PATCH changes what its mask names, written either way, and nothing else.", seconds=1
)
async def patch_obeys_its_mask(lab: Lab) -> str:
    web, name = Web(lab.endpoint), lab.name("topic")
    await web.ok("PUT", name, {"labels": {"a": "b"}})

    for mask, seconds in (("messageRetentionDuration", 600), ("message_retention_duration", 1200)):
        wanted = {"name": "ignored", "messageRetentionDuration": f"{seconds}s", "labels": {}}
        shown = await web.ok("PATCH", name, {"topic": wanted, "updateMask": mask})
        expected = {"name": name, "labels": {"a": "b"}, "messageRetentionDuration": f"{seconds}s"}
        check(shown == expected, f"With the mask {mask} it became {shown}.")
    return "Both spellings of the mask changed that field alone; the name was that of the path."


@case("CR-06", promise="Unknown fields are refused with 400, each named with its place.", seconds=1)
async def unknown_fields_are_named(lab: Lab) -> str:
    web, topic = Web(lab.endpoint), await lab.topic()
    body = {"messages": [{"data": "aGk=", "foo": 1}], "bar": 2}

    error = await web.refused(400, "INVALID_ARGUMENT", "POST", f"{topic}:publish", body)
    for words in ('Unknown name "foo"', "messages[0]", 'Unknown name "bar"'):
        check(words in error["message"], f"The message does not say {words}: {error['message']}")
    details = error.get("details", [])
    check([each.get("@type") for each in details] == [BAD_REQUEST], f"The details are {details}.")
    violations = details[0].get("fieldViolations", [])
    check(len(violations) == 2, f"There are {len(violations)} field violations.")
    return "Both were named, in the message and as field violations."


@case("CR-07", promise="A body that is no JSON is refused with 400 INVALID_ARGUMENT.", seconds=1)
async def malformed_json_is_refused(lab: Lab) -> str:
    web, topic = Web(lab.endpoint), await lab.topic()
    bodies = [b"{", b"[]", b"text", b'{"messages": [}', b"\xff\xfe"]

    for body in bodies:
        await web.refused(400, "INVALID_ARGUMENT", "POST", f"{topic}:publish", body)
    return f"{len(bodies)} bodies were refused so."


@case("CR-08", promise="A value of the wrong type is refused with 400 and its field is named.", seconds=1)
async def wrong_values_are_refused(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    wrong = [
        (f"{sub.topic}:publish", {"messages": [{"data": "a"}]}, "data"),
        (f"{sub.topic}:publish", {"messages": [{"attributes": {"a": 1}}]}, "attributes"),
        (f"{sub.name}:pull", {"maxMessages": "many"}, "max_messages"),
        (f"{sub.name}:seek", {"time": "yesterday"}, "time"),
    ]

    for path, body, name in wrong:
        error = await web.refused(400, "INVALID_ARGUMENT", "POST", path, body)
        named = name in error["message"] or _camel(name) in error["message"]
        check(named, f"The refusal of {body} does not name {name}: {error['message']}")
    return f"{len(wrong)} were refused so."


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


@case("CR-09", promise="What is not there is 404 NOT_FOUND, and what is there already 409.", seconds=1)
async def statuses_are_those_of_the_codes(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()

    await web.refused(404, "NOT_FOUND", "GET", lab.name("topic"))
    await web.refused(404, "NOT_FOUND", "POST", f"{lab.name('subscription')}:pull", {"maxMessages": 1})
    await web.refused(409, "ALREADY_EXISTS", "PUT", sub.topic)
    await web.refused(409, "ALREADY_EXISTS", "PUT", sub.name, {"topic": sub.topic})
    await web.refused(400, "INVALID_ARGUMENT", "POST", f"{sub.name}:pull", {"maxMessages": 0})
    return "404, 409 and 400, with their codes."


@case("CR-10", promise="A name in a path is percent-decoded once.", seconds=1)
async def names_are_decoded_once(lab: Lab) -> str:
    web, name = Web(lab.endpoint), lab.name("topic")
    odd = f"{name}%2Bx"  # a percent sign in a name, and nothing that stands for another
    lab.made.append(odd)

    shown = await web.ok("PUT", f"{name}%252Bx")
    check(shown.get("name") == odd, f"The name became {shown.get('name')}.")
    await lab.client.GetTopic(topic=odd)
    await web.ok("DELETE", f"{name}%252Bx")
    return "%25 became a percent sign, and what followed it stayed."


@case("CR-11", promise="Query parameters that are unknown or no numbers are refused with 400.", seconds=1)
async def bad_parameters_are_refused(lab: Lab) -> str:
    web, project = Web(lab.endpoint), f"projects/{lab.setting.project}"

    for query in ("pageSize=abc", "nothing=1"):
        await web.refused(400, "INVALID_ARGUMENT", "GET", f"{project}/topics?{query}")
    return "Both were refused so."


@case("CR-12", promise="Lists have pages: pageSize of them, and a token for the rest.", seconds=2)
async def lists_have_pages(lab: Lab) -> str:
    web, topic = Web(lab.endpoint), await lab.topic()
    wanted = sorted([(await lab.subscription(topic=topic)).name for _ in range(3)])

    seen: list[str] = []
    sizes: list[int] = []
    token = ""
    while len(sizes) < 4:
        page = await web.ok("GET", f"{topic}/subscriptions?pageSize=2&pageToken={token}")
        seen += page.get("subscriptions", [])
        sizes.append(len(page.get("subscriptions", [])))
        token = page.get("nextPageToken", "")
        if not token:
            break
    check(sorted(seen) == wanted, f"{len(seen)} of {len(wanted)} subscriptions were listed.")
    check(max(sizes) <= 2, f"A page had {max(sizes)} entries.")
    return f"{len(wanted)} subscriptions on pages of {' and '.join(map(str, sizes))}."


@case("CR-13", promise="System parameters are accepted, and enums are numbers for who asks.", seconds=1)
async def system_parameters_are_known(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()

    plain = await web.ok("GET", f"{sub.name}?alt=json&key=x&quotaUser=x&prettyPrint=true")
    check(plain.get("state") == "ACTIVE", f"The state is {plain.get('state')!r}.")
    numbered = await web.ok("GET", f"{sub.name}?$alt=json;enum-encoding=int")
    check(numbered.get("state") == 1, f"With enum-encoding=int the state is {numbered.get('state')!r}.")
    return "They were accepted; the state was ACTIVE, or 1 for who asked."


@case("CR-14", promise="A refused ack over REST tells the result of each ack id in its details.", seconds=2)
async def refused_acks_have_results(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)

    body = {"ackIds": [a.ack_id]}
    error = await web.refused(400, "INVALID_ARGUMENT", "POST", f"{sub.name}:acknowledge", body)
    infos = [each for each in error.get("details", []) if each.get("@type") == ERROR_INFO]
    check(len(infos) == 1, f"There are {len(infos)} ErrorInfos.")
    result = infos[0].get("metadata", {}).get(a.ack_id, "absent")
    check(result == "PERMANENT_FAILURE_INVALID_ACK_ID", f"The result of the ack id is {result}.")
    return "The ErrorInfo lists it as PERMANENT_FAILURE_INVALID_ACK_ID."


@case("CR-15", promise="A policy is replaced by who knows its etag, and by nobody else.", seconds=1)
async def policies_have_etags(lab: Lab) -> str:
    web, topic = Web(lab.endpoint), await lab.topic()
    old = await web.ok("GET", f"{topic}:getIamPolicy")
    bindings = [{"role": "roles/pubsub.viewer", "members": ["allUsers"]}]

    new = await web.ok("POST", f"{topic}:setIamPolicy", {"policy": {**old, "bindings": bindings}})
    check(new.get("bindings") == bindings, f"The policy became {new}.")
    check(new.get("etag") not in ("", None, old.get("etag")), "Its etag is the one before.")
    await web.refused(409, "ABORTED", "POST", f"{topic}:setIamPolicy", {"policy": old})
    shown = await lab.client.GetIamPolicy(resource=topic)
    check(encoded(shown.etag) == new["etag"], "gRPC shows another etag.")
    return "It was replaced once; the second time its etag was old, and it was refused with ABORTED."


@case("CR-16", promise="One connection serves many requests, refused ones among them.", seconds=1)
async def connections_are_kept(lab: Lab) -> str:
    web, topic = Web(lab.endpoint), await lab.topic()
    good, bad = ("GET", f"/v1/{topic}", None, None), ("POST", f"/v1/{topic}:publish", b"{", None)

    answers = await web.all_of([good, bad] * 10)
    seen = [answer.status for answer in answers]
    check(seen == [200, 400] * 10, f"The answers were {seen}.")
    return "20 requests in a row were answered, every other one with 400."


@case("CR-17", promise="A seek over REST to a snapshot made over REST brings acked messages back.", seconds=3)
async def snapshots_work_over_rest(lab: Lab) -> str:
    web, sub = Web(lab.endpoint), await lab.subscription()
    await sub.publish()
    name = lab.name("snapshot")
    created = await web.ok("PUT", name, {"subscription": sub.name})
    check(created.get("topic") == sub.topic, f"The snapshot is {created}.")
    (a,) = await sub.pull(within=DELIVERY_SECONDS_MAX)
    await sub.ack(a)

    check(await web.ok("POST", f"{sub.name}:seek", {"snapshot": name}) == {}, "The seek is not answered {}.")
    (again,) = await pulled(web, sub.name)
    check(again["message"]["messageId"] == a.message_id, "Another message came.")
    return "The message was acked, and came again after the seek."


@case("CR-18", promise="GET / should be answered with 200: readiness probes ask for it.", seconds=1)
async def root_answers(lab: Lab) -> str:
    answer = await Web(lab.endpoint)("GET", "/")
    if answer.status != 200:
        raise Differs(f"{answer} is not 200.")
    return f"Answered with 200 and {answer.body.decode(errors='replace').strip()!r}."
