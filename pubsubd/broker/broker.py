"""The service without its surroundings: every command of the API as one ordinary call.

Theory of operation. A command checks, changes memory and writes what must become durable to the ledger; the
engine takes the ledger's effects, commits them, and only then lets anything be said. When a commit fails this
object is thrown away, a new one is restored from storage, and `adopt` hands it the open streams.

`awake` holds the subscriptions for which something changed that a delivery could follow from; `pump` looks at
those and no others, so that an idle subscription costs nothing. `next_deadline_us` is the only timer needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from google.protobuf import json_format

from pubsubd.broker import oplog
from pubsubd.broker.clients import Clients
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Effects, Ledger, SubscriptionRow, Trim
from pubsubd.broker.entry import Entry
from pubsubd.broker.questions import (
    Answer,
    Found,
    Known,
    Question,
    Read,
    ReadMessages,
    ReadRange,
    ReadTimes,
    Sift,
)
from pubsubd.broker.saved import Replay, Saved
from pubsubd.broker.snapshot import Snapshot
from pubsubd.broker.subscription import Refusal, Subscription, matches_past
from pubsubd.broker.tail import TailBudget
from pubsubd.broker.topic import Topic
from pubsubd.eod.ack_id import AckIds
from pubsubd.eod.endings import EndingRow
from pubsubd.model import errors, limits, names, policies, requests, snapshots
from pubsubd.model.dead_letter import forwarded
from pubsubd.model.events import Event, Kind
from pubsubd.model.message import ordering_key_hash, payload_hash, stored_messages
from pubsubd.model.paging import page
from pubsubd.model.publishing import check_publish
from pubsubd.model.subscriptions import (
    check_pullable,
    check_subscription_update,
    created_subscription,
    shown_subscription,
    updated_subscription,
)
from pubsubd.model.topics import check_topic_update, created_topic, updated_topic
from pubsubd.schema.revisions import Prepared, Revision
from pubsubd.schema.schemas import Held, Schemas, Stamps
from pubsubd.wire import pb

_PUBLISH = int(Kind.PUBLISH)
_SCHEMA = "schema"  # the kind of its documents
_POLICY = "policy"  # the kind of their documents
_PUSH_KEY = ("key", "push")
# Below this many timers sweeping them costs more than it frees.
_TIMERS_MIN = 1000


class Caller(NamedTuple):
    """Who makes a unary call, for the journal: an interned client and the number of the call."""

    client_id: int
    call_id: int


_SERVER = Caller(0, 0)


class StreamVerdict(NamedTuple):
    """What became of the ids that one streaming request carried."""

    refused_acks: list[Refusal]
    refused_extensions: list[Refusal]


class Broker:
    def __init__(self, secret: bytes, boot: int, journal: bool) -> None:
        """`secret` (16 to 64 bytes) authenticates ack ids and page tokens; `boot` counts starts."""
        self.boot = boot
        self.ledger = Ledger(journal)
        self._reads: list[Read] = []
        self.journal_seq = 0
        self.message_id = 0
        self._secret = secret
        self._ack_ids = AckIds(secret)
        self._call_id = 0
        self._topic_id = 0
        self._sub_id = 0
        self._snapshot_id = 0
        self._now_us = 0
        self._clients = Clients(0)
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[int, Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self.schemas = Schemas(secret)
        self.policies: dict[str, pb.Policy] = {}  # by full name of their resource, if one was ever set
        self._budget = TailBudget()
        self._uncommitted_bytes = [0, 0]  # published: in the commit under way, and since
        self._resting: dict[Subscription, None] = {}  # no consumers, but messages at hand; oldest first
        self._awake: dict[Subscription, None] = {}
        self._timers: list[tuple[int, int, Subscription | Topic | Snapshot]] = []
        self._committed_id = 0  # messages up to it are in storage
        self._timers_max = _TIMERS_MIN
        self._tie = count()
        self.push_key = b""  # signs the tokens of push requests; empty until it is needed first

    # -- from and to storage ------------------------------------------------------------------------------

    @classmethod
    def restore(cls, saved: Saved, secret: bytes, boot: int, journal: bool) -> Broker:
        """The broker that has promised what `saved` says."""
        broker = cls(secret, boot, journal)
        replay = Replay(saved)
        counters = replay.counters
        broker.message_id = broker._committed_id = counters.message_id
        broker.journal_seq = counters.journal_seq
        broker._call_id = counters.call_id
        broker._topic_id = counters.topic_id
        broker._sub_id = counters.sub_id
        broker._now_us = counters.now_us
        broker._clients = Clients(counters.client_id)
        for topic_row in saved.topics:
            topic = Topic(
                topic_row.topic_id,
                pb.Topic.FromString(topic_row.resource),
                counters.message_id,
                replay.topics.get(topic_row.topic_id, counters.message_id),
                topic_row.deleted,
            )
            topic.retained_id = replay.retained.get(topic.topic_id, 0)
            topic.configure()
            broker._topics_by_id[topic.topic_id] = topic
            if not topic.deleted:
                broker._topics[topic.name] = topic
        by_id: dict[int, Subscription] = {}
        for row in saved.subscriptions:
            topic = broker._topics_by_id[row.topic_id]
            resource = pb.Subscription.FromString(row.resource)
            subscription = Subscription(
                row.sub_id, topic, resource, row.start_id, broker.ledger, broker._ack_ids, broker._topics
            )
            subscription.restore(replay.subscriptions[row.sub_id], counters.now_us)
            by_id[row.sub_id] = subscription
            broker._add(subscription)
            if subscription.backlog.forwarding:
                broker._awake[subscription] = None
        for snapshot_row in saved.snapshots:
            snapshot = Snapshot.of_row(snapshot_row, broker._topics_by_id[snapshot_row.topic_id])
            broker._snapshot_id = max(broker._snapshot_id, snapshot.snapshot_id)
            broker._add_snapshot(snapshot)
        for document in saved.documents:
            if document.kind == _SCHEMA:
                broker.schemas.restore(document.name, document.data)
            if document.kind == _POLICY:
                broker.policies[document.name] = pb.Policy.FromString(document.data)
            if (document.kind, document.name) == _PUSH_KEY:
                broker.push_key = document.data
        endings: dict[int, list[EndingRow]] = {}
        for ending in saved.endings:
            endings.setdefault(ending.sub_id, []).append(ending)
        for sub_id, rows in endings.items():
            if sub_id in by_id:
                by_id[sub_id].restore_endings(rows)
        return broker

    def adopt(self, old: Broker, failed: Sequence[Effects]) -> None:
        """Take over the open streams of `old`, which this broker replaces because a commit failed.

        `failed` is what that was to carry, and what was decided on top of it.
        """
        mine = {subscription.sub_id: subscription for subscription in self._subscriptions.values()}
        for before in old._subscriptions.values():
            now = mine.get(before.sub_id)
            if now is not None:
                now.adopt(before, [one for effects in failed for one in effects.let_go.get(now.sub_id, ())])
                self._touch(now, self._now_us)
            else:
                # Its creation was never confirmed, so no client has a right to a stream on it.
                self._close_consumers(before, errors.not_found(before.name))
        for consumer, _ in [closed for effects in failed for closed in effects.closed]:
            # The deletion or detachment that closed it did not happen. Its client comes back by itself.
            self.ledger.now.closed.append((consumer, errors.interrupted()))
        # It may have been written all the same: then the journal knows what it carried.
        was_written = self.journal_seq == old.journal_seq
        for event, detail in [fact for effects in failed[was_written:] for fact in effects.facts]:
            self.ledger.fact(event, detail)
        for topic in self._topics_by_id.values():
            topic.trim_soon(self._now_us)
            self._set_timer(topic)
        # Streams go on under the numbers that they have. Names are introduced to the journal anew.
        self._call_id = max(self._call_id, old._call_id)
        self._clients = Clients(max(self._clients.last_id, old._clients.last_id))

    def take_effects(self) -> Effects:
        """What the next commit carries."""
        self._uncommitted_bytes = [self._uncommitted_bytes[1], 0]
        return self.ledger.take()

    def counters(self, journal_seq: int, now_us: int) -> bytes:
        """The operation record that ends a commit; `journal_seq` is its last event's."""
        self.journal_seq = journal_seq
        return oplog.counters(self._counters(now_us))

    def checkpoint(self, now_us: int) -> bytes:
        """All state as one blob, in place of all earlier ones.

        It holds every change so far, so all of them must be in the commit that carries it.
        """
        records = [
            oplog.published(oplog.Published(topic.topic_id, topic.last_id))
            for topic in self._topics_by_id.values()
        ]
        records += [
            oplog.retained(oplog.Retained(topic.topic_id, topic.retained_id))
            for topic in self._topics_by_id.values()
            if topic.retained_id
        ]
        records += [
            record for subscription in self._subscriptions.values() for record in subscription.checkpoint()
        ]
        return oplog.blob([*records, oplog.counters(self._counters(now_us))])

    def _counters(self, now_us: int) -> oplog.Counters:
        return oplog.Counters(
            self.message_id,
            self._call_id,
            self._clients.last_id,
            self._topic_id,
            self._sub_id,
            self.journal_seq,
            now_us,
        )

    def committed(self, message_id: int) -> None:
        """The commit under way is over; messages up to `message_id` are in storage."""
        self._uncommitted_bytes[0] = 0
        self._committed_id = message_id
        self._budget.evict(message_id)

    @property
    def newest_us(self) -> int:
        """The newest time that storage knows; the clock must not show an earlier one."""
        return self._now_us

    # -- callers ------------------------------------------------------------------------------------------

    def caller(self, client: str, now_us: int) -> Caller:
        """A unary call by `client` (user agent and host)."""
        client = client[: limits.CLIENT_CHARS_MAX]
        client_id, new = self._clients.intern(client)
        self._call_id += 1
        if new:
            self.ledger.fact(
                Event(now_us, Kind.STREAM, client_id=client_id, stream_id=self._call_id),
                {"client": client, "unary": True},
            )
        return Caller(client_id, self._call_id)

    def started(self, version: str, clean: bool, now_us: int) -> None:
        """The server has started; `clean`: the last one said goodbye."""
        detail = {"boot": self.boot, "version": version, "clean": clean}
        self.ledger.event(Event(now_us, Kind.START), detail)
        for topic in self._topics_by_id.values():
            self._trim(topic, now_us)

    # -- topics -------------------------------------------------------------------------------------------

    def create_topic(self, request: pb.Topic, now_us: int) -> pb.Topic:
        resource = created_topic(request)
        if resource.name in self._topics:
            raise errors.already_exists(resource.name)
        if resource.HasField("schema_settings"):
            self.schemas.check_settings(resource.schema_settings)
        self._topic_id += 1
        topic = Topic(self._topic_id, resource, self.message_id, self.message_id)
        topic.configure()
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = topic
        self._topic_changed(topic, "created", now_us)
        return resource

    def update_topic(self, request: pb.UpdateTopicRequest, now_us: int) -> pb.Topic:
        check_topic_update(request)
        topic = self._topic(request.topic.name)
        resource = updated_topic(topic.resource, request)
        before = topic.resource.schema_settings
        if resource.HasField("schema_settings") and resource.schema_settings != before:
            self.schemas.check_settings(resource.schema_settings, before)
        topic.resource = resource
        self._topic_changed(topic, "updated", now_us)
        if "message_retention_duration" in request.update_mask.paths:
            was_kept = topic.own_kept_us
            self._retention_changed(topic, now_us)
            if topic.own_kept_us and not was_kept:
                topic.retained_id = topic.last_id
                self.ledger.record(oplog.retained(oplog.Retained(topic.topic_id, topic.last_id)))
        return topic.resource

    def get_topic(self, request: pb.GetTopicRequest) -> pb.Topic:
        names.check_topic(request.topic)
        return self._topic(request.topic).resource

    def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        requests.check_list_topics(request)
        inside = f"{request.project}/topics/"
        found, token = self._page("ListTopics", request.project, self._topics, inside, request)
        topics = [self._topics[name].resource for name in found]
        return pb.ListTopicsResponse(topics=topics, next_page_token=token)

    def list_topic_subscriptions(
        self, request: pb.ListTopicSubscriptionsRequest
    ) -> pb.ListTopicSubscriptionsResponse:
        requests.check_list_topic_subscriptions(request)
        topic = self._topic(request.topic)
        attached = [subscription.name for subscription in topic.subscriptions.values()]
        found, token = self._page("ListTopicSubscriptions", request.topic, attached, "", request)
        return pb.ListTopicSubscriptionsResponse(subscriptions=found, next_page_token=token)

    def list_topic_snapshots(self, request: pb.ListTopicSnapshotsRequest) -> pb.ListTopicSnapshotsResponse:
        snapshots.check_list_topic_snapshots(request)
        topic = self._topic(request.topic)
        taken = [snapshot.name for snapshot in topic.snapshots.values()]
        found, token = self._page("ListTopicSnapshots", request.topic, taken, "", request)
        return pb.ListTopicSnapshotsResponse(snapshots=found, next_page_token=token)

    def delete_topic(self, request: pb.DeleteTopicRequest, now_us: int) -> None:
        names.check_topic(request.topic)
        self._remove_topic(self._topic(request.topic), now_us)

    def _remove_topic(self, topic: Topic, now_us: int) -> None:
        del self._topics[topic.name]
        self._forget_policy(topic.name)
        topic.deleted = True
        self._topic_changed(topic, "deleted", now_us)
        # What it retained beyond the needs of its subscriptions goes.
        self._retention_changed(topic, now_us)
        self._drop_if_unused(topic)

    def _retention_changed(self, topic: Topic, now_us: int) -> None:
        for subscription in topic.referrers.values():
            subscription.configure()
            subscription.look_at_retention(now_us)
            self._set_timer(subscription)
        topic.configure()
        self._trim(topic, now_us)

    def held_against(self, request: pb.PublishRequest, request_bytes: int) -> Held | None:
        """What the messages of a request are held against; None: nothing, or it will be refused otherwise."""
        topic = self._topics.get(request.topic)
        if topic is None or not topic.resource.HasField("schema_settings"):
            return None
        check_publish(request, request_bytes)  # whose refusals come first
        return self.schemas.held(topic.resource.schema_settings)

    def publish(
        self,
        request: pb.PublishRequest,
        request_bytes: int,
        caller: Caller,
        now_us: int,
        checked: Stamps | None = None,
    ) -> list[str]:
        """Accept the messages of one request, all or none, and return their ids in order.

        `checked`: what a check of their schema came to that was made before.
        """
        check_publish(request, request_bytes)
        topic = self._topic(request.topic)
        if self._uncommitted_bytes[0] + self._uncommitted_bytes[1] > limits.UNCOMMITTED_BYTES_MAX:
            raise errors.Unavailable("Storage is behind with what was published before; try again later.")
        messages, stamps = request.messages, None
        if topic.resource.HasField("schema_settings"):
            held = self.schemas.held(topic.resource.schema_settings)
            stamps = checked if checked is not None and checked.held == held else held.stamps(messages)
        self._uncommitted_bytes[1] += request_bytes
        return [str(message_id) for message_id in self._publish(topic, messages, caller, now_us, stamps)]

    def _publish(
        self,
        topic: Topic,
        messages: Sequence[pb.PubsubMessage],
        caller: Caller,
        now_us: int,
        stamps: Stamps | None = None,
    ) -> range:
        """Messages with one ordering key, or none, and what they get on top. Their ids."""
        size_all = len(messages)
        first_id = self.message_id + 1
        self.message_id += size_all
        ids = range(first_id, first_id + size_all)
        okey = ordering_key_hash(messages[0].ordering_key)
        hashes = [payload_hash(m.data, m.attributes) for m in messages] if self.ledger.journal else []
        if stamps is not None:
            # After the hashes, which are of what was sent.
            stamps.put_on(messages)
        datas = stored_messages(messages, first_id, now_us)
        if self.ledger.journal:
            topic_id, (client_id, call_id) = topic.topic_id, caller
            self.ledger.events(
                [
                    (now_us, _PUBLISH, topic_id, 0, message_id, 0, 0, 0, now_us, 0, client_id, call_id,
                     okey, len(data), hashed, 0)
                    for message_id, data, hashed in zip(ids, datas, hashes, strict=True)
                ]
            )  # fmt: skip  # short items, many to a line
        # Nobody may ever ask for them, but their ids must never be given again.
        self.ledger.record(oplog.published(oplog.Published(topic.topic_id, self.message_id)))
        if topic.is_stored:
            entries = [
                Entry(message_id, now_us, okey, data) for message_id, data in zip(ids, datas, strict=True)
            ]
            self._append(topic, entries, messages, now_us)
        else:
            topic.last_id = self.message_id
        return ids

    def _append(
        self, topic: Topic, entries: list[Entry], messages: Sequence[pb.PubsubMessage], now_us: int
    ) -> None:
        last_id, before_id = entries[-1].message_id, topic.last_id
        topic.last_id = last_id
        # What every subscription rejects is stored only where something else may ask for it.
        wanted: set[int] = set()
        is_wanted = bool(topic.kept_us or topic.snapshots)
        for subscription in topic.subscriptions.values():
            if subscription.expects_message:
                wanted.update(subscription.published(entries, messages, before_id, now_us))
                self._set_timer(subscription)
                self._trim_soon(subscription, now_us)
            is_wanted |= subscription.matches is None
            if subscription.ready:
                self._awake[subscription] = None
        if not is_wanted and len(wanted) < len(entries):
            entries = [entry for entry in entries if entry.message_id in wanted]
        if entries:
            topic.tail.append(entries)
            self._budget.added(topic.tail, last_id, sum([len(entry.data) for entry in entries]))
            self.ledger.now.messages.setdefault(topic.topic_id, []).extend(entries)
        if topic.kept_us and topic.timer_us is None:
            topic.published(now_us)
            self._set_timer(topic)

    # -- schemas ------------------------------------------------------------------------------------------

    def create_schema(
        self, request: pb.CreateSchemaRequest, prepared: Prepared, unique: str, now_us: int
    ) -> pb.Schema:
        """`unique` makes the id of the revision; so below."""
        made = self.schemas.create(request, prepared, unique, now_us)
        self._schemas_changed()
        return made

    def get_schema(self, request: pb.GetSchemaRequest) -> pb.Schema:
        return self.schemas.get(request)

    def list_schemas(self, request: pb.ListSchemasRequest) -> pb.ListSchemasResponse:
        return self.schemas.list_schemas(request)

    def list_schema_revisions(self, request: pb.ListSchemaRevisionsRequest) -> pb.ListSchemaRevisionsResponse:
        return self.schemas.list_revisions(request)

    def commit_schema(
        self,
        request: pb.CommitSchemaRequest,
        prepared: Prepared,
        compared: Collection[Revision],
        unique: str,
        now_us: int,
    ) -> pb.Schema:
        made = self.schemas.commit(request, prepared, compared, unique, now_us)
        self._schemas_changed()
        return made

    def rollback_schema(self, request: pb.RollbackSchemaRequest, unique: str, now_us: int) -> pb.Schema:
        made = self.schemas.rollback(request, unique, now_us)
        self._schemas_changed()
        return made

    def delete_schema_revision(self, request: pb.DeleteSchemaRevisionRequest, now_us: int) -> pb.Schema:
        name, _, _ = request.name.partition("@")
        settings = [topic.resource.schema_settings for topic in self._topics_with(name)]
        named = {bound for one in settings for bound in (one.first_revision_id, one.last_revision_id)}
        deleted = self.schemas.delete_revision(request, named)
        self._schemas_changed()
        return deleted

    def delete_schema(self, request: pb.DeleteSchemaRequest, now_us: int) -> None:
        self.schemas.delete(request)
        self._schemas_changed()
        self._forget_policy(request.name)
        for topic in self._topics_with(request.name):
            # Written down, so that a schema that is created under the name later is not taken for this one.
            resource = pb.Topic()
            resource.CopyFrom(topic.resource)
            resource.schema_settings.schema = names.DELETED_SCHEMA
            topic.resource = resource
            self._topic_changed(topic, "updated", now_us)

    def validate_message(self, request: pb.ValidateMessageRequest) -> pb.ValidateMessageResponse:
        return self.schemas.validate_message(request)

    def _topics_with(self, schema: str) -> list[Topic]:
        return [topic for topic in self._topics.values() if topic.resource.schema_settings.schema == schema]

    def _schemas_changed(self) -> None:
        for name, data in self.schemas.take_changed().items():
            self.ledger.now.documents[_SCHEMA, name] = data

    # -- subscriptions ------------------------------------------------------------------------------------

    def create_subscription(self, request: pb.Subscription, unique: str, now_us: int) -> pb.Subscription:
        """`unique` becomes part of the name if the request gives none."""
        try:
            resource = created_subscription(request)
        except errors.Unimplemented:
            # What does not work yet is refused last, so that everything else is judged as it will be.
            self._check_references(request)
            raise
        if not resource.name:
            resource.name = names.generated_subscription_name(names.project_of(resource.topic), unique)
        topic = self._check_references(resource)
        self._sub_id += 1
        # Only what is published from here on belongs to it.
        subscription = Subscription(
            self._sub_id, topic, resource, self.message_id, self.ledger, self._ack_ids, self._topics
        )
        subscription.used(now_us)
        self._add(subscription)
        self._subscription_changed(subscription, "created", now_us)
        return self._shown(subscription)

    def update_subscription(self, request: pb.UpdateSubscriptionRequest, now_us: int) -> pb.Subscription:
        check_subscription_update(request)
        subscription = self._subscription(request.subscription.name)
        before, was_pushed = subscription.exactly_once, subscription.is_pushed
        resource = updated_subscription(subscription.resource, request)
        if "dead_letter_policy" in request.update_mask.paths and resource.HasField("dead_letter_policy"):
            self._topic(resource.dead_letter_policy.dead_letter_topic)
        subscription.update(resource, now_us)
        subscription.topic.configure()
        self._subscription_changed(subscription, "updated", now_us)
        self._set_timer(subscription)
        self._awake[subscription] = None
        self._trim(subscription.topic, now_us)
        if subscription.is_pushed != was_pushed:
            self._close_consumers(subscription, errors.wrong_type())
        if subscription.exactly_once != before:
            self.ledger.now.changed.extend(subscription.consumers)
        return self._shown(subscription)

    def modify_push_config(self, request: pb.ModifyPushConfigRequest, now_us: int) -> None:
        """The update of one field. Without an endpoint the subscription is pulled from now on.

        Source: Subscriber.ModifyPushConfig.
        """
        changed = pb.Subscription(name=request.subscription, push_config=request.push_config)
        mask = pb.FieldMask(paths=["push_config"])
        self.update_subscription(pb.UpdateSubscriptionRequest(subscription=changed, update_mask=mask), now_us)

    def get_subscription(self, request: pb.GetSubscriptionRequest) -> pb.Subscription:
        names.check_subscription(request.subscription)
        return self._shown(self._subscription(request.subscription))

    def list_subscriptions(self, request: pb.ListSubscriptionsRequest) -> pb.ListSubscriptionsResponse:
        requests.check_list_subscriptions(request)
        inside = f"{request.project}/subscriptions/"
        found, token = self._page("ListSubscriptions", request.project, self._subscriptions, inside, request)
        shown = [self._shown(self._subscriptions[name]) for name in found]
        return pb.ListSubscriptionsResponse(subscriptions=shown, next_page_token=token)

    def delete_subscription(self, request: pb.DeleteSubscriptionRequest, now_us: int) -> None:
        names.check_subscription(request.subscription)
        self._remove(self._subscription(request.subscription), "deleted", now_us)

    def _remove(self, subscription: Subscription, change: str, now_us: int) -> None:
        topic = subscription.topic
        del self._subscriptions[subscription.name]
        self._forget_policy(subscription.name)
        topic.subscriptions.pop(subscription.sub_id, None)
        del topic.referrers[subscription.sub_id]
        topic.configure()
        self._awake.pop(subscription, None)
        self._resting.pop(subscription, None)
        subscription.timer_us = None
        self.ledger.now.subscriptions[subscription.sub_id] = None
        why, topic_id = {"change": change}, topic.topic_id
        self._config(why, "subscription", subscription.resource, topic_id, subscription.sub_id, now_us)
        self._close_consumers(subscription, errors.not_found(subscription.name))
        self._drop_if_unused(topic)
        self._trim(topic, now_us)

    def detach_subscription(self, request: pb.DetachSubscriptionRequest, now_us: int) -> None:
        names.check_subscription(request.subscription)
        subscription = self._subscription(request.subscription)
        if subscription.detached:
            raise errors.already_detached()
        topic = subscription.topic
        if topic.deleted:
            raise errors.not_found(topic.name)
        subscription.drop_all(now_us)
        subscription.resource.detached = True
        subscription.configure()
        del topic.subscriptions[subscription.sub_id]
        topic.configure()
        self._subscription_changed(subscription, "detached", now_us)
        self._close_consumers(subscription, errors.detached())
        self._trim(topic, now_us)

    # -- snapshots and seek -------------------------------------------------------------------------------

    def snapshot_questions(self, request: pb.CreateSnapshotRequest, now_us: int) -> list[Question]:
        """What must be known for `create_snapshot`: how old the oldest message is that is owed."""
        snapshots.check_create_snapshot(request)
        self._subscription(request.subscription)
        if request.name in self._snapshots:
            raise errors.already_exists(request.name)
        subscription = self._attached(request.subscription)
        backlog = subscription.backlog
        # What is past its retention is not owed any more, dropped or not.
        kept_from_us = now_us - subscription.unacked_kept_us
        after_id = backlog.low_water() - 1
        return [Question(subscription.topic.topic_id, after_id, kept_from_us, backlog.matches)]

    def create_snapshot(
        self, request: pb.CreateSnapshotRequest, answers: Sequence[Answer], unique: str, now_us: int
    ) -> pb.Snapshot:
        """`unique` becomes part of the name if the request gives none."""
        self.snapshot_questions(request, now_us)
        subscription = self._attached(request.subscription)
        topic, backlog = subscription.topic, subscription.backlog
        (oldest,) = answers
        assert isinstance(oldest, Found)
        # What was acked since the question was answered makes the snapshot younger, never older.
        expire_us = snapshots.expire_us(now_us, oldest.next_us if oldest.next_id else 0)
        resource = snapshots.created_snapshot(request, topic.name, expire_us)
        if not resource.name:
            resource.name = names.generated_snapshot_name(names.project_of(request.subscription), unique)
        self._snapshot_id += 1
        owed, finished = backlog.captured()
        snapshot = Snapshot(
            self._snapshot_id,
            topic,
            resource,
            backlog.cursor,
            owed,
            finished,
            subscription.filters_for_snapshot(self.message_id),
            subscription.resource.enable_message_ordering,
            now_us,
            expire_us,
            self.journal_seq + len(self.ledger.now.events) + 1,
        )
        subscription.used(now_us)
        self._add_snapshot(snapshot)
        self._snapshot_changed(snapshot, "created", now_us, subscription.sub_id)
        return snapshots.shown_snapshot(resource, topic.deleted)

    def get_snapshot(self, request: pb.GetSnapshotRequest) -> pb.Snapshot:
        names.check_snapshot(request.snapshot)
        snapshot = self._snapshot(request.snapshot)
        return snapshots.shown_snapshot(snapshot.resource, snapshot.topic.deleted)

    def list_snapshots(self, request: pb.ListSnapshotsRequest) -> pb.ListSnapshotsResponse:
        snapshots.check_list_snapshots(request)
        inside = f"{request.project}/snapshots/"
        found, token = self._page("ListSnapshots", request.project, self._snapshots, inside, request)
        shown = [
            snapshots.shown_snapshot(self._snapshots[name].resource, self._snapshots[name].topic.deleted)
            for name in found
        ]
        return pb.ListSnapshotsResponse(snapshots=shown, next_page_token=token)

    def update_snapshot(self, request: pb.UpdateSnapshotRequest, now_us: int) -> pb.Snapshot:
        snapshots.check_snapshot_update(request)
        snapshot = self._snapshot(request.snapshot.name)
        snapshot.resource = snapshots.updated_snapshot(
            snapshot.resource, request, now_us, snapshot.expire_us_max
        )
        self._set_timer(snapshot)
        self._snapshot_changed(snapshot, "updated", now_us)
        return snapshots.shown_snapshot(snapshot.resource, snapshot.topic.deleted)

    def delete_snapshot(self, request: pb.DeleteSnapshotRequest, now_us: int) -> None:
        names.check_snapshot(request.snapshot)
        self._remove_snapshot(self._snapshot(request.snapshot), "deleted", now_us)

    def _remove_snapshot(self, snapshot: Snapshot, change: str, now_us: int) -> None:
        snapshot.timer_us = None
        del self._snapshots[snapshot.name]
        self._forget_policy(snapshot.name)
        del snapshot.topic.snapshots[snapshot.snapshot_id]
        self._snapshot_changed(snapshot, change, now_us)
        self.ledger.now.snapshots[snapshot.snapshot_id] = None
        self._drop_if_unused(snapshot.topic)
        self._trim(snapshot.topic, now_us)

    def seek_questions(self, request: pb.SeekRequest, now_us: int) -> Sequence[Question | Sift]:
        """What must be known for `seek`: where the time lies, and from where on messages are kept."""
        snapshots.check_seek(request)
        self._subscription(request.subscription)
        if request.WhichOneof("target") == "snapshot":
            self._snapshot(request.snapshot)
        subscription = self._attached(request.subscription)
        topic = subscription.topic
        if request.WhichOneof("target") == "snapshot":
            snapshot = self._sought_snapshot(request, subscription)
            message_ids = subscription.sifted(snapshot)
            if not message_ids:
                return []
            return [Sift(topic.topic_id, message_ids, matches_past(subscription.past_for(snapshot)))]
        return [
            Question(topic.topic_id, 0, snapshots.seek_time_us(request), known=self._known(topic, now_us)),
            *self._kept_questions(subscription, now_us),
        ]

    def _kept_questions(self, subscription: Subscription, now_us: int) -> list[Question]:
        """From where on finished messages are kept for it: its own, and all that its topic keeps."""
        topic = subscription.topic
        kept = []
        if subscription.acked_kept_us:
            kept.append((subscription.start_id, subscription.acked_kept_us))
        if topic.own_kept_us:
            kept.append((topic.retained_id, topic.own_kept_us))
        known = self._known(topic, now_us)
        return [
            Question(
                topic.topic_id,
                max(after_id, topic.trimmed_id),
                max(now_us - kept_us, topic.trimmed_us),
                known=known,
            )
            for after_id, kept_us in kept
        ]

    def _known(self, topic: Topic, now_us: int) -> Known:
        uncommitted = topic.tail.after(self._committed_id, 1)
        return Known(self._committed_id, uncommitted[0].publish_us if uncommitted else now_us)

    def seek(self, request: pb.SeekRequest, answers: Sequence[Answer], now_us: int) -> pb.SeekResponse:
        """Set a subscription to a time or to a snapshot; it is done when this is committed."""
        questions = self.seek_questions(request, now_us)
        subscription = self._attached(request.subscription)
        found = [one for one in answers if isinstance(one, Found)]
        rejected = [one for one in answers if not isinstance(one, Found)]
        if len(found) != sum(isinstance(question, Question) for question in questions):
            raise errors.Aborted("The subscription was changed meanwhile; try again.")
        detail: dict[str, Any]
        if request.WhichOneof("target") == "snapshot":
            snapshot = self._sought_snapshot(request, subscription)
            target_us, kept_from_us = snapshot.created_us, snapshot.created_us
            subscription.seek_to_snapshot(snapshot, frozenset().union(*rejected), now_us)
            detail = {"snapshot": snapshot.name, "snapshot_seq": snapshot.seq}
        else:
            target_us = snapshots.seek_time_us(request)
            kept_after_id, kept_from_us = self._seek_to_time(subscription, target_us, found, now_us)
            # A timestamp can be further away than the journal counts.
            target_us = max(-(2**62), min(target_us, 2**62))
            # Messages of one moment may be kept in part.
            detail = {"kept_after_id": kept_after_id}
        detail |= {
            "retain_acked": bool(self._kept_questions(subscription, now_us)),
            "kept_from_us": kept_from_us,
        }
        topic_id, sub_id = subscription.topic.topic_id, subscription.sub_id
        self.ledger.event(Event(now_us, Kind.SEEK, topic_id, sub_id, aux=target_us), detail)
        subscription.used(now_us)
        self._touch(subscription, now_us)
        self._trim(subscription.topic, now_us)
        return pb.SeekResponse()

    def _seek_to_time(
        self, subscription: Subscription, target_us: int, answers: Sequence[Found], now_us: int
    ) -> tuple[int, int]:
        """After which id, and from when on, acked messages were kept for it; zeros: they are not."""
        topic = subscription.topic
        # Of what is stored the tail holds the newest, and what is on its way to storage.
        before_id, known = topic.tail.before(target_us), answers[0].known
        boundary_id = max(answers[0].before_id, before_id)
        if target_us > now_us:
            boundary_id = topic.last_id
        elif target_us > known.later_us and topic.tail.floor > known.message_id and not before_id:
            # What was published since then and before that time may have left the tail already.
            raise errors.Aborted("That time was now while it was being looked up; try again.")
        kept = []
        for question, found in zip(self._kept_questions(subscription, now_us), answers[1:], strict=True):
            after_id = max(question.after_id, topic.tail.before(question.before_us))
            if found.next_id > question.after_id:
                # Some of what follows may be too old by now, but it is there.
                kept.append((found.next_id - 1, found.next_us))
            elif found.next_id or after_id > found.known.message_id:
                kept.append((after_id, max(question.before_us, found.next_us)))
            else:
                # Nothing that was stored is kept; what has come since is.
                kept.append((found.known.message_id, found.known.later_us))
        floor_id, kept_from_us = min(kept, default=(None, 0))
        subscription.seek_to_time(boundary_id, floor_id, now_us)
        return floor_id or 0, kept_from_us

    def _sought_snapshot(self, request: pb.SeekRequest, subscription: Subscription) -> Snapshot:
        snapshot = self._snapshot(request.snapshot)
        if snapshot.topic is not subscription.topic:
            raise errors.foreign_snapshot(snapshot.resource.topic, subscription.topic.name)
        if subscription.resource.enable_message_ordering and not snapshot.ordered:
            raise errors.unordered_snapshot()
        return snapshot

    # -- policies -----------------------------------------------------------------------------------------

    def get_iam_policy(self, request: pb.GetIamPolicyRequest) -> pb.Policy:
        policies.check_get(request)
        return self._policy(request.resource)

    def set_iam_policy(self, request: pb.SetIamPolicyRequest, now_us: int) -> pb.Policy:
        policies.check_set(request)
        policy = policies.replaced(self._policy(request.resource), request, now_us)
        self.policies[request.resource] = policy
        self.ledger.now.documents[_POLICY, request.resource] = policy.SerializeToString()
        return policy

    def test_iam_permissions(self, request: pb.TestIamPermissionsRequest) -> pb.TestIamPermissionsResponse:
        """Nothing is refused here to anybody, so whoever asks has all of them."""
        policies.check_test(request)
        held = request.permissions if self._has_resource(request.resource) else ()
        return pb.TestIamPermissionsResponse(permissions=held)

    def _policy(self, resource: str) -> pb.Policy:
        if not self._has_resource(resource):
            raise errors.not_found(resource)
        return self.policies.get(resource) or policies.no_policy()

    def _has_resource(self, name: str) -> bool:
        return any(
            name in some for some in (self._topics, self._subscriptions, self._snapshots, self.schemas)
        )

    def _forget_policy(self, resource: str) -> None:
        if self.policies.pop(resource, None) is not None:
            self.ledger.now.documents[_POLICY, resource] = None

    # -- everything ---------------------------------------------------------------------------------------

    def reset(self, now_us: int) -> None:
        """Delete every resource of every project, with all messages; streams end with NOT_FOUND.

        What is no resource stays: secrets, keys, and the counters that make ids.
        """
        for topic in self._topics_by_id.values():
            topic.subscriptions.clear()  # or each that goes would ask what the others still need
        for snapshot in list(self._snapshots.values()):
            self._remove_snapshot(snapshot, "deleted", now_us)
        for subscription in list(self._subscriptions.values()):
            self._remove(subscription, "deleted", now_us)
        for topic in list(self._topics.values()):
            self._remove_topic(topic, now_us)
        self.schemas.clear()
        self._schemas_changed()
        for resource in list(self.policies):
            self._forget_policy(resource)

    # -- consuming ----------------------------------------------------------------------------------------

    def acknowledge(
        self, request: pb.AcknowledgeRequest, request_bytes: int, caller: Caller, now_us: int
    ) -> tuple[Subscription, list[Refusal]]:
        """Returns the ids that were refused; every other id of the request succeeded."""
        requests.check_acknowledge(request, request_bytes)
        subscription = self._subscription(request.subscription)
        subscription.used(now_us)
        refused = subscription.acknowledge(request.ack_ids, caller.call_id, now_us)
        self._touch(subscription, now_us)
        return subscription, refused

    def modify_ack_deadline(
        self, request: pb.ModifyAckDeadlineRequest, request_bytes: int, caller: Caller, now_us: int
    ) -> tuple[Subscription, list[Refusal]]:
        """As `acknowledge`."""
        requests.check_modify_ack_deadline(request, request_bytes)
        subscription = self._subscription(request.subscription)
        refused = subscription.modify_ack_deadline(
            request.ack_ids, request.ack_deadline_seconds, caller.call_id, now_us
        )
        self._touch(subscription, now_us)
        return subscription, refused

    def open_pull(self, request: pb.PullRequest, caller: Caller, now_us: int, shell: Any) -> Consumer:
        """A Pull call that waits; it gets one delivery, or is closed by `close_pull`."""
        requests.check_pull(request)
        subscription = self._subscription(request.subscription)
        check_pullable(subscription.resource)
        subscription.used(now_us)
        max_messages = min(request.max_messages, limits.PULL_MESSAGES_MAX)
        deadline_us = subscription.resource.ack_deadline_seconds * limits.SECOND_US
        consumer = Consumer(
            subscription, caller.call_id, caller.client_id, deadline_us, max_messages, 0, True, shell
        )
        subscription.consumers[consumer] = None
        self.set_ready(consumer)
        return consumer

    def close_pull(self, consumer: Consumer) -> None:
        self.stop_assigning(consumer)

    def open_stream(
        self, request: pb.StreamingPullRequest, request_bytes: int, client: str, now_us: int, shell: Any
    ) -> Consumer:
        """A stream on a subscription; it gets nothing before `set_ready`. `client` is who calls."""
        requests.check_streaming_pull_first(request, request_bytes)
        subscription = self._subscription(request.subscription)
        check_pullable(subscription.resource)
        subscription.check_ack_ids([*request.ack_ids, *request.modify_deadline_ack_ids])
        client = (request.client_id or client)[: limits.CLIENT_CHARS_MAX]
        client_id, _ = self._clients.intern(client)
        self._call_id += 1
        consumer = Consumer(
            subscription,
            self._call_id,
            client_id,
            request.stream_ack_deadline_seconds * limits.SECOND_US,
            request.max_outstanding_messages,
            request.max_outstanding_bytes,
            False,
            shell,
        )
        consumer.name = request.client_id
        consumer.opened_us = now_us
        subscription.used(now_us)
        consumer.opened_as = {
            "client": client,
            "max_outstanding_messages": request.max_outstanding_messages,
            "max_outstanding_bytes": request.max_outstanding_bytes,
            "stream_ack_deadline_seconds": request.stream_ack_deadline_seconds,
        }
        subscription.consumers[consumer] = None
        self._stream_opened(consumer)
        return consumer

    def open_push(self, name: str, sub_id: int, client: str, now_us: int, shell: Any) -> Consumer | None:
        """What pushes the messages of a subscription to its endpoint: a stream that nobody has to open.

        None: it is not, or no longer, a push subscription; or another one has the name.
        """
        subscription = self._subscriptions.get(name)
        if subscription is None or subscription.sub_id != sub_id or not subscription.is_pushed:
            return None
        client = client[: limits.CLIENT_CHARS_MAX]
        client_id, _ = self._clients.intern(client)
        self._call_id += 1
        deadline_us = subscription.resource.ack_deadline_seconds * limits.SECOND_US
        consumer = Consumer(
            subscription,
            self._call_id,
            client_id,
            deadline_us,
            1,
            limits.PUSH_BYTES_MAX,
            False,
            shell,
            serial=True,
        )
        consumer.opened_us = now_us
        consumer.opened_as = {
            "client": client,
            "push": True,
            "stream_ack_deadline_seconds": subscription.resource.ack_deadline_seconds,
        }
        subscription.consumers[consumer] = None
        self._stream_opened(consumer)
        return consumer

    def push_ended(
        self,
        consumer: Consumer,
        accepted: Iterable[str],
        failed: Iterable[str],
        unsent: Iterable[str],
        now_us: int,
    ) -> None:
        """What became of pushes, by ack ids. `consumer` may be closed, and of an earlier broker."""
        subscription = self._subscriptions.get(consumer.subscription.name)
        if subscription is not None and subscription.sub_id == consumer.subscription.sub_id:
            subscription.push_ended(accepted, failed, unsent, consumer.stream_id, now_us)
            self._touch(subscription, now_us)

    def keep_push_key(self, key: bytes) -> None:
        """From now on `key` signs the tokens of push requests."""
        self.push_key = key
        self.ledger.now.documents[_PUSH_KEY] = key

    def stream_request(
        self, consumer: Consumer, request: pb.StreamingPullRequest, now_us: int
    ) -> StreamVerdict:
        """Acks and extensions that came on a stream, and a new deadline for later deliveries.

        Acks go first: an id may be in both.

        Raises:
            InvalidArgument: ends the stream; nothing was done.
        """
        subscription = consumer.subscription
        if not self._has(subscription):
            # It was deleted, or this broker did not adopt the stream; the client is about to hear that it
            # ends.
            self._subscription(subscription.name)
            raise errors.interrupted()
        subscription.check_ack_ids([*request.ack_ids, *request.modify_deadline_ack_ids])
        if request.stream_ack_deadline_seconds:
            consumer.ack_deadline_us = request.stream_ack_deadline_seconds * limits.SECOND_US
        stream_id = consumer.stream_id
        refused_acks = subscription.acknowledge(request.ack_ids, stream_id, now_us) if request.ack_ids else []
        by_seconds: dict[int, list[str]] = {}
        for seconds, ack_id in zip(
            request.modify_deadline_seconds, request.modify_deadline_ack_ids, strict=True
        ):
            by_seconds.setdefault(seconds, []).append(ack_id)
        refused = [
            refusal
            for seconds, ack_ids in by_seconds.items()
            for refusal in subscription.modify_ack_deadline(ack_ids, seconds, stream_id, now_us)
        ]
        if request.ack_ids or by_seconds:
            self._touch(subscription, now_us)
        return StreamVerdict(refused_acks, refused)

    def set_ready(self, consumer: Consumer) -> None:
        """`consumer` can take a response now."""
        subscription = consumer.subscription
        if consumer in subscription.consumers and self._has(subscription):
            subscription.ready[consumer] = None
            self._awake[subscription] = None

    def set_unready(self, consumer: Consumer, rest: bool) -> None:
        """`consumer` can take nothing for now; `rest`: for so long that nothing is kept at hand for it."""
        subscription = consumer.subscription
        subscription.ready.pop(consumer, None)
        if rest and self._has(subscription):
            subscription.rest()

    def stop_assigning(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more."""
        subscription = consumer.subscription
        subscription.close_consumer(consumer)
        if not self._has(subscription):
            return  # deleted, or replaced after a failed commit
        if subscription.ready:
            self._awake[subscription] = None  # keys that were its may go to others now
        if not subscription.consumers:
            # What it has at hand will be of use if a consumer comes soon; of many such, the last ones keep
            # it.
            self._resting.pop(subscription, None)
            self._resting[subscription] = None
            if len(self._resting) > limits.RESTING_SUBSCRIPTIONS_MAX:
                oldest = next(iter(self._resting))
                del self._resting[oldest]
                if not oldest.consumers:
                    oldest.rest()

    def close_stream(self, consumer: Consumer, now_us: int) -> None:
        subscription = consumer.subscription
        self.stop_assigning(consumer)
        if self._has(subscription):
            if not subscription.is_pushed:
                subscription.used(now_us)
            subscription.release_unseen(consumer, now_us)
            self._touch(subscription, now_us)
        self._stream_closed(consumer, now_us)

    # -- time and deliveries ------------------------------------------------------------------------------

    def advance_to(self, now_us: int) -> None:
        """Do what is due before `now_us`."""
        timers = self._timers
        while timers and timers[0][0] < now_us:
            due_us, _, what = heappop(timers)
            if due_us != what.timer_us:
                continue  # an earlier one took its place
            what.timer_us = None
            if isinstance(what, Subscription):
                if self._has(what):
                    self._advance(what, now_us)
            elif isinstance(what, Topic):
                self._trim(what, now_us)
            elif self._snapshots.get(what.name) is what:
                if snapshots.expire_time_us(what.resource) < now_us:
                    self._remove_snapshot(what, "expired", now_us)
                else:
                    self._set_timer(what)

    def _advance(self, subscription: Subscription, now_us: int) -> None:
        if subscription.is_forgotten(now_us):
            self._remove(subscription, "expired", now_us)
            return
        changed = subscription.advance(now_us)
        if changed and (subscription.ready or subscription.backlog.forwarding):
            self._awake[subscription] = None
        self._reads.extend(subscription.backlog.take_reads())
        self._set_timer(subscription)

    def next_deadline_us(self) -> int | None:
        """Nothing happens by itself up to and including this moment; None: nothing at all."""
        return self._timers[0][0] if self._timers else None

    def pump(self, now_us: int, commit_us: int) -> None:
        """Deliver what can be delivered; the deliveries are among the effects."""
        size = 0
        again: list[Subscription] = []
        while self._awake and size < limits.PUMP_BYTES_MAX:
            subscription = next(iter(self._awake))
            del self._awake[subscription]
            deliveries = subscription.pump(self.boot, now_us, commit_us)
            if subscription.backlog.has_more:
                again.append(subscription)
            if subscription.backlog.forwarding:
                self._forward(subscription, now_us)
            if deliveries:
                size += sum([lease.size for delivery in deliveries for lease in delivery.leases])
                self.ledger.now.deliveries.extend(deliveries)
            self._set_timer(subscription)
            self._trim_soon(subscription, now_us)
            self._reads.extend(subscription.backlog.take_reads())
        self._awake.update(dict.fromkeys(again))

    def _forward(self, subscription: Subscription, now_us: int) -> None:
        """Publish to the dead letter topic what is at hand of those messages, and finish them here."""
        topic = self._topics.get(subscription.dead_letter_topic)
        if topic is None:
            subscription.not_forwarded(now_us)
            self._awake[subscription] = None
            return
        for entry in subscription.forwardable():
            waiting = subscription.backlog.waiting[entry.message_id]
            failures = subscription.failures(entry.message_id, waiting.attempt)
            copy = forwarded(entry.data, failures, subscription.name, entry.publish_us)
            (new_id,) = self._publish(topic, [copy], _SERVER, now_us)
            subscription.forwarded(entry, new_id, topic.topic_id, now_us)
            self._touch(subscription, now_us)

    def take_reads(self) -> list[Read]:
        """What storage is asked for; the answers are expected by `loaded`."""
        reads, self._reads = self._reads, []
        return reads

    def read_bytes(self) -> int:
        """How much one read may bring, so that those of all subscriptions stay within a bound together."""
        consuming = sum(1 for subscription in self._subscriptions.values() if subscription.consumers)
        fair = limits.READ_BYTES_ALL_MAX // max(1, consuming)
        return min(limits.READ_BYTES_MAX, max(limits.CHUNK_BYTES_MAX, fair))

    @property
    def is_stepping(self) -> bool:
        """Whether the last `pump` stopped before it was through, to let other work come first."""
        return bool(self._awake)

    def has_work(self) -> bool:
        """Whether `pump` or a commit has anything to do."""
        return bool(self._awake) or self.must_commit()

    def must_commit(self) -> bool:
        """Whether there is anything that is in no commit yet."""
        return self.ledger.now.must_commit()

    def has_decided(self) -> bool:
        """Whether anything was decided that is in no commit yet."""
        return self.ledger.now.decides()

    def loaded(self, read: ReadRange | ReadMessages, entries: Sequence[Entry]) -> None:
        """Storage answers `read`."""
        if self._has(read.subscription):
            read.subscription.backlog.loaded(read, entries)
            self._awake[read.subscription] = None

    def found(self, read: ReadTimes, found: Found, now_us: int) -> None:
        """Storage answers the question of a subscription."""
        subscription = read.subscription
        if self._has(subscription):
            if subscription.found(read, found, now_us):
                self._trim(subscription.topic, now_us)
            self._touch(subscription, now_us)

    def read_failed(self, read: Read, now_us: int) -> None:
        """Storage could not answer `read`; it is asked again."""
        subscription = read.subscription
        if not self._has(subscription):
            return
        if isinstance(read, ReadTimes):
            subscription.not_found(now_us)
            self._set_timer(subscription)
        else:
            subscription.backlog.read_failed(read)
        self._awake[subscription] = None

    def trimmed(self, oldest_us: Mapping[int, int | None], now_us: int) -> None:
        """Storage removed all that it was told to of these topics; when the oldest row left of each ends."""
        for topic_id, row_us in oldest_us.items():
            topic = self._topics_by_id.get(topic_id)
            if topic is not None:
                topic.trimmed(row_us, now_us)
                self._set_timer(topic)

    # -- what there is ------------------------------------------------------------------------------------

    def subscriptions(self) -> Iterable[Subscription]:
        return self._subscriptions.values()

    def subscription_row(self, name: str) -> SubscriptionRow | None:
        subscription = self._subscriptions.get(name)
        return subscription.row() if subscription is not None else None

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise errors.not_found(name)
        return topic

    def _subscription(self, name: str) -> Subscription:
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise errors.not_found(name)
        return subscription

    def _attached(self, name: str) -> Subscription:
        subscription = self._subscription(name)
        if subscription.detached:
            raise errors.detached()
        return subscription

    def _snapshot(self, name: str) -> Snapshot:
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise errors.not_found(name)
        return snapshot

    def _has(self, subscription: Subscription) -> bool:
        """Whether it was not deleted meanwhile; its name may have another owner by now."""
        return self._subscriptions.get(subscription.name) is subscription

    def _check_references(self, resource: pb.Subscription) -> Topic:
        """The topic of a subscription to create, whose name must be free and whose topics must exist."""
        if resource.name in self._subscriptions:
            raise errors.already_exists(resource.name)
        topic = self._topic(resource.topic)
        if resource.HasField("dead_letter_policy"):
            self._topic(resource.dead_letter_policy.dead_letter_topic)
        return topic

    def _shown(self, subscription: Subscription) -> pb.Subscription:
        topic = subscription.topic
        return shown_subscription(subscription.resource, None if topic.deleted else topic.resource)

    def _page(
        self, method: str, parent: str, found: Iterable[str], inside: str, request: Any
    ) -> tuple[list[str], str]:
        ordered = sorted(name for name in found if name.startswith(inside))
        return page(ordered, f"{method} {parent}", request.page_size, request.page_token, self._secret)

    def _add(self, subscription: Subscription) -> None:
        topic = subscription.topic
        self._subscriptions[subscription.name] = subscription
        topic.referrers[subscription.sub_id] = subscription
        if not subscription.detached:
            topic.subscriptions[subscription.sub_id] = subscription
        topic.configure()
        self._set_timer(subscription)

    def _add_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshots[snapshot.name] = snapshot
        snapshot.topic.snapshots[snapshot.snapshot_id] = snapshot
        self._set_timer(snapshot)

    def _touch(self, subscription: Subscription, now_us: int) -> None:
        """Leases of `subscription` changed."""
        self._set_timer(subscription)
        if subscription.ready or subscription.backlog.forwarding:
            self._awake[subscription] = None
        self._trim_soon(subscription, now_us)
        if subscription.finished_since_trim > limits.TRIM_MESSAGES_MIN:
            # Looking for rows that nobody needs is a walk over all that is outstanding on the topic.
            outstanding = sum([other.unfinished_count for other in subscription.topic.subscriptions.values()])
            if subscription.finished_since_trim > outstanding:
                self._trim(subscription.topic, now_us)

    def _trim_soon(self, subscription: Subscription, now_us: int) -> None:
        if subscription.finished_since_trim:
            subscription.topic.trim_soon(now_us)
            self._set_timer(subscription.topic)

    def _set_timer(self, what: Subscription | Topic | Snapshot) -> None:
        due_us = what.next_event_us()
        if due_us is not None and (what.timer_us is None or due_us < what.timer_us):
            what.timer_us = due_us
            heappush(self._timers, (due_us, next(self._tie), what))
            if len(self._timers) > self._timers_max:
                # Each change of a time leaves its old entry behind, and with it what it was for.
                self._timers = [timer for timer in self._timers if timer[0] == timer[2].timer_us]
                heapify(self._timers)
                self._timers_max = 2 * len(self._timers) + _TIMERS_MIN

    def _trim(self, topic: Topic, now_us: int) -> None:
        if topic.topic_id in self._topics_by_id:
            topic.timer_us = None
            self.ledger.now.trims[topic.topic_id] = topic.trim(now_us)
            for subscription in topic.subscriptions.values():
                subscription.finished_since_trim = 0

    def _drop_if_unused(self, topic: Topic) -> None:
        """A deleted topic stays while a subscription or a snapshot still has messages of it."""
        if topic.deleted and not topic.referrers and not topic.snapshots:
            del self._topics_by_id[topic.topic_id]
            self.ledger.now.topics[topic.topic_id] = None
            self.ledger.now.trims[topic.topic_id] = Trim(topic.last_id, 2**62)

    def _close_consumers(self, subscription: Subscription, error: errors.PubsubError) -> None:
        for consumer in list(subscription.consumers):
            self.ledger.now.closed.append((consumer, error))
            subscription.close_consumer(consumer)

    # -- the journal --------------------------------------------------------------------------------------

    def _topic_changed(self, topic: Topic, change: str, now_us: int) -> None:
        self.ledger.now.topics[topic.topic_id] = topic.row()
        self._config({"change": change}, "topic", topic.resource, topic.topic_id, 0, now_us)

    def _subscription_changed(self, subscription: Subscription, change: str, now_us: int) -> None:
        self.ledger.now.subscriptions[subscription.sub_id] = subscription.row()
        topic_id = subscription.topic.topic_id
        self._config(
            {"change": change}, "subscription", subscription.resource, topic_id, subscription.sub_id, now_us
        )

    def _snapshot_changed(self, snapshot: Snapshot, change: str, now_us: int, sub_id: int = 0) -> None:
        """`sub_id`: of which subscription it was taken, so that the journal tells what it holds."""
        self.ledger.now.snapshots[snapshot.snapshot_id] = snapshot.row()
        topic_id = snapshot.topic.topic_id
        self._config({"change": change}, "snapshot", snapshot.resource, topic_id, sub_id, now_us)

    def repeat_config(self, now_us: int) -> None:
        """Every live resource as it is, for readers of a journal who begin here."""
        told = len(self.ledger.now.events)
        for topic in self._topics.values():
            self._config({"checkpoint": True}, "topic", topic.resource, topic.topic_id, 0, now_us)
        for sub in self._subscriptions.values():
            topic_id = sub.topic.topic_id
            self._config({"checkpoint": True}, "subscription", sub.resource, topic_id, sub.sub_id, now_us)
        for snapshot in self._snapshots.values():
            topic_id = snapshot.topic.topic_id
            self._config({"checkpoint": True}, "snapshot", snapshot.resource, topic_id, 0, now_us)
        self.ledger.now.repeated += len(self.ledger.now.events) - told

    def _config(
        self, why: Mapping[str, Any], what: str, resource: Any, topic_id: int, sub_id: int, now_us: int
    ) -> None:
        if self.ledger.journal:
            whole = json_format.MessageToDict(resource, preserving_proto_field_name=True)
            event = Event(now_us, Kind.CONFIG, topic_id, sub_id)
            self.ledger.event(event, {**why, what: whole})

    def _stream_opened(self, consumer: Consumer) -> None:
        self._stream_event(consumer, 0, 0, consumer.opened_us, consumer.opened_as)

    def _stream_closed(self, consumer: Consumer, closed_us: int) -> None:
        self._stream_event(consumer, 1, consumer.opened_us, closed_us, {})

    def _stream_event(
        self, consumer: Consumer, result: int, ref_us: int, now_us: int, detail: Mapping[str, Any]
    ) -> None:
        self.ledger.fact(
            Event(
                now_us,
                Kind.STREAM,
                consumer.subscription.topic.topic_id,
                consumer.subscription.sub_id,
                ref_ts_us=ref_us,
                result=result,
                client_id=consumer.client_id,
                stream_id=consumer.stream_id,
            ),
            detail,
        )
