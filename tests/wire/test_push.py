"""Push: what an endpoint is sent, what its answers mean, and what becomes of messages when it fails."""

import asyncio
import itertools
import re
import sqlite3
import tempfile
import time
from base64 import b64encode
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import jwt
import psutil
import pytest
import trustme
from grpc import StatusCode

from pubsubd.push.tokens import jwks
from pubsubd.storage.store import FILE_NAME
from pubsubd.wire import admin_pb, pb
from tests.support.endpoint import PushEndpoint, Request, push_endpoint
from tests.support.server import ServerProcess
from tests.wire.calls import refused
from tests.wire.harness import case
from tests.wire.http import Rest
from tests.wire.support import Sub, World, data_of

OVERHEAD_SECONDS = 2.0
USER_AGENT = "APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)"


def pushed_to(url: str, **fields) -> dict:
    return {"push_config": pb.PushConfig(push_endpoint=url, **fields)}


async def pushing(world: World, url: str, config: dict | None = None, **fields) -> Sub:
    return await world.subscription(eod=False, **pushed_to(url, **(config or {})), **fields)


async def set_endpoint(world: World, sub: Sub, url: str) -> None:
    """An empty one: it is pulled from now on."""
    await world.client.ModifyPushConfig(subscription=sub.name, push_config=pb.PushConfig(push_endpoint=url))


async def nothing_left(world: World, sub: Sub) -> None:
    """Every message is acknowledged: as a pull subscription it has none."""
    await set_endpoint(world, sub, "")
    assert await sub.watch(0.3) == []


async def answers_heard(world: World, sub: Sub) -> None:
    """The endpoint has a request before the server has its answer; this is until it has them all."""
    while (await world.state_of(sub)).leased:
        await asyncio.sleep(0.05)


