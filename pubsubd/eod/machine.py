"""The exactly-once state machine, as three tables.

A *message* on a subscription moves through `TRANSITIONS`. Each delivery of it is a *generation* with an
ack id of its own, and at any moment that id has one *standing*. What a client that names the id is told,
and whether anything happens, is `VERDICTS[mode][operation, standing]`: nothing else in the tree decides it.
The code that moves messages, many at a time, does not ask `TRANSITIONS` for each; tests compare the two over
every pair.

Rules of the file: no time, no ids, no storage. Whether a lease has run out is decided by whoever holds the
clock reading, before the tables are asked. A pair that a table does not hold is our bug, never the client's.

Sources: pubsub.proto (AcknowledgeRequest, ModifyAckDeadlineRequest, StreamingPullResponse), and the
documentation page "Exactly-once delivery".
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a message stands on one subscription."""

    READY = 0  # may be delivered now
    LEASED = 1  # outstanding: its newest generation has a deadline ahead
    ACKED = 2  # terminal, unless a seek brings it back
    DROPPED = 3  # terminal: detached or deleted with its subscription
    DELAYED = 4  # rests after a failure, as the retry policy says
    COLLATERAL = 5  # its lease is void and its deadline not over: a predecessor of its key came back
    PURGED = 6  # a seek acknowledged it, or its retention ended
    FORWARDED = 7  # terminal: it is on the dead letter topic


class Event(IntEnum):
    """What happens to a message."""

    DELIVER = 0
    EXTEND = 1
    ACK = 2
    NACK = 3
    DEADLINE = 4
    RELEASE = 5  # the stream ended before the client saw the delivery; never with exactly-once
    LATE_ACK = 6  # an ack by an id whose lease is over; never with exactly-once
    DROP = 7
    RESET = 8  # a predecessor of its ordering key was nacked or expired
    REST_OVER = 9  # the moment has come that it waited for
    PURGE = 10
    FORWARD = 11  # its attempts are used up
    RESTORE = 12  # a seek brings it back


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.READY, Event.DELIVER): State.LEASED,
    (State.LEASED, Event.EXTEND): State.LEASED,
    (State.LEASED, Event.ACK): State.ACKED,
    # With a retry policy; without one it is ready at once.
    (State.LEASED, Event.NACK): State.DELAYED,
    (State.LEASED, Event.DEADLINE): State.DELAYED,
    (State.LEASED, Event.RELEASE): State.READY,
    # Without exactly-once it is ready at once.
    (State.LEASED, Event.RESET): State.COLLATERAL,
    (State.DELAYED, Event.REST_OVER): State.READY,
    (State.COLLATERAL, Event.REST_OVER): State.READY,
    # Whoever still works on it has let go.
    (State.COLLATERAL, Event.NACK): State.READY,
    (State.READY, Event.FORWARD): State.FORWARDED,
    (State.ACKED, Event.RESTORE): State.READY,
    (State.PURGED, Event.RESTORE): State.READY,
} | {
    (state, event): after
    for event, after in (
        (Event.LATE_ACK, State.ACKED),
        (Event.PURGE, State.PURGED),
        (Event.DROP, State.DROPPED),
    )
    for state in (State.READY, State.LEASED, State.DELAYED, State.COLLATERAL)
}

# A failed delivery is what raises `delivery_attempt`; a released one was never seen by a client.
COUNTS_AS_ATTEMPT = frozenset({Event.NACK, Event.DEADLINE})


class Operation(IntEnum):
    """What a client asks for an ack id."""

    ACK = 0
    EXTEND = 1
    NACK = 2


