"""Judges the record of a run: were the promises of exactly-once delivery kept, as seen from outside?

Theory of operation. The ledger gathers events into one history per delivery (one ack id) and one per
message. It knows nothing of the server but the answers that reached a client, so it claims only what follows
from them:

* An answer of success for an ack, a nack or an extension proves that the delivery was the live one at some
  moment between the sending of the call (of its first attempt, as a repetition succeeds too) and the answer.
* A confirmed extension of N seconds proves a lease from the answer until N seconds after the *sending* of
  the call. Any attempt of a nack, answered or not, ends what is known; so does a shorter extension, if it may
  have come later.
* An ack is confirmed when its future resolves with SUCCESS. It is also confirmed when the answer listed the
  ids that failed and this one is not among them: the library reports such an id to the application as failed,
  but the ack took effect. The summary counts these apart.

A delivery whose response was sent long before it was read can reach a subscriber late without any broken
promise; the library drops it, because the server refuses its receipt. Nothing is claimed about those.

Messages that no publisher knows are legitimate: Publish was committed, its answer was lost, and the library
published again. They are judged like all others.

Source: https://cloud.google.com/pubsub/docs/exactly-once-delivery
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

from tests.mainjob.events import Asked, Called, Delivered, Event, Noted, Published, Resolved

INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
SUCCESS = "SUCCESS"

# What is known of one id after one attempt of a call.
EFFECTIVE, REFUSED, UNKNOWN = "effective", "refused", "unknown"


@dataclass(slots=True)
class Attempt:
    """One delivery's share of one attempt of a unary call. `action` is ack, nack or extend."""

    action: str
    started_us: int
    ended_us: int
    seconds: int
    answer: str
    code: str


@dataclass(slots=True)
class Delivery:
    """One delivery of one message: everything that happened under one ack id."""

    key: str
    message_id: str = ""
    subscriber: int = -1
    at_us: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    ack_asked_us: int | None = None
    ack_resolved_us: int | None = None
    ack_result: str = ""
    nack_asked_us: int | None = None
    nack_resolved_us: int | None = None
    nack_result: str = ""

    def received_us(self) -> int:
        """The earliest sign that it had arrived: the library confirms receipt before it calls back."""
        signs = [attempt.started_us for attempt in self.attempts]
        return min(signs) if self.at_us is None else min([self.at_us, *signs])

    def confirmed_us(self) -> int | None:
        """When the client knew that its ack was accepted, or None."""
        if self.ack_result == SUCCESS:
            return self.ack_resolved_us
        ended = [a.ended_us for a in self._of("ack") if a.answer == EFFECTIVE]
        return min(ended) if ended else None

    def _of(self, *actions: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.action in actions]

    def known_leases(self) -> list[tuple[int, int]]:
        """Intervals in which the lease was certainly held, except that an ack may have ended it for good."""
        nack_us = min((a.started_us for a in self._of("nack")), default=None)
        extensions = [a for a in self._of("extend") if a.answer != REFUSED]
        leases = []
        for proof in extensions:
            if proof.answer != EFFECTIVE:
                continue
            # An attempt without an answer may have reached the server at any later time.
            rivals = [a for a in extensions if a.answer == UNKNOWN or a.ended_us > proof.started_us]
            until_us = min(a.started_us + a.seconds * 1_000_000 for a in rivals)
            if nack_us is not None:
                until_us = min(until_us, nack_us)
            if until_us > proof.ended_us:
                leases.append((proof.ended_us, until_us))
        return leases

    def proofs_of_life(self) -> list[tuple[int, int]]:
        """Intervals that hold a moment at which the server took this delivery for the live one."""
        proofs = []
        first_end_us = min((a.started_us for a in self._of("ack", "nack")), default=None)
        for attempt in self.attempts:
            if attempt.answer != EFFECTIVE:
                continue
            if attempt.action == "extend":
                # Extending succeeds after the ack too, without effect, and then proves nothing.
                if first_end_us is None or attempt.ended_us < first_end_us:
                    proofs.append((attempt.started_us, attempt.ended_us))
            else:
                first_us = min(a.started_us for a in self._of(attempt.action))
                proofs.append((first_us, attempt.ended_us))
        return proofs


@dataclass(slots=True)
class Message:
    message_id: str
    seq: int | None = None
    published_us: int | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    confirmed_us: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    message_id: str
    text: str


@dataclass(slots=True)
class Verdict:
    violations: list[Violation]
    counts: dict[str, int]

    @property
    def passed(self) -> bool:
        return not self.violations


