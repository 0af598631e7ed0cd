"""`python -m analytics`."""

import sys

from analytics.cli import main

if __name__ == "__main__":
    sys.exit(main())
