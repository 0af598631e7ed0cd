"""Facts: per subscription, message and epoch, what happened to the message and what broke a promise.

The heavy step of the audit, and the only one that moves every event: events go to partitions by message, and
each partition is replayed by the kernel. A message on a subscription has few events, so partitions are even
however the load is spread over subscriptions, clients and ordering keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from analytics import keys
from analytics.arrow import Mapped, arrow_schema
from analytics.dimensions import OPEN, Dimensions, with_epoch
from analytics.kernel import JUDGED, NULLABLE, REPLAYED, Replayed, replay
from analytics.keys import Ints, Shape
from analytics.layout import Kind
from analytics.rules import Rules
from analytics.tables import SCHEMAS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from analytics.journal import Journal
    from analytics.run import Options

EVENTS_PER_PARTITION = 1_000_000  # about 0.15 GB in a worker
_ROWS_PER_BATCH = 50_000  # of what goes back to Spark


def facts(journal: Journal, dimensions: Dimensions, options: Options) -> Mapped:
    """The table `facts` of a range of the journal."""
    message_id_max, sub_id_max, first_message_id = _bounds(journal)
    epoch_max = max((len(epochs) - 1 for epochs in dimensions.epochs.values()), default=0)
    shape = keys.shape_of(message_id_max, sub_id_max, epoch_max)
    rules = Rules.of(dimensions, options.tolerance_us, first_message_id)
    packed = keys.pack(with_epoch(replayed(journal.events), dimensions), shape)
    count = partitions(journal.count, packed.sparkSession.sparkContext.defaultParallelism)
    spread = packed.repartition(count, *keys.message_columns(shape))
    return Mapped(spread, replayer(rules, shape), SCHEMAS["facts"])


def partitions(events: int, cores: int) -> int:
    return max(math.ceil(events / EVENTS_PER_PARTITION), 2 * cores)


def replayed(events: DataFrame) -> DataFrame:
    """The events about messages on subscriptions; of those that name an ack id, the ones with a known id."""
    from pyspark.sql import functions as F

    kind = F.col("kind")
    names_generation = (F.col("generation") != 0) | ~kind.isin([int(one) for one in JUDGED])
    return events.where(
        kind.isin([int(one) for one in REPLAYED]) & (F.col("message_id") != 0) & names_generation
    )


def _bounds(journal: Journal) -> tuple[int, int, int]:
    """The largest message_id and sub_id, and the first message published in the range; 0: all of them."""
    from pyspark.sql import functions as F

    largest = None if journal.is_partial_start else _largest_by_footers(journal)
    if largest is not None:
        return (*largest, 0)
    published = F.when(F.col("kind") == int(Kind.PUBLISH), F.col("message_id"))
    first = F.min(published) if journal.is_partial_start else F.lit(0)
    (row,) = journal.events.agg(F.max("message_id"), F.max("sub_id"), first).collect()
    message_id_max, sub_id_max, first_message_id = row
    # If nothing was published in the range, every message in it is older.
    return message_id_max or 0, sub_id_max or 0, OPEN if first_message_id is None else first_message_id


def _largest_by_footers(journal: Journal) -> tuple[int, int] | None:
    """The largest message_id and sub_id as the files say, without a pass over the events; None: not known."""
    if journal.message_id_max is None or journal.sub_id_max is None:
        return None
    return journal.message_id_max, journal.sub_id_max


def replayer(rules: Rules, shape: Shape) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a worker does with one partition: the columns of `shape` in, the table `facts` out."""

    def replay_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _batches(replay(_columns(batches, shape), rules))

    return replay_partition


def _columns(batches: Iterable[pa.RecordBatch], shape: Shape) -> dict[str, Ints]:
    received, none = list(batches), np.zeros(0, np.int64)
    return {
        name: np.concatenate([none, *(batch.column(at).to_numpy() for batch in received)])
        for at, name in enumerate(shape.columns)
    }


def _batches(found: Replayed) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(SCHEMAS["facts"])
    for start in range(0, len(found), _ROWS_PER_BATCH):
        yield _batch(found, slice(start, min(start + _ROWS_PER_BATCH, len(found))), schema)


def _batch(found: Replayed, rows: slice, schema: pa.Schema) -> pa.RecordBatch:
    """Spark does not check types here, so every array is made of the type of the schema."""
    import pyarrow as pa

    v_start = found.v_start[rows.start : rows.stop + 1]
    findings = slice(int(v_start[0]), int(v_start[-1]))
    lists = {"v_kind": found.v_kind[findings], "v_seq": found.v_seq[findings]}
    arrays = []
    for field in schema:
        if field.name in lists:
            values = pa.array(lists[field.name], field.type.value_type)
            arrays.append(pa.ListArray.from_arrays(pa.array(v_start - v_start[0], pa.int32()), values))
        else:
            column = found.columns[field.name][rows]
            mask = column == 0 if field.name in NULLABLE else None
            arrays.append(pa.array(column, field.type, mask=mask))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
