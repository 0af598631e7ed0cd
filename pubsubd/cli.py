"""The `pubsubd` command: options and environment in, settings out, and every refusal in one sentence.

`pubsubd` alone is `pubsubd serve`. The server and gRPC are imported only once there is something to
serve, so that `--help`, `--version` and a mistyped option answer at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from pubsubd import __version__, logs
from pubsubd.settings import (
    LOOPBACK_V4,
    LOOPBACK_V6,
    PORT_DEFAULT,
    Pushing,
    Sealing,
    Settings,
    Started,
    StartupError,
    default_data_dir,
    loopback_hosts,
)

PORT_MAX = 65535
WILDCARDS = ("0.0.0.0", "::")

# A letter is required, so that a mistyped address or a lone port is not taken for a host name.
_HOST_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

_F = TypeVar("_F", bound=Callable[..., Any])


# --- values -----------------------------------------------------------------------------------------------


def parse_host(text: str) -> tuple[str, ...]:
    """The addresses that a `--host` means: both loopbacks for `localhost`, else the one given."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if bare.lower() == "localhost":
        return loopback_hosts()
    try:
        return (str(ipaddress.ip_address(bare)),)
    except ValueError:
        if _HOST_NAME.fullmatch(text):
            return (text,)
    raise click.BadParameter(f"{text!r} is neither an IP address nor a host name.")


def parse_port(text: str) -> int:
    # The length first: Python refuses to convert thousands of digits, in words of its own.
    if not (len(text) <= len(str(PORT_MAX)) and text.isascii() and text.isdigit() and int(text) <= PORT_MAX):
        raise click.BadParameter(f"{text!r} is not a port; ports go from 0 (pick a free one) to {PORT_MAX}.")
    return int(text)


def parse_host_port(text: str) -> tuple[tuple[str, ...] | None, int | None]:
    """`HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `HOST`; None for the half that is not there."""
    if text.startswith("["):
        bracketed, _, rest = text.partition("]")
        host, colon, port = f"{bracketed}]", rest[:1], rest[1:]
        if rest and colon != ":":
            raise click.BadParameter(f"{text!r} is not HOST:PORT; after the bracket comes :PORT.")
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise click.BadParameter(f"{text!r} is ambiguous; write an IPv6 address as in [::1]:8085.")
    if not host and not port:
        raise click.BadParameter(f"{text!r} is not HOST:PORT.")
    return (parse_host(host) if host else None), (parse_port(port) if colon else None)


def parse_project(text: str) -> str:
    # Any other text is a project here: people run emulators with ids such as `test` or `demo_1`.
    if not text or "/" in text or not text.isprintable():
        raise click.BadParameter(f"{text!r} is not a project id; one is not empty and holds no slash.")
    return text


# --- the shape of the command -----------------------------------------------------------------------------


