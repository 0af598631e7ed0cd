"""From measurements of a subscription to advice about its settings: plain functions, each with its formula.

Rates are those of busy times: of seconds with a delivery, of minutes with a publish. Every advice says in a
sentence why, and has the numbers that it is made of beside it; `_s` is seconds, `_per_s` per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analytics.dimensions import Setting
from analytics.survival import Survival

SECOND_US = 1_000_000

#: Bounds of the service: Subscription.ack_deadline_seconds, DeadLetterPolicy.max_delivery_attempts.
ACK_DEADLINE_S = (10, 600)
DELIVERY_ATTEMPTS = (5, 100)
#: Lease lengths for which the share that would expire is told.
EXPIRY_SECONDS = (10, 20, 30, 60, 120, 300, 600)

SAFETY = 1.2
LATE_MAX = 0.001  # of all work may take longer than the ack deadline
COVERED_MIN = 0.999  # of what is acked at all has to be acked before it becomes a dead letter
EXTENDS_MIN = 0.01  # per delivery: with as many the clients keep their leases alive by themselves
CAPPED_MIN = 0.05  # of the time at its limit: the limit holds the client back
ROOMY_MIN = 4.0  # times the need: so high a limit lets one client take what others could do
BUSY_MAX = 0.7  # of a client's places may be taken on average
CLIENTS_MAX = 20  # of one subscription get advice of their own, the busiest first
RECENT_MINUTES = 10  # whose rates say whether the backlog shrinks

LOW, MEDIUM, HIGH = "low", "medium", "high"


@dataclass(frozen=True)
class Minute:
    """Of `health_minute`, what advice needs. `seconds`: how much of it lies in the range."""

    start_us: int
    published: int
    delivered: int
    acked: int
    extended: int  # asked for, whatever the answer
    clients: int
    backlog: int | None
    seconds: float = 60.0


@dataclass(frozen=True)
class Load:
    """One client of a subscription."""

    client_id: int
    client: str
    delivered: int
    rate_p95: float  # messages per second
    outstanding_max: int
    at_limit: float | None  # share of the time at which its streams' limit was known
    max_messages: int | None  # that its streams ask for; 0: no limit, None: not known
    max_bytes: int | None
    survival: Survival


@dataclass(frozen=True)
class Measured:
    """One subscription."""

    sub_id: int
    subscription: str
    setting: Setting | None
    survival: Survival
    minutes: Sequence[Minute] = ()
    loads: Sequence[Load] = ()
    attempts: Mapping[int, int] = field(default_factory=dict)  # at which messages were acked -> how many
    bytes_p95: float = math.nan
    stream_deadline_s: int = 0  # that its streams ask for; 0: the subscription's


@dataclass(frozen=True)
class Advice:
    sub_id: int
    subscription: str
    setting: str
    current: float | None  # None: not set, or not known
    recommended: float | None  # None: the measurements cannot tell
    reason: str
    evidence: Mapping[str, float]
    confidence: str


def confidence(n: float) -> str:
    if n < 1_000:
        return LOW
    return MEDIUM if n < 10_000 else HIGH


# -- advice, pure -----------------------------------------------------------------------------------------


def advise(measured: Measured) -> list[Advice]:
    """All advice for one subscription; none about what was not measured."""
    found: list[Advice | None] = [ack_deadline(measured)]
    for load in measured.loads[:CLIENTS_MAX]:
        found += max_outstanding(measured, load)
    found += [clients(measured), max_delivery_attempts(measured)]
    return [one for one in found if one is not None]


def ack_deadline(measured: Measured) -> Advice | None:
    survival = measured.survival
    if not survival.n:
        return None
    delivered = sum(one.delivered for one in measured.minutes)
    extends = sum(one.extended for one in measured.minutes) / delivered if delivered else 0.0
    evidence = _processing(survival) | {"extends_per_delivery": extends}
    evidence |= {f"would_expire_{seconds}s": survival.above(seconds) for seconds in EXPIRY_SECONDS}
    current = measured.setting.ack_deadline_s if measured.setting else None
    recommended, sure = _deadline(survival, extends, current)
    if extends >= EXTENDS_MIN:
        shares = ", ".join(
            f"{_percent(survival.above(seconds))} at {seconds} s" for seconds in EXPIRY_SECONDS
        )
        reason = (
            f"Clients extend their leases themselves ({extends:.2f} extensions per delivery), so leave it. "
            f"Without that, these shares of leases would expire: {shares}."
        )
    elif recommended is None:
        seen_s = survival.is_known_until_s
        reason = (
            f"{_percent(survival.above(seen_s))} of the work takes longer than any lease or late ack shows "
            f"({seen_s:.0f} s). Lengthen the leases step by step, or extend them."
        )
    else:
        long = survival.quantile_s(1 - LATE_MAX)
        if long is not None and long * SAFETY <= ACK_DEADLINE_S[1]:
            reason = f"99.9 % of the work is done within {long:.1f} s; a fifth is added for safety."
        else:
            reason = (
                f"{_percent(survival.above(ACK_DEADLINE_S[1]))} of the work takes longer than the longest "
                f"lease there is, {ACK_DEADLINE_S[1]} s: clients should extend their leases."
            )
    if measured.stream_deadline_s:
        reason += f" Its streams ask for {measured.stream_deadline_s} s of their own."
    sureness = confidence(survival.n) if sure else LOW
    return _advice(measured, "ack_deadline_seconds", current, recommended, reason, evidence, sureness)


def _deadline(survival: Survival, extends: float, current: float | None) -> tuple[float | None, bool]:
    """The ack deadline to recommend, and whether the measurements reach so far."""
    low, high = ACK_DEADLINE_S
    if extends >= EXTENDS_MIN:
        return current, True
    long = survival.quantile_s(1 - LATE_MAX)
    if long is not None:
        return float(min(max(math.ceil(long * SAFETY), low), high)), True
    # Too many were not seen to end. If they were seen for longer than any lease, that is answer enough.
    return (float(high), True) if survival.is_known_until_s >= high else (None, False)


def max_outstanding(measured: Measured, load: Load) -> list[Advice]:
    """Advice about one client's limits, in messages and in bytes."""
    survival = load.survival if load.survival.n else measured.survival
    if not survival.n or not load.rate_p95 > 0:
        return []
    p99 = survival.quantile_s(0.99)
    long = survival.is_known_until_s if p99 is None else p99
    need = max(1, math.ceil(SAFETY * load.rate_p95 * long - 1e-9))
    current = load.max_messages
    capped = load.at_limit is not None and load.at_limit > CAPPED_MIN
    reason = (
        f"Up to {load.rate_p95:.4g} deliveries a second (p95), each held for up to {long:.3g} s (p99), "
        f"and a fifth more, are {need} at a time. "
    )
    if capped and load.at_limit is not None:
        reason += (
            f"It is at its limit for {_percent(load.at_limit)} of the time, which holds it back: the "
            "rate could be higher than it was."
        )
        need = max(need, current or 0)
    elif current == 0:
        reason += "It asks for no limit, so it takes whatever there is and leaves nothing to others."
    elif current is not None and current > ROOMY_MIN * need:
        reason += (
            f"The limit is {current / need:.0f} times that: a slow client can hold up what others could do."
        )
    elif current is None:
        reason += "What it asks for now was told before the range."
    else:
        reason += "The limit fits."
    evidence = _processing(survival) | {
        "rate_p95_per_s": load.rate_p95,
        "delivered": float(load.delivered),
        "outstanding_max": float(load.outstanding_max),
    }
    if load.at_limit is not None:
        evidence["at_limit_share"] = load.at_limit
    sureness = confidence(survival.n) if p99 is not None else LOW
    name = f"max_outstanding_messages of {load.client}"
    found = [_advice(measured, name, current or None, float(need), reason, evidence, sureness)]
    if measured.bytes_p95 > 0:
        in_bytes = math.ceil(need * measured.bytes_p95)
        why = f"{need} messages of up to {measured.bytes_p95:,.0f} bytes (p95)."
        evidence = {"messages": float(need), "bytes_p95": measured.bytes_p95}
        name = f"max_outstanding_bytes of {load.client}"
        found.append(
            _advice(measured, name, load.max_bytes or None, float(in_bytes), why, evidence, sureness)
        )
    return found


