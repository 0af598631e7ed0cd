"""Each refused ack id is one line in the log, with its reason: it is what people look for when acks fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pubsubd.broker import Refusal
from pubsubd.eod.machine import REASONS

_log = logging.getLogger("pubsubd.acks")


def log_refusals(operation: str, subscription: str, refused: Sequence[Refusal]) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    for ack_id, standing, token in refused:
        if token is None:
            _log.info(
                "%s refused on %s: ack_id=%.80r: %s", operation, subscription, ack_id, REASONS[standing]
            )
        else:
            _log.info(
                "%s refused on %s: message_id=%d delivery=%d ack_id=%s: %s",
                operation,
                subscription,
                token.message_id,
                token.generation,
                ack_id,
                REASONS[standing],
            )
