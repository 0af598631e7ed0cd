"""A server has its journal sealed beside its work, and nothing that goes wrong there reaches a client."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from pubsubd.storage.store import FILE_NAME
from pubsubd.wire import admin_pb
from tests.crash.replay import RECORD
from tests.crash.served import Served

parquet = pytest.importorskip("pyarrow.parquet", reason="segments need the extra pubsubd[analytics]")

# Starting another Python, with numpy and pyarrow, on a busy machine.
SEAL_SECONDS_MAX = 30.0


def sealed(journal: Path) -> list[int]:
    """The numbers of all events in segments, in the order of the files' names."""
    paths = sorted((journal / "segments").rglob("seg-*.parquet"), key=lambda path: path.name)
    return [seq for path in paths for seq in parquet.read_table(path, columns=["seq"])["seq"].to_pylist()]


def tail(data_dir: Path) -> list[int]:
    """The numbers of all events in the database of a server that may be running."""
    connection = sqlite3.connect(f"file:{data_dir / FILE_NAME}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT data FROM journal_tail ORDER BY first_seq").fetchall()
    finally:
        connection.close()
    return [fields[0] for (data,) in rows for fields in RECORD.iter_unpack(data)]


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SEAL_SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline, f"not within {SEAL_SECONDS_MAX:g} s: {what}"
        time.sleep(0.05)


def seal(served: Served, *, backlog: bool = False) -> admin_pb.SealResponse:
    return served.admin.Seal(admin_pb.SealRequest(backlog=backlog))


def all_numbers(served: Served, journal: Path) -> None:
    """Every event is in a segment or in the tail, and none is missing."""
    found = sorted({*sealed(journal), *tail(served.server.data_dir)})
    assert found == list(range(1, found[-1] + 1))


def test_the_admin_seals_everything_that_was_answered(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(b"a", b"b")
        served.ack(*served.pull(1))

        answer = seal(served, backlog=True)

        numbers = sealed(tmp_path / "journal")
        assert numbers == list(range(1, answer.last_seq + 1))
        (open_message,) = parquet.read_table(answer.backlog).to_pylist()
        assert open_message["message_id"] in (1, 2)
        until(lambda: not tail(tmp_path), "the tail is deleted without anybody calling")
        served.publish(b"c")
        all_numbers(served, tmp_path / "journal")


def test_a_segment_that_was_damaged_is_found_out_when_it_is_read(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(*[b"x"] * 100)
        seal(served)
    (path,) = (tmp_path / "journal" / "segments").rglob("seg-*.parquet")
    pages = parquet.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[pages.data_page_offset + pages.total_compressed_size - 1] ^= 1
    path.write_bytes(data)

    with pytest.raises(OSError, match="CRC"):
        parquet.read_table(path, page_checksum_verification=True)


def test_events_are_sealed_once_they_are_old(tmp_path: Path) -> None:
    with Served(tmp_path, "--seal-seconds", "0.5") as served:
        served.create()
        served.publish(b"a")
        until(lambda: bool(sealed(tmp_path / "journal")), "sealed by age")
        served.publish(b"b")
        until(lambda: not tail(tmp_path), "and again")
        all_numbers(served, tmp_path / "journal")


def test_events_are_sealed_once_there_are_many(tmp_path: Path) -> None:
    with Served(tmp_path, "--seal-seconds", "0", "--seal-events", "100") as served:
        served.create()
        time.sleep(1)
        assert sealed(tmp_path / "journal") == []
        served.publish(*[b"x"] * 100)
        until(lambda: len(sealed(tmp_path / "journal")) >= 100, "sealed by length")


def test_an_orderly_end_seals_what_is_left_and_names_what_is_open(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(b"a", b"b", b"c")
        served.ack(*served.pull(1))
        assert served.stop() == 0

        numbers = sealed(tmp_path / "journal")
        assert numbers == list(range(1, numbers[-1] + 1))
        (path,) = (tmp_path / "journal" / "backlog").iterdir()
        assert path.name == f"backlog-{numbers[-1]}.parquet"
        assert parquet.read_table(path).num_rows == 2

        served.start()
        until(lambda: bool(tail(tmp_path)), "the start is in the tail")
        assert min(tail(tmp_path)) == numbers[-1] + 1
        all_numbers(served, tmp_path / "journal")


def test_after_a_kill_nothing_is_sealed_twice_or_left_out(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(b"a")
        seal(served)
        served.publish(b"b")
        served.restart()
        served.publish(b"c")
        last_seq = seal(served).last_seq
        assert sealed(tmp_path / "journal") == list(range(1, last_seq + 1))


def test_while_segments_cannot_be_written_the_tail_stays_and_clients_notice_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with Served(tmp_path, "--seal-seconds", "0.2") as served:
        journal.mkdir()
        (journal / "segments").write_text("a file in the way")
        served.create()
        served.publish(b"a")
        until(lambda: "cannot be sealed for now" in served.server.output, "the log says so")
        with pytest.raises(grpc.RpcError) as caught:
            seal(served)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        served.ack(*served.pull(1))
        assert min(tail(tmp_path)) == 1

        (journal / "segments").unlink()
        until(lambda: "sealed again" in served.server.output, "the log says so")
        all_numbers(served, journal)
        assert served.server.output.count("cannot be sealed for now") == 1, "and says it once"


def test_the_journal_of_another_database_is_left_alone(tmp_path: Path) -> None:
    journal = tmp_path / "shared"
    with Served(tmp_path / "first", "--journal-dir", str(journal)) as served:
        served.create()
        seal(served)
    before = sealed(journal)

    with Served(tmp_path / "second", "--journal-dir", str(journal)) as served:
        assert "belongs to another database" in served.server.output
        served.create()
        with pytest.raises(grpc.RpcError) as caught:
            seal(served)
        assert "belongs to another database" in (caught.value.details() or "")
        assert min(tail(tmp_path / "second")) == 1
    assert sealed(journal) == before


def test_without_pyarrow_the_server_says_so_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Served(tmp_path / "data", "--log-level", "debug") as served:
        assert "pip install 'pubsubd[analytics]'" in served.server.output
        served.create()
        served.ack(*(served.publish(b"a") and served.pull(1)))
        with pytest.raises(grpc.RpcError) as caught:
            seal(served)
        assert "pyarrow" in (caught.value.details() or "")
        assert served.stop() == 0
    assert not (tmp_path / "data" / "journal").exists()


def test_a_server_in_memory_leaves_its_journal_in_a_folder_that_it_names(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with Served(None, "--journal", "on", "--journal-dir", str(journal)) as served:
        assert f"sealed into {journal}" in served.server.output
        served.create()
        served.publish(b"a")
        assert served.stop() == 0
    numbers = sealed(journal)
    assert numbers == list(range(1, numbers[-1] + 1))


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_a_server_that_seals_nothing_has_no_process_beside_it(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.create()
        served.publish(b"a")
        seal(served)
        children = Path(f"/proc/{served.server.pid}/task/{served.server.pid}/children").read_text().split()
        assert children == []
