"""`python -m tests.fuzz`: every target for so long. Exit code 0 only if no input broke a promise."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS

_ROOT = Path(__file__).parents[2]
_INPUT_BYTES_MAX = 1024
# How slowly libFuzzer tries longer inputs; its own 100 would need millions of executions to come to any.
_PATIENCE_WITH_SHORT_INPUTS = 5
# An input that takes longer is one that hangs the server, and one that needs more memory fills it.
_INPUT_SECONDS_MAX = 10
_MEMORY_MB_MAX = 1500
_END_SECONDS_MAX = 60
_LINES_SHOWN_MAX = 25
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)


@dataclass
class Outcome:
    target: str
    executions: int
    branches: int
    features: int
    corpus: int
    slowest_seconds: int
    memory_mb: int
    seconds: float
    input: Path | None
    text: str


def fuzz(target: str, seconds: float, directory: Path, seed: int) -> Outcome:
    """Run one target in a process of its own; what it finds is written below `directory`."""
    corpus, found = directory / target / "corpus", directory / target / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(TARGETS[target].seeds()):
        (corpus / f"seed-{number:03}").write_bytes(data)
    words = directory / target / "words"
    dictionary = [f"-dict={words}"] if TARGETS[target].words else []
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in TARGETS[target].words))
    command = [
        *(sys.executable, "-m", "tests.fuzz.one", target, str(corpus)),
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={_INPUT_BYTES_MAX}",
        f"-len_control={_PATIENCE_WITH_SHORT_INPUTS}",
        f"-timeout={_INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={_MEMORY_MB_MAX}",
        f"-artifact_prefix={found}/",
        *dictionary,
        f"-seed={seed}",
        "-print_final_stats=1",
    ]
    started = time.monotonic()
    log = directory / target / "log"
    with log.open("w") as output:
        ended = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=_ROOT,
            timeout=seconds + _END_SECONDS_MAX + 2 * _INPUT_SECONDS_MAX,
        )
    text = log.read_text(errors="replace")
    branches, features, size = ([0, 0, 0], *[[*map(int, one)] for one in _PROGRESS.findall(text)])[-1]
    statistics = {key: int(value) for key, value in _STATISTIC.findall(text)}
    inputs = sorted(found.iterdir(), key=lambda path: path.stat().st_mtime)
    return Outcome(
        target,
        statistics.get("number_of_executed_units", 0),
        branches,
        features,
        size,
        statistics.get("slowest_unit_time_sec", 0),
        statistics.get("peak_rss_mb", 0),
        time.monotonic() - started,
        inputs[-1] if inputs else None,
        "" if ended.returncode == 0 else _tail(text),
    )


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def _tail(text: str) -> str:
    """What the process said when it failed, without libFuzzer's progress."""
    lines = [line for line in text.splitlines() if not re.match(r"#\d+\s|stat::|INFO: ", line)]
    return "\n".join(lines[-_LINES_SHOWN_MAX:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Give changing bytes to everything that parses bytes from outside, guided by coverage.",
    )
    add = parser.add_argument
    add("--seconds", type=float, default=20.0, help="for each target (default 20)")
    add("--target", action="append", choices=list(TARGETS), help="only this one; may be repeated")
    add("--seed", type=int, default=0, help="of the fuzzer; 0: by chance")
    add("--directory", type=Path, help="for corpora, logs and findings; one of an earlier run goes on there")
    add("--again", type=Path, metavar="INPUT", help="give this file to the one --target, without the fuzzer")
    return parser


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    if options.again is not None:
        if len(targets) != 1:
            parser.error("--again needs one --target")
        TARGETS[targets[0]].run(options.again.read_bytes())
        print("no promise was broken")
        return 0
    if importlib.util.find_spec("atheris") is None:
        parser.error(
            "atheris is not installed: pip install 'atheris>=3.0', which has wheels for some Pythons"
        )
    directory = (options.directory or Path(tempfile.mkdtemp(prefix="pubsubd-fuzz-"))).resolve()
    print(f"corpora, logs and findings: {directory}\n")
    print(
        f"{'target':<14}{'inputs':>10}{'branches':>10}{'features':>10}{'corpus':>8}{'memory':>9}{'time':>8}"
    )
    failures = []
    for target in targets:
        done = fuzz(target, options.seconds, directory, options.seed)
        print(
            f"{target:<14}{done.executions:>10,}{done.branches:>10,}{done.features:>10,}{done.corpus:>8,}"
            f"{done.memory_mb:>6,} MB{done.seconds:>6.0f} s" + ("   FAILED" if done.text else ""),
            flush=True,
        )
        if done.text:
            failures.append(done)
    for done in failures:
        again = f"python -m tests.fuzz --target {done.target} --again {done.input}"
        print(f"\n{done.target} failed; again with: {again}\n{done.text}")
    print(f"\n{len(failures)} of {len(targets)} targets failed" if failures else "\nno promise was broken")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
