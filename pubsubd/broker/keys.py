"""Ordering keys of one subscription: who may get the next message of a key, and in which order.

Theory of operation. A key has state only while something of it is outstanding or waits. `leased` are its
outstanding messages, ascending; `queue` are those below the cursor that wait, ascending: redeliveries, and
messages that were *parked* because the cursor met them while their key was held. The head of the queue is the
only one that can go next.

A key is *busy* while a message of it is leased, or collateral (its lease is void and its deadline not over).
A busy key goes on only with the stream that has it, or, once that stream has ended, with one of the same
client_id; a Pull gets all it can in one response and nothing more until no lease of that is left, and a push
endpoint one message at a time. So no two clients ever work on one key at once. A key that is not busy is
free: whoever asks first gets it.

Keys from whose queue something can be taken are *offered*, by who may take it, so that a consumer looks at no
key in vain and a held key costs others nothing.

Sources: Subscription.enable_message_ordering, https://cloud.google.com/pubsub/docs/ordering. That a key is
bound to its stream strictly is our choice; the service documents it as best effort.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from pubsubd.broker.consumer import Consumer
from pubsubd.broker.waiting import Waiting
from pubsubd.eod.lease import Lease

# Ended messages at the front of `leased` are cut off when there are this many.
_COMPACT_MIN = 64


class Key:
    __slots__ = (
        "at",
        "collateral",
        "leased",
        "okey",
        "owner",
        "owner_name",
        "place",
        "queue",
        "sealed",
        "until_us",
        "wake_us",
    )

    def __init__(self, okey: int) -> None:
        self.okey = okey
        self.leased: list[int] = []
        self.at = 0  # what stands before it in `leased` has ended
        self.queue: deque[int] | None = None  # most keys never need one
        self.owner: Consumer | None = None
        self.owner_name = ""
        self.collateral = 0  # how many of its messages are
        self.until_us = 0  # the last of their deadlines
        # A seek brought earlier messages back: what is outstanding ends before anything else is delivered.
        self.sealed = False
        self.place: dict[Key, None] | None = None
        self.wake_us = 0  # a call back is asked for

    def had_by(self, consumer: Consumer | None) -> None:
        self.owner = consumer
        self.owner_name = "" if consumer is None or consumer.once else consumer.name


class Keys:
    """`leases` and `waiting` belong to the subscription; `wake` asks for a call of `woken` at a time."""

    def __init__(
        self,
        leases: Mapping[int, Lease],
        waiting: Mapping[int, Waiting],
        wake: Callable[[int, int], None],
        is_open: Callable[[Consumer], bool],
    ) -> None:
        self.queued = 0  # messages in queues
        self.held: set[int] = set()  # messages that something else is done with before they can go
        self.gone: set[int] = set()  # in queues still, and finished
        self.going: set[int] = set()  # given to somebody, and their leases are about to be granted
        self._leases = leases
        self._waiting = waiting
        self._wake = wake
        self._is_open = is_open
        self._keys: dict[int, Key] = {}
        self._free: dict[Key, None] = {}
        self._owned: dict[Consumer, dict[Key, None]] = {}
        self._named: dict[str, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def get(self, okey: int) -> Key | None:
        return self._keys.get(okey)

    def open(self, okey: int) -> Key:
        key = self._keys.get(okey)
        if key is None:
            key = self._keys[okey] = Key(okey)
        return key

    # -- who may get what ----------------------------------------------------------------------------------

    def first(self, key: Key) -> int:
        """The oldest outstanding message of `key`; 0 without one."""
        leased, leases, going, at = key.leased, self._leases, self.going, key.at
        end = len(leased)
        while at < end and leased[at] not in leases and leased[at] not in going:
            at += 1
        if at == end or at >= _COMPACT_MIN:
            del leased[:at]
            end -= at
            at = 0
        key.at = at
        return leased[at] if end else 0

    def may_go(self, key: Key, consumer: Consumer, now_us: int) -> bool:
        """Whether `consumer` may get the next message of `key`, as far as other messages are concerned."""
        owner = key.owner
        if owner is consumer and not key.sealed and not consumer.serial:
            return True
        if now_us > key.until_us and not self.first(key):
            key.sealed = False
            return True
        if key.sealed:
            return False
        if owner is not None and self._is_open(owner):
            return False
        return bool(key.owner_name) and key.owner_name == consumer.name and not consumer.once

    def offered_to(self, consumer: Consumer) -> Key | None:
        """A key from whose queue `consumer` may be given something now."""
        place = self._owned.get(consumer)
        if not place and consumer.name and not consumer.once:
            place = self._named.get(consumer.name)
        for key in place or self._free:
            return key
        return None

    @property
    def any_offered(self) -> bool:
        return bool(self._free or self._owned or self._named)

    # -- what happens --------------------------------------------------------------------------------------

    def given(self, key: Key, consumer: Consumer, message_id: int) -> None:
        """`consumer` gets `message_id`, whose lease is granted before anything else happens to the key."""
        key.leased.append(message_id)
        self.going.add(message_id)
        if key.owner is not consumer:
            key.had_by(consumer)

    def put_last(self, key: Key, message_id: int, now_us: int) -> None:
        """The cursor met `message_id` while its key was held, or it waits anyway."""
        if key.queue is None:
            key.queue = deque()
        key.queue.append(message_id)
        self.queued += 1
        if len(key.queue) == 1:
            self.arrange(key, now_us)

    def put_back(self, key: Key, message_ids: Sequence[int], now_us: int) -> None:
        """Messages that were outstanding wait again; ascending."""
        queue = key.queue
        if not queue:
            key.queue = deque(message_ids)
        elif message_ids[-1] < queue[0]:
            queue.extendleft(reversed(message_ids))
        else:  # a seek has brought earlier ones back
            key.queue = deque(sorted([*queue, *message_ids]))
        self.queued += len(message_ids)
        self.arrange(key, now_us)

    def taken_from(self, key: Key) -> int:
        """Take the head of the queue."""
        assert key.queue is not None
        self.queued -= 1
        return key.queue.popleft()

    def removed(self, okey: int, message_id: int, now_us: int) -> None:
        """A message that waited in the queue of its key has finished."""
        # Searching the queue for it would cost a walk; it is passed over when it comes to the front.
        self.gone.add(message_id)
        self.held.discard(message_id)
        self.queued -= 1
        key = self._keys.get(okey)
        if key is not None and key.queue and key.queue[0] == message_id:
            self.arrange(key, now_us)

    def keep_queued(self, keep: Callable[[int], bool], now_us: int) -> list[int]:
        """Remove what `keep` says no to from all queues; returns it."""
        gone: list[int] = []
        for key in list(self._keys.values()):
            if key.queue:
                there = [message_id for message_id in key.queue if message_id not in self.gone]
                kept = [message_id for message_id in there if keep(message_id)]
                if len(kept) < len(key.queue):
                    gone += [message_id for message_id in there if not keep(message_id)]
                    key.queue = deque(kept)
                    self.arrange(key, now_us)
        self.gone.clear()
        self.queued -= len(gone)
        self.held.difference_update(gone)
        return gone

    def ended(self, leases: Iterable[Lease], now_us: int) -> None:
        """These leases were acked; keys that nothing is left of are forgotten."""
        keys = self._keys
        others: dict[int, None] = {}
        for lease in leases:
            okey = lease.okey
            key = keys.get(okey)
            if key is None:
                continue  # without a key
            # Nearly all keys of many have one message outstanding.
            if len(key.leased) == 1 and not key.queue and now_us > key.until_us:
                del keys[okey]
            else:
                others[okey] = None
        for okey in others:
            key = keys.get(okey)
            if key is not None and not self.first(key):
                self.arrange(key, now_us)

    def failed(self, leases: Sequence[Lease]) -> list[Lease]:
        """`leases` are about to end unacked: the outstanding messages behind them, whose leases are void."""
        lowest: dict[int, int] = {}
        ids = set()
        for lease in leases:
            ids.add(lease.message_id)
            if lease.message_id < lowest.get(lease.okey, lease.message_id + 1):
                lowest[lease.okey] = lease.message_id
        behind: list[Lease] = []
        for okey, message_id in lowest.items():
            key = self._keys[okey]
            self.first(key)
            cut = bisect_left(key.leased, message_id, key.at)
            behind += [
                self._leases[one] for one in key.leased[cut:] if one in self._leases and one not in ids
            ]
            del key.leased[cut:]
        return behind

    def split_in_order(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Those of `leases` that can be acked together, and those with an unfinished predecessor."""
        by_key: dict[int, list[Lease]] = {}
        good: list[Lease] = []
        ahead: list[Lease] = []
        keys = self._keys
        for lease in leases:
            okey = lease.okey
            if not okey or len(keys[okey].leased) == 1:
                good.append(lease)
            else:
                by_key.setdefault(okey, []).append(lease)
        for okey, wanted in by_key.items():
            key = self._keys[okey]
            if len(wanted) == 1:
                (good if self.first(key) == wanted[0].message_id else ahead).append(wanted[0])
                continue
            ids = {lease.message_id for lease in wanted}
            self.first(key)
            for message_id in islice(key.leased, key.at, None):
                if message_id in ids:
                    ids.remove(message_id)
                elif message_id in self._leases:
                    break
            for lease in wanted:
                (ahead if lease.message_id in ids else good).append(lease)
        return good, ahead

    def closed(self, consumer: Consumer, now_us: int) -> None:
        """`consumer` gets nothing more; it is closed already in the eyes of `is_open`."""
        for key in list(self._owned.get(consumer, ())):
            self.arrange(key, now_us)

    def woken(self, okey: int, now_us: int) -> None:
        key = self._keys.get(okey)
        if key is not None:
            key.wake_us = 0
            self.arrange(key, now_us)

    def collateral(self, key: Key, waiting: Waiting, now_us: int) -> None:
        """One more message of `key` is collateral.

        That binds the key to its stream. A Pull has let go of it: what failed may go to the next one.
        """
        waiting.binds = key.owner is None or not key.owner.once
        if not waiting.binds:
            return
        until_us = waiting.ready_us
        if now_us > key.until_us:
            key.collateral = 0
        key.collateral += 1
        if until_us > key.until_us:
            key.until_us = until_us
        self._call_back(key, until_us)

    def released(self, waiting: Waiting, now_us: int) -> None:
        """A message is not collateral any more; without any left, nothing binds its key."""
        key = self._keys.get(waiting.okey)
        if key is not None:
            if waiting.binds:
                waiting.binds = False
                key.collateral -= 1
                if not key.collateral:
                    key.until_us = 0
            self.arrange(key, now_us)

    def arrange(self, key: Key, now_us: int) -> None:
        """Put `key` where those look who may take from it now, if anybody may."""
        if key.place is not None:
            self._unlist(key)
        queue = key.queue
        while queue and queue[0] in self.gone:
            self.gone.remove(queue.popleft())
        if not queue:
            if now_us > key.until_us and not self.first(key):
                self._keys.pop(key.okey, None)
            return
        if now_us <= key.until_us:
            self._call_back(key, key.until_us)
        if queue[0] in self.held:
            return
        waiting = self._waiting.get(queue[0])
        if waiting is not None and now_us <= waiting.ready_us:
            self._call_back(key, waiting.ready_us)
            return
        place: dict[Key, None] | None = None
        owner = key.owner
        if now_us > key.until_us and not self.first(key):
            key.sealed = False
            place = self._free
        elif key.sealed:
            pass
        elif owner is not None and self._is_open(owner):
            if not owner.serial:
                place = self._owned.setdefault(owner, {})
        elif key.owner_name:
            place = self._named.setdefault(key.owner_name, {})
        if place is not None:
            place[key] = None
            key.place = place

    def _unlist(self, key: Key) -> None:
        place = key.place
        assert place is not None
        key.place = None
        del place[key]
        if not place and place is not self._free:
            if key.owner is not None and self._owned.get(key.owner) is place:
                del self._owned[key.owner]
            elif self._named.get(key.owner_name) is place:
                del self._named[key.owner_name]
            else:  # the owner has changed since
                self._owned = {owner: keys for owner, keys in self._owned.items() if keys}
                self._named = {name: keys for name, keys in self._named.items() if keys}

    def _call_back(self, key: Key, at_us: int) -> None:
        if not key.wake_us or at_us < key.wake_us:
            key.wake_us = at_us
            self._wake(at_us, key.okey)

    def check_invariants(self) -> None:
        assert self.queued == sum(len(key.queue or ()) for key in self) - len(self.gone)
        for okey, key in self._keys.items():
            live = [message_id for message_id in key.leased[key.at :] if message_id in self._leases]
            assert key.okey == okey
            assert live == sorted(set(live))
            assert list(key.queue or ()) == sorted(set(key.queue or ()))
            assert not set(live) & set(key.queue or ())
            assert key.place is None or key in key.place
            assert live or key.queue or key.until_us, "a key is forgotten when nothing of it is left"
            if live and key.queue and not key.sealed:
                assert live[-1] < key.queue[0]
