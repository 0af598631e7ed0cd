"""Every lease of every message, replayed with array operations: the facts, and what breaks a promise.

Theory of operation. The events of one message on one subscription, in the order of seq, are a small state
machine (see `State`). A loop over them in Python would cost a hundred times what reading them costs, so all
messages of a partition are replayed at once. They lie one after the other, and nearly every question about
"the state before this event" is "which was the last event of such a kind before me, within my message": the
running maximum of the row numbers where that kind occurs (`_last`).

Three things happen to a message without an event of its own, and become rows of their own (`Step`):

* A seek to a time. A message that was published before it is acknowledged, brought back, or left as it is;
  which of the three follows from the publish time and from what was kept.
* A seek to a snapshot. The journal does not say which messages the snapshot holds.
* A bulk drop, unless the message is leased or has ended already. Only the first after each event can matter.

So state is never cut at a seek: a lease runs on across it, and the epoch is a mere number on the row.

Rules of the file: numpy only, since this runs wherever Spark has workers; a pure function of arrays, whatever
their order; a journal may hold anything, so nothing here trusts that events make sense. How grave a finding
is, and for whom, is decided by the audit. What the kernel knows of subscriptions is in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from analytics import keys
from analytics.keys import Bools, Ints
from analytics.layout import Kind, Result
from analytics.rules import NEVER, Rules, first_above, next_above
from analytics.tables import CODES

#: Of Kind, what is replayed; of these, what names a generation of a client's (0: an unknown ack id).
REPLAYED = (
    Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.DEADLETTER, Kind.DROP, Kind.FILTERED,
    Kind.RESET,
)  # fmt: skip  # short items, many to a line
JUDGED = (Kind.EXTEND, Kind.NACK, Kind.ACK)


class Step(IntEnum):
    """What happens to a message without an event of its own; continues Kind."""

    ACKNOWLEDGED = 16  # by a seek to a later time
    BROUGHT_BACK = 17  # by a seek to an earlier time, if it had ended
    LEFT = 18  # by a seek to an earlier time, and it is not kept
    SNAPSHOT = 19  # a seek to a snapshot
    DROPPED = 20  # published before the cut-off of a bulk drop


class State(IntEnum):
    """Of a message on a subscription."""

    NONE = 0  # not delivered yet
    LEASED = 1
    EXPIRED = 2
    NACKED = 3
    RESET = 4  # the lease is void although its deadline has not passed
    RESTORED = 5  # a seek brought it back; ids of earlier leases are dead
    ACKED = 6
    GONE = 7  # to the dead letter topic
    PURGED = 8  # acknowledged by a seek, or dropped


def _table(entries: Mapping[tuple[int, int | None], int], otherwise: int) -> npt.NDArray[np.int8]:
    """A value for each kind and result; result None: whatever it is."""
    table = np.full((32, 8), otherwise, np.int8)
    for (kind, result), value in entries.items():
        if result is None:
            table[kind, :] = value
        else:
            table[kind, result] = value
    return table.ravel()


_SAME = -1
#: The state after an event, from kind and answer alone. Seeks and bulk drops depend on the state before.
_STATE_AFTER = _table(
    {
        (Kind.DELIVER, None): State.LEASED,
        (Kind.EXPIRE, None): State.EXPIRED,
        (Kind.NACK, Result.OK): State.NACKED,
        (Kind.RESET, None): State.RESET,
        (Kind.ACK, Result.OK): State.ACKED,
        (Kind.DEADLETTER, None): State.GONE,
        (Kind.DROP, None): State.PURGED,
    },
    _SAME,
)


class _What(IntEnum):
    """Kind and answer in one small number."""

    OTHER = 0
    DELIVER = 1
    EXTEND_OK = 2
    NACK_OK = 3
    ACK_OK = 4
    EXPIRE = 5
    RESET = 6
    ACK_FAILED = 7
    LEFT_FOR_GOOD = 8  # forwarded, dropped
    FILTERED = 9


_WHAT = _table(
    {
        (Kind.DELIVER, None): _What.DELIVER,
        (Kind.EXTEND, Result.OK): _What.EXTEND_OK,
        (Kind.NACK, Result.OK): _What.NACK_OK,
        **{(Kind.ACK, answer): _What.ACK_FAILED for answer in range(Result.PERMANENT, 8)},
        (Kind.ACK, Result.OK): _What.ACK_OK,
        (Kind.EXPIRE, None): _What.EXPIRE,
        (Kind.RESET, None): _What.RESET,
        (Kind.DEADLETTER, None): _What.LEFT_FOR_GOOD,
        (Kind.DROP, None): _What.LEFT_FOR_GOOD,
        (Kind.FILTERED, None): _What.FILTERED,
    },
    _What.OTHER,
)


def _is_one_of(size: int, members: tuple[int, ...]) -> Bools:
    found = np.zeros(size, np.bool_)
    found[list(members)] = True
    return found


_TELLS_PUB_US = _is_one_of(32, (Kind.DELIVER, Kind.FILTERED, Kind.DEADLETTER, Kind.DROP))
_IS_JUDGED = _is_one_of(32, JUDGED)
_HAS_ENDED = _is_one_of(9, (State.ACKED, State.GONE, State.PURGED))

_AFTER_ACK, _AFTER_SEEK, _EARLY_REDELIVERY, _EARLY_EXPIRE, _REJECTED, _ACCEPTED, _REPEATED = (
    CODES.index(code)
    for code in (
        "G1_delivered_after_ack", "G1_delivered_after_seek", "G2_early_redelivery", "G2_early_expire",
        "G3_valid_rejected", "G3_invalid_accepted", "G3_repeat_accepted",
    )
)  # fmt: skip  # short items, many to a line


# -- what comes out ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """The table `facts` as arrays, ascending in message, subscription and epoch.

    In the columns of `NULLABLE`, 0 means none. The findings of row i are those from `v_start[i]` to
    `v_start[i + 1]` of v_kind (index in CODES) and v_seq, in the order of seq.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    v_start: Ints
    v_kind: Ints
    v_seq: Ints

    def __len__(self) -> int:
        return len(self.v_start) - 1

    def rows(self) -> list[dict[str, Any]]:
        """As dictionaries, by subscription, message and epoch: for tests and for a look."""
        lists = {name: column.tolist() for name, column in self.columns.items()}
        rows = []
        for at in range(len(self)):
            row = {
                name: None if name in NULLABLE and not column[at] else column[at]
                for name, column in lists.items()
            }
            found = slice(self.v_start[at], self.v_start[at + 1])
            rows.append({**row, "v_kind": self.v_kind[found].tolist(), "v_seq": self.v_seq[found].tolist()})
        return sorted(rows, key=lambda row: (row["sub_id"], row["message_id"], row["epoch"]))


