"""Pages of sorted names, and the tokens that join them.

A token says where the last page ended, by name, so it stays good when that resource is deleted in between and
when the page size changes. It carries a checksum, keyed with a secret of this server, over the list that it
belongs to (method and parent) and the name: a token of another list, of another server, or altered, is
refused instead of starting somewhere by chance.

    token = base64url(version, 1 byte | checksum, 8 bytes | boundary name, UTF-8), without padding

Source: ListTopicsRequest.page_token, ListTopicsResponse.next_page_token and their relatives.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from pubsubd.model import errors, limits, requests

_VERSION: Final = b"\x01"
_CHECKSUM_BYTES: Final = 8


def page(
    names: Sequence[str], context: str, page_size: int, page_token: str, secret: bytes
) -> tuple[list[str], str]:
    """The page that follows `page_token`, and the token of the next one, empty at the end.

    `names` is in ascending order; `context` names the list, as in `ListTopics projects/p`; `secret` is 16 to
    64 bytes that only this server knows, and stays the same when the server is started again.

    Raises:
        InvalidArgument: the page size is out of bounds, or the token was not made for this list.
    """
    requests.check_page_size(page_size)
    start = bisect_right(names, _boundary(page_token, context, secret)) if page_token else 0
    end = start + (page_size or limits.PAGE_SIZE_DEFAULT)
    chosen = list(names[start:end])
    if end >= len(names):
        return chosen, ""
    return chosen, _token(chosen[-1], context, secret)


def _token(boundary: str, context: str, secret: bytes) -> str:
    name = boundary.encode()
    raw = _VERSION + _checksum(name, context, secret) + name
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _boundary(token: str, context: str, secret: bytes) -> str:
    try:
        raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        boundary = raw[len(_VERSION) + _CHECKSUM_BYTES :].decode()
    except ValueError:  # not ASCII, not base64, or not UTF-8 inside
        raise errors.bad_token(token) from None
    # Base64 decoders skip what they do not know and ignore spare bits. Making the token again, and comparing
    # all of it, accepts exactly the tokens that this server writes.
    expected = _token(boundary, context, secret)
    if not hmac.compare_digest(token.encode(), expected.encode()):
        raise errors.bad_token(token)
    return boundary


def _checksum(name: bytes, context: str, secret: bytes) -> bytes:
    place = context.encode()
    # With its length in front no part of the context can pass for a part of the name.
    text = b"%d:%b%b" % (len(place), place, name)
    return blake2b(_VERSION + text, digest_size=_CHECKSUM_BYTES, key=secret).digest()
