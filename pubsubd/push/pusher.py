"""One push subscription: what stands behind its consumer, and the requests to its endpoint.

Theory of operation. The consumer is ready as long as the window has room and no pause is on, so the broker
grants no lease that could not be used at once; with a pause on, nothing happens until its one timer. Each
message is a task that makes one request. What the requests came to is gathered and given to the broker by
one task, `_settle`, which waits for the commit before it gives the next: so acks and nacks form groups under
load, and what a failed commit did not take is given once more to the broker that was restored.

A request ends at the deadline of its lease: it is cancelled, and the lease ends by itself. A pusher that is
closed grants nothing more, but its requests go on to their end and are still acked or nacked; only where
the messages have gone (`drop`) they are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from yarl import URL

from pubsubd.broker import Consumer, Delivery
from pubsubd.engine.engine import Engine, NotSettled
from pubsubd.flow.push import PushWindow
from pubsubd.model import limits
from pubsubd.model.errors import FailedPrecondition, NotFound, PubsubError
from pubsubd.model.push import PushForm, endpoint_host
from pubsubd.push.client import Client, Result
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.push.tokens import Tokens

_log = logging.getLogger("pubsubd.push")


class _Outcomes(NamedTuple):
    """Ack ids of pushes that have ended, until the broker has committed it."""

    accepted: list[str]
    failed: list[str]
    unsent: list[str]


class _Batch:
    """Requests of one delivery: they share their deadline, and the timer for it."""

    __slots__ = ("left", "timer")

    def __init__(self, left: int) -> None:
        self.left = left
        self.timer: asyncio.TimerHandle


class _Unusable(Exception):
    """The endpoint passed as an address, and is none."""


class Pusher:
    """The Shell of a consumer. `closed` is called when the broker has closed that."""

    def __init__(
        self,
        sub_id: int,
        engine: Engine,
        client: Client,
        tokens: Callable[[], Tokens],
        window: PushWindow,
        closed: Callable[[Pusher], None],
    ) -> None:
        self.sub_id = sub_id
        self.name = ""
        self.endpoint = ""
        self._engine = engine
        self._client = client
        self._tokens = tokens
        self._window = window
        self._on_closed = closed
        self._consumer: Consumer
        self._requests: dict[str, asyncio.Task[None]] = {}  # by ack id
        self._outcomes = _Outcomes([], [], [])
        self._settling: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_failing = False

    # -- life ---------------------------------------------------------------------------------------------

    def configure(self, resource: pb.Subscription) -> None:
        """What is pushed from now on looks as `resource` says. The endpoint stays what it was at first."""
        config = resource.push_config
        self.name, self.endpoint = resource.name, config.push_endpoint
        self._form = PushForm(resource.name, config)
        self._email, self._audience = "", ""
        if config.HasField("oidc_token"):
            self._email = config.oidc_token.service_account_email
            self._audience = config.oidc_token.audience or config.push_endpoint
        self._url = _url_of(config.push_endpoint, bool(self._email))
        if self._is_open:
            self._consumer.ack_deadline_us = resource.ack_deadline_seconds * limits.SECOND_US

    def open(self) -> bool:
        """Whether there is (still) something to push; if so it begins."""
        client = f"push: {endpoint_host(self.endpoint)}"
        consumer = self._engine.open_push(self.name, self.sub_id, client, self)
        if consumer is not None:
            self._consumer = consumer
            self._is_open = True
            self._ask()
        return self._is_open

    def stop(self) -> None:
        """Push nothing more; requests that are under way go on."""
        if self._is_open:
            self._is_open = False
            self._engine.close_stream(self._consumer)
        if self._pause is not None:
            self._pause.cancel()

    def drop(self) -> None:
        """Cancel what is under way."""
        for task in list(self._requests.values()):
            task.cancel()

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """What has to end before everything is said."""
        tasks = list(self._requests.values())
        return [*tasks, self._settling] if self._settling is not None else tasks

    # -- Shell --------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        now_us = self._engine.now_us()
        ack_ids = [lease.ack_id for lease in delivery.leases]
        if not self._is_open or now_us < self._window.opens_us:
            # It was on its way when the pause began: given back, it counts no attempt.
            self._outcomes.unsent.extend(ack_ids)
            self._settle_soon()
            return
        loop = asyncio.get_running_loop()
        batch = _Batch(len(ack_ids))
        left_us = delivery.leases[0].deadline_us - now_us
        batch.timer = loop.call_later(left_us / limits.SECOND_US, self._expire, ack_ids)
        attempts: Sequence[int | None] = delivery.attempts or [None] * len(ack_ids)
        for ack_id, data, attempt in zip(ack_ids, delivery.datas, attempts, strict=True):
            self._requests[ack_id] = loop.create_task(self._push(ack_id, data, attempt, batch))
        self._ask()

    def not_delivered(self) -> None:
        self._ask()

    def close(self, error: PubsubError) -> None:
        self.stop()
        if isinstance(error, NotFound) or (isinstance(error, FailedPrecondition) and self._is_void()):
            self.drop()
        self._on_closed(self)

    def properties_changed(self) -> None:
        """An endpoint is not told of any."""

    def _is_void(self) -> bool:
        return self._consumer.subscription.detached

    # -- requests -----------------------------------------------------------------------------------------

    async def _push(self, ack_id: str, data: bytes, attempt: int | None, batch: _Batch) -> None:
        size = len(data)
        try:
            await self._client.turns.take(size)
            try:
                if self._url is None:
                    raise _Unusable
                authorization = ""
                if self._email:
                    authorization = f"Bearer {await self._tokens().bearer(self._email, self._audience)}"
                request = self._form.request(data, attempt)
                result = await self._client.post(self._url, request, authorization)
            finally:
                self._client.turns.leave(size)
        except NotSettled as error:
            result = Result(False, error.message)
        except _Unusable:
            result = Result(False, "it is no address that could be reached")
        except Exception:
            _log.exception("a push failed; this is a bug in pubsubd")
            result = Result(False, "of a bug in pubsubd")
        finally:
            batch.left -= 1
            if not batch.left:
                batch.timer.cancel()
            # Where it is cancelled the lease has ended or will.
            self._requests.pop(ack_id, None)
        if result.accepted:
            self._outcomes.accepted.append(ack_id)
            self._window.succeeded()
            if self._is_failing:
                self._is_failing = False
                _log.info("pushing for %s to %s works again", self.name, endpoint_host(self.endpoint))
        else:
            self._outcomes.failed.append(ack_id)
            self._failed(result.reason)
        self._settle_soon()

    def _expire(self, ack_ids: list[str]) -> None:
        """The deadline of a delivery: what is not answered by now has failed, and its lease just ends."""
        for ack_id in ack_ids:
            task = self._requests.pop(ack_id, None)
            if task is not None:
                task.cancel()
                self._failed("it did not answer before the acknowledgement deadline")
        self._ask()

    def _failed(self, reason: str) -> None:
        self._window.failed(self._engine.now_us())
        if not self._is_failing and self._window.backoff_us >= limits.PUSH_REST_US_MIN:
            self._is_failing = True
            _log.warning("pushing for %s to %s fails: %s", self.name, endpoint_host(self.endpoint), reason)

    # -- with the broker ----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Say whether the broker may grant deliveries now, and how many."""
        if not self._is_open:
            return
        window, now_us = self._window, self._engine.now_us()
        self._consumer.max_messages = window.size
        # Requests without a lease, as after a seek, are known here only.
        if window.room(len(self._requests), now_us):
            self._engine.set_ready(self._consumer)
            return
        self._engine.set_unready(self._consumer, rest=window.backoff_us >= limits.PUSH_REST_US_MIN)
        if now_us < window.opens_us:
            if self._pause is not None:
                self._pause.cancel()
            wait_us = window.opens_us - now_us
            self._pause = asyncio.get_running_loop().call_later(wait_us / limits.SECOND_US, self._ask)

    def _settle_soon(self) -> None:
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            while any(self._outcomes):
                outcomes, self._outcomes = self._outcomes, _Outcomes([], [], [])
                try:
                    broker = await self._engine.broker()
                    broker.push_ended(self._consumer, *outcomes, self._engine.now_us())
                    # In the same step, so that one commit carries acks and what they make room for.
                    self._ask()
                    await self._engine.settled()
                except NotSettled:
                    # Of ids whose lease has ended meanwhile nothing will come.
                    for mine, again in zip(self._outcomes, outcomes, strict=True):
                        mine.extend(again)
                except Exception:
                    _log.exception("pushes could not be settled; this is a bug in pubsubd")
        finally:
            self._settling = None


def _url_of(endpoint: str, has_token: bool) -> URL | None:
    """The endpoint as it was given, to the byte; None for what is no address, as with a backslash in it."""
    try:
        url = URL(endpoint, encoded=True)
        # The token takes the place of what the address may carry.
        return url.with_user(None) if has_token else url
    except ValueError:
        return None
