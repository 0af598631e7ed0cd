"""What a push costs, and how many of them an endpoint on this machine gets in a second."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

from pubsubd.wire import pb
from tests.bench.load import PROJECT, Client, LoadError
from tests.bench.scenarios import (
    Run,
    Usage,
    client_of,
    each_us,
    no_garbage_collection,
    publish,
    until_quiet,
)
from tests.bench.targets import PubsubdTarget, Target

TOKEN = pb.PushConfig.OidcToken(service_account_email="push@bench.test")
#: How the subscriptions differ, by what is measured of them.
KINDS = {
    "": pb.PushConfig(),
    ", unwrapped": pb.PushConfig(no_wrapper=pb.PushConfig.NoWrapper()),
    ", with a token": pb.PushConfig(oidc_token=TOKEN),
}
WARM_UP_MESSAGES = 200
SECONDS_MAX = 300
DEAD_SECONDS = 4.0
#: Pauses double from 100 ms, so by now an endpoint that is down is asked every few seconds at most.
DEAD_AFTER_SECONDS = 4.0


async def pushing(run: Run) -> None:
    """A backlog lies ready when its subscription gets an endpoint: from then on to the last request."""
    sink = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.sink"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    target = PubsubdTarget(run.work_dir / "push", run.serve_options)
    try:
        url = f"http://127.0.0.1:{await _line(sink)}/push"
        await target.start()
        async with client_of(target) as client:
            await _push(run, target, client, sink, url, "", WARM_UP_MESSAGES)
            for repeat in range(run.settings.push_repeats):
                for kind in KINDS:
                    run.say(f"push{kind}, repeat {repeat + 1} of {run.settings.push_repeats}")
                    count = run.settings.push_messages
                    rate, cpu_us = await _push(run, target, client, sink, url, kind, count)
                    run.results.add("push", f"rate{kind}", "msg/s", target.name, rate)
                    run.results.add("push", f"server CPU per message{kind}", "µs", target.name, cpu_us)
            run.say("push, an endpoint that is down")
            sink.kill()
            await sink.wait()
            share = await _dead(run, target, client, url)
            run.results.add("push", "an endpoint that is down: share of a core", "%", target.name, share)
    finally:
        if sink.returncode is None:
            sink.kill()
            await sink.wait()
        target.clean_up()


async def _push(
    run: Run,
    target: Target,
    client: Client,
    sink: asyncio.subprocess.Process,
    url: str,
    kind: str,
    count: int,
) -> tuple[float, float | None]:
    topic, subscription = await _create(client)
    await publish(run, client, topic, count)
    await until_quiet(target)
    assert sink.stdin is not None
    sink.stdin.write(b"%d\n" % count)
    with no_garbage_collection():
        usage, began = Usage(target), time.monotonic()
        await _set_endpoint(client, subscription, url, kind)
        try:
            ended = float(await asyncio.wait_for(_line(sink), SECONDS_MAX))
        except TimeoutError:
            raise LoadError(f"{count} messages were not pushed within {SECONDS_MAX} s") from None
        await until_quiet(target)
        used = usage.seconds()
    await client.delete_pair(topic, subscription)
    return count / (ended - began), each_us(used, count)


async def _dead(run: Run, target: Target, client: Client, url: str) -> float:
    topic, subscription = await _create(client)
    await _set_endpoint(client, subscription, url, "")
    await publish(run, client, topic, run.settings.push_messages)
    await asyncio.sleep(DEAD_AFTER_SECONDS)
    usage = Usage(target)
    await asyncio.sleep(DEAD_SECONDS)
    used = usage.seconds()
    assert used is not None
    await client.delete_pair(topic, subscription)
    return used / DEAD_SECONDS * 100


async def _create(client: Client) -> tuple[str, str]:
    unique = uuid.uuid4().hex
    topic, subscription = f"{PROJECT}/topics/t{unique}", f"{PROJECT}/subscriptions/s{unique}"
    await client.create_topic(topic)
    request = pb.Subscription(name=subscription, topic=topic, ack_deadline_seconds=60)
    await client.call("Subscriber/CreateSubscription", request)
    return topic, subscription


async def _set_endpoint(client: Client, subscription: str, url: str, kind: str) -> None:
    config = pb.PushConfig()
    config.CopyFrom(KINDS[kind])
    config.push_endpoint = url
    request = pb.ModifyPushConfigRequest(subscription=subscription, push_config=config)
    await client.call("Subscriber/ModifyPushConfig", request)


async def _line(sink: asyncio.subprocess.Process) -> str:
    assert sink.stdout is not None
    line = await sink.stdout.readline()
    if not line:
        raise LoadError("the endpoint ended")
    return line.decode().strip()
