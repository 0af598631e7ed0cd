"""Tables as the jobs leave them, made up: all of `SCHEMAS`, several hundred minutes, 25 subscriptions.

Numbers are plausible and follow from one seed. Names try to break out of HTML, of JavaScript and of a
terminal.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.layout import COLUMNS
from analytics.tables import CODES, LATENCIES, MINUTE_COUNTS, SCHEMAS

PREFIX = "projects/demo/subscriptions/"
NASTY = (
    "<script>document.title='owned'</script>",
    "\"quoted\" & 'single' </script><script>document.title='owned'</script>",
    "<b>bold</b>%{y}<img src=x onerror=\"document.title='owned'\">",
    "a-subscription-with-a-name-as-long-as-names-of-pubsub-may-be-" + "x" * 150,
)
NASTY_CLIENT = "grpc-python/1.71 \"<img src=x onerror=document.title='owned'>\" ipv4:10.0.0.7"
NASTY_DETAIL = '{"name": "</script><script>document.title=\'owned\'</script>", "retain_acked": true}'

START_US = 1_795_000_000_000_000 // 60_000_000 * 60_000_000  # a full minute
MINUTE_US = 60_000_000

_TYPES = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "tinyint": pa.int8(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
}


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type of a column's DDL."""
    ddl = ddl.strip()
    if ddl in _TYPES:
        return _TYPES[ddl]
    if inner := re.fullmatch(r"array<(.*)>", ddl):
        return pa.list_(arrow_type(inner[1]))
    if inner := re.fullmatch(r"map<(.*?),(.*)>", ddl):
        return pa.map_(arrow_type(inner[1]), arrow_type(inner[2]))
    if inner := re.fullmatch(r"struct<(.*)>", ddl):
        fields = [field.split(":") for field in inner[1].split(",")]
        return pa.struct([pa.field(name.strip(), arrow_type(type_)) for name, type_ in fields])
    raise ValueError(ddl)


def arrow_schema(name: str) -> pa.Schema:
    """The Arrow schema of a table of `SCHEMAS`, or of `evidence`."""
    if name == "evidence":
        columns = [(column.name, arrow_type(column.type)) for column in COLUMNS]
        return pa.schema([("violation_id", pa.int64()), *columns])
    fields = re.split(r",\s*(?![^<]*>)", SCHEMAS[name])
    return pa.schema([(field.split(" ", 1)[0], arrow_type(field.split(" ", 1)[1])) for field in fields])


