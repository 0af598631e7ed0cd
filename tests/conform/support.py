"""What tests of the framework put into it: cases that are not of the checklist, and a watcher that notes."""

from __future__ import annotations

import sys

from pubsubd.conform.case import Case, case
from pubsubd.conform.runner import Result

# How a user would have our server started, with every hook.
START_COMMAND = f"{sys.executable} -m pubsubd --port {{port}} --data-dir {{datadir}} --admin {{admin_port}}"


class Cases:
    """A registry of its own; `@cases("CT-90")` registers a body in it."""

    def __init__(self) -> None:
        self.registry: dict[str, Case] = {}

    def __call__(self, case_id: str, **fields):
        return case(case_id, **{"promise": f"Promise of {case_id}.", **fields}, registry=self.registry)

    @property
    def all(self) -> list[Case]:
        return list(self.registry.values())


class Notes:
    """A watcher that remembers what it was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def started(self, case: Case) -> None:
        self.events.append(("started", case.id))

    def finished(self, result: Result) -> None:
        self.events.append(("finished", result.case.id))
