"""SchemaService on gRPC. Definitions are compiled here, before a command is given, off the event loop.

The compiler of Protocol Buffers is a process of its own for each definition, which can be killed. In the
server's process it would hold the interpreter while it works: for more than a minute with 15,000 groups in
each other, which fit into a definition. With 20,000 it ends its process by a segmentation fault.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pubsubd.broker import Broker
from pubsubd.engine.engine import Engine
from pubsubd.model import errors, limits
from pubsubd.schema import requests
from pubsubd.schema.compiled import compiled, needs_compiler, refusal
from pubsubd.schema.mismatch import Mismatch
from pubsubd.schema.revisions import Prepared, Revision
from pubsubd.schema.schemas import check_compatible
from pubsubd.server.calls import Context, Handler, parse
from pubsubd.wire import pb

_SOURCE = "schema.proto"
_OUTPUT = "schema.binpb"
_COMPLAINTS_MAX = 3


class SchemaHandlers:
    def __init__(
        self,
        engine: Engine,
        unique: Callable[[], str],
        look: Callable[[Any, Callable[[Broker, Any], Any]], Handler],
        change: Callable[[Any, Callable[[Broker, Any, int], Any]], Handler],
    ) -> None:
        """`unique` makes a text that nobody else makes; `look` and `change` make handlers of commands."""
        self._engine = engine
        self._unique = unique
        self._look = look
        self._change = change
        self._compilers = asyncio.Semaphore(limits.SCHEMA_COMPILERS_MAX)

    def table(self) -> dict[str, Handler]:
        return {
            "CreateSchema": self._create,
            "GetSchema": self._look(pb.GetSchemaRequest, Broker.get_schema),
            "ListSchemas": self._look(pb.ListSchemasRequest, Broker.list_schemas),
            "ListSchemaRevisions": self._look(pb.ListSchemaRevisionsRequest, Broker.list_schema_revisions),
            "CommitSchema": self._commit,
            "RollbackSchema": self._rollback,
            "DeleteSchemaRevision": self._change(
                pb.DeleteSchemaRevisionRequest, Broker.delete_schema_revision
            ),
            "DeleteSchema": self._change(pb.DeleteSchemaRequest, Broker.delete_schema),
            "ValidateSchema": self._validate_schema,
            "ValidateMessage": self._validate_message,
        }

    async def _create(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.CreateSchemaRequest, data)
        requests.check_create(request)
        prepared = await self._prepared(request.schema)
        broker = await self._engine.broker()
        made = broker.create_schema(request, prepared, self._unique(), self._engine.now_us())
        return await self._settled(made)

    async def _commit(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.CommitSchemaRequest, data)
        requests.check_commit(request)
        prepared = await self._prepared(request.schema)
        earlier = (await self._engine.broker()).schemas.earlier(request.name)
        await asyncio.to_thread(_compare, prepared, earlier)
        # What came meanwhile is looked at by the command itself.
        broker = await self._engine.broker()
        now_us = self._engine.now_us()
        made = broker.commit_schema(request, prepared, earlier, self._unique(), now_us)
        return await self._settled(made)

    async def _rollback(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.RollbackSchemaRequest, data)
        broker = await self._engine.broker()
        return await self._settled(broker.rollback_schema(request, self._unique(), self._engine.now_us()))

    async def _validate_schema(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.ValidateSchemaRequest, data)
        requests.check_validate_schema(request)
        await self._prepared(request.schema)
        return b""

    async def _validate_message(self, data: bytes, context: Context) -> bytes:
        request = parse(pb.ValidateMessageRequest, data)
        requests.check_validate_message(request)
        if request.WhichOneof("schema_spec") == "name":
            return await self._look(pb.ValidateMessageRequest, Broker.validate_message)(data, context)
        prepared = await self._prepared(request.schema)
        await asyncio.to_thread(_check_message, prepared, request)
        return b""

    async def _settled(self, made: pb.Schema) -> bytes:
        response: bytes = made.SerializeToString()
        await self._engine.settled()
        return response

    async def _prepared(self, schema: pb.Schema) -> Prepared:
        """`schema` compiled, which took a thread, and for a text in Protocol Buffers a process."""
        async with self._compilers:
            return await asyncio.to_thread(_prepare, schema)


def _prepare(schema: pb.Schema) -> Prepared:
    descriptors = _descriptors(schema.definition) if needs_compiler(schema) else b""
    return Prepared(schema, descriptors, compiled(schema, descriptors))


def _compare(prepared: Prepared, earlier: list[Revision]) -> None:
    for revision in reversed(earlier):
        check_compatible(prepared, revision)


def _check_message(prepared: Prepared, request: pb.ValidateMessageRequest) -> None:
    try:
        prepared.compiled.check(request.encoding)(request.message)
    except Mismatch as mismatch:
        raise refusal(prepared.schema.type, request.encoding, mismatch) from None


def _descriptors(definition: str) -> bytes:
    """The FileDescriptorSet that the compiler makes of a text.

    Raises:
        InvalidArgument: the text is no definition, with what the compiler says.
    """
    with tempfile.TemporaryDirectory(prefix="pubsubd-schema-") as folder:
        source, output = Path(folder, _SOURCE), Path(folder, _OUTPUT)
        source.write_text(definition, encoding="utf-8", newline="")
        command = [sys.executable, "-m", "grpc_tools.protoc"]
        command += [f"-I{folder}", f"--descriptor_set_out={output}", _SOURCE]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limits.SCHEMA_COMPILE_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            raise errors.bad_definition("the compiler took too long") from None
        if done.returncode != 0:
            raise errors.bad_definition(_complaint(done.stderr.decode(errors="replace")))
        return output.read_bytes()


def _complaint(said: str) -> str:
    """Its first lines, with line and column and without the path; a compiler that crashed left none."""
    lines = [line.partition(_SOURCE)[2].lstrip(": ") for line in said.splitlines() if _SOURCE in line]
    return "; ".join(lines[:_COMPLAINTS_MAX]).rstrip(".") or "the compiler failed"
