from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pubsubd.storage.store import Store
from tests.unit.storage.fake_store import FakeStore

Any_Store = Store | FakeStore


@pytest.fixture(params=["file", "memory", "fake"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any_Store]:
    """Every Store there is, empty."""
    if request.param == "fake":
        yield FakeStore()
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
