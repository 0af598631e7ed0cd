"""The rules of the replay as a plain loop over one message's events on one subscription, written to be read.

It is the slow implementation, which two fast ones are compared with: the kernel of the package, and Spark's
windows. It gives the rows of the table `facts`, with what breaks G1, G2 or G3 in them, as dictionaries.

What happens to a message is its own events, and what happens to its whole subscription: seeks and bulk drops,
from `Dimensions`. All of them are taken in the order of seq, and a state goes from one to the next, across
epochs. Only the counting begins anew with each epoch.

    events ------------> DELIVER  EXTEND  NACK ...
    whole subscription ->          seek        bulk drop
                          state    state  ...           one state, one lease, one answer to "is it done?"
                         |  row 0  |  row 1 ...         one row per epoch that has an event
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from analytics.dimensions import BulkDrop, Dimensions, Epoch
from analytics.layout import Kind, Result
from analytics.tables import CODES

Event = Mapping[str, Any]
Row = dict[str, Any]

#: What a client asks for by ack id.
ASKED = (Kind.ACK, Kind.NACK, Kind.EXTEND)
REPLAYED = (
    *ASKED,
    *(Kind.DELIVER, Kind.EXPIRE, Kind.RESET),
    *(Kind.DEADLETTER, Kind.DROP, Kind.FILTERED),
)
#: Their ref_ts_us is the publish time.
_TELL_PUBLISH = (Kind.DELIVER, Kind.DEADLETTER, Kind.DROP, Kind.FILTERED)


class State(Enum):
    NONE = "none"
    LEASED = "leased"
    EXPIRED = "expired"
    NACKED = "nacked"
    RESET = "reset"
    ACKED = "acked"
    GONE = "gone"  # to the dead letter topic
    PURGED = "purged"  # by a seek or by a drop
    RESTORED = "restored"  # a seek brought it back


FINISHED = (State.ACKED, State.GONE, State.PURGED)


def replay(
    events: Iterable[Event], dimensions: Dimensions, *, tolerance_us: int = 0, first_message_id: int = 0
) -> list[Row]:
    """The rows of all messages, by subscription, message and epoch.

    Messages with ids below `first_message_id` were published before the first event that was read.
    """
    messages: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["seq"]):
        is_unknown_id = event["kind"] in ASKED and event["generation"] == 0
        if event["kind"] in REPLAYED and event["message_id"] != 0 and not is_unknown_id:
            messages[event["sub_id"], event["message_id"]].append(event)
    rows: list[Row] = []
    for sub_id, message_id in sorted(messages):
        is_partial = message_id < first_message_id
        one = Message(sub_id, message_id, messages[sub_id, message_id], dimensions, tolerance_us, is_partial)
        rows += one.replay()
    return rows


@dataclass
class Message:
    """One message on one subscription. The state is that before the event which comes next."""

    sub_id: int
    message_id: int
    events: Sequence[Event]
    dimensions: Dimensions
    tolerance_us: int = 0
    is_partial: bool = False

    state: State = State.NONE
    generation: int = 0  # of the last DELIVER
    lease_end_us: int = 0
    done: State | None = None  # acked or purged, which a DELIVER does not end
    acked_generation: int = 0
    is_judged: bool = True  # False: what happened before the range decides, and nobody knows it
    any_answer_is_right: bool = False  # since a seek to a snapshot
    has_events: bool = False
    belongs: bool = False  # published since the subscription exists, or brought in by a seek since
    epoch: int = 0
    is_open: dict[int, bool] = field(default_factory=dict)  # by epoch: whether it is open when that begins
    gone_us: dict[int, int] = field(default_factory=dict)  # by epoch
    filtered_in: int | None = None  # the first epoch
    rows: dict[int, Row] = field(default_factory=dict)  # by epoch

    def __post_init__(self) -> None:
        told = [event["ref_ts_us"] for event in self.events if event["kind"] in _TELL_PUBLISH]
        self.pub_us: int | None = next((at for at in told if at), None)
        self.okey: int = next((event["okey"] for event in self.events if event["okey"]), 0)
        self.is_judged = not self.is_partial
        epochs = self.dimensions.epochs.get(self.sub_id, ())
        created_us = epochs[0].start_us if epochs else 0
        self.belongs = self.pub_us is not None and self.pub_us >= created_us
        self.is_open[0] = self.belongs

    def replay(self) -> list[Row]:
        happenings: list[tuple[int, Event | Epoch | BulkDrop]] = [
            *[(event["seq"], event) for event in self.events],
            *[(seek.start_seq, seek) for seek in self.dimensions.seeks(self.sub_id)],
            *[(drop.seq, drop) for drop in self.dimensions.drops.get(self.sub_id, ())],
        ]
        for _, happening in sorted(happenings, key=lambda pair: pair[0]):
            if isinstance(happening, Epoch):
                self.seek(happening)
            elif isinstance(happening, BulkDrop):
                self.bulk_drop(happening)
            else:
                row = self.rows.setdefault(self.epoch, self.new_row())
                self.judge(happening, row)
                self.count(happening, row)
                self.move(happening)
        return [self.finished(row) for _, row in sorted(self.rows.items())]

    # -- what happens to the whole subscription -----------------------------------------------------------

    def seek(self, seek: Epoch) -> None:
        self.epoch = seek.epoch
        if self.pub_us is None:
            self.is_open[seek.epoch] = False
            return
        if not self.has_events and self.pub_us >= seek.start_us:
            # Published after the seek, which has no say over it, whatever its target.
            self.is_open[seek.epoch] = True
            return
        if seek.is_snapshot:
            self.seek_to_snapshot(seek, self.pub_us)
        else:
            self.seek_to_time(seek, self.pub_us)

    def seek_to_time(self, seek: Epoch, pub_us: int) -> None:
        if pub_us < seek.target_us:
            # The seek acknowledges it. What was acked stays acked.
            if self.state is not State.ACKED:
                self.state = State.PURGED
            if self.done is not State.ACKED:
                self.done = State.PURGED
        elif seek.keeps(self.message_id, pub_us):
            self.bring_back()
        self.is_open[seek.epoch] = self.belongs and self.state not in FINISHED

    def seek_to_snapshot(self, seek: Epoch, pub_us: int) -> None:
        # Which messages the snapshot holds is not known here, so everything may have come back.
        self.bring_back()
        self.any_answer_is_right = True
        self.is_open[seek.epoch] = pub_us >= seek.lo_us

    def bring_back(self) -> None:
        self.done = None
        self.belongs = True
        if self.state in FINISHED:
            self.state = State.RESTORED

    def bulk_drop(self, drop: BulkDrop) -> None:
        """Takes what waits in the subscription. What is leased stays, and what is finished was not there."""
        if self.pub_us is None or self.pub_us >= drop.cutoff_us:
            return
        if self.state is not State.LEASED and self.state not in FINISHED:
            self.state = State.PURGED
            self.gone_us.setdefault(self.epoch, drop.ts_us)

    # -- the message's own events: what breaks a rule ------------------------------------------------------

    def judge(self, event: Event, row: Row) -> None:
        kind, result = event["kind"], event["result"]
        found: list[str] = []
        if kind == Kind.DELIVER:
            self.is_judged = True  # from now on its lease is known
            found = [*self.delivered_though_done(), *self.delivered_early(event)]
        elif kind == Kind.EXPIRE:
            found = self.expired_early(event)
        elif kind in ASKED and result == Result.PERMANENT:
            found = self.rejected_though_valid(event)
        elif kind in ASKED and result == Result.OK:
            found = self.accepted_though_invalid(event)
        if self.is_judged:
            row["v_kind"] += [CODES.index(code) for code in found]
            row["v_seq"] += [event["seq"]] * len(found)

    def delivered_though_done(self) -> list[str]:
        if self.done is State.ACKED:
            return ["G1_delivered_after_ack"]
        if self.done is State.PURGED:
            return ["G1_delivered_after_seek"]
        return []

    def delivered_early(self, event: Event) -> list[str]:
        is_promised = self.state is State.LEASED or (
            self.state is State.RESET and self.is_exactly_once(event)
        )
        return ["G2_early_redelivery"] if is_promised and self.is_early(event) else []

    def expired_early(self, event: Event) -> list[str]:
        is_running = self.state in (State.LEASED, State.RESET)
        return ["G2_early_expire"] if is_running and self.is_early(event) else []

    def is_early(self, event: Event) -> bool:
        return event["ts_us"] < self.lease_end_us - self.tolerance_us

    def rejected_though_valid(self, event: Event) -> list[str]:
        is_valid = (
            self.state is State.LEASED
            and event["generation"] == self.generation
            and event["ts_us"] < self.lease_end_us
        )
        return ["G3_valid_rejected"] if is_valid and not self.any_answer_is_right else []

    def accepted_though_invalid(self, event: Event) -> list[str]:
        kind, is_newest = event["kind"], event["generation"] == self.generation
        if self.any_answer_is_right or (self.state is State.LEASED and is_newest):
            return []
        if kind == Kind.NACK and self.state is State.RESET and is_newest:
            return []
        if kind == Kind.ACK and self.state is State.PURGED and is_newest:
            return []
        if kind == Kind.ACK and not self.is_exactly_once(event):
            return []
        if kind == Kind.ACK and self.state is State.ACKED and event["generation"] == self.acked_generation:
            return ["G3_repeat_accepted"]
        return ["G3_invalid_accepted"]

    def is_exactly_once(self, event: Event) -> bool:
        known = self.dimensions.subscriptions.get(self.sub_id)
        return known is not None and known.at(event["seq"]).exactly_once

    # -- the message's own events: what changes -----------------------------------------------------------

    def move(self, event: Event) -> None:
        kind, is_ok = event["kind"], event["result"] == Result.OK
        self.has_events = True
        if kind == Kind.DELIVER:
            self.state = State.LEASED
            self.generation = event["generation"]
            self.lease_end_us = event["deadline_us"]
            self.any_answer_is_right = False
        elif kind == Kind.EXTEND and is_ok:
            self.lease_end_us = event["deadline_us"]
        elif kind == Kind.EXPIRE:
            self.state = State.EXPIRED
        elif kind == Kind.NACK and is_ok:
            self.state = State.NACKED
        elif kind == Kind.RESET:
            self.state = State.RESET
        elif kind == Kind.ACK and is_ok:
            self.state = self.done = State.ACKED
            self.acked_generation = event["generation"]
        elif kind == Kind.DEADLETTER:
            self.state = State.GONE
        elif kind == Kind.DROP:
            self.state = State.PURGED

    # -- the rows -----------------------------------------------------------------------------------------

    def new_row(self) -> Row:
        return {
            "sub_id": self.sub_id,
            "message_id": self.message_id,
            "epoch": self.epoch,
            "pub_us": self.pub_us,
            "okey": self.okey,
            "first_seq": None,
            "first_us": None,
            "last_us": None,
            "deliveries": 0,
            "attempts": 0,
            "extends": 0,
            "nacks": 0,
            "expires": 0,
            "resets": 0,
            "ack_fails": 0,
            "acks": 0,
            "ack_us": None,
            "gone_us": None,
            "owed": False,
            "partial": self.is_partial,
            "violations": 0,
            "v_kind": [],
            "v_seq": [],
        }

    def count(self, event: Event, row: Row) -> None:
        kind, ts_us, is_ok = event["kind"], event["ts_us"], event["result"] == Result.OK
        row["attempts"] = max(row["attempts"], event["attempt"])
        if kind == Kind.DELIVER:
            is_first = row["deliveries"] == 0 and self.state is not State.RESET
            if row["first_seq"] is None and (is_first or event["generation"] == 1):
                row["first_seq"], row["first_us"] = event["seq"], ts_us
            row["deliveries"] += 1
            row["last_us"] = ts_us
        elif kind == Kind.EXTEND:
            row["extends"] += is_ok
        elif kind == Kind.NACK:
            row["nacks"] += is_ok
        elif kind == Kind.EXPIRE:
            row["expires"] += 1
        elif kind == Kind.RESET:
            row["resets"] += 1
        elif kind == Kind.ACK:
            row["acks"] += is_ok
            row["ack_fails"] += event["result"] > Result.NOOP
            if is_ok and row["ack_us"] is None:
                row["ack_us"] = ts_us
        else:
            self.gone_us.setdefault(self.epoch, ts_us)
            if kind == Kind.FILTERED and self.filtered_in is None:
                self.filtered_in = self.epoch

    def finished(self, row: Row) -> Row:
        epoch = row["epoch"]
        is_open = self.is_open[epoch]
        epochs = self.dimensions.epochs.get(self.sub_id, ())
        if epochs and epochs[epoch].is_snapshot and self.pub_us is not None:
            # What was delivered was in the snapshot.
            is_open = is_open or row["deliveries"] > 0
        is_filtered = self.filtered_in is not None and self.filtered_in <= epoch
        row["owed"] = is_open and not is_filtered
        row["gone_us"] = self.gone_us.get(epoch)
        row["violations"] = len(row["v_seq"])
        return row
