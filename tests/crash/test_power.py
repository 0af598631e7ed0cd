"""`--durability power` proven from recorded system calls: no answer before its commit is on the disk.

Two ways to look at one record. First, each answer: was the commit that holds what it tells synced before the
first byte of the answer was sent? Second, the files: cut back to what was synced at many moments, does the
server that opens them keep everything that had been answered by then? The same with `--durability process`,
which does not promise it, shows that both could fail.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pubsubd.storage.store import FILE_NAME
from tests.crash.compare import Stored
from tests.crash.database import read
from tests.crash.replay import ACK, DELIVER, EXTEND, NACK
from tests.crash.served import SUBSCRIPTION, TOPIC, Served
from tests.crash.syscalls import Call, Disk, Reply, TracedServer, durable_at, replies, why_no_tracing

pytestmark = pytest.mark.skipif(bool(why_no_tracing()), reason=why_no_tracing() or "strace works")

SECOND = 1_000_000
HOWS = ["lost", "zeroed", "torn"]


def event(kind: int, message_id: int, generation: int) -> bytes:
    """How a record goes on after its number and time, if its topic and subscription are the first."""
    return struct.pack("<biiqi", kind, 1, 1, message_id, generation)


@dataclass
class Step:
    """One call, answered OK."""

    what: str
    needles: list[bytes]  # what its commit holds
    published: dict[int, bytes] = field(default_factory=dict)
    leased: dict[int, int] = field(default_factory=dict)  # message_id: generation
    acked: set[int] = field(default_factory=set)
    nacked: set[int] = field(default_factory=set)
    extended_to_us: dict[int, int] = field(default_factory=dict)
    created: str = ""


class Script:
    """Calls one after the other, and what each was answered."""

    def __init__(self, served: Served) -> None:
        self.steps: list[Step] = []
        self._served = served
        self._generations: dict[int, int] = {}
        self._numbers = iter(range(10**6))

    def create(self) -> None:
        self._served.client.CreateTopic(name=TOPIC)
        self.steps.append(Step("CreateTopic", [TOPIC.encode()], created=TOPIC))
        self._served.subscribe()
        self.steps.append(Step("CreateSubscription", [SUBSCRIPTION.encode()], created=SUBSCRIPTION))

    def publish(self, count: int = 1, size: int = 0) -> None:
        datas = [b"<marker %06d>" % next(self._numbers) + b"." * size for _ in range(count)]
        message_ids = self._served.publish(*datas)
        needles = [data[:15] for data in datas]
        self.steps.append(Step("Publish", needles, published=dict(zip(message_ids, datas, strict=True))))

    def pull(self, count: int) -> list[Any]:
        received = self._served.pull(count)
        leased = {}
        for one in received:
            message_id = int(one.message.message_id)
            leased[message_id] = self._generations[message_id] = self._generations.get(message_id, 0) + 1
        needles = [event(DELIVER, *pair) for pair in leased.items()]
        self.steps.append(Step("Pull", needles, leased=leased))
        return received

    def ack(self, *received: Any) -> None:
        self._served.ack(*received)
        self.steps.append(Step("Acknowledge", self._events(ACK, received), acked=ids_of(received)))

    def nack(self, *received: Any) -> None:
        self._served.modack(0, *received)
        self.steps.append(Step("nack", self._events(NACK, received), nacked=ids_of(received)))

    def extend(self, seconds: int, *received: Any) -> None:
        asked_us = self._served.admin.GetState().now_us
        self._served.modack(seconds, *received)
        ends = dict.fromkeys(ids_of(received), asked_us + seconds * SECOND)
        self.steps.append(Step("extension", self._events(EXTEND, received), extended_to_us=ends))

    def _events(self, kind: int, received: tuple[Any, ...]) -> list[bytes]:
        return [event(kind, message_id, self._generations[message_id]) for message_id in ids_of(received)]


def ids_of(received: Any) -> set[int]:
    return {int(one.message.message_id) for one in received}


def little(script: Script, rounds: int) -> None:
    """Calls of every kind, with little data."""
    for _ in range(rounds):
        script.publish(3)
        first, second, third = script.pull(3)
        script.extend(60, first, second)
        script.ack(first)
        script.nack(third)
        (third,) = script.pull(1)
        script.ack(second, third)
    script.publish(5)
    script.extend(600, *script.pull(2))


def much(script: Script) -> None:
    """So much that the write-ahead log is moved into the database, and begun anew, between other calls."""
    for _ in range(14):
        script.publish(8, 100_000)
        script.ack(*script.pull(6))
        # A move that catches up with the commits is what lets the log begin anew.
        time.sleep(0.3)
        little(script, 1)


@dataclass
class Recording:
    calls: list[Call]
    directory: Path
    steps: list[Step]
    replies: list[Reply]

    @property
    def wal(self) -> str:
        return f"{self.directory / FILE_NAME}-wal"

    def unsafe_replies(self) -> list[str]:
        """The answers of which some part was sent before it was safe."""
        found = []
        for step, reply in zip(self.steps, self.replies, strict=True):
            for needle in step.needles:
                safe = durable_at(self.calls, self.wal, needle)
                if safe is None or safe >= reply.began:
                    found.append(f"{step.what} (call {reply.stream}): {needle!r}")
        return found


# The log is moved sooner than usual, so that the record of it stays short.
_EARLY_MOVES = """
import sys
from pubsubd.cli import main
from pubsubd.storage import store
store._CHECKPOINT_BYTES = 2_000_000
store._WAL_BYTES_MAX = 6_000_000
sys.exit(main())
"""


def record(directory: Path, durability: str, play: Any, start: str = "") -> Recording:
    directory.mkdir()
    data_dir = directory / "data"
    server = TracedServer(data_dir, directory / "calls", "--durability", durability, start=start)
    with Served(data_dir, server=server) as served:
        port = server.port
        script = Script(served)
        script.create()
        play(script)
        # What a kill interrupts may be in the files and is not in the record.
        time.sleep(0.5)
        served.kill()
    calls = server.recorded()
    recording = Recording(calls, data_dir, script.steps, replies(calls, port))
    _check_record(recording, directory / "again")
    return recording


def _check_record(recording: Recording, scratch: Path) -> None:
    """The record is whole: files made from it are those of the server."""
    disk = Disk(recording.calls, recording.directory)
    disk.advance_to(1 << 60)
    scratch.mkdir()
    disk.write(scratch, "kept", random.Random(0))
    for file in scratch.iterdir():
        assert file.read_bytes() == (recording.directory / file.name).read_bytes(), file.name


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("power")
    return directory


@pytest.fixture(scope="module")
def with_power(directory: Path) -> Recording:
    return record(directory / "with-power", "power", lambda script: little(script, 6))


@pytest.fixture(scope="module")
def without(directory: Path) -> Recording:
    return record(directory / "without", "process", lambda script: little(script, 6))


def test_no_answer_is_sent_before_its_commit_is_synced(with_power: Recording) -> None:
    assert len(with_power.replies) == len(with_power.steps) > 40
    assert with_power.unsafe_replies() == []


def test_without_that_promise_answers_are_sent_before(without: Recording) -> None:
    assert len(without.unsafe_replies()) > 40


def test_the_data_directory_itself_survives(with_power: Recording) -> None:
    """A directory that the server made is not there for certain before its parent is synced."""
    made = [call for call in with_power.calls if call.name == "mkdir"]
    assert [call.target for call in made] == [str(with_power.directory)]
    syncs = [
        call.done
        for call in with_power.calls
        if call.name in ("fsync", "fdatasync") and call.target == str(with_power.directory.parent)
    ]
    assert min(syncs, default=1 << 60) < with_power.replies[0].began


# -- the files, cut back ----------------------------------------------------------------------------------


class Promised:
    """What was answered up to some moment."""

    def __init__(self) -> None:
        self.created: set[str] = set()
        self.published: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.generations: dict[int, int] = {}
        self.leased: set[int] = set()
        self.ends_us: dict[int, int] = {}

    def add(self, step: Step) -> None:
        self.created |= {step.created} - {""}
        self.published |= step.published
        self.acked |= step.acked
        self.generations |= step.leased
        self.leased = (self.leased | set(step.leased)) - step.acked - step.nacked
        self.ends_us |= step.extended_to_us
        for message_id in step.leased:
            self.ends_us.pop(message_id, None)

    def broken(self, stored: Stored, under_way: Step | None) -> list[str]:
        """What is missing in `stored`. What is being asked for meanwhile may be there already, or not."""
        names = {*stored.topics, *(one.name for one in stored.subscriptions.values())}
        found = [f"{name} is not there" for name in self.created - names]
        state = next(iter(stored.subscriptions.values()), None)
        if state is None:
            return found + (["no subscription, and messages"] if self.published else [])
        changing = under_way.acked | under_way.nacked if under_way else set()
        for message_id, data in self.published.items():
            if message_id in self.acked:
                if message_id in state.unacked:
                    found.append(f"{message_id} was acked")
            elif message_id not in changing:
                stored_message = stored.messages.get(message_id)
                if message_id not in state.unacked or stored_message is None or stored_message.data != data:
                    found.append(f"{message_id} is lost")
        for message_id in self.leased - changing:
            lease = state.leases.get(message_id)
            if lease is None or lease.generation != self.generations[message_id]:
                found.append(f"the lease of {message_id} is {lease}")
            elif lease.deadline_us < self.ends_us.get(message_id, 0):
                found.append(f"the extension of {message_id} is lost")
        return found


def moments(recording: Recording, between: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """(position, answers before it): right after each answer began, and some on the way to the next."""
    ends = [reply.began for reply in recording.replies[1:]] + [recording.calls[-1].done + 1]
    for count, (reply, end) in enumerate(zip(recording.replies, ends, strict=True), 1):
        inside = sorted(chance.randrange(reply.began, end) for _ in range(between))
        for position in [reply.began, *inside]:
            yield position, count


def broken_by_cuts(recording: Recording, scratch: Path, between: int, share: float = 1.0) -> list[str]:
    """What is missing in files cut back at a share of all moments."""
    chance = random.Random(4)
    disk = Disk(recording.calls, recording.directory)
    promised = Promised()
    added = 0
    found: list[str] = []
    for position, count in moments(recording, between, chance):
        disk.advance_to(position)
        for step in recording.steps[added:count]:
            promised.add(step)
        added = count
        if chance.random() >= share:
            continue
        under_way = recording.steps[count] if count < len(recording.steps) else None
        for how in HOWS if disk.unsafe_bytes() else HOWS[:1]:
            directory = scratch / f"{position}-{how}-{chance.random()}"
            directory.mkdir()
            disk.write(directory, how, chance)
            for text in promised.broken(read(directory), under_way):
                found.append(f"{how} at {position}, after {recording.steps[count - 1].what}: {text}")
            for file in directory.iterdir():
                file.unlink()
    return found


def test_files_cut_back_to_their_last_sync_hold_what_was_answered(
    with_power: Recording, tmp_path: Path
) -> None:
    assert broken_by_cuts(with_power, tmp_path, between=2) == []


def test_without_that_promise_files_that_are_cut_back_lack_something(
    without: Recording, tmp_path: Path
) -> None:
    # Before the first sync there is not even a database, so the last moment has to do.
    disk = Disk(without.calls, without.directory)
    disk.advance_to(without.replies[-1].began)
    promised = Promised()
    for step in without.steps:
        promised.add(step)
    disk.write(tmp_path, "lost", random.Random(0))

    assert promised.broken(read(tmp_path), None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_files_cut_back_while_the_log_is_moved_hold_what_was_answered(
    directory: Path, tmp_path: Path
) -> None:
    recording = record(directory / "much", "power", much, start=_EARLY_MOVES)
    # Both happened: pages went into the database, and the log was begun anew.
    writes = [call for call in recording.calls if call.name == "pwrite64"]
    moved = [call for call in writes if call.target == str(recording.directory / FILE_NAME)]
    begun = [call for call in writes if call.target == recording.wal and call.number == 0]
    assert len(moved) > 500
    assert len(begun) >= 2

    assert recording.unsafe_replies() == []
    assert broken_by_cuts(recording, tmp_path, between=1, share=0.3) == []
