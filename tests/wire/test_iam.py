"""google.iam.v1.IAMPolicy beside the services whose resources it is about."""

from grpc import StatusCode

from tests.wire import schemas
from tests.wire.calls import Client, refused
from tests.wire.harness import case
from tests.wire.support import World, unique

VIEWERS = {"role": "roles/pubsub.viewer", "members": ["user:ann@example.com"]}


def test_a_policy_is_set_read_and_set_again(client: Client):
    topic = unique("topic")
    client.CreateTopic(name=topic)
    first = client.GetIamPolicy(resource=topic)
    assert (list(first.bindings), first.etag) == ([], b"\x00\x20\x01")

    second = client.SetIamPolicy(resource=topic, policy={"bindings": [VIEWERS], "etag": first.etag})
    assert second == client.GetIamPolicy(resource=topic, options={"requested_policy_version": 3})
    with refused(StatusCode.ABORTED, "concurrent"):
        client.SetIamPolicy(resource=topic, policy={"etag": first.etag})

    assert list(client.SetIamPolicy(resource=topic).bindings) == []
    client.DeleteTopic(topic=topic)
    with refused(StatusCode.NOT_FOUND, "Resource not found (resource="):
        client.GetIamPolicy(resource=topic)


def test_a_schema_has_a_policy_as_long_as_it_is_there(client: Client):
    schema = schemas.create(client)
    set_to = client.SetIamPolicy(resource=schema.name, policy={"bindings": [VIEWERS]})
    assert client.GetIamPolicy(resource=schema.name) == set_to

    client.DeleteSchema(name=schema.name)
    with refused(StatusCode.NOT_FOUND, "Resource not found (resource="):
        client.GetIamPolicy(resource=schema.name)


def test_what_is_no_policy_is_refused(client: Client):
    topic = unique("topic")
    client.CreateTopic(name=topic)
    with refused(StatusCode.INVALID_ARGUMENT, "policy.bindings.members"):
        client.SetIamPolicy(resource=topic, policy={"bindings": [{**VIEWERS, "members": ["ann"]}]})
    with refused(StatusCode.INVALID_ARGUMENT, "(resource=projects/p)"):
        client.SetIamPolicy(resource="projects/p")
    assert client.GetIamPolicy(resource=topic).etag == b"\x00\x20\x01"


def test_permissions_are_those_asked_for_if_the_resource_is_there(client: Client):
    topic = unique("topic")
    wanted = ["pubsub.topics.get", "pubsub.topics.publish"]
    assert list(client.TestIamPermissions(resource=topic, permissions=wanted).permissions) == []
    client.CreateTopic(name=topic)
    assert list(client.TestIamPermissions(resource=topic, permissions=wanted).permissions) == wanted
    with refused(StatusCode.INVALID_ARGUMENT, "permissions"):
        client.TestIamPermissions(resource=topic, permissions=["pubsub.*"])


@case
async def test_policies_are_there_after_a_kill(world: World):
    async with world.own_server() as own:
        sub = await own.subscription()
        policy = await own.client.SetIamPolicy(resource=sub.name, policy={"bindings": [VIEWERS]})
        await own.restart_server()
        assert await own.client.GetIamPolicy(resource=sub.name) == policy
