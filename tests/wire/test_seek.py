"""Seek: to a time and to a snapshot, with leases outstanding, with streams open, and what is kept for it."""

import asyncio
import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, permanent, refused, unordered
from tests.wire.harness import case
from tests.wire.support import (
    Delivery,
    Sub,
    World,
    data_of,
    from_now,
    message_ids,
    timestamp,
    unique,
    us_of,
)

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
FAILED_PRECONDITION = StatusCode.FAILED_PRECONDITION
PAST = pb.Timestamp(seconds=1)
YEAR_10000 = 253_402_300_800


def leaf(name: str) -> str:
    return name.rsplit("/", 1)[1]


def publish_us(delivery: Delivery) -> int:
    return us_of(delivery.message.publish_time)


async def publish_each(sub: Sub, *data: bytes) -> list[str]:
    """Publishes messages with times of their own."""
    return [(await sub.publish_data(item))[0] for item in data]


async def acked(world: World, *data: bytes, **fields) -> tuple[Sub, list[Delivery]]:
    """A subscription that retains what it acked, and messages that it acked."""
    sub = await world.subscription(retain_acked_messages=True, **fields)
    await publish_each(sub, *data)
    deliveries = await sub.pull(len(data))
    await sub.ack(*deliveries)
    return sub, deliveries


async def backlog(sub: Sub, within: float = 2) -> list[bytes]:
    """What the subscription delivers now, which is not acked by this."""
    await asyncio.sleep(0.1)
    return data_of(await sub.pull_now())


# Ids and leases across a seek, with exactly-once delivery