def clients(measured: Measured) -> Advice | None:
    """How many clients the busy minutes need, and how long the backlog takes at the present rates."""
    rates = [one.published / one.seconds for one in measured.minutes if one.published]
    survival = measured.survival
    if not rates or not survival.n:
        return None
    places = [load.max_messages or load.outstanding_max for load in measured.loads]
    concurrency = percentile([float(one) for one in places], 0.5) if places else 1.0
    rate, mean = percentile(rates, 0.95), survival.mean_s
    needed = max(1, math.ceil(rate * mean / (BUSY_MAX * max(concurrency, 1.0)) - 1e-9))
    at_work = [float(one.clients) for one in measured.minutes if one.clients]
    evidence = {
        "n": float(survival.n),
        "publish_rate_p95_per_s": rate,
        "processing_mean_s": mean,
        "messages_at_once_per_client": concurrency,
    }
    reason = (
        f"In busy minutes {rate:.4g} messages a second come in (p95), each is worked on for {mean:.3g} s on "
        f"average, and a client holds {concurrency:.0f} at once, of which 70 % should be busy."
    )
    backlog, said = _drain(measured.minutes)
    current = percentile(at_work, 0.5) if at_work else 0.0
    return _advice(
        measured, "clients", current, float(needed), reason + said, evidence | backlog, confidence(survival.n)
    )


