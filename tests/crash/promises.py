"""Judges a log: did the server keep its promises, as far as anybody outside can tell?

Theory of operation. For each delivery there is a belief: what may have become of it, given the answers that a
client got. An unanswered call leaves more than one possibility, and times are known only as bounds: a lease
begins between the moment when the message was asked for (or published, or the lease before it ended) and the
moment when it arrived; an operation was judged between its sending and its answer. An answer, or a further
delivery of the message, that none of the possibilities allows is a broken promise; otherwise it removes those
that it contradicts. So nothing is reported that could have been lawful, and little else escapes.

Only exactly-once delivery promises all of that. Without it an ack that was answered OK still means that the
message does not come again, but for what was under way at that moment. What a seek or a change of settings
does is told by the journal only, so such subscriptions are left to `told.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.crash.log import Answer, Delivered, Kind, Log, Operation, Published

SECOND_US = 1_000_000
# Two processes read two clocks that were set by the same one; the wall clock may be corrected in between.
CLOCK_TOLERANCE_US = 20_000
# A lease lasts longer than asked for by the time that its commit was expected to take.
COMMIT_US_MAX = SECOND_US
# Without exactly-once delivery: what was sent before the ack was judged may arrive after its answer.
UNDER_WAY_US_MAX = 2 * SECOND_US
ANSWER_US_MAX = 15 * SECOND_US
# An extension to no more than this is meant to let the lease end.
_SHORTENED_SECONDS_MAX = 2


FORWARDED_PREFIX = "CloudPubSubDeadLetterSource"


class Rules(NamedTuple):
    """What a subscription is judged by."""

    exactly_once: bool = True
    ordered: bool = False
    attempts_max: int = 0  # 0: nothing is forwarded
    # Nobody seeks or changes it, and no message gets too old.
    judged: bool = True


class Violation(NamedTuple):
    promise: str
    subscription: str
    message_id: int
    text: str


@dataclass
class Belief:
    """What may have become of one delivery; more than one may be possible at a time."""

    delivery: Delivered
    ends_from_us: int  # its lease ends between these two, if nothing else ended it
    ends_by_us: int
    begins_from_us: int = 0
    leased: bool = True  # also when that time is over: nobody ended it
    nacked: bool = False
    acked: bool = False
    nacked_from_us: int = 0
    # The lease runs under a later delivery: no operation of this one can take effect any more.
    overtaken: bool = False

    def over_from_us(self) -> int:
        """The earliest moment at which the message could be delivered again."""
        ends = [self.ends_from_us] if self.leased else []
        if self.nacked:
            ends.append(self.nacked_from_us)
        return min(ends, default=self.ends_from_us)

    def allows_redelivery(self, at_us: int) -> bool:
        return self.nacked or (self.leased and self.ends_from_us <= at_us + CLOCK_TOLERANCE_US)

    def redelivered(self, at_us: int) -> None:
        self.acked = False
        self.overtaken = True
        if not self.nacked:
            self.leased = True
        self.ends_from_us = min(self.ends_from_us, at_us)
        self.ends_by_us = min(self.ends_by_us, at_us)

    def hears(self, operation: Operation, may_be_void: bool = False) -> bool:
        """Take in what one operation was answered; whether that answer could be right.

        `may_be_void`: an earlier message of its ordering key may have failed since it was delivered.
        """
        running = self.leased and operation.sent_us <= self.ends_by_us + CLOCK_TOLERANCE_US
        over = self.leased and (self.overtaken or operation.done_us > self.ends_from_us - CLOCK_TOLERANCE_US)
        if self.overtaken:
            running = running and operation.sent_us <= self.ends_by_us
        refused = operation.answer is Answer.PERMANENT and operation.kind is not Kind.NACK
        if refused and may_be_void and not over:
            # It is delivered again at its deadline, as if nothing had happened, or once it is nacked.
            self.acked = False
            return True
        return _HEARERS[operation.kind](self, operation, running, over)

    def _ack(self, operation: Operation, running: bool, over: bool) -> bool:
        match operation.answer:
            case Answer.OK:
                right = self.acked or running
                self.leased, self.nacked, self.acked = False, False, True
                return right
            case Answer.PERMANENT:
                return self._refused(operation, over, self.nacked or over, nacked=self.nacked, acked=False)
            case Answer.UNORDERED:
                self.nacked = self.acked = False
                return running and bool(self.delivery.ordering_key)
            case _:
                self.acked = self.acked or running
                return True

    def _extend(self, operation: Operation, running: bool, over: bool) -> bool:
        seconds_us = operation.seconds * SECOND_US
        match operation.answer:
            case Answer.OK:
                right = self.acked or running
                self.leased = running or not self.acked
                self.nacked = False
                self.ends_from_us = operation.sent_us + seconds_us
                self.ends_by_us = operation.done_us + seconds_us
                return right
            case Answer.PERMANENT:
                return self._refused(operation, over, self.nacked or over, nacked=self.nacked, acked=False)
            case _:
                if running:
                    self.ends_from_us = min(self.ends_from_us, operation.sent_us + seconds_us)
                    self.ends_by_us = max(self.ends_by_us, operation.done_us + seconds_us)
                return True

    def _nack(self, operation: Operation, running: bool, over: bool) -> bool:
        if operation.answer is Answer.PERMANENT:
            return self._refused(operation, over, self.acked or over, nacked=False, acked=self.acked)
        right = operation.answer is not Answer.OK or self.nacked or running
        if not self.nacked:
            self.nacked_from_us = operation.sent_us
        if operation.answer is Answer.OK:
            self.leased, self.nacked, self.acked = False, True, False
        else:
            self.nacked = self.nacked or running
        return right

    def _refused(self, operation: Operation, over: bool, right: bool, *, nacked: bool, acked: bool) -> bool:
        self.nacked, self.acked = nacked, acked
        self.leased = over or not (nacked or acked)
        self.ends_by_us = min(self.ends_by_us, operation.done_us)
        self.ends_from_us = min(self.ends_from_us, operation.done_us)
        return right


_HEARERS = {Kind.ACK: Belief._ack, Kind.EXTEND: Belief._extend, Kind.NACK: Belief._nack}


class Judged(NamedTuple):
    violations: list[Violation]
    # For each subscription: the messages that were acked for certain, and those that may have been.
    acked: dict[str, set[int]]
    maybe_acked: dict[str, set[int]]
    counts: Counter[str]


def judge(log: Log, rules: Mapping[str, Rules]) -> Judged:
    """Judge everything but loss; `rules` are those of each subscription."""
    judge = _Judge(log, rules)
    judge.run()
    return Judged(judge.violations, judge.acked, judge.maybe_acked, judge.counts)


class _Judge:
    def __init__(self, log: Log, rules: Mapping[str, Rules]) -> None:
        self.violations: list[Violation] = []
        self.acked: dict[str, set[int]] = defaultdict(set)
        self.maybe_acked: dict[str, set[int]] = defaultdict(set)
        self.counts: Counter[str] = Counter()
        self._log = log
        self._rules = rules
        self._beliefs: dict[tuple[str, str], Belief] = {}
        self._newest: dict[tuple[str, int], Belief] = {}
        self._acked_us: dict[tuple[str, int], int] = {}
        # Of each ordering key: what was delivered last of each message, and when something surely or
        # perhaps failed: (message_id, when).
        self._of_key: dict[tuple[str, str], dict[int, Belief]] = defaultdict(dict)
        self._failures: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        self._kills_us = [kill.at_us for kill in log.kills]

    def run(self) -> None:
        self.violations += check_publishes(self._log)
        for odd in self._log.odd:
            self._break("odd answers", "", 0, f"{odd.what} was answered {odd.code}: {odd.message}")
        for text in self._log.resources_wrong:
            self._break("resources", "", 0, text)
        # An operation counts from its sending: its effect may be seen before its answer.
        self._collect_failures()
        steps: list[tuple[int, Delivered | Operation]] = [(one.at_us, one) for one in self._log.deliveries]
        steps += [(one.sent_us, one) for one in self._log.operations]
        for _, step in sorted(steps, key=lambda timed: timed[0]):
            if isinstance(step, Delivered):
                self._delivered(step)
            else:
                self._operated(step)
        for (subscription, message_id), belief in self._newest.items():
            if belief.acked and self._rules[subscription].judged:
                certain = not (belief.leased or belief.nacked)
                (self.acked if certain else self.maybe_acked)[subscription].add(message_id)
        for subscription, message_id in self._acked_us:
            self.acked[subscription].add(message_id)

    def _break(self, promise: str, subscription: str, message_id: int, text: str) -> None:
        self.violations.append(Violation(promise, subscription, message_id, text))

    def _collect_failures(self) -> None:
        """What clients did to make messages with a key fail; an operation may be judged after a later one."""
        of_id = {one.ack_id: one for one in self._log.deliveries if one.ordering_key}
        for op in self._log.operations:
            delivered = of_id.get(op.ack_id)
            if delivered is None or op.kind is Kind.ACK or op.answer is Answer.PERMANENT:
                continue
            if op.seconds <= _SHORTENED_SECONDS_MAX and self._rules[op.subscription].ordered:
                key = (op.subscription, delivered.ordering_key)
                self._failures[key].append((delivered.message_id, op.sent_us + op.seconds * SECOND_US))

    def _may_be_void(self, belief: Belief, operation: Operation) -> bool:
        """Whether an earlier message of the key may have failed while this one was leased."""
        one = belief.delivery
        if not one.ordering_key or not self._rules[one.subscription].ordered:
            return False
        key = (one.subscription, one.ordering_key)
        earlier = [
            (message_id, other.ends_from_us)
            for message_id, other in self._of_key[key].items()
            if other.leased or other.overtaken
        ]
        from_us = belief.begins_from_us - CLOCK_TOLERANCE_US
        until_us = operation.done_us + CLOCK_TOLERANCE_US
        return any(
            message_id < one.message_id and from_us <= at_us <= until_us
            for message_id, at_us in (*earlier, *self._failures[key])
        )

    def _delivered(self, one: Delivered) -> None:
        self.counts["deliveries"] += 1
        if (one.subscription, one.ack_id) in self._beliefs:
            self._break("ack ids are unique", one.subscription, one.message_id, f"{one.ack_id} came twice")
            return
        rules = self._rules[one.subscription]
        before = self._newest.get((one.subscription, one.message_id))
        asked_us = max(one.asked_us, one.publish_us - CLOCK_TOLERANCE_US)
        if before is not None:
            self.counts["redeliveries"] += 1
            if rules.judged:
                self._redelivered(before, one)
            asked_us = max(asked_us, before.over_from_us())
            if rules.ordered:
                key = (one.subscription, one.ordering_key)
                self._failures[key].append((one.message_id, before.over_from_us()))
            before.redelivered(one.at_us)
        belief = Belief(
            one,
            ends_from_us=min(asked_us, one.at_us) + one.lease_seconds * SECOND_US,
            ends_by_us=one.at_us + one.lease_seconds * SECOND_US + COMMIT_US_MAX,
            begins_from_us=min(asked_us, one.at_us),
        )
        if rules.ordered and one.ordering_key:
            self._of_key[one.subscription, one.ordering_key][one.message_id] = belief
        self._beliefs[one.subscription, one.ack_id] = self._newest[one.subscription, one.message_id] = belief

    def _redelivered(self, before: Belief, one: Delivered) -> None:
        rules, first = self._rules[one.subscription], before.delivery
        if rules.attempts_max and not first.attempt <= one.attempt <= rules.attempts_max:
            text = f"attempt {one.attempt} after {first.attempt}"
            self._break("delivery attempts", one.subscription, one.message_id, text)
        if not rules.exactly_once:
            acked_us = self._acked_us.get((one.subscription, one.message_id))
            if acked_us is not None and one.at_us > acked_us + UNDER_WAY_US_MAX:
                self._break(
                    "no delivery after a confirmed ack", one.subscription, one.message_id,
                    f"it came {(one.at_us - acked_us) / 1e6:.3f} s later, without exactly-once",
                )  # fmt: skip  # short items, many to a line
        elif not before.allows_redelivery(one.at_us):
            if before.acked and not before.leased:
                promise, text = "no delivery after a confirmed ack", "it was acked"
            else:
                early_us = before.ends_from_us - one.at_us
                promise, text = "no delivery inside a lease", f"{early_us / 1e6:.3f} s before its end"
            self._break(promise, one.subscription, one.message_id, f"{text}; {self._history(one)}")

    def _operated(self, one: Operation) -> None:
        self.counts[f"{one.kind.value} {one.answer.value}"] += 1
        belief = self._beliefs.get((one.subscription, one.ack_id))
        assert belief is not None, "a client can only name what it was given"
        message_id = belief.delivery.message_id
        if one.done_us - one.sent_us > ANSWER_US_MAX:
            seconds = (one.done_us - one.sent_us) / 1e6
            self._break(
                "answers in time", one.subscription, message_id, f"{one.kind.value} took {seconds:.1f} s"
            )
        if any(belief.delivery.at_us < killed_us < one.sent_us for killed_us in self._kills_us):
            self.counts[f"after a kill: {one.kind.value} {one.answer.value}"] += 1
        rules = self._rules[one.subscription]
        if not rules.judged:
            return
        if not rules.exactly_once:
            self._operated_plainly(one, belief)
        elif not belief.hears(one, self._may_be_void(belief, one)):
            promise = {
                Answer.OK: "only the newest ack id works, and only in its lease",
                Answer.PERMANENT: "an ack id works while its lease runs",
                Answer.UNORDERED: "only what runs and has a key can be unordered",
            }[one.answer]
            text = f"{one.kind.value} was answered {one.answer.value}; {self._history(belief.delivery)}"
            self._break(promise, one.subscription, message_id, text)

    def _operated_plainly(self, one: Operation, belief: Belief) -> None:
        """Without exactly-once delivery every id that we gave is answered OK, whatever became of it."""
        message_id = belief.delivery.message_id
        newest = self._newest[one.subscription, message_id]
        if one.answer is Answer.PERMANENT:
            self._break(
                "ids are never refused without exactly-once", one.subscription, message_id, one.kind.value
            )
        elif one.kind is Kind.ACK:
            newest.acked = True
            if one.answer is Answer.OK:
                newest.leased = newest.nacked = False
                self._acked_us.setdefault((one.subscription, message_id), one.done_us)

    def _history(self, of: Delivered) -> str:
        """All that is known of a message on its subscription, for whoever has to find the cause."""
        ids = {
            one.ack_id: at
            for at, one in enumerate(
                [
                    d
                    for d in self._log.deliveries
                    if (d.subscription, d.message_id) == (of.subscription, of.message_id)
                ]
            )
        }
        lines: list[tuple[int, str]] = []
        for one in self._log.deliveries:
            if one.subscription == of.subscription and one.ack_id in ids:
                lines.append((one.at_us, f"delivery {ids[one.ack_id]} for {one.lease_seconds} s"))
        for op in self._log.operations:
            if op.subscription == of.subscription and op.ack_id in ids:
                took = (op.done_us - op.sent_us) / 1e6
                text = (
                    f"{op.kind.value} {op.seconds} of {ids[op.ack_id]}: {op.answer.value} after {took:.3f} s"
                )
                lines.append((op.sent_us, text))
        lines += [(kill.at_us, f"kill ({kill.way})") for kill in self._log.kills]
        start_us = min(at_us for at_us, text in lines if text.startswith("delivery"))
        return "; ".join(
            f"{(at - start_us) / 1e6:+.3f} {text}" for at, text in sorted(lines) if at >= start_us
        )


def check_publishes(log: Log) -> list[Violation]:
    """What was published is what is delivered, unaltered and each message under one id."""
    found: list[Violation] = []
    by_data: dict[bytes, tuple[Published, int]] = {
        data: (one, at) for one in log.publishes for at, data in enumerate(one.datas)
    }
    ids_of_data: dict[bytes, set[int]] = defaultdict(set)
    data_of_id: dict[int, bytes] = {}

    def wrong(promise: str, message_id: int, text: str, subscription: str = "") -> None:
        found.append(Violation(promise, subscription, message_id, text))

    for publish in log.publishes:
        for message_id, data in zip(
            publish.message_ids or (), publish.datas, strict=bool(publish.message_ids)
        ):
            ids_of_data[data].add(message_id)
            if data_of_id.setdefault(message_id, data) != data:
                wrong(
                    "a message id names one message",
                    message_id,
                    f"{data[:40]!r} and {data_of_id[message_id][:40]!r}",
                )
    for one in log.deliveries:
        if any(name.startswith(FORWARDED_PREFIX) for name, _ in one.attributes):
            continue  # a copy, which told.py compares with what it is of
        if one.data not in by_data:
            wrong("messages arrive as they were sent", one.message_id, f"{one.data[:60]!r}", one.subscription)
            continue
        ids_of_data[one.data].add(one.message_id)
        if data_of_id.setdefault(one.message_id, one.data) != one.data:
            wrong(
                "a message id names one message",
                one.message_id,
                "another content than before",
                one.subscription,
            )
        publish, _ = by_data[one.data]
        earliest_us, latest_us = publish.sent_us - CLOCK_TOLERANCE_US, publish.done_us + CLOCK_TOLERANCE_US
        if not earliest_us <= one.publish_us <= latest_us:
            wrong("publish time", one.message_id, "not between the request and its answer", one.subscription)
    for data, message_ids in ids_of_data.items():
        if len(message_ids) > 1:
            wrong(
                "a publish is stored once",
                min(message_ids),
                f"{data[:40]!r} has the ids {sorted(message_ids)}",
            )
    found += _check_order(log.publishes)
    return found


def _check_order(publishes: Iterable[Published]) -> list[Violation]:
    found: list[Violation] = []
    last: dict[int, int] = defaultdict(int)
    for one in publishes:
        for message_id in one.message_ids or ():
            if message_id <= last[one.publisher]:
                found.append(
                    Violation("message ids increase", "", message_id, f"after {last[one.publisher]}")
                )
            last[one.publisher] = message_id
    return found


def check_whole_requests(log: Log, subscriptions: Mapping[str, Iterable[str]]) -> list[Violation]:
    """Of a Publish without an answer either every message was stored or none; for runs that were drained.

    `subscriptions` are those of each topic that were there all the time.
    """
    found: list[Violation] = []
    seen: dict[str, set[bytes]] = defaultdict(set)
    for one in log.deliveries:
        seen[one.subscription].add(one.data)
    for publish in log.publishes:
        if publish.message_ids is None:
            counts = {
                name: sum(data in seen[name] for data in publish.datas)
                for name in subscriptions[publish.topic]
            }
            if (
                any(count not in (0, len(publish.datas)) for count in counts.values())
                or len(set(counts.values())) > 1
            ):
                found.append(
                    Violation("whole requests", "", 0, f"of {len(publish.datas)} messages came {counts}")
                )
    return found


def check_loss(
    log: Log, subscriptions: Mapping[str, Iterable[str]], kept: Mapping[str, set[int]]
) -> list[Violation]:
    """`kept`: per subscription the messages that were acked, or that the server still owes."""
    return [
        Violation("no acknowledged publish is lost", name, message_id, f"published {one.datas[at][:40]!r}")
        for one in log.publishes
        for at, message_id in enumerate(one.message_ids or ())
        for name in subscriptions[one.topic]
        if message_id not in kept[name]
    ]
