"""How an event travels to the replay kernel: seven or eight 64-bit columns instead of twelve.

`key` holds message, subscription and epoch, the epoch lowest, so that events which are sorted by it and by
seq come message by message, subscription by subscription. 41 + 14 + 8 bits are enough for nearly every
journal. Where one of the three is larger, two columns carry them: slower, and the same result. `shape_of`
decides, from the largest numbers that occur; a number that does not fit is never cut off.

`meta` holds what is small: kind, result, generation and attempt. Spark packs, numpy unpacks; this file is the
only one that knows how.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Ints = npt.NDArray[np.signedinteger]
Bools = npt.NDArray[np.bool_]

_SUB_BITS, _EPOCH_BITS = 14, 8
#: The first numbers that do not fit one key.
MESSAGE_ID_END = 1 << 41
SUB_ID_END = 1 << _SUB_BITS
EPOCH_END = 1 << _EPOCH_BITS  # so 255 seeks of a subscription fit

# meta: kind 4 bits, result 3, generation 31 (all that an int32 holds above zero), attempt the rest.
_RESULT_AT, _GENERATION_AT, _ATTEMPT_AT = 4, 7, 38
_ATTEMPT_MAX = (1 << 25) - 1
_PLACE_AT = 32

#: Columns that travel as they are.
PLAIN = ("seq", "ts_us", "deadline_us", "ref_ts_us", "okey")


class Shape(Enum):
    """The columns that name message, subscription and epoch."""

    ONE_KEY = ("key",)
    TWO_KEYS = ("key", "place")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.value, "meta", *PLAIN)


def shape_of(message_id_max: int, sub_id_max: int, epoch_max: int) -> Shape:
    """One key if the largest numbers that occur fit it."""
    fits = message_id_max < MESSAGE_ID_END and sub_id_max < SUB_ID_END and epoch_max < EPOCH_END
    return Shape.ONE_KEY if fits else Shape.TWO_KEYS


# -- Spark ------------------------------------------------------------------------------------------------


def pack(events: DataFrame, shape: Shape) -> DataFrame:
    """The columns of `shape`, out of journal events that have a column `epoch`."""
    from pyspark.sql import functions as F

    def long(name: str) -> Column:
        return F.col(name).cast("bigint")

    def at(name: str, bits: int) -> Column:
        return F.shiftleft(long(name), bits)

    if shape is Shape.ONE_KEY:
        key = at("message_id", _SUB_BITS + _EPOCH_BITS).bitwiseOR(at("sub_id", _EPOCH_BITS))
        keys = [key.bitwiseOR(long("epoch")).alias("key")]
    else:
        keys = [
            long("message_id").alias("key"),
            at("sub_id", _PLACE_AT).bitwiseOR(long("epoch")).alias("place"),
        ]
    # An attempt that nobody will ever reach is the one thing that is capped.
    attempt = F.shiftleft(F.least(long("attempt"), F.lit(_ATTEMPT_MAX).cast("bigint")), _ATTEMPT_AT)
    meta = (
        long("kind")
        .bitwiseOR(at("result", _RESULT_AT))
        .bitwiseOR(at("generation", _GENERATION_AT))
        .bitwiseOR(attempt)
        .alias("meta")
    )
    return events.select(*keys, meta, *PLAIN)


def message_columns(shape: Shape) -> list[Column]:
    """What to partition by: the same for all events of a message on a subscription, whatever the epoch."""
    from pyspark.sql import functions as F

    if shape is Shape.ONE_KEY:
        return [F.shiftright("key", _EPOCH_BITS)]
    return [F.col("key"), F.shiftright("place", _PLACE_AT)]


# -- numpy ------------------------------------------------------------------------------------------------


def pack_arrays(columns: Mapping[str, Ints], shape: Shape) -> dict[str, Ints]:
    """`pack` without Spark: the same bits."""
    wide = {name: np.asarray(values, np.int64) for name, values in columns.items()}
    packed: dict[str, Ints] = {name: wide[name] for name in PLAIN}
    if shape is Shape.ONE_KEY:
        packed["key"] = (
            wide["message_id"] << (_SUB_BITS + _EPOCH_BITS) | wide["sub_id"] << _EPOCH_BITS | wide["epoch"]
        )
    else:
        packed["key"] = wide["message_id"]
        packed["place"] = wide["sub_id"] << _PLACE_AT | wide["epoch"]
    packed["meta"] = (
        wide["kind"]
        | wide["result"] << _RESULT_AT
        | wide["generation"] << _GENERATION_AT
        | np.minimum(wide["attempt"], _ATTEMPT_MAX) << _ATTEMPT_AT
    )
    return packed


def message_keys(columns: Mapping[str, Ints]) -> tuple[Ints, ...]:
    """One or two arrays that tell messages on subscriptions apart; sorted, the message comes first."""
    if "place" in columns:
        return columns["key"], columns["place"] >> _PLACE_AT
    return (columns["key"] >> _EPOCH_BITS,)


def message_and_sub_ids(keys: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """The two numbers in what `message_keys` gave."""
    if len(keys) == 2:
        return keys[0], keys[1].astype(np.int32)
    (key,) = keys
    return key >> _SUB_BITS, (key & (SUB_ID_END - 1)).astype(np.int32)


def pop_epochs(columns: dict[str, Ints]) -> Ints:
    """The epochs; takes the key columns out, which nobody needs after that."""
    key, place = columns.pop("key"), columns.pop("place", None)
    if place is not None:
        return (place & ((1 << _PLACE_AT) - 1)).astype(np.int32)
    return (key & (EPOCH_END - 1)).astype(np.int32)


def unpack_meta(meta: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind and result (int8), generation and attempt (int32)."""
    return (
        (meta & 0xF).astype(np.int8),
        (meta >> _RESULT_AT & 0x7).astype(np.int8),
        (meta >> _GENERATION_AT & 0x7FFF_FFFF).astype(np.int32),
        (meta >> _ATTEMPT_AT).astype(np.int32),
    )
