"""What a server asked of the operating system, recorded by strace, and what a loss of power leaves of it.

A record is the list of calls in the order in which they began; calls of two threads can overlap, so each has
two positions. Of a file a loss of power leaves for certain what was written before a sync of it *began*, once
that sync was *done*. What was written later is anybody's guess: nothing of it, zeroes, or some of its pages.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tests.support.server import ServerProcess

_TRACED = (
    "pwrite64,write,writev,pwritev,pwritev2,ftruncate,fsync,fdatasync,sync_file_range,sendmsg,sendto,unlink"
)
_STRING_BYTES_MAX = 4 << 20


@lru_cache
def why_no_tracing() -> str:
    """The reason why calls cannot be recorded here, or nothing."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"], capture_output=True
    )
    return "" if tried.returncode == 0 else f"strace may not trace: {tried.stderr.decode().strip()[:100]}"


class TracedServer(ServerProcess):
    """A server whose calls go to a file; or, with `inject`, one for which some of them fail."""

    def __init__(
        self, data_dir: Path, record: Path, *options: str, inject: str = "", start: str = ""
    ) -> None:
        """`start`: what runs in place of `-m pubsubd`."""
        super().__init__(data_dir, *options, admin=True)
        self.record = record
        self._inject = inject
        self._start = start

    def command(self) -> Sequence[str]:
        # -D: the server stays the child, and strace is the one that stands aside.
        strace = ["strace", "-D", "-f", "-qq", "-y", "-yy", "-o", str(self.record), "-e", "signal=none"]
        if self._inject:
            strace += ["-e", "trace=fdatasync,fsync,pwrite64", "-e", f"inject={self._inject}"]
        else:
            strace += ["-xx", "-s", str(_STRING_BYTES_MAX), "-e", f"trace={_TRACED},mkdir"]
        python, *module, serve = super().command()[:4]
        started = ["-c", self._start] if self._start else module
        return [*strace, python, *started, serve, *super().command()[4:]]

    def recorded(self) -> list[Call]:
        """The calls of a server that has ended."""
        # strace ends a moment after what it traces; a record that still grows has no last line.
        size = -1
        while size != (size := self.record.stat().st_size):
            time.sleep(0.3)
        with self.record.open() as lines:
            return list(parse(lines))


class Call(NamedTuple):
    name: str
    target: str  # the path, or the two ends of a connection
    began: int
    done: int
    result: int
    data: bytes = b""
    number: int = 0  # the offset of a write, or the length of a truncation


