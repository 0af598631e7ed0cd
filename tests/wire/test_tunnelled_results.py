"""CT: what unary Acknowledge and ModifyAckDeadline answer for each ack id under exactly-once delivery.

`permanent` and `transient` check the whole form of such a refusal each time: the trailer repeats the call's
code and message, its first detail is the only ErrorInfo, and the strings are the documented ones.
"""

import asyncio
import time

from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire.calls import (
    ACK_REQUEST_BYTES_MAX,
    PERMANENT,
    TRANSIENT,
    permanent,
    refused_with_trailer,
    request_refused,
    transient,
)
from tests.wire.harness import case
from tests.wire.support import Sub, World, message_ids, unique

FAIL = admin_pb.InjectCommitFaultRequest.FAIL
STALL = admin_pb.InjectCommitFaultRequest.STALL
NONE = admin_pb.InjectCommitFaultRequest.NONE


async def one_expired_one_leased(sub: Sub):
    expired, leased = await sub.lease(2)
    await sub.expire(expired)
    return expired, leased


def altered(ack_id: str) -> list[str]:
    """Copies with one character flipped (at each end and in the middle), cut, and with a tail."""
    copies = [ack_id[:-1], ack_id[: len(ack_id) // 2], ack_id + "A", ack_id + "=", ack_id + ack_id, ""]
    for place in (0, 1, len(ack_id) // 2, len(ack_id) - 1):
        other = "A" if ack_id[place] != "A" else "B"
        copies.append(ack_id[:place] + other + ack_id[place + 1 :])
    return copies


@case
async def test_CT_01_ack_is_answered_empty_and_ends_the_message(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()

    assert await sub.ack(a) == pb.Empty()
    await sub.nothing_for(30)


@case
async def test_CT_02_expired_ack_id_is_permanent(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a):
        await sub.ack(a)


@case
async def test_CT_03_trailer_repeats_code_and_message(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a)
    assert (refusal.status.code, refusal.status.message) == (3, refusal.message)
    assert refusal.message.startswith("Some acknowledgement ids in the request were invalid.")


@case
async def test_CT_04_error_info_is_the_first_detail_and_the_only_one(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a)
    assert refusal.status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    assert len(refusal.error_infos) == 1


@case
async def test_CT_05_error_info_names_reason_and_domain(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a)
    (info,) = refusal.error_infos
    assert (info.reason, info.domain) == ("EXACTLY_ONCE_ACKID_FAILURE", "pubsub.googleapis.com")


@case
async def test_CT_06_unknown_subscription_is_refused_with_a_trailer(world: World):
    nowhere = Sub(world, "", unique("subscription"))

    with request_refused(StatusCode.NOT_FOUND, "Resource not found"):
        await nowhere.ack("x")
    with request_refused(StatusCode.NOT_FOUND, "Resource not found"):
        await nowhere.modack(10, "x")


@case
async def test_CT_07_no_ack_ids_is_refused_with_a_trailer(world: World):
    sub = await world.subscription()

    with request_refused(StatusCode.INVALID_ARGUMENT, "You have not specified an ack ID in the request."):
        await sub.ack()
    with request_refused(StatusCode.INVALID_ARGUMENT, "You have not specified an ack ID in the request."):
        await sub.modack(10)


@case
async def test_CT_08_deadline_out_of_range_leaves_the_lease_as_it_was(world: World):
    sub = await world.subscription()
    await sub.publish()
    before = time.monotonic()
    (a,) = await sub.pull()

    for seconds in (601, -1):
        tokens = ("Invalid ack deadline given", f"(ack_deadline={seconds})", "between 0 and 600 seconds")
        with request_refused(StatusCode.INVALID_ARGUMENT, *tokens):
            await sub.modack(seconds, a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=13)
    assert 10 <= b.at - before <= 13


@case
async def test_CT_09_good_id_beside_a_bad_one_takes_effect(world: World):
    sub = await world.subscription()
    a, b = await one_expired_one_leased(sub)

    with permanent(a) as refusal:
        await sub.ack(a, b)
    assert refusal.results.get(b.ack_id, TRANSIENT).startswith("TRANSIENT_FAILURE_")
    await sub.ack(b)
    assert b.message_id not in message_ids(await sub.watch(15))


@case
async def test_CT_10_good_id_beside_a_bad_one_is_extended(world: World):
    sub = await world.subscription()
    a, b = await one_expired_one_leased(sub)

    with permanent(a) as refusal:
        await sub.modack(30, a, b)
    assert refusal.results.get(b.ack_id, TRANSIENT).startswith("TRANSIENT_FAILURE_")
    assert b.message_id not in message_ids(await sub.watch(25))
    await sub.ack(b)


@case
async def test_CT_11_policy_confirm_lists_good_ids_as_transient(world: World):
    async with world.own_server("--ack-batch-policy", "confirm") as own:
        sub = await own.subscription()
        a, b = await one_expired_one_leased(sub)

        with permanent(a) as refusal:
            await sub.ack(a, b)
        assert refusal.results == {a.ack_id: PERMANENT, b.ack_id: TRANSIENT}
        await sub.ack(b)

        (c,) = await sub.lease()
        with permanent(a) as refusal:
            await sub.modack(30, a, c)
        assert refusal.results == {a.ack_id: PERMANENT, c.ack_id: TRANSIENT}
        await sub.modack(30, c)


@case
async def test_CT_12_policy_omit_lists_exactly_the_failures(world: World):
    async with world.own_server("--ack-batch-policy", "omit") as own:
        sub = await own.subscription()
        a, b = await one_expired_one_leased(sub)

        with permanent(a) as refusal:
            await sub.ack(a, b)
        assert refusal.results == {a.ack_id: PERMANENT}


@case
async def test_CT_12_policy_omit_is_the_default(world: World):
    sub = await world.subscription()
    a, b = await one_expired_one_leased(sub)

    with permanent(a) as refusal:
        await sub.ack(a, b)
    assert refusal.results == {a.ack_id: PERMANENT}


@case
async def test_policy_abort_answers_aborted_for_a_mixed_batch_only(world: World):
    async with world.own_server("--ack-batch-policy", "abort") as own:
        sub = await own.subscription()
        a, b = await one_expired_one_leased(sub)

        for _ in range(2):  # the good id keeps its effect, so a retry of the batch sees the same
            with refused_with_trailer(StatusCode.ABORTED) as refusal:
                await sub.ack(a, b)
            assert refusal.results == {a.ack_id: PERMANENT}
        with permanent(a) as refusal:
            await sub.ack(a)
        assert refusal.results == {a.ack_id: PERMANENT}
        await sub.ack(b)


@case
async def test_CT_13_id_repeated_in_a_request_is_one_ack(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()

    await sub.ack(a, a)
    await sub.nothing_for(3)


@case
async def test_CT_14_expired_id_repeated_in_a_request_has_one_entry(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a, a)
    assert refusal.results == {a.ack_id: PERMANENT}


@case
async def test_CT_15_altered_ack_id_is_permanent_and_the_true_one_still_works(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()

    for copy in altered(a.ack_id):
        with permanent(copy):
            await sub.ack(copy)
        with permanent(copy):
            await sub.nack(copy)
    await sub.ack(a)


@case(alone=True)
async def test_CT_16_thousand_expired_ids_are_a_thousand_entries(world: World):
    sub = await world.subscription()
    leased = await sub.lease(1000)
    await sub.expire(*leased)

    start = time.monotonic()
    with permanent(*leased) as refusal:
        await sub.ack(*leased)
    assert time.monotonic() - start < 5
    assert len(refusal.results) == 1000


@case(alone=True)
async def test_CT_17_2500_ids_in_one_request_are_acked(world: World):
    sub = await world.subscription()
    leased = await sub.lease(2500)

    start = time.monotonic()
    await sub.ack(*leased)
    assert time.monotonic() - start < 5
    await sub.nothing_for(3)


@case
async def test_CT_18_request_over_the_size_limit_is_refused_whole(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    for request_type, call in (
        (pb.AcknowledgeRequest, world.client.Acknowledge),
        (pb.ModifyAckDeadlineRequest, world.client.ModifyAckDeadline),
    ):
        request = request_type(subscription=sub.name, ack_ids=[a.ack_id])
        missing = ACK_REQUEST_BYTES_MAX + 1 - request.ByteSize()
        request.ack_ids.append("x" * (missing - 4))  # tag and a length of three bytes
        assert request.ByteSize() == ACK_REQUEST_BYTES_MAX + 1

        with request_refused(
            StatusCode.INVALID_ARGUMENT, "Request payload size exceeds the limit: 524288 bytes."
        ):
            await call(request)
    # A nack that was not looked at has not ended the lease.
    await sub.ack(a)
    await sub.nothing_for(2)


@case
async def test_CT_19_request_just_under_the_size_limit_is_processed(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    request = pb.AcknowledgeRequest(subscription=sub.name)
    room = ACK_REQUEST_BYTES_MAX - request.ByteSize()
    one = pb.AcknowledgeRequest(ack_ids=[a.ack_id]).ByteSize()
    request.ack_ids.extend([a.ack_id] * (room // one))

    await world.client.Acknowledge(request)
    await sub.nothing_for(2)


@case
async def test_CT_20_ack_ids_are_short_ascii_and_all_different(world: World):
    sub = await world.subscription()
    ack_ids = [delivery.ack_id for delivery in await sub.lease(1000)]

    assert len(set(ack_ids)) == 1000
    for ack_id in ack_ids:
        assert len(ack_id) <= 160
        assert ack_id.isascii() and ack_id.replace("-", "").replace("_", "").isalnum()


@case
async def test_CT_21_CT_23_failed_commit_is_a_transient_answer_with_the_full_prefix(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        a, b = await sub.lease(2)

        await own.inject_fault(FAIL)
        with transient(a) as refusal:
            await sub.ack(a)
        assert refusal.results == {a.ack_id: TRANSIENT}
        with transient(b) as refusal:
            await sub.modack(30, b)
        assert refusal.results == {b.ack_id: TRANSIENT}
        await own.inject_fault(NONE)

        await sub.ack(a)
        await sub.ack(b)
        await sub.nothing_for(12)


@case
async def test_CT_22_blocked_writer_does_not_hold_the_answer_back(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.modack(60, a)
        await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=20))

        start = time.monotonic()
        with transient(a):
            await sub.ack(a)
        assert time.monotonic() - start <= 15
        # The retry arrives when the writer is free again: whatever became of the first try, it is OK now.
        await asyncio.sleep(start + 21 - time.monotonic())
        await sub.ack(a)
        await sub.nothing_for(2)


@case
async def test_CT_24_no_refusal_has_a_code_that_clients_misread(world: World):
    sub, other = await world.subscription(), await world.subscription()
    (expired,) = await sub.lease_expired()
    (nacked,) = await other.lease()
    await other.nack(nacked)
    misread = {StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.CANCELLED, StatusCode.INTERNAL}

    seen = []
    for ack_ids in ([expired], [nacked], ["x"], [""], [], ["é" * 10], [expired, nacked, "x"]):
        for call in (
            sub.ack,
            sub.nack,
            lambda *ids: sub.modack(10, *ids),
            lambda *ids: sub.modack(999, *ids),
        ):
            with refused_with_trailer(StatusCode.INVALID_ARGUMENT) as refusal:
                await call(*ack_ids)
            seen.append(refusal.code)
    assert not misread & set(seen)


@case
async def test_CT_25_ack_id_of_another_subscription_is_permanent(world: World):
    topic = await world.topic()
    one, other = await world.subscription(topic=topic), await world.subscription(topic=topic)
    (a,) = await one.lease()

    with permanent(a):
        await other.ack(a)
    await one.ack(a)
    assert await other.pull_now() != []


@case
async def test_CT_26_nacked_ack_id_is_permanent(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)

    with permanent(a):
        await sub.ack(a)


@case
async def test_CT_27_parallel_extensions_of_one_id_both_succeed(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()

    await asyncio.gather(sub.modack(10, a), sub.modack(10, a))


@case
async def test_CT_28_parallel_acks_of_one_id_both_succeed(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()

    await asyncio.gather(sub.ack(a), sub.ack(a))


@case
async def test_each_refused_ack_is_one_line_in_the_log_with_its_reason(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        expired, nacked, _ = await sub.lease(3)
        await sub.nack(nacked)
        await sub.expire(expired)
        with permanent(expired, nacked, "junk"):
            await sub.ack(expired, nacked, "junk")
        lines = await own.said(sub.name, count=3)
        for ack_id, reason in (
            (expired.ack_id, "deadline"),
            (nacked.ack_id, "nacked"),
            ("junk", "malformed"),
        ):
            (line,) = [line for line in lines if ack_id in line]
            assert reason in line
        assert len(lines) == 3
