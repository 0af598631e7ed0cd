"""Lengths of time: from protobuf messages to integers, and to the two spellings used in refusals."""

from __future__ import annotations

from typing import Final

from pubsubd.model import errors, limits
from pubsubd.wire import pb

SECOND_NS: Final = 1_000_000_000

#: google.protobuf.Duration.seconds, google.protobuf.Timestamp.seconds (years 1 to 9999)
_DURATION_SECONDS_MAX: Final = 315_576_000_000
_TIMESTAMP_SECONDS_MIN: Final = -62_135_596_800
_TIMESTAMP_SECONDS_MAX: Final = 253_402_300_799


def nanoseconds(duration: pb.Duration) -> int:
    """The whole length in nanoseconds, so that two lengths compare exactly."""
    length_ns: int = duration.seconds * SECOND_NS + duration.nanos
    return length_ns


def duration_of(length_ns: int) -> pb.Duration:
    """The protobuf message of a length that is not negative."""
    seconds, nanos = divmod(length_ns, SECOND_NS)
    return pb.Duration(seconds=seconds, nanos=nanos)


def microseconds(duration: pb.Duration) -> int:
    """The length in whole microseconds, the unit of the broker; a fraction of one is dropped."""
    return nanoseconds(duration) // 1000


def check_duration(duration: pb.Duration, field: str) -> None:
    """Refuse a Duration that the protobuf definition calls invalid, before anybody computes with it.

    Such a message travels on the wire unhindered but has no JSON form, so it must never be stored.

    Raises:
        InvalidArgument: naming `field`.

    Source: google/protobuf/duration.proto.
    """
    seconds, nanos = duration.seconds, duration.nanos
    if abs(seconds) > _DURATION_SECONDS_MAX or abs(nanos) >= SECOND_NS or seconds * nanos < 0:
        raise errors.bad_argument(
            field, f"{seconds} seconds and {nanos} nanos are not a valid google.protobuf.Duration"
        )


def check_timestamp(timestamp: pb.Timestamp, field: str) -> None:
    """Refuse a Timestamp outside the years 1 to 9999 or with a bad fraction.

    Raises:
        InvalidArgument: naming `field`.

    Source: google/protobuf/timestamp.proto.
    """
    seconds, nanos = timestamp.seconds, timestamp.nanos
    in_range = _TIMESTAMP_SECONDS_MIN <= seconds <= _TIMESTAMP_SECONDS_MAX and 0 <= nanos < SECOND_NS
    if not in_range:
        raise errors.bad_argument(
            field, f"{seconds} seconds and {nanos} nanos are not a valid google.protobuf.Timestamp"
        )


def check_retention(resource: pb.Topic | pb.Subscription) -> None:
    """Refuse a `message_retention_duration` out of bounds; zero sent explicitly is out of bounds, not unset.

    Topics and subscriptions share the bounds and the words.

    Raises:
        InvalidArgument: with both bounds.

    Source: Topic.message_retention_duration, Subscription.message_retention_duration.
    """
    if not resource.HasField("message_retention_duration"):
        return
    check_duration(resource.message_retention_duration, "message_retention_duration")
    retention_ns = nanoseconds(resource.message_retention_duration)
    minimum_ns = limits.RETENTION_SECONDS_MIN * SECOND_NS
    maximum_ns = limits.RETENTION_SECONDS_MAX * SECOND_NS
    if not minimum_ns <= retention_ns <= maximum_ns:
        raise errors.out_of_bounds(
            "message retention duration",
            hours_text(retention_ns),
            hours_text(minimum_ns),
            hours_text(maximum_ns),
        )


def hours_text(length_ns: int) -> str:
    """`744h`, `9m59s`, `1h0.5s`, `0s`: hours, minutes and seconds without the parts that are zero."""
    sign, length_ns = ("-", -length_ns) if length_ns < 0 else ("", length_ns)
    minutes, rest_ns = divmod(length_ns, 60 * SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h"] if hours else []
    parts += [f"{minutes}m"] if minutes else []
    if rest_ns or not parts:
        parts.append(f"{_decimal(rest_ns)}s")
    return sign + "".join(parts)


def seconds_text(length_ns: int) -> str:
    """`600s`, `1.500s`: seconds with 0, 3, 6 or 9 fraction digits, the JSON spelling of a Duration."""
    sign, length_ns = ("-", -length_ns) if length_ns < 0 else ("", length_ns)
    seconds, fraction_ns = divmod(length_ns, SECOND_NS)
    if not fraction_ns:
        return f"{sign}{seconds}s"
    digits = f"{fraction_ns:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{sign}{seconds}.{digits}s"


def _decimal(length_ns: int) -> str:
    seconds, fraction_ns = divmod(length_ns, SECOND_NS)
    return f"{seconds}.{fraction_ns:09d}".rstrip("0").rstrip(".") if fraction_ns else str(seconds)
