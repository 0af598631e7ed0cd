"""Ordering keys: who gets a message next, acks in order, and what a failed delivery does to others."""

import asyncio
import random
import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import PERMANENT, UNORDERED, Client, permanent, refused, unordered
from tests.wire.harness import case
from tests.wire.support import Delivery, Stream, Sub, World, data_of, message_ids, unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT


def numbered(count: int, letter: str = "m") -> list[bytes]:
    return [b"%b%d" % (letter.encode(), number) for number in range(1, count + 1)]


async def pulled(world: World, count: int, *, eod: bool = True, **fields) -> tuple[Sub, list[Delivery]]:
    """A subscription, and so many messages of one key that a Pull was given."""
    sub = await world.ordered(eod=eod, **fields)
    await sub.publish_key("k", *numbered(count))
    return sub, await sub.pull(count)


def by_key(deliveries: list[Delivery]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.key, []).append(delivery.data)
    return found


# Delivery


@case
async def test_key_that_a_pull_holds_is_held_from_streams_beside_what_is_not(world: World):
    sub, _ = await pulled(world, 1)
    async with sub.stream() as stream:
        await stream.pong()
        await sub.publish_key("k", b"m2")
        await sub.publish_key("k2", b"other")
        assert data_of(await stream.take()) == [b"other"]
        await sub.publish_data(b"without a key")
        assert data_of(await stream.take()) == [b"without a key"]
        await stream.nothing_for(2)


@case
async def test_key_is_in_order_across_many_responses(world: World):
    sub = await world.ordered()
    published = [b"%d " % number + b"x" * 10_000 for number in range(300)]
    for start in range(0, 300, 50):
        await sub.publish_key("k", *published[start : start + 50])
    async with sub.stream() as stream:
        assert data_of(await stream.take(300)) == published
        assert len(stream.responses) > 1
        assert all(each.subscription_properties.message_ordering_enabled for each in stream.responses)


@case
async def test_key_goes_on_as_far_as_the_window_of_its_stream_allows(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(4))
    async with (
        sub.stream(max_outstanding_messages=1) as owner,
        sub.stream(max_outstanding_messages=1) as other,
    ):
        seen = []
        for _ in range(4):
            while not (taken := owner.take_now() + other.take_now()):
                await asyncio.sleep(0.01)
            seen += taken
            assert len(taken) == 1, "the key is outstanding, and its stream has no room"
            await asyncio.sleep(0.2)
            await sub.ack(*taken)
    assert data_of(seen) == numbered(4)


@case
async def test_stream_beside_the_owner_of_a_key_is_not_idle(world: World):
    sub = await world.ordered()
    async with sub.stream() as first, sub.stream() as second:
        await first.pong()
        await second.pong()
        await sub.publish_key("k", *numbered(10))
        for number in range(40):
            await sub.publish_key(f"k{number}", b"x")
        await asyncio.gather(first.take(5), second.take(5))


