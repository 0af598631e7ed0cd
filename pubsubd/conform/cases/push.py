"""CP: push delivery, what is sent, what answers mean, and what becomes of messages that are not accepted."""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from grpc import StatusCode

from pubsubd.conform.calls import refused
from pubsubd.conform.case import Differs, Failed, Hook, case, check
from pubsubd.conform.cases.shared import DELIVERY_SECONDS_MAX, LEASE_AND_MORE, in_a_row
from pubsubd.conform.lab import Lab, Sub, data_of
from pubsubd.conform.listener import Listener, Push, Unexpected, listening
from pubsubd.wire import pb

USER_AGENT = "APIs-Google"
EMAIL = "pusher@conformance.iam.gserviceaccount.com"
ACCEPTED = ("102", "200", "201", "202", "204")
NOT_ACCEPTED = ("203", "206", "302", "400", "404", "429", "500", "503")
# How long a message that was not accepted may take to come again, and how long one that was must not.
AGAIN_SECONDS_MAX = 20.0
QUIET_SECONDS = 3.0


async def pushing(lab: Lab, listener: Listener, path: str = "/push", **fields: Any) -> Sub:
    config = pb.PushConfig(push_endpoint=listener.url(path), **fields.pop("config", {}))
    return await lab.subscription(eod=False, push_config=config, **fields)


async def set_endpoint(sub: Sub, url: str) -> None:
    await sub.lab.client.ModifyPushConfig(subscription=sub.name, push_config=pb.PushConfig(push_endpoint=url))


async def first_of(listener: Listener) -> Push:
    return await listener.next(DELIVERY_SECONDS_MAX)


async def again(listener: Listener, within: float = AGAIN_SECONDS_MAX) -> Push:
    return await listener.next(within, "The message did not come again")


# What is sent


@case("CP-01", promise="A message is sent in one POST, in JSON that names the subscription.", seconds=1)
async def one_post(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener, "/in?token=a%2Fb")
        message = pb.PubsubMessage(data=b"\xfb\xff?", attributes={"k": "v", "ü": "ß"})
        (message_id,) = await sub.publish_messages(message)
        push = await first_of(listener)
        check(push.method == "POST", f"The method was {push.method}.")
        check(push.target == "/in?token=a%2Fb", f"The target was {push.target}.")
        check(push.envelope.get("subscription") == sub.name, f"subscription: {push.envelope}.")
        check(push.data == message.data, f"The data was {push.data!r}.")
        check(push.message.get("attributes") == {"k": "v", "ü": "ß"}, f"attributes: {push.message}.")
        check(push.message_id == message_id, f"messageId was {push.message_id}, not {message_id}.")
        check(push.header("content-type") == "application/json", f"It was {push.header('content-type')}.")
        return "One POST with the data, the attributes and the id of the message, and the subscription."


@case("CP-02", promise="The fields messageId and publishTime are there in snake_case as well.", seconds=1)
async def snake_case(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener)
        await sub.publish()
        message = (await first_of(listener)).message
        check(message.get("message_id") == message.get("messageId"), f"message_id: {message}.")
        check(message.get("publish_time") == message.get("publishTime"), f"publish_time: {message}.")
        text = str(message["publishTime"])
        check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text), f"publishTime was {text}.")
        if not re.search(r"\.\d{3}Z", text):
            raise Differs(f"publishTime was {text}, without three digits of a second.")
        return "Both were there twice, the time in UTC with three digits of a second."


@case("CP-03", promise="What a message does not have is not in its wrapping, an ordering key is.", seconds=1)
async def only_what_it_has(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener)
        await sub.publish_messages(pb.PubsubMessage(data=b"x", ordering_key="k"))
        with_key = (await first_of(listener)).message
        check(with_key.get("orderingKey") == "k", f"orderingKey was not there: {with_key}.")
        await sub.publish_attributes({"a": "b"})
        without = await first_of(listener)
        check("deliveryAttempt" not in without.envelope, "deliveryAttempt was there without a policy.")
        if "attributes" in with_key or {"data", "orderingKey"} & without.message.keys():
            raise Differs(f"Empty fields were there: {with_key} and {without.message}.")
        return "Neither data nor attributes were there where they were empty; the ordering key was."


