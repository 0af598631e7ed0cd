"""What a unary Acknowledge or ModifyAckDeadline is answered when some of its ids failed.

The results travel per ack id in the metadata of one `ErrorInfo` in the status details. Client libraries
disagree about an id that is *not* listed in a failed call: Java, C# and C++ take it for done, Python, Node
and Go report it as failed. So what becomes of the good ids of a mixed batch is a setting, `Policy`; see
DESIGN.md.

Source: documentation page "Exactly-once delivery"; the reading of each client is in its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from pubsubd.eod.machine import Standing
from pubsubd.model.errors import INVALID_ACK_IDS_TEXT, UNORDERED_ACK_IDS_TEXT

PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"
UNORDERED = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
UNAVAILABLE = "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"

REASON = "EXACTLY_ONCE_ACKID_FAILURE"
DOMAIN = "pubsub.googleapis.com"


def result_of(standing: Standing) -> str:
    """What a client is told about an ack id that did not succeed."""
    return UNORDERED if standing is Standing.UNORDERED else PERMANENT


Policy = Literal["omit", "confirm", "abort"]


class Answer(NamedTuple):
    status: str  # canonical name; never UNAVAILABLE, which clients retry below their exactly-once logic
    message: str
    metadata: dict[str, str]  # ack id: result


def answer(ack_ids: Iterable[str], failed: Mapping[str, str], policy: Policy) -> Answer | None:
    """The answer to a call with `ack_ids` of which those in `failed` did; None is OK.

    `omit` lists exactly what failed. `confirm` lists the good ids too, as transient: each client tries them
    again, and then hears OK. `abort` answers a batch with good ids ABORTED, so that unlisted ids are tried
    again.
    """
    if not failed:
        return None
    permanent = PERMANENT in failed.values()
    status = "INVALID_ARGUMENT" if permanent else "ABORTED"
    message = (
        UNORDERED_ACK_IDS_TEXT if UNORDERED in failed.values() and not permanent else INVALID_ACK_IDS_TEXT
    )
    if not permanent and UNORDERED not in failed.values():
        message = "The service was unable to fulfill your request. Please try again."
    good = [ack_id for ack_id in dict.fromkeys(ack_ids) if ack_id not in failed]
    metadata = dict(failed)
    if policy == "confirm":
        metadata |= dict.fromkeys(good, UNAVAILABLE)
    elif policy == "abort" and good:
        status = "ABORTED"
    return Answer(status, message, metadata)


def undecided(ack_ids: Iterable[str]) -> Answer:
    """The answer when it is not known whether anything became durable: neither success nor failure."""
    return Answer(
        "ABORTED",
        "The request could not be stored. Please try again.",
        dict.fromkeys(ack_ids, UNAVAILABLE),
    )
