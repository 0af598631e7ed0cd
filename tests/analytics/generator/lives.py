"""What becomes of messages on subscriptions without ordering: every life told to its end, many at once.

Each step takes the earliest thing that happens next to each message: something planned for its subscription,
a delivery, or the end of a lease. Messages that are finished leave, unless a seek may still bring them back;
so a few steps treat almost all, and many steps only the few that seeks, drops and failures keep busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from analytics.layout import Kind, Result
from tests.analytics.generator import world as plan
from tests.analytics.generator.events import Events
from tests.analytics.generator.world import NEVER, S, World

WAITING, LEASED, DONE = range(3)
# How a lease ends: by an ack, a nack, by itself (the ack may come later), and two ends without exactly-once:
# the late ack that takes effect while nobody has the message, and the one that overtakes the next client's.
ACK, NACK, LOST, LATE, LATE_ACK, OLD_ACK = range(6)

EXTENSION_S = 30


@dataclass
class Copy:
    """Dead letters, to be published: one element a message."""

    ts_us: np.ndarray
    number: np.ndarray  # which DEADLETTER names it by, as -number
    okey: np.ndarray
    bytes: np.ndarray
    payload_hash: np.ndarray

    def where(self, chosen: np.ndarray) -> Copy:
        return Copy(*(getattr(self, one.name)[chosen] for one in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Copy]) -> Copy:
        none = np.zeros(0, np.int64)
        return cls(*(np.concatenate([none, *(getattr(p, one.name) for p in parts)]) for one in fields(cls)))

    def __len__(self) -> int:
        return len(self.ts_us)


class Lives:
    """The messages of a block on their subscriptions: one row a pair. `run` adds their events to `events`."""

    def __init__(
        self,
        world: World,
        rng: np.random.Generator,
        events: Events,
        *,
        sub: np.ndarray,
        handle: np.ndarray,
        pub_us: np.ndarray,
        place: np.ndarray,
        okey: np.ndarray,
        size: np.ndarray,
        payload: np.ndarray,
        first_copy: int,
    ) -> None:
        self.world, self.rng, self.events = world, rng, events
        self.sub, self.handle, self.pub_us, self.place = sub, handle, pub_us, place
        self.okey, self.size, self.payload = okey, size, payload
        n = len(sub)
        profiles = [one.profile for one in world.subscriptions]

        def of_sub(get: Callable[[plan.Profile], float], dtype: type = float) -> np.ndarray:
            by_sub: np.ndarray = np.array([get(one) for one in profiles], dtype)[sub]
            return by_sub

        self.topic_id = np.array([one.topic_id for one in world.subscriptions])[sub]
        self.exactly_once = of_sub(lambda one: one.exactly_once, bool)
        self.lease_us = of_sub(lambda one: one.lease_s * S, np.int64)
        self.work_us = of_sub(lambda one: one.work_s * S)
        self.spread = of_sub(lambda one: one.spread)
        self.extends = of_sub(lambda one: one.extends, bool)
        self.lost, self.nacked, self.late = (
            of_sub(lambda one: one.lost),
            of_sub(lambda one: one.nacked),
            of_sub(lambda one: one.late),
        )
        self.attempts_max = of_sub(lambda one: one.attempts_max, np.int64)
        self.clients = of_sub(lambda one: one.clients, np.int64)
        self.slow = of_sub(lambda one: one.slow)
        latency_us = of_sub(lambda one: one.latency_s * S)
        draw = rng.random(n)
        stuck, poison = of_sub(lambda one: one.stuck), of_sub(lambda one: one.poison)
        self.is_stuck = draw < stuck
        self.is_poison = ~self.is_stuck & (draw < stuck + poison)
        # What is stuck leaves by itself where nothing drops it with all others.
        self.drops_single = self.is_stuck & ~self.exactly_once

        self.status = np.zeros(n, np.int8)
        self.control = self._first_control()
        self.due_us = pub_us + even(latency_us * np.exp(self.spread * rng.standard_normal(n)))
        retained_us = of_sub(lambda one: one.retention_s * S, np.int64)
        self.due_us[self.is_stuck] = NEVER
        chosen = self.drops_single
        self.due_us[chosen] = pub_us[chosen] + retained_us[chosen] + even(rng.uniform(0, 9 * S, chosen.sum()))
        self.ends_us = np.zeros(n, np.int64)
        self.ending = np.zeros(n, np.int8)
        self.generation = np.zeros(n, np.int32)
        self.attempt = np.zeros(n, np.int32)  # of the newest generation
        self.next_attempt = np.ones(n, np.int32)
        self.delivered_us = np.zeros(n, np.int64)
        self.deadline_us = np.zeros(n, np.int64)
        self.extensions = np.zeros(n, np.int64)
        self.client = np.zeros(n, np.int32)
        self.slot = np.zeros(n, np.int64)
        # Of the generation before: it may be acked late.
        self.before = np.zeros((3, n), np.int64)  # delivered_us, attempt, client
        self.overtaken = np.zeros(n, bool)
        self.in_snapshot = np.ones(n, bool)
        self.copies: list[Copy] = []
        self._next_copy = first_copy

    def _first_control(self) -> np.ndarray:
        """The first that comes after the message."""
        out = np.zeros(len(self.sub), np.int64)
        for index in range(len(self.world.subscriptions)):
            rows = self.sub == index
            out[rows] = np.searchsorted(self.world.control_us[index], self.pub_us[rows], "right")
        return out

    def run(self) -> np.ndarray:
        """Tell all lives; which of the rows are open at the end of the journal."""
        world, end_us = self.world, self.events.end_us
        live = np.arange(len(self.sub))
        while len(live):
            sub, status = self.sub[live], self.status[live]
            control_us = world.control_us[sub, self.control[live]]
            next_us = np.where(status == LEASED, self.ends_us[live], self.due_us[live])
            next_us[status == DONE] = NEVER
            goes_on = np.minimum(control_us, next_us) < end_us
            self._extend(live[~goes_on & (status == LEASED)], NEVER)
            planned = goes_on & (control_us <= next_us)
            happens = goes_on & ~planned
            waiting, leased = live[happens & (status == WAITING)], live[happens & (status == LEASED)]
            single = self.drops_single[waiting]
            self._obey(live[planned])
            self._drop(waiting[single])
            self._deliver(waiting[~single])
            self._conclude(leased)
            live = self._skip_finished(live[goes_on])
        is_open: np.ndarray = self.status != DONE
        return is_open

    def _skip_finished(self, live: np.ndarray) -> np.ndarray:
        """Finished messages wait for the next seek, if there is any."""
        done = live[self.status[live] == DONE]
        sub, before = self.sub[done], self.control[done]
        after = self.world.next_seek[sub, before]
        passed = self.world.snapshots_before[sub, after] > self.world.snapshots_before[sub, before]
        self.in_snapshot[done[passed]] = False
        self.control[done] = after
        alive = np.ones(len(live), bool)
        alive[self.status[live] == DONE] = self.world.control_us[sub, after] < NEVER
        return live[alive]

    # -- what was planned ----------------------------------------------------------------------------------

    def _obey(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        world = self.world
        where = self.sub[rows], self.control[rows]
        kind, ts_us = world.control_kind[where], world.control_us[where]
        target_us, kept_us = world.control_target_us[where], world.control_kept_us[where]
        kept_place = world.control_kept_place[where]
        pub_us, done = self.pub_us[rows], self.status[rows] == DONE
        self.control[rows] += 1

        is_kept = (pub_us > kept_us) | ((pub_us == kept_us) & (self.place[rows] >= kept_place))
        is_seek, is_snapshot = kind == plan.SEEK, kind == plan.SEEK_SNAPSHOT
        acknowledged = (is_seek & (pub_us < target_us)) | (is_snapshot & ~self.in_snapshot[rows])
        comes_back = (is_seek & (pub_us >= target_us) & is_kept) | (is_snapshot & self.in_snapshot[rows])
        self._acknowledge(rows[acknowledged & ~done], ts_us[acknowledged & ~done])
        self._bring_back(rows[comes_back & done], ts_us[comes_back & done])
        self.in_snapshot[rows[kind == plan.SNAPSHOT]] = ~done[kind == plan.SNAPSHOT]

        leased = (self.status[rows] == LEASED) & (self.ending[rows] != LATE_ACK)
        dropped = (kind == plan.BULK_DROP) & (pub_us < target_us) & ~leased
        detached = kind == plan.DETACH
        void = rows[detached & leased]
        if len(void):
            self._extend(void, ts_us[detached & leased])
            self._add(Kind.RESET, void, ts_us[detached & leased], deadline_us=self.deadline_us[void])
        self.status[rows[dropped | detached | (kind == plan.DELETE)]] = DONE

    def _acknowledge(self, rows: np.ndarray, ts_us: np.ndarray) -> None:
        """A seek acknowledged them. Who has one on lease may still ack it, and is told that this is well."""
        leased = self.status[rows] == LEASED
        held, sought_us = rows[leased], ts_us[leased]
        self._extend(held, sought_us)
        acks = np.isin(self.ending[held], (ACK, LATE_ACK)) & (self.rng.random(len(held)) < 0.7)
        told = np.where(self.rng.random(len(held)) < 0.3, Result.OK, Result.NOOP)
        self._answer(Kind.ACK, held[acks], self.ends_us[held[acks]], told[acks])
        nacks = (self.ending[held] == NACK) & self.exactly_once[held]
        self._answer(Kind.NACK, held[nacks], self.ends_us[held[nacks]], Result.PERMANENT)
        self.status[rows] = DONE

    def _bring_back(self, rows: np.ndarray, ts_us: np.ndarray) -> None:
        self.due_us[rows] = ts_us + 1 + even(self.rng.uniform(0.1 * S, 4 * S, len(rows)))
        # An id from before the seek is dead.
        again = self.exactly_once[rows] & (self.generation[rows] > 0) & (self.rng.random(len(rows)) < 0.05)
        self._answer(Kind.ACK, rows[again], ts_us[again] + 1 + even(0.05 * S), Result.PERMANENT)
        self.status[rows], self.next_attempt[rows] = WAITING, 1

    # -- deliveries ----------------------------------------------------------------------------------------

    def _drop(self, rows: np.ndarray) -> None:
        """Its retention is over."""
        self.events.add(
            Kind.DROP,
            self.due_us[rows],
            topic_id=self.topic_id[rows],
            sub_id=self.sub[rows] + 1,
            message_id=self.handle[rows],
            ref_ts_us=self.pub_us[rows],
        )
        self.status[rows] = DONE

    def _deliver(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        rng, n = self.rng, len(rows)
        now_us = self.due_us[rows]
        self.before[:, rows] = self.delivered_us[rows], self.attempt[rows], self.client[rows]
        # A delivery that was lost in a crash leaves a hole, where that is allowed.
        crashed = self.world.period(now_us) > self.world.period(
            np.maximum(self.delivered_us[rows], self.pub_us[rows])
        )
        self.generation[rows] += 1 + (crashed & ~self.exactly_once[rows] & (rng.random(n) < 0.5))
        # The first clients get more than the last.
        self.slot[rows] = (self.clients[rows] * rng.random(n) ** 1.3).astype(np.int64)
        self.client[rows] = self.world.client_id(self.world.period(now_us), self.sub[rows], self.slot[rows])
        self.attempt[rows] = self.next_attempt[rows]
        lease_us = self.lease_us[rows]
        self.delivered_us[rows], self.deadline_us[rows] = now_us, now_us + lease_us
        self._add(
            Kind.DELIVER,
            rows,
            now_us,
            deadline_us=self.deadline_us[rows],
            ref_ts_us=self.pub_us[rows],
            bytes=self.size[rows],
            stream_id=self._stream(rows, now_us),
        )
        self.status[rows] = LEASED
        self._decide(rows, now_us, lease_us)

    def _decide(self, rows: np.ndarray, now_us: np.ndarray, lease_us: np.ndarray) -> None:
        """How the lease is going to end, and when."""
        rng, n = self.rng, len(rows)
        is_last = self.slot[rows] == self.clients[rows] - 1
        work_us = self.work_us[rows] * np.exp(self.spread[rows] * rng.standard_normal(n))
        work_us *= np.where(is_last, self.slow[rows], 1.0)
        draw = rng.random(n)
        lost, nacked, late = self.lost[rows], self.nacked[rows], self.late[rows]
        ending = np.full(n, ACK, np.int8)
        ending[draw < lost + nacked + late] = LATE
        ending[draw < lost + nacked] = NACK
        ending[draw < lost] = LOST
        ending[self.is_poison[rows]] = NACK
        ending[self.overtaken[rows]] = OLD_ACK
        self.overtaken[rows] = False
        # Nobody fails for ever, but by design.
        ending[(self.attempt[rows] >= 12) & ~self.is_poison[rows]] = ACK

        extends = self.extends[rows] & (ending <= NACK)
        in_time_us = 0.8 * np.where(extends, lease_us + 3 * 0.5 * EXTENSION_S * S, lease_us)
        ends_us = now_us + even(np.minimum(work_us, in_time_us))
        # Each extension comes when half of the time is over.
        over_us = ends_us - now_us - 0.5 * lease_us
        extensions = np.where(extends & (over_us > 0), 1 + over_us // (0.5 * EXTENSION_S * S), 0)
        self.extensions[rows] = np.minimum(extensions, 3)
        lapses = (ending == LOST) | (ending == LATE)
        ends_us[lapses] = (now_us + lease_us + even(rng.uniform(0, 0.1 * S, n)))[lapses]
        self.ends_us[rows], self.ending[rows] = ends_us, ending

    def _extend(self, rows: np.ndarray, until_us: np.ndarray | int) -> None:
        """The extensions of leases, as far as they come before `until_us`."""
        rows_until = np.broadcast_to(until_us, rows.shape)
        chosen = self.extensions[rows] > 0
        rows, limit_us = rows[chosen], rows_until[chosen]
        step_us = EXTENSION_S * S // 2
        for turn in range(3):
            ts_us = self.delivered_us[rows] + self.lease_us[rows] // 2 + turn * step_us
            asked = (self.extensions[rows] > turn) & (ts_us < limit_us)
            if not asked.any():
                break
            self.deadline_us[rows[asked]] = ts_us[asked] + EXTENSION_S * S
            self._add(
                Kind.EXTEND,
                rows[asked],
                ts_us[asked],
                deadline_us=self.deadline_us[rows[asked]],
                stream_id=self._stream(rows[asked], ts_us[asked]),
                aux=EXTENSION_S,
            )

    # -- ends of leases ------------------------------------------------------------------------------------

    def _conclude(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        self._extend(rows, self.ends_us[rows])
        ending = self.ending[rows]
        self._acked(rows[ending == ACK])
        self._acked_late(rows[ending == LATE_ACK])
        self._overtaken(rows[ending == OLD_ACK])
        failed = rows[ending == NACK]
        self._answer(Kind.NACK, failed, self.ends_us[failed], Result.OK)
        lapsed = rows[(ending == LOST) | (ending == LATE)]
        self._add(Kind.EXPIRE, lapsed, self.ends_us[lapsed], deadline_us=self.deadline_us[lapsed])
        self._failed(rows[np.isin(ending, (NACK, LOST, LATE))])

    def _acked(self, rows: np.ndarray) -> None:
        draw = self.rng.random(len(rows))
        at_us = self.ends_us[rows]
        again = draw < 0.004
        turned_away = (draw > 0.999) & (at_us - self.delivered_us[rows] > 4000) & self.exactly_once[rows]
        self._answer(Kind.ACK, rows[turned_away], at_us[turned_away] - 2000, Result.TRANSIENT)
        self._answer(Kind.ACK, rows, at_us, Result.OK)
        later_us = at_us + even(self.rng.uniform(0.01 * S, 2 * S, len(rows)))
        self._answer(Kind.ACK, rows[again], later_us[again], Result.NOOP)
        self.status[rows] = DONE

    def _acked_late(self, rows: np.ndarray) -> None:
        """Without exactly-once, an ack counts whenever it comes."""
        self._answer(Kind.ACK, rows, self.ends_us[rows], Result.OK)
        self.status[rows] = DONE

    def _overtaken(self, rows: np.ndarray) -> None:
        """As before, but meanwhile another client has the message, whose ack changes nothing any more."""
        at_us = self.ends_us[rows]
        delivered_us, attempt, client = self.before[:, rows]
        self._add(
            Kind.ACK,
            rows,
            at_us,
            generation=self.generation[rows] - 1,
            attempt=attempt,
            ref_ts_us=delivered_us,
            client_id=client,
            stream_id=self._stream(rows, at_us),
        )
        self._answer(Kind.ACK, rows, at_us + 20_000, Result.NOOP)
        self.status[rows] = DONE

    def _failed(self, rows: np.ndarray) -> None:
        """An attempt failed: again, or to the dead letters; and what the client did not know yet."""
        if not len(rows):
            return
        rng, n = self.rng, len(rows)
        at_us = self.ends_us[rows]
        dead = (self.attempts_max[rows] > 0) & (self.attempt[rows] >= self.attempts_max[rows])
        late, once = self.ending[rows] == LATE, self.exactly_once[rows]
        late_us = at_us + even(rng.uniform(0.2 * S, 5 * S, n))
        refused = late & once
        self._answer(Kind.ACK, rows[refused], late_us[refused], Result.PERMANENT)
        too_late = refused & (rng.random(n) < 0.2)
        self._answer(
            Kind.EXTEND, rows[too_late], late_us[too_late] - 20_000, Result.PERMANENT, aux=EXTENSION_S
        )

        self.due_us[rows] = at_us + even(rng.uniform(0.05 * S, 3 * S, n) * self.attempt[rows])
        self._forward(rows[dead])
        again = rows[~dead]
        self.next_attempt[again] = self.attempt[again] + 1
        self.status[again] = WAITING
        takes_effect = late & ~once & ~dead
        first = takes_effect & (rng.random(n) < 0.5)
        self.overtaken[rows[takes_effect & ~first]] = True
        accepted = rows[first]
        self.status[accepted], self.ending[accepted] = LEASED, LATE_ACK
        self.extensions[accepted] = 0
        self.ends_us[accepted] = late_us[first]

    def _forward(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        number = self._next_copy + np.arange(len(rows))
        self._next_copy += len(rows)
        ts_us = self.ends_us[rows]
        self.events.add(
            Kind.DEADLETTER,
            ts_us,
            topic_id=self.world.topics["dead"],
            sub_id=self.sub[rows] + 1,
            message_id=self.handle[rows],
            generation=self.generation[rows],
            attempt=self.attempt[rows],
            ref_ts_us=self.pub_us[rows],
            okey=self.okey[rows],
            aux=-number,
        )
        about = self.okey[rows], self.size[rows], self.payload[rows]
        self.copies.append(Copy(ts_us, number, *about))
        self.status[rows] = DONE

    # -- events --------------------------------------------------------------------------------------------

    def _stream(self, rows: np.ndarray, ts_us: np.ndarray) -> np.ndarray:
        period = self.world.period(ts_us)
        stream_id: np.ndarray = self.world.stream_id(period, self.sub[rows], self.slot[rows])
        return stream_id

    def _answer(
        self, kind: Kind, rows: np.ndarray, ts_us: np.ndarray, result: np.ndarray | int, aux: int = 0
    ) -> None:
        """What a client was told about its generation. An id that is over does not carry the key."""
        result = np.broadcast_to(np.asarray(result, np.int8), rows.shape)
        okey = np.where(result == Result.OK, self.okey[rows], 0)
        stream_id = self._stream(rows, ts_us)
        self._add(kind, rows, ts_us, result=result, okey=okey, stream_id=stream_id, aux=aux)

    def _add(self, kind: Kind, rows: np.ndarray, ts_us: np.ndarray, **columns: np.ndarray | int) -> None:
        """About the newest generation, unless `columns` say otherwise."""
        if not len(rows):
            return
        given = {
            "topic_id": self.topic_id[rows],
            "sub_id": self.sub[rows] + 1,
            "message_id": self.handle[rows],
            "generation": self.generation[rows],
            "attempt": self.attempt[rows],
            "ref_ts_us": self.delivered_us[rows],
            "client_id": self.client[rows],
            "okey": self.okey[rows],
            **columns,
        }
        self.events.add(kind, ts_us, **given)


def even(us: np.ndarray | float) -> np.ndarray:
    """Whole, even microseconds, more than 0."""
    return (np.asarray(us) / 2).astype(np.int64) * 2 + 2
