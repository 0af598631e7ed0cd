"""Imports point down, never up and never sideways between shells; the pure rooms touch nothing outside.

The table is the picture in the README, in a form that can be checked. A new room has to be entered here,
which is the moment to think about what it may see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "pubsubd"

DATABASES = frozenset({"sqlite3", "aiosqlite"})

# What a pure room has no use for: the time, ids and chance are handed in, and output leaves as data.
WORLD = DATABASES | {
    *("asyncio", "concurrent", "multiprocessing", "selectors", "signal", "threading", "trio", "anyio"),
    *("grpc", "grpc_health", "grpc_reflection", "grpc_status", "http", "select", "socket", "ssl", "urllib"),
    *("fcntl", "glob", "io", "mmap", "os", "pathlib", "shutil", "subprocess", "tempfile"),
    *("getpass", "logging", "platform", "random", "secrets", "time", "uuid"),
    *("click", "platformdirs"),
    # Would let any of the above in without an import statement.
    *("importlib", "pkgutil", "runpy"),
}
# The same, for what needs no import.
CALLS = frozenset({"open", "print", "input", "__import__"}) | {
    *("date.today", "datetime.now", "datetime.today", "datetime.utcnow"),
}


class Room(NamedTuple):
    """What the modules of a room may import of `pubsubd`, and what they must not import of anything else."""

    may: frozenset[str]
    never: frozenset[str]
    never_call: frozenset[str] = frozenset()


def pure(*may: str) -> Room:
    return Room(frozenset(may), WORLD, CALLS)


def shell(*may: str, never: Iterable[str] = ()) -> Room:
    return Room(frozenset(may), frozenset(never))


ROOMS = {
    # The package itself holds its version and nothing else.
    "": shell(never=WORLD),
    # Message classes; reads its descriptors from a file beside it, once, when imported.
    "wire": shell(never=DATABASES | {"asyncio", "grpc", "random", "socket", "threading", "time", "uuid"}),
    "model": pure("wire"),
    "eod": pure("model"),
    "flow": pure("model"),
    "schema": pure("model", "wire"),
    "broker": pure("eod", "flow", "model", "schema", "wire"),
    # No types of the wire and no SQL: what it moves has been read already and is not yet rows.
    "engine": shell(
        *("broker", "eod", "flow", "journal", "model", "settings", "storage"),
        never=DATABASES | {"google", "grpc"},
    ),
    # Neither knows what the broker is made of, and storage not what a journal record is.
    "journal": shell("eod", "model", never={"grpc"}),
    "storage": shell("model", "settings", never={"grpc"}),
    # A process of its own: reads what the server has committed and never writes to it.
    "roll": shell(
        "broker", "eod", "journal", "model", "storage", "wire", never={"grpc", "aiosqlite", "asyncio"}
    ),
    "server": shell("engine", "eod", "logs", "model", "schema", "settings", "wire", never=DATABASES),
    # HTTP, and the port that it shares with gRPC; what it calls is handed in.
    "rest": shell("model", "wire", never=DATABASES | {"grpc"}),
    "push": shell("engine", "flow", "model", "wire", never=DATABASES | {"grpc"}),
    "settings": shell(never=WORLD - {"pathlib", "platformdirs", "socket"}),
    "logs": shell("settings", never={"grpc"}),
    # Judges servers from outside, so it must not know how ours is made.
    "conform": shell("wire", never=DATABASES),
    "cli": shell("conform", "logs", "server", "settings", never=DATABASES | {"google", "grpc"}),
    "__main__": shell("cli"),
}

# Of these a room may know what the package itself offers, and none of its modules.
INTERFACES = {"server": frozenset({"broker"}), "push": frozenset({"broker"})}

# The one place where a server is put together out of its parts.
COMPOSITION = {
    "pubsubd.server.run": frozenset({"broker", "eod", "flow", "journal", "push", "rest", "storage"}),
    "pubsubd.server.sealing": frozenset({"journal"}),
}


# --- reading -----------------------------------------------------------------------------------------------


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`eod` for `pubsubd.eod.lease`; empty for the package itself, which holds only its version."""
    return module.split(".")[1] if "." in module else ""


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it: an import inside a function points up as well."""
    parts = module.split(".")
    here = parts if is_package else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def is_offered(name: str) -> bool:
    """Whether `name` stands in the `__init__` of its room: `pubsubd.broker.Broker`, not a module of it."""
    parts = name.split(".")
    return len(parts) == 3 and not parts[2].islower()


def breaches(source: str, module: str, is_package: bool = False) -> list[str]:
    """What in a module's source breaks the rule of its room, in words; empty if nothing does."""
    room_name = room_of(module)
    if room_name not in ROOMS:
        return [f"{module} is in no room of the table"]
    room, tree = ROOMS[room_name], ast.parse(source)
    may = room.may | COMPOSITION.get(module, frozenset()) | {room_name}
    found = []
    for name in imports(tree, module, is_package):
        if name.split(".")[0] == PACKAGE:
            # `from pubsubd import __version__` names nothing that is a room.
            offered = room_of(name) in INTERFACES.get(room_name, ()) and is_offered(name)
            if room_of(name) not in may and room_of(name) != "__version__" and not offered:
                found.append(f"{module} imports {name}")
        elif name.split(".")[0] in room.never:
            found.append(f"{module} imports {name}")
    found += [f"{module} calls {name}" for name in calls(tree) if name in room.never_call]
    return found


