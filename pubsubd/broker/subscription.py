"""One subscription: what its messages are worth to those who have them, and what becomes of them.

Theory of operation. `leases` is what is outstanding, `endings` how generations ended, `backlog` what is still
to be delivered; every message is in one place. What an ack id is worth is decided by the tables of
`eod.machine`; who gets what by `flow.deal`. All effects are written to the ledger. Every method is one step;
times are microseconds and never go back.

A message that fails (a nack, an expired deadline) counts an attempt, rests as the retry policy says, or
leaves for the dead letter topic, which the broker sees to since it knows topics. Later messages of its
ordering key fail with it, without counting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from pubsubd.broker import oplog
from pubsubd.broker.backlog import Backlog, Pick
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, Ledger, LetGo, SubscriptionRow
from pubsubd.broker.entry import Entry
from pubsubd.broker.questions import Found, Question, ReadTimes
from pubsubd.broker.saved import with_epoch
from pubsubd.broker.waiting import Waiting
from pubsubd.eod.ack_id import AckIds, AckToken
from pubsubd.eod.endings import Ending, EndingRow, Endings
from pubsubd.eod.lease import Lease, LeaseTable
from pubsubd.eod.machine import VERDICTS, Operation, Standing, Verdict
from pubsubd.flow.deal import Hand, deal
from pubsubd.model import errors, limits, retention
from pubsubd.model.backoff import backoff_of
from pubsubd.model.events import Event, Kind, Result
from pubsubd.model.filters import parse_filter
from pubsubd.model.matching import Matches, compile_filter
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.broker.saved import SavedSubscription
    from pubsubd.broker.snapshot import Snapshot
    from pubsubd.broker.topic import Topic

_DELIVER, _EXTEND, _NACK, _ACK, _EXPIRE, _RESET, _FILTERED = (
    int(kind)
    for kind in (
        Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.RESET, Kind.FILTERED,
    )
)  # fmt: skip  # short items, many to a line
_RESULTS = {
    Verdict.APPLY: Result.OK,
    Verdict.APPLY_LATE: Result.OK,
    Verdict.NOOP: Result.NOOP,
    Verdict.PERMANENT: Result.PERMANENT,
    Verdict.TRANSIENT: Result.TRANSIENT,
}
_REFUSED = (Verdict.PERMANENT, Verdict.TRANSIENT)


class Refusal(NamedTuple):
    """An ack id that was not answered with success, and why."""

    ack_id: str
    standing: Standing
    token: AckToken | None


class Judged(NamedTuple):
    ack_id: str
    token: AckToken | None
    standing: Standing
    verdict: Verdict


class Subscription:
    def __init__(
        self,
        sub_id: int,
        topic: Topic,
        resource: pb.Subscription,
        start_id: int,
        ledger: Ledger,
        ack_ids: AckIds,
        topics: Mapping[str, Topic],
    ) -> None:
        """`topics` are those that exist, by name: a dead letter topic may come and go."""
        self.sub_id = sub_id
        self.topic = topic
        self.resource = resource
        self.start_id = start_id
        self.leases = LeaseTable()
        self.endings = Endings()
        self.consumers: dict[Consumer, None] = {}
        # Those that can take a delivery now, if their window allows; who was served last is last.
        self.ready: dict[Consumer, None] = {}
        self.timer_us: int | None = None  # when the broker will next look at it
        self.finished_since_trim = 0
        self.matches = _compiled(resource.filter)
        self.backlog = Backlog(
            self,
            topic,
            start_id,
            self.leases.by_message,
            resource.enable_message_ordering,
            _on_data(self.matches),
        )
        self.active_us = 0  # when somebody last used it
        self._active_saved_us = 0
        self._ledger = ledger
        self._ack_ids = ack_ids
        self._topics = topics
        # What seeks have left behind: (floor, generation), both ascending. See `_first_generation`.
        self._epochs: list[tuple[int, int]] = []
        self._restored: dict[int, int] = {}  # the same, of single messages
        self._generation_max = 1
        self._past: list[tuple[int, str]] = []  # (through_id, filter), see Backlog.past
        self._noted_id = 0  # see note_filtered
        # By how much the attempts that clients see are lower than those counted: what failed before there
        # was a dead letter policy does not count for it.
        self._offsets: dict[int, int] = {}
        self._expire_at_us: int | None = None  # when to look for messages past their retention
        self._asking = False
        self.configure()

    def configure(self) -> None:
        """The resource, or that of the topic, has changed: take over what it says."""
        resource = self.resource
        topic = None if self.topic.deleted else self.topic.resource
        self._backoff = backoff_of(resource)
        policy = resource.dead_letter_policy if resource.HasField("dead_letter_policy") else None
        self._attempts_max = policy.max_delivery_attempts if policy is not None else 0
        self.dead_letter_topic: str = policy.dead_letter_topic if policy is not None else ""
        self.unacked_kept_us = retention.unacked_kept_us(resource, topic)
        # What the topic keeps comes on top.
        self.acked_kept_us = 0 if self.detached else retention.acked_kept_us(resource)
        self._expires_after_us = retention.expires_after_us(resource)

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        name: str = self.resource.name
        return name

    @property
    def cursor(self) -> int:
        return self.backlog.cursor

    @property
    def exactly_once(self) -> bool:
        return bool(self.resource.enable_exactly_once_delivery)

    @property
    def detached(self) -> bool:
        return bool(self.resource.detached)

    @property
    def is_pushed(self) -> bool:
        return bool(self.resource.push_config.push_endpoint) and not self.detached

    @property
    def is_attended(self) -> bool:
        """Whether messages are taken by somebody now or soon, so that they are kept at hand."""
        return bool(self.ready or (self.consumers and not self.is_pushed))

    @property
    def waiting_count(self) -> int:
        return len(self.backlog.waiting) + len(self.backlog.parked_messages())

    @property
    def is_reading(self) -> bool:
        """Whether messages are on their way from storage."""
        return self.backlog.is_reading

    @property
    def unfinished_count(self) -> int:
        """Messages that were delivered and are not finished."""
        return len(self.leases) + len(self.backlog.waiting)

    def row(self) -> SubscriptionRow:
        data: bytes = self.resource.SerializeToString()
        return SubscriptionRow(self.sub_id, self.topic.topic_id, self.name, self.start_id, data)

    def low_water(self) -> int:
        """No message with a smaller id will be delivered again, unless a seek says so."""
        return self.backlog.low_water()

    # -- time ---------------------------------------------------------------------------------------------

    def next_event_us(self) -> int | None:
        """Nothing happens by itself up to and including this moment; None: nothing at all."""
        times = (self.leases.next_deadline_us(), self.backlog.next_ready_us(), self._expire_at_us)
        inactive_us = None if self._expires_after_us is None else self.active_us + self._expires_after_us
        return min([time for time in (*times, inactive_us) if time is not None], default=None)

    def advance(self, now_us: int) -> bool:
        """Time has passed; whether a delivery may follow from it."""
        changed = self._lapse(now_us)
        changed |= self.backlog.wake(now_us)
        if self._expire_at_us is not None and self._expire_at_us < now_us:
            self._look_for_expired(now_us)
        return changed

    def is_forgotten(self, now_us: int) -> bool:
        """Whether nobody has used it for as long as its expiration policy allows."""
        # Of a push subscription only what its endpoint accepts counts as use.
        if self.consumers and not self.is_pushed:
            self.used(now_us)
        return self._expires_after_us is not None and self.active_us + self._expires_after_us < now_us

    def used(self, now_us: int) -> None:
        self.active_us = now_us
        if now_us - self._active_saved_us >= limits.ACTIVITY_STEP_US:
            self._active_saved_us = now_us
            self._ledger.record(oplog.active(oplog.Active(self.sub_id, now_us)))

    # -- messages that come -------------------------------------------------------------------------------

    @property
    def expects_message(self) -> bool:
        """Whether the next message that is published means anything beyond being delivered."""
        return self.matches is not None or (self._expire_at_us is None and not self._asking)

    def published(
        self, entries: Sequence[Entry], messages: Sequence[pb.PubsubMessage], last_id: int, now_us: int
    ) -> list[int]:
        """Its topic got messages; the one before them is `last_id`. Which of them match its filter."""
        if self._expire_at_us is None and not self._asking:
            # Nothing was owed; this will be over first.
            self._expire_at_us = now_us + self.unacked_kept_us
        matches = self.matches
        if matches is None:
            return []
        matched = [matches(message.attributes) for message in messages]
        self.finished_since_trim += len(matched) - sum(matched)
        if self.backlog.published(entries, matched, last_id):
            self._ledger.record(oplog.skipped(oplog.Skipped(self.sub_id, self.cursor)))
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _FILTERED, topic_id, sub_id, entry.message_id, 0, 0, 0, entry.publish_us, 0,
                     0, 0, entry.okey, 0, 0, 0)
                    for entry, match in zip(entries, matched, strict=True)
                    if not match
                ]
            )  # fmt: skip  # short items, many to a line
        return [entry.message_id for entry, match in zip(entries, matched, strict=True) if match]

    # -- ack ids ------------------------------------------------------------------------------------------

    def acknowledge(self, ack_ids: Iterable[str], call_id: int, now_us: int) -> list[Refusal]:
        """Acknowledge each id once, however often it is named. Returns those that were refused.

        Raises:
            InvalidArgument: without exactly-once, an id is malformed or foreign; then nothing was done.

        Source: pubsub.proto, AcknowledgeRequest.
        """
        leases, others = self.leases.running(dict.fromkeys(ack_ids), now_us)
        # A malformed id refuses the whole request, so that is found out first.
        self.check_ack_ids(others)
        judged: list[Judged] = []
        if self.backlog.keys is not None and self.exactly_once:
            # A request is judged as a set: clients send the ids of a key in any order.
            leases, ahead = self.backlog.keys.split_in_order(leases)
            judged += [self._unordered(lease) for lease in ahead]
        if leases:
            self._ack(leases, call_id, now_us)
        for one in self._judge(Operation.ACK, others, now_us):
            if one.verdict is Verdict.APPLY_LATE and not self._ack_late(one.token, now_us):
                one = one._replace(verdict=Verdict.NOOP)
            judged.append(one)
        self._journal_judged(_ACK, judged, 0, call_id, now_us)
        return _refusals(judged)

    def modify_ack_deadline(
        self, ack_ids: Iterable[str], seconds: int, call_id: int, now_us: int
    ) -> list[Refusal]:
        """Move each lease to end `seconds` from now; 0 is a nack. Returns the ids that were refused.

        Raises:
            InvalidArgument: as `acknowledge`.

        Source: pubsub.proto, ModifyAckDeadlineRequest.
        """
        leases, others = self.leases.running(dict.fromkeys(ack_ids), now_us)
        self.check_ack_ids(others)
        judged = self._judge(Operation.EXTEND if seconds else Operation.NACK, others, now_us)
        if leases and seconds:
            self._extend(leases, seconds, call_id, now_us)
        elif leases:
            self._nack(leases, call_id, now_us)
        self._release([one for one in judged if one.verdict is Verdict.APPLY_LATE], now_us)
        self._journal_judged(_EXTEND if seconds else _NACK, judged, seconds, call_id, now_us)
        return _refusals(judged)

    def push_ended(
        self,
        accepted: Iterable[str],
        failed: Iterable[str],
        unsent: Iterable[str],
        call_id: int,
        now_us: int,
    ) -> None:
        """Pushes came to an end: acks, nacks, and what was never sent, which counts no attempt.

        Whatever comes after its lease is too late, also what the endpoint accepted: it is delivered again.
        """
        leases, _ = self.leases.running(accepted, now_us)
        if leases:
            self.used(now_us)
            self._ack(leases, call_id, now_us)
        leases, _ = self.leases.running(failed, now_us)
        if leases:
            self._nack(leases, call_id, now_us)
        leases, _ = self.leases.running(unsent, now_us)
        if leases:
            self._hand_back(leases, now_us)

    def check_ack_ids(self, ack_ids: Iterable[str]) -> None:
        """Without exactly-once, a malformed or foreign id refuses the request that carries it.

        Raises:
            InvalidArgument: names the first such id.
        """
        if self.exactly_once:
            return
        for ack_id in ack_ids:
            if ack_id not in self.leases.by_ack_id and not self._is_ours(self._ack_ids.read(ack_id)):
                raise errors.bad_ack_id(ack_id)

    def standing(self, token: AckToken | None, now_us: int) -> Standing:
        """What has become of the generation that an id names, whose lease does not run."""
        if token is None or not self._is_ours(token):
            return Standing.UNKNOWN
        if self.detached:
            return Standing.DETACHED
        message_id, generation = token.message_id, token.generation
        backlog = self.backlog
        first = self._first_generation(message_id)
        ending = self.endings.of(message_id, generation)
        # The later life may be over, too: then what is remembered of this generation holds.
        if generation < first and (ending is None or not backlog.is_finished(message_id)):
            return Standing.SUPERSEDED
        if ending is not None:
            return _ENDED[ending]
        waiting = backlog.waiting.get(message_id)
        if waiting is not None:
            is_reset = waiting.collateral and waiting.generation == generation and now_us <= waiting.ready_us
            return Standing.RESET if is_reset else Standing.LAPSED
        if message_id in self.leases.by_message:
            return Standing.LAPSED
        if message_id > backlog.cursor and message_id not in backlog.carried:
            return Standing.UNKNOWN
        if generation == self.endings.finishing_generation(message_id, first):
            return Standing.ACKED
        return Standing.OVERTAKEN

    def _first_generation(self, message_id: int) -> int:
        """The first generation of a message since a seek last brought it back, if one did."""
        carried = self.backlog.carried.get(message_id)
        if carried is not None:
            return carried
        first = self._restored.get(message_id, 1)
        for floor_id, generation in reversed(self._epochs):
            if floor_id < message_id:
                return max(first, generation)
        return first

    def _is_ours(self, token: AckToken | None) -> bool:
        return token is not None and token.sub_id == self.sub_id

    def _judge(self, operation: Operation, ack_ids: Sequence[str], now_us: int) -> list[Judged]:
        verdicts = VERDICTS[self.exactly_once]
        judged: list[Judged] = []
        for ack_id in ack_ids:
            token = self._ack_ids.read(ack_id)
            standing = self.standing(token, now_us)
            known = token if standing is not Standing.UNKNOWN else None
            judged.append(Judged(ack_id, known, standing, verdicts[operation, standing]))
        return judged

    def _unordered(self, lease: Lease) -> Judged:
        token = AckToken(
            self.sub_id, lease.generation, lease.attempt, lease.message_id, lease.delivered_us,
            lease.client_id, lease.boot,
        )  # fmt: skip  # short items, many to a line
        verdict = VERDICTS[True][Operation.ACK, Standing.UNORDERED]
        return Judged(lease.ack_id, token, Standing.UNORDERED, verdict)

    def _ack(self, leases: list[Lease], call_id: int, now_us: int) -> None:
        self._let_go(leases, by_client=True)
        if self.backlog.keys is not None:
            self.backlog.keys.ended(leases, now_us)
        has_sought = bool(self._epochs)
        acked: list[tuple[int, int]] = []
        for lease in leases:
            if (has_sought or lease.generation > 1) and (
                lease.generation != self._first_generation(lease.message_id)
                # What is remembered of it is from before a seek brought it back, or will be forgotten.
                or self.endings.knows(lease.message_id)
                or lease.message_id in self.backlog.carried
                or lease.message_id in self._restored
            ):
                acked.append((lease.message_id, lease.generation))
        if acked:
            self._remember_all(acked, Ending.ACKED, now_us)
        self._finish([lease.message_id for lease in leases])
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _ACK, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt, 0,
                     lease.delivered_us, 0, lease.client_id, call_id, lease.okey, 0, 0, 0)
                    for lease in leases
                ]
            )  # fmt: skip  # short items, many to a line

    def _ack_late(self, token: AckToken | None, now_us: int) -> bool:
        """Without exactly-once: an ack after the lease spares a redelivery, even one that is under way.

        False if the same request has acked the message by another generation.
        """
        assert token is not None
        message_id, generation = token.message_id, token.generation
        lease = self.leases.by_message.get(message_id)
        if lease is not None:
            self._let_go([lease])
            if self.backlog.keys is not None:
                self.backlog.keys.ended([lease], now_us)
        elif not self.backlog.finish_waiting(message_id, now_us):
            return False
        is_first = generation == self._first_generation(message_id)
        is_plain = is_first and not self._epochs and not self.endings.of(message_id, generation)
        if not is_plain:
            self._remember(message_id, generation, Ending.ACKED, now_us)
        self._finish([message_id])
        return True

    def _let_go(self, leases: list[Lease], by_client: bool = False) -> None:
        self.leases.end(leases)
        self._ledger.now.let_go.setdefault(self.sub_id, []).append(LetGo(leases, by_client))

    def _finish(self, message_ids: list[int]) -> None:
        self._ledger.record(oplog.finished(oplog.Finished(self.sub_id, message_ids)))
        self.finished_since_trim += len(message_ids)
        for of_messages in (self._offsets, self._restored):
            if of_messages:
                for message_id in message_ids:
                    of_messages.pop(message_id, None)
        carried = self.backlog.carried
        if carried:
            for message_id in message_ids:
                if message_id <= self.cursor:
                    carried.pop(message_id, None)

    def _extend(self, leases: list[Lease], seconds: int, call_id: int, now_us: int) -> None:
        deadline_us = now_us + seconds * limits.SECOND_US
        for lease in leases:
            if not lease.named:
                lease.named = True
                holder = lease.holder
                if holder is not None and now_us - lease.delivered_us <= limits.RECEIPT_US:
                    holder.confirms_receipt = True
        self.leases.extend(leases, deadline_us)
        message_ids = [lease.message_id for lease in leases]
        self._ledger.record(oplog.extended(oplog.Extended(self.sub_id, deadline_us, message_ids)))
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _EXTEND, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt,
                     deadline_us, lease.delivered_us, 0, lease.client_id, call_id, lease.okey, 0, 0, seconds)
                    for lease in leases
                ]
            )  # fmt: skip  # short items, many to a line

    def _nack(self, leases: list[Lease], call_id: int, now_us: int) -> None:
        nacked = [(lease.message_id, lease.generation) for lease in leases]
        self._remember_all(nacked, Ending.NACKED, now_us)
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _NACK, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt, 0,
                     lease.delivered_us, 0, lease.client_id, call_id, lease.okey, 0, 0, 0)
                    for lease in leases
                ]
            )  # fmt: skip  # short items, many to a line
        self._fail(leases, now_us)

    def _release(self, judged: Sequence[Judged], now_us: int) -> None:
        """Collateral messages were nacked: nobody works on them, and they need not wait for deadlines."""
        message_ids: list[int] = []
        for one in judged:
            assert one.token is not None
            message_ids.append(one.token.message_id)
            self._remember(one.token.message_id, one.token.generation, Ending.NACKED, now_us)
        if message_ids:
            self._ledger.record(oplog.released(oplog.Released(self.sub_id, message_ids)))
            self.backlog.release(message_ids, now_us)

    def _journal_judged(
        self, kind: int, judged: Sequence[Judged], seconds: int, call_id: int, now_us: int
    ) -> None:
        for one in judged:
            token = one.token
            message_id, generation, attempt, delivered_us, client_id = (
                (0, 0, 0, 0, 0)
                if token is None
                else (token.message_id, token.generation, token.attempt, token.delivered_us, token.client_id)
            )
            self._ledger.event(
                Event(
                    now_us,
                    kind,
                    self.topic.topic_id,
                    self.sub_id,
                    message_id,
                    generation,
                    attempt,
                    ref_ts_us=delivered_us,
                    result=_RESULTS[one.verdict],
                    client_id=client_id,
                    stream_id=call_id,
                    aux=seconds,
                )
            )

    def _remember(self, message_id: int, generation: int, ending: Ending, now_us: int) -> None:
        self._remember_all([(message_id, generation)], ending, now_us)

    def _remember_all(self, ended: Iterable[tuple[int, int]], ending: Ending, now_us: int) -> None:
        rows = [
            EndingRow(self.sub_id, message_id, generation, int(ending), now_us)
            for message_id, generation in ended
        ]
        self.endings.extend(rows)
        self._ledger.now.endings.extend(rows)

    # -- leases that end by themselves --------------------------------------------------------------------

    def _lapse(self, now_us: int) -> bool:
        """End the leases whose deadline is over; whether there were any."""
        leases = self.leases.lapsed(now_us)
        if leases:
            self._journal_void(_EXPIRE, leases, now_us)
            self._fail(leases, now_us)
        return bool(leases)

    def release_unseen(self, consumer: Consumer, now_us: int) -> None:
        """The stream of `consumer` ended: give back at once what its client cannot have seen.

        Only without exactly-once delivery, and only for a client that confirms receipt: what it has not named
        it has not read. No attempt is counted.
        """
        if self.exactly_once or not consumer.confirms_receipt or not consumer.outstanding_messages:
            return
        leases = [
            lease
            for lease in self.leases
            # One that ran out has expired, whether or not that was noticed yet.
            if lease.holder is consumer and not lease.named and now_us <= lease.deadline_us
        ]
        if leases:
            self._hand_back(leases, now_us)

    def _hand_back(self, leases: list[Lease], now_us: int) -> None:
        """Nobody has seen these deliveries: their messages wait again, without an attempt counted."""
        self._journal_void(_RESET, leases, now_us)
        ended = {one.message_id: Waiting(one.generation, one.attempt, one.okey) for one in leases}
        self._give_back(leases, now_us, ended, counts=False)

    def _fail(self, leases: list[Lease], now_us: int) -> None:
        """Leases were nacked or ran out: an attempt each."""
        ended: dict[int, Waiting] = {}
        rested: list[int] = []
        for lease in leases:
            message_id = lease.message_id
            waiting = ended[message_id] = Waiting(lease.generation, lease.attempt + 1, lease.okey)
            if self._attempts_max and self.is_dead_letter(message_id, waiting.attempt):
                self.backlog.forward(message_id)
            elif self._backoff is not None:
                # A lease that ran out rests from its deadline on, whenever that was noticed.
                waiting.ready_us = min(now_us, lease.deadline_us) + self._backoff.delay_us(lease.attempt)
                rested.append(message_id)
        self._give_back(leases, now_us, ended, counts=True)
        if rested:
            ready_us = [ended[message_id].ready_us for message_id in rested]
            self._ledger.record(oplog.delayed(oplog.Delayed(self.sub_id, rested, ready_us)))

    def _give_back(self, leases: list[Lease], now_us: int, ended: dict[int, Waiting], counts: bool) -> None:
        """`leases` end, and with them those of later messages of their ordering keys."""
        keys, once = self.backlog.keys, self.exactly_once
        behind = keys.failed([lease for lease in leases if lease.okey]) if keys is not None else []
        self._let_go(leases, by_client=True)
        message_ids = [lease.message_id for lease in leases]
        self._ledger.record(oplog.returned(oplog.Returned(self.sub_id, counts, message_ids)))
        if behind:
            self._journal_void(_RESET, behind, now_us)
            self._let_go(behind)
            for lease in behind:
                # With exactly-once no message is delivered again before the deadline that its client knows.
                ended[lease.message_id] = Waiting(
                    lease.generation, lease.attempt, lease.okey, lease.deadline_us if once else 0, once
                )
            message_ids = [lease.message_id for lease in behind]
            self._ledger.record(oplog.reset(oplog.Reset(self.sub_id, once, message_ids)))
        self.backlog.put_back(ended, now_us)

    def _journal_void(self, kind: int, leases: Sequence[Lease], now_us: int) -> None:
        """EXPIRE or RESET: the lease is over, and no client asked for it."""
        topic_id, sub_id = self.topic.topic_id, self.sub_id
        self._ledger.events(
            [
                (now_us, kind, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt,
                 lease.deadline_us, lease.delivered_us, 0, lease.client_id, 0, lease.okey, 0, 0, 0)
                for lease in leases
            ]
        )  # fmt: skip  # short items, many to a line

    # -- dead letters -------------------------------------------------------------------------------------

    def is_dead_letter(self, message_id: int, attempt: int) -> bool:
        """Whether a message whose next attempt is `attempt` goes to the dead letter topic instead."""
        return (
            self._attempts_max > 0
            and self.failures(message_id, attempt) >= self._attempts_max
            and self.dead_letter_topic in self._topics
        )

    def failures(self, message_id: int, attempt: int) -> int:
        """How often it failed, as clients count, when its next attempt is `attempt`."""
        return attempt - 1 - self._offsets.get(message_id, 0)

    def forwardable(self) -> list[Entry]:
        """Messages that leave for the dead letter topic and whose bytes are at hand; others are asked for."""
        return self.backlog.forwardable()

    def forwarded(self, entry: Entry, new_id: int, topic_id: int, now_us: int) -> None:
        """The copy of `entry` is `new_id` on the topic: here it is finished."""
        message_id = entry.message_id
        waiting = self.backlog.waiting[message_id]
        self.backlog.finish_waiting(message_id, now_us)
        self._finish([message_id])
        self._remember(message_id, waiting.generation, Ending.FORWARDED, now_us)
        self._ledger.event(
            Event(
                now_us,
                Kind.DEADLETTER,
                topic_id,
                self.sub_id,
                message_id,
                waiting.generation,
                waiting.attempt - 1,
                ref_ts_us=entry.publish_us,
                okey=entry.okey,
                aux=new_id,
            )
        )

    def not_forwarded(self, now_us: int) -> None:
        """The dead letter topic has gone meanwhile: its messages stay, and are delivered again."""
        self.backlog.not_forwarded(list(self.backlog.forwarding), now_us)

    # -- settings -----------------------------------------------------------------------------------------

    def update(self, resource: pb.Subscription, now_us: int) -> None:
        had_policy = self._attempts_max > 0
        before = self.unacked_kept_us
        self.resource = resource
        self.configure()
        if (self._attempts_max > 0) != had_policy:
            self._count_attempts_anew()
        if self.backlog.forwarding and not self._attempts_max:
            self.not_forwarded(now_us)
        # What is staged was judged by the policies before.
        self.backlog.rest()
        if self.unacked_kept_us != before:
            self.look_at_retention(now_us)
        self.used(now_us)

    def look_at_retention(self, now_us: int) -> None:
        """Soon look which messages are past their retention."""
        self._expire_at_us = now_us

    def _count_attempts_anew(self) -> None:
        """What failed before there was a dead letter policy does not count for it."""
        self._offsets = {}
        if self._attempts_max:
            attempts = [(one.message_id, one.attempt) for one in self.leases]
            attempts += [(message_id, one.attempt) for message_id, one in self.backlog.waiting.items()]
            self._offsets = {message_id: attempt - 1 for message_id, attempt in attempts if attempt > 1}
        self._record_offsets()

    def _record_offsets(self) -> None:
        self._ledger.record(self._offsets_record())

    def _offsets_record(self) -> bytes:
        return oplog.offsets(oplog.Offsets(self.sub_id, list(self._offsets), list(self._offsets.values())))

    # -- retention ----------------------------------------------------------------------------------------

    def _look_for_expired(self, now_us: int) -> None:
        self._expire_at_us = None
        low_id = self.low_water()
        if self._asking or self.detached or low_id > self.topic.last_id:
            return  # the next message that is published sets the timer
        self._asking = True
        self.backlog.ask(Question(self.topic.topic_id, low_id - 1, now_us - self.unacked_kept_us))

    def found(self, read: ReadTimes, found: Found, now_us: int) -> bool:
        """What was published before `read.question.before_us` is past its retention; whether any was."""
        self._asking = False
        self.backlog.is_overdue = False
        if self.detached:
            return False
        cut_us = read.question.before_us
        before_id = max(found.before_id, self.topic.tail.before(cut_us))
        if cut_us > now_us - self.unacked_kept_us:
            self.look_at_retention(now_us)  # it has grown since
            return False
        dropped = bool(before_id) and self._drop_through(before_id, cut_us, now_us)
        times: list[int] = [one.deadline_us for one in self.leases if one.message_id <= before_id]
        if found.next_us:
            times.append(found.next_us + self.unacked_kept_us)
        elif self.topic.last_id > max(before_id, read.question.after_id):
            times.append(now_us + self.unacked_kept_us)
        if times:
            self._expire_at_us = max(min(times), now_us + limits.RETENTION_STEP_US)
        return dropped

    def not_found(self, now_us: int) -> None:
        """Storage could not say: ask again later."""
        self._asking = False
        self.backlog.is_overdue = False
        self._expire_at_us = now_us + limits.RETENTION_STEP_US

    def _drop_through(self, through_id: int, cut_us: int, now_us: int) -> bool:
        gone = {one: waiting for one, waiting in self.backlog.waiting.items() if one <= through_id}
        if not self.backlog.drop_through(through_id, now_us):
            return False
        for message_id in gone:
            self._restored.pop(message_id, None)
        ended = [(message_id, one.generation) for message_id, one in gone.items() if not one.unchecked]
        self._remember_all(ended, Ending.PURGED, now_us)
        if self._offsets:
            self._offsets = {
                one: offset
                for one, offset in self._offsets.items()
                if one > through_id or one in self.leases.by_message
            }
        self._ledger.record(oplog.dropped(oplog.Dropped(self.sub_id, through_id)))
        self._ledger.event(Event(now_us, Kind.DROP, self.topic.topic_id, self.sub_id, aux=cut_us))
        return True

    # -- seek ---------------------------------------------------------------------------------------------

    def seek_to_time(self, boundary_id: int, floor_id: int | None, now_us: int) -> None:
        """Everything up to `boundary_id` becomes acknowledged, and everything above it unacknowledged.

        Finished messages come back if they are above `floor_id`; None: none are kept.
        """
        backlog = self.backlog
        purged = {one for one in (*self.leases.by_message, *backlog.waiting) if one <= boundary_id}
        purged.update([one for one, _ in backlog.parked_messages() if one <= boundary_id])
        kept_after_id = None if floor_id is None else max(boundary_id, floor_id)
        if kept_after_id is not None and kept_after_id < backlog.cursor:
            self._set_past([])
            self._move(kept_after_id, purged, {}, [], True, now_us)
            return
        cursor = max(boundary_id, backlog.cursor)
        past = self._past
        if kept_after_id is not None:
            # What a filter of a snapshot had rejected is kept like the rest.
            past = [(min(through_id, kept_after_id), text) for through_id, text in past]
        past = [(through_id, text) for through_id, text in past if through_id > cursor]
        unrejects = any(through_id > cursor for through_id, _ in self._past) and past != self._past
        self._set_past(past)
        # The cursor may still be on its way up from an earlier seek, with finished messages above it.
        finished = [one for one in backlog.carried if one > cursor and not self._is_unfinished(one)]
        gone = [one for one in finished if kept_after_id is None or one <= kept_after_id]
        self._move(cursor, purged, {}, gone, unrejects or len(gone) < len(finished), now_us)

    def past_for(self, snapshot: Snapshot) -> list[tuple[int, str]]:
        """Filters that a message must have matched to be in the snapshot, beside the own one."""
        return [past for past in snapshot.filters if past[1] != self.resource.filter]

    def sifted(self, snapshot: Snapshot) -> list[int]:
        """Messages that are outstanding or wait here, and that filters of the snapshot may have rejected."""
        through_id = max([through_id for through_id, _ in self.past_for(snapshot)], default=0)
        there = (*self.leases.by_message, *self.backlog.waiting)
        return sorted([one for one in there if snapshot.cursor < one <= through_id])

    def seek_to_snapshot(self, snapshot: Snapshot, rejected: Set[int], now_us: int) -> None:
        """What was unacknowledged when the snapshot was taken, or came later, is what is so now.

        `rejected`: those of `sifted` that did not match.
        """
        backlog = self.backlog
        owed, finished, cursor = snapshot.owed, snapshot.finished, snapshot.cursor
        parked = [one for one, _ in backlog.parked_messages()]
        purged = {
            one
            for one in (*self.leases.by_message, *backlog.waiting, *parked)
            if (one not in owed if one <= cursor else one in finished or one in rejected)
        }
        there = {*self.leases.by_message, *backlog.waiting, *parked}
        restored = {one: okey for one, okey in owed.items() if one not in there}
        self._set_past(self.past_for(snapshot))
        self._move(cursor, purged, restored, sorted(finished), True, now_us)

    def filters_for_snapshot(self, last_id: int) -> list[tuple[int, str]]:
        """Of what is published up to `last_id` only what matches these is owed."""
        own = [(last_id, str(self.resource.filter))] if self.resource.filter else []
        return own + [past for past in self._past if past[0] > self.cursor]

    def _is_unfinished(self, message_id: int) -> bool:
        return message_id in self.leases.by_message or message_id in self.backlog.waiting

    def _set_past(self, past: list[tuple[int, str]]) -> None:
        """Of messages up to an id only those that match a filter of then are owed."""
        self._past = past
        self.backlog.past = compiled_past(past)

    def _carried_to(self, cursor: int, finished: Iterable[int]) -> dict[int, int]:
        """What a cursor that is moved to `cursor` does not take for new, and the life that each is in."""
        there = [*self.leases.by_message, *self.backlog.waiting]
        return {
            one: self._first_generation(one)
            for one in (*finished, *there)
            if one > cursor or one in self.backlog.carried
        }

    def _acked_unsaid(self, finished: Iterable[int]) -> list[tuple[int, int]]:
        """Acked generations that needed no row to say so, until their messages look as if brought back."""
        found: list[tuple[int, int]] = []
        for one in finished:
            if one <= self.cursor or one in self.backlog.carried:
                generation = self.endings.finishing_generation(one, self._first_generation(one))
                if self.endings.of(one, generation) is None:
                    found.append((one, generation))
        return found

    def _move(
        self,
        cursor: int,
        purged: set[int],
        restored: dict[int, int],
        finished: Sequence[int],
        restores: bool,
        now_us: int,
    ) -> None:
        backlog = self.backlog
        parked = [one for one in backlog.parked_messages() if one[0] not in purged and one[0] <= cursor]
        leases = [lease for lease in self.leases if lease.message_id in purged]
        self._let_go(leases)
        ended = [(lease.message_id, lease.generation) for lease in leases]
        for message_id in purged:
            waiting = backlog.waiting.pop(message_id, None)
            if waiting is not None and not waiting.unchecked:
                ended.append((message_id, waiting.generation))
            self._offsets.pop(message_id, None)
            self._restored.pop(message_id, None)
        self._remember_all(sorted(ended), Ending.PURGED, now_us)
        self._remember_all(self._acked_unsaid(finished), Ending.ACKED, now_us)
        for waiting in backlog.waiting.values():
            if not waiting.collateral:
                waiting.ready_us = 0
        carried = self._carried_to(cursor, finished)
        for message_id in restored:
            carried.pop(message_id, None)
        self._noted_id = 0
        if restores:
            # Larger than every generation before, so that no ack id of those is taken for one of now.
            self._generation_max += 1
            backlog.first_generation = self._generation_max
            self._epochs = with_epoch(self._epochs, cursor, backlog.first_generation)
        self._restored.update(dict.fromkeys(restored, backlog.first_generation))
        for message_id, okey in restored.items():
            backlog.waiting[message_id] = Waiting(backlog.first_generation - 1, 1, okey, unchecked=True)
        backlog.carried = carried
        backlog.cursor = cursor
        self._ledger.record(
            oplog.sought(
                oplog.Sought(
                    self.sub_id,
                    cursor,
                    backlog.first_generation,
                    json.dumps(self._past),
                    sorted(purged),
                    list(restored),
                    list(restored.values()),
                    list(carried),
                    list(carried.values()),
                )
            )
        )
        backlog.arrange(parked, now_us)
        self.look_at_retention(now_us)

    # -- deliveries ---------------------------------------------------------------------------------------

    def close_consumer(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more."""
        self.consumers.pop(consumer, None)
        self.ready.pop(consumer, None)
        if self.backlog.keys is not None:
            self.backlog.close(consumer)

    def pump(self, boot: int, now_us: int, commit_us: int) -> list[Delivery]:
        """Deliver what can be delivered to those who are ready.

        Leases run from `now_us`, and `commit_us`, the time that a commit takes at present, comes on top: it
        passes before the response is sent.
        """
        backlog = self.backlog
        backlog.begin(now_us, now_us - self.unacked_kept_us)
        hands: list[Hand[Consumer, Pick]] = []
        while self.ready and backlog.at_hand():
            cursor = backlog.cursor
            hands = deal(backlog, list(self.ready), limits.RESPONSE_BYTES_MAX)
            if hands or backlog.cursor == cursor:
                break
            # All that was at hand waits for its keys now; what follows may go.
            if len(backlog.parked) > limits.PARKED_AT_ONCE_MAX:
                backlog.has_more = True
                break
        if backlog.parked:
            self._record_parked()
            # Who was served has taken its part before the others' turn came again.
            backlog.has_more |= 0 < len(hands) < len(self.ready)
        if backlog.is_overdue:
            self._look_for_expired(now_us)
        deliveries = [self._grant(hand, boot, now_us, commit_us) for hand in hands]
        if backlog.keys is not None:
            backlog.keys.going.clear()
        return deliveries

    def turned_out_unmatched(self, message_id: int) -> None:
        """A message of a snapshot does not match the filter."""
        self._finish([message_id])

    def note_filtered(self, entries: Sequence[Entry]) -> None:
        """Messages of before its time come by after a seek; the journal does not know which match."""
        matches = self.backlog.matches
        if matches is None or not self._ledger.journal:
            return
        entries = [one for one in entries if self._noted_id < one.message_id <= self.start_id]
        if entries:
            self._noted_id = entries[-1].message_id
            now_us = self.backlog.now_us
            rejected = [one for one in entries if not matches(one.data)]
            self._ledger.events(
                [
                    (now_us, _FILTERED, self.topic.topic_id, self.sub_id, one.message_id, 0, 0, 0,
                     one.publish_us, 0, 0, 0, one.okey, 0, 0, 0)
                    for one in rejected
                ]
            )  # fmt: skip  # short items, many to a line

    def _record_parked(self) -> None:
        parked = self.backlog.parked
        message_ids, okeys = [one.message_id for one in parked], [one.okey for one in parked]
        self._ledger.record(oplog.parked(oplog.Parked(self.sub_id, message_ids[-1], message_ids, okeys)))
        parked.clear()

    def _grant(self, hand: Hand[Consumer, Pick], boot: int, now_us: int, commit_us: int) -> Delivery:
        consumer, picks = hand.consumer, hand.items
        sub_id, client_id = self.sub_id, consumer.client_id
        holder = None if consumer.once else consumer
        deadline_us = now_us + commit_us + consumer.ack_deadline_us
        ids = self._ack_ids.make(
            [
                (sub_id, generation, attempt, entry.message_id, now_us, client_id, boot)
                for entry, generation, attempt in picks
            ]
        )
        leases = [
            Lease(
                message_id,
                generation,
                attempt,
                deadline_us,
                now_us,
                len(data),
                okey,
                ack_id,
                holder,
                client_id,
                boot,
            )
            for ((message_id, _, okey, data), generation, attempt), ack_id in zip(picks, ids, strict=True)
        ]
        self.leases.grant(leases)
        consumer.outstanding_messages += len(picks)
        consumer.outstanding_bytes += hand.size
        # One response at a time: the shell says when it can take the next. A Pull takes one in all.
        del self.ready[consumer]
        if consumer.once:
            self.close_consumer(consumer)
        self._ledger.record(self._delivered(leases, deadline_us, now_us, client_id, boot))
        if self._ledger.journal:
            topic_id, stream_id = self.topic.topic_id, consumer.stream_id
            self._ledger.events(
                [
                    (now_us, _DELIVER, topic_id, sub_id, message_id, generation, attempt, deadline_us,
                     publish_us, 0, client_id, stream_id, okey, len(data), 0, 0)
                    for (message_id, publish_us, okey, data), generation, attempt in picks
                ]
            )  # fmt: skip  # short items, many to a line
        attempts = None
        if self._attempts_max:
            attempts = [1 + self.failures(lease.message_id, lease.attempt) for lease in leases]
        return Delivery(consumer, self, leases, [pick.entry.data for pick in picks], now_us, attempts)

    def rest(self) -> None:
        """Let go of the messages at hand; they are fetched again when a consumer comes."""
        self.backlog.rest()

    def drop_all(self, now_us: int) -> None:
        """Detachment: leases are void and every message is gone."""
        leases = list(self.leases)
        if leases:
            self._journal_void(_RESET, leases, now_us)
            self._let_go(leases)
        backlog = self.backlog
        backlog.cursor = max(self.topic.last_id, backlog.cursor)
        backlog.waiting.clear()
        backlog.carried.clear()
        backlog.forwarding.clear()
        self._offsets.clear()
        backlog.arrange([], now_us)
        self._expire_at_us = None
        self._ledger.record(oplog.position(oplog.Position(self.sub_id, backlog.cursor)))
        self._ledger.event(Event(now_us, Kind.DROP, self.topic.topic_id, self.sub_id, aux=now_us + 1))

    # -- what was saved -----------------------------------------------------------------------------------

    def checkpoint(self) -> list[bytes]:
        """Operation records that make this state out of nothing."""
        backlog, sub_id = self.backlog, self.sub_id
        records = [
            oplog.position(oplog.Position(sub_id, backlog.cursor)),
            oplog.epochs(
                oplog.Epochs(
                    sub_id,
                    backlog.first_generation,
                    self._generation_max,
                    json.dumps(self._past),
                    [floor for floor, _ in self._epochs],
                    [generation for _, generation in self._epochs],
                    list(backlog.carried),
                    list(backlog.carried.values()),
                    list(self._restored),
                    list(self._restored.values()),
                )
            ),
            oplog.active(oplog.Active(sub_id, self.active_us)),
        ]
        if backlog.waiting:
            records.append(self._waiting_record())
        parked = backlog.parked_messages()
        if parked:
            message_ids, okeys = zip(*parked, strict=True)
            records.append(oplog.parked(oplog.Parked(sub_id, backlog.cursor, message_ids, okeys)))
        if self._offsets:
            records.append(self._offsets_record())
        together: dict[tuple[int, int, int, int], list[Lease]] = {}
        for lease in self.leases:
            key = (lease.deadline_us, lease.delivered_us, lease.client_id, lease.boot)
            together.setdefault(key, []).append(lease)
        for (deadline_us, delivered_us, client_id, boot), leases in together.items():
            records.append(self._delivered(leases, deadline_us, delivered_us, client_id, boot))
        return records

    def _waiting_record(self) -> bytes:
        waiting = self.backlog.waiting
        columns = [
            (one.generation, one.attempt, one.okey, one.ready_us, one.collateral + 2 * one.unchecked)
            for one in waiting.values()
        ]
        return oplog.waiting(oplog.Waiting(self.sub_id, list(waiting), *zip(*columns, strict=True)))

    def _delivered(
        self, leases: Sequence[Lease], deadline_us: int, delivered_us: int, client_id: int, boot: int
    ) -> bytes:
        generations = [lease.generation for lease in leases]
        self._generation_max = max(self._generation_max, max(generations))
        return oplog.delivered(
            oplog.Delivered(
                self.sub_id,
                deadline_us,
                delivered_us,
                client_id,
                boot,
                self.cursor,
                [lease.message_id for lease in leases],
                [lease.size for lease in leases],
                generations,
                [lease.attempt for lease in leases],
                [lease.okey for lease in leases],
            )
        )

    def restore(self, saved: SavedSubscription, now_us: int) -> None:
        """Take over what the operation log says, which was last written at `now_us`."""
        backlog = self.backlog
        backlog.cursor = saved.cursor
        backlog.waiting.update(saved.waiting)
        backlog.carried = saved.carried
        backlog.first_generation = saved.first_generation
        self._generation_max = saved.generation_max
        self._epochs = saved.epochs
        self._restored = saved.restored
        self._offsets = saved.offsets
        self._set_past([(through_id, text) for through_id, text in json.loads(saved.past)])
        self._active_saved_us = saved.active_us
        # It may have been used until the next time that would have been written down.
        self.active_us = min(now_us, saved.active_us + limits.ACTIVITY_STEP_US) if saved.active_us else now_us
        self._restore_leases(saved)
        for message_id, waiting in backlog.waiting.items():
            if not waiting.ready_us and self.is_dead_letter(message_id, waiting.attempt):
                backlog.forward(message_id)
        backlog.arrange(list(saved.parked.items()), now_us)
        self.look_at_retention(now_us)

    def restore_endings(self, rows: Sequence[EndingRow]) -> None:
        """What was remembered, oldest first."""
        self.endings.extend(rows)
        self._generation_max = max([self._generation_max, *[row.generation for row in rows]])

    def _restore_leases(self, saved: SavedSubscription) -> None:
        leased = list(saved.leased.items())
        ids = self._ack_ids.make(
            [
                (
                    self.sub_id,
                    one.generation,
                    one.attempt,
                    message_id,
                    one.delivered_us,
                    one.client_id,
                    one.boot,
                )
                for message_id, one in leased
            ]
        )
        together: dict[int, list[Lease]] = {}
        for (message_id, one), ack_id in zip(leased, ids, strict=True):
            lease = Lease(
                message_id, one.generation, one.attempt, one.deadline_us, one.delivered_us,
                one.size, one.okey, ack_id, None, one.client_id, one.boot,
            )  # fmt: skip  # short items, many to a line
            together.setdefault(one.deadline_us, []).append(lease)
        for leases in together.values():
            self.leases.grant(leases)

    def adopt(self, old: Subscription, let_go: Iterable[LetGo]) -> None:
        """Take over the open streams of `old`, the same subscription before a commit failed.

        `let_go` is what ended with the commit, or later. A lease counts against its stream as before. One
        whose ack or nack failed with the commit does not: its client was done with it, and a failed ack does
        not take up room again.
        """
        for consumer in old.consumers:
            consumer.subscription = self
            consumer.outstanding_messages = consumer.outstanding_bytes = 0
            self.consumers[consumer] = None
        self.ready = dict(old.ready)
        had = {lease.ack_id: lease for leases, by_client in let_go if not by_client for lease in leases}
        had.update(old.leases.by_ack_id)
        for lease in self.leases:
            before = had.get(lease.ack_id)
            if before is not None and before.holder is not None:
                lease.holder, lease.named = before.holder, before.named
                lease.holder.outstanding_messages += 1
                lease.holder.outstanding_bytes += lease.size
        self.active_us = max(self.active_us, old.active_us)
        if self.backlog.keys is not None:
            # Keys go on with the streams that had them.
            mine = self.leases.by_ack_id
            ended = [lease for leases, _ in let_go for lease in leases]
            owners = {lease.okey: lease.holder for lease in ended if lease.okey and lease.ack_id in mine}
            self.backlog.arrange_as(old.backlog, owners)

    def check_invariants(self) -> None:
        self.leases.check_invariants()
        self.backlog.check_invariants()


