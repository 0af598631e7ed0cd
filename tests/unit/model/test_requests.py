"""Request-level checks of pulls, acks, extensions, streams and lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import requests
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.arbitrary import any_message
from tests.unit.model.conftest import SUBSCRIPTION, TOPIC, refusal

INT32_MAX = 2**31 - 1


# --- Pull ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_messages", [1, 1000, INT32_MAX])
def test_a_pull_of_any_positive_number_is_accepted(max_messages: int) -> None:
    requests.check_pull(pb.PullRequest(subscription=SUBSCRIPTION, max_messages=max_messages))


@pytest.mark.parametrize("max_messages", [0, -1, -(2**31)])
def test_a_pull_of_no_messages_is_refused(max_messages: int) -> None:
    request = pb.PullRequest(subscription=SUBSCRIPTION, max_messages=max_messages)

    assert "(argument=max_messages)" in refusal("INVALID_ARGUMENT", requests.check_pull, request)


def test_a_pull_from_a_bad_name_is_refused() -> None:
    assert "Invalid resource name" in refusal(
        "INVALID_ARGUMENT", requests.check_pull, pb.PullRequest(subscription=TOPIC, max_messages=1)
    )


# --- Acknowledge and ModifyAckDeadline -------------------------------------------------------------------


def ack(*ack_ids: str, subscription: str = SUBSCRIPTION) -> pb.AcknowledgeRequest:
    return pb.AcknowledgeRequest(subscription=subscription, ack_ids=ack_ids)


def modack(seconds: int, *ack_ids: str, subscription: str = SUBSCRIPTION) -> pb.ModifyAckDeadlineRequest:
    return pb.ModifyAckDeadlineRequest(
        subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds
    )


def test_ack_ids_are_not_judged_with_the_request() -> None:
    requests.check_acknowledge(ack("", "nonsense", "\n"), 100)
    requests.check_modify_ack_deadline(modack(10, "", "nonsense", "\n"), 100)


@pytest.mark.parametrize("subscription", ["", "s", TOPIC])
def test_a_bad_subscription_name_is_refused(subscription: str) -> None:
    refusal("INVALID_ARGUMENT", requests.check_acknowledge, ack("a", subscription=subscription), 100)
    refusal(
        "INVALID_ARGUMENT", requests.check_modify_ack_deadline, modack(1, "a", subscription=subscription), 9
    )


def test_no_ack_ids_are_refused_in_the_words_of_the_service() -> None:
    said = "You have not specified an ack ID in the request."

    assert said == refusal("INVALID_ARGUMENT", requests.check_acknowledge, ack(), 10)
    assert said == refusal("INVALID_ARGUMENT", requests.check_modify_ack_deadline, modack(10), 10)


def test_a_request_of_524288_bytes_is_accepted_and_one_byte_more_refused() -> None:
    said = "Request payload size exceeds the limit: 524288 bytes."
    requests.check_acknowledge(ack("a"), 524_288)
    requests.check_modify_ack_deadline(modack(10, "a"), 524_288)

    assert said == refusal("INVALID_ARGUMENT", requests.check_acknowledge, ack("a"), 524_289)
    assert said == refusal("INVALID_ARGUMENT", requests.check_modify_ack_deadline, modack(10, "a"), 524_289)


@pytest.mark.parametrize("seconds", [0, 1, 9, 600])
def test_an_extension_of_0_to_600_seconds_is_accepted(seconds: int) -> None:
    requests.check_modify_ack_deadline(modack(seconds, "a"), 100)


@pytest.mark.parametrize("seconds", [-1, 601, INT32_MAX, -(2**31)])
def test_another_extension_is_refused_with_the_range(seconds: int) -> None:
    said = refusal("INVALID_ARGUMENT", requests.check_modify_ack_deadline, modack(seconds, "a"), 100)

    assert f"(ack_deadline={seconds})" in said and "between 0 and 600 seconds" in said


# --- StreamingPull ---------------------------------------------------------------------------------------


def first(**fields: object) -> pb.StreamingPullRequest:
    return pb.StreamingPullRequest(
        **{"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 10, **fields}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_ack_deadline_seconds": 600},
        {"client_id": "c", "max_outstanding_messages": 1000, "max_outstanding_bytes": 2**40},
        {"max_outstanding_messages": -1, "max_outstanding_bytes": -1},
        {"protocol_version": 1},
        {"protocol_version": 7},
        {"ack_ids": ["a"], "modify_deadline_ack_ids": ["b", "c"], "modify_deadline_seconds": [0, 600]},
    ],
    ids=str,
)
def test_a_stream_opens_with_a_request_within_the_rules(fields: dict[str, object]) -> None:
    requests.check_streaming_pull_first(first(**fields), 100)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"subscription": ""}, "Invalid resource name given (name=)"),
        ({"subscription": "s"}, "Invalid resource name given (name=s)"),
        ({"stream_ack_deadline_seconds": 0}, "(ack_deadline=0)"),
        ({"stream_ack_deadline_seconds": 9}, "between 10 and 600 seconds"),
        ({"stream_ack_deadline_seconds": 601}, "(ack_deadline=601)"),
        ({"stream_ack_deadline_seconds": -10}, "(ack_deadline=-10)"),
        ({"modify_deadline_ack_ids": ["a"]}, "modify_deadline_seconds"),
        ({"modify_deadline_seconds": [10]}, "modify_deadline_ack_ids"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [-1]}, "(ack_deadline=-1)"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [601]}, "between 0 and 600 seconds"),
        ({"protocol_version": -1}, "(argument=protocol_version)"),
    ],
    ids=str,
)
def test_a_stream_does_not_open_otherwise(fields: dict[str, object], words: str) -> None:
    said = refusal("INVALID_ARGUMENT", requests.check_streaming_pull_first, first(**fields), 100)

    assert words in said


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_ack_deadline_seconds": 0},
        {"stream_ack_deadline_seconds": 10},
        {"stream_ack_deadline_seconds": 600},
        {"ack_ids": ["a"], "modify_deadline_ack_ids": ["b"], "modify_deadline_seconds": [0]},
        {"max_outstanding_messages": 0, "protocol_version": 0, "client_id": ""},
    ],
    ids=str,
)
def test_a_stream_stays_open_on_a_later_request_within_the_rules(fields: dict[str, object]) -> None:
    requests.check_streaming_pull_later(pb.StreamingPullRequest(**fields), 100)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"subscription": SUBSCRIPTION}, "(argument=subscription)"),
        ({"client_id": "c"}, "(argument=client_id)"),
        ({"max_outstanding_messages": 5}, "(argument=max_outstanding_messages)"),
        ({"max_outstanding_messages": -5}, "(argument=max_outstanding_messages)"),
        ({"max_outstanding_bytes": 5}, "(argument=max_outstanding_bytes)"),
        ({"protocol_version": 1}, "(argument=protocol_version)"),
        ({"stream_ack_deadline_seconds": 5}, "(ack_deadline=5)"),
        ({"stream_ack_deadline_seconds": 601}, "(ack_deadline=601)"),
        ({"stream_ack_deadline_seconds": -1}, "(ack_deadline=-1)"),
        ({"modify_deadline_ack_ids": ["a"]}, "modify_deadline_seconds"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [-1]}, "(ack_deadline=-1)"),
        ({"modify_deadline_ack_ids": ["a"], "modify_deadline_seconds": [601]}, "(ack_deadline=601)"),
    ],
    ids=str,
)
def test_a_stream_ends_on_a_later_request_that_breaks_a_rule(fields: dict[str, object], words: str) -> None:
    request = pb.StreamingPullRequest(**fields)

    assert words in refusal("INVALID_ARGUMENT", requests.check_streaming_pull_later, request, 100)


def test_a_streaming_request_above_524288_bytes_is_refused() -> None:
    requests.check_streaming_pull_first(first(), 524_288)
    requests.check_streaming_pull_later(pb.StreamingPullRequest(), 524_288)

    for check, request in (
        (requests.check_streaming_pull_first, first()),
        (requests.check_streaming_pull_later, pb.StreamingPullRequest()),
    ):
        assert "524288 bytes" in refusal("INVALID_ARGUMENT", check, request, 524_289)


# --- lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [0, 1, 1000])
def test_a_page_size_of_0_to_1000_is_accepted(page_size: int) -> None:
    requests.check_list_topics(pb.ListTopicsRequest(project="projects/p", page_size=page_size))
    requests.check_list_subscriptions(pb.ListSubscriptionsRequest(project="projects/p", page_size=page_size))
    requests.check_list_topic_subscriptions(
        pb.ListTopicSubscriptionsRequest(topic=TOPIC, page_size=page_size)
    )


@pytest.mark.parametrize("page_size", [-1, 1001, INT32_MAX])
def test_another_page_size_is_refused_with_both_bounds(page_size: int) -> None:
    for check, request in (
        (requests.check_list_topics, pb.ListTopicsRequest(project="projects/p", page_size=page_size)),
        (
            requests.check_list_subscriptions,
            pb.ListSubscriptionsRequest(project="projects/p", page_size=page_size),
        ),
        (
            requests.check_list_topic_subscriptions,
            pb.ListTopicSubscriptionsRequest(topic=TOPIC, page_size=page_size),
        ),
    ):
        said = refusal("INVALID_ARGUMENT", check, request)
        for words in ("page_size", "is out of bounds", f"{page_size} was passed", "1000"):
            assert words in said


@pytest.mark.parametrize("project", ["", "p", "projects/", "projects/p/topics"])
def test_a_list_of_a_malformed_project_is_refused(project: str) -> None:
    for check, request in (
        (requests.check_list_topics, pb.ListTopicsRequest(project=project)),
        (requests.check_list_subscriptions, pb.ListSubscriptionsRequest(project=project)),
    ):
        assert f"(name={project})" in refusal("INVALID_ARGUMENT", check, request)


def test_a_list_of_a_malformed_topic_is_refused() -> None:
    request = pb.ListTopicSubscriptionsRequest(topic="t")

    assert "(name=t)" in refusal("INVALID_ARGUMENT", requests.check_list_topic_subscriptions, request)


# --- anything at all -------------------------------------------------------------------------------------


@given(st.data())
@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (pb.AcknowledgeRequest, requests.check_acknowledge),
        (pb.ModifyAckDeadlineRequest, requests.check_modify_ack_deadline),
        (pb.StreamingPullRequest, requests.check_streaming_pull_first),
        (pb.StreamingPullRequest, requests.check_streaming_pull_later),
    ],
)
def test_any_request_passes_or_is_refused(kind: type, check: object, data: st.DataObject) -> None:
    request = data.draw(any_message(kind))
    if data.draw(st.booleans()):
        request.subscription = SUBSCRIPTION
    assert callable(check)
    try:
        check(request, request.ByteSize())
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()
