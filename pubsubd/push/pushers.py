"""All push subscriptions: which there are, and the pusher of each.

Subscriptions are heard of as they are committed; so a server that starts finds them all, and an endpoint that
was not committed gets nothing. A pusher belongs to one endpoint: another endpoint is another pusher, with a
window of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pubsubd.broker import SubscriptionRow
from pubsubd.engine.engine import Engine
from pubsubd.flow.push import PushWindow
from pubsubd.model import limits
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.push.client import Client
    from pubsubd.push.pusher import Pusher
    from pubsubd.push.tokens import Tokens

_ENDING_MIN = 16


class Pushers:
    """`window` bounds how many requests one endpoint gets at once; without `backs_off` it is never paused."""

    def __init__(self, engine: Engine, window: int, backs_off: bool, issuer: str) -> None:
        self._engine = engine
        self._window = window
        self._backs_off = backs_off
        self._issuer = issuer
        self._open: dict[int, Pusher] = {}  # by sub_id
        self._ending: dict[Pusher, None] = {}  # closed, and requests may be under way
        self._ending_max = _ENDING_MIN
        self._client: Client | None = None
        self._tokens: Tokens | None = None
        self._is_closing = False
        self._waiting: list[SubscriptionRow] = []  # until what pushing takes is loaded
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Push for all subscriptions that there are, and from now on for those that come."""
        self._engine.watch_subscriptions(self._changed)

    async def close(self) -> None:
        """Grant nothing more, and let what is under way end for a moment; the rest keeps its leases."""
        self._is_closing = True
        if self._loading is not None:
            await self._loading
        for pusher in self._open.values():
            self._stop(pusher)
        self._open.clear()
        tasks = self._under_way()
        if tasks:
            await asyncio.wait(tasks, timeout=limits.CLOSE_PUSHES_SECONDS_MAX)
        for pusher in self._ending:
            pusher.drop()
        if tasks := self._under_way():
            await asyncio.wait(tasks, timeout=limits.ANSWER_SECONDS_MAX)
        if self._client is not None:
            await self._client.close()

    def _under_way(self) -> list[asyncio.Task[None]]:
        return [task for pusher in self._ending for task in pusher.under_way]

    def _changed(self, rows: Sequence[SubscriptionRow]) -> None:
        if self._is_closing:
            return
        if self._client is None:
            # aiohttp and its relatives are not loaded by a server without push subscriptions.
            if self._waiting or any(_endpoint(pb.Subscription.FromString(row.resource)) for row in rows):
                self._waiting.extend(rows)
                self._loading = self._loading or asyncio.create_task(self._load())
            return
        for row in rows:
            pusher = self._open.get(row.sub_id)
            resource = pb.Subscription.FromString(row.resource)
            endpoint = _endpoint(resource)
            if pusher is not None and pusher.endpoint == endpoint:
                pusher.configure(resource)
                continue
            if pusher is not None:
                del self._open[row.sub_id]
                self._stop(pusher)
            if endpoint:
                self._begin(row.sub_id, resource)

    async def _load(self) -> None:
        # In a thread, since it takes a good part of a second, in which the loop has others to serve.
        self._client = (await asyncio.to_thread(_client_class))()
        rows, self._waiting = self._waiting, []
        self._changed(rows)

    def _begin(self, sub_id: int, resource: pb.Subscription) -> None:
        from pubsubd.push.pusher import Pusher

        assert self._client is not None
        window = PushWindow(self._window, self._backs_off)
        pusher = Pusher(sub_id, self._engine, self._client, self._get_tokens, window, self._on_closed)
        pusher.configure(resource)
        if pusher.open():
            self._open[sub_id] = pusher

    def _get_tokens(self) -> Tokens:
        from pubsubd.push.tokens import Tokens

        self._tokens = self._tokens or Tokens(self._engine, self._issuer)
        return self._tokens

    def _stop(self, pusher: Pusher) -> None:
        pusher.stop()
        if pusher.under_way:
            self._ending[pusher] = None
        if len(self._ending) > self._ending_max:
            # Nobody says when the last request of one is over; this way looking for it costs a step each.
            self._ending = {one: None for one in self._ending if one.under_way}
            self._ending_max = 2 * len(self._ending) + _ENDING_MIN

    def _on_closed(self, pusher: Pusher) -> None:
        """The broker has closed it: what it pushed for was deleted, is not pushed any more, or comes back
        since that failed."""
        if self._open.get(pusher.sub_id) is pusher:
            del self._open[pusher.sub_id]
        self._stop(pusher)
        row = self._engine.subscription_row(pusher.name)
        if row is not None:
            self._changed([row])


def _endpoint(resource: pb.Subscription) -> str:
    """Where its messages go; empty if they do not."""
    return "" if resource.detached else str(resource.push_config.push_endpoint)


def _client_class() -> type[Client]:
    from pubsubd.push.client import Client
    from pubsubd.push.pusher import Pusher  # noqa: F401 (loaded here, so that it is there when it is used)

    return Client
