"""Numbers for clients."""

from __future__ import annotations

import pytest

from pubsubd.broker.clients import Clients
from pubsubd.model import limits


def test_a_name_keeps_its_number() -> None:
    clients = Clients(41)

    assert [clients.intern(name) for name in ("a", "b", "a")] == [(42, True), (43, True), (42, False)]
    assert clients.last_id == 43


def test_a_forgotten_name_gets_a_new_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 2)
    clients = Clients(0)
    for name in ("a", "b", "c"):
        clients.intern(name)

    assert clients.intern("c") == (3, False)
    assert clients.intern("a") == (4, True)
    assert len(clients._ids) == 2
