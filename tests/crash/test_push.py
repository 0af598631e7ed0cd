"""Kills, failed commits and changes while messages are pushed: the journal tells the state, nothing is lost,
and each ordering key stays in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pubsubd.conform.calls import ADMIN, Client
from pubsubd.conform.endpoint import Endpoint
from pubsubd.wire import admin_pb, pb
from tests.crash.database import read_copy
from tests.crash.served import check_journal
from tests.support.endpoint import PushEndpoint, push_endpoint
from tests.support.server import ServerProcess

TOPIC, DEAD = "projects/p/topics/orders", "projects/p/topics/dead"
PLAIN, ORDERED, LIMITED = (f"projects/p/subscriptions/{name}" for name in ("plain", "ordered", "limited"))
KEYS = 5
FAIL, NONE = admin_pb.InjectCommitFaultRequest.FAIL, admin_pb.InjectCommitFaultRequest.NONE
ROUNDS = 4
ALL_SECONDS_MAX = 60


def connected(server: ServerProcess) -> tuple[Client, Client]:
    return (
        Client(Endpoint(server.address).channel()),
        Client(Endpoint(server.admin_address).channel(), [ADMIN]),
    )


async def create(client: Client, endpoint: PushEndpoint) -> None:
    for topic in (TOPIC, DEAD):
        await client.CreateTopic(name=topic)
    policy = pb.DeadLetterPolicy(dead_letter_topic=DEAD, max_delivery_attempts=5)
    more: dict[str, dict[str, Any]] = {
        PLAIN: {},
        ORDERED: {"enable_message_ordering": True},
        LIMITED: {"dead_letter_policy": policy, "enable_message_ordering": True},
    }
    for name, fields in more.items():
        config = pb.PushConfig(push_endpoint=endpoint.url(f"/{name[-5:]}"))
        await client.CreateSubscription(
            name=name, topic=TOPIC, ack_deadline_seconds=10, push_config=config, **fields
        )
        await endpoint.plan("mixed", path=f"/{name[-5:]}")


async def publish(client: Client, number: int) -> list[str]:
    messages = [
        pb.PubsubMessage(data=b"%d" % n, ordering_key=f"k{number % KEYS}") for n in range(number, number + 5)
    ]
    return list((await client.Publish(topic=TOPIC, messages=messages)).message_ids)


async def turn_about(client: Client, endpoint: PushEndpoint) -> None:
    """It is pulled for a moment, and then pushed elsewhere."""
    for url in ("", endpoint.url("/other"), endpoint.url(f"/{PLAIN[-5:]}")):
        config = pb.PushConfig(push_endpoint=url)
        await client.ModifyPushConfig(subscription=PLAIN, push_config=config)


async def fail_commits(admin: Client) -> None:
    await admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=FAIL))
    await asyncio.sleep(0.2)
    await admin.InjectCommitFault(admin_pb.InjectCommitFaultRequest(fault=NONE))


@pytest.mark.slow
async def test_pushes_survive_kills_failed_commits_and_changes(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--no-push-backoff", "--seal-seconds", "0", admin=True)
    published: set[str] = set()
    async with push_endpoint() as endpoint:
        await asyncio.to_thread(server.start)
        try:
            client, admin = connected(server)
            await create(client, endpoint)
            for number in range(ROUNDS):
                for step in range(20):
                    published.update(await publish(client, 100 * number + 5 * step))
                await endpoint.take(60)
                await turn_about(client, endpoint)
                if number % 2:
                    await fail_commits(admin)
                await asyncio.to_thread(server.kill)
                check_journal(await asyncio.to_thread(read_copy, tmp_path))
                await asyncio.to_thread(server.start)
                client, admin = connected(server)
            for name in (PLAIN, ORDERED, LIMITED):
                await endpoint.plan("204", path=f"/{name[-5:]}")
            async with asyncio.timeout(ALL_SECONDS_MAX):
                while any(ids != published for ids in pushed_ids(endpoint)):
                    await endpoint.next()
            await settled(admin)
            assert await asyncio.to_thread(server.terminate) == 0
            check_journal(await asyncio.to_thread(read_copy, tmp_path))
            assert "Traceback" not in server.output, server.output
        finally:
            if server.process is not None and server.process.poll() is None:
                server.kill()
    check_requests(endpoint)


async def settled(admin: Client) -> None:
    """Until nothing is owed; leases of before the last kill end after ten seconds."""
    async with asyncio.timeout(ALL_SECONDS_MAX):
        while True:
            states = (await admin.GetState()).subscriptions
            if not any(one.leased or one.waiting for one in states):
                return
            await asyncio.sleep(0.2)


def pushed_to(endpoint: PushEndpoint) -> dict[str, list[Any]]:
    pushed: dict[str, list[Any]] = defaultdict(list)
    for request in endpoint.requests:
        pushed[request.json["subscription"]].append(request.json["message"])
    return pushed


def pushed_ids(endpoint: PushEndpoint) -> list[set[str]]:
    """By subscription; whatever goes to the dead letter topic was pushed before."""
    pushed = pushed_to(endpoint)
    return [{one["messageId"] for one in pushed[name]} for name in (PLAIN, ORDERED, LIMITED)]


def check_requests(endpoint: PushEndpoint) -> None:
    pushed = pushed_to(endpoint)
    for name in (ORDERED, LIMITED):
        for key in {one["orderingKey"] for one in pushed[name]}:
            of_key = [int(one["messageId"]) for one in pushed[name] if one["orderingKey"] == key]
            first = list(dict.fromkeys(of_key))
            assert first == sorted(first), f"{name}, {key}"
