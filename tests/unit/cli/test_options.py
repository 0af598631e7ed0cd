"""What options and environment variables amount to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pubsubd import settings as settings_module
from pubsubd.settings import Settings, default_data_dir, loopback_hosts


def test_without_options_the_settings_are_the_defaults(parse):
    settings = parse()

    assert Settings() == settings
    assert loopback_hosts() == settings.hosts
    assert settings.port == 8085
    assert default_data_dir() == settings.data_dir
    assert (settings.durability, settings.ack_batch_policy, settings.journal) == ("process", "omit", True)
    assert settings.admin_port is None


def test_serve_may_be_left_out(parse):
    assert parse("serve", "--port", "0") == parse("--port", "0") == parse("--port=0")


def test_every_option_reaches_its_setting(parse, tmp_path):
    settings = parse(
        *("--host", "0.0.0.0", "--port", "9000", "--project", "orders", "--data-dir", str(tmp_path)),
        *("--durability", "power", "--ack-batch-policy", "confirm", "--journal", "off"),
        *("--log-level", "DEBUG", "--log-format", "json", "--admin", "0"),
    )

    assert settings == Settings(
        hosts=("0.0.0.0",),
        port=9000,
        project="orders",
        data_dir=tmp_path,
        durability="power",
        ack_batch_policy="confirm",
        journal=False,
        log_level="debug",
        log_format="json",
        admin_port=0,
    )


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("PUBSUBD_HOST", "::1", "hosts", ("::1",)),
        ("PUBSUBD_PORT", "0", "port", 0),
        ("PUBSUBD_HOST_PORT", "0.0.0.0:7000", "port", 7000),
        ("PUBSUBD_GRPC_PORT", "9002", "grpc_port", 9002),
        ("PUBSUBD_NO_REST", "1", "rest", False),
        ("PUBSUBD_NO_RESET", "1", "reset", False),
        ("PUBSUBD_PROJECT", "demo_1", "project", "demo_1"),
        ("PUBSUBD_DATA_DIR", "/data", "data_dir", Path("/data")),
        ("PUBSUBD_IN_MEMORY", "1", "data_dir", None),
        ("PUBSUBD_IN_MEMORY", "0", "data_dir", default_data_dir()),
        ("PUBSUBD_DURABILITY", "power", "durability", "power"),
        ("PUBSUBD_ACK_BATCH_POLICY", "abort", "ack_batch_policy", "abort"),
        ("PUBSUBD_JOURNAL", "off", "journal", False),
        ("PUBSUBD_LOG_LEVEL", "error", "log_level", "error"),
        ("PUBSUBD_LOG_FORMAT", "json", "log_format", "json"),
        ("PUBSUBD_ADMIN", "9001", "admin_port", 9001),
    ],
)
def test_every_option_has_an_environment_variable(parse, monkeypatch, name, text, field, value):
    monkeypatch.setenv(name, text)

    assert value == getattr(parse(), field)


def test_the_command_line_wins_over_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_PORT", "9000")

    assert parse("--port", "0").port == 0


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts", "port"),
    [
        ("127.0.0.1:9000", ("127.0.0.1",), 9000),
        ("0.0.0.0:8085", ("0.0.0.0",), 8085),
        ("[::1]:9000", ("::1",), 9000),
        ("[::]:0", ("::",), 0),
        ("localhost:9000", loopback_hosts(), 9000),
        (":9000", loopback_hosts(), 9000),
        ("localhost", loopback_hosts(), 8085),
        ("[::1]", ("::1",), 8085),
        ("emulator.internal:9000", ("emulator.internal",), 9000),
    ],
)
def test_host_port_is_read_as_users_of_the_official_emulator_write_it(parse, text, hosts, port):
    settings = parse(f"--host-port={text}", "--project=orders")

    assert (hosts, port) == (settings.hosts, settings.port)


@pytest.mark.parametrize(
    "text", ["", ":", "8085", "::1:8085", "localhost:", "localhost:http", "a b:1", "[::1]8085"]
)
def test_a_malformed_host_port_is_refused(refuse, text):
    assert "--host-port" in refuse(f"--host-port={text}")


def test_localhost_is_both_loopbacks(parse, monkeypatch):
    assert parse("--host", "localhost").hosts == parse("--host", "LocalHost").hosts == loopback_hosts()
    assert "127.0.0.1" in loopback_hosts()


def test_localhost_is_the_old_loopback_alone_where_the_machine_has_no_ipv6(parse, monkeypatch):
    def refuse_ipv6(*_: object) -> None:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr(settings_module.socket, "socket", refuse_ipv6)

    assert parse("--host", "localhost").hosts == ("127.0.0.1",)


def test_host_port_and_port_contradict_each_other(refuse):
    assert "--host-port and --port" in refuse("--host-port", ":9000", "--port", "9000")
    assert "--host-port and --host" in refuse("--host-port", "localhost:9000", "--host", "::1")


def test_a_half_of_host_port_that_is_not_there_leaves_room_for_the_option(parse):
    settings = parse("--host-port", ":9000", "--host", "::1")

    assert (settings.hosts, settings.port) == (("::1",), 9000)


def test_host_port_on_the_command_line_wins_over_port_in_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_PORT", "7000")

    assert parse("--host-port", ":9000").port == 9000


def test_port_on_the_command_line_wins_over_host_port_in_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_HOST_PORT", "0.0.0.0:7000")

    settings = parse("--port", "0")

    assert (settings.hosts, settings.port) == (("0.0.0.0",), 0)


# --- where the data lies -----------------------------------------------------------------------------------


def test_the_data_directory_is_absolute(parse, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "state" == parse("--data-dir", "state").data_dir


def test_a_home_directory_in_the_environment_is_expanded(parse, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PUBSUBD_DATA_DIR", "~/state")

    assert tmp_path / "state" == parse().data_dir


def test_in_memory_contradicts_a_data_directory(refuse, monkeypatch):
    assert "--in-memory and --data-dir" in refuse("--in-memory", "--data-dir", "state")

    monkeypatch.setenv("PUBSUBD_IN_MEMORY", "1")
    monkeypatch.setenv("PUBSUBD_DATA_DIR", "state")
    assert "--in-memory and --data-dir" in refuse()


def test_in_memory_on_the_command_line_wins_over_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_DATA_DIR", "state")
    monkeypatch.setenv("PUBSUBD_DURABILITY", "power")

    assert parse("--in-memory").data_dir is None


def test_a_data_directory_on_the_command_line_wins_over_in_memory_in_the_environment(parse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_IN_MEMORY", "1")

    assert Path("/data") == parse("--data-dir", "/data").data_dir


def test_in_memory_cannot_promise_to_survive_loss_of_power(refuse, parse):
    assert "--durability power" in refuse("--in-memory", "--durability", "power")
    assert parse("--in-memory", "--durability", "process").data_dir is None


def test_a_file_is_no_data_directory(refuse, tmp_path):
    path = tmp_path / "file"
    path.touch()

    assert "is a file" in refuse("--data-dir", str(path))


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prot", "0"], "--prot"),
        (["start"], "start"),
        (["serve", "now"], "now"),
        (["--port"], "--port"),
        (["--port", "65536"], "65536"),
        (["--port", "-1"], "-1"),
        (["--port", "²"], "²"),
        (["--port", "9" * 5000], "--port"),
        (["--admin", "x"], "--admin"),
        (["--host", "1.2.3"], "1.2.3"),
        (["--host", ""], "--host"),
        (["--host", "not a host"], "not a host"),
        (["--project", ""], "--project"),
        (["--project", "projects/orders"], "projects/orders"),
        (["--durability", "none"], "none"),
        (["--ack-batch-policy", "first"], "first"),
        (["--journal", "maybe"], "maybe"),
        (["--log-level", "loud"], "loud"),
        (["--log-format", "xml"], "xml"),
        (["--project", "line\nbreak"], "--project"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(refuse, arguments, named):
    assert named in refuse(*arguments)


def test_a_refused_environment_variable_is_named(refuse, monkeypatch):
    monkeypatch.setenv("PUBSUBD_PORT", "http")

    assert "PUBSUBD_PORT" in refuse()
