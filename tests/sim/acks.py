"""Requests about ack ids, unary and on streams, and how their answers are to be understood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as RpcStatus

from pubsubd.eod import answer
from pubsubd.wire import pb
from pubsubd.wire.services import SERVICES
from tests.crash.log import Answer
from tests.sim.wire import Reply, StreamCall

if TYPE_CHECKING:
    from tests.sim.clients import Population
    from tests.sim.consumer import Consumer

_ANSWERS = {
    answer.PERMANENT: Answer.PERMANENT,
    answer.UNORDERED: Answer.UNORDERED,
    answer.UNAVAILABLE: Answer.UNKNOWN,
}
# What a well-formed call may be refused with for sure, having done nothing.
REFUSED = {"NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
UNDECIDED = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"}
RESPONSES = {method.name: method.response for methods in SERVICES.values() for method in methods.values()}


async def ask_unary(
    population: Population, who: str, subscription: str, kind: str, seconds: int, ack_ids: Sequence[str]
) -> dict[str, Answer]:
    """One Acknowledge or ModifyAckDeadline, and what it was answered."""
    world = population.world
    sent_us = world.wall_us()
    request: Any
    if kind == "ack":
        method = "Acknowledge"
        request = pb.AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids)
    else:
        method = "ModifyAckDeadline"
        request = pb.ModifyAckDeadlineRequest(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
    world.tell("asking", kind, subscription, list(ack_ids), seconds, sent_us)
    reply = await population.call(who, method, request.SerializeToString(), request)
    results = results_of(reply, ack_ids, world.plan.policy)
    world.tell("answered", kind, subscription, list(ack_ids), seconds, sent_us, world.wall_us(), results)
    return results


def results_of(reply: Reply, ack_ids: Sequence[str], policy: str) -> dict[str, Answer]:
    """How each id of a call is to be understood; empty: nothing of it happened for sure."""
    status = reply.status
    if status.ok:
        return dict.fromkeys(ack_ids, Answer.OK)
    told: dict[str, str] = {}
    if status.details:
        for detail in RpcStatus.FromString(status.details).details:
            told |= _results(detail)
    if not told:
        # UNAVAILABLE and its like say nothing; any other refusal is one of the whole request.
        return dict.fromkeys(ack_ids, Answer.UNKNOWN) if status.code in UNDECIDED else {}
    unlisted = Answer.UNKNOWN if policy == "abort" else Answer.OK
    return {ack_id: _ANSWERS[told[ack_id]] if ack_id in told else unlisted for ack_id in ack_ids}


def in_order(response: Any, data: bytes) -> bytes:
    """`data` with its maps in order: protobuf writes them as they lie in memory."""
    serialised: bytes = response.FromString(data).SerializeToString(deterministic=True)
    return serialised


def details_in_order(details: bytes) -> bytes:
    if not details:
        return b""
    status = RpcStatus.FromString(details)
    results = [sorted(_results(detail).items()) for detail in status.details]
    return f"{status.code} {status.message} {results}".encode()


def _results(detail: AnyMessage) -> dict[str, str]:
    info = ErrorInfo()
    if not detail.Unpack(info) or info.reason != answer.REASON:
        return {}
    return dict(info.metadata)


class OnStream:
    """Requests on an open stream, and what the confirmations say."""

    def __init__(self, consumer: Consumer, call: StreamCall, number: int) -> None:
        self.half_closed = False
        self.number = number
        self._consumer = consumer
        self._world = consumer._world
        self._call = call
        # Confirmations tell acks from changes of deadline, but not one such change from another; so nothing
        # is asked about an id while an answer about it is expected.
        self._asked: dict[tuple[str, str], tuple[int, int, _Batch]] = {}

    def takes(self, kind: str, ack_ids: Sequence[str]) -> bool:
        if self._call.over or self.half_closed:
            return False
        return not any((kind, ack_id) in self._asked for ack_id in ack_ids)

    def send_first(self, first: Any) -> None:
        if first.ack_ids:
            self._expect("ack", 0, first.ack_ids, lambda _: None)
        self._write(first)

    def send(
        self, kind: str, seconds: int, ack_ids: Sequence[str], told: Callable[[dict[str, Answer]], None]
    ) -> None:
        self._expect(kind, seconds, ack_ids, told)
        if kind == "ack":
            request = pb.StreamingPullRequest(ack_ids=ack_ids)
        else:
            request = pb.StreamingPullRequest(
                modify_deadline_ack_ids=ack_ids, modify_deadline_seconds=[seconds] * len(ack_ids)
            )
        self._write(request)

    def _write(self, request: Any) -> None:
        data = request.SerializeToString()
        self._world.operations += 1
        self._world.trace.note(self._consumer.who, "> stream", data, request)
        self._call.write(data)

    def _expect(
        self, kind: str, seconds: int, ack_ids: Sequence[str], told: Callable[[dict[str, Answer]], None]
    ) -> None:
        batch = _Batch(len(set(ack_ids)), told)
        sent_us = self._world.wall_us()
        self._world.tell("asking", kind, self._consumer.subscription, list(ack_ids), seconds, sent_us)
        for ack_id in ack_ids:
            self._asked[kind, ack_id] = (seconds, sent_us, batch)

    def confirmed(self, response: Any) -> None:
        if response.HasField("acknowledge_confirmation"):
            said = response.acknowledge_confirmation
            self._resolve("ack", said.ack_ids, Answer.OK)
            self._resolve("ack", said.invalid_ack_ids, Answer.PERMANENT)
            self._resolve("ack", said.temporary_failed_ack_ids, Answer.UNKNOWN)
            self._resolve("ack", said.unordered_ack_ids, Answer.UNORDERED)
        if response.HasField("modify_ack_deadline_confirmation"):
            said = response.modify_ack_deadline_confirmation
            self._resolve("modack", said.ack_ids, Answer.OK)
            self._resolve("modack", said.invalid_ack_ids, Answer.PERMANENT)
            self._resolve("modack", said.temporary_failed_ack_ids, Answer.UNKNOWN)

    def ended(self) -> None:
        for kind, ack_id in list(self._asked):
            self._resolve(kind, [ack_id], Answer.UNKNOWN)

    def _resolve(self, kind: str, ack_ids: Sequence[str], result: Answer) -> None:
        world = self._world
        groups: dict[tuple[int, int], list[str]] = {}
        batches: list[_Batch] = []
        for ack_id in ack_ids:
            if (kind, ack_id) not in self._asked:
                world.breaks(
                    "I5", f"confirmed and not asked, or twice: {self._consumer.who}: {kind} {ack_id}"
                )
                return
            seconds, sent_us, batch = self._asked.pop((kind, ack_id))
            groups.setdefault((seconds, sent_us), []).append(ack_id)
            batch.results[ack_id] = result
            batches.append(batch)
        for (seconds, sent_us), ids in groups.items():
            results = dict.fromkeys(ids, result)
            world.tell(
                "answered", kind, self._consumer.subscription, ids, seconds, sent_us, world.wall_us(), results
            )
        for batch in batches:
            batch.tell_if_complete()


class _Batch:
    """The ids of one request."""

    def __init__(self, count: int, told: Callable[[dict[str, Answer]], None]) -> None:
        self.results: dict[str, Answer] = {}
        self._count = count
        self._told = told

    def tell_if_complete(self) -> None:
        if len(self.results) == self._count:
            self._count = 0
            self._told(self.results)
