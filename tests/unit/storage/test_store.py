"""The file: whose it is, what survives, and what happens when the disk does not do its part."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path

import pytest

from pubsubd.broker.entry import Entry, chunks, unpack_chunk
from pubsubd.storage import store as store_module
from pubsubd.storage.faults import Fault, Faults
from pubsubd.storage.store import (
    APPLICATION_ID,
    FILE_NAME,
    SCHEMA_VERSION,
    Commit,
    Loaded,
    StorageFailed,
    Store,
    Unusable,
)
from tests.unit.storage.test_contract import EVER, MANY, TOPIC, ids, rows, stored, topic

# -- one file, many starts ---------------------------------------------------------------------------------


async def test_what_was_committed_is_there_after_a_stop(file: Store, tmp_path: Path) -> None:
    secret = file.secret
    await file.commit(Commit(oplog=b"one", topics=[topic(TOPIC)], chunks=rows(TOPIC, [1, 2])))
    loaded = await file.load()
    await file.close()

    again = await Store.open(tmp_path, "process")
    assert again.secret == secret
    assert again.boot == 2
    assert await again.load() == loaded
    assert await stored(again) == [[1, 2]]
    await again.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_whether_the_last_stop_said_goodbye_is_known(file: Store, tmp_path: Path, clean: bool) -> None:
    await file.commit(Commit(oplog=b"", clean=clean))
    await file.close()

    for expected in (clean, False):
        again = await Store.open(tmp_path, "process")
        assert again.was_clean == expected, "only a goodbye of that start counts"
        await again.close()


async def test_every_database_has_its_own_secret(tmp_path: Path) -> None:
    one, other = await Store.open(None, "process"), await Store.open(None, "process")
    assert one.secret != other.secret
    await one.close()
    await other.close()


async def test_messages_of_topics_that_are_gone_are_removed_after_a_restart(
    file: Store, tmp_path: Path
) -> None:
    everything = [rows(number, *[[n] for n in range(1, 31)]) for number in (1, 2, 3)]
    await file.commit(
        Commit(
            oplog=b"",
            topics=[topic(1), topic(2), topic(3)],
            chunks=[row for part in everything for row in part],
        )
    )
    await file.commit(Commit(oplog=b"", topics_gone=[1, 3], trims={1: (30, EVER), 3: (30, EVER)}))
    await file.close()

    again = await Store.open(tmp_path, "process")
    assert again.has_rows_to_trim
    while again.has_rows_to_trim:
        await again.commit(Commit(oplog=b""))
    assert [len(await stored(again, number)) for number in (1, 2, 3)] == [0, 30, 0]
    await again.close()


async def test_the_file_can_be_copied_while_it_is_used(file: Store, tmp_path: Path) -> None:
    """What a process that was killed leaves behind: the file and its log."""
    await file.commit(Commit(oplog=b"one", topics=[topic(TOPIC)], chunks=rows(TOPIC, [1])))
    copy = tmp_path / "copy"
    copy.mkdir()
    for part in tmp_path.glob(f"{FILE_NAME}*"):
        (copy / part.name).write_bytes(part.read_bytes())

    again = await Store.open(copy, "process")
    assert (await again.load()).oplog == [b"one"]
    assert await stored(again) == [[1]]
    assert not again.was_clean
    await again.close()


# -- durability --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
async def test_the_durability_that_was_asked_for_is_on(
    tmp_path: Path, durability: store_module.Durability, synchronous: int
) -> None:
    opened = await Store.open(tmp_path, durability)

    def pragma(connection: sqlite3.Connection, name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert await opened._writer.run(pragma, "synchronous") == synchronous
    assert await opened._writer.run(pragma, "journal_mode") == "wal"
    await opened.close()


async def test_the_log_is_bounded_under_constant_load(
    file: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever moves the log beside the commits never finds its end, or here: does not get to it at all."""

    async def starved(*_: object) -> None: ...

    monkeypatch.setattr(Store, "_move_wal_beside", starved)
    monkeypatch.setattr(store_module, "_CHECKPOINT_BYTES", 400_000)
    monkeypatch.setattr(store_module, "_WAL_BYTES_MAX", 2_000_000)
    message = Entry(1, 0, 0, b"." * 100_000)
    for number in range(1, 101):
        (row,) = chunks(TOPIC, [message._replace(message_id=number)])
        await file.commit(Commit(oplog=b"", oplog_is_checkpoint=True, chunks=[row]))

    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size < 3_000_000
    assert len(await stored(file)) == 100