#: Columns of facts that are null where there is none.
NULLABLE = ("pub_us", "first_seq", "first_us", "last_us", "ack_us", "gone_us")


# -- rows, sorted -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Messages:
    """A message on a subscription; its rows are from `start` to `end`."""

    message_id: Ints
    sub_id: Ints
    pub_us: Ints  # 0: not known
    okey: Ints
    start: Ints
    end: Ints


@dataclass(slots=True)
class _Rows:
    """Events by message, subscription and seq. `message`: which entry of _Messages."""

    message: Ints
    epoch: Ints
    seq: Ints
    ts_us: Ints
    deadline_us: Ints
    kind: Ints
    result: Ints
    generation: Ints
    attempt: Ints

    def inserted(self, positions: Ints, **columns: Ints) -> _Rows:
        """With further rows, each before the row at its position; what is not given of them is 0."""
        merged = {}
        for field in fields(self):
            old = getattr(self, field.name)
            merged[field.name] = np.insert(old, positions, columns.get(field.name, 0))
        return _Rows(**merged)


def _order_of(message_keys: tuple[Ints, ...], seq: Ints) -> Ints:
    """Sorts by message, subscription and seq."""
    if len(message_keys) == 1 and len(seq):
        # Two sorts of one number each take a quarter of the time of one sort by two columns.
        (key,) = message_keys
        order = np.argsort(key)
        ascending = key[order]
        number = np.cumsum(ascending[1:] != ascending[:-1], dtype=np.int64)
        seq_min, seq_max = int(seq.min()), int(seq.max())
        seq_bits = (seq_max - seq_min).bit_length()
        count = int(number[-1]) if len(number) else 0
        if count.bit_length() + seq_bits <= 63:
            place = seq[order] - seq_min
            place[1:] |= number << seq_bits
            return order[np.argsort(place)]
    return np.lexsort((seq, *reversed(message_keys)))


