"""What a call is answered when some of its ids failed."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.eod.answer import (
    DOMAIN,
    PERMANENT,
    REASON,
    UNAVAILABLE,
    UNORDERED,
    Answer,
    Policy,
    answer,
    undecided,
)
from pubsubd.model.errors import INVALID_ACK_IDS_TEXT, UNORDERED_ACK_IDS_TEXT

POLICIES: tuple[Policy, ...] = get_args(Policy)
RESULTS = (PERMANENT, UNORDERED, UNAVAILABLE)

batches = st.dictionaries(st.text(max_size=3), st.sampled_from([*RESULTS, None]), min_size=1, max_size=8)


def answered(results: dict[str, str | None], policy: Policy) -> Answer:
    failed = {ack_id: result for ack_id, result in results.items() if result is not None}
    found = answer(list(results), failed, policy)
    assert found is not None
    return found


def test_the_words_on_the_wire() -> None:
    assert REASON == "EXACTLY_ONCE_ACKID_FAILURE"
    assert DOMAIN == "pubsub.googleapis.com"
    assert PERMANENT == "PERMANENT_FAILURE_INVALID_ACK_ID"
    assert UNORDERED == "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
    assert UNAVAILABLE == "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"
    assert {"omit", "confirm", "abort"} == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_failed_is_ok(policy: Policy) -> None:
    assert answer(["a", "b"], {}, policy) is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("results", "status"),
    [
        ({"a": PERMANENT}, "INVALID_ARGUMENT"),
        ({"a": UNORDERED}, "ABORTED"),
        ({"a": UNAVAILABLE}, "ABORTED"),
        ({"a": UNORDERED, "b": UNAVAILABLE}, "ABORTED"),
        # One permanent failure decides.
        ({"a": PERMANENT, "b": UNAVAILABLE}, "INVALID_ARGUMENT"),
        ({"a": UNORDERED, "b": PERMANENT}, "INVALID_ARGUMENT"),
    ],
)
def test_a_batch_without_a_good_id_is_answered_alike_under_every_policy(
    results: dict[str, str | None], status: str, policy: Policy
) -> None:
    found = answered(results, policy)

    assert status == found.status
    assert results == found.metadata


@pytest.mark.parametrize(
    ("policy", "status", "metadata"),
    [
        ("omit", "INVALID_ARGUMENT", {"bad": PERMANENT}),
        ("confirm", "INVALID_ARGUMENT", {"bad": PERMANENT, "good": UNAVAILABLE}),
        ("abort", "ABORTED", {"bad": PERMANENT}),
    ],
)
def test_a_good_id_beside_a_permanent_failure(policy: Policy, status: str, metadata: dict[str, str]) -> None:
    found = answered({"good": None, "bad": PERMANENT}, policy)

    assert (status, metadata) == (found.status, found.metadata)


@pytest.mark.parametrize(
    ("policy", "metadata"),
    [
        ("omit", {"bad": UNORDERED}),
        # One rule for both codes: the good ids are listed in ABORTED as well.
        ("confirm", {"bad": UNORDERED, "good": UNAVAILABLE}),
        ("abort", {"bad": UNORDERED}),
    ],
)
def test_a_good_id_beside_a_transient_failure(policy: Policy, metadata: dict[str, str]) -> None:
    found = answered({"good": None, "bad": UNORDERED}, policy)

    assert ("ABORTED", metadata) == (found.status, found.metadata)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ([PERMANENT], INVALID_ACK_IDS_TEXT),
        ([UNORDERED], UNORDERED_ACK_IDS_TEXT),
        ([UNORDERED, UNAVAILABLE], UNORDERED_ACK_IDS_TEXT),
        ([PERMANENT, UNORDERED], INVALID_ACK_IDS_TEXT),
        ([PERMANENT, UNAVAILABLE], INVALID_ACK_IDS_TEXT),
    ],
)
def test_the_message_is_the_one_that_log_filters_know(
    failed: list[str], message: str, policy: Policy
) -> None:
    results: dict[str, str | None] = {f"id{n}": result for n, result in enumerate(failed)}

    assert message == answered({**results, "good": None}, policy).message


@pytest.mark.parametrize("policy", POLICIES)
def test_a_transient_failure_alone_does_not_speak_of_invalid_ids(policy: Policy) -> None:
    assert answered({"a": UNAVAILABLE}, policy).message not in (INVALID_ACK_IDS_TEXT, UNORDERED_ACK_IDS_TEXT)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_id_that_is_repeated_is_listed_once(policy: Policy) -> None:
    found = answer(["bad", "good", "bad", "good"], {"bad": PERMANENT}, policy)

    assert found is not None
    assert found.metadata == answered({"bad": PERMANENT, "good": None}, policy).metadata


def test_an_id_is_a_key_as_it_came() -> None:
    odd = ["", " x ", "ä\n", "x" * 300]

    assert dict.fromkeys(odd, PERMANENT) == answered(dict.fromkeys(odd, PERMANENT), "omit").metadata


def test_the_failures_that_were_handed_in_stay_as_they_are() -> None:
    failed = {"bad": PERMANENT}

    answer(["good", "bad"], failed, "confirm")

    assert failed == {"bad": PERMANENT}


@given(batches, st.sampled_from(POLICIES))
def test_every_answer_can_be_read_by_every_client(results: dict[str, str | None], policy: Policy) -> None:
    failed = {ack_id: result for ack_id, result in results.items() if result is not None}
    found = answer(list(results), failed, policy)
    if not failed:
        assert found is None
        return

    assert found is not None
    # UNAVAILABLE would be retried below the libraries' exactly-once logic, and its map never seen.
    assert found.status in ("INVALID_ARGUMENT", "ABORTED")
    assert found.message.isascii() and found.message.isprintable() and "%" not in found.message
    assert set(found.metadata.values()) <= set(RESULTS)
    assert failed.items() <= found.metadata.items()
    others = {ack_id: result for ack_id, result in found.metadata.items() if ack_id not in failed}
    good = [ack_id for ack_id in results if ack_id not in failed]
    assert others == (dict.fromkeys(good, UNAVAILABLE) if policy == "confirm" else {})


@pytest.mark.parametrize(("policy", "result"), list(product(POLICIES, RESULTS)))
def test_results_have_the_prefixes_that_clients_go_by(policy: Policy, result: str) -> None:
    (value,) = answered({"a": result}, policy).metadata.values()

    assert value.startswith(("PERMANENT_FAILURE_", "TRANSIENT_FAILURE_"))


def test_undecided_is_neither_success_nor_failure_for_any_id() -> None:
    found = undecided(["a", "b", "a"])

    assert found.status == "ABORTED"
    assert found.metadata == {"a": UNAVAILABLE, "b": UNAVAILABLE}
    assert found.message.isascii() and found.message.isprintable()