def _drain(minutes: Sequence[Minute]) -> tuple[dict[str, float], str]:
    """The backlog at the end of the range, and how long it takes to drain: as evidence, and in words."""
    if not minutes:
        return {}, ""
    ordered = sorted(minutes, key=lambda one: one.start_us)
    last = ordered[-1]
    if last.backlog is None:
        return {}, ""
    recent = [one for one in ordered if one.start_us > last.start_us - RECENT_MINUTES * 60 * SECOND_US]
    # Minutes without a row are minutes in which nothing happened.
    seconds = (last.start_us - recent[0].start_us) / SECOND_US + last.seconds
    acked = sum(one.acked for one in recent) / seconds
    published = sum(one.published for one in recent) / seconds
    evidence = {"backlog": float(last.backlog), "ack_rate_per_s": acked, "publish_rate_per_s": published}
    if not last.backlog:
        return evidence | {"drain_s": 0.0}, " There is no backlog."
    if acked <= published:
        return evidence, f" The backlog of {last.backlog:,} does not shrink."
    drain = last.backlog / (acked - published)
    return evidence | {"drain_s": drain}, f" The backlog of {last.backlog:,} is gone in {_duration(drain)}."


def max_delivery_attempts(measured: Measured) -> Advice | None:
    total = sum(measured.attempts.values())
    if not total:
        return None
    low, high = DELIVERY_ATTEMPTS
    needed, share = high, 0.0
    for attempts in range(low, high + 1):
        share = sum(n for at, n in measured.attempts.items() if at <= attempts) / total
        if share >= COVERED_MIN:
            needed = attempts
            break
    evidence = {"n": float(total), "covered": share} | {
        f"acked_at_{at}": measured.attempts.get(at, 0) / total for at in range(1, low + 1)
    }
    current = (measured.setting.max_delivery_attempts or None) if measured.setting else None
    reason = f"{_percent(share)} of what is acked at all is acked within {needed} attempts."
    if current is None:
        reason += " There is no dead letter policy now."
    elif current < needed:
        lost = 1 - sum(n for at, n in measured.attempts.items() if at <= current) / total
        reason += f" With {current}, {_percent(lost)} of it would become dead letters."
    return _advice(
        measured, "max_delivery_attempts", current, float(needed), reason, evidence, confidence(total)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered) - 1e-9), 1) - 1]


def _processing(survival: Survival) -> dict[str, float]:
    evidence = {
        "n": float(survival.n),
        "not_seen_to_end": float(survival.censored),
        "processing_mean_s": survival.mean_s,
    }
    for name, share in {"p50": 0.5, "p99": 0.99, "p99_9": 0.999}.items():
        found = survival.quantile_s(share)
        if found is not None:
            evidence[f"processing_{name}_s"] = found
    return evidence


def _advice(
    measured: Measured,
    setting: str,
    current: float | None,
    recommended: float | None,
    reason: str,
    evidence: Mapping[str, float],
    sureness: str,
) -> Advice:
    numbers = [None if value is None else float(value) for value in (current, recommended)]
    return Advice(measured.sub_id, measured.subscription, setting, *numbers, reason, dict(evidence), sureness)


def _percent(share: float) -> str:
    """In words that a person reads: 0 %, below 0.01 %, 1.2 %."""
    if 0 < share < 0.0001:
        return "below 0.01 %"
    return f"{share * 100:.3g} %" if share < 0.9995 else f"{share * 100:.4g} %"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"
