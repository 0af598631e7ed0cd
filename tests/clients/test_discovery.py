"""The client that is made from the service's discovery document, and speaks REST."""

from __future__ import annotations

import base64

import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.clients.world import World
from tests.support.server import ServerProcess


def test_the_discovery_client_works_with_topics_messages_and_policies(server: ServerProcess, world: World):
    service = build(
        "pubsub",
        "v1",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": f"http://localhost:{server.port}"},
        static_discovery=True,
    )
    topics, subscriptions = service.projects().topics(), service.projects().subscriptions()
    topic = f"projects/{world.project}/topics/orders"
    subscription = f"projects/{world.project}/subscriptions/billing"

    assert topics.create(name=topic, body={"labels": {"a": "b"}}).execute()["labels"] == {"a": "b"}
    with pytest.raises(HttpError) as caught:
        topics.create(name=topic, body={}).execute()
    assert caught.value.status_code == 409 and "already exists" in caught.value.reason
    patch = {"topic": {"labels": {"c": "d"}}, "updateMask": "labels"}
    assert topics.patch(name=topic, body=patch).execute()["labels"] == {"c": "d"}
    subscriptions.create(name=subscription, body={"topic": topic}).execute()
    assert topics.subscriptions().list(topic=topic).execute() == {"subscriptions": [subscription]}

    # What one interface is given the other one has.
    (message_id,) = world.publish(topic, 1)
    data = base64.b64encode(b"more").decode()
    published = topics.publish(topic=topic, body={"messages": [{"data": data}]}).execute()
    received = []
    while len(received) < 2:
        pulled = subscriptions.pull(subscription=subscription, body={"maxMessages": 2}).execute()
        received += pulled["receivedMessages"]
    assert [each["message"]["messageId"] for each in received] == [message_id, *published["messageIds"]]
    ack_ids = [each["ackId"] for each in received]
    assert subscriptions.acknowledge(subscription=subscription, body={"ackIds": ack_ids}).execute() == {}
    assert world.pull(subscription) == []

    policy = topics.getIamPolicy(resource=topic, options_requestedPolicyVersion=3).execute()
    policy["bindings"] = [{"role": "roles/pubsub.publisher", "members": ["allUsers"]}]
    topics.setIamPolicy(resource=topic, body={"policy": policy}).execute()
    assert topics.getIamPolicy(resource=topic).execute()["bindings"] == policy["bindings"]

    request = topics.list(project=f"projects/{world.project}", pageSize=1)
    assert [each["name"] for each in request.execute()["topics"]] == [topic]
    subscriptions.delete(subscription=subscription).execute()
    topics.delete(topic=topic).execute()
    with pytest.raises(HttpError) as caught:
        topics.get(topic=topic).execute()
    assert caught.value.status_code == 404