@case
async def test_key_of_a_stream_that_ended_goes_on_when_its_messages_are_acked(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", b"m1")
    async with sub.stream() as a:
        (m1,) = await a.take()
    await sub.publish_key("k", b"m2")
    async with sub.stream() as b:
        await b.nothing_for(1)
        await sub.ack(m1)
        assert data_of(await b.take(within=4)) == [b"m2"]


@case
async def test_key_is_free_again_when_nothing_of_it_is_outstanding(world: World):
    sub, deliveries = await pulled(world, 3)
    await sub.ack(*deliveries)
    await sub.publish_key("k", b"m4")
    async with sub.stream() as stream:
        (m4,) = await stream.take()
        await sub.ack(m4)
        await sub.publish_key("k", b"m5")
        async with sub.stream():
            (m5,) = await stream.take()
            await sub.ack(m5)
    await sub.publish_key("k", b"m6")
    assert data_of(await sub.pull()) == [b"m6"]


# Pull


@case
async def test_pull_gets_nothing_of_a_key_before_its_last_outstanding_message_is_acked(world: World):
    sub, (m1, m2, m3) = await pulled(world, 3)
    await sub.publish_key("k", b"m4")
    await sub.ack(m1, m2)
    assert await sub.pull_now() == []
    await sub.ack(m3)
    assert data_of(await sub.pull()) == [b"m4"]


@case
async def test_one_pull_gets_several_messages_of_several_keys_in_order(world: World):
    sub = await world.ordered()
    for item in numbered(5):
        for key in ("a", "b", "c"):
            await sub.publish_key(key, item)
    await sub.publish_data(b"1", b"2")
    deliveries = await sub.pull_now(100)
    assert by_key(deliveries) == {
        **dict.fromkeys("abc", numbered(5)),
        "": [b"1", b"2"],
    }


@case
async def test_pull_that_takes_a_part_of_a_key_leaves_the_rest_for_later(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(5))
    first = await sub.pull_now(2)
    assert data_of(first) == [b"m1", b"m2"]
    async with sub.stream() as stream:
        assert await sub.pull_now(2) == []
        await stream.nothing_for(1)
    await sub.ack(*first)
    assert data_of(await sub.pull_now()) == [b"m3", b"m4", b"m5"]


@case
async def test_waiting_pull_is_answered_when_the_key_is_free_again(world: World):
    sub, (m1,) = await pulled(world, 1)
    await sub.publish_key("k", b"m2")
    pull = asyncio.ensure_future(world.client.Pull(subscription=sub.name, max_messages=10))
    await asyncio.sleep(0.5)
    assert not pull.done()
    await sub.ack(m1)
    (received,) = (await asyncio.wait_for(pull, 2)).received_messages
    assert received.message.data == b"m2"


# Acks


@case
async def test_confirmation_on_the_stream_tells_what_is_in_order_from_what_is_ahead(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(3))
    async with sub.stream() as stream:
        m1, m2, m3 = await stream.take(3)

        async def confirmation_of(*deliveries: Delivery):
            before = len(stream.responses)
            await stream.send(ack_ids=[delivery.ack_id for delivery in deliveries])
            response = await stream.response(lambda r: r.HasField("acknowledge_confirmation"), after=before)
            return response.acknowledge_confirmation

        confirmed = await confirmation_of(m3, m1)
        assert list(confirmed.unordered_ack_ids) == [m3.ack_id]
        assert list(confirmed.ack_ids) == [m1.ack_id]

        confirmed = await confirmation_of(m3, m2)
        assert sorted(confirmed.ack_ids) == sorted([m2.ack_id, m3.ack_id])
        assert not confirmed.unordered_ack_ids


@case
async def test_nack_of_a_message_without_a_key_brings_back_that_one_alone(world: World):
    sub = await world.ordered()
    a, b, c = await sub.lease(3)
    await sub.nack(b)
    (again,) = await sub.pull_now()
    assert again.message_id == b.message_id
    await sub.ack(c)
    await sub.ack(a)


@case
async def test_ack_refused_for_now_touches_no_lease_and_no_other_key(world: World):
    sub = await world.ordered()
    await sub.publish_key("a", b"a1", b"a2")
    await sub.publish_key("b", b"b1", b"b2")
    found = {delivery.data: delivery for delivery in await sub.pull(4)}
    a1, a2, b1, b2 = (found[name] for name in (b"a1", b"a2", b"b1", b"b2"))
    with unordered(a2):
        await sub.ack(a2, b2, b1)
    await sub.modack(20, a2)
    await sub.ack(a1, a2)
    await sub.ack(b1, b2)  # both are finished already
    await sub.nothing_for(1)


@case
async def test_permanent_failure_beside_an_ack_ahead_decides_the_status(world: World):
    sub, (m1, m2) = await pulled(world, 2)
    with permanent("junk") as refusal:
        await sub.ack(m2, "junk")
    assert refusal.results == {m2.ack_id: UNORDERED, "junk": PERMANENT}
    assert "invalid" in refusal.message
    await sub.ack(m1, m2)


@case
async def test_acks_are_judged_by_the_mode_of_their_moment(world: World):
    sub, (m1, m2, m3, m4) = await pulled(world, 4, eod=False)
    await sub.ack(m2)
    await sub.set_exactly_once(True)
    with unordered(m3):
        await sub.ack(m3)
    await sub.ack(m1, m3)
    await sub.ack(m4)
    await sub.nothing_for(1)


# Nacks and expiries, with exactly-once delivery


@case
async def test_id_that_an_earlier_nack_has_voided_extends_nothing(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(3))
    async with sub.stream() as stream:
        m1, m2, m3 = await stream.take(3)
        before = time.monotonic()
        await sub.modack(3, m2, m3)
        await sub.nack(m1)
        with permanent(m2, m3):
            await sub.modack(30, m2, m3)
        again, *later = await stream.take(3, within=6)
        assert data_of([again, *later]) == numbered(3)
        assert all(delivery.at - before >= 3 for delivery in later)


@case
async def test_repeated_nack_with_a_voided_id_does_not_touch_the_new_lease(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(3))
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        m1, m2, m3 = await stream.take(3)
        await sub.nack(m1)
        await sub.nack(m3, m2)
        again = await stream.take(3, within=5)
        assert data_of(again) == numbered(3)
        await sub.nack(m2)
        await sub.ack(*again)
        await stream.nothing_for(1)


@case
async def test_release_of_one_later_message_does_not_bring_it_before_another(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(3))
    async with sub.stream() as stream:
        m1, m2, m3 = await stream.take(3)
        before = time.monotonic()
        await sub.modack(4, m2)
        await sub.nack(m1)
        await sub.nack(m3)
        again = await stream.take(3, within=7)
        assert data_of(again) == numbered(3)
        assert again[1].at - before >= 4


@case
async def test_later_message_keeps_its_extended_deadline_when_an_earlier_one_expires(world: World):
    sub = await world.ordered()
    await sub.publish_key("k", *numbered(2))
    async with sub.stream() as stream:
        m1, m2 = await stream.take(2)
        before = time.monotonic()
        await sub.modack(5, m2)
        await sub.modack(1, m1)
        again, later = await stream.take(2, within=8)
        assert data_of([again, later]) == [b"m1", b"m2"]
        assert later.at - before >= 5
        await sub.ack(again, later)


@case
async def test_backoff_of_a_message_delays_no_other_key(world: World):
    backoff = pb.Duration(seconds=3)
    sub = await world.ordered(retry_policy=dict(minimum_backoff=backoff, maximum_backoff=backoff))
    await sub.publish_key("k", *numbered(3))
    async with sub.stream() as stream:
        m1, m2, m3 = await stream.take(3)
        before = time.monotonic()
        await sub.nack(m1)
        await sub.nack(m2, m3)
        await sub.publish_key("k", b"m4")
        await sub.publish_key("other", b"x")
        assert data_of(await stream.take(within=2.5)) == [b"x"]
        again = await stream.take(4, within=8)
        assert data_of(again) == numbered(4)
        assert again[0].at - before >= 2.7


@case
async def test_nack_in_the_middle_leaves_earlier_messages_alone(world: World):
    sub, (m1, m2, m3, m4, m5) = await pulled(world, 5)
    await sub.nack(m2)
    with permanent(m4):
        await sub.ack(m4)
    await sub.ack(m1)
    await sub.nack(m3, m4, m5)
    assert data_of(await sub.pull(4)) == [b"m2", b"m3", b"m4", b"m5"]


@case
async def test_pull_gets_a_nacked_batch_again_in_order(world: World):
    sub, deliveries = await pulled(world, 5)
    await sub.publish_key("k", b"m6")
    await sub.nack(*reversed(deliveries))
    assert data_of(await sub.pull_now()) == numbered(6)


@case
async def test_message_behind_a_nacked_one_is_not_acked_before_it(world: World):
    sub, (m1, m2) = await pulled(world, 2)
    await sub.nack(m1)
    await sub.nack(m2)
    first, second = await sub.pull(2)
    with unordered(second):
        await sub.ack(second)
    await sub.ack(first)
    await sub.ack(second)


# The same without exactly-once delivery


@case
async def test_expiry_brings_later_messages_back_without_exactly_once(world: World):
    sub = await world.ordered(eod=False)
    await sub.publish_key("k", *numbered(3))
    async with sub.stream(stream_ack_deadline_seconds=30) as stream:
        m1, *_ = await stream.take(3)
        await sub.modack(1, m1)
        assert data_of(await stream.take(3, within=6)) == numbered(3)


@case
async def test_nack_of_the_second_of_five_keeps_the_order(world: World):
    sub = await world.ordered(eod=False)
    await sub.publish_key("k", *numbered(5))
    async with sub.stream() as stream:
        _, m2, *_ = await stream.take(5)
        await sub.nack(m2)
        assert data_of(await stream.take(4, within=4)) == [b"m2", b"m3", b"m4", b"m5"]


@case
async def test_nack_of_the_first_of_three_keeps_the_order(world: World):
    for eod in (False, True):
        sub, (m1, m2, m3) = await pulled(world, 3, eod=eod)
        await sub.nack(m1)
        if eod:
            # The others wait for their own deadlines, and then for what this Pull is given.
            (m1,) = await sub.pull_now()
            assert m1.data == b"m1"
            await sub.nack(m2, m3)
            assert await sub.pull_now() == []
            await sub.nack(m1)
        assert data_of(await sub.pull_now()) == numbered(3)


@case
async def test_ack_with_an_id_that_a_nack_has_voided_still_counts_without_exactly_once(world: World):
    sub, (m1, m2, _) = await pulled(world, 3, eod=False)
    await sub.nack(m1)
    await sub.ack(m2)
    assert data_of(await sub.pull(2)) == [b"m1", b"m3"]
    await sub.nothing_for(1)


# Restarts and configuration


@case
async def test_order_and_acks_in_order_survive_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.ordered(ack_deadline_seconds=60)
        plain = await own.ordered(eod=False)
        for item in numbered(30):
            await plain.publish_key("x", item)
            await plain.publish_key("y", item)
        await sub.publish_key("a", *numbered(6, "a"))
        await sub.publish_key("b", *numbered(3, "b"))
        await sub.publish_key("c", *numbered(3, "c"))
        await sub.publish_key("d", *numbered(3, "d"))
        found = by_key_deliveries(await sub.pull(15))
        await sub.ack(*found["a"][:2])
        before = time.monotonic()
        await sub.modack(5, *found["a"][2:])
        await sub.nack(found["a"][2])  # voids the three behind it
        await sub.nack(*found["d"])
        await sub.publish_key("c", b"c4")
        await own.restart_server()

        with permanent(found["a"][4]):
            await sub.ack(found["a"][4])
        with unordered(found["b"][2]):
            await sub.ack(found["b"][2])
        await sub.ack(*found["b"])
        async with sub.stream() as stream:
            seen = by_key(await stream.take(7, within=10))
            assert seen == {"a": numbered(6, "a")[2:], "d": numbered(3, "d")}
            late = [delivery.at for delivery in stream.deliveries if delivery.data == b"a4"]
            assert late[0] - before >= 5
            await sub.ack(*found["c"])  # from which c4 is held until now
            assert data_of(await stream.take()) == [b"c4"]
        await plain.publish_key("x", b"last")
        async with plain.stream() as stream:
            seen = by_key(await stream.take(61))
            assert seen == {"x": [*numbered(30), b"last"], "y": numbered(30)}


def by_key_deliveries(deliveries: list[Delivery]) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.key, []).append(delivery)
    return found


