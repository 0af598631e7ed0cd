"""`python -m tests.faults.serve NAME -- OPTIONS`: pubsubd with a fault; `none` plants none."""

from __future__ import annotations

import sys

from tests.faults.catalogue import FAULTS
from tests.faults.planting import plant


def main(arguments: list[str]) -> int:
    name, separator, *options = arguments
    assert separator == "--", arguments
    if name != "none":
        plant(FAULTS[name].patches)
    from pubsubd.cli import main as serve

    return serve(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
