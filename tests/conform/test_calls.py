"""How a refusal is read: what makes one valid, and what each flaw is called.

The refusals are made here, so that each flaw stands alone; a server of ours has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from pubsubd.conform.calls import (
    DOMAIN,
    PERMANENT,
    REASON,
    TRANSIENT,
    UNORDERED,
    about,
    permanent,
    refused,
    refused_with_trailer,
    request_refused,
    transient,
    unordered,
)
from pubsubd.conform.case import Failed
from pubsubd.conform.runner import Outcome, judge

TEXT = "Some ids were refused."


def info(results: dict[str, str], reason: str = REASON, domain: str = DOMAIN) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=results)


def packed(*details) -> list[Any]:
    found = []
    for detail in details:
        found.append(Any())
        found[-1].Pack(detail)
    return found


class Refused(grpc.aio.AioRpcError):
    """A refusal with this status; `trailer` is the Status beside it, None for no trailer."""

    def __init__(self, code: StatusCode, trailer: status_pb2.Status | None, text: str = TEXT) -> None:
        metadata = grpc.aio.Metadata()
        if trailer is not None:
            metadata.add("grpc-status-details-bin", trailer.SerializeToString())
        super().__init__(code, grpc.aio.Metadata(), metadata, text)


def with_results(code: StatusCode, *details, text: str = TEXT) -> Refused:
    return Refused(code, status_pb2.Status(code=code.value[0], message=text, details=packed(*details)), text)


@contextmanager
def fails(text: str) -> Iterator[None]:
    with pytest.raises(Failed, match=text):
        yield


def expect(expectation, error: Exception | None) -> None:
    with expectation:
        if error is not None:
            raise error


GOOD = {
    "permanent": (permanent, with_results(StatusCode.INVALID_ARGUMENT, info({"a": PERMANENT}))),
    "transient": (transient, with_results(StatusCode.ABORTED, info({"a": TRANSIENT}))),
    "unordered": (unordered, with_results(StatusCode.ABORTED, info({"a": UNORDERED}))),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_valid_refusal_is_accepted(kind):
    expectation, error = GOOD[kind]

    expect(expectation("a"), error)


@pytest.mark.parametrize("kind", GOOD)
def test_an_answer_is_no_refusal(kind):
    with fails("The call was answered OK, not refused with"):
        expect(GOOD[kind][0]("a"), None)


@pytest.mark.parametrize(
    ("flaw", "details", "says"),
    [
        ("no detail", [], "without an ErrorInfo"),
        (
            "other detail first",
            [error_details_pb2.DebugInfo(), info({"a": PERMANENT})],
            "first detail is not",
        ),
        ("two", [info({"a": PERMANENT}), info({"b": PERMANENT})], "has 2 ErrorInfos"),
        ("reason", [info({"a": PERMANENT}, reason="OTHER")], "reason 'OTHER'"),
        ("domain", [info({"a": PERMANENT}, domain="other.com")], "domain 'other.com'"),
        ("id missing", [info({"b": PERMANENT})], "The result of an ack id is absent"),
        ("other result", [info({"a": TRANSIENT})], f"is {TRANSIENT}, not {PERMANENT}"),
    ],
)
def test_each_flaw_of_a_permanent_refusal_is_found(flaw, details, says):
    with fails(says):
        expect(permanent("a"), with_results(StatusCode.INVALID_ARGUMENT, *details))


@pytest.mark.parametrize("expectation", [permanent, transient, unordered])
def test_a_refusal_without_a_trailer_fails(expectation):
    code = StatusCode.INVALID_ARGUMENT if expectation is permanent else StatusCode.ABORTED
    with fails("without a grpc-status-details-bin trailer"):
        expect(expectation("a"), Refused(code, None))


@pytest.mark.parametrize(
    ("code", "text", "says"),
    [(StatusCode.ABORTED, TEXT, "its trailer says code 10"), (StatusCode.INVALID_ARGUMENT, "x", "says 'x'")],
)
def test_a_trailer_that_contradicts_its_call_fails_wherever_a_refusal_is_read(code, text, says):
    trailer = status_pb2.Status(code=code.value[0], message=text, details=packed(info({"a": PERMANENT})))
    for expectation in (permanent("a"), transient("a"), refused(StatusCode.INVALID_ARGUMENT)):
        with fails(says):
            expect(expectation, Refused(StatusCode.INVALID_ARGUMENT, trailer))


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("details", [[], [info({"quota_limit": "9"}, reason="RATE_LIMIT_EXCEEDED")]])
def test_what_judged_no_ack_id_is_no_refusal_of_one(code, details):
    with pytest.raises(Refused):
        expect(transient("a"), with_results(code, *details))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Refused(StatusCode.UNAVAILABLE, None), Outcome.ERROR),
        (with_results(StatusCode.RESOURCE_EXHAUSTED, info({}, reason="RATE_LIMIT_EXCEEDED")), Outcome.ERROR),
        (with_results(StatusCode.UNAVAILABLE, info({"a": TRANSIENT})), Outcome.FAIL),
        (with_results(StatusCode.INVALID_ARGUMENT, info({"a": PERMANENT})), Outcome.FAIL),
    ],
)
def test_a_refusal_that_no_case_expected_is_a_fail_if_ack_ids_were_judged(error, outcome):
    error.__notes__ = ["Acknowledge"]

    assert judge(error)[0] is outcome


def test_a_permanent_refusal_has_its_own_code():
    with fails("refused with ABORTED"):
        expect(permanent("a"), with_results(StatusCode.ABORTED, info({"a": PERMANENT})))


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.CANCELLED])
@pytest.mark.parametrize(("expectation", "result"), [(transient, TRANSIENT), (unordered, UNORDERED)])
def test_results_under_a_code_that_clients_misread_fail(expectation, result, code):
    with fails(f"results under {code.name}"):
        expect(expectation("a"), with_results(code, info({"a": result})))


def test_a_transient_refusal_leaves_the_code_and_the_kind_open():
    expect(transient("a"), with_results(StatusCode.FAILED_PRECONDITION, info({"a": UNORDERED})))


@pytest.mark.parametrize("result", ["TRANSIENT", "TRANSIENT_X", "FAILURE", PERMANENT])
def test_a_transient_result_has_the_full_prefix(result):
    with fails("not TRANSIENT_FAILURE_"):
        expect(transient("a"), with_results(StatusCode.ABORTED, info({"a": result})))


@pytest.mark.parametrize(("expectation", "result"), [(transient, TRANSIENT), (unordered, UNORDERED)])
def test_nothing_permanent_stands_beside_a_transient_result(expectation, result):
    with fails("1 of the results are PERMANENT"):
        expect(expectation("a"), with_results(StatusCode.ABORTED, info({"a": result, "b": PERMANENT})))


@pytest.mark.parametrize("text", ["two\nlines", "é"])
def test_the_message_of_a_refusal_is_one_line_of_ascii(text):
    with fails("is not one line of ASCII"):
        expect(permanent("a"), with_results(StatusCode.INVALID_ARGUMENT, info({"a": PERMANENT}), text=text))


def test_a_refusal_of_the_whole_request_has_no_results():
    code = StatusCode.INVALID_ARGUMENT
    expect(request_refused(code), with_results(code))
    expect(request_refused(code), with_results(code, info({}, reason="OTHER")))
    with fails("The refusal of the whole request carries an ErrorInfo"):
        expect(request_refused(code), with_results(code, info({})))


def test_a_refusal_without_results_still_has_a_trailer():
    with fails("without a grpc-status-details-bin trailer"):
        expect(refused_with_trailer(StatusCode.NOT_FOUND), Refused(StatusCode.NOT_FOUND, None))
    expect(refused(StatusCode.NOT_FOUND), Refused(StatusCode.NOT_FOUND, None))


def test_a_sentence_says_of_which_call_it_is():
    with fails("^The ack of m2 was answered OK, not refused with NOT_FOUND"):
        expect_about("The ack of m2", refused(StatusCode.NOT_FOUND), None)
    with fails("^The ack of m2 was refused with NOT_FOUND .*, without a grpc"):
        error = Refused(StatusCode.NOT_FOUND, None)
        expect_about("The ack of m2", refused_with_trailer(StatusCode.NOT_FOUND), error)

    with fails("^The ack of m2: The first detail"):
        error = with_results(StatusCode.INVALID_ARGUMENT, error_details_pb2.DebugInfo(), info({}))
        expect_about("The ack of m2", permanent("a"), error)


def expect_about(what: str, expectation, error: Exception | None) -> None:
    with about(what):
        expect(expectation, error)
