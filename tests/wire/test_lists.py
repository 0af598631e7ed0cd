"""Lists of topics, subscriptions and snapshots: order, pages, tokens."""

import random

import pytest
from grpc import StatusCode

from tests.wire.calls import Client, refused
from tests.wire.support import unique

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
KINDS = ["ListTopics", "ListSubscriptions", "ListSnapshots", "ListTopicSubscriptions", "ListTopicSnapshots"]


class Listing:
    """One of the list methods, with things to list."""

    def __init__(self, client: Client, kind: str) -> None:
        project = unique("topic").replace("/", "-")
        self.client = client
        self.kind = kind
        self.parent = f"projects/{project}"
        self.of_topic = kind.startswith("ListTopicS")  # which gives names only
        self.topic = f"projects/{project}/topics/the-topic"
        self.others = [
            f"projects/{project}/{{}}/{word}"
            for word in ["abc-1", "abc.2", "ABC", "abc~", "abd", "zzz", "a%c"]
        ]
        random.Random(1).shuffle(self.others)
        self.word = "topic" if kind == "ListTopics" else kind.removeprefix("ListTopic").removeprefix("List")
        self.word = self.word.lower().removesuffix("s")
        self.names = [other.format(f"{self.word}s") for other in self.others]
        self._create()
        if self.of_topic:
            self.parent = self.topic
        self.names.sort()

    def _create(self) -> None:
        client = self.client
        if self.word == "topic":
            for name in self.names:
                client.CreateTopic(name=name)
            return
        client.CreateTopic(name=self.topic)
        if self.word == "subscription":
            for name in self.names:
                client.CreateSubscription(name=name, topic=self.topic)
            return
        subscription = client.CreateSubscription(name=unique("subscription"), topic=self.topic).name
        for name in self.names:
            client.CreateSnapshot(name=name, subscription=subscription)

    def page(self, **fields):
        key = "topic" if self.of_topic else "project"
        return getattr(self.client, self.kind)(**{key: self.parent, **fields})

    def names_of(self, response) -> list[str]:
        found = getattr(response, f"{self.word}s")
        return list(found) if self.of_topic else [item.name for item in found]

    def get(self, name: str):
        return getattr(self.client, f"Get{self.word.title()}")(**{self.word: name})

    def delete(self, name: str) -> None:
        getattr(self.client, f"Delete{self.word.title()}")(**{self.word: name})


@pytest.fixture(params=KINDS)
def listing(client: Client, request: pytest.FixtureRequest) -> Listing:
    return Listing(client, request.param)


def test_everything_is_listed_in_byte_order(listing: Listing):
    response = listing.page()
    assert listing.names_of(response) == listing.names
    assert response.next_page_token == ""


def test_pages_follow_each_other_and_may_change_their_size(listing: Listing):
    seen, token, sizes = [], "", iter([1, 3, 2, 1000])
    while size := next(sizes, 0):
        response = listing.page(page_size=size, page_token=token)
        assert len(listing.names_of(response)) <= size
        seen += listing.names_of(response)
        token = response.next_page_token
        if not token:
            break
    assert seen == listing.names
    assert token == ""


def test_page_that_ends_with_the_last_item_has_no_token(listing: Listing):
    response = listing.page(page_size=len(listing.names))
    assert listing.names_of(response) == listing.names
    assert response.next_page_token == ""


def test_token_outlives_the_item_at_its_boundary(listing: Listing):
    first = listing.page(page_size=3)
    for name in listing.names[2:4]:
        listing.delete(name)
    second = listing.page(page_token=first.next_page_token)
    assert listing.names_of(first) == listing.names[:3]
    assert listing.names_of(second) == listing.names[4:]


@pytest.mark.parametrize("size", [-1, 1001, 2**31 - 1])
def test_page_size_out_of_bounds_is_refused(listing: Listing, size: int):
    with refused(INVALID_ARGUMENT, "page_size", "out of bounds", str(size), "0", "1000"):
        listing.page(page_size=size)


def test_foreign_and_altered_tokens_are_refused(client: Client, listing: Listing):
    token = listing.page(page_size=3).next_page_token
    other = "ListTopics" if listing.kind != "ListTopics" else "ListSubscriptions"
    foreign = [
        Listing(client, listing.kind).page(page_size=2).next_page_token,
        Listing(client, other).page(page_size=2).next_page_token,
    ]
    altered = [token[:-1], token + "A", "x", listing.names[0], token[::-1], "\x00", "é"]
    for bad in foreign + altered:
        with refused(INVALID_ARGUMENT, "Invalid page token given"):
            listing.page(page_token=bad)


def test_unused_project_is_empty(client: Client):
    project = unique("topic").replace("/", "-")
    assert len(client.ListTopics(project=f"projects/{project}").topics) == 0
    assert len(client.ListSubscriptions(project=f"projects/{project}").subscriptions) == 0
    assert len(client.ListSnapshots(project=f"projects/{project}").snapshots) == 0


@pytest.mark.parametrize("kind", ["ListTopics", "ListSubscriptions", "ListSnapshots"])
def test_lists_of_a_project_return_whole_resources(client: Client, kind: str):
    listing = Listing(client, kind)
    found = list(getattr(listing.page(), f"{listing.word}s"))
    assert found == [listing.get(name) for name in listing.names]


def test_more_than_a_thousand_are_listed_in_pages(client: Client):
    project = unique("topic").replace("/", "-")
    names = [f"projects/{project}/topics/t{number:04}" for number in range(1001)]
    for name in names:
        client.CreateTopic(name=name)
    first = client.ListTopics(project=f"projects/{project}")
    second = client.ListTopics(project=f"projects/{project}", page_token=first.next_page_token)
    assert [topic.name for response in (first, second) for topic in response.topics] == names
    assert (len(first.topics), len(second.topics), second.next_page_token) == (1000, 1, "")
