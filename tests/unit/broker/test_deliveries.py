"""Who gets what, and what a delivery is."""

from __future__ import annotations

from typing import Any

import pytest

from pubsubd.broker.consumer import Consumer
from pubsubd.eod.ack_id import AckIds, AckToken
from pubsubd.model import errors, limits
from pubsubd.model.events import Event, Kind
from pubsubd.model.message import ordering_key_hash
from pubsubd.wire import pb
from tests.unit.broker.world import SECOND, SUBSCRIPTION, TOPIC, World, check, numbered

OTHER = "projects/p/subscriptions/other"


def got(*consumers: Consumer) -> list[list[int]]:
    return [consumer.shell.message_ids for consumer in consumers]


# -- publish -----------------------------------------------------------------------------------------------


def test_message_ids_are_consecutive_over_the_whole_server(eod: World) -> None:
    eod.create_topic("projects/p/topics/invoices")

    assert eod.publish(b"a", b"b") == [1, 2]
    assert eod.publish(b"c", topic="projects/p/topics/invoices") == [3]
    assert eod.publish(b"d") == [4]


def test_a_request_is_accepted_as_a_whole_or_not(eod: World) -> None:
    request = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"a"), pb.PubsubMessage()])

    with pytest.raises(errors.InvalidArgument):
        eod.broker.publish(request, request.ByteSize(), eod.caller(), eod.now_us)

    assert eod.publish(b"b") == [1]
    assert eod.owed() == [1]


def test_what_nobody_subscribes_to_is_not_kept(world: World) -> None:
    world.publish(b"a", b"b")
    world.turn()

    assert world.store.chunks == {}
    assert len(world.events(Kind.PUBLISH)) == 2
    world.create_subscription()
    world.turn()
    assert world.pull() == []
    assert world.publish(b"c") == [3]
    assert [lease.message_id for lease in world.pull()] == [3]


def test_a_message_arrives_as_it_was_sent(eod: World) -> None:
    message = pb.PubsubMessage(data=b"data", attributes={"a": "b"}, message_id="mine", ordering_key="k")
    request = pb.PublishRequest(topic=TOPIC, messages=[message])
    eod.broker.publish(request, request.ByteSize(), eod.caller(), eod.now_us)
    consumer = eod.open_stream()
    eod.turn()

    (found,) = consumer.shell.messages()
    assert (
        found.data, dict(found.attributes), found.message_id, found.ordering_key
    ) == (b"data", {"a": "b"}, "1", "k")  # fmt: skip  # the two sides on a line each
    assert eod.now_us == found.publish_time.ToMicroseconds()


def test_all_subscriptions_get_every_message_and_the_bytes_are_shared(eod: World) -> None:
    eod.create_subscription(OTHER, exactly_once=False)
    one, two = eod.open_stream(), eod.open_stream(OTHER)
    eod.publish(b"a", b"b")
    eod.turn()

    assert got(one, two) == [[1, 2], [1, 2]]
    assert one.shell.got[0].datas[0] is two.shell.got[0].datas[0]


def test_only_what_is_published_after_its_creation_belongs_to_a_subscription(eod: World) -> None:
    eod.publish(b"a")
    eod.create_subscription(OTHER)
    eod.publish(b"b")
    eod.turn()

    assert [lease.message_id for lease in eod.pull(OTHER)] == [2]
    assert [lease.message_id for lease in eod.pull()] == [1, 2]


