"""A disk that is really full, a file that may not grow, a device that fails; and then all is well again."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.crash.served import SUBSCRIPTION, Served, check_journal
from tests.crash.syscalls import TracedServer, why_no_tracing
from tests.support.server import ServerProcess
from tests.wire.calls import refused, transient

_DISK_BYTES = 8 << 20
_RECOVERY_SECONDS_MAX = 20.0


class Book:
    """What a publisher and a subscriber were told on a disk that fills up."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.told: dict[int, bytes] = {}  # message_id: data, of each publish that was answered OK
        self.refused: list[bytes] = []
        self.leased: dict[int, Any] = {}  # extended by ten minutes for certain
        self.doubtful: dict[int, Any] = {}  # delivered; whether the extension took effect is not known
        self.acked: set[int] = set()
        self._numbers = iter(range(10**6))

    def publish(self, size: int) -> bool:
        """Whether it was answered OK; anything but UNAVAILABLE fails the test."""
        data = b"%06d " % next(self._numbers) + b"." * size
        try:
            (message_id,) = self.served.publish(data)
        except grpc.RpcError as error:
            assert error.code() is StatusCode.UNAVAILABLE, error
            self.refused.append(data)
            return False
        self.told[message_id] = data
        return True

    def lease(self, count: int) -> None:
        """Pull so many messages at most, and extend them."""
        received = {int(one.message.message_id): one for one in self.served.pull_now(count)}
        self.doubtful |= received
        if received:
            self.served.modack(600, *received.values())
        self.leased |= received
        for message_id in received:
            del self.doubtful[message_id]

    def ack(self, message_ids: Iterable[int]) -> None:
        """Ack leased messages."""
        message_ids = list(message_ids)
        self.served.ack(*[self.leased[message_id] for message_id in message_ids])
        self.acked.update(message_ids)
        for message_id in message_ids:
            del self.leased[message_id]

    def fill(self) -> None:
        """Publish until not even a small message is taken."""
        for size in (100_000, 3_000, 10):
            for _ in range(3000):
                if not self.publish(size):
                    break
            else:
                raise AssertionError("the disk does not fill up")

    def settle(self) -> None:
        """Deliver and ack all there is, and compare with what was told."""
        data_of = {message_id: one.message.data for message_id, one in (self.leased | self.doubtful).items()}
        if self.leased:
            self.ack(list(self.leased))
        for message_id, one in self.doubtful.items():
            try:
                self.served.ack(one)
                self.acked.add(message_id)
            except grpc.RpcError as error:
                assert error.code() is StatusCode.INVALID_ARGUMENT, error
        deadline = time.monotonic() + 30
        while missing := self.told.keys() - self.acked:
            assert time.monotonic() < deadline, f"{len(missing)} messages are lost, such as {min(missing)}"
            for one in (received := self.served.pull_now()):
                message_id = int(one.message.message_id)
                assert message_id not in self.acked, f"{message_id} was acked"
                data_of[message_id] = one.message.data
            if received:
                self.served.ack(*received)
                self.acked |= {int(one.message.message_id) for one in received}
        for message_id, data in self.told.items():
            assert data_of.get(message_id, data) == data

    def check_while_full(self) -> None:
        """What is answered while no commit succeeds."""
        served = self.served
        leased = list(self.leased.values())
        with transient(*leased):
            served.ack(*leased)
        with transient(leased[0]):
            served.modack(0, leased[0])
        with transient(leased[0]):
            served.modack(60, leased[0])
        with refused(StatusCode.UNAVAILABLE):
            served.client.CreateTopic(name="projects/crash/topics/no-room")
        with refused(StatusCode.UNAVAILABLE):
            served.client.DeleteSubscription(subscription=SUBSCRIPTION)
        assert served.server.process is not None and served.server.process.poll() is None
        (state,) = served.admin.GetState(subscription=SUBSCRIPTION).subscriptions
        assert state.leased == len(leased)

    def wait_until_well(self) -> None:
        deadline = time.monotonic() + _RECOVERY_SECONDS_MAX
        while not self.publish(10):
            assert time.monotonic() < deadline, "it does not recover"
            time.sleep(0.1)


def go_through(served: Served, heal: Callable[[], None], *, kill: bool) -> None:
    """Fill up, look, heal, go on; and once more after a kill."""
    book = Book(served)
    served.create()
    for _ in range(30):
        assert book.publish(100)
    book.lease(10)
    book.ack(list(book.leased))
    book.lease(10)
    assert len(book.leased) == 10
    stream = _idle_stream(served)
    book.fill()
    book.check_while_full()
    if kill:
        # The files are as full as before, and the server may say so; or it finds room and starts.
        served.kill()
        _start_or_say_why(served)
        heal()
        served.kill()
        served.start()
    else:
        # A stream that waited all the time is still there.
        assert stream.is_active()
        heal()
    book.wait_until_well()
    if not kill:
        assert stream.is_active()
    stream.cancel()
    with refused(StatusCode.NOT_FOUND):
        served.client.GetTopic(topic="projects/crash/topics/no-room")
    served.restart()
    book.settle()
    served.kill()
    check_journal(served.stored())


