"""Resource names: which are taken and which are refused, on every method that takes one."""

import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.wire.calls import Client, refused
from tests.wire.support import unique

# Rules of https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for the last segment.
BAD_IDS = [
    "ab",
    "a" * 256,
    "1abc",
    "-abc",
    "_abc",
    "goog-probe",
    "googx",
    "a$bc",
    "a b c",
    "a:b",
    "a/bc",
    "über",
    "übers",
    "abcé",
    "abc\n",
    "abc\x00",
    "_deleted-topic_",
    "",
]
GOOD_IDS = ["abc", "Googabc", "GOOGabc", "abc%zz", "A-_.~+%9", "a" * 255, "gooabc"]
GOOD_PROJECTS = ["t", "demo_1", "example.com:proj", "-", "123456789", "Über"]


def bad_names(collection: str) -> list[str]:
    return [f"projects/wire/{collection}/{bad}" for bad in BAD_IDS] + [
        "abc",
        f"{collection}/abc",
        f"/projects/wire/{collection}/abc",
        f"projects/wire/{collection}/abc/",
        f"projects//{collection}/abc",
        f"projects/wire/{collection[:-1]}/abc",
        f"projects/wire/{collection.title()}/abc",
        "projects/wire/snapshots/abc",
        f"Projects/wire/{collection}/abc",
        f"projects/wire/{collection}",
        " ",
    ]


def check_refused(name: str, call) -> None:
    # The name comes back as it was sent, unless it could not be read in a log.
    echo = [f"={name})"] if name.isprintable() and name.isascii() and len(name) < 100 else []
    with refused(StatusCode.INVALID_ARGUMENT, "Invalid resource name given", *echo):
        call()


@pytest.mark.parametrize("name", ["", *bad_names("topics")])
def test_bad_topic_name_is_refused_by_every_method(client: Client, name: str):
    messages = [pb.PubsubMessage(data=b"x")]
    mask = pb.FieldMask(paths=["labels"])
    check_refused(name, lambda: client.CreateTopic(name=name))
    check_refused(name, lambda: client.GetTopic(topic=name))
    check_refused(name, lambda: client.DeleteTopic(topic=name))
    check_refused(name, lambda: client.Publish(topic=name, messages=messages))
    check_refused(name, lambda: client.ListTopicSubscriptions(topic=name))
    check_refused(name, lambda: client.UpdateTopic(topic=pb.Topic(name=name), update_mask=mask))
    check_refused(name, lambda: client.CreateSubscription(name=unique("subscription"), topic=name))


@pytest.mark.parametrize("name", ["", *bad_names("subscriptions")])
def test_bad_subscription_name_is_refused_by_every_method(client: Client, name: str):
    mask = pb.FieldMask(paths=["labels"])
    subscription = pb.Subscription(name=name)
    check_refused(name, lambda: client.GetSubscription(subscription=name))
    check_refused(name, lambda: client.DeleteSubscription(subscription=name))
    check_refused(name, lambda: client.DetachSubscription(subscription=name))
    check_refused(name, lambda: client.Pull(subscription=name, max_messages=1))
    check_refused(name, lambda: client.Acknowledge(subscription=name, ack_ids=["x"]))
    check_refused(
        name,
        lambda: client.ModifyAckDeadline(subscription=name, ack_ids=["x"], ack_deadline_seconds=10),
    )
    check_refused(name, lambda: client.UpdateSubscription(subscription=subscription, update_mask=mask))


@pytest.mark.parametrize("name", bad_names("subscriptions"))
def test_subscription_is_not_created_under_a_bad_name(client: Client, name: str):
    topic = client.CreateTopic(name=unique("topic")).name
    check_refused(name, lambda: client.CreateSubscription(name=name, topic=topic))


@pytest.mark.parametrize("project", ["", "projects/", "projects", "p", "projects/a/b", "/projects/a"])
def test_bad_project_is_refused_by_lists(client: Client, project: str):
    check_refused(project, lambda: client.ListTopics(project=project))
    check_refused(project, lambda: client.ListSubscriptions(project=project))


@pytest.mark.parametrize("good", GOOD_IDS)
def test_good_id_is_taken(client: Client, good: str):
    project = unique("topic").replace("/", "-")
    topic = f"projects/{project}/topics/{good}"
    subscription = f"projects/{project}/subscriptions/{good}"
    assert client.CreateTopic(name=topic).name == topic
    assert client.CreateSubscription(name=subscription, topic=topic).name == subscription
    assert client.GetSubscription(subscription=subscription).topic == topic


@pytest.mark.parametrize("project", GOOD_PROJECTS)
def test_any_project_is_taken_literally(client: Client, project: str):
    topic = unique("topic", project)
    client.CreateTopic(name=topic)
    assert topic in [found.name for found in client.ListTopics(project=f"projects/{project}").topics]


def test_subscription_without_a_name_is_given_one_in_the_project_of_its_topic(client: Client):
    topic = client.CreateTopic(name=unique("topic", "generated")).name
    one = client.CreateSubscription(topic=topic)
    other = client.CreateSubscription(topic=topic)
    for created in (one, other):
        assert created.name.startswith("projects/generated/subscriptions/sub-")
        assert client.GetSubscription(subscription=created.name) == created
    assert one.name != other.name


def test_name_of_a_deleted_topic_begins_anew(client: Client):
    topic, subscription = unique("topic"), unique("subscription")
    client.CreateTopic(name=topic, labels={"a": "b"})
    client.CreateSubscription(name=subscription, topic=topic)
    client.DeleteTopic(topic=topic)
    assert client.CreateTopic(name=topic) == pb.Topic(name=topic)

    client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x")])
    pulled = client.Pull(subscription=subscription, max_messages=1, return_immediately=True)
    assert len(pulled.received_messages) == 0
    assert list(client.ListTopicSubscriptions(topic=topic).subscriptions) == []
    assert client.GetSubscription(subscription=subscription).topic == "_deleted-topic_"


def test_name_of_a_deleted_subscription_begins_anew(client: Client):
    topic, name = client.CreateTopic(name=unique("topic")).name, unique("subscription")
    client.CreateSubscription(name=name, topic=topic, labels={"a": "b"})
    client.Publish(topic=topic, messages=[pb.PubsubMessage(data=b"x")])
    client.DeleteSubscription(subscription=name)
    with refused(StatusCode.NOT_FOUND, "Resource not found"):
        client.Pull(subscription=name, max_messages=1)

    assert dict(client.CreateSubscription(name=name, topic=topic).labels) == {}
    pulled = client.Pull(subscription=name, max_messages=1, return_immediately=True)
    assert len(pulled.received_messages) == 0
