"""The unary methods of Publisher, Subscriber and IAMPolicy, and the table of all methods of the server."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from pubsubd.broker import (
    Answer,
    Broker,
    Consumer,
    Delivery,
    Question,
    Refusal,
    Sift,
    Subscription,
)
from pubsubd.engine.engine import Engine, NotSettled, TooSlow
from pubsubd.eod import answer
from pubsubd.model import errors, limits
from pubsubd.model.errors import PubsubError
from pubsubd.server import responses
from pubsubd.server.calls import (
    LOOKED_UP,
    Context,
    Handler,
    MethodHandler,
    client_name,
    parse,
    refuse_ack_ids,
    unary,
)
from pubsubd.server.refusals import log_refusals
from pubsubd.server.schemas import SchemaHandlers
from pubsubd.server.stream import Streams
from pubsubd.wire import pb
from pubsubd.wire.services import SERVICES, Method

#: By which `Service.unary` knows what deletes everything; no gRPC client can call it.
RESET = "reset"

_EMPTY = b""
_LOOKS_MAX = 3

_log = logging.getLogger("pubsubd.server")


class Pulled:
    """A Pull that waits; the Shell of its consumer."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
        self.consumer: Consumer | None = None

    def deliver(self, delivery: Delivery) -> None:
        if not self.outcome.done():
            self.outcome.set_result(delivery)

    def not_delivered(self) -> None:
        if not self.outcome.done():
            self.outcome.set_result(None)

    def close(self, error: PubsubError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def properties_changed(self) -> None:
        """A Pull response says nothing about the subscription."""


def _unique() -> str:
    return str(uuid.uuid4())


class Service:
    """`unique` makes a text that nobody else makes."""

    def __init__(self, engine: Engine, policy: answer.Policy, unique: Callable[[], str] = _unique) -> None:
        self.streams = Streams(engine)
        self._engine = engine
        self._policy = policy
        self._unique = unique
        # In the order of their arrival, so that one history is one history.
        self._pulls: dict[Pulled, None] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Every method of every service in `proto/google`; those without behaviour yet say so."""
        ours = self.unary()
        found = []
        for service, methods in SERVICES.items():
            if service.startswith("google."):
                table = {name: self._handler(method, ours) for name, method in methods.items()}
                found.append(grpc.method_handlers_generic_handler(service, table))
        return found

    def unary(self) -> dict[str, Handler]:
        """Every method that does not stream, by its path; and what is a method of no service."""
        ours = self._table()
        public = [
            method
            for service, methods in SERVICES.items()
            if service.startswith("google.")
            for method in methods.values()
            if not method.server_streaming
        ]
        handlers = {method.path: ours.get(method.name) or _later(method.name) for method in public}
        handlers[RESET] = self._reset
        return {path: self._noted(handler) for path, handler in handlers.items()}

    async def close(self) -> None:
        """Before the server stops: end streams and waiting pulls in the way their clients expect."""
        self._stopping = True
        for pulled in self._pulls:
            if pulled.consumer is not None and pulled.consumer.waits:
                pulled.not_delivered()
        await self.streams.close_all(errors.Unavailable("The server is stopping; open the stream again."))

    async def answered(self) -> None:
        """Until what was decided has been said, or the time for that is over."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=limits.ANSWER_SECONDS_MAX)

    def _handler(self, method: Method, handlers: Mapping[str, Handler]) -> MethodHandler:
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(self.streams.streaming_pull)
        return unary(handlers[method.path])

    def _noted(self, handler: Handler) -> Handler:
        async def handle(data: bytes, context: Context) -> bytes:
            task = asyncio.current_task()
            assert task is not None
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            try:
                return await handler(data, context)
            except LOOKED_UP:
                await self._engine.settled()
                raise

        return handle

    def _table(self) -> dict[str, Handler]:
        return {
            "CreateTopic": self._change(pb.Topic, Broker.create_topic),
            "UpdateTopic": self._change(pb.UpdateTopicRequest, Broker.update_topic),
            "GetTopic": self._look(pb.GetTopicRequest, Broker.get_topic),
            "ListTopics": self._look(pb.ListTopicsRequest, Broker.list_topics),
            "ListTopicSubscriptions": self._look(
                pb.ListTopicSubscriptionsRequest, Broker.list_topic_subscriptions
            ),
            "DeleteTopic": self._change(pb.DeleteTopicRequest, Broker.delete_topic),
            "Publish": self._publish,
            "DetachSubscription": self._change(pb.DetachSubscriptionRequest, Broker.detach_subscription),
            "CreateSubscription": self._create_subscription,
            "UpdateSubscription": self._change(pb.UpdateSubscriptionRequest, Broker.update_subscription),
            "ModifyPushConfig": self._change(pb.ModifyPushConfigRequest, Broker.modify_push_config),
            "GetSubscription": self._look(pb.GetSubscriptionRequest, Broker.get_subscription),
            "ListSubscriptions": self._look(pb.ListSubscriptionsRequest, Broker.list_subscriptions),
            "DeleteSubscription": self._change(pb.DeleteSubscriptionRequest, Broker.delete_subscription),
            "ListTopicSnapshots": self._look(pb.ListTopicSnapshotsRequest, Broker.list_topic_snapshots),
            "CreateSnapshot": self._create_snapshot,
            "GetSnapshot": self._look(pb.GetSnapshotRequest, Broker.get_snapshot),
            "ListSnapshots": self._look(pb.ListSnapshotsRequest, Broker.list_snapshots),
            "UpdateSnapshot": self._change(pb.UpdateSnapshotRequest, Broker.update_snapshot),
            "DeleteSnapshot": self._change(pb.DeleteSnapshotRequest, Broker.delete_snapshot),
            "Seek": self._seek,
            "Pull": self._pull,
            "Acknowledge": self._acknowledge,
            "ModifyAckDeadline": self._modify_ack_deadline,
            **SchemaHandlers(self._engine, self._unique, self._look, self._change).table(),
            "GetIamPolicy": self._look(pb.GetIamPolicyRequest, Broker.get_iam_policy),
            "SetIamPolicy": self._change(pb.SetIamPolicyRequest, Broker.set_iam_policy),
            "TestIamPermissions": self._look(pb.TestIamPermissionsRequest, Broker.test_iam_permissions),
        }

    def _look(self, request_class: Any, command: Callable[[Broker, Any], Any]) -> Handler:
        async def handle(data: bytes, context: Context) -> bytes:
            request = parse(request_class, data)
            for _ in range(_LOOKS_MAX - 1):
                try:
                    return await self._looked(command, request)
                except TooSlow:
                    raise
                except NotSettled:
                    pass  # what it showed did not happen: look again
            return await self._looked(command, request)

        return handle

    async def _looked(self, command: Callable[[Broker, Any], Any], request: Any) -> bytes:
        response = _serialised(command(await self._engine.broker(), request))
        # It may show what is not committed yet, and nobody has been told.
        await self._engine.settled()
        return response

    def _change(self, request_class: Any, command: Callable[[Broker, Any, int], Any]) -> Handler:
        async def handle(data: bytes, context: Context) -> bytes:
            request = parse(request_class, data)
            response = _serialised(command(await self._engine.broker(), request, self._engine.now_us()))
            await self._engine.settled()
            return response

        return handle

    async def _create_subscription(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.Subscription, data)
        broker = await self._engine.broker()
        shown = broker.create_subscription(request, self._unique(), self._engine.now_us())
        await self._engine.settled()
        return _serialised(shown)

    async def _ask(
        self, ask: Callable[[Broker, Any, int], Sequence[Question | Sift]], request: Any
    ) -> tuple[Broker, Sequence[Answer]]:
        """What storage says to the questions of a command, and the broker to give the command to."""
        broker = await self._engine.broker()
        questions = ask(broker, request, self._engine.now_us())
        answers = await self._engine.answers(questions)
        broker = await self._engine.broker()
        topics = [question.topic_id for question in ask(broker, request, self._engine.now_us())]
        if topics != [question.topic_id for question in questions]:
            raise errors.Aborted("The subscription was changed meanwhile; try again.")
        return broker, answers

    async def _create_snapshot(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.CreateSnapshotRequest, data)
        broker, answers = await self._ask(Broker.snapshot_questions, request)
        snapshot = broker.create_snapshot(request, answers, self._unique(), self._engine.now_us())
        response = _serialised(snapshot)
        await self._engine.settled()
        return response

    async def _seek(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.SeekRequest, data)
        broker, answers = await self._ask(Broker.seek_questions, request)
        response = _serialised(broker.seek(request, answers, self._engine.now_us()))
        self._engine.poke()
        await self._engine.settled()
        return response

    async def _publish(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.PublishRequest, data)
        broker, checked = await self._engine.broker(), None
        if len(data) > limits.SCHEMA_CHECK_BYTES_MAX and (held := broker.held_against(request, len(data))):
            checked = await asyncio.to_thread(held.stamps, request.messages)
            broker = await self._engine.broker()
        now_us = self._engine.now_us()
        caller = broker.caller(client_name(context), now_us)
        message_ids = broker.publish(request, len(data), caller, now_us, checked)
        await self._engine.settled()
        return _serialised(pb.PublishResponse(message_ids=message_ids))

    async def _acknowledge(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.AcknowledgeRequest, data)
        return await self._on_ack_ids("ack", Broker.acknowledge, request, data, context)

    async def _modify_ack_deadline(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.ModifyAckDeadlineRequest, data)
        return await self._on_ack_ids(
            "modify_ack_deadline", Broker.modify_ack_deadline, request, data, context
        )

    async def _on_ack_ids(
        self,
        operation: str,
        command: Callable[..., tuple[Subscription, list[Refusal]]],
        request: Any,
        data: bytes,
        context: Context,
    ) -> bytes:
        try:
            async with asyncio.timeout(limits.SETTLE_SECONDS_MAX):
                broker = await self._engine.broker()
                now_us = self._engine.now_us()
                caller = broker.caller(client_name(context), now_us)
                try:
                    subscription, refused = command(broker, request, len(data), caller, now_us)
                finally:
                    # A refusal, too, may rest on what is not committed yet.
                    await self._engine.settled()
        except (NotSettled, TimeoutError):
            await refuse_ack_ids(context, answer.undecided(request.ack_ids))
        except (PubsubError, grpc.aio.BaseError):
            raise
        except Exception:
            _log.exception("ack ids could not be handled; this is a bug in pubsubd")
            await refuse_ack_ids(context, answer.undecided(request.ack_ids))
        if refused:
            log_refusals(operation, subscription.name, refused)
            failed = {refusal.ack_id: answer.result_of(refusal.standing) for refusal in refused}
            found = answer.answer(request.ack_ids, failed, self._policy)
            assert found is not None
            await refuse_ack_ids(context, found)
        return _EMPTY

    async def _reset(self, data: bytes, context: Context) -> bytes:
        (await self._engine.broker()).reset(self._engine.now_us())
        await self._engine.settled()
        return _EMPTY

    async def _pull(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.PullRequest, data)
        broker = await self._engine.broker()
        pulled = Pulled()
        now_us = self._engine.now_us()
        caller = broker.caller(client_name(context), now_us)
        consumer = pulled.consumer = broker.open_pull(request, caller, now_us, pulled)
        self._engine.poke()
        self._pulls[pulled] = None
        try:
            wait_seconds = _patience(context)
            if request.return_immediately:
                await self._engine.pumped()
                # What must be read first is worth a moment: it is there.
                wait_seconds = limits.PULL_IMMEDIATE_SECONDS if consumer.subscription.is_reading else 0.0
            if not self._stopping and wait_seconds:
                await asyncio.wait([pulled.outcome], timeout=wait_seconds)
            if not pulled.outcome.done() and not consumer.waits:
                # Granted, and being committed: what it takes now has a lease.
                await asyncio.wait([pulled.outcome])
        finally:
            del self._pulls[pulled]
            self._engine.stop_assigning(consumer)
            if pulled.outcome.done() and not pulled.outcome.cancelled():
                pulled.outcome.exception()  # a caller that has gone does not ask for it
        delivery = pulled.outcome.result() if pulled.outcome.done() else None
        if delivery is None:
            return _EMPTY
        return responses.received_messages(delivery.leases, delivery.datas, delivery.attempts)


def _patience(context: Context) -> float:
    """How long an empty Pull may wait, in seconds."""
    remaining = context.time_remaining()
    if remaining is None or remaining <= 2 * limits.PULL_MARGIN_SECONDS:
        return limits.PULL_WAIT_SECONDS_MAX
    return min(limits.PULL_WAIT_SECONDS_MAX, remaining - limits.PULL_MARGIN_SECONDS)


def _serialised(message: Any) -> bytes:
    data: bytes = _EMPTY if message is None else message.SerializeToString()
    return data


def _later(name: str) -> Handler:
    async def handle(data: bytes, context: Context) -> bytes:
        raise errors.Unimplemented(f"{name} is not implemented in this version of pubsubd.")

    return handle
