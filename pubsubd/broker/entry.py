"""A message as the broker holds it, and as storage keeps it: in chunks, each written with one commit."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from pubsubd.model import limits

_COUNT = struct.Struct("<I")


class Entry(NamedTuple):
    message_id: int
    publish_us: int
    okey: int  # hash of the ordering key; 0 without one
    data: bytes  # the serialised PubsubMessage, as it is sent to every subscriber


class Chunk(NamedTuple):
    """Consecutive messages of one topic, as one row of storage."""

    topic_id: int
    last_id: int
    last_us: int  # publish time of the last message
    blob: bytes


def chunks(topic_id: int, entries: Sequence[Entry]) -> list[Chunk]:
    """Pack `entries`, ascending by message id, into as few rows as `limits.CHUNK_BYTES_MAX` allows."""
    out: list[Chunk] = []
    start = size = 0
    for at, entry in enumerate(entries):
        if size and size + len(entry.data) > limits.CHUNK_BYTES_MAX:
            out.append(_chunk(topic_id, entries[start:at]))
            start, size = at, 0
        size += len(entry.data)
    out.append(_chunk(topic_id, entries[start:]))
    return out


def _chunk(topic_id: int, entries: Sequence[Entry]) -> Chunk:
    ids, publish_us, okeys, datas = zip(*entries, strict=True)
    parts = [
        _COUNT.pack(len(ids)),
        array("q", ids).tobytes(),
        array("q", publish_us).tobytes(),
        array("q", okeys).tobytes(),
        array("i", map(len, datas)).tobytes(),
        *datas,
    ]
    return Chunk(topic_id, ids[-1], publish_us[-1], b"".join(parts))


def unpack_chunk(blob: bytes) -> list[Entry]:
    """The messages of one row."""
    (count,) = _COUNT.unpack_from(blob)
    at = _COUNT.size
    columns: list[array[int]] = []
    for code in "qqqi":
        column: array[int] = array(code)
        end = at + count * column.itemsize
        column.frombytes(blob[at:end])
        columns.append(column)
        at = end
    ids, publish_us, okeys, sizes = columns
    ends = list(accumulate(sizes, initial=at))
    return [
        Entry(message_id, published, okey, blob[begin:end])
        for message_id, published, okey, begin, end in zip(
            ids, publish_us, okeys, ends, ends[1:], strict=False
        )
    ]
