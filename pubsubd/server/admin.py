"""The admin service, proto/pubsubd/admin/v1: hooks for tests and analytics, on loopback, off by default."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from pubsubd.broker import Subscription
from pubsubd.engine.engine import Engine
from pubsubd.model import errors
from pubsubd.server.calls import Context, parse, unary
from pubsubd.server.sealing import CannotSeal, Sealer
from pubsubd.wire import admin_pb

SERVICE = "pubsubd.admin.v1.Admin"


class Admin:
    def __init__(
        self, engine: Engine, inject: Callable[[int, int, int, float], None], sealer: Sealer | None
    ) -> None:
        """`inject(fault, commits, skip, stall_seconds)` arms a fault of the storage."""
        self._engine = engine
        self._inject = inject
        self._sealer = sealer

    def handler(self) -> grpc.GenericRpcHandler:
        table = {
            "InjectCommitFault": unary(self._inject_commit_fault),
            "GetState": unary(self._get_state),
            "Seal": unary(self._seal),
        }
        return grpc.method_handlers_generic_handler(SERVICE, table)

    async def _inject_commit_fault(self, data: bytes, context: Context) -> bytes:
        request = parse(admin_pb.InjectCommitFaultRequest, data)
        if request.fault not in admin_pb.InjectCommitFaultRequest.Fault.values():
            raise errors.bad_argument("fault", "no such fault")
        if request.commits < 0 or request.skip < 0 or request.stall.ToMicroseconds() < 0:
            raise errors.bad_argument("commits", "numbers and durations must not be negative")
        stall_seconds = request.stall.ToMicroseconds() / 1e6
        self._inject(request.fault, request.commits, request.skip, stall_seconds)
        return b""

    async def _get_state(self, data: bytes, context: Context) -> bytes:
        request = parse(admin_pb.GetStateRequest, data)
        broker = await self._engine.broker()
        response = admin_pb.GetStateResponse(
            commits=self._engine.commits,
            journal_seq=self._engine.journal_seq,
            now_us=self._engine.now_us(),
            subscriptions=[
                _state(subscription)
                for subscription in broker.subscriptions()
                if request.subscription in ("", subscription.name)
            ],
        )
        serialised: bytes = response.SerializeToString()
        return serialised

    async def _seal(self, data: bytes, context: Context) -> bytes:
        request = parse(admin_pb.SealRequest, data)
        if self._sealer is None:
            raise errors.cannot_seal("the journal is off")
        try:
            sealed = await self._sealer.seal(request.backlog)
        except CannotSeal as error:
            raise errors.cannot_seal(str(error)) from error
        response = admin_pb.SealResponse(last_seq=sealed.last_seq, backlog=sealed.backlog or "")
        serialised: bytes = response.SerializeToString()
        return serialised


def _state(subscription: Subscription) -> admin_pb.SubscriptionState:
    return admin_pb.SubscriptionState(
        name=subscription.name,
        sub_id=subscription.sub_id,
        cursor=subscription.cursor,
        leased=len(subscription.leases),
        waiting=subscription.waiting_count,
        streams=len(subscription.consumers),
        leases=[
            admin_pb.Lease(
                message_id=lease.message_id,
                generation=lease.generation,
                attempt=lease.attempt,
                deadline_us=lease.deadline_us,
            )
            for lease in subscription.leases
        ],
    )
