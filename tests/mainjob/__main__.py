"""`python -m tests.mainjob`: the main job as a command. Exit code 0 only if every promise was kept."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.mainjob.job import MainJob, Progress, Settings
from tests.mainjob.payload import SIZE_MIN
from tests.mainjob.report import summary, write_report

_SHOW_SECONDS = 2.0
_MESSAGES_PER_END_MIN = 100
_ENDS_APART_MAX = 20
_SECONDS_PER_END = 3.0


def parse(arguments: list[str]) -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mainjob",
        description="Drain a subscription with exactly-once delivery through unmodified google-cloud-pubsub "
        "subscribers while the server is killed with SIGKILL and started again, and judge what they saw.",
        epilog="More than 20 kills come close together: by default they have --front, without which the "
        "library's streams stay away for ten seconds after each, and a --rate that makes the messages last. "
        "Options for the server follow after --, as in: "
        "python -m tests.mainjob -- --durability power",
    )
    add = parser.add_argument
    add("--messages", type=int, default=100_000, help="how many to publish (default 100000)")
    add("--subscribers", type=int, default=3, help="subscriber processes (default 3)")
    add("--kills", type=int, default=5, help="SIGKILLs while all clients are at work (default 5)")
    add("--stops", type=int, default=0, help="SIGTERMs among them, which end it gracefully (default 0)")
    add("--nack-percent", type=float, default=1.0, help="messages nacked, each at most once (default 1)")
    add("--payload", type=int, default=1_000, help="bytes of data in a message (default 1000)")
    add("--seed", type=int, help="decides the moments of the kills and who is nacked (default: by chance)")
    add("--backlog", type=int, help="publish at most this far ahead of the acks (default: a fifth)")
    add("--rate", type=float, help="messages a second to publish while kills are to come (see below)")
    add("--front", action="store_true", help="clients wait at a door while the server is down (see below)")
    add("--lease-seconds", type=int, default=0, help="10 to 600; default: the library's own, 60")
    add("--watch-seconds", type=float, help="watch for redeliveries at the end (default: a lease + 5)")
    add("--timeout", type=float, help="give up after so many seconds (default 900, and 6 for each kill)")
    add("--report", type=Path, help="where the report goes (default: into the data directory)")
    add("--data-dir", type=Path, help="a new directory for data, logs, report (default: a temporary one)")
    add("server_options", nargs="*", metavar="-- SERVER OPTION", help="passed to pubsubd as they are")
    options = parser.parse_args(arguments)
    if options.payload < SIZE_MIN:
        parser.error(f"--payload must be at least {SIZE_MIN}")
    ends = options.kills + options.stops
    if options.messages < _MESSAGES_PER_END_MIN * ends:
        parser.error(
            f"--messages must be at least {_MESSAGES_PER_END_MIN * ends} for {ends} ends of the server"
        )
    backlog = options.backlog or max(options.messages // 5, 100)
    if ends and backlog > options.messages // 2:
        parser.error("--backlog must be at most half of --messages: the server ends while more is published")
    if options.data_dir is not None and options.data_dir.exists() and any(options.data_dir.iterdir()):
        parser.error(f"{options.data_dir} is not empty: a run starts with a new directory")
    rate = options.rate or 0.0
    if options.rate is None and ends > _ENDS_APART_MAX:
        rate = options.messages / (ends * _SECONDS_PER_END)
    directory = options.data_dir or Path(tempfile.mkdtemp(prefix="pubsubd-mainjob-"))
    settings = Settings(
        directory=directory.resolve(),
        messages=options.messages,
        subscribers=options.subscribers,
        kills=options.kills,
        stops=options.stops,
        nack_percent=options.nack_percent,
        payload=options.payload,
        seed=random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed,
        backlog=backlog,
        rate=rate,
        front=options.front or ends > _ENDS_APART_MAX,
        lease_seconds=options.lease_seconds,
        watch_seconds=options.watch_seconds,
        timeout_seconds=options.timeout or 900.0 + 6.0 * options.kills,
        server_options=tuple(options.server_options),
    )
    return settings, (options.report or directory / "report.jsonl").resolve()


class Display:
    """A line each two seconds, so that a log of the run reads as well as a terminal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SHOW_SECONDS
        print(
            f"{progress.elapsed_seconds:7.1f} s  published {progress.published:>9,}"
            f"  delivered {progress.delivered:>9,}  acked {progress.acked:>9,}"
            f"  nacked {progress.nacked:>6,}  kills {progress.kills}/{self._settings.kills}"
            f"  {progress.phase}",
            flush=True,
        )


def main() -> int:
    settings, report = parse(sys.argv[1:])
    print(f"seed {settings.seed}; logs of all processes: {settings.directory}", flush=True)
    outcome = MainJob(settings, Display(settings)).run()
    write_report(outcome, report)
    print(f"\n{summary(outcome, report)}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
