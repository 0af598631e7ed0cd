"""The report of a run: one JSON line per message for the file, a table for the reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.mainjob.audit import Delivery, Message, Violation
from tests.mainjob.job import Outcome

_VIOLATIONS_SHOWN_MAX = 2


def write_report(outcome: Outcome, path: Path) -> None:
    """The first line sums the run up; each further line is one message, in the order of the payloads.

    Times are seconds since the start of the run, whose date the first line gives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    messages = sorted(outcome.ledger.messages.values(), key=lambda m: (m.seq or 0, m.published_us or 0))
    with path.open("w") as file:
        for record in (_header(outcome), *(_message(outcome, message) for message in messages)):
            file.write(json.dumps(record) + "\n")


def _header(outcome: Outcome) -> dict[str, Any]:
    return {
        "passed": outcome.passed,
        "started": datetime.fromtimestamp(outcome.started_wall_seconds, UTC).isoformat(),
        "seconds": round(outcome.elapsed_seconds, 3),
        "seed": outcome.settings.seed,
        "server_options": outcome.settings.server_options,
        "kills": [_seconds(outcome, at_us) for at_us in outcome.kills_us],
        "stops": [_seconds(outcome, at_us) for at_us in outcome.stops_us],
        "ends_at_work": outcome.busy_ends,
        "counts": outcome.verdict.counts,
        "notes": dict(outcome.ledger.notes),
        "diagnosis": outcome.diagnosis,
        "violations": [
            {"rule": v.rule, "message_id": v.message_id, "text": v.text} for v in outcome.verdict.violations
        ],
    }


def _message(outcome: Outcome, message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "payload": message.seq,
        "published": _seconds(outcome, message.published_us),
        "ack_confirmed": _seconds(outcome, message.confirmed_us),
        "deliveries": [_delivery(outcome, delivery) for delivery in message.deliveries],
    }


def _delivery(outcome: Outcome, delivery: Delivery) -> dict[str, Any]:
    record: dict[str, Any] = {
        "delivery": delivery.key,
        "subscriber": delivery.subscriber,
        "received": _seconds(outcome, delivery.received_us()),
        "callback": _seconds(outcome, delivery.at_us),
        "lease_known_until": _seconds(outcome, max((u for _, u in delivery.known_leases()), default=None)),
    }
    if delivery.ack_asked_us is not None:
        record["ack"] = {
            "asked": _seconds(outcome, delivery.ack_asked_us),
            "result": delivery.ack_result,
            "confirmed": _seconds(outcome, delivery.confirmed_us()),
            "attempts": sum(a.action == "ack" for a in delivery.attempts),
        }
    if delivery.nack_asked_us is not None:
        record["nack"] = {
            "asked": _seconds(outcome, delivery.nack_asked_us),
            "result": delivery.nack_result,
            "resolved": _seconds(outcome, delivery.nack_resolved_us),
        }
    return record


def _seconds(outcome: Outcome, at_us: int | None) -> float | None:
    return None if at_us is None else round((at_us - outcome.started_us) / 1e6, 6)


def summary(outcome: Outcome, report: Path) -> str:
    rows = dict(_rows(outcome))
    width = max(len(name) for name in rows) + 2
    lines = [f"{name:<{width}}{value:>14}" for name, value in rows.items()]
    lines += ["", *_verdict(outcome), f"report, one line per message: {report}"]
    return "\n".join(lines)


def _rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for name, count in outcome.verdict.counts.items():
        yield name, f"{count:,}"
    for name, count in outcome.ledger.notes.items():
        yield name, f"{count:,}"
    yield "SIGKILLs of the server", f"{len(outcome.kills_us)} of {outcome.settings.kills}"
    if outcome.settings.stops:
        yield "SIGTERMs of the server", f"{len(outcome.stops_us)} of {outcome.settings.stops}"
    yield "ends that found all three at work: publish, delivery, ack", f"{outcome.busy_ends:,}"
    waits = sorted(
        delivery.ack_resolved_us - delivery.ack_asked_us
        for delivery in outcome.ledger.deliveries.values()
        if delivery.ack_resolved_us is not None and delivery.ack_asked_us is not None
    )
    if waits:
        yield "ack asked to confirmed, median", f"{waits[len(waits) // 2] / 1000:,.1f} ms"
        yield "ack asked to confirmed, longest", f"{waits[-1] / 1000:,.1f} ms"
    if outcome.drain_seconds:
        yield "until every message was acked", f"{outcome.drain_seconds:,.1f} s"
    yield "whole run", f"{outcome.elapsed_seconds:,.1f} s"


def _verdict(outcome: Outcome) -> Iterator[str]:
    by_rule: dict[str, list[Violation]] = {}
    for violation in outcome.verdict.violations:
        by_rule.setdefault(violation.rule, []).append(violation)
    for rule, violations in by_rule.items():
        yield f"VIOLATED: {rule}: {len(violations):,} times"
        for violation in violations[:_VIOLATIONS_SHOWN_MAX]:
            yield f"  message {violation.message_id or '-'}: {violation.text}"
    if outcome.diagnosis:
        yield f"GAVE UP: {outcome.diagnosis}"
    if outcome.passed:
        yield "PASSED: every message was processed, none was delivered after an ack answered SUCCESS,"
        yield "none inside a lease."
    else:
        yield f"FAILED (seed {outcome.settings.seed})"
