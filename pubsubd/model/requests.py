"""Request-level checks of Pull, Acknowledge, ModifyAckDeadline, StreamingPull and the lists.

Only what needs no lookup: whether the subscription exists, is detached or is pulled at all comes after these
checks, and the ack ids come last. `request_bytes` is the serialised size of the request as it arrived.

An error answers the request; for a StreamingPullRequest it also ends the stream.
"""

from __future__ import annotations

from typing import Final

from pubsubd.model import errors, limits, names
from pubsubd.wire import pb

#: Fields that only the first request of a stream may set.
_FIRST_REQUEST_ONLY: Final = (
    "subscription",
    "client_id",
    "max_outstanding_messages",
    "max_outstanding_bytes",
    "protocol_version",
)


def check_pull(request: pb.PullRequest) -> None:
    """Raise InvalidArgument for a bad name or `max_messages` below 1; any larger number is fine.

    Source: PullRequest.max_messages. The answer is capped by `limits.PULL_MESSAGES_MAX`.
    """
    names.check_subscription(request.subscription)
    if request.max_messages <= 0:
        raise errors.bad_argument("max_messages")


def check_acknowledge(request: pb.AcknowledgeRequest, request_bytes: int) -> None:
    """Raise InvalidArgument for a bad name, no ack ids, or a request that is too large.

    An empty string among the ack ids is a malformed id and not judged here.

    Source: AcknowledgeRequest, https://cloud.google.com/pubsub/quotas.
    """
    names.check_subscription(request.subscription)
    _check_ack_ids(len(request.ack_ids), request_bytes)


def check_modify_ack_deadline(request: pb.ModifyAckDeadlineRequest, request_bytes: int) -> None:
    """As `check_acknowledge`; the deadline must lie in 0...600 seconds.

    Source: ModifyAckDeadlineRequest.ack_deadline_seconds.
    """
    names.check_subscription(request.subscription)
    _check_ack_ids(len(request.ack_ids), request_bytes)
    _check_modify_deadline(request.ack_deadline_seconds)


def check_streaming_pull_first(request: pb.StreamingPullRequest, request_bytes: int) -> None:
    """Check the request that opens a stream; it may carry acks and extensions like any later one.

    Limits of zero or less mean "unlimited" and protocol versions above 1 are served as 1.

    Raises:
        InvalidArgument: the stream must not open.

    Source: StreamingPullRequest.
    """
    names.check_subscription(request.subscription)
    _check_stream_deadline(request.stream_ack_deadline_seconds)
    _check_modify_deadlines(request)
    if request.protocol_version < 0:
        raise errors.bad_argument("protocol_version", "it must not be negative")
    _check_ack_request_bytes(request_bytes)


def check_streaming_pull_later(request: pb.StreamingPullRequest, request_bytes: int) -> None:
    """Check any request of a stream but the first; an empty one is a keep-alive and fine.

    A `stream_ack_deadline_seconds` of zero changes nothing: absent and zero look the same on the wire, and
    some clients send it on purpose.

    Raises:
        InvalidArgument: the stream ends.

    Source: StreamingPullRequest.
    """
    for field in _FIRST_REQUEST_ONLY:
        if getattr(request, field):
            raise errors.bad_argument(field, "only the first request of a stream may set it")
    if request.stream_ack_deadline_seconds:
        _check_stream_deadline(request.stream_ack_deadline_seconds)
    _check_modify_deadlines(request)
    _check_ack_request_bytes(request_bytes)


def check_list_topics(request: pb.ListTopicsRequest) -> None:
    """Raise InvalidArgument for a bad project or page size; the token is `paging.page`'s to judge."""
    names.check_project(request.project)
    check_page_size(request.page_size)


def check_list_subscriptions(request: pb.ListSubscriptionsRequest) -> None:
    """Raise InvalidArgument for a bad project or page size; the token is `paging.page`'s to judge."""
    names.check_project(request.project)
    check_page_size(request.page_size)


def check_list_topic_subscriptions(request: pb.ListTopicSubscriptionsRequest) -> None:
    """Raise InvalidArgument for a bad topic name or page size; the token is `paging.page`'s to judge."""
    names.check_topic(request.topic)
    check_page_size(request.page_size)


def check_page_size(page_size: int) -> None:
    """Raise InvalidArgument outside 0...1000; zero asks for the default."""
    if not limits.PAGE_SIZE_MIN <= page_size <= limits.PAGE_SIZE_MAX:
        raise errors.out_of_bounds("page_size", page_size, limits.PAGE_SIZE_MIN, limits.PAGE_SIZE_MAX)


def _check_ack_ids(ack_id_count: int, request_bytes: int) -> None:
    if not ack_id_count:
        raise errors.no_ack_ids()
    _check_ack_request_bytes(request_bytes)


def _check_ack_request_bytes(request_bytes: int) -> None:
    if request_bytes > limits.ACK_REQUEST_BYTES_MAX:
        raise errors.request_too_large(limits.ACK_REQUEST_BYTES_MAX)


def _check_stream_deadline(seconds: int) -> None:
    if not limits.ACK_DEADLINE_SECONDS_MIN <= seconds <= limits.ACK_DEADLINE_SECONDS_MAX:
        raise errors.bad_ack_deadline(
            seconds, limits.ACK_DEADLINE_SECONDS_MIN, limits.ACK_DEADLINE_SECONDS_MAX
        )


def _check_modify_deadlines(request: pb.StreamingPullRequest) -> None:
    seconds_count = len(request.modify_deadline_seconds)
    ack_id_count = len(request.modify_deadline_ack_ids)
    if seconds_count != ack_id_count:
        raise errors.bad_argument(
            "modify_deadline_seconds",
            f"it has {seconds_count} elements and modify_deadline_ack_ids has {ack_id_count}",
        )
    for seconds in request.modify_deadline_seconds:
        _check_modify_deadline(seconds)


def _check_modify_deadline(seconds: int) -> None:
    if not limits.MODIFY_ACK_DEADLINE_SECONDS_MIN <= seconds <= limits.MODIFY_ACK_DEADLINE_SECONDS_MAX:
        raise errors.bad_ack_deadline(
            seconds, limits.MODIFY_ACK_DEADLINE_SECONDS_MIN, limits.MODIFY_ACK_DEADLINE_SECONDS_MAX
        )
