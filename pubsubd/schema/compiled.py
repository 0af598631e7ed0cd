"""One definition, ready to be used: the same questions to both languages.

The modules of the languages are imported where they are needed: a server without schemas never pays for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pubsubd.model import errors, limits
from pubsubd.schema.mismatch import Mismatch
from pubsubd.wire import pb

if TYPE_CHECKING:
    from pubsubd.schema import avro
    from pubsubd.schema.proto import ProtoSchema

#: Raises Mismatch unless the data of a message fits.
Check = Callable[[bytes], None]

ENCODINGS: Final = {pb.JSON: "JSON", pb.BINARY: "BINARY"}
_LANGUAGES: Final = {pb.Schema.AVRO: "AVRO", pb.Schema.PROTOCOL_BUFFER: "PROTO"}


class AvroCompiled:
    def __init__(self, definition: str) -> None:
        from pubsubd.schema import avro, avro_binary, avro_json

        self.type: avro.Type = avro.parse(definition)
        self._checks = {
            pb.JSON: avro_json.json_check(self.type),
            pb.BINARY: avro_binary.binary_check(self.type),
        }

    def check(self, encoding: int) -> Check:
        return self._checks[encoding]

    def check_compatible(self, earlier: Compiled) -> None:
        """Raise Mismatch unless what is written with either can be read with the other."""
        from pubsubd.schema.avro_resolution import check_readable

        assert isinstance(earlier, AvroCompiled)
        check_readable(self.type, earlier.type)
        check_readable(earlier.type, self.type)


class ProtoCompiled:
    def __init__(self, schema: ProtoSchema) -> None:
        self._schema = schema
        self._checks: dict[int, Check] = {pb.JSON: schema.check_json, pb.BINARY: schema.check_binary}

    def check(self, encoding: int) -> Check:
        return self._checks[encoding]

    def check_compatible(self, earlier: Compiled) -> None:
        """As that of Avro."""
        assert isinstance(earlier, ProtoCompiled)
        self._schema.check_compatible(earlier._schema)


Compiled = AvroCompiled | ProtoCompiled


def check_definition(schema: pb.Schema) -> None:
    """Refuse what can be seen to be no definition without compiling it.

    Raises:
        InvalidArgument: the type is none, or there is no definition, two of them, or one that is too large.

    Source: Schema.type, Schema.definition, Schema.compiled_proto_schema.
    """
    if schema.type not in _LANGUAGES:
        raise errors.bad_argument("schema.type", "it must be PROTOCOL_BUFFER or AVRO")
    if schema.HasField("compiled_proto_schema"):
        if schema.type != pb.Schema.PROTOCOL_BUFFER:
            raise errors.bad_argument("schema.compiled_proto_schema", "the type must be PROTOCOL_BUFFER")
        if schema.definition:
            raise errors.bad_argument("schema.definition", "there is a compiled_proto_schema as well")
        size = len(schema.compiled_proto_schema.compiled_bytes)
    else:
        size = len(schema.definition.encode())
    if not size:
        raise errors.bad_definition("it is empty")
    if size > limits.SCHEMA_DEFINITION_BYTES_MAX:
        raise errors.too_large("schema definition size", size, limits.SCHEMA_DEFINITION_BYTES_MAX)


def needs_compiler(schema: pb.Schema) -> bool:
    """Whether `compiled` needs the descriptors that the compiler of Protocol Buffers makes of the text."""
    return bool(schema.type == pb.Schema.PROTOCOL_BUFFER and not schema.HasField("compiled_proto_schema"))


def compiled(schema: pb.Schema, descriptors: bytes) -> Compiled:
    """`schema`, which `check_definition` let pass; `descriptors` of its text, see `needs_compiler`.

    Raises:
        InvalidArgument: the definition is wrong.
    """
    try:
        if schema.type == pb.Schema.AVRO:
            return AvroCompiled(schema.definition)
        from pubsubd.schema.proto import ProtoSchema

        if needs_compiler(schema):
            return ProtoCompiled(ProtoSchema.of_source(descriptors))
        sent = schema.compiled_proto_schema
        return ProtoCompiled(ProtoSchema(sent.compiled_bytes, sent.root_message))
    except Mismatch as mismatch:
        raise errors.bad_definition(mismatch.reason) from None


def refusal(
    schema_type: int, encoding: int, mismatch: Mismatch, name: str = "", revision_id: str = ""
) -> errors.Unfit:
    """What is said of a message that fits no revision of the schema `name`; empty: of one sent along."""
    reason = f"INVALID_{ENCODINGS[encoding]}_{_LANGUAGES[schema_type]}_MESSAGE"
    if not name:
        return errors.message_unfit(reason, f"Could not validate message with the schema: {mismatch.reason}")
    return errors.message_unfit(
        reason,
        f"Could not validate message with any schema revision for schema: {name}, last checked revision: "
        f"revision_id={revision_id} failure reason: {mismatch.reason}",
    )
