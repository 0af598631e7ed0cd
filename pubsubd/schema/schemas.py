"""All schemas: every command of SchemaService, and the check of messages at publish.

A command checks, changes memory and notes the names of what must be saved; whoever owns the object asks for
those by `take_changed`. Definitions arrive compiled: the compiler is a process, and this room is pure.

Source: SchemaService, Topic.schema_settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from pubsubd.model import errors, limits, names
from pubsubd.model.paging import page
from pubsubd.schema import requests
from pubsubd.schema.compiled import ENCODINGS, refusal
from pubsubd.schema.mismatch import Mismatch
from pubsubd.schema.revisions import Prepared, Revision, Revisions, checks
from pubsubd.wire import pb

ENCODING_ATTRIBUTE: Final = "googclient_schemaencoding"
NAME_ATTRIBUTE: Final = "googclient_schemaname"
REVISION_ATTRIBUTE: Final = "googclient_schemarevisionid"

# For tokens: newer revisions come first, so that larger numbers have smaller texts.
_NUMBER_MAX: Final = 10**12
_VIEWS: Final = (pb.SCHEMA_VIEW_UNSPECIFIED, pb.BASIC, pb.FULL)


class Held(NamedTuple):
    """What the messages of a topic are held against."""

    name: str
    encoding: int
    revisions: Sequence[Revision]  # in the order in which they are tried

    def stamps(self, messages: Sequence[pb.PubsubMessage]) -> Stamps:
        """Raises Unfit if one of the messages fits none of the revisions."""
        return Stamps(self, self.accepted([message.data for message in messages]))

    def accepted(self, datas: Sequence[bytes]) -> list[str]:
        """The id of the first revision that accepts each of `datas`."""
        tried = checks(self.revisions, self.encoding)
        accepted = []
        for data in datas:
            for revision_id, check in tried:
                try:
                    check(data)
                except Mismatch as mismatch:
                    last = mismatch
                else:
                    accepted.append(revision_id)
                    break
            else:
                schema_type = self.revisions[-1].resource.type
                raise refusal(schema_type, self.encoding, last, self.name, revision_id)
        return accepted


class Stamps:
    """What accepted messages get beside what their publisher sent: under which revision each was accepted."""

    def __init__(self, held: Held, revision_ids: Sequence[str]) -> None:
        self.held = held
        self._revision_ids = revision_ids

    def put_on(self, messages: Sequence[pb.PubsubMessage]) -> None:
        """What a publisher wrote under these keys is replaced."""
        encoding, name = ENCODINGS[self.held.encoding], self.held.name
        for message, revision_id in zip(messages, self._revision_ids, strict=True):
            attributes = message.attributes
            attributes[ENCODING_ATTRIBUTE] = encoding
            attributes[NAME_ATTRIBUTE] = name
            attributes[REVISION_ATTRIBUTE] = revision_id


class Schemas:
    def __init__(self, secret: bytes) -> None:
        """`secret` (16 to 64 bytes) authenticates page tokens."""
        self._secret = secret
        self._schemas: dict[str, Revisions] = {}
        self._changed: dict[str, None] = {}

    # -- from and to storage ------------------------------------------------------------------------------

    def restore(self, name: str, data: bytes) -> None:
        self._schemas[name] = Revisions.unpacked(name, data)

    def take_changed(self) -> dict[str, bytes | None]:
        """What must be saved since this was asked last; None: deleted."""
        changed, self._changed = self._changed, {}
        return {
            name: schema.packed() if (schema := self._schemas.get(name)) is not None else None
            for name in changed
        }

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    # -- commands -----------------------------------------------------------------------------------------

    def create(
        self, request: pb.CreateSchemaRequest, prepared: Prepared, unique: str, now_us: int
    ) -> pb.Schema:
        """`unique` makes the id of the revision."""
        name = requests.check_create(request)
        if name in self._schemas:
            raise errors.already_exists(name)
        schema = Revisions(name)
        made = schema.add(prepared, _revision_ids(unique), now_us)
        self._schemas[name] = schema
        self._changed[name] = None
        return made.resource

    def get(self, request: pb.GetSchemaRequest) -> pb.Schema:
        name, revision_id = names.schema_and_revision(request.name)
        view = _view(request.view, pb.FULL)
        return _shown(self._revision(name, revision_id), view)

    def list_schemas(self, request: pb.ListSchemasRequest) -> pb.ListSchemasResponse:
        requests.check_list_schemas(request)
        view = _view(request.view, pb.BASIC)
        inside = f"{request.parent}/schemas/"
        ordered = sorted(name for name in self._schemas if name.startswith(inside))
        found, token = page(
            ordered, f"ListSchemas {request.parent}", request.page_size, request.page_token, self._secret
        )
        shown = [_shown(self._schemas[name].latest, view) for name in found]
        return pb.ListSchemasResponse(schemas=shown, next_page_token=token)

    def list_revisions(self, request: pb.ListSchemaRevisionsRequest) -> pb.ListSchemaRevisionsResponse:
        """Newest first. The order is not documented; gcloud shows it so."""
        requests.check_list_revisions(request)
        view = _view(request.view, pb.BASIC)
        schema = self._schema(request.name)
        by_text = {f"{_NUMBER_MAX - one.number}": one for one in reversed(schema.all)}
        context = f"ListSchemaRevisions {request.name}"
        found, token = page(list(by_text), context, request.page_size, request.page_token, self._secret)
        shown = [_shown(by_text[text], view) for text in found]
        return pb.ListSchemaRevisionsResponse(schemas=shown, next_page_token=token)

    def earlier(self, name: str) -> list[Revision]:
        """What a commit is to be compatible with; see `commit`.

        Raises:
            NotFound: there is no schema of this name.
        """
        return list(self._schema(name).all)

    def commit(
        self,
        request: pb.CommitSchemaRequest,
        prepared: Prepared,
        compared: Collection[Revision],
        unique: str,
        now_us: int,
    ) -> pb.Schema:
        """`compared`: revisions that were found to be compatible already, since that may take a while."""
        requests.check_commit(request)
        schema = self._schema(request.name)
        if request.schema.type != schema.type:
            raise errors.schema_type_changed()
        # The newest first: it is the one that people mean.
        for revision in reversed(schema.all):
            if revision not in compared:
                check_compatible(prepared, revision)
        made = schema.add(prepared, _revision_ids(unique), now_us)
        self._changed[request.name] = None
        return made.resource

    def rollback(self, request: pb.RollbackSchemaRequest, unique: str, now_us: int) -> pb.Schema:
        requests.check_rollback(request)
        schema = self._schema(request.name)
        made = schema.add_again(schema.find(request.revision_id), _revision_ids(unique), now_us)
        self._changed[request.name] = None
        return made.resource

    def delete_revision(self, request: pb.DeleteSchemaRevisionRequest, named: Collection[str]) -> pb.Schema:
        """The deleted revision; `named`: the revision ids that topics have as bounds of this schema."""
        name, revision_id = requests.check_delete_revision(request)
        schema = self._schema(name)
        revision = schema.find(revision_id)
        schema.remove(revision, named)
        self._changed[name] = None
        return revision.resource

    def delete(self, request: pb.DeleteSchemaRequest) -> None:
        names.check_schema(request.name)
        self._schema(request.name)
        del self._schemas[request.name]
        self._changed[request.name] = None

    def clear(self) -> None:
        """Delete all."""
        self._changed.update(dict.fromkeys(self._schemas))
        self._schemas.clear()

    def validate_message(self, request: pb.ValidateMessageRequest) -> pb.ValidateMessageResponse:
        """Of a request that names a schema. Without a revision, one of them has to accept the message."""
        requests.check_validate_message(request)
        name, revision_id = names.schema_and_revision(request.name)
        one = [self._revision(name, revision_id)] if revision_id else []
        found = one or self._schema(name).in_range("", "")
        Held(name, request.encoding, found).accepted([request.message])
        return pb.ValidateMessageResponse()

    # -- topics -------------------------------------------------------------------------------------------

    def check_settings(self, settings: pb.SchemaSettings, before: pb.SchemaSettings | None = None) -> None:
        """Refuse settings of a topic that name what is not there; `before`: those that it has now.

        Raises:
            NotFound: the schema, or a revision, does not exist.
            InvalidArgument: the range of revisions is none.
        """
        kept: Collection[str] = ()
        if before is not None and before.schema == settings.schema:
            # A bound that was deleted stays one as long as nobody changes it.
            kept = (before.first_revision_id, before.last_revision_id)
        self._schema(settings.schema).check_range(settings, kept)

    def held(self, settings: pb.SchemaSettings) -> Held:
        """What the messages of a topic with these settings are held against.

        Raises:
            NotFound: the schema was deleted.
            FailedPrecondition: all revisions of the range were.
        """
        schema = self._schemas.get(settings.schema)
        if schema is None:
            raise errors.schema_gone()
        revisions = schema.in_range(settings.first_revision_id, settings.last_revision_id)
        if not revisions:
            raise errors.no_revision_in_range()
        return Held(schema.name, settings.encoding, revisions)

    def _schema(self, name: str) -> Revisions:
        schema = self._schemas.get(name)
        if schema is None:
            raise errors.not_found(name)
        return schema

    def _revision(self, name: str, revision_id: str) -> Revision:
        schema = self._schemas.get(name)
        if schema is None:
            raise errors.not_found(f"{name}@{revision_id}" if revision_id else name)
        return schema.find(revision_id) if revision_id else schema.latest


def check_compatible(prepared: Prepared, revision: Revision) -> None:
    """Raise Unfit unless a new definition goes together with an existing revision."""
    if prepared.schema.type != revision.resource.type:
        raise errors.schema_type_changed()
    try:
        prepared.compiled.check_compatible(revision.compiled)
    except Mismatch as mismatch:
        raise errors.incompatible_revision(revision.revision_id, mismatch.reason) from None


def _view(view: int, default: int) -> int:
    if view not in _VIEWS:
        raise errors.bad_argument("view", "it must be BASIC or FULL")
    return view or default


def _shown(revision: Revision, view: int) -> pb.Schema:
    if view == pb.FULL:
        return revision.resource
    shown = pb.Schema()
    shown.CopyFrom(revision.resource)
    shown.ClearField("definition")
    shown.ClearField("compiled_proto_schema")
    return shown


def _revision_ids(unique: str) -> list[str]:
    """Candidates, for the case that the first one is taken."""
    digits = blake2b(unique.encode(), digest_size=32).hexdigest()
    length = limits.SCHEMA_REVISION_ID_CHARS
    return [digits[at : at + length] for at in range(len(digits) - length)]
