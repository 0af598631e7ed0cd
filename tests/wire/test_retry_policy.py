"""RetryPolicy: how long a message that failed stays away, and what that costs others (nothing)."""

import time

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, permanent, refused
from tests.wire.harness import case
from tests.wire.support import Delivery, Stream, Sub, World, data_of, from_now, unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT

# How late a busy machine may look.
LATE_SECONDS_MAX = 3.0


def seconds(number: float) -> pb.Duration:
    whole = int(number)
    return pb.Duration(seconds=whole, nanos=round((number - whole) * 1000) * 1_000_000)


def backoff(minimum: float | None = None, maximum: float | None = None) -> pb.RetryPolicy:
    fields = {"minimum_backoff": minimum, "maximum_backoff": maximum}
    return pb.RetryPolicy(**{name: seconds(value) for name, value in fields.items() if value is not None})


async def delay_of_nack(sub: Sub, stream: Stream, delivery: Delivery, within: float = 8):
    """Nacks a delivery; returns the next one of the message and how long it took."""
    before = time.monotonic()
    await sub.nack(delivery)
    (again,) = await stream.take(within=within)
    assert again.message_id == delivery.message_id
    return again, again.at - before


def check_delay(delay: float, expected: float) -> None:
    """Jitter is a tenth of it at most."""
    assert 0.9 * expected <= delay <= 1.1 * expected + LATE_SECONDS_MAX


# The policy


@pytest.fixture
def topic(client: Client) -> str:
    return client.CreateTopic(name=unique("topic")).name


@pytest.mark.parametrize(
    ("given", "effective"),
    [
        (backoff(), backoff(10, 600)),
        (backoff(minimum=0), backoff(0, 600)),
        (backoff(minimum=0.5), backoff(0.5, 600)),
        (backoff(maximum=10), backoff(10, 10)),
        (backoff(0, 0), backoff(0, 0)),
        (backoff(600, 600), backoff(600, 600)),
        (backoff(1.5, 2.25), backoff(1.5, 2.25)),
    ],
)
def test_policy_is_returned_with_its_defaults(client: Client, topic: str, given, effective):
    name = unique("subscription")
    created = client.CreateSubscription(name=name, topic=topic, retry_policy=given)
    assert created.retry_policy == effective
    assert client.GetSubscription(subscription=name) == created


@pytest.mark.parametrize(
    ("bad", "tokens"),
    [
        (backoff(minimum=600.001), ["minimum_backoff", "out of bounds", "0s", "600s"]),
        (backoff(minimum=-1), ["minimum_backoff", "out of bounds"]),
        (backoff(maximum=601), ["maximum_backoff", "out of bounds", "0s", "600s"]),
        (backoff(0, -0.001), ["maximum_backoff", "out of bounds"]),
        (backoff(20, 10), ["maximum_backoff", "too small"]),
        (backoff(maximum=9), ["maximum_backoff", "too small"]),  # the minimum is 10 s then
    ],
)
def test_bad_policy_is_refused(client: Client, topic: str, bad, tokens: list[str]):
    name = unique("subscription")
    with refused(INVALID_ARGUMENT, *tokens):
        client.CreateSubscription(name=name, topic=topic, retry_policy=bad)
    created = client.CreateSubscription(name=name, topic=topic, retry_policy=backoff(1, 2))
    changed = pb.Subscription(name=name, retry_policy=bad)
    with refused(INVALID_ARGUMENT, *tokens):
        client.UpdateSubscription(subscription=changed, update_mask=pb.FieldMask(paths=["retry_policy"]))
    assert client.GetSubscription(subscription=name) == created


# Delays


@case
async def test_without_a_policy_there_is_no_delay(world: World):
    for policy in (None, backoff(0, 0)):
        sub = await world.subscription(retry_policy=policy)
        await sub.publish()
        async with sub.stream() as stream:
            (a,) = await stream.take()
            for _ in range(5):
                a, delay = await delay_of_nack(sub, stream, a)
                assert delay < LATE_SECONDS_MAX


@case
async def test_delay_doubles_with_each_failure_up_to_the_maximum(world: World):
    sub = await world.subscription(retry_policy=backoff(0.5, 1))
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        for expected in (0.5, 1, 1, 1, 1):  # the last would be 8 without a maximum
            a, delay = await delay_of_nack(sub, stream, a)
            check_delay(delay, expected)


@case
async def test_delay_after_an_expiry_begins_at_the_deadline(world: World):
    sub = await world.subscription(retry_policy=backoff(2, 2))
    (a,) = await sub.lease()
    before = time.monotonic()
    await sub.modack(1, a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=6)
        check_delay(b.at - before - 1, 2)
        _, delay = await delay_of_nack(sub, stream, b)
        check_delay(delay, 2)


@case
async def test_delays_hold_for_pull_and_without_exactly_once(world: World):
    sub = await world.subscription(eod=False, retry_policy=backoff(1, 2))
    (a,) = await sub.lease()
    for expected in (1, 2):
        before = time.monotonic()
        await sub.nack(a)
        (a,) = await sub.pull(within=5)
        check_delay(a.at - before, expected)