@case("CP-04", promise="A push says that it comes from the service, and what it takes.", seconds=1)
async def headers(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener)
        await sub.publish()
        push = await first_of(listener)
        check(not push.header("authorization"), "There was an Authorization header without a token to send.")
        agent = push.header("user-agent")
        if not agent.startswith(USER_AGENT):
            raise Differs(f"The User-Agent was {agent}, not {USER_AGENT}.")
        if push.header("from") != "noreply@google.com" or push.header("accept") != "application/json":
            raise Differs(f"The headers were {push.headers}.")
        return f"The User-Agent was {agent}."


@case("CP-05", promise="With no_wrapper the body is the data of the message and nothing else.", seconds=1)
async def unwrapped(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener, config={"no_wrapper": pb.PushConfig.NoWrapper()})
        await sub.publish_messages(pb.PubsubMessage(data=b"\x00\xff raw", attributes={"hidden": "yes"}))
        push = await first_of(listener)
        check(push.body == b"\x00\xff raw", f"The body was {push.body[:100]!r}.")
        told = [name for name, _ in push.headers if name.lower().startswith("x-goog-pubsub-")]
        check(not told and not push.header("hidden"), f"Metadata was told: {push.headers}.")
        return "The body was the data to the byte, without any header about the message."


@case("CP-06", promise="With write_metadata the metadata and the attributes are headers.", seconds=1)
async def metadata(lab: Lab) -> str:
    async with listening(lab) as listener:
        config = {"no_wrapper": pb.PushConfig.NoWrapper(write_metadata=True)}
        sub = await pushing(lab, listener, config=config)
        attributes = {"mine": "value", "content-length": "1", "host": "forged", "bad name": "x"}
        (message_id,) = await sub.publish_messages(
            pb.PubsubMessage(data=b"data", attributes=attributes, ordering_key="k")
        )
        push = await first_of(listener)
        expected = {
            "x-goog-pubsub-subscription-name": sub.name,
            "x-goog-pubsub-message-id": message_id,
            "x-goog-pubsub-ordering-key": "k",
            "mine": "value",
            "host": f"127.0.0.1:{listener.port}",
        }
        for name, value in expected.items():
            check(push.header(name) == value, f"{name} was {push.header(name) or 'absent'}, not {value}.")
        check(push.header("x-goog-pubsub-publish-time").endswith("Z"), f"No publish time: {push.headers}.")
        check(push.body == b"data", f"The body was {push.body!r}.")
        return "The metadata and the attribute were headers, and none replaced what HTTP needs."


