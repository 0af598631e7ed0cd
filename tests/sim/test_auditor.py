"""The auditor passes what is lawful, and calls what is not by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pubsubd.eod.ack_id import AckIds
from pubsubd.wire import pb
from tests.crash.hashes import key_hash, payload_hash
from tests.crash.journals import CLIENT, LEASE_SECONDS, SUB, TOPIC, Journal
from tests.crash.log import Answer
from tests.crash.replay import ACK, EXTEND, NACK, NOOP, OK, PERMANENT, SECOND_US, TRANSIENT
from tests.sim.auditor import Auditor, Broken
from tests.sim.campaign import run_seed
from tests.sim.disk import SimDisk
from tests.sim.world import World

SECRET = bytes(range(32))
STREAM = 77  # in the journal
DEAD_TOPIC = 2


def us(seconds: float) -> int:
    return round(seconds * SECOND_US)


@contextmanager
def breaks(invariant: str, text: str = "") -> Iterator[None]:
    with pytest.raises(Broken, match=text or None) as broken:
        yield
    assert broken.value.invariant == invariant


class History:
    """One topic, one subscription, and what an auditor is told of them. Times are seconds."""

    def __init__(self, **settings: Any) -> None:
        self.auditor = Auditor(SECRET)
        self.journal = Journal(**settings)
        self.messages: dict[int, pb.PubsubMessage] = {}
        self._told = 0
        self.auditor.configuring("CreateTopic", pb.Topic(name="t"), 0)
        self.auditor.configuring("CreateSubscription", pb.Subscription(name="s"), 0)
        self.commit(0)

    def commit(self, at: float = 100) -> None:
        """Everything that the journal has become since is durable."""
        rows, self._told = self.journal.rows[self._told :], len(self.journal.rows)
        for row in rows:
            seqs = range(row.first_seq, row.first_seq + row.n)
            details = {seq: text for seq, text in self.journal.details.items() if seq in seqs}
            self.auditor.committed([row], details, us(at))

    def send(self, *datas: bytes, at: float = 0, key: str = "", topic: str = "t") -> list[pb.PubsubMessage]:
        messages = [pb.PubsubMessage(data=data, ordering_key=key) for data in datas]
        self.auditor.sending(topic, messages, us(at))
        return messages

    def store(self, messages: Sequence[pb.PubsubMessage], first_id: int, at: float = 0) -> None:
        """In one commit."""
        with self.journal.commit():
            for message_id, message in enumerate(messages, first_id):
                hashed = payload_hash(message.data, message.attributes)
                okey = key_hash(message.ordering_key)
                self.journal.publish(message_id, at=at, payload_hash=hashed, okey=okey)
                stored = pb.PubsubMessage()
                stored.CopyFrom(message)
                stored.message_id = str(message_id)
                stored.publish_time.FromMicroseconds(us(at))
                self.messages[message_id] = stored
        self.commit(at)

    def publish(self, *datas: bytes, first_id: int = 1, at: float = 0, key: str = "") -> None:
        messages = self.send(*datas, at=at, key=key)
        self.store(messages, first_id, at)

    def hear(self, messages: Sequence[pb.PubsubMessage], ids: Sequence[int], call: float, at: float) -> None:
        self.auditor.published(us(call), us(at), "t", messages, [str(one) for one in ids])

    def open_stream(self, messages_max: int = 0, bytes_max: int = 0, deadline: float = LEASE_SECONDS) -> None:
        detail = {"client": "python", "max_outstanding_messages": messages_max}
        self.journal.add(
            12, 0, stream_id=STREAM, client_id=CLIENT, detail={**detail, "max_outstanding_bytes": bytes_max}
        )
        self.commit(0)
        self.auditor.stream_opened(1, "s", "", messages_max, bytes_max, 0, deadline)

    def deliver(self, *message_ids: int, at: float, **fields: int) -> None:
        self.journal.deliver(*message_ids, at=at, stream_id=STREAM, **fields)
        self.commit(at)

    def ack_id(self, message_id: int, generation: int = 1, sub_id: int = SUB) -> str:
        return AckIds(SECRET).make([(sub_id, generation, 1, message_id, us(1), CLIENT, 1)])[0]

    def received(self, message_id: int, generation: int = 1, **fields: Any) -> pb.ReceivedMessage:
        received = pb.ReceivedMessage(
            ack_id=self.ack_id(message_id, generation), message=self.messages[message_id]
        )
        received.MergeFrom(pb.ReceivedMessage(**fields))
        return received

    def receive(self, *received: pb.ReceivedMessage, at: float, stream: int = 1, asked: float = 0) -> None:
        self.auditor.delivered(stream, "s", received, us(asked), us(at))

    def ask(self, kind: str, *ack_ids: str, at: float, seconds: int = 0) -> None:
        self.auditor.asking(kind, "s", ack_ids, seconds, us(at))

    def answer(
        self, kind: str, results: Mapping[str, Answer], sent: float, at: float, seconds: int = 0
    ) -> None:
        self.auditor.answered(kind, "s", list(results), seconds, us(sent), us(at), results)


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def leased() -> History:
    """Message 1 is leased from second 1 to 11, and its client has it."""
    history = History()
    history.publish(b"one")
    history.open_stream()
    history.deliver(1, at=1)
    history.receive(history.received(1), at=1.1)
    return history


# -- publishes --------------------------------------------------------------------------------------------


def test_a_publish_that_is_in_the_journal_may_be_answered(history: History) -> None:
    messages = history.send(b"one", b"two", at=1)
    history.store(messages, 5, at=2)

    history.hear(messages, [5, 6], 1, 3)


def test_a_publish_must_not_be_answered_before_its_commit(history: History) -> None:
    messages = history.send(b"one", at=1)

    with breaks("I1"):
        history.hear(messages, [5], 1, 3)


@pytest.mark.parametrize("ids", [[4, 5], [6, 7], [5, 7], [5]])
def test_a_publish_is_answered_with_the_ids_that_it_got(history: History, ids: list[int]) -> None:
    messages = history.send(b"one", b"two", at=1)
    history.store(messages, 5, at=2)

    with breaks("I1"):
        history.hear(messages, ids, 1, 3)


def test_one_record_is_not_the_answer_of_two_publishes(history: History) -> None:
    messages = history.send(b"one", at=1)
    history.send(b"one", at=1)
    history.store(messages, 5, at=2)
    history.hear(messages, [5], 1, 3)

    with breaks("I1", "twice"):
        history.hear(messages, [5], 1, 3)


def test_what_was_sent_again_may_be_stored_again(history: History) -> None:
    messages = history.send(b"one", at=1)
    history.store(messages, 5, at=2)
    history.send(b"one", at=3)
    history.store(messages, 6, at=4)

    history.hear(messages, [6], 3, 5)


def test_what_was_sent_once_is_stored_once(history: History) -> None:
    messages = history.send(b"one", at=1)
    history.store(messages, 5, at=2)

    with breaks("I1"):
        history.store(messages, 6, at=2)


def test_nothing_is_stored_that_nobody_sent(history: History) -> None:
    with breaks("I1", "begins no request"):
        history.store([pb.PubsubMessage(data=b"one")], 5, at=2)


def test_nothing_is_stored_before_it_was_sent(history: History) -> None:
    messages = history.send(b"one", at=3)

    with breaks("I1"):
        history.store(messages, 5, at=2)


@pytest.mark.parametrize("stored", [[b"one"], [b"one", b"three"], [b"two", b"one"]])
def test_a_request_is_stored_as_a_whole(history: History, stored: list[bytes]) -> None:
    history.send(b"one", b"two", at=1)

    with breaks("I1"):
        history.store([pb.PubsubMessage(data=data) for data in stored], 5, at=2)


def test_a_message_is_stored_with_its_key(history: History) -> None:
    history.send(b"one", key="a", at=1)

    with breaks("I1"):
        history.store([pb.PubsubMessage(data=b"one", ordering_key="b")], 5, at=2)


# -- deliveries -------------------------------------------------------------------------------------------


def test_a_delivery_comes_after_its_commit(history: History) -> None:
    history.publish(b"one")
    history.open_stream()

    with breaks("I10"):
        history.receive(history.received(1), at=2)


def test_a_delivery_is_not_older_than_the_question(leased: History) -> None:
    leased.publish(b"two", first_id=2)
    leased.deliver(2, at=1)

    with breaks("I10"):
        leased.receive(leased.received(2), at=6, asked=5)


def test_an_ack_id_comes_once(leased: History) -> None:
    with breaks("I4", "twice"):
        leased.receive(leased.received(1), at=2)


def test_an_ack_id_names_its_message(leased: History) -> None:
    leased.publish(b"two", first_id=2)
    leased.deliver(2, at=1)
    wrong = leased.received(2)
    wrong.ack_id = leased.ack_id(3)

    with breaks("I4"):
        leased.receive(wrong, at=2)


def test_an_ack_id_is_of_the_subscription(history: History) -> None:
    history.publish(b"one")
    history.open_stream()
    history.deliver(1, at=1)

    with breaks("I4"):
        history.auditor.delivered(1, "another", [history.received(1)], 0, us(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.MergeFrom(pb.PubsubMessage(data=b"altered")),
        lambda message: message.MergeFrom(pb.PubsubMessage(attributes={"color": "red"})),
        lambda message: message.MergeFrom(pb.PubsubMessage(ordering_key="a")),
        lambda message: message.publish_time.FromMicroseconds(us(0.5)),
    ],
    ids=["data", "attributes", "key", "time"],
)
def test_a_message_arrives_as_it_was_sent(history: History, change: Callable[[Any], None]) -> None:
    history.publish(b"one")
    history.open_stream()
    history.deliver(1, at=1)
    received = history.received(1)
    change(received.message)

    with breaks("I1"):
        history.receive(received, at=2)


def test_without_a_policy_no_attempt_is_shown(history: History) -> None:
    history.publish(b"one")
    history.open_stream()
    history.deliver(1, at=1)

    with breaks("I8"):
        history.receive(history.received(1, delivery_attempt=1), at=2)


def test_messages_of_a_stream_come_in_the_order_of_their_leases(history: History) -> None:
    history.publish(b"one", b"two")
    history.open_stream()
    history.deliver(1, 2, at=1)
    history.receive(history.received(2), at=2)

    with breaks("I6"):
        history.receive(history.received(1), at=2)


@pytest.mark.parametrize("more", [-1.5, 1])
def test_a_lease_is_as_long_as_the_stream_asked_for(history: History, more: float) -> None:
    history.publish(b"one")
    history.open_stream(deadline=LEASE_SECONDS + more)
    history.deliver(1, at=1)

    with breaks("I3", "a lease of"):
        history.receive(history.received(1), at=2)


def test_a_delivery_comes_on_its_stream(leased: History) -> None:
    leased.publish(b"two", first_id=2)
    leased.deliver(2, at=1)
    leased.auditor.stream_opened(2, "s", "", 0, 0, 0)

    with breaks("I10", "came on another"):
        leased.receive(leased.received(2), at=2, stream=2)


def test_a_pull_gets_what_was_granted_to_one_call(history: History) -> None:
    history.publish(b"one", b"two")
    history.journal.deliver(1, at=1, stream_id=4)
    history.journal.deliver(2, at=1, stream_id=5)
    history.commit(1)

    with breaks("I10", "one response"):
        history.receive(history.received(1), history.received(2), at=2, stream=0)


# -- dead letters -----------------------------------------------------------------------------------------

_MARKS = {
    "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    "CloudPubSubDeadLetterSourceSubscription": "s",
    "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
    "CloudPubSubDeadLetterSourceTopicPublishTime": "1970-01-01T00:00:00.000+00:00",
}


def forwarding(**copy: Any) -> History:
    """Message 1 has failed five times and is forwarded as message 2, which a Pull delivers."""
    name = "projects/p/subscriptions/s"
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 5}
    history = History(dead_letter_policy=policy)
    auditor, journal = history.auditor, history.journal
    auditor.configuring("CreateTopic", pb.Topic(name="dead"), 0)
    journal.topic("created", 0, topic_id=DEAD_TOPIC, name="dead")
    for sub_id, topic_id, of_sub in ((2, TOPIC, name), (3, DEAD_TOPIC, "letters")):
        auditor.configuring("CreateSubscription", pb.Subscription(name=of_sub), 0)
        resource = {"name": of_sub, "enable_exactly_once_delivery": True}
        if sub_id == 2:
            resource["dead_letter_policy"] = policy
        detail = {"change": "created", "subscription": resource}
        journal.add(10, 0, topic_id=topic_id, sub_id=sub_id, detail=detail)
    history.publish(b"one")
    for number in range(1, 6):
        auditor.asking("modack", name, [history.ack_id(1, number, sub_id=2)], 0, us(number))
        journal.deliver(1, at=number, sub_id=2)
        if number < 5:
            journal.ask(NACK, 1, at=number, sub_id=2)
    message = pb.PubsubMessage(data=b"one", attributes=_MARKS)
    message.MergeFrom(pb.PubsubMessage(**copy))
    for key, text in list(message.attributes.items()):
        if not text:
            del message.attributes[key]
    with journal.commit():
        journal.ask(NACK, 1, at=5, sub_id=2)
        hashed = payload_hash(message.data, message.attributes)
        journal.forward(1, 2, at=5, topic_id=DEAD_TOPIC, sub_id=0, payload_hash=hashed)
        # The forwarding is of subscription 2.
        at = next(i for i, record in enumerate(journal._row or ()) if record.kind == 7)
        assert journal._row is not None
        journal._row[at] = journal._row[at]._replace(sub_id=2)
    history.commit(5)
    journal.deliver(2, at=6, topic_id=DEAD_TOPIC, sub_id=3)
    history.commit(6)
    message.message_id = "2"
    message.publish_time.FromMicroseconds(us(5))
    history.messages[2] = message
    return history


def hear_the_copy(history: History) -> None:
    received = pb.ReceivedMessage(ack_id=history.ack_id(2, sub_id=3), message=history.messages[2])
    history.auditor.delivered(0, "letters", [received], 0, us(7))


def test_a_dead_letter_says_where_it_comes_from() -> None:
    hear_the_copy(forwarding())


@pytest.mark.parametrize(
    "attributes",
    [
        {"CloudPubSubDeadLetterSourceDeliveryCount": "6"},
        {"CloudPubSubDeadLetterSourceSubscription": ""},
        {"CloudPubSubDeadLetterSourceMore": "x"},
        {"color": "red"},
    ],
)
def test_a_dead_letter_is_the_message_with_its_marks(attributes: dict[str, str]) -> None:
    history = forwarding(attributes=attributes)

    with breaks("I8"):
        hear_the_copy(history)


# -- acks and deadlines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("result", "answer"), [(OK, Answer.OK), (OK, Answer.UNKNOWN)])
def test_an_answer_is_in_the_journal(leased: History, result: int, answer: Answer) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3, result=result)
    leased.commit(3)

    leased.answer("ack", {leased.ack_id(1): answer}, sent=2, at=4)


def test_nobody_is_told_ok_before_the_commit(leased: History) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)

    with breaks("I5"):
        leased.answer("ack", {leased.ack_id(1): Answer.OK}, sent=2, at=4)


def test_nobody_is_told_what_was_not_decided(leased: History) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.commit(3)

    with breaks("I5"):
        leased.answer("ack", {leased.ack_id(1): Answer.PERMANENT}, sent=2, at=4)


def test_a_record_is_the_answer_of_one_request(leased: History) -> None:
    for _ in range(2):
        leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.commit(3)
    leased.answer("ack", {leased.ack_id(1): Answer.OK}, sent=2, at=4)

    with breaks("I5"):
        leased.answer("ack", {leased.ack_id(1): Answer.OK}, sent=2, at=4)


def test_a_repetition_has_a_record_of_its_own(leased: History) -> None:
    for _ in range(2):
        leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.journal.ask(ACK, 1, at=3, result=NOOP)
    leased.commit(3)

    for _ in range(2):
        leased.answer("ack", {leased.ack_id(1): Answer.OK}, sent=2, at=4)


def test_nothing_is_acked_that_nobody_asked_for(leased: History) -> None:
    leased.journal.ask(ACK, 1, at=3)

    with breaks("I5", "nobody asked"):
        leased.commit(3)


def test_an_ack_is_done_once_for_each_time_it_was_asked(leased: History) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.journal.ask(ACK, 1, at=3, result=NOOP)

    with breaks("I5", "nobody asked"):
        leased.commit(3)


def test_an_extension_is_as_long_as_asked(leased: History) -> None:
    leased.ask("modack", leased.ack_id(1), at=2, seconds=30)
    leased.journal.ask(EXTEND, 1, at=3, aux=20)

    with breaks("I5", "nobody asked"):
        leased.commit(3)


def test_of_a_request_that_was_refused_as_a_whole_nothing_is_done(leased: History) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.commit(3)

    with breaks("I5", "refused, and took effect"):
        leased.auditor.answered("ack", "s", [leased.ack_id(1)], 0, us(2), us(4), {})


def test_what_was_refused_as_a_whole_is_not_done_later(leased: History) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.auditor.answered("ack", "s", [leased.ack_id(1)], 0, us(2), us(4), {})
    leased.journal.ask(ACK, 1, at=5)

    with breaks("I5", "nobody asked"):
        leased.commit(5)


def test_every_id_of_a_request_has_one_outcome(leased: History) -> None:
    ids = [leased.ack_id(1), "nonsense"]
    leased.ask("ack", *ids, at=2)
    leased.journal.ask(ACK, 1, at=3)
    leased.commit(3)

    with breaks("I5", "asked about"):
        leased.auditor.answered("ack", "s", ids, 0, us(2), us(4), {ids[0]: Answer.OK})


@pytest.mark.parametrize("answer", [Answer.OK, Answer.UNORDERED])
def test_an_id_that_the_server_never_made_is_not_accepted(leased: History, answer: Answer) -> None:
    altered = leased.ack_id(1)[:-1] + ("A" if leased.ack_id(1)[-1] != "A" else "B")
    leased.ask("ack", altered, at=2)

    with breaks("I4"):
        leased.answer("ack", {altered: answer}, sent=2, at=3)


def test_an_id_of_another_subscription_is_refused(leased: History) -> None:
    foreign = leased.ack_id(1, sub_id=9)
    leased.ask("ack", foreign, at=2)

    leased.answer("ack", {foreign: Answer.PERMANENT}, sent=2, at=3)
    with breaks("I4"):
        leased.answer("ack", {foreign: Answer.OK}, sent=2, at=3)


# -- what the journal tells -------------------------------------------------------------------------------


def _acked(history: History) -> None:
    history.ask("ack", history.ack_id(1), at=2)
    history.journal.ask(ACK, 1, at=2)


@pytest.mark.parametrize(
    ("invariant", "before", "what"),
    [
        ("I2", _acked, lambda journal: journal.deliver(1, at=3)),
        ("I3", lambda _: None, lambda journal: journal.deliver(1, at=3)),
        ("I3", lambda _: None, lambda journal: journal.expire(1, at=10.9)),
        (
            "I8",
            lambda _: None,
            lambda journal: (journal.expire(1, at=12), journal.deliver(1, at=13, attempt=1)),
        ),
        ("I9", lambda _: None, lambda journal: journal.drop(1, at=12)),
        ("I10", lambda _: None, lambda journal: journal.topic("created", 12)),
    ],
    ids=["after its ack", "inside its lease", "early expiry", "attempts", "drop", "created twice"],
)
def test_what_the_journal_tells_is_called_by_its_name(
    leased: History, invariant: str, before: Callable[[History], None], what: Callable[[Journal], None]
) -> None:
    before(leased)
    leased.commit(2)
    what(leased.journal)

    with breaks(invariant):
        leased.commit(20)


@pytest.mark.parametrize(
    ("invariant", "kind", "at", "result"),
    [("I4", ACK, 12, OK), ("I5", ACK, 3, PERMANENT), ("I5", ACK, 12, NOOP), ("I6", ACK, 3, TRANSIENT)],
)
def test_answers_that_are_wrong(leased: History, invariant: str, kind: int, at: float, result: int) -> None:
    leased.ask("ack", leased.ack_id(1), at=2)
    leased.journal.ask(kind, 1, at=at, result=result)

    with breaks(invariant):
        leased.commit(at)


# -- windows ----------------------------------------------------------------------------------------------


def windowed(messages_max: int = 0, bytes_max: int = 0) -> History:
    history = History()
    history.publish(b"one", b"two", b"three")
    history.open_stream(messages_max, bytes_max)
    return history


@pytest.mark.parametrize("limits", [(2, 0), (0, 20), (0, 11)])
def test_a_window_is_not_exceeded(limits: tuple[int, int]) -> None:
    history = windowed(*limits)
    history.deliver(1, 2, at=1)

    with breaks("I7"):
        history.deliver(3, at=2)


@pytest.mark.parametrize("limits", [(3, 0), (0, 21), (0, 0), (-1, -1)])
def test_a_window_may_be_filled(limits: tuple[int, int]) -> None:
    windowed(*limits).deliver(1, 2, 3, at=1)


def test_what_is_over_makes_room() -> None:
    history = windowed(1)
    history.deliver(1, at=1)
    history.ask("ack", history.ack_id(1), at=2)
    history.journal.ask(ACK, 1, at=2)
    history.deliver(2, at=3)
    history.journal.expire(2, at=13.1)

    history.deliver(2, at=14)


def test_what_a_client_is_done_with_makes_room() -> None:
    history = windowed(1)
    history.deliver(1, at=1)
    history.ask("modack", history.ack_id(1), at=2)

    history.deliver(2, at=3)


def test_an_extension_makes_no_room() -> None:
    history = windowed(1)
    history.deliver(1, at=1)
    history.ask("modack", history.ack_id(1), at=2, seconds=30)

    with breaks("I7"):
        history.deliver(2, at=3)


def test_a_window_is_what_the_client_asked_for() -> None:
    history = windowed(2)
    history.auditor.stream_opened(1, "s", "", 1, 0, 0)
    history.deliver(1, at=1)

    with breaks("I7", "asked for"):
        history.receive(history.received(1), at=2)


# -- resources --------------------------------------------------------------------------------------------


def test_a_change_is_in_the_journal_when_it_is_answered(history: History) -> None:
    request = pb.Topic(name="new")
    history.auditor.configuring("CreateTopic", request, us(1))
    with breaks("I10"):
        history.auditor.configured("CreateTopic", request, us(1), us(3), True)
    history.journal.topic("created", 2, topic_id=5, name="new")
    history.commit(2)

    history.auditor.configured("CreateTopic", request, us(1), us(3), True)


def test_nothing_is_changed_that_nobody_asked_for(history: History) -> None:
    history.journal.config("updated", 2, enable_message_ordering=True)

    with breaks("I10", "nobody asked"):
        history.commit(2)


def test_what_expires_was_not_asked_for(history: History) -> None:
    history.journal.config("expired", 2)

    history.commit(2)


def test_a_change_that_was_refused_is_not_made(history: History) -> None:
    request = pb.DeleteTopicRequest(topic="t")
    history.auditor.configuring("DeleteTopic", request, us(1))
    history.auditor.configured("DeleteTopic", request, us(1), us(2), False)
    history.journal.topic("deleted", 3)

    with breaks("I10", "nobody asked"):
        history.commit(3)


def test_a_seek_goes_where_it_was_asked_to(history: History) -> None:
    request = pb.SeekRequest(subscription="s", time=pb.Timestamp(seconds=5))
    history.auditor.configuring("Seek", request, us(1))
    history.journal.seek(6, 2)

    with breaks("I10", "nobody asked"):
        history.commit(2)


# -- the state --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished() -> tuple[Auditor, SimDisk]:
    """An auditor that has seen a whole history, and the disk that it ended on."""
    auditor = Auditor()
    world = World(2, auditor)
    outcome = world.run()
    assert not outcome.failed, outcome.text
    return auditor, world.disk


def test_what_is_read_back_is_what_the_journal_tells(finished: tuple[Auditor, SimDisk]) -> None:
    auditor, disk = finished

    auditor.check_disk(disk)


@pytest.mark.parametrize("what", ["topics", "subscriptions", "rows"])
def test_what_is_missing_on_the_disk_is_noticed(
    finished: tuple[Auditor, SimDisk], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor, disk = finished
    there = getattr(disk, what)
    shortened: Any = there[1:] if isinstance(there, list) else dict(list(there.items())[1:])
    monkeypatch.setattr(disk, what, shortened)

    with breaks("I10"):
        auditor.check_disk(disk)


def test_a_history_says_what_it_judged() -> None:
    outcome = run_seed(3)

    assert not outcome.failed, outcome.text
    assert outcome.counts["deliveries"] > 50
    assert outcome.counts["ack ok"] > 20
    assert outcome.counts["comparisons"] > 1
