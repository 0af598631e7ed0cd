"""What happened, in order: a hash of everything, and the last lines of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

LINES = 40


class Trace:
    def __init__(self, now_us: Callable[[], int], lines: int | None = LINES) -> None:
        self._now_us = now_us
        self._hash = blake2b(digest_size=16)
        self._lines: deque[tuple[int, str, str, Any]] = deque(maxlen=lines)
        self.whole = lines is None
        self.events = 0

    def note(self, who: str, what: str, data: bytes = b"", shown: Any = "") -> None:
        """`data` belongs to what one history is told from another by; `shown` is for people."""
        self.events += 1
        now_us = self._now_us()
        self._lines.append((now_us, who, what, shown))
        self._hash.update(f"{now_us} {who} {what} {len(data)} ".encode() + data)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def text(self, rewrite: Callable[[str], str] = lambda text: text) -> str:
        """`rewrite` may make names readable."""
        if not self._lines:
            return ""
        begun_us = self._lines[0][0]
        lines = []
        for at_us, who, what, shown in self._lines:
            text = shown if isinstance(shown, str) else " ".join(str(shown).split())
            line = rewrite(f"{what} {text}".rstrip())
            line = line if len(line) <= 400 else f"{line[:400]}..."
            lines.append(f"{at_us // 1_000_000}.{at_us % 1_000_000:06d} {who:<14} {line}")
        return f"(times in seconds; the first line is at {begun_us} us)\n" + "\n".join(lines)
