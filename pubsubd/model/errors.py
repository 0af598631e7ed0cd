"""What a caller is told when the request cannot be done: one exception per canonical status.

Theory of operation. A `PubsubError` answers the whole request and means that nothing was changed. The
shells translate `status` to their own codes; nobody below them knows gRPC or HTTP. Its message is printable
ASCII on one line, whatever a client sent: the same text travels as gRPC status message and inside the
details trailer, and the official Python library reports a failed acknowledgement as a success when the two
differ by a byte. That promise is kept in one place, the constructor.

The builders below hold the words. The ones in parentheses, such as `(resource=...)`, are what people and
tests search for in logs of the real service; the sentences around them are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from pubsubd.model import limits

_NAMES_PAGE: Final = "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names"
_PUSH_PAGE: Final = "https://cloud.google.com/pubsub/docs/push"
_QUOTAS_PAGE: Final = "https://cloud.google.com/pubsub/quotas#resource_limits"

#: Observed texts of failed acknowledgements under exactly-once delivery, kept so that log filters match.
INVALID_ACK_IDS_TEXT: Final = (
    "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids "
    "have expired or the acknowledgement ids were malformed."
)
UNORDERED_ACK_IDS_TEXT: Final = "Some acknowledgement ids in the request were sent out of order"


class ErrorInfo(NamedTuple):
    """What programs read of a refusal: the google.rpc.ErrorInfo among its details."""

    reason: str
    domain: str
    metadata: Mapping[str, str]


class PubsubError(Exception):
    """The request is refused as a whole; `status` is the canonical name, `message` one line of ASCII."""

    status: ClassVar[str]
    info: ErrorInfo | None = None

    def __init__(self, message: str) -> None:
        self.message = _one_line(message, limits.ERROR_MESSAGE_CHARS_MAX)
        super().__init__(self.message)


class InvalidArgument(PubsubError):
    """The request is wrong whatever the state of the server."""

    status = "INVALID_ARGUMENT"


class Unfit(InvalidArgument):
    """The request does not go with what is stored now: another state of the server might take it."""


class NotFound(PubsubError):
    """A resource that the request names does not exist."""

    status = "NOT_FOUND"


class AlreadyExists(PubsubError):
    """The name of a resource to create is taken."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(PubsubError):
    """The request is well formed but the resource is in a state that does not allow it."""

    status = "FAILED_PRECONDITION"


class Aborted(PubsubError):
    """Nothing was decided; the caller may try again."""

    status = "ABORTED"


class ResourceExhausted(PubsubError):
    """A count limit of the server is reached."""

    status = "RESOURCE_EXHAUSTED"


class Unavailable(PubsubError):
    """The server cannot answer now. Never for Acknowledge and ModifyAckDeadline: clients hide it there."""

    status = "UNAVAILABLE"


class Unimplemented(PubsubError):
    """A documented feature that this server does not have."""

    status = "UNIMPLEMENTED"


class OutOfRange(PubsubError):
    """A position lies outside what exists."""

    status = "OUT_OF_RANGE"


class PermissionDenied(PubsubError):
    """The caller may not do this."""

    status = "PERMISSION_DENIED"


# --- text from clients -----------------------------------------------------------------------------------


def echo(text: str, chars_max: int = limits.ECHO_CHARS_MAX) -> str:
    """What a client sent, fit for a status message: printable ASCII, no line breaks, of bounded length."""
    return _one_line(text, chars_max)


def _one_line(text: str, chars_max: int) -> str:
    # Cut first: escaping a request of 20 MB only to show 400 characters of it would cost time and memory.
    shown = text[: chars_max + 1]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(map(_escaped, shown))
    if len(shown) <= chars_max:
        return shown
    return f"{shown[: chars_max - 24]}...[{len(text)} characters]"


def _escaped(char: str) -> str:
    if " " <= char <= "~":
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- names and existence ---------------------------------------------------------------------------------


def bad_name(name: str, field: str = "name") -> InvalidArgument:
    """`name` is no resource name; `field` is the field of a nested message that held it."""
    return InvalidArgument(
        f"Invalid resource name given ({field}={echo(name)}). The rules are at {_NAMES_PAGE}."
    )


def not_found(name: str) -> NotFound:
    """The resource called `name` does not exist; only its last segment is shown."""
    return NotFound(f"Resource not found (resource={echo(_leaf(name))}).")


