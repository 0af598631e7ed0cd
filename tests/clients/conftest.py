from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.world import World
from tests.support.server import ServerProcess


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("clients") / "data") as server:
        yield server


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def own_server(tmp_path) -> Iterator[ServerProcess]:
    """For the tests that stop it."""
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def world(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from _world(server, monkeypatch)


@pytest.fixture
def confirming_world(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """With a server whose answer to a batch of acks leaves no doubt about any of them."""
    with ServerProcess(tmp_path / "data", "--ack-batch-policy", "confirm") as server:
        yield from _world(server, monkeypatch)


@pytest.fixture
def own_world(own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from _world(own_server, monkeypatch)


def _world(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    world = World()
    yield world
    world.close()
