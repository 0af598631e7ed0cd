"""A server of a case's own, made by the user's `--start-cmd`: one that may be killed and started again."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pubsubd.conform.case import Erred, Hook
from pubsubd.conform.endpoint import Endpoint, EndpointError

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0

# Below the range from which the systems we know pick the local ports of outgoing connections: while a
# server is down, nobody else is given its port.
PORTS = range(20_000, 32_000)
_BLOCK_PORTS = 400


class StartError(Erred):
    """The start command did not bring up a server; the text says what it did instead."""


class _Block:
    """Ports that this process alone gives away: as a claim it holds the first one's number as a UDP port."""

    def __init__(self) -> None:
        starts = list(range(PORTS.start, PORTS.stop, _BLOCK_PORTS))
        random.shuffle(starts)
        self._claim = socket.socket(type=socket.SOCK_DGRAM)
        for start in starts:
            if _binds(self._claim, start):
                self.ports = itertools.cycle(range(start, start + _BLOCK_PORTS))
                return
        self._claim.close()
        raise StartError(f"All ports between {PORTS.start} and {PORTS.stop} are claimed.")


_block = functools.cache(_Block)


def free_port() -> int:
    """A port that nobody listens on and that no process like this one gives away soon."""
    for port in itertools.islice(_block().ports, _BLOCK_PORTS):
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if _binds(attempt, port):
                return port
    raise StartError("No port is free.")


def _binds(attempt: socket.socket, port: int) -> bool:
    try:
        attempt.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class StartCommand:
    """A command line with `{port}`, and if it has them `{datadir}` and `{admin_port}`.

    Written like a line for a shell, but no shell runs it.
    """

    text: str

    def __post_init__(self) -> None:
        if "{port}" not in self.text:
            raise ValueError("the start command has no {port}, so servers could not be told apart")
        try:
            self.words(1, 1, Path("/"))
        except ValueError as error:
            raise ValueError(f"the start command cannot be read: {str(error).lower()}") from error

    @property
    def has_admin(self) -> bool:
        return "{admin_port}" in self.text

    @property
    def hooks(self) -> set[Hook]:
        """What servers made by this command can be put through."""
        found = {Hook.STOP}
        if "{datadir}" in self.text:
            found.add(Hook.RESTART)
        if self.has_admin:
            found.add(Hook.FAULTS)
        return found

    def words(self, port: int, admin_port: int, datadir: Path) -> list[str]:
        values = {"{port}": str(port), "{admin_port}": str(admin_port), "{datadir}": str(datadir)}
        words = shlex.split(self.text)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        return words


class Served:
    """One server: always the same port and directory, started as often as wanted."""

    def __init__(
        self,
        command: StartCommand,
        environment: Mapping[str, str] | None = None,
        project: str = "conformance",
    ) -> None:
        self.command = command
        self.environment = dict(environment or {})
        self.project = project  # where it is asked whether it is ready
        self.port = free_port()
        self.admin_port = free_port() if command.has_admin else 0
        self._home = Path(tempfile.mkdtemp(prefix="pubsubd-conform-"))
        self.data_dir = self._home / "data"
        self.data_dir.mkdir()
        self._log = self._home / "output"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.port}")

    @property
    def admin_endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.admin_port}")

    @property
    def output(self) -> str:
        """The end of what it printed."""
        try:
            return self._log.read_bytes()[-2000:].decode(errors="replace").strip()
        except OSError:
            return ""

    async def start(self) -> None:
        """Returns when the server answers.

        Raises:
            StartError: it ended before that, or took too long.
        """
        words = self.command.words(self.port, self.admin_port, self.data_dir)
        with self._log.open("ab") as log:
            try:
                # A session of its own: Ctrl-C reaches us alone, and what the command starts in its turn
                # can be ended together with it.
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise StartError(f"{words[0]!r} of --start-cmd cannot be run: {reason}.") from error
        try:
            await self._until_it_answers(self._process)
        except BaseException:
            self._signal(signal.SIGKILL)
            raise

    async def _until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        answer = asyncio.create_task(self.endpoint.answers(self.project, START_SECONDS_MAX))
        try:
            while process.poll() is None and not answer.done():
                await asyncio.wait([answer], timeout=0.05)
            if answer.done():
                return answer.result()
            what = f"ended with {process.returncode}"
        except EndpointError as error:
            what = f"could not be used ({error})"
        finally:
            answer.cancel()
            await asyncio.wait([answer])
        raise StartError(f"The server of the start command {what}; it printed: {self.output or 'nothing'}")

    async def kill(self) -> None:
        """SIGKILL to all that the command started."""
        self._signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM, the stop in order; returns the exit code."""
        self._signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Until the server has ended by itself; returns its exit code, -9 after SIGKILL."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise StartError(f"The server had not ended after {seconds:.0f} s.")
            await asyncio.sleep(0.01)
        return code

    def _signal(self, number: signal.Signals) -> None:
        # To the whole group, also when its first process has ended and others of it have not.
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._process.poll()

    def remove(self) -> None:
        """Ends what still runs and removes the directory. Awaits nothing, so no cancellation skips it."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        # What is left in a temporary directory is no reason to lose the results of a run.
        shutil.rmtree(self._home, ignore_errors=True)
