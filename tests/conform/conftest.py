"""One server in memory for all tests of the framework."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsubd.conform.endpoint import Endpoint
from pubsubd.conform.lab import Setting
from tests.conform.support import Cases
from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(None) as server:
        yield server


@pytest.fixture
def setting(server: ServerProcess) -> Setting:
    return Setting(Endpoint(server.address))


@pytest.fixture
def cases() -> Cases:
    return Cases()
