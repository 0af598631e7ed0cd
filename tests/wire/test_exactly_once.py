"""CE: the life of a delivery under exactly-once: leases, extensions, nacks, acks, restarts."""

import asyncio
import random
import time
from dataclasses import dataclass

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire.calls import PERMANENT, Refusal, permanent, refused
from tests.wire.harness import case
from tests.wire.support import Delivery, Sub, World, until

KILL_BEFORE_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_BEFORE_COMMIT
KILL_AFTER_COMMIT = admin_pb.InjectCommitFaultRequest.KILL_AFTER_COMMIT


def check_redelivered(again: Delivery, earlier: Delivery) -> None:
    assert again.message_id == earlier.message_id
    assert again.ack_id != earlier.ack_id


# Deadlines


@case
async def test_CE_01_extension_keeps_the_message_away(world: World):
    sub = await world.subscription()
    start = time.monotonic()
    (a,) = await sub.lease()
    await until(start + 5)
    await sub.modack(30, a)
    await sub.nothing_for(start + 25 - time.monotonic())
    await sub.ack(a)


@case
async def test_CE_02_extension_may_shorten_a_lease(world: World):
    sub = await world.subscription(ack_deadline_seconds=60)
    (a,) = await sub.lease()
    await sub.modack(1, a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=3)
    check_redelivered(b, a)
    with permanent(a):
        await sub.ack(a)


