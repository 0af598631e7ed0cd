"""Message transforms: the rules on their fields. Whether the code of a UDF parses is not decided here.

Source: MessageTransform, JavaScriptUDF, Compression, AIInference, and
https://cloud.google.com/pubsub/docs/smts/smts-overview.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pubsubd.model import errors, limits
from pubsubd.wire import pb

_FIELD: Final = "message_transforms"
_AI_ENDPOINT: Final = re.compile(
    r"projects/[^/\s]+/locations/[^/\s]+/(?:endpoints/[^/\s]+|publishers/[^/\s]+/models/[^/\s]+)"
)


def check_transforms(transforms: Sequence[pb.MessageTransform]) -> None:
    """Refuse a list of transforms that breaks a rule; disabled ones must be valid too, but do not count.

    Raises:
        InvalidArgument: naming the field and the rule.
    """
    enabled = sum(not transform.disabled for transform in transforms)
    if enabled > limits.TRANSFORM_COUNT_MAX:
        raise errors.bad_argument(
            _FIELD,
            f"{enabled} transforms are enabled, which exceeds the maximum number of enabled message "
            f"transforms ({limits.TRANSFORM_COUNT_MAX})",
        )
    functions: set[str] = set()
    for transform in transforms:
        kind = transform.WhichOneof("transform")
        if kind is None:
            raise errors.bad_argument(_FIELD, "each transform must be of exactly one kind")
        if kind == "javascript_udf":
            _check_udf(transform.javascript_udf, functions)
        elif kind == "compression":
            _check_compression(transform.compression)
        else:
            _check_inference(transform.ai_inference)


def _check_udf(udf: pb.JavaScriptUDF, functions: set[str]) -> None:
    """`functions` holds the names used so far and gains this one."""
    field = f"{_FIELD}.javascript_udf"
    name = udf.function_name
    # JavaScript allows a dollar sign where Python does not; otherwise the two agree on identifiers.
    if not name.replace("$", "_").isidentifier():
        raise errors.bad_argument(
            f"{field}.function_name", f"'{errors.echo(name)}' is not a JavaScript identifier"
        )
    if name in functions:
        raise errors.bad_argument(f"{field}.function_name", f"'{errors.echo(name)}' is used more than once")
    functions.add(name)
    code_bytes = len(udf.code.encode())
    if not 1 <= code_bytes <= limits.UDF_CODE_BYTES_MAX:
        raise errors.bad_argument(
            f"{field}.code", f"it has {code_bytes} bytes and must have 1 to {limits.UDF_CODE_BYTES_MAX}"
        )


def _check_compression(compression: pb.Compression) -> None:
    field = f"{_FIELD}.compression"
    if compression.compression_algorithm != pb.Compression.ZLIB:
        raise errors.bad_argument(f"{field}.compression_algorithm", "it must be ZLIB")
    if compression.compression_mode not in (pb.Compression.COMPRESS, pb.Compression.DECOMPRESS):
        raise errors.bad_argument(f"{field}.compression_mode", "it must be COMPRESS or DECOMPRESS")


def _check_inference(inference: pb.AIInference) -> None:
    if _AI_ENDPOINT.fullmatch(inference.endpoint) is None:
        raise errors.bad_argument(
            f"{_FIELD}.ai_inference.endpoint",
            f"'{errors.echo(inference.endpoint)}' is neither projects/*/locations/*/endpoints/* nor "
            "projects/*/locations/*/publishers/*/models/*",
        )
