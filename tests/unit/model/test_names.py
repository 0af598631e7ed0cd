"""Resource names: what is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import names
from pubsubd.model.errors import PubsubError
from tests.unit.model.conftest import refusal

KINDS: dict[str, Callable[..., None]] = {
    "topics": names.check_topic,
    "subscriptions": names.check_subscription,
    "snapshots": names.check_snapshot,
    "schemas": names.check_schema,
}
each_kind = pytest.mark.parametrize("collection", KINDS)


@each_kind
@pytest.mark.parametrize(
    "resource_id",
    [
        "abc",
        "a" * 255,
        "Az09-_.~+%",
        "abc%zz",  # no hex pair is needed
        "Googabc",  # only lower-case goog is reserved
        "GOOGabc",
        "gooabc",
        "a-goog",
    ],
)
def test_an_id_of_3_to_255_allowed_characters_is_accepted(collection: str, resource_id: str) -> None:
    KINDS[collection](f"projects/p/{collection}/{resource_id}")


@each_kind
@pytest.mark.parametrize(
    "resource_id",
    [
        "",
        "ab",
        "a" * 256,
        "1abc",
        "-abc",
        "goog",
        "goog-probe",
        "googabc",
        "ab$c",
        "ab:c",
        "ab c",
        "ab/c",
        "ab@1",
        "äbc",
        "abcé",
        "abc\n",
        "\nabc",
        "_deleted-topic_",
        "_deleted-schema_",
    ],
)
def test_any_other_id_is_refused_and_the_name_shown(collection: str, resource_id: str) -> None:
    name = f"projects/p/{collection}/{resource_id}"

    message = refusal("INVALID_ARGUMENT", KINDS[collection], name)

    assert message.startswith("Invalid resource name given (name=projects/p/")


@each_kind
@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "abc",
        "projects/{}/abc",
        "projects//{}/abc",
        "/projects/p/{}/abc",
        "projects/p/{}/abc/",
        "projects/p/{}",
        "projects/p/wrong/abc",
        "project/p/{}/abc",
        "Projects/p/{}/abc",
        "projects/p/{}/abc\n",
        "projects/p/q/{}/abc",
        "_deleted-topic_",
    ],
)
def test_a_name_of_another_shape_is_refused(collection: str, pattern: str) -> None:
    refusal("INVALID_ARGUMENT", KINDS[collection], pattern.format(collection))


@pytest.mark.parametrize("project", ["p", "test", "demo_1", "-", "example.com:proj", "123", "P", "ü", "a b"])
def test_a_project_is_any_string_without_a_slash(project: str) -> None:
    names.check_project(f"projects/{project}")
    names.check_topic(f"projects/{project}/topics/abc")


@pytest.mark.parametrize(
    "name", ["", "projects", "projects/", "p", "projects/p/", "projects/p/q", "/projects/p"]
)
def test_an_empty_project_or_another_shape_is_refused(name: str) -> None:
    assert f"(name={name})" in refusal("INVALID_ARGUMENT", names.check_project, name)


def test_the_refusal_names_the_nested_field_that_held_the_name() -> None:
    message = refusal("INVALID_ARGUMENT", names.check_topic, "nonsense", "dead_letter_topic")

    assert "(dead_letter_topic=nonsense)" in message


def test_a_name_is_taken_apart() -> None:
    assert names.leaf("projects/p/topics/t1") == "t1"
    assert names.project_of("projects/p/topics/t1") == "projects/p"


def test_a_generated_subscription_name_is_a_valid_one_in_the_project_of_the_topic() -> None:
    name = names.generated_subscription_name("projects/p", "0f8fad5b-d9cb-469f-a165-70867728950e")

    assert name == "projects/p/subscriptions/sub-0f8fad5b-d9cb-469f-a165-70867728950e"
    names.check_subscription(name)


def test_a_generated_snapshot_name_is_a_valid_one_in_the_project_of_the_subscription() -> None:
    name = names.generated_snapshot_name("projects/p", "0f8fad5b-d9cb-469f-a165-70867728950e")

    assert name == "projects/p/snapshots/snap-0f8fad5b-d9cb-469f-a165-70867728950e"
    names.check_snapshot(name)


@given(st.text() | st.text(alphabet="projects/tic-goa%~\n\0"))
def test_any_string_is_a_name_or_a_refusal(name: str) -> None:
    for check in (names.check_project, *KINDS.values()):
        try:
            check(name)
        except PubsubError as error:
            assert error.message.isascii() and error.message.isprintable()