def already_exists(name: str) -> AlreadyExists:
    """A resource called `name` exists; only its last segment is shown."""
    return AlreadyExists(f"Resource already exists in the project (resource={echo(_leaf(name))}).")


def _leaf(name: str) -> str:
    return name.rpartition("/")[2]


# --- fields ----------------------------------------------------------------------------------------------


def bad_argument(argument: str, reason: str = "") -> InvalidArgument:
    """`argument` is the path of a field, or the beginning of an explanation that `reason` completes."""
    tail = f": {reason}." if reason else "."
    return InvalidArgument(f"An invalid argument was passed (argument={argument}){tail}")


def too_small(quantity: str, passed: object, minimum: object) -> InvalidArgument:
    return InvalidArgument(
        f"The value for {quantity} is too small: {passed} was passed, the minimum is {minimum}."
    )


def too_large(quantity: str, passed: object, maximum: object) -> InvalidArgument:
    return InvalidArgument(
        f"The value for {quantity} is too large: {passed} was passed, the maximum is {maximum}."
    )


def out_of_bounds(quantity: str, passed: object, minimum: object, maximum: object) -> InvalidArgument:
    return InvalidArgument(
        f"The value for {quantity} is out of bounds: {passed} was passed, "
        f"the minimum is {minimum} and the maximum is {maximum}."
    )