_ENDED = {
    Ending.NACKED: Standing.NACKED,
    Ending.ACKED: Standing.ACKED,
    Ending.PURGED: Standing.PURGED,
    Ending.FORWARDED: Standing.FORWARDED,
}


def _compiled(text: str) -> Matches | None:
    return compile_filter(parse_filter(text)) if text else None


def compiled_past(past: Sequence[tuple[int, str]]) -> list[tuple[int, Callable[[bytes], bool]]]:
    """(through_id, filter) with the filters as functions of stored messages."""
    found = [(through_id, _on_data(_compiled(text))) for through_id, text in past]
    return [(through_id, matches) for through_id, matches in found if matches is not None]


def matches_past(past: Sequence[tuple[int, str]]) -> Callable[[Entry], bool]:
    """Whether a message matches all filters that hold for it."""
    found = compiled_past(past)
    return lambda entry: all(
        entry.message_id > through_id or matches(entry.data) for through_id, matches in found
    )


def _on_data(matches: Matches | None) -> Callable[[bytes], bool] | None:
    """The same for a message as it is stored."""
    if matches is None:
        return None
    read = pb.PubsubMessage.FromString
    return lambda data: matches(read(data).attributes)


def _refusals(judged: Iterable[Judged]) -> list[Refusal]:
    return [Refusal(one.ack_id, one.standing, one.token) for one in judged if one.verdict in _REFUSED]
