# Made from proto/ by `python -m pubsubd.wire.generate`; edits here are lost.

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.internal import containers
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from pubsubd.wire import pb

class InjectCommitFaultRequest(Message):
    Fault: EnumTypeWrapper
    NONE: int
    FAIL: int
    STALL: int
    KILL_BEFORE_COMMIT: int
    KILL_AFTER_COMMIT: int
    def __init__(
        self,
        *,
        fault: int | None = ...,
        commits: int | None = ...,
        skip: int | None = ...,
        stall: pb.Duration | Mapping[str, Any] | None = ...,
    ) -> None: ...
    fault: int
    commits: int
    skip: int
    @property
    def stall(self) -> pb.Duration: ...

class InjectCommitFaultResponse(Message): ...

class GetStateRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
    ) -> None: ...
    subscription: str

class SubscriptionState(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        sub_id: int | None = ...,
        cursor: int | None = ...,
        leased: int | None = ...,
        waiting: int | None = ...,
        streams: int | None = ...,
        leases: Iterable[Lease | Mapping[str, Any]] | None = ...,
    ) -> None: ...
    name: str
    sub_id: int
    cursor: int
    leased: int
    waiting: int
    streams: int
    @property
    def leases(self) -> containers.RepeatedCompositeFieldContainer[Lease]: ...

class Lease(Message):
    def __init__(
        self,
        *,
        message_id: int | None = ...,
        generation: int | None = ...,
        attempt: int | None = ...,
        deadline_us: int | None = ...,
    ) -> None: ...
    message_id: int
    generation: int
    attempt: int
    deadline_us: int

class GetStateResponse(Message):
    def __init__(
        self,
        *,
        subscriptions: Iterable[SubscriptionState | Mapping[str, Any]] | None = ...,
        commits: int | None = ...,
        journal_seq: int | None = ...,
        now_us: int | None = ...,
    ) -> None: ...
    @property
    def subscriptions(self) -> containers.RepeatedCompositeFieldContainer[SubscriptionState]: ...
    commits: int
    journal_seq: int
    now_us: int

class SealRequest(Message):
    def __init__(
        self,
        *,
        backlog: bool | None = ...,
    ) -> None: ...
    backlog: bool

class SealResponse(Message):
    def __init__(
        self,
        *,
        last_seq: int | None = ...,
        backlog: str | None = ...,
    ) -> None: ...
    last_seq: int
    backlog: str