def _sorted(columns: dict[str, Ints]) -> tuple[_Rows, _Messages]:
    """Takes the columns out of `columns` one by one, so that not all of them exist twice at a time."""
    message_keys = keys.message_keys(columns)
    order = _order_of(message_keys, columns["seq"])
    ascending = tuple(key[order] for key in message_keys)
    del message_keys
    is_first = np.ones(len(order), np.bool_)
    if len(order):
        is_first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in ascending])
    start = np.flatnonzero(is_first)
    message_id, sub_id = keys.message_and_sub_ids(tuple(key[start] for key in ascending))
    del ascending
    epoch = keys.pop_epochs(columns)[order]
    kind, result, generation, attempt = keys.unpack_meta(columns.pop("meta")[order])
    ref_ts_us = columns.pop("ref_ts_us")[order]
    pub_us = _first_of_each(ref_ts_us, _TELLS_PUB_US[kind] & (ref_ts_us != 0), start)
    del ref_ts_us
    okeys = columns.pop("okey")[order]
    okey = _first_of_each(okeys, okeys != 0, start)
    del okeys
    rows = _Rows(
        message=np.cumsum(is_first, dtype=np.int32) - np.int32(1),
        epoch=epoch,
        seq=columns.pop("seq")[order],
        ts_us=columns.pop("ts_us")[order],
        deadline_us=columns.pop("deadline_us")[order],
        kind=kind,
        result=result,
        generation=generation,
        attempt=attempt,
    )
    end = np.append(start[1:], len(order))
    return rows, _Messages(message_id, sub_id, pub_us, okey, start, end)


def _first_of_each(values: Ints, mask: Bools, start: Ints) -> Ints:
    """Of each message the first value where `mask` holds, else 0."""
    if not len(start):
        return values[:0]
    numbers = np.where(mask, np.arange(len(values), dtype=np.int32), np.int32(len(values)))
    first = np.minimum.reduceat(numbers, start)
    return np.where(first < len(values), values[np.minimum(first, len(values) - 1)], 0)


# -- seeks and bulk drops become rows ---------------------------------------------------------------------


def _with_seeks(rows: _Rows, messages: _Messages, rules: Rules) -> tuple[_Rows, _Messages]:
    """A row for each seek between a message's publication and its last event."""
    seeks = rules.seeks
    low, high = seeks.spans(messages.sub_id)
    low[messages.pub_us == 0] = high[messages.pub_us == 0]
    (sought,) = np.nonzero(high > low)
    if not len(sought):
        return rows, messages
    low, high = low[sought], high[sought]
    start, end = messages.start[sought], messages.end[sought]
    # Published before the seek: by the clock, or since it has an event before it.
    by_clock = first_above(seeks.ts_us, low, high, messages.pub_us[sought])
    by_event = first_above(seeks.seq, low, high, rows.seq[start])
    high = first_above(seeks.seq, low, high, rows.seq[end - 1])
    low = np.minimum(by_clock, by_event)
    count = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(sought)), count)
    seek = low[which] + np.arange(len(which)) - (np.cumsum(count) - count)[which]
    message = sought[which]

    pub_us = messages.pub_us[message]
    is_kept = (pub_us >= seeks.kept_from_us[seek]) & (
        messages.message_id[message] > seeks.kept_after_id[seek]
    )
    step = np.select(
        [seeks.is_snapshot[seek] != 0, pub_us < seeks.target_us[seek], is_kept],
        [Step.SNAPSHOT, Step.ACKNOWLEDGED, Step.BROUGHT_BACK],
        Step.LEFT,
    )
    at = first_above(rows.seq, start[which], end[which], seeks.seq[seek])
    rows = rows.inserted(
        at, message=message, epoch=seeks.epoch[seek], seq=seeks.seq[seek], ts_us=seeks.ts_us[seek], kind=step
    )
    return rows, _moved(messages, message)


