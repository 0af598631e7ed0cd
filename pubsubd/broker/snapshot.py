"""A snapshot: which messages of a topic its subscription had not acknowledged, and all that come later."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from pubsubd.broker.effects import SnapshotRow
from pubsubd.model.snapshots import expire_time_us
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.broker.topic import Topic

_VERSION = 1
_HEAD = struct.Struct("<B?qqqqIII")


class Snapshot:
    def __init__(
        self,
        snapshot_id: int,
        topic: Topic,
        resource: pb.Snapshot,
        cursor: int,
        owed: Mapping[int, int],
        finished: Set[int],
        filters: Sequence[tuple[int, str]],
        ordered: bool,
        created_us: int,
        expire_us_max: int,
        seq: int,
    ) -> None:
        """Unacknowledged is everything above `cursor` but `finished`, and below it `owed`.

        `owed` maps message ids to the hashes of their ordering keys. Of messages up to an id of `filters`
        only those that match that filter count. `seq` is the number of the journal's event of its creation.
        """
        self.snapshot_id = snapshot_id
        self.topic = topic
        self.resource = resource
        self.cursor = cursor
        self.owed = owed
        self.finished = finished
        self.filters = filters
        self.ordered = ordered
        self.created_us = created_us
        self.expire_us_max = expire_us_max
        self.seq = seq
        self.timer_us: int | None = None

    @property
    def name(self) -> str:
        name: str = self.resource.name
        return name

    def low_water(self) -> int:
        """No message with a smaller id belongs to it."""
        return min(self.cursor + 1, min(self.owed, default=self.cursor + 1))

    def next_event_us(self) -> int | None:
        """It goes after this moment."""
        return expire_time_us(self.resource)

    def row(self) -> SnapshotRow:
        text = json.dumps(self.filters).encode()
        state = b"".join(
            (
                _HEAD.pack(
                    _VERSION, self.ordered, self.cursor, self.created_us, self.expire_us_max,
                    self.seq, len(text), len(self.owed), len(self.finished),
                ),
                text,
                array("q", self.owed).tobytes(),
                array("q", self.owed.values()).tobytes(),
                array("q", sorted(self.finished)).tobytes(),
            )
        )  # fmt: skip  # short items, many to a line
        resource: bytes = self.resource.SerializeToString()
        return SnapshotRow(self.snapshot_id, self.topic.topic_id, self.name, resource, state)

    @classmethod
    def of_row(cls, row: SnapshotRow, topic: Topic) -> Snapshot:
        version, ordered, cursor, created_us, expire_us_max, seq, text_bytes, owed, finished = (
            _HEAD.unpack_from(row.state)
        )
        if version != _VERSION:
            raise ValueError(f"snapshot version {version} is not {_VERSION}")
        at = _HEAD.size
        texts = row.state[at : at + text_bytes]
        column: array[int] = array("q")
        column.frombytes(row.state[at + text_bytes :])
        return cls(
            row.snapshot_id,
            topic,
            pb.Snapshot.FromString(row.resource),
            cursor,
            dict(zip(column[:owed], column[owed : 2 * owed], strict=True)),
            set(column[2 * owed : 2 * owed + finished]),
            [(through_id, text) for through_id, text in json.loads(texts)],
            ordered,
            created_us,
            expire_us_max,
            seq,
        )