class Standing(IntEnum):
    """What has become of the generation that an ack id names."""

    CURRENT = 0  # its lease runs
    LAPSED = 1  # its deadline passed, or the lease was released; the message is still owed
    NACKED = 2  # ended by a nack of this id
    ACKED = 3  # ended by an ack of this id
    OVERTAKEN = 4  # another generation acked the message
    DETACHED = 5  # the subscription was detached, and its messages dropped
    UNKNOWN = 6  # malformed, forged, of another subscription, or too old to be remembered
    UNORDERED = 7  # its lease runs, and an earlier message of its ordering key is not finished; acks only
    RESET = 8  # void although its deadline is ahead: a predecessor of its ordering key came back
    PURGED = 9  # its lease ran when a seek acknowledged the message
    FORWARDED = 10  # the message is on the dead letter topic
    SUPERSEDED = 11  # a seek brought the message back after it had finished


class Verdict(IntEnum):
    """The answer for one ack id. The first three are success on the wire."""

    APPLY = 0
    APPLY_LATE = 1
    NOOP = 2
    PERMANENT = 3
    TRANSIENT = 4


_ACK, _EXTEND, _NACK = Operation
_S = Standing

EXACTLY_ONCE: dict[tuple[Operation, Standing], Verdict] = {
    (_ACK, _S.CURRENT): Verdict.APPLY,
    # A newer delivery may be under way, and the client may already have been told that this one is lost.
    (_ACK, _S.LAPSED): Verdict.PERMANENT,
    (_ACK, _S.NACKED): Verdict.PERMANENT,
    # The first answer was lost and the client asks again: what was asked for is so.
    (_ACK, _S.ACKED): Verdict.NOOP,
    (_ACK, _S.OVERTAKEN): Verdict.PERMANENT,
    (_ACK, _S.DETACHED): Verdict.PERMANENT,
    (_ACK, _S.UNKNOWN): Verdict.PERMANENT,
    # Its turn comes once its predecessors are acked.
    (_ACK, _S.UNORDERED): Verdict.TRANSIENT,
    (_ACK, _S.RESET): Verdict.PERMANENT,
    # What was asked for is so: the message will not come again.
    (_ACK, _S.PURGED): Verdict.NOOP,
    (_ACK, _S.FORWARDED): Verdict.PERMANENT,
    # Success would promise that the message does not come again, and it does.
    (_ACK, _S.SUPERSEDED): Verdict.PERMANENT,
    (_EXTEND, _S.CURRENT): Verdict.APPLY,
    (_EXTEND, _S.LAPSED): Verdict.PERMANENT,
    (_EXTEND, _S.NACKED): Verdict.PERMANENT,
    # Libraries extend on a timer, so extensions cross their own acks; failing one would spoil its batch.
    (_EXTEND, _S.ACKED): Verdict.NOOP,
    (_EXTEND, _S.OVERTAKEN): Verdict.PERMANENT,
    (_EXTEND, _S.DETACHED): Verdict.PERMANENT,
    (_EXTEND, _S.UNKNOWN): Verdict.PERMANENT,
    (_EXTEND, _S.UNORDERED): Verdict.APPLY,
    (_EXTEND, _S.RESET): Verdict.PERMANENT,
    (_EXTEND, _S.PURGED): Verdict.PERMANENT,
    (_EXTEND, _S.FORWARDED): Verdict.PERMANENT,
    (_EXTEND, _S.SUPERSEDED): Verdict.PERMANENT,
    (_NACK, _S.CURRENT): Verdict.APPLY,
    (_NACK, _S.LAPSED): Verdict.PERMANENT,
    (_NACK, _S.NACKED): Verdict.NOOP,
    # Success would promise a redelivery that cannot come.
    (_NACK, _S.ACKED): Verdict.PERMANENT,
    (_NACK, _S.OVERTAKEN): Verdict.PERMANENT,
    (_NACK, _S.DETACHED): Verdict.PERMANENT,
    (_NACK, _S.UNKNOWN): Verdict.PERMANENT,
    (_NACK, _S.UNORDERED): Verdict.APPLY,
    # Nobody works on it any more, so it need not wait for its deadline.
    (_NACK, _S.RESET): Verdict.APPLY_LATE,
    (_NACK, _S.PURGED): Verdict.PERMANENT,
    (_NACK, _S.FORWARDED): Verdict.PERMANENT,
    (_NACK, _S.SUPERSEDED): Verdict.PERMANENT,
}

