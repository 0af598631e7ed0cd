"""Every table that a job leaves in OUT: columns, types and units, as Spark DDL.

`_us` is microseconds, `_s` seconds, `minute` the UTC minute that begins then.
"""

from __future__ import annotations

#: Codes of what the audit finds; each has a count column of its name in `audit_summary`.
CODES = (
    "G0_reference",
    "G1_delivered_after_ack",
    "G1_delivered_after_seek",
    "G2_early_redelivery",
    "G2_early_expire",
    "G3_valid_rejected",
    "G3_invalid_accepted",
    "G3_repeat_accepted",
    "G4_lost",
    "G4_ghost",
    "G5_out_of_order",
    "G5_skipped",
    "G5_redelivery_gap",
)

#: Counts of health_minute that are sums over events; live and final of the stream have them too.
MINUTE_COUNTS = (
    "published",
    "delivered",
    "redelivered",
    "bytes",
    "acked",
    "ack_permanent",
    "ack_transient",
    "ack_noop",
    "nacked",
    "expired",
    "reset",
    "extended",
    "extend_failed",
    "dead_lettered",
    "dropped",
    "filtered",
)

#: `what` of latency and latency_quantiles.
LATENCIES = {
    1: "publish",
    2: "publish to first delivery",
    5: "delivery to ack",
    6: "lease held at expiry",
    9: "publish to ack",
}

_COUNTS = ", ".join(f"{name} bigint" for name in MINUTE_COUNTS)

SCHEMAS = {
    "facts": (
        "sub_id int, message_id bigint, epoch int, pub_us bigint, okey bigint, first_seq bigint, "
        "first_us bigint, last_us bigint, deliveries int, attempts int, extends int, nacks int, expires int, "
        "resets int, ack_fails int, acks int, ack_us bigint, gone_us bigint, owed boolean, partial boolean, "
        "violations int, v_kind array<tinyint>, v_seq array<bigint>"  # v_kind: index in CODES
    ),
    "violations": (
        "violation_id bigint, code string, severity string, sub_id int, subscription string, "
        "message_id bigint, epoch int, seq bigint, ts_us bigint, generation int, expected string, "
        "found string, client_id int"
    ),
    "audit_summary": (
        "sub_id int, subscription string, exactly_once boolean, ordered boolean, messages bigint, "
        "deliveries bigint, acks_ok bigint, open bigint, dead_lettered bigint, dropped bigint, "
        "filtered bigint, partial bigint, " + "".join(f"{code} bigint, " for code in CODES) + "verdict string"
    ),
    "health_minute": (
        f"sub_id int, subscription string, minute timestamp, {_COUNTS}, clients int, backlog bigint, "
        "oldest_age_s double"
    ),
    "latency": "sub_id int, minute timestamp, what int, bucket int, n bigint",
    "latency_quantiles": (
        "sub_id int, what int, n bigint, p50 double, p90 double, p99 double, p99_9 double, max double"
    ),
    "client_minute": (
        "sub_id int, client_id int, client string, minute timestamp, delivered bigint, bytes bigint, "
        "acked bigint, nacked bigint, expired bigint, processing_sum_us bigint"
    ),
    "fairness": "sub_id int, minute timestamp, clients int, jain double, largest_share double",
    "attempts": "sub_id int, deliveries int, messages bigint",
    "dead_letter": (
        "sub_id int, topic_id int, minute timestamp, n bigint, attempts_p50 double, age_p50_s double"
    ),
    "duplicates": (
        "topic_id int, groups bigint, messages bigint, max_spread_s double, "
        "examples array<struct<payload_hash: bigint, messages: bigint, spread_s: double, "
        "first_message_id: bigint>>"
    ),
    "advice": (
        "sub_id int, subscription string, setting string, current double, recommended double, "
        "reason string, evidence map<string,double>, confidence string"
    ),
    # Of the stream. `live` has one folder a batch; its sums over batches are exact.
    "live": f"sub_id int, minute timestamp, {_COUNTS}",
    "live_latency": "sub_id int, minute timestamp, what int, bucket int, n bigint",
    "health_stream": f"sub_id int, minute timestamp, {_COUNTS}",
}
