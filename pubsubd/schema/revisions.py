"""One schema: its revisions, and which of them the messages of a topic are held against.

Revisions are numbered in the order of their creation. A revision that is deleted while a topic names it as a
bound leaves its number behind, so that the bound keeps its place.

Source: Schema, SchemaSettings.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pubsubd.model import errors, limits
from pubsubd.schema.compiled import Check, Compiled, compiled
from pubsubd.wire import pb

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BqII")  # version, next number, revisions, numbers left behind
_REVISION: Final = struct.Struct("<qII")
_GONE: Final = struct.Struct("<q8s")


class Prepared(NamedTuple):
    """A definition that was compiled before the command that stores it."""

    schema: pb.Schema
    descriptors: bytes  # of a text in Protocol Buffers; kept, so that it is compiled once
    compiled: Compiled


class Revision:
    def __init__(
        self, number: int, resource: pb.Schema, descriptors: bytes, ready: Compiled | None = None
    ) -> None:
        """`resource` is the schema as it is shown, whole."""
        self.number = number
        self.resource = resource
        self.descriptors = descriptors
        self._ready = ready

    @property
    def revision_id(self) -> str:
        revision_id: str = self.resource.revision_id
        return revision_id

    @property
    def compiled(self) -> Compiled:
        """Once compiled it stays; after a restart that is when it is first needed."""
        if self._ready is None:
            self._ready = compiled(self.resource, self.descriptors)
        return self._ready

    def again(self, number: int) -> Revision:
        """The same definition as another revision; its id and time are the caller's to set."""
        resource = pb.Schema()
        resource.CopyFrom(self.resource)
        return Revision(number, resource, self.descriptors, self._ready)


class Revisions:
    """A schema, oldest revision first; never without any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.all: list[Revision] = []
        self._next_number = 1
        self._gone: dict[str, int] = {}  # ids of deleted revisions that topics name, and their numbers
        self._ranges: dict[tuple[str, str], list[Revision]] = {}

    @property
    def latest(self) -> Revision:
        return self.all[-1]

    @property
    def type(self) -> int:
        type_: int = self.latest.resource.type
        return type_

    def find(self, revision_id: str) -> Revision:
        for revision in self.all:
            if revision.revision_id == revision_id:
                return revision
        raise errors.not_found(f"{self.name}@{revision_id}")

    def add(self, prepared: Prepared, ids: Sequence[str], now_us: int) -> Revision:
        """A new revision; its id is the first of `ids` that is free."""
        resource = pb.Schema()
        resource.CopyFrom(prepared.schema)
        resource.DiscardUnknownFields()
        resource.name = self.name
        made = Revision(self._next_number, resource, prepared.descriptors, prepared.compiled)
        return self._add(made, ids, now_us)

    def add_again(self, revision: Revision, ids: Sequence[str], now_us: int) -> Revision:
        return self._add(revision.again(self._next_number), ids, now_us)

    def _add(self, revision: Revision, ids: Sequence[str], now_us: int) -> Revision:
        if len(self.all) >= limits.SCHEMA_REVISIONS_MAX:
            raise errors.too_many_revisions(limits.SCHEMA_REVISIONS_MAX)
        taken = {one.revision_id for one in self.all} | self._gone.keys()
        revision.resource.revision_id = next(one for one in ids if one not in taken)
        revision.resource.revision_create_time.FromMicroseconds(now_us)
        self._next_number += 1
        self.all.append(revision)
        self._ranges.clear()
        return revision

    def remove(self, revision: Revision, named: Collection[str]) -> None:
        """`named`: the revision ids that topics have as bounds."""
        if len(self.all) == 1:
            raise errors.only_revision()
        self.all.remove(revision)
        self._gone[revision.revision_id] = revision.number
        self._gone = {one: number for one, number in self._gone.items() if one in named}
        self._ranges.clear()

    def check_range(self, settings: pb.SchemaSettings, kept: Collection[str]) -> None:
        """Refuse bounds that are no revisions or the wrong way round; those in `kept` may be deleted ones.

        Raises:
            NotFound: a bound is no revision.
            InvalidArgument: the first one is newer than the last one.
        """
        for bound in (settings.first_revision_id, settings.last_revision_id):
            if bound and not (bound in kept and bound in self._gone):
                self.find(bound)
        first, last = self._numbers(settings.first_revision_id, settings.last_revision_id)
        if first > last:
            raise errors.bad_argument(
                "schema_settings.first_revision_id", "it is newer than last_revision_id"
            )

    def in_range(self, first_id: str, last_id: str) -> list[Revision]:
        """Those from one bound to the other, newest first; an empty bound is none."""
        found = self._ranges.get((first_id, last_id))
        if found is None:
            first, last = self._numbers(first_id, last_id)
            found = [one for one in reversed(self.all) if first <= one.number <= last]
            self._ranges[first_id, last_id] = found
        return found

    def _numbers(self, first_id: str, last_id: str) -> tuple[int, int]:
        numbers = {one.revision_id: one.number for one in self.all} | self._gone
        return (
            numbers[first_id] if first_id else 0,
            numbers[last_id] if last_id else self._next_number,
        )

    # -- from and to storage ------------------------------------------------------------------------------

    def packed(self) -> bytes:
        parts = [_HEAD.pack(_VERSION, self._next_number, len(self.all), len(self._gone))]
        for revision in self.all:
            resource = revision.resource.SerializeToString()
            parts += (
                _REVISION.pack(revision.number, len(resource), len(revision.descriptors)),
                resource,
                revision.descriptors,
            )
        parts += [_GONE.pack(number, one.encode()) for one, number in self._gone.items()]
        return b"".join(parts)

    @classmethod
    def unpacked(cls, name: str, data: bytes) -> Revisions:
        version, next_number, count, gone_count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"schema version {version} is not {_VERSION}")
        schema = cls(name)
        schema._next_number = next_number
        at = _HEAD.size
        for _ in range(count):
            number, resource_bytes, descriptor_bytes = _REVISION.unpack_from(data, at)
            at += _REVISION.size
            resource = pb.Schema.FromString(data[at : at + resource_bytes])
            at += resource_bytes
            schema.all.append(Revision(number, resource, data[at : at + descriptor_bytes]))
            at += descriptor_bytes
        for _ in range(gone_count):
            number, one = _GONE.unpack_from(data, at)
            schema._gone[one.decode()] = number
            at += _GONE.size
        return schema


def checks(revisions: Sequence[Revision], encoding: int) -> list[tuple[str, Check]]:
    """The id of each revision, and what data in this encoding is checked by."""
    return [(one.revision_id, one.compiled.check(encoding)) for one in revisions]
