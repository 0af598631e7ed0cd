"""What was measured, what it should be, and both as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SCENARIO_ORDER = [
    "start",
    "publish",
    "drain",
    "drain with receipt modacks",
    "latency",
    "idle",
    "backlog",
    "filter",
    "ordered",
    "push",
    "seek",
    "schema",
]
#: The server that the goals are about.
GOAL_TARGET = "pubsubd"


@dataclass(frozen=True)
class Key:
    scenario: str
    measure: str
    unit: str


@dataclass(frozen=True)
class Goal:
    scenario: str
    measure: str
    relation: str
    bound: float

    def is_met(self, value: float) -> bool:
        if self.relation == "≥":
            return value >= self.bound
        return value < self.bound if self.relation == "<" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


GOALS = [
    Goal("publish", "server CPU per message", "≤", 35),
    Goal("drain", "server CPU per message", "≤", 22),
    Goal("drain", "server CPU, times the null server's", "≤", 2.5),
    Goal("drain", "rate, times the emulator's", "≥", 20),
    Goal("latency", "p50", "≤", 4),
    Goal("latency", "p99", "≤", 25),
    Goal("backlog", "peak memory", "<", 250),
    Goal("backlog", "start on the large backlog", "<", 2),
    Goal("backlog", "drain rate, times that of the small backlog", "≥", 0.8),
    Goal("idle", "share of a core", "<", 1),
    Goal("idle", "share of a core, clients pinging", "<", 2),
    Goal("start", "exec to first answer", "<", 0.8),
    Goal("filter", "added by the filter, none match", "≤", 2),
    Goal("filter", "added by the filter, half match", "≤", 2),
    Goal("filter", "added by the filter, all match", "≤", 2),
    Goal("ordered", "one message a key: rate, times that without keys", "≥", 0.75),
    Goal("ordered", "five messages a key: rate, times that without keys", "≥", 0.75),
    Goal("ordered", "beside a held key: rate, times that without keys", "≥", 0.75),
    Goal("ordered", "one message a key: peak memory", "<", 250),
    Goal("ordered", "five messages a key: peak memory", "<", 250),
    Goal("push", "rate", "≥", 1500),
    Goal("push", "server CPU per message", "≤", 500),
    Goal("push", "an endpoint that is down: share of a core", "<", 1),
    Goal("seek", "answer, to a snapshot", "<", 1),
    Goal("seek", "answer, to the middle", "<", 1),
    Goal("seek", "answer, to the beginning", "<", 1),
    Goal("seek", "answer, to now", "<", 1),
    Goal("seek", "another subscription's p99, beside seeks", "≤", 25),
    Goal("schema", "Avro in BINARY: times that without", "≤", 3),
    Goal("schema", "Avro in JSON: times that without", "≤", 3),
    Goal("schema", "Protocol Buffers in BINARY: times that without", "≤", 3),
    Goal("schema", "Protocol Buffers in JSON: times that without", "≤", 3),
    Goal("publish", "rate, times the old server's", "≥", 0.9),
    Goal("publish", "server CPU, times the old server's", "≤", 1.1),
    Goal("publish", "server CPU, times the old server's, both at once", "≤", 1.1),
    Goal("drain", "rate, times the old server's", "≥", 0.9),
    Goal("drain", "server CPU, times the old server's", "≤", 1.1),
    Goal("drain", "server CPU, times the old server's, both at once", "≤", 1.1),
]


@dataclass
class Results:
    values: dict[Key, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, scenario: str, measure: str, unit: str, target: str, value: float | None) -> None:
        """Several values of one measure are repeats; the table shows their median."""
        if value is not None:
            self.values.setdefault(Key(scenario, measure, unit), {}).setdefault(target, []).append(value)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def get(self, scenario: str, measure: str, target: str) -> list[float]:
        for key, by_target in self.values.items():
            if (key.scenario, key.measure) == (scenario, measure):
                return by_target.get(target, [])
        return []

    def add_ratio(self, scenario: str, measure: str, of: str, base: str) -> None:
        """Each target's `of` against that of target `base` in the same repeat."""
        by_target = next((v for k, v in self.values.items() if (k.scenario, k.measure) == (scenario, of)), {})
        bases = by_target.get(base, [])
        for target, values in by_target.items():
            if target != base:
                for value, base_value in zip(values, bases, strict=False):
                    if base_value:
                        self.add(scenario, measure, "x", target, value / base_value)

    def goals(self) -> list[tuple[Goal, float | None]]:
        """Every goal with its measured median, None where it was not measured."""
        found = []
        for goal in GOALS:
            values = self.get(goal.scenario, goal.measure, GOAL_TARGET)
            found.append((goal, statistics.median(values) if values else None))
        return found

    def missed(self) -> list[Goal]:
        return [goal for goal, value in self.goals() if value is not None and not goal.is_met(value)]

    def as_json(self) -> dict[str, Any]:
        return {
            "measures": [
                {
                    "scenario": key.scenario,
                    "measure": key.measure,
                    "unit": key.unit,
                    "target": target,
                    "median": statistics.median(values),
                    "values": values,
                }
                for key, by_target in self.values.items()
                for target, values in by_target.items()
            ],
            "goals": [
                {
                    "scenario": goal.scenario,
                    "measure": goal.measure,
                    "goal": str(goal),
                    "measured": value,
                    "met": None if value is None else goal.is_met(value),
                }
                for goal, value in self.goals()
            ],
            "notes": self.notes,
        }

    def as_table(self, targets: Sequence[str]) -> str:
        goals = {(goal.scenario, goal.measure): (goal, value) for goal, value in self.goals()}
        rows = [["", "", "goal", *targets, ""]]
        scenario = ""
        for key, by_target in sorted(self.values.items(), key=lambda item: scenario_order(item[0].scenario)):
            if key.scenario != scenario:
                scenario = key.scenario
                rows.append([scenario, *[""] * (len(targets) + 3)])
            goal, value = goals.get((key.scenario, key.measure), (None, None))
            verdict = "" if goal is None or value is None else "met" if goal.is_met(value) else "MISSED"
            cells = [show(by_target.get(target, [])) for target in targets]
            rows.append([f"  {key.measure}", key.unit, str(goal or ""), *cells, verdict])
        return "\n".join([*align(rows), *(f"note: {note}" for note in self.notes)])


def scenario_order(scenario: str) -> int:
    return SCENARIO_ORDER.index(scenario) if scenario in SCENARIO_ORDER else len(SCENARIO_ORDER)


def show(values: Sequence[float]) -> str:
    if not values:
        return "-"
    value = statistics.median(values)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            # Names to the left, numbers to the right.
            cell.ljust(width) if column < 2 or column == len(row) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