@case
async def test_lease_of_a_message_that_stays_unacked_can_be_extended(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.seek(PAST)
    assert await sub.pull_now() == []
    await sub.modack(20, a)
    await sub.ack(a)


@case
async def test_lease_of_a_purged_message_cannot_be_extended(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.seek(from_now(0))
    with permanent(a):
        await sub.modack(30, a)
    await sub.ack(a)
    await sub.ack(a)


@case
async def test_old_ids_of_a_message_that_came_back_are_good_for_nothing(world: World):
    sub, (a,) = await acked(world, b"a")
    await sub.seek(PAST)
    for _ in range(2):
        with permanent(a):
            await sub.modack(30, a)
        with permanent(a):
            await sub.nack(a)
        with permanent(a):
            await sub.ack(a)
        (b,) = await sub.pull()  # the second time around the message is leased again
        assert b.message_id == a.message_id
        await sub.nack(b)


@case
async def test_purged_message_comes_back_with_an_earlier_seek(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    a, b = await sub.lease(2)
    await sub.nack(b)
    await sub.seek(from_now(0))
    await sub.seek(PAST)
    again = await sub.pull(2)
    assert message_ids(again) == message_ids([a, b])
    for old in (a, b):
        with permanent(old):
            await sub.ack(old)
        with permanent(old):
            await sub.modack(10, old)
    await sub.ack(*again)


@case
async def test_lapsed_id_of_a_purged_message_cannot_be_extended_or_nacked(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()
    await sub.seek(from_now(0))
    with permanent(a):
        await sub.modack(10, a)
    with permanent(a):
        await sub.nack(a)
    await sub.nothing_for(1)


@case
async def test_repeated_seeks_give_a_new_id_each_time(world: World):
    sub, (first,) = await acked(world, b"a")
    seen = [first]
    for _ in range(4):
        await sub.seek(PAST)
        (again,) = await sub.pull()
        with permanent(seen[-1]):
            await sub.ack(seen[-1])
        await sub.ack(again)
        seen.append(again)
    assert len({delivery.ack_id for delivery in seen}) == 5


# The same without exactly-once delivery


@case
async def test_id_of_a_message_that_came_back_does_nothing_without_exactly_once(world: World):
    sub, (a,) = await acked(world, b"a", eod=False)
    await sub.seek(PAST)
    await sub.ack(a)
    await sub.modack(30, a)
    await sub.nack(a)
    (b,) = await sub.pull()
    await sub.ack(a)
    await sub.nack(b)
    (c,) = await sub.pull()
    assert c.message_id == a.message_id


@case
async def test_ids_of_purged_messages_are_ok_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    a, b, c = await sub.lease(3)
    await sub.seek(from_now(0))
    await sub.ack(a)
    await sub.modack(10, b)
    await sub.nack(c)
    await sub.nothing_for(2)


@case
async def test_lease_stays_valid_across_a_seek_without_exactly_once(world: World):
    sub = await world.subscription(eod=False)
    a, b = await sub.lease(2)
    await sub.seek(PAST)
    assert await sub.pull_now() == []
    await sub.ack(a)
    await sub.nack(b)
    (again,) = await sub.pull()
    assert again.message_id == b.message_id


# To a time


@case
async def test_time_divides_what_is_acked_from_what_is_not(world: World):
    data = [b"1", b"2", b"3", b"4", b"5"]
    sub, deliveries = await acked(world, *data)
    moment = publish_us(deliveries[2])
    nanosecond_later = pb.Timestamp(seconds=moment // 1_000_000, nanos=moment % 1_000_000 * 1000 + 1)
    for target, expected in (
        (timestamp(moment), data[2:]),
        (timestamp(moment + 1), data[3:]),
        (timestamp(moment - 1), data[2:]),
        (nanosecond_later, data[3:]),
        (PAST, data),
        (pb.Timestamp(seconds=-62_135_596_800), data),
        (pb.Timestamp(seconds=YEAR_10000 - 1, nanos=999_999_999), []),
    ):
        await sub.seek(target)
        found = await sub.pull(len(expected))
        assert data_of(found) == expected
        assert await sub.pull_now() == []
        if found:
            await sub.ack(*found)


@case
async def test_time_divides_the_backlog_too(world: World):
    sub = await world.subscription()
    await publish_each(sub, b"1", b"2", b"3", b"4")
    leased = await sub.pull(3)
    await sub.nack(leased[1])
    await sub.seek(timestamp(publish_us(leased[2])))
    await sub.ack(leased[0])
    with permanent(leased[0]):
        await sub.nack(leased[0])
    assert data_of(await sub.pull()) == [b"4"]
    await sub.ack(leased[2])
    await sub.nothing_for(1)


@case
async def test_seek_into_the_future_purges_and_holds_nothing_back_later(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    await sub.publish(3)
    await sub.seek(from_now(3600))
    assert await sub.pull_now() == []
    later = await sub.publish(2)
    assert message_ids(await sub.pull(2)) == later


@case
async def test_seek_to_the_past_brings_no_acked_message_back_that_was_not_retained(world: World):
    sub = await world.subscription()
    a, b = await sub.lease(2)
    await sub.ack(a)
    await sub.nack(b)
    await sub.seek(PAST)
    (again,) = await sub.pull()
    assert again.message_id == b.message_id
    with permanent(b):
        await sub.ack(b)
    await sub.ack(a)  # nothing has changed for it
    await sub.nothing_for(1)


@case
async def test_other_subscriptions_of_the_topic_notice_nothing(world: World):
    sub, _ = await acked(world, b"1", b"2")
    other = await world.subscription(topic=sub.topic, retain_acked_messages=True)
    ids = await sub.publish(2)
    (a, b) = await other.pull(2)
    await other.ack(a)
    await sub.seek(PAST)
    assert len(await sub.pull(4)) == 4
    assert await other.pull_now() == []
    await sub.seek(from_now(1))
    await other.nack(b)
    assert message_ids(await other.pull()) == ids[1:]


@case
async def test_many_messages_come_back_in_the_order_of_their_publication(world: World):
    sub = await world.subscription(retain_acked_messages=True, ack_deadline_seconds=60)
    ids = await sub.publish(3000)
    for _ in range(3):
        await sub.ack(*await sub.pull(1000))
    later = await sub.publish(500)
    await sub.seek(PAST)
    seen: list[str] = []
    while len(seen) < 3500:
        deliveries = await sub.pull(500)
        seen += message_ids(deliveries)
        await sub.ack(*deliveries)
    assert seen == ids + later
    assert await sub.pull_now() == []


@case
async def test_attempts_start_again_for_what_was_acked_and_go_on_for_the_rest(world: World):
    dead = await world.topic()
    policy = dict(dead_letter_topic=dead, max_delivery_attempts=10)
    sub = await world.subscription(retain_acked_messages=True, dead_letter_policy=policy)
    await sub.publish(2)
    for _ in range(3):
        a, b = await sub.pull(2)
        await sub.nack(b)
        if a.attempt < 3:
            await sub.nack(a)
    assert (a.attempt, b.attempt) == (3, 3)
    await sub.ack(a)
    await sub.seek(PAST)
    again = await sub.pull(2)
    assert [delivery.attempt for delivery in again] == [1, 4]


# Live consumers


@case
async def test_open_stream_gets_what_a_seek_brings_back(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    async with sub.stream() as stream:
        await publish_each(sub, b"1", b"2", b"3")
        a, b, c = await stream.take(3)
        await sub.ack(a, c)
        await sub.seek(PAST)
        again = await stream.take(2)
        assert data_of(again) == [b"1", b"3"]
        with permanent(a):
            await sub.ack(a)
        await sub.ack(b, *again)
        await sub.publish_data(b"4")
        assert data_of(await stream.take()) == [b"4"]
        stream.check_open()


@case
async def test_purge_frees_the_window_of_an_open_stream(world: World):
    sub = await world.subscription()
    async with sub.stream(max_outstanding_messages=2) as stream:
        await sub.publish(5)
        purged = await stream.take(2)
        await stream.nothing_for(0.3)
        await sub.seek(from_now(0))
        await stream.nothing_for(0.5)
        later = await sub.publish(3)
        fresh = await stream.take(2)
        assert message_ids(fresh) == later[:2]
        await sub.ack(*purged)  # which frees no place a second time
        await stream.nothing_for(0.3)
        await sub.ack(*fresh)
        assert message_ids(await stream.take()) == later[2:]


@case
async def test_waiting_pull_is_answered_by_a_seek(world: World):
    sub, (a,) = await acked(world, b"a")
    pull = asyncio.ensure_future(world.client.Pull(subscription=sub.name, max_messages=10))
    await asyncio.sleep(0.3)
    await sub.seek(PAST)
    (received,) = (await asyncio.wait_for(pull, 2)).received_messages
    assert received.message.message_id == a.message_id


@case
async def test_seek_under_load_neither_loses_nor_repeats(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    confirmed: list[str] = []

    async def receive() -> None:
        async with sub.stream() as stream:
            while True:
                deliveries = await stream.take_all(within=30)
                failed = await sub.failed_acks(*deliveries)
                confirmed.extend(d.message_id for d in deliveries if d.ack_id not in failed)

    async def confirmed_count(count: int) -> None:
        async with asyncio.timeout(15):
            while len(confirmed) < count:
                await asyncio.sleep(0.05)

    receiver = asyncio.create_task(receive())
    published: list[str] = []
    for _ in range(10):
        published += await sub.publish(20)
        await asyncio.sleep(0.02)
    await confirmed_count(200)
    await sub.seek(PAST)
    published += published + await sub.publish(20)
    await confirmed_count(420)
    await asyncio.sleep(1)
    receiver.cancel()
    assert sorted(confirmed) == sorted(published)


# To a snapshot


@case
async def test_snapshot_restores_what_was_unacked_and_what_came_later(world: World):
    sub = await world.subscription()
    await publish_each(sub, b"a", b"b", b"c")
    a, b, c = await sub.pull(3)
    await sub.ack(a)
    snapshot = await sub.snapshot()
    await sub.ack(b)
    (d,) = await publish_each(sub, b"d") and await sub.pull()
    await sub.ack(d)
    await sub.restore(snapshot)

    again = await sub.pull(2)
    assert data_of(again) == [b"b", b"d"]
    with permanent(b):
        await sub.ack(b)
    await sub.ack(a)  # it was acked before, and still is
    await sub.ack(c)  # it was leased all the time, so its lease is good
    await sub.ack(*again)
    await sub.nothing_for(1)
    await sub.restore(snapshot)  # as often as one likes
    assert await backlog(sub) == [b"b", b"c", b"d"]


@case
async def test_snapshot_acks_what_was_acked_when_it_was_taken(world: World):
    sub = await world.subscription(retain_acked_messages=True)
    await publish_each(sub, b"a", b"b")
    a, b = await sub.pull(2)
    await sub.ack(a)
    await sub.nack(b)
    snapshot = await sub.snapshot()
    await sub.seek(PAST)
    a, b = await sub.pull(2)
    await sub.restore(snapshot)
    await sub.ack(a)
    with permanent(a):
        await sub.nack(a)
    await sub.nack(b)
    assert await backlog(sub) == [b"b"]


@case
async def test_snapshot_of_an_empty_backlog_replays_what_came_later(world: World):
    sub = await world.subscription()
    snapshot = await sub.snapshot()
    for _ in range(2):
        await sub.ack(*await sub.lease(2))
    await sub.restore(snapshot)
    assert len(await sub.pull(4)) == 4
    await sub.nothing_for(1)


@case
async def test_snapshot_can_be_sought_by_any_subscription_of_the_topic(world: World):
    sub = await world.subscription()
    other = await world.subscription(topic=sub.topic)
    await publish_each(sub, b"a", b"b", b"c")
    a, _, c = await sub.pull(3)
    await other.ack(*await other.pull(3))
    await sub.ack(a)
    snapshot = await sub.snapshot()
    await sub.ack(c)
    # Nobody owes any of these any more but the snapshot.
    await sub.seek(from_now(1))
    late = await world.subscription(topic=sub.topic)
    await late.publish_data(b"d")
    await world.client.DeleteSubscription(subscription=sub.name)
    for one in (other, late):
        await one.restore(snapshot)
        assert await backlog(one) == [b"b", b"c", b"d"]


@case
async def test_snapshot_outlives_its_subscription_and_the_seeks_of_others(world: World):
    sub = await world.subscription()
    await publish_each(sub, b"a")
    first = await sub.snapshot()
    await sub.ack(*await sub.pull())
    await publish_each(sub, b"b")
    second = await sub.snapshot()
    await sub.ack(*await sub.pull())
    await world.client.DeleteSnapshot(snapshot=first.name)
    await sub.restore(second)
    assert await backlog(sub) == [b"b"]
    with refused(StatusCode.NOT_FOUND):
        await sub.restore(first)


@case
async def test_snapshot_is_seen_through_the_filter_of_who_seeks(world: World):
    plain = await world.subscription()
    odd = await world.subscription(topic=plain.topic, filter='attributes.kind = "odd"')
    even = await world.subscription(topic=plain.topic, filter='attributes.kind = "even"')
    early = await plain.publish_attributes({"kind": "odd"}, {"kind": "even"})
    of_plain, of_odd = await plain.snapshot(), await odd.snapshot()
    late = await plain.publish_attributes({"kind": "odd"}, {"kind": "even"})
    for sub in (plain, odd, even):
        await sub.seek(from_now(1))

    async def restored(sub: Sub, snapshot) -> list[str]:
        await sub.restore(snapshot)
        await asyncio.sleep(0.1)
        found = await sub.pull_now()
        if found:
            await sub.ack(*found)
        return message_ids(found)

    both = [*zip(early, late, strict=True)]
    assert await restored(odd, of_plain) == list(both[0])
    assert await restored(even, of_plain) == list(both[1])
    # The other one took the even message of before for acked; those of later it holds all.
    assert await restored(plain, of_odd) == [early[0], *late]
    assert await restored(even, of_odd) == [late[1]]
    # And the next seek is not bound by the one before.
    assert await restored(plain, of_plain) == [*early, *late]
    assert await restored(even, of_plain) == [early[1], late[1]]


@case
async def test_snapshot_holds_more_than_a_chunk_of_scattered_messages(world: World):
    sub = await world.subscription(ack_deadline_seconds=60)
    ids = await sub.publish(2000)
    deliveries = await sub.pull(2000)
    await sub.ack(*deliveries[::2])
    snapshot = await sub.snapshot()
    await sub.ack(*deliveries[1::2])
    later = await sub.publish(100)
    await sub.ack(*await sub.pull(100))
    await sub.restore(snapshot)
    again = await sub.pull(1100)
    assert sorted(message_ids(again)) == sorted(ids[1::2] + later)
    await sub.ack(*again)
    await sub.nothing_for(1)


# Ordering keys


@case
async def test_key_starts_again_from_its_earliest_message(world: World):
    sub = await world.ordered(retain_acked_messages=True)
    await sub.publish_key("k", b"m1", b"m2", b"m3")
    await sub.publish_key("other", b"x")
    deliveries = await sub.pull(4)
    await sub.ack(*deliveries)
    await sub.publish_key("k", b"m4")
    await sub.seek(PAST)
    async with sub.stream() as stream:
        again = await stream.take(5)
        of_key = [delivery for delivery in again if delivery.key == "k"]
        assert data_of(of_key) == [b"m1", b"m2", b"m3", b"m4"]
        with unordered(of_key[3]):
            await sub.ack(of_key[3])
        await sub.ack(*again)


@case
async def test_lease_that_a_seek_leaves_is_honoured_before_its_key_starts_again(world: World):
    sub = await world.ordered(retain_acked_messages=True)
    await sub.publish_key("k", b"m1", b"m2", b"m3")
    async with sub.stream() as stream:
        m1, m2, m3 = await stream.take(3)
        await sub.ack(m1, m2)
        before = time.monotonic()
        await sub.modack(3, m3)
        await sub.seek(PAST)
        await sub.publish_key("k", b"m4")
        again = await stream.take(4, within=6)
        assert data_of(again) == [b"m1", b"m2", b"m3", b"m4"]
        assert again[0].at - before >= 3
        await sub.ack(*again)


@case
async def test_nack_of_the_lease_that_a_seek_leaves_starts_the_key_at_once(world: World):
    for eod in (True, False):
        sub = await world.ordered(eod=eod, retain_acked_messages=True)
        await sub.publish_key("k", b"m1", b"m2")
        m1, m2 = await sub.pull(2)
        await sub.ack(m1)
        await sub.seek(PAST)
        assert await sub.pull_now() == []
        await sub.nack(m2)
        assert data_of(await sub.pull(2)) == [b"m1", b"m2"]


@case
async def test_purge_frees_a_held_key(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", b"m1", b"m2")
    (m1,) = await sub.pull_now(1)
    await sub.seek(from_now(0))
    await sub.publish_key("k", b"m3")
    (m3,) = await sub.pull(1)
    assert m3.data == b"m3"
    await sub.ack(m3)  # in order: what was before it is purged
    await sub.ack(m1)
    await sub.nothing_for(1)


@case
async def test_snapshot_of_an_unordered_subscription_is_not_for_an_ordered_one(world: World):
    plain = await world.subscription()
    ordered = await world.ordered(topic=plain.topic)
    of_plain, of_ordered = await plain.snapshot(), await ordered.snapshot()
    with refused(FAILED_PRECONDITION):
        await ordered.restore(of_plain)
    await plain.restore(of_ordered)
    await ordered.restore(of_ordered)


# Restarts and deleted topics


@case
async def test_snapshots_and_seeks_survive_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        retaining = await own.subscription(topic=sub.topic, retain_acked_messages=True)
        purged = await own.subscription(topic=sub.topic)
        await publish_each(sub, b"a", b"b", b"c")
        a, b, c = await sub.pull(3)
        await sub.ack(a)
        snapshot = await sub.snapshot(labels={"a": "1"})
        await sub.ack(b)
        await retaining.ack(*await retaining.pull(3))
        (d,) = await purged.pull_now(1)
        await purged.seek(from_now(3600))
        await own.restart_server()

        assert await own.client.GetSnapshot(snapshot=snapshot.name) == snapshot
        await purged.ack(d)
        assert await purged.pull_now() == []
        await retaining.seek(timestamp(publish_us(b)))
        await sub.restore(snapshot)
        (b_again,) = await sub.pull()
        assert b_again.data == b"b"
        await own.restart_server()

        with permanent(b):
            await sub.ack(b)
        await sub.ack(b_again, c)
        assert data_of(await retaining.pull(2)) == [b"b", b"c"]
        await sub.publish_data(b"later")
        assert await backlog(sub) == [b"later"]
        assert await backlog(purged) == [b"later"]
        await sub.restore(snapshot)
        assert await backlog(sub) == [b"b", b"c"]  # the later one is leased


@case
async def test_deleted_topic_leaves_seeks_to_what_its_subscriptions_retain(world: World):
    sub, (_, b) = await acked(world, b"a", b"b")
    before = await sub.snapshot()
    await sub.publish_data(b"c")
    await world.client.DeleteTopic(topic=sub.topic)
    await sub.seek(timestamp(publish_us(b)))
    found = await sub.pull(2)
    assert data_of(found) == [b"b", b"c"]
    after = await sub.snapshot()
    await sub.ack(*found)
    await sub.restore(before)
    found = await sub.pull()
    assert data_of(found) == [b"c"]
    await sub.ack(*found)
    await sub.restore(after)
    assert await backlog(sub) == [b"b", b"c"]
    for snapshot in (before, after):
        found = await world.client.GetSnapshot(snapshot=snapshot.name)
        assert found.topic == "_deleted-topic_"


@case
async def test_snapshot_of_another_topic_is_refused(world: World):
    sub, other = await world.subscription(), await world.subscription()
    await sub.publish()
    foreign = await other.snapshot()
    with refused(FAILED_PRECONDITION, leaf(sub.topic), leaf(other.topic)):
        await sub.restore(foreign)
    assert len(await sub.pull()) == 1

    # A topic of the same name is another topic.
    await world.client.DeleteTopic(topic=other.topic)
    await world.client.CreateTopic(name=other.topic)
    late = await world.subscription(topic=other.topic)
    with refused(FAILED_PRECONDITION):
        await late.restore(foreign)
    await other.restore(foreign)


# Refusals


@pytest.fixture
def subscription(client: Client) -> str:
    topic = client.CreateTopic(name=unique("topic")).name
    return client.CreateSubscription(name=unique("subscription"), topic=topic).name


def test_seek_needs_a_target(client: Client, subscription: str):
    with refused(INVALID_ARGUMENT, "time", "snapshot"):
        client.Seek(subscription=subscription)


@pytest.mark.parametrize(
    "bad",
    [
        pb.Timestamp(seconds=YEAR_10000),
        pb.Timestamp(seconds=-62_135_596_801),
        pb.Timestamp(seconds=1, nanos=-1),
        pb.Timestamp(seconds=1, nanos=1_000_000_000),
        pb.Timestamp(seconds=2**63 - 1),
    ],
)
def test_invalid_time_is_refused(client: Client, subscription: str, bad):
    with refused(INVALID_ARGUMENT, "time"):
        client.Seek(subscription=subscription, time=bad)


def test_malformed_names_are_refused(client: Client, subscription: str):
    for bad in ("", "nonsense", unique("topic"), "projects//subscriptions/abc"):
        with refused(INVALID_ARGUMENT, "Invalid resource name given"):
            client.Seek(subscription=bad, time=PAST)
    for bad in ("", "nonsense", unique("topic"), "projects/p/snapshots/a"):
        with refused(INVALID_ARGUMENT, "Invalid resource name given", f"={bad})"):
            client.Seek(subscription=subscription, snapshot=bad)


def test_missing_subscription_and_snapshot_are_not_found(client: Client, subscription: str):
    missing = unique("subscription")
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(missing)})."):
        client.Seek(subscription=missing, time=PAST)
    missing = unique("snapshot")
    with refused(StatusCode.NOT_FOUND, "Resource not found", f"(resource={leaf(missing)})."):
        client.Seek(subscription=subscription, snapshot=missing)


def test_detached_subscription_cannot_seek(client: Client, subscription: str):
    snapshot = client.CreateSnapshot(name=unique("snapshot"), subscription=subscription).name
    client.DetachSubscription(subscription=subscription)
    with refused(FAILED_PRECONDITION, "Subscription is detached"):
        client.Seek(subscription=subscription, time=PAST)
    with refused(FAILED_PRECONDITION, "Subscription is detached"):
        client.Seek(subscription=subscription, snapshot=snapshot)