@case(
    "CP-07", promise="The field deliveryAttempt counts from 1 where there is a dead letter policy.", seconds=2
)
async def attempts(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("500", "500", "204")
        sub = await pushing(lab, listener, dead_letter_policy=await policy(lab))
        await sub.publish()
        seen = [(await again(listener)).envelope.get("deliveryAttempt", "absent") for _ in range(3)]
        check(seen == [1, 2, 3], f"deliveryAttempt was {in_a_row(seen)}.")
        return "deliveryAttempt was 1, 2 and 3."


async def policy(lab: Lab, topic: str = "") -> Any:
    return pb.DeadLetterPolicy(dead_letter_topic=topic or await lab.topic(), max_delivery_attempts=5)


# What answers mean


@case("CP-08", promise="The statuses 102, 200, 201, 202 and 204 acknowledge.", seconds=15)
async def accepted(lab: Lab) -> str:
    async with listening(lab) as listener:
        for status in ACCEPTED:
            listener.plan(status, path=f"/{status}")
            sub = await pushing(lab, listener, f"/{status}")
            await sub.publish()
        pushes = await listener.take(len(ACCEPTED), DELIVERY_SECONDS_MAX)
        ids = {push.message_id for push in pushes}
        try:
            push = await listener.next(LEASE_AND_MORE)
        except Failed:
            check(len(ids) == len(ACCEPTED), "A message came twice.")
            return f"After {in_a_row(ACCEPTED)} nothing came again for {LEASE_AND_MORE} s."
        raise Failed(f"After {push.target[1:]} the message came again.")


@case("CP-09", promise="Every other status is a failure, and the message comes again.", seconds=8)
async def not_accepted(lab: Lab) -> str:
    async with listening(lab) as listener:
        for status in NOT_ACCEPTED:
            listener.plan(status, path=f"/{status}")
            sub = await pushing(lab, listener, f"/{status}")
            await sub.publish()
        deadline = time.monotonic() + AGAIN_SECONDS_MAX
        while missing := [one for one in NOT_ACCEPTED if count_of(listener, f"/{one}") < 2]:
            try:
                await listener.next(max(0.0, deadline - time.monotonic()))
            except Failed:
                within = f"within {AGAIN_SECONDS_MAX:g} s"
                raise Failed(f"After {in_a_row(missing)} the message did not come again {within}.") from None
        return f"After {in_a_row(NOT_ACCEPTED)} it came again."


def count_of(listener: Listener, path: str) -> int:
    return sum(push.target == path for push in listener.came)


@case("CP-10", promise="A redirect is not followed; it is a failure.", seconds=2)
async def redirect(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("redirect", "204")
        sub = await pushing(lab, listener)
        await sub.publish()
        await first_of(listener)
        push = await again(listener)
        check(push.target == "/push", f"The next request went to {push.target}.")
        return "The message came again to the endpoint, and nothing to where the redirect led."


@case("CP-11", promise="A connection that ends without an answer is a failure.", seconds=2)
async def hangup(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("hangup", "hangup", "hangup", "204")
        sub = await pushing(lab, listener)
        await sub.publish()
        first = await first_of(listener)
        for _ in range(3):
            push = await again(listener)
        check(push.message_id == first.message_id, "Another message came.")
        return "The message came again until it was answered."


@case(
    "CP-12",
    promise="A request not answered by the acknowledgement deadline ends, and the message comes again.",
    seconds=12,
)
async def deadline(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("stall", "204")
        sub = await pushing(lab, listener, ack_deadline_seconds=10)
        await sub.publish()
        first = await first_of(listener)
        push = await again(listener, 40)
        after = push.at - first.at
        check(push.message_id == first.message_id, "Another message came.")
        check(after >= 9.5, f"It came again after {after:.1f} s, inside its deadline of 10 s.")
        await asyncio.sleep(1)
        if not first.gone_at:
            raise Differs("The request that was not answered was left open.")
        return f"It came again after {after:.1f} s, and the request before it had been given up."


# What failures lead to


@case("CP-13", promise="A retry policy holds for pushes: a failed message rests as it says.", seconds=5)
async def retry(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("500", "500", "204")
        rests = pb.RetryPolicy(minimum_backoff=pb.Duration(seconds=1), maximum_backoff=pb.Duration(seconds=9))
        sub = await pushing(lab, listener, retry_policy=rests)
        await sub.publish()
        pushes = [await again(listener) for _ in range(3)]
        gaps = [later.at - earlier.at for earlier, later in pairwise(pushes)]
        said = f"It rested for {gaps[0]:.1f} and {gaps[1]:.1f} s, with a minimum of 1 s."
        check(gaps[0] >= 0.85 and gaps[1] >= 0.85, said)
        if gaps[1] < 1.7:
            raise Differs(said)
        return said


@case("CP-14", promise="What fails as often as the policy allows goes to the dead letter topic.", seconds=6)
async def dead_letter(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("500")
        dead = await lab.subscription(eod=False)
        sub = await pushing(lab, listener, dead_letter_policy=await policy(lab, dead.topic))
        await sub.publish_data(b"poison")
        (copy,) = await dead.pull(within=60)
        check(copy.data == b"poison", "Another message came on the dead letter topic.")
        await listener.take(5, 1)
        try:
            await listener.nothing_for(QUIET_SECONDS)
        except Unexpected:
            raise Failed("It was pushed again after it had left for the dead letter topic.") from None
        return "After five pushes a copy came on the dead letter topic, and nothing more to the endpoint."


@case("CP-15", promise="An endpoint that fails again and again gets fewer and fewer requests.", seconds=8)
async def back_off(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("503")
        sub = await pushing(lab, listener)
        await sub.publish()
        pushes = [await again(listener) for _ in range(6)]
        gaps = [later.at - earlier.at for earlier, later in pairwise(pushes)]
        said = f"The pauses were {in_a_row([f'{gap:.1f}' for gap in gaps])} s."
        if not (gaps[-1] > 1.5 * gaps[0] and gaps[-1] > 0.5):
            raise Differs(said)
        return said


@case("CP-16", promise="Requests at one time are few at first, and more with every success.", seconds=4)
async def slow_start(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("slow:0.3:204")
        sub = await pushing(lab, listener)
        await sub.publish(100)
        pushes = await listener.take(100, 60)
        first = [push for push in pushes if push.at - pushes[0].at < 0.25]
        at_once = max(push.at_once for push in pushes)
        said = f"Of 100 messages {len(first)} were pushed at first, and later up to {at_once} at once."
        if len(first) >= 10 or at_once <= len(first):
            raise Differs(said)
        return said


# Ordering


@case("CP-17", promise="Of an ordering key one message is outstanding, and they come in order.", seconds=3)
async def ordering(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("slow:0.05:204")
        sub = await pushing(lab, listener, enable_message_ordering=True)
        for number in range(10):
            for key in ("a", "b"):
                await sub.publish_key(key, f"{key}{number}".encode())
        pushes = await listener.take(20, 30)
        for key in ("a", "b"):
            mine = [push for push in pushes if push.data.startswith(key.encode())]
            check_order(mine, key, 10)
            gaps = [later.at - earlier.at for earlier, later in pairwise(mine)]
            check(min(gaps) >= 0.04, "A message came before its predecessor was answered.")
        return "Each message came after its predecessor of the key was answered, in order."


def check_order(pushes: Sequence[Push], key: str, count: int) -> None:
    came = [push.data.decode("ascii", "replace") for push in pushes]
    due = [f"{key}{number}" for number in range(count)]
    check(came == due, f"They came in the order {in_a_row(came)}.")


@case("CP-18", promise="A message that fails holds back its ordering key, and no other.", seconds=4)
async def held_key(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener, enable_message_ordering=True, ack_deadline_seconds=10)
        listener.plan("stall", "204")
        await sub.publish_key("held", b"held0", b"held1", b"held2")
        await first_of(listener)
        await sub.publish_key("free", *[b"free%d" % number for number in range(5)])
        check_order(await listener.take(5, 8), "free", 5)
        check_order(await listener.take(3, 30), "held", 3)
        return "While the first message was not answered others of its key waited, and another key went on."


# Changes


@case(
    "CP-19",
    promise="ModifyPushConfig turns a subscription into a pushed one and back; nothing is lost.",
    seconds=3,
)
async def both_ways(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await lab.subscription(eod=False)
        await sub.publish_data(b"a", b"b")
        await set_endpoint(sub, listener.url())
        pushed = [push.data for push in await listener.take(2, DELIVERY_SECONDS_MAX)]
        check(sorted(pushed) == [b"a", b"b"], f"Pushed were {pushed}.")
        await asyncio.sleep(1)  # until the last of them is acknowledged
        await set_endpoint(sub, "")
        await sub.publish_data(b"c")
        pulled = data_of(await sub.pull())
        check(pulled == [b"c"], f"Pulled were {pulled}.")
        await listener.nothing_for(0.5)
        return "Its backlog was pushed once it had an endpoint, and what came later was pulled."


@case("CP-20", promise="A push subscription is not pulled: FAILED_PRECONDITION.", seconds=1)
async def not_pulled(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener)
        with refused(StatusCode.FAILED_PRECONDITION):
            await sub.pull_now()
        async with sub.stream() as stream:
            await stream.ends_with(StatusCode.FAILED_PRECONDITION)
        return "Pull and StreamingPull were refused with FAILED_PRECONDITION."


@case(
    "CP-21",
    promise="A stream ends with FAILED_PRECONDITION when its subscription gets an endpoint.",
    seconds=1,
)
async def stream_ends(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await lab.subscription(eod=False)
        async with sub.stream() as stream:
            await sub.publish()
            await sub.ack(*await stream.take(1))
            await set_endpoint(sub, listener.url())
            await stream.ends_with(StatusCode.FAILED_PRECONDITION)
        await sub.publish()
        await first_of(listener)
        return "The stream ended with FAILED_PRECONDITION, and what came later was pushed."


@case("CP-22", promise="Another endpoint gets what is pushed from then on.", seconds=2)
async def new_endpoint(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener, "/old")
        await sub.publish()
        await first_of(listener)
        await set_endpoint(sub, listener.url("/new"))
        await asyncio.sleep(1)
        await sub.publish(3)
        targets = {push.target for push in await listener.take(3, DELIVERY_SECONDS_MAX)}
        check(targets == {"/new"}, f"Requests went to {in_a_row(sorted(targets))}.")
        return "The next messages went to the new endpoint."


@case("CP-23", promise="Once a subscription is deleted nothing of it is pushed.", seconds=5)
async def deleted(lab: Lab) -> str:
    async with listening(lab) as listener:
        listener.plan("500")
        sub = await pushing(lab, listener)
        await sub.publish(3)
        await first_of(listener)
        await lab.client.DeleteSubscription(subscription=sub.name)
        await asyncio.sleep(1)
        known = len(listener.came)
        await asyncio.sleep(QUIET_SECONDS)
        check(len(listener.came) == known, "It was pushed a second after the deletion, and later.")
        return "Failing messages did not come again after the deletion."


@case(
    "CP-24",
    promise="With an OIDC token each push carries a JWT for its audience, signed with RS256.",
    seconds=2,
)
async def token(lab: Lab) -> str:
    async with listening(lab) as listener:
        oidc = pb.PushConfig.OidcToken(service_account_email=EMAIL)
        sub = await pushing(lab, listener, config={"oidc_token": oidc})
        await sub.publish()
        push = await first_of(listener)
        kind, _, text = push.header("authorization").partition(" ")
        check(kind == "Bearer", f"The Authorization header was {kind or 'absent'}.")
        header, claims = (parsed(part) for part in text.split(".")[:2])
        check(header.get("alg") == "RS256" and header.get("kid"), f"The header was {header}.")
        check(claims.get("aud") == listener.url(), f"aud was {claims.get('aud')}, not the endpoint.")
        check(claims.get("email") == EMAIL and claims.get("email_verified") is True, f"email: {claims}.")
        check(claims.get("sub") and claims.get("iss"), f"sub and iss: {claims}.")
        left = claims.get("exp", 0) - time.time()
        check(0 < left <= 3700, f"It ends in {left:.0f} s.")
        return f"The token was issued by {claims['iss']} for the endpoint, in the name of the account."


def parsed(part: str) -> dict[str, Any]:
    try:
        return dict(json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))))
    except ValueError:
        raise Failed(f"The token was no JWT: {part[:60]}.") from None


@case(
    "CP-25",
    promise="What is no endpoint, and push with exactly-once delivery, is INVALID_ARGUMENT.",
    seconds=1,
)
async def bad_configs(lab: Lab) -> str:
    exactly_once = await lab.subscription()
    plain = await lab.subscription(eod=False)
    for url in ("ftp://localhost/x", "localhost", "http://", "javascript:alert(1)"):
        with refused(StatusCode.INVALID_ARGUMENT):
            await set_endpoint(plain, url)
    with refused(StatusCode.INVALID_ARGUMENT):
        await set_endpoint(exactly_once, "https://push.example.com/x")
    return "Each was refused with INVALID_ARGUMENT."


@case(
    "CP-26",
    promise="What does not match the filter is not pushed, and what a seek brings back is.",
    seconds=2,
)
async def filter_and_seek(lab: Lab) -> str:
    async with listening(lab) as listener:
        sub = await pushing(lab, listener, filter='attributes.k = "yes"', retain_acked_messages=True)
        await sub.publish_attributes({"k": "no"}, {"k": "yes"}, {"k": "no"}, {"k": "yes"})
        first = {push.message_id for push in await listener.take(2, DELIVERY_SECONDS_MAX)}
        await asyncio.sleep(1)
        await lab.client.Seek(subscription=sub.name, time=pb.Timestamp(seconds=1))
        second = {push.message_id for push in await listener.take(2, DELIVERY_SECONDS_MAX)}
        await listener.nothing_for(0.5)
        check(first == second, "Other messages came after the seek than before it.")
        return "The two that match were pushed, and once more after the seek."


@case(
    "CP-27",
    promise="After a kill, what was not accepted is pushed again, and what was accepted is not.",
    needs=[Hook.RESTART],
    seconds=16,
)
async def kill(lab: Lab) -> str:
    async with lab.own_server() as own, listening(own) as listener:
        sub = await pushing(own, listener, ack_deadline_seconds=10)
        done = set(await sub.publish(5))
        await listener.take(5, DELIVERY_SECONDS_MAX)
        await asyncio.sleep(1)  # until the acknowledgements are stored, of which nobody is told
        listener.plan("stall")
        open_ids = set(await sub.publish(3))
        await listener.take(3, DELIVERY_SECONDS_MAX)
        await own.kill()
        listener.plan("204")
        await own.start()
        came = {push.message_id for push in await listener.take(3, 30)}
        check(came == open_ids, f"Of {len(open_ids)} messages {len(came & open_ids)} came again.")
        check(not came & done, "What was accepted before the kill came again.")
        return "The three that were under way came again, and none of the five that were accepted."
