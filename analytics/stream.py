"""Health without an end: every sealed segment is counted once, a few seconds after it appears.

Theory of operation. Two queries read the folder of segments, each with a checkpoint of its own:

* `live` counts each batch of segments by itself and puts the result into a folder that has the batch's
  number. A batch that is done again after a crash replaces its own folder, so the sum over all folders is
  exact. It shows the current minute.
* `final` keeps sums per subscription and minute, and lets a minute go when the newest event is two minutes
  past its end: one row for each, in a sink whose log makes it exactly once. So its rows are as many as those
  of the batch job, and the same, but the last minutes are still to come.

Both count with the columns of `health.py`. A PUBLISH is of a topic; whom it is owed to is looked up, before
anything is summed up, in a table of subscriptions that is made anew for each batch (`owners`). It is of all
segments that are sealed by then: those of the batch are among them, and a CONFIG comes before whatever it
concerns, so it is complete for every event of the batch, and a batch done again finds the same for each
event.

Rules of the file:

* A reader of `health_stream` goes through Spark, or through the log beside the files (`_spark_metadata`): a
  file that the log does not name is the rest of a crash.
* A checkpoint and its output belong together. One without the other would lose or double events, so each has
  a file with the same mark, and a pair that does not match is refused.
* Segments are taken in the order of their modification times. A journal that was copied file by file in
  another order can have events that come too late for `final`; that is said aloud. `live` does not mind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics import dimensions, health, layout
from analytics.errors import UsageError
from analytics.journal import SCHEMA, check_origin, footers, segments_of
from analytics.layout import Kind
from analytics.paths import Files, local, locate
from analytics.tables import MINUTE_COUNTS, SCHEMAS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
    from pyspark.sql.streaming.query import StreamingQuery

FILES_PER_BATCH = 8
#: How long a minute waits for events that are older than the newest.
LATENESS = "2 minutes"
# Spark forgets files that are older than this than the newest; a stream may lag behind, so none are.
_AGE_MAX = "36500d"

_MARK = "_STREAM.json"  # in the output and in the checkpoint
_MEMO = "_resources.json"  # in the checkpoint
_POLL_S = 0.5


def run(
    spark: SparkSession,
    journal: str,
    out: str,
    checkpoint: str,
    every_s: float | None = 30.0,
    say: Callable[[str], None] | None = None,
) -> None:
    """Read what is sealed, and look for more every `every_s` seconds; None: end when there is no more.

    SIGTERM and SIGINT end it after the current batch, a second one at once. `say` gets a sentence per batch.

    Raises:
        UsageError: there is nothing to read, or output and checkpoint do not belong together.
    """
    files = Files(spark)
    out, checkpoint = locate(out), locate(checkpoint)
    segments = segments_of(journal, files)
    sample = [segments[0], segments[-1]]
    server, _ = check_origin(sample, footers(sample, files))
    _check_pair(files, out, checkpoint, server)
    with _told_to_stop() as stop:
        queries = [
            start_live(spark, journal, out, checkpoint, every_s),
            start_final(spark, journal, out, checkpoint, every_s),
        ]
        try:
            _wait(queries, stop, say or _to_terminal())
        finally:
            for query in queries:
                query.stop()


# -- the queries ------------------------------------------------------------------------------------------


def source(spark: SparkSession, journal: str) -> DataFrame:
    """The events of every segment there is and will be."""
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .option("maxFileAge", _AGE_MAX)
        .option("recursiveFileLookup", "true")
        .parquet(f"{locate(journal)}/{layout.SEGMENTS}")
    )


def start_live(
    spark: SparkSession, journal: str, out: str, checkpoint: str, every_s: float | None
) -> StreamingQuery:
    """Per batch OUT/live/batch_id=N and OUT/live_latency/batch_id=N, which later tries replace."""

    def write_batch(events: DataFrame, batch_id: int) -> None:
        owned = owners(events.sparkSession, journal, checkpoint)
        _write_batch(live_minutes(events, owned), out, "live", batch_id)
        _write_batch(health.histograms(health.latency_rows(events)), out, "live_latency", batch_id)

    writer = source(spark, journal).writeStream.queryName("live").foreachBatch(write_batch)
    return writer.option("checkpointLocation", f"{checkpoint}/live").trigger(**_trigger(every_s)).start()


def start_final(
    spark: SparkSession, journal: str, out: str, checkpoint: str, every_s: float | None
) -> StreamingQuery:
    """OUT/health_stream: each minute of each subscription, once, when it is over."""
    rows = final_minutes(source(spark, journal), owners(spark, journal, checkpoint))
    return (
        # A batch has few rows; without this they would be as many files as there are partitions.
        rows.repartition(1)
        .writeStream.queryName("final")
        .outputMode("append")
        .format("parquet")
        .option("path", f"{out}/health_stream")
        .option("checkpointLocation", f"{checkpoint}/final")
        .trigger(**_trigger(every_s))
        .start()
    )


def _trigger(every_s: float | None) -> dict[str, Any]:
    if every_s is None:
        return {"availableNow": True}
    return {"processingTime": f"{round(every_s * 1000)} milliseconds"}


def live_minutes(events: DataFrame, owners: DataFrame) -> DataFrame:
    """The table `live` of one batch of events."""
    return (
        health.owned_rows(events, owners)
        .groupBy("sub_id", health.minute_of("ts_us").alias("minute"))
        .agg(*health.counts())
        .select("sub_id", health.as_timestamp("minute").alias("minute"), *MINUTE_COUNTS)
    )


def final_minutes(events: DataFrame, owners: DataFrame) -> DataFrame:
    """The table `health_stream` of a stream of events. Every event says how late it is, counted or not."""
    timed = events.withColumn("ts", F.timestamp_micros("ts_us")).withWatermark("ts", LATENESS)
    return (
        health.owned_rows(timed, owners, "ts")
        .groupBy("sub_id", F.window("ts", "1 minute").alias("window"))
        .agg(*health.counts())
        .select("sub_id", F.col("window.start").alias("minute"), *MINUTE_COUNTS)
    )


def _write_batch(frame: DataFrame, out: str, table: str, batch_id: int) -> None:
    """Put a folder in its place whole: a reader sees a batch or does not."""
    files = Files(frame.sparkSession)
    temporary, folder = f"{out}/_{table}.tmp", f"{out}/{table}"
    final = f"{folder}/batch_id={batch_id}"
    frame.coalesce(1).write.mode("overwrite").parquet(temporary)
    files.make_folder(folder)
    files.delete(final)
    files.rename(temporary, final)


# -- who is owed what -------------------------------------------------------------------------------------


def owners(spark: SparkSession, journal: str, checkpoint: str) -> DataFrame:
    """Rows of `health.OWNERS` as the segments tell that are sealed when this is read.

    It is read once per batch, by a task: a stream plans each batch anew, but what it joins with only once, so
    a table that was collected here would never know a subscription that is created tomorrow.
    """
    read = partial(_owner_batches, journal=journal, checkpoint=checkpoint)
    return spark.range(0, 1, 1, 1).mapInArrow(read, health.OWNERS)


def _owner_batches(
    batches: Iterable[pa.RecordBatch], journal: str, checkpoint: str
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        pass
    known = dimensions.Dimensions.from_rows(resources(journal, checkpoint))
    rows = health.owner_rows(known)
    names = ["owner_topic_id", "owner_sub_id", "start_seq", "end_seq"]
    types = [pa.int32(), pa.int32(), pa.int64(), pa.int64()]
    arrays = [pa.array([row[at] for row in rows], type=kind) for at, kind in enumerate(types)]
    yield pa.RecordBatch.from_arrays(arrays, names=names)


def resources(journal: str, checkpoint: str) -> list[dict[str, Any]]:
    """What CONFIG events say of subscriptions, of all segments that are sealed now.

    A memo in the checkpoint has those of segments that were read before. Two tasks may write it at once: each
    replaces it whole, with what it knows, and what is then missing is read again.
    """
    memos, memo_folder = _file_system(checkpoint)
    memo = f"{memo_folder}/{_MEMO}"
    told = _read_memo(memos, memo)
    last_seq: int = told["last_seq"]
    rows: list[dict[str, Any]] = told["rows"]
    known = {row["sub_id"] for row in rows}
    system, folder = _file_system(journal)
    for first, last, path in _sealed(system, f"{folder}/{layout.SEGMENTS}"):
        if first <= last_seq:
            continue
        for row in _configs(system, path):
            # The repetition of what is known says nothing.
            if row["sub_id"] not in known or not json.loads(row["detail"]).get("checkpoint"):
                known.add(row["sub_id"])
                rows.append(row)
        last_seq = last
    if last_seq > told["last_seq"]:
        _write_memo(memos, memo, {"last_seq": last_seq, "rows": rows})
    return rows


def _file_system(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system, since a task has no other: of a folder of this machine, or by its URI."""
    from pyarrow import fs

    here = local(path)
    if here is not None:
        return fs.LocalFileSystem(), str(here)
    system, folder = fs.FileSystem.from_uri(locate(path))
    return system, str(folder)


