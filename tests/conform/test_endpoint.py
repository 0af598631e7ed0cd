"""How an endpoint is reached: in the clear, over TLS, and with application default credentials.

The real service is not asked. What stands in for it is a TLS endpoint in front of our own server, and the
credentials are those of Google's own library, with a key and a token endpoint of the test.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import grpc
import pytest

from pubsubd.conform import cases  # noqa: F401 (registers the cases that are run here)
from pubsubd.conform.case import REGISTRY
from pubsubd.conform.endpoint import Endpoint, EndpointError, endpoint_of
from pubsubd.conform.lab import Lab, Setting
from pubsubd.conform.runner import Outcome, Runner
from tests.conform.secured import Authority, gated, service_account, tls_proxy
from tests.conform.support import Notes

# Unary calls and streams, results in trailers, redelivery, order, attempts: each of some seconds at most.
HANDFUL = ["CT-02", "CT-26", "CS-01", "CS-20", "CS-26", "CE-08", "CN-03", "CO-01", "CO-04", "CD-02"]

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


async def run_a_handful(endpoint: Endpoint) -> None:
    results = await Runner(Setting(endpoint), [REGISTRY[each] for each in HANDFUL], Notes()).run()
    assert {result.case.id: (result.outcome, result.seen) for result in results} == {
        result.case.id: (Outcome.PASS, result.seen) for result in results
    }


# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8085", "localhost:8085"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[::1]:8085", "[::1]:8085"),
        ("pubsub.example.com:443", "pubsub.example.com:443"),
        ("localhost.googleapis.com.example:1", "localhost.googleapis.com.example:1"),
    ],
)
def test_an_address_is_reached_in_the_clear_unless_said_otherwise(text, address):
    assert endpoint_of(text) == Endpoint(address)


@pytest.mark.parametrize("text", ["pubsub.googleapis.com", "europe-west1-pubsub.googleapis.com:443"])
def test_the_real_service_implies_tls(text):
    endpoint = endpoint_of(text, adc=False)

    assert endpoint.address.endswith(".googleapis.com:443")
    assert endpoint.credentials is not None


def test_the_real_service_implies_credentials(monkeypatch, tmp_path):
    with service_account(tmp_path, TOKEN) as (file, asked):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        assert endpoint_of("pubsub.googleapis.com").credentials is not None
        assert asked == []  # nothing is asked for before the first call

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(EndpointError, match="no application default credentials"):
        endpoint_of("pubsub.googleapis.com")


@pytest.mark.parametrize("text", ["", "localhost", "host:0", "host:65536", "a:b:1", "::1:8085", "http://h:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(EndpointError):
        endpoint_of(text)


def test_a_certificate_or_credentials_without_tls_are_refused(authority):
    with pytest.raises(EndpointError, match="--ca-cert and --no-tls"):
        endpoint_of("localhost:1", tls=False, ca_cert=authority.file)
    with pytest.raises(EndpointError, match="--adc and --no-tls"):
        endpoint_of("pubsub.googleapis.com", tls=False)


def test_a_missing_certificate_is_told(tmp_path):
    with pytest.raises(EndpointError, match=r"none\.pem cannot be read"):
        endpoint_of("localhost:1", ca_cert=tmp_path / "none.pem")


def test_a_file_without_a_certificate_is_told(tmp_path):
    (tmp_path / "other.pem").write_text("localhost\n")

    with pytest.raises(EndpointError, match=r"other\.pem holds no certificate in PEM form"):
        endpoint_of("localhost:1", ca_cert=tmp_path / "other.pem")


def test_a_missing_extra_is_told_with_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.auth", None)

    with pytest.raises(EndpointError, match=r"pip install 'pubsubd\[google\]'"):
        endpoint_of("localhost:1", adc=True)


# --- TLS ----------------------------------------------------------------------------------------------------


async def test_cases_pass_over_tls(server, authority):
    async with tls_proxy(server.address, authority.context()) as address:
        endpoint = endpoint_of(address, ca_cert=authority.file)
        await endpoint.answers("conformance", within=10)
        await run_a_handful(endpoint)


async def test_a_certificate_that_is_not_trusted_lets_nothing_through(server, authority, tmp_path):
    other = Authority(tmp_path)
    async with tls_proxy(server.address, authority.context()) as address:
        for endpoint in (endpoint_of(address, ca_cert=other.file), endpoint_of(address, tls=True)):
            with pytest.raises(EndpointError, match="no gRPC answer from"):
                await endpoint.answers("conformance", within=0.5)
        await endpoint_of(address, ca_cert=authority.file).answers("conformance", within=10)


async def test_tls_where_none_is_spoken_is_told_with_a_hint(server):
    with pytest.raises(EndpointError, match=r"no gRPC answer from .*\(does it speak TLS\?\)$"):
        await endpoint_of(server.address, tls=True).answers("conformance", within=0)


async def test_what_is_no_grpc_is_told_with_a_hint():
    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(other, "127.0.0.1", 0)
    async with web:
        with pytest.raises(EndpointError, match=r"no gRPC answer from .*\(is it gRPC, and without TLS\?\)$"):
            await Endpoint(f"127.0.0.1:{web.sockets[0].getsockname()[1]}").answers("conformance", within=0)


# --- application default credentials ------------------------------------------------------------------------


async def test_cases_pass_with_application_default_credentials(server, authority, monkeypatch, tmp_path):
    with service_account(tmp_path, TOKEN) as (file, asked):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        async with gated(server.address, authority.credentials(), TOKEN) as (address, gate):
            endpoint = endpoint_of(address, ca_cert=authority.file, adc=True)
            await endpoint.answers("conformance", within=10)
            await run_a_handful(endpoint)

    assert gate.let_in > len(HANDFUL)
    assert {claims["scope"] for claims in asked} == {"https://www.googleapis.com/auth/pubsub"}
    # One token serves all calls of all cases.
    assert len(asked) == 1


async def test_without_a_valid_token_nobody_is_let_in(server, authority, monkeypatch, tmp_path):
    with service_account(tmp_path, "another token") as (file, _):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        async with gated(server.address, authority.credentials(), TOKEN) as (address, gate):
            for adc in (True, False):
                endpoint = endpoint_of(address, ca_cert=authority.file, adc=adc)
                with pytest.raises(EndpointError, match="does not let us in: UNAUTHENTICATED"):
                    await endpoint.answers("conformance", within=10)

    assert gate.let_in == 0


async def test_the_command_takes_tls_and_credentials(server, authority, monkeypatch, tmp_path):
    with service_account(tmp_path, TOKEN) as (file, _):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        async with gated(server.address, authority.credentials(), TOKEN) as (address, _gate):
            options = ["--adc", "--ca-cert", str(authority.file), "--only", "CT-06,CT-26"]
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "pubsubd", "conform", address, *options],
                capture_output=True,
                text=True,
                timeout=60,
            )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 cases passed." in done.stdout


# --- options ------------------------------------------------------------------------------------------------


async def test_an_option_given_for_a_connection_wins(setting):
    async with Lab(setting) as lab:
        sub = await lab.subscription()
        await sub.publish(size=5000)
        narrow = lab.new_client(("grpc.max_receive_message_length", 1000))
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await narrow.Pull(subscription=sub.name, max_messages=1)
        await lab.clean_up()
