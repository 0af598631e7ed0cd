"""Message transforms: checked already, though running them is later work."""

from __future__ import annotations

import pytest

from pubsubd.model.transforms import check_transforms
from pubsubd.wire import pb
from tests.unit.model.conftest import refusal


def udf(name: str = "f", code: str = "x", **fields: object) -> pb.MessageTransform:
    return pb.MessageTransform(javascript_udf={"function_name": name, "code": code}, **fields)


def compression(algorithm: int, mode: int) -> pb.MessageTransform:
    return pb.MessageTransform(compression={"compression_algorithm": algorithm, "compression_mode": mode})


def inference(endpoint: str) -> pb.MessageTransform:
    return pb.MessageTransform(ai_inference={"endpoint": endpoint})


ENDPOINT = "projects/p/locations/l/endpoints/e"
MODEL = "projects/p/locations/l/publishers/g/models/m"


@pytest.mark.parametrize(
    "transforms",
    [
        [],
        [udf(f"f{n}") for n in range(5)],
        [udf(f"f{n}", disabled=n >= 5) for n in range(9)],
        [udf("$f_1", "x" * 20_480)],
        [compression(1, 1), compression(1, 2)],
        [inference(ENDPOINT), inference(MODEL)],
    ],
    ids=str,
)
def test_transforms_within_the_rules_are_accepted(transforms: list[pb.MessageTransform]) -> None:
    check_transforms(transforms)


@pytest.mark.parametrize(
    "transforms",
    [
        [udf(f"f{n}") for n in range(6)],
        [pb.MessageTransform()],
        [pb.MessageTransform(disabled=True)],
        [udf("")],
        [udf("1f")],
        [udf("f g")],
        [udf("f"), udf("f")],
        [udf("f", "")],
        [udf("f", "x" * 20_481)],
        [compression(0, 1)],
        [compression(1, 0)],
        [compression(1, 3)],
        [inference("")],
        [inference("projects/p/locations/l/models/m")],
        [inference(ENDPOINT + "/x")],
    ],
    ids=lambda transforms: str(transforms)[:80],
)
def test_transforms_outside_the_rules_are_refused(transforms: list[pb.MessageTransform]) -> None:
    assert "message_transforms" in refusal("INVALID_ARGUMENT", check_transforms, transforms)


def test_too_many_enabled_transforms_are_refused_with_the_maximum() -> None:
    message = refusal("INVALID_ARGUMENT", check_transforms, [udf(f"f{n}") for n in range(6)])

    assert "maximum number of enabled message transforms (5)" in message


def test_the_deprecated_field_enabled_changes_nothing() -> None:
    refusal("INVALID_ARGUMENT", check_transforms, [udf(f"f{n}", enabled=False) for n in range(6)])
