"""The server put together: the one place that knows every room."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from filelock import FileLock, Timeout
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from pubsubd import __version__
from pubsubd.engine.engine import Damaged, Engine, Left
from pubsubd.logs import configure
from pubsubd.model import limits
from pubsubd.push import wellknown
from pubsubd.push.pushers import Pushers
from pubsubd.rest.front import CannotListen, Front, listen, upstream_target
from pubsubd.server.admin import SERVICE as ADMIN_SERVICE
from pubsubd.server.admin import Admin
from pubsubd.server.local import LocalCalls
from pubsubd.server.sealing import Place, Sealer, abandon, prepare
from pubsubd.server.service import Service
from pubsubd.settings import LOOPBACK_V4, Durability, Settings, Started, StartupError
from pubsubd.storage.store import StorageFailed, Store, Unusable
from pubsubd.wire.pool import POOL
from pubsubd.wire.services import SERVICES

if TYPE_CHECKING:
    from pubsubd.rest.server import Http, Page

_log = logging.getLogger("pubsubd.server")

# A server that is forgotten stops itself, which `run` says why it must not.
_never_stopped: list[grpc.aio.Server] = []

_OPTIONS = [
    # A second server on the same port must hear that it is taken.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", limits.RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Python's client pings every 30 s on streams without data. By default that is answered with GOAWAY after
    # the second ping, which tears down streams and acks alike.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Calls that pile up while the process is stalled are otherwise refused before a handler sees them, and
    # so without the details that a failed ack needs; see calls.py.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    ("grpc.server_max_unrequested_time_in_server", 3600),
]


async def run(settings: Settings, announce: Callable[[Started], None]) -> str:
    """Serve until SIGTERM or SIGINT; `announce` is called once the server listens.

    Returns a sentence about what it left. The process must end right then, without cleaning up: the gRPC
    server is not stopped, because that ends calls which arrive at that moment with CANCELLED and without
    details. Python's subscriber takes such an ack for a success, and such a stream for its end. A connection
    that just closes is UNAVAILABLE to every client, and tried again.

    Raises:
        StartupError: one sentence for the person who starts the server.
    """
    configure(settings.log_level, settings.log_format)
    stop = _stop_signal()
    with _database_dir(settings) as data_dir:
        lock = _lock(data_dir, settings.durability)
        try:
            store = await _open(data_dir, settings.durability)
            try:
                return await _serve(settings, data_dir, store, announce, stop)
            finally:
                await store.close()
        finally:
            if lock is not None:
                lock.release()


@contextmanager
def _database_dir(settings: Settings) -> Iterator[Path | None]:
    """Where the database is; None: in memory. Another process has to be able to read a journal, so with one
    it is in a temporary directory, which goes at the end; segments stay."""
    if settings.data_dir is not None or not settings.journal:
        yield settings.data_dir
        return
    with tempfile.TemporaryDirectory(prefix="pubsubd-") as directory:
        yield Path(directory)


def _journal_place(settings: Settings, data_dir: Path | None, store: Store) -> Place | None:
    if not settings.journal or data_dir is None:
        return None
    journal_dir = settings.journal_dir
    if journal_dir is None and settings.data_dir is None:
        journal_dir = Path(tempfile.mkdtemp(prefix="pubsubd-journal-"))
    return prepare(data_dir, journal_dir or data_dir / "journal", store.secret)


async def _serve(
    settings: Settings,
    data_dir: Path | None,
    store: Store,
    announce: Callable[[Started], None],
    stop: asyncio.Event,
) -> str:
    engine = Engine(store, settings.journal)
    place = _journal_place(settings, data_dir, store)
    try:
        await engine.start(__version__, place.sealed_seq if place else 0)
    except StorageFailed as failure:
        raise StartupError(f"the database {store.path} cannot be used: {failure}") from failure
    except Damaged as failure:
        raise StartupError(f"the database {store.path} is damaged: {failure}") from failure
    if place is not None and place.sealed_seq > engine.sealed_seq:
        abandon(place)
    sealer = Sealer(engine, place, settings.sealing) if place else None
    service = Service(engine, settings.ack_batch_policy)
    pushing = settings.pushing
    pushers = Pushers(engine, pushing.window, pushing.backs_off, pushing.issuer)
    server = grpc.aio.server(options=_OPTIONS)
    _never_stopped.append(server)
    server.add_generic_rpc_handlers(tuple(service.handlers()))
    healths = _add_health_and_reflection(server)
    front: Front | None = None
    rest = Rest(
        LocalCalls(service.unary()),
        settings.reset,
        lambda path, base_url: wellknown.answer(path, engine.push_key, pushing.issuer, base_url),
    )
    admin = grpc.aio.server(options=_OPTIONS)
    admin.add_generic_rpc_handlers((Admin(engine, store.faults.inject, sealer).handler(),))
    try:
        if settings.rest:
            front, port = _bind_front(server, settings, rest)
        else:
            port = _bind(server, settings.hosts, settings.port)
        admin_port = grpc_port = None
        if settings.grpc_port is not None:
            grpc_port = _bind(server, settings.hosts, settings.grpc_port)
        if settings.admin_port is not None:
            admin_port = _bind(admin, (LOOPBACK_V4,), settings.admin_port)
            await admin.start()
        await server.start()
        if front is not None:
            front.start()
        for name in _public_services():
            await healths.set(name, health_pb2.HealthCheckResponse.SERVING)
        _tune_garbage_collection()
        _raise_descriptor_limit()
    except StartupError:
        _never_stopped.remove(server)
        await server.stop(None)
        await admin.stop(None)
        if front is not None:
            front.close()
        if sealer is not None:
            await sealer.close(last=False)
        await engine.stop()
        raise
    pushers.start()
    segments = place.journal_dir if place and place.refusal is None else None
    announce(Started(port, settings.hosts, admin_port, segments, grpc_port))
    await _until(stop, engine)
    await healths.enter_graceful_shutdown()
    await asyncio.gather(service.close(), pushers.close())
    left = await engine.stop()
    await service.answered()
    if front is not None:
        await rest.answered()
        await front.flushed()
    if sealer is not None:
        await sealer.close(last=True)
    return _farewell(left)


class Rest:
    """REST, which nobody pays for before the first request: its library takes a third of a second to load."""

    def __init__(self, calls: LocalCalls, reset: bool, page: Page) -> None:
        self._calls = calls
        self._reset = reset
        self._page = page
        self._http: Http | None = None
        self._loading = asyncio.Lock()

    async def protocols(self) -> Callable[[], asyncio.Protocol]:
        """What makes protocols for connections of HTTP."""
        async with self._loading:
            if self._http is None:
                # In a thread: streams and calls go on meanwhile.
                module = await asyncio.to_thread(import_module, "pubsubd.rest.server")
                self._http = module.Http(self._calls, self._reset, self._page)
            return self._http

    async def answered(self) -> None:
        if self._http is not None:
            await self._http.answered()


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Until the signal, or until the commit loop ends, which it must not."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([waiting, engine.loop_task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if engine.loop_task.done():
        engine.loop_task.result()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    return stop


def _make(directory: Path, flushed: bool) -> None:
    """Make `directory` and what leads to it; `flushed`: so that it is found again after a loss of power."""
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    if flushed and os.name == "posix":
        for path in new:
            parent = os.open(path.parent, os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)


def _lock(directory: Path | None, durability: Durability) -> FileLock | None:
    if directory is None:
        return None
    try:
        _make(directory, flushed=durability == "power")
        lock = FileLock(directory / "pubsubd.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise StartupError(f"another pubsubd is using the data directory {directory}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StartupError(f"the data directory {directory} cannot be used: {reason}") from error
    return lock


async def _open(data_dir: Path | None, durability: Durability) -> Store:
    try:
        return await Store.open(data_dir, durability)
    except Unusable as error:
        raise StartupError(str(error)) from error


def _bind(server: grpc.aio.Server, hosts: tuple[str, ...], port: int) -> int:
    """Listen on every host, all on one port; 0 picks a free one."""
    bound = port
    for host in hosts:
        address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError:
            bound = 0
        if not bound:
            raise _cannot_listen(address)
    return bound


def _cannot_listen(address: str) -> StartupError:
    return StartupError(
        f"cannot listen on {address}: the port is taken or the address is not this machine's "
        "(--port 0 picks a free port)"
    )


def _bind_front(server: grpc.aio.Server, settings: Settings, rest: Rest) -> tuple[Front, int]:
    """The port that gRPC and REST share, with `server` behind it."""
    try:
        listeners = listen(settings.hosts, settings.port)
    except CannotListen as error:
        raise _cannot_listen(str(error)) from error
    target, name = upstream_target()
    behind: int = server.add_insecure_port(target)
    port: int = listeners[0].getsockname()[1]
    return Front(listeners, name or behind, rest.protocols), port


def _public_services() -> list[str]:
    return [name for name in SERVICES if name != ADMIN_SERVICE]


def _add_health_and_reflection(server: grpc.aio.Server) -> health.aio.HealthServicer:
    healths = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    # Reflection answers from the pool of our message types; these two files come with their libraries.
    for module in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    names = [*_public_services(), health.SERVICE_NAME, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server, pool=POOL)
    return healths


def _raise_descriptor_limit() -> None:
    """A connection of gRPC takes three descriptors on the shared port, and the usual limit is 1024."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, limits.DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_garbage_collection() -> None:
    """What is there now stays, and what is outstanding is too much to be walked every thousand objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _farewell(left: Left) -> str:
    return (
        f"stopped: {left.leased} messages outstanding and {left.waiting} waiting for redelivery "
        f"on {left.subscriptions} subscriptions"
    )