_LINE = re.compile(r"(\d+)\s+(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)", re.DOTALL)
_TARGET = re.compile(r"\d+<(.*?)>(?=[,)]|$)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_UNFINISHED = " <unfinished ...>"


def parse(lines: Iterator[str]) -> Iterator[Call]:
    """The calls that strace wrote down, by the moment at which they were done."""
    begun: dict[str, tuple[int, str]] = {}
    for at, line in enumerate(lines):
        found = _LINE.match(line)
        if found is None:
            continue
        thread, text = found.groups()
        text = text.rstrip()
        began = at
        if text.endswith(_UNFINISHED):
            begun[thread] = (at, text.removesuffix(_UNFINISHED))
            continue
        if resumed := _RESUMED.match(text):
            began, first = begun.pop(thread)
            text = first + resumed.group(1)
        call = _CALL.match(text)
        if call is not None and int(call.group(3)) >= 0:
            yield _call(call.group(1), call.group(2), int(call.group(3)), began, at)


def _call(name: str, arguments: str, result: int, began: int, done: int) -> Call:
    strings = []
    for text, cut_off in _STRING.findall(arguments):
        assert not cut_off, "the record lacks data"
        strings.append(_bytes(text))
    if name in ("unlink", "mkdir"):
        return Call(name, strings[0].decode(), began, done, result)
    target = _TARGET.match(arguments)
    path = "" if target is None else _bytes(target.group(1)).decode(errors="replace")
    data = b"".join(strings)[:result] if name in ("pwrite64", "sendmsg", "sendto") else b""
    last = arguments.rpartition(", ")[2]
    number = int(last) if name in ("pwrite64", "ftruncate") else 0
    return Call(name, path, began, done, result, data, number)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


# -- replies ----------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """The first bytes of an answer on their way to the client."""

    stream: int  # 1, 3, 5, … for the calls of one connection in their order
    began: int


_DATA = 0


def replies(calls: Sequence[Call], port: int) -> list[Reply]:
    """When each call of the first client that dialled `port` began to be answered with a message."""
    connections: dict[str, list[Call]] = {}
    for call in calls:
        if call.name in ("sendmsg", "sendto") and f":{port}->" in call.target:
            connections.setdefault(call.target, []).append(call)
    assert len(connections) == 1, list(connections)
    (sent,) = connections.values()
    stream = b"".join(call.data for call in sent)
    # Where in the stream of bytes each call begins.
    starts: list[tuple[int, int]] = []
    at = 0
    for call in sent:
        starts.append((at, call.began))
        at += len(call.data)
    found: dict[int, Reply] = {}
    at = 0
    while at + 9 <= len(stream):
        size, kind = int.from_bytes(stream[at : at + 3]), stream[at + 3]
        number = int.from_bytes(stream[at + 5 : at + 9]) & 0x7FFFFFFF
        if kind == _DATA and number not in found:
            began = max(began for start, began in starts if start <= at)
            found[number] = Reply(number, began)
        at += 9 + size
    return [found[number] for number in sorted(found)]


# -- commits ----------------------------------------------------------------------------------------------

_FRAME_HEAD_BYTES = 24
_SYNCS = ("fsync", "fdatasync")


def durable_at(calls: Sequence[Call], wal: str, needle: bytes) -> int | None:
    """The position from which a commit that holds `needle` survives a loss of power; None: from none on."""
    own = [call for call in calls if call.target == wal]
    written = next((i for i, call in enumerate(own) if call.name == "pwrite64" and needle in call.data), None)
    if written is None:
        return None
    # A frame is a head and a page; a commit ends with the frame whose head tells the size of the database.
    for i in range(written - 1, len(own) - 1):
        head = own[i]
        if len(head.data) == _FRAME_HEAD_BYTES and any(head.data[4:8]):
            complete = own[i + 1].done
            syncs = [c for c in own[i:] if c.name in _SYNCS and c.began > complete]
            return min((sync.done for sync in syncs), default=None)
    return None


# -- files ------------------------------------------------------------------------------------------------


@dataclass
class _File:
    safe: bytearray = field(default_factory=bytearray)
    unsafe: list[Call] = field(default_factory=list)


class Disk:
    """The files below a directory, as a loss of power would leave them at some position of the record."""

    def __init__(self, calls: Sequence[Call], directory: Path) -> None:
        own = [call for call in calls if call.target.startswith(f"{directory}/")]
        # A call counts from its beginning where it harms, and from its end where it helps.
        self._steps = sorted(
            ((call.done if call.name in _SYNCS else call.began, call) for call in own),
            key=lambda step: step[0],
        )
        self._next = 0
        self._files: dict[str, _File] = {}

    def advance_to(self, position: int) -> None:
        """Take in all that happened before `position`."""
        while self._next < len(self._steps) and self._steps[self._next][0] < position:
            self._apply(self._steps[self._next][1])
            self._next += 1

    def _apply(self, call: Call) -> None:
        name = Path(call.target).name
        if name.endswith("-shm"):
            return  # rebuilt by whoever opens the database
        if call.name == "unlink":
            self._files.pop(name, None)
            return
        file = self._files.setdefault(name, _File())
        if call.name in _SYNCS:
            for one in file.unsafe:
                if one.done < call.began:
                    _write(file.safe, one)
            file.unsafe = [one for one in file.unsafe if one.done >= call.began]
        else:
            assert call.name in ("pwrite64", "ftruncate"), f"{call.name} on {name}: not known here"
            file.unsafe.append(call)

    def unsafe_bytes(self) -> int:
        return sum(len(call.data) for file in self._files.values() for call in file.unsafe)

    def write(self, directory: Path, how: str, chance: random.Random) -> None:
        """Write the files into `directory`. `how`: what is not safe is "kept", "lost", "zeroed" or "torn"."""
        for name, file in self._files.items():
            data = bytearray(file.safe)
            for call in file.unsafe:
                if how == "kept" or (how == "torn" and chance.random() < 0.5):
                    _write(data, call)
                elif how == "zeroed" and call.name == "pwrite64":
                    _write(data, call._replace(data=bytes(len(call.data))))
            (directory / name).write_bytes(data)


def _write(data: bytearray, call: Call) -> None:
    if call.name == "ftruncate":
        del data[call.number :]
        data.extend(bytes(call.number - len(data)))
        return
    end = call.number + len(call.data)
    data.extend(bytes(max(0, end - len(data))))
    data[call.number : end] = call.data
