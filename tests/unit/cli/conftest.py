"""What the tests of the command line share: a run of it that serves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pubsubd import cli
from pubsubd.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PUBSUBD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """`parse("--port", "0")` is the settings that the server would have been run with."""
    served: list[Settings] = []
    monkeypatch.setattr(cli, "_serve", served.append)

    def run(*arguments: str) -> Settings:
        served.clear()
        assert cli.main(arguments) == 0
        (settings,) = served
        return settings

    return run


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refuse("--prot", "0")` is the one line on stderr; that it is one, and the status 2, are checked."""

    def never(settings: Settings) -> None:
        raise AssertionError(f"served with {settings}")

    monkeypatch.setattr(cli, "_serve", never)

    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("pubsubd: ")
        assert output.err.count("\n") == 1
        return output.err

    return run
