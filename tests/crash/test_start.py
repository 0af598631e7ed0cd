"""A server that cannot start says why in one sentence, touches nothing, and ends with a failure."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pubsubd.storage.store import APPLICATION_ID, FILE_NAME, SCHEMA_VERSION
from tests.crash.served import Served
from tests.support.server import ServerProcess


def refusal(data_dir: Path, *options: str, port: int = 0) -> str:
    """What a server says that does not start; fails if it says more than a sentence."""
    server = ServerProcess(data_dir, *options, port=port)
    ended = subprocess.run(server.command(), capture_output=True, text=True, timeout=15)
    said = ended.stdout + ended.stderr
    assert ended.returncode in (1, 2), said
    assert "Traceback" not in said
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("pubsubd: ") and len(line) < 400, line
    return line


def contents(directory: Path) -> dict[str, bytes]:
    files = [file for file in directory.iterdir() if file.is_file() and file.name != "pubsubd.lock"]
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("template")
    with Served(directory) as served:
        served.create()
        served.publish(*[b"x" * 1000] * 100)
        served.modack(600, *served.pull(10))
        served.stop()
    return directory


@pytest.fixture
def used(template: Path, tmp_path: Path) -> Path:
    """A data directory with something in it: 100 messages of which 10 are leased."""
    return shutil.copytree(template, tmp_path / "used")


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_database_of_a_newer_version(used: Path) -> None:
    change(used / FILE_NAME, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = contents(used)

    said = refusal(used)

    assert "newer" in said and str(SCHEMA_VERSION + 1) in said and FILE_NAME in said
    assert contents(used) == before


def test_a_database_of_another_program(tmp_path: Path) -> None:
    change(tmp_path / FILE_NAME, "CREATE TABLE photos (name TEXT)", "INSERT INTO photos VALUES ('cat')")
    before = contents(tmp_path)

    assert "another program" in refusal(tmp_path)
    assert contents(tmp_path) == before


def test_a_database_that_another_program_marked_as_its_own(tmp_path: Path) -> None:
    change(tmp_path / FILE_NAME, "PRAGMA application_id = 77")
    assert "another program" in refusal(tmp_path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"This is not a database. " * 100)
    before = contents(tmp_path)

    assert FILE_NAME in refusal(tmp_path)
    assert contents(tmp_path) == before


def test_a_directory_where_the_database_should_be(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert FILE_NAME in refusal(tmp_path)


def _zero_pages(path: Path) -> None:
    data = path.read_bytes()
    # All but the first page, which says that this is a database of ours.
    path.write_bytes(data[:8192] + bytes(len(data) - 8192))


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def _garble_the_state(path: Path) -> None:
    change(path, "UPDATE oplog SET data = x'0102030405'")


def _cut_the_state(path: Path) -> None:
    change(path, "UPDATE oplog SET data = substr(data, 1, length(data) - 7)")


def _state_of_a_later_layout(path: Path) -> None:
    change(path, "UPDATE oplog SET data = CAST(x'63' || substr(data, 2) AS BLOB)")


def _garble_a_resource(path: Path) -> None:
    change(path, "UPDATE topic SET resource = x'ffffffff'")


def _forget_a_topic(path: Path) -> None:
    change(path, "DELETE FROM topic")


def _forget_a_table(path: Path) -> None:
    change(path, "DROP TABLE oplog")


def _forget_who_it_is(path: Path) -> None:
    change(path, "DELETE FROM server")


DAMAGES = [
    *(_zero_pages, _cut_off, _garble_the_state, _cut_the_state, _state_of_a_later_layout),
    *(_garble_a_resource, _forget_a_topic, _forget_a_table, _forget_who_it_is),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__.strip("_") for damage in DAMAGES])
def test_a_damaged_database(used: Path, damage: Callable[[Path], None]) -> None:
    damage(used / FILE_NAME)
    assert FILE_NAME in refusal(used)


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    with Served(tmp_path) as served:
        served.create()


def test_a_marked_database_without_tables_is_refused(tmp_path: Path) -> None:
    change(tmp_path / FILE_NAME, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 1")
    assert FILE_NAME in refusal(tmp_path)


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("mine")

    assert "data" in refusal(place)
    assert place.read_text() == "mine"


def test_a_directory_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in refusal(tmp_path / "file" / "data")


def test_a_data_directory_that_another_server_uses(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        said = refusal(tmp_path)
        # The first one did not notice.
        served.create()

    assert "another pubsubd" in said and str(tmp_path) in said


def test_a_data_directory_is_free_again_when_its_server_was_killed(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.restart()
        assert served.client.GetTopic(topic="projects/crash/topics/orders").name


def test_a_port_that_another_server_has(tmp_path: Path) -> None:
    with Served(tmp_path / "one") as served:
        said = refusal(tmp_path / "two", port=served.server.port)
        assert str(served.server.port) in said


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal(tmp_path, port=port)


def test_an_admin_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert str(port) in refusal(tmp_path, "--admin", str(port))


def test_a_host_that_is_not_this_machine(tmp_path: Path) -> None:
    assert "192.0.2.1" in refusal(tmp_path, "--host", "192.0.2.1")


def test_a_start_that_failed_leaves_the_state_as_it_was(used: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refusal(used, port=taken.getsockname()[1])
    with Served(used) as served:
        state = served.admin.GetState().subscriptions[0]
        assert (state.cursor, state.leased) == (10, 10)
