"""HTTP/1: a request comes in, an RPC is called in this process, its answer goes out as JSON.

The rules of what a request means are in `routes`, `reading` and `writing`; this is what touches HTTP. It
knows no gRPC: what it calls is handed in.

Source: https://cloud.google.com/pubsub/docs/reference/rest, https://cloud.google.com/apis/docs/system-parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from aiohttp import HttpVersion11, web
from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from pubsubd.model import limits
from pubsubd.model.errors import InvalidArgument, NotFound, PubsubError, bad_argument, request_too_large
from pubsubd.rest.front import peer_name
from pubsubd.rest.malformed import Malformed
from pubsubd.rest.reading import parse_json, read_request
from pubsubd.rest.routes import Match, find
from pubsubd.rest.writing import CODES, HTTP_STATUS, error_tree, text_of, tree_of

#: Path of a method, serialised request, user agent, peer. True and the response, or False and the
#: google.rpc.Status of a refusal, both serialised.
Call = Callable[[str, bytes, str, str], Awaitable[tuple[bool, bytes]]]
#: What else there is to read, by its path and the address that the request came to; None: nothing is there.
Page = Callable[[str, str], bytes | None]

#: The path by which `Call` knows what deletes everything.
RESET: Final = "reset"

_JSON: Final = "application/json"
#: https://cloud.google.com/apis/docs/system-parameters; every name also without the dollar.
_SYSTEM: Final = frozenset(
    {
        *("access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser"),
        *("uploadType", "upload_protocol", "userIp", "xgafv", ".xgafv", "userProject", "unique", "trace"),
    }
)
_METHODS: Final = "GET, POST, PUT, PATCH, DELETE, OPTIONS"

_log = logging.getLogger("pubsubd.rest")
# What the library says of connections that broke or never spoke HTTP: nothing that anybody can act on.
_library_log = logging.getLogger("pubsubd.rest.connections")
_library_log.setLevel(logging.CRITICAL)


class _Style(NamedTuple):
    """How the caller wants its answer written."""

    pretty: bool = True
    enums_as_numbers: bool = False


class _Connection(web.RequestHandler):
    """Answers what is no HTTP as everything else that is refused is answered, and logs none of it."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500 and not isinstance(exc, ConnectionError):
            _log.error("a request could not be answered; this is a bug in pubsubd", exc_info=exc)
            refused = error_tree("INTERNAL", "The server failed to answer the request; see its log.")
        else:
            refused = error_tree("INVALID_ARGUMENT", "The request is not HTTP.")
        response = web.Response(status=status, text=text_of(refused), content_type=_JSON, charset="UTF-8")
        response.force_close()
        return response


