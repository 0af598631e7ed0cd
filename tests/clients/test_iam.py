"""Access policies through the official Python library."""

from google.api_core.exceptions import Aborted
from google.iam.v1 import policy_pb2
from pytest import raises


def test_policies_of_a_topic_and_a_subscription(world):
    topic = world.topic()
    subscription = world.subscription(topic)
    for client, resource, role in [
        (world.publisher, topic, "roles/pubsub.publisher"),
        (world.subscriber, subscription, "roles/pubsub.subscriber"),
    ]:
        policy = client.get_iam_policy(request={"resource": resource})
        before = policy.etag
        policy.bindings.add(role=role, members=["allUsers"])
        changed = client.set_iam_policy(request={"resource": resource, "policy": policy})
        assert changed == client.get_iam_policy(request={"resource": resource})
        assert changed.bindings == [policy_pb2.Binding(role=role, members=["allUsers"])]
        with raises(Aborted):
            client.set_iam_policy(
                request={"resource": resource, "policy": policy_pb2.Policy(etag=before)}, retry=None
            )
        allowed = client.test_iam_permissions(
            request={"resource": resource, "permissions": ["pubsub.topics.get"]}
        )
        assert list(allowed.permissions) == ["pubsub.topics.get"]
