"""One server for the whole session, the cases that run on it at once, and a client for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

pytest.register_assert_rewrite("tests.wire.calls", "tests.wire.support")

# These stand below because asserts are rewritten at the first import of a module (hence each E402).
from tests.support.server import ServerProcess  # noqa: E402 (below the line that rewrites asserts)
from tests.wire.calls import CHANNEL_OPTIONS, Client  # noqa: E402 (likewise)
from tests.wire.harness import Conductor  # noqa: E402 (likewise)
from tests.wire.support import World  # noqa: E402 (likewise)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir: Path = tmp_path_factory.mktemp("pubsubd")
    with ServerProcess(data_dir, admin=True) as server:
        yield server
        # Whatever the tests sent, none of it may have met an error that nobody thought of.
        assert server.process is not None and server.process.poll() is None, server.output
        assert server.terminate() == 0, server.output
        assert "Traceback" not in server.output, server.output


@pytest.fixture(scope="session")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        yield channel


@pytest.fixture(scope="session")
def client(channel: grpc.Channel) -> Client:
    return Client(channel)


@pytest.fixture(scope="session")
def conductor(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Conductor]:
    selected = [item.function.body for item in request.session.items if hasattr(item.function, "body")]
    conductor = Conductor(lambda: World(server), selected)
    yield conductor
    conductor.close()
