"""Writes a synthetic journal of any size: block by block, so that memory does not grow with it.

A block is a stretch of time. All that will ever happen to what is published in it is made at once; what
happens after its end waits for the blocks to come, and its events, sorted by time, go to the segments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analytics.layout import Kind
from tests.analytics.generator import events as columnar
from tests.analytics.generator import segments
from tests.analytics.generator.builder import SEGMENT_EVENTS, START_US
from tests.analytics.generator.events import Columns, Events
from tests.analytics.generator.lives import Copy, Lives
from tests.analytics.generator.messages import Published, Publisher
from tests.analytics.generator.ordered import Keys
from tests.analytics.generator.planned import Planned
from tests.analytics.generator.violations import Fault, Teller, Violation, faults
from tests.analytics.generator.world import S, World

BLOCK_EVENTS = 700_000
BLOCKS_MIN = 8
EVENTS_PER_SECOND = 1500
SECONDS_MIN = 1800


@dataclass
class Expected:
    """What a journal holds, for tests to compare with."""

    events: int = 0  # also the last seq
    messages: int = 0
    seconds: int = 0
    open: int = 0  # rows of the backlog file
    kinds: Counter[int] = field(default_factory=Counter)
    subscriptions: dict[int, str] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def of(self, code: str) -> set[tuple[int, int]]:
        """(sub_id, message_id) of a code's violations."""
        return {(one.sub_id, one.message_id) for one in self.violations if one.code == code}