# Without exactly-once every well-formed id is answered OK. A late ack still counts, since fewer repeats are
# what these users want; a late extension or nack must not touch a newer lease. An id that is malformed or
# foreign refuses the whole request before this table is asked; UNKNOWN here is one that was forgotten.
AT_LEAST_ONCE: dict[tuple[Operation, Standing], Verdict] = {
    (_ACK, _S.CURRENT): Verdict.APPLY,
    (_ACK, _S.LAPSED): Verdict.APPLY_LATE,
    (_ACK, _S.NACKED): Verdict.APPLY_LATE,
    (_ACK, _S.ACKED): Verdict.NOOP,
    (_ACK, _S.OVERTAKEN): Verdict.NOOP,
    (_ACK, _S.DETACHED): Verdict.NOOP,
    (_ACK, _S.UNKNOWN): Verdict.NOOP,
    (_ACK, _S.UNORDERED): Verdict.APPLY,
    (_ACK, _S.RESET): Verdict.APPLY_LATE,
    (_ACK, _S.PURGED): Verdict.NOOP,
    (_ACK, _S.FORWARDED): Verdict.NOOP,
    (_ACK, _S.SUPERSEDED): Verdict.NOOP,
    (_EXTEND, _S.CURRENT): Verdict.APPLY,
    (_EXTEND, _S.LAPSED): Verdict.NOOP,
    (_EXTEND, _S.NACKED): Verdict.NOOP,
    (_EXTEND, _S.ACKED): Verdict.NOOP,
    (_EXTEND, _S.OVERTAKEN): Verdict.NOOP,
    (_EXTEND, _S.DETACHED): Verdict.NOOP,
    (_EXTEND, _S.UNKNOWN): Verdict.NOOP,
    (_EXTEND, _S.UNORDERED): Verdict.APPLY,
    (_EXTEND, _S.RESET): Verdict.NOOP,
    (_EXTEND, _S.PURGED): Verdict.NOOP,
    (_EXTEND, _S.FORWARDED): Verdict.NOOP,
    (_EXTEND, _S.SUPERSEDED): Verdict.NOOP,
    (_NACK, _S.CURRENT): Verdict.APPLY,
    (_NACK, _S.LAPSED): Verdict.NOOP,
    (_NACK, _S.NACKED): Verdict.NOOP,
    (_NACK, _S.ACKED): Verdict.NOOP,
    (_NACK, _S.OVERTAKEN): Verdict.NOOP,
    (_NACK, _S.DETACHED): Verdict.NOOP,
    (_NACK, _S.UNKNOWN): Verdict.NOOP,
    (_NACK, _S.UNORDERED): Verdict.APPLY,
    (_NACK, _S.RESET): Verdict.NOOP,
    (_NACK, _S.PURGED): Verdict.NOOP,
    (_NACK, _S.FORWARDED): Verdict.NOOP,
    (_NACK, _S.SUPERSEDED): Verdict.NOOP,
}

# Indexed by Subscription.enable_exactly_once_delivery at the moment the operation arrives.
VERDICTS: tuple[dict[tuple[Operation, Standing], Verdict], ...] = (AT_LEAST_ONCE, EXACTLY_ONCE)

REASONS: dict[Standing, str] = {
    Standing.CURRENT: "the lease runs",
    Standing.LAPSED: "its deadline has passed",
    Standing.NACKED: "it was nacked before",
    Standing.ACKED: "it was acked before",
    Standing.OVERTAKEN: "another delivery of the message was acked",
    Standing.DETACHED: "the subscription is detached",
    Standing.UNORDERED: "an earlier message of its ordering key is not acknowledged",
    Standing.RESET: "an earlier message of its ordering key is delivered again first",
    Standing.PURGED: "a seek acknowledged the message",
    Standing.FORWARDED: "the message went to the dead letter topic",
    Standing.SUPERSEDED: "a seek brought the message back",
    Standing.UNKNOWN: "it is malformed, or names no delivery of this subscription",
}