@case
async def test_delayed_message_holds_no_other_and_counts_for_itself(world: World):
    sub = await world.subscription(retry_policy=backoff(2, 600))
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        a, _ = await delay_of_nack(sub, stream, a)
        a_nacked = time.monotonic()
        await sub.nack(a)
        await sub.publish(3)
        b, *_ = await stream.take(3, within=3)
        b_nacked = time.monotonic()
        await sub.nack(b)
        again = {delivery.message_id: delivery for delivery in await stream.take(2, within=8)}
        check_delay(again[a.message_id].at - a_nacked, 4)  # its second failure
        check_delay(again[b.message_id].at - b_nacked, 2)  # the first of this one, not the third: 8


@case
async def test_id_of_a_delayed_message_is_refused_under_exactly_once(world: World):
    sub = await world.subscription(retry_policy=backoff(2, 2))
    (a,) = await sub.lease()
    await sub.nack(a)
    with permanent(a):
        await sub.ack(a)
    with permanent(a):
        await sub.modack(10, a)
    await sub.nack(a)  # repeated: neither a failure more nor a delay anew
    (b,) = await sub.pull(within=5)
    await sub.ack(b)
    await sub.nothing_for(1)


@case
async def test_ack_of_a_delayed_message_takes_effect_without_exactly_once(world: World):
    sub = await world.subscription(eod=False, retry_policy=backoff(2, 2))
    (a,) = await sub.lease()
    await sub.modack(1, a)
    await sub.nothing_for(2)
    await sub.ack(a)
    await sub.nothing_for(3)


@case
async def test_attempts_are_counted_through_delays(world: World):
    dead = await world.topic()
    policy = dict(dead_letter_topic=dead, max_delivery_attempts=5)
    sub = await world.subscription(retry_policy=backoff(0.3, 0.3), dead_letter_policy=policy)
    await sub.publish()
    async with sub.stream() as stream:
        (a,) = await stream.take()
        seen = [a.attempt]
        for _ in range(3):
            a, delay = await delay_of_nack(sub, stream, a)
            check_delay(delay, 0.3)
            seen.append(a.attempt)
    assert seen == [1, 2, 3, 4]


# Changes


@case
async def test_changed_policy_holds_for_failures_after_the_change(world: World):
    sub = await world.subscription(retry_policy=backoff(5, 5))
    await sub.publish(2)
    async with sub.stream() as stream:
        a, b = await stream.take(2)
        before = time.monotonic()
        await sub.nack(a)
        await sub.update(retry_policy=backoff(0, 0))
        _, delay = await delay_of_nack(sub, stream, b)
        assert delay < LATE_SECONDS_MAX
        (again,) = await stream.take(within=9)
        assert again.message_id == a.message_id
        check_delay(again.at - before, 5)


@case
async def test_removed_policy_means_no_delay(world: World):
    sub = await world.subscription(retry_policy=backoff(5, 5))
    await sub.publish()
    await world.client.UpdateSubscription(
        subscription=pb.Subscription(name=sub.name), update_mask=pb.FieldMask(paths=["retry_policy"])
    )
    assert not (await sub.get()).HasField("retry_policy")
    async with sub.stream() as stream:
        (a,) = await stream.take()
        _, delay = await delay_of_nack(sub, stream, a)
        assert delay < LATE_SECONDS_MAX


@case
async def test_seek_ends_the_delay_of_a_message_that_it_leaves_unacked(world: World):
    sub = await world.subscription(retry_policy=backoff(60, 60))
    (a,) = await sub.lease()
    await sub.nack(a)
    assert await sub.pull_now() == []
    await sub.seek(from_now(-3600))
    (b,) = await sub.pull()
    assert b.message_id == a.message_id


@case
async def test_seek_forward_ends_a_delayed_message(world: World):
    sub = await world.subscription(retry_policy=backoff(1, 1))
    (a,) = await sub.lease()
    await sub.nack(a)
    await sub.seek(from_now(60))
    await sub.nothing_for(3)


@case
async def test_delay_survives_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(retry_policy=backoff(2.5, 60))
        await sub.publish_data(b"nacked", b"expired")
        a, b = await sub.pull(2)
        before = time.monotonic()
        await sub.modack(1, b)
        await sub.nack(a)
        await own.restart_server()
        async with sub.stream() as stream:
            opened = time.monotonic()
            again = await stream.take(2, within=8)
            assert data_of(again) == [b"nacked", b"expired"]
            for delivery, delay in zip(again, (2.5, 1 + 2.5), strict=True):
                assert delivery.at - before >= 0.9 * delay
                assert delivery.at <= max(opened, before + 1.1 * delay) + LATE_SECONDS_MAX
            # How often it has failed is remembered as well.
            _, delay = await delay_of_nack(sub, stream, again[0], within=9)
            check_delay(delay, 5)