class Ledger:
    """Every message and delivery of a run, kept up to date event by event, in any order across processes."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.notes: Counter[str] = Counter()
        self.note_texts: dict[str, str] = {}
        self.unconfirmed: set[str] = set()
        self.published_count = 0
        self.confirmed_count = 0
        self.delivered_count = 0
        self.nacked_count = 0
        self._repeated: list[Delivered] = []
        self._misread: list[Delivered] = []

    def add(self, event: Event) -> None:
        match event:
            case Published():
                self._published(event)
            case Delivered():
                self._delivered(event)
            case Called():
                self._called(event)
            case Asked():
                self._asked(event)
            case Resolved():
                self._resolved(event)
            case Noted():
                self.notes[event.subject] += 1
                self.note_texts[event.subject] = event.text

    def _message(self, message_id: str) -> Message:
        message = self.messages.get(message_id)
        if message is None:
            message = self.messages[message_id] = Message(message_id)
        return message

    def _delivery(self, key: str) -> Delivery:
        delivery = self.deliveries.get(key)
        if delivery is None:
            delivery = self.deliveries[key] = Delivery(key)
        return delivery

    def _published(self, event: Published) -> None:
        message = self._message(event.message_id)
        self.published_count += 1
        message.published_us = event.at_us
        message.seq = event.seq
        if message.confirmed_us is None:
            self.unconfirmed.add(event.message_id)

    def _delivered(self, event: Delivered) -> None:
        delivery = self._delivery(event.delivery)
        if delivery.at_us is not None:
            self._repeated.append(event)
            return
        message = self._message(event.message_id)
        if message.seq is None:
            message.seq = event.seq
        elif message.seq != event.seq:
            self._misread.append(event)
        delivery.message_id = event.message_id
        delivery.subscriber = event.subscriber
        delivery.at_us = event.at_us
        message.deliveries.append(delivery)
        self.delivered_count += 1

    def _called(self, event: Called) -> None:
        action = "ack" if event.method == "ack" else "extend" if event.seconds else "nack"
        for key in event.deliveries:
            answer = _answer(event.code, key, event.failures)
            delivery = self._delivery(key)
            delivery.attempts.append(
                Attempt(action, event.started_us, event.ended_us, event.seconds, answer, event.code)
            )
            # A plain OK becomes known to the application as the future's SUCCESS; this answer never does.
            if action == "ack" and answer == EFFECTIVE and event.code != "OK":
                self._confirm(delivery, event.ended_us)

    def _asked(self, event: Asked) -> None:
        delivery = self._delivery(event.delivery)
        if event.action == "ack":
            delivery.ack_asked_us = event.at_us
        else:
            delivery.nack_asked_us = event.at_us
            self.nacked_count += 1

    def _resolved(self, event: Resolved) -> None:
        delivery = self._delivery(event.delivery)
        if event.action == "ack":
            delivery.ack_resolved_us = event.at_us
            delivery.ack_result = event.result
            if event.result == SUCCESS:
                self._confirm(delivery, event.at_us)
        else:
            delivery.nack_resolved_us = event.at_us
            delivery.nack_result = event.result

    def _confirm(self, delivery: Delivery, at_us: int) -> None:
        if not delivery.message_id:
            return
        message = self._message(delivery.message_id)
        if message.confirmed_us is None:
            self.confirmed_count += 1
            self.unconfirmed.discard(message.message_id)
            message.confirmed_us = at_us

    def story(self, message_id: str) -> str:
        return f"message {message_id}: {_story(self._message(message_id))}"

    def audit(self, seqs: range) -> Verdict:
        """Judge the run; `seqs` are the payloads that had to be published and processed."""
        violations = [*self._unprocessed(seqs), *self._confused()]
        for message in self.messages.values():
            violations += _judge(message)
        return Verdict(violations, self._counts())

    def _unprocessed(self, seqs: range) -> Iterator[Violation]:
        published = {m.seq for m in self.messages.values() if m.published_us is not None}
        for seq in seqs:
            if seq not in published:
                yield Violation("not published", "", f"payload {seq} was never confirmed by Publish")
        for message in self.messages.values():
            # A message that no publisher knows may be one that nobody was told of: only its delivery counts.
            if message.confirmed_us is None and (message.published_us is not None or message.deliveries):
                yield Violation("not processed", message.message_id, _story(message))

    def _confused(self) -> Iterator[Violation]:
        for event in self._repeated:
            text = f"the ack id of delivery {event.delivery} came twice"
            yield Violation("ack id used twice", event.message_id, text)
        for event in self._misread:
            text = f"carried payload {event.seq}, but its message id was given to another payload"
            yield Violation("wrong payload", event.message_id, text)

    def _counts(self) -> dict[str, int]:
        messages = self.messages.values()
        deliveries = self.deliveries.values()
        redelivered = [d for m in messages for d in m.deliveries[1:]]
        nacked = {d.message_id for d in deliveries if d.nack_asked_us is not None}
        return {
            "messages that Publish confirmed": self.published_count,
            "messages whose Publish answer was lost": sum(m.published_us is None for m in messages),
            "deliveries": self.delivered_count,
            "redeliveries": len(redelivered),
            "redeliveries of messages never nacked": sum(d.message_id not in nacked for d in redelivered),
            "messages acked, confirmed": self.confirmed_count,
            "  of these confirmed only by absence from a list of failures": sum(
                d.ack_result != SUCCESS and d.confirmed_us() is not None for d in deliveries
            ),
            "acks that failed": sum(d.ack_result not in ("", SUCCESS) for d in deliveries),
            "nacks": len(nacked),
            "nacks that failed": sum(d.nack_result not in ("", SUCCESS) for d in deliveries),
            "ids in calls that were left without an answer and repeated": sum(
                a.answer == UNKNOWN for d in deliveries for a in d.attempts
            ),
            "deliveries whose receipt was refused": sum(d.at_us is None for d in deliveries),
        }


def _answer(code: str, key: str, failures: dict[str, str]) -> str:
    if code == "OK":
        return EFFECTIVE
    if key in failures:
        return REFUSED if failures[key] == INVALID_ACK_ID else UNKNOWN
    return EFFECTIVE if failures else UNKNOWN


def _judge(message: Message) -> Iterator[Violation]:
    for delivery in message.deliveries:
        yield from _judge_alone(message, delivery)
    if len(message.deliveries) > 1:
        for one, other in permutations(message.deliveries, 2):
            yield from _judge_pair(message, one, other)


def _judge_alone(message: Message, delivery: Delivery) -> Iterator[Violation]:
    acks = [a for a in delivery.attempts if a.action == "ack"]
    if delivery.ack_result == SUCCESS and acks and all(a.answer != EFFECTIVE for a in acks):
        text = f"the future says SUCCESS, but the answers were {[a.code for a in acks]}; {_story(message)}"
        yield Violation("success without an answer", message.message_id, text)
    leases = delivery.known_leases()
    first_ack_us = min((a.started_us for a in acks), default=None)
    for attempt in delivery.attempts:
        if attempt.answer != REFUSED or attempt.action == "nack":
            continue
        if attempt.action == "extend" and first_ack_us is not None and attempt.ended_us > first_ack_us:
            continue
        if _inside((attempt.started_us, attempt.ended_us), leases):
            text = f"{attempt.action} of delivery {delivery.key} was refused; {_story(message)}"
            yield Violation("refused inside a lease", message.message_id, text)


def _judge_pair(message: Message, one: Delivery, other: Delivery) -> Iterator[Violation]:
    confirmed_us = one.confirmed_us()
    if confirmed_us is not None and other.received_us() > confirmed_us:
        yield Violation("delivered after its ack", message.message_id, _story(message))
    if confirmed_us is not None and other.confirmed_us() is not None and one.key < other.key:
        yield Violation("acked twice", message.message_id, _story(message))
    leases = one.known_leases()
    if any(_inside(proof, leases) for proof in other.proofs_of_life()):
        yield Violation("delivered inside a lease", message.message_id, _story(message))


def _inside(window: tuple[int, int], leases: list[tuple[int, int]]) -> bool:
    return any(start_us <= window[0] and window[1] < end_us for start_us, end_us in leases)


def _story(message: Message) -> str:
    """Everything that is known of a message, in milliseconds from the first that is."""
    steps: list[tuple[int, str]] = []
    if message.published_us is not None:
        steps.append((message.published_us, "publish confirmed"))
    for delivery in message.deliveries:
        name = f"{delivery.key} on subscriber {delivery.subscriber}"
        if delivery.at_us is not None:
            steps.append((delivery.at_us, f"delivered {name}"))
        for a in delivery.attempts:
            what = f"{a.action} {a.seconds} s" if a.action == "extend" else a.action
            took_ms = (a.ended_us - a.started_us) / 1000
            steps.append((a.started_us, f"{what} {name}: {a.code}, {a.answer}, after {took_ms:.1f} ms"))
        if delivery.ack_resolved_us is not None:
            steps.append((delivery.ack_resolved_us, f"ack of {name} resolved: {delivery.ack_result}"))
        if delivery.nack_resolved_us is not None:
            steps.append((delivery.nack_resolved_us, f"nack of {name} resolved: {delivery.nack_result}"))
    if not steps:
        return "nothing is known of it"
    steps.sort()
    first_us, _ = steps[0]
    return "; ".join(f"+{(at_us - first_us) / 1000:.1f} {text}" for at_us, text in steps)
