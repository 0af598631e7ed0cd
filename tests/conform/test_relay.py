"""The relay: it passes calls on, through TLS too, and a reply that it keeps never arrives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc import StatusCode

from pubsubd.conform.calls import Client, refused
from pubsubd.conform.endpoint import Endpoint, endpoint_of
from pubsubd.conform.lab import Lab, Setting
from pubsubd.conform.relay import Relay
from pubsubd.conform.served import Served, StartCommand
from tests.conform.secured import Authority, tls_proxy
from tests.conform.support import START_COMMAND


async def check_relay(endpoint: Endpoint) -> None:
    async with Lab(Setting(endpoint)) as lab, Relay(endpoint) as relay:
        channel = relay.endpoint.channel(("grpc.enable_retries", 0), *relay.options)
        client = Client(channel)
        name = (await client.CreateTopic(name=lab.name("topic"))).name
        assert (await lab.client.GetTopic(topic=name)).name == name

        # What was asked is done, and nobody hears of it.
        relay.keep_replies()
        deletion = client.DeleteTopic(topic=name)
        await relay.request_sent()
        with refused(StatusCode.NOT_FOUND):
            while True:
                await lab.client.GetTopic(topic=name)
                await asyncio.sleep(0.02)
        assert not deletion.done()
        relay.hang_up()
        with refused(StatusCode.UNAVAILABLE):
            await deletion
        await channel.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_kept_reply_is_lost_and_its_request_is_not(tls: bool, tmp_path: Path) -> None:
    served = Served(StartCommand(START_COMMAND))
    try:
        await served.start()
        if not tls:
            return await check_relay(served.endpoint)
        authority = Authority(tmp_path)
        async with tls_proxy(served.endpoint.address, authority.context()) as address:
            await check_relay(endpoint_of(address, ca_cert=authority.file))
    finally:
        served.remove()
