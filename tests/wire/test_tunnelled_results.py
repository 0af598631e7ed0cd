"""What our own server says in a refusal beyond the cases CT of the conformance suite.

The suite leaves the texts of messages open, what becomes of ids that nobody was ever given, and the policies
that it does not name; the form of each refusal is looked at here in the same way.
"""

import asyncio

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import admin_pb, pb
from tests.wire.calls import (
    ACK_REQUEST_BYTES_MAX,
    PERMANENT,
    TRANSIENT,
    Client,
    permanent,
    refused_with_trailer,
    request_refused,
    transient,
)
from tests.wire.harness import case
from tests.wire.support import Sub, World, unique

FAIL = admin_pb.InjectCommitFaultRequest.FAIL
NONE = admin_pb.InjectCommitFaultRequest.NONE


async def one_expired_one_leased(sub: Sub):
    expired, leased = await sub.lease(2)
    await sub.expire(expired)
    return expired, leased


@case
async def test_refusals_have_the_texts_that_log_readers_know(world: World):
    sub, nowhere = await world.subscription(), Sub(world, "", unique("subscription"))
    (a,) = await sub.lease()

    with permanent("x") as refusal:
        await sub.ack("x")
    assert refusal.message.startswith("Some acknowledgement ids in the request were invalid.")
    for call in (nowhere.ack("x"), nowhere.modack(10, "x")):
        with request_refused(StatusCode.NOT_FOUND, "Resource not found"):
            await call
    for call in (sub.ack(), sub.modack(10)):
        with request_refused(StatusCode.INVALID_ARGUMENT, "You have not specified an ack ID in the request."):
            await call
    for seconds in (601, -1):
        tokens = ("Invalid ack deadline given", f"(ack_deadline={seconds})", "between 0 and 600 seconds")
        with request_refused(StatusCode.INVALID_ARGUMENT, *tokens):
            await sub.modack(seconds, a)


@case
async def test_request_one_byte_over_the_size_limit_is_refused_whole(world: World):
    sub = await world.subscription()
    (a,) = await sub.lease()
    for request_type, call in (
        (pb.AcknowledgeRequest, world.client.Acknowledge),
        (pb.ModifyAckDeadlineRequest, world.client.ModifyAckDeadline),
    ):
        request = request_type(subscription=sub.name, ack_ids=[a.ack_id])
        missing = ACK_REQUEST_BYTES_MAX - request.ByteSize()
        request.ack_ids.append("x" * (missing - 4))  # tag and a length of three bytes
        assert request.ByteSize() == ACK_REQUEST_BYTES_MAX
        over = type(request).FromString(request.SerializeToString())
        over.ack_ids[1] += "x"

        with request_refused(
            StatusCode.INVALID_ARGUMENT, "Request payload size exceeds the limit: 524288 bytes."
        ):
            await call(over)
        # Neither the ack nor the nack that was not looked at has ended the lease.
        await sub.modack(10, a)
    with permanent(request.ack_ids[1]):
        await world.client.ModifyAckDeadline(request)
    (b,) = await sub.pull()
    assert b.message_id == a.message_id


@case
async def test_policy_confirm_lists_the_good_ids_of_a_modack_too(world: World):
    async with world.own_server("--ack-batch-policy", "confirm") as own:
        sub = await own.subscription()
        a, b = await one_expired_one_leased(sub)

        for call in (sub.modack(30, a, b), sub.ack(a, b)):
            with permanent(a) as refusal:
                await call
            assert refusal.results == {a.ack_id: PERMANENT, b.ack_id: TRANSIENT}


@case
async def test_a_hundred_failures_fit_into_what_a_channel_of_grpc_accepts_by_default(world: World):
    """Python's client acks a hundred at a time; what does not fit leaves their futures unresolved for ever.

    gRPC counts all trailers, each with 32 bytes more; from 8 KiB on it refuses the more the larger they are.
    """
    sub = await world.subscription()
    leased = await sub.lease(100)
    await sub.nack(*leased)
    limit = [("grpc.max_metadata_size", 8192), ("grpc.absolute_max_metadata_size", 8192)]

    async with grpc.aio.insecure_channel(world.server.address, options=limit) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            ack_ids = [one.ack_id for one in leased]
            await Client(channel).Acknowledge(subscription=sub.name, ack_ids=ack_ids)

    assert refused.value.code() is StatusCode.INVALID_ARGUMENT, refused.value.details()


@case
async def test_policy_omit_is_the_default(world: World):
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
async def test_ids_that_nobody_was_given_are_permanent_in_every_call(world: World):
    sub, other = await world.subscription(), await world.subscription()
    (foreign,) = await other.lease()

    for ack_ids in (["x"], [""], ["é" * 10], [foreign.ack_id], ["x", "", foreign.ack_id]):
        for call in (sub.ack(*ack_ids), sub.nack(*ack_ids), sub.modack(10, *ack_ids)):
            with permanent(*ack_ids) as refusal:
                await call
            assert refusal.results == dict.fromkeys(ack_ids, PERMANENT)
        # What is wrong with the whole request goes first.
        with request_refused(StatusCode.INVALID_ARGUMENT):
            await sub.modack(999, *ack_ids)


@case
async def test_ack_ids_are_words_that_survive_any_log(world: World):
    sub = await world.subscription()
    for delivery in await sub.lease(1000):
        assert len(delivery.ack_id) <= 160
        assert delivery.ack_id.replace("-", "").replace("_", "").isalnum()


@case
async def test_failed_commit_lists_every_id_of_a_batch(world: World):
    async with world.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        a, b = await sub.lease(2)

        await own.inject_fault(FAIL)
        for call in (sub.ack(a, b), sub.modack(30, a, b), sub.nack(a, b)):
            with transient(a, b) as refusal:
                await call
            assert refusal.results == {a.ack_id: TRANSIENT, b.ack_id: TRANSIENT}
        await own.inject_fault(NONE)
        await asyncio.gather(sub.ack(a), sub.ack(b))


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
