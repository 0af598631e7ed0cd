"""`python -m pubsubd` is `pubsubd`."""

import sys

from pubsubd.cli import main

sys.exit(main())