def write(
    out: Path,
    *,
    events: int,
    seed: int = 0,
    violations: int = 0,
    skew: str = "none",
    segment_events: int = SEGMENT_EVENTS,
) -> Expected:
    """Write about `events` events, and the backlog file of their end, below `out`.

    `violations` of every class are in it, and nothing else that breaks a rule. `skew` is none, key (one
    ordering key has half of all messages) or subscription (one is owed as much as all others). The same
    arguments make the same files.
    """
    seconds = max(SECONDS_MIN, events // EVENTS_PER_SECOND)
    world = World(START_US, seconds * S, skew)
    writer = _Writer(Path(out), world, seed, faults(world, violations), segment_events)
    writer.run(events)
    return writer.expected


class _Writer:
    def __init__(
        self, out: Path, world: World, seed: int, planned_faults: list[Fault], segment_events: int
    ) -> None:
        self.out, self.world, self.faults = out, world, planned_faults
        self.rng = np.random.default_rng(seed)
        self.publisher = Publisher(world, self.rng)
        self.planned = Planned(world)
        self.files = segments.SegmentWriter(out, segment_events)
        names = {one.sub_id: one.profile.name for one in world.subscriptions}
        self.expected = Expected(seconds=(world.end_us - world.start_us) // S, subscriptions=names)
        self.keys = {one.index: Keys(world, one) for one in world.subscriptions if one.profile.ordered}
        self.carried = columnar.concatenate([])
        self.copies: list[Copy] = []  # not published yet
        self.copies_made = 0
        self.copy_ids = np.zeros(1, np.int64)  # by number
        self.open: list[tuple[np.ndarray, np.ndarray]] = []  # sub_id, message_id
        self.marks: list[tuple[str, int, int]] = []  # code, sub_id, message_id
        self.seq_of_mark: dict[int, int] = {}

    def run(self, asked: int) -> None:
        blocks = max(BLOCKS_MIN, -(-asked // BLOCK_EVENTS))
        edges = np.linspace(self.world.start_us, self.world.end_us, blocks + 1).astype(np.int64) // 2 * 2
        per_message = 4.5
        for at in range(blocks):
            made = self.expected.events + len(self.carried["ts_us"])
            if self.expected.messages:
                per_message = made / self.expected.messages
            messages = int((asked - made) / (blocks - at) / per_message)
            self._block(int(edges[at]), int(edges[at + 1]), messages)
        self.files.close()
        self._finish()

    def _block(self, t0_us: int, t1_us: int, messages: int) -> None:
        told = Events(self.world.end_us)
        due = [fault for fault in self.faults if fault.ts_us < t1_us]
        self.faults = self.faults[len(due) :]
        parts = [self.publisher.publish(t0_us, t1_us, messages)]
        teller, handle = Teller(self.world, told), len(parts[0]) + 1
        for fault in due:
            part = self.publisher.of_fault(fault)
            teller.tell(fault, handle, int(part.okey[0]), int(part.bytes[0]))
            parts.append(part)
            handle += len(part)
        published = Published.join(parts)
        still_open = self._live(published, 0, told)
        # Dead letters may be published in the block that they are of, and have lives of their own.
        copies = self.publisher.of_copies(self._due_copies(t1_us))
        ordinary = len(published)
        published = Published.join([published, copies])
        still_open += self._live(published, ordinary, told)

        ids = self._number(published)
        self._settle_kept(published, ids)
        made = told.take()
        made["message_id"] = np.where(made["message_id"] > 0, ids[made["message_id"] - 1], 0)
        made["mark"] = np.where(made["mark"] > 0, made["mark"] + len(self.marks), 0).astype(np.int32)
        self.marks += [(code, sub_id, int(ids[handle - 1])) for code, sub_id, handle in teller.marks]
        still_open += [(np.array([sub_id]), np.array([handle])) for sub_id, handle in teller.backlog]
        self.open += [(sub_id, ids[handles - 1]) for sub_id, handles in still_open]
        everything = columnar.concatenate(
            [
                self.planned.checkpoints(t0_us, t1_us),
                self.carried,
                _publications(published, ids),
                made,
                self.planned.events(t0_us, t1_us),
            ]
        )
        self._emit(everything, t1_us)

    # -- lives ---------------------------------------------------------------------------------------------

    def _live(self, published: Published, first: int, told: Events) -> list[tuple[np.ndarray, np.ndarray]]:
        """What becomes of the messages from place `first` on. Returns what stays open: sub_id, handle."""
        still_open, subs, places = [], [], []
        for one in self.world.subscriptions:
            ts_us = published.ts_us[first:]
            mine = (published.topic_id[first:] == one.topic_id) & (published.fault_sub[first:] != one.sub_id)
            place = first + np.flatnonzero(mine & (ts_us > one.start_us) & (ts_us < one.end_us))
            place = self._filter(published, place, one.index, told)
            if one.profile.ordered:
                is_open = self.keys[one.index].run(
                    self.rng,
                    told,
                    handle=place + 1,
                    pub_us=published.ts_us[place],
                    okey=published.okey[place],
                    size=published.bytes[place],
                )
                still_open.append((np.full(int(is_open.sum()), one.sub_id), place[is_open] + 1))
            else:
                subs.append(np.full(len(place), one.index))
                places.append(place)
        sub, place = np.concatenate(subs), np.concatenate(places)
        lives = Lives(
            self.world,
            self.rng,
            told,
            sub=sub,
            handle=place + 1,
            pub_us=published.ts_us[place],
            place=published.place[place],
            okey=published.okey[place],
            size=published.bytes[place],
            payload=published.payload_hash[place],
            first_copy=self.copies_made + 1,
        )
        is_open = lives.run()
        self.copies += lives.copies
        self.copies_made += sum(map(len, lives.copies))
        return [*still_open, (sub[is_open] + 1, place[is_open] + 1)]

    def _filter(self, published: Published, place: np.ndarray, sub: int, told: Events) -> np.ndarray:
        """What the filter lets through; it judges when the message is published."""
        one = self.world.subscriptions[sub]
        passes = (published.payload_hash[place] & 1023) < one.profile.passes * 1024
        out = place[~passes]
        told.add(
            Kind.FILTERED,
            published.ts_us[out],
            topic_id=one.topic_id,
            sub_id=one.sub_id,
            message_id=out + 1,
            ref_ts_us=published.ts_us[out],
            okey=published.okey[out],
        )
        through: np.ndarray = place[passes]
        return through

    def _due_copies(self, t1_us: int) -> Copy:
        """Dead letters whose copies are published by now."""
        copies, self.copies = Copy.join(self.copies), []
        due = copies.ts_us < t1_us
        self.copies = [copies.where(~due)]
        return copies.where(due)

    def _number(self, published: Published) -> np.ndarray:
        """The ids of messages, by handle - 1, in the order of publishing."""
        rank = np.empty(len(published), np.int64)
        rank[np.argsort(published.ts_us, kind="stable")] = np.arange(len(published))
        ids: np.ndarray = rank + (self.expected.messages + 1)
        self.expected.messages += len(published)
        missing = 1 + self.copies_made - len(self.copy_ids)
        self.copy_ids = np.concatenate([self.copy_ids, np.zeros(missing, np.int64)])
        is_copy = published.copy > 0
        self.copy_ids[published.copy[is_copy]] = ids[is_copy]
        return ids

    def _settle_kept(self, published: Published, ids: np.ndarray) -> None:
        """Of seeks that keep a part of a request: the last id that is not kept."""
        for one in self.world.subscriptions:
            for control in one.controls:
                if control.kept_place and not control.kept_after_id:
                    same = (published.ts_us == control.kept_us) & (published.topic_id == one.topic_id)
                    (before,) = ids[same & (published.place == control.kept_place - 1)]
                    control.kept_after_id = int(before)

    # -- out -----------------------------------------------------------------------------------------------

    def _emit(self, everything: Columns, t1_us: int) -> None:
        """Write what happens before `t1_us`; carry the rest."""
        now = everything["ts_us"] < t1_us
        self.carried = {name: column[~now] for name, column in everything.items()}
        order = np.flatnonzero(now)
        order = order[np.argsort(everything["ts_us"][order], kind="stable")]
        out = {name: column[order] for name, column in everything.items()}
        n = len(order)
        out["seq"] = np.arange(self.expected.events + 1, self.expected.events + 1 + n)
        dead = out["kind"] == Kind.DEADLETTER
        out["aux"][dead] = self.copy_ids[-out["aux"][dead]]
        mark = out.pop("mark")
        texts = {}
        for at in np.flatnonzero(mark).tolist():
            seq, what = int(out["seq"][at]), int(mark[at])
            if what > 0:
                self.seq_of_mark[what] = seq
            else:
                texts[seq] = self.planned.texts[-what - 1](seq)
        self.expected.events += n
        self.expected.kinds.update(dict(enumerate(np.bincount(out["kind"]).tolist())))
        self.files.append(out, texts)

    def _finish(self) -> None:
        sub_id = np.concatenate([one for one, _ in self.open])
        message_id = np.concatenate([one for _, one in self.open])
        order = np.lexsort((message_id, sub_id))
        self.expected.open = len(order)
        segments.write_backlog(self.out, self.expected.events, sub_id[order], message_id[order])
        self.expected.kinds += Counter()  # without zeros
        self.expected.violations = [
            Violation(code, sub_id, message_id, self.seq_of_mark.get(at, 0))
            for at, (code, sub_id, message_id) in enumerate(self.marks, 1)
        ]


def _publications(published: Published, ids: np.ndarray) -> Columns:
    told = Events(int(published.ts_us.max()) + 1)
    told.add(
        Kind.PUBLISH,
        published.ts_us,
        topic_id=published.topic_id,
        message_id=ids,
        ref_ts_us=published.ref_ts_us,
        client_id=published.client_id,
        stream_id=published.stream_id,
        okey=published.okey,
        bytes=published.bytes,
        payload_hash=published.payload_hash,
    )
    return told.take()
