"""Policies: what is one, how one replaces another, and what etags are for."""

from __future__ import annotations

import pytest

from pubsubd.model import policies
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.conftest import SUBSCRIPTION, TOPIC, refusal

ANN = "user:ann@example.com"
VIEWER = pb.Binding(role="roles/pubsub.viewer", members=[ANN])


def set_request(*bindings: pb.Binding, resource: str = TOPIC, **fields: object) -> pb.SetIamPolicyRequest:
    return pb.SetIamPolicyRequest(resource=resource, policy=pb.Policy(bindings=bindings, **fields))


@pytest.mark.parametrize(
    "member",
    [
        *("allUsers", "allAuthenticatedUsers", ANN, "group:devs@example.com", "domain:example.com"),
        *("serviceAccount:robot@p.iam.gserviceaccount.com", "serviceAccount:p.svc.id.goog[space/robot]"),
        *("deleted:user:ann@example.com?uid=123", "projectOwner:demo"),
        "deleted:serviceAccount:robot@p.iam.gserviceaccount.com?uid=123",
        "principal://iam.googleapis.com/locations/global/workforcePools/pool/subject/ann",
        "principalSet://iam.googleapis.com/locations/global/workforcePools/pool/*",
    ],
)
def test_every_kind_of_principal_may_have_a_role(member: str) -> None:
    policies.check_set(set_request(pb.Binding(role="roles/pubsub.viewer", members=[member])))


@pytest.mark.parametrize(
    "member",
    [
        *("", "ann@example.com", "user:", "user:ann", "allusers", "robot:x@y.z", "domain:", "domain:a@b"),
        *("user:ann@example.com ", "principal:ann", "deleted:ann@example.com", "user:\u00e4\n@x"),
    ],
)
def test_what_is_no_principal_is_named_in_the_refusal(member: str) -> None:
    request = set_request(pb.Binding(role="roles/pubsub.viewer", members=[ANN, member]))

    assert "policy.bindings.members" in refusal("INVALID_ARGUMENT", policies.check_set, request)


@pytest.mark.parametrize("role", ["", "viewer", "roles/", "roles/a/b", "projects/p/viewer"])
def test_what_is_no_role_is_refused(role: str) -> None:
    request = set_request(pb.Binding(role=role, members=[ANN]))

    assert "policy.bindings.role" in refusal("INVALID_ARGUMENT", policies.check_set, request)


def test_roles_of_projects_and_organizations_are_roles() -> None:
    for role in ("projects/p/roles/mine", "organizations/7/roles/ours"):
        policies.check_set(set_request(pb.Binding(role=role, members=[ANN])))


def test_a_policy_with_conditions_is_of_version_3() -> None:
    binding = pb.Binding(role="roles/pubsub.viewer", members=[ANN], condition={"expression": "true"})

    policies.check_set(set_request(binding, version=3))
    for version in (0, 1):
        refusal("INVALID_ARGUMENT", policies.check_set, set_request(binding, version=version))


@pytest.mark.parametrize("version", [2, 4, -1])
def test_other_versions_do_not_exist(version: int) -> None:
    refusal("INVALID_ARGUMENT", policies.check_set, set_request(version=version))
    refusal(
        "INVALID_ARGUMENT",
        policies.check_get,
        pb.GetIamPolicyRequest(resource=TOPIC, options={"requested_policy_version": version}),
    )


def test_so_many_principals_and_no_more() -> None:
    members = [f"user:u{n}@example.com" for n in range(1501)]

    policies.check_set(set_request(pb.Binding(role="roles/pubsub.viewer", members=members[1:])))
    request = set_request(pb.Binding(role="roles/pubsub.viewer", members=members))
    assert "1500" in refusal("INVALID_ARGUMENT", policies.check_set, request)


@pytest.mark.parametrize(
    "resource",
    ["", "projects/p", "projects/p/topics/goog", "projects/p/things/abc", "_deleted-topic_", f"{TOPIC}/x"],
)
def test_the_resource_is_a_name_of_one_of_four_kinds(resource: str) -> None:
    for check, request in [
        (policies.check_get, pb.GetIamPolicyRequest(resource=resource)),
        (policies.check_set, set_request(resource=resource)),
        (policies.check_test, pb.TestIamPermissionsRequest(resource=resource)),
    ]:
        assert f"(resource={resource})" in refusal("INVALID_ARGUMENT", check, request)
    for good in (TOPIC, SUBSCRIPTION, "projects/p/snapshots/abc", "projects/p/schemas/abc"):
        policies.check_resource(good)


@pytest.mark.parametrize("permission", ["*", "pubsub.*", "pubsub.topics.*", ""])
def test_a_permission_is_named_in_full(permission: str) -> None:
    request = pb.TestIamPermissionsRequest(resource=TOPIC, permissions=["pubsub.topics.get", permission])

    assert "permissions" in refusal("INVALID_ARGUMENT", policies.check_test, request)


def test_every_change_has_an_etag_of_its_own_even_within_one_moment() -> None:
    first = policies.replaced(policies.no_policy(), set_request(VIEWER), now_us=5)
    second = policies.replaced(first, set_request(VIEWER), now_us=5)

    assert len({policies.NO_POLICY_ETAG, first.etag, second.etag}) == 3
    assert second.bindings == first.bindings == [VIEWER]


def test_a_change_of_another_policy_than_the_stored_one_is_aborted() -> None:
    first = policies.replaced(policies.no_policy(), set_request(VIEWER, etag=b"\x00\x20\x01"), now_us=5)
    second = policies.replaced(first, set_request(etag=first.etag), now_us=6)

    assert list(second.bindings) == []
    with pytest.raises(PubsubError) as caught:
        policies.replaced(second, set_request(VIEWER, etag=first.etag), now_us=7)
    assert caught.value.status == "ABORTED"


def test_the_mask_says_what_is_replaced() -> None:
    first = policies.replaced(policies.no_policy(), set_request(VIEWER, version=1), now_us=5)

    kept = set_request(etag=first.etag)
    kept.update_mask.paths.append("etag")
    second = policies.replaced(first, kept, now_us=6)
    assert second.bindings == [VIEWER] and second.version == 1 and second.etag != first.etag

    unknown = set_request()
    unknown.update_mask.paths.append("audit_configs")
    assert "audit_configs" in refusal("INVALID_ARGUMENT", policies.check_set, unknown)


def test_a_role_that_nobody_has_is_no_binding() -> None:
    policy = policies.replaced(
        policies.no_policy(), set_request(pb.Binding(role="roles/pubsub.editor"), VIEWER), now_us=5
    )

    assert policy.bindings == [VIEWER]
