"""`python -m tests.faults.simulate NAME COUNT`: simulated histories with a fault until one of them breaks.

Plays seeds 0 to COUNT - 1 and prints the first that fails, which invariant it broke, and what was seen;
`none` plants no fault.
"""

from __future__ import annotations

import json
import sys

from tests.faults.catalogue import FAULTS
from tests.faults.planting import plant


def main(arguments: list[str]) -> None:
    name, count = arguments
    if name != "none":
        plant(FAULTS[name].patches)
    from tests.sim.campaign import run_seed

    seed, invariant, text = -1, "", ""
    for seed in range(int(count)):
        outcome = run_seed(seed)
        if outcome.failed:
            invariant, text = outcome.invariant, outcome.text
            break
    print(json.dumps({"seed": seed, "invariant": invariant, "text": text}))


if __name__ == "__main__":
    main(sys.argv[1:])
