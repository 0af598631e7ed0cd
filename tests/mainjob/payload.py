"""The payload of a message: its number, then filler that shows whether it arrived whole."""

from __future__ import annotations

_DIGITS = 12
SIZE_MIN = _DIGITS


def make_payload(seq: int, size: int) -> bytes:
    return b"%0*d" % (_DIGITS, seq) + _filler(size)


def read_payload(data: bytes, size: int) -> int:
    """The number of the message; ValueError when it is not the payload that was published."""
    if len(data) != size or data[_DIGITS:] != _filler(size):
        raise ValueError(f"a payload of {len(data)} bytes that was never published")
    return int(data[:_DIGITS])


def _filler(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[: size - _DIGITS]
