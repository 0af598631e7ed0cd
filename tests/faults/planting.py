"""Replaces source text of a module while it is imported.

Nothing on disk changes. A text that is not there, or is there more often than expected, is an error at once,
so that a fault cannot silently plant nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """In the source of `module`, `old` becomes `new`; it is there `count` times."""

    module: str
    old: str
    new: str
    count: int = 1


class PlantingError(Exception):
    """The source is not what the patch was written for, or it is too late for it."""


def patched(source: str, patch: Patch) -> str:
    found = source.count(patch.old)
    if found != patch.count:
        raise PlantingError(f"{patch.module} has {patch.old!r} {found} times, not {patch.count}")
    if patch.new == patch.old:
        raise PlantingError(f"{patch.module}: {patch.old!r} would stay as it is")
    return source.replace(patch.old, patch.new)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, patches: Sequence[Patch]) -> None:
        super().__init__(name, path)
        self._patches = patches

    def get_code(self, fullname: str) -> CodeType:
        # Not from the cache of compiled modules, and not into it.
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        source = super().get_data(path).decode()
        for patch in self._patches:
            source = patched(source, patch)
        return source.encode()


class _Finder:
    def __init__(self, patches: Sequence[Patch]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patches = [patch for patch in self._patches if patch.module == name]
        if not patches:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.origin is not None, name
        spec.loader = _Loader(name, spec.origin, patches)
        return spec


def plant(patches: Sequence[Patch]) -> None:
    """From here on the modules are what `patches` make of them; they must not be imported yet.

    Raises:
        PlantingError: a patch does not fit.
    """
    for patch in patches:
        if patch.module in sys.modules:
            raise PlantingError(f"{patch.module} is imported already")
    finder: Any = _Finder(patches)
    sys.meta_path.insert(0, finder)
    for patch in patches:
        importlib.import_module(patch.module)
