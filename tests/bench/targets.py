"""The servers under measurement: how each is started and stopped, and what it has used so far."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from pubsubd.conform.served import free_port
from tests.bench.load import first_answer
from tests.support.server import ServerProcess

START_SECONDS_MAX = 60.0
EMULATOR_FOLDER = Path("platform/pubsub-emulator/lib")


class Target:
    """A server at an address. Without a pid its speed can be measured, but neither its CPU nor its memory."""

    #: The benchmark may start and stop it as often as it likes.
    is_ours_to_start = False
    #: Its backlog outlives a restart.
    is_persistent = False
    #: It is so slow at draining that it is given fewer messages to drain.
    is_slow = False

    def __init__(self, name: str, address: str, pid: int | None = None) -> None:
        self.name = name
        self.address = address
        self.pid = pid

    async def start(self) -> float:
        """Returns the seconds from exec to the first answered RPC."""
        return await first_answer(self.address, START_SECONDS_MAX)

    async def stop(self) -> None:
        """Asks the server to end and waits until it has."""

    def clean_up(self) -> None:
        """Leaves neither a process nor a file behind."""

    def describe(self) -> dict[str, object]:
        return {"address": self.address, "pid": self.pid}

    def cpu_seconds(self) -> float | None:
        """User and system time of the process, all its threads, and the processes it started."""
        if self.pid is None:
            return None
        children = psutil.Process(self.pid).children(recursive=True)
        total = process_cpu_seconds(self.pid)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process_cpu_seconds(child.pid)
        return total

    def peak_memory_mb(self) -> float | None:
        """The largest resident set since the process started, in 10^6 bytes."""
        if self.pid is None:
            return None
        return peak_resident_bytes(self.pid) / 1e6


def process_cpu_seconds(pid: int) -> float:
    if sys.platform == "linux":
        # What psutil reads counts in hundredths of a second, half of what the null server may use in a
        # drain. The kernel's clock of the process counts nanoseconds; clock_getcpuclockid(3) makes its
        # number from the pid like this.
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_resident_bytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    memory = psutil.Process(pid).memory_info()
    # Windows remembers the peak; elsewhere the present size is the best there is.
    return int(getattr(memory, "peak_wset", memory.rss))


class ChildTarget(Target):
    """A server that is one command with a port in it."""

    is_ours_to_start = True

    def __init__(self, name: str) -> None:
        self.port = free_port()
        super().__init__(name, f"127.0.0.1:{self.port}")
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    async def start(self) -> float:
        started = time.monotonic()
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        self.pid = self.process.pid
        await first_answer(self.address, START_SECONDS_MAX, lambda: check_alive(self.process))
        return time.monotonic() - started

    async def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 30)
        self.pid = None

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "command": list(self.command())}


class NullTarget(ChildTarget):
    def __init__(self, *, prebuilt: bool = False) -> None:
        super().__init__("prebuilt" if prebuilt else "null")
        self.options = ["--prebuilt"] if prebuilt else []

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "tests.bench.null_server", "--port", str(self.port), *self.options]


class EmulatorTarget(ChildTarget):
    is_slow = True

    def __init__(self, jar: Path) -> None:
        super().__init__("emulator")
        self.jar = jar

    def command(self) -> Sequence[str]:
        return ["java", "-jar", str(self.jar), "--host=127.0.0.1", f"--port={self.port}"]


class PubsubdTarget(Target):
    """Our server on a data directory of its own, which it finds again after a restart."""

    is_ours_to_start = True
    is_persistent = True

    def __init__(self, folder: Path, options: Sequence[str] = (), *, name: str = "pubsubd") -> None:
        port = free_port()
        super().__init__(name, f"127.0.0.1:{port}")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.server = ServerProcess(folder, *options, port=port)

    async def start(self) -> float:
        started = time.monotonic()
        # The banner and the first answer come in either order; the answer is what is measured.
        banner = asyncio.create_task(asyncio.to_thread(self.server.start))
        await first_answer(self.address, START_SECONDS_MAX, lambda: check_banner(banner))
        seconds = time.monotonic() - started
        await banner
        self.pid = self.server.pid
        return seconds

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.terminate)
        self.pid = None

    def clean_up(self) -> None:
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "command": list(self.server.command())}


def check_alive(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it answered")


def check_banner(banner: asyncio.Task[ServerProcess]) -> None:
    if banner.done():
        banner.result()


def parse_target(text: str) -> Target:
    """`NAME=HOST:PORT[,pid=N]`."""
    name, _, place = text.partition("=")
    address, _, pid = place.partition(",pid=")
    if not name or ":" not in address or (pid and not pid.isdigit()):
        raise ValueError(f"target {text!r} is not NAME=HOST:PORT[,pid=N]")
    return Target(name, address, int(pid) if pid else None)


def find_emulator() -> Path | None:
    """The official emulator's jar, where the Cloud SDK puts it; None where it or Java is not installed."""
    if named := os.environ.get("PUBSUB_EMULATOR_JAR"):
        return Path(named)
    if shutil.which("java") is None or shutil.which("gcloud") is None:
        return None
    asked = subprocess.run(
        ["gcloud", "info", "--format=value(installation.sdk_root)"],
        capture_output=True,
        text=True,
        check=False,
    )
    jars = sorted((Path(asked.stdout.strip()) / EMULATOR_FOLDER).glob("cloud-pubsub-emulator-*.jar"))
    return jars[-1] if jars else None


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
