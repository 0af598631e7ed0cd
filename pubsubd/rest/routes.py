"""Which RPC a method and a path mean, and which fields of its request stand in the path.

Pure. The table is the HTTP annotations of the API's services, in the order of their definition.

Source: google/pubsub/v1/pubsub.proto, schema.proto, google/iam/v1/iam_policy.proto with the bindings of
pubsub_v1.yaml; google/api/http.proto for what a template means.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pubsubd.wire.services import SERVICES, Method

#: RPC, HTTP method, path after /v1/, and the field that the body is: `*` is all that the path does not say.
_TABLE: Final = """
google.pubsub.v1.Publisher
    CreateTopic             PUT     {name=projects/*/topics/*}                                 *
    UpdateTopic             PATCH   {topic.name=projects/*/topics/*}                           *
    Publish                 POST    {topic=projects/*/topics/*}:publish                        *
    GetTopic                GET     {topic=projects/*/topics/*}
    ListTopics              GET     {project=projects/*}/topics
    ListTopicSubscriptions  GET     {topic=projects/*/topics/*}/subscriptions
    ListTopicSnapshots      GET     {topic=projects/*/topics/*}/snapshots
    DeleteTopic             DELETE  {topic=projects/*/topics/*}
    DetachSubscription      POST    {subscription=projects/*/subscriptions/*}:detach
google.pubsub.v1.Subscriber
    CreateSubscription      PUT     {name=projects/*/subscriptions/*}                          *
    GetSubscription         GET     {subscription=projects/*/subscriptions/*}
    UpdateSubscription      PATCH   {subscription.name=projects/*/subscriptions/*}             *
    ListSubscriptions       GET     {project=projects/*}/subscriptions
    DeleteSubscription      DELETE  {subscription=projects/*/subscriptions/*}
    ModifyAckDeadline       POST    {subscription=projects/*/subscriptions/*}:modifyAckDeadline  *
    Acknowledge             POST    {subscription=projects/*/subscriptions/*}:acknowledge      *
    Pull                    POST    {subscription=projects/*/subscriptions/*}:pull             *
    ModifyPushConfig        POST    {subscription=projects/*/subscriptions/*}:modifyPushConfig  *
    GetSnapshot             GET     {snapshot=projects/*/snapshots/*}
    ListSnapshots           GET     {project=projects/*}/snapshots
    CreateSnapshot          PUT     {name=projects/*/snapshots/*}                              *
    UpdateSnapshot          PATCH   {snapshot.name=projects/*/snapshots/*}                     *
    DeleteSnapshot          DELETE  {snapshot=projects/*/snapshots/*}
    Seek                    POST    {subscription=projects/*/subscriptions/*}:seek             *
google.pubsub.v1.SchemaService
    CreateSchema            POST    {parent=projects/*}/schemas                                schema
    GetSchema               GET     {name=projects/*/schemas/*}
    ListSchemas             GET     {parent=projects/*}/schemas
    ListSchemaRevisions     GET     {name=projects/*/schemas/*}:listRevisions
    CommitSchema            POST    {name=projects/*/schemas/*}:commit                         *
    RollbackSchema          POST    {name=projects/*/schemas/*}:rollback                       *
    DeleteSchemaRevision    DELETE  {name=projects/*/schemas/*}:deleteRevision
    DeleteSchema            DELETE  {name=projects/*/schemas/*}
    ValidateSchema          POST    {parent=projects/*}/schemas:validate                       *
    ValidateMessage         POST    {parent=projects/*}/schemas:validateMessage                *
google.iam.v1.IAMPolicy
    GetIamPolicy            GET     {resource=projects/*/topics/*}:getIamPolicy
    GetIamPolicy            GET     {resource=projects/*/subscriptions/*}:getIamPolicy
    GetIamPolicy            GET     {resource=projects/*/snapshots/*}:getIamPolicy
    GetIamPolicy            GET     {resource=projects/*/schemas/*}:getIamPolicy
    SetIamPolicy            POST    {resource=projects/*/topics/*}:setIamPolicy                *
    SetIamPolicy            POST    {resource=projects/*/subscriptions/*}:setIamPolicy         *
    SetIamPolicy            POST    {resource=projects/*/snapshots/*}:setIamPolicy             *
    SetIamPolicy            POST    {resource=projects/*/schemas/*}:setIamPolicy               *
    TestIamPermissions      POST    {resource=projects/*/topics/*}:testIamPermissions          *
    TestIamPermissions      POST    {resource=projects/*/subscriptions/*}:testIamPermissions   *
    TestIamPermissions      POST    {resource=projects/*/snapshots/*}:testIamPermissions       *
    TestIamPermissions      POST    {resource=projects/*/schemas/*}:testIamPermissions         *
"""

_TEMPLATE: Final = re.compile(r"\{(?P<field>[a-z.]+)=(?P<segments>[^}]+)\}(?P<rest>[^:]*)(:(?P<verb>\w+))?")


class Route(NamedTuple):
    """One binding of an RPC."""

    method: Method
    segments: tuple[str, ...]  # after /v1; `*` is any one
    named: int  # so many of them make the field
    field: tuple[str, ...]  # its path in the request
    body: str


class Match(NamedTuple):
    """What a request line means."""

    method: Method
    fields: dict[str, Any]  # a tree of what the path says of the request, by original names
    body: str  # which field of the request the body is; `*`: the whole of it, empty: there is none


def _routes() -> dict[tuple[str, str, int], list[Route]]:
    """By HTTP method, verb and number of segments."""
    routes: dict[tuple[str, str, int], list[Route]] = {}
    service = ""
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            service = line
            continue
        name, http_method, template, body = [*line.split(), ""][:4]
        found = _TEMPLATE.fullmatch(template)
        assert found is not None, template
        segments = found["segments"].split("/")
        whole = tuple([*segments, *found["rest"].split("/")[1:]])
        field = tuple(found["field"].split("."))
        route = Route(SERVICES[service][name], whole, len(segments), field, body)
        routes.setdefault((http_method, found["verb"] or "", len(whole)), []).append(route)
    return routes


_ROUTES: Final = _routes()


def find(http_method: str, path: str) -> Match | None:
    """The RPC of a request with this method and this path, as it was sent; None if it is of none.

    Each segment is percent-decoded once, after the path was taken apart: what was encoded is never a slash
    between segments, nor the colon before a verb.
    """
    if not path.startswith("/v1/"):
        return None
    segments = path[len("/v1/") :].split("/")
    last, colon, verb = segments[-1].rpartition(":")
    if colon:
        segments[-1] = last
    else:
        verb = ""
    decoded = [unquote(segment) for segment in segments]
    for route in _ROUTES.get((http_method, verb, len(segments)), ()):
        if all(wanted in ("*", given) for wanted, given in zip(route.segments, decoded, strict=True)):
            tree: Any = "/".join(decoded[: route.named])
            for part in reversed(route.field):
                tree = {part: tree}
            return Match(route.method, tree, route.body)
    return None
