"""Group commit around the pure core.

Theory of operation. Handlers call the broker directly (it is synchronous, and all of this is one thread),
then `await engine.settled()`, which returns when everything decided so far is durable. One task takes the
effects that have gathered while the last commit was being written, lets the broker deliver what it can, and
commits all of it together; then waiters go on and deliveries go out. Nothing is said before that.

When a commit fails, everything in it is answered as failed, and so is what was decided on top of it
meanwhile. The broker is restored from storage before the next command is taken: handlers get it by `await
engine.broker()`, which waits for that. Until a commit succeeds again nothing is delivered and no lease is
ended; a probe, further apart each time, finds out when it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from pubsubd.broker.broker import Broker
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, DocumentRow, Effects, SnapshotRow, SubscriptionRow, TopicRow
from pubsubd.broker.entry import Chunk, Entry, chunks, unpack_chunk
from pubsubd.broker.oplog import blob
from pubsubd.broker.questions import (
    Answer,
    Found,
    Question,
    Read,
    ReadMessages,
    ReadRange,
    ReadTimes,
    Sift,
)
from pubsubd.broker.saved import Saved
from pubsubd.engine.clock import Clock
from pubsubd.eod.endings import EndingRow
from pubsubd.journal.journal import Journal
from pubsubd.model import limits
from pubsubd.model.errors import PubsubError
from pubsubd.model.events import Event, Kind
from pubsubd.storage.store import Commit, Loaded, StorageFailed, Store

_log = logging.getLogger(__name__)

# Expiries that lie this close together share a wake-up; a lease may end a little late, never early.
_TIMER_SLACK_US = 5_000
_PROBE_SECONDS_MIN = 0.1
_PROBE_SECONDS_MAX = 1.0
_EVERY_ID = 2**62
_HOUR_US = 3_600_000_000


class NotSettled(PubsubError):
    """What was decided may or may not become durable: the commit failed, or takes too long."""

    status = "UNAVAILABLE"


class TooSlow(NotSettled):
    """It is not known yet, and may become known later."""


class Damaged(Exception):
    """What storage holds makes no sense."""


def _end_of_hour(now_us: int) -> int:
    return (now_us // _HOUR_US + 1) * _HOUR_US


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever bytes from outside can cause
        raise Damaged(f"{type(error).__name__}: {error}") from error


class Shell(Protocol):
    """What stands behind a consumer: it gets deliveries once they are committed."""

    def deliver(self, delivery: Delivery) -> None: ...

    def not_delivered(self) -> None:
        """A delivery was granted and may not be sent: its commit failed or took too long."""

    def close(self, error: PubsubError) -> None: ...

    def properties_changed(self) -> None: ...


class Left(NamedTuple):
    """What a server that stops still owes, beside what it never delivered."""

    leased: int
    waiting: int
    subscriptions: int


class _Waiters:
    """Calls that go on when one commit is durable."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future

    def release(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)

    def fail(self, reason: str) -> None:
        for future in self._futures:
            if not future.done():
                future.set_exception(NotSettled(reason))


