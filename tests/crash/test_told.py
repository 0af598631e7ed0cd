"""What clients were told is found in a journal that tells it, and missed in one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.crash.hashes import key_hash, payload_hash
from tests.crash.journals import CLIENT, SUB, Journal
from tests.crash.log import Answer, Delivered, Kind, Log, Operation, Published, Sought
from tests.crash.replay import ACK, CONFIG, DELIVER, EXTEND, NACK, NOOP, PERMANENT
from tests.crash.told import Named, check_told

SECOND = 1_000_000
NAME = "projects/p/subscriptions/s"
DEAD, DEAD_SUB, DEAD_NAME = 2, 7, "projects/p/subscriptions/d"
# The second on which something was asked and the second on which it was answered.
JUST_BEFORE, JUST_AFTER = -0.01, 0.01


@dataclass
class Story:
    """A journal and a log of the same: message 1 was published at second 1 and delivered at second 2."""

    journal: Journal = field(default_factory=lambda: Journal(name=NAME))
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        self.published(1, at=1)
        self.delivered(1, at=2)

    def published(self, message_id: int, at: float, **changes: Any) -> None:
        data, attributes, key = b"data %d" % message_id, {"a": "b"}, "k"
        one = Published(
            "t", 0, us(at + JUST_BEFORE), us(at + JUST_AFTER), [data], [message_id], [attributes], key
        )
        self.log.publishes.append(one._replace(**changes))
        hashes = {"okey": key_hash(key), "payload_hash": payload_hash(data, attributes)}
        self.journal.publish(message_id, at=at, **hashes)

    def delivered(self, message_id: int, at: float, **changes: Any) -> None:
        self.journal.deliver(message_id, at=at)
        generation = self.journal._newest[message_id].generation
        delivered = Delivered(
            NAME, message_id, f"{message_id}/{generation}", us(at + JUST_AFTER), us(at + JUST_BEFORE), 10,
            us(1), b"data %d" % message_id, "k", (("a", "b"),), 0,
        )  # fmt: skip  # short items, many to a line
        self.log.deliveries.append(delivered._replace(**changes))

    def asked(self, kind: Kind, answer: Answer, at: float, ack_id: str = "1/1", seconds: int = 0) -> None:
        times = us(at + JUST_BEFORE), us(at + JUST_AFTER)
        self.log.operations.append(Operation(NAME, ack_id, kind, seconds, *times, answer))

    def sought(self, to: float, at: float, answer: Answer = Answer.OK, snapshot: str = "") -> None:
        times = us(at + JUST_BEFORE), us(at + JUST_AFTER)
        self.log.seeks.append(Sought(NAME, us(to), snapshot, *times, answer))

    @property
    def broken(self) -> list[str]:
        replayer = self.journal.replay()
        assert replayer.problems == []
        return [one.promise for one in check_told(self.log, replayer, named)]


def us(seconds: float) -> int:
    return int(seconds * SECOND)


def named(ack_id: str) -> Named | None:
    message_id, _, generation = ack_id.removesuffix(" dead").partition("/")
    if not generation:
        return None
    return Named(DEAD_SUB if ack_id.endswith(" dead") else SUB, int(message_id), int(generation))


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_journal_that_tells_what_clients_were_told(story: Story) -> None:
    story.journal.ask(EXTEND, 1, at=3, aux=20)
    story.asked(Kind.EXTEND, Answer.OK, 3, seconds=20)
    story.asked(Kind.ACK, Answer.UNKNOWN, 4)
    story.journal.ask(ACK, 1, at=5)
    story.asked(Kind.ACK, Answer.UNKNOWN, 5)
    story.journal.ask(ACK, 1, at=6, result=NOOP)
    story.asked(Kind.ACK, Answer.OK, 6)
    story.journal.ask(NACK, 1, at=7, result=PERMANENT)
    story.asked(Kind.NACK, Answer.PERMANENT, 7)
    story.journal.seek(100, at=8)
    story.sought(100, 8)
    story.sought(50, 9, Answer.UNKNOWN)
    story.log.publishes.append(Published("t", 0, us(9), us(9.1), [b"x", b"y"], None, [{}, {}]))

    assert story.broken == []


Change = Callable[[Story], None]


def _answered_and_not_done(story: Story) -> None:
    story.asked(Kind.ACK, Answer.OK, 3)


def _answered_otherwise(story: Story) -> None:
    story.journal.ask(NACK, 1, at=3)
    story.journal.ask(ACK, 1, at=4, result=PERMANENT)
    story.asked(Kind.NACK, Answer.OK, 3)
    story.asked(Kind.ACK, Answer.OK, 4)


def _answered_before_it_was_done(story: Story) -> None:
    story.asked(Kind.ACK, Answer.OK, 3)
    story.journal.ask(ACK, 1, at=3.5)


def _extended_by_another_length(story: Story) -> None:
    story.journal.ask(EXTEND, 1, at=3, aux=20)
    story.asked(Kind.EXTEND, Answer.OK, 3, seconds=30)


ANSWERS: list[Change] = [
    _answered_and_not_done,
    _answered_otherwise,
    _answered_before_it_was_done,
    _extended_by_another_length,
]


@pytest.mark.parametrize("change", ANSWERS, ids=[change.__name__.strip("_") for change in ANSWERS])
def test_an_answer_that_the_journal_does_not_tell(story: Story, change: Change) -> None:
    change(story)
    assert "answers are in the journal" in story.broken


def test_an_effect_that_nobody_asked_for(story: Story) -> None:
    story.asked(Kind.ACK, Answer.OK, 3)
    story.journal.ask(ACK, 1, at=3)
    assert story.broken == []
    story.journal.ask(ACK, 1, at=4, result=NOOP)
    assert story.broken == ["nobody asked for it"]


def test_a_delivery_that_the_journal_does_not_tell(story: Story) -> None:
    story.log.deliveries.append(story.log.deliveries[0]._replace(ack_id="1/2"))
    assert story.broken == ["deliveries are in the journal"]


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"ack_id": "not an id"}, "ack ids name their delivery"),
        ({"message_id": 7}, "ack ids name their delivery"),
        ({"at_us": us(1.5)}, "delivery time"),
        ({"attempt": 1}, "delivery attempts"),
        ({"publish_us": us(1.5)}, "publish time and key"),
        ({"ordering_key": "other"}, "publish time and key"),
        ({"attributes": ()}, "messages arrive as they were sent"),
        ({"data": b"other"}, "messages arrive as they were sent"),
    ],
)
def test_a_delivery_that_is_another_than_the_journals(
    story: Story, changes: dict[str, Any], promise: str
) -> None:
    story.log.deliveries[0] = story.log.deliveries[0]._replace(**changes)
    assert story.broken == [promise]


def test_a_message_that_nobody_sent(story: Story) -> None:
    story.log.publishes.clear()
    assert story.broken == ["messages arrive as they were sent"]


def test_publishes_that_are_not_in_the_journal_as_they_were_answered(story: Story) -> None:
    lost = Published("t", 0, us(3), us(3.1), [b"lost"], [9], [{}])
    story.log.publishes.append(lost)
    assert story.broken == ["publishes are in the journal"]


def test_half_of_a_request(story: Story) -> None:
    one = story.log.publishes[0]
    half = one._replace(datas=[*one.datas, b"more"], attributes=[{"a": "b"}, {}], message_ids=None)
    story.log.publishes[0] = half
    assert story.broken == ["whole requests"]


def test_a_publish_time_after_the_answer(story: Story) -> None:
    story.published(2, at=5, done_us=us(4.9), sent_us=us(4.8))
    assert story.broken == ["publish time"]


def test_seeks_that_were_answered_are_done_and_no_others(story: Story) -> None:
    story.sought(100, 3)
    assert story.broken == ["seeks are in the journal"]
    story.journal.seek(100, at=3)
    assert story.broken == []
    story.journal.seek(50, at=4)
    assert story.broken == ["nobody asked for it"]


def _forwarded(**added: str) -> Story:
    """Message 1 failed once, in all; its copy is message 2, which a subscription delivered."""
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    story = Story(Journal(name=NAME, dead_letter_policy=policy))
    journal, failed = story.journal, story.log.deliveries[0]._replace(attempt=1)
    story.log.deliveries[0] = failed
    journal.topic("created", 2, topic_id=DEAD, name="dead")
    created = {"change": "created", "subscription": {"name": DEAD_NAME}}
    journal.add(CONFIG, 2, topic_id=DEAD, sub_id=DEAD_SUB, detail=created)
    attributes = dict(failed.attributes)
    for name, value in {
        "DeliveryCount": "1",
        "Subscription": "s",
        "SubscriptionProject": "p",
        "TopicPublishTime": "1970-01-01T00:00:01.000+00:00",
        **added,
    }.items():
        attributes[f"CloudPubSubDeadLetterSource{name}"] = value
    with journal.commit():
        journal.ask(NACK, 1, at=3)
        journal.forward(1, 2, at=3, topic_id=DEAD, payload_hash=payload_hash(failed.data, attributes))
    story.asked(Kind.NACK, Answer.OK, 3)
    journal.add(
        DELIVER, 4, topic_id=DEAD, sub_id=DEAD_SUB, message_id=2, generation=1, attempt=1, ref_ts_us=us(3),
        deadline_us=us(14), bytes=10, okey=key_hash("k"), client_id=CLIENT,
    )  # fmt: skip  # short items, many to a line
    copy = failed._replace(subscription=DEAD_NAME, message_id=2, ack_id="2/1 dead", attempt=0)
    times = {"publish_us": us(3), "asked_us": us(4), "at_us": us(4)}
    story.log.deliveries.append(copy._replace(attributes=tuple(sorted(attributes.items())), **times))
    return story


def test_a_dead_letter_says_what_failed() -> None:
    assert _forwarded().broken == []


@pytest.mark.parametrize(
    "added",
    [
        {"DeliveryCount": "2"},
        {"Subscription": NAME},
        {"SubscriptionProject": "projects/p"},
        {"TopicPublishTime": "1970-01-01T00:00:01.001+00:00"},
        {"More": "x"},
    ],
)
def test_a_dead_letter_that_says_something_else(added: dict[str, str]) -> None:
    assert _forwarded(**added).broken == ["dead letters are what failed"]


def test_a_dead_letter_is_the_message_that_failed() -> None:
    story = _forwarded()
    story.log.publishes[0] = story.log.publishes[0]._replace(ordering_key="another")
    assert "dead letters are what failed" in story.broken
