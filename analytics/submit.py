"""What spark-submit runs: `spark-submit --py-files analytics.zip analytics/submit.py audit --journal URI
--out URI`.

The same commands as `python -m analytics`. Master, memory and cores are spark-submit's business, and nothing
but SQL settings is set here. Run as a file, this folder would hide other modules by the names of its own, so
it is taken off the path first.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry and str(Path(entry).resolve()) != here]
    try:
        from analytics.cli import main as run
    except ImportError:
        # Without --py-files: the driver at least can import the package from beside this file.
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from analytics.cli import main as run

    return run(program="analytics")


if __name__ == "__main__":
    sys.exit(main())
