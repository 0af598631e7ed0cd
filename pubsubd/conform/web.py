"""Calls of REST/JSON, by the standard library: a connection each, in a thread."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

from pubsubd.conform.calls import CALL_SECONDS_MAX, MESSAGE_SHOWN_MAX
from pubsubd.conform.case import Erred, Failed, NotRun, check
from pubsubd.conform.endpoint import Endpoint


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: dict[str, str] = field(repr=False)  # by names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failed(f"{self} is no JSON.") from None

    def __str__(self) -> str:
        text = self.body.decode(errors="replace")
        shown = text if len(text) <= MESSAGE_SHOWN_MAX else f"{text[:MESSAGE_SHOWN_MAX]}…"
        return f"The answer {self.status} ({' '.join(shown.split())})"


class Web:
    """An endpoint as HTTP/1.1 reaches it."""

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.credentials is not None:
            raise NotRun("REST is asked for in the clear only.")
        self._address = endpoint.address

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """`body` goes as it is if it is bytes, else as JSON."""
        return (await self.all_of([(method, path, body, headers)]))[0]

    async def all_of(self, requests: list[tuple[str, str, Any, dict[str, str] | None]]) -> list[Answer]:
        """The answers to several requests, one after the other on one connection."""
        return await asyncio.to_thread(self._answers, requests)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer that must be 200; `path` is what follows /v1/."""
        answer = await self(method, f"/v1/{path}", body)
        check(answer.status == 200, f"{method} {path}: {answer} is not 200.")
        return answer.json

    async def refused(
        self, status: int, name: str, method: str, path: str, body: Any = None
    ) -> dict[str, Any]:
        """The error of an answer that must have this status of HTTP and this canonical code."""
        answer = await self(method, f"/v1/{path}", body)
        check(answer.status == status, f"{method} {path}: {answer} is not {status}.")
        tree = answer.json
        error = tree.get("error") if isinstance(tree, dict) else None
        if not isinstance(error, dict):
            raise Failed(f"{answer} has no error object.")
        seen = (error.get("code"), error.get("status"))
        check(seen == (status, name), f"The error says {seen[0]} {seen[1]}, not {status} {name}.")
        check(isinstance(error.get("message"), str), "The error has no message.")
        return error

    def _answers(self, requests: list[tuple[str, str, Any, dict[str, str] | None]]) -> list[Answer]:
        host, _, port = self._address.rpartition(":")
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=CALL_SECONDS_MAX)
        try:
            answers = []
            for method, path, body, headers in requests:
                data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                plain = {"Content-Type": "application/json"} if data is not None else {}
                connection.request(method, path, data, {**plain, **(headers or {})})
                response = connection.getresponse()
                named = {name.lower(): value for name, value in response.getheaders()}
                answers.append(Answer(response.status, named, response.read()))
            return answers
        except (OSError, HTTPException) as error:
            words = f"{type(error).__name__}: {error}"
            raise Erred(f"There was no answer over HTTP from {self._address} ({words}).") from error
        finally:
            connection.close()