# --- the rule ----------------------------------------------------------------------------------------------

MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path, ROOT))
def test_imports_point_down(path):
    assert breaches(path.read_text(), module_name(path, ROOT), path.name == "__init__.py") == []


def test_every_room_has_a_place_in_the_table():
    there = {room_of(module_name(path, ROOT)) for path in MODULES}

    assert there <= ROOMS.keys()


def test_the_table_has_no_way_round():
    """A room that is below another one never sees it, by whatever way."""

    def below(room: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
        for lower in ROOMS[room].may - seen:
            seen = below(lower, seen | {lower})
        return seen

    for room in ROOMS:
        assert room not in below(room)


def test_analytics_never_imports_the_server():
    for path in (ROOT / "analytics").rglob("*.py"):
        module = module_name(path, ROOT)
        names = imports(ast.parse(path.read_text()), module, path.name == "__init__.py")
        assert [name for name in names if name.split(".")[0] == PACKAGE] == [], module


# --- the rule's own tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pubsubd.eod.lease", "import time"),
        ("pubsubd.eod.lease", "import os.path"),
        ("pubsubd.eod.lease", "from random import Random"),
        ("pubsubd.eod.lease", "from concurrent.futures import Future"),
        ("pubsubd.eod.lease", "def f():\n    import asyncio"),
        ("pubsubd.eod.lease", "from pubsubd.flow import window"),
        ("pubsubd.eod.lease", "from pubsubd import broker"),
        ("pubsubd.eod.lease", "from ..broker import topics"),
        ("pubsubd.eod.lease", "from .. import engine"),
        ("pubsubd.eod.lease", "import pubsubd.wire.pb"),
        ("pubsubd.model.names", "open('names.txt')"),
        ("pubsubd.model.names", "from datetime import datetime\nnow = datetime.now()"),
        ("pubsubd.storage.rows", "from pubsubd.journal import records"),
        ("pubsubd.journal.records", "from pubsubd.broker import topics"),
        ("pubsubd.engine.loop", "from pubsubd.wire import pb"),
        ("pubsubd.engine.loop", "import sqlite3"),
        ("pubsubd.server.pull", "from pubsubd.storage import rows"),
        ("pubsubd.server.pull", "from pubsubd import cli"),
        ("pubsubd.conform.cases.leases", "from pubsubd.eod import Lease"),
        ("pubsubd.attic.things", ""),
    ],
)
def test_a_breach_is_found(module, source):
    assert breaches(source, module) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "pubsubd.eod.lease",
            "from heapq import heappop\nfrom pubsubd.model import limits\nfrom . import machine",
        ),
        ("pubsubd.broker.topics", "from pubsubd.wire import pb\nfrom ..eod.lease import LeaseTable"),
        ("pubsubd.server.run", "from pubsubd.storage import rows\nfrom pubsubd import __version__"),
        ("pubsubd.storage.rows", "import sqlite3, os, time"),
    ],
)
def test_what_the_table_allows_is_no_breach(module, source):
    assert breaches(source, module) == []


def test_a_relative_import_of_a_package_starts_at_the_package():
    assert breaches("from . import lease", "pubsubd.eod", is_package=True) == []
    assert breaches("from .. import broker", "pubsubd.eod", is_package=True) != []
