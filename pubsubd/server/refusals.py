"""Refused ack ids are lines in the log, with their reasons: it is what people look for when acks fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pubsubd.broker import Refusal
from pubsubd.eod.machine import REASONS

_LINES_MAX = 10

_log = logging.getLogger("pubsubd.acks")


def log_refusals(operation: str, subscription: str, refused: Sequence[Refusal]) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    if len(refused) > _LINES_MAX:
        _log.info("%s refused on %s: %d ack ids, the first of them:", operation, subscription, len(refused))
    for ack_id, standing, token in refused[:_LINES_MAX]:
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
