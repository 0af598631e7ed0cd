"""What tests of schemas share."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc

from pubsubd.schema.compiled import compiled
from pubsubd.schema.mismatch import Mismatch
from pubsubd.schema.revisions import Prepared
from pubsubd.wire import pb


@cache
def descriptors(definition: str) -> bytes:
    """What the compiler makes of a text, here in this process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schema.proto").write_text(definition)
        out = Path(folder) / "out"
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", "schema.proto"]) == 0
        return out.read_bytes()


def avro(definition: Any) -> Prepared:
    """Of a definition in Python's form: a primitive type is a string without quotes."""
    return avro_text(json.dumps(definition))


def avro_text(text: str) -> Prepared:
    schema = pb.Schema(type=pb.Schema.AVRO, definition=text)
    return Prepared(schema, b"", compiled(schema, b""))


def proto(definition: str) -> Prepared:
    schema = pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, definition=definition)
    return Prepared(schema, descriptors(definition), compiled(schema, descriptors(definition)))


def record(*fields: Any, name: str = "Rec", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def accepts(prepared: Prepared, data: bytes, encoding: int) -> bool:
    try:
        prepared.compiled.check(encoding)(data)
    except Mismatch as mismatch:
        assert mismatch.reason
        return False
    return True


def reason(prepared: Prepared, data: bytes, encoding: int) -> str:
    with pytest.raises(Mismatch) as caught:
        prepared.compiled.check(encoding)(data)
    return caught.value.reason