def _with_drops(rows: _Rows, messages: _Messages, rules: Rules) -> tuple[_Rows, _Messages]:
    """A row for the first bulk drop that covers a message after each of its rows, and before the first."""
    drops = rules.drops
    low, high = drops.spans(messages.sub_id)
    low[messages.pub_us == 0] = high[messages.pub_us == 0]
    if not (high > low).any():
        return rows, messages
    position, message, low, high = (
        np.concatenate(both)
        for both in zip(
            _before_rows(rows, messages, rules, low, high),
            _after_messages(rows, messages, rules, low, high),
            strict=True,
        )
    )
    # A detachment drops everything, and its cut-off lies just ahead of it.
    cutoff_us = np.minimum(drops.cutoff_us, drops.ts_us + 1)
    drop = next_above(cutoff_us, low, high, messages.pub_us[message])
    found = drop < high
    position, message, drop = position[found], message[found], drop[found]
    # At one position, what follows a message stands before what precedes the next.
    order = np.argsort(position * 2 + (position == messages.start[message]), kind="stable")
    position, message, drop = position[order], message[order], drop[order]
    rows = rows.inserted(
        position,
        message=message,
        epoch=drops.epoch[drop],
        seq=drops.seq[drop],
        ts_us=drops.ts_us[drop],
        kind=np.full(len(drop), Step.DROPPED),
    )
    return rows, _moved(messages, message)


_Gaps = tuple[Ints, Ints, Ints, Ints]  # before which row, of which message, and the drops that fall into each


def _before_rows(rows: _Rows, messages: _Messages, rules: Rules, low: Ints, high: Ints) -> _Gaps:
    """The gap before each row, since the row before it. `low`, `high`: per message the drops there are."""
    (position,) = np.nonzero((high > low)[rows.message])
    message = rows.message[position]
    is_first = messages.start[message] == position
    since = np.where(is_first, -1, rows.seq[np.maximum(position - 1, 0)])
    seq, low, high = rules.drops.seq, low[message], high[message]
    gap_low = first_above(seq, low, high, since)
    return position, message, gap_low, first_above(seq, low, high, rows.seq[position])


def _after_messages(rows: _Rows, messages: _Messages, rules: Rules, low: Ints, high: Ints) -> _Gaps:
    """The gap after the last row of each message, as far as its epoch goes."""
    (message,) = np.nonzero(high > low)
    low, high = low[message], high[message]
    last_seq = rows.seq[messages.end[message] - 1]
    seek_low, seek_high = rules.seeks.spans(messages.sub_id[message])
    next_seek = first_above(rules.seeks.seq, seek_low, seek_high, last_seq)
    until = np.full(len(message), NEVER)
    is_sought = next_seek < seek_high
    until[is_sought] = rules.seeks.seq[next_seek[is_sought]]
    gap_low = first_above(rules.drops.seq, low, high, last_seq)
    return messages.end[message], message, gap_low, first_above(rules.drops.seq, low, high, until)


def _moved(messages: _Messages, inserted: Ints) -> _Messages:
    """After rows were inserted, each into the message named."""
    more = np.cumsum(np.bincount(inserted, minlength=len(messages.start)))
    end = messages.end + more
    return replace(messages, start=np.concatenate([np.zeros(1, end.dtype), end[:-1]]), end=end)


# -- the replay -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Life:
    """All messages, and what follows for each row from the rows up to it."""

    rows: _Rows
    messages: _Messages
    first: Ints  # per row the first row of its message
    what: Ints  # see _What
    state: Ints  # after the row


@dataclass(slots=True)
class _Before:
    """Per row, what was so just before it: row numbers are -1 where there was none in the message."""

    state: Ints
    deliver: Ints  # the last DELIVER
    lease: Ints  # the last event that set the lease's end
    ack: Ints  # the last ACK that took effect
    sought: Ints  # the last seek that acknowledged the message
    undone: Ints  # the last seek that undid acks
    snapshot: Ints  # the last seek to a snapshot


def _last(mask: Bools, first: Ints) -> Ints:
    """Per row the last row up to it, of the same message, where `mask` holds; else -1."""
    numbers = np.where(mask, np.arange(len(mask), dtype=np.int32), np.int32(-1))
    np.maximum.accumulate(numbers, out=numbers)
    numbers[numbers < first] = -1
    return numbers


