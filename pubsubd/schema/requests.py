"""Request-level checks of SchemaService: only what needs no lookup and no compiling.

Source: the request messages of SchemaService.
"""

from __future__ import annotations

from pubsubd.model import errors, limits, names
from pubsubd.model.requests import check_page_size
from pubsubd.schema.compiled import ENCODINGS, check_definition
from pubsubd.wire import pb


def check_create(request: pb.CreateSchemaRequest) -> str:
    """The name of the schema to create, and raise InvalidArgument for anything that is wrong with it."""
    name = f"{request.parent}/schemas/{request.schema_id}"
    names.check_schema(name)
    check_definition(request.schema)
    return name


def check_commit(request: pb.CommitSchemaRequest) -> None:
    names.check_schema(request.name)
    # Not documented; another name in the schema can only be a mistake.
    if request.schema.name not in ("", request.name):
        raise errors.bad_argument("schema.name", "it differs from the name in the request")
    check_definition(request.schema)


def check_rollback(request: pb.RollbackSchemaRequest) -> None:
    names.check_schema(request.name)
    if not request.revision_id:
        raise errors.bad_argument("revision_id", "it must be set")


def check_delete_revision(request: pb.DeleteSchemaRevisionRequest) -> tuple[str, str]:
    """The schema and the revision; the deprecated field `revision_id` says nothing."""
    name, revision_id = names.schema_and_revision(request.name)
    if not revision_id:
        raise errors.bad_argument("name", "it must end in @ and the id of a revision")
    return name, revision_id


def check_list_schemas(request: pb.ListSchemasRequest) -> None:
    names.check_project(request.parent)
    check_page_size(request.page_size)


def check_list_revisions(request: pb.ListSchemaRevisionsRequest) -> None:
    names.check_schema(request.name)
    check_page_size(request.page_size)


def check_validate_schema(request: pb.ValidateSchemaRequest) -> None:
    names.check_project(request.parent)
    check_definition(request.schema)


def check_validate_message(request: pb.ValidateMessageRequest) -> None:
    names.check_project(request.parent)
    which = request.WhichOneof("schema_spec")
    if which is None:
        raise errors.bad_argument("schema_spec", "name or schema must be set")
    if which == "name":
        names.schema_and_revision(request.name)
    else:
        check_definition(request.schema)
    if request.encoding not in ENCODINGS:
        raise errors.bad_argument("encoding", "it must be JSON or BINARY")
    if len(request.message) > limits.PUBLISH_REQUEST_BYTES_MAX:
        raise errors.too_large("message size", len(request.message), limits.PUBLISH_REQUEST_BYTES_MAX)