@case
async def test_CE_03_extension_counts_from_the_request(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await asyncio.sleep(1)
    before = time.monotonic()
    await sub.modack(20, a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=24)
    check_redelivered(b, a)
    assert 20 <= b.at - before <= 23


@case
async def test_CE_04_CE_05_message_comes_back_at_its_deadline_under_a_new_id(world: World):
    sub = await world.subscription()
    before = time.monotonic()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        (b,) = await stream.take(within=14)
        check_redelivered(b, a)
        assert b.at - before >= 10
        assert b.at - a.at <= 13

        with permanent(a):
            await sub.ack(a)
        await sub.ack(b)
        await stream.nothing_for(12)


@case
async def test_CE_06_expired_id_is_refused_though_nobody_else_has_the_message(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()
    with permanent(a):
        await sub.ack(a)
    (b,) = await sub.pull()
    check_redelivered(b, a)


@case
async def test_CE_07_expired_lease_cannot_be_extended(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()
    with permanent(a):
        await sub.modack(30, a)
    (b,) = await sub.pull()
    check_redelivered(b, a)


@case
async def test_CE_37_ack_without_any_modack_within_the_deadline(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await asyncio.sleep(9)
    await sub.ack(a)
    await sub.nothing_for(3)


@case
async def test_CE_38_ack_shortly_before_and_after_the_deadline(world: World):
    sub = await world.subscription()
    await sub.publish(2)
    before = time.monotonic()
    a, b = await sub.pull(2)
    after = time.monotonic()
    await until(before + 9.5)
    await sub.ack(a)
    await until(after + 11)
    with permanent(b):
        await sub.ack(b)


@case
async def test_CE_39_long_extension_ends_with_a_nack(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.modack(600, a)
    await sub.modack(0, a)
    (b,) = await sub.pull()
    check_redelivered(b, a)


@case(alone=True)
async def test_CE_36_receipt_modack_of_a_thousand_ids(world: World):
    sub = await world.subscription()
    await sub.publish(1000)
    async with sub.stream() as stream:
        deliveries = await stream.take(1000)
        await asyncio.sleep(0.01)
        await sub.modack(60, *deliveries)


# Nacks


@case
async def test_CE_08_nacked_message_comes_back_at_once(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        await sub.nack(a)
        (b,) = await stream.take(within=1)
        check_redelivered(b, a)


@case
async def test_CE_09_nacked_id_is_good_for_nothing_more(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)
    with permanent(a):
        await sub.ack(a)
    with permanent(a):
        await sub.modack(10, a)


@case
async def test_CE_10_repeated_nack_is_ok_and_does_not_touch_the_newer_lease(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)
    (b,) = await sub.pull()
    await sub.nack(a)
    await sub.nothing_for(3)
    await sub.ack(b)


# Acks


async def ack_again(world: World, *moments: float) -> None:
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.ack(a)
    start = time.monotonic()
    for moment in moments:
        await until(start + moment)
        await sub.ack(a)
    await sub.nothing_for(1)


@case
async def test_CE_11_repeated_ack_is_ok_short_form(world: World):
    await ack_again(world, 0, 12, 25)


@pytest.mark.full
@case(seconds_max=660)
async def test_CE_11_repeated_ack_is_ok(world: World):
    await ack_again(world, 0, 60, 600)


@case
async def test_CE_12_late_extension_is_ok_and_late_nack_is_not(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.ack(a)
    await sub.modack(10, a)
    with permanent(a):
        await sub.nack(a)
    await sub.nothing_for(13)


async def parallel_acks(world: World, seconds: float) -> None:
    sub = await world.subscription()
    deliveries = await sub.lease(1000)
    await asyncio.gather(*[sub.ack(*deliveries[start::10]) for start in range(10)])
    await sub.nothing_for(seconds)


@case
async def test_CE_13_parallel_acks_leave_nothing_behind_short_form(world: World):
    await parallel_acks(world, 13)


@pytest.mark.slow
@case(seconds_max=150)
async def test_CE_13_parallel_acks_leave_nothing_behind(world: World):
    await parallel_acks(world, 120)


@case
async def test_CE_34_same_payload_published_twice_is_two_messages(world: World):
    sub = await world.subscription()
    await sub.publish_data(b"same", b"same")
    a, b = await sub.pull(2)
    assert a.message_id != b.message_id
    await sub.ack(a)
    await sub.nack(b)
    (again,) = await sub.pull()
    check_redelivered(again, b)


# Pull


@case
async def test_CE_20_pull_gives_the_same_leases(world: World):
    sub = await world.subscription()
    await sub.publish()
    before = time.monotonic()
    (a,) = await sub.pull()
    (b,) = await sub.pull(within=14)
    check_redelivered(b, a)
    assert b.at - before >= 10
    assert b.at - a.at <= 13
    with permanent(a):
        await sub.ack(a)
    await sub.nack(b)
    (c,) = await sub.pull(within=1)
    check_redelivered(c, b)
    await sub.ack(c)


@case
async def test_CE_21_pull_does_not_get_what_a_stream_holds(world: World):
    sub = await world.subscription()
    await sub.publish()
    async with sub.stream() as stream:
        await stream.take()
        response = await world.client.Pull(subscription=sub.name, max_messages=10, timeout=4)
        assert len(response.received_messages) == 0


@case
async def test_CE_22_message_is_not_lost_to_a_pull_that_timed_out(world: World):
    sub = await world.subscription()
    start = time.monotonic()
    try:
        await world.client.Pull(subscription=sub.name, max_messages=10, timeout=1)
    except grpc.RpcError as error:
        assert error.code() == StatusCode.DEADLINE_EXCEEDED
    await until(start + 1.05)
    await sub.publish()
    await sub.pull(within=3)


# Configuration


@case
async def test_CE_27_default_deadline_is_60_under_exactly_once(world: World):
    sub = await world.subscription(ack_deadline_seconds=0)
    assert (await world.client.GetSubscription(subscription=sub.name)).ack_deadline_seconds == 60


@case
async def test_CE_28_default_deadline_is_10_without_exactly_once(world: World):
    sub = await world.subscription(eod=False, ack_deadline_seconds=0)
    assert (await world.client.GetSubscription(subscription=sub.name)).ack_deadline_seconds == 10


@case
async def test_CE_29_lease_stays_valid_when_exactly_once_is_switched_on(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease()
    await sub.set_exactly_once(True)
    await sub.ack(a)
    await sub.nothing_for(2)


@case
async def test_CE_30_expired_id_is_refused_after_exactly_once_is_switched_on(world: World):
    sub = await world.subscription(eod=False)
    (a,) = await sub.lease_expired()
    await sub.set_exactly_once(True)
    with permanent(a):
        await sub.ack(a)


@case
async def test_CE_31_expired_id_is_ok_after_exactly_once_is_switched_off(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()
    await sub.set_exactly_once(False)
    await sub.ack(a)


@case
async def test_CE_32_exactly_once_and_push_exclude_each_other(world: World):
    push = pb.PushConfig(push_endpoint="https://example.com/push")
    with refused(StatusCode.INVALID_ARGUMENT):
        await world.subscription(push_config=push)
    sub = await world.subscription()
    with refused(StatusCode.INVALID_ARGUMENT):
        await sub.update(push_config=push)
    assert (await world.client.GetSubscription(subscription=sub.name)).push_config == pb.PushConfig()


@case
async def test_CE_33_ack_id_of_a_deleted_subscription_means_nothing_to_its_successor(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await world.client.DeleteSubscription(subscription=sub.name)
    await world.client.CreateSubscription(name=sub.name, topic=sub.topic, enable_exactly_once_delivery=True)
    with permanent(a):
        await sub.ack(a)
    (b,) = await sub.lease()
    with permanent(a):
        await sub.nack(a)
    await sub.ack(b)


@case
async def test_acks_on_a_detached_subscription_are_permanent_failures(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await world.client.DetachSubscription(subscription=sub.name)
    with permanent(a):
        await sub.ack(a)
    with permanent(a):
        await sub.modack(10, a)


# Restarts


@case
async def test_CE_14_acked_message_does_not_return_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.ack(a)
        await own.restart_server()
        await sub.nothing_for(13)
        await sub.ack(a)


@case
async def test_CE_15_lease_is_honoured_across_a_restart(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        (a,) = await sub.lease()
        start = time.monotonic()
        await until(start + 5)
        await own.restart_server()
        await sub.nothing_for(start + 20 - time.monotonic())
        await sub.ack(a)
        await sub.nothing_for(2)


@case
async def test_CE_16_lease_that_ended_while_the_server_was_down_is_over(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        start = time.monotonic()
        await until(start + 5)
        await own.kill_server()
        await until(start + 15)
        await own.start_server()
        await until(start + 16)
        with permanent(a):
            await sub.ack(a)
        (b,) = await sub.pull()
        check_redelivered(b, a)


@case
async def test_CE_17_no_acked_message_returns_after_kills_under_load_short_form(world: World):
    await kills_under_load(world, 4)


@pytest.mark.full
@case(seconds_max=900)
async def test_CE_17_no_acked_message_returns_after_kills_under_load(world: World):
    await kills_under_load(world, 100)


async def kills_under_load(world: World, kills: int) -> None:
    chance = random.Random(17)
    async with world.own_server() as own:
        sub = await own.subscription()
        confirmed: dict[str, float] = {}
        faults: list[str] = []
        for _ in range(kills):
            work = asyncio.create_task(publish_receive_ack(sub, confirmed, faults))
            await asyncio.sleep(chance.uniform(0.5, 2))
            await asyncio.to_thread(own.server.kill)
            await work
            await own.disconnect()
            await own.start_server()
        for delivery in await sub.watch(12):
            if delivery.message_id in confirmed:
                faults.append(f"{delivery.message_id} at the end")
        assert faults == []
        assert len(confirmed) > 20 * kills


async def publish_receive_ack(sub: Sub, confirmed: dict[str, float], faults: list[str]) -> None:
    """Works until the server is gone; notes each message that was delivered after an ack answered OK."""
    try:
        async with sub.stream() as stream:
            while stream.status is None:
                await sub.publish(20)
                deliveries = await stream.take_all()
                for delivery in deliveries:
                    if delivery.message_id in confirmed:
                        faults.append(f"{delivery.message_id} after its ack")
                failed = await sub.failed_acks(*deliveries)
                now = time.monotonic()
                confirmed.update((d.message_id, now) for d in deliveries if d.ack_id not in failed)
    except (grpc.RpcError, AssertionError, asyncio.InvalidStateError):
        pass  # the connection broke, which is what ends this work


async def ack_whose_reply_is_lost(own: World, sub: Sub, delivery: Delivery) -> None:
    with refused(StatusCode.UNAVAILABLE):
        await sub.ack(delivery)
    await asyncio.to_thread(own.server.wait)
    await own.disconnect()
    await own.start_server()


@case
async def test_CE_18_retry_of_an_ack_whose_reply_was_lost_is_consistent(world: World):
    sub = await world.subscription()
    for _ in range(5):
        (a,) = await sub.lease()
        cut = world.new_client()
        call = cut.Acknowledge(subscription=sub.name, ack_ids=[a.ack_id])
        await asyncio.sleep(0.002)
        call.cancel()
        await sub.ack(a)  # within its deadline, so whatever became of the first, this one is OK
    await sub.nothing_for(12)


@case
async def test_CE_18_ack_that_committed_before_a_kill_is_ok_when_repeated(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await own.inject_fault(KILL_AFTER_COMMIT, commits=1)
        await ack_whose_reply_is_lost(own, sub, a)
        await sub.nothing_for(12)
        await sub.ack(a)


@case
async def test_CE_18_ack_that_did_not_commit_before_a_kill_can_be_repeated(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.modack(30, a)
        await own.inject_fault(KILL_BEFORE_COMMIT, commits=1)
        await ack_whose_reply_is_lost(own, sub, a)
        await sub.nothing_for(5)
        await sub.ack(a)
        await sub.nothing_for(2)


@case(seconds_max=90)
async def test_CE_19_extension_is_honoured_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        start = time.monotonic()
        await sub.modack(60, a)
        await own.restart_server()
        # The rest of the minute is the long form; what matters is that the first deadline passes.
        await sub.nothing_for(start + 25 - time.monotonic())
        await sub.ack(a)


@pytest.mark.slow
@case(seconds_max=120)
async def test_CE_19_extension_is_honoured_to_its_end_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        start = time.monotonic()
        await sub.modack(60, a)
        await own.restart_server()
        await sub.nothing_for(start + 60 - time.monotonic())
        (b,) = await sub.pull(within=13)
        check_redelivered(b, a)


@case
async def test_nacked_message_and_its_ids_survive_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        (a,) = await sub.lease()
        await sub.nack(a)
        await own.restart_server()
        with permanent(a):
            await sub.ack(a)
        await sub.nack(a)
        (b,) = await sub.pull()
        check_redelivered(b, a)
        await own.restart_server()
        await sub.nothing_for(2)
        await sub.ack(b)


# Random history


@case
async def test_CE_35_random_history_agrees_with_the_rules_short_form(world: World):
    await History(world, messages=200, seconds=25, seed=35).run()


@pytest.mark.full
@case(seconds_max=1300)
async def test_CE_35_random_history_agrees_with_the_rules(world: World):
    await History(world, messages=1000, seconds=1200, seed=35).run()


@case
async def test_CE_35_random_history_with_kills_agrees_with_the_rules(world: World):
    async with world.own_server() as own:
        await History(own, messages=200, seconds=6, seed=36).run(lives=5)


# How much later than the server this side may have noticed a delivery, in seconds.
NOTICED_LATE_MAX = 2.0
# A lease may be longer than its deadline says by the time that its own commit was expected to take.
COMMIT_SECONDS_MAX = 1.0


@dataclass
class Lease:
    """One delivery as its client must think of it: its deadline lies between two moments."""

    delivery: Delivery
    deadline_min: float
    deadline_max: float
    outcome: str = "leased"

    def expected(self, operation: str, start: float, end: float) -> bool | None:
        """Whether the operation succeeds that arrived between two moments; None when both are right."""
        if self.outcome == "acked":
            return operation != "nack"
        if self.outcome == "nacked":
            return operation == "nack"
        if self.outcome == "expired" or start > self.deadline_max:
            return False
        return True if end <= self.deadline_min else None

    def note(self, operation: str, seconds: int, succeeded: bool, start: float, end: float) -> None:
        if self.outcome != "leased":
            return
        if not succeeded:
            self.outcome = "expired"
        elif operation != "extend":
            self.outcome = f"{operation}ed"
        else:
            self.deadline_min, self.deadline_max = start + seconds, end + seconds


class History:
    """Random operations on random deliveries, each result compared with what the id's own past allows."""

    def __init__(self, world: World, *, messages: int, seconds: float, seed: int) -> None:
        self.world = world
        self.messages = messages
        self.seconds = seconds
        self.chance = random.Random(seed)
        self.leases: list[Lease] = []
        self.newest: dict[str, Lease] = {}  # by message id

    async def run(self, lives: int = 1) -> None:
        """Between two lives of the server it is killed, which must change nothing."""
        self.sub = await self.world.subscription()
        await self.sub.publish(self.messages)
        for life in range(lives):
            if life > 0:
                await self.world.restart_server()
            await self.live()
        assert len(self.newest) == self.messages

    async def live(self) -> None:
        end = time.monotonic() + self.seconds
        async with self.sub.stream() as stream:
            while time.monotonic() < end:
                for delivery in stream.take_now():
                    self.note_delivery(delivery)
                if self.leases:
                    await self.operate()
                await asyncio.sleep(self.chance.uniform(0, 0.02))
            stream.check_open()
            for delivery in stream.take_now():
                self.note_delivery(delivery)

    def note_delivery(self, delivery: Delivery) -> None:
        earlier = self.newest.get(delivery.message_id)
        if earlier is not None:
            check_redelivered(delivery, earlier.delivery)
            if earlier.outcome == "leased":
                assert delivery.at >= earlier.deadline_min, f"delivered inside a lease: {earlier}"
                earlier.outcome = "expired"
            assert earlier.outcome != "acked", f"delivered after its ack: {earlier}"
        lease = Lease(delivery, delivery.at + 10 - NOTICED_LATE_MAX, delivery.at + 10 + COMMIT_SECONDS_MAX)
        self.leases.append(lease)
        self.newest[delivery.message_id] = lease

    async def operate(self) -> None:
        # Half of the operations are on ids that still matter, or most would be on dead ones before long.
        some = self.leases if self.chance.random() < 0.5 else list(self.newest.values())
        lease = self.chance.choice(some)
        operation = self.chance.choices(["extend", "nack", "ack"], [6, 3, 1])[0]
        seconds = self.chance.choice([1, 2, 4, 12]) if operation == "extend" else 0
        start = time.monotonic()
        try:
            if operation == "ack":
                await self.sub.ack(lease.delivery)
            else:
                await self.sub.modack(seconds, lease.delivery)
            succeeded = True
        except grpc.RpcError as error:
            assert Refusal.of(error).results == {lease.delivery.ack_id: PERMANENT}
            succeeded = False
        end = time.monotonic()
        assert lease.expected(operation, start, end) in (None, succeeded), (operation, start, end, lease)
        lease.note(operation, seconds, succeeded, start, end)
