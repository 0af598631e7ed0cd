"""One target under atheris: `python -m tests.fuzz.one TARGET [libFuzzer's options and corpus]`.

The modules are instrumented while they are imported, so everything of ours is imported in here.
"""

from __future__ import annotations

import sys

import atheris


def main() -> None:
    name, arguments = sys.argv[1], sys.argv[2:]
    with atheris.instrument_imports(include=["pubsubd", "lark"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([name, *arguments], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
