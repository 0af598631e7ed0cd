"""What a journal has to show of ordering keys, on a subscription with message ordering.

Two rules of delivery: nothing of a key is delivered before what was published earlier and is still owed, and
while something of a key is outstanding only the stream that has it gets more (after its end, one of the same
client); that its lease is void makes no difference. Two of failure: what is outstanding behind a message that
failed is reset by the same commit, and nothing else is. One of acks, with exactly-once delivery: they succeed
in order, those of one call together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.crash.replay import Record, Replayer, Subscription


class KeyOrder:
    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._call: tuple[int, int] = (0, 0)  # when it arrived, and its number
        self._acked: list[tuple[Record, Subscription]] = []
        self._failed: dict[tuple[int, int], int] = {}  # (sub_id, okey): the first that failed
        # Outstanding behind a message when that failed.
        self._behind: list[tuple[Record, Subscription, int, int]] = []
        self._reset: list[tuple[Record, Subscription]] = []

    # -- deliveries ---------------------------------------------------------------------------------------

    def delivered(self, record: Record, sub: Subscription) -> None:
        message_id = record.message_id
        for other in sorted(sub.with_key(record.okey) - {message_id}):
            leased = other in sub.leases
            if other < message_id and not leased:
                self._replayer.problem(record, f"delivered before {other} of its key")
            elif other > message_id and leased:
                self._replayer.problem(record, f"delivered while {other}, later in its key, is outstanding")
            void_until_us = sub.reset.get(other, 0) if sub.exactly_once else 0
            if leased or void_until_us > record.ts_us:
                delivery = sub.deliveries[other, sub.last_generation[other]]
                # Nothing more comes of a Pull, so it is not waited for once its leases are void.
                binds = leased or delivery.stream_id in self._replayer.all_streams
                if binds and not self._same_hands(delivery, record):
                    self._replayer.problem(
                        record,
                        f"stream {record.stream_id} gets it, and {delivery.stream_id} has {other} of its key",
                    )

    def _same_hands(self, then: Record, now: Record) -> bool:
        if then.stream_id == now.stream_id:
            return True
        streams, clients = self._replayer.streams, self._replayer.clients
        over = then.stream_id not in streams
        return over and now.stream_id in streams and clients[then.client_id] == clients[now.client_id]

    # -- acks ---------------------------------------------------------------------------------------------

    def before(self, record: Record) -> None:
        call = (record.ts_us, record.stream_id)
        if call != self._call:
            self.end_call()
            self._call = call

    def acked(self, record: Record, sub: Subscription) -> None:
        """An ack took effect."""
        # A lease that a seek carried over ends before anything that the seek brought back is delivered.
        if sub.exactly_once and record.message_id not in sub.carried:
            self._acked.append((record, sub))

    def turned_away(self, record: Record, sub: Subscription) -> None:
        """An ack is to be asked for again; what else its call acked is known by now."""
        if not self._earlier(record, sub):
            self._replayer.problem(record, "told to come again, and nothing of its key is before it")

    def end_call(self) -> None:
        """All acks of one call are judged together."""
        for record, sub in self._acked:
            if earlier := self._earlier(record, sub):
                self._replayer.problem(record, f"acked before {min(earlier)} of its key")
        self._acked.clear()

    def _earlier(self, record: Record, sub: Subscription) -> list[int]:
        okey = self._replayer.published[record.message_id].okey
        return [other for other in sub.with_key(okey) if other < record.message_id]

    # -- failures -----------------------------------------------------------------------------------------

    def failed(self, record: Record, sub: Subscription) -> None:
        """A nack or expiry is about to end a lease."""
        message_id = record.message_id
        okey = self._replayer.published[message_id].okey
        key = (sub.sub_id, okey)
        self._failed[key] = min(message_id, self._failed.get(key, message_id))
        for other in sub.with_key(okey):
            if other > message_id and other in sub.leases:
                self._behind.append((record, sub, other, sub.leases[other].generation))

    def reset(self, record: Record, sub: Subscription) -> None:
        # Without exactly-once a delivery that its client cannot have seen is given back as well.
        if sub.exactly_once:
            self._reset.append((record, sub))

    def end_row(self) -> None:
        for record, sub, other, generation in self._behind:
            lease = sub.leases.get(other)
            if lease is not None and lease.generation == generation:
                self._replayer.problem(record, f"failed, and {other} behind it is outstanding")
        for record, sub in self._reset:
            okey = self._replayer.published[record.message_id].okey
            first = self._failed.get((sub.sub_id, okey), record.message_id)
            if sub.attached and not (okey and sub.settings.ordered and first < record.message_id):
                self._replayer.problem(record, "reset, and nothing before it has failed")
        self._failed.clear()
        self._behind.clear()
        self._reset.clear()