async def test_commits_do_not_wait_for_whoever_reads_the_log(
    file: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What seals the journal reads for seconds, from another process. The log grows meanwhile, not after."""
    monkeypatch.setattr(store_module, "_CHECKPOINT_BYTES", 400_000)
    monkeypatch.setattr(store_module, "_WAL_BYTES_MAX", 1_000_000)
    wal = tmp_path / f"{FILE_NAME}-wal"
    message = Entry(1, 0, 0, b"." * 100_000)
    numbers = itertools.count(1)

    async def commit_some() -> float:
        start = time.perf_counter()
        for number in itertools.islice(numbers, 30):
            (row,) = chunks(TOPIC, [message._replace(message_id=number)])
            await file.commit(Commit(oplog=b"", oplog_is_checkpoint=True, chunks=[row]))
        return time.perf_counter() - start

    reader = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM chunk").fetchone()
    try:
        # A single wait for the reader would take five seconds.
        assert await commit_some() < 4
    finally:
        reader.close()
    # It is begun anew after a few commits more, or it would grow by three megabytes in each of these turns. A
    # move beside the commits may be under way for any number of them.
    for _ in range(50):
        grown = wal.stat().st_size
        await commit_some()
        if wal.stat().st_size == grown:
            return
    pytest.fail("the log grows with every commit")


async def test_the_log_is_moved_beside_the_commits(file: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_CHECKPOINT_BYTES", 400_000)
    message = Entry(1, 0, 0, b"." * 100_000)
    for number in range(1, 11):
        (row,) = chunks(TOPIC, [message._replace(message_id=number)])
        await file.commit(Commit(oplog=b"", chunks=[row]))
    assert file._checkpoint is not None
    await file._checkpoint

    assert len(await stored(file)) == 10


async def test_a_read_does_not_wait_for_a_commit(file: Store) -> None:
    await file.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1])))
    file.faults.inject(Fault.STALL, 1, 0, 0.2)
    commit = asyncio.create_task(file.commit(Commit(oplog=b"", chunks=rows(TOPIC, [2]))))
    await asyncio.sleep(0.02)

    assert await stored(file) == [[1]]
    assert not commit.done()
    await commit
    assert await stored(file) == [[1], [2]]


# -- files that are not ours -------------------------------------------------------------------------------


async def refusal(directory: Path) -> str:
    with pytest.raises(Unusable) as caught:
        await Store.open(directory, "process")
    text = str(caught.value)
    assert "\n" not in text and FILE_NAME in text
    return text


def database(directory: Path, *statements: str) -> None:
    connection = sqlite3.connect(directory / FILE_NAME)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database" * 100)

    assert "cannot be used" in await refusal(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == b"this is not a database" * 100


async def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    database(tmp_path, "CREATE TABLE precious (thing)", "INSERT INTO precious VALUES ('gold')")

    assert "another program" in await refusal(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT * FROM precious").fetchall() == [("gold",)]
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


async def test_a_database_that_is_marked_by_another_program_is_refused(tmp_path: Path) -> None:
    database(tmp_path, "PRAGMA application_id = 12345")

    assert "another program" in await refusal(tmp_path)


async def test_a_newer_layout_is_refused_and_left_alone(file: Store, tmp_path: Path) -> None:
    await file.close()
    database(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    assert "newer pubsubd" in await refusal(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT boot FROM server").fetchone() == (1,)


async def test_a_marked_file_without_our_tables_is_refused(tmp_path: Path) -> None:
    database(tmp_path, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {SCHEMA_VERSION}")

    await refusal(tmp_path)


async def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()

    opened = await Store.open(tmp_path, "process")
    assert opened.boot == 1
    await opened.close()


async def test_a_directory_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()

    await refusal(tmp_path)


async def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    await refusal(tmp_path / "missing")


# -- files of older layouts ---------------------------------------------------------------------------------

# What version 1 created, in its own words.
LAYOUT_1 = (
    "CREATE TABLE server (secret BLOB NOT NULL, boot INTEGER NOT NULL, clean INTEGER NOT NULL)",
    "CREATE TABLE topic (topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL, deleted INTEGER NOT NULL,"
    " resource BLOB NOT NULL)",
    "CREATE TABLE subscription (sub_id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, name TEXT NOT NULL,"
    " start_id INTEGER NOT NULL, resource BLOB NOT NULL)",
    "CREATE TABLE chunk (topic_id INTEGER NOT NULL, last_id INTEGER NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (topic_id, last_id)) WITHOUT ROWID",
    "CREATE TABLE oplog (commit_id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE ending (ending_id INTEGER PRIMARY KEY, sub_id INTEGER NOT NULL,"
    " message_id INTEGER NOT NULL, generation INTEGER NOT NULL, ending INTEGER NOT NULL,"
    " at_us INTEGER NOT NULL)",
    "CREATE TABLE journal_tail (first_seq INTEGER PRIMARY KEY, n INTEGER NOT NULL, version INTEGER NOT NULL,"
    " data BLOB NOT NULL)",
    "CREATE TABLE journal_detail (seq INTEGER PRIMARY KEY, detail TEXT)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    "PRAGMA user_version = 1",
)


def blob_1(*messages: tuple[int, int, bytes]) -> bytes:
    """A row of messages as version 1 packed them: a count, columns, and the data."""
    message_ids, publish_us, datas = zip(*messages, strict=True)
    n = len(messages)
    sizes = map(len, datas)
    return struct.pack(f"<I{n}q{n}q{n}q{n}i", n, *message_ids, *publish_us, *[0] * n, *sizes) + b"".join(
        datas
    )


def database_1(directory: Path, *chunk_rows: tuple[int, int, bytes]) -> None:
    connection = sqlite3.connect(directory / FILE_NAME)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in LAYOUT_1:
        connection.execute(statement)
    connection.execute("INSERT INTO server VALUES (?, 3, 1)", (b"s" * 32,))
    connection.execute("INSERT INTO topic VALUES (1, 't', 0, x'01')")
    connection.execute("INSERT INTO topic VALUES (2, 'u', 0, x'02')")
    connection.execute("INSERT INTO subscription VALUES (7, 1, 's', 0, x'03')")
    connection.execute("INSERT INTO oplog VALUES (5, x'04')")
    connection.execute("INSERT INTO ending VALUES (1, 7, 1, 1, 1, 1000)")
    connection.execute("INSERT INTO journal_tail VALUES (1, 1, 1, x'05')")
    connection.execute("INSERT INTO journal_detail VALUES (1, '{}')")
    connection.executemany("INSERT INTO chunk VALUES (?, ?, ?)", chunk_rows)
    connection.commit()
    connection.close()


def tables(path: Path) -> dict[str, tuple[list[object], list[object]]]:
    """Every table with its columns, and with whether it has hidden row numbers."""
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: (
                connection.execute("SELECT * FROM pragma_table_info(?)", (name,)).fetchall(),
                connection.execute("SELECT ncol, wr FROM pragma_table_list(?)", (name,)).fetchall(),
            )
            for name in sorted(names)
        }


async def test_a_database_of_the_first_layout_keeps_all_it_has(tmp_path: Path) -> None:
    first = blob_1((1, 100, b"one"), (2, 250, b"two"))
    second = blob_1((4, 300, b"four"))
    large = blob_1((5, 300, b"." * 100_000), (6, 400, b"." * 100_000))
    database_1(tmp_path, (1, 2, first), (1, 6, large), (2, 4, second))

    opened = await Store.open(tmp_path, "process")
    assert (opened.secret, opened.boot, opened.was_clean) == (b"s" * 32, 4, True)
    loaded = await opened.load()
    assert loaded == Loaded(
        [(1, "t", 0, b"\1"), (2, "u", 0, b"\2")],
        [(7, 1, "s", 0, b"\3")],
        [],
        [],
        [(7, 1, 1, 1, 1000)],
        [b"\4"],
        [(1, 1, 3)],
    )
    assert await opened.read_range(1, 0, MANY, MANY) == [first, large]
    assert await opened.read_range(2, 0, MANY, MANY) == [second]
    entries = unpack_chunk(first)
    assert entries == [Entry(1, 100, 0, b"one"), Entry(2, 250, 0, b"two")]
    assert await opened.find_chunk(1, 0, 250) == (0, first)
    assert await opened.find_chunk(1, 0, 251) == (2, large)
    assert await opened.find_chunk(1, 0, 401) == (6, None)
    assert await opened.commit(Commit(oplog=b"", trims={1: (6, 400)})) == {1: 400}
    await opened.close()

    again = await Store.open(tmp_path, "process")
    assert again.boot == 5
    assert await again.read_range(1, 0, MANY, MANY) == [large]
    await again.close()


async def test_a_migrated_database_is_laid_out_as_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    database_1(tmp_path)
    for directory in (tmp_path, tmp_path / "new"):
        await (await Store.open(directory, "process")).close()

    assert tables(tmp_path / FILE_NAME) == tables(tmp_path / "new" / FILE_NAME)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", blob_1((1, 2, b""))[:15]])
async def test_messages_that_cannot_be_migrated_leave_the_old_layout(tmp_path: Path, data: bytes) -> None:
    good = blob_1((1, 100, b"one"))
    database_1(tmp_path, (1, 1, good), (1, 9, data))
    before = tables(tmp_path / FILE_NAME)

    assert "damaged: its messages up to 9 of topic 1" in await refusal(tmp_path)
    assert tables(tmp_path / FILE_NAME) == before
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT data FROM chunk").fetchall() == [(good,), (data,)]
        assert connection.execute("SELECT boot FROM server").fetchone() == (3,)


async def test_the_log_of_a_migration_is_not_left_behind(tmp_path: Path) -> None:
    database_1(tmp_path, *((1, n, blob_1((n, n, b"." * 10_000))) for n in range(1, 101)))
    opened = await Store.open(tmp_path, "process")

    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size == 0
    await opened.close()


# -- time ---------------------------------------------------------------------------------------------------


async def test_a_point_in_time_among_many_rows_takes_few_probes(file: Store) -> None:
    count = 20_000
    blob = rows(TOPIC, [1])[0].blob
    await file.commit(Commit(oplog=b"", chunks=[(TOPIC, 50 * n, n // 3, blob) for n in range(1, count + 1)]))
    statements: list[str] = []

    def trace(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)

    await file._reader.run(trace)
    assert await file.find_chunk(TOPIC, 0, 5000) == (50 * 14_999, blob)
    assert len(statements) < 30
    assert await file.find_chunk(TOPIC, 0, 1) == (100, blob)
    assert await file.find_chunk(TOPIC, 50 * count - 1, count // 3) == (0, blob)


async def test_rows_are_found_and_trimmed_without_reading_messages(file: Store) -> None:
    """Neither scans: each looks at the first rows after a place in the primary key."""

    def plan(connection: sqlite3.Connection, statement: str) -> str:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        return " ".join(row[3] for row in rows)

    statements: list[str] = []

    def trace(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(statements.append)

    await file.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 100)])))
    await file._writer.run(trace)
    await file._reader.run(trace)
    await file.commit(Commit(oplog=b"", trims={TOPIC: (50, EVER)}))
    await file.find_chunk(TOPIC, 0, 0)
    looked = [statement for statement in statements if "FROM chunk" in statement]
    assert len(looked) > 4

    await file._writer.run(lambda connection: connection.set_trace_callback(None))
    for statement in looked:
        found = await file._writer.run(plan, statement)
        assert found.startswith("SEARCH chunk USING PRIMARY KEY") and "TEMP B-TREE" not in found
        assert " data " not in statement or "last_id = " in statement


# -- a disk that fails -------------------------------------------------------------------------------------


async def test_of_a_commit_that_failed_nothing_is_there(file: Store) -> None:
    await file.commit(Commit(oplog=b"one", chunks=rows(TOPIC, [1])))
    before = await file.load()
    file.faults.inject(Fault.FAIL, 1, 0, 0)

    with pytest.raises(StorageFailed, match="disk is full"):
        await file.commit(
            Commit(
                oplog=b"two", oplog_is_checkpoint=True, chunks=rows(TOPIC, [2]), topics=[topic(1)], clean=True
            )
        )

    assert await file.load() == before
    assert await stored(file) == [[1]]
    await file.commit(Commit(oplog=b"three"))
    assert (await file.load()).oplog == [b"one", b"three"]


async def test_a_commit_that_breaks_in_the_middle_is_rolled_back(file: Store) -> None:
    await file.commit(Commit(oplog=b"one", chunks=rows(TOPIC, [1])))

    with pytest.raises(StorageFailed):
        await file.commit(Commit(oplog=b"two", chunks=[*rows(TOPIC, [2]), *rows(TOPIC, [1])]))

    await file.commit(Commit(oplog=b"three", chunks=rows(TOPIC, [3])))
    assert await stored(file) == [[1], [3]]
    assert (await file.load()).oplog == [b"one", b"three"]


async def test_what_a_failed_commit_no_longer_needs_is_not_removed_later(file: Store) -> None:
    """The acks that made the messages unneeded did not happen."""
    await file.commit(Commit(oplog=b"", topics=[topic(TOPIC)], chunks=rows(TOPIC, [1], [2], [3])))
    file.faults.inject(Fault.FAIL, 1, 0, 0)
    with pytest.raises(StorageFailed):
        await file.commit(Commit(oplog=b"", trims={TOPIC: (3, EVER)}))
    for _ in range(3):
        await file.commit(Commit(oplog=b""))

    assert await stored(file) == [[1], [2], [3]]


async def test_what_earlier_commits_no_longer_need_is_still_removed(file: Store) -> None:
    await file.commit(
        Commit(oplog=b"", topics=[topic(TOPIC)], chunks=rows(TOPIC, *[[n] for n in range(1, 41)]))
    )
    await file.commit(Commit(oplog=b"", trims={TOPIC: (30, EVER)}))
    file.faults.inject(Fault.FAIL, 1, 0, 0)
    with pytest.raises(StorageFailed):
        await file.commit(Commit(oplog=b"", trims={TOPIC: (40, EVER)}))
    while file.has_rows_to_trim:
        await file.commit(Commit(oplog=b""))

    assert await stored(file) == [[n] for n in range(31, 41)]


async def test_a_full_disk_is_a_failure_and_passes(file: Store) -> None:
    """SQLite's own bound on the size of the file stands in for the disk's."""

    def bound(connection: sqlite3.Connection, pages: int) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await file.commit(Commit(oplog=b"one"))
    await file._writer.run(bound, 20)
    with pytest.raises(StorageFailed, match="full"):
        await file.commit(Commit(oplog=b"." * 1_000_000))
    assert (await file.load()).oplog == [b"one"]

    await file._writer.run(bound, 100_000)
    await file.commit(Commit(oplog=b"." * 1_000_000))
    assert len((await file.load()).oplog) == 2


async def test_reads_that_fail_say_so(file: Store) -> None:
    def spoil(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE chunk")
        connection.execute("DROP TABLE oplog")

    await file._writer.run(spoil)

    with pytest.raises(StorageFailed):
        await file.load()
    with pytest.raises(StorageFailed):
        await file.read_range(TOPIC, 0, MANY, MANY)
    with pytest.raises(StorageFailed):
        await file.read_messages(TOPIC, [1], MANY)
    with pytest.raises(StorageFailed):
        await file.find_chunk(TOPIC, 0, 0)


async def test_a_transaction_that_was_left_open_does_not_spoil_what_follows(file: Store) -> None:
    def begin(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO oplog (data) VALUES (x'00')")

    await file.commit(Commit(oplog=b"one"))
    await file._writer.run(begin)

    assert (await file.load()).oplog == [b"one"]
    await file.commit(Commit(oplog=b"two"))
    assert (await file.load()).oplog == [b"one", b"two"]


# -- faults on demand --------------------------------------------------------------------------------------


def met(faults: Faults, commits: int) -> list[Fault | None]:
    """What each of so many commits meets; None: it fails."""
    found: list[Fault | None] = []
    for _ in range(commits):
        try:
            found.append(faults.begin())
        except sqlite3.OperationalError:
            found.append(None)
    return found


def test_without_a_fault_nothing_happens() -> None:
    assert met(Faults(), 3) == [Fault.NONE] * 3


def test_a_fault_lets_some_commits_through_and_hits_so_many() -> None:
    faults = Faults()
    faults.inject(Fault.FAIL, 2, 1, 0)

    assert met(faults, 5) == [Fault.NONE, None, None, Fault.NONE, Fault.NONE]


def test_a_fault_for_no_number_of_commits_lasts_until_it_is_cleared() -> None:
    faults = Faults()
    faults.inject(Fault.FAIL, 0, 2, 0)
    assert met(faults, 6) == [Fault.NONE] * 2 + [None] * 4

    faults.inject(Fault.NONE, 0, 0, 0)
    assert met(faults, 2) == [Fault.NONE] * 2


def test_a_new_fault_replaces_the_one_before() -> None:
    faults = Faults()
    faults.inject(Fault.FAIL, 5, 5, 0)
    faults.inject(Fault.KILL_AFTER_COMMIT, 1, 0, 0)

    assert met(faults, 2) == [Fault.KILL_AFTER_COMMIT, Fault.NONE]


def test_a_stall_takes_its_time() -> None:
    faults = Faults()
    faults.inject(Fault.STALL, 1, 0, 0.02)
    started = time.monotonic()

    assert met(faults, 1) == [Fault.STALL]
    assert time.monotonic() - started >= 0.02


def test_a_kill_is_meant_when_it_is_said() -> None:
    Faults.kill_if(False)


async def test_ids_of_a_range_and_of_single_messages_agree(file: Store) -> None:
    await file.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[2 * n, 2 * n + 1] for n in range(1, 50)])))
    everything = [number for row in await stored(file) for number in row]

    for message_id in everything:
        (row,) = ids(await file.read_messages(TOPIC, [message_id], MANY))
        assert message_id in row
        assert ids(await file.read_range(TOPIC, message_id - 1, message_id, MANY))[0] == row
