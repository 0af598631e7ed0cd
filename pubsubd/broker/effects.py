"""What a commit has to make durable, and what may be said once it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pubsubd.broker.entry import Entry
from pubsubd.eod.endings import EndingRow
from pubsubd.eod.lease import Lease
from pubsubd.model.errors import PubsubError
from pubsubd.model.events import Event, EventTuple

if TYPE_CHECKING:
    from pubsubd.broker.consumer import Consumer
    from pubsubd.broker.subscription import Subscription


class TopicRow(NamedTuple):
    topic_id: int
    name: str
    deleted: bool  # kept for the subscriptions that still have its messages
    resource: bytes


class SubscriptionRow(NamedTuple):
    sub_id: int
    topic_id: int
    name: str
    start_id: int  # messages with a larger id belong to it
    resource: bytes


class SnapshotRow(NamedTuple):
    snapshot_id: int
    topic_id: int
    name: str
    resource: bytes
    state: bytes


class DocumentRow(NamedTuple):
    """What is kept under a name beside messages: a schema with its revisions, the policy of a resource."""

    kind: str
    name: str
    data: bytes


class Delivery(NamedTuple):
    """Leases granted to one consumer. It may be sent once they are committed."""

    consumer: Consumer
    subscription: Subscription
    leases: list[Lease]
    datas: list[bytes]
    delivered_us: int
    attempts: list[int] | None  # of each lease, as clients count them; None: without a dead letter policy


class LetGo(NamedTuple):
    """Leases that ended. When the commit fails, some of them are running again."""

    leases: list[Lease]
    by_client: bool  # it was done with them


class Trim(NamedTuple):
    """Messages of a topic that nobody needs: ids up to `through_id`, published before `before_us`."""

    through_id: int
    before_us: int


class Effects:
    """All effects since the last commit began."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.messages: dict[int, list[Entry]] = {}  # by topic_id
        self.endings: list[EndingRow] = []
        self.topics: dict[int, TopicRow | None] = {}  # None: gone
        self.subscriptions: dict[int, SubscriptionRow | None] = {}
        self.snapshots: dict[int, SnapshotRow | None] = {}
        self.documents: dict[tuple[str, str], bytes | None] = {}  # by kind and name; None: gone
        self.trims: dict[int, Trim] = {}  # by topic_id
        self.events: list[EventTuple] = []
        self.details: list[tuple[int, Mapping[str, Any]]] = []  # (index of its event, what it says)
        self.deliveries: list[Delivery] = []
        self.closed: list[tuple[Consumer, PubsubError]] = []
        # Events that remain true when the commit fails: streams were opened or ended, clients have come.
        self.facts: list[tuple[Event, Mapping[str, Any]]] = []
        self.repeated = 0  # events that tell what was told before
        self.changed: list[Consumer] = []  # streams that should learn of new subscription properties
        self.let_go: dict[int, list[LetGo]] = {}  # by sub_id

    def must_commit(self) -> bool:
        return bool(self.events) or self.decides()

    def decides(self) -> bool:
        """Whether there is more than facts and repetitions, so that what is shown may rest on it."""
        return bool(
            self.records
            or self.messages
            or self.topics
            or self.subscriptions
            or self.snapshots
            or self.documents
            or len(self.events) > len(self.facts) + self.repeated
            or self.trims
        )


class Ledger:
    """Where the rooms of the core write effects down."""

    def __init__(self, journal: bool) -> None:
        self.journal = journal
        self.now = Effects()

    def take(self) -> Effects:
        taken, self.now = self.now, Effects()
        return taken

    def record(self, record: bytes) -> None:
        self.now.records.append(record)

    def events(self, events: Sequence[EventTuple]) -> None:
        if self.journal:
            self.now.events.extend(events)

    def fact(self, event: Event, detail: Mapping[str, Any]) -> None:
        """An event that is told again if this commit fails."""
        if self.journal:
            self.now.facts.append((event, detail))
            self.event(event, detail)

    def event(self, event: EventTuple, detail: Mapping[str, Any] | None = None) -> None:
        if self.journal:
            if detail is not None:
                self.now.details.append((len(self.now.events), detail))
            self.now.events.append(event)
