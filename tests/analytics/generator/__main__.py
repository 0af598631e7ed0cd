"""python -m tests.analytics.generator --events 20000000 --out DIR"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from analytics.layout import Kind
from tests.analytics.generator.builder import SEGMENT_EVENTS
from tests.analytics.generator.journal import write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.analytics.generator", description=write.__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True, help="the journal's folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--violations", type=int, default=0, help="so many of every class")
    parser.add_argument("--skew", choices=("none", "key", "subscription"), default="none")
    parser.add_argument("--segment-events", type=int, default=SEGMENT_EVENTS)
    options = parser.parse_args()
    began = time.perf_counter()
    expected = write(
        options.out,
        events=options.events,
        seed=options.seed,
        violations=options.violations,
        skew=options.skew,
        segment_events=options.segment_events,
    )
    size = sum(path.stat().st_size for path in options.out.rglob("*.parquet"))
    print(
        json.dumps(
            {
                "events": expected.events,
                "messages": expected.messages,
                "open": expected.open,
                "hours": round(expected.seconds / 3600, 2),
                "bytes_per_event": round(size / expected.events, 2),
                "seconds": round(time.perf_counter() - began, 1),
                "kinds": {Kind(kind).name: n for kind, n in sorted(expected.kinds.items())},
                "violations": Counter(one.code for one in expected.violations),
            }
        )
    )


if __name__ == "__main__":
    main()
