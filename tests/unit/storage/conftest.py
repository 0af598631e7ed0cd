from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from pubsubd.storage.store import Store
from tests.sim.disk import SimDisk, SimStore, Trouble
from tests.unit.storage.fake_store import SECRET, FakeStore

Any_Store = Store | FakeStore | SimStore


@pytest.fixture(params=["file", "memory", "fake", "sim"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any_Store]:
    """Every Store there is, empty."""
    if request.param == "fake":
        yield FakeStore()
        return
    if request.param == "sim":
        yield SimStore(SimDisk(SECRET), Trouble(), Random(0))
        return
    opened = await Store.open(tmp_path if request.param == "file" else None, "process")
    yield opened
    await opened.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Store]:
    """The real one, in a file of this test."""
    opened = await Store.open(tmp_path, "process")
    yield opened
    await opened.close()
