"""Where the shared port listens, and what it says when it cannot."""

from __future__ import annotations

import socket

import pytest

from pubsubd.rest.front import CannotListen, listen, peer_name
from pubsubd.settings import loopback_hosts

HAS_IPV6 = len(loopback_hosts()) == 2
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


def close(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


@needs_ipv6
def test_every_host_listens_on_the_same_port() -> None:
    listeners = listen(("127.0.0.1", "::1"), 0)
    try:
        ports = {listener.getsockname()[1] for listener in listeners}
        assert len(ports) == 1 and len(listeners) == 2
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, *ports), timeout=5).close()
    finally:
        close(listeners)


@needs_ipv6
def test_a_port_that_is_taken_on_one_host_is_taken() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"^\[::1\]:{port}$"):
            listen(("127.0.0.1", "::1"), port)
        # Nothing is left listening on the other one.
        close(listen(("127.0.0.1",), port))


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(CannotListen, match=r"^192\.0\.2\.1:0$"):
        listen(("192.0.2.1",), 0)


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 70])
def test_a_name_that_is_none_is_named(host: str) -> None:
    with pytest.raises(CannotListen, match=host):
        listen((host,), 0)


@needs_ipv6
def test_the_wildcard_of_the_newer_family_is_both() -> None:
    listeners = listen(("::",), 0)
    try:
        port = listeners[0].getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()
    finally:
        close(listeners)


def test_addresses_are_written_as_grpc_writes_them() -> None:
    assert peer_name(("127.0.0.1", 5)) == "ipv4:127.0.0.1:5"
    assert peer_name(("::1", 5, 0, 0)) == "ipv6:%5B::1%5D:5"
