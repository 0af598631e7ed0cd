"""One subscription: a cursor into its topic, and what is not plain below it.

Theory of operation. Messages above `cursor` were never delivered. A message at or below it is exactly one of:
outstanding (in `leases`), waiting for redelivery (in `_waiting`), or finished. So a backlog of any size costs
a cursor, and memory follows what is outstanding.

Bytes come to a delivery on two ways. `_ahead` holds messages above the cursor, taken from the topic's tail or
read from storage before they are needed; `_staged` holds messages that wait for redelivery and whose bytes
are at hand. What is not in memory is asked for with `take_reads` and comes back by `loaded`.

What an ack id is worth is decided by the tables of `eod.machine`; who gets what by `flow.deal`. All effects
are written to the ledger. Every method is one step; times are microseconds and never go back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pubsubd.broker import oplog
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, Ledger, SubscriptionRow
from pubsubd.broker.entry import Entry
from pubsubd.eod.ack_id import AckIds, AckToken
from pubsubd.eod.endings import Ending, EndingRow, Endings
from pubsubd.eod.lease import Lease, LeaseTable
from pubsubd.eod.machine import VERDICTS, Operation, Standing, Verdict
from pubsubd.flow.deal import Hand, deal
from pubsubd.model import errors, limits
from pubsubd.model.events import Event, Kind, Result
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.broker.saved import SavedSubscription
    from pubsubd.broker.topic import Topic

_DELIVER, _EXTEND, _NACK, _ACK, _EXPIRE, _RESET = (
    int(kind) for kind in (Kind.DELIVER, Kind.EXTEND, Kind.NACK, Kind.ACK, Kind.EXPIRE, Kind.RESET)
)
_RESULTS = {
    Verdict.APPLY: Result.OK,
    Verdict.APPLY_LATE: Result.OK,
    Verdict.NOOP: Result.NOOP,
    Verdict.PERMANENT: Result.PERMANENT,
}


class Pick(NamedTuple):
    """A message on its way to a consumer, with the numbers of the delivery that it will be."""

    entry: Entry
    generation: int
    attempt: int


class Refusal(NamedTuple):
    """An ack id that was answered PERMANENT_FAILURE_INVALID_ACK_ID, and why."""

    ack_id: str
    standing: Standing
    token: AckToken | None


class ReadRange(NamedTuple):
    """Messages of a topic after `after_id` and up to `through_id`, as many as fit into one read."""

    subscription: Subscription
    topic_id: int
    after_id: int
    through_id: int


class ReadMessages(NamedTuple):
    subscription: Subscription
    topic_id: int
    message_ids: list[int]  # ascending


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
    ) -> None:
        self.sub_id = sub_id
        self.topic = topic
        self.resource = resource
        self.start_id = start_id
        self.cursor = start_id
        self.owed = 0  # messages not finished
        self.leases = LeaseTable()
        self.endings = Endings()
        self.consumers: dict[Consumer, None] = {}
        self.ready: dict[Consumer, None] = {}  # those that can take a delivery now, if their window allows
        self.timer_us: int | None = None  # when the broker will next look at the leases
        self._ledger = ledger
        self._ack_ids = ack_ids
        self._waiting: dict[int, tuple[int, int]] = {}  # message_id: (last generation, next attempt)
        self._returned: list[int] = []  # heap of waiting messages that are not staged
        self._staged: deque[Pick] = deque()
        self._ahead: deque[Entry] = deque()
        self._read_id = start_id  # the last message put into `_ahead`
        self._reading_range = False
        self._reading_messages = False
        self._reads: list[ReadRange | ReadMessages] = []
        self._turn = 0
        self.finished_since_trim = 0

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        name: str = self.resource.name
        return name

    @property
    def exactly_once(self) -> bool:
        return bool(self.resource.enable_exactly_once_delivery)

    @property
    def detached(self) -> bool:
        return bool(self.resource.detached)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_reading(self) -> bool:
        """Whether messages are on their way from storage."""
        return self._reading_range or self._reading_messages

    @property
    def unfinished_count(self) -> int:
        """Messages that were delivered and are not finished."""
        return len(self.leases) + len(self._waiting)

    def row(self) -> SubscriptionRow:
        data: bytes = self.resource.SerializeToString()
        return SubscriptionRow(self.sub_id, self.topic.topic_id, self.name, self.start_id, data)

    def low_water(self) -> int:
        """No message with a smaller id will be delivered again. Costs a walk over what is outstanding."""
        lowest = min(self.leases.by_message, default=self.cursor + 1)
        return min(lowest, min(self._waiting, default=lowest))

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
        if leases:
            self._ack(leases, call_id, now_us)
        judged: list[Judged] = []
        for one in self._judge(Operation.ACK, others):
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
        judged = self._judge(Operation.EXTEND if seconds else Operation.NACK, others)
        if leases and seconds:
            self._extend(leases, seconds, call_id, now_us)
        elif leases:
            self._nack(leases, call_id, now_us)
        self._journal_judged(_EXTEND if seconds else _NACK, judged, seconds, call_id, now_us)
        return _refusals(judged)

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

    def standing(self, token: AckToken | None) -> Standing:
        """What has become of the generation that an id names, whose lease does not run."""
        if token is None or not self._is_ours(token):
            return Standing.UNKNOWN
        if self.detached:
            return Standing.DETACHED
        message_id, generation = token.message_id, token.generation
        ending = self.endings.of(message_id, generation)
        if ending is Ending.NACKED:
            return Standing.NACKED
        if message_id in self.leases.by_message or message_id in self._waiting:
            return Standing.LAPSED
        if not self.start_id < message_id <= self.cursor:
            return Standing.UNKNOWN
        if generation == self.endings.acked_generation(message_id):
            return Standing.ACKED
        return Standing.OVERTAKEN

    def _is_ours(self, token: AckToken | None) -> bool:
        return token is not None and token.sub_id == self.sub_id

    def _judge(self, operation: Operation, ack_ids: Sequence[str]) -> list[Judged]:
        verdicts = VERDICTS[self.exactly_once]
        judged: list[Judged] = []
        for ack_id in ack_ids:
            token = self._ack_ids.read(ack_id)
            standing = self.standing(token)
            known = token if standing is not Standing.UNKNOWN else None
            judged.append(Judged(ack_id, known, standing, verdicts[operation, standing]))
        return judged

    def _ack(self, leases: list[Lease], call_id: int, now_us: int) -> None:
        self.leases.end(leases)
        self._finish([lease.message_id for lease in leases])
        for lease in leases:
            if lease.generation > 1:
                self._remember(lease.message_id, lease.generation, Ending.ACKED, now_us)
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _ACK, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt, 0,
                     lease.delivered_us, 0, lease.client_id, call_id, lease.okey, 0, 0, 0)
                    for lease in leases
                ]
            )  # fmt: skip

    def _ack_late(self, token: AckToken | None, now_us: int) -> bool:
        """Without exactly-once: an ack after the lease spares a redelivery, even one that is under way.

        False if the same request has acked the message by another generation.
        """
        assert token is not None
        message_id, generation = token.message_id, token.generation
        lease = self.leases.by_message.get(message_id)
        if lease is not None:
            self.leases.end([lease])
        elif self._waiting.pop(message_id, None) is None:
            return False
        self._finish([message_id])
        if generation > 1 or self.endings.of(message_id, generation) is not None:
            self._remember(message_id, generation, Ending.ACKED, now_us)
        return True

    def _finish(self, message_ids: list[int]) -> None:
        self._ledger.record(oplog.finished(oplog.Finished(self.sub_id, message_ids)))
        self.owed -= len(message_ids)
        self.finished_since_trim += len(message_ids)

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
            )  # fmt: skip

    def _nack(self, leases: list[Lease], call_id: int, now_us: int) -> None:
        for lease in leases:
            self._remember(lease.message_id, lease.generation, Ending.NACKED, now_us)
        self._return(leases, counts=True)
        if self._ledger.journal:
            topic_id, sub_id = self.topic.topic_id, self.sub_id
            self._ledger.events(
                [
                    (now_us, _NACK, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt, 0,
                     lease.delivered_us, 0, lease.client_id, call_id, lease.okey, 0, 0, 0)
                    for lease in leases
                ]
            )  # fmt: skip

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
        self.endings.add(message_id, generation, ending, now_us)
        self._ledger.now.endings.append(EndingRow(self.sub_id, message_id, generation, int(ending), now_us))

    # -- leases that end by themselves --------------------------------------------------------------------

    def lapse(self, now_us: int) -> bool:
        """End the leases whose deadline is over; whether there were any."""
        leases = self.leases.lapsed(now_us)
        if leases:
            self._journal_void(_EXPIRE, leases, now_us)
            self._return(leases, counts=True)
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
            self._journal_void(_RESET, leases, now_us)
            self._return(leases, counts=False)

    def _return(self, leases: list[Lease], counts: bool) -> None:
        self.leases.end(leases)
        waiting, returned = self._waiting, self._returned
        for lease in leases:
            waiting[lease.message_id] = (lease.generation, lease.attempt + counts)
            heappush(returned, lease.message_id)
        message_ids = [lease.message_id for lease in leases]
        self._ledger.record(oplog.returned(oplog.Returned(self.sub_id, counts, message_ids)))

    def _journal_void(self, kind: int, leases: Sequence[Lease], now_us: int) -> None:
        """EXPIRE or RESET: the lease is over, and no client asked for it."""
        topic_id, sub_id = self.topic.topic_id, self.sub_id
        self._ledger.events(
            [
                (now_us, kind, topic_id, sub_id, lease.message_id, lease.generation, lease.attempt,
                 lease.deadline_us, lease.delivered_us, 0, lease.client_id, 0, lease.okey, 0, 0, 0)
                for lease in leases
            ]
        )  # fmt: skip

    # -- deliveries ---------------------------------------------------------------------------------------

    def pump(self, boot: int, now_us: int, commit_us: int) -> list[Delivery]:
        """Deliver what can be delivered to those who are ready.

        Leases run from `now_us`, and `commit_us`, the time that a commit takes at present, comes on top: it
        passes before the response is sent.
        """
        if not self.ready or not self.at_hand():
            return []
        consumers = list(self.ready)
        hands = deal(self, consumers, self._turn, limits.RESPONSE_BYTES_MAX)
        self._turn += 1
        return [self._grant(hand, boot, now_us, commit_us) for hand in hands]

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
            self.consumers.pop(consumer, None)
        self._ledger.record(self._delivered(leases, deadline_us, now_us, client_id, boot))
        if self._ledger.journal:
            topic_id, stream_id = self.topic.topic_id, consumer.stream_id
            self._ledger.events(
                [
                    (now_us, _DELIVER, topic_id, sub_id, message_id, generation, attempt, deadline_us,
                     publish_us, 0, client_id, stream_id, okey, len(data), 0, 0)
                    for (message_id, publish_us, okey, data), generation, attempt in picks
                ]
            )  # fmt: skip
        return Delivery(consumer, self, leases, [pick.entry.data for pick in picks], now_us)

    def at_hand(self) -> int:
        """How many messages could be delivered now (flow.deal.Source). Fetches what is near."""
        while self._staged and self._staged[0].entry.message_id not in self._waiting:
            self._staged.popleft()  # acked late
        if self._returned and not self._staged:
            self._stage()
        if len(self._ahead) < limits.READ_AHEAD_MESSAGES_MIN:
            self._read_on()
        return len(self._staged) + len(self._ahead)

    def take(self, count: int, window_bytes: int, response_bytes: int, fresh: bool) -> tuple[list[Pick], int]:
        """Redeliveries first, since they were published before all that was never delivered."""
        picks: list[Pick] = []
        size = 0
        staged, ahead, waiting = self._staged, self._ahead, self._waiting
        while staged and len(picks) < count and size < window_bytes:
            pick = staged[0]
            data_bytes = len(pick.entry.data)
            if size + data_bytes > response_bytes and (picks or not fresh):
                return picks, size
            staged.popleft()
            if waiting.pop(pick.entry.message_id, None) is not None:  # not acked late meanwhile
                picks.append(pick)
                size += data_bytes
        while ahead and len(picks) < count and size < window_bytes:
            data_bytes = len(ahead[0].data)
            if size + data_bytes > response_bytes and (picks or not fresh):
                break
            entry = ahead.popleft()
            picks.append(Pick(entry, 1, 1))
            size += data_bytes
            self.cursor = entry.message_id
        return picks, size

    def _stage(self) -> None:
        """Make the oldest waiting messages deliverable: those in the tail at once, the others by a read."""
        missing: list[int] = []
        while self._returned and len(self._staged) + len(missing) < limits.READ_MESSAGES_MAX:
            entry = None
            if self._returned[0] in self._waiting:  # else it was acked late
                entry = self.topic.tail.find(self._returned[0])
                if entry is None and self._reading_messages:
                    break
                if entry is None:
                    missing.append(self._returned[0])
            heappop(self._returned)
            if entry is not None:
                self._stage_entry(entry)
        if missing:
            self._reading_messages = True
            self._reads.append(ReadMessages(self, self.topic.topic_id, missing))

    def _stage_entry(self, entry: Entry) -> None:
        standing = self._waiting.get(entry.message_id)
        if standing is not None:
            generation, attempt = standing
            self._staged.append(Pick(entry, generation + 1, attempt))

    def _read_on(self) -> None:
        """Fill `_ahead` from the tail, or ask storage for what the tail no longer has."""
        tail = self.topic.tail
        if self._reading_range or self.detached:
            return
        if self._read_id >= tail.floor:
            entries = tail.after(self._read_id, limits.READ_AHEAD_MESSAGES_MIN)
            # Messages that are held here stay in memory when they leave the tail.
            sizes = accumulate([len(entry.data) for entry in entries])
            entries = entries[: bisect_left(list(sizes), limits.READ_BYTES_MAX) + 1]
            if entries:
                self._ahead.extend(entries)
                self._read_id = entries[-1].message_id
        else:
            self._reading_range = True
            self._reads.append(ReadRange(self, self.topic.topic_id, self._read_id, tail.floor))

    def take_reads(self) -> list[ReadRange | ReadMessages]:
        """Reads that are wanted; the answer to each is expected by `loaded`."""
        reads, self._reads = self._reads, []
        return reads

    def loaded(self, read: ReadRange | ReadMessages, entries: Sequence[Entry]) -> None:
        """`entries` ascend, and are the first that were asked for; none means that there are none."""
        if isinstance(read, ReadMessages):
            self._reading_messages = False
            for entry in entries:
                self._stage_entry(entry)
            found = {entry.message_id for entry in entries}
            read_through = entries[-1].message_id if entries else read.message_ids[-1]
            for message_id in read.message_ids:
                if message_id > read_through:
                    heappush(self._returned, message_id)
                else:
                    # What storage does not have can never be delivered; asking again would never end.
                    assert message_id in found or message_id not in self._waiting, (self.name, message_id)
            return
        self._reading_range = False
        if self.detached or read.after_id != self._read_id:
            return  # nobody waits for it any more
        self._ahead.extend(entries)
        self._read_id = entries[-1].message_id if entries else read.through_id

    def read_failed(self, read: ReadRange | ReadMessages) -> None:
        """Storage could not answer; the read is asked for again when the subscription is next pumped."""
        if isinstance(read, ReadMessages):
            self._reading_messages = False
            for message_id in read.message_ids:
                heappush(self._returned, message_id)
        else:
            self._reading_range = False

    def rest(self) -> None:
        """Let go of the messages at hand; they are fetched again when a consumer comes."""
        self._ahead.clear()
        self._read_id = self.cursor
        for pick in self._staged:
            if pick.entry.message_id in self._waiting:
                heappush(self._returned, pick.entry.message_id)
        self._staged.clear()

    def drop_all(self, now_us: int) -> None:
        """Detachment: leases are void and every message is gone."""
        leases = list(self.leases)
        if leases:
            self._journal_void(_RESET, leases, now_us)
            self.leases.end(leases)
        self.cursor = self._read_id = self.topic.last_id
        self.owed = 0
        self._waiting.clear()
        self._returned.clear()
        self._staged.clear()
        self._ahead.clear()
        self._ledger.record(oplog.position(oplog.Position(self.sub_id, self.cursor, 0)))
        self._ledger.event(Event(now_us, Kind.DROP, self.topic.topic_id, self.sub_id, aux=now_us + 1))

    # -- what was saved -----------------------------------------------------------------------------------

    def checkpoint(self) -> list[bytes]:
        """Operation records that make this state out of nothing."""
        records = [oplog.position(oplog.Position(self.sub_id, self.cursor, self.owed))]
        if self._waiting:
            generations, attempts = zip(*self._waiting.values(), strict=True)
            waiting = oplog.Waiting(self.sub_id, list(self._waiting), generations, attempts)
            records.append(oplog.waiting(waiting))
        together: dict[tuple[int, int, int, int], list[Lease]] = {}
        for lease in self.leases:
            key = (lease.deadline_us, lease.delivered_us, lease.client_id, lease.boot)
            together.setdefault(key, []).append(lease)
        for (deadline_us, delivered_us, client_id, boot), leases in together.items():
            records.append(self._delivered(leases, deadline_us, delivered_us, client_id, boot))
        return records

    def _delivered(
        self, leases: Sequence[Lease], deadline_us: int, delivered_us: int, client_id: int, boot: int
    ) -> bytes:
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
                [lease.generation for lease in leases],
                [lease.attempt for lease in leases],
                [lease.okey for lease in leases],
            )
        )

    def restore(self, saved: SavedSubscription) -> None:
        """Take over what the operation log says."""
        self.cursor = self._read_id = saved.cursor
        self.owed = saved.owed
        self._waiting = saved.waiting
        self._returned = sorted(saved.waiting)  # a sorted list is a heap
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
            )  # fmt: skip
            together.setdefault(one.deadline_us, []).append(lease)
        for leases in together.values():
            self.leases.grant(leases)

    def adopt(self, old: Subscription) -> None:
        """Take over the open streams of `old`, the same subscription before a commit failed.

        A lease counts against its stream as before. One whose ack or nack failed with the commit does not:
        its client was done with it, and a failed ack does not take up room again.
        """
        for consumer in old.consumers:
            consumer.subscription = self
            consumer.outstanding_messages = consumer.outstanding_bytes = 0
            self.consumers[consumer] = None
        self.ready = old.ready
        find = old.leases.by_ack_id.get
        for lease in self.leases:
            before = find(lease.ack_id)
            if before is not None and before.holder is not None:
                lease.holder, lease.named = before.holder, before.named
                lease.holder.outstanding_messages += 1
                lease.holder.outstanding_bytes += lease.size


def _refusals(judged: Iterable[Judged]) -> list[Refusal]:
    return [
        Refusal(one.ack_id, one.standing, one.token) for one in judged if one.verdict is Verdict.PERMANENT
    ]
