"""Logging: one line per record on stderr, for a person (text) or for a machine (JSON)."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from pubsubd.settings import LogFormat, LogLevel


class TextFormatter(logging.Formatter):
    """`2026-11-21 09:15:02.123 WARNING pubsubd.server: …` in local time; a traceback follows line by line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Names and ids that clients choose end up in messages. A line break in one must not be able to
        # forge a second record.
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and `exc` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        entry = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(level: LogLevel, log_format: LogFormat) -> None:
    """Replace whatever logging was set up before by one handler on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    chosen = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("pubsubd").setLevel(chosen)
    # Libraries report each statement and each timer at the lower levels; that would bury our own lines.
    logging.basicConfig(handlers=[handler], level=max(chosen, logging.WARNING), force=True)
