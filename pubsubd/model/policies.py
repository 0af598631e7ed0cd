"""Policies of resources: which are valid, how one replaces another, and what is shown.

They are kept and returned, and nobody is refused anything because of them: the server knows no callers.

Source: google/iam/v1/iam_policy.proto, google/iam/v1/policy.proto, and
https://cloud.google.com/iam/docs/policies.
"""

from __future__ import annotations

import re
from typing import Final

from pubsubd.model import errors, limits, names
from pubsubd.wire import pb

#: What the service shows for a resource that never had a policy; "ACAB" in base64.
NO_POLICY_ETAG: Final = b"\x00\x20\x01"
VERSIONS: Final = (0, 1, 3)
_CONDITIONS_VERSION: Final = 3
_MASK_DEFAULT: Final = ("bindings", "etag")
_MASK_PATHS: Final = ("bindings", "etag", "version")

_ROLE: Final = re.compile(r"roles/[^/\s]+|(projects|organizations)/[^/\s]+/roles/[^/\s]+")
_EMAIL: Final = r"[^@\s:]+@[^@\s]+"
_MEMBER: Final = re.compile(
    rf"""allUsers | allAuthenticatedUsers
    | (user|group):{_EMAIL}
    | serviceAccount:({_EMAIL} | [^\s@]+\.svc\.id\.goog\[[^\s\[\]]+\])
    | domain:[^\s@/]+
    | project(Owner|Editor|Viewer):\S+
    | deleted:(user|group|serviceAccount|principal|principalSet):\S+
    | principal://\S+ | principalSet://\S+""",
    re.VERBOSE,
)


def check_get(request: pb.GetIamPolicyRequest) -> None:
    """Raise InvalidArgument for a name that is none, or a layout of policies that does not exist."""
    check_resource(request.resource)
    _check_version(request.options.requested_policy_version, "options.requested_policy_version")


def check_set(request: pb.SetIamPolicyRequest) -> None:
    """Refuse a policy that no resource can have.

    Raises:
        InvalidArgument: naming the field.
    """
    check_resource(request.resource)
    _paths(request)
    policy = request.policy
    _check_version(policy.version, "policy.version")
    members = 0
    for binding in policy.bindings:
        if not _ROLE.fullmatch(binding.role):
            raise errors.bad_argument("policy.bindings.role", f"'{errors.echo(binding.role)}' is not a role")
        for member in binding.members:
            if not _MEMBER.fullmatch(member):
                raise errors.bad_argument(
                    "policy.bindings.members", f"'{errors.echo(member)}' is not a principal"
                )
        if binding.HasField("condition") and policy.version != _CONDITIONS_VERSION:
            raise errors.bad_argument(
                "policy.version", f"a policy with conditions is of version {_CONDITIONS_VERSION}"
            )
        members += len(binding.members)
    if members > limits.POLICY_MEMBERS_MAX:
        raise errors.too_large("policy.bindings.members", members, limits.POLICY_MEMBERS_MAX)


def check_test(request: pb.TestIamPermissionsRequest) -> None:
    """Raise InvalidArgument for a name that is none, and for permissions that are empty or have wildcards."""
    check_resource(request.resource)
    for permission in request.permissions:
        if not permission or "*" in permission:
            raise errors.bad_argument(
                "permissions", f"'{errors.echo(permission)}' does not name one permission"
            )


def check_resource(name: str) -> None:
    """Raise InvalidArgument unless `name` is that of a topic, subscription, snapshot or schema."""
    collection = names.collection_of(name)
    if collection not in _CHECKS:
        raise errors.bad_name(name, "resource")
    _CHECKS[collection](name, "resource")


def no_policy() -> pb.Policy:
    """What a resource has whose policy was never set."""
    return pb.Policy(etag=NO_POLICY_ETAG)


def replaced(policy: pb.Policy, request: pb.SetIamPolicyRequest, now_us: int) -> pb.Policy:
    """What `policy` becomes; `request` was checked.

    Raises:
        Aborted: the caller knew another policy than this one.
    """
    if request.policy.etag and request.policy.etag != policy.etag:
        raise errors.Aborted(
            "There were concurrent policy changes: the etag of the request is not the stored one. "
            "Read the policy again and apply the change to it."
        )
    changed = pb.Policy()
    changed.CopyFrom(policy)
    paths = _paths(request)
    if "bindings" in paths:
        del changed.bindings[:]
        # A role that nobody has is no binding.
        changed.bindings.extend(binding for binding in request.policy.bindings if binding.members)
    if "version" in paths or "bindings" in paths:
        changed.version = request.policy.version
    # Later than the one before, whatever the clock says: an etag never comes again.
    earlier = int.from_bytes(policy.etag, "big") if len(policy.etag) == limits.ETAG_BYTES else 0
    changed.etag = max(now_us, earlier + 1).to_bytes(limits.ETAG_BYTES, "big")
    return changed


def _paths(request: pb.SetIamPolicyRequest) -> tuple[str, ...]:
    paths = tuple(request.update_mask.paths) or _MASK_DEFAULT
    for path in paths:
        if path not in _MASK_PATHS:
            raise errors.mask_unknown("SetIamPolicyRequest", "Policy", path)
    return paths


def _check_version(version: int, field: str) -> None:
    if version not in VERSIONS:
        raise errors.bad_argument(field, f"{version} is none of the versions 0, 1 and 3")


_CHECKS: Final = {
    "topics": names.check_topic,
    "subscriptions": names.check_subscription,
    "snapshots": names.check_snapshot,
    "schemas": names.check_schema,
}
