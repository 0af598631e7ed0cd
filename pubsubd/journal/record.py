"""The layout of one journal record, format version 1: little-endian, packed, 98 bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pubsubd.model.events import Event, EventTuple

VERSION = 1
RECORD = struct.Struct("<qqbiiqiiqqbiqqiqq")
assert RECORD.size == 98


class Row(NamedTuple):
    """Events of one commit, as one row of `journal_tail`."""

    first_seq: int
    n: int
    version: int
    data: bytes


def pack(first_seq: int, events: Sequence[EventTuple]) -> Row:
    """Number the events from `first_seq` on and pack them."""
    packed = RECORD.pack
    data = b"".join([packed(seq, *event) for seq, event in enumerate(events, first_seq)])
    return Row(first_seq, len(events), VERSION, data)


def unpack(row: Row) -> Iterator[tuple[int, Event]]:
    """(seq, event) in order.

    Raises:
        ValueError: the row is of a later format.
    """
    if row.version != VERSION:
        raise ValueError(f"journal format {row.version} is not {VERSION}")
    for seq, *event in RECORD.iter_unpack(row.data):
        yield seq, Event(*event)
