"""What one subscription still has to deliver: in which order, to whom, and not before when.

Theory of operation. Messages above `cursor` were never delivered, except those that are `carried`. A message
at or below it is outstanding (a lease), waits (in `waiting`, or parked in the queue of its ordering key), or
is finished. So a backlog of any size costs a cursor, and memory follows what is outstanding.

A seek to the past moves the cursor back. What is outstanding or waits above it then is *carried*: the cursor
does not take it for new when it comes by. A carried message that waits goes on once the cursor has reached
it, so that redeliveries keep their place in the order.

Bytes come to a delivery on three ways. `_ahead` holds messages above the cursor, taken from the topic's tail
or read from storage before they are needed; `_staged` holds messages that wait, have no key, and whose bytes
are at hand; `_fetched` those of messages in the queues of keys. What is not in memory is asked for with
`take_reads` and comes back by `loaded`.

A filter is applied when messages come in, whichever way; a rejected one never gets further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from pubsubd.broker.consumer import Consumer
from pubsubd.broker.entry import Entry
from pubsubd.broker.keys import Key, Keys
from pubsubd.broker.questions import Question, Read, ReadMessages, ReadRange, ReadTimes
from pubsubd.broker.waiting import Waiting
from pubsubd.eod.lease import Holder, Lease
from pubsubd.model import limits

if TYPE_CHECKING:
    from pubsubd.broker.subscription import Subscription
    from pubsubd.broker.topic import Topic

Matches = Callable[[bytes], bool]

# How often one step reads on in the tail when nothing of it matches.
_READS_OF_TAIL_MAX = 16


class Pick(NamedTuple):
    """A message on its way to a consumer, with the numbers of the delivery that it will be."""

    entry: Entry
    generation: int
    attempt: int


class _Hand:
    """What one consumer is given at a time, and whether more fits."""

    __slots__ = ("count", "fresh", "full", "picks", "response_bytes", "size", "window_bytes")

    def __init__(self, count: int, window_bytes: int, response_bytes: int, fresh: bool) -> None:
        self.picks: list[Pick] = []
        self.size = 0
        self.full = False
        self.count = count
        self.window_bytes = window_bytes
        self.response_bytes = response_bytes
        self.fresh = fresh

    def takes(self, data_bytes: int) -> bool:
        if (
            len(self.picks) >= self.count
            or self.size >= self.window_bytes
            or (self.size + data_bytes > self.response_bytes and (self.picks or not self.fresh))
        ):
            self.full = True
        return not self.full

    def add(self, pick: Pick) -> None:
        self.picks.append(pick)
        self.size += len(pick.entry.data)


class Backlog:
    def __init__(
        self,
        owner: Subscription,
        topic: Topic,
        cursor: int,
        leases: Mapping[int, Lease],
        ordered: bool,
        matches: Matches | None,
    ) -> None:
        self.topic = topic
        self.cursor = cursor
        self.waiting: dict[int, Waiting] = {}
        self.carried: dict[int, int] = {}  # message_id: first generation of its present life
        self.first_generation = 1  # of messages that were not delivered since the last seek that restored
        self.keys: Keys | None = None
        self.matches = matches
        # After a seek to a snapshot: of messages up to an id only those count that matched a filter of then.
        self.past: list[tuple[int, Matches]] = []
        self.has_more = False  # a step was long enough; the next one goes on
        # Messages published before it are past their retention, and not delivered.
        self.horizon_us = 0
        self.is_overdue = False  # such a message was met
        # Waiting messages that go to the dead letter topic as soon as their bytes are at hand.
        self.forwarding: dict[int, None] = {}
        self.parked: list[Entry] = []  # since this was last looked at
        self._owner = owner
        self._leases = leases
        self._ordered = ordered
        self.now_us = 0
        self._returned: list[int] = []  # heap of waiting messages that are not staged
        self._staged: deque[Entry] = deque()
        self._ahead: deque[Entry] = deque()
        self._read_id = cursor  # the last message put into `_ahead`
        self._fetched: dict[int, Entry] = {}
        self._fetched_bytes = 0
        self._wanted: dict[int, None] = {}  # messages in the queues of keys, or to be forwarded
        self._delayed: list[tuple[int, int, bool]] = []  # (when, message or key, whether it is a key)
        self._reading_range = False
        self._reading_messages: ReadMessages | None = None
        self._reads: list[Read] = []
        self._parked_count = 0
        if ordered:
            self.keys = self._new_keys()

    def _new_keys(self) -> Keys:
        return Keys(self._leases, self.waiting, self._wake_key_at, self._is_open)

    def _is_open(self, consumer: Consumer) -> bool:
        return consumer in self._owner.consumers

    # -- what it is ---------------------------------------------------------------------------------------

    def is_finished(self, message_id: int) -> bool:
        """Whether nothing of a message that was delivered once is owed. Costs a walk over what is parked."""
        if message_id in self._leases or message_id in self.waiting:
            return False
        if message_id > self.cursor:
            return message_id in self.carried
        return message_id not in dict(self.parked_messages())

    @property
    def is_reading(self) -> bool:
        """Whether messages are on their way from storage."""
        return self._reading_range or self._reading_messages is not None

    def low_water(self) -> int:
        """No message with a smaller id will be delivered again. Costs a walk over what is outstanding."""
        lowest = min(self._leases, default=self.cursor + 1)
        lowest = min(lowest, self.cursor + 1, min(self.waiting, default=lowest))
        if self.keys is not None:
            lowest = min([lowest, *[key.queue[0] for key in self.keys if key.queue]])
        return lowest

    def parked_messages(self) -> list[tuple[int, int]]:
        """(message_id, hash of its key) of what was never delivered and is below the cursor."""
        if self.keys is None:
            return []
        waiting = self.waiting
        return [
            (message_id, key.okey)
            for key in self.keys
            if key.queue
            for message_id in key.queue
            if message_id not in waiting and message_id not in self.keys.gone
        ]

    def captured(self) -> tuple[dict[int, int], set[int]]:
        """For a snapshot: what is owed up to the cursor, with hashes of keys, and what above it is not."""
        owed = {lease.message_id: lease.okey for lease in self._leases.values()}
        owed |= {message_id: waiting.okey for message_id, waiting in self.waiting.items()}
        owed |= dict(self.parked_messages())
        finished = {one for one in self.carried if one > self.cursor and one not in owed}
        return {one: okey for one, okey in owed.items() if one <= self.cursor}, finished

    # -- what comes in ------------------------------------------------------------------------------------

    def published(self, entries: Sequence[Entry], matched: Sequence[bool], last_id: int) -> bool:
        """With a filter: messages were published after `last_id`, and which of them match.

        What follows needs no second look at them if the backlog is read up to here. Returns whether the
        cursor has passed all of them.
        """
        end_id = entries[-1].message_id
        if not any(matched) and self.cursor >= last_id and not self._ahead:
            self.cursor = self._read_id = end_id
            return True
        if (
            self._owner.is_attended
            and self._read_id >= last_id
            and not self._reading_range
            and len(self._ahead) < limits.READ_AHEAD_MESSAGES_MIN
        ):
            self._ahead.extend([entry for entry, match in zip(entries, matched, strict=True) if match])
            self._read_id = end_id
        return False

    def _accepted(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        # What is carried has a place of its own, and is looked at there.
        matches, carried = self.matches, self.carried
        if matches is not None:
            entries = [one for one in entries if one.message_id in carried or matches(one.data)]
        for through_id, matched in self.past:
            if entries and entries[0].message_id <= through_id:
                entries = [
                    one
                    for one in entries
                    if one.message_id > through_id or one.message_id in carried or matched(one.data)
                ]
        return entries

    # -- flow.deal.Source ---------------------------------------------------------------------------------

    def begin(self, now_us: int, horizon_us: int) -> None:
        """Messages are dealt at `now_us`."""
        self.now_us = now_us
        self.horizon_us = horizon_us
        self.has_more = False

    def at_hand(self) -> int:
        """How many messages could be delivered now (flow.deal.Source). Fetches what is near."""
        staged, waiting = self._staged, self.waiting
        while staged and staged[0].message_id not in waiting:
            staged.popleft()  # acked late
        if self._returned and not staged:
            self._stage()
        if self._wanted and not self._reading_messages and self._has_room():
            self._read_messages([])
        if len(self._ahead) < limits.READ_AHEAD_MESSAGES_MIN:
            self._read_on()
        count = len(staged) + len(self._ahead)
        if self.keys is not None and self.keys.any_offered:
            count += self.keys.queued
        return count

    def _has_room(self) -> bool:
        """Whether anybody could take something now."""
        return any(consumer.room_messages() for consumer in self._owner.ready)

    def take(
        self, consumer: Consumer, count: int, window_bytes: int, response_bytes: int, fresh: bool
    ) -> tuple[list[Pick], int]:
        """Redeliveries first, since they were published before all that was never delivered."""
        hand = _Hand(count, window_bytes, response_bytes, fresh)
        if self.keys is not None:
            self._take_queued(self.keys, consumer, hand)
        if self._staged:
            self._take_staged(hand)
        if self._ahead and not hand.full:
            if self._ahead[0].publish_us < self.horizon_us:
                self.is_overdue = True
            elif self.keys is not None or self.carried:
                self._take_ahead_carefully(consumer, hand)
            else:
                self._take_ahead(hand)
        return hand.picks, hand.size

    def _take_staged(self, hand: _Hand) -> None:
        staged, waiting = self._staged, self.waiting
        while staged:
            entry = staged[0]
            message_id = entry.message_id
            one = waiting.get(message_id)
            if one is None or self._is_forwarded(message_id, one):
                staged.popleft()  # acked late meanwhile, or its attempts are used up
                continue
            if entry.publish_us < self.horizon_us:
                self.is_overdue = True
                return
            if not hand.takes(len(entry.data)):
                return
            staged.popleft()
            del waiting[message_id]
            hand.add(Pick(entry, one.generation + 1, one.attempt))

    def _take_ahead(self, hand: _Hand) -> None:
        """The hot path: nothing stands between the cursor and the consumer."""
        ahead, picks, generation = self._ahead, hand.picks, self.first_generation
        count, window_bytes, response_bytes, fresh = (
            hand.count, hand.window_bytes, hand.response_bytes, hand.fresh,
        )  # fmt: skip  # short items, many to a line
        size = hand.size
        while ahead and len(picks) < count and size < window_bytes:
            data_bytes = len(ahead[0].data)
            if size + data_bytes > response_bytes and (picks or not fresh):
                break
            entry = ahead.popleft()
            picks.append(Pick(entry, generation, 1))
            size += data_bytes
            self.cursor = entry.message_id
        hand.size = size

    def _take_ahead_carefully(self, consumer: Consumer, hand: _Hand) -> None:
        """As `_take_ahead`, past what is carried, and with respect to ordering keys."""
        ahead, keys, carried, now_us = self._ahead, self.keys, self.carried, self.now_us
        picks, generation = hand.picks, self.first_generation
        room = hand.count - len(picks)
        while ahead:
            entry = ahead[0]
            message_id, _, okey, data = entry
            if carried and message_id in carried:
                ahead.popleft()
                self._emerge(message_id)
                self.cursor = message_id
                continue
            key = None
            if keys is not None and okey:
                key = keys.get(okey)
                if key is not None and (key.queue or not keys.may_go(key, consumer, now_us)):
                    if self._parked_count >= limits.PARKED_MESSAGES_MAX:
                        return
                    ahead.popleft()
                    self._park(keys, key, entry)
                    continue
            # What `_Hand.takes` and `add` do, without the calls.
            size = hand.size + len(data)
            if (
                room <= 0
                or hand.size >= hand.window_bytes
                or (size > hand.response_bytes and (picks or not hand.fresh))
            ):
                hand.full = True
                return
            ahead.popleft()
            if keys is not None and okey:
                keys.given(key or keys.open(okey), consumer, message_id)
            picks.append(Pick(entry, generation, 1))
            hand.size = size
            room -= 1
            self.cursor = message_id

    def _park(self, keys: Keys, key: Key, entry: Entry) -> None:
        if self._fetched_bytes + len(entry.data) <= limits.PARKED_BYTES_MAX:
            self._fetch(entry)
        self._parked_count += 1
        self.parked.append(entry)
        self.cursor = entry.message_id
        keys.put_last(key, entry.message_id, self.now_us)

    def _emerge(self, message_id: int) -> None:
        """The cursor reaches a carried message. If it waits, it goes on like any other below the cursor."""
        waiting = self.waiting.get(message_id)
        if waiting is None:
            if message_id not in self._leases:
                del self.carried[message_id]
            return
        if self.keys is not None and waiting.okey:
            self.keys.put_last(self.keys.open(waiting.okey), message_id, self.now_us)
        elif self.now_us <= waiting.ready_us:
            heappush(self._delayed, (waiting.ready_us, message_id, False))
        else:
            heappush(self._returned, message_id)

    def _take_queued(self, keys: Keys, consumer: Consumer, hand: _Hand) -> None:
        while (
            not hand.full
            and not self.is_overdue
            and len(self._wanted) < limits.READ_MESSAGES_MAX
            and (key := keys.offered_to(consumer)) is not None
        ):
            self._take_from(keys, key, consumer, hand)
            keys.arrange(key, self.now_us)

    def _take_from(self, keys: Keys, key: Key, consumer: Consumer, hand: _Hand) -> None:
        now_us, queue = self.now_us, key.queue
        while queue:
            message_id = queue[0]
            if message_id in keys.gone:
                keys.gone.remove(queue.popleft())
                continue
            waiting = self.waiting.get(message_id)
            if waiting is not None and (
                now_us <= waiting.ready_us or self._is_forwarded(message_id, waiting)
            ):
                return
            entry = self._find(message_id)
            if entry is None:
                self._want(key, keys)
                return
            if entry.publish_us < self.horizon_us:
                self.is_overdue = True
                return
            if waiting is not None and waiting.unchecked and not self._still_matches(entry):
                keys.taken_from(key)
                self._drop_unmatched(message_id)
                continue
            if not hand.takes(len(entry.data)):
                return
            keys.taken_from(key)
            keys.given(key, consumer, message_id)
            self._unfetch(message_id)
            if waiting is None:
                self._parked_count -= 1
                hand.add(Pick(entry, self.first_generation, 1))
            else:
                del self.waiting[message_id]
                if waiting.binds:
                    keys.released(waiting, now_us)
                hand.add(Pick(entry, waiting.generation + 1, waiting.attempt))
            if consumer.serial:
                return

    def _still_matches(self, entry: Entry) -> bool:
        if self.matches is not None and not self.matches(entry.data):
            return False
        return all(entry.message_id > through_id or matched(entry.data) for through_id, matched in self.past)

    def _drop_unmatched(self, message_id: int) -> None:
        del self.waiting[message_id]
        self._unfetch(message_id)
        self._owner.turned_out_unmatched(message_id)

    def _is_forwarded(self, message_id: int, waiting: Waiting) -> bool:
        """Whether the message goes to the dead letter topic instead of to a consumer."""
        if message_id in self.forwarding:
            return True
        if not self._owner.is_dead_letter(message_id, waiting.attempt):
            return False
        self.forward(message_id)
        return True

    # -- bytes --------------------------------------------------------------------------------------------

    def _fetch(self, entry: Entry) -> None:
        if entry.message_id not in self._fetched:
            self._fetched[entry.message_id] = entry
            self._fetched_bytes += len(entry.data)

    def _unfetch(self, message_id: int) -> None:
        entry = self._fetched.pop(message_id, None)
        if entry is not None:
            self._fetched_bytes -= len(entry.data)

    def _find(self, message_id: int) -> Entry | None:
        return self._fetched.get(message_id) or self.topic.tail.find(message_id)

    def _want(self, key: Key, keys: Keys) -> None:
        """Ask for the head of a queue, and for some of what follows it."""
        assert key.queue is not None
        keys.held.add(key.queue[0])
        # The head is needed whatever it costs, what follows it only while there is room.
        count = limits.READ_MESSAGES_MAX if self._fetched_bytes < limits.PARKED_BYTES_MAX else 1
        for message_id in islice(key.queue, count):
            if message_id not in keys.gone and self._find(message_id) is None:
                self._wanted[message_id] = None
        if not self._reading_messages:
            self._read_messages([])

    def _stage(self) -> None:
        """Make the oldest waiting messages deliverable: those in the tail at once, the others by a read."""
        missing: list[int] = []
        while self._returned and len(self._staged) + len(missing) < limits.READ_MESSAGES_MAX:
            entry = None
            if self._returned[0] in self.waiting:  # else it was acked late
                entry = self.topic.tail.find(self._returned[0])
                if entry is None and self._reading_messages:
                    break
                if entry is None:
                    missing.append(self._returned[0])
            heappop(self._returned)
            if entry is not None:
                self._stage_entry(entry)
        if missing:
            self._read_messages(missing)

    def _stage_entry(self, entry: Entry) -> None:
        waiting = self.waiting.get(entry.message_id)
        if waiting is None or self._is_forwarded(entry.message_id, waiting):
            return
        if waiting.unchecked and not self._still_matches(entry):
            self._drop_unmatched(entry.message_id)
        else:
            self._staged.append(entry)

    def _read_messages(self, message_ids: list[int]) -> None:
        """Ask storage for messages without a key, and for those that are wanted for queues."""
        more = list(islice(self._wanted, limits.READ_MESSAGES_MAX))
        read = ReadMessages(self._owner, self.topic.topic_id, sorted({*message_ids, *more}))
        self._reading_messages = read
        self._reads.append(read)

    def _read_on(self) -> None:
        """Fill `_ahead` from the tail, or ask storage for what the tail no longer has."""
        tail = self.topic.tail
        if self._reading_range or self._owner.detached or self._parked_count >= limits.PARKED_MESSAGES_MAX:
            return
        if self._read_id >= tail.floor:
            for _ in range(_READS_OF_TAIL_MAX):
                entries = tail.after(self._read_id, limits.READ_AHEAD_MESSAGES_MIN)
                # Messages that are held here stay in memory when they leave the tail.
                sizes = accumulate([len(entry.data) for entry in entries])
                entries = entries[: bisect_left(list(sizes), limits.READ_BYTES_MAX) + 1]
                if not entries:
                    return
                self._read(entries, entries[-1].message_id)
                if self._ahead:
                    return
            self.has_more = True  # none of so many matched
        else:
            self._reading_range = True
            self._reads.append(ReadRange(self._owner, self.topic.topic_id, self._read_id, tail.floor))

    def _read(self, entries: Sequence[Entry], through_id: int) -> None:
        if self.matches is not None and entries and entries[0].message_id <= self._owner.start_id:
            self._owner.note_filtered(entries)
        accepted = self._accepted(entries)
        self._owner.finished_since_trim += len(entries) - len(accepted)
        self._ahead.extend(accepted)
        self._read_id = through_id
        if not self._ahead:
            # None of them matched, or there was nothing.
            self.cursor = max(self.cursor, through_id)

    def ask(self, question: Question) -> None:
        self._reads.append(ReadTimes(self._owner, question))

    def take_reads(self) -> list[Read]:
        """Reads that are wanted; the answer to each is expected by `loaded`."""
        reads, self._reads = self._reads, []
        return reads

    def loaded(self, read: ReadRange | ReadMessages, entries: Sequence[Entry]) -> None:
        """`entries` ascend, and are the first that were asked for; none means that there are none."""
        if isinstance(read, ReadMessages):
            self._loaded_messages(read, entries)
            return
        self._reading_range = False
        if self._owner.detached or read.after_id != self._read_id:
            return  # nobody waits for it any more
        self._read(entries, entries[-1].message_id if entries else read.through_id)

    def _loaded_messages(self, read: ReadMessages, entries: Sequence[Entry]) -> None:
        if read is not self._reading_messages:
            return  # everything was arranged anew since
        self._reading_messages = None
        keys = self.keys
        for entry in entries:
            message_id = entry.message_id
            if message_id in self._wanted:
                del self._wanted[message_id]
                self._fetch(entry)
                if keys is not None and message_id in keys.held and message_id not in self.forwarding:
                    keys.held.remove(message_id)
                    key = keys.get(entry.okey)
                    if key is not None:
                        keys.arrange(key, self.now_us)
            else:
                self._stage_entry(entry)
        found = {entry.message_id for entry in entries}
        read_through = entries[-1].message_id if entries else read.message_ids[-1]
        for message_id in read.message_ids:
            if message_id > read_through:
                self._again(message_id)
            elif message_id not in found:
                # What storage does not have can never be delivered; asking again would never end.
                assert not self._is_owed(message_id), (self._owner.name, message_id)
                self._wanted.pop(message_id, None)

    def _is_owed(self, message_id: int) -> bool:
        return message_id in self.waiting or (self.keys is not None and message_id in self.keys.held)

    def _again(self, message_id: int) -> None:
        if message_id not in self._wanted and message_id in self.waiting:
            heappush(self._returned, message_id)

    def read_failed(self, read: ReadRange | ReadMessages) -> None:
        """Storage could not answer; the read is asked for again when the subscription is next pumped."""
        if isinstance(read, ReadRange):
            self._reading_range = False
        elif read is self._reading_messages:
            self._reading_messages = None
            for message_id in read.message_ids:
                self._again(message_id)

    def rest(self) -> None:
        """Let go of the messages at hand; they are fetched again when a consumer comes."""
        self._ahead.clear()
        self._read_id = self.cursor
        for entry in self._staged:
            if entry.message_id in self.waiting:
                heappush(self._returned, entry.message_id)
        self._staged.clear()
        self._fetched.clear()
        self._fetched_bytes = 0

    # -- messages that wait -------------------------------------------------------------------------------

    def put_back(self, ended: Mapping[int, Waiting], now_us: int) -> None:
        """Leases ended unacked: their messages wait, each for its moment and in its place."""
        self.now_us = now_us
        self.waiting.update(ended)
        by_key: dict[int, list[int]] = {}
        for message_id, waiting in ended.items():
            if waiting.collateral and self.keys is not None:
                self.keys.collateral(self.keys.open(waiting.okey), waiting, now_us)
            if message_id > self.cursor:
                continue  # carried: its turn comes with the cursor
            if self.keys is not None and waiting.okey:
                by_key.setdefault(waiting.okey, []).append(message_id)
            elif message_id in self.forwarding:
                pass
            elif now_us <= waiting.ready_us:
                heappush(self._delayed, (waiting.ready_us, message_id, False))
            else:
                heappush(self._returned, message_id)
        for okey, message_ids in by_key.items():
            assert self.keys is not None
            self.keys.put_back(self.keys.open(okey), sorted(message_ids), now_us)
        if self.carried and self.keys is not None:
            # Of a key whose carried message failed nothing may be left for now.
            for okey in {waiting.okey for waiting in ended.values()} - by_key.keys():
                key = self.keys.get(okey)
                if key is not None:
                    self.keys.arrange(key, now_us)

    def release(self, message_ids: Iterable[int], now_us: int) -> None:
        """Collateral messages were nacked: they wait for their predecessors only."""
        for message_id in message_ids:
            waiting = self.waiting[message_id]
            waiting.collateral, waiting.ready_us = False, 0
            if self.keys is not None and waiting.okey:
                self.keys.released(waiting, now_us)
            else:
                heappush(self._returned, message_id)

    def finish_waiting(self, message_id: int, now_us: int) -> bool:
        """A message that waits is finished: acked late, or forwarded. False if it does not wait."""
        waiting = self.waiting.pop(message_id, None)
        if waiting is None:
            return False
        self.forwarding.pop(message_id, None)
        self._wanted.pop(message_id, None)
        self._unfetch(message_id)
        if self.keys is not None:
            self.keys.held.discard(message_id)
            if waiting.okey and message_id <= self.cursor:
                self.keys.removed(waiting.okey, message_id, now_us)
        return True

    def forward(self, message_id: int) -> None:
        self.forwarding[message_id] = None
        if self.keys is not None:
            self.keys.held.add(message_id)

    def forwardable(self) -> list[Entry]:
        """Messages to forward whose bytes are at hand; the others are asked for."""
        found: list[Entry] = []
        for message_id in list(self.forwarding):
            entry = self._find(message_id)
            if entry is not None:
                found.append(entry)
            else:
                self._wanted[message_id] = None
        if self._wanted and not self._reading_messages:
            self._read_messages([])
        return found

    def not_forwarded(self, message_ids: Iterable[int], now_us: int) -> None:
        """The dead letter topic has gone: back to normal redelivery."""
        for message_id in message_ids:
            del self.forwarding[message_id]
            waiting = self.waiting[message_id]
            if self.keys is not None:
                self.keys.held.discard(message_id)
            if self.keys is not None and waiting.okey:
                key = self.keys.get(waiting.okey)
                if key is not None:
                    self.keys.arrange(key, now_us)
            elif now_us <= waiting.ready_us:
                heappush(self._delayed, (waiting.ready_us, message_id, False))
            else:
                heappush(self._returned, message_id)

    def _wake_key_at(self, at_us: int, okey: int) -> None:
        heappush(self._delayed, (at_us, okey, True))

    def next_ready_us(self) -> int | None:
        """When something that waits for a moment may go on; perhaps earlier."""
        return self._delayed[0][0] if self._delayed else None

    def wake(self, now_us: int) -> bool:
        """Let go on what waited for a moment before `now_us`; whether there was anything."""
        self.now_us = now_us
        delayed = self._delayed
        any_woken = False
        while delayed and delayed[0][0] < now_us:
            ready_us, what, is_key = heappop(delayed)
            if is_key and self.keys is not None:
                self.keys.woken(what, now_us)
                any_woken = True
            elif not is_key:
                waiting = self.waiting.get(what)
                if waiting is not None and waiting.ready_us == ready_us and what <= self.cursor:
                    heappush(self._returned, what)
                    any_woken = True
        return any_woken

    # -- moving the cursor by other means than deliveries -------------------------------------------------

    def drop_through(self, through_id: int, now_us: int) -> bool:
        """Everything up to `through_id` that is not leased is gone; whether there was anything."""
        gone = [message_id for message_id in self.waiting if message_id <= through_id]
        for message_id in gone:
            del self.waiting[message_id]
            self.forwarding.pop(message_id, None)
        if self.keys is not None:
            queued = self.keys.keep_queued(lambda message_id: message_id > through_id, now_us)
            self._parked_count -= len(queued) - len(set(queued) & set(gone))
            gone += queued
            self.keys.held.difference_update(gone)
        for message_id in gone:
            self._wanted.pop(message_id, None)
            self._unfetch(message_id)
        dropped = bool(gone) or self.cursor < through_id
        if self.cursor < through_id:
            self.cursor = through_id
            while self._ahead and self._ahead[0].message_id <= through_id:
                self._ahead.popleft()
            self._read_id = max(self._read_id, through_id)
        self.is_overdue = False
        return dropped

    def arrange(self, parked: Iterable[tuple[int, int]], now_us: int) -> None:
        """Make order anew after the cursor moved, or after a restart; `parked` as `parked_messages` gives.

        Everything at hand is let go.
        """
        self.now_us = now_us
        self._ahead.clear()
        self._staged.clear()
        self._fetched.clear()
        self._fetched_bytes = 0
        self._wanted.clear()
        self._reading_messages = None
        self._read_id = self.cursor
        self._returned = []
        self._delayed = []
        self.parked.clear()
        self.is_overdue = False
        self.forwarding = {one: None for one in self.forwarding if one in self.waiting}
        for message_id, waiting in self.waiting.items():
            keyed = self.keys is not None and waiting.okey
            if keyed or message_id > self.cursor or message_id in self.forwarding:
                continue
            if now_us <= waiting.ready_us:
                self._delayed.append((waiting.ready_us, message_id, False))
            else:
                self._returned.append(message_id)
        heapify(self._returned)
        heapify(self._delayed)
        if self.keys is not None:
            self._arrange_keys(self.keys, parked, now_us)

    def _arrange_keys(self, before: Keys, parked: Iterable[tuple[int, int]], now_us: int) -> None:
        keys = self.keys = self._new_keys()
        keys.held.update(self.forwarding)
        queued: dict[int, list[int]] = {}
        for message_id, okey in parked:
            queued.setdefault(okey, []).append(message_id)
        self._parked_count = sum(map(len, queued.values()))
        collateral: dict[int, list[Waiting]] = {}
        for message_id, waiting in self.waiting.items():
            if waiting.okey and message_id <= self.cursor:
                queued.setdefault(waiting.okey, []).append(message_id)
            if waiting.collateral:
                collateral.setdefault(waiting.okey, []).append(waiting)
        outstanding: dict[int, list[Lease]] = {}
        for lease in self._leases.values():
            if lease.okey:
                outstanding.setdefault(lease.okey, []).append(lease)
        for okey, leases in outstanding.items():
            key = keys.open(okey)
            key.leased = sorted([lease.message_id for lease in leases])
            # Earlier messages are above the cursor, or it has passed them and they wait.
            key.sealed = key.leased[-1] > min([self.cursor, *queued.get(okey, ())])
        for okey in {**outstanding, **queued, **collateral}:
            key, old = keys.open(okey), before.get(okey)
            if old is not None:
                key.owner, key.owner_name = old.owner, old.owner_name
        for okey in {**queued, **collateral}:
            key = keys.open(okey)
            for waiting in collateral.get(okey, ()):
                keys.collateral(key, waiting, now_us)
            if okey in queued:
                keys.put_back(key, sorted(queued[okey]), now_us)
            else:
                keys.arrange(key, now_us)  # a Pull's collateral above the cursor binds nobody

    def close(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more, so its keys go to others when nothing of them is outstanding."""
        assert self.keys is not None
        self.keys.closed(consumer, self.now_us)

    def arrange_as(self, old: Backlog, had: Mapping[int, Holder | None]) -> None:
        """Keys belong to those who had them in `old`, the same backlog before a commit failed.

        By then some may have gone over to others; `had` tells whose those were.
        """
        parked = self.parked_messages()
        if old.keys is not None:
            self.keys = old.keys
            for okey, holder in had.items():
                self.keys.open(okey).had_by(holder if isinstance(holder, Consumer) else None)
        self.arrange(parked, self.now_us)

    def check_invariants(self) -> None:
        waiting = self.waiting
        assert not waiting.keys() & self._leases.keys()
        assert all(one <= self.cursor or one in self.carried for one in (*waiting, *self._leases))
        staged = {entry.message_id for entry in self._staged}
        delayed = {what for _, what, is_key in self._delayed if not is_key}
        queued: set[int] = set()
        if self.keys is not None:
            self.keys.check_invariants()
            queued = {one for key in self.keys for one in key.queue or ()} - self.keys.gone
            assert len(queued - waiting.keys()) == self._parked_count
            assert self.forwarding.keys() <= self.keys.held
        placed = staged | delayed | queued | set(self._returned) | self.forwarding.keys()
        if self._reading_messages is not None:
            placed |= set(self._reading_messages.message_ids)
        # Or nothing would ever deliver it.
        assert all(one in placed or one > self.cursor for one in waiting), waiting.keys() - placed
        assert self.forwarding.keys() <= waiting.keys()
        ahead = [entry.message_id for entry in self._ahead]
        assert ahead == sorted(set(ahead))
        assert not ahead or (self.cursor < ahead[0] and ahead[-1] <= self._read_id)
        assert self._read_id >= self.cursor
