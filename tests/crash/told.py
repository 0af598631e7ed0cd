"""What clients were told, against the journal: every answer is in it, and nothing in it was not asked for.

The replayer (`replay.py`) says whether the journal is lawful, and here is shown that the journal tells the
truth: each delivery, answer and publish that a client saw has its record, made between request and answer.
Together they judge subscriptions of all features exactly, seeks and changes of settings included;
`promises.py` judges those that can be judged without a look at the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from tests.crash.hashes import key_hash, payload_hash
from tests.crash.log import Answer, Delivered, Kind, Log, Operation, Sought
from tests.crash.promises import ANSWER_US_MAX, CLOCK_TOLERANCE_US, FORWARDED_PREFIX, Violation
from tests.crash.replay import (
    ACK,
    EXTEND,
    NACK,
    NOOP,
    OK,
    PERMANENT,
    SECOND_US,
    TRANSIENT,
    Record,
    Replayer,
    Seek,
)

_KINDS = {Kind.ACK: ACK, Kind.EXTEND: EXTEND, Kind.NACK: NACK}
_RESULTS = {Answer.OK: {OK, NOOP}, Answer.PERMANENT: {PERMANENT}, Answer.UNORDERED: {TRANSIENT}}


class Named(NamedTuple):
    """What an ack id stands for."""

    sub_id: int
    message_id: int
    generation: int


def check_told(log: Log, replayer: Replayer, named: Callable[[str], Named | None]) -> list[Violation]:
    """`named` reads an ack id; it is None for one that the server never made."""
    check = _Check(log, replayer, named)
    check.publishes()
    check.deliveries()
    check.operations()
    check.seeks()
    return check.violations


class _Check:
    def __init__(self, log: Log, replayer: Replayer, named: Callable[[str], Named | None]) -> None:
        self.violations: list[Violation] = []
        self._log = log
        self._replayer = replayer
        self._named = named
        self._sub_ids = {one.name: one.sub_id for one in replayer.subscriptions.values() if not one.deleted}
        self._names: dict[str, Named] = {}  # of ack ids
        self._sent: dict[int, tuple[bytes, Mapping[str, str], str]] = {}  # by payload_hash

    def _break(self, promise: str, message_id: int, text: str, subscription: str = "") -> None:
        self.violations.append(Violation(promise, subscription, message_id, text))

    # -- publishes ----------------------------------------------------------------------------------------

    def publishes(self) -> None:
        """An answered one is there, with its time and content; of any other request all or nothing is."""
        ids_of_hash: dict[int, list[int]] = defaultdict(list)
        for message_id, published in self._replayer.published.items():
            ids_of_hash[published.payload_hash].append(message_id)
        for publish in self._log.publishes:
            attributes = publish.attributes or [{}] * len(publish.datas)
            hashes = [payload_hash(d, a) for d, a in zip(publish.datas, attributes, strict=True)]
            stored = [message_id for hashed in hashes for message_id in ids_of_hash[hashed]]
            for hashed, data, of_one in zip(hashes, publish.datas, attributes, strict=True):
                self._sent[hashed] = (data, of_one, publish.ordering_key)
            if publish.message_ids is not None and stored != publish.message_ids:
                text = f"answered {publish.message_ids}, and the journal has {stored}"
                self._break("publishes are in the journal", publish.message_ids[0], text)
            elif len(stored) not in (0, len(hashes)):
                self._break("whole requests", stored[0], f"of {len(hashes)} messages {len(stored)} are there")
            for message_id in stored:
                published = self._replayer.published[message_id]
                if not _within(
                    published.ts_us, publish.sent_us, publish.done_us, publish.message_ids is None
                ):
                    self._break("publish time", message_id, "not between the request and its answer")
                if published.okey != key_hash(publish.ordering_key):
                    self._break("ordering keys", message_id, f"{publish.ordering_key}: {published}")

    # -- deliveries ---------------------------------------------------------------------------------------

    def deliveries(self) -> None:
        for one in self._log.deliveries:
            named = self._named(one.ack_id)
            if named is None or (named.sub_id, named.message_id) != (
                self._sub_ids[one.subscription],
                one.message_id,
            ):
                self._break("ack ids name their delivery", one.message_id, f"{named}", one.subscription)
                continue
            self._names[one.ack_id] = named
            sub = self._replayer.subscriptions[named.sub_id]
            record = sub.deliveries.get((named.message_id, named.generation))
            if record is None:
                self._break("deliveries are in the journal", one.message_id, f"{named}", one.subscription)
                continue
            if not one.asked_us - CLOCK_TOLERANCE_US <= record.ts_us <= one.at_us + CLOCK_TOLERANCE_US:
                text = f"{(record.ts_us - one.at_us) / 1e6:.3f} s after it arrived"
                self._break("delivery time", one.message_id, text, one.subscription)
            shown = sub.shown_attempts.get((named.message_id, named.generation))
            if one.attempt != shown:
                text = f"attempt {one.attempt} was shown, not {shown}"
                self._break("delivery attempts", one.message_id, text, one.subscription)
            self._check_content(one)

    def _check_content(self, one: Delivered) -> None:
        published = self._replayer.published[one.message_id]
        attributes = dict(one.attributes)
        if (published.ts_us, published.okey) != (one.publish_us, key_hash(one.ordering_key)):
            text = f"{one.publish_us}, {one.ordering_key!r} on the wire, {published} in the journal"
            self._break("publish time and key", one.message_id, text, one.subscription)
        if published.payload_hash != payload_hash(one.data, attributes):
            text = f"{one.data[:40]!r}, {attributes}"
            self._break("messages arrive as they were sent", one.message_id, text, one.subscription)
        if (copied := self._replayer.copies.get(one.message_id)) is not None:
            self._check_copy(one, attributes, copied[1])
        elif published.payload_hash not in self._sent:
            text = f"nobody sent {one.data[:40]!r}, {attributes}"
            self._break("messages arrive as they were sent", one.message_id, text, one.subscription)

    def _check_copy(self, one: Delivered, attributes: dict[str, str], source_id: int) -> None:
        """A dead letter is the message that failed, and says where and how often."""
        source = self._replayer.published[source_id]
        added = {key: attributes.pop(key) for key in list(attributes) if key.startswith(FORWARDED_PREFIX)}
        sent = self._sent.get(source.payload_hash)
        if sent is not None and (one.data, attributes, one.ordering_key) != sent:
            text = f"{one.data[:40]!r}, {attributes}, not {sent}"
            self._break("dead letters are what failed", one.message_id, text, one.subscription)
        expected = marks_of_copy(self._replayer, one.message_id)
        if added != expected:
            self._break("dead letters are what failed", one.message_id, f"{added}, not {expected}")

    # -- operations ---------------------------------------------------------------------------------------

    def operations(self) -> None:
        asked: dict[tuple[int, Named], list[Operation]] = defaultdict(list)
        for one in self._log.operations:
            if (named := self._names.get(one.ack_id)) is not None:
                asked[_KINDS[one.kind], named].append(one)
        watched = {self._sub_ids[name] for name in {one.subscription for one in self._log.operations}}
        judged: dict[tuple[int, Named], list[Record]] = defaultdict(list)
        for record in self._replayer.judged:
            if record.sub_id in watched and record.generation:
                named = Named(record.sub_id, record.message_id, record.generation)
                judged[record.kind, named].append(record)
        for key in {**asked, **judged}:
            self._match(sorted(asked[key], key=lambda one: one.sent_us), list(judged[key]))

    def _match(self, asked: list[Operation], judged: list[Record]) -> None:
        """Each answer has its record; each record is of an operation, which may not have been answered."""
        for one in [one for one in asked if one.answer is not Answer.UNKNOWN]:
            record = next((record for record in judged if self._is_of(record, one)), None)
            if record is None:
                records = [(record.result, record.ts_us - one.sent_us) for record in judged]
                named = self._names[one.ack_id]
                text = (
                    f"{one.kind.value} was answered {one.answer.value}; the journal has {records} of {named}"
                )
                self._break("answers are in the journal", named.message_id, text, one.subscription)
            else:
                judged.remove(record)
        for record in judged:
            if not any(one.answer is Answer.UNKNOWN and self._is_of(record, one) for one in asked):
                self._break("nobody asked for it", record.message_id, f"{record}")

    def _is_of(self, record: Record, one: Operation) -> bool:
        return (
            record.result in _RESULTS.get(one.answer, {record.result})
            and _within(record.ts_us, one.sent_us, one.done_us, one.answer is Answer.UNKNOWN)
            and (record.kind != EXTEND or record.aux == one.seconds)
        )

    # -- seeks --------------------------------------------------------------------------------------------

    def seeks(self) -> None:
        """Each that was answered was done once; none was done that nobody asked for."""
        watched = {one.subscription for one in self._log.seeks}
        done = [one for one in self._replayer.seeks if one.subscription in watched]
        unsure = [one for one in self._log.seeks if one.answer is Answer.UNKNOWN]
        for sought in [one for one in self._log.seeks if one.answer is Answer.OK]:
            found = next((one for one in done if _is_seek(one, sought)), None)
            if found is None:
                self._break("seeks are in the journal", 0, f"{sought}", sought.subscription)
            else:
                done.remove(found)
        for one in done:
            if not any(_is_seek(one, sought) for sought in unsure):
                self._break("nobody asked for it", 0, f"{one}", one.subscription)


def marks_of_copy(replayer: Replayer, message_id: int) -> dict[str, str]:
    """The attributes that say where a dead letter comes from, and how often it failed."""
    sub_id, source_id = replayer.copies[message_id]
    _, project, _, name = replayer.subscriptions[sub_id].name.split("/")
    marks = {
        "DeliveryCount": str(replayer.failures_of_copies[message_id]),
        "Subscription": name,
        "SubscriptionProject": project,
        "TopicPublishTime": _time_text(replayer.published[source_id].ts_us),
    }
    return {FORWARDED_PREFIX + key: text for key, text in marks.items()}


def _is_seek(done: Seek, sought: Sought) -> bool:
    return (
        done.subscription == sought.subscription
        and done.snapshot == sought.snapshot
        and (bool(sought.snapshot) or done.record.aux == sought.target_us)
        and _within(done.record.ts_us, sought.sent_us, sought.done_us, sought.answer is Answer.UNKNOWN)
    )


def _within(ts_us: int, sent_us: int, done_us: int, is_unsure: bool) -> bool:
    """Whether it was done between request and answer; without an answer it may be a little later."""
    latest_us = done_us + (ANSWER_US_MAX if is_unsure else CLOCK_TOLERANCE_US)
    return sent_us - CLOCK_TOLERANCE_US <= ts_us <= latest_us


def _time_text(time_us: int) -> str:
    """To the millisecond, and never rounded up."""
    seconds, microseconds = divmod(time_us, SECOND_US)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{microseconds // 1000:03}+00:00"