def _sealed(system: fs.FileSystem, folder: str) -> list[tuple[int, int, str]]:
    """(first_seq, last_seq, path) of the segments, in their order."""
    from pyarrow import fs

    found = []
    for info in system.get_file_info(fs.FileSelector(folder, recursive=True)):
        match = layout.SEGMENT_PATH.fullmatch(info.path.removeprefix(folder).lstrip("/"))
        if match:
            found.append((int(match[3]), int(match[4]), info.path))
    return sorted(found)


def _configs(system: fs.FileSystem, path: str) -> list[dict[str, Any]]:
    """The CONFIG rows about subscriptions in a segment; where there are none, a single column is read."""
    import pyarrow.compute as pc
    from pyarrow import parquet

    found = []
    with system.open_input_file(path) as opened:
        segment = parquet.ParquetFile(opened)
        for group in range(segment.num_row_groups):
            kind = segment.read_row_group(group, columns=["kind"])["kind"]
            if pc.any(pc.equal(kind, int(Kind.CONFIG))).as_py():
                rows = segment.read_row_group(group, columns=list(dimensions.COLUMNS))
                is_wanted = pc.and_(pc.equal(rows["kind"], int(Kind.CONFIG)), pc.not_equal(rows["sub_id"], 0))
                found += [row for row in rows.filter(is_wanted).to_pylist() if _is_subscription(row)]
    return found