@case
async def test_keys_mean_nothing_without_message_ordering(world: World):
    sub = await world.subscription()
    ids = await sub.publish_key("k", *numbered(3))
    first = await sub.pull(1)
    assert message_ids(await sub.pull(2)) == ids[1:]
    await sub.nack(*first)
    async with sub.stream() as stream:
        assert message_ids(await stream.take()) == ids[:1]
        assert not stream.responses[-1].subscription_properties.message_ordering_enabled


@pytest.mark.parametrize("ordered", [False, True])
def test_ordering_cannot_be_switched(client: Client, ordered: bool):
    topic = client.CreateTopic(name=unique("topic")).name
    name = client.CreateSubscription(
        name=unique("subscription"), topic=topic, enable_message_ordering=ordered
    ).name
    changed = pb.Subscription(name=name, enable_message_ordering=not ordered)
    mask = pb.FieldMask(paths=["enable_message_ordering"])
    with refused(INVALID_ARGUMENT, "enable_message_ordering", "is not mutable"):
        client.UpdateSubscription(subscription=changed, update_mask=mask)
    assert client.GetSubscription(subscription=name).enable_message_ordering is ordered


# Random histories


@case
async def test_random_history_of_keys_agrees_with_the_rules(world: World):
    await KeyHistory(await world.ordered(), keys=6, operations=250, seed=5).run()


