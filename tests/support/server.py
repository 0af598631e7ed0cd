"""A pubsubd of its own process: what tests start, talk to, kill and start again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pubsubd.conform.served import free_port

_HOST_LINE = re.compile(r"PUBSUB_EMULATOR_HOST=\S*?(\d+)\s*$")
_ADMIN_LINE = re.compile(r"admin\D*(?:127\.0\.0\.1:)(\d+)")
START_SECONDS_MAX = 30.0


class ServerProcess:
    """`pubsubd serve` in a child process, on a free port unless one is given.

    A server that was killed is started again with `start()`: same port, same data directory. The port is one
    that the system gives to nobody while the server is down.
    """

    def __init__(self, data_dir: Path | None, *options: str, port: int = 0, admin: bool = False) -> None:
        self.data_dir = data_dir
        self.options = list(options)
        self.port = port or free_port()
        self.admin = admin
        self.admin_port = free_port() if admin else 0
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.admin_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def command(self) -> Sequence[str]:
        place = ["--in-memory"] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        admin = ["--admin", str(self.admin_port)] if self.admin else []
        serve = [sys.executable, "-m", "pubsubd", "serve", "--port", str(self.port)]
        return [*serve, *place, *admin, *self.options]

    def start(self) -> ServerProcess:
        """Returns when the server has printed its banner; raises if it ends before that."""
        self.lines = []
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PUBSUB")}
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "PYTHONUNBUFFERED": "1"},
        )
        up = threading.Event()
        threading.Thread(target=self._read, args=(self.process, up), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not up.wait(0.01):
            if self.process.poll() is not None:
                raise RuntimeError(f"pubsubd ended with {self.process.returncode}:\n{self.output}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"pubsubd did not start:\n{self.output}")
        return self

    def _read(self, process: subprocess.Popen[str], up: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            if found := _ADMIN_LINE.search(line):
                self.admin_port = int(found.group(1))
            if found := _HOST_LINE.search(line):
                self.port = int(found.group(1))
            if line.startswith("ready"):
                up.set()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM: the graceful stop. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def wait(self, seconds: float = 20.0) -> int:
        """Until the process ends by itself; returns its exit code (-9 after SIGKILL)."""
        assert self.process is not None
        return self.process.wait(seconds)

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
