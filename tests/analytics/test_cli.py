"""The command line: what it refuses, in one sentence, and the exit status that scripts rely on."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

from analytics import failures, seal, session
from analytics.cli import main
from analytics.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE, EXIT_VIOLATED, UsageError
from tests.analytics.generator.builder import Builder
from tests.analytics.test_journal import NOON, SECOND, segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Captured = pytest.CaptureFixture[str]


def refused(captured: Captured, *arguments: str) -> str:
    """The one line that a refused command writes."""
    assert main([str(one) for one in arguments]) == EXIT_USAGE
    out, err = captured.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.endswith((".", "!"))
    return line


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "journal"
    segment(folder, 1, 10)
    return folder


def audit(journal: Path, *more: str) -> tuple[str, ...]:
    return ("audit", "--journal", str(journal), "--out", str(journal.parent / "out"), *more)


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01", "2026-01-31 25:00", ""])
def test_a_time_that_is_none_is_refused(journal: Path, capsys: Captured, time: str) -> None:
    assert "is not a time such as 2026-01-31" in refused(capsys, *audit(journal, "--from", time))


def test_a_range_that_ends_before_it_begins_is_refused(journal: Path, capsys: Captured) -> None:
    said = refused(capsys, *audit(journal, "--from", "2026-02-01", "--to", "2026-01-01"))
    assert "--from has to be earlier than --to" in said


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--format", "parquet,xml"], "'xml' is not a format"),
        (["--conf", "memory=8g"], "is not a setting such as spark.driver.memory=8g"),
        (["--conf", "spark.x"], "is not a setting"),
        (["--tolerance-ms", "-1"], "is not in the range"),
        (["--backlog", "nowhere/backlog-1.parquet"], "There is no backlog file"),
        (["--unknown"], "No such option"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    journal: Path, capsys: Captured, more: list[str], why: str
) -> None:
    assert why in refused(capsys, *audit(journal, *more))


def test_a_journal_that_is_not_there_or_empty_is_refused_without_starting_spark(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_session", None)  # would fail if it were called
    assert "There is no folder" in refused(capsys, *audit(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "nothing of it is sealed yet" in refused(capsys, *audit(tmp_path / "empty"))
    assert "There is no folder" in refused(capsys, "info", "--journal", str(tmp_path / "nowhere"))


def test_an_output_folder_that_cannot_be_written_to_is_refused_without_starting_spark(
    journal: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "make_session", None)
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        said = refused(capsys, "audit", "--journal", str(journal), "--out", str(out))
        assert "cannot be written to" in said


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("nonsense", "is not an address of a Spark master"),
        ("http://127.0.0.1:7077", "is not an address of a Spark master"),
        ("spark://", "is not an address of a Spark master"),
        ("spark://host", "names no host and port"),
        ("spark://127.0.0.1:1", "cannot be reached (127.0.0.1:1: Connection refused)"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "127.0.0.1:2: Connection refused"),
    ],
)
def test_a_master_that_is_none_or_cannot_be_reached_is_refused(master: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        session.check_master(master)
    assert why in str(caught.value)


def test_one_master_of_several_is_enough() -> None:
    with listening() as port:
        session.check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    session.check_master("local[2]")
    session.check_master("yarn")


def test_a_missing_package_is_named_with_the_way_to_get_it(
    journal: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else there(name))
    assert "This needs pandas: pip install 'pubsubd[analytics]'." in refused(capsys, *audit(journal))


def test_a_stream_has_one_trigger(journal: Path, tmp_path: Path, capsys: Captured) -> None:
    stream = (
        "stream",
        "--journal",
        str(journal),
        "--out",
        str(tmp_path),
        "--checkpoint",
        str(tmp_path / "c"),
    )
    assert "exclude each other" in refused(capsys, *stream, "--every", "5s", "--available-now")
    assert "is not a length of time such as 30s" in refused(capsys, *stream, "--every", "soon")


def test_info_tells_a_hole_by_its_exit_status(journal: Path, capsys: Captured) -> None:
    assert main(["info", "--journal", str(journal)]) == EXIT_OK
    assert "complete   yes" in capsys.readouterr().out
    segment(journal, 15, 20, NOON + 60 * SECOND)
    assert main(["info", "--journal", str(journal), "--json"]) == EXIT_INCOMPLETE
    assert json.loads(capsys.readouterr().out)["missing"] == [[11, 14]]
    assert main(["info", "--journal", str(journal), "--quiet"]) == EXIT_INCOMPLETE
    assert capsys.readouterr() == ("", "")


class FromSpark(Exception):
    """As pyspark raises them: a text with all of Java's stack."""

    __module__ = "pyspark.errors"