class Http:
    """Makes protocols for connections; remembers which requests are being answered."""

    def __init__(self, call: Call, reset: bool, page: Page = lambda path, base_url: None) -> None:
        """`reset`: whether POST /reset is served."""
        self._call = call
        self._reset = reset
        self._page = page
        self._answering: set[object] = set()
        self._all_answered = asyncio.Event()
        self._server = web.Server(self._handle, request_factory=_request, handler_cancellation=True)

    def __call__(self) -> asyncio.Protocol:
        return _Connection(
            self._server,
            loop=asyncio.get_running_loop(),
            logger=_library_log,
            access_log=_library_log,
            keepalive_timeout=limits.HTTP_KEEP_ALIVE_SECONDS,
            lingering_time=limits.HTTP_LINGER_SECONDS,
        )

    async def answered(self) -> None:
        """Until no request is being answered, or the time for that is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.ANSWER_SECONDS_MAX):
                while self._answering:
                    self._all_answered.clear()
                    await self._all_answered.wait()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        me = object()
        self._answering.add(me)
        try:
            response = await self._answer(request)
            # Written here and not by who called, so that it counts as answered when it is written.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            self._answering.discard(me)
            if not self._answering:
                self._all_answered.set()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        style = _Style()
        try:
            target = _target(request)
            path, _, query = target.partition("?")
            method = request.method
            if method == "POST":
                method = request.headers.get("X-HTTP-Method-Override", method).upper()
            if method == "OPTIONS":
                return _dressed(request, web.Response())
            plain = self._plain(method, path, f"http://{request.host}")
            if plain is not None:
                return _dressed(request, plain)
            if method == "POST" and path == "/reset" and self._reset:
                await self._called(RESET, b"", request)
                return _dressed(request, web.Response(text="Ok"))
            match = find(method, path)
            if match is None:
                raise NotFound(f"There is nothing at {method} {path}.")
            parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=limits.HTTP_PARAMETERS_MAX)
            style = _style(parameters)
            tree = await self._rpc(match, parameters, request, style)
            return _dressed(request, _json(tree, style))
        except _Refused as refused:
            return _dressed(request, _json(refused.tree, style, refused.http_status))
        except PubsubError as error:
            details = error.details if isinstance(error, Malformed) else None
            tree = error_tree(error.status, error.message, details)
            return _dressed(request, _json(tree, style, HTTP_STATUS[error.status]))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            _log.exception("a request could not be handled; this is a bug in pubsubd")
            tree = error_tree("INTERNAL", "The server failed to handle the request; see its log.")
            return _dressed(request, _json(tree, style, 500))

    def _plain(self, method: str, path: str, base_url: str) -> web.Response | None:
        if method not in ("GET", "HEAD"):
            return None
        if path in ("", "/"):
            return web.Response(text="Ok")
        page = self._page(path, base_url)
        return None if page is None else web.Response(body=page, content_type=_JSON, charset="UTF-8")

    async def _rpc(
        self, match: Match, parameters: list[tuple[str, str]], request: web.BaseRequest, style: _Style
    ) -> Any:
        body = await _body(request)
        tree = parse_json(body) if match.body else {}
        ours = [(name, value) for name, value in parameters if not _is_system(name)]
        message = read_request(match.method.request, match.fields, match.body, tree, ours)
        data = await self._called(match.method.path, message.SerializeToString(), request)
        return tree_of(match.method.response.FromString(data), style.enums_as_numbers)

    async def _called(self, path: str, data: bytes, request: web.BaseRequest) -> bytes:
        agent = request.headers.get("User-Agent", "")
        address = request.transport.get_extra_info("peername") if request.transport is not None else None
        peer = peer_name(address) if address else ""
        ok, answer = await self._call(path, data, agent, peer)
        if not ok:
            raise _Refused(status_pb2.Status.FromString(answer))
        return answer


class _Refused(Exception):
    """An RPC was answered with a status."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        name, self.http_status = CODES[status.code]
        self.tree = error_tree(name, status.message, [_detail(detail) for detail in status.details])


def _detail(detail: Message) -> Any:
    return json_format.MessageToDict(detail, descriptor_pool=Default())


# What details are: they have to be known before they can be written.
assert error_details_pb2.DESCRIPTOR


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=limits.HTTP_BODY_BYTES_MAX,
    )


def _target(request: web.BaseRequest) -> str:
    """Path and query as they were sent, from whichever form of a request line."""
    raw = request.raw_path
    if raw.startswith("/"):
        return raw.partition("#")[0]
    found = urlsplit(raw)
    return f"{found.path or '/'}?{found.query}"


async def _body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > limits.HTTP_BODY_BYTES_MAX:
        raise request_too_large(limits.HTTP_BODY_BYTES_MAX)
    expected = request.headers.get("Expect", "").lower() == "100-continue"
    if expected and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        async with asyncio.timeout(limits.HTTP_BODY_SECONDS_MAX):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise request_too_large(limits.HTTP_BODY_BYTES_MAX) from None
    except TimeoutError:
        raise InvalidArgument("The body of the request did not arrive in time.") from None
    except (web.RequestPayloadError, ValueError):
        raise InvalidArgument("The body of the request cannot be read.") from None


def _is_system(name: str) -> bool:
    return name.removeprefix("$") in _SYSTEM


def _style(parameters: list[tuple[str, str]]) -> _Style:
    """What the system parameters ask for.

    Raises:
        InvalidArgument: a form that is not served.
    """
    given = {name.removeprefix("$"): value for name, value in parameters if _is_system(name)}
    form, *options = given.get("alt", "json").split(";")
    if form != "json":
        raise bad_argument("alt", f"'{form[:40]}' is not served, only json is")
    pretty = given.get("prettyPrint", "true").lower() not in ("false", "0")
    return _Style(pretty, "enum-encoding=int" in options)


def _json(tree: Any, style: _Style, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text_of(tree, style.pretty), content_type=_JSON, charset="UTF-8")


def _dressed(request: web.BaseRequest, response: web.Response) -> web.Response:
    """Pages of any origin may use the server, as they may use the emulator."""
    headers: Mapping[str, str] = request.headers
    response.headers["Server"] = "pubsubd"
    response.headers["Access-Control-Allow-Origin"] = headers.get("Origin", "*")
    if "Origin" in headers:
        response.headers["Vary"] = "Origin"
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = _METHODS
        response.headers["Access-Control-Allow-Headers"] = headers.get("Access-Control-Request-Headers", "*")
        response.headers["Access-Control-Max-Age"] = "3600"
    return response
