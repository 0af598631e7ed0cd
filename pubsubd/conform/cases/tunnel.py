"""CT: what unary Acknowledge and ModifyAckDeadline answer for each ack id under exactly-once delivery.

`permanent` and `transient` look at the whole form of such a refusal each time. Cases about one part of it
(the trailer, the details, the code) look at that part alone, so that a report says which one is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc import StatusCode

from pubsubd.conform.calls import (
    ACK_REQUEST_BYTES_MAX,
    DOMAIN,
    MISREAD,
    PERMANENT,
    REASON,
    TRANSIENT,
    TRANSIENT_PREFIX,
    Refusal,
    about,
    ack_ids_of,
    permanent,
    refused_with_trailer,
    request_refused,
    transient,
)
from pubsubd.conform.case import Differs, Failed, Hook, NotRun, case, check
from pubsubd.conform.cases.shared import LEASE_AND_MORE, LEASE_SECONDS, altered, lease_many
from pubsubd.conform.lab import Delivery, Lab, OwnLab, Sub, check_redelivered, count_of, message_ids
from pubsubd.wire import admin_pb, pb

FAIL = admin_pb.InjectCommitFaultRequest.FAIL
STALL = admin_pb.InjectCommitFaultRequest.STALL
NONE = admin_pb.InjectCommitFaultRequest.NONE

ABORTED = StatusCode.ABORTED
INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
NOT_FOUND = StatusCode.NOT_FOUND

ERROR_INFO_URL = "type.googleapis.com/google.rpc.ErrorInfo"
ACK_ID_BYTES_MAX = 160


async def one_expired_one_leased(sub: Sub) -> tuple[Delivery, Delivery]:
    expired, leased = await sub.lease(2)
    await sub.expire(expired)
    return expired, leased


def acks_of_size(size: int, sub: Sub, ack_id: str) -> Any:
    """An ack request that repeats this id as often as fits into so many bytes."""
    request = pb.AcknowledgeRequest(subscription=sub.name)
    one = pb.AcknowledgeRequest(ack_ids=[ack_id]).ByteSize()
    request.ack_ids.extend([ack_id] * ((size - request.ByteSize()) // one))
    return request


async def refused_beside(bad: Delivery, call: Awaitable[Any]) -> Refusal:
    """The PERM(a) of the checklist for one id of a batch with good ones, under any of the three policies.

    One of them answers such a batch with ABORTED: see `say_if_aborted`.
    """
    try:
        await call
    except grpc.RpcError as error:
        if error.code() is not ABORTED:
            with permanent(bad) as refusal:
                raise
        else:
            refusal = Refusal.of(error)
    else:
        raise Failed("A batch with an expired id was answered OK.")
    seen = refusal.results.get(bad.ack_id, "absent")
    check(seen == PERMANENT, f"The result of the expired id is {seen}, not {PERMANENT}.")
    return refusal


async def check_stays_away(sub: Sub, good: Delivery, seconds: float) -> None:
    """The expired message of the batch may come again, the one with the good id may not."""
    seen = message_ids(await sub.watch(seconds))
    check(good.message_id not in seen, "The ack beside an expired id had no effect: its message came again.")


def say_if_aborted(refusal: Refusal) -> None:
    """The last line of a case with a mixed batch, when all else was as it should be."""
    if refusal.code is ABORTED:
        raise Differs("All as promised, but a batch with good ids beside the bad one is answered ABORTED.")


def check_good(good: Delivery, refusal: Refusal) -> str:
    """The result of a good id in a refused batch is absent or transient; returns it."""
    seen = refusal.results.get(good.ack_id, "absent")
    check(
        seen == "absent" or seen.startswith(TRANSIENT_PREFIX), f"The result of the good id is {seen}, not OK."
    )
    return seen


@asynccontextmanager
async def with_policy(lab: Lab, policy: str) -> AsyncIterator[Lab]:
    """A server of this policy where one can be started; otherwise the endpoint, whatever its policy is."""
    if lab.setting.start_command is None:
        yield lab
    else:
        async with lab.own_server({"PUBSUBD_ACK_BATCH_POLICY": policy}) as own:
            yield own


def wrong_policy(lab: Lab, seen: str) -> Exception:
    """Another policy than the one asked for: a fault where it can be set; elsewhere nothing was tested."""
    # Who serves our admin service is our own server, and reads our variables.
    if isinstance(lab, OwnLab) and lab.served.command.has_admin:
        return Failed(seen)
    return NotRun(
        f"The endpoint's policy is another, and only a pubsubd of --start-cmd can be given one. {seen}"
    )


@case(
    "CT-01",
    promise="An ack inside the lease is answered OK and Empty, and ends the message.",
    critical="PNGJX",
    seconds=31,
)
async def ack_ends_the_message(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()

    check(await sub.ack(a) == pb.Empty(), "The ack was answered with something other than Empty.")
    await sub.nothing_for(30)
    return "Answered OK and Empty; no redelivery for 30 s."


@case(
    "CT-02",
    promise="The ack id of an expired lease is refused for good.",
    critical="PNGJX",
    seconds=3,
)
async def expired_ack_id_is_permanent(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a)
    return f"Refused with {refusal.code.name} and {refusal.results[a.ack_id]}."


@case(
    "CT-03",
    promise="The status in the trailer has the code of the call, and its message byte for byte.",
    critical="P",
    seconds=3,
)
async def trailer_repeats_code_and_message(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with refused_with_trailer(INVALID_ARGUMENT) as refusal:
        await sub.ack(a)
    return f"Code 3 and the message {refusal.message!r} in both places."


@case(
    "CT-04",
    promise="The first detail of the trailer is an ErrorInfo, and there is no other ErrorInfo.",
    critical="P",
    seconds=3,
)
async def error_info_is_the_first_detail_and_the_only_one(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with refused_with_trailer(INVALID_ARGUMENT) as refusal:
        await sub.ack(a)
    assert refusal.status is not None
    details = refusal.status.details
    check(details, "The status in the trailer has no details.")
    first = details[0]
    check(
        first.type_url == ERROR_INFO_URL and first.Unpack(error_details_pb2.ErrorInfo()),
        f"The first detail is a {first.type_url}.",
    )
    count = len(refusal.error_infos)
    check(count == 1, f"The trailer has {count} ErrorInfos.")
    return f"{count_of(details, 'detail')}; the first is the only ErrorInfo."


@case(
    "CT-05",
    promise="The ErrorInfo has the reason EXACTLY_ONCE_ACKID_FAILURE and the domain pubsub.googleapis.com.",
    seconds=3,
)
async def error_info_names_reason_and_domain(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with refused_with_trailer(INVALID_ARGUMENT) as refusal:
        await sub.ack(a)
    check(refusal.error_infos, "The trailer has no ErrorInfo.")
    info = refusal.error_infos[0]
    seen = f"Reason {info.reason!r} and domain {info.domain!r}."
    check((info.reason, info.domain) == (REASON, DOMAIN), seen)
    return seen


@case(
    "CT-06",
    promise="On an unknown subscription the refusal is NOT_FOUND, repeated in the trailer.",
    critical="P",
    seconds=1,
)
async def unknown_subscription_is_refused_with_a_trailer(lab: Lab) -> str:
    nowhere = Sub(lab, "", lab.name("subscription"))

    with about("Acknowledge"), request_refused(NOT_FOUND):
        await nowhere.ack("x")
    with about("ModifyAckDeadline"), request_refused(NOT_FOUND):
        await nowhere.modack(10, "x")
    return "Ack and modack were refused with NOT_FOUND in the call and in the trailer."


@case(
    "CT-07",
    promise="A request without ack ids is refused with INVALID_ARGUMENT and a trailer, and no result of ids.",
    critical="P",
    seconds=1,
)
async def no_ack_ids_is_refused_with_a_trailer(lab: Lab) -> str:
    sub = await lab.subscription()

    with about("Acknowledge"), request_refused(INVALID_ARGUMENT):
        await sub.ack()
    with about("ModifyAckDeadline"), request_refused(INVALID_ARGUMENT):
        await sub.modack(10)
    return "Ack and modack were refused with INVALID_ARGUMENT in the call and in the trailer."


@case(
    "CT-08",
    promise="An extension out of range is refused with INVALID_ARGUMENT and a trailer, and changes no lease.",
    critical="P",
    seconds=12,
)
async def deadline_out_of_range_leaves_the_lease_as_it_was(lab: Lab) -> str:
    sub = await lab.subscription()
    await sub.publish()
    before = time.monotonic()
    (a,) = await sub.pull()

    for seconds in (601, -1):
        with about(f"An extension of {seconds} seconds"), request_refused(INVALID_ARGUMENT):
            await sub.modack(seconds, a)
    async with sub.stream() as stream:
        (b,) = await stream.take(within=LEASE_AND_MORE)
    check_redelivered(b, a)
    check(
        b.at - before >= LEASE_SECONDS,
        f"Both were refused, but the message came again after {b.at - before:.1f} s instead of 10.",
    )
    return f"601 and -1 were refused; the message came again {b.at - a.at:.1f} s after its delivery."


@case(
    "CT-09",
    promise="An ack beside a bad id takes effect, and is never reported as a permanent failure.",
    critical="PNGJX",
    seconds=19,
)
async def good_ack_beside_a_bad_one_takes_effect(lab: Lab) -> str:
    sub = await lab.subscription()
    a, b = await one_expired_one_leased(sub)

    refusal = await refused_beside(a, sub.ack(a, b))
    good = check_good(b, refusal)
    # Not acked once more before its lease is over: that would make up for an ack that was dropped.
    await check_stays_away(sub, b, LEASE_AND_MORE)
    await sub.ack(b)
    await check_stays_away(sub, b, 3)
    say_if_aborted(refusal)
    return (
        f"The expired id is permanent, the good one {good}; no redelivery for {LEASE_AND_MORE} s, and the "
        "same ack alone was OK then."
    )


@case(
    "CT-10",
    promise="An extension beside a bad id takes effect, and is never reported as a permanent failure.",
    critical="NG",
    seconds=28,
)
async def good_extension_beside_a_bad_one_takes_effect(lab: Lab) -> str:
    sub = await lab.subscription()
    a, b = await one_expired_one_leased(sub)

    refusal = await refused_beside(a, sub.modack(30, a, b))
    good = check_good(b, refusal)
    check(
        b.message_id not in message_ids(await sub.watch(25)), "The extended message came again within 25 s."
    )
    await sub.ack(b)
    say_if_aborted(refusal)
    return f"The expired id is permanent, the good one {good}; no redelivery for 25 s; its ack was OK."


@case(
    "CT-11",
    promise="Under the policy `confirm`, good ids of a refused batch are listed as to be retried.",
    seconds=5,
)
async def policy_confirm_lists_good_ids_as_transient(lab: Lab) -> str:
    async with with_policy(lab, "confirm") as served:
        sub = await served.subscription()
        a, b = await one_expired_one_leased(sub)

        refusal = await refused_beside(a, sub.ack(a, b))
        good = check_good(b, refusal)
        if good == "absent":
            raise wrong_policy(
                served, f"The code is {refusal.code.name}, and only the id that failed is listed."
            )
        check(good == TRANSIENT, f"The good id is listed as {good}, not as {TRANSIENT}.")
        await sub.ack(b)
    return f"The good id is listed as {good}; its retry was OK."


@case(
    "CT-12",
    promise="Under the policy `omit`, a refusal lists exactly the ids that failed.",
    seconds=5,
)
async def policy_omit_lists_exactly_the_failures(lab: Lab) -> str:
    async with with_policy(lab, "omit") as served:
        sub = await served.subscription()
        a, b = await one_expired_one_leased(sub)

        refusal = await refused_beside(a, sub.ack(a, b))
        good = check_good(b, refusal)
        if good != "absent":
            raise wrong_policy(served, f"The good id is listed too, as {good}.")
        others = refusal.results.keys() - {a.ack_id}
        check(not others, f"The refusal lists {count_of(len(others), 'id')} that the request did not have.")
        if refusal.code is ABORTED:
            raise wrong_policy(served, "Only the id that failed is listed, but under the code ABORTED.")
    return "Only the id that failed is listed."


@case(
    "CT-13",
    promise="An ack id twice in one request is one ack.",
    seconds=14,
)
async def id_repeated_in_a_request_is_one_ack(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()

    await sub.ack(a, a)
    await sub.nothing_for(LEASE_AND_MORE)
    return f"Answered OK; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CT-14",
    promise="An expired ack id twice in one request is one permanent failure.",
    seconds=3,
)
async def expired_id_repeated_in_a_request_has_one_entry(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a, a)
    count = len(refusal.results)
    check(count == 1, f"The refusal lists {count} ids, not one.")
    return "Refused with one entry."


@case(
    "CT-15",
    promise="An altered copy of a valid ack id is refused for good, and the true id still works.",
    critical="PNGJX",
    seconds=2,
)
async def altered_ack_id_is_permanent(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    copies = altered(a.ack_id)

    for what, copy in copies.items():
        with about(f"The ack id {what}"), permanent(copy):
            await sub.ack(copy)
    with about("A nack of all of them"), permanent(*copies.values()):
        await sub.nack(*copies.values())
    # Had one of the copies ended the lease, this would be refused.
    await sub.modack(10, a)
    await sub.ack(a)
    # That the message is acked makes a repeated ack OK, and no copy a true id.
    with about("An ack of all of them after that of the true id"), permanent(*copies.values()):
        await sub.ack(*copies.values())
    return f"{len(copies)} flipped, cut and lengthened copies were permanent failures; the true id was OK."


@case(
    "CT-16",
    promise="A thousand expired ids in one ack are a thousand results, answered within 5 s.",
    critical="PJ",
    seconds=6,
)
async def thousand_expired_ids_are_a_thousand_entries(lab: Lab) -> str:
    sub = await lab.subscription()
    leased = await lease_many(sub, 1000)
    await sub.expire(*leased)

    start = time.monotonic()
    with permanent(*leased) as refusal:
        await sub.ack(*leased)
    took = time.monotonic() - start
    count = len(refusal.results)
    check(count == 1000, f"The refusal has {count} entries, not 1000.")
    check(took < 5, f"The answer took {took:.1f} s.")
    return f"INVALID_ARGUMENT with 1000 entries after {took:.2f} s."


@case(
    "CT-17",
    promise="An ack of 2500 ids is answered OK within 5 s, and ends every one of the messages.",
    critical="NG",
    seconds=18,
)
async def ack_of_2500_ids_is_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    leased = await lease_many(sub, 2500)
    request = pb.AcknowledgeRequest(subscription=sub.name, ack_ids=ack_ids_of(leased))
    size = request.ByteSize()
    check(
        size <= ACK_REQUEST_BYTES_MAX,
        f"The ack ids are so long that 2500 of them make {size} bytes, more than one request may have.",
    )
    # Short leases again: what the ack did not end will be seen before long.
    await sub.modack(10, *leased)

    start = time.monotonic()
    await lab.client.Acknowledge(request)
    took = time.monotonic() - start
    check(took < 5, f"The answer took {took:.1f} s.")
    await sub.nothing_for(LEASE_AND_MORE)
    return f"OK after {took:.2f} s; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CT-18",
    promise="An ack request over 524,288 bytes is refused whole, with INVALID_ARGUMENT and a trailer.",
    seconds=2,
)
async def request_over_the_size_limit_is_refused(lab: Lab) -> str:
    # The requests are large, and the lease has to outlast them on a slow connection, too.
    sub = await lab.subscription(ack_deadline_seconds=60)
    (a,) = await sub.lease()
    # Nothing else is wrong with these: each repeats the one valid id.
    just_over = acks_of_size(ACK_REQUEST_BYTES_MAX, sub, a.ack_id)
    just_over.ack_ids.append(a.ack_id)
    twice_over = acks_of_size(2 * ACK_REQUEST_BYTES_MAX, sub, a.ack_id)

    sizes = [request.ByteSize() for request in (just_over, twice_over)]
    for request, size in zip((just_over, twice_over), sizes, strict=True):
        with about(f"A request of {size} bytes"), request_refused(INVALID_ARGUMENT):
            await lab.client.Acknowledge(request)
    # Refused whole: the message can still be given back.
    await sub.nack(a)
    (b,) = await sub.pull()
    check_redelivered(b, a)
    return f"Requests of {sizes[0]} and {sizes[1]} bytes were refused, and nothing of them took effect."


@case(
    "CT-19",
    promise="An ack request of just under 524,288 bytes is processed.",
    seconds=14,
)
async def request_just_under_the_size_limit_is_processed(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    request = acks_of_size(ACK_REQUEST_BYTES_MAX, sub, a.ack_id)

    await lab.client.Acknowledge(request)
    await sub.nothing_for(LEASE_AND_MORE)
    return f"{request.ByteSize()} bytes were answered OK; no redelivery for {LEASE_AND_MORE} s."


@case(
    "CT-20",
    promise="Ack ids are ASCII and all different, and should be no longer than 160 bytes.",
    critical="G",
    seconds=3,
)
async def ack_ids_are_short_ascii_and_all_different(lab: Lab) -> str:
    sub = await lab.subscription()
    # Half of them are the same messages again, under ids of their own.
    first = await lease_many(sub, 500)
    await sub.nack(*first)
    again = await sub.pull(500, within=30)

    ack_ids = ack_ids_of([*first, *again])
    strange = [ack_id for ack_id in ack_ids if not ack_id or not ack_id.isascii()]
    check(not strange, f"{count_of(strange, 'ack id')} of 1000 are empty or not ASCII.")
    different = len(set(ack_ids))
    check(different == 1000, f"1000 deliveries had only {different} different ack ids.")
    longest = max(map(len, ack_ids))
    if longest > ACK_ID_BYTES_MAX:
        raise Differs(f"1000 different ids, all ASCII, but of up to {longest} bytes.")
    return f"1000 different ids, all ASCII, of up to {longest} bytes."


@case(
    "CT-21",
    promise="An ack that could not be made durable is a transient failure, and its retry later is OK.",
    critical="P",
    needs=[Hook.FAULTS],
    seconds=16,
)
async def failed_commit_is_transient(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        a, b = await sub.lease(2)

        await own.inject_fault(FAIL)
        for call, item in ((sub.ack(a), a), (sub.ack(a, b), b), (sub.modack(30, b), b)):
            with transient(item) as refusal:
                await call
            check(refusal.code is ABORTED, f"The answer's code is {refusal.code.name}, not ABORTED.")
        await own.inject_fault(NONE)

        await sub.ack(a)
        await sub.ack(b)
        await sub.nothing_for(LEASE_AND_MORE)
    return (
        f"While no commit succeeded, {refusal.code.name} with transient results; afterwards OK, and no "
        f"redelivery for {LEASE_AND_MORE} s."
    )


@case(
    "CT-22",
    promise="While the writer is blocked, an ack is answered with a trailer within 15 s.",
    critical="P",
    needs=[Hook.FAULTS],
    seconds=26,
)
async def blocked_writer_does_not_hold_the_answer_back(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.modack(60, a)
        await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=20))

        start = time.monotonic()
        with transient(a) as refusal:
            await sub.ack(a)
        took = time.monotonic() - start
        check(took <= 15, f"The answer took {took:.1f} s.")
        # When the writer is free again, the retry is OK whatever became of the first try.
        await asyncio.sleep(start + 21 - time.monotonic())
        await sub.ack(a)
        await sub.nothing_for(2)
    return f"{refusal.code.name} with a transient result after {took:.1f} s; the retry at 21 s was OK."


@case(
    "CT-23",
    promise="Results that are to be retried begin with the full TRANSIENT_FAILURE_.",
    critical="X",
    seconds=6,
)
async def transient_results_have_the_full_prefix(lab: Lab) -> str:
    seen = Counter[str]()

    async def look(call: Awaitable[Any]) -> None:
        try:
            await call
        except grpc.RpcError as error:
            results = Refusal.of(error).results.values()
            seen.update(result for result in results if not result.startswith("PERMANENT_"))

    ordered = await lab.ordered()
    await ordered.publish_key("k", b"m1", b"m2")
    leased = await ordered.pull(2)
    later = max(leased, key=lambda delivery: delivery.data)
    await look(ordered.ack(later))
    sub = await lab.subscription()
    a, b = await one_expired_one_leased(sub)
    await look(sub.ack(a, b))
    if lab.setting.start_command is not None and lab.setting.start_command.has_admin:
        async with lab.own_server() as own:
            sub = await own.subscription()
            (a,) = await sub.lease()
            await own.inject_fault(FAIL)
            await look(sub.ack(a))
            await look(sub.modack(10, a))

    wrong = [result for result in seen if not result.startswith(TRANSIENT_PREFIX)]
    check(not wrong, f"Results neither permanent nor with the full prefix: {', '.join(sorted(wrong))}.")
    if not seen:
        raise NotRun(
            "No transient answer could be had: an ack ahead of its key and one beside an expired id brought "
            "none, and failing commits need --start-cmd with {admin_port}."
        )
    return f"{count_of(seen.total(), 'transient result')}: {', '.join(sorted(seen))}."


@case(
    "CT-24",
    promise="No refusal of an ack or a modack has the code UNAVAILABLE, UNKNOWN or CANCELLED.",
    critical="PJ",
    seconds=20,
)
async def no_refusal_has_a_code_that_clients_misread(lab: Lab) -> str:
    # The refusals of all cases above, made once more: each of those judges its own expectations first, and
    # may not be part of the run.
    codes = Counter[StatusCode]()
    ok = 0
    async with asyncio.TaskGroup() as group:
        sweeps = [_refusals_of_ids(lab), _refusals_of_requests(lab), _refusals_of_a_thousand(lab)]
        if lab.setting.start_command is not None and lab.setting.start_command.has_admin:
            sweeps.append(_refusals_of_faults(lab))
        tasks = [group.create_task(sweep) for sweep in sweeps]
    for task in tasks:
        for code in task.result():
            if code is None:
                ok += 1
            else:
                codes[code] += 1

    said = ", ".join(f"{count} {code.name}" for code, count in codes.most_common())
    check(codes, f"None of {ok} bad requests was refused.")
    check(not MISREAD & codes.keys(), f"Among the refusals: {said}.")
    return f"{count_of(codes.total(), 'refusal')}: {said}" + (
        f"; {ok} others were answered OK." if ok else "."
    )


async def _code_of(call: Awaitable[Any]) -> StatusCode | None:
    """What a call is refused with, and None for OK; the rest of the answer is for other cases to judge."""
    try:
        await call
    except grpc.RpcError as error:
        code: StatusCode = error.code()
        return code
    return None


async def _codes_of(calls: Iterable[Awaitable[Any]]) -> list[StatusCode | None]:
    return [await _code_of(call) for call in calls]


async def _refusals_of_ids(lab: Lab) -> list[StatusCode | None]:
    """Expired, nacked, altered, foreign, empty: alone, repeated, and beside good ones."""
    sub, other = await lab.subscription(), await lab.subscription()
    nacked, good = await other.lease(2)
    (expired,) = await sub.lease_expired()
    await other.nack(nacked)
    batches: list[tuple[Sub, list[Any]]] = [
        (sub, [expired]),
        (sub, [expired, expired]),
        (sub, [*altered(expired.ack_id).values()]),
        (sub, ["x", "", "é"]),
        (sub, [good]),
        (other, [nacked]),
        (other, [*altered(good.ack_id).values()]),
    ]
    codes: list[StatusCode | None] = []
    for where, items in batches:
        codes += await _codes_of([where.modack(10, *items), where.ack(*items)])
    codes += await _codes_of([other.nack(*altered(good.ack_id).values()), other.modack(10, expired, good)])
    return codes + await _codes_of([other.ack(expired, good)])


async def _refusals_of_requests(lab: Lab) -> list[StatusCode | None]:
    """No ids, no such subscription, no such deadline, no end of bytes."""
    sub = await lab.subscription()
    (a,) = await sub.lease()
    nowhere = Sub(lab, "", lab.name("subscription"))
    nameless = Sub(lab, "", "")
    codes = await _codes_of([where.ack("x") for where in (nowhere, nameless)])
    codes += await _codes_of([where.modack(10, "x") for where in (nowhere, nameless)])
    codes += await _codes_of([sub.ack(), sub.modack(10), sub.modack(601, a), sub.modack(-1, a)])
    too_large = acks_of_size(ACK_REQUEST_BYTES_MAX + 4096, sub, a.ack_id)
    extension = pb.ModifyAckDeadlineRequest(
        subscription=sub.name, ack_ids=too_large.ack_ids, ack_deadline_seconds=10
    )
    return codes + await _codes_of(
        [lab.client.Acknowledge(too_large), lab.client.ModifyAckDeadline(extension)]
    )


async def _refusals_of_a_thousand(lab: Lab) -> list[StatusCode | None]:
    sub = await lab.subscription()
    leased = await lease_many(sub, 1000)
    await sub.expire(*leased)
    return await _codes_of([sub.ack(*leased), sub.modack(10, *leased)])


async def _refusals_of_faults(lab: Lab) -> list[StatusCode | None]:
    """Commits that fail, and one that takes longer than an answer may."""
    async with lab.own_server() as own:
        sub = await own.subscription(ack_deadline_seconds=60)
        a, b = await sub.lease(2)
        await own.inject_fault(FAIL)
        codes = await _codes_of([sub.ack(a), sub.modack(30, a), sub.nack(a)])
        await own.inject_fault(STALL, commits=1, stall=pb.Duration(seconds=20))
        return codes + await _codes_of([sub.ack(b), sub.modack(30, b)])


@case(
    "CT-25",
    promise="The ack id of another subscription is refused for good, and stays valid on its own.",
    seconds=2,
)
async def ack_id_of_another_subscription_is_permanent(lab: Lab) -> str:
    topic = await lab.topic()
    one, other = await lab.subscription(topic=topic), await lab.subscription(topic=topic)
    (a,) = await one.lease()

    with permanent(a):
        await other.ack(a)
    # Both have a copy of the message: the one of the other subscription was not acked in passing.
    await other.pull()
    await one.modack(10, a)
    await one.ack(a)
    return "A permanent failure on the other subscription; OK on its own."


@case(
    "CT-26",
    promise="The ack id of a nacked delivery is refused for good.",
    critical="PNGJX",
    seconds=1,
)
async def nacked_ack_id_is_permanent(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()
    await sub.nack(a)

    with permanent(a) as refusal:
        await sub.ack(a)
    return f"Refused with {refusal.code.name} and {refusal.results[a.ack_id]}."


@case(
    "CT-27",
    promise="Two extensions of one valid id at the same time are both OK.",
    seconds=2,
)
async def parallel_extensions_of_one_id_are_both_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    clients = [lab.new_client(), lab.new_client()]
    for a in await sub.lease(10):
        request = pb.ModifyAckDeadlineRequest(
            subscription=sub.name, ack_ids=[a.ack_id], ack_deadline_seconds=10
        )
        await asyncio.gather(*[_awaited(client.ModifyAckDeadline(request)) for client in clients])
    return "Ten pairs of extensions, each from two connections, were answered OK."


@case(
    "CT-28",
    promise="Two acks of one valid id at the same time are both OK.",
    critical="PNGJX",
    seconds=14,
)
async def parallel_acks_of_one_id_are_both_ok(lab: Lab) -> str:
    sub = await lab.subscription()
    clients = [lab.new_client(), lab.new_client()]
    for a in await sub.lease(10):
        request = pb.AcknowledgeRequest(subscription=sub.name, ack_ids=[a.ack_id])
        await asyncio.gather(*[_awaited(client.Acknowledge(request)) for client in clients])
    await sub.nothing_for(LEASE_AND_MORE)
    return (
        "Ten pairs of acks, each from two connections, were answered OK; no redelivery for "
        f"{LEASE_AND_MORE} s."
    )


async def _awaited(call: Any) -> Any:
    return await call
