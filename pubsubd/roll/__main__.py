"""The command: `python -m pubsubd.roll`. Prints one line of JSON, see `roller.Report`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from pubsubd.roll.faults import Faults

NO_PYARROW = "sealing the journal needs pyarrow and numpy: pip install 'pubsubd[analytics]'"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        from pubsubd.roll import roller
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyarrow", "numpy"):
            raise
        print(json.dumps(_nothing(NO_PYARROW)))
        return 1
    report = roller.roll(
        options.data_dir,
        options.journal,
        backlog=options.backlog,
        keep_hours=options.keep_hours,
        faults=Faults.from_environment(),
    )
    print(json.dumps(asdict(report)))
    return 0 if report.error is None else 1


def _nothing(error: str) -> dict[str, object]:
    return {
        "last_seq": 0, "events": 0, "segments": [], "backlog": None, "removed_hours": 0, "error": error,
    }  # fmt: skip  # short items, many to a line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pubsubd.roll",
        description="Seals the journal of a pubsubd, running or not, into Parquet segments, once. The server "
        "does this by itself; the database is only read.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="the server's data directory")
    parser.add_argument("--journal", type=Path, required=True, help="where segments/ and backlog/ are")
    parser.add_argument(
        "--backlog", action="store_true", help="also write which messages are open on which subscription"
    )
    parser.add_argument(
        "--keep-hours",
        type=_hours,
        default=0,
        metavar="N",
        help="then remove the folders of hours that ended longer ago than this; 0, the default, keeps all",
    )
    return parser


def _hours(text: str) -> int:
    hours = int(text)
    if hours < 0:
        raise argparse.ArgumentTypeError("is not 0 or more")
    return hours


if __name__ == "__main__":
    sys.exit(main())
