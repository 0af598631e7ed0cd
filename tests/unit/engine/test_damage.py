"""A database that something damaged: the start says so in one way, whatever it is that makes no sense."""

from __future__ import annotations

import pytest

from pubsubd.broker.broker import Broker
from pubsubd.engine.engine import Damaged, Engine
from pubsubd.wire import pb
from tests.unit.engine.running import running
from tests.unit.engine.virtual import virtual
from tests.unit.storage.fake_store import FakeStore


async def stored() -> FakeStore:
    """What a server left that had a subscription, and a topic that nothing refers to."""
    store = FakeStore()
    async with running(store) as server:
        await server.call(Broker.create_topic, pb.Topic(name="projects/p/topics/alone"))
    return store.reopened()


async def refuses_to_start(store: FakeStore) -> None:
    with pytest.raises(Damaged):
        await Engine(store, journal=True).start("test")


@virtual
async def test_a_topic_whose_number_is_none_of_ours_stops_the_start() -> None:
    """It is met when the first commit writes it again, not when it is read."""
    store = await stored()
    alone, (_, *row) = max(store.topics.items())
    store.topics[alone] = (2**31, *row)

    await refuses_to_start(store)


@virtual
async def test_a_resource_that_cannot_be_read_stops_the_start() -> None:
    store = await stored()
    store.topics[1] = (*store.topics[1][:-1], b"\xff")

    await refuses_to_start(store)


@virtual
async def test_an_operation_log_that_is_cut_off_stops_the_start() -> None:
    store = await stored()
    store.oplog[-1] = store.oplog[-1][:-1]

    await refuses_to_start(store)
