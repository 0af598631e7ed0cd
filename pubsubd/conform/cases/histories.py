"""CE-35: a random history of one subscription, held against what its answers promised."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import grpc
from grpc import StatusCode

from pubsubd.conform.calls import PERMANENT, Refusal
from pubsubd.conform.case import Erred, case, check
from pubsubd.conform.history import Answer, Handed, Log, Operation, judge
from pubsubd.conform.lab import Delivery, Lab, Stream, count_of

WORKERS = 4
OPERATIONS_EACH = 16  # of a message, on average
PUBLISHED_AT_ONCE = 5
BATCH_MAX = 8

# A policy for mixed batches may leave the good ids among bad ones to a retry, which these clients never make.
UNKNOWN_SHARE_MAX = 0.4

# Answers by which a client does not know whether its request took effect.
NOT_TOLD = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.ABORTED,
        StatusCode.INTERNAL,
        StatusCode.RESOURCE_EXHAUSTED,
    }
)


class History:
    """Random operations on random deliveries of one subscription, and the log of it all.

    Consumers are a stream and Pulls. Of the operations one half is on deliveries that a client still works
    on, the other on any that there ever was: most of those are over, and must stay over. A client lets go
    of a delivery by an ack, but also just so, after the delivery or an extension: then its lease is to end.
    """

    def __init__(self, lab: Lab, *, messages: int, seconds: float, seed: int) -> None:
        self.lab = lab
        self.messages = messages
        self.seconds = seconds
        self.chance = random.Random(seed)
        self.log = Log()
        self.answers: Counter[str] = Counter()
        self._at_work: dict[str, Delivery] = {}  # by message id
        self._all: list[Delivery] = []
        self._busy: set[str] = set()  # message ids that an operation is under way for

    async def run(self, lives: int = 1, between: Callable[[], Awaitable[None]] | None = None) -> str:
        """Returns what was seen. Between two lives the server may be put through something.

        Raises:
            Failed: the log shows what a server that keeps its word cannot show.
        """
        self.sub = await self.lab.subscription()
        for life in range(lives):
            if life > 0 and between is not None:
                await between()
            await self._live(self.messages // lives, self.seconds / lives)
        faults = judge(self.log)
        published, answers = self.log.published, self.answers
        kinds = list(dict.fromkeys(faults))[:3]
        check(not faults, f"{len(faults)} of {len(published)} messages have a fault: {' '.join(kinds)}")
        unknown = answers[Answer.UNKNOWN.name]
        if unknown > UNKNOWN_SHARE_MAX * answers.total():
            raise Erred(f"{unknown} of {answers.total()} operations had no result: too little was promised.")
        missing = published.keys() - {item.message_id for item in self.log.handed}
        check(not missing, f"{count_of(list(missing), 'message')} never came.")
        return (
            f"{len(published)} messages, {len(self.log.handed)} deliveries, "
            f"{len(self.log.operations)} operations of which {answers[Answer.REFUSED.name]} were refused "
            f"and {unknown} had no result: all agree."
        )

    async def _live(self, messages: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        pause = WORKERS * seconds / (messages * OPERATIONS_EACH)
        async with self.sub.stream() as stream:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(messages, 0.8 * seconds))
                group.create_task(self._pull(end))
                for _ in range(WORKERS):
                    group.create_task(self._operate(stream, pause, end))
            await asyncio.sleep(1)  # for what is under way
            stream.check_open()
            self._take(stream)

    async def _publish(self, messages: int, seconds: float) -> None:
        """In small batches, so that at all times some messages are new and some old."""
        for _ in range(messages // PUBLISHED_AT_ONCE):
            sent = time.monotonic()
            self.log.published |= dict.fromkeys(await self.sub.publish(PUBLISHED_AT_ONCE), sent)
            await asyncio.sleep(seconds * PUBLISHED_AT_ONCE / messages)

    async def _pull(self, end: float) -> None:
        """Pulls that wait beside the stream: now and then one of them is faster."""
        while time.monotonic() < end:
            asked = time.monotonic()
            try:
                response = await self.lab.client.Pull(
                    subscription=self.sub.name, max_messages=PUBLISHED_AT_ONCE, timeout=2
                )
            except grpc.RpcError as error:
                if error.code() not in NOT_TOLD:
                    raise
                continue
            for received in response.received_messages:
                self._note(Delivery.of(received), asked)
            await asyncio.sleep(self.chance.uniform(0, 1))

    def _take(self, stream: Stream) -> None:
        for delivery in stream.take_now():
            self._note(delivery)

    def _note(self, delivery: Delivery, asked: float = 0.0) -> None:
        self.log.handed.append(Handed(delivery.message_id, delivery.ack_id, delivery.at, asked))
        self._all.append(delivery)
        self._at_work[delivery.message_id] = delivery
        self._let_go(delivery)

    def _let_go(self, delivery: Delivery) -> None:
        """Now and then, of a delivery that the client could go on with."""
        if self.chance.random() < 0.3:
            self._at_work.pop(delivery.message_id, None)

    async def _operate(self, stream: Stream, pause: float, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(self.chance.uniform(0, 2 * pause))
            self._take(stream)
            chosen = self._choose()
            if not chosen:
                continue
            word, seconds = self._word()
            self._busy |= chosen.keys()
            try:
                await self._carry_out(word, seconds, list(chosen.values()))
            finally:
                self._busy -= chosen.keys()

    def _choose(self) -> dict[str, Delivery]:
        """Deliveries for one call, by message id; no message twice, for their order would not be known."""
        some = self._all if self.chance.random() < 0.5 else list(self._at_work.values())
        count = 1 if self.chance.random() < 0.7 else self.chance.randint(2, BATCH_MAX)
        chosen = self.chance.sample(some, min(count, len(some)))
        return {each.message_id: each for each in chosen if each.message_id not in self._busy}

    def _word(self) -> tuple[str, int]:
        word = self.chance.choices(["extend", "nack", "ack"], [6, 2, 1])[0]
        return word, self.chance.choice([1, 2, 4, 12, 30]) if word == "extend" else 0

    async def _carry_out(self, word: str, seconds: int, deliveries: list[Delivery]) -> None:
        sent = time.monotonic()
        results = {}
        try:
            if word == "ack":
                await self.sub.ack(*deliveries)
            else:
                await self.sub.modack(seconds, *deliveries)
        except grpc.RpcError as error:
            refusal = Refusal.of(error)
            if not refusal.results and refusal.code not in NOT_TOLD:
                raise
            # An id that is not listed beside failed ones has succeeded.
            results = refusal.results or dict.fromkeys((each.ack_id for each in deliveries), "")
        done = time.monotonic()
        for each in deliveries:
            answer = _answer(results.get(each.ack_id))
            self.answers[answer.name] += 1
            self.log.operations.append(
                Operation(word, each.message_id, each.ack_id, sent, done, answer, seconds)
            )
            if word == "extend":
                self._let_go(each)
            elif word == "ack" and answer is Answer.OK:
                self._at_work.pop(each.message_id, None)


def _answer(result: str | None) -> Answer:
    if result is None:
        return Answer.OK
    return Answer.REFUSED if result == PERMANENT else Answer.UNKNOWN


@case(
    "CE-35",
    promise="In a random history no lease is broken, no acked message returns, and every answer is true.",
    critical="PNGJX",
    seconds=42,
    seconds_max=1500,
    short="has 200 messages in 40 s instead of 1000 in 20 min",
)
async def random_history_agrees_with_the_rules(lab: Lab) -> str:
    messages, seconds = (1000, 1200) if lab.full else (200, 40)
    return await History(lab, messages=messages, seconds=seconds, seed=35).run()
