"""The stream counts every event once, as the batch job does, whatever ends it in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra pubsubd[analytics]")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics import health, stream
from analytics.dimensions import collect
from analytics.errors import UsageError
from analytics.journal import load_journal
from analytics.tables import MINUTE_COUNTS
from tests.analytics.generator.builder import Builder

ROOT = Path(__file__).parents[2]


def traffic(b: Builder, seed: int, minutes: int, rate: int = 4) -> None:
    """A few minutes of a topic with two subscriptions, one of which comes later and goes before the end."""
    rng = random.Random(seed)
    b.begin()
    topic = b.topic(f"orders {seed}")
    first = b.subscription(f"first {seed}", topic=topic, filter="whatever")
    subscriptions = [first]
    for minute in range(minutes):
        if minute == 1:
            subscriptions.append(b.subscription(f"second {seed}", topic=topic, at=60.5))
        for n in range(rate):
            now = 60 * minute + n * 60 / rate + 1
            message = b.publish(topic, at=now)
            for sub in subscriptions:
                if sub == first and rng.random() < 0.2:
                    b.filtered(sub, message)
                    continue
                b.deliver(sub, message, at=now + 1)
                b.ack(sub, message, at=now + rng.uniform(1, 3), result=rng.choice([0, 0, 1, 2, 3]))
        if minute == minutes - 2:
            b.delete(subscriptions.pop())


def batch_minutes(spark: Any, journal: Path) -> DataFrame:
    """What the batch job counts."""
    loaded = load_journal(spark, str(journal))
    by_minute = health.minutes(health.client_minutes(loaded.events, collect(loaded.resources)))
    return by_minute.select("sub_id", health.as_timestamp("minute").alias("minute"), *MINUTE_COUNTS)


def rows(frame: DataFrame) -> set[tuple[Any, ...]]:
    found = [tuple(row) for row in frame.collect()]
    assert len(found) == len(set(found)), "the same row twice"
    return set(found)


def compare(spark: Any, journal: Path, out: Path) -> None:
    """`live` is the batch job's; `final` is too, for all minutes but the last ones, which it has not."""
    batch = rows(batch_minutes(spark, journal))
    latest = load_journal(spark, str(journal)).last_us
    over = {row for row in batch if row[1].timestamp() * 1e6 + 60e6 <= latest - 120e6}
    assert over, "the journal is too short to tell"

    assert batch == rows(stream.read_live(spark, str(out)))
    assert over == rows(stream.read_final(spark, str(out)))

    loaded = load_journal(spark, str(journal))
    assert rows(health.histograms(health.latency_rows(loaded.events))) == rows(
        stream.read_live_latency(spark, str(out))
    )


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_live_and_final_are_what_the_batch_job_counts(spark: Any, tmp_path: Path) -> None:
    journal, out, checkpoint = tmp_path / "journal", tmp_path / "out", tmp_path / "checkpoint"
    b = Builder()
    traffic(b, 1, 6)
    b.write(journal, segment_events=40)
    stream.run(spark, str(journal), str(out), str(checkpoint), every_s=None)
    # A second run goes on where the first ended, with a topic and subscriptions that the first has not seen.
    traffic(b, 2, 6)
    b.write(journal, segment_events=100)

    stream.run(spark, str(journal), str(out), str(checkpoint), every_s=None)

    compare(spark, journal, out)
    published = stream.read_final(spark, str(out)).agg(F.sum("published")).first()
    assert published is not None and published[0] > 0
    with pytest.raises(UsageError, match="do not belong together"):
        stream.run(spark, str(journal), str(out), str(tmp_path / "another"), every_s=None)


def test_resources_are_read_once_and_repetitions_are_forgotten(tmp_path: Path) -> None:
    journal, checkpoint = tmp_path / "journal", tmp_path / "checkpoint"
    checkpoint.mkdir()
    b = Builder()
    s = b.subscription("orders")
    b.write(journal)
    (first,) = stream.resources(str(journal), str(checkpoint))
    (path,) = journal.rglob("*.parquet")
    path.unlink()
    b.checkpoint(at=60)
    b.delete(s, at=61)
    b.write(journal)

    told = stream.resources(str(journal), str(checkpoint))

    assert first == told[0]
    assert [json.loads(row["detail"])["change"] for row in told] == ["created", "deleted"]
    assert told == stream.resources(str(journal), str(checkpoint))


# -- a process of its own ---------------------------------------------------------------------------------

STREAM = [sys.executable, "-c", """
import sys
from analytics import stream
from analytics.session import make_session
journal, out, checkpoint, every = sys.argv[1:]
spark = make_session("local[2]", {"spark.driver.memory": "1g"})
stream.run(spark, journal, out, checkpoint, None if every == "now" else float(every), print)
spark.stop()
"""]  # fmt: skip  # a program, as it is written


@contextmanager
def started(journal: Path, out: Path, checkpoint: Path, every: str) -> Iterator[subprocess.Popen[str]]:
    command = [*STREAM, str(journal), str(out), str(checkpoint), every]
    # Its own group, so that Java dies with it.
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ}
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_to_end(journal: Path, out: Path, checkpoint: Path) -> None:
    with started(journal, out, checkpoint, "now") as process:
        assert process.wait(600) == 0


def await_batches(process: subprocess.Popen[str], n: int) -> None:
    assert process.stdout is not None
    for _ in range(n):
        assert "batch" in process.stdout.readline(), "it ended"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_by_three_kills(spark: Any, tmp_path: Path) -> None:
    journal, out, checkpoint = tmp_path / "journal", tmp_path / "out", tmp_path / "checkpoint"
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    b = Builder()
    for kill in range(3):
        traffic(b, kill, 15, 12)
        b.write(journal, segment_events=25)
        with started(journal, out, checkpoint, "0.2") as process:
            await_batches(process, rng.randrange(1, 4))
            time.sleep(rng.uniform(0, 3))
            os.killpg(process.pid, signal.SIGKILL)
    traffic(b, 3, 5)
    b.write(journal, segment_events=200)
    read_to_end(journal, out, checkpoint)

    compare(spark, journal, out)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_sigterm_ends_it_after_the_batch_with_everything_in_its_place(spark: Any, tmp_path: Path) -> None:
    journal, out, checkpoint = tmp_path / "journal", tmp_path / "out", tmp_path / "checkpoint"
    b = Builder()
    traffic(b, 1, 15, 12)
    b.write(journal, segment_events=25)
    with started(journal, out, checkpoint, "0.2") as process:
        await_batches(process, 1)
        begun = {query: batches(checkpoint / query / "offsets") for query in ("live", "final")}
        process.terminate()
        assert process.wait(300) == 0

    # Of the next batch, if it was begun at all, nothing is to be seen.
    for query, before in begun.items():
        assert before <= batches(checkpoint / query / "commits")
    assert batches(checkpoint / "live" / "commits") == {
        int(folder.name.removeprefix("batch_id=")) for folder in (out / "live").iterdir()
    }
    read_to_end(journal, out, checkpoint)
    compare(spark, journal, out)


def batches(folder: Path) -> set[int]:
    """The batches that a log of a checkpoint names."""
    return {int(file.name) for file in folder.iterdir() if file.name.isdecimal()}