def _shifted(values: Ints, is_first: Bools, nothing: int) -> Ints:
    """Per row the value of the row before it, `nothing` for the first row of a message."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[is_first] = nothing
    return before


def _states(rows: _Rows, first: Ints) -> Ints:
    """The state after each row."""
    after = _STATE_AFTER[_kind_and_result(rows)]
    setter = _last(after != _SAME, first)
    state = np.where(setter >= 0, after[setter], State.NONE).astype(np.int8)
    if not _has_steps(rows):
        return state
    # Since the event that set the state there may be seeks that acknowledge or bring back, and drops. Which
    # of them changes something depends on what it finds: an acknowledging seek passes over what is acked, one
    # that brings back over what has not ended, a drop over what is leased or has ended. Once one has changed
    # the state, it is purged or restored; both are open to the opposite, so the last of them all decides.
    away = _last(rows.kind == Step.ACKNOWLEDGED, first)
    back = _last((rows.kind == Step.BROUGHT_BACK) | (rows.kind == Step.SNAPSHOT), first)
    dropped = _last(rows.kind == Step.DROPPED, first)
    first_effect = np.select(
        [state == State.LEASED, state == State.ACKED, (state == State.GONE) | (state == State.PURGED)],
        [away, back, np.maximum(away, back)],
        np.maximum(away, dropped),
    )
    ended = np.where(back > np.maximum(away, dropped), State.RESTORED, State.PURGED)
    return np.where(first_effect > setter, ended, state).astype(np.int8)


def _has_steps(rows: _Rows) -> bool:
    return bool((rows.kind >= min(Step)).any())


def _kind_and_result(rows: _Rows) -> Ints:
    return rows.kind.astype(np.int16) * np.int16(8) + rows.result


def replay(columns: Mapping[str, Ints], rules: Rules) -> Replayed:
    """Facts and findings of all events given, which must include all events of each message that occurs.

    `columns`: either the columns of the journal, `epoch` among them, or what `keys` makes of them; in any
    order. Events that are not replayed (of other kinds, or of no message, or about an unknown ack id) may be
    among the former.
    """
    # Each array is let go once it is sorted: unless the caller keeps them, half of them never exist twice.
    rows, messages = _sorted(dict(columns) if "meta" in columns else _packed(columns))
    del columns
    rows, messages = _with_seeks(rows, messages, rules)
    rows, messages = _with_drops(rows, messages, rules)
    life = _lived(rows, messages)
    before = _before(life)
    found_rows, found_codes = _findings(life, before, rules)
    state_before = before.state
    del before
    return _facts(life, state_before, rules, found_rows, found_codes)


def _lived(rows: _Rows, messages: _Messages) -> _Life:
    first = messages.start.astype(np.int32)[rows.message]
    return _Life(rows, messages, first, _WHAT[_kind_and_result(rows)], _states(rows, first))


def _packed(columns: Mapping[str, Ints]) -> dict[str, Ints]:
    kind = np.asarray(columns["kind"])
    named = (np.asarray(columns["generation"]) != 0) | ~_IS_JUDGED[kind]
    wanted = np.isin(kind, REPLAYED) & (np.asarray(columns["message_id"]) != 0) & named
    picked = {name: np.asarray(values, np.int64)[wanted] for name, values in columns.items()}
    largest = {name: int(picked[name].max(initial=0)) for name in ("message_id", "sub_id", "epoch")}
    shape = keys.shape_of(largest["message_id"], largest["sub_id"], largest["epoch"])
    return keys.pack_arrays(picked, shape)


def _before(life: _Life) -> _Before:
    rows, first, what = life.rows, life.first, life.what
    is_first = np.zeros(len(first), np.bool_)
    is_first[life.messages.start] = True

    def last_before(mask: Bools) -> Ints:
        return _shifted(_last(mask, first), is_first, -1)

    sought = undone = snapshot = np.broadcast_to(np.int32(-1), len(first))
    if _has_steps(rows):
        sought = last_before(rows.kind == Step.ACKNOWLEDGED)
        undone = last_before((rows.kind == Step.BROUGHT_BACK) | (rows.kind == Step.SNAPSHOT))
        snapshot = last_before(rows.kind == Step.SNAPSHOT)
    return _Before(
        state=_shifted(life.state, is_first, State.NONE),
        deliver=last_before(what == _What.DELIVER),
        lease=last_before((what == _What.DELIVER) | (what == _What.EXTEND_OK)),
        ack=last_before(what == _What.ACK_OK),
        sought=sought,
        undone=undone,
        snapshot=snapshot,
    )


def _findings(life: _Life, before: _Before, rules: Rules) -> tuple[Ints, Ints]:
    """Rows that break G1, G2 or G3, and which: index in CODES. By row, then by code."""
    rows, messages = life.rows, life.messages

    def is_exactly_once(at: Ints) -> Bools:
        return rules.settings.is_exactly_once(messages.sub_id[rows.message[at]], rows.seq[at])

    def is_before_lease_end(at: Ints, tolerance_us: int = 0) -> Bools:
        lease = before.lease[at]
        # Compared without a difference, which numbers in a damaged journal could overflow.
        return (lease >= 0) & (rows.ts_us[at] < rows.deadline_us[lease] - tolerance_us)

    found: list[tuple[Ints, int]] = []
    kind, result, state = rows.kind, rows.result, before.state

    at = np.flatnonzero(kind == Kind.DELIVER)
    was_acked = before.ack[at] > before.undone[at]
    was_sought = before.sought[at] > before.undone[at]
    found.append((at[was_acked], _AFTER_ACK))
    found.append((at[was_sought & ~was_acked], _AFTER_SEEK))
    at = at[(state[at] == State.LEASED) | (state[at] == State.RESET)]
    at = at[is_before_lease_end(at, rules.tolerance_us)]
    found.append((at[(state[at] == State.LEASED) | is_exactly_once(at)], _EARLY_REDELIVERY))

    # What was delivered before the range cannot be judged until it is delivered in it.
    is_known = (before.deliver >= 0) | (messages.message_id >= rules.first_message_id)[rows.message]
    at = np.flatnonzero((kind == Kind.EXPIRE) & is_known & ((state == State.LEASED) | (state == State.RESET)))
    found.append((at[is_before_lease_end(at, rules.tolerance_us)], _EARLY_EXPIRE))

    # Nor what a snapshot left of a message, until it is delivered.
    is_known &= before.snapshot <= before.deliver
    at = np.flatnonzero(_IS_JUDGED[kind] & (result == Result.PERMANENT) & (state == State.LEASED) & is_known)
    at = at[rows.generation[before.deliver[at]] == rows.generation[at]]
    found.append((at[is_before_lease_end(at)], _REJECTED))

    at = np.flatnonzero(_IS_JUDGED[kind] & (result == Result.OK) & is_known)
    is_newest = (before.deliver[at] >= 0) & (rows.generation[before.deliver[at]] == rows.generation[at])
    at = at[~(is_newest & _takes_effect(kind[at], state[at]))]
    at = at[(kind[at] != Kind.ACK) | is_exactly_once(at)]
    ack = before.ack[at]
    is_repeated = (kind[at] == Kind.ACK) & (state[at] == State.ACKED)
    is_repeated &= rows.generation[ack] == rows.generation[at]
    found.append((at[is_repeated], _REPEATED))
    found.append((at[~is_repeated], _ACCEPTED))

    found_rows = np.concatenate([at for at, _ in found])
    found_codes = np.concatenate([np.full(len(at), code, np.int8) for at, code in found])
    order = np.lexsort((found_codes, found_rows))
    return found_rows[order], found_codes[order]


def _takes_effect(kind: Ints, state: Ints) -> Bools:
    """Whether an operation on the newest generation may be answered OK."""
    effective: Bools = (
        (state == State.LEASED)
        | ((kind == Kind.NACK) & (state == State.RESET))
        | ((kind == Kind.ACK) & (state == State.PURGED))
    )
    return effective


class _Groups:
    """Rows with a message and an epoch in common."""

    def __init__(self, rows: _Rows) -> None:
        begins = np.ones(len(rows.seq), np.bool_)
        begins[1:] = (rows.message[1:] != rows.message[:-1]) | (rows.epoch[1:] != rows.epoch[:-1])
        self.start = np.flatnonzero(begins)
        self.of = np.cumsum(begins, dtype=np.int32) - np.int32(1)  # per row

    def count(self, at: Ints) -> Ints:
        """Per group how many of the rows `at` are in it."""
        return np.bincount(self.of[at], minlength=len(self.start)).astype(np.int32)

    def last(self, values: Ints, at: Ints) -> Ints:
        """Per group the value at the last of the rows `at`, which ascend; else 0."""
        out = np.zeros(len(self.start), values.dtype)
        out[self.of[at]] = values[at]
        return out

    def first(self, values: Ints, at: Ints) -> Ints:
        """As `last`, at the first of them."""
        return self.last(values, at[::-1])


def _facts(life: _Life, state_before: Ints, rules: Rules, found_rows: Ints, found_codes: Ints) -> Replayed:
    """One row per message, subscription and epoch in which something happened to it."""
    rows, messages, what = life.rows, life.messages, life.what
    groups = _Groups(rows)
    start, message = groups.start, rows.message[groups.start]

    def count(code: int) -> Ints:
        return groups.count(np.flatnonzero(what == code))

    deliver = np.flatnonzero(what == _What.DELIVER)
    deliveries = groups.count(deliver)
    owed = _owed(life, groups, deliveries, rules)
    begun = _first_deliveries(rows, groups, deliver, state_before)
    acked = np.flatnonzero(what == _What.ACK_OK)
    was_there = ~_HAS_ENDED[state_before] & (state_before != State.LEASED)
    gone = np.flatnonzero((what >= _What.LEFT_FOR_GOOD) | ((rows.kind == Step.DROPPED) & was_there))
    violations = groups.count(found_rows)
    columns = {
        "sub_id": messages.sub_id[message],
        "message_id": messages.message_id[message],
        "epoch": rows.epoch[start],
        "pub_us": messages.pub_us[message],
        "okey": messages.okey[message],
        "first_seq": groups.first(rows.seq, begun),
        "first_us": groups.first(rows.ts_us, begun),
        "last_us": groups.last(rows.ts_us, deliver),
        "deliveries": deliveries,
        "attempts": np.maximum.reduceat(rows.attempt, start) if len(start) else rows.attempt,
        "extends": count(_What.EXTEND_OK),
        "nacks": count(_What.NACK_OK),
        "expires": count(_What.EXPIRE),
        "resets": count(_What.RESET),
        "ack_fails": count(_What.ACK_FAILED),
        "acks": groups.count(acked),
        "ack_us": groups.first(rows.ts_us, acked),
        "gone_us": groups.first(rows.ts_us, gone),
        "owed": owed,
        "partial": messages.message_id[message] < rules.first_message_id,
        "violations": violations,
    }
    # An epoch in which only seeks and drops happened has no row. No finding is among those.
    real = groups.count(np.flatnonzero(rows.kind < min(Step))) > 0
    if not real.all():
        columns = {name: column[real] for name, column in columns.items()}
        violations = violations[real]
    v_start = np.concatenate([np.zeros(1, np.int32), np.cumsum(violations, dtype=np.int32)])
    return Replayed(columns, v_start, found_codes, rows.seq[found_rows])


def _first_deliveries(rows: _Rows, groups: _Groups, deliver: Ints, state_before: Ints) -> Ints:
    """Of the rows `deliver` those that can be the first of an epoch: not what makes up for a void lease."""
    group = groups.of[deliver]
    is_first = np.ones(len(deliver), np.bool_)
    is_first[1:] = group[1:] != group[:-1]
    is_collateral = state_before[deliver] == State.RESET
    first: Ints = deliver[(rows.generation[deliver] == 1) | (is_first & ~is_collateral)]
    return first


def _owed(life: _Life, groups: _Groups, deliveries: Ints, rules: Rules) -> Bools:
    """Whether the subscription owed the message in the epoch: open when it began, or published in it.

    If the epoch was begun by a seek, and the message was published before, the first row is that seek.
    """
    rows, messages, start = life.rows, life.messages, groups.start
    message = rows.message[start]
    sub_id, pub_us = messages.sub_id[message], messages.pub_us[message]
    kind, epoch = rows.kind[start], rows.epoch[start]
    is_sought = (kind >= Step.ACKNOWLEDGED) & (kind <= Step.SNAPSHOT)
    was_created = pub_us >= rules.created.at(messages.sub_id)[message]
    owed: Bools = (pub_us != 0) & (was_created | is_sought | (epoch > 0))
    if is_sought.any():
        back = (rows.kind == Step.BROUGHT_BACK) | (rows.kind == Step.SNAPSHOT)
        was_brought_in = _last(back, life.first)[start] >= 0
        owed &= ~is_sought | (~_HAS_ENDED[life.state[start]] & (was_created | was_brought_in))
        # What a snapshot holds shows only in deliveries, but for what was published after it.
        at = np.flatnonzero(kind == Step.SNAPSHOT)
        low, _ = rules.seeks.spans(sub_id[at])
        lo_us = rules.seeks.lo_us[low + epoch[at] - 1]
        owed[at] = (pub_us[at] >= lo_us) | (deliveries[at] > 0)
    is_filtered = life.what == _What.FILTERED
    if is_filtered.any():
        end = np.append(start[1:], len(rows.seq)) - 1
        owed &= _last(is_filtered, life.first)[end] < 0
    return owed
