"""Runs the job: starts everything, kills the server on the way, watches the end and has the record judged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from google.api_core import exceptions
from google.api_core.retry import Retry
from google.cloud import pubsub_v1

from tests.mainjob.audit import Ledger, Verdict
from tests.mainjob.events import Delivered, EventLog, EventTail, delivery_key, now_us
from tests.mainjob.payload import read_payload
from tests.mainjob.publisher import END_OF_PACE
from tests.support.server import ServerProcess

_PROJECT = "main-job"
_TOPIC = f"projects/{_PROJECT}/topics/work"
_SUBSCRIPTION = f"projects/{_PROJECT}/subscriptions/work"
_ROOT = Path(__file__).parents[2]

_POLL_SECONDS = 0.02
_SETUP_SECONDS_MAX = 20.0
_DOWN_SECONDS_MAX = 0.5
_FINAL_PULL_SECONDS = 2.0
_STOP_SECONDS_MAX = 90.0
# The leases that the library asks for under exactly-once delivery unless it is told otherwise.
_LEASE_SECONDS_DEFAULT = 60
# A message that was on its way when the server died comes again after its lease; a publish that failed
# several times is repeated after up to a minute.
_STALL_SECONDS_SPARE = 80


@dataclass(frozen=True)
class Settings:
    directory: Path
    messages: int = 100_000
    subscribers: int = 3
    kills: int = 5
    stops: int = 0
    nack_percent: float = 1.0
    payload: int = 1_000
    seed: int = 0
    backlog: int = 20_000
    rate: float = 0.0
    front: bool = False
    lease_seconds: int = 0
    watch_seconds: float | None = None
    timeout_seconds: float = 900.0
    server_options: tuple[str, ...] = ()

    @property
    def lease_seconds_effective(self) -> int:
        return self.lease_seconds or _LEASE_SECONDS_DEFAULT

    @property
    def watch_seconds_effective(self) -> float:
        """A lost ack shows when the lease of its delivery runs out, so that is what the end waits for."""
        return self.lease_seconds_effective + 5.0 if self.watch_seconds is None else self.watch_seconds


@dataclass(frozen=True)
class Progress:
    elapsed_seconds: float
    published: int
    delivered: int
    acked: int
    nacked: int
    kills: int
    phase: str


@dataclass(frozen=True)
class Outcome:
    settings: Settings
    ledger: Ledger
    verdict: Verdict
    started_us: int
    started_wall_seconds: float
    elapsed_seconds: float
    drain_seconds: float
    kills_us: list[int]
    stops_us: list[int]
    busy_ends: int  # after messages were published, delivered and acked, all three, since the server's start
    diagnosis: str

    @property
    def passed(self) -> bool:
        return self.verdict.passed and not self.diagnosis


class GaveUp(Exception):
    """The run cannot end well; the text says what was seen."""


class MainJob:
    def __init__(self, settings: Settings, show: Callable[[Progress], None]) -> None:
        self._settings = settings
        self._show = show
        self._random = random.Random(settings.seed)
        self._ledger = Ledger()
        self._server = ServerProcess(settings.directory / "data", *settings.server_options)
        self._publisher: subprocess.Popen[str] | None = None
        self._subscribers: list[subprocess.Popen[str]] = []
        self._front: subprocess.Popen[str] | None = None
        self._tails: list[EventTail] = []
        self._ends = self._plan_ends()
        self._kills_us: list[int] = []
        self._stops_us: list[int] = []
        self._at_start = self._traffic()
        self._end_at = self._next_end()
        self._busy_ends = 0
        self._told_acked = 0
        self._drain_seconds = 0.0
        self._phase = "starting"
        self._active_us = now_us()
        self._started_us = now_us()
        self._started_wall_seconds = time.time()

    def _plan_ends(self) -> list[signal.Signals]:
        """How the server ends, each time."""
        signals = [signal.SIGKILL] * self._settings.kills + [signal.SIGTERM] * self._settings.stops
        self._random.shuffle(signals)
        return signals

    def _next_end(self) -> int:
        """The number of confirmed acks at which the server ends next, from its start on.

        The ends share what may be acked before the publisher, which stays a backlog ahead of the acks, has
        nothing left: so each of them finds it at work.
        """
        acked, messages = self._ledger.confirmed_count, self._settings.messages
        if not self._ends:
            return messages
        share = (0.95 * messages - self._settings.backlog - acked) / len(self._ends)
        return acked + 1 + int(self._random.uniform(0.0, 2.0) * max(share, 0.0))

    def run(self) -> Outcome:
        diagnosis = ""
        try:
            self._start()
            self._drain()
            self._watch()
            self._stop_clients()
            self._pull_once_more()
        except GaveUp as reason:
            diagnosis = str(reason)
        finally:
            self._clean_up()
        self._read()
        verdict = self._ledger.audit(range(self._settings.messages))
        return Outcome(
            self._settings,
            self._ledger,
            verdict,
            self._started_us,
            self._started_wall_seconds,
            self._elapsed(),
            self._drain_seconds,
            self._kills_us,
            self._stops_us,
            self._busy_ends,
            diagnosis,
        )

    def _elapsed(self) -> float:
        return (now_us() - self._started_us) / 1e6

    def _start(self) -> None:
        self._settings.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._server.start()
        except RuntimeError as error:
            raise GaveUp(str(error)) from error
        os.environ["PUBSUB_EMULATOR_HOST"] = self._address()
        try:
            _create_resources()
        except exceptions.GoogleAPIError as error:
            raise GaveUp(f"no topic or no subscription: {error}\n{self._server.output}") from error
        s = self._settings
        for number in range(s.subscribers):
            self._subscribers.append(
                self._spawn(
                    f"subscriber-{number}",
                    "tests.mainjob.subscriber",
                    f"--subscription={_SUBSCRIPTION}",
                    f"--number={number}",
                    f"--seed={s.seed}",
                    f"--nack-percent={s.nack_percent}",
                    f"--payload={s.payload}",
                    f"--lease-seconds={s.lease_seconds}",
                )
            )
        self._publisher = self._spawn(
            "publisher",
            "tests.mainjob.publisher",
            f"--topic={_TOPIC}",
            f"--messages={s.messages}",
            f"--payload={s.payload}",
            f"--backlog={s.backlog}",
            f"--rate={s.rate}",
        )

    def _address(self) -> str:
        """Where clients find the server."""
        if not self._settings.front:
            return self._server.address
        self._front = subprocess.Popen(
            [sys.executable, "-m", "tests.mainjob.front", f"--port={self._server.port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        assert self._front.stdout is not None
        return f"127.0.0.1:{int(self._front.stdout.readline())}"

    def _spawn(self, name: str, module: str, *arguments: str) -> subprocess.Popen[str]:
        log = self._settings.directory / f"{name}.jsonl"
        self._tails.append(EventTail(log))
        with (self._settings.directory / f"{name}.err").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments, f"--log={log}"],
                stdin=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=_ROOT,
            )

    def _drain(self) -> None:
        """Until every message is acked; the server dies on the way."""
        self._phase = "draining"
        while self._ends or not self._drained():
            self._step()
            if self._ends and self._ledger.confirmed_count >= self._end_at and self._are_clients_back():
                self._end_server(self._ends.pop(0))
                if not self._ends:
                    self._say_to_publisher(END_OF_PACE)
        self._drain_seconds = self._elapsed()

    def _traffic(self) -> tuple[int, int, int]:
        return self._ledger.published_count, self._ledger.delivered_count, self._ledger.confirmed_count

    def _are_clients_back(self) -> bool:
        """Whether messages were published, delivered and acked since the server was started."""
        assert self._publisher is not None
        published, delivered, acked = self._gone_on()
        return (published or self._publisher.poll() == 0) and delivered and acked

    def _gone_on(self) -> list[bool]:
        return [now > before for now, before in zip(self._traffic(), self._at_start, strict=True)]

    def _drained(self) -> bool:
        assert self._publisher is not None
        if self._publisher.poll() is None:
            return False
        self._read()
        return self._ledger.published_count >= self._settings.messages and not self._ledger.unconfirmed

    def _step(self) -> None:
        """One turn of the loop: read along, tell the publisher, show, see whether it still makes sense."""
        if not self._read():
            time.sleep(_POLL_SECONDS)
        self._tell_publisher()
        self._show(
            Progress(
                self._elapsed(),
                self._ledger.published_count,
                self._ledger.delivered_count,
                self._ledger.confirmed_count,
                self._ledger.nacked_count,
                len(self._kills_us),
                self._phase,
            )
        )
        self._check()

    def _read(self) -> bool:
        some = False
        for tail in self._tails:
            for event in tail.read():
                self._ledger.add(event)
                some = True
        if some:
            self._active_us = now_us()
        return some

    def _tell_publisher(self) -> None:
        """How far the acks are; not beyond the next end of the server, so that it has work to interrupt."""
        acked = self._ledger.confirmed_count
        if self._ends:
            acked = min(acked, self._end_at)
        if acked != self._told_acked:
            self._told_acked = acked
            self._say_to_publisher(str(acked))

    def _say_to_publisher(self, line: str) -> None:
        assert self._publisher is not None and self._publisher.stdin is not None
        # It may have ended meanwhile; its exit code is checked like that of the others.
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._publisher.stdin, flush=True)

    def _check(self) -> None:
        assert self._publisher is not None and self._server.process is not None
        if self._elapsed() > self._settings.timeout_seconds:
            raise GaveUp(f"not done after {self._settings.timeout_seconds:.0f} s\n{self._diagnose()}")
        stall_seconds = self._settings.lease_seconds_effective + _STALL_SECONDS_SPARE
        if now_us() - self._active_us > stall_seconds * 1_000_000 and self._phase == "draining":
            raise GaveUp(f"nothing happened for {stall_seconds} s\n{self._diagnose()}")
        if self._server.process.poll() is not None:
            raise GaveUp(f"the server ended by itself\n{self._diagnose()}")
        if self._publisher.poll() not in (None, 0):
            raise GaveUp(f"the publisher failed\n{self._diagnose()}")
        if any(process.poll() is not None for process in self._subscribers):
            raise GaveUp(f"a subscriber process ended\n{self._diagnose()}")

    def _end_server(self, number: signal.Signals) -> None:
        self._busy_ends += all(self._gone_on())
        # The loop reads in steps; a random moment after one is a random moment in the life of the server.
        time.sleep(self._random.uniform(0, 2 * _POLL_SECONDS))
        if number is signal.SIGKILL:
            self._kills_us.append(now_us())
            self._server.kill()
        else:
            self._stops_us.append(now_us())
            self._server.terminate()
        time.sleep(self._random.uniform(0, _DOWN_SECONDS_MAX))
        self._start_server_again()

    def _start_server_again(self) -> None:
        try:
            self._server.start()
        except RuntimeError as error:
            raise GaveUp(f"the server did not start again: {error}\n{self._diagnose()}") from error
        # What was written down until now is of the time before.
        self._read()
        self._at_start = self._traffic()
        self._end_at = self._next_end()

    def _watch(self) -> None:
        self._phase = "watching for redeliveries"
        end_seconds = self._elapsed() + self._settings.watch_seconds_effective
        while self._elapsed() < end_seconds:
            self._step()

    def _stop_clients(self) -> None:
        self._phase = "stopping"
        for process in self._subscribers:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._subscribers:
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise GaveUp(f"a subscriber process did not stop\n{self._diagnose()}") from None

    def _pull_once_more(self) -> None:
        """What a server that was stopped and started once more still has to give away is a delivery too."""
        self._phase = "pulling once more"
        self._server.terminate()
        self._start_server_again()
        log = self._settings.directory / "final-pull.jsonl"
        self._tails.append(EventTail(log))
        written = EventLog(log)
        end = time.monotonic() + _FINAL_PULL_SECONDS
        with pubsub_v1.SubscriberClient() as client:
            while time.monotonic() < end:
                for received in _pull(client):
                    seq = read_payload(received.message.data, self._settings.payload)
                    key = delivery_key(received.ack_id)
                    message_id = received.message.message_id
                    written.write(Delivered(now_us(), self._settings.subscribers, message_id, key, seq))

    def _clean_up(self) -> None:
        for process in (self._publisher, *self._subscribers, self._front):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if self._server.process is not None and self._server.process.poll() is None:
            self._server.terminate()

    def _diagnose(self) -> str:
        """What someone wants to see first when a run gets stuck."""
        self._read()
        missing = sorted(self._ledger.unconfirmed)
        lines = [
            f"phase: {self._phase}; kills: {len(self._kills_us)} of {self._settings.kills},"
            f" stops: {len(self._stops_us)} of {self._settings.stops}",
            f"published {self._ledger.published_count}, acked {self._ledger.confirmed_count},"
            f" published but not acked {len(missing)}",
            *(f"  e.g. {self._ledger.story(message_id)}" for message_id in missing[:3]),
            *(f"  {count} x {note}" for note, count in self._ledger.notes.items()),
        ]
        for name, process in [
            ("publisher", self._publisher),
            *((f"subscriber-{i}", process) for i, process in enumerate(self._subscribers)),
            ("server", self._server.process),
        ]:
            state = "never started" if process is None else process.poll()
            lines.append(f"{name}: {'running' if state is None else state}")
            errors = self._settings.directory / f"{name}.err"
            if errors.exists():
                lines += [f"  {line}" for line in errors.read_text().splitlines()[-5:]]
        lines += ["last lines of the server:", *(f"  {line.rstrip()}" for line in self._server.lines[-15:])]
        return "\n".join(lines)


def _create_resources() -> None:
    # The library would repeat the first call for ten minutes against a server that does not answer.
    patience = Retry(timeout=_SETUP_SECONDS_MAX)
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        publisher.create_topic(name=_TOPIC, retry=patience)
        subscriber.create_subscription(
            request={"name": _SUBSCRIPTION, "topic": _TOPIC, "enable_exactly_once_delivery": True},
            retry=patience,
        )


def _pull(client: pubsub_v1.SubscriberClient) -> list[pubsub_v1.types.ReceivedMessage]:
    request = {"subscription": _SUBSCRIPTION, "max_messages": 1000, "return_immediately": True}
    with warnings.catch_warnings():
        # Deprecated, because production answers it with less than it has. Here it is asked again and again.
        warnings.simplefilter("ignore", DeprecationWarning)
        return list(client.pull(request=request, timeout=10.0).received_messages)