def milliseconds(moment) -> str:
    text = datetime.fromtimestamp(moment.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment.nanos // 1_000_000:03}Z"


async def stored(world: World, sub: Sub, count: int = 1) -> list:
    """The messages of the topic as a subscriber of another subscription gets them."""
    beside = await world.client.CreateSubscription(name=world.name("subscription"), topic=sub.topic)
    return Sub(world, sub.topic, beside.name)


async def warned(world: World, sub: Sub, *words: str) -> str:
    """The line of the log about an endpoint that fails. It comes with the first pause that is a long one."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in world.server.lines:
            if all(word in line for word in (sub.name, *words)):
                return line
        await asyncio.sleep(0.05)
    raise AssertionError(world.server.output)


# What is sent


@case
async def test_a_wrapped_push_is_this_to_the_byte(world: World) -> None:
    async with push_endpoint() as endpoint:
        sub = await pushing(world, endpoint.url("/in?token=a%2Fb&x"))
        beside = await stored(world, sub)
        message = pb.PubsubMessage(
            data=b"\xff\xfe> billed?", attributes={"z": 'ümläut/"quoted"', "a": "1"}, ordering_key="k/1"
        )
        (message_id,) = await sub.publish_messages(message)
        published = milliseconds((await beside.pull())[0].message.publish_time)
        request = await endpoint.next()

    body = (
        '{"message":{"attributes":{"a":"1","z":"ümläut/\\"quoted\\""},'
        f'"data":"{b64encode(message.data).decode()}",'
        f'"messageId":"{message_id}","message_id":"{message_id}","orderingKey":"k/1",'
        f'"publishTime":"{published}","publish_time":"{published}"}},'
        f'"subscription":"{sub.name}"}}'
    ).encode()
    assert request.body == body
    assert request.head == (
        "POST /in?token=a%2Fb&x HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{endpoint.port}\r\n"
        "Content-Type: application/json\r\n"
        f"User-Agent: {USER_AGENT}\r\n"
        "From: noreply@google.com\r\n"
        "Accept: application/json\r\n"
        "Accept-Encoding: gzip, deflate, br\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )


@case
async def test_what_a_message_does_not_have_is_not_in_its_wrapping(world: World) -> None:
    async with push_endpoint() as endpoint:
        sub = await pushing(world, endpoint.url())
        await sub.publish_messages(pb.PubsubMessage(data=b"only data"))
        plain = await endpoint.next()
        await sub.publish_attributes({"only": "attributes"})
        bare = await endpoint.next()

    times = {"messageId", "message_id", "publishTime", "publish_time"}
    assert plain.json.keys() == {"message", "subscription"}
    assert plain.json["message"].keys() == times | {"data"}
    assert bare.json["message"].keys() == times | {"attributes"}


@case
async def test_an_unwrapped_push_is_the_data_and_nothing_else(world: World) -> None:
    async with push_endpoint() as endpoint:
        config = dict(no_wrapper=pb.PushConfig.NoWrapper())
        sub = await pushing(world, endpoint.url(), config)
        await sub.publish_messages(pb.PubsubMessage(data=b"\x00\xff raw", attributes={"a": "b"}))
        request = await endpoint.next()

    assert request.body == b"\x00\xff raw"
    assert [name for name, _ in request.headers] == [
        *("Host", "Content-Type", "User-Agent", "From", "Accept", "Accept-Encoding", "Content-Length"),
    ]
    assert request.header("content-type") == "application/octet-stream"


@case
async def test_an_unwrapped_push_has_metadata_in_headers_if_that_is_asked_for(world: World) -> None:
    async with push_endpoint() as endpoint:
        config = dict(no_wrapper=pb.PushConfig.NoWrapper(write_metadata=True))
        sub = await pushing(world, endpoint.url(), config)
        attributes = {
            "plain": "välue",
            "Content-Type": "text/plain",
            "x-goog-pubsub-message-id": "forged",
            "not a name": "x",
            "control": "a\r\nInjected: yes",
            **dict.fromkeys(("Host", "content-length", "Transfer-Encoding", "CONNECTION", "expect"), "1"),
            "authorization": "Bearer forged",
        }
        await sub.publish_messages(pb.PubsubMessage(data=b"x", attributes=attributes, ordering_key="k"))
        request = await endpoint.next()

    written = {name: value for name, value in request.headers if name.startswith("x-goog-pubsub-")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written.pop("x-goog-pubsub-publish-time"))
    assert written.pop("x-goog-pubsub-message-id").isdigit()
    assert written == {
        "x-goog-pubsub-subscription-name": sub.name,
        "x-goog-pubsub-ordering-key": "k",
    }
    assert request.header("plain").encode("latin-1").decode() == "välue"
    assert request.header("content-type") == "text/plain"
    assert request.header("host") == f"127.0.0.1:{endpoint.port}"
    assert request.header("content-length") == "1"
    for name in ("authorization", "transfer-encoding", "connection", "expect", "control", "injected"):
        assert request.all_of(name) == []


@case
async def test_a_message_of_nine_megabytes_is_pushed(world: World) -> None:
    async with push_endpoint() as endpoint:
        sub = await pushing(world, endpoint.url())
        data = b"0123456789abcdef" * 562_500
        await sub.publish_messages(pb.PubsubMessage(data=data))
        assert (await endpoint.next()).data == data
        await nothing_left(world, sub)


@case
async def test_an_address_that_cannot_be_dialled_fails(world: World) -> None:
    sub = await pushing(world, "http://no\\host/")
    await sub.publish_data(b"kept")
    await warned(world, sub, "no address")
    await set_endpoint(world, sub, "")
    assert data_of(await sub.pull()) == [b"kept"]


@case
async def test_the_version_is_shown_and_kept_by_a_change_that_does_not_name_it(world: World) -> None:
    old = pb.PushConfig(push_endpoint="http://127.0.0.1:9/a", attributes={"x-goog-version": "v1beta1"})
    sub = await world.subscription(eod=False, push_config=old)
    plain = await pushing(world, "http://127.0.0.1:9/a")
    await set_endpoint(world, sub, "http://127.0.0.1:9/b")

    def version_of(shown: pb.Subscription) -> str:
        return shown.push_config.attributes["x-goog-version"]

    assert version_of(await world.client.GetSubscription(subscription=sub.name)) == "v1beta1"
    assert version_of(await world.client.GetSubscription(subscription=plain.name)) == "v1"


# What an answer means


@case
async def test_five_statuses_acknowledge(world: World) -> None:
    async with push_endpoint() as endpoint:

        async def push(answer: str) -> None:
            path = f"/{answer}"
            await endpoint.plan(answer, path=path)
            sub = await pushing(world, endpoint.url(path))
            await sub.publish(2)
            while len([one for one in endpoint.requests if one.path == path]) < 2:
                await endpoint.next()
            await nothing_left(world, sub)
            assert len([one for one in endpoint.requests if one.path == path]) == 2

        for answer in ("200", "201", "202", "204", "processing", "large", "close:200"):
            await push(answer)


@case
async def test_every_other_end_of_a_request_brings_the_message_back(world: World) -> None:
    bad = ["203", "206", "299", "304", "400", "401", "404", "410", "429", "500", "503", "redirect", "hangup"]
    async with push_endpoint() as endpoint:

        async def push(answer: str) -> None:
            path = f"/{answer}"
            sub = await pushing(world, endpoint.url(path))
            await sub.publish()
            first, second = await requests_to(endpoint, path, 2)
            assert first.json == second.json, answer
            await nothing_left(world, sub)

        for answer in [*bad, "garbage"]:
            await endpoint.plan(answer, "204", path=f"/{answer}")
        pushes = [asyncio.create_task(push(answer)) for answer in [*bad, "garbage"]]
        await asyncio.gather(*pushes)
        assert not [one for one in endpoint.requests if one.path == "/elsewhere"], "no redirect is followed"


async def requests_to(endpoint: PushEndpoint, path: str, count: int) -> list[Request]:
    """When several cases of one test listen: the requests to one path, once there are so many."""
    deadline = time.monotonic() + 20
    while len(found := [one for one in endpoint.requests if one.path == path]) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} requests to {path}"
        await endpoint.news()
    return found


@case
async def test_a_request_ends_at_the_ack_deadline_and_counts_as_an_attempt(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("stall", "204")
        dead = await world.topic()
        policy = pb.DeadLetterPolicy(dead_letter_topic=dead)
        sub = await pushing(world, endpoint.url(), ack_deadline_seconds=10, dead_letter_policy=policy)
        await sub.publish()
        first = await endpoint.next()
        closed = await endpoint.connection_closed(first.connection)
        again = await endpoint.next()

        assert 9.8 <= closed - first.at <= 10 + OVERHEAD_SECONDS
        assert again.at - first.at >= 9.8
        assert [first.json["deliveryAttempt"], again.json["deliveryAttempt"]] == [1, 2]
        await nothing_left(world, sub)


@case
async def test_a_connection_that_was_closed_when_it_was_used_again_is_no_failure(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("once:204", "204")
        policy = pb.DeadLetterPolicy(dead_letter_topic=await world.topic())
        sub = await pushing(world, endpoint.url(), dead_letter_policy=policy)
        await sub.publish()
        first = await endpoint.next()
        await sub.publish()
        second = await endpoint.next()

        assert first.connection != second.connection
        assert second.json["deliveryAttempt"] == 1
        await nothing_left(world, sub)


# What failures lead to


@case
async def test_a_retry_policy_holds_for_pushes(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("500", "500", "204")
        policy = pb.RetryPolicy(
            minimum_backoff=pb.Duration(seconds=1), maximum_backoff=pb.Duration(seconds=9)
        )
        sub = await pushing(world, endpoint.url(), retry_policy=policy)
        await sub.publish()
        first, second, third = await endpoint.take(3)

    assert 1 <= second.at - first.at <= 1 + OVERHEAD_SECONDS
    assert 2 <= third.at - second.at <= 2 + OVERHEAD_SECONDS


@case
async def test_what_fails_too_often_goes_to_the_dead_letter_topic(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("500")
        dead = await world.subscription(eod=False)
        policy = pb.DeadLetterPolicy(dead_letter_topic=dead.topic, max_delivery_attempts=5)
        sub = await pushing(world, endpoint.url(), dead_letter_policy=policy)
        await sub.publish_data(b"poison")
        requests = await endpoint.take(5)
        (copy,) = await dead.pull()
        await endpoint.nothing_for(4)

    assert [one.json["deliveryAttempt"] for one in requests] == [1, 2, 3, 4, 5]
    assert copy.data == b"poison"
    assert copy.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


@case
async def test_an_endpoint_that_fails_is_left_in_peace_for_longer_and_longer(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan(*["503"] * 6, "204")
        sub = await pushing(world, endpoint.url())
        await sub.publish()
        requests = await endpoint.take(6)
        await sub.publish(5)
        await endpoint.nothing_for(1)
        rest = await endpoint.take(6)

    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(requests)]
    for gap, least in zip(gaps, (0.1, 0.2, 0.4, 0.8, 1.6), strict=True):
        assert least <= gap <= least + OVERHEAD_SECONDS
    assert rest[0].at - requests[-1].at >= 3.2
    assert rest[-1].at - rest[0].at < 3, "one success is enough"


@case
async def test_requests_are_few_at_first_and_double(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("slow:0.4:204")
        sub = await pushing(world, endpoint.url())
        await sub.publish(100)
        requests = await endpoint.take(100)

    assert [one.open for one in requests[:3]] == [1, 2, 3]
    assert requests[3].at - requests[0].at >= 0.4
    at_once = max(one.open for one in requests)
    assert 20 <= at_once <= 60
    # One that comes late belongs to a later round, which makes that no larger than it may be.
    rounds = [int((one.at - requests[0].at) / 0.4) for one in requests]
    assert [rounds.count(0), rounds.count(1) <= 6, rounds.count(0) + rounds.count(1) <= 9] == [3, True, True]


@case
async def test_the_window_has_an_upper_bound(world: World) -> None:
    async with world.own_server("--push-window", "2", in_memory=True) as own, push_endpoint() as endpoint:
        await endpoint.plan("slow:0.05:204")
        sub = await pushing(own, endpoint.url())
        await sub.publish(20)
        requests = await endpoint.take(20)

    assert max(one.open for one in requests) == 2


@case
async def test_without_back_off_a_failure_is_followed_at_once(world: World) -> None:
    async with world.own_server("--no-push-backoff", in_memory=True) as own, push_endpoint() as endpoint:
        await endpoint.plan(*["500"] * 10, "204")
        sub = await pushing(own, endpoint.url())
        await sub.publish()
        requests = await endpoint.take(11)

    assert requests[-1].at - requests[0].at < 10


# Ordering


@case
async def test_of_a_key_one_message_is_outstanding_and_a_failed_one_holds_it(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan(*["slow:0.05:204"] * 7, "slow:0.05:500", "slow:0.05:204")
        sub = await pushing(world, endpoint.url(), enable_message_ordering=True)
        for n in range(10):
            for key in ("a", "b", "c"):
                await sub.publish_key(key, b"%d" % n)
        requests = await endpoint.take(31)
        await nothing_left(world, sub)

    assert 1 < max(one.open for one in requests) <= 3, "keys do not wait for each other, and each for itself"
    failed = 0
    for key in ("a", "b", "c"):
        of_key = [one for one in requests if one.json["message"]["orderingKey"] == key]
        numbers = [int(one.data) for one in of_key]
        assert sorted(set(numbers)) == list(range(10)) and numbers == sorted(numbers)
        failed += len(numbers) - 10
        ends = [later.at - earlier.at for earlier, later in itertools.pairwise(of_key)]
        assert min(ends) >= 0.05
    assert failed == 1


@case
async def test_messages_of_a_held_key_do_not_hold_others(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("stall", "204")
        sub = await pushing(world, endpoint.url(), enable_message_ordering=True)
        await sub.publish_key("held", b"0", b"1", b"2")
        held = await endpoint.next()
        await sub.publish_key("free", *[b"%d" % n for n in range(20)])
        free = await endpoint.take(20, within=5)
        rest = await endpoint.take(3)

    assert [int(one.data) for one in free] == list(range(20))
    assert {one.json["message"]["orderingKey"] for one in free} == {"free"}
    assert [one.data for one in [held, *rest]] == [b"0", b"0", b"1", b"2"]


# Changes of a live subscription


@case
async def test_a_backlog_is_pushed_once_there_is_an_endpoint_and_pulled_once_there_is_none(
    world: World,
) -> None:
    async with push_endpoint() as endpoint:
        sub = await world.subscription(eod=False)
        await sub.publish_data(b"a", b"b", b"c")
        async with sub.stream(max_outstanding_messages=1) as stream:
            (held,) = await stream.take(1)
            await set_endpoint(world, sub, endpoint.url())
            pushed = await endpoint.take(2)
            code, _ = await stream.ended()
        assert code is StatusCode.FAILED_PRECONDITION
        assert {one.data for one in pushed} == {b"a", b"b", b"c"} - {held.data}
        with refused(StatusCode.FAILED_PRECONDITION, "not supported"):
            await sub.pull_now()
        async with sub.stream() as stream:
            assert (await stream.ended())[0] is StatusCode.FAILED_PRECONDITION

        await sub.ack(held)
        await set_endpoint(world, sub, "")
        await sub.publish_data(b"d")
        assert data_of(await sub.pull()) == [b"d"]
        await endpoint.nothing_for(0.3)


@case
async def test_a_push_under_way_is_still_acked_when_its_subscription_is_pulled(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("slow:1:204")
        sub = await pushing(world, endpoint.url())
        await sub.publish()
        await endpoint.next()
        await set_endpoint(world, sub, "")
        assert await sub.watch(11) == []


@case
async def test_a_new_endpoint_is_for_requests_that_start_later(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("slow:1:204", path="/old")
        sub = await pushing(world, endpoint.url("/old"))
        await sub.publish()
        await endpoint.next()
        changed = pb.Subscription(
            name=sub.name, push_config=pb.PushConfig(push_endpoint=endpoint.url("/new"))
        )
        await world.client.UpdateSubscription(
            subscription=changed, update_mask=pb.FieldMask(paths=["push_config"])
        )
        await sub.publish(3)
        assert [one.path for one in await endpoint.take(3)] == ["/new"] * 3
        await asyncio.sleep(1)  # the old one is answered
        await nothing_left(world, sub)
        assert [one.path for one in endpoint.requests] == ["/old", "/new", "/new", "/new"]


@case
async def test_another_wrapper_is_for_the_next_request(world: World) -> None:
    async with push_endpoint() as endpoint:
        sub = await pushing(world, endpoint.url())
        await sub.publish_data(b"wrapped")
        assert (await endpoint.next()).data == b"wrapped"
        config = pb.PushConfig(push_endpoint=endpoint.url(), no_wrapper=pb.PushConfig.NoWrapper())
        await world.client.ModifyPushConfig(subscription=sub.name, push_config=config)
        await sub.publish_data(b"not wrapped")
        assert (await endpoint.next()).body == b"not wrapped"


@case
async def test_a_deleted_or_detached_subscription_pushes_nothing_more(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan("stall")
        deleted, detached = [await pushing(world, endpoint.url()) for _ in range(2)]
        await deleted.publish(1)
        await detached.publish(1)
        first, second = await endpoint.take(2)
        await world.client.DeleteSubscription(subscription=deleted.name)
        await world.client.DetachSubscription(subscription=detached.name)
        await endpoint.connection_closed(first.connection, within=3)
        await endpoint.connection_closed(second.connection, within=3)
        await deleted.publish(1)
        await detached.publish(1)
        await endpoint.nothing_for(1)

        await endpoint.plan("204")
        again = await world.client.CreateSubscription(
            name=deleted.name, topic=deleted.topic, **pushed_to(endpoint.url())
        )
        (message_id,) = await Sub(world, deleted.topic, again.name).publish()
        assert (await endpoint.next()).json["message"]["messageId"] == message_id


@case
async def test_the_backlog_of_a_deleted_topic_is_pushed(world: World) -> None:
    async with push_endpoint() as endpoint:
        await endpoint.plan(*["500"] * 3, "204")
        sub = await pushing(world, endpoint.url())
        await sub.publish(3)
        await endpoint.next()
        await world.client.DeleteTopic(topic=sub.topic)
        while len({one.json["message"]["messageId"] for one in endpoint.requests}) < 3:
            await endpoint.next()


@case
async def test_a_seek_brings_pushed_messages_back(world: World) -> None:
    async with push_endpoint() as endpoint:
        sub = await pushing(world, endpoint.url(), retain_acked_messages=True)
        await sub.publish(3)
        first = await endpoint.take(3)
        await answers_heard(world, sub)
        await world.client.Seek(subscription=sub.name, time=pb.Timestamp(seconds=1))
        again = await endpoint.take(3)

    def ids(requests: list[Request]) -> set[str]:
        return {one.json["message"]["messageId"] for one in requests}

    assert ids(first) == ids(again)


# The server comes and goes


@asynccontextmanager
async def failing_commits(own: World):
    await own.inject_fault(admin_pb.InjectCommitFaultRequest.FAIL)
    yield
    await own.inject_fault(admin_pb.InjectCommitFaultRequest.NONE)


@case
async def test_an_ack_that_a_failed_commit_did_not_take_is_given_again(world: World) -> None:
    async with world.own_server() as own, push_endpoint() as endpoint:
        await endpoint.plan("slow:0.5:204")
        sub = await pushing(own, endpoint.url(), ack_deadline_seconds=10)
        await sub.publish()
        await endpoint.next()
        async with failing_commits(own):
            await own.said("a commit failed")
        await endpoint.nothing_for(12)
        await nothing_left(own, sub)


@case
async def test_a_subscription_whose_change_was_not_committed_goes_on(world: World) -> None:
    async with world.own_server() as own, push_endpoint() as endpoint:
        sub = await pushing(own, endpoint.url())
        async with failing_commits(own):
            with refused(StatusCode.UNAVAILABLE):
                await set_endpoint(own, sub, "")
        await sub.publish_data(b"still pushed")
        assert (await endpoint.next()).data == b"still pushed"
        async with failing_commits(own):
            with refused(StatusCode.UNAVAILABLE):
                await set_endpoint(own, sub, endpoint.url("/elsewhere"))
        await sub.publish_data(b"here")
        assert (await endpoint.next()).path == "/push"


@case
async def test_after_a_kill_what_was_under_way_is_pushed_again_and_what_was_acked_is_not(
    world: World,
) -> None:
    async with world.own_server() as own, push_endpoint() as endpoint:
        sub = await pushing(own, endpoint.url(), ack_deadline_seconds=10)
        acked = await sub.publish(10)
        await endpoint.take(10)
        await answers_heard(own, sub)
        await asyncio.sleep(0.5)  # until the acks are committed, of which nobody is told
        await endpoint.plan("stall")
        stalled = await sub.publish(5)
        held = await endpoint.take(5)
        await own.kill_server()
        await endpoint.plan("204")
        more = await sub_published_after(own, sub)
        began = time.monotonic()
        requests = await endpoint.take(6)

    ids = [one.json["message"]["messageId"] for one in requests]
    assert ids[0] == more, "what has no lease need not wait"
    assert sorted(ids[1:]) == sorted(stalled) and not set(ids) & set(acked)
    assert all(one.at - held[0].at >= 9.5 for one in requests[1:]), "leases outlive the process"
    assert time.monotonic() - began < 15


async def sub_published_after(own: World, sub: Sub) -> str:
    await own.start_server()
    (message_id,) = await sub.publish()
    return message_id


@case
async def test_kills_lose_nothing(world: World) -> None:
    async with world.own_server() as own, push_endpoint() as endpoint:
        await endpoint.plan("slow:0.02:204")
        sub = await pushing(own, endpoint.url(), ack_deadline_seconds=10)
        ids: set[str] = set()
        for _ in range(3):
            ids |= set(await sub.publish(300))
            await endpoint.take(50)
            await own.kill_server()
            await own.start_server()
        pushed = {one.json["message"]["messageId"] for one in endpoint.requests}
        while not ids <= pushed:
            pushed.add((await endpoint.next()).json["message"]["messageId"])


@case
async def test_a_stop_waits_for_answers_that_are_near_and_not_for_others(world: World) -> None:
    async with world.own_server() as own, push_endpoint() as endpoint:
        await endpoint.plan("slow:1:204", path="/near")
        await endpoint.plan("stall", path="/never")
        near = await pushing(own, endpoint.url("/near"), ack_deadline_seconds=10)
        never = await pushing(own, endpoint.url("/never"), ack_deadline_seconds=10)
        await near.publish()
        await never.publish()
        requests = await endpoint.take(2)
        began = time.monotonic()
        assert await asyncio.to_thread(own.server.terminate) == 0
        assert time.monotonic() - began < 6
        await own.disconnect()
        await own.start_server()
        again = await endpoint.next()

        assert again.path == "/never" and again.at - requests[0].at >= 9.5
        await nothing_left(own, near)


@case
async def test_a_dead_endpoint_costs_nothing(world: World) -> None:
    async with world.own_server() as own:
        async with push_endpoint() as endpoint:
            url = endpoint.url()
        sub = await pushing(own, url)
        process = psutil.Process(own.server.pid)
        await sub.publish(20)
        await warned(own, sub, "fails:")
        before = process.memory_info().rss
        for _ in range(40):
            await sub.publish(100, size=10_000)
        await asyncio.sleep(2)  # the disk is done with it
        used = process.cpu_times()
        await asyncio.sleep(3)
        idle = process.cpu_times()
        assert (idle.user + idle.system) - (used.user + used.system) <= 0.1
        # The newest messages are kept in memory for live subscribers, up to 32 MiB of all topics.
        assert process.memory_info().rss - before < 100_000_000
        state = await own.state_of(sub)
        assert state.leased <= 3

        async with push_endpoint(endpoint.port) as endpoint:
            found = set()
            while len(found) < 4020:
                found.add((await endpoint.next(within=40)).json["message"]["messageId"])
        line = await warned(own, sub, "fails:")
        assert len([one for one in own.server.lines if "fails:" in one]) == 1, line


# Authentication


@case
async def test_a_token_of_the_server_s_own_key_goes_with_each_push_and_the_key_stays(world: World) -> None:
    email, audience = "pusher@project.iam.gserviceaccount.com", "https://receiver.test"
    issuer = "https://issuer.test"
    async with world.own_server("--push-issuer", issuer) as own, push_endpoint() as endpoint:
        token = pb.PushConfig.OidcToken(service_account_email=email, audience=audience)
        sub = await pushing(own, endpoint.url("/with"), dict(oidc_token=token))
        default = pb.PushConfig.OidcToken(service_account_email=email)
        other = await pushing(own, endpoint.url("/without"), dict(oidc_token=default))
        await sub.publish(2)
        await other.publish(1)
        first, second, third = sorted(await endpoint.take(3), key=lambda one: one.path)
        await own.restart_server()
        await sub.publish()
        fourth = await endpoint.next()
        rest = Rest(own.server.port)
        found = rest("GET", "/.well-known/openid-configuration").json
        assert found["issuer"] == issuer
        assert found["jwks_uri"] == f"http://127.0.0.1:{own.server.port}/.well-known/jwks.json"
        keys = jwt.PyJWKSet.from_dict(rest("GET", "/.well-known/jwks.json").json)
        await own.kill_server()
        assert [key.key_id for key in keys] == [key["kid"] for key in jwks(stored_key(own))["keys"]]

    def claims_of(request: Request, audience: str) -> dict:
        kind, _, text = request.header("Authorization").partition(" ")
        assert kind == "Bearer"
        header = jwt.get_unverified_header(text)
        assert header.keys() == {"alg", "kid", "typ"} and (header["alg"], header["typ"]) == ("RS256", "JWT")
        return jwt.decode(text, keys[header["kid"]].key, ["RS256"], audience=audience, issuer=issuer)

    claims = claims_of(first, audience)
    assert claims.keys() == {"aud", "azp", "email", "email_verified", "exp", "iat", "iss", "sub"}
    assert claims["exp"] == claims["iat"] + 3600 and abs(claims["iat"] - time.time()) < 60
    assert claims["azp"] == claims["sub"] and claims["sub"].isdigit()
    assert (claims["email"], claims["email_verified"]) == (email, True)
    assert first.header("Authorization") == second.header("Authorization"), "it is used again"
    assert claims_of(third, endpoint.url("/without"))["sub"] == claims["sub"]
    assert claims_of(fourth, audience)["email"] == email


def stored_key(world: World) -> bytes:
    assert world.server.data_dir is not None
    query = "SELECT data FROM document WHERE kind = 'key' AND name = 'push'"
    with closing(sqlite3.connect(world.server.data_dir / FILE_NAME)) as connection:
        (key,) = connection.execute(query).fetchone()
    return bytes(key)


@case
async def test_a_certificate_that_nobody_vouches_for_is_a_failure(world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "endpoint.pem"
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
        async with push_endpoint(certificate=certificate) as endpoint:
            sub = await pushing(world, endpoint.url())
            await sub.publish()
            line = await warned(world, sub, "fails:")
            assert "certificate" in line.lower()
            await endpoint.nothing_for(0.1)


def test_pushes_go_over_tls_to_an_endpoint_whose_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = tmp_path / "endpoint.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    # What Python's TLS, and so the server, takes for the authorities that it trusts.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    async def push(server: ServerProcess) -> None:
        async with push_endpoint(certificate=certificate) as endpoint, World(server) as world:
            sub = await pushing(world, endpoint.url())
            await sub.publish_data(b"in private")
            assert (await endpoint.next()).data == b"in private"

    with ServerProcess(None) as server:
        asyncio.run(push(server))