def write_table(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write a table as Spark does: a folder with parts, a marker and checksums beside them."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=arrow_schema(name))
    half = len(table) // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        path = folder / f"part-{number:05d}-0c7e.c000.zstd.parquet"
        # Spark writes timestamps in the old 96 bits unless told otherwise.
        pq.write_table(part, path, compression="zstd", use_deprecated_int96_timestamps=True)
        (folder / f".{path.name}.crc").write_bytes(b"crc\0")
    (folder / "_SUCCESS").touch()


def names(subscriptions: int) -> list[str]:
    plain = [f"{word}-{number}" for number in range(9) for word in ("orders", "mail", "audit-trail")]
    return [PREFIX + name for name in [*NASTY, *plain][:subscriptions]]


def timestamp(minute: int) -> int:
    """Microseconds of the beginning of the n-th minute."""
    return START_US + minute * MINUTE_US


class Tables:
    """All tables in memory, as lists of rows by table name: change them, then `write`."""

    def __init__(self, minutes: int = 420, subscriptions: int = 25, seed: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.minutes = minutes
        self.names = names(subscriptions)
        self.sub_ids = list(range(1, subscriptions + 1))
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in [*SCHEMAS, "evidence"]}
        self.run: dict[str, Any] = {}
        for sub_id in self.sub_ids:
            self._health(sub_id)
            self._clients(sub_id)
        self._latency()
        for sub_id in self.sub_ids:
            self._rest(sub_id)
        self._audit()
        self._duplicates()
        self._run()

    def write(self, out: Path, without: tuple[str, ...] = ()) -> Path:
        for name, rows in self.rows.items():
            if name not in without and not name.startswith(("live", "health_stream", "facts")):
                write_table(out, name, rows)
        (out / "_RUN.json").write_text(json.dumps(self.run), encoding="utf-8")
        return out

    def name(self, sub_id: int) -> str:
        return self.names[sub_id - 1]

    def _health(self, sub_id: int) -> None:
        rate = 60 * math.exp(self.random.normal(1.5, 1.0))
        backlog = age = 0
        broken = range(self.minutes // 2, self.minutes // 2 + 40) if sub_id in (1, 6, 9) else range(0)
        for minute in range(self.minutes):
            day = 1 + 0.5 * math.sin(minute / 180)
            published = int(self.random.poisson(rate * day))
            able = published // 5 if minute in broken else int(rate * 2)
            acked = min(backlog + published, able)
            backlog += published - acked
            age = age + 55 if backlog and minute in broken else max(0, age - 90) if backlog else 0
            lost = max(1, published) * (0.2 if minute in broken else 0.004)
            counts = dict.fromkeys(MINUTE_COUNTS, 0)
            expired, nacked = (int(self.random.poisson(lost)) for _ in range(2))
            counts |= {"published": published, "acked": acked, "expired": expired, "nacked": nacked}
            counts["redelivered"] = expired + nacked
            counts["delivered"] = acked + expired + nacked
            counts["bytes"] = counts["delivered"] * 900
            counts["ack_permanent"] = int(self.random.poisson(expired / 2))
            counts["ack_transient"] = int(self.random.poisson(0.01))
            counts["ack_noop"] = int(self.random.poisson(0.05))
            counts["extended"] = acked // 10
            counts["extend_failed"] = int(self.random.poisson(lost / 10))
            counts["reset"] = int(self.random.poisson(lost / 20))
            counts["dead_lettered"] = int(self.random.poisson(0.3)) if minute in broken else 0
            counts["filtered"] = published // 50 if sub_id % 5 == 0 else 0
            row = {"sub_id": sub_id, "subscription": self.name(sub_id), "minute": timestamp(minute)}
            row |= counts | {"clients": 3, "backlog": backlog, "oldest_age_s": float(age)}
            self.rows["health_minute"].append(row)
            if counts["dead_lettered"]:
                self.rows["dead_letter"].append(
                    {
                        "sub_id": sub_id,
                        "topic_id": 90,
                        "minute": timestamp(minute),
                        "n": counts["dead_lettered"],
                        "attempts_p50": 5.0,
                        "age_p50_s": 61.5,
                    }
                )

    def _clients(self, sub_id: int) -> None:
        mine = [row for row in self.rows["health_minute"] if row["sub_id"] == sub_id]
        for minute, row in enumerate(mine):
            shares = self.random.dirichlet([20.0, 20.0, 20.0 if sub_id % 4 else 0.5])
            parts = [int(share * row["delivered"]) for share in shares]
            for client, part in enumerate(parts, 1):
                name = NASTY_CLIENT if client == 1 else f"grpc-go/1.70 10.0.{sub_id}.{client}"
                self.rows["client_minute"].append(
                    {
                        "sub_id": sub_id,
                        "client_id": sub_id * 10 + client,
                        "client": name,
                        "minute": timestamp(minute),
                        "delivered": part,
                        "bytes": part * 900,
                        "acked": int(part * 0.97),
                        "nacked": part // 100,
                        "expired": part // 200,
                        "processing_sum_us": part * 40_000 * client,
                    }
                )
            parts = [part for part in parts if part]
            total = sum(parts)
            if total:
                squares = sum(part * part for part in parts)
                self.rows["fairness"].append(
                    {
                        "sub_id": sub_id,
                        "minute": timestamp(minute),
                        "clients": len(parts),
                        "jain": total * total / (len(parts) * squares),
                        "largest_share": max(parts) / total,
                    }
                )

    def _latency(self) -> None:
        middles = {1: 1_500, 2: 9_000, 5: 60_000, 6: 10_000_000, 9: 90_000}  # us
        for what, middle in middles.items():
            for sub_id in [0] if what == 1 else self.sub_ids:
                total: dict[int, int] = {}
                for minute in range(self.minutes):
                    spread = 0.02 if what == 6 else 0.6
                    slow = 30 if sub_id == 1 and minute > self.minutes // 2 and what != 6 else 1
                    values = middle * slow * np.exp(self.random.normal(0, spread, 12 + 2 * (sub_id % 7)))
                    buckets = np.floor(np.log(values) / 0.02).astype(int)
                    for bucket, n in zip(*np.unique(buckets, return_counts=True), strict=True):
                        total[int(bucket)] = total.get(int(bucket), 0) + int(n)
                        row = {"sub_id": sub_id, "minute": timestamp(minute), "what": what}
                        self.rows["latency"].append(row | {"bucket": int(bucket), "n": int(n)})
                self.rows["latency_quantiles"].append(
                    {"sub_id": sub_id, "what": what, "n": sum(total.values())} | quantiles(total)
                )

    def _rest(self, sub_id: int) -> None:
        messages = 50_000
        for deliveries in range(1, 9):
            self.rows["attempts"].append({"sub_id": sub_id, "deliveries": deliveries, "messages": messages})
            messages //= 5 + sub_id % 3 * 10
        advice = {"sub_id": sub_id, "subscription": self.name(sub_id), "setting": "ack_deadline_seconds"}
        advice |= {"current": 10.0, "recommended": 20.0 + sub_id, "confidence": "high"}
        advice |= {"reason": f"1.2 % of leases of {self.name(sub_id)} expire before the client is done."}
        advice |= {"evidence": [("expired_share_10s", 0.012), ("processing_p99_s", 14.2), ("n", 51_000.0)]}
        if sub_id % 3 == 1:
            self.rows["advice"].append(advice)

    def _audit(self) -> None:
        for sub_id in self.sub_ids:
            mine = [row for row in self.rows["health_minute"] if row["sub_id"] == sub_id]
            total = {key: sum(row[key] for row in mine) for key in MINUTE_COUNTS}
            counts: dict[str, int | None] = dict.fromkeys(CODES, 0)
            verdict = "ok"
            if sub_id in (1, 3):
                verdict = "violated"
                counts |= {"G1_delivered_after_ack": 12, "G4_lost": 2, "G3_repeat_accepted": 1}
            elif sub_id == 5:
                verdict = "not_checked"
                counts |= {"G4_lost": None, "G4_ghost": None}
            exactly_once = sub_id != 7
            if not exactly_once:
                counts["G2_early_redelivery"] = 4
            self.rows["audit_summary"].append(
                {
                    "sub_id": sub_id,
                    "subscription": self.name(sub_id),
                    "exactly_once": exactly_once,
                    "ordered": sub_id % 2 == 0,
                    "messages": total["published"],
                    "deliveries": total["delivered"],
                    "acks_ok": total["acked"],
                    "open": mine[-1]["backlog"],
                    "dead_lettered": total["dead_lettered"],
                    "dropped": 0,
                    "filtered": total["filtered"],
                    "partial": 3,
                    "verdict": verdict,
                }
                | counts
            )
            for code, found in counts.items():
                promised = exactly_once and code != "G3_repeat_accepted"
                for _ in range(found or 0):
                    self._violation(sub_id, code, "violation" if promised else "info")

    def _violation(self, sub_id: int, code: str, severity: str) -> None:
        violation_id = len(self.rows["violations"]) + 1
        seq = 1000 * violation_id
        at_us = timestamp(self.minutes // 3) + violation_id * 1_234_567
        self.rows["violations"].append(
            {
                "violation_id": violation_id,
                "code": code,
                "severity": severity,
                "sub_id": sub_id,
                "subscription": self.name(sub_id),
                "message_id": 70_000 + violation_id,
                "epoch": 0,
                "seq": seq,
                "ts_us": at_us,
                "generation": 2,
                "expected": "no delivery after the ack at seq 12 <i>of</i> generation 1",
                "found": 'DELIVER of generation 2 to "client"',
                "client_id": sub_id * 10 + 1,
            }
        )
        for step, kind in enumerate((1, 2, 5, 9, 2)):
            event = {column.name: 0 for column in COLUMNS} | {"detail": None}
            event |= {"seq": seq - 4 + step, "ts_us": at_us + step, "kind": kind, "sub_id": sub_id}
            event |= {"message_id": 70_000 + violation_id, "generation": 1 + step // 4, "attempt": 1}
            event |= {"client_id": sub_id * 10 + 1, "deadline_us": at_us + 10**7 if kind == 2 else 0}
            if kind == 9:
                event["detail"] = NASTY_DETAIL
            self.rows["evidence"].append(event | {"violation_id": violation_id})

    def _duplicates(self) -> None:
        examples = [{"payload_hash": -5, "messages": 3, "spread_s": 12.5, "first_message_id": 71}]
        row = {"topic_id": 3, "groups": 41, "messages": 90, "max_spread_s": 320.25, "examples": examples}
        self.rows["duplicates"].append(row)

    def _run(self) -> None:
        self.run = {
            "command": "all",
            "exit_status": 1,
            "started_us": timestamp(self.minutes + 5),
            "finished_us": timestamp(self.minutes + 5) + 71_750_000,
            "versions": {"python": "3.11.9", "java": "17.0.12", "pubsubd": "0.1", "pyspark": "4.3.0"},
            "journal": "/data/<journal>",
            "server": "00c0ffee00c0ffee",
            "range": {
                "first_seq": 1,
                "last_seq": 9_876_543,
                "first_us": START_US,
                "last_us": timestamp(self.minutes) - 1,
                "events": 9_876_543,
                "starts_inside": True,
            },
            "complete": True,
            "missing": [],
            "gaps": [],
            "damaged": [],
            "backlog": None,
            "options": {"tolerance_us": 0, "exact": False, "formats": ["parquet", "csv"]},
            "settings": {"spark.master": "local[2]", "spark.driver.memory": "8192m"},
            "counts": {"segments": 8, "events": 9_876_543, "subscriptions": len(self.names)},
            "durations_s": {"facts": 31.25, "audit": 40.5},
        }


def quantiles(buckets: dict[int, int]) -> dict[str, float]:
    """Quantiles in microseconds of counts by bucket, in plain Python."""
    total = sum(buckets.values())
    answer = {}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("max", 1.0)):
        needed = math.ceil(share * total)
        seen = 0
        for bucket in sorted(buckets):
            seen += buckets[bucket]
            if seen >= needed:
                answer[name] = math.exp((bucket + 0.5) * 0.02)
                break
    return answer


assert set(LATENCIES) == {1, 2, 5, 6, 9}
