"""A record is read as strace writes it, and counts against the server where it is in doubt."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash.syscalls import Call, Disk, durable_at, parse, replies

WAL = "/data/db-wal"


def hexed(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def write(began: int, data: bytes, offset: int = 0, done: int | None = None, target: str = WAL) -> Call:
    return Call("pwrite64", target, began, began if done is None else done, len(data), data, offset)


def sync(began: int, done: int | None = None, target: str = WAL) -> Call:
    return Call("fdatasync", target, began, began if done is None else done, 0)


def frame(began: int, page: bytes, *, commit: bool) -> list[Call]:
    """A page of the write-ahead log, in the two writes that it is made of."""
    head = bytes(4) + (7 if commit else 0).to_bytes(4) + bytes(16)
    return [write(began, head), write(began + 1, page)]


def test_calls_are_read_with_their_paths_data_and_numbers() -> None:
    path = hexed(WAL.encode())
    lines = [
        f'10 pwrite64(8<{path}>, "{hexed(b"abc")}", 3, 4096) = 3\n',
        f"10 fdatasync(8<{path}>) = 0\n",
        f"10 ftruncate(8<{path}>, 12) = 0\n",
        "10 +++ exited with 0 +++\n",
    ]

    assert list(parse(iter(lines))) == [
        Call("pwrite64", WAL, 0, 0, 3, b"abc", 4096),
        Call("fdatasync", WAL, 1, 1, 0),
        Call("ftruncate", WAL, 2, 2, 0, b"", 12),
    ]


def test_a_call_that_others_overlap_has_a_beginning_and_an_end() -> None:
    path = hexed(WAL.encode())
    lines = [
        f"10 fdatasync(8<{path}> <unfinished ...>\n",
        f'11 pwrite64(8<{path}>, "{hexed(b"abc")}", 3, 0) = 3\n',
        "10 <... fdatasync resumed>) = 0\n",
    ]

    assert [(call.name, call.began, call.done) for call in parse(iter(lines))] == [
        ("pwrite64", 1, 1),
        ("fdatasync", 0, 2),
    ]


def test_a_call_that_failed_did_nothing() -> None:
    lines = [f"10 fdatasync(8<{hexed(WAL.encode())}>) = -1 EIO (Input/output error)\n"]
    assert list(parse(iter(lines))) == []


def test_a_commit_is_durable_when_a_sync_that_began_after_it_is_done() -> None:
    commit = [*frame(0, b"needle", commit=False), *frame(2, b"other", commit=True)]

    assert durable_at([*commit, sync(4, 9)], WAL, b"needle") == 9
    assert durable_at(commit, WAL, b"needle") is None
    assert durable_at([*commit, sync(4, 9)], WAL, b"something else") is None
    assert durable_at([*commit, sync(4, target="/data/db")], WAL, b"needle") is None


def test_a_sync_before_the_end_of_the_commit_does_not_count() -> None:
    early = sync(2, 3)
    commit = [*frame(0, b"needle", commit=False), early, *frame(4, b"other", commit=True)]

    assert durable_at(commit, WAL, b"needle") is None
    assert durable_at([*commit, sync(6)], WAL, b"needle") == 6


def test_a_reply_begins_with_its_first_frame_of_data() -> None:
    target = "TCP:[127.0.0.1:80->127.0.0.1:9]"
    headers, data = bytes((0, 0, 2, 1, 0, 0, 0, 0, 1)) + b"hh", bytes((0, 0, 3, 0, 0, 0, 0, 0, 1)) + b"ddd"
    sent = [
        Call("sendmsg", target, 5, 5, 11, headers),
        Call("sendmsg", target, 8, 9, 7, data[:7]),
        Call("sendmsg", target, 12, 12, 5, data[7:]),
    ]

    assert [(reply.stream, reply.began) for reply in replies(sent, 80)] == [(1, 8)]


def left(calls: list[Call], position: int, how: str, tmp_path: Path) -> bytes:
    disk = Disk(calls, Path("/data"))
    disk.advance_to(position)
    disk.write(tmp_path, how, random.Random(0))
    return (tmp_path / "db-wal").read_bytes()


def test_what_is_left_is_what_was_synced(tmp_path: Path) -> None:
    calls = [write(0, b"aaaa"), sync(1), write(2, b"bb", 1), write(3, b"cc", 4)]

    assert left(calls, 9, "kept", tmp_path) == b"abbacc"
    assert left(calls, 9, "lost", tmp_path) == b"aaaa"
    assert left(calls, 9, "zeroed", tmp_path) == b"a\0\0a\0\0"
    assert left(calls, 3, "kept", tmp_path) == b"abba"


def test_a_sync_covers_what_was_done_before_it_began(tmp_path: Path) -> None:
    calls = [write(0, b"a"), write(1, b"b", 1, done=3), sync(2, 5)]

    assert left(calls, 9, "lost", tmp_path) == b"a"


def test_a_sync_counts_once_it_is_done(tmp_path: Path) -> None:
    calls = [write(0, b"a"), sync(1, 5)]

    assert left(calls, 5, "lost", tmp_path) == b""
    assert left(calls, 6, "lost", tmp_path) == b"a"


def test_a_truncation_is_not_certain_either(tmp_path: Path) -> None:
    calls = [write(0, b"abc"), sync(1), Call("ftruncate", WAL, 2, 2, 0, b"", 1)]

    assert left(calls, 9, "lost", tmp_path) == b"abc"
    assert left(calls, 9, "kept", tmp_path) == b"a"
    assert left([*calls, sync(3)], 9, "lost", tmp_path) == b"a"