def test_what_waits_for_a_commit_is_bounded(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs must not fill the memory: publishers come again."""
    monkeypatch.setattr(limits, "UNCOMMITTED_BYTES_MAX", 1000)
    assert eod.publish(b"." * 800) == [1]
    eod.begin()
    assert eod.publish(b"." * 800) == [2]
    with pytest.raises(errors.Unavailable):
        eod.publish(b".")
    eod.end()
    assert eod.publish(b".") == [3]
    eod.begin()
    eod.fail()

    assert eod.publish(b"." * 800) == [2]
    eod.turn()
    assert [lease.message_id for lease in eod.pull()] == [1, 2]


def test_ids_of_messages_that_nobody_gets_are_not_given_again(world: World) -> None:
    world = World(journal=False)
    world.create_topic()
    world.turn()
    assert world.publish(b"a") == [1]
    assert world.turn().must_commit()
    world.crash()

    assert world.publish(b"b") == [2]


# -- leases ------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_it_is_committed(eod: World) -> None:
    eod.publish(b"a")
    eod.turn()
    consumer = eod.open_stream()
    eod.begin()
    assert got(consumer) == [[]]
    eod.end()
    assert got(consumer) == [[1]]


def test_a_lease_lasts_as_long_as_the_stream_says_from_its_commit_on(eod: World) -> None:
    eod.publish(b"a")
    eod.commit_us = 1234
    consumer = eod.open_stream(seconds=60)
    eod.turn()

    (lease,) = consumer.shell.leases
    assert eod.now_us + 1234 + 60 * SECOND == lease.deadline_us
    assert eod.now_us == lease.delivered_us


def test_a_pull_uses_the_deadline_of_the_subscription(world: World) -> None:
    world.create_subscription(ack_deadline_seconds=77)
    world.publish(b"a")
    (lease,) = world.pull()

    assert world.now_us + 77 * SECOND == lease.deadline_us


def test_a_new_stream_deadline_is_for_later_deliveries(eod: World) -> None:
    consumer = eod.open_stream(seconds=10)
    eod.publish(b"a")
    eod.turn()
    eod.broker.stream_request(consumer, pb.StreamingPullRequest(stream_ack_deadline_seconds=60), eod.now_us)
    eod.broker.stream_request(consumer, pb.StreamingPullRequest(), eod.now_us)
    eod.publish(b"b")
    eod.broker.set_ready(consumer)
    eod.turn()

    assert [lease.deadline_us - eod.now_us for lease in consumer.shell.leases] == [10 * SECOND, 60 * SECOND]


def test_an_ack_id_names_its_delivery(eod: World) -> None:
    eod.publish(b"a")
    eod.turn()
    consumer = eod.open_stream()
    eod.turn()

    (ack_id,) = consumer.shell.ack_ids
    expected = AckToken(eod.subscription().sub_id, 1, 1, 1, eod.now_us, consumer.client_id, eod.store.boot)
    assert expected == AckIds(eod.store.secret).read(ack_id)


def test_a_delivery_is_in_the_journal(eod: World) -> None:
    request = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"a", ordering_key="k")])
    eod.broker.publish(request, request.ByteSize(), eod.caller(), eod.now_us)
    published_us = eod.now_us
    eod.advance(3)
    consumer = eod.open_stream()
    eod.turn()

    subscription = eod.subscription()
    (event,) = eod.events(Kind.DELIVER)
    (lease,) = consumer.shell.leases
    assert event == Event(
        eod.now_us, Kind.DELIVER, subscription.topic.topic_id, subscription.sub_id, 1, 1, 1,
        lease.deadline_us, published_us, 0, consumer.client_id, consumer.stream_id, ordering_key_hash("k"),
        lease.size, 0, 0,
    )  # fmt: skip  # short items, many to a line


# -- flow control ------------------------------------------------------------------------------------------


def test_a_stream_gets_one_response_until_it_can_take_the_next(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.turn()
    eod.publish(b"b")
    eod.settle()
    assert got(consumer) == [[1]]

    eod.broker.set_ready(consumer)
    eod.settle()
    assert got(consumer) == [[1, 2]]


def test_a_stream_that_is_not_ready_gets_nothing(eod: World) -> None:
    consumer = eod.open_stream(ready=False)
    eod.publish(b"a")
    eod.settle()

    assert got(consumer) == [[]]
    assert len(eod.subscription().leases) == 0, "no lease starts for what waits"


@pytest.mark.parametrize("how", ["ack", "nack", "lapse", "pull acks it"])
def test_a_window_is_freed_by_whatever_ends_a_lease(eod: World, how: str) -> None:
    consumer = eod.open_stream(max_outstanding_messages=2)
    eod.publish(*numbered(5))
    eod.settle()
    eod.broker.set_ready(consumer)
    eod.settle()
    assert got(consumer) == [[1, 2]]

    if how == "ack":
        eod.acknowledge(consumer.shell.ack_ids[:1])
    elif how == "nack":
        eod.nack(consumer.shell.ack_ids[:1])
    elif how == "lapse":
        eod.modify_ack_deadline(consumer.shell.ack_ids[1:], 60)
        eod.advance(10, us=1)
    else:
        other = eod.open_stream()
        request = pb.StreamingPullRequest(ack_ids=consumer.shell.ack_ids[:1])
        eod.broker.stop_assigning(other)
        eod.broker.stream_request(other, request, eod.now_us)
    eod.settle()

    assert len(consumer.shell.message_ids) == 3
    assert consumer.outstanding_messages == 2
    check(eod.broker)


def test_a_failed_ack_does_not_take_up_room_again(eod: World) -> None:
    consumer = eod.open_stream(max_outstanding_messages=1)
    eod.publish(b"a")
    eod.settle()
    eod.advance(11)
    eod.broker.stop_assigning(consumer)
    eod.settle()

    assert consumer.shell.ack_ids == eod.acknowledge(consumer.shell.ack_ids)
    assert consumer.outstanding_messages == 0


def test_a_window_in_bytes_counts_the_message_as_it_is_sent(eod: World) -> None:
    eod.publish(*[b"." * 100] * 5)
    eod.turn()
    limit = 2 * len(eod.subscription().topic.tail.after(0, 1)[0].data)

    exact, more = (
        eod.open_stream(max_outstanding_bytes=limit),
        eod.open_stream(max_outstanding_bytes=limit + 1),
    )
    eod.settle()

    assert exact.outstanding_messages == 2
    assert more.outstanding_messages == 3


def test_streams_share_and_a_full_one_stalls_nobody(eod: World) -> None:
    small = eod.open_stream(max_outstanding_messages=1)
    wide = [eod.open_stream(), eod.open_stream()]
    eod.publish(*numbered(101))
    eod.settle()

    counts = [len(found) for found in got(small, *wide)]
    assert sum(counts) == 101
    assert counts[0] == 1
    assert all(count >= 35 for count in counts[1:])


def test_first_deliveries_go_out_in_order(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESPONSE_BYTES_MAX", 100)
    streams = [eod.open_stream() for _ in range(3)]
    eod.publish(*numbered(50, size=20))
    for _ in range(30):
        eod.settle()
        for stream in streams:
            eod.broker.set_ready(stream)

    assert list(range(1, 51)) == sorted(number for found in got(*streams) for number in found)
    assert all(found == sorted(found) for found in got(*streams))
    events = [event.message_id for event in eod.events(Kind.DELIVER)]
    assert max(abs(at - message_id) for at, message_id in enumerate(events, 1)) <= 20


def test_a_response_has_its_bound_and_a_larger_message_goes_alone(
    eod: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESPONSE_BYTES_MAX", 200)
    consumer = eod.open_stream()
    eod.publish(b"." * 20, b"." * 20, b"." * 500, b"." * 20)
    for _ in range(4):
        eod.settle()
        eod.broker.set_ready(consumer)

    assert [[lease.message_id for lease in one.leases] for one in consumer.shell.got] == [[1, 2], [3], [4]]


def test_what_one_commit_delivers_is_bounded_and_nobody_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUMP_BYTES_MAX", 100)
    names = [f"projects/p/subscriptions/sub{n}" for n in range(6)]
    for name in names:
        world.create_subscription(name)
    streams = [world.open_stream(name) for name in names]
    world.publish(b"." * 60)
    first = world.turn()

    assert len(first.deliveries) == 2
    assert world.broker.has_work()
    world.settle()
    assert got(*streams) == [[1]] * 6


# -- pulls -------------------------------------------------------------------------------------------------


def test_a_pull_gets_what_it_asks_for_and_is_done(eod: World) -> None:
    eod.publish(*numbered(5))
    consumer = eod.open_pull(max_messages=3)
    eod.settle()
    eod.broker.set_ready(consumer)
    eod.settle()

    assert got(consumer) == [[1, 2, 3]]
    assert eod.subscription().consumers == {}


def test_a_waiting_pull_gets_what_comes(eod: World) -> None:
    consumer = eod.open_pull()
    eod.settle()
    eod.publish(b"a")
    eod.settle()

    assert got(consumer) == [[1]]


def test_a_pull_that_was_given_up_gets_nothing(eod: World) -> None:
    consumer = eod.open_pull()
    eod.broker.close_pull(consumer)
    eod.publish(b"a")
    eod.settle()

    assert got(consumer) == [[]]
    assert len(eod.subscription().leases) == 0
    eod.broker.close_pull(consumer)


def test_a_pull_is_capped(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULL_MESSAGES_MAX", 2)
    eod.publish(*numbered(5))

    assert [lease.message_id for lease in eod.pull(max_messages=1000)] == [1, 2]


def test_pulls_and_streams_share_one_lease_table(eod: World) -> None:
    consumer = eod.open_stream(max_outstanding_messages=2)
    eod.publish(*numbered(3))
    eod.settle()

    (third,) = eod.pull()
    assert third.message_id == 3
    assert eod.pull() == []
    assert eod.acknowledge([third.ack_id, *consumer.shell.ack_ids]) == []


# -- requests on streams -----------------------------------------------------------------------------------


def stream_request(world: World, consumer: Consumer, **fields: Any) -> tuple[list[str], list[str]]:
    verdict = world.broker.stream_request(consumer, pb.StreamingPullRequest(**fields), world.now_us)
    return (
        [refusal.ack_id for refusal in verdict.refused_acks],
        [refusal.ack_id for refusal in verdict.refused_extensions],
    )


def test_acks_and_extensions_on_a_stream_are_judged_each(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(*numbered(4))
    eod.settle()
    a, b, c, d = consumer.shell.ack_ids

    refused = stream_request(
        eod, consumer, ack_ids=[a, "x"], modify_deadline_ack_ids=[b, "y", c, d],
        modify_deadline_seconds=[60, 60, 0, 30],
    )  # fmt: skip  # short items, many to a line

    assert refused == (["x"], ["y"])
    left = {lease.message_id: lease.deadline_us - eod.now_us for lease in eod.subscription().leases}
    assert left == {2: 60 * SECOND, 4: 30 * SECOND}
    assert eod.subscription().waiting_count == 1


def test_an_id_that_is_acked_and_extended_by_one_request_is_acked(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.settle()
    ack_id = consumer.shell.ack_ids[0]

    refused = stream_request(
        eod, consumer, ack_ids=[ack_id], modify_deadline_ack_ids=[ack_id], modify_deadline_seconds=[60]
    )

    assert refused == ([], [])
    assert eod.owed() == []


def test_without_exactly_once_a_malformed_id_ends_the_stream_and_nothing_is_done(std: World) -> None:
    consumer = std.open_stream()
    std.publish(b"a", b"b")
    std.settle()
    a, b = consumer.shell.ack_ids

    with pytest.raises(errors.InvalidArgument):
        stream_request(
            std, consumer, ack_ids=[a], modify_deadline_ack_ids=[b, "x"], modify_deadline_seconds=[0, 60]
        )

    assert [1, 2] == std.owed() == list(std.subscription().leases.by_message)


def test_without_exactly_once_a_stream_does_not_open_with_a_malformed_id(std: World) -> None:
    request = pb.StreamingPullRequest(
        subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10, ack_ids=["x"]
    )

    with pytest.raises(errors.InvalidArgument):
        std.broker.open_stream(request, 100, "client", std.now_us, None)
    assert std.subscription().consumers == {}


def test_a_stream_that_stops_taking_keeps_its_leases(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.settle()
    eod.broker.stop_assigning(consumer)
    eod.broker.set_ready(consumer)
    eod.publish(b"b")
    eod.settle()

    assert got(consumer) == [[1]]
    assert stream_request(eod, consumer, ack_ids=consumer.shell.ack_ids) == ([], [])


def test_a_request_on_a_stream_whose_subscription_was_deleted_does_nothing(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a")
    eod.settle()
    request = pb.DeleteSubscriptionRequest(subscription=SUBSCRIPTION)
    eod.broker.delete_subscription(request, eod.now_us)
    before = len(eod.broker.ledger.now.records), len(eod.broker.ledger.now.events)

    with pytest.raises(errors.NotFound):
        stream_request(eod, consumer, ack_ids=consumer.shell.ack_ids)

    assert before == (len(eod.broker.ledger.now.records), len(eod.broker.ledger.now.events))


# -- streams in the journal --------------------------------------------------------------------------------


def test_a_client_with_a_long_name_is_cut_short(eod: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_CHARS_MAX", 10)
    eod.open_stream(client_id="0123456789abc")
    eod.caller("0123456789def")
    eod.turn()

    names = [text for text in eod.store.journal_details.values() if '"client"' in text]
    assert ['"client":"0123456789"' in text for text in names] == [True]


def test_streams_and_unary_callers_have_numbers_and_names_in_the_journal(eod: World) -> None:
    opened_us = eod.now_us
    consumer = eod.open_stream(client_id="mine", max_outstanding_messages=7)
    eod.advance(5)
    eod.close_stream(consumer)
    one, again, other = eod.caller("java"), eod.caller("java"), eod.caller("go")
    eod.turn()

    opened, closed, java, go = eod.events(Kind.STREAM)
    assert (opened.result, closed.result) == (0, 1)
    assert consumer.stream_id == opened.stream_id == closed.stream_id
    assert (0, opened_us) == (opened.ref_ts_us, closed.ref_ts_us)
    assert [one.client_id, other.client_id] == [java.client_id, go.client_id]
    assert again.client_id == one.client_id != other.client_id
    assert len({consumer.stream_id, one.call_id, again.call_id, other.call_id}) == 4
    details = list(eod.store.journal_details.values())
    assert any('"client":"mine"' in text and '"max_outstanding_messages":7' in text for text in details)
    assert any('"client":"java"' in text and '"unary":true' in text for text in details)
