"""The server of an earlier commit, to be measured beside the present one."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.targets import PubsubdTarget
from tests.support.server import ServerProcess

REPOSITORY = Path(__file__).parents[2]
# `-m` would find the present package, installed or in the working directory, before an older one.
LAUNCHER = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('pubsubd', run_name='__main__', alter_sys=True)"
)
WHEREABOUTS = "import sys; sys.path.insert(0, sys.argv.pop(1)); import pubsubd; print(pubsubd.__file__)"


def git(*arguments: str) -> bytes:
    """What git says in this repository. Raises RuntimeError with its complaint."""
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("git is not installed here") from None
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def resolve(reference: str) -> str:
    """The short name of the commit that a tag, a branch or a hash stands for."""
    # Refused here, since git would take it for an option.
    if reference.startswith("-"):
        raise RuntimeError(f"{reference!r} names no commit")
    return git("rev-parse", "--short", f"{reference}^{{commit}}").decode().strip()


def check_out(commit: str, folder: Path) -> None:
    """Unpacks the commit's package into `folder`.

    A work tree of git's own would do as well, but it is entered in the repository, and a run that is
    killed would leave that entry behind.
    """
    archive = git("archive", "--format=zip", commit, "pubsubd")
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)


class CheckoutTarget(PubsubdTarget):
    """An earlier pubsubd in the present environment, on a data directory of its own."""

    def __init__(self, reference: str, folder: Path, options: Sequence[str] = ()) -> None:
        commit = resolve(reference)
        super().__init__(folder / "data", options, name=commit)
        self.source = folder / "source"
        check_out(commit, self.source)
        self.server = CheckoutProcess(self.source, self.server)

    async def start(self) -> float:
        # A comparison of the present server with itself would look like a success.
        command = [sys.executable, "-P", "-c", WHEREABOUTS, str(self.source)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_relative_to(self.source):
            raise RuntimeError(f"the server of {self.name} would run from {found}")
        return await super().start()


class CheckoutProcess(ServerProcess):
    def __init__(self, source: Path, like: ServerProcess) -> None:
        super().__init__(like.data_dir, *like.options, port=like.port)
        self.source = source

    def command(self) -> Sequence[str]:
        _, _, _, *words = super().command()  # python -m pubsubd
        return [sys.executable, "-P", "-c", LAUNCHER, str(self.source), *words]
