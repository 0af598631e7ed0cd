"""Every target over its seeds and some hundred damaged ones, without a fuzzer: they must not rot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import Any

import pytest

from pubsubd.broker import Broker, oplog
from pubsubd.engine import engine
from pubsubd.eod import ack_id
from pubsubd.model import errors, names, paging
from pubsubd.wire.services import SERVICES
from tests.fuzz import targets
from tests.fuzz.calls import CALLS, LATER
from tests.fuzz.live import Live
from tests.fuzz.source import Source
from tests.fuzz.targets import TARGETS

_CHANGED = {"stream": 60, "unary": 80, "storage": 80}
_CHANGED_OTHERS = 400


def changed(data: bytes, other: bytes, random: Random) -> bytes:
    """What a fuzzer makes of two inputs: bytes replaced, inserted and gone, and the one behind the other."""
    mixed = bytearray(data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :])
    for _ in range(random.randint(1, 6)):
        at = random.randint(0, len(mixed))
        match random.randint(0, 2):
            case 0:
                mixed[at : at + 1] = random.randbytes(1)
            case 1:
                mixed[at:at] = random.randbytes(random.randint(1, 8))
            case _:
                del mixed[at : at + random.randint(1, 4)]
    return bytes(mixed)


def inputs(name: str) -> Iterator[bytes]:
    seeds = list(TARGETS[name].seeds())
    yield from seeds
    random = Random(name)
    for _ in range(_CHANGED.get(name, _CHANGED_OTHERS)):
        yield changed(random.choice(seeds), random.choice(seeds), random)


@pytest.mark.parametrize("name", TARGETS)
def test_no_seed_breaks_a_promise_whole_or_damaged(name: str) -> None:
    for data in inputs(name):
        TARGETS[name].run(data)


def test_every_unary_method_is_called() -> None:
    methods = [
        method
        for service in ("google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber")
        for method in SERVICES[service].values()
    ]
    assert {method.name for method in methods if not method.server_streaming} == CALLS.keys() | LATER
    for method in methods:
        assert method.name not in CALLS or CALLS[method.name].request is method.request


@pytest.mark.parametrize("name", CALLS)
def test_examples_of_requests_are_accepted_or_refused_as_they_say(name: str) -> None:
    """A harness that only ever sees refusals would look at nothing behind the checks."""
    call = CALLS[name]
    expected = [*[(one, 0) for one in call.examples(Live().ack_ids)], *[(one, 1) for one in call.refused]]
    for request, refusals in expected:
        live = Live()
        live.request(call, request.SerializeToString())
        assert live.refusals == refusals, request


def _no_exception_of_ours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "check_topic", lambda name: {}[name])


def _no_field_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors, "bad_name", lambda name, field="name": errors.InvalidArgument("No."))


def _line_break_in_a_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors, "_one_line", lambda text, chars_max: text + "\n")


def _changed_and_refused(patch: pytest.MonkeyPatch) -> None:
    delete = Broker.delete_snapshot

    def delete_and_refuse(broker: Broker, request: Any, now_us: int) -> None:
        delete(broker, request, now_us)
        raise errors.NotFound("Resource not found (resource=before).")

    patch.setattr(Broker, "delete_snapshot", delete_and_refuse)


def _acks_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(oplog, "finished", lambda record: b"")


def _everything_matches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(targets, "compile_filter", lambda tree: lambda attributes: True)


def _names_with_line_breaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "_TOPIC", re.compile(names._TOPIC.pattern + r"\s*", re.DOTALL))


def _tags_without_a_secret(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ack_id, "blake2b", lambda key, digest_size: blake2b(digest_size=digest_size))
    patch.setattr(targets, "_genuine", targets._genuine.__wrapped__)


def _any_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(paging.hmac, "compare_digest", lambda one, other: True)


def _any_error_at_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "Damaged", type("Other", (Exception,), {}))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("unary", _no_exception_of_ours),
        ("unary", _no_field_named),
        ("unary", _line_break_in_a_refusal),
        ("unary", _changed_and_refused),
        ("unary", _acks_are_not_stored),
        ("stream", _no_field_named),
        ("stream", _acks_are_not_stored),
        ("filters", _everything_matches),
        ("names", _names_with_line_breaks),
        ("ack-ids", _tags_without_a_secret),
        ("page-tokens", _any_token),
        ("storage", _any_error_at_start),
    ],
)
def test_a_server_with_a_fault_is_found_out(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    TARGETS[name].run(b"")  # what every input begins with is made without the fault
    fault(monkeypatch)

    with pytest.raises(Exception):  # noqa: B017 (whatever comes out of a target is a finding)
        for data in inputs(name):
            TARGETS[name].run(data)


def test_an_input_that_has_ended_gives_zeros() -> None:
    source = Source(b"")
    assert (source.byte(), source.blob(), source.number(0, 9), source.is_empty) == (0, b"", 0, True)
