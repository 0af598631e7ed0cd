"""One record is one line, for a person and for a machine."""

from __future__ import annotations

import json
import logging
import re

import pytest

from pubsubd import logs


@pytest.fixture(autouse=True)
def _restore_logging():
    root, ours = logging.getLogger(), logging.getLogger("pubsubd")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def logged(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_text_is_time_level_logger_and_message(capsys):
    logs.configure("info", "text")
    logging.getLogger("pubsubd.server").info("ack refused: %s", "expired")

    (line,) = logged(capsys)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO pubsubd\.server: ack refused: expired", line
    )


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_forge_a_record_with_a_line_break(capsys, log_format):
    logs.configure("info", log_format)
    logging.getLogger("pubsubd.server").info("no such topic: %s", "x\r\n2026-01-01 ERROR forged")

    assert len(logged(capsys)) == 1


def test_json_is_one_object_a_line(capsys):
    logs.configure("info", "json")
    logging.getLogger("pubsubd.server").warning('topic "%s"', "é\n\udcff")

    (line,) = logged(capsys)
    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry["time"])
    assert tuple(list(entry.values())[1:]) == ("WARNING", "pubsubd.server", 'topic "é\n\udcff"')


def test_json_carries_an_exception_inside_its_line(capsys):
    logs.configure("info", "json")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("pubsubd.server").exception("failed")

    (line,) = logged(capsys)
    assert json.loads(line)["exc"].endswith("ValueError: broken")


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_ours(capsys, level, count):
    logs.configure(level, "text")
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("pubsubd.engine"), name)("said")

    assert count == len(logged(capsys))


def test_libraries_are_heard_from_warning_on_whatever_our_level(capsys):
    logs.configure("debug", "text")
    logging.getLogger("aiosqlite").debug("executing")
    logging.getLogger("asyncio").warning("slow")

    assert len(logged(capsys)) == 1