class Engine:
    def __init__(
        self,
        store: Store,
        journal: bool,
        journal_bytes_max: int = limits.JOURNAL_TAIL_BYTES_MAX,
        clock: Callable[[int], Clock] = Clock,
    ) -> None:
        self.commits = 0
        self._store = store
        self._journal_on = journal
        self._journal_bytes_max = journal_bytes_max
        self._make_clock = clock
        self._clock = clock(0)
        # While a broker is being restored the old one still keeps the streams, and takes no commands.
        self._broker = Broker(store.secret, store.boot, journal)
        self._in_command = asyncio.Event()
        self._untold: list[Callable[[], None]] = []  # what the next broker is told first
        self._journal = Journal(0, (), journal_bytes_max)
        self._sealed_seq = 0
        self._tail_grew: Callable[[int, int], None] = lambda events, since_us: None
        self._changed: Callable[[Sequence[SubscriptionRow]], None] = lambda rows: None
        self._hour_ends_us = 0
        self._wake = asyncio.Event()
        self._gathering = _Waiters()
        self._flying: _Waiters | None = None
        self._pumped = _Waiters()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us: int | None = None
        self._commit_us = 0
        self._oplog_bytes = 0
        self._checkpoint_bytes = 0
        self._probe_seconds = 0.0  # 0: storage works
        self._probe_at = 0.0
        self._failure: BaseException | None = None
        self._reads: dict[asyncio.Task[None], None] = {}
        self.loop_task: asyncio.Task[None]
        self._stopping = False

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self, version: str, sealed_seq: int = 0) -> None:
        """Restore the broker and commit the start; the journal up to `sealed_seq` is in segments.

        Segments that go on after the database ends are not believed: see `sealed_seq`.

        Raises:
            StorageFailed: the database can be read but not written, or not read.
            Damaged: what it holds makes no sense.
        """
        loaded = await self._store.load()
        self._sealed_seq = sealed_seq
        with _damage():
            broker = self._restored(loaded)
            self._clock = self._make_clock(broker.newest_us)
            self._hour_ends_us = _end_of_hour(broker.newest_us)
            broker.started(version, self._store.was_clean, self.now_us())
            if not self._journal_on:
                # A number that no event gets: whoever switches the journal on again will see that some are
                # missing.
                self._journal.last_seq += 1
            elif self._journal.ends_at < self._journal.last_seq:
                missing = Event(self.now_us(), Kind.GAP, aux=self._journal.ends_at + 1)
                broker.ledger.event(missing, {"last": self._journal.last_seq})
            # A number that is no number of ours may be met only when it is written again.
            commit = self._commit(broker, broker.take_effects(), checkpoint=True)
        broker.trimmed(await self._store.commit(commit), self.now_us())
        self._set_broker(broker)
        self.loop_task = asyncio.create_task(self._run(), name="commit loop")
        self.poke()

    async def stop(self) -> Left:
        """Commit what is left, say it, and end. Calls that come later are never answered."""
        self._stopping = True
        self.poke()
        await self.loop_task
        if self._timer is not None:
            self._timer.cancel()
        for read in self._reads:
            read.cancel()
        if self._in_command.is_set():
            await self._commit_last(self._broker)
        subscriptions = list(self._broker.subscriptions())
        return Left(
            sum(len(subscription.leases) for subscription in subscriptions),
            sum(subscription.waiting_count for subscription in subscriptions),
            len(subscriptions),
        )

    async def _commit_last(self, broker: Broker) -> None:
        effects, waiters = broker.take_effects(), self._gathering
        self._gathering = _Waiters()
        try:
            await self._store.commit(self._commit(broker, effects, checkpoint=True, clean=True))
        except StorageFailed as failure:
            _log.error("the last commit failed: %s", failure)
            waiters.fail("the commit failed")
        else:
            self._say(effects, waiters)

    # -- for handlers -------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self._clock.now_us()

    async def broker(self) -> Broker:
        """The broker, for commands up to the next await.

        Raises:
            NotSettled: storage cannot be read after a failed commit, so nothing can be decided.
        """
        if not self._in_command.is_set():
            try:
                async with asyncio.timeout(limits.SETTLE_SECONDS_MAX):
                    await self._in_command.wait()
            except TimeoutError:
                raise NotSettled("storage cannot be read at present") from None
        self._begin_hour(self._broker)
        return self._broker

    async def settled(self) -> None:
        """Returns when everything that was decided so far is durable.

        Raises:
            NotSettled: it failed, or is not known yet after `limits.SETTLE_SECONDS_MAX`.
        """
        if not self._in_command.is_set():
            raise NotSettled("the commit failed")
        if self._broker.has_work():
            self._wake.set()
        if self._broker.has_decided():
            future = self._gathering.add()
        elif self._flying is not None:
            future = self._flying.add()
        else:
            return
        try:
            async with asyncio.timeout(limits.SETTLE_SECONDS_MAX):
                await future
        except TimeoutError:
            raise TooSlow("storage takes too long to answer") from None

    async def pumped(self) -> None:
        """Returns when everything that could be delivered was, as it stands now.

        Raises:
            TooSlow: that takes too long.
        """
        future = self._pumped.add()
        self._wake.set()
        try:
            async with asyncio.timeout(limits.SETTLE_SECONDS_MAX):
                await future
        except TimeoutError:
            raise TooSlow("storage takes too long to answer") from None

    async def answers(self, questions: Sequence[Question | Sift]) -> list[Answer]:
        """What storage says to what a command asks before it is given.

        Raises:
            NotSettled: storage cannot be read.
        """
        try:
            return [
                await (self._sift(question) if isinstance(question, Sift) else self._answer(question))
                for question in questions
            ]
        except StorageFailed as failure:
            _log.error("messages could not be read: %s", failure)
            raise NotSettled("storage cannot be read at present") from None

    def set_ready(self, consumer: Consumer) -> None:
        """`consumer` can take a response now."""
        self._broker.set_ready(consumer)
        self._wake.set()

    def open_push(self, name: str, sub_id: int, client: str, shell: Shell) -> Consumer | None:
        """A consumer that pushes the messages of a subscription; None if it has no endpoint, or while the
        broker is being replaced: then `watch_subscriptions` is heard from soon."""
        if not self._in_command.is_set():
            return None
        return self._broker.open_push(name, sub_id, client, self.now_us(), shell)

    def set_unready(self, consumer: Consumer, rest: bool) -> None:
        """`consumer` can take nothing for now; `rest`: for so long that nothing is kept at hand for it."""
        self._broker.set_unready(consumer, rest)

    def stop_assigning(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more. While the broker is being replaced, the next one is told."""
        if self._in_command.is_set():
            self._broker.stop_assigning(consumer)
        else:
            self._untold.append(partial(self.stop_assigning, consumer))

    def close_stream(self, consumer: Consumer) -> None:
        """The stream of `consumer` is over. No await, since whoever says this is often being cancelled."""
        if self._in_command.is_set():
            self._broker.close_stream(consumer, self.now_us())
            self.poke()
        else:
            self._untold.append(partial(self.close_stream, consumer))

    def poke(self) -> None:
        """Something changed that a delivery or a commit may follow from."""
        self._wake.set()

    @property
    def journal_seq(self) -> int:
        return self._journal.last_seq

    @property
    def sealed_seq(self) -> int:
        """The journal up to here is in segments, as far as this process knows; 0: nothing is."""
        return self._sealed_seq

    def watch_tail(self, grew: Callable[[int, int], None]) -> None:
        """After each commit `grew(events, since_us)` hears how many events are in no segment, and since when
        the oldest of them has been there."""
        self._tail_grew = grew
        grew(self._journal.unsealed, self._journal.unsealed_since_us)

    def watch_subscriptions(self, changed: Callable[[Sequence[SubscriptionRow]], None]) -> None:
        """`changed(rows)` hears of subscriptions as they are committed: first of all that there are, then of
        each that was created or changed, and of all again after a commit that failed."""
        self._changed = changed
        changed([subscription.row() for subscription in self._broker.subscriptions()])

    def subscription_row(self, name: str) -> SubscriptionRow | None:
        """The subscription of this name as it is now."""
        return self._broker.subscription_row(name)

    @property
    def push_key(self) -> bytes:
        """What signs the tokens of push requests, in PEM; empty if none was ever needed."""
        return self._broker.push_key

    def sealed(self, seq: int) -> None:
        """The journal up to `seq` is in segments: the next commits delete it from the tail."""
        self._sealed_seq = max(self._sealed_seq, seq)
        self._journal.sealed(seq)
        self.poke()

    # -- the loop -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if self._probe_seconds:
                await self._until_probe()
            await self._turn()

    async def _until_probe(self) -> None:
        """While storage fails, calls wait for the next probe together: each failure costs a restore."""
        wait_seconds = self._probe_at - asyncio.get_running_loop().time()
        while wait_seconds > 0 and not self._stopping:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            wait_seconds = self._probe_at - asyncio.get_running_loop().time()

    async def _turn(self) -> None:
        broker = self._broker
        now_us = self.now_us()
        self._begin_hour(broker)
        if not self._probe_seconds:
            broker.advance_to(now_us)
            broker.pump(now_us, self._commit_us)
            self._start_reads(broker)
        if not broker.is_stepping:
            self._pumped.release()
            self._pumped = _Waiters()
        effects = broker.take_effects()
        waiters, self._gathering = self._gathering, _Waiters()
        if not (effects.must_commit() or self._has_rows_to_remove() or self._probe_seconds):
            self._say(effects, waiters)
            self._set_timer(broker)
            if broker.is_stepping:
                self.poke()
                await asyncio.sleep(0)  # or nobody else would get a turn
            return
        self._flying = waiters
        message_id = broker.message_id
        try:
            oldest_us = await self._store.commit(self._commit(broker, effects))
        except StorageFailed as failure:
            await self._recover(broker, effects, waiters, str(failure))
            return
        self._flying = None
        self.commits += 1
        took_us = self.now_us() - now_us
        # Follow a slow disk at once and a fast one by and by.
        smoothed_us = max(took_us, (7 * self._commit_us + took_us) // 8)
        self._commit_us = min(smoothed_us, limits.DELIVERY_DELAY_US_MAX)
        if self._probe_seconds:
            self._probe_seconds = 0.0
            _log.warning("storage works again")
            self.poke()
        broker.committed(message_id)
        if oldest_us:
            broker.trimmed(oldest_us, self.now_us())
        self._say(effects, waiters)
        self._set_timer(broker)
        self._tail_grew(self._journal.unsealed, self._journal.unsealed_since_us)
        if self._has_rows_to_remove() or broker.has_work():
            self.poke()

    def _has_rows_to_remove(self) -> bool:
        return self._store.has_rows_to_trim or self._journal.has_sealed_rows

    def _begin_hour(self, broker: Broker) -> None:
        """A segment ends with its hour, and readers of the next one find all resources at its beginning."""
        now_us = self.now_us()
        if now_us >= self._hour_ends_us:
            self._hour_ends_us = _end_of_hour(now_us)
            broker.repeat_config(now_us)

    def _commit(
        self, broker: Broker, effects: Effects, checkpoint: bool = False, clean: bool = False
    ) -> Commit:
        """Shape effects into rows."""
        now_us = self.now_us()
        append = self._journal.append(effects.events, effects.details, now_us)
        drop_through_seq = append.drop_through_seq if append else 0
        counters = broker.counters(self._journal.last_seq, now_us)
        oplog_bytes_max = max(limits.OPLOG_BYTES_MAX, 4 * self._checkpoint_bytes)
        if checkpoint or self._oplog_bytes > oplog_bytes_max:
            checkpoint = True
            oplog = broker.checkpoint(now_us)
            self._checkpoint_bytes = len(oplog)
            self._oplog_bytes = 0
        else:
            oplog = blob([*effects.records, counters])
            self._oplog_bytes += len(oplog)
        rows: list[Chunk] = []
        for topic_id, entries in effects.messages.items():
            rows.extend(chunks(topic_id, entries))
        return Commit(
            oplog=oplog,
            oplog_is_checkpoint=checkpoint,
            chunks=rows,
            topics=[row for row in effects.topics.values() if row is not None],
            topics_gone=[topic_id for topic_id, row in effects.topics.items() if row is None],
            subscriptions=[row for row in effects.subscriptions.values() if row is not None],
            subscriptions_gone=[sub_id for sub_id, row in effects.subscriptions.items() if row is None],
            snapshots=[row for row in effects.snapshots.values() if row is not None],
            snapshots_gone=[snapshot_id for snapshot_id, row in effects.snapshots.items() if row is None],
            documents=[(*which, data) for which, data in effects.documents.items() if data is not None],
            documents_gone=[which for which, data in effects.documents.items() if data is None],
            endings=effects.endings,
            endings_kept_from_us=now_us - limits.ENDING_KEPT_US,
            journal=append.row if append else None,
            journal_details=append.details if append else (),
            journal_drop_through=max(drop_through_seq, self._journal.forget_sealed()),
            trims=dict(effects.trims),
            clean=clean,
        )

    def _say(self, effects: Effects, waiters: _Waiters) -> None:
        """What depended on the commit may be said now."""
        waiters.release()
        now_us = self.now_us()
        for delivery in effects.deliveries:
            shell: Shell = delivery.consumer.shell
            if now_us - delivery.delivered_us > limits.DELIVERY_DELAY_US_MAX:
                shell.not_delivered()
            else:
                shell.deliver(delivery)
        for consumer, error in effects.closed:
            consumer.shell.close(error)
        for consumer in effects.changed:
            consumer.shell.properties_changed()
        if effects.subscriptions:
            self._changed([row for row in effects.subscriptions.values() if row is not None])

    # -- failure ------------------------------------------------------------------------------------------

    async def _recover(self, old: Broker, effects: Effects, waiters: _Waiters, reason: str) -> None:
        """Answer everything undecided as failed, and return to what was last committed."""
        if not self._probe_seconds:
            _log.error("a commit failed, and what it carried is answered as failed: %s", reason)
        self._in_command.clear()
        self._flying = None
        on_top = old.take_effects()
        gathered, self._gathering = self._gathering, _Waiters()
        waiters.fail("the commit failed")
        gathered.fail("the commit failed")
        wait_seconds = _PROBE_SECONDS_MIN
        while True:
            try:
                loaded = await self._store.load()
                break
            except StorageFailed as failure:
                _log.error("storage cannot be read: %s", failure)
                if self._stopping:
                    return
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(2 * wait_seconds, _PROBE_SECONDS_MAX)
        with _damage():
            broker = self._restored(loaded)
        broker.adopt(old, [effects, on_top])
        if effects.repeated or on_top.repeated:
            self._hour_ends_us = 0
        self._set_broker(broker)
        self._changed([subscription.row() for subscription in broker.subscriptions()])
        untold, self._untold = self._untold, []
        for tell in untold:
            tell()
        for delivery in (*effects.deliveries, *on_top.deliveries):
            delivery.consumer.shell.not_delivered()
        self._probe_seconds = min(max(2 * self._probe_seconds, _PROBE_SECONDS_MIN), _PROBE_SECONDS_MAX)
        self._probe_at = asyncio.get_running_loop().time() + self._probe_seconds
        self.poke()

    def _restored(self, loaded: Loaded) -> Broker:
        saved = Saved(
            [
                TopicRow(topic_id, name, bool(deleted), data)
                for topic_id, name, deleted, data in loaded.topics
            ],
            [SubscriptionRow(*row) for row in loaded.subscriptions],
            [SnapshotRow(*row) for row in loaded.snapshots],
            [DocumentRow(*row) for row in loaded.documents],
            [EndingRow(*row) for row in loaded.endings],
            loaded.oplog,
        )
        broker = Broker.restore(saved, self._store.secret, self._store.boot, self._journal_on)
        self._oplog_bytes = sum(map(len, loaded.oplog))
        if self._sealed_seq > broker.journal_seq:
            self._sealed_seq = 0
        self._journal = Journal(
            broker.journal_seq,
            loaded.journal_rows,
            self._journal_bytes_max,
            self._journal.told,
            self._sealed_seq,
            self.now_us(),
        )
        return broker

    def _set_broker(self, broker: Broker) -> None:
        self._broker = broker
        self._in_command.set()

    # -- reads --------------------------------------------------------------------------------------------

    def _start_reads(self, broker: Broker) -> None:
        for read in broker.take_reads():
            task = asyncio.create_task(self._read(broker, read, broker.read_bytes()))
            self._reads[task] = None
            task.add_done_callback(self._on_read)

    def _on_read(self, task: asyncio.Task[None]) -> None:
        del self._reads[task]
        if not task.cancelled() and task.exception() is not None:
            # A subscription that waits for ever for its messages is worse than a server that ends.
            self._failure = task.exception()
            self.poke()

    async def _read(self, broker: Broker, read: Read, bytes_max: int) -> None:
        try:
            if isinstance(read, ReadTimes):
                found = await self._answer(read.question)
                if broker is self._broker:  # else it was replaced, and its successor asks anew
                    broker.found(read, found, self.now_us())
            else:
                entries = await self._entries(read, bytes_max)
                if broker is self._broker:
                    broker.loaded(read, entries)
        except StorageFailed as failure:
            _log.error("messages could not be read: %s", failure)
            await asyncio.sleep(_PROBE_SECONDS_MAX)
            broker.read_failed(read, self.now_us())
        self.poke()

    async def _sift(self, question: Sift) -> frozenset[int]:
        topic_id, message_ids, matches = question
        wanted = set(message_ids)
        rejected: set[int] = set()
        while message_ids:
            rows = await self._store.read_messages(topic_id, message_ids, limits.READ_BYTES_MAX)
            entries = [entry for row in rows for entry in unpack_chunk(row)]
            rejected.update(
                [one.message_id for one in entries if one.message_id in wanted and not matches(one)]
            )
            read_id = entries[-1].message_id if entries else message_ids[-1]
            message_ids = message_ids[bisect_right(message_ids, read_id) :]
        return frozenset(rejected)

    async def _answer(self, question: Question) -> Found:
        topic_id, after_id, before_us, matches, known = question
        before_id, row = await self._store.find_chunk(topic_id, after_id, before_us)
        rows = [] if row is None else [row]
        while rows:
            for entry in [entry for row in rows for entry in unpack_chunk(row)]:
                if entry.message_id > after_id and entry.publish_us < before_us:
                    before_id = entry.message_id
                elif entry.message_id > after_id and (matches is None or matches(entry.data)):
                    return Found(before_id, entry.message_id, entry.publish_us, known)
                after_id = max(after_id, entry.message_id)
            rows = await self._store.read_range(topic_id, after_id, _EVERY_ID, limits.READ_BYTES_MAX)
        return Found(before_id, 0, 0, known)

    async def _entries(self, read: ReadRange | ReadMessages, bytes_max: int) -> list[Entry]:
        if isinstance(read, ReadRange):
            rows = await self._store.read_range(read.topic_id, read.after_id, read.through_id, bytes_max)
            found = [entry for row in rows for entry in unpack_chunk(row)]
            return [entry for entry in found if read.after_id < entry.message_id <= read.through_id]
        rows = await self._store.read_messages(read.topic_id, read.message_ids, bytes_max)
        wanted = set(read.message_ids)
        return [entry for row in rows for entry in unpack_chunk(row) if entry.message_id in wanted]

    # -- the timer ----------------------------------------------------------------------------------------

    def _set_timer(self, broker: Broker) -> None:
        deadline_us = broker.next_deadline_us()
        if deadline_us is None or (self._timer_us is not None and self._timer_us <= deadline_us):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = deadline_us
        wait_us = max(0, deadline_us - self.now_us()) + _TIMER_SLACK_US
        self._timer = asyncio.get_running_loop().call_later(wait_us / 1e6, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_us = None
        self.poke()
