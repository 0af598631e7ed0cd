"""What is said of a request that is not one: all that is wrong with it, in the words of the service.

Source: google/rpc/error_details.proto (BadRequest); the sentences were observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pubsubd.model.errors import InvalidArgument, echo

_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
#: Ours: of a request that is wrong throughout nobody reads more.
_VIOLATIONS_MAX: Final = 20


class Violation(NamedTuple):
    """`field` is where it is: the path of a message in the request, empty for the request itself."""

    field: str
    description: str


class Malformed(InvalidArgument):
    """The request is refused before any rule of the service was asked."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        shown = violations[:_VIOLATIONS_MAX]
        super().__init__(" ".join([violation.description for violation in shown]))
        self.details: list[dict[str, Any]] = [
            {
                "@type": _BAD_REQUEST,
                "fieldViolations": [
                    {"field": field, "description": text} if field else {"description": text}
                    for field, text in shown
                ],
            }
        ]


def bad_json(what: str) -> Violation:
    return Violation("", f"Invalid JSON payload received. {echo(what)}.")


def unknown_name(name: str, at: str) -> Violation:
    where = f" at '{at}'" if at else ""
    return Violation(
        at, f'Invalid JSON payload received. Unknown name "{echo(name)}"{where}: Cannot find field.'
    )


def unknown_parameter(name: str) -> Violation:
    return Violation(
        "",
        f'Invalid JSON payload received. Unknown name "{echo(name)}": Cannot bind query parameter. '
        f"Field '{echo(name)}' could not be found in request message.",
    )


def bad_value(at: str, expected: str, shown: str, why: str = "") -> Violation:
    """`shown` is what was sent, as JSON."""
    tail = f": {why}" if why else ""
    return Violation(at, f"Invalid value at '{at}' ({expected}), {echo(shown)}{tail}")