NO_SPACE = """An error occurred while calling o99.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(Errors.scala:776)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "There is no space left for"),
        (FromSpark(NO_SPACE), "There is no space left for"),
        (FromSpark("Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space"), "out of memory"),
        (FromSpark("ModuleNotFoundError: No module named 'analytics'"), "lacks analytics; --py-files"),
        (ConnectionRefusedError("refused"), "Java process ended unexpectedly"),
        (
            FromSpark("An error occurred while calling o1.\n: java.lang.IllegalState: spark.x must be set"),
            "Spark failed: spark.x must be set. Details",
        ),
    ],
)
def test_what_goes_wrong_in_spark_or_on_the_disk_becomes_one_sentence(
    journal: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(session, "make_session", fail)
    said = refused(capsys, *audit(journal))
    assert why in said
    assert "java." not in said and "org.apache" not in said
    # Whoever has to mend it finds the rest in a file.
    details = journal.parent / "out" / "_ERROR.txt"
    assert str(details) in said
    assert str(error).splitlines()[-1] in details.read_text()


def test_a_segment_that_retention_took_while_it_was_read_is_no_damage() -> None:
    path = "file:/j/segments/date=2026-01-31/hour=13/seg-0000000000000001-0000000000000064.parquet"
    gone = FromSpark(f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {path}.")
    assert failures.damaged_segment(gone) is None
    assert "run the command again" in failures.sentence(gone, "out")
    torn = FromSpark(f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {path}.")
    assert failures.damaged_segment(torn) == path.removeprefix("file:")


# -- seal ---------------------------------------------------------------------------------


@contextmanager
def admin(answer: bytes | None, details: str = "") -> Iterator[tuple[str, list[bytes]]]:
    """A server with the one method; gives its address and the requests it got."""
    import grpc

    asked: list[bytes] = []

    def method(request: bytes, context: grpc.ServicerContext) -> bytes:
        asked.append(request)
        if answer is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, details)
        return answer or b""

    handler = grpc.method_handlers_generic_handler(
        "pubsubd.admin.v1.Admin", {"Seal": grpc.unary_unary_rpc_method_handler(method)}
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", asked
    finally:
        server.stop(None)


def test_the_messages_of_seal_are_those_of_the_admin_service() -> None:
    admin_pb = pytest.importorskip("pubsubd.wire", reason="speaks to a server").admin_pb
    for backlog in (False, True):
        assert admin_pb.SealRequest.FromString(seal.encode(backlog)) == admin_pb.SealRequest(backlog=backlog)
    answer = admin_pb.SealResponse(last_seq=2**40 + 5, backlog="/j/backlog/backlog-ä.parquet")
    assert seal.decode(answer.SerializeToString()) == (2**40 + 5, "/j/backlog/backlog-ä.parquet")
    assert seal.decode(b"") == (0, "")


def test_seal_asks_the_server_and_tells_why_it_cannot() -> None:
    with admin(b"\x08\x2a") as (address, asked):
        assert seal.seal(address) == (42, "")
        assert asked == [b"\x08\x01"]
    with admin(None, "the journal is off") as (address, _), pytest.raises(UsageError) as caught:
        seal.seal(address)
    assert str(caught.value).endswith("could not seal its journal: the journal is off.")


def test_seal_where_nobody_listens_is_refused(journal: Path, capsys: Captured) -> None:
    assert "No server answers at 127.0.0.1:1" in refused(capsys, *audit(journal, "--seal", "127.0.0.1:1"))


def test_a_server_that_seals_another_journal_is_noticed(journal: Path, capsys: Captured) -> None:
    with admin(b"\x08\x0a") as (address, _):
        said = refused(capsys, *audit(journal, "--seal", address))
    assert "it is another server's journal" in said


# -- with Spark, in the session of the tests ----------------------------------------------


def small(folder: Path, late: bool) -> None:
    """One message on two subscriptions; on one of them delivered once more after its ack if `late`."""
    b = Builder()
    topic = b.topic("orders")
    kept = b.subscription("kept", topic=topic, exactly_once=True)
    broken = b.subscription("broken", topic=topic, exactly_once=True)
    m = b.publish(topic, at=1)
    for s in (kept, broken):
        b.deliver(s, m, at=2)
        b.ack(s, m, at=3)
    if late:
        b.deliver(broken, m, at=4)
    b.write(folder)
    b.backlog(folder, open=[])


@pytest.mark.slow
def test_an_audit_ends_with_1_for_a_violation_and_leaves_its_tables_and_record(
    spark: SparkSession, tmp_path: Path, capsys: Captured
) -> None:
    small(tmp_path / "journal", late=True)
    before = datetime.now(UTC)
    assert main([*audit(tmp_path / "journal"), "--json"]) == EXIT_VIOLATED

    told = json.loads(capsys.readouterr().out)
    assert told["exit_status"] == EXIT_VIOLATED
    out = tmp_path / "out"
    for name in ("audit_summary.csv", "violations.csv", "facts", "evidence", "_RUN.json"):
        assert (out / name).exists(), name
    record = json.loads((out / "_RUN.json").read_text())
    assert record["command"] == "audit"
    assert record["complete"] is True
    assert record["range"]["first_seq"] == 1
    assert record["range"]["events"] == record["counts"]["events"] == record["range"]["last_seq"]
    assert record["counts"]["rows"]["audit_summary"] == 2
    assert record["counts"]["rows"]["facts"] == 2
    assert {"facts", "audit"} <= set(record["durations_s"])
    assert before.timestamp() * 1e6 <= record["started_us"] <= record["finished_us"]
    assert {"analytics", "spark", "python", "java"} <= set(record["versions"])


@pytest.mark.slow
def test_one_subscription_can_be_audited_alone_and_an_incomplete_journal_ends_with_3(
    spark: SparkSession, tmp_path: Path, capsys: Captured
) -> None:
    journal = tmp_path / "journal"
    small(journal, late=True)
    (whole,) = journal.rglob("seg-*.parquet")
    last = int(whole.stem.rpartition("-")[2])
    torn = whole.with_name(f"seg-{last + 3:016}-{last + 4:016}.parquet")
    torn.write_bytes(b"PAR1 torn")
    assert main(audit(journal, "--subscription", "kept")) == EXIT_INCOMPLETE

    out, err = capsys.readouterr()
    assert "kept" in out and "broken" not in out
    assert f"it lacks the events {last + 1} to {last + 4}" in err
    assert torn.name in err
    assert "knows no subscription nobody; it knows" in refused(
        capsys, *audit(journal, "--subscription", "nobody")
    )
