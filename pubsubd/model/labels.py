"""Labels of topics, subscriptions and snapshots.

Source: https://cloud.google.com/pubsub/docs/labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from pubsubd.model import errors, limits

_PLAIN_KEY: Final = re.compile(r"[a-z][a-z0-9_-]*")
_PLAIN_VALUE: Final = re.compile(r"[a-z0-9_-]*")


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that break a rule; lengths count characters, not bytes.

    Raises:
        InvalidArgument: the argument begins with "Invalid labels" and names the key and the rule.
    """
    if len(labels) > limits.LABEL_COUNT_MAX:
        raise _invalid(f"{len(labels)} labels were given, the maximum is {limits.LABEL_COUNT_MAX}")
    # Sorted, so that the key named in a refusal does not depend on the order inside a protobuf map.
    for key, value in sorted(labels.items()):
        _check_key(key)
        _check_value(key, value)


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= limits.LABEL_KEY_CHARS_MAX:
        raise _invalid(f"key '{errors.echo(key)}' must have 1 to {limits.LABEL_KEY_CHARS_MAX} characters")
    if _PLAIN_KEY.fullmatch(key):
        return
    if unicodedata.category(key[0]) not in ("Ll", "Lo"):
        raise _invalid(f"key '{errors.echo(key)}' must begin with a lower-case letter")
    if not all(map(_is_label_char, key)):
        raise _invalid(
            f"key '{errors.echo(key)}' may hold only lower-case letters, digits, underscores and hyphens"
        )


def _check_value(key: str, value: str) -> None:
    if len(value) > limits.LABEL_VALUE_CHARS_MAX:
        raise _invalid(
            f"value of key '{errors.echo(key)}' has {len(value)} characters, "
            f"the maximum is {limits.LABEL_VALUE_CHARS_MAX}"
        )
    if not _PLAIN_VALUE.fullmatch(value) and not all(map(_is_label_char, value)):
        raise _invalid(
            f"value '{errors.echo(value)}' of key '{errors.echo(key)}' may hold only lower-case letters, "
            "digits, underscores and hyphens"
        )


def _is_label_char(char: str) -> bool:
    # Letters without case, as in Chinese or Arabic, count as lower case; so do all kinds of digits.
    category = unicodedata.category(char)
    return char in "_-" or category in ("Ll", "Lo") or category.startswith("N")


def _invalid(explanation: str) -> errors.InvalidArgument:
    return errors.bad_argument(f"Invalid labels: {explanation}")