def _idle_stream(served: Served) -> Any:
    """A stream on another subscription, that nothing is published to."""
    quiet = "projects/crash/topics/quiet"
    name = "projects/crash/subscriptions/quiet"
    served.client.CreateTopic(name=quiet)
    served.client.CreateSubscription(name=name, topic=quiet, enable_exactly_once_delivery=True)

    def requests() -> Iterator[Any]:
        yield pb.StreamingPullRequest(subscription=name, stream_ack_deadline_seconds=10, protocol_version=1)
        time.sleep(600)

    call = served.client.StreamingPull(requests())
    next(call)
    return call


def _start_or_say_why(served: Served) -> None:
    try:
        served.server.start()
    except RuntimeError:
        said = [line for line in served.server.output.splitlines() if line]
        assert len(said) == 1 and said[0].startswith("pubsubd: "), said
        assert served.server.process is not None and served.server.process.returncode == 1
        served.server.lines = []


# -- no space ---------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, and small."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(place)]
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command to make a small file system with")
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(disk: Path) -> None:
    filler = disk / "filler"
    filler.write_bytes(bytes(_DISK_BYTES // 2))
    with Served(disk / "data") as served:
        go_through(served, filler.unlink, kill=False)


@pytest.mark.slow  # a kill while a file may not grow is the same without a file system of its own
def test_a_server_killed_on_a_full_disk(disk: Path) -> None:
    filler = disk / "filler"
    filler.write_bytes(bytes(_DISK_BYTES // 2))
    with Served(disk / "data") as served:
        go_through(served, filler.unlink, kill=True)


def test_a_server_started_on_a_full_disk_says_so(disk: Path) -> None:
    (disk / "data").mkdir()
    (disk / "filler").write_bytes(bytes(_DISK_BYTES - (64 << 10)))
    served = Served(disk / "data")
    _start_or_say_why(served)
    assert served.server.process is not None and served.server.process.poll() == 1
    # Nothing half-made is in the way afterwards.
    (disk / "filler").unlink()
    with served:
        served.create()


# -- a file that may not grow -----------------------------------------------------------------------------


class LimitedServer(ServerProcess):
    """No file of this server may become longer than `bytes_max`."""

    def __init__(self, data_dir: Path, bytes_max: int) -> None:
        super().__init__(data_dir, admin=True)
        self.bytes_max = bytes_max

    def command(self) -> Sequence[str]:
        limit = f"import os, resource, sys; hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1];\
 resource.setrlimit(resource.RLIMIT_FSIZE, ({self.bytes_max}, hard)); os.execv(sys.argv[1], sys.argv[1:])"
        return [sys.executable, "-c", limit, *super().command()]

    def lift(self) -> None:
        """Let files grow again, of the running server and of later ones."""
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        self.bytes_max = resource.RLIM_INFINITY
        if self.process is not None and self.process.poll() is None:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="only Linux changes the limits of another process"
)
@pytest.mark.parametrize(
    "kill", [pytest.param(False, id="alive", marks=pytest.mark.slow), pytest.param(True, id="killed")]
)
def test_a_file_that_may_not_grow(tmp_path: Path, kill: bool) -> None:
    server = LimitedServer(tmp_path, 2 << 20)
    with Served(tmp_path, server=server) as served:
        go_through(served, server.lift, kill=kill)


# -- a device that fails ----------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_no_tracing()), reason=why_no_tracing() or "strace works")
@pytest.mark.parametrize(
    ("inject", "durability"),
    [
        pytest.param("fdatasync:error=EIO:when=30..37", "power", marks=pytest.mark.slow),
        ("fdatasync:error=EIO:when=30+7", "power"),
        pytest.param("pwrite64:error=EIO:when=200..208", "process", marks=pytest.mark.slow),
        ("pwrite64:error=EIO:when=200+41", "process"),
        pytest.param("pwrite64:error=ENOSPC:when=200+41", "power", marks=pytest.mark.slow),
    ],
)
def test_a_device_that_fails_for_a_while(tmp_path: Path, inject: str, durability: str) -> None:
    """Some calls fail, once in a row and once every now and then; what is answered OK stays true."""
    data_dir = tmp_path / "data"
    server = TracedServer(data_dir, tmp_path / "calls", "--durability", durability, inject=inject)
    with Served(data_dir, server=server) as served:
        book = Book(served)
        served.create()
        for _ in range(20):
            book.publish(100)
            book.publish(100)
            with _may_fail():
                book.lease(2)
            with _may_fail():
                if book.leased:
                    book.ack(list(book.leased)[:1])
        assert book.refused or "commit failed" in served.server.output
        # A plain server opens what is left, and nothing that was told is missing.
        served.kill()
        served.server = ServerProcess(data_dir, admin=True)
        served.start()
        book.settle()
        served.kill()
        check_journal(served.stored())


@contextmanager
def _may_fail() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        assert error.code() in (StatusCode.UNAVAILABLE, StatusCode.ABORTED), error
