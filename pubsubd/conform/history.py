"""What a client saw of an exactly-once subscription, and whether a server that keeps its word can show it.

The judge knows three rules: nothing is delivered inside a lease, nothing is delivered after an ack that was
answered OK, and each answer agrees with what had become of its ack id. It sees only what this side saw.
Between the sending of a request and its answer the server may have carried it out at any moment, so a
moment is an interval, and where the order of two things is open both orders are followed. What may be true
of a message is therefore a set of beliefs; an event that contradicts all of them is a fault.

Assumed of the log: of one message at most one operation is under way at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

# A lease that ends this much after its deadline is no fault: a message once late is not a message twice.
LATE_SECONDS_MAX = 1.0


class Answer(Enum):
    OK = "OK"
    REFUSED = "refused for good"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Handed:
    """A delivery. It was made after `asked`, which is when a Pull was sent; a stream asks at all times."""

    message_id: str
    ack_id: str
    at: float
    asked: float = 0.0


@dataclass(frozen=True)
class Operation:
    """An `ack`, `nack` or `extend` of one ack id, and its answer."""

    word: str
    message_id: str
    ack_id: str
    sent: float
    done: float
    answer: Answer
    seconds: int = 0  # of an extension

    def __str__(self) -> str:
        article = "a" if self.word == "nack" else "an"
        return f"{article} {self.word}" + (f" by {self.seconds} s" if self.word == "extend" else "")


@dataclass
class Log:
    """All that one client did and saw; times are those of `time.monotonic`."""

    deadline_seconds: int = 10
    published: dict[str, float] = field(default_factory=dict)  # by message id: when the Publish was sent
    handed: list[Handed] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class State(Enum):
    FREE = "may be delivered"
    LEASED = "leased"
    ACKED = "acked"


@dataclass(frozen=True)
class Belief:
    """What may be true of one message."""

    state: State
    free_from: float  # the end of the newest lease is not earlier than this
    free_by: float = 0.0  # nor later than this
    ack_id: str = ""  # of the newest delivery
    nacked: frozenset[str] = frozenset()  # ack ids that a nack has ended
    operated: bool = False  # whether the operation that is under way has been carried out

    def handed(self, item: Handed, deadline_seconds: int) -> Belief | None:
        """What is true after this delivery; None when it must not have been made."""
        leased = self.state is State.LEASED and item.at < self.free_from
        if self.state is State.ACKED or leased or item.ack_id == self.ack_id:
            return None
        made_from = max(self.free_from, item.asked)
        return replace(
            self,
            state=State.LEASED,
            free_from=made_from + deadline_seconds,
            free_by=item.at + deadline_seconds + LATE_SECONDS_MAX,
            ack_id=item.ack_id,
        )

    def after(self, operation: Operation) -> list[Belief]:
        """What may be true when the operation has been carried out and answered as it was."""
        found = []
        if operation.answer is not Answer.REFUSED:
            found += self._granted(operation)
        if operation.answer is not Answer.OK:
            found += self._refused(operation)
        if operation.answer is Answer.UNKNOWN:
            found.append(self)  # it may never have arrived
        return [replace(belief, operated=True) for belief in found]

    def _granted(self, operation: Operation) -> list[Belief]:
        if operation.ack_id != self.ack_id or self.state is State.FREE:
            # Only a nack can be repeated after its effect.
            return [self] if operation.word == "nack" and operation.ack_id in self.nacked else []
        if self.state is State.ACKED:
            return [] if operation.word == "nack" else [self]
        if operation.sent > self.free_by:
            return []
        if operation.word == "ack":
            return [replace(self, state=State.ACKED)]
        if operation.word == "nack":
            nacked = self.nacked | {self.ack_id}
            return [replace(self, state=State.FREE, free_from=operation.sent, nacked=nacked)]
        until, by = operation.sent + operation.seconds, operation.done + operation.seconds
        return [replace(self, free_from=until, free_by=by + LATE_SECONDS_MAX)]

    def _refused(self, operation: Operation) -> list[Belief]:
        if operation.ack_id != self.ack_id or self.state is State.FREE:
            # The contract wants a repeated nack to succeed, and asks nobody else for it.
            return [self]
        if self.state is State.ACKED:
            # The same goes for an extension that crosses the ack.
            return [] if operation.word == "ack" else [self]
        return [replace(self, state=State.FREE)] if operation.done > self.free_from else []


def judge(log: Log) -> list[str]:
    """A sentence for the first fault of each message that has one."""
    handed: dict[str, list[Handed]] = {}
    operations: dict[str, list[Operation]] = {}
    for item in log.handed:
        handed.setdefault(item.message_id, []).append(item)
    for operation in log.operations:
        operations.setdefault(operation.message_id, []).append(operation)
    faults = []
    for message_id, ours in handed.items():
        if message_id not in log.published:
            faults.append(f"Message {message_id} came, which was not published here.")
            continue
        fault = _fault(log.published[message_id], ours, operations.get(message_id, []), log.deadline_seconds)
        if fault:
            faults.append(fault)
    return faults


def _fault(
    published: float, handed: Iterable[Handed], operations: Iterable[Operation], deadline_seconds: int
) -> str:
    # Of what happened at the same moment, whatever leaves more orders open goes first and last.
    events: list[tuple[float, int, Handed | Operation]] = [(item.at, 1, item) for item in handed]
    for operation in operations:
        events += [(operation.sent, 0, operation), (operation.done, 2, operation)]
    events.sort(key=lambda event: event[:2])

    beliefs = {Belief(State.FREE, published)}
    for _, rank, event in events:
        before = beliefs
        if isinstance(event, Handed):
            after = [belief.handed(event, deadline_seconds) for belief in before]
            beliefs = {belief for belief in after if belief is not None}
        elif rank == 0:
            # From here on it may be carried out: what was true, and what would be true then.
            beliefs = before | {later for belief in before for later in belief.after(event)}
        else:
            done = {belief for belief in before if belief.operated}
            done |= {later for belief in before - done for later in belief.after(event)}
            beliefs = {replace(belief, operated=False) for belief in done}
        if not beliefs:
            return _sentence(event, before)
    return ""


def _sentence(event: Handed | Operation, before: set[Belief]) -> str:
    states = {belief.state for belief in before}
    if isinstance(event, Handed):
        if states == {State.ACKED}:
            return f"Message {event.message_id} was delivered after an ack of it had been answered OK."
        if any(belief.ack_id == event.ack_id for belief in before):
            return f"Message {event.message_id} was delivered twice under one ack id."
        early = min(belief.free_from for belief in before if belief.state is State.LEASED) - event.at
        return f"Message {event.message_id} was delivered {early:.2f} s before its lease could end."
    return f"The answer to {event} was {event.answer.value}, but its ack id {_standing(event, before)}."


def _standing(operation: Operation, before: set[Belief]) -> str:
    """What had become of the id of an operation that was answered wrongly."""
    # Judged by those beliefs in which it was still to be carried out: the others were contradicted later.
    beliefs = {belief for belief in before if not belief.operated} or before
    if all(belief.ack_id != operation.ack_id for belief in beliefs):
        return "was that of an earlier delivery"
    if all(belief.state is State.ACKED for belief in beliefs):
        return "had acked the message"
    if all(operation.ack_id in belief.nacked for belief in beliefs):
        return "had been nacked"
    if all(belief.state is State.FREE for belief in beliefs):
        return "was over"
    if operation.answer is Answer.OK:
        over = operation.sent - max(belief.free_by for belief in beliefs)
        return f"had been over for {over:.2f} s at least"
    left = min(belief.free_from for belief in beliefs) - operation.done
    return f"was good for {left:.2f} s more"