def _is_subscription(row: dict[str, Any]) -> bool:
    # A snapshot's creation names the subscription that it was taken of.
    return "subscription" in json.loads(row["detail"])


def _read_memo(system: fs.FileSystem, path: str) -> dict[str, Any]:
    try:
        with system.open_input_stream(path) as opened:
            told: dict[str, Any] = json.loads(opened.read())
            return told
    except (FileNotFoundError, ValueError):
        return {"last_seq": 0, "rows": []}


def _write_memo(system: fs.FileSystem, path: str, told: dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with system.open_output_stream(temporary) as opened:
        opened.write(json.dumps(told).encode())
    system.move(temporary, path)


# -- readers ----------------------------------------------------------------------------------------------


def read_live(spark: SparkSession, out: str) -> DataFrame:
    """The sums over all batches so far: per subscription and minute, the columns of `live`."""
    batches = spark.read.schema(SCHEMAS["live"]).parquet(f"{locate(out)}/live")
    sums = [F.sum(name).alias(name) for name in MINUTE_COUNTS]
    return batches.groupBy("sub_id", "minute").agg(*sums)


def read_live_latency(spark: SparkSession, out: str) -> DataFrame:
    """The sums over all batches so far, as the table `latency` without what needs the facts."""
    batches = spark.read.schema(SCHEMAS["live_latency"]).parquet(f"{locate(out)}/live_latency")
    return batches.groupBy("sub_id", "minute", "what", "bucket").agg(F.sum("n").alias("n"))


def read_final(spark: SparkSession, out: str) -> DataFrame:
    """The minutes that are over. Spark reads the sink's log and leaves out what a crash left behind."""
    return spark.read.schema(SCHEMAS["health_stream"]).parquet(f"{locate(out)}/health_stream")


# -- one process ------------------------------------------------------------------------------------------


def _check_pair(files: Files, out: str, checkpoint: str, server: str) -> None:
    """Mark a new pair of output and checkpoint, and refuse one that is not a pair."""
    marks = [f"{checkpoint}/{_MARK}", f"{out}/{_MARK}"]
    has_output = any(files.exists(f"{out}/{name}") for name in ("live", "live_latency", "health_stream"))
    has_place = any(files.exists(f"{checkpoint}/{name}") for name in ("live", "final"))
    told = [_read_mark(files, mark) for mark in marks]
    # A crash between the two marks leaves only one, and neither output nor place.
    if None in told and not has_output and not has_place:
        mark = told[0] or {"id": uuid.uuid4().hex, "server": server}
        for folder, path in zip((checkpoint, out), marks, strict=True):
            files.make_folder(folder)
            files.write(path, json.dumps(mark).encode())
        told = [mark, mark]
    if told[0] is None or told[0] != told[1]:
        raise UsageError(
            f"{out} and {checkpoint} do not belong together: events would be counted twice or not at all. "
            "Name the checkpoint that this output was made with, or an empty folder for each."
        )
    if told[0]["server"] != server:
        raise UsageError(f"{checkpoint} was made for the journal of another server ({told[0]['server']}).")


def _read_mark(files: Files, path: str) -> dict[str, str] | None:
    try:
        mark: dict[str, str] | None = json.loads(files.read(path)) if files.exists(path) else None
        return mark
    except ValueError:  # the rest of a crash
        return None


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal does what it always does."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def told(number: int, frame: Any) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    # Signals come to the main thread; elsewhere whoever started the thread has to end it.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, told)
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _wait(queries: list[StreamingQuery], stop: threading.Event, say: Callable[[str], None]) -> None:
    """Until `stop` or the end of both; a query that fails ends the other, and its error is raised."""
    watches = [_Watch(query, say) for query in queries]
    while not stop.wait(_POLL_S):
        for watch in watches:
            watch.look()
        if not any(query.isActive for query in queries) or any(query.exception() for query in queries):
            break
    if stop.is_set():
        threads = [threading.Thread(target=_end_after_batch, args=(query,)) for query in queries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for watch in watches:
        watch.look()
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


def _end_after_batch(query: StreamingQuery) -> None:
    """Spark's `stop` interrupts a batch, which would be done again; so wait for its end."""
    before = _batch_id(query)
    while query.isActive and query.status["isTriggerActive"] and _batch_id(query) == before:
        time.sleep(_POLL_S / 10)
    query.stop()


def _batch_id(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


class _Watch:
    """Follows the batches of a query: says what they did, and warns of what came too late."""

    def __init__(self, query: StreamingQuery, say: Callable[[str], None]) -> None:
        self._query = query
        self._say = say
        self._seen = -1
        self._late = 0

    def look(self) -> None:
        for progress in self._query.recentProgress:
            if progress["batchId"] > self._seen:
                self._seen = progress["batchId"]
                if progress["numInputRows"]:
                    # Spark counts a row each time it is read; `live` reads a batch for each of its tables.
                    times = 2 if self._query.name == "live" else 1
                    events = progress["numInputRows"] // times
                    rate = (progress["processedRowsPerSecond"] or 0) / times
                    self._say(
                        f"{self._query.name}: batch {self._seen}, {events:,} events, {rate:,.0f} a second"
                    )
                self._warn(sum(one["numRowsDroppedByWatermark"] for one in progress["stateOperators"]))

    def _warn(self, late: int) -> None:
        if late and not self._late:
            print(
                "Some events came more than two minutes late, so health_stream does not count them: segments "
                "are taken in the order of their modification times, which is not that of their names.",
                file=sys.stderr,
            )
        self._late += late


def _to_terminal() -> Callable[[str], None]:
    """Sentences for a person who watches; nothing into a pipe."""
    if sys.stderr.isatty():
        return lambda sentence: print(sentence, file=sys.stderr, flush=True)
    return lambda sentence: None