class Option(click.Option):
    """An option that knows under which heading `--help` lists it."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class GroupedHelp(click.Command):
    """Lists options under headings, in the order of their declaration."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("pubsubd", "[serve] [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "heading", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                # A narrow first column: long options go on a line of their own, the text stays readable.
                formatter.write_dl(records, col_max=24)


class ServeByDefault(click.Group):
    """A group that runs `serve` unless another command is named, and whose help is that of `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0].startswith("-"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "conform":
            # With gRPC and all its cases, for which nobody else should wait. gRPC's own words are not wanted
            # there either: a case that kills its server would make it print stacks of errors.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            from pubsubd.conform.command import conform

            return conform
        return super().get_command(ctx, cmd_name)


def _option(
    name: str, *, heading: str, parse: Callable[[str], Any] | None = None, **kwargs: Any
) -> Callable[[_F], _F]:
    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        return value if parse is None or value is None else parse(value)

    # Named one by one: click's automatic names would carry the command's too, as in PUBSUBD_SERVE_PORT.
    envvar = "PUBSUBD_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(
        name, cls=Option, heading=heading, callback=callback, envvar=envvar, show_envvar=True, **kwargs
    )


@click.group(cls=ServeByDefault, add_help_option=False)
def cli() -> None:
    """Google Cloud Pub/Sub on your machine."""


HELP = f"""
Google Cloud Pub/Sub on your machine: exactly-once delivery that survives kill -9.

Starts a server that unmodified Pub/Sub client libraries talk to, and prints the line that points them at
it. `pubsubd` alone is `pubsubd serve`.

\b
Examples:
  pubsubd                            state kept on disk, port {PORT_DEFAULT}
  pubsubd --port 0 --in-memory       a free port, nothing kept: for tests
  pubsubd --host-port=0.0.0.0:{PORT_DEFAULT}   for other machines and containers
  pubsubd --data-dir ./state --durability power
  PUBSUBD_PORT=9000 pubsubd          every option has a variable, see below
  pubsubd conform localhost:{PORT_DEFAULT}     hold any Pub/Sub endpoint against the exactly-once checklist

An option on the command line wins over its environment variable. Ctrl-C or SIGTERM stops the server in
order: it closes streams so that clients reconnect, commits, and says what it left.
"""

CONTEXT = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}

EPILOG = """
About --ack-batch-policy. With exactly-once delivery the server answers each ack id of a batch by itself.
Client libraries read the answer to a batch that mixes good and bad ids in two ways, and no answer suits both
plainly:

omit lists exactly the ids that failed, as the API is defined. Java and C# take the others as done. Python,
Node and Go report the good ids of a mixed batch as failed although they took effect; nothing is lost, since
those messages do not come back.

confirm also lists the good ids, as transient failures. The client repeats them once, the repetition succeeds,
and every future is right in every language.

abort answers a mixed batch with ABORTED and lists only the bad ids. Python, Node and Go repeat the good ones,
which succeeds; code of your own that repeats whole batches would never come to an end.

In each of them a bad id never undoes a good one. The server never chooses by client or by call.
"""


@cli.command(cls=GroupedHelp, help=HELP, epilog=EPILOG, context_settings=CONTEXT)
@_option(
    "--host",
    heading="Where to listen",
    parse=parse_host,
    default="localhost",
    metavar="HOST",
    show_default="localhost: 127.0.0.1 and ::1",
    help="Address to listen on; 0.0.0.0 for all. There is no authentication: open it to networks you trust.",
)
@_option(
    "--port",
    heading="Where to listen",
    parse=parse_port,
    default=str(PORT_DEFAULT),
    metavar="PORT",
    show_default=True,
    help="Port of the service; 0 picks a free one and prints it.",
)
@_option(
    "--host-port",
    heading="Where to listen",
    parse=parse_host_port,
    metavar="HOST:PORT",
    help="Both at once, as for the official emulator: localhost:8085, [::1]:8085, :8085.",
)
@_option(
    "--grpc-port",
    heading="Where to listen",
    parse=parse_port,
    metavar="PORT",
    help="One more port, for gRPC alone: it saves the way through the port that REST shares.",
)
@_option(
    "--no-rest",
    heading="Where to listen",
    is_flag=True,
    help="No REST: the port is for gRPC alone.",
)
@_option(
    "--project",
    heading="Where to listen",
    parse=parse_project,
    metavar="PROJECT",
    help="Only adds `export PUBSUB_PROJECT_ID=…` to the lines to copy: every project exists, and is empty "
    "until used.",
)
@_option(
    "--data-dir",
    heading="What is kept",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default=click.format_filename(default_data_dir()),
    help="Directory of the database; made if missing, used by one server at a time.",
)
@_option(
    "--in-memory",
    heading="What is kept",
    is_flag=True,
    help="Nothing on disk: all is gone at exit.",
)
@_option(
    "--durability",
    heading="What is kept",
    type=click.Choice(["process", "power"]),
    default="process",
    show_default=True,
    help="What an answer promises. process: it survives a killed process. power: it survives loss of power "
    "too; each commit waits for the disk.",
)
@_option(
    "--journal",
    heading="What is kept",
    type=click.Choice(["on", "off"]),
    show_default="on; off with --in-memory",
    help="Record every publish, delivery, ack and expiry, in the commit that makes it true.",
)
@_option(
    "--journal-dir",
    heading="What is kept",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="journal, in the data directory",
    help="Where the journal is sealed into Parquet segments, for `python -m analytics`; needs the extra "
    "pubsubd[analytics].",
)
@_option(
    "--seal-seconds",
    heading="What is kept",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    help="Seal events once they are so old. 0: only when there are many, at the end, and when asked.",
)
@_option(
    "--seal-events",
    heading="What is kept",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Seal events once there are so many.",
)
@_option(
    "--journal-keep-hours",
    heading="What is kept",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="How long segments stay; whole hours go. 0: for ever.",
)
@_option(
    "--ack-batch-policy",
    heading="How it answers",
    type=click.Choice(["omit", "confirm", "abort"]),
    default="omit",
    show_default=True,
    help="How a batch of acks that mixes good and bad ids is answered; see the end of this text.",
)
@_option(
    "--push-window",
    heading="How it pushes",
    type=click.IntRange(min=1, max=30_000),
    default=1000,
    show_default=True,
    help="Requests outstanding at one push endpoint at most; there are 3 at first, and more as they succeed.",
)
@_option(
    "--no-push-backoff",
    heading="How it pushes",
    is_flag=True,
    help="For tests: do not leave a push endpoint that fails in peace, for 100 ms to 60 s as in the service.",
)
@_option(
    "--push-issuer",
    heading="How it pushes",
    default="https://accounts.google.com",
    show_default=True,
    metavar="URL",
    help="Issuer (iss) of the tokens that push requests carry; this server signs them with a key of its own.",
)
@_option(
    "--log-level",
    heading="What it says",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="Logs go to stderr; at info the first refused acks of a request are lines with their reasons.",
)
@_option(
    "--log-format",
    heading="What it says",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json writes one object a line.",
)
@_option(
    "--no-reset",
    heading="For tests",
    is_flag=True,
    help="Refuse POST /reset, which deletes everything in all projects.",
)
@_option(
    "--admin",
    heading="For tests",
    parse=parse_port,
    metavar="PORT",
    help="Serve the private admin interface (seals the journal, shows state, injects faults) on this "
    "loopback port; 0 picks a free one. Off unless given.",
)
@click.version_option(__version__, prog_name="pubsubd", message="%(prog)s %(version)s")
@click.pass_context
def serve(ctx: click.Context, /, **_: Any) -> None:
    """Help and parameters are above; what they mean together is in `settings_of`."""
    _serve(settings_of(ctx))


# --- from parameters to settings --------------------------------------------------------------------------


def _from_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _prevails(ctx: click.Context, name: str, other: str) -> bool:
    """Whether `name` is given and `other`, which says the contrary, is not given from a stronger source.

    The command line is stronger than the environment. Both from the same source is a mistake that we do not
    guess about.
    """
    if not _given(ctx, name):
        return False
    if _given(ctx, other) and _from_command_line(ctx, name) == _from_command_line(ctx, other):
        option, contrary = (f"--{each.replace('_', '-')}" for each in (name, other))
        value = f" {ctx.params[other]}" if other == "durability" else ""
        raise click.UsageError(f"{option} and {contrary}{value} contradict each other; give one.", ctx)
    return not _given(ctx, other) or _from_command_line(ctx, name)


def _address(ctx: click.Context) -> tuple[tuple[str, ...], int]:
    hosts, port = ctx.params["host"], ctx.params["port"]
    hosts_of_pair, port_of_pair = ctx.params["host_port"] or (None, None)
    if hosts_of_pair is not None and _prevails(ctx, "host_port", "host"):
        hosts = hosts_of_pair
    if port_of_pair is not None and _prevails(ctx, "host_port", "port"):
        port = port_of_pair
    return hosts, port


def _in_memory(ctx: click.Context) -> bool:
    if not ctx.params["in_memory"] or not _prevails(ctx, "in_memory", "data_dir"):
        return False
    return ctx.params["durability"] != "power" or _prevails(ctx, "in_memory", "durability")


def _data_dir(ctx: click.Context) -> Path | None:
    if _in_memory(ctx):
        return None
    return _absolute(ctx.params["data_dir"] or default_data_dir())


def _absolute(path: Path | None) -> Path | None:
    """So that the banner says where it lies to somebody who stands elsewhere. The environment reaches us
    without a shell's help with `~`."""
    return None if path is None else path.expanduser().absolute()


def settings_of(ctx: click.Context) -> Settings:
    """The settings that the parameters of `serve` amount to.

    Raises:
        click.UsageError: two of them contradict each other.
    """
    hosts, port = _address(ctx)
    data_dir = _data_dir(ctx)
    # A journal in memory is of use to nobody but who asks for it.
    journal = ctx.params["journal"] or ("off" if data_dir is None else "on")
    return Settings(
        hosts=hosts,
        port=port,
        grpc_port=ctx.params["grpc_port"],
        rest=not ctx.params["no_rest"],
        reset=not ctx.params["no_reset"],
        project=ctx.params["project"],
        data_dir=data_dir,
        durability=ctx.params["durability"],
        ack_batch_policy=ctx.params["ack_batch_policy"],
        journal=journal == "on",
        journal_dir=_absolute(ctx.params["journal_dir"]),
        sealing=Sealing(
            ctx.params["seal_events"], ctx.params["seal_seconds"], ctx.params["journal_keep_hours"]
        ),
        pushing=Pushing(
            ctx.params["push_window"], not ctx.params["no_push_backoff"], ctx.params["push_issuer"]
        ),
        log_level=ctx.params["log_level"],
        log_format=ctx.params["log_format"],
        admin_port=ctx.params["admin"],
    )


# --- what is said -----------------------------------------------------------------------------------------

_DURABILITY_PLAIN = {
    "process": "survives a killed process",
    "power": "survives a killed process and loss of power",
}


def dial(hosts: Sequence[str], port: int) -> str:
    """What a client on this machine writes to reach a server that listens on `hosts`."""
    if (LOOPBACK_V4 in hosts and LOOPBACK_V6 in hosts) or any(host in WILDCARDS for host in hosts):
        return f"localhost:{port}"
    host = hosts[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def banner(settings: Settings, started: Started) -> str:
    """The lines printed once the server listens; the last one starts with `ready`."""
    lines = [f"pubsubd {__version__}"]
    if settings.data_dir is None:
        lines.append("  data       in memory, gone at exit")
    else:
        plain = f"(durability: {settings.durability}: {_DURABILITY_PLAIN[settings.durability]})"
        lines.append(f"  data       {click.format_filename(settings.data_dir)} {plain}")
    sealed = f", sealed into {click.format_filename(started.journal_dir)}" if started.journal_dir else ""
    lines.append(f"  journal    {'on' if settings.journal else 'off'}{sealed}")
    if started.grpc_port is not None:
        lines.append(f"  grpc       {dial(started.hosts, started.grpc_port)}")
    if started.admin_port is not None:
        lines.append(f"  admin      {LOOPBACK_V4}:{started.admin_port}")
    lines += ["", f"  export PUBSUB_EMULATOR_HOST={dial(started.hosts, started.port)}"]
    if settings.project is not None:
        lines.append(f"  export PUBSUB_PROJECT_ID={shlex.quote(settings.project)}")
    lines += ["", "ready; Ctrl-C stops it"]
    return "\n".join(lines)


def _say(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:
        # Whoever read our output has gone (`pubsubd | head`). That is no reason to stop serving, nor to fail
        # at exit when Python flushes stdout once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> None:
    click.echo(f"pubsubd: {sentence}", err=True)


# --- running ----------------------------------------------------------------------------------------------


def _serve(settings: Settings) -> None:
    logs.configure(settings.log_level, settings.log_format)
    # gRPC's own core prints a stack of errors to stderr when a port is taken; we say it in one sentence.
    # A value that the user set is left alone.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from pubsubd.server.run import run

    serving = False

    def announce(started: Started) -> None:
        nonlocal serving
        serving = True
        _say(banner(settings, started))

    async def serve() -> None:
        try:
            _say(await run(settings, announce))
        except Exception:
            if not serving:
                raise
            logging.getLogger("pubsubd").critical(
                "the server failed; this is a bug in pubsubd", exc_info=True
            )
            _leave(1)
        _leave(0)

    try:
        asyncio.run(serve())
    except OSError as error:
        raise StartupError(f"cannot start: {error}") from error


def _leave(status: int) -> NoReturn:
    """End at once. Python's own end would cancel the calls that are open, and clients take that amiss."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 for a server that cannot start, 2 for a wrong option."""
    try:
        status = cli.main(arguments, prog_name="pubsubd", standalone_mode=False)
    except click.ClickException as error:
        _complain(" ".join(error.format_message().split()))
        return error.exit_code
    except StartupError as error:
        _complain(str(error))
        return 1
    except (click.Abort, KeyboardInterrupt):
        # Ctrl-C before the server had taken over the signal: nothing was started, nothing is left.
        return 130
    return status if isinstance(status, int) else 0
