"""The leases of one subscription: what is outstanding, until when, and to whom.

Theory of operation. `by_message` is the truth: a message is outstanding if and only if it is there.
`by_ack_id` holds the same leases under the id that the client has, so that an id which we made is known
without a cryptographic check. `_due` is a heap of (deadline, tie, leases) and only a hint: leases of one
response or one extension share an entry, an extended lease leaves its old entry behind, and an ended one
stays in its entry until that surfaces. Entries are swept once they outnumber the leases, so memory follows
what is outstanding.

Not decided here: what an operation is answered (machine.py), and what follows an ended lease (the broker).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

# Below this many entries sweeping the heap costs more than it frees.
_SWEEP_MIN = 4096


class Holder(Protocol):
    """The stream that a lease counts against; its window is freed when the lease ends."""

    outstanding_messages: int
    outstanding_bytes: int
    confirms_receipt: bool


class Lease:
    """One generation of one message, outstanding."""

    __slots__ = (
        "ack_id",
        "attempt",
        "boot",
        "client_id",
        "deadline_us",
        "delivered_us",
        "generation",
        "holder",
        "message_id",
        "named",
        "okey",
        "size",
    )

    def __init__(
        self,
        message_id: int,
        generation: int,
        attempt: int,
        deadline_us: int,
        delivered_us: int,
        size: int,
        okey: int,
        ack_id: str,
        holder: Holder | None,
        client_id: int,
        boot: int,
    ) -> None:
        self.message_id = message_id
        self.generation = generation
        self.attempt = attempt
        self.deadline_us = deadline_us
        self.delivered_us = delivered_us
        self.size = size
        self.okey = okey
        self.ack_id = ack_id
        self.holder = holder
        self.client_id = client_id
        self.boot = boot
        # Whether any ack, nack or extension has named this delivery: the sign that a client saw it.
        self.named = False


class LeaseTable:
    def __init__(self) -> None:
        self.by_message: dict[int, Lease] = {}
        self.by_ack_id: dict[str, Lease] = {}
        self._due: list[tuple[int, int, list[Lease]]] = []
        self._due_count = 0
        self._tie = count()

    def __len__(self) -> int:
        return len(self.by_message)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.by_message.values())

    def grant(self, leases: list[Lease]) -> None:
        """Add new leases that share one deadline. None of their messages may be outstanding."""
        by_message, by_ack_id = self.by_message, self.by_ack_id
        for lease in leases:
            by_message[lease.message_id] = lease
            by_ack_id[lease.ack_id] = lease
        self._remind(leases, leases[0].deadline_us)

    def running(self, ack_ids: Iterable[str], now_us: int) -> tuple[list[Lease], list[str]]:
        """Split ids into leases that run at `now_us` (up to and including their deadline) and other ids."""
        find = self.by_ack_id.get
        leases: list[Lease] = []
        others: list[str] = []
        for ack_id in ack_ids:
            lease = find(ack_id)
            if lease is not None and now_us <= lease.deadline_us:
                leases.append(lease)
            else:
                others.append(ack_id)
        return leases, others

    def end(self, leases: Iterable[Lease]) -> None:
        """Remove leases, whatever the reason, and free the windows they count against."""
        by_message, by_ack_id = self.by_message, self.by_ack_id
        for lease in leases:
            del by_message[lease.message_id]
            del by_ack_id[lease.ack_id]
            holder = lease.holder
            if holder is not None:
                holder.outstanding_messages -= 1
                holder.outstanding_bytes -= lease.size
        if self._due_count > 2 * len(by_message) + _SWEEP_MIN:
            self._sweep()

    def extend(self, leases: list[Lease], deadline_us: int) -> None:
        """Move running leases to `deadline_us`, which may be earlier than what they had."""
        for lease in leases:
            lease.deadline_us = deadline_us
        self._remind(leases, deadline_us)
        if self._due_count > 2 * len(self.by_message) + _SWEEP_MIN:
            self._sweep()

    def lapsed(self, now_us: int) -> list[Lease]:
        """Leases whose deadline is before `now_us`. They stay until `end` is called."""
        due = self._due
        out: list[Lease] = []
        seen: set[int] = set()
        while due and due[0][0] < now_us:
            _, _, leases = heappop(due)
            self._due_count -= len(leases)
            for lease in leases:
                # An extended lease has another entry; an ended one has none that counts. One that was moved
                # and moved back is in two entries with the same deadline.
                if (
                    lease.deadline_us < now_us
                    and self.by_message.get(lease.message_id) is lease
                    and lease.message_id not in seen
                ):
                    seen.add(lease.message_id)
                    out.append(lease)
        return out

    def next_deadline_us(self) -> int | None:
        """No lease runs out before this moment, which may be too early; None when nothing is outstanding."""
        return self._due[0][0] if self._due and self.by_message else None

    def _remind(self, leases: Sequence[Lease], deadline_us: int) -> None:
        heappush(self._due, (deadline_us, next(self._tie), list(leases)))
        self._due_count += len(leases)

    def _sweep(self) -> None:
        """Drop what the heap holds of ended and moved leases."""
        alive: list[tuple[int, int, list[Lease]]] = []
        total = 0
        find = self.by_message.get
        for deadline_us, tie, leases in self._due:
            kept = [
                lease
                for lease in leases
                if lease.deadline_us == deadline_us and find(lease.message_id) is lease
            ]
            if kept:
                alive.append((deadline_us, tie, kept))
                total += len(kept)
        heapify(alive)
        self._due = alive
        self._due_count = total

    def check_invariants(self) -> None:
        assert len(self.by_message) == len(self.by_ack_id)
        reminded = {(id(lease), deadline_us) for deadline_us, _, leases in self._due for lease in leases}
        for message_id, lease in self.by_message.items():
            assert lease.message_id == message_id
            assert self.by_ack_id[lease.ack_id] is lease
            assert (id(lease), lease.deadline_us) in reminded
        assert self._due_count == sum(len(leases) for _, _, leases in self._due)