def bad_token(token: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid page token given (token={echo(token)}).")


def not_implemented(field: str) -> Unimplemented:
    """`field` is valid, but the feature behind it does not exist yet, so it must not look as if it did."""
    return Unimplemented(f"This server does not implement {field} yet.")


# --- update masks ----------------------------------------------------------------------------------------


def mask_empty(request: str) -> InvalidArgument:
    return InvalidArgument(f"The update_mask in {request} must be set and hold at least one path.")


def mask_immutable(request: str, path: str) -> InvalidArgument:
    return InvalidArgument(
        f"The update_mask in {request} is invalid: the field '{echo(path)}' is not mutable."
    )


def mask_unknown(request: str, resource: str, path: str) -> InvalidArgument:
    return InvalidArgument(
        f"The update_mask in {request} is invalid: '{echo(path)}' is not a known {resource} field. "
        "Paths are spelled in snake_case."
    )


# --- push ------------------------------------------------------------------------------------------------


def bad_push_endpoint(endpoint: str) -> InvalidArgument:
    return InvalidArgument(
        f"Invalid push endpoint given (endpoint={echo(endpoint)}). The rules are at {_PUSH_PAGE}."
    )


def bad_push_version(version: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid push endpoint version given (version={echo(version)}).")


# --- publish ---------------------------------------------------------------------------------------------


def empty_message() -> InvalidArgument:
    return InvalidArgument(
        "One or more messages in the publish request is empty. "
        "Each message needs data or at least one attribute."
    )


def empty_attribute_key() -> InvalidArgument:
    return bad_argument("messages.attributes", "the key of an attribute must not be empty")


def attribute_key_too_long(key: str, key_bytes: int) -> InvalidArgument:
    return InvalidArgument(
        f'The attribute "{echo(key)}" has a key that is too long: it has {key_bytes} bytes, '
        f"the maximum is {limits.ATTRIBUTE_KEY_BYTES_MAX}. See {_QUOTAS_PAGE}."
    )


def attribute_value_too_long(key: str, value_bytes: int) -> InvalidArgument:
    return InvalidArgument(
        f'The attribute "{echo(key)}" has a value that is too long: it has {value_bytes} bytes, '
        f"the maximum is {limits.ATTRIBUTE_VALUE_BYTES_MAX}. See {_QUOTAS_PAGE}."
    )


def mixed_ordering_keys() -> FailedPrecondition:
    return FailedPrecondition(
        "In one publish request all messages must have no ordering key, or all must have the same one."
    )


# --- pull, ack, modack, streams --------------------------------------------------------------------------


def no_ack_ids() -> InvalidArgument:
    # Observed text, kept because tools search logs for it.
    return InvalidArgument("You have not specified an ack ID in the request.")


def bad_ack_id(ack_id: str) -> InvalidArgument:
    """Without exactly-once delivery only: with it a bad id is a result of its own, not a refusal."""
    return InvalidArgument(f"The request holds an invalid ack ID (ack_id={echo(ack_id)}).")


def bad_ack_deadline(ack_deadline_seconds: int, minimum: int, maximum: int) -> InvalidArgument:
    return InvalidArgument(
        f"Invalid ack deadline given (ack_deadline={ack_deadline_seconds}). "
        f"It must be between {minimum} and {maximum} seconds."
    )


def request_too_large(maximum: int) -> InvalidArgument:
    # Observed text, kept because tools search logs for it.
    return InvalidArgument(f"Request payload size exceeds the limit: {maximum} bytes.")


def wrong_type() -> FailedPrecondition:
    return FailedPrecondition("This method is not supported for this subscription type.")


def detached() -> FailedPrecondition:
    return FailedPrecondition("Subscription is detached.")


def interrupted() -> Unavailable:
    """Ends a stream that cannot go on; every client opens another one."""
    return Unavailable("The stream was interrupted; open it again.")


def already_detached() -> FailedPrecondition:
    return FailedPrecondition("Subscription is already detached.")


# --- snapshots and seek ----------------------------------------------------------------------------------


def backlog_too_old() -> FailedPrecondition:
    """A snapshot lives for a week less the age of its oldest message, which must leave an hour."""
    return FailedPrecondition(
        "The backlog of the source subscription is too old for a snapshot, which would expire "
        "within an hour. Acknowledge or drop the oldest messages first."
    )


def no_seek_target() -> InvalidArgument:
    return bad_argument("target", "a time or a snapshot must be specified")


def foreign_snapshot(snapshot_topic: str, topic: str) -> FailedPrecondition:
    """The names may be the same: a topic that was created again is another one."""
    return FailedPrecondition(
        f"The snapshot is one of another topic (snapshot topic={echo(snapshot_topic)}, "
        f"subscription topic={echo(topic)})."
    )


def unordered_snapshot() -> FailedPrecondition:
    """Such a snapshot may hold a message and not an earlier one of its ordering key."""
    return FailedPrecondition(
        "The snapshot was taken from a subscription without message ordering, "
        "so a subscription with message ordering cannot seek to it."
    )


def cannot_seal(reason: str) -> FailedPrecondition:
    return FailedPrecondition(f"The journal cannot be sealed: {reason}.")


# --- schemas ---------------------------------------------------------------------------------------------

# Observed texts, kept because tools search logs for them.
_MISMATCH_TEXT: Final = "Message failed schema validation"
_MISMATCH_DOMAIN: Final = "pubsub.googleapis.com"


def bad_definition(reason: str) -> InvalidArgument:
    """The definition of a schema is none, or not one that the service takes."""
    return InvalidArgument(f"Invalid schema definition: {echo(reason)}.")


def incompatible_revision(revision_id: str, reason: str) -> Unfit:
    return Unfit(
        "Schema compatibility checking failed: Revision is incompatible with previous revision "
        f"{revision_id}: {echo(reason)}."
    )


def schema_type_changed() -> Unfit:
    return Unfit("The type of a schema cannot change: a revision has the type of those before it.")


def too_many_revisions(maximum: int) -> ResourceExhausted:
    return ResourceExhausted(f"The schema has {maximum} revisions, which is the maximum. Delete one first.")


def only_revision() -> Unfit:
    return Unfit("The only revision of a schema cannot be deleted; use DeleteSchema to delete the schema.")


def schema_gone() -> NotFound:
    """Of a publish to a topic whose schema was deleted."""
    return NotFound(
        "Resource not found (resource=_deleted-schema_). The schema of the topic was deleted; "
        "give the topic another one, or none."
    )


def no_revision_in_range() -> FailedPrecondition:
    return FailedPrecondition(
        "No revision of the topic's schema lies within the range of its schema settings any more."
    )


def message_unfit(reason: str, revision_info: str) -> Unfit:
    """A message does not fit its schema; `reason` is for programs, as INVALID_JSON_AVRO_MESSAGE."""
    shown = echo(revision_info)
    error = Unfit(f"Invalid data in message: {_MISMATCH_TEXT}. {shown}")
    error.info = ErrorInfo(reason, _MISMATCH_DOMAIN, {"message": _MISMATCH_TEXT, "revisionInfo": shown})
    return error