class KeyHistory:
    """Random acks and nacks on keys that two streams share; every delivery and result is checked.

    Leases are so long that none ends by itself, and whoever nacks a message nacks the later ones of its key
    too. So when all that is unacked has arrived, the next operation starts from a known state.
    """

    def __init__(self, sub: Sub, *, keys: int, operations: int, seed: int) -> None:
        self.sub = sub
        self.operations = operations
        self.chance = random.Random(seed)
        self.unacked: dict[str, list[str]] = {f"k{number}": [] for number in range(keys)}  # message ids
        self.outstanding: dict[str, Delivery] = {}
        self.owner: dict[str, Stream] = {}

    async def run(self) -> None:
        fields = dict(stream_ack_deadline_seconds=600)
        async with self.sub.stream(**fields) as one, self.sub.stream(**fields) as other:
            for _ in range(self.operations):
                key = self.chance.choice(list(self.unacked))
                if not self.unacked[key] or self.chance.random() < 0.2:
                    await self.publish(key)
                await self.settle(key, one, other)
                await self.chance.choice([self.ack, self.ack, self.ack_some, self.nack, self.extend])(key)

    async def publish(self, key: str) -> None:
        data = [b"x"] * self.chance.randint(1, 4)
        self.unacked[key] += await self.sub.publish_key(key, *data)

    async def settle(self, key: str, *streams: Stream) -> None:
        """Waits until everything that is unacked of a key has been delivered."""
        async with asyncio.timeout(10):
            while True:
                for stream in streams:
                    for delivery in stream.take_now():
                        self.note(delivery, stream)
                if all(message_id in self.outstanding for message_id in self.unacked[key]):
                    return
                await asyncio.sleep(0.002)

    def note(self, delivery: Delivery, stream: Stream) -> None:
        unacked = self.unacked[delivery.key]
        assert delivery.message_id in unacked, "delivered after its ack"
        assert delivery.message_id not in self.outstanding, "delivered inside a lease"
        earlier = unacked[: unacked.index(delivery.message_id)]
        assert all(message_id in self.outstanding for message_id in earlier), "delivered before its turn"
        if earlier:
            assert self.owner[delivery.key] is stream, "one key on two streams"
        self.owner[delivery.key] = stream
        self.outstanding[delivery.message_id] = delivery

    async def ack(self, key: str) -> None:
        await self.acked(key, {self.chance.choice(self.unacked[key])})

    async def ack_some(self, key: str) -> None:
        unacked = self.unacked[key]
        await self.acked(key, set(self.chance.sample(unacked, self.chance.randint(1, len(unacked)))))

    async def acked(self, key: str, wanted: set[str]) -> None:
        unacked = self.unacked[key]
        # As far as the request has no gap it is in order.
        count = next((at for at, message_id in enumerate(unacked) if message_id not in wanted), len(unacked))
        ahead = {self.outstanding[message_id].ack_id for message_id in wanted - set(unacked[:count])}
        shuffled = self.chance.sample(sorted(wanted), len(wanted))
        failed = await self.sub.failed_acks(*[self.outstanding[message_id] for message_id in shuffled])
        assert failed == dict.fromkeys(ahead, UNORDERED)
        for message_id in unacked[:count]:
            del self.outstanding[message_id]
        del unacked[:count]

    async def nack(self, key: str) -> None:
        at = self.chance.randrange(len(self.unacked[key]))
        first, *behind = [self.outstanding.pop(message_id) for message_id in self.unacked[key][at:]]
        await self.sub.nack(first)
        if behind:
            await self.sub.nack(*self.chance.sample(behind, len(behind)))

    async def extend(self, key: str) -> None:
        await self.sub.modack(600, self.outstanding[self.chance.choice(self.unacked[key])])
