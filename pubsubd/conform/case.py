"""What a case is: a promise in one sentence, and a body that returns what it saw or raises why it could not.

Cases are registered under their public ids (CT-01) by the decorator `case`, and judged with `check`. The
outcome follows from how the body ends: a returned sentence is a pass, `Failed` a broken promise, `Differs`
another choice than the checklist prefers, where the contract leaves one, `NotRun` something that this
endpoint cannot be asked for, and anything else an error, by which nothing is known about the promise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsubd.conform.lab import Lab

Body = Callable[["Lab"], Awaitable[str]]

GROUPS = {
    "CT": "Tunnelled results",
    "CS": "StreamingPull",
    "CE": "Exactly-once state machine",
    "CN": "Without exactly-once",
    "CO": "Ordering",
    "CD": "Delivery attempts and dead letters",
    "CM": "Schemas",
    "CP": "Push",
    "CR": "REST",
}

LIBRARIES = {"P": "Python", "N": "Node", "G": "Go", "J": "Java", "X": "C++"}


class Failed(AssertionError):
    """The promise is broken; the text says what was seen instead."""


class Differs(Exception):
    """The contract leaves a choice open, and this endpoint takes another one than the checklist prefers."""


class NotRun(Exception):
    """What the case needs cannot be had here, so it says nothing about the endpoint."""


class Erred(Exception):
    """Nothing is known about the promise; the text says what came between."""


class Hook(StrEnum):
    """What a case does to a server beyond calling it; the value is how a report names it."""

    RESTART = "a server that may be killed and keeps its data"
    STOP = "a server that may be stopped in order"
    FAULTS = "a server with injected faults"


def check(condition: object, seen: str) -> None:
    """Raises `Failed` with the sentence of what was seen, unless the condition holds.

    An `assert` would do nothing under `python -O`, and would speak of variables.
    """
    if not condition:
        raise Failed(seen)


@dataclass(frozen=True)
class Case:
    """One promise and how it is put to the test."""

    id: str
    promise: str
    body: Body
    critical: str = ""  # letters of LIBRARIES: clients that lose, duplicate, hang or stop without it
    needs: tuple[Hook, ...] = ()
    alone: bool = False
    seconds: float = 5.0
    seconds_max: float = 45.0
    short: str = ""  # what the short form leaves out; empty when there is only one form

    @property
    def group(self) -> str:
        return self.id.split("-")[0]

    @property
    def libraries(self) -> list[str]:
        """Names of the client libraries that depend on the promise."""
        return [LIBRARIES[letter] for letter in self.critical]

    def form(self, full: bool) -> str:
        """Which form a run uses: `as written` when there is only one."""
        return "as written" if not self.short else "full" if full else "short"


REGISTRY: dict[str, Case] = {}


def case(
    case_id: str,
    *,
    promise: str,
    critical: str = "",
    needs: Sequence[Hook] = (),
    alone: bool = False,
    seconds: float = 5.0,
    seconds_max: float | None = None,
    short: str = "",
    registry: dict[str, Case] | None = None,
) -> Callable[[Body], Body]:
    """Registers an `async def` that takes a `Lab` and returns the sentence of what it saw.

    `seconds` is about how long it takes: the longest start first. `seconds_max` is its bound, in either
    form; three times `seconds` and half a minute unless given. `alone` is for loads that would disturb the
    timing of others. `short` says what the short form leaves out; such a body asks `lab.full`.
    """
    if case_id.split("-")[0] not in GROUPS:
        raise ValueError(f"{case_id} is in none of the groups {', '.join(GROUPS)}")
    if not set(critical) <= LIBRARIES.keys():
        raise ValueError(f"{case_id}: {critical!r} names a library that is not one of {', '.join(LIBRARIES)}")
    known = REGISTRY if registry is None else registry

    def register(body: Body) -> Body:
        if case_id in known:
            raise ValueError(f"{case_id} is registered twice")
        known[case_id] = Case(
            case_id,
            promise,
            body,
            critical,
            tuple(needs),
            alone,
            seconds,
            3 * seconds + 30 if seconds_max is None else seconds_max,
            short,
        )
        return body

    return register
